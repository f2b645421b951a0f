"""DCP over sockets: what a consumer is sent, in which order, and when it must begin again."""

import contextlib
import json
import select
import struct
import time

import pytest

from tests import dcp, servers
from tests import subdocument as sd
from tests.dcp import Copy, Dcp, Marker
from tests.frames import (
    DELETE, EXISTS, FEATURE_SNAPPY, FEATURE_SYNC_REPLICATION, GET, INVALID, NO_ACCESS, NOT_FOUND, NOT_MY_VBUCKET, NOT_SUPPORTED, SELECT_BUCKET, SET, STAT,
    GET_FAILOVER_LOG, OBSERVE_SEQNO, SUCCESS, UNKNOWN_COLLECTION, BinaryConnection, durability,
)
from tests.persistence.bucket import http, vbucket_of, wait_until, wait_warm

BUCKETS = ("default,ephemeral,256MiB", "p,persistent,256MiB")
VB = 5


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(buckets=BUCKETS) as server:
        yield server


@pytest.fixture(params=["default", "p"])
def bucket(node, request):
    """An empty bucket of each kind."""
    dcp.empty(node, request.param)
    return request.param


class Client(BinaryConnection):
    def __init__(self, node, bucket, **login):
        super().__init__(node.kv)
        self.open_bucket(bucket, **login)

    def set(self, key, value=b"value", flags=0, expiry=0, **named):
        answer = self.store(key, value, flags=flags, expiry=expiry, vbucket=VB, **named)
        assert answer.status == SUCCESS, answer
        return answer.cas

    def delete(self, key, **named):
        answer = self.ask(DELETE, key, vbucket=VB, **named)
        assert answer.status == SUCCESS, answer
        return answer.cas


@pytest.fixture
def client(node, bucket):
    with Client(node, bucket) as one:
        yield one


def high_seqno(node, bucket, vb=VB):
    with Dcp(node.kv, bucket, name=None) as one:
        answer = one.ask(dcp.GET_ALL_VB_SEQNOS)
    assert answer.status == SUCCESS
    return dict(struct.iter_unpack(">HQ", answer.value))[vb]


def follow(one, copy, until, acknowledges=False):
    """Applies messages until the copy has everything up to a seqno."""
    while not copy.is_at(until):
        message = one.next()
        assert message is not None, "the connection was closed"
        copy.apply(message)
        if acknowledges and not isinstance(message, Marker):
            one.acknowledge(message.size)
    return copy


def begin(one, copy, **options):
    """Asks for a stream from where the copy is."""
    answer = one.stream(VB, **copy.position(), **options)
    if answer.status == SUCCESS:
        copy.uuid = dcp.failover_log(answer.value)[0][0]
    return answer


def test_a_stream_has_what_was_there_and_what_comes(node, bucket, client):
    cas = {b"key-%d" % n: client.set(b"key-%d" % n, b"value-%d" % n, flags=n) for n in range(100)}
    client.delete(b"key-7")
    with Dcp(node.kv, bucket) as one:
        copy = Copy()
        assert begin(one, copy).status == SUCCESS
        marker = one.next()
        assert isinstance(marker, Marker) and marker.start == 0
        copy.apply(marker)
        seen = []
        while not copy.is_at(marker.end):
            message = one.next()
            copy.apply(message)
            seen.append(message)
        assert copy.documents == {b"\0key-%d" % n: b"value-%d" % n for n in range(100) if n != 7}
        for message in seen:
            if message.opcode == dcp.MUTATION:
                name = message.key[1:]
                assert (message.cas, message.numbers[2]) == (cas[name], int(name[4:])), message
                assert (message.vbucket, message.opaque) == (VB, VB)
        # And now what changes.
        client.set(b"key-1", b"new")
        client.delete(b"key-2")
        follow(one, copy, high_seqno(node, bucket))
        assert copy.documents[b"\0key-1"] == b"new" and b"\0key-2" not in copy.documents
        assert one.quiet()


def test_a_stream_ends_where_it_was_asked_to(node, bucket, client):
    for n in range(10):
        client.set(b"key-%d" % n)
    with Dcp(node.kv, bucket) as one:
        copy = Copy()
        assert begin(one, copy, flags=dcp.TO_LATEST).status == SUCCESS
        while copy.ended is None:
            copy.apply(one.next())
        assert copy.ended == dcp.DONE and len(copy.documents) == 10
        client.set(b"later")
        assert one.quiet()
        copy.seqno = high_seqno(node, bucket)
        copy.snapshot = (copy.seqno, copy.seqno)
        assert begin(one, copy, flags=dcp.FROM_LATEST).status == SUCCESS
        client.set(b"latest")
        follow(one, copy, high_seqno(node, bucket))
        assert b"\0latest" in copy.documents and b"\0later" not in copy.documents


def test_a_consumer_goes_on_where_it_was(node, bucket, client):
    copy = Copy()
    for round in range(5):
        for n in range(20):
            client.set(b"key-%d" % (n * 3 + round), b"round-%d" % round)
        if round:
            client.delete(b"key-%d" % round)
        with Dcp(node.kv, bucket) as one:
            assert begin(one, copy).status == SUCCESS, round
            follow(one, copy, high_seqno(node, bucket))
    expected = {}
    for round in range(5):
        expected |= {b"\0key-%d" % (n * 3 + round): b"round-%d" % round for n in range(20)}
        if round:
            del expected[b"\0key-%d" % round]
    assert copy.documents == expected


