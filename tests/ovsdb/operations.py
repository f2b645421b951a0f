"""Random transactions, monitors and requests on a database whose rows are approximately known."""

from .names import ZERO, sort_key
from .script import Burst, Compact, Dump, Monitor, Op, Raw, Reopen, Request, Restart, Transact
from .values import WRONG, Values

FUNCTIONS = ("==", "!=", "<", "<=", ">", ">=", "includes", "excludes")
MUTATORS = ("+=", "-=", "*=", "/=", "%=", "insert", "delete")
# Debian's server divides to check a product for overflow, which crashes it (differences.KILLS_STOCK) or gives a wrong
# result (differences.DELIBERATE).
DIVIDES = {("*=", 0), ("/=", -1), ("%=", -1)}
LOCKS = ("one", "two", "_reserved", "a.b")
RAW = (
    b"{", b"[]", b"nonsense", b'{"method":"echo","params":[],"id":1,,}', b'{"id":1,"method":"echo","params":{}}', b'"text"', b"12 ",
    b'{"method":7,"params":[],"id":1}', b'{"id":"x","result":[],"error":null}', b'{"id":1,"error":"?"}', b'{"method":"echo","id":1}',
    b'{"method":"echo","params":[],"id":1,"more":2}', b'{"method":"echo","params":["\xff"],"id":1}', b'{"method":"echo","params":["\\ud800"],"id":1}',
    b'{"method":"echo","params":["\\u0000"],"id":1}', b'{"method":"echo","params":[1e999],"id":1}', b'{"method":"echo","params":[01],"id":1}',
    b'{"method":"echo","params":[1.],"id":1}', b'{"method":"echo","params":["a\nb"],"id":1}', b'{"method":"echo","params":[tru],"id":1}',
    b'{"method":"echo","params":[1 2],"id":1}', b'{"method":"echo","params":["\\x"],"id":1}', b'{"result":1,"id":1}', b"{}", b'{"id":null}',
    b'{"method":"echo","params":[],"id":1}{"method":"echo","params":[2],"id":2}}', b'\x00', b'{"method":"nix","params":[],"id":null}',
    b'{"method":"echo","params":[],"id":1,"id":2}', b'{"method":"echo","method":"nix","params":[],"id":3}', b'   {"id":4,"params":[],"method":"echo"}',
    b'{"method":"echo","params":[9223372036854775808,-9223372036854775809,1e18,1e19,12345678901234567890e-3,0.1e1,-0,-0.0],"id":1}',
    b'{"method":"echo","params":["\\u00e9\\ud834\\udd1e\\/\\b\\f\\n\\r\\t\\u001f"],"id":1}', b'{"error":null,"result":null,"id":9}',
    b'{"method":"transact","params":["D",{"op":"comment","comment":"a","comment":"b"}],"id":5}',
    b'{"method":"echo","params":[' + b"[" * 900 + b"]" * 900 + b'],"id":1}', b'{"method":"echo","params":[' + b"[" * 1100 + b"]" * 1100 + b'],"id":1}',
    b'{"method":"transact","params":["D",{"op":"select","table":"T0","where":[],"where":[["_uuid","==",["uuid","@nowhere0@"]]]}],"id":5}',
)


