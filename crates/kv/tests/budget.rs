//! A full cache, with both heaps and values whose sizes change: what is resident stays within the budget, and the cache
//! is not emptied for that.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use kv::defragmenter::Demand;
use kv::{
    Bucket, BucketSettings, Expiry, HeapChoice, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Now,
    Store, StoreKind, Value,
};

const BUDGET: u64 = 32 << 20;
/// The budget is stored this many times per phase.
const TIMES: u64 = 2;
/// Approximate size of an item besides its value.
const BESIDE: u64 = 50;

struct World {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    random: u64,
}

impl World {
    fn new(item_heap: HeapChoice, random: u64) -> Self {
        let settings = NodeSettings { threads: 2, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let settings =
            BucketSettings { memory_bytes: BUDGET, vbuckets: 64, item_heap, ..BucketSettings::default() };
        let bucket = node.create_bucket("b", settings).unwrap();
        let mut cx = NodeContext::new(node, 0);
        cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
        Self { cx, bucket, random }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % bound
    }

    fn set(&mut self, text: &str, value: &[u8]) {
        let key = Key::plain(text.as_bytes());
        let store =
            Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value: Value::Bytes(value), new_cas: 0 };
        let at = self.bucket.locate(key);
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        self.bucket.mutate(&mut self.cx, key, at, mutation).unwrap();
    }

    /// Stores a part of `value`, at least `least` bytes, under a random key.
    fn store_one(&mut self, number: u64, stores: u64, least: u64, value: &[u8]) {
        let text = format!("key-{}", self.below(4 * stores));
        let length = least + self.below(value.len() as u64 - least);
        self.set(&text, &value[..length as usize]);
        if number.is_multiple_of(64) {
            self.cx.end_batch();
        }
    }

    /// Stores under random keys, values of `least` to `most` bytes, while the pager gets no turn. Returns the highest
    /// resident memory.
    fn store_without_pager(&mut self, least: u64, most: u64) -> u64 {
        let value = vec![b'v'; most as usize];
        let stores = TIMES * BUDGET / ((least + most) / 2 + BESIDE);
        let mut highest = 0;
        for number in 0..stores {
            self.store_one(number, stores, least, &value);
            if number % 256 == 0 {
                highest = highest.max(self.bucket.resident_bytes().unwrap_or(0));
            }
        }
        highest
    }

    /// Stores under random keys, values of `least` to `most` bytes.
    fn store(&mut self, least: u64, most: u64) {
        let value = vec![b'v'; most as usize];
        let stores = TIMES * BUDGET / ((least + most) / 2 + BESIDE);
        for number in 0..stores {
            self.store_one(number, stores, least, &value);
            if number % 256 == 0 {
                self.cx.now.mono_us += 1000;
                kv::pager::turn(&mut self.cx);
                kv::pager::defragment(&mut self.cx, &mut Demand::default());
            }
        }
        self.cx.now.unix_s += 10;
        kv::pager::turn(&mut self.cx);
        let figures = self.bucket.memory();
        let data = figures.payload + figures.metadata + figures.index;
        eprintln!(
            "{least} to {most}: data {:.3}, resident {:.3} of the budget",
            data as f64 / BUDGET as f64,
            figures.resident as f64 / BUDGET as f64
        );
        assert!(figures.resident <= BUDGET, "resident, of {least} to {most}: {figures:?}");
        assert!(data >= BUDGET / 5 * 3, "emptied, of {least} to {most}: {figures:?}");
    }
}

#[test]
fn a_full_cache_stays_within_its_budget_and_is_not_emptied() {
    use HeapChoice::{Auto, Block, Slab};
    for (item_heap, random) in [(Slab, 11), (Slab, 13), (Block, 11), (Auto, 11), (Auto, 18)] {
        let mut world = World::new(item_heap, random);
        for (least, most) in [(200, 300), (600, 1400), (20, 80), (100, 2000)] {
            world.store(least, most);
        }
    }
}

/// A busy machine may give the pager, which measures, no turn for a long time.
#[test]
fn a_pager_that_is_late_lets_nothing_exceed_the_budget() {
    for random in [11, 13] {
        let mut world = World::new(HeapChoice::Slab, random);
        for (least, most) in [(1000, 2000), (4000, 16_000), (1500, 6000), (8000, 16_000)] {
            let highest = world.store_without_pager(least, most);
            eprintln!("{least} to {most}: {:.3} of the budget", highest as f64 / BUDGET as f64);
            assert!(highest <= BUDGET / 100 * 108, "{least} to {most}: {highest} of {BUDGET}");
        }
    }
}
