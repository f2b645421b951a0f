"""Sub-document requests over sockets: each operation and flag, errors per path, extended attributes, deleted documents, and what a restart
keeps of them."""

import binascii
import json
import os
import struct
import time

import pytest

from tests import servers, snappy
from tests import subdocument as sd
from tests.frames import (
    ADD, APPEND, DELETE, EXISTS, FEATURE_ALT_REQUEST, FEATURE_JSON, FEATURE_MUTATION_SEQNO, FEATURE_SELECT_BUCKET, FEATURE_SNAPPY, FEATURE_SYNC_REPLICATION,
    FEATURE_XATTR, FEATURE_XERROR, GET, GET_LOCKED, GET_META, INCREMENT, INVALID, LOCKED, NOT_FOUND, NOT_MY_VBUCKET, PREPEND, SET, SUCCESS, TOO_BIG, BinaryConnection, durability,
)
from tests.persistence.bucket import vbucket_of, wait_warm

FEATURE_PRESERVE_TTL = 0x14
FEATURES = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON, FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION, FEATURE_MUTATION_SEQNO, FEATURE_XATTR, FEATURE_PRESERVE_TTL)
PRESERVE_TTL = b"\x50"
BUCKETS = ("default,ephemeral,256MiB", "p,persistent,256MiB")


class Client(BinaryConnection):
    """A connection that finds each key's vBucket itself."""

    def __init__(self, address, bucket="default", features=FEATURES):
        super().__init__(address)
        self.open_bucket(bucket, features)

    def do(self, encode, *arguments, **named):
        key = arguments[0]
        self.send(encode(*arguments, vbucket=vbucket_of(key), **named))
        return self.response()

    def single(self, opcode, key, path, *rest, **named):
        named["vbucket"] = vbucket_of(key)
        self.send(sd.single(opcode, key, path, *rest, **named))
        return self.response()

    def lookup(self, key, *specs, **named):
        return self.do(sd.lookups, key, *specs, **named)

    def mutate(self, key, *specs, **named):
        return self.do(sd.mutations, key, *specs, **named)

    def plain(self, opcode, key, value=b"", extras=b"", **named):
        return self.ask(opcode, key, value, extras, vbucket=vbucket_of(key), **named)

    def put(self, key, value, **named):
        done = self.store(key, value, vbucket=vbucket_of(key), **named)
        assert done.status == SUCCESS, done
        return done

    def text(self, key):
        return self.plain(GET, key).value

    def document(self, key, **named):
        """`$document`, parsed."""
        (status, value), = sd.found(self.lookup(key, (sd.GET, b"$document", sd.XATTR), **named).value)
        assert status == SUCCESS
        return json.loads(value)


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(buckets=BUCKETS) as server:
        yield server
        assert server.alive(), f"the node died\n{server.log()}"


@pytest.fixture(params=["default", "p"])
def bucket(request):
    return request.param


@pytest.fixture
def client(bucket, node):
    with Client(node.kv, bucket) as one:
        yield one


@pytest.fixture
def key(request):
    return f"sd::{request.node.name}::{os.urandom(4).hex()}".encode()


DOCUMENT = b'{"name": "mouse", "n": 41, "deep": {"a": {"b": [1, 2.50, "x", null]}}, "list": [3], "big": 9223372036854775807, "f": 1.5}'


def test_lookups_of_one_path(client, key):
    client.put(key, DOCUMENT)
    for opcode, path, status, value in [
        (sd.GET, b"name", SUCCESS, b'"mouse"'),
        (sd.GET, b"deep.a", SUCCESS, b'{"b": [1, 2.50, "x", null]}'),
        (sd.GET, b"deep.a.b[1]", SUCCESS, b"2.50"),
        (sd.GET, b"deep.a.b[-1]", SUCCESS, b"null"),
        (sd.GET, b"absent", sd.PATH_ENOENT, b""),
        (sd.GET, b"name.x", sd.PATH_MISMATCH, b""),
        (sd.GET, b"list.x", sd.PATH_MISMATCH, b""),
        (sd.GET, b"a..b", sd.PATH_EINVAL, b""),
        (sd.GET, b"deep.a.b.[1]", SUCCESS, b"2.50"),
        (sd.GET, b"deep.a.b[01].", SUCCESS, b"2.50"),
        (sd.GET, b"de`ep`.`a`.b[-1]", SUCCESS, b"null"),
        (sd.GET, b'na"me', sd.PATH_EINVAL, b""),
        (sd.GET, b"na\x01me", sd.PATH_EINVAL, b""),
        (sd.GET, b"a." * 600, sd.PATH_E2BIG, b""),
        (sd.EXISTS, b"n", SUCCESS, b""),
        (sd.EXISTS, b"m", sd.PATH_ENOENT, b""),
        (sd.GET_COUNT, b"", SUCCESS, b"6"),
        (sd.GET_COUNT, b"deep.a.b", SUCCESS, b"4"),
        (sd.GET_COUNT, b"n", sd.PATH_MISMATCH, b""),
    ]:
        done = client.single(opcode, key, path)
        assert (done.status, done.value) == (status, value), path
    assert client.single(sd.GET, key, b"n").cas == client.plain(GET, key).cas
    assert client.single(sd.GET, key + b"-", b"n").status == NOT_FOUND
    assert client.single(sd.GET, key, b"").status == INVALID
    assert client.lives()


