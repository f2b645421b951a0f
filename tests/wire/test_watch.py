"""`watch`: the same lines as Debian's memcached, events of one bucket only, slow watchers, and what ends a watch."""

import contextlib
import pathlib
import re
import socket
import struct
import time

from tests import frames, servers
from tests.persistence import bucket
from tests.wire.test_key_lists import Text

SOON_S = 20
QUIET_S = 0.5
WATCHERS = 20
# An unread answer resets the connection when it is closed.
UNREAD = b"version\r\n"

# Fields that depend on the machine, the time or the allocator.
VARIABLE = re.compile(rb"ts=\d+\.\d+ gid=\d+ |(?<= )(?:cfd|clsid|rport|la)=\d+(?: |$)")


class Watcher(Text):
    """A watching connection, read line by line."""

    def __init__(self, address, words=b""):
        super().__init__(address)
        assert self.ask(b"watch " + words) == b"OK"

    def lines_within(self, quiet_s=QUIET_S):
        """The lines received, once nothing arrives for a while."""
        self.socket.settimeout(quiet_s)
        data = b""
        try:
            while got := self.socket.recv(1 << 16):
                data += got
        except TimeoutError:
            pass
        self.socket.settimeout(60)
        return data.decode("latin-1").encode("latin-1").split(b"\n")[:-1]


def plain(lines):
    """The lines without variable fields; times to live rounded within one second."""
    lines = [VARIABLE.sub(b"", line) for line in lines]
    return [re.sub(rb"ttl=(99|100)\b", b"ttl=100", re.sub(rb"ttl=(9|10)\b", b"ttl=10", line)) for line in lines]


BIG = b"x" * 2_000_000
COMMANDS = [
    b"get a",
    b"set a 0 100 3\r\nabc",
    b"get a",
    b"gat 0 a",
    b"gets a b",
    b"append a 0 0 2\r\nxy",
    b"append q 0 0 2\r\nxy",
    b"prepend a 0 5 2\r\nxy",
    b"add a 0 0 1\r\nx",
    b"add a2 5 0 1\r\nx",
    b"replace z 0 0 1\r\nx",
    b"replace a 0 100 1\r\nx",
    b"cas a 0 0 1 999999\r\nx",
    b"cas zz 0 0 1 999999\r\nx",
    b"set n 7 0 1\r\n5",
    b"incr n 1",
    b"incr n 100",
    b"decr n 1",
    b"incr none 1",
    b"touch n 10",
    b"touch none 1",
    b"delete n",
    b"delete n",
    b"mg a v",
    b"mg a s t",
    b"mg nope v",
    b"mn",
    b"ms m 1 T10\r\nx",
    b"ms m 1 ME\r\nx",
    b"ms m 1 MR T100\r\nx",
    b"ms m 1 MA\r\nx",
    b"ms m 2 MP\r\nxy",
    b"ms newk 1 MA\r\nx",
    b"ms m 1 C7\r\nx",
    b"ms fresh 1 C7\r\nx",
    b"md m C7",
    b"md m",
    b"md m",
    b"me a",
    b"set a%\xc3\xa4b\x01c~!*' 0 0 1\r\nx",
    b"set l 0 0 40000\r\n" + b"x" * 40_000,
    b"get l",
    b"append l 0 0 40000\r\n" + b"x" * 40_000,
    b"set big 0 0 2000000\r\n" + BIG,
    b"ms big 2000000\r\n" + BIG,
    b"set short 0 0 1\r\nxyz",
    b"bogus",
    b"set quiet 0 0 1 noreply\r\nx",
    b"flush_all",
    b"version",
]


def told(address, words, commands):
    """The lines a watcher gets for each command, and the command's answer."""
    with Watcher(address, words) as watcher, Text(address) as client:
        events = []
        for command in commands:
            client.send(command + b"\r\n")
            time.sleep(0.01)
            events.append((command[:40], plain(watcher.lines_within(0.3))))
        return events


