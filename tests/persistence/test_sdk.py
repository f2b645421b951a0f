"""The official Python SDK and persistent buckets: every durability level, and a restart in the middle. An ephemeral
bucket with an absent replica is tested in tests/clients/test_durability_python.py."""

import threading
import time
from datetime import timedelta

import pytest
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    CASMismatchException,
    CouchbaseException,
    DocumentExistsException,
    DocumentNotFoundException,
    DurabilityInvalidLevelException,
    DurabilitySyncWriteAmbiguousException,
)
from couchbase.options import (
    AppendOptions, GetOptions, IncrementOptions, InsertOptions, PrependOptions, RemoveOptions, ReplaceOptions, UpsertOptions,
)
from couchbase.transcoder import RawBinaryTranscoder

from tests.clients.cluster import connect
from tests.servers import free_port

from .peer import ABSENT_REPLICA, ALONE, Peer

LEVELS = [DurabilityLevel.MAJORITY, DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY]
PERSISTED = LEVELS[1:]
SHORT = timedelta(seconds=2)
CONFIG = """
[[bucket]]
name = "default"
kind = "persistent"
memory = "64MiB"

[[bucket]]
name = "ephemeral"
kind = "ephemeral"
memory = "64MiB"
"""
VBUCKETS = 1024


class World:
    """A node on fixed ports, and a cluster object that survives its stops and is replaced after a kill.

    A dying node can still accept, and resets, the connection with which the SDK answers the end of the last one. When
    the reset meets the SDK's first write, version 4.6.3 connects again and never writes to that connection (2 kills in
    100 under load; `ss -ti` shows no byte sent)."""

    def __init__(self, start):
        self.start, self.ports, self.clusters = start, {"kv": free_port(), "http": free_port()}, []
        self.node = start(config=CONFIG, ports=self.ports)
        self.connect()

    def connect(self):
        self.cluster = connect(self.node)
        self.clusters.append(self.cluster)
        self.cluster.wait_until_ready(timedelta(seconds=20))
        self.collection = self.cluster.bucket("default").default_collection()

    def restart(self, how="kill"):
        if how == "kill":
            self.node.kill()
        else:
            assert self.node.stop() == 0
        self.node = self.start(config=CONFIG, ports=self.ports)
        if how == "kill":
            self.connect()

    def peer(self):
        return Peer(self.node.kv, vbuckets=VBUCKETS)


@pytest.fixture
def world(start):
    world = World(start)
    yield world
    for cluster in world.clusters:
        cluster.close()


@pytest.mark.parametrize("how", ("kill", "stop"))
def test_every_operation_at_every_level_survives(world, how):
    collection, raw = world.collection, RawBinaryTranscoder()
    expected = {}
    for level in LEVELS:
        durable, name = ServerDurability(level), level.name
        cas = collection.insert(f"{name}-replaced", 1, InsertOptions(durability=durable)).cas
        with pytest.raises(DocumentExistsException):
            collection.insert(f"{name}-replaced", 2, InsertOptions(durability=durable))
        with pytest.raises(CASMismatchException):
            collection.replace(f"{name}-replaced", 2, ReplaceOptions(cas=cas + 1, durability=durable))
        collection.replace(f"{name}-replaced", 2, ReplaceOptions(cas=cas, durability=durable))
        collection.upsert(f"{name}-upserted", {"level": name}, UpsertOptions(durability=durable))
        collection.upsert(f"{name}-removed", 1, UpsertOptions(durability=durable))
        collection.remove(f"{name}-removed", RemoveOptions(durability=durable))
        for _ in range(3):
            collection.binary().increment(f"{name}-counter", IncrementOptions(durability=durable))
        collection.upsert(f"{name}-text", b"b", UpsertOptions(transcoder=raw, durability=durable))
        collection.binary().append(f"{name}-text", b"c", AppendOptions(durability=durable))
        collection.binary().prepend(f"{name}-text", b"a", PrependOptions(durability=durable))
        collection.upsert(f"{name}-large", bytes(3 << 20), UpsertOptions(transcoder=raw, durability=durable))
        if level in PERSISTED or how == "stop":
            expected[name] = True
    world.restart(how)
    collection = world.collection
    for name in expected:
        assert collection.get(f"{name}-replaced").content_as[int] == 2
        assert collection.get(f"{name}-upserted").content_as[dict] == {"level": name}
        with pytest.raises(DocumentNotFoundException):
            collection.get(f"{name}-removed")
        assert collection.get(f"{name}-counter").content_as[int] == 2
        assert collection.get(f"{name}-text", GetOptions(transcoder=raw)).content_as[bytes] == b"abc"
        assert collection.get(f"{name}-large", GetOptions(transcoder=raw)).content_as[bytes] == bytes(3 << 20)


