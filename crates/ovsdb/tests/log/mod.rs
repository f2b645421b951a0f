//! Databases, transactions and dumps for the tests of the log.
#![allow(dead_code)]

use journal::{Disk, SimulatedDisk};
use ovsdb::database::{Database, Options};
use ovsdb::error::Error;
use ovsdb::file::{Log, Opened};
use ovsdb::history::CommitId;
use ovsdb::row::Row;
use ovsdb::schema::{ColumnRef, DatabaseSchema, TableSchema};
use ovsdb::transaction::{Context, Outcome, execute};
use ovsdb::uuid::Uuid;
use sha1::{Digest, Sha1};
use std::path::Path;
use wire::json::{Value, validate};

/// Every kind of column whose changes a log writes in its own way.
pub const SCHEMA: &str = r#"{"name":"T","version":"1.0.0","tables":{
    "A":{"isRoot":true,"columns":{
        "i":{"type":"integer"},"s":{"type":"string"},"r":{"type":"real"},"b":{"type":"boolean"},"u":{"type":"uuid"},
        "os":{"type":{"key":"string","min":0,"max":1}},
        "si":{"type":{"key":"integer","min":0,"max":"unlimited"}},
        "s3":{"type":{"key":"integer","min":0,"max":3}},
        "s13":{"type":{"key":"integer","min":1,"max":3}},
        "s1u":{"type":{"key":"string","min":1,"max":"unlimited"}},
        "m":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}},
        "m1":{"type":{"key":"string","value":"integer","min":0,"max":1}},
        "e":{"type":"integer","ephemeral":true},
        "es":{"type":{"key":"integer","min":0,"max":"unlimited"},"ephemeral":true},
        "em":{"type":{"key":"string","value":"integer","min":0,"max":"unlimited"},"ephemeral":true},
        "refs":{"type":{"key":{"type":"uuid","refTable":"B"},"min":0,"max":"unlimited"}},
        "weak":{"type":{"key":{"type":"uuid","refTable":"C","refType":"weak"},"min":0,"max":"unlimited"}}}},
    "B":{"columns":{"n":{"type":"string"}}},
    "C":{"isRoot":true,"columns":{"n":{"type":"string"}}}}}"#;

pub fn schema(text: &str) -> DatabaseSchema {
    DatabaseSchema::parse(validate(text.as_bytes()).expect("JSON")).expect("a schema")
}

pub fn make(schema: DatabaseSchema) -> Result<Database, Error> {
    Database::new(schema, Options { budget_bytes: u64::MAX, seed: 1 })
}

pub fn open<D: Disk>(disk: &D, path: &Path) -> Opened<D> {
    match Log::open(disk.clone(), path, 1_000_000, &mut make) {
        Ok(opened) => opened,
        Err(error) => panic!("{}: {}", path.display(), error.error),
    }
}

/// A log of these records, with valid headers.
pub fn log_of(records: &[&str]) -> Vec<u8> {
    let mut schema_text = Vec::new();
    schema(SCHEMA).write_json(&mut schema_text);
    let mut bytes = record(std::str::from_utf8(&schema_text).expect("UTF-8"));
    for text in records {
        bytes.extend(record(text));
    }
    bytes
}

pub fn record(text: &str) -> Vec<u8> {
    let text = format!("{text}\n");
    let digest: String = Sha1::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("OVSDB JSON {} {digest}\n{text}", text.len()).into_bytes()
}

/// Reads a log. Returns the rows and the notes.
pub fn read_at(path: &Path, bytes: &[u8]) -> (Database, Vec<String>, SimulatedDisk) {
    let disk = SimulatedDisk::new();
    disk.put(path, bytes);
    let opened = open(&disk, path);
    let notes = opened.notes.iter().map(|note| note.text.clone()).collect();
    (opened.database, notes, disk)
}

/// Consecutive UUIDs.
pub struct Names(pub u64);

impl Names {
    pub fn next(&mut self) -> Uuid {
        self.0 += 1;
        let mut bytes = [7; 16];
        bytes[8..].copy_from_slice(&self.0.to_be_bytes());
        Uuid(bytes)
    }
}

/// Executes the operations of an array. Returns the reply, and the commit if there was one.
pub fn transact(database: &mut Database, names: &mut Names, operations: &str) -> (String, Option<CommitId>) {
    let value = validate(operations.as_bytes()).expect("JSON");
    let operations: Vec<Value<'_>> = value.elements().collect();
    let context = Context { owns_lock: &|_| true, ..Context::own() };
    let mut reply = Vec::new();
    let outcome = execute(database, &operations, &context, &mut || names.next(), &mut reply);
    let Outcome::Finished { committed, .. } = outcome else { panic!("a wait") };
    (String::from_utf8(reply).expect("UTF-8"), committed)
}

