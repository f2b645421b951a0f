//! A running node: published addresses, signals, reload, login over HTTP, buckets over HTTP, metrics, idleness.
#![allow(clippy::expect_used)]

mod binary;

use binary::{Scratch, Server, dormouse, exchange};
use std::fs;
use std::time::Duration;

/// base64 of `Administrator:password`.
const DEVELOPMENT: &str = "QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==";
/// base64 of `ada:secret`.
const ADA: &str = "YWRhOnNlY3JldA==";

#[test]
fn it_serves_says_where_and_drains_on_sigterm() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&["--memory", "64MiB"]);
        assert_eq!(server.endpoints()["pid"], server.pid());
        assert_eq!(server.endpoints()["memcached"][0]["bucket"], "default");
        for kind in ["kv", "http"] {
            let address = server.endpoints()[kind][0].as_str().expect("an address").to_owned();
            server.wait_for_output(&address);
        }
        server.wait_for_output("development user");
        let mut client = server.memcached();
        assert_eq!(
            exchange(&mut client, b"set k 5 0 5\r\nhello\r\nget k\r\n", "END\r\n"),
            "STORED\r\nVALUE k 5 5\r\nhello\r\nEND\r\n"
        );
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{}", server.output());
        assert!(!server.scratch().path().join("data/endpoints.json").exists());
    }
}

#[test]
fn a_directory_serves_one_node_at_a_time() {
    let server = Server::start(&["--memory", "64MiB"]);
    let data = server.scratch().path().join("data").display().to_string();
    let ports = ["--memcached", "none", "--kv", "127.0.0.1:0", "--http", "none"];
    let second = dormouse(&["serve", "--data", &data]).args(ports).output().expect("runs");
    let line = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(
        line,
        format!(
            "dormouse: node.data = {data:?}: another node uses it; allowed: a directory of its own for each node\n"
        )
    );
    assert_eq!(second.status.code(), Some(2));
    assert!(server.scratch().path().join("data/endpoints.json").exists());
}

/// What the memcached port of a node serves, and what the node reports about it.
fn served(server: &Server) -> (String, String) {
    let bucket = server.endpoints()["memcached"][0]["bucket"].as_str().unwrap_or_default().to_owned();
    (bucket, exchange(&mut server.memcached(), b"get key\r\n", "END\r\n"))
}

#[test]
fn what_the_data_directory_holds_goes_before_the_bucket_that_nobody_asked_for() {
    let scratch = Scratch::new();
    let data = scratch.path().join("data").display().to_string();
    let start = |arguments: &[&str]| Server::start_at(&data, arguments);
    let mut server =
        start(&["--memory", "64MiB", "--bucket", "default,persistent", "--bucket", "other,persistent"]);
    assert_eq!(exchange(&mut server.memcached(), b"set key 0 0 5\r\nvalue\r\n", "\r\n"), "STORED\r\n");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.output());

    // Not named at all: the bucket on disk is served, not an empty ephemeral one.
    let mut server = start(&["--memory", "64MiB"]);
    server.wait_until(&|| served(&server).1.starts_with("VALUE"), "the document");
    assert_eq!(served(&server), ("default".into(), "VALUE key 0 5\r\nvalue\r\nEND\r\n".into()));
    let answer =
        server.http("POST", "/pools/default/buckets/default/backup", Some(DEVELOPMENT), "label=whole");
    assert_eq!(answer.0, 200, "{answer:?}");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.output());

    // Named only by a port, in either syntax.
    for port in ["127.0.0.1:0=other", "127.0.0.1:0,other"] {
        let mut server = Server::start_at_ports(&data, &["--memcached", port, "--memory", "64MiB"]);
        assert_eq!(server.endpoints()["memcached"][0]["bucket"], "other");
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{}", server.output());
    }
    let missing =
        dormouse(&["serve", "--data", &data, "--memcached", "127.0.0.1:0=third"]).output().expect("runs");
    let line = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(missing.status.code(), Some(2), "{line}");
    assert!(line.contains("\"third\": there is no such bucket; allowed: default, other"), "{line}");

    // Restored into a directory of its own, and served from there.
    let restored = scratch.path().join("restored").display().to_string();
    let backup = format!("{data}/backups/default/whole");
    let done = dormouse(&["journal", "restore", &backup, &restored]).output().expect("runs");
    assert!(done.status.success(), "{done:?}");
    let server = Server::start_at(&restored, &["--memory", "64MiB"]);
    server.wait_until(&|| served(&server).1.starts_with("VALUE"), "the restored document");
    server.wait_for_output("persistent bucket default in ");
}

