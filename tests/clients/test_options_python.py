"""The official Couchbase SDK for Python: what the other files leave out of its options, batches, managers and ways to connect."""

import asyncio
import os
from contextlib import closing
from datetime import timedelta

import couchbase.subdocument as subdoc
import pytest
from acouchbase.cluster import Cluster as AsyncCluster
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.diagnostics import EndpointState, PingState, ServiceType
from couchbase.durability import ClientDurability, PersistTo, PersistToExtended, ReplicateTo
from couchbase.exceptions import (
    CASMismatchException,
    CouchbaseException,
    DocumentLockedException,
    DocumentNotFoundException,
    InvalidArgumentException,
    DocumentNotLockedException,
    DocumentUnretrievableException,
    DurabilityImpossibleException,
    FeatureUnavailableException,
    QueueEmpty,
    TemporaryFailException,
)
from couchbase.management.buckets import BucketType, CompressionMode, ConflictResolutionType
from couchbase.management.collections import CreateCollectionSettings
from couchbase.options import (
    AppendMultiOptions,
    AppendOptions,
    ClusterOptions,
    ClusterTimeoutOptions,
    DecrementMultiOptions,
    DecrementOptions,
    DeltaValue,
    GetAndLockMultiOptions,
    GetAndLockOptions,
    GetAndTouchOptions,
    IncrementOptions,
    InsertOptions,
    MutateInOptions,
    PrependMultiOptions,
    PrependOptions,
    RemoveOptions,
    ReplaceMultiOptions,
    ReplaceOptions,
    SignedInt64,
    UpsertMultiOptions,
    UpsertOptions,
)
from couchbase.transactions import TransactionGetMultiSpec, TransactionKeyspace
from couchbase.transcoder import RawBinaryTranscoder

from tests import servers

from .cluster import KV_TIMEOUT, connect, connection_string
from .test_bucket_management import PERSISTENT, change, made, post
from .test_collections_python import lives
from .test_transactions_python import connect as connect_for_transactions
from .test_transactions_python import document, recorded, staged

MEBIBYTE = 1024 * 1024
VALUE_MAX_BYTES = 20 * MEBIBYTE
RAW = RawBinaryTranscoder()
STRICT = {"return_exceptions": False}
QUICK = timedelta(milliseconds=500)
LOCK = timedelta(seconds=25)
SOON = timedelta(seconds=1000)
LATER = timedelta(seconds=9000)
FAR = timedelta(days=50)
NEVER = timedelta(0)
MISSING = "options::missing"
# The SDK has these errors, but no exception for the last one.
AMBIGUOUS_TIMEOUT, UNAMBIGUOUS_TIMEOUT, VALUE_TOO_LARGE = 13, 14, 104


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(memory="512MiB", buckets=("default,ephemeral,128MiB", "p,persistent,64MiB")) as server:
        yield server
        assert server.alive(), f"the node died\n{server.log()}"


@pytest.fixture(scope="module")
def either_cluster(either_node):
    with closing(connect(either_node)) as one:
        one.wait_until_ready(timedelta(seconds=20))
        yield one


@pytest.fixture(scope="module")
def shop(cluster):
    """A scope with the collections `orders`, `stock` and `records`."""
    bucket = cluster.bucket("default")
    bucket.collections().create_scope("shop")
    for name in ("orders", "stock", "records"):
        bucket.collections().create_collection("shop", name)
    return bucket.scope("shop")


@pytest.fixture
def keys(request):
    """Names of documents of the test's own."""
    return [f"options::{request.node.name}::{number}" for number in range(3)]


@pytest.fixture
def key(keys):
    return keys[0]


@pytest.fixture
def locked(collection, key):
    """A document under a lock."""
    collection.upsert(key, {"n": 1})
    one = collection.get_and_lock(key, LOCK)
    assert one.content_as[dict] == {"n": 1}
    return one


def check_expiry(collection, key, expected):
    left = lives(collection, key)
    if expected == NEVER:
        assert left is None
    else:
        assert expected.total_seconds() - 120 < left <= expected.total_seconds() + 1


def check_gave_up(error, kind, reason):
    """The SDK retried until its timeout, and names the reason."""
    assert type(error) is kind, repr(error)
    assert error.error_code in (AMBIGUOUS_TIMEOUT, UNAMBIGUOUS_TIMEOUT) and error.error_context.retry_reasons == {reason}, repr(error)