def test_whoever_stops_in_the_middle_of_a_snapshot_goes_on_there(node, bucket, client):
    for n in range(50):
        client.set(b"key-%d" % n)
    copy, until = Copy(), high_seqno(node, bucket)
    connections = 0
    while not copy.is_at(until):
        connections += 1
        with Dcp(node.kv, bucket) as one:
            assert begin(one, copy).status == SUCCESS
            for _ in range(8):
                if not copy.is_at(until):
                    copy.apply(one.next())
    assert connections > 5 and len(copy.documents) == 50


def test_after_flush_all_everybody_begins_again(node, bucket, client):
    client.set(b"before")
    copy = Copy()
    with Dcp(node.kv, bucket) as one:
        assert begin(one, copy).status == SUCCESS
        follow(one, copy, high_seqno(node, bucket))
        dcp.empty(node, bucket)
        while copy.ended is None:
            copy.apply(one.next())
        assert copy.ended == dcp.TOO_SLOW
        answer = begin(one, copy)
        assert (answer.status, answer.value) == (dcp.ROLLBACK, bytes(8))
        client.set(b"after")
        copy = Copy()
        assert begin(one, copy).status == SUCCESS
        follow(one, copy, high_seqno(node, bucket))
        assert copy.documents == {b"\0after": b"value"}


def test_rollback_is_decided_as_documented(node, bucket, client):
    for n in range(10):
        client.set(b"key-%d" % n)
    high = high_seqno(node, bucket)
    with Dcp(node.kv, bucket) as one:
        uuid = dcp.failover_log(one.ask(dcp.GET_FAILOVER_LOG, vbucket=VB).value)[0][0]

        def asked(start, uuid, snapshot=None, end=dcp.FOREVER, flags=0):
            answer = one.stream(VB, start, end, uuid, snapshot, flags)
            if answer.status == SUCCESS:
                assert one.close_stream(VB).status == SUCCESS
            return answer.status, int.from_bytes(answer.value) if answer.status == dcp.ROLLBACK else None

        assert asked(high, uuid) == (SUCCESS, None)
        assert asked(0, 0) == (SUCCESS, None)
        assert asked(0, uuid) == (SUCCESS, None)
        # Another history.
        assert asked(high, uuid ^ 1) == (dcp.ROLLBACK, 0)
        assert asked(0, uuid ^ 1) == (SUCCESS, None)
        assert asked(0, uuid ^ 1, flags=dcp.STRICT_UUID) == (dcp.ROLLBACK, 0)
        # What never was.
        assert asked(high + 5, uuid) == (dcp.ROLLBACK, high)
        assert asked(high, uuid, (high - 1, high + 7)) == (dcp.ROLLBACK, high - 1)
        # All of the snapshot, or nothing of it.
        assert asked(high, uuid, (high, high + 7)) == (SUCCESS, None)
        # What contradicts itself.
        for start, snapshot, end in [(5, (6, 7), 100), (5, (3, 4), 100), (5, (5, 5), 4)]:
            assert asked(start, uuid, snapshot, end)[0] == dcp.ERANGE


def test_deletions_and_expirations(node, bucket, client):
    client.set(b"deleted")
    client.set(b"expired", expiry=1)
    client.delete(b"deleted")
    controls = [("enable_expiry_opcode", "true")]
    with Dcp(node.kv, bucket, controls=controls) as one, Dcp(node.kv, bucket, flags=dcp.PRODUCER | dcp.INCLUDE_DELETE_TIMES) as timed:
        for consumer in (one, timed):
            assert consumer.stream(VB).status == SUCCESS
        wait_until(lambda: client.ask(GET, b"expired", vbucket=VB).status == NOT_FOUND, "the expiry")

        def ends(consumer):
            """The opcodes of the ends by key. The expiry is the last."""
            found = {}
            while b"\0expired" not in found:
                message = consumer.change()
                if message.opcode in (dcp.DELETION, dcp.EXPIRATION):
                    found[message.key] = message.opcode
            assert abs(message.numbers[2] - time.time()) < 60
            return found

        # An ephemeral bucket that nobody has followed has forgotten the deletion.
        forgotten = {} if bucket == "default" else {b"\0deleted": dcp.DELETION}
        assert ends(one) | {b"\0deleted": dcp.DELETION} == {b"\0deleted": dcp.DELETION, b"\0expired": dcp.EXPIRATION}
        assert forgotten.items() <= ends(timed).items()


def test_flow_control(node, bucket, client):
    for n in range(100):
        client.set(b"key-%d" % n, b"x" * 1000)
    with Dcp(node.kv, bucket, controls=[("connection_buffer_size", "5000")]) as one:
        copy = Copy()
        assert begin(one, copy).status == SUCCESS
        sizes = 0
        while not one.quiet():
            message = one.next()
            copy.apply(message)
            sizes += 44 if isinstance(message, Marker) else message.size
        # At most one message more than there is room for.
        assert 5000 <= sizes < 5000 + 2 * 1100, sizes
        one.acknowledge(sizes)
        follow(one, copy, high_seqno(node, bucket), acknowledges=True)
        assert len(copy.documents) == 100


def test_a_long_value_is_sent_as_it_is(node, bucket, client):
    value = bytes(range(256)) * 4096
    client.set(b"long", value)
    client.set(b"short")
    with Dcp(node.kv, bucket) as one:
        copy = follow_new(one, node, bucket)
        assert copy.documents == {b"\0long": value, b"\0short": b"value"}
        client.set(b"long", value[1:])
        follow(one, copy, high_seqno(node, bucket))
        assert copy.documents[b"\0long"] == value[1:]


def follow_new(one, node, bucket, **options):
    copy = Copy()
    answer = begin(one, copy, **options)
    assert answer.status == SUCCESS, answer
    return follow(one, copy, high_seqno(node, bucket))


