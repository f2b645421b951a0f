"""TLS on the ports for memcached clients, Couchbase SDKs and HTTP."""

import json
import pathlib
import resource
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.request
from datetime import timedelta

import pytest
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions
from pymemcache.client.base import Client

from tests import frames, servers
from tests.tls.authority import Authority, openssl

SOON_S = 20
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


def node_with(authority, *arguments, certificate=None, **options):
    certificate, key = certificate or authority.sign("node")
    ports = ("--memcached", "tls:127.0.0.1:0", "--kv-tls-address", "127.0.0.1:0", "--http-tls-address", "127.0.0.1:0")
    return servers.Dormouse(*ports, "--tls-certificate", str(certificate), "--tls-key", str(key), *arguments, **options)


@pytest.fixture(scope="module")
def node(authority):
    with node_with(authority) as node:
        yield node


def port_of(node, kind):
    entry = node.endpoints["tls"][kind][0]
    return servers.split_address(entry["address"] if kind == "memcached" else entry)


def connect(node, context, kind="memcached"):
    address = port_of(node, kind)
    return context.wrap_socket(socket.create_connection(address, timeout=60), server_hostname=address[0])


def logged(node, words):
    deadline = time.monotonic() + SOON_S
    while words not in node.log() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert words in node.log()


@pytest.mark.parametrize("version", VERSIONS)
def test_text_in_both_versions(node, authority, version):
    with connect(node, authority.context(newest=version)) as client:
        assert client.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]
        lines = client.makefile("rwb")
        for size in (0, 1, 16_384, 100_000, 1_000_000):
            value = bytes(number * 7 % 251 for number in range(size))
            lines.write(b"set k 5 0 %d\r\n%b\r\nget k\r\n" % (size, value))
            lines.flush()
            assert lines.readline() == b"STORED\r\n"
            assert lines.readline() == b"VALUE k 5 %d\r\n" % size
            assert lines.read(size + 2) == value + b"\r\n"
            assert lines.readline() == b"END\r\n"


def test_binary_and_meta(node, authority):
    with connect(node, authority.context()) as client:
        client.sendall(frames.request(0x01, key=b"b", extras=bytes(8), value=b"abc") + frames.request(0x00, key=b"b"))
        data = b""
        while len(data) < 24 + 24 + 4 + 3:
            data += client.recv(4096)
        assert data.endswith(b"abc")
    with connect(node, authority.context()) as client:
        client.sendall(b"mg b v\r\n")
        assert client.recv(4096) == b"VA 3\r\nabc\r\n"


def test_pymemcache(node, authority):
    client = Client(port_of(node, "memcached"), tls_context=authority.context(), timeout=20)
    assert client.set("p", b"x" * 100_000, noreply=False)
    assert client.get("p") == b"x" * 100_000
    assert client.get_many([f"none{number}" for number in range(1000)] + ["p"]) == {"p": b"x" * 100_000}
    client.close()


def test_statistics_say_which_port_is_encrypted(node, authority):
    encrypted = Client(port_of(node, "memcached"), tls_context=authority.context(), timeout=20)
    for client, said in ((Client(node.memcached, timeout=20), b"no"), (encrypted, b"yes")):
        assert client.stats("settings")[b"ssl_enabled"] == said
        client.close()


def test_a_peer_that_is_slow_to_read_gets_everything(node, authority):
    with connect(node, authority.context()) as client:
        lines = client.makefile("rwb")
        lines.write(b"set slow 0 0 500000 noreply\r\n" + b"y" * 500_000 + b"\r\n" + b"get slow\r\n" * 40)
        lines.flush()
        time.sleep(1)
        for _ in range(40):
            assert lines.readline() == b"VALUE slow 0 500000\r\n"
            assert lines.read(500_002) == b"y" * 500_000 + b"\r\n"
            assert lines.readline() == b"END\r\n"
        lines.write(b"mn\r\n")
        lines.flush()
        assert lines.readline() == b"MN\r\n"


