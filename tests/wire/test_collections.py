"""Scopes and collections: changes over HTTP, keys of named collections over the wire, what a drop leaves, and what a restart keeps."""

import json
import struct
import time

import pytest

from tests import servers
from tests import subdocument as sd
from tests.frames import (
    APPEND, DELETE, FEATURE_COLLECTIONS, FEATURE_JSON, FEATURE_SELECT_BUCKET, FEATURE_SYNC_REPLICATION, FEATURE_ALT_REQUEST, FEATURE_XERROR, GET, GET_META, INCREMENT, INVALID, MANIFEST,
    NOT_FOUND, SET, STAT, SUCCESS, TOO_BIG, TOUCH, UNKNOWN_COLLECTION, BinaryConnection, durability, request,
)
from tests.persistence.bucket import http, vbucket_of, wait_until, wait_warm

COLLECTION_ID, SCOPE_ID = 0xBB, 0xBC
UNKNOWN_SCOPE, NO_BUCKET = 0x8C, 0x08
FEATURES = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_COLLECTIONS, FEATURE_JSON, FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION)
BUCKETS = ("default,ephemeral,256MiB", "p,persistent,256MiB")


def leb(number):
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


class Client(BinaryConnection):
    def __init__(self, address, bucket="default", features=FEATURES):
        super().__init__(address)
        self.open_bucket(bucket, features)

    def on(self, collection, opcode, key, value=b"", extras=b"", **named):
        return self.ask(opcode, leb(collection) + key, value, extras, vbucket=vbucket_of(key), **named)

    def put(self, collection, key, value, expiry=0, **named):
        return self.on(collection, SET, key, value, struct.pack(">II", 0, expiry), **named)

    def id(self, path):
        done = self.ask(COLLECTION_ID, b"", path.encode())
        assert done.status == SUCCESS, done
        return struct.unpack(">QI", done.extras)


class Manager:
    """Changes scopes and collections of one bucket over HTTP."""

    def __init__(self, node, bucket):
        self.node, self.path = node, f"/pools/default/buckets/{bucket}/scopes"

    def ask(self, method, path="", form=None):
        return http(self.node, method, self.path + path, form)

    def do(self, method, path="", form=None):
        status, body = self.ask(method, path, form)
        assert status == 200, (status, body)
        return int(json.loads(body)["uid"], 16)

    def manifest(self):
        status, body = self.ask("GET")
        assert status == 200
        return json.loads(body)


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(buckets=BUCKETS) as server:
        yield server
        assert server.alive(), f"the node died\n{server.log()}"


@pytest.fixture(params=["default", "p"])
def bucket(request, node):
    yield request.param
    manager = Manager(node, request.param)
    for scope in manager.manifest()["scopes"]:
        if scope["name"] not in ("_default", "_system"):
            manager.do("DELETE", f"/{scope['name']}")
        elif scope["name"] == "_default":
            for collection in scope["collections"][1:]:
                manager.do("DELETE", f"/_default/collections/{collection['name']}")


@pytest.fixture
def client(node, bucket):
    with Client(node.kv, bucket) as one:
        yield one


@pytest.fixture
def manager(node, bucket):
    return Manager(node, bucket)


def items(node, bucket):
    return json.loads(http(node, "GET", f"/pools/default/buckets/{bucket}")[1])["basicStats"]["itemCount"]


