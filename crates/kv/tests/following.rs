//! Followers of a bucket against its content: whatever happens, and however small the pieces are that a stream is read
//! in, what a follower has at the end of a snapshot is what there was at that seqno. A persistent bucket is flushed,
//! ejected, compacted and restarted meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use journal::{AnyDisk, SimulatedDisk, Survival};
use kv::collections::{Change, DEFAULT};
use kv::follow::{Advanced, Event, Position, Refused, Stream, VersionKind};
use kv::news::News;
use kv::persistence::{FLUSHERS, Flusher, PieceReader, load_next, read_on};
use kv::{
    Bucket, BucketSettings, Cookie, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Now,
    PersistenceSettings, Store, StoreKind, Value, VbId,
};
use proptest::prelude::*;

const START_S: u32 = 1_700_000_000;
const KEYS: u16 = 40;
const NOTED_MOST: usize = 200;

#[derive(Debug, Clone)]
enum Step {
    Set {
        key: u16,
        len: u16,
    },
    Expire {
        key: u16,
    },
    Remove {
        key: u16,
    },
    Prepare {
        key: u16,
    },
    End {
        commits: bool,
    },
    Flush,
    Sleep,
    /// Reads about this many bytes.
    Read {
        room: u16,
    },
    /// Ends the stream, and begins it again where it was.
    Reconnect,
    /// Has the flushers write, and compact.
    Write,
    /// Ejects all values that are on disk.
    Eject,
    /// Creates the collection, or drops it.
    Collection,
    /// Stops the node, and starts it again.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS;
    prop_oneof![
        10 => (key.clone(), prop_oneof![9 => 0u16..200, 1 => 33_000u16..34_000])
            .prop_map(|(key, len)| Step::Set { key, len }),
        2 => key.clone().prop_map(|key| Step::Expire { key }),
        4 => key.clone().prop_map(|key| Step::Remove { key }),
        1 => key.prop_map(|key| Step::Prepare { key }),
        1 => any::<bool>().prop_map(|commits| Step::End { commits }),
        1 => Just(Step::Flush),
        1 => Just(Step::Sleep),
        8 => (1u16..1000).prop_map(|room| Step::Read { room }),
        1 => Just(Step::Reconnect),
        3 => Just(Step::Write),
        1 => Just(Step::Eject),
        1 => Just(Step::Collection),
        1 => Just(Step::Restart),
    ]
}

/// By stored key: value and expiry.
type Content = BTreeMap<Vec<u8>, (Vec<u8>, u32)>;

struct World {
    /// The disk of a persistent bucket.
    disk: Option<SimulatedDisk>,
    seed: u64,
    cx: NodeContext,
    bucket: Arc<Bucket>,
    news: Arc<News>,
    stream: Option<Stream>,
    numbers: u64,
    uuid: u64,
    /// The collection of every fourth key, while it is there.
    collection: Option<u32>,
    /// What there is.
    content: Content,
    /// What there was after each seqno.
    at: BTreeMap<u64, Content>,
    prepared: Vec<(u64, Vec<u8>, Vec<u8>)>,
    /// What the follower has.
    copy: Content,
    snapshot: (u64, u64),
    begun_again: usize,
    /// Streams from the beginning may come in any order.
    in_any_order: bool,
    /// While one does: the documents that have come.
    unordered: Option<BTreeSet<Vec<u8>>>,
    /// How many did.
    walks: usize,
}

fn open(disk: Option<&SimulatedDisk>, seed: u64, now: Now) -> (NodeContext, Arc<Bucket>) {
    let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed };
    let node = Node::new(settings, Limits::default());
    let persistence = PersistenceSettings {
        segment_bytes: 10_000,
        tombstone_age_s: 150,
        flush_interval_ms: 0,
        ..PersistenceSettings::default()
    };
    let settings =
        BucketSettings { vbuckets: 1, memory_bytes: 1 << 30, persistence, ..BucketSettings::default() };
    let bucket = match disk {
        None => node.create_bucket("b", settings),
        Some(disk) => node.open_bucket("b", settings, AnyDisk::Simulated(disk.clone()), Path::new("/b")),
    };
    let mut cx = NodeContext::new(node, 0);
    cx.now = now;
    (cx, bucket.unwrap())
}

