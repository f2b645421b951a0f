"""A node as the official Couchbase SDK for Python sees it."""

from datetime import timedelta

from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions, ClusterTimeoutOptions

KV_TIMEOUT = timedelta(seconds=8)


def connect(node, user="Administrator", password="password"):
    host, port = node.kv
    timeouts = ClusterTimeoutOptions(kv_timeout=KV_TIMEOUT, kv_durable_timeout=KV_TIMEOUT, connect_timeout=timedelta(seconds=10))
    return Cluster(f"couchbase://{host}:{port}", ClusterOptions(PasswordAuthenticator(user, password), timeout_options=timeouts))
