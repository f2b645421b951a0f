"""Three nodes under faults that overlap, and an operator who promotes by the documented command; histories judged by porcupine.

    python -m tests.soak.nemesis --seconds 1800
    python -m tests.soak.nemesis --seconds 60 --kind ephemeral --seed 3

A storm is some seconds in which one thing after the other happens, whatever else is still going on: nodes are killed, also while they
are refilled, started again, paused; others do not reach one; a file of a journal is cut while its node is down; collections are created
and dropped; `dormouse bucket promote` is run, and may refuse. Meanwhile clients read and write the same few keys durably, others write
much that is not durable, so that the histories of the nodes differ. Nothing is forced. Then all nodes are started and reachable, the
command is run until it succeeds (with --force if a node is damaged; it must say that nothing persisted is lost), and it is checked:

  histories    each key is linearizable
  collections  all nodes have the same; each that was created (200) and not dropped since is there with its document, each that was
               dropped (200) is not; no id was given twice
  equal        all three nodes have the same versions, with seqnos, CAS and all else; none is damaged or empty
  alive        nothing has panicked

What is durable, and so what may happen at once: of a persistent bucket everything is written at level persistToMajority. Any number of
nodes may be killed, and one per storm loses a part of a file. An ephemeral bucket has one killed node at a time, until it is refilled.
A paused active is killed before somebody else is promoted: until it is told, it answers reads with what was (docs/replication.md).
"""

import json
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import threading
import time

from tests.frames import INTERNAL_ERROR, SET, SUCCESS, BinaryConnection, request
from tests.persistence.bucket import http, wait_warm
from tests.terminal.command import Operator
from tests.wire.test_replica_collections import OF_DEFAULT, SCOPES
from tests.wire.test_replica_collections import Client as CollectionsClient

from .histories import AFTERWARDS, CLIENTS, NO_EFFECT, Client, Histories, judge_program
from .replicas import PATIENCE_S, VBUCKETS, kinds_of, kinds_parser, vbucket_of, wait_until

STORM_S = (2.0, 6.0)
BETWEEN_S = 0.35
# Not durable: so many at once, of so many keys, with values of so many bytes.
PLAIN = 100
PLAIN_KEYS = 3000
PLAIN_BYTES = 2000
# The least of a segment that a cut leaves.
HEADER_BYTES = 4096
# Majority, and persistToMajority.
LEVELS = {"ephemeral": (1,), "persistent": (3,)}


class StormClient(Client):
    """Waits where nobody is known to be the active. A vBucket that is damaged is refused."""

    levels, no_effect = LEVELS, (*NO_EFFECT, INTERNAL_ERROR)

    def one(self, key):
        if self.soak.active[vbucket_of(key.encode())] is None:
            time.sleep(0.01)
            return
        super().one(key)


