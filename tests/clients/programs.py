"""Programs of the SDKs in tests/go, tests/node, tests/java and tests/java-streams: how they are built and started."""

import pathlib
import shutil
import subprocess

import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent


def needs(tool):
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on this machine")


def go(name, directory):
    """The command of the program in tests/go/NAME."""
    needs("go")
    program = directory / name
    built = subprocess.run(["go", "build", "-o", str(program), f"./{name}"], cwd=TESTS / "go", capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return [str(program)]


def node(name, _):
    """The command of tests/node/NAME.js."""
    needs("node")
    assert (TESTS / "node" / "node_modules" / "couchbase").is_dir(), "run tests/install.sh"
    return ["node", str(TESTS / "node" / f"{name}.js")]


def java(name, directory, project="java"):
    """The command of tests/PROJECT/NAME.java, whose first letter is a capital."""
    needs("javac")
    home = TESTS / project
    listed = home / "target" / "classpath"
    if not listed.exists():
        command = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=target/classpath"]
        fetched = subprocess.run(command, cwd=home, capture_output=True, text=True)
        assert fetched.returncode == 0, fetched.stdout[-4000:]
    classpath, main = listed.read_text().strip(), name.capitalize()
    built = subprocess.run(["javac", "-cp", classpath, "-d", str(directory), f"{main}.java"], cwd=home, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return ["java", "-Xmx1g", "-cp", f"{directory}:{classpath}", main]
