//! A flipped bit anywhere in any file: what it spoils is named, and nothing else is lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{Buffer, Damage, Options, Part, Spoils, Step, verify};
use journal::{Disk, Fault, File, Open, SimulatedDisk, Survival};
use log::model::{Documents, Engine, Key, Random, VBUCKETS, Version, documents, recover, replay};
use log::{DIRECTORY, IDENTITY, OPTIONS};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const SMALL: Options = Options { segment_bytes: 1200, ..OPTIONS };

fn segment(number: u64) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{number:010}.segment"))
}

fn manifest() -> PathBuf {
    Path::new(DIRECTORY).join("MANIFEST")
}

/// The bytes of all files, and what the last batch changed.
struct History {
    files: BTreeMap<PathBuf, Vec<u8>>,
    all: Documents,
    without_last_batch: Documents,
}

fn history(is_closed: bool) -> History {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    let mut random = Random(77);
    let mut without_last_batch = Documents::new();
    for round in 0..14 {
        without_last_batch = documents(&engine.durable);
        for _ in 0..3 {
            let value = vec![round; 20 + random.below(60) as usize];
            let key = format!("key{round}.{}", random.below(9));
            engine.set(random.below(u64::from(VBUCKETS)) as u16, key.as_bytes(), Some(&value));
        }
        engine.flush().unwrap();
    }
    if is_closed {
        engine.shard.close().unwrap();
    }
    let names = disk.names().into_iter().filter(|name| name.extension().is_some() || *name == manifest());
    let files = names.map(|name| (name.clone(), disk.read(&name).unwrap())).collect();
    History { files, all: documents(&engine.durable), without_last_batch }
}

impl History {
    fn segments(&self) -> Vec<PathBuf> {
        self.files.keys().filter(|path| **path != manifest()).cloned().collect()
    }

    fn newest(&self) -> PathBuf {
        self.segments().pop().unwrap()
    }
}

fn disk_of(files: &BTreeMap<PathBuf, Vec<u8>>) -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    for (path, bytes) in files {
        disk.put(path, bytes);
    }
    disk
}

/// What a start finds, and all damage it reports.
fn start(disk: &SimulatedDisk) -> (BTreeMap<Key, Version>, Vec<Damage>, bool) {
    let directory = Path::new(DIRECTORY);
    let opened = journal::log::Shard::open(disk.clone(), directory, IDENTITY, SMALL).expect("opened");
    let mut damage = opened.damage.clone();
    let versions = replay(&opened, &mut |found| damage.push(found.clone()));
    (versions, damage, opened.clean)
}

fn check(history: &History, path: &Path, offset: usize, found: &Documents, damage: &[Damage], torn: bool) {
    let context = format!("{} at {offset}: {damage:?}", path.display());
    if torn && damage.is_empty() {
        assert!(*found == history.without_last_batch || *found == history.all, "{context}");
        return;
    }
    assert!(damage.iter().all(|damage| damage.path == path), "{context}");
    let everything = damage.iter().any(|damage| damage.spoils == Spoils::Everything);
    let spoiled: BTreeSet<u16> = damage
        .iter()
        .filter_map(
            |damage| if let Spoils::VBucket(vbucket) = &damage.spoils { Some(*vbucket) } else { None },
        )
        .collect();
    assert!(!everything && spoiled.len() <= 1, "one bit spoils one vBucket at most: {context}");
    for (key, value) in &history.all {
        assert!(spoiled.contains(&key.0) || found.get(key) == Some(value), "{key:?} is lost: {context}");
    }
    for (key, value) in found {
        assert_eq!(history.all.get(key), Some(value), "{context}");
    }
}

#[test]
fn a_flipped_bit_is_named_and_spoils_one_vbucket_at_most() {
    for is_closed in [true, false] {
        let history = history(is_closed);
        assert!(history.files.len() > 3, "several segments");
        let newest = history.newest();
        let mut parts = BTreeSet::new();
        for (path, bytes) in &history.files {
            for offset in 0..bytes.len() {
                let disk = disk_of(&history.files);
                assert!(disk.flip(path, offset, offset as u32 % 8));
                let (versions, damage, clean) = start(&disk);
                parts.extend(damage.iter().map(|damage| format!("{:?}", damage.part)));
                assert!(is_closed || !clean);
                check(&history, path, offset, &documents(&versions), &damage, *path == newest);
                // Commit records of sealed segments are not needed at a start, which does not read them.
                let disk = disk_of(&history.files);
                disk.flip(path, offset, offset as u32 % 8);
                let verified = verify(&disk, Path::new(DIRECTORY), &mut Buffer::new(4096)).unwrap();
                let is_torn = *path == newest && verified.torn_bytes > 0;
                assert!(!verified.damage.is_empty() || is_torn, "not named: {} at {offset}", path.display());
                assert!(verified.damage.iter().all(|damage| damage.path == *path), "{:?}", verified.damage);
                if verified.damage.iter().all(|found| found.part != Part::Commit) {
                    assert!(!damage.is_empty() || is_torn, "not named: {} at {offset}", path.display());
                }
            }
        }
        let all = [Part::Header, Part::Run, Part::Record, Part::Commit, Part::Footer, Part::Manifest];
        assert_eq!(parts, all.iter().map(|part| format!("{part:?}")).collect());
    }
}

