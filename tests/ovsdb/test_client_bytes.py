"""The memory that all clients together may occupy: partial messages, waiting transactions, unread replies. The
greediest is dropped first, the others are served."""

import json
import pathlib
import subprocess
import time

import pytest

from tests.servers import dormouse_binary, end_with_the_tests

from .connection import Closed, Connection
from .servers import PATIENCE_S, SUBJECT, OvsdbServer, create_database

MIB = 1 << 20
BOUND_BYTES = 8 * MIB
SCHEMA = {"name": "D", "version": "1.0.0", "tables": {"T": {"columns": {"text": {"type": "string"}}, "isRoot": True}}}


@pytest.fixture
def server(tmp_path):
    path = create_database(tmp_path / "D.db", SCHEMA)
    with OvsdbServer(SUBJECT, tmp_path / "server", databases=[path], arguments=[f"--limit-client-bytes={BOUND_BYTES}"]) as server:
        yield server
        assert server.alive(), server.log()


def figure(server, name):
    lines = dict(line.split(": ") for line in server.unixctl("dormouse/figures")[0].splitlines())
    return int(lines[name])


def half_message(peer, length):
    peer.send_bytes(b'{"method":"echo","id":1,"params":["' + b"x" * length)


def is_closed(peer):
    peer.socket.settimeout(0.2)
    try:
        while peer.socket.recv(1 << 16):
            pass
        return True
    except TimeoutError:
        return False
    except OSError:
        return True


def settle(server, honest):
    for _ in range(3):
        assert honest.request("echo", 1)["result"] == [1]
    assert figure(server, "client_bytes") <= BOUND_BYTES


def test_half_messages_count_and_the_largest_goes_first(server):
    honest, small, large = (Connection(server.sock) for _ in range(3))
    half_message(small, MIB)
    half_message(large, 5 * MIB)
    settle(server, honest)
    assert figure(server, "client_bytes") >= 6 * MIB and figure(server, "clients_over_bound") == 0
    middle = Connection(server.sock)
    half_message(middle, 3 * MIB)
    settle(server, honest)
    assert figure(server, "clients_over_bound") == 1
    assert [is_closed(peer) for peer in (large, middle, small)] == [True, False, False]
    # The others finish what they have begun.
    small.socket.settimeout(60)
    small.send_bytes(b'"]}')
    assert small.receive()["result"] == ["x" * MIB]
    for peer in (middle, small):
        peer.close()
    settle(server, honest)
    assert figure(server, "client_bytes") < MIB


def test_many_half_messages_are_bounded_together(server):
    honest = Connection(server.sock)
    greedy = [Connection(server.sock) for _ in range(40)]
    for peer in greedy:
        half_message(peer, MIB)
        settle(server, honest)
    assert figure(server, "clients_over_bound") >= 32


def test_unread_replies_count(server):
    honest = Connection(server.sock)
    greedy = [Connection(server.sock) for _ in range(20)]
    text = json.dumps({"method": "echo", "id": 1, "params": ["x" * (900 << 10)]}).encode()
    for peer in greedy:
        # The kernel's buffers take some of the first.
        peer.send_bytes(text + text)
        settle(server, honest)
    assert figure(server, "clients_over_bound") > 0
    for peer in greedy:
        peer.close()
    settle(server, honest)
    assert figure(server, "client_bytes") < MIB


def test_waiting_transactions_and_names_count_until_they_end(server):
    honest, peer = Connection(server.sock), Connection(server.sock)
    wait = {"op": "wait", "table": "T", "where": [], "columns": ["text"], "until": "==", "rows": [{"text": "x" * MIB}]}
    for number in range(3):
        peer.send({"method": "transact", "params": ["D", wait], "id": number})
    peer.request("lock", "l" * MIB)
    peer.request("monitor", "D", "m" * MIB, {"T": {}})
    settle(server, honest)
    assert figure(server, "client_bytes") >= 5 * MIB
    for number in range(3):
        peer.send({"method": "cancel", "params": [number]})
    peer.request("unlock", "l" * MIB)
    peer.request("monitor_cancel", "m" * MIB)
    settle(server, honest)
    assert figure(server, "client_bytes") < MIB and figure(server, "clients_over_bound") == 0
    for number in range(12):
        peer.send({"method": "transact", "params": ["D", wait], "id": number})
    with pytest.raises(Closed):
        peer.receive()
    settle(server, honest)
    assert figure(server, "clients_over_bound") == 1


def test_results_longer_than_the_bound_are_an_error(server):
    honest = Connection(server.sock)
    honest.transact("D", {"op": "insert", "table": "T", "row": {"text": "x" * MIB}})
    select = {"op": "select", "table": "T", "where": []}
    insert = {"op": "insert", "table": "T", "row": {"text": "never"}}
    results = honest.transact("D", insert, *[select] * 100)
    failed = [place for place, result in enumerate(results) if result is not None and "error" in result]
    assert failed == [8] and results[8]["error"] == "resources exhausted"
    assert len(honest.transact("D", select)[0]["rows"]) == 1


def test_a_client_that_takes_what_it_is_sent_survives_among_greedy_ones(server):
    honest = [Connection(server.sock) for _ in range(30)]
    for number, peer in enumerate(honest):
        peer.request("monitor", "D", number, {"T": {"columns": ["text"]}})
    writer = Connection(server.sock)
    for number in range(4):
        half_message(Connection(server.sock), 7 * MIB)
        # Shared by all of them: each is charged a part.
        writer.transact("D", {"op": "insert", "table": "T", "row": {"text": str(number) * (512 << 10)}})
        for peer in honest:
            assert peer.receive()["method"] == "update"
    settle(server, writer)


def test_a_node_bounds_them_by_its_memory(tmp_path):
    path = create_database(tmp_path / "D.db", SCHEMA)
    sock = tmp_path / "sock"
    (tmp_path / "node.toml").write_text(
        f'[node]\nmemory = "64MiB"\nworkers = 1\n[http]\naddress = "127.0.0.1:0"\n[kv]\naddress = "127.0.0.1:0"\n'
        f'[[ovsdb]]\nfile = "{path}"\nmemory = "8MiB"\nremotes = "punix:{sock}"\n'
    )
    with open(tmp_path / "output", "wb") as output:
        node = subprocess.Popen(
            [str(dormouse_binary()), "serve", "--config", str(tmp_path / "node.toml")], stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=end_with_the_tests
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not sock.exists():
            assert node.poll() is None and time.monotonic() < deadline, (tmp_path / "output").read_text()
            time.sleep(0.02)
        honest = Connection(sock)
        # Twice the database's budget is 16 MiB: at most three of these remain.
        greedy = [Connection(sock) for _ in range(20)]
        for peer in greedy:
            half_message(peer, 4 * MIB)
            assert honest.request("echo", 1)["result"] == [1]
        assert sum(not is_closed(peer) for peer in greedy) <= 3
        assert honest.request("list_dbs")["result"] == ["D", "_Server"]
        status = pathlib.Path(f"/proc/{node.pid}/status").read_text()
        peak_kb = int(status.split("VmHWM:")[1].split()[0])
        assert peak_kb < 80 << 10, peak_kb
    finally:
        node.terminate()
        node.wait(PATIENCE_S)
