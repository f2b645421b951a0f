"""A disk that is full soon: a tmpfs of a few MiB. Mounting needs root, as in CI's container; without that its tests fail."""

import os
import subprocess

import pytest

DISK_MIB = 24


class SmallDisk:
    """A mounted tmpfs, maybe with a ballast file that can be removed."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "dormouse-test", path]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.fail(f"a tmpfs cannot be mounted (uid {os.getuid()}): {done.stderr.strip()}; run this as root, where mounting is allowed")
        self.ballast = path / "ballast"

    def fill(self, mib):
        self.ballast.write_bytes(bytes(mib << 20))

    def free(self):
        self.ballast.unlink()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A process that was just killed may still hold it.
        subprocess.run(["umount", "--lazy", self.path], check=True)
