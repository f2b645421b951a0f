"""What an operator says about a node over HTTP (its name, memory, administrator, addresses for other networks) is in all
documents and cluster maps, and is kept in the data directory."""

import base64
import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess

import pytest

from tests import servers
from tests.clients.text_connection import TextConnection
from tests.frames import AUTH_ERROR, GET_CLUSTER_CONFIG, SUCCESS, BinaryConnection
from tests.tls.authority import Authority

from .bucket import document, http as ask, wait_until

RENAME = "/node/controller/rename"
SERVICES = "/node/controller/setupServices"
EXTERNAL = "/node/controller/setupAlternateAddresses/external"
SMALL = ("default,ephemeral,64MiB",)
ADA = "ada:secret-1"
# More than any machine has, MiB.
TOO_MUCH = 1 << 40


def start(home=None, *arguments, buckets=SMALL, **named):
    return servers.Dormouse(*arguments, home=home, buckets=buckets, **named)


@pytest.fixture
def node(tmp_path):
    with start(tmp_path) as node:
        yield node
        assert node.alive(), node.log()


@pytest.fixture(scope="module")
def untouched(tmp_path_factory):
    """A node for requests that are refused."""
    with start(tmp_path_factory.mktemp("node")) as node:
        yield node
        assert node.alive(), node.log()


def accepted(node, method, path, form=None, login="Administrator:password"):
    status, body = ask(node, method, path, form, login)
    assert status == 200, (method, path, form, status, body)
    return json.loads(body) if body else None


def refused(node, method, path, form, login="Administrator:password"):
    """The errors of a refusal: reasons by field."""
    status, body = ask(node, method, path, form, login)
    assert status == 400, (method, path, form, status, body)
    return json.loads(body)["errors"]


