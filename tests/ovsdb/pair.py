"""Runs a script on both servers and compares their answers, step by step; stops at the first difference."""

import collections
import dataclasses
import time

from tests.servers import StartFailed

from . import differences, log_file
from .names import sort_key
from .rows import comparable
from .schemas import has_sized_sets
from .script import Burst, Dump, Restart, Transact, show_step
from .servers import STOCK
from .side import Side

# Debian's server kept a weak reference to a deleted row: see differences.DELIBERATE.
ORACLE_DANGLES = "oracle: dangling weak reference"


@dataclasses.dataclass
class Problem:
    """The first difference: the step's number, the location, and both answers."""

    at: int
    step: object
    where: str
    oracle: object
    subject: object

    def __str__(self):
        return (f"step {self.at}, {self.where}\n  {show_step(self.step) if self.step is not None else ''}\n"
                f"  oracle:  {cut(self.oracle)}\n  subject: {cut(self.subject)}")

    def signature(self):
        """Failures with the same signature are shown once: the first two texts that differ, without names and
        numbers."""
        return self.where.split(" ")[0] + " " + first_difference(self.oracle, self.subject)


def cut(value):
    text = sort_key(value) if not isinstance(value, str) else value
    return text if len(text) < 3000 else text[:3000] + " ..."


def first_difference(mine, other):
    if isinstance(mine, dict) and isinstance(other, dict):
        for key in sorted({*mine, *other}, key=str):
            if mine.get(key) != other.get(key):
                # Rows and columns have random names.
                return ("" if key.startswith(("@", "c", "T")) else key + " ") + first_difference(mine.get(key), other.get(key))
    if isinstance(mine, list) and isinstance(other, list):
        for one, two in zip(mine, other):
            if one != two:
                return first_difference(one, two)
        return f"length {len(mine) - len(other)}"
    strip = lambda value: "".join(c for c in sort_key(value) if c.isalpha() or c == " ")[:80]
    return f"{strip(mine)} / {strip(other)}"


