//! What commits write to the log, and how records are read: ours, those of other versions, invalid ones.
#![allow(clippy::expect_used)]

mod log;

use journal::SimulatedDisk;
use log::{
    Names, Random, SCHEMA, commit, created, dump, log_of, make, open, read_at, record, schema, transact,
};
use ovsdb::database::Database;
use ovsdb::file::{Level, Log, Step, transaction_id};
use std::path::Path;
use wire::json::validate;

const ROW: &str = "347fd2b3-cbd8-4d04-8342-0d6759b6c892";

fn path() -> &'static Path {
    Path::new("/db/t.db")
}

fn read(bytes: &[u8]) -> (Database, Vec<String>, SimulatedDisk) {
    read_at(path(), bytes)
}

/// The records of a file after the schema, without headers and dates.
fn records(disk: &SimulatedDisk) -> Vec<String> {
    let text = String::from_utf8(disk.read(path()).expect("a file")).expect("UTF-8");
    let bodies = text.lines().skip(1).step_by(2).skip(1);
    bodies
        .map(|line| match line.strip_prefix("{\"_date\":").and_then(|rest| rest.split_once(',')) {
            Some((_, rest)) => format!("{{{rest}"),
            None => line.to_owned(),
        })
        .collect()
}

#[test]
fn a_commit_tells_what_changed_and_no_more() {
    let (disk, mut opened) = created(path());
    let names = &mut Names(0);
    let mut check = |operations: &str, expected: Option<&str>| {
        let before = records(&disk).len();
        commit(&mut opened, names, operations);
        let written = records(&disk).split_off(before);
        assert_eq!(written, expected.map(str::to_owned).into_iter().collect::<Vec<_>>(), "{operations}");
    };
    let a = "07070707-0707-0707-0000-000000000001";
    // All defaults.
    check(
        r#"[{"op":"insert","table":"A","row":{}}]"#,
        Some(&format!(r#"{{"_is_diff":true,"A":{{"{a}":{{}}}}}}"#)),
    );
    check(
        r#"[{"op":"update","table":"A","where":[],"row":{"i":5,"si":["set",[3,1]],"s3":["set",[3,5]],"e":7,
            "m":["map",[["a","b"],["c","d"]]],"m1":["map",[["k",1]]],"os":"o"}},{"op":"comment","comment":"one"},{"op":"comment","comment":"two"}]"#,
        Some(&format!(
            r#"{{"_is_diff":true,"_comment":"one\ntwo","A":{{"{a}":{{"i":5,"m":["map",[["a","b"],["c","d"]]],"m1":["map",[["k",1]]],"os":"o","s3":["set",[3,5]],"si":["set",[1,3]]}}}}}}"#
        )),
    );
    // Differences of sets and maps; whole values of what has at most one element.
    check(
        r#"[{"op":"update","table":"A","where":[],"row":{"si":["set",[1,9]],"m":["map",[["a","x"],["d","e"]]],"m1":["map",[["j",2]]],"os":["set",[]]}}]"#,
        Some(&format!(
            r#"{{"_is_diff":true,"A":{{"{a}":{{"m":["map",[["a","x"],["c","d"],["d","e"]]],"m1":["map",[["j",2]]],"os":["set",[]],"si":["set",[3,9]]}}}}}}"#
        )),
    );
    // Nothing that the log keeps.
    check(r#"[{"op":"update","table":"A","where":[],"row":{"e":8}},{"op":"comment","comment":"c"}]"#, None);
    check(r#"[{"op":"update","table":"A","where":[],"row":{"i":5}},{"op":"comment","comment":"c"}]"#, None);
    check(r#"[{"op":"comment","comment":"c"},{"op":"commit","durable":true}]"#, None);
    // Differences that a server of version 3.1 would refuse or take for the whole value: whole values then.
    check(
        r#"[{"op":"update","table":"A","where":[],"row":{"s3":["set",[1,4]],"si":["set",[1,2]]}}]"#,
        Some(&format!(r#"{{"A":{{"{a}":{{"s3":["set",[1,4]],"si":["set",[1,2]]}}}}}}"#)),
    );
    check(
        r#"[{"op":"update","table":"A","where":[],"row":{"s13":["set",[0,1]]}}]"#,
        Some(&format!(r#"{{"A":{{"{a}":{{"s13":["set",[0,1]]}}}}}}"#)),
    );
    check(
        r#"[{"op":"update","table":"A","where":[],"row":{"s1u":["set",["","x"]]}}]"#,
        Some(&format!(r#"{{"A":{{"{a}":{{"s1u":["set",["","x"]]}}}}}}"#)),
    );
    check(
        r#"[{"op":"update","table":"A","where":[],"row":{"s13":["set",[1,2]]}}]"#,
        Some(&format!(r#"{{"_is_diff":true,"A":{{"{a}":{{"s13":["set",[0,2]]}}}}}}"#)),
    );
    // What the commit itself does: a weak reference pruned.
    check(
        r#"[{"op":"insert","table":"C","uuid-name":"c","row":{}},{"op":"update","table":"A","where":[],"row":{"weak":["named-uuid","c"]}}]"#,
        Some(&format!(
            r#"{{"_is_diff":true,"A":{{"{a}":{{"weak":["uuid","07070707-0707-0707-0000-000000000002"]}}}},"C":{{"07070707-0707-0707-0000-000000000002":{{}}}}}}"#
        )),
    );
    check(
        r#"[{"op":"delete","table":"C","where":[]}]"#,
        Some(&format!(
            r#"{{"_is_diff":true,"A":{{"{a}":{{"weak":["uuid","07070707-0707-0707-0000-000000000002"]}}}},"C":{{"07070707-0707-0707-0000-000000000002":null}}}}"#
        )),
    );
    check(
        r#"[{"op":"delete","table":"A","where":[]}]"#,
        Some(&format!(r#"{{"_is_diff":true,"A":{{"{a}":null}}}}"#)),
    );
}

#[test]
fn what_is_written_is_read() {
    let (disk, mut opened) = created(path());
    let (mut names, mut random) = (Names(0), Random(42));
    for round in 0..400 {
        commit(&mut opened, &mut names, &random.operations());
        if round % 50 == 49 {
            let expected = dump(&opened.database, false);
            assert!(expected.len() > 3);
            drop(opened);
            opened = open(&disk, path());
            assert_eq!(opened.notes, []);
            assert_eq!(dump(&opened.database, false), expected);
        }
    }
}

#[test]
fn records_of_all_versions_are_read() {
    let whole = format!(r#"{{"A":{{"{ROW}":{{"i":1,"s13":["set",[3,5]]}}}}}}"#);
    // The stock server of version 3.1 writes this, but cannot read it.
    let difference = format!(r#"{{"A":{{"{ROW}":{{"s13":["set",[1,3,5,7]]}}}},"_is_diff":true}}"#);
    let old = format!(r#"{{"_date":12,"A":{{"{ROW}":{{"si":["set",[3,6]]}}}}}}"#);
    let older = format!(r#"{{"A":{{"{ROW}":{{"si":["set",[6,7]]}}}},"_is_diff":false}}"#);
    let (database, notes, _) = read(&log_of(&[&whole, &difference, &old, &older]));
    assert_eq!(notes, Vec::<String>::new());
    let line = dump(&database, false).concat();
    assert!(line.contains(r#" s13=["set",[1,7]] "#) && line.contains(r#" si=["set",[6,7]] "#), "{line}");
}

#[test]
fn of_equal_members_the_last_counts() {
    let rows = format!(r#"{{"A":{{"{ROW}":{{"i":1}},"{ROW}":{{"s":"x"}}}}}}"#);
    let tables = format!(r#"{{"A":{{"{ROW}":{{"i":7}}}},"A":{{"{ROW}":{{"b":true}}}}}}"#);
    let line = dump(&read(&log_of(&[&rows, &tables])).0, false).concat();
    assert!(line.contains(" i=0 ") && line.contains(" s=\"x\" ") && line.contains(" b=true "), "{line}");
}

#[test]
fn nonsense_is_complained_about_and_passed_over() {
    let (before, after) =
        (format!(r#"{{"A":{{"{ROW}":{{"i":1}}}}}}"#), format!(r#"{{"A":{{"{ROW}":{{"s":"z"}}}}}}"#));
    for (nonsense, complaint) in [
        (r#"{"Z":{}}"#.to_owned(), r#"syntax "{"Z":{}}": unknown table: No table named Z."#.to_owned()),
        (
            r#"{"_date":3.5}"#.to_owned(),
            r#"syntax "{"_date":3.5}": unknown table: No table named _date."#.to_owned(),
        ),
        (r#"{"A":5}"#.to_owned(), r#"syntax "5": syntax error: object expected"#.to_owned()),
        (
            format!(r#"{{"A":{{"{ROW}":5}}}}"#),
            r#"syntax "5": syntax error: row must be JSON object"#.to_owned(),
        ),
        (
            r#"{"A":{"xyz":{"i":9}}}"#.to_owned(),
            r#"syntax "{"xyz":{"i":9}}": syntax error: "xyz" is not a valid UUID"#.to_owned(),
        ),
        (
            r#"{"A":{"447fd2b3-cbd8-4d04-8342-0d6759b6c892":null}}"#.to_owned(),
            "syntax error: transaction deletes row 447fd2b3-cbd8-4d04-8342-0d6759b6c892 that does not exist"
                .to_owned(),
        ),
        (
            format!(r#"{{"C":{{"{ROW}":{{}}}},"A":{{"{ROW}":{{"zz":1}}}}}}"#),
            r#"syntax "{"zz":1}": unknown column: No column zz in table A."#.to_owned(),
        ),
        (
            format!(r#"{{"A":{{"{ROW}":{{"i":2,"b":"x"}}}}}}"#),
            r#"syntax ""x"": syntax error: expected boolean"#.to_owned(),
        ),
    ] {
        let (database, notes, _) = read(&log_of(&[&before, &nonsense, &after]));
        assert_eq!(notes, [complaint], "{nonsense}");
        let lines = dump(&database, false);
        assert!(
            lines.len() == 1 && lines[0].contains(" i=1 ") && lines[0].contains(" s=\"z\" "),
            "{lines:?}"
        );
    }
}

#[test]
fn damage_ends_the_database_and_the_next_write_cuts_it_off() {
    let good = log_of(&[&format!(r#"{{"A":{{"{ROW}":{{"i":1}}}}}}"#)]);
    let next = record(r#"{"A":{}}"#);
    let mut cases = vec![
        (
            b"GARBAGE\n".to_vec(),
            format!(
                "syntax error: /db/t.db: parse error at offset {} in header line \"GARBAGE\"",
                good.len()
            ),
        ),
        (
            vec![0; 100],
            format!("syntax error: /db/t.db: parse error at offset {} in header line \"\"", good.len()),
        ),
        (
            record("[1]"),
            format!(
                "syntax error: /db/t.db: 4 bytes starting at offset {} are not a JSON object",
                good.len() + 54
            ),
        ),
        (
            record("{\"A\":"),
            format!(
                "syntax error: /db/t.db: 6 bytes starting at offset {} are not valid JSON (line 1, column 0, byte 6: \
                unexpected end of input)",
                good.len() + 54
            ),
        ),
    ];
    for length in 1..next.len() {
        let text = match length {
            0..54 => format!(
                "syntax error: /db/t.db: parse error at offset {} in header line \"{}\"",
                good.len(),
                String::from_utf8_lossy(&next[..length])
            ),
            _ => format!(
                "I/O error: /db/t.db: error reading 9 bytes starting at offset {} (End of file)",
                good.len() + 54
            ),
        };
        cases.push((next[..length].to_vec(), text));
    }
    for (damage, complaint) in cases {
        let bytes = [good.clone(), damage].concat();
        let disk = SimulatedDisk::new();
        disk.put(path(), &bytes);
        let mut opened = open(&disk, path());
        assert_eq!(opened.notes.len(), 1);
        assert_eq!(opened.notes[0].level, Level::Error);
        assert_eq!(opened.notes[0].text, complaint);
        assert_eq!(disk.read(path()).as_deref(), Some(&bytes[..]), "opening changes nothing");
        commit(&mut opened, &mut Names(0), r#"[{"op":"insert","table":"C","row":{}}]"#);
        let expected = dump(&opened.database, false);
        assert_eq!(expected.len(), 2);
        drop(opened);
        let opened = open(&disk, path());
        assert_eq!(opened.notes, []);
        assert_eq!(dump(&opened.database, false), expected);
    }
}

#[test]
fn what_is_no_database_is_refused() {
    for (bytes, expected) in [
        (&b""[..], "ovsdb error: /db/t.db: cannot identify file type"),
        (b"hello\n", "ovsdb error: /db/t.db: unexpected file format"),
        (b"OVSDB", "ovsdb error: /db/t.db: unexpected file format"),
        (
            &log_of(&[])[..400],
            "I/O error: /db/t.db: error reading 1005 bytes starting at offset 57 (End of file)",
        ),
        (&record("{}"), "syntax error: Parsing database schema failed: Required 'name' member is missing."),
    ] {
        let disk = SimulatedDisk::new();
        disk.put(path(), bytes);
        let error = Log::open(disk, path(), 0, &mut make).err().expect("refused").error.to_string();
        let (text, schema) = (error.as_str(), "error reading");
        assert!(
            text == expected || text.contains(schema) && expected.contains(schema) || text.contains("'name'"),
            "{text}"
        );
    }
    let error =
        Log::open(SimulatedDisk::new(), path(), 0, &mut make).err().expect("refused").error.to_string();
    assert_eq!(error, "I/O error: /db/t.db: open failed (No such file or directory)");
}

#[test]
fn a_second_opening_is_refused() {
    let (disk, _opened) = created(path());
    let error = Log::open(disk, path(), 0, &mut make).err().expect("refused");
    assert_eq!(
        error.error.to_string(),
        "I/O error: /db/t.db: failed to lock lockfile (Resource deadlock avoided)"
    );
    assert_eq!(
        error.notes[0].text,
        "/db/.t.db.~lock~: cannot lock file because this process has already locked it"
    );
}

#[test]
fn transaction_ids_outlive_restarts_and_compaction() {
    let (disk, mut opened) = created(path());
    let mut names = Names(0);
    let update =
        |number: u64| format!(r#"[{{"op":"update","table":"A","where":[],"row":{{"i":{number}}}}}]"#);
    // History is kept as long as it is smaller than the rows.
    let long = "x".repeat(9000);
    commit(&mut opened, &mut names, &format!(r#"[{{"op":"insert","table":"C","row":{{"n":"{long}"}}}}]"#));
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"A","row":{}}]"#);
    let mut ids = vec![opened.database.transaction_id()];
    for number in 1..=6 {
        commit(&mut opened, &mut names, &update(number));
        ids.push(opened.database.transaction_id());
        if number == 3 {
            // Ephemeral: another id, but the same without its tag.
            commit(&mut opened, &mut names, r#"[{"op":"update","table":"A","where":[],"row":{"e":7}}]"#);
            let id = opened.database.transaction_id();
            assert_ne!(id, ids[3]);
            assert_eq!(transaction_id::logged(id), transaction_id::logged(ids[3]));
            compact(&mut opened);
            assert_eq!(opened.database.transaction_id(), id);
        }
    }
    let mut distinct = ids.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len());
    let last = opened.database.transaction_id();
    drop(opened);
    let opened = open(&disk, path());
    assert_ne!(opened.database.transaction_id(), last, "ephemeral columns have been reset");
    assert_eq!(transaction_id::logged(opened.database.transaction_id()), transaction_id::logged(last));
    for (number, id) in ids.iter().enumerate() {
        let found = opened.database.find_transaction(*id);
        // The snapshot is of the state after the fourth commit; earlier states are gone.
        assert_eq!(found.is_some(), number >= 3, "{number}");
        if let Some(found) = found {
            assert!(found < opened.log.opened_at());
            assert_eq!(opened.database.changes_since(found).count(), 1, "the row, whose value was reset");
        }
    }
}

fn compact(opened: &mut ovsdb::file::Opened<SimulatedDisk>) {
    opened.log.start_compaction(&opened.database, 5, 5).expect("started");
    loop {
        match opened.log.step(&opened.database).expect("a slice") {
            Step::Finished(_) => break,
            Step::Idle => panic!("it ended"),
            Step::Again | Step::Waiting => {}
        }
    }
}

#[test]
fn compaction_keeps_the_rows_while_commits_go_on() {
    for seed in 1..40 {
        let (disk, mut opened) = created(path());
        let (mut names, mut random) = (Names(0), Random(seed));
        for _ in 0..30 {
            commit(&mut opened, &mut names, &random.operations());
        }
        opened.log.start_compaction(&opened.database, 5, 5).expect("started");
        let mut finished = false;
        while !finished {
            for _ in 0..random.below(3) {
                commit(&mut opened, &mut names, &random.operations());
            }
            finished = matches!(opened.log.step(&opened.database).expect("a slice"), Step::Finished(_));
        }
        for _ in 0..3 {
            commit(&mut opened, &mut names, &random.operations());
        }
        let expected = dump(&opened.database, false);
        let id = opened.database.transaction_id();
        drop(opened);
        assert_eq!(disk.names(), [Path::new("/db/.t.db.ephemeral"), path()]);
        let opened = open(&disk, path());
        assert_eq!(opened.notes, []);
        assert_eq!(dump(&opened.database, false), expected, "seed {seed}");
        assert_eq!(transaction_id::logged(opened.database.transaction_id()), transaction_id::logged(id));
        let snapshot = records(&disk);
        assert!(snapshot[0].contains(r#""_comment":"compacting database online (transaction "#));
    }
}

#[test]
fn large_snapshots_are_written_in_slices_and_read_in_pieces() {
    let (disk, mut opened) = created(path());
    let mut names = Names(0);
    let long = "x".repeat(3000);
    let insert =
        format!(r#"{{"op":"insert","table":"A","row":{{"s":"{long}\"","e":3,"s3":["set",[1,2]]}}}}"#);
    let operations = format!("[{}]", vec![insert.as_str(); 50].join(","));
    for _ in 0..20 {
        commit(&mut opened, &mut names, &operations);
    }
    opened.log.start_compaction(&opened.database, 5, 5).expect("started");
    let mut slices = 0;
    loop {
        slices += 1;
        match opened.log.step(&opened.database).expect("a slice") {
            Step::Finished(figures) => {
                assert_eq!(figures.rows, 1000);
                break;
            }
            // Rows before and after the cursor, and rows of a later table.
            _ if slices < 8 => {
                let id = slices * 110;
                let row = format!("07070707-0707-0707-0000-{id:012x}");
                let operations = format!(
                    r#"[{{"op":"delete","table":"A","where":[["_uuid","==",["uuid","{row}"]]]}},{{"op":"insert","table":"C","row":{{"n":"{slices}"}}}},
                    {{"op":"update","table":"C","where":[["n","==","{}"]],"row":{{"n":"again"}}}}]"#,
                    slices - 1
                );
                commit(&mut opened, &mut names, &operations);
            }
            _ => {}
        }
    }
    assert!(slices > 20, "{slices}");
    let expected = dump(&opened.database, false);
    drop(opened);
    assert!(disk.read(path()).expect("a file").len() > 2 << 20);
    let opened = open(&disk, path());
    assert_eq!(opened.notes, []);
    assert_eq!(dump(&opened.database, false), expected);
}

#[test]
fn a_large_record_of_nonsense_is_passed_over_as_a_whole() {
    let long = "x".repeat(2 << 20);
    let first = format!(r#"{{"A":{{"{ROW}":{{"i":1}}}}}}"#);
    let other = "447fd2b3-cbd8-4d04-8342-0d6759b6c892";
    let large = |end: &str| format!(r#"{{"C":{{"{other}":{{"n":"{long}"}}}},{end}}}"#);
    for (record, complaint) in [
        (large(r#""Z":{}"#), "unknown table: No table named Z."),
        (large(&format!(r#""A":{{"{other}":null}}"#)), "that does not exist"),
        (large(&format!(r#""A":{{"{other}":{{"q":1}}}}"#)), "No column q in table A."),
    ] {
        let (database, notes, _) =
            read(&log_of(&[&first, &record, &format!(r#"{{"A":{{"{ROW}":{{"s":"z"}}}}}}"#)]));
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains(complaint), "{}", notes[0]);
        let lines = dump(&database, false);
        assert!(
            lines.len() == 1 && lines[0].contains(" i=1 ") && lines[0].contains(" s=\"z\" "),
            "{lines:?}"
        );
    }
    // `_is_diff` at the very end; damage.
    let diff =
        format!(r#"{{"C":{{"{other}":{{"n":"{long}"}}}},"A":{{"{ROW}":{{"si":3}}}},"_is_diff":true}}"#);
    let second = format!(r#"{{"A":{{"{ROW}":{{"si":["set",[3,4]]}}}}}}"#);
    let (database, notes, _) = read(&log_of(&[&second, &diff]));
    assert_eq!(notes, Vec::<String>::new());
    assert!(dump(&database, false).concat().contains(" si=4 "));
    let (database, notes, _) = read(&log_of(&[&first, &large("")]));
    assert!(notes[0].contains("are not valid JSON"), "{notes:?}");
    assert_eq!(dump(&database, false).len(), 1);
}

#[test]
fn a_conversion_replaces_schema_and_rows() {
    let (disk, mut opened) = created(path());
    let mut names = Names(0);
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"x"}}]"#);
    let converted = SCHEMA.replace("\"version\":\"1.0.0\"", "\"version\":\"1.1.0\"");
    let mut database = make(schema(&converted)).expect("a database");
    let (_, commit_number) =
        transact(&mut database, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"y"}}]"#);
    assert!(commit_number.is_some());
    opened.log.replace(&mut database, 9).expect("replaced");
    opened.database = database;
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"z"}}]"#);
    let (expected, id) = (dump(&opened.database, false), opened.database.transaction_id());
    drop(opened);
    let opened = open(&disk, path());
    assert_eq!(opened.database.schema().version, "1.1.0");
    assert_eq!(dump(&opened.database, false), expected);
    assert_eq!(transaction_id::logged(opened.database.transaction_id()), transaction_id::logged(id));
    assert!(opened.database.find_transaction(id).is_some());
    assert!(records(&disk)[0].contains(r#""_comment":"converted by ovsdb-server (transaction "#));
    for line in
        String::from_utf8(disk.read(path()).expect("a file")).expect("UTF-8").lines().skip(1).step_by(2)
    {
        validate(line.as_bytes()).expect("JSON");
    }
}
