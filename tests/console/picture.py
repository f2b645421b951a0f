"""Takes the README's picture: the page's overview of a node under load, its two halves beside each other.

    python -m tests.console.picture docs/images/console-load.png          (make picture)

The node serves two buckets. Clients fill them, then read and write in both for half a minute before the picture, and while it is taken.
"""

import base64
import pathlib
import random
import socket
import sys
import threading
import time

from playwright.sync_api import sync_playwright

from tests import servers
from tests.console.conftest import CHROMIUM, Page

BUCKETS = ("sessions,ephemeral,64MiB", "orders,persistent,96MiB")
# Documents, and the lengths of their values.
LOADS = {"sessions": (60_000, (200, 400, 900)), "orders": (25_000, (300, 1500, 6000))}
# Requests in flight per client, so that the load is more than Python's.
BATCH = 64
SECONDS = 30
WIDTH = 660
# Pixels of the picture for each of the page.
SCALE = 1.25


def exchange(connection, requests):
    connection.sendall(b"".join(requests) + b"mn\r\n")
    tail = b""
    while not tail.endswith(b"MN\r\n"):
        data = connection.recv(1 << 20)
        assert data
        tail = tail[-8:] + data[-8:]


def store(number, length):
    return b"ms user:%06d %d q\r\n%s\r\n" % (number, length, b"x" * length)


def load(address, documents, lengths, stop):
    chance = random.Random(documents)
    length_of = lambda number: lengths[number % len(lengths)]
    with socket.create_connection(address) as connection:
        for begin in range(0, documents, BATCH):
            exchange(connection, [store(number, length_of(number)) for number in range(begin, min(begin + BATCH, documents))])
        while not stop.is_set():
            numbers = [chance.randrange(documents) for _ in range(BATCH)]
            reads = [b"mg user:%06d v\r\n" % number for number in numbers]
            exchange(connection, reads + [store(number, length_of(number)) for number in numbers[: BATCH // 4]])


HALVES = """<body style="margin: 0; background: white; width: {width}px; display: flex; gap: {gap}px">{halves}</body>"""
HALF = """<div style="width: {half}px; height: {height}px; background: url(data:image/png;base64,{data}) 0 {top}px / {half}px"></div>"""


def beside(page, file):
    """The page up to its course of memory, and the rest of it to the right."""
    whole = page.page.evaluate("document.documentElement.scrollHeight")
    cut = page.page.evaluate("[...document.querySelectorAll('h3')].find(h => h.textContent == 'The last hour').getBoundingClientRect().top + scrollY - 12")
    data = base64.b64encode(page.page.screenshot(full_page=True)).decode()
    height = max(cut, whole - cut)
    halves = HALF.format(half=WIDTH, height=cut, data=data, top=0) + HALF.format(half=WIDTH, height=whole - cut, data=data, top=-cut)
    drawn = page.context.browser.new_page(viewport={"width": 2 * WIDTH + 20, "height": int(height)}, device_scale_factor=SCALE)
    drawn.set_content(HALVES.format(width=2 * WIDTH + 20, gap=20, halves=halves))
    drawn.screenshot(path=file)


def main(file):
    ports = [f"127.0.0.1:{servers.free_port()}" for _ in BUCKETS]
    arguments = [word for address, bucket in zip(ports, BUCKETS) for word in ("--memcached", f"{address}={bucket.split(',')[0]}")]
    stop = threading.Event()
    with servers.Dormouse(*arguments, buckets=BUCKETS, ports={"memcached": None}) as node:
        threads = [threading.Thread(target=load, args=(node.memcached_of(name), *LOADS[name], stop)) for name in LOADS]
        for thread in threads:
            thread.start()
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                page = Page(browser, node, viewport={"width": WIDTH, "height": 800}, color_scheme="light", device_scale_factor=SCALE).wait_live()
                time.sleep(SECONDS)
                beside(page, file)
                assert page.said == []
                browser.close()
        finally:
            stop.set()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
