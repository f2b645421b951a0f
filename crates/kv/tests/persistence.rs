//! What a persistent bucket does when the disk is full, damaged or slow to be read, and when memory is short.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod numbers;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use journal::{AnyDisk, Fault, SimulatedDisk, Survival};
use kv::defragmenter::Demand;
use kv::node::BucketError;
use kv::persistence::{self, FETCHERS, FLUSHERS, Fetcher, Flusher, PersistenceFigures, Trouble};
use kv::{
    Bucket, BucketSettings, Expiry, Key, KvError, Limits, Meter, Mutated, Mutation, Node, NodeContext,
    NodeSettings, Now, PersistenceSettings, Place, Store, StoreKind, Unavailable, Value, VbId,
};
use numbers::numbers;

const THREADS: usize = 2;

struct Home {
    node: Arc<Node>,
    bucket: Arc<Bucket>,
    cx: NodeContext,
    now: Now,
}

impl Home {
    fn open(disk: &SimulatedDisk, seed: u64, vbuckets: u16) -> Self {
        Self::with_shards(disk, seed, vbuckets, 1)
    }

    fn with_shards(disk: &SimulatedDisk, seed: u64, vbuckets: u16, shards: u16) -> Self {
        let settings =
            NodeSettings { threads: THREADS, shutdown_command: false, version: "test".into(), seed };
        let node = Node::new(settings, Limits::default());
        let persistence = PersistenceSettings {
            segment_bytes: 1 << 20,
            shards,
            flush_interval_ms: 0,
            ..PersistenceSettings::default()
        };
        let settings =
            BucketSettings { vbuckets, memory_bytes: 1 << 30, persistence, ..BucketSettings::default() };
        let disk = AnyDisk::Simulated(disk.clone());
        let bucket = node.open_bucket("b", settings, disk, Path::new("/b")).unwrap();
        let mut cx = NodeContext::new(Arc::clone(&node), 0);
        let now = Now { unix_s: 1_700_000_000, unix_ns: 1_700_000_000_000_000_000, mono_us: 1_000_000 };
        cx.now = now;
        Self { node, bucket, cx, now }
    }

    fn turn(&mut self) {
        while kv::persistence::load_next(&mut self.cx, &mut journal::log::Buffer::new(64 << 10)) {}
        for index in 0..FLUSHERS {
            self.turn_of(index);
        }
    }

    fn turn_of(&mut self, flusher: usize) {
        self.now.mono_us += 10_000_000;
        let now = self.now;
        Flusher::new(flusher, 64 << 10).turn(&mut self.cx, &mut || now);
    }

    fn figures(&mut self) -> PersistenceFigures {
        self.bucket.persistence_figures(&mut self.cx).unwrap()
    }

    fn place(&self, key: &str) -> Place {
        self.bucket.locate(Key::plain(key.as_bytes()))
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Result<Mutated, KvError> {
        set(&self.bucket, &mut self.cx, key, value)
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, KvError> {
        let at = self.place(key);
        let seen = self.bucket.read(&mut self.cx, Key::plain(key.as_bytes()), at, |document| {
            document.map(|document| document.value().to_vec())
        });
        seen.map_err(KvError::from)
    }
}

fn set(bucket: &Bucket, cx: &mut NodeContext, key: &str, value: &[u8]) -> Result<Mutated, KvError> {
    set_until(bucket, cx, key, value, 0)
}

fn set_until(
    bucket: &Bucket,
    cx: &mut NodeContext,
    key: &str,
    value: &[u8],
    expiry_s: u32,
) -> Result<Mutated, KvError> {
    let key = Key::plain(key.as_bytes());
    let value = Value::Bytes(value);
    let store = Store { flags: 0, expiry: Expiry::At(expiry_s), datatype: 0, value, new_cas: 0 };
    bucket.mutate(cx, key, bucket.locate(key), Mutation { kind: StoreKind::Set, cas: 0, store })
}

fn segments(disk: &SimulatedDisk) -> Vec<PathBuf> {
    disk.names().into_iter().filter(|name| name.extension().is_some_and(|end| end == "segment")).collect()
}

#[test]
fn a_full_disk_refuses_writers_and_serves_readers_until_there_is_space() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    home.set("before", b"value").unwrap();
    home.turn();
    disk.limit_space(Some(1));
    // Longer than the zeros that the journal has written ahead.
    let during = vec![b'd'; 30_000];
    home.set("during", &during).unwrap();
    home.turn();
    assert_eq!(home.set("after", b"value").unwrap_err(), KvError::NoSpace);
    assert_eq!(home.set("before", b"other").unwrap_err(), KvError::NoSpace, "in place, too");
    let at = home.place("before");
    let bucket = Arc::clone(&home.bucket);
    assert_eq!(bucket.remove(&mut home.cx, Key::plain(b"before"), at, 0).unwrap_err(), KvError::NoSpace);
    assert_eq!(home.get("before"), Ok(Some(b"value".to_vec())));
    let figures = bucket.persistence_figures(&mut home.cx).unwrap();
    assert!(figures.disk_full && figures.unflushed_items == 1 && figures.failures == 1);
    disk.limit_space(None);
    home.turn();
    home.set("after", b"value").unwrap();
    home.turn();
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 2, 4);
    home.turn();
    for (key, value) in [("before", &b"value"[..]), ("during", &during), ("after", b"value")] {
        assert_eq!(home.get(key), Ok(Some(value.to_vec())), "{key}");
    }
}

