"""Random schemas: every type, constraint, kind of reference, index and limit."""

from .rows import Schema

ATOMIC = ("integer", "real", "boolean", "string", "uuid")
MAX_INTEGER = 2**63 - 1
WORDS = ("a", "b", "cc", "long word", "é", "日本", "q\"uote", "back\\slash", "new\nline", "\t", "\u007f", "𝄞", "/", "")


def random_schema(rng, name="D", tables=None):
    count = tables or rng.randint(2, 4)
    names = [f"T{number}" for number in range(count)]
    described = {table: random_table(rng, names) for table in names}
    # At least one root table must exist to reference the rows of the others.
    described["T0"]["isRoot"] = True
    described["T0"]["columns"]["hold"] = {"type": {"key": {"type": "uuid", "refTable": names[-1]}, "min": 0, "max": "unlimited"}}
    schema = {"name": name, "version": f"{rng.randint(0, 9)}.{rng.randint(0, 20)}.0", "tables": described}
    if rng.random() < 0.3:
        schema["cksum"] = f"{rng.randint(1, 2**31)} {rng.randint(1, 9999)}"
    return schema


def random_table(rng, tables):
    columns = {}
    for number in range(rng.randint(2, 6)):
        columns[f"c{number}"] = random_column(rng, tables)
    table = {"columns": columns}
    if rng.random() < 0.7:
        table["isRoot"] = True
    if rng.random() < 0.12:
        table["maxRows"] = rng.randint(1, 6)
    if rng.random() < 0.35:
        # Debian's server refuses an index over both ephemeral and persistent columns.
        candidates = [name for name, column in columns.items() if not column.get("ephemeral")]
        if candidates:
            table["indexes"] = [rng.sample(candidates, rng.randint(1, min(2, len(candidates)))) for _ in range(rng.choice((1, 1, 2)))]
            if len(table["indexes"]) == 2 and sorted(table["indexes"][0]) == sorted(table["indexes"][1]):
                table["indexes"].pop()
    return table


def random_column(rng, tables):
    column = {"type": random_type(rng, tables)}
    kind = column["type"] if isinstance(column["type"], dict) else {"key": column["type"]}
    required = kind.get("min", 1) > 0 and "refTable" in str(kind)
    # See differences.DELIBERATE, "required ephemeral reference".
    if rng.random() < 0.1 and not required:
        column["ephemeral"] = True
    if rng.random() < 0.1:
        column["mutable"] = False
    return column


def random_type(rng, tables):
    key = random_base(rng, tables)
    shape = rng.choice(("scalar", "scalar", "scalar", "optional", "set", "set", "sized", "map", "map"))
    if shape == "scalar":
        return key["type"] if list(key) == ["type"] and rng.random() < 0.7 else {"key": key}
    result = {"key": key["type"] if list(key) == ["type"] and rng.random() < 0.7 else key}
    if shape == "map":
        value = random_base(rng, tables)
        # Two weak references of one column to one row crash Debian's server; see differences.KILLS_STOCK. And it does
        # not decrement the count of the reference in a pair whose weak key goes away: see differences.DELIBERATE.
        value.pop("refType", None)
        if key.get("refType") == "weak":
            value.pop("refTable", None)
        result["value"] = value["type"] if list(value) == ["type"] and rng.random() < 0.7 else value
        result["min"] = rng.choice((0, 0, 0, 1))
        result["max"] = rng.choice(("unlimited", "unlimited", 1, 3))
    elif shape == "optional":
        result["min"] = 0
        if rng.random() < 0.5:
            result["max"] = 1
    elif shape == "set":
        result["min"] = rng.choice((0, 0, 0, 1))
        result["max"] = "unlimited"
    else:
        result["min"] = rng.choice((0, 1))
        result["max"] = rng.randint(2, 4)
    return result


