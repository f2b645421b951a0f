"""The comparison detects faulty servers, finds Debian's server equal to itself, and our server equal to Debian's in a
short run."""

import os

import pytest

from . import __main__ as differential
from . import mutants, operations, schemas, script
from .rows import Schema

TRANSACTIONS = int(os.environ.get("OVSDB_TRANSACTIONS", "2000"))
MUTANT_SCRIPTS = 12


def compare(*arguments):
    said = []
    transactions, failures, counters = differential.compare_all(
        differential.parse(list(arguments)), say=lambda *words, **_: said.append(" ".join(map(str, words))))
    return transactions, failures, counters, "\n".join(said)


def test_debians_server_agrees_with_itself():
    transactions, failures, counters, said = compare("--subject", "stock", "--seed", "1", "--scripts", "15")
    assert not failures, said
    assert transactions > 1200
    assert counters["the oracle died"] <= 1


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_a_wrong_server_is_noticed(name):
    arguments = ["--subject", "stock", "--seed", "2", "--scripts", str(MUTANT_SCRIPTS), "--no-shrink", "--max-failures", "1", "--mutant", name]
    _, failures, _, _ = compare(*arguments)
    assert failures, f"{MUTANT_SCRIPTS} scripts did not notice: {name}"


def test_a_failing_script_shrinks():
    _, failures, _, said = compare("--subject", "stock", "--seed", "2", "--scripts", "12", "--max-failures", "1", "--mutant", "an update is lost")
    (_, problem, small), *_ = failures
    assert len(small.steps) <= 12, said
    assert problem is not None


def test_the_same_seed_gives_the_same_start():
    def steps(seed):
        rng = differential.random.Random(seed)
        described = differential.new_script(rng).schemas
        generator = operations.Generator(rng, {name: Schema(one) for name, one in described.items()})
        return [script.show_step(generator.next()) for _ in range(30)]

    assert steps("5.1") == steps("5.1")
    assert steps("5.1") != steps("5.2")


def test_our_server_answers_as_debians():
    """A short run with a fixed seed; `make ovsdb-differential` uses random seeds."""
    seed = os.environ.get("OVSDB_SEED", "61")
    transactions, failures, counters, said = compare("--seed", seed, "--transactions", str(TRANSACTIONS), "--max-failures", "3")
    assert not failures, f"seed {seed}\n{said}"
    assert transactions >= TRANSACTIONS
    assert counters["the oracle died"] * 100 < transactions
