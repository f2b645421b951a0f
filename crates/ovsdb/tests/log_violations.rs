//! Records that leave behind what no transaction may: nothing of them is applied, and what follows is read as if they
//! did not exist. Each is read as a small record, which is undone, and as one that does not fit the reader's buffer.
#![allow(clippy::expect_used)]

mod log;

use journal::SimulatedDisk;
use log::{Names, commit, dump, open, record};
use ovsdb::file::Level;
use std::path::Path;

const SCHEMA: &str = r#"{"name":"T","version":"1.0.0","tables":{
    "Root":{"isRoot":true,"indexes":[["name"]],"columns":{
        "name":{"type":"string"},"i":{"type":"integer"},
        "uses":{"type":{"key":{"type":"uuid","refTable":"Used"},"min":0,"max":"unlimited"}},
        "needs":{"type":{"key":{"type":"uuid","refTable":"Used","refType":"weak"},"min":0,"max":"unlimited"}}}},
    "Weak":{"isRoot":true,"columns":{"to":{"type":{"key":{"type":"uuid","refTable":"Used","refType":"weak"},"min":1,"max":"unlimited"}}}},
    "Few":{"isRoot":true,"maxRows":2,"columns":{"i":{"type":"integer"}}},
    "Used":{"columns":{"n":{"type":"integer"}}}}}"#;

fn path() -> &'static Path {
    Path::new("/db/t.db")
}

/// `@5` stands for a UUID.
fn with_uuids(text: &str) -> String {
    let mut parts = text.split('@');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digit, rest) = part.split_at(1);
        out.push_str(&format!("00000000-0000-4000-8000-00000000000{digit}{rest}"));
    }
    out
}

fn log_of(records: &[String]) -> SimulatedDisk {
    let mut bytes = record(SCHEMA);
    for text in records {
        bytes.extend(record(&with_uuids(text)));
    }
    let disk = SimulatedDisk::new();
    disk.put(path(), &bytes);
    disk
}

/// The rows, the notes, and the rows again after a restart with a commit between.
fn read(records: &[String]) -> (Vec<String>, Vec<(Level, String)>) {
    let disk = log_of(records);
    let mut opened = open(&disk, path());
    let notes = opened.notes.iter().map(|note| (note.level, note.text.clone())).collect();
    let rows = dump(&opened.database, true);
    commit(
        &mut opened,
        &mut Names(0),
        r#"[{"op":"insert","table":"Used","uuid-name":"u","row":{"n":77}},
        {"op":"insert","table":"Root","row":{"name":"new","uses":["named-uuid","u"],"needs":["named-uuid","u"]}},
        {"op":"update","table":"Root","where":[["name","==","a"]],"row":{"i":99}}]"#,
    );
    let after = dump(&opened.database, true);
    drop(opened);
    assert_eq!(dump(&open(&disk, path()).database, true), after);
    (rows, notes)
}

/// What precedes and follows the record in question.
const BEFORE: &str = r#"{"Used":{"@1":{"n":1},"@2":{"n":2}},"Root":{"@a":{"name":"a","uses":["set",[["uuid","@1"],["uuid","@2"]]],
    "needs":["uuid","@1"]},"@b":{"name":"b","needs":["set",[["uuid","@1"],["uuid","@2"]]]}},"Weak":{"@c":{"to":["uuid","@2"]}},"Few":{"@d":{}}}"#;
const AFTER: &str = r#"{"_is_diff":true,"Root":{"@a":{"i":5},"@b":{"i":6,"needs":["uuid","@2"]}}}"#;

