"""Operator actions and environment failures: full disks, signals, commands of the control socket, sockets that are
inherited or named twice. Debian's server and ours give the same answers."""

import os
import re
import resource
import signal
import socket
import stat
import subprocess
import time

import pytest

from .connection import Closed, Connection
from .servers import PATIENCE_S, SCHEMAS, STOCK, SUBJECT, OvsdbServer, create_database, server_command

BOTH = pytest.mark.parametrize("which", [STOCK, SUBJECT])
COLUMNS = {"text": {"type": "string"}, "numbers": {"type": {"key": "integer", "min": 0, "max": "unlimited"}}, "pairs": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}
# Exceeding the file size limit kills a process unless it ignores the signal.
SURVIVES = ("sh", "-c", 'trap "" XFSZ; exec "$@"', "sh")


def schema(name="D", version="1.0.0", columns=COLUMNS):
    return {"name": name, "version": version, "tables": {"T": {"columns": columns, "isRoot": True}}}


def insert(text):
    return {"op": "insert", "table": "T", "row": {"text": text}}


def texts(peer):
    (result,) = peer.transact("D", {"op": "select", "table": "T", "where": [], "columns": ["text"]})
    return sorted(row["text"] for row in result["rows"])


def wait(column="text", value="never"):
    return {"op": "wait", "table": "T", "where": [], "columns": [column], "until": "==", "rows": [{column: value}]}


@pytest.fixture
def served(which, tmp_path):
    def start(**named):
        path = tmp_path / "D.db"
        if not path.exists():
            create_database(path, schema())
        servers.append(OvsdbServer(which, tmp_path / f"server-{len(servers)}", databases=[path], **named).start())
        return servers[-1]

    servers = []
    yield start
    for server in servers:
        server.remove()


@BOTH
def test_a_full_disk_refuses_what_does_not_fit_and_nothing_more_once_there_is_room(served, tmp_path):
    server = served(wrap=SURVIVES)
    peer = Connection(server.sock)
    peer.transact("D", insert("before"))
    size = (tmp_path / "D.db").stat().st_size
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size + 5, resource.RLIM_INFINITY))
    for _ in range(3):
        results = peer.transact("D", insert("lost"))
        assert results[1]["error"] == "I/O error" and results[1]["details"].endswith("D.db: write failed"), results
        assert texts(peer) == ["before"]
    assert server.unixctl("ovsdb-server/get-db-storage-status", "D")[0] == "status: ok\n"
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert len(peer.transact("D", insert("after"), {"op": "commit", "durable": True})) == 2
    assert texts(peer) == ["after", "before"]
    peer.close()
    server.kill()
    again = served()
    peer = Connection(again.sock)
    assert texts(peer) == ["after", "before"]
    peer.close()


@BOTH
def test_a_conversion_cancels_who_waits_and_closes_who_cannot_cope_without_a_word(served):
    server = served()
    aware, other, unaware, watcher = (Connection(server.sock) for _ in range(4))
    for peer in (aware, other):
        peer.request("set_db_change_aware", True)
    watcher.request("monitor", "_Server", "m", {"Database": {"columns": ["schema"]}})
    for peer, name in ((aware, "a"), (other, "b"), (unaware, "c")):
        peer.send({"method": "transact", "params": ["D", wait()], "id": name + "1"})
        peer.send({"method": "transact", "params": ["D", wait("numbers", 7)], "id": name + "2"})
        peer.request("list_dbs")
    aware.send({"method": "convert", "params": ["D", schema(version="2.0.0", columns={"text": {"type": "string"}})], "id": "convert"})
    assert [aware.receive() for _ in range(3)] == [
        {"id": "convert", "result": {}, "error": None}, {"id": "a1", "error": "canceled"}, {"id": "a2", "error": "canceled"},
    ]
    assert [other.receive() for _ in range(2)] == [{"id": "b1", "error": "canceled"}, {"id": "b2", "error": "canceled"}]
    for peer in (unaware, watcher):
        with pytest.raises(Closed):
            peer.receive()


@BOTH
@pytest.mark.parametrize("method", ["monitor", "monitor_cond"])
def test_who_cannot_cope_with_another_database_is_closed_before_it_is_told(served, tmp_path, method):
    server = served()
    path = create_database(tmp_path / "E.db", schema("E"))
    for command, argument in (("add-db", str(path)), ("remove-db", "E")):
        unaware, aware = Connection(server.sock), Connection(server.sock)
        aware.request("set_db_change_aware", True)
        for peer in (unaware, aware):
            peer.request(method, "_Server", "m", {"Database": {"columns": ["name"]}})
        assert server.appctl(f"ovsdb-server/{command}", argument)[0] == 0
        assert aware.receive()["params"][0] == "m"
        with pytest.raises(Closed):
            unaware.receive()


