"""What a single node of Couchbase answers to tools: its documents, settings, defaults of buckets, and what is refused."""

import json
import re
import struct
import urllib.parse

import pytest

from tests import servers
from tests.frames import GET, INVALID, SET, STAT, SUCCESS, BinaryConnection, request
from tests.persistence.bucket import http, start, vbucket_of

POOL = "/pools/default"
BUCKETS = f"{POOL}/buckets"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)-(\d+)-(enterprise|community)")


@pytest.fixture(scope="module")
def node():
    with servers.Dormouse(buckets=("default,ephemeral,32MiB", "p,persistent,32MiB"), memory="256MiB") as server:
        yield server
        assert server.alive(), server.log()


def document(node, path):
    status, body = http(node, "GET", path)
    assert status == 200, (path, status, body)
    return json.loads(body)


def post(node, path, form, expected=200):
    status, body = http(node, "POST", path, urllib.parse.urlencode(form))
    assert status == expected, (path, form, status, body)
    return json.loads(body) if body else None


def made(node, name, **form):
    """The document of a bucket that is made with these fields; it is dropped again."""
    post(node, BUCKETS, {"name": name, "ramQuota": 16, **form}, 202)
    shown = document(node, f"{BUCKETS}/{name}")
    assert http(node, "DELETE", f"{BUCKETS}/{name}")[0] == 200
    return shown


def test_the_version_is_one_that_parsers_take(node):
    pools = document(node, "/pools")
    assert VERSION.fullmatch(pools["implementationVersion"]).groups() == ("7", "6", "6", "6126", "enterprise")
    assert pools["isEnterprise"] is True and re.fullmatch("[0-9a-f]{32}", pools["uuid"])
    assert re.fullmatch(r"0\.\d+\.\d+", pools["dormouse"])
    own = document(node, "/nodes/self")
    assert (own["version"], own["clusterCompatibility"]) == (pools["implementationVersion"], 7 * 65536 + 6)
    # The address of the pool is one that can be asked.
    assert document(node, pools["pools"][0]["uri"])["name"] == "default"


def test_the_node_is_in_a_group_by_every_document(node):
    (group,) = document(node, f"{POOL}/serverGroups")["groups"]
    assert group["name"] == "Group 1" and len(group["nodes"]) == 1
    for path in (f"{POOL}/nodeServices", f"{POOL}/b/default"):
        assert [one["serverGroup"] for one in document(node, path)["nodesExt"]] == ["Group 1"]
    for one in (document(node, "/nodes/self"), document(node, POOL)["nodes"][0], document(node, f"{BUCKETS}/default")["nodes"][0], group["nodes"][0]):
        assert (one["serverGroup"], one["addressFamily"], one["nodeEncryption"], one["thisNode"]) == ("Group 1", "inet", False, True)
        assert one["cpuCount"] >= 1 and one["memoryTotal"] > one["memoryFree"] > 0 and one["systemStats"]["mem_total"] == one["memoryTotal"]
        assert one["interestingStats"]["curr_items"] == one["interestingStats"]["curr_items_tot"]
    assert document(node, "/nodes/self")["storage"]["hdd"][0]["state"] == "ok"


def test_what_exporters_read_of_the_pool(node):
    pool = document(node, POOL)
    assert (pool["balanced"], pool["rebalanceStatus"], pool["counters"]) == (True, "none", {})
    assert all(isinstance(pool[quota], int) for quota in ("memoryQuota", "indexMemoryQuota", "ftsMemoryQuota", "cbasMemoryQuota", "eventingMemoryQuota"))
    assert all(isinstance(pool["storageTotals"]["ram"][name], int) for name in ("total", "used", "quotaTotal", "quotaUsed", "usedByData", "quotaTotalPerNode"))
    assert pool["autoCompactionSettings"]["databaseFragmentationThreshold"] == {"percentage": 30, "size": "undefined"}
    assert document(node, f"{POOL}/tasks") == [{"type": "rebalance", "status": "notRunning", "statusIsStale": False, "masterRequestTimedOut": False}]