#[test]
fn a_shard_that_can_write_does_not_answer_for_one_that_cannot() {
    let disk = SimulatedDisk::new();
    let mut home = Home::with_shards(&disk, 1, 4, 2);
    for number in 0..20 {
        home.set(&format!("key-{number}"), b"value").unwrap();
    }
    disk.inject(disk.operations(), Fault::NoSpace);
    home.turn_of(0);
    assert!(home.figures().disk_full);
    home.turn_of(1);
    assert!(home.figures().disk_full, "the other shard has written");
    assert_eq!(home.set("key", b"value").unwrap_err(), KvError::NoSpace);
    home.turn_of(0);
    assert!(!home.figures().disk_full);
    home.set("key", b"value").unwrap();
}

#[test]
fn syncs_are_counted() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    assert_eq!((home.figures().syncs, home.figures().sync_us), (0, 0));
    home.set("key", b"value").unwrap();
    home.turn();
    assert_eq!(
        home.figures().syncs,
        7,
        "a directory, a segment in it, and the manifest twice, each with its name"
    );
    for commits in 2..5 {
        home.set("key", b"value").unwrap();
        home.turn();
        assert_eq!((home.figures().commits, home.figures().syncs), (commits, 6 + commits));
    }
}

/// Young tombstones stay, and the engine does not count them as live: there is more on disk than compaction aims at,
/// and nothing to gain.
#[test]
fn where_compaction_found_nothing_it_does_not_look_again_after_every_commit() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 1);
    let bucket = Arc::clone(&home.bucket);
    for number in 0..60_000 {
        let key = format!("key-{number}");
        home.set(&key, b"value").unwrap();
        let at = home.place(&key);
        bucket.remove(&mut home.cx, Key::plain(key.as_bytes()), at, 0).unwrap();
    }
    let (mut reads, mut quiet_turns) = (u64::MAX, 0);
    while quiet_turns < 5 {
        home.turn();
        let is_quiet = std::mem::replace(&mut reads, disk.reads()) == reads;
        quiet_turns = if is_quiet && home.figures().unflushed_items == 0 { quiet_turns + 1 } else { 0 };
    }
    assert!(home.figures().journal_bytes > 2 << 20);
    for _ in 0..10 {
        home.set("key", b"value").unwrap();
        home.turn();
    }
    assert_eq!(disk.reads() - reads, 0, "for 10 commits");
    reads = disk.reads();
    home.set("key", &[0; 200_000]).unwrap();
    home.turn();
    home.set("key", b"value").unwrap();
    home.turn();
    assert!(disk.reads() > reads, "an eighth of a segment more is superfluous");
}

