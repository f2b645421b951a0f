//! What is evicted when memory is full, measured by the hits of a client that reads items and stores those that are
//! missing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kv::{
    Bucket, BucketSettings, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Now, Store,
    StoreKind, Value,
};

const BUDGET: u64 = 8 << 20;
const VBUCKETS: u16 = 64;
const VALUE_BYTES: usize = 200;
/// More items than the budget holds, given what an item needs besides key and value.
const MORE_THAN_FITS: u32 = (BUDGET as usize / VALUE_BYTES) as u32;

struct Cache {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    value_bytes: usize,
    asked: u32,
    random: u64,
    /// An item that was never asked for before.
    next_new: u32,
}

impl Cache {
    fn new(value_bytes: usize) -> Self {
        let settings = NodeSettings { threads: 2, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let settings =
            BucketSettings { memory_bytes: BUDGET, vbuckets: VBUCKETS, ..BucketSettings::default() };
        let bucket = node.create_bucket("b", settings).unwrap();
        let mut cx = NodeContext::new(node, 0);
        cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
        Self { cx, bucket, value_bytes, asked: 0, random: 11, next_new: 1 << 24 }
    }

    /// Reads an item, and stores it if it is missing. Returns true if it was there.
    fn ask(&mut self, item: u32) -> bool {
        let text = format!("key-{item}");
        let key = Key::plain(text.as_bytes());
        let at = self.bucket.locate(key);
        let hit = self.bucket.read(&mut self.cx, key, at, |document| document.is_some()).unwrap();
        if !hit {
            let value = vec![b'v'; self.value_bytes];
            let value = Value::Bytes(&value);
            let store = Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 };
            let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
            self.bucket.mutate(&mut self.cx, key, at, mutation).unwrap();
        }
        self.asked += 1;
        if self.asked.is_multiple_of(64) {
            self.cx.end_batch();
            self.cx.now.mono_us += 100;
            kv::pager::turn(&mut self.cx);
        }
        hit
    }

    /// Asks for each, and for `new_beside` new ones as well. Returns how many were there.
    fn ask_all(&mut self, items: std::ops::Range<u32>, new_beside: u32) -> u32 {
        items
            .map(|item| {
                self.scan(new_beside);
                u32::from(self.ask(item))
            })
            .sum()
    }

    /// Asks for this many items for the first and only time.
    fn scan(&mut self, items: u32) {
        for _ in 0..items {
            assert!(!self.ask(self.next_new));
            self.next_new += 1;
        }
    }

    /// Returns `n` below the bound with a probability about proportional to 1 / (n + 1).
    fn by_zipf(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let fraction = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        f64::from(bound).powf(fraction) as u32 - 1
    }
}

#[test]
fn a_scan_does_not_flush_what_is_asked_for_again_and_again() {
    let mut cache = Cache::new(VALUE_BYTES);
    let hot = 0..5000;
    for _ in 0..20 {
        cache.ask_all(hot.clone(), 1);
    }
    for _ in 0..5 {
        cache.scan(2 * MORE_THAN_FITS);
        let hits = cache.ask_all(hot.clone(), 0);
        assert!(hits >= 4900, "{hits} of 5000 after a scan of twice what fits");
    }
}

#[test]
fn hits_by_zipfs_law_are_more_than_with_the_least_recently_used_first() {
    let mut cache = Cache::new(VALUE_BYTES);
    let universe = 8 * MORE_THAN_FITS;
    let asked: Vec<u32> = (0..10 * MORE_THAN_FITS).map(|_| cache.by_zipf(universe)).collect();
    let (warm_up, measured) = asked.split_at(asked.len() / 2);
    for &item in warm_up {
        cache.ask(item);
    }
    let mut items = 0;
    let mut hits = 0;
    for &item in measured {
        hits += u32::from(cache.ask(item));
        items = items.max(cache.bucket.accounts().items);
    }
    // The other one has room for as many items as there ever were.
    let (mut used_at, mut by_use) = (HashMap::new(), BTreeMap::new());
    let mut other_hits = 0;
    for (now, &item) in asked.iter().enumerate() {
        let before = used_at.insert(item, now);
        by_use.insert(now, item);
        if let Some(before) = before {
            by_use.remove(&before);
            other_hits += u32::from(now >= warm_up.len());
        } else if used_at.len() > items as usize {
            let (_, oldest) = by_use.pop_first().unwrap();
            used_at.remove(&oldest);
        }
    }
    assert!(hits > other_hits + other_hits / 50, "{hits} hits, least recently used first {other_hits}");
}

#[test]
fn former_favourites_give_way_to_new_ones() {
    let mut cache = Cache::new(VALUE_BYTES);
    for favourites in [0..10_000, 20_000..30_000, 40_000..50_000] {
        for _ in 0..30 {
            cache.ask_all(favourites.clone(), 1);
        }
        let hits = cache.ask_all(favourites, 0);
        assert!(hits >= 9800, "{hits} of 10000");
    }
}

#[test]
fn large_items_are_told_apart_across_vbuckets() {
    let mut cache = Cache::new(BUDGET as usize / 128);
    for _ in 0..20 {
        cache.ask_all(0..40, 2);
    }
    let hits: u32 = (0..20).map(|_| cache.ask_all(0..40, 2)).sum();
    assert!(hits >= 790, "{hits} of 800 where a vBucket has two items");
}

#[test]
fn everything_goes_if_it_must() {
    let mut cache = Cache::new(VALUE_BYTES);
    for _ in 0..20 {
        cache.ask_all(0..5000, 1);
    }
    cache.bucket.set_budget(1);
    kv::pager::turn(&mut cache.cx);
    assert_eq!(cache.bucket.accounts().items, 0);
}
