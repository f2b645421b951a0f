"""What comes back: the byte stream split into answers, and the comparison of two such lists.

    bytes ── split_text / split_binary ── [Answer(fields)] ── compare(oracle, subject, CasBook)

A field is plain bytes (must be equal), or one of
    CasField   renumbered: on one key, the oracle's n-th distinct CAS must always correspond to one value of the
               subject, and a higher one of the oracle to a higher one of the subject
    NearField  seconds that may differ by `NEAR_S`, because the two servers' clocks tick at different moments
    AnyField   not compared; each use has a row in differences.md
"""

import base64
import binascii
import dataclasses
import struct

NEAR_S = 2

MAGIC_RESPONSE = 0x81
STAT = 0x10
VERSION = 0x0B
CAS_LINES = (b"HD", b"VA", b"EN", b"NS", b"EX", b"NF")


@dataclasses.dataclass(frozen=True)
class CasField:
    value: int
    key: bytes | None


@dataclasses.dataclass(frozen=True)
class NearField:
    name: bytes
    value: int

    def seconds(self):
        """Rows `me-exp` and `negative-ttl` of differences.md: the oracle counts `exp` down, and wraps below 0."""
        if self.name == b"exp":
            return abs(self.value)
        return 0 if self.value >= 1 << 31 else self.value


@dataclasses.dataclass(frozen=True)
class AnyField:
    row: str


@dataclasses.dataclass(frozen=True)
class Answer:
    fields: tuple

    def show(self):
        parts = []
        for field in self.fields:
            if isinstance(field, bytes):
                text = repr(field)[2:-1]
                parts.append(text if len(text) < 200 else f"{text[:100]}…({len(field)} bytes)")
            elif isinstance(field, CasField):
                parts.append(f"cas={field.value}")
            elif isinstance(field, NearField):
                parts.append(f"{field.name.decode()}~{field.value}")
            else:
                parts.append(f"<{field.row}>")
        return " ".join(parts)


def split_text(stream):
    """Splits a text stream into answers. Anything unparsable is returned as is, and compared as bytes."""
    answers = []
    at = 0
    while at < len(stream):
        end = stream.find(b"\r\n", at)
        if end < 0:
            answers.append(Answer((b"unfinished", stream[at:])))
            break
        line = stream[at:end]
        at = end + 2
        words = line.split(b" ")
        head = words[0]
        if head == b"VALUE" and len(words) in (4, 5) and words[3].isdigit():
            size = int(words[3])
            fields = [b" ".join(words[:4])]
            if len(words) == 5:
                fields.append(CasField(_number(words[4]), words[1]))
            fields.append(stream[at : at + size + 2])
            at += size + 2
            answers.append(Answer(tuple(fields)))
        elif head == b"VA" and len(words) >= 2 and words[1].isdigit():
            size = int(words[1])
            fields = _meta_fields(words)
            fields.append(stream[at : at + size + 2])
            at += size + 2
            answers.append(Answer(tuple(fields)))
        elif head in CAS_LINES:
            answers.append(Answer(tuple(_meta_fields(words))))
        elif head == b"ME" and len(words) > 2:
            answers.append(Answer(tuple(_me_fields(words))))
        elif head == b"VERSION":
            answers.append(Answer((b"VERSION", AnyField("version"))))
        elif head == b"STAT":
            # Row `stats` of differences.md.
            continue
        else:
            answers.append(Answer((line,)))
    return answers


def _number(word):
    return int(word) if word.isdigit() else -1


def _meta_fields(words):
    start = 2 if words[0] == b"VA" else 1
    fields = [b" ".join(words[:start])]
    encoded = b"b" in words[start:]
    key = next((_plain_key(w[1:], encoded) for w in words[start:] if w[:1] == b"k"), None)
    for word in words[start:]:
        letter, rest = word[:1], word[1:]
        if letter == b"k":
            fields.append(b"k" + _plain_key(rest, encoded))
        elif word == b"b":
            continue
        elif letter == b"c" and rest.isdigit():
            fields.append(b"c")
            fields.append(CasField(int(rest), key))
        elif letter in (b"t", b"l") and rest.isdigit():
            fields.append(NearField(letter, int(rest)))
        else:
            fields.append(word)
    return fields