#[test]
fn such_a_record_is_passed_over() {
    let dangling = "referential integrity violation: Table Root column uses row @a references nonexistent row @9 in \
        table Used.";
    let weak = "caused this column to become empty, but constraints on this column disallow an empty column.";
    for (violation, complaint) in [
        (r#""Root":{"@a":{"i":3,"uses":["uuid","@9"]}},"Few":{"@d":{"i":1}}"#, dangling),
        (
            r#""Used":{"@1":null},"Root":{"@b":{"name":"z"}}"#,
            "referential integrity violation: cannot delete Used row @1 because of 1 remaining reference(s)",
        ),
        (
            r#""Root":{"@e":{"name":"e","uses":["uuid","@1"]},"@f":{"name":"a","needs":["uuid","@1"]}}"#,
            "constraint violation: Transaction causes multiple rows in \"Root\" table to have identical values",
        ),
        (r#""Root":{"@a":{"name":"b"},"@e":{"name":"a"}}"#, "identical values"),
        (
            r#""Root":{"@a":{"name":"x"}},"Few":{"@7":{},"@8":{}}"#,
            "constraint violation: transaction causes \"Few\" table to contain 3 rows, greater than the \
            schema-defined limit of 2 row(s)",
        ),
        (r#""Few":{"@7":{},"@8":{}}"#, "greater than the schema-defined limit of 2 row(s)"),
        (r#""Weak":{"@c":{"to":["uuid","@9"]}},"Root":{"@b":null}"#, weak),
        // The row is deleted as nothing refers to it any more, and with it what another row must refer to.
        (r#""Root":{"@a":{"uses":["uuid","@1"]}}"#, weak),
    ] {
        let records = |between: Option<String>| -> Vec<String> {
            [Some(BEFORE.to_owned()), between, Some(AFTER.to_owned())].into_iter().flatten().collect()
        };
        let (expected, notes) = read(&records(None));
        assert_eq!(notes, []);
        for comment in ["", &"x".repeat(2 << 20)] {
            let record = format!(r#"{{{violation},"_comment":"{comment}"}}"#);
            let (rows, notes) = read(&records(Some(record)));
            assert_eq!(rows, expected, "{violation}");
            let [(Level::Info, text)] = &notes[..] else { panic!("{violation}: {notes:?}") };
            assert!(text.contains(&with_uuids(complaint)), "{violation}: {text}");
        }
    }
}

#[test]
fn what_follows_may_depend_on_it() {
    // The first is skipped; so the second does not state the row's name, and the third is invalid.
    let records = [
        r#"{"Root":{"@a":{"name":"a","uses":["uuid","@9"]}}}"#,
        r#"{"_is_diff":true,"Root":{"@a":{"i":2}}}"#,
        r#"{"Used":{"@9":null},"Root":{"@a":null}}"#,
    ]
    .map(str::to_owned);
    let (rows, notes) = read(&records);
    assert_eq!(rows.len(), 1);
    assert!(rows[0].contains(r#" i=2 name="" "#), "{rows:?}");
    assert_eq!([notes[0].0, notes[1].0], [Level::Info, Level::Error]);
}

#[test]
fn references_and_limits_may_be_in_any_order_within_a_record() {
    // More rows than the reader applies at a time, referring to later rows; two rows change names.
    let mut rows: Vec<String> = (0..70_000)
        .map(|number| {
            let uses = if number == 0 { r#","uses":["uuid","@1"]"# } else { "" };
            format!(r#""{number:08x}-0000-4000-8000-000000000000":{{"name":"{number}"{uses}}}"#)
        })
        .collect();
    rows.push(r#""@a":{"name":"b"}"#.to_owned());
    rows.push(r#""@b":{"name":"a"}"#.to_owned());
    let record =
        |used: &str| format!(r#"{{"Root":{{{}}},"Few":{{"@7":{{}}}},"Used":{{{used}}}}}"#, rows.join(","));
    let before = r#"{"Root":{"@a":{"name":"a"},"@b":{"name":"b"}}}"#.to_owned();
    let (read_rows, notes) = read(&[before.clone(), record(r#""@1":{"n":1}"#)]);
    assert_eq!((read_rows.len(), notes.len()), (70_004, 0));
    let (read_rows, notes) = read(&[before, record("")]);
    assert_eq!((read_rows.len(), notes.len()), (2, 1));
}

#[test]
fn a_table_of_many_rows_that_may_have_few() {
    // Only the number of rows can be wrong in this table.
    let rows: Vec<String> =
        (0..70_000).map(|number| format!(r#""{number:08x}-0000-4000-8000-000000000000":{{}}"#)).collect();
    let record = format!(r#"{{"Few":{{{}}}}}"#, rows.join(","));
    let (rows, notes) = read(&[record]);
    assert_eq!(rows, [] as [String; 0]);
    assert!(notes[0].1.contains("to contain 70000 rows"), "{notes:?}");
}
