"""The views Work, Databases, Allocator and Log in a browser: what they show and do, widths and colours, keyboard, hostile texts, and silence once closed."""

import json
import subprocess
import time
import urllib.parse

import pytest
from pymemcache.client.base import Client

from tests.console.test_databases import HOSTILE, LOGIN, SCHEMA, ask, document, transact, vsctl
from tests.servers import Dormouse

VIEWS = ("work", "databases", "databases/Open_vSwitch", "databases/Open_vSwitch/tables/Bridge", "allocator", "log")
CONFIG = """
[[bucket]]
name = "cache"
kind = "ephemeral"
memory = "64MiB"

[[bucket]]
name = "orders"
kind = "persistent"
memory = "64MiB"

[[memcached]]
address = "127.0.0.1:0"
bucket = "orders"

[[ovsdb]]
file = "{home}/conf.db"
remotes = "punix:{home}/conf.sock"
"""
CREDENTIALS = dict(zip(("username", "password"), LOGIN))


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("views")
    subprocess.run(["ovsdb-tool", "create", home / "conf.db", SCHEMA], check=True)
    with Dormouse(config=CONFIG.format(home=home), home=home, buckets=(), ports={"memcached": None}) as node:
        node.database, node.home = home / "conf.sock", home
        vsctl(node, "init")
        for bridge in range(3):
            vsctl(node, "add-br", f"br{bridge:02}")
        transact(node, {"op": "update", "table": "Bridge", "where": [["name", "==", "br00"]], "row": {"external_ids": ["map", [["note", HOSTILE]]], "other_config": ["map", [["long", "x" * 3000]]]}})
        yield node
        assert node.alive(), node.log()


@pytest.fixture
def view(node, open_page):
    """Opens a view by its name in the fragment."""

    def one(name, **options):
        opened = open_page(node, http_credentials=CREDENTIALS, **options)
        opened.page.wait_for_selector("#state.live")
        opened.page.goto(f"http://{node.http[0]}:{node.http[1]}/#/{name}")
        opened.page.wait_for_selector("main h2")
        return opened

    return one


def table(opened, caption):
    """The body of the table with this caption, as lists of texts."""
    rows = "[...document.querySelectorAll('table')].find(table => table.caption?.textContent === caption)?.tBodies[0].rows ?? []"
    return opened.page.evaluate(f"caption => [...({rows})].map(row => [...row.cells].map(cell => cell.textContent))", caption)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


