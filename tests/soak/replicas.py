"""Soak of three nodes that copy from each other, while they are killed, paused, promoted and relieved.

    python -m tests.soak.replicas --seconds 600
    python -m tests.soak.replicas --seconds 60 --kind ephemeral --seed 3

Clients write durably (level "majority") all the time. In between something happens to a node: it is killed and started again, paused,
stopped in order; the active is lost, and the replica that has most is promoted; or the active is relieved by a take-over. After each of
these the clients pause, and it is checked:

  durable    every key has the last value that was acknowledged, or one that was written later and whose outcome is not known
  equal      all three nodes have the same versions, with seqnos, CAS and all else
  alive      nothing has panicked, and whoever is stopped in order exits with 0

A node is at fault at a time: with two of three left, nothing acknowledged may be lost.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
import zlib

from tests.cluster import Cluster
from tests.frames import (
    AMBIGUOUS, TEMPORARY_FAILURE, GET, IN_PROGRESS, NOT_FOUND, NOT_MY_VBUCKET, RE_COMMIT, SET, SUCCESS, BinaryConnection, durability, request,
)
from tests.persistence.bucket import wait_until

VBUCKETS = 16
WRITERS = 3
KEYS = 400
BATCH = 40
TIMEOUT_MS = 5000
PATIENCE_S = 60
CONFIG = """
[[bucket]]
name = "default"
kind = "{kind}"
memory = "256MiB"
vbuckets = {vbuckets}
"""


def vbucket_of(key):
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % VBUCKETS


class Writer(threading.Thread):
    """Writes its own keys; `values` has for each what may be read: the last that was acknowledged, and later ones."""

    def __init__(self, number, soak):
        super().__init__(daemon=True)
        self.soak, self.random = soak, random.Random(f"{soak.seed}/{number}")
        self.keys = [b"%d-%d" % (number, key) for key in range(KEYS)]
        self.values = {key: [None] for key in self.keys}
        self.version = 0
        self.acknowledged = self.ambiguous = 0
        self.connections = {}
        self.pause, self.paused, self.ends = threading.Event(), threading.Event(), False

    def run(self):
        while not self.ends:
            if self.pause.is_set():
                self.paused.set()
                time.sleep(0.01)
                continue
            self.paused.clear()
            self.write_some()
        for connection in self.connections.values():
            connection.close()

    def write_some(self):
        name = self.random.choice(self.soak.names)
        mine = [key for key in self.keys if self.soak.active[vbucket_of(key)] == name]
        if not mine:
            time.sleep(0.01)
            return
        keys = self.random.sample(mine, min(BATCH, len(mine)))
        written = {}
        for key in keys:
            self.version += 1
            written[key] = b"%d:" % self.version + b"v" * self.random.randrange(300)
            self.values[key].append(written[key])
        answered = set()
        try:
            connection = self.connection(name)
            framing = durability(1, TIMEOUT_MS)
            for key, value in written.items():
                connection.send(request(SET, key, value, bytes(8), vbucket=vbucket_of(key), framing=framing))
            for key, value in written.items():
                answer = connection.response()
                if answer is None:
                    raise ConnectionError("closed")
                answered.add(key)
                self.settle(key, value, answer.status)
        except OSError:
            connection = self.connections.pop(name, None)
            if connection:
                connection.close()
            time.sleep(0.02)

    def settle(self, key, value, status):
        if status == SUCCESS:
            self.acknowledged += 1
            self.values[key] = self.values[key][self.values[key].index(value) :]
        elif status == AMBIGUOUS:
            self.ambiguous += 1
        else:
            assert status in (NOT_MY_VBUCKET, IN_PROGRESS, RE_COMMIT, TEMPORARY_FAILURE), status
            self.values[key].remove(value)

    def connection(self, name):
        if name not in self.connections:
            self.connections[name] = BinaryConnection.opened(self.soak.cluster[name].kv)
        return self.connections[name]

    def check(self):
        """Compares what is there with what may be; returns what is wrong. What was read stays."""
        wrong = []
        for name in self.soak.names:
            mine = [key for key in self.keys if self.soak.active[vbucket_of(key)] == name]
            if not mine:
                continue
            with BinaryConnection(self.soak.cluster[name].kv, timeout_s=30) as connection:
                connection.open_bucket()
                for key in mine:
                    read = lambda: connection.ask(GET, key, vbucket=vbucket_of(key))
                    answer = wait_until(lambda: (found := read()).status in (SUCCESS, NOT_FOUND) and found, f"{key} on {name}", PATIENCE_S)
                    value = answer.value if answer.status == SUCCESS else None
                    if value not in self.values[key]:
                        shown = [one and one[:20] for one in self.values[key]]
                        wrong.append(f"{key} on {name} is {value and value[:20]}, and not one of {shown}")
                    self.values[key] = [value]
        return wrong


class Soak:
    relayed = ()

    def __init__(self, home, options):
        self.seed, self.kind = options.seed, options.kind
        self.random = random.Random(options.seed)
        config = CONFIG.format(kind=options.kind, vbuckets=VBUCKETS)
        self.cluster = Cluster(home, 3, buckets=(), config=config, relayed=self.relayed)
        self.names = self.cluster.names
        self.term, self.active = 1, {}
        self.problems, self.faults = [], {}
        for vb in range(VBUCKETS):
            self.assign(vb, self.names[vb % 3])

    def assign(self, vb, active, without=None):
        chain = [active, *(name for name in self.names if name != active)]
        self.cluster.assign(chain, (vb, vb), term=self.term, without=without)
        self.active[vb] = active

    def role(self, name, vb):
        return self.cluster.role(name, vb)

    def away(self, name):
        """A node is lost: of each vBucket that it was the active of, the replica that has most is promoted."""
        self.term += 1
        others = [other for other in self.names if other != name]
        for vb, active in list(self.active.items()):
            if active == name:
                # A majority must have promised before one of them is chosen: what is acknowledged later is of the new term.
                for other in others:
                    self.cluster.set_role(other, (vb, vb), source="", term=self.term)
                rank = lambda role: (role["history_term"], role["complete_seqno"])
                best = max(others, key=lambda other: rank(self.role(other, vb)))
                self.assign(vb, best, without=name)

    def back(self, name):
        """A node is there again."""
        for vb, active in self.active.items():
            chain = [active, *(other for other in self.names if other != active)]
            self.cluster.set_role(name, (vb, vb), state="replica", source=active, topology=[chain], term=self.role(active, vb)["term"])

    # ---- faults ----

    def kill(self):
        name = self.random.choice(self.names)
        self.cluster.kill(name)
        time.sleep(self.random.random() * 0.5)
        self.away(name)
        time.sleep(self.random.random())
        self.cluster.restart(name)
        self.back(name)

    def kill_and_come_back(self):
        """A persistent node that is killed comes back before anybody has decided: as a replica, and pending where it was active."""
        if self.kind == "ephemeral":
            return self.kill()
        name = self.random.choice(self.names)
        self.cluster.kill(name)
        time.sleep(self.random.random() * 0.3)
        self.cluster.restart(name)
        for vb, active in self.active.items():
            expected = "pending" if active == name else "replica"
            if (state := self.role(name, vb)["state"]) != expected:
                self.problems.append(f"vBucket {vb} of {name} came back as {state}")
        time.sleep(self.random.random() * 0.3)
        self.away(name)
        self.back(name)

    def stop(self):
        name = self.random.choice(self.names)
        self.away(name)
        code = self.cluster[name].stop()
        if code != 0:
            self.problems.append(f"{name} exited with {code}: {self.cluster[name].last_log}")
        time.sleep(self.random.random())
        self.cluster.restart(name)
        self.back(name)

    def pause(self):
        name = self.random.choice(self.names)
        self.cluster.pause(name)
        time.sleep(self.random.random() * 1.5)
        self.cluster.go_on(name)

    def depose(self):
        """An active that is paused is deposed, and learns of it late."""
        name = self.random.choice(self.names)
        self.cluster.pause(name)
        self.away(name)
        time.sleep(self.random.random() * 0.5)
        self.cluster.go_on(name)
        time.sleep(self.random.random() * 0.3)
        self.back(name)

    def move(self):
        """Some vBuckets are taken over."""
        for vb in self.random.sample(range(VBUCKETS), 5):
            old = self.active[vb]
            new = self.random.choice([name for name in self.names if name != old])
            third = next(name for name in self.names if name not in (old, new))
            self.cluster.set_role(new, (vb, vb), state="pending", source=old, topology=[[new, old, third]], takeover=True)
            wait_until(lambda: self.role(new, vb)["state"] == "active", f"{new} as the active of {vb}", PATIENCE_S)
            self.term = max(self.term, self.role(new, vb)["term"])
            self.active[vb] = new
            for name in (old, third):
                term = self.role(new, vb)["term"]
                self.cluster.set_role(name, (vb, vb), state="replica", source=new, topology=[[new, old, third]], term=term)

    # ---- checks ----

    def check(self, writers):
        for writer in writers:
            writer.pause.set()
        for writer in writers:
            wait_until(writer.paused.is_set, "the pause of a client", PATIENCE_S)
        for writer in writers:
            self.problems += writer.check()
        for vb, active in self.active.items():
            for name in self.names:
                if name != active and not self.is_equal(vb, active, name):
                    self.problems.append(f"vBucket {vb} of {name} is not that of {active}: {self.role(active, vb)} {self.role(name, vb)}")
        for name in self.names:
            if "panicked" in self.cluster[name].log():
                self.problems.append(f"a panic of {name}: {self.cluster[name].log()}")
        for writer in writers:
            writer.paused.clear()
            writer.pause.clear()

    def is_equal(self, vb, active, name):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            same = self.cluster.history(active, vb) == self.cluster.history(name, vb)
            if same and self.cluster.content(active, vb) == self.cluster.content(name, vb):
                return True
            time.sleep(0.05)
        return False

    def run(self, seconds):
        faults = [self.kill, self.kill_and_come_back, self.stop, self.pause, self.depose, self.move]
        writers = [Writer(number, self) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.problems:
            fault = self.random.choice(faults)
            self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
            time.sleep(self.random.random() * 0.5)
            fault()
            self.check(writers)
            count = sum(writer.acknowledged for writer in writers)
            print(f"{seconds - (ends - time.monotonic()):6.0f} s  {fault.__name__}: {count} acknowledged", flush=True)
        for writer in writers:
            writer.ends = True
        for writer in writers:
            writer.join(30)
        return sum(writer.acknowledged for writer in writers), sum(writer.ambiguous for writer in writers)


def kinds_parser(module, description):
    """Options of a soak of both kinds of bucket."""
    parser = argparse.ArgumentParser(prog=module, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("ephemeral", "persistent"), help="both, one after the other, without it")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000_000))
    return parser


def kinds_of(options):
    return [options.kind] if options.kind else ["persistent", "ephemeral"]


def main(arguments):
    parser = kinds_parser("tests.soak.replicas", __doc__)
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args(arguments)
    kinds = kinds_of(options)
    problems = []
    print(f"soak of replicas: seed {options.seed}, {options.seconds} s")
    for kind in kinds:
        options.kind = kind
        with tempfile.TemporaryDirectory(prefix="dormouse-soak-") as home:
            soak = Soak(home, options)
            try:
                acknowledged, ambiguous = soak.run(options.seconds / len(kinds))
            finally:
                soak.cluster.stop()
            faults = ", ".join(f"{name} {count}" for name, count in sorted(soak.faults.items()))
            print(f"{kind}: {acknowledged} durable writes acknowledged, {ambiguous} ambiguous; faults: {faults}")
            if acknowledged == 0:
                soak.problems.append("nothing was acknowledged")
            problems += [f"{kind}: {text}" for text in soak.problems]
    for text in problems:
        print(f"PROBLEM: {text}")
    print("soak of replicas: " + (f"{len(problems)} problems" if problems else "passed"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
