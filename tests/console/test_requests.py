"""What requests take: recorded while somebody looks; slow and large requests and hot keys for those who may read them; the view."""

import base64
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests.frames import (
    FEATURE_ALT_REQUEST, FEATURE_COLLECTIONS, FEATURE_SELECT_BUCKET, FEATURE_SYNC_REPLICATION, FEATURE_XERROR, GET, SET, SUCCESS, BinaryConnection,
    durability, request,
)
from tests.servers import Dormouse

FEATURES = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION)
PERSIST_TO_MAJORITY = 3

PASSWORD = "correct-horse-battery"
HOSTILE = "<img/src=x/onerror=document.title=1>\N{GRINNING FACE}"
POOL = "/pools/default/buckets"
ALL_ARE_LISTED = "[node]\nslow_request_ms = 0\nlarge_request_bytes = 512\n"


@pytest.fixture(scope="module")
def protected(tmp_path_factory):
    """A node on which everything is slow, and half a kilobyte is large."""
    home = tmp_path_factory.mktemp("requests")
    (home / "password").write_text(PASSWORD + "\n")
    (home / "password").chmod(0o600)
    arguments = ("--user", "root", "--password-file", str(home / "password"))
    with Dormouse(*arguments, config=ALL_ARE_LISTED, buckets=("default,ephemeral,32MiB", "other,ephemeral,32MiB")) as node:
        for user, roles in {"reader": "ro_admin,data_reader[default:_default:_default]", "seer": "ro_admin", "elsewhere": "data_reader[other]", "operator": "cluster_admin,data_reader[default]"}.items():
            form = urllib.parse.urlencode({"password": PASSWORD, "roles": roles}).encode()
            asked(node, f"/settings/rbac/users/local/{user}", "root", form, "PUT")
        yield node
        assert node.alive(), node.log()


def asked(node, path, user=None, form=None, method=None, password=PASSWORD):
    host, port = node.http
    request = urllib.request.Request(f"http://{host}:{port}{path}", form, method=method)
    if user:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


def asked_as_developer(node, path):
    """Asks a node without a password, whose development user may read everything."""
    return asked(node, path, "Administrator", password="password")


def status(node, path, user=None):
    with pytest.raises(urllib.error.HTTPError) as error:
        asked(node, path, user)
    return error.value.code


class Text:
    """A memcached client that has logged in, if it must."""

    def __init__(self, node, user="root"):
        self.socket = socket.create_connection(node.memcached, timeout=20)
        self.file = self.socket.makefile("rb")
        if user:
            login = f"{user} {PASSWORD}"
            assert self.ask(f"set auth 0 0 {len(login)}\r\n{login}\r\n") == b"STORED\r\n"

    def ask(self, text):
        self.socket.sendall(text.encode())
        return self.file.readline()

    def get(self, key, end=b"END\r\n"):
        self.socket.sendall(f"get {key}\r\n".encode())
        lines = [self.file.readline()]
        while lines[-1] != end:
            lines.append(self.file.readline())
        return lines

    def set(self, key, value):
        assert self.ask(f"set {key} 0 0 {len(value)}\r\n{value}\r\n") == b"STORED\r\n"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()


