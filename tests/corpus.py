"""The corpus the fuzz targets start from: a few hundred small inputs, the same ones every time.

    python -m tests.corpus            writes fuzz/corpus/TARGET/NAME for the targets that take a protocol's bytes

Commands come from the generators of the differential test: what is interesting to compare is interesting to fuzz.
"""

import hashlib
import pathlib
import struct
from random import Random

from . import dcp
from .differential.scripts import random_script
from .frames import request

CORPUS = pathlib.Path(__file__).resolve().parent.parent / "fuzz" / "corpus"
SEEDS = 6
BYTES_MAX = 2048

# The kinds of script that a target's input is made of.
TARGETS = {"text": ("text", "meta"), "meta": ("meta",), "binary": ("binary",)}

SASL = (
    (b"\0user\0password", b""),
    (b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL", b"c=biws,r=fyko+d2lbbFgONRv9qkxdawLserver,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="),
    (b"n,a=other,n=us=2Cer,r= spaces in it ", b"c=biws,r=server,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="),
    (b"y,,n=,r=", b"c=,r=,p="),
)


# The first byte is the size of the pieces.
JSON = (
    b'{"method":"transact","params":["T",{"op":"insert","table":"A","row":{"s":"\\u00e9\\n","n":-1.5e3}}],"id":0}',
    b'{"id":0,"result":[{"uuid":["uuid","00112233-4455-6677-8899-aabbccddeeff"]},{},null],"error":null}',
    b'{"method":"echo","params":["\\ud83d\\ude00",true,false,null,9223372036854775807,0.1,1e300],"id":"echo"} []',
    b'{"method":"monitor","params":["T",null,{"A":[{"columns":["s"],"select":{"initial":false}}]}],"id":[1,{}]}\n{"a":[[[',
    b'[1e400]', b'["\\ud83d\\u0041"]', b'[tru', b'{"a":01}',
)

TYPES = (
    '"integer"', '"real"', '"boolean"', '"string"', '"uuid"', '{"key":"integer","min":0,"max":"unlimited"}',
    '{"key":"string","value":"integer","min":0,"max":"unlimited"}', '{"key":"uuid","value":"boolean","min":0,"max":3}',
    '{"key":{"type":"string","enum":["set",["a","b"]]}}', '{"key":{"type":"integer","minInteger":-5,"maxInteger":5}}',
    '{"key":{"type":"real","minReal":0.5},"min":0}', '{"key":{"type":"string","minLength":1,"maxLength":3}}',
    '{"key":{"type":"uuid","refTable":"A","refType":"weak"},"min":0,"max":5}', '{"key":"x","min":2}',
)

VALUES = (
    '1', '-2.5', 'true', '"ab"', '["uuid","00112233-4455-6677-8899-aabbccddeeff"]', '["named-uuid","x"]', '["set",[3,1,2]]',
    '["set",[]]', '["set",["b","a"]]', '["map",[["b",1],["a",2]]]', '["map",[]]', '["set",[1,1]]', '["map",[["a"]]]',
)


def schemas():
    """A schema with one column, or all, and some values for it."""
    def text(columns, more=""):
        members = ",".join(f'"c{n}":{{"type":{one}{more}}}' for n, one in enumerate(columns))
        indexes = ',"indexes":[["c0"]],"maxRows":5' if more == "" else ""
        table = f'{{"columns":{{{members}}}{indexes},"isRoot":true}}'
        return f'[{{"name":"D","version":"1.2.3","tables":{{"A":{table}}}}},{",".join(VALUES)}]'.encode()

    for one in TYPES:
        yield text([one])
        yield text([one], ',"mutable":false,"ephemeral":true')
    yield text(TYPES[:-1])


def segments():
    """Two segments of a log, piece by piece, as the target reads them: a batch with one run of one record, and what may
    follow."""
    def batch(number, start, first):
        run = start
        record = bytes([1, 1, 3, 5, first])
        header = bytes([0, 1, number, first, first, 88, 1])
        commit = bytes([2, 1, number, start, number - 1, 0, run, 1, first, first, 88, 1])
        return header + record + commit

    one, two = batch(1, 72, 1), batch(2, 252, 2)
    close = bytes([2, 0, 3, 252, 1, 1])
    second = bytes([255, 1, 1, 2])
    for pieces in (one, one + two, one + close, one + second + batch(2, 72, 2), one + bytes([4, 40]), two,
                   one + bytes([5, 7]) + second, one + bytes([3, 0, 0, 0]), one[:12], one + one):
        yield pieces
        yield pieces + bytes([4, 3]) + batch(3, 200, 3)


def messages():
    """One of each message and request of DCP, with and without a stream's id."""
    seqnos, meta, name = struct.pack(">QQ", 7, 2), struct.pack(">IIIHB", 1, 0, 0, 0, 0), b"\x08name"
    bodies = (
        (dcp.OPEN, struct.pack(">II", 0, 5), b"name", b""),
        (dcp.STREAM_REQ, struct.pack(">IIQQQQQ", 0x20, 0, 1, 2**64 - 1, 3, 0, 1), b"", b'{"sid":1,"collections":["0","8"],"uid":"1"}'),
        (dcp.STREAM_REQ, bytes(48), b"", b'{"scope":"8","purge_seqno":"9"}'),
        (dcp.MARKER, struct.pack(">QQI", 0, 9, 1), b"", b""),
        (dcp.MARKER, b"\0", b"", struct.pack(">QQIQQ", 0, 9, 1, 9, 0)),
        (dcp.MARKER, b"\2", b"", struct.pack(">QQIQQQQ", 0, 9, 2, 9, 1, 2, 3)),
        (dcp.MUTATION, seqnos + meta, name, b"value"),
        (dcp.DELETION, seqnos + bytes(2), name, b""),
        (dcp.DELETION, seqnos + struct.pack(">IB", 5, 0), name, b""),
        (dcp.EXPIRATION, seqnos + struct.pack(">I", 5), name, b""),
        (dcp.SYSTEM_EVENT, struct.pack(">QIB", 4, 0, 1), b"name", struct.pack(">QIII", 2, 8, 9, 10)),
        (dcp.SYSTEM_EVENT, struct.pack(">QIB", 4, 1, 0), b"", struct.pack(">QII", 2, 8, 9)),
        (dcp.SYSTEM_EVENT, struct.pack(">QIB", 4, 3, 0), b"name", struct.pack(">QI", 2, 8)),
        (dcp.SYSTEM_EVENT, struct.pack(">QIB", 4, 4, 0), b"", struct.pack(">QI", 2, 8)),
        (dcp.PREPARE, seqnos + struct.pack(">IIIBBB", 1, 0, 0, 0, 1, 3), name, b"value"),
        (dcp.COMMIT, seqnos, name, b""),
        (dcp.ABORT, seqnos, name, b""),
        (dcp.SEQNO_ADVANCED, seqnos[:8], b"", b""),
        (dcp.OSO_SNAPSHOT, struct.pack(">I", 1), b"", b""),
        (dcp.STREAM_END, struct.pack(">I", 4), b"", b""),
        (dcp.NOOP, b"", b"", b""),
    )
    for opcode, extras, key, value in bodies:
        yield request(opcode, key, value, extras, vbucket=5)
        yield request(opcode, key, value, extras, vbucket=5, framing=struct.pack(">BH", 0x22, 1))


def told():
    """What a node tells that is copied from, as the target `link` reads it: mostly in order."""
    random = Random(24)
    system_event = 10
    for _ in range(60):
        said = bytearray()
        for vb in (0, 1):
            # A marker, 250 seqnos long.
            said += bytes([0x10 | vb, 0, 0, 250])
        # Two collections, by manifests of their own.
        for uid in (1, 2):
            said += bytes([0x10, system_event, 0, 1, 96 + uid, 0, 3, 0, uid, 7 + uid])
        for _ in range(random.randrange(5, 60)):
            key = random.choice([b"\0", b"\0", b"\x08"]) + random.choice([b"a key", b"one", b"more", b"and this one"])
            value = random.randbytes(random.choice([0, 3, 40]))
            kind = random.choice([0, *[1] * 6, 4, 5, 6, 6, 7, 8, 9, 11, 12, 13])
            number = random.choice([1, 1, 1, 2, 5, 200])
            head = random.choice([0x00, 0x10, 0x10, 0x10]) | random.randrange(2)
            said += bytes([head, kind, random.choice([0] * 8 + [205, 230])])
            said += bytes([len(key)]) + key + bytes([len(value)]) + value + bytes([random.choice([0, 0, 0, 1, 2]), 1, number, 0]) if kind else bytes([number])
        yield bytes(said)


def inputs(kinds):
    """Single commands, and rounds of several."""
    for kind in kinds:
        for seed in range(SEEDS):
            for one in random_script(f"corpus {seed}", kind):
                commands = [step.bytes_for({}, one.protocol) for step in one.steps]
                yield from commands
                yield b"".join(commands)


def write(target, samples):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for sample in set(samples):
        if 0 < len(sample) <= BYTES_MAX:
            (folder / hashlib.sha1(sample).hexdigest()[:16]).write_bytes(sample)
            count += 1
    return count


def main():
    for target, kinds in TARGETS.items():
        print(f"{target}: {write(target, inputs(kinds))} inputs")
    print(f"json: {write('json', [bytes([n]) + one for one in JSON for n in (1, 3, 255)])} inputs")
    print(f"schema: {write('schema', schemas())} inputs")
    print(f"dcp: {write('dcp', messages())} inputs")
    print(f"link: {write('link', told())} inputs")
    print(f"journal_segment: {write('journal_segment', segments())} inputs")
    # Two messages and the hash: the fuzzer's decoder reads the lengths from the end of the input.
    print(f"sasl: {write('sasl', [first + last + bytes([n]) for n, (first, last) in enumerate(SASL)])} inputs")


if __name__ == "__main__":
    main()
