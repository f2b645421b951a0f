"""What comes back: the byte stream cut into answers, and the comparison of two such lists.

    bytes ── split_text / split_binary ── [Answer(fields)] ── compare(oracle, subject, CasBook)

A field is plain bytes (must be equal), or one of
    CasField   renumbered: the oracle's n-th distinct CAS must always meet the same value of the subject,
               and on one key a later CAS of the oracle must meet a higher one of the subject
    NearField  seconds that may differ by `NEAR_S`, because the two servers' clocks tick at different moments
    AnyField   not compared; each use has its row in differences.md
"""

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
    key: bytes | None = None


@dataclasses.dataclass(frozen=True)
class NearField:
    name: bytes
    value: int


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
    """Cuts a text stream into answers. What cannot be understood is returned as it is: it is compared as bytes."""
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
            if not (answers and answers[-1].fields[0] == b"STAT"):
                answers.append(Answer((b"STAT", AnyField("stats"))))
        else:
            answers.append(Answer((line,)))
    return answers


def _number(word):
    return int(word) if word.isdigit() else -1


def _meta_fields(words):
    start = 2 if words[0] == b"VA" else 1
    fields = [b" ".join(words[:start])]
    key = next((w[1:] for w in words[start:] if w[:1] == b"k"), None)
    for word in words[start:]:
        letter, rest = word[:1], word[1:]
        if letter == b"c" and rest.isdigit():
            fields.append(b"c")
            fields.append(CasField(int(rest), key))
        elif letter in (b"t", b"l") and rest.isdigit():
            fields.append(NearField(letter, int(rest)))
        else:
            fields.append(word)
    return fields


def _me_fields(words):
    fields = [b" ".join(words[:2])]
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


def split_binary(stream):
    """Cuts a binary stream into answers: opcode, status, lengths, opaque, CAS, extras, key and value."""
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
            if not (answers and answers[-1].fields[0] == b"stat"):
                answers.append(Answer((b"stat", AnyField("stats"))))
            continue
        if opcode == VERSION and status == 0:
            answers.append(Answer((head, AnyField("version"))))
            continue
        extras, key, value = body[:extras_len], body[extras_len : extras_len + key_len], body[extras_len + key_len :]
        fields = [head, CasField(cas) if cas else b"cas=0", extras, key, value]
        answers.append(Answer(tuple(fields)))
    return answers


class CasBook:
    """Which CAS of the oracle stands beside which CAS of the subject."""

    def __init__(self):
        self.oracle = []
        self.subject = []
        self._index = {}
        self._by_key = {}

    def meet(self, oracle, subject):
        """Notes one pair; returns why it cannot be, or None."""
        known = self._index.get(oracle.value)
        if known is not None and self.subject[known] != subject.value:
            return f"the CAS that was {self.subject[known]} is now {subject.value} (unchanged in the oracle)"
        if known is None:
            self._index[oracle.value] = len(self.oracle)
            self.oracle.append(oracle.value)
            self.subject.append(subject.value)
        if oracle.key is not None:
            pairs = self._by_key.setdefault(oracle.key, {})
            for earlier, met in pairs.items():
                if (earlier < oracle.value) != (met < subject.value) and earlier != oracle.value:
                    return f"on key {oracle.key!r} the oracle's CAS rose or fell, the subject's did not: {met} -> {subject.value}"
            pairs[oracle.value] = subject.value
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
            if a.name != b.name or abs(a.value - b.value) > NEAR_S:
                return f"{a.name.decode()} is {a.value} against {b.value}"
        elif a != b:
            return "different"
    return None
