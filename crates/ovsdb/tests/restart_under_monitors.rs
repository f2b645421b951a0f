//! A client that reconnects after the server was started again is told what it missed; where ephemeral columns are
//! concerned, which have been reset, it is told everything.

#![allow(clippy::unwrap_used)]

mod sessions;

use journal::{SimulatedDisk, Survival};
use ovsdb::database::{Database, Options};
use ovsdb::file::Log;
use ovsdb::schema::DatabaseSchema;
use ovsdb::server::{Limits, SessionOptions};
use ovsdb::uuid::Uuid;
use sessions::{Driver, SCHEMA};
use std::path::Path;

const PATH: &str = "/T.db";

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
    transact(&mut driver, r#"{"op":"insert","table":"Test","row":{"name":"a","n":1,"eph":5}}"#);
    let known = newest(&driver);
    transact(
        &mut driver,
        r#"{"op":"insert","table":"Test","row":{"name":"b","n":2}},{"op":"commit","durable":true}"#,
    );
    let last = newest(&driver);
    assert_ne!(known, last);
    drop(driver);
    disk.crash(Survival::Synced);

    let mut driver = open(&disk);
    let reply = since(&mut driver, known, r#"["name","n"]"#);
    assert!(reply.contains("[true,") && reply.contains(r#"{"insert":{"n":2,"name":"b"}}"#), "{reply}");
    assert!(!reply.contains("\"a\""), "{reply}");
    let reply = since(&mut driver, last, r#"["name","n"]"#);
    assert!(reply.contains("[true,") && reply.ends_with(",{}],\"error\":null}"), "{reply}");
    let reply = since(&mut driver, last, r#"["name","eph"]"#);
    assert!(reply.contains("[false,") && reply.contains(r#"{"initial":{"name":"a"}}"#), "{reply}");
    // Who has come since knows the resets.
    let known = newest(&driver);
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"eph":7}}"#);
    let reply = since(&mut driver, known, r#"["name","eph"]"#);
    assert!(reply.contains("[true,") && reply.contains(r#"{"modify":{"eph":7}}"#), "{reply}");
}

#[test]
fn what_was_only_ephemeral_is_known_by_the_record_before_it() {
    let disk = create();
    let mut driver = open(&disk);
    transact(
        &mut driver,
        r#"{"op":"insert","table":"Test","row":{"name":"a","n":1}},{"op":"commit","durable":true}"#,
    );
    transact(&mut driver, r#"{"op":"update","table":"Test","where":[["name","==","a"]],"row":{"eph":7}}"#);
    let last = newest(&driver);
    drop(driver);
    let mut driver = open(&disk);
    let reply = since(&mut driver, last, r#"["name","n"]"#);
    assert!(reply.contains("[true,") && reply.ends_with(",{}],\"error\":null}"), "{reply}");
    let reply = since(&mut driver, last, r#"["eph"]"#);
    assert!(reply.contains("[false,"), "{reply}");
}
