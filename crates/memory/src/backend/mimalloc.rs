//! mimalloc: a heap per tenant.
//!
//! Any thread may allocate from a heap of mimalloc 3. Each has a part of its own, made when it first allocates, so a
//! thread needs no cache of ours. Any thread may free blocks. Only a part's own thread returns its empty pages, when it
//! rests; what others freed lies in them until then.
//!
//! A heap is deleted, not destroyed: blocks still in use move to the process's heap and stay in place.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{NonNull, null_mut};

use libmimalloc_sys as sys;

use super::controls::Controls;
use super::report::{Figure, of_mimalloc};
use super::settings::Thp;
use super::{BLOCK_ALIGNMENT, ControlError, LINE_BYTES};
use crate::slab::class::PAGE;

pub use size_class::{size_class, size_class as footprint};

mod size_class;

/// Blocks outlive their heap: the owner of a tenant frees them.
pub const ARENA_GOES_AS_A_WHOLE: bool = false;
/// Whole pages have no header.
pub(crate) const PAGES_HEADER: usize = 0;

/// Returns the process's free pages to the system now, except those of other threads.
pub fn purge_shared() {
    // SAFETY: collects what is free.
    unsafe { sys::mi_collect(true) }
}

/// mimalloc, for the process.
pub struct GlobalAllocator;

// SAFETY: blocks are as large and as aligned as asked for, and freed by the allocator they came from.
unsafe impl GlobalAlloc for GlobalAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: plain allocations; the alignment is a power of two, and every block is aligned to a word.
        unsafe {
            if layout.align() <= size_of::<usize>() {
                sys::mi_malloc(layout.size()).cast()
            } else {
                sys::mi_malloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { sys::mi_zalloc_aligned(layout.size(), layout.align()).cast() }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the block came from this allocator.
        unsafe { sys::mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { sys::mi_realloc_aligned(block.cast(), size, layout.align()).cast() }
    }
}

/// Name and version of the allocator.
pub(super) fn version() -> String {
    // SAFETY: it only returns a number.
    let version = unsafe { sys::mi_version() };
    format!("mimalloc {}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// It has other options, which are read once.
pub(super) fn controls() -> Option<Controls> {
    None
}

/// mimalloc decides where item memory lies.
pub(super) fn thp() -> Option<Thp> {
    None
}

/// See [`thp`].
pub(super) fn set_thp(_thp: Thp) {}

/// mimalloc's figures of the process.
pub(super) fn figures() -> Vec<Figure> {
    let (mut committed, mut peak) = (0, 0);
    let none = null_mut();
    // SAFETY: out pointers to locals; those that are null are left out.
    unsafe { sys::mi_process_info(none, none, none, none, none, &raw mut committed, &raw mut peak, none) };
    of_mimalloc(committed, peak)
}

/// A heap of a tenant's own.
pub(crate) struct Arena(NonNull<sys::mi_heap_t>);

// SAFETY: a heap may be allocated from, and its blocks freed, by any thread.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Marks that a thread may have a part of the heap, whose empty pages it returns when it rests.
pub(crate) struct ThreadCache;

impl Arena {
    pub(crate) fn new() -> Result<Self, ControlError> {
        // SAFETY: creates a heap or returns null.
        let heap = unsafe { sys::mi_heap_new() };
        NonNull::new(heap)
            .map(Self)
            .ok_or_else(|| ControlError { name: "mi_heap_new".to_owned(), errno: libc::ENOMEM })
    }

    #[inline]
    pub(crate) fn allocate(&self, _cache: Option<&ThreadCache>, size: usize) -> Option<NonNull<u8>> {
        // SAFETY: the heap lives as long as `self`.
        let block = unsafe { sys::mi_heap_malloc(self.0.as_ptr(), size.max(BLOCK_ALIGNMENT)) };
        NonNull::new(block.cast())
    }

    /// Like [`Arena::allocate`], aligned to a cache line.
    #[inline]
    pub(crate) fn allocate_lines(&self, _cache: Option<&ThreadCache>, size: usize) -> Option<NonNull<u8>> {
        self.allocate_aligned(size, LINE_BYTES)
    }

    /// Allocates whole pages, page-aligned.
    pub(crate) fn allocate_pages(&self, size: usize) -> Option<NonNull<u8>> {
        self.allocate_aligned(size, PAGE)
    }

    #[inline]
    fn allocate_aligned(&self, size: usize, alignment: usize) -> Option<NonNull<u8>> {
        let block = self.allocate(None, size)?;
        if block.as_ptr().addr().is_multiple_of(alignment) {
            return Some(block);
        }
        // Blocks of such a size follow one another from the start of a page on, mostly at its beginning: the call for
        // aligned memory does not rely on that and takes more than is asked for. SAFETY: the block just came from this
        // heap, which lives as long as `self`.
        unsafe {
            sys::mi_free(block.as_ptr().cast());
            NonNull::new(sys::mi_heap_malloc_aligned(self.0.as_ptr(), size, alignment).cast())
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `block` came from this arena, and nothing uses it any more.
    #[inline]
    pub(crate) unsafe fn free(&self, _cache: Option<&ThreadCache>, block: NonNull<u8>, _size: usize) {
        // SAFETY: by the contract of this function.
        unsafe { sys::mi_free(block.as_ptr().cast()) }
    }

    pub(crate) fn new_cache(&self) -> Option<ThreadCache> {
        Some(ThreadCache)
    }

    pub(crate) fn destroy_cache(&self, _cache: ThreadCache) {
        self.purge();
    }

    /// Returns the empty pages of this thread's part, and the process's free pages, to the system now.
    pub(crate) fn purge(&self) {
        // SAFETY: the heap lives as long as `self`.
        unsafe { sys::mi_heap_collect(self.0.as_ptr(), true) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the heap is ours and not used any more; blocks in use move to another.
        unsafe {
            sys::mi_heap_delete(self.0.as_ptr());
            sys::mi_collect(true);
        }
    }
}
