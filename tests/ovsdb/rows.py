"""What a client knows about a schema, and its replica of a monitor: the fifty-line model of updates.

Values are kept in normal form: a set or map always as ["set", [...]] or ["map", [...]], even with one element.
"""

from .names import ZERO, sort_key

DEFAULTS = {"integer": 0, "real": 0, "boolean": False, "string": "", "uuid": ["uuid", ZERO]}


class Column:
    def __init__(self, description):
        self.json = description
        self.type = description["type"]
        kind = {"key": self.type} if isinstance(self.type, str) else self.type
        self.key = base(kind["key"])
        self.value = base(kind["value"]) if "value" in kind else None
        self.min = kind.get("min", 1)
        self.max = float("inf") if kind.get("max", 1) == "unlimited" else kind.get("max", 1)
        self.ephemeral = description.get("ephemeral", False)
        self.mutable = description.get("mutable", True)

    @property
    def scalar(self):
        return self.min == self.max == 1 and self.value is None

    def default(self):
        if self.min == 0:
            return ["map" if self.value else "set", []]
        key = default_atom(self.key)
        if self.value:
            return ["map", [[key, default_atom(self.value)]]]
        return key if self.scalar else ["set", [key]]

    def normal(self, value):
        if self.scalar or (isinstance(value, list) and value[0] in ("set", "map")):
            return value
        return ["set", [value]]


def base(description):
    return {"type": description} if isinstance(description, str) else description


def default_atom(kind):
    """The default is the first value of an enumeration, else the type's zero value."""
    return DEFAULTS[kind["type"]]


class Schema:
    def __init__(self, description):
        self.json = description
        self.name = description["name"]
        self.tables = {
            table: {column: Column(one) for column, one in content["columns"].items()} for table, content in description["tables"].items()
        }

    def columns(self, table):
        return self.tables[table]

    def is_indexed(self, table, column):
        return any(column in index for index in self.json["tables"][table].get("indexes", []))

    def normal(self, table, column, value):
        if column.startswith("_"):
            return value
        return self.tables[table][column].normal(value)

    def complete(self, table, row, columns=None):
        """The row with the defaults that an insert leaves out, for `columns` (default: all)."""
        names = columns if columns is not None else self.tables[table]
        full = {name: self.tables[table][name].default() for name in names if not name.startswith("_")}
        full.update({name: self.normal(table, name, value) for name, value in row.items()})
        return full


def elements(value):
    """The elements of a set or map in normal form; pairs for a map."""
    return value[1]


def apply_difference(column, old, difference):
    """The rule of `modify` and `_is_diff`, which no RFC defines: toggle for sets; for maps an equal pair deletes,
    another value replaces."""
    difference = column.normal(difference)
    if column.max == 1:
        return difference
    if column.value is not None:
        return toggle_map(old, difference)
    mine = {sort_key(one): one for one in elements(old)}
    for one in elements(difference):
        if mine.pop(sort_key(one), None) is None:
            mine[sort_key(one)] = one
    return ["set", list(mine.values())]


def toggle_map(old, difference):
    mine = {sort_key(key): (key, value) for key, value in elements(old)}
    for key, value in elements(difference):
        present = mine.get(sort_key(key))
        if present is not None and sort_key(present[1]) == sort_key(value):
            del mine[sort_key(key)]
        else:
            mine[sort_key(key)] = (key, value)
    return ["map", [list(pair) for pair in mine.values()]]


def comparable(value):
    """A form without order: two replicas agree if these do."""
    if isinstance(value, list) and value and value[0] in ("set", "map"):
        return [value[0], sorted(value[1], key=sort_key)]
    return value


class Replica:
    """The rows of one monitor as a client would keep them: table -> row -> column -> value."""

    def __init__(self, schema):
        self.schema = schema
        self.tables = {}

    def clear(self):
        self.tables = {}

    def update(self, updates):
        """Applies `update`: full new and old rows."""
        for table, changes in updates.items():
            rows = self.tables.setdefault(table, {})
            for row, change in changes.items():
                if change.get("new") is None:
                    rows.pop(row, None)
                else:
                    rows.setdefault(row, {}).update(
                        {column: self.schema.normal(table, column, value) for column, value in change["new"].items()})

    def update2(self, updates, columns_of):
        """Applies `update2` and `update3`: initial and insert without defaults, modify as differences."""
        for table, changes in updates.items():
            rows = self.tables.setdefault(table, {})
            for row, change in changes.items():
                for kind, content in change.items():
                    if kind in ("initial", "insert"):
                        rows[row] = self.schema.complete(table, content, columns_of(table))
                    elif kind == "delete":
                        rows.pop(row, None)
                    elif kind == "modify":
                        if row not in rows:
                            raise AssertionError(f"modify of {row} in {table}, which this monitor does not have: {content}")
                        for column, value in content.items():
                            if column.startswith("_"):
                                rows[row][column] = value
                            else:
                                rows[row][column] = apply_difference(self.schema.columns(table)[column], rows[row][column], value)

    def state(self):
        return {
            table: {row: {column: comparable(value) for column, value in content.items()} for row, content in rows.items()}
            for table, rows in self.tables.items() if rows
        }
