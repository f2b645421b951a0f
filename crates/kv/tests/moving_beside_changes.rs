//! A defragmenter that moves everything, all the time, beside threads that store, append, delete, prepare and send.
//!
//! Every read is right, pinned values stay as they are, and in the end the accounts equal a walk over everything, to
//! the byte.
#![allow(clippy::unwrap_used)]

mod beside;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use beside::{WRITERS, context, key};
use kv::defragmenter::{Mover, empty_slabs};
use kv::{Bucket, Expiry, HeapChoice, Key, Mutation, NodeContext, Store, StoreKind, Value};

const MOVER: usize = WRITERS + 1;
const KEYS: usize = 1_500;
const ROUNDS: usize = 10;

fn store(value: Value<'_>) -> Store<'_> {
    Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 }
}

/// The value of a key in a round: one in fifty is large.
fn value(writer: usize, round: usize, number: usize) -> Vec<u8> {
    let len = if number.is_multiple_of(50) { 33_000 + round } else { number * 7 % 1900 };
    let fill = (writer * 100 + round * 10 + number) as u8;
    vec![fill; len]
}

fn write(bucket: &Bucket, cx: &mut NodeContext, writer: usize) {
    let mut pins = Vec::new();
    for round in 0..ROUNDS {
        for number in 0..KEYS {
            let (text, bytes) = (key(writer, number), value(writer, round, number));
            let at = bucket.locate(Key::plain(text.as_bytes()));
            if bytes.len() > kv::LARGE_VALUE {
                let mut item = bucket.prepare_large(cx, Key::plain(text.as_bytes()), bytes.len()).unwrap();
                item.window(0, bytes.len()).copy_from_slice(&bytes);
                let store = store(Value::Large(Box::new(item)));
                let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
                bucket.mutate(cx, Key::plain(text.as_bytes()), at, mutation).unwrap();
                let pin =
                    bucket.read(cx, Key::plain(text.as_bytes()), at, |document| document?.pin()).unwrap();
                pins.push((pin.unwrap(), bytes));
            } else if number.is_multiple_of(7) {
                let seqno = bucket
                    .change(cx, Key::plain(text.as_bytes()), at, |entry| {
                        entry.prepare_at(1);
                        entry.store(store(Value::Bytes(&bytes)))
                    })
                    .unwrap()
                    .seqno;
                thread::yield_now();
                bucket.commit(cx, at.vb, seqno).unwrap();
            } else {
                let (head, tail) = bytes.split_at(bytes.len() / 2);
                for (kind, part) in [(StoreKind::Set, head), (StoreKind::Append, tail)] {
                    let mutation = Mutation { kind, cas: 0, store: store(Value::Bytes(part)) };
                    bucket.mutate(cx, Key::plain(text.as_bytes()), at, mutation).unwrap();
                }
            }
            cx.end_batch();
        }
        for number in 0..KEYS {
            let text = key(writer, number);
            let at = bucket.locate(Key::plain(text.as_bytes()));
            bucket
                .read(cx, Key::plain(text.as_bytes()), at, |document| {
                    assert!(
                        document.unwrap().value() == value(writer, round, number),
                        "{text} in round {round}"
                    );
                })
                .unwrap();
        }
        for (pin, bytes) in pins.drain(..) {
            assert!(*pin == *bytes, "a pinned value has changed");
        }
        for number in (0..KEYS).filter(|number| number % 3 == round % 3) {
            let text = key(writer, number);
            let at = bucket.locate(Key::plain(text.as_bytes()));
            bucket.remove(cx, Key::plain(text.as_bytes()), at, 0).unwrap();
            cx.end_batch();
        }
    }
}

#[test]
fn every_read_is_right_while_blocks_move() {
    let (moved, _) = run(HeapChoice::Block);
    assert!(moved > KEYS as u64, "only {moved} items were moved");
}

#[test]
fn every_read_is_right_while_slots_move() {
    let (moved, emptied) = run(HeapChoice::Slab);
    assert!(moved > KEYS as u64 && emptied > 100, "only {moved} and {emptied} items were moved");
}

/// Returns how many items were moved: in walks over all, and out of slabs.
fn run(item_heap: HeapChoice) -> (u64, u64) {
    let (node, bucket) = beside::node(MOVER + 1, item_heap);
    bucket.keep_seqno_order(&mut context(&node, MOVER), true).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let peeker = beside::peek(&node, &bucket, &done, KEYS);
    let mover = {
        let (node, bucket, done) = (Arc::clone(&node), Arc::clone(&bucket), Arc::clone(&done));
        thread::spawn(move || {
            let mut cx = context(&node, MOVER);
            let (mut moved, mut emptied) = (0, 0);
            while !done.load(Ordering::Relaxed) {
                let mut walk = Mover::of_everything();
                while walk.slice(&bucket, &mut cx) {
                    cx.end_batch();
                }
                moved += walk.moved_items();
                emptied += empty_slabs(&bucket, &mut cx, 8);
                cx.end_batch();
            }
            (cx, moved, emptied)
        })
    };
    let mut contexts = beside::write_all(&node, &bucket, write);
    done.store(true, Ordering::Relaxed);
    peeker.join().unwrap();
    let (mut cx, moved, emptied) = mover.join().unwrap();
    cx.rest();
    contexts.push(cx);
    for cx in &mut contexts {
        assert!(!cx.end_batch(), "nobody is inside any more: everything retired is free");
    }
    let audit = bucket.audit(&mut contexts[0]).unwrap();
    assert!(audit.documents > 0 && audit.documents < (WRITERS * KEYS) as u64);
    (moved, emptied)
}
