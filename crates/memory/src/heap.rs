//! Item heaps: where items lie, and how they are named.
//!
//! ```text
//!   Location, 46 bits   | kind 1 | number 45 |
//!     kind 0, block: number = address / 16: one allocation per item in the tenant's arena
//!     kind 1, slot:  number = address / 4:  a slot of a slab, see crate::slab
//!
//!   Heap ── BlockHeap      switchable while items exist: each item is freed to the heap it came from
//!        └─ SlabHeap
//! ```
//! Only an item's index slot and seqno slot refer to it; both hold a [`Location`]. So it can be moved under its
//! vBucket's lock by rewriting two words. No item byte is read without that lock. Large values are the exception and
//! never move: see [`crate::large`].

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::backend::BLOCK_ALIGNMENT;
use crate::slab::Victim;
use crate::slab::class::{self, GRAIN, SLOT_MAX};
use crate::tenant::{Gauge, Tenant, TenantCache};

/// Bits of a location's number.
pub const NUMBER_BITS: u32 = 45;
/// Bits of a location, including its kind.
pub const LOCATION_BITS: u32 = NUMBER_BITS + 1;
const KIND_SLOT: u64 = 1 << NUMBER_BITS;
const BLOCK_SHIFT: u32 = BLOCK_ALIGNMENT.trailing_zeros();
const SLOT_SHIFT: u32 = GRAIN.trailing_zeros();

const _: () = assert!(NUMBER_BITS + SLOT_SHIFT >= 47, "a number must reach every user-space address");
const _: () = assert!(BLOCK_SHIFT == SLOT_SHIFT + 2, "twice the kind bit is what the shifts differ by");

/// Names an item in its tenant's heap. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location(u64);

impl Location {
    /// Creates a location from the bits of a slot. Zero names nothing.
    #[inline]
    pub fn from_bits(bits: u64) -> Option<Self> {
        debug_assert!(bits >> LOCATION_BITS == 0);
        (bits != 0).then_some(Self(bits))
    }

    /// Its bits.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns true if it names a slot of a slab rather than a block.
    #[inline]
    pub fn is_slab(self) -> bool {
        self.0 & KIND_SLOT != 0
    }

    /// The location of a block.
    #[inline]
    pub(crate) fn of_block(block: NonNull<u8>) -> Self {
        let address = block.expose_provenance().get();
        debug_assert!(address.is_multiple_of(BLOCK_ALIGNMENT) && (address as u64) >> BLOCK_SHIFT < KIND_SLOT);
        Self(address as u64 >> BLOCK_SHIFT)
    }

    /// The location of the slot at an address.
    #[inline]
    pub(crate) fn of_slot(address: usize) -> Self {
        debug_assert!(address.is_multiple_of(GRAIN) && (address as u64) >> SLOT_SHIFT < KIND_SLOT);
        Self(address as u64 >> SLOT_SHIFT | KIND_SLOT)
    }

    #[inline]
    pub(crate) fn address(self) -> usize {
        let shift = BLOCK_SHIFT - 2 * (self.0 >> NUMBER_BITS) as u32;
        ((self.0 & (KIND_SLOT - 1)) << shift) as usize
    }

    #[inline]
    pub(crate) fn pointer(self) -> NonNull<u8> {
        // SAFETY: a location is never zero, and its number shifted is the address it was made from.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(self.address())) }
    }

    /// Number of bytes that an item of `size` bytes at this location may grow to in place.
    #[inline]
    pub fn capacity(self, size: usize) -> usize {
        if self.is_slab() { class::slot_bytes(size) } else { crate::size_class(size) }
    }

    /// Number of bytes that an item of `size` bytes at this location takes.
    #[inline]
    pub fn footprint(self, size: usize) -> usize {
        if self.is_slab() { class::slot_bytes(size) } else { crate::footprint(size) }
    }
}

/// Memory for items, named by locations. `owner` is the vBucket under whose lock the call is made. A heap that moves
/// items by itself stores it beside each slot, to know which lock to take.
pub trait ItemHeap {
    /// Allocates room for `size` bytes. Returns `None` if the system is out of memory.
    fn allocate(&self, cache: &mut TenantCache, size: usize, owner: u16) -> Option<Location>;

