"""The states a key may have after a crash: its versions, and which of them must survive.

Each key has one writer, so its versions have an order. A version is

    sent          no answer yet: after a crash it may exist, intact, or not
    acknowledged  has CAS and seqno; a crash may lose it with every later seqno of its vBucket, never alone
    kept          acknowledged as persisted: it is not lost, and nothing before it comes back
    ambiguous     a durable write with this outcome: may exist if nothing was acknowledged after it

`Ledger.judge` checks what is found after a crash against these rules, and makes it the new first version.
"""

import dataclasses

from .values import Torn, names, shown

# What is found of a key whose write may have been committed before.
HIDDEN = object()


@dataclasses.dataclass
class Version:
    content: bytes | None
    flags: int = 0
    expiry: int = 0
    acknowledged: bool = False
    kept: bool = False
    ambiguous: bool = False
    cas: int | None = None
    seqno: int | None = None
    # A durable write survives through its prepare, which has an earlier seqno than its answer reports, and is committed
    # again at another.
    is_durable: bool = False

    def is_found(self, found):
        """`found`: None, or (value, flags, expiry, CAS)."""
        if found is None or self.content is None:
            return found is None and self.content is None
        value, flags, expiry, cas = found
        return value == self.content and flags == self.flags and expiry == self.expiry and (self.cas is None or self.cas == cas)

    def __str__(self):
        state = "kept" if self.kept else "acknowledged" if self.acknowledged else "ambiguous" if self.ambiguous else "sent"
        return f"[{shown(self.content)}, {state}, seqno {self.seqno}, cas {self.cas}, flags {self.flags}, expiry {self.expiry}]"


class Ledger:
    """The versions of all keys. A key's entry is modified only by its writer, and by the judge while no writer runs."""

    def __init__(self, keys, vbucket_of):
        self.vbucket_of = vbucket_of
        self.versions = {key: [Version(None, acknowledged=True, kept=True)] for key in keys}
        # Persisted seqnos that OBSERVE_SEQNO has reported, per vBucket.
        self.observed = {}
        # Every CAS acknowledged in a key's vBucket, and every (vBucket, history id, seqno): none may appear twice.
        self.cas_seen, self.seqno_seen = set(), set()

    def latest(self, key):
        """The newest version that the writer can rely on: the last one acknowledged, or None after an ambiguous one."""
        last = self.versions[key][-1]
        return last if last.acknowledged else None

    def send(self, key, version):
        self.versions[key].append(version)
        return version

    def refuse(self, key, version):
        self.versions[key].remove(version)

    def acknowledge(self, key, version, cas, history, seqno, kept):
        assert self.versions[key][-1] is version
        version.acknowledged, version.cas, version.seqno, version.kept = True, cas or None, seqno, kept
        vbucket = self.vbucket_of(key)
        self.unique(self.cas_seen, (vbucket, cas), cas, f"CAS {cas} of {key}")
        self.unique(self.seqno_seen, (vbucket, history, seqno), seqno, f"seqno {seqno} of vBucket {vbucket}, history {history}, of {key}")

    @staticmethod
    def unique(seen, entry, number, what):
        if number:
            assert entry not in seen, f"{what} was given before"
            seen.add(entry)

    def observe(self, vbucket, persisted_seqno):
        self.observed[vbucket] = max(self.observed.get(vbucket, 0), persisted_seqno)

    def flush(self, highest):
        """Records that everything was deleted; `highest` is the previous seqno of each vBucket. Only pending durable
        writes may be in flight."""
        for key, versions in self.versions.items():
            at = len(versions)
            while at > 1 and versions[at - 1].ambiguous:
                at -= 1
            versions.insert(at, Version(None, acknowledged=True, seqno=highest.get(self.vbucket_of(key), 0) + 1))

    def judge(self, found, everything_kept=False, may_hide=False):
        """Raises AssertionError if the state found is not allowed. `everything_kept`: after a clean stop. `may_hide`: what was
        prepared may be hidden until it is committed again."""
        problems, chosen, survived = [], {}, dict(self.observed)
        for key, versions in self.versions.items():
            if found[key] is HIDDEN:
                if not may_hide or not any(version.is_durable for version in versions):
                    problems.append(f"{key}: is hidden; versions {', '.join(map(str, versions[-5:]))}")
                continue
            fitting = [at for at, version in enumerate(versions) if version.is_found(found[key])]
            if not fitting:
                problems.append(f"{key}: {self.never_written(found[key])}; versions {', '.join(map(str, versions[-5:]))}")
                continue
            chosen[key] = fitting[-1]
            seqno, vbucket = versions[fitting[-1]].seqno, self.vbucket_of(key)
            # An absent key may have been absent before: no evidence that the last delete or flush has survived.
            if seqno is not None and found[key] is not None and not versions[fitting[-1]].is_durable:
                survived[vbucket] = max(survived.get(vbucket, 0), seqno)
        for key, at in chosen.items():
            versions, bound = self.versions[key], survived.get(self.vbucket_of(key), 0)
            for later in versions[at + 1 :]:
                why = None
                if later.kept:
                    why = "was acknowledged as persisted"
                elif later.acknowledged and everything_kept:
                    why = "was acknowledged before a clean stop"
                elif later.acknowledged and later.seqno is not None and later.seqno <= bound:
                    why = f"has a seqno up to {bound}, which was persisted or has survived in vBucket {self.vbucket_of(key)}"
                if why:
                    problems.append(f"{key}: found {versions[at]}, but {later} {why}")
                    break
        assert not problems, f"{len(problems)} keys are wrong:\n  " + "\n  ".join(problems[:8])
        return chosen

    @staticmethod
    def never_written(found):
        if found is None:
            return "is absent, and must not be"
        value, flags, expiry, cas = found
        about = f"flags {flags}, expiry {expiry}, cas {cas}"
        try:
            if not value.isdigit():
                names(value)
        except Torn as torn:
            return f"half of a write is visible: {torn}; {about}"
        return f"a version that is not one of its own: {shown(value)}, {about}"

    def highest_survivor(self, vbucket):
        """The highest seqno that the vBucket certainly contains."""
        firsts = [versions[0] for key, versions in self.versions.items() if self.vbucket_of(key) == vbucket]
        return max([self.observed.get(vbucket, 0)] + [one.seqno for one in firsts if one.seqno and one.content is not None and not one.is_durable])

    def settle(self, chosen, found):
        """Makes what was found, and has been persisted by now, the first version of each key."""
        for key, at in chosen.items():
            version = self.versions[key][at]
            cas = found[key][3] if found[key] else version.cas
            self.versions[key] = [dataclasses.replace(version, acknowledged=True, kept=True, ambiguous=False, cas=cas)]
        self.observed = {}
