"""Faulty and greedy peers: the server answers or drops them, survives, serves the others, and its memory stays bounded.

These run against ours only: Debian's server has fewer bounds, and some of the requests crash it.
"""

import copy
import json
import resource
import socket
import time

import pytest

from . import differences
from .conftest import SMALL
from .connection import Closed, Connection
from .rows import Replica, Schema
from .servers import PATIENCE_S, OvsdbServer, create_database

MIB = 1 << 10  # of the kB in /proc/PID/status
MESSAGE_LIMIT_BYTES = 256 << 20


def serves(server):
    with Connection(server.sock) as peer:
        return peer.request("echo", 1)["result"] == [1]


@pytest.mark.parametrize("number", range(len(differences.KILLS_STOCK)))
def test_what_ends_debians_server_is_answered(kind, tmp_path, number):
    schema = copy.deepcopy(SMALL)
    schema["tables"]["T"]["columns"]["m"] = {"type": {"key": {"type": "uuid", "refTable": "T", "refType": "weak"},
                                                      "value": {"type": "uuid", "refTable": "T", "refType": "weak"}, "min": 0, "max": "unlimited"}}
    path = create_database(tmp_path / "D.db", schema)
    with OvsdbServer(kind, tmp_path / "run", databases=[path]) as server:
        request = differences.KILLS_STOCK[number]
        with Connection(server.sock) as peer:
            peer.send(request)
            assert peer.receive()["id"] == request["id"]
        assert serves(server)


def test_negative_zero_is_zero_in_an_index(kind, tmp_path):
    """Debian's server accepts a second zero: differences.DELIBERATE, "negative zero in an index"."""
    path = create_database(tmp_path / "D.db", {"name": "D", "version": "1.0.0", "tables": {"T": {"isRoot": True, "indexes": [["r"]], "columns": {"r": {"type": "real"}}}}})
    with OvsdbServer(kind, tmp_path / "run", databases=[path]) as server, Connection(server.sock) as peer:
        zero = {"op": "insert", "table": "T", "row": {"r": 0.0}}
        negate = {"op": "mutate", "table": "T", "where": [], "mutations": [["r", "*=", -1.0]]}
        assert peer.transact("D", zero, negate, zero)[-1]["error"] == "constraint violation"
        peer.transact("D", zero, negate)
        for _ in range(2):
            assert peer.transact("D", zero)[-1]["error"] == "constraint violation"
            assert peer.transact("D", {"op": "select", "table": "T", "where": [["r", "==", 0]], "columns": ["r"]}) == [{"rows": [{"r": 0}]}]
            server.exit()
            server.start()
            peer = Connection(server.sock)


def test_depth(small):
    for depth in (100, 900, 100_000):
        with Connection(small.sock) as peer:
            peer.send_bytes(b'{"method":"echo","params":[' + b"[" * depth + b"]" * depth + b'],"id":1}')
            try:
                length = len(json.dumps(peer.receive()))
            except Closed:
                length = 0
            assert length > 2 * depth if depth < 1000 else length == 0
    assert serves(small)


def test_a_message_without_an_end(small):
    """A string that never ends: the session is dropped at the bound, and its memory is returned."""
    before = small.status("VmRSS")
    with Connection(small.sock) as peer:
        peer.socket.settimeout(5)
        piece = b"x" * (1 << 20)
        sent, dropped = 0, False
        try:
            peer.socket.sendall(b'{"method":"echo","id":1,"params":["')
            while sent < MESSAGE_LIMIT_BYTES + (64 << 20):
                peer.socket.sendall(piece)
                sent += len(piece)
                # Another client is served meanwhile.
                if sent % (128 << 20) == 0:
                    assert serves(small)
        except OSError:
            dropped = True
    assert dropped, f"{sent >> 20} MiB were taken"
    assert small.status("VmHWM") - before < (MESSAGE_LIMIT_BYTES >> 10) * 1.5 + 64 * MIB
    deadline = time.monotonic() + PATIENCE_S
    while small.status("VmRSS") - before > 64 * MIB:
        assert time.monotonic() < deadline, f"{small.status('VmRSS') - before} kB more after the session was dropped"
        time.sleep(0.2)
    assert serves(small)


@pytest.mark.parametrize("change", ["insert", "delete"])
@pytest.mark.parametrize("together", [True, False])
def test_many_mutations_of_a_long_set(kind, tmp_path, change, together):
    """They take no copy of the set each."""
    path = create_database(tmp_path / "D.db", {"name": "D", "version": "1.0.0", "tables": {"T": {
        "isRoot": True, "columns": {"s": {"type": {"key": "integer", "min": 0, "max": "unlimited"}}}}}})
    size, count = 200_000, 500
    with OvsdbServer(kind, tmp_path / "run", databases=[path]) as server, Connection(server.sock) as peer:
        peer.transact("D", {"op": "insert", "table": "T", "row": {"s": ["set", list(range(0, 2 * size, 2))]}})
        before = server.status("VmHWM")
        first = 1 if change == "insert" else 0
        mutations = [["s", change, ["set", [number]]] for number in range(first, 2 * count, 2)]
        groups = [mutations] if together else [[mutation] for mutation in mutations]
        results = peer.transact("D", *({"op": "mutate", "table": "T", "where": [], "mutations": group} for group in groups))
        assert results == [{"count": 1}] * len(groups)
        assert server.status("VmHWM") - before < 32 * MIB
        [result] = peer.transact("D", {"op": "select", "table": "T", "where": [], "columns": ["s"]})
        expected = set(range(0, 2 * size, 2)) ^ set(range(first, 2 * count, 2))
        assert result["rows"] == [{"s": ["set", sorted(expected)]}]