#[test]
fn a_fetch_that_finds_its_record_gone_looks_whether_anybody_still_wants_it() {
    for change in ["flush_all", "overwritten"] {
        let disk = SimulatedDisk::new();
        let mut home = Home::open(&disk, 1, 1);
        let bucket = Arc::clone(&home.bucket);
        home.set("key", &[1; 1000]).unwrap();
        home.turn();
        bucket.set_budget(1);
        kv::pager::turn(&mut home.cx);
        bucket.set_budget(1 << 30);
        assert_eq!(home.figures().ejected_items, 1);
        let results: Arc<Mutex<Vec<Result<(), KvError>>>> = Arc::default();
        let told = Arc::clone(&results);
        let at = home.place("key");
        let done = Box::new(move |result| told.lock().unwrap().push(result));
        assert!(persistence::fetch(&bucket, &mut home.cx, Key::plain(b"key"), at, done).is_some());
        if change == "flush_all" {
            bucket.flush(&mut home.cx, 0).unwrap();
        } else {
            home.set("key", &[2; 1000]).unwrap();
        }
        for _ in 0..12 {
            home.set("filler", &[3; 500_000]).unwrap();
            home.turn();
        }
        while home.figures().journal_bytes > 4 << 20 {
            home.turn();
        }
        assert!(disk.read(Path::new("/b/shard-0/0000000001.segment")).is_none(), "compacted");
        let now = home.now;
        for index in 0..FETCHERS {
            Fetcher::new(index).turn(&mut home.cx, &mut || now);
        }
        assert_eq!(*results.lock().unwrap(), [Ok(())], "{change}");
        assert_eq!(home.figures().fetch_failures, 0);
    }
}

#[test]
fn a_flusher_that_did_not_start_is_called_again() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 64);
    let calls = Arc::new(AtomicU64::new(0));
    let (node, counted) = (Arc::downgrade(&home.node), Arc::clone(&calls));
    home.node.flusher_bell(0).connect(Box::new(move || {
        counted.fetch_add(1, SeqCst);
        node.upgrade().unwrap().flusher_not_started(0);
    }));
    for number in 0..100 {
        home.set(&format!("key-{number}"), b"value").unwrap();
    }
    assert!(calls.load(SeqCst) > 20, "{} calls", calls.load(SeqCst));
    home.turn();
    assert_eq!(home.figures().unflushed_items, 0);
}

#[test]
fn a_full_disk_is_no_reason_not_to_start() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    home.set("key", b"value").unwrap();
    home.turn();
    let history = home.bucket.vb_info(home.place("key").vb).unwrap().uuid;
    kv::persistence::close_journal(&home.bucket, &mut home.cx, &mut Flusher::new(0, 64 << 10)).unwrap();
    drop(home);
    disk.limit_space(Some(0));
    let mut home = Home::open(&disk, 2, 4);
    home.turn();
    assert_eq!(home.get("key"), Ok(Some(b"value".to_vec())));
    assert_eq!(home.bucket.vb_info(home.place("key").vb).unwrap().uuid, history, "the stop was a clean one");
    drop(home);
    // The mark of the clean end is still written there, but no longer true of the journal.
    disk.limit_space(None);
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 3, 4);
    home.turn();
    assert_eq!(home.get("key"), Ok(Some(b"value".to_vec())));
    assert_ne!(home.bucket.vb_info(home.place("key").vb).unwrap().uuid, history);
}

#[test]
fn after_a_failed_sync_nothing_is_announced_that_is_not_on_disk() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 1);
    home.set("first", b"1").unwrap();
    home.turn();
    assert_eq!(home.bucket.vb_info(VbId(0)).unwrap().persisted_seqno, 1);
    home.set("second", b"2").unwrap();
    // Write, then sync.
    disk.inject(disk.operations() + 1, Fault::Io);
    home.turn();
    assert_eq!(home.bucket.vb_info(VbId(0)).unwrap().persisted_seqno, 1);
    home.turn();
    assert_eq!(home.bucket.vb_info(VbId(0)).unwrap().persisted_seqno, 2);
    assert_eq!(segments(&disk).len(), 2, "the segment that failed is left alone");
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 2, 1);
    home.turn();
    assert_eq!(home.get("second"), Ok(Some(b"2".to_vec())));
}

#[test]
fn a_damaged_vbucket_is_closed_and_named_and_the_others_are_served() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    let keys: Vec<String> = (0..40).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        home.set(key, format!("value of {key}").as_bytes()).unwrap();
    }
    home.turn();
    home.set("later", b"so that the first batch is known to be synced").unwrap();
    home.turn();
    disk.crash(Survival::Synced);
    let victim = &keys[7];
    let path = segments(&disk).remove(0);
    let bytes = disk.read(&path).unwrap();
    let text = format!("value of {victim}").into_bytes();
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    assert!(disk.flip(&path, at + 3, 4));
    let mut home = Home::open(&disk, 2, 4);
    home.turn();
    let damaged = home.place(victim).vb;
    for key in &keys {
        let expected = if home.place(key).vb == damaged {
            Err(KvError::Damaged)
        } else {
            Ok(Some(format!("value of {key}").into_bytes()))
        };
        assert_eq!(home.get(key), expected, "{key}");
    }
    assert_eq!(home.set(victim, b"new").unwrap_err(), KvError::Damaged);
    let troubles = home.bucket.persistence().unwrap().take_troubles();
    let named = |trouble: &Trouble| matches!(trouble, Trouble::Damage(damage) if damage.path == path);
    assert!(troubles.iter().any(named), "{troubles:?}");
}

