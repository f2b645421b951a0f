"""What users may do over HTTP: every role with every request; that nobody gains rights; what is shown; restarts; malformed forms."""

import base64
import http.client
import json
import pathlib
import re
import stat
import urllib.parse

import pytest

from tests import servers
from tests.clients.text_connection import TextConnection
from tests.frames import AUTH_ERROR, GET, SASL_AUTH, SUCCESS, BinaryConnection
from tests.persistence.bucket import start

ADMINISTRATOR, PASSWORD = "root", "correct-horse-battery"
BUCKETS = ("orders,ephemeral,32MiB", "other,ephemeral,32MiB")
SCOPES = {"eu": ("new", "old"), "us": ("new",)}
USERS, EXTERNAL, GROUPS = "/settings/rbac/users/local", "/settings/rbac/users/external", "/settings/rbac/groups"
POOL = "/pools/default"
CHANGES = ("POST", "PUT", "PATCH", "DELETE")
ROUTES = pathlib.Path(servers.ROOT, "crates", "console", "src", "lib.rs")


class Client:
    """A connection of one user; without a name, of nobody."""

    def __init__(self, node, user=ADMINISTRATOR, password=PASSWORD):
        self.node = node
        self.connection = http.client.HTTPConnection(*node.http, timeout=20)
        self.headers = {} if user is None else {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def ask(self, method, path, form=None, kind="application/x-www-form-urlencoded"):
        """Returns status and body. The form may be text, as it is sent."""
        body = form if form is None or isinstance(form, (str, bytes)) else urllib.parse.urlencode(form)
        self.connection.request(method, path, body, {**self.headers, "Content-Type": kind})
        answer = self.connection.getresponse()
        text = answer.read().decode()
        if answer.status == 401:
            # The server does not wait for the body, and may close the connection before it is sent.
            self.close()
        return answer.status, text

    def status(self, method, path, form=None):
        if method == "GET" and ("/bs/" in path or path.startswith("/events")):
            with Stream(self, path) as stream:
                return stream.status
        kind = "application/json" if form and form.startswith("{") else "application/x-www-form-urlencoded"
        return self.ask(method, path, form, kind)[0]

    def done(self, *request):
        status, body = self.ask(*request)
        assert status in (200, 202), (request, status, body)
        return json.loads(body) if body else None

    def document(self, path):
        return self.done("GET", path)


class Stream:
    """An answer without end."""

    def __init__(self, client, path):
        self.connection = http.client.HTTPConnection(*client.node.http, timeout=5)
        self.connection.request("GET", path, headers=client.headers)
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def map(self):
        """The next map; None at the end."""
        text = b""
        while not text.endswith(b"\n\n\n\n"):
            byte = self.answer.read(1)
            if not byte:
                assert not text, text
                return None
            text += byte
        return json.loads(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()


@pytest.fixture(scope="module")
def password_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("roles") / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def node(password_file):
    """A node whose reads need a login too."""
    with servers.Dormouse("--user", ADMINISTRATOR, "--password-file", str(password_file), buckets=BUCKETS, memory="256MiB", ports={"memcached": "none"}) as server:
        with Client(server) as root:
            for bucket in ("orders", "other"):
                add_scopes(root, bucket)
        yield server
        assert server.alive(), server.log()


@pytest.fixture
def root(node):
    with Client(node) as one:
        yield one


@pytest.fixture
def user(node):
    """Gives a user these roles, and returns a client of it. The users stay, without roles: a new one takes long, since keys are derived."""
    clients = {}

    def client(roles, name="eve", groups=""):
        with Client(node) as root:
            form = {"roles": roles, "groups": groups}
            if root.ask("PUT", f"{USERS}/{name}", form)[0] == 400:
                root.done("PUT", f"{USERS}/{name}", {**form, "password": PASSWORD})
        if name not in clients:
            clients[name] = Client(node, name)
        return clients[name]

    yield client
    with Client(node) as root:
        for name, one in clients.items():
            one.close()
            root.ask("PUT", f"{USERS}/{name}", {})


def add_scopes(root, bucket):
    for scope, collections in SCOPES.items():
        root.done("POST", f"{POOL}/buckets/{bucket}/scopes", {"name": scope})
        for name in collections:
            root.done("POST", f"{POOL}/buckets/{bucket}/scopes/{scope}/collections", {"name": name})


# What a request needs.
NOTHING, LOGIN = "nothing", "a login"
# On the node.
SETTINGS, METRICS, NODE, SEE_USERS, MANAGE_USERS, SECURITY, EVERYTHING = "settings", "metrics", "node", "see users", "users", "security", "everything"
# On a part of the bucket, on all of it, on the scope.
SEE, READ, STATISTICS, BUCKET, FLUSH, ALL_SCOPES, COLLECTIONS = "see", "read", "statistics", "bucket", "flush", "all scopes", "collections"
# On the documents of a collection, or of all of the bucket.
READ_THERE, WRITE_THERE, READ_ALL = "read there", "write there", "read all"

# Method, path, form, what it needs, and the status if that is there. Forms are incomplete and objects missing, so that nothing changes;
# `test_the_table_has_every_route` finds what is not here.
REQUESTS = [
    ("GET", "/", None, NOTHING, 200),
    ("GET", "/page/{file}", None, NOTHING, 200),
    ("GET", "/health", None, NOTHING, 200),
    ("GET", "/health/ready", None, NOTHING, 200),
    ("GET", "/health/live", None, NOTHING, 200),
    ("GET", "/pools", None, LOGIN, 200),
    ("GET", "/pools/default", None, LOGIN, 200),
    ("GET", "/pools/nodes", None, LOGIN, 200),
    ("GET", "/pools/default/tasks", None, LOGIN, 200),
    ("GET", "/pools/default/nodeServices", None, LOGIN, 200),
    ("GET", "/pools/default/replication", None, SETTINGS, 200),
    ("GET", "/pools/default/buckets", None, LOGIN, 200),
    ("GET", "/pools/default/certificate", None, LOGIN, 404),
    ("GET", "/whoami", None, LOGIN, 200),
    ("GET", "/requests/slow", None, SETTINGS, 200),
    ("GET", "/requests/large", None, SETTINGS, 200),
    ("GET", "/pools/default/buckets/{bucket}/hotKeys", None, READ, 200),
    ("POST", "/controller/changePassword", "", LOGIN, 400),
    ("GET", "/metrics", None, METRICS, 200),
    ("GET", "/allocator", None, SETTINGS, 200),
    ("GET", "/memory", None, SETTINGS, 200),
    ("GET", "/figures", None, SETTINGS, 200),
    ("GET", "/events", None, SETTINGS, 200),
    ("GET", "/databases", None, SETTINGS, 200),
    ("GET", "/databases/{database}", None, SETTINGS, 404),
    ("GET", "/databases/{database}/schema", None, SETTINGS, 404),
    ("GET", "/databases/{database}/tables/{table}", None, EVERYTHING, 404),
    ("POST", "/databases/{database}/compact", "", NODE, 404),
    ("GET", "/log", None, SEE_USERS, 200),
    ("GET", "/nodes/self", None, SETTINGS, 200),
    ("GET", "/pools/default/serverGroups", None, SETTINGS, 200),
    ("GET", "/pools/default/remoteClusters", None, SETTINGS, 200),
    ("GET", "/pools/default/certificates", None, LOGIN, 200),
    ("GET", "/pools/default/terseClusterInfo", None, LOGIN, 200),
    ("GET", "/prometheus_sd_config", None, METRICS, 200),
    ("GET", "/settings/autoFailover", None, SETTINGS, 200),
    ("GET", "/settings/stats", None, SETTINGS, 200),
    ("GET", "/settings/autoCompaction", None, SETTINGS, 200),
    ("GET", "/settings/passwordPolicy", None, SEE_USERS, 200),
    ("GET", "/settings/audit", None, SEE_USERS, 200),
    ("POST", "/pools/default/checkPermissions", "", LOGIN, 200),
    ("POST", "/nodeInit", "hostname=a b", EVERYTHING, 400),
    ("POST", "/nodes/self/controller/settings", "", NODE, 200),
    ("POST", "/settings/autoFailover", "", NODE, 400),
    ("POST", "/settings/stats", "", NODE, 400),
    ("POST", "/controller/setAutoCompaction", "", NODE, 400),
    ("POST", "/settings/passwordPolicy", "minLength=x", SECURITY, 400),
    ("POST", "/settings/audit", "auditdEnabled=true", SECURITY, 400),
    ("GET", "/settings/indexes", None, SETTINGS, 200),
    ("GET", "/settings/web", None, SETTINGS, 200),
    ("POST", "/allocator", "colour=red", NODE, 400),
    ("POST", "/allocator/profile", "", NODE, 400),
    ("POST", "/node/controller/rename", "", EVERYTHING, 400),
    ("POST", "/node/controller/setupServices", "services=none", NODE, 400),
    ("PUT", "/node/controller/setupAlternateAddresses/external", "", EVERYTHING, 400),
    ("DELETE", "/node/controller/setupAlternateAddresses/external", None, EVERYTHING, 200),
    ("POST", "/pools/default", "memoryQuota=x", NODE, 400),
    ("POST", "/settings/indexes", "storageMode=x", NODE, 400),
    ("POST", "/pools/default/buckets", "", NODE, 400),
    ("POST", "/settings/web", "", EVERYTHING, 400),
    ("POST", "/clusterInit", "", EVERYTHING, 400),
    ("GET", "/settings/rbac/users", None, SEE_USERS, 200),
    ("GET", "/settings/rbac/users/{domain}", None, SEE_USERS, 200),
    ("GET", "/settings/rbac/users/{domain}/{user}", None, SEE_USERS, 404),
    ("GET", "/settings/rbac/groups", None, SEE_USERS, 200),
    ("GET", "/settings/rbac/groups/{group}", None, SEE_USERS, 404),
    ("GET", "/settings/rbac/roles", None, SEE_USERS, 200),
    ("PUT", "/settings/rbac/users/{domain}/{user}", "", MANAGE_USERS, 400),
    ("PATCH", "/settings/rbac/users/{domain}/{user}", "", MANAGE_USERS, 404),
    ("DELETE", "/settings/rbac/users/{domain}/{user}", None, MANAGE_USERS, 404),
    ("PUT", "/settings/rbac/groups/{group}", "roles=superman", MANAGE_USERS, 400),
    ("PATCH", "/settings/rbac/groups/{group}", "", MANAGE_USERS, 404),
    ("DELETE", "/settings/rbac/groups/{group}", None, MANAGE_USERS, 404),
    ("GET", "/pools/default/buckets/{bucket}", None, SEE, 200),
    ("GET", "/pools/default/b/{bucket}", None, SEE, 200),
    ("GET", "/pools/default/bs/{bucket}", None, SEE, 200),
    ("GET", "/pools/default/buckets/{bucket}/scopes", None, SEE, 200),
    ("POST", "/pools/default/buckets/{bucket}/scopes/@ensureManifest/{uid}", "", SEE, 200),
    ("GET", "/pools/default/buckets/{bucket}/vbuckets", None, STATISTICS, 200),
    ("GET", "/pools/default/buckets/{bucket}/vbuckets/{vb}", None, STATISTICS, 200),
    ("GET", "/pools/default/buckets/{bucket}/stats", None, STATISTICS, 200),
    ("GET", "/pools/default/buckets/{bucket}/sizeClasses", None, STATISTICS, 200),
    ("POST", "/pools/default/buckets/{bucket}/vbuckets", "state=none", BUCKET, 400),
    ("POST", "/pools/default/buckets/{bucket}/vbuckets/{vb}", "state=none", BUCKET, 400),
    ("POST", "/pools/default/buckets/{bucket}/audit", "", BUCKET, 200),
    ("POST", "/pools/default/buckets/{bucket}/backup", "colour=red", BUCKET, 400),
    ("POST", "/pools/default/buckets/{bucket}", "ramQuota=x", BUCKET, 400),
    ("POST", "/pools/default/buckets/{bucket}/controller/compactBucket", "", BUCKET, 200),
    ("POST", "/pools/default/buckets/{bucket}/controller/compactDatabases", "", BUCKET, 200),
    ("GET", "/pools/default/buckets/{bucket}/nodes", None, SEE, 200),
    ("GET", "/pools/default/buckets/{bucket}/nodes/{node}", None, SEE, 404),
    ("GET", "/pools/default/buckets/{bucket}/nodes/{node}/stats", None, STATISTICS, 404),
    ("POST", "/pools/default/buckets/{bucket}/controller/doFlush", "", FLUSH, 400),
    ("POST", "/pools/default/buckets/{bucket}/scopes", "", ALL_SCOPES, 400),
    ("PUT", "/pools/default/buckets/{bucket}/scopes", "{}", ALL_SCOPES, 400),
    ("DELETE", "/pools/default/buckets/{bucket}/scopes/{missing scope}", None, ALL_SCOPES, 404),
    ("POST", "/pools/default/buckets/{bucket}/scopes/{scope}/collections", "", COLLECTIONS, 400),
    ("PATCH", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}", "colour=red", COLLECTIONS, 400),
    ("DELETE", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}", None, COLLECTIONS, 404),
    ("GET", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs", None, READ_THERE, 404),
    ("PUT", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs", '{"value": ""}', WRITE_THERE, 404),
    ("DELETE", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs", None, WRITE_THERE, 404),
    ("GET", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs/{key}", None, READ_THERE, 404),
    ("PUT", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs/{key}", '{"value": ""}', WRITE_THERE, 404),
    ("DELETE", "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs/{key}", None, WRITE_THERE, 404),
    ("GET", "/pools/default/buckets/{bucket}/prefixes", None, READ_ALL, 200),
    # The last: it is done, and undone by the administrator.
    ("DELETE", "/pools/default/buckets/{bucket}", None, BUCKET, 200),
]
# Reads that need a login where others do not: about the user, or with keys. (So do hot keys.)
LOGIN_ALWAYS = ("/whoami", "/requests/slow", "/requests/large")
ON_NODE = {SETTINGS, METRICS, NODE, SEE_USERS, MANAGE_USERS, SECURITY, EVERYTHING}
ON_ALL_OF_A_BUCKET = {STATISTICS, BUCKET, FLUSH, ALL_SCOPES}
READS, WRITES = {READ, READ_THERE, READ_ALL}, {WRITE_THERE}

# What each role allows, where it applies, and how far it can be limited: to a bucket, a scope, a collection.
APPLICATION = {SEE, STATISTICS, FLUSH} | READS | WRITES
ROLES = {
    "admin": (0, ON_NODE | ON_ALL_OF_A_BUCKET | {SEE, COLLECTIONS} | READS | WRITES),
    "ro_admin": (0, {SETTINGS, METRICS, SEE_USERS, SEE, STATISTICS}),
    "cluster_admin": (0, {SETTINGS, METRICS, NODE, SEE, COLLECTIONS} | ON_ALL_OF_A_BUCKET),
    "security_admin": (0, {SETTINGS, SEE_USERS, MANAGE_USERS, SECURITY, SEE, STATISTICS}),
    "ro_security_admin": (0, {SETTINGS, SEE_USERS, SEE, STATISTICS}),
    "user_admin_local": (0, {SETTINGS, SEE_USERS, MANAGE_USERS, SEE, STATISTICS}),
    "security_admin_local": (0, {SETTINGS, SEE_USERS, MANAGE_USERS, SEE, STATISTICS}),
    # They manage users of another domain: see the tests of these.
    "user_admin_external": (0, {SETTINGS, SEE_USERS, SEE, STATISTICS}),
    "security_admin_external": (0, {SETTINGS, SEE_USERS, SEE, STATISTICS}),
    "replication_admin": (0, {SETTINGS, SEE, STATISTICS}),
    "backup_admin": (0, {SETTINGS, METRICS, NODE, SEE, COLLECTIONS} | ON_ALL_OF_A_BUCKET | READS | WRITES),
    "eventing_admin": (0, {SETTINGS, SEE, STATISTICS}),
    "external_stats_reader": (0, {METRICS}),
    "bucket_admin": (1, {SEE, COLLECTIONS} | ON_ALL_OF_A_BUCKET),
    "bucket_full_access": (1, APPLICATION),
    "mobile_sync_gateway": (1, APPLICATION | {ALL_SCOPES, COLLECTIONS}),
    "data_backup": (1, APPLICATION | {ALL_SCOPES, COLLECTIONS}),
    "scope_admin": (2, {SEE, ALL_SCOPES, COLLECTIONS}),
    "data_reader": (3, {SEE} | READS),
    "data_writer": (3, {SEE} | WRITES),
    "data_dcp_reader": (3, {SEE} | READS),
    "replication_target": (3, {SEE, STATISTICS} | READS | WRITES),
    "data_monitoring": (3, {SEE, STATISTICS}),
    "views_admin": (1, {SEE, STATISTICS} | READS),
    "views_reader": (1, {SEE} | READS),
    # Those of services that are not there.
    **dict.fromkeys((
        "query_system_catalog", "query_external_access", "query_manage_global_functions", "query_execute_global_functions",
        "query_manage_global_external_functions", "query_execute_global_external_functions", "analytics_admin", "analytics_reader", "sync_gateway_dev_ops",
    ), (0, set())),
    **dict.fromkeys(("fts_admin", "analytics_manager"), (1, set())),
    **dict.fromkeys((
        "query_manage_functions", "query_execute_functions", "query_manage_external_functions", "query_execute_external_functions",
        "query_manage_sequences", "query_use_sequences", "eventing_manage_functions",
    ), (2, set())),
    **dict.fromkeys((
        "query_select", "query_insert", "query_update", "query_delete", "query_use_sequential_scans", "query_manage_index", "fts_searcher", "analytics_select",
        "sync_gateway_configurator", "sync_gateway_app", "sync_gateway_app_ro", "sync_gateway_replicator",
    ), (3, set())),
}
PLACES = (("*",), ("orders",), ("orders", "eu"), ("orders", "eu", "new"))


def places(depth):
    return PLACES[: depth + 1] if depth else ((),)


def may(role, place, need, bucket, scope):
    """Returns true if the role for this place allows a request with this need, about this bucket and scope."""
    if need in (NOTHING, LOGIN):
        return True
    if need not in ROLES[role][1]:
        return False
    if place in ((), ("*",)):
        return True
    if place[0] != bucket:
        return False
    # The collection of the requests is another one.
    limits = {SEE: 3, READ: 3, COLLECTIONS: 2, READ_THERE: 2, WRITE_THERE: 2}.get(need, 1)
    return len(place) <= limits and (need in (SEE, READ) or len(place) == 1 or place[1] == scope)


def paths(path):
    """The paths that stand for this one, each with its bucket and scope."""
    for name, value in (("domain", "local"), ("user", "nobody"), ("group", "nobody"), ("uid", "0"), ("vb", "7"), ("file", "main.js"), ("missing scope", "none"), ("collection", "none"), ("database", "none"), ("table", "none"), ("key", "k"), ("node", "none")):
        path = path.replace(f"{{{name}}}", value)
    for bucket in ("orders", "other") if "{bucket}" in path else (None,):
        for scope in ("eu", "us") if "{scope}" in path else (None,):
            yield path.replace("{bucket}", str(bucket)).replace("{scope}", str(scope)), bucket, scope


def restore(root, bucket):
    root.done("POST", f"{POOL}/buckets", {"name": bucket, "bucketType": "ephemeral", "ramQuotaMB": 32})
    add_scopes(root, bucket)


@pytest.mark.parametrize("role", ROLES)
def test_each_role_allows_what_it_says_and_nothing_else(root, user, role):
    wrong = []
    for place in places(ROLES[role][0]):
        text = role + (f"[{':'.join(place)}]" if place else "")
        client = user(text)
        for method, template, form, need, status in REQUESTS:
            for path, bucket, scope in paths(template):
                expected = status if may(role, place, need, bucket, scope) else 403
                found = client.status(method, path, form)
                if found != expected:
                    wrong.append(f"{text}: {method} {path}: {found}, not {expected}")
                if (method, template, found) == ("DELETE", "/pools/default/buckets/{bucket}", 200):
                    restore(root, bucket)
    assert not wrong, "\n".join(wrong)


def test_the_table_has_every_role(root):
    depths = {one["role"]: sum(name in one for name in ("bucket_name", "scope_name", "collection_name")) for one in root.document("/settings/rbac/roles")}
    assert depths == {role: depth for role, (depth, _) in ROLES.items()}


def test_the_table_has_every_route(root):
    templates = {re.sub("missing ", "", path) for _, path, *_ in REQUESTS}
    routes = set(re.findall(r'\(\s*"(/[^"]*)",', ROUTES.read_text()))
    assert templates == routes
    for template in sorted(templates):
        methods = {method for method, path, *_ in REQUESTS if re.sub("missing ", "", path) == template}
        path = next(paths(template))[0]
        for method in {"GET", *CHANGES} - methods:
            assert root.status(method, path, "" if method != "GET" else None) == 405, f"{method} {path}"


@pytest.mark.parametrize("name, password", [(None, None), ("nobody", PASSWORD)], ids=["no login", "unknown user"])
def test_nothing_is_done_without_a_login(node, name, password):
    with Client(node, name, password) as client:
        for method, template, form, need, status in REQUESTS:
            for path, *_ in paths(template):
                for path in (path, f"{path}/") if need != NOTHING else (path,):
                    assert client.status(method, path, form) == (status if need == NOTHING else 401), f"{method} {path}"


def before_the_body(client, method, path):
    """The status and the header Connection of the answer to a head whose body does not come."""
    connection = http.client.HTTPConnection(*client.node.http, timeout=5)
    connection.putrequest(method, path)
    for name, value in {**client.headers, "Content-Type": "application/x-www-form-urlencoded", "Content-Length": "100"}.items():
        connection.putheader(name, value)
    connection.endheaders()
    try:
        answer = connection.getresponse()
        return answer.status, answer.getheader("Connection")
    finally:
        connection.close()


@pytest.mark.parametrize("roles", ["", "data_reader[orders:us]", "bucket_admin[other]", "ro_admin", "cluster_admin"])
def test_no_body_is_awaited_of_a_user_without_the_rights(node, user, roles):
    client = user(roles)
    role, _, place = roles.rstrip("]").partition("[")
    place = tuple(place.split(":")) if place else ()
    asked = 0
    with Client(node, None) as nobody:
        for method, template, _, need, _ in REQUESTS:
            for path, bucket, scope in paths(template) if method in CHANGES else ():
                if need != LOGIN and not (roles and may(role, place, need, bucket, scope)):
                    assert before_the_body(client, method, path) == (403, "close"), f"{method} {path}"
                    asked += 1
                assert before_the_body(nobody, method, path) == (401, "close"), f"{method} {path}"
    assert asked > 10


def test_a_wrong_password_is_no_login(node, user):
    user("admin")
    with Client(node, "eve", "wrong-password") as client:
        for method, path in (("GET", "/whoami"), ("GET", "/pools"), ("DELETE", f"{POOL}/buckets/orders"), ("POST", "/clusterInit")):
            assert client.status(method, path, "" if method == "POST" else None) == 401


def test_a_slash_at_the_end_and_other_spellings_of_a_path_are_no_way_around(root, user):
    client = user("bucket_admin[other]")
    for method, template, form, need, status in REQUESTS:
        for path, bucket, scope in paths(template):
            if need == NOTHING or (method, template) == ("DELETE", "/pools/default/buckets/{bucket}"):
                continue
            expected = status if may("bucket_admin", ("other",), need, bucket, scope) else 403
            assert client.status(method, f"{path}/", form) == expected, f"{method} {path}/"
    for bucket in ("orde%72s", "orders/", "%6frders", "orders%00", "orders%2f", "other%2f..%2forders", "Orders", "orde%2572s", "*", "%2a"):
        for method, path, form in (("GET", "", None), ("POST", "/controller/doFlush", ""), ("POST", "/audit", ""), ("DELETE", "", None)):
            assert client.status(method, f"{POOL}/buckets/{bucket}{path}", form) in (403, 404), f"{method} {bucket}{path}"
    for path in ("//settings/rbac/users", "/pools/../settings/rbac/users", "/pools/default/buckets/other/../orders", "/SETTINGS/rbac/users"):
        assert client.status("GET", path) == 404, path
    assert client.status("GET", f"{POOL}/buckets/othe%72") == 200
    assert {one["name"] for one in root.document(f"{POOL}/buckets")} == {"orders", "other"}


def test_without_a_password_file_reads_need_no_login():
    with servers.Dormouse(buckets=BUCKETS, memory="256MiB", ports={"memcached": "none"}) as node:
        with Client(node, "Administrator", "password") as administrator:
            add_scopes(administrator, "orders")
            add_scopes(administrator, "other")
            administrator.done("PUT", f"{USERS}/eve", {"password": PASSWORD})
        with Client(node, None) as nobody, Client(node, "eve") as eve, Client(node, "eve", "wrong-password") as wrong:
            for method, template, form, need, status in REQUESTS:
                for path, *_ in paths(template):
                    is_open = need == NOTHING or method == "GET" and path not in LOGIN_ALWAYS and need not in READS | {EVERYTHING}
                    assert nobody.status(method, path, form) == (status if is_open else 401), f"{method} {path}"
                    # A login counts where it is given.
                    assert eve.status(method, path, form) == (status if need in (NOTHING, LOGIN) else 403), f"eve: {method} {path}"
            for method, path in (("GET", "/pools"), ("GET", "/metrics"), ("POST", "/clusterInit")):
                assert wrong.status(method, path) == 401, f"{method} {path}"


# Rights over others.

OVER_OTHERS = (
    "admin", "cluster_admin", "backup_admin", "security_admin", "user_admin_local", "security_admin_local", "user_admin_external", "security_admin_external",
)


@pytest.fixture
def groups(root):
    """A group with a role over others, one without, and one whose only member has one of its own."""
    root.done("PUT", f"{GROUPS}/mighty", {"roles": "cluster_admin"})
    root.done("PUT", f"{GROUPS}/readers", {"roles": "data_reader[orders]"})
    root.done("PUT", f"{GROUPS}/staff", {"roles": "data_reader[orders]"})
    yield
    for name in ("mighty", "readers", "staff"):
        root.ask("DELETE", f"{GROUPS}/{name}")


@pytest.fixture
def others(groups, user):
    """Users whom the attempts are about: with a role over others, through a group, and without."""
    user("cluster_admin", "boss", groups="staff")
    user("data_reader[orders]", "member", groups="mighty")
    user("data_reader[orders]", "plain")


def attempts(role):
    """Requests that give somebody the role, or change somebody who has one like it."""
    return [
        ("PUT", f"{USERS}/made", {"roles": role, "password": PASSWORD}),
        ("PUT", f"{USERS}/plain", {"roles": role}),
        ("PATCH", f"{USERS}/plain", {"roles": role}),
        ("PUT", f"{GROUPS}/made", {"roles": role}),
        ("PUT", f"{GROUPS}/readers", {"roles": f"data_reader[orders],{role}"}),
        ("PATCH", f"{GROUPS}/readers", {"roles": role}),
    ]


ATTEMPTS = [
    ("PUT", f"{USERS}/made", {"groups": "mighty", "password": PASSWORD}),
    ("PUT", f"{USERS}/plain", {"groups": "readers,mighty"}),
    ("PATCH", f"{USERS}/plain", {"groups": "mighty"}),
    # Of users who have such a role.
    *[
        request
        for name in ("boss", "member", "mallory")
        for request in (
            ("PUT", f"{USERS}/{name}", {}),
            ("PUT", f"{USERS}/{name}", {"roles": "data_reader[orders]"}),
            ("PATCH", f"{USERS}/{name}", {"name": "Other"}),
            ("PATCH", f"{USERS}/{name}", {"password": "another-password"}),
            ("PATCH", f"{USERS}/{name}", {"roles": "admin"}),
            ("PATCH", f"{USERS}/{name}", {"groups": ""}),
            ("DELETE", f"{USERS}/{name}", None),
        )
    ],
    # Of a group that has one.
    ("PUT", f"{GROUPS}/mighty", {"roles": "data_reader[orders]"}),
    ("PUT", f"{GROUPS}/mighty", {"roles": "cluster_admin", "description": "other"}),
    ("PATCH", f"{GROUPS}/mighty", {"description": "other"}),
    ("DELETE", f"{GROUPS}/mighty", None),
]
# A group that such a user is in: what it has is the user's.
ATTEMPTS_ON_GROUPS_OF_OTHERS = [
    ("PUT", f"{GROUPS}/staff", {"roles": "data_writer[orders]"}),
    ("PUT", f"{GROUPS}/staff", {"roles": ""}),
    ("PATCH", f"{GROUPS}/staff", {"roles": ""}),
    ("DELETE", f"{GROUPS}/staff", None),
]


def state(root):
    return root.document("/settings/rbac/users"), root.document(GROUPS)


def refused(root, client, requests):
    before, wrong = state(root), []
    for request in requests:
        status, body = client.ask(*request)
        if status != 403:
            wrong.append(f"{request}: {status} {body}")
    assert not wrong, "\n".join(wrong)
    assert state(root) == before


def test_who_manages_users_gives_nobody_rights_over_others(root, user, others):
    mallory = user("user_admin_local", "mallory")
    refused(root, mallory, [request for role in OVER_OTHERS for request in attempts(role)])


def test_who_manages_users_changes_nobody_who_has_rights_over_others(root, user, others):
    refused(root, user("user_admin_local", "mallory"), ATTEMPTS)


def test_who_manages_users_changes_no_group_of_somebody_who_has_rights_over_others(root, user, others):
    refused(root, user("user_admin_local", "mallory"), ATTEMPTS_ON_GROUPS_OF_OTHERS)


@pytest.mark.parametrize("roles", ["cluster_admin", "ro_admin", "bucket_admin[*]", "data_backup[*]", "external_stats_reader", ""])
def test_who_does_not_manage_users_changes_none(root, user, others, roles):
    mallory = user(roles, "mallory")
    refused(root, mallory, [*attempts("admin"), *attempts("data_reader[orders]"), *ATTEMPTS, *ATTEMPTS_ON_GROUPS_OF_OTHERS])


def test_who_manages_users_manages_all_others(root, user, others):
    mallory = user("user_admin_local", "mallory")
    for role in ("ro_admin", "bucket_admin[*]", "data_reader[orders]", "external_stats_reader", "scope_admin[orders:eu]"):
        for request in attempts(role):
            mallory.done(*request)
        mallory.done("DELETE", f"{USERS}/made")
        mallory.done("DELETE", f"{GROUPS}/made")
    mallory.done("PATCH", f"{USERS}/plain", {"groups": "readers"})
    mallory.done("DELETE", f"{GROUPS}/readers")
    mallory.done("DELETE", f"{USERS}/plain")


def test_who_manages_security_manages_all(root, user, others):
    mallory = user("security_admin", "mallory")
    for role in OVER_OTHERS:
        for request in attempts(role):
            mallory.done(*request)
        mallory.done("DELETE", f"{USERS}/made")
        mallory.done("DELETE", f"{GROUPS}/made")
        mallory.done("PATCH", f"{USERS}/plain", {"roles": "data_reader[orders]"})
    for request in ATTEMPTS + ATTEMPTS_ON_GROUPS_OF_OTHERS:
        if "mallory" not in request[1]:
            mallory.done(*request)
    assert not {"boss", "member", "mighty", "staff"} & {one["id"] for document in state(root) for one in document}
    root.done("DELETE", f"{USERS}/made")


# What is shown.


def test_only_what_a_user_may_see_is_listed(root, user):
    for roles, seen in {
        "": set(),
        "query_select[*]": set(),
        "external_stats_reader": set(),
        "data_reader[orders:eu:new]": {"orders"},
        "scope_admin[other:us]": {"other"},
        "bucket_admin[other]": {"other"},
        "data_writer[orders:us],data_monitoring[other]": {"orders", "other"},
        "data_reader[*]": {"orders", "other"},
        "ro_admin": {"orders", "other"},
    }.items():
        client = user(roles)
        assert {one["name"] for one in client.document(f"{POOL}/buckets")} == seen, roles
        assert {one["bucketName"] for one in client.document(POOL)["bucketNames"]} == seen, roles


def test_the_manifest_has_what_a_user_may_see(user):
    everything = {("_default", "_default"), ("_system", "_mobile"), ("_system", "_query"), ("eu", "new"), ("eu", "old"), ("us", "new")}
    for roles, seen in {
        "data_reader[orders:eu:new]": {("eu", "new")},
        "data_reader[orders:eu:new],data_writer[orders:us:new]": {("eu", "new"), ("us", "new")},
        "data_reader[orders:eu:new],query_select[orders:eu:old]": {("eu", "new")},
        "data_reader[orders:eu:new],data_reader[other]": {("eu", "new")},
        "data_reader[orders:eu]": {("eu", "new"), ("eu", "old")},
        "scope_admin[orders:us]": {("us", "new")},
        "data_writer[orders:_default]": {("_default", "_default")},
        "data_reader[orders]": everything,
        "data_monitoring[*]": everything,
        "cluster_admin": everything,
    }.items():
        scopes = user(roles).document(f"{POOL}/buckets/orders/scopes")["scopes"]
        assert {(scope["name"], one["name"]) for scope in scopes for one in scope["collections"]} == seen, roles
        assert {scope["name"] for scope in scopes} == {scope for scope, _ in seen}, roles


def test_a_missing_bucket_is_told_to_those_who_see_all(user):
    for roles, status in (("data_reader[*]", 404), ("ro_admin", 404), ("data_reader[orders]", 403), ("", 403)):
        client = user(roles)
        for path in (f"{POOL}/buckets/none", f"{POOL}/b/none", f"{POOL}/bs/none", f"{POOL}/buckets/none/scopes"):
            assert client.status("GET", path) == status, f"{roles}: {path}"


def test_users_see_themselves(root, user):
    client = user("data_reader[orders:eu:new],ro_admin")
    assert client.document("/whoami") == {
        "id": "eve",
        "domain": "local",
        "roles": [{"role": "data_reader", "bucket_name": "orders", "scope_name": "eu", "collection_name": "new"}, {"role": "ro_admin"}],
    }
    root.done("PUT", f"{GROUPS}/readers", {"roles": "scope_admin[orders:eu]"})
    assert user("", groups="readers").document("/whoami")["roles"] == [{"role": "scope_admin", "bucket_name": "orders", "scope_name": "eu"}]
    root.done("DELETE", f"{GROUPS}/readers")


@pytest.mark.parametrize("roles, admin, reader", [
    ("admin", True, False), ("cluster_admin", True, False), ("ro_admin", False, True), ("bucket_admin[*]", False, False), ("data_reader[*]", False, False), ("", False, False),
])
def test_clients_are_told_whether_they_administrate(user, roles, admin, reader):
    pools = user(roles).document("/pools")
    assert (pools["isAdminCreds"], pools["isROAdminCreds"]) == (admin, reader)


# Streams of maps.


def change_map(root):
    """A change that streams of maps send."""
    root.done("POST", f"{POOL}/buckets/orders/scopes", {"name": "more"})
    root.done("DELETE", f"{POOL}/buckets/orders/scopes/more")


def withdrawals(root):
    """Ways to lose the right to see the bucket "orders"."""
    return {
        "roles": lambda: root.done("PUT", f"{USERS}/eve", {"roles": "data_reader[other]"}),
        "group": lambda: root.done("PUT", f"{GROUPS}/readers", {}),
        "no group": lambda: root.done("DELETE", f"{GROUPS}/readers"),
        "no user": lambda: root.done("DELETE", f"{USERS}/eve"),
    }


@pytest.fixture(params=["roles", "group", "no group", "no user"])
def stream(request, root, user):
    """A stream of eve, who sees the bucket as a member of a group, and a way to end that."""
    root.done("PUT", f"{GROUPS}/readers", {"roles": "data_reader[orders:eu:new]"})
    if request.param == "roles":
        client = user("data_reader[orders:eu:new]")
    else:
        client = user("", groups="readers")
    with Stream(client, f"{POOL}/bs/orders") as one:
        assert one.map()["name"] == "orders"
        yield one, withdrawals(root)[request.param]
    root.ask("DELETE", f"{GROUPS}/readers")


def test_a_stream_ends_when_the_right_is_withdrawn(stream):
    one, withdraw = stream
    withdraw()
    assert one.map() is None


def test_no_map_is_sent_after_the_right_is_withdrawn(root, stream):
    one, withdraw = stream
    withdraw()
    change_map(root)
    assert one.map() is None


def test_a_stream_goes_on_while_any_right_is_left(root, user):
    client = user("data_reader[orders:eu:new],data_writer[orders]")
    with Stream(client, f"{POOL}/bs/orders") as one:
        first = one.map()
        user("scope_admin[orders:us]")
        root.done("PUT", f"{USERS}/eve", {"roles": "data_monitoring[orders:eu]"})
        change_map(root)
        assert one.map()["rev"] > first["rev"]


# Files.


def traces(password):
    raw = password.encode()
    return {raw, base64.b64encode(raw).rstrip(b"="), base64.b64encode(b"eve:" + raw)[:-4], raw.hex().encode(), urllib.parse.quote(password).encode()}


def test_users_and_groups_survive_a_kill_and_their_file_tells_no_password(tmp_path):
    file, login = tmp_path / "node" / "users.json", ("Administrator", "password")
    passwords = ["grüße & 100%", "another-password"]
    with start(tmp_path, buckets=BUCKETS, ports={"memcached": "none"}) as node:
        with Client(node, *login) as root:
            add_scopes(root, "orders")
            assert not file.exists()
            root.done("PUT", f"{GROUPS}/readers", {"roles": "data_reader[orders:eu:new],data_reader[other]", "description": "read", "ldap_group_ref": "cn=readers"})
            root.done("PUT", f"{USERS}/eve", {"password": passwords[0], "roles": "scope_admin[orders:eu],ro_admin", "groups": "readers", "name": "Eve Müller"})
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            file.chmod(0o644)
            with Client(node, "eve", passwords[0]) as eve:
                eve.done("POST", "/controller/changePassword", {"password": passwords[1]})
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            before = state(root)
        node.kill()
    with start(tmp_path, buckets=BUCKETS, ports={"memcached": "none"}) as node:
        with Client(node, *login) as root, Client(node, "eve", passwords[1]) as eve, Client(node, "eve", passwords[0]) as old:
            assert state(root) == before
            assert old.status("GET", "/whoami") == 401
            assert {(one["role"], one.get("bucket_name")) for one in eve.document("/whoami")["roles"]} == {
                ("scope_admin", "orders"), ("ro_admin", None), ("data_reader", "orders"), ("data_reader", "other"),
            }
            assert eve.status("DELETE", f"{POOL}/buckets/other") == 403
    for path in (one for one in tmp_path.rglob("*") if one.is_file()):
        content = path.read_bytes()
        assert not [trace for password in passwords for trace in traces(password) if trace in content], path
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_roles_are_for_whatever_has_the_name(root, user):
    """A bucket or collection that is dropped and made again is meant as well, and nothing in between."""
    client = user("data_reader[other:eu:new],bucket_admin[other]")
    root.done("DELETE", f"{POOL}/buckets/other")
    assert client.document(f"{POOL}/buckets") == []
    assert client.status("GET", f"{POOL}/buckets/other") == 404
    restore(root, "other")
    assert client.status("GET", f"{POOL}/buckets/other") == 200
    assert client.status("POST", f"{POOL}/buckets/other/audit", "") == 200


# Malformed forms, names and limits.


@pytest.mark.parametrize("method, path, form, field, word", [
    ("PUT", f"{USERS}/made", "password=short", "password", "6"),
    ("PUT", f"{USERS}/made", "password=", "password", "6"),
    ("PUT", f"{USERS}/made", "password", "password", "6"),
    ("PUT", f"{USERS}/made", f"password={'x' * 1025}", "password", "1024"),
    ("PUT", f"{USERS}/made", "password=line%0Afeed", "password", "control"),
    ("PUT", f"{USERS}/made", "password=nothing%00", "password", "control"),
    # No UTF-8: another password would be stored.
    ("PUT", f"{USERS}/garbled", "password=%ff%fe%fd%fc%fb%fa", "password", ""),
    ("PUT", f"{USERS}/made", "roles=data_reader[*]", "password", "required"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=superman", "roles", "superman"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=data_reader", "roles", "data_reader"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=admin[*]", "roles", "admin[*]"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=admin,data_reader[none]", "roles", "[data_reader[none]]"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=data_reader[orders:none]", "roles", "data_reader[orders:none]"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=data_reader[orders:eu:none]", "roles", "data_reader[orders:eu:none]"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=data_reader[*:eu]", "roles", "data_reader[*:eu]"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=scope_admin[orders:eu:new]", "roles", "scope_admin[orders:eu:new]"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&roles=data_reader[orders", "roles", "data_reader[orders"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&groups=none", "groups", "none"),
    ("PUT", f"{USERS}/made", f"password={PASSWORD}&name={'x' * 1025}", "name", "1024"),
    ("PUT", "/settings/rbac/users/other/made", f"password={PASSWORD}", "_", "other"),
    ("PUT", "/settings/rbac/users/admin/made", f"password={PASSWORD}", "_", "admin"),
    ("PUT", f"{EXTERNAL}/made", "roles=superman", "roles", "superman"),
    ("PUT", f"{EXTERNAL}/made", "groups=none", "groups", "none"),
    ("PUT", f"{EXTERNAL}/made", f"name={'x' * 1025}", "name", "1024"),
    ("PATCH", f"{USERS}/plain", "password=short", "password", "6"),
    ("PATCH", f"{USERS}/plain", "roles=superman", "roles", "superman"),
    ("PATCH", f"{USERS}/plain", "groups=none", "groups", "none"),
    ("PUT", f"{USERS}/{ADMINISTRATOR}", f"password={PASSWORD}", "_", "configuration"),
    ("PATCH", f"{USERS}/{ADMINISTRATOR}", "roles=data_reader[*]", "_", "configuration"),
    ("DELETE", f"{USERS}/{ADMINISTRATOR}", None, "_", "configuration"),
    ("POST", "/controller/changePassword", "password=another-password", "_", "configuration"),
    ("PUT", f"{GROUPS}/made", "roles=superman", "roles", "superman"),
    ("PUT", f"{GROUPS}/made", f"description={'x' * 1025}", "description", "1024"),
    ("PUT", f"{GROUPS}/made", f"ldap_group_ref={'x' * 1025}", "ldap_group_ref", "1024"),
    ("PATCH", f"{GROUPS}/readers", "roles=superman", "roles", "superman"),
], ids=lambda value: value[:60] if isinstance(value, str) else None)
def test_a_malformed_form_is_refused_with_its_field(root, user, method, path, form, field, word):
    user("data_reader[orders]", "plain")
    before = state(root)
    status, body = root.ask(method, path, form)
    assert status == 400, (status, body)
    errors = json.loads(body)["errors"]
    assert list(errors) == [field] and word in errors[field], errors
    assert state(root) == before


@pytest.mark.parametrize("form, field", [("", "password"), ("password=short", "password"), (f"password={PASSWORD}&name=Eve", None), (f"password={PASSWORD}&roles=admin&groups=readers", None)])
def test_a_user_changes_its_password_and_nothing_else(root, user, form, field):
    def known():
        users, groups = state(root)
        return [{name: value for name, value in one.items() if name != "password_change_date"} for one in users], groups

    client, before = user("data_reader[orders]"), known()
    status, body = client.ask("POST", "/controller/changePassword", form)
    assert (status == 400 and list(json.loads(body)["errors"]) == [field]) if field else status == 200, body
    assert known() == before
    assert client.status("GET", "/whoami") == 200


def test_unknown_fields_are_ignored(root, user):
    """Whole products stop at the first one that is refused."""
    user("data_reader[orders]", "plain")
    root.done("PUT", f"{USERS}/plain", {"roles": "data_writer[orders]", "locked": "false", "description": "text", "colour": "red"})
    root.done("PATCH", f"{USERS}/plain", {"temporaryPassword": "false"})
    shown = root.document(f"{USERS}/plain")
    assert [one["role"] for one in shown["roles"]] == ["data_writer"] and not {"locked", "description", "colour"} & set(shown)
    root.done("PUT", f"{GROUPS}/made", {"roles": "ro_admin", "groups": "readers", "password": PASSWORD})
    assert root.document(f"{GROUPS}/made") == {"id": "made", "description": "", "ldap_group_ref": "", "roles": [{"role": "ro_admin"}]}
    root.done("DELETE", f"{GROUPS}/made")


def test_the_administrator_is_not_among_the_users(root, user):
    user("data_reader[orders]")
    listed = [(one["id"], one["domain"]) for one in root.document("/settings/rbac/users")]
    assert ("eve", "local") in listed and ADMINISTRATOR not in {name for name, _ in listed}
    assert ADMINISTRATOR not in {one["id"] for one in root.document(USERS)}
    assert root.status("GET", f"{USERS}/{ADMINISTRATOR}") == 404
    assert [one["id"] for one in root.document("/settings/rbac/users/admin")] == [ADMINISTRATOR]
    assert root.document("/whoami")["domain"] == "admin"


def test_external_users_are_stored_and_nobody_logs_in_as_one(node, root, user):
    user("data_reader[orders]", "plain")
    root.done("PUT", f"{GROUPS}/readers", {"roles": "data_reader[other]"})
    root.done("PUT", f"{EXTERNAL}/plain", {"roles": "admin", "name": "Another", "groups": "readers", "password": "ignored-password"})
    expected = {
        "id": "plain", "domain": "external", "name": "Another", "groups": ["readers"], "external_groups": [],
        "roles": [{"role": "admin", "origins": [{"type": "user"}]}, {"role": "data_reader", "bucket_name": "other", "scope_name": "*", "collection_name": "*", "origins": [{"type": "group", "name": "readers"}]}],
    }
    assert root.document(f"{EXTERNAL}/plain") == expected and root.document(EXTERNAL) == [expected]
    assert {("plain", "local"), ("plain", "external")} <= {(one["id"], one["domain"]) for one in root.document("/settings/rbac/users")}
    for password in ("ignored-password", ""):
        with Client(node, "plain", password) as client:
            assert client.status("GET", "/whoami") == 401
    # The local user of that name has what it had.
    with Client(node, "plain") as client:
        assert {one["role"] for one in client.document("/whoami")["roles"]} == {"data_reader"}
    root.done("PATCH", f"{EXTERNAL}/plain", {"roles": "ro_admin"})
    assert (root.document(f"{EXTERNAL}/plain")["name"], root.document(f"{EXTERNAL}/plain")["roles"][0]["role"]) == ("Another", "ro_admin")
    root.done("DELETE", f"{GROUPS}/readers")
    assert root.document(f"{EXTERNAL}/plain")["groups"] == []
    root.done("DELETE", f"{EXTERNAL}/plain")
    assert root.status("GET", f"{EXTERNAL}/plain") == 404 and root.status("GET", f"{USERS}/plain") == 200
    assert root.status("DELETE", f"{EXTERNAL}/plain") == 404 and root.status("PATCH", f"{EXTERNAL}/plain", "name=x") == 404


@pytest.mark.parametrize("role, external, local", [
    ("user_admin_external", 200, 403), ("security_admin_external", 200, 403), ("user_admin_local", 403, 200), ("security_admin_local", 403, 200),
    ("security_admin", 200, 200), ("cluster_admin", 403, 403), ("ro_security_admin", 403, 403), ("backup_admin", 403, 403),
])
def test_who_manages_users_of_which_domain(root, user, role, external, local):
    user("data_reader[orders]", "plain")
    client = user(role, "mallory")
    root.done("PUT", f"{EXTERNAL}/mighty", {"roles": "cluster_admin"})
    assert client.status("PUT", f"{EXTERNAL}/other", "roles=data_reader[orders]") == external
    assert client.status("PATCH", f"{USERS}/plain", "name=x") == local
    if role != "security_admin":
        for request in (("PUT", f"{EXTERNAL}/other", "roles=user_admin_local"), ("PATCH", f"{EXTERNAL}/mighty", "name=x"), ("DELETE", f"{EXTERNAL}/mighty", None), ("PUT", f"{EXTERNAL}/other", "roles=security_admin_external")):
            assert client.status(*request) == 403, request
    for name in ("other", "mighty"):
        root.ask("DELETE", f"{EXTERNAL}/{name}")


def test_new_passwords_are_of_the_policy(root, user):
    user("data_reader[orders]", "plain")
    policy = "/settings/passwordPolicy"
    assert root.document(policy) == {"minLength": 6, "enforceUppercase": False, "enforceLowercase": False, "enforceDigits": False, "enforceSpecialChars": False}
    root.done("POST", policy, {"minLength": 8, "enforceUppercase": "true", "enforceDigits": "true", "enforceSpecialChars": "true", "enforceLowercase": "true"})
    try:
        for password, word in (("Ab1!xyz", "8"), ("ab1!xyzw", "uppercase"), ("AB1!XYZW", "lowercase"), ("Abc!xyzw", "digit"), ("Abc1xyzw", "special")):
            status, body = root.ask("PATCH", f"{USERS}/plain", {"password": password})
            assert status == 400 and word in json.loads(body)["errors"]["password"], (password, body)
        root.done("PATCH", f"{USERS}/plain", {"password": "Abc1!xyz"})
        assert root.document(policy)["minLength"] == 8
    finally:
        root.done("POST", policy, {"minLength": 6, **dict.fromkeys(("enforceUppercase", "enforceLowercase", "enforceDigits", "enforceSpecialChars"), "false")})
        root.done("PATCH", f"{USERS}/plain", {"password": PASSWORD})


def test_a_user_asks_what_it_may(root, user):
    client = user("data_reader[orders:eu],bucket_admin[other]")
    asked = ["cluster!admin", "cluster.bucket[orders].settings!read", "cluster.collection[orders:eu:new].data.docs!read", "cluster.collection[orders:us:new].data.docs!read", "cluster.bucket[other].settings!write"]
    status, body = client.ask("POST", f"{POOL}/checkPermissions", ",".join(asked))
    assert (status, json.loads(body)) == (200, dict(zip(asked, (False, True, True, False, True))))
    assert client.status("POST", f"{POOL}/checkPermissions", "cluster") == 400
    assert set(json.loads(root.ask("POST", f"{POOL}/checkPermissions", ",".join(asked))[1]).values()) == {True}


def test_put_replaces_all_but_the_password_and_patch_what_is_given(root, user):
    user("data_reader[orders]", "plain")
    root.done("PUT", f"{GROUPS}/readers", {"roles": "ro_admin"})

    def shown():
        found = root.document(f"{USERS}/plain")
        return found["name"], [one["role"] for one in found["roles"] if {"type": "user"} in one["origins"]], found["groups"]

    for method, form, expected in (
        ("PATCH", {"name": "Plain"}, ("Plain", ["data_reader"], [])),
        ("PATCH", {"groups": "readers"}, ("Plain", ["data_reader"], ["readers"])),
        ("PATCH", {"roles": "data_writer[other], ro_admin , ro_admin"}, ("Plain", ["data_writer", "ro_admin"], ["readers"])),
        ("PATCH", {}, ("Plain", ["data_writer", "ro_admin"], ["readers"])),
        ("PATCH", {"groups": "", "name": ""}, ("", ["data_writer", "ro_admin"], [])),
        ("PUT", {"groups": "readers"}, ("", [], ["readers"])),
        ("PUT", {"roles": "bucket_admin[*]"}, ("", ["bucket_admin"], [])),
    ):
        root.done(method, f"{USERS}/plain", form)
        assert shown() == expected, form
    with Client(root.node, "plain") as client:
        assert client.status("GET", "/whoami") == 200
    root.done("PUT", f"{GROUPS}/readers", {"description": "read"})
    assert root.document(f"{GROUPS}/readers") == {"id": "readers", "description": "read", "ldap_group_ref": "", "roles": []}
    root.done("PATCH", f"{GROUPS}/readers", {"roles": "ro_admin", "ldap_group_ref": "cn=readers"})
    root.done("PATCH", f"{GROUPS}/readers", {})
    root.done("PATCH", f"{GROUPS}/readers", {"description": ""})
    group = root.document(f"{GROUPS}/readers")
    assert (group["description"], group["ldap_group_ref"], [one["role"] for one in group["roles"]]) == ("", "cn=readers", ["ro_admin"])
    root.done("DELETE", f"{GROUPS}/readers")
    assert root.ask("PATCH", f"{GROUPS}/readers", {"description": "gone"})[0] == 404


def test_a_new_password_replaces_the_old_one(root, node):
    for method, old, new in (("PUT", "another-password", PASSWORD), ("PATCH", PASSWORD, "another-password")):
        root.done(method, f"{USERS}/changing", {"password": new})
        for password, status in ((new, 200), (old, 401)):
            with Client(node, "changing", password) as client:
                assert client.status("GET", "/whoami") == status
            with BinaryConnection(node.kv) as one:
                assert (one.login("changing", password) == SUCCESS) == (status == 200)
    root.done("DELETE", f"{USERS}/changing")


def test_what_is_no_form_is_refused(root):
    before = state(root)
    for path in (f"{USERS}/made", f"{GROUPS}/made"):
        assert root.ask("PUT", path, json.dumps({"password": PASSWORD}), "application/json")[0] == 415
        assert root.ask("PUT", path, "x" * (64 * 1024 + 1))[0] == 413
        root.close()
    assert state(root) == before


# Control characters, those that change the direction of text, those that are invisible.
UNSEEN = "\x01\x1b\u009b\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u200b\u2060\ufeff\U000e0041"
FORBIDDEN = "()<>,;:\\\"/[]?={} \t\n\0\x7f\u0085\u00a0"


@pytest.mark.parametrize("path", [USERS, GROUPS])
def test_names_have_no_separators_and_an_end(root, path):
    before = state(root)
    names = [f"a{character}b" for character in FORBIDDEN + UNSEEN] + [*FORBIDDEN, *UNSEEN, ".", "..", "x" * 129, "é" * 65, "x" * 8000]
    for name in names:
        status, body = root.ask("PUT", f"{path}/{urllib.parse.quote(name, safe='')}", {"password": PASSWORD} if path == USERS else {})
        assert status == 400 and "name" in json.loads(body)["errors"]["_"], (name, status, body)
    assert root.ask("PUT", f"{path}/%ff", {"password": PASSWORD} if path == USERS else {})[0] == 400
    assert root.ask("PUT", f"{path}/", {})[0] in (404, 405)
    assert state(root) == before


@pytest.mark.parametrize("name", ["x" * 128, "é" * 64, "ann@example.org", "a'b!$&*+-.^_`|~#%41"])
def test_any_other_name_is_a_name(node, root, name):
    password = "pass: wörd &=+%41"
    path = f"{USERS}/{urllib.parse.quote(name, safe='')}"
    root.done("PUT", path, {"password": password, "roles": "data_reader[orders]"})
    assert root.document(path)["id"] == name
    with Client(node, name, password) as client:
        assert client.document("/whoami")["id"] == name
    with BinaryConnection(node.kv) as one:
        assert one.ask(SASL_AUTH, b"PLAIN", f"\0{name}\0{password}".encode()).status == SUCCESS
    root.done("DELETE", path)
    assert root.status("GET", path) == 404


def test_a_user_has_at_most_a_thousand_roles(root, user):
    user("")
    scopes = [{"name": "many", "collections": [{"name": f"c{n}"} for n in range(101)]}]
    kept = root.document(f"{POOL}/buckets/other/scopes")["scopes"]
    status, body = root.ask("PUT", f"{POOL}/buckets/other/scopes", json.dumps({"scopes": kept + scopes}), "application/json")
    assert status == 200, body
    roles = [f"{role}[other:many:c{n}]" for role, (depth, _) in ROLES.items() if depth == 3 for n in range(101)][:1001]
    assert len(roles) == 1001
    status, body = root.ask("PATCH", f"{USERS}/eve", "roles=" + ",".join(roles))
    assert status == 400 and "1000" in json.loads(body)["errors"]["roles"], (status, body)
    root.done("PATCH", f"{USERS}/eve", "roles=" + ",".join(roles[:1000]))
    assert len(root.document(f"{USERS}/eve")["roles"]) == 1000
    status, body = root.ask("PUT", f"{POOL}/buckets/other/scopes", json.dumps({"scopes": kept}), "application/json")
    assert status == 200, body


def test_there_are_at_most_ten_thousand_users_and_groups(tmp_path):
    file, login = tmp_path / "node" / "users.json", ("Administrator", "password")
    with start(tmp_path, buckets=BUCKETS, ports={"memcached": "none"}) as node, Client(node, *login) as root:
        root.done("PUT", f"{GROUPS}/g0", {"roles": "ro_admin"})
        root.done("PUT", f"{USERS}/u0", {"password": PASSWORD})
    kept = json.loads(file.read_text())
    # As written by an earlier version.
    del kept["crc32c"]
    for kind, first in (("users", "u0"), ("groups", "g0")):
        kept[kind] = {f"{first[0]}{n}": kept[kind][first] for n in range(10_000)}
    file.write_text(json.dumps(kept))
    with start(tmp_path, buckets=BUCKETS, ports={"memcached": "none"}) as node, Client(node, *login) as root:
        for path in (f"{USERS}/one-more", f"{GROUPS}/one-more"):
            status, body = root.ask("PUT", path, {"password": PASSWORD} if USERS in path else {})
            assert status == 400 and "10000" in body, (status, body)
        root.done("PATCH", f"{USERS}/u7", {"groups": "g7"})
        assert len(root.document(USERS)) == 10_000 and len(root.document(GROUPS)) == 10_000
        with Client(node, "u7") as client:
            assert client.document("/whoami")["roles"] == [{"role": "ro_admin"}]
        root.done("DELETE", f"{USERS}/u0")
        root.done("PUT", f"{USERS}/one-more", {"password": PASSWORD})


# memcached's ports.


def log_in(node, user, password):
    """A text connection, and whether the login was accepted."""
    one = TextConnection(node.memcached)
    return one, one.store(b"set", b"login", f"{user} {password}".encode()) == b"STORED"


def test_users_of_a_file_use_memcached_ports_as_before(tmp_path):
    users = tmp_path / "users"
    users.write_text(f"ann:{PASSWORD}\nbob@example.org:another-password\n")
    users.chmod(0o600)
    with servers.Dormouse(config=f'[auth]\nusers_file = "{users}"\n') as node:
        ann, accepted = log_in(node, "ann", PASSWORD)
        assert accepted
        ann.set(b"k", b"1")
        with Client(node, "ann") as root:
            assert root.document("/whoami")["roles"] == [{"role": "admin"}]
            root.done("PUT", f"{USERS}/eve", {"password": PASSWORD, "roles": "data_reader[default]"})
            for path in ("ann", "bob@example.org"):
                status, body = root.ask("PUT", f"{USERS}/{path}", {"password": PASSWORD, "roles": ""})
                assert status == 400 and "users_file" in body
            # A connection stays logged in, whatever becomes of others.
            ann.set(b"k", b"2")
            for user, password, may in (("ann", PASSWORD, True), ("bob@example.org", "another-password", True), ("bob@example.org", PASSWORD, False), ("eve", PASSWORD, False)):
                text, accepted = log_in(node, user, password)
                assert accepted == may, user
                assert (text.line(b"mg k v") == b"VA 1") == may and (not may or text.reader.readline() == b"2\r\n")
                text.close()
                with BinaryConnection(node.memcached) as binary:
                    assert binary.login(user, password) == (SUCCESS if may else AUTH_ERROR), user
                    assert not may or binary.ask(GET, b"k").value == b"2"
            # One that is made here is let in with the rights to all that the protocols can do, and out without them.
            root.done("PUT", f"{USERS}/eve", {"roles": "bucket_full_access[default]"})
            eve, accepted = log_in(node, "eve", PASSWORD)
            assert accepted
            eve.set(b"k", b"3")
            root.done("DELETE", f"{USERS}/eve")
            assert eve.line(b"get k") == b"CLIENT_ERROR unauthenticated"
            assert ann.get(b"k")[0] == b"3"
            eve.close()
        ann.close()


def test_a_memcached_port_without_a_login_stays_so(tmp_path):
    with start(tmp_path, buckets=("default,ephemeral,32MiB",)) as node:
        with Client(node, "Administrator", "password") as root:
            text = TextConnection(node.memcached)
            text.set(b"k", b"1")
            root.done("PUT", f"{USERS}/eve", {"password": PASSWORD, "roles": "data_reader[default]"})
            text.set(b"k", b"2")
            text.close()
    with start(tmp_path, buckets=("default,ephemeral,32MiB",)) as node:
        text = TextConnection(node.memcached)
        text.set(b"k", b"3")
        text.close()


@pytest.mark.parametrize("withdrawn", ["the user is deleted", "the user is created again", "the role is taken away"])
def test_a_request_has_the_rights_of_when_its_body_is_there(root, node, user, withdrawn):
    with user("admin") as client:
        form = f"roles=admin&password={PASSWORD}"
        connection = client.connection
        connection.putrequest("PUT", f"{USERS}/backdoor")
        for name, value in {**client.headers, "Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(form))}.items():
            connection.putheader(name, value)
        connection.endheaders()
        # Usually the login has been checked when the next request is answered.
        connection.send(form[:5].encode())
        assert root.status("GET", "/pools") == 200
        name = "eve"
        if withdrawn == "the role is taken away":
            assert root.status("PATCH", f"{USERS}/{name}", "roles=") == 200
        else:
            assert root.status("DELETE", f"{USERS}/{name}") == 200
        if withdrawn == "the user is created again":
            assert root.status("PUT", f"{USERS}/{name}", f"roles=admin&password=another-{PASSWORD}") == 200
        connection.send(form[5:].encode())
        expected = 403 if withdrawn == "the role is taken away" else 401
        assert connection.getresponse().status == expected
        assert root.status("GET", f"{USERS}/backdoor") == 404
        root.status("DELETE", f"{USERS}/{name}")
