"""Checks whether the history of one key is linearizable, for a server that loses data when it is killed.

The search is Wing and Gong's: try each of the operations that may come next in time; memoise (operations done, state)
so that nothing is tried twice. No operation spans an exit of the server, so a history is a list of epochs, and the
states in which one may end are those in which the next may begin:

    state      current version, versions it may fall back to, writes with a level that may still be committed
    write      the old version becomes a fallback
    persisted  an acknowledged durable write leaves no fallback
    kill       any of these becomes current; whatever was found after the kill is on disk
    stop       a clean stop: current stays

An operation without an answer may have happened once or not at all: a plain one before the kill, a durable one also
after it, if its prepare was recovered. A version is identified by the operation that wrote it, so equal values and CAS
values of different writes are distinct.
"""

import dataclasses

KILL, STOP = "kill", "stop"
GET, SET, ADD, CAS, DELETE, COUNT = "get", "set", "add", "cas", "delete", "count"
# Answers.
DONE, MISSING, EXISTS, UNKNOWN = "done", "missing", "exists", "unknown"
NEVER = float("inf")
PERSIST_LEVELS = (2, 3)


@dataclasses.dataclass(frozen=True)
class Operation:
    """`value` was written or read (a number for COUNT: the answer); `cas` was in the answer; `expected_cas` in the
    request."""

    kind: str
    called: float
    returned: float
    answer: str
    value: object = None
    cas: int | None = None
    expected_cas: int | None = None
    level: int = 0
    delta: int = 1

    @property
    def is_unknown(self):
        return self.answer == UNKNOWN

    @property
    def is_kept(self):
        """Acknowledged as persisted."""
        return self.level in PERSIST_LEVELS and not self.is_unknown


@dataclasses.dataclass(frozen=True)
class Version:
    """A value and its CAS; `cas` is None until a client has received it."""

    value: object
    cas: int | None
    writer: int


ABSENT = Version(None, None, -1)


@dataclasses.dataclass(frozen=True)
class State:
    current: Version
    fallbacks: frozenset = frozenset()
    # Writes of earlier epochs (operation numbers) whose prepares may still be committed.
    recovered: frozenset = frozenset()


class NotLinearizable(Exception):
    pass


class Checker:
    """Checks the history of one key, epoch by epoch."""

    def __init__(self):
        self.states, self.everything, self.told = {State(ABSENT)}, {}, set()
        self.last = []

    def epoch(self, operations, end):
        """Adds the operations of one epoch, and how it ended, KILL or STOP. Raises NotLinearizable with what could not
        be ordered."""
        operations = list(enumerate(sorted(operations, key=lambda one: one.called), len(self.everything)))
        self.everything.update(operations)
        self.told |= {one.cas for _, one in operations if one.cas and one.kind != GET and not one.is_unknown}
        ends, furthest = explore(operations, self.states, self.everything, self.told)
        if not ends:
            raise NotLinearizable("\n  ".join(["nothing explains", *map(str, furthest), "after", *map(str, self.last[-12:]), "which may have left", *map(str, self.states)]))
        self.states = {after for state in ends for after in ended(state, end)}
        self.last = [one for _, one in operations] + [end]


def check(epochs):
    """Checks a whole history: a list of (operations, KILL or STOP)."""
    checker = Checker()
    for operations, end in epochs:
        checker.epoch(operations, end)


def ended(state, end):
    """The states in which the next epoch may begin."""
    if end == STOP:
        yield State(state.current, recovered=state.recovered)
        return
    for version in {state.current, *state.fallbacks}:
        yield State(version, recovered=state.recovered)


