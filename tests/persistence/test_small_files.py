"""The files beside a bucket's journals (`bucket.json`, `settings.json`): what is not as the node wrote it is refused, by name, and never
taken for fewer collections or for weaker settings."""

import json
import random
import shutil

import pytest

from tests.frames import SUCCESS
from tests.servers import Dormouse, StartFailed
from tests.wire.test_replica_collections import Client as CollectionsClient

from .bucket import http, wait_until
from .test_buckets import journal

NAME = "made"
BUCKETS = "/pools/default/buckets"
SCOPE = f"{BUCKETS}/{NAME}/scopes/_default/collections"
DIRECTORY = f"node/buckets/{NAME}"
FIRST_ID, VB = 10, 3
SEED = 20261130


def make(start, home, **settings):
    """A node with a persistent bucket that was created over HTTP."""
    node = start(config="", home=home)
    status, answer = http(node, "POST", BUCKETS, {"name": NAME, "bucketType": "couchbase", "ramQuota": 32, **settings})
    assert status == 202, answer
    return node


def done(node, method, path, form=None):
    status, answer = http(node, method, path, form)
    assert status == 200, answer


def store(node, collection, key, value):
    with CollectionsClient(node, bucket=NAME) as client:
        assert client.set(collection, key, value, level=3, vb=VB) == SUCCESS


def holds(node, collection, key, value):
    with CollectionsClient(node, bucket=NAME) as client:
        wait_until(lambda: client.get(collection, key, vb=VB) == value, f"{key} is {value}")


