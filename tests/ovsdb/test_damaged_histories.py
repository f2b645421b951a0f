"""Files with records that no server writes: ours leaves out what Debian's server leaves out, logs the same text, and
continues from there."""

import json
import os
import random
import re

import pytest

from . import differences
from .connection import Connection
from .histories import History, damageable_schema
from .log_file import text_of_record
from .names import sort_key
from .rows import Schema, comparable
from .servers import STOCK, OvsdbServer, create_database

SEED = os.environ.get("OVSDB_SEED", "5")
ROUNDS = int(os.environ.get("OVSDB_HISTORIES", "8"))
FILES = 12
RECORDS = 40


def everything(server, described):
    """Table -> UUID -> column -> value of each database."""
    contents = {}
    with Connection(server.sock) as peer:
        # At a record that makes no sense Debian's server stops reading, and continues in the next iteration of its main
        # loop.
        for turn in range(2 * RECORDS):
            peer.request("echo", turn)
        for name, one in described.items():
            tables = sorted(one["tables"])
            schema = Schema(one)
            results = peer.transact(name, *({"op": "select", "table": table, "where": []} for table in tables))
            contents[name] = {
                table: {row["_uuid"][1]: {column: comparable(schema.normal(table, column, value)) for column, value in row.items() if not column.startswith("_")}
                        for row in result["rows"]}
                for table, result in zip(tables, results)}
    return contents


def complaints(server):
    """The rules that records violate according to the log; of several violations of one kind, any. Sorted, because
    Debian's server opens its files in hash order of their paths. Complaints about nonsense are left out: which of
    several comes first is random, ours logs no more than 60 a minute, and Debian's server repeats some of them."""
    said = []
    for line in server.log_path.read_text().splitlines():
        found = re.match(r"[^|]*\|\d+\|ovsdb_server\|INFO\|([^:]*): (.*)", line)
        if found:
            said.append((found[1], differences.ambiguous_kind(found[2])))
    return sorted(said)


def dangles(described, content):
    """Returns true if a weak reference dangles: see differences.DELIBERATE, "dangling weak reference"."""
    for table, columns in Schema(described).tables.items():
        for name, column in columns.items():
            for base in filter(None, (column.key, column.value)):
                target = base.get("refTable")
                if target and any(uuid not in content[target] for row in content[table].values() for uuid in re.findall(r'"uuid","([^"]*)"', sort_key(row[name]).replace(" ", ""))
                                  if uuid_may_be_of(base, column, uuid, content)):
                    return True
    return False


def uuid_may_be_of(base, column, uuid, content):
    """Returns true if the UUID, found in a column's value, may belong to this half (key or value) of its type:
    certainly if the other half is not a UUID."""
    return column.value is None or (column.key if base is column.value else column.value)["type"] != "uuid"


MANY = {"min": 0, "max": "unlimited"}
DESCRIBED = {"name": "D", "version": "1.0.0", "tables": {
    "T": {"isRoot": True, "maxRows": 4, "indexes": [["u"]], "columns": {
        "u": {"type": "integer"}, "i": {"type": "integer"}, "e": {"type": "integer", "ephemeral": True},
        "ref": {"type": {"key": {"type": "uuid", "refTable": "C"}, **MANY}},
        "w": {"type": {"key": {"type": "uuid", "refTable": "C", "refType": "weak"}, **MANY}},
        "two": {"type": {"key": "integer", "min": 0, "max": 2}}, "need": {"type": {"key": "integer", "min": 1, "max": 3}},
        "range": {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 9}}}}},
    "W": {"isRoot": True, "columns": {"w": {"type": {"key": {"type": "uuid", "refTable": "C", "refType": "weak"}, "min": 1, "max": "unlimited"}}}},
    "C": {"columns": {"n": {"type": "integer"}, "ref": {"type": {"key": {"type": "uuid", "refTable": "C"}, **MANY}}}},
}}
NOTHING = ["set", []]


def row(number):
    return f"00000000-0000-4000-8000-00000000000{number}"


def to(*numbers):
    return ["set", [["uuid", row(number)] for number in numbers]]


