"""The official Couchbase SDK for Python: range, prefix and sampling scans; with and without TLS."""

from datetime import datetime, timedelta

import pytest
from couchbase.exceptions import CouchbaseException, InvalidArgumentException
from couchbase.kv_range_scan import PrefixScan, RangeScan, SamplingScan, ScanTerm
from couchbase.mutation_state import MutationState
from couchbase.options import ScanOptions, UpsertOptions
from couchbase.transcoder import RawBinaryTranscoder

PREFIX = "scan-"
DOCUMENTS = {f"{PREFIX}{n:02}": {"n": n} for n in range(60)}
KEYS = list(DOCUMENTS)
OTHERS = {"a": {"n": -1}, "scan": {"n": -2}, "scan.": {"n": -3}, "~": {"n": -4}}


@pytest.fixture(scope="module")
def node(either_node):
    return either_node


@pytest.fixture(scope="module")
def scope(cluster):
    manager = cluster.bucket("default").collections()
    manager.create_scope("scans")
    for name in ("documents", "other", "empty", "large", "changing"):
        manager.create_collection("scans", name)
    return cluster.bucket("default").scope("scans")


@pytest.fixture(scope="module")
def documents(scope):
    """DOCUMENTS and OTHERS in a collection, and documents that no scan of it may find in another and in the default one."""
    stored = scope.collection("documents")
    for key, document in (DOCUMENTS | OTHERS).items():
        stored.upsert(key, document)
    scope.collection("other").upsert(PREFIX + "other", {})
    return stored


def scan(documents, kind, **options):
    """{key: document}, or the sorted keys if only ids were asked for."""
    results = list(documents.scan(kind, ScanOptions(**{"concurrency": 64, **options})))
    keys = [result.id for result in results]
    assert len(set(keys)) == len(keys), "a document was returned twice"
    return sorted(keys) if options.get("ids_only") else {result.id: result.value for result in results}


def term(key, exclusive=False):
    return ScanTerm(key, exclusive=exclusive)


def test_a_prefix(documents):
    assert scan(documents, PrefixScan(PREFIX)) == DOCUMENTS
    assert scan(documents, PrefixScan(PREFIX + "1"), ids_only=True) == KEYS[10:20]
    assert scan(documents, PrefixScan(KEYS[5])) == {KEYS[5]: {"n": 5}}
    assert scan(documents, PrefixScan("none")) == {}


def test_a_range(documents):
    assert scan(documents, RangeScan(term(KEYS[0]), term(KEYS[-1]))) == DOCUMENTS
    assert scan(documents, RangeScan(term(KEYS[10]), term(KEYS[20]))) == {key: DOCUMENTS[key] for key in KEYS[10:21]}
    assert scan(documents, RangeScan(term(PREFIX + "1"), term(PREFIX + "2")), ids_only=True) == KEYS[10:20]


def test_exclusive_bounds(documents):
    for first, last, expected in ((True, False, KEYS[11:21]), (False, True, KEYS[10:20]), (True, True, KEYS[11:20])):
        assert scan(documents, RangeScan(term(KEYS[10], first), term(KEYS[20], last)), ids_only=True) == expected


def test_open_bounds(documents):
    everything = sorted([*DOCUMENTS, *OTHERS])
    assert scan(documents, RangeScan(), ids_only=True) == everything
    assert scan(documents, RangeScan(start=term(KEYS[50])), ids_only=True) == [*KEYS[50:], "scan.", "~"]
    assert scan(documents, RangeScan(end=term(KEYS[2])), ids_only=True) == ["a", "scan", *KEYS[:3]]


def test_ids_only(documents):
    for result in documents.scan(PrefixScan(PREFIX), ScanOptions(ids_only=True)):
        assert result.id in DOCUMENTS
        with pytest.raises(InvalidArgumentException):
            result.content_as[dict]
        with pytest.raises(InvalidArgumentException):
            result.cas


def test_what_a_result_has(documents):
    written = documents.upsert(KEYS[0], DOCUMENTS[KEYS[0]], UpsertOptions(expiry=timedelta(seconds=100)))
    results = {result.id: result for result in documents.scan(PrefixScan(PREFIX + "0"), ScanOptions(concurrency=64))}
    assert results[KEYS[0]].cas == written.cas
    assert results[KEYS[1]].cas == documents.get(KEYS[1]).cas
    at = results[KEYS[0]].expiry_time
    assert 95 < (at - datetime.now(at.tzinfo)).total_seconds() <= 101
    assert not results[KEYS[1]].expiry_time
    documents.upsert(KEYS[0], DOCUMENTS[KEYS[0]])


@pytest.mark.parametrize("limits", [dict(batch_item_limit=1), dict(batch_byte_limit=1), dict(batch_item_limit=0, batch_byte_limit=0), dict(concurrency=1)])
def test_batches(documents, limits):
    assert scan(documents, PrefixScan(PREFIX), **limits) == DOCUMENTS


def test_large_documents(scope):
    large, raw = scope.collection("large"), RawBinaryTranscoder()
    values = {f"large-{n}": bytes([n]) * 1_000_000 for n in range(8)}
    for key, value in values.items():
        large.upsert(key, value, UpsertOptions(transcoder=raw))
    assert scan(large, PrefixScan("large-"), transcoder=raw) == values


def test_consistent_with_writes(scope):
    changing = scope.collection("changing")
    for round_ in range(3):
        written = [changing.upsert(f"document-{n}", {"round": round_}) for n in range(20)]
        found = scan(changing, PrefixScan("document-"), consistent_with=MutationState(*written))
        assert found == {f"document-{n}": {"round": round_} for n in range(20)}
    changing.remove("document-0")
    assert scan(changing, PrefixScan("document-"), ids_only=True) == sorted(f"document-{n}" for n in range(1, 20))


def test_sampling(documents):
    known = DOCUMENTS | OTHERS
    for limit in (1, 20):
        some = scan(documents, SamplingScan(limit))
        assert len(some) == limit and all(known[key] == document for key, document in some.items())
    ids = scan(documents, SamplingScan(20, seed=7), ids_only=True)
    assert len(ids) == 20 and set(ids) <= set(known)


def test_sampling_more_than_there_is(documents):
    assert scan(documents, SamplingScan(1000)) == DOCUMENTS | OTHERS


@pytest.mark.parametrize("limit", [0, -1])
def test_a_sample_has_a_size(documents, limit):
    with pytest.raises(InvalidArgumentException):
        list(documents.scan(SamplingScan(limit)))


def test_an_empty_collection(scope):
    empty = scope.collection("empty")
    for kind in (RangeScan(), PrefixScan("a"), SamplingScan(10)):
        assert scan(empty, kind) == {}


def test_the_default_collection(collection, documents):
    collection.upsert(PREFIX + "default", {"in": "default"})
    assert scan(collection, PrefixScan(PREFIX)) == {PREFIX + "default": {"in": "default"}}
    collection.remove(PREFIX + "default")


def test_a_scan_can_be_left(documents):
    results = documents.scan(PrefixScan(PREFIX))
    assert next(iter(results)).id in DOCUMENTS
    results.cancel_scan()
    assert scan(documents, PrefixScan(PREFIX)) == DOCUMENTS


def test_a_missing_collection(scope):
    with pytest.raises(CouchbaseException):
        list(scope.collection("missing").scan(RangeScan(), ScanOptions(timeout=timedelta(seconds=1))))
