//! The slab heap: items in slots of their size's class, in slabs of the tenant's arena.
//!
//! ```text
//!   SlotCache, per thread    class -> reserved slots           handed out without a lock or an atomic
//!        │ when they are used up
//!        v
//!   Slabs, per tenant        lock: lists of slabs with room, by class and fullness   (lists)
//!                            page map: address -> descriptor                         (map)
//!   slab                     slots; descriptor, bitmap and owners lie elsewhere      (slab)
//! ```
//! * A location is the address: finding an item takes no lookup, so its lines can be prefetched ahead of the lock.
//! * Room is taken from the fullest slabs, so that the emptiest become empty. Their pages return to the arena at once.
//! * A thread reserves slots of up to one word of a bitmap at a time, and all threads together reserve at most a
//!   sixteenth of a class (or a slot each). So many threads times many classes cost a small bucket little.
//! * A slot's owner is the vBucket under whose lock it was allocated and will be freed. So a thread that empties a slab
//!   can take that lock first and then check that the slot is unchanged ([`Victim`]).
//! * Slots are counted as items, slabs as `slab_bytes` of their tenant, everything else as index. The difference
//!   between slots and slabs is the slack.
//!
//! Why it is built like this, and what it costs: `docs/decisions/0009-slab-heap.md`.

use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use parking_lot::{Mutex, MutexGuard};

use crate::heap::Location;
use crate::tenant::{Gauge, Tenant, TenantCache};
use class::{CLASSES, bytes_of, class_of};
use lists::Lists;
use map::PageMap;
use slab::{Reserved, SlabPtr};

pub(crate) mod class;
mod lists;
mod map;
mod sizes;
#[expect(clippy::module_inception, reason = "the noun of the folder")]
mod slab;
mod walk;

pub use sizes::SizeClass;
pub use walk::SlabWalk;

/// The slabs of one tenant.
#[derive(Default)]
pub(crate) struct Slabs {
    map: PageMap,
    lists: Mutex<Lists>,
}

// SAFETY: the map is atomic, the lists are behind their lock, and descriptors are shared as `SlabPtr` says.
unsafe impl Sync for Slabs {}

/// The slots one thread has reserved, by class.
pub(crate) struct SlotCache(Box<[Reserved; CLASSES]>);

// SAFETY: reserved slots belong to the cache that holds them.
unsafe impl Send for SlotCache {}

impl SlotCache {
    pub(crate) fn new() -> Self {
        Self(Box::new([Reserved::NONE; CLASSES]))
    }

    /// Hands out a slot for `size` bytes, if one of its class is reserved.
    #[inline]
    pub(crate) fn hand_out(&mut self, size: usize, owner: u16) -> Option<NonNull<u8>> {
        let reserved = &mut self.0[class_of(size)];
        (reserved.mask != 0).then(|| reserved.hand_out(class::slot_bytes(size), owner))
    }
}

impl Slabs {
    #[cfg(not(loom))]
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock()
    }

    #[cfg(loom)]
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reserves slots for `size` bytes when none are reserved. Returns false if the system is out of memory.
    #[cold]
    pub(crate) fn reserve(&self, tenant: &Tenant, slots: &mut SlotCache, size: usize) -> bool {
        let class = class_of(size);
        let mut lists = self.lock();
        if let Some(reserved) = lists.reserve(class, tenant.threads()) {
            slots.0[class] = reserved;
            return true;
        }
        let bytes = lists::next_bytes(&lists, class);
        drop(lists);
        let _way = Underway::new(tenant, bytes);
        let Some(blocks) = lists::new_blocks(tenant, bytes, class) else { return false };
        let mut lists = self.lock();
        // SAFETY: the blocks are new, for a slab of this size and class.
        let Some(slab) = (unsafe { lists.enter(tenant, &self.map, class, bytes, blocks.0, blocks.1) }) else {
            drop(lists);
            // SAFETY: they were not entered.
            unsafe { lists::free_blocks(tenant, blocks, bytes, class) }
            return false;
        };
        // From this one, even if another has room by now: a slab of which nothing is used is in no list.
        slots.0[class] = lists.reserve_in(slab, tenant.threads());
        true
    }

    /// Frees a slot.
    ///
    /// # Safety
    /// It was handed out by this tenant's slabs, and nothing refers to it any more.
    #[inline]
    pub(crate) unsafe fn free(&self, tenant: &Tenant, slot: NonNull<u8>) {
        let address = slot.as_ptr().addr();
        let Some(slab) = self.map.find(address) else { unreachable!("a slot outside of all slabs") };
        if slab.free(address) {
            self.settle(tenant, address);
        }
    }

    /// Prefetches what freeing the slot at an address will need.
    #[inline]
    pub(crate) fn prefetch_notes(&self, address: usize) {
        if let Some(slab) = self.map.find(address) {
            slab.prefetch();
        }
    }

    #[cold]
    fn settle(&self, tenant: &Tenant, address: usize) {
        let mut lists = self.lock();
        if let Some(remains) = lists.settle(&self.map, address) {
            let _way = Underway::new(tenant, remains.bytes());
            drop(lists);
            remains.free(tenant);
        }
    }

    /// Releases the slots that a thread has reserved.
    pub(crate) fn give_back(&self, tenant: &Tenant, mut slots: SlotCache) {
        for reserved in slots.0.iter_mut() {
            if let Some(address) = reserved.give_up() {
                self.settle(tenant, address);
            }
        }
    }

    /// Frees the page map. Slabs with slots in use stay as they are.
    ///
    /// # Safety
    /// `tenant` is its own, and it is not used any more.
    pub(crate) unsafe fn end(&mut self, tenant: &Tenant) {
        // SAFETY: by the contract.
        unsafe { self.map.end(tenant) }
    }
}

