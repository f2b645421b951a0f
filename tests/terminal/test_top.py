"""`dormouse top` in a real terminal: its views, sorting, filters, quitting, sizes, lost connections, hostile names."""

import json
import os
import pty
import re
import signal
import subprocess
import termios
import threading
import time

import pytest
from pymemcache.client.base import Client

from tests.servers import Dormouse, dormouse_binary, free_port
from tests.stub import Stub, serving
from tests.terminal.command import Operator, address, run
from tests.terminal.conftest import BOSS
from tests.terminal.screen import Screen

INTERVAL = ("--interval", "0.2")


def top(node, *arguments, **size):
    return Screen(dormouse_binary(), "top", "--node", node if isinstance(node, str) else address(node), *INTERVAL, *arguments, **size)


def names(text):
    """The names in a table, in their order."""
    lines = text.splitlines()
    titles = next(index for index, line in enumerate(lines) if line.startswith("Name"))
    return [line.split()[0] for line in lines[titles + 1 : -1] if line.strip()]


class Load:
    """Writes and reads of a client for as long as it is open."""

    def __init__(self, node):
        self.client, self.is_over = Client(node.memcached, default_noreply=False), False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        number = 0
        while not self.is_over:
            number += 1
            self.client.set(f"key{number % 100}", "value")
            self.client.get(f"key{number % 100}")

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()
        self.client.close()


def test_the_node_with_counters_that_rise(node):
    with top(node) as screen:
        text = screen.wait(lambda text: re.search(r"Operations/s +0 ", text))
        assert text.splitlines()[0].startswith(f"http://{address(node)}  ok  up ") and "1[Node]" in text
        assert "Resident memory " in text and "Of this, in buckets " in text
        with Load(node):
            screen.wait(lambda text: re.search(r"Operations/s +[1-9][\d.]*( k)? +Hit ratio +100\.0 %", text))
            screen.wait(lambda text: re.search(r"CPU of a core +(?!0\.0 )[\d.]+ %", text))
        screen.wait(lambda text: re.search(r"Operations/s +0 ", text))
        screen.wait(lambda text: re.search(r"Connections +0$", text, re.M))


def test_the_bar_adds_up(node):
    with top(node) as screen:
        lines = screen.wait("Resident memory ").splitlines()
        at = next(index for index, line in enumerate(lines) if line.startswith("Resident memory "))
        bar = lines[at + 1]
        assert len(bar) == 100 and set(bar) <= set("█▒▓░"), bar
        shares = re.findall(r"([\d.]+) %", "".join(lines[at + 2 : at + 4]))
        assert len(shares) == 4 and abs(sum(map(float, shares)) - 100) < 0.5, lines[at : at + 4]


def test_buckets_are_sorted_and_filtered(boss, guarded, password_file):
    for name, size in (("alpha", 70), ("beta", 90), ("gamma", 80), ("n" * 100, 64)):
        boss.does("bucket", "create", name, "--type", "ephemeral", "--memory", f"{size}MiB")
    with top(guarded, "--user", BOSS, "--password-file", password_file) as screen:
        screen.wait("1[Node]")
        screen.keys("2")
        text = screen.wait("2[Buckets]")
        assert "Ops/s▾" in text and text.count("\n" + "n" * 10) == 1 and "n…" in text
        screen.keys("B")
        assert [name for name in names(screen.wait("Budget▾")) if len(name) < 6] == ["beta", "gamma", "alpha"]
        screen.keys("r")
        assert [name for name in names(screen.wait("Budget▴")) if len(name) < 6] == ["alpha", "gamma", "beta"]
        screen.keys("N")
        text = screen.wait("Name▴")
        assert names(text) == sorted(names(text))
        screen.keys(">")
        screen.wait("Ops/s▾")
        screen.keys("<")
        screen.wait("Name▴")

        screen.keys("/")
        screen.type("AM")
        screen.wait("/AM▏")
        assert names(screen.text()) == ["gamma"]
        screen.keys("Enter")
        assert "1 of 5" in screen.wait("Esc shows all")
        screen.keys("/")
        screen.type("q?")
        assert "No name matches the filter." in screen.wait("/AMq?▏")
        screen.keys("Escape")
        screen.wait(lambda text: "alpha" in text and "q quit" in text)


