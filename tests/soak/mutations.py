"""Ten million mutations that a replica follows, whatever happens to the connection and to both nodes.

    python -m tests.soak.mutations                          (make replica-mutations)
    python -m tests.soak.mutations --count 200k --kind ephemeral --seed 3

Documents are written, deleted, left to expire, written durably, and written to collections that are dropped, while in each step something
happens: the connection is cut at random places or delayed, a node is stopped or killed and started again, everything is flushed. After each
step the load pauses, and the replica must become equal to the active: the checksum of each vBucket, over keys, values, seqnos, CAS and all else
of its documents, and its history. A killed active is promoted again whatever it has lost, so that the replica must roll back: whether what was
acknowledged is still there is not asked here, but in tests/soak/replicas.py.
"""

import hashlib
import itertools
import json
import random
import struct
import sys
import tempfile
import threading
import time

from tests import dcp
from tests.cluster import Cluster
from tests.dcp import Dcp
from tests.frames import (
    AMBIGUOUS, COLLECTION_ID, DELETE, EXISTS, FEATURE_COLLECTIONS, FEATURE_SELECT_BUCKET, FEATURE_XERROR, IN_PROGRESS, NOOP, NOT_FOUND, NOT_MY_VBUCKET,
    RE_COMMIT, SET, SETQ, SUCCESS, TEMPORARY_FAILURE, UNKNOWN_COLLECTION, BinaryConnection, durability, request,
)
from tests.persistence.bucket import http, wait_until
from tests.persistence.peer import vbucket_of

from .replicas import kinds_of, kinds_parser

VBUCKETS = 64
ALL = (0, VBUCKETS - 1)
KEYS = 60_000
BATCH = 1000
STEPS = 24
CUTS = 12
PATIENCE_S = 60
DELETEQ = 0x14
FEATURES = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_COLLECTIONS)
# Nothing was changed, and that is no fault.
REFUSED = (NOT_FOUND, TEMPORARY_FAILURE, IN_PROGRESS, RE_COMMIT, NOT_MY_VBUCKET, UNKNOWN_COLLECTION, EXISTS)
CONFIG = """
[[bucket]]
name = "default"
kind = "{kind}"
memory = "320MiB"
vbuckets = {vbuckets}
"""
COLLECTIONS = "/pools/default/buckets/default/scopes/_default/collections"


def vbucket(key):
    return vbucket_of(key, VBUCKETS)


def open_connection(node):
    return BinaryConnection.opened(node.kv, timeout_s=60, features=FEATURES)


class Client(threading.Thread):
    """Works on n1 until `ends` is set, over a connection that is made again when it ends."""

    def __init__(self, run, seed):
        super().__init__(daemon=True)
        self.soak, self.random = run, random.Random(seed)
        self.done, self.ends, self.problem = 0, False, None

    def goes_on(self):
        return not self.ends

    def run(self):
        connection = None
        while self.goes_on() and self.problem is None:
            try:
                connection = connection or open_connection(self.soak.cluster["n1"])
                self.work(connection)
            except OSError:
                if connection:
                    connection.close()
                connection = None
                time.sleep(0.05)
            except BaseException as error:
                self.problem = error
        if connection:
            connection.close()


class Writer(Client):
    """Writes at least so many mutations, in batches that are answered as a whole."""

    def __init__(self, run, seed, count):
        super().__init__(run, seed)
        self.count = count

    def goes_on(self):
        return self.done < self.count or not self.ends

    def work(self, connection):
        draw, frames, collection = self.random, [], self.soak.collection
        for _ in range(BATCH):
            key, what = b"key-%d" % draw.randrange(KEYS), draw.random()
            vb, key = vbucket(key), leb128(collection if what < 0.05 else 0) + key
            if what < 0.8:
                frames.append(request(SETQ, key, draw.randbytes(draw.randrange(8, 300)), bytes(8), vbucket=vb))
            elif what < 0.85:
                frames.append(request(SETQ, key, b"expires", struct.pack(">II", 0, draw.randrange(1, 4)), vbucket=vb))
            else:
                frames.append(request(DELETEQ, key, vbucket=vb))
        connection.send(b"".join(frames))
        refused, answer = 0, connection.answer(NOOP)
        while answer.opcode != NOOP:
            assert answer.status in REFUSED, f"{answer.opcode:#x}: {answer.status:#x} {answer.value}"
            refused += 1
            if (answer := connection.response()) is None:
                raise ConnectionError("closed")
        self.done += BATCH - refused
        self.soak.in_collection += collection != 0
        if refused > BATCH / 2:
            # It is not the active, or has no room: not at full speed.
            time.sleep(0.02)


