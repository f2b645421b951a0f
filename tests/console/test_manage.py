"""The views of buckets and keys in a browser: making, changing and dropping, with hostile names, by mouse and by keyboard."""

import json
import urllib.parse

import pytest

from tests import servers, subdocument
from tests.frames import FEATURE_SELECT_BUCKET, FEATURE_XATTR, FEATURE_XERROR, BinaryConnection
from tests.persistence.bucket import vbucket_of
from tests.wire.test_roles import Client

LOGIN = {"username": "Administrator", "password": "password"}
DOCS = "/pools/default/buckets/default/scopes/_default/collections/_default/docs"
# Keys, and how they are shown.
HOSTILE = {
    b"<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>",
    b"\x00\n\x7f": "\\x00\\x0a\\x7f",
    b"\xff\xfe": "\\xff\\xfe",
    "\u202egnp.exe".encode(): "\\u{202e}gnp.exe",
    b"back\\slash": "back\\\\slash",
    b" edge ": "\\x20edge\\x20",
    b"..": "..",
    ("\U0001f980" * 62).encode(): "\U0001f980" * 62,
    b"a/b?c#d%e+f&g": "a/b?c#d%e+f&g",
}


@pytest.fixture
def node():
    with servers.Dormouse(buckets=("default,ephemeral,64MiB",), memory="512MiB", ports={"memcached": "none"}) as server:
        yield server
        assert server.alive(), server.log()


@pytest.fixture
def root(node):
    with Client(node, "Administrator", "password") as client:
        yield client


@pytest.fixture
def view(node, open_page):
    """Opens a view, logged in; returns the page of the driver with the messages of its console as `said`."""

    def opened(fragment, **options):
        page = open_page(node, http_credentials=LOGIN, **options)
        page.page.goto(f"http://{node.http[0]}:{node.http[1]}/#{fragment}")
        page.page.wait_for_selector("main h2")
        return page

    return opened


def put(root, key, value="v"):
    assert root.ask("PUT", f"{DOCS}?key={urllib.parse.quote(key, safe='')}", json.dumps({"value": value}), "application/json")[0] == 200


def get(root, key):
    status, text = root.ask("GET", f"{DOCS}?key={urllib.parse.quote(key, safe='')}")
    return json.loads(text)["value"] if status == 200 else status


def until(page, expression):
    """Waits until an expression holds. (The driver's own way is forbidden by the page's policy.)"""
    for _ in range(400):
        if page.page.evaluate(expression):
            return
        page.page.wait_for_timeout(25)
    raise AssertionError(expression)


def form(page, name):
    return page.page.get_by_role("form", name=name, exact=True)


def confirm(page, action, name=""):
    """Types the name into the dialog that asks, and confirms."""
    dialog = page.page.get_by_role("dialog")
    if name:
        assert dialog.get_by_role("button", name=action).is_disabled()
        dialog.get_by_role("textbox").fill(name)
    dialog.get_by_role("button", name=action).click()
    dialog.wait_for(state="detached")


@pytest.mark.parametrize("fragment", ("/buckets", "/buckets/default", "/keys/default/_default/_default"))
def test_the_views_are_readable_at_every_width_and_say_nothing_in_the_console(root, view, fragment):
    for key in HOSTILE:
        put(root, key, '{"a": [1, {"b": "<script>"}], "long": 12345678901234567890}')
    page = view(fragment)
    if fragment.startswith("/keys"):
        form(page, "List keys").get_by_role("button").click()
        page.page.locator("button.key-name").first.click()
        page.page.wait_for_selector("h3.key-title")
        form(page, "Memory by prefixes").get_by_role("button").click()
        page.page.get_by_text("documents in").wait_for()
    page.check_readable()


