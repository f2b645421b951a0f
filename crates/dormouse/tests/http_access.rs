//! Access control over HTTP: web pages, idle and slow clients, password guessing; updates, flushes, health.
#![allow(clippy::expect_used)]

mod binary;

use binary::{Scratch, Server, exchange};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// `Administrator:password`.
const DEVELOPMENT: &str = "QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==";
/// `Administrator:wrong`.
const WRONG: &str = "QWRtaW5pc3RyYXRvcjp3cm9uZw==";
const CREATE: &str = "name=b&bucketType=ephemeral&ramQuota=16";
const BUCKETS: &str = "/pools/default/buckets";

fn start(arguments: &[&str]) -> Server {
    Server::start(&[&["--memory", "64MiB"], arguments].concat())
}

#[test]
fn a_web_page_cannot_drive_the_node() {
    let server = start(&[]);
    let login = format!("Authorization: Basic {DEVELOPMENT}\r\n");
    let browser = "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n";
    let post = |headers: &str| server.http_with("POST", BUCKETS, &format!("{login}{headers}"), CREATE).0;
    for (headers, status) in [
        ("Host: rebound.example:8091\r\n", 421),
        ("Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n", 403),
        ("Host: 127.0.0.1\r\nOrigin: null\r\n", 403),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n", 403),
        ("Host: 127.0.0.1\r\nSec-Fetch-Site: same-site\r\n", 403),
        ("Host: 127.0.0.1\r\nReferer: http://evil.example/\r\n", 403),
        (&format!("Host: 127.0.0.1\r\n{browser}"), 403),
    ] {
        assert_eq!(post(headers), status, "{headers}");
    }
    for path in ["/", "/health", "/pools", "/metrics", "/nowhere"] {
        let (status, body) = server.http_with("GET", path, "Host: rebound.example\r\n", "");
        assert!(status == 421 && body.contains("http.host_names"), "{path}: {status} {body}");
        assert_eq!(
            server.http_with("GET", path, "Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n", "").0,
            403
        );
    }
    assert_eq!(server.http("GET", &format!("{BUCKETS}/b"), None, "").0, 404, "none of them made it");
    // What SDKs and tools send, and a page served by the node itself.
    for (headers, method, status) in [
        ("Host: localhost:8091\r\nUser-Agent: curl/8.5.0\r\n", "POST", 202),
        ("Host: localhost:8091\r\nUser-Agent: okhttp/4.12.0\r\n", "DELETE", 200),
        ("Host: [::1]:8091\r\nUser-Agent: gocbcore/v10\r\n", "POST", 202),
        (&format!("Host: 10.1.2.3:8091\r\n{browser}Origin: http://10.1.2.3:8091\r\n"), "DELETE", 200),
        (&format!("Host: 10.1.2.3:8091\r\n{browser}X-Requested-With: script\r\n"), "POST", 202),
    ] {
        let path = if method == "POST" { BUCKETS.to_owned() } else { format!("{BUCKETS}/b") };
        assert_eq!(
            server.http_with(method, &path, &format!("{login}{headers}"), CREATE).0,
            status,
            "{headers}"
        );
    }
    let named = start(&["--http-host-names", "db1.example node"]);
    for (host, status) in [("db1.example", 200), ("NODE:8091", 200), ("db2.example", 421)] {
        assert_eq!(named.http_with("GET", "/health", &format!("Host: {host}\r\n"), "").0, status, "{host}");
    }
}

#[test]
fn a_request_without_a_host_is_refused() {
    let server = start(&[]);
    for path in ["/", "/health", "/pools", "/nowhere"] {
        for (version, host, status) in [
            ("1.1", "", "400"),
            ("1.1", "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n", "400"),
            ("1.1", "Host: evil.example\r\n", "421"),
            ("1.0", "", if path == "/nowhere" { "404" } else { "200" }),
        ] {
            let request = format!("GET {path} HTTP/{version}\r\n{host}Connection: close\r\n\r\n");
            let mut answer = String::new();
            open(&server, request.as_bytes()).read_to_string(&mut answer).expect("an answer");
            assert_eq!(answer.get(9..12), Some(status), "{request}{answer}");
        }
    }
}