def until(read, is_there, timeout_s=20):
    """What `read` returns once it is as expected."""
    deadline = time.monotonic() + timeout_s
    while not is_there(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def latency(node):
    return asked(node, "/figures")["latency"]


def test_latencies_are_of_requests_since_the_last_reading(node):
    asked(node, "/figures")
    with Text(node, user=None) as client:

        def classes():
            client.set("seen", "1")
            client.get("seen")
            client.ask("incr seen 1\r\n")
            client.ask("delete seen\r\n")
            client.ask("mn\r\n")
            return (latency(node) or {"classes": {}})["classes"]

        wanted = {"read", "write", "counter", "delete", "other"}
        found = until(classes, lambda found: set(found) == wanted)
    for figures in found.values():
        assert figures["requests"] > 0
        times = [figures[name] for name in ("p50Us", "p95Us", "p99Us", "p999Us", "maxUs")]
        assert times == sorted(times), figures


def test_nothing_is_recorded_while_nobody_looks():
    with Dormouse(config=ALL_ARE_LISTED) as node, Text(node, user=None) as client:
        for _ in range(100):
            client.get("unseen")
        assert asked_as_developer(node, "/requests/slow")["requests"] == []
        client.get("seen")
        assert until_listed(node) == ["seen"]


def until_listed(node):
    """The keys of slow requests, once there are some: a request is recorded after its answer has left."""
    found = until(lambda: asked_as_developer(node, "/requests/slow")["requests"], bool)
    return [one["id"] for one in found]


def test_requests_are_always_recorded_if_so_configured():
    with Dormouse(config=ALL_ARE_LISTED + 'record_requests = "always"\n') as node, Text(node, user=None) as client:
        client.get("at-night")
        assert until_listed(node) == ["at-night"]


def test_each_key_of_a_line_is_a_request_and_so_is_each_of_a_batch(node):
    with Text(node, user=None) as client:
        readings = []

        def reads():
            readings.append((latency(node) or {"classes": {}})["classes"].get("read", {}).get("requests", 0))
            return readings[-1]

        until(reads, lambda reads: reads == 0 and len(readings) > 20)
        client.socket.sendall(b"get a b c\r\n" * 100)
        for _ in range(100):
            assert client.file.readline() == b"END\r\n"
        until(reads, lambda reads: reads == 300)


def test_the_lists_have_what_the_user_may_read(protected):
    asked(protected, "/requests/slow", "root")
    with Text(protected) as client:
        client.set(HOSTILE, "x" * 600)
        client.get(HOSTILE)
        client.get("short")
        port = client.socket.getsockname()[1]
    slow = until(lambda: asked(protected, "/requests/slow", "root"), lambda answer: any(one.get("id") == HOSTILE and one["operation"] == "get" for one in answer["requests"]))
    assert (slow["slowUs"], slow["hidden"]) == (0, 0)
    assert [one["atMs"] for one in slow["requests"]] == sorted((one["atMs"] for one in slow["requests"]), reverse=True)
    [found] = [one for one in slow["requests"] if one.get("id") == HOSTILE and one["operation"] == "get"]
    assert (found["class"], found["bucket"], found["scope"], found["collection"]) == ("read", "default", "_default", "_default")
    assert (found["client"], found["user"], found["together"]) == (f"127.0.0.1:{port}", "root", 1)
    assert found["executionUs"] <= found["tookUs"] and found["answerBytes"] > 600
    large = asked(protected, "/requests/large", "root")
    assert large["largeBytes"] == 512
    assert {(one["operation"], one["id"]) for one in large["requests"]} == {("set", HOSTILE), ("get", HOSTILE)}
    for path in ("/requests/slow", "/requests/large"):
        who = asked(protected, path, "operator")["requests"]
        assert who and not any("user" in one or "client" in one for one in who), "the role may not see users"
        may = asked(protected, path, "reader")
        assert any(one.get("id") == HOSTILE for one in may["requests"]) and may["hidden"] == 0
        blind = asked(protected, path, "seer")
        assert not any("id" in one for one in blind["requests"]) and blind["hidden"] > 0
        assert status(protected, path) == 401
        assert status(protected, path, "elsewhere") == 403


def test_a_list_is_bounded(protected):
    asked(protected, "/requests/slow", "root")
    with Text(protected) as client:
        for number in range(500):
            client.get(f"many-{number}")
    slow = until(lambda: asked(protected, "/requests/slow", "root"), lambda answer: answer["requests"][0].get("id") == "many-499")
    assert len(slow["requests"]) == 64


def test_rights_are_those_on_the_collection(protected):
    pool = f"{POOL}/other/scopes"
    for path, name in ((pool, "eu"), (f"{pool}/eu/collections", "new"), (f"{pool}/eu/collections", "old")):
        asked(protected, path, "root", urllib.parse.urlencode({"name": name}).encode())
    manifest = asked(protected, pool, "root")
    ids = {one["name"]: int(one["uid"], 16) for scope in manifest["scopes"] for one in scope["collections"]}
    form = urllib.parse.urlencode({"password": PASSWORD, "roles": "ro_admin,data_reader[other:eu:new]"}).encode()
    asked(protected, "/settings/rbac/users/local/narrow", "root", form, "PUT")
    asked(protected, "/requests/slow", "root")
    with BinaryConnection(protected.kv) as client:
        client.open_bucket("other", (*FEATURES, FEATURE_COLLECTIONS), "root", PASSWORD)
        for name in ("new", "old"):
            answer = client.store(bytes([ids[name]]) + b"in-" + name.encode(), b"x", vbucket=0)
            assert answer.status == SUCCESS, answer
    listed = until(lambda: asked(protected, "/requests/slow", "root"), lambda answer: {"in-new", "in-old"} <= {one.get("id") for one in answer["requests"]})
    [found] = [one for one in listed["requests"] if one.get("id") == "in-new"]
    assert (found["operation"], found["bucket"], found["scope"], found["collection"]) == ("SET", "other", "eu", "new")
    narrow = asked(protected, "/requests/slow", "narrow")
    assert {one["id"] for one in narrow["requests"] if "id" in one} == {"in-new"} and narrow["hidden"] > 0
    hot = asked(protected, f"{POOL}/other/hotKeys", "narrow")
    assert [one["id"] for one in hot["keys"]] == ["in-new"]
    assert {one["id"] for one in asked(protected, f"{POOL}/other/hotKeys", "root")["keys"]} == {"in-new", "in-old"}


def test_requests_of_a_deleted_bucket_are_not_listed(protected):
    form = urllib.parse.urlencode({"name": "passing", "bucketType": "ephemeral", "ramQuota": 16}).encode()
    asked(protected, POOL, "root", form)
    asked(protected, "/requests/slow", "root")

    def passing():
        return [one for one in asked(protected, "/requests/slow", "root")["requests"] if one.get("bucket") == "passing"]

    with BinaryConnection(protected.kv) as client:
        client.open_bucket("passing", FEATURES, "root", PASSWORD)
        client.store(b"gone", b"x", vbucket=0)
        assert until(passing, bool)
    assert [one["id"] for one in asked(protected, f"{POOL}/passing/hotKeys", "root")["keys"]] == ["gone"]
    asked(protected, f"{POOL}/passing", "root", method="DELETE")
    assert passing() == []
    assert not any(one.get("id") == "gone" for one in asked(protected, "/requests/slow", "root")["requests"])
    assert status(protected, f"{POOL}/passing/hotKeys", "root") == 404


def test_a_durable_write_is_measured_until_its_outcome(tmp_path):
    buckets = ("default,persistent,32MiB",)
    with Dormouse(config=ALL_ARE_LISTED, buckets=buckets, home=tmp_path) as node, BinaryConnection(node.kv) as client:
        client.open_bucket("default", FEATURES)
        asked_as_developer(node, "/requests/slow")
        asked(node, "/figures")
        assert client.store(b"kept", b"x", vbucket=0, framing=durability(PERSIST_TO_MAJORITY)).status == SUCCESS
        found = until(lambda: latency(node), bool)["classes"]["durable"]
        assert found["requests"] == 1
        [listed] = [one for one in asked_as_developer(node, "/requests/slow")["requests"] if one.get("id") == "kept"]
        assert (listed["class"], listed["operation"], listed["together"]) == ("durable", "SET", 1)
        # The disk was waited for, not the worker.
        assert listed["tookUs"] > listed["executionUs"]


def test_an_answer_that_is_held_back_is_measured_until_it_is_sent(tmp_path):
    buckets = ("default,persistent,32MiB",)
    with Dormouse(config=ALL_ARE_LISTED, buckets=buckets, home=tmp_path) as node, BinaryConnection(node.kv) as client:
        client.open_bucket("default", FEATURES)
        assert client.store(b"big", b"x" * 5000, vbucket=0).status == SUCCESS
        asked_as_developer(node, "/requests/slow")
        durable = request(SET, b"slow", b"x", bytes(8), vbucket=0, framing=durability(PERSIST_TO_MAJORITY))
        client.send(durable + request(GET, b"big", vbucket=0) + request(GET, b"big", vbucket=0))
        answers = [client.response() for _ in range(3)]
        assert [answer.status for answer in answers] == [SUCCESS] * 3
        listed = until(lambda: asked_as_developer(node, "/requests/large")["requests"], lambda all: len(all) >= 2)
        held = [one for one in listed if one.get("id") == "big" and one["operation"] == "GET"]
        [waited] = [one for one in asked_as_developer(node, "/requests/slow")["requests"] if one.get("id") == "slow"]
        assert len(held) == 2 and all(5000 < one["answerBytes"] < 6000 and one["together"] == 1 for one in held), held
        assert all(one["tookUs"] >= waited["executionUs"] and one["tookUs"] > one["executionUs"] for one in held)


def test_hot_keys_are_those_that_were_accessed(protected):
    with Text(protected) as client:
        for number in range(200):
            client.set(f"cold-{number}", "x")
        for number in range(5):
            client.set(f"warm-{number}", "x")
            client.get(f"warm-{number}")
    hot = asked(protected, f"{POOL}/default/hotKeys?count=500", "root")
    assert hot["looked"] == hot["items"] and hot["vBuckets"] == hot["ofVBuckets"] and not hot["isVisited"]
    accessed = {one["id"] for one in hot["keys"] if one["idleVisits"] == 0}
    never = {one["id"] for one in hot["keys"] if one["idleVisits"] is None}
    assert {f"warm-{number}" for number in range(5)} <= accessed
    assert {f"cold-{number}" for number in range(200)} <= never
    assert all(one["frequency"] == 0 for one in hot["keys"])
    again = asked(protected, f"{POOL}/default/hotKeys?count=500", "root")
    assert sorted(map(str, again["keys"])) == sorted(map(str, hot["keys"])), "looking changes nothing"
    assert len(asked(protected, f"{POOL}/default/hotKeys?count=3", "reader")["keys"]) == 3
    assert status(protected, f"{POOL}/default/hotKeys") == 401
    assert status(protected, f"{POOL}/default/hotKeys", "seer") == 403
    assert status(protected, f"{POOL}/default/hotKeys", "elsewhere") == 403
    for query in ("count=0", "count=501", "count=x", "size=3"):
        assert status(protected, f"{POOL}/default/hotKeys?{query}", "root") == 400


def test_hot_keys_have_frequencies_once_something_is_evicted():
    with Dormouse(buckets=("default,ephemeral,16MiB",)) as node, Text(node, user=None) as client:
        client.set("front-page", "x")
        # Five budgets; the front page is read all the time.
        for number in range(5 * 1024):
            client.set(f"page-{number}", "x" * 16384)
            if number % 64 == 0:
                client.get("front-page")
        # Reading without a login shows no keys; the development user does.
        request = f"{POOL}/default/hotKeys?count=1"
        assert status(node, request) == 401
        hot = asked_as_developer(node, request)
        assert hot["isVisited"]
        assert [one["id"] for one in hot["keys"]] == ["front-page"], hot
        assert hot["keys"][0]["frequency"] > 0


def opened(open_page, node, **options):
    page = open_page(node, http_credentials={"username": "root", "password": PASSWORD}, **options)
    page.page.wait_for_selector("#state.live")
    page.page.click("#views a[data-view=requests]")
    page.page.wait_for_selector("#requests-slow-state:not(:empty)")
    return page


def test_the_view_is_readable_at_every_width_and_says_nothing_in_the_console(protected, open_page):
    with Text(protected) as client:
        client.set(HOSTILE, "x" * 600)
        page = opened(open_page, protected)
        until(lambda: client.get(HOSTILE) and page.rows("requests-latency"), bool)
        page.page.wait_for_selector("#requests-slow tbody tr")
        page.page.click("form button[type=submit]")
        page.page.wait_for_selector("#requests-hot tbody tr")
        page.check_readable()


def test_the_view_shows_hostile_names_as_text(protected, open_page):
    with Text(protected) as client:
        page = opened(open_page, protected)
        client.set(HOSTILE, "x" * 600)
        name = f"_default / _default / {HOSTILE}"
        for table in ("requests-slow", "requests-large"):
            until(lambda: [row[0] for row in page.rows(table)], lambda names: name in names)
        client.get(HOSTILE)
        page.page.select_option("#requests-bucket", "default")
        page.page.click("form button[type=submit]")
        until(lambda: [row[0] for row in page.rows("requests-hot")], lambda names: name in names)
    assert page.page.title() == "Requests - Dormouse"
    assert page.said == []


def test_the_view_has_latencies_of_each_class_with_a_curve(protected, open_page):
    with Text(protected) as client:
        page = opened(open_page, protected)

        def rows():
            client.set("curve", "x")
            client.get("curve")
            return {name: cells for name, *cells in page.rows("requests-latency")}

        found = until(rows, lambda rows: {"read", "write"} <= set(rows) and "-" not in rows["read"][1])
    assert all(cell.endswith(("\u00b5s", "ms", " s")) for cell in found["read"][1:6]), found
    assert page.page.locator("#requests-latency svg[role=img]").count() >= 2
    assert page.said == []


def test_a_closed_view_asks_nothing(protected, open_page):
    page = opened(open_page, protected)
    page.page.click("#views a[data-view=overview]")
    page.page.wait_for_selector("#memory-table tbody tr.whole")
    paths = []
    page.page.on("request", lambda request: paths.append(urllib.parse.urlsplit(request.url).path))
    page.page.wait_for_timeout(6500)
    assert not [path for path in paths if path.startswith("/requests")], paths


def test_a_login_is_asked_for_before_keys_are_shown(node, open_page):
    # Without a password the browser's own dialog is open.
    page = open_page(node, http_credentials={"username": "Administrator", "password": "guessed"})
    page.page.wait_for_selector("#state.live")
    page.page.click("#views a[data-view=requests]")
    page.page.wait_for_selector("#requests-slow-state.refused")
    assert page.text("#requests-slow-state").startswith("a login is needed")
    assert page.rows("requests-slow") == []
    with Text(node, user=None) as client:
        until(lambda: client.get("open") and page.rows("requests-latency"), bool)
