"""Replicas whose nodes connect to each other with TLS."""

import base64
import hashlib
import hmac
import json
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests import servers
from tests.cluster import Cluster
from tests.frames import AUTH_CONTINUE, AUTH_ERROR, GET, SASL_AUTH, SASL_LIST, SASL_STEP, SUCCESS, BinaryConnection
from tests.persistence.bucket import http, wait_until
from tests.persistence.peer import Peer
from tests.tls.authority import Authority
from tests.wire.test_replicas import VB, Client

NO_PORT = "replication.peers has no KV port with TLS for it"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


class Encrypted(Cluster):
    """Its nodes know of no port of each other without TLS, unless `knows_plain`."""

    def __init__(self, home, authority, count=2, identities=None, config="", host="127.0.0.1", knows_plain=False, **options):
        """`identities`: certificates and keys of nodes that have others than the usual; None: none, and no ports with TLS."""
        self.identities, self.ca, usual = identities or {}, home / "ca.pem", authority.sign("node")
        self.host, self.knows_plain = host, knows_plain
        shutil.copy(authority.certificate, self.ca)
        self.usual = usual
        self.encrypted = {f"n{number + 1}": {"kv": servers.free_port(), "http": servers.free_port()} for number in range(count)}
        super().__init__(home, count, config=config, **options)

    def replication(self, name):
        return super().replication(name) + f"ca = {str(self.ca)!r}\n"

    def address(self, name):
        kv, http = self.encrypted[name].values()
        plain = super().address(name).partition(":")[2] if self.knows_plain else "0"
        return f"{self.host}:{plain},{kv}/{http}"

    def arguments(self, name):
        if (identity := self.identities.get(name, self.usual)) is None:
            return ()
        certificate, key = map(str, identity)
        kv, http = self.encrypted[name].values()
        ports = ("--kv-tls-address", f"127.0.0.1:{kv}", "--http-tls-address", f"127.0.0.1:{http}")
        return (*ports, "--tls-certificate", certificate, "--tls-key", key)


def logged(node, words):
    wait_until(lambda: words in node.log(), words)


def links(cluster):
    """Who follows n1."""
    with Peer(cluster["n1"].kv, vbuckets=1024) as one:
        return " ".join(one.statistics(b"dcp"))


def assert_nothing_is_copied(cluster):
    """Although there is something on n1, and n2 has had time for several attempts."""
    with Client(cluster["n1"]) as client:
        assert client.set(b"key").status == SUCCESS
        time.sleep(1)
    assert "replication:" not in links(cluster)
    assert cluster.role("n2", VB)["complete_seqno"] == 0
    assert all(node.alive() for node in cluster.nodes.values())


@pytest.mark.parametrize("kind", ("ephemeral", "persistent"))
def test_replicas_over_tls_have_everything(tmp_path, authority, kind):
    with Encrypted(tmp_path, authority, buckets=(f"default,{kind},128MiB",)) as cluster:
        cluster.assign(["n1", "n2"])
        with Client(cluster["n1"]) as client:
            for number in range(2000):
                assert client.set(b"key-%d" % number, b"v" * (number * 7 % 3000)).status == SUCCESS
            assert client.set(b"large", b"x" * 15_000_000).status == SUCCESS
            assert client.set(b"durable", level=1, timeout_ms=60_000).status == SUCCESS, "the replica has acknowledged it"
        cluster.assert_equal("n1", "n2", [VB])
        cluster.take_over("n2", "n1", VB, [["n2", "n1"]])
        with Client(cluster["n2"]) as client:
            assert client.ask(GET, b"large", vbucket=VB).value == b"x" * 15_000_000
            assert client.set(b"back", level=1, timeout_ms=60_000).status == SUCCESS
        cluster.assert_equal("n2", "n1", [VB])


def test_maps_show_the_ports_with_tls(tmp_path, authority):
    with Encrypted(tmp_path, authority) as cluster:
        cluster.assign(["n1", "n2"])
        status, body = http(cluster["n1"], "GET", "/pools/default/b/default")
        assert status == 200
        [other] = [node for node in json.loads(body)["nodesExt"] if not node.get("thisNode")]
        ports = cluster.encrypted["n2"]
        assert other["services"] == {"kv": 0, "kvSSL": ports["kv"], "mgmtSSL": ports["http"]}
        assert other["hostname"] == "127.0.0.1"


