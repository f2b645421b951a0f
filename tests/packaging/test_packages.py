"""The Debian packages, installed on this machine: what is there, an upgrade that keeps data, a purge. Needs root."""

import os
import pathlib
import pwd
import re
import shutil
import subprocess
import time

from pymemcache.client.base import Client

from tests import servers
from tests.packaging.conftest import install, run

DATA = pathlib.Path("/var/lib/dormouse")
CONFIGURATION = pathlib.Path("/etc/dormouse/dormouse.toml")


def serve():
    """As the unit does: its user, its directory, its configuration."""
    user = pwd.getpwnam("dormouse")
    DATA.mkdir(mode=0o700, exist_ok=True)
    os.chown(DATA, user.pw_uid, user.pw_gid)
    command = ["setpriv", "--reuid", "dormouse", "--regid", "dormouse", "--clear-groups", "dormouse", "serve", "--config", CONFIGURATION, "--data", DATA]
    command += ["--bucket", "default,persistent,64MiB", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memcached", f"127.0.0.1:{servers.free_port()}"]
    node = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    endpoints = DATA / "endpoints.json"
    for _ in range(600):
        if endpoints.exists() and f'"pid":{node.pid}' in endpoints.read_text().replace(" ", ""):
            break
        assert node.poll() is None, node.stderr.read()
        time.sleep(0.05)
    else:
        raise AssertionError("the node does not serve")
    port = int(command[-1].rpartition(":")[2])
    return node, Client(("127.0.0.1", port), default_noreply=False)


def stop(node):
    node.terminate()
    assert node.wait(timeout=60) == 0, node.stderr.read()


def test_lintian_finds_no_error(packages):
    done = subprocess.run(["lintian", "--fail-on", "error", packages("dormouse", 1), packages("dormouse-openvswitch", 1)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_debug_symbols_are_in_a_package_of_their_own(packages, installed):
    symbols = run("dpkg-deb", "--contents", packages("dormouse-dbgsym", 1))
    for program in ("dormouse", "dormouse-lab"):
        sections = run("readelf", "--section-headers", "--wide", f"/usr/bin/{program}")
        assert ".symtab" not in sections and ".debug_info" not in sections
        # Where gdb and perf look. A checksum follows the name.
        link = run("readelf", "--string-dump=.gnu_debuglink", f"/usr/bin/{program}", errors="replace")
        assert f"{program}.debug" in link
        assert f"./usr/lib/debug/usr/bin/{program}.debug" in symbols, symbols


def test_links_of_the_installed_documents_lead_somewhere(installed):
    install(installed("dormouse-openvswitch", 1))
    try:
        documents = [path for name in ("dormouse", "dormouse-openvswitch") for path in pathlib.Path(f"/usr/share/doc/{name}").iterdir()]
        links = [
            (path, link)
            for path in documents if path.suffix in (".md", ".Debian")
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
        ]
        assert len(links) > 50
        assert [(path, link) for path, link in links if not (path.parent / link).exists()] == []
    finally:
        run("dpkg", "--purge", "dormouse-openvswitch")


def test_what_the_package_puts_where(installed):
    assert run("/usr/bin/dormouse", "--version").startswith("dormouse ")
    assert run("dormouse", "lab", "--help").startswith("Measure")
    files = run("dpkg", "-L", "dormouse").split()
    assert {"/usr/share/man/man1/dormouse-serve.1.gz", "/usr/share/bash-completion/completions/dormouse", "/usr/share/zsh/vendor-completions/_dormouse",
            "/usr/share/fish/vendor_completions.d/dormouse.fish", "/usr/share/dormouse/grafana/dormouse.json",
            "/usr/share/dormouse/prometheus/dormouse.rules.yml", "/usr/share/doc/dormouse/configuration.md"} <= set(files)
    unit = next(path for path in files if path.endswith("/dormouse.service"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=one", unit], capture_output=True, text=True)
    assert done.returncode == 0 and "dormouse.service" not in done.stderr, done.stderr
    assert "correct; serves" in run("dormouse", "config", "check", CONFIGURATION)


def test_a_key_of_the_configuration_works_without_its_comment_sign(installed, tmp_path):
    text = CONFIGURATION.read_text()
    edited = re.sub(r"(?m)^#(\[node\]|workers = )", r"\1", text).replace("workers = 0", "workers = 65")
    assert edited != text
    file = tmp_path / "edited.toml"
    file.write_text(edited)
    done = subprocess.run(["dormouse", "config", "check", file], capture_output=True, text=True)
    assert done.returncode == 2 and "node.workers" in done.stderr and "0 to 64" in done.stderr, done.stderr


def test_an_upgrade_keeps_data_and_configuration_and_a_purge_takes_them(installed):
    node, client = serve()
    client.set("kept", "through the upgrade")
    stop(node)
    CONFIGURATION.write_text(CONFIGURATION.read_text() + "# by the operator\n")
    install(installed("dormouse", 2))
    assert run("dpkg-query", "-W", "-f", "${Version}", "dormouse").endswith("-2")
    assert CONFIGURATION.read_text().endswith("# by the operator\n")
    node, client = serve()
    assert client.get("kept") == b"through the upgrade"
    stop(node)
    run("dpkg", "--remove", "dormouse")
    assert DATA.exists() and CONFIGURATION.exists() and not shutil.which("dormouse")
    run("dpkg", "--purge", "dormouse")
    assert not DATA.exists() and not CONFIGURATION.parent.exists()