impl World {
    fn new(is_persistent: bool) -> Self {
        let disk = is_persistent.then(SimulatedDisk::new);
        let now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_us: 0 };
        let (cx, bucket) = open(disk.as_ref(), 7, now);
        let news = Arc::new(News::new(Cookie { thread: 0, connection: 0, ticket: 1 }, 1));
        let uuid = bucket.vb_uuid(VbId(0));
        let mut world = Self {
            disk,
            seed: 7,
            cx,
            bucket,
            news,
            stream: None,
            numbers: 0,
            uuid,
            collection: None,
            content: Content::new(),
            at: BTreeMap::new(),
            prepared: Vec::new(),
            copy: Content::new(),
            snapshot: (0, 0),
            begun_again: 0,
            in_any_order: false,
            unordered: None,
            walks: 0,
        };
        world.note(0);
        world
    }

    /// Calls `f` with a key, unless its collection is not there.
    fn with_key(&mut self, number: u16, f: impl FnOnce(&mut Self, Key<'_>)) {
        let name = format!("key-{number}");
        let collection = if number % 4 == 3 { self.collection } else { Some(0) };
        if let Some(collection) = collection {
            f(self, Key { collection, bytes: name.as_bytes() });
        }
    }

    /// Notes what there is after the last seqno, if that is a new one.
    fn note_last(&mut self) {
        let high_seqno = self.high_seqno();
        if self.at.last_key_value().is_none_or(|(last, _)| *last < high_seqno) {
            self.note(high_seqno);
        }
    }

    fn write(&mut self) {
        self.cx.now.mono_us += 10_000_000;
        let now = self.cx.now;
        for _ in 0..5 {
            for index in 0..FLUSHERS {
                Flusher::new(index, 4096).turn(&mut self.cx, &mut || now);
            }
        }
    }

    fn restart(&mut self) {
        let Some(disk) = self.disk.clone() else { return };
        let start = self.stream.take().map(|stream| stream.cursor());
        let bucket = Arc::clone(&self.bucket);
        kv::persistence::close_journal(&bucket, &mut self.cx, &mut Flusher::new(0, 4096)).unwrap();
        disk.crash(Survival::Synced);
        self.seed += 1;
        (self.cx, self.bucket) = open(Some(&disk), self.seed, self.cx.now);
        while load_next(&mut self.cx, &mut journal::log::Buffer::new(4096)) {}
        self.news = Arc::new(News::new(self.news.cookie(), 1));
        // What was prepared is committed: the node is alone in its chain.
        for (_, key, value) in std::mem::take(&mut self.prepared) {
            self.content.insert(key, (value, 0));
        }
        self.note_last();
        if let Some(start) = start {
            self.go_on(start);
        }
    }

    /// Begins a stream that has ended again where it was; at the beginning, if that came in no order.
    fn go_on(&mut self, start: u64) {
        match self.unordered {
            None => self.open(start),
            Some(_) => self.begin_again(),
        }
    }

    fn change_collection(&mut self) {
        let bucket = Arc::clone(&self.bucket);
        if let Some(id) = self.collection {
            if self.prepared.iter().any(|(_, key, _)| key[0] == id as u8) {
                return;
            }
            bucket.change_collections(|manifest| manifest.remove_collection(DEFAULT, "c")).unwrap();
            self.collection = None;
            self.content.retain(|key, _| key[0] != id as u8);
        } else if bucket.collections().uid() < 100 {
            let add =
                |manifest: &mut kv::collections::Manifest| manifest.add_collection(DEFAULT, "c", 0, false);
            bucket.change_collections(add).unwrap();
            let manifest = bucket.collections().manifest();
            self.collection = manifest.collection(DEFAULT, "c").map(|one| one.id);
        }
        kv::pager::turn(&mut self.cx);
        self.note_last();
    }

    fn note(&mut self, seqno: u64) {
        // Of so much only what there is in the end is looked at.
        if self.content.len() > NOTED_MOST {
            return self.at.clear();
        }
        self.at.insert(seqno, self.content.clone());
    }

    fn high_seqno(&self) -> u64 {
        self.bucket.vb_info(VbId(0)).unwrap().high_seqno
    }

    fn store(&mut self, key: Key<'_>, value: &[u8], expiry: u32) {
        let store =
            Store { flags: 7, expiry: Expiry::At(expiry), datatype: 0, value: Value::Bytes(&[]), new_cas: 0 };
        let at = self.bucket.locate(key);
        let mutated = if value.len() > kv::LARGE_VALUE {
            let mut item = self.bucket.prepare_large(&mut self.cx, key, value.len()).unwrap();
            item.window(0, value.len()).copy_from_slice(value);
            let store = Store { value: Value::Large(Box::new(item)), ..store };
            self.bucket.mutate(&mut self.cx, key, at, Mutation { kind: StoreKind::Set, cas: 0, store })
        } else {
            let store = Store { value: Value::Bytes(value), ..store };
            self.bucket.mutate(&mut self.cx, key, at, Mutation { kind: StoreKind::Set, cas: 0, store })
        };
        // A key that waits for its commit accepts nothing.
        let Ok(mutated) = mutated else { return };
        self.content.insert(stored(key), (value.to_vec(), expiry));
        self.note(mutated.seqno);
    }

    fn run(&mut self, step: &Step) {
        self.cx.now.unix_ns += 1;
        match *step {
            Step::Set { key, len } => {
                let value = vec![(key + len) as u8; usize::from(len)];
                self.with_key(key, |this, key| this.store(key, &value, 0));
            }
            Step::Expire { key } => {
                let expiry = self.cx.now.unix_s + 10;
                self.with_key(key, |this, key| this.store(key, b"for a while", expiry));
            }
            Step::Remove { key } => self.with_key(key, |this, key| {
                let at = this.bucket.locate(key);
                let bucket = Arc::clone(&this.bucket);
                if let Ok(mutated) = bucket.remove(&mut this.cx, key, at, 0) {
                    this.content.remove(&stored(key));
                    this.note(mutated.seqno);
                }
            }),
            Step::Prepare { key } => self.with_key(key, |this, key| {
                let at = this.bucket.locate(key);
                let bucket = Arc::clone(&this.bucket);
                let prepared = bucket.with_entry(&mut this.cx, key, at, |entry| {
                    entry.prepare_at(1);
                    let value = Value::Bytes(b"prepared");
                    entry.store(Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 })
                });
                if let Ok(Ok(mutated)) = prepared {
                    this.prepared.push((mutated.seqno, stored(key), b"prepared".to_vec()));
                    this.note(mutated.seqno);
                }
            }),
            Step::End { commits } => {
                let Some((seqno, key, value)) = self.prepared.pop() else { return };
                let ended = if commits {
                    self.content.insert(key, (value, 0));
                    self.bucket.commit(&mut self.cx, VbId(0), seqno)
                } else {
                    self.bucket.abort(&mut self.cx, VbId(0), seqno)
                };
                self.note(ended.unwrap().seqno);
            }
            Step::Flush => {
                self.bucket.flush(&mut self.cx, 0).unwrap();
                self.content.clear();
                self.note(self.high_seqno());
            }
            Step::Sleep => {
                // Everything with an expiry is gone, and whoever follows is told of each.
                self.cx.now.unix_s += 200;
                kv::pager::turn(&mut self.cx);
                let now_s = self.cx.now.unix_s;
                self.content.retain(|_, (_, expiry)| *expiry == 0 || *expiry > now_s);
                // In which order they went is not known.
                let high_seqno = self.high_seqno();
                let known = *self.at.last_key_value().unwrap().0;
                self.at.retain(|seqno, _| *seqno <= known);
                self.note(high_seqno);
            }
            Step::Read { room } => self.read(usize::from(room)),
            Step::Reconnect => {
                let Some(stream) = self.stream.take() else { return };
                let start = stream.cursor();
                drop(stream);
                self.go_on(start);
            }
            Step::Write => self.write(),
            Step::Eject => {
                if self.disk.is_some() {
                    self.bucket.set_budget(1);
                    kv::pager::turn(&mut self.cx);
                    self.bucket.set_budget(1 << 30);
                    self.note_last();
                    self.bucket.audit(&mut self.cx).unwrap();
                }
            }
            Step::Collection => self.change_collection(),
            Step::Restart => self.restart(),
        }
        self.cx.end_batch();
    }

    fn open(&mut self, start: u64) {
        self.numbers += 1;
        let snapshot =
            if start == 0 { (0, 0) } else { (self.snapshot.0.min(start), self.snapshot.1.max(start)) };
        let uuid = if start == 0 { 0 } else { self.uuid };
        let in_any_order = self.in_any_order;
        let position = Position { start, end: u64::MAX, uuid, snapshot, in_any_order, ..Position::default() };
        match self.bucket.follow(&mut self.cx, VbId(0), self.numbers, &position, &self.news) {
            Ok(stream) => self.stream = Some(stream),
            Err(Refused::RollBack(0)) if start > 0 => self.begin_again(),
            Err(why) => panic!("{why:?} at {start}"),
        }
        // Following may take seqnos of its own.
        self.note_last();
    }

    fn begin_again(&mut self) {
        self.begun_again += 1;
        self.stream = None;
        self.copy.clear();
        self.snapshot = (0, 0);
        self.unordered = None;
        self.open(0);
    }

    fn read(&mut self, room: usize) {
        if self.stream.is_none() {
            self.open(0);
        }
        let mut stream = self.stream.take().unwrap();
        let (copy, snapshot, unordered) = (&mut self.copy, &mut self.snapshot, &mut self.unordered);
        let mut last = stream.cursor();
        let advanced = stream.advance(&mut self.cx, room, &mut |event| match event {
            Event::Snapshot { start, end } => {
                assert!(start <= last && last < end, "{start} {last} {end}");
                *snapshot = (start, end);
            }
            Event::OutOfOrder => {
                assert!(last == 0 && unordered.is_none());
                *unordered = Some(BTreeSet::new());
                self.walks += 1;
            }
            Event::OrderedFrom(end) => {
                assert!(unordered.take().is_some());
                (last, *snapshot) = (end, (end, end));
            }
            Event::Version(version) => {
                let key = version.stored_key.to_vec();
                if let Some(documents) = unordered {
                    assert!(version.kind != VersionKind::Document || documents.insert(key.clone()), "twice");
                } else {
                    assert!(
                        last < version.seqno && version.seqno <= snapshot.1,
                        "{last} {} {snapshot:?}",
                        version.seqno
                    );
                    last = version.seqno;
                }
                match version.kind {
                    VersionKind::Document => {
                        copy.insert(key, (version.value.bytes().to_vec(), version.expiry));
                    }
                    VersionKind::Deletion | VersionKind::Expiration => drop(copy.remove(&key)),
                    VersionKind::Prepare | VersionKind::PrepareDeletion | VersionKind::Abort => {}
                }
            }
            Event::System(seqno, event) => {
                if unordered.is_none() {
                    assert!(last < seqno && seqno <= snapshot.1, "{last} {seqno} {snapshot:?}");
                    last = seqno;
                }
                match event.what {
                    Change::CreateCollection => {
                        assert!(!copy.keys().any(|key| u32::from(key[0]) == event.collection));
                    }
                    _ => copy.retain(|key, _| u32::from(key[0]) != event.collection),
                }
            }
            Event::Advanced(seqno) => {
                assert!(last < seqno && seqno == snapshot.1);
                last = seqno;
            }
        });
        // A piece of the journal may end with what nobody needs any more.
        assert!(stream.cursor() >= last);
        let last = stream.cursor();
        let is_whole = stream.snapshot().is_none();
        self.stream = Some(stream);
        match advanced {
            Advanced::Lost => self.begin_again(),
            Advanced::Idle | Advanced::More => {}
            Advanced::OnDisk => {
                if let Some(stream) = &mut self.stream {
                    read_on(stream, &mut self.cx);
                }
                let now = self.cx.now;
                PieceReader::default().turn(&mut self.cx, &mut || now);
            }
            other => panic!("{other:?}"),
        }
        if is_whole && advanced != Advanced::Lost {
            let was = self.at.range(..=last).next_back();
            // In the middle of what a pager did at once, nobody knows.
            if let Some((_, was)) = was.filter(|(seqno, _)| **seqno == last || !self.is_between_sleeps(last))
            {
                assert_eq!(self.alive(&self.copy), self.alive(was), "at {last}");
            }
        }
    }

    /// Returns true if this seqno may be one that a pager gave to an expiry.
    fn is_between_sleeps(&self, seqno: u64) -> bool {
        let next = self.at.range(seqno..).next();
        let before = self.at.range(..seqno).next_back();
        next.zip(before).is_some_and(|((next, _), (before, _))| next - before > 1)
    }

    /// What of it is still alive: to a follower, too, what has expired is gone, and what was in a collection that is.
    fn alive(&self, content: &Content) -> Content {
        let now_s = self.cx.now.unix_s;
        let is_there = |key: &[u8]| key[0] == 0 || Some(u32::from(key[0])) == self.collection;
        let alive =
            content.iter().filter(|(key, (_, expiry))| (*expiry == 0 || *expiry > now_s) && is_there(key));
        alive.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            self.read(10_000);
            let stream = self.stream.as_ref().unwrap();
            if stream.cursor() == self.high_seqno() && stream.snapshot().is_none() {
                let mut stream = self.stream.take().unwrap();
                let advanced = stream.advance(&mut self.cx, 1, &mut |_| panic!("more than everything"));
                assert_eq!(advanced, Advanced::Idle);
                assert_eq!(self.alive(&self.copy), self.content);
                return;
            }
        }
        panic!("it never comes to the end");
    }
}

