//! A vBucket and its copy on another node: whatever happens, however small the pieces in which it is copied, and
//! whichever of the two is killed, restarted or promoted, in the end the copy has what the active has.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use journal::{AnyDisk, SimulatedDisk, Survival};
use kv::collections::{Change, DEFAULT, ForeignChange, Manifest, ManifestError, SystemEvent};
use kv::copying::{CopyOf, Foreign, NotCopied};
use kv::follow::{Advanced, Event, Position, Refused, Stream, Version, VersionKind, VersionValue};
use kv::news::News;
use kv::persistence::{FLUSHERS, Flusher, PieceReader, close_journal, load_next, read_on};
use kv::terms::Terms;
use kv::topology::Topology;
use kv::{
    Adopted, Bucket, BucketSettings, Cookie, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings,
    Now, Outcome, PersistenceSettings, RoleChange, RoleError, Store, StoreKind, Value, VbId, VbState,
};
use proptest::prelude::*;

const START_S: u32 = 1_700_000_000;
const KEYS: u16 = 30;
const DAY_S: u32 = 86_400;
const VB: VbId = VbId(0);

/// What the copy copies.
fn of(term: u64) -> CopyOf<'static> {
    CopyOf { term, peer: "other" }
}

#[derive(Debug, Clone)]
enum Step {
    Set {
        key: u16,
        len: u16,
        expires: bool,
    },
    Remove {
        key: u16,
    },
    Prepare {
        key: u16,
        removes: bool,
    },
    End {
        commits: bool,
    },
    Flush,
    Sleep,
    Collection,
    /// Copies about this many bytes.
    Copy {
        room: u16,
    },
    Reconnect,
    /// Has the flushers of a node write, and compact.
    Write {
        node: usize,
    },
    Eject {
        node: usize,
    },
    /// What is not on disk is lost.
    Crash {
        node: usize,
    },
    /// The copy becomes the active, and the active its copy.
    Promote,
}

fn step() -> impl Strategy<Value = Step> {
    let (key, node) = (0..KEYS, 0..2usize);
    prop_oneof![
        10 => (key.clone(), prop_oneof![9 => 0u16..200, 1 => 33_000u16..34_000], any::<bool>())
            .prop_map(|(key, len, expires)| Step::Set { key, len, expires }),
        4 => key.clone().prop_map(|key| Step::Remove { key }),
        3 => (key, any::<bool>()).prop_map(|(key, removes)| Step::Prepare { key, removes }),
        3 => any::<bool>().prop_map(|commits| Step::End { commits }),
        1 => Just(Step::Flush),
        1 => Just(Step::Sleep),
        1 => Just(Step::Collection),
        12 => (1u16..1000).prop_map(|room| Step::Copy { room }),
        2 => Just(Step::Reconnect),
        4 => node.clone().prop_map(|node| Step::Write { node }),
        1 => node.clone().prop_map(|node| Step::Eject { node }),
        1 => node.prop_map(|node| Step::Crash { node }),
        1 => Just(Step::Promote),
    ]
}

struct World {
    nodes: [OneNode; 2],
    /// Which of them is the active.
    active: usize,
    term: u64,
    stream: Option<Stream>,
    numbers: u64,
    /// What the copy had when the stream began.
    start: u64,
    /// The prepares that the copy was sent, by key: seqno and CAS.
    prepared: HashMap<Vec<u8>, (u64, u64)>,
}

struct OneNode {
    disk: Option<SimulatedDisk>,
    seed: u64,
    cx: NodeContext,
    bucket: Arc<Bucket>,
    news: Arc<News>,
}

impl OneNode {
    fn new(disk: Option<SimulatedDisk>, seed: u64, now: Now) -> Self {
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
        let bucket = match &disk {
            None => node.create_bucket("b", settings),
            Some(disk) => node.open_bucket("b", settings, AnyDisk::Simulated(disk.clone()), Path::new("/b")),
        };
        let mut cx = NodeContext::new(node, 0);
        cx.now = now;
        while load_next(&mut cx, &mut journal::log::Buffer::new(4096)) {}
        let news = Arc::new(News::new(Cookie { thread: 0, connection: 0, ticket: 1 }, 1));
        Self { disk, seed, cx, bucket: bucket.unwrap(), news }
    }

