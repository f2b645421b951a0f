"""Buckets created, listed and dropped through the official SDK's management calls."""

import base64
import urllib.parse
import urllib.request
from contextlib import contextmanager
from datetime import datetime, timedelta

import couchbase.subdocument as subdoc
import pytest
from couchbase.durability import DurabilityLevel
from couchbase.exceptions import (
    BucketAlreadyExistsException, BucketDoesNotExistException, BucketNotFlushableException, DocumentNotFoundException, InvalidArgumentException,
)
from couchbase.management.buckets import BucketType, CreateBucketSettings, EvictionPolicyType, StorageBackend
from couchbase.management.collections import CreateCollectionSettings
from couchbase.options import GetOptions, SignedInt64, UpsertOptions

from tests import servers

from .cluster import connect

EPHEMERAL = dict(bucket_type=BucketType.EPHEMERAL, eviction_policy=EvictionPolicyType.NO_EVICTION)
PERSISTENT = dict(bucket_type=BucketType.COUCHBASE, eviction_policy=EvictionPolicyType.VALUE_ONLY)


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(memory="256MiB", buckets=("default,ephemeral,64MiB",)) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(node):
    one = connect(node)
    one.wait_until_ready(timedelta(seconds=20))
    yield one
    one.close()


def settings(**changes):
    return CreateBucketSettings(**{"name": "made", "ram_quota_mb": 100, **EPHEMERAL, **changes})


@contextmanager
def made(cluster, **changes):
    """The bucket "made" with these settings, for as long as the block runs; yields the manager."""
    manager = cluster.buckets()
    manager.create_bucket(settings(**changes))
    try:
        yield manager
    finally:
        manager.drop_bucket("made")


def change(manager, **changes):
    """Changes settings of the bucket "made", and requires that they are returned."""
    about = manager.get_bucket("made")
    about.update(changes)
    manager.update_bucket(about)
    stored = manager.get_bucket("made")
    assert {name: stored.get(name) for name in changes} == changes


def post(node, path, **fields):
    credentials = base64.b64encode(b"Administrator:password").decode()
    body = urllib.parse.urlencode(fields).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{node.http[1]}{path}", body, {"Authorization": f"Basic {credentials}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def lives(documents):
    """The seconds until the document expires; None if it does not."""
    at = documents.get("document", GetOptions(with_expiry=True)).expiryTime
    return (at - datetime.now(at.tzinfo)).total_seconds() if at else None


def test_a_bucket_is_made_used_and_dropped(cluster):
    manager = cluster.buckets()
    assert [one.name for one in manager.get_all_buckets()] == ["default"]
    manager.create_bucket(settings())
    made = manager.get_bucket("made")
    assert made.bucket_type == BucketType.EPHEMERAL
    assert made.ram_quota_mb == 100
    assert made.eviction_policy == EvictionPolicyType.NO_EVICTION
    assert made.minimum_durability_level == DurabilityLevel.NONE
    documents = cluster.bucket("made").default_collection()
    documents.upsert("document", {"in": "made"})
    assert documents.get("document").content_as[dict] == {"in": "made"}
    assert not cluster.bucket("default").default_collection().exists("document").exists
    with pytest.raises(BucketAlreadyExistsException):
        manager.create_bucket(settings())
    manager.drop_bucket("made")
    with pytest.raises(BucketDoesNotExistException):
        manager.get_bucket("made")
    with pytest.raises(BucketDoesNotExistException):
        manager.drop_bucket("made")


@pytest.mark.parametrize("changes", [dict(bucket_type=BucketType.COUCHBASE), dict(ram_quota_mb=200), dict(name="a/b")])
def test_what_cannot_be_made_is_refused(cluster, changes):
    with pytest.raises(InvalidArgumentException):
        cluster.buckets().create_bucket(settings(**changes))
    assert [one.name for one in cluster.buckets().get_all_buckets()] == ["default"]