def kinds(results):
    """The classes of the exceptions in the results of a batch."""
    return {key: type(error) for key, error in results.items() if error is not None}


# Expiry


@pytest.mark.parametrize("options, expected", [
    (dict(expiry=LATER), LATER), (dict(preserve_expiry=True), SOON), ({}, NEVER),
], ids=["set", "kept", "cleared"])
def test_the_expiry_of_a_replaced_document(collection, key, options, expected):
    collection.upsert(key, 1, UpsertOptions(expiry=SOON))
    collection.replace(key, 2, ReplaceOptions(**options))
    assert collection.get(key).content_as[int] == 2
    check_expiry(collection, key, expected)


@pytest.mark.parametrize("expiry", [NEVER, FAR], ids=["none", "far away"])
@pytest.mark.parametrize("touch", ["touch", "get_and_touch"])
def test_touches(collection, key, touch, expiry):
    collection.upsert(key, 1, UpsertOptions(expiry=SOON))
    getattr(collection, touch)(key, expiry)
    check_expiry(collection, key, expiry)


@pytest.mark.parametrize("write", [
    lambda collection, key: collection.upsert(key, 1, UpsertOptions(expiry=FAR)),
    lambda collection, key: collection.insert(key, 1, InsertOptions(expiry=FAR)),
    lambda collection, key: collection.binary().increment(key, IncrementOptions(initial=SignedInt64(1), expiry=FAR)),
    lambda collection, key: collection.mutate_in(
        key, [subdoc.upsert("n", 1)], MutateInOptions(store_semantics=subdoc.StoreSemantics.UPSERT, expiry=FAR)
    ),
], ids=["upsert", "insert", "increment", "mutate_in"])
def test_an_expiry_more_than_thirty_days_away(collection, key, write):
    write(collection, key)
    check_expiry(collection, key, FAR)


# Locks


@pytest.mark.parametrize("call", [
    lambda collection: collection.get_and_lock(MISSING, LOCK),
    lambda collection: collection.get_and_touch(MISSING, SOON),
    lambda collection: collection.unlock(MISSING, 1),
], ids=["get_and_lock", "get_and_touch", "unlock"])
def test_a_missing_document_is_not_locked(collection, call):
    with pytest.raises(DocumentNotFoundException):
        call(collection)


def test_only_the_cas_of_the_lock_unlocks(collection, key, locked):
    with pytest.raises(CASMismatchException):
        collection.unlock(key, locked.cas + 1)
    collection.unlock(key, locked.cas)
    for cas in (locked.cas, collection.get(key).cas):
        with pytest.raises(DocumentNotLockedException):
            collection.unlock(key, cas)


@pytest.mark.parametrize("attempt", [
    lambda collection, key: collection.mutate_in(key, [subdoc.upsert("n", 2)], MutateInOptions(timeout=QUICK)),
    lambda collection, key: collection.binary().append(key, b" ", AppendOptions(timeout=QUICK)),
    lambda collection, key: collection.binary().prepend(key, b" ", PrependOptions(timeout=QUICK)),
    lambda collection, key: collection.replace(key, 2, ReplaceOptions(timeout=QUICK)),
    lambda collection, key: collection.get_and_touch(key, SOON, GetAndTouchOptions(timeout=QUICK)),
    lambda collection, key: collection.get_and_lock(key, LOCK, GetAndLockOptions(timeout=QUICK)),
], ids=["mutate_in", "append", "prepend", "replace", "get_and_touch", "get_and_lock"])
def test_a_locked_document_does_not_change(collection, key, locked, attempt):
    with pytest.raises(CouchbaseException) as raised:
        attempt(collection, key)
    check_gave_up(raised.value, DocumentLockedException, "key_value_locked")
    collection.unlock(key, locked.cas)
    assert collection.get(key).content_as[dict] == {"n": 1}
    check_expiry(collection, key, NEVER)


