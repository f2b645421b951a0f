"""Replicas in trouble: connections that are cut, delayed and kept back, a full disk, a clock that is off by a day."""

import itertools
import random

import pytest

from tests import dcp
from tests import subdocument as sd
from tests.cluster import Cluster
from tests.frames import AMBIGUOUS, DELETE, NOT_FOUND, SUCCESS
from tests.persistence.bucket import http, wait_until
from tests.persistence.small_disk import SmallDisk
from tests.wire.test_replicas import KINDS, VB, Client

SEEDS = (1, 2)
A_DAY_AHEAD = ("env", "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1", "FAKETIME=+1d", "FAKETIME_DONT_FAKE_MONOTONIC=1")
DAY_NS = 86_400 * 10**9


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def pair(kind, tmp_path):
    """n2 has the replicas of n1, and reaches it through a relay."""
    with Cluster(tmp_path, 2, (f"default,{kind},128MiB",), relayed=("n1",)) as cluster:
        cluster.assign(["n1", "n2"])
        yield cluster


def write_all_kinds(client, node, seed):
    """Some of everything a stream has."""
    draw = random.Random(seed)
    for n in range(60):
        key = b"key-%d" % draw.randrange(12)
        match draw.randrange(6):
            case 0 | 1:
                assert client.set(key, b"v" * draw.choice((1, 90, 3000)), flags=n).status == SUCCESS
            case 2:
                assert client.set(key, b'{"n":%d}' % n, level=1, timeout_ms=60_000).status == SUCCESS
            case 3:
                assert client.ask(DELETE, key, vbucket=VB).status in (SUCCESS, NOT_FOUND)
            case 4:
                flags = sd.MKDOC
                assert client.subdocument(sd.DICT_UPSERT, key, b"_a", b"%d" % n, sd.XATTR, doc_flags=flags).status in (SUCCESS, NOT_FOUND)
            case 5:
                assert client.set(key, expiry=1).status == SUCCESS
        if n == 30:
            dcp.empty(node, "default")


@pytest.mark.parametrize("seed", SEEDS)
def test_connections_are_cut_at_all_boundaries_of_frames_and_within(pair, seed):
    """Each is cut a little later in its streams than the one before, and then from the beginning again."""
    relay, draw = pair.relays["n1"], random.Random(seed)
    with Client(pair["n1"]) as client:
        assert client.set(b"first", level=1).status == SUCCESS, "they are connected"
    relay.cuts = ((requests, draw.choice((0, 1, 23, 24, 30))) for requests in itertools.cycle(range(1, 9)))
    relay.sever()
    with Client(pair["n1"]) as client:
        write_all_kinds(client, pair["n1"], seed)
        assert relay.cut >= 8, relay.cut
        relay.cuts = iter(())
        pair.assert_equal("n1", "n2", [VB])
        assert client.set(b"after", level=1).status == SUCCESS
    assert pair["n1"].alive() and pair["n2"].alive()


def test_a_connection_that_is_cut_before_its_streams_is_made_again(pair):
    relay = pair.relays["n1"]
    with Client(pair["n1"]) as client:
        relay.delay_s = 0.01
        for n in range(8):
            assert client.set(b"key-%d" % n).status == SUCCESS
            relay.sever()
        relay.delay_s = 0
        pair.assert_equal("n1", "n2", [VB])


def test_a_slow_connection_makes_writes_late_and_loses_none(pair):
    with Client(pair["n1"]) as client:
        pair.relays["n1"].delay_s = 0.4
        assert client.set(b"in time", level=1, timeout_ms=20_000).status == SUCCESS
        assert client.set(b"late", level=1, timeout_ms=300).status == AMBIGUOUS
        assert client.set(b"plain").status == SUCCESS
        pair.relays["n1"].delay_s = 0
        pair.assert_equal("n1", "n2", [VB])
        # It came to nothing, or it came too late to be told.
        assert client.get(b"late") in (NOT_FOUND, b"value")


