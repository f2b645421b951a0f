"""Dormouse answers as memcached does; faulty servers show that the check itself can fail."""

import os
import pathlib
import re

import pytest

from tests import servers

from . import __main__ as differential
from . import answers, mutants, pair, script, scripts

SCRIPTS = int(os.environ.get("DIFFERENTIAL_SCRIPTS", "25"))
MUTANT_SCRIPTS = 60


# New servers for each test: the script "counter-edges" needs memory that the oracle has never used.
@pytest.fixture
def oracle():
    with servers.Memcached(*differential.MEMCACHED_ARGUMENTS) as server:
        yield server


@pytest.fixture
def second_oracle():
    with servers.Memcached(*differential.MEMCACHED_ARGUMENTS) as server:
        yield server


def compare(arguments, oracle_address, subject_address, mutate=None):
    said = []
    options = differential.parse(arguments)
    commands, failures = differential.compare_all(
        options, pair.Peer(oracle_address), pair.Peer(subject_address, mutate), say=lambda *words, **_: said.append(" ".join(words))
    )
    return commands, failures, "\n".join(said)


def test_memcached_agrees_with_itself(oracle, second_oracle):
    commands, failures, said = compare(["--seed", "1", "--scripts", "25", "--no-timed"], oracle.address, second_oracle.address)
    assert not failures, said
    assert commands > 4000


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_a_wrong_server_is_noticed(name, oracle, second_oracle):
    arguments = ["--seed", "2", "--scripts", str(MUTANT_SCRIPTS), "--no-timed", "--no-shrink", "--max-failures", "1"]
    _, failures, _ = compare(arguments, oracle.address, second_oracle.address, mutants.MUTANTS[name])
    assert failures, f"{MUTANT_SCRIPTS} scripts of each kind did not notice: {name}"


def test_a_failing_script_shrinks(oracle, second_oracle):
    arguments = ["--seed", "2", "--scripts", str(MUTANT_SCRIPTS), "--kind", "text", "--no-timed", "--max-failures", "1"]
    _, failures, said = compare(arguments, oracle.address, second_oracle.address, mutants.MUTANTS["add overwrites"])
    (_, _, small), *_ = failures
    assert sum(len(one.steps) for one in small) <= 3, said


def test_the_same_seed_gives_the_same_script():
    for kind in scripts.KINDS:
        assert scripts.random_script("5.1", kind) == scripts.random_script("5.1", kind)
        assert scripts.random_script("5.1", kind) != scripts.random_script("5.2", kind)


def test_what_an_old_oracle_is_not_sent_is_named():
    page = (pathlib.Path(__file__).parent / "differences.md").read_text()
    rows = set(re.findall(r"^\| `([\w-]+)` \|", page.partition("## Not sent to an oracle")[2].partition("## Not generated")[0], re.M))
    used = {step.since for kind in scripts.KINDS for number in range(300) for one in scripts.random_script(f"8.{number}", kind) for step in one.steps}
    assert used - {""} == rows
    old = [step for kind in scripts.KINDS for number in range(20) for one in scripts.random_script(f"8.{number}", kind, newest=False) for step in one.steps]
    assert len(old) > 4000 and not any(step.since for step in old)


def test_a_cas_that_changes_by_itself_is_noticed():
    book = answers.CasBook()
    told = lambda *values: answers.split_text(b"".join(b"VALUE k 0 1 %d\r\nx\r\n" % v for v in values))
    assert answers.compare(told(5, 5), told(100, 100), book) is None
    assert "is now 101" in answers.compare(told(5), told(101), book)
    assert answers.compare(told(6), told(102), book) is None
    assert "rose or fell" in answers.compare(told(7), told(99), book)


def test_a_cas_token_is_each_servers_own():
    step = script.Step((b"cas k 0 0 1 ", script.Cas(b"k", 1), b"\r\nx\r\n"))
    assert step.bytes_for({b"k": [7, 9]}, script.TEXT) == b"cas k 0 0 1 7\r\nx\r\n"
    assert b"%d" % script.UNKNOWN_CAS in step.bytes_for({b"k": [7]}, script.TEXT)


def test_dormouse_answers_as_memcached(oracle):
    """A short run; `python -m tests.differential --seconds 60` is the long one."""
    seed = os.environ.get("DIFFERENTIAL_SEED") or str(int.from_bytes(os.urandom(3), "big"))
    arguments = ["--seed", seed, "--scripts", str(SCRIPTS), "--no-timed"]
    with differential.start_subject(differential.parse(arguments)) as subject:
        commands, failures, said = compare(arguments, oracle.address, subject.address)
        assert subject.alive(), subject.log()
    assert not failures, f"seed {seed}\n{said}"
    assert commands > 50 * SCRIPTS
