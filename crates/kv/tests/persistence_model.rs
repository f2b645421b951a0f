//! A persistent bucket on a disk that fails and forgets, against a model that remembers every version of every key.
//!
//! Random histories of everything a client can do, flushes at random points, failures and power cuts at random
//! operations of the disk. After a cut and a warm-up each key has the newest version that was announced as persisted,
//! or a newer one: never an older one, never half of one, and never one that was deleted since. Then the history
//! continues.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use journal::{AnyDisk, Fault, SimulatedDisk, Survival};
use kv::bucket::Arithmetic;
use kv::defragmenter::{Mover, empty_slabs};
use kv::persistence::{Fetcher, Flusher};
use kv::{
    Bucket, BucketSettings, Expiry, HeapChoice, Key, KvError, Limits, Mutation, Node, NodeContext,
    NodeSettings, Now, PersistenceSettings, Place, Store, StoreKind, Unavailable, Value, VbId,
};
use proptest::prelude::*;
use wire::binary::datatype;
use wire::xattrs;

const START_S: u32 = 1_700_000_000;
const KEYS: u16 = 60;

#[derive(Debug, Clone)]
enum Step {
    Store { kind: u8, key: u16, len: u32, ttl: u8 },
    Remove { key: u16 },
    Touch { key: u16, ttl: u8 },
    Count { key: u16 },
    Prepare { key: u16, len: u16, deletes: bool },
    Attribute { key: u16, len: u16, deletes: bool, prepares: bool },
    End { which: u8, commits: bool },
    FlushAll,
    Sleep { seconds: u8 },
    Page,
    Squeeze,
    Flush,
    Compact,
    Fail { after: u8, fault: u8 },
    Cut { after: u8, survival: u8 },
    Stop,
    Move { slices: u8, slabs: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u16..KEYS;
    let length = prop_oneof![8 => 0u32..300, 1 => 3000u32..9000, 1 => 33_000u32..70_000];
    prop_oneof![
        16 => (0u8..5, key.clone(), length, 0u8..80)
            .prop_map(|(kind, key, len, ttl)| Step::Store { kind, key, len, ttl }),
        6 => key.clone().prop_map(|key| Step::Remove { key }),
        2 => (key.clone(), 0u8..80).prop_map(|(key, ttl)| Step::Touch { key, ttl }),
        2 => key.clone().prop_map(|key| Step::Count { key }),
        3 => (key.clone(), 0u16..400, any::<bool>())
            .prop_map(|(key, len, deletes)| Step::Prepare { key, len, deletes }),
        5 => (key, 0u16..200, any::<bool>(), 0u8..4).prop_map(|(key, len, deletes, prepares)| {
            Step::Attribute { key, len, deletes, prepares: prepares == 0 }
        }),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(which, commits)| Step::End { which, commits }),
        1 => Just(Step::FlushAll),
        1 => (0u8..40).prop_map(|seconds| Step::Sleep { seconds }),
        1 => Just(Step::Page),
        2 => Just(Step::Squeeze),
        8 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => (0u8..12, 0u8..4).prop_map(|(after, fault)| Step::Fail { after, fault }),
        2 => (0u8..40, 0u8..5).prop_map(|(after, survival)| Step::Cut { after, survival }),
        1 => Just(Step::Stop),
        8 => (1u8..12, 0u8..3).prop_map(|(slices, slabs)| Step::Move { slices, slabs }),
    ]
}

/// The content of a key from some moment on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    /// Its seqno, and whether it is a flush_all after that seqno.
    at: (u64, bool),
    value: Option<Vec<u8>>,
    /// Section of the extended attributes; a deleted document may have one.
    xattrs: Vec<u8>,
    expiry: u32,
}

/// Body, extended attributes and expiry, as a client sees them.
type Seen = (Option<Vec<u8>>, Vec<u8>, u32);

#[derive(Debug)]
struct Prepared {
    key: u16,
    seqno: u64,
    value: Option<Vec<u8>>,
    xattrs: Vec<u8>,
    expiry: u32,
    /// Its end, and whether that was a commit.
    end: Option<(u64, bool)>,
}

/// What a prepare that was found would make of its key, and whether it must have been found.
type Recovered = (Option<Vec<u8>>, Vec<u8>, bool);