    fn set_role(&mut self, state: VbState, term: u64, source: Option<&str>) {
        let source = Some(source.map(Into::into));
        let change = RoleChange { state: Some(state), term: Some(term), source, ..RoleChange::default() };
        self.bucket.set_role(&mut self.cx, VB, change).unwrap();
        self.write();
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

    fn crash(&mut self) {
        let Some(disk) = self.disk.clone() else { return };
        disk.crash(Survival::Synced);
        *self = Self::new(Some(disk), self.seed + 2, self.cx.now);
    }

    /// Returns documents and prepares, as whoever follows from the beginning is sent them.
    fn content(&mut self, number: u64) -> BTreeMap<(bool, Vec<u8>), String> {
        let position = Position { end: u64::MAX, ..Position::default() };
        let mut stream = self.bucket.follow(&mut self.cx, VB, number, &position, &self.news).unwrap();
        let mut content = BTreeMap::new();
        loop {
            let advanced = stream.advance(&mut self.cx, 10_000, &mut |event| {
                let Event::Version(version) = event else { return };
                let Version { seqno, rev, cas, flags, expiry, datatype, level, .. } = version;
                let is_prepare = matches!(version.kind, VersionKind::Prepare | VersionKind::PrepareDeletion);
                let of_removal = version.kind == VersionKind::PrepareDeletion;
                // Its time is its own.
                let expiry = if of_removal { 0 } else { expiry };
                let value = version.value.bytes();
                let shown = format!(
                    "{:?} {seqno} {rev} {cas} {flags} {expiry} {datatype} {level} {value:?}",
                    version.kind
                );
                let key = version.stored_key.to_vec();
                content.remove(&(true, key.clone()));
                match version.kind {
                    VersionKind::Deletion | VersionKind::Expiration => drop(content.remove(&(false, key))),
                    VersionKind::Abort => {}
                    _ => drop(content.insert((is_prepare, key), shown)),
                }
            });
            match advanced {
                Advanced::Idle => return content,
                Advanced::OnDisk => {
                    read_on(&mut stream, &mut self.cx);
                    let now = self.cx.now;
                    PieceReader::default().turn(&mut self.cx, &mut || now);
                }
                Advanced::More => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// What a stream has handed out, for use without the active's lock.
enum Sent {
    Snapshot(u64, u64),
    Advanced,
    System(u64, SystemEvent),
    Version(Box<Version<'static>>, Vec<u8>, Vec<u8>),
}

impl Sent {
    fn of(event: Event<'_>) -> Self {
        match event {
            Event::Snapshot { start, end } => Self::Snapshot(start, end),
            Event::Advanced(_) => Self::Advanced,
            Event::OutOfOrder | Event::OrderedFrom(_) => unreachable!("was not asked for"),
            Event::System(seqno, event) => Self::System(seqno, event),
            Event::Version(version) => {
                let (key, value) = (version.stored_key.to_vec(), version.value.bytes().to_vec());
                let Version { kind, seqno, rev, cas, flags, expiry, datatype, level, committed, .. } =
                    version;
                let value_less = Version {
                    kind,
                    seqno,
                    rev,
                    cas,
                    flags,
                    expiry,
                    datatype,
                    level,
                    committed,
                    ..Version::default()
                };
                Self::Version(Box::new(value_less), key, value)
            }
        }
    }
}

impl World {
    fn new(is_persistent: bool) -> Self {
        let now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_us: 0 };
        let node = |seed| OneNode::new(is_persistent.then(SimulatedDisk::new), seed, now);
        let mut world = Self {
            nodes: [node(7), node(8)],
            active: 0,
            term: 1,
            stream: None,
            numbers: 0,
            start: 0,
            prepared: HashMap::new(),
        };
        world.nodes[0].set_role(VbState::Active, 1, None);
        world.nodes[1].set_role(VbState::Replica, 1, Some("other"));
        world
    }

    fn active(&mut self) -> (&mut NodeContext, Arc<Bucket>) {
        let node = &mut self.nodes[self.active];
        (&mut node.cx, Arc::clone(&node.bucket))
    }

    fn with_key(&mut self, number: u16, f: impl FnOnce(&mut NodeContext, &Bucket, Key<'_>)) {
        let name = format!("key-{number}");
        let (cx, bucket) = self.active();
        let manifest = bucket.collections().manifest();
        let collection = match number % 4 {
            3 => manifest.collection(DEFAULT, "c").map(|one| one.id),
            _ => Some(0),
        };
        if let Some(collection) = collection {
            f(cx, &bucket, Key { collection, bytes: name.as_bytes() });
        }
    }

    fn run(&mut self, step: &Step) {
        for node in &mut self.nodes {
            node.cx.now.unix_ns += 1;
        }
        match *step {
            Step::Set { key, len, expires } => self.with_key(key, |cx, bucket, key| {
                let expiry = if expires { cx.now.unix_s + 10 } else { 0 };
                store(cx, bucket, key, &vec![len as u8; usize::from(len)], expiry);
            }),
            Step::Remove { key } => self.with_key(key, |cx, bucket, key| {
                let _ = bucket.remove(cx, key, bucket.locate(key), 0);
            }),
            Step::Prepare { key, removes } => self.with_key(key, |cx, bucket, key| {
                let prepared = bucket.with_entry(cx, key, bucket.locate(key), |entry| {
                    entry.prepare_at(1);
                    let value = Value::Bytes(b"prepared");
                    match removes {
                        true => entry.remove(),
                        false => entry.store(Store {
                            flags: 0,
                            expiry: Expiry::At(0),
                            datatype: 0,
                            value,
                            new_cas: 0,
                        }),
                    }
                });
                let _ = prepared;
            }),
            Step::End { commits } => {
                let (cx, bucket) = self.active();
                let Some((seqno, _)) = bucket.prepared(cx, VB).first().copied() else { return };
                let _ = if commits { bucket.commit(cx, VB, seqno) } else { bucket.abort(cx, VB, seqno) };
            }
            Step::Flush => {
                for node in &mut self.nodes {
                    node.bucket.flush(&mut node.cx, 0).unwrap();
                }
            }
            Step::Sleep => {
                for node in &mut self.nodes {
                    node.cx.now.unix_s += 200;
                    kv::pager::turn(&mut node.cx);
                }
            }
            Step::Collection => {
                let (cx, bucket) = self.active();
                let is_there = bucket.collections().manifest().collection(DEFAULT, "c").is_some();
                let change = |manifest: &mut Manifest| match is_there {
                    true => manifest.remove_collection(DEFAULT, "c"),
                    false => manifest.add_collection(DEFAULT, "c", 0, false),
                };
                bucket.change_collections(change).unwrap();
                kv::pager::turn(cx);
            }
            Step::Copy { room } => drop(self.copy(usize::from(room))),
            Step::Reconnect => self.stream = None,
            Step::Write { node } => self.nodes[node].write(),
            Step::Eject { node } => {
                let node = &mut self.nodes[node];
                if node.disk.is_some() {
                    node.bucket.set_budget(1);
                    kv::pager::turn(&mut node.cx);
                    node.bucket.set_budget(1 << 30);
                }
            }
            Step::Crash { node } => {
                if self.nodes[node].disk.is_some() {
                    self.stream = None;
                    self.nodes[node].crash();
                }
            }
            Step::Promote => {
                self.stream = None;
                self.term += 1;
                let old = self.active;
                self.active = 1 - old;
                self.nodes[self.active].set_role(VbState::Active, self.term, None);
                self.nodes[old].set_role(VbState::Replica, self.term, Some("other"));
            }
        }
        for node in &mut self.nodes {
            node.cx.end_batch();
        }
    }

    /// Begins to copy from where the copy is, or from nothing.
    fn begin(&mut self) -> Stream {
        self.prepared.clear();
        let manifest = self.nodes[self.active].bucket.collections().manifest();
        loop {
            let copy = &mut self.nodes[1 - self.active];
            match copy.bucket.adopt_collections(&mut copy.cx, &manifest).unwrap() {
                Adopted::Waits => copy.write(),
                Adopted::Taken | Adopted::Kept => break,
            }
        }
        let copy = &self.nodes[1 - self.active];
        assert!(
            !copy.bucket.collections().manifest().supersedes(&manifest),
            "that of the higher term counts"
        );
        for _ in 0..2 {
            let copy = &mut self.nodes[1 - self.active];
            let position = copy.bucket.copy_position(&mut copy.cx, VB);
            let position = Position { term: Some(self.term), ..position };
            self.numbers += 1;
            let active = &mut self.nodes[self.active];
            let followed = active.bucket.follow(&mut active.cx, VB, self.numbers, &position, &active.news);
            let histories = active.bucket.histories(VB);
            let terms = active.bucket.terms(&mut active.cx, VB);
            let copy = &mut self.nodes[1 - self.active];
            match followed {
                Ok(stream) => {
                    self.start = position.start;
                    copy.bucket.copy_begun(&mut copy.cx, VB, of(self.term), &histories, &terms).unwrap();
                    return stream;
                }
                Err(Refused::RollBack(_)) => {
                    copy.bucket.copy_anew(&mut copy.cx, VB, of(self.term)).unwrap();
                    copy.bucket.audit(&mut copy.cx).unwrap();
                }
                Err(why) => panic!("{why:?}"),
            }
        }
        panic!("who has nothing may begin");
    }

    /// Copies what comes next. Returns true if there was nothing.
    fn copy(&mut self, room: usize) -> bool {
        let mut stream = self.stream.take().unwrap_or_else(|| self.begin());
        let [first, second] = &mut self.nodes;
        let (active, copy) = if self.active == 0 { (first, second) } else { (second, first) };
        let manifest = active.bucket.collections().manifest();
        let (bucket, cx, term) = (&copy.bucket, &mut copy.cx, self.term);
        let mut put = |change: &Foreign<'_>| {
            bucket.copy(cx, VB, of(term), change).unwrap();
        };
        let mut sent = Vec::new();
        let advanced = stream.advance(&mut active.cx, room, &mut |event| sent.push(Sent::of(event)));
        for one in sent {
            match one {
                Sent::Snapshot(start, end) => put(&Foreign::Snapshot { start, end }),
                Sent::Advanced => {}
                Sent::System(seqno, event) => {
                    let (scope, id) = (event.scope, event.collection);
                    let change = match event.what {
                        Change::CreateCollection => match manifest.of_id(id) {
                            Some((_, one)) => {
                                let (name, max_ttl_s) = (&*one.name, one.max_ttl_s);
                                ForeignChange::CreateCollection { scope, id, name, max_ttl_s }
                            }
                            None => continue,
                        },
                        Change::DropCollection => ForeignChange::DropCollection { scope, id },
                        other => panic!("{other:?}"),
                    };
                    put(&Foreign::System { seqno, uid: event.uid, change });
                }
                Sent::Version(version, key, value) => {
                    let stored_key = key.as_slice();
                    let version = Version { stored_key, value: VersionValue::Bytes(&value), ..*version };
                    let (seqno, prepared) = (version.seqno, self.prepared.remove(stored_key));
                    match (version.kind, prepared) {
                        (VersionKind::Abort, None) if version.cas > self.start => {}
                        (VersionKind::Abort, _) => {
                            put(&Foreign::Abort { prepared: version.cas, seqno, stored_key });
                        }
                        (VersionKind::Prepare | VersionKind::PrepareDeletion, _) => {
                            self.prepared.insert(stored_key.to_vec(), (seqno, version.cas));
                            put(&Foreign::Version(version));
                        }
                        (_, Some((prepared, cas))) if version.committed && cas == version.cas => {
                            put(&Foreign::Commit { prepared, seqno, stored_key });
                        }
                        _ => put(&Foreign::Version(version)),
                    }
                }
            }
        }
        let is_whole = stream.snapshot().is_none() && advanced != Advanced::Lost;
        if is_whole {
            // Not everything is told that has a seqno.
            put(&Foreign::Advanced(stream.cursor()));
        }
        match advanced {
            Advanced::Lost => return false,
            Advanced::OnDisk => {
                read_on(&mut stream, &mut active.cx);
                let now = active.cx.now;
                PieceReader::default().turn(&mut active.cx, &mut || now);
            }
            Advanced::Idle | Advanced::More => {}
            other => panic!("{other:?}"),
        }
        self.stream = Some(stream);
        advanced == Advanced::Idle && is_whole
    }

    /// Copies to the end, and compares.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.copy(10_000) {
                let high = |node: &OneNode| node.bucket.vb_info(VB).unwrap().high_seqno;
                let [first, second] = &mut self.nodes;
                assert_eq!(high(first), high(second));
                assert_eq!(first.content(u64::MAX), second.content(u64::MAX));
                assert_eq!(first.bucket.vb_uuid(VB), second.bucket.vb_uuid(VB));
                let manifests = [&first, &second].map(|node| node.bucket.collections().manifest());
                assert_eq!(manifests[0].version(), manifests[1].version());
                assert_eq!(manifests[0].to_json(), manifests[1].to_json());
                assert_eq!(first.bucket.histories(VB)[0], second.bucket.histories(VB)[0]);
                for node in &mut self.nodes {
                    node.bucket.audit(&mut node.cx).unwrap();
                }
                return;
            }
        }
        panic!("it never comes to the end");
    }
}

fn store(cx: &mut NodeContext, bucket: &Bucket, key: Key<'_>, value: &[u8], expiry: u32) {
    let store =
        Store { flags: 7, expiry: Expiry::At(expiry), datatype: 0, value: Value::Bytes(value), new_cas: 0 };
    let at = bucket.locate(key);
    let store = if value.len() > kv::LARGE_VALUE {
        let mut item = bucket.prepare_large(cx, key, value.len()).unwrap();
        item.window(0, value.len()).copy_from_slice(value);
        Store { value: Value::Large(Box::new(item)), ..store }
    } else {
        store
    };
    // A key that waits for its commit accepts nothing.
    let _ = bucket.mutate(cx, key, at, Mutation { kind: StoreKind::Set, cas: 0, store });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_has_what_the_active_has(
        is_persistent in any::<bool>(),
        days_ahead in 0u32..2,
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let mut world = World::new(is_persistent);
        // Their clocks need not agree.
        let now = &mut world.nodes[1].cx.now;
        now.unix_s += days_ahead * DAY_S;
        now.unix_ns += u64::from(days_ahead * DAY_S) * 1_000_000_000;
        for step in &steps {
            world.run(step);
        }
        world.settle();
        // And so it has after a restart.
        for node in 0..2 {
            world.run(&Step::Write { node });
            world.run(&Step::Crash { node });
        }
        world.settle();
    }
}

/// The first node makes a change that nobody hears of; the other one, promoted, has the manifest that counts.
fn promote_without(change: &[Step], is_persistent: bool) -> World {
    let mut world = World::new(is_persistent);
    world.run(&Step::Collection);
    for key in 0..8 {
        world.run(&Step::Set { key, len: 10, expires: false });
    }
    world.settle();
    world.run(&Step::Write { node: 0 });
    world.run(&Step::Reconnect);
    for step in change {
        world.run(step);
    }
    world.run(&Step::Promote);
    world
}

fn collection(world: &World, node: usize) -> Option<u32> {
    world.nodes[node].bucket.collections().manifest().collection(DEFAULT, "c").map(|one| one.id)
}

#[test]
fn a_drop_that_nobody_heard_of_is_undone_with_its_documents() {
    for is_persistent in [false, true] {
        let mut world = promote_without(&[Step::Collection], is_persistent);
        let id = collection(&world, 1);
        assert_eq!((collection(&world, 0), id), (None, Some(26)));
        world.settle();
        assert_eq!(collection(&world, 0), id);
        let bucket = Arc::clone(&world.nodes[0].bucket);
        assert_eq!(bucket.collection_items(26), 2, "of keys 3 and 7");
    }
}

#[test]
fn copies_whose_collection_comes_back_are_empty_on_disk_before_it_is_there() {
    let mut world = promote_without(&[Step::Collection], true);
    let manifest = world.nodes[1].bucket.collections().manifest();
    let adopt = |node: &mut OneNode| node.bucket.adopt_collections(&mut node.cx, &manifest).unwrap();
    assert_eq!(adopt(&mut world.nodes[0]), Adopted::Waits);
    assert_eq!(collection(&world, 0), None);
    world.nodes[0].crash();
    // Nothing of it was written: it has what it had.
    assert!(world.nodes[0].bucket.vb_info(VB).unwrap().high_seqno > 0);
    assert_eq!(adopt(&mut world.nodes[0]), Adopted::Waits);
    world.nodes[0].write();
    assert_eq!(adopt(&mut world.nodes[0]), Adopted::Taken);
    assert_eq!(adopt(&mut world.nodes[0]), Adopted::Kept);
    world.nodes[0].crash();
    assert_eq!(collection(&world, 0), Some(26));
    assert_eq!(world.nodes[0].bucket.vb_info(VB).unwrap().high_seqno, 0);
    world.settle();
}

#[test]
fn a_collection_that_nobody_heard_of_is_undone_and_its_id_is_not_given_again() {
    for is_persistent in [false, true] {
        let lost = [Step::Collection, Step::Collection, Step::Set { key: 3, len: 10, expires: false }];
        let mut world = promote_without(&lost, is_persistent);
        assert_eq!((collection(&world, 0), collection(&world, 1)), (Some(27), Some(26)));
        world.run(&Step::Collection);
        world.run(&Step::Collection);
        world.settle();
        // The second term skips what the first may have given.
        assert_eq!((collection(&world, 0), collection(&world, 1)), (Some(43), Some(43)));
    }
}

#[test]
fn a_change_of_collections_waits_for_a_majority_and_the_next_one_for_it() {
    let mut node = OneNode::new(None, 7, Now { unix_s: START_S, ..Now::default() });
    let (bucket, cx) = (Arc::clone(&node.bucket), &mut node.cx);
    let topology = |names: &[&str]| Topology::from_json(&serde_json::json!([names])).unwrap();
    let change = |cx: &mut NodeContext, state, names: &[&str]| {
        let change =
            RoleChange { state, topology: Some(topology(names)), term: Some(1), ..RoleChange::default() };
        bucket.set_role(cx, VB, change).unwrap();
    };
    change(cx, Some(VbState::Replica), &["them", "us"]);
    let create = |name: &'static str| {
        bucket.change_collections(move |manifest| manifest.add_collection(DEFAULT, name, 0, false))
    };
    assert_eq!(create("a"), Err(ManifestError::NotActive));
    change(cx, Some(VbState::Active), &["us", "second", "third"]);
    let timeout = Duration::from_secs(10);
    let cookie = |ticket| Cookie { thread: 0, connection: 0, ticket };
    assert_eq!(bucket.await_collections(cx, VB, cookie(1), timeout), Ok(true), "nothing has changed");
    create("a").unwrap();
    assert_eq!(create("b"), Err(ManifestError::Unacknowledged), "before it has a seqno");
    assert_eq!(bucket.await_collections(cx, VB, cookie(2), timeout), Ok(false));
    let seqno = bucket.vb_info(VB).unwrap().high_seqno;
    let letters = |cx: &mut NodeContext| {
        let mut letters = Vec::new();
        cx.take_letters(true, &mut letters);
        letters
    };
    bucket.acknowledge(cx, VB, "second", seqno - 1, 0);
    bucket.acknowledge(cx, VB, "a-stranger", seqno, seqno);
    assert_eq!((letters(cx), create("b")), (vec![], Err(ManifestError::Unacknowledged)));
    bucket.acknowledge(cx, VB, "third", seqno, 0);
    assert_eq!(letters(cx), [(cookie(2), Outcome::Persisted)]);
    create("b").unwrap();
    // In time, and not if the chains change.
    assert_eq!(bucket.await_collections(cx, VB, cookie(3), timeout), Ok(false));
    cx.now.mono_us += 10_000_001;
    cx.ring_alarms();
    assert_eq!(letters(cx), [(cookie(3), Outcome::Unpersisted)]);
    assert_eq!(bucket.await_collections(cx, VB, cookie(4), timeout), Ok(false));
    change(cx, None, &["us"]);
    assert_eq!(letters(cx), [(cookie(4), Outcome::Persisted)]);
    create("c").unwrap();
}

#[test]
fn what_is_not_in_order_or_of_another_term_is_refused() {
    let mut world = World::new(false);
    let copy = &mut world.nodes[1];
    let (bucket, cx) = (Arc::clone(&copy.bucket), &mut copy.cx);
    let advanced = Foreign::Advanced(3);
    assert_eq!(bucket.copy(cx, VB, of(2), &advanced), Err(NotCopied::Role));
    assert!(matches!(bucket.copy(cx, VB, of(1), &advanced), Err(NotCopied::Broken(_))), "before a snapshot");
    bucket.copy_begun(cx, VB, of(1), &[(5, 0)], &Terms::default()).unwrap();
    bucket.copy(cx, VB, of(1), &Foreign::Snapshot { start: 0, end: 5 }).unwrap();
    bucket.copy(cx, VB, of(1), &advanced).unwrap();
    assert!(matches!(bucket.copy(cx, VB, of(1), &Foreign::Advanced(2)), Err(NotCopied::Broken(_))));
    assert!(matches!(bucket.copy(cx, VB, of(1), &Foreign::Advanced(6)), Err(NotCopied::Broken(_))));
    let missing = Foreign::Commit { prepared: 2, seqno: 4, stored_key: b"\0k" };
    assert!(matches!(bucket.copy(cx, VB, of(1), &missing), Err(NotCopied::Broken(_))));
    // The rest of the snapshot may supersede what it has.
    assert_eq!(bucket.copy_position(cx, VB).snapshot, (0, 5));
    assert_eq!((bucket.copy_position(cx, VB).start, bucket.copy_position(cx, VB).uuid), (3, 5));
    // Writes are for the active.
    let key = Key::plain(b"k");
    let removed = bucket.remove(cx, key, bucket.locate(key), 0);
    assert_eq!(removed, Err(kv::KvError::NotActive));
    // Promoted in the middle of a snapshot, its history begins before that.
    let change = RoleChange { state: Some(VbState::Active), term: Some(2), ..RoleChange::default() };
    bucket.set_role(cx, VB, change).unwrap();
    let histories = bucket.histories(VB);
    assert_eq!((histories.len(), histories[0].1, histories[1]), (2, 0, (5, 0)));
    let lower = RoleChange { state: Some(VbState::Replica), term: Some(1), ..RoleChange::default() };
    assert!(bucket.set_role(cx, VB, lower).is_err());
    assert_eq!(bucket.standing(VB), (VbState::Active, 2));
}

#[test]
fn what_is_missing_of_a_snapshot_is_missing_when_it_goes_on_elsewhere() {
    let mut world = World::new(false);
    let (bucket, cx) = (Arc::clone(&world.nodes[1].bucket), &mut world.nodes[1].cx);
    let version = |seqno: u64, key: &'static [u8]| {
        let value = VersionValue::Bytes(b"v");
        Foreign::Version(Version { seqno, rev: 1, cas: seqno, stored_key: key, value, ..Version::default() })
    };
    bucket.copy_begun(cx, VB, of(1), &[(5, 0)], &Terms::default()).unwrap();
    bucket.copy(cx, VB, of(1), &Foreign::Snapshot { start: 0, end: 10 }).unwrap();
    bucket.copy(cx, VB, of(1), &version(7, b"\0a")).unwrap();
    assert_eq!(bucket.complete_seqno(cx, VB), 0);
    // The connection breaks; the next one goes on from there, to a later end.
    assert_eq!((bucket.copy_position(cx, VB).start, bucket.copy_position(cx, VB).snapshot), (7, (0, 10)));
    bucket.copy_begun(cx, VB, of(1), &[(5, 0)], &Terms::default()).unwrap();
    bucket.copy(cx, VB, of(1), &Foreign::Snapshot { start: 7, end: 12 }).unwrap();
    bucket.copy(cx, VB, of(1), &version(11, b"\0b")).unwrap();
    assert_eq!(bucket.complete_seqno(cx, VB), 0, "what was superseded before 7 comes with the end");
    bucket.copy(cx, VB, of(1), &version(12, b"\0c")).unwrap();
    assert_eq!(bucket.complete_seqno(cx, VB), 12);
    // Of another node, or another term, nothing counts.
    let elsewhere = CopyOf { term: 1, peer: "elsewhere" };
    assert_eq!(bucket.copy(cx, VB, elsewhere, &Foreign::Advanced(12)), Err(NotCopied::Role));
    assert_eq!(bucket.copy_acknowledgement(cx, VB, elsewhere, 0), None);
    let high = Foreign::Snapshot { start: 12, end: u64::MAX };
    assert!(matches!(bucket.copy(cx, VB, of(1), &high), Err(NotCopied::Broken(_))));
}

