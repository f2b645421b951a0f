"""Fixtures all behaviour tests share. Every test that needs Dormouse fails, not skips, when the binary is missing."""

import pytest

from tests import servers


@pytest.fixture(scope="session", autouse=True)
def binary_named():
    print(f"\nDORMOUSE={servers.dormouse_binary()}")


@pytest.fixture(scope="module")
def node():
    """One node for the tests of a file; it must still be alive, and exit with 0, when they are done."""
    server = servers.Dormouse()
    try:
        yield server
        assert server.alive(), f"the node died\n{server.log()}"
    finally:
        code = server.stop()
    assert code == 0, f"SIGTERM: exit code {code}"