class Generator:
    """Generates one step at a time; `learn` passes it the oracle's answers, with names for UUIDs."""

    def __init__(self, rng, schemas, restarts=True):
        self.rng = rng
        self.schemas = schemas
        self.restarts = restarts
        self.live = {name: {table: {} for table in schema.tables} for name, schema in schemas.items()}
        self.count = 0
        self.sessions = ["a", "b", "c", "d"]
        self.monitors = {}
        self.since_dump = 0
        # Whether a transaction is waiting.
        self.waiting = False

    # What is known

    def learn_dump(self, database, table, rows):
        self.live[database][table] = {row["_uuid"][1]: row for row in rows}

    def learn_insert(self, database, table, name):
        if table in self.live.get(database, {}):
            self.live[database][table].setdefault(name, None)

    def rows_of(self, database):
        def rows(table):
            tables = self.live[database]
            return sorted(tables[table]) if table in tables else sorted(name for rows in tables.values() for name in rows)

        return rows

    # Steps

    def next(self):
        rng = self.rng
        self.since_dump += 1
        if self.since_dump > 14:
            self.since_dump = 0
            return Dump()
        choice = rng.random()
        if choice < 0.80:
            return self.transact()
        if choice < 0.84 and not self.waiting:
            session = rng.choice(self.sessions)
            return Burst([self.transact(session, plain=True) for _ in range(rng.randint(2, 12))])
        if choice < 0.88:
            return self.monitor()
        if choice < 0.92:
            return self.condition_change()
        if choice < 0.935:
            return self.monitor_cancel()
        if choice < 0.955:
            return self.lock()
        if choice < 0.975:
            return self.odd_request()
        if choice < 0.98:
            return Raw(rng.choice(self.sessions), rng.choice(RAW))
        if choice < 0.987:
            session = rng.choice(self.sessions)
            self.forget(session)
            return Reopen(session)
        if not self.restarts:
            return Dump()
        if choice < 0.992:
            return Compact(rng.choice(sorted(self.schemas)))
        self.monitors = {key: value for key, value in self.monitors.items() if value.whole and value.method == "monitor_cond_since"}
        return Restart(kill=rng.random() < 0.5, compact=rng.random() < 0.3, swap=rng.random() < 0.4)

    def forget(self, session):
        self.monitors = {key: value for key, value in self.monitors.items() if key[0] != session}

    def new_id(self):
        self.count += 1
        return self.rng.choice((self.count, self.count, f"i{self.count}", [self.count, {"a": None}], {"n": self.count}))

    def transact(self, session=None, plain=False):
        rng = self.rng
        database = rng.choice(sorted(self.schemas))
        number = self.new_id()
        values = Values(rng, self.rows_of(database))
        schema = self.schemas[database]
        count = rng.choice((1, 1, 1, 2, 2, 3, 4, 6, 9))
        self.transaction = self.count
        ops = []
        # Names of rows inserted later may be used earlier.
        tables = [rng.choice(sorted(schema.tables)) for _ in range(count)]
        kinds = [rng.choices(("insert", "update", "mutate", "delete", "select", "rare"), (36, 22, 18, 8, 8, 6))[0] for _ in range(count)]
        uuid_names = {}
        for at, (table, kind) in enumerate(zip(tables, kinds)):
            if kind == "insert" and rng.random() < 0.6:
                uuid_names[at] = f"n{at}"
                values.named.setdefault(table, []).append(f"n{at}")
        bad_at = rng.randrange(count) if rng.random() < 0.12 else None
        by_clock = False
        for at, (table, kind) in enumerate(zip(tables, kinds)):
            operation = Operation(self, rng, schema, database, table, values, plain)
            op = operation.make(kind, at, uuid_names.get(at))
            if at == bad_at:
                spoil(rng, op.json, schema, operation, values)
            ops.append(op)
            by_clock = by_clock or operation.by_clock
        if by_clock:
            # A wait without a timeout in the same transaction would hold back the reply.
            for op in ops:
                if isinstance(op.json, dict) and op.json.get("op") == "wait" and type(op.json.get("timeout", 10)) is int:
                    op.json["timeout"] = min(op.json.get("timeout", 9), 9)
        if rng.random() < 0.06:
            ops.append(Op({"op": "commit", "durable": rng.random() < 0.5}))
        if rng.random() < 0.1:
            ops.append(Op({"op": "comment", "comment": rng.choice(("why", "é", "", "two\nlines", "\\"))}))
        if not plain and rng.random() < 0.02:
            database = rng.choice(("nix", 5, None, "_Server"))
        if not plain and rng.random() < 0.01:
            ops.append(Op(rng.choice(([], 3, "op", {"op": 7}, {}, {"op": "nix"}, {"table": "T0"}))))
        return Transact(session or rng.choice(self.sessions), number, database, ops, by_clock=by_clock, style=rng.randrange(4))

    # Monitors

    def table_request(self, table, schema, conditional):
        rng = self.rng
        columns = sorted(schema.columns(table))
        request, whole = {}, True
        if rng.random() < 0.7:
            request["columns"] = rng.sample(columns, rng.randint(1, len(columns)))
            if rng.random() < 0.1:
                request["columns"].append("_version")
        if rng.random() < 0.2:
            request["select"] = {kind: rng.random() < 0.5 for kind in ("initial", "insert", "delete", "modify") if rng.random() < 0.7}
            whole = all(request["select"].values())
        if conditional and rng.random() < 0.6:
            request["where"] = self.condition(table, schema)
        return request, whole

    def condition(self, table, schema, many=0.1, safe=False):
        rng = self.rng
        values = Values(rng, self.rows_of(schema.name))
        if rng.random() < 0.12:
            return rng.choice(([], [True], [False], [True, False]))
        count = 30 if rng.random() < many else rng.choice((1, 1, 2, 3))
        return [clause(rng, schema, table, values, self.live[schema.name][table], monitor=True, safe=safe) for _ in range(count)]

    def monitor(self):
        rng = self.rng
        if rng.random() < 0.06:
            return self.server_monitor()
        database = rng.choice(sorted(self.schemas))
        schema = self.schemas[database]
        method = rng.choice(("monitor", "monitor_cond", "monitor_cond_since", "monitor_cond_since"))
        requests, whole = {}, True
        for table in rng.sample(sorted(schema.tables), rng.randint(1, len(schema.tables))):
            request, one_whole = self.table_request(table, schema, method != "monitor")
            whole = whole and one_whole
            requests[table] = request if rng.random() < 0.5 else [request]
            if rng.random() < 0.06 and request.get("columns"):
                # Two requests for one table must not name a column twice; the refusal is compared as well.
                rest = [name for name in schema.columns(table) if name not in request["columns"]]
                requests[table] = [request, {"columns": rest or request["columns"]}]
                whole = False
        if rng.random() < 0.05 and not any(isinstance(one, list) and len(one) > 1 for one in requests.values()):
            whole = False
            requests[rng.choice(sorted(requests) + ["nix"])] = rng.choice(
                ({"columns": ["nix"]}, {"select": {"nix": True}}, {"columns": "c0"}, {"more": 1}, 5, [], [5], {"where": 5}, {"where": [["c0"]]},
                 {"where": [["nix", "==", 1]]}, {"select": []}, {"columns": ["c0", "c0"]}, {"where": ["x"]}, {"select": {"initial": 1}}))
        session = rng.choice(self.sessions)
        identity = rng.choice((f"m{self.count}", self.count, ["m", self.count], {"m": self.count}, None))
        step = Monitor(session, self.new_id(), method, database, identity, requests, "@none@" if rng.random() < 0.5 else "nix" if rng.random() < 0.05
                       else ZERO, whole)
        # An existing monitor is kept: the request is refused.
        self.monitors.setdefault((session, sort_key(identity)), step)
        return step

    def server_monitor(self):
        rng = self.rng
        session = rng.choice(self.sessions)
        step = Monitor(session, self.new_id(), rng.choice(("monitor", "monitor_cond", "monitor_cond_since")), "_Server", f"s{self.count}",
                       {"Database": [{"columns": ["name", "model", "connected", "leader", "schema", "cid", "sid", "index"]}]}, ZERO, False)
        self.monitors[session, sort_key(step.monitor)] = step
        return step

    def pick_monitor(self):
        keys = sorted(self.monitors)
        return self.monitors[self.rng.choice(keys)] if keys else None

    def condition_change(self):
        rng = self.rng
        monitor = self.pick_monitor()
        if monitor is None or monitor.database not in self.schemas:
            return self.monitor()
        schema = self.schemas[monitor.database]
        changes = {}
        # If one table's condition is wrong, Debian's server silently keeps those before it: so none of several
        # conditions is wrong.
        tables = [table for table in sorted(monitor.requests) if table in schema.tables and rng.random() < 0.7]
        for table in tables:
            if table in schema.tables:
                change = {"where": self.condition(table, schema, many=0.2, safe=len(tables) > 1)}
                changes[table] = change if len(tables) == 1 and rng.random() < 0.1 else [change]
        if rng.random() < 0.05:
            changes = {}
            changes[rng.choice(("T0", "nix"))] = rng.choice((5, [5], {"where": 7}, {"more": []}, {"where": [["nix", "==", 1]]}, {}))
        new = monitor.monitor
        if rng.random() < 0.15 and sort_key([monitor.session, new]) not in self.monitors:
            new = f"renamed{self.count}"
            self.monitors.pop((monitor.session, sort_key(monitor.monitor)), None)
            self.monitors[monitor.session, sort_key(new)] = monitor
        old, number = monitor.monitor, self.new_id()
        if rng.random() < 0.04:
            old = "nix"
        return Request(monitor.session, {"method": "monitor_cond_change", "params": [old, new, changes], "id": number})

    def monitor_cancel(self):
        rng = self.rng
        monitor = self.pick_monitor()
        if monitor is None:
            return self.monitor()
        key = monitor.session, sort_key(monitor.monitor)
        params = rng.choice(([monitor.monitor],) * 6 + (["nix"], [], [1, 2]))
        if params == [monitor.monitor]:
            self.monitors.pop(key, None)
        return Request(monitor.session, {"method": "monitor_cancel", "params": params, "id": self.new_id()})

    # The rest

    def lock(self):
        rng = self.rng
        method = rng.choice(("lock", "lock", "steal", "unlock"))
        params = [rng.choice(LOCKS)]
        if rng.random() < 0.1:
            params = rng.choice(([], [5], ["a b"], ["one", "two"], [""], [None]))
        return Request(rng.choice(self.sessions), {"method": method, "params": params, "id": self.new_id()})

    def odd_request(self):
        rng = self.rng
        method, params = rng.choice((
            ("list_dbs", []), ("list_dbs", [1]), ("get_schema", ["D"]), ("get_schema", ["nix"]), ("get_schema", []), ("get_schema", [7]), ("get_schema", ["D", 1]),
            ("get_schema", ["_Server"]), ("echo", [1, {"a": [None, True, 1.5, "é\n"]}]), ("nix", []), ("get_server_id", []), ("get_server_id", [1]),
            ("set_db_change_aware", [True]), ("set_db_change_aware", [False]), ("set_db_change_aware", []), ("set_db_change_aware", [1]),
            ("transact", []), ("transact", [5]), ("monitor", []), ("monitor", ["D", "x", 5]), ("monitor_cond", ["D", "x", []]),
            ("monitor", ["nix", "x", {}]), ("monitor_cond_since", ["D", "y", {}]), ("monitor_cond_since", ["D", "y", {}, 5]), ("monitor_cond_change", []),
            ("monitor_cond_change", ["x", "y"]), ("monitor_cond_change", [1, 2, 3]), ("cancel", [1]), ("lock", []), ("convert", []), ("convert", ["nix", {}]),
            ("monitor2", ["D", "x", {}]), ("monitor_cancel", []), ("unlock", ["never"]), ("", []),
        ))
        return Request(rng.choice(self.sessions), {"method": method, "params": params, "id": self.new_id()})


