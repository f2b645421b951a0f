"""The checks of checks.py in Go, against gocaves: the mock of Couchbase Server that its SDKs are tested with.

`make gocaves` builds the mock from its module, runs each check against a mock of its own (many requests that it does not know
end the connection), and compares the outcome with DIFFERENCES. Dormouse passes all checks (test_couchbase_go.py), so what
is not in that table is answered alike. The mock was last released in 2021.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from tests.persistence.bucket import wait_until

from .checks import CHECKS

VERSION = "v0.0.1-75"
GO = pathlib.Path(__file__).resolve().parent.parent / "go"

# Checks that fail on the mock, and why: all of these are missing or different there.
DIFFERENCES = {
    "connect": "it has no /whoami: waiting for the management service does not end",
    "ping": "it has no /whoami",
    "replace-expiry": "it refuses the frame info",
    "preserve-expiry": "it refuses the frame info",
    "preserve-expiry-in-mutate": "it refuses the frame info",
    "counter-not-a-number": "it answers EINTERNAL and closes the connection, not DELTA_BADVAL",
    "lock-errors": "it has no status for a document that is not locked",
    "durability-persist-refused": "it persists in ephemeral buckets",
    "too-big": "it has no largest value",
    "key-too-long": "it has no longest key",
    "lookup-any-replica": "it does not grant the feature",
    "mutate-in": "it does not create missing paths of arrays",
    "mutate-in-errors": "it answers EINTERNAL and closes the connection",
    "mutate-in-upsert": "it closes the connection",
    "mutate-in-durable": "it persists in ephemeral buckets",
    "mutate-in-clears-expiry": "it keeps the expiry though the client does not ask for that",
    "get-with-expiry": "it does not know $document.exptime beside other paths",
    "xattrs": "it does not know all macros",
    "collection-manage": "its errors have the words of older servers, which the SDK does not recognise",
    "collection-documents": "it serves collections that are gone",
    "collection-max-expiry": "it ignores maxTTL",
    "scan-range": "it has no scans",
    "scan-sampling": "it has no scans",
    "bucket-settings": "it stores few settings",
    "user-manage": "it has no date of the password's last change",
    "group-manage": "it has no groups",
    "role-enforced": "it enforces no roles",
    "change-password": "it has no /whoami and no /controller/changePassword",
}


def build(directory):
    """Builds the mock. Its module replaces one by a directory that is not in it, and lacks two generated files."""
    go = ["go", "mod", "download", "-json", f"github.com/couchbaselabs/gocaves@{VERSION}"]
    listed = subprocess.run(go, check=True, capture_output=True, text=True, cwd=directory)
    source = directory / "source"
    shutil.copytree(re.search(r'"Dir": "(.*)"', listed.stdout).group(1), source)
    subprocess.run(["chmod", "-R", "u+w", str(source)], check=True)
    shutil.rmtree(source / "example")
    program = directory / "gocaves"
    environment = os.environ | {"GOFLAGS": "-mod=mod"}
    for command in (
        ["go", "mod", "edit", "-dropreplace", "github.com/couchbaselabs/gocaves/client"],
        ["go", "run", "./tools/prebuildstep.go"],
        ["go", "build", "-o", str(program), "."],
    ):
        subprocess.run(command, check=True, cwd=source, env=environment)
    return program


def run(mock, checks, name, log):
    """Runs one check; returns None, or why it failed."""
    with open(log, "w") as output:
        server = subprocess.Popen([str(mock), "-mock-only"], stdout=output, stderr=subprocess.STDOUT)
    try:
        found = wait_until(lambda: re.search(r'"connstr":"([^"]*)"', log.read_text()), "the mock's address")
        command = [str(checks), found.group(1), "Administrator", "password", "default"]
        done = subprocess.run(command, env=os.environ | {"CHECK": name}, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "no answer in 120 s"
    finally:
        server.kill()
        server.wait()
    for line in done.stdout.splitlines():
        if line == f"ok {name}":
            return None
        if line.startswith(f"not ok {name}:"):
            return line.partition(":")[2].strip()
    return f"exit code {done.returncode} without a verdict"


def main():
    unexpected = 0
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        mock, checks = build(directory), directory / "checks"
        subprocess.run(["go", "build", "-o", str(checks), "."], check=True, cwd=GO)
        for name in CHECKS:
            reason = run(mock, checks, name, directory / "log")
            is_expected = (reason is not None) == (name in DIFFERENCES)
            unexpected += not is_expected
            words = "the same" if reason is None else f"differs: {DIFFERENCES.get(name, 'not explained')}"
            print(f"{'' if is_expected else 'NEW '}{name}: {words}" + (f"\n    {reason[:200]}" if reason else ""), flush=True)
    print(f"{len(CHECKS)} checks, {len(DIFFERENCES)} differences, {unexpected} of them new")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
