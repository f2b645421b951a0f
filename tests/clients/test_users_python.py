"""The official Couchbase SDK for Python: users, groups and roles managed, and what each user may do; with and without TLS."""

import json
from datetime import timedelta

import couchbase.subdocument as subdoc
import pytest
from couchbase.auth import AuthDomain, PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.exceptions import (
    AuthenticationException, BucketNotFoundException, CouchbaseException, GroupNotFoundException, InternalServerFailureException, InvalidArgumentException,
    TransactionFailed, UnsuccessfulOperationException, UserNotFoundException,
)
from couchbase.kv_range_scan import PrefixScan
from couchbase.management.users import Group, Role, User
from couchbase.options import ClusterOptions, SignedInt64, TransactionConfig, UpsertOptions
from couchbase.transactions import TransactionKeyspace
from couchbase.transcoder import RawBinaryTranscoder

from tests.frames import SUCCESS, BinaryConnection
from tests.persistence.bucket import http, start

from .cluster import connect, connection_string

PASSWORD = "correct-horse-battery"
READER, WRITER = Role("data_reader", "default"), Role("data_writer", "default")
# Belongs to a service that is not there: it allows nothing.
NOTHING = Role("query_select", "default")
USER_NOT_FOUND, GROUP_NOT_FOUND = 603, 604
DAY = timedelta(days=1)

READS = {
    "get": lambda c: c.get("document"),
    "exists": lambda c: c.exists("document"),
    "lookup_in": lambda c: c.lookup_in("document", (subdoc.get("n"),)),
    "lookup_in of an attribute": lambda c: c.lookup_in("document", (subdoc.get("own", xattr=True),)),
}
WRITES = {
    "upsert": lambda c: c.upsert("document", {"n": 1}),
    "insert and remove": lambda c: (c.insert("fresh", {}), c.remove("fresh")),
    "replace": lambda c: c.replace("document", {"n": 1}),
    "touch": lambda c: c.touch("document", DAY),
    "append": lambda c: c.binary().append("text", b"x"),
    "mutate_in": lambda c: c.mutate_in("document", (subdoc.upsert("n", 1),)),
    "mutate_in of an attribute": lambda c: c.mutate_in("document", (subdoc.upsert("own", 1, xattr=True),)),
}
# These write, and answer with what they read.
BOTH = {
    "increment": lambda c: c.binary().increment("counter", initial=SignedInt64(1)),
    "get_and_touch": lambda c: c.get_and_touch("document", DAY),
    "get_and_lock": lambda c: c.unlock("document", c.get_and_lock("document", DAY).cas),
    "mutate_in that counts": lambda c: c.mutate_in("document", (subdoc.increment("n", 1),)),
}
# Names of system attributes begin with an underscore.
SYSTEM_READS = {
    "lookup_in of a system attribute": lambda c: c.lookup_in("document", (subdoc.get("_x", xattr=True),)),
    "lookup_in of both": lambda c: c.lookup_in("document", (subdoc.get("_x", xattr=True), subdoc.get("n"))),
}
SYSTEM_WRITES = {
    "mutate_in of a system attribute": lambda c: c.mutate_in("document", (subdoc.upsert("_x", 1, xattr=True),)),
    "mutate_in of both": lambda c: c.mutate_in("document", (subdoc.upsert("_x", 1, xattr=True), subdoc.upsert("n", 1))),
}
CALLS = READS | WRITES | BOTH | SYSTEM_READS | SYSTEM_WRITES


@pytest.fixture(scope="module")
def node(either_node):
    return either_node


@pytest.fixture(scope="module")
def manager(cluster):
    return cluster.users()


@pytest.fixture(scope="module")
def collections(cluster):
    """The collections of the bucket by their paths, each with a document."""
    bucket = cluster.bucket("default")
    scopes = bucket.collections()
    scopes.create_scope("eu")
    for name in ("new", "old"):
        scopes.create_collection("eu", name)
    found = parts(bucket)
    for one in found.values():
        one.upsert("document", {"n": 1})
        one.mutate_in("document", (subdoc.upsert("own", 1, xattr=True), subdoc.upsert("_x", 1, xattr=True)))
        one.upsert("text", b"text", UpsertOptions(transcoder=RawBinaryTranscoder()))
    return found


