//! Moves items, so that the pages they leave become free.
//!
//! ```text
//!   document, tombstone, ejected   index slot, and a seqno slot where the order has one
//!   prepare                        entry of the prepares, and a seqno slot in a persistent bucket
//!   abort                          seqno slot
//! ```
//! Nothing else refers to an item, and all of it changes under the vBucket's lock. A thread that peeks ahead of the
//! lock loads a slot with one atomic read and only prefetches what it names. Large items stay: pins hold their address.
//!
//! There are two ways to find what has to move. Blocks are found by walking the table and asking the allocator about
//! each. Aborts stay then, since they go with the next flush; the groups of the table move too, since they share their
//! size classes with items. Slots are found from the slab that is to be emptied: it names the vBucket of each, and
//! under that lock the item does not change.

use std::ptr::NonNull;

use arrayvec::ArrayVec;
use memory::{ItemHeap, Location, Occupancy, Survey, prefetch};

use super::item::{Header, Kind, mark};
use super::table::{Found, Hand};
use super::vbucket::{Locked, SLICE_ITEMS};

/// Most bytes moved under one hold of the lock, except for a single item.
const SLICE_BYTES: usize = 64 << 10;
const LINE_BYTES: usize = 64;
/// Lines of an item that are prefetched ahead of its turn; the hardware follows from there.
const AHEAD_LINES: usize = 4;

/// What was moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) items: u64,
    pub(crate) bytes: u64,
    /// Items that were evicted instead, and that nobody had read.
    pub(crate) unfetched_gone: u64,
}

/// A position in a walk over everything in a vBucket that can be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkPosition {
    /// At the first prepare above this seqno.
    Prepares { after: u64 },
    /// At a group of the table, `done` of whose items have been visited.
    Table { hand: Hand, done: usize },
}

impl Default for WalkPosition {
    fn default() -> Self {
        Self::Prepares { after: 0 }
    }
}

/// What names an item.
enum Holder {
    Slot(Found),
    Prepare,
    /// The seqno slot alone.
    Order,
}

