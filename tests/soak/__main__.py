"""Soak: everything at once for a while, with checks of memory behaviour.

    python -m tests.soak --seconds 600        what `make soak` runs
    python -m tests.soak --seconds 60 --seed 3

200 connections (Couchbase KV, memcached text, memcached binary) write, read, delete and touch documents of 1 byte to
20 MiB with and without expiry, well over the bucket's budget; one request in a hundred is cut off at a random byte
together with its connection; five connections request a lot of data and do not read it for seconds.

Checked:
  answers    no error outside the protocol; no connection closed by the server but, when memory is short, some of the
             five that do not read, which it counts (`memory_kicks`); a hit has the length written
             last, the content and flags derived from its key, and has not expired
  resident   Rss of the process (smaps_rollup, everything included) is at most 105 % of the bucket's budget, always.
             The Rss of the started, empty process is printed beside it.
  live       once the bucket was filled (the first item was evicted), keys and values stay at 70 % or more of what large
             values in transit leave of the budget (of some 200 connections several send 20 MiB at any time)
  page       what the page shows of the memory is within 1 % of what Rss was while it was asked for, always
  leak       after flush_all, `allocated` returns to what it was at the start, plus LEAK_SLACK and the slabs' map
  life       the process lives, and SIGTERM ends it with 0
"""

import argparse
import multiprocessing
import random
import sys
import time

from tests import servers

from . import watch, worker
from .values import MEBIBYTE

CONNECTIONS = 200
PROCESSES = 2
RESIDENT_MAX = 1.05
LIVE_MIN = 0.70
LEAK_SLACK = 2 * MEBIBYTE
# The slabs' map of the address space is retained: 4 KiB for each 2 MiB of it, which is somewhat more than the budget.
MAP_FRACTION = 256
SETTLE_S = 60
# A refusal is the protocol's answer of a full server, but a server that mostly refuses does not serve.
REFUSED_MAX = 0.05
DEVIATION_MAX = 0.01
# The end of the log that is shown with a problem.
LOG_BYTES = 2000


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--budget-mib", type=int, default=1024, help="20 MiB, the largest value, must be a small part of it")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--quiet", action="store_true")
    return parser.parse_args(arguments)


def load(node, options):
    """Runs the load; returns (counts, what went wrong)."""
    endpoints = {"kv": node.kv, "memcached": node.memcached}
    results = multiprocessing.Queue()
    stop_at = time.monotonic() + options.seconds
    shares = [range(first, options.connections, PROCESSES) for first in range(PROCESSES)]
    processes = [multiprocessing.Process(target=worker.run, args=(list(share), endpoints, options.seed, stop_at, results)) for share in shares]
    for one in processes:
        one.start()
    counts, wrong = {}, []
    for _ in processes:
        part, problems = results.get(timeout=options.seconds + 300)
        wrong += problems
        for name, count in part.items():
            counts[name] = counts.get(name, 0) + count
    for one in processes:
        one.join(60)
    return counts, wrong


def show(sample, budget):
    return (
        f"{sample.at_s:6.0f} s  resident {sample.resident / budget:6.1%}  live {sample.live / budget:6.1%}  with headers {(sample.live + sample.headers) / budget:6.1%}  "
        f"allocated {sample.allocated / budget:6.1%}  in flight {sample.in_flight / budget:6.1%}  items {sample.items}"
    )


def live_part(sample, budget):
    """Keys and values as a fraction of the budget less those in transit."""
    return sample.live / (budget - sample.in_flight)


def judge_memory(samples, budget, live_min=LIVE_MIN):
    problems = []
    highest = max(samples, key=lambda s: s.resident)
    if highest.resident > RESIDENT_MAX * budget:
        over = sum(s.resident > RESIDENT_MAX * budget for s in samples)
        problems.append(f"resident memory over {RESIDENT_MAX:.0%} of the budget in {over} of {len(samples)} samples; worst: {show(highest, budget)}")
    filled = next((n for n, s in enumerate(samples) if s.evicted), None)
    if filled is None:
        problems.append(f"the bucket was never full: no item was evicted; most live bytes: {show(max(samples, key=lambda s: s.live), budget)}")
    else:
        full = samples[filled:]
        lowest = min(full, key=lambda s: live_part(s, budget))
        if live_part(lowest, budget) < live_min:
            under = sum(live_part(s, budget) < live_min for s in full)
            problems.append(f"live bytes under {live_min:.0%} of the budget in {under} of {len(full)} samples; worst: {show(lowest, budget)}")
    return problems


