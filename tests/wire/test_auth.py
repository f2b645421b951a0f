"""With a password set, every protocol of the memcached port and the Couchbase port require it."""

import base64
import socket
import subprocess
import threading

import pytest

from tests import servers
from tests.clients.text_connection import TextConnection
from tests.frames import AUTH_ERROR, GET, NO_ACCESS, NOOP, NOT_FOUND, SASL_AUTH, SASL_LIST, SUCCESS, VERSION, BinaryConnection

USER, PASSWORD = "ada", "correct-horse-battery-staple"
LOGIN = f"{USER} {PASSWORD}".encode()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    path = tmp_path_factory.mktemp("auth") / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    with servers.Dormouse("--user", USER, "--password-file", str(path)) as server:
        yield server
        assert server.alive(), server.log()


@pytest.fixture
def text(node):
    one = TextConnection(node.memcached)
    yield one
    one.close()


@pytest.mark.parametrize(
    "command",
    [b"get a", b"gets a", b"gat 0 a", b"delete a", b"incr a 1", b"touch a 0", b"flush_all", b"version", b"stats", b"verbosity 1",
     b"cache_memlimit 100", b"mg a v", b"md a", b"ma a", b"me a", b"mn", b"shutdown"],
)
def test_text_and_meta_answer_nothing_before_login(text, command):
    answer = text.line(command)
    assert answer.startswith((b"CLIENT_ERROR", b"ERROR")) or answer == b"", answer


@pytest.mark.parametrize("command", [b"add a 0 0 5", b"append a 0 0 5", b"cas a 0 0 5 1", b"ms a 5"])
def test_text_and_meta_store_nothing_before_login(node, text, command):
    answer = text.line(command, b"value")
    assert answer.startswith((b"CLIENT_ERROR", b"ERROR")) or answer == b"", answer
    inside = TextConnection(node.memcached)
    assert inside.store(b"set", b"auth", LOGIN) == b"STORED"
    assert inside.get(b"a") is None
    inside.close()


def test_the_first_set_is_the_login(text):
    assert text.store(b"set", b"any-key", LOGIN) == b"STORED"
    assert text.get(b"any-key") is None, "the login was stored as a document"
    text.set(b"k", b"v")
    assert text.get(b"k")[0] == b"v"
    assert text.line(b"mg k s") == b"HD s1"


@pytest.mark.parametrize("login", [b"ada wrong", b"eve correct-horse-battery-staple", b"ada", b"", b"ada ", LOGIN + b"x", LOGIN[:-1], b"x" * 5000])
def test_a_wrong_login_is_refused(text, login):
    answer = text.store(b"set", b"any-key", login)
    assert answer.startswith(b"CLIENT_ERROR") or answer == b"", answer
    if answer:
        again = text.line(b"get any-key")
        assert again.startswith((b"CLIENT_ERROR", b"ERROR")) or again == b"", again


def test_noreply_is_no_way_around(node, text):
    text.socket.sendall(b"set a 0 0 5 noreply\r\nvalue\r\nset b 0 0 5 noreply\r\nvalue\r\nms c 5 q\r\nvalue\r\n")
    text.close()
    inside = TextConnection(node.memcached)
    assert inside.store(b"set", b"auth", LOGIN) == b"STORED"
    assert inside.gets(b"a", b"b", b"c") == {}
    inside.close()


def test_binary_on_the_memcached_port(node):
    # Like memcached, the server may close the connection on a request before the login.
    with BinaryConnection(node.memcached) as one:
        assert one.ask(GET, b"k").status in (AUTH_ERROR, NO_ACCESS)
    with BinaryConnection(node.memcached) as one:
        assert one.store(b"k", b"v").status in (AUTH_ERROR, NO_ACCESS)
    with BinaryConnection(node.memcached) as one:
        mechanisms = one.ask(SASL_LIST)
        assert mechanisms.status == SUCCESS and b"PLAIN" in mechanisms.value.split()
        assert one.login(USER, "wrong") == AUTH_ERROR
    with BinaryConnection(node.memcached) as one:
        assert one.login(USER, PASSWORD) == SUCCESS
        assert one.store(b"k", b"v").status == SUCCESS
        assert one.ask(GET, b"k").value == b"v"
        assert one.ask(VERSION).status == SUCCESS


def test_the_couchbase_port(node):
    with BinaryConnection(node.kv) as one:
        one.hello()
        assert one.login("Administrator", "password") == AUTH_ERROR, "the development user is still let in"
        assert one.ask(SASL_AUTH, b"PLAIN", b"").status != SUCCESS
        assert one.login(USER, PASSWORD) == SUCCESS
    with BinaryConnection(node.kv) as one:
        one.open_bucket(user=USER, password=PASSWORD)
        assert one.ask(GET, b"no-such-document").status == NOT_FOUND
        assert one.ask(NOOP).status == SUCCESS


def http(node, method, path, login=None, body=b""):
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    if login:
        head += f"Authorization: Basic {base64.b64encode(login.encode()).decode()}\r\n"
    with socket.create_connection(node.http, timeout=10) as one:
        one.sendall(head.encode() + b"\r\n" + body)
        return int(one.recv(4096).split()[1])


def test_http_changes_need_the_login(node):
    form = b"name=made&ramQuotaMB=64&bucketType=ephemeral"
    for login in (None, "Administrator:password", f"{USER}:wrong", f"eve:{PASSWORD}"):
        assert http(node, "POST", "/pools/default/buckets", login, form) == 401
        assert http(node, "DELETE", "/pools/default/buckets/default", login) == 401
    assert http(node, "GET", "/pools/default/buckets/default", f"{USER}:{PASSWORD}") == 200


def test_other_addresses_demand_a_password_of_ones_own():
    """The development user is for loopback only: listening elsewhere with it is refused with one line."""
    done = subprocess.run(
        [str(servers.dormouse_binary()), "serve", "--memcached", "0.0.0.0:0", "--kv", "127.0.0.1:0", "--http", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=20,
    )
    assert done.returncode != 0
    assert "password" in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def guess_on_kv(node, ends, count):
    with BinaryConnection(node.kv) as one:
        while not ends.is_set():
            assert one.login(USER, "wrong") == AUTH_ERROR
            count.append(1)


def guess_on_http(node, ends, count):
    wrong = base64.b64encode(f"{USER}:wrong".encode()).decode()
    request = f"GET /whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {wrong}\r\n\r\n".encode()
    with socket.create_connection(node.http, timeout=10) as one:
        while not ends.is_set():
            one.sendall(request)
            assert b" 401 " in one.recv(4096)
            count.append(1)


@pytest.mark.parametrize("guess", [guess_on_kv, guess_on_http])
def test_a_right_password_gets_in_while_others_guess_from_the_same_network(node, guess):
    ends, count = threading.Event(), []
    guessers = [threading.Thread(target=guess, args=(node, ends, count)) for _ in range(2)]
    for one in guessers:
        one.start()
    try:
        while len(count) < 100:
            assert all(one.is_alive() for one in guessers)
        for _ in range(30):
            with BinaryConnection(node.kv) as one:
                assert one.login(USER, PASSWORD) == SUCCESS
            with BinaryConnection(node.memcached) as one:
                assert one.login(USER, PASSWORD) == SUCCESS
            text = TextConnection(node.memcached)
            assert text.store(b"set", b"any-key", LOGIN) == b"STORED"
            text.close()
            assert http(node, "GET", "/whoami", f"{USER}:{PASSWORD}") == 200
    finally:
        ends.set()
        for one in guessers:
            one.join()
