"""One set of documents over two protocols: memcached text and the Couchbase SDK see the same values, flags, expiries
and CAS."""

import json
import time
from datetime import timedelta

import pytest
from couchbase.exceptions import CASMismatchException, CouchbaseException, DocumentExistsException, DocumentNotFoundException
from couchbase.options import GetOptions, IncrementOptions, RemoveOptions, ReplaceOptions, SignedInt64, UpsertOptions
from couchbase.transcoder import LegacyTranscoder, RawBinaryTranscoder, RawStringTranscoder

from .text_connection import TextConnection

# The upper byte of the flags that SDKs write is the format of the value. The lower bytes are specific to each SDK.
JSON_FLAGS = 0x0200_0006
JSON, BINARY, STRING = 2, 3, 4
RAW = RawBinaryTranscoder()


@pytest.fixture
def text(node):
    one = TextConnection(node.memcached)
    assert one.line(b"flush_all") == b"OK"
    yield one
    one.close()


def test_written_over_memcached_read_through_the_sdk(collection, text):
    documents = {b"doc-%d" % n: {"n": n, "text": "x" * (n * 7 % 3000)} for n in range(200)}
    for key, document in documents.items():
        text.set(key, json.dumps(document).encode(), flags=JSON_FLAGS)
    seen = text.gets(*documents)
    for key, document in documents.items():
        result = collection.get(key.decode())
        assert result.content_as[dict] == document
        assert result.cas == seen[key][2]
        changed = collection.replace(key.decode(), document | {"seen": True}, ReplaceOptions(cas=result.cas))
        value, flags, cas = text.get(key)
        assert (json.loads(value), flags >> 24, cas) == (document | {"seen": True}, JSON, changed.cas)


def test_written_through_the_sdk_read_over_memcached(collection, text):
    documents = {f"doc-{n}": {"n": n} for n in range(200)}
    written = collection.upsert_multi(documents)
    assert written.all_ok
    seen = text.gets(*(key.encode() for key in documents))
    assert len(seen) == len(documents)
    for key, document in documents.items():
        value, flags, cas = seen[key.encode()]
        assert (json.loads(value), flags >> 24, cas) == (document, JSON, written.results[key].cas)
        assert text.store(b"cas", key.encode(), b'{"by":"memcached"}', flags=JSON_FLAGS, cas=cas) == b"STORED"
        with pytest.raises((CASMismatchException, DocumentExistsException)):
            collection.replace(key, {}, ReplaceOptions(cas=cas))
        assert collection.get(key).content_as[dict] == {"by": "memcached"}


@pytest.mark.parametrize(
    ("value", "transcoder", "form", "bytes_"),
    [
        (b"\x00\xffbytes", RawBinaryTranscoder(), BINARY, b"\x00\xffbytes"),
        ("grüße", RawStringTranscoder(), STRING, "grüße".encode()),
        ("legacy", LegacyTranscoder(), None, b"legacy"),
    ],
)
def test_flags_of_transcoders(collection, text, value, transcoder, form, bytes_):
    collection.upsert("t", value, UpsertOptions(transcoder=transcoder))
    seen, seen_flags, _ = text.get(b"t")
    assert seen == bytes_
    assert form is None or seen_flags >> 24 == form
    text.set(b"t2", seen, flags=seen_flags)
    assert collection.get("t2", GetOptions(transcoder=transcoder)).value == value


def test_cas_of_one_door_serves_the_other(collection, text):
    cas = collection.upsert("k", 1).cas
    assert text.store(b"cas", b"k", b"2", flags=JSON_FLAGS, cas=cas + 1) == b"EXISTS"
    assert text.store(b"cas", b"k", b"2", flags=JSON_FLAGS, cas=cas) == b"STORED"
    newer = text.get(b"k")[2]
    assert newer > cas
    with pytest.raises(CASMismatchException):
        collection.remove("k", RemoveOptions(cas=cas))
    collection.remove("k", RemoveOptions(cas=newer))
    assert text.get(b"k") is None
    assert text.store(b"cas", b"k", b"2", cas=newer) == b"NOT_FOUND"


