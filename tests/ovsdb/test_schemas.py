"""Schemas, valid or broken in one way each: given such a file, the server behaves and reports as Debian's does."""

import json
import random

import pytest

from . import schemas
from .connection import Connection
from .log_file import text_of_record
from .servers import STOCK, OvsdbServer
from .test_daemon import program_aside, run

BROKEN = dict(schemas.broken_schemas(random.Random("broken schemas")))


def outcome(kind, directory, schema):
    directory.mkdir()
    (directory / "D.db").write_bytes(text_of_record(json.dumps(schema).encode()))
    code, out, errors = run(kind, directory, "-vsyslog:off", "--unixctl=ctl", "--remote=punix:sock", "--run=true", "D.db")
    return code, out, program_aside(errors)


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_schema(kind, tmp_path, what):
    assert outcome(STOCK, tmp_path / "stock", BROKEN[what]) == outcome(kind, tmp_path / "ours", BROKEN[what])


@pytest.mark.parametrize("number", range(30))
def test_a_schema_is_told_as_it_was_given(kind, tmp_path, number):
    """get_schema, and the schema in `_Server`, for any schema; Debian's sends the members in its own order."""
    schema = schemas.random_schema(random.Random(f"schema {number}"))
    told = []
    for which, one in (("stock", STOCK), ("ours", kind)):
        directory = tmp_path / which
        directory.mkdir()
        (directory / "D.db").write_bytes(text_of_record(json.dumps(schema).encode()))
        with OvsdbServer(one, directory, databases=[directory / "D.db"]) as server, Connection(server.sock) as peer:
            inside = peer.transact("_Server", {"op": "select", "table": "Database", "where": [["name", "==", "D"]], "columns": ["schema"]})
            told.append((peer.request("get_schema", "D")["result"], inside))
    assert told[0] == told[1]