@pytest.fixture(scope="module")
def eve(manager, collections):
    """The user whose roles the tests set."""
    manager.upsert_user(User("eve", roles={NOTHING}, password=PASSWORD))
    yield "eve"
    manager.drop_user("eve")


@pytest.fixture
def log_in(node, manager, eve):
    """Gives eve these roles, and connects."""
    open_ones = []

    def connected(*roles, groups=None):
        grant(manager, *roles, groups=groups)
        open_ones.append(connect(node, eve, PASSWORD))
        return open_ones[-1]

    yield connected
    for one in open_ones:
        one.close()


def parts(bucket):
    return {"default": bucket.default_collection(), **{f"eu.{name}": bucket.scope("eu").collection(name) for name in ("new", "old")}}


def grant(manager, *roles, groups=None):
    """Replaces the roles of eve; the password stays."""
    manager.upsert_user(User("eve", roles=set(roles), groups=groups))


def collection_of(cluster):
    return cluster.bucket("default").default_collection()


def permitted(collection):
    """The names of the calls that are not refused."""
    found = set()
    for name, call in CALLS.items():
        try:
            call(collection)
        except AuthenticationException:
            continue
        found.add(name)
    return found


def denied(call, *arguments):
    with pytest.raises(AuthenticationException):
        call(*arguments)


def refused_with(status, call, *arguments):
    """The SDK has no exception of its own for these statuses of management requests."""
    with pytest.raises(InternalServerFailureException) as raised:
        call(*arguments)
    assert raised.value.error_context.response_code == status
    return raised.value.error_context.response_body


def names(users):
    return {one.user.username for one in users}


def effective(manager, name):
    """{(role, bucket, scope, collection): its origins, "user" or the name of a group}"""
    roles = manager.get_user(name).effective_roles
    return {
        (one.role.name, one.role.bucket, one.role.scope, one.role.collection): {origin.name if origin.type == "group" else origin.type for origin in one.origins}
        for one in roles
    }


# Management.


def test_a_user_is_made_listed_changed_and_dropped(manager):
    assert "ann" not in names(manager.get_all_users())
    manager.upsert_user(User("ann", display_name="Ann Łukasz", roles={READER}, password=PASSWORD))
    found = manager.get_user("ann")
    assert (found.domain, found.user.username, found.user.display_name) == (AuthDomain.Local, "ann", "Ann Łukasz")
    assert found.user.groups is None and found.external_groups is None
    assert found.user.roles == {Role("data_reader", "default", "*", "*")}
    assert found.password_changed is not None
    assert "ann" in names(manager.get_all_users()) and "Administrator" not in names(manager.get_all_users())
    user = found.user
    user.display_name, user.roles = "Ann", {WRITER, Role("bucket_admin", "*")}
    manager.upsert_user(user)
    again = manager.get_user("ann")
    assert again.user.display_name == "Ann"
    assert again.user.roles == {Role("data_writer", "default", "*", "*"), Role("bucket_admin", "*")}
    assert again.password_changed == found.password_changed, "a change without a password keeps it"
    manager.drop_user("ann")
    assert "ann" not in names(manager.get_all_users())
    with pytest.raises(UserNotFoundException):
        manager.get_user("ann")


def test_roles_are_for_a_bucket_a_scope_or_a_collection(manager, eve):
    grant(
        manager, Role("data_reader", "default"), Role("data_writer", "default", "eu"), Role("data_monitoring", "default", "eu", "new"), Role("scope_admin", "*"),
        Role("bucket_admin", "default"), Role("ro_admin"),
    )
    assert effective(manager, eve) == {
        ("data_reader", "default", "*", "*"): {"user"},
        ("data_writer", "default", "eu", "*"): {"user"},
        ("data_monitoring", "default", "eu", "new"): {"user"},
        ("scope_admin", "*", "*", None): {"user"},
        ("bucket_admin", "default", None, None): {"user"},
        ("ro_admin", None, None, None): {"user"},
    }


