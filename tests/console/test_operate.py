"""What an operator asks at night: figures of background work, the log's tail, the allocator's settings."""

import base64
import json
import re
import socket
import time
import urllib.parse

import pytest
from pymemcache.client.base import Client

from tests.console.test_databases import ask, document
from tests.frames import AMBIGUOUS, FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION, SET, BinaryConnection, durability, request
from tests.servers import Dormouse

MAJORITY = 1
BUCKETS = ("cache,ephemeral,64MiB", "orders,persistent,64MiB")


@pytest.fixture(scope="module")
def node():
    with Dormouse(buckets=BUCKETS, ports={"memcached": "none"}) as node:
        yield node
        assert node.alive(), node.log()


def figures(node, bucket):
    return document(node, "/figures")["buckets"][bucket]


# Work in the background.

WORK = ("sync_writes_pending", "sync_writes_overdue", "sync_writes_oldest_seconds", "sync_writes_late_max_seconds", "defragmenter_armed", "recoverable_bytes", "compressor_armed")
JOURNAL = ("unflushed_items", "journal_bytes", "journal_written_bytes", "journal_superfluous_bytes", "compaction_debt_bytes", "warmup_segments", "warmup_vbuckets", "warmup_vbuckets_done", "damaged_vbuckets")


def test_every_bucket_has_figures_of_its_work_and_they_are_metrics_too(node):
    metrics = ask(node, "/metrics")[1]
    for bucket, names in (("cache", WORK), ("orders", WORK + JOURNAL)):
        found = figures(node, bucket)
        for name in (*names, "defragmenter_passes", "compressor_passes", "evictions", "sync_writes_committed"):
            assert name in found, (bucket, name)
            total = "" if name in names and not name.endswith("written_bytes") else "_total"
            assert f'dormouse_bucket_{name}{total}{{bucket="{bucket}"}}' in metrics, (bucket, name)
    assert not set(JOURNAL) & set(figures(node, "cache"))


def test_a_write_that_waits_is_pending_and_grows_old(node):
    chain = urllib.parse.urlencode({"state": "active", "topology": json.dumps([["here", "there"]])})
    assert figures(node, "cache")["sync_writes_pending"] == 0
    for vb in range(1024):
        assert ask(node, f"/pools/default/buckets/cache/vbuckets/{vb}", "POST", form=chain)[0] == 200
    connection = BinaryConnection(node.kv)
    connection.open_bucket("cache", (FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION))
    connection.send(request(SET, b"waiting", b"{}", bytes(8), framing=durability(MAJORITY, 400)))
    deadline, seen = time.monotonic() + 20, []
    while time.monotonic() < deadline:
        seen.append(figures(node, "cache"))
        if seen[-1]["sync_writes_ambiguous"]:
            break
        time.sleep(0.05)
    pending = [one for one in seen if one["sync_writes_pending"]]
    assert pending and all(one["sync_writes_pending"] == 1 for one in pending)
    ages = [one["sync_writes_oldest_seconds"] for one in pending]
    assert ages == sorted(ages) and ages[-1] > ages[0] >= 0
    # Its client has been answered, and it has ended.
    last = figures(node, "cache")
    assert (last["sync_writes_pending"], last["sync_writes_aborted"]) == (0, 1) and last["sync_writes_late_max_seconds"] > 0
    assert connection.response().status == AMBIGUOUS
    connection.close()


