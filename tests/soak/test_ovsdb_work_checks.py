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
        return work.measure(peer, 20, most)


def test_right_answers_are_counted():
    found = measured(right)
    assert not found.problems and found.answers == 50 and found.waits == sorted(found.waits)


def test_a_wrong_answer_is_noticed():
    assert measured(lambda request: [{"count": 0}] if request["method"] == "transact" else right(request)).problems


def run(wait_s, received=1, answers=100, stop_s=0.1, quiet_s=0.001):
    quiet, attacked = (work.Measured([one] * 100, [], answers) for one in (quiet_s, wait_s))
    return work.Run(work.ATTACKS[0], quiet, attacked, received, 0, stop_s, [])


def test_each_check_detects_its_fault():
    assert work.judge(run(0.001), OPTIONS) == []
    assert "no answer" in work.judge(run(0.001, answers=0), OPTIONS)[0]
    assert "hostile" in work.judge(run(0.001, received=0), OPTIONS)[0]
    assert len(work.judge(run(2), OPTIONS)) == 2
    assert "SIGTERM" in work.judge(run(0.001, stop_s=3), OPTIONS)[0]
    bounded = argparse.Namespace(slice=False, bound_median=10, bound_p99=5)
    assert work.judge(run(0.019, quiet_s=0.004), bounded) == []
    assert ["p99" in problem for problem in work.judge(run(0.021, quiet_s=0.004), bounded)] == [True]
    assert len(work.judge(run(0.041, quiet_s=0.004), bounded)) == 2
    # What is as short as on a busy machine is not judged.
    assert work.judge(run(0.0049, quiet_s=0.0001), bounded) == []


def test_the_gate_knows_its_attacks():
    assert set(work.SLICE) <= {attack.name for attack in work.ATTACKS}
