"""SIGKILL at random times: whatever was acknowledged as durable survives, and no transaction survives partially.

    python -m tests.ovsdb.crash --rounds 200      (the 200 rounds of `make ovsdb-crash`)

In a round some clients write. Each transaction of client C writes its number N to two rows at once (the pair must
always agree), increments a third, and inserts a row `N` of its own; every third is durable. After a random time the
server is killed. Then Debian's ovsdb-tool reads the file, and the server that was killed, or Debian's, opens it again.
The page cache survives the process, so these rounds show atomicity and order; that an fsync covers each durable answer
is shown by strace in test_crash.py, and by the simulated disk in crate `journal`.
"""

import argparse
import json
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

from . import log_file
from .connection import Closed, Connection
from .servers import STOCK, SUBJECT, OvsdbServer, create_database, tool

SCHEMA = {
    "name": "D", "version": "1.0.0",
    "tables": {
        "Pair": {"isRoot": True, "indexes": [["client", "side"]],
                 "columns": {"client": {"type": "integer"}, "side": {"type": "integer"}, "number": {"type": "integer"},
                             "many": {"type": {"key": "integer", "value": "integer", "min": 0, "max": "unlimited"}}}},
        "Row": {"isRoot": True, "indexes": [["client", "number"]], "columns": {"client": {"type": "integer"}, "number": {"type": "integer"}, "text": {"type": "string"}}},
    },
}
CLIENTS = 4
KEPT_ROWS = 40


class Client(threading.Thread):
    """Writes numbers until the server is gone; knows the last that was acknowledged, and the last acknowledged as durable."""

    def __init__(self, server, client, start, seed, depth):
        super().__init__(daemon=True)
        self.connection = Connection(server.sock)
        self.client, self.number, self.random, self.depth = client, start, random.Random(seed), depth
        self.sent, self.acknowledged, self.durable, self.problem = start, start, start, None

    def operations(self, number, durable):
        mine = lambda side: [["client", "==", self.client], ["side", "==", side]]
        ops = [
            {"op": "update", "table": "Pair", "where": mine(0), "row": {"number": number}},
            {"op": "update", "table": "Pair", "where": mine(1), "row": {"number": number}},
            {"op": "mutate", "table": "Pair", "where": mine(0), "mutations": [["many", "delete", ["set", [number % 50]]], ["many", "insert", ["map", [[number % 50, number]]]]]},
            {"op": "insert", "table": "Row", "row": {"client": self.client, "number": number, "text": "x" * self.random.randrange(200)}},
            {"op": "delete", "table": "Row", "where": [["client", "==", self.client], ["number", "==", number - KEPT_ROWS]]},
        ]
        return ops + [{"op": "commit", "durable": durable}]

    def run(self):
        waiting = []
        try:
            while True:
                while len(waiting) < self.depth:
                    self.sent += 1
                    durable = self.random.random() < 0.33
                    waiting.append((self.sent, durable))
                    self.connection.send({"method": "transact", "params": ["D", *self.operations(self.sent, durable)], "id": self.sent})
                reply = self.connection.receive()
                if reply.get("error") is not None or any("error" in one for one in reply["result"] if one):
                    self.problem = reply
                    return
                number, durable = waiting.pop(0)
                if reply["id"] != number:
                    self.problem = f"reply {reply['id']} instead of {number}"
                    return
                self.acknowledged = number
                if durable:
                    self.durable = number
        except (Closed, OSError):
            pass


def prepare(path):
    create_database(path, SCHEMA)
    rows = [{"op": "insert", "table": "Pair", "row": {"client": client, "side": side}} for client in range(CLIENTS) for side in (0, 1)]
    tool("transact", path, json.dumps(["D", *rows]))


