//! `ovsdb-server` as this binary provides it: its command line, detaching, its pidfile, its log, its exit.
#![allow(clippy::expect_used)]

mod binary;

use binary::ovsdb::{Client, command, control, detached, error_of, run, scratch, wait_until};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;

#[test]
fn mistakes_in_the_command_line_have_the_stock_words() {
    let scratch = scratch();
    for (arguments, expected) in [
        (&["--nope"][..], "unrecognized option '--nope'"),
        (&["-z"], "invalid option -- 'z'"),
        (&["--remote"], "option '--remote' requires an argument"),
        (&["--detach=1"], "option '--detach' doesn't allow an argument"),
        (&["--re=x"], "option '--re=x' is ambiguous; possibilities: '--remote' '--record' '--replay'"),
        (&["-vfoo"], "processing \"foo\": no destination, level, or module \"foo\""),
        (&["--sync-from=tcp:1.2.3.4"], "--sync-from: replication is not supported by this server"),
        (&["--user=nobody-of-that-name"], "(null): user nobody-of-that-name not found, aborting."),
        (&["@/none.db"], "I/O error: @/none.db: open failed (No such file or directory)"),
        (&["--remote=db:a", "@/test.db"], "\"db:a\": invalid syntax\n"),
        (&["--remote=db:a,b,c", "@/test.db"], "\"db:a,b,c\": no database named a\n"),
        (&["--remote=db:Test,b,c", "@/test.db"], "\"db:Test,b,c\": no table named b\n"),
        (&["--remote=db:Test,T,c", "@/test.db"], "\"db:Test,T,c\": table \"T\" has no column \"c\"\n"),
        (&["--run"], "option '--run' requires an argument"),
    ] {
        let (code, text) = error_of(&scratch, arguments);
        assert_eq!((code, text), (Some(1), format!("ovsdb-server: {expected}\n")), "{arguments:?}");
    }
}

