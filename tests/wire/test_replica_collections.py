"""Scopes and collections on several nodes, with real processes: which changes last, and whose count when they differ."""

import json
import random
import threading
import time

import pytest

from tests.cluster import Cluster
from tests.frames import (
    FEATURE_COLLECTIONS, FEATURE_SELECT_BUCKET, FEATURE_XERROR, GET, RE_COMMIT, SELECT_BUCKET, SUCCESS, UNKNOWN_COLLECTION, BinaryConnection,
    durability,
)
from tests.persistence.bucket import http, wait_until
from tests.wire.test_replicas import KINDS, VB

SCOPES = "/pools/default/buckets/default/scopes"
OF_DEFAULT = f"{SCOPES}/_default/collections"
KEYS = 40


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def three(kind, tmp_path):
    """n1 is active, n2 and n3 have its replicas. Few vBuckets: each has its part in every change."""
    with Cluster(tmp_path, 3, (), config=f'[[bucket]]\nname = "default"\nkind = "{kind}"\nmemory = "128MiB"\nvbuckets = 16\n') as cluster:
        cluster.assign(["n1", "n2", "n3"], ALL)
        yield cluster


ALL = (0, 15)


class Client(BinaryConnection):
    """Of a node, with keys in collections."""

    def __init__(self, node, bucket="default"):
        super().__init__(node.kv, timeout_s=30)
        self.hello(FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_COLLECTIONS)
        self.login()
        assert self.ask(SELECT_BUCKET, bucket.encode()).status == SUCCESS

    def set(self, collection, key, value=b"value", level=None, vb=VB, timeout_ms=None):
        framing = None if level is None else durability(level, timeout_ms)
        return self.store(leb128(collection) + key, value, vbucket=vb, framing=framing).status

    def get(self, collection, key, vb=VB):
        answer = self.ask(GET, leb128(collection) + key, vbucket=vb)
        return answer.value if answer.status == SUCCESS else answer.status


def leb128(number):
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(encoded + bytes([number]))


def manifest(node):
    status, body = http(node, "GET", SCOPES)
    assert status == 200, body
    return json.loads(body)


def ids(node):
    """Ids of the collections of the default scope, by name."""
    default, = (scope for scope in manifest(node)["scopes"] if scope["name"] == "_default")
    return {one["name"]: int(one["uid"], 16) for one in default["collections"] if one["name"] != "_default"}


def create(node, name):
    return http(node, "POST", OF_DEFAULT, f"name={name}")


def drop(node, name):
    return http(node, "DELETE", f"{OF_DEFAULT}/{name}")


def fill(node, collection, level=1):
    with Client(node) as client:
        for n in range(KEYS):
            assert client.set(collection, b"key-%d" % n, level=level, vb=n % 16) == SUCCESS


def assert_filled(node, collection):
    with Client(node) as client:
        for n in range(KEYS):
            read = lambda: client.get(collection, b"key-%d" % n, vb=n % 16)
            # What the node before had prepared is being committed.
            wait_until(lambda: read() != RE_COMMIT, "the commit")
            assert read() == b"value", n


def promote(cluster, new, others, term):
    """The rule of docs/replication.md, for a node that has everything: a promise of each first."""
    chain = [new, *others]
    for name in chain:
        if cluster[name].alive():
            cluster.set_role(name, ALL, term=term, source="")
    cluster.set_role(new, ALL, state="active", topology=[chain], term=term)
    for name in others:
        if cluster[name].alive():
            follow(cluster, name, new, chain, term)


def follow(cluster, name, active, chain, term):
    cluster.set_role(name, ALL, state="replica", source=active, topology=[chain], term=term)


def wait_same(cluster, active, replica):
    wait_until(lambda: manifest(cluster[active]) == manifest(cluster[replica]), f"the manifest of {active} on {replica}")
    cluster.assert_equal(active, replica, range(16))


def cut_off(cluster):
    """The replicas hear nothing more of n1."""
    for name in ("n2", "n3"):
        cluster.set_role(name, ALL, source="")


def change_unheard(cluster, change, name):
    """A change that n1 makes while nobody hears of it. It is not acknowledged when n1 is killed."""
    cut_off(cluster)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(attempt(change, cluster["n1"], name)))
    before = manifest(cluster["n1"])
    thread.start()
    wait_until(lambda: manifest(cluster["n1"]) != before, "the change on n1")
    lost = ids(cluster["n1"])
    cluster.kill("n1")
    thread.join()
    assert answers == [None], "nothing was acknowledged"
    return lost


def attempt(change, node, name):
    """The status; `None` if there was no answer."""
    try:
        return change(node, name)[0]
    except OSError:
        return None


