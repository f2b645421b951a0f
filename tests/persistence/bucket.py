"""Shared by the tests of persistent buckets: nodes that are restarted in the same directory, and ways to query them."""

import base64
import contextlib
import json
import struct
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib

from pymemcache.client.base import Client

from tests import servers
from tests.frames import OBSERVE_SEQNO, SUCCESS, BinaryConnection

PERSISTENT = ("default,persistent,128MiB",)
PATIENCE_S = 20
VBUCKETS = 1024


def start(home, *arguments, buckets=PERSISTENT, **named):
    return servers.Dormouse(*arguments, home=home, buckets=buckets, memory="512MiB", **named)


def memcached(node):
    """A client of the memcached port; server errors are raised."""
    return Client(node.memcached, timeout=10, connect_timeout=10, default_noreply=False)


@contextlib.contextmanager
def binary(node, bucket="default"):
    with BinaryConnection(node.kv) as connection:
        connection.open_bucket(bucket)
        yield connection


def vbucket_of(key):
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % VBUCKETS


def wait_until(holds, what, patience_s=PATIENCE_S):
    deadline = time.monotonic() + patience_s
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come within {patience_s} s"
        time.sleep(0.02)


def statistics(node, group):
    client = memcached(node)
    try:
        return {name.decode(): value for name, value in client.stats(group).items()}
    finally:
        client.close()


def wait_warm(node, patience_s=PATIENCE_S):
    """Waits until every vBucket of every bucket is read from disk: until then requests to it are refused."""
    wait_until(lambda: http(node, "GET", "/health")[0] == 200, "the end of the warm-up", patience_s)


def observe(connection, vbucket, history):
    """Persisted and highest seqno of a vBucket."""
    answer = connection.ask(OBSERVE_SEQNO, value=struct.pack(">Q", history), vbucket=vbucket)
    assert answer.status == SUCCESS, answer
    _, _, _, persisted, highest = struct.unpack_from(">BHQQQ", answer.value)
    return persisted, highest


def wait_persisted(connection, token):
    """Waits until the write with this mutation token (vBucket, history, seqno) is on disk."""
    vbucket, history, seqno = token
    wait_until(lambda: observe(connection, vbucket, history)[0] >= seqno, "a persisted seqno")


def wait_all_persisted(node, patience_s=PATIENCE_S):
    """Waits until nothing is left to write."""
    wait_until(lambda: statistics(node, "persistence")["unflushed_items"] == 0, "an empty queue", patience_s)


def http(node, method, path, form=None, login="Administrator:password", content_type="application/x-www-form-urlencoded"):
    """Returns status and body. The form may be text, as it is sent."""
    host, port = node.http
    text = urllib.parse.urlencode(form) if form is not None and not isinstance(form, str) else form
    body = text.encode() if text is not None else None
    request = urllib.request.Request(f"http://{host}:{port}{path}", data=body, method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    request.add_header("Content-Type", content_type)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def document(node, path):
    status, body = http(node, "GET", path)
    assert status == 200, (status, body)
    return json.loads(body)
