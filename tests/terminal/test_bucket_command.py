"""`dormouse bucket` and `dormouse backup`: with and without a login, what is refused, and confirmations."""

import json
import os
import re
import subprocess

import pytest
from pymemcache.client.base import Client

from tests.servers import dormouse_binary, free_port
from tests.terminal.command import Operator, address, run
from tests.terminal.conftest import BOSS
from tests.terminal.screen import Screen


def test_a_bucket_from_its_creation_to_its_end(boss):
    options = ("--type", "ephemeral", "--memory", "64MiB", "--flush-enabled", "true", "--max-ttl", "60", "--durability", "majority", "--vbuckets", "64")
    assert boss.does("bucket", "create", "cache", *options) == "bucket cache created\n"
    assert boss.rows("bucket", "list")["cache"][:3] == ["ephemeral", "noEviction", "0"]
    shown = {name: value for name, value in (line.split(maxsplit=1) for line in boss.does("bucket", "show", "cache").splitlines())}
    expected = {"memory": "64.0 MiB", "type": "ephemeral", "flush-enabled": "true", "max-ttl-s": "60", "durability-min-level": "majority", "vbuckets": "64"}
    assert expected.items() <= shown.items(), shown

    assert boss.does("bucket", "edit", "cache", "--memory", "0.125GiB", "--flush-enabled", "false") == "bucket cache changed\n"
    document = json.loads(boss.does("bucket", "show", "cache", "--json"))
    assert (document["quota"]["ram"], document["flushEnabled"], document["maxTTL"]) == (128 << 20, False, 60)
    assert [bucket["name"] for bucket in json.loads(boss.does("bucket", "list", "--json"))] == ["cache", "default"]

    assert boss.does("bucket", "drop", "cache", "--yes") == "bucket cache deleted\n"
    assert "Requested resource not found." in boss.fails("bucket", "show", "cache")


def test_a_flush_empties_the_bucket_and_only_if_it_may(boss):
    boss.does("bucket", "create", "full", "--type", "ephemeral", "--memory", "64MiB", "--flush-enabled", "true")
    document = "/pools/default/buckets/full/scopes/_default/collections/_default/docs/key"
    assert boss.http("PUT", document, "value=x") == 200 and boss.http("GET", document) == 200
    boss.does("bucket", "flush", "full", "--yes")
    assert boss.http("GET", document) == 404
    boss.does("bucket", "delete", "full", "--yes")
    boss.does("bucket", "edit", "default", "--flush-enabled", "false")
    assert "Flush is disabled for the bucket" in boss.fails("bucket", "flush", "default", "--yes")


def test_what_the_node_refuses_is_told_in_its_words_by_the_options_names(boss):
    for arguments, words in (
        (("create", "x"), "--memory: The RAM quota needs to be specified"),
        (("create", "x", "--memory", "1TiB", "--type", "ephemeral"), "--memory: "),
        (("create", "x", "--memory", "64MiB", "--type", "magma"), '--type: "magma" is not allowed. Allowed: '),
        (("create", "x", "--memory", "64MiB", "--compression", "zstd"), '--compression: "zstd" is not allowed'),
        (("create", "x", "--memory", "64MiB", "--max-ttl-s", "-1"), '--max-ttl-s: "-1" is not allowed'),
        (("create", "default", "--memory", "64MiB", "--type", "ephemeral"), "exists"),
        (("create", "../x\x1b[31m", "--memory", "64MiB", "--type", "ephemeral"), "Bucket name"),
        (("edit", "nothing", "--memory", "64MiB"), "Requested resource not found."),
        (("edit", "..", "--memory", "64MiB"), "%2E%2E: Requested resource not found."),
        (("show", "a/b?c#d"), "a%2Fb%3Fc%23d: Requested resource not found."),
        (("edit", "default", "--eviction", "valueOnly"), "--eviction: "),
        (("delete", "🐭\x1b[2J" * 20, "--yes"), "Requested resource not found."),
    ):
        line = boss.fails("bucket", *arguments)
        assert words in line and "\x1b" not in line, line


def test_mistakes_in_the_command_line(boss):
    for arguments, words in (
        (("bucket", "create", "x", "--memory", "1000"), "whole MiB"),
        (("bucket", "create", "x", "--memory", "much"), "whole MiB"),
        (("bucket", "create", "", "--memory", "64MiB"), "BUCKET"),
        (("bucket", "create", "x", "--hi", "5"), "--hi"),
        (("bucket", "edit", "default"), "there is nothing to change"),
        (("bucket", "edit", "default", "--type", "ephemeral"), "--type"),
        (("bucket", "delete", "default"), "--yes is needed"),
        (("bucket", "flush", "default"), "--yes is needed"),
        (("bucket", "remove", "default"), "remove"),
    ):
        assert words in boss.fails(*arguments, code=2)
    assert "default" in boss.rows("bucket", "list")


def test_logins(guarded, tmp_path, password_file):
    wrong = tmp_path / "wrong"
    wrong.write_text("guessed\n")
    for command in (("list",), ("show", "default"), ("create", "x", "--memory", "64MiB"), ("flush", "default", "--yes"), ("delete", "default", "--yes")):
        line = Operator(guarded).fails("bucket", *command)
        assert "a login is needed: --user and --password-file" in line and "Administrator" in line and '"password"' in line
        line = Operator(guarded, BOSS, wrong).fails("bucket", *command)
        assert 'the login of "boss" was refused' in line and "guessed" not in line
    assert "--password-file FILE is needed" in Operator(guarded).fails("bucket", "list", "--user", BOSS, code=2)
    nobody = f"127.0.0.1:{free_port()}"
    refused = run("bucket", "list", "--node", nobody)
    assert refused.returncode == 1 and nobody in refused.stderr


