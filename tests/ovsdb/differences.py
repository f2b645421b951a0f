"""The deliberate differences, by name. Only the rules in this file forgive a pair of answers that differs.

`ambiguous` texts: if several rows (or several tables) are wrong at once, Debian's server names the one that comes first
in a hash table of UUIDs or names, which is random; ours names one of the same kind. Such a text may differ in the part
that says which, and only for a transaction that changes more than one row.
"""

import re

from .names import sort_key

# name: (what differs, why)
DELIBERATE = {
    "which violation": "of several violations of one kind, Debian's server names the first in hash order of UUIDs",
    "found after restart": "Debian's standalone server forgets its transactions at a restart; ours finds the last one a client knew, "
                           "so that monitor_cond_since answers found: true and a delta; what the client then holds is compared",
    "versions after a restart": "Debian's server gives each row another _version when it starts; ours keeps them",
    "a version seen before": "a _version follows from the row's UUID and the number of the commit on ours: what a transaction that fails, or leaves nothing, shows of a row that it "
                             "inserts with a UUID of its own is seen again when the next one inserts that UUID. A script ends there",
    "transaction ids": "zero on Debian's standalone server, real on ours",
    "sized set read back": "Debian's 3.1.0 reads back differently a set or map of limited size whose change it logged as a difference "
                           "(mended upstream in 3.3.0); such schemas are compacted before a restart, which logs whole rows",
    "log records of another form": "ours logs whole columns where Debian's would read a difference back wrongly (above); logs whose records differ must have the same "
                                   "effects, record by record",
    "reference in a pruned pair": "a map's pair goes when its weak key goes; Debian's server goes on counting the strong reference in the pair's value, so that the row "
                                  "it names cannot be deleted until the next start; columns of that type are not made",
    "required ephemeral reference": "Debian's server loses at a start the transactions that wrote rows with an ephemeral reference that may not be empty; such columns are "
                                    "not made",
    "overflow of a product": "of two negative integers Debian's server wraps some products around that do not fit, which is out of range on ours; it dies of a negative one "
                             "times 0; such products are not made",
    "negative zero in an index": "0.0 * -1 is another value than 0.0 in a declared index of Debian's server, and an equal one everywhere else; on ours it is equal. Indexed columns "
                                 "are not multiplied with what is negative",
    "dangling weak reference": "Debian's server keeps a weak reference to a row that goes in the transaction that changes the referring row, if it looked at that one "
                               "first; ours removes it. A script ends where Debian's database holds such a reference and the answers part",
    "written after nonsense": "where a file has a record that makes no sense, what Debian's 3.1.0 commits is written over the records before the end, and the next start finds "
                              "the file damaged; ours goes on at the end. Debian's does not write to such a file in a test",
    "a record's _uuid": "a row of a record of the log that names a column _uuid has that UUID on Debian's server, and cannot be found by it; ours passes over the column. No "
                        "server writes one, and no test",
    "the oracle died": "requests that end Debian's 3.1.0 with a signal (KILLS_STOCK, and some rarer): a script ends there",
    "wait timed out after": "the number of milliseconds in the text is the clock's",
    "combined updates": "updates of transactions sent at once, or released by one another, may come in one message or several; what they add up to is compared. "
                        "A wait is looked at after them all on ours, so none is pending when several are sent at once",
    "order of monitors": "updates of several monitors of one session caused by one transaction come in hash order of their ids; they are compared in order of ids",
}

# Requests that crash Debian's 3.1.0: never sent to it; test_bounds.py sends them to ours, which must answer.
KILLS_STOCK = (
    {"method": "monitor", "params": ["D"], "id": 1},
    {"method": "monitor", "params": ["D", "x"], "id": 1},
    {"method": "transact", "params": ["D", {"op": "insert", "table": "T", "row": {"i": 2**40}},
                                      {"op": "mutate", "table": "T", "where": [], "mutations": [["i", "*=", 0]]}], "id": 3},
    {"method": "transact", "params": ["D", {"op": "insert", "table": "T", "row": {"i": -(2**63)}},
                                      {"op": "mutate", "table": "T", "where": [], "mutations": [["i", "/=", -1]]}], "id": 4},
    # Two weak references of one map to one row.
    {"method": "transact", "params": ["D", {"op": "insert", "table": "T", "uuid-name": "n", "row": {"m": ["map", [[["named-uuid", "n"], ["named-uuid", "n"]]]]}}], "id": 5},
    {"method": "monitor_cond_since", "params": ["_Server", "m", {"Database": [{"columns": ["name"]}]}, "10000000-0000-0000-0000-000000000000"], "id": 2},
)

