"""A persistent bucket across kills, clean stops, deletions and flushes."""

import contextlib
import pathlib
import random
import socket
import struct
from datetime import timedelta

import pytest
from couchbase.exceptions import DocumentNotFoundException
from couchbase.options import UpsertOptions
from pymemcache.exceptions import MemcacheServerError

from tests.clients.cluster import connect
from tests.frames import (
    DELETE, FEATURE_MUTATION_SEQNO, FEATURE_SELECT_BUCKET, FEATURE_XERROR, GET, GET_FAILOVER_LOG, SEQNO_PERSISTENCE, SET, SUCCESS, BinaryConnection,
)
from tests.persistence.bucket import (
    http, memcached, observe, start, statistics, vbucket_of, wait_all_persisted, wait_persisted, wait_until, wait_warm,
)

LARGE = b"large " * 300_000


def open_with_tokens(node):
    connection = BinaryConnection(node.kv)
    connection.open_bucket(features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_MUTATION_SEQNO))
    return connection


def change(connection, opcode, key, value=b""):
    """Changes a document; returns its mutation token."""
    extras = struct.pack(">II", 0, 0) if opcode == SET else b""
    vbucket = vbucket_of(key)
    answer = connection.ask(opcode, key, value, extras, vbucket=vbucket)
    assert answer.status == SUCCESS, answer
    return (vbucket, *struct.unpack(">QQ", answer.extras))


def failover_log(connection, vbucket):
    """(history, first seqno) of a vBucket, newest first."""
    answer = connection.ask(GET_FAILOVER_LOG, vbucket=vbucket)
    assert answer.status == SUCCESS, answer
    return list(struct.iter_unpack(">QQ", answer.value))


def test_what_was_persisted_is_there_after_a_kill(tmp_path):
    with start(tmp_path) as node:
        client = memcached(node)
        for number in range(1000):
            client.set(f"text:{number}", b"%d" % number)
        client.set("flags", b"with flags", flags=7)
        client.set("mortal", b"soon gone", expire=1)
        client.set("patient", b"for long", expire=10_000)
        cas = client.gets("flags")[1]
        cluster = connect(node)
        cluster.wait_until_ready(timedelta(seconds=20))
        documents = cluster.bucket("default").default_collection()
        documents.upsert("json", {"from": "the SDK"}, UpsertOptions(expiry=timedelta(hours=1)))
        with open_with_tokens(node) as connection:
            tokens = [change(connection, SET, b"binary:%d" % number, b"b%d" % number) for number in range(100)]
            tokens.append(change(connection, SET, b"large", LARGE))
            for token in tokens:
                wait_persisted(connection, token)
        # The tokens do not cover what was written over other connections.
        wait_all_persisted(node)
        cluster.close()
        node.kill()
    with start(tmp_path) as node:
        wait_warm(node)
        client = memcached(node)
        for number in range(1000):
            assert client.get(f"text:{number}") == b"%d" % number
        for number in range(100):
            assert client.get(f"binary:{number}") == b"b%d" % number
        assert client.get("large") == LARGE
        assert client.gets("flags") == (b"with flags", cas)
        assert client.raw_command("mg flags f").strip() == b"HD f7"
        remaining = int(client.raw_command("mg patient t").split(b"t")[-1])
        assert 9_900 < remaining <= 10_000
        cluster = connect(node)
        cluster.wait_until_ready(timedelta(seconds=20))
        documents = cluster.bucket("default").default_collection()
        assert documents.get("json").content_as[dict] == {"from": "the SDK"}
        with pytest.raises(DocumentNotFoundException):
            documents.get("never there")
        cluster.close()
        # A CAS from before the restart has not been assigned again.
        assert client.cas("flags", b"changed", cas) is True
        assert client.gets("flags")[1] > cas


def test_an_old_history_is_known_and_goes_on_with_another_id(tmp_path):
    with start(tmp_path) as node, open_with_tokens(node) as connection:
        token = change(connection, SET, b"key", b"value")
        assert failover_log(connection, token[0]) == [(token[1], 0)]
        wait_persisted(connection, token)
        node.kill()
    with start(tmp_path) as node, open_with_tokens(node) as connection:
        wait_warm(node)
        vbucket, history, seqno = token
        assert observe(connection, vbucket, history)[0] >= seqno
        later = change(connection, SET, b"key", b"other")
        assert later[0] == vbucket and later[1] != history and later[2] > seqno
        assert failover_log(connection, vbucket) == [(later[1], seqno), (history, 0)]


def test_a_clean_stop_writes_everything(tmp_path):
    # The interval never elapses: only the stop can have written it.
    config = '[[bucket]]\nname = "default"\nkind = "persistent"\nmemory = "128MiB"\nflush_interval_ms = 60000\n'
    with start(tmp_path, buckets=(), config=config) as node:
        client = memcached(node)
        client.set("first", b"value")
        wait_all_persisted(node)
        for number in range(500):
            client.set(f"key:{number}", b"%d" % number)
        assert statistics(node, "persistence")["unflushed_items"] >= 500
        assert node.stop() == 0
    with start(tmp_path, buckets=(), config=config) as node:
        wait_warm(node)
        client = memcached(node)
        assert all(client.get(f"key:{number}") == b"%d" % number for number in range(500))
        assert node.stop() == 0


