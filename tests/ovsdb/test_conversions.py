"""`convert`: rows that violate the new schema are refused with the text of Debian's server, and the database stays as
it was."""

import copy
import re

import pytest

from .connection import Connection
from .servers import STOCK, OvsdbServer, create_database

MANY = {"min": 0, "max": "unlimited"}
DESCRIBED = {"name": "D", "version": "1.0.0", "tables": {
    "T": {"isRoot": True, "columns": {"i": {"type": "integer"}, "r": {"type": {"key": "uuid", **MANY}}}},
    "C": {"isRoot": True, "columns": {"n": {"type": "integer"}}},
}}


def reference(**more):
    return {"type": {"key": {"type": "uuid", "refTable": "C", **more}, **MANY}}


CHANGES = {
    "equal rows in an index": lambda tables: tables["T"].update(indexes=[["i"]]),
    "too many rows": lambda tables: tables["T"].update(maxRows=1),
    "references that lead nowhere": lambda tables: tables["T"]["columns"].update(r=reference()),
    "weak references that lead nowhere": lambda tables: tables["T"]["columns"].update(r=reference(refType="weak")),
    "weak references that must lead somewhere": lambda tables: tables["T"]["columns"].update(
        r={"type": {"key": {"type": "uuid", "refTable": "C", "refType": "weak"}, "min": 1, "max": "unlimited"}}),
    "rows nobody needs": lambda tables: tables["C"].update(isRoot=False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_conversion(kind, tmp_path, what):
    schema = copy.deepcopy(DESCRIBED)
    schema["version"] = "2.0.0"
    CHANGES[what](schema["tables"])
    said = []
    for side, one in (("stock", STOCK), ("ours", kind)):
        (tmp_path / side).mkdir()
        with OvsdbServer(one, tmp_path / f"{side} run", databases=[create_database(tmp_path / side / "D.db", DESCRIBED)]) as server:
            with Connection(server.sock) as peer:
                row = {"op": "insert", "table": "T", "row": {"r": ["uuid", "00000000-0000-4000-8000-000000000001"]}}
                peer.transact("D", row, row, {"op": "insert", "table": "C", "row": {"n": 1}})
                peer.request("set_db_change_aware", True)
                answer = peer.request("convert", "D", schema)
            with Connection(server.sock) as peer:
                selects = ({"op": "select", "table": table, "where": [], "columns": columns} for table, columns in (("T", ["i", "r"]), ("C", ["n"])))
                rows = peer.transact("D", *selects)
                version = peer.request("get_schema", "D")["result"]["version"]
            said.append((re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", str(answer.get("error"))), answer.get("result"), rows, version))
    assert said[1] == said[0]
