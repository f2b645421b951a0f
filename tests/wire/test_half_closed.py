"""A client that sends its requests and closes its side at once gets all answers, also to requests that take long."""

import socket

import pytest

from tests import servers
from tests.frames import NOOP, STAT, request

REQUESTS = {
    "text": (b"stats\r\nget a\r\n", b"END\r\nEND\r\n"),
    "text, long one last": (b"get a\r\nstats\r\n", b"END\r\n"),
    "binary": (request(STAT, b"number") + request(NOOP), b"\x81\x0a" + bytes(22)),
    "binary alone": (request(STAT, b"number"), b"Not found"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_answers_come_after_the_end_of_the_input(kind):
    sent, last = REQUESTS[kind]
    with servers.Dormouse(buckets=("default,ephemeral,32MiB",)) as node:
        for _ in range(20):
            with socket.create_connection(node.memcached, timeout=30) as one, one.makefile("rb") as answers:
                one.sendall(sent)
                one.shutdown(socket.SHUT_WR)
                assert answers.read().endswith(last)
