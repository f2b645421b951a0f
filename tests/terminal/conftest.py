"""A node whose users come from a file, and an operator who may do everything there."""

import pytest

from tests.servers import Dormouse
from tests.terminal.command import Operator

BOSS, PASSWORD = "boss", "open sesame"


@pytest.fixture(scope="module")
def password_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("passwords") / "boss"
    path.write_text(f"{PASSWORD}\nnot this line\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def guarded(password_file):
    """A node with a user from a file."""
    with Dormouse("--user", BOSS, "--password-file", str(password_file), memory="2GiB") as node:
        yield node
        assert node.alive(), node.log()


@pytest.fixture(scope="module")
def boss(guarded, password_file):
    return Operator(guarded, BOSS, password_file)
