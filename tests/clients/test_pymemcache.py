"""pymemcache: every operation of its client, over the memcached port."""

import socket
import time

import pytest
from pymemcache import serde
from pymemcache.client.base import Client, PooledClient
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError, MemcacheServerError


@pytest.fixture
def client(node):
    one = Client(node.memcached, default_noreply=False, timeout=10)
    one.flush_all()
    yield one
    one.close()


def test_set_get(client):
    assert client.get("k") is None
    assert client.get("k", default="d") == "d"
    assert client.set("k", b"value", flags=7) is True
    assert client.get("k") == b"value"
    assert client.raw_command("get k", end_tokens=b"END\r\n").startswith(b"VALUE k 7 5")


def test_empty_and_binary_values(client):
    for value in (b"", b"\r\n", b"END\r\n", bytes(range(256)) * 40):
        assert client.set("k", value)
        assert client.get("k") == value


def test_a_value_of_just_under_a_mebibyte(client):
    value = bytes(1024 * 1000)
    assert client.set("large", value)
    assert client.get("large") == value


def test_a_value_over_the_item_size_limit_is_refused_and_the_connection_lives(client):
    client.set("large", b"old")
    with pytest.raises(MemcacheServerError, match="too large"):
        client.set("large", bytes(1024 * 1024 + 1))
    assert client.set("after", b"1")


def test_many(client):
    values = {f"many-{n}": b"%d" % n for n in range(300)}
    assert client.set_many(values) == []
    assert client.get_many(values) == values
    assert client.get_multi(["many-1", "missing", "many-2"]) == {"many-1": b"1", "many-2": b"2"}
    assert client.delete_many(["many-1", "many-2"]) is True
    assert client.get_many(["many-1", "many-2", "many-3"]) == {"many-3": b"3"}


def test_add_and_replace(client):
    assert client.replace("k", b"0") is False
    assert client.add("k", b"1") is True
    assert client.add("k", b"2") is False
    assert client.get("k") == b"1"
    assert client.replace("k", b"3") is True
    assert client.get("k") == b"3"


def test_append_and_prepend(client):
    assert client.append("k", b"x") is False
    assert client.prepend("k", b"x") is False
    client.set("k", b"b", flags=9)
    assert client.append("k", b"c") is True
    assert client.prepend("k", b"a") is True
    assert client.get("k") == b"abc"
    assert client.raw_command("get k", end_tokens=b"END\r\n").startswith(b"VALUE k 9 3")


def test_cas(client):
    assert client.gets("k") == (None, None)
    assert client.cas("k", b"1", 12345) is None
    client.set("k", b"1")
    value, cas = client.gets("k")
    assert value == b"1"
    assert client.cas("k", b"2", cas) is True
    assert client.cas("k", b"3", cas) is False
    assert client.get("k") == b"2"
    assert client.gets_many(["k", "missing"])["k"][0] == b"2"


def test_delete(client):
    client.set("k", b"1")
    assert client.delete("k") is True
    assert client.delete("k") is False


def test_counters(client):
    assert client.incr("n", 1) is None
    client.set("n", b"41")
    assert client.incr("n", 1) == 42
    assert client.decr("n", 2) == 40
    assert client.decr("n", 100) == 0
    client.set("n", b"18446744073709551615")
    assert client.incr("n", 2) == 1
    client.set("n", b"word")
    with pytest.raises(MemcacheClientError):
        client.incr("n", 1)


def test_expiry_and_touch(client):
    client.set("short", b"1", expire=2)
    client.set("touched", b"1", expire=2)
    client.set("past", b"1", expire=-1)
    assert client.get("past") is None
    assert client.get("short") == b"1"
    assert client.touch("touched", 100) is True
    assert client.touch("missing", 100) is False
    time.sleep(3.2)
    assert client.get("short") is None
    assert client.get("touched") == b"1"


def test_get_and_touch(client):
    client.set("k", b"v", expire=2)
    assert client.raw_command("gat 100 k", end_tokens=b"END\r\n").startswith(b"VALUE k 0 1\r\nv\r\n")
    time.sleep(3.2)
    assert client.get("k") == b"v"


def test_flush_all_and_its_delay(client):
    client.set("k", b"v")
    assert client.flush_all() is True
    assert client.get("k") is None
    client.set("k", b"v")
    assert client.flush_all(delay=2) is True
    assert client.get("k") == b"v"
    time.sleep(3.5)
    assert client.get("k") is None


def test_noreply(node):
    quiet = Client(node.memcached, default_noreply=True, timeout=10)
    quiet.set("q", b"1")
    quiet.append("q", b"2")
    quiet.add("q", b"no")
    quiet.set("gone", b"1")
    quiet.delete("gone")
    quiet.touch("q", 100)
    assert quiet.get("q") == b"12"
    assert quiet.get("gone") is None
    quiet.set("n", b"5")
    quiet.incr("n", 3, noreply=True)
    assert quiet.get("n") == b"8"
    quiet.flush_all()
    assert quiet.get("q") is None
    quiet.close()


def test_stats(client):
    client.set("k", b"v")
    client.get("k")
    stats = client.stats()
    for name in (b"pid", b"uptime", b"time", b"version", b"curr_items", b"cmd_get", b"get_hits", b"bytes", b"limit_maxbytes", b"threads", b"curr_connections"):
        assert name in stats, name
    assert int(stats[b"curr_items"]) >= 1
    assert stats[b"get_hits"] >= 1
    assert b"item_size_max" in client.stats("settings")
    for name in ("items", "slabs", "sizes"):
        client.stats(name)


def test_stats_memory_tells_where_the_memory_is(client):
    memory = {name: int(value) for name, value in client.stats("memory").items() if isinstance(value, int) or value.isdigit()}
    for name in (b"payload", b"metadata", b"index", b"allocated", b"resident"):
        assert any(name in stat for stat in memory), f"{name} is not in stats memory: {sorted(memory)}"


def test_version_and_verbosity(client):
    assert client.version()
    assert client.raw_command("verbosity 1") == b"OK"
    assert client.raw_command("mn") == b"MN"


def test_quit_closes(node):
    with socket.create_connection(node.memcached, timeout=5) as one:
        one.sendall(b"version\r\nquit\r\nversion\r\n")
        said = b""
        while data := one.recv(4096):
            said += data
    assert said.count(b"VERSION") == 1


def test_shutdown_is_refused_unless_enabled(client):
    with socket.create_connection((client.server[0], client.server[1]), timeout=5) as one:
        one.sendall(b"shutdown\r\n")
        assert one.recv(100) == b"SERVER_ERROR: shutdown not enabled\r\n"
        one.sendall(b"mn\r\n")
        assert one.recv(100) == b"MN\r\n"


def test_keys_at_the_limit(client):
    client.set("k" * 250, b"v")
    assert client.get("k" * 250) == b"v"
    with pytest.raises(MemcacheIllegalInputError):
        client.set("k" * 251, b"v")


def test_pickled_values_and_pool(node):
    pool = PooledClient(node.memcached, max_pool_size=4, serde=serde.pickle_serde, timeout=10)
    document = {"a": [1, 2.5, None], "b": ("x", b"y")}
    pool.set("doc", document)
    assert pool.get("doc") == document
    pool.set("text", "grüße")
    assert pool.get("text") == "grüße"
    pool.set("int", 42)
    assert pool.get("int") == 42
    pool.close()