def test_each_change_has_a_new_uid_and_ids_in_hexadecimal(node, bucket, client, manager):
    before = int(manager.manifest()["uid"], 16)
    assert manager.do("POST", "", "name=s") == before + 1
    assert manager.do("POST", "/s/collections", "name=c&maxTTL=100&history=true") == before + 2
    assert manager.do("POST", "/_default/collections", "name=d&maxTTL=-1") == before + 3
    assert manager.do("PATCH", "/s/collections/c", "maxTTL=7&history=false") == before + 4
    assert manager.do("PATCH", "/s/collections/c", "maxTTL=7") == before + 4, "nothing has changed"
    manifest = manager.manifest()
    default, system, scope = manifest["scopes"]
    assert system == {"name": "_system", "uid": "8", "collections": [{"name": "_mobile", "uid": "8", "maxTTL": 0, "history": False}, {"name": "_query", "uid": "9", "maxTTL": 0, "history": False}]}
    assert default["uid"] == "0" and [one["name"] for one in default["collections"]] == ["_default", "d"] and default["collections"][1]["maxTTL"] == -1
    (collection,) = scope["collections"]
    assert (collection["name"], collection["maxTTL"], collection["history"]) == ("c", 7, False)
    assert int(collection["uid"], 16) >= 8 and int(scope["uid"], 16) >= 8
    over_kv = client.ask(MANIFEST)
    assert over_kv.status == SUCCESS and json.loads(over_kv.value) == manifest
    assert client.id("s.c") == (before + 4, int(collection["uid"], 16))
    scope_id = client.ask(SCOPE_ID, b"", b"s")
    assert struct.unpack(">QI", scope_id.extras) == (before + 4, int(scope["uid"], 16))
    terse = json.loads(http(node, "GET", f"/pools/default/b/{bucket}")[1])
    assert int(terse["collectionsManifestUid"], 16) == before + 4
    assert manager.ask("POST", f"/@ensureManifest/{before + 4:x}")[0] == 200
    wanted = {"scopes": [{"name": "t", "collections": [{"name": "x"}, {"name": "y", "maxTTL": 3}]}, {"name": "s", "collections": []}]}
    status, body = http(node, "PUT", manager.path, json.dumps(wanted), content_type="application/json")
    assert (status, int(json.loads(body)["uid"], 16)) == (200, before + 5)
    names = {scope["name"]: [one["name"] for one in scope["collections"]] for scope in manager.manifest()["scopes"]}
    assert names == {"_default": ["_default"], "_system": ["_mobile", "_query"], "s": [], "t": ["x", "y"]}


def test_the_system_scope_is_there_and_stays(client, manager):
    for collection in (8, 9):
        assert client.put(collection, b"doc", b"%d" % collection).status == SUCCESS
        assert client.on(collection, GET, b"doc").value == b"%d" % collection
    assert client.on(0, GET, b"doc").status == NOT_FOUND
    assert client.id("_system._mobile")[1] == 8 and client.id("_system._query")[1] == 9
    for method, path, form in [
        ("DELETE", "/_system", None), ("DELETE", "/_system/collections/_mobile", None), ("POST", "/_system/collections", "name=c"), ("PATCH", "/_system/collections/_query", "maxTTL=5"),
    ]:
        status, body = manager.ask(method, path, form)
        assert status == 400 and "_system" in body, (method, path, status, body)
    for collection in (8, 9):
        assert client.on(collection, DELETE, b"doc").status == SUCCESS


