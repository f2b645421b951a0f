"""A writer: performs all operations on its own keys, with every durability level, until the server is gone.

It knows what each of its keys must hold, so it also verifies what it wrote. Requests for different keys are in flight
together, but only one per key.
"""

import itertools
import random
import struct
import threading
import time

from tests.frames import (
    ADD, AMBIGUOUS, APPEND, DELETE, EXISTS, GET, IN_PROGRESS, INCREMENT, NO_MEMORY, NOT_FOUND, NOT_STORED, REPLACE, SET, SUCCESS, TEMPORARY_FAILURE, TOUCH, durability, request,
)

from .peer import MAJORITY, PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY, Peer, token
from .values import chunk, shown
from .versions import Version

DOCUMENTS, COUNTERS = 9, 3
LARGEST = 2_500_000
EXPIRES_IN_S = 30 * 86400
# Each is given once: a touch with the expiry that a document has changes nothing.
EXPIRIES = itertools.count(int(time.time()) + EXPIRES_IN_S)
LEVELS = (None,) * 6 + (MAJORITY, PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY, PERSIST_TO_MAJORITY)
# Allowed answers to an add of an existing key, and to a replace or an append of a missing one.
REFUSED_BY_STATE = {ADD: (EXISTS, NOT_STORED), REPLACE: (NOT_FOUND,), APPEND: (NOT_STORED, NOT_FOUND), DELETE: (NOT_FOUND,), TOUCH: (NOT_FOUND,)}


def keys_of(writer):
    return [b"document-%d-%d" % (writer, n) for n in range(DOCUMENTS)] + [b"counter-%d-%d" % (writer, n) for n in range(COUNTERS)]


class Flight:
    """One request in flight. `version` is what it writes, if it changes anything."""

    def __init__(self, opcode, key, version, level, refusals=()):
        self.opcode, self.key, self.version, self.level, self.refusals = opcode, key, version, level, refusals


