"""HTTP answers while a disk is slow: strace delays the system calls of a deletion or a backup."""

import random
import shutil
import threading
import time

from tests.persistence.bucket import http, memcached, start, wait_all_persisted, wait_until

BUCKET = "/pools/default/buckets/default"
SMALL_SEGMENTS = '[[bucket]]\nname = "default"\nkind = "persistent"\nmemory = "64MiB"\nsegment_size = "1MiB"\n'
SEGMENTS = 10


def slow(calls, delay_us):
    assert shutil.which("strace"), "strace is missing"
    return ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={delay_us}", "-e", "signal=none"]


def fill(node):
    """Creates segments of incompressible values, one per flush."""
    client = memcached(node)
    for number in range(SEGMENTS):
        client.set(f"key:{number}", random.randbytes(1_000_000))
        wait_all_persisted(node)


class Asked(threading.Thread):
    def __init__(self, *request):
        super().__init__(daemon=True)
        self.request, self.answer = request, None
        self.start()

    def run(self):
        self.answer = http(*self.request)


def test_a_slow_deletion_holds_nothing_up(tmp_path):
    with start(tmp_path, buckets=(), config=SMALL_SEGMENTS, wrap=slow("unlink,unlinkat", 500_000)) as node:
        fill(node)
        deletion, answered = Asked(node, "DELETE", BUCKET), 0
        while deletion.is_alive():
            assert http(node, "GET", "/health")[0] == 200
            assert http(node, "GET", "/pools/default")[0] == 200
            answered += deletion.is_alive()
            # strace stops every thread at its system calls: with busy clients a deletion would take far longer.
            time.sleep(0.02)
        assert deletion.answer[0] == 200, deletion.answer
        assert answered > 10, f"{answered} answers while the bucket was deleted"


def test_a_backup_of_a_bucket_that_is_deleted_meanwhile_finds_none(tmp_path):
    with start(tmp_path, buckets=(), config=SMALL_SEGMENTS, wrap=slow("link,linkat", 500_000)) as node:
        fill(node)
        backup = Asked(node, "POST", f"{BUCKET}/backup", {"label": "late"})
        copy = node.data / "node" / "backups" / "default" / "late"
        wait_until(copy.exists, "the copy's directory")
        assert http(node, "DELETE", BUCKET)[0] == 200
        backup.join()
        assert backup.answer[0] == 404, backup.answer
        assert not copy.exists()