def test_a_change_is_acknowledged_by_a_majority(three):
    """What was answered with 200 is there after any failover, at once."""
    assert create(three["n1"], "a")[0] == 200
    three.kill("n1")
    promote(three, "n2", ["n3", "n1"], 2)
    a = ids(three["n2"])["a"]
    fill(three["n2"], a)
    assert drop(three["n2"], "a")[0] == 200
    three.kill("n2")
    three.restart("n1")
    # Of the two that are left, n3 has acknowledged.
    promote(three, "n3", ["n1", "n2"], 3)
    assert ids(three["n3"]) == {}
    with Client(three["n3"]) as client:
        assert client.set(a, b"key") == UNKNOWN_COLLECTION
    wait_same(three, "n3", "n1")


def test_a_change_that_reaches_no_majority_is_told_and_the_next_one_refused(three):
    cut_off(three)
    began = time.monotonic()
    status, body = create(three["n1"], "a")
    assert status == 504 and "for 0 of 16 vBuckets" in body and "failover" in body, (status, body)
    assert time.monotonic() - began >= 10
    status, body = create(three["n1"], "b")
    assert status == 503 and "majority" in body, (status, body)
    assert list(ids(three["n1"])) == ["a"], "it is made, and the other is not"
    # One of the two suffices.
    follow(three, "n2", "n1", ["n1", "n2", "n3"], 1)
    assert create(three["n1"], "b")[0] == 200
    wait_same(three, "n1", "n2")
    assert sorted(ids(three["n2"])) == ["a", "b"]
    # And so does nobody, for a chain of one.
    three.set_role("n1", ALL, topology=[["n1"]])
    three.set_role("n2", ALL, source="")
    assert drop(three["n1"], "a")[0] == 200


def test_a_change_is_sent_on_to_the_node_that_makes_it(three):
    assert create(three["n2"], "a")[0] == 200
    status, body = create(three["n3"], "a")
    assert status == 400 and "already exists" in body, (status, body)
    assert list(ids(three["n1"])) == ["a"]
    wait_same(three, "n1", "n2")
    assert http(three["n2"], "DELETE", f"{OF_DEFAULT}/a", login="Administrator:wrong")[0] == 401
    three.kill("n1")
    status, body = create(three["n2"], "b")
    assert status == 504 and "n1" in body, (status, body)
    # Two nodes that each take the other for the active.
    three.set_role("n3", ALL, source="n2")
    three.set_role("n2", ALL, source="n3")
    status, body = create(three["n2"], "b")
    assert status == 409 and "active of vBucket 0" in body, (status, body)
    assert list(ids(three["n2"])) == ["a"]


def test_a_drop_that_nobody_heard_of_is_undone(three):
    assert create(three["n1"], "c1")[0] == 200
    c1 = ids(three["n1"])["c1"]
    fill(three["n1"], c1)
    assert change_unheard(three, drop, "c1") == {}
    promote(three, "n2", ["n3", "n1"], 2)
    assert ids(three["n2"]) == {"c1": c1}
    assert_filled(three["n2"], c1)
    three.restart("n1")
    follow(three, "n1", "n2", ["n2", "n3", "n1"], 2)
    wait_same(three, "n2", "n1")
    # n1 is a full member: with n3 lost it makes the majority.
    three.kill("n3")
    fill(three["n2"], c1)
    assert create(three["n2"], "c2")[0] == 200
    three.kill("n2")
    promote(three, "n1", ["n3", "n2"], 3)
    assert_filled(three["n1"], c1)
    assert "see docs" not in three["n1"].log()


def test_a_collection_that_nobody_heard_of_is_undone_and_its_id_is_another(three):
    assert create(three["n1"], "c1")[0] == 200
    lost = change_unheard(three, create, "c2")["c2"]
    promote(three, "n2", ["n3", "n1"], 2)
    assert create(three["n2"], "other")[0] == 200
    other = ids(three["n2"])["other"]
    assert other != lost
    fill(three["n2"], other)
    three.restart("n1")
    follow(three, "n1", "n2", ["n2", "n3", "n1"], 2)
    wait_same(three, "n2", "n1")
    three.kill("n3")
    fill(three["n2"], other)
    # Alone it could not commit again what it has not heard the end of.
    wait_same(three, "n2", "n1")
    three.kill("n2")
    promote(three, "n1", ["n3", "n2"], 3)
    assert sorted(ids(three["n1"])) == ["c1", "other"]
    assert_filled(three["n1"], other)
    with Client(three["n1"]) as client:
        assert client.set(lost, b"key") == UNKNOWN_COLLECTION


