"""TLS of OVSDB remotes: valid and invalid certificates, missing configuration, columns of databases, connections to
servers, roles.

The same cases run against Debian's server; ours gives the same answers and log lines."""

import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import time

import pytest

from tests.servers import end_with_the_tests
from tests.tls.authority import Authority

from .servers import PATIENCE_S, STOCK, SUBJECT, OvsdbServer, create_database, server_command

BOTH = pytest.mark.parametrize("which", [STOCK, SUBJECT])
STRING = {"type": "string"}
STRINGS = {"type": {"key": "string", "min": 0, "max": "unlimited"}}
SCHEMA = {
    "name": "D", "version": "1.0.0",
    "tables": {
        "T": {"columns": {"n": {"type": "integer"}}, "isRoot": True},
        "Files": {"columns": {"key": STRING, "certificate": STRING, "authority": STRING, "flag": {"type": "boolean"}}, "isRoot": True, "maxRows": 1},
    },
}
OVN_SCHEMAS = pathlib.Path("/usr/share/ovn")
LIST = b'{"id":0,"method":"list_dbs","params":[]}'
PASSIVE = ("pssl:0:127.0.0.1",)


class Files:
    """Certificates of two authorities, the second of which is not trusted."""

    def __init__(self, directory):
        self.authority, self.strangers = Authority(directory), Authority(directory, "strangers")
        self.server, self.client, self.other = map(self.authority.sign, ("server", "client", "other"))
        self.stranger = self.strangers.sign("client")

    def options(self, identity=None, authority=None):
        certificate, key = identity or self.server
        return [f"--private-key={key}", f"--certificate={certificate}", f"--ca-cert={authority or self.authority.certificate}"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def served(which, tmp_path):
    def start(*arguments, remotes=PASSIVE):
        directory = tmp_path / f"server-{len(servers)}"
        path = create_database(tmp_path / f"D-{len(servers)}.db", SCHEMA)
        server = OvsdbServer(which, directory, arguments, [path], remotes=[f"punix:{directory / 'sock'}", *remotes])
        servers.append(server)
        return server.start()

    servers = []
    yield start
    for server in servers:
        server.remove()


def eventually(check):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := check()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def port_of(server):
    listening = eventually(lambda: re.search(r"listening on port (\d+)", server.log_path.read_text()))
    return int(listening.group(1))


def lines(server):
    """Module, level and text of the log lines; addresses and reasons that only one server gives are left out."""
    texts = [line.split("|", 2)[2] for line in server.log_path.read_text().splitlines()]
    return [re.sub(r"(verify failed) \(.*\)", r"\1", re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)) for text in texts]


def said(server, *expected):
    """Returns true if these lines follow each other in the log, possibly with others in between."""
    def all_there():
        rest = iter(lines(server))
        return all(line in rest for line in expected)

    assert eventually(all_there), "\n".join(lines(server))


def ovsdb_client(server, files, *command, identity=None, port=None, check=True):
    command = command or ("list-dbs",)
    done = subprocess.run(
        ["ovsdb-client", f"--timeout={PATIENCE_S}", *files.options(identity or files.client), command[0],
         f"ssl:127.0.0.1:{port or port_of(server)}", *command[1:]], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr + server.log()
    return done.stdout if check else done


def context(files, identity=None, **settings):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.load_verify_locations(str(files.authority.certificate))
    if identity:
        made.load_cert_chain(*map(str, identity))
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def connect(server, made):
    plain = socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE_S)
    return made.wrap_socket(plain)


def ask(peer):
    peer.sendall(LIST)
    answer = peer.recv(1000)
    if not answer:
        raise ConnectionError("closed by the peer")
    return json.loads(answer)["result"]


