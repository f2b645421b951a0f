"""[allocator] with the linked jemalloc: boot options take effect by a re-exec, the others while the node runs. Needs a
build with jemalloc."""

import pathlib
import subprocess

import pytest

from tests import servers
from tests.allocators.node import claims_of_huge_pages, environment, http, load, reload, stats, stats_of_couchbase, version, wait_until

VARIABLE = "_RJEM_MALLOC_CONF"
NOTE = "DORMOUSE_ALLOCATOR_STARTED_AGAIN"


@pytest.fixture(scope="module", autouse=True)
def jemalloc():
    assert version().startswith("jemalloc 5"), f"DORMOUSE={servers.dormouse_binary()} has {version()}"


def process(node):
    """Environment and arguments of the process's last exec."""
    read = lambda name: pathlib.Path(f"/proc/{node.pid}/{name}").read_bytes().decode().split("\0")[:-1]
    return dict(pair.split("=", 1) for pair in read("environ") if "=" in pair), read("cmdline")


def restarts(node):
    return node.log().count("re-executed to apply")


def test_without_settings_nothing_is_started_again():
    with servers.Dormouse() as node:
        variables, _ = process(node)
        assert VARIABLE not in variables and NOTE not in variables
        assert restarts(node) == 0
        found = stats(node)
        expected = {"metadata_thp": "disabled", "narenas": "2", "cache_oblivious": "false", "background_thread": "true",
                    "dirty_decay_ms": "5000", "muzzy_decay_ms": "0", "thp": "default"}
        assert {name: found[name] for name in expected} == expected
        assert found["allocator"].startswith("jemalloc 5")


@pytest.mark.parametrize(
    "key, value, shown",
    [("metadata_thp", '"auto"', "auto"), ("metadata_thp", '"always"', "always"), ("narenas", "7", "7"), ("cache_oblivious", "true", "true")],
)
def test_a_boot_option_is_in_force_after_a_second_start(key, value, shown):
    # The data directory names the process that was started here: `Dormouse` waits for that process id.
    with servers.Dormouse(config=f"[allocator]\n{key} = {value}\n") as node:
        assert stats(node)[key] == shown
        assert restarts(node) == 1
        variables, arguments = process(node)
        option = f"{key}:{shown}"
        assert variables[VARIABLE] == option and variables[NOTE] == str(node.pid)
        assert arguments == node.command
        assert pathlib.Path(f"/proc/{node.pid}/comm").read_text() == "dormouse\n"


def test_the_name_it_was_called_by_is_kept(tmp_path):
    name = tmp_path / "another-name"
    name.symlink_to(servers.dormouse_binary())
    with environment(DORMOUSE=str(name)), servers.Dormouse(config="[allocator]\nnarenas = 3\n") as node:
        assert process(node)[1][0] == str(name)
        assert stats(node)["narenas"] == "3"


def test_values_that_are_in_force_need_no_second_start():
    config = '[allocator]\nmetadata_thp = "disabled"\nnarenas = 2\ncache_oblivious = false\n'
    with servers.Dormouse(config=config) as node:
        assert restarts(node) == 0


def test_an_operators_own_options_go_first():
    with environment(**{VARIABLE: "narenas:9,dirty_decay_ms:123"}):
        config = "[allocator]\nnarenas = 4\ncache_oblivious = true\ndirty_decay_ms = 50\nmuzzy_decay_ms = 60\n"
        with servers.Dormouse(config=config) as node:
            found = stats(node)
            assert (found["narenas"], found["cache_oblivious"]) == ("9", "true")
            assert (found["dirty_decay_ms"], found["muzzy_decay_ms"]) == ("123", "60")
            for key in ("narenas = 4", "dirty_decay_ms = 50"):
                assert f"allocator.{key}: {VARIABLE} takes precedence" in node.log()
            assert restarts(node) == 1


def test_a_note_of_another_process_is_not_believed():
    """Believing it would prevent the re-exec of this process."""
    with environment(**{NOTE: "1:narenas:11"}), servers.Dormouse(config="[allocator]\nnarenas = 4\n") as node:
        assert stats(node)["narenas"] == "4"
        assert restarts(node) == 1


def test_what_cannot_be_had_is_said_once_and_the_node_serves():
    """A re-exec that changes nothing: the note says that this process has already been through it. `env` keeps the
    shell's process id."""
    node = servers.Dormouse(
        config="[allocator]\nnarenas = 4\n", wrap=("sh", "-c", f'export {NOTE}=$$; exec "$0" "$@"')
    )
    with node:
        assert stats(node)["narenas"] == "2"
        assert node.log().count("allocator.narenas = 4: 2 stays in effect") == 1


def test_live_settings_change_by_reload_and_return_to_what_they_were():
    with servers.Dormouse(config="") as node:
        reload(node, '[allocator]\ndirty_decay_ms = 50\nmuzzy_decay_ms = -1\nbackground_thread = false\nthp = "never"\n')
        found = stats(node)
        assert [found[name] for name in ("dirty_decay_ms", "muzzy_decay_ms", "background_thread", "thp")] == ["50", "-1", "false", "never"]
        assert found["background_threads"] == "0"
        reload(node, "")
        found = stats(node)
        assert [found[name] for name in ("dirty_decay_ms", "muzzy_decay_ms", "background_thread", "thp")] == ["5000", "0", "true", "default"]
        reload(node, "[allocator]\nnarenas = 5\n")
        assert "needs a restart" in node.log() and stats(node)["narenas"] == "2"


