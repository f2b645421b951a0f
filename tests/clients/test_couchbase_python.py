"""The official Couchbase SDK for Python: every operation on whole documents, and their errors; with and without TLS."""

import time
from datetime import timedelta

import pytest
from couchbase.diagnostics import EndpointState, PingState, ServiceType
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    BucketDoesNotExistException,
    BucketNotFoundException,
    AuthenticationException,
    CASMismatchException,
    CouchbaseException,
    DeltaInvalidException,
    DocumentExistsException,
    DocumentLockedException,
    DocumentNotFoundException,
    DocumentNotLockedException,
    DocumentUnretrievableException,
    DurabilityInvalidLevelException,
)
from couchbase.management.buckets import BucketType, CreateBucketSettings, EvictionPolicyType
from couchbase.options import (
    AppendOptions,
    DecrementOptions,
    GetOptions,
    IncrementOptions,
    InsertOptions,
    PrependOptions,
    RemoveOptions,
    ReplaceOptions,
    UpsertOptions,
)
from couchbase.options import DeltaValue, SignedInt64
from couchbase.transcoder import LegacyTranscoder, RawBinaryTranscoder, RawJSONTranscoder, RawStringTranscoder

from .cluster import connect

MEBIBYTE = 1024 * 1024
# The SDK has no exception of its own for this error.
VALUE_TOO_LARGE = 104


@pytest.fixture(scope="module")
def node(either_node):
    return either_node


@pytest.fixture
def key(request, collection):
    name = f"py::{request.node.name}"
    try:
        collection.remove(name)
    except DocumentNotFoundException:
        pass
    return name


def expiry(collection, key):
    """When the document expires, in seconds of Unix time; None if it does not."""
    at = collection.get(key, GetOptions(with_expiry=True)).expiryTime
    return at and at.timestamp()


def test_ready_and_pinged(cluster):
    cluster.wait_until_ready(timedelta(seconds=20))
    bucket = cluster.bucket("default")
    reports = [report for endpoints in bucket.ping().endpoints.values() for report in endpoints]
    assert reports and all("ok" in str(report.state).lower() for report in reports)


def test_ping(node):
    # A connection of its own: the buckets of other tests come and go.
    own = connect(node)
    bucket = own.bucket("default")
    # The SDK pings no other service of a bucket.
    for pinged, services in ((bucket.ping(), [ServiceType.KeyValue]), (own.ping(), [ServiceType.KeyValue, ServiceType.Management])):
        for service in services:
            reports = pinged.endpoints[service]
            assert reports and all(report.state == PingState.OK for report in reports), reports
    assert any(endpoint.state == EndpointState.Connected for endpoint in own.diagnostics().endpoints[ServiceType.KeyValue])
    own.close()


def test_a_wrong_password_is_refused(node):
    with pytest.raises((AuthenticationException, CouchbaseException)) as raised:
        connect(node, password="wrong")
    assert "uth" in repr(raised.value)


def test_a_missing_bucket_is_reported(cluster):
    with pytest.raises((BucketNotFoundException, CouchbaseException)) as raised:
        cluster.bucket("no-such-bucket").default_collection().get("k")
    assert "ucket" in repr(raised.value)


def test_upsert_get(collection, key):
    document = {"text": "grüße", "number": 1.5, "list": [1, None, True], "deep": {"a": {"b": {}}}}
    written = collection.upsert(key, document)
    read = collection.get(key)
    assert read.content_as[dict] == document
    assert written.cas == read.cas != 0
    token = written.mutation_token()
    assert token is not None and token.bucket_name == "default" and token.sequence_number > 0 and token.partition_uuid != 0


def test_cas_rises(collection, key):
    before = 0
    for n in range(20):
        cas = collection.upsert(key, n).cas
        assert cas > before
        before = cas


