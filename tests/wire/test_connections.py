"""`stats conns` compared with memcached's: the same lines and states; only one bucket's connections, whole and in
slices, and only after the login."""

import contextlib
import re
import socket
import time

from tests import servers
from tests.wire.test_key_lists import Text

MANY = 700
SOON_S = 20


def connections(text):
    """The list as {number: {name: value}}, with the names in their original order."""
    found = {}
    for line in text.list(b"stats conns", b"END"):
        number, name, value = re.fullmatch(r"STAT (\d+):(\w+) (.*)", line.decode()).groups()
        assert name not in found.setdefault(int(number), {}), line
        found[int(number)][name] = value
    return found


def roles(address, listed, sockets):
    """What the list shows for the listening socket and for these sockets."""
    addresses = {"tcp:%s:%d" % one.getsockname(): role for role, one in sockets.items()}
    addresses["tcp:%s:%d" % address] = "listener"
    return {addresses[entry["addr"]]: entry for entry in listed.values() if entry["addr"] in addresses}


def observed(address):
    """Opens connections in several states; returns what the list shows for each, without ports."""
    with contextlib.ExitStack() as stack:
        asker = stack.enter_context(Text(address))
        connect = lambda: stack.enter_context(socket.create_connection(address, timeout=60))
        sockets = {role: connect() for role in ("new", "idle", "head", "value", "refused", "unread", "binary")} | {"asker": asker.socket}
        assert asker.ask(b"set big 0 0 900000\r\n" + b"x" * 900_000) == b"STORED"
        sockets["idle"].sendall(b"get a\r\n")
        assert sockets["idle"].recv(100) == b"END\r\n"
        sockets["head"].sendall(b"get a")
        sockets["value"].sendall(b"set k 0 0 10\r\nab")
        sockets["refused"].sendall(b"set k 0 0 2000000\r\nab")
        sockets["unread"].sendall(b"get big\r\n" * 50)
        sockets["binary"].sendall(b"\x80\x01\0\1\x08\0\0\0" + (14).to_bytes(4, "big") + bytes(12) + bytes(8) + b"k" + b"ab")
        deadline = time.monotonic() + SOON_S
        states = None
        while True:
            found = roles(address, connections(asker), sockets)
            before, states = states, {role: entry["state"] for role, entry in found.items()}
            if time.monotonic() > deadline or len(states) == 9 and states.get("unread") == "conn_mwrite" and states == before:
                break
            time.sleep(0.1)
        assert all(entry["secs_since_last_cmd"].isdigit() for entry in found.values())
        own = "tcp:%s:%d" % address
        return {
            role: (list(entry), entry["state"], entry.get("listen_addr") == own) for role, entry in found.items()
        }


def test_the_lines_are_memcacheds():
    with servers.Memcached() as memcached, servers.Dormouse() as server:
        expected = observed(memcached.address)
        assert expected["unread"][1] == "conn_mwrite" and len(expected) == 9
        assert observed(server.memcached) == expected


def test_a_bucket_shows_its_own_connections(tmp_path):
    path = tmp_path / "m.sock"
    buckets = ("default,ephemeral,32MiB", "b,ephemeral,32MiB")
    with servers.Dormouse("--memcached", f"unix:{path}=b", buckets=buckets) as server, contextlib.ExitStack() as stack:
        one = stack.enter_context(Text(server.memcached))
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(server.memcached, timeout=60))
        other = socket.socket(socket.AF_UNIX)
        other.settimeout(60)
        other.connect(str(path))
        lines = stack.enter_context(other.makefile("rb"))
        other.sendall(b"stats conns\r\n")
        got = []
        while (line := lines.readline()) != b"END\r\n":
            got.append(line.decode().rstrip("\r\n").partition(":")[2])
        address = "unix:%s" % path
        assert got[:2] == [f"addr {address}", "state conn_listening"] and len(got) == 3 + 4, got
        assert got[3:6] == ["addr unix:", f"listen_addr {address}", "state conn_parse_cmd"]
        other.close()
        deadline = time.monotonic() + SOON_S
        while len(listed := connections(one)) != MANY + 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(listed) == MANY + 2
        assert {entry["state"] for entry in listed.values()} == {"conn_listening", "conn_new_cmd", "conn_parse_cmd"}


def test_those_that_have_gone_are_not_listed():
    with servers.Dormouse() as server, Text(server.memcached) as one:
        for _ in range(3):
            with contextlib.ExitStack() as stack:
                for _ in range(100):
                    Text.ask(stack.enter_context(Text(server.memcached)), b"version")
                assert len(connections(one)) == 102
            deadline = time.monotonic() + SOON_S
            while len(connections(one)) != 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert len(connections(one)) == 2


def test_nobody_sees_them_before_the_login(tmp_path):
    secret = tmp_path / "password"
    secret.write_text("secret\n")
    secret.chmod(0o600)
    with servers.Dormouse("--user", "ada", "--password-file", str(secret)) as server, Text(server.memcached) as one:
        assert one.ask(b"stats conns") == b"CLIENT_ERROR unauthenticated"
        assert one.ask(b"set x 0 0 10\r\nada secret") == b"STORED"
        assert len(connections(one)) == 2