/// Exists while a slab is counted but not in the map, or the reverse.
struct Underway<'a> {
    tenant: &'a Tenant,
    bytes: i64,
}

impl<'a> Underway<'a> {
    fn new(tenant: &'a Tenant, bytes: usize) -> Self {
        let bytes = bytes.cast_signed() as i64;
        tenant.count_shared(Gauge::Underway, bytes);
        Self { tenant, bytes }
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.tenant.count_shared(Gauge::Underway, -self.bytes);
    }
}

/// A slab that is being emptied: nothing new is placed in it. Dropping it frees the slab if nothing is left in it;
/// otherwise the slab is used as before.
///
/// ```text
///   for each (location, owner) of `occupied`: take the lock of that vBucket; if `holds`, move the item, free its location
/// ```
pub struct Victim {
    tenant: Arc<Tenant>,
    slab: SlabPtr,
}

impl Victim {
    /// Picks a slab worth emptying: one of the emptiest of a class of which more than `free_per_mille` of the slots are
    /// free, if the others of its class have room for its items.
    pub fn choose(tenant: &Arc<Tenant>, free_per_mille: u32) -> Option<Self> {
        let slab = tenant.slabs()?.lock().victim(free_per_mille as usize)?;
        Some(Self { tenant: Arc::clone(tenant), slab })
    }

    /// Size of one slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        bytes_of(self.slab.class())
    }

    /// Slots in use.
    pub fn used(&self) -> usize {
        self.slab.used()
    }

    /// A snapshot of what is in it: locations, and the vBucket of each.
    pub fn occupied(&self) -> impl Iterator<Item = (Location, u16)> + '_ {
        (0..self.slab.words()).flat_map(|word| {
            self.slab.occupied(word).map(|(address, owner)| (Location::of_slot(address), owner))
        })
    }

    /// Returns true if the slot of this location is in use by this vBucket, whose lock is held.
    pub fn holds(&self, location: Location, owner: u16) -> bool {
        self.slab.is_of(location.address(), owner)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let Some(slabs) = self.tenant.slabs() else { return };
        let mut lists = slabs.lock();
        let address = self.slab.base();
        lists.pardon(self.slab);
        drop(lists);
        slabs.settle(&self.tenant, address);
    }
}

/// Bytes in slabs, and of those the bytes of slots in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlabFigures {
    /// All slabs.
    pub slab_bytes: u64,
    /// Slots in use.
    pub slot_bytes: u64,
}

impl SlabFigures {
    /// Bytes that emptying slabs could free, in classes of which more than `free_per_mille` is free.
    pub fn recoverable_bytes(&self, free_per_mille: u32) -> u64 {
        let free = self.slab_bytes.saturating_sub(self.slot_bytes);
        free.saturating_sub(self.slab_bytes / 1000 * u64::from(free_per_mille))
    }
}

impl Tenant {
    /// Bytes in slabs and slots, without a walk.
    pub fn slab_figures(&self) -> SlabFigures {
        SlabFigures { slab_bytes: self.slab_bytes(), slot_bytes: self.gauge(Gauge::Slots) }
    }

    /// Releases the slots that a thread has reserved.
    pub(crate) fn give_back_slots(&self, cache: &mut TenantCache) {
        if let (Some(slots), Some(slabs)) = (cache.take_slots(), self.slabs()) {
            slabs.give_back(self, slots);
        }
    }
}

#[cfg(test)]
mod tests;