def asking_for_certificates(authority):
    return f"[tls]\nclient_certificates = 'required'\nclient_ca = {str(authority.certificate)!r}\n"


def test_nodes_that_ask_for_certificates_are_shown_ones(tmp_path, authority):
    with Encrypted(tmp_path, authority, config=asking_for_certificates(authority)) as cluster:
        cluster.assign(["n1", "n2"])
        with Client(cluster["n1"]) as client:
            assert client.set(b"durable", level=1, timeout_ms=60_000).status == SUCCESS


def test_nodes_without_a_certificate_are_told_so(tmp_path, authority):
    with Encrypted(tmp_path, authority, identities={"n2": None}, config=asking_for_certificates(authority)) as cluster:
        cluster.assign(["n1", "n2"])
        logged(cluster["n2"], "received fatal alert: CertificateRequired")
        assert_nothing_is_copied(cluster)
        # Once, not at each attempt.
        assert cluster["n2"].log().count("received fatal alert") == 1


def test_hosts_may_have_names(tmp_path, authority):
    with Encrypted(tmp_path, authority, host="localhost", knows_plain=True) as cluster:
        cluster.assign(["n1", "n2"])
        with Client(cluster["n1"]) as client:
            assert client.set(b"durable", level=1, timeout_ms=60_000).status == SUCCESS


def test_nobody_is_copied_whose_authority_is_unknown(tmp_path, authority):
    stranger = Authority(tmp_path, "stranger")
    with Encrypted(tmp_path, authority, identities={"n1": stranger.sign("node")}, knows_plain=True) as cluster:
        cluster.assign(["n1", "n2"])
        logged(cluster["n2"], "TLS handshake: invalid peer certificate: UnknownIssuer")
        assert_nothing_is_copied(cluster)
        # Trusted from the next attempt on.
        cluster.ca.write_bytes(authority.certificate.read_bytes() + stranger.certificate.read_bytes())
        cluster["n2"].process.send_signal(signal.SIGHUP)
        cluster.wait_equal("n1", "n2")
        # A file that cannot be used changes nothing.
        cluster.ca.write_text("nothing")
        cluster["n2"].process.send_signal(signal.SIGHUP)
        logged(cluster["n2"], "configuration not reloaded: replication.ca: ")
        cluster.set_role("n2", state="dead")
        wait_until(lambda: "replication:" not in links(cluster), "the end of the connection")
        cluster.set_role("n2", state="replica", source="n1")
        with Client(cluster["n1"]) as client:
            assert client.set(b"durable", level=1, timeout_ms=60_000).status == SUCCESS


@pytest.mark.parametrize(
    ("signed", "said"),
    (({"hosts": "DNS:other.example,IP:127.0.0.2"}, "certificate not valid for name"), ({"days": -1}, "Expired")),
)
def test_nobody_is_copied_whose_certificate_is_anothers_or_old(tmp_path, authority, signed, said):
    with Encrypted(tmp_path, authority, identities={"n1": authority.sign("other", **signed)}, knows_plain=True) as cluster:
        cluster.assign(["n1", "n2"])
        logged(cluster["n2"], "TLS handshake: invalid peer certificate: " + said)
        assert_nothing_is_copied(cluster)
        # Once, although the time is told.
        assert cluster["n2"].log().count("TLS handshake") == 1


def test_nobody_is_asked_in_the_clear_where_there_is_no_port_with_tls(tmp_path, authority):
    with Encrypted(tmp_path, authority, identities={"n1": None}, knows_plain=True) as cluster:
        cluster.assign(["n1", "n2"])
        logged(cluster["n2"], "cannot connect to a node")
        assert_nothing_is_copied(cluster)


def test_no_port_without_tls_is_used(tmp_path, authority):
    """A full administrator may name any address as a source; it is not asked in the clear."""
    with Encrypted(tmp_path, authority) as cluster:
        plain = "127.0.0.1:%d" % cluster["n1"].kv[1]
        with Client(cluster["n1"]) as client:
            assert client.set(b"key").status == SUCCESS
        cluster.set_role("n2", state="replica", source=plain, topology=[[plain, "n2"]], term=1)
        logged(cluster["n2"], NO_PORT)
        assert cluster.role("n2", VB)["complete_seqno"] == 0