def test_during_the_warm_up_nothing_is_missing(tmp_path):
    count, value = 400_000, b"v" * 64
    with start(tmp_path) as node:
        with socket.create_connection(node.memcached) as connection:
            for base in range(0, count, 1000):
                connection.sendall(b"".join(b"set key:%d 0 0 64 noreply\r\n%s\r\n" % (number, value) for number in range(base, base + 1000)))
            connection.sendall(b"mn\r\n")
            assert connection.recv(10) == b"MN\r\n"
        wait_all_persisted(node)
        node.kill()
    with start(tmp_path) as node:
        client, dice = memcached(node), random.Random(4)
        served, refused, warming = 0, 0, 0
        while (health := http(node, "GET", "/health"))[0] != 200 or served < 100:
            warming += health[0] == 503
            for _ in range(20):
                try:
                    assert client.get(f"key:{dice.randrange(count)}") == value
                    served += 1
                except MemcacheServerError as error:
                    assert "warming up" in str(error)
                    refused += 1
            # What is written meanwhile remains the newest version.
            with contextlib.suppress(MemcacheServerError):
                client.set("key:7", b"newer")
                client.set("key:7", value)
        assert warming and refused, "it was over before anybody looked"
        wait_until(lambda: "warmed up" in node.log(), "a line about it")


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_deletions_and_flushes_stay(tmp_path, ends):
    with start(tmp_path) as node:
        client = memcached(node)
        for number in range(200):
            client.set(f"flushed:{number}", b"x")
        wait_all_persisted(node)
        client.flush_all()
        for number in range(200):
            client.set(f"key:{number}", b"%d" % number)
        wait_all_persisted(node)
        with open_with_tokens(node) as connection:
            tokens = [change(connection, DELETE, b"key:%d" % number) for number in range(0, 200, 2)]
            for token in tokens:
                wait_persisted(connection, token)
        wait_all_persisted(node)
        getattr(node, ends)()
    with start(tmp_path) as node:
        wait_warm(node)
        client = memcached(node)
        for number in range(200):
            assert client.get(f"flushed:{number}") is None
            assert client.get(f"key:{number}") == (None if number % 2 == 0 else b"%d" % number)


def threads(node):
    return {path.read_text().strip() for path in pathlib.Path(f"/proc/{node.pid}/task").glob("*/comm")}


def test_a_bucket_has_no_thread_and_no_segment_before_its_first_write(tmp_path):
    with start(tmp_path) as node:
        idle = threads(node)
        assert "dm:worker0" in idle
        assert not [name for name in idle if name.startswith(("dm:flusher", "dm:fetch", "dm:warmup"))]
        assert not list((tmp_path / "node" / "buckets").rglob("*.segment"))
        memcached(node).set("key", b"value")
        wait_all_persisted(node)
        assert threads(node) - idle == {"dm:flusher0"}


def test_sync_off_is_said_loudly(tmp_path):
    config = '[[bucket]]\nname = "default"\nkind = "persistent"\nmemory = "128MiB"\nsync = false\n'
    with start(tmp_path, buckets=(), config=config) as node:
        assert statistics(node, "persistence")["sync"] == b"OFF"
        # The banner is printed after the node has started serving.
        wait_until(lambda: "WARNING    bucket default: sync = false" in node.log(), "the banner")
        assert "WARN " in node.log() and "NOT safe from a crash of the machine" in node.log()


def test_health_and_statistics_tell_of_the_journal(tmp_path):
    with start(tmp_path) as node:
        memcached(node).set("key", b"value")
        wait_all_persisted(node)
        assert http(node, "GET", "/health") == (200, '{"status":"ok"}')
        metrics = http(node, "GET", "/metrics")[1]
        for line in ('persisted_items_total{bucket="default"} 1', 'unflushed_items{bucket="default"} 0', 'damaged_vbuckets{bucket="default"} 0'):
            assert f"dormouse_bucket_{line}" in metrics, metrics
        figures = statistics(node, "persistence")
        assert figures["ep_queue_size"] == 0 and figures["ep_total_persisted"] == 1


def test_what_seqno_persistence_acknowledged_survives_a_kill(tmp_path):
    keys = [b"key-%d" % n for n in range(200)]
    with start(tmp_path) as node, open_with_tokens(node) as connection:
        for key in keys:
            stored = connection.store(key, b"value of " + key, vbucket=vbucket_of(key))
            assert connection.ask(SEQNO_PERSISTENCE, extras=stored.extras[8:], vbucket=vbucket_of(key)).status == SUCCESS
        node.kill()
    with start(tmp_path) as node, open_with_tokens(node) as connection:
        wait_warm(node)
        for key in keys:
            assert connection.ask(GET, key, vbucket=vbucket_of(key)).value == b"value of " + key
