"""The soak of bounded work detects what it is meant to detect, and asks for all groups of statistics."""

import argparse
import re
import socket
import struct
import threading
import types

from tests import servers
from tests.frames import NOOP, RESPONSE, SET, BinaryConnection

from . import attacks, crowd, work

HEAD = struct.Struct(">BBHBBHIIQ")
OPTIONS = argparse.Namespace(slice=True, bound_median=None, bound_p99=None)


class Server:
    """Answers each frame with a value of its choice; None: with nothing."""

    def __init__(self, value_for):
        self.value_for, self.opened = value_for, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            peer, _ = self.listener.accept()
            self.opened += 1
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer):
        reader = peer.makefile("rb")
        while len(head := reader.read(HEAD.size)) == HEAD.size:
            _, opcode, key_len, extras_len, _, _, body_len, opaque, _ = HEAD.unpack(head)
            key = reader.read(body_len)[extras_len : extras_len + key_len]
            value = b"" if opcode in (NOOP, SET) else self.value_for(key)
            if value is not None:
                extras = bytes(0 if opcode in (NOOP, SET) else 4)
                peer.sendall(HEAD.pack(RESPONSE, opcode, 0, len(extras), 0, 0, len(extras) + len(value), opaque, 0) + extras + value)


def measured(value_for, seconds=0.2):
    client = work.Honest(BinaryConnection(Server(value_for).address), crowd.Shared())
    return client.measure(seconds, 1 << 30)


def test_right_answers_are_counted():
    found = measured(lambda key: work.HONEST_VALUE + key)
    assert not found.problems and not found.unanswered and found.answers > 20 and found.waits == sorted(found.waits)


def test_a_wrong_answer_is_noticed():
    assert measured(lambda key: work.HONEST_VALUE + key[::-1]).problems


def test_turns_that_pass_without_an_answer_have_waited():
    found = measured(lambda key: None if key == b"honest-5" else work.HONEST_VALUE + key)
    assert found.unanswered and found.answers == 5 and not found.problems
    assert len(found.waits) > 100 and found.waits[len(found.waits) // 2] > 0.05


def run(attacked, quiet=None, statuses=(), wrong=(), answers=9):
    health = types.SimpleNamespace(problems=list(wrong), answers=answers)
    return work.Run(None, quiet, attacked, 0, dict.fromkeys(statuses, 1), 0, health, 0, 0, 0, [])


def client(wait_s, between=0, answers=100):
    return work.Measured([wait_s] * 100, [between] * 100, [], answers)


def test_each_check_detects_its_fault():
    assert work.judge(run(client(1e-4)), OPTIONS) == []
    assert "no answer" in work.judge(run(client(1e-4, answers=0)), OPTIONS)[0]
    assert "hostile turns" in work.judge(run(client(1e-4, between=work.BETWEEN_MOST + 1)), OPTIONS)[0]
    assert "greeting 0020" in work.judge(run(client(1e-4), statuses=("greeting 0020",)), OPTIONS)[0]
    assert "health" in work.judge(run(client(1e-4), wrong=("/health: 503",)), OPTIONS)[0]
    assert "health" in work.judge(run(client(1e-4), answers=0), OPTIONS)[0]
    bounded = argparse.Namespace(slice=False, bound_median=10, bound_p99=5)
    assert work.judge(run(client(4e-4), client(1e-4)), bounded) == []
    assert ["p99" in problem for problem in work.judge(run(client(6e-4), client(1e-4)), bounded)] == [True]
    assert len(work.judge(run(client(11e-4), client(1e-4)), bounded)) == 2


def test_a_crowd_waits_for_the_start_counts_answers_and_opens_connections_again():
    def talk(number):
        yield attacks.asked(attacks.request(attacks.frames.GET, b"k"), times=3)

    served = Server(lambda key: b"v" * 1000)
    attack = attacks.Attack("test", "kv", lambda number: attacks.asked(b""), talk, connections=5)
    shared = crowd.Shared()
    attackers = crowd.Attackers(attack, served.address, shared)
    assert shared.greeted.value == 5 and shared.turns.value == 0 and served.opened == 5
    attackers.start()
    while shared.turns.value < 50:
        assert attackers.process.is_alive()
    statuses, closed = attackers.stop()
    assert set(statuses) == {"0000"} and closed == 0
    assert shared.answered.value == 3 * shared.turns.value and served.opened >= shared.turns.value


def test_all_groups_of_statistics_are_asked_for():
    page = lambda name: (servers.ROOT / "docs" / name).read_text()
    listed = re.search(r"`stats \[([^]]*)\]`", page("memcached-protocol.md"))[1].split(", ")
    figures = re.findall(r"`stats ([a-z-]+)`: `", page("statistics.md"))
    first_words = {group.split(" ")[0] for group in attacks.TEXT_GROUPS}
    assert set(listed) - {"reset"} | set(figures) <= first_words
    row = next(line for line in page("couchbase-kv.md").splitlines() if line.startswith("| 0x10 | STAT |"))
    named = re.findall(r"`([a-z-]+)`", row.split("which are empty")[0].split("; without a group")[0] + row.split("`uuid`", 1)[1].split("which are empty")[0])
    assert set(named) - {"stats", "reset"} <= set(attacks.BINARY_GROUPS)
