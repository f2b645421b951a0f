"""`/databases`: what is shown of databases that real clients made, rows in bounded answers, compaction beside clients, and who may see what."""

import base64
import json
import pathlib
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests.ovsdb.connection import Connection
from tests.servers import Dormouse

SCHEMA = pathlib.Path("/usr/share/openvswitch/vswitch.ovsschema")
CONFIG = '[[ovsdb]]\nfile = "{home}/conf.db"\nremotes = "punix:{home}/conf.sock"\n'
HOSTILE = "<img src=x onerror=alert(1)>\u202e\U0001f42d"
LOGIN = ("Administrator", "password")


def ask(node, path, method="GET", login=LOGIN, form=None):
    """Status and body."""
    host, port = node.http
    headers = {"Authorization": "Basic " + base64.b64encode(":".join(login).encode()).decode()} if login else {}
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method, headers=headers, data=form.encode() if form is not None else None)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def document(node, path, method="GET", login=LOGIN):
    status, body = ask(node, path, method, login, form="" if method == "POST" else None)
    assert status == 200, (path, status, body)
    return json.loads(body)


def vsctl(node, *arguments):
    subprocess.run(["ovs-vsctl", "--no-wait", f"--db=unix:{node.database}", *arguments], check=True, stdout=subprocess.DEVNULL)


def transact(node, *operations):
    with Connection(node.database) as peer:
        return peer.transact("Open_vSwitch", *operations)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("databases")
    subprocess.run(["ovsdb-tool", "create", home / "conf.db", SCHEMA], check=True)
    with Dormouse(config=CONFIG.format(home=home), home=home, buckets=(), ports={"memcached": "none"}) as node:
        node.database, node.file = home / "conf.sock", home / "conf.db"
        vsctl(node, "init")
        for bridge in range(20):
            vsctl(node, "add-br", f"br{bridge:02}")
        vsctl(node, "set", "Bridge", "br00", f"external_ids:note={json.dumps(HOSTILE)}")
        yield node
        assert node.alive(), node.log()


def test_a_report_has_what_the_clients_made(node):
    listed = document(node, "/databases")
    assert [one["name"] for one in listed["databases"]] == ["Open_vSwitch"]
    report = document(node, "/databases/Open_vSwitch")
    tables = {table["name"]: table for table in report["tables"]}
    schema = json.loads(SCHEMA.read_text())
    assert set(tables) == set(schema["tables"]) and report["schemaVersion"] == schema["version"]
    assert (tables["Bridge"]["rows"], tables["Port"]["rows"], tables["Open_vSwitch"]["rows"], tables["Mirror"]["rows"]) == (20, 20, 1, 0)
    assert tables["Bridge"]["bytes"] > 20 * 16 and tables["Mirror"]["bytes"] == 0
    assert sum(table["rows"] for table in report["tables"]) == report["rows"] == 61
    assert sum(table["bytes"] for table in report["tables"]) == report["recordBytes"]
    assert report["logBytes"] == node.file.stat().st_size and report["logFile"] == str(node.file)
    assert report["commits"] > 20 and report["fault"] is None and not report["compacting"]


def test_the_bytes_of_tables_follow_inserts_updates_and_deletes(node):
    def bytes_of(name):
        report = document(node, "/databases/Open_vSwitch")
        assert sum(table["bytes"] for table in report["tables"]) == report["recordBytes"]
        return next(table["bytes"] for table in report["tables"] if table["name"] == name)

    before = bytes_of("QoS")
    where = [["type", "==", "counted"]]
    transact(node, *[{"op": "insert", "table": "QoS", "row": {"type": "counted"}}] * 50)
    small = bytes_of("QoS")
    transact(node, {"op": "update", "table": "QoS", "where": where, "row": {"other_config": ["map", [["k", "v" * 1000]]]}})
    large = bytes_of("QoS")
    assert before < small < large and large - small >= 50 * 1000
    # Undone: a transaction that fails at its end.
    failed = transact(node, {"op": "delete", "table": "QoS", "where": where}, {"op": "abort"})
    assert failed[1]["error"] == "aborted" and bytes_of("QoS") == large
    transact(node, {"op": "delete", "table": "QoS", "where": where})
    assert bytes_of("QoS") == before


