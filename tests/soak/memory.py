"""Memory soak: full buckets whose values shrink, grow, expire and are moved.

    python -m tests.soak.memory --seconds 1800        what `make soak-memory` runs
    python -m tests.soak.memory --seconds 120 --seed 3

First an ephemeral bucket, then a persistent one that holds more on disk than fits in memory, half of the time each, both
with slabs. The sizes written change every few seconds (SIZES), so that the slabs of the previous sizes become sparse.
The load pauses regularly (ROUND_S), and a walk compares everything in the bucket with its accounts (`POST .../audit`).
Meanwhile the load checks every value it finds, as in `tests.soak`.

Checked of both:
  resident   Rss of the process is at most 105 % of the bucket's budget, always
  live       once the bucket was filled (the first item was evicted), keys and values stay at LIVE_MIN or more. The goal is
             LIVE_GOAL, 90 %: how many samples reach it is printed.
             Values are 1 to 16 KiB: so the header of an item, the index and a slot's rounding are a small part, but
             have to fit into the rest like everything else. `with headers` is printed beside it.
  walk       no walk finds a contradiction, and all of them find the bucket at rest
  moved      the defragmenter has moved items
For the ephemeral bucket: after flush_all, `allocated` returns to its initial value, as in `tests.soak`. For the
persistent bucket: whatever was acknowledged, and has not expired, is found when read, and all of it again after the
node was killed and restarted once nothing was left to write.
"""

import argparse
import json
import multiprocessing
import pathlib
import random
import sys
import tempfile
import time

from tests import servers
from tests.persistence.bucket import http, wait_all_persisted, wait_until, wait_warm

from . import batches, watch
from .__main__ import judge_memory, settle, show
from .values import MEBIBYTE

BUDGET_MIB = 512
LIVE_GOAL = 0.90
# A bound that also holds on a machine busy with other work (docs/decisions/0016).
LIVE_MIN = 0.86
PROCESSES = 2
# Ranges of value sizes written, one after the other, each for this long.
SIZES = ((1000, 2000), (4000, 16000), (1500, 6000), (8000, 16000), (1000, 16000))
SIZES_S = 8.0
ROUND_S = 20.0
# A gigabyte is flushed, loaded after a start, or walked in seconds, but not on every machine.
PATIENCE_S = 120
# Keys per process: 1.5 times as many as fit with the smallest sizes, several times too many with the others. If these
# fitted, the bucket would not be full while they are written.
KEYS = 240_000
# A persistent bucket evicts nothing: to stay full, its data must exceed its memory at any of the sizes.
PERSISTENT_KEYS = 90_000
PERSISTENT_SIZES = SIZES[1:]


class Load:
    """The processes that write and read, each with its knowledge of its own keys; they live as long as this object."""

    def __init__(self, seed, keys, keeps):
        self.pipes, self.processes = [], []
        self.counts, self.wrong = {}, []
        for number in range(PROCESSES):
            here, there = multiprocessing.Pipe()
            one = multiprocessing.Process(target=batches.run, args=(there, f"{seed}/{number}", b"%d-" % number, keys, keeps), daemon=True)
            one.start()
            self.pipes.append(here)
            self.processes.append(one)

    def ask(self, *order):
        """Sends an order to all of them, and waits for them."""
        for pipe in self.pipes:
            pipe.send(order)
        for pipe in self.pipes:
            counts, wrong = pipe.recv()
            self.wrong += wrong
            for name, count in counts.items():
                self.counts[name] = self.counts.get(name, 0) + count

    def end(self):
        for pipe in self.pipes:
            pipe.send(("end",))
        for one in self.processes:
            one.join(20)


def walk(node):
    """Walks over everything once the bucket is at rest; returns (what was found, problem or None)."""

    def found():
        status, body = http(node, "POST", "/pools/default/buckets/default/audit")
        document = json.loads(body)
        return (document, body if status != 200 else None) if status != 200 or document["atRest"] else None

    return wait_until(found, "a walk at rest", PATIENCE_S)