def test_threads_and_databases(node):
    with top(node) as screen:
        screen.wait("1[Node]")
        screen.keys("3")
        text = screen.wait(lambda text: re.search(r"dm:http +[\d.]+ % +[\d.]+ s +\d+", text))
        assert "dm:worker0" in text and "CPU▾" in text
        screen.keys("Tab")
        assert "There are none." in screen.wait("4[Databases]")
        screen.keys("Tab")
        screen.wait("1[Node]")


def test_an_ovsdb_database(tmp_path):
    schema = {"name": "Zoo", "version": "1.0.0", "tables": {"Animal": {"columns": {"name": {"type": "string"}}}}}
    (tmp_path / "zoo.schema").write_text(json.dumps(schema))
    subprocess.run(["ovsdb-tool", "create", tmp_path / "zoo.db", tmp_path / "zoo.schema"], check=True)
    config = f'[[ovsdb]]\nfile = "{tmp_path}/zoo.db"\nremotes = "punix:{tmp_path}/zoo.sock"\n'
    with Dormouse(config=config, home=tmp_path) as node, top(node) as screen:
        screen.wait("1[Node]")
        screen.keys("4")
        text = screen.wait("Zoo")
        assert re.search(r"Zoo +0 +[\d.]+ [KM]iB", text), text


def test_help_lists_the_keys_and_closes(node):
    with top(node) as screen:
        screen.wait("1[Node]")
        screen.keys("?")
        screen.wait("turn the order round")
        screen.keys("q")
        screen.wait(lambda text: "turn the order round" not in text and "Operations/s" in text)


@pytest.mark.parametrize("key", ("q", "C-c"))
def test_quitting_restores_the_terminal(node, key):
    with top(node) as screen:
        screen.wait("1[Node]")
        assert screen.tmux("display-message", "-p", "#{alternate_on}").strip() == "1"
        screen.keys(key)
        assert screen.exit_code() == 0
        assert screen.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").strip() == "0 1"
        # The terminal echoes again.
        screen.type("typed")
        screen.wait("typed")
        assert "Operations/s" not in screen.text()


def test_a_signal_restores_the_terminal(node):
    with top(node) as screen:
        screen.wait("1[Node]")
        shell = int(screen.tmux("display-message", "-p", "#{pane_pid}"))
        with open(f"/proc/{shell}/task/{shell}/children") as children:
            child = int(children.read().split()[0])
        os.kill(child, signal.SIGTERM)
        assert screen.exit_code() == 0
        assert screen.tmux("display-message", "-p", "#{alternate_on}").strip() == "0"


def test_every_view_fits_a_small_terminal(node):
    with top(node) as screen:
        screen.wait("1[Node]")
        for columns, rows in ((40, 10), (10, 4), (120, 40), (40, 10)):
            screen.resize(columns, rows)
            for key, view in zip("1234?1", ("Node", "Buckets", "Threads", "Databases", "Databases", "Databases")):
                screen.keys(key)
                if columns >= 40:
                    screen.wait(f"[{view}]")
        screen.wait("q quit")
        screen.keys("2")
        # Not just "default": a frame of the old size may still be drawn over the lines that the terminal wrapped anew.
        screen.wait(lambda text: max(map(len, text.splitlines())) <= 40 and all(word in text for word in ("Name ", "Hits", "default ")))
        screen.keys("1")
        text = screen.wait(lambda text: "Operations/s" in text)
        assert "Hit ratio" in text and len(text.splitlines()) == 10, text


def test_a_node_that_is_killed_and_comes_back(tmp_path):
    port = free_port()
    with Dormouse(home=tmp_path, ports={"http": port}) as node, top(node) as screen:
        screen.wait("1[Node]")
        node.kill()
        text = screen.wait("NO ANSWER")
        assert "figures are " in text and "Operations/s" in text, text
        red = screen.tmux("capture-pane", "-p", "-e").splitlines()[1]
        assert re.search("\x1b\\[([0-9;]*;)?(31|38;5;1)m", red), red
        screen.wait(lambda text: re.search(r"figures are [1-9]\d* s old", text))
        with Dormouse(home=tmp_path, ports={"http": port}) as again:
            screen.wait(lambda text: "NO ANSWER" not in text)
            with Load(again):
                screen.wait(lambda text: re.search(r"Operations/s +[1-9]", text))
        screen.wait("NO ANSWER")
        screen.keys("q")
        assert screen.exit_code() == 0


