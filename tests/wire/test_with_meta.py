"""Operations with metadata: which of two versions wins, and what the winner looks like."""

import itertools
import json
import struct

import pytest

from tests import dcp, servers, snappy
from tests.dcp import Dcp, Marker
from tests.frames import (
    DELETE, EXISTS, FEATURE_JSON, FEATURE_SELECT_BUCKET, FEATURE_SNAPPY, FEATURE_XATTR, FEATURE_XERROR, GET, INVALID, NO_ACCESS, NOT_FOUND, SET, SUCCESS,
    BinaryConnection,
)
from tests.persistence.bucket import http

SET_META, SETQ_META, ADD_META, ADDQ_META, DEL_META, DELQ_META, GET_META, RETURN_META, GET_EX = 0xA2, 0xA3, 0xA4, 0xA5, 0xA8, 0xA9, 0xA0, 0xB2, 0x49
SKIP, FORCE, REGENERATE, EXPIRATION = 0x01, 0x02, 0x04, 0x10
BUCKETS = ("default,ephemeral,256MiB", "p,persistent,256MiB")
VB = 5
# Some time ago: a CAS ahead of the clock is refused.
NOW_NS = 1_700_000_000 * 10**9


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(buckets=BUCKETS) as server:
        assert http(server, "POST", "/pools/default/buckets", "name=t&ramQuota=256&bucketType=ephemeral&conflictResolutionType=lww")[0] == 202
        yield server


class Client(BinaryConnection):
    def __init__(self, node, bucket, **login):
        super().__init__(node.kv)
        self.open_bucket(bucket, (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON, FEATURE_XATTR, FEATURE_SNAPPY, 0x04), **login)

    def put(self, key=b"key", value=b"value", rev=1, cas=NOW_NS, flags=7, expiry=0, options=None, opcode=SET_META, meta=None, **named):
        extras = struct.pack(">IIQQ", flags, expiry, rev, cas)
        if options is not None:
            extras += struct.pack(">I", options)
        if meta is not None:
            extras += struct.pack(">H", len(meta))
        return self.ask(opcode, key, value + (meta or b""), extras, vbucket=VB, **named)

    def delete(self, key=b"key", **named):
        return self.put(key, b"", opcode=DEL_META, **named)

    def meta(self, key=b"key"):
        """Deleted, flags, expiry, revision and CAS."""
        answer = self.ask(GET_META, key, vbucket=VB)
        if answer.status == NOT_FOUND:
            return None
        assert answer.status == SUCCESS, answer
        return *struct.unpack(">IIIQ", answer.extras), answer.cas


@pytest.fixture(params=["default", "p"])
def client(node, request):
    dcp.empty(node, request.param)
    with Client(node, request.param) as one:
        yield one


@pytest.fixture
def by_time(node):
    dcp.empty(node, "t")
    with Client(node, "t") as one:
        yield one


def test_a_version_is_taken_as_it_is(client):
    answer = client.put(value=b'{"a":1}', rev=9, cas=NOW_NS + 5, flags=0x0200_0006, expiry=2_000_000_000)
    assert (answer.status, answer.cas) == (SUCCESS, NOW_NS + 5)
    uuid, seqno = struct.unpack(">QQ", answer.extras)
    assert uuid != 0 and seqno > 0
    assert client.meta() == (0, 0x0200_0006, 2_000_000_000, 9, NOW_NS + 5)
    got = client.ask(GET, b"key", vbucket=VB)
    assert (got.value, got.cas, got.datatype) == (b'{"a":1}', NOW_NS + 5, 1)
    # What is written here follows it.
    assert client.store(b"key", b"next", vbucket=VB).cas > NOW_NS + 5
    assert client.meta()[3] == 10


@pytest.mark.parametrize("versions", itertools.permutations([(1, 30), (2, 10), (2, 20)]))
def test_more_revisions_win_and_then_the_higher_cas(client, versions):
    kept = (0, 0)
    for rev, cas in versions:
        status = client.put(value=b"%d" % cas, rev=rev, cas=NOW_NS + cas).status
        assert status == (SUCCESS if (rev, cas) > kept else EXISTS)
        kept = max(kept, (rev, cas))
    assert client.meta()[3:] == (2, NOW_NS + 20)
    assert client.put(rev=2, cas=NOW_NS + 20).status == EXISTS


