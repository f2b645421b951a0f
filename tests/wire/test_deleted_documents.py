"""Deleted documents over sockets: what is known of them in each kind of bucket, after a restart, and by a first stream."""

import json
import struct

import pytest

from tests import dcp, servers
from tests import subdocument as sd
from tests.dcp import Dcp, Marker
from tests.frames import DELETE, EXISTS, FEATURE_SELECT_BUCKET, FEATURE_XATTR, FEATURE_XERROR, GET, GET_META, NOT_FOUND, SUCCESS, BinaryConnection
from tests.persistence.bucket import http, wait_until, wait_warm

BUCKETS = ("default,ephemeral,256MiB", "p,persistent,256MiB")
VB = 5


class Client(BinaryConnection):
    def __init__(self, node, bucket):
        super().__init__(node.kv)
        self.open_bucket(bucket, (FEATURE_SELECT_BUCKET, FEATURE_XATTR, FEATURE_XERROR))

    def delete(self, key):
        assert self.store(key, b"{}", vbucket=VB).status == SUCCESS
        answer = self.ask(DELETE, key, vbucket=VB)
        assert answer.status == SUCCESS
        return answer.cas

    def look(self, key, path=b"$document"):
        self.send(sd.lookups(key, (sd.GET, path, sd.XATTR), doc_flags=sd.ACCESS_DELETED, vbucket=VB))
        return self.response()

    def mutate(self, key, flags, **named):
        self.send(sd.mutations(key, (sd.DICT_UPSERT, b"txn", b"1", sd.XATTR), doc_flags=flags, vbucket=VB, **named))
        return self.response()

    def check(self, key, cas):
        seen = self.look(key)
        assert (seen.status, seen.cas) == (sd.SUCCESS_DELETED, cas), key
        document = json.loads(sd.found(seen.value)[0][1])
        assert document["deleted"] is True and int(document["CAS"], 16) == cas
        assert self.look(key, b"_sync").status == sd.MULTI_FAILURE_DELETED
        meta = self.ask(GET_META, key, vbucket=VB)
        assert (meta.status, meta.cas, meta.extras[:4]) == (SUCCESS, cas, b"\0\0\0\1")
        assert str(struct.unpack(">Q", meta.extras[12:20])[0]) == document["revid"]
        assert self.ask(GET, key, vbucket=VB).status == NOT_FOUND


def unflushed(node):
    with Client(node, "p") as client:
        client.send(dcp.request(0x10, b"persistence"))
        answers = {}
        while (answer := client.response()).key:
            answers[answer.key] = answer.value
        return answers[b"unflushed_items"]


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(buckets=BUCKETS) as server:
        status, body = http(server, "POST", "/pools/default/buckets", "name=e&bucketType=ephemeral&ramQuota=64")
        assert status == 202, body
        yield server


@pytest.mark.parametrize("bucket", ["p", "e"])
def test_a_deletion_is_looked_up_and_revived_by_its_cas(node, bucket):
    with Client(node, bucket) as client:
        cas = client.delete(b"key")
        if bucket == "p":
            wait_until(lambda: unflushed(node) == b"0", "it is on disk")
        client.check(b"key", cas)
        assert client.mutate(b"key", sd.ADD | sd.CREATE_AS_DELETED).status == EXISTS
        assert client.mutate(b"key", sd.REVIVE | sd.ACCESS_DELETED, cas=cas + 1).status == EXISTS
        assert client.mutate(b"key", sd.REVIVE | sd.ACCESS_DELETED, cas=cas).status == SUCCESS
        assert client.ask(GET, b"key", vbucket=VB).value == b"{}"
        assert client.mutate(b"key", sd.REVIVE | sd.ACCESS_DELETED, cas=cas).status == EXISTS
        assert client.mutate(b"key", sd.REVIVE | sd.ACCESS_DELETED).status == sd.CAN_ONLY_REVIVE


def test_a_plain_cache_gives_the_memory_back(node):
    with Client(node, "default") as client:
        client.delete(b"key")
        assert client.look(b"key").status == NOT_FOUND
        assert client.ask(GET_META, b"key", vbucket=VB).status == NOT_FOUND


def test_a_first_stream_is_told_of_deletions(node):
    with Client(node, "e") as client:
        client.delete(b"gone")
    with Dcp(node.kv, "e") as one:
        assert one.stream(VB, flags=dcp.TO_LATEST).status == SUCCESS
        seen = {}
        while getattr(message := one.next(), "opcode", None) != dcp.STREAM_END:
            if not isinstance(message, Marker):
                seen[message.key] = message.opcode
        assert seen[b"\0gone"] == dcp.DELETION


def test_buckets_say_what_they_are_and_how_long_they_remember(node):
    for bucket, kind, days in (("p", "membase", 3), ("e", "ephemeral", 3), ("default", "ephemeral", 0)):
        for path in (f"/pools/default/buckets/{bucket}", f"/pools/default/b/{bucket}"):
            shown = json.loads(http(node, "GET", path)[1])
            assert (shown["bucketType"], "couchapi" in shown["bucketCapabilities"]) == (kind, kind == "membase"), path
        assert json.loads(http(node, "GET", f"/pools/default/buckets/{bucket}")[1])["purgeInterval"] == days
        with Client(node, bucket) as client:
            shown = json.loads(client.ask(0xB5).value)
        assert (shown["bucketType"], "couchapi" in shown["bucketCapabilities"]) == (kind, kind == "membase")


def test_deletions_are_known_after_a_restart(tmp_path):
    with servers.Dormouse(buckets=BUCKETS, home=tmp_path) as node:
        with Client(node, "p") as client:
            deleted = {b"key-%d" % number: client.delete(b"key-%d" % number) for number in range(300)}
            wait_until(lambda: unflushed(node) == b"0", "they are on disk")
            for key, cas in deleted.items():
                client.check(key, cas)
        node.kill()
    with servers.Dormouse(buckets=BUCKETS, home=tmp_path) as node:
        wait_warm(node)
        with Client(node, "p") as client:
            for key, cas in deleted.items():
                client.check(key, cas)
