"""The official Couchbase SDK for Python: distributed transactions, and what is left of those that do not end; with and without TLS."""

import multiprocessing
import random
import threading
import time
from datetime import timedelta

import couchbase.subdocument as subdoc
import pytest
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import DocumentExistsException, DocumentNotFoundException, TransactionExpired, TransactionFailed, TransactionOperationFailed
from couchbase.options import (
    ClusterOptions,
    ClusterTimeoutOptions,
    LookupInOptions,
    TransactionConfig,
    TransactionGetOptions,
    TransactionInsertOptions,
    TransactionOptions,
    TransactionReplaceOptions,
)
from couchbase.transactions import TransactionGetMultiSpec
from couchbase.transcoder import RawBinaryTranscoder

from tests import servers
from tests.frames import BinaryConnection

from .cluster import KV_TIMEOUT, connection_string
from .test_durability_python import Chains

BUCKETS = ("default,ephemeral,256MiB", "p,persistent,256MiB")
PERSIST = ServerDurability(DurabilityLevel.PERSIST_TO_MAJORITY)
# The client that also removes what lost attempts have left.
CLEANER = {"cleanup_window": timedelta(seconds=3), "cleanup_lost_attempts": True}
CLEANED_WITHIN_S = 30
DOOMED_KV_TIMEOUT = timedelta(seconds=2)


def connect(address, authority, kv_timeout=KV_TIMEOUT, **transactions):
    timeouts = ClusterTimeoutOptions(kv_timeout=kv_timeout, kv_durable_timeout=kv_timeout)
    security = {"trust_store_path": str(authority)} if authority else {}
    login = PasswordAuthenticator("Administrator", "password")
    cluster = Cluster(address, ClusterOptions(login, timeout_options=timeouts, transaction_config=TransactionConfig(**transactions), **security))
    cluster.wait_until_ready(timedelta(seconds=20))
    return cluster


@pytest.fixture(scope="module")
def node(either_node):
    return either_node


@pytest.fixture(scope="module")
def cluster(node):
    one = connect(connection_string(node), node.authority, **CLEANER)
    yield one
    one.close()


@pytest.fixture(scope="module")
def run(cluster):
    return cluster.transactions.run


@pytest.fixture
def keys(request, collection):
    """Names of documents that do not exist."""
    names = [f"txn::{request.node.name}::{number}" for number in range(3)]
    for name in names:
        remove(collection, name)
    return names


def remove(collection, key):
    try:
        collection.remove(key)
    except DocumentNotFoundException:
        pass


def document(collection, key):
    """The document, or None if there is none."""
    try:
        return collection.get(key).value
    except DocumentNotFoundException:
        return None


def documents(collection, keys):
    return [document(collection, key) for key in keys]


def staged(collection, key):
    """What a transaction has left in the document, deleted or not; None if nothing."""
    try:
        found = collection.lookup_in(key, (subdoc.get("txn", xattr=True),), LookupInOptions(access_deleted=True))
    except DocumentNotFoundException:
        return None
    return found.value[0].get("value")


def recorded(collection, trace):
    """Returns true if the attempt that has left the trace is in its transaction record."""
    try:
        return collection.lookup_in(trace["atr"]["id"], (subdoc.exists(f"attempts.{trace['id']['atmpt']}", xattr=True),)).exists(0)
    except DocumentNotFoundException:
        return False


def attempt_state(collection, trace):
    found = collection.lookup_in(trace["atr"]["id"], (subdoc.get(f"attempts.{trace['id']['atmpt']}.st", xattr=True),))
    return found.value[0].get("value")


def stage(attempt, collection, inserted, replaced, removed):
    """Inserts one document, replaces the second and removes the third."""
    old, gone = attempt.get(collection, replaced), attempt.get(collection, removed)
    attempt.insert(collection, inserted, {"n": 1})
    attempt.replace(old, {"n": 2})
    attempt.remove(gone)


def prepare(collection, keys):
    for key in keys[1:]:
        collection.upsert(key, {"n": 1})


