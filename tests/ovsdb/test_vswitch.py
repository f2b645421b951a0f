"""Open vSwitch on our server: Debian's ovs-vswitchd with the dummy datapath, driven by ovs-vsctl, which waits for
it."""

import json
import os
import re
import subprocess
import time

import pytest

from tests.servers import end_with_the_tests

from .connection import Connection
from .names import ZERO
from .rows import Replica, Schema
from .servers import PATIENCE_S, SCHEMAS, SUBJECT, OvsdbServer, create_database


class Switch:
    """ovs-vswitchd in the foreground, with its own run directory."""

    def __init__(self, server, directory):
        self.server, self.directory = server, directory
        directory.mkdir()
        self.environment = dict(os.environ, OVS_RUNDIR=str(directory), OVS_LOGDIR=str(directory), OVS_DBDIR=str(directory))
        self.log_path = directory / "vswitchd.log"
        self.process = None
        self.stopped = False

    def start(self):
        self.stopped = False
        self.process = subprocess.Popen(
            ["ovs-vswitchd", "--enable-dummy=override", "--disable-system", "-vconsole:off", "-vsyslog:off", f"--log-file={self.log_path}",
             f"--unixctl={self.directory / 'ctl'}", f"unix:{self.server.sock}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=end_with_the_tests, env=self.environment)
        return self

    def vsctl(self, *arguments, timeout_s=PATIENCE_S):
        """Runs ovs-vsctl, which waits for the switch; returns its output."""
        done = subprocess.run(["ovs-vsctl", f"--timeout={timeout_s}", f"--db=unix:{self.server.sock}", *arguments],
                              capture_output=True, text=True, env=self.environment, timeout=2 * PATIENCE_S)
        assert done.returncode == 0, f"ovs-vsctl {' '.join(arguments)}: {done.returncode}\n{done.stderr}\n{self.log()}\n{self.server.log()}"
        return done.stdout.strip()

    def appctl(self, *arguments):
        done = subprocess.run(["ovs-appctl", "-t", str(self.directory / "ctl"), *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log(self):
        return self.log_path.read_text(errors="replace")[-6000:] if self.log_path.exists() else ""

    def complaints(self):
        """Log lines of level warning or above about the database."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r"\|(jsonrpc|ovsdb_\w+)\|(WARN|ERR|EMER)\|", line)]

    def stop(self):
        self.stopped = True
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)


@pytest.fixture
def switch(kind, tmp_path):
    path = create_database(tmp_path / "conf.db", SCHEMAS / "vswitch.ovsschema")
    with OvsdbServer(kind, tmp_path / "run", databases=[path], arguments=["--remote=db:Open_vSwitch,Open_vSwitch,manager_options"]) as server:
        one = Switch(server, tmp_path / "switch")
        one.vsctl("--no-wait", "init")
        one.start()
        try:
            yield one
            assert one.stopped or one.process.poll() is None, one.log()
            assert server.alive(), server.log() + server.stderr()
        finally:
            one.stop()


def eventually(check, timeout_s=PATIENCE_S):
    deadline = time.monotonic() + timeout_s
    while True:
        found = check()
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_bridges_and_ports_come_and_go(switch):
    switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    switch.vsctl("add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy")
    assert int(switch.vsctl("get", "interface", "p1", "ofport")) > 0
    assert "p1" in switch.appctl("dpif/show")
    for number in range(2, 12):
        switch.vsctl("add-port", "br0", f"p{number}", "--", "set", "interface", f"p{number}", "type=dummy", f"external_ids:number={number}")
    assert switch.vsctl("list-ports", "br0").split() == sorted(f"p{number}" for number in range(1, 12))
    switch.vsctl("set", "port", "p3", "tag=7", "--", "set", "bridge", "br0", "other_config:hwaddr=00:00:00:00:12:34")
    assert eventually(lambda: "00:00:00:00:12:34" in switch.vsctl("get", "interface", "br0", "mac_in_use"))
    switch.vsctl("del-port", "p5")
    assert "p5" not in switch.appctl("dpif/show")
    switch.vsctl("add-bond", "br0", "bond0", "q1", "q2", "--", "set", "interface", "q1", "type=dummy", "--", "set", "interface", "q2", "type=dummy")
    switch.vsctl("--", "--id=@m", "create", "mirror", "name=m0", "select_all=true", "--", "set", "bridge", "br0", "mirrors=@m")
    switch.vsctl("clear", "bridge", "br0", "mirrors")
    assert switch.vsctl("list", "mirror") == "", "the mirror that nobody refers to is collected"
    # An existing port name is an error of ovs-vsctl and of the index.
    done = subprocess.run(["ovs-vsctl", f"--db=unix:{switch.server.sock}", "add-port", "br0", "p1"], capture_output=True, text=True, env=switch.environment)
    assert done.returncode == 1 and "already exists" in done.stderr
    switch.vsctl("del-br", "br0")
    assert switch.vsctl("list-br") == ""
    assert "p1" not in switch.appctl("dpif/show")
    assert switch.complaints() == []


def test_the_switch_settles_after_a_restart_of_the_server(switch, kind):
    switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    switch.vsctl("add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy")
    for kill in (False, True):
        before = switch.appctl("dpif/show")
        switch.server.kill() if kill else switch.server.exit()
        switch.server.start()
        name = "after-kill" if kill else "after-exit"
        # Returns only once the switch has reconnected and applied the change.
        switch.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dummy")
        after = switch.appctl("dpif/show")
        assert name in after and all(line in after for line in before.splitlines() if "/" in line and "(dummy)" in line)
    assert switch.vsctl("get", "Open_vSwitch", ".", "cur_cfg") == switch.vsctl("get", "Open_vSwitch", ".", "next_cfg")
    statistics = lambda: json_of(switch.vsctl("--format=json", "--columns=statistics", "list", "interface", "p1"))
    assert eventually(statistics), "the switch writes no statistics after the restart"


def json_of(text):
    """The pairs of the statistics in a printed table of one row and one column."""
    return json.loads(text)["data"][0][0][1]


def interfaces(peer):
    return {row["_uuid"][1]: row for row in peer.transact("Open_vSwitch", {"op": "select", "table": "Interface", "where": []})[0]["rows"]}


@pytest.mark.parametrize("statistics", (False, True), ids=("lasting columns", "with statistics"))
def test_a_client_gets_the_delta_after_a_restart(switch, kind, vswitch_schema, statistics):
    """found is true and the delta includes the reset of statistics; the client ends with the database's contents."""
    switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    switch.vsctl("add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy")
    columns = ["name", "type", "external_ids", *(["statistics", "status", "link_state"] if statistics else [])]
    schema = Schema(vswitch_schema)
    assert any(schema.columns("Interface")[name].ephemeral for name in columns) == statistics
    with Connection(switch.server.sock) as peer:
        assert eventually(lambda: any(row["statistics"][1] for row in interfaces(peer).values()))
    switch.stop()
    requests = {"Interface": {"columns": columns}, "Bridge": {"columns": ["name", "ports"]}}
    columns_of = lambda table: requests[table]["columns"]
    set_ids = lambda key: {"op": "update", "table": "Interface", "where": [["name", "==", "p1"]], "row": {"external_ids": ["map", [[key, "x"]]]}}
    replica = Replica(schema)
    with Connection(switch.server.sock) as peer:
        found, last, updates = peer.request("monitor_cond_since", "Open_vSwitch", "m", requests, ZERO)["result"]
        assert found is False
        replica.update2(updates, columns_of)
        heard = []
        peer.transact("Open_vSwitch", set_ids("seen"), until=heard)
        for message in heard:
            last = message["params"][1]
            replica.update2(message["params"][2], columns_of)
    with Connection(switch.server.sock) as peer:
        peer.transact("Open_vSwitch", set_ids("while away"))
    switch.server.kill()
    switch.server.start()
    with Connection(switch.server.sock) as peer:
        found, last, updates = peer.request("monitor_cond_since", "Open_vSwitch", "m", requests, last)["result"]
        assert found is (kind == SUBJECT)
        if found:
            assert "Bridge" not in updates, "bridges did not change"
        else:
            replica.clear()
        replica.update2(updates, columns_of)
        truth = {row: {name: schema.normal("Interface", name, content[name]) for name in columns} for row, content in interfaces(peer).items()}
        wanted = Replica(schema)
        wanted.tables = {"Interface": truth, "Bridge": replica.tables["Bridge"]}
        assert replica.state() == wanted.state()
        assert not statistics or all(not row["statistics"][1] for row in truth.values())
    switch.start()
    switch.vsctl("add-port", "br0", "p2", "--", "set", "interface", "p2", "type=dummy")


def test_statistics_are_watched_across_restarts_under_the_running_switch(switch, kind, vswitch_schema):
    """The switch keeps writing statistics and status before, while and after a client that requests the delta is
    away."""
    switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    for number in range(4):
        switch.vsctl("add-port", "br0", f"p{number}", "--", "set", "interface", f"p{number}", "type=dummy")
    schema = Schema(vswitch_schema)
    columns_of = lambda table: list(schema.columns(table))
    requests = {table: {"columns": columns_of(table)} for table in ("Interface", "Port", "Bridge", "Open_vSwitch", "Controller")}
    replica, last = Replica(schema), ZERO
    hello = lambda number: switch.appctl("netdev-dummy/receive", "p0", f"in_port(1),eth(src=50:54:00:00:00:0{number},dst=50:54:00:00:00:09),eth_type(0x1234)")
    for life in range(5):
        with Connection(switch.server.sock) as peer:
            found, last, updates = peer.request("monitor_cond_since", "Open_vSwitch", "m", requests, last)["result"]
            assert found is (kind == SUBJECT and life > 0), f"life {life}"
            if not found:
                replica.clear()
            replica.update2(updates, columns_of)
            # Until the switch has counted a new packet: it polls every five seconds.
            packets = lambda: max(dict(row["statistics"][1]).get("rx_packets", 0) for row in replica.tables["Interface"].values())
            before, deadline = packets(), time.monotonic() + PATIENCE_S
            peer.socket.settimeout(1)
            while packets() <= before or (found and packets() == 0):
                assert time.monotonic() < deadline, f"life {life}: no statistics"
                try:
                    message = peer.receive()
                except TimeoutError:
                    hello(life)
                    continue
                if message.get("method") == "update3":
                    _, last, updates = message["params"]
                    replica.update2(updates, columns_of)
            peer.socket.settimeout(PATIENCE_S)
            # Reads everything in transit, up to a point at which the server reports its contents.
            heard = []
            truth = peer.transact("Open_vSwitch", *({"op": "select", "table": table, "where": []} for table in requests), until=heard)
            for message in heard:
                if message.get("method") == "update3":
                    _, last, updates = message["params"]
                    replica.update2(updates, columns_of)
            wanted = Replica(schema)
            for table, rows in zip(requests, truth):
                wanted.tables[table] = {row["_uuid"][1]: schema.complete(table, {name: row[name] for name in columns_of(table)}) for row in rows["rows"]}
            assert replica.state() == wanted.state(), f"life {life}"
        switch.server.kill() if life % 2 else switch.server.exit()
        switch.server.start()
