"""Seen with strace: the journal file is synced between the write of a durable document and its answer, and the
directory before the first answer that depends on a new file."""

import re
import shutil
import struct
import time

import pytest

from tests.frames import SET, SUCCESS, durability, request

from .crash import CONFIG
from .peer import NO_EXPIRY, PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY, Peer, token

LINE = re.compile(r"^(\d+) +(\w+)\((.*)$")
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
CALLS = "openat,open,close,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,ftruncate"
NEVER = 1 << 60
MARK = re.compile(rb"durable-(\d+)-")


class Call:
    def __init__(self, name, arguments, result):
        self.name, self.arguments, self.result = name, arguments, result
        descriptor = re.match(r"(\d+)", arguments)
        self.descriptor = int(descriptor[1]) if descriptor else None
        self.bytes = b"".join(bytes.fromhex(text.replace("\\x", "")) for text in STRING.findall(arguments))

    @property
    def path(self):
        return self.bytes.decode(errors="replace")


def calls(text):
    """The calls in the order in which they ended; a write counts from its beginning, so whatever follows it came
    after."""
    begun, found = {}, []
    for line in text.splitlines():
        match = LINE.match(line)
        if match:
            thread, name, rest = match.groups()
            if rest.endswith("<unfinished ...>"):
                begun[thread] = rest[: -len("<unfinished ...>")]
                # An answer may arrive before strace sees the call end, so it counts from its beginning.
                if name in ("sendto", "sendmsg", "writev", "write"):
                    found.append(Call(name, rest, None))
                    begun[thread] = None
            else:
                arguments, _, result = rest.rpartition(" = ")
                found.append(Call(name, arguments, result))
            continue
        match = re.match(r"^(\d+) +<\.\.\. (\w+) resumed>(.*)$", line)
        if match and begun.get(match[1]) is not None:
            arguments, _, result = (begun.pop(match[1]) + match[3]).rpartition(" = ")
            found.append(Call(match[2], arguments, result))
    return found


COUNT = 48
LEVELS = (PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY, 0)
OBSERVED = 9999


class Traced:
    """Durable and plain writes to a node under strace, and what was written, synced and answered when."""

    def __init__(self, start, trace, depth, config):
        assert shutil.which("strace"), "strace is missing"
        # -D: the node remains our child, strace is a grandchild. Data is printed in hexadecimal, in full.
        wrap = ["strace", "-D", "-f", "-qq", "-xx", "-s", "4000000", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(trace)]
        node = start(config=config, wrap=wrap)
        with Peer(node.kv, unordered=True) as peer:
            for first in range(0, COUNT, depth):
                for number in range(first, first + depth):
                    level, key = LEVELS[number % 3], b"key-%d" % (number % 20 if depth == 1 else number)
                    framing = durability(level, 20_000) if level else None
                    peer.send(request(SET, key, b"durable-%d-" % number, NO_EXPIRY, vbucket=peer.vbucket(key), opaque=0x5EED0000 + number, framing=framing))
                for _ in range(depth):
                    answer = peer.response()
                    assert answer.status == SUCCESS, answer
            # A plain write is persisted when OBSERVE_SEQNO says so; that answer needs its sync as well.
            history, self.seqno = token(peer.set(b"observed", b"durable-%d-" % OBSERVED))
            while peer.observe(peer.vbucket(b"observed"), history)[1] < self.seqno:
                time.sleep(0.01)
        assert node.stop() == 0
        time.sleep(0.2)
        # By number of the write: (file, time), time, time; the last by file.
        self.written, self.synced, self.sent, self.observed = {}, {}, {}, None
        self.created, self.directory_synced = {}, []
        self.opened = {}
        for at, call in enumerate(calls(trace.read_text(errors="replace"))):
            self.take(at, call)
        assert sorted(self.sent) == list(range(COUNT)), f"{len(self.sent)} answers seen of {COUNT}"
        assert self.created, "no segment was made under strace's eyes"

    def take(self, at, call):
        path = self.opened.get(call.descriptor, "")
        if call.name in ("openat", "open") and call.result and call.result.split()[0].isdigit():
            self.opened[int(call.result.split()[0])] = call.path
            if "O_CREAT" in call.arguments and call.path.endswith(".segment"):
                self.created.setdefault(call.path, at)
        elif call.name in ("fsync", "fdatasync"):
            assert call.result and call.result.startswith("0"), call.arguments
            if path.endswith("shard-0"):
                self.directory_synced.append(at)
            for number, (file, _) in self.written.items():
                if file == path:
                    self.synced.setdefault(number, at)
        elif call.name.startswith(("pwrite", "write", "send")) and path.endswith(".segment"):
            for number in map(int, MARK.findall(call.bytes)):
                self.written.setdefault(number, (path, at))
        elif call.name.startswith(("write", "send")):
            for number in range(COUNT):
                if b"\x5e\xed" + struct.pack(">H", number) in call.bytes:
                    self.sent.setdefault(number, at)
            if call.bytes[:2] in (b"\x81\x91", b"\x18\x91") and struct.unpack(">Q", call.bytes[35:43])[0] >= self.seqno:
                self.observed = self.observed or at
        elif call.name == "close":
            self.opened.pop(call.descriptor, None)

    def problems(self):
        for number, sent in sorted(self.sent.items()):
            if LEVELS[number % 3] == 0:
                continue
            path, written = self.written.get(number, ("", NEVER))
            if written > sent:
                yield f"answer {number} was sent before its document was written"
            elif self.synced.get(number, NEVER) > sent:
                yield f"answer {number} was sent before a sync of {path}"
            elif path in self.created and not any(self.created[path] < at < sent for at in self.directory_synced):
                yield f"answer {number} was sent before the directory of the new {path} was synced"
        if self.observed is None or self.synced.get(OBSERVED, NEVER) > self.observed:
            yield "OBSERVE_SEQNO told a seqno before its sync"


@pytest.mark.parametrize("depth", (1, 8))
def test_a_sync_covers_every_durable_answer(start, tmp_path, depth):
    traced = Traced(start, tmp_path / "trace", depth, CONFIG)
    problems = list(traced.problems())
    assert not problems, "\n".join(problems)
    if depth > 1:
        # Group commit: concurrently waiting writers share syncs.
        assert len({traced.synced[number] for number in traced.synced if number < COUNT}) < COUNT * 2 // 3


def test_the_check_notices_a_node_that_does_not_sync(start, tmp_path):
    problems = list(Traced(start, tmp_path / "trace", 1, CONFIG + "sync = false\n").problems())
    assert len(problems) >= COUNT // 2, problems
