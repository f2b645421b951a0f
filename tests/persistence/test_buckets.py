"""Persistent buckets are created, kept, copied and deleted over HTTP and by configuration."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import types
from datetime import timedelta

import pytest
from couchbase.management.buckets import BucketType, CreateBucketSettings, EvictionPolicyType

from tests import servers
from tests.allocators.node import reload
from tests.clients.cluster import connect
from tests.persistence.bucket import document, http, memcached, start, wait_all_persisted, wait_until, wait_warm

BUCKETS = "/pools/default/buckets"
EPHEMERAL = ("default,ephemeral,64MiB",)


def journal(*arguments, wrap=()):
    """Runs `dormouse journal`; returns its exit code and output."""
    command = [*wrap, str(servers.dormouse_binary()), "journal", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    return done.returncode, done.stdout


def ready(node):
    cluster = connect(node)
    cluster.wait_until_ready(timedelta(seconds=20))
    return cluster


def test_a_bucket_made_by_the_sdk_survives_a_kill(tmp_path):
    with start(tmp_path, buckets=EPHEMERAL) as node:
        cluster = ready(node)
        manager = cluster.buckets()
        manager.create_bucket(CreateBucketSettings(name="made", bucket_type=BucketType.COUCHBASE, ram_quota_mb=100))
        made = manager.get_bucket("made")
        assert (made.bucket_type, made.ram_quota_mb, made.eviction_policy) == (BucketType.COUCHBASE, 100, EvictionPolicyType.VALUE_ONLY)
        cluster.bucket("made").default_collection().upsert("document", {"in": "made"})
        uuid = document(node, f"{BUCKETS}/made")["uuid"]
        wait_until(lambda: 'unflushed_items{bucket="made"} 0' in http(node, "GET", "/metrics")[1], "an empty queue")
        cluster.close()
        node.kill()
    with start(tmp_path, buckets=EPHEMERAL) as node:
        wait_warm(node)
        about = document(node, f"{BUCKETS}/made")
        assert (about["uuid"], about["bucketType"], about["quota"]["ram"]) == (uuid, "membase", 100 << 20)
        cluster = ready(node)
        assert cluster.bucket("made").default_collection().get("document").content_as[dict] == {"in": "made"}
        cluster.buckets().drop_bucket("made")
        cluster.close()
        assert not (node.data / "node" / "buckets" / "made").exists()
        node.kill()
    with start(tmp_path, buckets=EPHEMERAL) as node:
        assert [bucket["name"] for bucket in document(node, BUCKETS)] == ["default"]


def test_without_a_data_directory_a_persistent_bucket_is_refused_by_name():
    command = [str(servers.dormouse_binary()), "serve", "--bucket", "default,persistent"]
    refused = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    for words in ('bucket.kind = "persistent"', 'bucket "default"', "node.data", "allowed:"):
        assert words in refused.stderr


def test_over_http_too():
    address = ("127.0.0.1", servers.free_port())
    ports = [f"--{kind}=none" for kind in ("memcached", "kv")]
    command = [str(servers.dormouse_binary()), "serve", "--http", "%s:%d" % address, *ports]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=servers.end_with_the_tests)
    try:
        servers.wait_listening(address, process)
        form = {"name": "made", "bucketType": "couchbase", "ramQuota": 16}
        status, answer = http(types.SimpleNamespace(http=address), "POST", BUCKETS, form)
        assert status == 400 and "bucketType" in json.loads(answer)["errors"] and "node.data" in answer
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("kind", ["couchbase", "membase", "persistent", None])
def test_every_name_of_a_persistent_bucket_is_known(tmp_path, kind):
    with start(tmp_path, buckets=EPHEMERAL) as node:
        form = {"name": "made", "ramQuota": 16} | ({"bucketType": kind} if kind else {})
        assert http(node, "POST", BUCKETS, form)[0] == 202
        assert document(node, f"{BUCKETS}/made")["bucketType"] == "membase"


def test_the_configuration_counts_and_what_is_fixed_stays(tmp_path):
    form = {"name": "made", "bucketType": "couchbase", "ramQuota": 16, "numVBuckets": 64}
    with start(tmp_path, buckets=EPHEMERAL) as node:
        assert http(node, "POST", BUCKETS, form)[0] == 202
        assert http(node, "POST", BUCKETS, form)[0] == 400
        assert node.stop() == 0
    with start(tmp_path, buckets=("made,persistent,32MiB", *EPHEMERAL)) as node:
        about = document(node, f"{BUCKETS}/made")
        assert (about["quota"]["ram"], about["numVBuckets"]) == (32 << 20, 64)
        assert "this was fixed when the bucket was created" in node.log()
        assert node.stop() == 0
    # No longer in the configuration: it keeps its last settings.
    with start(tmp_path, buckets=EPHEMERAL) as node:
        assert document(node, f"{BUCKETS}/made")["quota"]["ram"] == 32 << 20
        assert "not in the configuration" in node.log()
        assert node.stop() == 0
    with pytest.raises(servers.StartFailed, match="holds a persistent bucket of this name"):
        start(tmp_path, buckets=("made,ephemeral,32MiB", *EPHEMERAL))


def test_a_change_of_one_setting_is_kept_beside_the_others(tmp_path):
    with start(tmp_path, buckets=EPHEMERAL) as node:
        assert http(node, "POST", BUCKETS, {"name": "made", "bucketType": "couchbase", "ramQuota": 16})[0] == 202
        assert http(node, "POST", f"{BUCKETS}/made", {"compressionMode": "active"})[0] == 200
        assert http(node, "POST", f"{BUCKETS}/made", {"defragmenter": "off"})[0] == 200
        node.kill()
    with start(tmp_path, buckets=EPHEMERAL) as node:
        about = document(node, f"{BUCKETS}/made")
        assert (about["compressionMode"], about["defragmenter"]) == ("active", "off")


def test_what_a_reload_changed_is_kept(tmp_path):
    bucket = '[[bucket]]\nname = "{}"\nkind = "{}"\nmemory = "16MiB"\n'
    config = bucket.format("default", "ephemeral") + bucket.format("made", "persistent")
    with start(tmp_path, buckets=(), config=config) as node:
        reload(node, config + 'compression = "active"\ndefragmenter = "off"\n')
        node.kill()
    # No longer in the configuration: it keeps its last settings.
    with start(tmp_path, buckets=EPHEMERAL) as node:
        about = document(node, f"{BUCKETS}/made")
        assert (about["compressionMode"], about["defragmenter"]) == ("active", "off")


def test_the_switch_of_the_defragmenter_is_kept(tmp_path):
    form = {"name": "made", "bucketType": "couchbase", "ramQuota": 16, "defragmenter": "off"}
    with start(tmp_path, buckets=EPHEMERAL) as node:
        assert http(node, "POST", BUCKETS, form)[0] == 202
        node.kill()
    for before, after in (("off", "on"), ("on", "off"), ("off", "off")):
        with start(tmp_path, buckets=EPHEMERAL) as node:
            assert document(node, f"{BUCKETS}/made")["defragmenter"] == before
            assert http(node, "POST", f"{BUCKETS}/made", {"defragmenter": after})[0] == 200
            about = document(node, f"{BUCKETS}/made")
            assert (about["defragmenter"], about["quota"]["ram"]) == (after, 16 << 20)
            node.kill()


def test_a_backup_is_of_one_moment_and_comes_back(tmp_path):
    home, other = tmp_path / "one", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    with start(home) as node:
        client = memcached(node)
        for number in range(300):
            client.set(f"key:{number}", b"%d" % number)
        wait_all_persisted(node)
        assert http(node, "POST", f"{BUCKETS}/default/backup", {"label": "one"}, login="Administrator:wrong")[0] == 401
        status, answer = http(node, "POST", f"{BUCKETS}/default/backup", {"label": "one"})
        assert status == 200, answer
        backup = json.loads(answer)["directory"]
        assert http(node, "POST", f"{BUCKETS}/default/backup", {"label": "one"})[0] == 400
        assert http(node, "POST", f"{BUCKETS}/default/backup", {"label": "../x"})[0] == 400
        assert http(node, "POST", f"{BUCKETS}/none/backup", {})[0] == 404
        # The node keeps writing; the copy does not see that.
        for number in range(300):
            client.set(f"key:{number}", b"later")
        wait_all_persisted(node)
        code, said = journal("compact", node.data / "node" / "buckets" / "default")
        assert code == 1 and "a node uses it" in said, said
        code, said = journal("restore", backup, node.data / "node")
        assert code != 0 and "another node uses it" in said, said
        assert node.stop() == 0
    code, said = journal("verify", backup)
    assert code == 0 and "300 records" not in said and "DAMAGE" not in said, said
    code, said = journal("restore", backup, other / "node")
    assert code == 0, said
    code, said = journal("restore", backup, other / "node")
    assert code == 1 and "there is a bucket of this name already" in said, said
    with start(other) as node:
        wait_warm(node)
        client = memcached(node)
        assert all(client.get(f"key:{number}") == b"%d" % number for number in range(300))


def test_a_backup_from_the_future_is_not_restored(tmp_path):
    """The clock of its CAS would go on there."""
    home, ahead = tmp_path / "ahead", lambda days: ("env", "LD_PRELOAD=/usr/$LIB/faketime/libfaketimeMT.so.1", f"FAKETIME=+{days}d", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    home.mkdir()
    with start(home, wrap=ahead(8)) as node:
        memcached(node).set("key", b"value")
        wait_all_persisted(node)
        status, answer = http(node, "POST", f"{BUCKETS}/default/backup", {"label": "one"})
        assert status == 200, answer
    backup = json.loads(answer)["directory"]
    code, said = journal("restore", backup, tmp_path / "now")
    assert code == 1 and "its CAS is 19" in said and "h ahead of this machine's clock" in said, said
    assert not list((tmp_path / "now").glob("buckets/*/*"))
    code, said = journal("restore", backup, tmp_path / "later" / "node", wrap=ahead(2))
    assert code == 0, said
    with start(tmp_path / "later") as node:
        wait_warm(node)
        assert memcached(node).get("key") == b"value"


def test_the_journal_can_be_read_and_shortened_without_a_server(tmp_path):
    with start(tmp_path) as node:
        client = memcached(node)
        for round_number in range(30):
            for number in range(100):
                client.set(f"key:{number}", b"%d" % round_number * 300)
            wait_all_persisted(node)
        client.delete("key:7")
        assert node.stop() == 0
    directory = tmp_path / "node" / "buckets" / "default"
    code, said = journal("verify", directory)
    assert code == 0 and "closed by a clean stop" in said, said
    code, said = journal("dump", directory)
    assert code == 0
    lines = said.splitlines()
    assert sum(line.startswith("document ") and 'key:42"' in line for line in lines) == 30
    assert sum(line.startswith("tombstone ") and 'key:7"' in line for line in lines) == 1
    code, said = journal("compact", directory)
    assert code == 0, said
    assert journal("verify", directory)[0] == 0
    with start(tmp_path) as node:
        wait_warm(node)
        client = memcached(node)
        assert client.get("key:7") is None
        assert all(client.get(f"key:{number}") == b"29" * 300 for number in range(100) if number != 7)


@pytest.mark.parametrize("command", ["verify", "dump", "compact"])
def test_what_is_no_bucket_is_said_in_one_line(tmp_path, command):
    code, said = journal(command, tmp_path)
    assert code == 1 and said.count("\n") == 1 and str(tmp_path) in said, said


# What a backup may consist of.


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A backup."""
    home = tmp_path_factory.mktemp("backup")
    with start(home) as node:
        memcached(node).set("key", b"value")
        wait_all_persisted(node)
        status, answer = http(node, "POST", f"{BUCKETS}/default/backup", {"label": "whole"})
        assert status == 200, answer
        yield pathlib.Path(json.loads(answer)["directory"])


