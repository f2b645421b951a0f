"""Random frames of memcached's binary protocol: every opcode with its quiet variant, and malformed frames."""

import struct

from .generate import BINARY_KEYS, LARGE_FITS, Source
from .script import Cas, Step

GET, SET, ADD, REPLACE, DELETE, INCREMENT, DECREMENT, QUIT, FLUSH, GETQ, NOOP, VERSION, GETK, GETKQ, APPEND, PREPEND, STAT = range(0x11)
SETQ, ADDQ, REPLACEQ, DELETEQ, INCREMENTQ, DECREMENTQ, QUITQ, FLUSHQ, APPENDQ, PREPENDQ, VERBOSITY, TOUCH, GAT, GATQ = range(0x11, 0x1F)
SASL_LIST, SASL_AUTH, SASL_STEP = 0x20, 0x21, 0x22
GATK, GATKQ = 0x23, 0x24

NO_CAS = b"\0" * 8


def frame(opcode, extras=b"", key=b"", value=b"", *, cas=NO_CAS, opaque=0, datatype=0, vbucket=0, magic=0x80, key_len=None, extras_len=None, body_len=None):
    """The pieces of one frame; the lengths are the true ones unless given."""
    head = struct.pack(
        ">BBHBBHII", magic, opcode,
        len(key) if key_len is None else key_len,
        len(extras) if extras_len is None else extras_len,
        datatype, vbucket,
        len(extras) + len(key) + len(value) if body_len is None else body_len,
        opaque,
    )
    return (head, cas, extras, key, value)


class BinarySource(Source):
    """`command()` returns one random step."""

    def command(self):
        maker = self.pick(
            (26, self.store), (24, self.get), (8, self.append), (8, self.delete), (12, self.arithmetic), (6, self.touch),
            (2, self.flush), (4, self.service), (6, self.broken), (1, self.leave),
        )
        return maker()

    def key(self):
        return self.pick((5, super().key()), (1, self.random.choice(BINARY_KEYS)))

    def opaque(self):
        return self.random.randrange(1 << 31)

    def cas(self, key, chance=0.25):
        if self.random.random() >= chance:
            return NO_CAS
        return self.pick(
            (6, Cas(key)), (2, Cas(key, 1)), (1, Cas(key, 2)),
            (1, b"\0" * 7 + b"\1"), (1, b"\xff" * 8),
        )

    def expiry(self):
        return self.pick((6, 0), (2, 100), (1, 2_592_000), (1, 2_000_000_000), (1, 2_592_001), (1, 0x7FFF_FFFF))

    def flag_word(self):
        return int(self.flags())

    def store(self):
        opcode = self.random.choice((SET, SET, ADD, REPLACE, SETQ, ADDQ, REPLACEQ))
        extras = struct.pack(">II", self.flag_word(), self.expiry())
        key = self.key()
        cas, value = self.cas(key), self.value()
        if cas != NO_CAS:
            # The servers differ on a value too large for a conditional store (differences.md).
            value = value[:LARGE_FITS]
        return Step(frame(opcode, extras, key, value, cas=cas, opaque=self.opaque()))

    def append(self):
        opcode = self.random.choice((APPEND, PREPEND, APPENDQ, PREPENDQ))
        key = self.key()
        return Step(frame(opcode, b"", key, self.small_value().replace(b"\0", b"\1"), cas=self.cas(key), opaque=self.opaque()))

    def get(self):
        opcode = self.random.choice((GET, GET, GETQ, GETK, GETKQ, GAT, GATQ, GATK, GATKQ))
        extras = struct.pack(">I", self.expiry()) if opcode in (GAT, GATQ, GATK, GATKQ) else b""
        return Step(frame(opcode, extras, self.key(), opaque=self.opaque()), reads=True)

    def delete(self):
        key = self.key()
        return Step(frame(self.random.choice((DELETE, DELETEQ)), b"", key, cas=self.cas(key), opaque=self.opaque()))

    def arithmetic(self):
        opcode = self.random.choice((INCREMENT, DECREMENT, INCREMENTQ, DECREMENTQ))
        expiry = self.pick((3, self.expiry()), (2, 0xFFFF_FFFF))
        extras = struct.pack(">QQI", int(self.delta()), int(self.delta()), expiry)
        key = self.key()
        return Step(frame(opcode, extras, key, cas=self.cas(key, 0.1), opaque=self.opaque()), counts=True)

    def touch(self):
        return Step(frame(TOUCH, struct.pack(">I", self.expiry()), self.key(), opaque=self.opaque()), reads=True)

    def flush(self):
        extras = self.pick((2, b""), (1, struct.pack(">I", 0)))
        return Step(frame(self.random.choice((FLUSH, FLUSHQ)), extras, opaque=self.opaque()))

    def service(self):
        opaque = self.opaque()
        return Step(self.random.choice((
            frame(NOOP, opaque=opaque), frame(VERSION, opaque=opaque), frame(STAT, opaque=opaque),
            frame(STAT, key=b"settings", opaque=opaque), frame(STAT, key=b"reset", opaque=opaque),
            frame(STAT, key=b"bogus", opaque=opaque), frame(VERBOSITY, opaque=opaque),
            frame(SASL_LIST, opaque=opaque), frame(SASL_AUTH, key=b"PLAIN", value=b"\0user\0word", opaque=opaque),
            frame(SASL_STEP, key=b"PLAIN", value=b"x", opaque=opaque),
        )))

    def leave(self):
        return Step(frame(self.random.choice((QUIT, QUITQ)), opaque=self.opaque()), closes=True)

    def broken(self):
        """A malformed frame. The oracle closes the connection after most of them.

        An unknown opcode has no body here: the oracle loses the frame boundary after one that has (differences.md).
        """
        opaque, key, value = self.opaque(), self.key(), self.small_value()
        opcode = self.random.choice((*range(VERBOSITY), TOUCH, GAT, GATQ, GATK, GATKQ))
        right = struct.pack(">II", 0, 0)
        shape = self.random.randrange(10)
        if shape == 0:
            return Step(frame(GET, right, key, opaque=opaque), closes=True)
        if shape == 1:
            return Step(frame(self.random.choice((GET, GETQ, DELETE, TOUCH, INCREMENT, SET)), b"", b"", opaque=opaque), closes=True)
        if shape == 2:
            return Step(frame(self.random.choice((SET, ADD, REPLACE)), right[:4], key, value, opaque=opaque), closes=True)
        if shape == 3:
            return Step(frame(self.random.choice((GET, SET, DELETE, INCREMENT)), b"", b"k" * 251, value, opaque=opaque), closes=True)
        if shape == 4:
            return Step(frame(opcode, self.random.randbytes(self.random.choice((0, 1, 4, 8, 20, 21))), key, opaque=opaque), closes=True)
        if shape == 5:
            return Step(frame(self.random.randrange(0x25, 0x100), opaque=opaque))
        if shape == 6:
            return Step(frame(SET, right, key, value, opaque=opaque, datatype=self.random.randrange(1, 256)))
        if shape == 7:
            return Step(frame(SET, right, key, value, opaque=opaque, vbucket=self.random.randrange(1, 1024)))
        if shape == 8:
            return Step(frame(SET, right, key, value, magic=self.random.choice((0, 0x81, 0x82, 0xFF)), opaque=opaque), closes=True)
        return Step(frame(INCREMENT, struct.pack(">QQI", 1, 1, 0), key, value, opaque=opaque), closes=True)