#[test]
fn values_go_to_disk_under_pressure_and_come_back_when_asked_for() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    for number in 0..1000 {
        home.set(&format!("key-{number}"), &[number as u8; 500]).unwrap();
    }
    let bucket = Arc::clone(&home.bucket);
    bucket.set_budget(1);
    kv::pager::turn(&mut home.cx);
    assert_eq!(
        bucket.persistence_figures(&mut home.cx).unwrap().ejected_items,
        0,
        "not before it is on disk"
    );
    assert_eq!(home.set("more", &[0; 500]).unwrap_err(), KvError::NoMemory);
    home.turn();
    home.cx.now = home.now;
    kv::pager::turn(&mut home.cx);
    let figures = bucket.persistence_figures(&mut home.cx).unwrap();
    assert_eq!((figures.ejected_items, figures.ejected_bytes), (1000, 500_000));
    bucket.set_budget(1 << 30);
    assert_eq!(home.get("key-3"), Err(KvError::NotResident));
    let at = home.place("key-3");
    let availability =
        |cx: &mut NodeContext, wants_value| bucket.check_available(cx, Key::plain(b"key-3"), at, wants_value);
    assert_eq!(availability(&mut home.cx, true), Err(Unavailable::NotResident));
    assert_eq!(availability(&mut home.cx, false), Ok(()));
    let done = Arc::new(AtomicU64::new(0));
    for number in 0..1000 {
        let (text, done) = (format!("key-{number}"), Arc::clone(&done));
        let key = Key::plain(text.as_bytes());
        let note = Box::new(move |result: Result<(), KvError>| {
            result.unwrap();
            done.fetch_add(1, SeqCst);
        });
        assert!(persistence::fetch(&bucket, &mut home.cx, key, bucket.locate(key), note).is_some());
    }
    let now = home.now;
    for index in 0..FETCHERS {
        Fetcher::new(index).turn(&mut home.cx, &mut || now);
    }
    assert_eq!(done.load(SeqCst), 1000);
    for number in 0..1000 {
        assert_eq!(home.get(&format!("key-{number}")), Ok(Some(vec![number as u8; 500])));
    }
    let figures = bucket.persistence_figures(&mut home.cx).unwrap();
    assert_eq!((figures.ejected_items, figures.ejected_bytes, figures.fetched), (0, 0, 1000));
}

#[test]
fn a_fetch_without_memory_waits_for_the_pager_and_then_tells_to_try_again() {
    let mut home = Home::open(&SimulatedDisk::new(), 1, 1);
    home.set("key", &[1; 1000]).unwrap();
    home.turn();
    let bucket = Arc::clone(&home.bucket);
    for (room_at, told) in [(3, Ok(())), (u32::MAX, Err(KvError::NotResident))] {
        home.now.mono_us += 1_000_000;
        home.cx.now = home.now;
        bucket.set_budget(1);
        kv::pager::turn(&mut home.cx);
        assert_eq!(home.figures().ejected_items, 1);
        let results: Arc<Mutex<Vec<Result<(), KvError>>>> = Arc::default();
        let note = Arc::clone(&results);
        let done = Box::new(move |result| note.lock().unwrap().push(result));
        let at = home.place("key");
        assert!(persistence::fetch(&bucket, &mut home.cx, Key::plain(b"key"), at, done).is_some());
        let mut turns = 0;
        for index in 0..FETCHERS {
            let mut fetcher = Fetcher::new(index);
            let mut now = home.now;
            while let Some(again_ms) = fetcher.turn(&mut home.cx, &mut || now) {
                now.mono_us = again_ms * 1000;
                turns += 1;
                if turns == room_at {
                    bucket.set_budget(1 << 30);
                }
                assert!(turns < 100, "it does not come to an end");
            }
        }
        assert_eq!(*results.lock().unwrap(), [told], "after {turns} turns");
    }
}

