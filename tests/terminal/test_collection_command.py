"""`dormouse scope` and `dormouse collection`."""

import json

from tests.servers import dormouse_binary
from tests.terminal.screen import Screen


def test_scopes_and_collections(boss):
    assert boss.does("scope", "create", "default", "eu").startswith("scope eu of the bucket default created; the manifest's uid is ")
    boss.does("collection", "create", "default", "eu", "invoices", "--max-ttl-s", "60")
    boss.does("collection", "create", "default", "_default", "carts", "--max-ttl", "-1", "--history", "true")
    assert boss.rows("scope", "list", "default")["eu"][1:] == ["1"]
    lines = [line.split() for line in boss.does("collection", "list", "default").splitlines()]
    rows = {tuple(cells[:2]): cells[3:] for cells in lines[1:]}
    assert rows[("eu", "invoices")] == ["60", "false"] and rows[("_default", "carts")] == ["none", "true"]
    assert rows[("_default", "_default")][:2] == ["the", "bucket's"]
    manifest = json.loads(boss.does("collection", "list", "default", "--json"))
    assert {scope["name"] for scope in manifest["scopes"]} >= {"_default", "eu"}

    boss.does("collection", "edit", "default", "eu", "invoices", "--max-ttl-s", "61")
    assert "61" in boss.does("collection", "list", "default")
    boss.does("collection", "delete", "default", "eu", "invoices", "--yes")
    boss.does("scope", "drop", "default", "eu", "--yes")
    assert "eu" not in boss.rows("scope", "list", "default")


def test_what_is_refused(boss):
    for arguments, words in (
        (("scope", "create", "default", "_default"), "name: First character must not be _ or %"),
        (("scope", "create", "default", "bad name"), "name: "),
        (("scope", "create", "nothing", "eu"), "Requested resource not found."),
        (("scope", "delete", "default", "../../default", "--yes"), "../../default"),
        (("collection", "create", "default", "nowhere", "c"), "nowhere"),
        (("collection", "create", "default", "_default", "ttl", "--max-ttl-s", "many"), "--max-ttl-s: "),
        (("collection", "create", "default", "_default", "h", "--history", "old"), "--history: "),
        (("collection", "delete", "default", "_default", "🐭\x1b[2J", "--yes"), "🐭\ufffd[2J"),
    ):
        line = boss.fails(*arguments)
        assert words in line and "\x1b" not in line, line
    assert "nothing to change" in boss.fails("collection", "edit", "default", "_default", "_default", code=2)
    for arguments in (("scope", "delete", "default", "eu"), ("collection", "delete", "default", "eu", "c")):
        assert "--yes is needed" in boss.fails(*arguments, code=2)


def test_the_collections_name_is_typed(boss):
    boss.does("collection", "create", "default", "_default", "gone")
    with Screen(dormouse_binary(), "collection", "delete", "default", "_default", "gone", *boss.login) as screen:
        screen.wait("deletes the collection _default.gone of the bucket default at http://")
        screen.type("gone")
        screen.keys("Enter")
        assert screen.exit_code() == 0
    assert "gone" not in boss.does("collection", "list", "default")
