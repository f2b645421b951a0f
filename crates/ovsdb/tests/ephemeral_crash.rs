//! Clients that know transaction ids, and a server that goes away at every operation on the disk. Whatever remains of
//! the log and of the file beside it: if a client's id is found afterwards, what the client had, including ephemeral
//! columns, and what history says has changed since are together exactly what the database has.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::{Disk, Fault, SimulatedDisk, Survival};
use log::{Names, Random, commit, created, line, open, transact};
use ovsdb::database::Database;
use ovsdb::file::{Opened, Step, transaction_id};
use ovsdb::uuid::Uuid;
use std::collections::BTreeMap;
use std::path::Path;

const STEPS: u64 = 30;

fn path() -> &'static Path {
    Path::new("/db/t.db")
}

fn companion() -> &'static Path {
    Path::new("/db/.t.db.ephemeral")
}

/// What a client that monitors everything holds.
type State = BTreeMap<Uuid, String>;

fn state(database: &Database) -> State {
    let tables = database.schema().tables();
    tables
        .flat_map(|(id, table)| database.rows(id).map(move |row| (row.uuid(), line(table, row, true))))
        .collect()
}

/// What clients were acknowledged, the newest last.
#[derive(Default, Clone)]
struct Acknowledged(Vec<(Uuid, State)>);

impl Acknowledged {
    fn note(&mut self, database: &Database) {
        self.0.push((database.transaction_id(), state(database)));
    }

    /// Clients reconnect. Returns how many of them get a delta, and whether the last one does.
    fn check(&self, database: &Database, what: &str) -> (usize, bool) {
        let now = state(database);
        let mut found = (0, false);
        for (id, held) in &self.0 {
            assert!(transaction_id::is_tagged(*id), "{what}");
            let commit = database.find_transaction(*id);
            let Some(commit) = commit.filter(|commit| *commit >= database.oldest_kept()) else {
                found.1 = false;
                continue;
            };
            found = (found.0 + 1, true);
            let mut held = held.clone();
            for change in database.changes_since(commit) {
                let table = database.schema().table(change.table);
                let old = change.old.map(|old| line(table, old, true));
                assert_eq!(held.remove(&change.uuid), old, "{what}: what client {id} had of {}", change.uuid);
                if let Some(new) = change.new {
                    held.insert(change.uuid, line(table, new, true));
                }
            }
            assert_eq!(held, now, "{what}: client {id}");
        }
        found
    }
}

/// Runs a server until it ends, or is killed: nobody sees what it does from that disk operation on.
fn live_until(
    opened: &mut Opened<SimulatedDisk>,
    seed: u64,
    acknowledged: &mut Acknowledged,
    disk: &SimulatedDisk,
    killed: u64,
) {
    let (mut names, mut random) = (Names(seed << 32), Random(seed));
    acknowledged.note(&opened.database);
    for step in 0..STEPS {
        if step % 12 == 8 {
            // Fails if the log is poisoned or the disk has failed.
            let _ = opened.log.start_compaction(&opened.database, step, step);
        }
        let before = opened.database.commit_number();
        opened.database.hold_from(Some(before));
        let mut group = Acknowledged::default();
        for _ in 0..1 + random.below(3) {
            let (_, committed) = transact(&mut opened.database, &mut names, &random.operations());
            if let Some(commit) = committed {
                opened.log.append(&mut opened.database, commit, seed * 1000 + step);
                group.note(&opened.database);
            }
        }
        match opened.log.write(random.below(3) == 0) {
            _ if disk.operations() > killed => return,
            Ok(()) => acknowledged.0.append(&mut group.0),
            Err(_) => opened.database.undo_since(before),
        }
        opened.database.hold_from(None);
        let _ = opened.log.step(&opened.database);
    }
}

fn live(opened: &mut Opened<SimulatedDisk>, seed: u64, acknowledged: &mut Acknowledged) {
    live_until(opened, seed, acknowledged, &SimulatedDisk::new(), 0);
}

