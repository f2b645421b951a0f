//! A history of commits, compaction among them, that is cut off or disturbed at every operation on the disk. Whatever
//! happens: what was acknowledged as durable exists afterwards, no transaction exists in part, and the log continues.
#![allow(clippy::expect_used)]

mod log;

use journal::{Fault, SimulatedDisk, Survival};
use log::{Names, Random, commit, created, dump, open, transact};
use ovsdb::file::{Opened, Step};
use std::path::Path;

const STEPS: u64 = 45;

fn path() -> &'static Path {
    Path::new("/db/t.db")
}

/// The states after each commit, and the last of them that was acknowledged as durable.
struct History {
    states: Vec<Vec<String>>,
    durable: usize,
}

/// What clients and the administrator do: groups of commits, some durable, with a compaction in progress. Continues
/// after errors as the server does.
fn live(opened: &mut Opened<SimulatedDisk>, seed: u64) -> History {
    let (mut names, mut random) = (Names(0), Random(seed));
    let mut history = History { states: vec![dump(&opened.database, false)], durable: 0 };
    for step in 0..STEPS {
        if matches!(step, 8 | 28) {
            // Fails if the log is poisoned or the disk has failed.
            let _ = opened.log.start_compaction(&opened.database, step, step);
        }
        let before = opened.database.commit_number();
        opened.database.hold_from(Some(before));
        for _ in 0..1 + random.below(3) {
            let (_, committed) = transact(&mut opened.database, &mut names, &random.operations());
            if let Some(commit) = committed {
                opened.log.append(&mut opened.database, commit, step);
                history.states.push(dump(&opened.database, false));
            }
        }
        let durable = random.below(3) == 0;
        let had_pending = opened.log.has_pending();
        match opened.log.write(durable) {
            Ok(()) if durable && had_pending => history.durable = history.states.len() - 1,
            Ok(()) => {}
            Err(_) => opened.database.undo_since(before),
        }
        opened.database.hold_from(None);
        // An error ends the compaction only.
        let _: Result<Step, _> = opened.log.step(&opened.database);
    }
    history
}

fn check(disk: &SimulatedDisk, history: &History, survival: Survival, what: &str) {
    disk.crash(survival);
    let mut opened = open(disk, path());
    let found = dump(&opened.database, false);
    let place = history.states.iter().rposition(|state| *state == found);
    match place {
        Some(place) => assert!(place >= history.durable, "{what}: {place} < {}", history.durable),
        None => panic!("{what}: a state that never was: {found:?}"),
    }
    // It continues, durably.
    commit(&mut opened, &mut Names(1 << 32), r#"[{"op":"insert","table":"C","row":{"n":"after"}}]"#);
    let expected = dump(&opened.database, false);
    drop(opened);
    disk.crash(Survival::Synced);
    assert_eq!(dump(&open(disk, path()).database, false), expected, "{what}");
}

/// The range of the disk's operations during the history.
fn operations(seed: u64) -> std::ops::Range<u64> {
    let (disk, mut opened) = created(path());
    let start = disk.operations();
    let history = live(&mut opened, seed);
    assert!(history.states.len() > 40 && history.durable > 30);
    start..disk.operations()
}

#[test]
fn power_may_go_at_every_operation() {
    for seed in [3, 5] {
        for operation in operations(seed) {
            for survival in [
                Survival::Synced,
                Survival::Everything,
                Survival::Some(0),
                Survival::Some(1),
                Survival::Some(4),
            ] {
                let (disk, mut opened) = created(path());
                disk.inject(operation, Fault::PowerOff);
                let history = live(&mut opened, seed);
                drop(opened);
                check(
                    &disk,
                    &history,
                    survival,
                    &format!("seed {seed}, operation {operation}, {survival:?}"),
                );
            }
        }
    }
}

#[test]
fn every_operation_may_fail() {
    let seed = 7;
    for operation in operations(seed) {
        for fault in
            [Fault::Io, Fault::NoSpace, Fault::Short(1), Fault::Short(70), Fault::Torn(70), Fault::Torn(1)]
        {
            for survival in [Survival::Synced, Survival::Everything, Survival::Some(1)] {
                let (disk, mut opened) = created(path());
                disk.inject(operation, fault);
                let history = live(&mut opened, seed);
                drop(opened);
                let what = format!("operation {operation}, {fault:?}, {survival:?}");
                check(&disk, &history, survival, &what);
            }
        }
    }
}

const INSERT_LOST: &str = r#"[{"op":"insert","table":"C","row":{"n":"lost"}}]"#;

/// Tries to commit a row. Restores the database if that fails, as the server does.
fn try_insert(opened: &mut Opened<SimulatedDisk>, names: &mut Names, durable: bool) -> Result<(), String> {
    let before = opened.database.commit_number();
    opened.database.hold_from(Some(before));
    let (_, commit) = transact(&mut opened.database, names, INSERT_LOST);
    opened.log.append(&mut opened.database, commit.expect("a commit"), 0);
    let result = opened.log.write(durable).map_err(|error| error.to_string());
    if result.is_err() {
        opened.database.undo_since(before);
    }
    opened.database.hold_from(None);
    result
}

#[test]
fn a_failed_write_undoes_its_group_and_the_log_goes_on_when_there_is_room() {
    for (fault, error) in [
        (Fault::NoSpace, "I/O error: /db/t.db: write failed (No space left on device)"),
        (Fault::Short(30), ""),
        (Fault::Torn(30), "I/O error: /db/t.db: write failed (Input/output error)"),
    ] {
        let (disk, mut opened) = created(path());
        let mut names = Names(0);
        commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"kept"}}]"#);
        let (kept, file) = (dump(&opened.database, false), disk.read(path()));
        if error.is_empty() {
            disk.inject(disk.operations(), fault);
        } else {
            for cuts in 0..2 {
                // The second time, what the first attempt left is cut off before.
                disk.inject(disk.operations() + cuts, fault);
                assert_eq!(try_insert(&mut opened, &mut names, true), Err(error.to_owned()));
                assert!(opened.log.poisoned().is_none());
                assert_eq!(dump(&opened.database, false), kept);
                assert_eq!(disk.read(path()), file, "what was half written is cut off");
                let notes = opened.log.take_notes();
                assert!(notes.iter().any(|note| note.text == error), "{notes:?}");
            }
        }
        try_insert(&mut opened, &mut names, true).expect("the log goes on");
        let expected = dump(&opened.database, false);
        assert_ne!(expected, kept);
        drop(opened);
        disk.crash(Survival::Synced);
        assert_eq!(dump(&open(&disk, path()).database, false), expected);
    }
}

