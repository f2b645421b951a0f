"""What a release is made of: what must be there is looked for before anything is compiled; the notes, the components, the workflow.
Nothing is built here."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests import servers

ROOT = servers.ROOT
PACKAGING = ROOT / "packaging"
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())
VERSION = CARGO["workspace"]["package"]["version"]
# What the scripts themselves need of a system.
SHELL = ("bash", "env", "uname", "id", "sort", "tr", "sed", "grep", "head", "dirname", "cat", "readlink", "date", "ls", "rm", "mkdir", "cp", "mv")
TOOLS = ("cargo", "rustc", "git", "gcc", "make", "tar", "gzip", "perl", "dpkg-shlibdeps", "cargo-deb", "python3", "sha256sum")
CROSS = {"amd64": ("arm64", "aarch64-linux-gnu"), "arm64": ("amd64", "x86_64-linux-gnu")}
OWN = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
OTHER, OTHER_PREFIX = CROSS[OWN]
OTHER_TARGET = OTHER_PREFIX.replace("-", "-unknown-", 1)


@pytest.fixture
def machine(tmp_path):
    """A machine that has these programs and no others: each call notes itself in `called`, and fails."""

    class Machine:
        called = tmp_path / "called"

        def __init__(self):
            self.bin = tmp_path / "bin"
            self.bin.mkdir()
            for name in SHELL:
                (self.bin / name).symlink_to(shutil.which(name))

        def has(self, *names):
            for name in names:
                file = self.bin / name
                file.write_text(f'#!/bin/bash\necho "{name} $*" >> {self.called}\nexit 1\n')
                file.chmod(0o755)
            return self

        def run(self, *command, **environment):
            environment = {"PATH": str(self.bin), "HOME": str(tmp_path), "CROSS_ROOT": str(tmp_path / "root"), **environment}
            return subprocess.run([str(word) for word in command], env=environment, cwd=ROOT, capture_output=True, text=True)

        def prerequisites(self, *words):
            return self.run(PACKAGING / "prerequisites.sh", *words)

        def calls(self):
            return self.called.read_text().splitlines() if self.called.exists() else []

    return Machine()


def missing(done):
    """Their names."""
    return [re.split(r"\s{2,}", line.strip())[0] for line in done.stderr.splitlines()[1:]]


def test_all_that_is_missing_is_named_at_once_with_what_installs_it(machine):
    done = machine.prerequisites("packages")
    assert done.returncode == 1 and "nothing was built" in done.stderr
    assert missing(done) == ["cargo", "git", "gcc", "make", "tar", "gzip", "perl", "dpkg-shlibdeps", "cargo-deb"]
    assert re.search(r"cargo-deb .* cargo install --locked --no-default-features cargo-deb$", done.stderr, re.M)
    assert re.search(r"dpkg-shlibdeps .* apt-get install dpkg-dev$", done.stderr, re.M)


@pytest.mark.parametrize("goal, lacks", (
    ("packages", {"cargo-deb"}), ("image", set()), ("reproducible", {"cargo-deb"}), ("booted", {"mmdebstrap", "systemd-nspawn"}),
    ("release", {"cargo-deb", "python3"}),
))
def test_each_goal_needs_its_own_tools(machine, goal, lacks):
    machine.has(*(set(TOOLS) - {"cargo-deb", "python3"}))
    done = machine.prerequisites(goal)
    assert (done.returncode, set(missing(done))) == (int(bool(lacks)), lacks), done.stderr


def test_another_architecture_needs_its_compiler_its_c_library_and_its_target(machine):
    machine.has(*TOOLS)
    assert machine.prerequisites("release", OWN).returncode == 0
    done = machine.prerequisites("release", OWN, OTHER)
    assert done.returncode == 1 and missing(done) == [f"{OTHER_PREFIX}-gcc", f"libc of {OTHER}", OTHER_TARGET]
    assert f"rustup target add {OTHER_TARGET}" in done.stderr and f"apt-get install libc6-dev-{OTHER}-cross" in done.stderr
    refused = machine.prerequisites("release", "riscv64")
    assert refused.returncode == 2 and "unknown architecture riscv64; allowed: amd64, arm64" in refused.stderr


def test_the_commands_alone_install_all_of_it_in_an_order_that_works(machine):
    machine.has("git", "gcc", "rustc")
    done = machine.prerequisites("--commands", "release", OWN, OTHER)
    assert done.returncode == 0 and done.stderr == ""
    update, install, rust, deb, target = done.stdout.splitlines()
    assert update.endswith("apt-get update -qq")
    packages = install.partition("--no-install-recommends ")[2].split()
    assert packages == sorted({"make", "tar", "gzip", "perl", "dpkg-dev", "python3", "coreutils", f"gcc-{OTHER_PREFIX.replace('_', '-')}", f"libc6-dev-{OTHER}-cross"})
    assert "rustup" in rust and deb.startswith("cargo install") and target == f"rustup target add {OTHER_TARGET}"


@pytest.mark.parametrize("script", (("build.sh",), ("container/build.sh",), ("compare.sh",), ("release.sh", VERSION, OWN)), ids=lambda script: script[0])
def test_nothing_is_compiled_where_something_is_missing(machine, script):
    machine.has(*(set(TOOLS) - {"cargo-deb", "make"}))
    done = machine.run(PACKAGING / script[0], *script[1:])
    assert done.returncode == 1 and "nothing was built" in done.stderr, done.stderr
    assert machine.calls() == []


def test_a_release_of_another_version_is_refused_before_anything_is_compiled(machine):
    machine.has(*TOOLS)
    done = machine.run(PACKAGING / "release.sh", "9.9.9", OWN)
    assert done.returncode == 1 and f"Cargo.toml has version {VERSION}, not 9.9.9" in done.stderr
    assert machine.calls() == []
    done = machine.run(PACKAGING / "release.sh", "--draft")
    assert done.returncode != 0 and f"make release VERSION={VERSION}" in done.stderr


def test_the_makefile_passes_the_version_and_the_architectures_on():
    words = ("make", "--no-print-directory", "--dry-run", "release", f"VERSION={VERSION}", f"ARCHITECTURES={OWN}", "DRAFT=1")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["packaging/release.sh", "--draft", VERSION, OWN]


CHANGES = """# Changes

