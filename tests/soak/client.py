"""Two small asynchronous clients, memcached text and Couchbase KV, with the same four operations.

`store`, `fetch`, `remove` and `touch` return their outcome as one of the words below; anything outside the protocol
raises `Wrong`.
"""

import asyncio
import struct
import time

from tests.frames import (
    DELETE, GET, HELLO, NO_MEMORY, NOT_FOUND, SASL_AUTH, SELECT_BUCKET, SET, SUCCESS, TEMPORARY_FAILURE, TOUCH, request,
)

DONE, MISSING, REFUSED = "done", "missing", "refused"
# Allowed answers of a full server.
TEXT_REFUSALS = (b"SERVER_ERROR out of memory",)
BINARY_REFUSALS = (NO_MEMORY, TEMPORARY_FAILURE)

READ_LIMIT = 1 << 17
ANSWER_TIMEOUT_S = 60
# How long a request that is cut off anyway waits for the server to accept its bytes. Requests with unread answers may
# precede it: then the server rightly stops reading, and after a minute drops the peer.
CUT_PATIENCE_S = 5


class Wrong(Exception):
    """An answer outside the protocol, or a connection that the server closed."""


class Closed(Wrong):
    """A connection that the server closed."""


class Client:
    largest = 0

    def __init__(self, address):
        self.address = address
        self.reader = self.writer = None

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection(*self.address, limit=READ_LIMIT)

    def close(self):
        if self.writer:
            self.writer.transport.abort()
            self.reader = self.writer = None

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def send_part(self, data, length):
        """Sends the first bytes of a request, then disconnects."""
        self.writer.write(data[:length])
        if length < 1 << 16:
            await asyncio.sleep(0)
        else:
            try:
                await asyncio.wait_for(self.writer.drain(), CUT_PATIENCE_S)
            except asyncio.TimeoutError:
                pass
        self.close()

    async def guarded(self, waiting):
        port = self.writer.get_extra_info("sockname")[1]
        began, kind = time.monotonic(), Closed
        try:
            return await asyncio.wait_for(waiting, ANSWER_TIMEOUT_S)
        except asyncio.IncompleteReadError as error:
            problem = f"the server closed the connection after {error.partial[:200]!r}"
        except ConnectionError as error:
            problem = f"the server closed the connection: {error}"
        except asyncio.TimeoutError:
            problem, kind = "no answer", Wrong
        raise kind(f"{type(self).__name__} at port {port}, {waiting.__qualname__}: {problem} ({time.monotonic() - began:.1f} s)")


class TextClient(Client):
    largest = 1000 * 1024

    def store_bytes(self, key, value, flags, expiry_s):
        return b"set %s %d %d %d\r\n%s\r\n" % (key, flags, expiry_s, len(value), value)

    def fetch_bytes(self, keys):
        return b"get " + b" ".join(keys) + b"\r\n"

    async def store(self, key, value, flags, expiry_s):
        return await self.guarded(self._store(key, value, flags, expiry_s))

    async def _store(self, key, value, flags, expiry_s):
        await self.send(self.store_bytes(key, value, flags, expiry_s))
        return self.outcome(await self.line(), b"STORED")

    async def line(self):
        return (await self.reader.readuntil(b"\r\n"))[:-2]

    def outcome(self, line, good):
        if line == good:
            return DONE
        if line == b"NOT_FOUND":
            return MISSING
        if line.startswith(TEXT_REFUSALS):
            return REFUSED
        raise Wrong(f"text: {line[:200]!r} instead of {good!r}")

    async def fetch(self, keys):
        return await self.guarded(self._fetch(keys))

    async def _fetch(self, keys):
        await self.send(self.fetch_bytes(keys))
        return await self.read_values()

    async def read_values(self):
        found = {}
        while (line := await self.line()) != b"END":
            words = line.split(b" ")
            if words[0] != b"VALUE" or len(words) != 4:
                raise Wrong(f"text: {line[:200]!r} in the answer to get")
            value = await self.reader.readexactly(int(words[3]) + 2)
            found[words[1]] = (value[:-2], int(words[2]))
        return found

    async def remove(self, key):
        return await self.guarded(self._line(b"delete %s\r\n" % key, b"DELETED"))

    async def touch(self, key, expiry_s):
        return await self.guarded(self._line(b"touch %s %d\r\n" % (key, expiry_s), b"TOUCHED"))

    async def _line(self, command, good):
        await self.send(command)
        return self.outcome(await self.line(), good)


class KvClient(Client):
    largest = 20 * 1024 * 1024

    async def open(self):
        await super().open()
        await self.guarded(self._login())

    async def _login(self):
        await self.send(
            request(HELLO, b'{"a":"soak","i":"1/1"}', struct.pack(">HH", 0x07, 0x08))
            + request(SASL_AUTH, b"PLAIN", b"\0Administrator\0password")
            + request(SELECT_BUCKET, b"default")
        )
        for step in ("HELLO", "SASL_AUTH", "SELECT_BUCKET"):
            status, _, _ = await self.response()
            if status != SUCCESS:
                raise Wrong(f"kv: {step}: status {status:#x}")

    async def response(self):
        head = await self.reader.readexactly(24)
        magic, _, key_len, extras_len, _, status, body_len, opaque, _ = struct.unpack(">BBHBBHIIQ", head)
        framing_len = 0
        if magic == 0x18:
            framing_len, key_len = key_len >> 8, key_len & 0xFF
        elif magic != 0x81:
            raise Wrong(f"kv: magic {magic:#x}")
        body = await self.reader.readexactly(body_len)
        self.opaque = opaque
        return status, body[framing_len : framing_len + extras_len], body[framing_len + extras_len + key_len :]

    def store_bytes(self, key, value, flags, expiry_s):
        return request(SET, key, value, struct.pack(">II", flags, expiry_s))

    def fetch_bytes(self, keys):
        return b"".join(request(GET, key, opaque=n) for n, key in enumerate(keys))

    def outcome(self, status):
        if status == SUCCESS:
            return DONE
        if status == NOT_FOUND:
            return MISSING
        if status in BINARY_REFUSALS:
            return REFUSED
        raise Wrong(f"kv: status {status:#x}")

    async def store(self, key, value, flags, expiry_s):
        return await self.guarded(self._one(self.store_bytes(key, value, flags, expiry_s)))

    async def _one(self, data):
        await self.send(data)
        status, _, _ = await self.response()
        return self.outcome(status)

    async def fetch(self, keys):
        return await self.guarded(self._fetch(keys))

    async def _fetch(self, keys):
        await self.send(self.fetch_bytes(keys))
        found = {}
        for _ in keys:
            status, extras, value = await self.response()
            if self.outcome(status) == DONE:
                found[keys[self.opaque]] = (value, int.from_bytes(extras[:4], "big"))
        return found

    async def remove(self, key):
        return await self.guarded(self._one(request(DELETE, key)))

    async def touch(self, key, expiry_s):
        return await self.guarded(self._one(request(TOUCH, key, extras=struct.pack(">I", expiry_s))))


class BinaryClient(KvClient):
    """The binary protocol of the memcached port: the same frames without a login."""

    largest = 1000 * 1024

    async def _login(self):
        return None