class Durable(Client):
    """Writes and deletes durably, one after the other."""

    def work(self, connection):
        key = b"durable-%d" % self.random.randrange(500)
        named = {"vbucket": vbucket(key), "framing": durability(1, 3000)}
        if self.random.random() < 0.2:
            answer = connection.answer(DELETE, b"\0" + key, **named)
        else:
            answer = connection.answer(SET, b"\0" + key, self.random.randbytes(50), bytes(8), **named)
        assert answer.status in (SUCCESS, AMBIGUOUS, *REFUSED), f"durable: {answer.status:#x} {answer.value}"
        self.done += answer.status == SUCCESS
        # A load beside that of the other client.
        time.sleep(0.002)


def leb128(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def follow(node):
    return Dcp(node.kv, flags=dcp.PRODUCER | dcp.INCLUDE_XATTRS, timeout_s=60)


def checksums(node):
    """Number of documents, and a checksum by vBucket."""
    found, count = {}, 0
    with follow(node) as one:
        for vb in range(VBUCKETS):
            documents = dcp.content(one, vb)
            count += len(documents)
            found[vb] = hashlib.blake2b(repr(sorted(documents.items())).encode(), digest_size=16).hexdigest()
    return count, found


class Run:
    def __init__(self, home, kind, count, seed):
        self.kind, self.count, self.seed, self.random = kind, count, seed, random.Random(seed)
        self.cluster = Cluster(home, 2, buckets=(), config=CONFIG.format(kind=kind, vbuckets=VBUCKETS), relayed=("n1",))
        self.relay, self.term = self.cluster.relays["n1"], 1
        # The collection that some documents go to, how many there were, and batches that went to any.
        self.collection = self.collections = self.in_collection = 0
        self.done = self.acknowledged = self.compared = 0
        self.cluster.assign(["n1", "n2"], ALL)

    def assign(self):
        self.term += 1
        self.cluster.assign(["n1", "n2"], ALL, term=self.term)

    # ---- what happens in a step ----

    def nothing(self):
        pass

    def cuts(self):
        draw, before = self.random, self.relay.cut
        self.relay.cuts = ((draw.randrange(1, 300), draw.randrange(0, 60)) for _ in itertools.count())
        self.relay.sever()
        wait_until(lambda: self.relay.cut >= before + CUTS, "cuts", PATIENCE_S)
        self.relay.cuts = iter(())

    def delay(self):
        self.relay.delay_s = 0.03
        time.sleep(1)
        self.relay.delay_s = 0

    def stop_replica(self):
        assert self.cluster["n2"].stop() == 0, self.cluster["n2"].last_log
        self.replica_again()

    def kill_replica(self):
        self.cluster.kill("n2")
        self.replica_again()

    def replica_again(self):
        time.sleep(self.random.random())
        self.cluster.restart("n2")
        if self.kind == "ephemeral":
            self.cluster.set_role("n2", ALL, state="replica", source="n1", topology=[["n1", "n2"]], term=self.term)

    def stop_active(self):
        assert self.cluster["n1"].stop() == 0, self.cluster["n1"].last_log
        self.active_again()

    def kill_active(self):
        self.cluster.kill("n1")
        self.active_again()

    def active_again(self):
        self.cluster.restart("n1")
        self.assign()

    def flush(self):
        dcp.empty(self.cluster["n1"], "default")

    def drop_collection(self):
        """What goes to a collection now is dropped with it."""
        self.collections += 1
        name, node = f"c{self.collections}", self.cluster["n1"]
        status, body = http(node, "POST", COLLECTIONS, f"name={name}")
        assert status == 200, body
        with open_connection(node) as connection:
            answer = connection.ask(COLLECTION_ID, value=f"_default.{name}".encode())
            assert answer.status == SUCCESS, answer
        before, self.collection = self.in_collection, struct.unpack(">QI", answer.extras)[1]
        wait_until(lambda: self.in_collection > before + 10, "documents in the collection", PATIENCE_S)
        self.collection = 0
        assert http(node, "DELETE", f"{COLLECTIONS}/{name}")[0] == 200

    # ---- a step ----

    def step(self, number, happens):
        writer = Writer(self, f"{self.seed}/{number}", self.count // STEPS)
        durable = Durable(self, f"{self.seed}/{number}/durable")
        for thread in (writer, durable):
            thread.start()
        time.sleep(self.random.random() * 0.5)
        happens()
        writer.ends = True
        writer.join()
        durable.ends = True
        durable.join()
        for thread in (writer, durable):
            if thread.problem:
                raise thread.problem
        assert writer.done >= writer.count
        self.done += writer.done
        self.acknowledged += durable.done
        documents = wait_until(self.equal, f"a replica that is equal, after {happens.__name__}", PATIENCE_S)
        for name in self.cluster.names:
            assert "panicked" not in self.cluster[name].log(), self.cluster[name].log()
        self.compared += 1
        print(f"  {number + 1:3} {happens.__name__}: {self.done} mutations, {documents} documents equal", flush=True)

    def equal(self):
        """Number of documents, if both nodes have the same."""
        try:
            active, replica = (checksums(self.cluster[name]) for name in ("n1", "n2"))
        except (OSError, AssertionError):
            # A stream may be cut by what has just happened.
            return None
        same = all(self.cluster.history("n1", vb) == self.cluster.history("n2", vb) for vb in range(0, VBUCKETS, 7))
        return f"{active[0]}" if active == replica and same else None

    def differences(self):
        """What differs, for whoever reads of a failure."""
        found = []
        with follow(self.cluster["n1"]) as active, follow(self.cluster["n2"]) as replica:
            for vb in range(VBUCKETS):
                there, here = dcp.content(active, vb), dcp.content(replica, vb)
                for key in sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key)):
                    found.append(f"vBucket {vb}, {key}: {str(there.get(key))[:200]} and {str(here.get(key))[:200]}")
                there, here = (self.cluster.histories(name, vb) for name in ("n1", "n2"))
                if there != here:
                    found.append(f"vBucket {vb}: histories {there} and {here}")
        return "\n".join(found[:40]) or "nothing"

    def run(self):
        happenings = [
            self.nothing, self.cuts, self.kill_replica, self.drop_collection, self.stop_active, self.delay, self.stop_replica, self.flush, self.kill_active,
            self.cuts,
        ]
        for number, happens in zip(range(STEPS), itertools.cycle(happenings)):
            self.step(number, happens)