## 0.3.0, not released yet

* Soon.

## 0.2.0, 2027-01-31

* A change
  of two lines.
* Another.

## 0.1.0, 2026-12-24

## 0.0.1
* Old.
"""


@pytest.fixture
def notes(tmp_path):
    """Runs the script beside this CHANGELOG.md."""
    (tmp_path / "packaging").mkdir()
    script = shutil.copy(PACKAGING / "notes.py", tmp_path / "packaging")
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return lambda *words: subprocess.run([sys.executable, script, *words], capture_output=True, text=True)


def test_the_notes_are_the_section_of_the_version_and_nothing_else(notes):
    assert notes("0.2.0").stdout == "# Dormouse 0.2.0\n\n* A change\n  of two lines.\n* Another.\n"
    assert notes("--draft", "0.3.0").stdout == "# Dormouse 0.3.0\n\n* Soon.\n"


@pytest.mark.parametrize("version, problem", (
    ("0.3.0", "says 'not released yet'; a release has its date there"), ("0.0.1", "says ''"), ("0.1.0", "nothing is said below"),
    ("0.4.0", "has no section ## 0.4.0"), ("2.0", "has no section"),
))
def test_a_version_without_notes_or_without_a_date_is_refused(notes, version, problem):
    done = notes(version)
    assert done.returncode == 1 and problem in done.stderr and done.stdout == ""


def test_the_changelog_has_a_section_for_the_version_of_the_sources():
    done = subprocess.run([sys.executable, PACKAGING / "notes.py", "--draft", VERSION], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) > 10, done.stderr


def components(architecture):
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1800000000"}
    done = subprocess.run([sys.executable, PACKAGING / "components.py", architecture], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def crates_in(program):
    """Name and version of each crate from elsewhere whose source files a program's line tables and messages name."""
    found = set(re.findall(rb"/registry/src/[^/\0]+/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[^/\0]*)/", program.read_bytes()))
    return {(name.decode(), version.decode()) for name, version in found}


def test_the_components_have_every_crate_of_the_program_with_its_checksum():
    text = components("amd64")
    assert text == components("amd64"), "not the same bytes"
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", document["serialNumber"])
    assert document["metadata"]["timestamp"] == "2027-01-15T08:00:00Z"
    assert document["metadata"]["component"]["version"] == VERSION
    found = {(one["name"], one["version"]): one["scope"] for one in document["components"]}
    assert len(found) == len(document["components"]) > 100
    # What the program itself says it was made of.
    compiled = crates_in(servers.dormouse_binary())
    assert len(compiled) > 80
    assert {crate: found.get(crate) for crate in compiled} == dict.fromkeys(compiled, "required")

    # The checksums of Cargo.lock, for all that does not come from this repository.
    locked = {(one["name"], one["version"]): one.get("checksum") for one in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}
    for one in document["components"]:
        assert [entry["content"] for entry in one.get("hashes", ())] == [sum for sum in (locked[one["name"], one["version"]],) if sum], one["name"]
        assert one["licenses"][0]["expression"] and "/" not in one["licenses"][0]["expression"]
        assert one["purl"] == one["bom-ref"] == f"pkg:cargo/{one['name']}@{one['version']}"

    # Every reference leads to a component, and from the program every component is reached.
    graph = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    whole, refs = document["metadata"]["component"]["bom-ref"], {one["bom-ref"] for one in document["components"]}
    assert set(graph) == refs | {whole} and {ref for targets in graph.values() for ref in targets} == refs


def test_what_is_only_tested_with_or_only_compiles_is_told_apart():
    scopes = {one["name"]: one["scope"] for one in json.loads(components("amd64"))["components"]}
    assert not {"proptest", "loom"} & set(scopes)
    assert {name: scopes[name] for name in ("kv", "rustls", "tikv-jemalloc-sys", "serde")} == dict.fromkeys(("kv", "rustls", "tikv-jemalloc-sys", "serde"), "required")
    assert {name: scopes[name] for name in ("cc", "serde_derive", "syn")} == dict.fromkeys(("cc", "serde_derive", "syn"), "excluded")


def test_each_architecture_has_a_document_of_its_own():
    first, second = (json.loads(components(architecture)) for architecture in ("amd64", "arm64"))
    assert first["serialNumber"] != second["serialNumber"]
    assert {"name": "dormouse:target", "value": "aarch64-unknown-linux-gnu"} in second["metadata"]["component"]["properties"]


def test_the_workflow_runs_the_same_command():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    # YAML takes the word `on` for a truth value.
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    steps = [step["run"] for step in workflow["jobs"]["release"]["steps"] if "run" in step]
    wanted = ("packaging/prerequisites.sh --commands release amd64 arm64 | sh -e", 'make release VERSION="${GITHUB_REF_NAME#v}"')
    places = [steps.index(command) for command in wanted]
    assert places == sorted(places)
    # It publishes the directory that the script makes.
    assert "made=$target/release-$version" in (PACKAGING / "release.sh").read_text()
    assert 'cd "target/release-${GITHUB_REF_NAME#v}"' in steps[-1] and "--notes-file NOTES.md" in steps[-1]
    for step in steps:
        assert subprocess.run(["bash", "-n"], input=step, text=True).returncode == 0, step
