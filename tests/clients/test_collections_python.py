"""The official Couchbase SDK for Python: scopes, collections and the documents in them; with and without TLS."""

import time
from datetime import datetime, timedelta

import couchbase.subdocument as subdoc
import pytest
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    AmbiguousTimeoutException,
    CollectionAlreadyExistsException,
    CollectionNotFoundException,
    CouchbaseException,
    DocumentExistsException,
    DocumentNotFoundException,
    InvalidArgumentException,
    ScopeAlreadyExistsException,
    ScopeNotFoundException,
    UnAmbiguousTimeoutException,
)
from couchbase.management.collections import CreateCollectionSettings, UpdateCollectionSettings
from couchbase.options import DeltaValue, GetOptions, IncrementOptions, MutateInOptions, SignedInt64, UpsertOptions

QUICK = timedelta(seconds=2)
GONE = (CollectionNotFoundException, AmbiguousTimeoutException, UnAmbiguousTimeoutException)
KEY = "document"


@pytest.fixture(scope="module")
def node(either_node):
    return either_node


@pytest.fixture(scope="module")
def bucket(cluster):
    return cluster.bucket("default")


@pytest.fixture(scope="module")
def manager(bucket):
    return bucket.collections()


@pytest.fixture
def scope(request, bucket, manager):
    """A scope of the test's own, with the collections `one` and `other`."""
    name = request.node.originalname[len("test_"):][:200]
    manager.create_scope(name)
    for collection in ("one", "other"):
        manager.create_collection(name, collection)
    yield bucket.scope(name)
    if name in listed(manager):
        manager.drop_scope(name)


def listed(manager):
    """{scope: {collection: its maximum expiry in seconds}}."""
    return {scope.name: {one.name: seconds(one.max_expiry) for one in scope.collections} for scope in manager.get_all_scopes()}


def seconds(duration):
    return duration and int(duration.total_seconds())


def timed(manager, scope, most_s, name="timed"):
    manager.create_collection(scope.name, name, CreateCollectionSettings(max_expiry=timedelta(seconds=most_s)))
    return scope.collection(name)


def lives(collection, key):
    """The seconds until the document expires; None if it does not."""
    at = collection.get(key, GetOptions(with_expiry=True)).expiryTime
    return at and (at - datetime.now(at.tzinfo)).total_seconds()


def test_scopes_and_collections_are_listed(manager, scope):
    found = listed(manager)
    assert "_default" in found["_default"]
    assert set(found[scope.name]) == {"one", "other"}
    manager.drop_collection(scope.name, "one")
    assert set(listed(manager)[scope.name]) == {"other"}
    manager.drop_scope(scope.name)
    assert scope.name not in listed(manager)


def test_what_exists_is_not_made_again(manager, scope):
    with pytest.raises(ScopeAlreadyExistsException):
        manager.create_scope(scope.name)
    with pytest.raises(CollectionAlreadyExistsException):
        manager.create_collection(scope.name, "one")
    manager.create_collection("_default", scope.name)
    with pytest.raises(CollectionAlreadyExistsException):
        manager.create_collection("_default", scope.name)
    manager.drop_collection("_default", scope.name)


def test_what_is_missing_is_reported(manager, scope):
    with pytest.raises(ScopeNotFoundException):
        manager.create_collection("missing", "one")
    with pytest.raises(ScopeNotFoundException):
        manager.drop_scope("missing")
    with pytest.raises(ScopeNotFoundException):
        manager.drop_collection("missing", "one")
    with pytest.raises(CollectionNotFoundException):
        manager.drop_collection(scope.name, "missing")
    with pytest.raises(CollectionNotFoundException):
        manager.update_collection(scope.name, "missing", UpdateCollectionSettings(max_expiry=timedelta(seconds=5)))
    with pytest.raises(ScopeNotFoundException):
        manager.update_collection("missing", "one", UpdateCollectionSettings(max_expiry=timedelta(seconds=5)))


@pytest.mark.parametrize("name", ["_reserved", "%reserved", "with space", "n" * 252])
def test_bad_names_are_refused(manager, scope, name):
    with pytest.raises(InvalidArgumentException):
        manager.create_scope(name)
    with pytest.raises(InvalidArgumentException):
        manager.create_collection(scope.name, name)
    assert set(listed(manager)[scope.name]) == {"one", "other"} and name not in listed(manager)


@pytest.mark.parametrize("name", ["A", "a-b_c%d", "0", "n" * 251])
def test_good_names_are_taken(manager, scope, name):
    manager.create_collection(scope.name, name)
    documents = scope.collection(name)
    documents.upsert(KEY, 1)
    assert documents.get(KEY).content_as[int] == 1
    manager.drop_collection(scope.name, name)


def test_the_default_scope_stays(manager):
    with pytest.raises(CouchbaseException):
        manager.drop_scope("_default")
    assert "_default" in listed(manager)


