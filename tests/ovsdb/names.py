"""The same name for the same row on both servers.

Requests contain names, `@name@`, in place of UUIDs; each side substitutes its own UUID. A name is bound when the reply
to its insert arrives. A name that is not bound (the insert failed) stands for a UUID derived from the name alone.
Answers are compared, and used by the generator, with names in place of UUIDs:

    rows           @name@
    row versions   "version K of @name@", K counting the versions seen of that row
    other UUIDs    "other uuid"
    sets and maps with UUIDs are sorted by name, rows of a select by content: their order is random
"""

import json
import re
import uuid

UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
NAME = re.compile(r"@[A-Za-z0-9_.]+@")
NAMESPACE = uuid.UUID("d0a6e8c4-4d1b-4a53-9a0e-8c8d2f7a1b11")
ZERO = "00000000-0000-0000-0000-000000000000"


def sort_key(value):
    return json.dumps(value, sort_keys=True)


class Names:
    def __init__(self):
        self.uuid_of = {}
        self.name_of = {ZERO: ZERO}
        self.versions = {}

    def bind(self, name, text):
        self.uuid_of[name] = text
        if text not in self.name_of:
            self.name_of[text] = name

    def uuid(self, name):
        if name not in self.uuid_of:
            stable = str(uuid.uuid5(NAMESPACE, name))
            self.name_of.setdefault(stable, name)
            return stable
        return self.uuid_of[name]

    def to_wire(self, text):
        return NAME.sub(lambda match: self.uuid(match.group()), text)

    def of(self, text):
        return self.name_of.get(text.lower(), "other uuid")

    def text(self, text):
        return UUID.sub(lambda match: self.of(match.group()), text) if len(text) >= 36 else text

    def version(self, row, text):
        if row is None:
            return "version"
        seen = self.versions.setdefault(row, [])
        if text not in seen:
            seen.append(text)
        return f"version {seen.index(text)} of {row}"

    def canonical(self, value, row=None):
        """The value with names; `row` is the UUID of the row that contains it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            if "_uuid" in value and isinstance(value["_uuid"], list):
                row = self.of(value["_uuid"][1])
            result = {}
            # A row's old version is processed before its new one, whichever the server writes first.
            for key, member in sorted(value.items(), key=lambda one: one[0] == "new"):
                if key == "_version" and isinstance(member, list) and member[:1] == ["uuid"]:
                    result[key] = ["uuid", self.version(row, member[1])]
                elif key == "rows" and isinstance(member, list) and member and isinstance(member[0], dict):
                    result[key] = sorted((self.canonical(one) for one in member), key=sort_key)
                elif len(key) == 36 and UUID.fullmatch(key):
                    name = self.of(key)
                    result[name] = self.canonical(member, name)
                else:
                    result[key] = self.canonical(member, row)
            return result
        if isinstance(value, list):
            result = [self.canonical(one, row) for one in value]
            if len(value) == 2 and value[0] in ("set", "map") and isinstance(value[1], list) and '["uuid"' in sort_key(value[1]):
                result[1] = sorted(result[1], key=sort_key)
            return result
        return value