def test_without_values(node, bucket, client):
    client.set(b"json", b'{"a":1}')
    for flags, datatype in [(dcp.NO_VALUE, 0), (dcp.NO_VALUE_WITH_DATATYPE, 1)]:
        with Dcp(node.kv, bucket, flags=dcp.PRODUCER | flags) as one:
            assert one.stream(VB).status == SUCCESS
            assert isinstance(one.next(), Marker)
            message = one.next()
            assert (message.key, message.value, message.datatype) == (b"\0json", b"", datatype)


def test_attributes_are_sent_to_those_who_ask(node, bucket, client):
    key = b"attributes"
    features = dcp.FEATURES[:4]
    with BinaryConnection(node.kv) as other:
        other.open_bucket(bucket, features)
        specs = ((sd.DICT_UPSERT, b"_sys", b"1", sd.XATTR), (sd.DICT_UPSERT, b"user", b"2", sd.XATTR))
        other.send(sd.mutations(key, *specs, doc_flags=sd.MKDOC, vbucket=VB))
        assert other.response().status == SUCCESS
    with Dcp(node.kv, bucket) as one, Dcp(node.kv, bucket, flags=dcp.PRODUCER) as bare:
        messages = []
        for consumer in (one, bare):
            assert consumer.stream(VB).status == SUCCESS
            assert isinstance(consumer.next(), Marker)
            messages.append(consumer.next())
        full, without = messages
        assert full.datatype & 4 and b"_sys" in full.value and b"user" in full.value and full.value.endswith(b"{}")
        assert (without.datatype & 4, without.value) == (0, b"{}")
        client.delete(key)
        message = one.change()
        # System attributes outlive the document.
        assert message.opcode == dcp.DELETION and b"_sys" in message.value and b"user" not in message.value


def test_compressed_values_come_as_stored_or_inflated(node, bucket):
    from tests import snappy

    value = b"repeats itself " * 100
    with BinaryConnection(node.kv) as client:
        client.open_bucket(bucket, (0x07, 0x08, FEATURE_SNAPPY))
        assert client.store(b"packed", snappy.compress(value), datatype=2, vbucket=VB).status == SUCCESS
    without = tuple(feature for feature in dcp.FEATURES if feature != FEATURE_SNAPPY)
    with Dcp(node.kv, bucket, features=without) as one:
        assert follow_new(one, node, bucket).documents[b"\0packed"] == value
        assert one.control("force_value_compression", "true").status == INVALID
    with Dcp(node.kv, bucket, controls=[("force_value_compression", "true")]) as one:
        packed = follow_new(one, node, bucket).documents[b"\0packed"]
        assert snappy.inflate(packed) == value


def test_collections_are_filtered(node, bucket):
    status, body = http(node, "POST", f"/pools/default/buckets/{bucket}/scopes", "name=s")
    assert status == 200, body
    for name in ("one", "two"):
        assert http(node, "POST", f"/pools/default/buckets/{bucket}/scopes/s/collections", f"name={name}")[0] == 200
    manifest = json.loads(http(node, "GET", f"/pools/default/buckets/{bucket}/scopes")[1])
    scope = next(one for one in manifest["scopes"] if one["name"] == "s")
    ids = {one["name"]: int(one["uid"], 16) for one in scope["collections"]}
    try:
        with BinaryConnection(node.kv) as client:
            client.open_bucket(bucket, dcp.FEATURES)
            for prefix in (b"\0", *(bytes([number]) for number in ids.values())):
                assert client.store(prefix + b"key", b"value", vbucket=VB).status == SUCCESS
        one_key, two_key = bytes([ids["one"]]) + b"key", bytes([ids["two"]]) + b"key"
        for options, keys in [
            ({}, {b"\0key", one_key, two_key}),
            ({"collections": ["0"]}, {b"\0key"}),
            ({"collections": [f"{ids['one']:x}"]}, {one_key}),
            ({"scope": scope["uid"]}, {one_key, two_key}),
        ]:
            with Dcp(node.kv, bucket) as one:
                assert set(follow_new(one, node, bucket, **options).documents) == keys, options
        # Whoever knows no collections sees the default one.
        without = tuple(feature for feature in dcp.FEATURES if feature != 0x12)
        with Dcp(node.kv, bucket, features=without) as one:
            assert one.stream(VB).status == SUCCESS
            assert isinstance(one.next(), Marker)
            assert one.next().key == b"key" and one.quiet()
        with Dcp(node.kv, bucket) as one:
            assert one.stream(VB, collections=["1234"]).status == UNKNOWN_COLLECTION
            assert one.stream(VB, scope="1234").status == 0x8C
    finally:
        http(node, "DELETE", f"/pools/default/buckets/{bucket}/scopes/s")


def scopes(node, bucket):
    """Scopes with their collections' ids, by name."""
    manifest = json.loads(http(node, "GET", f"/pools/default/buckets/{bucket}/scopes")[1])
    return {scope["name"]: {one["name"]: int(one["uid"], 16) for one in scope["collections"]} for scope in manifest["scopes"]}


def create(node, bucket, scope, *collections):
    """Creates a scope with collections. Returns their ids."""
    assert http(node, "POST", f"/pools/default/buckets/{bucket}/scopes", f"name={scope}")[0] == 200
    for name in collections:
        status, body = http(node, "POST", f"/pools/default/buckets/{bucket}/scopes/{scope}/collections", f"name={name}&maxTTL=100")
        assert status == 200, body
    return [scopes(node, bucket)[scope][name] for name in collections]


def drop(node, bucket, *path):
    status, body = http(node, "DELETE", f"/pools/default/buckets/{bucket}/scopes/" + "/collections/".join(path))
    assert status == 200, body