#[test]
fn the_memcached_port_serves_the_only_bucket_that_is_named() {
    let server = Server::start(&["--memory", "64MiB", "--bucket", "cache,fail_new_data"]);
    assert_eq!(served(&server), ("cache".into(), "END\r\n".into()));
    let stats = exchange(&mut server.memcached(), b"stats settings\r\n", "END\r\n");
    assert!(stats.contains("STAT evictions off\r\n"), "{stats}");
}

#[test]
fn the_shutdown_command_stops_it_only_where_enabled() {
    let server = Server::start(&["--memory", "64MiB"]);
    let mut client = server.memcached();
    assert_eq!(exchange(&mut client, b"shutdown\r\n", "\r\n"), "SERVER_ERROR: shutdown not enabled\r\n");
    drop(server);
    let scratch = Scratch::new();
    let file = scratch.file("node.toml", "[node]\nshutdown_command = true\nmemory = \"64MiB\"\n");
    let mut server = Server::start_in(scratch, &["--config", &file]);
    std::io::Write::write_all(&mut server.memcached(), b"shutdown\r\n").expect("sent");
    assert_eq!(server.wait().code(), Some(0), "{}", server.output());
}

#[test]
fn sighup_applies_what_it_can_and_names_what_it_cannot() {
    let scratch = Scratch::new();
    let password = scratch.file("password", "secret\n");
    let file = scratch.file("node.toml", "[node]\nmemory = \"64MiB\"\n");
    let server =
        Server::start_in(scratch, &["--config", &file, "--user", "ada", "--password-file", &password]);
    assert_eq!(server.http("GET", "/pools", Some(ADA), "").0, 200);
    fs::write(&password, "changed\n").expect("written");
    fs::write(&file, "[node]\nmemory = \"128MiB\"\n[limits]\nconnections = 77\n").expect("written");
    server.signal("HUP");
    server.wait_for_output("node.memory");
    server.wait_for_output("limits.connections");
    assert_eq!(server.http("GET", "/pools", Some(ADA), "").0, 401);
    // base64 of ada:changed
    assert_eq!(server.http("GET", "/pools", Some("YWRhOmNoYW5nZWQ="), "").0, 200);
    // Threads come and go with the mode.
    let polls = || server.threads().iter().any(|name| name == "dm:durability");
    assert!(!polls());
    fs::write(&file, "[node]\nmemory = \"128MiB\"\ndurability_timeout_mode = \"polling\"\n")
        .expect("written");
    server.signal("HUP");
    server.wait_for_output("node.durability_timeout_mode");
    server.wait_until(&polls, "the polling thread");
    fs::write(&file, "[node]\nmemory = \"128MiB\"\n").expect("written");
    server.signal("HUP");
    server.wait_until(&|| !polls(), "its end");
    let defragmenter = || {
        let (_, body) = server.http("GET", "/pools/default/buckets/default", Some("YWRhOmNoYW5nZWQ="), "");
        serde_json::from_str::<serde_json::Value>(&body).expect("JSON")["defragmenter"].clone()
    };
    assert_eq!(defragmenter(), "on");
    let bucket = "[[bucket]]\nname = \"default\"\ndefragmenter = \"off\"\n";
    fs::write(&file, format!("[node]\nmemory = \"128MiB\"\n{bucket}")).expect("written");
    server.signal("HUP");
    server.wait_until(&|| defragmenter() == "off", "the switch");
    // A file with a mistake changes nothing, and the node keeps running.
    fs::write(&file, "[node]\nmemroy = 1\n").expect("written");
    server.signal("HUP");
    server.wait_for_output("unknown key node.memroy");
    assert_eq!(server.http("GET", "/health", None, "").0, 200);
}

