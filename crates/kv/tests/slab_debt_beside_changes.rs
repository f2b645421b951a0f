//! Threads that grow their keys side by side and work off their slab debt without a pager, also while the defragmenter
//! is switched off and on. Every read is right, and in the end the accounts equal a walk over everything, to the byte.
#![allow(clippy::unwrap_used)]

mod beside;
mod numbers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{iter, thread};

use beside::{WRITERS, key};
use kv::{Bucket, Expiry, HeapChoice, Key, Meter, Mutation, NodeContext, Store, StoreKind, Value};
use numbers::numbers;

const KEYS: usize = 20_000;
const STEP: usize = 60;
/// Stores between two switches of the defragmenter.
const SWITCHED_AFTER: u64 = 400;

fn fill(writer: usize, number: usize) -> u8 {
    (writer * 100 + number) as u8
}

fn grow(bucket: &Bucket, cx: &mut NodeContext, writer: usize) {
    let mut lengths = vec![0; KEYS];
    for random in numbers(88_172_645_463_325_252 ^ writer as u64).take(KEYS * 10) {
        let number = random as usize % KEYS;
        lengths[number] += STEP;
        let (text, bytes) = (key(writer, number), vec![fill(writer, number); lengths[number]]);
        let store =
            Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value: Value::Bytes(&bytes), new_cas: 0 };
        let at = bucket.locate(Key::plain(text.as_bytes()));
        let mutation = Mutation { kind: StoreKind::Set, cas: 0, store };
        bucket.mutate(cx, Key::plain(text.as_bytes()), at, mutation).unwrap();
        cx.end_batch();
    }
    for number in (0..KEYS).filter(|number| lengths[*number] > 0) {
        let text = key(writer, number);
        let at = bucket.locate(Key::plain(text.as_bytes()));
        bucket
            .read(cx, Key::plain(text.as_bytes()), at, |document| {
                let right = iter::repeat_n(fill(writer, number), lengths[number]);
                assert!(document.unwrap().value().iter().copied().eq(right), "{text}");
            })
            .unwrap();
    }
}

/// Returns the bytes of slots in use, and those free above the bound.
fn run(switching: bool) -> (u64, u64) {
    let (node, bucket) = beside::node(WRITERS + 1, HeapChoice::Slab);
    let done = Arc::new(AtomicBool::new(false));
    let peeker = beside::peek(&node, &bucket, &done, KEYS);
    let mut contexts = thread::scope(|scope| {
        let writing = scope.spawn(|| beside::write_all(&node, &bucket, grow));
        while switching && !writing.is_finished() {
            for is_on in [false, true] {
                bucket.set_defragmenter(is_on);
                let stored = bucket.meter(Meter::TotalItems) + SWITCHED_AFTER;
                while bucket.meter(Meter::TotalItems) < stored && !writing.is_finished() {
                    thread::yield_now();
                }
            }
        }
        writing.join().unwrap()
    });
    done.store(true, Ordering::Relaxed);
    peeker.join().unwrap();
    for cx in &mut contexts {
        cx.rest();
    }
    assert!(bucket.meter(Meter::DefragmentedItems) > 0);
    let audit = bucket.audit(&mut contexts[0]).unwrap();
    assert_eq!(audit.documents, bucket.accounts().items);
    let figures = bucket.memory();
    let free = figures.slabs - figures.slots;
    (figures.slots, free.saturating_sub((figures.slots / 8).max(4 << 20)))
}

#[test]
fn threads_pay_side_by_side() {
    let (used, above) = run(false);
    assert!(above < used / 16, "{above} bytes above the bound, {used} used");
}

#[test]
fn threads_pay_or_not_as_the_defragmenter_is_switched() {
    run(true);
}
