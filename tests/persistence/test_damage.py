"""One flipped bit in each region of each file of a stopped node is reported, affects only one vBucket, and no client
gets wrong data.

The regions come from `dormouse journal dump`, which prints where batches and runs begin and end.
"""

import json
import pathlib
import random
import re
import shutil
import subprocess

import pytest

from tests.frames import GET, INTERNAL_ERROR, NOT_FOUND, SUCCESS
from tests.servers import Dormouse, StartFailed, dormouse_binary

from .crash import CONFIG, SHARD
from .peer import PERSIST_TO_MAJORITY, VBUCKETS, Peer
from .values import chunk

SEGMENT_HEADER, RUN_HEADER, COMMIT_HEADER, TRAILER = 72, 40, 64, 64
KEYS = [b"key-%d" % n for n in range(160)]


def journal(command, path):
    return subprocess.run([dormouse_binary(), "journal", command, path], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A stopped node's home with some sealed segments and an open one, and its contents."""
    home = tmp_path_factory.mktemp("written")
    node = Dormouse(home=home, buckets=(), config=CONFIG)
    content = {}
    with Peer(node.kv) as peer:
        for round in range(3):
            for number, key in enumerate(KEYS):
                content[key] = chunk(f"{round}.{number}", 6000 if round < 2 else 3000)
                assert peer.set(key, content[key]).status == SUCCESS
            for vbucket in range(VBUCKETS):
                peer.store_persistent(vbucket)
    assert node.stop() == 0
    assert journal("verify", home / "node/buckets/default").returncode == 0
    segments = sorted((home / SHARD).glob("*.segment"))
    assert len(segments) >= 2, segments
    return home, content


@pytest.fixture
def copied(written, tmp_path):
    """A copy of it for one test."""
    home, content = written
    shutil.copytree(home, tmp_path / "home")
    return tmp_path / "home", content


def regions(home):
    """[(region, file, offset of a byte in it, offsets a complaint may name, vBucket or None)]: the first of each kind
    and one in the middle."""
    dumped = journal("dump", home / "node/buckets/default")
    assert dumped.returncode == 0, dumped.stderr
    found, segment, batch = {}, None, None
    runs = []

    def add(region, offset, at, vbucket=None):
        found.setdefault((region, segment[2]), []).append((pathlib.Path(segment[0]), offset, at, vbucket))

    def end_of_batch():
        if batch and runs:
            number, start, end = batch
            # The commit record follows the last run: header, then an entry of 28 bytes per run.
            commit = end - COMMIT_HEADER - 28 * len(runs)
            borders = [offset for offset, _ in runs] + [commit]
            for (offset, vbucket), border in zip(runs, borders[1:]):
                add("run header", offset + 20, (offset, border), vbucket)
                add("record header", offset + RUN_HEADER + 21, (offset, border), vbucket)
                add("value", border - 7, (offset, border), vbucket)
                add("key", offset + RUN_HEADER + 42, (offset, border), vbucket)
            add("commit record", commit + 24, (commit, end))
            add("commit list", end - 5, (commit, end))

    for line in dumped.stdout.splitlines():
        if match := re.match(r"segment (.*) (\d+) (sealed|open)", line):
            end_of_batch()
            segment, batch = (match[1], int(match[2]), match[3]), None
            add("segment header", 33, (0, SEGMENT_HEADER))
            if match[3] == "sealed":
                add("trailer", segment[1] - TRAILER + 20, (0, segment[1]))
                add("footer's last line", segment[1] - TRAILER - 10, (0, segment[1]))
        elif match := re.match(r"batch (\d+) at (\d+) to (\d+) .*?(a clean stop)?$", line):
            end_of_batch()
            batch = tuple(map(int, match.groups()[:3]))
            runs.clear()
            if match[4]:
                batch = None
        elif match := re.match(r"run vBucket (\d+) at (\d+)", line):
            runs.append((int(match[2]), int(match[1])))
    end_of_batch()
    chosen = []
    for (region, state), places in sorted(found.items()):
        picked = {0, len(places) // 2}
        chosen += [(f"{region} of a {state} segment", *places[at]) for at in sorted(picked)]
    return chosen


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1 << random.randrange(8)]))


