"""The README: its plots and figures are those of the committed results, its session runs, and every page has a place."""

import doctest
import importlib.util
import re
import subprocess
import tomllib
import xml.etree.ElementTree

import pytest

from tests import servers

ROOT = servers.ROOT
README = (ROOT / "README.md").read_text()
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


@pytest.fixture(scope="module")
def figures():
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs/results/figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_plots_and_the_measured_rows_are_those_of_the_results(figures):
    for name, drawing in figures.plots().items():
        assert (ROOT / "docs/images" / name).read_text() == drawing, f"{name}: make figures"
        assert f"(docs/images/{name})" in README
    assert figures.with_rows(README) == README, "make figures"


def test_other_results_make_other_plots_and_rows(figures, tmp_path, monkeypatch):
    for file in figures.RESULTS.glob("*.json"):
        text = file.read_text()
        # Each figure of the server, half as large.
        halved = re.sub(r'"(overhead_bytes|median|connection_bytes|end_bytes)": ([\d.]+)', lambda found: f'"{found[1]}": {float(found[2]) / 2}', text)
        (tmp_path / file.name).write_text(halved)
    before = figures.plots()
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert all(drawing != before[name] for name, drawing in figures.plots().items())
    assert figures.with_rows(README) != README


def test_the_bars_are_as_high_as_the_figures_say(figures):
    for name, values in (("bytes-per-item.svg", figures.overhead()), ("operations.svg", figures.rates())):
        drawing = xml.etree.ElementTree.fromstring(figures.plots()[name])
        space = "{http://www.w3.org/2000/svg}"
        bars = [bar for bar in drawing.iter(f"{space}rect") if bar.get("x") and float(bar.get("y")) > 60]
        medians = [value[0] if isinstance(value, tuple) else value for (_, server), value in values.items() if server in figures.SERVERS]
        assert len(bars) == len(medians)
        heights = sorted(float(bar.get("height")) for bar in bars)
        for height, median in zip(heights, sorted(medians)):
            assert height / heights[-1] == pytest.approx(median / max(medians), abs=0.002)
        written = [text.text for text in drawing.iter(f"{space}text")]
        assert all(figures.three_digits(median) in written for median in medians)


def test_the_columns_have_the_versions_that_were_measured(figures):
    (head,) = [line for line in README.splitlines() if line.startswith("| | Dormouse")]
    for name, (label, _) in figures.SERVERS.items():
        assert f"| {label} {figures.versions()[name]} |" in head
    stock = next(subject["version"] for subject in figures.experiment("ovsdb")["subjects"] if subject["name"] == "stock")
    assert f"| `ovsdb-server` {stock.split()[-1]} |" in head
    rows = [line for line in README.splitlines() if line.startswith("| ") and line.count("|") == head.count("|")]
    assert len(rows) > 10


def test_the_commands_and_versions_of_the_installation_exist():
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"make ([a-z]+)(?=\s|`)", README)) <= targets
    assert re.findall(r"localhost/dormouse:(\S+)", README) == [VERSION]
    assert "target/container/dormouse.tar" in README and "target/debian/dormouse_*.deb" in README


def session():
    (text,) = re.findall(r"(?s)```console\n(.*?)```", README)
    return text


def test_the_session_has_twenty_lines_and_gives_what_it_shows(tmp_path):
    text = session()
    assert len(text.splitlines()) <= 20
    with servers.Dormouse() as node:
        for shown, used in ((":11210", node.kv), ("11211", node.memcached)):
            text = text.replace(shown, f"{':' if ':' in shown else ''}{used[1]}")
        shell = re.findall(r"(?m)^\$ (.*)\n((?:(?!\$|>>>).*\n)*)", text)
        greeting, (install, _), (status, _) = shell
        done = subprocess.run(["bash", "-c", greeting[0]], capture_output=True, text=True, timeout=20)
        assert done.stdout.replace("\r", "") == greeting[1]
        assert install.endswith("&& python3") and status == "dormouse status"

        examples = "".join(line + "\n" for line in text.splitlines() if not line.startswith("$") and line not in greeting[1].splitlines())
        test = doctest.DocTestParser().get_doctest(examples, {}, "README", "README.md", 0)
        assert len(test.examples) >= 8
        report = []
        outcome = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        assert outcome.failed == 0, "".join(report)

        address = f"{node.http[0]}:{node.http[1]}"
        done = subprocess.run([servers.dormouse_binary(), "status", "--node", address], capture_output=True, text=True, timeout=20)
        assert done.returncode == 0 and "default" in done.stdout, done


def test_every_page_has_its_place():
    linked = re.findall(r"\]\(([^)#]+)\)", README.partition("\n## Pages\n")[2])
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(linked), sorted(pages - set(linked))
    assert len(linked) == len(set(linked)), "a page is there twice"


def test_the_picture_is_of_the_page():
    picture = ROOT / "docs/images/console-load.png"
    assert "](docs/images/console-load.png)" in README
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20]) >= 900
    # The README is read over networks too.
    assert len(data) < 400_000
