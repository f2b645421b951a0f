"""Buckets made, listed and dropped through the official SDK's own management calls."""

from datetime import timedelta

import pytest
from couchbase.durability import DurabilityLevel
from couchbase.exceptions import BucketAlreadyExistsException, BucketDoesNotExistException, InvalidArgumentException
from couchbase.management.buckets import BucketType, CreateBucketSettings, EvictionPolicyType

from tests import servers

from .cluster import connect


@pytest.fixture(scope="module")
def cluster():
    with servers.Dormouse(memory="256MiB", buckets=("default,ephemeral,64MiB",)) as node:
        one = connect(node)
        one.wait_until_ready(timedelta(seconds=20))
        yield one
        one.close()


def settings(**changes):
    chosen = dict(name="made", bucket_type=BucketType.EPHEMERAL, ram_quota_mb=100, eviction_policy=EvictionPolicyType.NO_EVICTION)
    return CreateBucketSettings(**{**chosen, **changes})


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
