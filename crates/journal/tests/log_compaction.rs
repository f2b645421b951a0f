//! Compaction frees space and loses nothing; deletes stay deleted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::SimulatedDisk;
use journal::log::{Aim, Buffer, Kind, Options, Record, Replayed, Step, Verdict};
use log::OPTIONS;
use log::model::{Engine, NOW, Random, VBUCKETS, change_some, documents, recover};

const SMALL: Options = Options { segment_bytes: 3000, ..OPTIONS };

fn churn(engine: &mut Engine, random: &mut Random, rounds: u64) {
    for round in 0..rounds {
        change_some(engine, random, round);
    }
}

fn compact(engine: &mut Engine, budget: usize) -> u64 {
    let mut freed = 0;
    for _ in 0..100_000 {
        match engine.compact_step(budget).unwrap() {
            Step::Idle => return freed,
            Step::Finished { freed_bytes } => freed += freed_bytes,
            Step::More => {}
            step => panic!("{step:?}"),
        }
    }
    panic!("compaction does not come to an end");
}

#[test]
fn what_is_dead_goes_and_what_is_live_stays() {
    for budget in [1, 1000, 1 << 20] {
        let disk = SimulatedDisk::new();
        let mut engine = recover(&disk, SMALL);
        let mut random = Random(budget as u64 + 7);
        for _ in 0..10 {
            churn(&mut engine, &mut random, 30);
            let before = engine.shard.figures().bytes;
            let freed = compact(&mut engine, budget);
            let after = engine.shard.figures().bytes;
            assert!(freed > 0 && after < before, "{before} -> {after}");
            assert!(after <= 2 * engine.live_bytes() + 4 * 3000 * 2, "{after} for {}", engine.live_bytes());
            engine.check_reads();
            let again = recover(&disk, SMALL);
            assert_eq!(documents(&again.durable), documents(&engine.durable));
            assert_eq!(again.shard.figures().segments, engine.shard.figures().segments);
            engine.shard = again.shard;
        }
    }
}

/// A value that is longer than the buffer is copied from file to file, and damage to it is found before it is copied.
#[test]
fn long_values_are_copied_as_they_are() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, Options { segment_bytes: 8 << 20, ..OPTIONS });
    let long = |length: usize, byte: u8| vec![byte; length];
    for round in 0..16 {
        if round == 0 {
            engine.set(1, b"stays", Some(&long((3 << 20) + 17, b's')));
        }
        engine.set(1, format!("goes-{}", round % 2).as_bytes(), Some(&long(2 << 20, round)));
        engine.set(1, b"short", Some(&[round; 100]));
        engine.flush().unwrap();
    }
    let before = engine.shard.figures().bytes;
    assert!(compact(&mut engine, 1 << 20) > 0);
    assert!(engine.shard.figures().bytes < before);
    engine.check_reads();
    assert_eq!(documents(&recover(&disk, OPTIONS).durable), documents(&engine.durable));
}

/// The next start has to read little more than what is live, and what was not superfluous is left where it is.
#[test]
fn at_rest_little_is_superfluous() {
    for seed in 1..20 {
        let options = Options { segment_bytes: 32 << 10, ..OPTIONS };
        let disk = SimulatedDisk::new();
        let mut engine = recover(&disk, options);
        let mut random = Random(seed);
        churn(&mut engine, &mut random, 10 + 20 * seed);
        let before = engine.shard.figures().bytes;
        engine.at_rest = true;
        compact(&mut engine, 64 << 10);
        let (live, bytes) = (engine.live_bytes(), engine.shard.figures().bytes);
        // The slack is an eighth of a segment; runs and footers come on top.
        assert!(
            bytes <= live + live / 4 + (32 << 10) / 8 + live / 2,
            "{before} to {bytes} for {live}, seed {seed}"
        );
        let operations = disk.operations();
        compact(&mut engine, 64 << 10);
        assert_eq!(disk.operations(), operations, "there is nothing more to do");
        assert_eq!(documents(&recover(&disk, options).durable), documents(&engine.durable));
    }
}

#[test]
fn compaction_with_flushes_in_between_loses_nothing() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    let mut random = Random(99);
    for _ in 0..600 {
        churn(&mut engine, &mut random, 1);
        let step = engine.compact_step(500).unwrap();
        assert!(!matches!(step, Step::Damaged(_) | Step::Held));
        if random.below(20) == 0 {
            let again = recover(&disk, SMALL);
            assert_eq!(documents(&again.durable), documents(&engine.durable));
            again.check_reads();
            engine.shard = again.shard;
        }
    }
}