@pytest.mark.parametrize("versions", itertools.permutations([(1, 30), (2, 10), (3, 30)]))
def test_by_time_the_higher_cas_wins(by_time, versions):
    kept = (0, 0)
    for rev, cas in versions:
        status = by_time.put(rev=rev, cas=NOW_NS + cas, options=FORCE).status
        assert status == (SUCCESS if (cas, rev) > kept else EXISTS)
        kept = max(kept, (cas, rev))
    assert by_time.meta()[3:] == (3, NOW_NS + 30)


def test_options(client, by_time):
    assert client.put(rev=5).status == SUCCESS
    assert client.put(value=b"older", rev=1, options=SKIP).status == SUCCESS
    assert client.meta()[3] == 1
    answer = client.put(rev=7, cas=0, options=SKIP | REGENERATE)
    assert answer.status == SUCCESS and answer.cas > NOW_NS
    for options in (REGENERATE, FORCE, 0x20, EXPIRATION):
        assert client.put(rev=99, options=options).status == INVALID, options
    assert by_time.put(rev=99).status == INVALID
    assert by_time.put(rev=99, options=0).status == INVALID


def test_adding_and_a_named_cas(client):
    assert client.put(rev=3, opcode=ADD_META).status == SUCCESS
    assert client.put(rev=9, cas=NOW_NS + 9, opcode=ADD_META).status == EXISTS
    header_cas = client.meta()[4]
    extras = struct.pack(">IIQQ", 0, 0, 9, NOW_NS + 9)
    assert client.ask(SET_META, b"key", b"v", extras, vbucket=VB, cas=header_cas + 1).status == EXISTS
    assert client.ask(SET_META, b"none", b"v", extras, vbucket=VB, cas=header_cas).status == NOT_FOUND
    assert client.ask(SET_META, b"key", b"v", extras, vbucket=VB, cas=header_cas).status == SUCCESS


def test_deletions(client):
    assert client.put(rev=5).status == SUCCESS
    assert client.delete(rev=4).status == EXISTS
    answer = client.delete(rev=6, cas=NOW_NS + 6)
    assert (answer.status, answer.cas) == (SUCCESS, NOW_NS + 6)
    assert client.ask(GET, b"key", vbucket=VB).status == NOT_FOUND
    # One of what was never here.
    assert client.delete(b"unknown", rev=3).status == SUCCESS
    assert client.ask(GET, b"unknown", vbucket=VB).status == NOT_FOUND
    assert client.put(b"unknown", rev=4).status == SUCCESS
    # With attributes that outlive it.
    section = attributes(b"_s", b'"x"')
    assert client.delete(rev=9, cas=NOW_NS + 9, options=SKIP, datatype=4).status == INVALID
    answer = client.put(value=section, rev=9, cas=NOW_NS + 9, opcode=DEL_META, datatype=4)
    assert answer.status == SUCCESS
    deleted, _, _, rev, cas = client.meta()
    assert (deleted, rev, cas) == (1, 9, NOW_NS + 9)
    assert client.put(rev=8, cas=NOW_NS + 10).status == EXISTS
    assert client.put(value=section + b"body", rev=12, opcode=DEL_META, datatype=4).status == INVALID


def attributes(key, value):
    pair = key + b"\0" + value + b"\0"
    pair = struct.pack(">I", len(pair)) + pair
    return struct.pack(">I", len(pair)) + pair


