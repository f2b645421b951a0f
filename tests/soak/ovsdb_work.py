"""Soak of bounded work in the OVSDB server: every attack on its one thread, one after the other, beside an honest session.

    python -m tests.soak.ovsdb_work                           all attacks; part of `make soak-hostile`
    python -m tests.soak.ovsdb_work --attack echo waits       these alone, by their names; --list shows them
    python -m tests.soak.ovsdb_work --slice                   HONEST_REQUESTS beside each, judged by counts; part of the gate

Each attack has a server of its own with a database of BIG_ROWS rows. An honest session in a process of its own asks every millisecond, an
`echo` and a `transact` that changes a row in turn: first alone, then beside the attack. What it could not ask in time, because an answer was
late, counts as a wait from its turn until that answer. Hostile sessions are in a process of their own. Each sends what its attack says first,
and then over and over what it says next, as fast as the server reads it; it reads all answers unless the attack leaves them unread. A session
that the server closes, or that leaves by itself, is opened again. In the end SIGTERM comes while the attack goes on.

Checked:
  answers    every answer that the honest session gets is right, and it gets some
  attack     hostile sessions get answers
  stop       SIGTERM ends the server with 0 in STOP_S
  slice      with --slice: while the honest session waits for an answer, hostile sessions get answers BETWEEN_MOST times in the median
  --bound-median, --bound-p99: the honest session's times beside the attack, as multiples of those alone, or of MEDIAN_FLOOR_S and
             P99_FLOOR_S if these are more
Printed: these times and multiples, the longest wait, the end after SIGTERM, and the highest resident memory.
"""

import ctypes
import dataclasses
import json
import multiprocessing
import pathlib
import resource
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from tests.ovsdb.connection import Connection
from tests.ovsdb.servers import SUBJECT, OvsdbServer, create_database
from tests.servers import free_port

from . import attack_options
from .hostile import Rss, percentile
from .values import MEBIBYTE

SESSIONS = 200
BIG_ROWS = 2000
BIG_TABLES, BIG_COLUMNS = 60, 30
WAITS_EACH = 1000
MONITORS_EACH = 100
ROWS_TOGETHER = 1000
# The honest session asks this often.
EVERY_S = 0.001
UNDER_WAY_S = 1
# What the last answer may take longer than the time that is measured.
GRACE_S = 30
STOP_S = 10
# Bounds as multiples are of these times at least: a busy machine takes as long. Of the median and of the 99th percentile.
MEDIAN_FLOOR_S, P99_FLOOR_S = 0.0005, 0.003
HONEST_REQUESTS, SLICE_S = 200, 30
# If each hostile session has a turn between two of the honest one, it is SESSIONS.
BETWEEN_MOST = 20
SEND_BYTES, READ_BYTES = 256 << 10, 256 << 10
OPEN_FILES = 8192
LEAVES_EVERY_S = 0.05


def text(method, *params, id=1):
    return json.dumps({"method": method, "params": params, "id": id}, separators=(",", ":")).encode()


def transact(*operations, id=1):
    return text("transact", "D", *operations, id=id)


WIDE = {"isRoot": True, "columns": {f"column_{number}": {"type": "string"} for number in range(BIG_COLUMNS)}}
SCHEMA = {
    "name": "D", "version": "1.0.0",
    "tables": {
        "Honest": {"isRoot": True, "columns": {"number": {"type": "integer"}}},
        "Big": {"isRoot": True, "columns": {"name": {"type": "string"}, "value": {"type": "string"}, "number": {"type": "integer"}}},
        **{f"Table{number}": WIDE for number in range(BIG_TABLES)},
    },
}

SELECT = {"op": "select", "table": "Big", "where": []}
NO_MATCH = {"op": "select", "table": "Big", "where": [["value", "==", "none"]]}


def unmet(number, table="Honest", column="number", **more):
    return transact({"op": "wait", "table": table, "where": [], "columns": [column], "until": "==", "rows": [{column: -1}], **more}, id=f"w{number}")


