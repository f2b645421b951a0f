//! The control socket of `ovsdb-server`: the stock server's answers.
#![allow(clippy::expect_used)]

mod binary;

use binary::ovsdb::{detached, scratch};
use serde_json::json;

#[test]
fn wrong_commands_and_arguments_have_the_stock_words() {
    let scratch = scratch();
    let server = detached(&scratch, &["@/test.db"]);
    for (command, arguments, expected) in [
        (
            "nope",
            &[][..],
            "\"nope\" is not a valid command (use \"list-commands\" to see a list of valid commands)",
        ),
        ("version", &["x"], "\"version\" command takes at most 0 arguments"),
        ("ovsdb-server/add-db", &[], "\"ovsdb-server/add-db\" command requires at least 1 arguments"),
        ("ovsdb-server/tlog-set", &["a"], "\"ovsdb-server/tlog-set\" command requires at least 2 arguments"),
        ("ovsdb-server/compact", &["a", "b"], "\"ovsdb-server/compact\" command takes at most 1 arguments"),
        ("ovsdb-server/compact", &["nope"], "no database by that name"),
        ("ovsdb-server/compact", &["_Server"], "cannot compact built-in databases"),
        ("ovsdb-server/remove-db", &["_Server"], "Cannot remove reserved database."),
        ("ovsdb-server/remove-db", &["nope"], "Failed to find the database."),
        ("ovsdb-server/get-db-storage-status", &["nope"], "Failed to find the database."),
        ("ovsdb-server/add-remote", &["db:foo"], "\"db:foo\": invalid syntax"),
        ("ovsdb-server/remove-remote", &["foo"], "no such remote"),
        ("ovsdb-server/memory-trim-on-compaction", &["foo"], "invalid argument"),
        ("ovsdb-server/tlog-set", &["Test:T", "foo"], "invalid command argument"),
        ("ovsdb-server/tlog-set", &["Test:U", "on"], "no such table"),
        ("coverage/read-counter", &["foo"], "No such counter"),
        ("vlog/set", &["foo"], "no destination, level, or module \"foo\""),
        ("vlog/set", &["info dbg"], "cannot specify multiple levels"),
        ("vlog/set", &["PATTERN:foo:x"], "unknown destination \"foo\""),
        ("vlog/set", &["FACILITY:xx"], "invalid facility"),
        ("vlog/disable-rate-limit", &["foo"], "unknown module"),
    ] {
        let answer = server.control(command, arguments);
        assert_eq!(answer, Err(format!("{expected}\n")), "{command} {arguments:?}");
    }
}

#[test]
fn databases_come_go_and_are_compacted() {
    let scratch = scratch();
    let server = detached(&scratch, &["@/test.db"]);
    let file = server.path("test.db").display().to_string();
    let already = Err(format!("ovsdb error: {file}: already open\n"));
    assert_eq!(server.control("ovsdb-server/add-db", &[&file]), already);
    assert_eq!(server.control("ovsdb-server/list-dbs", &[]), Ok("Test\n_Server\n".into()));
    let mut client = server.client();
    for n in 0..50 {
        let insert = json!({ "op": "insert", "table": "T", "row": { "name": "x".repeat(100), "n": n } });
        client.call(
            "transact",
            json!(["Test", insert, { "op": "delete", "table": "T", "where": [["n", "<", n]] }]),
        );
    }
    let before = std::fs::metadata(&file).expect("there").len();
    assert_eq!(server.control("ovsdb-server/compact", &[]), Ok(String::new()));
    let after = std::fs::metadata(&file).expect("there").len();
    assert!(after < before / 5, "{before} {after}");
    assert!(server.log().contains("|ovsdb_server|INFO|compacting Test database by user request"));
    let row = json!(["Test", { "op": "select", "table": "T", "where": [], "columns": ["n"] }]);
    assert_eq!(client.call("transact", row.clone()), json!([{ "rows": [{ "n": 49 }] }]));
    assert_eq!(server.control("ovsdb-server/get-db-storage-status", &["Test"]), Ok("status: ok\n".into()));
    assert_eq!(server.control("ovsdb-server/remove-db", &["Test"]), Ok(String::new()));
    assert!(client.is_closed());
    assert_eq!(server.control("ovsdb-server/list-dbs", &[]), Ok("_Server\n".into()));
    assert_eq!(server.control("ovsdb-server/add-db", &[&file]), Ok(String::new()));
    assert_eq!(server.client().call("transact", row), json!([{ "rows": [{ "n": 49 }] }]));
    let figures = server.control("dormouse/figures", &[]).expect("answers");
    assert!(figures.contains("\ncompactions: 1\n") && figures.contains("\nTest.rows: 1\n"), "{figures}");
}

