"""memccapable of Debian's libmemcached-tools: every one of its 54 checks passes, with and without TLS, but for those that memcached 1.6.45
fails as well."""

import re
import select
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from tests import servers
from tests.tls.authority import Authority

CHECKS = 54
# They want an error for surplus words behind the key, which memcached ignores since its new parser of lines.
AS_IN_MEMCACHED = ["ascii delete", "ascii delete noreply"]


@pytest.fixture(scope="module")
def memccapable():
    path = shutil.which("memccapable")
    assert path, "memccapable is missing: apt-get install libmemcached-tools"
    return path


class Tunnel:
    """Forwards plain connections to a TLS port, because memccapable does not speak TLS."""

    def __init__(self, address, context):
        self.address, self.context = address, context
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                plain, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(plain,), daemon=True).start()

    def carry(self, plain):
        with plain, self.context.wrap_socket(socket.create_connection(self.address), server_hostname=self.address[0]) as secret:
            secret.setblocking(False)
            while True:
                try:
                    while text := secret.recv(65536):
                        plain.sendall(text)
                    return
                except ssl.SSLWantReadError:
                    readable, _, _ = select.select([plain, secret], [], [])
                except OSError:
                    return
                if plain in readable:
                    text = plain.recv(65536)
                    if not text:
                        return
                    secret.setblocking(True)
                    secret.sendall(text)
                    secret.setblocking(False)


@pytest.fixture(params=["plain", "TLS"])
def address(request, tmp_path):
    if request.param == "plain":
        yield request.getfixturevalue("node").memcached
        return
    authority = Authority(tmp_path)
    certificate, key = authority.sign("node")
    with servers.Dormouse("--memcached", "tls:127.0.0.1:0", "--tls-certificate", str(certificate), "--tls-key", str(key),
                          "--kv-tls-address", "none", "--http-tls-address", "none", ports={"memcached": None}) as node:
        (listener,) = node.endpoints["tls"]["memcached"]
        tunnel = Tunnel(servers.split_address(listener["address"]), authority.context())
        with tunnel.listener:
            yield tunnel.listener.getsockname()


def test_all_checks_pass_that_pass_in_memcached(memccapable, address):
    host, port = address
    done = subprocess.run([memccapable, "-h", host, "-p", str(port), "-t", "10"], capture_output=True, text=True, timeout=120)
    output = done.stdout + done.stderr
    passed = re.findall(r"((?:ascii|binary) [a-z0-9 ]*?) +\[pass\]", output)
    # A failure is reported out of line.
    assert output.count("[FAIL]") == len(AS_IN_MEMCACHED) and f"{len(AS_IN_MEMCACHED)} of {CHECKS} tests failed" in output, output
    assert len(passed) == CHECKS - len(AS_IN_MEMCACHED) and not set(passed) & set(AS_IN_MEMCACHED), output
