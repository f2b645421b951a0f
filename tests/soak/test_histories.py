"""Histories of replicas are linearizable, and the judge finds those that are not."""

import shutil

import pytest

from . import histories, nemesis


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("go") is None:
        pytest.skip("no Go toolchain on this machine")
    return histories.judge_program(tmp_path_factory.mktemp("judge"))


def operation(called, returned, kind, answer, value="", found="", expected="", client=0):
    return {
        "client": client, "called": called, "returned": returned, "kind": kind, "value": value, "expected": expected, "answer": answer, "found": found,
    }


def test_the_judge_finds_what_no_order_explains(program):
    written = [operation(0, 1, "set", "done", "a"), operation(2, 3, "set", "done", "b")]
    unknown = [operation(0, 1, "set", "done", "a"), operation(2, histories.NEVER_NS, "set", "unknown", "b")]
    said = histories.judge(program, {
        "fresh": [*written, operation(4, 5, "get", "done", found="b")],
        "stale": [*written, operation(4, 5, "get", "done", found="a")],
        "lost": [*written, operation(4, 5, "get", "missing")],
        "at once": [written[0], operation(2, 9, "set", "done", "b"), operation(4, 5, "get", "done", found="a", client=1)],
        "late": [*unknown, operation(4, 5, "get", "done", found="a"), operation(6, 7, "get", "done", found="b")],
        "back": [*unknown, operation(4, 5, "get", "done", found="b"), operation(6, 7, "get", "done", found="a")],
        "twice": [operation(0, 1, "add", "done", "a"), operation(2, 3, "add", "done", "b")],
        "cas": [*written, operation(4, 5, "cas", "done", "c", expected="a")],
        "exists": [*written, operation(4, 5, "cas", "exists", "c", expected="a"), operation(6, 7, "get", "done", found="b")],
        "deleted": [*written, operation(4, 5, "delete", "done"), operation(6, 7, "get", "missing")],
    })
    good = {"fresh", "at once", "late", "exists", "deleted"}
    assert {key for key, verdict in said.items() if verdict == "ok"} == good
    assert set(said.values()) == {"ok", "illegal"}


@pytest.mark.parametrize("kind", ["ephemeral", "persistent"])
def test_replicas_are_linearizable(program, kind):
    done = histories.run(kind, 20261128, 0, program)
    assert not done.problems, "\n".join(done.problems)
    assert done.operations > 1000 and set(done.faults.values()) == {1} and len(done.faults) == 5


@pytest.mark.parametrize("kind", ["ephemeral", "persistent"])
def test_nothing_is_lost_when_faults_overlap(program, kind):
    done = nemesis.run(kind, 20261129, 20, program)
    assert not done.problems, "\n".join(done.problems)
    assert done.operations > 500 and done.promoted >= 1 and len(done.faults) >= 3