def anonymous_status(node, path):
    connection = http.client.HTTPConnection(*node.http, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def cluster_map(node, bucket=None, login="Administrator:password"):
    """The map over KV: of the node, or of a bucket."""
    with BinaryConnection(node.kv) as connection:
        user, password = login.split(":")
        if bucket:
            connection.open_bucket(bucket, user=user, password=password)
        else:
            assert connection.login(user, password) == SUCCESS
        answer = connection.ask(GET_CLUSTER_CONFIG)
        assert answer.status == SUCCESS, answer
        return json.loads(answer.value)


def maps(node, login="Administrator:password"):
    """All maps: of the node and of its bucket, over HTTP and over KV."""
    over_http = [json.loads(ask(node, "GET", path, login=login)[1]) for path in ("/pools/default/nodeServices", "/pools/default/b/default")]
    return [*over_http, cluster_map(node, login=login), cluster_map(node, "default", login)]


def node_documents(node):
    return [document(node, path)["nodes"][0] for path in ("/pools/default", "/pools/nodes", "/pools/default/buckets/default")]


def version(one):
    return one["revEpoch"], one["rev"]


def newest(node, login="Administrator:password"):
    """The version that all maps have."""
    [known] = {version(one) for one in maps(node, login)}
    return known


def told(node):
    """All that an operator may have said."""
    pool = document(node, "/pools/default")
    for name in ("uptime", "interestingStats", "systemStats", "memoryFree"):
        pool["nodes"][0].pop(name)
    pool.pop("storageTotals")
    return pool, document(node, "/settings/web"), document(node, "/settings/indexes"), maps(node)


# A name.


@pytest.mark.parametrize("name, in_addresses", [("db1.example", "db1.example"), ("127.0.0.2", "127.0.0.2"), ("fd00::7", "[fd00::7]")])
def test_a_name_is_in_every_document_and_map(node, name, in_addresses):
    kv, http_port = node.kv[1], node.http[1]
    for one in maps(node):
        assert "hostname" not in one["nodesExt"][0]
    accepted(node, "POST", RENAME, {"hostname": name})
    for one in maps(node):
        assert one["nodesExt"][0]["hostname"] == name
        if "name" in one:
            assert one["nodes"][0]["hostname"] == f"{in_addresses}:{http_port}"
            assert one["vBucketServerMap"]["serverList"] == [f"{in_addresses}:{kv}"]
    for one in node_documents(node):
        assert one["hostname"] == one["configuredHostname"] == f"{in_addresses}:{http_port}"


def test_a_node_answers_to_its_names(node):
    def status(host):
        connection = http.client.HTTPConnection(*node.http, timeout=10)
        connection.request("GET", "/pools", headers={"Host": f"{host}:8091"})
        return connection.getresponse().status

    assert [status(name) for name in ("db1.example", "outside.example")] == [421, 421]
    accepted(node, "POST", RENAME, {"hostname": "DB1.example"})
    accepted(node, "PUT", EXTERNAL, {"hostname": "outside.example"})
    assert [status(name) for name in ("db1.example", "outside.example", "other.example")] == [200, 200, 421]
    accepted(node, "DELETE", EXTERNAL)
    assert status("outside.example") == 421


# Addresses for other networks.


def test_an_external_address_is_in_every_document_and_map_until_it_is_deleted(node):
    for form in (
        {"hostname": "outside.example", "kv": 31210, "mgmt": 38091},
        {"hostname": "fd00::9", "mgmt": 65535, "kv": 1},
    ):
        accepted(node, "PUT", EXTERNAL, form)
        expected = {"external": {"hostname": form["hostname"], "ports": {"kv": form["kv"], "mgmt": form["mgmt"]}}}
        for one in maps(node):
            assert one["nodesExt"][0]["alternateAddresses"] == expected
            assert one["nodesExt"][0]["services"] == {"kv": node.kv[1], "mgmt": node.http[1]}
        for one in node_documents(node):
            assert one["alternateAddresses"] == expected
    accepted(node, "DELETE", EXTERNAL)
    for one in (*node_documents(node), *(one["nodesExt"][0] for one in maps(node))):
        assert "alternateAddresses" not in one


def test_external_ports_are_told_of_what_the_node_serves(node):
    """As Couchbase's get_external_host_and_ports (service_ports.erl) has it: an SDK dials what it is told of."""
    form = {"hostname": "outside.example", "kv": 1, "mgmt": 2, "capi": 3, "kvSSL": 4, "mgmtSSL": 5, "capiSSL": 6, "n1ql": 7, "fts": 8, "cbas": 9, "backupAPI": 10}
    accepted(node, "PUT", EXTERNAL, form)
    for one in maps(node):
        assert one["nodesExt"][0]["alternateAddresses"]["external"]["ports"] == {"kv": 1, "mgmt": 2}


def test_an_external_address_without_ports_has_those_of_the_node(node):
    """As above. SDKs do not agree on what a map without these ports means; the C++ core crashes."""
    accepted(node, "PUT", EXTERNAL, {"hostname": "outside.example"})
    for one in maps(node):
        assert one["nodesExt"][0]["alternateAddresses"]["external"] == {
            "hostname": "outside.example", "ports": {"kv": node.kv[1], "mgmt": node.http[1]},
        }


# Memory, the cluster's name, settings that are only told back.


def test_quotas_and_the_clusters_name_are_told_back(node):
    quotas = {"indexMemoryQuota": 300, "ftsMemoryQuota": 301, "cbasMemoryQuota": 1024, "eventingMemoryQuota": 303, "queryMemoryQuota": 304}
    accepted(node, "POST", "/pools/default", {"clusterName": "my cluster é", "memoryQuota": 256} | quotas)
    pool = document(node, "/pools/default")
    assert pool["clusterName"] == "my cluster é"
    assert {name: pool[name] for name in quotas} == quotas
    assert (pool["memoryQuota"], pool["storageTotals"]["ram"]["quotaTotal"]) == (256, 256 << 20)
    assert [one["mcdMemoryReserved"] for one in node_documents(node)] == [256] * 3
    accepted(node, "POST", "/pools/default", {"ftsMemoryQuota": 512})
    pool = document(node, "/pools/default")
    assert (pool["clusterName"], pool["memoryQuota"], pool["ftsMemoryQuota"], pool["cbasMemoryQuota"]) == ("my cluster é", 256, 512, 1024)
    accepted(node, "POST", "/pools/default", {"clusterName": ""})
    assert document(node, "/pools/default")["clusterName"] == ""


@pytest.mark.parametrize("mode", ["plasma", "magma", "memory_optimized", "forestdb"])
def test_the_storage_mode_of_indexes_is_told_back(node, mode):
    assert accepted(node, "POST", "/settings/indexes", {"storageMode": mode}) == {"storageMode": mode}
    assert document(node, "/settings/indexes") == {"storageMode": mode}


def budgets(node):
    return {bucket["name"]: bucket["quota"]["ram"] >> 20 for bucket in document(node, "/pools/default/buckets")}


def test_shares_follow_the_memory_and_sizes_do_not(tmp_path):
    with start(tmp_path, buckets=("sized,ephemeral,64MiB", "one,ephemeral", "two,ephemeral"), memory="512MiB", ports={"memcached": "none"}) as node:
        assert budgets(node) == {"sized": 64, "one": 224, "two": 224}
        for mebibytes, share in ((256, 96), (80, 8), (1024, 480)):
            accepted(node, "POST", "/pools/default", {"memoryQuota": mebibytes})
            assert budgets(node) == {"sized": 64, "one": share, "two": share}
            assert document(node, "/pools/default")["memoryQuota"] == mebibytes
        for mebibytes, why in ((79, "the buckets need 80 MiB"), (1, "the buckets need 80 MiB"), (TOO_MUCH, "this machine has")):
            [(field, reason)] = refused(node, "POST", "/pools/default", {"memoryQuota": mebibytes}).items()
            assert field == "memoryQuota" and why in reason
            assert budgets(node) == {"sized": 64, "one": 480, "two": 480}
            assert document(node, "/pools/default")["memoryQuota"] == 1024
        new = {"name": "new", "ramQuota": 961, "bucketType": "ephemeral"}
        assert list(refused(node, "POST", "/pools/default/buckets", new)) == ["ramQuota"]
        accepted(node, "POST", "/pools/default", {"memoryQuota": 1041})
        assert ask(node, "POST", "/pools/default/buckets", new)[0] == 202
        assert budgets(node) == {"sized": 64, "one": 8, "two": 8, "new": 961}


# Mistakes.

LONG = "x" * 257
MISTAKES = (
    ("POST", RENAME, {}, "hostname"),
    *(("POST", RENAME, {"hostname": name}, "hostname") for name in ("", "a b", "http://x", "x:8091", "[::1]", "a..b", "a/b", "$HOST", "é", "a\n", "a." * 127 + "b")),
    ("POST", SERVICES, {}, "services"),
    *(("POST", SERVICES, {"services": names}, "services") for names in ("", "n1ql", "kv,n1ql", "kv,", "KV", "index,fts")),
    *(("POST", "/pools/default", {"memoryQuota": value}, "memoryQuota") for value in ("", "0", "-1", "1.5", "many", "7", str(1 << 44), str(1 << 64))),
    *(("POST", "/pools/default", {"ftsMemoryQuota": value}, "ftsMemoryQuota") for value in ("", "0", "-1", "many")),
    ("POST", "/pools/default", {"clusterName": LONG}, "clusterName"),
    ("POST", "/pools/default", {"clusterName": "a\tb"}, "clusterName"),
    *(("POST", "/settings/indexes", {"storageMode": mode}, "storageMode") for mode in ("", "disk", "Plasma")),
    *(
        ("POST", path, form, field)
        for path in ("/settings/web", "/clusterInit")
        for form, field in (
            ({}, "username"),
            ({"username": "ada"}, "password"),
            ({"password": "secret-1"}, "username"),
            ({"username": "", "password": "secret-1"}, "username"),
            ({"username": "a b", "password": "secret-1"}, "username"),
            ({"username": "x" * 129, "password": "secret-1"}, "username"),
            ({"username": "ada", "password": "short"}, "password"),
            ({"username": "ada", "password": "secret\n1"}, "password"),
            ({"username": "ada", "password": "secret-1", "port": 1}, "port"),
            ({"username": "ada", "password": "secret-1", "port": ""}, "port"),
        )
    ),
    *(
        ("POST", "/clusterInit", {"username": "ada", "password": "secret-1", "hostname": "good", "clusterName": "good"} | form, field)
        for form, field in (
            ({"hostname": "a b"}, "hostname"),
            ({"services": "kv,n1ql"}, "services"),
            ({"memoryQuota": "many"}, "memoryQuota"),
            ({"memoryQuota": 1}, "memoryQuota"),
            ({"memoryQuota": TOO_MUCH}, "memoryQuota"),
            ({"clusterName": LONG}, "clusterName"),
            ({"indexerStorageMode": "disk"}, "indexerStorageMode"),
            ({"indexMemoryQuota": "0"}, "indexMemoryQuota"),
            ({"sendStats": "maybe"}, "sendStats"),
        )
    ),
    ("PUT", EXTERNAL, {}, "hostname"),
    ("PUT", EXTERNAL, {"kv": 1}, "hostname"),
    *(("PUT", EXTERNAL, {"hostname": name}, "hostname") for name in ("", "a b", "[::1]", "x:1")),
    *(("PUT", EXTERNAL, {"hostname": "good", "kv": port}, "kv") for port in ("", "0", "-1", "65536", "x")),
    ("PUT", EXTERNAL, {"hostname": "good", "mgmt": 0}, "mgmt"),
    ("PUT", EXTERNAL, {"hostname": "good", "telnet": 23}, "telnet"),
)


@pytest.mark.parametrize("method, path, form, field", MISTAKES)
def test_a_mistake_is_refused_by_its_field_and_changes_nothing(untouched, method, path, form, field):
    before = told(untouched)
    [(key, reason)] = refused(untouched, method, path, form).items()
    assert field in (key, *reason.replace('"', " ").split()), (key, reason)
    assert told(untouched) == before


@pytest.mark.parametrize("body", ["hostname=%ff", "hostname=a&hostname=b%20c", '{"hostname":"good"}'])
def test_what_is_no_form_is_refused(untouched, body):
    before = told(untouched)
    assert ask(untouched, "POST", RENAME, body)[0] == 400
    assert ask(untouched, "POST", RENAME, body, content_type="application/json")[0] in (400, 415)
    assert told(untouched) == before


# Versions of maps.

CHANGES = (
    ("POST", RENAME, {"hostname": "db1.example"}),
    ("PUT", EXTERNAL, {"hostname": "outside.example", "kv": 1, "mgmt": 2}),
    ("PUT", EXTERNAL, {"hostname": "outside.example", "kv": 3, "mgmt": 2}),
    ("POST", RENAME, {"hostname": "db2.example"}),
    ("DELETE", EXTERNAL, None),
)


def test_the_version_of_maps_rises_with_each_change(node):
    known = newest(node)
    for change in CHANGES:
        accepted(node, *change)
        latest = newest(node)
        assert latest > known, change
        known = latest


def test_the_version_of_maps_rises_over_restarts(tmp_path):
    known = (0, 0)
    for _ in range(5):
        # More changes than a start makes.
        with start(tmp_path) as node:
            latest = newest(node)
            assert latest > known
            for number in range(10):
                accepted(node, "POST", RENAME, {"hostname": f"db{number}.example"})
            known = newest(node)
            assert known > latest


def next_map(stream):
    """The next map of a stream; each ends with four newlines."""
    text = b""
    while not text.endswith(b"\n\n\n\n"):
        data = stream.read1(1)
        assert data, "the stream has ended"
        text += data
    return json.loads(text)


def test_changes_are_pushed_to_streams(node):
    connection = http.client.HTTPConnection(*node.http, timeout=20)
    connection.request("GET", "/pools/default/bs/default")
    with contextlib.closing(connection), connection.getresponse() as stream:
        known = next_map(stream)
        for change in CHANGES:
            accepted(node, *change)
            latest = next_map(stream)
            assert version(latest) > version(known) and version(latest) == newest(node)
            known = latest
            expected = document(node, "/pools/default/b/default")
            assert latest == expected


# The administrator.


def test_the_development_user_ends_with_the_first_administrator(node):
    assert document(node, "/settings/web") == {"port": node.http[1], "username": "Administrator"}
    assert anonymous_status(node, "/pools") == 200
    with BinaryConnection(node.kv) as old:
        old.open_bucket()
        answer = accepted(node, "POST", "/settings/web", {"username": "ada", "password": "secret-1", "port": "SAME"})
        assert answer == {"newBaseUri": f"http://127.0.0.1:{node.http[1]}/"}
        assert anonymous_status(node, "/pools") == 401
        for login, status, kv_status in ((ADA, 200, SUCCESS), ("Administrator:password", 401, AUTH_ERROR), ("ada:password", 401, AUTH_ERROR)):
            assert ask(node, "GET", "/whoami", login=login)[0] == status, login
            assert ask(node, "POST", RENAME, {"hostname": "db1.example"}, login)[0] == status, login
            with BinaryConnection(node.kv) as connection:
                assert connection.login(*login.split(":")) == kv_status, login
        assert json.loads(ask(node, "GET", "/settings/web", login=ADA)[1])["username"] == "ada"
        # Who was logged in as the development user has no rights any more.
        assert old.store(b"key", b"value").status != SUCCESS
    node.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "configuration read again" in node.log(), "the reload")
    assert ask(node, "GET", "/whoami", login=ADA)[0] == 200
    assert ask(node, "GET", "/whoami")[0] == 401