def test_edits_of_one_path(client, key):
    for opcode, path, operand, flags, status, expected in [
        (sd.DICT_ADD, b"new", b'{"x":1}', 0, SUCCESS, b'{"a":1,"l":[1,2],"new":{"x":1}}'),
        (sd.DICT_ADD, b"a", b"2", 0, sd.PATH_EEXISTS, None),
        (sd.DICT_UPSERT, b"a", b"2.0e1", 0, SUCCESS, b'{"a":2.0e1,"l":[1,2]}'),
        (sd.DICT_UPSERT, b"x.y", b"2", 0, sd.PATH_ENOENT, None),
        (sd.DICT_UPSERT, b"x.y", b"2", sd.MKDIR_P, SUCCESS, b'{"a":1,"l":[1,2],"x":{"y":2}}'),
        (sd.DICT_UPSERT, b"a", b"nonsense", 0, sd.CANT_INSERT, None),
        (sd.DICT_UPSERT, b"l[0]", b"1", 0, sd.PATH_EINVAL, None),
        (sd.DICT_UPSERT, b"d", b"[" * 32 + b"]" * 32, 0, sd.VALUE_ETOODEEP, None),
        (sd.DELETE, b"a", b"", 0, SUCCESS, b'{"l":[1,2]}'),
        (sd.DELETE, b"l[0]", b"", 0, SUCCESS, b'{"a":1,"l":[2]}'),
        (sd.DELETE, b"z", b"", 0, sd.PATH_ENOENT, None),
        (sd.REPLACE, b"l[-1]", b'"end"', 0, SUCCESS, b'{"a":1,"l":[1,"end"]}'),
        (sd.REPLACE, b"z", b"1", 0, sd.PATH_ENOENT, None),
        (sd.PUSH_LAST, b"l", b"3,4", 0, SUCCESS, b'{"a":1,"l":[1,2,3,4]}'),
        (sd.PUSH_FIRST, b"l", b"0", 0, SUCCESS, b'{"a":1,"l":[0,1,2]}'),
        (sd.PUSH_LAST, b"m", b"1", sd.MKDIR_P, SUCCESS, b'{"a":1,"l":[1,2],"m":[1]}'),
        (sd.PUSH_LAST, b"a", b"1", 0, sd.PATH_MISMATCH, None),
        (sd.INSERT, b"l[1]", b"9", 0, SUCCESS, b'{"a":1,"l":[1,9,2]}'),
        (sd.INSERT, b"l[3]", b"9", 0, sd.PATH_ENOENT, None),
        (sd.ADD_UNIQUE, b"l", b"3", 0, SUCCESS, b'{"a":1,"l":[1,2,3]}'),
        (sd.ADD_UNIQUE, b"l", b"2", 0, sd.PATH_EEXISTS, None),
        (sd.ADD_UNIQUE, b"l", b"{}", 0, sd.CANT_INSERT, None),
        (sd.COUNTER, b"a", b"-5", 0, SUCCESS, b'{"a":-4,"l":[1,2]}'),
        (sd.COUNTER, b"c", b"7", 0, SUCCESS, b'{"a":1,"l":[1,2],"c":7}'),
        (sd.COUNTER, b"l", b"7", 0, sd.PATH_MISMATCH, None),
        (sd.COUNTER, b"a", b"0", 0, sd.DELTA_EINVAL, None),
        (sd.COUNTER, b"a", b"x", 0, sd.DELTA_EINVAL, None),
        (sd.REPLACE_BODY, b"a", b"", 0, INVALID, None),
    ]:
        before = client.put(key, b'{"a":1,"l":[1,2]}')
        done = client.single(opcode, key, path, operand, flags)
        assert done.status == status, (opcode, path)
        assert client.text(key) == (expected or b'{"a":1,"l":[1,2]}'), (opcode, path)
        if status == SUCCESS:
            assert done.cas > before.cas and len(done.extras) == 16 and client.plain(GET, key).cas == done.cas
        else:
            assert client.plain(GET, key).cas == before.cas
        if opcode == sd.COUNTER and status == SUCCESS:
            assert done.value in (b"-4", b"7")
    assert client.lives()


def test_several_paths_are_looked_up_at_once_with_an_error_for_each(client, key):
    client.put(key, DOCUMENT)
    done = client.lookup(key, (sd.GET, b"n"), (sd.EXISTS, b"none"), (sd.GET_COUNT, b"list"), (sd.WHOLE_GET, b""), (sd.GET, b"a["), (sd.EXISTS, b"n"))
    assert done.status == sd.MULTI_FAILURE
    assert sd.found(done.value) == [(SUCCESS, b"41"), (sd.PATH_ENOENT, b""), (SUCCESS, b"1"), (SUCCESS, DOCUMENT), (sd.PATH_EINVAL, b""), (SUCCESS, b"")]
    done = client.lookup(key, *[(sd.GET, b"n")] * 16)
    assert (done.status, sd.found(done.value)) == (SUCCESS, [(SUCCESS, b"41")] * 16)
    assert client.lookup(key, *[(sd.GET, b"n")] * 17).status == sd.INVALID_COMBO
    assert client.lookup(key).status == sd.INVALID_COMBO
    assert client.lookup(key + b"-", (sd.GET, b"n")).status == NOT_FOUND
    assert client.lookup(key, (sd.GET, b"n"), doc_flags=sd.REPLICA_READ).status == NOT_MY_VBUCKET
    assert client.lookup(key, (sd.DICT_ADD, b"n")).status == sd.INVALID_COMBO