def test_refused_changes_name_what_is_wrong(client, manager):
    manager.do("POST", "", "name=s")
    manager.do("POST", "/s/collections", "name=c")
    before = manager.manifest()
    for method, path, form, status, text in [
        ("POST", "", "name=s", 400, 'Scope with name \\"s\\" already exists'),
        ("POST", "", "name=_s", 400, "First character must not be _ or %"),
        ("POST", "", "name=" + "x" * 252, 400, "Length"),
        ("POST", "", "name=a%20b", 400, "Can only contain"),
        ("POST", "", "", 400, "must be supplied"),
        ("POST", "/s/collections", "name=c", 400, 'Collection with name \\"c\\" in scope \\"s\\" already exists'),
        ("POST", "/t/collections", "name=c", 404, 'Scope with name \\"t\\" is not found'),
        ("POST", "/s/collections", "name=d&maxTTL=-2", 400, "maxTTL"),
        ("POST", "/s/collections", "name=d&maxTTL=soon", 400, "maxTTL"),
        ("POST", "/s/collections", "name=d&colour=red", 400, "colour"),
        ("PATCH", "/s/collections/d", "maxTTL=5", 404, 'Collection with name \\"d\\" in scope \\"s\\" is not found'),
        ("DELETE", "/s/collections/d", None, 404, "is not found"),
        ("DELETE", "/t", None, 404, "is not found"),
        ("DELETE", "/_default", None, 400, "not allowed"),
        ("DELETE", "/_default/collections/_default", None, 400, "not allowed"),
    ]:
        answer = manager.ask(method, path, form)
        assert answer[0] == status and text in str(answer[1]), (method, path, form, answer)
    for scopes, text in [
        ([{"name": "a"}, {"name": "a"}], "listed twice"),
        ([{"name": "a", "collections": [{"name": "c"}, {"name": "c", "maxTTL": 9}]}], "listed twice"),
        ([{"collections": []}], "must have a name"),
    ]:
        status, body = http(manager.node, "PUT", manager.path, json.dumps({"scopes": scopes}), content_type="application/json")
        assert status == 400 and text in body, (scopes, body)
    assert manager.manifest() == before
    assert client.ask(COLLECTION_ID, b"", b"s.nope").status == UNKNOWN_COLLECTION
    assert client.ask(COLLECTION_ID, b"", b"nope.c").status == UNKNOWN_SCOPE
    assert client.ask(COLLECTION_ID, b"", b"nope").status == INVALID
    assert client.ask(SCOPE_ID, b"", b"nope").status == UNKNOWN_SCOPE


def test_one_key_is_a_document_of_its_own_in_each_collection(node, bucket, client, manager):
    manager.do("POST", "", "name=s")
    for name in ("a", "b"):
        manager.do("POST", "/s/collections", f"name={name}")
    ids = [0, client.id("s.a")[1], client.id("s.b")[1]]
    for number in ids:
        assert client.put(number, b"key", b"%d" % number).status == SUCCESS
    assert [client.on(number, GET, b"key").value for number in ids] == [b"%d" % number for number in ids]
    assert client.on(ids[1], APPEND, b"key", b"!").status == SUCCESS
    assert client.on(ids[2], INCREMENT, b"key", extras=struct.pack(">QQI", 5, 0, 0)).value == struct.pack(">Q", ids[2] + 5)
    assert client.on(ids[2], TOUCH, b"key", extras=struct.pack(">I", 100)).status == SUCCESS
    assert client.on(ids[2], GET_META, b"key").status == SUCCESS
    client.send(sd.mutations(leb(ids[1]) + b"doc", (sd.DICT_ADD, b"a", b"1"), doc_flags=sd.ADD, vbucket=vbucket_of(b"doc")))
    assert client.response().status == SUCCESS and client.on(ids[1], GET, b"doc").value == b'{"a":1}'
    assert client.on(ids[1], DELETE, b"key").status == SUCCESS
    assert [client.on(number, GET, b"key").status for number in ids] == [SUCCESS, NOT_FOUND, SUCCESS]
    assert client.put(ids[1], b"k" * 246, b"v").status == SUCCESS
    assert client.put(ids[1], b"k" * 247, b"v").status == TOO_BIG
    assert client.put(0, b"k" * 250, b"v").status == SUCCESS
    with Client(node.kv, bucket, features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET)) as plain:
        assert plain.ask(GET, b"key", vbucket=vbucket_of(b"key")).value == b"0"


def test_an_unknown_collection_is_named_with_the_manifest(client, manager):
    uid = int(manager.manifest()["uid"], 16)
    for number in (1, 7, 0x1234, 2**32 - 1):
        for done in (client.on(number, GET, b"k"), client.put(number, b"k", b"v"), client.put(number, b"k", b"v" * 100_000), client.on(number, DELETE, b"k"), client.on(number, GET_META, b"k"),
                     client.on(number, sd.GET, b"k", b"a", b"\0\x01\0"), client.on(number, sd.COUNTER, b"k", b"a1", b"\0\x01\0")):
            assert done.status == UNKNOWN_COLLECTION, done
            assert int(json.loads(done.value)["manifest_uid"], 16) == uid
    assert client.lives()


