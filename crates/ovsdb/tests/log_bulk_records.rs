//! Records of many rows: their plain notation means the same as any other notation.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use log::{Names, dump, log_of, read_at};
use ovsdb::database::Database;
use ovsdb::uuid::Uuid;
use std::fmt::Write as _;
use std::path::Path;

/// A record of rows of table A.
fn bulk(rows: &[(Uuid, String)]) -> String {
    let rows: Vec<String> = rows.iter().map(|(uuid, row)| format!("\"{uuid}\":{row}")).collect();
    format!(r#"{{"_date":1,"_is_diff":true,"A":{{{}}}}}"#, rows.join(","))
}

fn uuids(first: u64, count: usize) -> Vec<Uuid> {
    let mut names = Names(first);
    (0..count).map(|_| names.next()).collect()
}

/// New rows of various columns, in the order of the columns' names.
fn inserts(first: u64, count: usize) -> Vec<(Uuid, String)> {
    let row = |(number, uuid): (usize, Uuid)| {
        let mut columns = vec![format!(r#""i":{}"#, number as i64 - 40)];
        if number % 3 == 0 {
            columns.push(r#""m":["map",[["k","v"],["x","y"]]]"#.to_owned());
        }
        if number % 2 == 0 {
            columns.push(format!(r#""s":"text {number}","si":["set",[{number},{}]]"#, number + 1));
        }
        (uuid, format!("{{{}}}", columns.join(",")))
    };
    uuids(first, count).into_iter().enumerate().map(row).collect()
}

fn read(records: &[String]) -> (Database, Vec<String>) {
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let (database, notes, _) = read_at(Path::new("/db/t.db"), &log_of(&records));
    (database, notes)
}

/// Reads the records as they are and with white space, which only the general parser accepts. Returns rows and errors.
fn check(records: &[String]) -> (Vec<String>, usize) {
    let spaced: Vec<String> = records.iter().map(|record| record.replacen('{', "{ ", 1)).collect();
    let (plain, notes) = read(records);
    let (other, other_notes) = read(&spaced);
    let rows = dump(&plain, false);
    assert_eq!(rows, dump(&other, false));
    assert_eq!(notes.len(), other_notes.len(), "{notes:?} {other_notes:?}");
    for (note, other) in notes.iter().zip(&other_notes) {
        // Errors may quote the text.
        assert_eq!(note.split(':').next_back(), other.split(':').next_back());
    }
    (rows, notes.len())
}

#[test]
fn new_and_old_rows_in_any_mixture() {
    let change = |uuid: &Uuid| (*uuid, r#"{"i":7,"si":["set",[1,1000]]}"#.to_owned());
    let base = inserts(0, 200);
    let known = uuids(0, 200);
    let more = inserts(1000, 200);
    assert_eq!(check(&[bulk(&base)]).1, 0);
    assert_eq!(check(&[bulk(&base), bulk(&more)]).0.len(), 400);
    // Only the first, one in the middle, and only the last is not new; and vice versa.
    for place in [0, 1, 15, 16, 17, 100, 199] {
        let mut mixed = more.clone();
        // An even-numbered row, with columns that the change does not name.
        mixed[place] = change(&known[place & !1]);
        let mut other: Vec<_> = known.iter().map(change).collect();
        other[place] = more[place].clone();
        let records =
            [bulk(&base), bulk(&mixed), bulk(&inserts(2000, 100)), bulk(&other), bulk(&inserts(3000, 100))];
        let (rows, complaints) = check(&records);
        assert_eq!((rows.len(), complaints), (600, 0), "{place}");
        let mut deleting = more.clone();
        deleting[place] = (known[place], "null".to_owned());
        let (rows, complaints) = check(&[bulk(&base), bulk(&deleting), bulk(&inserts(2000, 100))]);
        assert_eq!((rows.len(), complaints), (498, 0), "{place}");
        // A row that does not exist cannot be deleted: nothing of that record counts.
        deleting[place].0 = uuids(9000, 1)[0];
        let (rows, complaints) = check(&[bulk(&base), bulk(&deleting), bulk(&inserts(2000, 100))]);
        assert_eq!((rows.len(), complaints), (300, 1), "{place}");
    }
}

#[test]
fn nonsense_in_a_bulk_changes_nothing() {
    for nonsense in [r#"{"i":"x"}"#, r#"{"nope":1}"#, r#"{"s3":["set",[1,2,3,4]]}"#, "17"] {
        for place in [0, 30, 199] {
            let mut rows = inserts(1000, 200);
            rows[place].1 = nonsense.to_owned();
            let (rows, complaints) = check(&[bulk(&inserts(0, 200)), bulk(&rows), bulk(&inserts(2000, 50))]);
            assert_eq!((rows.len(), complaints), (250, 1), "{nonsense} at {place}");
        }
    }
}

#[test]
fn columns_come_in_any_order_and_rows_twice() {
    let mut rows = inserts(0, 100);
    rows[10].1 = r#"{"si":["set",[3,1]],"s":"a","i":4}"#.to_owned();
    rows[20].1 = r#"{"s":"a","i":4,"s":"b"}"#.to_owned();
    rows[30].1 = "{}".to_owned();
    rows[40].1 = r#"{"_uuid":["uuid","07070707-0707-0707-0000-000000000001"],"i":4}"#.to_owned();
    rows[50].0 = rows[49].0;
    rows[99].0 = rows[0].0;
    let (rows, complaints) = check(&[bulk(&rows), bulk(&inserts(1000, 100))]);
    assert_eq!((rows.len(), complaints), (198, 0));
    assert!(rows.iter().any(|row| row.contains("s=\"b\"")), "the last of equal columns counts");
}

#[test]
fn a_record_larger_than_the_buffer_is_the_same_rows() {
    let mut rows = inserts(0, 30_000);
    // Not plain, not new, out of order, duplicate.
    rows[3000].1 = r#"{"s":"\u0061"}"#.to_owned();
    rows[9000].0 = uuids(100_000, 1)[0];
    rows[9001].1 = r#"{"si":5,"i":6}"#.to_owned();
    rows[12_000].0 = rows[11_990].0;
    let large = bulk(&rows);
    assert!(large.len() > 1 << 20);
    let before = bulk(&inserts(100_000, 100));
    let (whole, notes) = read(&[before.clone(), large]);
    assert_eq!(notes, Vec::<String>::new());
    let pieces = rows.chunks(1000).map(bulk);
    let (in_pieces, notes) = read(&std::iter::once(before).chain(pieces).collect::<Vec<_>>());
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(dump(&whole, false), dump(&in_pieces, false));
    assert_eq!(whole.figures().rows, 30_000 + 100 - 2);
}

#[test]
fn a_long_log_takes_no_more_memory_than_its_rows_need() {
    // Many rows at its end, many at its beginning, and a log of changes alone.
    let few = |first: u64| bulk(&inserts(first, 10));
    let many = |first: u64| bulk(&inserts(first * 1000, 500));
    let change =
        |_| bulk(&uuids(0, 300).into_iter().map(|uuid| (uuid, r#"{"i":1}"#.to_owned())).collect::<Vec<_>>());
    let base = || std::iter::once(bulk(&inserts(0, 500)));
    let logs: [Vec<String>; 3] = [
        base().chain((0..200).map(change)).chain((1..60).map(many)).collect(),
        base().chain((1..60).map(many)).chain((0..200).map(change)).collect(),
        base().chain((0..300).map(change)).chain((1..9).map(|first| few(first * 1000))).collect(),
    ];
    for (log, expected) in logs.iter().zip([30_000_u64, 30_000, 580]) {
        assert!(log.iter().map(String::len).sum::<usize>() > 2 << 20);
        let (database, notes) = read(log);
        assert_eq!(notes, Vec::<String>::new());
        let figures = database.figures();
        assert_eq!(figures.rows, expected);
        assert!(
            figures.index_bytes < expected * 18 + 8192,
            "{} bytes for {expected} rows",
            figures.index_bytes
        );
        let (table, _) = database.schema().find_table("A").unwrap();
        let mut missing = String::new();
        for uuid in database.rows(table).map(|row| row.uuid()) {
            if database.row_by_uuid(table, &uuid).is_none() {
                write!(missing, "{uuid} ").unwrap();
            }
        }
        assert_eq!(missing, "");
    }
}
