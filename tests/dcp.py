"""A DCP consumer: opens a connection for streams, and reads their messages."""

import dataclasses
import itertools
import json
import socket
import struct

from tests.persistence.bucket import http
from tests.frames import (
    FEATURE_COLLECTIONS, FEATURE_JSON, FEATURE_SELECT_BUCKET, FEATURE_SNAPPY, FEATURE_XATTR, FEATURE_XERROR, RESPONSE, SUCCESS, BinaryConnection, Response,
    request,
)

GET_ALL_VB_SEQNOS = 0x48


def empty(node, bucket):
    """flush_all over HTTP."""
    for path, form in (("", "flushEnabled=1"), ("/controller/doFlush", "")):
        status, body = http(node, "POST", f"/pools/default/buckets/{bucket}{path}", form)
        assert status == 200, body


OPEN, ADD_STREAM, CLOSE_STREAM, STREAM_REQ, GET_FAILOVER_LOG, STREAM_END, MARKER, MUTATION, DELETION, EXPIRATION = range(0x50, 0x5A)
NOOP, BUFFER_ACKNOWLEDGEMENT, CONTROL, SYSTEM_EVENT, PREPARE, SEQNO_ACKNOWLEDGED, COMMIT, ABORT, SEQNO_ADVANCED, OSO_SNAPSHOT = range(0x5C, 0x66)
# Flags of OPEN.
PRODUCER, NOTIFIER, INCLUDE_XATTRS, NO_VALUE, INCLUDE_DELETE_TIMES, NO_VALUE_WITH_DATATYPE, INCLUDE_DELETED_USER_XATTRS = 1, 2, 4, 8, 0x20, 0x40, 0x100
# Flags of STREAM_REQ.
TAKEOVER, DISK_ONLY, TO_LATEST, ACTIVE_ONLY, STRICT_UUID, FROM_LATEST, IGNORE_PURGED = 0x01, 0x02, 0x04, 0x10, 0x20, 0x40, 0x80
# Reasons of STREAM_END.
DONE, CLOSED, STATE_CHANGED, DISCONNECTED, TOO_SLOW, BACKFILL_FAILED, _, FILTER_EMPTY, LOST_PRIVILEGES = range(9)
# System events.
CREATE_COLLECTION, DROP_COLLECTION, _, CREATE_SCOPE, DROP_SCOPE = range(5)
FOREVER = 2**64 - 1
ROLLBACK, ERANGE = 0x23, 0x22
FEATURES = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON, FEATURE_XATTR, FEATURE_SNAPPY, FEATURE_COLLECTIONS)
LAYOUTS = {
    MUTATION: ">QQIIIHB", EXPIRATION: ">QQI", PREPARE: ">QQIIIBBB", COMMIT: ">QQ", ABORT: ">QQ", SYSTEM_EVENT: ">QIB", SEQNO_ADVANCED: ">Q", STREAM_END: ">I",
    OSO_SNAPSHOT: ">I", NOOP: ">",
}


@dataclasses.dataclass(frozen=True)
class Message:
    opcode: int
    vbucket: int
    opaque: int
    stream_id: int | None
    cas: int
    datatype: int
    # The numbers of the extras.
    numbers: tuple
    key: bytes
    value: bytes
    # What the consumer acknowledges for it.
    size: int

    @property
    def seqno(self):
        return self.numbers[1] if self.opcode in (COMMIT, ABORT) else self.numbers[0]


@dataclasses.dataclass(frozen=True)
class Marker:
    start: int
    end: int
    kind: int
    rest: tuple = ()


def failover_log(value):
    return list(struct.iter_unpack(">QQ", value))


class Reader:
    """Reads a socket, and knows whether there is more to read."""

    def __init__(self, socket):
        self.socket = socket
        self.bytes = bytearray()

    def read(self, size):
        while len(self.bytes) < size and (more := self.socket.recv(1 << 16)):
            self.bytes += more
        taken, self.bytes = bytes(self.bytes[:size]), self.bytes[size:]
        return taken

    def close(self):
        pass


