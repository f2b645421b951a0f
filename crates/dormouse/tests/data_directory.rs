//! The data directory: exclusive use, and entries in it that are not regular files.
#![allow(clippy::expect_used)]

mod binary;

use binary::{Scratch, Server, dormouse, exchange};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// base64 of `Administrator:password`.
const DEVELOPMENT: &str = "QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==";

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo runs").success());
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

/// A shard in a bucket's directory that has a segment, and the segment.
fn segment_below(bucket: &Path) -> (PathBuf, PathBuf) {
    let files = entries(bucket).into_iter().filter(|path| path.is_dir()).flat_map(|shard| {
        let files = entries(&shard);
        files.into_iter().map(move |file| (shard.clone(), file))
    });
    let is_segment = |file: &Path| file.extension().is_some_and(|extension| extension == "segment");
    files.into_iter().find(|(_, file)| is_segment(file)).expect("a segment")
}

/// Runs the binary, which must not block; returns its exit code and all output.
fn said(arguments: &[&str]) -> (Option<i32>, String) {
    let binary = env!("CARGO_BIN_EXE_dormouse");
    let output = Command::new("timeout").args(["20", binary]).args(arguments).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text.into_owned())
}

#[test]
fn a_removed_lock_file_lets_nobody_in() {
    let server = Server::start(&["--memory", "64MiB", "--bucket", "default,persistent"]);
    let data = server.scratch().path().join("data");
    let (shown, bucket) = (data.display().to_string(), data.join("buckets/default").display().to_string());
    fs::remove_file(data.join("dormouse.lock")).expect("it is there");
    let ports = ["--memcached", "127.0.0.1:0", "--kv", "none", "--http", "none"];
    let (code, line) = said(&[&["serve", "--data", &shown], &ports[..]].concat());
    let taken = "another node uses it; allowed: a directory of its own for each node";
    assert_eq!((code, line), (Some(2), format!("dormouse: node.data = {shown:?}: {taken}\n")));
    // Nor by another path to the same directory.
    let link = server.scratch().path().join("link");
    std::os::unix::fs::symlink(&data, &link).expect("a link");
    let (code, line) = said(&[&["serve", "--data", &link.display().to_string()], &ports[..]].concat());
    assert!(code == Some(2) && line.contains(taken), "{line}");
    let (code, line) = said(&["journal", "compact", &bucket]);
    assert!(code == Some(1) && line.contains("a node uses it; stop the node first"), "{line}");
    assert_eq!(exchange(&mut server.memcached(), b"set key 0 0 1\r\nv\r\n", "\r\n"), "STORED\r\n");
}

#[test]
fn what_is_no_file_in_a_journal_is_damage_and_holds_nobody_up() {
    let scratch = Scratch::new();
    let data = scratch.path().join("data");
    let start = || {
        Server::start_at(
            &data.display().to_string(),
            &["--memory", "64MiB", "--bucket", "default,persistent"],
        )
    };
    let stop = |mut server: Server| {
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{}", server.output());
    };
    let server = start();
    assert_eq!(exchange(&mut server.memcached(), b"set key 0 0 1\r\nv\r\n", "\r\n"), "STORED\r\n");
    stop(server);
    // It is on disk by now.
    let server = start();
    let made = server.http("POST", "/pools/default/buckets/default/backup", Some(DEVELOPMENT), "label=whole");
    assert_eq!(made.0, 200, "{made:?}");
    stop(server);
    let target = scratch.path().join("target").display().to_string();
    for directory in [data.join("buckets/default"), data.join("backups/default/whole")] {
        let shown = directory.display().to_string();
        let (code, text) = said(&["journal", "verify", &shown]);
        assert_eq!(code, Some(0), "{text}");
        let (shard, segment) = segment_below(&directory);
        let next = segment.with_file_name("0000000255.segment");
        for pipe in [next, shard.join("other"), directory.join("other"), segment.clone()] {
            let kept = pipe.with_extension("kept");
            let is_there = pipe.exists();
            if is_there {
                fs::rename(&pipe, &kept).expect("renamed");
            }
            make_pipe(&pipe);
            let (code, text) = said(&["journal", "verify", &shown]);
            assert_eq!(code, Some(1), "{text}");
            assert!(text.contains(&format!("DAMAGE {}: not a regular file", pipe.display())), "{text}");
            let (code, text) = said(&["journal", "restore", &shown, &target]);
            assert_eq!(code, Some(1), "{text}");
            assert!(text.contains("the backup is damaged, and was not restored"), "{text}");
            let code = said(&["journal", "dump", &shown]).0;
            assert!(matches!(code, Some(0 | 1)), "it ends: {code:?}");
            fs::remove_file(&pipe).expect("removed");
            if is_there {
                fs::rename(&kept, &pipe).expect("renamed");
            }
        }
        for name in ["bucket.json", "settings.json"] {
            let kept = fs::read(directory.join(name)).expect("it is there");
            fs::remove_file(directory.join(name)).expect("removed");
            make_pipe(&directory.join(name));
            let (code, text) = said(&["journal", "verify", &shown]);
            assert!(code == Some(1) && text.contains(&format!("{name}: not a regular file")), "{text}");
            let (code, text) = said(&["journal", "restore", &shown, &target]);
            assert_eq!(code, Some(1), "{text}");
            fs::remove_file(directory.join(name)).expect("removed");
            fs::write(directory.join(name), kept).expect("written");
        }
        let (code, text) = said(&["journal", "verify", &shown]);
        assert_eq!(code, Some(0), "{text}");
    }
    // A start does not wait for it either.
    let (_, segment) = segment_below(&data.join("buckets/default"));
    make_pipe(&segment.with_file_name("0000000255.segment"));
    let (code, text) = said(&[
        "serve",
        "--data",
        &data.display().to_string(),
        "--kv",
        "none",
        "--http",
        "none",
        "--memcached",
        "127.0.0.1:0",
    ]);
    assert!(code.is_some_and(|code| code != 124), "{text}");
    assert!(text.contains("not a regular file"), "{text}");
}

#[test]
fn configuration_and_password_may_come_from_a_pipe_but_not_never() {
    let scratch = Scratch::new();
    let pipe = scratch.path().join("pipe");
    make_pipe(&pipe);
    let shown = pipe.display().to_string();
    let (code, line) = said(&["config", "check", &shown]);
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("cannot read the configuration file: a pipe, and nobody writes to it"), "{line}");
    let (code, line) = said(&[
        "serve",
        "--user",
        "ada",
        "--password-file",
        &shown,
        "--memcached",
        "none",
        "--kv",
        "none",
        "--http",
        "none",
    ]);
    assert_eq!(code, Some(2), "{line}");
    assert!(
        line.contains("auth.password_file = ") && line.contains("a pipe, and nobody writes to it"),
        "{line}"
    );
    let script = format!(
        "{} config check <(echo '[node]'; sleep 0.1; echo 'workers = 1')",
        env!("CARGO_BIN_EXE_dormouse")
    );
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash runs");
    assert!(output.status.success(), "{output:?}");
    let output = dormouse(&["config", "check", "/dev/null"]).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
}
