//! Compression of stored values: copied under the lock, and replaced by the compressed form under it later.
//!
//! In between the lock is free, and anything may happen to the item: it is found again by hash and seqno. As long as it
//! has that seqno its value is the one that was copied; expiry, CAS and marks may have changed, and are kept.

use arrayvec::ArrayVec;
use memory::{ItemHeap, LargeBlock, Location, large};
use wire::binary::datatype::{SNAPPY, XATTR};

use super::item::{Header, ItemPtr, Kind, STORED_KEY_MAX, mark};
use super::table::{Found, Hand};
use super::vbucket::{Locked, Present, SLICE_ITEMS};
use crate::PinnedValue;

/// Most bytes copied under one hold of the lock, except for a single value.
const SLICE_BYTES: usize = 64 << 10;
/// Shorter values have nothing to repeat.
const VALUE_LEAST: usize = 64;

/// An item whose value is to be compressed.
pub(crate) struct Candidate {
    pub(crate) hash: u64,
    pub(crate) seqno: u64,
    pub(crate) key_len: usize,
    pub(crate) datatype: u8,
    value: CopiedOrPinned,
}

enum CopiedOrPinned {
    Copied(std::ops::Range<usize>),
    Pinned(PinnedValue),
}

/// Candidates of one hold of the lock.
#[derive(Default)]
pub(crate) struct Candidates {
    pub(crate) list: Vec<Candidate>,
    bytes: Vec<u8>,
}

impl Candidates {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes.clear();
    }

    pub(crate) fn value<'a>(&'a self, candidate: &'a Candidate) -> &'a [u8] {
        match &candidate.value {
            CopiedOrPinned::Copied(range) => self.bytes.get(range.clone()).unwrap_or_default(),
            CopiedOrPinned::Pinned(value) => value,
        }
    }
}

/// A position in a walk over a vBucket's table: a group, and how many of its items have been visited.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Passage {
    hand: Hand,
    done: usize,
}

/// A compressed value on its way back.
pub(crate) enum Block<'a> {
    Small(&'a [u8]),
    /// In place in a large item of this item's key.
    Large(LargeBlock),
}

fn footprint(at: Location, header: &Header) -> usize {
    if header.marks & mark::LARGE != 0 {
        large::item_footprint(header.item_size())
    } else {
        at.footprint(header.item_size())
    }
}

impl Locked<'_> {
    /// Copies the compressible values of a slice of the table whose seqnos are above `above`. Returns where the walk
    /// continues.
    pub(crate) fn take_compressible(
        &mut self,
        from: Passage,
        above: u64,
        into: &mut Candidates,
    ) -> Option<Passage> {
        let Passage { hand, done } = from;
        let mut slice = ArrayVec::<Found, SLICE_ITEMS>::new();
        let mut items = 0;
        let next = self.root.walk(hand, |found, _| {
            if items >= done {
                let _ = slice.try_push(found);
            }
            items += 1;
        });
        let mut looked_at = done + slice.len();
        for (at, found) in slice.iter().enumerate() {
            let present = Present { found: *found, item: self.item(found.location) };
            let header = self.header(present);
            let is_worth_it = header.kind == Kind::Document
                && header.seqno > above
                && header.datatype & (SNAPPY | XATTR) == 0
                && header.value_len >= VALUE_LEAST
                && self.death(present.item).is_none();
            if !is_worth_it {
                continue;
            }
            let value = match self.pin(present, &header, 0) {
                Some(_) if !into.list.is_empty() => {
                    // A large value gets a slice to itself.
                    looked_at = done + at;
                    break;
                }
                Some(pin) => CopiedOrPinned::Pinned(PinnedValue::new(pin)),
                None if !into.list.is_empty() && into.bytes.len() + header.value_len > SLICE_BYTES => {
                    looked_at = done + at;
                    break;
                }
                None => {
                    let start = into.bytes.len();
                    into.bytes.extend_from_slice(self.value(present, &header));
                    CopiedOrPinned::Copied(start..into.bytes.len())
                }
            };
            let is_pinned = matches!(value, CopiedOrPinned::Pinned(_));
            let hash = self.hash_of(found.location);
            let Header { seqno, key_len, datatype, .. } = header;
            into.list.push(Candidate { hash, seqno, key_len, datatype, value });
            if is_pinned {
                looked_at = done + at + 1;
                break;
            }
        }
        if looked_at < items {
            return Some(Passage { hand, done: looked_at });
        }
        next.map(|hand| Passage { hand, done: 0 })
    }

    /// Replaces a value by its compressed form, if the original is still there and the result takes an eighth less.
    /// Returns how much less. `datatype`: of the compressed form.
    pub(crate) fn put_compressed(
        &mut self,
        hash: u64,
        seqno: u64,
        datatype: u8,
        block: Block<'_>,
    ) -> Option<u64> {
        let heap = &self.memory.resources.heap;
        // SAFETY: the locations come from the table and the lock is held.
        let found = self.root.find(hash, |at| unsafe { ItemPtr(heap.address(at)).seqno() } == seqno)?;
        let present = Present { found, item: self.item(found.location) };
        let old = self.header(present);
        if old.kind != Kind::Document || old.is_compressed() {
            return None;
        }
        let (old_location, old_bytes) = (found.location, footprint(found.location, &old));
        if let Block::Small(bytes) = block {
            let size = old.item_size() - old.value_len + bytes.len();
            if old_location.footprint(size) * 8 > old_bytes * 7 {
                return None;
            }
        }
        let header = Header { datatype: old.datatype | datatype, ..old };
        let mut stored_key = ArrayVec::<u8, STORED_KEY_MAX>::new();
        // SAFETY: the item is in the table and the lock is held.
        let is_copied = stored_key.try_extend_from_slice(unsafe { present.item.stored_key() });
        debug_assert!(is_copied.is_ok(), "a stored key has its longest length");
        let (location, header) = match block {
            Block::Small(bytes) => self.place_stored(&stored_key, header, bytes).ok()?,
            Block::Large(block) => self.place_large(&stored_key, header, block),
        };
        let mut moved = present;
        self.root.relocate(&mut moved.found, location);
        if let Some(order) = &mut self.state.order {
            order.relocate(seqno, location);
        }
        self.free(old_location, present.item, &old);
        self.recount(&header);
        self.uncount(&old);
        Some(old_bytes.saturating_sub(footprint(location, &header)) as u64)
    }
}