#[test]
fn reads_need_a_login_with_a_password_of_ones_own_and_changes_always() {
    let server = Server::start(&["--memory", "64MiB"]);
    let create = "name=b&bucketType=ephemeral&ramQuota=16";
    for path in ["/", "/health", "/pools", "/pools/default", "/pools/default/buckets", "/metrics"] {
        assert_eq!(server.http("GET", path, None, "").0, 200, "{path}");
    }
    assert_eq!(server.http("GET", "/pools", Some(ADA), "").0, 401);
    assert_eq!(server.http("POST", "/pools/default/buckets", None, create).0, 401);
    assert_eq!(server.http("POST", "/pools/default/buckets", Some(ADA), create).0, 401);
    assert_eq!(server.http("DELETE", "/pools/default/buckets/default", None, "").0, 401);

    let scratch = Scratch::new();
    let password = scratch.file("password", "secret\n");
    let server =
        Server::start_in(scratch, &["--memory", "64MiB", "--user", "ada", "--password-file", &password]);
    for path in ["/", "/health"] {
        assert_eq!(server.http("GET", path, None, "").0, 200, "{path}");
    }
    for path in
        ["/pools", "/pools/default", "/pools/default/buckets/default", "/pools/default/b/default", "/metrics"]
    {
        assert_eq!(server.http("GET", path, None, "").0, 401, "{path}");
        assert_eq!(server.http("GET", path, Some(DEVELOPMENT), "").0, 401, "{path}");
        assert_eq!(server.http("GET", path, Some(ADA), "").0, 200, "{path}");
    }
    assert_eq!(server.http("POST", "/pools/default/buckets", Some(ADA), create).0, 202);
}

#[test]
fn buckets_come_and_go_over_http() {
    let server = Server::start(&["--memory", "64MiB"]);
    let buckets = "/pools/default/buckets";
    let post = |form: &str| server.http("POST", buckets, Some(DEVELOPMENT), form);
    assert_eq!(post("name=b&bucketType=ephemeral&ramQuota=16"), (202, String::new()));
    let (status, body) = server.http("GET", "/pools/default/buckets/b", None, "");
    let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 200);
    assert_eq!(document["name"], "b");
    assert_eq!(document["nodes"][0]["status"], "healthy");
    assert_eq!(document["quota"]["ram"], 16 << 20);
    assert_eq!(document["vBucketServerMap"]["vBucketMap"].as_array().map(Vec::len), Some(1024));
    // The share of the first bucket shrank to what is left.
    let (_, body) = server.http("GET", "/pools/default/buckets/default", None, "");
    let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(document["quota"]["ram"], 48 << 20);

    for (form, words) in [
        ("name=b&bucketType=ephemeral&ramQuota=16", "Bucket with given name already exists"),
        ("name=c&bucketType=membase&ramQuota=16&evictionPolicy=nruEviction", "valueOnly"),
        ("name=c&bucketType=ephemeral&ramQuota=48", "at most 40 MiB"),
        ("name=c/d&bucketType=ephemeral&ramQuota=16", "name"),
    ] {
        let (status, body) = post(form);
        assert!(status == 400 && body.contains(words), "{form}: {status} {body}");
    }
    let change = |form: &str| server.http("POST", "/pools/default/buckets/b", Some(DEVELOPMENT), form).0;
    for (form, status, now) in [
        ("defragmenter=off", 200, "off"),
        ("defragmenter=maybe", 400, "off"),
        ("ramQuota=7", 400, "off"),
        ("defragmenter=on", 200, "on"),
    ] {
        assert_eq!(change(form), status, "{form}");
        let (_, body) = server.http("GET", "/pools/default/buckets/b", None, "");
        let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(document["defragmenter"], now, "{form}");
    }
    for (form, status, now) in [
        ("compressionMode=off", 200, "off"),
        ("compressionMode=zstd", 400, "off"),
        ("compressionMode=active", 200, "active"),
        ("compressionMode=passive", 200, "passive"),
    ] {
        assert_eq!(change(form), status, "{form}");
        let (_, body) = server.http("GET", "/pools/default/buckets/b", None, "");
        let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(document["compressionMode"], now, "{form}");
    }
    let delete = |name: &str| server.http("DELETE", &format!("{buckets}/{name}"), Some(DEVELOPMENT), "").0;
    assert_eq!(delete("b"), 200);
    assert_eq!(delete("b"), 404);
    assert_eq!(server.http("GET", "/pools/default/buckets/b", None, "").0, 404);
}