def test_max_expiry_is_stored_and_updated(manager, scope):
    timed(manager, scope, 100)
    assert listed(manager)[scope.name]["timed"] == 100
    for most in (7, -1, 0):
        manager.update_collection(scope.name, "timed", UpdateCollectionSettings(max_expiry=timedelta(seconds=most)))
        assert (listed(manager)[scope.name]["timed"] or 0) == most
    with pytest.raises(InvalidArgumentException):
        timed(manager, scope, -2, "refused")


def test_max_expiry_is_applied(manager, scope, collection):
    documents = timed(manager, scope, 100)
    for asked, expected in ((0, 100), (50, 50), (900, 100)):
        documents.upsert(KEY, 1, UpsertOptions(expiry=timedelta(seconds=asked)))
        assert expected - 5 < lives(documents, KEY) <= expected + 1, asked
    documents.binary().increment("counter", IncrementOptions(initial=SignedInt64(1)))
    assert 95 < lives(documents, "counter") <= 101
    documents.mutate_in("made", [subdoc.upsert("n", 1)], MutateInOptions(store_semantics=subdoc.StoreSemantics.UPSERT))
    assert 95 < lives(documents, "made") <= 101
    collection.upsert("no-max-expiry", 1)
    assert not lives(collection, "no-max-expiry")


def test_documents_of_a_collection_with_max_expiry_expire(manager, scope):
    documents = timed(manager, scope, 1)
    documents.upsert(KEY, 1)
    assert documents.get(KEY).content_as[int] == 1
    time.sleep(2.2)
    with pytest.raises(DocumentNotFoundException):
        documents.get(KEY)


def test_a_key_is_another_document_in_each_collection(scope, collection):
    one, other = scope.collection("one"), scope.collection("other")
    collection.upsert(KEY, {"in": "default"})
    one.insert(KEY, {"in": "one"})
    other.insert(KEY, {"in": "other"})
    with pytest.raises(DocumentExistsException):
        one.insert(KEY, {})
    assert [c.get(KEY).content_as[dict]["in"] for c in (collection, one, other)] == ["default", "one", "other"]
    one.remove(KEY)
    with pytest.raises(DocumentNotFoundException):
        one.get(KEY)
    assert not one.exists(KEY).exists and other.exists(KEY).exists and collection.exists(KEY).exists
    assert [c.get(KEY).content_as[dict]["in"] for c in (collection, other)] == ["default", "other"]


def test_every_kind_of_operation(scope):
    documents = scope.collection("one")
    cas = documents.upsert(KEY, {"n": 1}, UpsertOptions(durability=ServerDurability(DurabilityLevel.MAJORITY))).cas
    cas = documents.replace(KEY, {"n": 2}, cas=cas).cas
    changed = documents.mutate_in(KEY, [subdoc.increment("n", 3), subdoc.upsert("x.y", 1, create_parents=True)], MutateInOptions(cas=cas))
    assert changed.content_as[int](0) == 5
    assert documents.lookup_in(KEY, [subdoc.get("n"), subdoc.exists("x.y")]).content_as[int](0) == 5
    locked = documents.get_and_lock(KEY, timedelta(seconds=10))
    documents.unlock(KEY, locked.cas)
    documents.touch(KEY, timedelta(seconds=100))
    assert 95 < lives(documents, KEY) <= 101
    assert documents.get_any_replica(KEY).content_as[dict] == {"n": 5, "x": {"y": 1}}
    binary = documents.binary()
    assert binary.increment("counter", IncrementOptions(initial=SignedInt64(10))).content == 10
    assert binary.increment("counter", IncrementOptions(delta=DeltaValue(5))).content == 15
    assert documents.upsert_multi({f"many-{n}": n for n in range(100)}).all_ok
    read = documents.get_multi([f"many-{n}" for n in range(100)])
    assert [result.content_as[int] for result in read.results.values()] == list(range(100))


def test_a_dropped_collection_is_gone(manager, scope):
    one = scope.collection("one")
    one.upsert(KEY, 1)
    manager.drop_collection(scope.name, "one")
    with pytest.raises(GONE):
        one.get(KEY, GetOptions(timeout=QUICK))
    with pytest.raises(GONE):
        one.upsert(KEY, 1, UpsertOptions(timeout=QUICK))


def test_a_collection_of_a_dropped_scope_is_gone(manager, scope):
    one = scope.collection("one")
    one.upsert(KEY, 1)
    manager.drop_scope(scope.name)
    with pytest.raises((ScopeNotFoundException, *GONE)):
        one.get(KEY, GetOptions(timeout=QUICK))


def test_a_collection_made_again_is_empty(manager, scope):
    one = scope.collection("one")
    one.upsert(KEY, 1)
    manager.drop_collection(scope.name, "one")
    manager.create_collection(scope.name, "one")
    with pytest.raises(DocumentNotFoundException):
        one.get(KEY)
    one.insert(KEY, 2)
    assert one.get(KEY).content_as[int] == 2


def test_a_collection_that_never_was_is_not_found(scope):
    # The SDK asks again until its timeout.
    with pytest.raises(GONE):
        scope.collection("missing").get(KEY, GetOptions(timeout=timedelta(milliseconds=700)))
