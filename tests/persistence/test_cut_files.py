"""A journal file that is cut off, whose end is zeroed or garbage, or that is an older copy of itself: no client sees a
hole or an older version. What is not whole is refused by vBucket and named by `verify`, `/health/ready` and the log, and
no backup of it succeeds.
"""

import json
import random
import shutil

import pytest

from tests.frames import SUCCESS
from tests.servers import Dormouse
from tests.wire.test_replica_collections import Client as CollectionsClient

from .bucket import http, wait_until
from .crash import CONFIG, SHARD
from .peer import VBUCKETS, Peer
from .test_damage import journal, judge
from .values import chunk

KEYS = [b"key-%d" % n for n in range(160)]
BUCKET = "node/buckets/default"
BACKUP = "/pools/default/buckets/default/backup"
SEED = 20261129


def write(home, ends):
    """Leaves the files of a node behind that was stopped or killed. Returns what it had acknowledged as on disk, and
    what the newest segment was a while before."""
    node = Dormouse(home=home, buckets=(), config=CONFIG)
    content, older = {}, None
    with Peer(node.kv) as peer:
        for round in range(6):
            for key in KEYS:
                content[key] = chunk(f"{round}.{key}", 1200 + 600 * (round % 3))
                assert peer.set(key, content[key]).status == SUCCESS
            for vbucket in range(VBUCKETS):
                peer.store_persistent(vbucket)
            older = older or [(path.name, path.read_bytes()) for path in sorted((home / SHARD).glob("*.segment"))]
    if ends == "stopped":
        assert node.stop() == 0
    else:
        node.kill()
    segments = sorted((home / SHARD).glob("*.segment"))
    assert len(segments) >= 2, segments
    return content, dict(older)


@pytest.fixture(scope="module", params=["stopped", "killed"])
def written(request, tmp_path_factory):
    home = tmp_path_factory.mktemp(request.param)
    return home, *write(home, request.param)


def used(bytes):
    return len(bytes.rstrip(b"\0"))


