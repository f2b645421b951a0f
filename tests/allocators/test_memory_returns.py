"""Memory goes back to the system within ten seconds of a mass delete, whatever the binary's allocator."""

from tests import servers
from tests.allocators.node import delete, load, resident_bytes, stats, version, wait_until
from tests.clients.text_connection import TextConnection

MIB = 1 << 20
WITHIN_S = 10
DOCUMENTS = 150_000
VALUE = b"x" * 1000


def test_resident_memory_falls_after_a_mass_delete():
    with servers.Dormouse(buckets=("default,ephemeral,512MiB",)) as node:
        empty = resident_bytes(node)
        load(node, DOCUMENTS, VALUE)
        full = resident_bytes(node)
        assert full - empty > DOCUMENTS * len(VALUE), (empty, full)
        delete(node, range(DOCUMENTS))
        limit = empty + (full - empty) // 5
        wait_until(lambda: resident_bytes(node) < limit, WITHIN_S)


def test_what_stays_is_not_lost_with_what_goes():
    """Nine of ten documents go, in order, so that most pages become free; the others are read back."""
    with servers.Dormouse(buckets=("default,ephemeral,512MiB",)) as node:
        load(node, 20_000, VALUE)
        delete(node, range(2_000, 20_000))
        connection = TextConnection(node.memcached)
        for key in range(0, 2_000, 100):
            assert connection.get(b"key%d" % key)[0] == VALUE
        connection.close()
        assert stats(node)["allocator"] == version()
