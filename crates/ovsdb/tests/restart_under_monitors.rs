//! A client that reconnects after a restart of the server is sent what it missed, and the reset of ephemeral columns.
//! If it is unknown which values of those it had, it is sent everything.

#![allow(clippy::unwrap_used)]

mod sessions;

use journal::{Fault, SimulatedDisk, Survival};
use ovsdb::database::{Database, Options};
use ovsdb::file::Log;
use ovsdb::schema::DatabaseSchema;
use ovsdb::server::{Limits, SessionOptions};
use ovsdb::uuid::Uuid;
use sessions::Driver;
use sha1::{Digest, Sha1};
use std::path::Path;

const PATH: &str = "/T.db";
const FILE: &str = "/.T.db.ephemeral";

const SCHEMA: &str = r#"{"name":"T","version":"1.0.0","tables":{
    "Test":{"isRoot":true,"columns":{"name":{"type":"string"},"n":{"type":"integer"},"o":{"type":"string"},
        "eph":{"type":"integer","ephemeral":true},
        "set":{"type":{"key":"integer","min":0,"max":"unlimited"},"ephemeral":true},
        "map":{"type":{"key":"string","value":"integer","min":0,"max":"unlimited"},"ephemeral":true},
        "uses":{"type":{"key":{"type":"uuid","refTable":"Used"},"min":0,"max":1}}}},
    "Used":{"columns":{"n":{"type":"integer"}}}}}"#;

fn open(disk: &SimulatedDisk) -> Driver<Log<SimulatedDisk>> {
    let make = &mut |schema| Database::new(schema, Options { budget_bytes: u64::MAX, seed: 3 });
    let opened = Log::open(disk.clone(), Path::new(PATH), 1, make);
    let opened = opened.unwrap_or_else(|error| panic!("{}", error.error));
    Driver::hosting(opened.database, Some(opened.log), Limits::default())
}

/// A database whose rows are so large that history is kept: it may not be larger than they are.
fn create() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let schema = wire::json::validate(SCHEMA.as_bytes()).unwrap();
    Log::create(&disk, Path::new(PATH), &DatabaseSchema::parse(schema).unwrap()).unwrap();
    let filler = "x".repeat(100_000);
    let row = format!(r#"{{"op":"insert","table":"Test","row":{{"name":"filler","o":"{filler}"}}}}"#);
    transact(&mut open(&disk), &row);
    disk
}

