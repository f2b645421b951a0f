"""Memory is returned to the system within ten seconds of a mass delete, for every kind of tenant and allocator of the
binary."""

import json

import pytest

from tests import servers
from tests.allocators.node import delete, load, resident_bytes, stats, version, wait_until
from tests.clients.text_connection import TextConnection
from tests.ovsdb.connection import Connection
from tests.ovsdb.log_file import text_of_record

WITHIN_S = 10
# The remaining documents have to be moved together first.
MOVED_WITHIN_S = 30
DOCUMENTS = 100_000
ROWS = 50_000
VALUE = b"x" * 1000

BUCKET = """
[[bucket]]
name = "default"
kind = "{kind}"
memory = "512MiB"
item_heap = "{heap}"
"""

DATABASE = """
[[bucket]]
kind = "ephemeral"
memory = "16MiB"
[[ovsdb]]
file = "{directory}/d.db"
remotes = "punix:{directory}/sock"
memory = "256MiB"
"""

SCHEMA = {"name": "D", "tables": {"T": {"isRoot": True, "columns": {"key": {"type": "integer"}, "text": {"type": "string"}}}}}


def falls_to(node, empty, full, part=0.2, within_s=WITHIN_S):
    """Waits until the memory above an empty node's is at most this fraction of what it was."""
    wait_until(lambda: resident_bytes(node) < empty + (full - empty) * part, within_s)


@pytest.mark.parametrize("heap", ["slab", "block"])
@pytest.mark.parametrize("kind", ["ephemeral", "persistent"])
def test_a_bucket_gives_memory_back(kind, heap):
    with servers.Dormouse(buckets=(), config=BUCKET.format(kind=kind, heap=heap)) as node:
        empty = resident_bytes(node)
        load(node, DOCUMENTS, VALUE)
        full = resident_bytes(node)
        assert full - empty > DOCUMENTS * len(VALUE), (empty, full)
        delete(node, range(DOCUMENTS))
        falls_to(node, empty, full)


def test_slabs_left_half_empty_are_emptied():
    if version().startswith("mimalloc"):
        pytest.skip("mimalloc keeps its pages of 4 MiB whole while one slab in them is in use (docs/decisions/0007)")
    with servers.Dormouse(buckets=(), config=BUCKET.format(kind="ephemeral", heap="slab")) as node:
        empty = resident_bytes(node)
        load(node, DOCUMENTS, VALUE)
        full = resident_bytes(node)
        delete(node, range(0, DOCUMENTS, 2))
        falls_to(node, empty, full, 0.6, MOVED_WITHIN_S)


def insert_rows(peer, numbers):
    numbers = list(numbers)
    for start in range(0, len(numbers), 500):
        rows = ({"op": "insert", "table": "T", "row": {"key": number, "text": VALUE.decode()}} for number in numbers[start : start + 500])
        peer.transact("D", *rows)


def delete_rows(peer, *conditions):
    peer.transact("D", {"op": "delete", "table": "T", "where": list(conditions)})


def count_rows(peer):
    return len(peer.transact("D", {"op": "select", "table": "T", "where": [], "columns": ["key"]})[0]["rows"])


def test_a_database_gives_memory_back(tmp_path):
    """First half of the rows are deleted, then the rest: deleted rows are not kept as history either."""
    (tmp_path / "d.db").write_bytes(text_of_record(json.dumps(SCHEMA).encode()))
    with servers.Dormouse(buckets=(), config=DATABASE.format(directory=tmp_path)) as node, Connection(tmp_path / "sock") as peer:
        empty = resident_bytes(node)
        insert_rows(peer, range(ROWS))
        full = resident_bytes(node)
        assert full - empty > ROWS * len(VALUE), (empty, full)
        delete_rows(peer, ["key", ">=", ROWS // 2])
        falls_to(node, empty, full, 0.65)
        assert count_rows(peer) == ROWS // 2
        delete_rows(peer)
        falls_to(node, empty, full)
        insert_rows(peer, range(10))
        assert count_rows(peer) == 10


def test_what_stays_is_not_lost_with_what_goes():
    """Nine of ten documents are deleted, in order, so that most pages become free; the others are read back."""
    with servers.Dormouse(buckets=("default,ephemeral,512MiB",)) as node:
        load(node, 20_000, VALUE)
        delete(node, range(2_000, 20_000))
        connection = TextConnection(node.memcached)
        for key in range(0, 2_000, 100):
            assert connection.get(b"key%d" % key)[0] == VALUE
        connection.close()
        assert stats(node)["allocator"] == version()