def test_a_mutation_is_done_as_a_whole_or_not_at_all(client, key):
    client.put(key, b'{"n":1}')
    done = client.mutate(key, (sd.COUNTER, b"n", b"1"), (sd.DICT_UPSERT, b"a", b"[]"), (sd.PUSH_LAST, b"a", b'"x"'), (sd.COUNTER, b"m", b"5"))
    assert (done.status, sd.changed(done.value)) == (SUCCESS, [(0, b"2"), (3, b"5")])
    assert client.text(key) == b'{"n":2,"a":["x"],"m":5}'
    done = client.mutate(key, (sd.COUNTER, b"n", b"1"), (sd.DICT_ADD, b"a", b"1"), (sd.DELETE, b"zz", b""))
    assert (done.status, done.value) == (sd.MULTI_FAILURE, struct.pack(">BH", 1, sd.PATH_EEXISTS))
    assert client.text(key) == b'{"n":2,"a":["x"],"m":5}'
    assert client.mutate(key, *[(sd.COUNTER, b"n", b"1")] * 17).status == sd.INVALID_COMBO


def test_conditions_cas_locks_and_creation(client, key):
    edit = (sd.DICT_UPSERT, b"a", b"1")
    assert client.mutate(key, edit).status == NOT_FOUND
    assert client.mutate(key, edit, doc_flags=sd.MKDOC).status == SUCCESS
    assert client.text(key) == b'{"a":1}'
    assert client.mutate(key, edit, doc_flags=sd.ADD).status == EXISTS
    assert client.mutate(key, edit, doc_flags=sd.ADD, cas=5).status == INVALID
    assert client.mutate(key, edit, doc_flags=sd.ADD | sd.MKDOC).status == INVALID
    assert client.mutate(key, edit, cas=5).status == EXISTS
    cas = client.plain(GET, key).cas
    assert client.mutate(key, edit, cas=cas).status == SUCCESS
    lock = client.plain(GET_LOCKED, key, extras=struct.pack(">I", 10))
    assert client.mutate(key, edit).status == LOCKED
    assert client.lookup(key, (sd.GET, b"a")).cas == 2**64 - 1
    assert client.mutate(key, edit, cas=lock.cas).status == SUCCESS
    assert client.mutate(key, edit).status == SUCCESS, "the change has released the lock"
    for number, (spec, expected) in enumerate([((sd.PUSH_LAST, b"", b"1,2"), b"[1,2]"), ((sd.COUNTER, b"a.b", b"3"), b'{"a":{"b":3}}'), ((sd.WHOLE_SET, b"", b"plain"), b"plain")]):
        other = key + b"%d" % number
        assert client.mutate(other, spec, doc_flags=sd.ADD).status == SUCCESS
        assert client.text(other) == expected


def test_expiry_is_kept_set_and_preserved(client, key):
    soon, later = int(time.time()) + 1000, int(time.time()) + 2000
    client.put(key, b'{"a":1}', expiry=soon)
    edit = (sd.DICT_UPSERT, b"a", b"2")
    assert client.mutate(key, edit, framing=PRESERVE_TTL).status == SUCCESS
    assert client.document(key)["exptime"] == soon
    assert client.mutate(key, edit).status == SUCCESS
    assert client.document(key)["exptime"] == 0, "as after any other store without an expiry"
    assert client.mutate(key, edit, expiry=later).status == SUCCESS
    assert client.document(key)["exptime"] == later
    assert client.mutate(key, edit, expiry=soon, framing=PRESERVE_TTL).status == SUCCESS
    assert client.document(key)["exptime"] == later
    assert client.mutate(key, edit, expiry=0).status == SUCCESS
    assert client.document(key)["exptime"] == 0
    assert client.mutate(key, edit, expiry=1).status == SUCCESS
    time.sleep(2.1)
    assert client.lookup(key, (sd.GET, b"a")).status == NOT_FOUND


def test_what_is_not_json_cannot_be_edited(client, key):
    for value in [b"text", b'{"a":1', b"\xff\xfe", b"", b'{"a":01}', b'{"a":"\x01"}']:
        client.put(key, value, datatype=1)
        done = client.lookup(key, (sd.GET, b"a"), (sd.WHOLE_GET, b""))
        assert (done.status, sd.found(done.value)) == (sd.MULTI_FAILURE, [(sd.NOT_JSON, b""), (SUCCESS, value)]), value
        assert client.single(sd.DICT_UPSERT, key, b"a", b"1").status == sd.NOT_JSON
        assert client.plain(GET, key).datatype == 0, value
        assert client.single(sd.DICT_UPSERT, key, b"x", b"1", sd.XATTR).status == SUCCESS, "attributes do not mind"
        assert client.text(key) == value
    client.put(key, b"[" * 33 + b"]" * 33)
    assert client.single(sd.GET, key, b"[0]").status == sd.DOC_E2DEEP