/// What a killed active has on disk is a part of its successor's history, whatever id it goes on with.
#[test]
fn an_active_that_was_killed_goes_on_as_a_copy_from_where_it_was() {
    let mut world = World::new(true);
    for number in 0..20 {
        world.run(&Step::Set { key: number, len: 10, expires: false });
    }
    world.settle();
    world.run(&Step::Write { node: 0 });
    for number in 20..25 {
        world.run(&Step::Set { key: number, len: 10, expires: false });
    }
    // They are in memory here, and copied there.
    world.settle();
    world.run(&Step::Crash { node: 0 });
    world.run(&Step::Promote);
    world.run(&Step::Set { key: 1, len: 11, expires: false });
    assert_eq!(world.active, 1);
    let (term, copy) = (world.term, &mut world.nodes[0]);
    let position = copy.bucket.copy_position(&mut copy.cx, VB);
    assert!(position.start > 10, "{position:?}");
    let position = Position { term: Some(term), ..position };
    let active = &mut world.nodes[1];
    assert!(active.bucket.follow(&mut active.cx, VB, 99, &position, &active.news).is_ok());
    world.settle();
}

/// While a new copy takes the old one's place, the old one stays on disk, and the role stays as it is.
#[test]
fn a_copy_is_replaced_on_disk_when_all_of_the_new_one_is_here() {
    let version = |seqno: u64, key: &'static [u8]| {
        let value = VersionValue::Bytes(b"v");
        Foreign::Version(Version { seqno, rev: 1, cas: seqno, stored_key: key, value, ..Version::default() })
    };
    for crashes in ["before", "in the middle", "before it is written", "after"] {
        let mut world = World::new(true);
        for number in 0..20 {
            world.run(&Step::Set { key: number, len: 10, expires: false });
        }
        world.settle();
        let copy = &mut world.nodes[1];
        copy.write();
        let (old, complete) = (copy.content(90), copy.bucket.complete_seqno(&mut copy.cx, VB));
        assert!(old.len() > 10 && complete > 10, "{} {complete}", old.len());
        copy.set_role(VbState::Replica, 2, Some("other"));
        let bucket = Arc::clone(&copy.bucket);
        bucket.note_stale(&mut copy.cx, VB, of(2)).unwrap();
        assert!(!bucket.serves_copy(0), "nobody reads it");
        assert_eq!(bucket.complete_seqno(&mut copy.cx, VB), complete, "but it counts");
        if crashes != "before" {
            bucket.begin_refill(&mut copy.cx, VB, of(2), 100).unwrap();
            bucket.copy_begun(&mut copy.cx, VB, of(2), &[(77, 0)], &Terms::default()).unwrap();
            bucket.copy(&mut copy.cx, VB, of(2), &Foreign::Snapshot { start: 0, end: 9 }).unwrap();
            bucket.copy(&mut copy.cx, VB, of(2), &version(3, b"\0new")).unwrap();
            let promoted =
                RoleChange { state: Some(VbState::Active), term: Some(3), ..RoleChange::default() };
            assert_eq!(bucket.set_role(&mut copy.cx, VB, promoted), Err(RoleError::Refilling));
            copy.write();
            if crashes != "in the middle" {
                bucket.copy(&mut copy.cx, VB, of(2), &version(9, b"\0newer")).unwrap();
                if crashes == "before it is written" {
                    copy.write();
                }
                bucket.end_refill(&mut copy.cx, VB);
                assert!(bucket.serves_copy(0));
                if crashes == "after" {
                    copy.write();
                }
            }
        }
        drop(bucket);
        copy.crash();
        copy.bucket.audit(&mut copy.cx).unwrap();
        assert_eq!(copy.bucket.standing(VB), (VbState::Replica, 2), "{crashes}");
        if crashes == "after" {
            assert_eq!(copy.content(91).len(), 2);
            assert_eq!(copy.bucket.complete_seqno(&mut copy.cx, VB), 9);
        } else {
            assert_eq!(copy.content(91), old, "{crashes}");
            assert_eq!(copy.bucket.complete_seqno(&mut copy.cx, VB), complete, "{crashes}");
        }
    }
}