def refuses(start, home, file, what=""):
    """The node does not start, and says which file is why."""
    with pytest.raises(StartFailed) as failed:
        start(config="", home=home)
    assert file in str(failed.value) and what in str(failed.value), failed.value


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A home with a collection and a document in it."""
    home = tmp_path_factory.mktemp("stopped")
    node = make(lambda **named: Dormouse(buckets=(), **named), home, durabilityMinLevel="majority")
    done(node, "POST", SCOPE, {"name": "one"})
    store(node, FIRST_ID, b"key", b"value")
    assert node.stop() == 0
    return home


@pytest.fixture
def home(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("name", ["bucket.json", "settings.json"])
def test_one_bit_of_any_byte_is_noticed(home, start, name):
    chance, path = random.Random(SEED), home / DIRECTORY / name
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        code, said = journal("verify", home / DIRECTORY)
        assert code == 1 and name in said, (at, damaged[at : at + 20], said)
    path.write_bytes(whole.replace(b'"id": 8', b'"id": 9') if name == "bucket.json" else whole.replace(b"majority", b"majoritx"))
    refuses(start, home, name)
    path.write_bytes(whole)
    assert journal("verify", home / DIRECTORY)[0] == 0
    holds(start(config="", home=home), FIRST_ID, b"key", b"value")


@pytest.mark.parametrize("change", [{"next_collection": 8}, {"scopes": "twice"}, {"uid": 0}])
def test_ids_that_contradict_each_other_are_refused(home, start, change):
    """As written by an earlier version, without a checksum."""
    path = home / DIRECTORY / "bucket.json"
    written = json.loads(path.read_text())
    del written["crc32c"]
    if change == {"scopes": "twice"}:
        one = next(one for one in written["collections"]["scopes"][0]["collections"] if one["id"] == FIRST_ID)
        written["collections"]["scopes"][0]["collections"].append(one | {"name": "two"})
    else:
        written["collections"] |= change
    path.write_text(json.dumps(written))
    refuses(start, home, "bucket.json", "contradict each other")
    code, said = journal("verify", home / DIRECTORY)
    assert code == 1 and "contradict each other" in said


def test_files_of_an_earlier_version_are_read(home, start):
    for name in ("bucket.json", "settings.json"):
        path = home / DIRECTORY / name
        written = json.loads(path.read_text())
        del written["crc32c"]
        path.write_text(json.dumps(written))
    node = start(config="", home=home)
    holds(node, FIRST_ID, b"key", b"value")
    assert json.loads(http(node, "GET", f"{BUCKETS}/{NAME}")[1])["durabilityMinLevel"] == "majority"


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_an_older_file_brings_no_dropped_collection_back(start, tmp_path, ends):
    node = make(start, tmp_path)
    file = tmp_path / DIRECTORY / "bucket.json"
    done(node, "POST", SCOPE, {"name": "one"})
    store(node, FIRST_ID, b"key", b"value")
    older = file.read_bytes()
    done(node, "DELETE", f"{SCOPE}/one")
    node.stop() if ends == "stopped" else node.kill()
    newer = file.read_bytes()
    file.write_bytes(older)
    node = start(config="", home=tmp_path)
    wait_until(lambda: json.loads(http(node, "GET", "/health/ready")[1])["status"] == "damaged", "the damage")
    assert "bucket.json is older than the journal" in node.log(1 << 20)
    with CollectionsClient(node, bucket=NAME) as client:
        assert client.get(FIRST_ID, b"key", vb=VB) != b"value"
    assert http(node, "POST", f"{BUCKETS}/{NAME}/backup", {"label": "one"})[0] == 500
    node.kill()
    file.write_bytes(newer)
    node = start(config="", home=tmp_path)
    store(node, 0, b"key", b"other")
    holds(node, 0, b"key", b"other")


@pytest.mark.parametrize("name, what", [("bucket.json", "is missing beside its journals"), ("settings.json", "")])
def test_a_missing_file_is_named_and_nothing_is_deleted(home, start, name, what):
    path = home / DIRECTORY / name
    whole = path.read_bytes()
    path.unlink()
    others = sorted(home.glob(f"{DIRECTORY}/**/*"))
    for _ in range(2):
        refuses(start, home, name, what)
        assert sorted(home.glob(f"{DIRECTORY}/**/*")) == others
    path.write_bytes(whole)
    node = start(config="", home=home)
    holds(node, FIRST_ID, b"key", b"value")
    assert json.loads(http(node, "GET", f"{BUCKETS}/{NAME}")[1])["durabilityMinLevel"] == "majority"


def test_settings_that_are_not_allowed_are_refused(home, start):
    path = home / DIRECTORY / "settings.json"
    written = json.loads(path.read_text())
    del written["crc32c"]
    name = next(name for name, value in written.items() if value == "majority")
    path.write_text(json.dumps(written | {name: "all"}))
    refuses(start, home, "settings.json", "is not allowed")
    path.write_text("{}")
    assert json.loads(http(start(config="", home=home), "GET", f"{BUCKETS}/{NAME}")[1])["durabilityMinLevel"] == "none"


@pytest.mark.parametrize("file, change", [("settings.json", None), ("settings.json", ""), ("bucket.json", {"vbuckets": 2048}), ("bucket.json", {"shards": 0}), ("bucket.json", {"format": 99})])
def test_a_backup_that_no_node_can_open_is_not_restored(home, start, tmp_path_factory, file, change):
    node = start(config="", home=home)
    done(node, "POST", f"{BUCKETS}/{NAME}/backup", {"label": "one"})
    assert node.stop() == 0
    backup, target = home / "node/backups" / NAME / "one", tmp_path_factory.mktemp("target") / "node"
    path = backup / file
    whole = path.read_text()
    if change is None:
        path.unlink()
    elif change == "":
        path.write_text(whole[: len(whole) // 2])
    else:
        written = json.loads(whole)
        del written["crc32c"]
        path.write_text(json.dumps(written | change))
    code, said = journal("restore", backup, target)
    assert code == 1 and file in said, said
    assert not (target / "buckets" / NAME).exists()
    path.write_text(whole)
    code, said = journal("restore", backup, target)
    assert code == 0, said


def test_the_settings_of_another_bucket_are_refused(home, start):
    node = start(config="", home=home)
    status, answer = http(node, "POST", BUCKETS, {"name": "other", "bucketType": "couchbase", "ramQuota": 32})
    assert status == 202, answer
    assert node.stop() == 0
    path = home / DIRECTORY / "settings.json"
    whole = path.read_bytes()
    path.write_bytes((home / "node/buckets/other/settings.json").read_bytes())
    refuses(start, home, "settings.json", "the settings of bucket")
    path.write_bytes(whole)
    assert json.loads(http(start(config="", home=home), "GET", f"{BUCKETS}/{NAME}")[1])["durabilityMinLevel"] == "majority"