@pytest.fixture
def backup(whole, tmp_path):
    """A copy of it that can be changed."""
    return pathlib.Path(shutil.copytree(whole, tmp_path / "backup"))


def parts(directory):
    return {path.relative_to(directory): path for path in directory.rglob("*")}


@pytest.mark.parametrize("where", ["bucket.json", "settings.json", "shard-0/MANIFEST", "shard-0", "notes", "shard-0/notes"])
def test_no_link_in_a_backup_is_followed(backup, tmp_path, where):
    elsewhere, link = tmp_path / "elsewhere", backup / where
    if link.exists():
        link.rename(elsewhere)
    else:
        elsewhere.write_text("a secret")
    link.symlink_to(elsewhere)
    code, said = journal("restore", backup, tmp_path / "node")
    assert code == 1 and f"{link}: a symbolic link" in said, said
    assert list((tmp_path / "node").glob("buckets/*")) == []


def test_only_the_files_of_a_bucket_are_restored(backup, tmp_path):
    known = set(parts(backup))
    strange = [backup / "notes", backup / "shard-0" / "id_rsa", backup / "shard-0" / "0.segment", backup / "bucket.json.new", backup / "more" / "bucket.json"]
    (backup / "more").mkdir()
    for path in strange:
        path.write_text("a secret")
    code, said = journal("restore", backup, tmp_path / "node")
    assert code == 0, said
    for path in (*strange[:4], backup / "more"):
        assert f"{path}: left out" in said, said
    assert set(parts(tmp_path / "node" / "buckets" / "default")) == known