/// Some keys are changed so often that they are dirty whenever compaction runs, the others now and then.
#[test]
fn of_keys_that_are_never_clean_little_is_left_and_nothing_is_lost() {
    for budget in [1, 500, 1 << 20] {
        let disk = SimulatedDisk::new();
        let mut engine = recover(&disk, SMALL);
        let mut random = Random(budget as u64);
        let change = |engine: &mut Engine, random: &mut Random| {
            for key in [&b"hot"[..], b"hotter"] {
                let value = vec![0; random.below(100) as usize];
                engine.set(1, key, (random.below(4) > 0).then_some(&value[..]));
            }
        };
        for round in 0..1000 {
            change(&mut engine, &mut random);
            if round % 50 == 0 {
                churn(&mut engine, &mut random, 1);
            }
            engine.flush().unwrap();
            change(&mut engine, &mut random);
            (0..4).for_each(|_| drop(engine.compact_step(budget).unwrap()));
            if round % 20 == 0 {
                let again = recover(&disk, SMALL);
                assert_eq!(documents(&again.durable), documents(&engine.durable));
                again.check_reads();
                engine.shard = again.shard;
            }
        }
        compact(&mut engine, 1 << 20);
        let (bytes, live) = (engine.shard.figures().bytes, engine.live_bytes());
        assert!(bytes <= 2 * live + 4 * 3000, "{bytes} for {live}");
        assert_eq!(documents(&recover(&disk, SMALL).durable), documents(&engine.durable));
    }
}

/// Nor is it told to hurry, once it has looked: nothing would be gained.
#[test]
fn tombstones_too_young_to_go_are_not_superfluous() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    engine.purge_before = NOW;
    for number in 0..1000 {
        let key = format!("key{number}").into_bytes();
        engine.set(1, &key, Some(b"value"));
        engine.flush().unwrap();
        engine.set(1, &key, None);
        engine.flush().unwrap();
    }
    let times = |engine: &Engine| engine.shard.times_enough(Aim::at_work(engine.live_bytes()));
    assert!(times(&engine) > 4);
    compact(&mut engine, 1 << 20);
    assert!(engine.shard.figures().bytes > 1000 * 40, "the tombstones");
    assert_eq!(times(&engine), 0);
}

#[test]
fn everything_deleted_leaves_next_to_nothing() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    churn(&mut engine, &mut Random(5), 100);
    for vbucket in 0..VBUCKETS {
        for key in 0..40 {
            engine.set(vbucket, format!("key{key}").as_bytes(), None);
        }
    }
    engine.flush().unwrap();
    compact(&mut engine, 1 << 20);
    // A few segments are not worth compacting.
    assert!(engine.shard.figures().bytes <= 2 * 3000 + 16_000, "{:?}", engine.shard.figures());
    let again = recover(&disk, SMALL);
    assert_eq!(documents(&again.durable), documents(&engine.durable));
    assert!(again.durable.is_empty());
}

/// The engine keeps an ended prepare, or a deleted document, if it cannot tell whether the end is on disk. If the end
/// is on disk, and is dropped because it hides nothing elsewhere, then what it hides in its own segment is dropped too.
#[test]
fn what_a_purged_end_hides_does_not_outlive_it() {
    let disk = SimulatedDisk::new();
    let (mut shard, mut buffer) = (log::open_with(&disk, SMALL).shard, Buffer::default());
    let prepare = Record { kind: Kind::Prepare, ..log::document(1, b"prepared", b"value") };
    let abort = Record { kind: Kind::Abort, value: b"", ..log::document(3, b"prepared", b"") };
    let records = [prepare, log::document(2, b"deleted", b"value"), abort, log::tombstone(4, b"deleted", 10)];
    log::commit(&mut shard, &mut buffer, &records.map(|record| (1, record))).unwrap();
    for seqno in 5..25 {
        let filler = log::document(seqno, b"filler", &[0; 2000]);
        log::commit(&mut shard, &mut buffer, &[(1, filler)]).unwrap();
    }
    let mut judge = |_: u16, record: &Record<'_>| {
        if record.key == b"filler" && record.seqno < 24 { Verdict::Dead } else { Verdict::Live }
    };
    for _ in 0..1000 {
        let step = shard.compact_step(&mut buffer, 1 << 20, &mut judge, Aim::at_work(0), 20).unwrap();
        if step == Step::Idle {
            break;
        }
    }
    let opened = log::open_with(&disk, SMALL);
    let mut left = Vec::new();
    for segment in &opened.segments {
        segment
            .replay(&mut buffer, &mut |replayed| {
                if let Replayed::Record(_, record) = replayed {
                    left.push((record.seqno, record.kind));
                }
            })
            .unwrap();
    }
    let of_the_ended: Vec<_> = left.iter().filter(|(seqno, _)| *seqno < 5).collect();
    assert!(of_the_ended.is_empty(), "{of_the_ended:?}");
    assert!(left.contains(&(24, Kind::Document)));
}