def test_live_settings_change_over_http_with_a_login():
    with servers.Dormouse() as node:
        fields = {"dirty_decay_ms": 7, "muzzy_decay_ms": 8, "background_thread": "false", "thp": "always"}
        assert http(node, "POST", "/allocator", fields, login=None)[0] == 401
        assert http(node, "POST", "/allocator", fields, login="Administrator:wrong")[0] == 401
        assert stats(node)["dirty_decay_ms"] == "5000"
        assert http(node, "POST", "/allocator", fields)[0] == 200
        settings = http(node, "GET", "/allocator", login=None)[1]["settings"]
        assert {name: settings[name] for name in fields} == {**fields, "background_thread": False}
        for refused, words in [
            ({"narenas": 3}, "needs a restart"),
            ({"arenas": 3}, "is no setting"),
            ({"dirty_decay_ms": -2}, "or -1 for never"),
            ({"thp": "sometimes"}, '"always" or "default" or "never"'),
            ({"muzzy_decay_ms": 99, "thp": "x"}, "not allowed"),
        ]:
            status, document = http(node, "POST", "/allocator", refused)
            assert status == 400 and words in str(document["errors"]), document
        assert stats(node)["muzzy_decay_ms"] == "8", "half of a refused change was made"


def test_huge_pages_are_what_was_set():
    """The kernel's flags of the mappings: "hg" requests huge pages, "nh" declines them."""
    mib = 1 << 20
    with servers.Dormouse(config='[allocator]\nthp = "never"\n') as node:
        load(node, 40_000, b"x" * 1000)
        claimed_never, refused_never = claims_of_huge_pages(node)
        assert claimed_never == 0 and stats(node)["process_huge_bytes"] == "0"
        reload(node, '[allocator]\nthp = "always"\n')
        claimed, refused = claims_of_huge_pages(node)
        # The rest is not ours: thread stacks decline huge pages; and the last 2 MiB of the full first chunk, whose end
        # was returned.
        assert claimed == 70 * mib and refused_never - refused == claimed
        reload(node, "")
        assert claims_of_huge_pages(node) == (claimed - 6 * mib, refused + 6 * mib)
    # The first chunk of each tenant is 8 MiB; the flag has no effect if the system has no huge pages at all.
    with servers.Dormouse(config='[allocator]\nthp = "always"\n') as node:
        load(node, 1000, b"x" * 1000)
        assert claims_of_huge_pages(node)[0] >= 8 * mib
        if stats(node)["system_thp"] != "never":
            wait_until(lambda: int(stats(node)["process_huge_bytes"]) > 0)


def test_figures_agree_wherever_they_are_shown():
    with servers.Dormouse() as node:
        load(node, 20_000, b"x" * 1000)
        names = ("allocated_bytes", "active_bytes", "metadata_bytes", "resident_bytes", "mapped_bytes", "retained_bytes")
        read = []

        def is_calm():
            """Threads that become idle return memory, which changes the figures."""
            read[:] = [stats(node), http(node, "GET", "/allocator")[1], stats(node)]
            return all(int(read[0][name]) == pytest.approx(int(read[2][name]), rel=0.05) for name in names)

        wait_until(is_calm)
        found, document, _ = read
        metrics = http(node, "GET", "/metrics")[1]
        couchbase = stats_of_couchbase(node)
        assert document["allocator"] == found["allocator"] == couchbase["allocator"] == version()
        assert list(couchbase) == list(found)
        # The documentation page lists every reported figure.
        page = (servers.ROOT / "docs" / "allocator.md").read_text()
        settings = {"metadata_thp", "narenas", "cache_oblivious", "profile", "background_thread", "dirty_decay_ms", "muzzy_decay_ms", "thp"}
        assert [name for name in found if f"`{name}`" not in page and name not in settings] == []
        for name in names:
            assert f"dormouse_allocator_{name} " in metrics
            assert int(found[name]) == pytest.approx(document["figures"][name], rel=0.2), name
        assert int(found["allocated_bytes"]) > 20_000 * 1000
        assert int(found["bucket_allocated_bytes"]) > 20_000 * 1000
        assert document["buckets"]["default"]["resident_bytes"] >= document["buckets"]["default"]["allocated_bytes"]
        assert "dormouse_process_huge_bytes " in metrics and f'version="{version()}"' in metrics


@pytest.mark.parametrize(
    "line, words",
    [
        ("narenas = 0", 'allocator.narenas = 0: not allowed; allowed: 1 to 256 arenas'),
        ('metadata_thp = "yes"', 'allocator.metadata_thp = "yes": not allowed; allowed: "disabled" or "auto" or "always"'),
        ("dirty_decay_ms = -2", "allocator.dirty_decay_ms = -2: not allowed; allowed: 0 to 86400000 milliseconds, or -1 for never"),
        ("thp = true", 'allocator.thp = true: not allowed; allowed: "always" or "default" or "never"'),
        ("arenas = 2", 'unknown key allocator.arenas; did you mean "narenas"?'),
    ],
)
def test_mistakes_are_refused_by_name(tmp_path, line, words):
    path = tmp_path / "node.toml"
    path.write_text(f"[allocator]\n{line}\n")
    done = subprocess.run([servers.dormouse_binary(), "config", "check", path], capture_output=True, text=True)
    assert done.returncode == 2 and f"{path}:2: {words}" in done.stderr, done.stderr
