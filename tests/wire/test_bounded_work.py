"""Requests that are much work: others are served between them, and nothing more is done for clients that have gone, or once the node stops."""

import base64
import json
import signal
import socket
import struct
import time

import pytest

from tests import servers
from tests import subdocument as sd
from tests.frames import GET, INCREMENT, NOT_FOUND, SUCCESS, BinaryConnection, request
from tests.soak.attacks import CREATE_SCAN, GET_KEYS, LAST, LAST_ANSWER, PATHS, array, with_arrays, with_documents
from tests.wire.test_key_lists import Text

CONFIG = '[[bucket]]\nname = "default"\nmemory = "128MiB"\nvbuckets = 1\n[[bucket]]\nname = "other"\nmemory = "64MiB"\nvbuckets = 1\n'
CONNECTIONS = 4
# Answers that another client has at least while those of one connection are executed, on the same worker.
SERVED_BETWEEN = 20
# The part of all that may have been executed before the end of a connection, or of the node, is seen.
EXECUTED_MOST = 1 / 4
# Increments that are sent behind as many requests of much work.
INCREMENTS = 60
SOON_S = 60
NOTHING = {"start": base64.b64encode(b"nothing").decode(), "end": base64.b64encode(b"nothing-more").decode()}
GET_RANDOM_KEY, APPEND, TOUCH = 0xB6, 0x0E, 0x1C
# What each connection sends at once: about 100 ms of work, or much more.
HEAVY = {
    "look-ups": [sd.lookups(array(0), *[(sd.GET, b"[-1]")] * PATHS)] * 60,
    "edits": [sd.mutations(array(0), *[(sd.REPLACE, b"[-1]", b"2")] * PATHS)] * 60,
    "scans": [request(CREATE_SCAN, value=json.dumps({"range": NOTHING}).encode(), datatype=1)] * 1000,
    "key lists": [request(GET_KEYS, b"document-", extras=struct.pack(">I", 10))] * 1000,
    "random keys": [request(GET_RANDOM_KEY)] * 1000,
    "appends": [request(APPEND, array(1), b" ")] * 1000,
}
HIT, COUNTER = b"hit", b"counter"
ONE_MORE = request(INCREMENT, COUNTER, extras=struct.pack(">QQI", 1, 1, 0))


def node_with(workers, config=CONFIG):
    server = servers.Dormouse("--memcached", "127.0.0.1:0=default", buckets=(), config=config, workers=workers, ports={"memcached": None})
    with BinaryConnection.opened(server.kv, timeout_s=SOON_S) as client:
        with_documents(server, client)
        with_arrays(server, client)
    return server


@pytest.fixture(scope="module")
def one_worker():
    with node_with(1) as server:
        yield server
        assert server.alive(), server.log()


@pytest.fixture(scope="module")
def two_workers():
    with node_with(2) as server:
        yield server
        assert server.alive(), server.log()


def floods(node, requests, count=CONNECTIONS):
    """Connections over each of which all of these are sent at once."""
    connections = [BinaryConnection.opened(node.kv, timeout_s=SOON_S) for _ in range(count)]
    for one in connections:
        one.send(b"".join(requests))
    return connections


def assert_few(executed, of):
    sent = CONNECTIONS * len(of)
    assert executed <= sent * EXECUTED_MOST, f"{executed} of {sent}"


def reset(connection):
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def figures_once_alone(node):
    """Statistics when the node has no other connection any more."""
    with Text(node.memcached) as one:
        deadline = time.monotonic() + SOON_S
        while int((figures := one.stats())["curr_connections"]) > 1:
            assert time.monotonic() < deadline, "a connection that was reset is still there"
            time.sleep(0.02)
        return {name: int(value) for name, value in figures.items() if value.isdigit()}


@pytest.mark.parametrize("kind", HEAVY)
def test_others_are_served_between(one_worker, kind):
    with BinaryConnection.opened(one_worker.kv, timeout_s=SOON_S, bucket="other") as other:
        assert other.store(HIT, b"there").status == SUCCESS
        (flood,) = floods(one_worker, [*HEAVY[kind], LAST], 1)
        with flood as busy:
            busy.socket.setblocking(False)
            served, got = 0, b""
            while not got.endswith(LAST_ANSWER):
                assert other.ask(GET, HIT).value == b"there"
                served += 1
                try:
                    more = busy.socket.recv(1 << 20)
                    assert more, "the connection was closed"
                    got = got[-len(LAST_ANSWER) :] + more
                except BlockingIOError:
                    pass
    assert served >= SERVED_BETWEEN, f"{served} answers while {len(HEAVY[kind])} requests were executed"


