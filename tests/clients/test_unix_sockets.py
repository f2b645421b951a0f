"""Clients that connect over a Unix socket, as with memcached's -s: pymemcache and curl."""

import json
import stat
import subprocess

import pytest
from pymemcache.client.base import Client, PooledClient

from tests import servers


@pytest.fixture(scope="module")
def sockets(tmp_path_factory):
    return tmp_path_factory.mktemp("sockets")


@pytest.fixture(scope="module")
def node(sockets):
    config = f"""
[[memcached]]
address = "127.0.0.1:0"

[[memcached]]
address = "unix:{sockets}/memcached,0660"

[http]
address = "unix:{sockets}/http"

[[bucket]]
name = "default"
"""
    file = sockets / "node.toml"
    file.write_text(config)
    command = [str(servers.dormouse_binary()), "serve", "--config", str(file), "--kv", "none", "--memory", "128MiB"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=servers.end_with_the_tests
    )
    banner = process.stdout.readline()
    assert banner.startswith(b"dormouse "), banner
    yield process
    process.terminate()
    assert process.wait(20) == 0
    assert not (sockets / "memcached").exists() and not (sockets / "http").exists()


def curl(sockets, path, *arguments):
    command = ["curl", "-sS", "--unix-socket", str(sockets / "http"), *arguments, "-w", "\n%{http_code}", f"http://localhost{path}"]
    body, _, code = subprocess.run(command, capture_output=True, check=True, text=True).stdout.rpartition("\n")
    return int(code), body


@pytest.mark.parametrize("kind", [Client, PooledClient])
def test_pymemcache(node, sockets, kind):
    path = sockets / "memcached"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    client = kind(str(path), default_noreply=False, timeout=10)
    values = {f"key-{n}": bytes([n % 256]) * (n * 997 % 90_000) for n in range(200)}
    assert client.set_many(values) == []
    assert client.get_many(values) == values
    assert client.incr("counter", 1) is None
    assert client.set("counter", b"41") and client.incr("counter", 1) == 42
    assert client.flush_all()
    client.close()


def test_curl(node, sockets):
    assert curl(sockets, "/health")[0] == 200
    login = ("-u", "Administrator:password")
    assert json.loads(curl(sockets, "/whoami", *login)[1])["id"] == "Administrator"
    made = curl(sockets, "/pools/default/buckets", *login, "-d", "name=more&bucketType=ephemeral&ramQuotaMB=16")
    assert made[0] == 202, made
    assert curl(sockets, "/pools/default/buckets/more")[0] == 200
    assert curl(sockets, "/pools/default/buckets", "-d", "name=x")[0] == 401