fn transact(driver: &mut Driver<Log<SimulatedDisk>>, operations: &str) {
    let lines = driver.send("W", &format!(r#"{{"id":1,"method":"transact","params":["T",{operations}]}}"#));
    assert!(lines.iter().any(|line| line.starts_with("W {\"id\":1,\"result\":[{")), "{lines:#?}");
}

/// The raw reply of a new session that knows `last`.
fn since(driver: &mut Driver<Log<SimulatedDisk>>, last: Uuid, columns: &str) -> String {
    let id = driver.connect("Q", SessionOptions::default());
    let request = format!(
        r#"{{"id":3,"method":"monitor_cond_since","params":["T","m",{{"Test":{{"columns":{columns}}}}},"{last}"]}}"#
    );
    let reply = driver.send("Q", &request).join("\n");
    driver.server.disconnect(id);
    reply
}

fn newest(driver: &Driver<Log<SimulatedDisk>>) -> Uuid {
    driver.server.database("T").unwrap().transaction_id()
}

#[test]
fn the_delta_survives_a_restart() {
    let disk = create();
    let mut driver = open(&disk);
    transact(
        &mut driver,
        r#"{"op":"insert","table":"Test","row":{"name":"a","n":1,"eph":5,"set":["set",[1,2]],"map":["map",[["k",1],["l",2]]]}}"#,
    );
    let known = newest(&driver);
    transact(&mut driver, r#"{"op":"insert","table":"Test","row":{"name":"b","n":2}}"#);
    let second = newest(&driver);
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"set":1}}"#);
    let last = newest(&driver);
    drop(driver);
    disk.crash(Survival::Everything);

    let mut driver = open(&disk);
    let columns = r#"["name","n","eph","set","map"]"#;
    let reset =
        |set: &str| format!(r#"{{"modify":{{"eph":0,"map":["map",[["k",1],["l",2]]],"set":{set}}}}}"#);
    let reply = since(&mut driver, known, columns);
    assert!(reply.contains("[true,") && reply.contains(r#"{"insert":{"n":2,"name":"b"}}"#), "{reply}");
    assert!(reply.contains(&reset(r#"["set",[1,2]]"#)), "{reply}");
    let reply = since(&mut driver, second, columns);
    assert!(reply.contains("[true,") && !reply.contains("insert"), "{reply}");
    assert!(reply.contains(&reset(r#"["set",[1,2]]"#)), "{reply}");
    let reply = since(&mut driver, last, columns);
    assert!(reply.contains("[true,") && reply.contains(&reset("1")), "{reply}");
    let opened = newest(&driver);
    // At once again, and again after a change.
    drop(driver);
    disk.crash(Survival::Everything);
    let mut driver = open(&disk);
    let reply = since(&mut driver, opened, columns);
    assert!(reply.contains("[true,") && reply.ends_with(",{}],\"error\":null}"), "{reply}");
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"eph":7}}"#);
    let reply = since(&mut driver, opened, columns);
    assert!(reply.contains("[true,") && reply.contains(r#"{"modify":{"eph":7}}"#), "{reply}");
    drop(driver);
    let mut driver = open(&disk);
    let reply = since(&mut driver, last, columns);
    assert!(reply.contains("[true,") && reply.contains(&reset("1")), "{reply}");
}

#[test]
fn without_the_file_only_lasting_columns_have_a_delta() {
    let disk = create();
    let mut driver = open(&disk);
    transact(
        &mut driver,
        r#"{"op":"insert","table":"Test","row":{"name":"a","n":1,"eph":5}},{"op":"commit","durable":true}"#,
    );
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"eph":7}}"#);
    let last = newest(&driver);
    drop(driver);
    // A power failure: the file was never synced.
    disk.crash(Survival::Synced);
    assert_eq!(disk.read(Path::new(FILE)), None);
    let mut driver = open(&disk);
    let reply = since(&mut driver, last, r#"["name","n"]"#);
    assert!(reply.contains("[true,") && reply.ends_with(",{}],\"error\":null}"), "{reply}");
    let reply = since(&mut driver, last, r#"["name","eph"]"#);
    assert!(reply.contains("[false,") && reply.contains(r#"{"initial":{"name":"a"}}"#), "{reply}");
    let filtered = format!(
        r#"{{"id":3,"method":"monitor_cond_since","params":["T","m",{{"Test":{{"columns":["name"],"where":[["eph","==",7]]}}}},"{last}"]}}"#
    );
    assert!(driver.send("F", &filtered).join("").contains("[false,"));
    // A client that connected since knows the resets.
    let known = newest(&driver);
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"eph":8}}"#);
    let reply = since(&mut driver, known, r#"["name","eph"]"#);
    assert!(reply.contains("[true,") && reply.contains(r#"{"modify":{"eph":8}}"#), "{reply}");
}

#[test]
fn another_server_may_have_had_the_file_meanwhile() {
    let disk = create();
    let mut driver = open(&disk);
    transact(&mut driver, r#"{"op":"insert","table":"Test","row":{"name":"a","n":1,"set":["set",[1,2]]}}"#);
    let last = newest(&driver);
    drop(driver);
    // Elsewhere, without the file beside it.
    let other = SimulatedDisk::new();
    other.put(Path::new(PATH), &disk.read(Path::new(PATH)).unwrap());
    let mut driver = open(&other);
    transact(
        &mut driver,
        r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"n":2,"eph":3}}"#,
    );
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"n":3}}"#);
    let elsewhere = newest(&driver);
    drop(driver);
    disk.put(Path::new(PATH), &other.read(Path::new(PATH)).unwrap());
    let mut driver = open(&disk);
    let reply = since(&mut driver, last, r#"["n","eph","set"]"#);
    assert!(
        reply.contains("[true,") && reply.contains(r#"{"modify":{"n":3,"set":["set",[1,2]]}}"#),
        "{reply}"
    );
    let reply = since(&mut driver, elsewhere, r#"["n","eph"]"#);
    assert!(reply.contains("[false,"), "{reply}");
    let reply = since(&mut driver, elsewhere, r#"["n"]"#);
    assert!(reply.contains("[true,") && reply.ends_with(",{}],\"error\":null}"), "{reply}");
}

#[test]
fn rows_that_a_record_leaves_without_deleting_them_are_told() {
    let disk = create();
    let mut driver = open(&disk);
    transact(
        &mut driver,
        r#"{"op":"insert","table":"Used","uuid-name":"u","row":{"n":1}},{"op":"insert","table":"Test","row":{"name":"a","uses":["named-uuid","u"]}}"#,
    );
    let last = newest(&driver);
    let test = driver.server.database("T").unwrap().schema().find_table("Test").unwrap().0;
    let row = driver.server.database("T").unwrap().rows(test).last().unwrap().uuid();
    drop(driver);
    // As no server would write it: without deleting the row that nothing refers to any more.
    let record = format!("{{\"_is_diff\":false,\"Test\":{{\"{row}\":{{\"uses\":[\"set\",[]]}}}}}}\n");
    let digits: String = Sha1::digest(&record).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut log = disk.read(Path::new(PATH)).unwrap();
    log.extend_from_slice(format!("OVSDB JSON {} {digits}\n{record}", record.len()).as_bytes());
    disk.put(Path::new(PATH), &log);
    let mut driver = open(&disk);
    let request =
        format!(r#"{{"id":3,"method":"monitor_cond_since","params":["T","m",{{"Used":{{}}}},"{last}"]}}"#);
    let reply = driver.send("Q", &request).join("");
    assert!(reply.contains("[true,") && reply.contains(r#"{"delete":null}"#), "{reply}");
}

#[test]
fn what_a_conversion_keeps_is_known_after_a_restart() {
    let disk = create();
    let mut driver = open(&disk);
    transact(&mut driver, r#"{"op":"insert","table":"Test","row":{"name":"a","set":["set",[1,2]],"eph":3}}"#);
    let before = newest(&driver);
    let schema =
        SCHEMA.replace(r#""eph":{"type":"integer","ephemeral":true},"#, r#""eph":{"type":"integer"},"#);
    let reply = driver.send("W", &format!(r#"{{"id":1,"method":"convert","params":["T",{schema}]}}"#));
    assert!(reply.join("").contains(r#""result":{}"#), "{reply:?}");
    let last = newest(&driver);
    drop(driver);
    let mut driver = open(&disk);
    assert!(since(&mut driver, before, r#"["eph","set"]"#).contains("[false,"));
    let reply = since(&mut driver, last, r#"["name","eph","set"]"#);
    assert!(reply.contains("[true,") && reply.contains(r#"{"modify":{"set":["set",[1,2]]}}"#), "{reply}");
    // Without ephemeral columns there is no such file.
    let schema = SCHEMA.replace(r#","ephemeral":true"#, "");
    let reply = driver.send("W", &format!(r#"{{"id":1,"method":"convert","params":["T",{schema}]}}"#));
    assert!(reply.join("").contains(r#""result":{}"#), "{reply:?}");
    assert_eq!(disk.read(Path::new(FILE)), None);
    let last = newest(&driver);
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"eph":8}}"#);
    drop(driver);
    let mut driver = open(&disk);
    let reply = since(&mut driver, last, r#"["name","eph"]"#);
    assert!(reply.contains("[true,") && reply.contains(r#"{"modify":{"eph":8}}"#), "{reply}");
    assert_eq!(disk.read(Path::new(FILE)), None);
}

#[test]
fn a_file_that_cannot_be_written_is_told_once_and_harms_nothing() {
    let disk = create();
    let mut driver = open(&disk);
    let insert =
        |name: &str| format!(r#"{{"op":"insert","table":"Test","row":{{"name":"{name}","eph":5}}}}"#);
    transact(&mut driver, &insert("a"));
    let known = newest(&driver);
    disk.inject(disk.operations(), Fault::NoSpace);
    transact(&mut driver, &insert("b"));
    transact(&mut driver, &insert("c"));
    let last = newest(&driver);
    let (_, log) = driver.server.database_and_log("T").unwrap();
    let notes = log.unwrap().take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].text.starts_with("/.T.db.ephemeral: write failed (No space left on device)"),
        "{notes:?}"
    );
    drop(driver);
    let mut driver = open(&disk);
    let columns = r#"["name","eph"]"#;
    let reply = since(&mut driver, known, columns);
    assert!(reply.contains("[true,") && reply.contains(r#"{"insert":{"name":"b"}}"#), "{reply}");
    assert!(since(&mut driver, last, columns).contains("[false,"));
    assert!(since(&mut driver, last, r#"["name"]"#).contains("[true,"));
}

#[test]
fn the_file_stays_small() {
    let disk = create();
    let mut driver = open(&disk);
    transact(&mut driver, r#"{"op":"insert","table":"Test","row":{"name":"a"}}"#);
    let mut last = newest(&driver);
    for number in 0..3000 {
        let update = format!(
            r#"{{"op":"update","table":"Test","where":[["name","==","a"]],"row":{{"map":["map",[["rx",{number}],["tx",{number}]]]}}}}"#
        );
        transact(&mut driver, &update);
        last = newest(&driver);
        let length = disk.read(Path::new(FILE)).unwrap().len();
        assert!(length <= 100 << 10, "{length} bytes after {number}");
    }
    drop(driver);
    let mut driver = open(&disk);
    let reply = since(&mut driver, last, r#"["map"]"#);
    assert!(reply.contains("[true,") && reply.contains(r#"[["rx",2999],["tx",2999]]"#), "{reply}");
}
