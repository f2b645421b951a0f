"""The packages under test, and machines that have them installed. Needs root."""

import os
import pathlib
import shutil
import subprocess

import pytest

from tests import servers

BUILD = servers.ROOT / "packaging/build.sh"


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def install(*packages):
    run("apt-get", "install", "-y", *packages, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """Two revisions of both packages, with the binary under test."""
    kept, profile = tmp_path_factory.mktemp("packages"), servers.dormouse_binary().resolve().parent
    # Where apt, which reads packages as a user of its own, reaches them.
    for directory in (kept, *kept.parents[:2]):
        directory.chmod(0o755)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(profile.parent)}
    for revision in ("1", "2"):
        run(BUILD, "--built", profile.name, "--revision", revision, env=environment)
        for package in (profile.parent / "debian").glob(f"*-{revision}_*deb"):
            shutil.copy(package, kept)
    return lambda name, revision: next(kept.glob(f"{name}_*-{revision}_*deb"))


@pytest.fixture(scope="module")
def installed(packages):
    """The first revision, on a machine that had none; gone afterwards."""
    assert os.geteuid() == 0, "packages are installed as root"
    assert not pathlib.Path("/usr/bin/dormouse").exists(), "a dormouse is installed here already"
    install(packages("dormouse", 1))
    yield packages
    subprocess.run(["dpkg", "--purge", "dormouse-openvswitch", "dormouse"], capture_output=True)