def test_many_connections_at_once(node, authority):
    context = authority.context()
    failed = []

    def work(number):
        try:
            for _ in range(5):
                with connect(node, context) as client:
                    key = b"many%d" % number
                    client.sendall(b"set %b 0 0 3\r\nabc\r\nget %b\r\n" % (key, key))
                    data = b""
                    while not data.endswith(b"END\r\n"):
                        data += client.recv(4096)
                    assert data == b"STORED\r\nVALUE %b 0 3\r\nabc\r\nEND\r\n" % key
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_https_and_the_map(node, authority):
    host, port = port_of(node, "http")
    with urllib.request.urlopen(f"https://{host}:{port}/health", context=authority.context(), timeout=20) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"https://{host}:{port}/pools/default/nodeServices", context=authority.context(), timeout=20) as answer:
        services = json.load(answer)["nodesExt"][0]["services"]
    assert services["kvSSL"] == port_of(node, "kv")[1] and services["mgmtSSL"] == port
    assert services["kv"] == node.kv[1] and services["mgmt"] == node.http[1]


def test_the_sdk_over_couchbases(node, authority):
    host, port = port_of(node, "kv")
    options = ClusterOptions(PasswordAuthenticator("Administrator", "password"), trust_store_path=str(authority.certificate))
    cluster = Cluster(f"couchbases://{host}:{port}", options)
    try:
        cluster.wait_until_ready(timedelta(seconds=20))
        collection = cluster.bucket("default").default_collection()
        collection.upsert("doc", {"text": "z" * 50_000})
        assert collection.get("doc").content_as[dict] == {"text": "z" * 50_000}
        assert [collection.get("doc").cas for _ in range(200)]
    finally:
        cluster.close()


def test_old_versions_are_refused(node):
    host, port = port_of(node, "kv")
    for version in ("-tls1", "-tls1_1"):
        command = ["openssl", "s_client", "-connect", f"{host}:{port}", version, "-cipher", "ALL:@SECLEVEL=0"]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert result.returncode != 0 and b"alert" in result.stderr, result.stderr


def test_whoever_speaks_the_wrong_one_is_closed_and_named(authority):
    with node_with(authority) as node:
        for kind in ("memcached", "kv"):
            with socket.create_connection(port_of(node, kind), timeout=20) as plain:
                plain.sendall(b"version\r\n")
                # An alert, then the end of the stream.
                assert plain.recv(100)[:1] == b"\x15"
                assert plain.recv(100) == b""
        logged(node, "the TLS handshake failed: the peer does not speak TLS")
    with node_with(authority) as node:
        # Clients name the mistake: the answer is no TLS.
        for address in (node.memcached, node.kv, node.http):
            with socket.create_connection(address, timeout=20) as socket_, pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
                authority.context().wrap_socket(socket_, server_hostname="127.0.0.1")
        logged(node, "it speaks TLS to a port that does not")
        with socket.create_connection(node.memcached, timeout=20) as plain:
            plain.sendall(b"mn\r\n")
            assert plain.recv(100) == b"MN\r\n"


def test_a_certificate_is_renewed_without_an_end(authority, tmp_path):
    certificate, key = tmp_path / "node.pem", tmp_path / "node.key"

    def renew(files):
        for source, target in zip(files, (certificate, key), strict=True):
            target.write_bytes(pathlib.Path(source).read_bytes())

    renew(authority.sign("first"))
    with node_with(authority, certificate=(certificate, key)) as node:
        context = authority.context()
        with connect(node, context) as old:
            assert ("commonName", "first") in [entry[0] for entry in old.getpeercert()["subject"]]
            renew(authority.sign("second"))
            node.process.send_signal(signal.SIGHUP)
            logged(node, "configuration read again")
            for kind in ("memcached", "kv", "http"):
                with connect(node, context, kind) as new:
                    assert ("commonName", "second") in [entry[0] for entry in new.getpeercert()["subject"]]
            old.sendall(b"mn\r\n")
            assert old.recv(100) == b"MN\r\n"
            key.write_text("nothing")
            node.process.send_signal(signal.SIGHUP)
            logged(node, f"configuration not reloaded: tls: {key}: there is no private key in it")
            with connect(node, context) as new:
                assert ("commonName", "second") in [entry[0] for entry in new.getpeercert()["subject"]]