def until_event(one, copy, event):
    """Applies messages up to a system event. Returns it, and the keys of the documents before it."""
    keys = []
    while True:
        message = one.next()
        copy.apply(message)
        if isinstance(message, Marker):
            continue
        if message.opcode == dcp.SYSTEM_EVENT and message.numbers[1] == event:
            return message, keys
        if message.opcode == dcp.MUTATION:
            keys.append(message.key)


@pytest.mark.parametrize("is_there_before", [True, False])
def test_collections_come_before_their_documents_and_go_after_them(node, bucket, is_there_before):
    copy = Copy()
    with Client(node, bucket) as client, Dcp(node.kv, bucket) as one, BinaryConnection(node.kv) as writer:
        writer.open_bucket(bucket, dcp.FEATURES)
        client.set(b"first")
        if not is_there_before:
            assert begin(one, copy).status == SUCCESS
        (number,) = create(node, bucket, "told", "c")
        key = bytes([number]) + b"key"
        assert writer.store(key, b"value", vbucket=VB).status == SUCCESS
        if is_there_before:
            assert begin(one, copy).status == SUCCESS
        scope, _ = until_event(one, copy, dcp.CREATE_SCOPE)
        assert scope.key == b"told"
        uid, scope_id = struct.unpack(">QI", scope.value)
        collection, keys = until_event(one, copy, dcp.CREATE_COLLECTION)
        assert (collection.key, collection.numbers[2], key in keys) == (b"c", 1, False)
        assert struct.unpack(">QIII", collection.value) == (uid + 1, scope_id, number, 100)
        follow(one, copy, high_seqno(node, bucket))
        assert copy.documents[key] == b"value"
        drop(node, bucket, "told")
        gone, _ = until_event(one, copy, dcp.DROP_COLLECTION)
        # Only the last event of a change has its uid.
        assert struct.unpack(">QII", gone.value) == (uid + 1, scope_id, number)
        gone, _ = until_event(one, copy, dcp.DROP_SCOPE)
        assert struct.unpack(">QI", gone.value) == (uid + 2, scope_id)
        assert one.quiet()
    # Whoever begins now hears nothing of the collection; whoever has seen it hears that it is gone.
    with Dcp(node.kv, bucket) as one:
        assert key not in follow_new(one, node, bucket).documents
    with Dcp(node.kv, bucket) as one:
        start = collection.seqno
        assert one.stream(VB, start=start, uuid=copy.uuid, snapshot=(start, start)).status == SUCCESS
        late = Copy()
        late.seqno = start
        assert until_event(one, late, dcp.DROP_COLLECTION)[0].seqno < until_event(one, late, dcp.DROP_SCOPE)[0].seqno


def test_a_stream_ends_when_all_that_it_filters_is_gone(node, bucket):
    first, second = create(node, bucket, "ending", "first", "second")
    with Dcp(node.kv, bucket, controls=[("enable_stream_id", "true")]) as one:
        assert one.stream(VB, sid=1, collections=[f"{first:x}"]).status == SUCCESS
        assert one.stream(VB, sid=2, collections=[f"{first:x}", f"{second:x}"]).status == SUCCESS
        drop(node, bucket, "ending", "first")
        while isinstance(message := one.next(), Marker) or message.opcode != dcp.STREAM_END:
            pass
        assert (message.stream_id, message.numbers) == (1, (dcp.FILTER_EMPTY,))
        drop(node, bucket, "ending")
        while isinstance(message := one.next(), Marker) or message.opcode != dcp.STREAM_END:
            pass
        assert (message.stream_id, message.numbers) == (2, (dcp.FILTER_EMPTY,))
        assert one.quiet()


def wait_flushed(client):
    wait_until(lambda: stats(client, "persistence")["unflushed_items"] == "0", "an empty queue")


UNORDERED = [("enable_out_of_order_snapshots", "true_with_seqno_advanced")]


def test_what_is_in_memory_may_come_in_no_order(node):
    bucket = "p"
    dcp.empty(node, bucket)
    with Client(node, bucket) as client:
        documents = {b"\0key-%d" % n: b"value-%d" % n * 20 for n in range(2000)}
        for key, value in documents.items():
            client.set(key[1:], value)
        for key in list(documents)[::9]:
            client.delete(key[1:])
            del documents[key]
        wait_flushed(client)
        with Dcp(node.kv, bucket, controls=UNORDERED) as one:
            copy, seen = Copy(), []
            assert begin(one, copy).status == SUCCESS
            while not copy.is_at(high_seqno(node, bucket)):
                seen.append(one.next())
                copy.apply(seen[-1])
            assert copy.documents == documents
            assert [message.numbers for message in seen if message.opcode == dcp.OSO_SNAPSHOT] == [(1,), (2,)]
            assert seen[0].opcode == seen[-1].opcode == dcp.OSO_SNAPSHOT
            seqnos = [message.seqno for message in seen if message.opcode == dcp.MUTATION]
            assert len(seqnos) == len(documents) and seqnos != sorted(seqnos)
            # What comes later has an order.
            client.set(b"key-1", b"new")
            assert isinstance(one.next(), Marker)
            assert one.next().key == b"\0key-1"
        # Not for who goes on somewhere, wants what is on disk, or has not asked for it.
        wait_flushed(client)
        for controls, flags in [(UNORDERED, dcp.DISK_ONLY), ([], 0), ([("enable_out_of_order_snapshots", "false")], 0)]:
            with Dcp(node.kv, bucket, controls=controls) as one:
                assert one.stream(VB, flags=flags).status == SUCCESS
                assert isinstance(one.next(), Marker)
        with Dcp(node.kv, bucket, controls=UNORDERED) as one:
            copy.seqno -= 10
            copy.snapshot = (copy.seqno, copy.seqno)
            assert begin(one, copy).status == SUCCESS
            assert isinstance(one.next(), Marker)


