//! State that changes under the lock of a tenant's slabs: which slabs exist, and which of them have room.
//!
//! ```text
//!   class ── bin 0 (nearly empty) ── slab ── slab
//!         ── ...                                       slabs with a free slot, by how full they are
//!         ── bin 7 (nearly full)  ── slab              slots are reserved from here first
//!   full slabs, and victims: in no list
//! ```
//! A free does not take the lock unless it may change the slab's bin. So a slab is in the list of its bin, or a thread
//! is about to [`Lists::settle`] it.

use std::ptr::NonNull;

use super::class::{self, CLASSES};
use super::map::PageMap;
use super::slab::{BINS, Reserved, SlabPtr, WORD_SLOTS, notes_bytes, slots_in, unlisted};
use crate::tenant::Tenant;

/// A thread reserves at most one in this many of a class's slots, divided by the number of threads.
const RESERVE_FRACTION: usize = 16;
/// The slabs of one class.
#[derive(Clone, Copy)]
struct Class {
    bins: [Option<SlabPtr>; BINS],
    /// Number of slabs in each list.
    listed: [u32; BINS],
    slabs: usize,
    bytes: usize,
    slots: usize,
}

/// The state under the lock.
pub(super) struct Lists {
    classes: Box<[Class]>,
    /// Number of leaves of the page map.
    leaves: usize,
}

impl Default for Lists {
    fn default() -> Self {
        let empty = Class { bins: [None; BINS], listed: [0; BINS], slabs: 0, bytes: 0, slots: 0 };
        Self { classes: vec![empty; CLASSES].into(), leaves: 0 }
    }
}

impl Lists {
    /// Bytes of the slabs of a class.
    pub(super) fn class_bytes(&self, class: usize) -> usize {
        self.classes[class].bytes
    }

    /// Reserves slots for one of `threads` threads, in the fullest slab that has room.
    pub(super) fn reserve(&mut self, class: usize, threads: usize) -> Option<Reserved> {
        let slab = self.classes[class].bins.iter().rev().find_map(|slab| *slab)?;
        Some(self.reserve_in(slab, threads))
    }

    /// Reserves slots for a thread in a slab that has room.
    pub(super) fn reserve_in(&mut self, slab: SlabPtr, threads: usize) -> Reserved {
        let slots = self.classes[slab.class()].slots;
        let reserved = slab.reserve((slots / (RESERVE_FRACTION * threads.max(1))).clamp(1, WORD_SLOTS));
        self.relist(slab);
        reserved
    }

    /// Moves the slab at an address to the list it belongs in, or removes it if nothing of it is used. Returns what is
    /// to be freed then.
    ///
    /// It may be another slab than the one that was meant, or none: the result is right for any.
    pub(super) fn settle(&mut self, map: &PageMap, address: usize) -> Option<Remains> {
        let slab = map.find(address)?;
        // SAFETY: the lock is held.
        if unsafe { slab.links() }.bin == unlisted::VICTIM {
            return None;
        }
        if slab.used() > 0 {
            self.relist(slab);
            return None;
        }
        self.unlist(slab);
        let class = &mut self.classes[slab.class()];
        class.slabs -= 1;
        class.bytes -= slab.bytes();
        class.slots -= slab.slots();
        map.enter(slab.base(), slab.bytes(), None);
        Some(Remains { base: slab.base(), bytes: slab.bytes(), notes: slab.notes(), slots: slab.slots() })
    }

    /// Creates a slab of a class, in no list yet. Returns `None` if there is no memory for the map.
    ///
    /// # Safety
    /// `base` and `notes` are blocks for a slab of this size and its notes. Once it is entered, they are its own.
    pub(super) unsafe fn enter(
        &mut self,
        tenant: &Tenant,
        map: &PageMap,
        class: usize,
        bytes: usize,
        base: NonNull<u8>,
        notes: NonNull<u8>,
    ) -> Option<SlabPtr> {
        let address = base.as_ptr().addr();
        if !map.reserve(tenant, address, bytes, &mut self.leaves) {
            return None;
        }
        // SAFETY: by the contract.
        let slab = unsafe { SlabPtr::begin(notes, base, bytes, class) };
        map.enter(address, bytes, Some(slab));
        let of_class = &mut self.classes[class];
        of_class.slabs += 1;
        of_class.bytes += bytes;
        of_class.slots += slab.slots();
        Some(slab)
    }

    /// Moves a slab to the list of its bin.
    fn relist(&mut self, slab: SlabPtr) {
        let bin = slab.proper_bin();
        // SAFETY: the lock is held.
        if unsafe { slab.links() }.bin == bin {
            return;
        }
        self.unlist(slab);
        if usize::from(bin) >= BINS {
            return;
        }
        let class = &mut self.classes[slab.class()];
        let head = class.bins[usize::from(bin)].replace(slab);
        class.listed[usize::from(bin)] += 1;
        // SAFETY: the lock is held; one of the two links is used after the other.
        unsafe {
            if let Some(head) = head {
                head.links().previous = Some(slab);
            }
            let links = slab.links();
            (links.next, links.previous, links.bin) = (head, None, bin);
        }
    }