def test_a_group_is_made_listed_changed_and_dropped(manager):
    assert manager.get_all_groups() == []
    manager.upsert_group(Group("readers", description="read", roles={READER}, ldap_group_reference="cn=readers"))
    manager.upsert_group(Group("others", roles={WRITER}))
    found = manager.get_group("readers")
    # The SDK does not return the reference.
    assert (found.name, found.description, found.roles) == ("readers", "read", {Role("data_reader", "default", "*", "*")})
    assert [one.name for one in manager.get_all_groups()] == ["others", "readers"]
    found.description, found.roles = "write", {WRITER}
    manager.upsert_group(found)
    found = manager.get_group("readers")
    assert (found.description, found.roles) == ("write", {Role("data_writer", "default", "*", "*")})
    for name in ("readers", "others"):
        manager.drop_group(name)
        with pytest.raises(GroupNotFoundException):
            manager.get_group(name)
    assert manager.get_all_groups() == []


def test_effective_roles_have_those_of_groups_and_say_so(manager, eve):
    manager.upsert_group(Group("readers", roles={READER, Role("data_reader", "default", "eu")}))
    manager.upsert_group(Group("monitors", roles={READER, Role("ro_admin")}))
    grant(manager, READER, WRITER, groups={"readers", "monitors"})
    user = manager.get_user(eve).user
    assert user.groups == {"readers", "monitors"}
    assert user.roles == {Role("data_reader", "default", "*", "*"), Role("data_writer", "default", "*", "*")}
    assert effective(manager, eve) == {
        ("data_reader", "default", "*", "*"): {"user", "readers", "monitors"},
        ("data_reader", "default", "eu", "*"): {"readers"},
        ("data_writer", "default", "*", "*"): {"user"},
        ("ro_admin", None, None, None): {"monitors"},
    }
    manager.drop_group("monitors")
    assert manager.get_user(eve).user.groups == {"readers"}
    assert "ro_admin" not in {role for role, *_ in effective(manager, eve)}
    grant(manager, groups={"readers"})
    assert effective(manager, eve)[("data_reader", "default", "*", "*")] == {"readers"}
    assert not manager.get_user(eve).user.roles
    manager.drop_group("readers")
    assert effective(manager, eve) == {}


def test_all_roles_are_listed(manager):
    roles = manager.get_roles()
    found = {one.role.name: (one.role.bucket, one.role.scope, one.role.collection) for one in roles}
    assert len(found) == len(roles)
    for name, places in {
        "admin": (None, None, None),
        "ro_admin": (None, None, None),
        "cluster_admin": (None, None, None),
        "security_admin": (None, None, None),
        "user_admin_local": (None, None, None),
        "external_stats_reader": (None, None, None),
        "bucket_admin": ("*", None, None),
        "bucket_full_access": ("*", None, None),
        "scope_admin": ("*", "*", None),
        "data_reader": ("*", "*", "*"),
        "data_writer": ("*", "*", "*"),
        "data_dcp_reader": ("*", "*", "*"),
        "data_monitoring": ("*", "*", "*"),
        "query_select": ("*", "*", "*"),
    }.items():
        assert found[name] == places, name
    assert all(one.display_name and one.description for one in roles)


def test_a_user_changes_its_own_password(node, manager, collections):
    manager.upsert_user(User("ann", roles={READER}, password=PASSWORD))
    own = connect(node, "ann", PASSWORD)
    collection_of(own).get("document")
    own.users().change_password("another-password")
    collection_of(own).get("document")
    denied(connect, node, "ann", PASSWORD)
    own.close()
    own = connect(node, "ann", "another-password")
    # The SDK takes a refusal for a success.
    own.users().change_password("short")
    own.close()
    denied(connect, node, "ann", "short")
    own = connect(node, "ann", "another-password")
    assert collection_of(own).get("document").content_as[dict] == {"n": 1}
    own.close()
    manager.drop_user("ann")


