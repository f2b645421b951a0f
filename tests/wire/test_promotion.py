"""`dormouse bucket promote`: whatever a majority has acknowledged is there afterwards, or nothing is promoted."""

import json
import shutil

import pytest

from tests.cluster import Cluster
from tests.frames import RE_COMMIT, SUCCESS
from tests.persistence.bucket import http, wait_until
from tests.terminal.command import Operator

from .test_replicas import VB, Client

VBUCKETS = "/pools/default/buckets/default/vbuckets"
PERSIST_TO_MAJORITY = 3
# What is only in memory stays there for a while.
SLOW_FLUSHER = """
[[bucket]]
name = "default"
kind = "persistent"
memory = "128MiB"
vbuckets = 16
flush_interval_ms = 5000
"""


@pytest.fixture(params=("ephemeral", "persistent"))
def kind(request):
    return request.param


def promote(cluster, name, *options, tmp_path):
    login = tmp_path / "password"
    login.write_text("password\n")
    return Operator(cluster[name], "Administrator", login).run("bucket", "promote", "default", *options)


def roles(cluster, name):
    status, answer = http(cluster[name], "GET", VBUCKETS)
    assert status == 200, answer
    return {shown["vbucket"]: shown for shown in json.loads(answer)}


def active_of(cluster, names, vb):
    actives = [name for name in names if roles(cluster, name)[vb]["state"] == "active"]
    newest = max(actives, key=lambda name: roles(cluster, name)[vb]["term"])
    return newest


def wait_begun(cluster, *names):
    """Until all copies have begun: one that has no history yet may be any."""
    has_begun = lambda: all(role["history_term"] > 0 for name in names for role in roles(cluster, name).values())
    wait_until(has_begun, "copies")


def begin(cluster):
    """n1 is active, and all copies have begun, also on disk."""
    cluster.assign(["n1", "n2", "n3"], (0, 15))
    wait_begun(cluster, "n2", "n3")
    for name in ("n2", "n3"):
        assert cluster[name].stop() == 0
        cluster.restart(name)