def test_every_region_of_a_segment(copied, start):
    """`verify` reports file and offset; the node starts, serves every other vBucket, refuses the damaged one and logs
    the location."""
    home, content = copied
    problems, seen = [], {}
    places = regions(home)
    for kind in ("segment header", "run header", "record header", "key", "value", "commit record", "commit list", "trailer"):
        assert any(region.startswith(kind) for region, *_ in places), f"no {kind} among {[one[0] for one in places]}"
    pristine = home.parent / "pristine"
    shutil.copytree(home / "node", pristine)
    for region, path, offset, (least, most), vbucket in places:
        shutil.rmtree(home / "node")
        shutil.copytree(pristine, home / "node")
        flip(path, offset)
        what = f"{region}: bit at {path.name}:{offset}"
        verified = journal("verify", home / "node/buckets/default")
        damage = re.findall(r"^DAMAGE (\S+): damaged .*? at offset (\d+): (.*)$", verified.stdout, re.M)
        if verified.returncode != 1 or not damage:
            problems.append(f"{what}: verify ends with {verified.returncode} and says {verified.stdout}{verified.stderr}")
            continue
        if not any(pathlib.Path(file).name == path.name and least <= int(at) <= most for file, at, _ in damage):
            problems.append(f"{what}: verify names {damage}, not {path.name} between {least} and {most}")
        loses = not all("no record is lost" in consequence for _, _, consequence in damage)
        try:
            node = start(home=home)
        except StartFailed as error:
            problems.append(f"{what}: the node does not start: {error}")
            continue
        try:
            with Peer(node.kv) as peer:
                peer.await_warm_up()
                damaged = peer.damaged_vbuckets()
                seen[what] = damaged
                problems += [f"{what}: {problem}" for problem in judge(peer, content, damaged)]
                if vbucket is not None and damaged != {vbucket}:
                    problems.append(f"{what}: closed are {sorted(damaged)}, damaged is {vbucket}")
                if loses != bool(damaged):
                    problems.append(f"{what}: verify says {damage}, closed are {sorted(damaged)}")
                # A start need not read what the footer makes superfluous; `verify` does.
                named = [int(at) for at in re.findall(rf"{path.name}: damaged .*? at offset (\d+)", node.log(1 << 20))]
                if loses and not any(least <= at <= most for at in named):
                    problems.append(f"{what}: the log names the offsets {named}:\n{node.log()}")
        finally:
            node.kill()
    assert not problems, f"{len(problems)} of {len(places)} places:\n" + "\n".join(problems[:12])


def judge(peer, content, damaged):
    """Checks what the node serves: correct data, or a refusal to readers and writers alike, never a miss."""
    for key, value in content.items():
        answer = peer.get(key)
        if peer.vbucket(key) in damaged:
            if answer.status != INTERNAL_ERROR:
                yield f"{key} of a closed vBucket: status {answer.status:#x}"
        elif answer.status != SUCCESS or answer.value != value:
            yield f"{key}: status {answer.status:#x}, {len(answer.value)} bytes"
    for vbucket in range(VBUCKETS):
        answer = peer.ask(GET, b"never written", vbucket=vbucket)
        expected = INTERNAL_ERROR if vbucket in damaged else NOT_FOUND
        if answer.status != expected:
            yield f"a key nobody wrote, vBucket {vbucket}: status {answer.status:#x}"
    for vbucket in range(VBUCKETS):
        key = next(key for key in KEYS if peer.vbucket(key) == vbucket)
        answer = peer.set(key, content[key], PERSIST_TO_MAJORITY)
        expected = INTERNAL_ERROR if vbucket in damaged else SUCCESS
        if answer.status != expected:
            yield f"a write to vBucket {vbucket}: status {answer.status:#x}"


