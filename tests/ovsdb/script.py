"""A script is a schema for each database and a list of steps; a step is plain data, so that a failure can be shown and
minimised.

An operation of a transaction carries the name that its insert binds: `Op(json, binds)`. So a script remains meaningful
when operations and steps are removed from it.
"""

import dataclasses
import json


@dataclasses.dataclass
class Op:
    json: object
    binds: str | None = None


@dataclasses.dataclass
class Transact:
    session: str
    id: object
    database: object
    ops: list
    # The reply depends on the clock (a short wait), not on the order of steps.
    by_clock: bool = False
    style: int = 0

    def message(self):
        return {"method": "transact", "params": [self.database, *(op.json for op in self.ops)], "id": self.id}


@dataclasses.dataclass
class Burst:
    """Transactions of one session, sent at once: updates may be combined."""

    transacts: list

    @property
    def session(self):
        return self.transacts[0].session


@dataclasses.dataclass
class Monitor:
    session: str
    id: object
    method: str
    database: str
    monitor: object
    requests: object
    last_transaction: str | None = None
    # Whether a client can maintain a replica from what it receives: everything selected, and valid requests.
    whole: bool = True

    def message(self):
        params = [self.database, self.monitor, self.requests]
        if self.method == "monitor_cond_since":
            params.append(self.last_transaction)
        return {"method": self.method, "params": params, "id": self.id}


@dataclasses.dataclass
class Request:
    session: str
    json: dict

    def message(self):
        return self.json


@dataclasses.dataclass
class Raw:
    """Bytes that are not a message; the server may close the session, which is then reopened."""

    session: str
    content: bytes


@dataclasses.dataclass
class Open:
    session: str


@dataclasses.dataclass
class Reopen:
    session: str


@dataclasses.dataclass
class Dump:
    """Compares the contents of all databases, and every replica with them."""


@dataclasses.dataclass
class Compact:
    database: str


@dataclasses.dataclass
class Restart:
    """Compares the log files, restarts the servers, and reopens the sessions and whole monitors."""

    kill: bool = False
    compact: bool = False
    swap: bool = False


@dataclasses.dataclass
class Script:
    schemas: dict
    steps: list

    def transactions(self):
        return sum(1 if isinstance(step, Transact) else len(step.transacts) if isinstance(step, Burst) else 0 for step in self.steps)


STYLES = ({"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": 1}, {"separators": (" ,\t", " : ")})


def encode(message, names, style=0):
    # Lone surrogates never occur here, so all styles can be encoded.
    return names.to_wire(json.dumps(message, **STYLES[style])).encode()


def show(script, last=None):
    """The script as text: schemas, then one line per step; the last step in full."""
    lines = [f"schema {name}: {json.dumps(schema)}" for name, schema in script.schemas.items()]
    steps = script.steps if last is None else script.steps[: last + 1]
    for number, step in enumerate(steps):
        text = show_step(step)
        limit = 4000 if number >= len(steps) - 2 else 700
        lines.append(f"{number:4} {text if len(text) <= limit else text[:limit] + ' ...'}")
    return "\n".join(lines)


def show_step(step):
    if isinstance(step, Burst):
        return "burst\n" + "\n".join("       " + show_step(one) for one in step.transacts)
    if isinstance(step, Transact):
        names = " ".join(f"{number}:{op.binds}" for number, op in enumerate(step.ops) if op.binds)
        return f"{step.session}: {json.dumps(step.message())}" + (f"  binds {names}" if names else "")
    if hasattr(step, "message"):
        return f"{step.session}: {json.dumps(step.message())}"
    return repr(step)
