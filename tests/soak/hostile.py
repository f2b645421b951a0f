"""Hostile soak: everything at once that a client without a login can do to a node's memory, beside honest clients.

    python -m tests.soak.hostile --seconds 300 --bound 3     what `make soak-hostile` runs
    python -m tests.soak.hostile --seconds 30

A node of NODE_MIB with an OVSDB database, a bucket of DOCUMENTS documents and one that is full. First honest clients alone for a third
of the time, then with hostile ones beside them, of all kinds at once (HOSTILE): values that are announced but not sent,
or only half sent; answers that are not read; endless lines; silent connections; partial OVSDB messages; streams and
partial headers over HTTP. A hostile connection that is closed is reopened.

Checked:
  resident   Rss of the process is at most 105 % of node.memory, always
  honest     every request of an honest client is answered correctly; none of their connections is closed or refused
  documents  all of them exist at the end
  life       the process lives, and SIGTERM ends it with 0
Printed: the honest clients' 99th percentile as a ratio to that without hostile ones. With --bound it may not exceed
that.
"""

import argparse
import multiprocessing
import pathlib
import resource
import socket
import sys
import tempfile
import threading
import time

from tests import servers
from tests.ovsdb.servers import create_database

from .values import MEBIBYTE
from .watch import resident

NODE_MIB = 512
# The rest is for the bucket that is full.
DEFAULT_MIB = 128
OVSDB_MIB = 16
RESIDENT_MAX = 1.05
DOCUMENTS = 40_000
VALUE = b"v" * 1000
# Documents sent in one go by the client that fills a bucket.
FILLED_TOGETHER = 1000
HONEST = 8
OWN_KEYS = 200
# Pause for work left over from the filling.
REST_S = 8
TICK_S = 0.02
REOPEN_S = 0.25
# Maximum bytes that a hostile connection sends in one go.
SEND_MOST = 256 << 10
ALONE_FRACTION = 1 / 3
LOOK_S = 0.02
OPEN_FILES = 8192
# TCP_CLOSE, TCP_CLOSE_WAIT.
CLOSED_BY_PEER = (7, 8)

SCHEMA = {"name": "D", "version": "1.0.0", "tables": {"T": {"columns": {"s": {"type": "string"}}, "isRoot": True}}}


def document(number):
    return b"document-%d" % number


def set_frame_head(length):
    """A binary SET of a value of this length, without the value."""
    return bytes.fromhex("8001000108000000") + (length + 9).to_bytes(4, "big") + bytes(12) + bytes(8) + b"k"


def unread():
    names = b" ".join(document(number) for number in range(0, DOCUMENTS, 80))
    return b"get " + names + b"\r\n"


# Kind: (connections, target, what each sends in turn).
HOSTILE = {
    "announced in text": (100, "memcached", lambda: b"set k 0 0 1000000\r\n"),
    "announced in meta": (50, "memcached", lambda: b"ms k 1000000\r\n"),
    "announced in binary": (50, "memcached", lambda: set_frame_head(1_000_000)),
    "sent by half": (8, "memcached", lambda: b"set k 0 0 1000000\r\n" + bytes(500_000)),
    "answers unread": (300, "memcached", lambda: unread() * 8),
    "line without an end": (200, "memcached", lambda: b"set " + b"k" * 60_000),
    "says nothing": (500, "memcached", lambda: b""),
    "half a frame before the login": (100, "kv", lambda: bytes.fromhex("8021000500000000 00000800".replace(" ", "")) + b"half"),
    "half an OVSDB message": (20, "ovsdb", lambda: b'{"id":1,"method":"echo","params":["' + b"x" * (8 << 20)),
    "OVSDB answers unread": (20, "ovsdb", lambda: b'{"id":1,"method":"echo","params":["' + b"x" * 100_000 + b'"]}'),
    "half a head over HTTP": (50, "http", lambda: b"GET /pools HTTP/1.1\r\nHost: localhost\r\nX-"),
    "stream over HTTP": (50, "http", lambda: b"GET /pools/default/bs/default HTTP/1.1\r\nHost: localhost\r\n\r\n"),
}


