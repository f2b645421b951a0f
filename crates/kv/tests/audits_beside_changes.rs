//! Audits beside threads that store, delete, read, compress, evict and move: whatever is where at that moment, no audit
//! finds anything wrong. Between two bursts of that each audit compares every byte with the accounts, while the other
//! threads keep their caches and pins.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;

use kv::defragmenter::{Demand, empty_slabs};
use kv::{
    Audited, Auditing, Bucket, BucketSettings, Compression, Eviction, Expiry, Key, Limits, Meter, Mutation,
    Node, NodeContext, NodeSettings, Now, PinnedValue, Store, StoreKind, Value,
};

const WRITERS: usize = 2;
/// Thread numbers after those of the writers.
const COMPRESSOR: usize = WRITERS;
const PAGER: usize = WRITERS + 1;
const AUDITOR: usize = WRITERS + 2;
const THREADS: usize = WRITERS + 3;
const BURSTS: usize = 250;
const STORES: usize = 60;
const KEYS: usize = 400;
/// Each writer goes on reading this many large values, whatever has become of their documents.
const READ: usize = 8;
const MEMORY_BYTES: u64 = 24 << 20;

fn key(writer: usize, number: usize) -> String {
    format!("{writer}:{number}")
}

fn context(node: &Arc<Node>, thread: usize) -> NodeContext {
    let mut cx = NodeContext::new(Arc::clone(node), thread);
    cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
    cx
}

/// A clock that advances with each reading: work that is limited to a fraction of a millisecond is done in slices.
fn ticking() -> u64 {
    static NOW_US: AtomicU64 = AtomicU64::new(0);
    NOW_US.fetch_add(70, Relaxed)
}

fn world(compression: Compression) -> (Arc<Node>, Arc<Bucket>) {
    let settings =
        NodeSettings { threads: THREADS, shutdown_command: false, version: "test".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let settings = BucketSettings {
        vbuckets: 8,
        memory_bytes: MEMORY_BYTES,
        compression,
        eviction: Eviction::AutoDelete,
        ..BucketSettings::default()
    };
    let bucket = node.create_bucket("b", settings).unwrap();
    (node, bucket)
}

struct Writer {
    bucket: Arc<Bucket>,
    cx: NodeContext,
    number: usize,
    random: u64,
    read: Vec<PinnedValue>,
}

impl Writer {
    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % below
    }

    fn store(&mut self, text: &str, length: usize) {
        let (name, content) = (Key::plain(text.as_bytes()), b"compressible ".repeat(length / 13 + 1));
        let at = self.bucket.locate(name);
        let value = if length > kv::LARGE_VALUE {
            let Ok(mut item) = self.bucket.prepare_large(&mut self.cx, name, length) else { return };
            item.window(0, length).copy_from_slice(&content[..length]);
            Value::Large(Box::new(item))
        } else {
            Value::Bytes(&content[..length])
        };
        let store = Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 };
        let _ = self.bucket.mutate(&mut self.cx, name, at, Mutation { kind: StoreKind::Set, cas: 0, store });
    }

    fn burst(&mut self) {
        for _ in 0..STORES {
            let text = key(self.number, self.random(KEYS));
            let name = Key::plain(text.as_bytes());
            let at = self.bucket.locate(name);
            match self.random(10) {
                0 => {
                    let _ = self.bucket.remove(&mut self.cx, name, at, 0);
                }
                1 | 2 => {
                    let pin = self.bucket.read(&mut self.cx, name, at, |document| document?.pin());
                    self.read.extend(pin.unwrap());
                }
                3..6 => {
                    let length = 33_000 + self.random(100_000);
                    self.store(&text, length);
                }
                _ => {
                    let length = self.random(3000);
                    self.store(&text, length);
                }
            }
        }
        let surplus = self.read.len().saturating_sub(READ);
        self.read.drain(..surplus);
        // Index blocks that others may be peeking at wait for the end of the batch, which is not always here.
        if self.random(2) == 0 {
            self.cx.end_batch();
        }
    }
}

fn audit(bucket: &Bucket, cx: &mut NodeContext) -> Audited {
    let mut walk = Auditing::new(bucket);
    while walk.step(cx).unwrap() {}
    walk.end().unwrap()
}

