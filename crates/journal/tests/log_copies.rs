//! A directory can be inspected and copied; a copy is the shard as of one moment.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{Aim, Buffer, Dumped, Options, Shard, Step, dump, verify};
use journal::{Fault, RealDisk, SimulatedDisk, Survival};
use log::model::{Engine, Random, VBUCKETS, documents, recover, replay};
use log::{DIRECTORY, IDENTITY, OPTIONS, commit, document};
use std::path::Path;

const SMALL: Options = Options { segment_bytes: 2000, ..OPTIONS };
const COPY: &str = "/bucket/copy";

fn churn(engine: &mut Engine, random: &mut Random, rounds: u64) {
    for _ in 0..rounds {
        let key = format!("key{}", random.below(30)).into_bytes();
        let value = vec![7; random.below(200) as usize];
        engine.set(random.below(u64::from(VBUCKETS)) as u16, &key, Some(&value));
        engine.flush().unwrap();
    }
}

#[test]
fn verify_counts_what_dump_shows_and_changes_nothing() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    churn(&mut engine, &mut Random(8), 60);
    let operations = disk.operations();
    let mut buffer = Buffer::new(4096);
    let verified = verify(&disk, Path::new(DIRECTORY), &mut buffer).unwrap();
    assert_eq!((verified.batches, verified.runs, verified.records), (60, 60, 60));
    assert_eq!(verified.segments as usize, engine.shard.figures().segments);
    assert_eq!(verified.sealed_segments + 1, verified.segments);
    assert_eq!(verified.bytes, engine.shard.figures().bytes);
    assert_eq!((verified.torn_bytes, verified.is_clean, verified.identity), (0, false, Some(IDENTITY)));
    let mut seen = Vec::new();
    dump(&disk, Path::new(DIRECTORY), &mut buffer, false, &mut |dumped| {
        if let Dumped::Record(vbucket, record) = dumped {
            seen.push((vbucket, record.seqno));
        }
    })
    .unwrap();
    assert_eq!(seen.len(), 60);
    assert_eq!(disk.operations(), operations);
    engine.shard.close().unwrap();
    assert!(verify(&disk, Path::new(DIRECTORY), &mut buffer).unwrap().is_clean);
    let missing = verify(&disk, Path::new("/bucket/none"), &mut buffer).unwrap();
    assert_eq!((missing.segments, missing.is_clean), (0, true));
}

#[test]
fn a_copy_is_the_shard_of_its_moment_whatever_happens_to_the_shard() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    let mut random = Random(21);
    churn(&mut engine, &mut random, 100);
    let expected = documents(&engine.durable);
    engine.shard.reader().copy(Path::new(COPY), 0, &mut Buffer::new(4096)).unwrap();
    churn(&mut engine, &mut random, 200);
    while engine.compact_step(10_000).unwrap() != Step::Idle {}
    disk.crash(Survival::Synced);
    let opened = Shard::open(disk, Path::new(COPY), IDENTITY, SMALL).unwrap();
    assert!(!opened.clean);
    assert_eq!(documents(&replay(&opened, &mut |damage| panic!("{damage}"))), expected);
}

#[test]
fn a_copy_that_fails_lets_compaction_go_on() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    churn(&mut engine, &mut Random(22), 200);
    disk.inject(disk.operations() + 3, Fault::Io);
    engine.shard.reader().copy(Path::new(COPY), 0, &mut Buffer::new(4096)).unwrap_err();
    let before = engine.shard.figures().segments;
    while engine.compact_step(10_000).unwrap() != Step::Idle {}
    assert!(engine.shard.figures().segments < before);
}

#[test]
fn readers_and_copies_run_beside_writer_and_compaction() {
    let directory = std::env::temp_dir().join(format!("journal-copies-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).unwrap();
    let shard_directory = directory.join("shard");
    let disk = RealDisk::default();
    let options = Options { segment_bytes: 20_000, sync: false };
    let mut shard = Shard::open(disk.clone(), &shard_directory, IDENTITY, options).unwrap().shard;
    let mut buffer = Buffer::default();
    let value = |seqno: u64| vec![seqno as u8; 300];
    // The newest version of each of 40 keys is live.
    const KEYS: u64 = 40;
    let live_from = std::sync::atomic::AtomicU64::new(1);
    let reader = shard.reader();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            for seqno in 1..=3000_u64 {
                let key = format!("key{}", seqno % KEYS);
                let bytes = value(seqno);
                commit(&mut shard, &mut buffer, &[(1, document(seqno, key.as_bytes(), &bytes))]).unwrap();
                live_from.store((seqno + 1).saturating_sub(KEYS).max(1), std::sync::atomic::Ordering::SeqCst);
                let judge = &mut |_: u16, record: &journal::log::Record<'_>| {
                    if record.seqno + KEYS > seqno {
                        journal::log::Verdict::Live
                    } else {
                        journal::log::Verdict::Dead
                    }
                };
                shard.compact_step(&mut buffer, 4000, judge, Aim::at_work(KEYS * 350), 0).unwrap();
            }
        });
        let mut bytes = Vec::new();
        let (mut reads, mut copies) = (0, 0);
        while !writing.is_finished() {
            for _ in 0..100 {
                let seqno = live_from.load(std::sync::atomic::Ordering::SeqCst);
                let found = reader.read(1, seqno, &mut bytes).unwrap().map(|record| record.value.to_vec());
                let is_live = live_from.load(std::sync::atomic::Ordering::SeqCst) <= seqno;
                assert!(found == Some(value(seqno)) || !is_live || seqno == 1, "{seqno}");
                reads += 1;
            }
            let copy = directory.join(format!("copy{copies}"));
            reader.copy(&copy, 0, &mut Buffer::default()).unwrap();
            let verified = verify(&disk, &copy, &mut Buffer::default()).unwrap();
            assert_eq!((verified.damage, verified.torn_bytes), (vec![], 0));
            std::fs::remove_dir_all(&copy).ok();
            copies += 1;
        }
        writing.join().unwrap();
        assert!(reads > 0 && copies > 0);
    });
    let judge = &mut |_: u16, record: &journal::log::Record<'_>| {
        if record.seqno + KEYS > 3000 { journal::log::Verdict::Live } else { journal::log::Verdict::Dead }
    };
    while shard.compact_step(&mut buffer, 1 << 20, judge, Aim::at_work(KEYS * 350), 0).unwrap() != Step::Idle
    {
    }
    let figures = shard.figures();
    assert!(figures.bytes < 100_000, "{figures:?}");
    std::fs::remove_dir_all(&directory).unwrap();
}