def test_unknown_users_and_groups(manager):
    with pytest.raises(UserNotFoundException):
        manager.get_user("nobody")
    with pytest.raises(GroupNotFoundException):
        manager.get_group("nobody")
    # The SDK has exceptions of its own only for the words of the answers above.
    for drop, code in ((manager.drop_user, USER_NOT_FOUND), (manager.drop_group, GROUP_NOT_FOUND)):
        with pytest.raises(CouchbaseException) as raised:
            drop("nobody")
        assert raised.value.error_code == code


@pytest.mark.parametrize("user, field, word", [
    (dict(roles={Role("superman")}), "roles", "superman"),
    (dict(roles={Role("data_reader")}), "roles", "data_reader"),
    (dict(roles={Role("admin", "default")}), "roles", "admin[default]"),
    (dict(roles={READER, Role("data_reader", "none")}), "roles", "[data_reader[none]]"),
    (dict(roles={Role("data_reader", "default", "none")}), "roles", "data_reader[default:none]"),
    (dict(roles={Role("data_reader", "default", "eu", "none")}), "roles", "data_reader[default:eu:none]"),
    (dict(roles={Role("bucket_admin", "default", "eu")}), "roles", "bucket_admin[default:eu]"),
    (dict(groups={"none"}), "groups", "none"),
    (dict(password="short"), "password", "at least 6"),
    (dict(password="x" * 1025), "password", "at most 1024"),
    (dict(password=None), "password", "required"),
    (dict(display_name="x" * 1025), "name", "1024"),
    (dict(username="a;b"), "_", "name"),
    (dict(username="x" * 129), "_", "128"),
])
def test_what_is_no_user_is_refused_by_name(manager, collections, user, field, word):
    before = names(manager.get_all_users())
    with pytest.raises(InvalidArgumentException) as raised:
        manager.upsert_user(User(**{"username": "ann", "roles": {READER}, "password": PASSWORD, **user}))
    errors = json.loads(raised.value.error_context.response_body)["errors"]
    assert list(errors) == [field] and word in errors[field], errors
    assert names(manager.get_all_users()) == before


def test_a_group_with_an_unknown_role_is_refused(manager):
    for role in (Role("superman"), Role("data_reader", "none"), Role("data_reader")):
        with pytest.raises(InvalidArgumentException):
            manager.upsert_group(Group("heroes", roles={role}))
    with pytest.raises(GroupNotFoundException):
        manager.get_group("heroes")


def test_the_administrator_is_none_of_the_users_and_stays(node, cluster, manager):
    with pytest.raises(UserNotFoundException):
        manager.get_user("Administrator")
    with pytest.raises(InvalidArgumentException) as raised:
        manager.upsert_user(User("Administrator", roles={READER}, password=PASSWORD))
    assert "configuration" in raised.value.error_context.response_body
    assert "configuration" in refused_with(400, manager.drop_user, "Administrator")
    # The SDK takes a refusal for a success.
    manager.change_password(PASSWORD)
    denied(connect, node, "Administrator", PASSWORD)
    connect(node).close()


def test_external_users_are_stored_and_cannot_log_in(node, manager, eve):
    assert manager.get_all_users(domain_name="external") == []
    with pytest.raises(UserNotFoundException):
        manager.get_user(eve, domain_name="external")
    manager.upsert_user(User("ext", display_name="Ext", roles={READER}), domain_name="external")
    found = manager.get_user("ext", domain_name="external")
    assert (found.domain, found.user.display_name, found.user.roles) == (AuthDomain.External, "Ext", {Role("data_reader", "default", "*", "*")})
    assert names(manager.get_all_users(domain_name="external")) == {"ext"}
    denied(connect, node, "ext", PASSWORD)
    manager.drop_user("ext", domain_name="external")
    with pytest.raises(UserNotFoundException):
        manager.get_user("ext", domain_name="external")


# What users may do.


ROLES_ON_DOCUMENTS = {
    "reader": ([READER], READS),
    "writer": ([WRITER], WRITES),
    "both": ([READER, WRITER], READS | WRITES | BOTH),
    "both-everywhere": ([Role("data_reader", "*"), Role("data_writer", "*")], READS | WRITES | BOTH),
    "dcp-reader": ([Role("data_dcp_reader", "default")], READS | SYSTEM_READS),
    "application": ([Role("bucket_full_access", "default")], CALLS),
    "admin": ([Role("admin")], CALLS),
    "monitor": ([Role("data_monitoring", "default")], {}),
    "bucket-admin": ([Role("bucket_admin", "default")], {}),
    "read-only-admin": ([Role("ro_admin")], {}),
    "other-admins": ([Role("cluster_admin"), Role("security_admin")], {}),
}