def test_a_journal_that_is_overwritten_becomes_superfluous_and_warms_up_again(tmp_path):
    config = '[[bucket]]\nname = "orders"\nkind = "persistent"\nmemory = "64MiB"\n\n[[memcached]]\naddress = "127.0.0.1:0"\nbucket = "orders"\n'

    def node():
        return Dormouse(config=config, home=tmp_path, buckets=(), ports={"memcached": None})

    with node() as first:
        client = Client(first.memcached, default_noreply=False)
        for value in range(3):
            client.set_many({f"key-{number}": bytes([65 + value]) * 5000 for number in range(500)})
            deadline = time.monotonic() + 30
            while figures(first, "orders")["unflushed_items"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        found = figures(first, "orders")
        assert found["journal_bytes"] - found["journal_superfluous_bytes"] == pytest.approx(500 * 5000, rel=0.2)
        assert found["journal_superfluous_bytes"] > 500 * 5000
    with node() as second:
        deadline = time.monotonic() + 30
        while (found := figures(second, "orders"))["warmup_segments_done"] < found["warmup_segments"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found["warmup_vbuckets_done"] == found["warmup_vbuckets"] > 0 and found["warmup_records"] >= 500


# The log.


def test_the_log_has_what_the_node_logged_and_goes_on_from_a_number(node):
    first = document(node, "/log?lines=1000")
    numbers = [line["number"] for line in first["lines"]]
    assert numbers == list(range(first["first"], first["last"] + 1))
    assert ask(node, "/allocator", "POST", form="dirty_decay_ms=4321")[0] == 200
    news = document(node, f"/log?after={first['last']}")
    [line] = [line for line in news["lines"] if "dirty_decay_ms set" in line["text"]]
    assert line["level"] == "info" and line["target"].startswith("dormouse") and 'value="4321"' in line["text"]
    assert abs(line["atMs"] / 1000 - time.time()) < 60 and news["last"] == first["last"] + len(news["lines"])
    assert document(node, f"/log?after={news['last']}")["lines"] == []


def test_changes_over_http_are_in_the_log_with_who_made_them(node):
    def counts():
        status, text = ask(node, "/metrics")
        assert status == 200
        return dict(re.findall(r'dormouse_changes_over_http_total{about="(\w+)"} (\d+)', text))

    before, last = counts(), document(node, "/log?lines=1")["last"]
    user = "/settings/rbac/users/local/ada"
    assert ask(node, user, "PUT", form="roles=bucket_admin[orders]&password=secret+words")[0] == 200
    assert ask(node, "/pools/default/buckets/orders", "POST", form="ramQuota=x")[0] == 400
    assert ask(node, user, "DELETE")[0] == 200
    lines = [line["text"] for line in document(node, f"/log?after={last}")["lines"]]
    changes = [line for line in lines if line.startswith("changed over HTTP")]
    assert len(changes) == 2 and all('user="Administrator" address=127.0.0.1' in line for line in changes)
    assert f'request="PUT {user}" fields="roles=bucket_admin[orders]&password=..." outcome="success"' in changes[0]
    assert f'request="DELETE {user}"' in changes[1]
    assert not [line for line in lines if "secret" in line]
    after = counts()
    assert int(after["users"]) == int(before["users"]) + 2 and after["bucket"] == before["bucket"]


def test_a_change_whose_client_leaves_is_in_the_log(node):
    login = base64.b64encode(b"Administrator:password").decode()
    body = "roles=ro_admin&password=secret+words"
    last = document(node, "/log?lines=1")["last"]
    for number in range(20):
        path = f"/settings/rbac/users/local/gone{number}"
        with socket.create_connection(node.http) as leaving:
            leaving.sendall(f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\nContent-Length: {len(body)}\r\n"
                            f"Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}".encode())
            # Each leaves at another moment.
            time.sleep(number / 10_000)
    deadline = time.monotonic() + 20
    while True:
        made = {user["id"] for user in document(node, "/settings/rbac/users") if user["id"].startswith("gone")}
        lines = [line["text"] for line in document(node, f"/log?after={last}&lines=1000")["lines"]]
        noted = {name for name in made if any(f'local/{name}"' in line for line in lines)}
        if made and noted == made:
            break
        assert time.monotonic() < deadline, (made, noted)
        time.sleep(0.05)
    for name in made:
        assert ask(node, f"/settings/rbac/users/local/{name}", "DELETE")[0] == 200


def test_the_log_as_text_has_a_line_for_each(node):
    host_lines = document(node, "/log?lines=5")["lines"]
    status, text = ask(node, "/log?lines=5&format=text")
    lines = text.splitlines()
    assert status == 200 and len(lines) == len(host_lines)
    assert all(line["level"].upper() in shown and shown.endswith(line["text"]) for line, shown in zip(host_lines, lines))


def test_lines_are_selected_by_level(node):
    for _ in range(12):
        ask(node, "/whoami", login=("nobody\x1b[2J", "wrong"))
    warnings = document(node, "/log?level=warn")["lines"]
    assert warnings and {line["level"] for line in warnings} <= {"warn", "error"}
    [failed] = [line for line in warnings if "logins failed" in line["text"]]
    assert "nobody" in failed["text"] and "\x1b" not in failed["text"]
    assert document(node, "/log?level=error")["lines"] == []


@pytest.mark.parametrize("query, field", [("lines=0", "lines"), ("lines=1001", "lines"), ("level=loud", "level"), ("after=x", "after"), ("format=html", "format"), ("colour=red", "_")])
def test_a_question_about_the_log_is_refused_with_its_field(node, query, field):
    status, body = ask(node, f"/log?{query}")
    assert status == 400 and list(json.loads(body)["errors"]) == [field], body


def test_the_log_is_for_those_who_may_see_users(node):
    for name, role, status in (("seer", "ro_admin", 200), ("guard", "security_admin", 200), ("keeper", "cluster_admin", 403), ("meter", "external_stats_reader", 403)):
        form = urllib.parse.urlencode({"roles": role, "password": "correct-horse"})
        assert ask(node, f"/settings/rbac/users/local/{name}", "PUT", form=form)[0] == 200
        assert ask(node, "/log", login=(name, "correct-horse"))[0] == status, role


def test_the_log_has_only_what_its_level_lets_through():
    with Dormouse(config='[log]\nlevel = "error"\n', buckets=(), ports={"memcached": "none"}) as node:
        assert ask(node, "/allocator", "POST", form="dirty_decay_ms=4321")[0] == 200
        assert document(node, "/log") == {"first": 0, "last": 0, "lines": []}
