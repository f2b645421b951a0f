"""The DCP client for Java, which the connectors for Kafka and Elasticsearch are made of: it follows, goes on, and loses nothing."""

import base64
import subprocess
from datetime import timedelta

import pytest
import couchbase.subdocument as subdocument
from couchbase.options import UpsertOptions

from tests import servers
from tests.persistence.bucket import document, http, memcached, wait_all_persisted, wait_until, wait_warm

from . import programs
from .changes import begin_again, change, inside
from .cluster import connect, connection_string

PERSISTENT = ("default,persistent,100MiB",)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return programs.java("follow", tmp_path_factory.mktemp("java"), "java-streams")


class Follower:
    def __init__(self, program, checkpoint):
        self.program, self.checkpoint = program, checkpoint

    def run(self, node, *collections, halt=0, persisted_ms=0):
        """Follows from the checkpoint on; returns how often it saw what."""
        authority = "-" if node.kv else str(node.authority)
        command = [*self.program, connection_string(node), "Administrator", "password", "default", str(self.checkpoint), str(halt), str(persisted_ms), authority]
        done = subprocess.run([*command, *collections], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        counts = dict(reversed(line.split(" ", 1)) for line in done.stdout.splitlines())
        return {name: int(count) for name, count in counts.items()}

    def documents(self, collection=0):
        """Those in a collection, whose id is given."""
        found = {}
        for line in self.checkpoint.read_text().splitlines():
            what, _, name, value, *_ = line.split(" ")
            if what == "document" and name.startswith(f"{collection}-"):
                found[name.split("-", 1)[1]] = base64.b64decode(value).decode()
        return found


@pytest.fixture
def follower(program, tmp_path):
    return Follower(program, tmp_path / "checkpoint")


@pytest.mark.parametrize("kind, persisted_ms", [("ephemeral", 0), ("persistent", 0), ("persistent", 50)])
def test_checkpoints_lose_nothing(follower, kind, persisted_ms):
    documents = {}
    with servers.Dormouse(buckets=(f"default,{kind},256MiB",)) as node:
        for round in range(2):
            change(node, round, documents)
            said = follower.run(node, persisted_ms=persisted_ms)
            assert said["behind"] == 0 and "rollbacks" not in said, said
            assert follower.documents() == documents
        # In the middle of everything.
        change(node, 5, documents)
        halts = 0
        while (said := follower.run(node, halt=700, persisted_ms=persisted_ms))["behind"] > 0:
            halts += 1
        assert halts > 1 and "rollbacks" not in said
        assert follower.documents() == documents


def test_over_plain_connections_and_tls(follower, either_node):
    cluster = connect(either_node)
    collection = cluster.bucket("default").default_collection()
    documents = {f"key-{n}": f'"value-{n}"' for n in range(200)}
    for key in documents:
        collection.upsert(key, f"value-{key.removeprefix('key-')}")
    cluster.close()
    follower.run(either_node)
    assert follower.documents() == documents


def test_flush_all_begins_again(follower):
    documents = {}
    with servers.Dormouse() as node:
        change(node, 0, documents)
        follower.run(node)
        documents, touched = begin_again(node)
        said = follower.run(node)
        assert said["rollbacks"] >= len(touched), said
        assert inside(touched, follower.documents()) == documents


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_persistent_bucket_is_followed_across_restarts(follower, ends, tmp_path):
    documents, home = {}, tmp_path / "home"
    home.mkdir()
    for round in range(2):
        with servers.Dormouse(buckets=PERSISTENT, home=home) as node:
            wait_warm(node)
            if round:
                said = follower.run(node, persisted_ms=50)
                assert follower.documents() == documents, said
            change(node, round, documents)
            said = follower.run(node, persisted_ms=50)
            # It has seen nothing that a kill could take back.
            assert "rollbacks" not in said, said
            assert follower.documents() == documents
            wait_all_persisted(node)
            node.stop() if ends == "stop" else node.kill()


def id_of(node, scope, collection):
    manifest = document(node, "/pools/default/buckets/default/scopes")
    scopes = {one["name"]: one for one in manifest["scopes"]}
    return int({one["name"]: one["uid"] for one in scopes[scope]["collections"]}[collection], 16)


def test_collections_come_and_go(follower):
    scopes = "/pools/default/buckets/default/scopes"
    with servers.Dormouse(buckets=PERSISTENT) as node:
        assert http(node, "POST", scopes, "name=shop")[0] == 200
        for name in ("carts", "orders"):
            assert http(node, "POST", f"{scopes}/shop/collections", f"name={name}")[0] == 200
        carts, orders = (id_of(node, "shop", name) for name in ("carts", "orders"))
        cluster = connect(node)
        scope = cluster.bucket("default").scope("shop")
        for n in range(100):
            scope.collection("carts").upsert(f"key-{n}", n)
            scope.collection("orders").upsert(f"key-{n}", -n)
        said = follower.run(node)
        assert said["scopes created"] > 0 and said["collections created"] > 0, said
        assert follower.documents(carts) == {f"key-{n}": str(n) for n in range(100)}
        assert follower.documents(orders) == {f"key-{n}": str(-n) for n in range(100)}
        # One that goes.
        assert http(node, "DELETE", f"{scopes}/shop/collections/carts")[0] == 200
        scope.collection("orders").upsert("key-0", "new")
        # The answer comes before every vBucket has heard of it.
        wait_until(lambda: follower.run(node) and follower.documents(carts) == {}, "the collection is dropped in all vBuckets")
        assert follower.documents(orders)["key-0"] == '"new"'
        # Only one, from the beginning.
        memcached(node).set("elsewhere", "1")
        follower.checkpoint.unlink()
        follower.run(node, "shop.orders")
        assert len(follower.documents(orders)) == 100 and follower.documents(0) == {}
        cluster.close()


def test_what_expires_and_attributes(follower):
    with servers.Dormouse() as node:
        cluster = connect(node)
        collection = cluster.bucket("default").default_collection()
        collection.upsert("short", "lived", UpsertOptions(expiry=timedelta(seconds=12)))
        collection.upsert("long", "lived")
        collection.mutate_in("long", [subdocument.upsert("note", "seen", xattr=True, create_parents=True)])
        said = follower.run(node)
        assert (said["mutations"], said["mutations with attributes"]) == (1, 1) and set(follower.documents()) == {"short", "long"}, said
        wait_until(lambda: not collection.exists("short").exists, "the document has expired")
        said = follower.run(node)
        assert said["expirations"] == 1 and follower.documents() == {"long": '"lived"'}, said
        cluster.close()
