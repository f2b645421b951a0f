"""Alerts, the board and the manifests: accepted by their own tools, and about figures that exist."""

import json
import re
import subprocess
import tomllib

import kubernetes_validate
import pytest
import yaml

from tests import servers

PACKAGING = servers.ROOT / "packaging"
RULES = PACKAGING / "prometheus/dormouse.rules.yml"
BOARD = PACKAGING / "grafana/dormouse.json"
MANIFEST = PACKAGING / "kubernetes/dormouse.yaml"


def promtool(*words):
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def accepted(directory, configuration):
    """The server takes it, with a directory for data, as the command line names one."""
    file = directory / "dormouse.toml"
    file.write_text(f'[node]\ndata = "{directory}"\n{configuration}')
    done = subprocess.run([servers.dormouse_binary(), "config", "check", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_each_alert_fires_when_it_should_and_only_then(tmp_path):
    promtool("check", "rules", RULES)
    text = (servers.ROOT / "tests/packaging/alerts.test.yml").read_text()
    names = re.findall(r"alert: (\w+)", RULES.read_text())
    assert len(names) == len(set(names)) and all(f'alertname="{name}"' in text for name in names)
    file = tmp_path / "alerts.test.yml"
    file.write_text(text.replace("rule_files: [ALERTS]", f"rule_files: [{RULES}]"))
    promtool("test", "rules", file)


@pytest.mark.parametrize("file", (RULES, BOARD), ids=lambda file: file.stem)
def test_every_figure_named_is_one_that_the_node_has(file):
    named = set(re.findall(r"\bdormouse_[a-z_]+", file.read_text()))
    known = set(re.findall(r"`(dormouse_[a-z_]+)`", (servers.ROOT / "docs/statistics.md").read_text()))
    assert named and named <= known, named - known


def test_the_board_is_one_that_grafana_takes():
    board = json.loads(BOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    squares = [(x, y) for panel in panels for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
               for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])]
    assert len(set(squares)) == len(squares), "panels overlap"
    assert all(x < 24 for x, _ in squares)
    assert all(panel["targets"] for panel in panels if panel["type"] != "row")


def test_the_expressions_of_the_board_parse(tmp_path):
    expressions = [target["expr"] for panel in json.loads(BOARD.read_text())["panels"] for target in panel.get("targets", [])]
    rules = [{"record": f"board:{number}", "expr": re.sub(r"\$(__rate_interval)", "5m", text)} for number, text in enumerate(expressions)]
    file = tmp_path / "board.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    promtool("check", "rules", file)


def test_the_manifests_fit_the_schemas_and_each_other(tmp_path):
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    by_kind = {document["kind"]: document for document in documents}
    pod = by_kind["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in by_kind["Service"]["spec"]["ports"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in by_kind["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert set(mounts) == volumes

    # The configuration is one that the server takes, with the secret where it is mounted.
    text = by_kind["ConfigMap"]["data"]["dormouse.toml"]
    configured = tomllib.loads(text)
    assert configured["auth"]["password_file"] == mounts["password"] + "/password"
    assert {int(configured[table]["address"][1:]) for table in ("http", "kv")} | {11211} == set(ports.values())
    secret = tmp_path / "password"
    secret.write_text(by_kind["Secret"]["stringData"]["password"])
    accepted(tmp_path, text.replace(configured["auth"]["password_file"], str(secret)))


def test_the_images_configuration_is_one_that_the_server_takes(tmp_path):
    secret = tmp_path / "password"
    secret.write_text("a password\n")
    accepted(tmp_path, (PACKAGING / "container/dormouse.toml").read_text().replace("/run/secrets/dormouse-password", str(secret)))