@pytest.mark.parametrize(("setting", "tells"), [("true_with_seqno_advanced", True), ("true", False)])
def test_a_filtered_snapshot_in_no_order_tells_its_last_seqno_to_those_who_ask(node, setting, tells):
    bucket = "p"
    dcp.empty(node, bucket)
    [collection] = create(node, bucket, "unordered", "one")
    try:
        with BinaryConnection(node.kv) as client:
            client.open_bucket(bucket, dcp.FEATURES)
            for prefix in (bytes([collection]), b"\0"):
                for n in range(10):
                    assert client.store(prefix + b"key-%d" % n, b"value", vbucket=VB).status == SUCCESS
            wait_flushed(client)
        last = high_seqno(node, bucket)
        with Dcp(node.kv, bucket, controls=[("enable_out_of_order_snapshots", setting)]) as one:
            assert one.stream(VB, collections=[f"{collection:x}"]).status == SUCCESS
            kinds = []
            while not kinds or kinds[-1] != (dcp.OSO_SNAPSHOT, (2,)):
                message = one.next()
                kinds.append((message.opcode, message.numbers if message.opcode in (dcp.OSO_SNAPSHOT, dcp.SEQNO_ADVANCED) else None))
            advanced = [(dcp.SEQNO_ADVANCED, (last,))] if tells else []
            assert kinds == [(dcp.OSO_SNAPSHOT, (1,)), (dcp.SYSTEM_EVENT, None), *[(dcp.MUTATION, None)] * 10, *advanced, (dcp.OSO_SNAPSHOT, (2,))]
            assert one.quiet()
    finally:
        drop(node, bucket, "unordered")


def test_a_connection_replaces_one_of_the_same_name(node, bucket, client):
    with Dcp(node.kv, bucket, name="one") as old, Dcp(node.kv, bucket, name="other") as other:
        assert old.stream(VB).status == SUCCESS
        with Dcp(node.kv, bucket, name="one") as new:
            while old.next() is not None:
                pass
            assert new.stream(VB).status == SUCCESS
            assert new.lives() and other.lives()


def stats(connection, group):
    connection.send(dcp.request(STAT, group.encode()))
    answers = {}
    while (answer := connection.response()).key:
        answers[answer.key.decode()] = answer.value.decode()
    return answers


def test_statistics(node, bucket, client):
    client.set(b"key", b"x" * 1000)
    assert stats(client, "dcp")["ep_dcp_count"] == "0"
    controls = [("connection_buffer_size", "5000"), ("enable_noop", "true"), ("set_noop_interval", "7")]
    with Dcp(node.kv, bucket, name="kind:one", controls=controls) as one, Dcp(node.kv, bucket, name="kind:two"):
        copy = follow_new(one, node, bucket)
        shown = stats(client, "dcp")
        ours = {name.removeprefix("eq_dcpq:kind:one:"): value for name, value in shown.items() if "kind:one" in name}
        assert (shown["ep_dcp_count"], shown["ep_dcp_items_sent"], shown["ep_dcp_items_remaining"]) == ("2", "1", "0")
        assert (ours["type"], ours["num_streams"], ours["items_sent"], ours["noop_tx_interval"]) == ("producer", "1", "1", "7")
        assert ours[f"stream_{VB}_last_sent_seqno"] == str(copy.seqno)
        sent = int(ours["total_bytes_sent"])
        assert sent > 1000 and (ours["unacked_bytes"], ours["total_acked_bytes"]) == (str(sent), "0")
        one.acknowledge(sent)
        assert one.lives()
        shown = stats(client, "dcp")
        assert (shown["eq_dcpq:kind:one:unacked_bytes"], shown["eq_dcpq:kind:one:total_acked_bytes"]) == ("0", str(sent))
        shown = stats(client, "dcpagg")
        assert (shown["kind:count"], shown[":total:count"], shown["kind:items_sent"]) == ("2", "2", "1")
    wait_until(lambda: stats(client, "dcp")["ep_dcp_count"] == "0", "both are gone")


def test_a_stream_ends_when_the_vbucket_is_not_active_any_more(node, bucket, client):
    with Dcp(node.kv, bucket) as one:
        follow_new(one, node, bucket)
        try:
            assert client.ask(0x3D, extras=b"\x02", vbucket=VB).status == SUCCESS
            message = one.next()
            assert (message.opcode, message.numbers) == (dcp.STREAM_END, (dcp.STATE_CHANGED,))
            assert one.stream(VB, flags=dcp.ACTIVE_ONLY).status == NOT_MY_VBUCKET
        finally:
            assert client.ask(0x3D, extras=b"\x01", vbucket=VB).status == SUCCESS


def test_what_is_written_all_the_time_does_not_keep_a_snapshot_open(node, bucket, client):
    """A consumer with a small buffer reads in many pieces; one key is written again in between."""
    for n in range(2000):
        client.set(b"key-%d" % n, b"x" * 100)
    with Dcp(node.kv, bucket, controls=[("connection_buffer_size", "4000")]) as one:
        copy = Copy()
        assert begin(one, copy, flags=dcp.TO_LATEST).status == SUCCESS
        while copy.ended is None:
            message = one.next()
            copy.apply(message)
            if not isinstance(message, Marker):
                one.acknowledge(message.size)
                client.set(b"hot", b"%d" % copy.seqno)
        assert copy.ended == dcp.DONE
        assert set(copy.documents) - {b"\0hot"} == {b"\0key-%d" % n for n in range(2000)}


