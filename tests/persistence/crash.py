"""SIGKILL at random times under mixed load: whatever was acknowledged as persisted survives, and no write survives
partially.

    python -m tests.persistence.crash --rounds 500          (the rounds of `make kv-crash`)
    python -m tests.persistence.crash --rounds 30 --seed 7 --load small     repeats the load of a failure

A round: start (occasionally killed while it starts), read and judge every key (versions.py), give every vBucket its
full chain so that recovered prepares complete, judge again, one persisted write per vBucket; then writers (load.py) on
some connections, two vBuckets with an absent replica, occasionally a flush_all, and after a random time a kill or a
clean stop. Segments have the smallest size, so that compaction runs all the time. The page cache survives the process,
so these rounds show order, atomicity and the wiring of acknowledgements; that an fsync covers each is shown by strace
(test_sync.py) and by the simulated disk in crate `kv`.
"""

import argparse
import dataclasses
import pathlib
import random
import re
import shutil
import socket
import sys
import tempfile
import threading
import time

from tests.frames import GET_META, NOT_FOUND, RE_COMMIT, SUCCESS, TEMPORARY_FAILURE
from tests.servers import Dormouse

from .load import Writer, keys_of
from .peer import ABSENT_REPLICA, ALONE, VBUCKETS, Peer, token, vbucket_of
from .versions import HIDDEN, Ledger

WRITERS = 4
FETCH_S = 5


def config(memory="96MiB"):
    return f"""
[[bucket]]
name = "default"
kind = "persistent"
memory = "{memory}"
vbuckets = {VBUCKETS}
segment_size = "1MiB"
"""


CONFIG = config()


@dataclasses.dataclass(frozen=True)
class Load:
    """`share`: percentage of the rounds. `size_factor` multiplies the length of the writers' values."""

    share: int
    memory: str
    size_factor: int


# Small data; and values that only partly fit in memory, so that they are ejected, fetched, and fetched to be modified.
LOADS = {"small": Load(70, "96MiB", 1), "ejected": Load(30, "16MiB", 100)}


SHARD = pathlib.Path("node/buckets/default/shard-0")
# Segments of 1 MiB: about twice the documents of the larger load, and a few more.
SEGMENTS_MOST = 60
COMPACT_S = 30


class Gate:
    """Open while writers may write. `closed` waits until none has a request in flight, or all have exited."""

    def __init__(self, writers):
        self.condition, self.open, self.inside, self.paused = threading.Condition(), True, writers, 0

    def is_set(self):
        return self.open

    def pause(self):
        with self.condition:
            self.paused += 1
            self.condition.notify_all()
            self.condition.wait_for(lambda: self.open)
            self.paused -= 1

    def leave(self):
        with self.condition:
            self.inside -= 1
            self.condition.notify_all()

    def close(self):
        with self.condition:
            self.open = False
            return self.condition.wait_for(lambda: self.paused == self.inside, 60)

    def reopen(self):
        with self.condition:
            self.open = True
            self.condition.notify_all()


