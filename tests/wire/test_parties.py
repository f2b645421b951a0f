"""Requests that name another party, with every role: where this node or its clients log in, and what others have open."""

import base64
import dataclasses
import json
import urllib.parse

import pytest

from tests import servers
from tests.dcp import Dcp
from tests.frames import NO_ACCESS, NOOP, NOT_FOUND, SET_VBUCKET, SUCCESS
from tests.wire.test_roles import ADMINISTRATOR, BUCKET, EVERYTHING, PASSWORD, POOL, ROLES, Client, add_scopes, may, places

BUCKETS = ("orders,ephemeral,32MiB", "other,ephemeral,32MiB")
VB, SCANNED = 7, 20
SCAN_CREATE, SCAN_CONTINUE, SCAN_CANCEL, SCAN_COMPLETE = 0xDA, 0xDB, 0xDC, 0xA7
# To read documents with system attributes, in a part of the bucket; the same, and to change the bucket.
STREAMS, REPLICA = "streams", "replica"
# What is not even for an administrator.
NOBODY = "nobody"
FOLLOWERS = {"admin", "backup_admin", "bucket_full_access", "mobile_sync_gateway", "data_backup", "data_dcp_reader", "replication_target"}
# Nobody listens there.
PEER, STRANGER = "n2", "127.0.0.1:9"
ROLE_PATH = f"{POOL}/buckets/orders/vbuckets"
EXTERNAL = "/node/controller/setupAlternateAddresses/external"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    path = tmp_path_factory.mktemp("parties") / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    config = f"[replication]\nnode = 'n1'\npeers = '{PEER}=127.0.0.1:9/9'\n"
    options = ("--user", ADMINISTRATOR, "--password-file", str(path))
    with servers.Dormouse(*options, config=config, buckets=BUCKETS, memory="256MiB", ports={"memcached": "none"}) as server:
        with Client(server) as root:
            add_scopes(root, "orders")
            root.done("PUT", "/settings/rbac/users/local/eve", {"password": PASSWORD})
        yield server
        assert server.alive(), server.log()


@dataclasses.dataclass(frozen=True)
class Request:
    """A request and what it needs on the bucket "orders"; `send` tells whether the user was allowed to."""

    title: str
    needs: str
    send: object


def over_http(method, path, form, allowed=200):
    def send(client, kv):
        status, body = client.ask(method, path, urllib.parse.urlencode(form) if form is not None else None)
        assert status in (allowed, 403), (status, body)
        return status == allowed

    return send


def set_role(**role):
    form = {name: value if isinstance(value, str) else json.dumps(value) for name, value in role.items()}
    return over_http("POST", f"{ROLE_PATH}/{VB}", form)


def set_roles(**role):
    form = {name: value if isinstance(value, str) else json.dumps(value) for name, value in role.items()}
    return over_http("POST", ROLE_PATH, {**form, "first": VB, "last": VB + 1})


def set_vbucket(state, **role):
    def send(client, kv):
        if kv is None:
            return False
        status = kv.ask(SET_VBUCKET, extras=bytes([state]), value=json.dumps(role).encode(), vbucket=VB).status
        assert status in (SUCCESS, NO_ACCESS), status
        return status == SUCCESS

    return send


def open_streams(name):
    def send(client, kv):
        if kv is None:
            return False
        answer = kv.open(name)
        assert answer.status in (SUCCESS, NO_ACCESS), answer
        return answer.status == SUCCESS

    return send


def use_scan(opcode, further):
    """With the scan of another user."""

    def send(client, kv):
        if kv is None:
            return False
        with kv_of(client.node, ADMINISTRATOR) as root:
            assert root.store(b"\0key", b"value", vbucket=SCANNED).status == SUCCESS
            scan = {"range": {"start": base64.b64encode(b"\0").decode(), "end": base64.b64encode(b"\xff").decode()}}
            created = root.ask(SCAN_CREATE, value=json.dumps(scan).encode(), vbucket=SCANNED)
            assert created.status == SUCCESS, created
            status = kv.ask(opcode, extras=created.value + further, vbucket=SCANNED).status
            assert root.ask(SCAN_CANCEL, extras=created.value, vbucket=SCANNED).status == (SUCCESS if status == NOT_FOUND else NOT_FOUND)
        assert status in (SUCCESS, SCAN_COMPLETE, NOT_FOUND), status
        return status != NOT_FOUND

    return send