def test_the_ephemeral_bucket_beside_it_refuses_what_it_cannot_do(world):
    collection = world.cluster.bucket("ephemeral").default_collection()
    for level in PERSISTED:
        with pytest.raises(DurabilityInvalidLevelException):
            collection.upsert("k", 1, UpsertOptions(durability=ServerDurability(level)))
    collection.upsert("k", 1, UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY)))
    world.collection.upsert("k", 2, UpsertOptions(durability=ServerDurability(DurabilityLevel.PERSIST_TO_MAJORITY)))
    world.restart()
    assert world.collection.get("k").content_as[int] == 2
    with pytest.raises(DocumentNotFoundException):
        world.cluster.bucket("ephemeral").default_collection().get("k")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_an_absent_replica_makes_it_ambiguous_and_the_abort_is_final(world, level):
    key = "ambiguous"
    world.collection.upsert(key, "old", UpsertOptions(durability=ServerDurability(DurabilityLevel.PERSIST_TO_MAJORITY)))
    with world.peer() as peer:
        vbucket = peer.vbucket(key.encode())
        peer.set_chain(vbucket, ABSENT_REPLICA)
        started = time.monotonic()
        with pytest.raises(DurabilitySyncWriteAmbiguousException):
            world.collection.upsert(key, "new", UpsertOptions(durability=ServerDurability(level), timeout=SHORT))
        assert 1.5 <= time.monotonic() - started < 2.5
        assert world.collection.get(key).content_as[str] == "old"
        peer.set_chain(vbucket, ALONE)
        # After the abort, and persisted.
        peer.store_persistent(vbucket)
    world.restart()
    assert world.collection.get(key).content_as[str] == "old"
    world.collection.upsert(key, "free", UpsertOptions(durability=ServerDurability(level)))


def test_a_write_in_progress_outlives_a_restart(world):
    """The node dies while the first write is pending; the write is not lost, and conflicts with the second."""
    key, outcome = "in progress", []
    world.collection.upsert(key, "old", UpsertOptions(durability=ServerDurability(DurabilityLevel.PERSIST_TO_MAJORITY)))

    def first():
        try:
            world.collection.upsert(key, "new", UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY), timeout=timedelta(seconds=4)))
            outcome.append("done")
        except CouchbaseException as error:
            outcome.append(type(error).__name__)

    with world.peer() as peer:
        vbucket = peer.vbucket(key.encode())
        peer.set_chain(vbucket, ABSENT_REPLICA)
        writer = threading.Thread(target=first)
        writer.start()
        # Until the flusher has written the prepare.
        deadline = time.monotonic() + 5
        while True:
            time.sleep(0.2)
            if peer.statistics(b"persistence")["unflushed_items"] == "0":
                break
            assert time.monotonic() < deadline
    world.restart()
    with world.peer() as peer:
        peer.stay_active()
    with pytest.raises(CouchbaseException) as second:
        world.collection.upsert(key, "second", UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY), timeout=SHORT))
    assert "rogress" in repr(second.value), repr(second.value)
    # It may have been committed before: neither value is shown.
    with pytest.raises(CouchbaseException) as read:
        world.collection.get(key)
    assert "rogress" in repr(read.value), repr(read.value)
    writer.join()
    assert outcome and outcome[0] != "done", outcome
    with world.peer() as peer:
        peer.set_chain(vbucket, ALONE)
        peer.store_persistent(vbucket)
    assert world.collection.get(key).content_as[str] == "new"


def test_writers_go_on_through_restarts(world):
    """Writers count up with a persist level: acknowledged values survive every restart, and the SDK reconnects by
    itself after a stop."""
    stop, acknowledged, unexpected = threading.Event(), {}, []

    def write(writer):
        number = 0
        while not stop.is_set():
            number += 1
            try:
                options = UpsertOptions(durability=ServerDurability(LEVELS[1 + number % 2]), timeout=timedelta(seconds=4))
                world.collection.upsert(f"writer-{writer}", number, options)
                acknowledged[writer] = number
            except CouchbaseException as error:
                # Interrupted by the kill, or the node was down: ambiguous, never "done".
                if "imeout" not in repr(error) and "mbiguous" not in repr(error) and "ancel" not in repr(error) and "temporary" not in repr(error).lower():
                    unexpected.append(repr(error)[:500])
    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for one in writers:
        one.start()
    try:
        for how in ("kill", "stop", "kill"):
            time.sleep(1)
            before = dict(acknowledged)
            world.restart(how)
            for writer, number in before.items():
                assert world.collection.get(f"writer-{writer}").content_as[int] >= number, (how, writer)
    finally:
        time.sleep(1)
        stop.set()
        for one in writers:
            one.join()
    assert not unexpected, unexpected[:3]
    for writer, number in acknowledged.items():
        assert number > 3
        assert world.collection.get(f"writer-{writer}").content_as[int] >= number
