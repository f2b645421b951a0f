"""The official Couchbase SDK for Node.js passes every check of checks.py, with and without TLS."""

import pathlib
import shutil

import pytest

from .checks import CHECKS, run_program, verdict

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "node"


@pytest.fixture(scope="module")
def report(either_node):
    if shutil.which("node") is None:
        pytest.skip("no node on this machine")
    assert (DIRECTORY / "node_modules" / "couchbase").is_dir(), "run tests/install.sh"
    return run_program(["node", "checks.js"], DIRECTORY, either_node)


@pytest.mark.parametrize("check", CHECKS)
def test_node(report, check):
    verdict(*report, check)
