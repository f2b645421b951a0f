"""The official SDKs and three nodes: reads of replicas, and what happens to clients when roles change and nodes are lost."""

import contextlib
import json
import subprocess
import tempfile
import threading
import time
from datetime import timedelta

import pytest
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import CouchbaseException
from couchbase.options import GetAllReplicasOptions, GetAnyReplicaOptions, GetOptions, UpsertOptions

from tests.cluster import Cluster
from tests.persistence.bucket import http, vbucket_of
from tests.terminal.command import Operator

from . import programs
from .cluster import connect, connection_string

TIMEOUT = timedelta(seconds=3)
# An SDK may need as long to notice that a node is gone.
PATIENCE_S = 60
KEYS = [f"key-{n}" for n in range(40)]
HALF = 512
LOW, HIGH = ([key for key in KEYS if (vbucket_of(key.encode()) < HALF) == is_low] for is_low in (True, False))


class Python:
    """The same requests as those of tests/go/replicas."""

    def __init__(self, node):
        self.cluster = connect(node)
        self.cluster.wait_until_ready(timedelta(seconds=20))
        self.collection = self.cluster.bucket("default").default_collection()

    def ask(self, verb, key, *words):
        try:
            return f"ok {self.perform(verb, key, *words)}".strip()
        except CouchbaseException as error:
            return f"error {type(error).__name__}"

    def perform(self, verb, key, *words):
        role = lambda read: "replica" if read.is_replica else "active"
        match verb:
            case "set":
                level = DurabilityLevel.MAJORITY if words[1] == "majority" else DurabilityLevel.NONE
                self.collection.upsert(key, words[0], UpsertOptions(timeout=TIMEOUT, durability=ServerDurability(level)))
                return ""
            case "get":
                return self.collection.get(key, GetOptions(timeout=TIMEOUT)).content_as[str]
            case "any":
                read = self.collection.get_any_replica(key, GetAnyReplicaOptions(timeout=TIMEOUT))
                return f"{read.content_as[str]} {role(read)}"
            case "all":
                found = self.collection.get_all_replicas(key, GetAllReplicasOptions(timeout=TIMEOUT))
                return " ".join(sorted(f"{read.content_as[str]}:{role(read)}" for read in found))

    def close(self):
        self.cluster.close()


class Program:
    """An SDK in a process of its own."""

    def __init__(self, command, node):
        command = [*command, connection_string(node), "Administrator", "password", "default"]
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def ask(self, *words):
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        watchdog.start()
        answer = self.process.stdout.readline().strip()
        watchdog.cancel()
        assert answer.startswith(("ok", "error ")), (words, answer, self.said())
        return answer

    def said(self):
        self.errors.seek(0)
        return self.errors.read()[-4000:]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.errors.close()


@pytest.fixture(scope="module", params=["python", "go", "node", "java"])
def sdk(request, tmp_path_factory):
    """Connects an SDK to a node."""
    if request.param == "python":
        return Python
    command = getattr(programs, request.param)("replicas", tmp_path_factory.mktemp(request.param))
    return lambda node: Program(command, node)