class Plain(threading.Thread):
    """Writes to whoever is the active, without durability."""

    def __init__(self, soak, epoch):
        super().__init__(daemon=True)
        self.soak, self.random, self.ends, self.count = soak, random.Random(f"{soak.seed}/{epoch}/plain"), False, 0

    def run(self):
        value = self.random.randbytes(PLAIN_BYTES)
        while not self.ends:
            name = self.random.choice(self.soak.names)
            mine = [vb for vb, active in self.soak.active.items() if active == name]
            try:
                with BinaryConnection.opened(self.soak.cluster[name].kv) as connection:
                    for _ in range(5 if mine else 0):
                        for _ in range(PLAIN):
                            vb = self.random.choice(mine)
                            key = b"plain-%d-%d" % (vb, self.random.randrange(PLAIN_KEYS // VBUCKETS))
                            connection.send(request(SET, key, value, bytes(8), vbucket=vb))
                        for _ in range(PLAIN):
                            if connection.response() is None:
                                raise ConnectionError("closed")
                            self.count += 1
            except OSError:
                pass
            time.sleep(0.05)


class Nemesis(Histories):
    relayed = ("n1", "n2", "n3")

    def __init__(self, home, options, program):
        self.paused, self.down, self.muted, self.has_cut = set(), set(), set(), False
        super().__init__(home, options, program)
        self.login = pathlib.Path(home) / "password"
        self.login.write_text("password\n")
        # By name: is it there? `None`: nobody was told.
        self.collections, self.documents, self.given = {}, {}, {}
        self.refused = self.promoted = self.plain = 0
        # What has happened in this storm.
        self.events = []
        self.begin()

    def begin(self):
        """Waits until all copies have begun, also on disk: one without a history may have forgotten anything."""
        has_begun = lambda: all(self.role(name, vb)["history_term"] > 0 for name in self.names for vb in range(VBUCKETS))
        wait_until(has_begun, "copies", PATIENCE_S)
        for name in self.names if self.kind == "persistent" else ():
            assert self.cluster[name].stop() == 0
            self.cluster.restart(name)

    def note(self, what):
        self.events.append(f"{time.monotonic():.3f} {what}")

    # ---- faults, which may be called at any moment ----

    def up(self):
        return [name for name in self.names if name not in self.down and name not in self.paused]

    def kill(self):
        if len(self.down) == len(self.names) or self.kind == "ephemeral" and (self.down or self.lost):
            return False
        name = self.random.choice([name for name in self.names if name not in self.down])
        self.kill_one(name)
        return True

    def kill_one(self, name):
        self.note(f"kill {name}")
        self.paused.discard(name)
        self.down.add(name)
        # An ephemeral node comes back empty, and takes itself for the active.
        if self.kind == "ephemeral":
            self.lost.add(name)
            self.fresh.add(name)
            self.active.update({vb: None for vb, active in self.active.items() if active == name})
        self.cluster.kill(name)

    def start(self):
        if not self.down:
            return False
        name = self.random.choice(sorted(self.down))
        self.start_one(name)
        return True

    def start_one(self, name):
        self.note(f"start {name}")
        self.cluster.start(name)
        self.down.discard(name)
        # Sometimes the next fault comes while it reads its journal.
        if self.random.random() < 0.7:
            wait_warm(self.cluster[name])

    def pause(self):
        if not self.up():
            return False
        name = self.random.choice(self.up())
        self.note(f"pause {name}")
        self.cluster.pause(name)
        self.paused.add(name)
        return True

    def go_on(self):
        if not self.paused:
            return False
        name = self.random.choice(sorted(self.paused))
        self.paused.discard(name)
        self.note(f"go on {name}")
        self.cluster.go_on(name)
        return True

    def mute(self):
        name = self.random.choice(self.names)
        relay = self.cluster.relays[name]
        relay.mute = not relay.mute
        self.note(f"mute {name}: {relay.mute}")
        if relay.mute:
            relay.sever()
        return True

    def promote(self):
        """By the documented command, at a node that answers."""
        if not self.up():
            return False
        fenced = [name for name in sorted(self.paused) if name in self.active.values()]
        if fenced and self.kind == "ephemeral" and (len(fenced) > 1 or self.down or self.lost):
            return False
        for name in fenced:
            self.kill_one(name)
        return self.decide(self.random.choice(self.up()))

    def decide(self, name, *options):
        done = Operator(self.cluster[name], "Administrator", self.login).run("bucket", "promote", "default", "--json", *options)
        self.note(f"promote, asking {name}: {done.returncode} {done.stderr or done.stdout}".replace(" ", "").replace("\n", ""))
        if done.returncode != 0:
            self.refused += 1
            self.why = done.stderr
            return True
        self.promoted += 1
        decided = json.loads(done.stdout)
        self.fresh -= {node["node"] for node in decided["nodes"] if node["error"] is None}
        for one in decided["vbuckets"]:
            self.active[one["vbucket"]] = one["chain"][0]
            if one["mayHaveLostPersisted" if self.kind == "persistent" else "mayHaveLost"]:
                self.problems.append(f"promoted without being forced, and may have lost something: {one}")
        return True

    def cut(self):
        """A node is killed, and a part of its journal is gone when it comes back."""
        if self.kind == "ephemeral" or self.has_cut:
            return False
        name = self.random.choice(self.names)
        if name not in self.down:
            self.kill_one(name)
        segments = sorted((self.cluster.home / name).rglob("*.segment"))
        segments = [path for path in segments if path.stat().st_size > 2 * HEADER_BYTES]
        if not segments:
            return False
        path = self.random.choice(segments)
        used = len(path.read_bytes().rstrip(b"\0"))
        with open(path, "r+b") as file:
            file.truncate(self.random.randrange(HEADER_BYTES, max(used, HEADER_BYTES + 1)))
        self.has_cut = True
        self.note(f"cut {path} to {path.stat().st_size} of {used}")
        if self.random.random() < 0.5:
            self.start_one(name)
        return True

    def told(self):
        """Nodes that know their roles: an ephemeral one that was killed does not until it is told."""
        return [name for name in self.up() if name not in self.fresh]

    def create(self):
        if not self.told():
            return False
        name = f"c{len(self.collections)}"
        node = self.random.choice(self.told())
        self.collections[name] = None
        if self.change(node, "POST", OF_DEFAULT, f"name={name}") == 200:
            self.collections[name] = True
            self.write_document(name)
        return True

    def write_document(self, name):
        node = self.active[0]
        try:
            uid = self.ids(node).get(name) if node else None
            if uid is None:
                return
            with CollectionsClient(self.cluster[node]) as client:
                value = name.encode() * 10
                if client.set(uid, b"document", value, level=LEVELS[self.kind][0], vb=0, timeout_ms=2000) == SUCCESS:
                    self.documents[name] = value
        except (OSError, AssertionError, struct.error):
            pass

    def drop(self):
        there = [name for name, is_there in self.collections.items() if is_there]
        if not there or not self.told():
            return False
        name = self.random.choice(there)
        self.collections[name] = None
        if self.change(self.random.choice(self.told()), "DELETE", f"{OF_DEFAULT}/{name}") == 200:
            self.collections[name] = False
        return True

    def change(self, node, *arguments):
        """The status of a request; `None`: no answer."""
        begun = time.monotonic()
        try:
            answer = http(self.cluster[node], *arguments)
        except OSError as error:
            answer = None, str(error)
        self.note(f"{arguments} at {node}, asked at {begun:.3f}: {answer}")
        return answer[0]

    def ids(self, name):
        """Ids of the collections of a node by their names."""
        status, body = http(self.cluster[name], "GET", SCOPES)
        assert status == 200, body
        scopes = json.loads(body)["scopes"]
        return {one["name"]: int(one["uid"], 16) for scope in scopes for one in scope["collections"] if one["name"].startswith("c")}

    # ---- a storm, and what is left of it ----

    def storm(self, ends):
        faults = [self.kill, self.start, self.start, self.pause, self.go_on, self.go_on, self.mute, self.promote, self.promote, self.cut,
                  self.create, self.create, self.drop]
        self.has_cut, self.lost, self.fresh, self.events = False, set(), set(), []
        while time.monotonic() < ends:
            time.sleep(self.random.random() * BETWEEN_S)
            fault = self.random.choice(faults)
            try:
                happened = fault()
            except (OSError, AssertionError):
                # To be refused amid faults is no problem; a node that ends by itself is.
                happened = True
            if happened:
                self.faults[fault.__name__] = self.faults.get(fault.__name__, 0) + 1
            for name in self.names:
                if name not in self.down and not self.cluster[name].alive():
                    self.problems.append(f"{name} ended: {self.cluster[name].log()}")
                    return

    def heal(self):
        for relay in self.cluster.relays.values():
            relay.mute = False
        for name in sorted(self.paused):
            self.cluster.go_on(name)
        self.paused.clear()
        for name in sorted(self.down):
            self.cluster.start(name)
        self.down.clear()
        for name in self.names:
            wait_warm(self.cluster[name])
        # An ephemeral node that came back takes itself for the active: clients wait for the decision.
        before, self.why = self.promoted, ""

        # With one node damaged and the others killed, all that is on disk is there, and it takes --force to say so.
        is_damaged = any(self.damaged(name) for name in self.names)

        def decided():
            self.decide(self.names[0], *(("--force",) if is_damaged else ()))
            return self.promoted > before

        try:
            wait_until(decided, "a promotion of what is left", PATIENCE_S)
        except AssertionError:
            self.problems.append(f"with all nodes there the command refuses: {self.why}")

    def damaged(self, name):
        """The vBuckets of a node that are damaged."""
        return [vb for vb in range(VBUCKETS) if self.role(name, vb).get("damaged")]

    def replace_damaged(self):
        """As docs/persistence.md says: the files of a node that is damaged are moved away, and it becomes a replica."""
        for name in self.names:
            if self.damaged(name):
                self.faults["damaged node"] = self.faults.get("damaged node", 0) + 1
                self.cluster.kill(name)
                shutil.rmtree(self.bucket_directory(name))
                self.cluster.restart(name)
                self.decide(self.random.choice(self.names))

    def bucket_directory(self, name):
        (directory,) = (path for path in (self.cluster.home / name).rglob("default") if path.is_dir())
        return directory

    def check_rest(self):
        for vb, active in self.active.items():
            for name in self.names:
                if name != active and not self.is_equal(vb, active, name):
                    self.problems.append(f"vBucket {vb} of {name} is not that of {active}: {self.role(active, vb)} {self.role(name, vb)}")
                    return
        for name in self.names:
            for vb in range(VBUCKETS):
                role = self.role(name, vb)
                if role.get("damaged") or role.get("emptied"):
                    self.problems.append(f"vBucket {vb} of {name}: {role}")
            if "panicked" in self.cluster[name].log():
                self.problems.append(f"a panic of {name}: {self.cluster[name].log()}")

    def check_collections(self):
        node = self.active[0]
        try:
            wait_until(lambda: len({tuple(sorted(self.ids(name).items())) for name in self.names}) == 1, "the same collections", PATIENCE_S)
        except AssertionError:
            self.problems.append(f"different collections: {[self.ids(name) for name in self.names]}")
            return
        ids = self.ids(node)
        for name, uid in ids.items():
            if self.given.setdefault(uid, name) != name:
                self.problems.append(f"id {uid} was given to {self.given[uid]} and to {name}")
        for name, is_there in list(self.collections.items()):
            if is_there is not None and is_there != (name in ids):
                self.problems.append(f"collection {name} is {'missing' if is_there else 'back'}")
            self.collections[name] = name in ids
        with CollectionsClient(self.cluster[node]) as client:
            for name, value in self.documents.items():
                if name in ids:
                    read = lambda: client.get(ids[name], b"document", vb=0)
                    try:
                        wait_until(lambda: read() == value, "a document", 5)
                    except AssertionError:
                        self.problems.append(f"the document of collection {name} is {read()}")

    def run(self, seconds):
        ends, epoch = time.monotonic() + seconds, 0
        while (time.monotonic() < ends or epoch == 0) and not self.problems:
            epoch += 1
            clients = [StormClient(number, self, epoch) for number in range(CLIENTS)]
            plain = Plain(self, epoch)
            for one in [*clients, plain]:
                one.start()
            self.storm(time.monotonic() + self.random.uniform(*STORM_S))
            if self.problems:
                return
            self.heal()
            counts = [client.done for client in clients]
            done = lambda: all(client.done >= count + AFTERWARDS or client.problem for client, count in zip(clients, counts))
            try:
                wait_until(done, "clients that are served", PATIENCE_S)
            except AssertionError as error:
                self.problems.append(str(error))
            for one in [*clients, plain]:
                one.ends = True
            for one in [*clients, plain]:
                one.join(PATIENCE_S)
            self.plain += plain.count
            self.problems += [repr(client.problem) for client in clients if client.problem]
            self.judge(clients, f"storm {epoch}")
            if not self.problems:
                self.replace_damaged()
                self.check_rest()
                self.check_collections()


def run(kind, seed, seconds, program, keep=None):
    """Returns the finished run; its problems are what was found."""
    options = kinds_parser("", "").parse_args(["--kind", kind, "--seed", str(seed)])
    home = tempfile.mkdtemp(prefix="dormouse-nemesis-")
    nemesis = Nemesis(home, options, program)
    try:
        nemesis.run(seconds)
    finally:
        nemesis.cluster.stop()
    if nemesis.problems:
        print("\n".join(nemesis.events))
    if nemesis.problems and keep:
        print(f"files: {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return nemesis


def main(arguments):
    parser = kinds_parser("tests.soak.nemesis", __doc__)
    parser.add_argument("--seconds", type=int, default=1800)
    parser.add_argument("--keep", action="store_true", help="keep the nodes' files")
    options = parser.parse_args(arguments)
    kinds = kinds_of(options)
    print(f"nemesis: seed {options.seed}, {options.seconds} s", flush=True)
    problems = []
    with tempfile.TemporaryDirectory(prefix="dormouse-judge-") as directory:
        program = judge_program(directory)
        for kind in kinds:
            done = run(kind, options.seed, options.seconds / len(kinds), program, options.keep)
            faults = ", ".join(f"{name} {count}" for name, count in sorted(done.faults.items()))
            print(f"{kind}: {done.operations} operations, {done.unknown} without an answer, {done.plain} plain writes; "
                  f"{done.promoted} promotions, {done.refused} refused; {len(done.collections)} collections; faults: {faults}", flush=True)
            problems += [f"{kind}: {text}" for text in done.problems]
    for text in problems:
        print(f"PROBLEM: {text}")
    print("nemesis: " + (f"{len(problems)} problems" if problems else "nothing lost"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
