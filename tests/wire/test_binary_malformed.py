"""Malformed frames on the memcached port and on the Couchbase port.

If the header gives the length of the frame, the answer is an error and the connection survives. If it does not (unknown
magic), the connection is closed. The node always survives.
"""

import json
import struct

import pytest

from tests.frames import (
    ADD, AUTH_ERROR, BAD_DELTA, COLLECTION_ID, DEL_VBUCKET, DELETE, DURABILITY_INVALID_LEVEL, ERROR_MAP, FEATURE_ALT_REQUEST, FEATURE_COLLECTIONS, FEATURE_JSON,
    FEATURE_SELECT_BUCKET, FEATURE_SYNC_REPLICATION, FEATURE_XERROR, GAT, GET, GET_CLUSTER_CONFIG, GET_LOCKED, HELLO, INCREMENT, INVALID, LOOKUP,
    NO_ACCESS, NO_BUCKET, NOOP, NOT_FOUND, NOT_SUPPORTED, OBSERVE_SEQNO, REPLACE, SASL_AUTH, SELECT_BUCKET, SET, SET_VBUCKET, SUCCESS, TOO_BIG, TOUCH,
    UNKNOWN_COLLECTION, UNKNOWN_COMMAND, UNKNOWN_FRAME_INFO, BinaryConnection, request,
)

EXTRAS = struct.pack(">II", 0, 0)
COUNTER = struct.pack(">QQI", 1, 1, 0)
MEBIBYTE = 1024 * 1024

# name: (frame, statuses allowed). All have a known length.
CASES = {
    "get without key": (request(GET), {INVALID}),
    "get with extras": (request(GET, b"k", extras=EXTRAS), {INVALID}),
    "get with value": (request(GET, b"k", b"value"), {INVALID}),
    "set without extras": (request(SET, b"k", b"v"), {INVALID}),
    "set with half extras": (request(SET, b"k", b"v", EXTRAS[:4]), {INVALID}),
    "set without key": (request(SET, b"", b"v", EXTRAS), {INVALID}),
    "add without extras": (request(ADD, b"k", b"v"), {INVALID}),
    "replace with long extras": (request(REPLACE, b"k", b"v", EXTRAS * 2), {INVALID}),
    "key of 251 bytes": (request(SET, b"k" * 251, b"v", EXTRAS), {INVALID, TOO_BIG}),
    "key of 60000 bytes": (request(SET, b"k" * 60000, b"v", EXTRAS), {INVALID, TOO_BIG}),
    "delete with extras": (request(DELETE, b"k", extras=b"1234"), {INVALID}),
    "delete without key": (request(DELETE), {INVALID}),
    "counter without extras": (request(INCREMENT, b"k"), {INVALID}),
    "counter with value": (request(INCREMENT, b"k", b"v", COUNTER), {INVALID}),
    "touch without extras": (request(TOUCH, b"k"), {INVALID}),
    "gat without extras": (request(GAT, b"k"), {INVALID}),
    "noop with key": (request(NOOP, b"k"), {INVALID, SUCCESS}),
    "key longer than the body": (request(GET, b"k", key_len=100), {INVALID, UNKNOWN_COMMAND}),
    "extras longer than the body": (request(SET, b"k", b"v", EXTRAS, extras_len=200), {INVALID, UNKNOWN_COMMAND}),
    "unknown opcode": (request(0x7F), {UNKNOWN_COMMAND, NOT_SUPPORTED}),
    "unknown opcode with a body": (request(0x7F, b"key", b"value" * 50, EXTRAS), {UNKNOWN_COMMAND, NOT_SUPPORTED}),
    "every bit set in datatype": (request(SET, b"k", b"v", EXTRAS, datatype=0xFF), {INVALID, SUCCESS}),
}


@pytest.fixture
def memcached(node):
    with BinaryConnection(node.memcached) as one:
        yield one


@pytest.fixture
def couchbase(node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket()
        yield one


def refuse(connection, frame, allowed, whole):
    if whole:
        connection.send(frame)
    else:
        for at in range(0, len(frame), 7):
            connection.send(frame[at : at + 7])
    answer = connection.response()
    assert answer is not None, "closed without an answer"
    assert answer.status in allowed, f"status {answer.status:#x} {answer.value[:200]!r}"
    assert connection.lives(), "the connection does not live on"


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in sevens"])
@pytest.mark.parametrize("name", CASES)
def test_memcached_port_refuses_and_lives(memcached, name, whole):
    refuse(memcached, *CASES[name], whole)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "in sevens"])
@pytest.mark.parametrize("name", CASES)
def test_couchbase_port_refuses_and_lives(couchbase, name, whole):
    refuse(couchbase, *CASES[name], whole)


