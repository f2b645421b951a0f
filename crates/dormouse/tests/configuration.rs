//! `dormouse config`, and mistakes in configurations: exactly one line on standard error, and exit code 2.
#![allow(clippy::expect_used)]

mod binary;

use binary::{Scratch, dormouse};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

/// Runs the binary, expects an error, and returns its one line.
fn refusal(arguments: &[&str]) -> String {
    let output = dormouse(arguments).output().expect("the binary runs");
    let line = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(line.lines().count(), 1, "{arguments:?} gave:\n{line}");
    assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {:?}", output.status);
    assert!(output.stdout.is_empty(), "{arguments:?}");
    line.trim_end().to_owned()
}

fn refusal_of_file(text: &str) -> String {
    let scratch = Scratch::new();
    let file = scratch.file("node.toml", text);
    let line = refusal(&["config", "check", &file]);
    let rest = line.strip_prefix("dormouse: ").and_then(|line| line.strip_prefix(file.as_str()));
    rest.unwrap_or_else(|| panic!("{line}")).to_owned()
}

#[test]
fn the_default_configuration_is_correct_and_complete() {
    let scratch = Scratch::new();
    let default = dormouse(&["config", "default"]).output().expect("runs");
    assert!(default.status.success());
    let text = String::from_utf8(default.stdout).expect("UTF-8");
    let file = scratch.file("node.toml", &text);
    let check = dormouse(&["config", "check", &file]).output().expect("runs");
    assert!(check.status.success(), "{check:?}");
    for key in
        ["workers", "memory", "item_size_max", "vbuckets", "eviction", "password_file", "shutdown_command"]
    {
        assert!(text.lines().any(|line| line.starts_with(&format!("{key} = "))), "{key}");
    }
}

#[test]
fn the_reference_page_is_the_table_of_keys() {
    let page = dormouse(&["config", "reference"]).output().expect("runs");
    let made = String::from_utf8(page.stdout).expect("UTF-8");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let kept = fs::read_to_string(path).unwrap_or_default();
    assert!(
        made == kept,
        "docs/configuration.md is out of date: dormouse config reference > docs/configuration.md"
    );
}

#[test]
fn mistakes_in_a_file_name_the_line_the_key_and_what_is_allowed() {
    for (text, expected) in [
        ("[node]\nwrokers = 2\n", ":2: unknown key node.wrokers; did you mean \"workers\"? allowed in node:"),
        (
            "[node]\n\nmemory = \"lots\"\n",
            ":3: node.memory = \"lots\": not allowed; allowed: \"auto\", or 8MiB to",
        ),
        (
            "[[bucket]]\nvbuckets = 100\n",
            ":2: bucket.vbuckets = 100: not allowed; allowed: a power of two from 1 to 1024",
        ),
        (
            "[[bucket]]\nkind = \"durable\"\n",
            ":2: bucket.kind = \"durable\": not allowed; allowed: \"ephemeral\" or \"persistent\"",
        ),
        ("[cluster]\n", ":1: unknown section cluster; allowed sections: [node] [[memcached]]"),
    ] {
        let line = refusal_of_file(text);
        assert!(line.starts_with(expected), "{line}");
    }
}

#[test]
fn mistakes_in_flags_name_the_flag() {
    for (arguments, expected) in [
        (&["serve", "--memory", "5x"][..], "dormouse: --memory: node.memory = \"5x\": not allowed; allowed:"),
        (
            &["serve", "--bucket", "a,persistent"],
            "dormouse: bucket.kind = \"persistent\" of bucket \"a\" needs node.data (or --data DIR), which is \"\"; \
            allowed:",
        ),
        (
            &["serve", "--bucket", "default", "--bucket", "default"],
            "dormouse: bucket \"default\" is given twice",
        ),
        (&["serve", "--kv", "0.0.0.0:0"], "dormouse: kv.address = \"0.0.0.0:0\" is not a loopback address"),
        (
            &["serve", "--http", "localhost"],
            "dormouse: --http: http.address = \"localhost\": not allowed; allowed: IP:PORT",
        ),
        (&["serve", "--wrokers", "2"], "dormouse: unexpected argument '--wrokers' found"),
        (&["server"], "dormouse: unrecognized subcommand 'server'"),
        (&["serve", "--config", "/nonexistent/node.toml"], "dormouse: /nonexistent/node.toml: cannot read"),
        (&["serve", "--user", "ada"], "dormouse: auth.user = \"ada\" needs auth.password_file"),
    ] {
        let line = refusal(arguments);
        assert!(line.starts_with(expected), "{line}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    for (flag, key) in
        [("--memcached", "memcached.address"), ("--kv", "kv.address"), ("--http", "http.address")]
    {
        let mut arguments = vec!["serve"];
        for other in ["--memcached", "--kv", "--http"] {
            arguments.extend([other, if other == flag { address.as_str() } else { "127.0.0.1:0" }]);
        }
        let line = refusal(&arguments);
        assert!(
            line.starts_with(&format!("dormouse: {key} = \"{address}\": address already in use; allowed:")),
            "{line}"
        );
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let scratch = Scratch::new();
    let file = scratch.file("a-file", "");
    let line = refusal(&["serve", "--data", &format!("{file}/below")]);
    assert!(
        line.starts_with("dormouse: node.data = ") && line.contains("not a directory; allowed:"),
        "{line}"
    );
    // Root may write anywhere, so a directory's mode proves nothing when run as root.
    let closed = scratch.path().join("closed");
    fs::create_dir(&closed).expect("a directory");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).expect("its mode");
    if fs::write(closed.join("probe"), "").is_err() {
        let line = refusal(&["serve", "--data", &closed.display().to_string()]);
        assert!(line.contains("permission denied; allowed:"), "{line}");
    }
}

#[test]
fn a_bad_password_file_is_named() {
    let scratch = Scratch::new();
    let empty = scratch.file("empty", "\n");
    for (file, what) in
        [(empty.as_str(), "the first line is empty"), ("/nonexistent/password", "no such file or directory")]
    {
        let line = refusal(&["serve", "--user", "ada", "--password-file", file]);
        assert!(
            line.starts_with(&format!("dormouse: auth.password_file = \"{file}\": {what}; allowed:")),
            "{line}"
        );
    }
}

#[test]
fn help_is_complete_and_goes_to_standard_output() {
    let help = dormouse(&["serve", "--help"]).output().expect("runs");
    assert!(help.status.success() && help.stderr.is_empty());
    let text = String::from_utf8(help.stdout).expect("UTF-8");
    for flag in [
        "--config",
        "--data",
        "--memcached",
        "--kv",
        "--http",
        "--workers",
        "--memory",
        "--bucket",
        "--user",
        "--password-file",
    ] {
        assert!(text.contains(flag), "{flag}");
    }
    assert!(text.contains("Examples:"));
    let version = dormouse(&["--version"]).output().expect("runs");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let lines: Vec<_> = version.lines().collect();
    let first = format!("dormouse {} ({})", env!("CARGO_PKG_VERSION"), memory::backend::version());
    assert!(
        matches!(&lines[..], [said, commit, features] if *said == first
        && commit.starts_with("commit    ") && features.starts_with("features  alloc-")),
        "{version}"
    );
    let short = dormouse(&["-V"]).output().expect("runs");
    assert_eq!(String::from_utf8_lossy(&short.stdout), first + "\n");
}
