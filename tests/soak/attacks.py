"""What hostile clients send in the soak of bounded work (`tests/soak/work.py`): one `Attack` for each kind of request that is much work.

An attack has a greeting, which each of its connections sends first (login, bucket), and a talk: a generator of what it sends then. The
connection waits for the answer to each `Ask` before it takes the next one, and is opened again when the talk has ended. All bytes
are made beforehand, so that the attackers take little of the processors that they share with the server.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import struct
import typing
import urllib.parse

from tests import dcp, frames, snappy
from tests import subdocument as sd
from tests.frames import request
from tests.persistence.bucket import http

ADMINISTRATOR, PASSWORD = "root", "correct-horse-battery"
# Who attacks, who is to be served all the same, and who has no rights at all.
ATTACKER, HONEST, STRANGER = "mallory", "alice", "nora"
ATTACKED_BUCKET, HONEST_BUCKET = "attacked", "honest"
ROLES = {
    ATTACKER: ",".join(f"{role}[{ATTACKED_BUCKET}]" for role in ("bucket_admin", "bucket_full_access", "data_dcp_reader")),
    HONEST: f"bucket_full_access[{HONEST_BUCKET}]",
    STRANGER: "",
}
CONNECTIONS = 200
MIB = 1 << 20
DOCUMENTS = 20_000
# Documents sent in one go.
STORED_TOGETHER = 1000
ARRAYS = 4
PATHS = 16
LOOKUPS_TOGETHER = 60
# Requests that are little work each are sent so many at a time.
LIGHT_TOGETHER, STATS_TOGETHER = 64, 16
UNREAD_TOGETHER = 64
LONG_BYTES = 30_000
# Documents just short enough to be read through in place by one look-up, and the numbers in them.
SHORT_NUMBERS = 16_000
# How deep a JSON value is, and its bytes.
DEPTH, DEEP_BYTES = 30, 30_000
MANY_COLLECTIONS = 1000
FILTER_BYTES = 32_000
# A value that is inflated for each client that does not take compressed ones.
COMPRESSIBLE_BYTES = 200_000
# Names in a topology, four in each of 1024 chains.
NAME_BYTES = 200
STREAMS_TOGETHER = 64
OTHER_BUCKETS = 8
BODY_BYTES = 1000
# What is asked last in each `Ask`: its answer ends all answers.
LAST_OPAQUE = 0x0DD_F00D
LAST = request(frames.NOOP, opaque=LAST_OPAQUE)
LAST_ANSWER = struct.pack(">BBHBBHIIQ", frames.RESPONSE, frames.NOOP, 0, 0, 0, 0, 0, LAST_OPAQUE, 0)
LAST_LINE, LAST_LINE_ANSWER = b"mn\r\n", b"MN\r\n"
CREATE_SCAN, CONTINUE_SCAN, GET_KEYS = 0xDA, 0xDB, 0xB8
OBSERVE, ALL_SEQNOS, MANIFEST, COLLECTION_ID = 0x92, 0x48, 0xBA, 0xBB
SCAN_MORE = 0xA6
SNAPPY = 2
# Groups of statistics that both ports have, those of the binary protocol alone, and those of text alone. `reset` is left out.
SHARED_GROUPS = (
    "items", "slabs", "sizes", "settings", "memory", "allocator", "defragmenter", "compression", "persistence", "warmup", "durability-monitor",
    "vbucket", "vbucket-seqno", "vbucket-details", "failovers",
)
BINARY_GROUPS = (
    "", *SHARED_GROUPS, "collections", "collections-details", "scopes", "uuid", "config", "diskinfo", "dcp", "dcpagg", "checkpoint", "tasks", "scheduler", "runtimes",
    "dispatcher", "workload", "timings", "kvtimings", "kvstore", "range-scans", "eviction", "hash", "key document-0 0", "vkey document-0 0",
)
TEXT_GROUPS = (*SHARED_GROUPS, "conns", "detail dump", "cachedump 1 0")
BY_HTTP = None


@dataclasses.dataclass(frozen=True)
class Ask:
    """Bytes that are sent in one go. `ends`: what the last answer ends with; None: it is an answer of HTTP."""

    data: bytes
    requests: int
    ends: bytes | None = LAST_ANSWER
    # Its answers are left unread; the connection is opened again after a while.
    unread: bool = False


def asked(data, requests=1, times=1):
    """Requests, all of them several times."""
    return Ask(data * times + LAST, requests * times)


def line(text, times=1):
    return Ask((text + b"\r\n") * times + LAST_LINE, times, LAST_LINE_ANSWER)


def http_ask(method, path, user, form=None, announced=None):
    """A request of HTTP. `announced`: the length of a body that is not sent."""
    body = b"" if form is None else urllib.parse.urlencode(form).encode()
    length = len(body) if announced is None else announced
    login = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n"
    if method != "GET":
        head += f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n"
    return Ask(head.encode() + b"\r\n" + body, 1, BY_HTTP)


def plain(user, password):
    return request(frames.SASL_AUTH, b"PLAIN", f"\0{user}\0{password}".encode())


def hello():
    features = (frames.FEATURE_XERROR, frames.FEATURE_SELECT_BUCKET, frames.FEATURE_JSON, frames.FEATURE_XATTR)
    return request(frames.HELLO, b'{"a":"hostile"}', b"".join(struct.pack(">H", feature) for feature in features))


def in_the_bucket(_):
    return asked(hello() + plain(ATTACKER, PASSWORD) + request(frames.SELECT_BUCKET, ATTACKED_BUCKET.encode()))


def before_the_login(_):
    return asked(hello())


def streaming(number):
    """A connection for streams, with a name of its own."""
    open_streams = request(dcp.OPEN, b"hostile-%d" % number, extras=struct.pack(">II", 0, dcp.PRODUCER))
    data = in_the_bucket(number).data.removesuffix(LAST)
    return asked(data + open_streams, 2)


def by_line(_):
    login = f"{ATTACKER} {PASSWORD}".encode()
    return Ask(b"set login 0 0 %d\r\n%b\r\n" % (len(login), login) + LAST_LINE, 1, LAST_LINE_ANSWER)


def forever(*asks):
    while True:
        for ask in asks:
            yield ask


def array(number):
    return b"array-%d" % (number % ARRAYS)


def lookups(number):
    one = sd.lookups(array(number), *[(sd.GET, b"[-1]")] * PATHS)
    return forever(asked(one, times=LOOKUPS_TOGETHER))


def edits(number):
    return forever(asked(sd.mutations(array(number), *[(sd.REPLACE, b"[-1]", b"2")] * PATHS)))


def short_lookups(number):
    return forever(asked(sd.single(sd.GET, array(number), b"[-1]"), times=LIGHT_TOGETHER))


def short_edits(number):
    return forever(asked(sd.single(sd.REPLACE, array(number), b"[-1]", b"2"), times=LIGHT_TOGETHER))


def deep_values(number):
    one = b"[" * DEPTH + b"1" + b"]" * DEPTH
    value = b"[" + b",".join([one] * (DEEP_BYTES // (len(one) + 1))) + b"]"
    return forever(asked(request(frames.SET, b"deep-%d" % number, value, bytes(8)), times=LIGHT_TOGETHER))


def filters(number):
    """Streams that name one collection again and again."""
    wanted = struct.pack(">IIQQQQQ", 0, 0, 0, dcp.FOREVER, 0, 0, 0)
    value = json.dumps({"collections": ["0"] * (FILTER_BYTES // 5)}).encode()
    return forever(asked(request(dcp.STREAM_REQ, value=value, extras=wanted, vbucket=number % 1024), times=LIGHT_TOGETHER))


def manifests(_):
    return forever(asked(request(MANIFEST), times=LIGHT_TOGETHER))


def small_queries(number):
    queries = (
        hello(), request(frames.GET_FAILOVER_LOG), request(ALL_SEQNOS), request(frames.OBSERVE_SEQNO, value=bytes(8)), request(OBSERVE, value=struct.pack(">HH10s", 0, 10, b"document-0")),
        request(COLLECTION_ID, value=b"_default._default"), request(frames.GET_META, b"document-0"), request(frames.STAT, b"reset"),
    )
    return turned([asked(query, times=LIGHT_TOGETHER) for query in queries], number)


def text_queries(number):
    lines = (b"flush_all 1000", b"stats reset", b"stats detail dump", b"me document-0", b"verbosity 0", b"cache_memlimit 1", b"lru_crawler crawl all", b"slabs automove 0")
    return turned([line(text, LIGHT_TOGETHER) for text in lines], number)


def inflated_gets(_):
    return forever(asked(request(frames.GET, b"compressible"), times=LIGHT_TOGETHER))


def scans(_):
    everything = {"start": "", "end": base64.b64encode(b"\xff").decode()}
    create = asked(request(CREATE_SCAN, value=json.dumps({"range": everything}).encode(), datatype=1))
    while True:
        answer = yield create
        status, body = struct.unpack_from(">H", answer, 6)[0], answer[24:40]
        while status in (frames.SUCCESS, SCAN_MORE):
            answer = yield asked(request(CONTINUE_SCAN, extras=body + struct.pack(">III", 0, 0, 0)))
            status = struct.unpack_from(">H", answer, 6)[0]


def key_lists(_):
    return forever(asked(request(GET_KEYS, b"document-", extras=struct.pack(">I", 10_000))))


def binary_groups(number):
    return turned([asked(request(frames.STAT, group.encode())) for group in BINARY_GROUPS], number)


def one_group(group, _):
    return forever(asked(request(frames.STAT, group.encode())))


def text_groups(number):
    return turned([line(b"stats " + group.encode()) for group in TEXT_GROUPS], number)


def turned(asks, number):
    """All of them again and again; each connection begins elsewhere."""
    at = number % len(asks)
    return forever(*asks[at:], *asks[:at])


def wrong_logins(number):
    names = (ATTACKER, f"unknown-{number}", STRANGER, f"user-{number % OTHER_USERS}")
    return turned([asked(plain(name, "wrong-password"), times=LIGHT_TOGETHER) for name in names], number)


def scram_starts(number):
    names = (ATTACKER, f"unknown-{number}", f"user-{number % OTHER_USERS}")
    nonce = hashlib.sha256(b"%d" % number).hexdigest()[:24]
    starts = [
        asked(request(frames.SASL_AUTH, mechanism, f"n,,n={name},r={nonce}".encode()), times=LIGHT_TOGETHER)
        for name in names for mechanism in (b"SCRAM-SHA1", b"SCRAM-SHA256", b"SCRAM-SHA512")
    ]
    return turned(starts, number)


def unread_gets(_):
    yield Ask(request(frames.GET, b"long") * UNREAD_TOGETHER, UNREAD_TOGETHER, unread=True)


@functools.cache
def opened_and_closed(first):
    """Streams of some vBuckets, from the first on, that are opened and closed again."""
    vbs = range(first, first + STREAMS_TOGETHER)
    wanted = struct.pack(">IIQQQQQ", 0, 0, 0, dcp.FOREVER, 0, 0, 0)
    opened = b"".join(request(dcp.STREAM_REQ, extras=wanted, vbucket=vb, opaque=vb) for vb in vbs)
    closed = b"".join(request(dcp.CLOSE_STREAM, vbucket=vb) for vb in vbs)
    return asked(opened + closed, 2 * STREAMS_TOGETHER)


def streams(number):
    """Streams on a connection that is opened again itself after a few turns."""
    for turn in range(4):
        yield opened_and_closed((number + turn) * STREAMS_TOGETHER % 1024)


def maps(_):
    return forever(asked(request(frames.GET_CLUSTER_CONFIG) + request(frames.GET, b"document-0", vbucket=1), 2))


def bucket_lists(_):
    return forever(http_ask("GET", "/pools/default/buckets", ATTACKER))


def passwords(_):
    return forever(http_ask("POST", "/controller/changePassword", STRANGER, {"password": PASSWORD}))


def bodies_that_do_not_come(_):
    yield http_ask("POST", "/controller/changePassword", STRANGER, announced=BODY_BYTES)


def backups(number):
    turn = 0
    while True:
        yield http_ask("POST", f"/pools/default/buckets/{ATTACKED_BUCKET}/backup", ATTACKER, {"label": f"hostile-{number}-{turn}"})
        turn += 1


# How the node is prepared. Documents are stored by a client that has logged in as the attacker.

OTHER_USERS = 10


def store(client, documents):
    """Stores (key, value) pairs in a bucket with one vBucket, or under vBucket 0."""
    for at in range(0, len(documents), STORED_TOGETHER):
        some = documents[at : at + STORED_TOGETHER]
        client.send(b"".join(request(frames.SET, key, value, bytes(8)) for key, value in some))
        for _ in some:
            answer = client.response()
            assert answer.status == frames.SUCCESS, answer


def with_documents(_, client):
    store(client, [(b"document-%d" % number, b'{"number":%d}' % number) for number in range(DOCUMENTS)])


def with_arrays(_, client):
    store(client, [(array(number), b"[" + b"1," * (MIB // 2 - 1) + b"1]") for number in range(ARRAYS)])


def with_short_arrays(_, client):
    store(client, [(array(number), b"[" + b"1," * (SHORT_NUMBERS - 1) + b"1]") for number in range(ARRAYS)])


def with_collections(node, _):
    names = [{"name": f"collection-with-a-name-{number}"} for number in range(MANY_COLLECTIONS)]
    body = json.dumps({"scopes": [{"name": "_default", "collections": [{"name": "_default"}, *names]}]})
    path = f"/pools/default/buckets/{ATTACKED_BUCKET}/scopes"
    status, answer = http(node, "PUT", path, body, f"{ADMINISTRATOR}:{PASSWORD}", "application/json")
    assert status == 200, (status, answer)


def with_a_compressible_value(_, client):
    """The attackers' HELLO does not ask for Snappy."""
    client.hello(frames.FEATURE_SNAPPY)
    answer = client.answer(frames.SET, b"compressible", snappy.compress(bytes(COMPRESSIBLE_BYTES)), bytes(8), datatype=SNAPPY)
    assert answer.status == frames.SUCCESS, answer