def random_base(rng, tables):
    kind = rng.choice(ATOMIC + ("integer", "string", "uuid"))
    base = {"type": kind}
    if kind == "uuid":
        if rng.random() < 0.8:
            base["refTable"] = rng.choice(tables)
            if rng.random() < 0.5:
                base["refType"] = rng.choice(("strong", "weak"))
        return base
    if rng.random() < 0.55 or kind == "boolean":
        return base
    if kind != "real" and rng.random() < 0.4:
        values = rng.sample(range(-3, 9), rng.randint(1, 4)) if kind == "integer" else rng.sample(WORDS, rng.randint(1, 4))
        base["enum"] = ["set", values] if len(values) > 1 or rng.random() < 0.5 else values[0]
        return base
    if kind == "string":
        low, high = sorted((rng.randint(0, 2), rng.randint(1, 12)))
        low_name, high_name = "minLength", "maxLength"
    elif kind == "integer":
        low, high = sorted((rng.randint(-10, 10), rng.choice((rng.randint(-10, 10), 1000, MAX_INTEGER))))
        low_name, high_name = "minInteger", "maxInteger"
    else:
        low, high = sorted((rng.choice((-10, -1.5, 0, 1e-3)), rng.choice((0.0, 2.5, 100, 1e300))))
        low_name, high_name = "minReal", "maxReal"
    which = rng.random()
    if which < 0.7:
        base[low_name] = low
    if which > 0.3:
        base[high_name] = high
    return base


def has_sized_sets(schema):
    """Returns true if Debian's server reads back something other than it wrote: see differences.py, `sized set read
    back`."""
    return any(
        not column.scalar and column.max > 1 and (column.min > 0 or column.max < float("inf")) for columns in Schema(schema).tables.values() for column in columns.values()
    )


