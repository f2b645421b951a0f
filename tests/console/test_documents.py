"""Keys and documents over HTTP: what is listed, shown, stored and refused, and to whom; prefixes; and what does not fit in memory."""

import base64
import concurrent.futures
import json
import os
import time
import urllib.parse

import pytest
from pymemcache.client.base import Client as Memcached

from tests import servers, subdocument
from tests.frames import FEATURE_SNAPPY, FEATURE_XATTR, FEATURE_XERROR, GET, GET_LOCKED, BinaryConnection
from tests.persistence.bucket import vbucket_of
from tests.snappy import compress
from tests.wire.test_roles import ADMINISTRATOR, PASSWORD, Client

POOL = "/pools/default/buckets"
ORDERS = f"{POOL}/orders/scopes/_default/collections/_default/docs"
NEW = f"{POOL}/orders/scopes/eu/collections/new/docs"
BUCKETS = ("orders,ephemeral,64MiB", "other,ephemeral,32MiB", "full,ephemeral,16MiB")
HOSTILE = [
    b"<script>alert(1)</script>", b"\x00\x01\n\r\t\x7f", b"\xff\xfe\x80", ("\U0001f980" * 62).encode(), b"a/b?c#d%e f+g&h=i", b".", b"..", b"'\"\\`$(x)",
    "\u202egnp.exe".encode(), b"%2e%2e", b" ", b"k/", b"x" * 250,
]


def encoded(key):
    return urllib.parse.quote(key, safe="")


class Documents:
    """A user's requests for documents of one collection."""

    def __init__(self, client, base=ORDERS):
        self.client, self.base = client, base

    def path(self, key):
        # Clients take these two for steps through the path.
        return f"{self.base}?key={encoded(key)}" if key in (b".", b"..") else f"{self.base}/{encoded(key)}"

    def get(self, key, **query):
        path = self.path(key)
        status, text = self.client.ask("GET", path + (f"?{urllib.parse.urlencode(query)}" if query else ""))
        return status, json.loads(text)

    def put(self, key, headers=(), **fields):
        return self.change("PUT", key, urllib.parse.urlencode(fields), dict(headers))

    def delete(self, key, headers=(), **fields):
        return self.change("DELETE", key, None, dict(headers), urllib.parse.urlencode(fields))

    def change(self, method, key, body, headers, query=""):
        path = self.path(key)
        connection = self.client.connection
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method, path + (f"?{query}" if query else ""), body, {**self.client.headers, **kind, **headers})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")

    def list(self, **query):
        status, text = self.client.ask("GET", f"{self.base}?{urllib.parse.urlencode(query)}")
        assert status == 200, text
        return json.loads(text)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    with servers.Dormouse("--user", ADMINISTRATOR, "--password-file", str(path), buckets=BUCKETS, memory="512MiB", ports={"memcached": "none"}) as server:
        with Client(server) as root:
            root.done("POST", f"{POOL}/orders/scopes", {"name": "eu"})
            for name, limit_s in (("new", 0), ("brief", 100)):
                root.done("POST", f"{POOL}/orders/scopes/eu/collections", {"name": name, "maxTTL": limit_s})
            for number, roles in enumerate(USERS):
                root.done("PUT", f"/settings/rbac/users/local/user{number}", {"roles": roles, "password": PASSWORD})
        yield server
        assert server.alive(), server.log()


@pytest.fixture
def root(node):
    with Client(node) as client:
        yield client


@pytest.fixture
def orders(root):
    return Documents(root)


@pytest.fixture
def kv(node):
    with BinaryConnection(node.kv) as connection:
        connection.open_bucket("orders", user=ADMINISTRATOR, password=PASSWORD)
        yield connection


# Looking and storing.