def test_json_is_recognised_whatever_the_client_says(client, key):
    for value, is_json in [(b'{"a":1}', True), (b"5", True), (b"[" + b"1," * 40_000 + b"1]", True), (b"[" + b"1," * 40_000 + b"]", False), (b"{a:1}", False)]:
        for claim in (0, 1):
            client.put(key, value, datatype=claim)
            assert client.plain(GET, key).datatype == int(is_json)
            assert client.plain(GET_META, key, extras=b"\x02").extras[20] == int(is_json)
            assert client.document(key)["datatype"] == (["json"] if is_json else ["raw"])


def test_extended_attributes_are_apart_from_the_body(client, key):
    client.put(key, b'{"a":1}')
    done = client.mutate(key, (sd.DICT_UPSERT, b"user.x.y", b"[1]", sd.XATTR | sd.MKDIR_P), (sd.DICT_ADD, b"_sys", b'"s"', sd.XATTR), (sd.COUNTER, b"a", b"1"))
    assert done.status == SUCCESS
    assert client.plain(GET, key).value == b'{"a":2}'
    done = client.lookup(key, (sd.GET, b"user", sd.XATTR), (sd.GET, b"_sys", sd.XATTR), (sd.GET, b"$XTOC", sd.XATTR), (sd.EXISTS, b"none", sd.XATTR), (sd.GET_COUNT, b"user.x.y", sd.XATTR), (sd.GET, b"a"))
    assert sd.found(done.value) == [(SUCCESS, b'{"x":{"y":[1]}}'), (SUCCESS, b'"s"'), (SUCCESS, b'["user","_sys"]'), (sd.PATH_ENOENT, b""), (SUCCESS, b"1"), (SUCCESS, b"2")]
    for edit, expected in [
        ((sd.PUSH_LAST, b"user.x.y", b"2,3", sd.XATTR), b'{"x":{"y":[1,2,3]}}'),
        ((sd.COUNTER, b"user.n", b"4", sd.XATTR), b'{"x":{"y":[1,2,3]},"n":4}'),
        ((sd.DELETE, b"user.x", b"", sd.XATTR), b'{"n":4}'),
        ((sd.REPLACE, b"user", b"[]", sd.XATTR), b"[]"),
        ((sd.ADD_UNIQUE, b"user", b"7", sd.XATTR), b"[7]"),
    ]:
        assert client.mutate(key, edit).status == SUCCESS, edit
        assert sd.found(client.lookup(key, (sd.GET, b"user", sd.XATTR)).value) == [(SUCCESS, expected)]
    assert client.single(sd.DICT_ADD, key, b"user", b"1", sd.XATTR).status == sd.PATH_EEXISTS
    assert client.single(sd.DELETE, key, b"user", b"", sd.XATTR).status == SUCCESS
    assert client.single(sd.GET, key, b"user", b"", sd.XATTR).status == sd.PATH_ENOENT
    # Operations on whole documents leave them alone.
    for step in [
        lambda: client.put(key, b"other"),
        lambda: client.plain(APPEND, key, b"!"),
        lambda: client.plain(PREPEND, key, b">"),
        lambda: client.put(key, b"7"),
        lambda: client.plain(INCREMENT, key, extras=struct.pack(">QQI", 5, 0, 0)),
        lambda: client.put(key, b"x" * 40_000),
        lambda: client.plain(APPEND, key, b"y" * 100),
        lambda: client.plain(PREPEND, key, b"z" * 100),
    ]:
        assert step().status == SUCCESS
        assert sd.found(client.lookup(key, (sd.GET, b"_sys", sd.XATTR)).value) == [(SUCCESS, b'"s"')]
    assert client.text(key) == b"z" * 100 + b"x" * 40_000 + b"y" * 100


def test_a_short_body_between_attributes_is_extended_in_place(client, key):
    client.put(key, b"middle")
    client.mutate(key, (sd.DICT_UPSERT, b"t", b"true", sd.XATTR))
    assert client.plain(APPEND, key, b" end").status == SUCCESS
    assert client.plain(PREPEND, key, b"start ").status == SUCCESS
    assert client.text(key) == b"start middle end"
    client.put(key, b"12")
    assert client.plain(INCREMENT, key, extras=struct.pack(">QQI", 5, 0, 0)).value == struct.pack(">Q", 17)
    assert client.text(key) == b"17"
    assert sd.found(client.lookup(key, (sd.GET, b"t", sd.XATTR)).value) == [(SUCCESS, b"true")]


