"""The unit's filter allows every system call the server makes: seen with strace while it serves, persists, returns
memory and exits."""

import functools
import json
import shutil
import subprocess

from tests import servers
from tests.allocators.node import delete, http, load, reload, resident_bytes, wait_until
from tests.ovsdb.connection import Connection
from tests.ovsdb.log_file import text_of_record
from tests.packaging.test_systemd import PACKAGING

DOCUMENTS = 20_000
VALUE = b"x" * 1000
LARGE_VALUE = b"y" * 500_000

CONFIG = """
[allocator]
narenas = 3

[[bucket]]
name = "default"
kind = "persistent"
memory = "128MiB"
item_heap = "slab"

[[bucket]]
name = "cache"
kind = "ephemeral"
memory = "128MiB"
item_heap = "block"

[[ovsdb]]
file = "{directory}/d.db"
remotes = "punix:{directory}/sock"
memory = "64MiB"
"""

SCHEMA = {"name": "D", "tables": {"T": {"isRoot": True, "columns": {"key": {"type": "integer"}}}}}


def calls(words):
    """The system calls named, with systemd's groups expanded."""
    return {call for word in words for call in (members(word) if word.startswith("@") else {word})}


@functools.cache
def members(group):
    done = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    lines = (line.strip() for line in done.stdout.splitlines()[1:])
    return calls(line for line in lines if line and not line.startswith("#"))


def allowed():
    unit = (PACKAGING / "dormouse.service").read_text()
    (words,) = [line.partition("=")[2].split() for line in unit.splitlines() if line.startswith("SystemCallFilter=")]
    assert all(word.startswith("@") or word.isidentifier() for word in words), words
    return calls(words)


def serve_a_while(node, directory, config):
    for size, documents in ((VALUE, DOCUMENTS), (LARGE_VALUE, 20)):
        load(node, documents, size)
    full = resident_bytes(node)
    delete(node, range(1, DOCUMENTS, 2))
    with Connection(directory / "sock") as peer:
        peer.transact("D", *({"op": "insert", "table": "T", "row": {"key": number}} for number in range(1000)))
        peer.transact("D", {"op": "delete", "table": "T", "where": [["key", "<", 900]]})
    assert http(node, "GET", "/health")[0] == 200
    assert http(node, "GET", "/metrics")[0] == 200
    assert http(node, "POST", "/pools/default/buckets", {"name": "more", "ramQuota": 100, "bucketType": "couchbase"})[0] == 202
    assert http(node, "DELETE", "/pools/default/buckets/more")[0] == 200
    reload(node, config.replace('memory = "128MiB"', 'memory = "120MiB"') + '[log]\nlevel = "debug"\n')
    wait_until(lambda: full - resident_bytes(node) > DOCUMENTS * len(VALUE) / 4)


def test_the_filter_allows_what_the_server_calls(tmp_path):
    assert shutil.which("strace"), "strace is missing"
    (tmp_path / "d.db").write_bytes(text_of_record(json.dumps(SCHEMA).encode()))
    config, trace = CONFIG.format(directory=tmp_path), tmp_path / "calls"
    wrap = ("strace", "-D", "-f", "-qq", "-c", "-U", "name", "-o", str(trace))
    node = servers.Dormouse(buckets=(), config=config, wrap=wrap)
    try:
        serve_a_while(node, tmp_path, config)
    finally:
        code = node.stop()
    assert code == 0, node.last_log
    wait_until(lambda: "total" in trace.read_text())
    lines = [line.strip() for line in trace.read_text().splitlines()]
    called = {line for line in lines if line.isidentifier() and line not in ("syscall", "total")}
    # Check that the run exercised what it was meant to.
    assert {"epoll_wait", "madvise", "mincore", "fdatasync", "accept4", "execve"} <= called, sorted(called)
    assert called <= allowed(), sorted(called - allowed())