def repeated(run, logic):
    """The SDK does not begin another attempt after an operation of the logic has met a conflict: the caller repeats the transaction."""
    for _ in range(100):
        try:
            return run(logic)
        except TransactionFailed as error:
            if not isinstance(error.inner_cause, TransactionOperationFailed):
                raise
            time.sleep(random.uniform(0, 0.02))
    raise AssertionError("100 conflicts")


def until(condition, what):
    deadline = time.monotonic() + CLEANED_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {CLEANED_WITHIN_S} s: {what()}"
        time.sleep(0.2)


def test_commit(run, collection, keys):
    prepare(collection, keys)
    seen = []

    def logic(attempt):
        stage(attempt, collection, *keys)
        assert [attempt.get(collection, key).content_as[dict] for key in keys[:2]] == [{"n": 1}, {"n": 2}]
        with pytest.raises(DocumentNotFoundException):
            attempt.get(collection, keys[2])
        seen.append(documents(collection, keys))

    result = run(logic)
    assert result.unstaging_complete and result.transaction_id
    assert seen == [[None, {"n": 1}, {"n": 1}]], "nothing is visible before the commit"
    assert documents(collection, keys) == [{"n": 1}, {"n": 2}, None]
    assert [staged(collection, key) for key in keys] == [None] * 3


def test_an_exception_rolls_back(run, collection, keys):
    prepare(collection, keys)
    wanted, traces = ValueError("rollback wanted"), []

    def logic(attempt):
        stage(attempt, collection, *keys)
        traces.extend(staged(collection, key) for key in keys)
        raise wanted

    with pytest.raises(TransactionFailed) as raised:
        run(logic)
    assert raised.value.inner_cause is wanted
    assert [trace["op"]["type"] for trace in traces] == ["insert", "replace", "remove"]
    assert documents(collection, keys) == [None, {"n": 1}, {"n": 1}]
    until(lambda: not any(staged(collection, key) for key in keys), lambda: [staged(collection, key) for key in keys])
    until(lambda: not recorded(collection, traces[0]), lambda: traces[0])
    collection.insert(keys[0], {"n": 3})
    assert document(collection, keys[0]) == {"n": 3}


def test_a_staged_insert_is_invisible_to_all_but_its_transaction(run, collection, keys):
    def logic(attempt):
        attempt.insert(collection, keys[0], {"n": 1})
        assert not collection.exists(keys[0]).exists
        for read in (collection.get, collection.remove, lambda key: collection.touch(key, timedelta(seconds=9)), lambda key: collection.replace(key, 1)):
            with pytest.raises(DocumentNotFoundException):
                read(keys[0])
        with pytest.raises(DocumentNotFoundException):
            collection.lookup_in(keys[0], (subdoc.get("n"),))
        trace = staged(collection, keys[0])
        assert (trace["op"]["type"], trace["op"]["stgd"]) == ("insert", {"n": 1}) and recorded(collection, trace)

    run(logic)
    assert document(collection, keys[0]) == {"n": 1}


def test_insert_of_an_existing_document(run, collection, keys):
    collection.insert(keys[0], {"n": 1})
    with pytest.raises(TransactionFailed) as raised:
        run(lambda attempt: attempt.insert(collection, keys[0], {"n": 2}))
    assert isinstance(raised.value.inner_cause, DocumentExistsException)
    assert document(collection, keys[0]) == {"n": 1}


def test_get_of_a_missing_document_can_be_handled(run, collection, keys):
    def logic(attempt):
        with pytest.raises(DocumentNotFoundException):
            attempt.get(collection, keys[0])
        attempt.insert(collection, keys[0], {"n": 1})

    run(logic)
    assert document(collection, keys[0]) == {"n": 1}
    remove(collection, keys[0])
    with pytest.raises(TransactionFailed) as raised:
        run(lambda attempt: attempt.get(collection, keys[0]))
    assert isinstance(raised.value.inner_cause, DocumentNotFoundException)