#[test]
fn vbuckets_have_states_and_chains_over_http() {
    let server = Server::start(&["--memory", "64MiB"]);
    let path = "/pools/default/buckets/default/vbuckets/7";
    let show = || {
        let shown: serde_json::Value =
            serde_json::from_str(&server.http("GET", path, None, "").1).expect("JSON");
        (shown["state"].to_string(), shown["topology"].to_string())
    };
    let set = |form: &str| server.http("POST", path, Some(DEVELOPMENT), form).0;
    let is = |state: &str, topology: &str| (format!("{state:?}"), topology.to_owned());
    assert_eq!(show(), is("active", "null"));
    assert_eq!(server.http("POST", path, None, "state=dead").0, 401);
    assert_eq!(set("topology=%5B%5B%22us%22%2C%22absent%22%5D%5D"), 200);
    assert_eq!(show(), is("active", r#"[["us","absent"]]"#));
    assert_eq!(set("state=replica&topology=null"), 200);
    assert_eq!(show(), is("replica", "null"));
    for form in ["state=alive", "topology=%5B%5D", "topology=%5B", "chain=us"] {
        assert_eq!(set(form), 400, "{form}");
    }
    for path in ["default/vbuckets/1024", "other/vbuckets/7"] {
        assert_eq!(server.http("GET", &format!("/pools/default/buckets/{path}"), None, "").0, 404);
    }
}

#[test]
fn the_stream_of_maps_tells_of_every_change() {
    let server = Server::start(&["--memory", "64MiB"]);
    let mut stream = server.http_connection();
    let request = b"GET /pools/default/bs/default HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let revision = |map: &str| {
        let (_, rest) = map.split_once("\"rev\":").expect("a revision");
        rest.split(',').next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
    };
    let first = revision(&exchange(&mut stream, request, "\n\n\n\n\r\n"));
    let form = "name=b&bucketType=ephemeral&ramQuota=16";
    assert_eq!(server.http("POST", "/pools/default/buckets", Some(DEVELOPMENT), form).0, 202);
    let second = revision(&exchange(&mut stream, b"", "\n\n\n\n\r\n"));
    assert!(second > first, "{first} {second}");
    assert_eq!(server.http("DELETE", "/pools/default/buckets/default", Some(DEVELOPMENT), "").0, 200);
    exchange(&mut stream, b"", "0\r\n\r\n");
}

#[test]
fn a_users_file_holds_users_as_memcached_has_them() {
    let scratch = Scratch::new();
    let users = scratch.file("users", "ann:s3cret\nbob@example.org:a:b c\n");
    let text = format!("[node]\nmemory = \"64MiB\"\n[auth]\nusers_file = {users:?}\n");
    let file = scratch.file("node.toml", &text);
    let server = Server::start_in(scratch, &["--config", &file]);
    let log_in = |block: &str| {
        let line = format!("set x 0 0 {}\r\n{block}\r\n", block.len());
        exchange(&mut server.memcached(), line.as_bytes(), "\r\n")
    };
    assert_eq!(log_in("ann s3cret"), "STORED\r\n");
    assert_eq!(log_in("bob a:b"), "CLIENT_ERROR authentication failure\r\n");
    assert_eq!(log_in("ann wrong"), "CLIENT_ERROR authentication failure\r\n");
    assert_eq!(log_in("Administrator password"), "CLIENT_ERROR authentication failure\r\n");
    assert_eq!(server.http("GET", "/pools", None, "").0, 401);
    // base64 of ann:s3cret and of bob@example.org:a:b c
    assert_eq!(server.http("GET", "/pools", Some("YW5uOnMzY3JldA=="), "").0, 200);
    assert_eq!(server.http("GET", "/pools", Some("Ym9iQGV4YW1wbGUub3JnOmE6YiBj"), "").0, 200);
    fs::write(&users, "bob@example.org:new\n").expect("written");
    server.signal("HUP");
    server.wait_for_output("auth.users_file");
    assert_eq!(log_in("bob@example.org new"), "STORED\r\n");
    assert_eq!(server.http("GET", "/pools", Some("YW5uOnMzY3JldA=="), "").0, 401);
    // A file with a mistake changes nothing.
    fs::write(&users, "bob\n").expect("written");
    server.signal("HUP");
    server.wait_for_output("line 1 is not user:password");
    assert_eq!(log_in("bob@example.org new"), "STORED\r\n");
}

#[test]
fn a_reload_does_not_change_whether_a_login_is_demanded() {
    let scratch = Scratch::new();
    let password = scratch.file("password", "secret\n");
    let file = scratch.file("node.toml", "[node]\nmemory = \"64MiB\"\n");
    let server = Server::start_in(scratch, &["--config", &file]);
    fs::write(&file, format!("[auth]\nuser = \"ada\"\npassword_file = {password:?}\n")).expect("written");
    server.signal("HUP");
    server.wait_for_output("needs a restart");
    assert_eq!(server.http("GET", "/pools", Some(DEVELOPMENT), "").0, 200);
    assert_eq!(server.http("GET", "/pools", Some(ADA), "").0, 401);
}

#[test]
fn bad_requests_are_refused_and_the_port_lives() {
    let server = Server::start(&["--memory", "64MiB"]);
    let post = |form: &str| server.http("POST", "/pools/default/buckets", Some(DEVELOPMENT), form).0;
    assert_eq!(post(&format!("name={}", "x".repeat(100 << 10))), 413);
    assert_eq!(post(&format!("name={}&bucketType=ephemeral&ramQuota=16", "x".repeat(101))), 400);
    assert_eq!(post("name=%ff%fe&bucketType=ephemeral&ramQuota=16"), 400);
    assert_eq!(post(""), 400);
    assert_eq!(server.http("PATCH", "/pools/default/buckets", Some(DEVELOPMENT), "").0, 405);
    assert_eq!(server.http("GET", "/pools/default/buckets/%00", None, "").0, 404);
    assert_eq!(server.http("GET", "/health", None, "").0, 200);
}

#[test]
fn metrics_come_from_the_table_of_meters() {
    let server = Server::start(&["--memory", "64MiB"]);
    let mut client = server.memcached();
    exchange(&mut client, b"set k 0 0 1\r\nx\r\nget k\r\nget none\r\n", "VALUE k 0 1\r\nx\r\nEND\r\nEND\r\n");
    let (_, text) = server.http("GET", "/metrics", None, "");
    for line in [
        "dormouse_bucket_get_hits_total{bucket=\"default\"} 1",
        "dormouse_bucket_get_misses_total{bucket=\"default\"} 1",
        "dormouse_bucket_cmd_set_total{bucket=\"default\"} 1",
        "dormouse_bucket_items{bucket=\"default\"} 1",
        "dormouse_bucket_budget_bytes{bucket=\"default\"} 67108864",
    ] {
        assert!(text.lines().any(|candidate| candidate == line), "{line} in\n{text}");
    }
    assert!(text.contains("# HELP dormouse_bucket_get_hits_total Retrievals that found a document"));
    assert!(!text.contains("# EOF"));
    let headers = "Host: 127.0.0.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n";
    let (_, open_metrics) = server.http_with("GET", "/metrics", headers, "");
    assert!(open_metrics.contains("# HELP dormouse_bucket_get_hits Retrievals that found a document"));
    assert!(open_metrics.ends_with("# EOF\n"));
}

/// Context switches of all threads, voluntary and involuntary.
fn context_switches(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let status = tasks
        .map(|task| fs::read_to_string(task.expect("a thread").path().join("status")).unwrap_or_default());
    let lines: Vec<String> =
        status.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.iter().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok()).sum()
}