def test_refused_attributes(client, key):
    client.put(key, b"{}")
    for spec, status in [
        ((sd.DICT_UPSERT, b"$document.x", b"1", sd.XATTR), sd.CANT_MODIFY_VATTR),
        ((sd.DICT_UPSERT, b"k" * 17, b"1", sd.XATTR), sd.XATTR_EINVAL),
        ((sd.DICT_UPSERT, b"[0]", b"1", sd.XATTR), sd.XATTR_EINVAL),
        ((sd.DICT_UPSERT, b"x", b'"${Mutation.nothing}"', sd.XATTR | sd.EXPAND_MACROS), sd.UNKNOWN_MACRO),
        ((sd.DICT_UPSERT, b"x", b"1", sd.EXPAND_MACROS), sd.INVALID_FLAG_COMBO),
        ((sd.DELETE, b"x", b"", sd.XATTR | sd.EXPAND_MACROS), INVALID),
        ((sd.REPLACE, b"x", b"1", sd.XATTR | sd.EXPAND_MACROS), INVALID),
        ((sd.DICT_UPSERT, b"x", b"1", 0x80), INVALID),
        ((sd.WHOLE_SET, b"", b"1", sd.XATTR), INVALID),
    ]:
        assert client.mutate(key, spec).status == status, spec
    assert client.mutate(key, (sd.DICT_UPSERT, b"a", b"1"), (sd.DICT_UPSERT, b"x", b"1", sd.XATTR)).status == sd.INVALID_ORDER
    assert client.lookup(key, (sd.GET, b"$nothing", sd.XATTR)).status == sd.UNKNOWN_VATTR
    done = client.mutate(key, (sd.DICT_UPSERT, b"x", b'"${$document.nothing}"', sd.XATTR | sd.EXPAND_MACROS))
    assert (done.status, done.value) == (sd.MULTI_FAILURE, struct.pack(">BH", 0, sd.UNKNOWN_VATTR_MACRO))
    mebibyte = b'"' + b"x" * (1 << 20) + b'"'
    done = client.mutate(key, (sd.DICT_UPSERT, b"_x", mebibyte, sd.XATTR))
    assert (done.status, done.value) == (sd.MULTI_FAILURE, struct.pack(">BH", 0, TOO_BIG))
    assert client.text(key) == b"{}" and client.document(key)["datatype"] == ["json"]
    assert client.mutate(key, (sd.DICT_UPSERT, b"x", mebibyte, sd.XATTR)).status == SUCCESS, "a user attribute is a part of the document"
    assert client.mutate(key, (sd.DICT_UPSERT, b"y", b'"' + b"y" * (20 << 20) + b'"', sd.XATTR)).status == TOO_BIG