def test_get_missing(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.get(key)


def test_insert(collection, key):
    collection.insert(key, {"n": 1})
    assert collection.get(key).content_as[dict] == {"n": 1}


def test_insert_existing(collection, key):
    collection.insert(key, {"n": 1})
    with pytest.raises(DocumentExistsException):
        collection.insert(key, {"n": 2})
    assert collection.get(key).content_as[dict] == {"n": 1}


def test_insert_expiry_absolute(collection, key):
    # The SDK takes durations only, and sends a time for those of 30 days and more.
    far = timedelta(days=40)
    earliest = int(time.time() + far.total_seconds())
    collection.insert(key, {"n": 1}, InsertOptions(expiry=far))
    assert earliest <= expiry(collection, key) <= time.time() + far.total_seconds()


def test_replace(collection, key):
    cas = collection.upsert(key, {"n": 1}).cas
    cas = collection.replace(key, {"n": 2}, ReplaceOptions(cas=cas)).cas
    collection.replace(key, {"n": 3})
    assert collection.get(key).content_as[dict] == {"n": 3}


def test_replace_missing(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.replace(key, {"n": 1})


def test_replace_cas_mismatch(collection, key):
    old = collection.upsert(key, {"n": 1}).cas
    collection.upsert(key, {"n": 2})
    with pytest.raises(CASMismatchException):
        collection.replace(key, {"n": 3}, ReplaceOptions(cas=old))
    assert collection.get(key).content_as[dict] == {"n": 2}


def test_replace_expiry(collection, key):
    collection.upsert(key, {"n": 1})
    started = int(time.time())
    collection.replace(key, {"n": 2}, ReplaceOptions(expiry=timedelta(seconds=100)))
    before = expiry(collection, key)
    assert started + 99 <= before <= time.time() + 101
    collection.replace(key, {"n": 3}, ReplaceOptions(preserve_expiry=True))
    assert expiry(collection, key) == before
    collection.replace(key, {"n": 4})
    assert expiry(collection, key) is None
    assert collection.get(key).content_as[dict] == {"n": 4}


def test_remove(collection, key):
    cas = collection.upsert(key, 1).cas
    removed = collection.remove(key, RemoveOptions(cas=cas))
    assert removed.cas not in (0, cas)
    assert not collection.exists(key).exists


def test_remove_missing(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.remove(key)


def test_remove_cas_mismatch(collection, key):
    old = collection.upsert(key, 1).cas
    collection.upsert(key, 2)
    with pytest.raises(CASMismatchException):
        collection.remove(key, RemoveOptions(cas=old))
    assert collection.get(key).content_as[int] == 2


def test_exists(collection, key):
    assert not collection.exists(key).exists
    cas = collection.upsert(key, 1).cas
    found = collection.exists(key)
    assert found.exists and found.cas == cas
    collection.remove(key)
    assert not collection.exists(key).exists


def test_touch(collection, key):
    collection.upsert(key, 1)
    collection.touch(key, timedelta(seconds=2))
    assert collection.get(key).content_as[int] == 1
    time.sleep(3.2)
    with pytest.raises(DocumentNotFoundException):
        collection.get(key)
    with pytest.raises(DocumentNotFoundException):
        collection.touch(key, timedelta(seconds=2))


def test_get_and_touch(collection, key):
    collection.upsert(key, "v", UpsertOptions(expiry=timedelta(seconds=2)))
    assert collection.get_and_touch(key, timedelta(seconds=60)).content_as[str] == "v"
    time.sleep(3.2)
    assert collection.get(key).content_as[str] == "v"
    assert collection.get_and_touch(key, timedelta(seconds=0)).content_as[str] == "v"


def test_touch_zero(collection, key):
    collection.upsert(key, {"n": 1}, UpsertOptions(expiry=timedelta(seconds=100)))
    assert expiry(collection, key)
    collection.touch(key, timedelta(0))
    assert expiry(collection, key) is None
    collection.upsert(key, {"n": 2}, UpsertOptions(expiry=timedelta(seconds=100)))
    assert collection.get_and_touch(key, timedelta(0)).content_as[dict] == {"n": 2}
    assert expiry(collection, key) is None


def test_expiry(collection, key):
    collection.upsert(key, 1, UpsertOptions(expiry=timedelta(seconds=2)))
    collection.insert(key + "-inserted", 1, InsertOptions(expiry=timedelta(seconds=2)))
    assert collection.exists(key).exists
    time.sleep(3.2)
    assert not collection.exists(key).exists
    with pytest.raises(DocumentNotFoundException):
        collection.get(key + "-inserted")
    collection.insert(key, 2)
    assert collection.get(key).content_as[int] == 2


def test_expiry_far_away(collection, key):
    collection.upsert(key, 1, UpsertOptions(expiry=timedelta(days=50)))
    assert collection.get(key).content_as[int] == 1


def test_preserve_expiry(collection, key):
    collection.upsert(key, 1, UpsertOptions(expiry=timedelta(seconds=2)))
    collection.upsert(key, 2, UpsertOptions(preserve_expiry=True))
    collection.upsert(key + "-reset", 1, UpsertOptions(expiry=timedelta(seconds=2)))
    collection.upsert(key + "-reset", 2)
    time.sleep(3.2)
    assert not collection.exists(key).exists
    assert collection.get(key + "-reset").content_as[int] == 2


def test_get_and_lock(collection, key):
    collection.upsert(key, "v")
    locked = collection.get_and_lock(key, timedelta(seconds=10))
    assert locked.content_as[str] == "v"
    assert collection.get(key).content_as[str] == "v"
    quick = timedelta(milliseconds=700)
    for attempt in (
        lambda: collection.upsert(key, 2, UpsertOptions(timeout=quick)),
        lambda: collection.remove(key, RemoveOptions(timeout=quick)),
        lambda: collection.touch(key, timedelta(seconds=9), timeout=quick),
        lambda: collection.get_and_lock(key, timedelta(seconds=5), timeout=quick),
    ):
        # The SDK retries until its timeout, and then names the lock as the reason.
        with pytest.raises(CouchbaseException) as raised:
            attempt()
        assert isinstance(raised.value, DocumentLockedException) or "lock" in repr(raised.value).lower(), repr(raised.value)
    collection.replace(key, "w", ReplaceOptions(cas=locked.cas))
    assert collection.get(key).content_as[str] == "w"
    collection.upsert(key, "free again")


def test_lock_ends_by_itself(collection, key):
    collection.upsert(key, 1)
    collection.get_and_lock(key, timedelta(seconds=1))
    collection.upsert(key, 2, UpsertOptions(timeout=timedelta(seconds=5)))
    assert collection.get(key).content_as[int] == 2


def test_unlock(collection, key):
    collection.upsert(key, 1)
    locked = collection.get_and_lock(key, timedelta(seconds=15))
    with pytest.raises(CouchbaseException):
        collection.unlock(key, locked.cas + 1, timeout=timedelta(milliseconds=700))
    collection.unlock(key, locked.cas)
    collection.upsert(key, 2)
    with pytest.raises((DocumentNotLockedException, CouchbaseException)):
        collection.unlock(key, locked.cas, timeout=timedelta(milliseconds=700))
    with pytest.raises(DocumentNotFoundException):
        collection.unlock(key + "-missing", 1)


def test_lock_errors(collection, key):
    lock = timedelta(seconds=15)
    for attempt in (
        lambda: collection.get_and_lock(key, lock),
        lambda: collection.get_and_touch(key, lock),
        lambda: collection.unlock(key, 1),
    ):
        with pytest.raises(DocumentNotFoundException):
            attempt()
    free = collection.upsert(key, 1).cas
    with pytest.raises(DocumentNotLockedException):
        collection.unlock(key, free)
    locked = collection.get_and_lock(key, lock)
    with pytest.raises(CASMismatchException):
        collection.unlock(key, free)
    collection.replace(key, 2, ReplaceOptions(cas=locked.cas))
    again = collection.get_and_lock(key, lock)
    assert again.content_as[int] == 2
    collection.remove(key, RemoveOptions(cas=again.cas))
    assert not collection.exists(key).exists


def test_counter(collection, key):
    binary = collection.binary()
    assert binary.increment(key, IncrementOptions(initial=SignedInt64(10), delta=DeltaValue(5))).content == 10
    assert binary.increment(key, IncrementOptions(delta=DeltaValue(5))).content == 15
    assert binary.decrement(key, DecrementOptions(delta=DeltaValue(3))).content == 12
    assert binary.decrement(key, DecrementOptions(delta=DeltaValue(100))).content == 0
    assert collection.get(key).content_as[int] == 0


def test_counter_with_expiry(collection, key):
    collection.binary().increment(key, IncrementOptions(initial=SignedInt64(1), expiry=timedelta(seconds=2)))
    time.sleep(3.2)
    assert not collection.exists(key).exists


def test_counter_missing(collection, key):
    for change, options in ((collection.binary().increment, IncrementOptions), (collection.binary().decrement, DecrementOptions)):
        with pytest.raises(DocumentNotFoundException):
            change(key, options(initial=SignedInt64(-1)))


def test_counter_not_a_number(collection, key):
    collection.upsert(key, {"not": "a number"})
    with pytest.raises(DeltaInvalidException):
        collection.binary().increment(key)


def test_decrement_creates(collection, key):
    decrement = collection.binary().decrement
    with pytest.raises(DocumentNotFoundException):
        decrement(key, DecrementOptions(initial=SignedInt64(-1)))
    started = int(time.time())
    assert decrement(key, DecrementOptions(initial=SignedInt64(7), expiry=timedelta(seconds=100))).content == 7
    assert started + 99 <= expiry(collection, key) <= time.time() + 101
    assert decrement(key, DecrementOptions(delta=DeltaValue(2))).content == 5


def test_append_prepend(collection, key):
    raw = RawBinaryTranscoder()
    collection.upsert(key, b"b", UpsertOptions(transcoder=raw))
    cas = collection.binary().append(key, b"c").cas
    collection.binary().prepend(key, b"a", PrependOptions(cas=cas))
    assert collection.get(key, GetOptions(transcoder=raw)).content_as[bytes] == b"abc"
    with pytest.raises((CASMismatchException, DocumentExistsException)):
        collection.binary().append(key, b"x", AppendOptions(cas=cas))


def test_append_missing(collection, key):
    for change in (collection.binary().append, collection.binary().prepend):
        with pytest.raises(CouchbaseException) as raised:
            change(key, b"x")
        # NOT_STORED: the SDK chooses the exception; we only require that there is one.
        assert not isinstance(raised.value, TimeoutError)
    assert not collection.exists(key).exists


def test_durability_majority(collection, key):
    majority = ServerDurability(DurabilityLevel.MAJORITY)
    cas = collection.upsert(key, 1, UpsertOptions(durability=majority)).cas
    cas = collection.replace(key, 2, ReplaceOptions(cas=cas, durability=majority)).cas
    collection.remove(key, RemoveOptions(durability=majority))
    collection.insert(key, 3, InsertOptions(durability=majority))
    assert collection.binary().increment(key, IncrementOptions(durability=majority)).content == 4
    collection.binary().append(key, b"5", AppendOptions(durability=majority))
    assert collection.get(key).content_as[int] == 45


@pytest.mark.parametrize("level", [DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY])
def test_durability_persist_is_refused_on_an_ephemeral_bucket(collection, key, level):
    with pytest.raises(DurabilityInvalidLevelException):
        collection.upsert(key, 1, UpsertOptions(durability=ServerDurability(level)))
    assert not collection.exists(key).exists


def test_large_value(collection, key):
    raw = RawBinaryTranscoder()
    for size in (32 * 1024, 32 * 1024 + 1, MEBIBYTE, 20 * MEBIBYTE):
        value = bytes([size % 251]) * size
        collection.upsert(key, value, UpsertOptions(transcoder=raw, timeout=timedelta(seconds=30)))
        assert collection.get(key, GetOptions(transcoder=raw, timeout=timedelta(seconds=30))).content_as[bytes] == value


def test_too_big(collection, key):
    raw = RawBinaryTranscoder()
    collection.upsert(key, b"old", UpsertOptions(transcoder=raw))
    with pytest.raises(CouchbaseException) as raised:
        collection.upsert(key, bytes(20 * MEBIBYTE + 1), UpsertOptions(transcoder=raw, timeout=timedelta(seconds=30)))
    assert "large" in repr(raised.value).lower() or "too_big" in repr(raised.value).lower(), repr(raised.value)
    assert collection.get(key, GetOptions(transcoder=raw)).content_as[bytes] == b"old"


def test_binary_value(collection, key):
    value = bytes(range(256))
    collection.upsert(key, value, UpsertOptions(transcoder=RawBinaryTranscoder()))
    assert collection.get(key, GetOptions(transcoder=RawBinaryTranscoder())).content_as[bytes] == value
    with pytest.raises(CouchbaseException):
        collection.get(key).content_as[dict]


def test_string_value(collection, key):
    collection.upsert(key, "grüße", UpsertOptions(transcoder=RawStringTranscoder()))
    assert collection.get(key, GetOptions(transcoder=RawStringTranscoder())).content_as[str] == "grüße"
    collection.upsert(key, '{"raw":1}', UpsertOptions(transcoder=RawJSONTranscoder()))
    assert collection.get(key).content_as[dict] == {"raw": 1}


def test_empty_value(collection, key):
    collection.upsert(key, b"", UpsertOptions(transcoder=RawBinaryTranscoder()))
    assert collection.get(key, GetOptions(transcoder=RawBinaryTranscoder())).value in (b"", None)


def test_legacy_values(collection, key):
    for value in ("text", b"bytes", 42, {"a": [1]}):
        collection.upsert(key, value, UpsertOptions(transcoder=LegacyTranscoder()))
        assert collection.get(key, GetOptions(transcoder=LegacyTranscoder())).value == value


def test_any_replica(collection, key):
    collection.upsert(key, {"n": 1})
    found = collection.get_any_replica(key)
    assert found.content_as[dict] == {"n": 1} and not found.is_replica
    assert [r.content_as[dict] for r in collection.get_all_replicas(key)] == [{"n": 1}]
    with pytest.raises(CouchbaseException):
        collection.get_any_replica(key + "-missing")


def test_any_replica_missing(collection, key):
    with pytest.raises(DocumentUnretrievableException):
        collection.get_any_replica(key)


def test_keys_at_the_limit(collection):
    name = "k" * 245
    collection.upsert(name, 1)
    assert collection.get(name).content_as[int] == 1
    with pytest.raises(CouchbaseException):
        collection.upsert("k" * 252, 1, UpsertOptions(timeout=timedelta(seconds=2)))
    unicode_name = "schlüssel with space/☃"
    collection.upsert(unicode_name, 2)
    assert collection.get(unicode_name).content_as[int] == 2


def test_key_too_long(cluster, collection):
    bucket = cluster.bucket("default")
    bucket.collections().create_collection("_default", "key-too-long")
    # Its bytes count, not its characters.
    for documents, most in ((collection, 250), (bucket.collection("key-too-long"), 246)):
        longest = "ü" * (most // 2)
        documents.upsert(longest, {"n": 1})
        with pytest.raises(CouchbaseException) as raised:
            documents.upsert(longest + "k", {"n": 2})
        assert raised.value.error_code == VALUE_TOO_LARGE, repr(raised.value)
        assert documents.get(longest).content_as[dict] == {"n": 1}
    bucket.collections().drop_collection("_default", "key-too-long")


def test_persistent_bucket(cluster, key):
    manager, name = cluster.buckets(), "py-persistent"
    manager.create_bucket(CreateBucketSettings(
        name=name, bucket_type=BucketType.COUCHBASE, ram_quota_mb=100, eviction_policy=EvictionPolicyType.VALUE_ONLY, num_replicas=0,
    ))
    documents = cluster.bucket(name).default_collection()
    documents.upsert(key, {"n": 1}, UpsertOptions(durability=ServerDurability(DurabilityLevel.PERSIST_TO_MAJORITY)))
    assert documents.get(key).content_as[dict] == {"n": 1}
    kinds = {one.name: one.bucket_type for one in manager.get_all_buckets()}
    assert (kinds[name], kinds["default"]) == (BucketType.COUCHBASE, BucketType.EPHEMERAL)
    manager.drop_bucket(name)
    with pytest.raises(BucketDoesNotExistException):
        manager.get_bucket(name)


def test_batch(collection):
    documents = {f"py::batch-{n}": {"n": n} for n in range(500)}
    assert collection.upsert_multi(documents).all_ok
    read = collection.get_multi(list(documents))
    assert read.all_ok and {key: result.content_as[dict] for key, result in read.results.items()} == documents
    assert collection.exists_multi(list(documents)[:10]).all_ok
    assert collection.touch_multi(list(documents)[:10], timedelta(seconds=60)).all_ok
    mixed = collection.get_multi(["py::batch-0", "py::no-such-document"])
    assert not mixed.all_ok and set(mixed.exceptions) == {"py::no-such-document"}
    inserted = collection.insert_multi({"py::batch-0": 1, "py::batch-fresh": 1})
    assert set(inserted.exceptions) == {"py::batch-0"}
    assert collection.remove_multi([*documents, "py::batch-fresh"]).all_ok
    assert not any(result.exists for result in collection.exists_multi(list(documents)[:10]).results.values())


def test_counters_in_a_batch(collection):
    keys = [f"py::counter-{n}" for n in range(50)]
    for expected in (0, 1, 2):
        done = collection.binary().increment_multi(keys)
        assert done.all_ok
        assert {result.content for result in done.results.values()} == {expected}
    collection.remove_multi(keys)