def without_refused_fields(events):
    """COMPAT: memcached 1.6.18 mixes up the fields of a refused store."""
    return [(command, [line for line in lines if b"too_large" not in line]) for command, lines in events]


def test_fetchers_and_mutations_are_memcacheds():
    with servers.Memcached("-o", "no_modern") as memcached, servers.Dormouse() as server:
        expected = told(memcached.address, b"fetchers mutations", COMMANDS)
        assert sum(len(lines) for _, lines in expected) > 50
        got = told(server.memcached, b"fetchers mutations", COMMANDS)
        pairs = zip(without_refused_fields(got), without_refused_fields(expected), strict=True)
        assert [(ours, theirs) for ours, theirs in pairs if ours != theirs] == []
        refused = [line for _, lines in got for line in lines if b"too_large" in line]
        assert [line.rstrip() for line in refused] == [b"type=item_store key=big status=too_large cmd=set ttl=0 size=0"] * 2


def test_binary_requests_are_told():
    requests = [
        frames.request(0x00, key=b"k"),
        frames.request(0x01, key=b"k", extras=bytes(8), value=b"abc"),
        frames.request(0x02, key=b"k", extras=bytes(8), value=b"abc"),
        frames.request(0x03, key=b"none", extras=bytes(8), value=b"abc"),
        frames.request(0x01, key=b"k", extras=bytes(8), value=b"abc", cas=99),
        frames.request(0x0E, key=b"k", value=b"de"),
        frames.request(0x0F, key=b"none", value=b"de"),
        frames.request(0x1C, key=b"k", extras=bytes(4)),
        frames.request(0x04, key=b"k"),
        counter(0x05, b"n", 12345, 100),
        counter(0x05, b"n", 12345, 100),
        counter(0x06, b"m", 0, 0),
        counter(0x06, b"none", 0, 0xFFFFFFFF),
    ]

    def observed(address):
        with Watcher(address, b"mutations") as watcher, socket.create_connection(address, timeout=60) as client:
            for request in requests:
                client.sendall(request)
                client.recv(4096)
            return plain(watcher.lines_within())

    with servers.Memcached() as memcached, servers.Dormouse() as server:
        expected = observed(memcached.address)
        assert len(expected) == 8
        assert observed(server.memcached) == expected


def counter(opcode, key, initial, expiry):
    return frames.request(opcode, key=key, extras=struct.pack(">QQI", 1, initial, expiry))


def test_words_are_memcacheds():
    words = [b"", b"fetchers", b"mutations evictions connevents", b"rawcmds", b"sysevents", b"proxyreqs", b"proxyevents", b"proxyuser"]
    words += [b"proxycmds", b"bogus", b"fetchers bogus", b"Fetchers"]

    def answers(address):
        found = []
        for word in words:
            with Text(address) as one:
                found.append((word, one.ask(b"watch " + word)))
        return found

    with servers.Memcached() as memcached, servers.Dormouse() as server:
        expected = answers(memcached.address)
        assert {answer for _, answer in expected} == {b"OK", b"ERROR"}
        assert answers(server.memcached) == expected


def test_deletions_are_told():
    """As memcached 1.6.45 does; its commands only, not those of the binary protocol."""
    with servers.Dormouse() as server, Watcher(server.memcached, b"deletions") as watcher, Text(server.memcached) as client:
        for command in (b"set b:c 0 0 3\r\nabc", b"delete b:c", b"delete b:c", b"ms m 2\r\nxy", b"md m I", b"md m x", b"md m", b"md m"):
            client.ask(command)
        lines = [re.sub(rb"ts=\d+\.\d+ gid=\d+ ", b"", line) for line in watcher.lines_within()]
        assert lines == [
            b"type=deleted key=b%3Ac cmd=delete clsid=1 size=3",
            b"type=deleted key=m cmd=md clsid=1 size=2",
            b"type=deleted key=m cmd=md clsid=1 size=0",
        ]