def check(path, clients, depth_most):
    """Checks the file against what was acknowledged; returns the numbers from which the clients continue."""
    log_file.records(path)
    pairs = tool_query(path, "Pair", ["client", "side", "number", "many"])
    rows = tool_query(path, "Row", ["client", "number"])
    numbers = {}
    for client in range(CLIENTS):
        sides = {row["side"]: row for row in pairs if row["client"] == client}
        number = sides[0]["number"]
        assert number == sides[1]["number"], f"half a transaction of client {client}: {number} and {sides[1]['number']}"
        known = sorted(row["number"] for row in rows if row["client"] == client)
        expected = list(range(max(number - KEPT_ROWS + 1, 1), number + 1))
        assert known == expected, f"client {client} at {number}: rows {known[:3]}..{known[-3:]}"
        assert dict(sides[0]["many"][1]) == {one % 50: one for one in range(max(number - 49, 1), number + 1)}, f"map of client {client} at {number}"
        numbers[client] = number
    for one in clients:
        assert one.problem is None, one.problem
        # The process died, not the machine: whatever was answered has been written.
        assert one.acknowledged <= numbers[one.client] <= one.sent, f"client {one.client}: {one.durable=} {one.acknowledged=} {one.sent=}, found {numbers[one.client]}"
    return numbers


def tool_query(path, table, columns):
    answer = json.loads(tool("query", path, json.dumps(["D", {"op": "select", "table": table, "where": [], "columns": columns}])))
    return [{name: value if name != "many" or value[0] == "map" else value for name, value in row.items()} for row in answer[0]["rows"]]


def run(rounds, seed, kind=SUBJECT, say=lambda text: None):
    """Returns (transactions acknowledged, rounds); raises AssertionError with the directory kept."""
    rng = random.Random(seed)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="ovsdb-crash-"))
    path = directory / "D.db"
    prepare(path)
    numbers, total = {client: 0 for client in range(CLIENTS)}, 0
    for number in range(rounds):
        # Occasionally Debian's server opens the file in between.
        who = STOCK if rng.random() < 0.15 else kind
        with OvsdbServer(who, directory / f"run{number}", databases=[path]) as server:
            depth = rng.choice((1, 1, 4))
            clients = [Client(server, client, numbers[client], f"{seed}.{number}.{client}", depth) for client in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(rng.uniform(0.005, 0.15))
            if rng.random() < 0.25:
                compaction = threading.Thread(target=compact, args=(server,), daemon=True)
                compaction.start()
                time.sleep(rng.uniform(0, 0.01))
            server.kill()
            for client in clients:
                client.join()
        before = path.read_bytes()
        try:
            # Debian's tool truncates a torn tail when it opens the file for writing; here it reads a copy.
            copy = directory / "copy.db"
            copy.write_bytes(before)
            cut_tail(copy)
            numbers = check(copy, clients, depth)
        except (AssertionError, log_file.Damaged) as error:
            raise AssertionError(f"seed {seed}, round {number} ({who}): {error}\nkept: {directory}") from error
        total += sum(client.acknowledged for client in clients)
        if number % 10 == 9:
            say(f"  {number + 1} rounds, numbers {numbers}")
    shutil.rmtree(directory)
    return sum(numbers.values()), rounds


def cut_tail(path):
    """Removes an incomplete last record, which a kill may leave and every reader cuts off."""
    try:
        log_file.records(path)
    except log_file.Damaged as error:
        content = path.read_bytes()
        at = error.offset
        if content.find(b"\nOVSDB ", at + 1) >= 0:
            raise
        path.write_bytes(content[:at])


def compact(server):
    try:
        server.unixctl("ovsdb-server/compact", "D")
    except OSError:
        pass


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests.ovsdb.crash")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--subject", choices=(SUBJECT, STOCK), default=SUBJECT)
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"ovsdb crash: seed {seed}", flush=True)
    transactions, rounds = run(options.rounds, seed, options.subject, say=lambda text: print(text, flush=True))
    print(f"ovsdb crash: seed {seed}, {transactions} transactions in {rounds} rounds, none lost, none half")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
