//! An audit: a walk over everything a bucket has, compared with its accounts to the byte.
//!
//! ```text
//!   index walk, one vBucket per hold of its lock     items by kind and size, index blocks
//!   slab walk, one hold of the slabs' lock           slots with an owner, slabs, their bookkeeping
//!   accounts, before and after                       equal, and nothing allocated or freed: so all three must agree
//! ```
//! A violation of what must hold at any time is an error at once: an item that two slots name, a slot of another
//! vBucket's. Sums are compared only if the bucket was at rest.
//!
//! Memory that nothing in the bucket names any more is counted apart from what the walk finds, from the moment the last
//! name goes, which is under its vBucket's lock: index blocks that a thread may be peeking at ([`Gauge::Retired`]), and
//! large items that an answer, the flusher or the compressor still reads ([`Gauge::InFlight`]). Any thread may free
//! them at any time, without a lock: the figures that are compared do not change then. All other memory changes hands
//! under the lock of a vBucket, so a change that began before the walk has ended when the walk reaches its vBucket, and
//! one that begins later is noted first; or it is a slab's, which is [`Gauge::Underway`] meanwhile.

use std::sync::atomic::{Ordering::SeqCst, fence};

use memory::Gauge;

use super::Bucket;
use crate::index::Audit;
use crate::{ThreadContext, VbId};

/// A walk in progress.
pub struct Auditing<'a> {
    bucket: &'a Bucket,
    changes: u64,
    /// Set if a slab was changing hands when the walk began.
    underway: bool,
    before: Audit,
    found: Audit,
    vb: u16,
}

/// The result of a walk that met no contradiction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audited {
    /// What the walk found.
    pub found: Audit,
    /// Set if nothing changed during the walk: only then was it compared with the accounts.
    pub at_rest: bool,
}

impl<'a> Auditing<'a> {
    /// Begins a walk.
    pub fn new(bucket: &'a Bucket) -> Self {
        let changes = bucket.tenant().gauge(Gauge::Changes);
        let underway = bucket.tenant().gauge(Gauge::Underway) > 0;
        fence(SeqCst);
        Self { bucket, changes, underway, before: bucket.counted(), found: Audit::default(), vb: 0 }
    }

    /// Walks over the next vBucket. Returns true if there is another. The error says what is wrong.
    pub fn step(&mut self, cx: &mut ThreadContext) -> Result<bool, String> {
        let vb = self.vb;
        let audit = self.bucket.lock(cx, VbId(vb)).audit();
        self.found.add(&audit.map_err(|error| format!("vBucket {vb}: {error}"))?);
        self.vb += 1;
        Ok(self.vb < self.bucket.vbuckets())
    }

    /// Ends the walk after the last vBucket: walks over the slabs, and compares.
    pub fn end(mut self) -> Result<Audited, String> {
        let slabs = self.bucket.tenant().walk_slabs()?;
        self.found.index_bytes += slabs.bookkeeping_bytes;
        self.found.bookkeeping_bytes = slabs.bookkeeping_bytes;
        self.found.slab_bytes = slabs.slab_bytes;
        let counted = self.bucket.counted();
        let underway = self.underway || self.bucket.tenant().gauge(Gauge::Underway) > 0;
        // ORDERING: the changes last. Whoever changes one of the figures above notes that first.
        fence(SeqCst);
        // Equal sums do not suffice: the walk may have met an item that moved in two slabs, or in none.
        let is_still = self.bucket.tenant().gauge(Gauge::Changes) == self.changes && counted == self.before;
        let (found, at_rest) = (self.found, is_still && !underway);
        if at_rest
            && (found != Audit { slots: slabs.slots, ..counted } || slabs.slot_bytes != counted.slot_bytes)
        {
            return Err(format!("found {found:?}, counted {counted:?}, in slabs {slabs:?}"));
        }
        Ok(Audited { found, at_rest })
    }
}

impl Bucket {
    /// Audits the whole bucket while nobody else uses it. The error says what is wrong.
    pub fn audit(&self, cx: &mut ThreadContext) -> Result<Audit, String> {
        let mut walk = Auditing::new(self);
        while walk.step(cx)? {}
        let audited = walk.end()?;
        if audited.at_rest { Ok(audited.found) } else { Err("the bucket is in use".to_owned()) }
    }

