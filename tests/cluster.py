"""Several nodes that copy from each other: roles are set by hand, over HTTP."""

import json
import os
import pathlib
import signal
import struct
import urllib.parse

from tests import dcp, servers
from tests.dcp import Dcp
from tests.frames import SUCCESS
from tests.persistence.bucket import http, wait_until, wait_warm
from tests.relay import Relay

ALL = (0, 1023)


class Cluster:
    """Nodes n1, n2, ...; each has all buckets, and knows of the others by their names."""

    def __init__(self, home, count, buckets=("default,ephemeral,128MiB",), config="", relayed=(), wraps=None):
        """Others reach a node in `relayed` through a relay. `wraps`: command prefixes of nodes."""
        self.home, self.buckets, self.config, self.wraps = pathlib.Path(home), buckets, config, wraps or {}
        self.names = [f"n{number + 1}" for number in range(count)]
        self.nodes = {}
        self.ports = {name: {"kv": servers.free_port(), "http": servers.free_port()} for name in self.names}
        self.relays = {name: Relay(("127.0.0.1", self.ports[name]["kv"])) for name in relayed}
        for name in self.names:
            self.start(name)

    def start(self, name):
        home = self.home / name
        home.mkdir(exist_ok=True)
        config = f"{self.config}\n[replication]\n{self.replication(name)}"
        named = {"ports": self.ports[name], "wrap": self.wraps.get(name, ())}
        self.nodes[name] = servers.Dormouse(*self.arguments(name), home=home, buckets=self.buckets, memory="512MiB", config=config, **named)
        return self.nodes[name]

    def replication(self, name):
        """That section of a node's configuration."""
        peers = " ".join(f"{other}={self.address(other)}" for other in self.names if other != name)
        return f"node = {name!r}\npeers = {peers!r}\n"

    def address(self, name):
        """Where others find it."""
        return f"127.0.0.1:{self.kv_port(name)}/{self.ports[name]['http']}"

    def arguments(self, name):
        """Further arguments of a node."""
        return ()

    def kv_port(self, name):
        """Where others reach it."""
        return self.relays[name].port if name in self.relays else self.ports[name]["kv"]

    def __getitem__(self, name):
        return self.nodes[name]

    def kill(self, name):
        self.nodes[name].kill()

    def restart(self, name):
        node = self.start(name)
        wait_warm(node)
        return node

    def pause(self, name):
        pid = self.nodes[name].pid
        os.kill(pid, signal.SIGSTOP)
        # The signal stops the threads one after the other.
        states = lambda: {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in pathlib.Path(f"/proc/{pid}/task").iterdir()}
        wait_until(lambda: states() == {"T"}, "the pause")

    def go_on(self, name):
        os.kill(self.nodes[name].pid, signal.SIGCONT)

    def stop(self):
        for node in self.nodes.values():
            if node.alive():
                node.process.send_signal(signal.SIGCONT)
            node.stop()
        for relay in self.relays.values():
            if relay.listener.fileno() >= 0:
                relay.stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def set_role(self, name, vbs=ALL, bucket="default", expect=200, **role):
        """Sets the role of some vBuckets on a node: `state`, `source`, `topology`, `term`, `takeover`."""
        form = {field: value if field in ("state", "source") else json.dumps(value) for field, value in role.items()}
        first, last = vbs
        path = f"/pools/default/buckets/{bucket}/vbuckets"
        if first == last:
            path += f"/{first}"
        else:
            form |= {"first": first, "last": last}
        status, body = http(self[name], "POST", path, urllib.parse.urlencode(form))
        assert status == expect, (status, body)
        return body

    def assign(self, chain, vbs=ALL, bucket="default", term=1, without=None):
        """Makes the first node of a chain the active, and the others its replicas, except for one that cannot be reached."""
        active, *replicas = chain
        self.set_role(active, vbs, bucket, state="active", topology=[list(chain)], term=term)
        for name in replicas:
            if name != without:
                self.set_role(name, vbs, bucket, state="replica", source=active, topology=[list(chain)], term=term)

    def take_over(self, new, old, vb, topology):
        """Makes `new` the active of a vBucket, in place of `old`, which becomes its replica."""
        self.set_role(new, (vb, vb), state="pending", source=old, topology=topology, takeover=True)
        wait_until(lambda: self.role(new, vb)["state"] == "active", f"{new} as the active of {vb}")
        assert self.role(old, vb)["state"] == "dead"
        self.set_role(old, (vb, vb), state="replica", source=new, topology=topology, term=self.role(new, vb)["term"])

    def role(self, name, vb, bucket="default"):
        status, body = http(self[name], "GET", f"/pools/default/buckets/{bucket}/vbuckets/{vb}")
        assert status == 200, body
        return json.loads(body)

    def seqnos(self, name, bucket="default"):
        """Highest seqnos by vBucket."""
        with Dcp(self[name].kv, bucket, name=None) as one:
            answer = one.ask(dcp.GET_ALL_VB_SEQNOS)
        assert answer.status == SUCCESS
        return dict(struct.iter_unpack(">HQ", answer.value))

    def wait_equal(self, active, replica, bucket="default", patience_s=30):
        """Waits until a replica has everything."""
        wait_until(lambda: self.seqnos(active, bucket) == self.seqnos(replica, bucket), f"{replica} with everything of {active}", patience_s)

    def content(self, name, vb, bucket="default"):
        """Documents and deletions of a vBucket, as a stream has them: by key the seqno, CAS, value and all else."""
        with Dcp(self[name].kv, bucket, flags=dcp.PRODUCER | dcp.INCLUDE_XATTRS) as one:
            return dcp.content(one, vb)

    def history(self, name, vb, bucket="default"):
        """Id of a vBucket's present history."""
        return self.histories(name, vb, bucket)[0][0]

    def histories(self, name, vb, bucket="default"):
        """Ids of a vBucket's histories, the present one first, and the seqnos that they begin at."""
        with Dcp(self[name].kv, bucket, name=None) as one:
            return dcp.failover_log(one.ask(dcp.GET_FAILOVER_LOG, vbucket=vb).value)

    def assert_equal(self, active, replica, vbs, bucket="default"):
        for vb in vbs:
            # The same seqnos in two histories say nothing.
            wait_until(lambda: self.history(active, vb, bucket) == self.history(replica, vb, bucket), f"the history of {active} on {replica}")
        self.wait_equal(active, replica, bucket)
        for vb in vbs:
            assert self.content(active, vb, bucket) == self.content(replica, vb, bucket), vb
