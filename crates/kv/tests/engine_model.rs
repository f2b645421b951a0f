//! The engine against a model of fifty lines: a map from key to value, expiry and CAS.
//!
//! Random histories of stores, appends, counters, touches, deletes, flushes and passing time, on few keys and few
//! vBuckets, so that the index grows, splits, merges and shrinks. After each step the answer agrees with the model; at the
//! end the accounts agree with the sum of the items, and after a flush nothing is left allocated.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::sync::Arc;

use kv::bucket::Arithmetic;
use kv::{
    Bucket, BucketSettings, Cx, Expiry, Key, KvError, Limits, Mutation, Node, NodeSettings, Now, Store,
    StoreKind, Value,
};
use proptest::prelude::*;

const START_S: u32 = 1_700_000_000;

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
    cx: Cx,
    bucket: Arc<Bucket>,
    model: HashMap<u16, Modelled>,
    fill: u8,
}

impl World {
    fn new(vbuckets: u16, ordered: bool) -> Self {
        let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let bucket = node
            .create_bucket(
                "b",
                BucketSettings { vbuckets, memory_bytes: 1 << 30, ..BucketSettings::default() },
            )
            .unwrap();
        let mut cx = Cx::new(node, 0);
        cx.now = Now { unix_s: START_S, unix_ns: u64::from(START_S) * 1_000_000_000, mono_ms: 0 };
        bucket.keep_seqno_order(&mut cx, ordered).unwrap();
        Self { cx, bucket, model: HashMap::new(), fill: 0 }
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
                assert_eq!(seen, expected, "get {text}");
            }
            Step::Remove { key } => {
                let text = format!("key-{key}");
                let key_ref = Key::plain(text.as_bytes());
                let removed = bucket.remove(&mut self.cx, key_ref, bucket.locate(key_ref), 0);
                assert_eq!(removed.is_ok(), self.model.remove(&key).is_some(), "remove {text}");
            }
            Step::Touch { key, ttl } => {
                let text = format!("key-{key}");
                let key_ref = Key::plain(text.as_bytes());
                let expiry = self.expiry(ttl);
                let touched = bucket.with_entry(&mut self.cx, key_ref, bucket.locate(key_ref), |entry| {
                    entry.set_expiry(Expiry::At(expiry))
                });
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
                    bucket.flush(&mut self.cx, 0);
                    self.model.clear();
                }
            }
        }
        self.cx.end_batch();
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

    /// The seqno order, kept all the time or made now, holds every item once.
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
        self.cx.now.unix_s += 200;
        self.expire();
        kv::pager::turn(&mut self.cx);
        let figures = self.bucket.accounts();
        let payload: usize =
            self.model.iter().map(|(key, item)| format!("key-{key}").len() + 1 + item.value.len()).sum();
        assert_eq!((figures.items, figures.payload), (self.model.len() as u64, payload as u64));
        for key in 0..400 {
            self.run(&Step::Get { key });
        }
        self.check_order();
        let bucket = Arc::clone(&self.bucket);
        bucket.flush(&mut self.cx, 0);
        kv::pager::turn(&mut self.cx);
        let figures = bucket.accounts();
        assert_eq!((figures.items, figures.payload, figures.metadata, figures.allocated), (0, 0, 0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_history_agrees_with_the_model(vbuckets in prop_oneof![Just(1u16), Just(4)], ordered: bool, steps in proptest::collection::vec(step(), 1..1500)) {
        let mut world = World::new(vbuckets, ordered);
        for step in &steps {
            world.run(step);
        }
        world.finish();
    }
}
