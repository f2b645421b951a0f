"""The page at `/` in a browser: its views, widths and colours, keyboard, login, a node that goes away."""

import http.client
import os
import pathlib
import socket
import time
import urllib.error
import urllib.request

import pytest
from pymemcache.client.base import Client

from tests.servers import Dormouse, free_port


def url(node, path="/"):
    host, port = node.http
    return f"http://{host}:{port}{path}"


def asked(node, path="/", **headers):
    with urllib.request.urlopen(urllib.request.Request(url(node, path), headers=headers)) as answer:
        return answer.headers, answer.read().decode()


def test_it_is_readable_at_every_width_and_says_nothing_in_the_console(node, open_page):
    open_page(node).wait_live().check_readable()


@pytest.mark.parametrize("path", ("/memory", "/figures", "/health", "/pools/default/buckets", "/whoami", "/nowhere"))
def test_answers_are_about_this_moment_and_kept_by_nobody(node, path):
    try:
        headers, _ = asked(node, path)
    except urllib.error.HTTPError as refused:
        headers = refused.headers
    assert headers.get_all("Cache-Control") == ["no-store"]


def test_the_table_adds_up(node, open_page):
    page = open_page(node).wait_live()
    rows = [(name, int(size.replace(",", ""))) for name, size, _ in page.rows("memory-table")]
    outermost = {"program", "buckets", "databases", "shared"}
    assert rows[-1][0] == "resident"
    assert sum(size for name, size in rows if name in outermost) == rows[-1][1]


def test_it_follows_what_happens_without_a_reload(node, open_page):
    page = open_page(node).wait_live()
    client = Client(node.memcached, default_noreply=False)
    client.set_many({f"seen-{number}": "x" for number in range(500)})
    deadline = time.monotonic() + 20
    seen = set()
    while time.monotonic() < deadline and ("500", "100.0 %") not in seen:
        for number in range(500):
            client.get(f"seen-{number}")
        _, items, _, hits, *_ = page.rows("figures-buckets")[0]
        seen.add((items, hits))
    assert ("500", "100.0 %") in seen, seen
    assert page.said == []


def test_rates_never_fall_below_zero(node, open_page):
    page = open_page(node).wait_live()
    client = Client(node.memcached, default_noreply=False)
    for number in range(2000):
        client.get(f"reset-{number}")
    with socket.create_connection(node.memcached) as raw:
        raw.sendall(b"stats reset\r\n")
        assert raw.recv(100) == b"RESET\r\n"
    seen = set()
    for _ in range(30):
        seen.update(cell for row in page.rows("figures-buckets") for cell in row[1:])
        page.page.wait_for_timeout(100)
    assert not any(cell.startswith("-") and cell != "-" for cell in seen), seen


def test_a_persistent_bucket_shows_what_waits_to_be_written(open_page, tmp_path):
    with Dormouse(home=tmp_path, buckets=("orders,persistent,64MiB",), ports={"memcached": "none"}) as node:
        page = open_page(node).wait_live()
        [[name, *_, unflushed]] = page.rows("figures-buckets")
        assert (name, unflushed) == ("orders", "0")


def test_a_keyboard_reaches_everything_that_scrolls_or_leads_on(node, open_page):
    page = open_page(node, viewport={"width": 390, "height": 800}).wait_live().page
    reached = []
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"))
    for wanted in ("Resident memory as a table", "Buckets as a table", "Threads as a table", "/memory", "/metrics", "/health/ready", "/allocator"):
        assert wanted in reached, reached


def test_it_tells_when_the_node_is_gone_and_comes_back(browser, open_page, tmp_path):
    ports = {"http": free_port()}
    with Dormouse(home=tmp_path, ports=ports) as node:
        page = open_page(node).wait_live()
    page.page.wait_for_selector("#state.lost")
    assert "try" in page.text("#state") or "again" in page.text("#state")
    with Dormouse(home=tmp_path, ports=ports):
        page.wait_live()
        page.context.close()


def test_an_address_may_name_a_user_and_a_password(node, open_page):
    assert open_page(node, login="Administrator:password@").wait_live().said == []


def test_a_login_is_asked_for_where_there_is_a_password(open_page, tmp_path):
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    password.chmod(0o600)
    with Dormouse("--user", "boss", "--password-file", str(password)) as node:
        # Without a password the browser's own dialog is open, and nothing is shown behind it.
        refused = open_page(node, http_credentials={"username": "boss", "password": "guessed"})
        refused.page.wait_for_selector("#state.lost")
        assert refused.text("#state").startswith("a login is needed")
        assert refused.rows("memory-table") == []
        page = open_page(node, http_credentials={"username": "boss", "password": "open sesame"}).wait_live()
        assert page.rows("memory-table")[-1][0] == "resident"
        for path in ("/memory", "/events"):
            with pytest.raises(urllib.error.HTTPError) as error:
                asked(node, path)
            assert error.value.code == 401


def test_only_browsers_get_the_page_and_nothing_foreign_runs_in_it(node):
    assert asked(node)[1].startswith("Dormouse ")
    assert asked(node, Accept="*/*")[1].startswith("Dormouse ")
    headers, text = asked(node, Accept="text/html,application/xhtml+xml,*/*;q=0.8")
    assert text.startswith("<!DOCTYPE html>") and "http" not in text.lower().replace("<!doctype html>", "")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    for path in ("/page/main.js", "/page/style.css"):
        assert asked(node, path)[0]["X-Content-Type-Options"] == "nosniff"
    for path in ("/page/", "/page/..%2flib.rs", "/page/none.js"):
        with pytest.raises(urllib.error.HTTPError) as error:
            asked(node, path)
        assert error.value.code == 404


@pytest.mark.parametrize("path", ("/events", "/pools/default/bs/default"))
def test_asking_for_the_head_of_a_stream_begins_none(node, path):
    # More than there may be streams, each over a connection that stays open.
    connections = [http.client.HTTPConnection(*node.http, timeout=20) for _ in range(150)]
    for connection in connections:
        connection.request("HEAD", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
    for connection in connections:
        connection.close()


def cpu_seconds(node):
    """Of threads that have ended too."""
    fields = pathlib.Path(f"/proc/{node.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_page_costs_little_and_nothing_once_it_is_closed(open_page):
    with Dormouse() as node:
        page = open_page(node).wait_live()
        before, begun = cpu_seconds(node), time.monotonic()
        time.sleep(6)
        share = (cpu_seconds(node) - before) / (time.monotonic() - begun)
        assert share < 0.01, share
        page.context.close()
        deadline = time.monotonic() + 30
        while True:
            before = node.switches()
            time.sleep(3)
            if node.switches() == before:
                break
            assert time.monotonic() < deadline, "the node still wakes up"
