"""A node, and what it reports about its allocator."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

from tests import servers
from tests.clients.text_connection import TextConnection
from tests.frames import STAT, BinaryConnection, request

PATIENCE_S = 20


def version():
    """Name and version of the binary's allocator, as `jemalloc 5.3.1`."""
    done = subprocess.run([servers.dormouse_binary(), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition("(")[2].partition(")")[0]


@contextlib.contextmanager
def environment(**variables):
    """Sets environment variables of this process, for the children it starts meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def stats(node):
    """`stats allocator` over the text protocol."""
    connection = TextConnection(node.memcached)
    connection.socket.sendall(b"stats allocator\r\n")
    found = {}
    while (line := connection.reader.readline().rstrip(b"\r\n")) != b"END":
        verb, name, value = line.decode().split(" ", 2)
        assert verb == "STAT", line
        found[name] = value
    connection.close()
    return found


def stats_of_couchbase(node):
    """`stats allocator` over the Couchbase port."""
    with BinaryConnection(node.kv) as one:
        one.open_bucket()
        one.send(request(STAT, b"allocator"))
        found = {}
        while (answer := one.response()).key:
            found[answer.key.decode()] = answer.value.decode()
    return found


def http(node, method, path, fields=None, login="Administrator:password"):
    """Status and document; a document that is not JSON is returned as text."""
    body = None if fields is None else "&".join(f"{name}={value}" for name, value in fields.items()).encode()
    wish = urllib.request.Request(f"http://{node.http[0]}:{node.http[1]}{path}", method=method, data=body)
    if login:
        wish.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    try:
        with urllib.request.urlopen(wish, timeout=30) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def reload(node, config):
    (node.data / "dormouse.toml").write_text(config)
    before = node.log().count("configuration read again") + node.log().count("not reloaded")
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: node.log().count("configuration read again") + node.log().count("not reloaded") > before)


def wait_until(holds, patience_s=PATIENCE_S):
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def resident_bytes(node):
    for line in open(f"/proc/{node.pid}/smaps_rollup"):
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Rss")


def claims_of_huge_pages(node):
    """Bytes of mappings that request huge pages, and of those that decline them."""
    claimed = refused = size = 0
    for line in open(f"/proc/{node.pid}/smaps"):
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:"):
            flags = line.split()[1:]
            claimed += size if "hg" in flags else 0
            refused += size if "nh" in flags else 0
    return claimed, refused


def load(node, count, value):
    """Stores `count` documents with the same value, with `set ... noreply`."""
    connection = TextConnection(node.memcached, timeout_s=60)
    for start in range(0, count, 1000):
        keys = range(start, min(start + 1000, count))
        connection.socket.sendall(b"".join(b"set key%d 0 0 %d noreply\r\n%s\r\n" % (key, len(value), value) for key in keys))
    assert connection.line(b"mn") == b"MN"
    connection.close()


def delete(node, keys):
    connection = TextConnection(node.memcached, timeout_s=60)
    keys = list(keys)
    for start in range(0, len(keys), 500):
        connection.socket.sendall(b"".join(b"delete key%d noreply\r\n" % key for key in keys[start : start + 500]))
        assert connection.line(b"mn") == b"MN"
    connection.close()