def test_several_streams_of_a_vbucket(node, bucket, client):
    client.set(b"key")
    with Dcp(node.kv, bucket, controls=[("enable_stream_id", "true")]) as one:
        assert one.stream(VB).status == 0x8D
        for number in (1, 2):
            assert one.stream(VB, opaque=number, sid=number).status == SUCCESS
        assert one.stream(VB, sid=1).status == EXISTS
        seen = []
        while len(seen) < 2:
            message = one.change()
            if message.opcode == dcp.MUTATION:
                seen.append((message.stream_id, message.opaque, message.key))
        assert sorted(seen) == [(1, 1, b"\0key"), (2, 2, b"\0key")]
        assert one.close_stream(VB).status == 0x8D
        assert one.close_stream(VB, 1).status == SUCCESS
        assert one.close_stream(VB, 1).status == NOT_FOUND
        client.set(b"other")
        message = one.change()
        assert (message.stream_id, message.key) == (2, b"\0other")
        assert one.quiet()


def test_closing_a_stream(node, bucket, client):
    for ends in (False, True):
        controls = [("send_stream_end_on_client_close_stream", "true")] if ends else []
        with Dcp(node.kv, bucket, controls=controls) as one:
            follow_new(one, node, bucket)
            assert one.close_stream(VB).status == SUCCESS
            client.set(b"unseen")
            if ends:
                message = one.next()
                assert (message.opcode, message.numbers) == (dcp.STREAM_END, (dcp.CLOSED,))
            assert one.quiet()


def test_markers_of_later_versions(node, bucket, client):
    client.set(b"key")
    high = high_seqno(node, bucket)
    with Dcp(node.kv, bucket, controls=[("max_marker_version", "2.0")]) as one:
        assert one.stream(VB).status == SUCCESS
        marker = one.next()
        assert marker.end == high and len(marker.rest) == 2 and marker.rest[0] == high


def test_noops(node, bucket):
    with Dcp(node.kv, bucket, controls=[("enable_noop", "true"), ("set_noop_interval", "1")]) as one:
        assert one.stream(VB).status == SUCCESS
        for _ in range(2):
            while isinstance(message := one.next(), Marker) or message.opcode != dcp.NOOP:
                pass
            one.answer_noop(message)
        # One that does not answer is left.
        while (message := one.next()) is not None:
            pass


def follow_everything(stack, node, bucket, connections, **named):
    """Streams that have shown what there is."""
    found = [stack.enter_context(Dcp(node.kv, bucket, **named)) for _ in range(connections)]
    for one in found:
        for vb in range(0, 1024, 32):
            assert one.stream(vb).status == SUCCESS
        while not one.quiet():
            one.next()
    return found


@pytest.mark.parametrize("kind", ("ephemeral", "persistent"))
def test_streams_without_traffic_cost_nothing(kind):
    with servers.Dormouse(buckets=(f"default,{kind},64MiB",)) as node, contextlib.ExitStack() as stack:
        with Client(node, "default") as client:
            for n in range(300):
                client.set(b"key-%d" % n)
        follow_everything(stack, node, "default", 5)

        def is_quiet():
            before = node.switches()
            time.sleep(3)
            return node.switches() == before

        # Something may be left to do at first.
        assert any(is_quiet() for _ in range(6)), "something wakes up periodically"


def test_streams_without_traffic_cost_their_noops():
    controls, connections = (("enable_noop", "true"), ("set_noop_interval", "1")), 4
    with servers.Dormouse() as node, contextlib.ExitStack() as stack:
        followers = {one.socket: one for one in follow_everything(stack, node, "default", connections, controls=controls)}

        def answer_for(seconds):
            """Answers NOOPs; returns how many there were."""
            count, ends = 0, time.monotonic() + seconds
            while (left := ends - time.monotonic()) > 0:
                for socket in select.select(list(followers), [], [], left)[0]:
                    message = followers[socket].next()
                    assert message.opcode == dcp.NOOP, message
                    followers[socket].answer_noop(message)
                    count += 1
            return count

        answer_for(2)
        before = sum(node.switches("dm:*").values())
        noops = answer_for(6)
        assert connections * 4 <= noops <= connections * 7
        # One wake-up to ask, one for the answer; nothing else.
        assert sum(node.switches("dm:*").values()) - before <= 2 * noops + 4


def test_what_is_wrong_is_answered(node, bucket):
    with Dcp(node.kv, bucket, name=None) as one:
        assert one.control("enable_noop", "true").status == INVALID
        assert one.stream(VB).status == INVALID
        assert one.ask(dcp.CLOSE_STREAM, vbucket=VB).status == INVALID
        assert one.open("name", 0).status == NOT_SUPPORTED
        assert one.open("name", dcp.NOTIFIER).status == NOT_SUPPORTED
        assert one.open("", dcp.PRODUCER).status == INVALID
        assert one.ask(dcp.OPEN, b"name", extras=b"\0" * 7).status == INVALID
        assert one.open("name").status == SUCCESS
        assert one.open("name").status == INVALID
        for name, value in [
            ("enable_noop", "yes"), ("set_noop_interval", "0"), ("set_noop_interval", "x"), ("connection_buffer_size", "-1"), ("connection_buffer_size", str(2**32)),
            ("enable_stream_id", "false"), ("consumer_name", ""), ("max_marker_version", "2.2"), ("unknown", "true"), ("backfill_order", "x"), ("set_priority", "x"),
        ]:
            assert one.control(name, value).status == INVALID, (name, value)
        for name in ("enable_ext_metadata", "change_streams", "flatbuffers_system_events"):
            assert one.control(name, "true").status == NOT_SUPPORTED
        for name, value in [("set_priority", "high"), ("backfill_order", "sequential"), ("supports_cursor_dropping_vulcan", "true"), ("enable_out_of_order_snapshots", "true")]:
            assert one.control(name, value).status == SUCCESS
        assert one.stream(5000).status == NOT_MY_VBUCKET
        assert one.ask(dcp.STREAM_REQ, extras=b"\0" * 47, vbucket=VB).status == INVALID
        assert one.stream(VB, sid=3).status == 0x8D
        assert one.stream(VB, collections=[], scope="0").status == INVALID
        assert one.stream(VB, flags=dcp.TAKEOVER).status == NOT_SUPPORTED
        assert one.ask(SELECT_BUCKET, bucket.encode()).status == NOT_SUPPORTED
        assert one.stream(VB).status == SUCCESS
        assert one.stream(VB).status == EXISTS
        assert one.lives()


