"""The Python SDK compresses long enough values once Snappy is granted; other clients see the same documents."""

import json
import zlib
from datetime import timedelta

import pytest
from couchbase.options import AppendOptions, GetOptions, UpsertOptions
from couchbase.transcoder import RawBinaryTranscoder

from tests.frames import FEATURE_JSON, FEATURE_SELECT_BUCKET, FEATURE_XERROR, GET, SUCCESS, BinaryConnection

from .text_connection import TextConnection

RAW = RawBinaryTranscoder()


@pytest.fixture
def text(node):
    one = TextConnection(node.memcached)
    yield one
    one.close()


def compressed_values(text):
    text.socket.sendall(b"stats compression\r\n")
    figures = {}
    while (line := text.reader.readline()) != b"END\r\n":
        _, name, value = line.split(maxsplit=2)
        figures[name.decode()] = value.decode().strip()
    assert figures["mode"] == "passive"
    return int(figures["compressed_values"]), int(figures["compressed_bytes"]), int(figures["inflated_bytes"])


def test_documents_arrive_compressed_and_everybody_reads_them(node, collection, text):
    before, _, _ = compressed_values(text)
    documents = {f"compressed-{n}": {"n": n, "text": "all work and no play " * (n % 300 + 5)} for n in range(200)}
    assert collection.upsert_multi(documents).all_ok
    values, stored, inflated = compressed_values(text)
    assert values - before == len(documents), "the SDK did not compress: is Snappy granted?"
    assert stored < inflated / 3
    with BinaryConnection(node.kv) as plain:
        plain.open_bucket(features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON))
        for key, document in documents.items():
            assert collection.get(key).content_as[dict] == document
            assert json.loads(text.get(key.encode())[0]) == document
            seen = plain.ask(GET, key.encode(), vbucket=zlib.crc32(key.encode()) >> 16 & 0x3FF)
            assert seen.status == SUCCESS and json.loads(seen.value) == document


def test_operations_on_a_compressed_document(collection, text):
    value = b"ho " * 5000
    collection.upsert("c", value, UpsertOptions(transcoder=RAW))
    collection.touch("c", timedelta(seconds=100))
    assert collection.get_and_touch("c", timedelta(seconds=100), transcoder=RAW).value == value
    locked = collection.get_and_lock("c", timedelta(seconds=5), transcoder=RAW)
    assert locked.value == value
    collection.unlock("c", locked.cas)
    collection.binary().append("c", b"end " * 100, AppendOptions())
    assert collection.get("c", GetOptions(transcoder=RAW)).value == value + b"end " * 100
    assert text.get(b"c")[0] == value + b"end " * 100