def test_a_plain_port_is_noticed(tmp_path, authority):
    with Encrypted(tmp_path, authority) as cluster:
        other = cluster["n1"].kv[1]
        peers = f"n1=127.0.0.1:0,{other}"
        cluster["n2"].stop()
        home = tmp_path / "n3"
        home.mkdir()
        with servers.Dormouse(
            home=home, memory="256MiB", config=f"[replication]\nnode = 'n3'\npeers = {peers!r}\nca = {str(cluster.ca)!r}\n"
        ) as node:
            cluster.nodes["n3"] = node
            cluster.set_role("n3", state="replica", source="n1", topology=[["n1", "n3"]], term=1)
            logged(node, "TLS handshake: ")
            assert node.alive() and cluster["n1"].alive()
            del cluster.nodes["n3"]


@pytest.mark.parametrize(
    ("replication", "said"),
    (
        ("peers = 'n2=10.0.0.2:0'", "replication.peers = \"n2=10.0.0.2:0\""),
        ("peers = 'n2=10.0.0.2:11210,0'", "replication.peers = \"n2=10.0.0.2:11210,0\""),
        ("peers = 'n2=10.0.0.2:11210,11207/x'", "replication.peers = \"n2=10.0.0.2:11210,11207/x\""),
        ("peers = 'n2=10.0.0.2:0,11207'", "replication.peers: \"n2\" has no KV port without TLS; allowed: one before the comma, or replication.ca"),
        ("peers = 'n2=10.0.0.2:11210'\nca = 'ca.pem'", "replication.peers: \"n2\" has no KV port with TLS, which replication.ca asks for; allowed: "),
        ("peers = 'n2=10.0.0.2:1,2'\nca = '/nowhere/ca.pem'", "replication.ca: /nowhere/ca.pem: "),
    ),
)
def test_mistakes_in_the_configuration_are_named(tmp_path, replication, said):
    config = tmp_path / "dormouse.toml"
    config.write_text(f"[replication]\nnode = 'n1'\n{replication}\n")
    ports = ("--memcached", "none", "--kv", "127.0.0.1:0", "--http", "none")
    command = [servers.dormouse_binary(), "serve", "--config", str(config), "--data", str(tmp_path / "data"), *ports]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr, done.stderr


class Between:
    """A node with a certificate of the authority, which hands what it is told on to another, over TLS as well."""

    def __init__(self, authority, target):
        self.authority, self.target = authority, target
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*map(str, authority.sign("between")))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.relayed = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client = self.context.wrap_socket(self.listener.accept()[0], server_side=True)
                node = self.authority.context().wrap_socket(socket.create_connection(("127.0.0.1", self.target())), server_hostname="127.0.0.1")
            except OSError:
                if self.listener.fileno() < 0:
                    return
                continue
            for one, other in ((client, node), (node, client)):
                threading.Thread(target=self._hand_on, args=(one, other), daemon=True).start()

    def _hand_on(self, one, other):
        try:
            while data := one.recv(1 << 16):
                other.sendall(data)
                self.relayed += len(data)
        except OSError:
            pass
        for end in (one, other):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def test_a_login_cannot_be_relayed(tmp_path, authority):
    """The node that stands between has a certificate in order, and would be logged in with another's password."""

    class Relayed(Encrypted):
        def address(self, name):
            address = super().address(name)
            return address.replace(f",{self.encrypted[name]['kv']}/", f",{between.port}/") if name == "n1" else address

    between = Between(authority, lambda: cluster.encrypted["n1"]["kv"])
    with Relayed(tmp_path, authority) as cluster:
        cluster.assign(["n1", "n2"])
        logged(cluster["n2"], "it answers SASL_STEP with AUTH_ERROR")
        assert between.relayed > 0
        assert_nothing_is_copied(cluster)
    between.stop()