@BOTH
def test_monitor_cond_can_be_disabled(served):
    server = served()
    before = Connection(server.sock)
    before.request("set_db_change_aware", True)
    assert server.appctl("ovsdb-server/disable-monitor-cond") == (0, "", "")
    with pytest.raises(Closed):
        before.receive()
    peer = Connection(server.sock)
    assert peer.request("monitor", "D", "m", {"T": {}})["error"] is None
    for method in ("monitor_cond", "monitor_cond_since"):
        assert peer.request(method, "D", method, {"T": {}})["error"] == "unknown method"
    assert "(user ran ovsdb-server/disable-monitor-cond)" in server.log()


@BOTH
def test_changes_of_a_table_are_logged_where_that_is_asked_for(served):
    server = served()
    peer = Connection(server.sock)
    peer.transact("D", insert("not told"))
    assert server.appctl("ovsdb-server/tlog-set", "D:T", "on") == (0, "", "")
    assert re.search(r"^ +T +ON$", server.appctl("ovsdb-server/tlog-list")[1], re.MULTILINE)
    row = {"text": "two words", "numbers": ["set", [3, 1]], "pairs": ["map", [["a", "b c"], ["d e", "f"]]]}
    peer.transact("D", {"op": "delete", "table": "T", "where": []}, {"op": "insert", "table": "T", "row": {"text": "x"}})
    peer.transact("D", {"op": "update", "table": "T", "where": [], "row": row})
    peer.transact("D", {"op": "update", "table": "T", "where": [], "row": row})
    peer.transact("D", insert("gone"), {"op": "abort"})
    assert server.appctl("ovsdb-server/tlog-set", "D:T", "off") == (0, "", "")
    peer.transact("D", insert("not told either"))
    lines = [line.split("|transaction|INFO|")[1] for line in server.log().splitlines() if "|transaction|INFO|" in line]
    # Debian's server prints columns and rows in hash order.
    found = []
    for line in lines:
        fixed, rest = re.match(r"(table:T,op:\w+),(.*)", line).groups()
        columns = sorted(re.split(r",(?=(?:_uuid|_version|text|numbers|pairs):)", rest))
        found.append((fixed, [re.sub(r"^(_uuid|_version):[0-9a-f-]{36}$", r"\1", column) for column in columns]))
    names = ["_uuid", "_version"]
    assert sorted(found[:2]) == [
        ("table:T,op:deleted", [*names, "numbers:[]", "pairs:{}", 'text:"not told"']),
        ("table:T,op:inserted", [*names, "numbers:[]", "pairs:{}", "text:x"]),
    ]
    assert found[2:] == [("table:T,op:updated", [*names, "numbers:[1, 3]", 'pairs:{a="b c", "d e"=f}', 'text:"two words"'])]


def test_a_probe_interval_for_relays_is_taken(tmp_path):
    with OvsdbServer(SUBJECT, tmp_path / "server", arguments=["--no-dbs"]) as server:
        assert server.appctl("ovsdb-server/set-relay-source-probe-interval", "5000") == (0, "", "")
        assert "Invalid probe interval, integer value expected" in server.appctl("ovsdb-server/set-relay-source-probe-interval", "x")[2]


@BOTH
def test_log_lines_go_to_a_collector(which, tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:
        collector.bind(("127.0.0.1", 0))
        collector.settimeout(PATIENCE_S)
        arguments = ["--no-dbs", "-vsyslog:info", f"--syslog-target=127.0.0.1:{collector.getsockname()[1]}"]
        with OvsdbServer(which, tmp_path / "server", arguments=arguments) as server:
            server.appctl("ovsdb-server/memory-trim-on-compaction", "on")
            wanted = "memory trimming after compaction enabled."
            while True:
                line = collector.recv(65536).decode()
                if wanted in line:
                    break
            assert re.fullmatch(rf"<133>1 \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z {re.escape(os.uname().nodename)} ovsdb-server {server.pid} ovsdb_server - \ufeff{re.escape(wanted)}", line), line


def test_options_for_ssl_are_among_the_helps_options():
    text = subprocess.run([*server_command(SUBJECT), "--help"], capture_output=True, text=True, check=True).stdout
    for option in ("--ssl-ciphersuites", "--ssl-ciphers", "--ssl-protocols", "--syslog-target", "pfd:"):
        assert option in text


@BOTH
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS])
def test_a_fault_signal_from_outside_ends_the_process_at_once(served, number):
    server = served()
    os.kill(server.pid, number)
    assert server.process.wait(PATIENCE_S) == -number


