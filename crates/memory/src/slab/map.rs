//! Maps an address to its slab.
//!
//! ```text
//!   address 47 = | region 26 | page 9 | offset 12 |
//!   table    open addressing: | leaf / 4096 35 | region 26 |      grows by doubling; 8 bytes per 2 MiB, and slack
//!   leaf     the slab of each page of a region                    4 KiB per 2 MiB
//! ```
//! Written under the lock of the slabs, read without it: a reader has the address from a location, which was handed out
//! after the slab was entered. Leaves outlive their slabs, and outgrown tables stay too, until the tenant ends: a
//! reader may still be in an old one.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::class::PAGE;
use super::slab::SlabPtr;
use crate::tenant::{Gauge, Tenant};

const PAGE_BITS: u32 = PAGE.trailing_zeros();
const LEAF_BITS: u32 = 9;
const LEAF_BYTES: usize = 8 << LEAF_BITS;
const REGION_BITS: u32 = 26;
const _: () = assert!(LEAF_BYTES == PAGE, "a leaf is a page, so that its address leaves room for the region");
const _: () = assert!(PAGE_BITS + LEAF_BITS + REGION_BITS == 47);
const TABLE_FIRST: usize = 64;

/// Header words: the number of entries and the previous table. The entries follow.
const TABLE_HEAD: usize = 2;

/// The map of one tenant.
#[derive(Default)]
pub(super) struct PageMap {
    table: AtomicPtr<AtomicU64>,
}

fn region_of(address: usize) -> u64 {
    (address >> (PAGE_BITS + LEAF_BITS)) as u64
}