def _plain_key(key, encoded):
    """The decoded key: which server answers in base64, and when, is row `key-encoding` of differences.md."""
    if encoded:
        try:
            return base64.b64decode(key, validate=True)
        except binascii.Error:
            pass
    return key


def _me_fields(words):
    fields = [b"ME", AnyField("key-encoding")]
    for word in words[2:]:
        name, _, value = word.partition(b"=")
        if name == b"cas" and value.isdigit():
            fields.append(CasField(int(value), words[1]))
        elif name in (b"exp", b"la") and value.removeprefix(b"-").isdigit():
            fields.append(NearField(name, int(value)))
        elif name in (b"cls", b"size"):
            fields += [name, AnyField("me-class")]
        else:
            fields.append(word)
    return fields


def split_binary(stream, keys):
    """Splits a binary stream into answers: opcode, status, lengths, opaque, CAS, extras, key and value.

    `keys` maps the opaque of a request to its key.
    """
    answers = []
    at = 0
    while at < len(stream):
        if len(stream) - at < 24 or stream[at] != MAGIC_RESPONSE:
            answers.append(Answer((b"unfinished", stream[at:])))
            break
        magic, opcode, key_len, extras_len, datatype, status, body_len, opaque, cas = struct.unpack_from(
            ">BBHBBHIIQ", stream, at
        )
        body = stream[at + 24 : at + 24 + body_len]
        at += 24 + body_len
        if len(body) < body_len:
            answers.append(Answer((b"unfinished", body)))
            break
        head = b"opcode=%02x status=%04x opaque=%08x datatype=%d" % (opcode, status, opaque, datatype)
        if opcode == STAT and status == 0 and key_len:
            # Row `stats` of differences.md.
            continue
        if opcode == VERSION and status == 0:
            answers.append(Answer((head, AnyField("version"))))
            continue
        extras, key, value = body[:extras_len], body[extras_len : extras_len + key_len], body[extras_len + key_len :]
        fields = [head, CasField(cas, keys.get(opaque)) if cas else b"cas=0", extras, key, value]
        answers.append(Answer(tuple(fields)))
    return answers


class CasBook:
    """Maps each CAS of the oracle to one of the subject, per key, in order of first appearance."""

    def __init__(self):
        self.oracle = {}
        self.subject = {}

    def meet(self, oracle, subject):
        """Records one pair; returns the contradiction, or None."""
        if oracle.value == 0:
            return None if subject.value == 0 else f"CAS 0 in the oracle, {subject.value} in the subject"
        left = self.oracle.setdefault(oracle.key, [])
        right = self.subject.setdefault(oracle.key, [])
        if oracle.value in left:
            met = right[left.index(oracle.value)]
            if met != subject.value:
                return f"the CAS of {oracle.key!r} that was {met} is now {subject.value} (unchanged in the oracle)"
            return None
        for earlier, met in zip(left, right):
            if (earlier < oracle.value) != (met < subject.value):
                return f"on key {oracle.key!r} the oracle's CAS rose or fell, the subject's did not: {met} -> {subject.value}"
        left.append(oracle.value)
        right.append(subject.value)
        return None


def compare(oracle, subject, book):
    """The first difference between two lists of answers as one line, or None."""
    for position, (left, right) in enumerate(zip(oracle, subject)):
        problem = _compare_one(left, right, book)
        if problem:
            return f"answer {position}: {problem}\n      oracle:  {left.show()}\n      subject: {right.show()}"
    if len(oracle) != len(subject):
        longer, who = (oracle, "only the oracle") if len(oracle) > len(subject) else (subject, "only the subject")
        extra = longer[min(len(oracle), len(subject))]
        return f"{len(oracle)} against {len(subject)} answers; {who} says: {extra.show()}"
    return None


def _compare_one(left, right, book):
    if len(left.fields) != len(right.fields):
        return "different"
    for a, b in zip(left.fields, right.fields):
        if isinstance(a, CasField) and isinstance(b, CasField):
            problem = book.meet(a, b)
            if problem:
                return problem
        elif isinstance(a, NearField) and isinstance(b, NearField):
            if a.name != b.name or abs(a.seconds() - b.seconds()) > NEAR_S:
                return f"{a.name.decode()} is {a.value} against {b.value}"
        elif a != b:
            return "different"
    return None
