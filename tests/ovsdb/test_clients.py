"""Every command of ovsdb-client, and ovs-vsctl, compared with Debian's server: same exit code, same text except for
UUIDs."""

import re
import subprocess
import time

import pytest

from .connection import Connection
from .conftest import SMALL
from .names import UUID, ZERO
from .servers import PATIENCE_S, SCHEMAS, STOCK, OvsdbServer, create_database

ROWS = [
    {"op": "insert", "table": "T", "row": {"key": 1, "s": "one", "m": ["map", [["a", "b"], ["é", "\n"]]], "set": ["set", [3, 1, 2]]}},
    {"op": "insert", "table": "T", "row": {"key": 2, "i": -7, "e": 5}},
    {"op": "commit", "durable": True},
]


@pytest.fixture
def both(kind, tmp_path):
    """Debian's server and ours with the same small database."""
    servers = []
    for name, one in (("stock", STOCK), ("ours", kind)):
        databases = [create_database(tmp_path / f"{name}-D.db", SMALL), create_database(tmp_path / f"{name}-ovs.db", SCHEMAS / "vswitch.ovsschema")]
        server = OvsdbServer(one, tmp_path / name, databases=databases).start()
        with Connection(server.sock) as peer:
            peer.transact("D", *ROWS)
        servers.append(server)
    yield servers
    for server in servers:
        assert server.alive(), server.log() + server.stderr()
        server.remove()


def run(server, program, *arguments, stdin=None, timeout=False):
    arguments = [str(one).replace("SERVER", f"unix:{server.sock}") for one in arguments]
    done = subprocess.run([program, *(["--timeout=5"] if timeout else []), *arguments], capture_output=True, input=stdin, timeout=PATIENCE_S)
    clean = lambda text: UUID.sub("UUID", text.decode(errors="replace")).replace(str(server.directory), "DIR").replace(str(server.pid), "PID")
    # ovsdb-client prints rows in random order.
    return done.returncode, sorted(clean(done.stdout).splitlines()), [re.sub(r"^\S+Z\|\d+\|", "", line) for line in clean(done.stderr).splitlines()]