def test_a_long_log_of_plain_writes_does_not_win(kind, tmp_path):
    """n1 is cut off and takes 500 plain writes; n2 or n3 is promoted, and 50 durable writes are acknowledged; that one is
    lost and n1 is back."""
    level = PERSIST_TO_MAJORITY if kind == "persistent" else 1
    with Cluster(tmp_path, 3, (f"default,{kind},128MiB",), relayed=("n1",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        with Client(cluster["n1"]) as client:
            assert client.set(b"before", level=1).status == SUCCESS
            wait_begun(cluster, "n2", "n3")
            cluster.relays["n1"].stop()
            for number in range(500):
                assert client.set(b"plain-%d" % number).status == SUCCESS
        cluster.pause("n1")
        done = promote(cluster, "n3", tmp_path=tmp_path)
        assert done.returncode == 0, done
        assert "n1 did not answer" in done.stdout, done.stdout
        active = active_of(cluster, ("n2", "n3"), 7)
        other = {"n2": "n3", "n3": "n2"}[active]
        with Client(cluster[active]) as client:
            for number in range(50):
                assert client.set(b"durable-%d" % number, b"%d" % number, level=level).status == SUCCESS
        cluster.kill(active)
        cluster.go_on("n1")
        ranks = {name: (roles(cluster, name)[7]["history_term"], roles(cluster, name)[7]["complete_seqno"]) for name in ("n1", other)}
        assert ranks["n1"][1] > ranks[other][1] and ranks["n1"] < ranks[other], ranks
        done = promote(cluster, other, "--json", tmp_path=tmp_path)
        assert done.returncode == 0, done
        decided = json.loads(done.stdout)
        assert [shown for shown in decided["vbuckets"] if shown["mayHaveLost"]] == []
        assert decided["vbuckets"][7]["chain"][0] == other, decided["vbuckets"][7]
        with Client(cluster[other]) as client:
            for number in range(50):
                wait_until(lambda: client.get(b"durable-%d" % number) != RE_COMMIT, "the commit")
                assert client.get(b"durable-%d" % number) == b"%d" % number, number
            assert client.get(b"before") == b"value"


def test_nothing_is_changed_if_too_few_answer(kind, tmp_path):
    with Cluster(tmp_path, 3, (f"default,{kind},128MiB",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        with Client(cluster["n1"]) as client:
            assert client.set(b"key", level=1).status == SUCCESS
        cluster.kill("n1")
        cluster.kill("n3")
        parts = ("state", "term", "topology", "source")
        in_force = lambda: {vb: [shown[part] for part in parts] for vb, shown in roles(cluster, "n2").items()}
        before = in_force()
        done = promote(cluster, "n2", tmp_path=tmp_path)
        assert done.returncode != 0 and "might be lost" in done.stderr and "n1" in done.stderr, done
        assert in_force() == before
        done = promote(cluster, "n2", "--force", tmp_path=tmp_path)
        assert done.returncode == 0 and "may have lost" in done.stdout, done
        assert {shown["state"] for shown in roles(cluster, "n2").values()} == {"active"}


def test_an_active_that_was_killed_comes_back_and_copies_what_it_lacks(tmp_path):
    with Cluster(tmp_path, 3, ("default,persistent,128MiB",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        with Client(cluster["n1"]) as client:
            for number in range(100):
                level = PERSIST_TO_MAJORITY if number % 10 == 0 else None
                assert client.set(b"key-%d" % number, b"%d" % number, level=level).status == SUCCESS
        cluster.kill("n1")
        assert promote(cluster, "n2", tmp_path=tmp_path).returncode == 0
        cluster.restart("n1")
        # Once more, now that it answers: it becomes a replica.
        assert promote(cluster, "n2", tmp_path=tmp_path).returncode == 0
        names = ("n1", "n2", "n3")
        active = active_of(cluster, names, 7)
        with Client(cluster[active]) as client:
            for number in range(100):
                if number % 10 == 0:
                    assert client.get(b"key-%d" % number) == b"%d" % number
            assert client.set(b"after", level=PERSIST_TO_MAJORITY).status == SUCCESS
        highs = lambda: {roles(cluster, name)[7]["complete_seqno"] for name in names}
        wait_until(lambda: len(highs()) == 1, "all have the same")


def test_a_term_is_promised_to_one_of_two_that_promote(kind, tmp_path):
    with Cluster(tmp_path, 1, (f"default,{kind},128MiB",)) as cluster:
        ask = lambda expect, **role: cluster.set_role("n1", (3, 3), expect=expect, term=5, **role)
        ask(200, state="replica", source="", by='"one"')
        assert "promised to somebody else" in ask(409, state="replica", source="", by='"other"')
        ask(409, state="active", by='"other"')
        ask(200, state="active", by='"one"', topology=[["n1"]])


def test_a_term_in_which_another_node_may_be_active_makes_nobody_active(kind, tmp_path):
    with Cluster(tmp_path, 2, (f"default,{kind},128MiB",)) as cluster:
        cluster.assign(["n1", "n2"], term=4)
        assert "use a new one" in cluster.set_role("n2", state="active", term=4, expect=409)
        cluster.take_over("n2", "n1", 7, [["n2", "n1"]])
        new, old = roles(cluster, "n2")[7], roles(cluster, "n1")[7]
        assert (new["state"], new["term"], old["term"]) == ("active", 5, 5)
        cluster.set_role("n1", (7, 7), state="active", term=5, expect=409)


def test_a_term_that_began_with_a_take_over_is_not_used_again(kind, tmp_path):
    """n3 takes over from n1, is cut off, and takes plain writes; n1 and n2 promote, and acknowledge durable ones."""
    level = PERSIST_TO_MAJORITY if kind == "persistent" else 1
    with Cluster(tmp_path, 3, (f"default,{kind},128MiB",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        with Client(cluster["n1"]) as client:
            assert client.set(b"before", level=level).status == SUCCESS
        cluster.set_role("n3", (VB, VB), state="pending", source="n1", topology=[["n3", "n1", "n2"]], takeover=True)
        wait_until(lambda: roles(cluster, "n3")[VB]["state"] == "active", "the take-over")
        with Client(cluster["n3"]) as client:
            for number in range(50):
                assert client.set(b"plain-%d" % number).status == SUCCESS
        cluster.pause("n3")
        done = promote(cluster, "n2", "--json", tmp_path=tmp_path)
        assert done.returncode == 0, done
        active = json.loads(done.stdout)["vbuckets"][VB]["chain"][0]
        with Client(cluster[active]) as client:
            for number in range(20):
                assert client.set(b"durable-%d" % number, level=level).status == SUCCESS
        cluster.go_on("n3")
        done = promote(cluster, "n2", "--json", tmp_path=tmp_path)
        assert done.returncode == 0, done
        active = json.loads(done.stdout)["vbuckets"][VB]["chain"][0]
        with Client(cluster[active]) as client:
            assert [client.get(b"durable-%d" % number) for number in range(20)] == [b"value"] * 20


def test_a_node_that_has_lost_its_memory_does_not_answer_for_it(tmp_path):
    """n2 acknowledges in memory, is killed, and comes back; n1 is lost, and n3 has missed it."""
    with Cluster(tmp_path, 3, (), config=SLOW_FLUSHER) as cluster:
        begin(cluster)
        with Client(cluster["n1"]) as client:
            assert client.set(b"before", level=PERSIST_TO_MAJORITY).status == SUCCESS
            cluster.pause("n3")
            assert client.set(b"in memory", level=1).status == SUCCESS
        cluster.pause("n1")
        cluster.kill("n2")
        cluster.go_on("n3")
        cluster.restart("n2")
        assert roles(cluster, "n2")[VB]["may_lack"] == "unwritten"
        done = promote(cluster, "n3", tmp_path=tmp_path)
        assert done.returncode == 1 and "n2: ended without a clean stop" in done.stderr, done
        # It has caught up once n1 is there: also where nothing has been written, or nothing since.
        cluster.go_on("n1")
        wait_until(lambda: not any("may_lack" in role for role in roles(cluster, "n2").values()), "a copy that has everything")
        cluster.kill("n1")
        done = promote(cluster, "n3", "--json", tmp_path=tmp_path)
        assert done.returncode == 0, done
        decided = json.loads(done.stdout)["vbuckets"]
        assert not any(one["mayHaveLost"] for one in decided)
        with Client(cluster[decided[VB]["chain"][0]]) as client:
            assert client.get(b"in memory") == b"value"


def test_what_a_node_may_lack_outlives_a_clean_stop(tmp_path):
    with Cluster(tmp_path, 3, (), config=SLOW_FLUSHER) as cluster:
        begin(cluster)
        cluster.kill("n1")
        cluster.kill("n2")
        for _ in range(2):
            cluster.restart("n2")
            assert {role["may_lack"] for role in roles(cluster, "n2").values()} == {"unwritten"}
            assert cluster["n2"].stop() == 0
        cluster.restart("n1")
        cluster.restart("n2")
        # All are there: what is missing is nowhere.
        done = promote(cluster, "n3", "--json", tmp_path=tmp_path)
        decided = json.loads(done.stdout)["vbuckets"]
        assert all(one["mayHaveLost"] and not one["mayHaveLostPersisted"] for one in decided), decided
        done = promote(cluster, "n3", tmp_path=tmp_path)
        assert "16 vBuckets may have lost" not in done.stdout, "those that were elected answer for all"


def test_a_restored_backup_does_not_answer_for_what_came_after_it(tmp_path):
    with Cluster(tmp_path, 3, (), config=SLOW_FLUSHER) as cluster:
        begin(cluster)
        with Client(cluster["n1"]) as client:
            assert client.set(b"key", b"old", level=PERSIST_TO_MAJORITY).status == SUCCESS
            cluster.wait_equal("n1", "n2")
            status, answer = http(cluster["n2"], "POST", "/pools/default/buckets/default/backup", {"label": "early"})
            assert status == 200, answer
            cluster.pause("n3")
            assert client.set(b"key", b"new", level=PERSIST_TO_MAJORITY).status == SUCCESS
        assert cluster["n2"].stop() == 0
        cluster.kill("n1")
        cluster.go_on("n3")
        here = next(path for path in (tmp_path / "n2").rglob("buckets/default") if path.is_dir())
        shutil.rmtree(here)
        shutil.copytree(json.loads(answer)["directory"], here)
        cluster.restart("n2")
        assert roles(cluster, "n2")[VB]["may_lack"] == "anything"
        done = promote(cluster, "n3", tmp_path=tmp_path)
        assert done.returncode == 1 and "n2: may have forgotten what it had" in done.stderr, done
        cluster.restart("n1")
        done = promote(cluster, "n3", "--json", tmp_path=tmp_path)
        active = json.loads(done.stdout)["vbuckets"][VB]["chain"][0]
        with Client(cluster[active]) as client:
            assert client.get(b"key") == b"new"


def test_an_ephemeral_node_that_comes_back_changes_no_collections(tmp_path):
    """It takes itself for the active. What others have decided meanwhile is in the manifest that it kept."""
    collections = "/pools/default/buckets/default/scopes/_default/collections"
    with Cluster(tmp_path, 3, ("default,ephemeral,128MiB",)) as cluster:
        cluster.assign(["n1", "n2", "n3"])
        wait_begun(cluster, "n2", "n3")
        assert http(cluster["n1"], "POST", collections, "name=before")[0] == 200
        cluster.kill("n1")
        cluster.restart("n1")
        assert roles(cluster, "n1")[VB]["term"] == 0
        for name in ("n1", "n2"):
            status, answer = http(cluster[name], "POST", collections, "name=lost")
            assert status == 503, (name, answer)
            assert "in term 0" in answer, (name, answer)
        assert promote(cluster, "n2", tmp_path=tmp_path).returncode == 0
        assert http(cluster["n1"], "POST", collections, "name=after")[0] == 200
        wait_until(lambda: "after" in http(cluster["n3"], "GET", collections.removesuffix("/_default/collections"))[1], "the change")