/// The key as versions have it; ids of collections are below 128.
fn stored(key: Key<'_>) -> Vec<u8> {
    [&[key.collection as u8], key.bytes].concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_follower_has_what_there_was(
        (is_persistent, in_any_order) in any::<(bool, bool)>(),
        steps in proptest::collection::vec(step(), 1..400),
    ) {
        let mut world = World::new(is_persistent);
        world.in_any_order = in_any_order;
        for step in &steps {
            world.run(step);
        }
        world.settle();
        world.bucket.audit(&mut world.cx).unwrap();
        let used = world.begun_again;
        prop_assert!(used <= steps.len());
    }
}

fn drain(world: &mut World) -> Vec<(VersionKind, Vec<u8>)> {
    let mut stream = world.stream.take().unwrap();
    let mut seen = Vec::new();
    while stream.advance(&mut world.cx, 10_000, &mut |event| {
        if let Event::Version(version) = event {
            seen.push((version.kind, version.stored_key[1..].to_vec()));
        }
    }) == Advanced::More
    {}
    world.stream = Some(stream);
    seen
}

#[test]
fn deletions_and_expiries_are_told_apart() {
    let mut world = World::new(false);
    world.open(0);
    for step in [Step::Set { key: 1, len: 5 }, Step::Expire { key: 2 }, Step::Remove { key: 1 }, Step::Sleep]
    {
        world.run(&step);
    }
    let seen = drain(&mut world);
    let expected = [(VersionKind::Deletion, b"key-1".to_vec()), (VersionKind::Expiration, b"key-2".to_vec())];
    assert_eq!(seen, expected);
}

