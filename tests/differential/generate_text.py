"""Random commands of the classic text protocol, well-formed and malformed."""

from .generate import APPEND_MOST, BAD_EXPTIMES, BAD_NUMBERS, Source
from .script import Cas, Step

STORES = (b"set", b"add", b"replace", b"append", b"prepend")
STATS = (b"stats", b"stats items", b"stats slabs", b"stats settings", b"stats sizes", b"stats reset")


class TextSource(Source):
    """`command()` returns one random step."""

    def command(self):
        maker = self.pick(
            (26, self.store), (22, self.get), (6, self.get_and_touch), (8, self.cas), (8, self.delete), (12, self.arithmetic),
            (6, self.touch), (2, self.flush), (3, self.service), (6, self.broken), (1, self.leave),
        )
        return maker()

    def end(self):
        return self.pick((30, b"\r\n"), (1, b"\n"))

    def noreply(self):
        return self.pick((4, b""), (1, b" noreply"))

    def store(self):
        flags, exptime, value, since = self.item()
        verb = self.random.choice(STORES)
        if verb in (b"append", b"prepend"):
            value = value.replace(b"\0", b"\1")
        if verb == b"append":
            value = value[:APPEND_MOST]
        head = b"%s %s %s %s %d" % (verb, self.key(), flags, exptime, len(value))
        return Step((head, self.noreply(), b"\r\n", value, b"\r\n"), since=since)

    def cas(self):
        key = self.key()
        flags, exptime, value, since = self.item()
        head = b"cas %s %s %s %d " % (key, flags, exptime, len(value))
        return Step((head, self.cas_token(key), self.noreply(), b"\r\n", value, b"\r\n"), since=since)

    def get(self):
        verb = self.random.choice((b"get", b"gets"))
        count = self.pick((8, 1), (4, self.random.randint(2, 6)), (1, 40))
        return Step((b" ".join([verb, *(self.key() for _ in range(count))]), self.end()), reads=True)

    def get_and_touch(self):
        verb = self.random.choice((b"gat", b"gats"))
        count = self.pick((4, 1), (1, self.random.randint(2, 5)))
        exptime = self.exptime()
        line = b" ".join([verb, exptime, *(self.key() for _ in range(count))])
        return Step((line, self.end()), reads=True, since=self.ttl_since(exptime))

    def delete(self):
        zero = self.pick((9, b""), (1, b" 0"))
        return Step((b"delete ", self.key(), zero, self.noreply(), self.end()))

    def arithmetic(self):
        verb = self.random.choice((b"incr", b"decr"))
        return Step((verb, b" ", self.key(), b" ", self.delta(), self.noreply(), self.end()), counts=True)

    def touch(self):
        exptime = self.exptime()
        return Step((b"touch ", self.key(), b" ", exptime, self.noreply(), self.end()), since=self.ttl_since(exptime))

    def flush(self):
        delay = self.pick((8, b""), (4, b" 0"), (1, b" -1"), (1, b" 4294967295"))
        return Step((b"flush_all", delay, self.noreply(), self.end()), since=self.ttl_since(delay.strip()))

    def service(self):
        line = self.pick(
            (3, b"version"), (2, b"verbosity 1"), (1, b"verbosity 0 noreply"), (1, b"verbosity"),
            (3, self.random.choice(STATS)), (1, b"cache_memlimit 256"), (1, b"cache_memlimit 256 noreply"),
            (1, b"cache_memlimit"), (1, b"cache_memlimit abc"), (1, b"shutdown"), (1, b"mn"), (1, b"flush_all abc"),
        )
        end = b"\r\n" if line == b"mn" else self.end()
        return Step((line, end), since={b"verbosity": "words", b"shutdown": "shutdown"}.get(line, ""))

    def leave(self):
        return Step((b"quit", self.end()), closes=True)

    def broken(self):
        """A malformed command; the server still knows the frame boundary."""
        return self.random.choice((
            self.broken_line, self.broken_store, self.broken_number, self.broken_length, self.broken_key, self.bad_chunk,
        ))()

    def broken_line(self):
        key = self.key()
        if self.random.random() < 0.5:
            line = self.random.choice((
                b"GET %s" % key, b"Set %s 0 0 0" % key, b"getx %s" % key, b"ge %s" % key, b"bogus", b"bogus %s 1 2 3" % key,
                b"incr %s 1 2" % key, b"touch %s 0 0" % key, b"get  %s" % key, b"get %s " % key, b"get\t%s" % key,
                b"incr  %s  1" % key, b"delete %s " % key, b"\x01\x02\x03", b"version x", b"mn x", b"mn q", b"flush_all 0 0",
                b"quit now", b"stats bogus", b"stats reset x", b"xg %s" % key, b"mx %s" % key, b"   ",
            ))
            counts = line.startswith(b"incr")
            return Step((line, self.end()), closes=line.startswith(b"quit"), reads=line.startswith(b"get"), counts=counts)
        line = self.random.choice((
            b"", b" ", b"a", b"m", b"get", b"gets", b"gat", b"gat 0", b"gats 0", b"gat x", b"set", b"set %s" % key, b"set %s 0 0" % key,
            b"cas %s 0 0" % key, b"delete", b"incr", b"incr %s" % key, b"decr %s" % key, b"touch", b"touch %s" % key,
            b"delete %s 5" % key, b"delete %s 0 0" % key, b"delete %s noreply x" % key, b" get %s" % key, b"bget %s" % key,
            b"incr %s 1 2 3" % key, b"incr %s 1 x noreply" % key, b"touch %s 0 x noreply" % key, b"touch %s 0 1 2 3" % key,
            b"flush_all 0 1 2", b"flush_all noreply noreply", b"verbosity a b c d e", b"verbosity 1 2 3", b"delete noreply",
            b"stats sizes_enable", b"stats proxy", b"cache_memlimit 64 2 3",
            bytes(self.random.choice(b"abcdefgm \x7f!") for _ in range(self.random.randint(1, 30))),
        ))
        return Step((line, b"\r\n"), reads=True, counts=line.startswith(b"incr"), since="words")

    def broken_store(self):
        key, value = self.key(), self.small_value()
        head = self.random.choice((
            b"set %s abc 0 %d", b"set %s 0 abc %d", b"set %s 0 0 %d extra",
            b"set %s 0 0 %d norepl", b"set %s 0 0 %d noreply extra", b"add %s 0 0 %dx",
            b"replace  %s 0 0 %d", b"append %s 0  0 %d ", b"prepend %s 1.5 0 %d", b"set %s 0 1e3 %d", b"set %s +1 0 %d",
            b"set %s 0x10 0 %d", b"set %s 007 0 %d", b"cas %s 0 0 %d abc", b"cas %s 0 0 %d -1", b"cas %s 0 0 %d",
            b"cas %s 0 0 %d 1 2 3", b"cas %s 0 0 %d noreply", b"cas %s 0 0 %d +1", b"set %s 4294967296 0 %d",
            b"set %s 4294967301 0 %d", b"set %s 0 4294967396 %d", b"set %s 0 99999999999 %d", b"set %s 0 0\x001 %d",
            b"set %s -1 0 %d noreply", b"set %s 0 0 +%d", b"set %s 0 0 %d x noreply", b"set %s 0 0 0000000%d",
        )) % (key, len(value))
        return Step((head, b"\r\n", value, b"\r\n"), since="refused-store")

    def broken_number(self):
        key, number = self.key(), self.random.choice((*BAD_NUMBERS, b"1\x00", b"\t1", b"007", b"0000000000000000000005", b"000000000005", b"-"))
        line = self.random.choice((
            b"incr %s %s", b"decr %s %s", b"incr %s %s noreply", b"touch %s %s", b"touch %s %s noreply",
        )) % (key, number)
        return Step((line, b"\r\n"), counts=line.startswith((b"incr", b"decr")), reads=True, since="digits")

    def broken_length(self):
        key = self.key()
        length = self.random.choice((b"-1", b"-100", b"abc", b"", b"1x", b"1.0", b"99999999999999999999", b"4294967297", b"+1", b"2147483646"))
        return Step((b"set %s 0 0 %s\r\n" % (key, length), self.pick((1, b""), (1, b"x\r\n"))), since="refused-store")

    def broken_key(self):
        key = self.random.choice((b"k" * 251, b"k" * 300, b"k" * 1000))
        value = self.small_value()
        shape = self.random.randrange(9)
        if shape == 0:
            return Step((b"set %s 0 0 %d%s\r\n" % (key, len(value), self.noreply()), value, b"\r\n"), since="refused-store")
        if shape == 1:
            return Step((b"get never-stored %s %s\r\n" % (key, self.key()),), reads=True, first=True, since="long-key")
        line = (b"get %s", b"delete %s", b"incr %s 1", b"touch %s 0", b"gat 0 %s", b"gets %s", b"delete %s noreply")[shape - 2] % key
        return Step((line, b"\r\n"), first=line.startswith(b"g"), since="long-key" if line.startswith(b"g") else "")

    def bad_chunk(self):
        """The data block is shorter or longer than announced."""
        key, value = self.key(), self.small_value()
        off = self.random.choice((-3, -2, -1, 1, 2, 3, 30))
        length = max(len(value) + off, 0)
        return Step((b"set %s 0 0 %d%s\r\n" % (key, length, self.noreply()), value, b"\r\n"), short=max(off, 0), since="words")

    def cas_token(self, key):
        return self.pick((7, Cas(key)), (2, Cas(key, 1)), (1, Cas(key, 2)), (1, b"0"), (1, b"1"), (1, b"18446744073709551615"))