def test_rights(node, bucket):
    user = "reader"
    for roles, may in [(f"data_reader[{bucket}]", False), (f"data_dcp_reader[{bucket}]", True)]:
        status, body = http(node, "PUT", f"/settings/rbac/users/local/{user}", f"password=password&roles={roles}")
        assert status == 200, body
        with Dcp(node.kv, bucket, name=None, user=user) as one:
            assert one.open().status == (SUCCESS if may else NO_ACCESS)
            assert one.stream(VB).status == (SUCCESS if may else INVALID)
    # A right to a part of the bucket is one to streams of that part.
    assert http(node, "PUT", f"/settings/rbac/users/local/{user}", f"roles=data_dcp_reader[{bucket}:_default:_default]")[0] == 200
    with Dcp(node.kv, bucket, user=user) as one:
        assert one.stream(VB, collections=["0"]).status == SUCCESS
    with Dcp(node.kv, bucket, user=user) as one:
        assert one.stream(VB).status == NO_ACCESS
    http(node, "DELETE", f"/settings/rbac/users/local/{user}")


def test_a_stream_ends_when_the_user_may_not_see_it_any_more(node, bucket, client):
    user = "leaving"
    allow = lambda roles: http(node, "PUT", f"/settings/rbac/users/local/{user}", f"password=password&roles={roles}")  # noqa: E731
    assert allow(f"data_dcp_reader[{bucket}]")[0] == 200
    with Dcp(node.kv, bucket, user=user) as one:
        follow_new(one, node, bucket)
        assert allow(f"data_writer[{bucket}]")[0] == 200
        client.set(b"secret")
        message = one.next()
        assert (message.opcode, message.numbers) == (dcp.STREAM_END, (dcp.LOST_PRIVILEGES,))
        assert one.quiet()
    http(node, "DELETE", f"/settings/rbac/users/local/{user}")


def test_nobody_but_an_administrator_acknowledges_durable_writes(node):
    """Otherwise anybody could have writes answered that no other node has."""
    bucket, user = "default", "forger"
    assert http(node, "PUT", f"/settings/rbac/users/local/{user}", f"password=password&roles=data_dcp_reader[{bucket}]")[0] == 200
    controls = [("consumer_name", "replica"), ("enable_sync_writes", "true")]
    acknowledgement = dcp.request(dcp.SEQNO_ACKNOWLEDGED, extras=struct.pack(">Q", 2**48), vbucket=VB)
    with Dcp(node.kv, bucket, user=user, controls=controls) as one:
        one.send(acknowledgement)
        assert one.response().status == NOT_FOUND
        assert one.stream(VB).status == SUCCESS
        one.send(acknowledgement)
        assert one.response().status == NO_ACCESS
    with Dcp(node.kv, bucket, controls=controls) as one:
        assert one.stream(VB).status == SUCCESS
        one.send(acknowledgement)
        assert one.response().status == dcp.ERANGE
    http(node, "DELETE", f"/settings/rbac/users/local/{user}")


def test_seqnos_of_all_vbuckets(node, bucket, client):
    client.set(b"key")
    with Dcp(node.kv, bucket, name=None) as one:
        every = dict(struct.iter_unpack(">HQ", one.ask(dcp.GET_ALL_VB_SEQNOS).value))
        assert len(every) == 1024 and every[VB] == high_seqno(node, bucket)
        active = one.ask(dcp.GET_ALL_VB_SEQNOS, extras=struct.pack(">I", 1)).value
        assert dict(struct.iter_unpack(">HQ", active)) == every
        assert one.ask(dcp.GET_ALL_VB_SEQNOS, extras=struct.pack(">I", 2)).value == b""
        assert len(one.ask(dcp.GET_ALL_VB_SEQNOS, extras=struct.pack(">II", 0, 0)).value) == 10240
        assert one.ask(dcp.GET_ALL_VB_SEQNOS, extras=struct.pack(">II", 0, 999)).status == UNKNOWN_COLLECTION
        assert one.ask(dcp.GET_ALL_VB_SEQNOS, extras=struct.pack(">I", 5)).status == INVALID
        assert one.ask(dcp.GET_ALL_VB_SEQNOS, extras=b"12345").status == INVALID


