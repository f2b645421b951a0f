"""`dormouse serve --testcontainers` in place of Couchbase Server: the requests of the four `couchbase` modules of
testcontainers, and what an SDK then finds behind mapped ports.

A module's requests are listed as it sends them: testcontainers-java, -go, -node and -dotnet, with their default services
and Couchbase's community edition. Forwarders on loopback stand for the ports that Docker maps.
"""

import base64
import dataclasses
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import types
import urllib.parse
from collections.abc import Callable
from datetime import timedelta

import pytest
from couchbase.exceptions import CouchbaseException, TimeoutException
from couchbase.search import TermQuery

from tests import servers
from tests.frames import AUTH_ERROR, GET, SASL_LIST, SUCCESS, BinaryConnection
from tests.persistence.bucket import vbucket_of, wait_until

from . import programs
from .cluster import connect

USER, PASSWORD = "Administrator", "password"
LOGIN = f"{USER}:{PASSWORD}"
# The ports in the container that modules map, and what the maps of Couchbase call them.
MGMT, VIEWS, QUERY, SEARCH, KV = 8091, 8092, 8093, 8094, 11210
PLAIN = {"mgmt": MGMT, "kv": KV, "capi": VIEWS, "n1ql": QUERY, "fts": SEARCH}
TLS = {"mgmtSSL": 18091, "kvSSL": 11207, "capiSSL": 18092, "n1qlSSL": 18093, "ftsSSL": 18094}
# The container's address in Docker's network: nobody outside can dial it.
INTERNAL = "127.0.0.2"
STARTS = "Starting Couchbase Server -- Web UI available at http://<ip>:8091"
EXTERNAL = "/node/controller/setupAlternateAddresses/external"
SERVICES = ("n1ql", "fts", "cbas", "eventing", "index")
NO_QUERIES = "There is no query service"


