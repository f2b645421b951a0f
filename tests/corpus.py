"""The corpus the fuzz targets start from: a few hundred small inputs, the same ones every time.

    python -m tests.corpus            writes fuzz/corpus/TARGET/NAME for the targets that take a protocol's bytes

Commands come from the generators of the differential test, so what is interesting to compare is interesting to fuzz.
"""

import hashlib
import pathlib

from .differential.scripts import random_script

CORPUS = pathlib.Path(__file__).resolve().parent.parent / "fuzz" / "corpus"
SEEDS = 6
BYTES_MAX = 2048

# Which kinds of script a target's input is made of.
TARGETS = {"text": ("text", "meta"), "meta": ("meta",), "binary": ("binary",)}

SASL = (
    (b"\0user\0password", b""),
    (b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL", b"c=biws,r=fyko+d2lbbFgONRv9qkxdawLserver,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="),
    (b"n,a=other,n=us=2Cer,r= spaces in it ", b"c=biws,r=server,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="),
    (b"y,,n=,r=", b"c=,r=,p="),
)


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
    # Two messages and the hash: the fuzzer's decoder takes the lengths from the end of the input.
    print(f"sasl: {write('sasl', [first + last + bytes([n]) for n, (first, last) in enumerate(SASL)])} inputs")


if __name__ == "__main__":
    main()