#[test]
fn remotes_come_and_go() {
    let scratch = scratch();
    let server = detached(&scratch, &["@/test.db"]);
    let remote = format!("punix:{}", server.path("sock").display());
    assert_eq!(server.control("ovsdb-server/add-remote", &["ptcp:0:127.0.0.1"]), Ok(String::new()));
    let log = server.log();
    assert!(log.contains("|socket_util|INFO|0:127.0.0.1: listening on port "), "{log}");
    let listed = Ok(format!("ptcp:0:127.0.0.1\n{remote}\n"));
    assert_eq!(server.control("ovsdb-server/list-remotes", &[]), listed);
    let mut client = server.client();
    client.call("echo", json!([]));
    let shown = server.control("memory/show", &[]).expect("answers");
    let (bytes, counts): (Vec<_>, Vec<_>) = shown
        .split_whitespace()
        .partition(|word| word.split(':').next().is_some_and(|name| name.ends_with("-bytes")));
    assert_eq!(counts.join(" "), "atoms:14 cells:20 monitors:0 n-weak-refs:0 sessions:1");
    let names: Vec<_> = bytes.iter().filter_map(|word| word.split(':').next()).collect();
    assert_eq!(names, ["history-bytes", "index-bytes", "record-bytes", "resident-bytes"], "{shown}");
    assert_eq!(server.control("ovsdb-server/reconnect", &[]), Ok(String::new()));
    assert!(client.is_closed());
    assert!(server.log().contains(": disconnecting (user ran ovsdb-server/reconnect)"));
    assert_eq!(server.control("ovsdb-server/remove-remote", &[&remote]), Ok(String::new()));
    assert!(!server.path("sock").exists());
}

#[test]
fn the_log_is_governed() {
    let scratch = scratch();
    let server = detached(&scratch, &["@/test.db"]);
    assert_eq!(server.control("vlog/set", &["jsonrpc:file:dbg", "raft:syslog:off"]), Ok(String::new()));
    let list = server.control("vlog/list", &[]).expect("answers");
    assert!(list.starts_with("                 console    syslog    file\n"), "{list}");
    assert!(list.contains("\njsonrpc            OFF       INFO        DBG\n"), "{list}");
    assert!(list.contains("\nraft               OFF        OFF       INFO\n"), "{list}");
    let patterns = server.control("vlog/list-pattern", &[]).expect("answers");
    assert!(
        patterns.contains("FILE     none                              %D{%Y-%m-%dT%H:%M:%S.###Z}|"),
        "{patterns}"
    );
    // As log rotation does.
    std::fs::rename(server.path("log"), server.path("log.1")).expect("renamed");
    assert_eq!(server.control("vlog/reopen", &[]), Ok(String::new()));
    assert!(server.log().contains("|vlog|INFO|opened log file "));
    assert_eq!(server.control("vlog/set", &["PATTERN:file:%p %m"]), Ok(String::new()));
    assert_eq!(server.control("ovsdb-server/memory-trim-on-compaction", &["on"]), Ok(String::new()));
    assert!(server.log().ends_with("\nINFO memory trimming after compaction enabled.\n"), "{}", server.log());
}