def test_the_term_of_a_manifest_survives_restarts(three):
    assert create(three["n1"], "c1")[0] == 200
    uids = [int(manifest(three["n1"])["uid"], 16)]
    promote(three, "n2", ["n1", "n3"], 5)
    assert create(three["n2"], "c2")[0] == 200
    uids.append(int(manifest(three["n2"])["uid"], 16))
    for name in ("n1", "n2", "n3"):
        three[name].stop()
        three.restart(name)
    promote(three, "n3", ["n1", "n2"], 6)
    uids.append(int(manifest(three["n3"])["uid"], 16))
    assert create(three["n3"], "c3")[0] == 200
    uids.append(int(manifest(three["n3"])["uid"], 16))
    assert uids == sorted(set(uids))
    wait_same(three, "n3", "n1")
    wait_same(three, "n3", "n2")
    assert sorted(ids(three["n1"])) == ["c1", "c2", "c3"] and len(set(ids(three["n1"]).values())) == 3


def test_the_active_of_vbucket_0_makes_the_changes_for_all(three):
    """Whatever the terms of other vBuckets are, and wherever these are active."""
    lower, upper = (0, 7), (8, 15)
    chain = ["n2", "n1", "n3"]
    three.set_role("n2", upper, state="active", topology=[chain], term=5, source="")
    for name in ("n1", "n3"):
        three.set_role(name, upper, state="replica", source="n2", topology=[chain], term=5)
    assert create(three["n1"], "a")[0] == 200
    assert create(three["n2"], "b")[0] == 200
    for name in ("n2", "n3"):
        wait_until(lambda: manifest(three["n1"]) == manifest(three[name]), "one manifest")
    assert sorted(ids(three["n1"])) == ["a", "b"]
    for active, vb in (("n1", 0), ("n2", 15)):
        with Client(three[active]) as client:
            for id in (0, *ids(three[active]).values()):
                assert client.set(id, b"key", level=1, vb=vb) == SUCCESS
    # The one that takes over vBucket 0 in a lower term than that of the others makes them from then on.
    three.set_role("n3", lower, term=2, source="")
    three.set_role("n2", lower, state="active", topology=[chain], term=2, source="")
    for name in ("n1", "n3"):
        three.set_role(name, lower, state="replica", source="n2", topology=[chain], term=2)
    assert drop(three["n1"], "a")[0] == 200
    for name in ("n1", "n3"):
        wait_until(lambda: manifest(three["n2"]) == manifest(three[name]), "one manifest")
        three.assert_equal("n2", name, range(16))
    assert list(ids(three["n2"])) == ["b"]


@pytest.mark.parametrize("seed", (1, 2))
def test_kills_at_any_moment_of_a_change(three, kind, seed):
    """The active is killed while it makes changes; another one takes over. What was answered with 200 lasts, no id means two
    collections, and whoever returns copies everything."""
    draw, term = random.Random(seed), 1
    active, others = "n1", ["n2", "n3"]
    expected, undecided, names = set(), set(), {}

    def note_ids(node):
        for name, id in ids(node).items():
            assert names.setdefault(id, name) == name, f"id {id} is {names[id]} and {name}"

    for turn in range(10):
        victim, stop = active, threading.Event()

        def change():
            for n in range(100):
                if stop.is_set():
                    return
                name = f"c-{turn}-{n}"
                undecided.add(name)
                if attempt(create, three[victim], name) != 200:
                    return
                undecided.discard(name)
                expected.add(name)
                if draw.randrange(2):
                    expected.discard(name)
                    undecided.add(name)
                    if attempt(drop, three[victim], name) != 200:
                        return
                    undecided.discard(name)

        thread = threading.Thread(target=change)
        thread.start()
        time.sleep(draw.uniform(0, 0.15))
        three.kill(victim)
        stop.set()
        thread.join()
        term += 1
        # The one that has more, by vBucket: both have promised the term before that is compared.
        for name in others:
            three.set_role(name, ALL, term=term, source="")
        most = lambda name: sum(three.role(name, vb)["complete_seqno"] for vb in range(16))
        best = [max(others, key=lambda name: three.role(name, vb)["complete_seqno"]) for vb in range(16)]
        active = max(others, key=most)
        if len({three.role(name, vb)["complete_seqno"] for name in others for vb in range(16) if best[vb] != name}) > 1 and any(
            three.role(active, vb)["complete_seqno"] < three.role(best[vb], vb)["complete_seqno"] for vb in range(16)
        ):
            # Each has something that the other lacks: the one catches up with the other first.
            other, = (name for name in others if name != active)
            three.set_role(other, ALL, state="active", topology=[[other]], term=term)
            follow(three, active, other, [other, active], term)
            wait_same(three, other, active)
            term += 1
        others = [name for name in three.names if name != active]
        chain = [active, *others]
        three.set_role(active, ALL, state="active", topology=[chain], term=term, source="")
        for name in others:
            if name != victim:
                follow(three, name, active, chain, term)
        note_ids(three[active])
        assert expected <= set(ids(three[active])) <= expected | undecided, turn
        expected, undecided = set(ids(three[active])), set()
        three.restart(victim)
        follow(three, victim, active, chain, term)
        for name in others:
            wait_same(three, active, name)
            note_ids(three[name])
