"""Soak of bounded work: every attack on the workers' time (`tests/soak/attacks.py`), one after the other, beside an honest client.

    python -m tests.soak.work                                         all attacks; part of `make soak-hostile`
    python -m tests.soak.work --attack look-ups "STAT vbucket-details"      these alone, by their names; --list shows them
    python -m tests.soak.work --slice                                 200 honest requests beside each, judged by counts; part of the gate

Each attack has a node of its own with a bucket to be attacked. An honest client, another user with another bucket, on a connection of its
own in a process of its own, reads a document every millisecond: first alone, then beside the attack. What it could not ask in time, because
an answer was late, counts as a wait from its turn until that answer. GETs of /health and /health/ready go on beside it. In the end SIGTERM
comes while the attack goes on.

Checked:
  answers    every answer that the honest client gets is right, and it gets some
  attack     hostile connections are not refused when they greet: they log in and open the bucket
  health     every request of /health and /health/ready is answered with 200, in HEALTH_S
  stop       SIGTERM ends the node with 0 in STOP_S
  counts     with --slice: hostile turns that are answered while the honest client waits for one answer are in the median at most
             BETWEEN_MOST. (A turn is what a connection sends in one go, up to 64 requests.)
  --bound-median, --bound-p99: the honest client's times beside the attack, as multiples of those alone
Printed: these times and multiples, the longest wait, and the processor time that the attackers and the node took.
"""

import contextlib
import dataclasses
import http.client
import multiprocessing
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

from tests import servers
from tests.frames import GET, SUCCESS, BinaryConnection, request

from . import attack_options, attacks
from .attacks import ADMINISTRATOR, ATTACKED_BUCKET, ATTACKER, HONEST, HONEST_BUCKET, PASSWORD
from .crowd import Attackers, Shared
from .hostile import percentile

NODE_MIB, ATTACKED_MIB, HONEST_MIB = 1024, 256, 64
HONEST_DOCUMENTS = 100
HONEST_VALUE = b"honest" * 40
# The honest client asks this often.
EVERY_S = 0.001
# From the start of an attack on until it is measured.
UNDER_WAY_S = 0.3
# Maximum wait for more bytes before the deadline is looked at.
LOOK_S = 0.05
# What the last answer may take longer than the time that is measured.
GRACE_S = 0.5
HEALTH_EVERY_S, HEALTH_S = 0.1, 2
STOP_S = 10
# If each hostile connection has a turn between two of the honest one it is 200, or 100 on each worker.
BETWEEN_MOST = 10
# In the gate so many honest requests are made beside each attack; this long at most.
SLICE_REQUESTS, SLICE_S = 200, 5
TICKS = os.sysconf("SC_CLK_TCK")
HEAD_BYTES, EXTRAS_BYTES = 24, 4


@dataclasses.dataclass
class Measured:
    """What an honest client saw: sorted waits in seconds, hostile turns answered during each request, and what went wrong."""

    waits: list
    between: list
    problems: list
    answers: int = 0
    # The last wait had no end.
    unanswered: bool = False


class Honest:
    """The process's client: it asks for one document after the other."""

    def __init__(self, connection, shared):
        self.socket, self.shared = connection.socket, shared
        keys = [b"honest-%d" % number for number in range(HONEST_DOCUMENTS)]
        for number, key in enumerate(keys):
            answer = connection.store(key, HONEST_VALUE + key, vbucket=number)
            assert answer.status == SUCCESS, answer
        self.asked = [(request(GET, key, vbucket=number), HONEST_VALUE + key) for number, key in enumerate(keys)]
        self.socket.setblocking(True)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, int(LOOK_S * 1e6)))

    def answer(self, length, deadline):
        """The bytes that come before the deadline, at most this many."""
        data = b""
        while len(data) < length and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                if not (more := self.socket.recv(length - len(data))):
                    break
                data += more
        return data

    def measure(self, seconds, most):
        """Asks every EVERY_S, for this long or this often. A turn that passes while an answer is late has waited from then on."""
        found, number, turns = Measured([], [], []), 0, self.shared.turns
        turn = began = time.monotonic()
        deadline = began + seconds
        while turn < deadline and number < most and not found.problems and not found.unanswered:
            time.sleep(max(0, turn - time.monotonic()))
            data, value = self.asked[number % HONEST_DOCUMENTS]
            length = HEAD_BYTES + EXTRAS_BYTES + len(value)
            before, sent = turns.value, time.monotonic()
            try:
                self.socket.sendall(data)
                got = self.answer(length, deadline + GRACE_S)
            except OSError as error:
                found.problems.append(f"honest client: {error}")
                break
            now = time.monotonic()
            found.waits.append(now - sent)
            turn += EVERY_S
            while turn < min(now, deadline):
                found.waits.append(now - turn)
                turn += EVERY_S
            found.between.append(turns.value - before)
            number += 1
            if len(got) < length and now >= deadline:
                # Nothing is asked over this connection any more.
                found.unanswered = True
            elif len(got) < length or got[6:8] != b"\0\0" or got[HEAD_BYTES + EXTRAS_BYTES :] != value:
                found.problems.append(f"honest client: {got[:80]!r} for document {number - 1}")
        found.answers = number - found.unanswered
        found.waits.sort()
        return found


