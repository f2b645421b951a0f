//! Whatever happens to one file of a journal, or of a copy of it: what was acknowledged is there, or its vBucket is
//! named as not whole. Never an older version, and never a deleted document.
//!
//! A trial takes a history at random, damages a file at random, and starts. Histories end with a clean stop or with a
//! kill, have segments that were left after a failed write, or are copies. `JOURNAL_FAULTS=1000000` does more trials,
//! `JOURNAL_FAULT=N` the one that a failure names.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod log;

use journal::log::{Buffer, Damage, Options, Record, Shard, Spoils, verify_with_progress};
use journal::{Disk, Fault, RealDisk, SimulatedDisk};
use log::model::{Documents, Random, VBUCKETS, documents, recover, replay};
use log::{DIRECTORY, IDENTITY, OPTIONS, commit, document};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const SMALL: Options = Options { segment_bytes: 1500, ..OPTIONS };
const COPY: &str = "/copy";

/// Contents by name.
type Files = BTreeMap<String, Vec<u8>>;

struct History {
    name: String,
    files: Files,
    /// What each file held earlier.
    older: Vec<Files>,
    documents: Documents,
}

fn files(disk: &SimulatedDisk, directory: &str) -> Files {
    let is_there = |path: &PathBuf| path.parent() == Some(Path::new(directory));
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let names = disk.names().into_iter().filter(is_there);
    names.filter_map(|path| Some((name(&path), disk.read(&path)?))).collect()
}

/// How a history ends.
#[derive(Debug, Clone, Copy)]
enum Ending {
    Killed,
    Closed,
    Copied,
}

fn history(seed: u64, ending: Ending) -> History {
    let (disk, mut random) = (SimulatedDisk::new(), Random(seed * 7919 + 1));
    let mut engine = recover(&disk, SMALL);
    let mut older = Vec::new();
    let rounds = 12 + random.below(30);
    for round in 0..rounds {
        for _ in 0..=random.below(4) {
            let key = format!("key{}", random.below(14)).into_bytes();
            let value = vec![round as u8; random.below(if round % 9 == 8 { 5000 } else { 120 }) as usize];
            let value = (random.below(5) > 0).then_some(&value[..]);
            engine.set(random.below(u64::from(VBUCKETS)) as u16, &key, value);
        }
        // Some segments are left: a write or a sync fails, and the batch is written again.
        if random.below(10) == 0 {
            disk.inject(disk.operations() + random.below(2), Fault::Io);
        }
        if engine.flush().is_err() {
            engine.flush().unwrap();
        }
        engine.at_rest = random.below(4) == 0;
        let _ = engine.compact_step(600).unwrap();
        if random.below(6) == 0 {
            engine.shard.close().unwrap();
            older.push(files(&disk, DIRECTORY));
        }
        if random.below(8) == 0 {
            drop(engine);
            engine = recover(&disk, SMALL);
        }
        if random.below(5) == 0 {
            older.push(files(&disk, DIRECTORY));
        }
    }
    let directory = match ending {
        Ending::Killed => DIRECTORY,
        Ending::Closed => {
            engine.shard.close().unwrap();
            DIRECTORY
        }
        Ending::Copied => {
            assert!(engine.shard.reader().copy(Path::new(COPY), 0, &mut Buffer::new(4096)).unwrap());
            COPY
        }
    };
    let name = format!("history {seed}, {ending:?}");
    History { name, files: files(&disk, directory), older, documents: documents(&engine.durable) }
}

fn histories() -> Vec<History> {
    let endings = [Ending::Killed, Ending::Closed, Ending::Copied];
    (1..=24).flat_map(|seed| endings.map(|ending| history(seed, ending))).collect()
}

fn pick<'a, T>(random: &mut Random, list: &'a [T]) -> &'a T {
    &list[random.below(list.len() as u64) as usize]
}

/// A place in a file of this length.
fn place(random: &mut Random, length: usize) -> usize {
    random.below(length as u64 + 1) as usize
}

fn garbage(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length).map(|_| random.below(256) as u8).collect()
}

