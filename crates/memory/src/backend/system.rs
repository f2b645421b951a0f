//! The system's `malloc`: the C library's, or one preloaded in its place ([`provider`]).
//!
//! There are no arenas: all tenants share one heap, so the blocks of a dropped tenant lie between those of others and
//! are freed one by one. A tenant's pages cannot be counted; only its accounts count against its budget.
//!
//! ```text
//!   request | rounded up to a multiple of 8, the class |        no malloc rounds any less: it costs nothing,
//!   glibc   | header 8 | class | padding to 16 |                and holds whatever library serves the call
//! ```

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use super::settings::Thp;
use super::{BLOCK_ALIGNMENT, ControlError, LINE_BYTES};
use crate::slab::class::PAGE;

pub(super) use provider::{controls, figures, version};
pub use std::alloc::System as GlobalAllocator;

mod provider;

/// Blocks belong to no arena: the owner of a tenant frees them.
pub const ARENA_GOES_AS_A_WHOLE: bool = false;

/// Whole pages follow one another without gaps if the header of each is the end of the one before.
pub(crate) const PAGES_HEADER: usize = HEADER_BYTES;

/// Returns the process's free pages to the system now.
pub fn purge_shared() {
    // Under Miri there is no library to identify.
    if !cfg!(miri) {
        provider::trim();
    }
}

/// The library decides where item memory lies.
pub(super) fn thp() -> Option<Thp> {
    None
}

/// See [`thp`].
pub(super) fn set_thp(_thp: Thp) {}

const GRAIN: usize = 8;
/// For glibc: the header before a block, and the smallest block including it.
const HEADER_BYTES: usize = 8;
const CHUNK_LEAST: usize = 32;
const CHUNK_GRAIN: usize = 16;

/// Usable bytes of a block of `size` bytes. This many are requested.
#[inline]
pub const fn size_class(size: usize) -> usize {
    if size <= BLOCK_ALIGNMENT { BLOCK_ALIGNMENT } else { (size + GRAIN - 1) & !(GRAIN - 1) }
}

/// Bytes that a block of `size` bytes takes with its header, by glibc's rule; other libraries differ by a few bytes.
/// Blocks that glibc maps individually (above 128 KiB, at first) end at a page boundary, which is not counted.
#[inline]
pub const fn footprint(size: usize) -> usize {
    let chunk = (size_class(size) + HEADER_BYTES + CHUNK_GRAIN - 1) & !(CHUNK_GRAIN - 1);
    if chunk < CHUNK_LEAST { CHUNK_LEAST } else { chunk }
}

/// A tenant's part of the one heap.
pub(crate) struct Arena;

/// The library keeps its own thread caches; there is never one of ours.
pub(crate) enum ThreadCache {}

impl Arena {
    pub(crate) fn new() -> Result<Self, ControlError> {
        Ok(Self)
    }

    #[inline]
    pub(crate) fn allocate(&self, _cache: Option<&ThreadCache>, size: usize) -> Option<NonNull<u8>> {
        // SAFETY: a plain allocation. A malloc aligns blocks of 16 bytes and more to 16 on all 64-bit systems.
        let block = NonNull::new(unsafe { libc::malloc(size_class(size)) }.cast::<u8>())?;
        debug_assert!(block.as_ptr().addr().is_multiple_of(BLOCK_ALIGNMENT));
        Some(block)
    }

    /// Like [`Arena::allocate`], aligned to a cache line.
    #[inline]
    pub(crate) fn allocate_lines(&self, _cache: Option<&ThreadCache>, size: usize) -> Option<NonNull<u8>> {
        Self::allocate_aligned(size, LINE_BYTES)
    }

    /// Allocates pages, page-aligned.
    pub(crate) fn allocate_pages(&self, size: usize) -> Option<NonNull<u8>> {
        Self::allocate_aligned(size, PAGE)
    }

    #[inline]
    fn allocate_aligned(size: usize, alignment: usize) -> Option<NonNull<u8>> {
        let mut block: *mut c_void = null_mut();
        // SAFETY: the alignment is a power of two and a multiple of a pointer's size; the out pointer is a local.
        let errno = unsafe { libc::posix_memalign(&raw mut block, alignment, size_class(size)) };
        if errno == 0 { NonNull::new(block.cast()) } else { None }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `block` came from this arena, and nothing uses it any more.
    #[inline]
    pub(crate) unsafe fn free(&self, _cache: Option<&ThreadCache>, block: NonNull<u8>, _size: usize) {
        // SAFETY: by the contract of this function.
        unsafe { libc::free(block.as_ptr().cast()) }
    }

    #[inline]
    pub(crate) fn new_cache(&self) -> Option<ThreadCache> {
        None
    }

    pub(crate) fn destroy_cache(&self, cache: ThreadCache) {
        match cache {}
    }

    /// Returns the process's free pages to the system now.
    pub(crate) fn purge(&self) {
        purge_shared();
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.purge();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also checks the library that actually serves: run with one preloaded, it shows whether the rule holds there.
    #[test]
    fn agrees_with_the_allocator() {
        let is_glibc = version().starts_with("glibc");
        for size in (1..20_000usize).chain((20_000..4_000_000).step_by(9973)) {
            let block = Arena.allocate(None, size).unwrap();
            // SAFETY: the block is a live one of malloc's.
            let usable = unsafe { libc::malloc_usable_size(block.as_ptr().cast()) };
            assert!(usable >= size_class(size), "{usable} of {size} bytes");
            // If a free block is too small to be split, its rest is handed out with it.
            let expected = footprint(size) - HEADER_BYTES;
            let mapped_by_itself = size >= 128 << 10;
            assert!(
                !is_glibc || mapped_by_itself || (expected..=expected + CHUNK_GRAIN).contains(&usable),
                "{usable} of {size} bytes"
            );
            // SAFETY: allocated above.
            unsafe { Arena.free(None, block, size) }
        }
    }
}
