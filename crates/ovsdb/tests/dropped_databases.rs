//! A database that was dropped has returned its memory, with every allocator: rows, indexes and history. So has one
//! whose rows were deleted, once it rests.
#![allow(clippy::unwrap_used)]

use ovsdb::database::{Database, Options};
use ovsdb::schema::DatabaseSchema;
use ovsdb::transaction::{Context, Outcome, execute};
use ovsdb::uuid::Uuid;
use std::fmt::Write as _;
use wire::json::{self, Value};

const SCHEMA: &str = r#"{"name":"D","tables":{"T":{"isRoot":true,"columns":{"name":{"type":"string"},
    "text":{"type":"string"},"set":{"type":{"key":"integer","min":0,"max":"unlimited"}}},"indexes":[["name"]]}}}"#;
const ROUNDS: usize = 4;
const ROWS: usize = 60_000;
const ROWS_PER_TRANSACTION: usize = 1000;
const PAGE: usize = 4096;
/// Bytes that may remain after all rounds together, and after one deletion: free pages at the edges of other
/// allocations. One database takes more than three times as much.
const LEFT_BYTES_MAX: usize = 12 << 20;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}

fn transact(database: &mut Database, operations: &str, next: &mut u128) {
    let value = json::validate(operations.as_bytes()).unwrap();
    let operations: Vec<Value<'_>> = value.elements().collect();
    let context = Context::own();
    let mut uuid = || {
        *next += 1;
        // Spread like random ones.
        Uuid(next.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes())
    };
    let outcome = execute(database, &operations, &context, &mut uuid, &mut Vec::new());
    assert!(matches!(outcome, Outcome::Finished { committed: Some(_), .. }), "{outcome:?}");
}

/// A database with rows, an index of ours and its own, and a history.
fn filled() -> Database {
    let schema = DatabaseSchema::parse(json::validate(SCHEMA.as_bytes()).unwrap()).unwrap();
    let mut database = Database::new(schema, Options { budget_bytes: u64::MAX, seed: 3 }).unwrap();
    let mut next = 0;
    for start in (0..ROWS).step_by(ROWS_PER_TRANSACTION) {
        let mut text = "[".to_owned();
        for number in start..start + ROWS_PER_TRANSACTION {
            let separator = if number == start { "" } else { "," };
            write!(
                text,
                r#"{separator}{{"op":"insert","table":"T","row":{{"name":"{number}","text":"{}","set":["set",[1,2,{}]]}}}}"#,
                "x".repeat(100 + number % 900),
                number + 3
            )
            .unwrap();
        }
        text.push(']');
        transact(&mut database, &text, &mut next);
    }
    for number in 0..2000 {
        let update = format!(
            r#"[{{"op":"update","table":"T","where":[["name","==","{number}"]],"row":{{"text":"{number}"}}}}]"#
        );
        transact(&mut database, &update, &mut next);
    }
    assert_eq!(database.figures().rows, ROWS as u64);
    database
}

/// One test, because it measures the whole process.
#[test]
fn its_memory_goes_back() {
    let empty = resident_bytes();
    drop(filled());
    let before = resident_bytes();
    let mut most = 0;
    for _ in 1..ROUNDS {
        let database = filled();
        most = most.max(resident_bytes());
        drop(database);
    }
    assert!(most > empty + 3 * LEFT_BYTES_MAX, "a database takes {} bytes: too few", most - empty);
    let left = resident_bytes().saturating_sub(before);
    assert!(left < LEFT_BYTES_MAX, "{left} bytes are left of {} databases", ROUNDS - 1);

    let mut database = filled();
    transact(&mut database, r#"[{"op":"delete","table":"T","where":[]}]"#, &mut 0);
    database.rest();
    let left = resident_bytes().saturating_sub(before);
    assert!(left < LEFT_BYTES_MAX, "{left} bytes are left of {ROWS} rows that were deleted");
    assert_eq!(database.figures().rows, 0);
}