def is_refused(server, made):
    """In TLS 1.3 a client learns of a refusal with its first read."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        with connect(server, made) as peer:
            ask(peer)
            raise AssertionError("it was let in")
    return True


def told_of_json(which):
    """The stock server sees the JSON only if it arrives in time."""
    return ["stream_ssl|WARN|ssl:ADDRESS: received JSON-RPC data on SSL channel"] if which == SUBJECT else []


DROPPED = ("jsonrpc|WARN|ssl:ADDRESS: receive error: Protocol error", "reconnect|WARN|ssl:ADDRESS: connection dropped (Protocol error)")
VERIFY_FAILED = "stream_ssl|WARN|SSL_accept: error:0A000086:SSL routines::certificate verify failed"


@BOTH
def test_a_client_with_a_certificate_is_served(served, files):
    server = served(*files.options())
    assert ovsdb_client(server, files) == "D\n_Server\n"
    transaction = json.dumps(["D", {"op": "insert", "table": "T", "row": {"n": 7}}])
    assert "uuid" in ovsdb_client(server, files, "transact", transaction)
    dump = ovsdb_client(server, files, "dump", "D", "T", "n")
    assert dump.split()[-1] == "7"
    # Long messages take many records each way.
    with connect(server, context(files, files.client)) as peer:
        peer.sendall(json.dumps({"id": 1, "method": "echo", "params": ["x" * 3_000_000]}).encode())
        text = b""
        while not text.endswith(b"}"):
            text += peer.recv(1 << 20)
        assert len(json.loads(text)["result"][0]) == 3_000_000


@BOTH
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_whom_nobody_known_vouches_for_is_refused(served, files, newest, tmp_path):
    server = served(*files.options())
    assert is_refused(server, context(files, files.stranger, maximum_version=newest))
    said(server, VERIFY_FAILED, *DROPPED)
    assert is_refused(server, context(files, maximum_version=newest))
    said(server, "stream_ssl|WARN|SSL_accept: error:0A0000C7:SSL routines::peer did not return a certificate", *DROPPED)
    expired = files.authority.sign("expired", days=-1)
    assert is_refused(server, context(files, expired, maximum_version=newest))
    said(server, VERIFY_FAILED, *DROPPED, VERIFY_FAILED, *DROPPED)
    with connect(server, context(files, files.client, maximum_version=newest)) as peer:
        assert peer.version() == ("TLSv1.3" if newest == ssl.TLSVersion.TLSv1_3 else "TLSv1.2")
        assert ask(peer) == ["D", "_Server"]


@BOTH
def test_who_does_not_speak_tls_is_told_of_in_the_log(served, files, which):
    server = served(*files.options())
    address = ("127.0.0.1", port_of(server))
    with socket.create_connection(address, timeout=PATIENCE_S) as plain:
        plain.sendall(LIST)
        assert b"result" not in plain.recv(100)
    said(server, "stream_ssl|WARN|SSL_accept: error:0A00010B:SSL routines::wrong version number",
         *told_of_json(which), *DROPPED)
    socket.create_connection(address).close()
    said(server, "stream_ssl|WARN|SSL_accept: error:0A000126:SSL routines::unexpected eof while reading", *DROPPED)
    with socket.create_connection(address, timeout=PATIENCE_S) as plain:
        plain.sendall(b"\x16\x03\x01\x00\x05hello")
        plain.recv(100)
    said(server, "stream_ssl|WARN|SSL_accept: error:0A0000F4:SSL routines::unexpected message", *DROPPED)
    assert ovsdb_client(server, files) == "D\n_Server\n"


@BOTH
def test_peers_that_only_begin_a_handshake_hold_nobody_up(served, files):
    server = served(*files.options())
    address = ("127.0.0.1", port_of(server))
    slow = [socket.create_connection(address) for _ in range(200)]
    for peer in slow[::2]:
        peer.sendall(b"\x16\x03\x01")
    assert ovsdb_client(server, files) == "D\n_Server\n"
    for peer in slow:
        peer.close()


@BOTH
@pytest.mark.parametrize("left_out, missing", [
    ([0], ["Private key", "Certificate"]), ([1], ["Private key", "Certificate"]), ([2], ["CA certificate"]),
    ([0, 1, 2], ["Private key", "Certificate", "CA certificate"]),
])
def test_what_is_not_set_up_is_said_with_each_connection(served, files, left_out, missing):
    server = served(*(option for place, option in enumerate(files.options()) if place not in left_out))
    for _ in range(2):
        done = ovsdb_client(server, files, check=False)
        assert done.returncode == 1 and "Protocol error" in done.stderr
    # The listener's name includes its port; the stock server limits the rate of its log lines.
    refused = f"ovsdb_jsonrpc_server|WARN|pssl:{port_of(server)}:127.0.0.1: accept failed: Protocol not available"
    said(server, *(f"stream_ssl|ERR|{what} must be configured to use SSL" for what in missing), refused)
    assert server.alive()


@BOTH
def test_files_that_cannot_be_used_are_named_at_once(served, files, tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("")
    for options, beginnings in (
        (["--private-key=/nowhere/key", "--certificate=/nowhere/certificate", "--ca-cert=/nowhere/authority"],
         ["SSL_use_certificate_file: ", "SSL_use_PrivateKey_file: ", "failed to load client certificates from /nowhere/authority"]),
        ([f"--private-key={empty}", f"--certificate={files.server[0]}", f"--ca-cert={empty}"],
         ["SSL_use_PrivateKey_file: ", f"failed to load client certificates from {empty}"]),
        ([f"--private-key={files.client[1]}", f"--certificate={files.server[0]}"], ["SSL_use_PrivateKey_file: "]),
    ):
        server = served(*options)
        for beginning in beginnings:
            assert eventually(lambda: any(line.startswith(f"stream_ssl|ERR|{beginning}") for line in lines(server))), server.log()
        assert ovsdb_client(server, files, check=False).returncode == 1


@BOTH
def test_everybody_is_trusted_where_that_is_wished(served, files):
    server = served(*files.options(authority="none"))
    said(server, "stream_ssl|WARN|Peer certificate validation disabled (this is a security risk)")
    for identity in (None, files.stranger):
        with connect(server, context(files, identity)) as peer:
            assert ask(peer) == ["D", "_Server"]


@BOTH
def test_versions_and_ciphers_are_chosen(served, files):
    server = served(*files.options(), "--ssl-protocols=TLSv1.2", "--ssl-ciphers=ECDHE-ECDSA-AES256-GCM-SHA384:!NOTHING")
    with connect(server, context(files, files.client)) as peer:
        assert peer.cipher()[:2] == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2")
        assert ask(peer) == ["D", "_Server"]
    server = served(*files.options(), "--ssl-ciphers=NO-SUCH-CIPHER")
    said(server, "stream_ssl|ERR|SSL_CTX_set_cipher_list: error:0A0000B9:SSL routines::no cipher match")
    assert is_refused(server, context(files, files.client, maximum_version=ssl.TLSVersion.TLSv1_2))
    server = served(*files.options(), "--ssl-protocols=TLSv1.2,SSLv9")
    said(server, "stream_ssl|ERR|SSLv9: SSL protocol not recognized")
    with connect(server, context(files, files.client)) as peer:
        assert peer.version() == "TLSv1.3", "a list with a mistake is none"


@BOTH
def test_old_versions_are_refused(served, files):
    server = served(*files.options(), "--ssl-protocols=TLSv1.2")
    for version in ("-tls1", "-tls1_1"):
        done = subprocess.run(
            ["openssl", "s_client", version, "-cipher", "ALL:@SECLEVEL=0", "-connect", f"127.0.0.1:{port_of(server)}"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
        assert "alert" in done.stderr and "Cipher is (NONE)" in done.stdout, done.stderr
    said(server, "stream_ssl|WARN|SSL_accept: error:0A000102:SSL routines::unsupported protocol", *DROPPED)


def test_options_of_newer_releases(files, tmp_path):
    path = create_database(tmp_path / "D.db", SCHEMA)
    options = ["--ssl-protocols=TLSv1.3", "--ssl-ciphersuites=TLS_CHACHA20_POLY1305_SHA256", "--ssl-server-name=some.name"]
    remotes = [f"punix:{tmp_path / 'run' / 'sock'}", *PASSIVE]
    with OvsdbServer(SUBJECT, tmp_path / "run", [*files.options(), *options], [path], remotes=remotes) as server:
        with connect(server, context(files, files.client)) as peer:
            assert peer.cipher()[:2] == ("TLS_CHACHA20_POLY1305_SHA256", "TLSv1.3")
        assert is_refused(server, context(files, files.client, maximum_version=ssl.TLSVersion.TLSv1_2))
        # Connections use the configured name.
        named = []
        with Server(files, named=named) as peer:
            server.unixctl("ovsdb-server/add-remote", peer.remote)
            assert peer.accept() == "server"
        assert named == ["some.name"]
    # An invalid name is not sent, and does not prevent connecting.
    options[-1] = "--ssl-server-name=no name"
    with OvsdbServer(SUBJECT, tmp_path / "run", [*files.options(), *options], [path], remotes=remotes) as server:
        named.clear()
        with Server(files, named=named) as peer:
            server.unixctl("ovsdb-server/add-remote", peer.remote)
            assert peer.accept() == "server"
        assert named == [None]


@BOTH
def test_a_renewed_certificate_is_shown_from_then_on(served, files, tmp_path):
    certificate, key = (tmp_path / name for name in ("certificate", "key"))
    for source, target in zip(files.server, (certificate, key)):
        target.write_bytes(source.read_bytes())
    server = served(*files.options((certificate, key)))
    shown = lambda peer: dict(entry[0] for entry in peer.getpeercert()["subject"])["commonName"]
    with connect(server, context(files, files.client)) as before:
        assert shown(before) == "server" and ask(before) == ["D", "_Server"]
        for source, target in zip(files.other, (certificate, key)):
            renewed = target.with_suffix(".new")
            renewed.write_bytes(source.read_bytes())
            renewed.rename(target)
        # The stock server checks its files each time it wakes up.
        ovsdb_client(server, files, check=False)
        with connect(server, context(files, files.client)) as after:
            assert shown(after) == "other" and ask(after) == ["D", "_Server"]
        assert ask(before) == ["D", "_Server"], "sessions stay"


def set_files(server, identity, authority):
    row = {"key": str(identity[1]), "certificate": str(identity[0]), "authority": str(authority)}
    operations = ["D", {"op": "delete", "table": "Files", "where": []}, {"op": "insert", "table": "Files", "row": row}]
    done = subprocess.run(["ovsdb-client", "transact", f"unix:{server.sock}", json.dumps(operations)], capture_output=True, text=True)
    assert "uuid" in done.stdout, done.stderr


COLUMNS = ["--private-key=db:D,Files,key", "--certificate=db:D,Files,certificate", "--ca-cert=db:D,Files,authority"]


@BOTH
def test_a_database_names_the_files(served, files):
    server = served(*COLUMNS)
    assert ovsdb_client(server, files, check=False).returncode == 1
    said(server, *(f"stream_ssl|ERR|{what} must be configured to use SSL" for what in ("Private key", "Certificate", "CA certificate")))
    set_files(server, files.server, files.authority.certificate)
    assert ovsdb_client(server, files) == "D\n_Server\n"
    with connect(server, context(files, files.client)) as before:
        set_files(server, files.server, files.strangers.certificate)
        assert ovsdb_client(server, files, check=False).returncode == 1
        said(server, VERIFY_FAILED, *DROPPED)
        assert ask(before) == ["D", "_Server"]


@BOTH
def test_columns_that_cannot_name_files_end_the_process(which, tmp_path, files):
    path = create_database(tmp_path / "D.db", SCHEMA)
    mistakes = ["--private-key=db:X,Files,key", "--certificate=db:D,Nothing,certificate", "--ca-cert=db:D,Files,nothing"]
    complaints = ['"db:X,Files,key": no database named X', '"db:D,Nothing,certificate": no table named Nothing', '"db:D,Files,nothing": table "Files" has no column "nothing"']
    others = ["--private-key=db:D", "--certificate=db:D,Files,flag"]
    other_complaints = ['"db:D": invalid syntax', '"db:D,Files,flag": table "Files" column "flag" is not string or set of strings']
    for options, expected in ((mistakes, complaints), (others, other_complaints)):
        done = subprocess.run([*server_command(which), f"--unixctl={tmp_path / 'ctl'}", "-vconsole:off", *options, str(path)],
                              capture_output=True, text=True, timeout=PATIENCE_S, env=dict(os.environ, OVS_RUNDIR=str(tmp_path)))
        assert done.returncode == 1
        assert done.stderr == "ovsdb-server: " + "\n".join(expected) + "\n\n"


class Server:
    """A TLS server that an ovsdb-server connects to."""

    def __init__(self, files, identity=None, authority=None, chain=False, named=None):
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate, key = identity or files.server
        if chain:
            both = pathlib.Path(f"{certificate}.chain")
            both.write_text(certificate.read_text() + files.authority.certificate.read_text())
            certificate = both
        self.context.load_cert_chain(str(certificate), str(key))
        self.context.load_verify_locations(str(authority or files.authority.certificate))
        self.context.verify_mode = ssl.CERT_REQUIRED
        if named is not None:
            self.context.sni_callback = lambda _, name, __: named.append(name)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(PATIENCE_S)
        self.remote = f"ssl:127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        """The name in the certificate of the next client that connects and is served."""
        plain, _ = self.listener.accept()
        plain.settimeout(PATIENCE_S)
        with self.context.wrap_socket(plain, server_side=True) as peer:
            assert ask(peer) == ["D", "_Server"]
            return dict(entry[0] for entry in peer.getpeercert()["subject"])["commonName"]


@BOTH
def test_it_connects_to_servers(served, files, which):
    server = served(*files.options(), remotes=())
    with Server(files) as peer:
        server.unixctl("ovsdb-server/add-remote", peer.remote)
        assert peer.accept() == "server"
        said(server, "reconnect|INFO|ssl:ADDRESS: connecting...", "reconnect|INFO|ssl:ADDRESS: connected")
        server.unixctl("ovsdb-server/remove-remote", peer.remote)
    with Server(files, files.stranger) as peer:
        server.unixctl("ovsdb-server/add-remote", peer.remote)
        with pytest.raises(ssl.SSLError):
            peer.accept()
        said(server, "stream_ssl|WARN|SSL_connect: error:0A000086:SSL routines::certificate verify failed",
             "reconnect|INFO|ssl:ADDRESS: connection attempt failed (Protocol error)")
        server.unixctl("ovsdb-server/remove-remote", peer.remote)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        remote = f"ssl:127.0.0.1:{listener.getsockname()[1]}"
        server.unixctl("ovsdb-server/add-remote", remote)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(LIST)
            said(server, "stream_ssl|WARN|SSL_connect: error:0A00010B:SSL routines::wrong version number",
                 *told_of_json(which), "reconnect|INFO|ssl:ADDRESS: connection attempt failed (Protocol error)")
        server.unixctl("ovsdb-server/remove-remote", remote)


@BOTH
def test_a_server_that_refuses_it_is_told_of(served, files):
    server = served(*files.options(), remotes=())
    with Server(files, authority=files.strangers.certificate) as peer:
        server.unixctl("ovsdb-server/add-remote", peer.remote)
        with pytest.raises(ssl.SSLError):
            peer.accept()
        said(server, "reconnect|INFO|ssl:ADDRESS: connected", "stream_ssl|WARN|SSL_read: error:0A000418:SSL routines::tlsv1 alert unknown ca",
             "jsonrpc|WARN|ssl:ADDRESS: receive error: Input/output error", "reconnect|WARN|ssl:ADDRESS: connection dropped (Input/output error)")


@BOTH
def test_it_connects_to_nobody_without_files(served):
    server = served(remotes=())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.unixctl("ovsdb-server/add-remote", f"ssl:127.0.0.1:{listener.getsockname()[1]}")
        said(server, *(f"stream_ssl|ERR|{what} must be configured to use SSL" for what in ("Private key", "Certificate", "CA certificate")),
             "reconnect|INFO|ssl:ADDRESS: connecting...", "reconnect|INFO|ssl:ADDRESS: connection attempt failed (Protocol not available)")


@BOTH
def test_an_authority_is_taken_over_from_the_first_server(served, files, tmp_path):
    known = tmp_path / "authority.pem"
    server = served(*files.options()[:2], f"--bootstrap-ca-cert={known}")
    assert is_refused(server, context(files, files.client)), "nobody vouches for clients before that"
    assert not known.exists()
    with Server(files, chain=True) as peer:
        server.unixctl("ovsdb-server/add-remote", peer.remote)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            peer.accept()
        assert eventually(known.exists)
        subject = "(/CN=authority)"
        assert peer.accept() == "server", "it connects anew"
        said(server, f"stream_ssl|INFO|successfully bootstrapped CA cert to {known}")
        trusting = next(line for line in lines(server) if "Trusting CA cert" in line)
        assert re.fullmatch(rf"stream_ssl\|INFO\|Trusting CA cert from {known} {re.escape(subject)} \(fingerprint ([0-9a-f]{{2}}:){{19}}[0-9a-f]{{2}}\)", trusting)
        said(server, "stream_ssl|INFO|killing successful connection to retry using CA cert",
             "reconnect|INFO|ssl:ADDRESS: connection attempt failed (Protocol error)", "reconnect|INFO|ssl:ADDRESS: connected")
    assert known.read_text() == files.authority.certificate.read_text()
    assert known.stat().st_mode & 0o222 == 0
    assert ovsdb_client(server, files) == "D\n_Server\n"


def test_who_was_not_verified_is_not_served_once_an_authority_is_known(tmp_path, files):
    """The server connects to two servers before there is an authority; the second delays its handshake until there is
    one."""
    known = tmp_path / "authority.pem"
    path = create_database(tmp_path / "D.db", SCHEMA)
    remotes = [f"punix:{tmp_path / 'run' / 'sock'}", *PASSIVE]
    with OvsdbServer(SUBJECT, tmp_path / "run", [*files.options()[:2], f"--bootstrap-ca-cert={known}"], [path], remotes=remotes) as server:
        with Server(files, files.stranger) as late, Server(files, chain=True) as first:
            server.unixctl("ovsdb-server/add-remote", late.remote)
            waiting, _ = late.listener.accept()
            server.unixctl("ovsdb-server/add-remote", first.remote)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                first.accept()
            assert eventually(known.exists)
            assert ovsdb_client(server, files) == "D\n_Server\n", "the authority is in force"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                with late.context.wrap_socket(waiting, server_side=True) as peer:
                    peer.settimeout(PATIENCE_S)
                    ask(peer)
        address = late.remote.split(":", 1)[1]
        assert f"ssl:{address}: connected" not in server.log_path.read_text()


@BOTH
def test_peers_are_shown_the_authority_too(served, files):
    server = served(*files.options(), f"--peer-ca-cert={files.authority.certificate}")
    command = ["openssl", "s_client", "-showcerts", "-connect", f"127.0.0.1:{port_of(server)}", "-cert", str(files.client[0]), "-key", str(files.client[1])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.count("BEGIN CERTIFICATE") == 2
    # A client without an authority adopts it.
    known = server.directory / "taken-over.pem"
    options = [f"--private-key={files.client[1]}", f"--certificate={files.client[0]}", f"--bootstrap-ca-cert={known}"]
    for _ in range(2):
        done = subprocess.run(["ovsdb-client", *options, "list-dbs", f"ssl:127.0.0.1:{port_of(server)}"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "D\n_Server\n" and known.read_text() == files.authority.certificate.read_text()


@BOTH
def test_a_certificate_vouches_for_itself(served, files, tmp_path):
    """As created by `ovs-pki self-sign`: the certificate is its own authority."""
    alone = Authority(tmp_path, "alone")
    server = served(*files.options(authority=alone.certificate))
    with connect(server, context(files, (alone.certificate, alone.key))) as peer:
        assert ask(peer) == ["D", "_Server"]
    assert is_refused(server, context(files, files.client))


@BOTH
def test_certificates_of_ovs_pki(served, tmp_path):
    environment = dict(os.environ, OVS_LOGDIR=str(tmp_path))
    pki = ["ovs-pki", f"--dir={tmp_path / 'pki'}", f"--log={tmp_path / 'pki.log'}"]
    subprocess.run([*pki, "--bits=2048", "init", "--force"], check=True, capture_output=True, env=environment)
    for name, kind in (("server", "controller"), ("client", "switch")):
        subprocess.run([*pki, "--bits=2048", "-u", "req+sign", name, kind], check=True, capture_output=True, env=environment, cwd=tmp_path)
    of = lambda name: [f"--private-key={tmp_path / name}-privkey.pem", f"--certificate={tmp_path / name}-cert.pem"]
    authority = lambda kind: f"--ca-cert={tmp_path}/pki/{kind}ca/cacert.pem"
    server = served(*of("server"), authority("switch"))
    command = ["ovsdb-client", *of("client"), authority("controller"), "list-dbs", f"ssl:127.0.0.1:{port_of(server)}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "D\n_Server\n", done.stderr + server.log()


@BOTH
def test_ovs_vsctl_sets_a_switch_up(which, tmp_path, files):
    path = create_database(tmp_path / "conf.db", "/usr/share/openvswitch/vswitch.ovsschema")
    options = [
        "--remote=db:Open_vSwitch,Open_vSwitch,manager_options", "--private-key=db:Open_vSwitch,SSL,private_key",
        "--certificate=db:Open_vSwitch,SSL,certificate", "--ca-cert=db:Open_vSwitch,SSL,ca_cert"]
    with OvsdbServer(which, tmp_path / "run", options, [path]) as server:
        def vsctl(*arguments, db=f"unix:{server.sock}"):
            done = subprocess.run(["ovs-vsctl", "--no-wait", f"--timeout={PATIENCE_S}", f"--db={db}", *files.options(files.client), *arguments], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + server.log()
            return done.stdout

        vsctl("init")
        vsctl("set-ssl", str(files.server[1]), str(files.server[0]), str(files.authority.certificate))
        vsctl("set-manager", "pssl:0:127.0.0.1")
        port = port_of(server)
        vsctl("add-br", "br0", db=f"ssl:127.0.0.1:{port}")
        assert vsctl("list-br", db=f"ssl:127.0.0.1:{port}") == "br0\n"


def refs(table, weak=True):
    kind = {"type": "uuid", "refTable": table, **({"refType": "weak"} if weak else {})}
    return {"type": {"key": kind, "min": 0, "max": "unlimited"}}


def pairs(value="string", key="string"):
    return {"type": {"key": key, "value": value, "min": 0, "max": "unlimited"}}


ROLES = {
    "name": "D", "version": "1.0.0",
    "tables": {
        "T": {"isRoot": True, "columns": {
            "name": STRING, "n": {"type": "integer"}, "perhaps": {"type": {"key": "string", "min": 0}}, "owners": STRINGS, "pairs": pairs(),
            "numbers": pairs("integer"), "by_number": pairs(key="integer"), "refs": refs("U")}},
        **{name: {"columns": {"name": STRING, "n": {"type": "integer"}}, "isRoot": True} for name in "UVW"},
        "Global": {"columns": {"connections": refs("Connection", weak=False)}, "isRoot": True},
        "Connection": {"columns": {"target": STRING, "role": STRING}},
        "RBAC_Role": {"isRoot": True, "columns": {
            "name": STRING, "permissions": {"type": {"key": "string", "value": {"type": "uuid", "refTable": "RBAC_Permission", "refType": "weak"}, "min": 0, "max": "unlimited"}}}},
        "RBAC_Permission": {"isRoot": True, "columns": {"table": STRING, "authorization": STRINGS, "insert_delete": {"type": "boolean"}, "update": STRINGS}},
    },
}


def some(*strings):
    return ["set", list(strings)]


def mapped(**values):
    return ["map", [[key, value] for key, value in values.items()]]


def insert(table, uuid_name=None, /, **row):
    return {"op": "insert", "table": table, "row": row, **({"uuid-name": uuid_name} if uuid_name else {})}


def named(name):
    return [["name", "==", name]]


def update(name, row, table="T"):
    return {"op": "update", "table": table, "where": [] if name is None else named(name), "row": row}


def mutate(name, *mutations, table="T"):
    return {"op": "mutate", "table": table, "where": [] if name is None else named(name), "mutations": [list(mutation) for mutation in mutations]}


def delete(name, table="T"):
    return {"op": "delete", "table": table, "where": [] if name is None else named(name)}


PERMISSIONS = {
    "T": {"authorization": some("name", "perhaps", "owners", "pairs:who", "numbers:who", "by_number:1", "refs:1", "name:x"), "insert_delete": True, "update": some("n", "pairs:x", "owners", "nothing")},
    "U": {"authorization": some(""), "insert_delete": False, "update": some("name")},
    "V": {"authorization": some(""), "insert_delete": True, "update": some()},
    "W": {"authorization": some("nothing", "n", "name:who", "pairs"), "insert_delete": True, "update": some("n")},
}
ROWS = [
    insert("T", name="client", n=1), insert("T", name="other", n=2), insert("T", name="in a set", owners=some("a", "client"), n=3),
    insert("T", name="alone in a set", owners="client"), insert("T", name="perhaps", perhaps="client"), insert("T", name="in a map", pairs=mapped(who="client"), n=4),
    insert("T", name="elsewhere in a map", pairs=mapped(other="client", who="no"), n=5), insert("T", name="by number", by_number=["map", [[1, "client"]]]),
    insert("U", name="u"), insert("V", name="v"), insert("W", name="client", n=0),
]
NAMES = [row["row"]["name"] for row in ROWS if row["table"] == "T"]
CASES = [
    *(update(name, {"n": 7}) for name in [*NAMES, "nobody"]), *(mutate(name, ["n", "+=", 1]) for name in [*NAMES, "nobody"]), *(delete(name) for name in [*NAMES, "nobody", None]),
    update("client", {"name": "client"}), update("client", {"name": "client", "n": 1}), update("client", {}), update("other", {}), update("client", {"pairs": mapped(x="1")}),
    update("client", {"owners": some("b")}), update("nobody", {"name": "x"}), update(None, {"n": 9}), update("client", {"nothing": 1}), update("client", {"_uuid": ["uuid", "00000000-0000-0000-0000-000000000000"]}),
    mutate("client", ["pairs", "insert", mapped(x="1")]), mutate("client", ["pairs", "delete", some("x")]), mutate("nobody", ["pairs", "delete", some("x")]), mutate("client"), mutate("other"),
    mutate("client", ["n", "+=", 1], ["owners", "insert", "q"]), mutate("client", ["n", "+=", 1], ["refs", "insert", some()]), mutate("client", ["n", "/=", 0]), mutate("other", ["n", "/=", 0]),
    insert("T", name="client"), insert("T", name="stranger"), insert("T", name="stranger", owners="client"), insert("T", name="stranger", perhaps="client"),
    insert("T", name="stranger", pairs=mapped(who="client")), insert("T", name="stranger", by_number=["map", [[1, "client"]]]),
    insert("U", name="q"), update(None, {"name": "q"}, "U"), update(None, {"n": 1}, "U"), delete(None, "U"), delete("nobody", "U"),
    insert("V", name="q"), update(None, {"name": "q"}, "V"), update("nobody", {"name": "q"}, "V"), update(None, {}, "V"), delete(None, "V"),
    insert("W", name="client", n=1), update(None, {"n": 2}, "W"), update("nobody", {"n": 2}, "W"), delete(None, "W"),
    insert("Connection", target="x"), delete(None, "Connection"), insert("RBAC_Role", name="x"), update(None, {"name": "R"}, "RBAC_Role"), mutate(None, table="RBAC_Permission"),
    {"op": "select", "table": "T", "where": named("other"), "columns": ["name"]}, {"op": "comment", "comment": "x"}, {"op": "assert", "lock": "x"}, {"op": "commit", "durable": True},
    {"op": "wait", "table": "T", "where": named("nobody"), "columns": ["n"], "until": "==", "rows": [], "timeout": 0},
]
SEQUENCES = [
    [update("client", {"n": 1}), update("other", {"n": 1})],
    [insert("V", "v", name="a"), {"op": "update", "table": "V", "where": [["_uuid", "==", ["named-uuid", "v"]]], "row": {"name": "b"}}],
    [insert("T", "t", name="client"), {"op": "update", "table": "T", "where": [["_uuid", "==", ["named-uuid", "t"]]], "row": {"n": 5}}, {"op": "delete", "table": "T", "where": [["_uuid", "==", ["named-uuid", "t"]]]}],
]


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def answers_by_role(which, directory, files):
    """The answers to clients with and without certificates and roles."""
    path = create_database(directory / "D.db", ROLES)
    mine, unknown, plain = ports = free_ports(3)
    with OvsdbServer(which, directory / "run", files.options(), [path], remotes=[f"punix:{directory / 'run' / 'sock'}", "db:D,Global,connections"]) as server:
        def transact(remote, identity, *operations):
            command = ["ovsdb-client", f"--timeout={PATIENCE_S}", *files.options(identity), "transact", remote, json.dumps(["D", *operations])]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + server.log()
            return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", done.stdout)

        own = f"unix:{server.sock}"
        rights = [insert("RBAC_Permission", f"p{table}", table=table, **row) for table, row in PERMISSIONS.items()]
        role = insert("RBAC_Role", name="R", permissions=["map", [[table, ["named-uuid", f"p{table}"]] for table in PERMISSIONS]])
        targets = [(f"pssl:{mine}:127.0.0.1", "R"), (f"pssl:{unknown}:127.0.0.1", "unknown"), (f"ptcp:{plain}:127.0.0.1", "R")]
        connections = [insert("Connection", f"c{number}", target=target, role=role) for number, (target, role) in enumerate(targets)]
        all_of_them = insert("Global", connections=["set", [["named-uuid", f"c{number}"] for number in range(3)]])
        assert "error" not in transact(own, files.client, *rights, role, *connections, all_of_them, *ROWS)

        def is_open(port):
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        assert eventually(lambda: all(map(is_open, ports)))
        answers = []
        abort = {"op": "abort"}
        for remote, identity, cases in (
            (f"ssl:127.0.0.1:{mine}", files.client, [*([case, abort] for case in CASES), *SEQUENCES]),
            (f"ssl:127.0.0.1:{mine}", files.other, [[case, abort] for case in CASES[:12]]),
            (f"ssl:127.0.0.1:{unknown}", files.client, [[case, abort] for case in CASES[::4]]),
            (f"tcp:127.0.0.1:{plain}", files.client, [[case, abort] for case in CASES[::4]]),
            (own, files.client, [[case, abort] for case in CASES[::6]]),
        ):
            for case in cases:
                answers.append((remote.split(":")[0], case, transact(remote, identity, *case)))
        return answers


def test_roles_allow_what_they_allow_in_the_stock_server(tmp_path, files):
    (tmp_path / "stock").mkdir()
    (tmp_path / "subject").mkdir()
    expected = answers_by_role(STOCK, tmp_path / "stock", files)
    assert sum("RBAC rules" in answer for _, _, answer in expected) > 40
    for stock, ours in zip(expected, answers_by_role(SUBJECT, tmp_path / "subject", files), strict=True):
        assert ours == stock


@BOTH
def test_a_hypervisor_may_speak_for_itself_alone(which, tmp_path, files):
    """OVN's southbound database with the role that OVN creates for hypervisors, and a real ovn-controller."""
    databases = []
    for name in ("nb", "sb"):
        databases.append(create_database(tmp_path / f"ovn{name}.db", OVN_SCHEMAS / f"ovn-{name}.ovsschema"))
    (port,) = free_ports(1)
    options = [*files.options(), "--remote=db:OVN_Southbound,SB_Global,connections"]
    local = create_database(tmp_path / "conf.db", "/usr/share/openvswitch/vswitch.ovsschema")
    started = []

    def start(program, *arguments, directory):
        directory.mkdir(exist_ok=True)
        environment = dict(os.environ, OVS_RUNDIR=str(directory), OVS_LOGDIR=str(directory), OVN_RUNDIR=str(directory), OVN_LOGDIR=str(directory))
        command = [program, "-vconsole:off", "-vsyslog:off", f"--log-file={directory / program}.log", *arguments]
        started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=end_with_the_tests, env=environment))

    with OvsdbServer(which, tmp_path / "central", options, databases) as central, OvsdbServer(which, tmp_path / "switch", (), [local]) as switch:
        def sbctl(*arguments):
            done = subprocess.run(["ovn-sbctl", "--no-leader-only", f"--timeout={PATIENCE_S}", f"--db=unix:{central.sock}", *arguments], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr + central.log()
            return done.stdout

        def vsctl(*arguments):
            subprocess.run(["ovs-vsctl", "--no-wait", f"--timeout={PATIENCE_S}", f"--db=unix:{switch.sock}", *arguments], check=True, capture_output=True)

        try:
            sbctl("init")
            start("ovn-northd", f"--ovnnb-db=unix:{central.sock}", f"--ovnsb-db=unix:{central.sock}", directory=tmp_path / "northd")
            assert eventually(lambda: "ovn-controller" in sbctl("list", "RBAC_Role")), "ovn-northd makes the role"
            sbctl("set-connection", "role=ovn-controller", f"pssl:{port}:127.0.0.1")
            vsctl("init")
            vsctl("set", "Open_vSwitch", ".", "external_ids:system-id=client", f"external_ids:ovn-remote=ssl:127.0.0.1:{port}",
                  "external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=127.0.0.1")
            start("ovn-controller", *files.options(files.client), f"unix:{switch.sock}", directory=tmp_path / "controller")
            assert eventually(lambda: "client" in sbctl("--columns=name", "list", "Chassis").split()), central.log()
            started.pop().terminate()
            # With another chassis's certificate it cannot act as that chassis.
            vsctl("set", "Open_vSwitch", ".", "external_ids:system-id=someone")
            start("ovn-controller", *files.options(files.other), f"unix:{switch.sock}", directory=tmp_path / "impostor")
            log = tmp_path / "impostor" / "ovn-controller.log"
            refused = 'RBAC rules for client \\"other\\" role \\"ovn-controller\\" prohibit'
            assert eventually(lambda: log.exists() and refused in log.read_text()), log.read_text()[-3000:]
            assert "someone" not in sbctl("--columns=name", "list", "Chassis")
        finally:
            for process in started:
                process.terminate()
                process.wait(PATIENCE_S)