def test_clients_show_certificates_if_they_must(authority, tmp_path):
    stranger = Authority(tmp_path, "stranger")
    known, unknown = authority.sign("client"), stranger.sign("client")
    for asked, expected in (("optional", [True, True, False]), ("required", [False, True, False])):
        config = f'[tls]\nclient_ca = "{authority.certificate}"\nclient_certificates = "{asked}"\n'
        with node_with(authority, config=config) as node:
            served = []
            for identity in (None, known, unknown):
                try:
                    with connect(node, authority.context(identity)) as client:
                        client.sendall(b"mn\r\n")
                        served.append(client.recv(100) == b"MN\r\n")
                except (ssl.SSLError, ConnectionError):
                    served.append(False)
            assert served == expected, asked


def test_ports_ask_for_certificates_each_in_its_own_way(authority, tmp_path):
    key = authority.sign("client")
    config = (f'[tls]\nclient_ca = "{authority.certificate}"\nclient_certificates = "required"\n'
              '[[memcached]]\naddress = "127.0.0.1:0"\n'
              '[[memcached]]\naddress = "127.0.0.1:0"\ntls = true\nclient_certificates = "none"\n'
              '[kv]\nclient_certificates = "tls"\n[http]\nclient_certificates = "optional"\n')
    certificate, node_key = tmp_path / "node.pem", tmp_path / "node.key"

    def renew(name):
        for source, target in zip(authority.sign(name), (certificate, node_key), strict=True):
            target.write_bytes(pathlib.Path(source).read_bytes())

    renew("first")
    ports = ("--kv-tls-address", "127.0.0.1:0", "--http-tls-address", "127.0.0.1:0")
    files = ("--tls-certificate", str(certificate), "--tls-key", str(node_key))
    requests = {"memcached": b"mn\r\n", "kv": frames.request(0x0A), "http": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"}
    with servers.Dormouse(*ports, *files, ports={"memcached": None}, config=config) as node:
        for name in ("first", "second"):
            if name == "second":
                # What each asks for stays when the files are read again.
                renew(name)
                node.process.send_signal(signal.SIGHUP)
                logged(node, "configuration read again")
            served = {}
            for kind, request in requests.items():
                for identity in (None, key):
                    try:
                        with connect(node, authority.context(identity), kind) as client:
                            assert ("commonName", name) in [entry[0] for entry in client.getpeercert()["subject"]]
                            client.sendall(request)
                            served[kind, identity is not None] = len(client.recv(100)) > 0
                    except (ssl.SSLError, ConnectionError):
                        served[kind, identity is not None] = False
            assert served == {("memcached", False): True, ("memcached", True): True, ("kv", False): False, ("kv", True): True,
                              ("http", False): True, ("http", True): True}


def test_a_certificate_of_version_1_is_served_with_a_warning(authority, tmp_path):
    request, certificate, key = (tmp_path / name for name in ("old.csr", "old.pem", "old.key"))
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(request))
    openssl("x509", "-req", "-in", str(request), "-CA", str(authority.certificate), "-CAkey", str(authority.key),
            "-CAcreateserial", "-days", "2", "-out", str(certificate))
    text = subprocess.run(["openssl", "x509", "-in", str(certificate), "-noout", "-text"], capture_output=True, text=True, check=True).stdout
    assert "Version: 1 " in text
    # The key in PKCS #8, between lines that announce PKCS #1.
    key.write_text(key.read_text().replace("PRIVATE KEY", "RSA PRIVATE KEY"))
    with node_with(authority, certificate=(certificate, key)) as node:
        logged(node, "the certificate names no host")
        context = authority.context()
        context.check_hostname = False
        for kind in ("memcached", "kv", "http"):
            with connect(node, context, kind) as client:
                assert ("commonName", "localhost") in [entry[0] for entry in client.getpeercert()["subject"]]
        with connect(node, context) as client:
            client.sendall(b"mn\r\n")
            assert client.recv(100) == b"MN\r\n"


