//! The cost of one flush in memory and time (experiment E4), in process:
//! `cargo run --release -p kv --example flush_cost [directory [rounds]]`. One vBucket; keys `key<i>`; N items are
//! queued, then flushed with the sync. Bytes per item: the peak of the flush above what was allocated before it,
//! without the buffer; and what a dirty item takes above a clean one. Queueing is one plain SET after the other.
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Instant;

use journal::{AnyDisk, RealDisk};
use kv::persistence::Flusher;
use kv::{
    Bucket, BucketSettings, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Now,
    PersistenceSettings, Store, StoreKind, Value,
};

const BUFFER_BYTES: usize = 1 << 20;

/// The system's allocator, counted. What lies in a tenant's arena is in the bucket's accounts.
struct Counted;

static ALLOCATED: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

// SAFETY: forwards to the system's allocator; the counters touch no memory of the caller's.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocated = ALLOCATED.fetch_add(layout.size() as i64, Relaxed) + layout.size() as i64;
        PEAK.fetch_max(allocated, Relaxed);
        // SAFETY: by the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: by the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counted = Counted;

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux system");
    text.split(' ').next().and_then(|field| field.parse().ok()).expect("a number")
}

fn allocated(bucket: &Bucket) -> i64 {
    ALLOCATED.load(Relaxed) + bucket.accounts().allocated as i64
}

fn queue(bucket: &Bucket, cx: &mut NodeContext, items: u64, value: &[u8]) {
    let mut key = Vec::new();
    for number in 0..items {
        key.clear();
        key.extend_from_slice(format!("key{number}").as_bytes());
        let key = Key::plain(&key);
        let value = Value::Bytes(value);
        let store = Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 };
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        bucket.mutate(cx, key, bucket.locate(key), mutation).expect("stored");
    }
    cx.end_batch();
}

struct Row {
    peak_bytes: f64,
    dirty_bytes: f64,
    items_per_cpu_s: f64,
    wall_ms: f64,
    queue_ns: f64,
}

/// Queues, then flushes.
fn measure(bucket: &Bucket, cx: &mut NodeContext, flusher: &mut Flusher, items: u64, value: &[u8]) -> Row {
    let now = cx.now;
    let cpu = cpu_ns();
    queue(bucket, cx, items, value);
    let queue_ns = (cpu_ns() - cpu) as f64 / items as f64;
    let dirty = allocated(bucket);
    PEAK.store(ALLOCATED.load(Relaxed), Relaxed);
    let before = ALLOCATED.load(Relaxed);
    let (wall, cpu) = (Instant::now(), cpu_ns());
    while bucket.persistence_figures(cx).is_some_and(|figures| figures.unflushed_items > 0) {
        flusher.turn(cx, &mut || now);
    }
    let (cpu_ns, wall_ms) = (cpu_ns() - cpu, wall.elapsed().as_secs_f64() * 1000.0);
    let peak = PEAK.load(Relaxed) - before;
    let clean = allocated(bucket);
    let per_item = |bytes: i64| bytes as f64 / items as f64;
    Row {
        peak_bytes: per_item(peak),
        dirty_bytes: per_item(dirty - clean),
        items_per_cpu_s: items as f64 / (cpu_ns as f64 / 1e9),
        wall_ms,
        queue_ns,
    }
}

fn main() {
    let directory: PathBuf =
        std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from).join("flush_cost");
    let rounds = std::env::args().nth(2).map_or(5, |rounds| rounds.parse().expect("a number"));
    println!(
        "{:>9} {:>5} {:<8}| peak B/item | dirty B/item | M items/CPU s | wall ms | SET CPU ns",
        "items", "value", ""
    );
    for value_len in [1usize, 256] {
        for items in [1u64, 100, 10_000, 1_000_000] {
            let mut rows: [Vec<Row>; 2] = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                let _ = std::fs::remove_dir_all(&directory);
                std::fs::create_dir_all(&directory).expect("a directory");
                let settings = NodeSettings {
                    threads: 1,
                    shutdown_command: false,
                    version: "bench".into(),
                    seed: round,
                };
                let node = Node::new(settings, Limits::default());
                let persistence =
                    PersistenceSettings { flush_interval_ms: 0, ..PersistenceSettings::default() };
                let settings = BucketSettings {
                    memory_bytes: 16 << 30,
                    vbuckets: 1,
                    persistence,
                    ..BucketSettings::default()
                };
                let disk = AnyDisk::Real(RealDisk::default());
                let bucket = node.open_bucket("b", settings, disk, &directory.join("b")).expect("a bucket");
                let mut cx = NodeContext::new(Arc::clone(&node), 0);
                cx.now =
                    Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 1_000_000 };
                let mut flusher = Flusher::new(0, BUFFER_BYTES);
                let value = vec![b'x'; value_len];
                // The very first item creates the file, the buffer and the thread's caches.
                let first = Key::plain(b"first");
                let store = Store {
                    flags: 0,
                    expiry: Expiry::At(0),
                    datatype: 0,
                    value: Value::Bytes(b"1"),
                    new_cas: 0,
                };
                let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
                bucket.mutate(&mut cx, first, bucket.locate(first), mutation).expect("stored");
                let now = cx.now;
                flusher.turn(&mut cx, &mut || now);
                for rows in &mut rows {
                    rows.push(measure(&bucket, &mut cx, &mut flusher, items, &value));
                }
            }
            for (name, rows) in ["insert", "replace"].iter().zip(&mut rows) {
                let mut median = |figure: fn(&Row) -> f64| {
                    rows.sort_by(|a, b| figure(a).total_cmp(&figure(b)));
                    figure(&rows[rows.len() / 2])
                };
                println!(
                    "{items:>9} {value_len:>5} {name:<8}| {:>11.1} | {:>12.1} | {:>13.3} | {:>7.1} | {:>10.0}",
                    median(|row| row.peak_bytes),
                    median(|row| row.dirty_bytes),
                    median(|row| row.items_per_cpu_s) / 1e6,
                    median(|row| row.wall_ms),
                    median(|row| row.queue_ns)
                );
            }
        }
    }
    let _ = std::fs::remove_dir_all(&directory);
}
