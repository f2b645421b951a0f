"""Buckets created, listed and dropped through the official SDK's management calls."""

from datetime import timedelta

import pytest
from couchbase.durability import DurabilityLevel
from couchbase.exceptions import (
    BucketAlreadyExistsException, BucketDoesNotExistException, BucketNotFlushableException, DocumentNotFoundException, FeatureUnavailableException,
    InvalidArgumentException, UserNotFoundException,
)
from couchbase.management.buckets import BucketType, CreateBucketSettings, EvictionPolicyType
from couchbase.management.users import Role, User

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


def test_collections_are_listed_and_are_not_made(cluster):
    manager = cluster.bucket("default").collections()
    assert [(scope.name, [one.name for one in scope.collections]) for scope in manager.get_all_scopes()] == [("_default", ["_default"])]
    with pytest.raises(FeatureUnavailableException):
        manager.create_scope("more")


def test_users_are_listed_and_are_not_made(cluster):
    manager = cluster.users()
    assert [one.user.username for one in manager.get_all_users()] == ["Administrator"]
    assert manager.get_user("Administrator").user.username == "Administrator"
    assert [role.role.name for role in manager.get_roles()] == ["admin"]
    assert manager.get_all_groups() == []
    with pytest.raises(UserNotFoundException):
        manager.get_user("nobody")
    with pytest.raises(InvalidArgumentException):
        manager.upsert_user(User(username="more", password="secret", roles=[Role("admin")]))
