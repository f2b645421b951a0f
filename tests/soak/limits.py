"""Resident memory against `node.memory`, in mixes that hold much memory outside of items.

    python -m tests.soak.limits                                           every mix, 15 s each, at 64 MiB
    python -m tests.soak.limits --mix subdocuments --limit-mib 128 --seconds 40 --runs 5

Each run starts a node (two for `replica`) whose `node.memory` is the limit. A process of its own reads the Rss of each node
from /proc/PID/statm every 2 ms while clients run the mix, and for SETTLE_S after they have left.

The bound: never above 102 % of the limit plus 16 MiB. The program itself is not part of `node.memory`, but it is part of
Rss: about 8 MiB at rest, printed as `at rest`.

Answers may be refusals (temporary failure, too big, no memory), and a node may close connections that hold too much. A node
that ends, or panics, or serves nothing at all, fails the run.

`--group DIRECTORY`: each node runs in a control group of its own of 110 % of the limit plus 16 MiB, made below this directory
(of a memory controller, version 1 or 2) and removed afterwards. A node that the kernel kills there has ended, and fails the run.
"""

import argparse
import array
import json
import multiprocessing
import os
import pathlib
import random
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

from tests import dcp, servers, subdocument
from tests.dcp import Dcp
from tests.frames import GET, INVALID, NO_MEMORY, NOT_FOUND, SUCCESS, TEMPORARY_FAILURE, TOO_BIG, BinaryConnection
from tests.persistence.bucket import http, vbucket_of, wait_warm
from tests.resident import resident_bytes
from tests.tls.authority import Authority

from .values import MEBIBYTE

LOOK_S = 0.002
SETTLE_S = 2.0
# What the bound adds to 102 % of the limit.
BESIDE_BYTES = 16 * MEBIBYTE
CLIENTS = 4
LONGEST = 20 * MEBIBYTE
SUBDOCUMENT_BYTES = 14 * MEBIBYTE
VBUCKETS = 1024
# How often `--explain` asks in a run.
EXPLAINED_MOST = 8
# Keys of one load: with the longest values several times what fits.
KEYS = 24
ALLOWED = {SUCCESS, NOT_FOUND, TOO_BIG, INVALID, NO_MEMORY, TEMPORARY_FAILURE, subdocument.MULTI_FAILURE}


def bound(limit):
    return limit // 100 * 102 + BESIDE_BYTES


# ---- looking -------------------------------------------------------------------------------------------------------


def look(pids, pipe):
    """Runs in a process of its own: collects the Rss of each node until told to end; sends the samples."""
    page = os.sysconf("SC_PAGE_SIZE")
    files = [open(f"/proc/{pid}/statm", "rb", buffering=0) for pid in pids]
    samples = [array.array("Q") for _ in pids]
    while not pipe.poll():
        for file, seen in zip(files, samples):
            try:
                file.seek(0)
                seen.append(int(file.read().split()[1]) * page)
            except (OSError, IndexError):
                pass
        time.sleep(LOOK_S)
    pipe.send(samples)


class Looking:
    def __init__(self, nodes):
        self.pipe, there = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=look, args=([node.pid for node in nodes], there), daemon=True)
        self.process.start()

    def end(self):
        self.pipe.send("end")
        samples = self.pipe.recv()
        self.process.join()
        return samples


# ---- the clients of a mix ------------------------------------------------------------------------------------------


class Clients:
    """Threads that repeat a step on a connection of their own until the time is over, and connect again if the node closed it."""

    def __init__(self, seconds):
        self.ends = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.answers, self.problems, self.threads = {}, [], []

    def count(self, name):
        with self.lock:
            self.answers[name] = self.answers.get(name, 0) + 1

    def note(self, status):
        self.count("served" if status == SUCCESS else f"{status:#x}")
        if status not in ALLOWED:
            self.problems.append(f"an answer with status {status:#x}")

    def over(self):
        return time.monotonic() > self.ends

    def add(self, connect, step, seed):
        def run():
            chance = random.Random(seed)
            while not self.over():
                try:
                    with connect() as connection:
                        while not self.over():
                            step(connection, chance)
                except (OSError, AssertionError):
                    self.count("closed")
                    time.sleep(0.05)
                except Exception as error:
                    self.problems.append(f"a client: {error!r}")
                    return

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    def join(self):
        for thread in self.threads:
            thread.join(60)
            if thread.is_alive():
                self.problems.append("a client hangs")


