"""Key lists and the statistics that memcached tools read: complete, in slices beside other clients, within bounded
memory."""

import pathlib
import shutil
import socket
import subprocess

import pytest

from tests import servers

TOOL = pathlib.Path("/usr/share/memcached/scripts/memcached-tool")
KEYS = 60_000


class Text:
    """A text connection that is read line by line."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=60)
        self.lines = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def ask(self, line):
        """Sends a line; returns its one-line answer."""
        self.send(line + b"\r\n")
        return self.lines.readline().rstrip(b"\r\n")

    def list(self, line, end):
        """Sends a line; returns the lines of its answer up to the last."""
        self.send(line + b"\r\n")
        return self.rest(end)

    def rest(self, end):
        lines = []
        while (got := self.lines.readline().rstrip(b"\r\n")) != end:
            assert got, "the connection was closed"
            lines.append(got)
        return lines

    def stats(self, subject=b""):
        words = (line.split(b" ", 2) for line in self.list(b"stats " + subject, b"END"))
        return {name.decode(): value.decode() for _, name, value in words}


@pytest.fixture(scope="module")
def full():
    """A node with many keys, and one of 5000 bytes."""
    with servers.Dormouse(workers=1) as server:
        with Text(server.memcached) as one:
            for start in range(0, KEYS, 1000):
                one.send(b"".join(b"set key-%d 7 0 3 noreply\r\nabc\r\n" % n for n in range(start, start + 1000)))
            assert one.ask(b"set long 0 0 5000\r\n" + b"x" * 5000) == b"STORED"
        yield server


def test_every_key_is_listed(full):
    expected = {b"key-%d" % number for number in range(KEYS)} | {b"long"}
    with Text(full.memcached) as one:
        begun, *metadata = one.list(b"lru_crawler metadump all", b"END")
        assert begun == b"OK"
        assert all(line.endswith((b" flags=7 ", b" flags=0 ")) for line in metadata)
        assert {line.split(b" ")[0].removeprefix(b"key=") for line in metadata} == expected
        begun, *commands = one.list(b"lru_crawler mgdump hash", b"EN")
        assert begun == b"OK"
        assert {line.removeprefix(b"mg ") for line in commands} == expected
        # A cachedump client requests one class after the other, and learns at the end that there are no more.
        listed = set()
        for number in range(64):
            if number < 20 or number == 63:
                listed |= {line.split(b" ")[1] for line in one.list(b"stats cachedump %d 0" % number, b"END")}
        assert listed <= expected and b"long" in listed and len(listed) > 40_000, "2 MiB of the small ones"
        assert one.ask(b"stats cachedump 64 0") == b"CLIENT_ERROR Illegal slab id"


def test_a_client_that_does_not_read_its_list_holds_nobody_up_and_takes_no_memory(full):
    with Text(full.memcached) as slow, Text(full.memcached) as other:
        # Enough lists for some 300 MB: what is not read is not written.
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        slow.send(b"lru_crawler metadump all\r\n" * 60)
        for _ in range(200):
            assert other.list(b"get key-1", b"END") == [b"VALUE key-1 7 3", b"abc"]
            assert int(other.stats(b"memory")["in_flight"]) < 4 << 20
        assert len(slow.rest(b"END")) == KEYS + 2


def test_requests_behind_a_list_are_answered_behind_it(full):
    with Text(full.memcached) as one:
        one.send(b"version\r\nlru_crawler mgdump all\r\nget long\r\nlru_crawler mgdump 63\r\nmn\r\n")
        assert one.lines.readline().startswith(b"VERSION ")
        assert len(one.rest(b"EN")) == KEYS + 2
        assert one.lines.readline() == b"VALUE long 0 5000\r\n"
        one.rest(b"END")
        assert [one.lines.readline() for _ in range(3)] == [b"OK\r\n", b"EN\r\n", b"MN\r\n"]


def test_bytes_and_processor_times_are_counted(full):
    with Text(full.memcached) as one:
        before = one.stats()
        value = b"y" * 500_000
        assert one.ask(b"set big 0 0 500000\r\n" + value) == b"STORED"
        one.list(b"get big", b"END")
        after = one.stats()
        assert one.ask(b"delete big") == b"DELETED"
    read = int(after["bytes_read"]) - int(before["bytes_read"])
    assert read == len(b"set big 0 0 500000\r\n") + 500_002 + len(b"get big\r\n") + len(b"stats \r\n")
    written = int(after["bytes_written"]) - int(before["bytes_written"])
    # They include the first list itself.
    shown = sum(len(f"STAT {name} {value}\r\n") for name, value in before.items()) + len("END\r\n")
    assert written == shown + len(b"STORED\r\n") + len(b"VALUE big 0 500000\r\n") + 500_002 + len(b"END\r\n")
    assert float(after["rusage_user"]) + float(after["rusage_system"]) > 0
    assert after["accepting_conns"] == "1" and after["connection_structures"] == after["curr_connections"]


@pytest.mark.skipif(not TOOL.exists() or not shutil.which("perl"), reason="no memcached-tool here")
def test_memcached_tool_shows_what_is_there(full):
    address = "%s:%d" % full.memcached

    def run(*mode):
        return subprocess.run(["perl", str(TOOL), address, *mode], capture_output=True, text=True, check=True, timeout=120).stdout

    rows = [line.split() for line in run("display").splitlines()[1:]]
    # The long key may be missed: of so many keys only a sample is counted.
    assert rows[0][1] == "64B" and {row[1] for row in rows} <= {"64B", "6.0K"}, rows
    assert 0 <= KEYS + 1 - int(rows[0][4]) < KEYS // 50, rows
    keys = {line.split()[0] for line in run("keys").splitlines()}
    assert len(keys) == KEYS + 1 and "key=long" in keys
    dump = run("dump", "10")
    assert dump.count("add key-") >= 9, dump
    assert "curr_items" in run("stats")