class Peer:
    """One hostile connection."""

    def __init__(self, address, sends):
        self.address, self.sends = address, sends
        self.socket, self.left, self.opened = None, b"", 0
        self.open_at = 0.0

    def turn(self, now):
        if self.socket is None:
            if now < self.open_at:
                return
            self.open_at = now + REOPEN_S
            self.socket = socket.socket()
            self.socket.setblocking(False)
            self.socket.connect_ex(self.address)
            self.left = memoryview(self.sends)
            self.opened += 1
        try:
            if len(self.left) > 0:
                self.left = self.left[self.socket.send(self.left[:SEND_MOST]) :]
            # Received data is left unread.
            if self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in CLOSED_BY_PEER:
                self.close()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()

    def close(self):
        self.socket.close()
        self.socket = None


def attack(addresses, ends_at, results):
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    peers = {}
    for kind, (count, where, sends) in HOSTILE.items():
        if where in addresses:
            bytes_sent = sends()
            peers[kind] = [Peer(addresses[where], bytes_sent) for _ in range(count)]
    while time.monotonic() < ends_at:
        now = time.monotonic()
        for kind in peers:
            for peer in peers[kind]:
                peer.turn(now)
        time.sleep(TICK_S)
    results.put({kind: sum(peer.opened for peer in some) for kind, some in peers.items()})


class Honest:
    """A client that reads and writes, one request at a time."""

    def __init__(self, address, number):
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")
        self.number = number

    def ask(self, request, answer):
        self.socket.sendall(request)
        got = self.reader.read(len(answer))
        if got != answer:
            raise RuntimeError(f"honest client {self.number}: {request[:40]!r}: {got[:100]!r} and not {answer[:100]!r}")

    def write(self, key):
        self.ask(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(VALUE), VALUE), b"STORED\r\n")

    def read(self, key):
        self.ask(b"get %b\r\n" % key, b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (key, len(VALUE), VALUE))


def honest(address, ends_at, results):
    """Runs honest clients in turn; returns the sorted times of their requests in seconds, and the errors."""
    times, problems, turn = [], [], 0
    try:
        clients = [Honest(address, number) for number in range(HONEST)]
        while time.monotonic() < ends_at:
            for client in clients:
                key = b"own-%d-%d" % (client.number, turn % OWN_KEYS)
                for do, what in ((client.write, key), (client.read, key), (client.read, document(turn * 7919 % DOCUMENTS))):
                    began = time.monotonic()
                    do(what)
                    times.append(time.monotonic() - began)
            turn += 1
    except (OSError, RuntimeError) as error:
        problems.append(str(error))
    results.put((sorted(times), problems))


class Rss:
    """The highest Rss of a process, polled continuously by a thread."""

    def __init__(self, pid):
        self.pid, self.highest = pid, 0
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.end.wait(LOOK_S):
            self.highest = max(self.highest, resident(self.pid))

    def stop(self):
        self.end.set()
        self.thread.join()
        return self.highest


def percentile(times, part):
    return times[min(len(times) - 1, int(len(times) * part))] if times else float("nan")


def measure(node, seconds):
    """Runs honest clients for this long; returns their times and errors."""
    results, ends_at = multiprocessing.Queue(), time.monotonic() + seconds
    one = multiprocessing.Process(target=honest, args=(node.memcached, ends_at, results), daemon=True)
    one.start()
    times, problems = results.get(timeout=seconds + 120)
    one.join(20)
    return times, problems