def honest(address, shared, pipe):
    client = Honest(BinaryConnection.opened(address, bucket=HONEST_BUCKET, user=HONEST, password=PASSWORD), shared)
    pipe.send("connected")
    while (wanted := pipe.recv()) is not None:
        pipe.send(client.measure(*wanted))


class HonestProcess:
    def __init__(self, address, shared):
        self.pipe, pipe = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=honest, args=(address, shared, pipe), daemon=True)
        self.process.start()
        assert self.pipe.poll(20) and self.pipe.recv() == "connected"

    def measure(self, seconds, most=1 << 30):
        self.pipe.send((seconds, most))
        if not self.pipe.poll(seconds + 20):
            return Measured([], [], ["the honest client has no result"])
        return self.pipe.recv()

    def stop(self):
        self.pipe.send(None)
        self.process.join(20)


class Health:
    """Asks for /health and /health/ready until it is stopped."""

    def __init__(self, address):
        self.address, self.answers, self.slowest_s, self.problems = address, 0, 0.0, []
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.end.wait(HEALTH_EVERY_S):
            for path in ("/health", "/health/ready"):
                began = time.monotonic()
                connection = http.client.HTTPConnection(*self.address, timeout=HEALTH_S)
                try:
                    connection.request("GET", path)
                    status = connection.getresponse().status
                    self.answers += 1
                    if status != 200:
                        self.problems.append(f"{path}: {status}")
                except (OSError, http.client.HTTPException) as error:
                    self.problems.append(f"{path}: {error!r}")
                finally:
                    connection.close()
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def stop(self):
        self.end.set()
        self.thread.join(20)