def test_a_bucket_is_updated_and_flushed(cluster):
    manager = cluster.buckets()
    with pytest.raises(BucketNotFlushableException):
        manager.flush_bucket("default")
    about = manager.get_bucket("default")
    assert not about.flush_enabled
    about["flush_enabled"], about["ram_quota_mb"] = True, 80
    manager.update_bucket(about)
    about = manager.get_bucket("default")
    assert (about.flush_enabled, about.ram_quota_mb) == (True, 80)
    documents = cluster.bucket("default").default_collection()
    documents.upsert("document", {})
    manager.flush_bucket("default")
    with pytest.raises(DocumentNotFoundException):
        documents.get("document")
    with pytest.raises(BucketDoesNotExistException):
        manager.flush_bucket("none")
    about["eviction_policy"] = EvictionPolicyType.NO_EVICTION
    with pytest.raises(InvalidArgumentException):
        manager.update_bucket(about)


def test_each_bucket_has_collections_of_its_own(cluster):
    with made(cluster):
        ours, others = (cluster.bucket(name).collections() for name in ("made", "default"))
        ours.create_scope("more")
        ours.create_collection("more", "documents")
        listed = {scope.name: [one.name for one in scope.collections] for scope in ours.get_all_scopes()}
        assert listed == {"_default": ["_default"], "_system": ["_mobile", "_query"], "more": ["documents"]}
        assert [scope.name for scope in others.get_all_scopes()] == ["_default", "_system"]
    with made(cluster):
        assert [scope.name for scope in cluster.bucket("made").collections().get_all_scopes()] == ["_default", "_system"]


def test_max_expiry_of_a_bucket(cluster):
    with made(cluster, max_expiry=timedelta(seconds=100)) as manager:
        assert manager.get_bucket("made").max_expiry == timedelta(seconds=100)
        bucket = cluster.bucket("made")
        documents = bucket.default_collection()
        for asked, expected in ((0, 100), (50, 50), (900, 100)):
            documents.upsert("document", {}, UpsertOptions(expiry=timedelta(seconds=asked)))
            assert expected - 5 < lives(documents) <= expected + 1, asked
        collections = bucket.collections()
        for name, most, expected in (("own", 200, 200), ("inherits", 0, 100), ("never", -1, None)):
            collections.create_collection("_default", name, CreateCollectionSettings(max_expiry=timedelta(seconds=most)))
            collection = bucket.collection(name)
            collection.upsert("document", {})
            left = lives(collection)
            assert left is None if expected is None else expected - 5 < left <= expected + 1, name
        change(manager, max_expiry=timedelta(seconds=300))
        documents.upsert("document", {})
        assert 295 < lives(documents) <= 301
        change(manager, max_expiry=timedelta(0))
        documents.upsert("document", {})
        assert lives(documents) is None


@pytest.mark.parametrize("kind", [EPHEMERAL, PERSISTENT], ids=["ephemeral", "persistent"])
def test_minimum_durability_level(cluster, kind):
    with made(cluster, **kind, minimum_durability_level=DurabilityLevel.MAJORITY) as manager:
        assert manager.get_bucket("made").minimum_durability_level == DurabilityLevel.MAJORITY
        documents = cluster.bucket("made").default_collection()
        is_persistent = kind is PERSISTENT
        for level in (DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY, DurabilityLevel.NONE):
            if is_persistent or level == DurabilityLevel.NONE:
                change(manager, minimum_durability_level=level)
            else:
                with pytest.raises(InvalidArgumentException):
                    change(manager, minimum_durability_level=level)
                assert manager.get_bucket("made").minimum_durability_level == DurabilityLevel.MAJORITY
            cas = documents.upsert("document", {"level": str(level)}).cas
            read = documents.get("document")
            assert (read.cas, read.content_as[dict]) == (cas, {"level": str(level)})
            assert documents.mutate_in("document", [subdoc.upsert("more", 1)]).cas > cas
            assert documents.binary().increment("counter", initial=SignedInt64(1)).content > 0
            documents.remove("document")
            assert not documents.exists("document").exists


@pytest.mark.parametrize("level", [DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY])
def test_an_ephemeral_bucket_cannot_persist(cluster, level):
    with pytest.raises(InvalidArgumentException):
        cluster.buckets().create_bucket(settings(minimum_durability_level=level))
    with made(cluster, **PERSISTENT, minimum_durability_level=level) as manager:
        assert manager.get_bucket("made").minimum_durability_level == level
        documents = cluster.bucket("made").default_collection()
        documents.upsert("document", {"n": 1})
        assert documents.get("document").content_as[dict] == {"n": 1}