def explore(operations, begins, everything, told):
    """All states in which an epoch may end; if there are none, the operations that blocked the search at its furthest
    point."""
    places = {number: at for at, (number, _) in enumerate(operations)}
    ends, seen, furthest = set(), set(), (-1, [])
    stack = [(0, state) for state in begins]
    while stack:
        done, state = stack.pop()
        if (done, state) in seen:
            continue
        seen.add((done, state))
        # The earliest return of a waiting operation bounds which may be done next.
        waiting = [(number, one) for number, one in operations if not done >> places[number] & 1]
        first_return = min((one.returned for _, one in waiting if not one.is_unknown), default=NEVER)
        if all(one.is_unknown for _, one in waiting):
            # The durable ones among them may be done later, or never.
            later = frozenset(number for number, one in waiting if one.level)
            ends.add(State(state.current, state.fallbacks, state.recovered | later))
        progressed = False
        for number, one in waiting:
            if one.called > first_return:
                break
            for after in apply(state, number, one, told):
                progressed = True
                stack.append((done | 1 << places[number], after))
        for number in state.recovered:
            for after in apply(State(state.current, state.fallbacks, state.recovered - {number}), number, everything[number], told):
                stack.append((done, after))
        if not progressed and done.bit_count() > furthest[0]:
            blocked = [one for _, one in waiting if one.called <= first_return]
            furthest = done.bit_count(), [f"current {state.current}, may fall back to {len(state.fallbacks)}", *blocked[:6]]
    return ends, furthest[1]


def apply(state, number, one, told):
    """The states after an operation; none if this state cannot give that answer."""
    current = state.current
    is_there = current.value is not None
    if one.kind == GET:
        if one.answer == MISSING:
            return [state] if not is_there else []
        if not is_there or one.value != current.value or not same_cas(current, one.cas, told):
            return []
        return [with_cas(state, one.cas)]
    if one.answer == UNKNOWN:
        return [after(state, number, one, value) for value in effects(one, current, told)]
    if one.kind == DELETE:
        if one.answer == MISSING:
            # Nothing was written, so nothing was persisted, whatever the level.
            return [] if is_there else [state]
        return [after(state, number, one, None)] if is_there else []
    if one.kind == ADD:
        if one.answer == EXISTS:
            return [state] if is_there else []
        return [] if is_there else [after(state, number, one, one.value)]
    if one.kind == CAS:
        if one.answer == MISSING:
            return [] if is_there else [state]
        matches = is_there and same_cas(current, one.expected_cas, told)
        if one.answer == EXISTS:
            # A CAS that no client has received may be the expected one, or another.
            return [state] if is_there and (not matches or current.cas is None) else []
        return [after(with_cas(state, one.expected_cas), number, one, one.value)] if matches else []
    if one.kind == COUNT:
        expected = one.delta + current.value if isinstance(current.value, int) else 0 if not is_there else None
        return [after(state, number, one, one.value)] if one.value == expected else []
    return [after(state, number, one, one.value)] if one.answer == DONE else []


def effects(one, current, told):
    """The versions that an operation without an answer may produce, if it changes anything."""
    is_there = current.value is not None
    if one.kind == SET or one.kind == ADD and not is_there:
        return [one.value]
    if one.kind == CAS and is_there and same_cas(current, one.expected_cas, told):
        return [one.value]
    if one.kind == DELETE and is_there:
        return [None]
    if one.kind == COUNT:
        return [current.value + one.delta if isinstance(current.value, int) else 0] if not is_there or isinstance(current.value, int) else []
    return []


def same_cas(version, cas, told):
    """Returns true if a version may have this CAS: the one that was returned for it, or if none was, one not returned
    for any other."""
    return version.cas == cas if version.cas is not None else cas not in told


def with_cas(state, cas):
    if state.current.cas is not None or cas is None:
        return state
    return dataclasses.replace(state, current=dataclasses.replace(state.current, cas=cas))


def after(state, number, one, value):
    version = Version(value, None if one.is_unknown else one.cas, number) if value is not None else ABSENT
    # A recovered prepare blocks writes to the key: an acknowledged write comes after it.
    recovered = state.recovered if one.is_unknown else frozenset()
    return State(version, frozenset() if one.is_kept else state.fallbacks | {state.current}, recovered)
