"""The experiment files in examples/lab, each once in its quick form with the servers that Debian and PyPI have."""

import json
import os
import pathlib
import subprocess

import pytest

from tests import servers

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "lab").glob("*.toml"))
VENV = ROOT / ".venv" / "bin"


def lab(*arguments, cwd):
    program = servers.dormouse_binary()
    environment = {**os.environ, "PATH": f"{VENV}:{os.environ['PATH']}"}
    return subprocess.run([program, "lab", *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


def test_all_examples_are_here():
    assert [path.stem for path in EXAMPLES] == ["dictionary", "memcached", "ovsdb-server", "postgresql", "valkey"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_every_variant_gives_figures(path, tmp_path):
    done = lab("run", path, "--quick", "--repeats", 1, "--results", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["variants"]) >= 3
    for variant in report["variants"]:
        assert variant["lacks"] is None and variant["failures"] == [], variant["name"]
        figures = {name: spread["median"] for name, spread in variant["figures"].items()}
        assert figures["cpu_s"] > 0 and figures["resident_bytes"] > 1 << 20 and figures["rate"] > 0, variant["name"]
        assert figures["peak_bytes"] >= figures["resident_bytes"]
    html = (tmp_path / "report.html").read_text()
    assert html.count("<svg") >= 3 and "src=" not in html and "@import" not in html
    assert lab("recommend", tmp_path, cwd=tmp_path).stdout.startswith(("Run ", "Stay with "))