def test_what_an_older_connection_says_late_does_no_harm(pair, kind):
    """The acknowledgements of a connection arrive after the node has begun again on another one."""
    relay = pair.relays["n1"]
    with Client(pair["n1"]) as client:
        assert client.set(b"first", level=1).status == SUCCESS, "they are connected"
        held = relay.hold()
        assert held
        assert client.set(b"key", b"held", level=1, timeout_ms=300).status == AMBIGUOUS
        pair.kill("n2")
        pair.restart("n2")
        if kind == "ephemeral":
            pair.set_role("n2", state="replica", source="n1", topology=[["n1", "n2"]], term=1)
        written = lambda: client.set(b"key", b"again", level=1, timeout_ms=1000).status == SUCCESS
        wait_until(written, "a commit over the new connection")
        for connection in held:
            connection.go_on()
        for n in range(50):
            assert client.set(b"more-%d" % n, level=1).status == SUCCESS
        pair.assert_equal("n1", "n2", [VB])


@pytest.mark.parametrize("kind", ["persistent"])
def test_a_replica_with_a_full_disk_acknowledges_nothing_and_recovers(tmp_path, kind):
    value = random.Random(1).randbytes(20_000)
    with SmallDisk(tmp_path / "n2") as disk:
        disk.fill(14)
        with Cluster(tmp_path, 2, (f"default,{kind},128MiB",)) as cluster:
            cluster.assign(["n1", "n2"])
            with Client(cluster["n1"]) as client:
                assert client.set(b"before", level=3).status == SUCCESS
                for n in range(600):
                    assert client.set(b"key-%d" % n, value).status == SUCCESS, "the active is not held up"
                wait_until(lambda: http(cluster["n2"], "GET", "/health/ready")[0] == 503, "the trouble of n2", 60)
                for level in (1, 2, 3):
                    assert client.set(b"level-%d" % level, level=level, timeout_ms=500).status == AMBIGUOUS, level
                assert client.get(b"key-0") == value
                disk.free()
                written = lambda: client.set(b"again", level=3, timeout_ms=1000).status == SUCCESS
                wait_until(written, "a commit", 60)
                cluster.assert_equal("n1", "n2", [VB])
                cluster.kill("n2")
                cluster.restart("n2")
                cluster.assert_equal("n1", "n2", [VB])


def test_a_clock_that_is_a_day_ahead(tmp_path, kind):
    """The CAS of a key only grows, wherever it is written, and a timeout is measured by another clock."""
    with Cluster(tmp_path, 2, (f"default,{kind},128MiB",), wraps={"n2": A_DAY_AHEAD}) as cluster:
        cluster.assign(["n1", "n2"])
        with Client(cluster["n1"]) as client:
            first = client.set(b"key", level=1)
            assert first.status == SUCCESS
            assert client.set(b"in an hour", expiry=3600).status == SUCCESS
            cluster.pause("n2")
            assert client.set(b"ambiguous", level=1, timeout_ms=300).status == AMBIGUOUS
            cluster.go_on("n2")
            cluster.assert_equal("n1", "n2", [VB])
        cluster.take_over("n2", "n1", VB, [["n2", "n1"]])
        with Client(cluster["n2"]) as client:
            second = client.set(b"key", level=1)
            assert second.status == SUCCESS and second.cas > first.cas + DAY_NS // 2, "by its clock"
            # By its clock the hour is over.
            assert client.get(b"in an hour") == NOT_FOUND
            cluster.assert_equal("n2", "n1", [VB])
        cluster.take_over("n1", "n2", VB, [["n1", "n2"]])
        with Client(cluster["n1"]) as client:
            third = client.set(b"key", level=1)
            assert third.status == SUCCESS and third.cas > second.cas, "the CAS of a key is not lowered"
            cluster.assert_equal("n1", "n2", [VB])
