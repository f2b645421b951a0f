"""What one client of the HTTP port sends holds up no other: bodies that do not come, many requests at once, many streams."""

import base64
import collections
import contextlib
import pathlib
import socket
import threading

import pytest

from tests import servers
from tests.wire.test_roles import ADMINISTRATOR, BUCKETS, PASSWORD, POOL, USERS, Client, Stream

BUCKET_COUNT, LISTS = 60, 12


def login(user, password=PASSWORD):
    return f"Authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}\r\n"


def head(method, path, user, body_length=None):
    form = "" if body_length is None else f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {body_length}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{login(user)}{form}\r\n".encode()


@contextlib.contextmanager
def connections(node, count, data, timeout=20):
    """Connections that have sent this."""
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(count):
            held.append(stack.enter_context(socket.create_connection(node.http, timeout=timeout)))
            held[-1].sendall(data)
        yield held


def status(one):
    """The status of an answer; None if the connection was cut off."""
    with contextlib.suppress(ConnectionError):
        line = one.recv(65536)
        return int(line.split()[1]) if line else None
    return None


def threads(node, name):
    """How many threads of this name there are."""
    count = 0
    for task in pathlib.Path(f"/proc/{node.process.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            count += (task / "comm").read_text().strip() == name
    return count


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    path = tmp_path_factory.mktemp("bounds") / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    arguments = ("--user", ADMINISTRATOR, "--password-file", str(path))
    with servers.Dormouse(*arguments, buckets=BUCKETS, memory="2GiB", ports={"memcached": "none"}) as server:
        with Client(server) as root:
            for name in ("eve", "ann"):
                root.done("PUT", f"{USERS}/{name}", {"password": PASSWORD, "roles": "data_reader[orders]"})
        yield server
        assert server.alive(), server.log()


# Connections that the test opens beside the held ones.
OTHERS = 7


def assert_others_are_served(node):
    for path in ("/health", "/health/live", "/health/ready"):
        with Client(node, None) as nobody:
            assert nobody.ask("GET", path)[0] == 200
    with Client(node) as root:
        assert root.ask("GET", "/metrics")[0] == 200
        assert root.ask("GET", "/whoami")[0] == 200
        assert root.ask("PUT", f"{USERS}/bob", {"password": PASSWORD})[0] == 200
    with Client(node, "ann") as ann:
        assert ann.ask("GET", "/whoami")[0] == 200


@pytest.mark.parametrize("path, refused", [(f"{POOL}/buckets", 403), ("/controller/changePassword", None)])
def test_bodies_that_do_not_come_keep_nobody_out(node, path, refused):
    with Client(node) as root, Client(node, "ann") as ann:
        # Connections that are there already, and idle.
        assert root.ask("GET", "/whoami")[0] == ann.ask("GET", "/whoami")[0] == 200
        with connections(node, 700, head("POST", path, "eve", body_length=100)) as held:
            assert_others_are_served(node)
            assert root.connection.sock and ann.connection.sock
            assert root.ask("GET", "/whoami")[0] == ann.ask("GET", "/whoami")[0] == 200
            if refused:
                # Some may have given way before the first byte of theirs was read: to each other, beyond 512, and to those of others.
                statuses = collections.Counter(map(status, held))
                assert set(statuses) <= {refused, None} and statuses[refused] >= 512 - OTHERS, statuses


def test_many_requests_of_a_user_make_no_threads_without_bound(node):
    form = f"password={PASSWORD}".encode()
    most, ends = 0, threading.Event()

    def watch():
        nonlocal most
        while not ends.wait(0.001):
            most = max(most, threads(node, "dm:users"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with connections(node, 400, head("POST", "/controller/changePassword", "eve", len(form)) + form) as held:
        assert_others_are_served(node)
        statuses = collections.Counter(map(status, held))
    ends.set()
    watcher.join()
    assert set(statuses) == {200, 429}, statuses
    # One is executed, as many as may wait, the others are refused at once.
    assert statuses[200] >= 65, statuses
    # One of each user: eve, and the administrator.
    assert 1 <= most <= 2


def test_a_refusal_says_what_there_is_too_much_of(node):
    form = f"password={PASSWORD}".encode()
    with connections(node, 400, head("POST", "/controller/changePassword", "eve", len(form)) + form) as held:
        refused = [answer for answer in (one.recv(65536) for one in held) if b" 429 " in answer]
    assert refused
    assert all(b"retry-after: 1\r\n" in answer.lower() and b"64 of your requests wait already" in answer for answer in refused)


@pytest.fixture(scope="module")
def many_buckets(node):
    with Client(node) as root:
        for number in range(BUCKET_COUNT):
            root.done("POST", f"{POOL}/buckets", {"name": f"b{number}", "bucketType": "ephemeral", "ramQuota": 16, "numVBuckets": 1024})
    yield
    with Client(node) as root:
        for number in range(BUCKET_COUNT):
            root.done("DELETE", f"{POOL}/buckets/b{number}")


def answered(held):
    """How many of these connections have an answer by now."""
    count = 0
    for one in held:
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            count += bool(one.recv(1, socket.MSG_PEEK))
        one.settimeout(60)
    return count


def test_long_lists_do_not_delay_health(node, many_buckets):
    with Client(node, None) as probe, connections(node, LISTS, head("GET", f"{POOL}/buckets", ADMINISTRATOR), timeout=60) as held:
        before = answered(held)
        assert probe.ask("GET", "/health")[0] == 200
        # One of them may have come to its end meanwhile, or begun to be sent.
        assert answered(held) <= before + 2
        assert threads(node, "dm:describe") <= 2
        assert [status(one) for one in held] == [200] * LISTS


def test_a_user_with_all_streams_gives_way(node):
    path = f"{POOL}/bs/orders"
    with contextlib.ExitStack() as stack, Client(node, "eve") as eve, Client(node, "ann") as ann:
        streams = [stack.enter_context(Stream(eve, path)) for _ in range(128)]
        assert [stream.status for stream in streams] == [200] * 128
        assert eve.status("GET", path) == 503, "no more of her own"
        others = [stack.enter_context(Stream(ann, path)) for _ in range(64)]
        assert [stream.status for stream in others] == [200] * 64
        assert all(stream.map() for stream in others)
        # Now they have as many, and neither displaces the other's.
        assert ann.status("GET", path) == eve.status("GET", path) == 503