CHANGE = transact({"op": "mutate", "table": "Honest", "where": [], "mutations": [["number", "+=", 1]]})


def monitors(method, count, request):
    return b"".join(text(method, "D", f"m{number}", {"Big": request(number)}) for number in range(count))


LOCKS = b"".join(text("lock", f"lock{number}") for number in range(1000))
STEALS = b"".join(text(method, f"lock{number}") for number in range(20) for method in ("steal", "unlock"))


@dataclasses.dataclass(frozen=True)
class Attack:
    name: str
    # What session N sends once, and what it sends again and again.
    first: object = lambda number: b""
    then: object = lambda number: b""
    sessions: int = SESSIONS
    reads: bool = True
    # It leaves this often, and comes again.
    leaves_s: float | None = None
    # It gets some.
    answers: bool = True


def repeated(data, times):
    return lambda number: data * times


ATTACKS = (
    Attack("echo", then=repeated(text("echo", "x"), 1000)),
    Attack("echo, new sessions", then=repeated(text("echo", "x"), 1000), leaves_s=LEAVES_EVERY_S, answers=False),
    Attack("get_schema", then=repeated(text("get_schema", "D"), 100)),
    Attack("get_schema unread", then=repeated(text("get_schema", "D"), 100), reads=False, answers=False),
    Attack("steal, unlock", then=repeated(STEALS, 1)),
    Attack("lock", first=repeated(LOCKS, 1), then=repeated(text("unlock", "lock1") + text("lock", "lock1"), 500)),
    Attack("locks, new sessions", first=repeated(LOCKS, 1), leaves_s=LEAVES_EVERY_S),
    Attack("list_dbs", then=repeated(text("list_dbs"), 1000)),
    Attack("unknown method", then=repeated(text("nothing", "x"), 1000)),
    Attack("cancel", first=lambda number: b"".join(unmet(n, table="Big") for n in range(16)), then=repeated(b'{"method":"cancel","params":["w99"],"id":null}', 1000), answers=False),
    Attack("set_db_change_aware", then=repeated(text("set_db_change_aware", True), 1000)),
    Attack("comments", then=repeated(transact({"op": "comment", "comment": "x" * 100}), 1000)),
    Attack("empty transactions", then=repeated(transact(), 1000)),
    Attack("select", then=repeated(transact(SELECT), 50)),
    Attack("selects without a match", then=repeated(transact(*[NO_MATCH] * 10), 50)),
    Attack("insert, delete", then=repeated(transact({"op": "insert", "table": "Table0", "row": {}}) + transact({"op": "delete", "table": "Table0", "where": []}), 200)),
    Attack("durable", then=repeated(transact({"op": "update", "table": "Table1", "where": [], "row": {}}, {"op": "commit", "durable": True}), 200)),
    Attack("monitor", then=lambda number: (text("monitor", "D", "m", {"Big": {}}) + text("monitor_cancel", "m")) * 20),
    Attack("monitor_cond", then=lambda number: (text("monitor_cond", "D", "m", {"Big": [{"where": [["number", "<", number + 1000]]}]}) + text("monitor_cancel", "m")) * 20),
    Attack("many monitors", first=lambda number: monitors("monitor_cond", MONITORS_EACH, lambda n: [{"columns": ["number"], "where": [["number", "==", n]]}])),
    Attack(
        "many monitors, new sessions", leaves_s=LEAVES_EVERY_S,
        first=lambda number: monitors("monitor_cond", MONITORS_EACH, lambda n: [{"columns": ["number"], "where": [["number", "==", number * 1000 + n]]}]),
    ),
    Attack("monitors of the honest table", first=lambda number: b"".join(text("monitor", "D", f"m{n}", {"Honest": {}}) for n in range(MONITORS_EACH))),
    Attack(
        "monitor_cond_change", first=lambda number: text("monitor_cond", "D", "m", {"Big": [{"where": [["number", "==", 1]]}]}),
        then=lambda number: b"".join(text("monitor_cond_change", "m", "m", {"Big": [{"where": [["number", "<", 1000 * (n % 2)]]}]}) for n in range(50)),
    ),
    Attack("waits", first=lambda number: b"".join(unmet(n) for n in range(WAITS_EACH)), sessions=50, answers=False),
    Attack("waits, changes", first=lambda number: b"".join(unmet(n) for n in range(WAITS_EACH)), then=lambda number: CHANGE * 100 * (number == 0), sessions=50),
    Attack("waits of another table", first=lambda number: b"".join(unmet(n, table="Big") for n in range(WAITS_EACH)), sessions=50, answers=False),
    Attack("waits with a timeout", first=lambda number: b"".join(unmet(n, timeout=1000 + n) for n in range(WAITS_EACH)), then=lambda number: unmet("x", timeout=1), sessions=50),
    Attack(
        "long waits", sessions=50,
        first=lambda number: b"".join(transact(*[NO_MATCH] * 10, json.loads(unmet(n))["params"][1], id=n) for n in range(100)), answers=False,
    ),
    Attack("garbage", then=repeated(b"{" + b"\xff" * 100, 10), answers=False),
    Attack("replies", then=repeated(b'{"id":"echo","result":[],"error":null}', 1000), answers=False),
)