struct World {
    disk: SimulatedDisk,
    seed: u64,
    cx: NodeContext,
    bucket: Arc<Bucket>,
    shape: Shape,
    now: Now,
    versions: BTreeMap<u16, Vec<Version>>,
    prepares: Vec<Prepared>,
    fill: u8,
    mover: Mover,
}

/// What the bucket is created with.
#[derive(Debug, Clone, Copy)]
struct Shape {
    vbuckets: u16,
    shards: u16,
    item_heap: HeapChoice,
}

fn open(disk: &SimulatedDisk, seed: u64, shape: Shape, now: Now) -> (NodeContext, Arc<Bucket>) {
    let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed };
    let node = Node::new(settings, Limits::default());
    let Shape { vbuckets, shards, item_heap } = shape;
    let persistence = PersistenceSettings {
        shards,
        segment_bytes: 10_000,
        tombstone_age_s: 60,
        flush_interval_ms: 0,
        ..PersistenceSettings::default()
    };
    let settings = BucketSettings {
        vbuckets,
        memory_bytes: 1 << 30,
        persistence,
        item_heap,
        ..BucketSettings::default()
    };
    let any = AnyDisk::Simulated(disk.clone());
    let bucket = node.open_bucket("b", settings, any, Path::new("/b")).unwrap();
    let mut cx = NodeContext::new(node, 0);
    cx.now = now;
    (cx, bucket)
}

fn turn(cx: &mut NodeContext, now: Now) {
    while kv::persistence::load_next(cx, &mut journal::log::Buffer::new(4096)) {}
    for index in 0..kv::persistence::FLUSHERS {
        Flusher::new(index, 4096).turn(cx, &mut || now);
    }
}