def changes(segments, older, chance):
    """[(file, what is done to it, its new content)]"""
    sealed, newest = [path for path in segments if path.name != segments[-1].name], segments[-1]
    for path in [chance.choice(sealed) for _ in range(5)] + [newest] * 5:
        whole = path.read_bytes()
        length = chance.randrange(100, used(whole))
        yield path, f"cut to {length}", whole[:length]
    whole = newest.read_bytes()
    end = used(whole)
    yield newest, "the last 64 KiB zeroed", whole[: max(72, end - (64 << 10))] + bytes(len(whole) - max(72, end - (64 << 10)))
    start = chance.randrange(100, end)
    yield newest, f"zeroed from {start}", whole[:start] + bytes(len(whole) - start)
    yield newest, f"garbage from {start}", whole[:start] + chance.randbytes(2000)
    for path in (sealed[0], newest):
        yield path, "removed", None
    yield sealed[0], "another segment under its name", sealed[-1].read_bytes() if len(sealed) > 1 else newest.read_bytes()
    path = next((path for path in sealed if path.name in older), None)
    if path:
        before, now = older[path.name], path.read_bytes()
        # What is nothing but a prefix is longer than what it had then.
        yield path, "an older copy of itself", before[: used(before)]
        yield path, "an older copy over its beginning", before[: used(before) // 2] + bytes(100) + now[used(before) // 2 + 100 :]


def test_what_is_not_whole_is_refused(written, start, tmp_path):
    pristine, content, older = written
    home, chance, problems, refused = tmp_path / "home", random.Random(SEED), [], 0
    shutil.copytree(pristine, home)
    for path, what, bytes in list(changes(sorted((home / SHARD).glob("*.segment")), older, chance)):
        shutil.rmtree(home / "node")
        shutil.copytree(pristine / "node", home / "node")
        path.unlink()
        if bytes is not None:
            path.write_bytes(bytes)
        verified = journal("verify", home / BUCKET)
        if verified.returncode != 1 or path.name not in verified.stdout:
            problems.append(f"{path.name} {what}: verify ends with {verified.returncode} and says {verified.stdout}")
        node = start(home=home)
        try:
            with Peer(node.kv) as peer:
                peer.await_warm_up()
                damaged = peer.damaged_vbuckets()
                problems += [f"{path.name} {what}: {problem}" for problem in judge(peer, content, damaged)]
            status, ready = http(node, "GET", "/health/ready")
            if damaged:
                refused += 1
                if status == 200 and json.loads(ready)["status"] == "ok":
                    problems.append(f"{path.name} {what}: /health/ready says {ready}")
                if path.name not in node.log(1 << 20):
                    problems.append(f"{path.name} {what}: the log does not name it")
                status, answer = http(node, "POST", BACKUP, {"label": "one"})
                if status != 500 or path.name not in answer:
                    problems.append(f"{path.name} {what}: a backup is answered {status} {answer}")
                if (home / "node/backups/default/one").exists():
                    problems.append(f"{path.name} {what}: there is a backup")
        finally:
            node.kill()
    assert not problems, "\n".join(problems[:12])
    assert refused > 5, "the changes have hit nothing"


def test_a_backup_of_a_file_that_is_cut_while_it_is_served_is_refused(written, start, tmp_path):
    pristine, _, _ = written
    home = tmp_path / "home"
    shutil.copytree(pristine, home)
    node = start(home=home)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
    assert http(node, "POST", BACKUP, {"label": "whole"})[0] == 200
    assert journal("verify", home / "node/backups/default/whole").returncode == 0
    path = sorted((home / SHARD).glob("*.segment"))[0]
    with open(path, "r+b") as file:
        file.truncate(used(path.read_bytes()) // 2)
    status, answer = http(node, "POST", BACKUP, {"label": "cut"})
    assert status == 500 and path.name in answer, answer
    assert not (home / "node/backups/default/cut").exists()
    node.kill()


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_an_older_bucket_json_hides_nothing(start, tmp_path, ends):
    """A collection that it does not have: its documents are refused, and its id is not given to another one's."""
    scopes = "/pools/default/buckets/default/scopes/_default/collections"
    node = start(home=tmp_path)
    file = tmp_path / BUCKET / "bucket.json"
    older = file.read_text()
    status, answer = http(node, "POST", scopes, {"name": "one"})
    assert status == 200, answer
    with CollectionsClient(node) as client:
        assert client.set(8, b"key", b"value", level=3, vb=3) == SUCCESS
    newer = file.read_text()
    node.stop() if ends == "stopped" else node.kill()
    now = json.loads(newer if ends == "killed" else file.read_text())
    # As written by an earlier version, without a checksum and without the number of changes.
    now = {name: value for name, value in now.items() if name not in ("crc32c", "changes")}
    file.write_text(json.dumps(now | {"collections": json.loads(older)["collections"]}))
    node = start(home=tmp_path)
    wait_until(lambda: json.loads(http(node, "GET", "/health/ready")[1])["status"] == "damaged", "the damage")
    assert "bucket.json is older than the journal" in node.log(1 << 20)
    assert http(node, "POST", BACKUP, {"label": "one"})[0] == 500
    node.kill()
    file.write_text(newer)
    node = start(home=tmp_path)
    with CollectionsClient(node) as client:
        wait_until(lambda: client.get(8, b"key", vb=3) == b"value", "the document")


@pytest.mark.parametrize("where", ["footer", "header"])
def test_a_segment_that_lost_nothing_is_written_anew(written, start, tmp_path, where):
    """Until then no backup is made, and afterwards everything is as it was written."""
    home, content, _ = written
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    path = sorted((tmp_path / SHARD).glob("*.segment"))[0]
    damaged = bytearray(path.read_bytes())
    at = {"footer": len(damaged) - 40, "header": 20}[where]
    damaged[at] ^= 1
    path.write_bytes(damaged)
    assert "no record is lost" in journal("verify", tmp_path / SHARD).stdout
    node = start(home=tmp_path)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        wait_until(lambda: not path.exists(), "the segment is written anew")
        assert http(node, "POST", BACKUP, {"label": "one"})[0] == 200
        for key, value in content.items():
            assert peer.get(key).value == value, key
    node.kill()
    assert journal("verify", tmp_path / BUCKET).returncode == 0