/// Opens a connection and sends these bytes.
fn open(server: &Server, bytes: &[u8]) -> TcpStream {
    let mut stream = server.http_connection();
    stream.write_all(bytes).expect("sent");
    stream
}

/// Reads until the peer closes the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).is_ok() || rest.is_empty()
}

#[test]
fn idle_and_half_sent_requests_do_not_keep_others_out() {
    let server = start(&[]);
    let login = format!("Authorization: Basic {DEVELOPMENT}\r\n");
    let mut administrator = server.http_connection();
    let whoami = format!("GET /whoami HTTP/1.1\r\nHost: 127.0.0.1\r\n{login}\r\n");
    exchange(&mut administrator, whoami.as_bytes(), "}");
    let mut held = Vec::new();
    for _ in 0..700 {
        held.push(open(&server, b"GET /health HTTP/1.1\r\nHost: 127.0"));
    }
    assert_eq!(server.http("GET", "/health", None, "").0, 200);
    for _ in 0..700 {
        let mut idle = server.http_connection();
        exchange(&mut idle, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "}");
        held.push(idle);
    }
    assert_eq!(server.http("GET", "/health", None, "").0, 200);
    assert_eq!(server.http("POST", BUCKETS, Some(DEVELOPMENT), CREATE).0, 202);
    // Logged-in clients stay; the first of the others was disconnected.
    exchange(&mut administrator, whoami.as_bytes(), "}");
    assert!(is_closed(held.first_mut().expect("some")));
}

#[test]
fn streams_are_counted_apart_and_bounded() {
    let server = start(&[]);
    let request = b"GET /pools/default/bs/default HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let mut streams = Vec::new();
    for _ in 0..128 {
        let mut stream = server.http_connection();
        exchange(&mut stream, request, "\n\n\n\n\r\n");
        streams.push(stream);
    }
    let path = "/pools/default/bs/default";
    assert_eq!(server.http("GET", path, None, "").0, 503);
    assert_eq!(server.http("GET", "/health", None, "").0, 200);
    // A logged-in client displaces one that is not.
    let login =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {DEVELOPMENT}\r\n\r\n");
    exchange(&mut server.http_connection(), login.as_bytes(), "\n\n\n\n\r\n");
    assert!(is_closed(streams.first_mut().expect("some")));
}

#[test]
fn a_head_without_end_is_cut_off() {
    let server = start(&[]);
    let mut stream = open(&server, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n");
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    let sent = (0..100_000).take_while(|_| stream.write_all(line.as_bytes()).is_ok()).count();
    assert!(sent < 100_000, "100 MB of headers were taken");
    assert_eq!(server.http("GET", "/health", None, "").0, 200);
}

fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = server.http("GET", "/metrics", None, "");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).expect("the metric is there")
}

/// A SASL PLAIN login on the Couchbase port; returns the status.
fn plain(stream: &mut TcpStream, message: &[u8]) -> u16 {
    let (mechanism, length) = (b"PLAIN", u8::try_from(5 + message.len()).expect("short"));
    let mut frame = vec![0x80, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, length];
    frame.resize(24, 0);
    frame.extend(mechanism);
    frame.extend(message);
    stream.write_all(&frame).expect("sent");
    let mut head = [0; 24];
    stream.read_exact(&mut head).expect("an answer");
    let body = u32::from_be_bytes([head[8], head[9], head[10], head[11]]);
    std::io::copy(&mut stream.take(u64::from(body)), &mut std::io::sink()).expect("its body");
    u16::from_be_bytes([head[6], head[7]])
}

