"""Crashes: kills at random times (crash.py), and the fsync that covers each durable answer, seen with strace."""

import os
import re
import time

import pytest

from . import crash
from .conftest import SMALL
from .connection import Connection
from .servers import OvsdbServer, create_database, tool

ROUNDS = int(os.environ.get("OVSDB_CRASH_ROUNDS", "30"))


def test_kills_at_random_moments(kind):
    seed = int(os.environ.get("OVSDB_SEED") or int.from_bytes(os.urandom(3), "big"))
    transactions, _ = crash.run(ROUNDS, seed, kind)
    assert transactions > 5 * ROUNDS


CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(?:\d+\.\d+ )?(\w+)\((\d+)(.*)$")


def calls(text):
    """(system call, descriptor, rest); calls that were interrupted by another thread are joined."""
    found = []
    for line in text.splitlines():
        match = CALL.match(line)
        if match:
            found.append((match[1], int(match[2]), match[3]))
    return found


@pytest.mark.parametrize("depth", (1, 8))
def test_a_sync_covers_every_durable_answer(kind, tmp_path, depth):
    path = create_database(tmp_path / "D.db", SMALL)
    trace = tmp_path / "trace"
    wrap = ["strace", "-f", "-qq", "-s", "200000", "-e", "trace=write,writev,pwrite64,pwritev,send,sendto,sendmsg,fsync,fdatasync", "-o", str(trace)]
    with OvsdbServer(kind, tmp_path / "run", databases=[path], wrap=wrap) as server, Connection(server.sock) as peer:
        count = 24
        for first in range(0, count, depth):
            for number in range(first, first + depth):
                ops = [{"op": "insert", "table": "T", "row": {"key": number, "s": f"value-{number}-"}}, {"op": "comment", "comment": f"durable-{number}-"}]
                peer.send({"method": "transact", "params": ["D", *ops, {"op": "commit", "durable": number % 2 == 0}], "id": f"answer-{number}-"})
            for number in range(first, first + depth):
                assert peer.receive()["id"] == f"answer-{number}-"
        server.exit()
    time.sleep(0.1)
    record, synced, answered, synced_at = {}, set(), {}, {}
    for at, (call, descriptor, rest) in enumerate(calls(trace.read_text(errors="replace"))):
        if call in ("fsync", "fdatasync"):
            for number, (where, _) in record.items():
                if where == descriptor:
                    synced.add(number)
                    synced_at.setdefault(number, at)
            continue
        for number in map(int, re.findall(r"durable-(\d+)-", rest)):
            record.setdefault(number, (descriptor, at))
        for number in map(int, re.findall(r"answer-(\d+)-", rest)):
            if number not in record or descriptor != record[number][0]:
                answered.setdefault(number, (at, number in record, number in synced))
    assert sorted(answered) == list(range(count)), sorted(answered)
    for number, (at, was_written, was_synced) in sorted(answered.items()):
        assert was_written, f"answer {number} before its record was written"
        assert number % 2 or was_synced, f"durable answer {number} was sent before a sync of the log"


def test_a_torn_tail_is_cut_with_a_warning(kind, tmp_path):
    """Both servers open the file, keep the complete records, log the same warning, and continue."""
    for what, tail in (("half a record", b"OVSDB JSON 100 " + b"0" * 40 + b"\n{\"_date\""), ("rubbish", b"\0" * 30), ("a header's beginning", b"OVSDB JS"),
                       ("a wrong checksum", b"OVSDB JSON 3 " + b"0" * 40 + b"\n{}\n"), ("no newline", b"x")):
        warnings = []
        for one in ("stock", kind):
            # Short: the path of a Unix socket has at most 107 bytes.
            directory = tmp_path / f"{one}-{what.split()[-1]}"
            directory.mkdir()
            path = create_database(directory / "D.db", SMALL)
            tool("transact", path, '["D",{"op":"insert","table":"T","row":{"key":1}}]')
            whole = path.read_bytes()
            path.write_bytes(whole + tail)
            with OvsdbServer(one, directory / "run", databases=[path]) as server, Connection(server.sock) as peer:
                assert peer.transact("D", {"op": "select", "table": "T", "where": [], "columns": ["key"]}) == [{"rows": [{"key": 1}]}]
                peer.transact("D", {"op": "insert", "table": "T", "row": {"key": 2}})
                lines = [line.split("|", 2)[2] for line in server.log_path.read_text().splitlines() if "|WARN|" in line]
                warnings.append([line.replace(str(directory), "DIR") for line in lines])
            assert path.read_bytes().startswith(whole), what
            assert "2" in tool("query", path, '["D",{"op":"select","table":"T","where":[["key","==",2]],"columns":["key"]}]'), what
        assert warnings[0] == warnings[1], what


def test_the_file_is_locked(kind, tmp_path):
    """ovsdb-tool cannot write while the server has the file open, even through a symbolic link."""
    path = create_database(tmp_path / "D.db", SMALL)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with OvsdbServer(kind, tmp_path / "run", databases=[link]):
        import subprocess

        done = subprocess.run(["ovsdb-tool", "transact", path, '["D",{"op":"insert","table":"T","row":{"key":1}}]'], capture_output=True, text=True)
        assert done.returncode != 0 and "lock" in done.stderr, done.stderr
    tool("transact", path, '["D",{"op":"insert","table":"T","row":{"key":1}}]')