@pytest.mark.parametrize("roles, allowed", ROLES_ON_DOCUMENTS.values(), ids=ROLES_ON_DOCUMENTS)
def test_a_role_allows_what_it_says_and_all_else_is_refused_at_once(log_in, roles, allowed):
    assert permitted(collection_of(log_in(*roles))) == set(allowed)


def scanned(collection):
    """The keys that a scan finds; none if it is refused. Now and then the SDK takes a refusal (status 0x24) for the end of the scan, and raises nothing:
    crates/sessions/tests/roles.rs has the status."""
    try:
        return [one.id for one in collection.scan(PrefixScan("document"))]
    except (AuthenticationException, UnsuccessfulOperationException):
        return []


def test_a_scan_finds_only_what_may_be_read(manager, log_in, collections):
    assert [scanned(one) for one in collections.values()] == [["document"]] * 3
    own = parts(log_in(Role("data_reader", "default", "eu", "new"), WRITER).bucket("default"))
    assert {path: scanned(one) for path, one in own.items()} == {"default": [], "eu.new": ["document"], "eu.old": []}
    grant(manager, Role("data_reader", "default", "eu", "new"))
    assert {path: scanned(one) for path, one in own.items()} == {"default": [], "eu.new": ["document"], "eu.old": []}
    grant(manager, WRITER)
    assert not any(scanned(one) for one in own.values())


def test_each_document_of_a_batch_is_refused(log_in):
    collection = collection_of(log_in(READER))
    done = collection.upsert_multi({f"batch-{n}": n for n in range(50)})
    assert len(done.exceptions) == 50 and {type(one) for one in done.exceptions.values()} == {AuthenticationException}
    assert not any(one.exists for one in collection.exists_multi([f"batch-{n}" for n in range(50)]).results.values())


@pytest.mark.parametrize("place, inside", [(("eu", "new"), {"eu.new"}), (("eu",), {"eu.new", "eu.old"}), (("_default",), {"default"})])
def test_a_user_of_a_part_of_the_bucket_has_nothing_of_the_rest(log_in, place, inside):
    cluster = log_in(Role("data_reader", "default", *place), Role("data_writer", "default", *place))
    bucket = cluster.bucket("default")
    for path, collection in parts(bucket).items():
        assert permitted(collection) == (set(READS | WRITES | BOTH) if path in inside else set()), path
    listed = {f"{scope.name}.{one.name}".replace("_default._default", "default") for scope in bucket.collections().get_all_scopes() for one in scope.collections}
    assert listed == inside


@pytest.mark.parametrize("roles", [[NOTHING], [Role("external_stats_reader")], [Role("query_select", "*")]], ids=["bucket", "node", "all-buckets"])
def test_a_bucket_opens_for_its_users_only(log_in, roles):
    cluster = log_in(*roles)
    cluster.wait_until_ready(timedelta(seconds=10))
    # As if it did not exist.
    for name in ("default", "none"):
        with pytest.raises(BucketNotFoundException):
            cluster.bucket(name)
    assert cluster.buckets().get_all_buckets() == []


def test_roles_that_are_given_and_withdrawn_hold_on_an_open_connection(manager, log_in):
    collection = collection_of(log_in(READER))
    denied(WRITES["upsert"], collection)
    grant(manager, READER, WRITER)
    WRITES["upsert"](collection)
    grant(manager, WRITER)
    WRITES["upsert"](collection)
    denied(READS["get"], collection)
    grant(manager, NOTHING)
    assert not permitted(collection)
    grant(manager, READER)
    READS["get"](collection)