@pytest.mark.parametrize("method, options", [("increment", IncrementOptions), ("decrement", DecrementOptions)])
def test_a_locked_counter_does_not_change(collection, key, method, options):
    collection.upsert(key, 7)
    locked = collection.get_and_lock(key, LOCK)
    with pytest.raises(CouchbaseException) as raised:
        getattr(collection.binary(), method)(key, options(timeout=QUICK))
    check_gave_up(raised.value, DocumentLockedException, "key_value_locked")
    collection.unlock(key, locked.cas)
    assert collection.get(key).content_as[int] == 7


@pytest.mark.parametrize("write, expected", [
    (lambda collection, key, cas: collection.replace(key, {"n": 2}, ReplaceOptions(cas=cas)), {"n": 2}),
    (lambda collection, key, cas: collection.mutate_in(key, [subdoc.upsert("n", 3)], MutateInOptions(cas=cas)), {"n": 3}),
    (lambda collection, key, cas: collection.binary().append(key, b" ", AppendOptions(cas=cas)), {"n": 1}),
    (lambda collection, key, cas: collection.remove(key, RemoveOptions(cas=cas)), None),
], ids=["replace", "mutate_in", "append", "remove"])
def test_the_cas_of_the_lock_changes_and_unlocks(collection, key, locked, write, expected):
    assert write(collection, key, locked.cas).cas != locked.cas
    assert document(collection, key) == expected
    collection.upsert(key, "free")


# Values, keys and counters


