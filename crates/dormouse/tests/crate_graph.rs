//! The project's own rules, checked against its files: which crate may use which, where `unsafe` is allowed, which
//! crates use no clock, and that every dependency has its line in docs/dependencies.md.
#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use toml::Table;

/// Each crate may use only those before it.
const ORDER: &[&str] = &[
    "memory",
    "journal",
    "wire",
    "transport",
    "kv",
    "sessions",
    "ovsdb",
    "net",
    "ovsdb-server",
    "console",
    "dormouse",
    "lab",
];
/// The lab is a separate program that measures from outside, except for what a flush allocates. It may use the codecs,
/// the streams and the engine.
const LAB_MAY_USE: &[&str] = &["memory", "journal", "wire", "transport", "kv"];
/// Crates in which `unsafe` is forbidden altogether.
const FORBID_UNSAFE: &[&str] =
    &["journal", "wire", "transport", "ovsdb", "net", "ovsdb-server", "dormouse", "sessions"];
/// Modules that may use `unsafe`, by crate.
const UNSAFE_MODULES: &[(&str, &[&str])] = &[
    (
        "memory",
        &["array", "backend", "growing", "heap", "large", "lines", "prefetch", "record", "slab", "tenant"],
    ),
    ("kv", &["index", "lock_order", "thread_context"]),
    ("console", &["socket"]),
    ("lab", &["allocations", "os"]),
];
/// Crates that use no sockets, threads or clocks: time and randomness are arguments.
const PURE: &[&str] = &["wire", "kv", "sessions", "ovsdb"];
/// Names that must not occur in such a crate.
const IMPURE: &[&str] = &[
    "std::net::Tcp",
    "std::net::Udp",
    "thread::spawn",
    "thread::sleep",
    "Instant::now",
    "SystemTime::now",
    "mio::",
    "tokio::",
];

/// The exception: a thread waiting for a vBucket's lock parks for a bounded time.
const IMPURE_ALLOWED: &[(&str, &str)] = &[("kv/src/index/lock.rs", "Instant::now")];