    /// Frees an item's room.
    ///
    /// # Safety
    /// `location` came from [`ItemHeap::allocate`] of this heap with this `size`, or one of the same capacity, and
    /// nothing refers to it any more.
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize);

    /// The item's current address, valid while its vBucket's lock is held. Any location yields an address; that of a
    /// freed location must not be read.
    #[inline]
    fn address(&self, location: Location) -> NonNull<u8> {
        location.pointer()
    }

    /// Allocates room for an item of `size` bytes that is about to move from `from` to a better place of the same
    /// capacity. A completed move leaves the accounts unchanged: they count the item once, wherever it lies.
    fn allocate_for_move(
        &self,
        cache: &mut TenantCache,
        from: Location,
        size: usize,
        owner: u16,
    ) -> Option<Location>;

    /// Frees the room of an item that has moved to a place from [`ItemHeap::allocate_for_move`].
    ///
    /// # Safety
    /// As [`ItemHeap::free`].
    unsafe fn free_moved(&self, cache: &mut TenantCache, location: Location, size: usize);
}

/// One allocation per item, in the tenant's arena.
pub struct BlockHeap {
    tenant: Arc<Tenant>,
}

impl BlockHeap {
    /// Creates a heap in this tenant's arena.
    pub fn new(tenant: Arc<Tenant>) -> Self {
        Self { tenant }
    }
}

impl ItemHeap for BlockHeap {
    #[inline]
    fn allocate(&self, cache: &mut TenantCache, size: usize, _owner: u16) -> Option<Location> {
        self.tenant.allocate(cache, size, Gauge::Items).map(Location::of_block)
    }

    #[inline]
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize) {
        debug_assert!(!location.is_slab());
        // SAFETY: by the contract of the trait; `pointer` inverts `of_block`.
        unsafe { self.tenant.free(cache, location.pointer(), size, Gauge::Items) }
    }

    #[inline]
    fn allocate_for_move(
        &self,
        _cache: &mut TenantCache,
        from: Location,
        size: usize,
        _owner: u16,
    ) -> Option<Location> {
        debug_assert!(!from.is_slab());
        self.tenant.allocate_for_move(size).map(Location::of_block)
    }

    #[inline]
    unsafe fn free_moved(&self, _cache: &mut TenantCache, location: Location, size: usize) {
        debug_assert!(!location.is_slab());
        // SAFETY: by the contract of the trait; `pointer` inverts `of_block`.
        unsafe { self.tenant.free_moved(location.pointer(), size) }
    }
}

/// Slots in the tenant's slabs. Items larger than the largest slot are blocks.
pub struct SlabHeap {
    blocks: BlockHeap,
}

impl SlabHeap {
    /// Creates a heap in this tenant's slabs.
    pub fn new(tenant: Arc<Tenant>) -> Self {
        Self { blocks: BlockHeap::new(tenant) }
    }
}

impl ItemHeap for SlabHeap {
    #[inline]
    fn allocate(&self, cache: &mut TenantCache, size: usize, owner: u16) -> Option<Location> {
        if size > SLOT_MAX {
            return self.blocks.allocate(cache, size, owner);
        }
        let slot = self.blocks.tenant.allocate_slot(cache, size, owner)?;
        Some(Location::of_slot(slot.as_ptr().addr()))
    }

    #[inline]
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize) {
        // SAFETY: by the contract of the trait.
        unsafe {
            if location.is_slab() {
                self.blocks.tenant.free_slot(cache, location.pointer(), size);
            } else {
                self.blocks.free(cache, location, size);
            }
        }
    }

    #[inline]
    fn allocate_for_move(
        &self,
        cache: &mut TenantCache,
        from: Location,
        size: usize,
        owner: u16,
    ) -> Option<Location> {
        if from.is_slab() {
            self.allocate(cache, size, owner)
        } else {
            self.blocks.allocate_for_move(cache, from, size, owner)
        }
    }

    #[inline]
    unsafe fn free_moved(&self, cache: &mut TenantCache, location: Location, size: usize) {
        // SAFETY: by the contract of the trait.
        unsafe {
            if location.is_slab() {
                self.free(cache, location, size);
            } else {
                self.blocks.free_moved(cache, location, size);
            }
        }
    }
}

/// Which heap new items come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum HeapChoice {
    /// Blocks while little is allocated, slabs from [`AUTO_SLAB_BYTES`] on. Existing blocks stay until their items are
    /// removed or outgrow them.
    #[default]
    Auto,
    /// Slabs.
    Slab,
    /// Blocks.
    Block,
}

impl HeapChoice {
    /// The names, as an operator gives them.
    pub const NAMES: &[&str] = &["auto", "slab", "block"];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Slab => "slab",
            Self::Block => "block",
        }
    }

    /// Returns the choice with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Auto, Self::Slab, Self::Block].into_iter().find(|choice| choice.name() == name)
    }
}