def test_the_reason_of_an_end_is_told():
    """As in memcached: an end that the client did not ask for is an error."""
    endings = {
        "quit": (b"quit\r\n", b"normal"),
        "binary QUIT": (frames.request(0x07), b"normal"),
        "binary QUITQ": (frames.request(0x17), b"normal"),
        "closed": (b"", b"normal"),
        "closed within a request": (b"set a 0 0 5\r\nxx", b"normal"),
        "HTTP": (b"GET / HTTP/1.1\r\n", b"error"),
        "line without end": (b"x" * 100_000, b"error"),
    }
    for name, (sent, reason) in endings.items():
        with servers.Dormouse() as server, Watcher(server.memcached, b"connevents") as watcher:
            one = socket.create_connection(server.memcached, timeout=60)
            one.sendall(sent)
            if reason == b"normal" and b"quit" not in sent and not name.startswith("binary"):
                one.shutdown(socket.SHUT_WR)
            while one.recv(1 << 16):
                pass
            lines = watcher.lines_within()
            one.close()
            ends = [re.search(rb"type=conn_close .* reason=(\w+)", line) for line in lines]
            assert [end.group(1) for end in ends if end] == [reason], (name, lines)


def test_connections_are_told(tmp_path):
    def observed(connect):
        with contextlib.ExitStack() as stack:
            watcher = stack.enter_context(connect())
            watcher.sendall(b"watch connevents\r\n")
            time.sleep(QUIET_S)
            for ending in (b"quit\r\n", b"", UNREAD):
                one = connect()
                time.sleep(0.1)
                one.sendall(ending)
                if ending == UNREAD:
                    # Waits for the answer, and leaves it unread.
                    assert one.recv(1, socket.MSG_PEEK) == b"V"
                elif ending:
                    assert one.recv(10) == b""
                one.close()
                time.sleep(0.1)
            time.sleep(QUIET_S)
            ok, *lines, end = watcher.recv(1 << 16).split(b"\n")
            assert (ok, end) == (b"OK\r", b"")
            return plain(lines)

    def unix(path):
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(60)
        one.connect(str(path))
        return one

    path = tmp_path / "m.sock"
    with servers.Memcached() as memcached:
        expected = observed(lambda: socket.create_connection(memcached.address, timeout=60))
    assert [b"reason=error" in line for line in expected] == [False] * 5 + [True]
    with servers.Dormouse() as server:
        assert observed(lambda: socket.create_connection(server.memcached, timeout=60)) == expected
    # A server of its own: the end of the watcher before is not told here.
    with servers.Dormouse("--memcached", f"unix:{path}"):
        local = [line.replace(b"tcp", b"local").replace(b"127.0.0.1", b"unix") for line in expected]
        assert observed(lambda: unix(path)) == local


def test_evictions_are_told():
    buckets = ("default,ephemeral,16MiB",)
    with servers.Dormouse(buckets=buckets) as server, Watcher(server.memcached, b"evictions") as watcher, Text(server.memcached) as client:
        for start in range(0, 40_000, 500):
            client.send(b"".join(b"set key:%d 0 1000 1000 noreply\r\n%b\r\n" % (number, b"x" * 1000) for number in range(start, start + 500)))
            client.ask(b"mn")
        lines = watcher.lines_within()
        evictions = int(client.stats()["evictions"])
        stats = client.stats()
        assert evictions > 10_000
        form = re.compile(
            rb"ts=\d+\.\d+ gid=\d+ type=eviction key=key%3A\d+ fetch=(yes|no) ttl=\d+ la=\d+ clsid=\d+ size=1000|skipped=\d+"
        )
        assert [line for line in lines if not form.fullmatch(line)] == []
        seen = [line for line in lines if b"type=eviction" in line]
        skipped = sum(int(line.removeprefix(b"skipped=")) for line in lines if line.startswith(b"skipped="))
        assert len(seen) == len(set(line.split()[3] for line in seen)) > 1000
        assert int(stats["log_watcher_sent"]) == len(seen) and int(stats["log_watcher_skipped"]) >= skipped
        assert int(stats["log_worker_written"]) == evictions == len(seen) + int(stats["log_watcher_skipped"])
        assert stats["log_watchers"] == "1"