#[test]
fn it_is_called_by_its_name_too() {
    let scratch = scratch();
    let output = Command::new(env!("CARGO_BIN_EXE_dormouse"))
        .arg0("/usr/sbin/ovsdb-server")
        .arg("--version")
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.starts_with("ovsdb-server (Open vSwitch) "), "{text}");
    assert_eq!(run(&scratch, &["-V"]).stdout, output.stdout);
    let help = run(&scratch, &["--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("--overwrite-pidfile"));
}

#[test]
fn who_detaches_it_waits_until_it_serves() {
    let scratch = scratch();
    let server = detached(&scratch, &["@/test.db"]);
    assert_eq!(server.client().call("list_dbs", json!([])), json!(["Test", "_Server"]));
    let comm = fs::read_to_string(format!("/proc/{}/comm", server.pid())).expect("it runs");
    assert_eq!(comm, "ovsdb-server\n");
    let mode = |name: &str| fs::metadata(server.path(name)).expect("there").permissions().mode() & 0o777;
    // As the test's umask leaves them: no permissions for others.
    assert_eq!([mode("sock") & 0o007, mode("ctl") & 0o007, mode("log") & 0o007], [0; 3]);
    assert_eq!(server.control("exit", &[]), Ok(String::new()));
    wait_until("everything goes", || ["pid", "sock", "ctl"].iter().all(|name| !server.path(name).exists()));
    let log = server.log();
    let lines: Vec<&str> = log.lines().collect();
    let [opened, version] = lines.as_slice() else { panic!("{log}") };
    let (time, rest) = opened.split_once('|').expect("a time");
    assert_eq!(
        (time.len(), time.get(10..11), time.get(23..)),
        ("2026-11-20T09:24:09.123Z".len(), Some("T"), Some("Z"))
    );
    assert_eq!(rest, format!("00001|vlog|INFO|opened log file {}", server.path("log").display()));
    assert!(version.contains("|00002|ovsdb_server|INFO|ovsdb-server (Open vSwitch) "), "{version}");
}

#[test]
fn who_detaches_it_hears_of_a_failure() {
    let scratch = scratch();
    scratch.file("junk.db", "junk\n");
    let all =
        ["--detach", "--no-chdir", "--pidfile", "--unixctl=@/ctl", "--remote=punix:@/sock", "@/junk.db"];
    let (code, text) = error_of(&scratch, &all);
    assert_eq!((code, &*text), (Some(1), "ovsdb-server: ovsdb error: @/junk.db: unexpected file format\n"));
    assert!(!scratch.path().join("ovsdb-server.pid").exists());
    let (code, text) = error_of(&scratch, &["--detach", "--unixctl=@/none/ctl", "@/test.db"]);
    assert_eq!(code, Some(1));
    let expected =
        "ovsdb-server: @/none/ctl: could not initialize control socket (No such file or directory)\n";
    assert!(text.ends_with(expected), "{text}");
}

#[test]
fn a_pidfile_stands_for_one_living_process() {
    let scratch = scratch();
    let server = detached(&scratch, &["@/test.db"]);
    let pid = server.pid();
    let (code, text) = error_of(&scratch, &["--detach", "--pidfile=@/pid", "--no-dbs", "--log-file=@/log2"]);
    assert_eq!(code, Some(1));
    let expected = format!("@/pid: already running as pid {pid}, aborting\n");
    assert!(text.ends_with(&format!("ovsdb-server: {expected}")), "{text}");
    let log = fs::read_to_string(server.path("log2")).expect("a log");
    assert!(log.contains("|00002|daemon_unix|EMER|"), "{log}");
    // Another process takes over the file; the first one then leaves it alone.
    let arguments =
        ["--pidfile=@/pid", "--overwrite-pidfile", "--no-dbs", "--unixctl=none", "--run=cat @/pid"];
    let arguments: Vec<String> =
        arguments.iter().map(|text| text.replace('@', &scratch.path().display().to_string())).collect();
    let output =
        command(&scratch, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).output().expect("runs");
    let other: u32 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a pid");
    assert_ne!(other, pid);
    assert!(!server.path("pid").exists());
    assert!(server.control("exit", &[]).is_ok());
}

#[test]
fn a_locked_database_is_refused() {
    let scratch = scratch();
    let _server = detached(&scratch, &["@/test.db"]);
    let (code, text) = error_of(&scratch, &["--unixctl=none", "-vconsole:off", "@/test.db"]);
    let expected = "I/O error: @/test.db: failed to lock lockfile (Resource temporarily unavailable)";
    assert_eq!((code, text), (Some(1), format!("ovsdb-server: {expected}\n")));
}

#[test]
fn a_signal_ends_it_and_is_what_its_parent_sees() {
    let scratch = scratch();
    for (name, number, text) in [("TERM", 15, "Terminated"), ("HUP", 1, "Hangup"), ("INT", 2, "Interrupt")] {
        let arguments = ["--pidfile=@/pid", "--unixctl=@/ctl", "--remote=punix:@/sock", "@/test.db"];
        let mut child =
            command(&scratch, &arguments).stderr(std::process::Stdio::piped()).spawn().expect("starts");
        wait_until("it serves", || control_works(&scratch));
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().expect("runs").success());
        let output =
            child.wait().map(|status| (status, std::io::read_to_string(child.stderr.take().expect("piped"))));
        let (status, log) = output.expect("it ends");
        assert_eq!(status.signal(), Some(number), "{status}");
        let log = log.expect("text");
        assert!(
            log.contains(&format!("|fatal_signal|WARN|terminating with signal {number} ({text})")),
            "{log}"
        );
        assert!(["pid", "sock", "ctl"].iter().all(|name| !scratch.path().join(name).exists()));
    }
}

fn control_works(scratch: &binary::Scratch) -> bool {
    let path = scratch.path().join("ctl");
    std::os::unix::net::UnixStream::connect(&path).is_ok() && control(&path, "version", &[]).is_ok()
}

#[test]
fn it_ends_with_the_command_it_runs() {
    let scratch = scratch();
    let common = ["--unixctl=none", "-vconsole:off", "@/test.db"];
    for (shell, code, text) in [
        ("true", Some(0), ""),
        ("exit 7", Some(1), "ovsdb-server: exit 7: child exited, exit status 7\n"),
        ("kill -9 $$", Some(1), "ovsdb-server: kill -9 $$: child exited, killed (Killed)\n"),
    ] {
        let mut arguments = vec!["--run", shell];
        arguments.extend(common);
        assert_eq!(error_of(&scratch, &arguments), (code, text.to_owned()), "{shell}");
    }
}