def settle(watched, start, budget):
    """Flushes, and waits until all memory is returned to the allocator; returns (last sample, problem or None)."""
    assert watched.text.line(b"flush_all") == b"OK"
    deadline = time.monotonic() + SETTLE_S
    while True:
        last = watched.sample()
        if last.allocated <= start.allocated + LEAK_SLACK + budget // MAP_FRACTION:
            return last, None
        if time.monotonic() > deadline:
            return last, f"{SETTLE_S} s after flush_all {last.allocated} bytes are allocated, {start.allocated} were at the start"
        time.sleep(0.5)


def closed_by_node(node):
    """The lines of the log about connections that their peer had not closed before."""
    lines = node.log_path.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if 'by="this node"' in line)


def main(arguments):
    options = parse(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000_000)
    budget = options.budget_mib * MEBIBYTE
    node = servers.Dormouse("--log-level", "debug", buckets=(f"default,ephemeral,{options.budget_mib}MiB",), memory=f"{options.budget_mib}MiB")
    problems = []
    try:
        watched = watch.Watch(node)
        start = watched.sample()
        print(f"soak: seed {options.seed}, {options.seconds} s, {options.connections} connections, budget {options.budget_mib} MiB")
        print(f"empty: resident {start.resident / MEBIBYTE:.1f} MiB, allocated {start.allocated} bytes", flush=True)
        watched.start()
        counts, wrong = load(node, options)
        watched.stop()
        problems += [f"wrong answer: {text}" for text in wrong] + watched.problems
        if not options.quiet:
            every = max(len(watched.samples) // 20, 1)
            print("\n".join(show(s, budget) for s in watched.samples[::every]))
        print("counts: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
        if node.alive():
            cut_off = int(watched.figures(b"stats")["memory_kicks"])
            print(f"most in flight {max(s.in_flight for s in watched.samples) / budget:.1%} of the budget, peers cut off {cut_off}")
        if not node.alive():
            problems.append(f"the node died: {node.log()}")
        else:
            if counts.get("rude cut off", 0) > cut_off:
                problems.append(f"{counts['rude cut off']} connections that did not read were closed, {cut_off} of them for that")
            problems += judge_memory(watched.samples, budget)
            away = max(sample.deviation for sample in watched.samples)
            print(f"the parts of /memory add up to Rss within {away:.2%} in {len(watched.samples)} samples")
            if away > DEVIATION_MAX:
                problems.append(f"the parts of /memory add up to Rss only within {away:.2%}")
            if counts.get("refused", 0) > REFUSED_MAX * max(counts.get("store", 0), 1):
                problems.append(f"{counts['refused']} of {counts['store']} sets refused")
            end, leak = settle(watched, start, budget)
            print(f"after flush_all: allocated {end.allocated} bytes ({start.allocated} at the start), resident {end.resident / MEBIBYTE:.1f} MiB")
            problems += [leak] if leak else []
        highest = max(watched.samples, key=lambda s: s.resident).resident
        print(f"highest resident {highest / MEBIBYTE:.1f} MiB = {highest / budget:.1%} of the budget ({(highest - start.resident) / budget:.1%} without the empty process)")
        if "panicked" in node.log():
            problems.append(f"a panic in the log: {node.log()}")
    finally:
        closed = closed_by_node(node)
        code = node.stop()
    if code != 0:
        problems.append(f"exit code after SIGTERM: {code}")
    if problems:
        print(f"the node's log:\n{node.last_log[-LOG_BYTES:]}\nconnections that the node closed:\n{closed}")
    for text in problems:
        print(f"PROBLEM: {text}")
    print("soak: " + ("passed" if not problems else f"{len(problems)} problems"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