def parse_count(text):
    factor = {"k": 1000, "M": 1_000_000}.get(text[-1], 1)
    return int(float(text.rstrip("kM")) * factor)


def run(kind, count, seed):
    with tempfile.TemporaryDirectory(prefix="dormouse-mutations-") as home:
        one = Run(home, kind, count, seed)
        try:
            one.run()
        except AssertionError:
            print(f"---- what differs\n{one.differences()}")
            for name in one.cluster.names:
                print(f"---- {name}\n{one.cluster[name].log()}\n{json.dumps(one.cluster.role(name, 0)) if one.cluster[name].alive() else 'dead'}", flush=True)
            raise
        finally:
            one.cluster.stop()
    return one


def main(arguments):
    parser = kinds_parser("tests.soak.mutations", __doc__)
    parser.add_argument("--count", type=parse_count, default=10_000_000, help="mutations of each kind of bucket, such as 200k or 10M (the default)")
    options = parser.parse_args(arguments)
    for kind in kinds_of(options):
        print(f"mutations: {kind}, seed {options.seed}, {options.count} in {STEPS} steps", flush=True)
        done = run(kind, options.count, options.seed)
        print(f"{kind}: {done.done} mutations, {done.acknowledged} durable writes, equal at {done.compared} of {STEPS} pauses", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