# Table -> row -> change, for each record; a record given as text is written as is.
CASES = {
    "a reference that leads nowhere": [{"T": {1: {"u": 1, "ref": to(9)}}}, {"T": {1: {"i": 2}}}, {"T": {2: {"u": 2}}}],
    "and a difference that does": [{"T": {1: {"u": 1}}}, {"_is_diff": True, "T": {1: {"ref": to(9), "i": 5}}}, {"_is_diff": True, "T": {1: {"ref": to(9), "i": 6}}},
                                   {"_is_diff": True, "T": {1: {"i": 7}}}],
    "a row goes that is needed": [{"C": {9: {"n": 1}}, "T": {1: {"u": 1, "ref": to(9)}}}, {"C": {9: None}}, {"T": {1: {"i": 3}}}],
    "a row goes that is not there": [{"T": {1: {"u": 1}}}, {"T": {2: None, 3: {"u": 3}}}, {"T": {4: {"u": 4}}}],
    "a row nobody needs": [{"C": {9: {"n": 1}}, "T": {1: {"u": 1}}}, {"T": {1: {"ref": to(9)}}}, {"T": {1: {"i": 1}}}],
    "rows nobody needs any more": [{"C": {9: {"n": 1, "ref": to(8)}, 8: {"n": 1}}, "T": {1: {"u": 1, "ref": to(9)}}}, {"T": {1: {"ref": NOTHING}}}, {"T": {1: {"ref": to(8)}}}],
    "rows that need each other": [{"C": {9: {"n": 1, "ref": to(8)}, 8: {"ref": to(9)}}}, {"C": {7: {"ref": to(7)}}}, {"T": {1: {"u": 1}}}],
    "a weak reference that leads nowhere": [{"T": {1: {"u": 1, "w": to(9)}}}, {"C": {9: {"n": 1}}, "T": {1: {"ref": to(9)}}}, {"T": {2: {"u": 2}}}],
    "a weak reference that must lead somewhere": [
        {"W": {1: {"w": to(9)}}, "T": {1: {"u": 1}}}, {"C": {9: {"n": 1}}, "T": {2: {"u": 2, "ref": to(9)}}}, {"W": {1: {"w": to(9)}}}, {"T": {2: {"ref": NOTHING}}},
        {"T": {2: None}, "C": {9: None}}],
    "equal rows in an index": [{"T": {1: {"u": 1}}}, {"T": {2: {"u": 1}, 3: {"u": 3}}}, {"T": {4: {"u": 4}}}],
    "rows of an index that change places": [{"T": {1: {"u": 1}, 2: {"u": 2}}}, {"T": {2: {"u": 1}, 1: {"u": 2}}}, {"T": {4: {"u": 4}}}],
    "too many rows": [{"T": {1: {"u": 1}, 2: {"u": 2}, 3: {"u": 3}}}, {"T": {4: {"u": 4}, 5: {"u": 5}}}, {"T": {6: {"u": 6}}}, {"T": {7: {"u": 7}}},
                      {"T": {1: None, 7: {"u": 7}}}],
    "too many members": [{"T": {1: {"u": 1, "two": ["set", [1, 2]]}}}, {"T": {1: {"two": ["set", [1, 2, 3]]}, 2: {"u": 2}}}, {"T": {4: {"u": 4}}}],
    "too many members after a difference": [{"T": {1: {"u": 1, "two": ["set", [1, 2]]}}}, {"_is_diff": True, "T": {1: {"two": 3}, 2: {"u": 2}}}, {"T": {4: {"u": 4}}}],
    "too few members": [{"T": {1: {"u": 1}}}, {"T": {1: {"need": NOTHING}, 2: {"u": 2}}}, {"T": {4: {"u": 4}}}],
    "a value out of range": [{"T": {1: {"u": 1}}}, {"T": {1: {"range": 10}, 2: {"u": 2}}}, {"T": {4: {"u": 4}}}],
    "a value of another type": [{"T": {1: {"u": 1}}}, {"T": {2: {"u": "a"}}}, {"T": {4: {"u": 4}}}],
    "an unknown table": [{"T": {1: {"u": 1}}}, {"Z": {}, "T": {2: {"u": 2}}}, {"T": {4: {"u": 4}}}],
    "an unknown column": [{"T": {1: {"u": 1}}}, {"T": {2: {"u": 2, "z": 1}}}, {"T": {4: {"u": 4}}}],
    "a row without a UUID": [{"T": {1: {"u": 1}}}, '{"T":{"x":{"u":2}}}', {"T": {4: {"u": 4}}}],
    "a row that is a number": [{"T": {1: {"u": 1}}}, {"T": {2: 3}}, {"T": {4: {"u": 4}}}],
    "a table that is a number": [{"T": {1: {"u": 1}}}, {"T": 3}, {"T": {4: {"u": 4}}}],
    "a date that is a word": [{"T": {1: {"u": 1}}}, {"_date": "x", "T": {2: {"u": 2}}}, {"T": {4: {"u": 4}}}],
    "a record that is an array": [{"T": {1: {"u": 1}}}, "[]", {"T": {4: {"u": 4}}}],
    "a record that is no JSON": [{"T": {1: {"u": 1}}}, "{", {"T": {4: {"u": 4}}}],
    "a difference of a row that is not there": [{"T": {1: {"u": 1}}}, {"_is_diff": True, "T": {2: {"u": 2, "two": 1}}}, {"T": {4: {"u": 4}}}],
    "nothing": [{}, {"T": {}}, {"T": {1: {"u": 1}}}, {"T": {1: {"u": 1}}}],
    "equal members": [f'{{"T":{{"{row(1)}":{{"u":1}}}},"T":{{"{row(2)}":{{"u":2}}}}}}', f'{{"T":{{"{row(3)}":{{"u":3}},"{row(4)}":{{"u":5}},"{row(4)}":null}}}}',
                      f'{{"T":{{"{row(5)}":null,"{row(5)}":{{"u":5}}}}}}', {"T": {1: {"i": 1}}}],
    "an ephemeral column": [{"T": {1: {"u": 1, "e": 5}}}, {"T": {1: {"e": 6, "i": 1}}}],
}