def test_virtual_attributes_say_what_the_document_is(client, key):
    soon = int(time.time()) + 500
    client.put(key, b'{"a":1}', flags=77, expiry=soon)
    done = client.mutate(key, (sd.DICT_UPSERT, b"x", b"1", sd.XATTR), framing=PRESERVE_TTL)
    seen = client.document(key)
    uuid, seqno = struct.unpack(">QQ", done.extras)
    checksum = f"0x{crc32c(client.text(key)):08x}"
    assert seen == {
        "CAS": f"0x{done.cas:016x}", "datatype": ["json", "xattr"], "deleted": False, "exptime": soon, "flags": 77, "last_modified": str(done.cas // 10**9),
        "revid": seen["revid"], "seqno": f"0x{seqno:016x}", "value_bytes": 7, "value_crc32c": checksum, "vbucket_uuid": f"0x{uuid:016x}",
    }
    assert int(seen["revid"]) >= 2
    done = client.lookup(key, (sd.GET, b"$document.exptime", sd.XATTR), (sd.GET, b"$document.value_crc32c", sd.XATTR), (sd.GET, b"$vbucket", sd.XATTR), (sd.EXISTS, b"$document.none", sd.XATTR), (sd.WHOLE_GET, b""))
    (_, expiry), (_, checksum), (_, vb), (missing, _), (_, body) = sd.found(done.value)
    assert expiry == str(soon).encode() and json.loads(checksum) == seen["value_crc32c"] and missing == sd.PATH_ENOENT and body == b'{"a":1}'
    assert abs(int(json.loads(vb)["HLC"]["now"]) - time.time()) < 60


def crc32c(data):
    """Castagnoli's, bit by bit."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF


def test_macros_are_expanded_to_what_the_change_becomes(client, key):
    macro = sd.XATTR | sd.EXPAND_MACROS | sd.MKDIR_P
    client.put(key, b"{}", flags=9)
    for attempt in range(3):
        done = client.mutate(
            key,
            (sd.DICT_UPSERT, b"m.cas", b'"${Mutation.CAS}"', macro), (sd.DICT_UPSERT, b"m.seqno", b'"${Mutation.seqno}"', macro), (sd.DICT_UPSERT, b"m.crc", b'"${Mutation.value_crc32c}"', macro),
            (sd.DICT_UPSERT, b"m.cas2", b'"${Mutation.CAS}"', macro), (sd.DICT_UPSERT, b"flags", b'"${$document.flags}"', macro), (sd.DICT_UPSERT, b"try", b"%d" % attempt),
        )
        assert done.status == SUCCESS
        (_, seen), (_, flags) = sd.found(client.lookup(key, (sd.GET, b"m", sd.XATTR), (sd.GET, b"flags", sd.XATTR)).value)
        cas = "0x" + struct.pack("<Q", done.cas).hex()
        body = b'{"try":%d}' % attempt
        assert json.loads(seen) == {"cas": cas, "seqno": f"0x{struct.unpack('>QQ', done.extras)[1]:016x}", "crc": f"0x{crc32c(body):08x}", "cas2": cas}
        assert flags == b"9" and client.text(key) == body


def test_binary_attributes(client, key):
    client.put(key, b"{}")
    blob = bytes(range(256))
    assert client.mutate(key, (sd.DICT_UPSERT, b"b", blob, sd.XATTR | sd.BINARY)).status == SUCCESS
    done = client.lookup(key, (sd.GET, b"b", sd.XATTR | sd.BINARY), (sd.GET, b"b", sd.XATTR))
    (_, raw), (_, text) = sd.found(done.value)
    assert raw == blob and json.loads(text) == "cb-content-base64-encoded:" + binascii.b2a_base64(blob, newline=False).decode()
    assert client.mutate(key, (sd.REPLACE_BODY, b"b", b"", sd.XATTR | sd.BINARY), (sd.DELETE, b"b", b"", sd.XATTR)).status == SUCCESS
    assert client.text(key) == blob and client.plain(GET, key).datatype == 0


def test_the_body_is_replaced_by_an_attribute(client, key):
    client.put(key, b'{"old":1}')
    client.mutate(key, (sd.DICT_UPSERT, b"txn.staged", b'{"new":[2]}', sd.XATTR | sd.MKDIR_P))
    done = client.mutate(key, (sd.REPLACE_BODY, b"txn.staged", b"", sd.XATTR), (sd.DELETE, b"txn", b"", sd.XATTR))
    assert done.status == SUCCESS and client.text(key) == b'{"new":[2]}'
    assert client.document(key)["datatype"] == ["json"]
    done = client.mutate(key, (sd.REPLACE_BODY, b"txn.staged", b"", sd.XATTR))
    assert (done.status, done.value) == (sd.MULTI_FAILURE, struct.pack(">BH", 0, sd.PATH_ENOENT))


def test_a_document_is_staged_as_a_deleted_one_and_revived(client, key):
    stage = (sd.DICT_UPSERT, b"txn.staged", b'{"v":1}', sd.XATTR | sd.MKDIR_P)
    deleted = sd.ACCESS_DELETED | sd.CREATE_AS_DELETED
    assert client.single(sd.DICT_UPSERT, key, b"x", b"1", sd.XATTR, doc_flags=deleted).status == INVALID
    assert client.mutate(key, stage, doc_flags=deleted).status == NOT_FOUND
    assert client.mutate(key, stage, (sd.DICT_UPSERT, b"a", b"1"), doc_flags=deleted | sd.ADD).status == sd.DELETED_CANT_HAVE_VALUE
    done = client.mutate(key, stage, doc_flags=deleted | sd.ADD)
    assert done.status == sd.SUCCESS_DELETED and len(done.extras) == 16
    assert client.plain(GET, key).status == NOT_FOUND
    assert client.lookup(key, (sd.GET, b"txn", sd.XATTR)).status == NOT_FOUND
    seen = client.lookup(key, (sd.GET, b"txn.staged", sd.XATTR), doc_flags=sd.ACCESS_DELETED)
    assert (seen.status, seen.cas, sd.found(seen.value)) == (sd.SUCCESS_DELETED, done.cas, [(SUCCESS, b'{"v":1}')])
    assert client.lookup(key, (sd.GET, b"none", sd.XATTR), (sd.WHOLE_GET, b""), doc_flags=sd.ACCESS_DELETED).status == sd.MULTI_FAILURE_DELETED
    assert client.document(key, doc_flags=sd.ACCESS_DELETED)["deleted"] is True
    meta = client.plain(GET_META, key, extras=b"\x02")
    assert meta.status == SUCCESS and meta.extras[:4] == b"\0\0\0\1" and meta.cas == done.cas
    assert client.mutate(key, stage, doc_flags=deleted | sd.ADD).status == EXISTS
    assert client.mutate(key, stage, doc_flags=sd.ACCESS_DELETED, cas=5).status == EXISTS
    again = client.mutate(key, stage, doc_flags=deleted, cas=done.cas)
    assert again.status == sd.SUCCESS_DELETED and again.cas > done.cas
    done = client.mutate(key, (sd.REPLACE_BODY, b"txn.staged", b"", sd.XATTR), (sd.DELETE, b"txn", b"", sd.XATTR), doc_flags=sd.ACCESS_DELETED | sd.REVIVE, cas=again.cas)
    assert done.status == SUCCESS
    assert client.text(key) == b'{"v":1}' and client.document(key)["datatype"] == ["json"]
    assert client.mutate(key, stage, doc_flags=sd.ACCESS_DELETED | sd.REVIVE).status == sd.CAN_ONLY_REVIVE


def test_a_staged_document_gives_way_and_is_rolled_back(bucket, client, key):
    stage = (sd.DICT_UPSERT, b"txn", b"1", sd.XATTR)
    flags = sd.ACCESS_DELETED | sd.CREATE_AS_DELETED | sd.ADD
    assert client.mutate(key, stage, doc_flags=flags).status == sd.SUCCESS_DELETED
    gone = client.mutate(key, (sd.DELETE, b"txn", b"", sd.XATTR), doc_flags=sd.ACCESS_DELETED)
    assert gone.status == sd.SUCCESS_DELETED
    seen = client.lookup(key, (sd.GET, b"txn", sd.XATTR), doc_flags=sd.ACCESS_DELETED)
    if bucket == "p":
        # A deletion is left, and can be named.
        assert (seen.status, seen.cas) == (sd.MULTI_FAILURE_DELETED, gone.cas)
        assert client.mutate(key, stage, doc_flags=flags).status == EXISTS
        again = client.mutate(key, stage, doc_flags=flags & ~sd.ADD, cas=gone.cas)
    else:
        assert seen.status == NOT_FOUND
        again = client.mutate(key, stage, doc_flags=flags)
    assert again.status == sd.SUCCESS_DELETED
    assert client.plain(ADD, key, b"{}", struct.pack(">II", 0, 0)).status == SUCCESS
    assert client.text(key) == b"{}" and client.document(key)["datatype"] == ["json"], "a store replaces it with its attributes"


def test_system_attributes_outlive_their_document(client, key):
    for remove in (lambda: client.plain(DELETE, key), lambda: client.mutate(key, (sd.WHOLE_DELETE, b"", b""))):
        client.put(key, b"{}")
        assert client.mutate(key, (sd.DICT_UPSERT, b"user", b"1", sd.XATTR), (sd.DICT_UPSERT, b"_sys", b"2", sd.XATTR)).status == SUCCESS
        assert remove().status in (SUCCESS, sd.SUCCESS_DELETED)
        assert client.plain(GET, key).status == NOT_FOUND
        assert client.plain(DELETE, key).status == NOT_FOUND
        assert sd.found(client.lookup(key, (sd.GET, b"$XTOC", sd.XATTR), doc_flags=sd.ACCESS_DELETED).value) == [(SUCCESS, b'["_sys"]')]
    client.put(key, b"{}", expiry=1)
    assert client.mutate(key, (sd.DICT_UPSERT, b"_sys", b"3", sd.XATTR), framing=PRESERVE_TTL).status == SUCCESS
    time.sleep(2.1)
    assert client.plain(GET, key).status == NOT_FOUND
    assert sd.found(client.lookup(key, (sd.GET, b"_sys", sd.XATTR), doc_flags=sd.ACCESS_DELETED).value) == [(SUCCESS, b"3")]


def test_large_documents_and_operands(client, key):
    big = json.dumps({"list": ["%06d" % n for n in range(200_000)], "n": 1}).encode()
    client.put(key, big)
    assert client.single(sd.GET, key, b"list[199999]").value == b'"199999"'
    assert client.single(sd.COUNTER, key, b"n", b"1").value == b"2"
    operand = b'"' + b"o" * 100_000 + b'"'
    assert client.mutate(key, (sd.DICT_UPSERT, b"_a", b"1", sd.XATTR), (sd.DICT_UPSERT, b"o", operand), (sd.REPLACE, b"list", b"[]")).status == SUCCESS
    assert json.loads(client.text(key)) == {"list": [], "n": 2, "o": "o" * 100_000}
    assert client.single(sd.GET, key, b"o").value == operand
    too_long = b'"' + b"x" * (20 * 1024 * 1024 - 100_000) + b'"'
    assert client.single(sd.DICT_UPSERT, key, b"p", too_long).status == TOO_BIG
    assert client.lookup(key, *[(sd.GET, b"o")] * 16).status == SUCCESS
    assert client.lives()


def test_the_answer_to_a_lookup_is_bounded(client, key):
    client.put(key, b'{"a":"' + b"a" * 10_000_000 + b'"}')
    assert client.lookup(key, *[(sd.GET, b"a")] * 4).status == SUCCESS
    assert client.lookup(key, *[(sd.GET, b"a")] * 16).status == TOO_BIG
    assert client.lives()


def test_compressed_documents_are_inflated_first(node, key):
    text = b'{"a":"' + b"a" * 1000 + b'","n":1}'
    with Client(node.kv, features=(*FEATURES, FEATURE_SNAPPY)) as other:
        other.put(key, snappy.compress(text), datatype=3)
        assert other.single(sd.GET, key, b"n").value == b"1"
        assert other.single(sd.COUNTER, key, b"n", b"1").value == b"2"
        assert other.plain(GET, key).value == text.replace(b"1}", b"2}")
        other.put(key, snappy.compress(b'{"broken'), datatype=3)
        assert other.single(sd.GET, key, b"n").status == sd.NOT_JSON
        assert other.mutate(key, (sd.DICT_UPSERT, b"x", b"1", sd.XATTR)).status == SUCCESS
        other.put(key, snappy.compress(text), datatype=3)
        assert other.plain(GET, key).value == text, "behind attributes it is not compressed"
        assert other.single(sd.GET, key, b"x", b"", sd.XATTR).value == b"1"


def test_json_is_recognised_however_long_and_whatever_is_changed_beside_it(node, key):
    with Client(node.kv, features=(*FEATURES, FEATURE_SNAPPY)) as one:
        for length in (100, 40_000, 300_000):
            for text, is_json in ((b'{"a":"' + b"a" * length + b'"}', 1), (b"a" * length, 0)):
                for value, claim in ((text, 0), (snappy.compress(text), 3)):
                    one.put(key, value, datatype=claim)
                    assert one.mutate(key, (sd.DICT_UPSERT, b"x", b"1", sd.XATTR)).status == SUCCESS
                    assert one.plain(GET, key).datatype & 1 == is_json, "an attribute was added"
                    one.put(key, value, datatype=claim)
                    assert one.plain(GET, key).datatype & 1 == is_json, "stored beside an attribute"
                    assert one.mutate(key, (sd.DICT_UPSERT, b"x", b"2", sd.XATTR)).status == SUCCESS
                    assert one.plain(GET, key).datatype & 1 == is_json, "an attribute was changed"
                    assert one.mutate(key, (sd.WHOLE_SET, b"", text)).status == SUCCESS
                    assert one.plain(GET, key).datatype & 1 == is_json, "the body was set"
                    assert one.plain(DELETE, key).status == SUCCESS


@pytest.mark.parametrize("bucket", ["default", "p"])
def test_counters_of_many_connections_lose_nothing(node, bucket, key):
    with Client(node.kv, bucket) as first, Client(node.kv, bucket) as second, Client(node.kv, bucket) as third:
        first.put(key, b'{"n":0}')
        rounds = 2000
        batch = sd.single(sd.COUNTER, key, b"n", b"1", vbucket=vbucket_of(key)) * rounds
        for one in (first, second, third):
            one.send(batch)
        numbers = [int(one.response().value) for one in (first, second, third) for _ in range(rounds)]
        assert sorted(numbers) == list(range(1, 3 * rounds + 1))


def test_durable_changes_wait_for_their_level(node, key):
    with Client(node.kv, "p") as client:
        client.put(key, b'{"n":1}')
        done = client.mutate(key, (sd.COUNTER, b"n", b"1"), (sd.COUNTER, b"m", b"3"), framing=durability(3, 5000))
        assert (done.status, sd.changed(done.value), len(done.extras)) == (SUCCESS, [(0, b"2"), (1, b"3")], 16)
        other = key + b"2"
        stage = (sd.DICT_UPSERT, b"txn", b'{"s":1}', sd.XATTR)
        done = client.mutate(other, stage, doc_flags=sd.ACCESS_DELETED | sd.CREATE_AS_DELETED | sd.ADD, framing=durability(3, 5000))
        assert done.status == sd.SUCCESS_DELETED
        seen = client.lookup(other, (sd.GET, b"txn", sd.XATTR), doc_flags=sd.ACCESS_DELETED)
        assert (seen.status, seen.cas) == (sd.SUCCESS_DELETED, done.cas)
        done = client.mutate(other, (sd.REPLACE_BODY, b"txn", b"", sd.XATTR), (sd.DELETE, b"txn", b"", sd.XATTR), doc_flags=sd.ACCESS_DELETED | sd.REVIVE, framing=durability(3, 5000))
        assert done.status == SUCCESS and client.text(other) == b'{"s":1}'
        done = client.mutate(other, (sd.DICT_UPSERT, b"_s", b"1", sd.XATTR), framing=durability(2, 5000))
        assert done.status == SUCCESS
        assert client.plain(DELETE, other, framing=durability(3, 5000)).status == SUCCESS
        assert client.lookup(other, (sd.GET, b"_s", sd.XATTR), doc_flags=sd.ACCESS_DELETED).status == sd.SUCCESS_DELETED
        assert client.single(sd.GET, key, b"n", framing=durability(1)).status == INVALID


def test_attributes_and_staged_documents_survive_a_restart(tmp_path):
    keys = [b"restart::%d" % n for n in range(200)]
    with servers.Dormouse(buckets=BUCKETS, home=tmp_path) as node:
        with Client(node.kv, "p") as client:
            for number, key in enumerate(keys):
                flags = sd.ACCESS_DELETED | sd.CREATE_AS_DELETED | sd.ADD if number % 2 else sd.MKDOC
                done = client.mutate(key, (sd.DICT_UPSERT, b"_t", b"%d" % number, sd.XATTR), doc_flags=flags, framing=durability(3, 5000) if number > 150 else None)
                assert done.status in (SUCCESS, sd.SUCCESS_DELETED)
            for key in keys[:50:2]:
                assert client.plain(DELETE, key).status == SUCCESS
            # Everything up to here is on disk.
            for vb in {vbucket_of(key) for key in keys}:
                probe = next(key for key in keys if vbucket_of(key) == vb)
                client.mutate(probe, (sd.DICT_UPSERT, b"_p", b"1", sd.XATTR), doc_flags=sd.ACCESS_DELETED, framing=durability(3, 5000))
        node.kill()
    with servers.Dormouse(buckets=BUCKETS, home=tmp_path) as node:
        wait_warm(node)
        with Client(node.kv, "p") as client:
            for number, key in enumerate(keys):
                is_deleted = number % 2 == 1 or number < 50
                seen = client.lookup(key, (sd.GET, b"_t", sd.XATTR), doc_flags=sd.ACCESS_DELETED)
                assert (seen.status, sd.found(seen.value)) == (sd.SUCCESS_DELETED if is_deleted else SUCCESS, [(SUCCESS, b"%d" % number)])
                assert client.plain(GET, key).status == (NOT_FOUND if is_deleted else SUCCESS)
