"""One server of the pair: performs steps, and returns each step's answers per session, with names for UUIDs.

Every step ends with an echo on every session: a server sends everything that a step causes before it answers the echo.
The acting session's echo is awaited first, then the others', so that an update caused by the step cannot arrive after
their echo.
"""

import json
import pathlib
import re
import tempfile

from . import log_file
from .connection import Closed, Connection
from .names import UUID, Names, sort_key
from .rows import Replica, Schema
from .script import Burst, Compact, Dump, Monitor, Open, Raw, Reopen, Request, Restart, Transact, encode
from .servers import OvsdbServer, create_database

TRANSACTION = re.compile(r"(?<=^compacting database online) \(transaction [-0-9a-f]{36}\)$")
CLOSED = {"closed": True}
UPDATES = {"update": 1, "update2": 2, "update3": 3}


class Watch:
    """An accepted monitor: its request and, if a client can keep one, the replica."""

    def __init__(self, step, schema):
        self.step = step
        self.schema = schema
        self.last_transaction = None
        self.replica = Replica(schema) if schema is not None and step.whole else None

    def columns_of(self, table):
        request = self.step.requests[table]
        request = request[0] if isinstance(request, list) else request
        return [name for name in request.get("columns", self.schema.columns(table)) if not name.startswith("_")]

    def fold(self, updates, version):
        if self.replica is None:
            return
        if version == 1:
            self.replica.update(updates)
        else:
            self.replica.update2(updates, self.columns_of)