class Hostile:
    def __init__(self, crowd, number):
        self.crowd, self.number = crowd, number
        self.first, self.then = crowd.attack.first(number), crowd.attack.then(number)
        self.open_at = 0.0

    def open(self):
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(self.crowd.address)
        self.left, self.begun = memoryview(self.first), False
        self.leaves_at = time.monotonic() + (self.crowd.attack.leaves_s or 1e9)
        self.crowd.by_descriptor[self.socket.fileno()] = self
        self.crowd.epoll.register(self.socket, select.EPOLLOUT | (select.EPOLLIN if self.crowd.attack.reads else 0))

    def close(self):
        self.crowd.by_descriptor.pop(self.socket.fileno(), None)
        self.socket.close()
        self.crowd.opened += 1
        self.open()

    def ready(self, events):
        try:
            if events & select.EPOLLIN:
                if not (data := self.socket.recv(READ_BYTES)):
                    return self.close()
                self.crowd.shared.received.value += len(data)
                self.crowd.shared.turns.value += 1
            if events & select.EPOLLOUT:
                if not self.left:
                    self.left = memoryview(self.then)
                if not self.left:
                    self.crowd.epoll.modify(self.socket, select.EPOLLIN)
                    return None
                self.left = self.left[self.socket.send(self.left[:SEND_BYTES]) :]
            if events & select.EPOLLHUP or time.monotonic() > self.leaves_at:
                return self.close()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
        return None


class Shared:
    """What the processes of a run have in common."""

    def __init__(self):
        self.over = multiprocessing.RawValue(ctypes.c_bool, False)
        # Bytes that hostile sessions have received, and how often one has received some.
        self.received = multiprocessing.RawValue(ctypes.c_uint64, 0)
        self.turns = multiprocessing.RawValue(ctypes.c_uint64, 0)


