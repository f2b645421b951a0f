//! Names what is built, for `--version`: the commit, its date, the features.

use std::env;
use std::path::Path;
use std::process::Command;

/// What a change of makes another binary.
const SOURCES: [&str; 3] = ["../../crates", "../../Cargo.toml", "../../Cargo.lock"];

fn main() {
    println!("cargo::rerun-if-env-changed=DORMOUSE_COMMIT");
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    for path in SOURCES.into_iter().chain([log.as_str()]).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rustc-env=DORMOUSE_COMMIT={}", env::var("DORMOUSE_COMMIT").unwrap_or_else(|_| commit()));
    println!("cargo::rustc-env=DORMOUSE_FEATURES={}", features());
}

/// A build from an archive of the sources has no commit, unless the environment names it.
fn commit() -> String {
    // An archive may have been unpacked in somebody else's repository.
    let is_ours = git(&["rev-parse", "--show-prefix"]) == "crates/dormouse/"
        && !git(&["ls-files", "--", "build.rs"]).is_empty();
    if !is_ours {
        return "unknown".to_owned();
    }
    let commit = git(&["show", "--no-patch", "--format=%h of %cs", "--abbrev=12", "HEAD"]);
    if commit.is_empty() {
        return "unknown".to_owned();
    }
    let status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no", "--"];
    let is_modified = !git(&[&status[..], &SOURCES].concat()).is_empty();
    commit + if is_modified { ", modified" } else { "" }
}

/// Cargo gives them in capitals.
fn features() -> String {
    let names = env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-")));
    let mut names: Vec<_> = names.filter(|name| name != "default").collect();
    names.sort();
    names.join(", ")
}

fn git(arguments: &[&str]) -> String {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success());
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
