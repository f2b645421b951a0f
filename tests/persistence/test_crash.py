"""Kills: at random times (crash.py), and at critical points of prepares, aborts and flushes; and tests of the judge
itself."""

import os
import socket
import time

import pytest

from tests.frames import AMBIGUOUS, DELETE, GET, IN_PROGRESS, NOT_FOUND, RE_COMMIT, RESPONSE, SET, SUCCESS, BinaryConnection, durability, request

from . import crash
from .peer import ABSENT_REPLICA, ALONE, MAJORITY, PERSIST_TO_MAJORITY, Peer, token
from .values import chunk
from .versions import Ledger, Version

ROUNDS = int(os.environ.get("KV_CRASH_ROUNDS", "30"))


@pytest.mark.parametrize("load", crash.LOADS.values(), ids=crash.LOADS)
def test_kills_at_random_moments(load):
    seed = int(os.environ.get("KV_SEED") or int.from_bytes(os.urandom(3), "big"))
    rounds = ROUNDS * load.share // 100
    done = crash.run(rounds, seed, load)
    print(f"seed {seed}: {done.counts}")
    assert sum(done.counts.values()) > 20 * rounds
    if load.size_factor > 1:
        assert done.fetched > 0, "no value was ever ejected and fetched again"
    assert done.counts["observed"] > 0
    # The first segments were compacted away, and the files are only a few times the size of the live data.
    assert done.segments[0] > 1 and len(done.segments) < crash.SEGMENTS_MOST, done.segments


def await_persisted(peer, answer, vbucket):
    history, seqno = token(answer)
    deadline = time.monotonic() + 10
    while (seen := peer.observe(vbucket, history))[1] < seqno:
        assert time.monotonic() < deadline, seen
        time.sleep(0.005)


def reopen(node, start):
    node.kill()
    node = start()
    peer = Peer(node.kv)
    peer.await_warm_up()
    return node, peer


def test_what_observe_seqno_says_is_persisted_survives(start):
    node = start()
    with Peer(node.kv) as peer:
        for number in range(20):
            answer = peer.set(b"k%d" % number, chunk(f"{number}", 300))
            await_persisted(peer, answer, peer.vbucket(b"k%d" % number))
    node, peer = reopen(node, start)
    with peer:
        assert [peer.get(b"k%d" % n).value for n in range(20)] == [chunk(f"{n}", 300) for n in range(20)]


def test_an_abort_that_was_synced_is_final(start):
    node = start()
    with Peer(node.kv) as peer:
        key, vbucket = b"aborted", peer.vbucket(b"aborted")
        peer.set(key, b"old", PERSIST_TO_MAJORITY)
        peer.set_chain(vbucket, ABSENT_REPLICA)
        for level in (MAJORITY, PERSIST_TO_MAJORITY):
            assert peer.set(key, b"new", level, 50).status == AMBIGUOUS
            # The same key accepts a write again: the abort precedes it in the vBucket's order.
            deadline = time.monotonic() + 5
            while (answer := peer.set(key, b"old")).status == IN_PROGRESS:
                assert time.monotonic() < deadline
            assert answer.status == SUCCESS
            assert peer.set(key, b"new", level, 50).status == AMBIGUOUS
            # Another key of the vBucket, after the abort.
            other = next(b"other%d" % n for n in range(1000) if peer.vbucket(b"other%d" % n) == vbucket)
            time.sleep(0.05)
            await_persisted(peer, peer.set(other, b"x"), vbucket)
    node, peer = reopen(node, start)
    with peer:
        peer.stay_active()
        assert peer.get(key).value == b"old"
        peer.set_chain(vbucket, ALONE)
        assert peer.get(key).value == b"old"
        # Nothing is pending.
        assert peer.set(key, b"free", PERSIST_TO_MAJORITY).status == SUCCESS


