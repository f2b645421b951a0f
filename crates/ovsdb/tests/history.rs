//! What history reports is what happened: random transactions on tables with references and indexes, then
//! * the changes since any commit that is kept lead from the database's state then to its state now;
//! * undoing leads back; * replaying leads to the same state, and continues the same way.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use ovsdb::database::{Database, Options, ReplayedRow};
use ovsdb::history::CommitId;
use ovsdb::schema::{DatabaseSchema, TableId};
use ovsdb::transaction::{Context, Outcome, execute};
use ovsdb::uuid::Uuid;
use proptest::prelude::*;
use wire::json::{self, Value};

const SCHEMA: &str = r#"{"name":"D","tables":{
  "Root":{"isRoot":true,"columns":{"name":{"type":"string"},"number":{"type":"integer"},
    "children":{"type":{"key":{"type":"uuid","refTable":"Child"},"min":0,"max":"unlimited"}},
    "friends":{"type":{"key":{"type":"uuid","refTable":"Root","refType":"weak"},"min":0,"max":"unlimited"}},
    "pets":{"type":{"key":"string","value":{"type":"uuid","refTable":"Child","refType":"weak"},"min":0,"max":"unlimited"}}},
    "indexes":[["name"]]},
  "Child":{"columns":{"number":{"type":"integer"},
    "sub":{"type":{"key":{"type":"uuid","refTable":"Child"},"min":0,"max":"unlimited"}}}}}}"#;

type State = BTreeMap<(TableId, Uuid), Vec<u8>>;

fn database() -> Database {
    let schema = DatabaseSchema::parse(json::validate(SCHEMA.as_bytes()).unwrap()).unwrap();
    Database::new(schema, Options { budget_bytes: u64::MAX, seed: 3 }).unwrap()
}

fn state(database: &Database) -> State {
    let tables = database.schema().tables();
    let rows = tables.flat_map(|(id, _)| database.rows(id).map(move |row| (id, row)));
    rows.map(|(id, row)| ((id, row.uuid()), row.packed_cells().to_vec())).collect()
}

fn transact(database: &mut Database, operations: &[String]) -> Option<CommitId> {
    let operations: Vec<Value<'_>> =
        operations.iter().map(|text| json::validate(text.as_bytes()).unwrap()).collect();
    let context = Context::own();
    let before = (state(database), versions(database));
    let outcome = execute(database, &operations, &context, &mut Uuid::zero, &mut Vec::new());
    let Outcome::Finished { committed, .. } = outcome else { panic!("{outcome:?}") };
    let after = (state(database), versions(database));
    // Dangling weak references, added and pruned, change nothing but the version.
    assert_eq!(committed.is_some(), after != before, "a commit is a change");
    assert_eq!(before.1 == after.1, before == after, "a change is another version");
    committed
}

fn versions(database: &Database) -> BTreeMap<(TableId, Uuid), u64> {
    let tables = database.schema().tables();
    let rows = tables.flat_map(|(id, _)| database.rows(id).map(move |row| (id, row)));
    rows.map(|(id, row)| ((id, row.uuid()), row.version())).collect()
}

/// One of few UUIDs, so that references collide.
fn uuid(number: u8) -> String {
    format!("[\"uuid\",\"00000000-0000-4000-8000-0000000000{:02x}\"]", number % 12)
}

fn set(numbers: &[u8]) -> String {
    let mut numbers: Vec<u8> = numbers.iter().map(|number| number % 12).collect();
    numbers.sort_unstable();
    numbers.dedup();
    format!("[\"set\",[{}]]", numbers.into_iter().map(uuid).collect::<Vec<_>>().join(","))
}