def test_the_documents_name_each_other(node):
    bucket = document(node, f"{BUCKETS}/p")
    (server,) = document(node, bucket["stats"]["nodeStatsListURI"])["servers"]
    assert server["hostname"] == bucket["nodes"][0]["hostname"]
    assert document(node, server["uri"])["stats"] == server["stats"]
    samples = document(node, server["stats"]["uri"])["op"]["samples"]
    assert samples.keys() == document(node, bucket["stats"]["uri"])["op"]["samples"].keys() and "curr_items" in samples
    assert http(node, "GET", f"{BUCKETS}/p/nodes/other:8091/stats")[0] == 404
    for name in ("compactAll", "compactDB"):
        assert http(node, "POST", bucket["controllers"][name], "")[0] == 200
    assert document(node, f"{POOL}/remoteClusters") == [] and document(node, f"{POOL}/certificates") == []
    terse = document(node, f"{POOL}/terseClusterInfo")
    assert (terse["clusterUUID"], terse["isBalanced"], terse["clusterCompatVersion"]) == (document(node, "/pools")["uuid"], True, "7.6")


@pytest.mark.parametrize("form, shown, hidden", [
    ({"bucketType": "couchbase"}, {"bucketType": "membase", "storageBackend": "couchstore", "evictionPolicy": "valueOnly", "replicaNumber": 1, "replicaIndex": False}, {"historyRetentionBytes"}),
    ({}, {"bucketType": "membase", "conflictResolutionType": "seqno", "compressionMode": "passive", "durabilityMinLevel": "none", "maxTTL": 0, "numVBuckets": 1024}, set()),
    ({"bucketType": "ephemeral"}, {"storageBackend": "undefined", "evictionPolicy": "noEviction", "replicaNumber": 1, "enableCrossClusterVersioning": False}, {"replicaIndex", "historyRetentionSeconds", "historyRetentionCollectionDefault"}),
    ({"bucketType": "ephemeral", "evictionPolicy": "nruEviction", "replicaNumber": 0}, {"evictionPolicy": "nruEviction", "replicaNumber": 0}, set()),
    ({"storageBackend": "magma"}, {"storageBackend": "magma", "evictionPolicy": "fullEviction", "historyRetentionCollectionDefault": True, "historyRetentionBytes": 0, "historyRetentionSeconds": 0}, set()),
    ({"storageBackend": "magma", "historyRetentionBytes": 2 << 30, "historyRetentionCollectionDefault": "false"}, {"historyRetentionCollectionDefault": False, "historyRetentionBytes": 2 << 30}, set()),
    ({"colour": "red", "numReplicas": 2, "locked": "false", "rank": 3, "autoCompactionDefined": "false"}, {"replicaNumber": 1, "versionPruningWindowHrs": 720}, {"colour", "numReplicas", "locked"}),
])
def test_buckets_are_made_with_couchbases_defaults(node, form, shown, hidden):
    found = made(node, "made", **form)
    assert {name: found[name] for name in shown} == shown
    assert not hidden & found.keys()


@pytest.mark.parametrize("form, field", [
    ({"bucketType": "memcached"}, "bucketType"), ({"conflictResolutionType": "custom"}, "conflictResolutionType"), ({"replicaNumber": 4}, "replicaNumber"),
    ({"historyRetentionCollectionDefault": "true"}, "historyRetentionCollectionDefault"), ({"historyRetentionSeconds": 5, "storageBackend": "couchstore"}, "historyRetentionSeconds"),
    ({"historyRetentionBytes": 2 << 30, "bucketType": "ephemeral"}, "historyRetentionBytes"), ({"historyRetentionBytes": 1, "storageBackend": "magma"}, "historyRetentionBytes"),
])
def test_what_couchbase_refuses_of_a_bucket(node, form, field):
    assert list(post(node, BUCKETS, {"name": "made", "ramQuota": 16, **form}, 400)["errors"]) == [field]


def test_durable_writes_succeed_on_a_node_alone(node):
    """With one replica by default, which there is no node for: Couchbase refuses them, and applications would stop."""
    assert document(node, f"{BUCKETS}/p")["replicaNumber"] == 1
    assert document(node, f"{POOL}/b/p")["vBucketServerMap"]["numReplicas"] == 0


