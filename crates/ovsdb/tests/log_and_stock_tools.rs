//! The log and the stock tools: each reads what the other writes, and their locks exclude each other.
#![allow(clippy::expect_used)]

mod log;

use journal::{Disk, RealDisk};
use log::{Names, Random, SCHEMA, commit, dump, make, open, schema};
use ovsdb::file::{Log, Opened, Step};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use wire::json::{Value, validate};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ovsdb-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn database(&self) -> PathBuf {
        self.0.join("t.db")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The output of ovsdb-tool, or its error.
fn tool(arguments: &[&str], path: &Path, last: Option<&str>) -> Result<String, String> {
    let mut command = Command::new("ovsdb-tool");
    command.args(arguments).arg(path).args(last);
    let output = command.output().expect("ovsdb-tool is installed");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// The rows as the stock tool sees them, in the form of [`dump`].
fn stock_dump(path: &Path) -> Vec<String> {
    let operations: Vec<String> = ["A", "B", "C"]
        .iter()
        .map(|table| format!(r#"{{"op":"select","table":"{table}","where":[]}}"#))
        .collect();
    let answer =
        tool(&["query"], path, Some(&format!(r#"["T",{}]"#, operations.join(",")))).expect("an answer");
    let value = validate(answer.trim_end().as_bytes()).expect("JSON");
    let mut lines = Vec::new();
    for (table, result) in ["A", "B", "C"].iter().zip(value.elements()) {
        for row in result.member("rows").expect("rows").elements() {
            let text = |value: Value<'_>| String::from_utf8(value.text().to_vec()).expect("UTF-8");
            let uuid = text(row.member("_uuid").expect("_uuid"));
            let mut line = format!("{table} {}", &uuid[9..45]);
            let mut columns: Vec<_> = row.members().collect();
            columns.sort_by(|(a, _), (b, _)| a.cmp(b));
            for (name, value) in columns {
                if !matches!(&*name, "_uuid" | "_version" | "e" | "es" | "em") {
                    line.push_str(&format!(" {name}={}", text(value)));
                }
            }
            lines.push(line);
        }
    }
    lines.sort();
    lines
}

fn created(scratch: &Scratch) -> Opened<RealDisk> {
    let disk = RealDisk::default();
    if let Err(error) = Log::create(&disk, &scratch.database(), &schema(SCHEMA)) {
        panic!("{}", error.error);
    }
    open(&disk, &scratch.database())
}

fn compact(opened: &mut Opened<RealDisk>, mut between: impl FnMut(&mut Opened<RealDisk>)) {
    opened.log.start_compaction(&opened.database, 5, 5).expect("started");
    while !matches!(opened.log.step(&opened.database).expect("a slice"), Step::Finished(_)) {
        between(opened);
    }
}

#[test]
fn the_stock_tool_reads_what_we_write() {
    let scratch = Scratch::new("ours");
    let mut opened = created(&scratch);
    let (mut names, mut random) = (Names(0), Random(11));
    for round in 0..300 {
        commit(&mut opened, &mut names, &random.operations());
        if round % 60 == 50 {
            compact(&mut opened, |opened| {
                if random.below(3) == 0 {
                    commit(opened, &mut names, &random.operations());
                }
            });
        }
        if round % 10 == 0 {
            assert_eq!(stock_dump(&scratch.database()), dump(&opened.database, false), "round {round}");
        }
    }
    assert!(
        tool(&["-mmm", "show-log"], &scratch.database(), None)
            .expect("a log")
            .contains("compacting database online")
    );
}

#[test]
fn both_read_a_commit_of_many_rows_between_small_ones() {
    let scratch = Scratch::new("bulk");
    let mut opened = created(&scratch);
    let mut names = Names(0);
    let rows: Vec<String> = (0..5000)
        .map(|number| format!(r#"{{"op":"insert","table":"C","row":{{"n":"row {number}"}}}}"#))
        .collect();
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"before"}}]"#);
    commit(&mut opened, &mut names, &format!("[{}]", rows.join(",")));
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"after"}}]"#);
    let expected = dump(&opened.database, false);
    let id = opened.database.transaction_id();
    assert_eq!(expected.len(), 5002);
    assert_eq!(stock_dump(&scratch.database()), expected);
    drop(opened);
    let again = open(&RealDisk::default(), &scratch.database());
    assert_eq!((again.notes.len(), dump(&again.database, false)), (0, expected));
    assert!(again.database.find_transaction(id).is_some(), "its id chains through the long record");
}

#[test]
fn we_read_what_the_stock_tool_writes() {
    let scratch = Scratch::new("theirs");
    let schema_path = scratch.0.join("t.ovsschema");
    // The stock tool of version 3.1 does not read sets of a bounded size as it wrote them.
    let text = SCHEMA
        .replace(r#""s13":{"type":{"key":"integer","min":1,"max":3}},"#, "")
        .replace(r#""s1u":{"type":{"key":"string","min":1,"max":"unlimited"}},"#, "")
        .replace(
            r#""s3":{"type":{"key":"integer","min":0,"max":3}}"#,
            r#""s3":{"type":{"key":"integer","min":0,"max":9}}"#,
        );
    fs::write(&schema_path, text).expect("written");
    let path = scratch.database();
    tool(&["create"], &path, schema_path.to_str()).expect("created");
    let mut random = Random(5);
    for round in 0..120 {
        let operations = random.operations();
        let unknown = operations.contains("s13") || operations.contains("s1u");
        if !unknown {
            tool(&["transact"], &path, Some(&format!("[\"T\",{}", &operations[1..]))).expect("transacted");
        }
        if round % 15 == 14 {
            let opened = open(&RealDisk::default(), &path);
            assert_eq!(opened.notes, []);
            assert_eq!(dump(&opened.database, false), stock_dump(&path), "round {round}");
        }
        if round == 70 {
            tool(&["compact"], &path, None).expect("compacted");
        }
    }
    // And the tool continues after our writes.
    let mut opened = open(&RealDisk::default(), &path);
    compact(&mut opened, |_| {});
    commit(&mut opened, &mut Names(0), r#"[{"op":"insert","table":"C","row":{"n":"ours"}}]"#);
    drop(opened);
    tool(&["transact"], &path, Some(r#"["T",{"op":"insert","table":"C","row":{"n":"theirs"}}]"#))
        .expect("transacted");
    let opened = open(&RealDisk::default(), &path);
    assert_eq!(dump(&opened.database, false), stock_dump(&path));
    let all = dump(&opened.database, false).concat();
    assert!(all.contains("ours") && all.contains("theirs"));
}

#[test]
fn locks_exclude_each_other() {
    let scratch = Scratch::new("locks");
    let opened = created(&scratch);
    let insert = r#"["T",{"op":"insert","table":"C","row":{}}]"#;
    let link = scratch.0.join("link.db");
    std::os::unix::fs::symlink("t.db", &link).expect("a link");
    for path in [&scratch.database(), &link] {
        let refused = tool(&["transact"], path, Some(insert)).expect_err("locked");
        assert!(refused.contains(&format!("already locked by pid {}", std::process::id())), "{refused}");
    }
    let again = Log::open(RealDisk::default(), &link, 0, &mut make).err().expect("refused");
    assert!(
        again.error.to_string().ends_with("link.db: failed to lock lockfile (Resource deadlock avoided)")
    );
    drop(opened);
    tool(&["transact"], &link, Some(insert)).expect("transacted");

    // Another process holds it, as the stock server would.
    let hold = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', \
        flush=True); sys.stdin.read()";
    let mut holder = Command::new("python3")
        .args(["-c", hold])
        .arg(scratch.0.join(".t.db.~lock~"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3");
    let mut said = [0; 4];
    std::io::Read::read_exact(holder.stdout.as_mut().expect("a pipe"), &mut said).expect("said");
    let refused = Log::open(RealDisk::default(), &scratch.database(), 0, &mut make).err().expect("refused");
    assert!(
        refused.notes[0].text.ends_with(&format!("already locked by pid {}", holder.id())),
        "{:?}",
        refused.notes
    );
    assert!(
        refused.error.to_string().ends_with("failed to lock lockfile (Resource temporarily unavailable)")
    );
    drop(holder.stdin.take());
    holder.wait().expect("it ended");
    open(&RealDisk::default(), &scratch.database());
}

#[test]
fn compaction_through_a_link_replaces_what_it_leads_to() {
    let scratch = Scratch::new("link");
    drop(created(&scratch));
    let link = scratch.0.join("link.db");
    std::os::unix::fs::symlink("t.db", &link).expect("a link");
    let mut opened = open(&RealDisk::default(), &link);
    commit(&mut opened, &mut Names(0), r#"[{"op":"insert","table":"C","row":{"n":"x"}}]"#);
    compact(&mut opened, |_| {});
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(stock_dump(&scratch.database()).len(), 1);
    assert!(!RealDisk::default().exists(&scratch.0.join("t.db.tmp")).expect("asked"));
}

/// A second server would write to the same log through a hard link, or once the lock file was removed.
#[test]
fn a_log_that_is_open_is_not_opened_by_another_name_or_without_its_lock_file() {
    let scratch = Scratch::new("linked");
    let (path, link) = (scratch.database(), scratch.0.join("linked.db"));
    Log::create(&RealDisk::default(), &path, &schema(SCHEMA)).expect("created");
    let open_again = |path: &Path| {
        let opened = Log::open(RealDisk::default(), path, 0, &mut make);
        opened.err().map(|refused| refused.error.to_string())
    };
    let mut opened = open(&RealDisk::default(), &path);
    let (mut names, mut random) = (Names(1), Random(7));
    for is_compacted in [false, true] {
        if is_compacted {
            opened.log.start_compaction(&opened.database, 0, 0).expect("a compaction");
            while !matches!(opened.log.step(&opened.database).expect("a step"), Step::Finished(_)) {}
            fs::remove_file(&link).expect("removed");
        }
        fs::hard_link(&path, &link).expect("linked");
        let _ = fs::remove_file(scratch.0.join(".t.db.~lock~"));
        for other in [&path, &link] {
            let refused = open_again(other).expect("it must be refused");
            assert!(refused.contains("failed to lock the log"), "{refused}");
        }
        commit(&mut opened, &mut names, &random.operations());
    }
    drop(opened);
    assert_eq!(open_again(&link), None);
}
