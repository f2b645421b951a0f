"""The scripts of `crates/ovsdb/testdata/sessions`, which test the server's core, contain the stock server's answers:
these tests run them on both servers. The order of members and rows is irrelevant, and UUIDs are numbered in the
script."""

import json
import pathlib
import re

import pytest

from .connection import Closed, Connection, decode
from .servers import STOCK, SUBJECT, OvsdbServer, create_database

SCRIPTS = pathlib.Path(__file__).parents[2] / "crates/ovsdb/testdata/sessions"
NUMBER = re.compile(r"<\d+>")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CLOSED = "closed"
ZEROS = "00000000-0000-0000-0000-000000000000"
# After this many echoes of every session, everything that one client causes has reached the others.
ROUNDS = 3


def without_transaction_ids(message):
    """The stock server's transaction ids for a file are all zeros, ours are meaningful."""
    if isinstance(message, dict):
        place = message.get("params") if message.get("method") == "update3" else message.get("result")
        if isinstance(place, list) and len(place) == 3 and isinstance(place[1], str):
            place[1] = ZEROS
    return message


def unify(expected, answer, names):
    """The names, extended so that `expected` matches `answer`; None if that is impossible."""
    if isinstance(expected, str) and isinstance(answer, str):
        if not NUMBER.fullmatch(expected):
            return names if expected == answer else None
        if expected in names:
            return names if names[expected] == answer else None
        known = answer in names.values() or not UUID.fullmatch(answer)
        return None if known else {**names, expected: answer}
    if isinstance(expected, list) and isinstance(answer, list):
        if len(expected) != len(answer):
            return None
        if len(expected) == 2 and expected[0] == answer[0] == "set" and isinstance(expected[1], list):
            return unify_any_order(expected[1], answer[1], names)
        for one, other in zip(expected, answer):
            names = unify(one, other, names) if names is not None else None
        return names
    if isinstance(expected, dict) and isinstance(answer, dict):
        if expected.keys() == answer.keys() == {"rows"}:
            return unify_any_order(expected["rows"], answer["rows"], names)
        plain = [name for name in expected if not NUMBER.fullmatch(name)]
        if len(expected) != len(answer) or any(name not in answer for name in plain):
            return None
        for name in plain:
            names = unify(expected[name], answer[name], names) if names is not None else None
        if names is None:
            return None
        left = [[name, value] for name, value in expected.items() if name not in plain]
        right = [[name, value] for name, value in answer.items() if name not in plain]
        return unify_any_order(left, right, names)
    return names if type(expected) is type(answer) and expected == answer else None


def unify_any_order(expected, answers, names):
    if len(expected) != len(answers):
        return None
    if not expected:
        return names
    for place, answer in enumerate(answers):
        found = unify(expected[0], answer, names)
        if found is not None:
            found = unify_any_order(expected[1:], answers[:place] + answers[place + 1 :], found)
        if found is not None:
            return found
    return None


class Player:
    def __init__(self, server):
        self.server = server
        self.sessions = {}
        self.marks = 0
        self.names = {}

    def session(self, name):
        if name not in self.sessions:
            self.sessions[name] = Connection(self.server.sock)
        return self.sessions[name]

    def collect(self, first):
        """The messages that each session has received, by name."""
        received = {}
        for _ in range(ROUNDS):
            self.marks += 1
            mark = f"mark-{self.marks}"
            for name in sorted(self.sessions, key=lambda name: name != first):
                messages = received.setdefault(name, [])
                session = self.sessions[name]
                session.send({"method": "echo", "params": [], "id": mark})
                try:
                    while (message := session.receive()).get("id") != mark:
                        messages.append(message)
                except Closed:
                    messages.append(CLOSED)
                    session.socket.close()
                    del self.sessions[name]
        return {name: messages for name, messages in received.items() if messages}

    def play(self, line):
        if line.startswith("! remove "):
            assert self.server.appctl("ovsdb-server/remove-db", line.split()[-1])[0] == 0
            return self.collect(None)
        name, text = line.removeprefix("> ").split(" ", 1)
        self.session(name).send_bytes(text.encode())
        return self.collect(name)

    def compare(self, line, expected):
        answers = self.play(line)
        for name in sorted(answers.keys() | expected.keys()):
            wanted, got = expected.get(name, []), [without_transaction_ids(message) for message in answers.get(name, [])]
            # The updates of several monitors of one session may come in any order.
            names = unify(wanted, got, self.names) or unify_any_order(wanted, got, self.names)
            if names is None:
                names = unify(wanted, got, self.names)
            assert names is not None, f"{line}\nexpected {name} {json.dumps(wanted)}\nreceived {name} {json.dumps(got)}"
            self.names = names


def steps(path):
    """The lines of a script, each with what sessions must receive after it."""
    line, expected = None, {}
    for text in path.read_text().splitlines():
        if text.startswith("< "):
            name, message = text.removeprefix("< ").split(" ", 1)
            expected.setdefault(name, []).append(CLOSED if message.startswith("<closed>") else decode(message))
        elif text.startswith(("> ", "! ")):
            if line is not None:
                yield line, expected
            line, expected = text, {}
    if line is not None:
        yield line, expected


@pytest.mark.parametrize("kind", [STOCK, SUBJECT])
@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.txt")))
def test_script(kind, script, tmp_path):
    path = create_database(tmp_path / "T.db", SCRIPTS / "T.ovsschema")
    with OvsdbServer(kind, tmp_path / "run", databases=[path]) as server:
        player = Player(server)
        for line, expected in steps(SCRIPTS / script):
            player.compare(line, expected)
        assert server.alive(), server.log()
