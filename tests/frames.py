"""Frames of memcached's binary protocol and of Couchbase's KV protocol, encoded and decoded by the tests themselves."""

import dataclasses
import socket
import struct

REQUEST = 0x80
RESPONSE = 0x81
FLEXIBLE_REQUEST = 0x08
FLEXIBLE_RESPONSE = 0x18

GET, SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT, QUIT, FLUSH, GETQ, NOOP, VERSION, GETK, GETKQ, APPEND, PREPEND, STAT = range(0x11)
SETQ, TOUCH, GAT = 0x11, 0x1C, 0x1D
HELLO, SASL_LIST, SASL_AUTH, SASL_STEP = 0x1F, 0x20, 0x21, 0x22
GET_REPLICA, SELECT_BUCKET, OBSERVE_SEQNO, GET_LOCKED, UNLOCK, GET_FAILOVER_LOG, GET_META = 0x83, 0x89, 0x91, 0x94, 0x95, 0x96, 0xA0
SET_VBUCKET, GET_VBUCKET, DEL_VBUCKET, SEQNO_PERSISTENCE = 0x3D, 0x3E, 0x3F, 0xB7
GET_CLUSTER_CONFIG, MANIFEST, COLLECTION_ID, LOOKUP, ERROR_MAP = 0xB5, 0xBA, 0xBB, 0xD0, 0xFE

SUCCESS, NOT_FOUND, EXISTS, TOO_BIG, INVALID, NOT_STORED, BAD_DELTA, NO_BUCKET, LOCKED = 0, 1, 2, 3, 4, 5, 6, 8, 9
AUTH_ERROR, AUTH_CONTINUE, NO_ACCESS = 0x20, 0x21, 0x24
UNKNOWN_FRAME_INFO, UNKNOWN_COMMAND, NO_MEMORY, NOT_SUPPORTED, INTERNAL_ERROR, TEMPORARY_FAILURE, UNKNOWN_COLLECTION = 0x80, 0x81, 0x82, 0x83, 0x84, 0x86, 0x88
DURABILITY_INVALID_LEVEL, IMPOSSIBLE, IN_PROGRESS, AMBIGUOUS, RE_COMMIT = 0xA0, 0xA1, 0xA2, 0xA3, 0xA4
NOT_MY_VBUCKET = 0x07

FEATURE_XATTR, FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_JSON, FEATURE_COLLECTIONS, FEATURE_SNAPPY = 0x06, 0x07, 0x08, 0x0B, 0x12, 0x0A
FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION, FEATURE_MUTATION_SEQNO, FEATURE_UNORDERED = 0x10, 0x11, 0x04, 0x0E

# Frame infos.
BARRIER = b"\x00"


def durability(level, timeout_ms=None):
    return struct.pack(">BB", 0x11, level) if timeout_ms is None else struct.pack(">BBH", 0x13, level, timeout_ms)


def request(opcode, key=b"", value=b"", extras=b"", *, vbucket=0, opaque=0, cas=0, datatype=0, framing=None, magic=None, key_len=None, extras_len=None, body_len=None):
    """One request; with `framing`, one with flexible framing extras. Explicit lengths replace the true ones."""
    true_body = len(framing or b"") + len(extras) + len(key) + len(value)
    body_len = true_body if body_len is None else body_len
    key_len = len(key) if key_len is None else key_len
    extras_len = len(extras) if extras_len is None else extras_len
    if framing is None:
        head = struct.pack(">BBH", REQUEST if magic is None else magic, opcode, key_len)
    else:
        head = struct.pack(">BBBB", FLEXIBLE_REQUEST if magic is None else magic, opcode, len(framing), key_len)
    head += struct.pack(">BBHIIQ", extras_len, datatype, vbucket, body_len, opaque, cas)
    return head + (framing or b"") + extras + key + value


@dataclasses.dataclass
class Response:
    opcode: int
    status: int
    datatype: int
    opaque: int
    cas: int
    framing: bytes
    extras: bytes
    key: bytes
    value: bytes


class BinaryConnection:
    """A blocking connection; `ask` sends one request and returns its response."""

    def __init__(self, address, timeout_s=10):
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")

    def close(self):
        self.reader.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.socket.sendall(data)

    def response(self):
        """The next response, or None if the stream ends first."""
        head = self.reader.read(24)
        if len(head) < 24:
            return None
        magic, opcode, key_len, extras_len, datatype, status, body_len, opaque, cas = struct.unpack(">BBHBBHIIQ", head)
        framing_len = 0
        if magic == FLEXIBLE_RESPONSE:
            framing_len, key_len = key_len >> 8, key_len & 0xFF
        else:
            assert magic == RESPONSE, f"magic {magic:#x}"
        body = self.reader.read(body_len)
        if len(body) < body_len:
            return None
        at = framing_len + extras_len
        return Response(opcode, status, datatype, opaque, cas, body[:framing_len], body[framing_len:at], body[at : at + key_len], body[at + key_len :])

    def ask(self, *arguments, **named):
        self.send(request(*arguments, **named))
        return self.response()

    def store(self, key, value, opcode=SET, flags=0, expiry=0, **named):
        return self.ask(opcode, key, value, struct.pack(">II", flags, expiry), **named)

    def lives(self):
        """Returns true if a NOOP is answered: the server still knows the frame boundaries."""
        self.send(request(NOOP, opaque=0x0DD_F00D))
        try:
            return self.response() == Response(NOOP, SUCCESS, 0, 0x0DD_F00D, 0, b"", b"", b"", b"")
        except OSError:
            return False

    def answer(self, *arguments, **named):
        """As `ask`; a connection that ends first is an OSError."""
        answer = self.ask(*arguments, **named)
        if answer is None:
            raise ConnectionError("the node has closed the connection")
        return answer

    def hello(self, *features):
        done = self.answer(HELLO, b'{"a":"tests","i":"1/1"}', b"".join(struct.pack(">H", f) for f in features))
        assert done.status == SUCCESS, done
        return {f for (f,) in struct.iter_unpack(">H", done.value)}

    def login(self, user="Administrator", password="password"):
        return self.answer(SASL_AUTH, b"PLAIN", f"\0{user}\0{password}".encode()).status

    def open_bucket(self, bucket="default", features=(FEATURE_XERROR, FEATURE_SELECT_BUCKET), user="Administrator", password="password"):
        granted = self.hello(*features) if features else set()
        status = self.login(user, password)
        assert status == SUCCESS, f"login: {status:#x}"
        status = self.answer(SELECT_BUCKET, bucket.encode()).status
        assert status == SUCCESS, f"select bucket: {status:#x}"
        return granted

    @classmethod
    def opened(cls, address, timeout_s=10, **bucket):
        """A connection whose bucket is open; none is left behind if that fails."""
        connection = cls(address, timeout_s)
        try:
            connection.open_bucket(**bucket)
        except BaseException:
            connection.close()
            raise
        return connection