#[test]
fn a_write_that_fails_while_the_compacted_file_takes_over_is_tried_again() {
    let mut all_failures = 0;
    // In each phase, the write to the old file and the one to the new file, even if that has the name already.
    for (skip, which) in (0..10).flat_map(|skip| [(skip, 0), (skip, 1)]) {
        let (disk, mut opened) = created(path());
        let mut names = Names(0);
        commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"kept"}}]"#);
        opened.log.start_compaction(&opened.database, 0, 0).expect("started");
        let mut failures = 0;
        for step in 0..12 {
            if step == skip {
                disk.inject(disk.operations() + which, Fault::NoSpace);
            }
            let had = dump(&opened.database, false);
            if try_insert(&mut opened, &mut names, false).is_err() {
                failures += 1;
                assert_eq!(dump(&opened.database, false), had);
            }
            let _: Result<Step, _> = opened.log.step(&opened.database);
        }
        assert!(failures <= 1 && opened.log.poisoned().is_none(), "{skip} {which}: {failures}");
        all_failures += failures;
        try_insert(&mut opened, &mut names, true).expect("the log goes on");
        let expected = dump(&opened.database, false);
        drop(opened);
        disk.crash(Survival::Synced);
        assert_eq!(dump(&open(&disk, path()).database, false), expected, "{skip} {which}");
    }
    // All to the old file, and that to the new one while both are written and it has the name.
    assert!(all_failures > 10, "{all_failures}");
}

#[test]
fn a_failed_sync_undoes_its_group_and_poisons_the_log() {
    let (disk, mut opened) = created(path());
    let mut names = Names(0);
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"kept"}}]"#);
    let (kept, file) = (dump(&opened.database, false), disk.read(path()));
    disk.inject(disk.operations() + 1, Fault::Io);
    let error = "I/O error: /db/t.db: fsync failed (Input/output error)";
    for expected in [error, "no writes until the database is reopened"] {
        let text = try_insert(&mut opened, &mut names, true).expect_err("it failed");
        assert!(text.contains(expected), "{text}");
        assert_eq!(dump(&opened.database, false), kept);
        assert_eq!(disk.read(path()), file, "what was half written is cut off");
    }
    assert!(opened.log.start_compaction(&opened.database, 0, 0).is_err());
    assert!(!opened.log.take_notes().is_empty());
    drop(opened);
    let mut opened = open(&disk, path());
    assert_eq!(dump(&opened.database, false), kept);
    try_insert(&mut opened, &mut names, true).expect("reopened");
}

#[test]
fn a_compaction_that_fails_leaves_the_log_as_it_is() {
    let (disk, mut opened) = created(path());
    let mut names = Names(0);
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"a"}}]"#);
    opened.log.start_compaction(&opened.database, 0, 0).expect("started");
    disk.inject(disk.operations(), Fault::NoSpace);
    opened.log.step(&opened.database).expect_err("it failed");
    assert!(!opened.log.compacting() && opened.log.poisoned().is_none());
    assert_eq!(disk.names(), [Path::new("/db/.t.db.ephemeral"), path()]);
    commit(&mut opened, &mut names, r#"[{"op":"insert","table":"C","row":{"n":"b"}}]"#);
    let expected = dump(&opened.database, false);
    drop(opened);
    assert_eq!(dump(&open(&disk, path()).database, false), expected);
}
