"""The official Couchbase SDK for Python: parts of documents, extended attributes and data structures; with and without TLS."""

import json
from datetime import datetime, timedelta

import couchbase.subdocument as subdoc
import pytest
from couchbase.durability import DurabilityLevel, ServerDurability
from couchbase.exceptions import (
    CASMismatchException,
    CouchbaseException,
    DeltaInvalidException,
    DocumentExistsException,
    DocumentNotFoundException,
    DocumentNotJsonException,
    DocumentUnretrievableException,
    DurabilityInvalidLevelException,
    InvalidArgumentException,
    InvalidValueException,
    NumberTooBigException,
    PathExistsException,
    PathInvalidException,
    PathMismatchException,
    PathNotFoundException,
    PathTooBigException,
    QueueEmpty,
    ValueTooDeepException,
)
from couchbase.options import GetOptions, LookupInOptions, MutateInOptions, UpsertOptions
from couchbase.subdocument import MutationMacro, StoreSemantics
from couchbase.transcoder import RawBinaryTranscoder

UPSERT = MutateInOptions(store_semantics=StoreSemantics.UPSERT)
INSERT = MutateInOptions(store_semantics=StoreSemantics.INSERT)
# The SDK has the error, but no exception of its own for it.
CANNOT_MODIFY_VIRTUAL_ATTRIBUTE = 128


@pytest.fixture(scope="module")
def node(either_node):
    return either_node


@pytest.fixture
def key(request, collection):
    name = f"subdoc::{request.node.name}"
    try:
        collection.remove(name)
    except DocumentNotFoundException:
        pass
    return name


def document(collection, key):
    return collection.get(key).content_as[lambda value: value]


def expiry(collection, key):
    return collection.get(key, GetOptions(with_expiry=True)).expiry_time


def attribute(collection, key, path, options=LookupInOptions()):
    """The attribute at the path, or None if there is none."""
    found = collection.lookup_in(key, (subdoc.get(path, xattr=True),), options)
    return found.value[0].get("value")


def test_lookup(collection, key):
    whole = {"a": 1, "list": [1, 2, "x"], "deep": {"b": {"c": "grüße"}}, "nothing": None, "dot.ted": True}
    cas = collection.upsert(key, whole).cas
    paths = ("deep.b.c", "list[-1]", "list[0]", "deep.b", "nothing", "`dot.ted`")
    read = collection.lookup_in(key, [*map(subdoc.get, paths), subdoc.count("list"), subdoc.count("deep"), subdoc.count(""), subdoc.get_full()])
    assert read.cas == cas
    assert [field["value"] for field in read.value] == ["grüße", "x", 1, {"c": "grüße"}, None, True, 3, 1, 5, whole]


def test_exists(collection, key):
    collection.upsert(key, {"a": None, "list": [0]})
    read = collection.lookup_in(key, [subdoc.exists(path) for path in ("a", "b", "list[0]", "list[1]")])
    assert [read.exists(index) for index in range(4)] == [True, False, True, False]


def test_a_missing_path_does_not_disturb_the_others(collection, key):
    collection.upsert(key, {"a": 1, "text": "x"})
    read = collection.lookup_in(key, [subdoc.get(path) for path in ("none", "a", "a.b", "[0]", "a..b[")])
    assert read.content_as[int](1) == 1
    for index, kind in ((0, PathNotFoundException), (2, PathMismatchException), (3, PathMismatchException), (4, PathInvalidException)):
        with pytest.raises(kind):
            read.content_as[int](index)
    with pytest.raises(PathMismatchException):
        collection.lookup_in(key, (subdoc.count("a"),)).content_as[int](0)