# Each turns a valid schema into one that must be refused, or accepted with a remark; the answers are compared.
def broken_schemas(rng, tables=3):
    """Yields (what, schema)."""
    def made(change):
        schema = random_schema(rng, tables=tables)
        change(schema)
        return schema

    def column(schema, type_):
        schema["tables"]["T0"]["columns"]["c0"] = {"type": type_}

    cases = {
        "no name": lambda s: s.pop("name"),
        "name is no id": lambda s: s.update(name="1 2"),
        "name is reserved": lambda s: s.update(name="_D"),
        "no version": lambda s: s.pop("version"),
        "version is no version": lambda s: s.update(version="1.2"),
        "version is a number": lambda s: s.update(version=1),
        "no tables": lambda s: s.pop("tables"),
        "tables is an array": lambda s: s.update(tables=[]),
        "member too many": lambda s: s.update(more=1),
        "cksum is a number": lambda s: s.update(cksum=7),
        "table name is no id": lambda s: s["tables"].update({"a-b": {"columns": {"c": {"type": "integer"}}}}),
        "table name is reserved": lambda s: s["tables"].update({"_t": {"columns": {"c": {"type": "integer"}}}}),
        "no columns": lambda s: s["tables"]["T0"].pop("columns"),
        "columns is empty": lambda s: s["tables"]["T0"].update(columns={}),
        "table member too many": lambda s: s["tables"]["T0"].update(more=1),
        "isRoot is a number": lambda s: s["tables"]["T0"].update(isRoot=1),
        "maxRows zero": lambda s: s["tables"]["T0"].update(maxRows=0),
        "maxRows is a string": lambda s: s["tables"]["T0"].update(maxRows="1"),
        "index of nothing": lambda s: s["tables"]["T0"].update(indexes=[[]]),
        "index of unknown column": lambda s: s["tables"]["T0"].update(indexes=[["nix"]]),
        "index twice the column": lambda s: s["tables"]["T0"].update(indexes=[["c0", "c0"]]),
        "index is no array": lambda s: s["tables"]["T0"].update(indexes=["c0"]),
        "column name is reserved": lambda s: s["tables"]["T0"]["columns"].update(_c={"type": "integer"}),
        "column name is no id": lambda s: s["tables"]["T0"]["columns"].update({"c c": {"type": "integer"}}),
        "column is a string": lambda s: s["tables"]["T0"]["columns"].update(c0="integer"),
        "column member too many": lambda s: s["tables"]["T0"]["columns"].update(c0={"type": "integer", "more": 1}),
        "column without type": lambda s: s["tables"]["T0"]["columns"].update(c0={}),
        "ephemeral is a number": lambda s: s["tables"]["T0"]["columns"].update(c0={"type": "integer", "ephemeral": 1}),
        "unknown type": lambda s: column(s, "float"),
        "type is a number": lambda s: column(s, 7),
        "type without key": lambda s: column(s, {"value": "integer"}),
        "type member too many": lambda s: column(s, {"key": "integer", "more": 1}),
        "min 2": lambda s: column(s, {"key": "integer", "min": 2, "max": 3}),
        "max 0": lambda s: column(s, {"key": "integer", "min": 0, "max": 0}),
        "max below min": lambda s: column(s, {"key": "integer", "min": 1, "max": 0}),
        "max is a word": lambda s: column(s, {"key": "integer", "max": "many"}),
        "max is a real": lambda s: column(s, {"key": "integer", "max": 1.5}),
        "enum empty": lambda s: column(s, {"key": {"type": "integer", "enum": ["set", []]}}),
        "enum of another type": lambda s: column(s, {"key": {"type": "integer", "enum": ["set", ["a"]]}}),
        "enum twice": lambda s: column(s, {"key": {"type": "integer", "enum": ["set", [1, 1]]}}),
        "enum and range": lambda s: column(s, {"key": {"type": "integer", "enum": ["set", [1]], "minInteger": 0}}),
        "minInteger of a string": lambda s: column(s, {"key": {"type": "string", "minInteger": 0}}),
        "minInteger above maxInteger": lambda s: column(s, {"key": {"type": "integer", "minInteger": 3, "maxInteger": 2}}),
        "minReal above maxReal": lambda s: column(s, {"key": {"type": "real", "minReal": 3, "maxReal": 2}}),
        "minLength above maxLength": lambda s: column(s, {"key": {"type": "string", "minLength": 3, "maxLength": 2}}),
        "minLength negative": lambda s: column(s, {"key": {"type": "string", "minLength": -1}}),
        "maxLength is a string": lambda s: column(s, {"key": {"type": "string", "maxLength": "1"}}),
        "refTable unknown": lambda s: column(s, {"key": {"type": "uuid", "refTable": "nix"}}),
        "refTable of a string": lambda s: column(s, {"key": {"type": "string", "refTable": "T0"}}),
        "refTable is no id": lambda s: column(s, {"key": {"type": "uuid", "refTable": "a b"}}),
        "refType unknown": lambda s: column(s, {"key": {"type": "uuid", "refTable": "T0", "refType": "mild"}}),
        "refType without refTable": lambda s: column(s, {"key": {"type": "uuid", "refType": "weak"}}),
        "ephemeral strong reference": lambda s: s["tables"]["T0"]["columns"].update(
            c0={"type": {"key": {"type": "uuid", "refTable": "T0"}}, "ephemeral": True}),
        "ephemeral weak reference": lambda s: s["tables"]["T0"]["columns"].update(
            c0={"type": {"key": {"type": "uuid", "refTable": "T0", "refType": "weak"}}, "ephemeral": True}),
        "index of an ephemeral column": lambda s: s["tables"]["T0"].update(
            columns={"e": {"type": "integer", "ephemeral": True}}, indexes=[["e"]]),
        "index over both": lambda s: s["tables"]["T0"].update(
            columns={"e": {"type": "integer", "ephemeral": True}, "f": {"type": "integer"}}, indexes=[["e", "f"]]),
    }
    for what, change in cases.items():
        yield what, made(change)
