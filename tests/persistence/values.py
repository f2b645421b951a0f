"""Values that identify their writer and show whether they are intact: a chain of chunks, each with a name, length and
checksum.

    chunk   length 4 | CRC-32 of name and filler 4 | name | "|" | filler

An append adds a chunk, so a value names all its writes in order.
"""

import struct
import zlib


class Torn(Exception):
    """Bytes that were never written as a whole."""


def chunk(name, bytes_about=0):
    body = name.encode() + b"|"
    if bytes_about > len(body):
        body += (body * (bytes_about // len(body) + 1))[: bytes_about - len(body)]
    return struct.pack(">II", len(body), zlib.crc32(body)) + body


def names(value):
    """The names of its chunks; raises Torn."""
    found, at = [], 0
    while at < len(value):
        head = value[at : at + 8]
        if len(head) < 8:
            raise Torn(f"{len(head)} bytes of a chunk's head after {found}")
        length, checksum = struct.unpack(">II", head)
        body = value[at + 8 : at + 8 + length]
        if len(body) < length or zlib.crc32(body) != checksum:
            raise Torn(f"a chunk of {length} bytes, {len(body)} there, not whole, after {found}")
        found.append(body.split(b"|", 1)[0].decode())
        at += 8 + length
    return found


def shown(content):
    """For messages."""
    if content is None:
        return "absent"
    try:
        return f"{len(content)} bytes {content.decode() if content.isdigit() else '+'.join(names(content)[-3:])}"
    except Torn as torn:
        return f"torn: {torn}"