def remove_and_insert(attempt, collection, key):
    attempt.remove(attempt.get(collection, key))
    attempt.insert(collection, key, {"n": 9})


def insert_remove_and_insert(attempt, collection, key):
    attempt.remove(attempt.insert(collection, key, {"n": 2}))
    attempt.insert(collection, key, {"n": 9})


@pytest.mark.parametrize("exists, changes, expected", [
    (False, lambda attempt, *where: attempt.replace(attempt.insert(*where, {"n": 2}), {"n": 9}), {"n": 9}),
    (False, lambda attempt, *where: attempt.replace(attempt.replace(attempt.insert(*where, {"n": 2}), {"n": 3}), {"n": 9}), {"n": 9}),
    (False, lambda attempt, *where: attempt.remove(attempt.insert(*where, {"n": 2})), None),
    (False, insert_remove_and_insert, {"n": 9}),
    (True, lambda attempt, *where: attempt.replace(attempt.replace(attempt.get(*where), {"n": 2}), {"n": 9}), {"n": 9}),
    (True, lambda attempt, *where: attempt.remove(attempt.replace(attempt.get(*where), {"n": 2})), None),
    (True, remove_and_insert, {"n": 9}),
], ids=["insert-replace", "insert-replace-replace", "insert-remove", "insert-remove-insert", "replace-replace", "replace-remove", "remove-insert"])
def test_several_changes_of_one_document(run, collection, keys, exists, changes, expected):
    if exists:
        collection.upsert(keys[0], {"n": 1})
    run(lambda attempt: changes(attempt, collection, keys[0]))
    assert document(collection, keys[0]) == expected
    assert staged(collection, keys[0]) is None


def test_a_key_is_inserted_again_and_again(run, collection, keys):
    for number in range(5):
        run(lambda attempt: attempt.insert(collection, keys[0], {"n": number}))
        assert document(collection, keys[0]) == {"n": number}
        run(lambda attempt: attempt.remove(attempt.get(collection, keys[0])))
        assert document(collection, keys[0]) is None


def test_many_documents(run, collection):
    names = [f"txn::many::{number}" for number in range(100)]
    for name in names:
        remove(collection, name)

    def insert(attempt):
        for number, name in enumerate(names):
            attempt.insert(collection, name, {"n": number})

    def double(attempt):
        for name in names:
            read = attempt.get(collection, name)
            attempt.replace(read, {"n": 2 * read.content_as[dict]["n"]})

    run(insert)
    run(double)
    assert documents(collection, names) == [{"n": 2 * number} for number in range(100)]


def test_get_multi(run, collection, keys):
    prepare(collection, keys)
    seen = []

    def logic(attempt):
        attempt.replace(attempt.get(collection, keys[1]), {"n": 2})
        read = attempt.get_multi([TransactionGetMultiSpec(collection, key) for key in keys])
        seen[:] = [read.content_as[dict](index) if read.exists(index) else None for index in range(3)]

    run(logic)
    assert seen == [None, {"n": 2}, {"n": 1}]


def test_binary_documents(run, collection, keys):
    raw, first, second = RawBinaryTranscoder(), bytes(range(256)), b"\x00not {json"

    def insert(attempt):
        attempt.insert(collection, keys[0], first, TransactionInsertOptions(transcoder=raw))

    def replace(attempt):
        read = attempt.get(collection, keys[0], TransactionGetOptions(transcoder=raw))
        assert read.content_as[bytes] == first
        attempt.replace(read, second, TransactionReplaceOptions(transcoder=raw))

    run(insert)
    assert collection.get(keys[0], transcoder=raw).value == first
    run(replace)
    assert collection.get(keys[0], transcoder=raw).value == second


def test_a_large_document(run, collection, keys):
    large = {"text": "x" * 5 * 1024 * 1024}
    run(lambda attempt: attempt.insert(collection, keys[0], large))
    run(lambda attempt: attempt.replace(attempt.get(collection, keys[0]), {**large, "n": 1}))
    assert document(collection, keys[0]) == {**large, "n": 1}