#[test]
fn values_asked_for_again_stay_in_memory_while_all_the_others_are_read_once() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 64);
    let (all, hot) = (20_000, 1000);
    // All keys, and less than half of the values.
    home.bucket.set_budget(6 << 20);
    for number in 0..all {
        home.set(&format!("key-{number}"), &[1; 500]).unwrap();
        if number % 100 == 0 {
            home.turn();
            home.cx.now = home.now;
            kv::pager::turn(&mut home.cx);
            kv::pager::defragment(&mut home.cx, &mut Demand::default());
        }
    }
    home.turn();
    let mut is_in_memory = |number: u32| {
        let text = format!("key-{number}");
        let found = home.get(&text);
        if found == Err(KvError::NotResident) {
            let key = Key::plain(text.as_bytes());
            let fetched = Box::new(|result: Result<(), KvError>| result.unwrap());
            assert!(
                persistence::fetch(&home.bucket, &mut home.cx, key, home.bucket.locate(key), fetched)
                    .is_some()
            );
            let now = home.now;
            for index in 0..FETCHERS {
                Fetcher::new(index).turn(&mut home.cx, &mut || now);
            }
            home.get(&text).unwrap().unwrap();
            home.cx.now.mono_us += 1000;
            kv::pager::turn(&mut home.cx);
            kv::pager::defragment(&mut home.cx, &mut Demand::default());
        }
        found.is_ok()
    };
    let mut others = (hot..all).cycle();
    for _ in 0..20 {
        for number in 0..hot {
            is_in_memory(number);
            is_in_memory(others.next().unwrap());
        }
    }
    let ejected = (hot..all).filter(|&number| !is_in_memory(number)).count();
    let kept = (0..hot).filter(|&number| is_in_memory(number)).count();
    assert!(ejected > 10_000, "{ejected}");
    assert!(kept >= 980, "{kept} of 1000 after {ejected} values were read from disk");
}

#[test]
fn a_deleted_bucket_leaves_nothing_and_a_new_one_of_its_name_is_empty() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    home.set("key", b"value").unwrap();
    home.turn();
    let uuid = home.bucket.uuid().to_owned();
    home.node.delete_bucket("b").unwrap();
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 2, 4);
    home.turn();
    assert_eq!(home.get("key"), Ok(None));
    assert_ne!(home.bucket.uuid(), uuid);
    assert!(segments(&disk).is_empty());
}

#[test]
fn a_bucket_that_could_not_be_deleted_is_still_there_now_and_after_the_next_start() {
    // Two operations: the new name of its identity, and the sync of that.
    for operation in 0..2 {
        let disk = SimulatedDisk::new();
        let mut home = Home::open(&disk, 1, 4);
        home.set("key", b"value").unwrap();
        home.turn();
        disk.inject(disk.operations() + operation, Fault::Io);
        assert!(matches!(home.node.delete_bucket("b"), Err(BucketError::Journal(_))));
        assert!(home.node.bucket("b").is_some());
        home.set("after", b"value").unwrap();
        home.turn();
        let persisted = home.bucket.persistence_figures(&mut home.cx).unwrap();
        assert_eq!(persisted.unflushed_items, 0);
        disk.crash(Survival::Synced);
        let mut home = Home::open(&disk, 2, 4);
        home.turn();
        assert_eq!(home.get("after"), Ok(Some(b"value".to_vec())), "operation {operation}");
        home.node.delete_bucket("b").unwrap();
        assert!(home.node.bucket("b").is_none());
        assert_eq!(home.node.delete_bucket("b").unwrap_err(), BucketError::Missing("b".into()));
    }
}

/// While the files of a bucket are opened, nobody waits for it, and nobody else takes its name.
#[test]
fn a_slow_disk_under_a_new_bucket_holds_nobody_up() {
    let (disk, slow) = (SimulatedDisk::new(), SimulatedDisk::new());
    let home = Home::open(&disk, 1, 4);
    let seen: Arc<Mutex<Vec<bool>>> = Arc::default();
    let (node, seen_by_disk) = (Arc::clone(&home.node), Arc::clone(&seen));
    slow.at_each_write(Arc::new(move || {
        let (asks, answer) = std::sync::mpsc::channel();
        let node = Arc::clone(&node);
        std::thread::spawn(move || {
            let disk = AnyDisk::Simulated(SimulatedDisk::new());
            let again = node.open_bucket("c", BucketSettings::default(), disk, Path::new("/c"));
            let is_taken = matches!(again, Err(BucketError::Exists(_)));
            let is_missing = matches!(node.delete_bucket("c"), Err(BucketError::Missing(_)));
            let _ = asks.send(node.buckets().len() == 1 && is_taken && is_missing);
        });
        let answered = answer.recv_timeout(std::time::Duration::from_secs(5)).unwrap_or(false);
        seen_by_disk.lock().unwrap().push(answered);
    }));
    let settings = BucketSettings::default();
    home.node.open_bucket("c", settings, AnyDisk::Simulated(slow), Path::new("/c")).unwrap();
    assert_eq!(*seen.lock().unwrap(), [true]);
    assert_eq!(home.node.buckets().len(), 2);
}