def test_a_dropped_collection_is_gone_at_once_and_its_memory_soon(node, bucket, client, manager):
    manager.do("POST", "", "name=s")
    manager.do("POST", "/s/collections", "name=c")
    manager.do("POST", "/s/collections", "name=stays")
    number, stays = client.id("s.c")[1], client.id("s.stays")[1]
    before = items(node, bucket)
    batch = b"".join(request(SET, leb(n) + b"%d" % k, b"x" * 200, struct.pack(">II", 0, 0), vbucket=vbucket_of(b"%d" % k)) for k in range(10_000) for n in (number, stays))
    client.send(batch)
    assert all(client.response().status == SUCCESS for _ in range(20_000))
    assert items(node, bucket) == before + 20_000
    manager.do("DELETE", "/s/collections/c")
    assert client.on(number, GET, b"1").status == UNKNOWN_COLLECTION
    assert client.put(number, b"1", b"late").status == UNKNOWN_COLLECTION
    wait_until(lambda: items(node, bucket) == before + 10_000, "the end of the drop")
    manager.do("POST", "/s/collections", "name=c")
    again = client.id("s.c")[1]
    assert again != number and client.on(again, GET, b"1").status == NOT_FOUND
    assert client.on(stays, GET, b"9999").value == b"x" * 200
    status, body = http(node, "POST", f"/pools/default/buckets/{bucket}/audit")
    assert status == 200, body


def test_a_maximum_expiry_is_enforced(client, manager):
    now = int(time.time())
    manager.do("POST", "", "name=s")
    manager.do("POST", "/s/collections", "name=short&maxTTL=100")
    manager.do("POST", "/s/collections", "name=never&maxTTL=-1")
    short, never = client.id("s.short")[1], client.id("s.never")[1]

    def expiry(number, key):
        return struct.unpack(">I", client.on(number, GET_META, key).extras[8:12])[0]

    client.put(short, b"none", b"v")
    client.put(short, b"longer", b"v", expiry=5000)
    client.put(short, b"shorter", b"v", expiry=50)
    client.put(never, b"none", b"v")
    client.put(0, b"none", b"v")
    assert abs(expiry(short, b"none") - now - 100) <= 3 and abs(expiry(short, b"longer") - now - 100) <= 3 and abs(expiry(short, b"shorter") - now - 50) <= 3
    assert expiry(never, b"none") == 0 and expiry(0, b"none") == 0
    client.put(short, b"none", b"v2")
    assert abs(expiry(short, b"none") - now - 100) <= 3
    client.on(short, TOUCH, b"shorter", extras=struct.pack(">I", 0))
    assert abs(expiry(short, b"shorter") - now - 100) <= 3
    client.on(short, sd.DICT_UPSERT, b"sub", b"a1", b"\0\x01\0\x01")
    assert abs(expiry(short, b"sub") - now - 100) <= 3
    client.on(short, INCREMENT, b"count", extras=struct.pack(">QQI", 1, 1, 0))
    assert abs(expiry(short, b"count") - now - 100) <= 3


def test_collections_and_their_documents_survive_a_kill_and_dropped_ones_do_not_come_back(tmp_path):
    with servers.Dormouse(buckets=BUCKETS, home=tmp_path) as node:
        manager = Manager(node, "p")
        manager.do("POST", "", "name=s")
        for name in ("kept", "dropped"):
            manager.do("POST", "/s/collections", f"name={name}&maxTTL=100000")
        with Client(node.kv, "p") as client:
            kept, dropped = client.id("s.kept")[1], client.id("s.dropped")[1]
            for number in (kept, dropped):
                for k in range(300):
                    assert client.put(number, b"%d" % k, b"%d" % number, framing=durability(3, 9000) if k >= 290 else None).status == SUCCESS
        manager.do("DELETE", "/s/collections/dropped")
        manifest = manager.manifest()
        node.kill()
    for _ in range(2):
        with servers.Dormouse(buckets=BUCKETS, home=tmp_path) as node:
            assert Manager(node, "p").manifest() == manifest
            wait_warm(node)
            with Client(node.kv, "p") as client:
                assert client.id("s.kept")[1] == kept
                assert all(client.on(kept, GET, b"%d" % k).value == b"%d" % kept for k in range(290, 300))
                assert client.on(dropped, GET, b"299").status == UNKNOWN_COLLECTION
                assert items(node, "p") <= 300
                status, body = http(node, "POST", "/pools/default/buckets/p/audit")
                assert status == 200, body