class Operation:
    """Generates one operation on one table."""

    def __init__(self, generator, rng, schema, database, table, values, plain):
        self.generator, self.rng, self.schema, self.database, self.table = generator, rng, schema, database, table
        self.values, self.plain = values, plain
        self.columns = schema.columns(table)
        self.by_clock = False

    def make(self, kind, at, uuid_name):
        if kind == "rare":
            kind = self.rng.choice(("wait", "wait", "abort", "assert", "comment", "delete", "select"))
            if self.plain and kind in ("wait", "abort"):
                kind = "select"
        op = getattr(self, kind)(at, uuid_name)
        if kind == "insert":
            return op
        return Op(self.shuffled(op))

    def shuffled(self, members):
        items = list(members.items())
        self.rng.shuffle(items)
        return dict(items)

    def row(self, share):
        return {name: self.values.cell(column) for name, column in self.columns.items() if self.rng.random() < share}

    def where(self):
        rng = self.rng
        rows = self.generator.live[self.database][self.table]
        choice = rng.random()
        if choice < 0.45 and rows:
            return [["_uuid", "==", ["uuid", rng.choice(sorted(rows))]]]
        if choice < 0.55 and self.values.named.get(self.table):
            return [["_uuid", rng.choice(("==", "==", "!=")), ["named-uuid", rng.choice(self.values.named[self.table])]]]
        if choice < 0.65:
            return []
        return [clause(rng, self.schema, self.table, self.values, rows) for _ in range(rng.choice((1, 1, 1, 2, 3)))]

    def insert(self, at, uuid_name):
        rng = self.rng
        name = f"@r{self.generator.transaction}.{at}@"
        members = {"op": "insert", "table": self.table, "row": self.row(rng.choice((0, 0.3, 0.8, 1)))}
        # With a uuid-name other operations can refer to the row; references are what keeps a row that is not a root.
        if uuid_name is not None:
            members["uuid-name"] = uuid_name
        if rng.random() < 0.15:
            rows = self.generator.live[self.database][self.table]
            members["uuid"] = rng.choice(sorted(rows)) if rows and rng.random() < 0.2 else name
        return Op(self.shuffled(members), name)

    def update(self, at, uuid_name):
        share = self.rng.choice((0.2, 0.5, 1))
        return {"op": "update", "table": self.table, "where": self.where(), "row": self.row(share)}

    def mutate(self, at, uuid_name):
        rng = self.rng
        mutations = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            name = rng.choice(sorted(self.columns))
            mutations.append(self.mutation(name, self.columns[name]))
        return {"op": "mutate", "table": self.table, "where": self.where(), "mutations": mutations}

    def mutation(self, name, column):
        rng, values = self.rng, self.values
        numeric = column.key["type"] in ("integer", "real") and column.value is None
        if numeric and (column.scalar or rng.random() < 0.5):
            operand = rng.choice((0, 1, 2, -1, 3, 7, 2**62, -(2**63))) if column.key["type"] == "integer" else rng.choice((0, 1, 0.5, -2.5, 1e308, 3))
            mutator = rng.choice(MUTATORS[:5])
            if (mutator, operand) in DIVIDES or mutator == "*=" and column.key["type"] == "integer" and operand == -1:
                operand = 2
            if column.key["type"] == "real" and operand < 0 and self.schema.is_indexed(self.table, name):
                operand = 3
            return [name, mutator, operand]
        if rng.random() < 0.05:
            return [name, rng.choice(MUTATORS if not numeric else ("insert", "delete")), values.cell(column)]
        if rng.random() < 0.5:
            if column.value is not None and column.key["type"] != "uuid" and rng.random() < 0.4:
                keys = {sort_key(key): key for key in (values.atom(column.key) for _ in range(rng.randint(0, 3)))}
                return [name, "delete", ["set", list(keys.values())]]
            return [name, "delete", values.cell(column)]
        return [name, "insert", values.cell(column)]

    def delete(self, at, uuid_name):
        where = self.where()
        if not where and self.rng.random() < 0.7:
            where = [clause(self.rng, self.schema, self.table, self.values, self.generator.live[self.database][self.table])]
        return {"op": "delete", "table": self.table, "where": where}

    def select(self, at, uuid_name):
        members = {"op": "select", "table": self.table, "where": self.where()}
        if self.rng.random() < 0.6:
            members["columns"] = self.rng.sample(sorted(self.columns), self.rng.randint(0, len(self.columns)))
            if self.rng.random() < 0.3:
                members["columns"] += ["_uuid"]
        return members

    def wait(self, at, uuid_name):
        rng = self.rng
        columns = rng.sample(sorted(self.columns), rng.randint(1, len(self.columns)))
        known = [row for row in self.generator.live[self.database][self.table].values() if row]
        rows = []
        for _ in range(rng.choice((0, 1, 1, 2))):
            source = rng.choice(sorted(known, key=sort_key)) if known and rng.random() < 0.7 else None
            rows.append({name: (source or {}).get(name) if source else self.values.cell(self.columns[name]) for name in columns})
        members = {"op": "wait", "table": self.table, "where": self.where(), "columns": columns, "until": rng.choice(("==", "!=")), "rows": rows}
        choice = rng.random()
        if choice < 0.75:
            members["timeout"] = 0
        elif choice < 0.8:
            members["timeout"] = rng.randint(1, 9)
            self.by_clock = True
        elif choice < 0.9:
            members["timeout"] = 100_000_000
        return members

    def abort(self, at, uuid_name):
        return {"op": "abort"}

    def comment(self, at, uuid_name):
        return {"op": "comment", "comment": f"comment {at}"}

    def __getattr__(self, name):
        if name == "assert":
            return lambda at, uuid_name: {"op": "assert", "lock": self.rng.choice(LOCKS)}
        raise AttributeError(name)


