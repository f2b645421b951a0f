"""The soak's checks detect the faults they are meant for."""

import dataclasses
import socket
import threading
import time

from . import __main__ as soak
from . import batches, values
from .shadow import CUT_WRITE_LANDS_WITHIN_S, LATE_S, Shadow
from .values import MEBIBYTE
from .watch import Sample

BUDGET = 100 * MEBIBYTE


def samples(*pairs, evicted=1):
    return [Sample(n, int(resident * BUDGET), int(live * BUDGET), 0, 0, 0, 0, evicted, 0.0) for n, (resident, live) in enumerate(pairs)]


def test_a_damaged_value_is_noticed():
    for length in (0, 1, 15, 16, 17, 65536, 65537, 3_000_000):
        good = values.pattern(b"k", length)
        assert len(good) == length and values.problem(b"k", good, values.flags(b"k")) is None
    good = values.pattern(b"k", 1000)
    for bad in (good[:-1], good[:500] + b"\0" + good[501:], values.pattern(b"other", 1000), good[1:] + good[:1]):
        assert "never written" in values.problem(b"k", bad, values.flags(b"k"))
    assert "flags" in values.problem(b"k", good, 0)


def test_a_wrong_hit_is_noticed():
    shadow, now = Shadow(), time.monotonic()
    assert "never written" in shadow.problem(b"k", 5, now)
    shadow.wrote(b"k", 5, None)
    assert shadow.problem(b"k", 5, now) is None
    assert "written last" in shadow.problem(b"k", 6, now)
    shadow.wrote(b"k", 6, now + 1)
    assert "written last" in shadow.problem(b"k", 5, now)
    assert shadow.problem(b"k", 6, now + 1 + LATE_S - 0.1) is None
    assert "after it expired" in shadow.problem(b"k", 6, now + 1 + LATE_S + 0.1)
    shadow.touched(b"k", None)
    assert shadow.problem(b"k", 6, now + 100) is None
    assert "lost" in shadow.loss(b"k", now)
    shadow.touched(b"k", now + 10)
    assert "lost" in shadow.loss(b"k", now) and shadow.loss(b"k", now + 10 - LATE_S) is None
    shadow.removed(b"k")
    assert "deleted" in shadow.problem(b"k", 6, now) and shadow.loss(b"k", now) is None


def test_a_cut_write_leaves_both_possible():
    shadow, now = Shadow(), time.monotonic()
    shadow.wrote(b"k", 5, None)
    shadow.maybe_wrote(b"k", 9, None)
    assert shadow.problem(b"k", 5, now) is None and shadow.problem(b"k", 9, now) is None
    shadow.wrote(b"k", 7, None)
    assert shadow.problem(b"k", 9, now) is None, "the cut write may land after the later one"
    assert "written last" in shadow.problem(b"k", 5, now)


def test_the_expiry_of_a_cut_write_counts_from_when_it_lands():
    shadow, now = Shadow(), time.monotonic()
    shadow.maybe_wrote(b"k", 9, now + 1)
    last = now + 1 + CUT_WRITE_LANDS_WITHIN_S + LATE_S
    assert shadow.problem(b"k", 9, last) is None
    assert "after it expired" in shadow.problem(b"k", 9, last + 1)


def test_memory_over_the_budget_is_noticed():
    assert soak.judge_memory(samples((0.5, 0.4), evicted=0) + samples((1.04, 0.9), (1.04, 0.71)), BUDGET) == []
    assert "resident memory over" in soak.judge_memory(samples((1.06, 0.9)), BUDGET)[0]
    assert "never full" in soak.judge_memory(samples((0.9, 0.8), evicted=0), BUDGET)[0]
    assert soak.judge_memory(samples((0.9, 0.6), evicted=0) + samples((0.9, 0.8)), BUDGET) == []
    assert "live bytes under" in soak.judge_memory(samples((0.9, 0.8), (0.9, 0.69)), BUDGET)[0]
    # Memory in transit is not available for documents, but does not excuse fewer than fit beside it.
    for live, problems in ((0.64, 0), (0.62, 1)):
        transit = dataclasses.replace(samples((0.95, live))[0], in_flight=BUDGET // 10)
        assert len(soak.judge_memory([*samples((0.9, 0.8)), transit], BUDGET)) == problems


def test_a_postponed_retrieval_is_asked_again_over_a_new_connection():
    server = socket.create_server(("127.0.0.1", 0))
    got = []

    def serve():
        for answer in (b"SERVER_ERROR the value is not in memory, try again\r\n", b"END\r\n"):
            peer, _ = server.accept()
            with peer:
                got.append(peer.recv(65536))
                peer.sendall(answer)

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    worker = batches.Worker(1, b"k", 10, False)
    worker.connect(server.getsockname())
    worker.fetch([b"a", b"b"])
    serving.join(10)
    assert got == [b"get a b\r\n"] * 2
    assert worker.counts == {"postponed": 1, "fetch": 2, "hit": 0} and not worker.wrong
