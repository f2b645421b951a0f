"""Random values for columns: valid, boundary cases, and wrong in one way."""

from .names import sort_key
from .schemas import MAX_INTEGER, WORDS

EDGE_INTEGERS = (0, 1, -1, MAX_INTEGER, -MAX_INTEGER - 1, 2**31, -(2**31), 2**53 + 1, 1.0, 1e3, -0.0)
EDGE_REALS = (0, 0.0, -0.0, 1.5, 0.1, 1 / 3, 1e300, -1e300, 5e-324, 1e15, 1e16, 123456789012345678, 1e-7, 0.1 + 0.2, 2**53 + 1, 1e20)
WRONG = (None, True, 1.5, "word", -7, [], {}, ["set"], ["set", 1], ["map", []], ["map", [[1]]], ["set", [[1]]], ["uuid", "nix"], ["uuid"],
         ["named-uuid", "nosuch"], ["named-uuid", "1 2"], ["uuid", 5], ["set", ["set", []]], [1, 2, 3], 2**63, -(2**64), 1.7e308, ["set", [None]],
         ["uuid", "AAAAAAAA-1111-2222-3333-44444444444"], ["map", [[1, 2, 3]]], ["named-uuid", 3])


class Values:
    """`rows(table)` returns names of rows likely to exist; `named` holds the uuid-names of the transaction under
    construction, by table."""

    def __init__(self, rng, rows):
        self.rng = rng
        self.rows = rows
        self.named = {}

    def atom(self, base):
        rng = self.rng
        if "enum" in base:
            values = base["enum"][1] if isinstance(base["enum"], list) else [base["enum"]]
            return rng.choice(values)
        kind = base["type"]
        if kind == "integer":
            low, high = base.get("minInteger", -5), base.get("maxInteger", max(base.get("minInteger", 0), 0) + 5)
            low = min(low, high) if "minInteger" in base else high - 10
            if len(base) == 1 and rng.random() < 0.15:
                return rng.choice(EDGE_INTEGERS)
            return rng.choice((low, high)) if rng.random() < 0.2 else rng.randint(low, min(high, low + 20))
        if kind == "real":
            low, high = base.get("minReal", -1e3), base.get("maxReal", 1e3)
            if len(base) == 1 and rng.random() < 0.4:
                return rng.choice(EDGE_REALS)
            if low > high:
                low = high - 10
            return rng.choice((low, high)) if rng.random() < 0.3 else round(rng.uniform(low, min(high, low + 100)), rng.randint(0, 6))
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "string":
            low, high = base.get("minLength", 0), base.get("maxLength", 16)
            word = rng.choice(WORDS) + (rng.choice(WORDS) if rng.random() < 0.3 else "")
            while len(word) < low:
                word += rng.choice("xyzé")
            return word[: max(high, 0)]
        return self.reference(base.get("refTable"))

    def reference(self, table):
        rng = self.rng
        names = self.named.get(table, ()) if table else [name for names in self.named.values() for name in names]
        if names and rng.random() < 0.5:
            return ["named-uuid", rng.choice(list(names))]
        rows = self.rows(table)
        if rows and rng.random() < 0.97:
            return ["uuid", rng.choice(rows)]
        return ["uuid", f"@nowhere{rng.randint(0, 2)}@"]

    def cell(self, column):
        """A value that the column's type allows (references aside)."""
        rng = self.rng
        if column.scalar:
            return self.atom(column.key)
        high = int(min(column.max, rng.choice((1, 2, 3, 6))))
        count = rng.randint(column.min, max(high, column.min))
        keys, found = set(), []
        for _ in range(count * 3):
            if len(found) == count:
                break
            key = self.atom(column.key)
            # Numbers are equal however they are written.
            known = sort_key(float(key)) if isinstance(key, (int, float)) and not isinstance(key, bool) else sort_key(key)
            if known in keys:
                continue
            keys.add(known)
            found.append([key, self.atom(column.value)] if column.value else key)
        if column.value:
            return ["map", found]
        if len(found) == 1 and rng.random() < 0.6:
            return found[0]
        return ["set", found]

    def wrong(self, column):
        """A value that is wrong in one way (now and then it happens to be right)."""
        rng = self.rng
        choice = rng.random()
        if choice < 0.45:
            return rng.choice(WRONG)
        if choice < 0.6:
            return self.wrong_atom(column.key)
        if choice < 0.75:
            return ["set", [self.atom(column.key) for _ in range(rng.randint(0, 6))]]
        if choice < 0.9 and column.value:
            return ["map", [[self.atom(column.key), self.atom(column.value)] for _ in range(rng.randint(0, 6))]]
        atom = self.atom(column.key)
        return ["set", [atom, atom]] if not column.value else ["map", [[atom, self.wrong_atom(column.value)]]]

    def wrong_atom(self, base):
        rng = self.rng
        if "enum" in base:
            return 77 if base["type"] == "integer" else "not in the enumeration"
        if base["type"] == "integer":
            return rng.choice((base.get("minInteger", -(2**63)) - 1, base.get("maxInteger", MAX_INTEGER) + 1, 0.5))
        if base["type"] == "real":
            return rng.choice((base.get("minReal", 0) - 1, base.get("maxReal", 0) + 1))
        if base["type"] == "string":
            return rng.choice(("", "x" * (base.get("maxLength", 0) + 1)))
        if base["type"] == "boolean":
            return rng.choice((0, 1, "true"))
        return rng.choice((["uuid", "0"], "@nowhere0@", ["named-uuid", "gone"], ["uuid", "@nowhere1@", 1]))