#[test]
fn a_follower_is_called_once_for_many_changes() {
    let mut world = World::new(false);
    world.open(0);
    for key in 0..10 {
        world.run(&Step::Set { key, len: 5 });
    }
    let mut letters = Vec::new();
    world.cx.take_letters(true, &mut letters);
    assert_eq!(letters.len(), 1);
    drain(&mut world);
    world.news.take(|_| {});
    world.run(&Step::Set { key: 0, len: 6 });
    world.cx.take_letters(true, &mut letters);
    assert_eq!(letters.len(), 2);
}

#[test]
fn whoever_follows_nothing_costs_nothing() {
    let mut world = World::new(false);
    for key in 0..KEYS {
        world.run(&Step::Set { key, len: 50 });
        world.run(&Step::Remove { key });
    }
    assert_eq!(world.bucket.accounts().allocated, 0);
}

/// One that is written all the time is never the same from one piece to the next.
#[test]
fn a_slow_follower_comes_to_an_end_beside_a_hot_key() {
    for is_persistent in [false, true] {
        let mut world = World::new(is_persistent);
        for key in 0..KEYS {
            world.run(&Step::Set { key, len: 150 });
        }
        world.write();
        world.open(0);
        let mut reads = 0;
        while world.stream.as_ref().unwrap().cursor() < world.high_seqno() {
            world.run(&Step::Read { room: 500 });
            world.run(&Step::Set { key: 0, len: 20 });
            reads += 1;
            if world.stream.as_ref().unwrap().snapshot().is_none() && reads > 10 {
                break;
            }
            assert!(reads < 100, "the snapshot goes on for ever");
        }
        world.settle();
    }
}