/// Two keys too long for the flusher's buffer, changed at every write of the disk, and some that are not too long: the
/// batch ends all the same, and contains what it says.
#[test]
fn a_batch_ends_though_its_keys_change_faster_than_the_disk_writes() {
    const CHANGES_MAX: u64 = 5000;
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 1);
    home.set("cold", b"value").unwrap();
    // For each key, the seqnos of its versions, whose values begin with the number of the change.
    let versions: Arc<Mutex<Vec<(String, u64, u64)>>> = Arc::default();
    let change = {
        let (bucket, versions) = (Arc::clone(&home.bucket), Arc::clone(&versions));
        let mut cx = NodeContext::new(Arc::clone(&home.node), 1);
        cx.now = home.now;
        let cx = Mutex::new(cx);
        move || {
            let (mut cx, mut versions) = (cx.lock().unwrap(), versions.lock().unwrap());
            let number = versions.len() as u64;
            if number > CHANGES_MAX {
                return;
            }
            for (key, bytes) in
                [("hot a", 100_000), (if number.is_multiple_of(4) { "hot b" } else { "warm" }, 70_000)]
            {
                let mut value = number.to_le_bytes().to_vec();
                value.resize(if key == "warm" { 1000 } else { bytes }, 7);
                let mutated = set(&bucket, &mut cx, key, &value).unwrap();
                versions.push((key.to_owned(), mutated.seqno, number));
            }
            cx.end_batch();
        }
    };
    change();
    disk.at_each_write(Arc::new(change));
    home.turn();
    let changes = versions.lock().unwrap().len() as u64;
    assert!(changes < CHANGES_MAX / 2, "the walk went on for {changes} changes");
    let persisted = home.bucket.vb_info(VbId(0)).unwrap().persisted_seqno;
    assert!(persisted > changes / 2, "{persisted} of {changes}");
    drop(home);
    disk.at_each_write(Arc::new(|| {}));
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 2, 1);
    home.turn();
    assert_eq!(home.get("cold"), Ok(Some(b"value".to_vec())));
    for key in ["hot a", "hot b", "warm"] {
        let versions = versions.lock().unwrap();
        let newest = versions.iter().rfind(|(of, seqno, _)| of == key && *seqno <= persisted).unwrap();
        let found = home.get(key).unwrap().unwrap();
        assert_eq!(u64::from_le_bytes(found[..8].try_into().unwrap()), newest.2, "{key}");
    }
}

/// One thread overwrites the same few keys all the time; another flushes. Whenever a commit is done, the power fails:
/// each key has the newest version that was announced, or a later one.
#[test]
fn keys_that_are_overwritten_while_they_are_flushed() {
    const KEYS: u64 = 300;
    for round in 0..60 {
        let disk = SimulatedDisk::new();
        let mut home = Home::open(&disk, 1 + round, 1);
        let stop = Arc::new(AtomicBool::new(false));
        let writer = {
            let (bucket, node, stop) = (Arc::clone(&home.bucket), Arc::clone(&home.node), Arc::clone(&stop));
            let now = home.now;
            std::thread::spawn(move || {
                let mut cx = NodeContext::new(node, 1);
                cx.now = now;
                let mut versions: Vec<Vec<(u64, u64)>> = vec![Vec::new(); KEYS as usize];
                for (number, random) in (0..100_000u64).zip(numbers(88_172_645_463_325_252 ^ round)) {
                    let key = random % KEYS;
                    // Of several sizes: some in place, some not.
                    let mut value = number.to_le_bytes().to_vec();
                    value.resize(8 + (random >> 32) as usize % 100, 7);
                    match set(&bucket, &mut cx, &format!("key-{key}"), &value) {
                        Ok(mutated) => versions[key as usize].push((mutated.seqno, number)),
                        Err(error) => assert_eq!(error, KvError::NoSpace),
                    }
                    if stop.load(SeqCst) {
                        break;
                    }
                }
                cx.end_batch();
                versions
            })
        };
        // The power fails at one of the first operations; what follows fails.
        let cut = disk.operations() + 3 + round;
        disk.inject(cut, Fault::PowerOff);
        let mut turns = 0;
        while disk.operations() <= cut && turns < 10_000 {
            home.turn();
            turns += 1;
        }
        stop.store(true, SeqCst);
        let versions = writer.join().unwrap();
        let persisted = home.bucket.vb_info(VbId(0)).unwrap().persisted_seqno;
        drop(home);
        disk.crash(Survival::Synced);
        let mut home = Home::open(&disk, 1000 + round, 1);
        home.turn();
        for (key, versions) in versions.iter().enumerate() {
            let found = home.get(&format!("key-{key}")).unwrap();
            let found = found.map(|value| u64::from_le_bytes(value[..8].try_into().unwrap()));
            let announced = versions.iter().rev().find(|(seqno, _)| *seqno <= persisted);
            let fits = match (announced, found) {
                (None, None) => true,
                (Some(_), None) => false,
                (announced, Some(found)) => {
                    let least = announced.map_or(0, |(seqno, _)| *seqno);
                    versions.iter().any(|(seqno, number)| *number == found && *seqno >= least)
                }
            };
            assert!(
                fits,
                "round {round}, key {key}: persisted {persisted}, announced {announced:?}, {found:?}"
            );
        }
    }
}