/// What a copy had acknowledged before it was emptied is not there. Until it is filled it says so, also after a
/// restart.
#[test]
fn a_copy_that_was_emptied_says_so_until_it_is_filled() {
    let mut world = World::new(true);
    let copy = &mut world.nodes[1];
    assert!(!copy.bucket.is_emptied(&mut copy.cx, VB), "it never had anything");
    for number in 0..20 {
        world.run(&Step::Set { key: number, len: 10, expires: false });
    }
    world.settle();
    let (term, copy) = (world.term, &mut world.nodes[1]);
    copy.bucket.copy_anew(&mut copy.cx, VB, of(term)).unwrap();
    copy.write();
    copy.crash();
    assert!(copy.bucket.is_emptied(&mut copy.cx, VB));
    let bucket = Arc::clone(&copy.bucket);
    bucket.copy_begun(&mut copy.cx, VB, of(term), &[(5, 0)], &Terms::default()).unwrap();
    bucket.copy(&mut copy.cx, VB, of(term), &Foreign::Snapshot { start: 0, end: 4 }).unwrap();
    bucket.copy(&mut copy.cx, VB, of(term), &Foreign::Advanced(3)).unwrap();
    assert!(bucket.is_emptied(&mut copy.cx, VB), "a part of a snapshot may lack what its rest supersedes");
    bucket.copy(&mut copy.cx, VB, of(term), &Foreign::Advanced(4)).unwrap();
    assert!(!bucket.is_emptied(&mut copy.cx, VB));
}