def test_a_full_bucket_refuses_writes_until_there_is_room(cluster):
    value = os.urandom(64 * 1024)
    with made(cluster, ram_quota_mb=16):
        documents = cluster.bucket("made").default_collection()

        names = [str(number) for number in range(16 * MEBIBYTE // len(value))]
        with pytest.raises(CouchbaseException) as raised:
            for name in names:
                documents.upsert(name, value, UpsertOptions(transcoder=RAW, timeout=timedelta(seconds=1)))
        check_gave_up(raised.value, TemporaryFailException, "key_value_temporary_failure")
        written = names[:names.index(name)]
        assert len(written) > len(names) / 2
        read = documents.get_multi(written, transcoder=RAW)
        assert read.all_ok and all(one.value == value for one in read.results.values())
        assert documents.remove_multi(written[:32]).all_ok
        for name in written[:8]:
            documents.upsert(name, value, UpsertOptions(transcoder=RAW))
            assert documents.get(name, transcoder=RAW).value == value


@pytest.mark.parametrize("method", ["append", "prepend"])
def test_a_value_does_not_grow_past_the_largest(collection, key, method):
    grow, patience = getattr(collection.binary(), method), {"timeout": timedelta(seconds=30)}
    collection.upsert(key, bytes(VALUE_MAX_BYTES - 1), UpsertOptions(transcoder=RAW, **patience))
    grow(key, b"x", **patience)
    with pytest.raises(CouchbaseException) as raised:
        grow(key, b"x", **patience)
    assert raised.value.error_code == VALUE_TOO_LARGE, repr(raised.value)
    assert len(collection.get(key, transcoder=RAW, **patience).value) == VALUE_MAX_BYTES
    collection.remove(key)


@pytest.mark.parametrize("name, longest", [("_default", 250), ("orders", 246)])
def test_the_longest_key(shop, collection, name, longest):
    documents = collection if name == "_default" else shop.collection(name)
    documents.upsert("k" * longest, name)
    assert documents.get("k" * longest).content_as[str] == name
    for call in (documents.get, lambda key: documents.upsert(key, 1), documents.remove):
        with pytest.raises(CouchbaseException) as raised:
            call("k" * (longest + 1))
        assert raised.value.error_code == VALUE_TOO_LARGE, repr(raised.value)
    documents.remove("k" * longest)


def test_a_decrement_creates(collection, key):
    decrement = collection.binary().decrement
    with pytest.raises(DocumentNotFoundException):
        decrement(key, DecrementOptions(initial=SignedInt64(-1)))
    assert decrement(key, DecrementOptions(initial=SignedInt64(10), delta=DeltaValue(3), expiry=SOON)).content == 10
    check_expiry(collection, key, SOON)
    assert decrement(key, DecrementOptions(initial=SignedInt64(10), delta=DeltaValue(3))).content == 7


def test_replicas_of_a_missing_document(collection):
    with pytest.raises(DocumentUnretrievableException):
        collection.get_any_replica(MISSING)
    with pytest.raises(DocumentNotFoundException):
        list(collection.get_all_replicas(MISSING))


def test_the_client_waits_for_the_disk(cluster, key):
    persisted = {"durability": ClientDurability(persist_to=PersistToExtended.ACTIVE)}
    documents = cluster.bucket("p").default_collection()
    documents.insert(key, {"n": 1}, InsertOptions(**persisted))
    documents.upsert(key, {"n": 2}, UpsertOptions(**persisted))
    documents.replace(key, {"n": 3}, ReplaceOptions(**persisted))
    documents.mutate_in(key, [subdoc.increment("n", 1)], MutateInOptions(**persisted))
    documents.binary().append(key, b" ", AppendOptions(**persisted))
    assert documents.get(key).content_as[dict] == {"n": 4}
    assert documents.binary().increment(key + "counter", IncrementOptions(initial=SignedInt64(5), **persisted)).content == 5
    documents.remove(key, RemoveOptions(**persisted))
    assert document(documents, key) is None


# COMPAT: the SDK's core counts PersistTo.ONE as a replica's disk, whoever the server is.
@pytest.mark.parametrize("wanted", [dict(replicate_to=ReplicateTo.ONE), dict(persist_to=PersistTo.ONE)], ids=["replicate", "persist"])
@pytest.mark.parametrize("bucket", ["default", "p"])
def test_the_client_cannot_wait_for_a_replica(cluster, key, bucket, wanted):
    with pytest.raises(DurabilityImpossibleException):
        cluster.bucket(bucket).default_collection().upsert(key, 1, UpsertOptions(durability=ClientDurability(**wanted)))


# Batches


def test_replace_multi(collection, keys):
    written = collection.upsert_multi(dict.fromkeys(keys, 1)).results
    each = {keys[0]: ReplaceOptions(cas=written[keys[0]].cas, expiry=SOON), keys[1]: ReplaceOptions(cas=1)}
    replaced = collection.replace_multi(dict.fromkeys([*keys, MISSING], 2), ReplaceMultiOptions(per_key_options=each))
    assert not replaced.all_ok
    assert kinds(replaced.exceptions) == {keys[1]: CASMismatchException, MISSING: DocumentNotFoundException}
    assert [collection.get(key).content_as[int] for key in keys] == [2, 1, 2]
    check_expiry(collection, keys[0], SOON)
    check_expiry(collection, keys[2], NEVER)


def test_lock_and_unlock_multi(collection, keys):
    collection.upsert_multi(dict.fromkeys(keys, 1))
    locked = collection.get_and_lock_multi([*keys, MISSING], LOCK)
    assert kinds(locked.exceptions) == {MISSING: DocumentNotFoundException}
    assert {key: one.content_as[int] for key, one in locked.results.items()} == dict.fromkeys(keys, 1)
    again = collection.get_and_lock_multi(keys, LOCK, GetAndLockMultiOptions(timeout=QUICK))
    assert kinds(again.exceptions) == dict.fromkeys(keys, DocumentLockedException)
    assert kinds(collection.unlock_multi({keys[0]: 1})) == {keys[0]: CASMismatchException}
    assert kinds(collection.unlock_multi(locked)) == {}
    assert kinds(collection.unlock_multi(locked)) == dict.fromkeys(keys, DocumentNotLockedException)
    assert kinds(collection.unlock_multi({MISSING: 1})) == {MISSING: DocumentNotFoundException}
    assert collection.upsert_multi(dict.fromkeys(keys, 2)).all_ok


@pytest.mark.parametrize("method, multi_options, options, expected", [
    ("append_multi", AppendMultiOptions, AppendOptions, b"ab"), ("prepend_multi", PrependMultiOptions, PrependOptions, b"ba"),
], ids=["append", "prepend"])
def test_append_and_prepend_multi(collection, keys, method, multi_options, options, expected):
    collection.upsert_multi(dict.fromkeys(keys, b"a"), UpsertMultiOptions(transcoder=RAW))
    each = {keys[0]: options(cas=1)}
    changed = getattr(collection.binary(), method)(dict.fromkeys([*keys, MISSING], b"b"), multi_options(per_key_options=each))
    assert kinds(changed.exceptions) == {keys[0]: CASMismatchException, MISSING: DocumentNotFoundException}
    assert [collection.get(key, transcoder=RAW).value for key in keys] == [b"a", expected, expected]


def test_decrement_multi(collection, keys):
    for expected in ([10, 20, 10], [9, 15, 9]):
        each = {keys[1]: DecrementOptions(initial=SignedInt64(20), delta=DeltaValue(5))}
        done = collection.binary().decrement_multi(keys, DecrementMultiOptions(initial=SignedInt64(10), per_key_options=each))
        assert done.all_ok and [done.results[key].content for key in keys] == expected


def test_replicas_multi(collection, keys):
    collection.upsert_multi({key: {"of": key} for key in keys})
    one = collection.get_any_replica_multi([*keys, MISSING])
    assert kinds(one.exceptions) == {MISSING: DocumentUnretrievableException}
    assert {key: (found.content_as[dict]["of"], found.is_replica) for key, found in one.results.items()} == {key: (key, False) for key in keys}
    every = collection.get_all_replicas_multi([*keys, MISSING])
    assert kinds(every.exceptions) == {MISSING: DocumentNotFoundException}
    assert {key: [found.content_as[dict]["of"] for found in copies] for key, copies in every.results.items()} == {key: [key] for key in keys}


@pytest.mark.parametrize("call", [
    lambda collection, keys: collection.get_multi(keys, **STRICT),
    lambda collection, keys: collection.get_and_lock_multi(keys, LOCK, **STRICT),
    lambda collection, keys: collection.touch_multi(keys, SOON, **STRICT),
    lambda collection, keys: collection.replace_multi(dict.fromkeys(keys, 2), **STRICT),
    lambda collection, keys: collection.remove_multi(keys, **STRICT),
    lambda collection, keys: collection.unlock_multi({MISSING: 1}, **STRICT),
    lambda collection, keys: collection.binary().append_multi(dict.fromkeys(keys, b" "), **STRICT),
    lambda collection, keys: collection.binary().prepend_multi(dict.fromkeys(keys, b" "), **STRICT),
    lambda collection, keys: collection.binary().decrement_multi(keys, initial=SignedInt64(-1), **STRICT),
    lambda collection, keys: collection.get_any_replica_multi(keys, **STRICT),
    lambda collection, keys: collection.get_all_replicas_multi(keys, **STRICT),
], ids=[
    "get", "get_and_lock", "touch", "replace", "remove", "unlock", "append", "prepend", "decrement", "get_any_replica", "get_all_replicas",
])
def test_the_first_error_of_a_batch_is_raised(collection, key, call):
    collection.upsert(key, 1)
    with pytest.raises((DocumentNotFoundException, DocumentUnretrievableException)):
        call(collection, [key, MISSING])


# Managers, and how the node is


@pytest.mark.parametrize("mode", [CompressionMode.OFF, CompressionMode.PASSIVE, CompressionMode.ACTIVE])
def test_compression_mode(cluster, mode):
    with made(cluster, compression_mode=mode) as manager:
        assert manager.get_bucket("made").compression_mode == mode
        for other in CompressionMode.ACTIVE, CompressionMode.OFF:
            change(manager, compression_mode=other)
        documents = cluster.bucket("made").default_collection()
        documents.upsert("document", {"text": "again and " * 100})
        assert documents.get("document").content_as[dict] == {"text": "again and " * 100}


def test_replica_index(cluster):
    with made(cluster, **PERSISTENT, replica_index=True) as manager:
        assert manager.get_bucket("made").replica_index is True
    with made(cluster, **PERSISTENT) as manager:
        assert manager.get_bucket("made").replica_index is False


@pytest.mark.parametrize("kind", [ConflictResolutionType.SEQUENCE_NUMBER, ConflictResolutionType.TIMESTAMP])
def test_conflict_resolution_type(cluster, kind):
    with made(cluster, **PERSISTENT, conflict_resolution_type=kind) as manager:
        assert manager.get_bucket("made")["conflict_resolution_type"] == kind


@pytest.mark.parametrize("wrong", [{"conflict_resolution_type": ConflictResolutionType.CUSTOM}, {"bucket_type": BucketType.MEMCACHED}], ids=["custom", "memcached"])
def test_what_couchbase_refuses_is_refused(cluster, wrong):
    with pytest.raises(InvalidArgumentException), made(cluster, **PERSISTENT | wrong):
        pass


def test_a_described_bucket(cluster):
    about = cluster.buckets().bucket_describe("default")
    assert (about.name, about.number_of_nodes, about.number_of_replicas) == ("default", 1, 0)
    assert len(about.uuid) == 32 and {"collections", "durablewrite", "xattr"} <= set(about.bucket_capabilities)


def test_the_history_flag_of_a_collection(node, cluster):
    manager = cluster.bucket("p").collections()
    for name, flag in (("kept", "true"), ("unkept", "false")):
        post(node, "/pools/default/buckets/p/scopes/_default/collections", name=name, history=flag)
    found = {one.name: one.history for scope in manager.get_all_scopes() for one in scope.collections}
    assert (found["kept"], found["unkept"] or False) == (True, False)
    # COMPAT: the SDK sends the flag only to buckets with the capability nonDedupedHistory.
    with pytest.raises(FeatureUnavailableException):
        manager.create_collection("_default", "refused", CreateCollectionSettings(history=True))


def test_ping_and_diagnostics(either_cluster):
    def states(report):
        return {service: {one.state for one in endpoints} for service, endpoints in report.endpoints.items()}

    # COMPAT: the SDK sends the ping of a bucket to the documents' port only.
    assert states(either_cluster.bucket("default").ping()) == {ServiceType.KeyValue: {PingState.OK}}
    assert states(either_cluster.ping()) == {ServiceType.KeyValue: {PingState.OK}, ServiceType.Management: {PingState.OK}}
    connected = {EndpointState.Connected}
    assert states(either_cluster.diagnostics()) == {ServiceType.KeyValue: connected, ServiceType.Management: connected}


def test_cluster_info(either_cluster):
    info = either_cluster.cluster_info()
    assert info.server_version_full == "7.6.6-6126-enterprise" and info.server_version == "7.6.6-6126" and info.server_version_short == 7.6
    assert info.server_version_build == 6126 and info.is_enterprise
    assert len(info.nodes) == 1


# Data structures


def test_the_whole_map(collection, key):
    items = collection.couchbase_map(key)
    assert items.get_all() == {}
    items.add("one", 1)
    items.add("two", {"n": 2})
    assert items.get_all() == {"one": 1, "two": {"n": 2}}


@pytest.mark.parametrize("kind, fill", [
    ("list", lambda items: items.append(1)),
    ("map", lambda items: items.add("one", 1)),
    ("set", lambda items: items.add(1)),
    ("queue", lambda items: items.push(1)),
], ids=["list", "map", "set", "queue"])
def test_a_cleared_structure(collection, key, kind, fill):
    items = getattr(collection, f"couchbase_{kind}")(key)
    items.clear()
    fill(items)
    assert items.size() == 1
    items.clear()
    assert not collection.exists(key).exists
    assert items.size() == 0
    fill(items)
    assert items.size() == 1


def test_deprecated_lists(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.list_append(key, "b")
    collection.list_append(key, "b", create=True)
    collection.list_prepend(key, "a")
    collection.list_append(key, "c")
    collection.list_set(key, 1, "B")
    assert (collection.list_get(key, 1), collection.list_size(key)) == ("B", 3)
    with pytest.raises(IndexError):
        collection.list_set(key, 7, "x")
    collection.list_remove(key, 0)
    assert document(collection, key) == ["B", "c"]


def test_deprecated_maps(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.map_add(key, "one", 1)
    collection.map_add(key, "one", 1, create=True)
    collection.map_add(key, "two", 2)
    assert (collection.map_get(key, "two"), collection.map_size(key)) == (2, 2)
    collection.map_remove(key, "one")
    with pytest.raises(IndexError):
        collection.map_remove(key, "one")
    assert document(collection, key) == {"two": 2}


def test_deprecated_sets(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.set_add(key, "a")
    collection.set_add(key, "a", create=True)
    collection.set_add(key, "b")
    assert collection.set_add(key, "b") is None
    assert (collection.set_size(key), collection.set_contains(key, "b"), collection.set_contains(key, "c")) == (2, True, False)
    collection.set_remove(key, "a")
    collection.set_remove(key, "c")
    assert document(collection, key) == ["b"]


def test_deprecated_queues(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.queue_push(key, 1)
    collection.queue_push(key, 1, create=True)
    collection.queue_push(key, 2)
    assert (collection.queue_size(key), collection.queue_pop(key), collection.queue_pop(key), collection.queue_size(key)) == (2, 1, 2, 0)
    with pytest.raises(QueueEmpty):
        collection.queue_pop(key)


# Connections and transactions


def cluster_options(node, authenticator=PasswordAuthenticator, **changes):
    timeouts = ClusterTimeoutOptions(kv_timeout=KV_TIMEOUT, connect_timeout=timedelta(seconds=10))
    security = {} if node.kv else {"trust_store_path": str(node.authority)}
    return ClusterOptions(authenticator("Administrator", "password"), timeout_options=timeouts, **security, **changes)


@pytest.mark.parametrize("changes, has_tokens", [
    (dict(authenticator=PasswordAuthenticator.ldap_compatible), True),
    (dict(enable_mutation_tokens=False), False),
    (dict(enable_unordered_execution=False), True),
], ids=["PLAIN", "no mutation tokens", "in order"])
def test_options_of_a_connection(either_node, key, changes, has_tokens):
    with closing(Cluster(connection_string(either_node), cluster_options(either_node, **changes))) as cluster:
        collection = cluster.bucket("default").default_collection()
        written = collection.upsert(key, {"n": 1})
        read = collection.get(key)
        assert (read.content_as[dict], read.cas) == ({"n": 1}, written.cas)
        assert (written.mutation_token().sequence_number != 0) == has_tokens
        many = {f"{key}{number}": number for number in range(100)}
        assert collection.upsert_multi(many).all_ok
        assert {name: one.content_as[int] for name, one in collection.get_multi(list(many)).results.items()} == many


def test_asyncio(either_node, key):
    async def use():
        cluster = await AsyncCluster.connect(connection_string(either_node), cluster_options(either_node))
        try:
            bucket = cluster.bucket("default")
            await bucket.on_connect()
            collection = bucket.default_collection()
            written = await collection.upsert(key, {"n": 1})
            read = await collection.get(key)
            assert (read.content_as[dict], read.cas) == ({"n": 1}, written.cas)
            names = [f"{key}{number}" for number in range(100)]
            await asyncio.gather(*(collection.upsert(name, name) for name in names))
            assert [one.content_as[str] for one in await asyncio.gather(*map(collection.get, names))] == names
            with pytest.raises(DocumentNotFoundException):
                await collection.get(MISSING)
        finally:
            await cluster.close()

    asyncio.run(use())


def test_a_transaction_over_collections_keeps_its_record_in_another(node, shop, keys):
    keyspace = TransactionKeyspace(bucket="default", scope="shop", collection="records")
    with closing(connect_for_transactions(connection_string(node), None, metadata_collection=keyspace)) as cluster:
        bucket = cluster.bucket("default")
        orders, stock, records = map(bucket.scope("shop").collection, ("orders", "stock", "records"))
        stock.upsert(keys[1], {"n": 1})
        orders.upsert(keys[2], {"n": 4})
        seen = []

        def logic(attempt):
            attempt.replace(attempt.get(stock, keys[1]), {"n": 2})
            # COMPAT: the SDK finds nothing at all if two of the documents are staged in the transaction.
            read = attempt.get_multi([TransactionGetMultiSpec(*where) for where in ((orders, keys[2]), (stock, keys[1]), (orders, keys[1]))])
            found = [read.content_as[dict](index) if read.exists(index) else None for index in range(3)]
            attempt.insert(orders, keys[0], {"n": 3})
            trace = staged(orders, keys[0])
            kept = [recorded(collection, trace) for collection in (records, bucket.default_collection())]
            seen[:] = [found, document(stock, keys[1]), (trace["atr"]["scp"], trace["atr"]["coll"]), kept]

        assert cluster.transactions.run(logic).unstaging_complete
        assert seen == [[{"n": 4}, {"n": 2}, None], {"n": 1}, ("shop", "records"), [True, False]]
        assert (document(orders, keys[0]), document(stock, keys[1]), staged(orders, keys[0])) == ({"n": 3}, {"n": 2}, None)