def test_a_prepare_is_recovered_and_does_not_time_out(start):
    node = start()
    with Peer(node.kv) as peer, Peer(node.kv) as second:
        key, vbucket = b"pending", peer.vbucket(b"pending")
        peer.set(key, b"old", PERSIST_TO_MAJORITY)
        peer.set_chain(vbucket, ABSENT_REPLICA)
        second.send(request(SET, key, b"new", b"\0" * 8, vbucket=vbucket, framing=durability(MAJORITY, 1000)))
        other = next(b"other%d" % n for n in range(1000) if peer.vbucket(b"other%d" % n) == vbucket)
        time.sleep(0.05)
        await_persisted(peer, peer.set(other, b"x"), vbucket)
    for _ in range(2):
        node, peer = reopen(node, start)
        with peer:
            # The chain was journaled too; the prepare's timeout of a second is long over.
            time.sleep(1.2)
            peer.stay_active()
            # It may have been committed before: neither value is shown.
            assert peer.get(key).status == RE_COMMIT
            assert peer.set(key, b"other").status == RE_COMMIT
            assert peer.set(key, b"other", PERSIST_TO_MAJORITY, 100).status == RE_COMMIT
    with Peer(node.kv) as peer:
        peer.set_chain(vbucket, ALONE)
        deadline = time.monotonic() + 5
        while peer.get(key).value != b"new":
            assert time.monotonic() < deadline, peer.get(key)
            time.sleep(0.005)
        peer.store_persistent(vbucket)
    node, peer = reopen(node, start)
    with peer:
        assert peer.get(key).value == b"new"


@pytest.mark.parametrize("how", ("kill", "stop"))
def test_deletes_and_flushes_stay_deleted_through_compaction(start, how):
    node = start()
    for number in range(3):
        with Peer(node.kv) as peer, socket.create_connection(node.memcached) as text:
            for key in range(40):
                assert peer.set(b"flushed-%d" % key, chunk(f"{number}.{key}", 20_000)).status == SUCCESS
            for vbucket in range(peer.vbuckets):
                peer.store_persistent(vbucket)
            text.sendall(b"flush_all\r\n")
            assert text.recv(100) == b"OK\r\n"
            for key in range(20):
                assert peer.set(b"deleted-%d" % key, chunk(f"{number}.{key}", 20_000)).status == SUCCESS
            for vbucket in range(peer.vbuckets):
                peer.store_persistent(vbucket)
            for key in range(20):
                assert peer.ask(DELETE, b"deleted-%d" % key, vbucket=peer.vbucket(b"deleted-%d" % key)).status == SUCCESS
            # Enough for everything above to be rewritten or dropped.
            for round in range(25):
                for key in range(8):
                    assert peer.set(b"filler-%d" % key, chunk(f"{round}", 60_000)).status == SUCCESS
                for vbucket in range(peer.vbuckets):
                    peer.store_persistent(vbucket)
        if how == "kill":
            node.kill()
        else:
            assert node.stop() == 0
        node = start()
        with Peer(node.kv) as peer:
            peer.await_warm_up()
            there = [key for key in [b"flushed-%d" % n for n in range(40)] + [b"deleted-%d" % n for n in range(20)] if peer.get(key).status != NOT_FOUND]
            assert not there, there
            assert peer.get(b"filler-7").value == chunk("24", 60_000)
    segments = sorted(int(path.stem) for path in (node.data / crash.SHARD).glob("*.segment"))
    assert segments[0] > 1, f"nothing was compacted: {segments}"


def test_an_answer_that_a_kill_cuts_off_is_none():
    whole = request(GET, value=b"value", magic=RESPONSE)
    for cut in (10, len(whole) - 1):
        with socket.create_server(("127.0.0.1", 0)) as server, BinaryConnection(server.getsockname()) as connection:
            node, _ = server.accept()
            node.sendall(whole + whole[:cut])
            node.close()
            assert connection.response().value == b"value"
            assert connection.response() is None


# The judge.

KEY, OTHER = b"a", b"b"