def test_monitors_and_sessions_are_counted(node):
    before = document(node, "/databases")
    watcher = subprocess.Popen(["ovsdb-client", "monitor", f"unix:{node.database}", "Open_vSwitch", "Bridge", "name"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        # The rows that exist come once the monitor is there.
        assert watcher.stdout.readline()
        listed = document(node, "/databases")
        [report] = listed["databases"]
        assert report["monitors"] == before["databases"][0]["monitors"] + 1
        assert report["monitoringSessions"] == before["databases"][0]["monitoringSessions"] + 1
        assert listed["sessions"] == before["sessions"] + 1
    finally:
        watcher.terminate()
        watcher.wait(30)


def test_the_schema_is_the_one_of_the_file(node):
    schema = document(node, "/databases/Open_vSwitch/schema")
    given = json.loads(SCHEMA.read_text())
    assert (schema["name"], schema["version"], schema["cksum"]) == (given["name"], given["version"], given["cksum"])
    assert {name: set(table["columns"]) for name, table in schema["tables"].items()} == {name: set(table["columns"]) for name, table in given["tables"].items()}


def test_rows_are_as_a_select_answers_them_and_come_in_parts(node):
    path = "/databases/Open_vSwitch/tables/Bridge"
    [expected] = [answer["rows"] for answer in transact(node, {"op": "select", "table": "Bridge", "where": []})]
    whole = document(node, path)
    assert whole["next"] is None

    def by_name(rows):
        return sorted(rows, key=lambda row: row["name"])

    assert by_name(whole["rows"]) == by_name(expected)
    assert by_name(whole["rows"])[0]["external_ids"] == ["map", [["note", HOSTILE]]]
    found, start, answers = [], 0, 0
    while start is not None:
        part = document(node, f"{path}?limit=7&from={start}")
        assert len(part["rows"]) <= 7
        found += part["rows"]
        start, answers = part["next"], answers + 1
    assert found == whole["rows"] and answers == 3
    assert document(node, "/databases/Open_vSwitch/tables/Mirror") == {"rows": [], "next": None}
    assert document(node, f"{path}?from=4294967295") == {"rows": [], "next": None}


def test_an_answer_has_a_bounded_length_whatever_is_in_the_rows(node):
    rows = [{"op": "insert", "table": "Queue", "row": {"other_config": ["map", [["k", character * 200_000]]]}} for character in "abcdefghij"]
    huge = {"op": "insert", "table": "Queue", "row": {"other_config": ["map", [["k", "z" * 2_000_000]]]}}
    transact(node, *rows, huge)
    found, start = [], 0
    while start is not None:
        status, body = ask(node, f"/databases/Open_vSwitch/tables/Queue?from={start}&limit=1000")
        assert status == 200 and len(body) < (1 << 20) + (512 << 10), len(body)
        part = json.loads(body)
        found += part["rows"]
        start = part["next"]
    assert len(found) == 11
    [omitted] = [row for row in found if "_omittedBytes" in row]
    assert omitted["_omittedBytes"] > 2_000_000 and set(omitted) == {"_uuid", "_omittedBytes"}
    transact(node, {"op": "delete", "table": "Queue", "where": []})


@pytest.mark.parametrize("path", ["/databases/none", "/databases/none/schema", "/databases/none/tables/Bridge", "/databases/Open_vSwitch/tables/none", "/databases/_Server", "/databases/_Server/tables/Database", "/databases/..%2f", "/databases/%00", "/databases/%f0%9f%90%ad/schema"])
def test_what_does_not_exist_is_not_found(node, path):
    assert ask(node, path)[0] == 404


@pytest.mark.parametrize("query, field", [("limit=0", "limit"), ("limit=1001", "limit"), ("limit=x", "limit"), ("from=-1", "from"), ("from=4294967296", "from"), ("colour=red", "_")])
def test_a_question_out_of_bounds_is_refused_with_its_field(node, query, field):
    status, body = ask(node, f"/databases/Open_vSwitch/tables/Bridge?{query}")
    assert status == 400 and list(json.loads(body)["errors"]) == [field], body


def test_compaction_makes_the_log_short_and_says_so(node):
    for number in range(100):
        transact(node, {"op": "update", "table": "Bridge", "where": [["name", "==", "br01"]], "row": {"external_ids": ["map", [["n", f"{number}" * 300]]]}})
    before = document(node, "/databases/Open_vSwitch")
    done = document(node, "/databases/Open_vSwitch/compact", "POST")
    after = document(node, "/databases/Open_vSwitch")
    assert done["oldBytes"] == before["logBytes"] and done["newBytes"] == after["logBytes"] == node.file.stat().st_size < before["logBytes"]
    assert after["lastCompaction"] == done and done["error"] is None and done["endedMs"] > 1_600_000_000_000
    assert not after["compacting"] and after["rows"] == before["rows"]
    assert "compacting Open_vSwitch database by user request" in node.log()
    # As a stock tool reads the file.
    dumped = subprocess.run(["ovsdb-tool", "query", str(node.file), json.dumps(["Open_vSwitch", {"op": "select", "table": "Bridge", "where": [], "columns": ["name"]}])], capture_output=True, text=True)
    assert dumped.returncode == 0 and dumped.stdout.count("br0") >= 10, dumped


def test_clients_of_the_database_are_served_while_it_is_looked_at(node):
    stop, failures, answered = threading.Event(), [], []

    def look():
        try:
            while not stop.is_set():
                for path in ("/databases", "/databases/Open_vSwitch/schema", "/databases/Open_vSwitch/tables/Port?limit=1000"):
                    answered.append(document(node, path))
                document(node, "/databases/Open_vSwitch/compact", "POST")
        except Exception as error:
            failures.append(error)

    watchers = [threading.Thread(target=look) for _ in range(4)]
    for watcher in watchers:
        watcher.start()
    try:
        for number in range(60):
            transact(node, {"op": "update", "table": "Bridge", "where": [["name", "==", "br02"]], "row": {"external_ids": ["map", [["n", str(number)]]]}})
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()
    assert not failures and answered
    row = next(row for row in document(node, "/databases/Open_vSwitch/tables/Bridge")["rows"] if row["name"] == "br02")
    assert row["external_ids"] == ["map", [["n", "59"]]]


def test_rows_are_for_those_who_may_do_everything(node):
    rows = "/databases/Open_vSwitch/tables/Bridge"
    # Reads without a login are open on this node; these are not.
    assert ask(node, "/databases", login=None)[0] == 200
    assert ask(node, rows, login=None)[0] == 401
    users = "/settings/rbac/users/local"
    for name, role in (("reader", "ro_admin"), ("manager", "cluster_admin")):
        form = urllib.parse.urlencode({"roles": role, "password": "correct-horse"})
        assert ask(node, f"{users}/{name}", "PUT", form=form)[0] == 200
    reader, manager = ("reader", "correct-horse"), ("manager", "correct-horse")
    assert [ask(node, path, login=reader)[0] for path in ("/databases", "/databases/Open_vSwitch/schema", rows)] == [200, 200, 403]
    assert [ask(node, "/databases/Open_vSwitch/compact", "POST", login=login, form="")[0] for login in (reader, manager)] == [403, 200]
    assert ask(node, rows, login=manager)[0] == 403


def test_a_node_without_databases_says_so():
    with Dormouse(ports={"memcached": "none"}) as node:
        assert document(node, "/databases") == {"sessions": 0, "databases": []}
        assert ask(node, "/databases/none")[0] == 404


def test_a_database_that_cannot_write_says_why(tmp_path):
    subprocess.run(["ovsdb-tool", "create", tmp_path / "conf.db", SCHEMA], check=True)
    with Dormouse(config=CONFIG.format(home=tmp_path), home=tmp_path, buckets=(), ports={"memcached": "none"}) as node:
        # In the way of the new file: a directory that is not empty cannot be replaced.
        (tmp_path / "conf.db.tmp" / "x").mkdir(parents=True)
        status, body = ask(node, "/databases/Open_vSwitch/compact", "POST", form="")
        assert status == 500 and json.loads(body)["errors"]["_"], (status, body)
        assert document(node, "/databases/Open_vSwitch")["compacting"] is False


def test_figures_of_databases_are_metrics_too(node):
    metrics = ask(node, "/metrics")[1]
    report = document(node, "/databases/Open_vSwitch")
    assert f'dormouse_database_rows{{database="Open_vSwitch"}} {report["rows"]}\n' in metrics
    assert 'dormouse_database_history_commits{database="Open_vSwitch"}' in metrics


def test_an_idle_node_with_databases_stays_asleep(node):
    document(node, "/databases")

    deadline = time.monotonic() + 60
    while True:
        before = node.switches()
        time.sleep(3)
        if node.switches() == before:
            return
        assert time.monotonic() < deadline, "the node still wakes up"


def test_a_request_that_takes_long_holds_up_neither_figures_nor_the_stop(tmp_path):
    schema, database = tmp_path / "schema", tmp_path / "conf.db"
    schema.write_text(json.dumps({"name": "D", "version": "1.0.0", "tables": {"T": {"isRoot": True, "columns": {"n": {"type": "integer"}}}}}))
    subprocess.run(["ovsdb-tool", "create", database, schema], check=True)
    with Dormouse(config=CONFIG.format(home=tmp_path), home=tmp_path, buckets=("orders,persistent,64MiB",), ports={"memcached": "none"}) as node:
        with Connection(tmp_path / "conf.sock") as peer:
            peer.transact("D", *({"op": "insert", "table": "T", "row": {"n": number}} for number in range(10_000)))
            # Each is true of each row.
            clauses = [["n", "!=", -number] for number in range(1, 600_000)]
            peer.send({"id": 1, "method": "transact", "params": ["D", {"op": "select", "table": "T", "where": clauses}]})
            deadline = time.monotonic() + 60
            while (answer := ask(node, "/health/ready"))[0] == 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert answer[0] == 503 and json.loads(answer[1])["reasons"] == ["stalled"]
            for path in ("/metrics", "/figures", "/pools/default/buckets", "/settings/rbac/users"):
                assert ask(node, path)[0] == 200
            assert ask(node, "/health/ready")[0] == 503, "the request is over already: it tells nothing"
            assert node.stop() == 0
        assert "are still at a request, which is dropped" in node.log()
        assert "stopped" in node.log()