def test_the_development_user_changes_things(node, tmp_path):
    """Reads need no login then, changes do."""
    password = tmp_path / "password"
    password.write_text("password\n")
    assert "default" in Operator(node).rows("bucket", "list")
    assert "Administrator" in Operator(node).fails("bucket", "edit", "default", "--max-ttl-s", "7")
    administrator = Operator(node, "Administrator", password)
    assert administrator.does("bucket", "edit", "default", "--max-ttl-s", "7") == "bucket default changed\n"


def test_a_role_may_be_missing(boss, guarded, tmp_path):
    password = tmp_path / "reader"
    password.write_text("secret of reader\n")
    boss.does("user", "create", "reader", "--roles", "data_reader[default]", "--new-password-file", password)
    line = Operator(guarded, "reader", password).fails("bucket", "delete", "default", "--yes")
    assert "User needs the following permissions: cluster.bucket[default]." in line


def test_a_backup(boss, tmp_path):
    boss.does("bucket", "create", "kept", "--memory", "64MiB")
    directory = boss.does("backup", "kept", "--label", "monday").strip()
    assert directory.endswith("/backups/kept/monday")
    assert run("journal", "verify", directory).returncode == 0
    assert json.loads(boss.does("backup", "kept", "--json"))["directory"].startswith(directory.removesuffix("monday"))
    assert "monday" in boss.fails("backup", "kept", "--label", "monday")
    assert "--label: " in boss.fails("backup", "kept", "--label", "../x")
    assert "persistent" in boss.fails("backup", "default")


def in_terminal(boss, *arguments):
    return Screen(dormouse_binary(), *arguments, *boss.login)


def test_a_name_is_typed_before_something_is_destroyed(boss):
    boss.does("bucket", "create", "precious", "--type", "ephemeral", "--memory", "64MiB")
    for typed in ("precius", "", "y", "PRECIOUS"):
        with in_terminal(boss, "bucket", "delete", "precious") as screen:
            screen.wait("Type its name to go on:")
            assert "deletes the bucket precious at http://" in screen.text()
            screen.type(typed)
            screen.keys("Enter")
            assert screen.exit_code() == 1 and "nothing was done" in screen.text(), screen.text()
    with in_terminal(boss, "bucket", "delete", "precious") as screen:
        screen.wait("Type its name to go on:")
        screen.keys("C-c")
        assert screen.exit_code() == 130
    assert "precious" in boss.rows("bucket", "list")
    with in_terminal(boss, "bucket", "delete", "precious") as screen:
        screen.wait("Type its name to go on:")
        screen.type("precious")
        screen.keys("Enter")
        assert screen.exit_code() == 0 and "bucket precious deleted" in screen.text()
    assert "precious" not in boss.rows("bucket", "list")


def test_a_password_is_asked_for_without_echo(guarded, boss):
    for keys, code in (("open sesame", 0), ("open sesamE", 1)):
        with Screen(dormouse_binary(), "bucket", "list", "--node", address(guarded), "--user", BOSS) as screen:
            screen.wait("Password of boss:")
            screen.type(keys + "x")
            screen.keys("BSpace", "Enter")
            assert screen.exit_code() == code
            text = screen.text()
            assert "sesam" not in text and ("default" in text if code == 0 else "was refused" in text), text
    with Screen(dormouse_binary(), "bucket", "list", "--node", address(guarded), "--user", BOSS) as screen:
        screen.wait("Password of boss:")
        screen.keys("C-c")
        assert screen.exit_code() == 1 and "no password was given" in screen.text()


@pytest.mark.parametrize("command", ("bucket", "scope", "collection", "user", "group"))
def test_help_is_complete(command):
    overview = run(command, "--help")
    assert overview.returncode == 0 and "Exit codes:" in overview.stdout
    subcommands = re.findall(r"^  ([a-z]+) ", overview.stdout.split("Commands:\n")[1].split("\n\n")[0], re.M)
    assert len(subcommands) >= 4, overview.stdout
    for subcommand in filter(lambda name: name != "help", subcommands):
        page = run(command, subcommand, "--help")
        assert page.returncode == 0 and "Example" in page.stdout and "--node" in page.stdout, page.stdout


def test_documents_are_not_touched_by_looking(boss, node):
    """A list asks no bucket for its documents: hits and misses stay as they are."""
    client = Client(node.memcached)
    before = client.stats()[b"cmd_get"]
    Operator(node).does("bucket", "list")
    assert client.stats()[b"cmd_get"] == before


@pytest.mark.parametrize("arguments", (("config", "reference"), ("completions", "bash"), ("bucket", "list"), ("status",)))
def test_what_cannot_be_written_is_an_error_and_a_closed_pipe_is_none(node, arguments):
    if arguments[0] in ("bucket", "status"):
        arguments += ("--node", address(node))
    command = [str(dormouse_binary()), *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "dormouse: standard output: No space left on device (os error 28)\n")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
