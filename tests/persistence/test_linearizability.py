"""Histories of several clients on the same keys are linearizable, and the checker detects one that is not."""

import os

import pytest

from . import histories
from .linear import ADD, CAS, COUNT, DELETE, DONE, EXISTS, GET, KILL, MISSING, NEVER, SET, STOP, UNKNOWN, NotLinearizable, Operation, check

EPOCHS = int(os.environ.get("KV_LINEAR_EPOCHS", "40"))


def test_mixed_histories_with_kills(capsys):
    seed = int(os.environ.get("KV_SEED") or int.from_bytes(os.urandom(3), "big"))
    recorded = histories.record(EPOCHS, seed)
    operations = [one for history in recorded.values() for done, _ in history for one in done]
    assert len(operations) > 50 * EPOCHS
    # The load covered all kinds of operations.
    for kind in (GET, SET, ADD, CAS, DELETE, COUNT):
        assert any(one.kind == kind and one.answer == DONE for one in operations), kind
    for level in (1, 2, 3):
        assert any(one.level == level and one.answer == DONE for one in operations), level
    assert any(one.is_unknown for one in operations)


class Clock:
    """Builds histories: `then` is after everything so far, `beside` overlaps the last one."""

    def __init__(self):
        self.now, self.epochs = 0, [([], KILL)]

    def then(self, kind, answer=DONE, value=None, cas=None, beside=False, **named):
        self.now += 10
        called = self.now - 15 if beside else self.now
        returned = NEVER if answer == UNKNOWN else self.now + 5
        self.epochs[-1][0].append(Operation(kind, called, returned, answer, value, cas, **named))
        return self

    def end(self, how=KILL):
        self.epochs[-1] = (self.epochs[-1][0], how)
        self.epochs.append(([], KILL))
        return self


def two_writes():
    return Clock().then(SET, value="a", cas=1).then(SET, value="b", cas=2)


RIGHT = {
    "read the last write": two_writes().then(GET, value="b", cas=2),
    "either of two that overlap": Clock().then(SET, value="a", cas=1).then(SET, value="b", cas=2, beside=True).then(GET, value="a", cas=1),
    "a write without an answer is seen": Clock().then(SET, UNKNOWN, value="a").then(GET, value="a", cas=7).then(GET, value="a", cas=7),
    "a write without an answer is not seen": Clock().then(SET, UNKNOWN, value="a").then(GET, MISSING),
    "a write without an answer is seen late": Clock().then(SET, UNKNOWN, value="a").then(GET, MISSING).then(GET, value="a", cas=7),
    "a kill takes a plain write back": two_writes().end().then(GET, value="a", cas=1),
    "a kill takes both back": two_writes().end().then(GET, MISSING),
    "a kill takes a majority write back": Clock().then(SET, value="a", cas=1, level=1).end().then(GET, MISSING),
    "a kill leaves the persisted": Clock().then(SET, value="a", cas=1, level=3).then(SET, value="b", cas=2).end().then(GET, value="a", cas=1),
    "a miss persists no delete": Clock().then(SET, value="a", cas=1, level=3).then(DELETE, cas=2).then(DELETE, MISSING, level=3).end().then(GET, value="a", cas=1),
    "a stop leaves all": two_writes().end(STOP).then(GET, value="b", cas=2),
    "a prepare is recovered": Clock().then(SET, value="a", cas=1, level=3).then(SET, UNKNOWN, value="b", level=3).end().then(GET, value="a", cas=1).then(GET, value="b", cas=2),
    "cas of what was read": Clock().then(SET, UNKNOWN, value="a").then(GET, value="a", cas=7).then(CAS, value="b", cas=8, expected_cas=7),
    "cas of another": two_writes().then(CAS, EXISTS, value="c", expected_cas=1),
    "counters": Clock().then(COUNT, value=0, cas=1, delta=3).then(COUNT, value=3, cas=2, delta=3).then(COUNT, UNKNOWN, delta=2).then(COUNT, value=6, cas=4, delta=1),
    "add, delete, add": Clock().then(ADD, value="a", cas=1).then(ADD, EXISTS, value="b").then(DELETE, cas=2).then(DELETE, MISSING).then(ADD, value="c", cas=3),
}

WRONG = {
    "an old value": two_writes().then(GET, value="a", cas=1),
    "a value nobody wrote": two_writes().then(GET, value="c", cas=3),
    "another CAS": two_writes().then(GET, value="b", cas=1),
    "a lost write": Clock().then(SET, value="a", cas=1).then(GET, MISSING),
    "there and back": Clock().then(SET, value="a", cas=1).then(SET, value="b", cas=2, beside=True).then(GET, value="a", cas=1).then(GET, value="b", cas=2).then(GET, value="a", cas=1),
    "a write without an answer, twice": Clock().then(SET, UNKNOWN, value="a").then(GET, value="a", cas=7).then(SET, value="b", cas=8).then(GET, value="a", cas=7),
    "a persisted write is lost": Clock().then(SET, value="a", cas=1, level=2).end().then(GET, MISSING),
    "a persisted write is replaced by an older": Clock().then(SET, value="a", cas=1).then(SET, value="b", cas=2, level=3).end().then(GET, value="a", cas=1),
    "a persisted delete comes back": Clock().then(SET, value="a", cas=1, level=3).then(DELETE, cas=2, level=3).end().then(GET, value="a", cas=1),
    "a delete of what is not there": Clock().then(DELETE, cas=1),
    "a miss of what is there": Clock().then(SET, value="a", cas=1).then(DELETE, MISSING),
    "a stop loses a write": two_writes().end(STOP).then(GET, value="a", cas=1),
    "lost by the kill, back after it": two_writes().end().then(GET, value="a", cas=1).then(GET, value="b", cas=2),
    "lost by the first kill, back after the second": two_writes().end().then(GET, value="a", cas=1).end().then(GET, value="b", cas=2),
    "a plain write comes after the kill": Clock().then(SET, UNKNOWN, value="a").end().then(GET, MISSING).then(GET, value="a", cas=7),
    "an abort is undone": Clock().then(SET, UNKNOWN, value="a", level=3).end().then(SET, value="b", cas=2).then(GET, value="a", cas=3),
    "a cas that had to fail": two_writes().then(CAS, value="c", cas=3, expected_cas=1),
    "two cas of one": Clock().then(SET, value="a", cas=1).then(CAS, value="b", cas=2, expected_cas=1).then(CAS, value="c", cas=3, expected_cas=1, beside=True),
    "a counter skips": Clock().then(COUNT, value=0, cas=1).then(COUNT, value=2, cas=2),
    "a counter stands": Clock().then(COUNT, value=0, cas=1).then(COUNT, value=1, cas=2).then(COUNT, value=1, cas=3, beside=True),
    "two adds": Clock().then(ADD, value="a", cas=1).then(ADD, value="b", cas=2, beside=True),
    "two deletes": Clock().then(SET, value="a", cas=1).then(DELETE, cas=2).then(DELETE, cas=3, beside=True),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_checker_accepts(name):
    check(RIGHT[name].epochs)


@pytest.mark.parametrize("name", WRONG)
def test_the_checker_notices(name):
    with pytest.raises(NotLinearizable):
        check(WRONG[name].epochs)