def test_members_have_the_roles_of_a_group_while_it_has_them(manager, log_in):
    manager.upsert_group(Group("readers", roles={READER}))
    collection = collection_of(log_in(groups={"readers"}))
    READS["get"](collection)
    denied(WRITES["upsert"], collection)
    manager.upsert_group(Group("readers", roles={READER, WRITER}))
    WRITES["upsert"](collection)
    manager.upsert_group(Group("readers", roles={WRITER}))
    denied(READS["get"], collection)
    manager.drop_group("readers")
    denied(WRITES["upsert"], collection)


def test_a_dropped_user_is_refused_on_open_connections_and_new_ones(node, manager, collections):
    manager.upsert_user(User("ann", roles={READER, WRITER}, password=PASSWORD))
    cluster = connect(node, "ann", PASSWORD)
    collection = collection_of(cluster)
    READS["get"](collection)
    manager.drop_user("ann")
    assert not permitted(collection)
    refused_with(401, cluster.bucket("default").collections().get_all_scopes)
    cluster.close()
    denied(connect, node, "ann", PASSWORD)


def test_a_collection_that_is_made_later_is_in_the_roles_of_its_scope(cluster, log_in):
    scopes = cluster.bucket("default").collections()
    bucket = log_in(Role("data_reader", "default", "eu"), Role("data_writer", "default", "eu")).bucket("default")
    WRITES["upsert"](bucket.scope("eu").collection("new"))
    scopes.create_collection("eu", "later")
    later = bucket.scope("eu").collection("later")
    WRITES["upsert"](later)
    READS["get"](later)
    scopes.drop_collection("eu", "later")


ROLES_ON_MANAGEMENT = {
    "both": ([READER, WRITER], set()),
    "scope-admin": ([Role("scope_admin", "default", "eu")], {"collection"}),
    "bucket-admin": ([Role("bucket_admin", "default")], {"scope", "collection", "update"}),
    "cluster-admin": ([Role("cluster_admin")], {"scope", "collection", "update", "create"}),
    "security-admin": ([Role("security_admin")], {"user", "group", "list"}),
    "user-admin": ([Role("user_admin_local")], {"user", "group", "list"}),
    "read-only-admin": ([Role("ro_admin")], {"list"}),
}


@pytest.mark.parametrize("roles, allowed", ROLES_ON_MANAGEMENT.values(), ids=ROLES_ON_MANAGEMENT)
def test_management_needs_its_roles(cluster, manager, log_in, roles, allowed):
    own = log_in(*roles)
    buckets, users, scopes = own.buckets(), own.users(), own.bucket("default").collections()
    settings = cluster.buckets().get_bucket("default")
    # Each is undone by the administrator.
    calls = {
        "scope": (lambda: scopes.create_scope("us"), lambda: cluster.bucket("default").collections().drop_scope("us")),
        "collection": (lambda: scopes.create_collection("eu", "more"), lambda: cluster.bucket("default").collections().drop_collection("eu", "more")),
        "update": (lambda: buckets.update_bucket(settings), lambda: None),
        "create": (lambda: buckets.create_bucket({**settings, "name": "made", "ram_quota_mb": 16}), lambda: cluster.buckets().drop_bucket("made")),
        "user": (lambda: users.upsert_user(User("ann", roles={READER}, password=PASSWORD)), lambda: manager.drop_user("ann")),
        "group": (lambda: users.upsert_group(Group("made", roles={READER})), lambda: manager.drop_group("made")),
        "list": (lambda: (users.get_all_users(), users.get_all_groups(), users.get_roles()), lambda: None),
    }
    for name, (call, undo) in calls.items():
        if name in allowed:
            call()
            undo()
        else:
            assert "permissions" in refused_with(403, call), name


# Transactions: their attributes and records are no system attributes.


def transact(node, metadata=None):
    """Runs a transaction as eve that replaces one document and inserts another, and returns both afterwards."""
    config = TransactionConfig(
        timeout=timedelta(seconds=1), cleanup_lost_attempts=False, cleanup_client_attempts=False,
        **({"metadata_collection": TransactionKeyspace(bucket=metadata[0], scope=metadata[1], collection=metadata[2])} if metadata else {}),
    )
    security = {} if node.kv else {"trust_store_path": str(node.authority)}
    own = Cluster(connection_string(node), ClusterOptions(PasswordAuthenticator("eve", PASSWORD), transaction_config=config, **security))
    collection = parts(own.bucket("default"))["eu.new" if metadata else "default"]

    def logic(attempt):
        attempt.replace(attempt.get(collection, "replaced"), {"n": 2})
        attempt.insert(collection, "inserted", {"n": 3})

    try:
        own.transactions.run(logic)
        return [collection.get(key).content_as[dict] for key in ("replaced", "inserted")]
    finally:
        own.close()


