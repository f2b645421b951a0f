//! The database of the experiment, and request texts with fixed-width placeholders.
//!
//! ```text
//! {"id":@@@@@@@@@@,"method":"transact","params":["lab",{...["uuid","~~~...~~~"]...}]}
//!       id, 10 digits                                              36 bytes
//! ```
//!
//! A text is copied and its placeholders are overwritten: all values have a fixed width, so no text is ever rebuilt.
//! Numbers never begin with a zero, which JSON does not allow.

use crate::random::Random;
use std::fmt::Write as _;
use std::path::Path;

/// Name of the database.
pub const DATABASE: &str = "lab";
/// First request id of a run: all ids have ten digits.
pub const FIRST_ID: u64 = 1_000_000_000;
/// Number of keys in a map of counters.
pub const COUNTERS: usize = 256;
/// A new database file: a single record with the schema, as `ovsdb-tool create` writes it.
pub const NEW_FILE: &str = concat!(
    "OVSDB JSON 479 81162d56a7b1f06ce150755e6b7211f921a815f5\n",
    r#"{"name":"lab","version":"1.0.0","tables":{"TestCounters":{"columns":{"countersField":{"type":{"max":"unlimited","min":0,"key":"string","value":"integer"}}}},"#,
    r#""TestCountersRequests":{"columns":{"responseTimestamp":{"type":"integer"},"requestTimestamp":{"type":"integer"}}},"#,
    r#""Test":{"columns":{"numericField":{"type":"integer"},"boolField":{"type":"boolean"},"stringField":{"type":"string"},"#,
    r#""enumField":{"type":{"key":{"type":"string","enum":["set",["alpha","bravo","delta"]]}}}}}}}"#,
    "\n",
);

const ENUM_WORDS: [&[u8; 5]; 3] = [b"alpha", b"bravo", b"delta"];
/// The shorter word is padded with trailing white space.
const BOOLEANS: [&[u8; 5]; 2] = [b"false", b"true "];

/// A row's UUID as text.
pub type UuidText = [u8; 36];

const ROW: &str =
    r#"{"stringField":"value-!!!!!!!!!!","numericField":^^^^^^^^^,"enumField":"%%%%%","boolField":$$$$$}"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Id,
    Uuid,
    Text,
    Number,
    Word,
    Boolean,
}

const MARKS: [(u8, Field, usize); 6] = [
    (b'@', Field::Id, 10),
    (b'~', Field::Uuid, 36),
    (b'!', Field::Text, 10),
    (b'^', Field::Number, 9),
    (b'%', Field::Word, 5),
    (b'$', Field::Boolean, 5),
];

/// A request with placeholders.
#[derive(Clone, Debug)]
pub struct Template {
    text: Vec<u8>,
    holes: Vec<(Field, usize, usize)>,
}

impl Template {
    /// Builds a request from a text in which runs of `@ ~ ! ^ % $` are placeholders.
    pub fn new(text: &str) -> Self {
        let text = text.as_bytes().to_vec();
        let mut holes = Vec::new();
        for (mark, field, width) in MARKS {
            let mut at = 0;
            while let Some(found) = text.get(at..).and_then(|rest| memchr::memchr(mark, rest)) {
                at += found;
                if text.get(at..at + width).is_some_and(|run| run.iter().all(|&byte| byte == mark)) {
                    holes.push((field, at, width));
                    at += width;
                } else {
                    at += 1;
                }
            }
        }
        Self { text, holes }
    }

    /// Updates all four columns of one row, selected by UUID.
    pub fn update() -> Self {
        let uuid = "~".repeat(36);
        Self::new(&transact(&format!(
            r#"{{"op":"update","table":"Test","where":[["_uuid","==",["uuid","{uuid}"]]],"row":{ROW}}}"#
        )))
    }

    /// Inserts one row.
    pub fn insert() -> Self {
        Self::inserts(1)
    }

    /// Inserts `rows` rows in one transaction, all with the same values.
    pub fn inserts(rows: usize) -> Self {
        Self::new(&transact(
            &vec![format!(r#"{{"op":"insert","table":"Test","row":{ROW}}}"#); rows].join(","),
        ))
    }

    /// Appends the request. `draw` determines the values of the columns.
    pub fn write(&self, id: u64, uuid: &UuidText, draw: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.text);
        let copy = out.get_mut(start..).unwrap_or_default();
        for &(field, at, width) in &self.holes {
            let Some(hole) = copy.get_mut(at..at + width) else { continue };
            match field {
                Field::Id => digits(id, hole),
                Field::Uuid => hole.copy_from_slice(uuid),
                Field::Text => digits(draw & 0xffff_ffff, hole),
                Field::Number => digits(100_000_000 + (draw >> 40), hole),
                Field::Word => hole.copy_from_slice(choose(&ENUM_WORDS, draw)),
                Field::Boolean => hole.copy_from_slice(choose(&BOOLEANS, draw >> 8)),
            }
        }
    }

    /// Appends a transaction of several inserts, each with values of its own.
    pub fn write_rows(&self, id: u64, random: &mut Random, out: &mut Vec<u8>) {
        let start = out.len();
        self.write(id, &[0; 36], 0, out);
        let copy = out.get_mut(start..).unwrap_or_default();
        let mut holes: Vec<_> = self.holes.iter().filter(|hole| hole.0 != Field::Id).collect();
        holes.sort_by_key(|hole| hole.1);
        let mut draw = 0;
        for &&(field, at, width) in &holes {
            let Some(hole) = copy.get_mut(at..at + width) else { continue };
            match field {
                Field::Text => {
                    draw = random.next();
                    digits(draw & 0xffff_ffff, hole);
                }
                Field::Number => digits(100_000_000 + (draw >> 40), hole),
                Field::Word => hole.copy_from_slice(choose(&ENUM_WORDS, draw)),
                Field::Boolean => hole.copy_from_slice(choose(&BOOLEANS, draw >> 8)),
                Field::Id | Field::Uuid => {}
            }
        }
    }
}

fn choose<'a>(words: &[&'a [u8; 5]], draw: u64) -> &'a [u8; 5] {
    words.get((draw % words.len().max(1) as u64) as usize).copied().unwrap_or(b"alpha")
}

