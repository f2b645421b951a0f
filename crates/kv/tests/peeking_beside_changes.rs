//! Prefetching runs ahead of the locks: one thread peeks at the index while others make it grow, split, merge and
//! vanish.
//!
//! Nothing peeked at may be freed under the peeker (an address sanitiser or a segmentation fault would show it), every
//! read under the lock is right, and in the end every retired block has been given back.
#![allow(clippy::unwrap_used)]

mod beside;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use beside::{WRITERS, key};
use kv::{Bucket, Expiry, HeapChoice, Key, Mutation, NodeContext, Store, StoreKind, Value};

const KEYS: usize = 3_000;
const ROUNDS: usize = 12;

/// Stores a writer's keys, reads them back, removes most of them and in the end all.
fn write(bucket: &Bucket, cx: &mut NodeContext, writer: usize) {
    for round in 0..ROUNDS {
        for number in 0..KEYS {
            let (text, value) =
                (key(writer, number), format!("{round} {number} {}", "x".repeat(number % 300)));
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
            let expected = format!("{round} {number} {}", "x".repeat(number % 300));
            bucket
                .read(cx, Key::plain(text.as_bytes()), at, |document| {
                    assert_eq!(document.unwrap().value(), expected.as_bytes());
                })
                .unwrap();
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
    peek_beside_changes(HeapChoice::Block);
    peek_beside_changes(HeapChoice::Slab);
}

fn peek_beside_changes(item_heap: HeapChoice) {
    let (node, bucket) = beside::node(WRITERS + 1, item_heap);
    let done = Arc::new(AtomicBool::new(false));
    let peeker = beside::peek(&node, &bucket, &done, KEYS);
    let mut contexts = beside::write_all(&node, &bucket, write);
    done.store(true, Ordering::Relaxed);
    assert!(peeker.join().unwrap() > 0);
    for cx in &mut contexts {
        assert!(!cx.end_batch(), "nobody is inside any more: everything retired is free");
    }
    for cx in &mut contexts {
        // The reserve goes with the second rest: the first notes that the bucket was used.
        cx.rest();
        cx.rest();
    }
    let figures = bucket.accounts();
    assert_eq!((figures.items, figures.payload), (0, 0));
    // Nothing is left but what slabs keep for later.
    let audit = bucket.audit(&mut contexts[0]).unwrap();
    assert_eq!(figures.allocated, audit.bookkeeping_bytes);
    assert!(item_heap == HeapChoice::Slab || audit.bookkeeping_bytes == 0, "{audit:?}");
}