def test_a_bucket_that_was_dropped_meanwhile_is_named_so(root, view):
    assert root.ask("POST", "/pools/default/buckets", {"name": "passing", "bucketType": "ephemeral", "ramQuota": "16"})[0] == 202
    page = view("/keys/default/_default/_default")
    until(page, "document.querySelectorAll('select[name=bucket] option').length === 2")
    assert root.ask("DELETE", "/pools/default/buckets/passing")[0] == 200
    page.page.select_option("select[name=bucket]", "passing")
    page.page.wait_for_selector("main [role=alert].refused")
    page.page.select_option("select[name=bucket]", "default")
    until(page, "document.querySelector('select[name=collection]').value === '_default._default' && !document.querySelector('main [role=alert]')")
    assert not [error for error in page.said if "404" not in error]


def test_a_bucket_is_made_changed_emptied_and_dropped(root, view):
    page = view("/buckets")
    make = form(page, "Create a bucket")
    make.get_by_label("name").fill("bad name!")
    make.get_by_label("memory, MiB").fill("32")
    make.get_by_label("type").select_option("ephemeral")
    make.get_by_role("button").click()
    until(page, "[...document.querySelectorAll('main .refused')].some(wrong => wrong.textContent)")
    make.get_by_label("name").fill("orders")
    make.get_by_label("may be emptied").select_option("1")
    make.get_by_role("button").click()
    page.page.get_by_role("link", name="orders", exact=True).click()
    settings = form(page, "Settings")
    settings.get_by_label("memory, MiB").fill("0")
    settings.get_by_role("button").click()
    # The node's words are next to the field.
    until(page, "document.querySelector('form[aria-label=Settings] label .refused').textContent.includes('positive number')")
    settings.get_by_label("memory, MiB").fill("48")
    settings.get_by_label("longest expiry").fill("77")
    settings.get_by_role("button").click()
    settings.get_by_text("changed", exact=True).wait_for()
    bucket = root.document("/pools/default/buckets/orders")
    assert (bucket["quota"]["ram"], bucket["maxTTL"]) == (48 << 20, 77)
    assert root.ask("PUT", DOCS.replace("/default/scopes", "/orders/scopes") + "/k", "value=v")[0] == 200
    page.page.get_by_role("button", name="empty it").click()
    confirm(page, "empty it", "orders")
    page.page.get_by_text("ephemeral, 0 items").wait_for()
    page.page.get_by_role("button", name="drop it").click()
    confirm(page, "drop it", "orders")
    page.page.get_by_role("form", name="Create a bucket").wait_for()
    assert [one["name"] for one in root.document("/pools/default/buckets")] == ["default"]


def test_scopes_and_collections_are_made_changed_and_dropped(root, view):
    page = view("/buckets/default")
    scopes = lambda: {scope["name"]: {one["name"]: one["maxTTL"] for one in scope["collections"]} for scope in root.document("/pools/default/buckets/default/scopes")["scopes"]}
    add = form(page, "Add a scope")
    add.get_by_label("scope").fill("_wrong")
    add.get_by_role("button").click()
    add.get_by_text("First character must not be").wait_for()
    add.get_by_label("scope").fill("eu")
    add.get_by_role("button").click()
    page.page.get_by_role("button", name="drop the scope eu").wait_for()
    add = form(page, "Add a collection")
    add.get_by_label("in the scope").select_option("eu")
    add.get_by_label("collection").fill("new")
    add.get_by_role("button").click()
    limit = page.page.get_by_label("longest expiry of new, seconds")
    limit.fill("60")
    page.page.get_by_role("button", name="set the longest expiry of new").click()
    page.page.get_by_text("60 s").wait_for()
    assert scopes()["eu"] == {"new": 60}
    page.page.get_by_role("button", name="drop the collection new of eu").click()
    confirm(page, "drop", "new")
    page.page.get_by_role("button", name="drop the collection new of eu").wait_for(state="detached")
    page.page.get_by_role("button", name="drop the scope eu").click()
    confirm(page, "drop", "eu")
    page.page.get_by_role("button", name="drop the scope eu").wait_for(state="detached")
    assert scopes() == {"_default": {"_default": 0}, "_system": {"_mobile": 0, "_query": 0}}


