//! The engine against a model of fifty lines: a map from key to value, expiry and CAS.
//!
//! Random histories of stores, appends, counters, touches, deletes, flushes and passing time, on few keys and few
//! vBuckets, so that the index grows, splits, merges and shrinks. After each step the answer agrees with the model; at
//! the end the accounts agree with the sum of the items, and after a flush nothing is left allocated.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::sync::Arc;

use kv::PinnedValue;
use kv::bucket::Arithmetic;
use kv::defragmenter::{Mover, empty_slabs};
use kv::{
    Bucket, BucketSettings, Expiry, HeapChoice, Key, KvError, Limits, Mutation, Node, NodeContext,
    NodeSettings, Now, Place, Store, StoreKind, Value,
};
use proptest::prelude::*;

const START_S: u32 = 1_700_000_000;
/// What slabs keep for later when all are gone: descriptors, and a leaf of the page map, 4 KiB, for each region of 2
/// MiB that had a slab. In a tenant's own chunk there are two. In a heap that the whole process shares, slabs lie
/// wherever it has holes: up to seven were seen.
const SLAB_BOOKKEEPING_MAX: u64 = if memory::backend::ARENA_GOES_AS_A_WHOLE { 16 << 10 } else { 64 << 10 };

#[derive(Debug, Clone)]
enum Step {
    Store { kind: u8, key: u16, len: u16, ttl: u8, with_cas: bool },
    Get { key: u16 },
    Remove { key: u16 },
    Touch { key: u16, ttl: u8 },
    Count { key: u16, delta: u8 },
    Sleep { seconds: u8 },
    Page,
    Flush,
    Prepare { key: u16, len: u16, ttl: u8, deletes: bool },
    End { which: u8, commits: bool },
    Lock { key: u16 },
    Pin { key: u16, len: u16 },
    Unpin,
    Move { slices: u8, slabs: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u16..400;
    prop_oneof![
        8 => (0u8..5, key.clone(), prop_oneof![0u16..400, 400u16..5000], 0u8..120, any::<bool>())
            .prop_map(|(kind, key, len, ttl, with_cas)| Step::Store { kind, key, len, ttl, with_cas }),
        4 => key.clone().prop_map(|key| Step::Get { key }),
        4 => key.clone().prop_map(|key| Step::Remove { key }),
        1 => (key.clone(), 0u8..120).prop_map(|(key, ttl)| Step::Touch { key, ttl }),
        1 => (key, any::<u8>()).prop_map(|(key, delta)| Step::Count { key, delta }),
        1 => (0u8..40).prop_map(|seconds| Step::Sleep { seconds }),
        1 => Just(Step::Page),
        1 => Just(Step::Flush),
        2 => (0u16..400, prop_oneof![0u16..400, 32_000u16..34_000], 0u8..120, any::<bool>())
            .prop_map(|(key, len, ttl, deletes)| Step::Prepare { key, len, ttl, deletes }),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(which, commits)| Step::End { which, commits }),
        1 => (0u16..400).prop_map(|key| Step::Lock { key }),
        1 => (0u16..400, 33_000u16..40_000).prop_map(|(key, len)| Step::Pin { key, len }),
        1 => Just(Step::Unpin),
        4 => (1u8..12, 0u8..3).prop_map(|(slices, slabs)| Step::Move { slices, slabs }),
    ]
}

#[derive(Clone)]
struct Modelled {
    value: Vec<u8>,
    expiry: u32,
    cas: u64,
    flags: u32,
}

struct World {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    model: HashMap<u16, Modelled>,
    pending: Vec<Pending>,
    fill: u8,
    /// Until when documents are locked.
    locked: HashMap<u16, u32>,
    /// Values that are being sent, and their content when that began.
    pinned: Vec<(PinnedValue, Vec<u8>)>,
    mover: Mover,
}

/// A prepared write.
struct Pending {
    key: u16,
    at: Place,
    seqno: u64,
    /// `None` for a deletion.
    becomes: Option<Modelled>,
}

