//! jemalloc: an arena per tenant over chunks of our own, and the thread caches that take memory from it.

use std::ffi::{CString, c_int};
use std::ptr::NonNull;

use tikv_jemalloc_sys as sys;

use super::controls::{Controls, numbered};
use super::report::Figure;
use super::{ArenaFigures, BLOCK_ALIGNMENT, ClassFigures, ControlError, LINE_BYTES, Occupancy};
use crate::slab::class::PAGE;
use control::CONTROLS;
use extents::{Extents, HUGE_PAGE};

pub(super) use extents::{set_thp, thp};
pub use size_class::{size_class, size_class as footprint};
pub use tikv_jemallocator::Jemalloc as GlobalAllocator;

mod control;
mod extents;
mod size_class;
mod utilization;

/// What is left in an arena is freed with it.
pub const ARENA_GOES_AS_A_WHOLE: bool = true;
/// Whole pages have no header.
pub(crate) const PAGES_HEADER: usize = 0;

/// Free extents that are allocated in search of the one that an arena's next blocks come from.
const FREE_EXTENTS: [usize; 6] =
    [HUGE_PAGE, HUGE_PAGE, HUGE_PAGE, HUGE_PAGE / 2, HUGE_PAGE / 4, HUGE_PAGE / 8];

/// Name and version of the allocator.
pub(super) fn version() -> String {
    format!("jemalloc {}", CONTROLS.version())
}

/// The control interface.
pub(super) fn controls() -> Option<Controls> {
    Some(CONTROLS)
}

/// All of jemalloc's figures are read through its controls.
pub(super) fn figures() -> Vec<Figure> {
    Vec::new()
}

/// Updates the figures. Walks all arenas: call it on events, not per request.
pub fn refresh() {
    CONTROLS.refresh();
}

/// The arenas that belong to no tenant. The last is jemalloc's own for blocks of 8 MiB and more.
fn shared_arenas() -> std::ops::RangeInclusive<u32> {
    0..=CONTROLS.read::<u32>(c"opt.narenas").unwrap_or(0)
}

/// Returns the free pages of the shared arenas, which belong to no tenant, to the system now.
pub fn purge_shared() {
    for arena in shared_arenas() {
        let _ = CONTROLS.run(&numbered("arena", arena, "purge"));
    }
}

/// Physical memory of the shared arenas, as of the last [`refresh`].
pub fn shared_bytes() -> usize {
    shared_arenas()
        .filter_map(|arena| CONTROLS.read::<usize>(&numbered("stats.arenas", arena, "resident")).ok())
        .sum()
}

/// An arena. Dropping it destroys it and everything allocated from it.
pub(crate) struct Arena {
    index: u32,
    /// Where its address space comes from; must outlive the arena, see `Drop`.
    extents: Box<Extents>,
}

/// An explicit thread cache of one arena. Use it from one thread at a time.
pub(crate) struct ThreadCache {
    id: u32,
}

impl Arena {
    /// Creates an arena.
    pub(crate) fn new() -> Result<Self, ControlError> {
        let extents = Extents::new();
        let index = control::create_arena(extents.hooks())?;
        let arena = Self { index, extents };
        // Pages are returned when much has been freed (see `Tenant::wants_purge`), not because time passes: under
        // steady churn the pages freed now are needed in a moment, and each one returned breaks up a huge page.
        for decay in ["dirty_decay_ms", "muzzy_decay_ms"] {
            CONTROLS.write(&arena.control("arena", decay), -1isize)?;
        }
        Ok(arena)
    }

    fn flags(&self, cache: Option<&ThreadCache>) -> c_int {
        let cache = cache.map_or(sys::MALLOCX_TCACHE_NONE, |cache| sys::MALLOCX_TCACHE(cache.id as usize));
        sys::MALLOCX_ARENA(self.index as usize) | cache
    }

    pub(crate) fn allocate(&self, cache: Option<&ThreadCache>, size: usize) -> Option<NonNull<u8>> {
        debug_assert!(size > 0);
        // SAFETY: the size is not zero, the arena lives as long as `self`, the cache as long as its reference.
        let block = unsafe { sys::mallocx(size.max(BLOCK_ALIGNMENT), self.flags(cache)) };
        NonNull::new(block.cast::<u8>())
    }

    /// Like [`Arena::allocate`], aligned to a cache line: every class of whole lines is.
    #[inline]
    pub(crate) fn allocate_lines(&self, cache: Option<&ThreadCache>, size: usize) -> Option<NonNull<u8>> {
        let block = self.allocate(cache, size)?;
        debug_assert!(!size.is_multiple_of(LINE_BYTES) || block.as_ptr().addr().is_multiple_of(LINE_BYTES));
        Some(block)
    }