@pytest.mark.parametrize("key, shown", HOSTILE.items(), ids=range(len(HOSTILE)))
def test_hostile_keys_are_shown_edited_and_deleted(root, view, key, shown):
    put(root, key, "<script>alert(1)</script>")
    page = view("/keys")
    # What is shown can be typed.
    form(page, "List keys").get_by_label("keys that begin with").fill(shown)
    form(page, "List keys").get_by_role("button").click()
    name = page.page.locator("button.key-name")
    name.wait_for()
    assert name.text_content() == shown
    name.click()
    edit = form(page, "Edit the value")
    assert page.page.text_content("h3.key-title") == shown
    assert edit.get_by_label("value").input_value() == "<script>alert(1)</script>"
    edit.get_by_label("value").fill("new <b>value</b>")
    edit.get_by_role("button").click()
    until(page, "document.querySelector('form[aria-label=\"Edit the value\"] textarea').value === 'new <b>value</b>' && document.activeElement.tagName === 'H3'")
    assert get(root, key) == "new <b>value</b>"
    page.page.get_by_role("button", name="delete", exact=True).click()
    confirm(page, "delete")
    page.page.get_by_text("is deleted").wait_for()
    assert get(root, key) == 404 and page.page.locator("button.key-name").count() == 0
    assert page.said == []


def test_long_numbers_of_attributes_are_shown_as_they_are(node, root, view):
    with BinaryConnection(node.kv) as kv:
        kv.open_bucket("default", (FEATURE_XERROR, FEATURE_SELECT_BUCKET, FEATURE_XATTR))
        vbucket = vbucket_of(b"measured")
        assert kv.store(b"measured", b"{}", vbucket=vbucket).status == 0
        kv.send(subdocument.single(subdocument.DICT_UPSERT, b"measured", b"at", b"[1795780878397123456]", subdocument.XATTR, vbucket=vbucket))
        assert kv.response().status == 0
    page = view("/keys")
    form(page, "List keys").get_by_label("keys that begin with").fill("measured")
    form(page, "List keys").get_by_role("button").click()
    page.page.locator("button.key-name").click()
    page.page.get_by_text("1795780878397123456").wait_for()


def test_an_edit_keeps_line_ends(root, view):
    value = "line 1\r\nline 2\rline 3\n"
    put(root, b"lines", value)
    page = view("/keys")
    form(page, "List keys").get_by_role("button").click()
    page.page.locator("button.key-name").click()
    edit = form(page, "Edit the value")
    edit.get_by_label("value in base64").wait_for()
    edit.get_by_role("button").click()
    until(page, "document.activeElement.tagName === 'H3'")
    assert get(root, b"lines") == value


def test_an_edit_does_not_overwrite_somebody_elses(root, view):
    put(root, b"shared", "first")
    page = view("/keys")
    form(page, "List keys").get_by_role("button").click()
    page.page.locator("button.key-name").click()
    edit = form(page, "Edit the value")
    edit.get_by_label("value").fill("mine")
    put(root, b"shared", "theirs")
    edit.get_by_role("button").click()
    edit.get_by_text("somebody has changed it").wait_for()
    assert get(root, b"shared") == "theirs"
    page.page.get_by_role("button", name="load again").click()
    until(page, "document.querySelector('form[aria-label=\"Edit the value\"] textarea').value === 'theirs'")
    expiry = form(page, "Change the expiry")
    expiry.get_by_label("expires in").fill("1000")
    expiry.get_by_role("button").click()
    until(page, "!document.querySelector('.tiles').textContent.includes('never')")