/// Lets all threads work in bursts. Returns how many audits there were at rest.
fn audit_between_bursts(compression: Compression) -> (Arc<Bucket>, usize) {
    let (node, bucket) = world(compression);
    let begin = Arc::new(Barrier::new(THREADS));
    let end = Arc::new(Barrier::new(THREADS));
    let spawn = |thread: usize, mut work: Box<dyn FnMut() + Send>| {
        let (begin, end) = (Arc::clone(&begin), Arc::clone(&end));
        let name = format!("worker {thread}");
        let bursts = move || {
            for _ in 0..BURSTS {
                begin.wait();
                work();
                end.wait();
            }
            // It keeps what it holds until the last audit.
            begin.wait();
        };
        thread::Builder::new().name(name).spawn(bursts).unwrap()
    };
    let mut threads = Vec::new();
    for number in 0..WRITERS {
        let (bucket, cx) = (Arc::clone(&bucket), context(&node, number));
        let mut writer = Writer { bucket, cx, number, random: number as u64 + 1, read: Vec::new() };
        threads.push(spawn(number, Box::new(move || writer.burst())));
    }
    let (mut cx, mut demand) = (context(&node, COMPRESSOR), Demand::default());
    cx.clock_us = Some(ticking);
    threads.push(spawn(
        COMPRESSOR,
        Box::new(move || {
            for _ in 0..20 {
                kv::pager::compress(&mut cx, &mut demand);
            }
        }),
    ));
    let (mut cx, measured) = (context(&node, PAGER), Arc::clone(&bucket));
    cx.clock_us = Some(ticking);
    let mut demand = Demand::default();
    threads.push(spawn(
        PAGER,
        Box::new(move || {
            measured.memory();
            kv::pager::turn(&mut cx);
            kv::pager::defragment(&mut cx, &mut demand);
            empty_slabs(&measured, &mut cx, 2);
        }),
    ));
    let mut cx = context(&node, AUDITOR);
    let mut at_rest = 0;
    for burst in 0..BURSTS {
        begin.wait();
        for _ in 0..3 {
            audit(&bucket, &mut cx);
        }
        end.wait();
        // They wait for the next burst, each with what it holds.
        let audited = audit(&bucket, &mut cx);
        assert!(audited.at_rest, "burst {burst}");
        at_rest += usize::from(audited.at_rest);
    }
    begin.wait();
    for thread in threads {
        thread.join().unwrap();
    }
    (bucket, at_rest)
}

#[test]
fn none_is_wrong_while_values_are_compressed() {
    let (bucket, at_rest) = audit_between_bursts(Compression::Active);
    assert_eq!(at_rest, BURSTS);
    assert!(bucket.meter(Meter::CompressorValues) > 100, "{}", bucket.meter(Meter::CompressorValues));
}

#[test]
fn none_is_wrong_without() {
    let (bucket, at_rest) = audit_between_bursts(Compression::Passive);
    assert_eq!(at_rest, BURSTS);
    assert!(bucket.meter(Meter::Evictions) > 0);
}

/// The same, one step at a time: a slow reader of a large value, when its document is removed.
#[test]
fn what_somebody_reads_is_not_missed_when_its_document_goes() {
    let (node, bucket) = world(Compression::Passive);
    let mut cx = context(&node, AUDITOR);
    let mut writer =
        Writer { bucket: Arc::clone(&bucket), cx: context(&node, 0), number: 0, random: 1, read: Vec::new() };
    for (name, goes) in [("kept", false), ("removed", true), ("replaced", true)] {
        writer.store(name, 50_000);
        let key = Key::plain(name.as_bytes());
        let pin = bucket.read(&mut writer.cx, key, bucket.locate(key), |document| document?.pin()).unwrap();
        let pin = pin.unwrap();
        match name {
            "removed" => drop(bucket.remove(&mut writer.cx, key, bucket.locate(key), 0).unwrap()),
            "replaced" => writer.store(name, 40_000),
            _ => {}
        }
        let held = audit(&bucket, &mut cx);
        assert!(held.at_rest, "{name}");
        let in_flight = bucket.memory().in_flight;
        assert_eq!(in_flight > 50_000, goes, "{name}: {in_flight}");
        drop(pin);
        assert_eq!(bucket.memory().in_flight, 0, "{name}");
        assert_eq!(audit(&bucket, &mut cx).found, held.found, "{name}");
    }
}
