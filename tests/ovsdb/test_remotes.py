"""Remotes configured in a database: status reported in their rows, options of the rows, host names; compares Debian's
server and ours."""

import ctypes
import json
import os
import socket
import stat
import subprocess
import time

import pytest

from tests.servers import free_port

from .connection import Closed, Connection
from .servers import PATIENCE_S, SCHEMAS, STOCK, OvsdbServer, create_database

VSWITCH = "Open_vSwitch"
TIMES = ("sec_since_connect", "sec_since_disconnect")


class Managed:
    """A server whose managers are remotes."""

    def __init__(self, kind, directory):
        path = create_database(directory.with_suffix(".db"), SCHEMAS / "vswitch.ovsschema")
        self.server = OvsdbServer(kind, directory, databases=[path], arguments=[f"--remote=db:{VSWITCH},{VSWITCH},manager_options"]).start()
        self.peer = Connection(self.server.sock)

    def set_managers(self, *targets):
        rows = [{"op": "insert", "table": "Manager", "uuid-name": f"m{number}", "row": {"target": target}} for number, target in enumerate(targets)]
        managers = ["set", [["named-uuid", f"m{number}"] for number in range(len(targets))]]
        self.peer.transact(VSWITCH, {"op": "delete", "table": VSWITCH, "where": []}, *rows, {"op": "insert", "table": VSWITCH, "row": {"manager_options": managers}})

    def update(self, **row):
        self.peer.transact(VSWITCH, {"op": "update", "table": "Manager", "where": [], "row": row})
        # Debian's server processes its remotes before it next sleeps.
        for _ in range(3):
            self.peer.request("list_dbs")

    def status(self, target):
        """(is_connected, status) of a manager."""
        (result,) = self.peer.transact(VSWITCH, {"op": "select", "table": "Manager", "where": [["target", "==", target]], "columns": ["is_connected", "status"]})
        (row,) = result["rows"]
        return row["is_connected"], dict(row["status"][1])

    def wait_for(self, target, holds):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self.status(target)
            if holds(*found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def close(self):
        self.peer.close()
        assert self.server.alive(), self.server.log()
        self.server.remove()


@pytest.fixture
def managed(kind, tmp_path):
    """Debian's and ours."""
    servers = [Managed(one, tmp_path / name) for name, one in (("stock", STOCK), ("ours", kind))]
    yield servers
    for server in servers:
        server.close()


def port_of(status):
    return int(status["bound_port"])


def without_times(found):
    """Removes the numbers of seconds, which depend on the clock; that they are reported does not."""
    is_connected, status = found
    return is_connected, {key: "some" if key in TIMES else value for key, value in status.items() if key != "bound_port"}


def test_a_listener_tells_its_port_and_connections(managed):
    told = []
    for server in managed:
        target = "ptcp:0:127.0.0.1"
        server.set_managers(target)
        first = server.wait_for(target, lambda connected, status: "bound_port" in status)
        one = Connection(("127.0.0.1", port_of(first[1])))
        second = server.wait_for(target, lambda connected, status: connected)
        other = Connection(("127.0.0.1", port_of(first[1])))
        assert other.request("list_dbs")["result"]
        third = server.wait_for(target, lambda connected, status: "n_connections" in status)
        one.close()
        fourth = server.wait_for(target, lambda connected, status: "n_connections" not in status)
        other.close()
        last = server.wait_for(target, lambda connected, status: not connected)
        # None of it is an update of the times alone.
        told.append([(found[0], {key: value for key, value in found[1].items() if key != "bound_port"}) for found in (first, second, third, fourth, last)])
        assert {port_of(found[1]) for found in (first, second, third, fourth, last)} == {port_of(first[1])}
    assert told[0] == told[1]


def test_an_outgoing_remote_tells_its_state_and_locks(managed):
    told = []
    for server in managed:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(PATIENCE_S)
            target = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
            server.set_managers(target)
            peer, _ = listener.accept()
            found = [server.wait_for(target, lambda connected, status: connected)]
            server.peer.request("lock", "theirs")
            peer.sendall(b'{"method":"lock","params":["mine"],"id":1}{"method":"lock","params":["theirs"],"id":2}{"method":"steal","params":["stolen"],"id":3}')
            found.append(server.wait_for(target, lambda connected, status: "locks_held" in status))
            server.peer.request("steal", "stolen")
            found.append(server.wait_for(target, lambda connected, status: "locks_lost" in status))
            peer.close()
            found.append(server.wait_for(target, lambda connected, status: not connected))
        found.append(server.wait_for(target, lambda connected, status: not connected and status["state"] == "BACKOFF"))
        for _, status in found:
            if "locks_held" in status:
                status["locks_held"] = sorted(status["locks_held"].split())
            # Debian's server reports IDLE while it probes a connection.
            status["state"] = status["state"].replace("IDLE", "ACTIVE").replace("CONNECTING", "BACKOFF")
        told.append([without_times(one) for one in found])
    assert told[0] == told[1]


def test_remotes_that_lead_nowhere_tell_so(managed):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        targets = [f"ptcp:{port}:127.0.0.1", f"tcp:127.0.0.1:{free_port()}", "unix:/nonexistent", "foo:bar", "ptcp:0:nonexistent.invalid"]
        for server in managed:
            server.set_managers(*targets)
        for target in targets:
            found = [server.wait_for(target, lambda connected, status: status and status.get("state") != "CONNECTING") for server in managed]
            assert without_times(found[0]) == without_times(found[1]), target


def test_what_somebody_else_writes_into_a_status_is_mended(managed):
    target = "ptcp:0:127.0.0.1"
    for server in managed:
        server.set_managers(target)
        server.wait_for(target, lambda connected, status: "bound_port" in status)
        server.update(is_connected=True, status=["map", [["state", "LYING"]]])
        server.wait_for(target, lambda connected, status: not connected and "bound_port" in status and "state" not in status)


def test_vsctl_shows_the_port(kind, tmp_path):
    server = Managed(kind, tmp_path / "run")
    vsctl = lambda *words: subprocess.run(
        ["ovs-vsctl", "--no-wait", f"--db=unix:{server.server.sock}", *words], check=True, timeout=PATIENCE_S, capture_output=True, text=True).stdout
    vsctl("init")
    vsctl("set-manager", "ptcp:0:127.0.0.1")
    server.wait_for("ptcp:0:127.0.0.1", lambda connected, status: "bound_port" in status)
    port = vsctl("get", "manager", ".", "status:bound_port").strip().strip('"')
    assert subprocess.run(["ovs-vsctl", f"--db=tcp:127.0.0.1:{port}", "--no-wait", "get-manager"], check=True, timeout=PATIENCE_S, capture_output=True, text=True).stdout
    server.close()


def test_an_idle_server_with_managers_writes_nothing(kind, tmp_path):
    """Debian's polls every 2.5 s, and writes the elapsed seconds of a connection; ours waits for events."""
    if kind == STOCK:
        pytest.skip("about ours")
    server = Managed(kind, tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        target = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        server.set_managers(target)
        peer, _ = listener.accept()
        server.update(inactivity_probe=0)
        server.wait_for(target, lambda connected, status: connected)
        time.sleep(4)
        before = sleeps(server)
        time.sleep(6)
        assert sleeps(server) == before
        assert server.status(target)[0]
        peer.close()
    server.close()


def sleeps(server):
    """Voluntary context switches of the process."""
    with open(f"/proc/{server.server.pid}/status") as lines:
        return [line for line in lines if line.startswith("voluntary_ctxt_switches")]


def test_options_of_a_row_change_in_place(managed):
    for server in managed:
        port = free_port()
        target = f"ptcp:{port}:127.0.0.1"
        server.set_managers(target)
        server.wait_for(target, lambda connected, status: "bound_port" in status)
        peer = Connection(("127.0.0.1", port))
        for change in ({"inactivity_probe": 60_000}, {"max_backoff": 3000}, {"inactivity_probe": 0}):
            server.update(**change)
            assert peer.request("list_dbs")["result"], change
        server.update(other_config=["map", [["dscp", "12"]]])
        with pytest.raises(Closed):
            while True:
                peer.request("list_dbs")
                time.sleep(0.05)
        server.wait_for(target, lambda connected, status: "bound_port" in status)
        with Connection(("127.0.0.1", port)) as again:
            assert again.request("list_dbs")["result"]


def test_packets_are_marked(managed):
    """Checks the DSCP of the server's socket."""
    for server in managed:
        found = []
        for config in ({}, {"dscp": "12"}, {"dscp": "64"}):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                listener.settimeout(PATIENCE_S)
                server.set_managers()
                target = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
                row = {"target": target, "other_config": ["map", [[key, value] for key, value in config.items()]]}
                server.peer.transact(VSWITCH, {"op": "insert", "table": "Manager", "uuid-name": "m", "row": row},
                                     {"op": "update", "table": VSWITCH, "where": [], "row": {"manager_options": ["named-uuid", "m"]}})
                server.peer.request("list_dbs")
                peer, _ = listener.accept()
                found.append(tos_of_connection(server.server.pid, listener.getsockname()[1]))
                peer.close()
        assert found == [48 << 2, 12 << 2, 48 << 2], server.server.kind


def tos_of_connection(pid, port):
    """The type of service of a process's socket that is connected to that port."""
    process = os.pidfd_open(pid)
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            # pidfd_getfd: a descriptor of ours for the same open socket.
            mine = ctypes.CDLL(None).syscall(438, process, int(number), 0)
            if mine < 0:
                continue
            if not stat.S_ISSOCK(os.fstat(mine).st_mode):
                os.close(mine)
                continue
            with socket.socket(fileno=mine) as one:
                try:
                    if one.family == socket.AF_INET and one.getpeername()[1] == port:
                        return one.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)
                except OSError:
                    pass
        raise AssertionError(f"no socket to {port}")
    finally:
        os.close(process)


def test_a_role_without_a_certificate_may_read_only(kind, tmp_path):
    """Debian's server and ours, with OVN's southbound schema: a client with a role but no certificate gets permission
    errors."""
    answers = []
    for name, one in (("stock", STOCK), ("ours", kind)):
        path = create_database(tmp_path / f"{name}.db", "/usr/share/ovn/ovn-sb.ovsschema")
        with OvsdbServer(one, tmp_path / name, databases=[path], arguments=["--remote=db:OVN_Southbound,SB_Global,connections"]) as server, Connection(server.sock) as peer:
            peer.transact(
                "OVN_Southbound", {"op": "insert", "table": "Connection", "uuid-name": "c", "row": {"target": "ptcp:0:127.0.0.1", "role": "ovn-controller"}},
                {"op": "insert", "table": "SB_Global", "row": {"connections": ["named-uuid", "c"]}},
                {"op": "insert", "table": "Encap", "uuid-name": "e", "row": {"type": "geneve", "ip": "192.0.2.1"}},
                {"op": "insert", "table": "Chassis", "row": {"name": "one", "encaps": ["named-uuid", "e"]}},
                {"op": "insert", "table": "RBAC_Permission", "uuid-name": "p", "row": {"table": "Chassis", "authorization": ["set", [""]], "insert_delete": True, "update": ["set", ["nb_cfg"]]}},
                {"op": "insert", "table": "RBAC_Role", "row": {"name": "ovn-controller", "permissions": ["map", [["Chassis", ["named-uuid", "p"]]]]}})
            deadline = time.monotonic() + PATIENCE_S
            status = {}
            while "bound_port" not in status:
                assert time.monotonic() < deadline
                (result,) = peer.transact("OVN_Southbound", {"op": "select", "table": "Connection", "where": [], "columns": ["status"]})
                status = dict(result["rows"][0]["status"][1])
            with Connection(("127.0.0.1", port_of(status))) as session:
                where = [["name", "==", "nobody"]]
                answers.append([json.dumps(session.request("transact", "OVN_Southbound", *operations), sort_keys=True) for operations in (
                    [{"op": "select", "table": "Chassis", "where": [], "columns": ["name"]}],
                    [{"op": "insert", "table": "Chassis", "row": {"name": "two"}}],
                    [{"op": "insert", "table": "Chassis", "row": {"nix": 1}}],
                    [{"op": "insert", "table": "Datapath_Binding", "row": {}}],
                    [{"op": "update", "table": "Chassis", "where": where, "row": {"nb_cfg": 3}}],
                    [{"op": "update", "table": "Chassis", "where": where, "row": {}}],
                    [{"op": "mutate", "table": "Chassis", "where": [], "mutations": [["nb_cfg", "+=", 1]]}],
                    [{"op": "mutate", "table": "Chassis", "where": [], "mutations": [["nb_cfg", "nix", 1]]}],
                    [{"op": "delete", "table": "SB_Global", "where": []}],
                    [{"op": "comment", "comment": "c"}, {"op": "wait", "table": "Chassis", "where": [], "columns": ["name"], "until": "==", "rows": [{"name": "one"}], "timeout": 0}],
                    [{"op": "insert", "table": "Chassis", "row": {"name": "two"}}, {"op": "abort"}],
                )])
    assert answers[0] == answers[1]


# Host names and addresses in brackets, and what the log says about them. PORT is a port without a listener.
NAMES = ("ptcp:0:localhost", "ptcp:0:[::1]", "ptcp:0:[localhost]", "tcp:localhost:PORT", "tcp:[::1]:PORT", "tcp:nonexistent.invalid:1", "ptcp:0:nonexistent.invalid",
         "tcp:::1:5", "tcp:127.0.0.1:99999", "tcp:[localhost]:PORT", "ptcp:localhost")


def test_names_of_hosts(kind, tmp_path):
    from .conftest import SMALL

    port = str(free_port())
    said = []
    for name, one in (("stock", STOCK), ("ours", kind)):
        path = create_database(tmp_path / f"{name}.db", SMALL)
        with OvsdbServer(one, tmp_path / name, databases=[path]) as server:
            logs = {}
            for remote in (name.replace("PORT", port) for name in NAMES):
                before = len(server.log_path.read_text())
                assert server.unixctl("ovsdb-server/add-remote", remote) == ("", None), remote
                deadline = time.monotonic() + PATIENCE_S
                lines = []
                while not lines or not any(word in lines[-1] for word in ("listening on", "attempt failed", "failed to resolve")):
                    assert time.monotonic() < deadline, (remote, lines)
                    time.sleep(0.02)
                    lines = [line.split("|", 2)[2] for line in server.log_path.read_text()[before:].splitlines()]
                    lines = [line for line in lines if not line.startswith("memory|") and not line.endswith("remote deconfigured")]
                server.unixctl("ovsdb-server/remove-remote", remote)
                # The port that the system chose is random, and Debian's logs some things twice.
                lines = [" ".join(line.split()[:-1]) if "listening on port" in line else line for line in lines]
                logs[remote] = list(dict.fromkeys(lines))
            said.append(logs)
    assert said[0] == said[1]