def test_values_with_attributes_and_compressed_ones(client):
    section = attributes(b"_s", b'"x"')
    assert client.put(value=section + b'{"b":2}', datatype=4).status == SUCCESS
    got = client.ask(GET, b"key", vbucket=VB)
    assert (got.value, got.datatype & 4) == (b'{"b":2}', 0)
    got = client.ask(GET_EX, b"key", vbucket=VB)
    assert (got.value, got.datatype & 4) == (section + b'{"b":2}', 4)
    assert client.put(value=b"\0\0\0\xff" + b"broken", rev=2, datatype=4).status == INVALID
    long = b"x" * 100_000
    assert client.put(b"packed", snappy.compress(long), datatype=2).status == SUCCESS
    got = client.ask(GET, b"packed", vbucket=VB)
    assert (snappy.inflate(got.value) if got.datatype & 2 else got.value) == long
    assert client.put(b"both", snappy.compress(section + long), datatype=6).status == SUCCESS
    assert client.ask(GET_EX, b"both", vbucket=VB).value == section + long
    assert client.put(b"packed", b"\xff\xff", rev=3, datatype=2).status == INVALID


def test_extended_metadata_is_taken_off(client):
    assert client.put(meta=b"\x01\x02\x00\x01\x00").status == SUCCESS
    assert client.ask(GET, b"key", vbucket=VB).value == b"value"
    assert client.put(rev=2, options=0, meta=b"").status == SUCCESS
    assert client.put(rev=3, meta=b"\x02").status == INVALID
    extras = struct.pack(">IIQQH", 0, 0, 4, NOW_NS, 100)
    assert client.ask(SET_META, b"key", b"short", extras, vbucket=VB).status == INVALID


def test_what_is_wrong_is_answered(client):
    for length in (0, 23, 25, 27, 29, 31):
        assert client.ask(SET_META, b"key", b"v", b"\0" * length, vbucket=VB).status == INVALID, length
    assert client.put(cas=0).status == INVALID
    assert client.put(cas=2**64 - 1).status == INVALID
    assert client.put(rev=2**43).status == INVALID
    assert client.put(value=b"x" * (20 << 20) + b"x").status == 0x03
    assert client.lives()


def test_quiet_ones_answer_errors_only(client):
    assert client.put(rev=5).status == SUCCESS
    client.send(b"".join(dcp.request(opcode, b"key", b"" if opcode == DELQ_META else b"v", struct.pack(">IIQQ", 0, 0, 1, NOW_NS), vbucket=VB, opaque=opcode)
                         for opcode in (SETQ_META, ADDQ_META, DELQ_META)))
    client.send(dcp.request(SETQ_META, b"key", b"v", struct.pack(">IIQQ", 0, 0, 9, NOW_NS), vbucket=VB))
    assert [client.response().opaque for _ in range(3)] == [SETQ_META, ADDQ_META, DELQ_META]
    assert client.lives() and client.meta()[3] == 9


def test_return_meta(client):
    ask = lambda what, value=b"v", **named: client.ask(RETURN_META, b"key", value, struct.pack(">III", what, 7, 0), vbucket=VB, **named)  # noqa: E731
    answer = ask(2)
    assert answer.status == SUCCESS
    flags, expiry, rev = struct.unpack(">IIQ", answer.extras)
    assert (flags, expiry, rev, answer.cas) == (*client.meta()[1:],)
    assert ask(2).status == EXISTS
    answer = ask(1, b"w")
    assert struct.unpack(">IIQ", answer.extras)[2] == rev + 1
    assert ask(1, b"w", cas=answer.cas + 1).status == EXISTS
    answer = ask(3, b"", cas=answer.cas)
    assert (answer.status, struct.unpack(">IIQ", answer.extras)[2]) == (SUCCESS, rev + 2)
    assert ask(3, b"").status == NOT_FOUND
    assert ask(4).status == INVALID


@pytest.mark.parametrize("bucket", ["default", "p"])
def test_they_come_in_a_stream(node, bucket):
    with Client(node, bucket) as one, Dcp(node.kv, bucket) as stream:
        assert stream.stream(VB, flags=dcp.FROM_LATEST).status == SUCCESS
        assert one.put(b"streamed", rev=4, cas=NOW_NS + 4, options=SKIP).status == SUCCESS
        assert one.delete(b"streamed", rev=6, cas=NOW_NS + 6, options=SKIP | EXPIRATION).status == SUCCESS
        while isinstance(message := stream.next(), Marker) or message.opcode != dcp.DELETION:
            pass
        assert (message.opcode, message.numbers[1], message.cas) == (dcp.DELETION, 6, NOW_NS + 6)


