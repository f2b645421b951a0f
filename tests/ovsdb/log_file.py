"""The log file of a standalone database: its records, and the database that they add up to."""

import hashlib
import re

from .connection import decode
from .rows import Schema, apply_difference, comparable

HEADER = re.compile(rb"OVSDB (JSON|CLUSTER) (\d+) ([0-9a-f]{40})\n")


class Damaged(Exception):
    """An incomplete record, and where it begins."""

    def __init__(self, text, offset):
        super().__init__(text)
        self.offset = offset


def text_of_record(body):
    """A record as it stands in the file."""
    return b"OVSDB JSON %d %s\n%s" % (len(body), hashlib.sha1(body).hexdigest().encode(), body)


def records(path, with_dates=False):
    """The parsed records, the schema first; checks every length and checksum."""
    content = path.read_bytes()
    at, found = 0, []
    while at < len(content):
        header = HEADER.match(content, at)
        if not header:
            raise Damaged(f"{path}: no record header at offset {at}: {content[at:at + 60]!r}", at)
        body = content[header.end() : header.end() + int(header[2])]
        if len(body) != int(header[2]) or hashlib.sha1(body).hexdigest().encode() != header[3]:
            raise Damaged(f"{path}: damaged record at offset {at}", at)
        record = decode(body.decode())
        if found and not with_dates:
            record.pop("_date", None)
        found.append(record)
        at = header.end() + len(body)
    return found


def contents(log):
    """Table -> UUID -> column -> full value, from parsed records; ephemeral columns have their defaults."""
    tables = {}
    for _, tables in states(log):
        pass
    return tables


def effects(log):
    """For each record that changes something, its comment and the changed rows as they are afterwards (None: deleted).

    The result does not depend on whether a column is logged as a difference or in full. Records that change nothing are
    left out.
    """
    before = {}
    for record, tables in states(log):
        touched = {}
        for table, changes in record.items():
            for row in changes if not table.startswith("_") else ():
                after = tables[table].get(row)
                after = after and {name: comparable(value) for name, value in after.items()}
                if before.get((table, row)) != after:
                    touched[table, row] = before[table, row] = after
        if touched:
            yield [record.get("_comment"), {" ".join(key): after for key, after in touched.items()}]


def states(log):
    """Yields each record after the schema, and the tables after it (the same object each time)."""
    schema = Schema(log[0])
    tables = {table: {} for table in schema.tables}
    for record in log[1:]:
        for table, changes in record.items():
            if table.startswith("_"):
                continue
            rows = tables[table]
            for uuid, change in changes.items():
                if change is None:
                    rows.pop(uuid, None)
                elif uuid not in rows:
                    rows[uuid] = schema.complete(table, change)
                elif record.get("_is_diff"):
                    for column, value in change.items():
                        rows[uuid][column] = apply_difference(schema.columns(table)[column], rows[uuid][column], value)
                else:
                    rows[uuid].update({column: schema.normal(table, column, value) for column, value in change.items()})
        yield record, tables