def with_a_long_value(_, client):
    store(client, [(b"long", bytes(LONG_BYTES))])


def with_users(node, _):
    for number in range(OTHER_USERS):
        put_user(node, f"user-{number}", "")


def with_names(node, _):
    """Each vBucket is a replica whose chain has four long names of its own, if the node takes them."""
    refused = 0
    for vb in range(1024):
        chain = [f"{vb:04}-{n}-{'n' * NAME_BYTES}.example:11210" for n in range(4)]
        form = {"state": "replica", "source": "", "topology": json.dumps([chain])}
        status, _ = http(node, "POST", f"/pools/default/buckets/{ATTACKED_BUCKET}/vbuckets/{vb}", form, f"{ATTACKER}:{PASSWORD}")
        refused += status != 200
    if refused:
        print(f"  {refused} of 1024 topologies with names that are no peers were refused")
        administrator(node, "POST", f"/pools/default/buckets/{ATTACKED_BUCKET}/vbuckets", {"state": "dead"})


def with_buckets(node, _):
    for number in range(OTHER_BUCKETS):
        administrator(node, "POST", "/pools/default/buckets", {"name": f"other-{number}", "bucketType": "ephemeral", "ramQuota": 32})


def put_user(node, name, roles):
    administrator(node, "PUT", f"/settings/rbac/users/local/{name}", {"password": PASSWORD, "roles": roles})