def rounds(node, watched, load, sizes, seconds):
    """Runs load and walks in turn; returns the errors."""
    problems = []
    ends = time.monotonic() + seconds
    sizes_from = time.monotonic()
    while (left := ends - time.monotonic()) > 0 and not problems and node.alive():
        load.ask("load", node.memcached, min(ROUND_S, left), sizes_from, sizes, SIZES_S)
        found, problem = walk(node)
        problems += [f"the walk: {problem}"] if problem else []
        print(f"{time.monotonic() - watched.began:6.0f} s  walked over {found}", flush=True)
    moved = int(watched.figures(b"stats defragmenter")["defragmented_items"])
    print(f"moved {moved} items; counts: " + ", ".join(f"{name} {count}" for name, count in sorted(load.counts.items())))
    problems += ["the defragmenter has moved nothing"] if moved == 0 else []
    return problems


def told_of_goal(samples, budget):
    filled = [one for one in samples if one.evicted]
    if not filled:
        return "the bucket was never full"
    reached = sum(one.live >= LIVE_GOAL * budget for one in filled)
    highest = max(one.resident for one in samples) / budget
    lowest = min(filled, key=lambda one: one.live)
    return (
        f"resident: highest {highest:.1%}; live, once full: lowest {lowest.live / budget:.1%} after {lowest.at_s:.0f} s, with {lowest.items} items"
        f" and {lowest.allocated / budget:.1%} allocated; {LIVE_GOAL:.0%} or more in {reached} of {len(filled)} samples"
    )


def soak(kind, options):
    """Soaks one bucket; returns the errors."""
    budget = BUDGET_MIB * MEBIBYTE
    keeps = kind == "persistent"
    problems = []
    with tempfile.TemporaryDirectory(prefix="dormouse-soak-") as home:
        start = lambda: servers.Dormouse(home=pathlib.Path(home), buckets=(f"default,{kind},{BUDGET_MIB}MiB",), memory=f"{BUDGET_MIB}MiB")
        node = start()
        load = Load(options.seed, PERSISTENT_KEYS if keeps else KEYS, keeps)
        try:
            watched = watch.Watch(node)
            empty = watched.sample()
            print(f"{kind} bucket: budget {BUDGET_MIB} MiB; empty: resident {empty.resident / MEBIBYTE:.1f} MiB", flush=True)
            watched.start()
            problems += rounds(node, watched, load, PERSISTENT_SIZES if keeps else SIZES, options.seconds / 2)
            watched.stop()
            problems += watched.problems
            every = max(len(watched.samples) // 20, 1)
            print("\n".join(show(one, budget) for one in watched.samples[::every]))
            print(told_of_goal(watched.samples, budget))
            problems += judge_memory(watched.samples, budget, LIVE_MIN)
            if keeps:
                wait_all_persisted(node, PATIENCE_S)
                node.kill()
                node = start()
                wait_warm(node, PATIENCE_S)
                load.ask("verify", node.memcached)
                print(f"after a kill and a restart {load.counts.get('verified', 0)} values were read back")
                found, problem = walk(node)
                problems += [f"the walk after the restart: {problem}"] if problem else []
            else:
                end, leak = settle(watched, empty, budget)
                print(f"after flush_all: allocated {end.allocated} bytes, {empty.allocated} at the start")
                problems += [leak] if leak else []
            problems += [f"wrong answer: {text}" for text in load.wrong]
            if "panicked" in node.log():
                problems.append(f"a panic in the log: {node.log()}")
        finally:
            load.end()
            code = node.stop()
        if code != 0:
            problems.append(f"exit code after SIGTERM: {code}\n{node.last_log}")
    return [f"{kind}: {text}" for text in problems]


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests.soak.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=1800)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000_000))
    parser.add_argument("--kind", choices=("ephemeral", "persistent"), help="only one of the two, for half the seconds")
    options = parser.parse_args(arguments)
    print(f"memory soak: seed {options.seed}, {options.seconds} s")
    problems = []
    for kind in [options.kind] if options.kind else ["ephemeral", "persistent"]:
        problems += soak(kind, options)
    for text in problems:
        print(f"PROBLEM: {text}")
    print("memory soak: " + (f"{len(problems)} problems" if problems else "passed"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