def test_lookup_in_a_missing_document(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.lookup_in(key, (subdoc.get("a"),))


def test_lookup_in_what_is_not_json(collection, key):
    collection.upsert(key, b"text", UpsertOptions(transcoder=RawBinaryTranscoder()))
    with pytest.raises(DocumentNotJsonException):
        collection.lookup_in(key, (subdoc.get("a"),)).content_as[int](0)
    with pytest.raises(DocumentNotJsonException):
        collection.mutate_in(key, (subdoc.upsert("a", 1),))


def test_sixteen_paths_at_most(collection, key):
    collection.upsert(key, {"a": 1})
    assert [field["value"] for field in collection.lookup_in(key, [subdoc.get("a")] * 16).value] == [1] * 16
    with pytest.raises(InvalidArgumentException):
        collection.lookup_in(key, [subdoc.get("a")] * 17)
    with pytest.raises(InvalidArgumentException):
        collection.mutate_in(key, [subdoc.upsert("a", 2)] * 17)
    assert document(collection, key) == {"a": 1}


def test_a_large_document(collection, key):
    whole = {f"field-{n}": "x" * 1000 for n in range(5000)}
    collection.upsert(key, whole)
    collection.mutate_in(key, (subdoc.upsert("field-4999", "changed"), subdoc.remove("field-0")))
    whole["field-4999"] = "changed"
    del whole["field-0"]
    assert collection.lookup_in(key, (subdoc.count(""), subdoc.get("field-4999"))).content_as[str](1) == "changed"
    assert document(collection, key) == whole


@pytest.mark.parametrize("spec, expected", [
    (subdoc.upsert("a", {"b": None}), {"a": {"b": None}, "list": [2, 3]}),
    (subdoc.upsert("b", "grüße"), {"a": 1, "list": [2, 3], "b": "grüße"}),
    (subdoc.insert("b", 2), {"a": 1, "list": [2, 3], "b": 2}),
    (subdoc.insert("x.y.z", 2, create_parents=True), {"a": 1, "list": [2, 3], "x": {"y": {"z": 2}}}),
    (subdoc.upsert("x.y", 2, create_parents=True), {"a": 1, "list": [2, 3], "x": {"y": 2}}),
    (subdoc.replace("a", 2), {"a": 2, "list": [2, 3]}),
    (subdoc.replace("list[-1]", "x"), {"a": 1, "list": [2, "x"]}),
    (subdoc.remove("a"), {"list": [2, 3]}),
    (subdoc.remove("list[0]"), {"a": 1, "list": [3]}),
    (subdoc.array_append("list", 4), {"a": 1, "list": [2, 3, 4]}),
    (subdoc.array_append("list", 4, [5]), {"a": 1, "list": [2, 3, 4, [5]]}),
    (subdoc.array_append("other", 4, create_parents=True), {"a": 1, "list": [2, 3], "other": [4]}),
    (subdoc.array_prepend("list", 0, 1), {"a": 1, "list": [0, 1, 2, 3]}),
    (subdoc.array_insert("list[1]", 2.5), {"a": 1, "list": [2, 2.5, 3]}),
    (subdoc.array_insert("list[2]", 4, 5), {"a": 1, "list": [2, 3, 4, 5]}),
    (subdoc.array_addunique("list", 4), {"a": 1, "list": [2, 3, 4]}),
    (subdoc.array_addunique("x.other", "y", create_parents=True), {"a": 1, "list": [2, 3], "x": {"other": ["y"]}}),
    (subdoc.increment("a", 5), {"a": 6, "list": [2, 3]}),
    (subdoc.decrement("list[0]", 5), {"a": 1, "list": [-3, 3]}),
    (subdoc.increment("n.m", 5, create_parents=True), {"a": 1, "list": [2, 3], "n": {"m": 5}}),
    (subdoc.replace("", [1]), [1]),
])
def test_one_change(collection, key, spec, expected):
    before = collection.upsert(key, {"a": 1, "list": [2, 3]}).cas
    changed = collection.mutate_in(key, (spec,))
    read = collection.get(key)
    assert read.value == expected
    assert before < changed.cas == read.cas
    assert changed.mutation_token().sequence_number > 0


def test_several_changes_in_order(collection, key):
    collection.upsert(key, {})
    collection.mutate_in(key, (
        subdoc.upsert("list", []), subdoc.array_append("list", 1), subdoc.array_prepend("list", 0), subdoc.upsert("a", 1), subdoc.replace("a", {"b": 1}),
        subdoc.increment("a.b", 1), subdoc.insert("gone", 1), subdoc.remove("gone"),
    ))
    assert document(collection, key) == {"list": [0, 1], "a": {"b": 2}}


def test_counters_return_their_values(collection, key):
    collection.upsert(key, {"n": 1})
    changed = collection.mutate_in(key, (
        subdoc.increment("n", 10), subdoc.upsert("x", 1), subdoc.decrement("n", 5), subdoc.increment("fresh", 7), subdoc.decrement("below", 7),
    ))
    assert [changed.content_as[int](index) for index in (0, 2, 3, 4)] == [11, 6, 7, -7]
    assert document(collection, key) == {"n": 6, "x": 1, "fresh": 7, "below": -7}
    collection.mutate_in(key, (subdoc.upsert("n", 2**63 - 2),))
    assert collection.mutate_in(key, (subdoc.increment("n", 1),)).content_as[int](0) == 2**63 - 1


def test_the_whole_document_is_removed(collection, key):
    collection.upsert(key, {"a": 1})
    collection.mutate_in(key, (subdoc.remove(""),))
    with pytest.raises(DocumentNotFoundException):
        collection.get(key)


@pytest.mark.parametrize("spec, kind", [
    (subdoc.insert("a", 2), PathExistsException),
    (subdoc.array_addunique("list", "x"), PathExistsException),
    (subdoc.replace("none", 2), PathNotFoundException),
    (subdoc.remove("none"), PathNotFoundException),
    (subdoc.upsert("x.y", 2), PathNotFoundException),
    (subdoc.array_append("none", 2), PathNotFoundException),
    (subdoc.array_insert("list[7]", 2), PathNotFoundException),
    (subdoc.upsert("a.b", 2), PathMismatchException),
    (subdoc.array_append("a", 2), PathMismatchException),
    (subdoc.increment("text", 2), PathMismatchException),
    (subdoc.array_addunique("objects", 2), PathMismatchException),
    (subdoc.upsert("a..b[", 2), PathInvalidException),
    (subdoc.upsert("list[0]", 2), PathInvalidException),
    (subdoc.upsert(".".join("a" * 33), 2), PathTooBigException),
    (subdoc.upsert("a", json.loads("[" * 40 + "]" * 40)), ValueTooDeepException),
    (subdoc.array_addunique("list", {"a": 1}), InvalidValueException),
    (subdoc.increment("most", 1), InvalidValueException),
    (subdoc.increment("huge", 1), NumberTooBigException),
    (subdoc.Spec(subdoc.SubDocOp.COUNTER, "a", False, False, False, 0), DeltaInvalidException),
])
def test_a_failed_change_changes_nothing(collection, key, spec, kind):
    whole = {"a": 1, "list": [1, "x"], "text": "x", "objects": [{}], "most": 2**63 - 1, "huge": 10**20}
    cas = collection.upsert(key, whole).cas
    with pytest.raises(kind):
        collection.mutate_in(key, (spec,))
    with pytest.raises(kind) as raised:
        collection.mutate_in(key, (subdoc.upsert("changed", True), spec))
    assert (raised.value.context.first_error_index, raised.value.context.first_error_path) == (1, spec[1])
    read = collection.get(key)
    assert (read.value, read.cas) == (whole, cas)


def test_cas(collection, key):
    old = collection.upsert(key, {"n": 1}).cas
    cas = collection.mutate_in(key, (subdoc.increment("n", 1),), MutateInOptions(cas=old)).cas
    with pytest.raises(CASMismatchException):
        collection.mutate_in(key, (subdoc.increment("n", 1),), MutateInOptions(cas=old))
    read = collection.get(key)
    assert (read.value, read.cas) == ({"n": 2}, cas)


def test_a_missing_document_is_not_changed(collection, key):
    with pytest.raises(DocumentNotFoundException):
        collection.mutate_in(key, (subdoc.upsert("a", 1),))
    with pytest.raises(DocumentNotFoundException):
        collection.mutate_in(key, (subdoc.upsert("a", 1),), MutateInOptions(cas=17))
    assert not collection.exists(key).exists


def test_store_semantics_upsert(collection, key):
    collection.mutate_in(key, (subdoc.upsert("a", 1),), UPSERT)
    collection.mutate_in(key, (subdoc.upsert("a", 2), subdoc.increment("n", 3)), UPSERT)
    assert document(collection, key) == {"a": 2, "n": 3}


def test_store_semantics_insert(collection, key):
    collection.mutate_in(key, (subdoc.insert("a", 1),), INSERT)
    with pytest.raises(DocumentExistsException):
        collection.mutate_in(key, (subdoc.upsert("a", 2),), INSERT)
    assert document(collection, key) == {"a": 1}
    collection.remove(key)
    collection.mutate_in(key, (subdoc.upsert("a", 3),), INSERT)
    assert document(collection, key) == {"a": 3}


@pytest.mark.parametrize("options", [UPSERT, INSERT], ids=["upsert", "insert"])
@pytest.mark.parametrize("spec, expected", [
    (subdoc.array_append("", 1, 2), [1, 2]),
    (subdoc.increment("n", 5), {"n": 5}),
    (subdoc.replace("", {"whole": True}), {"whole": True}),
    # Whoever may make the document may make the parents of a path.
    (subdoc.upsert("x.y.z", 1), {"x": {"y": {"z": 1}}}),
    (subdoc.array_append("x.list", 1), {"x": {"list": [1]}}),
])
def test_a_made_document(collection, key, options, spec, expected):
    collection.mutate_in(key, (spec,), options)
    assert document(collection, key) == expected


def test_nothing_is_made_by_a_failure(collection, key):
    with pytest.raises(PathNotFoundException):
        collection.mutate_in(key, (subdoc.upsert("a", 1), subdoc.replace("none", 1)), UPSERT)
    assert not collection.exists(key).exists


def test_with_expiry(collection, key):
    collection.upsert(key, {"n": 1}, UpsertOptions(expiry=timedelta(seconds=100)))
    read = collection.get(key, GetOptions(with_expiry=True))
    assert read.value == {"n": 1}
    assert timedelta(seconds=97) < read.expiry_time - datetime.now() < timedelta(seconds=102)
    collection.mutate_in(key, (subdoc.upsert("n", 2),), MutateInOptions(expiry=timedelta(seconds=200)))
    assert timedelta(seconds=197) < expiry(collection, key) - datetime.now() < timedelta(seconds=202)
    collection.upsert(key, {"n": 3})
    assert expiry(collection, key) is None


def test_projection(collection, key):
    fields = {f"f{n}": n for n in range(20)}
    collection.upsert(key, {**fields, "deep": {"b": {"c": 1}, "d": 2}}, UpsertOptions(expiry=timedelta(seconds=100)))
    assert collection.get(key, GetOptions(project=["f1", "deep.b.c", "none"])).value == {"f1": 1, "deep": {"b": {"c": 1}}}
    timed = collection.get(key, GetOptions(project=["deep"], with_expiry=True))
    assert timed.value == {"deep": {"b": {"c": 1}, "d": 2}} and timed.expiry_time > datetime.now()
    # More paths than a request can hold: the SDK reads the whole document.
    assert collection.get(key, GetOptions(project=list(fields))).value == fields
    with pytest.raises(DocumentNotFoundException):
        collection.get(key + "-missing", GetOptions(project=["f1"]))


def test_expiry_is_preserved(collection, key):
    collection.upsert(key, {"n": 1}, UpsertOptions(expiry=timedelta(seconds=100)))
    before = expiry(collection, key)
    collection.mutate_in(key, (subdoc.increment("n", 1),), MutateInOptions(preserve_expiry=True))
    assert expiry(collection, key) == before is not None
    assert document(collection, key) == {"n": 2}


def test_expiry_is_cleared_unless_preserved(collection, key):
    collection.upsert(key, {"n": 1}, UpsertOptions(expiry=timedelta(seconds=100)))
    collection.mutate_in(key, (subdoc.increment("n", 1),))
    assert expiry(collection, key) is None


def test_attributes(collection, key):
    collection.upsert(key, {"a": 1})
    collection.mutate_in(key, (
        subdoc.upsert("meta.owner", "grüße", xattr=True, create_parents=True), subdoc.increment("meta.n", 3, xattr=True), subdoc.upsert("a", 2),
        subdoc.array_append("meta.list", 1, 2, xattr=True, create_parents=True),
    ))
    assert document(collection, key) == {"a": 2}
    read = collection.lookup_in(key, (
        subdoc.get("meta", xattr=True), subdoc.exists("meta.owner", xattr=True), subdoc.exists("meta.none", xattr=True),
        subdoc.count("meta.list", xattr=True), subdoc.get("meta.none", xattr=True), subdoc.get("a"),
    ))
    assert read.content_as[dict](0) == {"owner": "grüße", "n": 3, "list": [1, 2]}
    assert [read.exists(1), read.exists(2), read.content_as[int](3), read.content_as[int](5)] == [True, False, 2, 2]
    with pytest.raises(PathNotFoundException):
        read.content_as[str](4)


def test_attributes_survive_a_store_but_not_a_removal(collection, key):
    collection.upsert(key, {"a": 1})
    collection.mutate_in(key, (subdoc.upsert("meta", 1, xattr=True),))
    collection.upsert(key, {"a": 2})
    collection.replace(key, {"a": 3})
    assert attribute(collection, key, "meta") == 1
    collection.remove(key)
    collection.insert(key, {"a": 4})
    assert attribute(collection, key, "meta") is None
    collection.mutate_in(key, (subdoc.upsert("meta", 2, xattr=True),))
    collection.mutate_in(key, (subdoc.remove("meta", xattr=True),))
    assert attribute(collection, key, "meta") is None
    assert document(collection, key) == {"a": 4}


def test_attributes_of_what_is_not_json(collection, key):
    raw = RawBinaryTranscoder()
    collection.upsert(key, b"text", UpsertOptions(transcoder=raw))
    collection.mutate_in(key, (subdoc.upsert("meta", 1, xattr=True),))
    assert attribute(collection, key, "meta") == 1
    assert collection.get(key, GetOptions(transcoder=raw)).value == b"text"


def test_system_attributes_survive_a_removal(collection, key):
    collection.upsert(key, {"a": 1})
    collection.mutate_in(key, (subdoc.upsert("_system", 1, xattr=True),))
    collection.remove(key)
    with pytest.raises(DocumentNotFoundException):
        attribute(collection, key, "_system")
    assert attribute(collection, key, "_system", LookupInOptions(access_deleted=True)) == 1
    assert attribute(collection, key, "$document.deleted", LookupInOptions(access_deleted=True)) is True


def test_the_virtual_document(collection, key):
    body = {"a": 1}
    collection.upsert(key, body, UpsertOptions(expiry=timedelta(seconds=100)))
    changed = collection.mutate_in(key, (subdoc.upsert("meta", 1, xattr=True),), MutateInOptions(preserve_expiry=True))
    token = changed.mutation_token()
    virtual = attribute(collection, key, "$document")
    assert virtual["CAS"] == f"{changed.cas:#018x}"
    assert virtual["seqno"] == f"{token.sequence_number:#018x}" and virtual["vbucket_uuid"] == f"{token.partition_uuid:#018x}"
    assert virtual["exptime"] == expiry(collection, key).timestamp()
    assert virtual["last_modified"] == str(changed.cas // 10**9)
    assert virtual["value_bytes"] == len(json.dumps(body))
    assert (virtual["deleted"], virtual["datatype"]) == (False, ["json", "xattr"])
    assert attribute(collection, key, "$document.exptime") == virtual["exptime"]
    assert attribute(collection, key, "$XTOC") == ["meta"]
    with pytest.raises(CouchbaseException) as raised:
        collection.mutate_in(key, (subdoc.upsert("$document.CAS", "1", xattr=True),))
    assert raised.value.error_code == CANNOT_MODIFY_VIRTUAL_ATTRIBUTE
    assert attribute(collection, key, "$document") == virtual


def test_macros(collection, key):
    collection.upsert(key, {"a": 1})
    changed = collection.mutate_in(key, (
        subdoc.upsert("meta.cas", MutationMacro.cas(), create_parents=True), subdoc.insert("meta.seqno", MutationMacro.seq_no()),
        subdoc.upsert("meta.crc", MutationMacro.value_crc32c()), subdoc.upsert("meta.text", "${Mutation.CAS}", xattr=True), subdoc.upsert("a", 2),
    ))
    meta, virtual = attribute(collection, key, "meta"), attribute(collection, key, "$document")
    # The bytes of the CAS are swapped, as everywhere in this protocol's macros.
    assert meta["cas"] == f"0x{changed.cas.to_bytes(8, 'little').hex()}"
    assert subdoc.convert_macro_cas_to_cas(meta["cas"]) == changed.cas
    assert meta["seqno"] == virtual["seqno"] == f"{changed.mutation_token().sequence_number:#018x}"
    assert meta["crc"] == virtual["value_crc32c"]
    assert meta["text"] == "${Mutation.CAS}"


def test_replicas(collection, key):
    cas = collection.upsert(key, {"a": 1}).cas
    specs = (subdoc.get("a"), subdoc.exists("none"))
    found = collection.lookup_in_any_replica(key, specs)
    assert (found.content_as[int](0), found.exists(1), found.is_replica, found.cas) == (1, False, False, cas)
    assert [(one.content_as[int](0), one.is_replica) for one in collection.lookup_in_all_replicas(key, specs)] == [(1, False)]
    with pytest.raises(DocumentUnretrievableException):
        collection.lookup_in_any_replica(key + "-missing", specs)


def test_durable(collection, key):
    majority = ServerDurability(DurabilityLevel.MAJORITY)
    collection.upsert(key, {"n": 1})
    changed = collection.mutate_in(key, (subdoc.increment("n", 1), subdoc.upsert("_x", 1, xattr=True)), MutateInOptions(durability=majority))
    assert changed.content_as[int](0) == 2
    collection.mutate_in(key, (subdoc.increment("n", 1),), MutateInOptions(durability=majority, cas=changed.cas))
    assert document(collection, key) == {"n": 3}
    collection.mutate_in(key, (subdoc.remove(""),), MutateInOptions(durability=majority))
    assert not collection.exists(key).exists
    collection.mutate_in(key, (subdoc.insert("n", 1),), MutateInOptions(durability=majority, store_semantics=StoreSemantics.INSERT))
    assert document(collection, key) == {"n": 1}


@pytest.mark.parametrize("level", [DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY])
def test_durability_persist_is_refused_on_an_ephemeral_bucket(collection, key, level):
    collection.upsert(key, {"n": 1})
    with pytest.raises(DurabilityInvalidLevelException):
        collection.mutate_in(key, (subdoc.increment("n", 1),), MutateInOptions(durability=ServerDurability(level)))
    assert document(collection, key) == {"n": 1}


def test_list(collection, key):
    items = collection.couchbase_list(key)
    for add, value in ((items.append, "b"), (items.append, "c"), (items.prepend, "a")):
        add(value)
    assert items.get_all() == list(items) == ["a", "b", "c"]
    assert (items.get_at(1), items.size(), items.index_of("c"), items.index_of("x")) == ("b", 3, 2, -1)
    items.set_at(1, "B")
    items.remove_at(0)
    assert items.get_all() == ["B", "c"]
    for beyond in (lambda: items.set_at(7, 1), lambda: items.remove_at(7)):
        with pytest.raises(InvalidArgumentException):
            beyond()
    items.clear()
    assert not collection.exists(key).exists


def test_map(collection, key):
    items = collection.couchbase_map(key)
    items.add("one", 1)
    items.add("two", {"n": 2})
    assert (items.get("two"), items.size(), items.exists("one"), items.exists("no")) == ({"n": 2}, 2, True, False)
    items.remove("one")
    assert (list(items.keys()), list(items.values()), dict(items.items())) == (["two"], [{"n": 2}], {"two": {"n": 2}})
    with pytest.raises(InvalidArgumentException):
        items.remove("one")


def test_set(collection, key):
    items = collection.couchbase_set(key)
    assert [items.add("a"), items.add("b"), items.add("a")] == [True, True, False]
    assert (items.size(), items.contains("b"), items.contains("c")) == (2, True, False)
    items.remove("a")
    assert items.values() == ["b"]


def test_queue(collection, key):
    items = collection.couchbase_queue(key)
    items.push(1)
    items.push(2)
    assert (items.size(), items.pop(), items.pop(), items.size()) == (2, 1, 2, 0)
    with pytest.raises(QueueEmpty):
        items.pop()
