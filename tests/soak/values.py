"""Documents whose content can be checked without storing it: everything is derived from key and length.

    value = md5(key, length) repeated to the length        flags = crc32(key)

A value that is truncated, mixed with another, or stored under the wrong key does not match.
"""

import hashlib
import zlib

MEBIBYTE = 1024 * 1024


def pattern(key, length):
    block = hashlib.md5(key + b"/%d" % length).digest()
    if length > 65536:
        # Blocks of 64 KiB make the repetition cheap; the pattern is the same.
        block *= 4096
    return (block * (length // len(block) + 1))[:length]


def flags(key):
    return zlib.crc32(key)


def problem(key, value, seen_flags):
    """Why this is not what was stored under the key, or None."""
    if seen_flags != flags(key):
        return f"{key!r}: flags {seen_flags}, not {flags(key)}"
    if value != pattern(key, len(value)):
        return f"{key!r}: {len(value)} bytes that were never written"
    return None


def size(chooser, largest):
    """Mostly small, occasionally very large."""
    shape = chooser.random()
    if shape < 0.80:
        wanted = chooser.randint(1, 1000)
    elif shape < 0.95:
        wanted = chooser.randint(1000, 32 * 1024)
    elif shape < 0.992:
        wanted = chooser.randint(32 * 1024, MEBIBYTE)
    else:
        wanted = chooser.randint(MEBIBYTE, 20 * MEBIBYTE)
    return min(wanted, largest)
