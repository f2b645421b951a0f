"""Shared by the tests of persistence: nodes that are restarted in the same home."""

import pytest

from tests.servers import Dormouse

from .crash import CONFIG


@pytest.fixture
def start(tmp_path):
    """`start()` returns a node in the test's home; the next one opens its data. All are stopped at the end."""
    started = []

    def one(config=CONFIG, home=tmp_path, **named):
        started.append(Dormouse(home=home, buckets=(), config=config, **named))
        return started[-1]

    yield one
    for node in started:
        node.kill()