/// All rows as text, sorted; the ephemeral columns only if asked for.
pub fn dump(database: &Database, ephemeral: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for (id, table) in database.schema().tables() {
        lines.extend(database.rows(id).map(|row| line(table, row, ephemeral)));
    }
    lines.sort();
    lines
}

/// A row as text.
pub fn line(table: &TableSchema, row: Row<'_>, ephemeral: bool) -> String {
    let mut line = format!("{} {}", table.name, row.uuid()).into_bytes();
    for (id, column) in table.columns().filter(|(_, column)| ephemeral || !column.ephemeral) {
        line.extend_from_slice(format!(" {}=", column.name).as_bytes());
        row.write_column(ColumnRef::Column(id), &mut line);
    }
    String::from_utf8(line).expect("UTF-8")
}

/// A new log on a simulated disk.
pub fn created(path: &Path) -> (SimulatedDisk, Opened<SimulatedDisk>) {
    let disk = SimulatedDisk::new();
    if let Err(error) = Log::create(&disk, path, &schema(SCHEMA)) {
        panic!("{}", error.error);
    }
    let opened = open(&disk, path);
    (disk, opened)
}

/// Executes, appends and writes one transaction. Returns its reply.
pub fn commit<D: Disk>(opened: &mut Opened<D>, names: &mut Names, operations: &str) -> String {
    let (reply, committed) = transact(&mut opened.database, names, operations);
    assert!(!reply.contains("error"), "{operations}: {reply}");
    if let Some(commit) = committed {
        opened.log.append(&mut opened.database, commit, 1_700_000_000_000 + commit.0);
        opened.log.write(true).expect("written");
    }
    reply
}

/// Pseudo-random numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn set(&mut self, least: u64, most: u64) -> String {
        let count = least + self.below(most - least + 1);
        let mut numbers: Vec<u64> = (0..count).map(|_| self.below(9)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        format!(r#"["set",[{}]]"#, numbers.join(","))
    }

    /// A transaction on [`SCHEMA`] that succeeds.
    pub fn operations(&mut self) -> String {
        let number = self.below(6);
        let mut columns = Vec::new();
        for _ in 0..1 + self.below(5) {
            let (x, y) = (self.below(4), self.below(4));
            columns.push(match self.below(14) {
                0 => format!(r#""s":"é\"{x}\n""#),
                1 => format!(r#""r":{x}.25"#),
                2 => format!(r#""b":{}"#, x > 1),
                3 => format!(r#""os":{}"#, if x > 1 { r#""o""# } else { r#"["set",[]]"# }),
                4 => format!(r#""si":{}"#, self.set(0, 6)),
                5 => format!(r#""s3":{}"#, self.set(0, 3)),
                6 => format!(r#""s13":{}"#, self.set(1, 3)),
                7 => format!(r#""s1u":["set",["","{x}"]]"#),
                8 => format!(r#""m":["map",[["k{x}","v{y}"],["l","{y}"]]]"#),
                9 => format!(r#""m1":["map",[["k{x}",{y}]]]"#),
                10 => format!(r#""e":{x}"#),
                11 => format!(r#""es":{}"#, self.set(0, 4)),
                12 => format!(r#""em":["map",[["k{x}",{y}],["l",{x}]]]"#),
                _ => format!(r#""i":{number}"#),
            });
        }
        columns.sort();
        columns.dedup_by_key(|column| column.split(':').next().map(str::to_owned));
        let row = columns.join(",");
        match self.below(12) {
            10..=11 => {
                let (set, x) = (self.set(0, 4), self.below(4));
                let row = format!(r#"{{"e":{x},"es":{set},"em":["map",[["k{x}",{number}],["m",1]]]}}"#);
                format!(r#"[{{"op":"update","table":"A","where":[["i","<=",{number}]],"row":{row}}}]"#)
            }
            0..=3 => format!(
                r#"[{{"op":"insert","table":"A","row":{{{row}}}}},{{"op":"comment","comment":"c{number}"}}]"#
            ),
            4..=6 => {
                format!(r#"[{{"op":"update","table":"A","where":[["i","==",{number}]],"row":{{{row}}}}}]"#)
            }
            7 => format!(
                r#"[{{"op":"insert","table":"B","uuid-name":"b","row":{{"n":"b"}}}},{{"op":"insert","table":"C","uuid-name":"c","row":{{"n":"{number}"}}}},
                {{"op":"update","table":"A","where":[["i","==",{number}]],"row":{{"refs":["named-uuid","b"],"weak":["named-uuid","c"]}}}}]"#
            ),
            8 => format!(r#"[{{"op":"delete","table":"C","where":[["n","==","{number}"]]}}]"#),
            _ => format!(r#"[{{"op":"delete","table":"A","where":[["i","==",{number}]]}}]"#),
        }
    }
}