impl World {
    fn new(vbuckets: u16, ordered: bool, item_heap: HeapChoice, purge_age_s: u32) -> Self {
        let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let settings =
            BucketSettings { vbuckets, memory_bytes: 1 << 30, item_heap, ..BucketSettings::default() };
        let bucket = node.create_bucket("b", BucketSettings { purge_age_s, ..settings }).unwrap();
        let mut cx = NodeContext::new(node, 0);
        cx.now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_us: 0 };
        bucket.keep_seqno_order(&mut cx, ordered).unwrap();
        Self {
            cx,
            bucket,
            model: HashMap::new(),
            pending: Vec::new(),
            fill: 0,
            locked: HashMap::new(),
            pinned: Vec::new(),
            mover: Mover::of_everything(),
        }
    }

    fn expire(&mut self) {
        let now_s = self.cx.now.unix_s;
        self.model.retain(|_, item| item.expiry == 0 || item.expiry > now_s);
    }

    fn expiry(&self, ttl: u8) -> u32 {
        if ttl < 60 { 0 } else { self.cx.now.unix_s + u32::from(ttl) - 59 }
    }

    fn run(&mut self, step: &Step) {
        self.cx.now.unix_ns += 1;
        let bucket = Arc::clone(&self.bucket);
        if let Step::Store { key, .. }
        | Step::Remove { key }
        | Step::Touch { key, .. }
        | Step::Count { key, .. }
        | Step::Prepare { key, .. }
        | Step::Pin { key, .. } = *step
            && self.is_locked(key)
        {
            return self.meet_lock(key);
        }
        match *step {
            Step::Store { kind, key, len, ttl, with_cas } => self.store(kind, key, len, ttl, with_cas),
            Step::Get { key } => {
                let text = format!("key-{key}");
                let key_ref = Key::plain(text.as_bytes());
                let at = bucket.locate(key_ref);
                let seen = bucket.read(&mut self.cx, key_ref, at, |document| {
                    document.map(|d| (d.value().to_vec(), d.expiry(), d.cas(), d.flags()))
                });
                let expected = self.model.get(&key).map(|m| (m.value.clone(), m.expiry, m.cas, m.flags));
                assert_eq!(seen, Ok(expected), "get {text}");
            }
            Step::Remove { key } => {
                let text = format!("key-{key}");
                let key_ref = Key::plain(text.as_bytes());
                let removed = bucket.remove(&mut self.cx, key_ref, bucket.locate(key_ref), 0);
                if self.is_pending(key) {
                    assert_eq!(removed.unwrap_err(), KvError::SyncWriteInProgress);
                    return;
                }
                assert_eq!(removed.is_ok(), self.model.remove(&key).is_some(), "remove {text}");
                let Ok(removed) = removed else { return };
                let at = bucket.locate(key_ref);
                let deletion =
                    bucket.with_entry(&mut self.cx, key_ref, at, |entry| entry.deletion()).unwrap();
                let is_kept = bucket.settings().purge_age_s > 0;
                assert_eq!(
                    deletion.map(|it| (it.cas, it.seqno)),
                    is_kept.then_some((removed.cas, removed.seqno))
                );
            }
            Step::Touch { key, ttl } => {
                let text = format!("key-{key}");
                let key_ref = Key::plain(text.as_bytes());
                let expiry = self.expiry(ttl);
                let touched = bucket.change(&mut self.cx, key_ref, bucket.locate(key_ref), |entry| {
                    entry.set_expiry(Expiry::At(expiry))
                });
                if self.is_pending(key) {
                    assert_eq!(touched.unwrap_err(), KvError::SyncWriteInProgress);
                    return;
                }
                let modelled = self.model.get_mut(&key).map(|m| m.expiry = expiry);
                assert_eq!(touched.is_ok(), modelled.is_some(), "touch {text}");
            }
            Step::Count { key, delta } => {
                let text = format!("key-{key}");
                let key_ref = Key::plain(text.as_bytes());
                let how = Arithmetic {
                    delta: u64::from(delta),
                    decrement: delta % 2 == 1,
                    initial: None,
                    expiry: Expiry::At(0),
                    cas: 0,
                    new_cas: 0,
                };
                let result = bucket.arithmetic(&mut self.cx, key_ref, bucket.locate(key_ref), how);
                if self.is_pending(key) {
                    assert_eq!(result.unwrap_err(), KvError::SyncWriteInProgress);
                    return;
                }
                let Some(item) = self.model.get_mut(&key) else {
                    assert_eq!(result.unwrap_err(), KvError::NotFound);
                    return;
                };
                let number = std::str::from_utf8(&item.value)
                    .ok()
                    .filter(|t| t.len() <= 20)
                    .and_then(|t| t.parse::<u64>().ok());
                match number {
                    None => assert_eq!(result.unwrap_err(), KvError::DeltaBadValue),
                    Some(old) => {
                        let delta = u64::from(delta);
                        let new =
                            if how.decrement { old.saturating_sub(delta) } else { old.wrapping_add(delta) };
                        let (seen, mutated) = result.unwrap();
                        assert_eq!(seen, new);
                        (item.value, item.cas) = (new.to_string().into_bytes(), mutated.cas);
                    }
                }
            }
            Step::Sleep { seconds } => {
                self.cx.now.unix_s += u32::from(seconds);
                self.cx.now.unix_ns += u64::from(seconds) * 1_000_000_000;
                self.expire();
            }
            Step::Page => {
                kv::pager::turn(&mut self.cx);
            }
            Step::Flush => {
                if self.model.len() > 200 {
                    bucket.flush(&mut self.cx, 0).unwrap();
                    self.model.clear();
                }
            }
            Step::Prepare { key, len, ttl, deletes } => self.prepare(key, len, ttl, deletes),
            Step::End { which, commits } => {
                if !self.pending.is_empty() {
                    let which = usize::from(which) % self.pending.len();
                    self.end(which, commits);
                }
            }
            Step::Lock { key } => self.lock(key),
            Step::Pin { key, len } => self.pin(key, len),
            Step::Unpin => self.pinned.clear(),
            Step::Move { slices, slabs } => self.move_items(slices, slabs),
        }
        for (pinned, was) in &self.pinned {
            assert_eq!(**pinned, **was, "a pinned value stays as it is");
        }
        self.cx.end_batch();
    }

    fn is_locked(&mut self, key: u16) -> bool {
        // A lock ends with its document.
        self.locked.retain(|key, _| self.model.contains_key(key));
        self.locked.get(&key).is_some_and(|until_s| *until_s > self.cx.now.unix_s)
    }

    fn lock(&mut self, key: u16) {
        let (text, bucket) = (format!("key-{key}"), Arc::clone(&self.bucket));
        let (key_ref, until_s) = (Key::plain(text.as_bytes()), self.cx.now.unix_s + 15);
        let at = bucket.locate(key_ref);
        let result = bucket.change(&mut self.cx, key_ref, at, |entry| entry.lock(until_s));
        if self.is_pending(key) {
            assert_eq!(result.unwrap_err(), KvError::SyncWriteInProgress);
        } else if self.is_locked(key) {
            assert_eq!(result.unwrap_err(), KvError::Locked);
        } else {
            assert_eq!(result.is_ok(), self.model.contains_key(&key));
            if let (Ok(mutated), Some(item)) = (result, self.model.get_mut(&key)) {
                item.cas = mutated.cas;
                self.locked.insert(key, until_s);
            }
        }
    }

    fn meet_lock(&mut self, key: u16) {
        let (text, bucket) = (format!("key-{key}"), Arc::clone(&self.bucket));
        let key_ref = Key::plain(text.as_bytes());
        let removed = bucket.remove(&mut self.cx, key_ref, bucket.locate(key_ref), 0);
        assert_eq!(removed.unwrap_err(), KvError::Locked);
    }

    /// Stores a large value and begins to send it.
    fn pin(&mut self, key: u16, len: u16) {
        if self.is_pending(key) {
            return;
        }
        let (text, bucket) = (format!("key-{key}"), Arc::clone(&self.bucket));
        let key_ref = Key::plain(text.as_bytes());
        let at = bucket.locate(key_ref);
        self.fill = self.fill.wrapping_add(1);
        let value = vec![self.fill; usize::from(len)];
        let mut item = bucket.prepare_large(&mut self.cx, key_ref, value.len()).unwrap();
        item.window(0, value.len()).copy_from_slice(&value);
        let stored = Value::Large(Box::new(item));
        let store = Store { flags: 1, expiry: Expiry::At(0), datatype: 0, value: stored, new_cas: 0 };
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        let mutated = bucket.mutate(&mut self.cx, key_ref, at, mutation).unwrap();
        let pinned =
            bucket.read(&mut self.cx, key_ref, at, |document| document.and_then(|document| document.pin()));
        self.pinned.push((pinned.unwrap().unwrap(), value.clone()));
        self.model.insert(key, Modelled { value, expiry: 0, cas: mutated.cas, flags: 1 });
    }

    /// Some slices of a walk that moves everything; the next step may come in its middle.
    fn move_items(&mut self, slices: u8, slabs: u8) {
        let bucket = Arc::clone(&self.bucket);
        self.cx.end_batch();
        let before = bucket.accounts();
        for _ in 0..slices {
            if !self.mover.slice(&bucket, &mut self.cx) {
                self.mover = Mover::of_everything();
            }
        }
        empty_slabs(&bucket, &mut self.cx, usize::from(slabs));
        self.cx.end_batch();
        let after = bucket.accounts();
        assert_eq!(
            (after.items, after.payload, after.metadata),
            (before.items, before.payload, before.metadata)
        );
        if self.pinned.is_empty() {
            bucket.audit(&mut self.cx).unwrap();
        }
    }

    fn is_pending(&self, key: u16) -> bool {
        self.pending.iter().any(|pending| pending.key == key)
    }

    fn prepare(&mut self, key: u16, len: u16, ttl: u8, deletes: bool) {
        let (text, expiry, bucket) = (format!("key-{key}"), self.expiry(ttl), Arc::clone(&self.bucket));
        let key_ref = Key::plain(text.as_bytes());
        let at = bucket.locate(key_ref);
        self.fill = self.fill.wrapping_add(1);
        let value = vec![self.fill; usize::from(len)];
        let large = usize::from(len) > kv::LARGE_VALUE;
        let stored = if large {
            let mut item = bucket.prepare_large(&mut self.cx, key_ref, value.len()).unwrap();
            item.window(0, value.len()).copy_from_slice(&value);
            Value::Large(Box::new(item))
        } else {
            Value::Bytes(&value)
        };
        let result = bucket.change(&mut self.cx, key_ref, at, |entry| {
            entry.prepare_at(1);
            if deletes {
                return entry.remove();
            }
            let store =
                Store { flags: 3, expiry: Expiry::At(expiry), datatype: 0, value: stored, new_cas: 0 };
            entry.store(store)
        });
        if self.is_pending(key) {
            assert_eq!(result.unwrap_err(), KvError::SyncWriteInProgress);
        } else if deletes && !self.model.contains_key(&key) {
            assert_eq!(result.unwrap_err(), KvError::NotFound);
        } else {
            let mutated = result.unwrap();
            let becomes = Modelled { value, expiry, cas: mutated.cas, flags: 3 };
            let becomes = (!deletes).then_some(becomes);
            self.pending.push(Pending { key, at, seqno: mutated.seqno, becomes });
        }
    }

    fn end(&mut self, which: usize, commits: bool) {
        let Pending { key, at, seqno, becomes } = self.pending.remove(which);
        let bucket = Arc::clone(&self.bucket);
        let ended = if commits {
            bucket.commit(&mut self.cx, at.vb, seqno).unwrap()
        } else {
            bucket.abort(&mut self.cx, at.vb, seqno).unwrap()
        };
        assert!(ended.seqno > seqno);
        assert_eq!(bucket.commit(&mut self.cx, at.vb, seqno).unwrap_err(), KvError::NotFound);
        if commits {
            match becomes {
                Some(item) => drop(self.model.insert(key, item)),
                None => drop(self.model.remove(&key)),
            }
            self.expire();
        }
    }

    fn store(&mut self, kind: u8, key: u16, len: u16, ttl: u8, with_cas: bool) {
        let kind =
            [StoreKind::Set, StoreKind::Add, StoreKind::Replace, StoreKind::Append, StoreKind::Prepend]
                [kind as usize];
        self.fill = self.fill.wrapping_add(1);
        let value = if len < 8 { b"41".to_vec() } else { vec![self.fill; usize::from(len)] };
        let (text, expiry, flags) = (format!("key-{key}"), self.expiry(ttl), u32::from(ttl % 3));
        let key_ref = Key::plain(text.as_bytes());
        let present = self.model.get(&key).cloned();
        let cas = if with_cas { present.as_ref().map_or(12345, |m| m.cas) } else { 0 };
        let store =
            Store { flags, expiry: Expiry::At(expiry), datatype: 0, value: Value::Bytes(&value), new_cas: 0 };
        let at = self.bucket.locate(key_ref);
        let result = self.bucket.mutate(&mut self.cx, key_ref, at, Mutation { kind, cas, store });
        if self.is_pending(key) {
            assert_eq!(result.unwrap_err(), KvError::SyncWriteInProgress);
            return;
        }
        let expected = match (kind, present) {
            (StoreKind::Set, None) if cas != 0 => Err(KvError::NotFound),
            (StoreKind::Set, _) | (StoreKind::Add, None) | (StoreKind::Replace, Some(_)) => {
                Ok(Modelled { value, expiry, cas: 0, flags })
            }
            (StoreKind::Add, Some(_)) => Err(KvError::Exists),
            (StoreKind::Replace, None) => Err(KvError::NotFound),
            (StoreKind::Append | StoreKind::Prepend, None) => Err(KvError::NotStored),
            (StoreKind::Append, Some(old)) => {
                Ok(Modelled { value: [old.value.clone(), value].concat(), ..old })
            }
            (StoreKind::Prepend, Some(old)) => {
                Ok(Modelled { value: [value, old.value.clone()].concat(), ..old })
            }
        };
        match (result, expected) {
            (Ok(mutated), Ok(modelled)) => {
                let before = self.model.insert(key, Modelled { cas: mutated.cas, ..modelled });
                assert!(before.is_none_or(|before| before.cas < mutated.cas), "the CAS rises");
            }
            (result, expected) => {
                assert_eq!(result.map(|_| ()), expected.map(|_| ()), "{kind:?} {text} with CAS {cas}");
            }
        }
    }

    /// The seqno order, whether kept all the time or built now, holds every item once.
    fn check_order(&mut self) {
        let bucket = Arc::clone(&self.bucket);
        bucket.keep_seqno_order(&mut self.cx, true).unwrap();
        let mut cas: Vec<u64> = Vec::new();
        for vb in 0..bucket.vbuckets() {
            let mut last = 0;
            assert!(bucket.in_seqno_order(&mut self.cx, kv::VbId(vb), &mut |seqno, item_cas| {
                assert!(seqno > last, "{seqno} after {last}");
                last = seqno;
                cas.push(item_cas);
            }));
        }
        cas.sort_unstable();
        let mut expected: Vec<u64> = self.model.values().map(|item| item.cas).collect();
        expected.sort_unstable();
        assert_eq!(cas, expected);
    }

    /// The accounts agree with the items, and everything comes back after a flush.
    fn finish(mut self) {
        self.pinned.clear();
        self.move_items(u8::MAX, 9);
        for at in 0..self.pending.len() {
            self.end(0, at % 2 == 0);
        }
        self.cx.now.unix_s += 200;
        self.expire();
        kv::pager::turn(&mut self.cx);
        if self.bucket.settings().purge_age_s > 0 {
            // The tombstones of what has just expired, too.
            self.cx.now.unix_s += 2000;
            kv::pager::turn(&mut self.cx);
        }
        let figures = self.bucket.accounts();
        let payload: usize =
            self.model.iter().map(|(key, item)| format!("key-{key}").len() + 1 + item.value.len()).sum();
        assert_eq!((figures.items, figures.payload), (self.model.len() as u64, payload as u64));
        for key in 0..400 {
            self.run(&Step::Get { key });
        }
        self.check_order();
        let bucket = Arc::clone(&self.bucket);
        bucket.flush(&mut self.cx, 0).unwrap();
        kv::pager::turn(&mut self.cx);
        // The thread's reserve goes with the second rest: the first notes that the bucket was used.
        self.cx.rest();
        self.cx.rest();
        let figures = bucket.accounts();
        assert_eq!((figures.items, figures.payload, figures.metadata), (0, 0, 0));
        let kept = if bucket.settings().item_heap == HeapChoice::Slab { SLAB_BOOKKEEPING_MAX } else { 0 };
        let audit = bucket.audit(&mut self.cx).unwrap();
        assert_eq!(figures.allocated, audit.bookkeeping_bytes);
        assert!(audit.bookkeeping_bytes <= kept, "{audit:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_history_agrees_with_the_model(
        vbuckets in prop_oneof![Just(1u16), Just(4)],
        ordered: bool,
        heap in prop_oneof![Just(HeapChoice::Block), Just(HeapChoice::Slab)],
        purge_age_s in prop_oneof![Just(0u32), Just(40), Just(1000)],
        steps in proptest::collection::vec(step(), 1..1500),
    ) {
        let mut world = World::new(vbuckets, ordered, heap, purge_age_s);
        for step in &steps {
            world.run(step);
        }
        world.finish();
    }
}