@pytest.mark.parametrize("mode, directory_mode", [(0o600, 0o700), (0o640, 0o750), (0o400, 0o500)])
def test_a_restored_file_is_no_more_open_than_its_source(backup, tmp_path, mode, directory_mode):
    for path in parts(backup).values():
        path.chmod(directory_mode if path.is_dir() else mode)
    umask = os.umask(0)
    try:
        code, said = journal("restore", backup, tmp_path / "node")
    finally:
        os.umask(umask)
    assert code == 0, said
    for path in parts(tmp_path / "node" / "buckets" / "default").values():
        expected = directory_mode | 0o700 if path.is_dir() else mode | 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


# How many backups there may be.


def test_a_user_who_manages_a_bucket_fills_no_disk_with_its_backups(tmp_path):
    with start(tmp_path) as node:
        form = {"password": "correct-horse", "roles": "bucket_admin[default]"}
        assert http(node, "PUT", "/settings/rbac/users/local/eve", form)[0] == 200
        memcached(node).set("key", b"value")
        wait_all_persisted(node)
        made = [http(node, "POST", f"{BUCKETS}/default/backup", {"label": f"b{n}"}, login="eve:correct-horse") for n in range(18)]
        assert [status for status, _ in made] == [200] * 16 + [429] * 2
        assert "There are 16 backups of this bucket" in made[-1][1]
        assert len(list((node.data / "node" / "backups" / "default").iterdir())) == 16
        # Not a user who manages the node.
        assert http(node, "POST", f"{BUCKETS}/default/backup", {"label": "more"})[0] == 200
