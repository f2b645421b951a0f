"""Faulty servers: each modifies the subject's messages, once it can, to imitate a server with that bug; the test must
detect it.

A mutant is created anew for each script: `mutant(session, messages, step)` returns the messages of one session for one
step.
"""

import copy

UPDATES = ("update", "update2", "update3")


def is_update(message):
    return message.get("method") in UPDATES


def per_message(change, after=20):
    """Applies `change(message)`, which returns true if it changed its copy, to one message, after some have passed."""

    def make():
        state = {"passed": 0, "done": False}

        def mutant(session, messages, step):
            result = []
            for message in messages:
                state["passed"] += 1
                if not state["done"] and state["passed"] > after:
                    message = copy.deepcopy(message)
                    state["done"] = bool(change(message))
                result.append(message)
            return result

        return mutant

    return make


def per_session(change):
    """As `per_message`, for the list of messages: `change(list)` returns another list or None."""

    def make():
        state = {"done": False}

        def mutant(session, messages, step):
            if state["done"] or session == "dump":
                return messages
            changed = change(list(messages), step)
            if changed is None:
                return messages
            state["done"] = True
            return changed

        return mutant

    return make


def results(message, member):
    found = message.get("result")
    return [one for one in found if isinstance(one, dict) and member in one] if isinstance(found, list) else []


def count_is_wrong(message):
    for one in results(message, "count"):
        one["count"] += 1
        return True


def text_is_wrong(message):
    for one in results(message, "details"):
        if "remaining" not in one["details"] and "nonexistent" not in one["details"] and "identical" not in one["details"]:
            one["details"] += "."
            return True


def syntax_is_missing(message):
    for one in results(message, "syntax"):
        del one["syntax"]
        return True


def row_is_missing(message):
    for one in results(message, "rows"):
        if one["rows"]:
            one["rows"].pop()
            return True


def null_is_missing(message):
    found = message.get("result")
    if isinstance(found, list) and found and found[-1] is None:
        found.pop()
        return True


def map_rows(message, change):
    """Tries `change(table changes of one row)` on each row of an update2 or update3."""
    if message.get("method") not in UPDATES[1:]:
        return False
    for rows in message["params"][-1].values():
        for row in rows.values():
            if change(row):
                return True
    return False


def default_is_sent(message):
    def change(row):
        if "insert" in row and "c0" not in row["insert"]:
            row["insert"]["c0"] = 0
            return True

    return map_rows(message, change)


def modify_is_whole(message):
    def change(row):
        if "modify" in row and row["modify"]:
            row["modify"].pop(sorted(row["modify"])[0])
            return True

    return map_rows(message, change)


def delete_is_lost(message):
    if is_update(message):
        for rows in message["params"][-1].values():
            for row, change in rows.items():
                if "delete" in change or "old" in change and "new" not in change:
                    del rows[row]
                    return True


def old_is_missing(message):
    if message.get("method") == "update":
        for rows in message["params"][-1].values():
            for change in rows.values():
                if "old" in change and "new" in change:
                    del change["old"]
                    return True


def set_is_not_sorted(message):
    for one in results(message, "rows"):
        for row in one["rows"]:
            for value in row.values():
                if isinstance(value, list) and value[0] == "set" and len(value[1]) > 1 and not isinstance(value[1][0], list):
                    value[1].reverse()
                    return True


def integer_is_real(message):
    from .connection import Real

    for one in results(message, "rows"):
        for row in one["rows"]:
            for name, value in row.items():
                if type(value) is int:
                    row[name] = Real(f"{value}.0")
                    return True


def version_is_kept(message):
    if message.get("method") in UPDATES:
        for rows in message["params"][-1].values():
            for change in rows.values():
                for part in change.values():
                    if isinstance(part, dict) and "_version" in part:
                        del part["_version"]
                        return True


def escape_is_spelled_otherwise(message):
    if "(spelled)" in message:
        message["(spelled)"] = message["(spelled)"][:-1] + [message["(spelled)"][-1] + "?"]
        return True


def reply_before_update(messages, step):
    for at in range(len(messages) - 1):
        if is_update(messages[at]) and "result" in messages[at + 1] and type(step).__name__ == "Transact":
            return messages[:at] + [messages[at + 1], messages[at]] + messages[at + 2 :]
    return None


def update_is_lost(messages, step):
    for at, message in enumerate(messages):
        if is_update(message):
            return messages[:at] + messages[at + 1 :]
    return None


def update_comes_twice(messages, step):
    for at, message in enumerate(messages):
        if is_update(message):
            return messages[: at + 1] + messages[at:]
    return None


def no_change_is_told(messages, step):
    if type(step).__name__ == "Transact" and messages and not any(is_update(one) for one in messages):
        return [{"id": None, "method": "update", "params": [1, {}]}, *messages]
    return None


def lock_is_told_wrong(messages, step):
    for message in messages:
        if isinstance(message.get("result"), dict) and "locked" in message["result"]:
            return [dict(one, result={"locked": not one["result"]["locked"]}) if one is message else one for one in messages]
    return None


MUTANTS = {
    "count is wrong": per_message(count_is_wrong),
    "error text is wrong": per_message(text_is_wrong),
    "syntax is missing": per_message(syntax_is_missing),
    "a row is missing": per_message(row_is_missing),
    "nulls after an error are missing": per_message(null_is_missing),
    "a default is sent": per_message(default_is_sent),
    "a column of modify is missing": per_message(modify_is_whole),
    "a delete is lost": per_message(delete_is_lost),
    "old is missing": per_message(old_is_missing),
    "a set is not sorted": per_message(set_is_not_sorted),
    "an integer is written as a real": per_message(integer_is_real),
    "a version is missing": per_message(version_is_kept),
    "an escape is spelled otherwise": per_message(escape_is_spelled_otherwise),
    "the reply comes before its update": per_session(reply_before_update),
    "an update is lost": per_session(update_is_lost),
    "an update comes twice": per_session(update_comes_twice),
    "no change is told": per_session(no_change_is_told),
    "a lock is told wrong": per_session(lock_is_told_wrong),
}
