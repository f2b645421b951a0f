"""A connection to a persistent bucket: frames with the vBucket of their key, mutation tokens, a node's own
statistics."""

import json
import struct
import time
import zlib

from tests.frames import (
    FEATURE_ALT_REQUEST, FEATURE_MUTATION_SEQNO, FEATURE_SELECT_BUCKET, FEATURE_SYNC_REPLICATION, FEATURE_UNORDERED, FEATURE_XERROR, GET,
    INTERNAL_ERROR, OBSERVE_SEQNO, SET, SET_VBUCKET, STAT, SUCCESS, BinaryConnection, durability, request,
)

VBUCKETS = 16
MAJORITY, PERSIST_TO_ACTIVE, PERSIST_TO_MAJORITY = 1, 2, 3
FEATURES = (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_MUTATION_SEQNO, FEATURE_ALT_REQUEST, FEATURE_SYNC_REPLICATION)
NO_EXPIRY = struct.pack(">II", 0, 0)
ALONE, ABSENT_REPLICA = None, [["us", "absent"]]
WARM_UP_TIMEOUT_S = 30


def vbucket_of(key, vbuckets=VBUCKETS):
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % vbuckets


def token(response):
    """(history id, seqno) of a mutation, or (None, None)."""
    return struct.unpack(">QQ", response.extras) if len(response.extras) == 16 else (None, None)


class Peer(BinaryConnection):
    def __init__(self, address, unordered=False, vbuckets=VBUCKETS, timeout_s=30):
        super().__init__(address, timeout_s)
        self.vbuckets = vbuckets
        self.open_bucket(features=(*FEATURES, FEATURE_UNORDERED) if unordered else FEATURES)

    def vbucket(self, key):
        return vbucket_of(key, self.vbuckets)

    def ask(self, *arguments, **named):
        """Never returns None: raises EOFError at the end of the stream."""
        if (answer := super().ask(*arguments, **named)) is None:
            raise EOFError("the node closed the connection")
        return answer

    def get(self, key):
        return self.ask(GET, key, vbucket=self.vbucket(key))

    def set(self, key, value, level=None, timeout_ms=None, expiry=0):
        framing = durability(level, timeout_ms) if level else None
        return self.ask(SET, key, value, struct.pack(">II", 0, expiry), vbucket=self.vbucket(key), framing=framing)

    def observe(self, vbucket, history):
        """(history id, persisted seqno, highest seqno) of a vBucket, or None if it does not know this history."""
        answer = self.ask(OBSERVE_SEQNO, value=struct.pack(">Q", history), vbucket=vbucket)
        if answer.status != SUCCESS:
            return None
        form, which, current, persisted, highest = struct.unpack(">BHQQQ", answer.value[:27])
        assert form in (0, 1) and which == vbucket and persisted <= highest, answer
        if form == 0:
            assert current == history, answer
        return current, persisted, highest

    def set_chain(self, vbucket, chains):
        answer = self.ask(SET_VBUCKET, extras=b"\x01", value=json.dumps({"topology": chains}).encode(), vbucket=vbucket)
        assert answer.status == SUCCESS, answer

    def stay_active(self):
        """Decides that this node is the active of all vBuckets: after a kill those with others in their chains wait for that."""
        for vbucket in range(self.vbuckets):
            assert self.ask(SET_VBUCKET, extras=b"\x01", vbucket=vbucket).status == SUCCESS

    def statistics(self, group=b""):
        self.send(request(STAT, group))
        found = {}
        while (answer := self.response()).key:
            assert answer.status == SUCCESS, answer
            found[answer.key.decode()] = answer.value.decode()
        assert answer.status == SUCCESS, answer
        return found

    def await_warm_up(self, timeout_s=WARM_UP_TIMEOUT_S):
        """Waits until every vBucket that can be served is; one that is not loaded yet answers "try again", never that a
        key is missing."""
        deadline = time.monotonic() + timeout_s
        while self.statistics(b"warmup")["ep_warmup_state"] != "done":
            assert time.monotonic() < deadline, f"warm-up lasts more than {timeout_s} s: {self.statistics(b'warmup')}"
            time.sleep(0.005)

    def damaged_vbuckets(self):
        """The vBuckets that are not served: a retry would not help, so the status is not a temporary failure."""
        probe = b"\0no such key"
        return {vbucket for vbucket in range(self.vbuckets) if self.ask(GET, probe, vbucket=vbucket).status == INTERNAL_ERROR}

    def store_persistent(self, vbucket, key=b"barrier"):
        """Writes to this vBucket and waits until the write is persisted; returns the response."""
        answer = self.ask(SET, key, b"b", NO_EXPIRY, vbucket=vbucket, framing=durability(PERSIST_TO_MAJORITY, 20_000))
        assert answer.status == SUCCESS, f"vBucket {vbucket}: {answer}"
        return answer