/// A new database; the names of its files are durable.
fn start() -> (SimulatedDisk, Opened<SimulatedDisk>) {
    let (disk, opened) = created(path());
    disk.sync_directory(path()).unwrap();
    (disk, opened)
}

/// The range of the disk's operations during the life of a server.
fn operations(seed: u64) -> std::ops::Range<u64> {
    let (disk, mut opened) = start();
    let first = disk.operations();
    live(&mut opened, seed, &mut Acknowledged::default());
    first..disk.operations()
}

#[test]
fn a_process_may_end_at_every_operation_and_its_clients_get_the_delta() {
    for seed in [3, 5] {
        for operation in operations(seed) {
            let what = format!("seed {seed}, operation {operation}");
            let (disk, mut opened) = start();
            let mut acknowledged = Acknowledged::default();
            disk.inject(operation, Fault::PowerOff);
            live_until(&mut opened, seed, &mut acknowledged, &disk, operation);
            drop(opened);
            // Repeatedly: at once, and after some more has happened.
            for life in 0..3 {
                disk.crash(Survival::Everything);
                let mut opened = open(&disk, path());
                assert_eq!(opened.notes.iter().filter(|note| note.text.contains("ephemeral")).count(), 0);
                let (_, last) = acknowledged.check(&opened.database, &what);
                assert!(last, "{what}, life {life}: the last id is not found");
                acknowledged.note(&opened.database);
                if life == 1 {
                    live(&mut opened, seed + 100, &mut acknowledged);
                }
            }
        }
    }
}

#[test]
fn a_machine_may_end_at_every_operation_and_nobody_gets_a_wrong_delta() {
    let mut deltas = 0;
    for seed in [3, 5] {
        for operation in operations(seed) {
            for survival in [Survival::Synced, Survival::Some(0), Survival::Some(1), Survival::Some(7)] {
                let what = format!("seed {seed}, operation {operation}, {survival:?}");
                let (disk, mut opened) = start();
                let mut acknowledged = Acknowledged::default();
                disk.inject(operation, Fault::PowerOff);
                live_until(&mut opened, seed, &mut acknowledged, &disk, operation);
                drop(opened);
                disk.crash(survival);
                let mut opened = open(&disk, path());
                deltas += acknowledged.check(&opened.database, &what).0;
                live(&mut opened, seed + 100, &mut acknowledged);
                drop(opened);
                disk.crash(Survival::Everything);
                let (_, last) = acknowledged.check(&open(&disk, path()).database, &what);
                assert!(last, "{what}");
            }
        }
    }
    assert!(deltas > 100, "{deltas}");
}

#[test]
fn every_operation_may_fail_and_nobody_gets_a_wrong_delta() {
    let seed = 7;
    for operation in operations(seed) {
        for fault in [Fault::Io, Fault::NoSpace, Fault::Short(1), Fault::Short(90), Fault::Torn(90)] {
            let what = format!("operation {operation}, {fault:?}");
            let (disk, mut opened) = start();
            let mut acknowledged = Acknowledged::default();
            disk.inject(operation, fault);
            live(&mut opened, seed, &mut acknowledged);
            drop(opened);
            for life in 1..3 {
                disk.crash(Survival::Everything);
                let mut opened = open(&disk, path());
                acknowledged.check(&opened.database, &what);
                live(&mut opened, seed + 100 * life, &mut acknowledged);
                acknowledged.check(&opened.database, &what);
            }
        }
    }
}