class Writer(threading.Thread):
    def __init__(self, server, ledger, writer, seed, limbo_vbuckets, gate, size_factor):
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.ledger, self.writer, self.gate = ledger, writer, gate
        self.limbo_vbuckets = limbo_vbuckets
        self.depth = self.random.choice((1, 4, 8))
        self.peer = Peer(server.kv, unordered=self.random.random() < 0.5)
        self.number, self.opaque, self.flying, self.problem = 0, 0, {}, None
        self.idle = keys_of(writer)
        self.counts = {}
        self.histories = {}
        self.seed, self.size_factor = seed, size_factor

    def run(self):
        try:
            while True:
                # A flush_all needs nothing in flight.
                if not self.gate.is_set():
                    while self.flying:
                        self.answer()
                    self.gate.pause()
                while len(self.flying) < self.depth:
                    self.start_one()
                self.answer()
                if self.random.random() < 0.1 and not self.flying:
                    self.observe()
        except (OSError, EOFError, ValueError):
            # The server is gone; what is in flight stays "sent".
            pass
        except AssertionError as error:
            self.problem = error
        finally:
            self.gate.leave()
            self.peer.close()

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def size(self):
        dice = self.random.random()
        if dice < 0.004:
            return self.random.randrange(100_000, LARGEST)
        if self.size_factor > 1:
            return self.random.randrange(1, 8000 * self.size_factor)
        return self.random.randrange(1, 4000) if dice < 0.9 else self.random.randrange(4000, 60_000)

    def start_one(self):
        key = self.idle.pop(self.random.randrange(len(self.idle)))
        flight, frame = self.counter(key) if key.startswith(b"counter") else self.document(key)
        self.opaque += 1
        self.flying[self.opaque] = flight
        self.peer.send(frame)

    def frame(self, flight, value=b"", extras=b"", cas=0):
        framing = None
        if flight.level:
            in_limbo = self.peer.vbucket(flight.key) in self.limbo_vbuckets
            framing = durability(flight.level, self.random.randrange(10, 150) if in_limbo else 30_000)
        if flight.version:
            flight.version.is_durable = flight.level is not None
            self.ledger.send(flight.key, flight.version)
        self.number += 1
        vbucket = self.peer.vbucket(flight.key)
        return flight, request(flight.opcode, flight.key, value, extras, vbucket=vbucket, opaque=self.opaque + 1, cas=cas, framing=framing)

    def counter(self, key):
        latest = self.ledger.latest(key)
        level = self.random.choice(LEVELS)
        if latest is None:
            return self.plain_set(key, b"%d" % self.random.randrange(1000))
        if self.random.random() < 0.1:
            return self.frame(Flight(GET, key, None, None))
        delta = self.random.randrange(1, 10)
        number = 7 if latest.content is None else int(latest.content) + delta
        version = Version(b"%d" % number, latest.flags if latest.content else 0, latest.expiry if latest.content else 0)
        return self.frame(Flight(INCREMENT, key, version, level), extras=struct.pack(">QQI", delta, 7, 0))

    def plain_set(self, key, value):
        return self.frame(Flight(SET, key, Version(value), None), value, struct.pack(">II", 0, 0))

    def document(self, key):
        latest, level, dice = self.ledger.latest(key), self.random.choice(LEVELS), self.random.random()
        value = chunk(f"{self.seed}.{self.number}", self.size())
        if latest is None:
            # After an ambiguous write only a write that does not depend on its outcome.
            return self.plain_set(key, value)
        expiry = next(EXPIRIES) if dice < 0.3 else 0
        flags = self.random.randrange(1 << 32)
        stored, extras = Version(value, flags, expiry), struct.pack(">II", flags, expiry)
        there = latest.content is not None
        dice = self.random.random()
        if dice < 0.40:
            return self.frame(Flight(SET, key, stored, level), value, extras)
        if dice < 0.50:
            opcode = ADD if self.random.random() < 0.7 else REPLACE
            works = there == (opcode == REPLACE)
            return self.frame(Flight(opcode, key, stored if works else None, level, () if works else REFUSED_BY_STATE[opcode]), value, extras)
        if dice < 0.60 and there:
            right = self.random.random() < 0.8
            return self.frame(Flight(SET, key, stored if right else None, level, () if right else (EXISTS,)), value, extras, cas=latest.cas + (not right))
        if dice < 0.72:
            works = there and len(latest.content) + len(value) < LARGEST
            if there and not works:
                return self.frame(Flight(SET, key, stored, level), value, extras)
            version = Version(latest.content + value, latest.flags, latest.expiry) if works else None
            return self.frame(Flight(APPEND, key, version, level, () if works else REFUSED_BY_STATE[APPEND]), value)
        if dice < 0.84:
            return self.frame(Flight(DELETE, key, Version(None) if there else None, level, () if there else REFUSED_BY_STATE[DELETE]))
        if dice < 0.90:
            expiry = next(EXPIRIES)
            version = Version(latest.content, latest.flags, expiry) if there else None
            return self.frame(Flight(TOUCH, key, version, None, () if there else REFUSED_BY_STATE[TOUCH]), extras=struct.pack(">I", expiry))
        return self.frame(Flight(GET, key, None, None))

    def answer(self):
        answer = self.peer.response()
        if answer is None:
            raise EOFError
        flight = self.flying.pop(answer.opaque)
        self.idle.append(flight.key)
        vbucket = self.peer.vbucket(flight.key)
        self.count(f"{answer.opcode:#04x}/{answer.status:#04x}")
        where = f"key {flight.key}, opcode {flight.opcode:#x}, level {flight.level}: status {answer.status:#x}"
        if answer.status == IN_PROGRESS:
            assert vbucket in self.limbo_vbuckets, f"{where}, though its vBucket's chain is whole"
            if flight.version:
                self.ledger.refuse(flight.key, flight.version)
            time.sleep(0.002)
        elif answer.status in (TEMPORARY_FAILURE, NO_MEMORY) and self.size_factor > 1:
            # Everything in memory is dirty.
            if flight.version:
                self.ledger.refuse(flight.key, flight.version)
            time.sleep(0.005)
        elif answer.status == AMBIGUOUS:
            assert flight.level and vbucket in self.limbo_vbuckets, f"{where}, though its vBucket's chain is whole"
            assert flight.version, f"{where}, for a write that had to be refused"
            flight.version.ambiguous = True
        elif flight.opcode == GET:
            self.read(flight, answer)
        elif flight.version is None:
            assert answer.status in flight.refusals, f"{where} for {flight.refusals}; the key is {shown(self.ledger.latest(flight.key).content)}"
        else:
            assert answer.status == SUCCESS, f"{where} {answer.value[:200]}; versions {', '.join(map(str, self.ledger.versions[flight.key][-4:]))}"
            history, seqno = token(answer)
            if history is not None:
                known = self.histories.setdefault(vbucket, history)
                assert known == history, f"{where}: history {history} of vBucket {vbucket} was {known} before, and nobody has restarted the server"
            kept = flight.level in (PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY)
            self.ledger.acknowledge(flight.key, flight.version, answer.cas, history, seqno, kept)

    def read(self, flight, answer):
        latest = self.ledger.latest(flight.key)
        if latest is None:
            return
        if latest.content is None:
            assert answer.status == NOT_FOUND, f"{flight.key}: status {answer.status:#x} instead of a miss"
            return
        assert answer.status == SUCCESS and answer.value == latest.content, f"{flight.key}: status {answer.status:#x}, {shown(answer.value)} instead of {latest}"
        latest.cas = latest.cas or answer.cas
        assert answer.cas == latest.cas, f"{flight.key}: cas {answer.cas} instead of {latest}"

    def observe(self):
        if not self.histories:
            return
        vbucket = self.random.choice(sorted(self.histories))
        seen = self.peer.observe(vbucket, self.histories[vbucket])
        assert seen is not None, f"vBucket {vbucket} does not know its history {self.histories[vbucket]}"
        self.ledger.observe(vbucket, seen[1])
        self.count("observed")
