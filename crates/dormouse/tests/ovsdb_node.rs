//! OVSDB databases of a node: tenants beside buckets.
#![allow(clippy::expect_used)]

mod binary;

use binary::ovsdb::{Client, DATABASE};
use binary::{Scratch, Server, dormouse};
use serde_json::json;
use std::net::TcpStream;

fn configuration(scratch: &Scratch) -> String {
    let file = scratch.file("test.db", DATABASE);
    let socket = scratch.path().join("sock");
    let socket = socket.display();
    scratch.file(
        "node.toml",
        &format!(
            "[node]\nmemory = \"64MiB\"\n[[ovsdb]]\nfile = \"{file}\"\n\
             remotes = \"punix:{socket} ptcp:0:127.0.0.1\"\nmemory = \"16MiB\"\n"
        ),
    )
}

fn rows_of_many(n: usize) -> serde_json::Value {
    let insert = json!({ "op": "insert", "table": "T", "row": { "name": "x".repeat(10_000) } });
    let mut operations = vec![json!("Test")];
    operations.extend(vec![insert; n]);
    json!(operations)
}

#[test]
fn a_database_is_a_tenant_of_the_node() {
    let scratch = Scratch::new();
    let file = configuration(&scratch);
    let mut server = Server::start_in(scratch, &["--config", &file]);
    let mut client = Client::connect(&server.scratch().path().join("sock"));
    assert_eq!(client.call("list_dbs", json!([])), json!(["Test", "_Server"]));
    client.call("transact", rows_of_many(3));
    let (status, text) = server.http("GET", "/metrics", None, "");
    assert_eq!(status, 200);
    for line in [
        "dormouse_database_rows{database=\"Test\"} 3",
        "dormouse_database_budget_bytes{database=\"Test\"} 16777216",
        "# TYPE dormouse_database_commits_total counter",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
    }
    let resident = text
        .lines()
        .find_map(|line| line.strip_prefix("dormouse_database_resident_bytes{database=\"Test\"} "));
    assert!(resident.and_then(|bytes| bytes.parse().ok()).is_some_and(|bytes: u64| bytes > 30_000), "{text}");
    // The other tenants are still served.
    let mut memcached: TcpStream = server.memcached();
    assert_eq!(binary::exchange(&mut memcached, b"set k 0 0 1\r\nx\r\n", "\r\n"), "STORED\r\n");
    // A database over its budget refuses writes and keeps running.
    let answer = client.call("transact", rows_of_many(2000));
    assert!(answer.to_string().contains("resources exhausted"), "{answer}");
    let count = json!(["Test", { "op": "select", "table": "T", "where": [], "columns": ["_uuid"] }]);
    assert_eq!(client.call("transact", count)[0]["rows"].as_array().map(Vec::len), Some(3));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.output());
    assert!(!server.scratch().path().join("sock").exists());
}

#[test]
fn mistakes_are_one_line() {
    let scratch = Scratch::new();
    let file = scratch.file("node.toml", "[[ovsdb]]\nfile = \"/none.db\"\n");
    let ports = ["--memcached", "none", "--kv", "none", "--http", "127.0.0.1:0"];
    let output = dormouse(&["serve", "--config", &file]).args(ports).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected =
        "dormouse: ovsdb.file = \"/none.db\": I/O error: /none.db: open failed (No such file or directory)";
    assert_eq!(text.lines().last(), Some(expected));
    assert_eq!(output.status.code(), Some(2));
    let file = scratch.file("node.toml", "[[ovsdb]]\nfile = \"x.db\"\nremotes = \"sctp:6640\"\n");
    let output = dormouse(&["config", "check", &file]).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains(":3: ovsdb.remotes = \"sctp:6640\": not allowed; allowed: punix:FILE,"), "{text}");
    let file = scratch.file("node.toml", "[[ovsdb]]\nfile = \"x.db\"\nremotes = \"pssl:6640\"\n");
    let output = dormouse(&["config", "check", &file]).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("ovsdb.remotes = \"pssl:6640\" needs tls.certificate"), "{text}");
}
