//! Checks the documents against each other and against the program: links resolve, cited decisions exist, flags are
//! keys, and all of memcached's options have a line.
#![allow(clippy::expect_used)]

mod binary;

use binary::dormouse;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn files(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// All Markdown files of the project, with their text.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    for directory in ["docs", "packaging"] {
        files(&root().join(directory), "md", &mut paths);
    }
    paths.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name)),
    );
    paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("text"))).collect()
}

/// The anchor that GitHub generates for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    for (page, text) in pages() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (path, place) =
                link.split_once('#').map_or((link, None), |(path, place)| (path, Some(place)));
            let target =
                if path.is_empty() { page.clone() } else { page.parent().expect("a parent").join(path) };
            assert!(target.exists(), "{}: {link}", page.display());
            if let Some(place) = place {
                let text = fs::read_to_string(&target).expect("text");
                let headings = text.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headings.map(|line| anchor(line.trim_start_matches('#')));
                assert!(anchors.any(|known| known == place), "{}: {link}", page.display());
            }
        }
    }
}

#[test]
fn decisions_that_are_named_exist() {
    let mut known = BTreeSet::new();
    for entry in fs::read_dir(root().join("docs/decisions")).expect("decisions") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let number = name.split('-').next().expect("a number").to_owned();
        let text = fs::read_to_string(&path).expect("text");
        assert!(text.starts_with(&format!("# {number}: ")), "{name} begins with another number");
        assert!(known.insert(number), "{name}: the number is taken");
    }
    let mut sources: Vec<(PathBuf, String)> = pages();
    let mut paths = Vec::new();
    files(&root().join("crates"), "rs", &mut paths);
    sources.extend(paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("text"))));
    for (path, text) in sources {
        for word in ["decisions/", "decision ", "decision ["] {
            for rest in text.split(word).skip(1) {
                let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
                if number.len() == 4 {
                    assert!(known.contains(&number), "{}: {word}{number}", path.display());
                }
            }
        }
    }
}

#[test]
fn every_text_command_is_on_its_page() {
    let parser = fs::read_to_string(root().join("crates/wire/src/text.rs")).expect("text");
    let (_, commands) = parser.split_once("match name {").expect("the table of commands");
    let (commands, _) = commands.split_once("is_http").expect("its end");
    let words: Vec<&str> = commands.split("b\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(words.len() > 20 && words.contains(&"flush_all"), "{words:?}");
    let page = fs::read_to_string(root().join("docs/memcached-protocol.md")).expect("text");
    for word in words {
        let is_there = [' ', '`'].iter().any(|end| page.contains(&format!("`{word}{end}")));
        assert!(is_there, "`{word}` is not in docs/memcached-protocol.md");
    }
}

#[test]
fn every_flag_is_a_key_or_a_section_of_the_configuration() {
    let said = |arguments: &[&str]| {
        String::from_utf8(dormouse(arguments).output().expect("runs").stdout).expect("UTF-8")
    };
    let (help, reference) = (said(&["serve", "--help"]), said(&["config", "reference"]));
    let mut names = BTreeSet::new();
    let mut section = String::new();
    for line in reference.lines() {
        if let Some(heading) = line.strip_prefix("## `") {
            section = heading.trim_matches(|c: char| "[]`".contains(c)).to_owned();
            names.insert(section.clone());
        } else if let Some((key, _)) = line.strip_prefix("| `").and_then(|rest| rest.split_once('`')) {
            names.insert(key.to_owned());
            names.insert(format!("{section}_{key}"));
        }
    }
    let flags: BTreeSet<String> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--").or(line.trim_start().strip_prefix("-h, --")))
        .map(|line| line.split([' ', ',']).next().unwrap_or_default().replace('-', "_"))
        // What a file must not say: a node in production would then be open to everybody.
        .filter(|flag| !["config", "help", "testcontainers"].contains(&flag.as_str()))
        .collect();
    assert!(flags.len() >= 10, "{flags:?}");
    assert_eq!(flags.difference(&names).collect::<Vec<_>>(), Vec::<&String>::new());
    // The allowed forms of an address and of a bucket are described in the same words everywhere.
    for form in ["IP:PORT", "localhost:PORT", ":PORT", "unix:PATH"] {
        assert!(help.contains(form) && reference.contains(form), "{form}");
    }
    for word in ["ephemeral", "persistent", "auto_delete", "fail_new_data"] {
        assert!(help.contains(word) && reference.contains(word), "{word}");
    }
}

/// The options of `memcached -h`, version 1.6.18.
const MEMCACHED: &str = "p U s a A l d r u m M c k v vv vvv h i V P f n L D t R C b B I S F X W Y e Z N \
    maxconns_fast hashpower tail_repair_time hash_algorithm no_lru_crawler lru_crawler_sleep lru_crawler_tocrawl \
    read_buf_mem_limit \
    no_lru_maintainer hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl idle_timeout \
    slab_chunk_max \
    watcher_logbuf_size worker_logbuf_size track_sizes no_hashexpand modern no_modern sock_cookie_id \
    ext_path slab_automove_freeratio";

#[test]
fn each_of_memcacheds_options_has_a_line_and_each_key_named_there_exists() {
    let page = fs::read_to_string(root().join("docs/migrating-from-memcached.md")).expect("the page");
    let reference = fs::read_to_string(root().join("docs/configuration.md")).expect("the reference");
    let lines: Vec<(&str, &str)> =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).collect();
    let words: BTreeSet<&str> = lines
        .iter()
        .flat_map(|(option, _)| option.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-'))
        .collect();
    for option in MEMCACHED.split_whitespace() {
        let short = format!("-{option}");
        assert!(words.contains(short.as_str()) || words.contains(option), "{option}");
    }
    for (_, here) in lines {
        for (section, rest) in here.split('[').filter_map(|rest| rest.split_once("] ")) {
            let section = section.trim_end_matches(']');
            let key: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            let heading = reference.split("\n## ").find(|part| {
                part.starts_with(&format!("`[{section}]`")) || part.starts_with(&format!("`[[{section}]]`"))
            });
            let has_key = heading.is_some_and(|part| part.contains(&format!("| `{key}` |")));
            assert!(has_key, "[{section}] {key}");
        }
    }
}