def opened(node):
    return lambda: BinaryConnection.opened(node.kv, timeout_s=30)


NOISE = random.Random(37).randbytes(LONGEST)


def store(connection, clients, key, value):
    answer = connection.store(key, value, vbucket=vbucket_of(key))
    if answer is None:
        raise OSError
    clients.note(answer.status)


def asked(connection, clients, request):
    connection.send(request)
    answer = connection.response()
    if answer is None:
        raise OSError
    clients.note(answer.status)


def set_and_get_long(clients):
    """Long values, three read for each one written."""

    def step(connection, chance):
        key = b"long-%d" % chance.randrange(KEYS)
        if chance.random() < 0.25:
            store(connection, clients, key, NOISE[: chance.randrange(MEBIBYTE, LONGEST)])
        else:
            answer = connection.ask(GET, key, vbucket=vbucket_of(key))
            if answer is None:
                raise OSError
            clients.note(answer.status)

    return step


def document(chance):
    """14 MB of JSON: two long members and a short one."""
    half = SUBDOCUMENT_BYTES // 2
    return b'{"n":%d,"a":"%s","b":"%s"}' % (chance.randrange(1000), b"x" * half, b"y" * half)


def edit_and_look_up(clients):
    """Lookups of one, two and sixteen paths (too long an answer), edits of short and of long members."""

    def step(connection, chance):
        key = b"document-%d" % chance.randrange(6)
        vb = vbucket_of(key)
        named = {"vbucket": vb}
        what = chance.randrange(6)
        if what == 0:
            store(connection, clients, key, document(chance))
        elif what == 1:
            asked(connection, clients, subdocument.lookups(key, (subdocument.GET, b"a"), (subdocument.GET, b"b"), **named))
        elif what == 2:
            asked(connection, clients, subdocument.lookups(key, *[(subdocument.GET, path) for path in (b"a", b"b") * 8], **named))
        elif what == 3:
            asked(connection, clients, subdocument.single(subdocument.GET, key, b"a", **named))
        elif what == 4:
            asked(connection, clients, subdocument.mutations(key, (subdocument.DICT_UPSERT, b"n", b"7"), (subdocument.DICT_UPSERT, b"m", b"8"), **named))
        else:
            asked(connection, clients, subdocument.single(subdocument.DICT_UPSERT, key, b"a", b'"%s"' % (b"z" * (SUBDOCUMENT_BYTES // 2)), **named))

    return step


# ---- mixes ---------------------------------------------------------------------------------------------------------


class Mix:
    """One kind of load; `run` returns the nodes' problems besides those of the clients."""

    kind = "persistent"
    arguments = ()
    config = ""
    # The part of the node's memory that is no bucket's.
    databases_bytes = 0

    def __init__(self, home, limit, groups):
        self.home, self.limit, self.groups = pathlib.Path(home), limit, groups
        self.nodes = [self.start()]

    def start(self, name="n1", memory=None, config=None, ports=None):
        home = self.home / name
        home.mkdir()
        memory_bytes = memory or self.limit
        memory = f"{memory_bytes // MEBIBYTE}MiB"
        node = servers.Dormouse(
            *self.arguments, home=home, buckets=(f"default,{self.kind},{(memory_bytes - self.databases_bytes) // MEBIBYTE}MiB",), memory=memory, ports=ports, wrap=self.groups.prefix(name),
            config=(self.config.format(home=home) if config is None else config),
        )
        wait_warm(node)
        return node

    def load(self, clients, seed):
        for number in range(CLIENTS):
            clients.add(opened(self.nodes[0]), self.step(clients), f"{seed}/{number}")


class Long(Mix):
    """long values in a persistent bucket"""

    def step(self, clients):
        return set_and_get_long(clients)


class Subdocuments(Mix):
    """documents of 14 MB, looked up and edited"""

    def step(self, clients):
        return edit_and_look_up(clients)


class EphemeralSubdocuments(Subdocuments):
    """the same in an ephemeral bucket"""

    kind = "ephemeral"


class Replica(Mix):
    """an active and its replica, long values"""

    def __init__(self, home, limit, groups):
        self.home, self.limit, self.groups = pathlib.Path(home), limit, groups
        ports = {name: {"kv": servers.free_port(), "http": servers.free_port()} for name in ("n1", "n2")}
        self.nodes = []
        for name, other in (("n1", "n2"), ("n2", "n1")):
            peer = f"{other}=127.0.0.1:{ports[other]['kv']}/{ports[other]['http']}"
            self.nodes.append(self.start(name, config=f"[replication]\nnode = '{name}'\npeers = '{peer}'\n", ports=ports[name]))
        chain = json.dumps([["n1", "n2"]])
        for node, role in ((self.nodes[0], "state=active"), (self.nodes[1], "state=replica&source=n1")):
            status, body = http(node, "POST", "/pools/default/buckets/default/vbuckets", f"first=0&last={VBUCKETS - 1}&{role}&term=1&topology={chain}")
            assert status == 200, body

    def step(self, clients):
        return set_and_get_long(clients)


class Backfills(Mix):
    """slow DCP backfills of long values, beside clients"""

    def step(self, clients):
        return set_and_get_long(clients)

    def load(self, clients, seed):
        super().load(clients, seed)

        def follow(connection, chance):
            for vb in {vbucket_of(b"long-%d" % number) for number in range(KEYS)}:
                connection.stream(vb, flags=dcp.TO_LATEST)
            while not clients.over() and connection.socket.recv(1 << 20):
                time.sleep(0.02)

        for number in range(CLIENTS):
            clients.add(lambda: Dcp(self.nodes[0].kv, timeout_s=30), follow, f"{seed}/dcp/{number}")


class Streams(Mix):
    """many connections with a stream of each vBucket"""

    kind = "ephemeral"

    def load(self, clients, seed):
        def follow(connection, chance):
            opaque = 0
            while not clients.over():
                for vb in range(VBUCKETS):
                    opaque += 1
                    connection.send(dcp.request(dcp.STREAM_REQ, extras=struct.pack(">IIQQQQQ", 0, 0, 0, dcp.FOREVER, 0, 0, 0), vbucket=vb, opaque=opaque))
                while not connection.quiet(0.2):
                    connection.reader.bytes.clear()
                    connection.later.clear()
                    if not connection.socket.recv(1 << 16):
                        raise OSError
                connections.append(connection)
                clients.count("connections with streams")
                connection = Dcp(self.nodes[0].kv, timeout_s=10)

        connections = []
        for number in range(CLIENTS):
            clients.add(lambda: Dcp(self.nodes[0].kv, timeout_s=10), follow, f"{seed}/{number}")


class Handshakes(Mix):
    """TLS connections that stop in the middle of their handshakes, beside ordinary ones"""

    def __init__(self, home, limit, groups):
        self.authority = Authority(pathlib.Path(home))
        certificate, key = self.authority.sign("node")
        self.arguments = ("--tls-certificate", str(certificate), "--tls-key", str(key), "--memcached", "tls:127.0.0.1:0")
        super().__init__(home, limit, groups)

    def load(self, clients, seed):
        address = servers.split_address(self.nodes[0].endpoints["tls"]["kv"][0])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        def hello():
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            try:
                context.wrap_bio(incoming, outgoing).do_handshake()
            except ssl.SSLWantReadError:
                return outgoing.read()

        def begin(_, chance):
            open_ones = []
            while not clients.over():
                one = socket.create_connection(address, timeout=10)
                one.sendall(hello()[: chance.choice((5, 100, 1 << 16))])
                open_ones.append(one)
                clients.count("handshakes begun")
                if len(open_ones) > 600:
                    open_ones.pop(0).close()

        for number in range(2):
            clients.add(opened(self.nodes[0]), begin, f"{seed}/{number}")
        for number in range(2):
            clients.add(opened(self.nodes[0]), set_and_get_long(clients), f"{seed}/long/{number}")


class Ovsdb(Mix):
    """OVSDB messages of 1000 selects"""

    kind = "ephemeral"
    databases_bytes = 8 * MEBIBYTE
    config = "[[ovsdb]]\nfile = '{home}/conf.db'\nremotes = 'punix:{home}/conf.sock'\nmemory = '8MiB'\n"
    schema = {"name": "t", "version": "1.0.0", "tables": {"t": {"columns": {"text": {"type": "string"}, "n": {"type": "integer"}}, "isRoot": True}}}

    def start(self, name="n1", memory=None, **named):
        file = self.home / name / "conf.db"
        schema = self.home / "schema"
        schema.write_text(json.dumps(self.schema))
        (self.home / name).mkdir()
        subprocess.run(["ovsdb-tool", "create", file, schema], check=True)
        (self.home / name).rename(self.home / "made")
        (self.home / "made" / "conf.db").rename(self.home / "conf.db")
        self.config = type(self).config.format(home=self.home)
        return super().start(name, memory, config=self.config, **named)

    def load(self, clients, seed):
        path = str(self.home / "conf.sock")

        def connect():
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(30)
            one.connect(path)
            return one

        def ask(one, message):
            one.sendall(json.dumps(message).encode())
            reply, depth = b"", json.JSONDecoder()
            while True:
                part = one.recv(1 << 20)
                if not part:
                    raise OSError
                reply += part
                if reply.endswith(b"}") and reply.count(b"{") == reply.count(b"}"):
                    return depth.decode(reply.decode())

        with connect() as one:
            rows = [{"op": "insert", "table": "t", "row": {"text": "x" * 100, "n": n}} for n in range(2000)]
            assert ask(one, {"method": "transact", "params": ["t", *rows], "id": 0})["error"] is None

        def step(one, chance):
            selects = [{"op": "select", "table": "t", "where": []}] * 1000
            ask(one, {"method": "transact", "params": ["t", *selects], "id": 1})
            clients.count("served")

        for number in range(CLIENTS):
            clients.add(connect, step, f"{seed}/{number}")
        clients.add(opened(self.nodes[0]), set_and_get_long(clients), f"{seed}/long")


MIXES = {
    "long": Long, "subdocuments": Subdocuments, "ephemeral-subdocuments": EphemeralSubdocuments, "replica": Replica, "backfills": Backfills,
    "streams": Streams, "handshakes": Handshakes, "ovsdb": Ovsdb,
}


# ---- runs ----------------------------------------------------------------------------------------------------------


class Groups:
    """A control group for each node, if there is a directory for them."""

    def __init__(self, below, limit):
        self.below, self.limit, self.made = below, limit, []

    def prefix(self, node):
        """The command that runs another one in a new group."""
        if not self.below:
            return ()
        path = pathlib.Path(self.below) / f"dormouse-limits-{os.getpid()}-{node}"
        path.mkdir()
        self.made.append(path)
        name = "memory.max" if (path / "memory.max").exists() else "memory.limit_in_bytes"
        (path / name).write_text(str(self.limit // 100 * 110 + BESIDE_BYTES))
        return ("sh", "-c", f'echo $$ > {path}/cgroup.procs; exec "$@"', "sh")

    def remove(self):
        for path in self.made:
            path.rmdir()


def where(node):
    """The largest parts of the node's own account of its memory, two levels deep."""
    status, body = http(node, "GET", "/memory")
    if status != 200:
        return f"/memory: {status}"
    parts = [(one["bytes"], one.get("name", "?")) for part in json.loads(body)["parts"] for one in part.get("parts", [part])]
    return ", ".join(f"{name} {size / MEBIBYTE:.0f}" for size, name in sorted(parts, reverse=True)[:8])


def explain(node, limit, clients):
    """Until the clients' time is over: where the bytes are at moments above the bound."""
    shown = 0
    while not clients.over() and node.alive() and shown < EXPLAINED_MOST:
        if resident_bytes(node) > bound(limit):
            shown += 1
            print(f"{'':24} above the bound: {resident_bytes(node) / MEBIBYTE:.0f} MiB, a moment later: {where(node)}", flush=True)
            time.sleep(0.1)
        time.sleep(LOOK_S)


def run(name, limit, seconds, seed, group_below=None, explains=False):
    """One run; returns the problems."""
    problems = []
    groups = Groups(group_below, limit)
    with tempfile.TemporaryDirectory(prefix="dormouse-limits-") as home:
        mix = MIXES[name](home, limit, groups)
        try:
            rest = [resident_bytes(node) for node in mix.nodes]
            looking = Looking(mix.nodes)
            clients = Clients(seconds)
            mix.load(clients, seed)
            for node in mix.nodes if explains else ():
                threading.Thread(target=explain, args=(node, limit, clients), daemon=True).start()
            clients.join()
            time.sleep(SETTLE_S)
            problems += clients.problems[:5]
            for number, samples in enumerate(looking.end()):
                node = mix.nodes[number]
                label = f"{name}/{node.data.name}" if len(mix.nodes) > 1 else name
                ordered = sorted(samples)
                highest, p999, last = ordered[-1], ordered[len(ordered) * 999 // 1000], samples[-1]
                over = sum(one > bound(limit) for one in samples)
                print(
                    f"{label:24} limit {limit // MEBIBYTE:4} MiB  bound {bound(limit) / limit:6.1%}  highest {highest / limit:6.1%}  p99.9 {p999 / limit:6.1%}"
                    f"  median {ordered[len(ordered) // 2] / limit:6.1%}  at rest {rest[number] / MEBIBYTE:.0f} MiB  afterwards {last / limit:6.1%}"
                    f"  {'held' if not over else f'MISSED in {over} of {len(samples)} samples'}",
                    flush=True,
                )
                if over:
                    problems.append(f"{label}: {highest / MEBIBYTE:.1f} MiB resident, {bound(limit) / MEBIBYTE:.1f} allowed")
                if not node.alive():
                    problems.append(f"{label}: the node has ended: {node.log()[-1000:]}")
                elif over:
                    print(f"{'':24} afterwards: {where(node)}", flush=True)
                if "panicked" in node.log():
                    problems.append(f"{label}: a panic in the log: {node.log()[-2000:]}")
            print(f"{'':24} answers: " + ", ".join(f"{what} {count}" for what, count in sorted(clients.answers.items())), flush=True)
            if not any(count for what, count in clients.answers.items() if what in ("served", "connections with streams")):
                problems.append(f"{name}: nothing was served")
        finally:
            for node in mix.nodes:
                node.stop()
            groups.remove()
    return problems


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests.soak.limits", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mix", choices=MIXES, action="append", help="this mix only; may be repeated")
    parser.add_argument("--limit-mib", type=int, action="append", help="node.memory; may be repeated (64)")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--runs", type=int, default=1, help="runs of each mix at each limit")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000_000))
    parser.add_argument("--group", help="a directory of a memory controller: run the nodes in a control group below it")
    parser.add_argument("--explain", action="store_true", help="ask a node where its bytes are while it is above the bound")
    options = parser.parse_args(arguments)
    print(f"limits: seed {options.seed}")
    problems = []
    for number in range(options.runs):
        for limit_mib in options.limit_mib or [64]:
            for name in options.mix or MIXES:
                problems += run(name, limit_mib * MEBIBYTE, options.seconds, options.seed + number, options.group, options.explain)
    for text in problems:
        print(f"PROBLEM: {text}")
    print("limits: " + (f"{len(problems)} problems" if problems else "held"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
