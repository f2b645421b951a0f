"""Snappy's raw format, from its description: enough to write some blocks and to read any."""


def _varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def compress(data):
    """Emits literals, and a copy wherever a byte repeats: small for long runs, valid for any data."""
    out, at, start = bytearray(_varint(len(data))), 0, 0

    def literal(part):
        for begin in range(0, len(part), 256):
            piece = part[begin : begin + 256]
            out.extend([60 << 2, len(piece) - 1])
            out.extend(piece)

    while at < len(data):
        run = 1
        while at + run < len(data) and data[at + run] == data[at]:
            run += 1
        if run > 8:
            literal(data[start : at + 1])
            left = run - 1
            while left:
                count = min(left, 64)
                out.extend([(count - 1) << 2 | 2, 1, 0])
                left -= count
            start = at + run
        at += run
    literal(data[start:])
    return bytes(out)


def inflate(block):
    length = shift = at = 0
    while True:
        byte = block[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    out = bytearray()
    while at < len(block):
        tag = block[at]
        at += 1
        if tag & 3 == 0:
            count = tag >> 2
            if count >= 60:
                size = count - 59
                count = int.from_bytes(block[at : at + size], "little")
                at += size
            out += block[at : at + count + 1]
            at += count + 1
            continue
        size = (0, 1, 2, 4)[tag & 3]
        offset = int.from_bytes(block[at : at + size], "little")
        count = (tag >> 2) + 1
        if size == 1:
            offset |= tag >> 5 << 8
            count = (tag >> 2 & 7) + 4
        at += size
        for _ in range(count):
            out.append(out[-offset])
    assert len(out) == length, f"{len(out)} bytes, announced {length}"
    return bytes(out)
