"""Binary clients whose requests end in quiet ones without an answer: what they sent is acknowledged at once. Their kernel holds back the
next small request until then (Nagle), and ours would delay an acknowledgement that goes with no answer by 40 ms."""

import re
import shutil
import socket
import struct
import subprocess
import time

import pytest

from tests import frames, servers
from tests.wire.test_key_lists import Text

GET, SET, GETQ, NOOP = 0x00, 0x01, 0x09, 0x0A
ROUNDS = 20
# struct tcp_info: eight bytes, then 32-bit words, of which the fifth is tcpi_unacked.
UNACKED_AT = 8 + 4 * 4
SOON_S = 10


def unacknowledged(one):
    """Segments that the server's kernel has not acknowledged."""
    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return struct.unpack_from("=I", info, UNACKED_AT)[0]


def is_executed(text, misses):
    deadline = time.monotonic() + SOON_S
    while int(text.stats()["get_misses"]) < misses:
        assert time.monotonic() < deadline
    return True


def rounds_with_delay(server, request, counter=1):
    """How often the last segment was not acknowledged when the request had been executed."""
    delayed = 0
    with Text(server.memcached) as text, socket.create_connection(server.memcached, timeout=60) as one:
        misses = int(text.stats()["get_misses"])
        for _ in range(ROUNDS):
            # Answers make the connection interactive: the kernel delays acknowledgements.
            for _ in range(20):
                one.sendall(frames.request(NOOP))
                assert len(one.recv(24)) == 24
            one.sendall(request)
            misses += counter
            assert is_executed(text, misses)
            time.sleep(0.002)
            delayed += unacknowledged(one) > 0
            time.sleep(0.05)
    return delayed


def test_an_unanswered_end_is_acknowledged_at_once():
    with servers.Dormouse(workers=1) as server:
        assert rounds_with_delay(server, frames.request(GETQ, key=b"none")) == 0
        many = b"".join(frames.request(GETQ, key=b"none-%d" % number) for number in range(10))
        assert rounds_with_delay(server, many, counter=10) == 0


def test_the_kernel_would_delay_it():
    """The test's own check: text requests without an answer are not acknowledged ahead, as in memcached."""
    with servers.Dormouse(workers=1) as server, Text(server.memcached) as text, socket.create_connection(server.memcached, timeout=60) as one:
        delayed, sets = 0, int(text.stats()["cmd_set"])
        for _ in range(ROUNDS):
            for _ in range(20):
                one.sendall(b"mn\r\n")
                assert one.recv(4) == b"MN\r\n"
            one.sendall(b"set a 0 0 1 noreply\r\nx\r\n")
            sets += 1
            deadline = time.monotonic() + SOON_S
            while int(text.stats()["cmd_set"]) < sets:
                assert time.monotonic() < deadline
            time.sleep(0.002)
            delayed += unacknowledged(one) > 0
            time.sleep(0.05)
        assert delayed > ROUNDS // 2


@pytest.mark.skipif(not shutil.which("strace"), reason="no strace here")
def test_there_is_a_system_call_for_such_an_end_and_for_nothing_else(tmp_path):
    trace = tmp_path / "trace"
    with servers.Dormouse(workers=1) as server, socket.create_connection(server.memcached, timeout=60) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with subprocess.Popen(
            ["strace", "-f", "-qq", "-e", "trace=setsockopt", "-o", str(trace), "-p", str(server.pid)], stderr=subprocess.DEVNULL
        ) as tracer:
            count = lambda: len(re.findall("TCP_QUICKACK", trace.read_text() if trace.exists() else ""))
            deadline = time.monotonic() + SOON_S
            # Until the tracer is attached.
            while count() == 0 and time.monotonic() < deadline:
                one.sendall(frames.request(GETQ, key=b"none"))
                time.sleep(0.1)
            time.sleep(0.5)
            attached = count()
            assert attached > 0
            store = frames.request(SET, key=b"a", extras=bytes(8), value=b"x")
            for request in (frames.request(NOOP), store, frames.request(GET, key=b"a"), frames.request(GET, key=b"none"), frames.request(GETQ, key=b"a")):
                for _ in range(20):
                    one.sendall(request)
                    assert one.recv(1000)
            one.sendall(frames.request(GETQ, key=b"none") * 5 + frames.request(NOOP))
            assert len(one.recv(24)) == 24
            with Text(server.memcached) as text:
                for _ in range(20):
                    assert text.ask(b"mn") == b"MN"
                text.send(b"set a 0 0 1 noreply\r\nx\r\n")
                time.sleep(0.1)
            time.sleep(0.5)
            assert count() == attached
            for _ in range(5):
                one.sendall(frames.request(GETQ, key=b"none") * 3)
                time.sleep(0.1)
            time.sleep(0.5)
            assert count() == attached + 5
            tracer.terminate()
