"""`dormouse user` and `dormouse group`."""

import json

from tests.servers import dormouse_binary
from tests.terminal.command import Operator, address
from tests.terminal.screen import Screen


def test_a_user_from_its_creation_to_its_end(boss, guarded, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("first secret\n")
    second.write_text("second secret\n")
    boss.does("group", "create", "readers", "--roles", "data_reader[default]", "--description", "may read")
    created = boss.does("user", "create", "bob", "--full-name", "Bob B.", "--roles", "ro_admin", "--groups", "readers", "--new-password-file", first)
    assert created == "user bob created\n"
    assert "ro_admin,data_reader[default]" in boss.does("user", "list")
    page = boss.does("user", "show", "bob")
    assert "Bob B." in page and "ro_admin: its own" in page and "data_reader[default]: group readers" in page
    assert json.loads(boss.does("user", "show", "bob", "--json"))["groups"] == ["readers"]
    assert "bob" in {user["id"] for user in json.loads(boss.does("user", "list", "--json"))}

    boss.does("user", "edit", "bob", "--groups", "")
    page = boss.does("user", "show", "bob")
    assert "data_reader" not in page and "ro_admin: its own" in page and "Bob B." in page
    # The name is taken: nothing is replaced.
    assert "there is a user \"bob\" already" in boss.fails("user", "create", "bob", "--new-password-file", second)
    assert "ro_admin" in boss.does("user", "show", "bob")

    bob = Operator(guarded, "bob", first)
    assert bob.does("user", "password", "--new-password-file", second) == "password of bob changed\n"
    assert "was refused" in bob.fails("user", "list")
    assert "bob" in Operator(guarded, "bob", second).does("user", "list")
    boss.does("user", "password", "bob", "--new-password-file", first)
    assert "bob" in bob.does("user", "list")

    assert "--yes is needed" in boss.fails("user", "delete", "bob", code=2)
    boss.does("user", "delete", "bob", "--yes")
    assert "Unknown user." in boss.fails("user", "show", "bob")
    boss.does("group", "drop", "readers", "--yes")


def test_groups(boss):
    boss.does("group", "create", "writers", "--roles", "data_writer[default:_default],data_reader[*]", "--description", "may write")
    boss.does("group", "edit", "writers", "--description", "write and read")
    page = boss.does("group", "show", "writers")
    assert "write and read" in page and "data_writer[default:_default]" in page and "data_reader[*]" in page
    boss.does("group", "edit", "writers", "--roles", "")
    document = json.loads(boss.does("group", "show", "writers", "--json"))
    assert (document["roles"], document["description"]) == ([], "write and read")
    assert "writers" in boss.rows("group", "list")
    assert "there is a group \"writers\" already" in boss.fails("group", "create", "writers")
    boss.does("group", "delete", "writers", "--yes")
    assert "Unknown group." in boss.fails("group", "edit", "writers", "--description", "x")


def test_roles_are_listed_as_they_can_be_given(boss):
    roles = boss.does("user", "roles")
    assert "data_reader[BUCKET:SCOPE:COLLECTION]" in roles and "bucket_admin[BUCKET]" in roles
    assert any(line.startswith("admin ") for line in roles.splitlines())


def test_what_is_refused(boss, tmp_path):
    short, good = tmp_path / "short", tmp_path / "good"
    short.write_text("abc\n")
    good.write_text("good secret\n")
    for arguments, words in (
        (("create", "x", "--new-password-file", short), "the new password: The password must be at least 6"),
        (("create", "x", "--roles", "king", "--new-password-file", good), "--roles: "),
        (("create", "x", "--groups", "none", "--new-password-file", good), "--groups: "),
        (("create", "a b\x1b[2J", "--new-password-file", good), "The name must have"),
        (("edit", "nobody", "--roles", ""), "Unknown user."),
        (("delete", "nobody", "--yes"), "User was not found."),
        (("password", "boss", "--new-password-file", good), "defined in the configuration"),
        (("create", "x", "--new-password-file", tmp_path / "missing"), "missing"),
    ):
        line = boss.fails("user", *arguments)
        assert words in line and "\x1b" not in line, line
    assert "--new-password-file FILE is needed" in boss.fails("user", "create", "x", code=2)
    assert "nothing to change" in boss.fails("user", "edit", "x", code=2)
    assert "\nx " not in boss.does("user", "list")


def test_whose_password_is_told(guarded):
    assert "whose password?" in Operator(guarded).fails("user", "password", code=2)


def test_hostile_names_are_shown_without_controls(boss, tmp_path):
    password = tmp_path / "password"
    password.write_text("a secret\n")
    name = "🐭&'%2e"
    boss.does("user", "create", name, "--full-name", "\u202e\x1b[31m<script>", "--new-password-file", password)
    listed = boss.does("user", "list")
    assert name in listed and "\ufffd\ufffd[31m<script>" in listed and "\x1b" not in listed and "\u202e" not in listed
    boss.does("user", "delete", name, "--yes")
    for hostile in ("🐭\u202e", ".", ".."):
        line = boss.fails("user", "create", hostile, "--new-password-file", password)
        assert "The name must have" in line and "\u202e" not in line


def test_a_new_password_is_asked_for_twice(boss, guarded, password_file):
    for second, code in (("new secret", 0), ("new sacret", 1)):
        with Screen(dormouse_binary(), "user", "create", f"ann{code}", *boss.login) as screen:
            screen.wait(f"New password of ann{code}:")
            screen.type("new secret")
            screen.keys("Enter")
            screen.wait("Once more:")
            screen.type(second)
            screen.keys("Enter")
            assert screen.exit_code() == code
            assert "secret" not in screen.text() and ("created" in screen.text()) == (code == 0)
    with Screen(dormouse_binary(), "user", "show", "boss", "--node", address(guarded), "--user", "ann0") as screen:
        screen.wait("Password of ann0:")
        screen.type("new secret")
        screen.keys("Enter")
        assert screen.exit_code() == 1 and "permissions" in screen.text()
