"""Alerts, the board and the manifests: accepted by their own tools, and about figures that exist."""

import base64
import copy
import functools
import http.client
import json
import re
import shutil
import subprocess
import tomllib

import kubernetes_validate
import pytest
import yaml

from tests import servers

PACKAGING = servers.ROOT / "packaging"
RULES = PACKAGING / "prometheus/dormouse.rules.yml"
BOARD = PACKAGING / "grafana/dormouse.json"
KUBERNETES = PACKAGING / "kubernetes"
MANIFEST = KUBERNETES / "base/dormouse.yaml"
VERSION = tomllib.loads((servers.ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


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


def stateful_set():
    return next(document for document in yaml.safe_load_all(MANIFEST.read_text()) if document["kind"] == "StatefulSet")


def test_the_manifests_image_has_the_version_and_is_never_latest():
    (container,) = stateful_set()["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"localhost/dormouse:{VERSION}"
    assert container["imagePullPolicy"] == "IfNotPresent"
    example = yaml.safe_load((KUBERNETES / "example/kustomization.yaml").read_text())
    assert [image["newTag"] for image in example["images"]] == [VERSION]
    build = (PACKAGING / "container/build.sh").read_text()
    assert "latest" not in build and "tag=${1:-localhost/dormouse:$(sed" in build


def test_the_secret_is_for_the_node_only():
    pod = stateful_set()["spec"]["template"]["spec"]
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    mode = secret["defaultMode"]
    # The group may read it, since the files are root's: the node runs as that group. Nobody else may, or the node warns.
    assert mode == 0o440 and pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    (others,) = re.findall(r"const OTHERS_MODE: u32 = 0o(\d+);", (servers.ROOT / "crates/dormouse/src/password.rs").read_text())
    assert mode & int(others, 8) == 0


def test_what_kubernetes_and_prometheus_ask_for_is_answered():
    template = stateful_set()["spec"]["template"]
    notes, (container,) = template["metadata"]["annotations"], template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert notes["prometheus.io/scrape"] == "true" and int(notes["prometheus.io/port"]) == ports["http"]
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert all(probe["httpGet"]["port"] == "http" for probe in probes.values())
    # A probe gives up before the next begins: at most one of them waits.
    assert all(probe["timeoutSeconds"] <= max(probe["periodSeconds"], 5) for probe in probes.values())
    with servers.Dormouse() as node:
        for path in {probe["httpGet"]["path"] for probe in probes.values()} | {notes["prometheus.io/path"]}:
            connection = http.client.HTTPConnection(*node.http, timeout=10)
            # The kubelet names the pod's address.
            connection.request("GET", path, headers={"Host": "10.0.0.7:8091"})
            assert connection.getresponse().status == 200, path
            connection.close()


def images(kustomization, documents):
    """What kustomize's `images` does to the pods of these documents."""
    for document in documents:
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            name, _, tag = container["image"].rpartition(":")
            for image in kustomization.get("images", ()):
                if image["name"] == name:
                    container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def built(directory):
    """What `kubectl kustomize` prints, of the fields that ours use; any other field fails."""
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    known = {"apiVersion", "kind", "resources", "namespace", "images", "secretGenerator", "configMapGenerator", "patches"}
    assert kustomization["kind"] == "Kustomization" and set(kustomization) <= known
    documents = []
    for resource in kustomization["resources"]:
        path = directory / resource
        documents += built(path) if path.is_dir() else yaml.safe_load_all(path.read_text())
    by_name = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    for kind, member in (("Secret", "stringData"), ("ConfigMap", "data")):
        for generator in kustomization.get(f"{kind[0].lower()}{kind[1:]}Generator", ()):
            assert generator["behavior"] == "replace"
            by_name[kind, generator["name"]][member] = {file: (directory / file).read_text() for file in generator["files"]}
    images(kustomization, documents)
    for patch in kustomization.get("patches", ()):
        target = by_name[patch["target"]["kind"], patch["target"]["name"]]
        for step in yaml.safe_load(patch["patch"]):
            assert step["op"] == "replace"
            *way, last = [int(word) if word.isdigit() else word for word in step["path"].strip("/").split("/")]
            place = functools.reduce(lambda inner, word: inner[word], way, target)
            # Replacing what is not there is an error of JSON patches too.
            assert last in place if isinstance(place, dict) else last < len(place)
            place[last] = step["value"]
    if "namespace" in kustomization:
        for document in documents:
            document["metadata"]["namespace"] = kustomization["namespace"]
    return documents


def check_against_kubectl(name, documents):
    """That `built` does what kustomize does, where there is a kubectl: Debian's is too old to know `patches`, so the tests cannot install one."""
    program = shutil.which("kubectl")
    if program is None:
        return
    done = subprocess.run([program, "kustomize", KUBERNETES / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made, ours = ({document["kind"]: document for document in each} for each in (yaml.safe_load_all(done.stdout), copy.deepcopy(documents)))
    if "data" in made["Secret"]:
        # A generator encodes what a file says in plain words.
        made["Secret"]["stringData"] = {key: base64.b64decode(value).decode() for key, value in made["Secret"].pop("data").items()}
        assert made["Secret"].pop("type") == "Opaque"
    assert made == ours


@pytest.mark.parametrize("name", ("base", "example"))
def test_what_kustomize_makes_fits_the_schemas_and_the_server(name, tmp_path):
    documents = built(KUBERNETES / name)
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    by_kind = {document["kind"]: document for document in documents}
    namespace = by_kind["Service"]["metadata"].get("namespace", "default")
    text = by_kind["ConfigMap"]["data"]["dormouse.toml"]
    names = tomllib.loads(text)["http"]["host_names"].split()
    assert names == [f"dormouse{rest}" for rest in ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")]
    secret = tmp_path / "password"
    secret.write_text(by_kind["Secret"]["stringData"]["password"])
    accepted(tmp_path, text.replace("/run/secrets/dormouse/password", str(secret)))
    check_against_kubectl(name, documents)


def test_the_images_configuration_is_one_that_the_server_takes(tmp_path):
    secret = tmp_path / "password"
    secret.write_text("a password\n")
    accepted(tmp_path, (PACKAGING / "container/dormouse.toml").read_text().replace("/run/secrets/dormouse-password", str(secret)))