class Side:
    def __init__(self, kind, script, mutate=None, arguments=(), read_log=True):
        self.kind, self.script, self.mutate, self.read_log = kind, script, mutate, read_log
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"ovsdb-{kind}-"))
        self.schemas = {name: Schema(schema) for name, schema in script.schemas.items()}
        self.files = {name: create_database(self.directory / f"{name}.db", schema) for name, schema in script.schemas.items()}
        self.server = OvsdbServer(kind, self.directory, arguments, self.files.values())
        self.names = Names()
        self.connections = {}
        self.watches = {}
        self.pending = {}
        self.syncs = 0
        self.file_problem = None
        self.start_server()

    def start_server(self):
        self.server.start()
        with Connection(self.server.sock) as peer:
            rows = peer.transact("_Server", {"op": "select", "table": "Database", "where": [], "columns": ["_uuid", "name"]})[0]["rows"]
        for row in rows:
            self.names.name_of[row["_uuid"][1]] = f"@server.{row['name']}@"

    def close(self):
        for connection in self.connections.values():
            connection.close()
        self.server.remove()

    # Performs a step in phases, so that both servers work at the same time

    def begin(self, step):
        self.messages = {}
        self.answered = {}
        self.delayed = False
        self.special = {}
        acting = getattr(step, "session", None)
        if isinstance(step, (Open, Reopen)):
            self.open(acting)
        elif acting is not None and acting not in self.connections:
            self.open(acting)
        if isinstance(step, Transact):
            self.send_transact(step)
        elif isinstance(step, Burst):
            for one in step.transacts:
                self.pending[acting, sort_key(one.id)] = one
            self.connections[acting].send_bytes(b"".join(encode(one.message(), self.names, one.style) for one in step.transacts))
        elif isinstance(step, (Monitor, Request)):
            message = step.message()
            if isinstance(step, Monitor):
                self.pending[acting, sort_key(step.id)] = step
            elif message.get("method") in ("monitor_cond_change", "monitor_cancel"):
                self.pending[acting, sort_key(message["id"])] = step
            self.connections[acting].send_bytes(encode(message, self.names))
        elif isinstance(step, Raw):
            self.connections[acting].send_bytes(self.names.to_wire(step.content.decode("latin-1")).encode("latin-1"))
        elif isinstance(step, Dump):
            acting = self.dump()
        elif isinstance(step, Compact):
            self.special["logs"] = self.logs()
            self.special["compact"] = self.server.unixctl("ovsdb-server/compact", step.database)
        elif isinstance(step, Restart):
            self.special["logs"] = self.logs()
        self.acting = acting
        if acting is not None:
            self.sync_send(acting)

    def send_transact(self, step):
        self.pending[step.session, sort_key(step.id)] = step
        self.connections[step.session].send_bytes(encode(step.message(), self.names, step.style))

    def dump(self):
        if "dump" not in self.connections:
            self.open("dump")
        for name, schema in self.schemas.items():
            ops = [select_all(table) for table in sorted(schema.tables)]
            self.connections["dump"].send({"method": "transact", "params": [name, *ops], "id": f"dump {name}"})
        return "dump"

    def middle(self, step):
        if self.acting is not None:
            self.gather(self.acting, step.id if isinstance(step, Transact) and step.by_clock else None)
        # A waiting transaction may be released after an echo that arrived together with what released it: so send
        # another echo.
        self.again = self.acting is not None and any(isinstance(one, Transact) for one in self.pending.values())
        for session in self.connections:
            if (session != self.acting or self.again) and CLOSED not in self.messages.get(session, ()):
                self.sync_send(session)

    def end(self, step):
        """Gathers the rest; returns session -> messages with names, and "(...)" entries for what is not a session's
        message."""
        for session in list(self.connections):
            if (session != self.acting or self.again) and CLOSED not in self.messages.get(session, ()):
                self.gather(session)
        if self.mutate:
            self.messages = {session: self.mutate(session, messages, step) for session, messages in self.messages.items()}
        self.bind()
        said = {session: self.interpret(session, messages) for session, messages in self.messages.items()}
        for session, messages in self.messages.items():
            if CLOSED in messages:
                self.drop(session)
        if isinstance(step, Dump):
            said["(replicas)"] = [self.replicas()]
        said.update({f"({key})": [value] for key, value in self.special.items()})
        return said

    def open(self, session):
        if session in self.connections:
            self.connections[session].close()
            self.drop(session)
        self.connections[session] = Connection(self.server.sock)

    def drop(self, session):
        self.connections.pop(session).close()
        self.watches = {key: value for key, value in self.watches.items() if key[0] != session}
        self.pending = {key: value for key, value in self.pending.items() if key[0] != session}

    def sync_send(self, session):
        self.syncs += 1
        self.connections[session].send({"method": "echo", "params": [], "id": f"sync {self.syncs}"})
        self.connections[session].awaited = f"sync {self.syncs}"

    def gather(self, session, reply=None):
        """Reads until the echo (and the reply to request `reply`, which may come after it)."""
        connection = self.connections[session]
        found = self.messages.setdefault(session, [])
        synced, replied = False, reply is None
        while not (synced and replied):
            try:
                message, spelled = connection.receive_spelled()
            except Closed:
                found.append(CLOSED)
                return
            if message.get("id") == connection.awaited and "method" not in message:
                synced = True
                continue
            if "method" not in message and message.get("id") == reply:
                replied = True
            if spelled:
                message["(spelled)"] = spelled
            found.append(message)

    # Interpreting the answers

    def bind(self):
        for session, messages in self.messages.items():
            for message in messages:
                if "method" in message:
                    continue
                step = self.pending.get((session, sort_key(message.get("id"))))
                if isinstance(step, Transact) and isinstance(message.get("result"), list):
                    for op, result in zip(step.ops, message["result"]):
                        if op.binds and isinstance(result, dict) and "uuid" in result:
                            self.names.bind(op.binds, result["uuid"][1])

    def interpret(self, session, messages):
        result = []
        for message in messages:
            if message.get("method") in UPDATES:
                result.append(self.update(session, message))
            elif "method" not in message and "id" in message:
                result.append(self.reply(session, message))
            else:
                result.append(self.names.canonical(message))
        return result

    def update(self, session, message):
        version = UPDATES[message["method"]]
        identity, updates = message["params"][0], message["params"][-1]
        watch = self.watches.get((session, sort_key(identity))) or self.renamed(session, identity)
        if version == 3:
            if watch:
                watch.last_transaction = message["params"][1]
            message = dict(message, params=[identity, "transaction", updates])
        canonical = self.names.canonical(message)
        if watch:
            watch.fold(canonical["params"][-1], version)
        return canonical

    def renamed(self, session, identity):
        """The monitor that gets this id by a change not answered yet: its update arrives before the answer."""
        for (owner, _), step in self.pending.items():
            if owner == session and isinstance(step, Request) and step.json["method"] == "monitor_cond_change" and step.json["params"][1:2] == [identity]:
                return self.watches.get((session, sort_key(step.json["params"][0])))
        return None

    def reply(self, session, message):
        key = session, sort_key(message["id"])
        step = self.pending.pop(key, None)
        if isinstance(step, Transact):
            self.answered[key[1]] = step
        if session == "dump":
            canonical = self.names.canonical(message)
            self.special[message["id"]] = canonical["result"]
            return canonical
        if isinstance(step, Transact) and step.ops and not self.is_current(step):
            self.delayed = True
        if isinstance(step, Monitor) and message.get("error") is None:
            return self.monitor_reply(session, step, message)
        if isinstance(step, Request) and message.get("error") is None:
            self.monitor_changed(session, step.json)
        canonical = self.names.canonical(message)
        if isinstance(step, Request) and step.json["method"] == "get_server_id" and isinstance(message.get("result"), str):
            canonical["result"] = "some server id"
        return canonical

    def is_current(self, step):
        return any(step is one for one in self.current)

    def monitor_reply(self, session, step, message):
        schema = self.schemas.get(step.database)
        watch = Watch(step, schema)
        updates = message["result"]
        version = 2
        if step.method == "monitor":
            version = 1
        elif step.method == "monitor_cond_since" and isinstance(updates, list):
            watch.last_transaction = updates[1]
            message = dict(message, result=[updates[0], "transaction", updates[2]])
            updates = updates[2]
        self.watches[session, sort_key(step.monitor)] = watch
        canonical = self.names.canonical(message)
        watch.fold(canonical["result"] if step.method != "monitor_cond_since" else canonical["result"][2], version)
        return canonical

    def monitor_changed(self, session, request):
        params = request["params"]
        if request["method"] == "monitor_cancel" and params:
            self.watches.pop((session, sort_key(params[0])), None)
        elif request["method"] == "monitor_cond_change" and len(params) == 3:
            watch = self.watches.pop((session, sort_key(params[0])), None)
            if watch:
                self.watches[session, sort_key(params[1])] = watch
                for table, change in params[2].items():
                    change = change[0] if isinstance(change, list) and change else change
                    request = watch.step.requests.get(table)
                    request = request[0] if isinstance(request, list) and request else request
                    if isinstance(change, dict) and "where" in change and isinstance(request, dict):
                        watch.where = dict(getattr(watch, "where", {}), **{table: change["where"]})

    def replicas(self):
        """(session, monitor) -> the replica's rows, and the errors of replicas that see everything."""
        return {f"{session} {identity}": watch.replica.state() for (session, identity), watch in sorted(self.watches.items()) if watch.replica}

    def dangling(self):
        """Returns true if a weak reference names a row that does not exist."""
        with Connection(self.server.sock) as peer:
            for name, schema in self.schemas.items():
                tables = sorted(schema.tables)
                found = dict(zip(tables, peer.transact(name, *map(select_all, tables))))
                there = {table: {row["_uuid"][1] for row in result["rows"]} for table, result in found.items()}
                for table, result in found.items():
                    for column, kind in schema.columns(table).items():
                        if kind.key.get("refType") == "weak":
                            texts = {uuid for row in result["rows"] for uuid in UUID.findall(json.dumps(keys(kind.normal(row[column]))))}
                            if texts - there[kind.key["refTable"]]:
                                return True
        return False

    # Files

    def logs(self):
        """Database -> its log's records, with names."""
        if not self.read_log:
            return {}
        return {name: [self.names.canonical(normal_record(record)) for record in log_file.records(path)] for name, path in self.files.items()}

    def stop(self, kill):
        code = self.server.kill() if kill else self.server.exit()
        for connection in self.connections.values():
            connection.close()
        self.connections = {}
        self.pending = {}
        return code

    def resume(self):
        """Restarts, reopens the sessions, and requests every whole monitor_cond_since again from its last
        transaction."""
        before = self.watches
        self.watches = {}
        sessions = sorted({session for session, _ in before})
        self.start_server()
        found = {}
        for session in sessions:
            self.open(session)
        for (session, identity), watch in sorted(before.items()):
            if watch.replica is None or watch.step.method != "monitor_cond_since":
                continue
            requests = {table: dict(one[0] if isinstance(one, list) else one) for table, one in watch.step.requests.items()}
            for table, where in getattr(watch, "where", {}).items():
                requests[table]["where"] = where
            text = json.dumps([watch.step.database, json.loads(identity), requests, watch.last_transaction])
            reply = self.connections[session].request("monitor_cond_since", *json.loads(self.names.to_wire(text)))
            if reply.get("error") is not None:
                found[f"{session} {identity}"] = self.names.canonical(reply)
                continue
            was_found, watch.last_transaction, updates = reply["result"]
            if not was_found:
                watch.replica.clear()
            watch.fold(self.names.canonical(updates), 2)
            self.watches[session, identity] = watch
            found[f"{session} {identity}"] = was_found
        # Debian's server assigns new row versions at each start: numbering starts over, and the replicas' contents are
        # discarded.
        self.names.versions.clear()
        for watch in self.watches.values():
            for rows in watch.replica.tables.values():
                for row in rows.values():
                    if "_version" in row:
                        row["_version"] = "version"
        return found


def normal_record(record):
    """In our compacted logs the comment contains the last transaction's id: differences.DELIBERATE, "transaction
    ids"."""
    if "_comment" in record:
        record = dict(record, _comment=TRANSACTION.sub("", record["_comment"]))
    return record


def keys(value):
    """The keys of a value in normal form: for a map, without the values."""
    return [pair[0] for pair in value[1]] if value[0] == "map" else value


def select_all(table):
    return {"op": "select", "table": table, "where": []}