class Crowd:
    """The hostile sessions of a process."""

    def __init__(self, attack, address, shared):
        self.attack, self.address, self.shared = attack, address, shared
        self.epoll, self.by_descriptor, self.opened = select.epoll(), {}, 0

    def run(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
        for number in range(self.attack.sessions):
            Hostile(self, number).open()
        while not self.shared.over.value:
            for descriptor, events in self.epoll.poll(0.02):
                if (one := self.by_descriptor.get(descriptor)) is not None:
                    one.ready(events)


def hostile(attack, address, shared):
    Crowd(attack, address, shared).run()


@dataclasses.dataclass
class Measured:
    """What an honest session saw: sorted waits in seconds, hostile turns during each request, and what went wrong."""

    waits: list
    between: list
    problems: list
    answers: int = 0


def measure(peer, turns, seconds, most):
    """Asks every EVERY_S, for this long or this often. A turn that passes while an answer is late has waited from then on."""
    found = Measured([], [], [])
    turn = time.monotonic()
    deadline = turn + seconds
    while turn < deadline and found.answers < most and not found.problems:
        time.sleep(max(0, turn - time.monotonic()))
        sent, before = time.monotonic(), turns.value
        try:
            if found.answers % 2 == 0:
                answer, wanted = peer.request("echo", found.answers)["result"], [found.answers]
            else:
                update = {"op": "update", "table": "Honest", "where": [], "row": {"number": found.answers}}
                answer, wanted = peer.transact("D", update), [{"count": 1}]
        except Exception as error:
            found.problems.append(f"honest session: {error!r}")
            found.waits.append(time.monotonic() - sent)
            break
        now = time.monotonic()
        found.waits.append(now - sent)
        found.between.append(turns.value - before)
        turn += EVERY_S
        while turn < min(now, deadline):
            found.waits.append(now - turn)
            turn += EVERY_S
        found.answers += 1
        if answer != wanted:
            found.problems.append(f"honest session: {answer!r} and not {wanted!r}")
    found.waits.sort()
    return found


def honest(address, turns, pipe):
    with Connection(address, timeout_s=GRACE_S) as peer:
        peer.transact("D", {"op": "insert", "table": "Honest", "row": {"number": 0}})
        pipe.send("connected")
        while (wanted := pipe.recv()) is not None:
            pipe.send(measure(peer, turns, *wanted))


class HonestProcess:
    def __init__(self, address, turns):
        self.pipe, pipe = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=honest, args=(address, turns, pipe), daemon=True)
        self.process.start()
        assert self.pipe.poll(20) and self.pipe.recv() == "connected"

    def measure(self, seconds, most=1 << 30):
        self.pipe.send((seconds, most))
        if not self.pipe.poll(seconds + 2 * GRACE_S):
            return Measured([], [], ["the honest session has no result"])
        return self.pipe.recv()

    def stop(self):
        self.pipe.send(None)
        self.process.join(20)
        if self.process.is_alive():
            self.process.kill()


@dataclasses.dataclass
class Run:
    """What has come of an attack."""

    attack: Attack
    quiet: Measured
    attacked: Measured
    received: int
    resident: int
    stop_s: float
    problems: list

    def multiple(self, part, floor):
        return percentile(self.attacked.waits, part) / max(percentile(self.quiet.waits, part), floor)


def fill(address):
    with Connection(address) as peer:
        for first in range(0, BIG_ROWS, ROWS_TOGETHER):
            rows = range(first, min(first + ROWS_TOGETHER, BIG_ROWS))
            peer.transact("D", *({"op": "insert", "table": "Big", "row": {"name": f"row{number}", "value": "v" * 100, "number": number}} for number in rows))


def stop(server):
    """Sends SIGTERM; returns how long the end has taken and what was wrong with it."""
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    try:
        code = server.process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        return time.monotonic() - began, [f"SIGTERM has not ended it in {STOP_S} s"]
    # The handler takes the place of the default action, which ends a process with -SIGTERM as with Debian's server.
    return time.monotonic() - began, [f"SIGTERM: exit code {code}\n{server.log()}"] if code not in (0, -signal.SIGTERM) else []


