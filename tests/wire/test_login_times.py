"""A client that does not log in where it must holds a place for a while only, whatever else it sends."""

import contextlib
import time

from tests import servers
from tests.frames import HELLO, NOOP, SUCCESS, BinaryConnection, request
from tests.wire.test_roles import ADMINISTRATOR, PASSWORD

PLACES, TAKEN_MOST = 20, 40
SOON_S = 20
FEATURES = b"\0\7"


@contextlib.contextmanager
def node(home, limits):
    path = home / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    options = ("--user", ADMINISTRATOR, "--password-file", str(path))
    config = f"[limits]\n{limits}\n"
    with servers.Dormouse(*options, config=config, buckets=("orders,ephemeral,32MiB",), ports={"memcached": "none"}) as server:
        yield server
        assert server.alive(), server.log()


def says_hello(connection):
    """Returns true if the connection is served."""
    try:
        connection.send(request(HELLO, b"guest", FEATURES) + request(NOOP))
        hello, noop = connection.response(), connection.response()
    except OSError:
        return False
    return hello is not None and hello.status == SUCCESS and noop is not None


def logged_in(address):
    """A connection with a login, or None if it is refused."""
    with contextlib.suppress(OSError):
        connection = BinaryConnection(address)
        if connection.login(ADMINISTRATOR, PASSWORD) == SUCCESS:
            return connection
        connection.close()
    return None


def test_it_is_closed_when_its_time_is_over(tmp_path):
    with node(tmp_path, "unfinished_request_s = 1") as server, contextlib.ExitStack() as stack:
        member = stack.enter_context(logged_in(server.kv))
        guest = stack.enter_context(BinaryConnection(server.kv))
        deadline, turns = time.monotonic() + SOON_S, 0
        while says_hello(guest):
            assert time.monotonic() < deadline, "a client without a login is still served"
            turns += 1
            time.sleep(0.05)
        assert turns > 1 and says_hello(member)


def test_a_client_that_logs_in_finds_a_place_among_those_that_do_not(tmp_path):
    with node(tmp_path, f"connections = {PLACES}\nloopback_connections = 0") as server, contextlib.ExitStack() as stack:
        member = stack.enter_context(logged_in(server.kv))
        guests = []
        while len(guests) < TAKEN_MOST:
            guest = stack.enter_context(BinaryConnection(server.kv))
            if not says_hello(guest):
                break
            guests.append(guest)
        assert 0 < len(guests) < PLACES
        deadline = time.monotonic() + SOON_S
        while (other := logged_in(server.kv)) is None:
            assert time.monotonic() < deadline, "those without a login hold all places"
            for guest in guests:
                says_hello(guest)
            time.sleep(0.05)
        stack.enter_context(other)
        assert says_hello(member) and says_hello(other)
        assert not any(says_hello(guest) for guest in guests)
