//! The defragmenter's effect on a client, without any socket: `cargo run --release -p kv --example defragmenter_cost`.
//!
//! One thread gets and sets as fast as it can and times each operation, another is the pager. In each round a random
//! half of all items is deleted while the defragmenter is off, and the client is timed for a while; then again with it
//! on, from when it is armed until it is not; then the deleted items are stored again. Prints each round, and the
//! medians over them. Arguments: items, rounds, heap (auto, slab, block).
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use kv::defragmenter::Demand;
use kv::{
    Bucket, BucketSettings, Expiry, HeapChoice, Key, Limits, Meter, Mutation, Node, NodeContext,
    NodeSettings, Now, Store, StoreKind, Value,
};

/// Length of a window in which the client is timed without the defragmenter.
const WINDOW: Duration = Duration::from_secs(2);
const VALUE_BYTES: u64 = 1000;

fn clock_us() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_micros()).expect("less than an age")
}

fn now() -> Now {
    let us = clock_us();
    Now {
        unix_s: 1_800_000_000 + (us / 1_000_000) as u32,
        unix_ns: 1_800_000_000_000_000_000 + us * 1000,
        mono_us: us,
    }
}

/// The pager's thread.
fn page(node: &Arc<Node>, done: &AtomicBool) {
    let mut cx = NodeContext::new(Arc::clone(node), 1);
    cx.clock_us = Some(clock_us);
    let mut demand = Demand::default();
    while !done.load(Relaxed) {
        cx.now = now();
        let due = kv::pager::turn(&mut cx).is_some();
        let turn = kv::pager::defragment(&mut cx, &mut demand);
        match turn.rest_us {
            Some(rest_us) => thread::park_timeout(Duration::from_micros(rest_us)),
            None if due => thread::park_timeout(Duration::from_millis(500)),
            None => thread::park(),
        }
    }
}

struct Client {
    cx: NodeContext,
    bucket: Arc<Bucket>,
    random: u64,
    items: u64,
    /// Which of the items exist.
    there: Vec<bool>,
    value: Vec<u8>,
}

/// What the client measured in a window.
struct Felt {
    p999_ns: u64,
    per_second: f64,
    seconds: f64,
}

impl Client {
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((u128::from(self.random) * u128::from(bound)) >> 64) as u64
    }

    fn length(number: u64) -> usize {
        (VALUE_BYTES * 7 / 10 + number * 7919 % (VALUE_BYTES * 6 / 10)) as usize
    }

    fn set(&mut self, number: u64) {
        let text = format!("key-{number:012}");
        let key = Key::plain(text.as_bytes());
        let value = Value::Bytes(&self.value[..Self::length(number)]);
        let store = Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 };
        let at = self.bucket.locate(key);
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        self.bucket.mutate(&mut self.cx, key, at, mutation).expect("there is room");
    }

    fn get(&mut self, number: u64) {
        let text = format!("key-{number:012}");
        let key = Key::plain(text.as_bytes());
        let at = self.bucket.locate(key);
        let length = self.bucket.read(&mut self.cx, key, at, |document| document.map(|it| it.value().len()));
        assert_eq!(
            length.expect("all values are in memory"),
            self.there[number as usize].then(|| Self::length(number))
        );
    }

    /// Gets and sets existing items until `enough` returns true; eight gets for two sets.
    fn run(&mut self, enough: impl Fn(&Bucket, Duration) -> bool) -> Felt {
        let (start, mut times) = (Instant::now(), Vec::new());
        let mut last = start;
        loop {
            let number = self.below(self.items);
            if self.there[number as usize] && self.below(10) < 2 {
                self.set(number);
            } else {
                self.get(number);
            }
            self.cx.end_batch();
            let at = Instant::now();
            times.push(u64::try_from((at - last).as_nanos()).expect("less than an age"));
            if times.len().is_multiple_of(1024) && enough(&self.bucket, at - start) {
                break;
            }
            last = Instant::now();
        }
        let seconds = start.elapsed().as_secs_f64();
        let count = times.len();
        times.sort_unstable();
        Felt { p999_ns: times[count * 999 / 1000], per_second: count as f64 / seconds, seconds }
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() {
    let argument = |at: usize| std::env::args().nth(at);
    let items: u64 = argument(1).map_or(300_000, |items| items.parse().expect("a number"));
    let rounds: usize = argument(2).map_or(7, |rounds| rounds.parse().expect("a number"));
    let item_heap = argument(3).map_or(HeapChoice::Auto, |name| HeapChoice::of_name(&name).expect("a heap"));
    let settings = NodeSettings { threads: 2, shutdown_command: false, version: "bench".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let settings = BucketSettings { memory_bytes: 64 << 30, item_heap, ..BucketSettings::default() };
    let bucket = node.create_bucket("default", settings).expect("a bucket");
    let mut cx = NodeContext::new(Arc::clone(&node), 0);
    cx.now = now();
    let there = vec![false; items as usize];
    let value = vec![b'v'; 2 * VALUE_BYTES as usize];
    let mut client = Client { cx, bucket: Arc::clone(&bucket), random: 7, items, there, value };
    let done = Arc::new(AtomicBool::new(false));
    let pager = {
        let (node, done) = (Arc::clone(&node), Arc::clone(&done));
        thread::spawn(move || page(&node, &done))
    };
    let pager_thread = pager.thread().clone();
    node.doorbell().connect(Box::new(move || pager_thread.unpark()));
    let (mut latencies, mut rates, mut seconds, mut ratios) = (vec![], vec![], vec![], vec![]);
    for round in 0..rounds {
        bucket.set_defragmenter(false);
        for number in 0..items {
            if !client.there[number as usize] {
                client.set(number);
                client.there[number as usize] = true;
            }
        }
        for number in 0..items {
            if client.below(2) == 0 {
                let text = format!("key-{number:012}");
                let key = Key::plain(text.as_bytes());
                bucket.remove(&mut client.cx, key, bucket.locate(key), 0).expect("it is there");
                client.there[number as usize] = false;
            }
        }
        client.cx.end_batch();
        client.cx.rest();
        client.cx.rest();
        let without = client.run(|_, elapsed| elapsed > WINDOW);
        bucket.memory();
        bucket.set_defragmenter(true);
        let moved = bucket.meter(Meter::DefragmentedItems);
        let with = client
            .run(|bucket, elapsed| elapsed > Duration::from_millis(200) && !bucket.defragmenter().is_armed);
        let moved = bucket.meter(Meter::DefragmentedItems) - moved;
        let figures = bucket.memory();
        let used = figures.payload + figures.metadata + figures.index;
        println!(
            "round {round}: p99.9 {:.1} and {:.1} us, {:.0} and {:.0} thousand per second; {moved} moved in {:.1} s; \
            resident {:.2} of used",
            without.p999_ns as f64 / 1e3,
            with.p999_ns as f64 / 1e3,
            without.per_second / 1e3,
            with.per_second / 1e3,
            with.seconds,
            figures.resident as f64 / used as f64
        );
        latencies.push(with.p999_ns as f64 / without.p999_ns as f64);
        rates.push(with.per_second / without.per_second);
        seconds.push(with.seconds);
        ratios.push(figures.resident as f64 / used as f64);
    }
    println!(
        "{} heap, {items} items: p99.9 {:.2} times, throughput {:.1} %, done in {:.1} s, resident {:.2} of used",
        item_heap.name(),
        median(latencies),
        median(rates) * 100.0,
        median(seconds),
        median(ratios)
    );
    done.store(true, Relaxed);
    pager.thread().unpark();
    pager.join().expect("the pager ends");
}