def test_the_memcached_port_needs_a_login_once_there_is_an_administrator(node):
    def is_served():
        with contextlib.closing(TextConnection(node.memcached)) as client:
            return client.line(b"set key 0 0 5", b"value") == b"STORED"

    assert is_served()
    accepted(node, "POST", "/settings/web", {"username": "ada", "password": "secret-1"})
    assert not is_served()


def test_an_administrator_is_replaced(node):
    accepted(node, "POST", "/settings/web", {"username": "ada", "password": "secret-1"})
    accepted(node, "POST", "/settings/web", {"username": "ada", "password": "secret-2"}, ADA)
    assert ask(node, "GET", "/whoami", login=ADA)[0] == 401
    accepted(node, "POST", "/settings/web", {"username": "bea", "password": "secret-3"}, "ada:secret-2")
    assert ask(node, "GET", "/whoami", login="ada:secret-2")[0] == 401
    assert ask(node, "GET", "/whoami", login="bea:secret-3")[0] == 200
    listed = {path: [user["id"] for user in json.loads(ask(node, "GET", f"/settings/rbac/users{path}", login="bea:secret-3")[1])] for path in ("", "/local", "/admin")}
    assert listed == {"": [], "/local": [], "/admin": ["bea"]}


def test_everything_at_once(tmp_path):
    form = {
        "hostname": "db1.example", "services": "kv", "memoryQuota": 300, "clusterName": "mine", "indexerStorageMode": "plasma", "username": "ada",
        "password": "secret-1", "port": "SAME", "sendStats": "false", "indexMemoryQuota": 512,
    }
    with start(tmp_path) as node:
        assert accepted(node, "POST", "/clusterInit", form | {"port": node.http[1]})["newBaseUri"] == f"http://127.0.0.1:{node.http[1]}/"
    for _ in range(2):
        with start(tmp_path) as node:
            pool = json.loads(ask(node, "GET", "/pools/default", login=ADA)[1])
            assert (pool["clusterName"], pool["memoryQuota"], pool["indexMemoryQuota"]) == ("mine", 300, 512)
            assert pool["nodes"][0]["hostname"] == f"db1.example:{node.http[1]}"
            assert json.loads(ask(node, "GET", "/settings/indexes", login=ADA)[1]) == {"storageMode": "plasma"}
            assert all(one["nodesExt"][0]["hostname"] == "db1.example" for one in maps(node, ADA))
            assert ask(node, "GET", "/whoami", login="Administrator:password")[0] == 401
            accepted(node, "POST", "/clusterInit", form, ADA)