def judge(node, options, highest, alone, crowded, problems):
    limit = NODE_MIB * MEBIBYTE
    print(f"resident at most {highest / limit:.1%} of node.memory")
    if highest > RESIDENT_MAX * limit:
        problems.append(f"resident {highest} bytes, {highest / limit:.1%} of node.memory; at most {RESIDENT_MAX:.0%} is allowed")
    ratio = percentile(crowded, 0.99) / percentile(alone, 0.99)
    for name, times in (("alone", alone), ("with hostile clients", crowded)):
        print(f"honest clients {name}: {len(times)} requests, p50 {percentile(times, 0.5) * 1e6:.0f} us, p99 {percentile(times, 0.99) * 1e6:.0f} us")
    print(f"p99 with hostile clients: {ratio:.2f} times that without")
    if options.bound is not None and not ratio <= options.bound:
        problems.append(f"the honest clients' p99 is {ratio:.2f} times what it is without hostile ones; at most {options.bound} is allowed")
    return problems


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests.soak.hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--bound", type=float, default=None, help="highest allowed growth of p99")
    without = "kinds of hostile clients to leave out, by part of their name"
    parser.add_argument("--without", nargs="*", default=[], help=without)
    return parser.parse_args(arguments)


def config(database, port):
    return (
        f'[node]\nmemory = "{NODE_MIB}MiB"\n'
        f'[[bucket]]\nname = "default"\nmemory = "{DEFAULT_MIB}MiB"\n[[bucket]]\nname = "full"\n'
        f'[[ovsdb]]\nfile = "{database}"\nremotes = "ptcp:{port}:127.0.0.1"\nmemory = "{OVSDB_MIB}MiB"\n'
    )


def evictions(client):
    client.socket.sendall(b"stats\r\n")
    lines = iter(client.reader.readline, b"END\r\n")
    return next(int(line.split()[2]) for line in list(lines) if line.startswith(b"STAT evictions "))


def fill(address):
    """Stores documents until some are evicted."""
    filler, number = Honest(address, "filler"), 0
    while evictions(filler) == 0:
        requests = (b"set filling-%d 0 0 %d noreply\r\n%b\r\n" % (number + n, len(VALUE), VALUE) for n in range(FILLED_TOGETHER))
        filler.socket.sendall(b"".join(requests))
        number += FILLED_TOGETHER
    filler.socket.close()


def main(arguments=None):
    options = parse(arguments)
    for kind in [kind for kind in HOSTILE if any(part in kind for part in options.without)]:
        del HOSTILE[kind]
    problems = []
    with tempfile.TemporaryDirectory(prefix="dormouse-hostile-") as scratch:
        database = create_database(pathlib.Path(scratch) / "D.db", SCHEMA)
        port = servers.free_port()
        with servers.Dormouse("--memcached", "127.0.0.1:0=full", buckets=(), config=config(database, port)) as node:
            servers.wait_listening(("127.0.0.1", port), node.process)
            filler = Honest(node.memcached, "filler")
            for number in range(DOCUMENTS):
                filler.write(document(number))
            fill(node.memcached_of("full"))
            time.sleep(REST_S)
            print(f"filled: resident {resident(node.pid) / NODE_MIB / MEBIBYTE:.1%} of node.memory", flush=True)
            watched = Rss(node.pid)
            alone, wrong = measure(node, options.seconds * ALONE_FRACTION)
            problems += wrong
            addresses = {"memcached": node.memcached, "kv": node.kv, "http": node.http, "ovsdb": ("127.0.0.1", port)}
            results, seconds = multiprocessing.Queue(), options.seconds * (1 - ALONE_FRACTION)
            attacker = multiprocessing.Process(target=attack, args=(addresses, time.monotonic() + seconds, results), daemon=True)
            attacker.start()
            crowded, wrong = measure(node, seconds)
            problems += wrong
            print("hostile connections opened: " + ", ".join(f"{kind} {count}" for kind, count in results.get(timeout=60).items()))
            attacker.join(20)
            highest = watched.stop()
            try:
                for number in range(DOCUMENTS):
                    filler.read(document(number))
            except (OSError, RuntimeError) as error:
                problems.append(f"a document is missing: {error}")
            judge(node, options, highest, alone, crowded, problems)
            if not node.alive():
                problems.append(f"the node has ended\n{node.log()}")
            else:
                node.process.terminate()
                if (code := node.process.wait(60)) != 0:
                    problems.append(f"SIGTERM: exit code {code}\n{node.log()}")
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    print("hostile soak: " + ("failed" if problems else "passed"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