def test_plain_writes_under_a_minimum_level_survive_a_kill(tmp_path):
    with servers.Dormouse(memory="256MiB", buckets=(), home=tmp_path) as node:
        one = connect(node)
        one.buckets().create_bucket(settings(**PERSISTENT, minimum_durability_level=DurabilityLevel.PERSIST_TO_MAJORITY))
        documents = one.bucket("made").default_collection()
        for n in range(50):
            documents.upsert(f"document-{n}", {"n": n})
        node.kill()
        one.close()
    with servers.Dormouse(memory="256MiB", buckets=(), home=tmp_path) as node:
        one = connect(node)
        assert one.buckets().get_bucket("made").minimum_durability_level == DurabilityLevel.PERSIST_TO_MAJORITY
        documents = one.bucket("made").default_collection()
        assert [documents.get(f"document-{n}").content_as[dict] for n in range(50)] == [{"n": n} for n in range(50)]
        one.close()


@pytest.mark.parametrize("kind", [EPHEMERAL, PERSISTENT], ids=["ephemeral", "persistent"])
def test_number_of_replicas(cluster, kind):
    with pytest.raises(InvalidArgumentException):
        cluster.buckets().create_bucket(settings(**kind, num_replicas=4))
    with made(cluster, **kind, num_replicas=2) as manager:
        assert manager.get_bucket("made").num_replicas == 2
        for number in (0, 1, 3):
            change(manager, num_replicas=number)
        with pytest.raises(InvalidArgumentException):
            change(manager, num_replicas=4)
        assert manager.get_bucket("made").num_replicas == 3
        documents = cluster.bucket("made").default_collection()
        documents.upsert("document", {"n": 1})
        assert documents.get_any_replica("document").content_as[dict] == {"n": 1}


@pytest.mark.parametrize("backend", [StorageBackend.COUCHSTORE, StorageBackend.MAGMA])
def test_storage_backend(node, cluster, backend):
    with made(cluster, **PERSISTENT, storage_backend=backend) as manager:
        assert manager.get_bucket("made").storage_backend == backend
        documents = cluster.bucket("made").default_collection()
        documents.upsert("document", {"n": 1})
        change(manager, ram_quota_mb=90)
        assert manager.get_bucket("made").storage_backend == backend
        for other in (StorageBackend.MAGMA, StorageBackend.COUCHSTORE):
            # The SDK does not send it in a change.
            post(node, "/pools/default/buckets/made", storageBackend=other.value)
            assert manager.get_bucket("made").storage_backend == other
        assert documents.get("document").content_as[dict] == {"n": 1}


def test_a_bucket_that_is_made_again_serves_an_sdk_that_knew_the_one_before(cluster):
    for _ in range(3):
        with made(cluster):
            documents = cluster.bucket("made").default_collection()
            with pytest.raises(DocumentNotFoundException):
                documents.get("document")
            documents.upsert("document", {"n": 1})
            assert documents.get("document").content_as[dict] == {"n": 1}


@pytest.mark.parametrize("policy", [EvictionPolicyType.NO_EVICTION, EvictionPolicyType.NOT_RECENTLY_USED])
def test_eviction_policies_of_ephemeral_buckets(cluster, policy):
    with pytest.raises(InvalidArgumentException):
        cluster.buckets().create_bucket(settings(**PERSISTENT | dict(eviction_policy=policy)))
    with made(cluster, eviction_policy=policy) as manager:
        assert manager.get_bucket("made").eviction_policy == policy
        change(manager, eviction_policy=policy)


@pytest.mark.parametrize("policy", [EvictionPolicyType.FULL, EvictionPolicyType.VALUE_ONLY])
def test_eviction_policies_of_persistent_buckets(cluster, policy):
    with pytest.raises(InvalidArgumentException):
        cluster.buckets().create_bucket(settings(eviction_policy=policy))
    with made(cluster, **PERSISTENT | dict(eviction_policy=policy)) as manager:
        assert manager.get_bucket("made").eviction_policy == policy
        documents = cluster.bucket("made").default_collection()
        documents.upsert("document", {"n": 1})
        for other in (EvictionPolicyType.FULL, EvictionPolicyType.VALUE_ONLY, policy):
            change(manager, eviction_policy=other)
            assert documents.get("document").content_as[dict] == {"n": 1}
        with pytest.raises(InvalidArgumentException):
            change(manager, eviction_policy=EvictionPolicyType.NO_EVICTION)
        assert manager.get_bucket("made").eviction_policy == policy
