"""The official Couchbase SDK for Java passes every check of checks.py, with and without TLS."""

import pathlib
import shutil
import subprocess

import pytest

from .checks import CHECKS, run_program, verdict

DIRECTORY = pathlib.Path(__file__).resolve().parent.parent / "java"


@pytest.fixture(scope="module")
def report(either_node):
    if shutil.which("javac") is None or shutil.which("mvn") is None:
        pytest.skip("no JDK with Maven on this machine")
    built = subprocess.run(
        ["mvn", "-q", "-B", "compile", "dependency:build-classpath", "-Dmdep.outputFile=target/classpath"],
        cwd=DIRECTORY, capture_output=True, text=True,
    )
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]
    classpath = (DIRECTORY / "target" / "classpath").read_text().strip()
    return run_program(["java", "-Xmx1g", "-cp", f"target/classes:{classpath}", "Checks"], DIRECTORY, either_node)


@pytest.mark.parametrize("check", CHECKS)
def test_java(report, check):
    verdict(*report, check)