# What marks a view as complete.
COMPLETE = {
    "work": "tbody tr", "databases": "tbody tr", "databases/Open_vSwitch": "tbody tr", "databases/Open_vSwitch/tables/Bridge": "tbody tr",
    "allocator": "form[aria-label^='Back up']", "log": ".log li",
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_readable_at_every_width_and_says_nothing_in_the_console(view, name):
    opened = view(name)
    opened.page.wait_for_selector(COMPLETE[name])
    opened.check_readable()


def test_work_shows_each_bucket_where_it_belongs(node, view):
    opened = view("work")
    client = Client(node.memcached_of("orders"), default_noreply=False)
    client.set_many({f"key-{number}": "x" * 1000 for number in range(200)})
    writes = until(lambda: table(opened, "Durable writes"))
    assert [row[0] for row in writes] == ["cache", "orders"] and writes[0][1] == "0"
    assert [row[0] for row in table(opened, "Flusher and journal")] == ["orders"]
    assert until(lambda: [row for row in table(opened, "Flusher and journal") if row[5] != "0 B"])
    [[_, segments, share, *_]] = table(opened, "Warm-up")
    assert share == "100.0 %" and " of " in segments
    assert [row[1] for row in table(opened, "Defragmenter")] == ["rests", "rests"]
    assert opened.said == []


def test_databases_lead_to_tables_and_rows_and_hostile_values_are_text(node, view):
    opened = view("databases")
    page = opened.page
    page.click("text=Open_vSwitch")
    page.wait_for_selector("h2:text('Open_vSwitch')")
    until(lambda: ["Bridge", "3"] in [row[:2] for row in table(opened, "Tables of Open_vSwitch")])
    page.click("button:text('show the schema')")
    page.wait_for_selector("pre:visible")
    assert json.loads(page.inner_text("pre"))["name"] == "Open_vSwitch"
    page.click("a:text-is('Bridge')")
    rows = until(lambda: table(opened, "Rows of Bridge"))
    assert len(rows) == 3 and any("<img src=x onerror=alert(1)>" in cell for row in rows for cell in row)
    assert page.query_selector("main img") is None
    assert "3 rows, all there are" in page.inner_text("main")
    # The address can be kept.
    page.reload()
    assert len(until(lambda: table(opened, "Rows of Bridge"))) == 3
    assert opened.said == []


def test_many_rows_come_by_clicks(node, view):
    transact(node, *[{"op": "insert", "table": "Queue", "row": {"dscp": number % 64}} for number in range(150)])
    opened = view("databases/Open_vSwitch/tables/Queue")
    assert len(until(lambda: table(opened, "Rows of Queue"))) == 100
    opened.page.click("button:text('more rows')")
    until(lambda: len(table(opened, "Rows of Queue")) == 150)
    assert not opened.page.is_visible("button:text('more rows')")
    transact(node, {"op": "delete", "table": "Queue", "where": []})


def test_integers_beyond_those_of_a_browser_are_exact(node, view):
    number = (1 << 53) + 1
    transact(node, {"op": "update", "table": "Open_vSwitch", "where": [], "row": {"next_cfg": number}})
    opened = view("databases/Open_vSwitch/tables/Open_vSwitch")
    [row] = until(lambda: table(opened, "Rows of Open_vSwitch"))
    assert str(number) in row


def test_a_click_compacts_the_log_of_a_database(node, view):
    for number in range(50):
        transact(node, {"op": "update", "table": "Bridge", "where": [["name", "==", "br01"]], "row": {"external_ids": ["map", [["n", f"{number}" * 300]]]}})
    before = (node.home / "conf.db").stat().st_size
    opened = view("databases/Open_vSwitch")
    opened.page.click("button:text('compact the log')")
    opened.page.wait_for_selector(".done:has-text('compacted in')")
    assert (node.home / "conf.db").stat().st_size < before
    assert opened.said == []


def test_the_allocator_is_changed_from_the_page_and_the_node_says_what_is_wrong(node, view):
    opened = view("allocator")
    page = opened.page
    page.wait_for_selector("form[aria-label='Settings that change at once']")
    page.fill("label:has-text('dirty_decay_ms') input", "1234")
    page.select_option("label:has-text('thp') select", "never")
    page.click("button:text('apply')")
    page.wait_for_selector(".done:has-text('dirty_decay_ms = 1234')")
    settings = document(node, "/allocator")["settings"]
    assert (settings["dirty_decay_ms"], settings["thp"]) == (1234, "never")
    assert ["dirty_decay_ms", "1234", "at once"] in table(opened, "Settings")
    page.fill("label:has-text('dirty_decay_ms') input", "soon")
    page.click("button:text('apply')")
    page.wait_for_selector(".refused:has-text('\"soon\"')")
    assert document(node, "/allocator")["settings"]["dirty_decay_ms"] == 1234
    # The browser itself reports the refusal.
    assert all("400" in line for line in opened.said)


def test_the_page_says_why_this_build_writes_no_heap_profile(node, view):
    opened = view("allocator")
    why = document(node, "/allocator")["missing"].get("profile") or "allocator.profile is not set"
    opened.page.wait_for_selector(f"p:has-text({json.dumps('Not possible: ' + why)})")
    assert opened.page.is_disabled("button:text('write a heap profile')")


def test_a_click_copies_a_persistent_bucket_and_names_the_copy(node, view):
    opened = view("allocator")
    opened.page.fill("form[aria-label='Back up orders'] input", "tonight")
    opened.page.click("form[aria-label='Back up orders'] button")
    opened.page.wait_for_selector(".done:has-text('copied to')")
    place = opened.page.inner_text(".done:has-text('copied to')").removeprefix("copied to ")
    assert place.endswith("orders/tonight") and (node.home / "node").exists()
    assert subprocess.run(["test", "-d", place]).returncode == 0
    # A second one under this label is refused, in the node's words.
    opened.page.click("form[aria-label='Back up orders'] button")
    opened.page.wait_for_selector("form[aria-label='Back up orders'] .refused:has-text('tonight')")
    assert opened.page.query_selector("form[aria-label='Back up cache']") is None


def lines_of(opened):
    return opened.page.eval_on_selector_all(".log li", "items => items.map(item => item.textContent)")


def test_the_log_follows_the_node_and_is_filtered_by_level_and_text(node, view):
    opened = view("log")
    opened.page.wait_for_selector(".log li")
    for _ in range(12):
        ask(node, "/whoami", login=(f"{HOSTILE}", "wrong"))
    until(lambda: "logins failed" in "".join(lines_of(opened)))
    assert ask(node, "/allocator", "POST", form="muzzy_decay_ms=77")[0] == 200
    until(lambda: "muzzy_decay_ms" in lines_of(opened)[0])
    assert opened.page.query_selector("main img") is None
    opened.page.select_option("form select", "warn")
    levels = opened.page.eval_on_selector_all(".log strong", "all => all.map(one => one.textContent)")
    assert levels and set(levels) <= {"warn", "error"}
    opened.page.select_option("form select", "trace")
    opened.page.fill("form input", "MUZZY_decay")
    found = lines_of(opened)
    assert found and all("muzzy_decay" in line for line in found)
    # What comes is filtered too.
    ask(node, "/allocator", "POST", form="dirty_decay_ms=78")
    ask(node, "/allocator", "POST", form="muzzy_decay_ms=79")
    until(lambda: "79" in lines_of(opened)[0])
    assert all("muzzy_decay" in line for line in lines_of(opened))
    assert opened.said == []


def test_without_the_right_a_view_says_so_and_asks_no_more(open_page, tmp_path):
    password = tmp_path / "password"
    password.write_text("correct-horse\n")
    password.chmod(0o600)
    with Dormouse("--user", "boss", "--password-file", str(password), ports={"memcached": "none"}) as node:
        form = urllib.parse.urlencode({"roles": "cluster_admin", "password": "correct-horse"})
        assert ask(node, "/settings/rbac/users/local/keeper", "PUT", login=("boss", "correct-horse"), form=form)[0] == 200
        opened = open_page(node, http_credentials={"username": "keeper", "password": "correct-horse"})
        opened.page.wait_for_selector("#state.live")
        asked = []
        opened.page.on("response", lambda answer: asked.append((urllib.parse.urlparse(answer.url).path, answer.status)))
        opened.page.goto(f"http://{node.http[0]}:{node.http[1]}/#/log")
        opened.page.wait_for_selector(".refused")
        assert "Forbidden" in opened.text(".refused")
        opened.page.wait_for_timeout(5000)
        assert asked.count(("/log", 403)) == 1
        with opened.page.expect_response("**/log?*") as again:
            opened.page.click(".refused button")
        assert again.value.status == 403


@pytest.mark.parametrize("name", ["databases", "databases/Open_vSwitch", "log"])
def test_a_closed_view_asks_nothing(view, name):
    opened = view(name)
    opened.page.wait_for_selector(COMPLETE[name])
    opened.page.click("nav a:text('Overview')")
    opened.page.wait_for_selector("#memory-table tbody tr")
    asked = []
    # The overview itself asks for the items by size.
    opened.page.on("request", lambda request: None if request.url.endswith("/sizeClasses") else asked.append(request.url))
    opened.page.wait_for_timeout(7000)
    assert asked == []


@pytest.mark.parametrize("name, wanted", [
    ("work", ["Durable writes as a table", "Flusher and journal as a table", "Compressor as a table"]),
    ("databases", ["Open_vSwitch", "OVSDB databases as a table"]),
    ("databases/Open_vSwitch", ["all databases", "compact the log", "show the schema", "Bridge"]),
    ("databases/Open_vSwitch/tables/Bridge", ["Open_vSwitch", "Rows of Bridge as a table"]),
    ("allocator", ["Settings as a table", "apply", "back up"]),
    ("log", ["as severe as", "with the text"]),
])
def test_a_keyboard_reaches_what_a_view_has(view, name, wanted):
    opened = view(name)
    opened.page.wait_for_selector(COMPLETE[name])
    reached = []
    for _ in range(40):
        opened.page.keyboard.press("Tab")
        reached.append(opened.page.evaluate("(e => e.getAttribute('aria-label') ?? e.labels?.[0]?.firstChild.textContent ?? e.textContent)(document.activeElement)"))
    assert [one for one in wanted if one not in reached] == [], reached


def test_a_node_sleeps_again_once_its_views_are_closed(open_page, tmp_path):
    with Dormouse(home=tmp_path, ports={"memcached": "none"}) as node:
        opened = open_page(node)
        opened.page.wait_for_selector("#state.live")
        for name in ("work", "databases", "allocator", "log"):
            opened.page.goto(f"http://{node.http[0]}:{node.http[1]}/#/{name}")
            opened.page.wait_for_selector("main h2")
            opened.page.wait_for_timeout(300)
        opened.context.close()

        def sleeps():
            before = node.switches()
            time.sleep(3)
            return node.switches() == before

        until(sleeps, 60)


def test_without_databases_and_persistent_buckets_the_views_say_so(open_page):
    with Dormouse(ports={"memcached": "none"}) as node:
        opened = open_page(node)
        opened.page.wait_for_selector("#state.live")
        opened.page.goto(f"http://{node.http[0]}:{node.http[1]}/#/databases")
        opened.page.wait_for_selector("p:has-text('no OVSDB database')")
        opened.page.goto(f"http://{node.http[0]}:{node.http[1]}/#/work")
        opened.page.wait_for_selector("p:visible:has-text('no persistent bucket')")
