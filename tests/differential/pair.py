"""Runs one script against the oracle and the subject and reports where they differ.

A round ends with a sentinel: text `ms <key> 0 k O<n>`, binary NOOP with opaque n. The stream is fully answered when the
sentinel's own answer arrives; a command that leaves the server waiting for data (`Step.short`) gets as many sentinels
as it takes to fill the gap. A round whose commands may close the connection ends by closing our side, and the answers
are all bytes up to the end of the stream.
"""

import functools
import itertools
import select
import socket
import time

from . import generate_binary
from .answers import CasBook, compare, split_binary, split_text
from .script import BINARY, CONNECTIONS, TEXT

ANSWER_TIMEOUT_S = 1.0
SENTINEL_KEY = b"__sentinel"
SENTINEL_OPAQUE = 0x9000_0000

_numbers = itertools.count(1)


class NoAnswer(Exception):
    """The server did not answer the sentinel in time; carries what it did answer."""

    def __init__(self, got):
        super().__init__("no answer to the sentinel")
        self.got = got


class Peer:
    """One server with the connections of the running script."""

    def __init__(self, address, mutate=None):
        self.address = address
        self.mutate = mutate
        self.sockets = {}

    def close(self):
        for one in self.sockets.values():
            one.close()
        self.sockets = {}

    def drop(self, connection):
        one = self.sockets.pop(connection, None)
        if one:
            one.close()

    def socket(self, connection):
        if connection not in self.sockets:
            one = socket.create_connection(self.address, timeout=ANSWER_TIMEOUT_S)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets[connection] = one
        return self.sockets[connection]

    def exchange(self, connection, pieces, until):
        """Sends the pieces and reads until the stream ends with `until` (None: to the end of the stream). -> (bytes,
        closed)"""
        one = self.socket(connection)
        one.setblocking(False)
        got = bytearray()
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        pending = [memoryview(p) for p in pieces if p]
        half_closed = False
        while True:
            if not pending and until is None and not half_closed:
                half_closed = True
                try:
                    one.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
            readable, writable, _ = select.select([one], [one] if pending else [], [], max(deadline - time.monotonic(), 0))
            if not readable and not writable:
                raise NoAnswer(bytes(got))
            if writable:
                try:
                    sent = one.send(pending[0])
                    pending[0] = pending[0][sent:]
                    if not pending[0]:
                        pending.pop(0)
                        if pending:
                            time.sleep(0.0002)
                except BlockingIOError:
                    pass
                except OSError:
                    pending = []
            if readable:
                try:
                    data = one.recv(1 << 18)
                except BlockingIOError:
                    continue
                except ConnectionResetError:
                    data = b""
                if not data:
                    return bytes(got), True
                got += data
                if until is not None and not pending and got.endswith(until):
                    return bytes(got), False


def sentinels(protocol, count):
    """(bytes to send, the answer that ends the stream)"""
    if protocol == TEXT:
        names = [b"%d" % next(_numbers) for _ in range(count)]
        sent = b"".join(b"ms %s 0 k O%s\r\n\r\n" % (SENTINEL_KEY, name) for name in names)
        return sent, b"HD k%s O%s\r\n" % (SENTINEL_KEY, names[-1])
    opaques = [SENTINEL_OPAQUE + next(_numbers) for _ in range(count)]
    sent = b"".join(b"".join(generate_binary.frame(generate_binary.NOOP, opaque=o)) for o in opaques)
    answer = b"\x81\x0a" + b"\0" * 10 + opaques[-1].to_bytes(4, "big") + b"\0" * 8
    return sent, answer


def clean(peer):
    """Empties the server before a script; the connections of the last one are closed first."""
    peer.close()
    with socket.create_connection(peer.address, timeout=ANSWER_TIMEOUT_S) as one:
        one.sendall(b"flush_all\r\n")
        if one.recv(64) != b"OK\r\n":
            raise NoAnswer(b"flush_all")


def run(rounds, oracle, subject, cuts=True):
    """Runs the script on both; returns None or the first difference as text."""
    book = CasBook()
    clean(oracle)
    clean(subject)
    for number, one in enumerate(rounds):
        if one.pause_s:
            time.sleep(one.pause_s)
        problem = _run_round(one, oracle, subject, book, cuts)
        if problem:
            return f"round {number} (connection {one.connection}, {one.protocol}): {problem}"
    return None


def _run_round(one, oracle, subject, book, cuts):
    closes = any(step.closes for step in one.steps)
    short = sum(step.short for step in one.steps)
    tail, until = (b"", None) if closes else sentinels(one.protocol, 1 + (short + 19) // 20 + (1 if short else 0))
    keys = {int.from_bytes(step.pieces[0][12:16], "big"): step.pieces[3] for step in one.steps} if one.protocol == BINARY else {}
    split = functools.partial(split_binary, keys=keys) if one.protocol == BINARY else split_text
    results = []
    for peer, known in ((oracle, book.oracle), (subject, book.subject)):
        stream = b"".join(step.bytes_for(known, one.protocol) for step in one.steps)
        if peer.mutate:
            stream = peer.mutate(stream, one.protocol)
        pieces = one.cut(stream) if cuts else [stream]
        try:
            got, closed = peer.exchange(one.connection, [*pieces[:-1], pieces[-1] + tail], until)
        except NoAnswer as silence:
            if peer is oracle:
                peer.drop(one.connection)
                raise
            answers = split(silence.got)
            shown = "\n        ".join(a.show() for a in answers[-5:]) or "nothing"
            return f"the subject answers no more; its last answers:\n        {shown}"
        if closed:
            peer.drop(one.connection)
        results.append((split(got), closed))
    (left, left_closed), (right, right_closed) = results
    problem = compare(left, right, book)
    if problem is None and left_closed != right_closed:
        problem = f"the oracle {'closed' if left_closed else 'kept'} the connection, the subject {'closed' if right_closed else 'kept'} it"
    return problem


__all__ = ["CONNECTIONS", "NoAnswer", "Peer", "run"]