@pytest.mark.parametrize("opcode", range(0x100))
def test_every_opcode_alone_gets_an_answer(node, opcode):
    """An empty frame of each opcode is answered, or (quiet, QUIT) not answered, and the node survives."""
    with BinaryConnection(node.kv) as one:
        one.open_bucket()
        # In one piece: a connection that is closed with unread data is reset, and may lose its last answer.
        one.send(request(opcode, opaque=7) + request(NOOP, opaque=8))
        answer = one.response()
        while answer is not None and answer.opaque == 7:
            answer = one.response()
        if opcode in (0x07, 0x17):
            assert answer is None, "QUIT did not end the connection"
        else:
            assert answer is not None and answer.opaque == 8, answer
        if opcode == DEL_VBUCKET:
            # That was a complete request. Restore the vBucket for the following tests.
            assert one.ask(SET_VBUCKET, extras=struct.pack(">I", 1)).status == SUCCESS


def test_too_big_for_the_memcached_port(memcached):
    refuse(memcached, request(SET, b"k", bytes(MEBIBYTE + 1), EXTRAS), {TOO_BIG}, True)


def test_too_big_for_the_couchbase_port(couchbase):
    assert couchbase.store(b"k", b"old").status == SUCCESS
    refuse(couchbase, request(SET, b"k", bytes(20 * MEBIBYTE + 1), EXTRAS), {TOO_BIG}, True)
    assert couchbase.ask(GET, b"k").value == b"old"
    assert couchbase.store(b"k", bytes(20 * MEBIBYTE)).status == SUCCESS


def test_a_frame_over_the_frame_limit_is_refused_and_swallowed(couchbase):
    refuse(couchbase, request(SET, b"k", bytes(31 * MEBIBYTE), EXTRAS), {TOO_BIG, INVALID}, True)


def test_four_gibibytes_announced_take_no_memory(node, couchbase):
    before = resident(node)
    couchbase.send(request(SET, b"k", b"", EXTRAS, body_len=0xFFFF_FFFF) + bytes(MEBIBYTE))
    assert node.alive()
    assert resident(node) - before < 64 * MEBIBYTE
    with BinaryConnection(node.kv) as other:
        other.open_bucket()
        assert other.lives()


def resident(node):
    with open(f"/proc/{node.pid}/smaps_rollup") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Rss:"))


@pytest.mark.parametrize("magic", [0x00, 0x01, 0x7F, 0x81, 0x18, 0x82, 0x83, 0xFF])
def test_an_unknown_magic_ends_the_connection(node, couchbase, magic):
    couchbase.send(request(GET, b"k", magic=magic) + bytes(4000))
    answers = 0
    try:
        while couchbase.response() is not None:
            answers += 1
            assert answers < 5
    except (ConnectionError, AssertionError):
        pass
    assert node.alive()
    with BinaryConnection(node.kv) as other:
        other.open_bucket()
        assert other.lives()


# Malformed frames specific to Couchbase.
FRAMING_CASES = {
    "durability level 0": (b"\x11\x00", {DURABILITY_INVALID_LEVEL, INVALID}),
    "durability level 9": (b"\x11\x09", {DURABILITY_INVALID_LEVEL, INVALID}),
    "durability of two bytes": (b"\x12\x01\x00", {INVALID}),
    "durability with timeout 0": (b"\x13\x01\x00\x00", {INVALID}),
    "durability with timeout 65535": (b"\x13\x01\xff\xff", {INVALID}),
    "persist to majority on an ephemeral bucket": (b"\x11\x03", {DURABILITY_INVALID_LEVEL}),
    "frame info cut off": (b"\x13\x01", {INVALID}),
    "unknown frame info": (b"\xe1\x00", {UNKNOWN_FRAME_INFO}),
}


@pytest.mark.parametrize("name", FRAMING_CASES)
def test_bad_framing_extras(node, name):
    framing, allowed = FRAMING_CASES[name]
    with BinaryConnection(node.kv) as one:
        one.open_bucket(features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION))
        refuse(one, request(SET, b"framed", b"v", EXTRAS, framing=framing), allowed, True)
        assert one.ask(GET, b"framed").status == NOT_FOUND


@pytest.mark.parametrize("level", [b"\x11\x01", b"\x13\x01\x23\x28"], ids=["majority", "majority with timeout"])
def test_good_framing_extras(node, level):
    with BinaryConnection(node.kv) as one:
        one.open_bucket()
        assert one.ask(SET, b"durable", b"v", EXTRAS, framing=level).status == SUCCESS
        assert one.ask(GET, b"durable", framing=b"").value == b"v"


