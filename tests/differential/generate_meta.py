"""Random meta commands: mg ms md ma mn me with the flags that memcached documents, and malformed ones."""

import base64

from .generate import APPEND_MOST, BAD_EXPTIMES, BAD_NUMBERS, BASE64_KEYS, LARGE_FITS, UNSIGNED_EXPTIMES, Source
from .script import Cas, Step

GET_FLAGS = (b"c", b"f", b"h", b"k", b"l", b"q", b"s", b"t", b"u", b"v")
KEY_MAX_IN_BASE64 = 186
UNKNOWN_FLAGS = (b"y", b"z", b"A", b"S", b"!", b"\x7f", b"9", b"_")


class MetaSource(Source):
    """`command()` returns one random step."""

    def command(self):
        maker = self.pick(
            (30, self.get), (30, self.set), (14, self.delete), (16, self.arithmetic), (3, self.nothing), (4, self.debug),
            (6, self.broken),
        )
        return maker()

    def key_and_flags(self):
        """A key, its form on the line, and the flags it needs."""
        self.is_refused = self.random.random() < 0.02
        plain = self.key()
        shape = self.random.random()
        if shape < 0.75 or len(plain) > KEY_MAX_IN_BASE64:
            return plain, plain, []
        raw = plain if shape < 0.87 else self.random.choice(BASE64_KEYS)
        return raw, base64.b64encode(raw), [b"b"]

    def line(self, verb, key, numbers, flags):
        """The pieces of one command line; flags are in random order, occasionally one of them twice."""
        flags = list(flags)
        if b"c" in flags and b"k" not in flags:
            # CAS values are compared per key.
            flags.append(b"k")
        self.random.shuffle(flags)
        if self.is_refused:
            flags.append(self.random.choice(flags) if flags and self.random.random() < 0.5 else (self.random.choice(UNKNOWN_FLAGS),))
        pieces = [b" ".join([verb, key, *numbers])]
        for flag in flags:
            pieces.append(b" ")
            pieces += flag if isinstance(flag, tuple) else (flag,)
        return pieces

    def some(self, *choices):
        """Includes each flag with its probability."""
        return [flag for probability, flag in choices if self.random.random() < probability]

    def opaque(self):
        length = self.pick((20, self.random.randint(1, 10)), (3, 31), (1, 0))
        return (b"O" + bytes(self.random.choice(b"abcdefABCDEF0123456789#") for _ in range(length)),)

    def ttl(self, letter):
        return (letter + self.exptime(),)

    def cas(self, key):
        return (b"C", self.pick(
            (8, Cas(key)), (2, Cas(key, 1)), (1, Cas(key, 2)),
            (1, b"0"), (1, b"1"), (1, b"18446744073709551615"), (1, b"abc"),
        ))

    def common(self):
        return self.some((0.35, b"k"), (0.35, self.opaque()), (0.2, b"q"), (0.05, (b"Phint",)), (0.05, (b"Lpath/x",)))

    def get(self):
        raw, key, flags = self.key_and_flags()
        flags += [f for f in GET_FLAGS if f not in (b"k", b"q") and self.random.random() < 0.35] + self.common()
        # With a time in the past the oracle counts below 0, and handles `R` in a way of its own.
        ttl = self.random.choice((b"0", b"100", b"1000", b"2592000", b"2000000000"))
        flags += self.some((0.12, self.ttl(b"N")), (0.25, (b"R" + self.random.choice((b"0", b"30", b"500", b"2000", b"3000000")),)), (0.12, (b"T" + ttl,)))
        known = self.some((0.1, self.cas(raw)))
        line = self.line(b"mg", key, [], flags + known)
        return Step((*line, b"\r\n"), reads=True, since=self.since(flags) or ("mg-C" if known else "meta-errors" if self.is_refused else ""))

    def set(self):
        raw, key, flags = self.key_and_flags()
        # If the line is refused, a later release takes the data for a line: it is small then.
        value = (self.small_value() if self.is_refused else self.value()).replace(b"\0", b"\1")
        mode = (b"M" + self.pick((10, self.random.choice((b"E", b"A", b"P", b"R", b"S"))), (3, self.random.choice((b"e", b"a", b"p", b"r", b"s"))), (1, b"X"), (1, b"SET"), (1, b"")),)
        flags += self.common()
        flags += self.some((0.35, b"c"), (0.25, self.cas(raw)), (0.3, (b"F" + self.flags(),)), (0.15, b"I"), (0.3, self.ttl(b"T")), (0.35, mode))
        if b"MA" in flags or b"Ma" in flags:
            value = value[:APPEND_MOST]
        # The servers differ on a value too large for a conditional store (differences.md).
        value = value[:LARGE_FITS]
        length = self.some((0.2, b"s"))
        line = self.line(b"ms", key, [b"%d" % len(value)], flags + length)
        since = "ms-s" if length else "meta-errors" if self.is_refused or (b"MSET",) in flags or (b"M",) in flags else ""
        return Step((*line, b"\r\n", value, b"\r\n"), since=self.since(flags) or since)

    def delete(self):
        raw, key, flags = self.key_and_flags()
        cas = self.some((0.3, self.cas(raw)))
        flags += self.common() + cas + self.some((0.45, b"I"), (0.25, self.ttl(b"T")))
        empties = self.some((0.1, b"x"))
        line = self.line(b"md", key, [], flags + empties)
        is_refused = self.is_refused or cas and cas[0][1] == b"abc" or any(f[:1] == (b"T" + t,) for f in flags if isinstance(f, tuple) for t in BAD_EXPTIMES)
        return Step((*line, b"\r\n"), since=self.since(flags) or ("md-x" if empties else "meta-errors" if is_refused else ""))

    def arithmetic(self):
        raw, key, flags = self.key_and_flags()
        mode = (b"M" + self.pick((10, self.random.choice((b"I", b"i", b"+", b"D", b"d", b"-"))), (1, b"X"), (1, b"")),)
        flags += self.common()
        vivifies = self.some((0.3, self.ttl(b"N")))
        initial, delta = self.number(), self.number()
        flags += vivifies + self.some(
            (0.2, self.cas(raw)), (0.3, (b"J" + initial,)), (0.4, (b"D" + delta,)),
            (0.5, mode), (0.3, b"t"), (0.3, b"c"), (0.5, b"v"),
        )
        line = self.line(b"ma", key, [], flags)
        is_new = (b"M",) in flags or any(n in BAD_NUMBERS for n in (initial, delta)) or self.is_refused
        since = "ma-q" if vivifies and b"q" in flags else "meta-errors" if is_new else ""
        return Step((*line, b"\r\n"), counts=True, since=self.since(flags) or since)

    def since(self, flags):
        return "times" if any(f[0][1:] in UNSIGNED_EXPTIMES and f[0][:1] in b"TNR" for f in flags if isinstance(f, tuple)) else ""

    def number(self):
        return self.pick((20, self.delta()), (1, self.random.choice(BAD_NUMBERS)))

    def nothing(self):
        return Step((b"mn\r\n",))

    def debug(self):
        raw, key, flags = self.key_and_flags()
        if flags:
            # Row `me-b` of differences.md.
            return Step((b"me %s b k\r\n" % key,))
        return Step((b"me %s\r\n" % key,))

    def broken(self):
        key, value = self.key(), self.small_value()
        size = len(value)
        line, short = self.random.choice((
            (b"mg", 0), (b"mg ", 0), (b"mg %s  v" % key, 0), (b"mg %s v " % key, 0), (b" mg %s v" % key, 0), (b"md", 0), (b"ma", 0), (b"me", 0),
            (b"ms", 0), (b"ms %s" % key, 0), (b"ms %s abc" % key, 0), (b"ms %s -1" % key, 0), (b"ms %s S5" % key, 0),
            (b"mg %s b v" % (b"!" * 8), 0), (b"mg %s b k" % b"YQ", 0), (b"mg %s b k" % b"YQ=", 0), (b"mg %s v" % (b"k" * 251), 0),
            (b"md %s" % (b"k" * 251), 0), (b"ma %s" % (b"k" * 251), 0), (b"me %s" % (b"k" * 251), 0), (b"mg %s b" % (b"QUFB" * 84), 0),
            (b"mg %s Tabc" % key, 0), (b"mg %s T" % key, 0), (b"mg %s N" % key, 0), (b"mg %s Rx v" % key, 0), (b"mg %s vk" % key, 0),
            (b"md %s C" % key, 0), (b"md %s v" % key, 0), (b"ma %s Dx" % key, 0), (b"ma %s D-1" % key, 0), (b"ma %s N0 Jx" % key, 0),
            (b"ms %s %d Tabc\r\n%s" % (key, size, value), 0), (b"ms %s %d Fabc\r\n%s" % (key, size, value), 0),
            (b"ms %s %d\r\n%s" % (b"k" * 251, size, value), 0),
            (b"ms %s %d b\r\n%s" % (b"!!", size, value), 0), (b"ms %s %d\r\n%s" % (key, size + 1, value), 1),
            (b"ms %s %d q\r\n%s" % (key, size + 5, value), 5), (b"ms %s %d\r\n%s" % (key, max(size - 1, 0), value), 0),
            (b"ms %s %dx\r\n%s" % (key, size, value), 0),
            (b"mg %s %s" % (key, b" ".join([b"v"] * 30)), 0), (b"MG %s v" % key, 0),
            (b"mg %s v k O1 t f h l s c u q T5 N5 R5 P L I" % key, 0), (b"ms %s %d F4294967296\r\n%s" % (key, size, value), 0),
            (b"ms %s %d T2147483648\r\n%s" % (key, size, value), 0), (b"ms %s %d T5\x00\r\n%s" % (key, size, value), 0),
        ))
        return Step((line, b"\r\n"), short=short, reads=True, since="meta-errors")