def processor_s(pid):
    """Processor time that a process has had."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclasses.dataclass
class Run:
    """What has come of an attack."""

    attack: attacks.Attack
    quiet: Measured | None
    attacked: Measured
    # Per second.
    answered: float
    statuses: dict
    closed: int
    health: Health
    attackers_cpu: float
    node_cpu: float
    stop_s: float
    problems: list

    def multiple(self, part):
        return percentile(self.attacked.waits, part) / percentile(self.quiet.waits, part)


def config(attack):
    return (
        f'[node]\nmemory = "{NODE_MIB}MiB"\n[[memcached]]\naddress = "127.0.0.1:0"\nbucket = "{ATTACKED_BUCKET}"\n'
        f'[[bucket]]\nname = "{ATTACKED_BUCKET}"\nmemory = "{ATTACKED_MIB}MiB"\nkind = "{attack.kind}"\nvbuckets = {attack.vbuckets}\n'
        f'[[bucket]]\nname = "{HONEST_BUCKET}"\nmemory = "{HONEST_MIB}MiB"\n'
    )


def start(home, attack):
    secret = pathlib.Path(home) / "password"
    secret.write_text(PASSWORD + "\n")
    secret.chmod(0o600)
    login = ("--user", ADMINISTRATOR, "--password-file", str(secret))
    return servers.Dormouse(*login, home=home, buckets=(), config=config(attack), ports={"memcached": None})


def prepare(node, attack):
    for name, roles in attacks.ROLES.items():
        attacks.put_user(node, name, roles)
    if attack.prepare is not None:
        with BinaryConnection.opened(node.kv, timeout_s=60, bucket=ATTACKED_BUCKET, user=ATTACKER, password=PASSWORD) as client:
            attack.prepare(node, client)


def stop(node):
    """Sends SIGTERM; returns how long the end has taken and what was wrong with it."""
    began = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    try:
        code = node.process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        node.kill()
        return time.monotonic() - began, [f"SIGTERM has not ended it in {STOP_S} s"]
    return time.monotonic() - began, [f"SIGTERM: exit code {code}\n{node.log()}"] if code else []


def run(attack, quiet_s, attacked_s, most):
    shared = Shared()
    with tempfile.TemporaryDirectory(prefix="dormouse-work-") as home, start(home, attack) as node:
        prepare(node, attack)
        client = HonestProcess(node.kv, shared)
        quiet = client.measure(quiet_s) if quiet_s else None
        attackers = Attackers(attack, getattr(node, attack.port), shared)
        health = Health(node.http)
        pids = (attackers.process.pid, node.pid)
        attackers.start()
        time.sleep(UNDER_WAY_S)
        before, began, had_answers = [processor_s(pid) for pid in pids], time.monotonic(), shared.answered.value
        attacked = client.measure(attacked_s, most)
        problems = [] if node.alive() else [f"the node has ended\n{node.log()}"]
        seconds, answered = time.monotonic() - began, shared.answered.value - had_answers
        cpus = [(processor_s(pid) - had) / seconds for pid, had in zip(pids, before)] if not problems else [0, 0]
        health.stop()
        stop_s, wrong = stop(node)
        statuses, closed = attackers.stop()
        client.stop()
    return Run(attack, quiet, attacked, answered / seconds, statuses, closed, health, *cpus, stop_s, problems + wrong)


def judge(run, options):
    """What is wrong with a run."""
    problems = run.problems + run.attacked.problems + (run.quiet.problems if run.quiet else [])
    if run.attacked.answers == 0:
        problems.append("the honest client got no answer")
    if refused := [name for name in run.statuses if name.startswith("greeting")]:
        problems.append(f"hostile connections: {refused}")
    if run.health.problems:
        problems.append(f"health: {len(run.health.problems)} problems, such as {run.health.problems[0]}")
    if run.health.answers == 0:
        problems.append("health: no answer")
    if options.slice and statistics.median(run.attacked.between) > BETWEEN_MOST:
        turns = statistics.median(run.attacked.between)
        problems.append(f"{turns} hostile turns in the median while one honest answer is waited for; at most {BETWEEN_MOST} are allowed")
    for name, part, bound in (("median", 0.5, options.bound_median), ("p99", 0.99, options.bound_p99)):
        if bound is not None and not run.multiple(part) <= bound:
            problems.append(f"the honest client's {name} is {run.multiple(part):.1f} times what it is alone; at most {bound} is allowed")
    return problems


HEADINGS = (
    f"{'attack':24} {'hostile/s':>9} {'between':>12}   {'p50 us alone, beside':>20} {'times':>6}   {'p99 us alone, beside':>20} {'times':>6}"
    f" {'longest ms':>10} {'health ms':>9} {'stop ms':>8} {'CPU hostile, node':>17}"
)


def row(run):
    between = f"{statistics.median(run.attacked.between):.0f}/{max(run.attacked.between)}" if run.attacked.between else "-"

    def times(part):
        beside = percentile(run.attacked.waits, part)
        if run.quiet is None:
            return f"{beside * 1e6:>20.0f} {'':>6}"
        alone = percentile(run.quiet.waits, part)
        return f"{alone * 1e6:>9.0f} {beside * 1e6:>10.0f} {beside / alone:>6.1f}"

    longest = (run.attacked.waits or [0])[-1] * 1e3
    health = f"{run.health.slowest_s * 1e3:.0f}" + ("!" if run.health.problems else "")
    return (
        f"{run.attack.name:24} {run.answered:>9.0f} {between:>12}   {times(0.5)}   {times(0.99)} {longest:>10.1f} {health:>9}"
        f" {run.stop_s * 1e3:>8.0f} {run.attackers_cpu:>8.0%} {run.node_cpu:>8.0%}"
    )


def parse(arguments):
    return attack_options.parse("tests.soak.work", __doc__, "honest client", 5, "one second of each attack, judged by counts", arguments)


def main(arguments=None):
    options = parse(arguments)
    known = {attack.name: attack for attack in (*attacks.ATTACKS, *attacks.GROUPS)}
    names = attack_options.choose(options, known, [attack.name for attack in attacks.ATTACKS])
    if not names:
        return 0
    quiet_s, attacked_s, most = (0, SLICE_S, SLICE_REQUESTS) if options.slice else (options.seconds / 2, options.seconds, 1 << 30)
    failed = 0
    print(HEADINGS, flush=True)
    for attack in map(known.get, names):
        done = run(attack, quiet_s, attacked_s, most)
        print(row(done), flush=True)
        print(f"  answers by status: {done.statuses}, connections closed: {done.closed}, honest answers: {done.attacked.answers}")
        for problem in judge(done, options):
            print(f"  FAILED {attack.name}: {problem}", flush=True)
            failed += 1
    print("soak of bounded work: " + ("failed" if failed else "passed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
