"""Durable writes with an absent replica: the answers meanwhile, their order, and the outcome."""

import json
import struct
import time
import urllib.parse
import urllib.request

import pytest

from tests.frames import (
    AMBIGUOUS, APPEND, BARRIER, FEATURE_SELECT_BUCKET, FEATURE_UNORDERED, FEATURE_XERROR, GET, GET_VBUCKET, GETQ, IMPOSSIBLE, IN_PROGRESS,
    NOOP, NOT_FOUND, NOT_MY_VBUCKET, QUIT, SET, SET_VBUCKET, SETQ, STAT, SUCCESS, BinaryConnection, durability, request,
)

EXTRAS = struct.pack(">II", 0, 0)
ABSENT = [["us", "absent"]]
IN_ORDER = (FEATURE_XERROR, FEATURE_SELECT_BUCKET)
UNORDERED = (*IN_ORDER, FEATURE_UNORDERED)
# One vBucket per test, so that they do not interfere.
A, B, C = 1, 2, 3


def durable(key, value, vbucket, timeout_ms=8000, opaque=0, level=1, opcode=SET):
    return request(opcode, key, value, EXTRAS, vbucket=vbucket, opaque=opaque, framing=durability(level, timeout_ms))


def store(key, value, vbucket, opaque=0, framing=None):
    return request(SET, key, value, EXTRAS, vbucket=vbucket, opaque=opaque, framing=framing)


def get(key, vbucket, opaque=0):
    return request(GET, key, vbucket=vbucket, opaque=opaque)