def log_text(record):
    if isinstance(record, str):
        return record
    named = {table: {row(number): change for number, change in rows.items()} if isinstance(rows, dict) else rows for table, rows in record.items()}
    return json.dumps(named)


@pytest.mark.parametrize("what", CASES)
def test_a_record(kind, tmp_path, what):
    found = []
    for side, one in (("stock", STOCK), ("ours", kind)):
        (tmp_path / side).mkdir()
        path = create_database(tmp_path / side / "D.db", DESCRIBED)
        with open(path, "ab") as file:
            file.write(b"".join(text_of_record(log_text(record).encode()) for record in CASES[what]))
        with OvsdbServer(one, tmp_path / f"{side} run", databases=[path]) as server:
            found.append((everything(server, {"D": DESCRIBED}), complaints(server)))
    assert found[1] == found[0]
    assert any(found[0][0]["D"].values())


@pytest.mark.parametrize("number", range(ROUNDS))
def test_what_is_left_out(kind, tmp_path, number):
    rng = random.Random(f"{SEED} {number}")
    described = {f"D{each}": damageable_schema(rng, f"D{each}") for each in range(FILES)}
    records = {}
    for name, one in described.items():
        history = History(rng, one)
        records[name] = [history.record() for _ in range(RECORDS)]
    paths = {}
    for side in ("stock", "ours"):
        (tmp_path / side).mkdir()
        paths[side] = [create_database(tmp_path / side / f"{name}.db", one) for name, one in described.items()]
        for path in paths[side]:
            with open(path, "ab") as file:
                file.write(b"".join(records[path.stem]))
    with OvsdbServer(STOCK, tmp_path / "stock run", databases=paths["stock"]) as stock, OvsdbServer(kind, tmp_path / "our run", databases=paths["ours"]) as ours:
        contents, said = everything(stock, described), complaints(stock)
        found, says = everything(ours, described), complaints(ours)
        excused = [name for name, content in contents.items() if found[name] != content and dangles(described[name], content)]
        for name, content in contents.items():
            assert name in excused or found[name] == content, f"seed {SEED}, round {number}, {name}"
        assert len(excused) < FILES / 3
        assert sum(len(rows) for content in contents.values() for rows in content.values()) > FILES, "nearly nothing is left"
        assert len(said) > FILES
        assert excused or says == said
        if kind == STOCK:
            # See differences.DELIBERATE, "written after nonsense".
            return
        # It continues, and Debian's server reads what it writes the same way.
        with Connection(ours.sock) as peer:
            for name, one in described.items():
                for table, columns in Schema(one).tables.items():
                    clear = {column: kind.default() for column, kind in columns.items() if kind.mutable and kind.min == 0 and kind.max in (1, float("inf"))}
                    if clear:
                        peer.transact(name, {"op": "update", "table": table, "where": [], "row": dict(list(clear.items())[:1])})
        found = everything(ours, described)
        assert ours.exit() == 0
    with OvsdbServer(STOCK, tmp_path / "stock after", databases=paths["ours"]) as stock, OvsdbServer(kind, tmp_path / "ours after", databases=paths["stock"]) as ours:
        contents = everything(stock, described)
        for name in described:
            assert name in excused or contents[name] == found[name], f"seed {SEED}, round {number}, {name}"
