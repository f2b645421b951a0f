"""The vocabulary all generators share: few keys, so that commands interact, and boundary values."""

import random

PLAIN_KEYS = (b"a", b"b", b"c", b"d", b"number", b"counter", b"key:with:colons", b"K" * 250, b"k" * 249, b"\xc3\xa9t\xc3\xa9", b"a/b?c=d%20")
RARE_KEYS = tuple(b"rare-%d" % n for n in range(40))
# No `\r\n` here: in a key it would split the oracle's answers into ambiguous pieces. Only the binary protocol and meta
# commands with `b` can use these keys.
BINARY_KEYS = (b"\x00\x01\x02", b"\xff\xfe", b"b" * 186, b"with space", b"line\nbreak", b" ", b"tab\tkey")
# memcached returns a key raw, spaces included, if the item was stored otherwise: keys with white space would be
# ambiguous then.
BASE64_KEYS = BINARY_KEYS[:3]

# No counter comes near 2^63 here: from there on memcached 1.6.18 looks for a minus sign beyond the item's end, and what
# it finds depends on what was there before. The fixed script "counter-edges" does that in fresh memory.
NUMBERS = (b"0", b"1", b"2", b"9", b"10", b"99", b"100", b"12345", b"4294967295", b"1000000000000")
BAD_NUMBERS = (b"abc", b"-1", b"1x", b"1.5", b"", b"18446744073709551616", b"99999999999999999999999", b"+1", b" 1", b"0x10", b"1e3")
NOT_NUMBERS = (b"1x", b" 1", b"1 ", b"-1", b"+5", b"1.5", b"18446744073709551616", b"abc", b"000000000000000000000001", b"007", b"")
# Far from any time that can be reached while a script runs; the timed scripts test the edges.
EXPTIMES = (
    *(b"0",) * 8, *(b"100",) * 4, *(b"1000",) * 2, b"2592000", b"2000000000", b"2147483647", b"-1", b"-100", b"2592001",
    # Negative ones as libmemcached writes them.
    b"2147483648", b"4294967295", b"4294967196",
)
UNSIGNED_EXPTIMES = EXPTIMES[-3:]
BAD_EXPTIMES = (b"abc", b"1x", b"1.5", b"--1", b"1e3")
FLAGS = (b"0", b"0", b"0", b"1", b"42", b"65535", b"65536", b"4294967295")
BAD_FLAGS = (b"4294967296", b"-1", b"18446744073709551616", b"1x", b"0x1")

# Enough to turn a padded counter ("9 ") into a large value that begins with a number, and to stay below the longest value.
APPEND_MOST = 40_000
LARGE_FITS = 1_000_000
LARGE_TOO_BIG = 1_200_000


class Source:
    """A stream of random choices."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, *weighted):
        weights, choices = zip(*weighted)
        return self.random.choices(choices, weights)[0]

    def key(self):
        return self.pick((20, self.random.choice(PLAIN_KEYS[:5])), (4, self.random.choice(PLAIN_KEYS)), (1, self.random.choice(RARE_KEYS)))

    def flags(self):
        return self.random.choice(FLAGS)

    def item(self):
        """Flags, expiration time and value of a store, and its row. If the line will be refused, the server takes the data for a line: it is
        small then."""
        flags = self.pick((60, self.flags()), (1, self.random.choice(BAD_FLAGS)))
        exptime = self.exptime()
        if flags in BAD_FLAGS or exptime in BAD_EXPTIMES:
            return flags, exptime, self.small_value(), "refused-store"
        return flags, exptime, self.value(), ""

    def exptime(self):
        return self.pick((40, self.random.choice(EXPTIMES)), (1, self.random.choice(BAD_EXPTIMES)))

    def ttl_since(self, exptime):
        """The row for an expiration time of anything but a store."""
        return "times" if exptime in UNSIGNED_EXPTIMES else ""

    def delta(self):
        return self.random.choice(NUMBERS)

    def small_value(self):
        value = self.random.randbytes(self.random.randint(0, 40))
        if value and not value.strip():
            # For a counter of blanks the oracle reads on into stale memory.
            return b"#"
        return value.replace(b"\0", b"\1") if value[:1] in b"0123456789 \t\n\v\f\r+" else value

    def value(self):
        shape = self.random.random()
        if shape < 0.4:
            return self.random.choice(NUMBERS)
        if shape < 0.5:
            return self.random.choice(NOT_NUMBERS)
        if shape < 0.9:
            return self.small_value()
        if shape < 0.97:
            return b"#" + self.random.randbytes(self.random.randint(40, 3000))
        if shape < 0.995:
            return self._fill(self.random.choice((4096, 16_384, 32_767, 32_768, 32_769, 50_000, 100_000)))
        return self._fill(self.random.choice((LARGE_FITS, LARGE_TOO_BIG, 600_000)))

    def _fill(self, size):
        """A big value without line ends: if its command is refused, the server takes it for one line, not for
        thousands."""
        block = bytes(self.random.choice(b"abcdefghijklmnopqrstuvwxyz0123456789 ") for _ in range(64))
        return b"#" + (block * (size // 64 + 1))[: size - 1]
