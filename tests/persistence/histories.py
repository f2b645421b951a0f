"""Records what several clients do to the same keys, with kills in between, for the checker in linear.py.

    python -m tests.persistence.histories --epochs 200      (make kv-linear)
"""

import argparse
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import threading
import time

from tests import frames
from tests.frames import AMBIGUOUS, IN_PROGRESS, NOT_FOUND, NOT_STORED, SUCCESS, TEMPORARY_FAILURE, durability
from tests.servers import Dormouse

from . import linear
from .crash import CONFIG
from .linear import ADD, CAS, COUNT, DELETE, DONE, EXISTS, GET, KILL, MISSING, NEVER, SET, STOP, UNKNOWN, Operation
from .peer import MAJORITY, PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY, Peer

CLIENTS = 4
DOCUMENTS = [b"linear-%d" % n for n in range(3)]
COUNTERS = [b"linear-counter-%d" % n for n in range(2)]
LEVELS = (0,) * 5 + (MAJORITY, PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY)
KINDS = (GET,) * 5 + (SET,) * 3 + (ADD, CAS, CAS, CAS, DELETE)
OPCODES = {GET: frames.GET, SET: frames.SET, CAS: frames.SET, ADD: frames.ADD, DELETE: frames.DELETE, COUNT: frames.INCREMENT}
# Maximum operations per client and epoch: the search tries all orders of overlapping operations.
OPERATIONS_MOST = 400
# Operations of all clients before a kill or a stop: fewer than their total, so that some are still working then.
OPERATIONS_BEFORE_END = (40, 1000)
assert OPERATIONS_BEFORE_END[1] < CLIENTS * OPERATIONS_MOST
NO_EFFECT = (TEMPORARY_FAILURE, IN_PROGRESS)


class Client(threading.Thread):
    def __init__(self, server, seed, name):
        super().__init__(daemon=True)
        self.random, self.name_of_values = random.Random(seed), name
        self.peer = Peer(server.kv)
        self.number, self.known_cas, self.problem = 0, {}, None
        self.operations = {key: [] for key in DOCUMENTS + COUNTERS}
        self.stopping = False

    def run(self):
        try:
            while not self.stopping and self.number < OPERATIONS_MOST:
                self.number += 1
                if not self.one(self.random.choice(DOCUMENTS + COUNTERS)):
                    return
        except AssertionError as error:
            self.problem = error
        finally:
            self.peer.close()

    def one(self, key):
        """Performs one operation and records it; returns false if the server is gone."""
        is_counter = key in COUNTERS
        kind = self.random.choice((GET, COUNT, COUNT, COUNT, DELETE) if is_counter else KINDS)
        expected = self.known_cas.get(key) if kind == CAS else None
        if kind == CAS and not expected:
            kind = GET
        level = self.random.choice(LEVELS) if kind != GET else 0
        if kind == DELETE and self.random.random() < 0.6:
            level = 0
        value = f"{self.name_of_values}.{self.number}" if kind in (SET, ADD, CAS) else None
        delta = self.random.randrange(1, 5)
        extras = struct.pack(">QQI", delta, 0, 0) if kind == COUNT else struct.pack(">II", 0, 0) if value else b""
        called = time.monotonic_ns()
        try:
            answer = self.peer.ask(
                OPCODES[kind], key, (value or "").encode(), extras, vbucket=self.peer.vbucket(key), cas=expected or 0,
                framing=durability(level, 30_000) if level else None,
            )
        except (OSError, EOFError):
            answer = None
        returned = time.monotonic_ns()

        def note(word, value=value, cas=None):
            until = NEVER if word == UNKNOWN else returned
            self.operations[key].append(Operation(kind, called, until, word, value, cas, expected, level, delta))

        if answer is None:
            if kind != GET:
                note(UNKNOWN)
            return False
        status = answer.status
        if status == AMBIGUOUS:
            note(UNKNOWN)
        elif status == SUCCESS and kind == GET:
            self.known_cas[key] = answer.cas
            note(DONE, int(answer.value) if is_counter else answer.value.decode(), answer.cas)
        elif status == SUCCESS:
            note(DONE, int.from_bytes(answer.value, "big") if kind == COUNT else value, answer.cas)
            if kind in (SET, ADD, CAS):
                self.known_cas[key] = answer.cas
        elif status == NOT_FOUND and kind in (GET, DELETE, CAS):
            note(MISSING)
        elif status in (frames.EXISTS, NOT_STORED) and kind in (ADD, CAS):
            note(EXISTS)
        else:
            assert status in NO_EFFECT, f"{kind} of {key}, level {level}: status {status:#x} {answer.value[:200]}"
        return True


def await_operations(clients, count):
    while sum(one.number for one in clients) < count and any(one.is_alive() for one in clients):
        time.sleep(0.0005)


def record(epochs, seed, say=lambda text: None):
    """Runs the epochs and checks each key's history; returns {key: epochs}. Raises linear.NotLinearizable and keeps the
    directory."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="kv-linear-"))
    rng = random.Random(seed)
    histories = {key: [] for key in DOCUMENTS + COUNTERS}
    checkers = {key: linear.Checker() for key in histories}
    for number in range(epochs):
        server = Dormouse(home=home, buckets=(), config=CONFIG)
        try:
            with Peer(server.kv) as peer:
                peer.await_warm_up()
            clients = [Client(server, f"{seed}.{number}.{client}", f"{number}.{client}") for client in range(CLIENTS)]
            for one in clients:
                one.start()
            await_operations(clients, rng.randrange(*OPERATIONS_BEFORE_END))
            end = STOP if rng.random() < 0.15 else KILL
            if end == STOP:
                for one in clients:
                    one.stopping = True
                for one in clients:
                    one.join()
                assert server.stop() == 0, server.last_log
            else:
                server.kill()
        finally:
            server.kill()
        for one in clients:
            one.join()
            assert one.problem is None, f"seed {seed}: {one.problem}"
        for key, history in histories.items():
            operations = sum((one.operations[key] for one in clients), [])
            history.append((operations, end))
            try:
                checkers[key].epoch(operations, end)
            except linear.NotLinearizable as error:
                raise linear.NotLinearizable(f"seed {seed}, epoch {number}, key {key}: {error}\nkept: {home}") from None
        if number % 10 == 9:
            say(f"  {number + 1} epochs, {sum(len(done) for history in histories.values() for done, _ in history)} operations")
    shutil.rmtree(home)
    return histories


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests.persistence.histories")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"kv linear: seed {seed}", flush=True)
    histories = record(options.epochs, seed, say=lambda text: print(text, flush=True))
    count = sum(len(done) for history in histories.values() for done, _ in history)
    print(f"kv linear: seed {seed}, {count} operations on {len(histories)} keys in {options.epochs} epochs are linearizable")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