#[test]
fn an_idle_node_does_nothing() {
    let server = Server::start(&["--memory", "64MiB"]);
    let _idle = server.memcached();
    // Starting and accepting cause a few late wake-ups, and the machine itself may cause one.
    let quiet = (0..4).any(|_| {
        let before = context_switches(server.pid());
        std::thread::sleep(Duration::from_secs(5));
        context_switches(server.pid()) == before
    });
    assert!(quiet, "something wakes up periodically");
}

#[test]
fn what_deletes_leave_behind_is_given_back_and_then_the_node_rests() {
    let server = Server::start(&["--memory", "512MiB", "--bucket", "default,ephemeral,256MiB"]);
    let mut stream = server.memcached();
    let value = "v".repeat(1000);
    for numbers in (0..60_000).collect::<Vec<u32>>().chunks(500) {
        let sets: String = numbers
            .iter()
            .map(|number| format!("set key-{number} 0 0 1000 noreply\r\n{value}\r\n"))
            .collect();
        exchange(&mut stream, (sets + "mn\r\n").as_bytes(), "MN\r\n");
    }
    // Three of every seven neighbours stay, so all slabs become equally sparse.
    for numbers in (0..60_000).filter(|number| number % 7 > 2).collect::<Vec<u32>>().chunks(500) {
        let deletes: String =
            numbers.iter().map(|number| format!("delete key-{number} noreply\r\n")).collect();
        exchange(&mut stream, (deletes + "mn\r\n").as_bytes(), "MN\r\n");
    }
    let statistics = || {
        let answer = exchange(&mut server.memcached(), b"stats defragmenter\r\n", "END\r\n");
        let figure = |name: &str| {
            let line = answer.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {answer}")).to_owned()
        };
        let number = |name: &str| figure(name).parse::<f64>().expect("a number");
        (figure("state"), number("defragmented_items"), number("resident") / number("used"))
    };
    let (_, _, before) = statistics();
    assert!(before > 1.5, "nothing to do: {before}");
    let has_worked = || statistics().1 > 0.0;
    server.wait_until(&has_worked, "the defragmenter");
    let rests = || statistics().0 == "disarmed";
    server.wait_until(&rests, "its rest");
    let (_, moved, after) = statistics();
    assert!(after < 1.15, "{after} of {before} is left after {moved} moves");
    // Freed memory is returned in steps of 5 s: the worker's, the arena's, then the allocator's own.
    let quiet = (0..8).any(|_| {
        let before = context_switches(server.pid());
        std::thread::sleep(Duration::from_secs(5));
        context_switches(server.pid()) == before
    });
    assert!(quiet, "something wakes up periodically");
}

