"""Histories of three nodes that copy from each other, judged by porcupine: is each key linearizable?

    python -m tests.soak.histories --seconds 300
    python -m tests.soak.histories --seconds 60 --kind ephemeral --seed 3

Several clients read, and write durably, the same few keys, while the faults of tests/soak/replicas.py happen to the nodes: killed, paused,
stopped, relieved. After each fault the clients begin with new keys, and the histories of the old ones are judged.

An active that is paused while another is promoted is left out: until it is told, it answers reads with what was (docs/replication.md).
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

from tests.frames import (
    ADD, AMBIGUOUS, DELETE, EXISTS, GET, IN_PROGRESS, NOT_FOUND, NOT_MY_VBUCKET, NOT_STORED, RE_COMMIT, SET, SUCCESS, TEMPORARY_FAILURE,
    BinaryConnection, durability,
)

from .replicas import PATIENCE_S, Soak, kinds_of, kinds_parser, vbucket_of, wait_until

CLIENTS = 4
KEYS = 5
# Between two operations of a client; operations of a client after a fault.
PACE_S = 0.006
AFTERWARDS = 40
TIMEOUT_MS = 5000
OPCODES = {"get": GET, "set": SET, "add": ADD, "cas": SET, "delete": DELETE}
KINDS = ("get",) * 5 + ("set", "set", "add", "cas", "cas", "delete")
LEVELS = {"ephemeral": (1,), "persistent": (1, 2, 3)}
NO_EFFECT = (NOT_MY_VBUCKET, IN_PROGRESS, RE_COMMIT, TEMPORARY_FAILURE)
# Returns after everything else.
NEVER_NS = 2**62


def judge_program(directory):
    program = pathlib.Path(directory) / "judge"
    built = subprocess.run(["go", "build", "-o", str(program), "./judge"], cwd=pathlib.Path(__file__).parent.parent / "go", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


def judge(program, histories):
    """The verdict on each key."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(histories, file)
        file.flush()
        done = subprocess.run([str(program), file.name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Client(threading.Thread):
    levels, no_effect = LEVELS, NO_EFFECT

    def __init__(self, number, soak, epoch):
        super().__init__(daemon=True)
        self.number, self.soak, self.epoch = number, soak, epoch
        self.random = random.Random(f"{soak.seed}/{epoch}/{number}")
        self.keys = [f"{epoch}-{key}" for key in range(KEYS)]
        self.history = {key: [] for key in self.keys}
        self.known = {}
        # Operations that were answered by what they ask for.
        self.done = 0
        self.connections, self.count, self.ends, self.problem = {}, 0, False, None

    def run(self):
        try:
            while not self.ends:
                self.one(self.random.choice(self.keys))
                time.sleep(self.random.random() * PACE_S)
        except BaseException as error:
            self.problem = error
        finally:
            for connection in self.connections.values():
                connection.close()

    def connection(self, name):
        if name not in self.connections:
            self.connections[name] = BinaryConnection.opened(self.soak.cluster[name].kv)
        return self.connections[name]

    def one(self, key):
        """Performs one operation, and notes it unless it had no effect."""
        self.count += 1
        vb, kind = vbucket_of(key.encode()), self.random.choice(KINDS)
        expected, cas = self.known.get(key, ("", 0)) if kind == "cas" else ("", 0)
        if kind == "cas" and not cas:
            kind = "get"
        value = f"{self.number}.{self.count}" if kind in ("set", "add", "cas") else ""
        framing = durability(self.random.choice(self.levels[self.soak.kind]), TIMEOUT_MS) if kind != "get" else None
        name, has_begun = self.soak.active[vb], False
        called = time.monotonic_ns()
        try:
            connection = self.connection(name)
            has_begun = True
            extras = bytes(8) if value else b""
            answer = connection.ask(OPCODES[kind], key.encode(), value.encode(), extras, vbucket=vb, cas=cas, framing=framing)
        except OSError:
            answer = None
        returned = time.monotonic_ns()
        if answer is None:
            if (connection := self.connections.pop(name, None)) is not None:
                connection.close()
            if has_begun and kind != "get":
                self.note(key, called, NEVER_NS, kind, value, expected, "unknown")
            time.sleep(0.02)
            return
        status = answer.status
        if status == SUCCESS:
            self.done += 1
            found = answer.value.decode() if kind == "get" else ""
            self.note(key, called, returned, kind, value, expected, "done", found)
            if kind != "delete":
                self.known[key] = (found or value, answer.cas)
        elif status == AMBIGUOUS:
            self.note(key, called, NEVER_NS, kind, value, expected, "unknown")
        elif status == NOT_FOUND:
            self.note(key, called, returned, kind, value, expected, "missing")
        elif status in (EXISTS, NOT_STORED):
            self.note(key, called, returned, kind, value, expected, "exists")
        else:
            assert status in self.no_effect, f"{kind} of {key}: status {status:#x} {answer.value[:200]}"
            time.sleep(0.005)

    def note(self, key, called, returned, kind, value, expected, answer, found=""):
        one = {"client": self.number, "called": called, "returned": returned, "kind": kind, "value": value}
        self.history[key].append(one | {"expected": expected, "answer": answer, "found": found})


class Histories(Soak):
    def __init__(self, home, options, program):
        super().__init__(home, options)
        self.program, self.operations, self.unknown = program, 0, 0

    def stop(self):
        """Nobody is promoted before it has stopped: until then it answers."""
        name = self.random.choice(self.names)
        assert self.cluster[name].stop() == 0
        self.away(name)
        time.sleep(self.random.random() * 0.5)
        self.cluster.restart(name)
        self.back(name)

    def run(self, seconds):
        """So long, or until each fault has been there once."""
        faults = [self.kill, self.kill_and_come_back, self.stop, self.pause, self.move]
        ends, epoch = time.monotonic() + seconds, 0
        while (time.monotonic() < ends or epoch < len(faults)) and not self.problems:
            epoch += 1
            fault = faults[epoch - 1] if epoch <= len(faults) else self.random.choice(faults)
            self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
            clients = [Client(number, self, epoch) for number in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(self.random.random() * 0.3)
            fault()
            counts = [client.done for client in clients]
            done = lambda: all(client.done >= count + AFTERWARDS or client.problem for client, count in zip(clients, counts))
            wait_until(done, "the clients", PATIENCE_S)
            for client in clients:
                client.ends = True
            for client in clients:
                client.join(PATIENCE_S)
                assert not client.is_alive()
                if client.problem:
                    self.problems.append(repr(client.problem))
            self.judge(clients, fault.__name__)
        return epoch

    def judge(self, clients, fault):
        histories = {key: sorted(sum((client.history[key] for client in clients), []), key=lambda one: one["called"]) for key in clients[0].keys}
        for history in histories.values():
            self.operations += len(history)
            self.unknown += sum(one["answer"] == "unknown" for one in history)
        for key, verdict in judge(self.program, histories).items():
            if verdict == "undecided":
                self.problems.append(f"{key}, beside {fault}: undecided, {len(histories[key])} operations")
            elif verdict != "ok":
                lines = "\n    ".join(json.dumps(one) for one in histories[key])
                self.problems.append(f"{key}, beside {fault}: {verdict}\n    {lines}")
        print(f"  {fault}: {sum(map(len, histories.values()))} operations", flush=True)


def run(kind, seed, seconds, program):
    """Returns the finished run; its problems are what was found."""
    options = argparse.Namespace(kind=kind, seed=seed)
    with tempfile.TemporaryDirectory(prefix="dormouse-histories-") as home:
        histories = Histories(home, options, program)
        try:
            histories.run(seconds)
        finally:
            histories.cluster.stop()
    return histories


def main(arguments):
    parser = kinds_parser("tests.soak.histories", __doc__)
    parser.add_argument("--seconds", type=int, default=300)
    options = parser.parse_args(arguments)
    kinds = kinds_of(options)
    print(f"histories of replicas: seed {options.seed}, {options.seconds} s")
    problems = []
    with tempfile.TemporaryDirectory(prefix="dormouse-judge-") as directory:
        program = judge_program(directory)
        for kind in kinds:
            done = run(kind, options.seed, options.seconds / len(kinds), program)
            faults = ", ".join(f"{name} {count}" for name, count in sorted(done.faults.items()))
            print(f"{kind}: {done.operations} operations, {done.unknown} without an answer; faults: {faults}")
            problems += [f"{kind}: {text}" for text in done.problems]
    for text in problems:
        print(f"PROBLEM: {text}")
    print("histories of replicas: " + (f"{len(problems)} problems" if problems else "linearizable"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
