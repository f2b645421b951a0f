//! A segment that is missing, duplicated, cut off or misnamed is damage, and while it is, no file is removed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{
    Buffer, Damage, Identity, Opened, Options, Part, Shard, Spoils, Step, verify, verify_with_progress,
};
use journal::{Disk, Open, SimulatedDisk};
use log::model::{Engine, Random, documents, recover, replay};
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

/// Several segments. Each but the last has documents of a single vBucket: segment N of vBucket N modulo 4. The newest
/// is not full.
fn keys(number: u16) -> u64 {
    if number == 6 { 2 } else { 3 }
}

fn written(disk: &SimulatedDisk) -> Engine {
    let mut engine = recover(disk, SMALL);
    for number in 1..=6 {
        for key in 0..keys(number) {
            engine.set(number % 4, format!("key{number}.{key}").as_bytes(), Some(&[number as u8; 300]));
            engine.flush().unwrap();
        }
    }
    assert!(disk.names().contains(&segment(6)) && !disk.names().contains(&segment(7)));
    engine
}

fn history() -> (SimulatedDisk, Engine) {
    let disk = SimulatedDisk::new();
    let engine = written(&disk);
    (disk, engine)
}

fn closed() -> SimulatedDisk {
    let (disk, mut engine) = history();
    engine.shard.close().unwrap();
    disk
}

fn files(disk: &SimulatedDisk) -> BTreeMap<PathBuf, Vec<u8>> {
    let names = disk.names().into_iter();
    names.filter_map(|name| Some((name.clone(), disk.read(&name)?))).collect()
}

fn open_begun(disk: &SimulatedDisk) -> Opened<SimulatedDisk> {
    Shard::open_known(disk.clone(), Path::new(DIRECTORY), IDENTITY, SMALL, true).expect("opened")
}

/// Opens it like a server that knows it was written to, lets it work, and checks that no file is gone and that of the
/// existing ones only the newest has changed. Returns what a start and `verify` report, which is the same.
fn damage_of(disk: &SimulatedDisk) -> Vec<Damage> {
    let before = files(disk);
    let mut buffer = Buffer::new(4096);
    let mut report = |_: &_| {};
    let verified =
        verify_with_progress(disk, Path::new(DIRECTORY), &mut buffer, true, &mut report).unwrap().damage;
    let mut opened = open_begun(disk);
    assert_eq!(opened.damage, verified);
    assert!(!opened.clean);
    let mut damage = opened.damage.clone();
    let versions = replay(&opened, &mut |found| damage.push(found.clone()));
    let spoiled: BTreeSet<u16> = damage.iter().flat_map(spoiled_by).collect();
    for number in 1..=6 {
        for key in 0..keys(number) {
            let key = (number % 4, format!("key{number}.{key}").into_bytes());
            let is_there = documents(&versions).contains_key(&key);
            assert!(is_there || spoiled.contains(&key.0), "{key:?} is lost: {damage:?}");
        }
    }
    for _ in 0..20 {
        let judge = &mut |_: u16, _: &journal::log::Record<'_>| journal::log::Verdict::Dead;
        let aim = journal::log::Aim { live_bytes: 0, at_rest: true };
        let step = opened.shard.compact_step(&mut buffer, 1 << 20, judge, aim, u32::MAX);
        assert!(matches!(step, Ok(Step::Idle)), "{step:?}");
    }
    opened.shard.close().unwrap();
    drop(opened);
    let after = files(disk);
    for path in before.keys() {
        assert!(after.contains_key(path), "{} is gone", path.display());
    }
    assert_eq!(open_begun(disk).damage, verified, "and the same the next time");
    damage
}

fn spoiled_by(damage: &Damage) -> Vec<u16> {
    match &damage.spoils {
        Spoils::Nothing => Vec::new(),
        Spoils::VBucket(vbucket) => vec![*vbucket],
        Spoils::VBuckets(vbuckets) => vbuckets.to_vec(),
        Spoils::Everything => (0..IDENTITY.vbuckets).collect(),
    }
}

#[test]
fn a_segment_that_is_missing_is_named_with_its_vbuckets() {
    for number in 1..=6 {
        let disk = closed();
        disk.remove(&segment(number)).unwrap();
        let damage = damage_of(&disk);
        assert_eq!((damage.len(), &damage[0].path, damage[0].part), (1, &segment(number), Part::Missing));
        assert_eq!(spoiled_by(&damage[0]), [(number % 4) as u16]);
        let text = damage[0].to_string();
        let told = format!("vBuckets {}", number % 4);
        assert!(text.contains("segment: the file is missing") && text.contains(&told), "{text}");
    }
}

