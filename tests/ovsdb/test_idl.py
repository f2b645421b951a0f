"""The Python IDL (python3-openvswitch) on our server: replica, transactions, conditions, locks, reconnecting."""

import json
import time

import pytest

from .connection import Connection
from .conftest import SMALL
from .servers import PATIENCE_S, import_ovs

import_ovs()


@pytest.fixture
def idl_module():
    import ovs.db.idl

    return ovs.db.idl


def open_idl(module, server, columns=("key", "s", "i", "m", "set", "refs")):
    helper = module.SchemaHelper(None, schema_json=json.loads(json.dumps(SMALL)))
    helper.register_columns("T", list(columns))
    return module.Idl(f"unix:{server.sock}", helper)


def run_until(idls, check):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for idl in idls:
            idl.run()
        if check():
            return
        assert time.monotonic() < deadline
        time.sleep(0.002)


def commit(module, idl, change):
    """Runs one transaction through the IDL to completion."""
    transaction = module.Transaction(idl)
    change(transaction)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = transaction.commit()
        if status != module.Transaction.INCOMPLETE:
            return status, transaction
        idl.run()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def rows(idl):
    return {row.key: row for row in idl.tables["T"].rows.values()}


def test_replicas_follow(idl_module, small):
    writer, reader = open_idl(idl_module, small), open_idl(idl_module, small)
    run_until([writer, reader], lambda: writer.has_ever_connected() and reader.has_ever_connected())

    def insert(transaction):
        for number in range(20):
            row = transaction.insert(writer.tables["T"])
            row.key, row.s, row.m, row.set = number, f"row {number}", {"a": str(number)}, [3, 1, number + 10]

    assert commit(idl_module, writer, insert)[0] == idl_module.Transaction.SUCCESS
    run_until([writer, reader], lambda: len(rows(reader)) == 20)
    assert rows(reader)[7].m == {"a": "7"} and rows(reader)[7].set == [1, 3, 17]

    def change(transaction):
        first = rows(writer)
        first[0].refs = [first[1], first[2]]
        first[3].setkey("m", "b", "new")
        first[4].delkey("m", "a")
        first[5].addvalue("set", 99)
        first[6].delvalue("set", 1)
        first[19].delete()
        transaction.add_comment("from the IDL")

    assert commit(idl_module, writer, change)[0] == idl_module.Transaction.SUCCESS
    run_until([writer, reader], lambda: len(rows(reader)) == 19)
    found = rows(reader)
    assert {row.key for row in found[0].refs} == {1, 2}
    assert found[3].m == {"a": "3", "b": "new"} and found[4].m == {} and 99 in found[5].set and found[6].set == [3, 16]
    # The index refuses a second row with the same key.
    status, transaction = commit(idl_module, writer, lambda t: setattr(t.insert(writer.tables["T"]), "key", 3))
    assert status == idl_module.Transaction.ERROR and "identical values" in transaction.get_error()

    def count(transaction):
        rows(writer)[1].s = "counted"
        rows(writer)[1].increment("i")

    status, transaction = commit(idl_module, writer, count)
    assert status == idl_module.Transaction.SUCCESS and transaction.get_increment_new_value() == 1
    writer.close()
    reader.close()


def test_conditions_and_a_restart(idl_module, small):
    with Connection(small.sock) as peer:
        peer.transact("D", *({"op": "insert", "table": "T", "row": {"key": number, "i": number % 3}} for number in range(30)), {"op": "commit", "durable": True})
    idl = open_idl(idl_module, small)
    idl.cond_change("T", [["i", "==", 1]])
    run_until([idl], lambda: len(rows(idl)) == 10)
    idl.cond_change("T", [["i", "==", 2], ["key", "==", 0]])
    run_until([idl], lambda: len(rows(idl)) == 11)
    before = idl.change_seqno
    small.kill()
    small.start()
    with Connection(small.sock) as peer:
        peer.transact("D", {"op": "update", "table": "T", "where": [["key", "==", 0]], "row": {"s": "after"}}, {"op": "delete", "table": "T", "where": [["key", "==", 2]]})
    run_until([idl], lambda: len(rows(idl)) == 10 and rows(idl)[0].s == "after")
    assert idl.change_seqno != before
    assert commit(idl_module, idl, lambda t: setattr(rows(idl)[5], "s", "written"))[0] == idl_module.Transaction.SUCCESS
    idl.close()


def test_locks(idl_module, small):
    first, second = open_idl(idl_module, small), open_idl(idl_module, small)
    first.set_lock("L")
    run_until([first, second], lambda: first.has_lock)
    second.set_lock("L")
    run_until([first, second], lambda: second.is_lock_contended)
    assert commit(idl_module, second, lambda t: setattr(t.insert(second.tables["T"]), "key", 1))[0] in (
        idl_module.Transaction.NOT_LOCKED, idl_module.Transaction.TRY_AGAIN)
    first.set_lock(None)
    run_until([first, second], lambda: second.has_lock)
    assert commit(idl_module, second, lambda t: setattr(t.insert(second.tables["T"]), "key", 1))[0] == idl_module.Transaction.SUCCESS
    first.close()
    second.close()
