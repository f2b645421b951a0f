"""allocator.profile and POST /allocator/profile. Needs a build with the feature heap-profile."""

import pathlib
import re
import shutil

import pytest

from tests import servers
from tests.allocators.node import http, load, stats, version


@pytest.fixture(scope="module", autouse=True)
def jemalloc():
    assert version().startswith("jemalloc 5"), f"DORMOUSE={servers.dormouse_binary()} has {version()}"


def test_a_profile_is_written_into_the_data_directory():
    with servers.Dormouse(config="[allocator]\nprofile = true\n") as node:
        assert stats(node)["profile"] == "true"
        load(node, 60_000, b"x" * 1000)
        assert http(node, "POST", "/allocator/profile", login=None)[0] == 401
        status, document = http(node, "POST", "/allocator/profile")
        assert status == 200, document
        path = pathlib.Path(document["file"])
        assert path.parent == node.data / "node"
        text = path.read_text()
        # "heap_v2/524288" and "t*: objects: bytes [...]": values as sampled, so jeprof has to scale the sum.
        assert text.startswith("heap_v2/524288\n") and "MAPPED_LIBRARIES:" in text
        objects, sampled = map(int, re.search(r"t\*: (\d+): (\d+) \[", text).groups())
        # Of 60 MB, about one block in each 512 KiB is sampled.
        assert objects >= 30 and sampled >= objects * 100
        assert http(node, "POST", "/allocator/profile")[1]["file"] != document["file"]


@pytest.mark.parametrize("trouble, said", [("no directory", "No such file or directory"), ("no room", "the allocator could not write it")])
def test_a_profile_that_cannot_be_written_is_named_and_leaves_nothing(trouble, said):
    # Limits the size of files the node may write: too small for a profile, large enough for its log and its endpoints.
    wrap = ("sh", "-c", 'trap "" XFSZ; ulimit -f 8; exec "$0" "$@"') if trouble == "no room" else ()
    with servers.Dormouse(config="[allocator]\nprofile = true\n", wrap=wrap) as node:
        load(node, 60_000, b"x" * 1000)
        if trouble == "no directory":
            shutil.rmtree(node.data / "node")
        status, document = http(node, "POST", "/allocator/profile")
        why = document["errors"]["_"]
        assert status == 500 and why.startswith(str(node.data / "node" / "heap-")) and said in why, document
        assert list(node.data.glob("**/heap-*")) == []


def test_without_sampling_a_profile_is_refused():
    with servers.Dormouse() as node:
        assert stats(node)["profile"] == "false"
        status, document = http(node, "POST", "/allocator/profile")
        assert status == 400 and "allocator.profile = false" in document["errors"]["profile"]
        assert list((node.data / "node").glob("heap-*")) == []