#[test]
fn all_segments_missing_is_damage_and_so_is_a_directory_without_its_manifest() {
    let disk = closed();
    (1..=6).for_each(|number| disk.remove(&segment(number)).unwrap());
    assert_eq!(damage_of(&disk).len(), 6);
    let disk = closed();
    disk.remove(&manifest()).unwrap();
    let damage = damage_of(&disk);
    assert_eq!((damage.len(), &damage[0].path, damage[0].part), (1, &manifest(), Part::Missing));
    assert_eq!(verify(&disk, Path::new(DIRECTORY), &mut Buffer::new(4096)).unwrap().damage, damage);
    // Everything is gone: that is noticed only if it is known that it was written to.
    let damage = damage_of(&SimulatedDisk::new());
    assert_eq!((damage.len(), damage[0].part, &damage[0].spoils), (1, Part::Missing, &Spoils::Everything));
    assert!(
        verify(&SimulatedDisk::new(), Path::new(DIRECTORY), &mut Buffer::new(4096))
            .unwrap()
            .damage
            .is_empty()
    );
}

fn copy(disk: &SimulatedDisk, from: &Path, to: &Path) {
    let bytes = disk.read(from).unwrap();
    disk.put(to, &bytes);
}

#[test]
fn segments_under_each_others_names_are_damage() {
    for (one, other) in [(1, 2), (2, 5), (5, 6), (1, 6)] {
        let disk = closed();
        let (first, second) = (disk.read(&segment(one)).unwrap(), disk.read(&segment(other)).unwrap());
        disk.put(&segment(one), &second);
        disk.put(&segment(other), &first);
        let damage = damage_of(&disk);
        let found: Vec<_> = damage.iter().map(|damage| (damage.path.clone(), damage.part)).collect();
        let expected = [(segment(one), Part::Misnamed(other)), (segment(other), Part::Misnamed(one))];
        assert_eq!(found, expected);
    }
}

#[test]
fn a_segment_copied_over_another_is_damage_and_a_copy_beside_it_loses_nothing() {
    for (from, to) in [(1, 2), (3, 6), (6, 1)] {
        let disk = closed();
        copy(&disk, &segment(from), &segment(to));
        let damage = damage_of(&disk);
        assert_eq!((damage.len(), &damage[0].path, damage[0].part), (1, &segment(to), Part::Misnamed(from)));
    }
    let disk = closed();
    copy(&disk, &segment(3), &segment(9));
    let damage = damage_of(&disk);
    assert_eq!((damage.len(), damage[0].part, &damage[0].spoils), (1, Part::Misnamed(3), &Spoils::Nothing));
    // The next segment does not take its name, and nothing hides what is there.
    let mut engine = recover_with_damage(&disk);
    engine.set(3, b"new", Some(b"value"));
    engine.flush().unwrap();
    assert_eq!(disk.read(&segment(9)), disk.read(&segment(3)));
}

fn recover_with_damage(disk: &SimulatedDisk) -> Engine {
    let mut engine = recover(&SimulatedDisk::new(), SMALL);
    let opened = open_begun(disk);
    engine.durable = replay(&opened, &mut |_| {});
    engine.shard = opened.shard;
    engine.next_seqno = [1000; 16];
    engine
}

/// The same number, and intact, but of another history of the same shard.
#[test]
fn a_segment_of_another_history_under_the_same_name_is_damage() {
    let other = closed().read(&segment(2)).unwrap();
    let disk = SimulatedDisk::new();
    disk.random().unwrap();
    let mut engine = written(&disk);
    engine.shard.close().unwrap();
    disk.put(&segment(2), &other);
    let damage = damage_of(&disk);
    assert_eq!((damage.len(), &damage[0].path, damage[0].part), (1, &segment(2), Part::Replaced));
}

#[test]
fn what_is_put_right_is_whole_again_whatever_was_written_meanwhile() {
    let disk = closed();
    let taken = disk.read(&segment(2)).unwrap();
    disk.remove(&segment(2)).unwrap();
    let mut engine = recover_with_damage(&disk);
    for round in 0..12 {
        engine.set(3, b"meanwhile", Some(&[round; 300]));
        engine.flush().unwrap();
        engine.compact_step(1 << 20).unwrap();
    }
    engine.shard.close().unwrap();
    disk.put(&segment(2), &taken);
    let engine = recover(&disk, SMALL);
    let found = documents(&engine.durable);
    assert_eq!(found.len(), 18);
    assert_eq!(found.get(&(3, b"meanwhile".to_vec())), Some(&vec![11; 300]));
}

/// After a clean stop the manifest records where the newest segment ends.
#[test]
fn a_newest_segment_that_is_cut_after_a_clean_stop_is_damage() {
    let whole = closed();
    let bytes = whole.read(&segment(6)).unwrap();
    let mark_bytes = 64;
    for length in 0..bytes.len() - mark_bytes {
        let disk = closed();
        let file = disk.open(&segment(6), Open::ReadWrite).unwrap();
        journal::File::set_length(&file, length as u64).unwrap();
        let damage = damage_of_cut(&disk);
        assert!(damage.iter().any(|damage| damage.path == segment(6)), "cut to {length}: {damage:?}");
    }
    // If only the mark of the clean end is missing, nothing is lost.
    let file = whole.open(&segment(6), Open::ReadWrite).unwrap();
    journal::File::set_length(&file, (bytes.len() - mark_bytes) as u64).unwrap();
    assert_eq!(documents(&recover(&whole, SMALL).durable).len(), 17);
}

