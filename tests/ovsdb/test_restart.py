"""Clients that reconnect after the server was killed: found is true, and their contents plus the delta equal a fresh
monitor."""

import os
import random
import threading

import pytest

from .connection import Closed, Connection
from .names import ZERO
from .rows import Replica, Schema
from .servers import STOCK, SUBJECT, OvsdbServer, create_database, tool

MANY = {"min": 0, "max": "unlimited"}
DESCRIPTION = {
    "name": "D", "version": "1.0.0",
    "tables": {"T": {"isRoot": True, "columns": {
        "name": {"type": "string"}, "i": {"type": "integer"}, "set": {"type": {"key": "integer", **MANY}},
        "eph_i": {"type": "integer", "ephemeral": True},
        "eph_set": {"type": {"key": "integer", **MANY}, "ephemeral": True},
        "eph_map": {"type": {"key": "string", "value": "integer", **MANY}, "ephemeral": True},
        "eph_refs": {"type": {"key": {"type": "uuid", "refTable": "T", "refType": "weak"}, **MANY}, "ephemeral": True},
    }}},
}
SCHEMA = Schema(DESCRIPTION)
COLUMNS = {"all": list(DESCRIPTION["tables"]["T"]["columns"]), "lasting": ["name", "i", "set"], "ephemeral": ["eph_set", "eph_map"]}
COMPANION = ".D.db.ephemeral"


class Client:
    """A monitor, and its contents as of the last transaction it was notified of."""

    def __init__(self, columns):
        self.columns, self.replica, self.last, self.found, self.connection = COLUMNS[columns], Replica(SCHEMA), ZERO, None, None

    def connect(self, server):
        self.connection = Connection(server.sock)
        self.found, self.last, updates = self.connection.request("monitor_cond_since", "D", "m", {"T": {"columns": self.columns}}, self.last)["result"]
        if not self.found:
            self.replica.clear()
        self.replica.update2(updates, lambda table: self.columns)

    def take(self, message):
        if message.get("method") == "update3":
            _, self.last, updates = message["params"]
            self.replica.update2(updates, lambda table: self.columns)

    def listen(self):
        try:
            while True:
                self.take(self.connection.receive())
        except (Closed, OSError):
            pass


def operations(rng, number):
    """A transaction on random rows: persistent columns, ephemeral ones, or both; rows are inserted and deleted."""
    numbers = lambda: ["set", rng.sample(range(9), rng.randrange(5))]
    lasting = {"i": number, "set": numbers()}
    ephemeral = {"eph_i": rng.randrange(4), "eph_set": numbers(), "eph_map": ["map", [[f"k{one}", rng.randrange(3)] for one in rng.sample(range(6), rng.randrange(4))]]}
    row = rng.choice((lasting, ephemeral, ephemeral, {**lasting, **ephemeral}))
    name = f"row{rng.randrange(12)}"
    where = [["name", "==", name]]
    kind = rng.randrange(10)
    if kind < 2:
        return [{"op": "insert", "table": "T", "uuid-name": "new", "row": {"name": name, **row}},
                {"op": "update", "table": "T", "where": [["i", "==", 0]], "row": {"eph_refs": ["named-uuid", "new"]}}]
    if kind == 2:
        return [{"op": "delete", "table": "T", "where": where}]
    return [{"op": "update", "table": "T", "where": where, "row": row}]