class Dcp(BinaryConnection):
    """A connection for streams, with a name of its own. `name=None`: it is not opened yet."""

    numbers = itertools.count()

    def __init__(self, address, bucket="default", name="stream-{}", flags=PRODUCER | INCLUDE_XATTRS, features=FEATURES, controls=(), timeout_s=10, **login):
        super().__init__(address, timeout_s)
        self.reader.close()
        self.reader = Reader(self.socket)
        self.later = []
        self.open_bucket(bucket, features, **login)
        if name is not None:
            answer = self.open(name.format(next(self.numbers)), flags)
            assert answer.status == SUCCESS, answer
        for setting, value in controls:
            answer = self.control(setting, value)
            assert answer.status == SUCCESS, (setting, answer)

    def open(self, name="stream", flags=PRODUCER | INCLUDE_XATTRS):
        return self.ask(OPEN, name.encode(), extras=struct.pack(">II", 0, flags))

    def control(self, name, value):
        return self.ask(CONTROL, name.encode(), value.encode())

    def stream(self, vb, start=0, end=FOREVER, uuid=0, snapshot=None, flags=0, opaque=None, **options):
        """Asks for a stream. Messages of others that come before the answer are kept."""
        first, last = snapshot or (start, start)
        extras = struct.pack(">IIQQQQQ", flags, 0, start, end, uuid, first, last)
        value = json.dumps(options).encode() if options else b""
        self.send(request(STREAM_REQ, value=value, extras=extras, vbucket=vb, opaque=vb if opaque is None else opaque))
        return self.response()

    def close_stream(self, vb, stream_id=None):
        framing = None if stream_id is None else struct.pack(">BH", 0x22, stream_id)
        self.send(request(CLOSE_STREAM, vbucket=vb, framing=framing))
        return self.response()

    def acknowledge(self, size):
        self.send(request(BUFFER_ACKNOWLEDGEMENT, extras=struct.pack(">I", size)))

    def answer_noop(self, message):
        self.send(struct.pack(">BBHBBHIIQ", 0x81, NOOP, 0, 0, 0, 0, 0, message.opaque, 0))

    def response(self):
        """The next response, or None if the connection ends first. Messages that come before it are kept."""
        while (got := self.frame()) is not None and not isinstance(got, Response):
            self.later.append(got)
        return got

    def next(self):
        """The next message, whatever it is; None at the end of the connection."""
        return self.later.pop(0) if self.later else self.frame()

    def change(self):
        """The next message that is more than the frame of others."""
        while isinstance(message := self.next(), Marker) or message is not None and message.opcode == SEQNO_ADVANCED:
            pass
        return message

    def quiet(self, seconds=0.3):
        """Returns true if nothing comes for a while."""
        if self.later or self.reader.bytes:
            return False
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            return len(self.socket.recv(1, socket.MSG_PEEK)) == 0
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(before)

    def frame(self):
        head = self.reader.read(24)
        if len(head) < 24:
            return None
        magic, opcode, key_len, extras_len, datatype, place, body_len, opaque, cas = struct.unpack(">BBHBBHIIQ", head)
        body = self.reader.read(body_len)
        if len(body) < body_len:
            return None
        framing_len = 0
        if magic in (0x08, 0x18):
            framing_len, key_len = key_len >> 8, key_len & 0xFF
        framing, extras = body[:framing_len], body[framing_len : framing_len + extras_len]
        at = framing_len + extras_len
        key, value = body[at : at + key_len], body[at + key_len :]
        if magic in (RESPONSE, 0x18):
            return Response(opcode, place, datatype, opaque, cas, framing, extras, key, value)
        stream_id = struct.unpack(">BH", framing)[1] if framing else None
        if opcode == MARKER:
            return self.marker(extras, value)
        if opcode == DELETION:
            numbers = struct.unpack(">QQH" if extras_len == 18 else ">QQIB", extras)
        else:
            numbers = struct.unpack(LAYOUTS[opcode], extras)
        return Message(opcode, place, opaque, stream_id, cas, datatype, numbers, key, value, 24 + body_len)

    @staticmethod
    def marker(extras, value):
        if len(extras) == 20:
            return Marker(*struct.unpack(">QQI", extras))
        numbers = struct.unpack({0: ">QQIQQ", 2: ">QQIQQQQ"}[extras[0]], value)
        return Marker(*numbers[:3], numbers[3:])


def content(connection, vb):
    """Documents of a vBucket with all that they have, by key."""
    assert connection.stream(vb, flags=TO_LATEST).status == SUCCESS
    documents, copy = {}, Copy()
    while copy.ended is None:
        message = connection.next()
        assert message is not None, "the stream was cut"
        copy.apply(message)
        if getattr(message, "opcode", None) == MUTATION:
            documents[message.key] = (message.numbers, message.cas, message.datatype, message.value)
        elif getattr(message, "opcode", None) in (DELETION, EXPIRATION):
            documents.pop(message.key, None)
    return documents


class Copy:
    """What a consumer has of a vBucket."""

    def __init__(self):
        self.documents = {}
        self.seqno = 0
        self.snapshot = (0, 0)
        self.uuid = 0
        self.ended = None
        # Whether a snapshot in no order comes.
        self.unordered = False

    def position(self):
        assert not self.unordered, "its parts count for nothing"
        return {"start": self.seqno, "uuid": self.uuid, "snapshot": self.snapshot}

    def apply(self, message):
        """Applies a message of this vBucket's stream."""
        if isinstance(message, Marker):
            assert message.start <= self.seqno < message.end, (self.seqno, message)
            self.snapshot = (message.start, message.end)
            return
        if message.opcode == STREAM_END:
            self.ended = message.numbers[0]
            return
        if message.opcode == OSO_SNAPSHOT:
            begins = message.numbers == (1,)
            assert begins != self.unordered and (self.seqno == 0 or not begins), message
            self.unordered, self.snapshot = begins, (self.seqno, self.seqno)
            return
        if self.unordered:
            self.seqno = max(self.seqno, message.seqno)
        else:
            assert self.seqno < message.seqno <= self.snapshot[1], (self.seqno, message, self.snapshot)
            self.seqno = message.seqno
        if message.opcode == MUTATION:
            self.documents[message.key] = message.value
        elif message.opcode in (DELETION, EXPIRATION):
            self.documents.pop(message.key, None)

    def is_at(self, seqno):
        return not self.unordered and self.seqno >= seqno and self.seqno == self.snapshot[1]