def test_pages_samples_and_prefixes(root, view):
    for number in range(120):
        put(root, b"%s:%03d" % ((b"user", b"cart")[number % 2], number), "v" * (500 if number % 2 else 5))
    page = view("/keys")
    form(page, "List keys").get_by_role("button").click()
    names = lambda: page.page.locator("button.key-name").all_text_contents()
    page.page.get_by_text("50 keys").wait_for()
    seen = names()
    for _ in range(2):
        before = names()
        page.page.get_by_role("button", name="next page").click()
        until(page, f"document.querySelector('button.key-name').textContent !== {json.dumps(before[0])}")
        seen += names()
    assert len(seen) == 120 and seen == sorted(seen)
    assert page.page.get_by_role("button", name="next page").count() == 0
    page.page.get_by_role("button", name="random sample").click()
    page.page.get_by_text("50 keys").wait_for()
    form(page, "Memory by prefixes").get_by_role("button").click()
    page.page.get_by_text("120 documents in").wait_for()
    rows = page.page.locator("table", has_text="mean value").locator("tbody tr").all_text_contents()
    assert [row[:5] for row in rows] == ["cart:", "user:"]
    assert page.said == []


def test_values_that_are_json_are_formatted_and_their_numbers_stay(root, view):
    put(root, b"json", '{"number":12345678901234567890,"list":[1,2],"empty":{},"text":"a,b:{}"}')
    page = view("/keys")
    form(page, "List keys").get_by_role("button").click()
    page.page.locator("button.key-name").click()
    formatted = page.page.get_by_label("Value, formatted").text_content()
    assert formatted == '{\n  "number": 12345678901234567890,\n  "list": [\n    1,\n    2\n  ],\n  "empty": {},\n  "text": "a,b:{}"\n}'


def tab_to(page, condition):
    """Presses the tabulator until the element with the focus fulfils the condition."""
    for _ in range(200):
        page.page.keyboard.press("Tab")
        if page.page.evaluate(f"(() => {{ const at = document.activeElement; return {condition}; }})()"):
            return
    raise AssertionError(condition)


def test_a_document_is_stored_found_edited_and_deleted_with_the_keyboard_alone(root, view):
    page = view("/keys")
    keyboard = page.page.keyboard
    tab_to(page, "at.name === 'key'")
    keyboard.type("typed")
    keyboard.press("Tab")
    keyboard.type("one")
    tab_to(page, "at.textContent === 'store'")
    keyboard.press("Enter")
    until(page, "document.activeElement.classList.contains('key-title')")
    assert get(root, b"typed") == "one"
    tab_to(page, "at.name === 'value'")
    keyboard.press("Control+A")
    keyboard.type("two")
    tab_to(page, "at.textContent === 'save'")
    keyboard.press("Enter")
    until(page, "document.activeElement.classList.contains('key-title') && document.querySelector('form[aria-label=\"Edit the value\"] textarea').value === 'two'")
    assert get(root, b"typed") == "two"
    tab_to(page, "at.textContent === 'delete'")
    keyboard.press("Enter")
    page.page.get_by_role("dialog").wait_for()
    keyboard.press("Escape")
    until(page, "document.activeElement.textContent === 'delete' && !document.querySelector('dialog')")
    keyboard.press("Enter")
    page.page.get_by_role("dialog").wait_for()
    tab_to(page, "at.closest('dialog') && at.textContent === 'delete'")
    keyboard.press("Enter")
    page.page.get_by_text("is deleted").wait_for()
    assert get(root, b"typed") == 404 and page.said == []


def test_what_a_user_may_not_is_said(node, root, open_page):
    root.done("PUT", "/settings/rbac/users/local/eve", {"roles": "data_reader[default]", "password": "long-enough-password"})
    put(root, b"k", "v")
    page = open_page(node, http_credentials={"username": "eve", "password": "long-enough-password", "send": "always"})
    page.page.goto(f"http://{node.http[0]}:{node.http[1]}/#/keys")
    page.page.wait_for_selector("main h2")
    form(page, "List keys").get_by_role("button").click()
    page.page.locator("button.key-name").click()
    edit = form(page, "Edit the value")
    edit.get_by_role("button").click()
    edit.get_by_text("data.docs!write").wait_for()
    assert get(root, b"k") == "v"
