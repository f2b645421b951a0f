"""What all share, and how much of it one user may take: memory of buckets, collections, change streams."""

import contextlib
import json
import select
import struct

import pytest

from tests import servers
from tests.clients.text_connection import TextConnection
from tests.dcp import FOREVER, STREAM_REQ, Dcp
from tests.frames import SUCCESS, TEMPORARY_FAILURE, BinaryConnection, request
from tests.subdocument import GET, REPLACE, lookups, mutations
from tests.wire.test_roles import ADMINISTRATOR, PASSWORD, POOL, USERS, Client

BUCKETS = ("orders,ephemeral,32MiB", "shared,ephemeral,auto")
MEMORY_MIB, VBUCKETS = 64, 1024
# Clients may hold a sixteenth of the node's memory; a stream takes 480 bytes.
STREAMS = (MEMORY_MIB << 20) // 16 // 480
# Requests of a connection that are executed together.
BATCH = 64
ROLES = {"eve": "bucket_admin[orders],data_dcp_reader[orders]", "ann": "data_dcp_reader[orders]", "sam": "bucket_admin[shared]", "tom": "scope_admin[orders:mine]"}


@pytest.fixture
def node(tmp_path):
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    options = ("--user", ADMINISTRATOR, "--password-file", str(path))
    with servers.Dormouse(*options, buckets=BUCKETS, memory=f"{MEMORY_MIB}MiB", ports={"memcached": "none"}) as server:
        with Client(server) as root:
            root.done("POST", f"{POOL}/buckets/orders/scopes", {"name": "mine"})
            for name, roles in ROLES.items():
                root.done("PUT", f"{USERS}/{name}", {"password": PASSWORD, "roles": roles})
        yield server
        assert server.alive(), server.log()


def quota(client, bucket, mebibytes):
    """Sets it; returns the error, if there is one."""
    status, body = client.ask("POST", f"{POOL}/buckets/{bucket}", {"ramQuota": mebibytes})
    assert status == (400 if body else 200), (status, body)
    return body and json.loads(body)["errors"]["ramQuota"]


def quotas(client):
    status, body = client.ask("GET", f"{POOL}/buckets")
    assert status == 200
    return {bucket["name"]: bucket["quota"]["ram"] >> 20 for bucket in json.loads(body)}


def test_a_bucket_gets_no_memory_out_of_the_shares_of_others(node):
    with Client(node) as root, Client(node, "eve") as eve, Client(node, "sam") as sam:
        assert quotas(root) == {"orders": 32, "shared": 32}
        assert "at most 32 MiB are left for this bucket without taking memory from others" in quota(eve, "orders", 33)
        assert quotas(root) == {"orders": 32, "shared": 32}
        assert not quota(eve, "orders", 24)
        assert quota(eve, "orders", 32), "what it has given back is the other one's"
        assert quotas(root) == {"orders": 24, "shared": 40}
        assert not quota(root, "orders", 32)
        # Of its own share a bucket may have all, and of what no bucket has.
        assert not quota(sam, "shared", 30)
        assert not quota(eve, "orders", 34)
        assert "at most 30 MiB are left for this bucket" in quota(sam, "shared", 31)
        assert quotas(root) == {"orders": 34, "shared": 30}


def test_a_scope_leaves_room_for_the_collections_of_others(node):
    with Client(node) as root, Client(node, "tom") as tom:
        path = f"{POOL}/buckets/orders/scopes"
        wanted = [{"name": "mine", "collections": [{"name": f"c{number}"} for number in range(599)]}, {"name": "theirs", "collections": []}]
        status, body = root.ask("PUT", path, json.dumps({"scopes": wanted}), "application/json")
        assert status == 200, body
        assert tom.ask("POST", f"{path}/mine/collections", {"name": "last"})[0] == 200
        status, body = tom.ask("POST", f"{path}/mine/collections", {"name": "more"})
        assert status == 400 and "Maximum number of collections has been reached" in body, body
        for scope in ("theirs", "mine"):
            assert root.ask("POST", f"{path}/{scope}/collections", {"name": "more"})[0] == 200


def test_one_users_streams_leave_room_for_those_of_others(node):
    def begin(user):
        """A connection, and how many streams it has before one is refused."""
        one = Dcp(node.kv, "orders", user=user, password=PASSWORD, timeout_s=60)
        extras = struct.pack(">IIQQQQQ", 0, 0, 0, FOREVER, 0, 0, 0)
        one.send(b"".join(request(STREAM_REQ, extras=extras, vbucket=vb, opaque=vb) for vb in range(VBUCKETS)))
        statuses = [one.response().status for _ in range(VBUCKETS)]
        assert set(statuses) <= {SUCCESS, TEMPORARY_FAILURE}
        return one, statuses.count(SUCCESS)

    eves = [begin("eve") for _ in range(STREAMS // VBUCKETS + 1)]
    # What a batch of requests takes is counted after it, and what the last connection's requests took may be given back meanwhile.
    assert STREAMS // 3 < sum(count for _, count in eves) <= STREAMS // 2 + BATCH
    assert eves[-1][1] <= BATCH
    ann, count = begin("ann")
    assert count == VBUCKETS
    for one, _ in eves:
        one.close()
    again, count = begin("eve")
    assert count == VBUCKETS
    ann.close()
    again.close()


def test_only_who_manages_the_node_ends_it_by_a_command(tmp_path):
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    options = ("--user", ADMINISTRATOR, "--password-file", str(path))
    with servers.Dormouse(*options, config="[node]\nshutdown_command = true\n") as server:
        with Client(server) as root:
            for name, roles in {"app": "bucket_full_access[default]", "boss": "bucket_admin[default],bucket_full_access[default]"}.items():
                root.done("PUT", f"{USERS}/{name}", {"password": PASSWORD, "roles": roles})
        for name in ("app", "boss", ADMINISTRATOR):
            one = TextConnection(server.memcached)
            assert one.store(b"set", b"login", f"{name} {PASSWORD}".encode()) == b"STORED"
            if name != ADMINISTRATOR:
                assert one.line(b"shutdown") == b"CLIENT_ERROR shutdown needs the role cluster_admin"
                assert one.get(b"a") is None
            else:
                one.line(b"shutdown")
            one.close()
        assert server.process.wait(10) == 0


def test_a_long_request_does_not_hold_up_those_of_others(node):
    """Eve's edits of a large document take much longer than Ann's look-ups, which leave the worker as well."""
    large, small = (b"[" + b"1," * count + b"1]" for count in (2_000_000, 100_000))
    with Client(node) as root:
        for user in ("eve", "ann"):
            root.done("PUT", f"{USERS}/{user}", {"password": PASSWORD, "roles": "data_reader[orders],data_writer[orders]"})
    with contextlib.ExitStack() as stack:
        def opened(user):
            connection = BinaryConnection.opened(node.kv, 120, bucket="orders", user=user, password=PASSWORD)
            return stack.enter_context(connection)

        eves, ann = [opened("eve") for _ in range(4)], opened("ann")
        for key, array in ((b"large", large), (b"small", small)):
            assert ann.store(key, array).status == SUCCESS
        for eve in eves:
            eve.send(mutations(b"large", *[(REPLACE, b"[-1]", b"2")] * 16))
        answers = 0
        waiting = {eve.socket for eve in eves}
        while waiting:
            ann.send(lookups(b"small", (GET, b"[-1]")))
            assert ann.response().status == SUCCESS
            answers += 1
            waiting.difference_update(select.select(waiting, [], [], 0)[0])
        assert answers > 5 * len(eves), "she waits for an edit each time"
        for eve in eves:
            assert eve.response().status == SUCCESS
