"""`dormouse status`: what it prints, its exit codes, logins, TLS, and what is no node."""

import json
import re
import subprocess

import pytest
from pymemcache.client.base import Client

from tests.servers import Dormouse, dormouse_binary, free_port
from tests.stub import Stub, serving
from tests.terminal.command import address
from tests.tls.authority import Authority


def status(*arguments):
    return subprocess.run([str(dormouse_binary()), "status", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def test_a_node_on_one_page(node):
    Client(node.memcached, default_noreply=False).set("seen", "x")
    shown = status("--node", address(node))
    assert (shown.returncode, shown.stderr) == (0, "")
    first, *lines = shown.stdout.splitlines()
    assert first.startswith(f"http://{address(node)}: ok, up ")
    assert any(re.fullmatch(r"[\d.]+ MiB resident; buckets may use [\d.]+ [MGT]iB", line) for line in lines), lines
    row = next(line.split() for line in lines if line.startswith("default"))
    assert row[1:3] == ["ephemeral", "1"], lines


def test_json_has_the_answers_of_three_requests(node):
    shown = status("--node", f"http://{address(node)}/", "--json")
    told = json.loads(shown.stdout)
    assert (shown.returncode, sorted(told), told["health"]) == (0, ["figures", "health", "memory"], {"status": "ok"})
    assert sum(part["bytes"] for part in told["memory"]["parts"]) == told["memory"]["residentBytes"]
    assert told["figures"]["buckets"]["default"]["items"] >= 0


def test_a_login(tmp_path):
    password, wrong = tmp_path / "password", tmp_path / "wrong"
    password.write_text("open sesame\nnot this line\n")
    wrong.write_text("guessed\n")
    password.chmod(0o600)
    with Dormouse("--user", "boss", "--password-file", str(password)) as node:
        assert status("--node", address(node), "--user", "boss", "--password-file", password).returncode == 0
        guess = ("--user", "boss", "--password-file", wrong)
        for arguments, words in (((), "a login is needed: --user and --password-file"), (guess, 'the login of "boss" was refused')):
            refused = status("--node", address(node), *arguments)
            assert refused.returncode == 1 and words in refused.stderr, refused
            assert refused.stderr.count("\n") == 1 and "guessed" not in refused.stderr


def test_tls(tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.sign("node")
    with Dormouse("--http-tls-address", "127.0.0.1:0", "--tls-certificate", str(certificate), "--tls-key", str(key)) as node:
        url = f"https://{node.endpoints['tls']['http'][0]}"
        shown = status("--node", url, "--ca", authority.certificate)
        assert shown.returncode == 0 and shown.stdout.startswith(f"{url}: ok"), shown
        other = Authority(tmp_path, "other")
        for arguments, words in ((("--ca", other.certificate), url), ((), "--ca names"), (("--ca", key), "there is no certificate in it")):
            refused = status("--node", url, *arguments)
            assert refused.returncode == (1 if arguments else 2) and words in refused.stderr, refused


class Node(Stub):
    """Answers what the test says."""

    answers = {}

    def do_GET(self):
        self.answer(*self.answers.get(self.path, (404, "no such thing")))


@pytest.fixture
def stub():
    with serving(Node) as place:
        yield place


@pytest.mark.parametrize("health, code", ((200, 3), (503, 4)))
def test_scripts_see_by_the_exit_code_what_is_wrong(stub, health, code):
    damaged = {"vBuckets": 64, "vBucketsDone": 64 if code == 3 else 7, "vBucketsDamaged": 1, "diskFull": False}
    document = json.dumps({"status": "damaged", "reasons": ["damaged"], "buckets": {"orders": damaged}})
    Node.answers = {"/health/ready": (503, document), "/health": (health, document), "/memory": (200, "{}"), "/figures": (200, "{}")}
    shown = status("--node", stub)
    assert shown.returncode == code, shown
    assert "damaged" in shown.stdout and "orders: " in shown.stdout and "1 vBuckets are damaged" in shown.stdout
    assert ("7 of 64 vBuckets read" in shown.stdout) == (code == 4)


def test_what_is_no_node_is_told(stub, tmp_path):
    Node.answers = {"/health/ready": (200, "<html>")}
    refused = status("--node", stub)
    assert refused.returncode == 1 and "is this a Dormouse?" in refused.stderr
    Node.answers = {"/health/ready": (302, "")}
    assert status("--node", stub).returncode == 1
    nobody = f"127.0.0.1:{free_port()}"
    refused = status("--node", nobody)
    assert refused.returncode == 1 and nobody in refused.stderr and refused.stderr.count("\n") == 1, refused
    assert "allowed are HOST:PORT" in status("--node", "ftp://x:1").stderr
    assert status("--node", stub, "--user", "u").returncode == 2
    refused = status("--node", stub, "--user", "u", "--password-file", tmp_path / "missing")
    assert refused.returncode == 1 and "missing" in refused.stderr
