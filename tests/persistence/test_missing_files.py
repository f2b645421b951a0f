"""A journal file that is missing, copied over another, or under another's name: `verify` reports it and what it
affects, the node refuses what is incomplete and serves the rest, and deletes no files while that is so. Once repaired,
everything is served again.
"""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

from tests.frames import NOT_FOUND, SUCCESS
from tests.servers import Dormouse, dormouse_binary

from .crash import CONFIG, SHARD
from .peer import VBUCKETS, Peer
from .test_damage import journal, judge
from .values import chunk

KEYS = [b"key-%d" % n for n in range(160)]
BUCKET = "node/buckets/default"
FORMAT_1 = pathlib.Path(__file__).parent / "format-1"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A stopped node's home with several sealed segments and an open one, and its contents."""
    home = tmp_path_factory.mktemp("written")
    node = Dormouse(home=home, buckets=(), config=CONFIG)
    content = {}
    with Peer(node.kv) as peer:
        for number in range(6):
            for key in KEYS:
                content[key] = content.get(key, b"")[-6000:] + chunk(f"{number}.{key}", 3000)
                assert peer.set(key, content[key]).status == SUCCESS
            for vbucket in range(VBUCKETS):
                peer.store_persistent(vbucket)
    assert node.stop() == 0
    segments = sorted((home / SHARD).glob("*.segment"))
    assert len(segments) >= 3, segments
    return home, content


@pytest.fixture
def copied(written, tmp_path):
    shutil.copytree(written[0], tmp_path / "home")
    return tmp_path / "home", written[1]


def swap(one, other):
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def lose(which):
    def change(segments):
        chosen = which(segments)
        for path in chosen:
            path.unlink()
        return chosen

    return change


def exchange(segments):
    swap(segments[0], segments[1])
    return segments[:2]


def copy_over(segments):
    shutil.copyfile(segments[0], segments[-1])
    return segments[-1:]


def empty_the_newest(segments):
    segments[-1].write_bytes(b"")
    return segments[-1:]


def lose_everything(segments):
    shutil.rmtree(segments[0].parent)
    return [segments[0].parent / "MANIFEST"]


def lose_the_manifest(segments):
    path = segments[0].parent / "MANIFEST"
    path.unlink()
    return [path]


CHANGES = {
    "the first is missing": lose(lambda all: all[:1]),
    "one in the middle is missing": lose(lambda all: all[1:2]),
    "the last is missing": lose(lambda all: all[-1:]),
    "all are missing": lose(lambda all: all),
    "two have each other's name": exchange,
    "one is copied over another": copy_over,
    "the newest is empty": empty_the_newest,
    "the directory is gone": lose_everything,
    "the manifest is missing": lose_the_manifest,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_missing_or_mixed_up_is_damage(copied, start, change):
    home, content = copied
    pristine = home.parent / "pristine"
    shutil.copytree(home / BUCKET, pristine)
    changed = change(sorted((home / SHARD).glob("*.segment")))
    before = {path for path in home.rglob("*.segment")}
    verified = journal("verify", home / BUCKET)
    assert verified.returncode == 1, verified.stdout
    named = {pathlib.Path(path).name for path in re.findall(r"^DAMAGE (\S+): ", verified.stdout, re.M)}
    assert named == {path.name for path in changed}, verified.stdout
    assert re.search(r"vBuckets? \d+|any vBucket of the shard", verified.stdout), verified.stdout
    node = start(home=home)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        damaged = peer.damaged_vbuckets()
        assert damaged, "something is missing, and all is served"
        assert not list(judge(peer, content, damaged))
    assert all(path.name in node.log(1 << 20) for path in changed), node.log()
    node.stop()
    assert before <= {path for path in home.rglob("*.segment")}, "a file is gone"
    # Repaired by restoring the files.
    shutil.rmtree(home / BUCKET)
    shutil.copytree(pristine, home / BUCKET)
    node = start(home=home)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        assert not list(judge(peer, content, set()))


def test_a_backup_without_one_of_its_files_is_not_restored(copied, tmp_path):
    home, content = copied
    segments = sorted((home / SHARD).glob("*.segment"))
    segments[1].unlink()
    restored = journal_restore(home / BUCKET, tmp_path / "other")
    assert restored.returncode == 1 and "the file is missing" in restored.stdout, restored
    assert not (tmp_path / "other/buckets/default").exists()


def journal_restore(backup, data):
    return subprocess.run([dormouse_binary(), "journal", "restore", backup, data], capture_output=True, text=True, timeout=60)


def test_a_bucket_of_format_1_is_opened_and_gets_its_manifests(tmp_path, start):
    """Its files were written by the version before manifests: 35 documents, and 5 deleted ones."""
    home = tmp_path / "home"
    bucket = home / BUCKET
    shutil.copytree(FORMAT_1 / "default", bucket)
    assert journal("verify", bucket).returncode == 0
    for life in range(2):
        node = start(home=home)
        with Peer(node.kv) as peer:
            peer.await_warm_up()
            for number in range(40):
                answer = peer.get(b"key%d" % number)
                assert answer.status == (SUCCESS if number < 35 else NOT_FOUND), number
                assert number >= 35 or answer.value == b"value %d" % number
            for number in range(50):
                assert peer.set(b"new%d" % number, b"of life %d" % life).status == SUCCESS
        assert node.stop() == 0
        verified = journal("verify", bucket)
        assert verified.returncode == 0, verified.stdout
    written = json.loads((bucket / "bucket.json").read_text())
    assert (written["format"], written["written_shards"]) == (3, [0, 1])
    for shard in (0, 1):
        assert (bucket / f"shard-{shard}/MANIFEST").exists()
        assert len(list((bucket / f"shard-{shard}").glob("*.segment"))) >= 2, "the old one is not written to any more"
    (bucket / "shard-1/0000000001.segment").unlink()
    assert journal("verify", bucket).returncode == 1


def test_a_segment_of_format_1_under_another_name_is_damage(tmp_path):
    """Format 1 has no manifest that records what belongs under that name."""
    bucket = tmp_path / "default"
    shutil.copytree(FORMAT_1 / "default", bucket)
    (bucket / "shard-1/0000000001.segment").rename(bucket / "shard-1/0000000002.segment")
    verified = journal("verify", bucket)
    assert verified.returncode == 1, verified
    assert "0000000002.segment: the file holds segment 1" in verified.stdout and "any vBucket" in verified.stdout, verified.stdout