/// The modules of the engine: each may use only those before it. The files of a module may use each other.
const ENGINE_ORDER: &[&str] = &[
    "error",
    "lock_order",
    "now",
    "key",
    "sizes",
    "meters",
    "class_counters",
    "settings",
    "collections",
    "memory_policy",
    "prefixes",
    "clients",
    "requests",
    "users",
    "profile",
    "replication",
    "topology",
    "role",
    "doorbell",
    "turns",
    "client_memory",
    "mutation",
    "mailbox",
    "news",
    "map_watch",
    "rendered_map",
    "peers",
    "durability_monitor",
    "terms",
    "election",
    "collected",
    "sync_writes",
    "index",
    "hub",
    "thread_context",
    "entry",
    "storage",
    "bucket",
    "bucket_schema",
    "fetch_queue",
    "piece_queue",
    "node",
    "node_context",
    "copier",
    "cluster_config",
    "persistence",
    "pager",
    "polling",
    "statistics",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest(name: &str) -> Table {
    read(&root().join("crates").join(name).join("Cargo.toml")).parse().expect("a manifest")
}

/// The tables of dependencies, those under a target included.
fn tables(manifest: &Table) -> Vec<&Table> {
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets =
        manifest.get("target").and_then(|targets| targets.as_table()).into_iter().flat_map(|t| t.values());
    let places = std::iter::once(manifest).chain(targets.filter_map(|target| target.as_table()));
    places.flat_map(|place| kinds.iter().filter_map(|kind| place.get(*kind)?.as_table())).collect()
}

fn dependencies(manifest: &Table) -> BTreeSet<String> {
    tables(manifest).into_iter().flat_map(|table| table.keys().cloned()).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// A file's code: without comments, and without the tests at its end.
fn code(path: &Path) -> String {
    let text = read(path);
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_crates_are_the_ones_of_the_order() {
    let found: BTreeSet<String> = fs::read_dir(root().join("crates"))
        .expect("crates")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, ORDER.iter().map(|name| (*name).to_owned()).collect());
}

#[test]
fn each_crate_uses_only_those_before_it() {
    for (place, name) in ORDER.iter().enumerate() {
        let uses = dependencies(&manifest(name));
        for (other_place, other) in ORDER.iter().enumerate() {
            if uses.contains(*other) {
                assert!(other_place < place, "{name} must not use {other}");
                assert!(*name != "lab" || LAB_MAY_USE.contains(other), "{name} must not use {other}");
                assert!(*name != "ovsdb" || *other != "kv", "the two data models know nothing of each other");
            }
        }
    }
}

#[test]
fn all_crates_take_their_lints_and_versions_from_the_workspace() {
    for name in ORDER {
        let manifest = manifest(name);
        let inherits = |table: &str| manifest.get(table)?.get("workspace")?.as_bool();
        assert_eq!(inherits("lints"), Some(true), "{name}: [lints] workspace = true");
        for table in tables(&manifest) {
            for (dependency, value) in table {
                let shared = value.get("workspace").and_then(toml::Value::as_bool);
                assert_eq!(shared, Some(true), "{name}: {dependency}.workspace = true");
            }
        }
    }
}

#[test]
fn unsafe_code_is_only_where_it_may_be() {
    for name in ORDER {
        let folder = root().join("crates").join(name).join("src");
        let top = ["lib.rs", "main.rs"]
            .iter()
            .map(|file| folder.join(file))
            .find(|path| path.exists())
            .expect("a crate root");
        let level =
            if FORBID_UNSAFE.contains(name) { "#![forbid(unsafe_code)]" } else { "#![deny(unsafe_code)]" };
        assert!(read(&top).contains(level), "{}: {level}", top.display());
        let allowed =
            UNSAFE_MODULES.iter().find(|(owner, _)| owner == name).map_or(&[][..], |(_, modules)| *modules);
        for path in sources(&folder) {
            let text = code(&path);
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for (index, line) in lines.iter().enumerate() {
                assert!(
                    !line.contains("#![allow(unsafe_code)]"),
                    "{}: allow it where the module is declared",
                    path.display()
                );
                if line.contains("allow(unsafe_code)") || line.contains("expect(unsafe_code") {
                    // On a module declaration it refers to that module, elsewhere to the module of this file.
                    let next = lines
                        .iter()
                        .skip(index + 1)
                        .find(|line| !line.starts_with("#["))
                        .copied()
                        .unwrap_or_default();
                    let declared = next
                        .trim_start_matches("pub ")
                        .trim_start_matches("pub(crate) ")
                        .strip_prefix("mod ");
                    let here =
                        path.strip_prefix(&folder).expect("below").components().next().expect("a file");
                    let here = here.as_os_str().to_string_lossy();
                    let module =
                        declared.map_or(here.trim_end_matches(".rs"), |name| name.trim_end_matches(';'));
                    assert!(
                        allowed.contains(&module),
                        "{}: unsafe code in {module:?}; allowed: {allowed:?}",
                        path.display()
                    );
                }
            }
        }
    }
}

#[test]
fn engine_and_protocols_know_no_clock_thread_or_socket() {
    for name in PURE {
        for path in sources(&root().join("crates").join(name).join("src")) {
            let text = code(&path);
            for word in IMPURE {
                let allowed =
                    IMPURE_ALLOWED.iter().any(|(file, allowed)| path.ends_with(file) && allowed == word);
                assert!(allowed || !text.contains(word), "{}: {word}", path.display());
            }
        }
    }
}

#[test]
fn every_dependency_is_explained_and_every_explanation_is_needed() {
    let workspace: Table = read(&root().join("Cargo.toml")).parse().expect("a manifest");
    let table = workspace.get("workspace").and_then(|w| w.get("dependencies")).and_then(|d| d.as_table());
    let declared: BTreeSet<String> = table
        .expect("workspace.dependencies")
        .keys()
        .filter(|name| !ORDER.contains(&name.as_str()))
        .cloned()
        .collect();
    let page = read(&root().join("docs/dependencies.md"));
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let cell = |row: &[&str], index: usize| row.get(index).copied().unwrap_or_default().to_owned();
    let explained: BTreeSet<String> =
        rows.iter().map(|row| cell(row, 1).trim_matches('`').to_owned()).collect();
    assert_eq!(explained, declared, "docs/dependencies.md (left) and Cargo.toml (right) disagree");
    let manifests: Vec<_> = ORDER.iter().map(|name| (*name, dependencies(&manifest(name)))).collect();
    for row in &rows {
        let name = cell(row, 1).trim_matches('`').to_owned();
        let mut users: Vec<&str> =
            manifests.iter().filter(|(_, uses)| uses.contains(&name)).map(|(user, _)| *user).collect();
        users.sort_unstable();
        assert_eq!(cell(row, 2), users.join(", "), "docs/dependencies.md: who uses {name}");
    }
}

/// The first identifier after each `crate::` in a file, groups in braces included.
fn names_from_root(code: &str) -> BTreeSet<String> {
    let identifier = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut names = BTreeSet::new();
    for (at, root) in code.match_indices("crate::") {
        let is_other = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let behind = &code[at + root.len()..];
        let Some(group) = behind.strip_prefix('{').filter(|_| !is_other) else {
            names.extend(Some(identifier(behind)).filter(|name| !name.is_empty() && !is_other));
            continue;
        };
        let (mut depth, mut start) = (0, 0);
        for (place, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    names.extend(Some(identifier(&group[start..place])).filter(|name| !name.is_empty()));
                    start = place + 1;
                    if c == '}' {
                        break;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    names
}

/// The modules of a crate with a fixed order, by the names that its root exports from them.
struct Modules {
    owners: BTreeMap<String, String>,
    found: BTreeSet<String>,
}

impl Modules {
    fn of(folder: &Path) -> Self {
        let root = code(&folder.join("lib.rs"));
        let (mut owners, mut found) = (BTreeMap::new(), BTreeSet::new());
        for statement in
            root.split(';').map(|statement| statement.split_whitespace().collect::<Vec<_>>().join(" "))
        {
            if let Some((_, module)) = statement.rsplit_once("mod ") {
                found.insert(module.to_owned());
                owners.insert(module.to_owned(), module.to_owned());
            } else if let Some((_, path)) = statement.split_once("use ")
                && let Some((module, names)) = path.split_once("::")
            {
                for name in names.trim_matches(['{', '}', ' ']).split(',') {
                    owners.insert(name.trim().to_owned(), module.to_owned());
                }
            }
        }
        Self { owners, found }
    }
}

#[test]
fn the_engines_modules_use_only_those_before_them() {
    let folder = root().join("crates/kv/src");
    let modules = Modules::of(&folder);
    assert_eq!(modules.found, ENGINE_ORDER.iter().map(|name| (*name).to_owned()).collect());
    let place = |module: &str| ENGINE_ORDER.iter().position(|name| *name == module).expect("a module");
    let mut edges = 0;
    for path in sources(&folder) {
        let below = path.strip_prefix(&folder).expect("below").components().next().expect("a file");
        let module = below.as_os_str().to_string_lossy().trim_end_matches(".rs").to_owned();
        if module == "lib" || path.ends_with("tests.rs") {
            continue;
        }
        let text = code(&path);
        assert!(!text.contains("super::super::"), "{}: say crate::", path.display());
        for name in names_from_root(&text) {
            let owner = modules.owners.get(&name);
            let owner = owner.unwrap_or_else(|| panic!("{}: whose is crate::{name}?", path.display()));
            assert!(
                place(owner) <= place(&module),
                "{}: {module} must not use {owner} ({name})",
                path.display()
            );
            edges += usize::from(*owner != module);
        }
    }
    assert!(edges > 100, "only {edges} uses were found: is the engine still read right?");
}