@pytest.mark.parametrize("kind, counter", [("look-ups", "cmd_subdoc_lookup"), ("edits", "cmd_subdoc_mutation")])
def test_requests_of_a_client_that_has_gone_are_not_executed(two_workers, kind, counter):
    before = figures_once_alone(two_workers)[counter]
    for connection in floods(two_workers, HEAVY[kind]):
        reset(connection)
    assert_few(figures_once_alone(two_workers)[counter] - before, HEAVY[kind])


@pytest.mark.parametrize("kind", HEAVY)
def test_what_is_behind_much_work_is_not_done_for_a_client_that_has_gone(two_workers, kind):
    with BinaryConnection.opened(two_workers.kv, timeout_s=SOON_S) as one:
        done = one.ask(INCREMENT, COUNTER, extras=struct.pack(">QQI", 0, 0, 0))
        before = int.from_bytes(done.value, "big")
    behind = [ONE_MORE] * INCREMENTS
    for connection in floods(two_workers, HEAVY[kind][:INCREMENTS] + behind):
        reset(connection)
    figures_once_alone(two_workers)
    with BinaryConnection.opened(two_workers.kv, timeout_s=SOON_S) as one:
        assert_few(int(one.ask(GET, COUNTER).value) - before, behind)


@pytest.mark.parametrize("kind", HEAVY)
def test_what_is_queued_when_the_node_stops_is_dropped(kind):
    with node_with(2) as node:
        busy = floods(node, HEAVY[kind])
        node.process.send_signal(signal.SIGTERM)
        answered = 0
        for one in busy:
            try:
                while (answer := one.response()) is not None:
                    assert answer.status in (SUCCESS, NOT_FOUND), answer
                    answered += 1
            except ConnectionResetError:
                pass
            one.close()
        assert node.process.wait(servers.STOP_TIMEOUT_S) == 0, node.log()
    assert_few(answered, HEAVY[kind])


def test_a_login_does_not_wait_for_an_edit(one_worker):
    """Not even for one of a document that is changed all the time; and that one ends."""
    key, members = b"changed", b"[" + b"1," * (2 << 20) + b"1]"
    with BinaryConnection.opened(one_worker.kv, timeout_s=SOON_S) as editor, BinaryConnection.opened(one_worker.kv, timeout_s=SOON_S) as other:
        assert editor.store(key, members).status == SUCCESS
        editor.send(sd.mutations(key, *[(sd.ADD_UNIQUE, b"", b"%d" % (n + 2)) for n in range(PATHS)]))
        editor.socket.setblocking(False)
        logins = changes = 0
        while True:
            try:
                answer = editor.socket.recv(1 << 16)
                break
            except BlockingIOError:
                pass
            changes += other.ask(TOUCH, key, extras=struct.pack(">I", 1000 + changes)).status == SUCCESS
            BinaryConnection.opened(one_worker.kv, timeout_s=SOON_S).close()
            logins += 1
    assert answer and logins >= SERVED_BETWEEN, f"{logins} logins and {changes} changes before {answer[:24]!r}"


@pytest.mark.parametrize("pipeline", [1, 7, 1000])
def test_a_turn_has_as_many_requests_as_configured(pipeline):
    sent = 500
    config = f"[limits]\npipeline = {pipeline}\n[[bucket]]\nname = \"default\"\nmemory = \"64MiB\"\n"
    with servers.Dormouse(config=config, buckets=(), workers=1) as server, Text(server.memcached) as one, Text(server.memcached) as text:
        assert text.stats(b"settings")["reqs_per_event"] == str(pipeline)
        for line in (b"mn\r\n", b"get none\r\n"):
            before = int(text.stats()["conn_yields"])
            one.send(line * sent)
            assert [one.lines.readline() for _ in range(sent)] == [b"MN\r\n" if line == b"mn\r\n" else b"END\r\n"] * sent
            yields = int(text.stats()["conn_yields"]) - before
            # All of it may arrive in a few pieces.
            least, most = (sent - 1) // pipeline, -(-sent // pipeline) + 5
            assert least - 5 <= yields <= most, (pipeline, yields)