REQUESTS = [
    Request("a source that is a peer", BUCKET, set_role(state="replica", source=PEER)),
    Request("a source that is a stranger", EVERYTHING, set_role(state="replica", source=STRANGER)),
    Request("this node as a source", EVERYTHING, set_role(state="replica", source="n1")),
    Request("a source of some vBuckets that is a stranger", EVERYTHING, set_roles(state="pending", source=STRANGER)),
    Request("a topology of peers", BUCKET, set_role(topology=[["n1", PEER, None]])),
    Request("a topology with a stranger", EVERYTHING, set_role(topology=[["n1", STRANGER]])),
    Request("a topology whose second chain has a stranger", EVERYTHING, set_role(topology=[["n1", PEER], ["n1", STRANGER]])),
    Request("a topology of some vBuckets with a stranger", EVERYTHING, set_roles(topology=[[STRANGER]])),
    Request("SET_VBUCKET with a source that is a peer", BUCKET, set_vbucket(2, source=PEER)),
    Request("SET_VBUCKET with a source that is a stranger", EVERYTHING, set_vbucket(2, source=STRANGER)),
    Request("SET_VBUCKET with a topology of peers", BUCKET, set_vbucket(1, topology=[["n1", PEER]])),
    Request("SET_VBUCKET with a topology with a stranger", EVERYTHING, set_vbucket(1, topology=[[STRANGER, "n1"]])),
    Request("a name of the node", EVERYTHING, over_http("POST", "/node/controller/rename", {"hostname": "127.0.0.1"})),
    Request("an alternate address", EVERYTHING, over_http("PUT", EXTERNAL, {"hostname": "127.0.0.1"})),
    Request("streams", STREAMS, open_streams("mine")),
    # It takes the place of a replica's connection, and is told all of the manifest.
    Request("streams with the name of a replica's", REPLICA, open_streams("replication:n1->n2:orders")),
    Request("going on with the scan of another", NOBODY, use_scan(SCAN_CONTINUE, bytes(12))),
    Request("cancelling the scan of another", NOBODY, use_scan(SCAN_CANCEL, b"")),
    Request("no alternate address", EVERYTHING, over_http("DELETE", EXTERNAL, None)),
]


def kv_of(node, user="eve", **options):
    """A connection with the bucket selected; None if the user may not."""
    try:
        return Dcp(node.kv, "orders", name=None, user=user, password=PASSWORD, **options)
    except AssertionError:
        return None


@pytest.fixture
def reset(node):
    """The bucket's vBuckets and the node's addresses as at the start."""
    yield
    with Client(node) as root:
        root.done("POST", ROLE_PATH, {"state": "active", "topology": "null", "first": VB, "last": VB + 1})
        root.done("DELETE", EXTERNAL)


def expected(role, place, needs):
    if needs == STREAMS:
        return role in FOLLOWERS
    if needs == REPLICA:
        return role in {"admin", "backup_admin"}
    return may(role, place, needs, "orders", "eu")


@pytest.mark.parametrize("role", ROLES)
def test_each_role_names_the_parties_that_it_may(node, reset, role):
    wrong = []
    for place in places(ROLES[role][0]):
        text = role + (f"[{':'.join(place)}]" if place else "")
        with Client(node) as root:
            root.done("PATCH", "/settings/rbac/users/local/eve", {"roles": text})
        with Client(node, "eve") as client:
            for request in REQUESTS:
                kv = kv_of(node)
                found = request.send(client, kv)
                if found != expected(role, place, request.needs):
                    wrong.append(f"{text}: {request.title}: {found}")
                if kv is not None:
                    kv.close()
    assert not wrong, "\n".join(wrong)


def test_names_of_streams_are_each_users_own(node):
    with Client(node) as root:
        for name in ("ann", "bob"):
            root.done("PUT", f"/settings/rbac/users/local/{name}", {"password": PASSWORD, "roles": "data_dcp_reader[orders]"})
    with kv_of(node, "ann") as ann, kv_of(node, "bob") as bob, kv_of(node, ADMINISTRATOR) as other:
        for one in (ann, bob, other):
            assert one.open("connector").status == SUCCESS
            assert one.stream(VB).status == SUCCESS
        assert [one.ask(NOOP).status for one in (ann, bob, other)] == [SUCCESS] * 3
        # A new one of the same user takes the place.
        with kv_of(node, "bob") as again:
            assert again.open("connector").status == SUCCESS
            while bob.next() is not None:
                pass
            assert [one.ask(NOOP).status for one in (ann, other, again)] == [SUCCESS] * 3
    with Client(node) as root:
        for name in ("ann", "bob"):
            root.done("DELETE", f"/settings/rbac/users/local/{name}")