def clause(rng, schema, table, values, rows, monitor=False, safe=False):
    """A condition, mostly on a value that some row has."""
    if monitor and rng.random() < 0.04:
        return rng.random() < 0.5
    columns = schema.columns(table)
    if rng.random() < 0.12:
        known = sorted(rows)
        name = rng.choice(known) if known else "@nowhere0@"
        return ["_uuid", rng.choice(("==", "!=", "includes", "excludes")), ["uuid", name]]
    name = rng.choice(sorted(columns))
    column = columns[name]
    # Debian's server compares optional numbers by order too; elsewhere < and > are errors, which should occur but
    # rarely.
    ordered = column.key["type"] in ("integer", "real") and column.value is None and column.max == 1
    function = rng.choice(FUNCTIONS if not safe and (ordered or rng.random() < 0.04) else ("==", "!=", "includes", "excludes", "=="))
    known = [row for row in rows.values() if row and name in row]
    if known and rng.random() < 0.6:
        value = rng.choice(sorted(known, key=sort_key))[name]
    else:
        value = values.cell(column)
    if function in ("<", "<=", ">", ">=") and value == ["set", []] and rng.random() < 0.9:
        value = values.atom(column.key)
    if safe and column.key["type"] == "uuid" and value[0] in ("set", "map"):
        # Two names may denote the same row if an insert has specified its UUID: a duplicate.
        value = [value[0], value[1][:1]]
    return [name, function, value]