/// Fills `hole` with the last digits of a number.
pub fn digits(mut number: u64, hole: &mut [u8]) {
    for digit in hole.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// A transaction on the experiment's database, with a placeholder for its id.
pub fn transact(operations: &str) -> String {
    format!(r#"{{"id":@@@@@@@@@@,"method":"transact","params":["{DATABASE}",{operations}]}}"#)
}

/// The request with which a client subscribes to a replica of all tables, as current clients send it.
pub fn monitor(id: u64) -> String {
    let none = "00000000-0000-0000-0000-000000000000";
    format!(
        r#"{{"id":{id},"method":"monitor_cond_since","params":["{DATABASE}","replica",{{{}}},"{none}"]}}"#,
        r#""Test":[{"columns":["boolField","enumField","numericField","stringField"]}],"#.to_owned()
            + r#""TestCounters":[{"columns":["countersField"]}],"#
            + r#""TestCountersRequests":[{"columns":["requestTimestamp","responseTimestamp"]}]"#
    )
}

/// The counters as text; another `generation` changes all of them.
pub fn counters(generation: u64) -> String {
    let mut text = String::from(r#"["map",["#);
    for key in 0..COUNTERS as u64 {
        let separator = if key == 0 { "" } else { "," };
        let value = 1_000_000 + generation % 1_000 * 1_000 + key;
        // Writing to a String cannot fail.
        let _ = write!(text, r#"{separator}["counter{key:03}",{value}]"#);
    }
    text + "]]"
}

/// Writes a new database file.
pub fn create_file(path: &Path) -> std::io::Result<()> {
    std::fs::write(path, NEW_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn row(text: &[u8]) -> (Value, Value) {
        let request: Value = serde_json::from_slice(text).unwrap();
        (request["id"].clone(), request["params"][1]["row"].clone())
    }

    #[test]
    fn requests_are_json_of_one_length() {
        let template = Template::update();
        let uuid = *b"831191a0-7526-4139-8017-6b48dd6d6822";
        let mut lengths = Vec::new();
        for draw in [0, u64::MAX, 0x1234_5678_9abc_def0, 1 << 40, 257] {
            let mut text = Vec::new();
            template.write(FIRST_ID + 7, &uuid, draw, &mut text);
            let (id, row) = row(&text);
            assert_eq!(id, 1_000_000_007);
            assert!(row["numericField"].is_u64() && row["boolField"].is_boolean());
            assert!(["alpha", "bravo", "delta"].contains(&row["enumField"].as_str().unwrap()));
            assert_eq!(row["stringField"].as_str().unwrap().len(), 16);
            lengths.push(text.len());
        }
        lengths.dedup();
        assert_eq!(lengths.len(), 1);
    }

    #[test]
    fn rows_of_one_transaction_differ() {
        let mut text = Vec::new();
        Template::inserts(3).write_rows(FIRST_ID, &mut Random::new(1), &mut text);
        let request: Value = serde_json::from_slice(&text).unwrap();
        let operations = &request["params"].as_array().unwrap()[1..];
        assert_eq!(operations.len(), 3);
        assert_ne!(operations[0]["row"]["stringField"], operations[1]["row"]["stringField"]);
        assert_ne!(operations[1]["row"]["numericField"], operations[2]["row"]["numericField"]);
    }

    #[test]
    fn every_counter_changes_with_its_generation() {
        let values = |generation| -> Vec<u64> {
            let map: Value = serde_json::from_str(&counters(generation)).unwrap();
            map[1].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap()).collect()
        };
        let (one, other) = (values(0), values(1));
        assert_eq!(one.len(), COUNTERS);
        assert!(one.iter().zip(&other).all(|(one, other)| one != other));
        assert_eq!(counters(0).len(), counters(999).len());
    }

    #[test]
    fn the_new_file_says_its_own_length() {
        let (header, rest) = NEW_FILE.split_once('\n').unwrap();
        assert_eq!(header.split(' ').nth(2).unwrap().parse::<usize>().unwrap(), rest.len());
        let schema: Value = serde_json::from_str(rest).unwrap();
        assert_eq!(schema["name"], DATABASE);
    }

    #[test]
    fn the_monitor_request_is_json() {
        let request: Value = serde_json::from_str(&monitor(FIRST_ID)).unwrap();
        assert_eq!(request["params"][2].as_object().unwrap().len(), 3);
    }
}