def test_many_sessions(small):
    """More sessions than a shell's usual descriptor limit; each is answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(2000, hard - 200)
    peers = []
    try:
        for _ in range(count):
            peers.append(Connection(small.sock))
        for number, peer in enumerate(peers):
            peer.send({"method": "echo", "params": [number], "id": number})
        for number, peer in enumerate(peers):
            assert peer.receive()["result"] == [number]
    finally:
        for peer in peers:
            peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert serves(small)


def test_no_descriptors_left(kind, tmp_path):
    """At its descriptor limit the server keeps its sessions, does not spin, and accepts again once one has closed."""
    path = create_database(tmp_path / "D.db", SMALL)
    with OvsdbServer(kind, tmp_path / "run", databases=[path], wrap=["prlimit", "--nofile=64:64"]) as server:
        peers = [socket.socket(socket.AF_UNIX) for _ in range(90)]
        for peer in peers:
            peer.setblocking(False)
            peer.connect_ex(str(server.sock))
        time.sleep(0.3)
        first = peers[0]
        first.settimeout(PATIENCE_S)
        first.sendall(b'{"method":"echo","params":[],"id":1}')
        assert first.recv(1000)
        before = cpu_ticks(server.pid)
        time.sleep(1)
        assert cpu_ticks(server.pid) - before < 30, "the server spins"
        for peer in peers:
            peer.close()
        assert serves(server)


def cpu_ticks(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(") ", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("method", ("monitor", "monitor_cond", "monitor_cond_since"))
def test_a_slow_monitor_is_left_behind(small, method):
    """It gets combined updates when it reads again, or is dropped; the server's memory grows little, and not
    indefinitely."""
    big = "x" * 16_000
    with Connection(small.sock) as writer, Connection(small.sock) as slow:
        writer.transact("D", *({"op": "insert", "table": "T", "row": {"key": number, "s": big}} for number in range(20)))
        columns = ["key", "s", "i"]
        slow.send({"method": method, "params": ["D", "m", {"T": [{"columns": columns}]}, *([] if method != "monitor_cond_since" else ["00000000-0000-0000-0000-000000000000"])], "id": 1})
        reply = slow.receive()["result"]
        replica = Replica(Schema(SMALL))
        if method == "monitor":
            replica.update(reply)
        else:
            replica.update2(reply[2] if method == "monitor_cond_since" else reply, lambda table: columns)
        writer.transact("D", {"op": "update", "table": "T", "where": [], "row": {"i": -1}})
        time.sleep(0.2)
        before = small.status("VmRSS")
        rounds = 3000
        for number in range(rounds):
            # 48 MB of updates that are not read.
            writer.transact("D", {"op": "update", "table": "T", "where": [["key", "==", number % 20]], "row": {"s": big[:-8] + f"{number:08}", "i": number}})
        grown = small.status("VmRSS") - before
        assert grown < 24 * MIB, f"{grown} kB more"
        truth = {row["key"]: (row["s"], row["i"]) for row in writer.transact("D", {"op": "select", "table": "T", "where": []})[0]["rows"]}
        writer.transact("D", {"op": "insert", "table": "T", "row": {"key": 1000}})
        updates = 0
        try:
            while not any(row["key"] == 1000 for row in replica.tables["T"].values()):
                message = slow.receive()
                updates += 1
                if method == "monitor":
                    replica.update(message["params"][1])
                else:
                    replica.update2(message["params"][-1], lambda table: columns)
        except Closed:
            assert "|WARN|" in small.log() or "|INFO|" in small.log(), "a session is dropped with a line in the log"
            return
        found = {row["key"]: (row["s"], row["i"]) for row in replica.tables["T"].values() if row["key"] != 1000}
        assert found == truth
        assert updates < rounds, "nothing was combined"
    assert serves(small)


def test_a_client_that_never_reads_its_replies(small):
    """The server reads no further requests while replies to earlier ones are unsent."""
    with Connection(small.sock) as writer:
        writer.transact("D", *({"op": "insert", "table": "T", "row": {"key": number, "s": "y" * 10_000}} for number in range(100)))
    before = small.status("VmRSS")
    with Connection(small.sock) as greedy:
        greedy.socket.setblocking(False)
        request = json.dumps({"method": "transact", "params": ["D", {"op": "select", "table": "T", "where": []}], "id": 1}).encode()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            try:
                greedy.socket.send(request * 50)
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        assert small.status("VmRSS") - before < 96 * MIB, f"{small.status('VmRSS') - before} kB more"
        assert serves(small)


def test_an_idle_server_makes_no_system_call(kind, tmp_path):
    path = create_database(tmp_path / "D.db", SMALL)
    with OvsdbServer(kind, tmp_path / "run", databases=[path]) as server, Connection(server.sock) as peer:
        peer.request("monitor", "D", "m", {"T": {}})
        peer.transact("D", {"op": "insert", "table": "T", "row": {"key": 1}})
        time.sleep(6)
        before = cpu_ticks(server.pid), server.status("voluntary_ctxt_switches")
        time.sleep(3)
        after = cpu_ticks(server.pid), server.status("voluntary_ctxt_switches")
        assert after == before