@pytest.fixture(params=[IN_ORDER, UNORDERED], ids=["in order", "unordered"])
def either(request, node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket(features=request.param)
        yield one


@pytest.fixture
def in_order(node):
    with BinaryConnection(node.kv) as one:
        one.open_bucket(features=IN_ORDER)
        yield one


@pytest.fixture
def unordered(node):
    with BinaryConnection(node.kv) as one:
        assert FEATURE_UNORDERED in one.open_bucket(features=UNORDERED)
        yield one


@pytest.fixture
def other(node):
    """Another connection; restores all vBuckets afterwards."""
    with BinaryConnection(node.kv) as one:
        one.open_bucket()
        for vbucket in (A, B, C):
            set_chains(one, vbucket, ABSENT)
            for key in (b"a", b"b", b"c"):
                one.ask(4, key, vbucket=vbucket)
        yield one
        for vbucket in (A, B, C):
            set_chains(one, vbucket, None)


def set_chains(connection, vbucket, chains, state=1):
    done = connection.ask(SET_VBUCKET, extras=bytes([state]), value=json.dumps({"topology": chains}).encode(), vbucket=vbucket)
    assert done.status == SUCCESS, done


def commit(connection, vbucket):
    set_chains(connection, vbucket, None)
    set_chains(connection, vbucket, ABSENT)


def answers(connection, count):
    return [connection.response() for _ in range(count)]


def silent(connection, for_s=0.1):
    connection.socket.settimeout(for_s)
    try:
        return not connection.socket.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.socket.settimeout(10)


def test_a_pending_write_is_invisible_and_excludes_others(either, other):
    assert other.store(b"a", b"old", vbucket=A).status == SUCCESS
    either.send(durable(b"a", b"new", A))
    assert silent(either)
    assert other.ask(GET, b"a", vbucket=A).value == b"old"
    assert other.store(b"a", b"x", vbucket=A).status == IN_PROGRESS
    assert other.ask(SET, b"a", b"x", EXTRAS, vbucket=A, framing=durability(1, 100)).status == IN_PROGRESS
    assert other.store(b"b", b"x", vbucket=A).status == SUCCESS
    commit(other, A)
    assert either.response().status == SUCCESS
    assert other.ask(GET, b"a", vbucket=A).value == b"new"


@pytest.mark.parametrize("timeout_ms", [1, 60, 400])
def test_the_deadline_is_ambiguous_and_never_early(either, other, timeout_ms):
    started = time.monotonic()
    either.send(durable(b"a", b"new", A, timeout_ms))
    answer = either.response()
    assert time.monotonic() - started >= timeout_ms / 1000
    assert answer.status == AMBIGUOUS and "context" in json.loads(answer.value)["error"]
    assert other.ask(GET, b"a", vbucket=A).status == NOT_FOUND
    assert other.store(b"a", b"x", vbucket=A).status == SUCCESS
    assert either.lives()


def test_a_short_timeout_behind_a_long_one(unordered, other):
    unordered.send(durable(b"a", b"1", A, 8000, opaque=1) + durable(b"b", b"1", A, 100, opaque=2))
    answer = unordered.response()
    assert (answer.opaque, answer.status) == (2, AMBIGUOUS)
    # Its abort waits for the previous one; until then its key is locked.
    assert other.store(b"b", b"x", vbucket=A).status == IN_PROGRESS
    commit(other, A)
    assert unordered.response().status == SUCCESS
    # The majority was reached before the abort.
    assert other.ask(GET, b"b", vbucket=A).value == b"1"


def test_in_order_only_answers_wait(in_order, other):
    pipeline = [
        durable(b"a", b"new", A, opaque=1), store(b"b", b"b1", B, opaque=2), get(b"b", B, opaque=3), get(b"a", A, opaque=4),
        request(APPEND, b"a", b"+", vbucket=A, opaque=5), request(NOOP, opaque=6),
    ]
    in_order.send(b"".join(pipeline))
    assert silent(in_order)
    assert other.ask(GET, b"b", vbucket=B).value == b"b1"
    commit(other, A)
    found = answers(in_order, 6)
    assert [(answer.opaque, answer.status) for answer in found] == [(opaque, SUCCESS) for opaque in range(1, 7)]
    assert (found[2].value, found[3].value) == (b"b1", b"new")
    assert other.ask(GET, b"a", vbucket=A).value == b"new+"


def test_unordered_answers_do_not_wait(unordered, other):
    pipeline = [durable(b"a", b"1", A, opaque=1), durable(b"b", b"1", B, opaque=2), store(b"c", b"1", C, opaque=3), get(b"a", A, opaque=4)]
    unordered.send(b"".join(pipeline))
    assert [(answer.opaque, answer.status) for answer in answers(unordered, 2)] == [(3, SUCCESS), (4, NOT_FOUND)]
    commit(other, B)
    assert unordered.response().opaque == 2
    commit(other, A)
    assert unordered.response().opaque == 1


def test_a_noop_ends_a_quiet_batch(either, other):
    pipeline = [
        durable(b"a", b"1", A, opaque=1, opcode=SETQ), durable(b"b", b"1", B, 300, opaque=2, opcode=SETQ), request(GETQ, b"a", vbucket=A, opaque=3),
        request(GETQ, b"missing", vbucket=A, opaque=4), request(NOOP, opaque=5),
    ]
    either.send(b"".join(pipeline))
    assert silent(either)
    commit(other, A)
    found = [(answer.opaque, answer.status) for answer in answers(either, 3)]
    assert sorted(found) == [(2, AMBIGUOUS), (3, SUCCESS), (5, SUCCESS)] and found[2][0] == 5
    assert either.lives()


def test_the_chain_changes_on_the_connection_that_waits(either, other):
    chain = request(SET_VBUCKET, b"", b'{"topology":null}', b"\1", vbucket=A, opaque=2)
    started = time.monotonic()
    either.send(durable(b"a", b"1", A, opaque=1) + chain)
    assert sorted((answer.opaque, answer.status) for answer in answers(either, 2)) == [(1, SUCCESS), (2, SUCCESS)]
    assert time.monotonic() - started < 4, "half of the write's time"


def test_a_barrier_is_honoured(either, other):
    pipeline = [durable(b"a", b"1", A, opaque=1), store(b"b", b"1", B, opaque=2, framing=BARRIER), store(b"c", b"1", C, opaque=3)]
    either.send(b"".join(pipeline))
    assert silent(either)
    assert other.ask(GET, b"b", vbucket=B).status == NOT_FOUND
    assert other.ask(GET, b"c", vbucket=C).status == NOT_FOUND
    commit(other, A)
    assert [answer.opaque for answer in answers(either, 3)] == [1, 2, 3]


def test_quit_waits_for_what_is_pending(either, other):
    either.send(durable(b"a", b"1", A, opaque=1) + request(QUIT, opaque=2) + get(b"a", A, opaque=3))
    assert silent(either)
    commit(other, A)
    assert [answer.opaque for answer in answers(either, 2)] == [1, 2]
    assert either.response() is None


def test_a_chain_that_is_too_short(either, other):
    set_chains(other, A, [["us", None]])
    either.send(durable(b"a", b"1", A))
    assert either.response().status == IMPOSSIBLE
    set_chains(other, A, [["us", "b", None], ["us"]])
    either.send(durable(b"a", b"1", A, 50))
    assert either.response().status == AMBIGUOUS


def test_a_vbucket_that_moves_away(either, other):
    either.send(durable(b"a", b"1", A))
    assert silent(either)
    set_chains(other, A, None, state=2)
    assert either.response().status == AMBIGUOUS
    assert other.ask(GET, b"a", vbucket=A).status == NOT_MY_VBUCKET
    assert other.ask(GET_VBUCKET, vbucket=A).value == struct.pack(">I", 2)
    set_chains(other, A, None)
    assert other.ask(GET, b"a", vbucket=A).value == b"1"


def test_the_chain_changes_over_http(node, either, other):
    def post(topology):
        form = urllib.parse.urlencode({"topology": json.dumps(topology)}).encode()
        ask = urllib.request.Request(f"http://{node.http[0]}:{node.http[1]}/pools/default/buckets/default/vbuckets/{A}", form)
        ask.add_header("Authorization", "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==")
        assert urllib.request.urlopen(ask).status == 200

    post([["us", "gone"]])
    either.send(durable(b"a", b"1", A))
    assert silent(either)
    post([["us"]])
    assert either.response().status == SUCCESS
    post(ABSENT)


def test_statistics_tell_what_is_pending(either, other):
    def figures():
        other.send(request(STAT, b"durability-monitor"))
        found = {}
        while (answer := other.response()).key:
            found[answer.key.decode()] = answer.value.decode()
        return found

    before = figures()
    either.send(durable(b"a", b"1", A) + durable(b"b", b"1", B, 50))
    time.sleep(0.2)
    now = figures()
    assert (now[f"vb_{A}:num_tracked"], now[f"vb_{A}:topology"]) == ("1", '[["us","absent"]]')
    assert int(now["sync_writes_ambiguous"]) == int(before["sync_writes_ambiguous"]) + 1
    late = {name: int(value) for name, value in now.items() if name.startswith("timeout_late_us_") and not name.endswith("max")}
    assert sum(late.values()) == int(now["sync_writes_ambiguous"])
    commit(other, A)


def test_many_clients_with_many_timeouts(node, other):
    """Each is answered exactly once, and none before its timeout."""
    clients = [BinaryConnection(node.kv) for _ in range(4)]
    for client in clients:
        client.open_bucket(features=UNORDERED)
    sent = {}
    for number in range(800):
        timeout_ms = 20 + number * 7919 % 900
        sent[number] = (time.monotonic(), timeout_ms / 1000)
        clients[number % 4].send(durable(b"many %d" % number, b"v", (A, B, C)[number % 3], timeout_ms, opaque=number))
    for at, client in enumerate(clients):
        for _ in range(at, 800, 4):
            answer = client.response()
            began, timeout_s = sent.pop(answer.opaque)
            assert answer.status == AMBIGUOUS
            assert time.monotonic() - began >= timeout_s
        assert silent(client)
        client.close()
    assert not sent