#[test]
fn a_flush_all_is_not_missed_by_who_has_a_part() {
    let mut world = World::new(true);
    for key in 0..KEYS {
        world.run(&Step::Set { key, len: 150 });
    }
    world.write();
    world.run(&Step::Eject);
    world.run(&Step::Read { room: 500 });
    world.run(&Step::Read { room: 500 });
    assert!(!world.copy.is_empty() && world.copy.len() < usize::from(KEYS));
    world.run(&Step::Flush);
    world.settle();
    assert_eq!((world.begun_again, world.copy.len()), (1, 0));
}

#[test]
fn who_comes_back_after_deletions_were_forgotten_begins_again() {
    for is_persistent in [false, true] {
        let mut world = World::new(is_persistent);
        for key in 0..KEYS {
            world.run(&Step::Set { key, len: 150 });
        }
        world.write();
        world.settle();
        let start = world.high_seqno();
        for key in 0..KEYS - 3 {
            world.run(&Step::Remove { key });
        }
        for _ in 0..20 {
            world.run(&Step::Set { key: KEYS - 2, len: 190 });
            world.write();
            // Twice as long as anything is kept.
            world.cx.now.unix_s += 300;
            kv::pager::turn(&mut world.cx);
            // At rest, what is superfluous goes.
            world.write();
        }
        world.open(start);
        world.settle();
        assert_eq!(world.begun_again, 1, "persistent: {is_persistent}");
    }
}

