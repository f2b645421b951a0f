"""Full disks and damaged files: what is refused, what is served, and what an operator sees."""

import contextlib
import json

import pytest
from pymemcache.exceptions import MemcacheServerError

from tests.frames import GET, INTERNAL_ERROR, SET, TEMPORARY_FAILURE
from tests.persistence.bucket import (
    binary, document, http, memcached, start, statistics, vbucket_of, wait_all_persisted, wait_until, wait_warm,
)
from tests.persistence.small_disk import SmallDisk
from tests.persistence.test_buckets import journal


@pytest.fixture
def small_disk(tmp_path):
    with SmallDisk(tmp_path / "disk") as disk:
        yield disk.path


def health(node):
    """The status codes of /health, /health/ready and /health/live, and the reasons."""
    answers = [http(node, "GET", path) for path in ("/health", "/health/ready", "/health/live")]
    return *(code for code, _ in answers), json.loads(answers[1][1]).get("reasons", [])


def fill(client, value, count):
    """Writes until the server refuses; returns the numbers of the accepted documents."""
    taken = []
    for number in range(count):
        try:
            client.set(f"key:{number}", value)
            taken.append(number)
        except MemcacheServerError:
            break
        if number % 20 == 0 and taken:
            with contextlib.suppress(MemcacheServerError):
                client.get("key:0")
    return taken


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_by_itself(small_disk):
    value = b"v" * 50_000
    with start(small_disk) as node:
        client = memcached(node)
        ballast = node.data / "ballast"
        ballast.write_bytes(b"b" * (10 << 20))
        taken = []

        def is_refused():
            taken.extend(fill(client, value, 200))
            return statistics(node, "persistence")["disk_full"] == 1

        wait_until(is_refused, "a full disk")
        with pytest.raises(MemcacheServerError):
            client.set("one-more", b"x")
        with binary(node) as connection:
            answer = connection.store(b"two-more", b"x", opcode=SET, vbucket=vbucket_of(b"two-more"))
            assert answer.status == TEMPORARY_FAILURE, answer
        assert client.get("key:0") == value
        assert "no space" in node.log()
        assert health(node) == (200, 503, 200, ["disk_full"])
        ballast.unlink()
        wait_until(lambda: statistics(node, "persistence")["disk_full"] == 0, "room again")
        assert health(node) == (200, 200, 200, [])
        client.delete_many([f"key:{number}" for number in set(taken)])
        client.set("after", b"room")
        wait_all_persisted(node)
        node.kill()
    with start(small_disk) as node:
        wait_warm(node)
        client = memcached(node)
        assert client.get("after") == b"room"
        assert client.get("key:0") is None


KEYS = [b"key:%d" % number for number in range(500)]
SPOILT = vbucket_of(b"key:250")


@pytest.fixture
def damaged(tmp_path):
    """The home of a stopped node with one byte of one value changed, and the changed file."""
    with start(tmp_path) as node:
        client = memcached(node)
        for key in KEYS:
            client.set(key, b"value of %s." % key)
        wait_all_persisted(node)
        assert node.stop() == 0
    (segment,) = (tmp_path / "node" / "buckets").rglob("*.segment")
    data = bytearray(segment.read_bytes())
    data[data.index(b"value of key:250.")] ^= 0x40
    segment.write_bytes(data)
    return tmp_path, segment


def test_damage_is_named_with_file_and_offset(damaged):
    home, segment = damaged
    words = (str(segment), "offset", f"vBucket {SPOILT} ")
    code, said = journal("verify", home / "node" / "buckets" / "default")
    assert code == 1 and all(word in said for word in words), said
    code, said = journal("compact", home / "node" / "buckets" / "default")
    assert code == 1 and "1 vBuckets are damaged" in said, said
    with start(home) as node:
        wait_warm(node)
        assert all(word in node.log() for word in words), node.log()
        assert statistics(node, "warmup")["warmup_vbuckets_damaged"] == 1
        assert 'damaged_vbuckets{bucket="default"} 1' in http(node, "GET", "/metrics")[1]
        assert document(node, "/health")["buckets"]["default"]["vBucketsDamaged"] == 1
        assert health(node) == (200, 503, 200, ["damaged"])


def test_damage_spoils_one_vbucket_and_no_other(damaged):
    home, _ = damaged
    with start(home) as node:
        wait_warm(node)
        with binary(node) as connection:
            for key in KEYS:
                answer = connection.ask(GET, key, vbucket=vbucket_of(key))
                if vbucket_of(key) == SPOILT:
                    assert answer.status == INTERNAL_ERROR, answer
                else:
                    assert answer.value == b"value of %s." % key
            stored = connection.store(b"key:250", b"new", vbucket=SPOILT)
            # A retry would not help.
            assert stored.status == INTERNAL_ERROR, stored