def test_a_password_file_refuses_another_administrator(tmp_path):
    path = tmp_path / "password"
    path.write_text("correct-horse\n")
    path.chmod(0o600)
    login = "eve:correct-horse"
    with start(tmp_path, "--user", "eve", "--password-file", str(path)) as node:
        version_before = newest(node, login)
        for where, more in (("/settings/web", {}), ("/clusterInit", {"hostname": "db1.example", "memoryQuota": 128, "clusterName": "mine"})):
            errors = refused(node, "POST", where, {"username": "ada", "password": "secret-1"} | more, login)
            assert list(errors) == ["username"] and "auth.password_file" in errors["username"]
        assert newest(node, login) == version_before
        assert ask(node, "GET", "/whoami", login=ADA)[0] == 401
        assert json.loads(ask(node, "GET", "/settings/web", login=login)[1])["username"] == "eve"
        accepted(node, "POST", RENAME, {"hostname": "db1.example"}, login)
        assert newest(node, login) > version_before


# Restarts.


def said(node):
    """Says everything but who the administrator is; returns what is told since."""
    accepted(node, "POST", RENAME, {"hostname": "db1.example"})
    accepted(node, "POST", SERVICES, {"services": "kv", "setDefaultMemQuotas": "true"})
    accepted(node, "POST", "/pools/default", {"clusterName": "mine", "memoryQuota": 200, "cbasMemoryQuota": 1024})
    accepted(node, "POST", "/settings/indexes", {"storageMode": "magma"})
    accepted(node, "PUT", EXTERNAL, {"hostname": "outside.example", "kv": 1, "mgmt": 2})
    return without_ports(node)


