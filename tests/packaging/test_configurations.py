"""Each configuration that is shipped passes `dormouse config check` with the arguments that it is served with, and the unit's lines
work for a node that keeps data, as a user without privileges."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
import yaml

from tests import servers

PACKAGING = servers.ROOT / "packaging"
CONFIG, DATA = "/etc/dormouse/dormouse.toml", "/var/lib/dormouse"
NOBODY = 65534
SOON_S = 20


def unit_lines():
    """The unit's command lines by their keys, without the signal of the reload."""
    lines = re.findall(r"(?m)^(Exec\w+)=(/usr/bin/dormouse .*)$", (PACKAGING / "systemd" / "dormouse.service").read_text())
    return {key: shlex.split(line) for key, line in lines}


@pytest.fixture
def place():
    """A directory that everybody may enter, with a program, and what the unit's user owns in it."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="dormouse-unit-"))
    place.chmod(0o755)
    # The one under test may lie where the user cannot go.
    shutil.copy(servers.dormouse_binary(), place / "dormouse")
    for name in ("etc", "data"):
        (place / name).mkdir()
    (place / "data").chmod(0o700)
    if os.geteuid() == 0:
        os.chown(place / "data", NOBODY, NOBODY)
    yield place
    shutil.rmtree(place)


def of_place(line, place):
    places = {"/usr/bin/dormouse": place / "dormouse", CONFIG: place / "etc" / "dormouse.toml", DATA: place / "data"}
    return [str(places.get(word, word)) for word in line]


def as_user():
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def run(line, place):
    return subprocess.run(of_place(line, place), capture_output=True, text=True, timeout=60, cwd="/", **as_user())


def test_the_units_lines_work_for_a_persistent_bucket(place):
    lines = unit_lines()
    assert set(lines) == {"ExecStartPre", "ExecStart", "ExecReload"}
    config = "".join(f'[{name}]\naddress = "127.0.0.1:0"\n' for name in ("[memcached]", "kv", "http"))
    (place / "etc" / "dormouse.toml").write_text(config + '[[bucket]]\nname = "default"\nkind = "persistent"\nmemory = "64MiB"\n')
    checked = run(lines["ExecStartPre"], place)
    assert checked.returncode == 0 and "correct; serves" in checked.stdout, checked.stderr
    log = place / "log"
    with log.open("w") as output:
        node = subprocess.Popen(of_place(lines["ExecStart"], place), stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd="/",
                                preexec_fn=servers.end_with_the_tests, **as_user())

    def logged(words):
        deadline = time.monotonic() + SOON_S
        while words not in log.read_text() and node.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert words in log.read_text(), log.read_text()

    try:
        logged("persistent")
        # The data directory has the bucket now, which its user alone reads.
        reloaded = run(lines["ExecReload"], place)
        assert reloaded.returncode == 0, reloaded.stderr
        node.send_signal(signal.SIGHUP)
        logged("configuration read again")
        (place / "etc" / "dormouse.toml").write_text(config + "nonsense = 1\n")
        refused = run(lines["ExecReload"], place)
        assert refused.returncode == 2 and "unknown key http.nonsense" in refused.stderr, refused.stderr
    finally:
        node.terminate()
        assert node.wait(SOON_S) == 0


def shipped():
    """The configurations, and the arguments of those who serve them."""
    documents = list(yaml.safe_load_all((PACKAGING / "kubernetes" / "base" / "dormouse.yaml").read_text()))
    [config_map] = [document for document in documents if document["kind"] == "ConfigMap"]
    [stateful_set] = [document for document in documents if document["kind"] == "StatefulSet"]
    [container] = stateful_set["spec"]["template"]["spec"]["containers"]
    image = json.loads((PACKAGING / "container" / "image.json").read_text())
    default = subprocess.run([servers.dormouse_binary(), "config", "default"], capture_output=True, text=True, check=True).stdout
    return {
        "kubernetes": (config_map["data"]["dormouse.toml"], container["args"]),
        "container": ((PACKAGING / "container" / "dormouse.toml").read_text(), next(cmd(image))),
        "debian": (default, unit_lines()["ExecStart"][1:]),
    }


def cmd(value):
    """The command of the image, wherever its configuration has it."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key == "Cmd":
            yield inner
        yield from cmd(inner)


@pytest.mark.parametrize("name", ("kubernetes", "container", "debian"))
def test_each_shipped_configuration_is_correct_with_its_arguments(name, place):
    text, arguments = shipped()[name]
    (place / "etc" / "dormouse.toml").write_text(text)
    assert arguments[0] == "serve" and {"--config", "--data"} <= set(arguments)
    done = run(["/usr/bin/dormouse", "config", "check", *arguments[1:]], place)
    assert done.returncode == 0 and "correct; serves" in done.stdout, done.stderr


def test_memory_that_is_not_there_is_told_by_check_and_start(tmp_path):
    file = tmp_path / "node.toml"
    file.write_text('[node]\nmemory = "60TiB"\n')
    warning = "node.memory = 60TiB is more than the "
    done = subprocess.run([servers.dormouse_binary(), "config", "check", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and f"dormouse: warning: {warning}" in done.stderr, done.stderr
    with servers.Dormouse(memory="60TiB") as node:
        assert warning in node.log()
    with servers.Dormouse(memory="300MiB") as node:
        assert warning not in node.log()