def test_what_is_stored_is_shown_and_served(orders, kv):
    status, stored = orders.put(b"k1", value='{"a": [1, 2]}', flags=7)
    assert status == 200
    answer = kv.ask(GET, b"k1", vbucket=vbucket_of(b"k1"))
    assert (answer.value, answer.extras, answer.cas) == (b'{"a": [1, 2]}', b"\0\0\0\7", int(stored["cas"]))
    status, shown = orders.get(b"k1")
    assert status == 200
    assert {name: shown[name] for name in ("id", "encoded", "value", "cas", "flags", "expiry", "seqno", "locked", "resident", "truncated")} == {
        "id": "k1", "encoded": "k1", "value": '{"a": [1, 2]}', "cas": stored["cas"], "flags": 7, "expiry": 0, "seqno": stored["seqno"],
        "locked": False, "resident": True, "truncated": False,
    }
    assert shown["datatype"] == {"json": True, "compressed": False, "xattrs": False}
    assert shown["valueBytes"] == shown["storedBytes"] == 13 < shown["itemBytes"] <= shown["allocatedBytes"]


def test_an_edit_keeps_flags_and_expiry_unless_told(orders):
    orders.put(b"k2", value="one", flags=9, ttl=1000)
    expiry = orders.get(b"k2")[1]["expiry"]
    assert abs(expiry - time.time() - 1000) < 30
    orders.put(b"k2", value="two")
    assert [orders.get(b"k2")[1][name] for name in ("value", "flags", "expiry")] == ["two", 9, expiry]
    orders.put(b"k2", value="three", flags=0, expiry=0)
    assert [orders.get(b"k2")[1][name] for name in ("value", "flags", "expiry")] == ["three", 0, 0]


def test_an_expiry_that_is_there_already_is_a_change_too(orders):
    """Whoever may write and not read does not learn by it which one that is."""
    _, first = orders.put(b"k2", value="one", expiry=4102444800)
    _, second = orders.put(b"k2", expiry=4102444800)
    assert second["cas"] != first["cas"] and int(second["seqno"]) == int(first["seqno"]) + 1


def test_the_expiry_alone_can_be_changed(orders):
    assert orders.put(b"none", ttl=5)[0] == 404
    _, before = orders.put(b"k3", value="kept", flags=5)
    status, after = orders.put(b"k3", ttl=1000)
    assert status == 200 and after["cas"] != before["cas"]
    shown = orders.get(b"k3")[1]
    assert (shown["value"], shown["flags"]) == ("kept", 5) and abs(shown["expiry"] - time.time() - 1000) < 30
    assert orders.put(b"k3", ttl=9, cas=before["cas"])[0] == 412
    # A time that is past ends it.
    assert orders.put(b"k3", expiry=1)[0] == 200
    assert orders.get(b"k3")[0] == 404


def test_nobody_overwrites_what_somebody_else_has_changed(orders, kv):
    _, first = orders.put(b"k4", value="first")
    kv.store(b"k4", b"theirs", vbucket=vbucket_of(b"k4"))
    for refused in (
        orders.put(b"k4", value="mine", cas=first["cas"]),
        orders.put(b"k4", {"If-Match": f'"{first["cas"]}"'}, value="mine"),
        orders.delete(b"k4", cas=first["cas"]),
        orders.delete(b"k4", {"If-Match": first["cas"]}),
        orders.put(b"k4", {"If-None-Match": "*"}, value="mine"),
    ):
        assert refused[0] == 412 and refused[1]["error"] == "exists", refused
    shown = orders.get(b"k4")[1]
    assert shown["value"] == "theirs"
    status, mine = orders.put(b"k4", {"If-Match": shown["cas"]}, value="mine")
    assert status == 200
    assert orders.delete(b"k4", cas=mine["cas"])[0] == 200
    assert orders.get(b"k4")[0] == 404
    assert [orders.put(b"k4", {"If-Match": "*"}, value="v")[0], orders.delete(b"k4")[0], orders.put(b"k4", value="v", cas=7)[0]] == [404] * 3
    assert orders.put(b"k4", {"If-None-Match": "*"}, value="v")[0] == 200


def test_of_writers_with_the_same_version_one_wins(node, orders):
    cas = orders.put(b"race", value="0")[1]["cas"]

    def attempt(number):
        with Client(node) as client:
            return Documents(client).put(b"race", value=str(number), cas=cas)[0]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(attempt, range(8))) == [200] + [412] * 7