@pytest.mark.parametrize("version", (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
def test_clients_can_bind_their_login_to_the_certificate(tmp_path, authority, version):
    with Encrypted(tmp_path, authority, count=1) as cluster:
        certificate = ssl.PEM_cert_to_DER_cert(cluster.usual[0].read_text())
        context = authority.context(newest=version)
        for end_point, status in ((hashlib.sha256(certificate).digest(), SUCCESS), (hashlib.sha256(b"another").digest(), AUTH_ERROR)):
            with BinaryConnection(("127.0.0.1", cluster.encrypted["n1"]["kv"])) as one:
                one.socket = context.wrap_socket(one.socket, server_hostname="127.0.0.1")
                one.reader = one.socket.makefile("rb")
                assert one.socket.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]
                assert b"SCRAM-SHA512-PLUS" in one.ask(SASL_LIST).value.split()
                assert scram_plus(one, "Administrator", b"password", end_point) == status
        with BinaryConnection(cluster["n1"].kv) as one:
            assert b"PLUS" not in one.ask(SASL_LIST).value
            assert one.ask(SASL_AUTH, b"SCRAM-SHA512-PLUS", b"p=tls-server-end-point,,n=Administrator,r=abc").status == AUTH_ERROR


def scram_plus(one, user, password, end_point):
    """Logs in with SCRAM, bound to a certificate of this hash; returns the status."""
    mechanism, header = b"SCRAM-SHA512-PLUS", b"p=tls-server-end-point,,"
    bare = b"n=%s,r=nonce" % user.encode()
    challenge = one.ask(SASL_AUTH, mechanism, header + bare)
    assert challenge.status == AUTH_CONTINUE, challenge
    nonce, salt, rounds = (part[2:] for part in challenge.value.split(b","))
    salted = hashlib.pbkdf2_hmac("sha512", password, base64.b64decode(salt), int(rounds))
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    without_proof = b"c=%s,r=%s" % (base64.b64encode(header + end_point), nonce)
    signature = hmac.digest(hashlib.sha512(client_key).digest(), b",".join((bare, challenge.value, without_proof)), "sha512")
    proof = bytes(one ^ other for one, other in zip(client_key, signature))
    return one.ask(SASL_STEP, mechanism, without_proof + b",p=" + base64.b64encode(proof)).status


def test_no_other_machine_is_reached_without_tls(tmp_path):
    """Neither to copy from it, nor to send a client's login on to it."""
    # Addresses of documentation, where nobody is.
    config = "[replication]\nnode = 'n2'\npeers = 'n1=192.0.2.1:11210/8091 n3=[2001:db8::1]:11210/8091'\n"
    with servers.Dormouse(config=config, buckets=("default,ephemeral,128MiB", "other,ephemeral,128MiB")) as node:
        for bucket, peer, address in (("default", "n1", "192.0.2.1"), ("other", "n3", "2001:db8::1")):
            path = f"/pools/default/buckets/{bucket}"
            form = urllib.parse.urlencode({"state": "replica", "source": peer, "topology": json.dumps([[peer, "n2"]])})
            assert http(node, "POST", f"{path}/vbuckets", form)[0] == 200
            logged(node, f"replication.ca is needed, for TLS: {address} is not this machine")
            status, body = http(node, "POST", f"{path}/scopes", "name=more")
            assert status == 409 and "another machine" in body, (status, body)


class PlainBetween(Encrypted):
    """Clients may use TLS; the nodes do not."""

    def replication(self, name):
        return Cluster.replication(self, name)

    def address(self, name):
        return Cluster.address(self, name)


def test_a_login_that_came_with_tls_is_not_sent_on_without(authority, tmp_path):
    """A change of collections on a node that does not make it, which would send the request on."""
    path = "/pools/default/buckets/default/scopes/_default/collections"
    with PlainBetween(tmp_path, authority) as cluster:
        cluster.assign(["n1", "n2"])
        login = "Basic " + base64.b64encode(b"Administrator:password").decode()
        address = f"https://127.0.0.1:{cluster.encrypted['n2']['http']}{path}"
        request = urllib.request.Request(address, b"name=secret", {"Authorization": login})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, context=authority.context(), timeout=30)
        assert refused.value.code == 409, refused.value.read()
        assert "secret" not in http(cluster["n1"], "GET", path.rpartition("/_default")[0])[1]
        assert http(cluster["n2"], "POST", path, {"name": "open"})[0] == 200