/// With [`HeapChoice::Auto`], a tenant switches to slabs once this many bytes are allocated. By then the memory that
/// slabs keep for each class is a small share.
pub const AUTO_SLAB_BYTES: u64 = 4 << 20;

/// Both heaps. New items come from the chosen one; every item is freed to its own.
pub struct Heap {
    slabs: SlabHeap,
    choice: AtomicU8,
}

impl Heap {
    /// Creates a heap in this tenant's arena.
    pub fn new(tenant: Arc<Tenant>, choice: HeapChoice) -> Self {
        Self { slabs: SlabHeap::new(tenant), choice: AtomicU8::new(choice as u8) }
    }

    /// Changes where new items come from.
    pub fn choose(&self, choice: HeapChoice) {
        self.choice.store(choice as u8, Relaxed);
    }

    /// Where new items come from now. [`HeapChoice::Auto`] means from blocks, for the time being.
    pub fn choice(&self) -> HeapChoice {
        match self.choice.load(Relaxed) {
            SLAB => HeapChoice::Slab,
            BLOCK => HeapChoice::Block,
            _ => HeapChoice::Auto,
        }
    }

    /// Prefetches what freeing this location will need, for callers that have other work to do first.
    #[inline]
    pub fn prefetch_free(&self, location: Location) {
        if location.is_slab()
            && let Some(slabs) = self.slabs.blocks.tenant.slabs()
        {
            slabs.prefetch_notes(location.address());
        }
    }

    /// Picks a slab to be emptied, see [`Victim::choose`].
    pub fn victim(&self, free_per_mille: u32) -> Option<Victim> {
        Victim::choose(&self.slabs.blocks.tenant, free_per_mille)
    }

    /// Returns true if a tenant on [`HeapChoice::Auto`] is still small. Otherwise switches it to slabs.
    #[cold]
    fn choose_again(&self) -> bool {
        let is_small = self.slabs.blocks.tenant.allocated() < AUTO_SLAB_BYTES;
        if !is_small {
            self.choose(HeapChoice::Slab);
        }
        is_small
    }
}

const SLAB: u8 = HeapChoice::Slab as u8;
const BLOCK: u8 = HeapChoice::Block as u8;

impl ItemHeap for Heap {
    #[inline]
    fn allocate(&self, cache: &mut TenantCache, size: usize, owner: u16) -> Option<Location> {
        match self.choice.load(Relaxed) {
            SLAB => self.slabs.allocate(cache, size, owner),
            BLOCK => self.slabs.blocks.allocate(cache, size, owner),
            _ if self.choose_again() => self.slabs.blocks.allocate(cache, size, owner),
            _ => self.slabs.allocate(cache, size, owner),
        }
    }

    #[inline]
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize) {
        // SAFETY: by the contract of the trait; slabs give blocks back as blocks.
        unsafe { self.slabs.free(cache, location, size) }
    }

    /// An item stays in the heap it lies in, whichever is chosen for new ones.
    #[inline]
    fn allocate_for_move(
        &self,
        cache: &mut TenantCache,
        from: Location,
        size: usize,
        owner: u16,
    ) -> Option<Location> {
        self.slabs.allocate_for_move(cache, from, size, owner)
    }

    #[inline]
    unsafe fn free_moved(&self, cache: &mut TenantCache, location: Location, size: usize) {
        // SAFETY: as above.
        unsafe { self.slabs.free_moved(cache, location, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "takes too many items")]
    fn a_tenant_that_grows_goes_over_to_slabs() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let heap = Heap::new(Arc::clone(&tenant), HeapChoice::Auto);
        let mut held = Vec::new();
        while heap.choice() == HeapChoice::Auto {
            held.push(heap.allocate(&mut cache, 300, 1).unwrap());
        }
        let blocks = held.iter().filter(|location| !location.is_slab()).count();
        assert_eq!(blocks, held.len() - 1);
        let bytes = (blocks * crate::footprint(300)) as u64;
        assert!((AUTO_SLAB_BYTES..AUTO_SLAB_BYTES + (128 << 10)).contains(&bytes), "{bytes}");
        heap.choose(HeapChoice::Block);
        held.push(heap.allocate(&mut cache, 300, 1).unwrap());
        assert!(!held.last().unwrap().is_slab());
        for location in held {
            // SAFETY: allocated above with this size.
            unsafe { heap.free(&mut cache, location, 300) }
        }
        assert_eq!(tenant.gauge(Gauge::Items), 0);
    }
}