def test_attributes_of_the_user_are_kept(run, collection, keys):
    collection.upsert(keys[0], {"n": 1})
    collection.mutate_in(keys[0], (subdoc.upsert("meta", {"owner": "me"}, xattr=True),))
    run(lambda attempt: attempt.replace(attempt.get(collection, keys[0]), {"n": 2}))
    read = collection.lookup_in(keys[0], (subdoc.get("meta.owner", xattr=True), subdoc.get("$XTOC", xattr=True), subdoc.get("n")))
    assert [field["value"] for field in read.value] == ["me", ["meta"], 2]


def test_conflicting_transactions(run, collection, keys):
    writers, rounds = 3, 10
    collection.upsert(keys[0], {"n": 0})
    failures = []

    def increment(attempt):
        read = attempt.get(collection, keys[0])
        attempt.replace(read, {"n": read.content_as[dict]["n"] + 1})

    def writer():
        try:
            for _ in range(rounds):
                repeated(run, increment)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=writer) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert document(collection, keys[0]) == {"n": writers * rounds}
    assert staged(collection, keys[0]) is None


def test_concurrent_transfers(run, collection, keys):
    """Transactions move an amount between two documents, in both directions; each one that is committed has seen the same sum."""
    for key in keys[:2]:
        collection.upsert(key, {"n": 100})
    sums, failures = [], []

    def transfer(attempt, giver, taker, seen):
        one, other = attempt.get(collection, giver), attempt.get(collection, taker)
        amounts = [read.content_as[dict]["n"] for read in (one, other)]
        attempt.replace(one, {"n": amounts[0] - 1})
        attempt.replace(other, {"n": amounts[1] + 1})
        seen.append(sum(amounts))

    def mover(giver, taker, rounds):
        try:
            for _ in range(rounds):
                seen = []
                repeated(run, lambda attempt: transfer(attempt, giver, taker, seen))
                sums.append(seen[-1])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=mover, args=arguments) for arguments in ((keys[0], keys[1], 20), (keys[1], keys[0], 10))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and sums == [200] * 30
    assert documents(collection, keys[:2]) == [{"n": 90}, {"n": 110}]


def test_a_write_from_outside_is_not_lost(run, collection, keys):
    collection.upsert(keys[0], {"n": 0})
    outside = iter([lambda: collection.mutate_in(keys[0], (subdoc.increment("n", 10),))])

    def increment(attempt):
        read = attempt.get(collection, keys[0])
        next(outside, lambda: None)()
        attempt.replace(read, {"n": read.content_as[dict]["n"] + 1})

    repeated(run, increment)
    assert document(collection, keys[0]) == {"n": 11}


def test_expired(run, collection, keys):
    prepare(collection, keys)
    traces = []

    def logic(attempt):
        stage(attempt, collection, *keys)
        traces.append(staged(collection, keys[0]))
        time.sleep(1.5)

    with pytest.raises(TransactionExpired):
        run(logic, TransactionOptions(timeout=timedelta(seconds=1)))
    assert documents(collection, keys) == [None, {"n": 1}, {"n": 1}]
    until(lambda: not any(staged(collection, key) for key in keys), lambda: [staged(collection, key) for key in keys])
    until(lambda: not recorded(collection, traces[0]), lambda: traces[0])
    run(lambda attempt: stage(attempt, collection, *keys))
    assert documents(collection, keys) == [{"n": 1}, {"n": 2}, None]


def test_durability_persist_is_refused_on_an_ephemeral_bucket(run, collection, keys):
    prepare(collection, keys)
    with pytest.raises(TransactionFailed) as raised:
        run(lambda attempt: stage(attempt, collection, *keys), TransactionOptions(durability=PERSIST))
    assert "durability_level_not_available" in repr(raised.value.inner_cause)
    assert documents(collection, keys) == [None, {"n": 1}, {"n": 1}]


