"""The packaged unit, alone and with each drop-in, passes systemd's verification. Needs systemd-analyze
(tests/install.sh)."""

import pathlib
import shutil
import subprocess

import pytest

from tests import servers

PACKAGING = servers.ROOT / "packaging" / "systemd"
DROP_INS = sorted(PACKAGING.glob("drop-ins/*.conf"))


def verify(directory, unit_text, drop_in=None):
    """The output of `systemd-analyze verify`, with the binary under test in place of the installed one."""
    assert shutil.which("systemd-analyze"), "systemd is not installed: tests/install.sh"
    unit = directory / "dormouse.service"
    unit.write_text(unit_text.replace("/usr/bin/dormouse", str(servers.dormouse_binary().resolve())))
    if drop_in:
        folder = directory / "dormouse.service.d"
        folder.mkdir()
        (folder / drop_in.name).write_text(drop_in.read_text())
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", str(unit)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def unit():
    return (PACKAGING / "dormouse.service").read_text()


def test_the_unit_is_correct(tmp_path, unit):
    done = verify(tmp_path, unit)
    assert done.returncode == 0 and "dormouse.service" not in done.stderr, done.stderr


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_the_unit_is_correct_with_each_drop_in(tmp_path, unit, drop_in):
    done = verify(tmp_path, unit, drop_in)
    assert done.returncode == 0 and drop_in.name not in done.stderr, done.stderr


def test_there_is_a_drop_in_for_each_allocator():
    assert {path.stem for path in DROP_INS} == {"jemalloc", "mimalloc", "preload-jemalloc", "preload-mimalloc", "preload-tcmalloc"}
    for path in DROP_INS:
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert lines[0] == "[Service]" and lines[1].startswith("Environment="), path


@pytest.mark.parametrize(
    "right, wrong",
    [("LimitNOFILE=1048576", "LimitNOFILES=1048576"), ("ExecStart=/usr/bin/dormouse", "ExecStart=/nonexistent/dormouse"), ("ProtectHome=yes", "ProtectHome=maybe")],
)
def test_a_mistake_would_be_seen(tmp_path, unit, right, wrong):
    assert right in unit
    done = verify(tmp_path, unit.replace(right, wrong))
    assert "dormouse.service" in done.stderr, done.stderr


def test_a_wrong_drop_in_would_be_seen(tmp_path, unit):
    wrong = tmp_path / "wrong.conf"
    wrong.write_text("[Service]\nEnvironmen=A=B\n")
    directory = tmp_path / "units"
    directory.mkdir()
    assert "wrong.conf" in verify(directory, unit, wrong).stderr


def test_the_example_environment_names_what_the_unit_reads(unit):
    assert "EnvironmentFile=-/etc/dormouse/environment" in unit
    for line in (PACKAGING / "environment").read_text().splitlines():
        assert not line or line.startswith("#"), f"{line!r} would be in force as it is"
