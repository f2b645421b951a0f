//! Item heaps: where items lie, and how they are named.
//!
//! ```text
//!   Location, 46 bits   | kind 1 | number 45 |
//!     kind 0, block: number = address / 16: one allocation per item in the tenant's arena
//!     kind 1, slot:  number = address / 4:  a slot of a slab, see crate::slab
//!
//!   Heap ── BlockHeap      one may change for the other while items are there: each goes back to where it came from
//!        └─ SlabHeap
//! ```
//! An item is referred to by its index slot and its seqno slot alone, both of which hold a [`Location`]; so it can be
//! moved under its vBucket's lock by rewriting two words. No item byte is read without that lock. Large values are the
//! exception that stays put: see [`crate::large`].

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::backend::BLOCK_ALIGNMENT;
use crate::slab::Victim;
use crate::slab::class::{self, GRAIN, SLOT_MAX};
use crate::tenant::{Gauge, Tenant, TenantCache};

/// Bits of a location's number.
pub const NUMBER_BITS: u32 = 45;
/// Bits of a location with its kind.
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
    /// From the bits of a slot; zero names nothing.
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

    /// Whether it names a slot of a slab rather than a block.
    #[inline]
    pub fn is_slab(self) -> bool {
        self.0 & KIND_SLOT != 0
    }

    /// Names a block.
    #[inline]
    pub(crate) fn of_block(block: NonNull<u8>) -> Self {
        let address = block.expose_provenance().get();
        debug_assert!(address.is_multiple_of(BLOCK_ALIGNMENT) && (address as u64) >> BLOCK_SHIFT < KIND_SLOT);
        Self(address as u64 >> BLOCK_SHIFT)
    }

    /// Names the slot at an address.
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

    /// How many bytes an item of `size` bytes that lies here may grow to in place.
    #[inline]
    pub fn capacity(self, size: usize) -> usize {
        if self.is_slab() { class::slot_bytes(size) } else { crate::size_class(size) }
    }

    /// How many bytes an item of `size` bytes that lies here takes.
    #[inline]
    pub fn footprint(self, size: usize) -> usize {
        if self.is_slab() { class::slot_bytes(size) } else { crate::footprint(size) }
    }
}

/// Memory for items, named by locations. `owner` is the vBucket under whose lock the call is made: a heap that moves
/// items by itself keeps it beside each slot, so as to know which lock to take.
pub trait ItemHeap {
    /// Room for `size` bytes; `None` when the system has no memory.
    fn allocate(&self, cache: &mut TenantCache, size: usize, owner: u16) -> Option<Location>;

    /// Gives an item's room back.
    ///
    /// # Safety
    /// `location` came from [`ItemHeap::allocate`] of this heap with this `size`, or one of the same capacity, and
    /// nothing refers to it any more.
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize);

    /// Where the item lies now: valid while its vBucket's lock is held. Any location gives an address; one that was
    /// freed gives an address that must not be read.
    #[inline]
    fn address(&self, location: Location) -> NonNull<u8> {
        location.pointer()
    }

    /// Room for an item of `size` bytes that is about to leave `from` for a better place of the same capacity. In the
    /// end the accounts have not changed: they count the item once, wherever it lies.
    fn allocate_for_move(
        &self,
        cache: &mut TenantCache,
        from: Location,
        size: usize,
        owner: u16,
    ) -> Option<Location>;

    /// Gives back the room that an item has left for one from [`ItemHeap::allocate_for_move`].
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
    /// A heap in this tenant's arena.
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

/// Slots in slabs of the tenant's; what is larger than the largest slot is a block.
pub struct SlabHeap {
    blocks: BlockHeap,
}

impl SlabHeap {
    /// A heap in this tenant's slabs.
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
    /// Blocks while there is little, slabs from [`AUTO_SLAB_BYTES`] on. The blocks there are stay until their items go
    /// or outgrow them.
    #[default]
    Auto,
    /// Slabs.
    Slab,
    /// Blocks.
    Block,
}

impl HeapChoice {
    /// Its names, as an operator gives them.
    pub const NAMES: &[&str] = &["auto", "slab", "block"];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Slab => "slab",
            Self::Block => "block",
        }
    }

    /// The choice of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Auto, Self::Slab, Self::Block].into_iter().find(|choice| choice.name() == name)
    }
}

/// A tenant that chooses by itself takes slabs once so much is allocated: what slabs keep for each class is little
/// then.
pub const AUTO_SLAB_BYTES: u64 = 4 << 20;

/// Both heaps: new items come from the chosen one, and every item goes back to its own.
pub struct Heap {
    slabs: SlabHeap,
    choice: AtomicU8,
}

impl Heap {
    /// A heap in this tenant's arena.
    pub fn new(tenant: Arc<Tenant>, choice: HeapChoice) -> Self {
        Self { slabs: SlabHeap::new(tenant), choice: AtomicU8::new(choice as u8) }
    }

    /// Changes where new items come from.
    pub fn choose(&self, choice: HeapChoice) {
        self.choice.store(choice as u8, Relaxed);
    }

    /// Where new items come from now; [`HeapChoice::Auto`] means from blocks, for the time being.
    pub fn choice(&self) -> HeapChoice {
        match self.choice.load(Relaxed) {
            SLAB => HeapChoice::Slab,
            BLOCK => HeapChoice::Block,
            _ => HeapChoice::Auto,
        }
    }

    /// Starts loading what freeing this location will need, for who has something else to do before.
    #[inline]
    pub fn prefetch_free(&self, location: Location) {
        if location.is_slab()
            && let Some(slabs) = self.slabs.blocks.tenant.slabs()
        {
            slabs.prefetch_notes(location.address());
        }
    }

    /// A slab to be emptied, see [`Victim::choose`].
    pub fn victim(&self, free_per_mille: u32) -> Option<Victim> {
        Victim::choose(&self.slabs.blocks.tenant, free_per_mille)
    }

    /// A tenant that has chosen blocks because it was small: whether it is small still.
    #[cold]
    fn choose_anew(&self) -> bool {
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
            _ if self.choose_anew() => self.slabs.blocks.allocate(cache, size, owner),
            _ => self.slabs.allocate(cache, size, owner),
        }
    }

    #[inline]
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize) {
        // SAFETY: by the contract of the trait; slabs give blocks back as blocks.
        unsafe { self.slabs.free(cache, location, size) }
    }

    /// An item stays with the heap it lies in, whatever is chosen for new ones.
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
