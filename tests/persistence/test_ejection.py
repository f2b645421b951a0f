"""A bucket that holds more on disk than fits in memory: every value is there, before and after a restart, in time."""

import time

import pytest

from tests.frames import APPEND, DELETE, NOT_FOUND, SUCCESS, TEMPORARY_FAILURE

from .crash import config
from .peer import Peer
from .values import chunk

MEMORY = "16MiB"
COUNT = 36 << 20
# Temporary failures are allowed while memory is freed, but not for longer than a client retries.
PATIENCE_S = 3


def patient(ask):
    deadline = time.monotonic() + PATIENCE_S
    while (answer := ask()).status == TEMPORARY_FAILURE and time.monotonic() < deadline:
        time.sleep(0.002)
    return answer


def fill(peer, value_bytes):
    content = {b"key-%d" % number: chunk(f"{number}", value_bytes) for number in range(COUNT // value_bytes)}
    for key, value in content.items():
        answer = patient(lambda: peer.set(key, value))
        assert answer.status == SUCCESS, f"{key}: {answer.status:#x} for {PATIENCE_S} s; {peer.statistics(b'memory')}"
    for vbucket in range(peer.vbuckets):
        patient(lambda: peer.store_persistent(vbucket))
    return content


def judge(peer, content):
    for key, value in content.items():
        answer = patient(lambda: peer.get(key))
        assert answer.status == SUCCESS, f"{key}: {answer.status:#x} for {PATIENCE_S} s; {peer.statistics(b'memory')} {peer.statistics(b'persistence')}"
        assert answer.value == value, key


@pytest.mark.parametrize("value_bytes", (2000, 20_000, 300_000))
@pytest.mark.parametrize("how", ("kill", "stop"))
def test_every_value_is_read(start, value_bytes, how):
    node = start(config=config(MEMORY))
    with Peer(node.kv) as peer:
        content = fill(peer, value_bytes)
        judge(peer, content)
        assert int(peer.statistics(b"persistence")["fetched_values"]) > 0
    if how == "kill":
        node.kill()
    else:
        assert node.stop() == 0
    node = start(config=config(MEMORY))
    with Peer(node.kv) as peer:
        peer.await_warm_up()
        judge(peer, content)
        # Once more in the other direction; values are modified that are not in memory.
        judge(peer, dict(reversed(content.items())))
        for number, (key, value) in enumerate(content.items()):
            if number % 7 == 0:
                more = chunk("more")
                answer = patient(lambda: peer.ask(APPEND, key, more, vbucket=peer.vbucket(key)))
                assert answer.status == SUCCESS, f"{key}: {answer.status:#x}"
                content[key] = value + more
        key = next(iter(content))
        assert patient(lambda: peer.ask(DELETE, key, vbucket=peer.vbucket(key))).status == SUCCESS
        assert peer.get(key).status == NOT_FOUND
        del content[key]
        judge(peer, content)
    assert node.stop() == 0