#[test]
fn a_damaged_segment_is_not_written_to_and_the_others_go_on() {
    let history = history(false);
    let newest = history.newest();
    let disk = disk_of(&history.files);
    assert!(disk.flip(&newest, 150, 3));
    let before = disk.read(&newest).unwrap();
    let mut damage = Vec::new();
    for round in 0..2 {
        let opened =
            journal::log::Shard::open(disk.clone(), Path::new(DIRECTORY), IDENTITY, SMALL).expect("opened");
        replay(&opened, &mut |found| damage.push(found.clone()));
        assert_eq!(damage.len(), round + 1, "the same damage each time");
        let mut engine = Engine {
            shard: opened.shard,
            buffer: journal::log::Buffer::new(4096),
            durable: BTreeMap::new(),
            dirty: BTreeMap::new(),
            next_seqno: [1000; 16],
            at_rest: false,
            purge_before: 0,
        };
        for _ in 0..20 {
            engine.set(3, b"new", Some(&[1; 100]));
            engine.flush().unwrap();
        }
        engine.check_reads();
        engine.shard.close().unwrap();
    }
    assert_eq!(disk.read(&newest).unwrap(), before);
}

#[test]
fn a_file_cut_at_any_place_is_a_torn_tail_or_named() {
    let history = history(false);
    let newest = history.newest();
    for (path, bytes) in &history.files {
        for length in 0..bytes.len() {
            let disk = disk_of(&history.files);
            let file = disk.open(path, Open::ReadWrite).unwrap();
            file.set_length(length as u64).unwrap();
            file.sync().unwrap();
            let (versions, damage, _) = start(&disk);
            let found = documents(&versions);
            let context = format!("{} cut to {length}: {damage:?}", path.display());
            for (key, value) in &found {
                assert_eq!(history.all.get(key), Some(value), "{context}");
            }
            assert!(*path == newest || !damage.is_empty(), "not named: {context}");
        }
    }
}

#[test]
fn reads_tell_what_is_damaged() {
    let history = history(false);
    let disk = disk_of(&history.files);
    let engine = recover(&disk, SMALL);
    let reader = engine.shard.reader();
    let bytes = history.files.get(&segment(1)).unwrap();
    for offset in 72..bytes.len() {
        disk.flip(&segment(1), offset, 2);
        let mut buffer = Vec::new();
        for ((vbucket, key), version) in &engine.durable {
            match reader.read(*vbucket, version.seqno, &mut buffer) {
                Ok(Some(record)) => {
                    assert_eq!((record.key, Some(record.value)), (&key[..], version.value.as_deref()));
                }
                Ok(None) => panic!("{key:?} is not found, offset {offset}"),
                Err(error) => assert!(error.to_string().contains("0000000001.segment"), "{error}"),
            }
        }
        disk.flip(&segment(1), offset, 2);
    }
    engine.check_reads();
}

/// Only the next segment's header knows the last batch of a segment that was left: it must not be compacted away.
#[test]
fn the_end_of_a_segment_that_was_left_stays_known() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    for key in [b"a", b"b"] {
        engine.set(1, key, Some(b"kept"));
        engine.flush().unwrap();
    }
    let end = disk.read(&segment(1)).unwrap().iter().rposition(|byte| *byte != 0).unwrap() + 1;
    engine.set(1, b"c", Some(b"in the next segment"));
    disk.inject(disk.operations() + 1, Fault::Io);
    engine.flush().unwrap_err();
    engine.flush().unwrap();
    // The commit record of the last batch that counts: a header of 64 bytes and one entry.
    assert!(disk.flip(&segment(1), end - 50, 1));
    assert!(disk.flip(&segment(1), end - 64 - 28 - 3, 1), "and the record before it");
    for _ in 0..2 {
        let (_, damage, _) = start(&disk);
        assert!(damage.iter().any(|found| found.spoils == Spoils::VBucket(1)), "{damage:?}");
        let directory = Path::new(DIRECTORY);
        let opened = journal::log::Shard::open(disk.clone(), directory, IDENTITY, SMALL).expect("opened");
        engine.shard = opened.shard;
        for round in 0..60 {
            engine.set(2, b"more", Some(&[round; 100]));
            engine.flush().unwrap();
            engine.compact_step(1 << 20).unwrap();
        }
        while engine.compact_step(1 << 20).unwrap() != Step::Idle {}
        assert!(disk.read(&segment(2)).is_some());
    }
}

/// A damaged segment is not cut, but what is served from its end must survive a power failure.
#[test]
fn the_end_of_a_damaged_segment_is_made_durable_like_any_other() {
    let disk = SimulatedDisk::new();
    let mut engine = recover(&disk, SMALL);
    for key in [b"a", b"b"] {
        engine.set(1, key, Some(b"kept"));
        engine.flush().unwrap();
    }
    engine.set(2, b"c", Some(b"written, and the sync fails"));
    disk.inject(disk.operations() + 1, Fault::Io);
    engine.flush().unwrap_err();
    drop(engine);
    disk.crash(Survival::Cached);
    assert!(disk.flip(&segment(1), 72 + 40 + 44, 1), "in the first record");
    let (found, damage, _) = start(&disk);
    assert!(found.contains_key(&(2, b"c".to_vec())));
    assert_eq!(damage.len(), 1, "{damage:?}");
    disk.crash(Survival::Synced);
    assert_eq!(start(&disk), (found, damage, false));
}