#[test]
fn options_without_effect_are_told_of() {
    let scratch = scratch();
    let arguments = ["--no-self-confinement", "--no-dbs", "--unixctl=none", "--run=true"];
    let (code, text) = error_of(&scratch, &arguments);
    assert_eq!(code, Some(0));
    assert!(text.contains("|ovsdb_server|INFO|--no-self-confinement has no effect: this server"), "{text}");
}

#[test]
fn a_crashed_server_is_started_again() {
    let scratch = scratch();
    let server = detached(&scratch, &["--monitor", "@/test.db"]);
    let first = server.pid();
    server.signal("ABRT");
    wait_until("another one serves", || {
        let pid = fs::read_to_string(server.path("pid")).unwrap_or_default();
        pid.trim().parse().is_ok_and(|pid: u32| pid != first)
            && std::os::unix::net::UnixStream::connect(server.path("sock")).is_ok()
    });
    assert_eq!(server.client().call("list_dbs", json!([])), json!(["Test", "_Server"]));
    let expected = format!("|daemon_unix(monitor)|ERR|1 crashes: pid {first} died, killed (Aborted)");
    assert!(server.log().contains(&expected), "{}", server.log());
    assert!(server.control("exit", &[]).is_ok());
    wait_until("the monitor ends too", || server.log().contains("died, exit status 0, exiting"));
}

#[test]
fn it_connects_to_remotes_and_does_so_again() {
    let scratch = scratch();
    let socket = scratch.path().join("listening");
    let listener = UnixListener::bind(&socket).expect("bound");
    let server = detached(&scratch, &["--remote=unix:@/listening", "@/test.db"]);
    for _ in 0..2 {
        let (stream, _) = listener.accept().expect("it comes");
        let mut client = Client::of(stream);
        assert_eq!(client.call("echo", json!([1])), json!([1]));
    }
    let name = format!("unix:{}", socket.display());
    assert!(
        server.log().contains(&format!("|reconnect|INFO|{name}: connection closed by peer")),
        "{}",
        server.log()
    );
    assert!(server.control("ovsdb-server/remove-remote", &[&name]).is_ok());
    assert!(server.log().contains(&format!("|ovsdb_jsonrpc_server|INFO|{name}: remote deconfigured")));
}

#[test]
fn a_database_names_remotes() {
    let scratch = scratch();
    let server = detached(&scratch, &["--remote=db:Test,T,remotes", "@/test.db"]);
    let socket = scratch.path().join("named");
    let remote = format!("punix:{}", socket.display());
    let insert = json!(["Test", { "op": "insert", "table": "T", "row": { "remotes": remote } }]);
    let mut client = server.client();
    client.call("transact", insert);
    wait_until("it listens there", || socket.exists());
    let mut other = Client::connect(&socket);
    assert_eq!(other.call("echo", json!([])), json!([]));
    client.call("transact", json!(["Test", { "op": "delete", "table": "T", "where": [] }]));
    assert!(other.is_closed());
    wait_until("it does not listen any more", || !socket.exists());
}

#[test]
fn nonsense_ends_the_connection_and_no_other() {
    let scratch = scratch();
    let server = detached(&scratch, &["@/test.db", "--limit-message-bytes=1000"]);
    let mut good = server.client();
    for (nonsense, expected) in [
        (
            "{]",
            "error parsing stream: line 0, column 1, byte 1: syntax error parsing object expecting string",
        ),
        ("[]", "received bad JSON-RPC message: message is not a JSON object"),
        ("{\"id\":1,\"result\":2,\"error\":null}", "received unexpected reply message"),
    ] {
        let mut bad = server.client();
        std::io::Write::write_all(&mut bad.stream, nonsense.as_bytes()).expect("sent");
        assert!(bad.is_closed());
        assert!(server.log().contains(expected), "{expected}: {}", server.log());
    }
    let mut long = server.client();
    let text = format!("[\"{}\"]", "x".repeat(2000));
    std::io::Write::write_all(&mut long.stream, text.as_bytes()).expect("sent");
    assert!(long.is_closed());
    assert_eq!(good.call("echo", json!(["there"])), json!(["there"]));
}