def test_values_of_a_collection_come_back_from_disk(tmp_path):
    with servers.Dormouse(buckets=("p,persistent,100MiB",), home=tmp_path) as node:
        Manager(node, "p").do("POST", "/_default/collections", "name=c")
        with Client(node.kv, "p") as client:
            number = client.id("_default.c")[1]
            count = 30_000
            for start in range(0, count, 1000):
                client.send(b"".join(request(SET, leb(number) + b"%d" % k, b"%d" % k * 1000, struct.pack(">II", 0, 0), vbucket=vbucket_of(b"%d" % k)) for k in range(start, start + 1000)))
                for k in range(start, start + 1000):
                    status = client.response().status
                    while status != SUCCESS:
                        time.sleep(0.02)
                        status = client.put(number, b"%d" % k, b"%d" % k * 1000).status
            assert all(client.on(number, GET, b"%d" % k).value == b"%d" % k * 1000 for k in range(0, count, 97))


def test_collections_of_an_ephemeral_bucket_survive_a_restart_and_end_with_it(tmp_path):
    buckets = ("default,ephemeral,256MiB",)
    with servers.Dormouse(buckets=buckets, home=tmp_path) as node:
        manager = Manager(node, "default")
        manager.do("POST", "", "name=s")
        manager.do("POST", "/s/collections", "name=c")
        manifest = manager.manifest()
        status, body = http(node, "POST", "/pools/default/buckets", "name=e&bucketType=ephemeral&ramQuota=100")
        assert status == 202, body
        Manager(node, "e").do("POST", "", "name=gone")
        node.kill()
    with servers.Dormouse(buckets=buckets, home=tmp_path) as node:
        assert Manager(node, "default").manifest() == manifest
        assert http(node, "POST", "/pools/default/buckets", "name=e&bucketType=ephemeral&ramQuota=100")[0] == 202
        assert [scope["name"] for scope in Manager(node, "e").manifest()["scopes"]] == ["_default", "_system"]


def test_statistics_of_each_collection(node, bucket, client, manager):
    manager.do("POST", "", "name=s")
    manager.do("POST", "/s/collections", "name=c")
    number = client.id("s.c")[1]
    for k in range(7):
        client.put(number, b"%d" % k, b"v")
    client.on(number, DELETE, b"0")
    seen = {}
    client.send(request(STAT, b"collections"))
    while (line := client.response()).key:
        seen[line.key.decode()] = line.value.decode()
    (items_line,) = [name for name in seen if name.endswith(f":{number:#x}:items")]
    assert seen[items_line] == "6" and seen[items_line.replace("items", "name")] == "c" and seen[items_line.replace("items", "scope_name")] == "s"


def test_1200_collections_cost_next_to_nothing(tmp_path):
    with servers.Dormouse(buckets=("default,ephemeral,256MiB", "p,persistent,256MiB"), home=tmp_path) as node:
        def resident():
            with open(f"/proc/{node.pid}/statm") as figures:
                return int(figures.read().split()[1]) * 4096

        before = resident()
        for bucket in ("default", "p"):
            wanted = {"scopes": [{"name": "s", "collections": [{"name": f"c{n}"} for n in range(1199)]}]}
            status, body = http(node, "PUT", Manager(node, bucket).path, json.dumps(wanted), content_type="application/json")
            assert status == 200, body
            status, body = Manager(node, bucket).ask("POST", "/s/collections", "name=more")
            assert status == 400 and "Maximum number" in body
        assert resident() - before < 3 * 1024 * 1024
        with Client(node.kv, "p") as client:
            number = client.id("s.c1198")[1]
            assert client.put(number, b"k", b"v").status == SUCCESS and client.on(number, GET, b"k").value == b"v"
