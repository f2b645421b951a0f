"""The daemon's interface compared with Debian's: command line, exit codes, pid file, detaching, log format, unixctl
texts, remotes."""

import os
import re
import signal
import socket
import subprocess
import time

import pytest

from tests.servers import free_port

from .connection import Connection
from .conftest import SMALL
from .log_file import text_of_record
from .names import UUID
from .servers import PATIENCE_S, STOCK, OvsdbServer, create_database, server_command

LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\|\d{5}\|[a-z_0-9]+(\([^)]*\))?\|(EMER|ERR|WARN|INFO|DBG)\|")


def environment(directory):
    return dict(os.environ, OVS_RUNDIR=str(directory), OVS_LOGDIR=str(directory), OVS_DBDIR=str(directory), OVS_SYSCONFDIR=str(directory))


def run(kind, directory, *arguments, timeout=PATIENCE_S):
    """(exit code, standard output, standard error) of a server that is expected to exit by itself."""
    done = subprocess.run([*server_command(kind), *map(str, arguments)], capture_output=True, text=True, timeout=timeout, cwd=directory, env=environment(directory))
    return done.returncode, clean(done.stdout, directory), clean(done.stderr, directory)


def clean(text, directory):
    text = text.replace(str(directory), "DIR")
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z\|\d+\|", "", text)
    return UUID.sub("UUID", re.sub(r"\b\d{3,}\b", "N", text))


def prepared(tmp_path, name):
    directory = tmp_path / name
    directory.mkdir()
    create_database(directory / "D.db", SMALL)
    (directory / "garbage.db").write_bytes(b"this is no database\n")
    (directory / "empty.db").write_bytes(b"")
    (directory / "torn.db").write_bytes(b"OVSDB JSON 100 0000000000000000000000000000000000000000\n{")
    (directory / "schema.db").write_bytes(text_of_record(b'{"name":"D","tables":{}}'))
    (directory / "directory.db").mkdir()
    return directory


# Command lines that exit by themselves. Options that ours refuses by name, with other words, are in the table below.
ENDS = {
    "no such file": ["--remote=punix:sock", "nix.db"],
    "garbage": ["garbage.db"],
    "an empty file": ["empty.db"],
    "a torn schema": ["torn.db"],
    "a schema without version": ["--run=true", "schema.db"],
    "a directory": ["directory.db"],
    "the same database twice": ["--run=true", "D.db", "D.db"],
    "an unknown option": ["--nix", "D.db"],
    "an option without its argument": ["--remote"],
    "an ambiguous option": ["--re=x", "D.db"],
    "an argument too many": ["--no-chdir=1", "D.db"],
    "a remote of no kind": ["--run=true", "--remote=nix:sock", "D.db"],
    "a db remote of an unknown database": ["--remote=db:X,Y,z", "D.db"],
    "a db remote of an unknown table": ["--remote=db:D,Y,z", "D.db"],
    "a db remote of an unknown column": ["--remote=db:D,T,z", "D.db"],
    "a db remote of a wrong column": ["--run=true", "--remote=db:D,T,i", "D.db"],
    "a db remote of two parts": ["--remote=db:D,T", "D.db"],
    "run that succeeds": ["--unixctl=ctl", "--remote=punix:sock", "--run=true", "D.db"],
    "run that fails": ["--unixctl=ctl", "--remote=punix:sock", "--run=exit 7", "D.db"],
    "run that is killed": ["--unixctl=ctl", "--remote=punix:sock", "--run=kill -9 $$", "D.db"],
    "an unknown log module": ["-vnix:dbg", "D.db"],
    "an unknown log level": ["-vconsole:loud", "D.db"],
    "a log file that cannot be": ["--log-file=no/such/directory/log", "--run=true", "--unixctl=ctl", "D.db"],
    "unixctl that cannot be": ["--unixctl=no/such/directory/ctl", "D.db"],
}


