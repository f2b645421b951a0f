//! Each operation of a history crashes or fails: what was acknowledged is there, and no batch is there by half.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{Options, Step, WriteError};
use journal::{Fault, SimulatedDisk, Survival};
use log::OPTIONS;
use log::model::{Documents, Engine, Random, VBUCKETS, documents, recover};

const SMALL: Options = Options { segment_bytes: 1500, ..OPTIONS };

/// What a recovery may find: the state of the last acknowledged commit, or of one that was tried after it.
struct Expected {
    acknowledged: Documents,
    attempted: Vec<Documents>,
}

impl Expected {
    fn of(acknowledged: Documents) -> Self {
        Self { acknowledged, attempted: Vec::new() }
    }

    fn allows(&self, found: &Documents) -> bool {
        *found == self.acknowledged || self.attempted.contains(found)
    }
}

/// Runs a history on an open disk until `failed` says stop.
fn live(
    engine: &mut Engine,
    expected: &mut Expected,
    seed: u64,
    rounds: u64,
    stop: &mut dyn FnMut(&WriteError) -> bool,
) -> bool {
    let mut random = Random(seed);
    for round in 0..rounds {
        for _ in 0..=random.below(6) {
            let key = format!("key{}", random.below(12)).into_bytes();
            let length = if random.below(20) == 0 { 6000 } else { random.below(150) };
            let value = vec![round as u8; length as usize];
            let value = (random.below(3) > 0).then_some(&value[..]);
            engine.set(random.below(u64::from(VBUCKETS)) as u16, &key, value);
        }
        expected.attempted.push(engine.wanted());
        match engine.flush() {
            Ok(()) => *expected = Expected::of(engine.wanted()),
            Err(error) if stop(&error) => return false,
            Err(_) => {}
        }
        // While compaction runs, some keys have newer versions in memory.
        for _ in 0..random.below(3) {
            let key = format!("key{}", random.below(12)).into_bytes();
            engine.set(random.below(u64::from(VBUCKETS)) as u16, &key, Some(&[round as u8; 50]));
        }
        engine.at_rest = random.below(4) == 0;
        match engine.compact_step(400) {
            Ok(Step::Damaged(damage)) => panic!("{damage}"),
            Ok(_) => {}
            Err(error) if stop(&error) => return false,
            Err(_) => {}
        }
    }
    true
}

fn start(disk: &SimulatedDisk) -> (Engine, Expected) {
    let engine = recover(disk, SMALL);
    (engine, Expected::of(Documents::new()))
}

const SEEDS: [u64; 2] = [11, 1234];
const ROUNDS: u64 = 45;

fn operations_of(seed: u64) -> u64 {
    let disk = SimulatedDisk::new();
    let (mut engine, mut expected) = start(&disk);
    assert!(live(&mut engine, &mut expected, seed, ROUNDS, &mut |error| panic!("{error}")));
    assert!(disk.names().len() > 2, "several segments");
    disk.operations()
}

#[test]
fn a_crash_at_any_operation_loses_nothing_acknowledged() {
    let survivals = [
        Survival::Synced,
        Survival::Everything,
        Survival::Cached,
        Survival::Some(0),
        Survival::Some(1),
        Survival::Some(2),
    ];
    for seed in SEEDS {
        let operations = operations_of(seed);
        for operation in 0..operations {
            for survival in survivals {
                let disk = SimulatedDisk::new();
                disk.inject(operation, Fault::PowerOff);
                let (mut engine, mut expected) = start(&disk);
                let is_last = live(&mut engine, &mut expected, seed, ROUNDS, &mut |_| true);
                assert!(!is_last || operation + 1 == operations, "only a note of what is synced may fail");
                disk.crash(survival);
                let again = recover(&disk, SMALL);
                let found = documents(&again.durable);
                let context = format!("seed {seed}, operation {operation}, {survival:?}");
                assert!(expected.allows(&found), "{context}");
                again.check_reads();
                // What was recovered stays, whatever happens next.
                drop(again);
                disk.crash(Survival::Synced);
                assert_eq!(documents(&recover(&disk, SMALL).durable), found, "{context}");
                let mut again = recover(&disk, SMALL);
                let mut expected = Expected::of(found);
                assert!(live(&mut again, &mut expected, seed + 1, 6, &mut |error| panic!("{error}")));
                disk.crash(Survival::Synced);
                assert_eq!(documents(&recover(&disk, SMALL).durable), expected.acknowledged, "{context}");
            }
        }
    }
}

#[test]
fn an_operation_that_fails_takes_nothing_acknowledged_with_it() {
    let faults =
        [Fault::Io, Fault::NoSpace, Fault::Short(0), Fault::Short(70), Fault::Torn(0), Fault::Torn(90)];
    for seed in SEEDS {
        let operations = operations_of(seed);
        for operation in 0..operations {
            for (fault, next) in faults.into_iter().flat_map(|fault| [(fault, false), (fault, true)]) {
                let disk = SimulatedDisk::new();
                disk.inject(operation, fault);
                if next {
                    disk.inject(operation + 1, fault);
                }
                let (mut engine, mut expected) = start(&disk);
                assert!(live(&mut engine, &mut expected, seed, ROUNDS, &mut |_| false));
                let context = format!("seed {seed}, operation {operation}, {fault:?}, {next}");
                engine.check_reads();
                disk.crash(if next { Survival::Synced } else { Survival::Some(1) });
                let found = documents(&recover(&disk, SMALL).durable);
                assert!(expected.allows(&found), "{context}");
            }
        }
    }
}

