"""Differential test: sends the same random transactions to Debian's ovsdb-server and to ours, and compares all answers.

    python -m tests.ovsdb                            100 scripts of about 110 transactions
    python -m tests.ovsdb --seconds 60               scripts for a minute
    python -m tests.ovsdb --seed 7                   the same scripts again
    python -m tests.ovsdb --only 7.12                one script of a failure report
    python -m tests.ovsdb --subject stock            self-test: Debian's server against itself
    python -m tests.ovsdb --mutant NAME              self-test: a faulty server

Exit code 0: no difference; 1: differences, each shown with the smallest script found.
"""

import argparse
import collections
import itertools
import random
import sys
import time

from . import mutants, pair, shrink
from .operations import Generator
from .rows import Schema
from .schemas import random_schema
from .script import Dump, Open, Restart, Script, Transact, Burst, show
from .servers import STOCK, SUBJECT

TRANSACTIONS = 110
# Events that end a script without a failure must stay rare, or the test would test nothing.
RARE = ("the oracle died", "dangling weak reference", "a version seen before")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tests.ovsdb", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--scripts", type=int, default=100)
    parser.add_argument("--seconds", type=float, help="run for this long, instead of --scripts")
    parser.add_argument("--transactions", type=int, help="run until there were this many, instead of --scripts")
    parser.add_argument("--only", help="SEED.NUMBER: one script")
    parser.add_argument("--subject", choices=(SUBJECT, STOCK), default=SUBJECT)
    parser.add_argument("--mutant", choices=mutants.MUTANTS)
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--max-failures", type=int, default=5)
    return parser.parse_args(arguments)


def new_script(rng):
    schemas = {"D": random_schema(rng, "D")}
    if rng.random() < 0.25:
        schemas["E2"] = random_schema(rng, "E2", tables=2)
    return Script(schemas, [])


def run_script(name, subject, mutate, counters):
    """Generates and runs one script; returns (script, problem or None)."""
    rng = random.Random(name)
    script = new_script(rng)
    generator = Generator(rng, {key: Schema(schema) for key, schema in script.schemas.items()})
    both = pair.Pair(script, subject, mutate, counters)
    try:
        steps = itertools.chain(map(Open, generator.sessions), itertools.repeat(None))
        for at in itertools.count():
            step = next(steps) or generator.next()
            if script.transactions() >= TRANSACTIONS:
                step = (Dump(), Restart(swap=True), Dump(), None)[len(script.steps) - ending]
                if step is None:
                    return script, None
            else:
                ending = len(script.steps) + 1
            script.steps.append(step)
            problem = both.perform(at, step)
            if problem or both.ended:
                return script, problem
            learn(generator, step, both)
    finally:
        both.close()


def learn(generator, step, both):
    """Passes the oracle's answers to the generator, with names for UUIDs, so that the same seed makes the same
    script."""
    said = both.oracle_said
    if isinstance(step, Dump):
        for database, schema in generator.schemas.items():
            for table, result in zip(sorted(schema.tables), said[f"(dump {database})"][0]):
                generator.learn_dump(database, table, result["rows"])
    generator.waiting = any(isinstance(one, Transact) for one in both.oracle.pending.values())
    for one in step.transacts if isinstance(step, Burst) else [step]:
        if isinstance(one, Transact):
            for op in one.ops:
                if op.binds and op.binds in both.oracle.names.uuid_of and isinstance(op.json, dict) and isinstance(op.json.get("table"), str):
                    generator.learn_insert(one.database, op.json["table"], op.binds)


def compare_all(options, say=print):
    """Runs the plan; returns (transactions, failures, counters); a failure is (name, problem, script)."""
    counters, failures, seen, transactions = collections.Counter(), [], set(), 0
    mutant = mutants.MUTANTS[options.mutant] if options.mutant else None
    deadline = time.monotonic() + (options.seconds or 0)
    for number in itertools.count():
        if options.only:
            if number:
                break
        elif options.seconds is not None:
            if time.monotonic() > deadline:
                break
        elif options.transactions is not None:
            if transactions >= options.transactions:
                break
        elif number >= options.scripts:
            break
        name = options.only or f"{options.seed}.{number}"
        script, problem = run_script(name, options.subject, mutant and mutant(), counters)
        transactions += script.transactions()
        if problem is not None and problem.where == f"{STOCK} server died":
            # The oracle's defects are not ours; the code below checks that this is rare.
            counters["the oracle died"] += 1
            continue
        if problem is not None and problem.where == pair.ORACLE_DANGLES:
            counters["dangling weak reference"] += 1
            continue
        if problem is None or problem.signature() in seen:
            counters["repeated failures"] += problem is not None
            continue
        seen.add(problem.signature())
        say(f"\nDIFFERENCE in script {name} (again: python -m tests.ovsdb --only {name})\n{problem}", flush=True)
        small = script
        if not options.no_shrink:
            small, problem = shrink.shrink(script, problem, lambda one: pair.replay(one, options.subject, mutant and mutant()))
            say(f"smallest script found:\n{show(small)}\n{problem}", flush=True)
        failures.append((name, problem, small))
        if len(failures) >= options.max_failures:
            break
    for what in RARE:
        if counters[what] * 200 > transactions + 400:
            failures.append((what, f"{what}: {counters[what]} times in {transactions} transactions, which is no longer rare", None))
            say(failures[-1][1])
    return transactions, failures, counters


def main(arguments):
    options = parse(arguments)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000_000)
    print(f"ovsdb differential: seed {options.seed}", flush=True)
    started = time.monotonic()
    transactions, failures, counters = compare_all(options)
    for what, count in sorted(counters.items()):
        print(f"  {what}: {count}")
    print(f"ovsdb differential: seed {options.seed}, {transactions} transactions in {time.monotonic() - started:.0f} s, {len(failures)} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