/// The output of `stats` or one of its groups.
fn statistics(server: &Server, group: &str) -> std::collections::BTreeMap<String, String> {
    let answer = exchange(&mut server.memcached(), format!("stats{group}\r\n").as_bytes(), "END\r\n");
    let lines = answer.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The value of a metric without labels.
fn metric(server: &Server, name: &str) -> u64 {
    let (_, text) = server.http("GET", "/metrics", None, "");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name}")).parse().expect("a number")
}

#[test]
fn settings_are_those_of_the_port() {
    let scratch = Scratch::new();
    let config = scratch.path().join("dormouse.toml");
    let socket = scratch.path().join("m.sock").display().to_string();
    let text = format!(
        "[[memcached]]\naddress = \"127.0.0.1:0\"\nprotocol = \"text\"\nflush_all = false\nidle_timeout_s = 90\n\
         item_size_max = \"2MiB\"\n[[memcached]]\naddress = \"unix:{socket}\"\n"
    );
    fs::write(&config, text).expect("written");
    let data = scratch.path().join("data").display().to_string();
    let config = config.display().to_string();
    let server = Server::start_at_ports(&data, &["--config", &config, "--memory", "64MiB"]);
    let settings = statistics(&server, " settings");
    let port = server.memcached().peer_addr().expect("connected").port().to_string();
    for (name, value) in [
        ("tcpport", port.as_str()),
        ("inter", "127.0.0.1"),
        ("domain_socket", "NULL"),
        ("binding_protocol", "ascii"),
        ("flush_enabled", "no"),
        ("idle_timeout", "90"),
        ("item_size_max", "2097152"),
        ("auth_enabled_ascii", "no"),
        ("auth_enabled_sasl", "no"),
        ("stat_key_prefix", ":"),
        ("maxconns_fast", "yes"),
    ] {
        assert_eq!(settings.get(name).map(String::as_str), Some(value), "{name}");
    }
    let mut unix = std::os::unix::net::UnixStream::connect(&socket).expect("connected");
    std::io::Write::write_all(&mut unix, b"stats settings\r\nquit\r\n").expect("sent");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut unix, &mut answer).expect("an answer");
    for line in [
        &format!("domain_socket {socket}"),
        "binding_protocol auto-negotiate",
        "flush_enabled yes",
        "idle_timeout 0",
        "item_size_max 1048576",
    ] {
        assert!(answer.contains(&format!("STAT {line}\r\n")), "{line}: {answer}");
    }
    assert!(!answer.contains("tcpport"), "{answer}");
}

