"""What is sent: a script of rounds on several connections.

    Script ── Round (connection, pieces of the byte stream) ── Step (one command) ── bytes | Cas

A round is sent in one go (whole or split at random places), ends with a sentinel that the server must answer, and its
answers are read before the next round starts. So the order across connections is fixed, and within a round commands are
pipelined.

A command with a CAS cannot be the same bytes for both servers. `Cas(key, back)` stands for the newest CAS that this
server has returned for the key, or the one `back` before it; a CAS never returned is `UNKNOWN_CAS`. (Never that of
another key: Dormouse's CAS values are unique only within a vBucket, so the CAS of another key may match by accident.)
"""

import dataclasses
import random

UNKNOWN_CAS = 0x7000_0000_0000_0000

TEXT = "text"
BINARY = "binary"

# Connections of a script: two text, two binary, so that both protocols see each other's items.
CONNECTIONS = {0: TEXT, 1: TEXT, 2: BINARY, 3: BINARY}


@dataclasses.dataclass(frozen=True)
class Cas:
    """A CAS value returned by the respective server, in the protocol's encoding. `known`: {key: [values]}."""

    key: bytes
    back: int = 0

    def write(self, known, protocol):
        values = known.get(self.key, ())
        value = values[-1 - self.back] if self.back < len(values) else UNKNOWN_CAS
        return value.to_bytes(8, "big") if protocol == BINARY else b"%d" % value


@dataclasses.dataclass(frozen=True)
class Step:
    """One command.

    `short`     bytes that the server may still expect after it
    `closes`    it may end the connection
    `reads`     the answer holds an item until it is sent
    `counts`    an increment or decrement: it must not follow one that reads in the same round, because
                the oracle keeps the old length of a number (padded with spaces) only while the item is not held
    `first`     it must not follow anything: the oracle discards answers that were not sent yet
    `since`     memcached answers it differently before 1.6.45: the row of differences.md that says how
    """

    pieces: tuple
    short: int = 0
    closes: bool = False
    reads: bool = False
    counts: bool = False
    first: bool = False
    since: str = ""

    def bytes_for(self, known, protocol):
        return b"".join(p.write(known, protocol) if isinstance(p, Cas) else p for p in self.pieces)

    def show(self):
        return "".join(f"<{p}>" if isinstance(p, Cas) else show_bytes(p) for p in self.pieces)


@dataclasses.dataclass(frozen=True)
class Round:
    """Commands pipelined on one connection; `cut_seed` determines where the stream is split; `pause_s` is waited before
    it."""

    connection: int
    steps: tuple
    cut_seed: int | None = None
    pause_s: float = 0.0

    @property
    def protocol(self):
        return CONNECTIONS[self.connection]

    def cut(self, stream):
        if self.cut_seed is None or len(stream) < 2:
            return [stream]
        chooser = random.Random(self.cut_seed)
        count = min(chooser.choice((1, 1, 2, 3, 6)), len(stream) - 1)
        places = sorted(chooser.sample(range(1, len(stream)), count))
        return [stream[a:b] for a, b in zip([0, *places], [*places, len(stream)])]


def show_bytes(data, limit=160):
    text = repr(data)[2:-1] if len(data) <= limit else f"{repr(data[:60])[2:-1]}…({len(data)} bytes)"
    return text


def show_script(rounds):
    lines = []
    for number, one in enumerate(rounds):
        cut = "" if one.cut_seed is None else f", cut {one.cut_seed}"
        pause = f", after {one.pause_s} s" if one.pause_s else ""
        lines.append(f"round {number}: connection {one.connection} ({one.protocol}{cut}{pause})")
        lines += [f"    {step.show()}" for step in one.steps]
    return "\n".join(lines)
