"""Replicas on other nodes, with real processes: what they have, what their acknowledgements are worth, and who takes over."""

import json
import struct
import threading

import pytest

from tests import dcp, servers
from tests import subdocument as sd
from tests.cluster import ALL, Cluster
from tests.dcp import Dcp
from tests.frames import (
    AMBIGUOUS, DELETE, GET, GET_REPLICA, IMPOSSIBLE, INVALID, NO_ACCESS, NOT_FOUND,
    NOT_MY_VBUCKET, RE_COMMIT, SET, SET_VBUCKET, SUCCESS, BinaryConnection, durability,
)
from tests.persistence.bucket import http, vbucket_of, wait_all_persisted, wait_until

KINDS = ("ephemeral", "persistent")
VB = 7


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def pair(kind, tmp_path):
    """n1 is active, n2 has its replicas."""
    with Cluster(tmp_path, 2, (f"default,{kind},128MiB",)) as cluster:
        cluster.assign(["n1", "n2"])
        yield cluster


@pytest.fixture
def three(kind, tmp_path):
    with Cluster(tmp_path, 3, (f"default,{kind},128MiB",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        yield cluster


class Client(BinaryConnection):
    def __init__(self, node, bucket="default"):
        super().__init__(node.kv, timeout_s=30)
        self.open_bucket(bucket)

    def set(self, key, value=b"value", level=None, timeout_ms=None, vb=VB, **named):
        framing = None if level is None else durability(level, timeout_ms)
        return self.store(key, value, vbucket=vb, framing=framing, **named)

    def get(self, key, vb=VB, opcode=GET):
        answer = self.ask(opcode, key, vbucket=vb)
        return answer.value if answer.status == SUCCESS else answer.status

    def subdocument(self, *arguments, **named):
        self.send(sd.single(*arguments, vbucket=VB, **named))
        return self.response()


def test_a_replica_has_what_the_active_has(pair):
    with Client(pair["n1"]) as client:
        for n in range(500):
            assert client.set(b"key-%d" % n, b"x" * (n * 7 % 900), flags=n).status == SUCCESS
        assert client.set(b"large", bytes(range(256)) * 400).status == SUCCESS
        for n in range(0, 500, 5):
            assert client.ask(DELETE, b"key-%d" % n, vbucket=VB).status == SUCCESS
        assert client.set(b"expires", expiry=1).status == SUCCESS
        assert client.subdocument(sd.DICT_UPSERT, b"key-1", b"attribute", b'"of a user"', sd.XATTR).status == SUCCESS
        pair.assert_equal("n1", "n2", [VB])
        wait_until(lambda: client.get(b"expires") == NOT_FOUND, "the expiry")
        # And what changes later.
        for n in range(1, 200, 3):
            assert client.set(b"key-%d" % n, b"later").status == SUCCESS
        pair.assert_equal("n1", "n2", [VB])
    assert len(pair.content("n2", VB)) > 390


@pytest.mark.parametrize("level", [None, 1])
def test_attributes_of_deleted_documents_are_copied(pair, level, kind):
    """Kept by a deletion, and of a document that is created deleted; also after the replica was promoted and restarted."""
    framing = None if level is None else durability(level)
    with Client(pair["n1"]) as client:
        flags = {"vbucket": VB, "framing": framing}
        attribute = (sd.DICT_UPSERT, b"_s.a", b'"x"', sd.XATTR | sd.MKDIR_P)
        client.send(sd.mutations(b"deleted", attribute, doc_flags=sd.MKDOC, **flags))
        assert client.response().status == SUCCESS
        assert client.ask(DELETE, b"deleted", **flags).status == SUCCESS
        client.send(sd.mutations(b"created", attribute, doc_flags=sd.MKDOC | sd.CREATE_AS_DELETED, **flags))
        assert client.response().status == sd.SUCCESS_DELETED
    pair.assert_equal("n1", "n2", [VB])
    pair.kill("n1")
    if kind == "persistent":
        wait_all_persisted(pair["n2"])
        pair.kill("n2")
        pair.restart("n2")
    pair.set_role("n2", (VB, VB), state="active", topology=[["n2"]], term=2)
    with Client(pair["n2"]) as client:
        for key in (b"deleted", b"created"):
            client.send(sd.lookups(key, (sd.GET, b"_s.a", sd.XATTR), doc_flags=sd.ACCESS_DELETED, vbucket=VB))
            answer = client.response()
            assert (answer.status, answer.value[6:]) == (sd.SUCCESS_DELETED, b'"x"'), key


def test_many_vbuckets_are_copied_on_one_connection(pair):
    with Client(pair["n1"]) as client:
        for n in range(3000):
            key = b"key-%d" % n
            assert client.set(key, b"v%d" % n, vb=vbucket_of(key)).status == SUCCESS
    pair.assert_equal("n1", "n2", range(0, 1024, 100))
    status, body = http(pair["n1"], "GET", "/pools/default/buckets/default/vbuckets")
    assert status == 200 and len(json.loads(body)) == 1024


def test_flush_all_and_collections_are_followed(pair):
    with Client(pair["n1"]) as client:
        for n in range(50):
            client.set(b"before-%d" % n)
        pair.wait_equal("n1", "n2")
        dcp.empty(pair["n1"], "default")
        client.set(b"after")
        pair.assert_equal("n1", "n2", [VB])
        assert list(pair.content("n2", VB)) == [b"\0after"]
    path = "/pools/default/buckets/default/scopes"
    assert http(pair["n1"], "POST", path, "name=s")[0] == 200
    status, body = http(pair["n1"], "POST", f"{path}/s/collections", "name=c&maxTTL=100")
    assert status == 200, body
    manifest = lambda name: json.loads(http(pair[name], "GET", path)[1])
    wait_until(lambda: manifest("n1") == manifest("n2"), "the manifest")
    assert http(pair["n1"], "DELETE", f"{path}/s/collections/c")[0] == 200
    wait_until(lambda: manifest("n1") == manifest("n2"), "the manifest without the collection")


def test_whoever_is_active_is_in_the_map_by_whatever_name(pair):
    shown = lambda name: json.loads(http(pair[name], "GET", "/pools/default/b/default")[1])["vBucketServerMap"]["vBucketMap"][VB]
    pair.set_role("n1", (VB, VB), topology=[["us", "absent"]])
    assert shown("n1") == [0, -1]
    pair.set_role("n1", (VB, VB), topology=[["n2", "n1"]])
    assert shown("n1") == [0, -1] and shown("n2") == [1, 0]


def test_a_replica_serves_reads_of_replicas_only(pair):
    with Client(pair["n1"]) as client, Client(pair["n2"]) as replica:
        assert client.set(b"key", b'{"a":1}').status == SUCCESS
        pair.wait_equal("n1", "n2")
        assert replica.get(b"key", opcode=GET_REPLICA) == b'{"a":1}'
        assert replica.get(b"none", opcode=GET_REPLICA) == NOT_FOUND
        for opcode in (GET, SET, DELETE):
            extras = bytes(8) if opcode == SET else b""
            answer = replica.ask(opcode, b"key", extras=extras, vbucket=VB)
            assert answer.status == NOT_MY_VBUCKET
        map_of = json.loads(answer.value)["vBucketServerMap"]
        assert map_of["numReplicas"] == 1 and map_of["vBucketMap"][VB] == [1, 0], "it says who is"
        assert client.get(b"key", opcode=GET_REPLICA) == NOT_MY_VBUCKET
        assert replica.subdocument(sd.GET, b"key", b"a").status == NOT_MY_VBUCKET
        assert replica.subdocument(sd.GET, b"key", b"a", doc_flags=sd.REPLICA_READ).value == b"1"


def test_a_durable_write_is_on_the_replica(pair, kind):
    with Client(pair["n1"]) as client:
        for n, level in enumerate((1, 2, 3) * 10 if kind == "persistent" else (1,) * 30):
            assert client.set(b"key-%d" % n, b"durable", level).status == SUCCESS
        # What was acknowledged is there, whatever happens now.
        pair.kill("n1")
        pair.set_role("n2", state="active", topology=[["n2", "n1"]], term=2)
    with Client(pair["n2"]) as client:
        for n in range(30):
            # The last may be prepared only: alone it is no majority of two, and what was before is shown to nobody.
            assert client.get(b"key-%d" % n) in (b"durable", RE_COMMIT), n
        assert client.set(b"more", level=1, timeout_ms=300).status == AMBIGUOUS
        assert client.set(b"plain").status == SUCCESS
        pair.restart("n1")
        pair.set_role("n1", state="replica", source="n2", topology=[["n2", "n1"]], term=2)
        wait_until(lambda: all(client.get(b"key-%d" % n) == b"durable" for n in range(30)), "the commits")


def test_without_its_replica_a_write_is_ambiguous_and_done_later(pair):
    with Client(pair["n1"]) as client:
        assert client.set(b"before", level=1).status == SUCCESS
        pair.pause("n2")
        assert client.set(b"key", b"new", level=1, timeout_ms=300).status == AMBIGUOUS
        pair.go_on("n2")
        assert client.set(b"after", level=1).status == SUCCESS
        pair.assert_equal("n1", "n2", [VB])


def test_two_of_three_are_enough(three, kind):
    level = 3 if kind == "persistent" else 1
    with Client(three["n1"]) as client:
        assert client.set(b"all", level=level).status == SUCCESS
        three.kill("n3")
        for n in range(20):
            assert client.set(b"two-%d" % n, level=level).status == SUCCESS
        three.pause("n2")
        assert client.set(b"one", level=level, timeout_ms=300).status == AMBIGUOUS
        three.go_on("n2")
        assert client.set(b"two again", level=level).status == SUCCESS
        three.restart("n3")
        if kind == "ephemeral":
            three.set_role("n3", state="replica", source="n1", topology=[["n1", "n2", "n3"]], term=1)
        three.assert_equal("n1", "n3", [VB])


def test_a_restarted_replica_goes_on(pair, kind):
    with Client(pair["n1"]) as client:
        for n in range(100):
            client.set(b"first-%d" % n)
        pair.wait_equal("n1", "n2")
        pair.kill("n2")
        for n in range(100):
            client.set(b"second-%d" % n)
        pair.restart("n2")
        if kind == "ephemeral":
            pair.set_role("n2", state="replica", source="n1", topology=[["n1", "n2"]], term=1)
        assert pair.role("n2", VB)["source"] == "n1"
        pair.assert_equal("n1", "n2", [VB])
        assert client.set(b"durable", level=1).status == SUCCESS


@pytest.mark.parametrize("kind", ["persistent"], indirect=True)
def test_an_active_that_was_killed_waits_for_a_decision(pair):
    with Client(pair["n1"]) as client:
        assert client.set(b"key", level=1).status == SUCCESS
    # Stopped in order it has everything.
    assert pair["n1"].stop() == 0
    pair.restart("n1")
    assert pair.role("n1", VB)["state"] == "active"
    with Client(pair["n1"]) as client:
        assert client.set(b"more", level=1).status == SUCCESS
    pair.kill("n1")
    pair.restart("n1")
    assert pair.role("n1", VB)["state"] == "pending"
    wait_until(lambda: "until it is said who is active" in pair["n1"].log(), "a line in the log")
    with Client(pair["n1"]) as client:
        assert client.get(b"key") == NOT_MY_VBUCKET
    pair.set_role("n2", state="active", topology=[["n2", "n1"]], term=2)
    pair.set_role("n1", state="replica", source="n2", topology=[["n2", "n1"]], term=2)
    # What n2 had only prepared is committed once n1 has it.
    wait_until(lambda: {b"\0key", b"\0more"} <= set(pair.content("n1", VB)), "the write that was acknowledged")
    pair.assert_equal("n2", "n1", [VB])


def test_whoever_has_another_history_begins_again(pair):
    with Client(pair["n1"]) as client:
        client.set(b"common", level=1)
        pair.wait_equal("n1", "n2")
        pair.set_role("n2", source="")
        for n in range(10):
            client.set(b"lost-%d" % n)
        # Promoted without them, it goes on elsewhere.
        pair.pause("n1")
        pair.set_role("n2", state="active", topology=[["n2", "n1"]], term=2)
        with Client(pair["n2"]) as other:
            for n in range(5):
                assert other.set(b"new-%d" % n).status == SUCCESS
            pair.go_on("n1")
            pair.set_role("n1", state="replica", source="n2", topology=[["n2", "n1"]], term=2)
            pair.assert_equal("n2", "n1", [VB])
            assert set(pair.content("n1", VB)) == {b"\0common", *(b"\0new-%d" % n for n in range(5))}
            assert other.set(b"durable", level=1).status == SUCCESS


def test_an_old_active_completes_no_durable_write(three):
    with Client(three["n1"]) as old:
        assert old.set(b"before", level=1).status == SUCCESS
        # The others have promised a higher term; nobody has told n1.
        for name, role in (("n2", {"state": "active"}), ("n3", {"state": "replica", "source": "n2"})):
            three.set_role(name, topology=[["n2", "n3", "n1"]], term=2, **role)
        assert old.set(b"key", b"old", level=1, timeout_ms=500).status == AMBIGUOUS
        with Client(three["n2"]) as new:
            assert new.set(b"key", b"new", level=1).status == SUCCESS
            three.set_role("n1", state="replica", source="n2", topology=[["n2", "n3", "n1"]], term=2)
            three.assert_equal("n2", "n1", [VB])
            three.assert_equal("n2", "n3", [VB])
            assert new.get(b"key") == b"new"


def test_a_term_is_not_lowered_and_outlives_a_restart(pair, kind):
    pair.set_role("n2", (VB, VB), term=9)
    body = json.loads(pair.set_role("n2", (VB, VB), term=8, expect=409))
    assert "term 8 is lower than 9" in body["errors"]["term"], body
    with Client(pair["n2"]) as client:
        answer = client.ask(SET_VBUCKET, value=b'{"term":8}', extras=bytes([2]), vbucket=VB)
        assert answer.status == dcp.ERANGE
        assert client.ask(SET_VBUCKET, value=b'{"term":10}', extras=bytes([2]), vbucket=VB).status == SUCCESS
    if kind == "persistent":
        pair.kill("n2")
        pair.restart("n2")
        assert pair.role("n2", VB)["term"] == 10
    # The active is of a lower term: it gives nothing.
    with Client(pair["n1"]) as client:
        assert client.set(b"key").status == SUCCESS
        assert client.set(b"durable", level=1, timeout_ms=300).status == AMBIGUOUS
        assert client.set(b"durable", level=1, timeout_ms=300, vb=VB + 1).status == SUCCESS
        assert pair.content("n2", VB) == {}
        # Without the state it would promise not to be the active.
        pair.set_role("n1", (VB, VB), state="active", term=10)
        assert client.set(b"more", level=1).status == SUCCESS
        pair.assert_equal("n1", "n2", [VB])


def test_a_replica_learns_a_higher_term_from_its_source(pair):
    pair.set_role("n1", (VB, VB), term=5)
    assert pair.role("n1", VB)["state"] == "pending"
    pair.set_role("n1", (VB, VB), state="active")
    with Client(pair["n1"]) as client:
        assert client.set(b"durable", level=1).status == SUCCESS
    assert pair.role("n2", VB)["term"] == 5


def test_a_take_over_loses_and_doubles_nothing(pair):
    """A counter is raised by one client all the time, first on the one node and then on the other."""
    stop, numbers = threading.Event(), []

    def count():
        clients = {name: Client(pair[name]) for name in ("n1", "n2")}
        at = "n1"
        while not stop.is_set():
            answer = clients[at].ask(0x05, b"counter", extras=struct.pack(">QQI", 1, 1, 0), vbucket=VB)
            if answer.status == SUCCESS:
                numbers.append(int.from_bytes(answer.value))
            else:
                assert answer.status == NOT_MY_VBUCKET, answer
                at = "n2" if at == "n1" else "n1"
        for client in clients.values():
            client.close()

    thread = threading.Thread(target=count)
    thread.start()
    try:
        term, active, other = 1, "n1", "n2"
        for _ in range(6):
            before = len(numbers)
            wait_until(lambda: len(numbers) > before + 20, "some counting")
            pair.take_over(other, active, VB, [[other, active]])
            term += 1
            assert pair.role(other, VB)["term"] == term
            active, other = other, active
    finally:
        stop.set()
        thread.join()
    assert numbers == list(range(1, len(numbers) + 1))
    pair.assert_equal(active, other, [VB])


def test_prepares_that_are_left_are_committed_by_the_new_active(three):
    with Client(three["n1"]) as client:
        three.pause("n3")
        three.set_role("n2", topology=[["n1", "n2", "n3"]])
        # n2 has the prepare; before its acknowledgement counts, the active is gone.
        assert client.set(b"key", b"durable", level=1).status == SUCCESS
        three.kill("n1")
        three.go_on("n3")
        three.set_role("n2", state="active", topology=[["n2", "n3", "n1"]], term=2)
        three.set_role("n3", state="replica", source="n2", topology=[["n2", "n3", "n1"]], term=2)
    with Client(three["n2"]) as client:
        wait_until(lambda: client.get(b"key") == b"durable", "the commit")
        three.assert_equal("n2", "n3", [VB])
        assert client.set(b"key", b"again", level=1).status == SUCCESS


def test_roles_that_contradict_themselves_are_refused(pair):
    for role, field in [
        ({"state": "active", "source": "n2"}, "source"),
        ({"state": "replica", "takeover": True}, "takeover"),
    ]:
        assert field in json.loads(pair.set_role("n1", (VB, VB), expect=400, **role))["errors"]
    for form, field in [("state=none", "state"), ("term=x", "term"), ("topology=[[]]", "topology"), ("colour=red", "_"), ("first=1&last=0", "last"), ("last=9999", "last")]:
        status, body = http(pair["n1"], "POST", "/pools/default/buckets/default/vbuckets", form)
        assert status == 400 and field in json.loads(body)["errors"], (form, body)
    with Client(pair["n1"]) as client:
        for value in (b"[]", b'{"source":7}', b'{"term":-1}', b'{"colour":1}'):
            assert client.ask(SET_VBUCKET, value=value, extras=bytes([1]), vbucket=VB).status == INVALID, value


def test_a_source_that_is_not_there_is_tried_again(tmp_path):
    with Cluster(tmp_path, 2) as cluster:
        cluster.kill("n1")
        cluster.set_role("n2", state="replica", source="n1", term=1)
        wait_until(lambda: "cannot connect to a node" in cluster["n2"].log(), "a line in the log")
        cluster.start("n1")
        cluster.set_role("n1", state="active", topology=[["n1", "n2"]], term=1)
        with Client(cluster["n1"]) as client:
            assert client.set(b"key", level=1).status == SUCCESS
        cluster.set_role("n2", state="replica", source="nowhere")
        wait_until(lambda: "nowhere" in cluster["n2"].log(), "the name in the log")


def test_a_bucket_that_is_not_there_and_a_wrong_password_are_told(tmp_path):
    password = tmp_path / "password"
    password.write_text("wrong\n")
    config = f"[replication]\nnode = 'n9'\nuser = 'Administrator'\npassword_file = '{password}'\n"
    with servers.Dormouse(buckets=("default,ephemeral,64MiB", "other,ephemeral,64MiB")) as source, servers.Dormouse(config=config) as node:
        address = f"{source.kv[0]}:{source.kv[1]}"
        assert http(node, "POST", "/pools/default/buckets/default/vbuckets/1", f"state=replica&source={address}")[0] == 200
        wait_until(lambda: "stopped copying from a node" in node.log(), "the refusal")
        assert "AUTH_ERROR" in node.log() or "0x20" in node.log(), node.log()


def test_a_bucket_administrator_cannot_have_the_node_log_in_elsewhere(pair):
    roles = {"password": "a password", "roles": "bucket_admin[default]"}
    assert http(pair["n2"], "PUT", "/settings/rbac/users/local/eve", roles)[0] == 200
    path, login = f"/pools/default/buckets/default/vbuckets/{VB}", "eve:a password"
    status, body = http(pair["n2"], "POST", path, "source=127.0.0.1:9", login=login)
    assert status == 403 and json.loads(body)["permissions"] == ["cluster.admin!all"], body
    assert http(pair["n2"], "POST", path[: path.rindex("/")], "source=127.0.0.1:9", login=login)[0] == 403
    assert pair.role("n2", VB)["source"] == "n1"
    with BinaryConnection(pair["n2"].kv) as eve:
        eve.open_bucket(user="eve", password="a password")
        assert eve.ask(SET_VBUCKET, value=b'{"source":"127.0.0.1:9"}', extras=bytes([2]), vbucket=VB).status == NO_ACCESS
        assert eve.ask(SET_VBUCKET, value=b'{"source":"n1"}', extras=bytes([2]), vbucket=VB).status == SUCCESS
    assert http(pair["n2"], "POST", path, "source=n1", login=login)[0] == 200


def test_a_reader_cannot_take_the_place_of_a_replica(pair):
    roles = {"password": "a password", "roles": "data_dcp_reader[default]"}
    assert http(pair["n1"], "PUT", "/settings/rbac/users/local/eve", roles)[0] == 200
    with Client(pair["n1"]) as client, BinaryConnection(pair["n1"].kv) as eve:
        assert client.set(b"before", level=1).status == SUCCESS
        eve.open_bucket(user="eve", password="a password")
        extras = struct.pack(">II", 0, dcp.PRODUCER)
        assert eve.ask(dcp.OPEN, b"replication:n1->n2:default", extras=extras).status == NO_ACCESS
        assert eve.ask(dcp.OPEN, b"eve", extras=extras).status == SUCCESS
        for name, value in (("enable_noop", "true"), ("enable_sync_writes", "true"), ("consumer_name", "n2")):
            assert eve.ask(dcp.CONTROL, name.encode(), value.encode()).status == SUCCESS
        request = struct.pack(">IIQQQQQ", 0, 0, 0, dcp.FOREVER, 0, 0, 0)
        eve.ask(dcp.STREAM_REQ, value=b'{"term":1}', extras=request, vbucket=VB)
        # What n2 has acknowledged counts still, and its connection is the same.
        assert client.set(b"after", level=1).status == SUCCESS
        assert "stopped copying" not in pair["n2"].log()


def test_streams_of_other_terms_are_refused(pair):
    with Dcp(pair["n1"].kv, features=dcp.FEATURES) as one:
        assert one.stream(VB, term=1).status == SUCCESS
        assert one.close_stream(VB).status == SUCCESS
        for term in (0, 2):
            answer = one.stream(VB, term=term)
            assert answer.status == dcp.ERANGE and json.loads(answer.value)["term"] == 1
        assert one.stream(VB, term="x").status == INVALID
        assert one.stream(VB, flags=dcp.TAKEOVER).status not in (SUCCESS, NOT_MY_VBUCKET)
        # When the term rises, the stream ends.
        assert one.stream(VB, term=1).status == SUCCESS
        pair.set_role("n1", (VB, VB), term=2)
        while (message := one.next()).opcode != dcp.STREAM_END:
            pass
        assert message.numbers == (dcp.STATE_CHANGED,)
    with Dcp(pair["n2"].kv) as one:
        assert one.stream(VB, term=1).status == NOT_MY_VBUCKET, "a replica is no source"
