//! Where a node may listen: localhost, all addresses, and Unix-domain sockets.
#![allow(clippy::expect_used)]

mod binary;

use binary::{Scratch, Server, dormouse, exchange};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o777
}

fn addresses(server: &Server, kind: &str) -> Vec<String> {
    let of = |entry: &serde_json::Value| entry["address"].as_str().or(entry.as_str()).map(str::to_owned);
    server.endpoints()[kind].as_array().expect("a list").iter().filter_map(of).collect()
}

/// Sends a request and reads until the answer ends with `end`.
fn talk(mut stream: impl Read + Write, request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).expect("sent");
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(end.as_bytes()) {
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    String::from_utf8(answer).expect("UTF-8")
}

/// Starts a node that must refuse its arguments; returns its error line.
fn refusal(arguments: &[&str]) -> String {
    let others = ["--kv", "none", "--http", "none"];
    let output = dormouse(&["serve"]).args(others).args(arguments).output().expect("runs");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[test]
fn localhost_and_a_port_alone_are_addresses_of_every_port() {
    for host in ["localhost:0", ":0"] {
        let data = Scratch::new();
        let data = data.path().display().to_string();
        let server = Server::start_at_ports(
            &data,
            &["--memcached", host, "--kv", host, "--http", host, "--memory", "64MiB"],
        );
        for kind in ["memcached", "kv", "http"] {
            let addresses = addresses(&server, kind);
            assert!(addresses.first().is_some_and(|first| first.starts_with("127.0.0.1:")), "{addresses:?}");
            for address in &addresses {
                TcpStream::connect(address).expect("each of them is listened on");
            }
            if let [first, second] = addresses.as_slice() {
                assert_eq!(second.replace("[::1]", "127.0.0.1"), *first, "one port in both families");
            }
        }
        let version = exchange(&mut server.memcached(), b"version\r\n", "\r\n");
        assert!(version.starts_with("VERSION "), "{version}");
    }
}

#[test]
fn a_port_alone_is_all_addresses_where_a_login_is_demanded() {
    let scratch = Scratch::new();
    let password = scratch.file("password", "secret\n");
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).expect("its mode");
    let server = Server::start_at_ports(
        &scratch.path().join("data").display().to_string(),
        &["--memcached", ":0", "--user", "ada", "--password-file", &password, "--memory", "64MiB"],
    );
    let addresses = addresses(&server, "memcached");
    assert_eq!(addresses.len(), 1, "{addresses:?}");
    let address = addresses.first().expect("one");
    assert!(address.starts_with("[::]:") || address.starts_with("0.0.0.0:"), "{address}");
    let port = address.rsplit(':').next().unwrap_or_default();
    TcpStream::connect(format!("127.0.0.1:{port}")).expect("IPv4 reaches it");
}

