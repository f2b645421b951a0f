//! Prefetching runs ahead of the locks: one thread peeks at the index while others make it grow, split, merge and vanish.
//!
//! Nothing peeked at may be freed under the peeker (an address sanitiser or a segmentation fault would tell), every read
//! under the lock is right, and in the end every retired block has been given back.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kv::{
    Bucket, BucketSettings, Cx, Expiry, Key, Limits, Mutation, Node, NodeSettings, Now, Store, StoreKind,
    Value,
};

const WRITERS: usize = 2;
const KEYS: u64 = 3_000;
const ROUNDS: usize = 12;

fn context(node: &Arc<Node>, thread: usize) -> Cx {
    let mut cx = Cx::new(Arc::clone(node), thread);
    cx.now = Now { unix_s: 1_800_000_000, unix_ns: 1_800_000_000_000_000_000, mono_ms: 0 };
    cx
}

fn key(writer: usize, number: u64) -> String {
    format!("{writer}:{number}")
}

/// Stores a writer's keys, reads them back, removes most and in the end all of them.
fn write(bucket: &Bucket, cx: &mut Cx, writer: usize) {
    for round in 0..ROUNDS {
        for number in 0..KEYS {
            let (text, value) =
                (key(writer, number), format!("{round} {number} {}", "x".repeat(number as usize % 300)));
            let at = bucket.locate(Key::plain(text.as_bytes()));
            let value = Value::Bytes(value.as_bytes());
            let store = Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 };
            let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
            bucket.mutate(cx, Key::plain(text.as_bytes()), at, mutation).unwrap();
            cx.end_batch();
        }
        for number in 0..KEYS {
            let text = key(writer, number);
            let at = bucket.locate(Key::plain(text.as_bytes()));
            let expected = format!("{round} {number} {}", "x".repeat(number as usize % 300));
            bucket.read(cx, Key::plain(text.as_bytes()), at, |document| {
                assert_eq!(document.unwrap().value(), expected.as_bytes());
            });
        }
        for number in (0..KEYS).filter(|number| round + 1 == ROUNDS || number % 8 != 0) {
            let text = key(writer, number);
            let at = bucket.locate(Key::plain(text.as_bytes()));
            bucket.remove(cx, Key::plain(text.as_bytes()), at, 0).unwrap();
            cx.end_batch();
        }
    }
}

#[test]
fn nothing_is_freed_while_it_is_peeked_at() {
    let settings =
        NodeSettings { threads: WRITERS + 1, shutdown_command: false, version: "test".into(), seed: 7 };
    let node = Node::new(settings, Limits::default());
    let bucket =
        node.create_bucket("b", BucketSettings { vbuckets: 2, ..BucketSettings::default() }).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let peeker = {
        let (node, bucket, done) = (Arc::clone(&node), Arc::clone(&bucket), Arc::clone(&done));
        thread::spawn(move || {
            let mut batches = 0u64;
            while !done.load(Ordering::Relaxed) {
                node.quiescence().enter(WRITERS);
                for number in 0..64 {
                    let text = key(number as usize % WRITERS, (batches * 61 + number) % KEYS);
                    let at = bucket.locate(Key::plain(text.as_bytes()));
                    bucket.prefetch_vbucket(at);
                    bucket.prefetch_directory(at);
                    bucket.prefetch_line(at);
                    bucket.prefetch_item(at, 384);
                }
                node.quiescence().leave(WRITERS);
                batches += 1;
            }
            batches
        })
    };
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (node, bucket) = (Arc::clone(&node), Arc::clone(&bucket));
            thread::spawn(move || {
                let mut cx = context(&node, writer);
                write(&bucket, &mut cx, writer);
                cx
            })
        })
        .collect();
    let mut contexts: Vec<Cx> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    done.store(true, Ordering::Relaxed);
    assert!(peeker.join().unwrap() > 0);
    for cx in &mut contexts {
        assert!(!cx.end_batch(), "nobody is inside any more: everything retired is free");
    }
    let figures = bucket.accounts();
    assert_eq!((figures.items, figures.payload, figures.allocated), (0, 0, 0));
}
