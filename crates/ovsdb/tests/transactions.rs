//! Answers to transactions: `testdata/transactions` has operations, `----`, and the results that the stock server gave.
//! UUIDs are numbered as they appear: `<1>`.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use ovsdb::database::{Database, Options};
use ovsdb::schema::DatabaseSchema;
use ovsdb::transaction::{Context, Outcome, execute};
use ovsdb::uuid::Uuid;
use wire::json::{self, Value};

const SCRIPT: &str = include_str!("../testdata/transactions");
const SCHEMA: &str = include_str!("../testdata/transactions.schema");

/// Numbers of UUIDs and back.
#[derive(Default)]
struct Numbers(HashMap<String, String>);

impl Numbers {
    fn expand(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (uuid, number)| text.replace(number, uuid))
    }

    fn number(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            match rest.get(..36).filter(|text| Uuid::parse(text).is_some() && !text.starts_with("00000000")) {
                Some(uuid) => {
                    let next = format!("<{}>", self.0.len() + 1);
                    out.push_str(self.0.entry(uuid.to_owned()).or_insert(next));
                    rest = &rest[36..];
                }
                None => {
                    let next = rest.chars().next().unwrap();
                    out.push(next);
                    rest = &rest[next.len_utf8()..];
                }
            }
        }
        out
    }
}

/// A result with its members sorted, without `_version`.
fn sorted(text: &[u8]) -> String {
    let mut out = Vec::new();
    json::write::sorted(&mut out, Value::of_checked(text));
    String::from_utf8(out).unwrap()
}

#[test]
fn answers_are_those_of_the_stock_server() {
    let schema = DatabaseSchema::parse(json::validate(SCHEMA.as_bytes()).unwrap()).unwrap();
    let mut database = Database::new(schema, Options { budget_bytes: u64::MAX, seed: 7 }).unwrap();
    let mut next = 0x1000_u128;
    let mut numbers = Numbers::default();
    let mut wrong = String::new();
    for block in SCRIPT.split("\n\n") {
        let (note, block) = block.trim_end().split_once('\n').unwrap();
        let (requests, expected) = match block.strip_suffix("----") {
            Some(requests) => (requests.trim_end(), ""),
            None => block.split_once("\n----\n").unwrap(),
        };
        let lines: Vec<&str> = requests.lines().filter(|line| !line.is_empty()).collect();
        let request = numbers.expand(&format!("[{}]", lines.join(",")));
        let operations: Vec<Value<'_>> = json::validate(request.as_bytes()).unwrap().elements().collect();
        let mut random = || {
            next += 1;
            Uuid((next << 96 | next).to_be_bytes())
        };
        let context = Context { can_wait: true, ..Context::own() };
        let mut reply = Vec::new();
        let outcome = execute(&mut database, &operations, &context, &mut random, &mut reply);
        assert!(matches!(outcome, Outcome::Finished { .. }), "{note}");
        let results = json::validate(&reply).unwrap().elements().map(|result| sorted(result.text()));
        let results: Vec<String> = results.map(|result| numbers.number(&result)).collect();
        let expected: Vec<String> = expected.lines().map(|line| sorted(line.as_bytes())).collect();
        if results != expected {
            wrong.push_str(&format!("{note}\n  expected {expected:#?}\n  got {results:#?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