#[test]
fn a_file_of_another_time_is_believed_only_what_is_still_true() {
    for seed in 1..20 {
        let (disk, mut opened) = start();
        let mut acknowledged = Acknowledged::default();
        live(&mut opened, seed, &mut acknowledged);
        drop(opened);
        let old = (disk.read(path()).unwrap(), disk.read(companion()).unwrap());
        let mut opened = open(&disk, path());
        live(&mut opened, seed + 100, &mut acknowledged);
        drop(opened);
        let new = (disk.read(path()).unwrap(), disk.read(companion()).unwrap());
        let mut found = Vec::new();
        for (log, file) in [
            (&old.0, Some(&old.1)),
            (&new.0, Some(&old.1)),
            (&old.0, Some(&new.1)),
            (&new.0, Some(&new.1)),
            (&new.0, None),
        ] {
            let other = SimulatedDisk::new();
            other.put(path(), log);
            if let Some(file) = file {
                other.put(companion(), file);
            }
            let mut acknowledged = acknowledged.clone();
            let mut opened = open(&other, path());
            found.push(acknowledged.check(&opened.database, &format!("seed {seed}")).0);
            live(&mut opened, seed + 200, &mut acknowledged);
            acknowledged.check(&opened.database, &format!("seed {seed}, later"));
        }
        assert!(found[0] > 0 && found[3] > 0, "{found:?}");
        assert_eq!(found[4], 0);
        // A file truncated anywhere, or with one byte changed.
        for place in (0..new.1.len()).step_by(97) {
            for cut in [true, false] {
                let mut file = new.1.clone();
                if cut {
                    file.truncate(place)
                } else {
                    file[place] ^= 1
                }
                let other = SimulatedDisk::new();
                other.put(path(), &new.0);
                other.put(companion(), &file);
                acknowledged.check(&open(&other, path()).database, &format!("seed {seed}, {cut} {place}"));
            }
        }
    }
}

#[test]
fn what_was_undone_is_no_part_of_what_comes_after() {
    let (disk, mut opened) = start();
    let (mut names, mut acknowledged) = (Names(0), Acknowledged::default());
    let mut run = |opened: &mut Opened<SimulatedDisk>, groups: &[&str]| {
        let before = opened.database.commit_number();
        opened.database.hold_from(Some(before));
        for operations in groups {
            let (_, commit) = transact(&mut opened.database, &mut names, operations);
            opened.log.append(&mut opened.database, commit.unwrap(), 5);
        }
        let written = opened.log.write(true).is_ok();
        if !written {
            opened.database.undo_since(before);
        }
        opened.database.hold_from(None);
        written
    };
    assert!(run(&mut opened, &[r#"[{"op":"insert","table":"A","row":{"i":1,"e":1}}]"#]));
    acknowledged.note(&opened.database);
    // The second write is the log's.
    disk.inject(disk.operations() + 1, Fault::NoSpace);
    let lost = [
        r#"[{"op":"update","table":"A","where":[],"row":{"e":2,"es":["set",[4]]}}]"#,
        r#"[{"op":"update","table":"A","where":[],"row":{"i":2}}]"#,
    ];
    assert!(!run(&mut opened, &lost));
    // There is room again: the file is rewritten, without what was undone.
    assert!(run(&mut opened, &[r#"[{"op":"update","table":"A","where":[],"row":{"e":3}}]"#]));
    acknowledged.note(&opened.database);
    drop(opened);
    disk.crash(Survival::Everything);
    let (found, last) = acknowledged.check(&open(&disk, path()).database, "undone");
    assert_eq!((found, last), (2, true));
}

#[test]
fn a_compaction_loses_no_id_though_nothing_ephemeral_has_changed_since_long() {
    let (disk, mut opened) = start();
    let (mut names, mut acknowledged) = (Names(0), Acknowledged::default());
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"A","row":{"i":1,"es":["set",[1,2]]}}]"#);
    for number in 0..5 {
        commit(
            &mut opened,
            &mut names,
            &format!(r#"[{{"op":"insert","table":"C","row":{{"n":"{number}"}}}}]"#),
        );
    }
    opened.log.start_compaction(&opened.database, 5, 5).unwrap();
    while !matches!(opened.log.step(&opened.database).unwrap(), Step::Finished(_)) {}
    acknowledged.note(&opened.database);
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"last"}}]"#);
    acknowledged.note(&opened.database);
    drop(opened);
    disk.crash(Survival::Everything);
    assert_eq!(acknowledged.check(&open(&disk, path()).database, "compacted"), (2, true));
}