TRANSACT = '["D",{"op":"insert","table":"T","row":{"key":3,"s":"three"}},{"op":"select","table":"T","where":[["key","==",3]],"columns":["key","s"]}]'
COMMANDS = {
    "list-dbs": ["list-dbs", "SERVER"],
    "get-schema": ["get-schema", "SERVER", "D"],
    "get-schema of nothing": ["get-schema", "SERVER", "nix"],
    "get-schema-version": ["get-schema-version", "SERVER", "Open_vSwitch"],
    "get-schema-cksum": ["get-schema-cksum", "SERVER", "Open_vSwitch"],
    "list-tables": ["list-tables", "SERVER", "Open_vSwitch"],
    "list-columns": ["list-columns", "SERVER", "D"],
    "list-columns of a table": ["list-columns", "SERVER", "Open_vSwitch", "Bridge"],
    "transact": ["transact", "SERVER", TRANSACT],
    "transact wrong": ["transact", "SERVER", '["D",{"op":"insert","table":"T","row":{"key":"x"}}]'],
    "query": ["query", "SERVER", '["D",{"op":"select","table":"T","where":[["key",">",1]],"columns":["s"]}]'],
    "query may not write": ["query", "SERVER", '["D",{"op":"delete","table":"T","where":[]},{"op":"select","table":"T","where":[],"columns":["key"]}]'],
    "dump": ["dump", "SERVER", "D"],
    "dump a table": ["dump", "SERVER", "D", "T", "key", "s", "set"],
    "dump as csv": ["--format=csv", "--data=bare", "dump", "SERVER", "D", "T", "key", "m"],
    "dump as json": ["--format=json", "dump", "SERVER", "D", "T", "key", "e"],
    "monitor a column": ["monitor", "SERVER", "D", "T", "key,s", "initial"],
    "monitor nothing known": ["monitor", "SERVER", "D", "nix"],
    "monitor-cond wrong": ["monitor-cond", "SERVER", "D", '[["key","=="]]', "T"],
    "needs-conversion": ["needs-conversion", "SERVER", str(SCHEMAS / "vswitch.ovsschema")],
    "wait for added": ["wait", "SERVER", "D", "added"],
    "wait for connected": ["wait", "SERVER", "D", "connected"],
    "unlock": ["unlock", "SERVER", "nobody"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_the_same(both, name):
    arguments = COMMANDS[name]
    if "monitor" in arguments[0] or "lock" in arguments[0]:
        arguments = ["--timeout=1", *arguments]
    assert run(both[0], "ovsdb-client", *arguments) == run(both[1], "ovsdb-client", *arguments)


@pytest.mark.parametrize("command", (["monitor", "D", "T", "key,s,set"], ["monitor-cond", "D", '[["key",">",1]]', "T", "key,s"],
                                     ["monitor-cond-since", "D", ZERO, '[["key",">",0]]', "T", "key,m"], ["monitor", "D", "ALL"]), ids=lambda command: " ".join(command))
def test_monitors_tell_changes(both, command):
    outputs = []
    for server in both:
        log = open(server.directory / "monitor.out", "w+b")
        child = subprocess.Popen(["ovsdb-client", "--format=json", "--no-headings", command[0], f"unix:{server.sock}", *command[1:]], stdout=log, stderr=log)
        try:
            wait_for(lambda: size(log) > 0)
            before = size(log)
            with Connection(server.sock) as peer:
                peer.transact("D", {"op": "update", "table": "T", "where": [["key", "==", 2]], "row": {"s": "new", "key": 20, "m": ["map", [["x", "y"]]]}})
            wait_for(lambda: size(log) > before)
        finally:
            child.kill()
            child.wait()
        log.seek(0)
        text = UUID.sub("UUID", log.read().decode())
        # Rows are printed in random order.
        outputs.append(sorted(re.split(r"[][,\s]+", text)))
        log.close()
    assert outputs[0] == outputs[1]


def size(log):
    log.seek(0, 2)
    return log.tell()


def wait_for(check):
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_locks_of_clients(both):
    outputs = []
    for server in both:
        children = []
        try:
            for name, command in (("first", "lock"), ("second", "lock"), ("third", "steal")):
                log = open(server.directory / f"{name}.out", "w+b")
                children.append((subprocess.Popen(["ovsdb-client", command, f"unix:{server.sock}", "L"], stdout=log, stderr=log), log))
                wait_for(lambda: size(log) > 0)
            wait_for(lambda: size(children[0][1]) > 20)
            texts = []
            for _, log in children:
                log.seek(0)
                texts.append(log.read().decode())
        finally:
            for child, log in children:
                child.kill()
                child.wait()
                log.close()
        outputs.append(texts)
    assert outputs[0] == outputs[1]


def test_backup_and_restore(both):
    for server in both:
        backup = subprocess.run(["ovsdb-client", "backup", f"unix:{server.sock}", "D"], capture_output=True, timeout=PATIENCE_S)
        assert backup.returncode == 0, backup.stderr
        with Connection(server.sock) as peer:
            peer.transact("D", {"op": "delete", "table": "T", "where": []})
        path = server.directory / "backup"
        path.write_bytes(backup.stdout)
        with open(path, "rb") as source:
            restored = subprocess.run(["ovsdb-client", "restore", f"unix:{server.sock}", "D"], stdin=source, capture_output=True, timeout=PATIENCE_S)
        assert restored.returncode == 0, restored.stderr
    assert run(both[0], "ovsdb-client", "dump", "SERVER", "D", "T", "key", "s") == run(both[1], "ovsdb-client", "dump", "SERVER", "D", "T", "key", "s")


def test_convert(both, tmp_path):
    """An additional column and a newer version, online; clients unaware of the conversion are dropped."""
    import copy
    import json

    newer = copy.deepcopy(SMALL)
    newer["version"] = "2.0.0"
    newer["tables"]["T"]["columns"]["more"] = {"type": "integer"}
    path = tmp_path / "newer.ovsschema"
    path.write_text(json.dumps(newer))
    for arguments in (["needs-conversion", "SERVER", path], ["convert", "SERVER", path], ["get-schema-version", "SERVER", "D"], ["needs-conversion", "SERVER", path],
                      ["dump", "SERVER", "D", "T", "key", "more"]):
        assert run(both[0], "ovsdb-client", *arguments) == run(both[1], "ovsdb-client", *arguments), arguments


VSCTL = (
    ["init"], ["add-br", "br0"], ["add-port", "br0", "p1", "--", "set", "interface", "p1", "type=internal", "external_ids:a=b"], ["list-ports", "br0"],
    ["add-port", "br0", "p1"], ["--may-exist", "add-port", "br0", "p1"], ["br-exists", "nix"], ["set", "bridge", "br0", "fail_mode=secure", "stp_enable=true"],
    ["get", "bridge", "br0", "fail_mode", "stp_enable"], ["set", "bridge", "br0", "fail_mode=sometimes"], ["set-controller", "br0", "tcp:127.0.0.1:1"],
    ["get-controller", "br0"], ["set-manager", "ptcp:0:127.0.0.1"], ["get-manager"], ["del-manager"], ["add-vlan", "br0"], ["clear", "bridge", "br0", "external_ids"],
    ["--columns=name,type", "list", "interface"], ["find", "interface", "name=p1"], ["--id=@q", "create", "qos", "type=linux-htb", "--", "set", "port", "p1", "qos=@q"],
    ["destroy", "port", "p1"], ["--if-exists", "del-port", "p9"], ["remove", "interface", "p1", "external_ids", "a"], ["wait-until", "bridge", "br0", "stp_enable=true"],
    ["set", "bridge", "br0", "flood_vlans=1,5000"], ["set", "port", "p1", "tag=4096"], ["del-br", "br0"], ["list-br"], ["show"], ["emer-reset"],
)


def test_ovs_vsctl_without_a_switch(both):
    for arguments in VSCTL:
        mine, other = (run(server, "ovs-vsctl", "--no-wait", "--db=SERVER", *arguments, timeout=True) for server in both)
        assert mine == other, arguments