def administrator(node, method, path, form):
    status, body = http(node, method, path, form, f"{ADMINISTRATOR}:{PASSWORD}")
    assert status in (200, 202), (path, status, body)


@dataclasses.dataclass(frozen=True)
class Attack:
    name: str
    port: str
    greeting: typing.Callable | None
    talk: typing.Callable
    prepare: typing.Callable | None = None
    connections: int = CONNECTIONS
    # Of the attacked bucket.
    vbuckets: int = 1
    kind: str = "ephemeral"


ATTACKS = (
    Attack("look-ups", "kv", in_the_bucket, lookups, with_arrays),
    Attack("edits", "kv", in_the_bucket, edits, with_arrays),
    Attack("short look-ups", "kv", in_the_bucket, short_lookups, with_short_arrays),
    Attack("short edits", "kv", in_the_bucket, short_edits, with_short_arrays),
    Attack("deep values", "kv", in_the_bucket, deep_values),
    Attack("filters", "kv", streaming, filters, with_documents, vbuckets=1024),
    Attack("manifests", "kv", in_the_bucket, manifests, with_collections),
    Attack("small queries", "kv", in_the_bucket, small_queries, with_documents, vbuckets=1024),
    Attack("small queries of text", "memcached", by_line, text_queries, with_documents, vbuckets=1024),
    Attack("range scans", "kv", in_the_bucket, scans, with_documents),
    Attack("GET_KEYS", "kv", in_the_bucket, key_lists, with_documents),
    Attack("STAT groups", "kv", in_the_bucket, binary_groups, with_documents, vbuckets=1024),
    Attack("text stats", "memcached", by_line, lambda _: forever(line(b"stats", STATS_TOGETHER)), with_documents, vbuckets=1024),
    Attack("text stats groups", "memcached", by_line, text_groups, with_documents, vbuckets=1024),
    Attack("metadump", "memcached", by_line, lambda _: forever(line(b"lru_crawler metadump all")), with_documents, vbuckets=1024),
    Attack("wrong logins", "kv", before_the_login, wrong_logins, with_users),
    Attack("SCRAM starts", "kv", before_the_login, scram_starts, with_users),
    Attack("unread GETs", "kv", in_the_bucket, unread_gets, with_a_long_value),
    Attack("inflated GETs", "kv", in_the_bucket, inflated_gets, with_a_compressible_value),
    Attack("streams", "kv", streaming, streams, with_documents, vbuckets=1024),
    Attack("maps", "kv", in_the_bucket, maps, with_names, vbuckets=1024),
    Attack("bucket lists", "http", None, bucket_lists, with_buckets),
    Attack("passwords", "http", None, passwords, connections=400),
    Attack("bodies that do not come", "http", None, bodies_that_do_not_come, connections=560),
    Attack("backups", "http", None, backups, with_documents, connections=40, vbuckets=1024, kind="persistent"),
)
# One group of statistics at a time; run by name only.
GROUPS = tuple(
    Attack(f"STAT {group}".strip(), "kv", in_the_bucket, functools.partial(one_group, group), with_documents, vbuckets=1024)
    for group in BINARY_GROUPS
)
