//! One jemalloc arena, and the thread caches that take memory from it.

use std::ffi::{CString, c_int};
use std::ptr::NonNull;

use tikv_jemalloc_sys as sys;

use crate::extents::Extents;
use crate::jemalloc::{self, ControlError};

/// Alignment of every block: locations count in these units.
pub const BLOCK_ALIGNMENT: usize = 16;

/// An arena of its own. Destroyed, with everything allocated from it, on drop.
pub struct Arena {
    index: u32,
    /// Where its address space comes from; must outlive the arena, see `Drop`.
    _extents: Box<Extents>,
}

/// What the allocator knows of one arena, in bytes, as of the last [`jemalloc::refresh`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Small and large allocations handed out, thread caches included.
    pub allocated: usize,
    /// Pages that hold allocations.
    pub active: usize,
    /// Pages freed but not yet given back.
    pub dirty: usize,
    /// Physical memory: active, dirty and the arena's own bookkeeping.
    pub resident: usize,
}

/// An explicit thread cache of one arena. Use it from one thread at a time.
pub(crate) struct ThreadCache {
    id: u32,
}

impl Arena {
    /// Makes an arena.
    pub fn new() -> Result<Self, ControlError> {
        let extents = Extents::new();
        let index = jemalloc::create_arena(extents.hooks())?;
        let arena = Self { index, _extents: extents };
        // Pages are given back when much has been freed (see `Tenant::wants_purge`), not because time passes: under steady
        // churn the pages freed now are needed in a moment, and each one given back breaks up a huge page.
        for decay in ["dirty_decay_ms", "muzzy_decay_ms"] {
            jemalloc::write(&arena.control("arena", decay), -1isize)?;
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

    /// Gives a block back.
    ///
    /// # Safety
    /// `block` came from [`Arena::allocate`] of this arena with this `size`, and nothing uses it any more.
    pub(crate) unsafe fn free(&self, cache: Option<&ThreadCache>, block: NonNull<u8>, size: usize) {
        // SAFETY: by the contract of this function; the size is the one that was asked for.
        unsafe { sys::sdallocx(block.as_ptr().cast(), size.max(BLOCK_ALIGNMENT), self.flags(cache)) }
    }

    pub(crate) fn new_cache(&self) -> Option<ThreadCache> {
        jemalloc::read::<u32>(c"tcache.create").ok().map(|id| ThreadCache { id })
    }

    pub(crate) fn destroy_cache(&self, cache: ThreadCache) {
        let _ = jemalloc::write(c"tcache.destroy", cache.id);
    }

    /// Gives all free pages back to the system now.
    pub fn purge(&self) {
        let _ = jemalloc::run(&self.control("arena", "purge"));
    }

    /// Its figures as of the last [`jemalloc::refresh`].
    pub fn figures(&self) -> ArenaFigures {
        let figure = |name: &str| jemalloc::read::<usize>(&self.control("stats.arenas", name)).unwrap_or(0);
        const PAGE: usize = 4096;
        ArenaFigures {
            allocated: figure("small.allocated") + figure("large.allocated"),
            active: figure("pactive") * PAGE,
            dirty: figure("pdirty") * PAGE,
            resident: figure("resident"),
        }
    }

    fn control(&self, group: &str, name: &str) -> CString {
        CString::new(format!("{group}.{}.{name}", self.index)).unwrap_or_default()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = jemalloc::run(&self.control("arena", "destroy"));
    }
}
