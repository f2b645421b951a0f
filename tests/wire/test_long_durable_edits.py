"""Durable edits of a long document are executed on another thread; deadlines and acknowledgements reach their connection."""

import json

from tests import servers, subdocument
from tests.frames import GET, NOOP, NOT_FOUND, SET, SUCCESS, BinaryConnection, durability, request
from tests.persistence.bucket import vbucket_of

DICT_UPSERT = 0xC8
SET_VBUCKET = 0x3D
AMBIGUOUS = 0xA3
KEY = b"long"
VB = vbucket_of(KEY)
# Over what is read through in place.
DOCUMENT = b'{"n":1,"a":[' + b"1," * 600_000 + b"1]}"


def edit(timeout_ms):
    return subdocument.single(DICT_UPSERT, KEY, b"y", b"2", vbucket=VB, framing=durability(1, timeout_ms))


def set_chain(one, *names):
    topology = json.dumps({"topology": [names]}).encode()
    assert one.ask(SET_VBUCKET, b"", topology, b"\x01", vbucket=VB, datatype=1).status == SUCCESS


def test_they_end_in_time_and_when_they_are_acknowledged():
    with servers.Dormouse(buckets=("default,ephemeral,128MiB",)) as node, BinaryConnection(node.kv, timeout_s=60) as one:
        one.open_bucket("default")
        assert one.ask(SET, KEY, DOCUMENT, bytes(8), vbucket=VB).status == SUCCESS
        one.send(edit(None))
        assert one.response().status == SUCCESS
        set_chain(one, "us", "absent")
        for _ in range(3):
            one.send(edit(100))
            assert one.response().status == AMBIGUOUS
        one.send(edit(65_000) + request(GET, b"other", vbucket=VB) + request(NOOP))
        with BinaryConnection(node.kv, timeout_s=60) as other:
            other.open_bucket("default")
            assert other.ask(GET, KEY, vbucket=VB).status == SUCCESS
            set_chain(other, "us")
        assert [one.response().status for _ in range(3)] == [SUCCESS, NOT_FOUND, SUCCESS]
