"""Range scans, samples, and what lists keys, over sockets."""

import base64
import json
import random
import struct
import zlib

import pytest

from tests import servers
from tests.frames import (
    BARRIER, DELETE, EXISTS, FEATURE_ALT_REQUEST, FEATURE_JSON, FEATURE_SELECT_BUCKET, FEATURE_SNAPPY, FEATURE_XERROR, GET, INVALID, NOT_FOUND, NOT_MY_VBUCKET, NOT_SUPPORTED, SET, SUCCESS,
    TEMPORARY_FAILURE, UNKNOWN_COLLECTION, UNKNOWN_COMMAND, BinaryConnection, durability, request,
)
from tests import snappy
from tests import subdocument as sd

CREATE, CONTINUE, CANCEL, GET_KEYS, GET_RANDOM_KEY, GET_EX = 0xDA, 0xDB, 0xDC, 0xB8, 0xB6, 0x49
MORE, COMPLETE, UUID_NOT_EQUAL = 0xA6, 0xA7, 0xA8
FEATURES = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON, FEATURE_ALT_REQUEST)
VB = 17


def b64(text):
    return base64.b64encode(text).decode()


def keys_of(vb, count):
    """The first `count` keys of a vBucket."""
    found, number = [], 0
    while len(found) < count:
        key = b"scan::%d" % number
        if zlib.crc32(key) >> 16 & 0x3FF == vb:
            found.append(key)
        number += 1
    return found


KEYS = keys_of(VB, 300)


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(buckets=("default,ephemeral,256MiB", "p,persistent,256MiB")) as server:
        yield server
        assert server.alive(), f"the node died\n{server.log()}"


