//! Checks for long lines and long commit subjects.
#![allow(clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest line, in characters.
const COLUMNS: usize = 120;
/// Longest subject of a commit.
const SUBJECT: usize = 72;
/// Subjects were not bounded before this commit.
const BOUNDED_SINCE: &str = "8e02577b";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if !path.ends_with("target") {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The numbers of the lines that are too long. Raw strings and diagrams in comments may be any width.
fn long_lines(text: &str) -> Vec<usize> {
    let (mut is_fenced, mut is_raw) = (false, false);
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//");
        if comment.is_some_and(|comment| comment.trim_start_matches(['/', '!', ' ']).starts_with("```")) {
            is_fenced = !is_fenced;
        }
        let was_raw = is_raw;
        if comment.is_none() {
            let mut rest = line;
            while let Some(place) = rest.find(if is_raw { "\"#" } else { "r#\"" }) {
                rest = rest.get(place + 2..).unwrap_or_default();
                is_raw = !is_raw;
            }
        }
        let is_raw = was_raw || is_raw || line.contains("r#\"");
        let is_diagram = is_fenced && comment.is_some();
        if line.chars().count() > COLUMNS && !is_raw && !is_diagram {
            found.push(index + 1);
        }
    }
    found
}

#[test]
fn lines_fit_a_page() {
    let mut files = Vec::new();
    for folder in ["crates", "fuzz/fuzz_targets"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 300, "{} files", files.len());
    let mut long = String::new();
    for file in files {
        for line in long_lines(&fs::read_to_string(&file).expect("readable")) {
            long += &format!("{}:{line}\n", file.display());
        }
    }
    assert_eq!(long, "", "lines of more than {COLUMNS} characters");
}

#[test]
fn long_lines_are_found() {
    let long = "x".repeat(COLUMNS + 1);
    let text = format!(
        "//! {long}\n// ```\n// {long}\n// ```\nlet a = r#\"{long}\"#;\nlet b = r#\"\n{long}\n\"#;\n\
         let c = \"{long}\";\n"
    );
    assert_eq!(long_lines(&text), [1, 9]);
}

#[test]
fn subjects_of_commits_are_short() {
    let git = |arguments: &[&str]| {
        let done = Command::new("git").arg("-C").arg(root()).args(arguments).output().expect("git runs");
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (has_history, _) = git(&["cat-file", "-e", BOUNDED_SINCE]);
    // A clone without history still has its newest commit.
    let range = if has_history { format!("{BOUNDED_SINCE}..HEAD") } else { "-1".to_owned() };
    let (done, subjects) = git(&["log", "--format=%s", &range]);
    assert!(done, "git log {range}");
    let long: Vec<&str> = subjects.lines().filter(|subject| subject.chars().count() > SUBJECT).collect();
    assert!(long.is_empty(), "more than {SUBJECT} characters: {long:#?}");
}