/// Where the search for a region's entry starts.
#[inline]
fn home(region: u64, entries: usize) -> usize {
    (region.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (entries - 1)
}

impl PageMap {
    /// The slab an address lies in.
    #[inline]
    pub(super) fn find(&self, address: usize) -> Option<SlabPtr> {
        let leaf = self.leaf(region_of(address))?;
        let page = (address >> PAGE_BITS) & ((1 << LEAF_BITS) - 1);
        // SAFETY: a leaf has that many words, and lives as long as the tenant.
        let slab = unsafe { leaf.add(page).as_ref() }.load(Relaxed);
        SlabPtr::from_address(slab as usize)
    }

    #[inline]
    fn leaf(&self, region: u64) -> Option<NonNull<AtomicU64>> {
        let table = NonNull::new(self.table.load(Acquire))?;
        // SAFETY: a table begins with its number of entries, all of which live as long as the tenant.
        unsafe {
            let entries = table.as_ref().load(Relaxed) as usize;
            let mut at = home(region, entries);
            loop {
                let entry = table.add(TABLE_HEAD + at).as_ref().load(Acquire);
                if entry == 0 {
                    return None;
                }
                if entry & ((1 << REGION_BITS) - 1) == region {
                    let leaf = (entry >> REGION_BITS) as usize * LEAF_BYTES;
                    return NonNull::new(std::ptr::with_exposed_provenance_mut(leaf));
                }
                at = (at + 1) & (entries - 1);
            }
        }
    }

    /// Makes sure that [`PageMap::enter`] finds its leaves. Returns false if out of memory. Under the lock.
    pub(super) fn reserve(&self, tenant: &Tenant, base: usize, bytes: usize, leaves: &mut usize) -> bool {
        for region in region_of(base)..=region_of(base + bytes - 1) {
            if self.leaf(region).is_some() {
                continue;
            }
            if !self.has_room(*leaves) && !self.grow(tenant) {
                return false;
            }
            let Some(leaf) = new_words(tenant, 1 << LEAF_BITS) else { return false };
            *leaves += 1;
            let address = leaf.expose_provenance().get() as u64;
            debug_assert!(address.is_multiple_of(LEAF_BYTES as u64));
            self.put(((address / LEAF_BYTES as u64) << REGION_BITS) | region);
        }
        true
    }

    /// Records the slab of these pages, or that there is none any more. Under the lock; their leaves exist.
    pub(super) fn enter(&self, base: usize, bytes: usize, slab: Option<SlabPtr>) {
        let word = slab.map_or(0, SlabPtr::to_address) as u64;
        for address in (base..base + bytes).step_by(PAGE) {
            let Some(leaf) = self.leaf(region_of(address)) else { unreachable!("reserved") };
            // SAFETY: as in `find`.
            unsafe { leaf.add((address >> PAGE_BITS) & ((1 << LEAF_BITS) - 1)).as_ref() }
                .store(word, Release);
        }
    }

    /// Returns true if one more leaf leaves a quarter of the table empty.
    fn has_room(&self, leaves: usize) -> bool {
        self.entries() / 4 * 3 > leaves
    }

    fn entries(&self) -> usize {
        let table = NonNull::new(self.table.load(Relaxed));
        // SAFETY: a table begins with its number of entries.
        table.map_or(0, |table| unsafe { table.as_ref() }.load(Relaxed) as usize)
    }

    fn put(&self, entry: u64) {
        let Some(table) = NonNull::new(self.table.load(Relaxed)) else { unreachable!("grown before") };
        let entries = self.entries();
        let mut at = home(entry & ((1 << REGION_BITS) - 1), entries);
        // SAFETY: the index stays below the number of entries.
        while unsafe { table.add(TABLE_HEAD + at).as_ref() }.load(Relaxed) != 0 {
            at = (at + 1) & (entries - 1);
        }
        // SAFETY: as above.
        unsafe { table.add(TABLE_HEAD + at).as_ref() }.store(entry, Release);
    }

    fn grow(&self, tenant: &Tenant) -> bool {
        let old = NonNull::new(self.table.load(Relaxed));
        let old_entries = self.entries();
        let entries = (old_entries * 2).max(TABLE_FIRST);
        let Some(table) = new_words(tenant, TABLE_HEAD + entries) else { return false };
        // SAFETY: the new table is ours, with room for head and entries; the old one has `old_entries`.
        unsafe {
            table.as_ref().store(entries as u64, Relaxed);
            let before = old.map_or(0, |old| old.expose_provenance().get());
            table.add(1).as_ref().store(before as u64, Relaxed);
            for at in 0..old_entries {
                let Some(old) = old else { break };
                let entry = old.add(TABLE_HEAD + at).as_ref().load(Relaxed);
                if entry == 0 {
                    continue;
                }
                let mut at = home(entry & ((1 << REGION_BITS) - 1), entries);
                while table.add(TABLE_HEAD + at).as_ref().load(Relaxed) != 0 {
                    at = (at + 1) & (entries - 1);
                }
                table.add(TABLE_HEAD + at).as_ref().store(entry, Relaxed);
            }
        }
        self.table.store(table.as_ptr(), Release);
        true
    }

    /// The regions that have a leaf. Under the lock.
    pub(super) fn regions(&self) -> Vec<usize> {
        let table = NonNull::new(self.table.load(Relaxed));
        let entry = |at| {
            // SAFETY: the newest table has all leaves, each once, and lives as long as the tenant.
            table.map_or(0, |table| unsafe { table.add(TABLE_HEAD + at).as_ref() }.load(Relaxed))
        };
        let entries = (0..self.entries()).map(entry).filter(|entry| *entry != 0);
        entries.map(|entry| (entry & ((1 << REGION_BITS) - 1)) as usize).collect()
    }

    /// Calls `f` with every page of a region that is part of a slab. Under the lock.
    pub(super) fn for_each_page_of(&self, region: usize, f: &mut impl FnMut(usize, SlabPtr)) {
        let Some(leaf) = self.leaf(region as u64) else { return };
        for page in 0..1 << LEAF_BITS {
            let address = (region << LEAF_BITS | page) << PAGE_BITS;
            // SAFETY: as in `find`.
            let slab = unsafe { leaf.add(page).as_ref() }.load(Relaxed) as usize;
            SlabPtr::from_address(slab).into_iter().for_each(|slab| f(address, slab));
        }
    }

    /// Calls `f` with every page that is part of a slab. Returns the bytes counted for leaves and tables. Under the
    /// lock.
    pub(super) fn for_each_page(&self, mut f: impl FnMut(usize, SlabPtr)) -> u64 {
        let regions = self.regions();
        let mut bytes = regions.len() * crate::footprint(LEAF_BYTES);
        regions.into_iter().for_each(|region| self.for_each_page_of(region, &mut f));
        let mut next = NonNull::new(self.table.load(Relaxed));
        while let Some(table) = next {
            // SAFETY: a table begins with its number of entries and the table before it, and lives as long as the
            // tenant.
            let (entries, before) = unsafe {
                (table.as_ref().load(Relaxed) as usize, table.add(1).as_ref().load(Relaxed) as usize)
            };
            bytes += crate::footprint((TABLE_HEAD + entries) * 8);
            next = NonNull::new(std::ptr::with_exposed_provenance_mut(before));
        }
        bytes as u64
    }

    /// Frees leaves and tables.
    ///
    /// # Safety
    /// `tenant` is where they came from, and the map is not read any more.
    pub(super) unsafe fn end(&mut self, tenant: &Tenant) {
        let mut next = NonNull::new(std::mem::take(self.table.get_mut()));
        let mut is_newest = true;
        while let Some(table) = next {
            // SAFETY: a table of ours, with its head and entries; only the newest one has all leaves, each once.
            unsafe {
                let entries = table.as_ref().load(Relaxed) as usize;
                for at in 0..if is_newest { entries } else { 0 } {
                    let leaf = table.add(TABLE_HEAD + at).as_ref().load(Relaxed) >> REGION_BITS;
                    let leaf = std::ptr::with_exposed_provenance_mut(leaf as usize * LEAF_BYTES);
                    if let Some(leaf) = NonNull::new(leaf) {
                        tenant.free_shared(leaf, LEAF_BYTES, Gauge::Index);
                    }
                }
                let before = table.add(1).as_ref().load(Relaxed) as usize;
                next = NonNull::new(std::ptr::with_exposed_provenance_mut(before));
                tenant.free_shared(table.cast(), (TABLE_HEAD + entries) * 8, Gauge::Index);
            }
            is_newest = false;
        }
    }
}

/// Zeroed words.
fn new_words(tenant: &Tenant, count: usize) -> Option<NonNull<AtomicU64>> {
    let words = tenant.allocate_shared(count * 8, Gauge::Index)?.cast::<AtomicU64>();
    for at in 0..count {
        // SAFETY: the block is new and has room for `count` words.
        unsafe { words.add(at).write(AtomicU64::new(0)) };
    }
    Some(words)
}