def test_a_bucket_tells_its_own_watchers_only():
    buckets = ("default,ephemeral,32MiB", "b,ephemeral,32MiB")
    with servers.Dormouse("--memcached", "127.0.0.1:0=b", buckets=buckets) as server:
        other = server.memcached_of("b")
        words = b"fetchers mutations connevents"
        with Watcher(server.memcached, words) as one, Watcher(other, words) as two:
            with Text(other) as client:
                client.ask(b"set k 0 0 1\r\nx")
            assert one.lines_within() == []
            kinds = [re.search(rb"type=(\w+)", line).group(1) for line in two.lines_within()]
            assert kinds == [b"conn_new", b"item_get", b"item_store", b"conn_close"]


def test_who_must_log_in_watches_nothing(tmp_path):
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    with servers.Dormouse("--user", "somebody", "--password-file", str(password)) as server, Text(server.memcached) as one:
        assert one.ask(b"watch") == b"CLIENT_ERROR unauthenticated"
        assert one.ask(b"set a 0 0 15\r\nsomebody secret") == b"STORED"
        assert one.ask(b"watch") == b"OK"


def test_there_are_twenty_watchers_at_most():
    with servers.Dormouse() as server, contextlib.ExitStack() as stack:
        for _ in range(WATCHERS):
            stack.enter_context(Watcher(server.memcached))
        with Text(server.memcached) as one:
            one.send(b"watch\r\nversion\r\n")
            assert one.lines.readline() == b"WATCHER_TOO_MANY log watcher limit reached\r\n"
            assert one.lines.readline().startswith(b"VERSION ")
            assert one.stats()["log_watchers"] == str(WATCHERS)
            stack.close()
            deadline = time.monotonic() + SOON_S
            while one.stats()["log_watchers"] != "0" and time.monotonic() < deadline:
                time.sleep(0.05)
            assert one.stats()["log_watchers"] == "0"
        with Watcher(server.memcached):
            pass


def test_a_watcher_that_does_not_read_holds_nobody_up():
    with servers.Dormouse(workers=1) as server, Text(server.memcached) as client:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(server.memcached)
        slow.sendall(b"watch fetchers\r\n")
        assert slow.recv(4) == b"OK\r\n"
        before = resident_kib(server)
        for _ in range(200):
            client.send(b"get " + b" ".join(b"key:%d" % number for number in range(2000)) + b"\r\n")
            assert client.rest(b"END") == []
        stats = client.stats()
        assert int(stats["log_worker_written"]) == 400_000
        assert int(stats["log_watcher_skipped"]) > 300_000
        assert resident_kib(server) - before < 8192
        slow.settimeout(60)
        data = b""
        while b"skipped=" not in data:
            # A line is sent only with the next event.
            client.ask(b"get one")
            data += slow.recv(1 << 16)
        slow.close()


def resident_kib(server):
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


def test_what_a_watcher_sends_is_not_looked_at():
    with servers.Dormouse() as server, Watcher(server.memcached, b"mutations") as watcher, Text(server.memcached) as client:
        for _ in range(100):
            watcher.send(b"set a 0 0 1\r\nx\r\nget a\r\n" * 1000)
        assert watcher.lines_within() == []
        assert client.list(b"get a", b"END") == []
        client.ask(b"set b 0 0 1\r\nx")
        assert [line.split(b" type=")[1].split()[0] for line in watcher.lines_within()] == [b"item_store"]


def test_a_watch_ends_with_its_bucket():
    with servers.Dormouse(buckets=("default,ephemeral,32MiB", "b,ephemeral,32MiB")) as server:
        with contextlib.closing(socket.create_connection(server.memcached, timeout=60)) as watcher:
            watcher.sendall(b"watch fetchers\r\n")
            assert watcher.recv(10) == b"OK\r\n"
            assert bucket.http(server, "DELETE", "/pools/default/buckets/default")[0] == 200
            assert watcher.recv(10) == b""