#[test]
fn connections_that_were_closed_are_counted_and_shown() {
    let scratch = Scratch::new();
    let config = scratch.path().join("dormouse.toml");
    let text =
        "[[memcached]]\naddress = \"127.0.0.1:0\"\nidle_timeout_s = 1\n[limits]\nunfinished_request_s = 1\n";
    fs::write(&config, text).expect("written");
    let data = scratch.path().join("data").display().to_string();
    let config = config.display().to_string();
    let server = Server::start_at_ports(&data, &["--config", &config, "--memory", "64MiB"]);
    let mut watcher = server.memcached();
    assert_eq!(exchange(&mut watcher, b"watch connevents\r\n", "OK\r\n"), "OK\r\n");
    let idle = server.memcached();
    // It keeps sending: it is not idle, but finishes no request.
    let mut unfinished = server.memcached();
    let read_buffers = statistics(&server, "");
    assert_eq!(
        (read_buffers["read_buf_count"].as_str(), read_buffers["read_buf_bytes"].as_str()),
        ("1", "262144")
    );
    server.wait_until(
        &|| {
            let _ = std::io::Write::write_all(&mut &unfinished, b"g");
            metric(&server, "dormouse_connections_unfinished_closed_total") == 1
                && metric(&server, "dormouse_connections_idle_closed_total") >= 1
        },
        "both are closed",
    );
    // A watcher is not idle: it is notified of clients that were.
    let mut told = String::new();
    while !told.contains("reason=idle_timeout") {
        told += &exchange(&mut watcher, b"", "\n");
    }
    assert!(told.contains("type=conn_close"), "{told}");
    let shown = statistics(&server, "");
    assert_eq!(shown["unfinished_kicks"], "1");
    assert_ne!(shown["idle_kicks"], "0");
    assert_eq!((shown["stuck_kicks"].as_str(), shown["memory_kicks"].as_str()), ("0", "0"));
    assert_eq!(metric(&server, "dormouse_connections_cut_off_total"), 0);
    drop(idle);
    std::io::Write::write_all(&mut unfinished, b"g").ok();
    let mut half = server.memcached();
    std::io::Write::write_all(&mut half, &[b'g'; 1500]).expect("sent");
    server
        .wait_until(&|| metric(&server, "dormouse_client_buffer_bytes") >= 1500, "the half line is counted");
}