#[test]
fn every_client_port_may_be_a_socket_in_the_file_system() {
    let scratch = Scratch::new();
    let path = |name: &str| scratch.path().join(name);
    let at = |name: &str, more: &str| format!("unix:{}{more}", path(name).display());
    let (cache, kv, http) = (at("cache.sock", ",660=cache"), at("kv.sock", ",0606"), at("http.sock", ""));
    let mut server = Server::start_at_ports(
        &path("data").display().to_string(),
        &[
            ["--memcached", &cache],
            ["--memcached", &at("plain.sock", "=other")],
            ["--memcached", "127.0.0.1:0=cache"],
            ["--kv", &kv],
            ["--http", &http],
            ["--bucket", "cache"],
            ["--bucket", "other"],
            ["--memory", "64MiB"],
        ]
        .concat(),
    );
    let connect = |name: &str| UnixStream::connect(path(name)).expect("it listens");
    for (name, expected) in
        [("cache.sock", 0o660), ("plain.sock", 0o700), ("kv.sock", 0o606), ("http.sock", 0o700)]
    {
        assert_eq!(mode(&path(name)), expected, "{name}");
    }
    // The same bucket as over TCP, and a value that takes more than one read and more than one write.
    let long = "v".repeat(900_000);
    let stored = talk(connect("cache.sock"), &format!("set key 0 0 {}\r\n{long}\r\n", long.len()), "\r\n");
    assert_eq!(stored, "STORED\r\n");
    let got = exchange(&mut server.memcached(), b"get key\r\n", "END\r\n");
    assert_eq!(got, format!("VALUE key 0 {}\r\n{long}\r\nEND\r\n", long.len()));
    assert_eq!(talk(connect("cache.sock"), "get key\r\n", "END\r\n"), got);
    assert_eq!(talk(connect("plain.sock"), "get key\r\n", "END\r\n"), "END\r\n");
    let settings = talk(connect("cache.sock"), "stats settings\r\n", "END\r\n");
    let shown = format!("STAT domain_socket {}\r\n", path("cache.sock").display());
    assert!(settings.contains(&shown), "{settings}");
    // HELLO with no features is answered by a frame of 24 bytes.
    let mut hello = [0; 24];
    (hello[0], hello[1]) = (0x80, 0x1f);
    let mut stream = connect("kv.sock");
    stream.write_all(&hello).expect("sent");
    stream.read_exact(&mut hello).expect("an answer");
    assert_eq!((hello[0], hello[1], hello[6], hello[7]), (0x81, 0x1f, 0, 0));
    // The development user may log in this way: a peer on a Unix socket counts as loopback.
    let request = "GET /whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic \
        QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==\r\n\r\n";
    let answer = talk(connect("http.sock"), request, "}");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(addresses(&server, "kv"), [at("kv.sock", "")]);
    assert_eq!(addresses(&server, "http"), [at("http.sock", "")]);
    assert!(addresses(&server, "memcached").contains(&at("cache.sock", "")));
    server.wait_for_output(&format!("memcached  {}  bucket cache", at("cache.sock", "")));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.output());
    for name in ["cache.sock", "plain.sock", "kv.sock", "http.sock"] {
        assert!(!path(name).exists(), "{name} is removed at the end");
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_or_another_file_is_not() {
    let scratch = Scratch::new();
    let path = scratch.path().join("node.sock");
    let address = format!("unix:{}", path.display());
    let start = |name: &str| {
        let data = scratch.path().join(name).display().to_string();
        Server::start_at_ports(&data, &["--memcached", &address, "--memory", "64MiB"])
    };
    let mut killed = start("killed");
    killed.signal("KILL");
    assert_eq!(killed.wait().code(), None);
    assert!(path.exists(), "what was killed removes nothing");
    let mut server = start("next");
    let version = |path: &Path| talk(UnixStream::connect(path).expect("it listens"), "version\r\n", "\r\n");
    assert!(version(&path).starts_with("VERSION "));

    let line = refusal(&["--memcached", &address]);
    assert!(
        line.contains(&format!("memcached.address = \"{address}\": address already in use; allowed:")),
        "{line}"
    );
    assert!(version(&path).starts_with("VERSION "), "the live one is untouched");

    // Another file has taken the name meanwhile: the node does not remove what is not its own.
    fs::remove_file(&path).expect("removed");
    let other = UnixListener::bind(&path).expect("bound");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.output());
    assert!(path.exists());
    drop(other);

    let file = scratch.file("file.sock", "precious");
    let line = refusal(&["--memcached", &format!("unix:{file}")]);
    assert!(line.contains("something else than a socket has this name"), "{line}");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "precious");
    let link = scratch.path().join("link.sock");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let line = refusal(&["--memcached", &format!("unix:{}", link.display())]);
    assert!(line.contains("something else than a socket has this name"), "{line}");

    let datagram = scratch.path().join("datagram.sock");
    let _held = UnixDatagram::bind(&datagram).expect("bound");
    let line = refusal(&["--memcached", &format!("unix:{}", datagram.display())]);
    assert!(line.contains("address already in use"), "{line}");
    assert!(fs::symlink_metadata(&datagram).expect("it is there").file_type().is_socket());
    let line = refusal(&["--memcached", "unix:/nonexistent/node.sock"]);
    assert!(line.contains("no such file or directory; allowed: a new name in a directory"), "{line}");
}

#[test]
fn the_mode_does_not_depend_on_the_umask_and_is_never_wider_on_the_way() {
    for umask in ["000", "077", "777"] {
        let scratch = Scratch::new();
        let path = scratch.path().join("node.sock");
        let command = format!(
            "umask {umask}; exec \"$0\" serve --memcached 'unix:{},640' --kv none --http none --log-level warn \
            --memory 64MiB",
            path.display()
        );
        let mut child = std::process::Command::new("sh")
            .args(["-c", &command, env!("CARGO_BIN_EXE_dormouse")])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("runs");
        let mut first = [0; 1];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("the banner");
        assert_eq!(mode(&path), 0o640, "umask {umask}");
        let status =
            std::process::Command::new("kill").arg(child.id().to_string()).status().expect("kill runs");
        assert!(status.success() && child.wait().expect("ends").success());
        assert!(!path.exists());
    }
}