class Crash:
    """The rounds on one directory."""

    def __init__(self, directory, seed, load):
        self.directory, self.seed, self.load, self.config = pathlib.Path(directory), seed, load, config(load.memory)
        self.random = random.Random(seed)
        self.ledger = Ledger([key for writer in range(WRITERS) for key in keys_of(writer)], vbucket_of)
        # History ids that each vBucket has had, in order.
        self.histories = {vbucket: [] for vbucket in range(VBUCKETS)}
        self.counts, self.flushes, self.fetched, self.clean_stop = {}, 0, 0, None

    def start(self):
        while self.random.random() < 0.15 and self.clean_stop is False:
            hasty = Dormouse(home=self.directory, buckets=(), config=self.config, await_ready=False)
            time.sleep(self.random.uniform(0, 0.15))
            hasty.kill()
        return Dormouse(home=self.directory, buckets=(), config=self.config)

    def round(self, number, stop):
        server = self.start()
        try:
            with Peer(server.kv) as peer:
                peer.await_warm_up()
                peer.stay_active()
                self.judge(peer, "as it was found", may_hide=True)
                for vbucket in range(VBUCKETS):
                    peer.set_chain(vbucket, ALONE)
                # This order matters: a recovered prepare of a vBucket has completed once a later write to it is
                # persisted.
                self.barrier(peer)
                found, chosen = self.judge(peer, "with the chains whole again")
                self.ledger.settle(chosen, found)
                limbo = set(self.random.sample(range(VBUCKETS), 2))
                for vbucket in limbo:
                    peer.set_chain(vbucket, ABSENT_REPLICA)
                gate = Gate(WRITERS)
                writers = [Writer(server, self.ledger, writer, f"{self.seed}.{number}.{writer}", limbo, gate, self.load.size_factor) for writer in range(WRITERS)]
                for one in writers:
                    one.start()
                self.wait_and_flush(server, peer, gate)
                self.fetched += int(peer.statistics(b"persistence")["fetched_values"])
                if stop:
                    gate.close()
                    code = server.stop()
                    assert code == 0, f"SIGTERM: exit code {code}\n{server.last_log}"
                    gate.reopen()
                else:
                    server.kill()
                for one in writers:
                    one.join(60)
                    assert not one.is_alive(), "a writer does not end"
                    assert one.problem is None, one.problem
                    for what, count in one.counts.items():
                        self.counts[what] = self.counts.get(what, 0) + count
                self.clean_stop = stop
        finally:
            server.kill()
        log = server.log(1 << 20)
        complaint = re.search(r".*( ERROR |panicked|damaged(?!=0)).*", log)
        assert not complaint, f"in the log: {complaint[0]}"

    def compacted(self):
        """The numbers of the segments that remain once the node has had time to compact what the last round wrote."""
        with Dormouse(home=self.directory, buckets=(), config=self.config) as server, Peer(server.kv) as peer:
            peer.await_warm_up()
            deadline = time.monotonic() + COMPACT_S
            while len(left := list((self.directory / SHARD).glob("*.segment"))) >= SEGMENTS_MOST and time.monotonic() < deadline:
                time.sleep(0.1)
        return sorted(int(path.stem) for path in left)

    def wait_and_flush(self, server, peer, gate):
        time.sleep(self.random.uniform(0.01, 0.35))
        if self.random.random() < 0.2:
            assert gate.close(), "writers do not come to rest"
            highest = {}
            for vbucket, histories in self.histories.items():
                seen = peer.observe(vbucket, histories[-1])
                assert seen, f"vBucket {vbucket} does not know its history {histories[-1]}"
                highest[vbucket] = seen[2]
            self.ledger.flush(highest)
            with socket.create_connection(server.memcached, timeout=30) as text:
                text.sendall(b"flush_all\r\n")
                assert text.recv(100) == b"OK\r\n"
            self.flushes += 1
            gate.reopen()
            time.sleep(self.random.uniform(0, 0.1))

    def judge(self, peer, when, may_hide=False):
        found = read(peer, self.ledger.versions)
        try:
            return found, self.ledger.judge(found, everything_kept=self.clean_stop is True, may_hide=may_hide)
        except AssertionError as error:
            raise AssertionError(f"{when}, after {'a clean stop' if self.clean_stop else 'a kill'}: {error}") from None

    def barrier(self, peer):
        for vbucket, histories in self.histories.items():
            history, seqno = token(answer := peer.store_persistent(vbucket))
            if self.clean_stop is False:
                assert history not in histories, f"vBucket {vbucket} has its old history {history} after a kill"
            elif histories:
                assert history == histories[-1], f"vBucket {vbucket} has another history after a clean stop"
            if history not in histories:
                histories.append(history)
            self.ledger.unique(self.ledger.cas_seen, (vbucket, answer.cas), answer.cas, f"CAS {answer.cas}")
            self.ledger.unique(self.ledger.seqno_seen, (vbucket, history, seqno), seqno, f"seqno {seqno} of vBucket {vbucket}")
            assert seqno > self.ledger.highest_survivor(vbucket), f"vBucket {vbucket}: seqno {seqno} after {self.ledger.highest_survivor(vbucket)}"


def read(peer, keys):
    """{key: None, HIDDEN or (value, flags, expiry, CAS)}, from a node that has warmed up."""
    found = {}
    for key in keys:
        deadline = time.monotonic() + FETCH_S
        while (answer := peer.get(key)).status == TEMPORARY_FAILURE and time.monotonic() < deadline:
            # A value on disk that needs memory to be freed first.
            time.sleep(0.005)
        if answer.status == RE_COMMIT:
            found[key] = HIDDEN
            continue
        assert answer.status in (SUCCESS, NOT_FOUND), f"{key}: status {answer.status:#x} for {FETCH_S} s after the warm-up; {peer.statistics(b'memory')} {peer.statistics(b'persistence')}"
        if answer.status == NOT_FOUND:
            found[key] = None
            continue
        meta = peer.ask(GET_META, key, vbucket=peer.vbucket(key))
        assert meta.status == SUCCESS and meta.cas == answer.cas, meta
        found[key] = answer.value, int.from_bytes(answer.extras[:4], "big"), int.from_bytes(meta.extras[8:12], "big"), answer.cas
    return found


def run(rounds, seed, load, say=lambda text: None):
    """Returns the Crash when done; raises AssertionError and keeps the directory."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="kv-crash-"))
    crash = Crash(directory, seed, load)
    try:
        for number in range(rounds):
            try:
                crash.round(number, stop=crash.random.random() < 0.15)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, round {number}: {error}\nkept: {directory}") from error
            if number % 10 == 9:
                segments = sorted((directory / SHARD).glob("*.segment"))
                say(f"  {number + 1} rounds, {sum(crash.counts.values())} answers, {crash.flushes} flushes, segments {len(segments)} up to {segments[-1].stem if segments else 0}")
        crash.segments = crash.compacted()
    finally:
        if sys.exc_info()[0] is None:
            shutil.rmtree(directory)
    return crash


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests.persistence.crash")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--load", action="append", choices=LOADS)
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    for name in options.load or LOADS:
        rounds = options.rounds if options.load else options.rounds * LOADS[name].share // 100
        print(f"kv crash: load {name}, seed {seed}", flush=True)
        crash = run(rounds, seed, LOADS[name], say=lambda text: print(text, flush=True))
        print(f"kv crash: load {name}, seed {seed}, {rounds} rounds, {sum(crash.counts.values())} answers, {crash.flushes} flushes, {crash.fetched} fetches: none lost, none half")
        print("  " + ", ".join(f"{what} {count}" for what, count in sorted(crash.counts.items())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
