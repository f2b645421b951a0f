"""Malformed lines and blocks of the text and meta protocols: each is answered, and the connection survives.

A case is the request and the answers (regular expressions) in order. After each, `mn` must be answered.
"""

import re
import socket

import pytest

from tests.clients.text_connection import TextConnection

ERROR = r"ERROR"
CLIENT = r"CLIENT_ERROR .+"
SERVER = r"SERVER_ERROR .+"
EMPTY = r""

CASES = {
    "empty line": (b"\r\n", [CLIENT]),
    "only spaces": (b"   \r\n", [ERROR]),
    "unknown command": (b"frobnicate a b c\r\n", [ERROR]),
    "upper case": (b"GET a\r\n", [ERROR]),
    "get without key": (b"get\r\n", [CLIENT]),
    "gat without key": (b"gat 0\r\n", [CLIENT]),
    "set without length": (b"set a 0 0\r\n", [CLIENT]),
    "key of 251 bytes": (b"get " + b"k" * 251 + b"\r\n", [CLIENT, EMPTY]),
    "store under a key of 251 bytes": (b"set " + b"k" * 251 + b" 0 0 3\r\nabc\r\n", [CLIENT]),
    "flags are no number": (b"set a x 0 3\r\nabc\r\n", [CLIENT]),
    "expiry is no number": (b"set a 0 x 3\r\nabc\r\n", [CLIENT]),
    "negative length": (b"set a 0 0 -1\r\n", [CLIENT]),
    "length is no number": (b"set a 0 0 x\r\n", [CLIENT]),
    "length over 64 bits": (b"set a 0 0 99999999999999999999\r\n", [CLIENT]),
    "block too long": (b"set a 0 0 3\r\nabcd\r\n", [CLIENT, CLIENT]),
    "block not ended": (b"set a 0 0 3\r\nabcXY", [CLIENT]),
    "cas without cas": (b"cas a 0 0 1\r\nx\r\n", [CLIENT]),
    "cas is no number": (b"cas a 0 0 1 x\r\nx\r\n", [CLIENT]),
    "incr by a word": (b"incr a x\r\n", [CLIENT]),
    "incr by a negative number": (b"incr a -1\r\n", [CLIENT]),
    "incr over 64 bits": (b"incr a 18446744073709551616\r\n", [CLIENT]),
    "incr without delta": (b"incr a\r\n", [CLIENT]),
    "touch without expiry": (b"touch a\r\n", [CLIENT]),
    "touch with a word": (b"touch a x\r\n", [CLIENT]),
    "delete with a time": (b"delete never-stored 5\r\n", ["NOT_FOUND"]),
    "flush_all with a word": (b"flush_all x\r\n", [CLIENT]),
    "NUL bytes": (b"\0\0\0\0\r\n", [ERROR]),
    "control characters": (b"\x01\x02\x03\x1b[31m\r\n", [ERROR]),
    "high bytes": (b"\xc3\x28\xff\xfe\r\n", [ERROR]),
    "too many words": (b"set a 0 0 3 noreply x y z\r\nabc\r\n", ["STORED"]),
    "too large for the port": (b"set a 0 0 2000000\r\n" + bytes(2_000_000) + b"\r\n", [SERVER]),
    "meta: no key": (b"mg\r\n", [CLIENT]),
    "meta: set without length": (b"ms a\r\n", [CLIENT]),
    "meta: unknown flag": (b"mg a !\r\n", [CLIENT]),
    "meta: doubled flag": (b"mg a v v\r\n", [CLIENT]),
    "meta: bad base64": (b"mg !!!! b v\r\n", [CLIENT]),
    "meta: opaque of 33 bytes": (b"mg a O" + b"x" * 33 + b"\r\n", [CLIENT]),
    "meta: key of 251 bytes": (b"mg " + b"k" * 251 + b" v\r\n", [CLIENT]),
    "meta: bad time": (b"mg a Tx\r\n", [CLIENT]),
    "meta: bad mode": (b"ms a 1 MX\r\nx\r\n", [CLIENT]),
    "meta: bad delta": (b"ma a Dx\r\n", [CLIENT]),
    "meta: bad CAS": (b"md a Cx\r\n", [CLIENT]),
    "meta: negative length": (b"ms a -1\r\n", [CLIENT]),
    "meta: block not ended": (b"ms a 3\r\nabcXY", [CLIENT]),
    "meta: too large for the port": (b"ms a 2000000\r\n" + bytes(2_000_000) + b"\r\n", [SERVER]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cut", ["in one piece", "byte by byte"])
def test_is_answered_and_the_connection_lives(node, name, cut):
    sent, expected = CASES[name]
    if cut == "byte by byte" and len(sent) > 2000:
        pieces = [sent[:30], sent[30:1_000_000], sent[1_000_000:]]
    else:
        pieces = [sent] if cut == "in one piece" else [sent[n : n + 1] for n in range(len(sent))]
    connection = TextConnection(node.memcached)
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        for piece in pieces:
            connection.socket.sendall(piece)
        connection.socket.sendall(b"mn\r\n")
        answers = []
        while (line := connection.reader.readline()) != b"MN\r\n":
            assert line, f"closed after {answers}"
            answers.append(line.decode("latin1").rstrip("\r\n"))
            assert len(answers) < 100
    finally:
        connection.close()
    assert len(answers) == len(expected), answers
    for answer, pattern in zip(answers, expected):
        assert re.fullmatch(pattern, answer), f"{answer!r}, not {pattern!r}"


@pytest.mark.parametrize("line", [b"x" * 70_000, b"get " + b"k" * 70_000, b"mg " + b"k" * 70_000, b"set " + b"k" * 70_000 + b" 0 0 1"])
def test_a_line_over_the_limit_is_refused(node, line):
    """Refused with an error; the server may close the connection, but must survive."""
    with socket.create_connection(node.memcached, timeout=10) as one:
        try:
            one.sendall(line + b"\r\nmn\r\n")
            said = one.recv(4096)
        except ConnectionError:
            said = b""
    assert said.startswith((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")) or said == b"", said
    assert node.alive()


def test_a_line_without_end_does_not_grow_for_ever(node):
    with socket.create_connection(node.memcached, timeout=10) as one:
        sent = 0
        try:
            while sent < 64 * 1024 * 1024:
                one.sendall(b"y" * 65536)
                sent += 65536
            one.shutdown(socket.SHUT_WR)
            said = one.recv(4096)
        except ConnectionError:
            said = b"closed"
    assert said != b"MN\r\n"
    assert node.alive()


def test_a_long_multi_get_is_allowed(node):
    connection = TextConnection(node.memcached)
    keys = [b"long-%d-" % n + b"k" * 100 for n in range(1500)]
    for key in keys[::3]:
        connection.set(key, key)
    found = connection.gets(*keys)
    connection.close()
    assert {key: value[0] for key, value in found.items()} == {key: key for key in keys[::3]}


def test_a_set_that_is_cut_off_stores_nothing(node):
    check = TextConnection(node.memcached)
    check.line(b"delete cut")
    for sent in (b"set cut 0 0 10", b"set cut 0 0 10\r\n", b"set cut 0 0 10\r\n12345", b"set cut 0 0 10\r\n1234567890", b"set cut 0 0 10\r\n1234567890\r"):
        with socket.create_connection(node.memcached, timeout=10) as one:
            one.sendall(sent)
        assert check.get(b"cut") is None, sent
    check.close()
