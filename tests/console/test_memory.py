"""`/memory`: the parts add up to the kernel's RSS, under load too, and each is what it says."""

import json
import random
import socket
import subprocess
import threading
import time
import urllib.request

import pytest
from pymemcache.client.base import Client

from tests.resident import check_adds_up, deviation, memory_of, resident_bytes
from tests.servers import Dormouse

SCHEMA = {"name": "Test", "version": "1.0.0", "tables": {"T": {"columns": {"text": {"type": "string"}}, "isRoot": True}}}
CONFIG = """
[[bucket]]
name = "default"
kind = "ephemeral"
memory = "192MiB"

[[bucket]]
name = "orders"
kind = "persistent"
memory = "192MiB"

[[memcached]]
address = "127.0.0.1:0"
bucket = "default"

[[memcached]]
address = "127.0.0.1:0"
bucket = "orders"

[[ovsdb]]
file = "{home}/test.db"
remotes = "punix:{home}/test.sock"
"""


def part(memory, *names):
    inner = memory
    for name in names:
        inner = next(one for one in inner["parts"] if one["name"] == name)
    return inner


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    home = tmp_path_factory.mktemp("memory")
    (home / "test.schema").write_text(json.dumps(SCHEMA))
    subprocess.run(["ovsdb-tool", "create", home / "test.db", home / "test.schema"], check=True)
    with Dormouse(config=CONFIG.format(home=home), home=home, buckets=(), ports={"memcached": None}) as node:
        node.database = home / "test.sock"
        yield node


def test_the_parts_add_up_to_the_resident_size_at_ten_moments_of_a_load(node):
    stop, failures = threading.Event(), []

    def write(bucket, seed):
        chance = random.Random(seed)
        client = Client(node.memcached_of(bucket), default_noreply=True)
        try:
            while not stop.is_set():
                for _ in range(200):
                    client.set(f"key-{chance.randrange(60_000)}", bytes(chance.choice((10, 200, 1_000, 8_000, 300_000 if chance.random() < 0.02 else 50))))
                client.get("key-1")
        except Exception as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(bucket, seed)) for seed, bucket in enumerate(("default", "orders"))]
    for writer in writers:
        writer.start()
    try:
        for _ in range(10):
            stop.wait(0.7)
            assert deviation(node) <= 0.01
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not failures
    # What is only known by difference is a small part.
    memory = memory_of(node)
    whole = memory["residentBytes"]
    assert whole > 100e6
    unknown = [part(memory, "shared", "other"), *(part(memory, "buckets", name, "other") for name in ("default", "orders"))]
    assert sum(one["bytes"] for one in unknown) < whole / 10, unknown


def test_idle_clients_do_not_make_more_than_there_is(node):
    idle = [socket.create_connection(node.http) for _ in range(400)]
    try:
        memory = memory_of(node)
        check_adds_up(memory)
        assert memory["residentBytes"] <= resident_bytes(node) * 1.01
    finally:
        for one in idle:
            one.close()


def test_parts_are_what_they_say(node):
    client = Client(node.memcached_of("default"), default_noreply=False)
    client.flush_all()
    deadline = time.monotonic() + 30
    while part(memory_of(node), "buckets", "default")["about"]["items"]:
        assert time.monotonic() < deadline, "what was flushed is still there"
        time.sleep(0.1)
    for number in range(1_000):
        client.set(f"exact-{number:06}", bytes(10_000))
    default = part(memory_of(node), "buckets", "default")
    # A key is stored behind its collection's id, one byte here.
    assert part(default, "keys and values")["bytes"] == 1_000 * (1 + 12 + 10_000)
    assert default["about"] == {"kind": "ephemeral", "budgetBytes": 192 << 20, "items": 1_000}
    assert default["bytes"] >= 1_000 * 10_012
    rows = [{"op": "insert", "table": "T", "row": {"text": "x" * 100}}] * 500
    transaction = json.dumps(["Test", *rows])
    subprocess.run(["ovsdb-client", "transact", f"unix:{node.database}", transaction], check=True, stdout=subprocess.DEVNULL)
    database = part(memory_of(node), "databases", "Test")
    assert database["about"]["items"] == 500 and part(database, "rows")["bytes"] > 50_000, database
    assert database["bytes"] >= part(database, "rows")["bytes"]


SLABS = """
[[bucket]]
name = "default"
kind = "ephemeral"
memory = "64MiB"
item_heap = "slab"

[[bucket]]
name = "other"
kind = "ephemeral"
memory = "64MiB"

[[memcached]]
address = "127.0.0.1:0"
bucket = "default"
"""