class Doomed:
    """A process that runs one transaction and is killed in the midst of it.

    It stages its changes and then waits for `go`, to end the transaction as it is told. It does not look for lost attempts, so that the cleaner need not
    share that work with a client that is gone."""

    def __init__(self, node, keys, bucket="default", durability=DurabilityLevel.MAJORITY, commits=True):
        spawning = multiprocessing.get_context("spawn")
        self.staged, self.go = spawning.Event(), spawning.Event()
        arguments = (connection_string(node), getattr(node, "authority", None), bucket, durability, keys, self.staged, self.go, commits)
        self.process = spawning.Process(target=live_and_wait, args=arguments)

    def __enter__(self):
        self.process.start()
        try:
            assert self.staged.wait(30), "nothing is staged"
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self):
        self.process.kill()
        self.process.join()

    def __exit__(self, *_):
        self.kill()


def live_and_wait(address, authority, bucket, durability, keys, ready, go, commits):
    config = {"cleanup_lost_attempts": False, "timeout": timedelta(seconds=3), "durability": ServerDurability(durability)}
    cluster = connect(address, authority, DOOMED_KV_TIMEOUT, **config)
    collection = cluster.bucket(bucket).default_collection()

    def logic(attempt):
        stage(attempt, collection, *keys)
        ready.set()
        go.wait(600)
        if not commits:
            raise ValueError("rollback wanted")

    cluster.transactions.run(logic)


def check_cleanup(run, collection, keys):
    """The cleaner removes the lost attempt from its record. What that has staged does not matter any more: nobody sees it, and anybody may replace it."""
    traces = [staged(collection, key) for key in keys]
    assert [trace["op"]["type"] for trace in traces] == ["insert", "replace", "remove"]
    assert documents(collection, keys) == [None, {"n": 1}, {"n": 1}] and recorded(collection, traces[0])
    # The first change in a bucket begins the search for lost attempts there.
    run(lambda attempt: attempt.insert(collection, f"{keys[0]}::{time.time_ns()}", {}))
    until(lambda: not recorded(collection, traces[0]), lambda: traces[0])
    assert documents(collection, keys) == [None, {"n": 1}, {"n": 1}]
    run(lambda attempt: stage(attempt, collection, *keys))
    assert documents(collection, keys) == [{"n": 1}, {"n": 2}, None]
    assert [staged(collection, key) for key in keys] == [None] * 3


def test_a_lost_attempt_is_removed(node, run, collection, keys):
    prepare(collection, keys)
    with Doomed(node, keys) as doomed:
        doomed.kill()
        check_cleanup(run, collection, keys)


def test_a_lost_attempt_keeps_nobody_from_writing(node, collection, keys):
    """Neither plain writes nor transactions wait for the cleanup: the attempt has expired."""
    prepare(collection, keys)
    with Doomed(node, keys) as doomed:
        doomed.kill()
    client = connect(connection_string(node), node.authority, cleanup_lost_attempts=False)
    try:
        for key, logic in (
            (keys[0], lambda attempt: attempt.insert(collection, keys[0], {"n": 3})),
            (keys[1], lambda attempt: attempt.replace(attempt.get(collection, keys[1]), {"n": 4})),
        ):
            until(lambda: succeeds(client.transactions.run, logic), lambda: staged(collection, key))
    finally:
        client.close()
    collection.upsert(keys[2], {"n": 5})
    assert documents(collection, keys) == [{"n": 3}, {"n": 4}, {"n": 5}]
    assert [staged(collection, key) for key in keys[:2]] == [None] * 2


def test_a_lost_insert_keeps_nobody_from_inserting(node, collection, keys):
    prepare(collection, keys)
    with Doomed(node, keys) as doomed:
        doomed.kill()
    assert staged(collection, keys[0])["op"]["type"] == "insert"
    collection.insert(keys[0], {"n": 3})
    assert document(collection, keys[0]) == {"n": 3} and staged(collection, keys[0]) is None


