"""Durable writes of the official Python SDK that cannot complete at once: an absent replica, and its return."""

import json
import threading
import time
import zlib
from datetime import timedelta

import pytest
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    DocumentNotFoundException,
    DurabilityImpossibleException,
    DurabilitySyncWriteAmbiguousException,
    TimeoutException,
    UnAmbiguousTimeoutException,
)
from couchbase.options import InsertOptions, RemoveOptions, UpsertOptions

from tests.frames import SET_VBUCKET, SUCCESS, BinaryConnection

MAJORITY = ServerDurability(DurabilityLevel.MAJORITY)
# The SDK passes nine tenths of it to the server, so that the server's answer arrives first.
SHORT = timedelta(seconds=2)


class Chains:
    def __init__(self, connection):
        self.connection = connection

    def set(self, key, chains):
        vbucket = ((zlib.crc32(key.encode()) >> 16) & 0x7FFF) % 1024
        value = json.dumps({"topology": chains}).encode()
        assert self.connection.ask(SET_VBUCKET, extras=b"\x01", value=value, vbucket=vbucket).status == SUCCESS

    def break_off(self, key):
        self.set(key, [["us", "absent"]])

    def restore(self, key):
        self.set(key, None)


@pytest.fixture
def chains(node):
    with BinaryConnection(node.kv) as connection:
        connection.open_bucket()
        yield Chains(connection)


@pytest.fixture
def key(request):
    return f"durable::{request.node.name}"


def test_an_absent_replica_makes_it_ambiguous(collection, chains, key):
    collection.upsert(key, "old")
    chains.break_off(key)
    started = time.monotonic()
    with pytest.raises(DurabilitySyncWriteAmbiguousException):
        collection.upsert(key, "new", UpsertOptions(durability=MAJORITY, timeout=SHORT))
    assert 1.5 <= time.monotonic() - started < 2
    assert collection.get(key).content_as[str] == "old"
    collection.upsert(key, "free")
    chains.restore(key)


def test_the_chain_comes_back_in_time(collection, chains, key):
    collection.upsert(key, "old")
    chains.break_off(key)
    seen = []

    def look():
        time.sleep(0.3)
        seen.append(collection.get(key).content_as[str])
        seen.append(collection.upsert(key + "another", 1, UpsertOptions(durability=MAJORITY)).cas != 0)
        chains.restore(key)

    watcher = threading.Thread(target=look)
    watcher.start()
    collection.upsert(key, "new", UpsertOptions(durability=MAJORITY))
    watcher.join()
    assert seen == ["old", True]
    assert collection.get(key).content_as[str] == "new"


def test_a_second_write_waits_for_the_first(collection, chains, key):
    chains.break_off(key)
    outcome = []

    def first():
        collection.insert(key, "first", InsertOptions(durability=MAJORITY, timeout=timedelta(seconds=8)))
        outcome.append("first")

    writer = threading.Thread(target=first)
    writer.start()
    time.sleep(0.3)
    # The SDK keeps retrying while the first is in progress.
    with pytest.raises((UnAmbiguousTimeoutException, AmbiguousTimeoutException, TimeoutException)):
        collection.upsert(key, "second", UpsertOptions(timeout=timedelta(milliseconds=700)))
    with pytest.raises(DocumentNotFoundException):
        collection.get(key)
    chains.restore(key)
    writer.join()
    assert outcome == ["first"]
    collection.upsert(key, "second")
    assert collection.get(key).content_as[str] == "second"


def test_a_durable_remove_is_pending_too(collection, chains, key):
    collection.upsert(key, 1)
    chains.break_off(key)
    with pytest.raises(DurabilitySyncWriteAmbiguousException):
        collection.remove(key, RemoveOptions(durability=MAJORITY, timeout=SHORT))
    assert collection.get(key).content_as[int] == 1
    chains.restore(key)
    collection.remove(key, RemoveOptions(durability=MAJORITY))
    with pytest.raises(DocumentNotFoundException):
        collection.get(key)


def test_too_few_nodes_are_impossible(collection, chains, key):
    chains.set(key, [["us", None]])
    with pytest.raises(DurabilityImpossibleException):
        collection.upsert(key, 1, UpsertOptions(durability=MAJORITY, timeout=SHORT))
    collection.upsert(key, 1)
    chains.restore(key)