/// Does something to one of the files, or exchanges two. Returns what.
fn damage(history: &History, random: &mut Random, files: &mut Files) -> String {
    let names: Vec<String> = files.keys().cloned().collect();
    let name = pick(random, &names).clone();
    let other = pick(random, &names).clone();
    let bytes = files[&name].clone();
    let (a, b) = (place(random, bytes.len()), place(random, bytes.len()));
    let (a, b) = if random.below(4) == 0 { (a, bytes.len()) } else { (a.min(b), a.max(b)) };
    let put = |files: &mut Files, parts: &[&[u8]]| drop(files.insert(name.clone(), parts.concat()));
    let what = match random.below(14) {
        0 | 1 => {
            put(files, &[&bytes[..a]]);
            format!("cut to {a}")
        }
        2 => {
            put(files, &[&bytes[..a], &vec![0; b - a], &bytes[b..]]);
            format!("zeroed from {a} to {b}")
        }
        3 => {
            put(files, &[&bytes[..a], &garbage(random, b - a), &bytes[b..]]);
            format!("overwritten from {a} to {b}")
        }
        4 => {
            put(files, &[&bytes[..a], &bytes[b..]]);
            format!("without {a} to {b}")
        }
        5 => {
            put(files, &[&bytes[..b], &bytes[a..]]);
            format!("{a} to {b} doubled")
        }
        6 => {
            put(files, &[&bytes, &bytes]);
            "doubled".to_owned()
        }
        7 => {
            let tail = place(random, 200);
            put(files, &[&bytes[..a], &garbage(random, tail)]);
            format!("from {a} on {tail} bytes of garbage")
        }
        8 => {
            let middle = a + (b - a) / 2;
            put(files, &[&bytes[..a], &bytes[middle..b], &bytes[a..middle], &bytes[b..]]);
            format!("halves of {a} to {b} swapped")
        }
        9 => {
            let theirs = files[&other].clone();
            put(files, &[&theirs]);
            files.insert(other.clone(), bytes);
            format!("swapped with {other}")
        }
        10 => {
            let theirs = files[&other].clone();
            // Over its beginning, or instead of it.
            let rest = if random.below(2) == 0 { theirs.len().min(bytes.len()) } else { bytes.len() };
            put(files, &[&theirs, &bytes[rest..]]);
            format!("overwritten by {other}")
        }
        11 => {
            files.remove(&name);
            "removed".to_owned()
        }
        12 => {
            let older = (!history.older.is_empty()).then(|| pick(random, &history.older));
            let Some(older) = older.and_then(|older| older.get(&name)) else { return "nothing".to_owned() };
            // Put back whole, or over the present one, whose end stays.
            let rest = if random.below(3) == 0 { older.len().min(bytes.len()) } else { bytes.len() };
            put(files, &[older, &bytes[rest..]]);
            "replaced by an older one".to_owned()
        }
        _ => {
            let at = a.min(bytes.len().saturating_sub(1));
            let mut flipped = bytes;
            if let Some(byte) = flipped.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
            put(files, &[&flipped]);
            format!("a bit flipped at {at}")
        }
    };
    format!("{name} {what}")
}

fn spoiled(damage: &[Damage]) -> BTreeSet<u16> {
    let of = |damage: &Damage| match &damage.spoils {
        Spoils::Nothing => Vec::new(),
        Spoils::VBucket(vbucket) => vec![*vbucket],
        Spoils::VBuckets(vbuckets) => vbuckets.to_vec(),
        Spoils::Everything => (0..IDENTITY.vbuckets).collect(),
    };
    damage.iter().flat_map(of).collect()
}

/// A start, and what it serves.
struct Served<D: Disk> {
    shard: Shard<D>,
    documents: Documents,
    spoiled: BTreeSet<u16>,
}

/// `None`: the journal is refused as a whole, with an error that names the file.
fn serve<D: Disk>(disk: &D, directory: &Path) -> Option<Served<D>> {
    let mut buffer = Buffer::new(4096);
    let verified = verify_with_progress(disk, directory, &mut buffer, true, &mut |_| {});
    let opened = match Shard::open_known(disk.clone(), directory, IDENTITY, SMALL, true) {
        Ok(opened) => opened,
        Err(error) => {
            assert!(error.to_string().contains(directory.to_str().unwrap()), "{error}");
            return None;
        }
    };
    let mut damage = opened.damage.clone();
    let versions = replay(&opened, &mut |found| damage.push(found.clone()));
    let spoiled = spoiled(&damage);
    let verified = verified.expect("verified").damage;
    let told = self::spoiled(&verified);
    assert!(spoiled.is_subset(&told), "a start: {damage:?}\nverify: {verified:?}");
    Some(Served { shard: opened.shard, documents: documents(&versions), spoiled })
}