@pytest.fixture(params=["default", "p"])
def client(request, node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket(request.param, FEATURES)
        for number, key in enumerate(KEYS):
            value = b'{"n":%d}' % number + b" " * (number % 7 * 100)
            assert one.store(key, value, flags=number, vbucket=VB).status == SUCCESS
        yield one


def leb(data, at):
    length, shift = 0, 0
    while True:
        byte = data[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return data[at : at + length], at + length


def documents(data):
    at, found = 0, []
    while at < len(data):
        flags, expiry, seqno, cas, datatype = struct.unpack_from(">IIQQB", data, at)
        key, at = leb(data, at + 25)
        value, at = leb(data, at)
        found.append((key, value, flags, expiry, seqno, cas, datatype))
    return found


def create(client, vb=VB, **body):
    return client.ask(CREATE, b"", json.dumps(body).encode(), vbucket=vb, datatype=1)


def scan(client, items=0, size=0, milliseconds=0, **body):
    """Creates a scan and continues it to its end; returns the answers' values."""
    done = create(client, **body)
    assert done.status == SUCCESS and len(done.value) == 16, done
    values = []
    while True:
        page = client.ask(CONTINUE, b"", b"", done.value + struct.pack(">III", items, milliseconds, size), vbucket=VB)
        assert page.status in (MORE, COMPLETE) and len(page.extras) == 4, page
        assert page.extras == struct.pack(">I", 0 if body.get("key_only") else 1)
        values.append(page.value)
        if page.status == COMPLETE:
            assert client.ask(CONTINUE, b"", b"", done.value + bytes(12), vbucket=VB).status == NOT_FOUND
            return values


def keys(values):
    found = []
    for value in values:
        at = 0
        while at < len(value):
            key, at = leb(value, at)
            found.append(key)
    return found


def test_a_range_comes_in_order_with_everything_about_each_document(client):
    ordered = sorted(KEYS)
    found = [row for value in scan(client, range={"start": b64(b"scan::"), "end": b64(b"scan::\xff")}) for row in documents(value)]
    assert [row[0] for row in found] == ordered
    for key, value, flags, expiry, seqno, cas, datatype in found:
        stored = client.ask(GET, key, vbucket=VB)
        assert (stored.value, stored.cas, struct.unpack(">I", stored.extras)[0], datatype, expiry) == (value, cas, flags, 1, 0) and seqno > 0
    low, high = ordered[10], ordered[20]
    for body, expected in [
        ({"start": b64(low), "end": b64(high)}, ordered[10:21]),
        ({"excl_start": b64(low), "excl_end": b64(high)}, ordered[11:20]),
        ({"start": b64(low), "excl_end": b64(high)}, ordered[10:20]),
    ]:
        assert keys(scan(client, range=body, key_only=True)) == expected


def test_pages_have_at_most_what_was_asked_for(client):
    everything = {"start": b64(b""), "end": b64(b"\xff")}
    pages = scan(client, items=7, range=everything, key_only=True)
    assert all(len(keys([page])) <= 7 for page in pages) and keys(pages) == sorted(KEYS)
    pages = scan(client, size=1000, range=everything)
    assert len(pages) > 20 and all(len(page) < 2000 for page in pages)
    assert [row[0] for page in pages for row in documents(page)] == sorted(KEYS)
    assert keys(scan(client, milliseconds=5000, range=everything, key_only=True)) == sorted(KEYS)


def test_a_sample_is_random_and_repeatable(client):
    one = keys(scan(client, sampling={"samples": 50, "seed": 5}, key_only=True))
    assert len(one) == len(set(one)) == 50 and set(one) <= set(KEYS)
    assert keys(scan(client, sampling={"samples": 50, "seed": 5}, key_only=True)) == one
    assert set(keys(scan(client, sampling={"samples": 50, "seed": 6}, key_only=True))) != set(one)
    assert len(keys(scan(client, sampling={"samples": 5000}, key_only=True))) == len(KEYS)


def test_changes_while_a_scan_runs(client):
    done = create(client, range={"start": b64(b""), "end": b64(b"\xff")})
    ordered = sorted(KEYS)
    assert client.ask(DELETE, ordered[5], vbucket=VB).status == SUCCESS
    client.store(ordered[6], b"newer", vbucket=VB)
    client.store(keys_of(VB, 301)[-1], b"too late", vbucket=VB)
    page = client.ask(CONTINUE, b"", b"", done.value + bytes(12), vbucket=VB)
    rows = {row[0]: row[1] for row in documents(page.value)}
    assert page.status == COMPLETE and ordered[5] not in rows and rows[ordered[6]] == b"newer" and len(rows) == 299
    client.ask(DELETE, keys_of(VB, 301)[-1], vbucket=VB)


def test_refused_scans(client):
    everything = {"start": b64(b""), "end": b64(b"\xff")}
    for body, status in [
        ({}, INVALID),
        ({"range": {"start": "YQ=="}}, INVALID),
        ({"range": {"start": "!", "end": "YQ=="}}, INVALID),
        ({"range": everything, "sampling": {"samples": 1}}, INVALID),
        ({"sampling": {"samples": 0}}, INVALID),
        ({"range": everything, "key_only": 1}, INVALID),
        ({"range": everything, "collection": "zz"}, INVALID),
        ({"range": everything, "collection": "99"}, UNKNOWN_COLLECTION),
        ({"range": {"start": b64(b"zzz"), "end": b64(b"zzzz")}}, NOT_FOUND),
        ({"range": everything, "snapshot_requirements": {"vb_uuid": "12345", "seqno": 1}}, UUID_NOT_EQUAL),
        ({"range": everything, "snapshot_requirements": {"seqno": 1}}, INVALID),
    ]:
        assert create(client, **body).status == status, body
    assert client.ask(CREATE, b"", b"not json", vbucket=VB).status == INVALID
    assert create(client, vb=5000, range=everything).status == NOT_MY_VBUCKET
    assert client.ask(CONTINUE, b"", b"", bytes(28), vbucket=VB).status == NOT_FOUND
    assert client.ask(CONTINUE, b"", b"", bytes(27), vbucket=VB).status == INVALID
    assert client.ask(CANCEL, b"", b"", bytes(16), vbucket=VB).status == NOT_FOUND
    done = create(client, range=everything)
    assert client.ask(CONTINUE, b"", b"", done.value + bytes(12), vbucket=VB + 1).status == INVALID
    assert client.ask(CANCEL, b"", b"", done.value, vbucket=VB).status == SUCCESS
    assert client.ask(CONTINUE, b"", b"", done.value + bytes(12), vbucket=VB).status == NOT_FOUND
    stored = client.ask(GET, KEYS[0], vbucket=VB)
    assert stored.status == SUCCESS


def test_snapshot_requirements_are_those_of_mutation_tokens(node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket("default", (*FEATURES, 0x04))
        uuid, seqno = struct.unpack(">QQ", one.store(KEYS[0], b"1", vbucket=VB).extras)
        everything = {"start": b64(b""), "end": b64(b"\xff")}
        assert create(one, range=everything, snapshot_requirements={"vb_uuid": str(uuid), "seqno": seqno, "timeout_ms": 100}).status == SUCCESS
        assert create(one, range=everything, snapshot_requirements={"vb_uuid": str(uuid), "seqno": seqno + 1000}).status == TEMPORARY_FAILURE


def test_there_may_only_be_so_many_scans(client):
    everything = {"start": b64(b""), "end": b64(b"\xff")}
    statuses = [create(client, range=everything).status for _ in range(4200)]
    assert statuses[0] == SUCCESS and 0x85 in statuses
    assert client.lives()


def test_keys_and_random_documents(client):
    ordered = sorted(KEYS)
    done = client.ask(GET_KEYS, ordered[100], b"", struct.pack(">I", 5), vbucket=VB)
    found, at = [], 0
    while at < len(done.value):
        (length,) = struct.unpack_from(">H", done.value, at)
        found.append(done.value[at + 2 : at + 2 + length])
        at += 2 + length
    assert found == ordered[100:105]
    assert client.ask(GET_KEYS, b"zzzz", vbucket=VB).status == NOT_FOUND
    seen = {client.ask(GET_RANDOM_KEY).key for _ in range(40)}
    assert len(seen) > 5 and seen <= set(KEYS)
    assert client.ask(GET_RANDOM_KEY, b"", b"", struct.pack(">I", 77)).status == UNKNOWN_COLLECTION


def test_compressed_values_are_sent_as_the_client_takes_them(node, client):
    text = b'{"a":"' + b"a" * 2000 + b'"}'
    with BinaryConnection(node.kv) as other:
        other.open_bucket("default", (*FEATURES, FEATURE_SNAPPY))
        other.store(KEYS[3], snappy.compress(text), vbucket=VB, datatype=3)
        only = {"start": b64(KEYS[3]), "end": b64(KEYS[3])}
        ((_, value, *_, datatype),) = documents(scan(other, range=only)[0])
        assert datatype == 3 and snappy.inflate(value) == text
    with BinaryConnection(node.kv) as plain:
        plain.open_bucket("default", FEATURES)
        ((_, value, *_, datatype),) = documents(scan(plain, range=only)[0])
        assert (value, datatype) == (text, 1)


def test_a_document_with_its_attributes(client):
    key = KEYS[9]
    client.send(sd.mutations(key, (sd.DICT_UPSERT, b"x", b"1", sd.XATTR), vbucket=VB))
    assert client.response().status == SUCCESS
    done = client.ask(GET_EX, key, vbucket=VB)
    assert done.status == SUCCESS and done.datatype == 5
    assert done.value == b"\0\0\0\x08" + b"\0\0\0\x04x\x001\0" + client.ask(GET, key, vbucket=VB).value
    assert client.ask(GET_EX, KEYS[8], vbucket=VB).value == client.ask(GET, KEYS[8], vbucket=VB).value
    assert client.ask(GET_EX, b"missing", vbucket=VB).status == NOT_FOUND


def test_what_is_not_there_is_not_supported_whatever_its_frames_say(client):
    for framing in (BARRIER, durability(1), durability(9), b"\x50", b"\xff\xff\xff"):
        for opcode in (0xB4, 0x51, 0x85, 0x08):
            assert client.ask(opcode, b"k", b"v", framing=framing).status == NOT_SUPPORTED
            assert client.ask(opcode, b"k", b"v" * 50_000, framing=framing).status == NOT_SUPPORTED
        assert client.ask(0xEE, b"k", b"v", framing=framing).status == UNKNOWN_COMMAND
    assert client.lives()


def test_values_on_disk_are_fetched(tmp_path):
    with servers.Dormouse(buckets=("p,persistent,100MiB",), home=tmp_path) as node:
        with BinaryConnection(node.kv) as client:
            client.open_bucket("p", FEATURES)
            keys_there = keys_of(VB, 200)
            for key in keys_there:
                assert client.store(key, key * 500, vbucket=VB).status == SUCCESS
            filler = [b"filler::%d" % number for number in range(25_000)]
            for start in range(0, len(filler), 500):
                batch = filler[start : start + 500]
                client.send(b"".join(request(SET, key, b"f" * 5000, struct.pack(">II", 0, 0), vbucket=zlib.crc32(key) >> 16 & 0x3FF) for key in batch))
                for _ in batch:
                    client.response()
            pages = scan(client, range={"start": b64(b"scan"), "end": b64(b"scan\xff")})
            rows = [row for page in pages for row in documents(page)]
            assert [(row[0], row[1]) for row in rows] == [(key, key * 500) for key in sorted(keys_there)]