def spoil(rng, op, schema, operation, values):
    """Makes an operation wrong in one way: with two faults, hash order determines which one Debian's server reports."""
    columns = operation.columns
    name = rng.choice(sorted(columns))
    wrong = values.wrong(columns[name])
    ways = [
        lambda: op.update(op="nix"), lambda: op.update(table="nix"), lambda: op.update(table=5), lambda: op.update(more=1),
        lambda: op.pop("table", None), lambda: op.update(op=[]), lambda: op.pop("op"), lambda: op.update(table="a b"),
    ]
    if isinstance(op.get("row"), dict):
        ways = ways[:4] if rng.random() < 0.2 else []
        ways += [lambda: op.update(row={name: wrong})] * 8
        ways += [lambda: op.update(row={"nix": 1}), lambda: op.update(row=rng.choice(WRONG)), lambda: op.pop("row"), lambda: op.update(row={"_uuid": ["uuid", "@nowhere0@"]}),
                 lambda: op.update(row={"_version": ["uuid", "@nowhere0@"]}), lambda: op.update(row={"": 1})]
        if op.get("op") == "insert":
            ways += [lambda: op.update({"uuid-name": rng.choice(("n0", "1x", 5, "a b", "", None))}), lambda: op.update(uuid=rng.choice(("nix", 5, ["uuid", "@nowhere0@"])))]
    if "where" in op:
        function = rng.choice(FUNCTIONS)
        ways += [lambda: op.update(where=[[name, function, wrong]])] * 3
        ways += [lambda: op.update(where=rng.choice((5, {}, [5], [[]], [[name]], [[name, "=", 1]], [["nix", "==", 1]], [[5, "==", 1]], [[name, 7, 1]], True, [True], "x",
                                                     [["_uuid", "<", ["uuid", "@nowhere0@"]]], [["_version", "==", ["uuid", "@nowhere0@"]]],
                                                     [["_uuid", "==", ["named-uuid", "nosuch"]]], [[name, "==", 1, 2]]))),
                 lambda: op.pop("where")]
    if "mutations" in op:
        mutator = rng.choice(MUTATORS if wrong not in (0, -1) else ("insert", "delete", "+="))
        ways += [lambda: op.update(mutations=[[name, mutator, wrong]])] * 4
        ways += [lambda: op.update(mutations=rng.choice((5, {}, [5], [[]], [[name]], [[name, "^=", 1]], [["nix", "+=", 1]], [["_uuid", "insert", ["uuid", "@nowhere0@"]]],
                                                         [[name, "+=", 1, 2]], [[5, "+=", 1]], [["_version", "delete", ["set", []]]])))]
    if "columns" in op:
        ways += [lambda: op.update(columns=rng.choice((5, ["nix"], [name, name], [5], "c0", {}, ["_version"], [])))] * 2
    if "until" in op:
        ways += [lambda: op.update(until=rng.choice(("=", "<", 5))), lambda: op.update(rows=rng.choice((5, [5], [{"nix": 1}], {}, [{name: wrong}]))),
                 lambda: op.update(timeout=rng.choice((-1, "1", 1.5, None, True))), lambda: op.pop("rows"), lambda: op.pop("until")]
    if op.get("op") == "comment":
        ways += [lambda: op.update(comment=5), lambda: op.pop("comment")] * 3
    if op.get("op") == "assert":
        ways += [lambda: op.update(lock=5), lambda: op.update(lock="a b"), lambda: op.pop("lock")] * 3
    rng.choice(ways)()
