"""Compressed values over sockets: how each client sees them, and which are refused."""

import struct
import zlib

import pytest

from tests import snappy
from tests.clients.text_connection import TextConnection
from tests.frames import (
    APPEND, FEATURE_JSON, FEATURE_SELECT_BUCKET, FEATURE_SNAPPY, FEATURE_XERROR, GAT, GET, GET_LOCKED, GET_META, INVALID, PREPEND, SUCCESS, TOO_BIG, TOUCH, UNLOCK,
    BinaryConnection,
)

MEBIBYTE = 1024 * 1024
JSON, COMPRESSED = 1, 2
USUAL = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON)
VALUES = {
    "short": b'{"a":"' + b"a" * 200 + b'"}',
    "of 40 kB": b'{"a":"' + bytes(range(97, 122)) + b"b" * 40_000 + b'"}',
    "of a megabyte": b"".join(b"%d-" % n + b"." * 40 for n in range(25_000)),
    "of 20 MiB": b"z" * (20 * MEBIBYTE),
}


@pytest.fixture
def with_snappy(node):
    with BinaryConnection(node.kv) as one:
        assert FEATURE_SNAPPY in one.open_bucket(features=(*USUAL, FEATURE_SNAPPY))
        yield one


@pytest.fixture
def without(node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket(features=USUAL)
        yield one


@pytest.fixture
def text(node):
    one = TextConnection(node.memcached)
    yield one
    one.close()


def vbucket(key):
    return zlib.crc32(key) >> 16 & 0x3FF


def resident_bytes(node):
    with open(f"/proc/{node.pid}/statm") as figures:
        return int(figures.read().split()[1]) * 4096


def test_the_encoder_and_the_decoder_of_the_tests_agree():
    for value in VALUES.values():
        assert snappy.inflate(snappy.compress(value)) == value


@pytest.mark.parametrize("name", VALUES)
def test_everybody_sees_it_in_his_way(with_snappy, without, text, name):
    value, key = VALUES[name], b"doc"
    block, at = snappy.compress(value), {"vbucket": vbucket(b"doc")}
    assert with_snappy.store(key, block, datatype=JSON | COMPRESSED, **at).status == SUCCESS
    seen = with_snappy.ask(GET, key, **at)
    assert (seen.status, seen.datatype) == (SUCCESS, JSON | COMPRESSED) and seen.value == block
    seen = without.ask(GET, key, **at)
    assert (seen.status, seen.datatype) == (SUCCESS, JSON) and seen.value == value
    assert text.get(key)[0] == value
    meta = without.ask(GET_META, key, extras=b"\x02", **at)
    assert meta.extras[20] == JSON | COMPRESSED


def test_operations(with_snappy, without):
    key, at = b"ops", {"vbucket": vbucket(b"ops")}
    value = b"0123456789" * 20 + b"x" * 100
    expiry = struct.pack(">I", 1000)
    stored = with_snappy.store(key, snappy.compress(value), datatype=COMPRESSED, **at)
    assert without.ask(TOUCH, key, extras=expiry, **at).status == SUCCESS
    got = with_snappy.ask(GAT, key, extras=expiry, **at)
    assert got.datatype == COMPRESSED and snappy.inflate(got.value) == value and got.cas > stored.cas
    locked = without.ask(GET_LOCKED, key, **at)
    assert locked.value == value
    assert without.ask(UNLOCK, key, cas=locked.cas, **at).status == SUCCESS
    assert with_snappy.ask(APPEND, key, snappy.compress(b"end"), datatype=COMPRESSED, **at).status == SUCCESS
    assert without.ask(PREPEND, key, b"begin", **at).status == SUCCESS
    assert with_snappy.ask(GET, key, **at).value == b"begin" + value + b"end"


def test_what_is_no_snappy_is_refused_and_the_connection_lives(with_snappy, without):
    key, at = b"bad", {"vbucket": vbucket(b"bad")}
    good = snappy.compress(b"y" * 1000)
    for bad in (b"", b"plain text", good[:-1], good + b"\x00", b"\xff" * 40, b"\xe8\x07" + b"\x02\x01\x00" * 16, b"n" * 100_000):
        for opcode_name in ("store", "append"):
            if opcode_name == "store":
                answer = with_snappy.store(key, bad, datatype=COMPRESSED, **at)
            else:
                answer = with_snappy.ask(APPEND, key, bad, datatype=COMPRESSED, **at)
            assert answer.status == INVALID, (bad[:40], opcode_name, answer)
            assert with_snappy.lives()
    assert without.store(key, good, datatype=COMPRESSED, **at).status == INVALID
    assert without.lives()


def test_bombs_are_refused_by_what_they_say(node, with_snappy):
    key, at = b"bomb", {"vbucket": vbucket(b"bomb")}
    before = resident_bytes(node)
    for bomb in (b"\xff\xff\xff\xff\x0f\x00a", snappy.compress(b"q" * (20 * MEBIBYTE + 1))):
        for _ in range(50):
            assert with_snappy.store(key, bomb, datatype=COMPRESSED, **at).status == TOO_BIG
    assert with_snappy.lives()
    assert resident_bytes(node) - before < 16 * MEBIBYTE