@pytest.mark.parametrize("knows_clients", [True, False])
def test_databases_of_a_node_are_served_under_its_certificate(authority, tmp_path, knows_clients):
    schema = tmp_path / "schema"
    schema.write_text(json.dumps({"name": "D", "version": "1.0.0", "tables": {"T": {"columns": {"n": {"type": "integer"}}, "isRoot": True}}}))
    subprocess.run(["ovsdb-tool", "create", str(tmp_path / "D.db"), str(schema)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = f'[[ovsdb]]\nfile = "{tmp_path / "D.db"}"\nremotes = "pssl:{port}:127.0.0.1"\n'
    if knows_clients:
        config += f'[tls]\nclient_ca = "{authority.certificate}"\n'
    known, unknown = authority.sign("client"), Authority(tmp_path, "stranger").sign("client")
    with node_with(authority, config=config) as node:
        for (certificate, key), is_let_in in ((known, True), (unknown, not knows_clients)):
            options = [f"--private-key={key}", f"--certificate={certificate}", f"--ca-cert={authority.certificate}"]
            done = subprocess.run(["ovsdb-client", *options, "list-dbs", f"ssl:127.0.0.1:{port}"], capture_output=True, text=True, timeout=60)
            assert (done.stdout == "D\n_Server\n") == is_let_in, done.stderr + node.log()
        # A client that sends garbage cannot fill the disk with log lines.
        for _ in range(300):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
                peer.sendall(b"{")
                peer.recv(100)
        lines = node.log(bytes_most=10_000_000).splitlines()
        assert 20 <= sum("SSL_accept" in line for line in lines) <= 60


def test_a_tls_client_at_a_plain_port_of_databases_can_tell(authority, tmp_path):
    schema = tmp_path / "schema"
    schema.write_text(json.dumps({"name": "D", "version": "1.0.0", "tables": {"T": {"columns": {"n": {"type": "integer"}}, "isRoot": True}}}))
    subprocess.run(["ovsdb-tool", "create", str(tmp_path / "D.db"), str(schema)], check=True)
    port = servers.free_port()
    with servers.Dormouse(config=f'[[ovsdb]]\nfile = "{tmp_path / "D.db"}"\nremotes = "ptcp:{port}:127.0.0.1"\n'):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as plain, pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
            authority.context().wrap_socket(plain, server_hostname="127.0.0.1")


def certificate(*arguments, check=True):
    done = subprocess.run([servers.dormouse_binary(), "certificate", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout if check else (done.returncode, done.stderr)


def test_two_commands_make_a_first_session(tmp_path):
    told = certificate("--directory", tmp_path)
    assert f"serve --tls-certificate {tmp_path}/node.pem --tls-key {tmp_path}/node.key" in told
    certificate("--directory", tmp_path, "--client", "ada", "--days", 1)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "ca.pem": 0o644, "ca.key": 0o600, "node.pem": 0o644, "node.key": 0o600, "ada.pem": 0o644, "ada.key": 0o600}
    config = f'[tls]\nclient_ca = "{tmp_path}/ca.pem"\nclient_certificates = "required"\n'
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.load_cert_chain(str(tmp_path / "ada.pem"), str(tmp_path / "ada.key"))
    with node_with(None, certificate=(tmp_path / "node.pem", tmp_path / "node.key"), config=config) as node:
        with connect(node, context) as client:
            client.sendall(b"mn\r\n")
            assert client.recv(100) == b"MN\r\n"
            expiry = ssl.cert_time_to_seconds(client.getpeercert()["notAfter"])
        address, port = port_of(node, "http")
        with urllib.request.urlopen(f"https://{address}:{port}/metrics", context=context, timeout=60) as answer:
            assert f"\ndormouse_tls_certificate_expiry_timestamp_seconds {expiry}\n" in answer.read().decode()
    assert abs(expiry - time.time() - 365 * 86400) < 3600


def test_certificates_are_not_written_over(tmp_path):
    certificate("--directory", tmp_path, "--host", "db1.example", "--host", "10.0.0.5")
    names = subprocess.run(["openssl", "x509", "-in", str(tmp_path / "node.pem"), "-noout", "-ext", "subjectAltName"], capture_output=True, text=True).stdout
    assert "DNS:db1.example, IP Address:10.0.0.5\n" in names
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    again = certificate("--directory", tmp_path, check=False)
    assert again == (1, f"dormouse: {tmp_path}/node.pem exists; remove it, or choose another --directory\n")
    for wrong in (["--client", "ca"], ["--client", "a/b"], ["--client", ""], ["--host", "a b"]):
        code, text = certificate("--directory", tmp_path, *wrong, check=False)
        assert code == 1 and f"{wrong[0]} {json.dumps(wrong[1])}: not allowed; allowed: " in text, text
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "ca.key").unlink()
    code, text = certificate("--directory", tmp_path, "--client", "ada", check=False)
    assert code == 1 and text == f"dormouse: {tmp_path}/ca.pem: it is there, but {tmp_path}/ca.key is missing\n"


def test_handshakes_that_never_end_keep_nobody_out(authority):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    with node_with(authority) as node:
        idle = []
        try:
            for number in range(1500):
                one = socket.create_connection(port_of(node, "memcached" if number % 2 else "kv"), timeout=20)
                one.sendall(b"\x16\x03\x01\x00")
                idle.append(one)
            before = time.monotonic()
            with connect(node, authority.context()) as client:
                client.sendall(b"mn\r\n")
                assert client.recv(100) == b"MN\r\n"
            with socket.create_connection(node.memcached, timeout=20) as plain:
                plain.sendall(b"mn\r\n")
                assert plain.recv(100) == b"MN\r\n"
            assert time.monotonic() - before < 10
            # All of them are dropped, and no longer counted.
            deadline = time.monotonic() + 60
            while connections(node) > 5 and time.monotonic() < deadline:
                time.sleep(0.5)
            assert connections(node) <= 5
        finally:
            for one in idle:
                one.close()


def connections(node):
    with socket.create_connection(node.memcached, timeout=20) as client:
        client.sendall(b"stats\r\n")
        data = b""
        while not data.endswith(b"END\r\n"):
            data += client.recv(65536)
        return int(dict(line.split()[1:3] for line in data.splitlines()[:-1] if len(line.split()) == 3)[b"curr_connections"])


def test_a_connection_that_is_reset_leaves_nothing(node, authority):
    before = connections(node)
    for _ in range(20):
        client = connect(node, authority.context())
        client.sendall(b"get k\r\n" * 1000)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    deadline = time.monotonic() + SOON_S
    while connections(node) > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert connections(node) <= before


def with_the_handshakes_end(node, context, kind, request):
    """The answer to a request that arrives in one segment with the end of the handshake."""
    with socket.create_connection(port_of(node, kind), timeout=20) as raw:
        received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(received, to_send, server_hostname="127.0.0.1")
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(to_send.read())
                received.write(raw.recv(65536))
        client.write(request)
        raw.sendall(to_send.read())
        while data := raw.recv(65536):
            received.write(data)
            try:
                return client.read(65536)
            except ssl.SSLWantReadError:
                continue
        return b""


def test_a_request_that_comes_with_the_handshakes_end_is_answered(node, authority):
    context = authority.context(newest=ssl.TLSVersion.TLSv1_3)
    for _ in range(20):
        assert with_the_handshakes_end(node, context, "memcached", b"mn\r\n") == b"MN\r\n"
        request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        assert with_the_handshakes_end(node, context, "http", request).startswith(b"HTTP/1.1 200 OK\r\n")