def without_ports(node):
    """What is told, without what differs from one start to the next."""
    pool, _, indexes, all_maps = told(node)
    own = pool["nodes"][0]
    names = [own.pop(name).rpartition(":")[0] for name in ("hostname", "configuredHostname")]
    own.pop("ports"), own.pop("nodeUUID"), pool.pop("bucketNames")
    members = [(one["nodesExt"][0].get("hostname"), one["nodesExt"][0].get("alternateAddresses")) for one in all_maps]
    return pool, names, indexes, members


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_was_said_is_kept_in_the_data_directory(tmp_path, end):
    with start(tmp_path) as node:
        fresh = without_ports(node)
        expected = said(node)
        assert expected != fresh
        getattr(node, end)()
    with start(tmp_path) as node:
        assert without_ports(node) == expected
        accepted(node, "DELETE", EXTERNAL)
    with start(tmp_path) as node:
        assert all(alternate is None for _, alternate in without_ports(node)[3])


def test_without_a_data_directory_it_lasts_as_long_as_the_process(tmp_path):
    with start(tmp_path, has_data=False) as node:
        fresh = without_ports(node)
        assert said(node) != fresh
        accepted(node, "POST", "/settings/web", {"username": "ada", "password": "secret-1"})
        assert ask(node, "GET", "/whoami", login=ADA)[0] == 200
        node.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration read again" in node.log(), "the reload")
        assert ask(node, "GET", "/whoami", login="Administrator:password")[0] == 401
        assert ask(node, "GET", "/whoami", login=ADA)[0] == 200
    with start(tmp_path, has_data=False) as node:
        assert without_ports(node) == fresh