/// Compares the documents of all vBuckets but these.
fn assert_same(found: &Documents, expected: &Documents, spoiled: &BTreeSet<u16>) {
    let keys: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    for key in keys.into_iter().filter(|key| !spoiled.contains(&key.0)) {
        let of =
            |documents: &Documents| documents.get(key).map(|value| (value.len(), value.first().copied()));
        assert_eq!(of(found), of(expected), "{key:?}, found and expected; spoiled: {spoiled:?}");
    }
}

/// Returns true if something was lost, and said so.
fn check<D: Disk>(history: &History, disk: &D, directory: &Path, lives_on: bool) -> bool {
    let Some(mut served) = serve(disk, directory) else { return true };
    let lost = &served.spoiled;
    assert_same(&served.documents, &history.documents, lost);
    if lives_on {
        // The node goes on, is killed and started again: what was lost is still known to be.
        let mut expected = history.documents.clone();
        for round in 0..6_u8 {
            let (key, value) = (format!("new{}", round % 4).into_bytes(), vec![round; 400]);
            let vbucket = u16::from(round) % VBUCKETS;
            let record: Record<'_> = document(1_000_000 + u64::from(round), &key, &value);
            if commit(&mut served.shard, &mut Buffer::new(4096), &[(vbucket, record)]).is_ok() {
                expected.insert((vbucket, key), value);
            }
        }
        let before = served.spoiled.clone();
        drop(served);
        let Some(again) = serve(disk, directory) else { return true };
        assert!(before.is_subset(&again.spoiled), "forgotten: {before:?}, now {:?}", again.spoiled);
        assert_same(&again.documents, &expected, &again.spoiled);
        return !again.spoiled.is_empty();
    }
    !lost.is_empty()
}

/// Runs these trials. `check` lays the files down and checks them.
fn run(trials: std::ops::Range<u64>, mut check: impl FnMut(&History, &Files, bool) -> bool) -> u64 {
    let histories = histories();
    for history in &histories {
        assert!(!check(history, &history.files, false), "{}, as it is", history.name);
    }
    let mut lost = 0;
    for trial in trials {
        let mut random = Random(trial.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // The first numbers of neighbouring seeds are alike.
        for _ in 0..4 {
            random.below(2);
        }
        let history = pick(&mut random, &histories);
        let mut files = history.files.clone();
        let what = damage(history, &mut random, &mut files);
        let lives_on = random.below(8) == 0;
        let checked =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(history, &files, lives_on)));
        match checked {
            Ok(is_lost) => lost += u64::from(is_lost),
            Err(_) => panic!("JOURNAL_FAULT={trial}: {}, {what}, goes on: {lives_on}", history.name),
        }
    }
    lost
}

fn on_simulated_disk(history: &History, files: &Files, lives_on: bool) -> bool {
    let disk = SimulatedDisk::new();
    for (name, bytes) in files {
        disk.put(&Path::new(DIRECTORY).join(name), bytes);
    }
    check(history, &disk, Path::new(DIRECTORY), lives_on)
}

#[test]
fn what_was_acknowledged_is_there_or_its_vbucket_is_named() {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let trials = match number("JOURNAL_FAULT") {
        Some(trial) => trial..trial + 1,
        None => 0..number("JOURNAL_FAULTS").unwrap_or(100_000),
    };
    let count = trials.end - trials.start;
    let lost = run(trials, on_simulated_disk);
    // Otherwise the trials would show nothing.
    assert!(count == 1 || lost > count / 4 && lost < count * 3 / 4, "{lost} of {count} lost something");
}

#[test]
fn the_same_holds_of_real_files() {
    let base = std::env::temp_dir().join(format!("dormouse-log-faults-{}", std::process::id()));
    let (disk, mut trial) = (RealDisk::default(), 0);
    let lost = run(1_000_000..1_002_000, |history, files, lives_on| {
        trial += 1;
        let directory = base.join(trial.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        for (name, bytes) in files {
            std::fs::write(directory.join(name), bytes).unwrap();
        }
        let is_lost = check(history, &disk, &directory, lives_on);
        std::fs::remove_dir_all(&directory).unwrap();
        is_lost
    });
    std::fs::remove_dir_all(&base).unwrap();
    assert!(lost > 500, "{lost} of 2000 lost something");
}