# Texts that name one of several: the kind must be the same, the rest may differ.
AMBIGUOUS = [re.compile(pattern, re.S) for pattern in (
    r"^cannot delete \S+ row \S+ because of \d+ remaining reference\(s\)$",
    r"^Table \S+ column \S+ row \S+( \([^)]*\))? references nonexistent row .* in table \S+\.$",
    r"^Transaction causes multiple rows in \"\S+\" table to have identical values .*$",
    r"^transaction causes \"\S+\" table to contain \d+ rows, greater than the schema-defined limit of \d+ row\(s\)$",
    r"^Weak reference column .*|^Deletion of \d+ weak reference.*$",
    # A mutation of several rows stops at the first row that is not allowed, an insert at the first default that is not.
    r"^\S+ is not in the valid range .*|^.* length \d+ is (less|greater) than (minimum|maximum) .*|^\S+ is (less|greater) than (minimum|maximum) .*|^.* is not one of the allowed values .*$"
    r"|^Division by zero\.$|^Result of \"[^\"]*\" operation (is out of range|contains duplicates)\.$|^Attempted to store \d+ elements .*$|^\d+ values? when type requires between.*$",
)]


NONEXISTENT = 1
IDENTICAL = 2
WEAK = 4
MUTATION = 5


def ambiguous_kind(text):
    for number, pattern in enumerate(AMBIGUOUS):
        if pattern.match(text):
            return number
    return None


def changes_several(step):
    """Returns true if more than one row can be wrong."""
    ops = [op.json for op in step.ops if isinstance(op.json, dict)]
    wide = [op for op in ops if op.get("op") in ("update", "mutate", "delete")]
    return len(ops) > 1 or bool(wide) or sort_key(ops).count('"uuid"') > 1


def same_error(mine, other, step):
    """Returns true if two error objects differ only in which of several violations they name."""
    if not (isinstance(mine, dict) and isinstance(other, dict)):
        return False
    kinds = [ambiguous_kind(one.get("details", "")) for one in (mine, other)]
    if mine.get("error") != other.get("error") and kinds != [MUTATION, MUTATION]:
        return False
    # Two rows with the same index value are named in hash order even if only one is new.
    inserts = any(isinstance(op.json, dict) and op.json.get("op") == "insert" for op in step.ops)
    return kinds[0] is not None and kinds[0] == kinds[1] and (kinds[0] == IDENTICAL or changes_several(step) or kinds[0] in (NONEXISTENT, WEAK, MUTATION) and inserts)


def without_milliseconds(value):
    """The text of a timeout without its number."""
    if isinstance(value, dict) and value.get("error") == "timed out":
        return dict(value, details=re.sub(r"after \d+ ms", "after N ms", value.get("details", "")))
    return value


def without_versions_of(rows, value):
    """The value without the numbers of the versions of these rows."""
    if isinstance(value, dict):
        return {key: without_versions_of(rows, member) for key, member in value.items()}
    if isinstance(value, list):
        return [without_versions_of(rows, one) for one in value]
    if isinstance(value, str) and value.startswith("version "):
        row = value.split(" of ")[-1]
        return f"version of {row}" if row in rows else value
    return value


def order_of_monitors(messages):
    """Sorts the updates between two other messages by their monitors' ids."""
    result, run = [], []
    for message in [*messages, None]:
        if message is not None and message.get("method") in ("update", "update2", "update3"):
            run.append(message)
            continue
        result += sorted(run, key=lambda one: sort_key(one["params"][0]))
        run = []
        if message is not None:
            result.append(message)
    return result
