"""A full disk: writers get a temporary failure, readers are served, and once there is space again, service resumes by
itself."""

import os
import socket
import threading
import time

import pytest

from tests.frames import AMBIGUOUS, DELETE, NOT_FOUND, SUCCESS, TEMPORARY_FAILURE

from .bucket import http
from .peer import PERSIST_TO_MAJORITY, Peer
from .small_disk import DISK_MIB, SmallDisk
from .values import chunk, names

BALLAST_MIB = 14
VALUE_BYTES = 20_000
RECOVERY_S = 20
# Space for endpoints.json, with which these tests find the node.
SMALL_FILES_BYTES = 4 << 10


@pytest.fixture
def disk(tmp_path):
    with SmallDisk(tmp_path / "disk") as disk:
        disk.fill(BALLAST_MIB)
        yield disk


def fill(peer, prefix):
    """Writes until the node refuses; returns {key: value} of what it accepted."""
    taken = {}
    for number in range(2 * DISK_MIB * (1 << 20) // VALUE_BYTES):
        key, value = b"%s-%d" % (prefix, number), chunk(f"{prefix.decode()}.{number}", VALUE_BYTES)
        answer = peer.set(key, value)
        if answer.status == TEMPORARY_FAILURE:
            return taken
        assert answer.status == SUCCESS, answer
        taken[key] = value
        if number % 20 == 19:
            # Give the flusher time, or memory accepts more than the disk.
            time.sleep(0.06)
    pytest.fail("the disk never got full")


def await_writes(peer, key=b"probe"):
    deadline = time.monotonic() + RECOVERY_S
    while (answer := peer.set(key, b"p", PERSIST_TO_MAJORITY, 5000)).status in (TEMPORARY_FAILURE, AMBIGUOUS):
        assert time.monotonic() < deadline, f"no recovery {RECOVERY_S} s after there was room: {answer}"
        time.sleep(0.05)
    assert answer.status == SUCCESS, answer


def test_writers_wait_readers_do_not_and_room_heals(start, disk):
    node = start(home=disk.path)
    with Peer(node.kv) as peer, socket.create_connection(node.memcached, timeout=10) as text:
        kept = {b"kept-%d" % n: chunk(f"kept.{n}", 2000) for n in range(50)}
        for key, value in kept.items():
            assert peer.set(key, value, PERSIST_TO_MAJORITY).status == SUCCESS
        taken = fill(peer, b"fill")
        assert peer.statistics(b"persistence")["disk_full"] == "1"
        # Every kind of writer, and no reader.
        for _ in range(3):
            assert peer.set(b"kept-0", b"new").status == TEMPORARY_FAILURE
            assert peer.set(b"kept-0", b"new", PERSIST_TO_MAJORITY, 1000).status == TEMPORARY_FAILURE
            assert peer.ask(DELETE, b"kept-0", vbucket=peer.vbucket(b"kept-0")).status == TEMPORARY_FAILURE
            text.sendall(b"set kept-0 0 0 1\r\nx\r\n")
            assert text.recv(200) == b"SERVER_ERROR out of disk space\r\n"
            text.sendall(b"get kept-0\r\n")
            assert text.recv(4000).startswith(b"VALUE kept-0 0 ")
            assert {key: peer.get(key).value for key in kept} == kept
            assert {key: peer.get(key).value for key in taken} == taken
            time.sleep(0.2)
        log = node.log(1 << 20)
        assert "space" in log, f"the log does not say why:\n{log}"
        disk.free()
        await_writes(peer)
        assert peer.statistics(b"persistence")["disk_full"] == "0"
        assert peer.set(b"kept-0", kept[b"kept-0"] + b"", PERSIST_TO_MAJORITY).status == SUCCESS
        # What was accepted while the disk filled up is persisted now.
        for vbucket in range(peer.vbuckets):
            peer.store_persistent(vbucket)
    node.kill()
    node = start(home=disk.path)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        for key, value in {**kept, **taken}.items():
            assert peer.get(key).value == value, key
    assert node.stop() == 0


def test_nothing_that_was_acknowledged_is_lost_when_it_is_killed_full(start, disk):
    """Durable writers on a full disk: every acknowledged write survives; then a kill while the disk is still full."""
    node = start(home=disk.path)
    acknowledged, tried = {}, {}

    def write(writer):
        with Peer(node.kv) as peer:
            refused = 0
            for number in range(3000):
                key, value = b"durable-%d-%d" % (writer, number), chunk(f"{writer}.{number}", VALUE_BYTES)
                tried[key] = value
                answer = peer.set(key, value, PERSIST_TO_MAJORITY, 1000)
                assert answer.status in (SUCCESS, TEMPORARY_FAILURE, AMBIGUOUS), answer
                if answer.status == SUCCESS:
                    acknowledged[key] = value
                elif (refused := refused + 1) > 10:
                    return

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for one in writers:
        one.start()
    for one in writers:
        one.join()
    assert len(acknowledged) > 20
    node.kill()
    node = start(home=disk.path)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        for key, value in tried.items():
            answer = peer.get(key)
            if key in acknowledged or answer.status != NOT_FOUND:
                assert answer.status == SUCCESS and answer.value == value, f"{key}: {answer.status:#x}, {names(answer.value)}"
        disk.free()
        await_writes(peer)
    assert node.stop() == 0


def test_a_stop_while_the_disk_is_full_says_what_is_lost(start, disk):
    node = start(home=disk.path)
    with Peer(node.kv) as peer:
        assert peer.set(b"kept", b"1", PERSIST_TO_MAJORITY).status == SUCCESS
        fill(peer, b"fill")
    code = node.stop()
    assert code != 0 or "items=0" in node.last_log, f"exit code {code}\n{node.last_log}"
    node = start(home=disk.path)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        assert peer.get(b"kept").value == b"1"


def test_a_node_starts_on_a_full_disk_and_reads(start, disk):
    """There is space for endpoints.json and nothing else."""
    node = start(home=disk.path)
    with Peer(node.kv) as peer:
        assert peer.set(b"kept", b"1", PERSIST_TO_MAJORITY).status == SUCCESS
    assert node.stop() == 0
    filler = disk.path / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
        file.truncate(file.tell() - SMALL_FILES_BYTES)
    node = start(home=disk.path)
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        assert peer.get(b"kept").value == b"1"
        fill(peer, b"fill")
        assert peer.get(b"kept").value == b"1"
        filler.unlink()
        await_writes(peer)


def test_a_backup_leaves_a_part_of_the_disk_to_all_buckets(start, disk):
    node = start(home=disk.path)
    backup, copies = "/pools/default/buckets/default/backup", disk.path / "node" / "backups"
    with Peer(node.kv) as peer:
        assert peer.set(b"key", b"value", PERSIST_TO_MAJORITY).status == SUCCESS
        more = disk.path / "more"
        space = os.statvfs(disk.path)
        more.write_bytes(bytes(space.f_bavail * space.f_frsize - (1 << 20)))
        status, answer = http(node, "POST", backup, {"label": "one"})
        assert status == 503 and "MiB left" in answer, (status, answer)
        assert list(copies.glob("*/*")) == []
        assert peer.set(b"key", b"other", PERSIST_TO_MAJORITY).status == SUCCESS
        more.unlink()
        assert http(node, "POST", backup, {"label": "one"})[0] == 200
        assert [copy.name for copy in copies.glob("*/*")] == ["one"]