def succeeds(run, logic):
    try:
        run(logic)
        return True
    except TransactionFailed as error:
        assert isinstance(error.inner_cause, TransactionOperationFailed)
        return False


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_what_a_killed_process_has_begun_is_completed(commits):
    """The process dies when its decision is recorded, before all documents have followed: their writes wait for a replica that is absent."""
    keys = ["inserted", "replaced", "removed"]
    with servers.Dormouse() as node, BinaryConnection(node.kv) as connection:
        connection.open_bucket()
        chains = Chains(connection)
        client = connect(connection_string(node), None, **CLEANER)
        collection = client.bucket("default").default_collection()
        prepare(collection, keys)
        with Doomed(node, keys, commits=commits) as doomed:
            trace = staged(collection, keys[0])
            for key in keys[1:]:
                chains.break_off(key)
            doomed.go.set()
            until(lambda: attempt_state(collection, trace) != "PENDING", lambda: trace)
            time.sleep(0.2)
            doomed.kill()
        assert attempt_state(collection, trace) == ("COMMITTED" if commits else "ABORTED")
        # Until the server has given up the writes of the dead process.
        time.sleep(DOOMED_KV_TIMEOUT.total_seconds())
        for key in keys[1:]:
            chains.restore(key)
        assert all(staged(collection, key) for key in keys[1:])
        client.transactions.run(lambda attempt: attempt.insert(collection, "another", {}))
        until(lambda: not recorded(collection, trace), lambda: trace)
        assert documents(collection, keys) == ([{"n": 1}, {"n": 2}, None] if commits else [None, {"n": 1}, {"n": 1}])
        assert [staged(collection, key) for key in keys] == [None] * 3
        client.close()


class Persistent:
    """A node with a persistent bucket, which can be killed and started again."""

    def __init__(self, home):
        self.home = home
        self.cluster = self.node = None
        self.start()

    def start(self):
        self.node = servers.Dormouse(buckets=BUCKETS, home=self.home)
        self.cluster = connect(connection_string(self.node), None, durability=PERSIST, **CLEANER)
        self.collection = self.cluster.bucket("p").default_collection()
        self.run = self.cluster.transactions.run

    def kill(self):
        self.cluster.close()
        self.node.kill()

    def stop(self):
        self.cluster.close()
        self.node.stop()


@pytest.fixture
def persistent(tmp_path):
    one = Persistent(tmp_path)
    yield one
    one.stop()


def test_persisted(persistent):
    keys = ["inserted", "replaced", "removed"]
    prepare(persistent.collection, keys)
    persistent.run(lambda attempt: stage(attempt, persistent.collection, *keys))
    assert documents(persistent.collection, keys) == [{"n": 1}, {"n": 2}, None]
    persistent.kill()
    persistent.start()
    assert documents(persistent.collection, keys) == [{"n": 1}, {"n": 2}, None]
    assert [staged(persistent.collection, key) for key in keys] == [None] * 3


def test_a_lost_attempt_is_removed_after_a_restart_of_the_node(persistent):
    keys = ["inserted", "replaced", "removed"]
    prepare(persistent.collection, keys)
    with Doomed(persistent.node, keys, bucket="p", durability=DurabilityLevel.PERSIST_TO_MAJORITY) as doomed:
        doomed.kill()
    persistent.kill()
    persistent.start()
    check_cleanup(persistent.run, persistent.collection, keys)


def test_a_transaction_over_two_buckets(persistent):
    other = persistent.cluster.bucket("default").default_collection()
    prepare(persistent.collection, ["", "replaced"])

    def logic(attempt):
        attempt.replace(attempt.get(persistent.collection, "replaced"), {"n": 2})
        attempt.insert(other, "inserted", {"n": 1})
        assert (document(persistent.collection, "replaced"), document(other, "inserted")) == ({"n": 1}, None)

    persistent.run(logic, TransactionOptions(durability=ServerDurability(DurabilityLevel.MAJORITY)))
    assert (document(persistent.collection, "replaced"), document(other, "inserted")) == ({"n": 2}, {"n": 1})