def test_expiry_of_one_door_shows_at_the_other(collection, text):
    collection.upsert("sdk", 1, UpsertOptions(expiry=timedelta(seconds=100)))
    assert 95 <= text.ttl(b"sdk") <= 100
    collection.touch("sdk", timedelta(seconds=200))
    assert 195 <= text.ttl(b"sdk") <= 200
    collection.upsert("sdk", 2)
    assert text.ttl(b"sdk") == -1
    assert text.line(b"touch sdk 2") == b"TOUCHED"
    text.set(b"mc", b"1", flags=JSON_FLAGS, expiry=2)
    collection.upsert("sdk-short", 1, UpsertOptions(expiry=timedelta(seconds=2)))
    assert collection.exists("mc").exists and text.get(b"sdk-short")
    time.sleep(3.2)
    for key in ("sdk", "mc"):
        with pytest.raises(DocumentNotFoundException):
            collection.get(key)
    assert text.get(b"sdk-short") is None


def test_counters_count_together(collection, text):
    assert collection.binary().increment("n", IncrementOptions(initial=SignedInt64(10))).content == 10
    assert text.line(b"incr n 5") == b"15"
    assert collection.binary().decrement("n").content == 14
    assert text.line(b"ma n MD v") == b"VA 2"
    assert text.reader.readline() == b"13\r\n"
    text.set(b"m", b"7", flags=JSON_FLAGS)
    assert collection.binary().increment("m").content == 8
    assert text.get(b"m")[0] == b"8"


def test_appending_from_both_doors(collection, text):
    collection.upsert("a", b"b", UpsertOptions(transcoder=RAW))
    assert text.store(b"append", b"a", b"c") == b"STORED"
    collection.binary().append("a", b"d")
    assert text.store(b"prepend", b"a", b"a") == b"STORED"
    assert collection.get("a", GetOptions(transcoder=RAW)).content_as[bytes] == b"abcd"
    value, flags, _ = text.get(b"a")
    assert (value, flags >> 24) == (b"abcd", BINARY)


def test_deleting_and_adding(collection, text):
    collection.upsert("k", 1)
    assert text.line(b"delete k") == b"DELETED"
    with pytest.raises(DocumentNotFoundException):
        collection.get("k")
    collection.insert("k", 2)
    assert text.store(b"add", b"k", b"3") == b"NOT_STORED"
    collection.remove("k")
    assert text.store(b"replace", b"k", b"3") == b"NOT_STORED"
    assert text.store(b"add", b"k", b"3", flags=JSON_FLAGS) == b"STORED"
    with pytest.raises(DocumentExistsException):
        collection.insert("k", 4)


def test_flush_all_empties_the_bucket_for_both(collection, text):
    collection.upsert_multi({f"k{n}": n for n in range(50)})
    assert text.line(b"flush_all") == b"OK"
    assert not any(result.exists for result in collection.exists_multi([f"k{n}" for n in range(50)]).results.values())
    collection.upsert("after", 1)
    assert text.get(b"after")


def test_a_lock_holds_against_memcached(collection, text):
    collection.upsert("k", 1)
    locked = collection.get_and_lock("k", timedelta(seconds=10))
    assert text.get(b"k")[0] == b"1"
    for refused in (
        text.store(b"set", b"k", b"2"), text.store(b"append", b"k", b"2"), text.line(b"delete k"), text.line(b"incr k 1"),
        text.line(b"touch k 100"), text.store(b"cas", b"k", b"2", cas=locked.cas + 1),
    ):
        assert refused not in (b"STORED", b"DELETED", b"TOUCHED", b"2"), refused
    assert collection.get("k").content_as[int] == 1
    collection.unlock("k", locked.cas)
    assert text.store(b"set", b"k", b"2", flags=JSON_FLAGS) == b"STORED"
    assert collection.get("k").content_as[int] == 2


def test_a_large_document_passes_both_doors(collection, text):
    value = bytes(range(256)) * 4096 * 5
    collection.upsert("large", value, UpsertOptions(transcoder=RAW, timeout=timedelta(seconds=30)))
    seen, flags, _ = text.get(b"large")
    assert seen == value and flags >> 24 == BINARY
    near = bytes(1000 * 1024)
    text.set(b"near", near, flags=flags)
    assert collection.get("near", GetOptions(transcoder=RAW)).content_as[bytes] == near


def test_stale_items_are_documents_to_the_sdk(collection, text):
    collection.upsert("s", 1)
    assert text.line(b"md s I T100") == b"HD"
    assert collection.get("s").content_as[int] == 1
    assert text.line(b"mg s") in (b"HD W X", b"HD X W")
    cas = collection.upsert("s", 2).cas
    assert text.line(b"mg s c") == b"HD c%d" % cas


def test_vivified_items_are_seen(collection, text):
    assert text.line(b"mg v N100 t") == b"HD t100 W"
    assert collection.exists("v").exists
    with pytest.raises(CouchbaseException):
        collection.insert("v", 1)