impl World {
    fn new(shape: Shape) -> Self {
        let now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_us: 1000 };
        let disk = SimulatedDisk::new();
        let (cx, bucket) = open(&disk, 1, shape, now);
        Self {
            disk,
            seed: 1,
            cx,
            bucket,
            shape,
            now,
            versions: BTreeMap::new(),
            prepares: Vec::new(),
            fill: 0,
            mover: Mover::of_everything(),
        }
    }

    fn place(&self, key: u16) -> Place {
        self.bucket.locate(Key::plain(format!("key-{key}").as_bytes()))
    }

    /// Returns the live document according to the model.
    fn current(&self, key: u16) -> Option<(Vec<u8>, u32)> {
        let version = self.versions.get(&key)?.last()?;
        let is_alive = version.expiry == 0 || version.expiry > self.now.unix_s;
        version.value.clone().filter(|_| is_alive).map(|value| (value, version.expiry))
    }

    fn is_pending(&self, key: u16) -> bool {
        self.prepares.iter().any(|prepared| prepared.key == key && prepared.end.is_none())
    }

    /// Returns the attributes that the live document has according to the model.
    fn xattrs(&self, key: u16) -> Vec<u8> {
        let is_live = self.current(key).is_some();
        let last = self.versions.get(&key).and_then(|versions| versions.last()).filter(|_| is_live);
        last.map(|version| version.xattrs.clone()).unwrap_or_default()
    }

    /// Notes a change that keeps the attributes, or a deletion that keeps those of the system.
    fn push(&mut self, key: u16, seqno: u64, value: Option<Vec<u8>>, expiry: u32) {
        let mut section = self.xattrs(key);
        if value.is_none() {
            section = xattrs::retained(&section, xattrs::is_system);
        }
        self.push_whole(key, seqno, value, section, expiry);
    }

    fn push_whole(&mut self, key: u16, seqno: u64, value: Option<Vec<u8>>, xattrs: Vec<u8>, expiry: u32) {
        let versions = self.versions.entry(key).or_default();
        assert!(versions.last().is_none_or(|last| last.at < (seqno, false)));
        versions.push(Version { at: (seqno, false), value, xattrs, expiry });
    }

    /// Returns true if this is what a client may see of a version. An expired document may leave its system attributes.
    fn fits(&self, version: &Version, seen: &Seen) -> bool {
        let (value, section, expiry) = seen;
        if version.expiry == 0 || version.expiry > self.now.unix_s {
            return (value, section, *expiry) == (&version.value, &version.xattrs, version.expiry);
        }
        let left = xattrs::retained(&version.xattrs, xattrs::is_system);
        value.is_none() && (section.is_empty() || *section == left)
    }

    fn value(&mut self, len: u32) -> Vec<u8> {
        self.fill = self.fill.wrapping_add(1);
        if len < 8 { b"41".to_vec() } else { vec![self.fill; len as usize] }
    }

    fn expiry(&self, ttl: u8) -> u32 {
        if ttl < 60 { 0 } else { self.now.unix_s + u32::from(ttl) - 59 }
    }

    /// Returns the live document in the bucket; fetches the value if it is not in memory.
    fn get(&mut self, key: u16) -> Option<(Vec<u8>, u32)> {
        let (value, _, expiry) = self.see(key);
        value.map(|value| (value, expiry))
    }

    fn see(&mut self, key: u16) -> Seen {
        let (text, at, bucket) = (format!("key-{key}"), self.place(key), Arc::clone(&self.bucket));
        let key = Key::plain(text.as_bytes());
        loop {
            let seen = bucket.with_entry(&mut self.cx, key, at, |entry| match entry.document() {
                Some(document) => {
                    (Some(document.value().to_vec()), document.xattrs().to_vec(), document.expiry())
                }
                None => {
                    let section = entry.with_shadow(|shadow| shadow.xattrs().to_vec());
                    (None, section.unwrap_or_default(), 0)
                }
            });
            match seen {
                Ok(seen) => return seen,
                Err(Unavailable::NotResident) => self.fetch(key, at),
                Err(other) => panic!("{other}"),
            }
        }
    }

    fn fetch(&mut self, key: Key<'_>, at: Place) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let done = Box::new(move |result| sender.send(result).unwrap());
        if kv::persistence::fetch(&self.bucket, &mut self.cx, key, at, done).is_none() {
            return;
        }
        let now = self.now;
        for index in 0..kv::persistence::FETCHERS {
            Fetcher::new(index).turn(&mut self.cx, &mut || now);
        }
        assert_eq!(receiver.recv().unwrap(), Ok(()));
    }

    fn run(&mut self, step: &Step) {
        self.now.unix_ns += 1;
        self.now.mono_us += 10_000_000;
        self.cx.now = self.now;
        match *step {
            Step::Store { kind, key, len, ttl } => self.store(kind, key, len, ttl),
            Step::Remove { key } => {
                self.get(key);
                let (text, at, bucket) = (format!("key-{key}"), self.place(key), Arc::clone(&self.bucket));
                let result = bucket.remove(&mut self.cx, Key::plain(text.as_bytes()), at, 0);
                match result {
                    Ok(mutated) => {
                        assert!(!self.is_pending(key) && self.current(key).is_some());
                        self.push(key, mutated.seqno, None, 0);
                    }
                    Err(KvError::NotFound) => assert_eq!(self.current(key), None),
                    Err(KvError::SyncWriteInProgress) => assert!(self.is_pending(key)),
                    Err(error) => assert_eq!(error, KvError::NoSpace),
                }
            }
            Step::Touch { key, ttl } => {
                self.get(key);
                let (text, at, bucket) = (format!("key-{key}"), self.place(key), Arc::clone(&self.bucket));
                let expiry = self.expiry(ttl);
                let result = bucket.change(&mut self.cx, Key::plain(text.as_bytes()), at, |entry| {
                    entry.touch(Expiry::At(expiry))
                });
                match result {
                    Ok(mutated) => match self.current(key).unwrap() {
                        (_, same) if same == expiry => {
                            let last = self.versions.get(&key).and_then(|versions| versions.last()).unwrap();
                            // 0: of before the last start.
                            assert!([0, mutated.seqno].contains(&last.at.0), "it changes nothing");
                        }
                        (value, _) => self.push(key, mutated.seqno, Some(value), expiry),
                    },
                    Err(KvError::NotFound) => assert_eq!(self.current(key), None),
                    Err(KvError::SyncWriteInProgress) => assert!(self.is_pending(key)),
                    Err(error) => assert_eq!(error, KvError::NoSpace),
                }
            }
            Step::Count { key } => {
                self.get(key);
                let (text, at, bucket) = (format!("key-{key}"), self.place(key), Arc::clone(&self.bucket));
                let how = Arithmetic {
                    delta: 3,
                    decrement: false,
                    initial: Some(7),
                    expiry: Expiry::At(0),
                    cas: 0,
                    new_cas: 0,
                };
                let result = bucket.arithmetic(&mut self.cx, Key::plain(text.as_bytes()), at, how);
                if let Ok((number, mutated)) = result {
                    let expiry = self.current(key).map_or(0, |(_, expiry)| expiry);
                    self.push(key, mutated.seqno, Some(number.to_string().into_bytes()), expiry);
                }
            }
            Step::Prepare { key, len, deletes } => self.prepare(key, len, deletes),
            Step::Attribute { key, len, deletes, prepares } => self.attribute(key, len, deletes, prepares),
            Step::End { which, commits } => {
                let open: Vec<usize> =
                    (0..self.prepares.len()).filter(|at| self.prepares[*at].end.is_none()).collect();
                if !open.is_empty() {
                    self.end(open[usize::from(which) % open.len()], commits);
                }
            }
            Step::FlushAll => {
                let bucket = Arc::clone(&self.bucket);
                bucket.flush(&mut self.cx, 0).unwrap();
                for key in 0..KEYS {
                    let seqno = bucket.vb_info(self.place(key).vb).unwrap().high_seqno;
                    let versions = self.versions.entry(key).or_default();
                    if versions.last().is_some_and(|last| last.at < (seqno, true)) {
                        versions.push(Version {
                            at: (seqno, true),
                            value: None,
                            xattrs: Vec::new(),
                            expiry: 0,
                        });
                    }
                }
            }
            Step::Sleep { seconds } => {
                self.now.unix_s += u32::from(seconds);
                self.now.unix_ns += u64::from(seconds) * 1_000_000_000;
            }
            Step::Page => {
                kv::pager::turn(&mut self.cx);
            }
            Step::Squeeze => {
                let bucket = Arc::clone(&self.bucket);
                bucket.set_budget(1);
                kv::pager::turn(&mut self.cx);
                bucket.set_budget(1 << 30);
            }
            Step::Flush => turn(&mut self.cx, self.now),
            Step::Compact => (0..30).for_each(|_| turn(&mut self.cx, self.now)),
            Step::Fail { after, fault } => {
                let at = self.disk.operations() + u64::from(after);
                let fault = [Fault::Io, Fault::NoSpace, Fault::Short(7), Fault::Torn(9)][usize::from(fault)];
                self.disk.inject(at, fault);
            }
            Step::Cut { after, survival } => self.cut(after, survival),
            Step::Stop => self.stop(),
            Step::Move { slices, slabs } => self.move_items(slices, slabs),
        }
        self.cx.end_batch();
    }

    /// Runs some slices of a walk that moves everything; flusher, sweeper and replay may run between two of them.
    fn move_items(&mut self, slices: u8, slabs: u8) {
        let bucket = Arc::clone(&self.bucket);
        for _ in 0..slices {
            if !self.mover.slice(&bucket, &mut self.cx) {
                self.mover = Mover::of_everything();
            }
        }
        empty_slabs(&bucket, &mut self.cx, usize::from(slabs));
        self.cx.end_batch();
        bucket.audit(&mut self.cx).unwrap();
    }

    fn store(&mut self, kind: u8, key: u16, len: u32, ttl: u8) {
        let kind =
            [StoreKind::Set, StoreKind::Add, StoreKind::Replace, StoreKind::Append, StoreKind::Prepend]
                [usize::from(kind)];
        if matches!(kind, StoreKind::Append | StoreKind::Prepend) || !self.xattrs(key).is_empty() {
            self.get(key);
        }
        let (text, at, bucket) = (format!("key-{key}"), self.place(key), Arc::clone(&self.bucket));
        let (value, expiry) = (self.value(len), self.expiry(ttl));
        let large = (value.len() > kv::LARGE_VALUE).then(|| {
            let mut item =
                bucket.prepare_large(&mut self.cx, Key::plain(text.as_bytes()), value.len()).unwrap();
            item.window(0, value.len()).copy_from_slice(&value);
            Value::Large(Box::new(item))
        });
        let stored = large.unwrap_or(Value::Bytes(&value));
        let store = Store { flags: 0, expiry: Expiry::At(expiry), datatype: 0, value: stored, new_cas: 0 };
        let mutation = Mutation { kind, cas: 0, store };
        let result = bucket.mutate(&mut self.cx, Key::plain(text.as_bytes()), at, mutation);
        let old = self.current(key);
        let expected = match (kind, old) {
            (StoreKind::Set, _) | (StoreKind::Add, None) | (StoreKind::Replace, Some(_)) => {
                Ok((value, expiry))
            }
            (StoreKind::Append, Some((old, expiry))) => Ok(([old, value].concat(), expiry)),
            (StoreKind::Prepend, Some((old, expiry))) => Ok(([value, old].concat(), expiry)),
            (StoreKind::Add, Some(_)) => Err(KvError::Exists),
            (StoreKind::Replace, None) => Err(KvError::NotFound),
            (StoreKind::Append | StoreKind::Prepend, None) => Err(KvError::NotStored),
        };
        match (result, expected) {
            (Ok(mutated), Ok((value, expiry))) => self.push(key, mutated.seqno, Some(value), expiry),
            (Err(KvError::SyncWriteInProgress), _) => assert!(self.is_pending(key)),
            (Err(KvError::NoSpace), _) => {}
            (result, expected) => assert_eq!(result.map(drop), expected.map(drop), "{kind:?} {text}"),
        }
    }

    /// Sets an attribute of the system and one of the user, of a live document or a deleted one.
    fn attribute(&mut self, key: u16, len: u16, deletes: bool, prepares: bool) {
        self.get(key);
        let old = self.current(key);
        if old.is_none() && !deletes {
            return;
        }
        let mut section = xattrs::Builder::default();
        let value = self.value(u32::from(len));
        section.push(b"_s", &value);
        section.push(b"user", b"1");
        let section = section.finish();
        let body = old.as_ref().map(|(body, _)| body.clone()).unwrap_or_default();
        let whole = [&section[..], &body].concat();
        let (text, at, bucket) = (format!("key-{key}"), self.place(key), Arc::clone(&self.bucket));
        let large = (whole.len() > kv::LARGE_VALUE).then(|| {
            let mut item =
                bucket.prepare_large(&mut self.cx, Key::plain(text.as_bytes()), whole.len()).unwrap();
            item.window(0, whole.len()).copy_from_slice(&whole);
            Value::Large(Box::new(item))
        });
        let result = bucket.change(&mut self.cx, Key::plain(text.as_bytes()), at, |entry| {
            entry.prepare_at(u8::from(prepares));
            if deletes {
                return entry.leave_shadow(&section, 0);
            }
            let value = large.unwrap_or(Value::Bytes(&whole));
            entry.store_whole(Store {
                flags: 0,
                expiry: Expiry::Keep,
                datatype: datatype::XATTR,
                value,
                new_cas: 0,
            })
        });
        match result {
            Ok(mutated) => {
                let expiry = old.as_ref().filter(|_| !deletes).map_or(0, |(_, expiry)| *expiry);
                let value = (!deletes).then_some(body);
                if prepares {
                    let seqno = mutated.seqno;
                    self.prepares.push(Prepared { key, seqno, value, xattrs: section, expiry, end: None });
                } else {
                    self.push_whole(key, mutated.seqno, value, section, expiry);
                }
            }
            Err(KvError::SyncWriteInProgress) => assert!(self.is_pending(key)),
            Err(error) => assert_eq!(error, KvError::NoSpace),
        }
    }

    fn prepare(&mut self, key: u16, len: u16, deletes: bool) {
        self.get(key);
        let (text, at, bucket) = (format!("key-{key}"), self.place(key), Arc::clone(&self.bucket));
        let value = self.value(u32::from(len));
        let result = bucket.change(&mut self.cx, Key::plain(text.as_bytes()), at, |entry| {
            entry.prepare_at(1 + u8::from(deletes));
            if deletes {
                return entry.remove();
            }
            let value = Value::Bytes(&value);
            entry.store(Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 })
        });
        match result {
            Ok(mutated) => {
                let value = (!deletes).then_some(value);
                let mut section = self.xattrs(key);
                if deletes {
                    section = xattrs::retained(&section, xattrs::is_system);
                }
                let seqno = mutated.seqno;
                self.prepares.push(Prepared { key, seqno, value, xattrs: section, expiry: 0, end: None });
            }
            Err(KvError::NotFound) => assert!(deletes && self.current(key).is_none()),
            Err(KvError::SyncWriteInProgress) => assert!(self.is_pending(key)),
            Err(error) => assert_eq!(error, KvError::NoSpace),
        }
    }

    fn end(&mut self, at: usize, commits: bool) {
        let (key, seqno) = (self.prepares[at].key, self.prepares[at].seqno);
        let (vb, bucket) = (self.place(key).vb, Arc::clone(&self.bucket));
        let ended = if commits {
            bucket.commit(&mut self.cx, vb, seqno).unwrap()
        } else {
            bucket.abort(&mut self.cx, vb, seqno).unwrap()
        };
        self.prepares[at].end = Some((ended.seqno, commits));
        if commits {
            let Prepared { value, xattrs, expiry, .. } = &self.prepares[at];
            let (value, xattrs, expiry) = (value.clone(), xattrs.clone(), *expiry);
            self.push_whole(key, ended.seqno, value, xattrs, expiry);
        }
    }

    fn persisted(&self, vb: VbId) -> u64 {
        self.bucket.vb_info(vb).unwrap().persisted_seqno
    }

    /// The power fails at one of the next operations of the disk, at the latest after a flush.
    fn cut(&mut self, after: u8, survival: u8) {
        self.disk.inject(self.disk.operations() + u64::from(after), Fault::PowerOff);
        (0..8).for_each(|_| turn(&mut self.cx, self.now));
        let survival = [
            Survival::Synced,
            Survival::Everything,
            Survival::Cached,
            Survival::Some(1),
            Survival::Some(usize::from(after)),
        ][usize::from(survival)];
        self.restart(survival, false);
    }

    fn restart(&mut self, survival: Survival, stopping: bool) {
        let persisted: Vec<u64> = (0..self.shape.vbuckets).map(|vb| self.persisted(VbId(vb))).collect();
        let high: Vec<u64> =
            (0..self.shape.vbuckets).map(|vb| self.bucket.vb_info(VbId(vb)).unwrap().high_seqno).collect();
        let uuids: Vec<u64> =
            (0..self.shape.vbuckets).map(|vb| self.bucket.vb_info(VbId(vb)).unwrap().uuid).collect();
        self.disk.crash(survival);
        self.reopen();
        for vb in 0..self.shape.vbuckets {
            let info = self.bucket.vb_info(VbId(vb)).unwrap();
            let at = usize::from(vb);
            let prepares = self.prepares.len() as u64;
            assert!(info.high_seqno >= persisted[at] && info.high_seqno <= high[at] + prepares);
            // After a stop whose last operation failed, the end may be a clean one all the same.
            let is_clean = stopping && persisted[at] == high[at];
            assert!(is_clean || info.uuid != uuids[at], "what follows may differ from what was");
        }
        self.check(|vb| persisted[usize::from(vb.0)]);
    }

    /// A clean stop: everything is there, and the histories go on.
    fn stop(&mut self) {
        let bucket = Arc::clone(&self.bucket);
        let uuid = bucket.vb_info(VbId(0)).unwrap().uuid;
        let mut flusher = Flusher::new(0, 4096);
        if kv::persistence::close_journal(&bucket, &mut self.cx, &mut flusher).is_err() {
            // A pending fault has struck: as after a power cut.
            return self.restart(Survival::Everything, true);
        }
        self.disk.crash(Survival::Synced);
        self.reopen();
        self.check(|_| u64::MAX);
        assert_eq!(self.bucket.vb_info(VbId(0)).unwrap().uuid, uuid);
    }

    fn reopen(&mut self) {
        self.seed += 1;
        (self.cx, self.bucket) = open(&self.disk, self.seed, self.shape, self.now);
        self.look_before_it_is_read();
        turn(&mut self.cx, self.now);
        let troubles = self.bucket.persistence().unwrap().take_troubles();
        assert!(troubles.is_empty(), "{troubles:?}");
        assert!(!self.bucket.persistence().unwrap().warm_up().is_running());
    }

    /// Nothing is reported as a miss while the journal has not been read.
    fn look_before_it_is_read(&mut self) {
        let bucket = Arc::clone(&self.bucket);
        for key in 0..KEYS {
            let (text, at) = (format!("key-{key}"), self.place(key));
            let seen =
                bucket.read(&mut self.cx, Key::plain(text.as_bytes()), at, |document| document.is_some());
            if seen == Err(Unavailable::Damaged) {
                panic!("{:?}", bucket.persistence().unwrap().take_troubles());
            }
            assert!(seen == Ok(false) || seen == Err(Unavailable::WarmingUp));
            let removed = bucket.remove(&mut self.cx, Key::plain(text.as_bytes()), at, 0);
            let expected = if seen.is_err() { KvError::WarmingUp } else { KvError::NotFound };
            assert_eq!(removed.unwrap_err(), expected);
        }
    }

    /// Compares what is there with what may be there, and makes it the model's only version.
    fn check(&mut self, persisted: impl Fn(VbId) -> u64) {
        // A prepare that is found is committed: it was alone in its chain.
        let mut committed: BTreeMap<u16, Vec<Recovered>> = BTreeMap::new();
        for prepared in std::mem::take(&mut self.prepares) {
            let safe = persisted(self.place(prepared.key).vb);
            let must = prepared.end.is_none() && prepared.seqno <= safe;
            let may = prepared.end.is_none_or(|(end, _)| end > safe);
            if may {
                committed.entry(prepared.key).or_default().push((prepared.value, prepared.xattrs, must));
            }
        }
        for vb in 0..self.shape.vbuckets {
            assert!(self.bucket.prepared(&mut self.cx, VbId(vb)).is_empty());
        }
        for key in 0..KEYS {
            let vb = self.place(key).vb;
            let (safe, found) = (persisted(vb), self.see(key));
            let versions = self.versions.remove(&key).unwrap_or_default();
            // A flush_all is announced by the next seqno that is.
            let announced = |version: &&Version| version.at.0 + u64::from(version.at.1) <= safe;
            let newest = versions.iter().rev().find(announced).map_or((0, false), |version| version.at);
            let mut allowed = versions.iter().filter(|version| version.at >= newest);
            let committed = committed.remove(&key).unwrap_or_default();
            let must = committed.iter().find(|(_, _, must)| *must);
            let nothing = (None, Vec::new(), 0);
            // Attributes that a prepare has beside an expiry may have expired.
            let is_of = |(value, xattrs, _): &Recovered| {
                (value, xattrs) == (&found.0, &found.1) || found.0.is_none() && value.is_some()
            };
            let fits = match must {
                Some(prepared) => is_of(prepared),
                None => {
                    allowed.any(|version| self.fits(version, &found))
                        || newest.0 == 0 && found == nothing
                        || committed.iter().any(is_of)
                }
            };
            assert!(
                fits,
                "key-{key} of {vb:?}, persisted {safe}: found {:?}, versions {:?}",
                (found.0.as_ref().map(|value| (value.len(), value.first().copied())), &found.1, found.2),
                versions
                    .iter()
                    .map(|v| (
                        v.at,
                        v.expiry,
                        v.value.as_ref().map(|v| (v.len(), v.first().copied())),
                        &v.xattrs
                    ))
                    .collect::<Vec<_>>()
            );
            if found != nothing {
                let (value, xattrs, expiry) = found;
                self.versions.insert(key, vec![Version { at: (0, false), value, xattrs, expiry }]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    #[test]
    fn what_was_announced_survives(
        vbuckets in prop_oneof![Just(1u16), Just(4)],
        shards in 1u16..3,
        item_heap in prop_oneof![Just(HeapChoice::Block), Just(HeapChoice::Slab)],
        steps in proptest::collection::vec(step(), 1..700),
    ) {
        let mut world = World::new(Shape { vbuckets, shards: shards.min(vbuckets), item_heap });
        for step in &steps {
            world.run(step);
        }
        world.restart(Survival::Synced, false);
        world.stop();
        for key in 0..KEYS {
            let seen = world.see(key);
            let last = world.versions.get(&key).and_then(|versions| versions.last());
            let fits = last.map_or(seen == (None, Vec::new(), 0), |last| world.fits(last, &seen));
            prop_assert!(fits, "{seen:?} {last:?}");
        }
    }
}