@BOTH
def test_a_monitor_starts_a_server_again_after_one_fault_signal(which, tmp_path):
    pidfile = tmp_path / "pid"
    server = OvsdbServer(which, tmp_path / "server", arguments=["--no-dbs", "--monitor", f"--pidfile={pidfile}"])
    with server.start():
        first = int(pidfile.read_text())
        os.kill(first, signal.SIGSEGV)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            text = pidfile.read_text().strip() if pidfile.exists() else ""
            if text and int(text) != first:
                break
            assert time.monotonic() < deadline, server.log()
            time.sleep(0.02)
        assert "died, killed (Segmentation fault)" in server.log()
        server.wait_ready()
        assert server.exit() == 0


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_a_listening_socket_can_be_inherited(tmp_path, family):
    path = tmp_path / "inherited"
    with socket.socket(family) as listener:
        listener.bind(str(path) if family == socket.AF_UNIX else ("127.0.0.1", 0))
        listener.listen()
        os.set_inheritable(listener.fileno(), True)
        number = listener.fileno()
        directory = tmp_path / "server"
        directory.mkdir()
        database = create_database(tmp_path / "v.db", SCHEMAS / "vswitch.ovsschema")
        command = [*server_command(SUBJECT), "-vconsole:off", f"--log-file={directory}/log", f"--unixctl={directory}/ctl", f"--remote=pfd:{number}", str(database)]
        process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ, OVS_RUNDIR=str(directory)))
        try:
            # The peer waits in the backlog until it is accepted.
            peer = Connection(path if family == socket.AF_UNIX else listener.getsockname())
            assert peer.request("list_dbs")["error"] is None
            ctl = OvsdbServer(SUBJECT, directory)
            # Only the process that starts the server knows its open files.
            assert "can only be given on the command line" in ctl.unixctl("ovsdb-server/add-remote", f"pfd:{number}")[1]
            assert ctl.unixctl("ovsdb-server/list-remotes")[0] == f"pfd:{number}\n"
            rows = [{"op": "insert", "table": "Manager", "uuid-name": "m", "row": {"target": f"pfd:{number}"}}, {"op": "insert", "table": "Open_vSwitch", "row": {"manager_options": ["named-uuid", "m"]}}]
            assert ctl.unixctl("ovsdb-server/add-remote", "db:Open_vSwitch,Open_vSwitch,manager_options") == ("", None)
            peer.transact("Open_vSwitch", *rows)
            peer.request("list_dbs")
            assert "pfd: remotes can only be given on the command line" in ctl.log()
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
        # The server does not own the socket's name.
        assert family == socket.AF_INET or path.exists()


@BOTH
def test_a_row_with_the_target_of_the_command_line_sets_how_that_is_probed(which, tmp_path):
    database = create_database(tmp_path / "v.db", SCHEMAS / "vswitch.ovsschema")
    # Remotes are processed in order of their names, the one of the command line last.
    with OvsdbServer(which, tmp_path / "server", databases=[database], arguments=["--remote=db:Open_vSwitch,Open_vSwitch,manager_options"]) as server:
        peer, before = Connection(server.sock), Connection(server.sock)
        before.request("list_dbs")
        row = {"target": f"punix:{server.sock}", "inactivity_probe": 1000}
        peer.transact("Open_vSwitch", {"op": "insert", "table": "Manager", "uuid-name": "m", "row": row}, {"op": "insert", "table": "Open_vSwitch", "row": {"manager_options": ["named-uuid", "m"]}})
        # Debian's server closes the earlier sessions, and listens anew.
        deadline = time.monotonic() + PATIENCE_S
        while which == STOCK and time.monotonic() < deadline:
            try:
                before = Connection(server.sock)
                for _ in range(5):
                    before.request("list_dbs")
                break
            except (Closed, OSError):
                time.sleep(0.02)
        after = Connection(server.sock)
        for silent in (before, after):
            assert silent.receive() == {"id": "echo", "method": "echo", "params": []}
        assert "listen failed" not in server.log()


@BOTH
@pytest.mark.parametrize("mask,mode", [(0o022, 0o750), (0o077, 0o700), (0o002, 0o770), (0o027, 0o750)])
def test_a_sockets_mode_follows_the_umask(which, tmp_path, mask, mode):
    wrap = ("sh", "-c", f'umask {mask:o}; exec "$@"', "sh")
    arguments = ["--no-dbs"]
    with OvsdbServer(which, tmp_path / "server", wrap=wrap, arguments=arguments) as server:
        for path in (server.sock, server.ctl):
            assert stat.S_IMODE(path.stat().st_mode) == mode


def test_the_umask_of_the_process_is_left_alone(tmp_path):
    # The umask belongs to the process: files that other threads create meanwhile would get another mode.
    trace = tmp_path / "trace"
    wrap = ("strace", "-f", "-e", "trace=umask", "-o", str(trace))
    with OvsdbServer(SUBJECT, tmp_path / "server", wrap=wrap, arguments=["--no-dbs"]) as server:
        assert server.sock.exists()
    assert "umask(" not in trace.read_text()
