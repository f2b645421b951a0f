"""A node in a control group with a memory limit: its buckets get a part of that, not of the machine's memory."""

import os
import pathlib

import pytest

from tests.servers import Dormouse

LIMIT = 300 << 20
# Of both versions: where groups are, and the file of the limit.
HIERARCHIES = [(pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (pathlib.Path("/sys/fs/cgroup"), "memory.max")]


@pytest.fixture
def group():
    for root, file in HIERARCHIES:
        if not (root / "cgroup.procs").exists():
            continue
        outer = root / f"dormouse-test-{os.getpid()}"
        inner = outer / "unit"
        try:
            inner.mkdir(parents=True)
            (outer / file).write_text(str(LIMIT))
        except OSError:
            for one in (inner, outer):
                if one.exists():
                    one.rmdir()
            continue
        yield inner
        inner.rmdir()
        outer.rmdir()
        return
    pytest.skip("no control group with a memory limit can be made here")


def test_the_limit_of_a_parent_group_counts(group, tmp_path):
    enter = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
    with Dormouse(home=tmp_path, buckets=(), wrap=enter) as node:
        assert "180MiB for buckets" in node.log(), node.log()
