"""The DCP agent of the official client library for Go (gocbcore): streams, checkpoints, restarts, and loses nothing."""

import json
import subprocess

import pytest

from tests import servers
from tests.persistence.bucket import wait_all_persisted, wait_warm

from . import programs
from .changes import begin_again, change, inside


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return programs.go("stream", tmp_path_factory.mktemp("go"))


class Follower:
    def __init__(self, program, checkpoint):
        self.program, self.checkpoint = program, checkpoint

    def run(self, node, *halt, unordered=False):
        """Follows from the checkpoint on; returns what the program says about it."""
        connection = f"couchbase://{node.kv[0]}:{node.kv[1]}"
        command = [*self.program, *(["-unordered"] if unordered else []), connection, "Administrator", "password", "default", str(self.checkpoint), *map(str, halt)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def documents(self):
        places = json.loads(self.checkpoint.read_text())
        return {name.removeprefix("0/"): value for place in places for name, value in place["Documents"].items()}


@pytest.fixture
def follower(program, tmp_path):
    return Follower(program, tmp_path / "checkpoint")


@pytest.mark.parametrize("kind", ["ephemeral", "persistent"])
def test_checkpoints_lose_nothing(follower, kind):
    documents = {}
    with servers.Dormouse(buckets=(f"default,{kind},256MiB",)) as node:
        for round in range(4):
            change(node, round, documents)
            said = follower.run(node)
            assert said["rolled_back"] == 0 and said["events"] > 0, (round, said)
            assert follower.documents() == documents
        # In the middle of everything.
        change(node, 5, documents)
        halts = 0
        while (said := follower.run(node, 300))["streams"] > 0:
            halts += 1
        assert halts > 3 and said["rolled_back"] == 0
        assert follower.documents() == documents


def test_flush_all_begins_again(follower):
    documents = {}
    with servers.Dormouse() as node:
        change(node, 0, documents)
        follower.run(node)
        documents, touched = begin_again(node)
        said = follower.run(node)
        assert said["rolled_back"] == said["streams"] > 0
        assert inside(touched, follower.documents()) == documents


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_persistent_bucket_is_followed_across_restarts(follower, ends, tmp_path):
    documents, home = {}, tmp_path / "home"
    home.mkdir()
    buckets = ("default,persistent,100MiB",)
    for round in range(3):
        with servers.Dormouse(buckets=buckets, home=home) as node:
            wait_warm(node)
            if round:
                said = follower.run(node)
                assert follower.documents() == documents, said
            change(node, round, documents)
            said = follower.run(node)
            # After a clean end the histories go on.
            assert said["rolled_back"] == 0 or ends == "kill", said
            assert follower.documents() == documents
            wait_all_persisted(node)
            node.stop() if ends == "stop" else node.kill()


def test_backfills_in_no_order(follower, tmp_path):
    """What is in memory comes first. A checkpoint in the middle of it is worth nothing."""
    documents, home = {}, tmp_path / "home"
    home.mkdir()
    with servers.Dormouse(buckets=("default,persistent,100MiB",), home=home) as node:
        change(node, 0, documents)
        wait_all_persisted(node)
        said = follower.run(node, unordered=True)
        assert said["unordered"] == said["streams"] > 0 and said["rolled_back"] == 0
        assert follower.documents() == documents
        # What comes later has an order, except in vBuckets that had nothing.
        change(node, 1, documents)
        said = follower.run(node, unordered=True)
        assert said["unordered"] < said["streams"] / 4, said
        assert follower.documents() == documents
        # From the beginning, interrupted again and again.
        wait_all_persisted(node)
        follower.checkpoint.unlink()
        halts = unordered = 0
        while (said := follower.run(node, 500, unordered=True))["streams"] > 0:
            halts, unordered = halts + 1, unordered + said["unordered"]
        assert halts > 3 and unordered > 0 and said["rolled_back"] == 0
        assert follower.documents() == documents
