"""What every Couchbase SDK must be able to do: the programs in tests/node, tests/go and tests/java perform exactly
these checks and print one line each, `ok NAME` or `not ok NAME: reason`. The Python SDK has a pytest function for each.
"""

import subprocess

from .cluster import connection_string

CHECKS = (
    "connect",
    "ping",
    "upsert-get",
    "get-missing",
    "insert",
    "insert-existing",
    "insert-expiry-absolute",
    "replace",
    "replace-missing",
    "replace-cas-mismatch",
    "replace-expiry",
    "remove",
    "remove-missing",
    "remove-cas-mismatch",
    "exists",
    "touch",
    "get-and-touch",
    "touch-zero",
    "expiry",
    "preserve-expiry",
    "get-and-lock",
    "unlock",
    "lock-errors",
    "counter",
    "counter-missing",
    "counter-not-a-number",
    "decrement-creates",
    "append-prepend",
    "append-missing",
    "durability-majority",
    "durability-persist-refused",
    "large-value",
    "too-big",
    "key-too-long",
    "binary-value",
    "string-value",
    "any-replica",
    "any-replica-missing",
    "batch",
    "lookup-in",
    "lookup-any-replica",
    "mutate-in",
    "mutate-in-errors",
    "mutate-in-upsert",
    "mutate-in-durable",
    "mutate-in-clears-expiry",
    "preserve-expiry-in-mutate",
    "get-with-expiry",
    "get-with-projection",
    "data-structures",
    "xattrs",
    "collection-manage",
    "collection-documents",
    "collection-max-expiry",
    "scan-range",
    "scan-sampling",
    "bucket-settings",
    "persistent-bucket",
    "user-manage",
    "group-manage",
    "role-enforced",
    "change-password",
    "transaction-commit",
    "transaction-rollback",
    "transaction-several-changes",
    "transaction-conflict",
    "transaction-expired",
    "close",
)


def run_program(command, directory, node, timeout_s=180):
    """Runs one SDK program against the node; returns {check: None or the reason it failed}, and its full output."""
    authority = [] if node.kv else [str(node.authority)]
    done = subprocess.run(
        [*command, connection_string(node), "Administrator", "password", "default", *authority],
        cwd=directory, capture_output=True, text=True, timeout=timeout_s,
    )
    results = {}
    for line in done.stdout.splitlines():
        if line.startswith("ok "):
            results[line[3:].strip()] = None
        elif line.startswith("not ok "):
            name, _, reason = line[7:].partition(":")
            results[name.strip()] = reason.strip() or "no reason"
    closed = [line for line in node.log(1 << 20).splitlines() if "closed a connection" in line][-40:]
    said = [f"exit code {done.returncode}", done.stdout[-6000:], done.stderr[-6000:], "the node's last closed connections:", *closed]
    return results, "\n".join(said)


def verdict(results, output, check):
    assert check in results, f"the program did not get to {check}\n{output}"
    assert results[check] is None, f"{check}: {results[check]}"