fn operation() -> impl Strategy<Value = String> {
    let some = || prop::collection::vec(any::<u8>(), 0..3);
    let uuid_text = |number: u8| uuid(number)[8..].trim_end_matches(']').to_owned();
    let root = (any::<u8>(), 0_u8..6, some(), some(), any::<u8>());
    let child = (any::<u8>(), 0_u8..6, some());
    prop_oneof![
        root.clone().prop_map(move |(number, name, children, friends, pet)| format!(
            r#"{{"op":"insert","table":"Root","uuid":{},"row":{{"name":"n{name}","children":{},"friends":{},"pets":["map",[["p",{}]]]}}}}"#,
            uuid_text(number), set(&children), set(&friends), uuid(pet))),
        child.prop_map(move |(number, n, sub)| format!(
            r#"{{"op":"insert","table":"Child","uuid":{},"row":{{"number":{n},"sub":{}}}}}"#,
            uuid_text(number), set(&sub))),
        root.prop_map(|(number, name, children, friends, pet)| format!(
            r#"{{"op":"update","table":"Root","where":[["_uuid","==",{}]],"row":{{"name":"n{name}","children":{},"friends":{},"pets":["map",[["p",{}]]]}}}}"#,
            uuid(number), set(&children), set(&friends), uuid(pet))),
        (0_u8..6, 0_i32..3).prop_map(|(name, n)| format!(
            r#"{{"op":"mutate","table":"Root","where":[["name","==","n{name}"]],"mutations":[["number","+=",{n}]]}}"#)),
        (any::<u8>(), some()).prop_map(|(number, children)| format!(
            r#"{{"op":"mutate","table":"Root","where":[["_uuid","==",{}]],"mutations":[["children","insert",{}]]}}"#,
            uuid(number), set(&children))),
        (any::<u8>(), some()).prop_map(|(number, children)| format!(
            r#"{{"op":"mutate","table":"Root","where":[["_uuid","!=",{}]],"mutations":[["children","delete",{}]]}}"#,
            uuid(number), set(&children))),
        any::<u8>().prop_map(|number| format!(
            r#"{{"op":"delete","table":"Root","where":[["_uuid","==",{}]]}}"#, uuid(number))),
        any::<u8>().prop_map(|number| format!(
            r#"{{"op":"delete","table":"Child","where":[["_uuid","==",{}]]}}"#, uuid(number))),
        (0_u8..6).prop_map(|n| format!(
            r#"{{"op":"update","table":"Child","where":[["number","==",{n}]],"row":{{"number":{}}}}}"#, n + 1)),
    ]
}

fn transactions() -> impl Strategy<Value = Vec<Vec<String>>> {
    prop::collection::vec(prop::collection::vec(operation(), 1..6), 1..40)
}

/// The rows must agree with what refers to them: each transaction that reaches every row must still work.
fn check(database: &mut Database) {
    let fine = [r#"{"op":"mutate","table":"Root","where":[],"mutations":[["number","+=",1]]}"#.to_owned()];
    let before = state(database);
    if transact(database, &fine).is_some() {
        database.undo_since(CommitId(database.commit_number().0 - 1));
    }
    assert_eq!(state(database), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn changes_and_undo_lead_where_the_database_was(transactions in transactions(), back in 0_u64..40) {
        let mut database = database();
        database.hold_from(Some(CommitId(0)));
        let mut states = vec![state(&database)];
        for operations in &transactions {
            if transact(&mut database, operations).is_some() {
                states.push(state(&database));
            }
        }
        let last = database.commit_number().0;
        prop_assert_eq!(states.len() as u64, last + 1);
        for (commit, before) in states.iter().enumerate() {
            let mut told = before.clone();
            for change in database.changes_since(CommitId(commit as u64)) {
                let old = change.old.map(|row| row.packed_cells().to_vec());
                let key = (change.table, change.uuid);
                prop_assert_eq!(told.get(&key).cloned(), old);
                match change.new {
                    Some(new) => told.insert(key, new.packed_cells().to_vec()),
                    None => told.remove(&key),
                };
            }
            prop_assert_eq!(&told, states.last().unwrap());
        }
        for commit in 1..=last {
            let mut told = states[commit as usize - 1].clone();
            for change in database.changes_of(CommitId(commit)) {
                match change.new {
                    Some(new) => told.insert((change.table, change.uuid), new.packed_cells().to_vec()),
                    None => told.remove(&(change.table, change.uuid)),
                };
            }
            prop_assert_eq!(&told, &states[commit as usize]);
        }
        let target = last.saturating_sub(back);
        database.undo_since(CommitId(target));
        prop_assert_eq!(&state(&database), &states[target as usize]);
        check(&mut database);
        // The tables beside the rows must be restored, too: continue in the undone database and in a fresh one.
        let mut fresh = replayed(&state(&database));
        for operations in &transactions {
            transact(&mut database, operations);
            transact(&mut fresh, operations);
            prop_assert_eq!(state(&database), state(&fresh));
        }
    }
}

fn replayed(state: &State) -> Database {
    let mut database = database();
    database.begin_replay();
    database.begin_replayed_commit();
    for ((table, uuid), cells) in state {
        database.apply_replayed(*table, uuid, ReplayedRow::Cells(cells)).unwrap();
    }
    database.settle_replayed_commit().unwrap();
    database.end_replayed_commit(Uuid::zero(), false);
    assert!(!database.finish_replay().unwrap(), "there are no ephemeral columns");
    database
}