#[test]
fn a_copy_that_was_deleted_begins_from_nothing() {
    for is_persistent in [false, true] {
        let mut world = World::new(is_persistent);
        for number in 0..20 {
            world.run(&Step::Set { key: number, len: 10, expires: false });
        }
        world.settle();
        let copy = &mut world.nodes[1];
        copy.bucket.delete_vbucket(&mut copy.cx, VB).unwrap();
        copy.set_role(VbState::Replica, 1, Some("other"));
        world.stream = None;
        for number in 20..25 {
            world.run(&Step::Set { key: number, len: 10, expires: false });
        }
        world.settle();
    }
}

#[test]
fn an_active_that_was_promoted_is_the_active_after_a_clean_stop() {
    let mut world = World::new(true);
    world.run(&Step::Set { key: 0, len: 10, expires: false });
    world.settle();
    world.run(&Step::Promote);
    world.run(&Step::Set { key: 1, len: 10, expires: false });
    world.settle();
    for is_clean in [true, false] {
        let node = &mut world.nodes[1];
        let topology = Topology::new([[Some("here"), Some("other")]]).unwrap();
        let change =
            RoleChange { state: Some(VbState::Active), topology: Some(topology), ..RoleChange::default() };
        node.bucket.set_role(&mut node.cx, VB, change).unwrap();
        node.write();
        let before = node.bucket.histories(VB);
        assert_eq!(node.bucket.histories(VB)[0].0, node.bucket.vb_uuid(VB));
        if is_clean {
            close_journal(&node.bucket, &mut node.cx, &mut Flusher::new(0, 4096)).unwrap();
        }
        node.crash();
        let state = if is_clean { VbState::Active } else { VbState::Pending };
        assert_eq!(node.bucket.vbucket_state(VB), state);
        assert_eq!(node.bucket.histories(VB)[0].0, node.bucket.vb_uuid(VB));
        assert_eq!(node.bucket.histories(VB) == before, is_clean);
    }
}

