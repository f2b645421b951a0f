"""The Python SDK's view of the file's node."""

from datetime import timedelta

import pytest

from .cluster import connect


@pytest.fixture(scope="module")
def cluster(node):
    one = connect(node)
    one.wait_until_ready(timedelta(seconds=20))
    yield one
    one.close()


@pytest.fixture(scope="module")
def collection(cluster):
    return cluster.bucket("default").default_collection()
