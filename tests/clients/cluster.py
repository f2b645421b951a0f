"""A node as the official Couchbase SDK for Python sees it."""

from datetime import timedelta

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

from tests.servers import split_address

KV_TIMEOUT = timedelta(seconds=8)


def connection_string(node):
    """The SDKs' connection string for the node: over TLS, if it has no other port for them."""
    host, port = node.kv or split_address(node.endpoints["tls"]["kv"][0])
    return f"couchbase{'' if node.kv else 's'}://{host}:{port}"


def connect(node, user="Administrator", password="password"):
    timeouts = ClusterTimeoutOptions(kv_timeout=KV_TIMEOUT, kv_durable_timeout=KV_TIMEOUT, connect_timeout=timedelta(seconds=10))
    security = {} if node.kv else {"trust_store_path": str(node.authority)}
    return Cluster(connection_string(node), ClusterOptions(PasswordAuthenticator(user, password), timeout_options=timeouts, **security))
