//! How growing values fragment a bucket's memory, without any socket:
//! `_RJEM_MALLOC_CONF=cache_oblivious:false cargo run --release -p kv --example append_and_rewrite`.
//!
//! Values of 11 to 22 objects of 60 bytes; then, five times, some keys are picked from the first 80 % of all keys, of
//! half and of a quarter of them, and get one object more. Prints 1 - requested bytes at the end / 99th percentile of
//! the resident size, and the time it took. Arguments: items, heap (auto, slab, block).
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use kv::defragmenter::Demand;
use kv::{
    Bucket, BucketSettings, Expiry, HeapChoice, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Now,
    Store, StoreKind, Value,
};

const OBJECT: &str = r#"{"field":"0123456789","number":1234567,"flag":true,"x":"yz"},"#;
const SAMPLE_EVERY: u64 = 5_000;

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("a Linux system");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages") * 4096
}

struct World {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    random: u64,
    samples: Vec<u64>,
    operations: u64,
}

impl World {
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((u128::from(self.random) * u128::from(bound)) >> 64) as u64
    }

    fn set(&mut self, number: u64, value: &[u8]) {
        let text = format!("AB_{number:012}_0");
        let key = Key::plain(text.as_bytes());
        let store =
            Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value: Value::Bytes(value), new_cas: 0 };
        let at = self.bucket.locate(key);
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        self.bucket.mutate(&mut self.cx, key, at, mutation).expect("there is room");
        self.operations += 1;
        if self.operations.is_multiple_of(64) {
            self.cx.end_batch();
        }
        if self.operations.is_multiple_of(SAMPLE_EVERY) {
            kv::pager::turn(&mut self.cx);
            while kv::pager::defragment(&mut self.cx, &mut Demand::default()).rest_us.is_some() {}
            self.samples.push(resident_bytes());
        }
    }

    fn append(&mut self, number: u64, value: &mut Vec<u8>) {
        let text = format!("AB_{number:012}_0");
        let key = Key::plain(text.as_bytes());
        let at = self.bucket.locate(key);
        value.clear();
        self.bucket
            .read(&mut self.cx, key, at, |document| {
                value.extend_from_slice(&document.expect("it is there").value());
            })
            .expect("all values are in memory");
        value.pop();
        value.push(b',');
        value.extend_from_slice(&OBJECT.as_bytes()[..OBJECT.len() - 1]);
        value.push(b']');
        self.set(number, value);
    }
}

fn main() {
    let items: u64 = std::env::args().nth(1).map_or(500_000, |items| items.parse().expect("a number"));
    let heap =
        std::env::args().nth(2).map_or(HeapChoice::Auto, |name| HeapChoice::of_name(&name).expect("a heap"));
    let settings = NodeSettings { threads: 4, shutdown_command: false, version: "bench".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let settings = BucketSettings { memory_bytes: 64 << 30, item_heap: heap, ..BucketSettings::default() };
    let bucket = node.create_bucket("default", settings).expect("a bucket");
    let mut cx = NodeContext::new(node, 0);
    cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
    let mut world = World { cx, bucket, random: 7, samples: Vec::new(), operations: 0 };
    let (before, start) = (resident_bytes(), Instant::now());
    let mut value = Vec::new();
    for number in 0..items {
        let objects = 11 + world.below(12);
        value.clear();
        value.push(b'[');
        (0..objects).for_each(|_| value.extend_from_slice(OBJECT.as_bytes()));
        value.pop();
        value.push(b']');
        world.set(number, &value);
    }
    let loaded = resident_bytes();
    for _ in 0..5 {
        for part in [1, 2, 4] {
            for _ in 0..items * 3 / 4 / part {
                let number = world.below(items / part * 4 / 5);
                world.append(number, &mut value);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    world.cx.end_batch();
    let figures = world.bucket.accounts();
    let requested = figures.payload + figures.metadata + figures.index;
    world.samples.sort_unstable();
    let peak = world.samples[world.samples.len() * 99 / 100];
    let percent = |bytes: u64| 100.0 - 100.0 * requested as f64 / bytes as f64;
    println!("{items} items, heap {}", heap.name());
    println!(
        "loaded {} MiB, less {} MiB before; 99th percentile {} MiB",
        loaded >> 20,
        before >> 20,
        peak >> 20
    );
    println!(
        "requested {} MiB, slots {} of {} MiB of slabs",
        requested >> 20,
        figures.slots >> 20,
        figures.slabs >> 20
    );
    println!(
        "classes {:.1} %, slack {:.1} %",
        percent_of(figures.allocated, requested),
        percent_of(figures.slabs, figures.slots)
    );
    println!(
        "fragmentation {:.1} %; {:.0} thousand operations per second",
        percent(peak),
        world.operations as f64 / seconds / 1e3
    );
}

/// Returns by how much the larger exceeds the smaller, in per cent of the larger.
fn percent_of(larger: u64, smaller: u64) -> f64 {
    100.0 - 100.0 * smaller as f64 / (larger as f64).max(1.0)
}