@pytest.mark.parametrize("roles, metadata", [
    ([READER, WRITER], None),
    ([Role("bucket_full_access", "default")], None),
    ([Role("data_reader", "default", "eu", "new"), Role("data_writer", "default", "eu", "new")], ("default", "eu", "new")),
], ids=["bucket", "application", "collection"])
def test_a_transaction_needs_to_read_and_write_what_it_is_about(node, manager, eve, collections, roles, metadata):
    collection = collections["eu.new" if metadata else "default"]
    collection.upsert("replaced", {"n": 1})
    grant(manager, *roles)
    assert transact(node, metadata) == [{"n": 2}, {"n": 3}]
    collection.remove("inserted")


@pytest.mark.parametrize("roles", [[READER], [WRITER]], ids=["reader", "writer"])
def test_a_transaction_without_the_rights_changes_nothing(node, manager, eve, collections, roles):
    collection = collections["default"]
    collection.upsert("replaced", {"n": 1})
    grant(manager, *roles)
    with pytest.raises(TransactionFailed):
        transact(node)
    assert collection.get("replaced").content_as[dict] == {"n": 1}
    assert not collection.exists("inserted").exists


# Restarts.


def scram(node):
    """The SDK logs in with SCRAM where there is no TLS."""
    own = connect(node, "eve", PASSWORD)
    assert collection_of(own).get("document").content_as[dict] == {"n": 1}
    denied(WRITES["upsert"], collection_of(own))
    own.close()
    denied(connect, node, "eve", "wrong-password")


def basic(node):
    status, body = http(node, "GET", "/whoami", login=f"eve:{PASSWORD}")
    assert status == 200 and json.loads(body)["id"] == "eve"
    assert http(node, "GET", "/whoami", login="eve:wrong-password")[0] == 401


def plain(node):
    with BinaryConnection(node.kv) as one:
        assert one.login("eve", "wrong-password") != SUCCESS
        assert one.login("eve", PASSWORD) == SUCCESS


def test_users_and_groups_are_there_after_a_restart_and_log_in_with_any_mechanism(tmp_path):
    with start(tmp_path) as node:
        cluster = connect(node)
        collection_of(cluster).upsert("document", {"n": 1})
        cluster.users().upsert_group(Group("readers", description="read", roles={READER}))
        cluster.users().upsert_user(User("eve", display_name="Eve", groups={"readers"}, password=PASSWORD))
        cluster.users().upsert_user(User("ann", roles={Role("bucket_admin", "*")}, password=PASSWORD))
        shown = [json.loads(http(node, "GET", f"/settings/rbac/{kind}")[1]) for kind in ("users", "groups")]
        scram(node)
        cluster.close()
    for logins in ((scram, basic), (basic, scram), (plain, scram)):
        with start(tmp_path) as node:
            for login in logins:
                login(node)
            assert [json.loads(http(node, "GET", f"/settings/rbac/{kind}")[1]) for kind in ("users", "groups")] == shown
            # A change after a restart keeps the others.
            cluster = connect(node)
            cluster.users().upsert_user(User("eve", display_name="Eve", groups={"readers"}))
            scram(node)
            cluster.close()


def test_a_dropped_user_is_not_there_after_a_restart(tmp_path):
    with start(tmp_path) as node:
        cluster = connect(node)
        cluster.users().upsert_user(User("eve", roles={READER}, password=PASSWORD))
        cluster.users().drop_user("eve")
        cluster.close()
        node.kill()
    with start(tmp_path) as node:
        denied(connect, node, "eve", PASSWORD)
        cluster = connect(node)
        assert names(cluster.users().get_all_users()) == set()
        cluster.close()
