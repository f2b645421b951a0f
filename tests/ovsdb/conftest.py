"""Fixtures of the OVSDB tests. OVSDB_SUBJECT=stock runs them against Debian's server, to test the tests."""

import json
import os

import pytest

from .servers import SCHEMAS, SUBJECT, OvsdbServer, create_database

SMALL = {
    "name": "D", "version": "1.0.0",
    "tables": {
        "T": {
            "isRoot": True, "indexes": [["key"]],
            "columns": {
                "key": {"type": "integer"}, "s": {"type": "string"}, "i": {"type": "integer"}, "e": {"type": "integer", "ephemeral": True},
                "m": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
                "set": {"type": {"key": "integer", "min": 0, "max": "unlimited"}},
                "refs": {"type": {"key": {"type": "uuid", "refTable": "T", "refType": "weak"}, "min": 0, "max": "unlimited"}},
            },
        },
        "Child": {"columns": {"n": {"type": "integer"}}},
    },
}


@pytest.fixture(scope="session")
def kind():
    return os.environ.get("OVSDB_SUBJECT", SUBJECT)


@pytest.fixture
def small(kind, tmp_path):
    """A server with one small database, D."""
    path = create_database(tmp_path / "D.db", SMALL)
    with OvsdbServer(kind, tmp_path / "run", databases=[path]) as server:
        server.path = path
        yield server
        assert server.alive(), server.log() + server.stderr()


@pytest.fixture
def vswitch_schema():
    return json.loads((SCHEMAS / "vswitch.ovsschema").read_text())