def run(attack, quiet_s, attacked_s, most):
    shared = Shared()
    with tempfile.TemporaryDirectory(prefix="dormouse-work-") as home:
        database = create_database(pathlib.Path(home) / "D.db", SCHEMA)
        port = free_port()
        remotes = [f"ptcp:{port}:127.0.0.1", f"punix:{home}/run/sock"]
        with OvsdbServer(SUBJECT, pathlib.Path(home) / "run", databases=[database], remotes=remotes) as server:
            address = ("127.0.0.1", port)
            fill(address)
            client = HonestProcess(address, shared.turns)
            quiet = client.measure(quiet_s, most)
            watched = Rss(server.pid)
            attackers = multiprocessing.Process(target=hostile, args=(attack, address, shared), daemon=True)
            attackers.start()
            time.sleep(UNDER_WAY_S)
            attacked = client.measure(attacked_s, most)
            problems = [] if server.alive() else [f"the server has ended\n{server.log()}\n{server.stderr()}"]
            highest = watched.stop()
            stop_s, wrong = stop(server)
            shared.over.value = True
            attackers.join(20)
            if attackers.is_alive():
                attackers.kill()
            client.stop()
            return Run(attack, quiet, attacked, shared.received.value, highest, stop_s, problems + wrong)


def judge(run, options):
    """What is wrong with a run."""
    problems = run.problems + run.attacked.problems + run.quiet.problems
    if run.attacked.answers == 0:
        problems.append("the honest session got no answer")
    if run.attack.answers and run.received == 0:
        problems.append("hostile sessions got no answer")
    if options.slice and run.attacked.between and (turns := statistics.median(run.attacked.between)) > BETWEEN_MOST:
        problems.append(f"{turns} hostile turns in the median while one honest answer is waited for; at most {BETWEEN_MOST} are allowed")
    for name, part, floor, bound in (("median", 0.5, MEDIAN_FLOOR_S, options.bound_median), ("p99", 0.99, P99_FLOOR_S, options.bound_p99)):
        if bound is not None and not (times := run.multiple(part, floor)) <= bound:
            problems.append(f"the honest session's {name} is {times:.1f} times what it is alone; at most {bound} is allowed")
    return problems


HEADINGS = (
    f"{'attack':28} {'hostile MB':>10} {'between':>10}   {'p50 us alone, beside':>20} {'times':>6}   {'p99 us alone, beside':>20} {'times':>6} {'longest ms':>10}"
    f" {'stop ms':>8} {'RSS MiB':>8}"
)


def row(run):
    def times(part):
        alone, beside = percentile(run.quiet.waits, part), percentile(run.attacked.waits, part)
        return f"{alone * 1e6:>9.0f} {beside * 1e6:>10.0f} {beside / alone:>6.1f}"

    between = f"{statistics.median(run.attacked.between):.0f}/{max(run.attacked.between)}" if run.attacked.between else "-"
    longest = (run.attacked.waits or [0])[-1] * 1e3
    return (
        f"{run.attack.name:28} {run.received / 1e6:>10.1f} {between:>10}   {times(0.5)}   {times(0.99)} {longest:>10.1f} {run.stop_s * 1e3:>8.0f}"
        f" {run.resident / MEBIBYTE:>8.0f}"
    )


def parse(arguments):
    slice_help = "some requests beside some attacks, judged by counts"
    return attack_options.parse("tests.soak.ovsdb_work", __doc__, "honest session", 4, slice_help, arguments)


# The kinds of work that a session can make; one attack of each in the gate.
SLICE = ("echo, new sessions", "get_schema", "locks, new sessions", "selects without a match", "monitor", "monitors of the honest table", "waits")


def main(arguments=None):
    options = parse(arguments)
    known = {attack.name: attack for attack in ATTACKS}
    names = attack_options.choose(options, known, SLICE if options.slice else list(known))
    if not names:
        return 0
    quiet_s, attacked_s, most = (SLICE_S, SLICE_S, HONEST_REQUESTS) if options.slice else (options.seconds / 2, options.seconds, 1 << 30)
    failed = 0
    print(HEADINGS, flush=True)
    for name in names:
        done = run(known[name], quiet_s, attacked_s, most)
        print(row(done), flush=True)
        for problem in judge(done, options):
            print(f"  FAILED {name}: {problem}", flush=True)
            failed += 1
    print("soak of bounded work in OVSDB: " + ("failed" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
