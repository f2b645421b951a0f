"""The Python SDK's view of the file's node."""

from datetime import timedelta

import pytest

from tests import servers
from tests.tls.authority import Authority

from .cluster import connect


@pytest.fixture(scope="module", params=["plain", "TLS"])
def either_node(request, tmp_path_factory):
    """A node with plain ports, then one whose ports for SDKs speak TLS only."""
    # So that a failure shows who closed which connection.
    arguments, ports, authority = ["--log-level", "debug"], {}, None
    if request.param == "TLS":
        authority = Authority(tmp_path_factory.mktemp("authority"))
        certificate, key = authority.sign("node")
        arguments += ["--tls-certificate", str(certificate), "--tls-key", str(key), "--kv-tls-address", "127.0.0.1:0", "--http-tls-address", "127.0.0.1:0"]
        ports = {"kv": "none", "http": "none"}
    with servers.Dormouse(*arguments, ports=ports) as server:
        server.authority = authority and authority.certificate
        yield server
        assert server.alive(), f"the node died\n{server.log()}"


@pytest.fixture(scope="module")
def cluster(node):
    one = connect(node)
    one.wait_until_ready(timedelta(seconds=20))
    yield one
    one.close()


@pytest.fixture(scope="module")
def collection(cluster):
    return cluster.bucket("default").default_collection()