@pytest.mark.parametrize("name", ENDS)
def test_a_command_line_ends_the_same(kind, tmp_path, name):
    arguments = ENDS[name]
    if not any(one.startswith("--unixctl") for one in arguments):
        arguments = ["--unixctl=ctl", *arguments]
    mine, other = (run(one, prepared(tmp_path, which), "-vsyslog:off", *arguments) for which, one in (("stock", STOCK), ("ours", kind)))
    assert other[0] == mine[0], (mine, other)
    assert program_aside(other[2]) == program_aside(mine[2])


def program_aside(text):
    """The text without the leading program name, which is the name it was called by."""
    return [re.sub(r"^\S*(ovsdb-server|dormouse)( ovsdb-server)?: ", "ovsdb-server: ", line) for line in text.splitlines() if "|INFO|" not in line]


def test_version_and_help(kind, tmp_path):
    for option in ("--version", "-V"):
        code, out, _ = run(kind, tmp_path, option)
        assert code == 0 and out.startswith("ovsdb-server ("), out
    for option in ("--help", "-h"):
        code, out, _ = run(kind, tmp_path, option)
        assert code == 0 and "--remote" in out and "--detach" in out and "--pidfile" in out


def test_detach_answers_when_it_serves(kind, tmp_path):
    directory = prepared(tmp_path, "run")
    port = free_port()
    arguments = ["--detach", "--no-chdir", f"--pidfile={directory}/pid", f"--log-file={directory}/log", f"--unixctl={directory}/ctl",
                 f"--remote=punix:{directory}/sock", f"--remote=ptcp:{port}:localhost", "-vconsole:off", f"{directory}/D.db"]
    done = subprocess.run([*server_command(kind), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, env=environment(directory))
    assert done.returncode == 0, done.stderr
    pid = int((directory / "pid").read_text())
    try:
        # No waiting: the parent exits only once the child serves, even on a host name, which takes time to resolve.
        for address in (("127.0.0.1", port), directory / "sock"):
            with Connection(address) as peer:
                assert sorted(peer.request("list_dbs")["result"]) == ["D", "_Server"]
        assert os.getsid(pid) != os.getsid(0), "the daemon has a session of its own"
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        # A second server does not replace it.
        second = subprocess.run([*server_command(kind), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, env=environment(directory))
        assert second.returncode == 1 and f"already running as pid {pid}" in second.stderr, second.stderr
        answer = subprocess.run(["ovs-appctl", "-t", f"{directory}/ctl", "exit"], capture_output=True, text=True, timeout=PATIENCE_S)
        assert (answer.returncode, answer.stdout) == (0, "")
    finally:
        wait_gone(pid)
    assert not (directory / "pid").exists() and not (directory / "sock").exists() and not (directory / "ctl").exists()
    lines = (directory / "log").read_text().splitlines()
    assert all(LOG_LINE.match(line) for line in lines), lines
    numbers = [int(line.split("|")[1]) for line in lines]
    assert all(a < b or b == 1 for a, b in zip(numbers, numbers[1:])), numbers


def wait_gone(pid):
    deadline = time.monotonic() + PATIENCE_S
    while os.path.exists(f"/proc/{pid}") and "State:\tZ" not in open(f"/proc/{pid}/status").read():
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("the daemon does not end")
        time.sleep(0.02)


def test_a_detach_that_fails_says_so(kind, tmp_path):
    answers = []
    for which, one in (("stock", STOCK), ("ours", kind)):
        directory = prepared(tmp_path, which)
        answers.append(run(one, directory, "--detach", "--no-chdir", "--pidfile=pid", "--unixctl=ctl", "-vsyslog:off", "--remote=punix:sock", "nix.db"))
        assert not (directory / "pid").exists()
    assert answers[0][0] == answers[1][0] and program_aside(answers[0][2]) == program_aside(answers[1][2])


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
def test_signals_end_it_and_clean_up(kind, tmp_path, number):
    path = create_database(tmp_path / "D.db", SMALL)
    codes = []
    for which, one in (("stock", STOCK), ("ours", kind)):
        with OvsdbServer(one, tmp_path / which, databases=[path], arguments=["--pidfile=" + str(tmp_path / which / "pid")]) as server:
            os.kill(server.pid, number)
            codes.append(server._wait())
            assert not server.sock.exists() and not (tmp_path / which / "pid").exists()
    assert codes[0] == codes[1]


@pytest.fixture
def both(kind, tmp_path):
    servers = []
    for name, one in (("stock", STOCK), ("ours", kind)):
        directory = prepared(tmp_path, name)
        create_database(directory / "more.db", dict(SMALL, name="More"))
        servers.append(OvsdbServer(one, directory, databases=[directory / "D.db"]).start())
    yield servers
    for server in servers:
        assert server.alive(), server.log() + server.stderr()
        server.remove()


# Sequences of unixctl commands that both answer alike. DIR is the server's directory.
UNIXCTL = {
    "databases": [["ovsdb-server/list-dbs"], ["ovsdb-server/add-db", "DIR/more.db"], ["ovsdb-server/list-dbs"], ["ovsdb-server/add-db", "DIR/more.db"],
                  ["ovsdb-server/add-db", "DIR/nix.db"], ["ovsdb-server/add-db", "DIR/garbage.db"], ["ovsdb-server/remove-db", "More"], ["ovsdb-server/remove-db", "More"],
                  ["ovsdb-server/remove-db", "_Server"], ["ovsdb-server/list-dbs"], ["ovsdb-server/add-db"], ["ovsdb-server/list-dbs", "x"]],
    "remotes": [["ovsdb-server/list-remotes"], ["ovsdb-server/add-remote", "punix:DIR/two"], ["ovsdb-server/list-remotes"], ["ovsdb-server/add-remote", "punix:DIR/two"],
                ["ovsdb-server/remove-remote", "punix:DIR/two"], ["ovsdb-server/remove-remote", "punix:DIR/two"], ["ovsdb-server/add-remote", "nix"],
                ["ovsdb-server/add-remote", "db:D,T,nix"], ["ovsdb-server/add-remote", "db:X,T,s"], ["ovsdb-server/add-remote", "db:D,T,s"], ["ovsdb-server/list-remotes"],
                ["ovsdb-server/add-remote"], ["ovsdb-server/remove-remote"]],
    "compact": [["ovsdb-server/compact"], ["ovsdb-server/compact", "D"], ["ovsdb-server/compact", "nix"], ["ovsdb-server/compact", "_Server"],
                ["ovsdb-server/memory-trim-on-compaction", "on"], ["ovsdb-server/memory-trim-on-compaction", "off"], ["ovsdb-server/memory-trim-on-compaction", "maybe"]],
    "storage": [["ovsdb-server/get-db-storage-status", "D"], ["ovsdb-server/get-db-storage-status", "nix"], ["ovsdb-server/get-db-storage-status"]],
    "reconnect": [["ovsdb-server/reconnect"], ["ovsdb-server/reconnect", "x"]],
    "vlog": [["vlog/list"], ["vlog/set", "jsonrpc:dbg"], ["vlog/set", "nix:dbg"], ["vlog/set", "loud"], ["vlog/set", "file:info"], ["vlog/set", "PATTERN:console:%m"],
             ["vlog/list-pattern"], ["vlog/reopen"], ["vlog/disable-rate-limit"], ["vlog/enable-rate-limit"], ["vlog/disable-rate-limit", "nix"], ["vlog/close"], ["vlog/reopen"]],
    "wrong": [["nix"], ["version"], ["version", "x"], ["exit", "--nix"], ["list-commands", "x"]],
}


@pytest.mark.parametrize("name", UNIXCTL)
def test_unixctl_answers_the_same(both, name):
    for command in UNIXCTL[name]:
        answers = []
        for server in both:
            arguments = [word.replace("DIR", str(server.directory)) for word in command]
            result, error = server.unixctl(*arguments)
            answers.append(tuple(clean(text, server.directory) if text else text for text in (result, error)))
        if command == ["version"]:
            assert answers[1][0].startswith("ovsdb-server (")
        elif command == ["vlog/list"]:
            # Each program has its own modules; the table has the same shape.
            shape = lambda text: (text.splitlines()[:2], {len(line.split()) for line in text.splitlines()[2:]})
            assert shape(answers[0][0]) == shape(answers[1][0])
        else:
            assert answers[0] == answers[1], command


def test_list_commands(both):
    """Every command of Debian's exists: served, or refused by name. Ours has one more, which is not listed."""
    texts = [clean(server.unixctl("list-commands")[0], "/") for server in both]
    assert texts[0] == texts[1]


# Commands that exist for clients that look for them but are refused: by name, in one line.
REFUSED = {
    ("ovsdb-server/set-active-ovsdb-server", "tcp:127.0.0.1:1"): "replication is not supported by this server\n",
    ("ovsdb-server/set-active-ovsdb-server-probe-interval", "1"): "replication is not supported by this server\n",
    ("ovsdb-server/set-sync-exclude-tables", "D:T"): "replication is not supported by this server\n",
}


def test_what_is_not_served_is_refused_by_name(small):
    for (command, *arguments), text in REFUSED.items():
        assert small.unixctl(command, *arguments) == (None, text)


def test_logs_of_tables_and_counters_answer_the_same(both):
    commands = (["ovsdb-server/tlog-list"], ["ovsdb-server/tlog-set", "D:T", "on"], ["ovsdb-server/tlog-list"], ["ovsdb-server/tlog-set", "D:T", "off"], ["ovsdb-server/tlog-set", "D:X", "on"], ["ovsdb-server/tlog-set", "X:T", "on"],
                ["ovsdb-server/tlog-set", "DT", "on"], ["ovsdb-server/tlog-set", "D:T", "maybe"], ["ovsdb-server/tlog-set", "D:", "on"], ["ovsdb-server/tlog-set", ":T", "on"],
                ["ovsdb-server/tlog-set", "D:T"], ["coverage/read-counter", "nix"], ["coverage/read-counter"], ["ovsdb-server/perf-counters-show"], ["ovsdb-server/perf-counters-clear"])
    for command in commands:
        assert both[0].unixctl(*command) == both[1].unixctl(*command), command
    shown = [server.unixctl("coverage/show")[0].splitlines() for server in both]
    assert shown[0][0].split("hash=")[0] == shown[1][0].split("hash=")[0]


def test_what_both_count_is_counted_the_same(both):
    for server in both:
        server.unixctl("version")
    counters = ("pstream_open", "stream_open", "unixctl_received", "unixctl_replied")
    assert [both[0].unixctl("coverage/read-counter", name) for name in counters] == [both[1].unixctl("coverage/read-counter", name) for name in counters]
    lines = [{line.split()[0]: re.sub(r"\d", "N", line) for line in server.unixctl("coverage/show")[0].splitlines()[1:-1]} for server in both]
    assert lines[1] and lines[1] == {name: line for name, line in lines[0].items() if name in counters}


def test_every_option_of_debians_is_known(kind, tmp_path):
    """Each is served, accepted, or refused by name."""
    _, text, _ = run(STOCK, tmp_path, "--help")
    options = sorted(set(re.findall(r"--[a-z][a-z-]+", text)))
    assert len(options) > 20
    for option in options:
        _, _, errors = run(kind, tmp_path, f"{option}=x", "--version")
        assert "unrecognized" not in errors and "ambiguous" not in errors, option


def test_memory_show_counts(both):
    answers = []
    for server in both:
        with Connection(server.sock) as peer:
            peer.transact("D", *({"op": "insert", "table": "T", "row": {"key": number}} for number in range(10)))
            peer.request("monitor", "D", "m", {"T": {}})
            pairs = dict(word.split(":") for word in server.unixctl("memory/show")[0].split())
            answers.append(pairs)
    for key in ("monitors", "sessions"):
        assert answers[0][key] == answers[1][key], answers
    assert "cells" in answers[1]


def test_growing_memory_is_told_in_the_log(both):
    """After ten seconds, and when the peak resident size has grown by half. Ours has no timer for this, so it logs at
    the next event after that."""
    started = time.monotonic()

    def told():
        return [[re.sub(r"[0-9.]+", "N", re.sub(r" sessions:\d+", "", line.split("|", 2)[2])) for line in server.log_path.read_text().splitlines() if "|memory|" in line] for server in both]

    def work(rows):
        for server in both:
            with Connection(server.sock) as peer:
                peer.transact("D", *({"op": "insert", "table": "T", "row": {"key": -time.monotonic_ns(), "s": "x" * 1000}} for _ in range(rows)))

    def work_until(lines):
        while min(map(len, told())) < lines:
            assert time.monotonic() < started + PATIENCE_S, told()
            time.sleep(0.5)
            work(1)

    work(1)
    assert told() == [[], []]
    work_until(2)
    assert time.monotonic() > started + 10
    work(30_000)
    work_until(4)
    first, second = told()
    assert first[0] == "memory|INFO|N kB peak resident set size after N seconds" and "memory|INFO|peak resident set size grew N% in last N seconds, from N kB to N kB" in first
    assert second[:4] == first[:4]


def test_exit_code_and_socket_modes(both):
    modes = [server.sock.stat().st_mode for server in both]
    assert modes[0] == modes[1]
    assert [server.exit() for server in both] == [0, 0]
    assert not any(server.sock.exists() or server.ctl.exists() for server in both)
    for server in both:
        server.start()


def test_remotes_over_tcp(kind, tmp_path):
    """ptcp, and tcp to a listening client; both give the same answers."""
    path = create_database(tmp_path / "D.db", SMALL)
    from tests.servers import free_port

    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        active = f"tcp:127.0.0.1:{listener.getsockname()[1]}"
        with OvsdbServer(kind, tmp_path / "run", databases=[path], remotes=[f"punix:{tmp_path / 'run' / 'sock'}", f"ptcp:{port}:127.0.0.1", active]) as server:
            with Connection(("127.0.0.1", port)) as peer:
                assert peer.request("list_dbs")["result"]
            listener.settimeout(PATIENCE_S)
            connection, _ = listener.accept()
            connection.settimeout(PATIENCE_S)
            connection.sendall(b'{"method":"list_dbs","params":[],"id":1}')
            assert b'"D"' in connection.recv(4096)
            # After being dropped, it reconnects.
            connection.close()
            again, _ = listener.accept()
            again.close()
            assert server.alive()


def test_an_idle_tcp_session_is_probed(kind, tmp_path):
    """After 5 s it gets an echo; without an answer, the session is closed after another 5 s."""
    path = create_database(tmp_path / "D.db", SMALL)
    from tests.servers import free_port

    port = free_port()
    with OvsdbServer(kind, tmp_path / "run", databases=[path], remotes=[f"punix:{tmp_path / 'run' / 'sock'}", f"ptcp:{port}:127.0.0.1"]):
        with Connection(("127.0.0.1", port)) as peer:
            message = peer.receive()
            assert message["method"] == "echo" and message["params"] == []
            peer.send({"id": message["id"], "result": [], "error": None})
            assert peer.request("list_dbs")["result"]


def test_a_db_remote_follows_its_rows(kind, tmp_path):
    from .servers import SCHEMAS

    path = create_database(tmp_path / "conf.db", SCHEMAS / "vswitch.ovsschema")
    with OvsdbServer(kind, tmp_path / "run", databases=[path], arguments=["--remote=db:Open_vSwitch,Open_vSwitch,manager_options"]) as server:
        vsctl = lambda *arguments: subprocess.run(["ovs-vsctl", "--no-wait", f"--db=unix:{server.sock}", *arguments], check=True, timeout=PATIENCE_S)
        vsctl("init")
        other = tmp_path / "other"
        vsctl("set-manager", f"punix:{other}")
        deadline = time.monotonic() + PATIENCE_S
        while not other.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with Connection(other) as peer:
            assert "Open_vSwitch" in peer.request("list_dbs")["result"]
        vsctl("del-manager")
        while other.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
