//! A dropped bucket has given its memory back, with every allocator: items of all kinds, index, seqno order, expiry
//! windows and document locks.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use kv::{
    Bucket, BucketSettings, Expiry, HeapChoice, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Now,
    Store, StoreKind, Value,
};

const ROUNDS: usize = 6;
const ITEMS: u32 = 60_000;
const LARGE_EVERY: u32 = 1000;
const PAGE: usize = 4096;
/// What may be left of all rounds together: free pages at the edges of what other allocations hold. One bucket is more
/// than three times as much.
const LEFT_BYTES_MAX: usize = 12 << 20;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}

fn fill(bucket: &Bucket, cx: &mut NodeContext) {
    bucket.keep_seqno_order(cx, true).unwrap();
    for number in 0..ITEMS {
        let is_large = number % LARGE_EVERY == 0;
        let value = vec![number as u8; if is_large { 50_000 } else { 100 + number as usize % 900 }];
        let text = format!("key {number}");
        let key = Key::plain(text.as_bytes());
        let at = bucket.locate(key);
        let expiry = if number % 2 == 0 { Expiry::At(0) } else { Expiry::At(cx.now.unix_s + 10 + number) };
        let store = |value| Store { flags: 1, expiry, datatype: 0, value, new_cas: 0 };
        let value = if is_large {
            let mut large = bucket.prepare_large(cx, key, value.len()).unwrap();
            large.window(0, value.len()).copy_from_slice(&value);
            Value::Large(Box::new(large))
        } else {
            Value::Bytes(&value)
        };
        bucket.mutate(cx, key, at, Mutation { kind: StoreKind::Set, cas: 0, store: store(value) }).unwrap();
        if number % 64 == 0 {
            bucket.change(cx, key, at, |entry| entry.lock(30)).unwrap();
        }
        cx.end_batch();
    }
}

/// Creates, fills and drops a bucket. Returns how much memory it took.
fn one_bucket(node: &Arc<Node>, cx: &mut NodeContext, item_heap: HeapChoice) -> usize {
    let before = resident_bytes();
    let settings =
        BucketSettings { vbuckets: 16, memory_bytes: 1 << 30, item_heap, ..BucketSettings::default() };
    let bucket = node.create_bucket("b", settings).unwrap();
    fill(&bucket, cx);
    let taken = resident_bytes().saturating_sub(before);
    assert_eq!(bucket.memory().items, u64::from(ITEMS));
    node.delete_bucket("b").unwrap();
    // The node's own reference is gone, the thread's goes with `tend`; this is the last one.
    cx.tend();
    drop(bucket);
    taken
}

#[test]
fn its_memory_goes_back() {
    for item_heap in [HeapChoice::Block, HeapChoice::Slab, HeapChoice::Auto] {
        memory_goes_back(item_heap);
    }
}

fn memory_goes_back(item_heap: HeapChoice) {
    let settings = NodeSettings { threads: 1, shutdown_command: false, version: "test".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let mut cx = NodeContext::new(Arc::clone(&node), 0);
    cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_us: 0 };
    let first = one_bucket(&node, &mut cx, item_heap);
    assert!(first > 3 * LEFT_BYTES_MAX, "a bucket takes {first} bytes: too few to see it missing");
    let before = resident_bytes();
    for _ in 1..ROUNDS {
        one_bucket(&node, &mut cx, item_heap);
    }
    let left = resident_bytes().saturating_sub(before);
    assert!(left < LEFT_BYTES_MAX, "{left} bytes are left of {} buckets of {first}", ROUNDS - 1);
}
