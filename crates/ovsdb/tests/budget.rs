//! A database that reaches its budget: what would exceed it is refused, and everything else continues.
#![allow(clippy::unwrap_used)]

mod sessions;

use ovsdb::database::{Database, Options};
use ovsdb::schema::DatabaseSchema;
use ovsdb::server::Limits;
use sessions::{Driver, SCHEMA, TestLog};

const MIB: u64 = 1 << 20;
const BUDGET_BYTES: u64 = 16 * MIB;
const REFUSED: &str = r#""error":"resources exhausted""#;

fn limited() -> Driver {
    let schema = DatabaseSchema::parse(wire::json::validate(SCHEMA.as_bytes()).unwrap()).unwrap();
    let database = Database::new(schema, Options { budget_bytes: BUDGET_BYTES, seed: 1 }).unwrap();
    Driver::hosting(database, Some(TestLog::default()), Limits { backlog_bytes: 300, ..Limits::default() })
}

fn transact(operations: &str) -> String {
    format!(r#"{{"id":1,"method":"transact","params":["T",{operations}]}}"#)
}

fn insert(n: usize, text_bytes: usize) -> String {
    let text = "x".repeat(text_bytes);
    transact(&format!(r#"{{"op":"insert","table":"Test","row":{{"name":"{n}","n":{n},"o":"{text}"}}}}"#))
}

fn change(clause: &str, row: &str) -> String {
    transact(&format!(r#"{{"op":"update","table":"Test","where":[{clause}],"row":{row}}}"#))
}

fn delete(clause: &str) -> String {
    transact(&format!(r#"{{"op":"delete","table":"Test","where":[{clause}]}}"#))
}

/// The answer that the writer receives.
fn answer(driver: &mut Driver, request: &str) -> String {
    let lines = driver.send("W", request);
    lines.into_iter().rfind(|line| line.starts_with("W ")).unwrap()
}

/// Inserts rows from this number on until one is refused. Returns how many were accepted.
fn fill(driver: &mut Driver, first: usize, text_bytes: usize) -> usize {
    (0..200_000).find(|n| answer(driver, &insert(first + n, text_bytes)).contains(REFUSED)).unwrap()
}

fn resident_bytes(driver: &Driver) -> u64 {
    driver.server.database("T").unwrap().resident_bytes()
}

#[test]
fn a_row_that_would_pass_the_budget_is_refused() {
    let mut driver = limited();
    let refused = answer(&mut driver, &insert(1, 40 << 20));
    assert!(refused.contains(REFUSED) && refused.contains("its 16777216 bytes of memory"), "{refused:.200}");
    assert!(!answer(&mut driver, &insert(2, 10)).contains(REFUSED));
    let refused = answer(&mut driver, &change("", &format!(r#"{{"o":"{}"}}"#, "y".repeat(40 << 20))));
    assert!(refused.contains(REFUSED), "{refused:.200}");
    assert_eq!(driver.server.database("T").unwrap().figures().rows, 1);
}

#[test]
fn what_is_deleted_makes_room() {
    let mut driver = limited();
    let rows = fill(&mut driver, 0, 5000);
    assert!(rows as u64 * 5000 > BUDGET_BYTES / 2, "{rows}");
    let third = rows / 3;
    let deleted = answer(&mut driver, &delete(&format!(r#"["n","<",{third}]"#)));
    assert!(deleted.contains(&format!(r#"[{{"count":{third}}}]"#)), "{deleted}");
    let again = fill(&mut driver, rows, 5000);
    assert!(again >= third * 9 / 10, "{again} of {third}");
    assert_eq!(driver.server.database("T").unwrap().figures().rows as usize, rows - third + again);
}

#[test]
fn room_that_is_made_and_taken_at_once() {
    let mut driver = limited();
    let rows = fill(&mut driver, 0, 5000);
    let both = format!("{}{}", delete(&format!(r#"["n","<",{}]"#, rows / 3)), insert(rows, 5000));
    let answered = driver.send("W", &both);
    assert!(!answered.concat().contains(REFUSED), "{answered:?}");
}

#[test]
fn a_full_database_can_be_made_smaller() {
    let mut driver = limited();
    let rows = fill(&mut driver, 0, 5000);
    for n in 0..rows {
        let changed = answer(&mut driver, &change(&format!(r#"["n","==",{n}]"#), r#"{"o":""}"#));
        assert!(changed.contains(r#"[{"count":1}]"#), "{n}: {changed}");
    }
    assert!(fill(&mut driver, rows, 5000) > rows * 3 / 4);
}

#[test]
fn monitors_are_told_all_that_happened_and_nothing_else() {
    let mut driver = limited();
    driver.send("M", r#"{"id":3,"method":"monitor_cond","params":["T","m",{"Test":{"columns":["n"]}}]}"#);
    let mut told = std::collections::BTreeSet::new();
    let (mut next, mut least) = (1, 1);
    for _ in 0..5 {
        loop {
            let lines = driver.send("W", &insert(next, 300_000));
            let is_refused = lines.iter().any(|line| line.contains(REFUSED));
            let update = lines.iter().find(|line| line.starts_with("M "));
            assert_eq!(is_refused, update.is_none(), "{lines:?}");
            if is_refused {
                break;
            }
            assert!(update.unwrap().contains(&format!(r#""n":{next}"#)), "{update:?}");
            told.insert(next);
            next += 1;
        }
        let until = least + (next - least) / 2;
        let lines = driver.send("W", &delete(&format!(r#"["n","<",{until}]"#)));
        let update = lines.iter().find(|line| line.starts_with("M ")).unwrap();
        assert_eq!(update.matches(r#""delete""#).count(), until - least, "{update}");
        told.retain(|n| *n >= until);
        least = until;
    }
    assert_eq!(driver.server.database("T").unwrap().figures().rows as usize, told.len());
}

#[test]
fn nobody_who_does_not_read_keeps_others_from_writing() {
    let mut driver = limited();
    driver.send("M", r#"{"id":3,"method":"monitor_cond","params":["T","m",{"Test":{"columns":["n","o"]}}]}"#);
    driver.stick("M", true);
    let rows = fill(&mut driver, 0, 5000);
    for n in 0..rows * 4 {
        let lines =
            driver.send("W", &change(&format!(r#"["n","==",{}]"#, n % rows), &format!(r#"{{"r":{n}}}"#)));
        let answer = lines.iter().find(|line| line.starts_with("W ")).unwrap();
        assert!(answer.contains(r#"[{"count":1}]"#), "{n}: {answer}");
    }
    assert_eq!(driver.server.figures().monitors, 0, "it was too far behind");
}

#[test]
fn holes_between_rows_count_as_memory() {
    let mut driver = limited();
    let rows = fill(&mut driver, 0, 1000);
    // One of sixteen rows stays, so that few pages are free.
    for n in (0..rows).filter(|n| n % 16 != 0) {
        answer(&mut driver, &delete(&format!(r#"["n","==",{n}]"#)));
    }
    fill(&mut driver, rows, 300);
    let resident = resident_bytes(&driver);
    assert!(resident <= BUDGET_BYTES + BUDGET_BYTES / 20, "{resident}");
}