def ledger():
    """Two keys of one vBucket; KEY: x at 1, y at 3 (CAS 10 and 30); OTHER: p at 2, q at 4."""
    book = Ledger([KEY, OTHER], lambda key: 0)
    for key, content, seqno in ((KEY, b"x", 1), (OTHER, b"p", 2), (KEY, b"y", 3), (OTHER, b"q", 4)):
        book.acknowledge(key, book.send(key, Version(chunk(content.decode()))), seqno * 10, 7, seqno, False)
    return book


def seen(content, cas):
    return None if content is None else (chunk(content), 0, 0, cas)


X, Y, P, Q = seen("x", 10), seen("y", 30), seen("p", 20), seen("q", 40)


@pytest.mark.parametrize("key, other", [(Y, Q), (Y, P), (X, P), (X, None), (None, None)])
def test_the_judge_accepts_what_a_crash_may_leave(key, other):
    ledger().judge({KEY: key, OTHER: other})


def test_the_judge_takes_a_miss_for_no_evidence():
    book = ledger()
    book.acknowledge(KEY, book.send(KEY, Version(None)), 50, 7, 5, False)
    book.acknowledge(OTHER, book.send(OTHER, Version(chunk("r"))), 60, 7, 6, False)
    book.judge({KEY: None, OTHER: None})
    with pytest.raises(AssertionError):
        book.judge({KEY: X, OTHER: seen("r", 60)})


@pytest.mark.parametrize(
    "key, other",
    [(X, Q), (None, P), (Y, None), (seen("z", 1), Q), (seen("y", 10), Q), ((b"12", 0, 0, 1), Q), ((Y[0][:-1], 0, 0, 30), Q), ((Y[0], 1, 0, 30), Q), ((Y[0], 0, 9, 30), Q)],
    ids=["a hole", "a hole at the beginning", "a hole at the end", "never written", "another CAS", "no value of ours", "torn", "flags", "expiry"],
)
def test_the_judge_notices(key, other):
    with pytest.raises(AssertionError):
        ledger().judge({KEY: key, OTHER: other})


def test_the_judge_notices_what_was_promised():
    book = ledger()
    book.observe(0, 3)
    book.judge({KEY: Y, OTHER: P})
    with pytest.raises(AssertionError, match="persisted"):
        book.judge({KEY: X, OTHER: P})
    book = ledger()
    book.versions[KEY][-1].kept = True
    with pytest.raises(AssertionError, match="acknowledged as persisted"):
        book.judge({KEY: X, OTHER: P})
    with pytest.raises(AssertionError, match="clean stop"):
        ledger().judge({KEY: Y, OTHER: P}, everything_kept=True)


def test_the_judge_notices_what_comes_back():
    book = ledger()
    limbo = book.send(KEY, Version(chunk("limbo")))
    limbo.ambiguous = True
    book.judge({KEY: seen("limbo", 99), OTHER: Q})
    book.acknowledge(KEY, book.send(KEY, Version(chunk("behind"))), 50, 7, 5, True)
    with pytest.raises(AssertionError):
        book.judge({KEY: seen("limbo", 99), OTHER: Q})
    book = ledger()
    book.flush({0: 4})
    book.judge({KEY: Y, OTHER: Q})
    book.judge({KEY: None, OTHER: None})
    book.acknowledge(KEY, book.send(KEY, Version(chunk("behind"))), 60, 7, 6, True)
    with pytest.raises(AssertionError):
        book.judge({KEY: seen("behind", 60), OTHER: Q})


def test_the_judge_notices_numbers_that_repeat():
    book = ledger()
    with pytest.raises(AssertionError, match="CAS"):
        book.acknowledge(KEY, book.send(KEY, Version(b"1")), 40, 7, 5, False)
    with pytest.raises(AssertionError, match="seqno"):
        book.acknowledge(KEY, book.send(KEY, Version(b"1")), 41, 7, 4, False)