/// Memory held by HTTP clients is charged to no bucket.
#[test]
fn http_connections_count_as_clients_memory() {
    let server = Server::start(&["--memory", "64MiB"]);
    let uncharged = || metric(&server, "dormouse_client_uncharged_bytes");
    let one = uncharged();
    assert!(one > 0, "its own");
    let open: Vec<_> = (0..10).map(|_| server.http_connection()).collect();
    server.wait_until(&|| uncharged() == 11 * one, "all are counted");
    let mut body = server.http_connection();
    let head = format!(
        "POST /pools/default/buckets HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic {DEVELOPMENT}\r\n\
         Content-Length: 60000\r\n\r\n"
    );
    std::io::Write::write_all(&mut body, head.as_bytes()).expect("sent");
    server.wait_until(&|| uncharged() == 12 * one, "so is a head");
    std::io::Write::write_all(&mut body, &[b'a'; 50_000]).expect("sent");
    server.wait_until(&|| uncharged() >= 12 * one + 50_000, "and what has come of a body");
    drop((open, body));
    server.wait_until(&|| uncharged() == one, "everything is given back");
}

/// `stats`, HTTP and `cache_memlimit` use a bucket's new size.
#[test]
fn a_new_size_is_shown_and_bounds_everywhere() {
    let server = Server::start(&["--bucket", "default,ephemeral,16MiB", "--memory", "64MiB"]);
    let limit = |mebibytes: u32| {
        let request = format!("cache_memlimit {mebibytes}\r\n");
        exchange(&mut server.memcached(), request.as_bytes(), "\r\n")
    };
    let path = "/pools/default/buckets/default";
    let quota = || {
        let (_, body) = server.http("GET", path, None, "");
        let document: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        (document["quota"]["ram"].as_u64(), document["quota"]["rawRAM"].as_u64())
    };
    for mebibytes in [16u32, 40, 24] {
        if mebibytes != 16 {
            let form = format!("ramQuota={mebibytes}");
            assert_eq!(server.http("POST", path, Some(DEVELOPMENT), &form).0, 200);
        }
        let bytes = u64::from(mebibytes) << 20;
        assert_eq!(quota(), (Some(bytes), Some(bytes)));
        assert_eq!(statistics(&server, "")["limit_maxbytes"], bytes.to_string());
        assert_eq!(statistics(&server, " settings")["maxbytes"], bytes.to_string());
        assert_eq!(
            limit(mebibytes + 1),
            format!("MEMLIMIT_ADJUST_FAILED the bucket is configured with {mebibytes}m\r\n")
        );
        assert_eq!(limit(10), "OK\r\n");
        assert_eq!(statistics(&server, "")["limit_maxbytes"], (10u64 << 20).to_string());
        // Changing another setting does not change the size.
        assert_eq!(server.http("POST", path, Some(DEVELOPMENT), "defragmenter=off").0, 200);
        assert_eq!(limit(mebibytes), "OK\r\n");
        assert_eq!(quota(), (Some(bytes), Some(bytes)));
    }
}