def test_a_damaged_file_is_not_taken_for_none(tmp_path):
    with start(tmp_path) as node:
        accepted(node, "POST", RENAME, {"hostname": "db1.example"})
    path = tmp_path / "node" / "node.json"
    assert path.stat().st_mode & 0o077 == 0
    whole = path.read_text()
    for damaged in (whole[: len(whole) // 2], ""):
        path.write_text(damaged)
        with pytest.raises(servers.StartFailed, match="node.json"):
            start(tmp_path)
    path.write_text(whole)
    with start(tmp_path) as node:
        assert document(node, "/pools/default/nodeServices")["nodesExt"][0]["hostname"] == "db1.example"


@pytest.mark.parametrize(
    "path, form, file",
    [
        (RENAME, {"hostname": "db1.example"}, "node.json"),
        ("/pools/default", {"clusterName": "mine"}, "node.json"),
        ("/pools/default", {"memoryQuota": 100}, "node.json"),
        ("/settings/indexes", {"storageMode": "plasma"}, "node.json"),
        ("/settings/web", {"username": "ada", "password": "secret-1"}, "users.json"),
    ],
)
def test_what_cannot_be_written_is_not_changed(node, path, form, file):
    before = told(node)
    # A file cannot take the place of a directory.
    (node.data / "node" / file).unlink(missing_ok=True)
    (node.data / "node" / file).mkdir()
    status, body = ask(node, "POST", path, form)
    assert status == 500 and "could not be written" in body
    assert told(node) == before


def over_socket(path, login=None):
    """The status of a request over a socket in the file system."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(str(path))
        header = f"Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n" if login else ""
        client.sendall(f"GET /pools HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n".encode())
        return int(client.makefile("rb").readline().split()[1])


def test_a_node_with_an_administrator_may_listen_on_all_addresses(tmp_path):
    def everywhere():
        # In a network of its own, so that no other machine can reach it; hence the socket.
        arguments = ["--kv", "0.0.0.0:0", "--memcached", "0.0.0.0:0", "--http", f"unix:{tmp_path}/http"]
        return start(tmp_path, *arguments, ports=dict.fromkeys(("kv", "memcached", "http")), wrap=("unshare", "--net"), await_ready=False)

    with everywhere() as node:
        assert node.process.wait(20) != 0
        assert "0.0.0.0:0" in node.log() and "password" in node.log()
    with start(tmp_path) as node:
        accepted(node, "POST", "/settings/web", {"username": "ada", "password": "secret-1"})
    with everywhere() as node:
        wait_until(lambda: "\n  user " in node.log(), "the banner")
        endpoints = json.loads((tmp_path / "node" / "endpoints.json").read_text())
        assert endpoints["kv"][0].startswith("0.0.0.0:") and endpoints["memcached"][0]["address"].startswith("0.0.0.0:")
        assert [over_socket(tmp_path / "http", login) for login in (None, "Administrator:password", ADA)] == [401, 401, 200]
    with start(tmp_path) as node:
        assert ask(node, "GET", "/whoami", login=ADA)[0] == 200
        with contextlib.closing(TextConnection(node.memcached)) as client:
            assert client.line(b"get key").startswith(b"CLIENT_ERROR")
            assert client.store(b"set", b"auth", b"ada secret-1") == b"STORED"


# The certificate.


def in_der(pem):
    return [ssl.PEM_cert_to_DER_cert(one.strip() + "\n" + ssl.PEM_FOOTER) for one in pem.split(ssl.PEM_FOOTER) if ssl.PEM_HEADER in one]


def test_the_certificate_is_the_one_that_ports_show(tmp_path):
    authority = Authority(tmp_path)
    first, key = authority.sign("node")
    chain = tmp_path / "chain.pem"
    chain.write_text(first.read_text() + authority.certificate.read_text())
    arguments = ["--tls-certificate", str(chain), "--tls-key", str(key), "--kv-tls-address", "127.0.0.1:0", "--http-tls-address", "127.0.0.1:0"]
    with start(tmp_path, *arguments) as node:

        def given():
            status, body = ask(node, "GET", "/pools/default/certificate")
            assert status == 200
            return in_der(body)

        def shown(kind):
            address = servers.split_address(node.endpoints["tls"][kind][0])
            with authority.context().wrap_socket(socket.create_connection(address, timeout=20), server_hostname=address[0]) as client:
                return client.getpeercert(binary_form=True)

        assert given() == in_der(chain.read_text()) and len(given()) == 2
        assert shown("kv") == shown("http") == given()[0]
        before = given()
        second, new_key = authority.sign("node")
        chain.write_text(second.read_text() + authority.certificate.read_text())
        node.process.send_signal(signal.SIGHUP)
        wait_until(lambda: given() != before, "the new certificate")
        assert given() == in_der(chain.read_text())
        assert shown("kv") == shown("http") == given()[0]
        as_read = subprocess.run(["openssl", "x509", "-noout", "-subject"], input=ask(node, "GET", "/pools/default/certificate")[1], capture_output=True, text=True)
        assert as_read.returncode == 0 and "node" in as_read.stdout


def test_a_node_without_tls_has_no_certificate(node):
    status, body = ask(node, "GET", "/pools/default/certificate")
    assert status == 404 and "tls.certificate" in body