def test_rights(node):
    for user, roles, may in [("w", "data_writer[*]", False), ("x", "replication_target[*]", True)]:
        assert http(node, "PUT", f"/settings/rbac/users/local/{user}", f"password=password&roles={roles}")[0] == 200
        with Client(node, "default", user=user) as one:
            assert one.put(b"mine", options=SKIP).status == (SUCCESS if may else NO_ACCESS)
            assert one.store(b"plain", b"v", vbucket=VB).status == SUCCESS
        assert http(node, "DELETE", f"/settings/rbac/users/local/{user}")[0] == 200


def test_what_is_deleted_here_can_be_written_again(client):
    assert client.store(b"key", b"v", vbucket=VB, opcode=SET).status == SUCCESS
    assert client.ask(DELETE, b"key", vbucket=VB).status == SUCCESS
    assert client.put(rev=2**40).status == SUCCESS


MUTATE_META = 0x4B


def mutate(client, key=b"key", value=b"value", datatype=0, **meta):
    text = json.dumps(meta).encode()
    return client.ask(MUTATE_META, key, value + text, struct.pack(">I", len(text)), vbucket=VB, datatype=datatype)


def test_metadata_as_json(client):
    assert mutate(client, command="set", cas=hex(NOW_NS), rev_seqno="7", flags="0x9", expiration=0).status == SUCCESS
    assert client.meta() == (0, 9, 0, 7, NOW_NS)
    assert mutate(client, command="add", cas=NOW_NS + 1, rev_seqno=8).status == EXISTS
    assert mutate(client, command="set", cas=NOW_NS, rev_seqno=6).status == EXISTS
    assert mutate(client, command="set", cas=NOW_NS, rev_seqno=6, options="0x8").status == SUCCESS
    assert client.meta()[3:] == (6, NOW_NS)
    answer = mutate(client, command="set", rev_seqno=9)
    assert answer.status == SUCCESS and answer.cas not in (0, NOW_NS) and client.meta()[4] == answer.cas
    assert mutate(client, value=b"", command="delete", cas=NOW_NS, rev_seqno=10, options=0x10).status == SUCCESS
    assert client.ask(GET, b"key", vbucket=VB).status == NOT_FOUND


def test_cas_and_seqno_are_written_into_attributes(client):
    zeros = b"0x" + b"0" * 16
    pair = b"_s\0" + b'{"cas":"' + zeros + b'","seqno":"' + zeros + b'"}\0'
    section = struct.pack(">II", len(pair) + 4, len(pair)) + pair
    cas_at, seqno_at = section.index(zeros), section.rindex(zeros)
    answer = mutate(client, value=section + b"{}", datatype=4, command="set", options=4, cas_offsets=[cas_at], seqno_offsets=[seqno_at])
    assert answer.status == SUCCESS, answer
    whole = client.ask(GET_EX, b"key", vbucket=VB).value
    cas, seqno = whole[cas_at : cas_at + 18], whole[seqno_at : seqno_at + 18]
    assert int.from_bytes(bytes.fromhex(cas[2:].decode()), "little") == answer.cas
    assert int(seqno, 16) == struct.unpack(">QQ", answer.extras)[1]
    for offsets in ([len(section) - 17], [2**63], [cas_at, len(section)]):
        assert mutate(client, value=section + b"{}", datatype=4, command="set", options=4, cas_offsets=offsets).status == INVALID
    assert mutate(client, command="set", options=4, cas_offsets=[0]).status == INVALID


@pytest.mark.parametrize("meta", [{}, {"command": "get"}, {"command": "set", "x": 1}, {"command": "set", "options": 0x40}, {"command": "set", "cas": "x"}])
def test_metadata_that_are_wrong(client, meta):
    assert mutate(client, **meta).status == INVALID
    assert client.ask(MUTATE_META, b"key", b"{}", struct.pack(">I", 3), vbucket=VB).status == INVALID
    assert client.ask(MUTATE_META, b"key", b"{}", b"\0" * 3, vbucket=VB).status == INVALID
    assert client.lives()