@pytest.fixture
def slabs():
    with Dormouse(config=SLABS, buckets=(), ports={"memcached": None}) as node:
        yield node


def size_classes_of(node, bucket="default"):
    host, port = node.http
    with urllib.request.urlopen(f"http://{host}:{port}/pools/default/buckets/{bucket}/sizeClasses") as answer:
        return json.load(answer)


def test_items_are_counted_in_the_smallest_class_that_they_fit_in(slabs):
    assert size_classes_of(slabs)["classes"] == []
    client = Client(slabs.memcached, default_noreply=False)
    counts = {100: 3000, 1000: 500, 20_000: 20}
    for size, count in counts.items():
        client.set_many({f"{size}-{number:08}": "x" * size for number in range(count)})
    document = size_classes_of(slabs)
    classes = document["classes"]
    assert document["items"] == sum(counts.values()) and document["blockBytes"] == 0
    assert [one["slotBytes"] for one in classes] == sorted(one["slotBytes"] for one in classes)
    assert len(classes) == len(counts)
    for one, (size, count) in zip(classes, counts.items()):
        # A key of a dozen bytes, some bytes of header, and up to a 32nd of rounding.
        assert size < one["slotBytes"] <= (size + 64) * 33 / 32, one
        # Threads reserve up to 64 slots each, but at most a sixteenth of all, or one.
        assert count <= one["used"] <= one["slots"] and one["used"] <= count + 3 * 64, one
        assert one["slots"] * one["slotBytes"] <= one["slabBytes"], one
    free = sum(one["slabBytes"] for one in classes) - sum(count * one["slotBytes"] for one, count in zip(classes, counts.values()))
    # Less by what was never touched.
    assert part(memory_of(slabs), "buckets", "default", "free in slabs")["bytes"] <= free
    client.set("large", "x" * 200_000)
    assert 200_000 < size_classes_of(slabs)["blockBytes"] < 300_000
    for size, count in counts.items():
        client.delete_many([f"{size}-{number:08}" for number in range(count)])
    assert sum(one["used"] for one in size_classes_of(slabs)["classes"]) <= len(counts) * 3 * 64


def leaves(part):
    inner = part.get("parts", [])
    return {name for one in inner for name in leaves(one)} if inner else {part["name"]}


def test_the_overview_says_what_each_part_is(node, open_page):
    page = open_page(node).wait_live()
    page.page.click("summary:text('What the parts are')")
    page.page.wait_for_selector("#memory-parts dd:visible")
    explained = page.page.eval_on_selector_all("#memory-parts dt", "all => all.map(one => one.textContent.split(',')[0])")
    assert leaves(memory_of(node)) <= set(explained)
    page.check_readable()


def test_a_view_that_is_not_there_is_named(node, open_page):
    page = open_page(node)
    page.page.goto(f"http://{node.http[0]}:{node.http[1]}/#/keyz/<b>x")
    page.page.wait_for_selector("main [role=alert]")
    assert page.text("main") == "There is no view of this name: #/keyz/%3Cb%3Ex"
    assert page.page.eval_on_selector_all("#views [aria-current]", "all => all.length") == 0
    page.check_readable()
    page.page.click("#views a:text('Overview')")
    page.page.wait_for_selector("#memory-table tbody tr.whole")


def test_the_overview_has_items_by_size(slabs, open_page):
    client = Client(slabs.memcached, default_noreply=False)
    client.set_many({f"key-{number}": "x" * 1000 for number in range(300)})
    page = open_page(slabs).wait_live()
    page.page.wait_for_selector("#sizes tbody tr")
    # The larger bucket is chosen at first.
    assert page.page.input_value("#sizes-bucket") == "default"
    assert page.text("#sizes-about").startswith("300 items in ")
    used = page.rows("sizes")[-1]
    assert 300 <= int(used[1]) <= int(used[2])
    page.page.select_option("#sizes-bucket", "other")
    for _ in range(400):
        if page.text("#sizes-about").startswith("0 items"):
            break
        page.page.wait_for_timeout(25)
    assert page.text("#sizes-about").startswith("0 items in 0 size classes") and page.rows("sizes") == []
    # Many sizes are shown together.
    client.set_many({f"size-{size}": "x" * size for size in range(8, 4000, 8)})
    page.page.select_option("#sizes-bucket", "default")
    page.page.wait_for_selector("#sizes tbody tr:nth-child(5)")
    assert all(row[0].startswith("up to ") for row in page.rows("sizes")), page.rows("sizes")
    page.check_readable()