@pytest.mark.parametrize("name", ["bucket.json", "settings.json"])
def test_the_small_files(copied, start, name):
    """The node does not serve the bucket as empty or as another one, and names the file."""
    home, content = copied
    path = home / "node/buckets/default" / name
    whole = path.read_bytes()
    json.loads(whole)
    for offset in (0, len(whole) // 2):
        damaged = bytearray(whole)
        damaged[offset] ^= 0x80
        path.write_bytes(damaged)
        try:
            node = start(home=home)
        except StartFailed as error:
            assert name in str(error), error
            continue
        # If the node starts in spite of it, nothing is lost.
        with Peer(node.kv) as peer:
            peer.await_warm_up()
            for key, value in content.items():
                assert peer.get(key).value == value, key
        node.kill()
        path.write_bytes(whole)


def test_journals_without_bucket_json_are_no_new_bucket(copied, start):
    home, content = copied
    path = home / "node/buckets/default/bucket.json"
    whole = path.read_bytes()
    path.unlink()
    for _ in range(2):
        with pytest.raises(StartFailed, match="bucket.json is missing beside its journals"):
            start(home=home)
        assert not path.exists()
    path.write_bytes(whole)
    with Peer(start(home=home).kv) as peer:
        peer.await_warm_up()
        for key, value in content.items():
            assert peer.get(key).value == value, key


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"RUN\x01" + b"x" * 100, bytes(range(256)) * 8, b"CMT\x01"], ids=["zeros", "a run's beginning", "rubbish", "a commit's beginning"])
def test_a_torn_tail_is_no_error(written, start, tmp_path, tail):
    """What a crash leaves after the last commit is truncated without an error, and nothing before it is lost."""
    home = tmp_path / "home"
    shutil.copytree(written[0], home)
    node = start(home=home)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        assert peer.set(b"last", b"1", PERSIST_TO_MAJORITY).status == SUCCESS
    node.kill()
    last = sorted((home / SHARD).glob("*.segment"))[-1]
    with open(last, "ab") as file:
        file.write(tail)
    verified = journal("verify", home / "node/buckets/default")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert ("unfinished batch" in verified.stdout) is any(tail), "zeros are written ahead of batches\n" + verified.stdout
    for _ in range(2):
        node = start(home=home)
        with Peer(node.kv) as peer:
            peer.await_warm_up()
            assert not peer.damaged_vbuckets()
            assert peer.get(b"last").value == b"1"
            for key, value in written[1].items():
                assert peer.get(key).value == value, key
            assert peer.set(b"more", b"2", PERSIST_TO_MAJORITY).status == SUCCESS
        assert " ERROR " not in node.log(1 << 20), node.log()
        node.kill()


def test_the_last_batch_cut_anywhere(written, start, tmp_path):
    """A file that ends inside its last batch loses that entire batch, and nothing else. It is damage if the batch was
    synced, as SYNCED beside it tells, and a torn tail otherwise."""
    home = tmp_path / "home"
    shutil.copytree(written[0], home)
    node = start(home=home)
    synced = home / SHARD / "SYNCED"
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        assert peer.set(b"kept", b"1", PERSIST_TO_MAJORITY).status == SUCCESS
        # A batch ends with a small four-byte number, followed by zeros that are written ahead.
        before = len(sorted((home / SHARD).glob("*.segment"))[-1].read_bytes().rstrip(b"\0")) + 3
        synced_before = synced.read_bytes()
        assert peer.set(b"cut", b"2" * 500, PERSIST_TO_MAJORITY).status == SUCCESS
    node.kill()
    pristine = tmp_path / "pristine"
    shutil.copytree(home / "node", pristine)
    last = sorted((home / SHARD).glob("*.segment"))[-1]
    whole = last.read_bytes().rstrip(b"\0")
    assert len(whole) > before + 500
    for length in {before + 1, before + 30, (before + len(whole)) // 2, len(whole) - 1}:
        for is_known in (False, True):
            shutil.rmtree(home / "node")
            shutil.copytree(pristine, home / "node")
            last.write_bytes(whole[:length])
            if not is_known:
                synced.write_bytes(synced_before)
            verified = journal("verify", home / "node/buckets/default")
            assert verified.returncode == int(is_known), verified.stdout
            node = start(home=home)
            with Peer(node.kv) as peer:
                peer.await_warm_up()
                if is_known and length < len(whole) - 1:
                    # It is not known which vBuckets the batch had.
                    assert peer.damaged_vbuckets() == set(range(VBUCKETS))
                    assert "is not there" in verified.stdout, verified.stdout
                elif not is_known:
                    assert not peer.damaged_vbuckets()
                    assert peer.get(b"kept").value == b"1"
                    assert peer.get(b"cut").status == NOT_FOUND
                    for key, value in written[1].items():
                        assert peer.get(key).value == value, key
            node.kill()