/// Threads that take slabs empty sparse ones: of items that are on disk, that wait for the flusher, or are being
/// replaced.
#[test]
fn items_that_are_moved_for_slabs_reach_the_disk() {
    const KEYS: usize = 60_000;
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    let mut lengths = vec![0usize; KEYS];
    for (operation, random) in numbers(88_172_645_463_325_252).take(KEYS * 10).enumerate() {
        let number = random as usize % KEYS;
        lengths[number] += 60;
        home.set(&format!("key-{number}"), &vec![number as u8; lengths[number]]).unwrap();
        home.cx.end_batch();
        if operation % 20_000 == 0 {
            home.turn();
        }
    }
    assert!(home.bucket.meter(Meter::DefragmentedItems) > 1000);
    home.bucket.audit(&mut home.cx).unwrap();
    for _ in 0..100 {
        home.turn();
    }
    assert_eq!(home.figures().unflushed_items, 0);
    drop(home);
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 2, 4);
    home.turn();
    for (number, length) in lengths.iter().enumerate() {
        let wanted = (*length > 0).then(|| vec![number as u8; *length]);
        assert!(home.get(&format!("key-{number}")).unwrap() == wanted, "key-{number}");
    }
}

/// After each flush something is dirty again, so that the next one is due at once.
#[test]
fn writers_that_never_rest_leave_a_bounded_journal() {
    const KEYS: u64 = 1600;
    const ROUNDS: u8 = 80;
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    let mut flusher = Flusher::new(0, 64 << 10);
    let mut fills = vec![0; KEYS as usize];
    let mut random = numbers(88_172_645_463_325_252);
    let (mut most, mut turns) = (0, 0);
    for round in 1..=ROUNDS {
        for number in random.by_ref().take(KEYS as usize / 4).map(|random| random % KEYS) {
            home.set(&format!("key-{number}"), &vec![round; 10_000]).unwrap();
            home.set("hot", &vec![round; 10_000]).unwrap();
            fills[number as usize] = round;
        }
        while home.figures().unflushed_items > 1 {
            home.now.mono_us += 1000;
            let now = home.now;
            flusher.turn(&mut home.cx, &mut || now);
            home.set("hot", &vec![round; 10_000]).unwrap();
            turns += 1;
        }
        most = most.max(home.figures().journal_bytes);
    }
    let live = KEYS * 10_000;
    // Twice what is live is enough, in segments of a megabyte; and there may be some compaction debt.
    assert!(most < live * 2 + (66 << 20), "{most} bytes for {live}");
    assert!(turns > u32::from(ROUNDS), "compaction never went first");
    home.turn();
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 2, 4);
    home.turn();
    assert_eq!(home.get("hot"), Ok(Some(vec![ROUNDS; 10_000])));
    for (number, fill) in fills.into_iter().enumerate() {
        let expected = (fill > 0).then(|| vec![fill; 10_000]);
        assert_eq!(home.get(&format!("key-{number}")), Ok(expected));
    }
}