def test_the_delta_is_exact_however_often_the_server_is_killed(kind, tmp_path):
    seed = int(os.environ.get("OVSDB_SEED") or int.from_bytes(os.urandom(3), "big"))
    rng = random.Random(seed)
    path = create_database(tmp_path / "D.db", DESCRIPTION)
    tool("transact", path, '["D",{"op":"insert","table":"T","row":{"name":"row0"}}]')
    clients = [Client(columns) for columns in ("all", "lasting", "ephemeral", "all")]
    number = 1
    for life in range(20):
        with OvsdbServer(kind, tmp_path / f"run{life}", databases=[path]) as server:
            for client in clients:
                client.connect(server)
                assert client.found is (kind == SUBJECT and life > 0), f"seed {seed}, life {life}"
            threads = [threading.Thread(target=client.listen, daemon=True) for client in clients]
            for thread in threads:
                thread.start()
            writer = Connection(server.sock)
            heard = []
            for _ in range(rng.choice((0, 1, 30))):
                number += 1
                writer.transact("D", *operations(rng, number))
                if rng.random() < 0.05:
                    server.unixctl("ovsdb-server/compact", "D")
                    # A restart forgets the history before a compaction, so every client must receive a transaction
                    # after it.
                    number += 1
                    writer.transact("D", {"op": "insert", "table": "T", "row": {"name": f"compacted{number}", "eph_set": number}})
            # No client waits for the last transactions.
            for _ in range(rng.randrange(4)):
                number += 1
                writer.send({"method": "transact", "params": ["D", *operations(rng, number)], "id": number})
            server.kill()
            for thread in threads:
                thread.join()
        with OvsdbServer(kind, tmp_path / f"look{life}", databases=[path]) as server:
            for client in clients:
                fresh = Client("all")
                fresh.columns = client.columns
                fresh.connect(server)
                client.connect(server)
                assert client.found is (kind == SUBJECT), f"seed {seed}, life {life}: {client.columns}"
                assert client.replica.state() == fresh.replica.state(), f"seed {seed}, life {life}"
                assert client.last == fresh.last
            server.kill()


@pytest.mark.parametrize("what", ("lost", "cut", "stock between", "unwritable"))
def test_what_is_not_known_is_sent_again(kind, tmp_path, what):
    """Whatever happened to the file beside the database: persistent columns have their delta, and no client holds
    anything wrong."""
    path = create_database(tmp_path / "D.db", DESCRIPTION)
    companion = path.with_name(COMPANION)
    clients = [Client("all"), Client("lasting")]
    with OvsdbServer(kind, tmp_path / "one", databases=[path]) as server, Connection(server.sock) as peer:
        peer.transact("D", {"op": "insert", "table": "T", "row": {"name": "a", "eph_set": ["set", [1, 2]]}})
        for client in clients:
            client.connect(server)
        peer.transact("D", {"op": "update", "table": "T", "where": [], "row": {"eph_set": ["set", [2, 3]]}})
        for client in clients[:1]:
            client.take(client.connection.receive())
        server.kill()
    assert companion.exists() is (kind == SUBJECT)
    if what == "lost":
        companion.unlink(missing_ok=True)
    elif what == "cut" and companion.exists():
        companion.write_bytes(companion.read_bytes()[:-20])
    elif what == "stock between":
        with OvsdbServer(STOCK, tmp_path / "two", databases=[path]) as server, Connection(server.sock) as peer:
            peer.transact("D", {"op": "update", "table": "T", "where": [], "row": {"i": 7, "eph_set": 9}})
            server.kill()
    elif what == "unwritable" and companion.exists():
        companion.unlink()
        companion.with_name(COMPANION + ".tmp").mkdir()
    with OvsdbServer(kind, tmp_path / "three", databases=[path]) as server:
        fresh = Client("all")
        fresh.connect(server)
        for client in clients:
            client.connect(server)
        # The stock server does not lose any data, and no client received ids of its transactions.
        assert [client.found for client in clients] == [kind == SUBJECT and what == "stock between", kind == SUBJECT]
        assert clients[0].replica.state() == fresh.replica.state()
        assert all(row["i"] == fresh.replica.tables["T"][uuid]["i"] for uuid, row in clients[1].replica.tables["T"].items())
        warnings = [line for line in server.log_path.read_text().splitlines() if COMPANION in line]
        assert len(warnings) == (kind == SUBJECT and what == "unwritable"), warnings


def test_without_ephemeral_columns_there_is_no_file(kind, tmp_path):
    description = {"name": "D", "version": "1.0.0", "tables": {"T": {"isRoot": True, "columns": {"name": {"type": "string"}}}}}
    path = create_database(tmp_path / "D.db", description)
    with OvsdbServer(kind, tmp_path / "run", databases=[path]) as server, Connection(server.sock) as peer:
        peer.transact("D", {"op": "insert", "table": "T", "row": {"name": "a"}})
        assert not path.with_name(COMPANION).exists()
