"""`dormouse bucket promote`: whatever a majority has acknowledged is there afterwards, or nothing is promoted."""

import json

import pytest

from tests.cluster import Cluster
from tests.frames import SUCCESS
from tests.persistence.bucket import http, wait_until
from tests.terminal.command import Operator

from .test_replicas import Client

VBUCKETS = "/pools/default/buckets/default/vbuckets"
PERSIST_TO_MAJORITY = 3


@pytest.fixture(params=("ephemeral", "persistent"))
def kind(request):
    return request.param


def promote(cluster, name, *options, tmp_path):
    login = tmp_path / "password"
    login.write_text("password\n")
    return Operator(cluster[name], "Administrator", login).run("bucket", "promote", "default", *options)


def roles(cluster, name):
    status, answer = http(cluster[name], "GET", VBUCKETS)
    assert status == 200, answer
    return {shown["vbucket"]: shown for shown in json.loads(answer)}


def active_of(cluster, names, vb):
    actives = [name for name in names if roles(cluster, name)[vb]["state"] == "active"]
    newest = max(actives, key=lambda name: roles(cluster, name)[vb]["term"])
    return newest


def test_a_long_log_of_plain_writes_does_not_win(kind, tmp_path):
    """n1 is cut off and takes 500 plain writes; n2 or n3 is promoted, and 50 durable writes are acknowledged; that one is
    lost and n1 is back."""
    level = PERSIST_TO_MAJORITY if kind == "persistent" else 1
    with Cluster(tmp_path, 3, (f"default,{kind},128MiB",), relayed=("n1",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        with Client(cluster["n1"]) as client:
            assert client.set(b"before", level=1).status == SUCCESS
            cluster.relays["n1"].stop()
            for number in range(500):
                assert client.set(b"plain-%d" % number).status == SUCCESS
        cluster.pause("n1")
        done = promote(cluster, "n3", tmp_path=tmp_path)
        assert done.returncode == 0, done
        assert "n1 did not answer" in done.stdout, done.stdout
        active = active_of(cluster, ("n2", "n3"), 7)
        other = {"n2": "n3", "n3": "n2"}[active]
        with Client(cluster[active]) as client:
            for number in range(50):
                assert client.set(b"durable-%d" % number, b"%d" % number, level=level).status == SUCCESS
        cluster.kill(active)
        cluster.go_on("n1")
        ranks = {name: (roles(cluster, name)[7]["history_term"], roles(cluster, name)[7]["complete_seqno"]) for name in ("n1", other)}
        assert ranks["n1"][1] > ranks[other][1] and ranks["n1"] < ranks[other], ranks
        done = promote(cluster, other, "--json", tmp_path=tmp_path)
        assert done.returncode == 0, done
        decided = json.loads(done.stdout)
        assert [shown for shown in decided["vbuckets"] if shown["mayHaveLost"]] == []
        assert decided["vbuckets"][7]["chain"][0] == other, decided["vbuckets"][7]
        with Client(cluster[other]) as client:
            for number in range(50):
                assert client.get(b"durable-%d" % number) == b"%d" % number, number
            assert client.get(b"before") == b"value"


def test_nothing_is_changed_if_too_few_answer(kind, tmp_path):
    with Cluster(tmp_path, 3, (f"default,{kind},128MiB",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        with Client(cluster["n1"]) as client:
            assert client.set(b"key", level=1).status == SUCCESS
        cluster.kill("n1")
        cluster.kill("n3")
        parts = ("state", "term", "topology", "source")
        in_force = lambda: {vb: [shown[part] for part in parts] for vb, shown in roles(cluster, "n2").items()}
        before = in_force()
        done = promote(cluster, "n2", tmp_path=tmp_path)
        assert done.returncode != 0 and "might be lost" in done.stderr and "n1" in done.stderr, done
        assert in_force() == before
        done = promote(cluster, "n2", "--force", tmp_path=tmp_path)
        assert done.returncode == 0 and "may have lost" in done.stdout, done
        assert {shown["state"] for shown in roles(cluster, "n2").values()} == {"active"}


def test_an_active_that_was_killed_comes_back_and_copies_what_it_lacks(tmp_path):
    with Cluster(tmp_path, 3, ("default,persistent,128MiB",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        with Client(cluster["n1"]) as client:
            for number in range(100):
                level = PERSIST_TO_MAJORITY if number % 10 == 0 else None
                assert client.set(b"key-%d" % number, b"%d" % number, level=level).status == SUCCESS
        cluster.kill("n1")
        assert promote(cluster, "n2", tmp_path=tmp_path).returncode == 0
        cluster.restart("n1")
        # Once more, now that it answers: it becomes a replica.
        assert promote(cluster, "n2", tmp_path=tmp_path).returncode == 0
        names = ("n1", "n2", "n3")
        active = active_of(cluster, names, 7)
        with Client(cluster[active]) as client:
            for number in range(100):
                if number % 10 == 0:
                    assert client.get(b"key-%d" % number) == b"%d" % number
            assert client.set(b"after", level=PERSIST_TO_MAJORITY).status == SUCCESS
        highs = lambda: {roles(cluster, name)[7]["complete_seqno"] for name in names}
        wait_until(lambda: len(highs()) == 1, "all have the same")