def test_settings_of_a_cluster_are_stored_and_shown(tmp_path):
    changes = {
        "/settings/autoFailover": {"enabled": "true", "timeout": 30, "maxCount": 2},
        "/settings/stats": {"sendStats": "true"},
        "/controller/setAutoCompaction": {"parallelDBAndViewCompaction": "true", "databaseFragmentationThreshold[percentage]": 40, "purgeInterval": 7},
        "/settings/passwordPolicy": {"minLength": 9},
        "/settings/audit": {"auditdEnabled": "false", "rotateInterval": 900, "disabled": ""},
    }

    def shown(node):
        paths = [path.replace("/controller/setAutoCompaction", "/settings/autoCompaction") for path in changes]
        return [document(node, path) for path in paths] + [document(node, "/pools")["uuid"]]

    with start(tmp_path) as node:
        before = shown(node)
        assert (before[0]["enabled"], before[0]["timeout"], before[0]["count"]) == (True, 120, 0) and before[1] == {"sendStats": False}
        assert (before[2]["purgeInterval"], before[3]["minLength"], before[4]["auditdEnabled"]) == (3, 6, False)
        for path, form in changes.items():
            post(node, path, {**form, "colour": "red"})
        after = shown(node)
        assert (after[0]["timeout"], after[0]["maxCount"], after[1], after[3]["minLength"], after[4]["rotateInterval"]) == (30, 2, {"sendStats": True}, 9, 900)
        assert after[2]["autoCompactionSettings"]["databaseFragmentationThreshold"]["percentage"] == 40 and after[2]["purgeInterval"] == 7
        for path, form, field in (("/settings/autoFailover", {"enabled": "true", "timeout": 1}, "timeout"), ("/settings/audit", {"auditdEnabled": "true"}, "auditdEnabled"), ("/settings/stats", {}, "sendStats")):
            assert list(post(node, path, form, 400)["errors"]) == [field]
        assert shown(node) == after
    with start(tmp_path) as node:
        assert shown(node) == after


def test_scripts_that_set_up_a_node_get_through(tmp_path):
    with start(tmp_path) as node:
        post(node, "/nodes/self/controller/settings", {"path": "/opt/couchbase/var/lib/couchbase/data", "index_path": "/opt/couchbase/var/lib/couchbase/data"})
        post(node, "/nodeInit", {"hostname": "db1.example", "dataPath": "/data", "indexPath": "/data", "afamily": "ipv4"})
        assert document(node, "/nodes/self")["hostname"] == f"db1.example:{node.http[1]}"
        assert document(node, "/nodes/self")["otpNode"] == "ns_1@db1.example"


def test_prometheus_is_told_where_the_metrics_are(node):
    path, target = "/prometheus_sd_config", f"127.0.0.1:{node.http[1]}"
    assert document(node, path) == document(node, f"{path}?type=json&port=insecure&network=default&disposition=inline") == [{"targets": [target]}]
    assert document(node, f"{path}?network=external") == []
    assert http(node, "GET", f"{path}?type=yaml&port=insecure&disposition=attachment") == (200, f"- targets:\n    - '{target}'\n")
    for wrong in ("type=xml", "port=any", "network=inner", "disposition=none"):
        assert http(node, "GET", f"{path}?{wrong}")[0] == 400, wrong


# Statistics as cbstats asks for them.


def asked(connection, group, value=b""):
    connection.send(request(STAT, group, value))
    answers = {}
    while (answer := connection.response()).key:
        answers[answer.key.decode()] = answer.value.decode()
    return answer.status, answers


def test_statistics_are_asked_for_as_tools_do(node):
    with BinaryConnection(node.kv) as connection:
        connection.open_bucket("default")
        key = b"a key with blanks"
        vb = vbucket_of(key)
        assert connection.ask(SET, key, b"1", struct.pack(">II", 0, 0), vbucket=vb).status == SUCCESS
        for group in (b"key %s %d", b"key %s %d ", b"vkey %s %d", b"vkey %s %d "):
            status, found = asked(connection, group % (key, vb))
            assert status == SUCCESS and found["key_is_dirty"], group
        plain = asked(connection, b"dcp")
        assert plain[0] == SUCCESS and "ep_dcp_count" in plain[1]
        assert asked(connection, b"dcp", b'{"stream_format":"skip","filter":{}}')[1].keys() == plain[1].keys()
        assert asked(connection, b"dcp", b"{")[0] == INVALID and asked(connection, b"memory", b"{}")[0] == INVALID
        status, found = asked(connection, b"collections-details")
        assert status == SUCCESS and (found["vb_0:manifest:uid"], found["0x8:name"], found["0x8:scope"]) == ("0x1", "_mobile", "0x8")
        assert connection.ask(GET, key, vbucket=vb).value == b"1"
