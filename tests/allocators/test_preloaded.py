"""Only for the build with the system's malloc: a library preloaded in its place is recognised, named and used. Needs a
build with alloc-system, and the libraries jemalloc, tcmalloc and mimalloc."""

import ctypes.util
import pathlib
import subprocess

import pytest

from tests import servers
from tests.allocators.node import delete, environment, http, load, resident_bytes, stats, version, wait_until

NONE_OF_THEM = ("metadata_thp", "narenas", "cache_oblivious", "profile", "background_thread", "dirty_decay_ms", "thp")


@pytest.fixture(scope="module", autouse=True)
def system():
    assert version().startswith("glibc"), f"DORMOUSE={servers.dormouse_binary()} has {version()}"


def preload(name):
    library = ctypes.util.find_library(name)
    assert library, f"{name} is not installed: tests/install.sh"
    return environment(LD_PRELOAD=library)


@pytest.mark.parametrize("name, figure", [("jemalloc", "metadata_bytes"), ("tcmalloc", "dirty_bytes"), ("mimalloc", "committed_bytes")])
def test_a_preloaded_library_is_named_and_gives_memory_back(name, figure):
    # A preloaded mimalloc 2 retains memory that one thread allocated and another freed (docs/decisions/0007), so use
    # one worker.
    workers = 1 if name == "mimalloc" else 2
    with preload(name), servers.Dormouse(buckets=("default,ephemeral,512MiB",), workers=workers) as node:
        found = stats(node)
        assert found["allocator"].startswith(f"{name} ") and found["allocator"].endswith(", preloaded")
        assert http(node, "GET", "/allocator")[1]["allocator"] == found["allocator"]
        assert int(found[figure]) >= 0 and "thp" not in found
        empty = resident_bytes(node)
        load(node, 100_000, b"x" * 1000)
        full = resident_bytes(node)
        found = stats(node)
        assert int(found["process_resident_bytes"]) > 100_000_000
        assert int(found.get("allocated_bytes", found["bucket_charged_bytes"])) > 100_000_000
        delete(node, range(100_000))
        wait_until(lambda: resident_bytes(node) < empty + (full - empty) // 5, 10)


def test_a_preloaded_jemalloc_takes_the_settings():
    config = '[allocator]\nnarenas = 6\nmetadata_thp = "always"\ndirty_decay_ms = 321\n'
    with preload("jemalloc"), servers.Dormouse(config=config) as node:
        found = stats(node)
        assert (found["narenas"], found["metadata_thp"], found["dirty_decay_ms"]) == ("6", "always", "321")
        assert node.log().count("re-executed to apply") == 1
        variables = pathlib.Path(f"/proc/{node.pid}/environ").read_bytes().decode().split("\0")
        assert "MALLOC_CONF=metadata_thp:always,narenas:6" in variables
        assert not any(variable.startswith("_RJEM") for variable in variables)
        assert http(node, "POST", "/allocator", {"muzzy_decay_ms": 5})[0] == 200
        assert stats(node)["muzzy_decay_ms"] == "5"
        status, document = http(node, "POST", "/allocator", {"thp": "never"})
        assert status == 400 and "item memory lies where jemalloc" in document["errors"]["thp"]


@pytest.mark.parametrize("key", NONE_OF_THEM)
def test_what_the_c_library_does_not_have_is_refused_by_name(tmp_path, key):
    value = {"metadata_thp": '"auto"', "thp": '"never"', "narenas": "3", "dirty_decay_ms": "1"}.get(key, "true")
    path = tmp_path / "node.toml"
    path.write_text(f"[allocator]\n{key} = {value}\n")
    done = subprocess.run([servers.dormouse_binary(), "config", "check", path], capture_output=True, text=True)
    said = f"{path}:2: allocator.{key} = {value}: {version()} has no such setting; allowed: to leave the key out"
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_the_c_library_tells_what_it_knows():
    with servers.Dormouse() as node:
        found = stats(node)
        assert found["allocator"] == version()
        assert int(found["mapped_bytes"]) >= int(found["mapped_singly_bytes"])
        assert not any(name in found for name in NONE_OF_THEM)
        status, document = http(node, "POST", "/allocator", {"dirty_decay_ms": 5})
        assert status == 400 and "has no such setting" in document["errors"]["dirty_decay_ms"]
        status, document = http(node, "POST", "/allocator/profile")
        assert status == 400 and "has no such setting" in document["errors"]["profile"]
