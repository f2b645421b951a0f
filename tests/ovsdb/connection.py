"""One JSON-RPC connection, with nothing hidden: messages as they arrive, numbers as they are written."""

import json
import re
import socket
import sys

from .servers import PATIENCE_S


class Closed(Exception):
    """The server closed the connection."""


class Real(float):
    """A real that compares by its text, so that 1e+20 and 100000000000000000000 are different answers."""

    def __new__(cls, text):
        value = float.__new__(cls, text)
        value.text = text
        return value

    def __eq__(self, other):
        return isinstance(other, Real) and self.text == other.text

    def __hash__(self):
        return hash(self.text)

    def __repr__(self):
        return self.text


# Debian's server accepts arrays nested 1,000 deep.
sys.setrecursionlimit(20_000)
DECODER = json.JSONDecoder(parse_float=Real)
# Strings with escapes or non-ASCII characters: their spelling is compared too.
SPELLED = re.compile(r'"(?:[^"\\]|\\.)*(?:\\.|[^\x00-\x7f])(?:[^"\\]|\\.)*"')


def decode(text):
    return DECODER.decode(text)


class Connection:
    def __init__(self, path, timeout_s=PATIENCE_S):
        if isinstance(path, tuple):
            self.socket = socket.create_connection(path, timeout=timeout_s)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout_s)
            self.socket.connect(str(path))
        self.buffer = b""
        self.text = ""
        self.at = self.began = 0
        self.next_id = 0

    def send_bytes(self, content):
        try:
            self.socket.sendall(content)
        except (BrokenPipeError, ConnectionResetError):
            pass  # What the server sent before, and its close, are still to be read.

    def send(self, message):
        self.send_bytes(json.dumps(message, separators=(",", ":")).encode())

    def receive(self):
        """The next message; raises Closed at the end of the stream."""
        while True:
            if self.at < len(self.text):
                try:
                    message, end = DECODER.raw_decode(self.text, self.at)
                    self.began, self.at = self.at, end
                    return message
                except json.JSONDecodeError:
                    pass
            try:
                piece = self.socket.recv(1 << 18)
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise Closed(self.text[self.at :][:200])
            self.buffer += piece
            if self.buffer.endswith(b"}"):
                # No character is split here, because the last byte is a character of its own; invalid UTF-8 is kept and
                # compared.
                self.text = self.text[self.at :] + self.buffer.decode(errors="surrogateescape")
                self.at = 0
                self.buffer = b""

    def receive_spelled(self):
        """The next message and the source text of its unusual strings."""
        message = self.receive()
        return message, sorted(SPELLED.findall(self.text[self.began : self.at]))

    def request(self, method, *params, until=None):
        """Sends a request and returns the reply; `until` collects the notifications before it."""
        self.next_id += 1
        number = f"request-{self.next_id}"
        self.send({"method": method, "params": list(params), "id": number})
        while True:
            message = self.receive()
            if message.get("id") == number and "method" not in message:
                return message
            if message.get("method") == "echo":
                self.send({"id": message["id"], "result": message["params"], "error": None})
            elif until is not None:
                until.append(message)

    def transact(self, database, *operations, until=None):
        """Returns the result array; an error of the whole request is an AssertionError."""
        reply = self.request("transact", database, *operations, until=until)
        assert reply.get("error") is None, reply
        return reply["result"]

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
