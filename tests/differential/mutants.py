"""Faulty servers: the self-test puts one of these in front of the subject and requires that the test detects it.

Each modifies the requests on their way to the subject, to imitate a server with that bug.
"""

import re

from .script import BINARY, TEXT


def _text(pattern, replacement):
    compiled = re.compile(pattern)
    return lambda stream, protocol: compiled.sub(replacement, stream) if protocol == TEXT else stream


def _opcode(wrong, right):
    """Frames of opcode `right` are executed as `wrong`; the walk stops at an incomplete frame."""

    def mutate(stream, protocol):
        if protocol != BINARY:
            return stream
        out = bytearray(stream)
        at = 0
        while at + 24 <= len(out) and out[at] == 0x80:
            if out[at + 1] == right:
                out[at + 1] = wrong
            at += 24 + int.from_bytes(out[at + 8 : at + 12], "big")
        return bytes(out)

    return mutate


MUTANTS = {
    "incr counts down": _text(rb"(?m)^incr ", b"decr "),
    "add overwrites": _text(rb"(?m)^add ", b"set "),
    "noreply is ignored": _text(rb" noreply\r\n", b"\r\n"),
    "gat does not touch": _text(rb"(?m)^gats [^ ]+ ", b"gats 0 "),
    "touch forgets": _text(rb"(?m)^touch ([^ ]+) \d+", rb"touch \1 0"),
    "prepend appends": _text(rb"(?m)^prepend ", b"append "),
    "meta delete forgets to invalidate": _text(rb"(?m)^(md [^\r]*) I\b", rb"\1"),
    "meta get wins no recache": _text(rb"(?m)^(mg [^\r]*) R\d+", rb"\1"),
    "meta flags are lost": _text(rb"(?m)^(ms [^\r]*) F\d+", rb"\1"),
    "binary ADD overwrites": _opcode(0x01, 0x02),
    "binary GETQ answers misses": _opcode(0x00, 0x09),
    "binary DECREMENT counts up": _opcode(0x05, 0x06),
    "binary quiet DELETE answers": _opcode(0x04, 0x14),
}