    /// Returns what the accounts say. They do not count slots, only their bytes.
    fn counted(&self) -> Audit {
        let gauge = |gauge| self.tenant().gauge(gauge);
        Audit {
            documents: gauge(Gauge::Count),
            item_bytes: gauge(Gauge::Items),
            payload_bytes: gauge(Gauge::Payload),
            metadata_bytes: gauge(Gauge::Metadata),
            index_bytes: gauge(Gauge::Index),
            slot_bytes: gauge(Gauge::Slots),
            bookkeeping_bytes: self.tenant().bookkeeping_bytes(),
            slab_bytes: self.tenant().slab_figures().slab_bytes,
            compressed: gauge(Gauge::CompressedCount),
            compressed_bytes: gauge(Gauge::Compressed),
            inflated_bytes: gauge(Gauge::Inflated),
            ..Audit::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memory::{HeapChoice, ItemHeap};

    use super::*;
    use crate::defragmenter::empty_slabs;
    use crate::{
        BucketSettings, Expiry, Key, Limits, Mutation, Node, NodeContext, NodeSettings, Store, StoreKind,
        Value,
    };

    fn world(item_heap: HeapChoice) -> (NodeContext, Arc<Bucket>) {
        let settings = NodeSettings { threads: 2, shutdown_command: false, version: "test".into(), seed: 7 };
        let node = Node::new(settings, Limits::default());
        let settings = BucketSettings { vbuckets: 16, item_heap, ..BucketSettings::default() };
        let bucket = node.create_bucket("b", settings).unwrap();
        let mut cx = NodeContext::new(node, 0);
        let content = vec![b'v'; 50_000];
        for number in 0..2000usize {
            let length = if number.is_multiple_of(100) { 40_000 + number } else { number };
            set(&mut cx, &bucket, &format!("key-{number}"), &content[..length]);
        }
        cx.end_batch();
        (cx, bucket)
    }

    fn set(cx: &mut NodeContext, bucket: &Bucket, key: &str, value: &[u8]) {
        let key = Key::plain(key.as_bytes());
        let value = Value::Bytes(value);
        let store = Store { flags: 0, expiry: Expiry::At(0), datatype: 0, value, new_cas: 0 };
        let at = bucket.locate(key);
        bucket.mutate(cx, key, at, Mutation { kind: StoreKind::Set, cas: 0, store }).unwrap();
    }

    #[test]
    fn what_was_stored_is_found_and_counted() {
        for (item_heap, slots) in [(HeapChoice::Slab, 1980), (HeapChoice::Block, 0)] {
            let (mut cx, bucket) = world(item_heap);
            let audit = bucket.audit(&mut cx).unwrap();
            assert_eq!((audit.documents, audit.slots), (2000, slots));
            assert!(audit.slab_bytes >= audit.slot_bytes && audit.item_bytes > audit.payload_bytes);
        }
    }

    /// An audit changes nothing, however many slots of the seqno order are superseded and wherever its next compaction
    /// is.
    #[test]
    fn what_it_walks_over_it_leaves_as_it_is() {
        let (mut cx, bucket) = world(HeapChoice::Slab);
        bucket.keep_seqno_order(&mut cx, true).unwrap();
        for round in 0..60 {
            for number in 0..200usize {
                set(&mut cx, &bucket, &format!("key-{}", (number * 7 + round * 13) % 2000), b"w");
            }
            bucket.audit(&mut cx).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }

    #[test]
    fn what_another_thread_has_yet_to_free_is_no_contradiction() {
        let (mut cx, bucket) = world(HeapChoice::Slab);
        let mut other = NodeContext::new(Arc::clone(&cx.node), 1);
        for number in 0..2000 {
            set(&mut other, &bucket, &format!("other-{number}"), b"v");
        }
        assert!(!other.retired.is_empty());
        let mut walk = Auditing::new(&bucket);
        while walk.step(&mut cx).unwrap() {}
        assert!(walk.end().unwrap().at_rest);
        other.end_batch();
        assert!(other.retired.is_empty());
        assert_eq!(bucket.audit(&mut cx).unwrap().documents, 4000);
    }

    #[test]
    fn what_is_replaced_or_moved_meanwhile_is_no_contradiction() {
        let (mut cx, bucket) = world(HeapChoice::Slab);
        let mover = std::thread::spawn({
            let (node, bucket) = (Arc::clone(&cx.node), Arc::clone(&bucket));
            move || {
                let (mut cx, mut moved) = (NodeContext::new(node, 1), 0);
                for round in 0..300usize {
                    for number in (0..2000).step_by(5) {
                        let length = 1000 + (number + round) % 7 * 100;
                        set(&mut cx, &bucket, &format!("key-{number}"), &[b'w'; 2000][..length]);
                    }
                    cx.end_batch();
                    moved += empty_slabs(&bucket, &mut cx, 64);
                }
                cx.rest();
                (cx, moved)
            }
        });
        while !mover.is_finished() {
            let mut walk = Auditing::new(&bucket);
            while walk.step(&mut cx).unwrap() {}
            walk.end().unwrap();
        }
        cx.rest();
        let (mut other, moved) = mover.join().unwrap();
        other.end_batch();
        assert!(moved > 0);
        assert_eq!(bucket.audit(&mut cx).unwrap().documents, 2000);
    }

    #[test]
    fn a_byte_too_many_is_noticed() {
        for gauge in [Gauge::Items, Gauge::Index, Gauge::Payload, Gauge::Metadata, Gauge::Count, Gauge::Slots]
        {
            let (mut cx, bucket) = world(HeapChoice::Slab);
            bucket.tenant().count_shared(gauge, 1);
            assert!(bucket.audit(&mut cx).unwrap_err().contains("counted"), "{gauge:?}");
            bucket.tenant().count_shared(gauge, -1);
            bucket.audit(&mut cx).unwrap();
        }
    }

    #[test]
    fn a_slot_that_no_index_slot_names_is_noticed() {
        let (mut cx, bucket) = world(HeapChoice::Slab);
        let mut cache = bucket.tenant().cache(1);
        bucket.resources.heap.allocate(&mut cache, 100, 3).unwrap();
        let bytes = -104;
        bucket.tenant().count(&mut cache, Gauge::Items, bytes);
        bucket.tenant().count(&mut cache, Gauge::Slots, bytes);
        let error = bucket.audit(&mut cx).unwrap_err();
        assert!(error.contains("in slabs"), "{error}");
    }

    #[test]
    fn a_change_meanwhile_is_not_taken_for_a_fault() {
        let (mut cx, bucket) = world(HeapChoice::Slab);
        let mut walk = Auditing::new(&bucket);
        while walk.step(&mut cx).unwrap() {}
        let key = Key::plain(b"key-7");
        let at = bucket.locate(key);
        let store = Store {
            flags: 0,
            expiry: Expiry::At(0),
            datatype: 0,
            value: Value::Bytes(b"another"),
            new_cas: 0,
        };
        let appended = Mutation { kind: StoreKind::Append, cas: 0, store };
        bucket.mutate(&mut cx, key, at, appended).unwrap();
        assert!(!walk.end().unwrap().at_rest);
    }
}
