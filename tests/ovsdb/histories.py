"""Generated database files: random records, many of which no server would write.

A record may refer to rows that do not exist, delete rows that others need, leave unreferenced rows, violate limits and
indexes, or make no sense at all.
"""

import json

from .log_file import text_of_record
from .rows import Schema
from .schemas import random_schema
from .values import Values

NOWHERE = "ffffffff-0000-4000-8000-00000000000"
# Our server reads records of at least this length row by row.
LARGE_BYTES = 1 << 20


def damageable_schema(rng, name):
    """A random schema in which references are frequent."""
    schema = random_schema(rng, name)
    tables = schema["tables"]
    for table in tables.values():
        if rng.random() < 0.5:
            many = {"min": rng.choice((0, 0, 1)), "max": "unlimited"}
            base = {"type": "uuid", "refTable": rng.choice(list(tables)), "refType": rng.choice(("strong", "strong", "weak"))}
            table["columns"]["more"] = {"type": {"key": base, **many}}
    return schema


class History:
    """Random records for a schema."""

    def __init__(self, rng, described):
        self.rng = rng
        self.schema = Schema(described)
        self.tables = sorted(self.schema.tables)
        self.rows = {table: [] for table in self.tables}
        self.made = 0
        self.values = Values(rng, lambda table: self.rows[table or rng.choice(self.tables)])

    def record(self):
        """The bytes of one record with its header."""
        rng = self.rng
        content = {"_is_diff": True} if rng.random() < 0.5 else {}
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            table = rng.choice(self.tables)
            self.change(content.setdefault(table, {}), table, "_is_diff" in content)
        if rng.random() < 0.04:
            self.spoil(content)
        if rng.random() < 0.03:
            content["_comment"] = "x" * LARGE_BYTES
        text = self.text(content)
        return text_of_record(text.encode())

    def text(self, content):
        compact = self.rng.random() < 0.7
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":") if compact else None)
        for number in range(3):
            text = text.replace(f"@nowhere{number}@", NOWHERE + str(number))
        return text + "\n" if compact else text

    def change(self, rows, table, is_diff):
        rng = self.rng
        known = self.rows[table]
        if not known or rng.random() < 0.45:
            self.made += 1
            row = f"{self.made:08x}-1111-4111-8111-{rng.getrandbits(48):012x}"
            rows[row] = self.cells(table, is_diff, 0.8)
            known.append(row)
        elif rng.random() < 0.25:
            row = rng.choice(known)
            rows[row] = None
            if rng.random() < 0.7:
                known.remove(row)
        else:
            rows[rng.choice(known)] = self.cells(table, is_diff, 0.4)

    def cells(self, table, is_diff, likely):
        """Some columns. Debian's server reads differences of sets of limited size wrongly: differences.DELIBERATE, "sized set read back"."""
        cells = {}
        for name, column in self.schema.columns(table).items():
            is_sized = not column.scalar and column.max > 1 and (column.min > 0 or column.max < float("inf"))
            refers = "refTable" in json.dumps(column.json)
            if column.ephemeral or is_diff and is_sized or self.rng.random() > (0.95 if refers and column.min else likely):
                continue
            wrong = self.rng.random() < 0.01
            has_reals = "real" in (column.key["type"], column.value and column.value["type"])
            cells[name] = tame(self.values.wrong(column) if wrong else self.values.cell(column), has_reals)
        return cells

    def spoil(self, content):
        """Turns the record into nonsense."""
        rng = self.rng
        table = rng.choice(self.tables)
        kind = rng.randrange(5)
        if kind == 0:
            content["Nix"] = {}
        elif kind == 1:
            content.setdefault(table, {})["no-uuid"] = {}
        elif kind == 2:
            content.setdefault(table, {})[NOWHERE + "7"] = None
        elif kind == 3:
            content.setdefault(table, {})[NOWHERE + "8"] = {"nix": 1}
        else:
            content["_date"] = "today"


def tame(value, has_reals):
    """Removes negative zero (differences.DELIBERATE, "negative zero in an index"), numbers at which a JSON reader
    stops, since the history would end there, and reals with more digits than either server prints: a later log record
    of a map would name another number."""
    if isinstance(value, list):
        return [tame(one, has_reals) for one in value]
    if isinstance(value, float) or has_reals and isinstance(value, int) and not isinstance(value, bool):
        return float(f"{value:.14g}") if 1e-300 < abs(value) < 1e300 else 0.0
    return value