/// A persistent bucket with three quarters of so many keys (the others' collection is not there), flushed, whose
/// followers take any order.
fn flushed(keys: u16) -> World {
    let mut world = World::new(true);
    world.in_any_order = true;
    for key in 0..keys {
        world.run(&Step::Set { key, len: if key == 0 { 33_000 } else { 50 } });
    }
    world.write();
    world
}

#[test]
fn what_is_in_memory_comes_first_and_in_no_order() {
    let mut world = flushed(300);
    world.run(&Step::Collection);
    world.run(&Step::Set { key: 3, len: 10 });
    world.run(&Step::Remove { key: 8 });
    world.run(&Step::Prepare { key: 9 });
    world.write();
    world.run(&Step::Set { key: 5, len: 10 });
    let high_seqno = world.high_seqno();
    world.open(0);
    let mut stream = world.stream.take().unwrap();
    let mut seen = Vec::new();
    loop {
        let advanced = stream.advance(&mut world.cx, 700, &mut |event| {
            seen.push(match event {
                Event::Snapshot { start, end } => panic!("a snapshot in order, {start} {end}"),
                Event::Version(version) => (format!("{:?}", version.kind), version.seqno),
                Event::System(seqno, event) => (format!("{:?}", event.what), seqno),
                Event::Advanced(seqno) => panic!("{seqno} is told by the end"),
                Event::OutOfOrder => ("begins".to_owned(), 0),
                Event::OrderedFrom(seqno) => ("ends".to_owned(), seqno),
            });
        });
        match advanced {
            Advanced::Idle if !stream.is_reading() => break,
            Advanced::OnDisk => read_on(&mut stream, &mut world.cx),
            Advanced::Idle | Advanced::More => {
                let now = world.cx.now;
                PieceReader::default().turn(&mut world.cx, &mut || now);
            }
            other => panic!("{other:?}"),
        }
    }
    let kinds: Vec<&str> = seen.iter().map(|(kind, _)| &**kind).collect();
    assert_eq!(kinds[..2], ["begins", "CreateCollection"]);
    let documents = world.content.len();
    assert!(kinds[2..][..documents].iter().all(|kind| *kind == "Document"), "{kinds:?}");
    assert_eq!(kinds[2 + documents..], ["Deletion", "Prepare", "ends"]);
    assert!(!seen[2..][..documents].is_sorted_by_key(|(_, seqno)| *seqno));
    assert_eq!(seen.last().unwrap().1, high_seqno);
}

