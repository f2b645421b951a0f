//! The scripts in `testdata/sessions`, each against a fresh server. `> A text` is what session A sends, the lines `< B
//! text` after it are what sessions receive, `! remove T` removes a database, `! sleep 30` lets 30 ms pass, `! stick A`
//! makes a session stop reading. With REWRITE=1 in the environment the answers are rewritten.
//!
//! The scripts were compared with the stock server, which gives the same answers except for those that
//! `testdata/sessions/README.md` lists.

#![allow(clippy::unwrap_used)]

mod sessions;

use sessions::{Driver, REWRITE};
use std::path::Path;

fn run(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/sessions").join(name);
    let script = std::fs::read_to_string(&path).unwrap();
    let mut driver = Driver::new();
    let mut result = String::new();
    for line in script.lines() {
        if line.starts_with("< ") {
            continue;
        }
        result.push_str(line);
        result.push('\n');
        let answers = if let Some(rest) = line.strip_prefix("> ") {
            let (session, text) = rest.split_once(' ').unwrap();
            driver.send(session, text)
        } else if let Some(name) = line.strip_prefix("! remove ") {
            driver.server.remove_database(name, "by user request", driver.now).unwrap();
            driver.collect()
        } else if let Some(ms) = line.strip_prefix("! sleep ") {
            driver.sleep(ms.parse().unwrap())
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "{line}");
            continue;
        };
        for answer in answers {
            result.push_str(&format!("< {answer}\n"));
        }
    }
    if *REWRITE {
        std::fs::write(&path, result).unwrap();
        return;
    }
    for (number, (expected, line)) in script.lines().zip(result.lines()).enumerate() {
        assert_eq!(line, expected, "{name}, line {}", number + 1);
    }
    assert_eq!(result.lines().count(), script.lines().count(), "{name}");
}

macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                run(concat!(stringify!($name), ".txt"));
            }
        )*
    };
}

scripts! {
    convert,
    envelope,
    locks,
    monitor_conditions,
    monitor_conditions_twice,
    monitor_requests,
    monitor_updates,
    pipelines,
    requests,
    server_database,
    versions,
    waits,
}