def test_without_a_terminal_it_names_what_scripts_use(node):
    refused = run("top", "--node", address(node))
    assert refused.returncode == 2 and "dormouse status --json" in refused.stderr and refused.stdout == "", refused
    for interval in ("0", "-1", "x", "1e9"):
        refused = run("top", "--interval", interval)
        assert refused.returncode == 2 and "0.1 to 3600 seconds" in refused.stderr, refused


def test_what_cannot_be_asked_is_told_at_once(guarded):
    with top(f"127.0.0.1:{free_port()}") as screen:
        assert screen.exit_code() == 1 and "refused" in screen.text()
    with top(guarded) as screen:
        assert screen.exit_code() == 1 and "a login is needed" in screen.text()


class Node(Stub):
    """A node with names that no node allows; counts what it is asked."""

    asked, memory = 0, None
    names = ("🐭" * 40, "\x1b[2J\x1b[31mred\r\n", "\u202etxet", "e\u0301" * 60, "<b>&amp;")

    def do_GET(self):
        Node.asked += 1
        buckets = {name: {"items": 1, "budget_bytes": 1 << 30, "cmd_get": Node.asked * 1000, "get_hits": Node.asked * 500} for name in self.names}
        parts = [{"name": name, "bytes": 1 << 20, "about": {"kind": "ephemeral"}, "parts": [{"name": name, "bytes": 1 << 20}]} for name in self.names]
        body = json.dumps({
            "/health/ready": {"status": "ok"},
            "/figures": {"uptimeMs": Node.asked * 100, "cpuNs": 0, "node": {}, "threads": [], "buckets": buckets},
            "/memory": self.memory or {"residentBytes": 5 << 20, "limitBytes": 0, "parts": [{"name": "buckets", "bytes": 5 << 20, "parts": parts}]},
        }[self.path])
        self.answer(200, body)


@pytest.fixture
def stub():
    with serving(Node) as place:
        yield place


def test_hostile_names_are_data(stub):
    with top(stub) as screen:
        screen.wait("1[Node]")
        screen.keys("2")
        text = screen.wait(lambda text: "50.0 %" in text)
        assert "\ufffd[2J\ufffd[31mred…" in text and "\ufffdtxet" in text and "<b>&amp;" in text, text
        # Wide names are cut at a column, and what is beside them stays in its place.
        mouse = next(line for line in text.splitlines() if line.startswith("🐭"))
        red = next(line for line in text.splitlines() if "red" in line)
        assert mouse.split("50.0 %")[0].count("🐭") * 2 + len(mouse.split("50.0 %")[0].replace("🐭", "")) == len(red.split("50.0 %")[0]), text
        assert "\x1b[2J" not in screen.tmux("capture-pane", "-p", "-e")


def test_figures_that_no_node_has_do_not_end_it(stub, monkeypatch):
    most = {"name": "buckets", "bytes": 2**64 - 1, "parts": [{"name": name, "bytes": 2**64 - 1, "about": {"kind": "\x1b[2J"}} for name in "abc"]}
    monkeypatch.setattr(Node, "memory", {"residentBytes": 2**64 - 1, "limitBytes": 0, "parts": [most] * 3})
    with top(stub) as screen:
        screen.wait("1[Node]")
        screen.keys("2")
        screen.wait("[Buckets]")
        screen.keys("q")
        assert screen.exit_code() == 0


def test_a_terminal_that_goes_away_ends_it(stub):
    """Not by an abort, whose core would be somebody's alarm."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (30, 100))
    process = subprocess.Popen([dormouse_binary(), "top", "--node", stub, *INTERVAL], stdin=follower, stdout=follower, stderr=follower, start_new_session=True)
    os.close(follower)
    seen = b""
    while b"Node" not in seen and process.poll() is None:
        seen += os.read(leader, 65536)
    os.close(leader)
    assert process.wait(timeout=60) >= 0, process.returncode
