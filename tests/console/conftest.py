"""A browser, and pages that are closed again."""

import pathlib

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
WIDTHS = (320, 820, 1280)
AXE = pathlib.Path(__file__).parent.parent / "node/node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        # Its sandbox refuses to run as root.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Page:
    """The page of a node, and everything that its console said."""

    def __init__(self, browser, node, login="", **options):
        """`login`: what the address begins with, such as `user:password@`."""
        self.context, self.said = browser.new_context(**options), []
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        host, port = node.http
        self.page.goto(f"http://{login}{host}:{port}/")

    def wait_live(self):
        self.page.wait_for_selector("#memory-table tbody tr.whole")
        self.page.wait_for_selector("#figures-node dd")
        self.page.wait_for_selector("#state.live")
        return self

    def text(self, selector):
        return self.page.inner_text(selector)

    def rows(self, table):
        """The body of a table, as lists of texts."""
        return self.page.eval_on_selector_all(f"#{table} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))")

    def faults(self):
        """What the accessibility checker finds serious."""
        # The page's policy forbids foreign scripts; the driver's own context is exempt.
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate("axe.run({resultTypes: ['violations'], preload: false})")["violations"]
        return [(fault["id"], [node["html"] for node in fault["nodes"]]) for fault in found if fault["impact"] in ("serious", "critical")]

    def check_readable(self):
        """At every width, light and dark: nothing is cut off, nothing is hard to read, and the browser's console is silent."""
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)
            for width in WIDTHS:
                self.page.set_viewport_size({"width": width, "height": 900})
                self.page.evaluate("new Promise(requestAnimationFrame)")
                assert self.page.evaluate("document.documentElement.scrollWidth") <= width, (self.page.url, scheme, width)
                assert self.faults() == [], (self.page.url, scheme, width)
        assert self.said == [], self.page.url


@pytest.fixture
def open_page(browser):
    opened = []

    def one(node, **options):
        opened.append(Page(browser, node, **options))
        return opened[-1]

    yield one
    for page in opened:
        page.context.close()