def becomes(client, expected, *words):
    """Asks until the answer is as expected."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := client.ask(*words)) != expected:
        assert time.monotonic() < deadline, (words, answer, expected)
        time.sleep(0.1)


def everywhere(value):
    return f"ok {value}:active {value}:replica {value}:replica"


def test_sdks_read_replicas_and_follow_the_roles(tmp_path, sdk):
    with Cluster(tmp_path, 3, ("default,persistent,128MiB",)) as cluster, contextlib.ExitStack() as stack:
        cluster.assign(["n1", "n2", "n3"], vbs=(0, HALF - 1))
        cluster.assign(["n2", "n3", "n1"], vbs=(HALF, 1023))
        client = stack.enter_context(contextlib.closing(sdk(cluster["n1"])))
        for number, key in enumerate(KEYS):
            becomes(client, "ok", "set", key, "first", ("majority", "none")[number % 2])
        for key in KEYS:
            assert client.ask("get", key) == "ok first"
            becomes(client, everywhere("first"), "all", key)

        # n1 is lost, and was the active of half.
        cluster.kill("n1")
        for key in LOW[:3]:
            becomes(client, "ok first replica", "any", key)
        assert client.ask("get", HIGH[0]) == "ok first"
        cluster.set_role("n2", (0, HALF - 1), state="active", topology=[["n2", "n3"]], term=2)
        cluster.set_role("n3", (0, HALF - 1), state="replica", source="n2", topology=[["n2", "n3"]], term=2)
        cluster.set_role("n2", (HALF, 1023), topology=[["n2", "n3"]])
        for key in KEYS:
            becomes(client, "ok", "set", key, "second", "majority")
            assert client.ask("get", key) == "ok second"

        # It is back, and a replica of everything.
        cluster.restart("n1")
        whole = [["n2", "n3", "n1"]]
        cluster.set_role("n1", state="replica", source="n2", topology=whole, term=2)
        cluster.set_role("n2", state="active", topology=whole, term=2)
        cluster.set_role("n3", topology=whole, term=2)
        for key in KEYS:
            becomes(client, everywhere("second"), "all", key)

        # One vBucket after the other moves, while a client works.
        key = LOW[0]
        vb = vbucket_of(key.encode())
        for number, (new, old) in enumerate([("n1", "n2"), ("n2", "n1")] * 3):
            cluster.take_over(new, old, vb, [[new, old, "n3"]])
            cluster.set_role("n3", (vb, vb), state="replica", source=new, topology=[[new, old, "n3"]], term=cluster.role(new, vb)["term"])
            becomes(client, "ok", "set", key, f"moved-{number}", "majority")
            assert client.ask("get", key) == f"ok moved-{number}"
            becomes(client, everywhere(f"moved-{number}"), "all", key)


@pytest.mark.parametrize("kind", ("ephemeral", "persistent"))
def test_a_deposed_node_takes_no_client_from_its_successor(tmp_path, sdk, kind):
    """n1 is lost, n2 promoted; n1 is back, the last to start, and nobody has told it yet."""
    with Cluster(tmp_path, 2, (f"default,{kind},128MiB",)) as cluster, contextlib.ExitStack() as stack:
        cluster.assign(["n1", "n2"])
        client = stack.enter_context(contextlib.closing(sdk(cluster["n1"])))
        for key in KEYS:
            becomes(client, "ok", "set", key, "first", "none")
        cluster.wait_equal("n1", "n2")
        cluster.kill("n1")
        done = Operator(cluster["n2"], "Administrator", password_file(tmp_path)).run("bucket", "promote", "default", "--force")
        assert done.returncode == 0, done
        for key in KEYS:
            becomes(client, "ok", "set", key, "second", "none")
        successor = bucket_map(cluster["n2"])
        cluster.restart("n1")
        deposed = bucket_map(cluster["n1"])
        assert deposed["rev"] > successor["rev"] and deposed["revEpoch"] < successor["revEpoch"], (version(deposed), version(successor))
        later = stack.enter_context(contextlib.closing(sdk(cluster["n2"])))
        for one in (client, later):
            for key in KEYS:
                assert one.ask("get", key) == "ok second"
        # It is told.
        done = Operator(cluster["n2"], "Administrator", password_file(tmp_path)).run("bucket", "promote", "default")
        assert done.returncode == 0, done
        for one in (client, later):
            for key in KEYS:
                becomes(one, "ok", "set", key, "third", "majority")
                assert one.ask("get", key) == "ok third"


def password_file(directory):
    path = directory / "password"
    path.write_text("password\n")
    return path


def bucket_map(node):
    status, body = http(node, "GET", "/pools/default/b/default")
    assert status == 200, body
    return json.loads(body)


def version(shown):
    return shown["revEpoch"], shown["rev"]


def test_the_manager_of_collections_works_through_a_failover(tmp_path):
    """What it was told to be created or dropped is so on the node that takes over."""
    with Cluster(tmp_path, 3, ("default,persistent,128MiB",)) as cluster, contextlib.ExitStack() as stack:
        cluster.assign(["n1", "n2", "n3"])
        client = stack.enter_context(contextlib.closing(Python(cluster["n1"])))
        manager = client.cluster.bucket("default").collections()
        manager.create_scope("scope")
        for name in ("kept", "dropped"):
            manager.create_collection("scope", name)
        manager.drop_collection("scope", "dropped")
        durably = UpsertOptions(timeout=timedelta(seconds=20), durability=ServerDurability(DurabilityLevel.MAJORITY))
        kept = client.cluster.bucket("default").scope("scope").collection("kept")
        for key in KEYS:
            kept.upsert(key, "value", durably)

        cluster.kill("n1")
        chain = [["n2", "n3"]]
        cluster.set_role("n3", source="", term=2)
        cluster.set_role("n2", state="active", topology=chain, term=2)
        cluster.set_role("n3", state="replica", source="n2", topology=chain, term=2)
        other = stack.enter_context(contextlib.closing(Python(cluster["n2"])))
        manager = other.cluster.bucket("default").collections()
        scopes = {scope.name: {one.name for one in scope.collections} for scope in manager.get_all_scopes()}
        assert scopes["scope"] == {"kept"}
        manager.create_collection("scope", "later")
        for name in ("kept", "later"):
            collection = other.cluster.bucket("default").scope("scope").collection(name)
            for key in KEYS:
                collection.upsert(key, "again", durably)
        # The client of before goes on, with the ids that it knows.
        for key in KEYS:
            assert kept.get(key, GetOptions(timeout=timedelta(seconds=20))).content_as[str] == "again"
        manager.drop_scope("scope")
        assert "scope" not in {scope.name for scope in manager.get_all_scopes()}
