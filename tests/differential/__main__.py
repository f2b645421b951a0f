"""Differential test: sends the same random scripts to memcached and to Dormouse, and compares the answers.

    python -m tests.differential                        some 35,000 commands with a fresh seed
    python -m tests.differential --seed 7 --scripts 50   the same again
    python -m tests.differential --only 7:text           one script of a failure report
    python -m tests.differential --subject memcached     self-test: memcached against itself
    python -m tests.differential --address 127.0.0.1:11211
    MEMCACHED=/path/to/memcached python -m tests.differential

Exit code 0: no difference; 1: differences, each shown with a minimal script.
"""

import argparse
import itertools
import random
import sys
import time

from tests import servers

from . import mutants, pair, scripts, shrink
from .script import show_script

# From this version on everything is compared; see differences.md.
NEWEST = (1, 6, 45)
# Its background threads briefly hold items, which affects the length of decremented numbers.
MEMCACHED_ARGUMENTS = ("-m", "1024", "-c", "512", "-o", "no_lru_crawler,no_lru_maintainer")
# memcached itself is not quite deterministic. A difference that does not recur in this many reruns is shown, and
# forgiven this often.
RERUNS = 3
SEEN_ONCE_MAX = 3
DORMOUSE_BUCKET = "default,ephemeral,1GiB"


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests.differential", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--scripts", type=int, default=150, help="scripts of each kind")
    parser.add_argument("--seconds", type=float, help="run random scripts for this long, instead of --scripts")
    parser.add_argument("--kind", choices=scripts.KINDS, action="append")
    parser.add_argument("--only", help="SEED:KIND, fixed:NAME or timed:NAME: one script")
    parser.add_argument("--subject", choices=("dormouse", "memcached"), default="dormouse")
    parser.add_argument("--address", help="an already running subject, HOST:PORT")
    parser.add_argument("--mutant", choices=mutants.MUTANTS, help="self-test: modify the requests to the subject")
    parser.add_argument("--no-timed", action="store_true", help="leave out the scripts that wait for the clock")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--max-failures", type=int, default=5)
    return parser.parse_args(arguments)


def plan(options):
    """Yields (name, rounds)."""
    newest = servers.memcached_version() >= NEWEST
    if options.only:
        seed, _, kind = options.only.rpartition(":")
        if seed == "timed":
            yield options.only, scripts.TIMED[kind]
        elif seed == "fixed":
            yield options.only, scripts.FIXED[kind]
        else:
            yield options.only, scripts.random_script(seed, kind, newest)
        return
    for name, rounds in scripts.FIXED.items():
        yield f"fixed:{name}", rounds
    deadline = time.monotonic() + (options.seconds or 0)
    for number in itertools.count():
        if number >= options.scripts if options.seconds is None else time.monotonic() > deadline:
            break
        for kind in options.kind or scripts.KINDS:
            yield f"{options.seed}.{number}:{kind}", scripts.random_script(f"{options.seed}.{number}", kind, newest)
    if not options.no_timed:
        for name, rounds in scripts.TIMED.items():
            yield f"timed:{name}", rounds


def signature(problem):
    """Failures with the same signature are shown once: the difference without numbers."""
    return "".join(c for c in problem.partition(":")[2] if not c.isdigit())[:160]


def compare_all(options, oracle, subject, say=print):
    """Runs the plan; returns (commands, failures) where a failure is (name, problem, minimal script)."""
    failures, seen, once, commands = [], set(), 0, 0
    for name, rounds in plan(options):
        commands += sum(len(one.steps) for one in rounds)
        problem = pair.run(rounds, oracle, subject)
        if problem is None or signature(problem) in seen:
            continue
        if not any(pair.run(rounds, oracle, subject) for _ in range(RERUNS)):
            once += 1
            say(f"\nSEEN ONCE, not in {RERUNS} more runs of script {name}: {problem}")
            if once > SEEN_ONCE_MAX:
                failures.append((name, problem, rounds))
            continue
        seen.add(signature(problem))
        small = rounds
        if not options.no_shrink and not name.startswith(("timed:", "fixed:")):
            small = shrink.shrink(rounds, lambda candidate: pair.run(candidate, oracle, subject) is not None)
            problem = pair.run(small, oracle, subject) or f"(not seen again after shrinking) {problem}"
            if any(signature(problem) == signature(earlier) for _, earlier, _ in failures):
                continue
        failures.append((name, problem, small))
        say(f"\nDIFFERENCE in script {name} (again: python -m tests.differential --only {name})")
        say(show_script(small))
        say(f"  {problem}", flush=True)
        if len(failures) >= options.max_failures:
            break
    return commands, failures


def start_subject(options):
    if options.subject == "memcached":
        return servers.Memcached(*MEMCACHED_ARGUMENTS)
    return servers.Dormouse(buckets=(DORMOUSE_BUCKET,), memory="2GiB")


def main(arguments):
    options = parse(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000_000)
    started = time.monotonic()
    with servers.Memcached(*MEMCACHED_ARGUMENTS) as oracle:
        server = None if options.address else start_subject(options)
        try:
            address = servers.split_address(options.address) if options.address else server.address
            mutate = mutants.MUTANTS[options.mutant] if options.mutant else None
            commands, failures = compare_all(options, pair.Peer(oracle.address), pair.Peer(address, mutate))
        finally:
            if server:
                server.stop()
    seconds = time.monotonic() - started
    print(f"differential: seed {options.seed}, {commands} commands in {seconds:.0f} s, {len(failures)} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
