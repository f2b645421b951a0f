"""The official Couchbase SDK for Go (gocb) passes every check of checks.py, with and without TLS."""

import pathlib
import shutil
import subprocess

import pytest

from .checks import CHECKS, run_program, verdict

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "go"


@pytest.fixture(scope="module")
def report(either_node, tmp_path_factory):
    if shutil.which("go") is None:
        pytest.skip("no Go toolchain on this machine")
    program = tmp_path_factory.mktemp("go") / "checks"
    built = subprocess.run(["go", "build", "-o", str(program), "."], cwd=DIRECTORY, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return run_program([str(program)], DIRECTORY, either_node)


@pytest.mark.parametrize("check", CHECKS)
def test_go(report, check):
    verdict(*report, check)