impl Locked<'_> {
    /// Moves a slice of what lies in sparse slabs. Returns what was moved, and where the walk continues.
    pub(crate) fn move_out_of_sparse_slabs(
        &mut self,
        position: WalkPosition,
        survey: &Survey,
    ) -> (Moved, Option<WalkPosition>) {
        match position {
            WalkPosition::Prepares { after } => self.move_prepares(after, survey),
            WalkPosition::Table { hand, done } => self.move_group(hand, done, survey),
        }
    }

    fn move_prepares(&mut self, after: u64, survey: &Survey) -> (Moved, Option<WalkPosition>) {
        let slice = self.prepared_above::<SLICE_ITEMS>(after);
        let Some(last) = slice.last() else {
            return (Moved::default(), Some(WalkPosition::Table { hand: Hand::default(), done: 0 }));
        };
        let mut after = last.seqno;
        let locations: ArrayVec<Location, SLICE_ITEMS> = slice.iter().map(|it| it.location).collect();
        let mut moved = Moved::default();
        for at in self.sparse_among(&locations, survey) {
            if !self.may_move_more(&moved, locations[at]) {
                after = slice[at].seqno - 1;
                break;
            }
            self.transplant(locations[at], Holder::Prepare, survey, &mut moved);
        }
        (moved, Some(WalkPosition::Prepares { after }))
    }

    fn move_group(&mut self, hand: Hand, done: usize, survey: &Survey) -> (Moved, Option<WalkPosition>) {
        let mut slice = ArrayVec::<Found, SLICE_ITEMS>::new();
        let (mut items, root) = (0, self.root);
        let next = root.walk(hand, |found, _| {
            if items >= done {
                let _ = slice.try_push(found);
            }
            items += 1;
        });
        let mut looked_at = done + slice.len();
        let locations: ArrayVec<Location, SLICE_ITEMS> = slice.iter().map(|it| it.location).collect();
        let mut moved = Moved::default();
        for at in self.sparse_among(&locations, survey) {
            if !self.may_move_more(&moved, locations[at]) {
                looked_at = done + at;
                break;
            }
            self.transplant(locations[at], Holder::Slot(slice[at]), survey, &mut moved);
        }
        if looked_at < items {
            return (moved, Some(WalkPosition::Table { hand, done: looked_at }));
        }
        let tenant = &self.memory.resources.tenant;
        let is_sparse = |block: NonNull<u8>, size| survey.moves_lines(tenant, block, size);
        let index_bytes = root.move_blocks(&mut self.state.table, &mut self.memory, hand, is_sparse);
        moved.bytes += index_bytes as u64;
        (moved, next.map(|hand| WalkPosition::Table { hand, done: 0 }))
    }

    /// Returns which of these lie in sparse slabs, and prefetches their first lines.
    fn sparse_among(&self, locations: &[Location], survey: &Survey) -> ArrayVec<usize, SLICE_ITEMS> {
        let resources = self.memory.resources;
        let is_block = |at: &usize| !locations[*at].is_slab() || survey.moves_everything();
        let mut sparse: ArrayVec<usize, SLICE_ITEMS> = (0..locations.len()).filter(is_block).collect();
        if !survey.moves_everything() {
            let blocks: ArrayVec<NonNull<u8>, SLICE_ITEMS> =
                sparse.iter().map(|at| resources.heap.address(locations[*at])).collect();
            let mut slabs = [Occupancy::default(); SLICE_ITEMS];
            resources.tenant.occupancy(&blocks, &mut slabs[..blocks.len()]);
            let mut slabs = slabs.iter();
            sparse.retain(|_| slabs.next().is_some_and(|slab| survey.is_sparse(*slab)));
        }
        for at in &sparse {
            let block = resources.heap.address(locations[*at]).as_ptr();
            for line in 0..AHEAD_LINES {
                prefetch(block.wrapping_add(line * LINE_BYTES));
            }
        }
        sparse
    }

    /// Moves the item at a location that this vBucket uses.
    pub(crate) fn move_item(&mut self, from: Location, moved: &mut Moved) {
        // SAFETY: what is in use of this vBucket is an item while its lock is held.
        let header = unsafe { self.item(from).header() };
        let holder = match header.kind {
            Kind::Prepare | Kind::PrepareDelete | Kind::PrepareShadow => {
                let is_it = self.prepared(header.seqno).is_some_and(|prepared| prepared.location == from);
                is_it.then_some(Holder::Prepare)
            }
            Kind::Abort => {
                let order = self.state.order.as_mut();
                let is_it = order.is_some_and(|order| order.location(header.seqno) == Some(from));
                is_it.then_some(Holder::Order)
            }
            Kind::Document | Kind::Tombstone | Kind::Ejected | Kind::Shadow => {
                self.root.find(self.hash_of(from), |at| at == from).map(Holder::Slot)
            }
        };
        debug_assert!(holder.is_some(), "nothing names {header:?}");
        if let Some(holder) = holder
            && self.relocate(from, &header, holder)
        {
            moved.items += 1;
            moved.bytes += header.item_size() as u64;
        }
    }

    /// Returns true if the slice has room for this item, or the item is the first.
    fn may_move_more(&self, moved: &Moved, location: Location) -> bool {
        // SAFETY: the location is in the table or among the prepares, and the lock is held.
        let size = unsafe { self.item(location).header() }.item_size();
        moved.items == 0 || moved.bytes as usize + size <= SLICE_BYTES
    }

    /// Moves an item, unless it has to stay or there is no better place.
    fn transplant(&mut self, from: Location, holder: Holder, survey: &Survey, moved: &mut Moved) {
        let item = self.item(from);
        // SAFETY: the holder names the item, and the lock is held.
        let header = unsafe { item.header() };
        if header.marks & mark::LARGE != 0 || !survey.may_leave(&self.memory.resources.tenant, item.0) {
            return;
        }
        if self.relocate(from, &header, holder) {
            moved.items += 1;
            moved.bytes += header.item_size() as u64;
        }
    }

    /// Moves a small item to where the heap would place it now, and updates everything that names it. Returns false if
    /// there is no memory.
    fn relocate(&mut self, from: Location, header: &Header, holder: Holder) -> bool {
        debug_assert!(header.marks & mark::LARGE == 0);
        let (heap, size) = (&self.memory.resources.heap, header.item_size());
        let Some(to) = heap.allocate_for_move(self.memory.cache, from, size, self.memory.owner) else {
            return false;
        };
        // SAFETY: two allocations of the class of `size`; the old one is a live item, and the lock is held.
        unsafe { heap.address(to).copy_from_nonoverlapping(heap.address(from), size) }
        match holder {
            Holder::Slot(mut found) => self.root.relocate(&mut found, to),
            Holder::Prepare => self.relocate_prepare(header.seqno, to),
            Holder::Order => {}
        }
        if let Some(order) = &mut self.state.order {
            order.relocate(header.seqno, to);
        }
        // SAFETY: nothing names it any more.
        unsafe { self.memory.resources.heap.free_moved(self.memory.cache, from, size) }
        true
    }
}
