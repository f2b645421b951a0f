"""Random bytes, cut-off requests and misbehaving peers on every port: the node survives and serves the next client."""

import random
import select
import socket
import threading
import time

import pytest

from tests.differential import scripts
from tests.differential.script import CONNECTIONS
from tests.clients.text_connection import TextConnection
from tests.frames import NOOP, SET, BinaryConnection, request

SEEDS = range(40)
PORTS = ("memcached", "kv", "http")


def serves(node):
    text = TextConnection(node.memcached)
    text.set(b"alive", b"1")
    assert text.get(b"alive")[0] == b"1"
    text.close()
    with BinaryConnection(node.kv) as one:
        one.open_bucket()
        assert one.store(b"alive", b"2").status == 0
    with socket.create_connection(node.http, timeout=10) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert one.recv(100).startswith(b"HTTP/1.1 ")


def pour(address, data, cut):
    """Sends as much as possible, reads what arrives, and disconnects."""
    with socket.create_connection(address, timeout=10) as one:
        one.setblocking(False)
        at = 0
        deadline = time.monotonic() + 2
        while at < len(data) and time.monotonic() < deadline:
            readable, writable, _ = select.select([one], [one], [], 0.2)
            try:
                if readable and not one.recv(1 << 16):
                    return
                if writable:
                    at += one.send(data[at : at + cut])
            except BlockingIOError:
                continue
            except ConnectionError:
                return


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_bytes(node, port, seed):
    chooser = random.Random(seed)
    shape = seed % 4
    if shape == 0:
        data = chooser.randbytes(chooser.randint(1, 20_000))
    elif shape == 1:
        data = bytes(chooser.choice(b"\x80\x81\x08\x00\xff\r\n msgetadincr0123456789") for _ in range(5000))
    elif shape == 2:
        data = b"".join(request(chooser.randrange(256), chooser.randbytes(chooser.randrange(30)), chooser.randbytes(chooser.randrange(60)), chooser.randbytes(chooser.choice((0, 4, 8, 20)))) for _ in range(100))
    else:
        good = bytearray(request(SET, b"k", b"value", bytes(8)) * 50)
        for _ in range(40):
            good[chooser.randrange(len(good))] = chooser.randrange(256)
        data = bytes(good)
    pour(getattr(node, port), data, chooser.choice((1, 7, 4096, 1 << 20)) if len(data) < 6000 else 4096)
    assert node.alive(), node.log()


def test_serves_after_the_garbage(node):
    serves(node)


@pytest.mark.parametrize("seed", range(20))
def test_good_scripts_with_flipped_bits(node, seed):
    """The differential test's scripts, with a few bits flipped and truncated somewhere."""
    chooser = random.Random(f"flip{seed}")
    for one in scripts.random_script(f"garbage{seed}", "mixed"):
        if any(step.closes for step in one.steps):
            continue
        stream = bytearray(b"".join(step.bytes_for({}, one.protocol) for step in one.steps))
        for _ in range(chooser.randint(1, 5)):
            stream[chooser.randrange(len(stream))] ^= 1 << chooser.randrange(8)
        if b"quit" in stream or b"shutdown" in stream:
            continue
        pour(node.memcached, bytes(stream[: chooser.randint(1, len(stream))]), 4096)
    assert CONNECTIONS and node.alive(), node.log()


def test_connections_that_say_nothing(node):
    idle = [socket.create_connection(getattr(node, port), timeout=10) for port in PORTS for _ in range(100)]
    serves(node)
    for one in idle:
        one.close()
    serves(node)


def test_connections_that_reset(node):
    for port in PORTS:
        for _ in range(50):
            one = socket.create_connection(getattr(node, port), timeout=10)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            one.sendall(b"get a\r\nset a 0 0 1000\r\nxyz")
            one.close()
    serves(node)


def test_one_byte_at_a_time(node):
    text = TextConnection(node.memcached)
    for byte in b"set slow 0 0 5\r\nhello\r\nget slow\r\n":
        text.socket.sendall(bytes([byte]))
        time.sleep(0.002)
    assert [text.reader.readline() for _ in range(4)] == [b"STORED\r\n", b"VALUE slow 0 5\r\n", b"hello\r\n", b"END\r\n"]
    text.close()
    with BinaryConnection(node.memcached) as one:
        for byte in request(NOOP, opaque=5):
            one.send(bytes([byte]))
            time.sleep(0.002)
        assert one.response().opaque == 5


def test_a_peer_that_does_not_read_stops_only_itself(node):
    text = TextConnection(node.memcached)
    text.set(b"big", bytes(500_000))
    rude = socket.create_connection(node.memcached, timeout=10)
    rude.setblocking(False)
    sent = 0
    asked = b"get big\r\n" * 1000
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and sent < 64 * 1024 * 1024:
        _, writable, _ = select.select([], [rude], [], 0.1)
        if not writable:
            break
        try:
            sent += rude.send(asked)
        except BlockingIOError:
            break
    before = time.monotonic()
    for _ in range(100):
        assert text.get(b"big")[0] == bytes(500_000)
    assert time.monotonic() - before < 20
    rude.close()
    text.close()
    serves(node)


def test_ten_thousand_pipelined_requests(node):
    text = TextConnection(node.memcached)
    text.set(b"p", b"1")
    count = 10_000
    text.socket.setblocking(False)
    data, got, at = b"get p\r\n" * count, 0, 0
    expected = len(b"VALUE p 0 1\r\n1\r\nEND\r\n") * count
    deadline = time.monotonic() + 30
    while got < expected and time.monotonic() < deadline:
        readable, writable, _ = select.select([text.socket], [text.socket] if at < len(data) else [], [], 1)
        if writable:
            try:
                at += text.socket.send(data[at:])
            except BlockingIOError:
                pass
        if readable:
            got += len(text.socket.recv(1 << 16))
    text.close()
    assert got == expected


def test_short_requests_without_end_and_nothing_read(node):
    """A turn that ends with most of a full buffer unparsed continues with it, even if other connections have used the
    buffer meanwhile."""
    peers = [TextConnection(node.memcached, timeout_s=30) for _ in range(4)]
    data = b"".join(b"delete key%d noreply\r\n" % number for number in range(150_000)) + b"set end 0 0 1\r\n1\r\n"
    threads = [threading.Thread(target=peer.socket.sendall, args=(data,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread, peer in zip(threads, peers):
        thread.join()
        assert peer.reader.readline() == b"STORED\r\n"
        peer.close()
    serves(node)