def test_seqnos_count_changes_of_collections_that_no_stream_has_seen(node, bucket, client):
    """A backup reads the seqnos, and then follows up to them."""
    scopes = f"/pools/default/buckets/{bucket}/scopes"
    name = f"s{time.monotonic_ns()}"
    client.set(b"key")
    before = high_seqno(node, bucket)
    assert http(node, "POST", scopes, f"name={name}")[0] == 200
    assert http(node, "POST", f"{scopes}/{name}/collections", "name=c")[0] == 200
    shown = json.loads(http(node, "GET", f"/pools/default/buckets/{bucket}/vbuckets/{VB}")[1])
    assert shown["high_seqno"] == before + 2
    assert http(node, "DELETE", f"{scopes}/{name}/collections/c")[0] == 200
    uuid = client.ask(GET_FAILOVER_LOG, vbucket=VB).value[:8]
    observed = client.ask(OBSERVE_SEQNO, vbucket=VB, value=uuid)
    assert struct.unpack(">BHQQQ", observed.value)[4] == before + 3
    assert http(node, "DELETE", f"{scopes}/{name}")[0] == 200
    assert stats(client, f"vbucket-details {VB}")[f"vb_{VB}:high_seqno"] == str(before + 4)
    assert http(node, "POST", scopes, f"name={name}x")[0] == 200
    seqno = high_seqno(node, bucket)
    assert seqno == before + 5
    assert stats(client, f"vbucket-seqno {VB}")[f"vb_{VB}:high_seqno"] == str(seqno)
    with Dcp(node.kv, bucket) as one:
        assert one.stream(VB, end=seqno).status == SUCCESS
        seen = []
        while (message := one.next()) is not None and getattr(message, "opcode", None) != dcp.STREAM_END:
            if not isinstance(message, Marker):
                seen.append(message)
        assert message.numbers == (dcp.DONE,)
        assert seen[-1].opcode == dcp.SYSTEM_EVENT and seen[-1].seqno == seqno
    assert http(node, "DELETE", f"{scopes}/{name}x")[0] == 200


def test_what_expires_is_told_within_a_second(node, bucket, client):
    with Dcp(node.kv, bucket, controls=[("enable_expiry_opcode", "true")]) as one:
        copy = follow_new(one, node, bucket)
        expiry = int(time.time()) + 3
        client.set(b"brief", expiry=expiry)
        follow(one, copy, high_seqno(node, bucket))
        while (message := one.next()).__class__ is Marker:
            pass
        late = time.time() - expiry
        assert (message.opcode, message.key) == (dcp.EXPIRATION, b"\0brief")
        assert 0 <= late < 2, late


def test_durable_writes_come_as_prepares_to_those_who_ask(node):
    """A chain whose second member is this consumer."""
    bucket = "default"
    with Client(node, bucket) as setter, Dcp(node.kv, bucket, name=None) as plain:
        assert plain.open("plain").status == SUCCESS
        controls = [("consumer_name", "replica"), ("enable_sync_writes", "true")]
        chain = json.dumps({"topology": [["active", "replica"]]}).encode()
        assert setter.ask(0x3D, extras=b"\x01", value=chain, vbucket=VB).status == SUCCESS
        try:
            features = (0x07, 0x08, FEATURE_SYNC_REPLICATION, 0x10)
            with Dcp(node.kv, bucket, controls=controls) as one, BinaryConnection(node.kv) as writer:
                writer.open_bucket(bucket, features)
                assert one.stream(VB, flags=dcp.FROM_LATEST).status == SUCCESS
                assert plain.stream(VB, flags=dcp.FROM_LATEST).status == SUCCESS
                writer.send(dcp.request(SET, b"durable", b"value", struct.pack(">II", 0, 0), vbucket=VB, framing=durability(1, 5000)))
                message = one.change()
                assert (message.opcode, message.key, message.value, message.numbers[-1]) == (dcp.PREPARE, b"\0durable", b"value", 1)
                prepared = message.seqno
                one.send(dcp.request(dcp.SEQNO_ACKNOWLEDGED, extras=struct.pack(">Q", prepared), vbucket=VB))
                assert writer.response().status == SUCCESS
                message = one.change()
                assert (message.opcode, message.key, message.numbers[0]) == (dcp.COMMIT, b"\0durable", prepared)
                message = plain.change()
                assert (message.opcode, message.key, message.value) == (dcp.MUTATION, b"\0durable", b"value")
        finally:
            assert setter.ask(0x3D, extras=b"\x01", value=json.dumps({"topology": None}).encode(), vbucket=VB).status == SUCCESS


def test_a_persistent_bucket_is_followed_across_a_restart(tmp_path):
    """From the journal, and with the values that are only there."""
    buckets = ("p,persistent,100MiB",)
    documents, copy = {}, Copy()
    with servers.Dormouse(buckets=buckets, home=tmp_path) as node:
        with Client(node, "p") as client:
            for n in range(3000):
                key, value = b"key-%d" % n, b"%d-" % n * 200
                client.set(key, value)
                documents[b"\0" + key] = value
            for n in range(0, 3000, 7):
                client.delete(b"key-%d" % n)
                del documents[b"\0key-%d" % n]
        with Dcp(node.kv, "p") as one:
            follow_into(one, copy, node, "p")
            assert copy.documents == documents
        with Client(node, "p") as client:
            for n in range(1, 3000, 11):
                client.set(b"key-%d" % n, b"new")
                documents[b"\0key-%d" % n] = b"new"
        node.stop()
    with servers.Dormouse(buckets=buckets, home=tmp_path) as node:
        wait_warm(node)
        with Dcp(node.kv, "p") as one:
            follow_into(one, copy, node, "p")
            assert copy.documents == documents
        fresh = Copy()
        with Dcp(node.kv, "p") as one:
            follow_into(one, fresh, node, "p")
            assert fresh.documents == documents


def follow_into(one, copy, node, bucket):
    answer = begin(one, copy)
    assert answer.status == SUCCESS, answer
    return follow(one, copy, high_seqno(node, bucket))