    /// Allocates whole pages, page-aligned, bypassing the caches.
    pub(crate) fn allocate_pages(&self, size: usize) -> Option<NonNull<u8>> {
        let page = sys::MALLOCX_LG_ALIGN(PAGE.trailing_zeros() as usize);
        // SAFETY: as in `allocate`.
        NonNull::new(unsafe { sys::mallocx(size, self.flags(None) | page) }.cast::<u8>())
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `block` came from [`Arena::allocate`] or [`Arena::allocate_pages`] of this arena with this `size`, and nothing
    /// uses it any more.
    pub(crate) unsafe fn free(&self, cache: Option<&ThreadCache>, block: NonNull<u8>, size: usize) {
        // SAFETY: by the contract of this function; the size is the one that was asked for.
        unsafe { sys::sdallocx(block.as_ptr().cast(), size.max(BLOCK_ALIGNMENT), self.flags(cache)) }
    }

    pub(crate) fn new_cache(&self) -> Option<ThreadCache> {
        CONTROLS.read::<u32>(c"tcache.create").ok().map(|id| ThreadCache { id })
    }

    pub(crate) fn destroy_cache(&self, cache: ThreadCache) {
        let _ = CONTROLS.write(c"tcache.destroy", cache.id);
    }

    /// Returns all free pages to the system now.
    pub(crate) fn purge(&self) {
        let _ = CONTROLS.run(&self.control("arena", "purge"));
    }

    /// Turns pages that are resident but were never handed out into free pages, which the next purge returns: the end
    /// of the huge page that blocks come from next. The allocator treats them as unmapped, so a purge alone leaves
    /// them. Returns true if there may be any.
    pub(crate) fn free_what_was_never_used(&self) -> bool {
        if !self.extents.asks_for_huge_pages() {
            return false;
        }
        // Which free extent the allocator hands out first is up to it: often the oldest, which may be a purged one.
        let blocks = FREE_EXTENTS.map(|size| (self.allocate_pages(size), size));
        for (block, size) in blocks {
            if let Some(block) = block {
                // SAFETY: allocated just now with this size, and never used.
                unsafe { self.free(None, block, size) }
            }
        }
        true
    }

    /// Its figures as of the last [`refresh`].
    pub(crate) fn figures(&self) -> Option<ArenaFigures> {
        let figure = |name: &str| CONTROLS.read::<usize>(&self.control("stats.arenas", name)).unwrap_or(0);
        Some(ArenaFigures {
            allocated: figure("small.allocated") + figure("large.allocated"),
            active: figure("pactive") * PAGE,
            dirty: figure("pdirty") * PAGE,
            resident: figure("resident"),
        })
    }

    /// Its physical memory, by the kernel.
    pub(crate) fn resident_bytes(&self) -> Option<usize> {
        Some(self.extents.resident_bytes())
    }

    /// Its classes with slabs, smallest first, as of the last [`refresh`].
    pub(crate) fn classes(&self) -> Option<Vec<ClassFigures>> {
        utilization::classes(self.index)
    }

    /// How full the slabs of these blocks are.
    pub(crate) fn occupancy(&self, blocks: &[NonNull<u8>], found: &mut [Occupancy]) {
        utilization::occupancy(blocks, found);
    }

    /// Returns true if the next block of this one's class comes from the same slab.
    pub(crate) fn is_in_current_slab(&self, block: NonNull<u8>) -> bool {
        utilization::is_in_current_slab(block)
    }

    fn control(&self, group: &str, name: &str) -> CString {
        numbered(group, self.index, name)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = CONTROLS.run(&self.control("arena", "destroy"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::settings::{Setting, SettingError};

    #[test]
    fn what_is_set_is_in_force_and_tenants_are_left_alone() {
        let before = Arena::new().unwrap();
        for (setting, values) in [
            (Setting::DirtyDecayMs, ["-1", "1234"]),
            (Setting::MuzzyDecayMs, ["77", "0"]),
            (Setting::BackgroundThread, ["false", "true"]),
            (Setting::Thp, ["never", "default"]),
        ] {
            for value in values {
                setting.apply(value).unwrap();
                assert_eq!(setting.in_force().as_deref(), Some(value), "{setting}");
            }
            assert!(matches!(setting.apply("many"), Err(SettingError::Value)), "{setting}");
        }
        assert_eq!(CONTROLS.read::<isize>(c"arena.0.dirty_decay_ms").unwrap(), 1234);
        for arena in [before, Arena::new().unwrap()] {
            let decay_ms = CONTROLS.read::<isize>(&arena.control("arena", "dirty_decay_ms"));
            assert_eq!(decay_ms.unwrap(), -1);
        }
        assert!(matches!(Setting::Narenas.apply("3"), Err(SettingError::Value)));
    }
}
