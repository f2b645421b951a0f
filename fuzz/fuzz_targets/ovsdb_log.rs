//! The reader of OVSDB files: no file makes it panic or loop, and what it has read can be written, compacted and read
//! again with the same rows. Inputs are bodies of records, separated by 0 bytes; headers are generated here, so that
//! the fuzzer need not find SHA-1 sums. An input that starts with `OVSDB` is the file itself.
#![no_main]

use journal::SimulatedDisk;
use libfuzzer_sys::fuzz_target;
use ovsdb::database::{Database, Options};
use ovsdb::error::Error;
use ovsdb::file::{Log, Opened, Step};
use ovsdb::schema::{ColumnRef, DatabaseSchema};
use sha1::{Digest, Sha1};
use std::path::Path;

const SCHEMA: &[u8] = br#"{"name":"T","version":"1.0.0","tables":{"A":{"isRoot":true,"columns":{"i":{"type":"integer"},"e":{"type":"integer","ephemeral":true},"s":{"type":{"key":"integer","min":1,"max":3}},"m":{"type":{"key":"string","value":"real","min":0,"max":"unlimited"}},"w":{"type":{"key":{"type":"uuid","refTable":"B","refType":"weak"},"min":0,"max":"unlimited"}}}},"B":{"isRoot":true,"columns":{"n":{"type":"string"}}}}}"#;

fn make(schema: DatabaseSchema) -> Result<Database, Error> {
    Database::new(schema, Options { budget_bytes: u64::MAX, seed: 1 })
}

fn append_record(file: &mut Vec<u8>, body: &[u8]) {
    let mut body = body.to_vec();
    body.push(b'\n');
    let digest: String = Sha1::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
    file.extend_from_slice(format!("OVSDB JSON {} {digest}\n", body.len()).as_bytes());
    file.extend_from_slice(&body);
}

fn dump(database: &Database) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    for (id, table) in database.schema().tables() {
        for row in database.rows(id) {
            let mut line = row.uuid().0.to_vec();
            for (column, _) in table.columns().filter(|(_, column)| !column.ephemeral) {
                row.write_column(ColumnRef::Column(column), &mut line);
            }
            lines.push(line);
        }
    }
    lines.sort();
    lines
}

fuzz_target!(|input: &[u8]| {
    let file = if input.starts_with(b"OVSDB") {
        input.to_vec()
    } else {
        let mut file = Vec::new();
        append_record(&mut file, SCHEMA);
        input.split(|byte| *byte == 0).for_each(|body| append_record(&mut file, body));
        file
    };
    let disk = SimulatedDisk::new();
    let path = Path::new("/db");
    disk.put(path, &file);
    let Ok(Opened { database, mut log, .. }) = Log::open(disk.clone(), path, 1, &mut make) else { return };
    log.start_compaction(&database, 2, 2).expect("nothing is pending");
    while !matches!(log.step(&database).expect("the disk works"), Step::Finished(_)) {}
    let rows = dump(&database);
    drop(log);
    let Ok(again) = Log::open(disk, path, 3, &mut make) else { panic!("what was compacted is not read") };
    assert!(again.notes.is_empty(), "{:?}", again.notes);
    assert_eq!(dump(&again.database), rows);
});
