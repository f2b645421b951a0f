//! Item heaps: where items lie, and how they are named.
//!
//! ```text
//!   Location, 45 bits   | kind 1 | number 44 |
//!     kind 0, block: number = address / 16: one allocation per item in the tenant's arena
//!     kind 1, slab:  slab id 32, slot 12
//! ```
//! An item is referred to by its index slot and its seqno slot alone, both of which hold a [`Location`]; so it can be
//! moved under its vBucket's lock by rewriting two words. No item byte is read without that lock. Large values are the
//! exception that stays put: see [`crate::large`].

use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::BLOCK_ALIGNMENT;
use crate::tenant::{Gauge, Tenant, TenantCache};

/// Bits of a location's number.
pub const NUMBER_BITS: u32 = 44;
/// Bits of a location with its kind.
pub const LOCATION_BITS: u32 = NUMBER_BITS + 1;
const KIND_SLAB: u64 = 1 << NUMBER_BITS;
const BLOCK_SHIFT: u32 = BLOCK_ALIGNMENT.trailing_zeros();

const _: () =
    assert!(NUMBER_BITS + BLOCK_SHIFT >= 47, "a block's number must reach every user-space address");

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

    /// Its 45 bits.
    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether it names a slot of a slab rather than a block.
    #[inline]
    pub fn is_slab(self) -> bool {
        self.0 & KIND_SLAB != 0
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
    /// `location` came from [`ItemHeap::allocate`] of this heap with this `size`, and nothing refers to it any more.
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize);

    /// Where the item lies now: valid while its vBucket's lock is held. Any location gives an address; one that was
    /// freed gives an address that must not be read.
    fn address(&self, location: Location) -> NonNull<u8>;

    /// How many bytes an item allocated for `size` may grow to in place.
    fn capacity(&self, size: usize) -> usize;
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

    /// Names a block that the caller allocated itself.
    #[inline]
    pub fn location_of(address: NonNull<u8>) -> Location {
        let address = address.expose_provenance().get();
        debug_assert!(address.is_multiple_of(BLOCK_ALIGNMENT) && (address as u64) >> BLOCK_SHIFT < KIND_SLAB);
        Location(address as u64 >> BLOCK_SHIFT)
    }
}

impl ItemHeap for BlockHeap {
    #[inline]
    fn allocate(&self, cache: &mut TenantCache, size: usize, _owner: u16) -> Option<Location> {
        self.tenant.allocate(cache, size, Gauge::Items).map(Self::location_of)
    }

    #[inline]
    unsafe fn free(&self, cache: &mut TenantCache, location: Location, size: usize) {
        // SAFETY: by the contract of the trait; `address` inverts `location_of`.
        unsafe { self.tenant.free(cache, self.address(location), size, Gauge::Items) }
    }

    #[inline]
    fn address(&self, location: Location) -> NonNull<u8> {
        debug_assert!(!location.is_slab());
        let address = (location.0 << BLOCK_SHIFT) as usize;
        // SAFETY: a location is never zero, and a block's number shifted is its address.
        unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address)) }
    }

    #[inline]
    fn capacity(&self, size: usize) -> usize {
        crate::size_class(size)
    }
}
