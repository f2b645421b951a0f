"""The soak of bounded work in OVSDB detects what it is meant to detect."""

import argparse
import json
import socket
import threading

from tests.ovsdb.connection import Connection

from . import ovsdb_work as work

OPTIONS = argparse.Namespace(slice=True, bound_median=None, bound_p99=None)


class Server:
    """Answers each request with a result of its choice."""

    def __init__(self, result_of):
        self.result_of = result_of
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        peer, _ = self.listener.accept()
        while data := peer.recv(65536):
            request = json.loads(data)
            answer = {"id": request["id"], "result": self.result_of(request), "error": None}
            peer.sendall(json.dumps(answer).encode())


def right(request):
    return request["params"] if request["method"] == "echo" else [{"count": 1}]


def measured(result_of, most=50):
    with Connection(Server(result_of).listener.getsockname()) as peer:
        return work.measure(peer, work.Shared().turns, 20, most)


def test_right_answers_are_counted():
    found = measured(right)
    assert not found.problems and found.answers == 50 and found.waits == sorted(found.waits)
    assert found.between == [0] * 50


def test_hostile_turns_are_counted_during_each_request():
    turns = work.Shared().turns

    def result_of(request):
        turns.value += 3
        return right(request)

    with Connection(Server(result_of).listener.getsockname()) as peer:
        assert work.measure(peer, turns, 20, 5).between == [3] * 5


def test_a_wrong_answer_is_noticed():
    assert measured(lambda request: [{"count": 0}] if request["method"] == "transact" else right(request)).problems


def run(wait_s, received=1, answers=100, quiet_s=0.001, between=0):
    quiet, attacked = (work.Measured([one] * 100, [turns] * 100, [], answers) for one, turns in ((quiet_s, 0), (wait_s, between)))
    return work.Run(work.ATTACKS[0], quiet, attacked, received, 0, 0.1, [])


def test_each_check_detects_its_fault():
    assert work.judge(run(0.001), OPTIONS) == []
    assert "no answer" in work.judge(run(0.001, answers=0), OPTIONS)[0]
    assert "hostile" in work.judge(run(0.001, received=0), OPTIONS)[0]
    assert work.judge(run(2, between=work.BETWEEN_MOST), OPTIONS) == []
    assert "hostile turns" in work.judge(run(0.001, between=work.BETWEEN_MOST + 1), OPTIONS)[0]
    bounded = argparse.Namespace(slice=False, bound_median=10, bound_p99=5)
    assert work.judge(run(0.019, quiet_s=0.004), bounded) == []
    assert ["p99" in problem for problem in work.judge(run(0.021, quiet_s=0.004), bounded)] == [True]
    assert len(work.judge(run(0.041, quiet_s=0.004), bounded)) == 2
    # What is as short as on a busy machine is not judged.
    assert work.judge(run(0.0049, quiet_s=0.0001), bounded) == []


def test_the_gate_knows_its_attacks():
    assert set(work.SLICE) <= {attack.name for attack in work.ATTACKS}