/// After a failed sync the cache shows what never reached the disk.
#[test]
fn what_is_recovered_from_the_cache_after_a_failed_sync_is_made_durable() {
    for seed in SEEDS {
        for operation in 0..operations_of(seed) {
            let disk = SimulatedDisk::new();
            disk.inject(operation, Fault::Io);
            let (mut engine, mut expected) = start(&disk);
            if live(&mut engine, &mut expected, seed, ROUNDS, &mut |_| true) {
                continue;
            }
            drop(engine);
            let found = documents(&recover(&disk, SMALL).durable);
            assert!(expected.allows(&found));
            disk.crash(Survival::Synced);
            assert_eq!(
                documents(&recover(&disk, SMALL).durable),
                found,
                "seed {seed}, operation {operation}"
            );
        }
    }
}

/// Something fails; a few operations later the process is killed; the next one continues with what it finds, and then
/// the power fails. The cache shows each process what never reached the disk, in the newest file and in those before
/// it.
#[test]
fn what_the_life_after_a_failure_and_a_kill_goes_on_with_is_durable() {
    for seed in SEEDS {
        for (operation, life) in (0..operations_of(seed)).flat_map(|at| (1..8).map(move |life| (at, life))) {
            let disk = SimulatedDisk::new();
            disk.inject(operation, Fault::Io);
            disk.inject(operation + life, Fault::PowerOff);
            let (mut engine, mut expected) = start(&disk);
            live(&mut engine, &mut expected, seed, ROUNDS, &mut |_| disk.operations() > operation + life);
            drop(engine);
            disk.crash(Survival::Cached);
            let context = format!("seed {seed}, operation {operation}, {life} more");
            let mut second = recover(&disk, SMALL);
            let found = documents(&second.durable);
            assert!(expected.allows(&found), "{context}");
            let mut expected = Expected::of(found);
            let rounds = operation % 3;
            assert!(live(&mut second, &mut expected, seed + 1, rounds, &mut |error| panic!("{error}")));
            drop(second);
            disk.crash(Survival::Synced);
            let third = recover(&disk, SMALL);
            assert_eq!(documents(&third.durable), expected.acknowledged, "{context}");
            third.check_reads();
        }
    }
}

/// A segment that is sealed early is shorter than the zeros that were written ahead in it. If its sync failed, only the
/// cache shows it so.
#[test]
fn a_segment_that_was_cut_in_the_cache_only_is_cut_on_the_disk() {
    let roomy = Options { segment_bytes: 10_000, ..OPTIONS };
    let overwrite = |engine: &mut Engine| {
        for round in 0..12 {
            engine.set(1, b"key", Some(&[round; 100]));
            let _ = engine.flush();
            engine.at_rest = true;
            let _ = engine.compact_step(400);
        }
    };
    let disk = SimulatedDisk::new();
    overwrite(&mut recover(&disk, roomy));
    assert!(!disk.names().iter().any(|name| name.ends_with("0000000001.segment")), "sealed and compacted");
    for operation in 0..disk.operations() {
        let disk = SimulatedDisk::new();
        disk.inject(operation, Fault::Io);
        disk.inject(operation + 1, Fault::PowerOff);
        overwrite(&mut recover(&disk, roomy));
        disk.crash(Survival::Cached);
        let mut second = recover(&disk, roomy);
        second.set(2, b"another", Some(b"value"));
        second.flush().unwrap();
        let wanted = second.wanted();
        drop(second);
        disk.crash(Survival::Synced);
        assert_eq!(documents(&recover(&disk, roomy).durable), wanted, "operation {operation}");
    }
}

#[test]
fn a_full_disk_refuses_until_there_is_space() {
    let disk = SimulatedDisk::new();
    let (mut engine, mut expected) = start(&disk);
    assert!(live(&mut engine, &mut expected, 3, 20, &mut |error| panic!("{error}")));
    for free in [0, 1, 100, 200] {
        disk.limit_space(Some(0));
        let used = engine.shard.figures().bytes;
        disk.limit_space(Some(used + free));
        // Longer than the zeros that are written ahead.
        let value = [9; 30_000];
        engine.set(1, b"another", Some(&value));
        for _ in 0..3 {
            assert!(matches!(engine.flush(), Err(WriteError::NoSpace(_))));
            assert!(engine.shard.figures().bytes <= used + free, "a footer at most");
            engine.check_reads();
        }
        disk.limit_space(None);
        engine.flush().unwrap();
        engine.check_reads();
    }
}

#[test]
fn a_disk_that_fails_for_long_is_not_filled_with_what_failed() {
    let disk = SimulatedDisk::new();
    let (mut engine, mut expected) = start(&disk);
    let files = || disk.names().iter().filter(|name| name.extension().is_some()).count() as u64;
    assert!(live(&mut engine, &mut expected, 3, 1, &mut |error| panic!("{error}")));
    engine.set(1, b"key", Some(b"value"));
    disk.inject(disk.operations() + 1, Fault::Io);
    engine.flush().unwrap_err();
    for _ in 0..20 {
        // What failed before is removed; then a file is made, written, synced.
        disk.inject(disk.operations() + files() - 1 + 2, Fault::Io);
        engine.flush().unwrap_err();
        assert_eq!(files(), 2);
    }
    engine.flush().unwrap();
    expected.acknowledged = engine.wanted();
    assert_eq!(files(), 2);
    disk.crash(Survival::Synced);
    assert_eq!(documents(&recover(&disk, SMALL).durable), expected.acknowledged);
}