#[test]
fn a_snapshot_ends_whose_last_item_is_flushed_meanwhile() {
    let mut world = World::new(true);
    world.with_key(0, |cx, bucket, key| store(cx, bucket, key, &[7; 33_000], 0));
    while world.stream.as_ref().is_none_or(|stream| stream.cursor() == 0) {
        world.copy(1);
    }
    assert!(world.stream.as_ref().unwrap().snapshot().is_some());
    world.run(&Step::Collection);
    world.run(&Step::Write { node: 0 });
    world.settle();
}

/// A document whose CAS no clock shows is copied as it is; the clock of the copy goes on from the time, also after a
/// restart, and follows the clock of a node that shows a wrong day.
#[test]
fn the_clock_of_a_copy_does_not_follow_a_cas_that_is_years_ahead() {
    // Later than the earliest time that a clock is believed.
    let now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000 * 1_000_000_000, mono_us: 0 };
    let day_ns = u64::from(DAY_S) * 1_000_000_000;
    for (ahead_ns, follows) in [(day_ns, true), (9 * 365 * day_ns, false)] {
        let disk = SimulatedDisk::new();
        let mut node = OneNode::new(Some(disk.clone()), 7, now);
        node.set_role(VbState::Replica, 1, Some("other"));
        let cas = now.unix_ns + ahead_ns;
        let version = |seqno, stored_key, kind| {
            let value = VersionValue::Bytes(b"v");
            Foreign::Version(Version { seqno, rev: 1, cas, stored_key, value, kind, ..Version::default() })
        };
        node.bucket.copy_begun(&mut node.cx, VB, of(1), &[(5, 0)], &Terms::default()).unwrap();
        for foreign in [
            Foreign::Snapshot { start: 0, end: 2 },
            version(1, b"\0k", VersionKind::Document),
            version(2, b"\0p", VersionKind::Prepare),
        ] {
            node.bucket.copy(&mut node.cx, VB, of(1), &foreign).unwrap();
        }
        let mut last = 0;
        for start in 0..3 {
            node.set_role(VbState::Active, 2 + start, None);
            let key = Key::plain(b"other");
            let store =
                Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value: Value::Bytes(b"v"), new_cas: 0 };
            let at = node.bucket.locate(key);
            let set = Mutation { kind: StoreKind::Set, cas: 0, store };
            let stored = node.bucket.mutate(&mut node.cx, key, at, set).unwrap().cas;
            assert!(stored > last, "start {start}");
            assert_eq!(stored > cas, follows, "start {start}: {stored}");
            assert!(follows || stored < now.unix_ns + day_ns, "start {start}: {stored}");
            let key = Key::plain(b"k");
            let seen = node.bucket.read(&mut node.cx, key, node.bucket.locate(key), |document| {
                document.map(|document| document.cas())
            });
            assert_eq!(seen, Ok(Some(cas)), "the document has what it had there");
            last = stored;
            node.write();
            node = OneNode::new(Some(disk.clone()), 8 + start, now);
        }
    }
}