class Forwarder:
    """Forwards the connections to a port, and counts them. Without a target they are closed: nothing listens there."""

    def __init__(self, target):
        self.target, self.count, self.sockets = target, 0, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            self.count += 1
            try:
                server = socket.create_connection(self.target) if self.target else None
            except OSError:
                server = None
            if server is None:
                client.close()
                continue
            self.sockets += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=pair, daemon=True).start()

    def copy(self, source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        self.shut(source, target)

    def close(self):
        self.shut(self.listener, *self.sockets)
        for one in (self.listener, *self.sockets):
            one.close()

    @staticmethod
    def shut(*sockets):
        for one in sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def start(*arguments, **named):
    """A node without buckets and without a memcached port."""
    return servers.Dormouse("--testcontainers", *arguments, buckets=(), ports={"memcached": None}, **named)


def service_ports(node):
    """The addresses of the services' ports, from the banner."""
    banner = wait_until(lambda: STARTS in node.log() and node.log(), "the banner")
    found = re.findall(r"^  (\w+) +http://(\S+)  answers pings for test containers$", banner, re.M)
    return {service: servers.split_address(address) for service, address in found}


class Container:
    """A node behind mapped ports. What it listens on is also taken at its internal address, to see who dials that."""

    def __init__(self, **named):
        self.node = start(**named)
        services = service_ports(self.node)
        self.own = {MGMT: self.node.http, KV: self.node.kv, QUERY: services["n1ql"], SEARCH: services["fts"]}
        self.forwarders = {port: Forwarder(self.own.get(port)) for port in (*PLAIN.values(), *TLS.values())}
        self.traps = [socket.create_server((INTERNAL, port)) for _, port in self.own.values()]

    def mapped(self, port):
        return self.forwarders[port].port

    def as_node(self):
        """What `connect` needs to know."""
        return types.SimpleNamespace(kv=("localhost", self.mapped(KV)))

    def assert_internal_address_not_dialled(self):
        for trap in self.traps:
            trap.setblocking(False)
            with pytest.raises(BlockingIOError):
                trap.accept()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in (*self.forwarders.values(), *self.traps):
            one.close()
        self.node.stop()


def ask(address, method, path, form=None, login=None, body=None, headers=None):
    """Sends one request; returns status and body."""
    headers = dict(headers or {})
    if form is not None:
        body = urllib.parse.urlencode(form)
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    if login:
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def told(address, path, login=LOGIN):
    status, body = ask(address, "GET", path, login=login)
    assert status == 200, (path, status, body)
    return json.loads(body)


def accepted(address, method, path, form=None, login=None):
    status, body = ask(address, method, path, form, login)
    assert status in (200, 202), (method, path, status, body)
    return body


def query(address, statement, login=LOGIN):
    """Status and document of the answer to a statement."""
    status, body = ask(address, "POST", "/query/service", {"statement": statement}, login)
    return status, json.loads(body)


def keyspace_statement(bucket):
    return f'SELECT COUNT(*) > 0 as present FROM system:keyspaces WHERE name = "{bucket}"'


def index_statement(bucket):
    return f"CREATE PRIMARY INDEX on `{bucket}`"


def online_statement(bucket):
    return f'SELECT count(*) > 0 AS online FROM system:indexes where keyspace_id = "{bucket}" and is_primary = true and state = "online"'


def set_up(node, bucket=None):
    """The least that a node needs before clients can use it."""
    accepted(node.http, "POST", "/node/controller/setupServices", {"services": "kv,n1ql,fts,index"})
    accepted(node.http, "POST", "/settings/web", {"username": USER, "password": PASSWORD, "port": "SAME"})
    if bucket:
        accepted(node.http, "POST", "/pools/default/buckets", {"name": bucket, "ramQuotaMB": 100}, LOGIN)


# The modules.


@dataclasses.dataclass(frozen=True)
class Step:
    """One request. If it `waits`, it is repeated until the answer is 200 and holds; else the answer must be a success."""

    method: str
    path: str
    form: dict | None = None
    login: bool = False
    port: int = MGMT
    holds: Callable = lambda document: True
    waits: bool = False


@dataclasses.dataclass(frozen=True)
class Module:
    """`headers` and `wait_headers` are those of the HTTP clients that send its requests and its waits."""

    bucket: str
    steps: Callable
    encode: Callable
    headers: dict
    wait_headers: dict
    log_line: str | None = None
    makes_index: bool = True

    def replay(self, container):
        if self.log_line:
            wait_until(lambda: self.log_line in container.node.log().splitlines(), self.log_line)
        connections = {}
        for step in self.steps(container):
            connection = connections.setdefault((step.port, step.waits), http.client.HTTPConnection("localhost", container.mapped(step.port), timeout=20))
            if step.waits:
                wait_until(lambda step=step, connection=connection: self.passes(step, connection), f"{step.method} {step.path}")
            else:
                assert self.passes(step, connection), step
        for connection in connections.values():
            connection.close()

    def passes(self, step, connection):
        headers = dict(self.wait_headers if step.waits else self.headers)
        if step.login:
            headers["Authorization"] = "Basic " + base64.b64encode(LOGIN.encode()).decode()
        if step.form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(step.method, step.path, step.form and self.encode(step.form), headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        assert "Content-Encoding" not in answer.headers
        if step.waits:
            return answer.status == 200 and step.holds(json.loads(body))
        assert 200 <= answer.status < 300, (step, answer.status, body)
        return step.holds(json.loads(body) if body else None)


def get(path, **named):
    return Step("GET", path, **named)


def wait(path, login=True, **named):
    return Step("GET", path, login=login, waits=True, **named)


def post(path, form, **named):
    return Step("POST", path, form, **named)


def put(path, form, **named):
    return Step("PUT", path, form, **named)


def statement(text, result=None):
    """A statement whose first result has this member, true."""
    holds = (lambda document: document["results"][0][result] is True) if result else (lambda document: "errors" not in document)
    return post("/query/service", {"statement": text}, login=True, port=QUERY, holds=holds)


def is_enterprise(document):
    return document["isEnterprise"] is True and document["implementationVersion"].endswith("-enterprise")


def is_healthy(document):
    return document["nodes"][0]["status"] == "healthy"


def maps_all(*services):
    """Each node of a map has a port of each service: one whose name begins like the service's."""
    def holds(document):
        return all(any(name.startswith(service) for name in node["services"]) for node in document["nodesExt"] for service in services)
    return holds


def external(container, *tables):
    """Host and mapped ports."""
    return {"hostname": "localhost"} | {name: container.mapped(port) for table in tables for name, port in table.items()}


def bucket_steps(name):
    """Common to the modules for Java, Go and Node."""
    return [
        post("/pools/default/buckets", {"name": name, "ramQuotaMB": 100, "flushEnabled": 0, "replicaNumber": 0}, login=True),
        wait(f"/pools/default/b/{name}", holds=maps_all("kv", "n1ql", "fts", "index")),
        statement(keyspace_statement(name), "present"),
        statement(index_statement(name)),
        statement(online_statement(name), "online"),
    ]


def java(container):
    """CouchbaseContainer.java of 1.19 and later. It maps TLS ports only if the node's document has them."""
    return [
        wait("/pools", login=False),
        get("/pools", login=True, holds=is_enterprise),
        get("/pools/default/nodeServices", login=True, holds=lambda document: "mgmtSSL" not in document["nodesExt"][0]["services"]),
        post("/node/controller/rename", {"hostname": INTERNAL}),
        post("/node/controller/setupServices", {"services": "kv,n1ql,fts,index"}),
        post("/pools/default", {"memoryQuota": 256, "ftsMemoryQuota": 256, "indexMemoryQuota": 256}),
        post("/settings/web", {"username": USER, "password": PASSWORD, "port": container.own[MGMT][1]}),
        put(EXTERNAL, external(container, PLAIN), login=True),
        post("/settings/indexes", {"storageMode": "forestdb"}, login=True),
        wait("/pools/default", holds=is_healthy),
        wait("/admin/ping", port=QUERY),
        *bucket_steps(JAVA.bucket),
    ]


def go(container):
    """couchbase.go; it ignores most answers, which are checked here."""
    return [
        wait("/pools", login=False),
        get("/pools", holds=is_enterprise),
        post("/node/controller/rename", {"hostname": INTERNAL}),
        post("/node/controller/setupServices", {"services": "kv,n1ql,fts,index"}),
        post("/pools/default", {"memoryQuota": 256, "ftsMemoryQuota": 256, "indexMemoryQuota": 256}),
        post("/settings/web", {"username": USER, "password": PASSWORD, "port": "SAME"}),
        put(EXTERNAL, external(container, PLAIN, TLS), login=True),
        post("/settings/indexes", {"storageMode": "forestdb"}, login=True),
        wait("/pools/default", holds=is_healthy),
        wait("/admin/ping", port=QUERY),
        *bucket_steps(GO.bucket),
    ]


def node(container):
    """couchbase-container.ts. It sets one quota after the other, and spells the last statement differently."""
    online = f'SELECT COUNT(*) > 0 as online FROM system:indexes WHERE keyspace_id = "{NODE.bucket}" and is_primary = true and state = "online"'
    return [
        wait("/pools", login=False),
        get("/pools", login=True, holds=is_enterprise),
        post("/node/controller/rename", {"hostname": INTERNAL}),
        post("/node/controller/setupServices", {"services": "kv,n1ql,fts,index"}),
        post("/pools/default", {"memoryQuota": 256}),
        post("/pools/default", {"ftsMemoryQuota": 256}),
        post("/pools/default", {"indexMemoryQuota": 256}),
        post("/settings/web", {"username": USER, "password": PASSWORD, "port": container.own[MGMT][1]}),
        put(EXTERNAL, external(container, PLAIN, TLS), login=True),
        post("/settings/indexes", {"storageMode": "forestdb"}, login=True),
        wait("/pools/default", holds=is_healthy),
        wait("/admin/ping", port=QUERY),
        *bucket_steps(NODE.bucket)[:-1],
        statement(online, "online"),
    ]


def dotnet(container):
    """CouchbaseBuilder.cs. The administrator comes after the bucket, and no index is made."""
    def lists_all(document):
        services = document["nodes"][0]["services"]
        return all(any(name.startswith(service) for name in services) for service in ("kv", "index", "n1ql", "fts"))
    return [
        wait("/pools", login=False),
        post("/node/controller/rename", {"hostname": INTERNAL}),
        post("/node/controller/setupServices", {"services": "kv,index,n1ql,fts"}),
        post("/pools/default", {"memoryQuota": 256, "indexMemoryQuota": 256, "ftsMemoryQuota": 256}),
        put(EXTERNAL, external(container, PLAIN, TLS)),
        post("/pools/default/buckets", {"name": DOTNET.bucket, "flushEnabled": 0, "ramQuota": 100, "replicaNumber": 0}),
        post("/settings/web", {"username": USER, "password": PASSWORD, "port": "SAME"}),
        wait(f"/pools/default/buckets/{DOTNET.bucket}", holds=lists_all),
        wait("/pools/default", holds=is_healthy),
        wait("/admin/ping", port=QUERY),
    ]


def escaped(form):
    return urllib.parse.urlencode(form, quote_via=urllib.parse.quote)


def escaped_in_order(form):
    return urllib.parse.urlencode(sorted(form.items()))


GO_CLIENT = {"User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip"}
NODE_CLIENT = {
    "Accept": "*/*", "Accept-Language": "*", "Sec-Fetch-Mode": "cors", "User-Agent": "node", "Accept-Encoding": "gzip, deflate",
}
JAVA = Module(
    "mybucket", java, escaped, {"User-Agent": "okhttp/3.14.9", "Accept-Encoding": "gzip"},
    {"User-Agent": "Java/17.0.9", "Accept": "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", "Accept-Encoding": ""},
)
GO = Module("testBucket", go, escaped_in_order, GO_CLIENT, GO_CLIENT)
NODE = Module("mybucket", node, urllib.parse.urlencode, NODE_CLIENT, NODE_CLIENT, log_line=STARTS)
DOTNET = Module(
    "0f8fad5b-d9cb-469f-a165-70867728950e", dotnet, urllib.parse.urlencode, {"Accept-Encoding": ""}, {"Accept-Encoding": ""}, makes_index=False,
)
MODULES = {"java": JAVA, "go": GO, "node": NODE, "dotnet": DOTNET}


@pytest.fixture(scope="module")
def started():
    """The container that a module has started, by the module's name."""
    containers = {}

    def one(name):
        if name not in containers:
            containers[name] = Container()
            MODULES[name].replay(containers[name])
        return containers[name]

    yield one
    for container in containers.values():
        with container:
            assert container.node.alive(), container.node.log()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_comes_to_its_end(started, name):
    container, module = started(name), MODULES[name]
    [bucket] = told(container.node.http, "/pools/default/buckets")
    assert (bucket["name"], bucket["bucketType"]) == (module.bucket, "membase")
    status, document = query(container.own[QUERY], online_statement(module.bucket))
    assert (status, document["results"]) == (200, [{"online": module.makes_index}])
    pool = told(container.node.http, "/pools/default")
    assert [pool[quota] for quota in ("memoryQuota", "ftsMemoryQuota", "indexMemoryQuota")] == [256] * 3
    assert sorted(pool["nodes"][0]["services"]) == ["fts", "index", "kv", "n1ql"]


@pytest.mark.parametrize("name", MODULES)
def test_the_python_sdk_takes_the_mapped_ports(started, name):
    container = started(name)
    before = container.forwarders[KV].count
    cluster = connect(container.as_node(), USER, PASSWORD)
    cluster.wait_until_ready(timedelta(seconds=20))
    documents = cluster.bucket(MODULES[name].bucket).default_collection()
    documents.upsert("document", {"n": 1})
    assert documents.get("document").content_as[dict] == {"n": 1}
    with BinaryConnection(container.node.kv) as connection:
        connection.open_bucket(MODULES[name].bucket)
        assert json.loads(connection.ask(GET, b"document", vbucket=vbucket_of(b"document")).value) == {"n": 1}
    mapped = {one.port for one in container.forwarders.values()}
    used = json.loads(cluster.diagnostics().as_json())["services"]
    remotes = {servers.split_address(one["remote"])[1] for endpoints in used.values() for one in endpoints}
    assert container.mapped(KV) in remotes and remotes <= mapped, used
    cluster.close()
    assert container.forwarders[KV].count > before
    assert container.forwarders[QUERY].count > 0 and container.forwarders[SEARCH].count > 0
    container.assert_internal_address_not_dialled()


@pytest.mark.parametrize("name", MODULES)
def test_every_endpoint_that_an_sdk_is_told_of_answers(started, name):
    cluster = connect(started(name).as_node(), USER, PASSWORD)
    cluster.wait_until_ready(timedelta(seconds=20))
    pinged = json.loads(cluster.ping().as_json())["services"]
    cluster.close()
    assert {"key_value", "management", "query", "search"} <= set(pinged)
    assert [service for service, endpoints in pinged.items() if any(one["state"] != "ok" for one in endpoints)] == [], pinged


@pytest.mark.parametrize("name, program", [("go", programs.go), ("node", programs.node), ("java", programs.java)])
def test_the_sdk_of_a_module_takes_the_mapped_ports(started, tmp_path, name, program):
    container = started(name)
    before = container.forwarders[KV].count
    command = [*program("reach", tmp_path), f"couchbase://localhost:{container.mapped(KV)}", USER, PASSWORD, MODULES[name].bucket]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.startswith("reached by "), done
    assert NO_QUERIES in done.stdout, done
    assert container.forwarders[KV].count > before
    container.assert_internal_address_not_dialled()


def test_the_sdk_is_told_at_once_why_a_query_fails(started):
    container = started("java")
    cluster = connect(container.as_node(), USER, PASSWORD)
    cluster.wait_until_ready(timedelta(seconds=20))
    for why, request in (
        (NO_QUERIES, lambda: cluster.query("SELECT 1").execute()),
        ("There is no service \\\\\"fts\\\\\"", lambda: list(cluster.search_query("index", TermQuery("word")))),
    ):
        with pytest.raises(CouchbaseException) as raised:
            request()
        assert not isinstance(raised.value, TimeoutException)
        assert why in str(raised.value)
    cluster.close()


REACH = f"""
import sys
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions
from datetime import timedelta
cluster = Cluster(sys.argv[1], ClusterOptions(PasswordAuthenticator("{USER}", "{PASSWORD}")))
cluster.wait_until_ready(timedelta(seconds=20))
documents = cluster.bucket("default").default_collection()
documents.upsert("document", {{"n": 1}})
print(documents.get("document").content_as[dict])
"""


def test_an_external_address_without_ports_has_those_of_the_node():
    with servers.Dormouse(buckets=("default,ephemeral,64MiB",)) as node:
        accepted(node.http, "POST", "/node/controller/rename", {"hostname": INTERNAL}, LOGIN)
        accepted(node.http, "PUT", EXTERNAL, {"hostname": "localhost"}, LOGIN)
        # A process of its own: the SDK's core ends the one it is in if a map does not have the ports it expects.
        done = subprocess.run([sys.executable, "-c", REACH, f"couchbase://localhost:{node.kv[1]}"], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout.strip()) == (0, "{'n': 1}"), done


# Before and after the administrator.

READS = (
    "/pools", "/pools/default", "/pools/nodes", "/pools/default/nodeServices", "/pools/default/tasks", "/pools/default/buckets",
    "/pools/default/buckets/b", "/pools/default/b/b", "/pools/default/buckets/b/scopes", "/settings/web", "/settings/indexes",
    "/settings/rbac/users", "/settings/rbac/roles", "/whoami", "/metrics", "/allocator",
)
CHANGES = (
    ("POST", "/pools/default/buckets", {"name": "b", "ramQuotaMB": 100}),
    ("POST", "/pools/default/buckets/b", {"ramQuotaMB": 110}),
    ("POST", "/pools/default/buckets/b/scopes", {"name": "s"}),
    ("DELETE", "/pools/default/buckets/b/scopes/s", None),
    ("PUT", "/settings/rbac/users/local/ada", {"password": "secret-1", "roles": "ro_admin"}),
    ("DELETE", "/settings/rbac/users/local/ada", None),
    ("POST", "/node/controller/rename", {"hostname": INTERNAL}),
    ("PUT", EXTERNAL, {"hostname": "localhost", "kv": 1, "mgmt": 2}),
    ("DELETE", EXTERNAL, None),
)


def test_until_there_is_an_administrator_nothing_needs_a_login():
    with start() as node:
        for method, path, form in CHANGES:
            accepted(node.http, method, path, form)
        for path in READS:
            # The modules for Java and Node send the login that they are going to set.
            for login in (None, LOGIN, "nobody:nothing"):
                assert ask(node.http, "GET", path, login=login)[0] == 200, (path, login)
        accepted(node.http, "DELETE", "/pools/default/buckets/b")


BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"


@pytest.mark.parametrize("name, value", [
    ("Origin", "http://rebound.example:8091"), ("Origin", "null"), ("Referer", "http://rebound.example:8091/"), ("Sec-Fetch-Site", "same-origin"),
    ("Sec-Fetch-Site", "none"), ("Sec-Fetch-Dest", "empty"), ("User-Agent", BROWSER),
])
def test_no_page_in_a_browser_sets_up_a_node(name, value):
    """A name that is rebound to the node's address makes a page the node's own, whatever it is called."""
    headers = {"Host": "rebound.example:8091", "X-Requested-With": "script", name: value}
    with start() as node:
        for method, path, form in (("POST", "/settings/web", {"username": "eve", "password": "secret-1"}), *CHANGES):
            status, body = ask(node.http, method, path, form, headers=headers)
            assert status == 403 and ("administrator" in body or name == "Origin"), (method, path, status, body)
        for path in READS:
            assert ask(node.http, "GET", path, headers=headers)[0] == 403, path
        assert told(node.http, "/pools", login=None)["pools"] == []
        if name != "Origin":
            # The page and the health checks show nothing of the node.
            for path in ("/", "/page/main.js", "/health"):
                assert ask(node.http, "GET", path, headers=headers)[0] == 200, path
        set_up(node)
        own = {**headers, "Host": f"{node.http[0]}:{node.http[1]}"}
        if name != "Origin" and name != "Referer":
            assert ask(node.http, "GET", "/pools", login=LOGIN, headers=own)[0] == 200


def test_an_administrator_closes_the_node():
    with start() as node:
        accepted(node.http, "POST", "/pools/default/buckets", {"name": "b", "ramQuotaMB": 100})
        set_up(node)
        for path in READS:
            assert ask(node.http, "GET", path)[0] == 401, path
            assert ask(node.http, "GET", path, login=f"{USER}:wrong")[0] == 401, path
            assert ask(node.http, "GET", path, login=LOGIN)[0] == 200, path
        for method, path, form in (*CHANGES, ("POST", "/settings/web", {"username": "eve", "password": "secret-1"})):
            assert ask(node.http, method, path, form)[0] == 401, (method, path)
        for path in ("/", "/health"):
            assert ask(node.http, "GET", path)[0] == 200
        assert query(service_ports(node)["n1ql"], keyspace_statement("b"), login=None)[0] == 401


def test_the_pool_exists_once_there_is_an_administrator():
    with start() as node:
        assert told(node.http, "/pools", login=None)["pools"] == []
        set_up(node)
        assert [pool["name"] for pool in told(node.http, "/pools")["pools"]] == ["default"]


def test_kv_refuses_logins_until_there_is_an_administrator():
    def login(user, password):
        with BinaryConnection(node.kv) as connection:
            assert connection.ask(SASL_LIST).status == SUCCESS
            return connection.login(user, password)

    with start() as node:
        accepted(node.http, "POST", "/pools/default/buckets", {"name": "b", "ramQuotaMB": 100})
        for user, password in ((USER, PASSWORD), ("", ""), ("b", "")):
            assert login(user, password) == AUTH_ERROR
        set_up(node)
        assert login(USER, PASSWORD) == SUCCESS
        assert login(USER, "wrong") == AUTH_ERROR
        with BinaryConnection(node.kv) as connection:
            connection.open_bucket("b")
            assert connection.store(b"key", b"value").status == SUCCESS


def test_a_password_file_leaves_nothing_open(tmp_path):
    path = tmp_path / "password"
    path.write_text("correct-horse\n")
    path.chmod(0o600)
    with start("--user", "ada", "--password-file", str(path)) as node:
        assert ask(node.http, "GET", "/settings/rbac/users")[0] == 401
        assert ask(node.http, "POST", "/pools/default/buckets", {"name": "b", "ramQuotaMB": 100})[0] == 401
        assert ask(node.http, "GET", "/settings/rbac/users", login="ada:correct-horse")[0] == 200


def test_the_node_answers_to_any_name():
    for arguments, status in (({"buckets": ()}, 421), ({}, 200)):
        with servers.Dormouse(**arguments) if arguments else start() as node:
            assert ask(node.http, "GET", "/pools", headers={"Host": "couchbase.internal:8091"})[0] == status


# The services that are not there.


def test_services_are_those_set_up():
    with start() as node:
        ports = service_ports(node)
        assert set(ports) == set(SERVICES)
        for chosen in (["kv"], ["kv", "fts"], ["cbas", "kv", "eventing"], ["kv", *SERVICES]):
            accepted(node.http, "POST", "/node/controller/setupServices", {"services": ",".join(chosen)})
            [services] = [one["services"] for one in told(node.http, "/pools/default/nodeServices", login=None)["nodesExt"]]
            names = {"eventingAdminPort": "eventing", "indexHttp": "index"}
            found = {names.get(name, name): port for name, port in services.items() if name not in ("kv", "mgmt")}
            assert found == {name: ports[name][1] for name in chosen if name != "kv"}
            assert set(told(node.http, "/pools/default", login=None)["nodes"][0]["services"]) == set(chosen)


def test_a_service_named_twice_is_one():
    with start() as node:
        accepted(node.http, "POST", "/node/controller/setupServices", {"services": "kv,fts,kv,fts"})
        assert told(node.http, "/pools/default", login=None)["nodes"][0]["services"] == ["kv", "fts"]


@pytest.mark.parametrize("services", ["n1ql", "kv,backup", "kv,", "", "kv;n1ql"])
def test_services_that_no_node_has_are_refused(services):
    with start() as node:
        status, body = ask(node.http, "POST", "/node/controller/setupServices", {"services": services})
        assert (status, list(json.loads(body)["errors"])) == (400, ["services"])
        assert told(node.http, "/pools/default", login=None)["nodes"][0]["services"] == ["kv"]


def test_ports_of_services_answer_pings_and_say_why_they_refuse_all_else():
    with start() as node:
        set_up(node)
        for service, address in service_ports(node).items():
            for method in ("GET", "HEAD"):
                for path in ("/admin/ping", "/api/ping", "/admin/ping/"):
                    assert ask(address, method, path)[0] == 200, (service, method, path)
            for method, path in (
                ("GET", "/"), ("GET", "/pools"), ("GET", "/api/v1/config"), ("GET", "/api/index"), ("POST", "/analytics/service"),
                ("POST", "/settings/web"), ("POST", "/admin/ping"), ("DELETE", "/pools/default/buckets/b"),
            ):
                status, body = ask(address, method, path, login=LOGIN)
                assert status == 501, (service, method, path, status, body)
                why = json.loads(body)["error"]
                assert f'There is no service "{service}"' in why and "--testcontainers" in why and f"{method} {path}" in why
        assert ask(node.http, "POST", "/query/service", {"statement": "SELECT 1"}, LOGIN)[0] == 404


STATEMENTS = (
    "SELECT 1", "", ";", "SELECT * FROM `b`", "DROP PRIMARY INDEX ON `b`", "CREATE INDEX i ON `b`(x)", "CREATE PRIMARY INDEX on `b` USING GSI",
    keyspace_statement("b") + " LIMIT 1", "CREATE PRIMARY INDEX on b", "SELECT COUNT(*) > 0 as present FROM system:keyspaces WHERE name = \"b",
)


@pytest.fixture(scope="module")
def ready():
    """A node that is set up, with a bucket b."""
    with start() as node:
        set_up(node, "b")
        node.query = service_ports(node)["n1ql"]
        yield node
        assert node.alive(), node.log()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_other_statements_are_refused_with_the_reason(ready, statement):
    as_json = json.dumps({"statement": statement, "timeout": "75s"})
    asked = "?" + urllib.parse.urlencode({"statement": statement})
    for status, body in (
        ask(ready.query, "POST", "/query/service", {"statement": statement}, LOGIN),
        ask(ready.query, "POST", "/query/service", login=LOGIN, body=as_json, headers={"Content-Type": "application/json"}),
        ask(ready.query, "GET", "/query/service" + asked, login=LOGIN),
        ask(ready.query, "POST", "/query", {"statement": statement}, LOGIN),
    ):
        document = json.loads(body)
        [error] = document["errors"]
        assert (status, document["status"], error["code"]) == (501, "fatal", 1020)
        assert error["msg"].startswith(NO_QUERIES) and "--testcontainers" in error["msg"]


def test_an_index_is_there_once_it_is_created():
    def online(bucket):
        status, document = query(service, online_statement(bucket))
        assert status == 200 and document["status"] == "success"
        return document["results"] == [{"online": True}]

    with start() as node:
        set_up(node, "My-B.x%")
        service = service_ports(node)["n1ql"]
        accepted(node.http, "POST", "/pools/default/buckets", {"name": "other", "ramQuotaMB": 100}, LOGIN)
        assert [query(service, keyspace_statement(name))[1]["results"] for name in ("My-B.x%", "none")] == [[{"present": True}], [{"present": False}]]
        assert not online("My-B.x%")
        for again in range(2):
            assert query(service, index_statement("My-B.x%"))[0] == 200
            assert online("My-B.x%") and not online("other") and not online("none")
            status, document = query(service, index_statement("My-B.x%"))
            assert (status, document["errors"][0]["code"]) == (409, 4300)
            accepted(node.http, "DELETE", "/pools/default/buckets/My-B.x%25", login=LOGIN)
            status, document = query(service, index_statement("My-B.x%"))
            assert (status, document["errors"][0]["code"]) == (404, 12003)
            assert not online("My-B.x%")
            accepted(node.http, "POST", "/pools/default/buckets", {"name": "My-B.x%", "ramQuotaMB": 100}, LOGIN)
            assert not online("My-B.x%"), again


# The flag, and restarts.


def test_without_the_flag_there_is_none_of_this():
    with servers.Dormouse(buckets=("default,ephemeral,64MiB",)) as node:
        log = wait_until(lambda: "\n  user " in node.log() and node.log(), "the banner")
        assert "Starting Couchbase Server" not in log and "answers pings" not in log
        for services in ("kv,n1ql", "kv,fts", "kv,index"):
            status, body = ask(node.http, "POST", "/node/controller/setupServices", {"services": services}, LOGIN)
            assert (status, list(json.loads(body)["errors"])) == (400, ["services"])
        accepted(node.http, "POST", "/node/controller/setupServices", {"services": "kv"}, LOGIN)
        assert set(told(node.http, "/pools/default/nodeServices")["nodesExt"][0]["services"]) == {"kv", "mgmt"}
        for method, path, form in CHANGES:
            assert ask(node.http, method, path, form)[0] == 401, (method, path)
        assert len(told(node.http, "/pools", login=None)["pools"]) == 1
        assert ask(node.http, "POST", "/query/service", {"statement": keyspace_statement("default")}, LOGIN)[0] == 404


def test_a_restart_with_a_data_directory_finds_the_node_set_up(tmp_path):
    with Container(home=tmp_path) as container:
        JAVA.replay(container)
        kept = told(container.node.http, "/pools/default/nodeServices")["nodesExt"][0]["alternateAddresses"]
        with BinaryConnection(container.node.kv) as connection:
            connection.open_bucket(JAVA.bucket)
            assert connection.store(b"key", b"value").status == SUCCESS

    def holds_what_was_set_up(node):
        assert ask(node.http, "GET", "/pools")[0] == 401
        assert ask(node.http, "POST", "/settings/web", {"username": "eve", "password": "secret-1"})[0] == 401
        assert len(told(node.http, "/pools")["pools"]) == 1
        pool = told(node.http, "/pools/default")
        assert (pool["memoryQuota"], pool["nodes"][0]["hostname"]) == (256, f"{INTERNAL}:{node.http[1]}")
        assert told(node.http, "/settings/indexes") == {"storageMode": "forestdb"}
        with BinaryConnection(node.kv) as connection:
            connection.open_bucket(JAVA.bucket)
            wait_until(lambda: connection.ask(GET, b"key").value == b"value", "the document")
        return told(node.http, "/pools/default/nodeServices")["nodesExt"][0]

    with start(home=tmp_path) as node:
        told_now = holds_what_was_set_up(node)
        assert told_now["alternateAddresses"] == kept
        assert set(told_now["services"]) == {"kv", "mgmt", "n1ql", "fts", "indexHttp"}
        assert STARTS in node.log()
    with servers.Dormouse(home=tmp_path, buckets=(), ports={"memcached": "none"}) as node:
        assert set(holds_what_was_set_up(node)["services"]) == {"kv", "mgmt"}
        assert STARTS not in node.log()


def test_without_a_data_directory_nothing_is_left(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    with start(home=tmp_path, has_data=False) as node:
        set_up(node, "b")
        assert told(node.http, "/pools/default/buckets/b")["bucketType"] == "membase"
        with BinaryConnection(node.kv) as connection:
            connection.open_bucket("b")
            assert connection.store(b"key", b"value").status == SUCCESS
        assert list(scratch.iterdir()) != []
        assert node.stop() == 0
    assert list(scratch.iterdir()) == []
    with start(home=tmp_path, has_data=False) as node:
        assert told(node.http, "/pools", login=None)["pools"] == []
        assert told(node.http, "/pools/default/buckets", login=None) == []
