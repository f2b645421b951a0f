"""What the tests of persistence share: nodes that are started again in the same home."""

import pytest

from tests.servers import Dormouse

from .crash import CONFIG


@pytest.fixture
def start(tmp_path):
    """`start()` gives a node in the test's home; the next one takes up its data. All are gone at the end."""
    started = []

    def one(config=CONFIG, home=tmp_path, **named):
        started.append(Dormouse(home=home, buckets=(), config=config, **named))
        return started[-1]

    yield one
    for node in started:
        node.kill()