#[test]
fn guessing_passwords_is_slowed_down_counted_and_logged_once() {
    let server = start(&[]);
    let mut kv = server.kv();
    assert_eq!(plain(&mut kv, b"\0Administrator\0password"), 0);
    for _ in 0..1000 {
        assert_eq!(plain(&mut kv, b"\0Administrator\0wrong"), 0x20);
    }
    let (failed, refused) =
        (metric(&server, "dormouse_logins_failed_total"), metric(&server, "dormouse_logins_refused_total"));
    assert_eq!(failed, 1000);
    assert!((900..1000).contains(&refused), "{refused}");
    for _ in 0..100 {
        assert_eq!(server.http("POST", BUCKETS, Some(WRONG), CREATE).0, 401);
    }
    assert_eq!(metric(&server, "dormouse_logins_failed_total"), 1100);
    let lines = server.output().lines().filter(|line| line.contains("logins failed")).count();
    assert!((1..20).contains(&lines), "{lines} lines:\n{}", server.output());
}

#[test]
fn memcached_logins_are_slowed_down_too() {
    let scratch = Scratch::new();
    let password = scratch.file("password", "secret\n");
    let arguments = ["--memory", "64MiB", "--user", "ada", "--password-file", &password];
    let server = Server::start_in(scratch, &arguments);
    let mut memcached = server.memcached();
    // In one packet, so that all arrive at once: the correct password is refused too.
    let all = "set x 0 0 9\r\nada wrong\r\n".repeat(12) + "set x 0 0 10\r\nada secret\r\n";
    let answers = "CLIENT_ERROR authentication failure\r\n".repeat(13);
    assert_eq!(exchange(&mut memcached, all.as_bytes(), &answers), answers);
    server.wait_until(
        &|| exchange(&mut server.memcached(), b"set x 0 0 10\r\nada secret\r\n", "\r\n") == "STORED\r\n",
        "the end of the delay",
    );
}

#[test]
fn a_password_file_that_others_may_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    for (mode, warned) in [(0o644, true), (0o600, false), (0o640, false), (0o620, true)] {
        let scratch = Scratch::new();
        let password = scratch.file("password", "secret\n");
        std::fs::set_permissions(&password, std::fs::Permissions::from_mode(mode)).expect("a mode");
        let server = Server::start_in(scratch, &["--memory", "64MiB", "--password-file", &password]);
        let words = "the password file can be read or changed by others";
        assert_eq!(server.output().contains(words), warned, "{mode:o}: {}", server.output());
    }
}