@pytest.mark.parametrize("prefix", [b"\x80", b"\x80\x00", b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\xff\xff"], ids=["cut off", "not canonical", "too long", "no end"])
def test_bad_collection_ids(node, prefix):
    with BinaryConnection(node.kv) as one:
        assert FEATURE_COLLECTIONS in one.open_bucket(features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_COLLECTIONS))
        key = prefix if prefix in (b"\x80",) else prefix + b"key"
        refuse(one, request(GET, key), {INVALID, UNKNOWN_COLLECTION}, True)


def test_unknown_collections(node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket(features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_COLLECTIONS))
        refuse(one, request(GET, b"\x20key"), {UNKNOWN_COLLECTION}, True)
        refuse(one, request(COLLECTION_ID, b"", b"_default.nothing"), {UNKNOWN_COLLECTION}, True)
        found = one.ask(COLLECTION_ID, b"", b"_default._default")
        assert found.status == SUCCESS and found.extras[-4:] == b"\0\0\0\0"


def test_couchbase_commands_malformed(couchbase):
    for name, frame, allowed in (
        ("HELLO with half a feature", request(HELLO, b"x", b"\x00\x07\x00"), {INVALID}),
        ("SELECT_BUCKET without name", request(SELECT_BUCKET), {INVALID, NO_ACCESS, NOT_FOUND}),
        ("SELECT_BUCKET of nothing", request(SELECT_BUCKET, b"nothing"), {NO_ACCESS, NOT_FOUND}),
        ("error map without version", request(ERROR_MAP), {INVALID}),
        ("error map with a byte", request(ERROR_MAP, b"", b"\x01"), {INVALID}),
        ("observe seqno without uuid", request(OBSERVE_SEQNO), {INVALID}),
        ("config with odd extras", request(GET_CLUSTER_CONFIG, extras=b"123"), {INVALID}),
        ("lock of a missing document", request(GET_LOCKED, b"no-such-document", extras=struct.pack(">I", 5)), {NOT_FOUND}),
        ("lock with half extras", request(GET_LOCKED, b"k", extras=b"12"), {INVALID}),
        ("paths that end beyond the body", request(LOOKUP, b"k", b"\xc5\x00\x00\x02a"), {INVALID}),
        ("paths with half a head", request(LOOKUP, b"k", b"\xc5\x00\x00\x01a\xc5\x00"), {INVALID}),
        ("no path", request(LOOKUP, b"k"), {0xcb}),
        ("a mutation among paths that are read", request(LOOKUP, b"k", b"\xc8\x00\x00\x01\x00\x00\x00\x01a1"), {0xcb}),
        ("vBucket out of range", request(SET, b"k", b"v", EXTRAS, vbucket=5000), {0x07, INVALID}),
    ):
        couchbase.send(frame)
        answer = couchbase.response()
        assert answer is not None and answer.status in allowed, f"{name}: {answer}"
        assert couchbase.lives(), name


def test_a_counter_on_a_word_is_a_bad_delta(couchbase):
    couchbase.store(b"word", b"abc")
    refuse(couchbase, request(INCREMENT, b"word", extras=COUNTER), {BAD_DELTA}, True)


def test_errors_carry_a_json_context_when_xerror_was_granted(node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket(features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON))
        answer = one.ask(SET, b"k", b"v")
        assert answer.status == INVALID and answer.datatype & 1 and json.loads(answer.value)["error"]["context"], answer


def test_nothing_is_open_before_login(node):
    with BinaryConnection(node.kv) as one:
        for frame in (request(GET, b"k"), request(SET, b"k", b"v", EXTRAS), request(SELECT_BUCKET, b"default"), request(DELETE, b"k")):
            one.send(frame)
            assert one.response().status in (AUTH_ERROR, NO_ACCESS, NO_BUCKET)
        assert one.login(password="wrong") == AUTH_ERROR
        assert one.login(user="nobody") == AUTH_ERROR
        assert one.ask(SASL_AUTH, b"NO-SUCH-MECHANISM", b"x").status in (AUTH_ERROR, INVALID, NOT_SUPPORTED)
        assert one.ask(SASL_AUTH, b"PLAIN", b"no separators").status in (AUTH_ERROR, INVALID)
        assert one.ask(SASL_AUTH, b"SCRAM-SHA512", b"garbage").status in (AUTH_ERROR, INVALID)
        assert one.login() == SUCCESS
        assert one.ask(GET, b"k").status in (NO_BUCKET, NO_ACCESS)
        assert one.ask(SELECT_BUCKET, b"default").status == SUCCESS
        assert one.ask(GET, b"no-such-document").status == NOT_FOUND