class Pair:
    def __init__(self, script, subject_kind, mutate=None, counters=None):
        self.script = script
        self.counters = counters if counters is not None else collections.Counter()
        self.sized = {name: has_sized_sets(schema) for name, schema in script.schemas.items()}
        self.oracle = Side(STOCK, script)
        try:
            self.subject = Side(subject_kind, script, mutate)
        except BaseException:
            self.oracle.close()
            raise
        self.sides = (self.oracle, self.subject)
        self.oracle_said = {}
        # From here on the two may differ by a rule of `differences`.
        self.ended = False

    def close(self):
        for side in self.sides:
            side.close()

    def perform(self, at, step):
        """Performs one step on both; returns a Problem or None."""
        try:
            problem = self.perform_on_living(at, step)
        except (OSError, AssertionError, KeyError, RecursionError, StartFailed) as error:
            problem = Problem(at, step, "test", "", f"{type(error).__name__}: {error}")
        if problem is not None:
            # A crashing process exits shortly after its sockets close.
            time.sleep(0.1)
        for side in self.sides:
            if not side.server.alive():
                return Problem(at, step, f"{side.kind} server died", f"exit code {side.server.process.returncode}", side.server.log() + side.server.stderr())
        if problem is not None and self.subject.kind != STOCK and self.oracle.dangling():
            problem.where = ORACLE_DANGLES
        return problem

    def perform_on_living(self, at, step):
        current = step.transacts if isinstance(step, Burst) else [step]
        for side in self.sides:
            side.current = current
            side.begin(step)
        for side in self.sides:
            side.middle(step)
        said = [side.end(step) for side in self.sides]
        self.oracle_said = said[0]
        problem = self.compare(at, step, *said)
        if problem is None and isinstance(step, Restart):
            problem = self.restart(at, step)
        return problem

    def compare(self, at, step, mine, other):
        delayed = self.oracle.delayed or self.subject.delayed
        folded = isinstance(step, Burst) or delayed
        for session in sorted({*mine, *other}):
            one, two = mine.get(session), other.get(session)
            if one is None or two is None:
                return Problem(at, step, f"session {session}", one, two)
            if folded:
                one, two = without_updates(one), without_updates(two)
            one, two = (differences.order_of_monitors(messages) if not session.startswith("(") else messages for messages in (one, two))
            if one == two:
                continue
            if session == "(logs)":
                self.counters["log records of another form"] += 1
                one, two = ({name: list(log_file.effects(log)) for name, log in logs.items()} for logs in (*one, *two))
                if one != two:
                    return Problem(at, step, "logs", *only_different(one, two))
                continue
            one, two = self.forgive(one, two, step)
            if one != two and self.subject.kind != STOCK and self.differ_in_given(one, two):
                self.counters["a version seen before"] += 1
                self.ended = True
                return None
            if one != two:
                return Problem(at, step, f"session {session}", *only_different(one, two))
        if folded:
            self.counters["combined updates"] += 1
            mine, other = self.oracle.replicas(), self.subject.replicas()
            if mine != other:
                return Problem(at, step, "replicas", *only_different(mine, other))
        if isinstance(step, Dump):
            return self.replicas_against_dump(at, step, mine)
        return None

    def differ_in_given(self, one, two):
        """Returns true if the only differences are versions of rows whose UUIDs an insert specified:
        differences.DELIBERATE, "a version seen before"."""
        given = {op.json["uuid"] for step in self.script.steps for one in (step.transacts if isinstance(step, Burst) else [step]) if isinstance(one, Transact)
                 for op in one.ops if isinstance(op.json, dict) and isinstance(op.json.get("uuid"), str)}
        return differences.without_versions_of(given, one) == differences.without_versions_of(given, two)

    def forgive(self, mine, other, step):
        """Both lists of messages without the differences that `differences` allows."""
        if len(mine) != len(other):
            return mine, other
        one, two = [], []
        for left, right in zip(mine, other):
            transact = self.oracle.answered.get(sort_key(left.get("id"))) if isinstance(left, dict) else None
            if transact and isinstance(left.get("result"), list) and isinstance(right.get("result"), list) and len(left["result"]) == len(right["result"]):
                results = [list(map(differences.without_milliseconds, each["result"])) for each in (left, right)]
                left, right = dict(left, result=results[0]), dict(right, result=results[1])
                if any(isinstance(a, dict) and a.get("error") == "timed out" for a in results[0]):
                    left.pop("(spelled)", None)
                    right.pop("(spelled)", None)
                for number, (a, b) in enumerate(zip(*results)):
                    if a != b and differences.same_error(a, b, transact):
                        self.counters["which violation"] += 1
                        results[1][number] = a
                        left.pop("(spelled)", None)
                        right.pop("(spelled)", None)
            one.append(left)
            two.append(right)
        return one, two

    def replicas_against_dump(self, at, step, said):
        """Compares a replica without conditions with the dump: it must hold exactly the columns it requested."""
        for (session, identity), watch in sorted(self.oracle.watches.items()):
            if watch.replica is None or getattr(watch, "where", None):
                continue
            state = watch.replica.state()
            for number, (table, request) in enumerate(sorted(watch.step.requests.items())):
                request = request[0] if isinstance(request, list) else request
                if "where" in request:
                    continue
                rows = said[f"(dump {watch.step.database})"][0][sorted(watch.schema.tables).index(table)]["rows"]
                columns = [name for name in request.get("columns", sorted(watch.schema.columns(table))) if not name.startswith("_")]
                truth = {row["_uuid"][1]: {name: comparable(watch.schema.normal(table, name, row[name])) for name in columns} for row in rows}
                found = {row: {name: content[name] for name in columns if name in content} for row, content in state.get(table, {}).items()}
                if truth != found:
                    return Problem(at, step, f"replica {session} {identity} of {table} against the dump", *only_different(truth, found))
        return None

    # Restart

    def restart(self, at, step):
        if step.compact or any(self.sized.values()):
            problem = self.compact_all(at, step)
            if problem:
                return problem
        codes = [side.stop(step.kill) for side in self.sides]
        if codes[0] != codes[1]:
            return Problem(at, step, "exit code", *codes)
        if step.swap:
            problem = self.swap(at, step)
            if problem:
                return problem
        # Transaction ids belong to a file: after an exchange a client starts over.
        found = [side.resume() for side in self.sides]
        for key in sorted({*found[0], *found[1]}):
            mine, other = found[0].get(key), found[1].get(key)
            if mine is False and other is True:
                self.counters["found after restart"] += 1
            elif mine != other:
                return Problem(at, step, f"monitor {key} after restart", mine, other)
        mine, other = self.oracle.replicas(), self.subject.replicas()
        if mine != other:
            return Problem(at, step, "replicas after restart", *only_different(mine, other))
        return None

    def compact_all(self, at, step):
        for name in self.script.schemas:
            answers = [side.server.unixctl("ovsdb-server/compact", name) for side in self.sides]
            if answers[0] != answers[1]:
                return Problem(at, step, f"compact {name}", *answers)
        logs = [side.logs() for side in self.sides]
        return Problem(at, step, "compacted log", *only_different(*logs)) if logs[0] != logs[1] else None

    def swap(self, at, step):
        """Each server gets the other's file."""
        kept = {side: {name: path.read_bytes() for name, path in side.files.items()} for side in self.sides}
        for side, other in (self.sides, reversed(self.sides)):
            for name, path in side.files.items():
                path.write_bytes(kept[other][name])
        self.oracle.names, self.subject.names = self.subject.names, self.oracle.names
        # The ephemeral part of a replica says nothing about the other's row versions, and names of versions are per
        # file.
        return None


def without_updates(messages):
    return [message for message in messages if not (isinstance(message, dict) and str(message.get("method")).startswith("update"))]


def only_different(mine, other):
    """The parts of two structures that differ, for a readable report."""
    if isinstance(mine, dict) and isinstance(other, dict):
        keys = [key for key in sorted({*mine, *other}, key=str) if mine.get(key) != other.get(key)]
        parts = {key: only_different(mine.get(key), other.get(key)) for key in keys}
        return {key: part[0] for key, part in parts.items()}, {key: part[1] for key, part in parts.items()}
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other) and len(mine) > 1 and not isinstance(mine[0], str):
        pairs = [only_different(a, b) for a, b in zip(mine, other) if a != b]
        return [a for a, _ in pairs], [b for _, b in pairs]
    if isinstance(mine, list) and isinstance(other, list) and len(mine) != len(other):
        at = next((number for number, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
        return f"{len(mine)} elements, from {at}: {cut(mine[at:at + 3])}", f"{len(other)} elements, from {at}: {cut(other[at:at + 3])}"
    if isinstance(mine, str) and isinstance(other, str) and max(len(mine), len(other)) > 400:
        at = next((number for number, (a, b) in enumerate(zip(mine, other)) if a != b), min(len(mine), len(other)))
        return f"... {mine[max(at - 100, 0):at + 200]}", f"... {other[max(at - 100, 0):at + 200]}"
    return mine, other


def replay(script, subject_kind, mutate=None):
    """Runs a complete script; returns the Problem or None."""
    pair = Pair(script, subject_kind, mutate)
    try:
        for at, step in enumerate(script.steps):
            problem = pair.perform(at, step)
            if problem:
                return problem
    finally:
        pair.close()
    return None
