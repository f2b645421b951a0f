"""Whole scripts: random rounds over several connections, and the timed ones that wait for the clock."""

import random

from .generate_binary import BinarySource
from .generate_meta import MetaSource
from .generate_text import TextSource
from .script import CONNECTIONS, TEXT, Round, Step

ROUNDS = 20
KINDS = ("text", "meta", "binary", "mixed")


def random_script(seed, kind, newest=True):
    """The script of this seed; the same seed always gives the same bytes. Without `newest`: for an oracle before 1.6.45."""
    chooser = random.Random(f"{seed}/{kind}")
    text, meta, binary = (maker(f"{seed}/{kind}/{maker.__name__}") for maker in (TextSource, MetaSource, BinarySource))
    rounds = []
    for _ in range(ROUNDS):
        connection = {"text": (0, 1), "meta": (0, 1), "binary": (2, 3), "mixed": tuple(CONNECTIONS)}[kind]
        connection = chooser.choice(connection)
        steps = []
        for _ in range(chooser.choice((1, 1, 2, 4, 8, 16, 30))):
            if CONNECTIONS[connection] != TEXT:
                source = binary
            elif kind == "text":
                source = text
            elif kind == "meta":
                source = meta if chooser.random() < 0.85 else text
            else:
                source = chooser.choice((text, meta))
            step = source.command()
            if step.since and not newest:
                continue
            if step.counts and any(earlier.reads for earlier in steps):
                break
            # Answers not sent yet may be lost when the oracle closes the connection.
            if (step.closes or step.first) and steps:
                break
            steps.append(step)
            if step.closes or step.short:
                break
        cut_seed = chooser.randrange(1 << 32) if chooser.random() < 0.5 else None
        if not steps:
            continue
        rounds.append(Round(connection, tuple(steps), cut_seed))
    return rounds


def _text(*lines, pause_s=0.0):
    return Round(0, tuple(Step((line.encode() + b"\r\n",)) for line in lines), pause_s=pause_s)


def _long(letter):
    """A key of a length no other script uses, so that the oracle has never used that piece of memory."""
    return letter * 230


FIXED = {
    "arithmetic-sets-the-time": [
        _text("set n 0 0 2\r\n10", "ma n T100 t v", "mg n t", "ma n t", "ma n T0 t"), _text("mg n t v"), _text("ma vivified N100 T500 t", "mg vivified t", "mg other N100 T500 t", "mg other t"),
    ],
    "opaque-over-32-bytes": [_text(f"mg missing v O{'x' * 33}", f"mg missing v O{'x' * 32}", f"ms m 1 O{'x' * 33}\r\na", f"md missing O{'x' * 33}")],
    "flush-with-delay-keeps-everything-until-then": [
        _text("set later 0 0 1\r\na", "flush_all 100", "get later", "flush_all 100 noreply", "flush_all", "get later"),
    ],
    "counter-edges": [
        _text(f"set {_long('x')} 0 0 20\r\n18446744073709551615", f"incr {_long('x')} 1", f"decr {_long('x')} 5", f"get {_long('x')}"),
        _text(f"set {_long('y')} 0 0 20\r\n18446744073709551614", f"incr {_long('y')} 18446744073709551615", f"decr {_long('y')} 18446744073709551615"),
        _text(f"set {_long('z')} 0 0 19\r\n9223372036854775807", f"incr {_long('z')} 1", f"incr {_long('z')} 9223372036854775807", f"incr {_long('z')} 1"),
        _text(f"ma {_long('w')} N0 J18446744073709551615 v", f"ma {_long('w')} v", f"ma {_long('w')} v D18446744073709551615", f"ma {_long('w')} MD v"),
    ],
    "large-numbers": [
        _text(f"set n 7 0 40000\r\n12 {'x' * 39997}", "incr n 1", "get n"), _text("decr n 100", "get n"), _text("incr n 18446744073709551615", "gets n"),
        _text(f"set n 7 0 32766\r\n9 {'x' * 32764}", "incr n 1", "append n 0 0 40\r\n" + "y" * 40, "incr n 1", "get n", "mg n s f t v"),
        _text(f"set n 7 0 33000\r\n{'x' * 33000}", "incr n 1", f"set n 0 0 33000\r\n{'1' * 33000}", "incr n 1", "get n"),
    ],
    "number-keeps-its-length": [
        _text("set n 0 0 2\r\n10", "decr n 1"), _text("get n"), _text("append n 0 0 1\r\n5"), _text("get n", ), _text("incr n 1"),
        _text("set n 0 0 1\r\n9", "incr n 1"), _text("get n"), _text("mg n s v"),
    ],
}

# Seconds matter here; every check is at least 1.5 seconds away from the time it is about.
TIMED = {
    "expiry": [
        _text("set short 1 3 1\r\na", "set long 2 60 1\r\nb", "set never 3 0 1\r\nc", "ms meta 1 T3\r\nd", "set past 0 -1 1\r\ne"),
        _text("gets short long never meta past", "mg short t v", "me past"),
        _text("get short long never meta past", "mg short t v", "add short 0 0 1\r\nz", "replace meta 0 0 1\r\nz", "incr meta 1", pause_s=5),
    ],
    "touch-and-gat": [
        _text("set a 1 3 1\r\na", "set b 1 3 1\r\nb", "set c 1 3 1\r\nc", "set d 1 3 1\r\nd", "set e 1 0 1\r\n5"),
        _text("touch a 60", "gat 60 b", "gats 0 c", "touch d 3", "mg e T3", "ma e T3"),
        _text("get a b c d e", "mg a t", "mg c t", pause_s=5),
    ],
    "flush-with-delay": [
        _text("set before 0 0 1\r\na", "flush_all 3", "get before", "set after 0 0 1\r\nb", "get before after"),
        _text("get before after", "set new 0 0 1\r\nc", pause_s=5.5),
        _text("get before after new"),
    ],
    "flush-cancelled": [
        _text("set one 0 0 1\r\na", "flush_all 3", "flush_all 100", "get one"),
        _text("get one", "set two 0 0 1\r\nb", "get two", pause_s=5.5),
    ],
    "vivify-and-recache": [
        _text("mg v N3 t v c", "mg v N3 v t", "ms w 2 T60\r\nhi", "mg w R100 v t", "mg w R100 v t", "mg w R10 v t"),
        _text("mg v v", "mg v N60 t v", "mg w v t h l", pause_s=5),
    ],
    "last-access": [
        _text("set la 0 0 1\r\na", "mg la h l t", "mg la h l u"),
        _text("mg la u l h", "mg la l h", pause_s=4),
    ],
    "counter-keeps-expiry": [
        _text("set n 0 3 2\r\n10", "incr n 5", "append n 0 0 1\r\n7", "decr n 1"),
        _text("mg n v t", "get n"),
        _text("get n", "ma n N3 J5 v t", "ma n v t", pause_s=5),
        _text("ma n v t", "ma n N0 J9 v t", pause_s=5),
    ],
}