#[test]
fn buckets_are_updated_and_flushed_over_http() {
    let server = start(&[]);
    let post =
        |path: &str, form: &str| server.http("POST", &format!("{BUCKETS}{path}"), Some(DEVELOPMENT), form);
    let show = || {
        let (_, body) = server.http("GET", &format!("{BUCKETS}/default"), None, "");
        serde_json::from_str::<serde_json::Value>(&body).expect("JSON")
    };
    let mut client = server.memcached();
    exchange(&mut client, b"set k 0 0 1\r\nx\r\n", "STORED\r\n");
    let (status, body) = post("/default/controller/doFlush", "");
    assert_eq!((status, body.as_str()), (400, r#"{"_":"Flush is disabled for the bucket"}"#));
    exchange(&mut client, b"get k\r\n", "VALUE k 0 1\r\nx\r\nEND\r\n");
    // As SDKs send it: every field they know.
    let form = "name=default&bucketType=ephemeral&ramQuotaMB=20&flushEnabled=1&replicaNumber=0\
                &evictionPolicy=nruEviction\
                &maxTTL=0\
                &compressionMode=off&durabilityMinLevel=none&replicaIndex=0";
    assert_eq!(post("/default", form), (200, String::new()));
    assert_eq!(show()["quota"]["ram"], 20 << 20);
    assert_eq!(show()["compressionMode"], "off");
    assert_eq!(show()["controllers"]["flush"], "/pools/default/buckets/default/controller/doFlush");
    assert_eq!(post("/default/controller/doFlush", ""), (200, String::new()));
    exchange(&mut client, b"get k\r\n", "END\r\n");
    for (form, words) in [
        ("evictionPolicy=noEviction", "fixed"),
        ("numVBuckets=64", "fixed"),
        ("ramQuota=65", "at most 64 MiB"),
        ("flushEnabled=maybe", "flushEnabled"),
        ("conflictResolutionType=lww", "not allowed in update bucket"),
        ("historyRetentionSeconds=5", "magma"),
    ] {
        let (status, body) = post("/default", form);
        assert!(status == 400 && body.contains(words), "{form}: {status} {body}");
    }
    // What it is for is left to the server, as in Couchbase.
    let ignored = "name=other&bucketType=couchbase&colour=red&numReplicas=2&conflictResolutionType=seqno";
    assert_eq!(post("/default", ignored), (200, String::new()));
    assert_eq!(show()["bucketType"], "ephemeral");
    assert_eq!(post("/default", "enableCrossClusterVersioning=true&versionPruningWindowHrs=24").0, 200);
    assert_eq!(
        (&show()["enableCrossClusterVersioning"], &show()["versionPruningWindowHrs"]),
        (&true.into(), &24.into())
    );
    assert_eq!(post("/default", "enableCrossClusterVersioning=false").0, 400);
    assert_eq!(post("/default", "flushEnabled=0").0, 200);
    assert_eq!(post("/default/controller/doFlush", "").0, 400);
    assert_eq!(post("/none/controller/doFlush", "").0, 404);
    assert_eq!(server.http("POST", &format!("{BUCKETS}/default/controller/doFlush"), None, "").0, 401);
}

#[test]
fn what_is_changed_of_a_persistent_bucket_is_kept() {
    let mut server = Server::start(&["--memory", "64MiB"]);
    let form = "name=p&bucketType=membase&ramQuota=16&flushEnabled=1";
    assert_eq!(server.http("POST", BUCKETS, Some(DEVELOPMENT), form).0, 202);
    assert_eq!(server.http("POST", &format!("{BUCKETS}/p"), Some(DEVELOPMENT), "ramQuota=24").0, 200);
    server.signal("TERM");
    assert!(server.wait().success());
    let server = server.again(&["--memory", "64MiB"]);
    let (_, body) = server.http("GET", &format!("{BUCKETS}/p"), None, "");
    let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(document["quota"]["ram"], 24 << 20);
    assert!(document["controllers"]["flush"].is_string(), "{document}");
}

#[test]
fn collections_are_changed_and_users_are_told_as_they_are() {
    let server = start(&[]);
    let scopes = format!("{BUCKETS}/default/scopes");
    let shown = || -> serde_json::Value {
        let (status, body) = server.http("GET", &scopes, None, "");
        assert_eq!(status, 200);
        serde_json::from_str(&body).expect("JSON")
    };
    assert_eq!(shown()["uid"], "1");
    assert_eq!(shown()["scopes"][0]["collections"][0]["name"], "_default");
    assert_eq!(shown()["scopes"][1]["name"], "_system");
    for (method, path, form) in [
        ("POST", String::new(), "name=a"),
        ("POST", "/a/collections".into(), "name=b"),
        ("PATCH", "/a/collections/b".into(), "maxTTL=5"),
        ("DELETE", "/a/collections/b".into(), ""),
        ("DELETE", "/a".into(), ""),
    ] {
        let path = format!("{scopes}{path}");
        assert_eq!(server.http(method, &path, None, form).0, 401, "{method} {path}");
        let other = path.replace("/default/scopes", "/none/scopes");
        assert_eq!(server.http(method, &other, Some(DEVELOPMENT), "").0, 404, "{method} {other}");
        let (status, body) = server.http(method, &path, Some(DEVELOPMENT), form);
        assert!(status == 200 && body.contains("uid"), "{method} {path}: {status} {body}");
    }
    assert_eq!(shown()["uid"], "6");
    assert_eq!(server.http("GET", &format!("{BUCKETS}/none/scopes"), None, "").0, 404);
    let (status, body) = server.http("GET", "/pools/default/nothing", Some(DEVELOPMENT), "");
    assert!(status == 404 && body.contains("GET /pools/default/nothing"), "{status} {body}");
    assert_eq!(server.http("GET", &format!("{BUCKETS}/default/"), None, "").0, 200);
    let (status, body) = server.http("GET", "/settings/rbac/users/admin", None, "");
    assert!(status == 200 && body.contains(r#""id":"Administrator""#), "{body}");
    assert_eq!(server.http("GET", "/settings/rbac/users/local", None, ""), (200, "[]".to_owned()));
    assert_eq!(server.http("GET", "/settings/rbac/users/local/Administrator", None, "").0, 404);
    assert_eq!(server.http("GET", "/settings/rbac/users/local/nobody", None, "").0, 404);
    let (status, body) =
        server.http("PUT", "/settings/rbac/users/local/Administrator", Some(DEVELOPMENT), "password=secret");
    assert!(status == 400 && body.contains("configuration"), "{status} {body}");
    let (status, body) =
        server.http("PUT", "/settings/rbac/users/local/bob", Some(DEVELOPMENT), "password=x");
    assert!(status == 400 && body.contains("at least 6 characters"), "{status} {body}");
}

#[test]
fn exporters_find_a_buckets_figures() {
    let server = start(&[]);
    let (status, body) = server.http("GET", &format!("{BUCKETS}/default/stats"), None, "");
    assert_eq!(status, 200, "{body}");
    let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let samples = document["op"]["samples"].as_object().expect("samples");
    for name in [
        "curr_items",
        "curr_items_tot",
        "cmd_get",
        "mem_used",
        "ep_max_size",
        "ep_tmp_oom_errors",
        "timestamp",
    ] {
        assert_eq!(samples[name].as_array().map(Vec::len), Some(1), "{name}");
    }
    assert_eq!(
        (&document["op"]["isPersistent"], &document["op"]["samplesCount"]),
        (&false.into(), &1.into())
    );
    assert_eq!(server.http("GET", &format!("{BUCKETS}/none/stats"), None, "").0, 404);
}

#[test]
fn liveness_and_readiness_can_be_told_apart() {
    let server = start(&["--bucket", "default,ephemeral,16MiB", "--bucket", "p,persistent,16MiB"]);
    server.wait_until(
        &|| server.http("GET", "/health", None, "") == (200, r#"{"status":"ok"}"#.into()),
        "health",
    );
    assert_eq!(server.http("GET", "/health/ready", None, ""), (200, r#"{"status":"ok"}"#.into()));
    assert_eq!(server.http("GET", "/health/live", None, ""), (200, r#"{"status":"alive"}"#.into()));
}

#[test]
fn a_nodes_name_has_no_line_breaks() {
    let server = start(&[]);
    let path = format!("{BUCKETS}/default/vbuckets/7");
    let form = "topology=%5B%5B%22us%5Cr%5CnSTAT%20x%20y%22%5D%5D";
    let (status, body) = server.http("POST", &path, Some(DEVELOPMENT), form);
    assert!(status == 400 && body.contains("control characters"), "{status} {body}");
}

/// What `promtool check metrics` rejects in names.
#[test]
fn metrics_follow_the_conventions() {
    let server = start(&["--bucket", "default,ephemeral,16MiB", "--bucket", "p,persistent,16MiB"]);
    let (_, text) = server.http("GET", "/metrics", None, "");
    let mut kinds = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            for part in name.split('_') {
                let abbreviated = ["s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "m", "h", "d"];
                let other = [
                    "microseconds",
                    "milliseconds",
                    "kilobytes",
                    "minutes",
                    "counter",
                    "gauge",
                    "count",
                    "sum",
                    "bucketed",
                ];
                assert!(!abbreviated.contains(&part) && !other.contains(&part), "{name}");
            }
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            assert!(kinds.contains_key(name), "{line}: without a TYPE before it");
        }
    }
    assert!(kinds.contains_key("dormouse_bucket_defragmenting_seconds_total"));
    assert!(kinds.contains_key("dormouse_bucket_journal_sync_seconds_total"));
    assert_eq!(text.matches("# HELP ").count(), kinds.len());
}