def test_a_locked_document_is_shown_and_not_changed(orders, kv):
    orders.put(b"locked", value="v")
    lock = kv.ask(GET_LOCKED, b"locked", extras=b"\0\0\0\x1e", vbucket=vbucket_of(b"locked"))
    shown = orders.get(b"locked")[1]
    assert shown["locked"] and shown["value"] == "v" and shown["cas"] == str(2**64 - 1)
    for refused in (orders.put(b"locked", value="w"), orders.put(b"locked", ttl=9), orders.delete(b"locked"), orders.put(b"locked", value="w", cas=7)):
        assert refused[0] == 423 and refused[1]["error"] == "locked", refused
    assert orders.put(b"locked", value="w", cas=lock.cas)[0] == 200
    assert not orders.get(b"locked")[1]["locked"]


@pytest.mark.parametrize("key", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_keys_are_listed_shown_edited_and_deleted(orders, key):
    assert orders.put(key, value="one")[0] == 200
    status, shown = orders.get(key)
    assert status == 200 and shown["value"] == "one" and urllib.parse.unquote_to_bytes(shown["encoded"]) == key
    try:
        assert shown["id"].encode() == key
    except (AttributeError, UnicodeError):
        assert shown["id"] is None
    listed = orders.list(prefix=key)["keys"]
    assert urllib.parse.unquote_to_bytes(listed[0]["encoded"]) == key
    assert orders.put(key, value="two", cas=shown["cas"])[0] == 200
    assert orders.get(key)[1]["value"] == "two"
    assert orders.delete(key)[0] == 200 and orders.get(key)[0] == 404


@pytest.mark.parametrize("value", [b"\xff\x00\xfe", b"", "ä\0<b>".encode(), b"\xc3"], ids=range(4))
def test_values_are_any_bytes(orders, root, value):
    for body, kind in (
        ("value=" + urllib.parse.quote(value), "application/x-www-form-urlencoded"),
        (json.dumps({"base64": base64.b64encode(value).decode()}), "application/json"),
    ):
        assert root.ask("PUT", orders.path(b"bytes"), body, kind)[0] == 200
        shown = orders.get(b"bytes")[1]
        assert (shown["value"].encode() if "value" in shown else base64.b64decode(shown["base64"])) == value


def test_long_values_are_shown_in_part_and_cannot_be_stored(orders, kv):
    for key, value in ((b"long", b"x" * 200_000), (b"compressible", b"ab" * 50_000), (b"cut", "ä".encode() * 40_000), (b"random", os.urandom(100_000))):
        assert kv.store(key, value, vbucket=vbucket_of(key)).status == 0
        shown = orders.get(key)[1]
        assert shown["truncated"] and shown["valueBytes"] == len(value), shown
        part = shown["value"].encode() if "value" in shown else base64.b64decode(shown["base64"])
        assert value.startswith(part) and 65_534 <= len(part) <= 65_536
        whole = orders.get(key, bytes=1 << 20)[1]
        assert not whole["truncated"]
        assert (whole["value"].encode() if "value" in whole else base64.b64decode(whole["base64"])) == value
    assert orders.client.ask("PUT", orders.path(b"long"), "value=" + "x" * 70_000)[0] == 413
    assert orders.get(b"long")[1]["valueBytes"] == 200_000
    assert orders.put(b"long", value="y" * 65_000)[0] == 200


def test_compressed_values_are_shown_inflated(orders, root, kv):
    root.done("POST", f"{POOL}/orders", {"compressionMode": "active"})
    kv.hello(FEATURE_XERROR, FEATURE_SNAPPY)
    value = b'{"text": "' + b"abc" * 1000 + b'"}'
    kv.store(b"small", compress(value), datatype=2, vbucket=vbucket_of(b"small"))
    shown = orders.get(b"small")[1]
    assert shown["value"].encode() == value and shown["datatype"] == {"json": True, "compressed": True, "xattrs": False}
    assert (shown["storedBytes"], shown["valueBytes"]) == (len(compress(value)), len(value))


def test_looking_is_no_access(orders, root):
    orders.put(b"looked", value="v")
    before = json.loads(root.ask("GET", f"{POOL}/orders/stats")[1])
    for _ in range(3):
        orders.get(b"looked")
        orders.list()
    after = json.loads(root.ask("GET", f"{POOL}/orders/stats")[1])
    for name in ("cmd_get", "get_hits", "get_misses"):
        assert before["op"]["samples"].get(name) == after["op"]["samples"].get(name), name


# Lists.


def test_keys_come_in_order_page_by_page(root):
    documents = Documents(root, NEW)
    keys = [f"page-{number:04}" for number in range(250)]
    for key in keys:
        assert documents.put(key.encode(), value="v" * (len(key) + 1), ttl=1000)[0] == 200
    documents.put(b"other", value="v")
    found, after = [], {}
    for expected in (100, 100, 50):
        page = documents.list(prefix="page-", **after)
        assert page["complete"] and page["closedVBuckets"] == 0 and len(page["keys"]) == expected
        found += page["keys"]
        after = {"after": urllib.parse.unquote_to_bytes(page["next"])} if page["next"] else None
    assert after is None and [one["id"] for one in found] == keys
    assert found[0]["valueBytes"] == 10 and found[0]["resident"] and abs(found[0]["expiry"] - time.time() - 1000) < 60
    assert [one["id"] for one in documents.list(prefix="page-", limit=2, after="page-0007")["keys"]] == ["page-0008", "page-0009"]
    assert documents.list(prefix="nothing") == {"keys": [], "next": None, "complete": True, "visited": documents.list()["visited"], "closedVBuckets": 0, "items": 251}


def test_a_bounded_list_says_that_it_is_not_complete(root):
    documents = Documents(root, NEW)
    page = documents.list(visits=60)
    assert not page["complete"] and 0 < len(page["keys"]) <= 100 and page["visited"] < 251 <= page["items"]


def test_a_deletion_with_a_body_is_refused(orders):
    assert orders.put(b"with a body", value="v")[0] == 200
    status, answer = orders.change("DELETE", b"with a body", "cas=5", {})
    assert status == 400 and "If-Match" in answer["errors"]["_"]
    assert orders.get(b"with a body")[0] == 200


def test_a_sample_is_random_and_of_the_collection(root):
    documents = Documents(root, NEW)
    samples = [{one["id"] for one in documents.list(sample=20)["keys"]} for _ in range(4)]
    assert all(len(sample) == 20 for sample in samples) and len(set(map(frozenset, samples))) > 1
    everything = documents.list(sample=1000)
    assert everything["complete"] and len(everything["keys"]) == 251


def test_expired_documents_and_those_of_other_collections_are_not_listed(root, orders):
    brief = Documents(root, f"{POOL}/orders/scopes/eu/collections/brief/docs")
    brief.put(b"limited", value="v")
    expiry = brief.get(b"limited")[1]["expiry"]
    assert 0 < expiry - time.time() <= 130
    orders.put(b"ends", value="v", ttl=1)
    deadline = time.monotonic() + 20
    while orders.list(prefix="ends")["keys"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert orders.get(b"ends")[0] == 404
    assert [one["id"] for one in brief.list()["keys"]] == ["limited"]
    root.done("DELETE", f"{POOL}/orders/scopes/eu/collections/brief")
    assert root.ask("GET", brief.base)[0] == 404 and brief.get(b"limited")[0] == 404 and brief.put(b"limited", value="v")[0] == 404


# Prefixes.


def prefixes(client, **query):
    return json.loads(client.ask("GET", f"{POOL}/other/prefixes?{urllib.parse.urlencode(query)}")[1])


@pytest.fixture(scope="module")
def other(node):
    """Of 6000 documents a third has long values; 60 prefixes are rare."""
    with BinaryConnection(node.kv) as kv:
        kv.open_bucket("other", user=ADMINISTRATOR, password=PASSWORD)
        for number in range(6000):
            name = ("user", "cart", "user")[number % 3] if number % 100 else f"rare{number // 100}"
            key = f"{name}:{number}:x".encode()
            assert kv.store(key, b"v" * (900 if name == "cart" else 90), expiry=1000 if name == "cart" else 0, vbucket=vbucket_of(key)).status == 0


def test_a_whole_bucket_is_exact(root, other):
    found = prefixes(root)
    assert found["exact"] and found["items"] == found["sampled"] == 6000 and found["fraction"] == 1
    first, second = found["prefixes"][:2]
    assert (first["prefix"], second["prefix"]) == ("cart:", "user:")
    assert first["items"] == sum(number % 3 == 1 and number % 100 != 0 for number in range(6000))
    assert first["withExpiry"] == 1 and second["withExpiry"] == 0 and first["meanValueBytes"] == 900
    assert first["byteShareInterval"] == [first["byteShare"]] * 2 and first["byteShare"] > first["itemShare"]
    assert len(found["prefixes"]) == 50 and found["others"]["prefixes"] == 62 - 50
    assert sum(one["items"] for one in found["prefixes"]) + found["others"]["items"] == 6000
    assert abs(sum(one["bytes"] for one in found["prefixes"]) + found["others"]["bytes"] - found["bytes"]) <= 51
    assert prefixes(root, depth=2)["others"]["prefixes"] == 6000 - 50
    assert [one["prefix"] for one in prefixes(root, separator="nothing")["prefixes"]] == [""]


def test_a_sample_has_intervals_that_hold(root, other):
    exact = {one["prefix"]: one for one in prefixes(root)["prefixes"]}
    held = []
    for _ in range(40):
        found = prefixes(root, sample=300)
        assert not found["exact"] and 60 < found["sampled"] < 700 and found["items"] == 6000
        for one in found["prefixes"]:
            if one["prefix"] in ("cart:", "user:"):
                for share in ("itemShare", "byteShare"):
                    low, high = one[f"{share}Interval"]
                    assert low < one[share] < high
                    held.append(low <= exact[one["prefix"]][share] <= high)
    # 160 intervals for 95 %: fewer than 80 % would take a mistake.
    assert sum(held) / len(held) > 0.8, held


def test_intervals_hold_where_vbuckets_differ():
    """Numbered keys: vBuckets with fewer of one prefix have smaller indexes, and no more of the other."""
    with servers.Dormouse(buckets=("orders,ephemeral,128MiB",)) as node, Client(node, "Administrator", "password") as root:
        memcached = Memcached(node.memcached, default_noreply=False)
        for name, count, size in (("user", 30_000, 1000), ("session", 10_000, 400)):
            memcached.set_many({f"{name}:{number}": "x" * size for number in range(count)})
        exact = {one["prefix"]: one for one in json.loads(root.ask("GET", f"{POOL}/orders/prefixes?sample=65536")[1])["prefixes"]}
        held, shares = [], []
        for _ in range(50):
            found = json.loads(root.ask("GET", f"{POOL}/orders/prefixes")[1])
            assert not found["exact"] and 14_000 < found["sampled"] < 19_000
            session = next(one for one in found["prefixes"] if one["prefix"] == "session:")
            shares.append(session["itemShare"])
            for share in ("itemShare", "byteShare"):
                low, high = session[f"{share}Interval"]
                held.append(low <= exact["session:"][share] <= high)
        # 100 intervals for 95 %, in pairs that hold or fail together; the mean has a standard error of 0.0004.
        assert sum(held) >= 75, held
        assert abs(sum(shares) / len(shares) - 0.25) < 0.002, shares


def test_the_smallest_sample_is_not_empty(root, other):
    for _ in range(10):
        found = prefixes(root, sample=1)
        assert not found["exact"] and found["sampled"] > 0 and found["bytes"] > 0


def test_prefixes_are_of_one_collection_if_it_is_named(root):
    Documents(root, NEW).put(b"one:1", value="v")
    found = json.loads(root.ask("GET", f"{POOL}/orders/prefixes?scope=eu&collection=new")[1])
    assert found["items"] == 252 and {one["prefix"] for one in found["prefixes"]} == {"", "one:"}
    hostile = Documents(root)
    hostile.put(b"<b>\xff:1", value="v")
    encoded_prefixes = [one["encoded"] for one in json.loads(root.ask("GET", f"{POOL}/orders/prefixes")[1])["prefixes"]]
    assert "%3Cb%3E%FF%3A" in encoded_prefixes


# Who may.

USERS = (
    "data_reader[orders]", "data_writer[orders]", "data_reader[orders:eu:new]", "data_writer[orders:eu:new]", "data_reader[other]", "bucket_admin[orders]", "ro_admin",
    "data_monitoring[orders]", "bucket_full_access[*]",
)
READS_ALL, WRITES_ALL, READS_NEW, WRITES_NEW, READS_PREFIXES = range(5)
ALLOWED = {
    "data_reader[orders]": {READS_ALL, READS_NEW, READS_PREFIXES},
    "data_writer[orders]": {WRITES_ALL, WRITES_NEW},
    "data_reader[orders:eu:new]": {READS_NEW},
    "data_writer[orders:eu:new]": {WRITES_NEW},
    "bucket_full_access[*]": {READS_ALL, WRITES_ALL, READS_NEW, WRITES_NEW, READS_PREFIXES},
}


@pytest.mark.parametrize("number, roles", enumerate(USERS), ids=USERS)
def test_users_reach_what_their_roles_say(node, root, number, roles):
    for base in (ORDERS, NEW):
        Documents(root, base).put(b"mine", value="v")
    with Client(node, f"user{number}") as client:
        everywhere, new = Documents(client), Documents(client, NEW)
        requests = {
            READS_ALL: lambda: [client.ask("GET", ORDERS)[0], everywhere.get(b"mine")[0], client.ask("GET", f"{ORDERS}?key=mine")[0]],
            WRITES_ALL: lambda: [everywhere.put(b"mine", value="w")[0], everywhere.delete(b"mine")[0]],
            READS_NEW: lambda: [client.ask("GET", NEW)[0], new.get(b"mine")[0], client.ask("GET", f"{POOL}/orders/prefixes?scope=eu&collection=new")[0]],
            WRITES_NEW: lambda: [new.put(b"mine", value="w")[0], new.delete(b"mine")[0]],
            READS_PREFIXES: lambda: [client.ask("GET", f"{POOL}/orders/prefixes")[0]],
        }
        for what, ask in requests.items():
            statuses = ask()
            assert set(statuses) == ({200} if what in ALLOWED.get(roles, ()) else {403}), (what, statuses)
        # Another spelling of the path, or of the query, is no way around.
        reads_new = READS_NEW in ALLOWED.get(roles, ())
        assert client.ask("GET", f"{NEW}/..%2F..%2F..%2F_default%2Fcollections%2F_default%2Fdocs%2Fmine")[0] == (404 if reads_new else 403)
        assert client.ask("GET", f"{NEW}?scope=_default&collection=_default")[0] == (400 if reads_new else 403)


def test_nobody_reads_documents_without_a_login():
    with servers.Dormouse(buckets=BUCKETS[:1], ports={"memcached": "none"}) as node, Client(node, None) as nobody:
        assert nobody.ask("GET", POOL)[0] == 200
        for method, path in (("GET", ORDERS), ("GET", f"{ORDERS}/k"), ("PUT", f"{ORDERS}/k"), ("DELETE", f"{ORDERS}/k"), ("GET", f"{POOL}/orders/prefixes")):
            assert nobody.ask(method, path, "value=v" if method == "PUT" else None)[0] == 401


def test_system_attributes_are_for_those_who_may(node, root, kv):
    kv.hello(FEATURE_XERROR, FEATURE_XATTR)
    kv.store(b"attributes", b"{}", vbucket=vbucket_of(b"attributes"))
    for name, value in ((b"_sync", b'{"rev":1}'), (b"txn", b"[1]")):
        kv.send(subdocument.single(subdocument.DICT_UPSERT, b"attributes", name, value, subdocument.XATTR, vbucket=vbucket_of(b"attributes")))
        assert kv.response().status == 0
    shown = Documents(root).get(b"attributes")[1]
    assert shown["xattrs"] == {"_sync": {"rev": 1}, "txn": [1]} and shown["datatype"]["xattrs"]
    with Client(node, "user0") as reader:
        assert Documents(reader).get(b"attributes")[1]["xattrs"] == {"txn": [1]}
    # They stay when the value is edited.
    assert Documents(root).put(b"attributes", value='{"new":1}')[0] == 200
    shown = Documents(root).get(b"attributes")[1]
    assert shown["xattrs"] == {"_sync": {"rev": 1}, "txn": [1]} and shown["value"] == '{"new":1}'


# What is refused.


@pytest.mark.parametrize(
    "path, status, field",
    [
        (f"{ORDERS}?limit=0", 400, "limit"), (f"{ORDERS}?limit=1001", 400, "limit"), (f"{ORDERS}?sample=x", 400, "sample"), (f"{ORDERS}?colour=red", 400, "_"),
        (f"{ORDERS}?sample=1&after=a", 400, "after"), (f"{ORDERS}?sample=1&limit=1", 400, "limit"), (f"{ORDERS}?sample=1&visits=1", 400, "visits"), (f"{ORDERS}?visits=999999999", 400, "visits"), (f"{ORDERS}/%zz", 400, "key"), (f"{ORDERS}/k?bytes=2000000", 400, "bytes"),
        (f"{POOL}/orders/prefixes?depth=9", 400, "depth"), (f"{POOL}/orders/prefixes?separator=", 400, "separator"), (f"{POOL}/orders/prefixes?sample=99999", 400, "sample"),
        (f"{POOL}/orders/prefixes?scope=eu", 400, "collection"), (f"{POOL}/none/scopes/eu/collections/new/docs", 404, "_"),
        (f"{POOL}/orders/scopes/none/collections/new/docs/k", 404, "_"), (f"{POOL}/none/prefixes", 404, "_"), (f"{ORDERS}/none", 404, "_"),
    ],
)
def test_what_is_wrong_is_named(root, path, status, field):
    found, text = root.ask("GET", path)
    assert found == status and json.loads(text)["errors"][field], text


def test_bodies_that_are_wrong_are_named(root, orders):
    path = orders.path(b"never")
    for body, kind, field in (
        ("", "application/x-www-form-urlencoded", "value"), ("flags=1", "application/x-www-form-urlencoded", "flags"), ("value=1&flags=x", "application/x-www-form-urlencoded", "flags"),
        ("value=1&ttl=-1", "application/x-www-form-urlencoded", "ttl"), ("value=1&cas=x", "application/x-www-form-urlencoded", "cas"), ("value=%", "application/x-www-form-urlencoded", "_"),
        ("{", "application/json", "_"), ('{"value": {}}', "application/json", "_"), ("x", "text/plain", "Content-Type"),
    ):
        status, text = root.ask("PUT", path, body, kind)
        assert status == 400 and json.loads(text)["errors"][field], (body, text)
    for key in (b"k" * 251, ("\U0001f980" * 63).encode()):
        assert orders.put(key, value="v")[1]["errors"]["key"].endswith("1 to 250.")
    assert Documents(root, NEW).put(b"k" * 247, value="v")[1]["errors"]["key"].endswith("1 to 246.")
    assert orders.get(b"never")[0] == 404


def test_a_full_bucket_refuses(root):
    full = Documents(root, f"{POOL}/full/scopes/_default/collections/_default/docs")
    root.done("DELETE", f"{POOL}/full")
    root.done("POST", POOL, {"name": "full", "bucketType": "ephemeral", "ramQuota": 16, "evictionPolicy": "noEviction"})
    statuses = set()
    for number in range(400):
        status, answer = full.put(b"%d" % number, value="v" * 60_000)
        statuses.add(status)
        if status != 200:
            assert (status, answer["error"]) == (507, "noMemory")
            break
    assert 507 in statuses
    assert full.delete(b"0")[0] == 200 and full.get(b"1")[0] == 200


def test_a_vbucket_that_is_not_active_is_refused(root, orders, kv):
    orders.put(b"moved", value="v")
    vbucket = vbucket_of(b"moved")
    try:
        root.done("POST", f"{POOL}/orders/vbuckets/{vbucket}", {"state": "replica"})
        for refused in (orders.get(b"moved"), orders.put(b"moved", value="w"), orders.delete(b"moved")):
            assert refused[0] == 503 and refused[1]["error"] == "notActive"
        page = orders.list(prefix="moved")
        assert page["keys"] == [] and not page["complete"] and page["closedVBuckets"] == 1
    finally:
        root.done("POST", f"{POOL}/orders/vbuckets/{vbucket}", {"state": "active"})
    assert orders.get(b"moved")[1]["value"] == "v"


# What is on disk.


@pytest.fixture(scope="module")
def persistent(tmp_path_factory):
    with servers.Dormouse(buckets=(), memory="512MiB", ports={"memcached": "none"}, home=tmp_path_factory.mktemp("persistent")) as server:
        with Client(server, "Administrator", "password") as root:
            root.done("POST", POOL, {"name": "store", "ramQuota": 16, "evictionPolicy": "fullEviction", "flushEnabled": 1})
            root.done("POST", POOL, {"name": "durable", "ramQuota": 32, "durabilityMinLevel": "persistToMajority"})
        yield server
        assert server.alive(), server.log()


@pytest.fixture
def administrator(persistent):
    with Client(persistent, "Administrator", "password") as client:
        yield client


def test_values_that_are_only_on_disk_are_fetched(administrator):
    store = Documents(administrator, f"{POOL}/store/scopes/_default/collections/_default/docs")
    content = {b"key-%03d" % number: os.urandom(30_000) for number in range(1000)}
    for key, value in content.items():
        body = json.dumps({"base64": base64.b64encode(value).decode(), "flags": 3})
        deadline = time.monotonic() + 20
        while (answer := administrator.ask("PUT", store.path(key), body, "application/json"))[0] == 507:
            assert time.monotonic() < deadline, answer
            time.sleep(0.01)
        assert answer[0] == 200, answer
    listed, after = [], {}
    while after is not None:
        page = store.list(limit=400, **after)
        assert page["complete"]
        listed += page["keys"]
        after = {"after": page["next"]} if page["next"] else None
    assert [one["id"].encode() for one in listed] == list(content) and {one["valueBytes"] for one in listed} == {30_000}
    ejected = [one["id"].encode() for one in listed if not one["resident"]]
    assert len(ejected) > 300
    for key in ejected[:50]:
        status, shown = store.get(key)
        assert status == 200 and base64.b64decode(shown["base64"]) == content[key] and not shown["resident"] and shown["flags"] == 3
    untouched = ejected[50:]
    # A new expiry needs the value, a replacement and a deletion do not.
    assert store.put(untouched[0], ttl=1000)[0] == 200
    assert base64.b64decode(store.get(untouched[0])[1]["base64"]) == content[untouched[0]]
    assert store.put(untouched[1], value="new")[0] == 200 and store.get(untouched[1])[1]["value"] == "new"
    assert store.delete(untouched[2])[0] == 200 and store.get(untouched[2])[0] == 404
    found = json.loads(administrator.ask("GET", f"{POOL}/store/prefixes?separator=-")[1])
    assert found["exact"] and found["items"] == 999 and 29_900 < found["prefixes"][0]["meanValueBytes"] < 30_000


def test_the_least_durability_of_the_bucket_holds(administrator):
    durable = Documents(administrator, f"{POOL}/durable/scopes/_default/collections/_default/docs")
    for number in range(20):
        status, stored = durable.put(b"d", value=str(number))
        assert status == 200
        shown = durable.get(b"d")[1]
        assert (shown["value"], shown["cas"]) == (str(number), stored["cas"])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:

        def store(number):
            with Client(administrator.node, "Administrator", "password") as client:
                return Documents(client, durable.base).put(b"p%d" % number, value="v")[0]

        assert set(pool.map(store, range(32))) == {200}
    assert len(durable.list(prefix="p")["keys"]) == 32
    assert durable.put(b"d", value="x", cas=7)[0] == 412
    assert durable.delete(b"d", cas=durable.get(b"d")[1]["cas"])[0] == 200 and durable.get(b"d")[0] == 404
    samples = json.loads(administrator.ask("GET", "/figures")[1])["buckets"]["durable"]
    assert samples["sync_writes_committed"] >= 50, samples
