"""memccapable of Debian's libmemcached-tools: every one of its 54 checks passes."""

import re
import shutil
import subprocess

import pytest

CHECKS = 54


@pytest.fixture(scope="module")
def memccapable():
    path = shutil.which("memccapable")
    assert path, "memccapable is missing: apt-get install libmemcached-tools"
    return path


def test_all_checks_pass(memccapable, node):
    host, port = node.memcached
    done = subprocess.run([memccapable, "-h", host, "-p", str(port), "-t", "10"], capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr
    passed = re.findall(r"^(ascii|binary) .*\[pass\]", output, re.MULTILINE)
    failed = [line for line in output.splitlines() if "[FAIL]" in line or "[fail]" in line]
    assert not failed, output
    assert (passed.count("ascii"), passed.count("binary")) == (27, 27), output
    assert len(passed) == CHECKS and done.returncode == 0, output
