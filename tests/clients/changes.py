"""Changes that the tests of streams make."""

from tests import dcp
from tests.persistence.bucket import memcached, vbucket_of


def change(node, round, documents, count=2000):
    """Stores, and deletes some of what is there."""
    with_kv = memcached(node)
    for n in range(count):
        key, value = f"key-{n * (round + 1) % 5000}", f"round-{round}-{n}" * 20
        with_kv.set(key, value, noreply=True)
        documents[key] = value
    for key in list(documents)[:: 7 + round]:
        with_kv.delete(key, noreply=True)
        del documents[key]
    # Waits for what has no answer.
    with_kv.get("key-0")
    with_kv.close()


def begin_again(node):
    """Empties the bucket and stores a few documents; returns these, and their vBuckets, which alone tell their consumers."""
    dcp.empty(node, "default")
    documents = {}
    change(node, 1, documents, count=100)
    return documents, {vbucket_of(key.encode()) for key in documents}


def inside(vbuckets, documents):
    return {key: value for key, value in documents.items() if vbucket_of(key.encode()) in vbuckets}