/// When nothing has been written for a while, the journal is compacted to little more than the data, which is what a
/// start reads; then there is nothing left to wait for.
#[test]
fn a_bucket_at_rest_leaves_little_to_read() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 4);
    let mut flusher = Flusher::new(0, 64 << 10);
    for round in 0..30 {
        for number in 0..300 {
            home.set(&format!("key-{number}"), &[round; 300]).unwrap();
        }
        home.now.mono_us += 20_000;
        let now = home.now;
        flusher.turn(&mut home.cx, &mut || now);
    }
    let busy = home.figures();
    assert!(busy.journal_bytes > 1_000_000, "{busy:?}");
    let mut due_ms = Some(home.now.mono_ms());
    let mut turns = 0;
    while let Some(at_ms) = due_ms {
        home.now.mono_us = home.now.mono_us.max(at_ms * 1000);
        let now = home.now;
        due_ms = flusher.turn(&mut home.cx, &mut || now);
        turns += 1;
        assert!(turns < 1000, "it does not come to rest");
    }
    let rest = home.figures();
    let live = 300 * (300 + 8 + 48);
    assert!(rest.journal_bytes < live + live / 4 + (1 << 20) / 8, "{rest:?}");
    disk.crash(Survival::Synced);
    let mut home = Home::open(&disk, 2, 4);
    home.turn();
    for number in 0..300 {
        assert_eq!(home.get(&format!("key-{number}")), Ok(Some(vec![29; 300])));
    }
}

/// While a start reads, the pager reclaims what has expired, but no record that is replaced by one not read yet.
#[test]
fn what_replaced_an_expired_document_is_there_after_a_start_that_pages_meanwhile() {
    let disk = SimulatedDisk::new();
    let mut home = Home::open(&disk, 1, 1);
    let expiry_s = home.now.unix_s + 3;
    for number in 0..1000 {
        set_until(&home.bucket, &mut home.cx, &format!("key-{number}"), &[1; 200], expiry_s).unwrap();
    }
    home.turn();
    home.set("filler", &[7; 500_000]).unwrap();
    home.turn();
    // Fewer than have expired: if those were replaced by tombstones when they are read, these would have later seqnos
    // than the new records.
    for number in (0..1000).step_by(20) {
        home.set(&format!("key-{number}"), b"new").unwrap();
    }
    home.turn();
    // Chance decides where among the records the pager runs.
    for seed in 2..22 {
        disk.crash(Survival::Synced);
        let mut home = Home::open(&disk, seed, 1);
        home.cx.now.unix_s += 1000;
        let mut loader = NodeContext::new(Arc::clone(&home.node), 1);
        loader.now = home.cx.now;
        std::thread::scope(|threads| {
            let read = threads.spawn(move || {
                while kv::persistence::load_next(&mut loader, &mut journal::log::Buffer::new(64 << 10)) {}
            });
            while !read.is_finished() {
                kv::pager::turn(&mut home.cx);
            }
        });
        for number in (0..1000).step_by(20) {
            assert_eq!(home.get(&format!("key-{number}")), Ok(Some(b"new".to_vec())), "key-{number}");
        }
        kv::pager::turn(&mut home.cx);
        assert_eq!(home.bucket.memory().items, 50 + 1, "what has expired is reclaimed once all was read");
    }
}

/// After a burst the flusher wakes up for its buffer, and for the journal once it is at rest; not to check whether it
/// is at rest yet.
#[test]
fn a_buffer_and_what_a_flush_has_freed_go_back_soon_though_compaction_waits_for_rest() {
    let mut home = Home::open(&SimulatedDisk::new(), 1, 4);
    let mut flusher = Flusher::new(0, 64 << 10);
    home.set("key", b"value").unwrap();
    let flushed_ms = home.now.mono_ms();
    let mut wakes = Vec::new();
    let mut due_ms = Some(flushed_ms);
    while let Some(at_ms) = due_ms {
        home.now.mono_us = home.now.mono_us.max(at_ms * 1000);
        let now = home.now;
        due_ms = flusher.turn(&mut home.cx, &mut || now);
        wakes.push((now.mono_ms() - flushed_ms, home.node.flush_buffer_bytes(), home.cx.keeps_blocks()));
        assert!(wakes.len() < 20, "it does not come to rest: {wakes:?}");
    }
    let last_held_ms = wakes.iter().rfind(|(_, bytes, keeps)| *bytes > 0 || *keeps).unwrap().0;
    assert!(last_held_ms < 3_000 && wakes.len() <= 4, "{wakes:?}");
}
