"""The connections of a deleted bucket end, and no others; a bucket created under its name serves those that come then."""

import struct

from tests import servers
from tests.frames import GET, NOT_FOUND, SUCCESS, BinaryConnection
from tests.persistence.bucket import http
from tests.wire.test_key_lists import Text


def opened(node, name):
    one = BinaryConnection(node.kv, timeout_s=60)
    one.open_bucket(name)
    return one


def has_ended(one):
    """Also with a reset: the node may not have read all when it closes."""
    try:
        return one.response() is None
    except ConnectionResetError:
        return True


def test_connections_of_a_deleted_bucket_end():
    with servers.Dormouse(buckets=("default,ephemeral,32MiB", "b,ephemeral,32MiB")) as node:
        for _ in range(3):
            with Text(node.memcached) as text, opened(node, "default") as one, opened(node, "default") as waiting, opened(node, "b") as other:
                assert text.ask(b"set a 0 0 1\r\nx") == b"STORED"
                assert other.store(b"a", b"of b").status == SUCCESS
                # A request in parts is not waited for.
                waiting.send(struct.pack(">BBH", 0x80, GET, 1))
                assert http(node, "DELETE", "/pools/default/buckets/default")[0] == 200
                assert text.lines.readline() == b"" and one.response() is None and has_ended(waiting)
                assert other.ask(GET, b"a").value == b"of b"
                bucket = {"name": "default", "ramQuota": 32, "bucketType": "ephemeral"}
                assert http(node, "POST", "/pools/default/buckets", bucket)[0] == 202
                assert other.lives()
            with Text(node.memcached) as text, opened(node, "default") as one:
                assert text.list(b"get a", b"END") == [] and one.ask(GET, b"a").status == NOT_FOUND
