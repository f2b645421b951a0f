"""One process of the memory soak: batches of sets, gets, deletes and touches over one connection, with its own keys."""

import random
import socket
import time

from . import values
from .shadow import Shadow

BATCH = 64
EXPIRING = 0.03
# A full bucket may answer with temporary failures, for no longer than this.
PATIENCE_S = 5.0
RETRY_S = 0.01


class Worker:
    """`keeps`: the bucket must keep everything that has not expired."""

    def __init__(self, seed, prefix, keys, keeps):
        self.chooser = random.Random(seed)
        self.prefix, self.keys, self.keeps = prefix, keys, keeps
        self.shadow = Shadow()
        self.counts, self.wrong = {}, []

    def add(self, name, count=1):
        self.counts[name] = self.counts.get(name, 0) + count

    def fail(self, text):
        self.add("wrong")
        if len(self.wrong) < 10:
            self.wrong.append(text)

    def connect(self, address):
        self.address = address
        self.socket = socket.create_connection(address, timeout=60)
        self.reader = self.socket.makefile("rb")

    def load(self, seconds, sizes_from, sizes, sizes_s):
        ends = time.monotonic() + seconds
        while (now := time.monotonic()) < ends:
            least, most = sizes[int((now - sizes_from) / sizes_s) % len(sizes)]
            shape = self.chooser.random()
            keys = [self.prefix + b"%d" % number for number in self.chooser.sample(range(self.keys), BATCH)]
            if shape < 0.60:
                self.store([(key, self.chooser.randint(least, most)) for key in keys])
            elif shape < 0.92:
                self.fetch(keys)
            elif shape < 0.94:
                self.remove(keys)
            else:
                self.touch(keys[: BATCH // 8])

    def answers(self, count):
        return [self.reader.readline()[:-2] for _ in range(count)]

    def store(self, documents):
        """Stores all documents; retries those that are refused, if the bucket must keep everything."""
        patient_until = time.monotonic() + PATIENCE_S
        while documents:
            plans, requests = [], []
            for key, length in documents:
                expiry_s = self.chooser.randint(5, 40) if self.chooser.random() < EXPIRING else 0
                plans.append((key, length, expiry_s))
                requests.append(b"set %s %d %d %d\r\n%s\r\n" % (key, values.flags(key), expiry_s, length, values.pattern(key, length)))
            self.socket.sendall(b"".join(requests))
            refused = []
            for (key, length, expiry_s), answer in zip(plans, self.answers(len(plans))):
                self.add("store")
                if answer == b"STORED":
                    self.add("bytes", length)
                    self.shadow.wrote(key, length, time.monotonic() + expiry_s if expiry_s else None)
                elif answer.startswith(b"SERVER_ERROR out of memory"):
                    self.add("refused")
                    refused.append((key, length))
                else:
                    self.fail(f"set of {key!r}: {answer!r}")
            documents = refused if self.keeps else []
            if documents and time.monotonic() > patient_until:
                return self.fail(f"{len(documents)} sets refused for {PATIENCE_S} s")
            if documents:
                time.sleep(RETRY_S)

    def read_values(self):
        """Returns what was found by key, or None if a value cannot currently be fetched for lack of memory: the node
        then closes the connection."""
        found = {}
        while (line := self.reader.readline()) != b"END\r\n":
            if line.startswith(b"SERVER_ERROR the value is not in memory"):
                return None
            words = line.split()
            if len(words) != 4 or words[0] != b"VALUE":
                raise RuntimeError(f"{line!r} in the answer to get")
            found[words[1]] = (self.reader.read(int(words[3]) + 2)[:-2], int(words[2]))
        return found

    def fetch(self, keys):
        patient_until = time.monotonic() + PATIENCE_S
        while True:
            asked_at = time.monotonic()
            self.socket.sendall(b"get " + b" ".join(keys) + b"\r\n")
            if (found := self.read_values()) is not None:
                break
            self.add("postponed")
            self.connect(self.address)
            if time.monotonic() > patient_until:
                return self.fail(f"a get is answered with 'try again' for {PATIENCE_S} s")
            time.sleep(RETRY_S)
        now = time.monotonic()
        self.add("fetch", len(keys))
        self.add("hit", len(found))
        for key in keys:
            if key in found:
                value, flags = found[key]
                problem = values.problem(key, value, flags) or self.shadow.problem(key, len(value), asked_at)
            else:
                problem = self.shadow.loss(key, now) if self.keeps else None
            if problem:
                self.fail(problem)

    def remove(self, keys):
        self.socket.sendall(b"".join(b"delete %s\r\n" % key for key in keys))
        self.add("remove", len(keys))
        for key, answer in zip(keys, self.answers(len(keys))):
            if answer not in (b"DELETED", b"NOT_FOUND"):
                self.fail(f"delete of {key!r}: {answer!r}")
            self.shadow.removed(key)

    def touch(self, keys):
        for key in keys:
            expiry_s = self.chooser.choice((0, 10, 60))
            loss = self.shadow.loss(key, time.monotonic()) if self.keeps else None
            self.socket.sendall(b"touch %s %d\r\n" % (key, expiry_s))
            (answer,) = self.answers(1)
            self.add("touch")
            if answer == b"TOUCHED":
                self.shadow.touched(key, time.monotonic() + expiry_s if expiry_s else None)
            elif answer == b"NOT_FOUND" and loss is None:
                self.shadow.removed(key)
            else:
                self.fail(f"touch of {key!r}: {answer!r}, {loss}")

    def verify(self):
        """Reads everything back."""
        keys = list(self.shadow.states)
        for first in range(0, len(keys), BATCH):
            before = self.counts.get("hit", 0)
            self.fetch(keys[first : first + BATCH])
            self.add("verified", self.counts["hit"] - before)


def run(pipe, seed, prefix, keys, keeps):
    """Entry point of the process: executes orders, and answers with counts and errors."""
    worker = Worker(seed, prefix, keys, keeps)
    while (order := pipe.recv())[0] != "end":
        worker.counts, worker.wrong = {}, []
        what, address, *how = order
        try:
            worker.connect(address)
            getattr(worker, what)(*how)
        except Exception as error:
            worker.fail(f"{what}: {error!r}")
        pipe.send((worker.counts, worker.wrong))