fn damage_of_cut(disk: &SimulatedDisk) -> Vec<Damage> {
    let opened = open_begun(disk);
    let mut damage = opened.damage.clone();
    replay(&opened, &mut |found| damage.push(found.clone()));
    damage
}

/// A manifest of an earlier moment names what was compacted away, or does not name what was written since.
#[test]
fn a_manifest_of_another_time_is_damage() {
    let (disk, mut engine) = history();
    let old = disk.read(&manifest()).unwrap();
    for round in 0..12 {
        engine.set(2, b"more", Some(&[round; 300]));
        engine.flush().unwrap();
    }
    engine.shard.close().unwrap();
    disk.put(&manifest(), &old);
    let damage = damage_of_cut(&disk);
    assert!(damage.iter().any(|damage| damage.part == Part::Unnamed), "{damage:?}");
    assert!(open_begun(&disk).shard.begin().is_err(), "nothing is written to it");
}

#[test]
fn a_backup_without_one_of_its_files_is_damaged() {
    let (disk, engine) = history();
    let copied = Path::new("/copy");
    let mut buffer = Buffer::new(4096);
    assert!(engine.shard.reader().copy(copied, 0, &mut buffer).unwrap());
    let whole = verify(&disk, copied, &mut buffer).unwrap();
    assert!(whole.damage.is_empty() && whole.is_ended && !whole.is_clean, "{whole:?}");
    let names: Vec<PathBuf> = disk
        .names()
        .into_iter()
        .filter(|name| name.starts_with(copied) && disk.read(name).is_some())
        // The manifest says where a copy ends: it can do without.
        .filter(|name| name.file_name().is_some_and(|name| name != "SYNCED"))
        .collect();
    assert_eq!(names.len(), 7, "six segments and the manifest");
    for name in names {
        let bytes = disk.read(&name).unwrap();
        disk.remove(&name).unwrap();
        assert!(!verify(&disk, copied, &mut buffer).unwrap().damage.is_empty(), "{}", name.display());
        // Cut short while it was copied elsewhere.
        disk.put(&name, &bytes[..bytes.len() - 20]);
        assert!(!verify(&disk, copied, &mut buffer).unwrap().damage.is_empty(), "{}", name.display());
        disk.put(&name, &bytes);
        assert_eq!(verify(&disk, copied, &mut buffer).unwrap(), whole);
    }
}

#[test]
fn a_manifest_of_another_shard_is_not_taken() {
    let disk = closed();
    let other = Identity { shard: 1, ..IDENTITY };
    let result = Shard::open(disk, Path::new(DIRECTORY), other, SMALL);
    assert!(matches!(result, Err(journal::log::OpenError::Foreign { path }) if path == manifest()));
}

/// Random choices of files to lose: every loss is reported.
#[test]
fn any_files_that_are_lost_are_told_of() {
    let mut random = Random(5);
    for _ in 0..60 {
        let disk = closed();
        let lost: BTreeSet<u64> = (0..=random.below(3)).map(|_| 1 + random.below(6)).collect();
        lost.iter().for_each(|number| disk.remove(&segment(*number)).unwrap());
        let damage = damage_of(&disk);
        let named: BTreeSet<PathBuf> = damage.iter().map(|damage| damage.path.clone()).collect();
        assert_eq!(named, lost.iter().map(|number| segment(*number)).collect());
    }
}

/// Only the next segment knew the last batch of one, and it was compacted away.
#[test]
fn a_sealed_segment_that_is_cut_is_damage_also_without_the_next_one() {
    let (disk, mut engine) = history();
    for round in 0..3 {
        for key in 0..keys(3) {
            engine.set(3, format!("key3.{key}").as_bytes(), Some(&[round; 300]));
            engine.flush().unwrap();
        }
    }
    for _ in 0..100 {
        engine.compact_step(1 << 20).unwrap();
    }
    engine.shard.close().unwrap();
    let whole = files(&disk);
    assert!(!whole.contains_key(&segment(3)), "{:?}", whole.keys());
    let bytes = &whole[&segment(2)];
    for length in 0..bytes.len() {
        let disk = SimulatedDisk::new();
        for (path, bytes) in &whole {
            disk.put(path, bytes);
        }
        disk.put(&segment(2), &bytes[..length]);
        let opened = open_begun(&disk);
        let mut damage = opened.damage.clone();
        let found = documents(&replay(&opened, &mut |found| damage.push(found.clone())));
        let is_whole = (0..keys(2)).all(|key| found.contains_key(&(2, format!("key2.{key}").into_bytes())));
        let is_reported = damage.iter().any(|damage| spoiled_by(damage).contains(&2));
        assert!(is_whole || is_reported, "cut to {length}: {damage:?}");
        assert!(damage.iter().any(|damage| damage.path == segment(2)), "cut to {length}");
    }
}