    /// Takes a slab out of its list, if it is in one. It then counts as full.
    fn unlist(&mut self, slab: SlabPtr) {
        // SAFETY: the lock is held; one of the links is used after the other.
        unsafe {
            let links = slab.links();
            let (bin, next, previous) = (usize::from(links.bin), links.next.take(), links.previous.take());
            links.bin = unlisted::FULL;
            if bin >= BINS {
                return;
            }
            let class = &mut self.classes[slab.class()];
            class.listed[bin] -= 1;
            match previous {
                Some(previous) => previous.links().next = next,
                None => class.bins[bin] = next,
            }
            if let Some(next) = next {
                next.links().previous = previous;
            }
        }
    }

    /// Picks a slab to be emptied, of a class of which more than `free_per_mille` of the slots are free: one of its
    /// emptiest, if the others have room for its items. Nothing is reserved from it any more.
    pub(super) fn victim(&mut self, free_per_mille: usize) -> Option<SlabPtr> {
        let mut best: Option<(usize, SlabPtr)> = None;
        for class in self.classes.iter() {
            if class.free() * 1000 <= class.slots * free_per_mille {
                continue;
            }
            let slab = class.bins.iter().flat_map(|first| listed(*first)).find(|slab| !slab.is_reserved());
            if let Some(slab) = slab
                && class.has_room_beside(slab)
            {
                let gain = slab.room() * slab.bytes() / slab.slots();
                if best.is_none_or(|(other, _)| gain > other) {
                    best = Some((gain, slab));
                }
            }
        }
        let (_, slab) = best?;
        self.unlist(slab);
        // SAFETY: the lock is held.
        unsafe { slab.links() }.bin = unlisted::VICTIM;
        Some(slab)
    }

    /// Makes a victim an ordinary slab again.
    pub(super) fn pardon(&mut self, slab: SlabPtr) {
        // SAFETY: the lock is held.
        unsafe { slab.links() }.bin = unlisted::FULL;
    }

    /// Calls `f` with every listed slab.
    #[cfg(test)]
    pub(super) fn for_each_listed(&self, mut f: impl FnMut(usize, SlabPtr)) {
        for class in self.classes.iter() {
            for bin in 0..BINS {
                assert_eq!(listed(class.bins[bin]).count(), class.listed[bin] as usize);
                listed(class.bins[bin]).for_each(|slab| f(bin, slab));
            }
        }
    }

    /// Bytes and slots of the slabs of all classes.
    #[cfg(test)]
    pub(super) fn totals(&self) -> (usize, usize) {
        self.classes.iter().fold((0, 0), |(bytes, slots), class| (bytes + class.bytes, slots + class.slots))
    }
}

impl Class {
    /// Returns true if the other slabs have room for the items of this one. This is counted rather than taken from
    /// [`Class::free`]: were that wrong, the items moved out would go to a new slab, which would be the next to be
    /// emptied.
    fn has_room_beside(&self, slab: SlabPtr) -> bool {
        let needed = slab.used();
        let mut room = 0;
        self.bins.iter().rev().flat_map(|first| listed(*first)).filter(|other| *other != slab).any(|other| {
            room += other.room();
            room >= needed
        })
    }

    /// Estimates how many of its slots are free, taking each slab to be of average size and in the middle of its bin.
    fn free(&self) -> usize {
        let sixteenths: usize =
            self.listed.iter().enumerate().map(|(bin, slabs)| *slabs as usize * (2 * (BINS - bin) - 1)).sum();
        sixteenths * self.slots / (2 * BINS * self.slabs.max(1))
    }
}

/// The slabs of a list from this one on. Under the lock.
fn listed(first: Option<SlabPtr>) -> impl Iterator<Item = SlabPtr> {
    // SAFETY: the lock is held.
    std::iter::successors(first, |slab| unsafe { slab.links() }.next)
}

/// What remains of a removed slab: its pages and its notes.
pub(super) struct Remains {
    base: usize,
    bytes: usize,
    notes: NonNull<u8>,
    slots: usize,
}

impl Remains {
    /// Bytes of its pages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees them.
    pub(super) fn free(self, tenant: &Tenant) {
        // SAFETY: the slab's own blocks, of which nothing is used any more.
        unsafe {
            if let Some(base) = NonNull::new(std::ptr::with_exposed_provenance_mut(self.base)) {
                tenant.free_slab(base, self.bytes);
            }
            tenant.free_notes(self.notes, notes_bytes(self.slots));
        }
    }
}

/// Allocates the blocks of a new slab. Returns `None` if the system is out of memory.
pub(super) fn new_blocks(tenant: &Tenant, bytes: usize, class: usize) -> Option<(NonNull<u8>, NonNull<u8>)> {
    let base = tenant.allocate_slab(bytes)?;
    match tenant.allocate_notes(notes_bytes(slots_in(bytes, class))) {
        Some(notes) => Some((base, notes)),
        None => {
            // SAFETY: just allocated, and not used yet.
            unsafe { tenant.free_slab(base, bytes) }
            None
        }
    }
}

/// Frees what [`new_blocks`] returned.
///
/// # Safety
/// They are not in use.
pub(super) unsafe fn free_blocks(
    tenant: &Tenant,
    blocks: (NonNull<u8>, NonNull<u8>),
    bytes: usize,
    class: usize,
) {
    // SAFETY: by the contract.
    unsafe {
        tenant.free_slab(blocks.0, bytes);
        tenant.free_notes(blocks.1, notes_bytes(slots_in(bytes, class)));
    }
}

/// Size of the next slab of a class.
pub(super) fn next_bytes(lists: &Lists, class: usize) -> usize {
    class::next_slab(class::bytes_of(class), lists.class_bytes(class))
}