/// A walk meets everything once, whatever becomes of the table meanwhile.
#[test]
fn a_walk_outlives_what_is_split_and_merged() {
    const MANY: u16 = 3000;
    for grows in [true, false] {
        for before in [0, 1, 20, 60] {
            let mut world = flushed(MANY);
            world.open(0);
            for _ in 0..before {
                world.run(&Step::Read { room: 700 });
            }
            for key in 0..MANY {
                if grows {
                    world.run(&Step::Set { key: MANY + key * 3, len: 10 });
                    world.run(&Step::Set { key: MANY + key * 3 + 1, len: 10 });
                } else if key % 16 > 0 {
                    world.run(&Step::Remove { key });
                }
                if key % 100 == 0 {
                    world.run(&Step::Read { room: 700 });
                }
            }
            world.settle();
            assert_eq!((world.walks, world.begun_again), (1, 0));
        }
    }
}

/// What is ejected while a walk is under way comes from disk, wherever that ends.
#[test]
fn what_is_ejected_comes_from_disk() {
    for (room, before) in (100..4000).step_by(300).flat_map(|room| [(room, 0), (room, 3)]) {
        let mut world = flushed(2000);
        // What is not flushed cannot be ejected; some of it is long.
        for key in (0..2000).step_by(3) {
            world.run(&Step::Set { key, len: if key % 300 == 0 { 33_000 } else { 50 } });
        }
        world.open(0);
        for _ in 0..=before {
            world.run(&Step::Read { room });
        }
        world.run(&Step::Eject);
        for _ in 0..300 {
            world.run(&Step::Read { room });
        }
        world.write();
        world.settle();
        assert_eq!((world.walks, world.begun_again), (1, 0), "room {room}, {before} before");
    }
}

/// Nothing is walked over if little of it is in memory.
#[test]
fn what_is_mostly_on_disk_comes_in_its_order() {
    for (written_again, walks) in [(0, 0), (2900, 0), (2990, 1)] {
        let mut world = flushed(3000);
        world.run(&Step::Eject);
        for key in 0..written_again {
            world.run(&Step::Set { key, len: 30 });
        }
        world.write();
        world.settle();
        assert_eq!((world.walks, world.begun_again), (walks, 0), "{written_again}");
    }
}
