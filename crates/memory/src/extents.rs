//! Where an arena gets its address space: chunks of our own, so that huge pages are a choice per tenant.
//!
//! ```text
//!   chunk 0: 8 MiB, huge pages refused (a small tenant stays small, whatever the system's THP setting)
//!   chunk 1..: 64 MiB to 1 GiB, 2 MiB-aligned, huge pages asked for
//!   [extent|extent|extent|.... bump ....                ] next chunk when one does not fit
//! ```
//! Address space is never given back before the arena ends; physical pages are, by `MADV_DONTNEED`. A 2 MiB block that
//! has been purged in part gives up its claim to a huge page: otherwise the kernel would fill the holes again.

use std::ffi::{c_uint, c_void};
use std::ptr::{self, null_mut};

use parking_lot::Mutex;
use tikv_jemalloc_sys as sys;

const HUGE_PAGE: usize = 2 << 20;
const FIRST_CHUNK: usize = 8 << 20;
const SMALLEST_HUGE_CHUNK: usize = 64 << 20;
const LARGEST_CHUNK: usize = 1 << 30;

/// The extent hooks of one arena and the chunks they serve it from. Pinned in memory: the allocator keeps its address.
#[repr(C)]
pub(crate) struct Extents {
    /// First field: the allocator's pointer to the hooks is our pointer to the whole.
    hooks: sys::extent_hooks_t,
    chunks: Mutex<Chunks>,
}

struct Chunks {
    all: Vec<Chunk>,
    /// Bytes of the last chunk already handed out.
    bumped: usize,
}

#[derive(Clone, Copy)]
struct Chunk {
    base: usize,
    size: usize,
}

impl Extents {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            hooks: sys::extent_hooks_t {
                alloc: Some(alloc),
                dalloc: Some(keep),
                destroy: None,
                commit: None,
                decommit: None,
                purge_lazy: None,
                purge_forced: Some(purge),
                split: Some(split),
                merge: Some(merge),
            },
            chunks: Mutex::new(Chunks { all: Vec::new(), bumped: 0 }),
        })
    }

    /// The pointer the allocator wants for `arenas.create`.
    pub(crate) fn hooks(&self) -> *mut sys::extent_hooks_t {
        (&raw const self.hooks).cast_mut()
    }

    fn take(&self, size: usize, alignment: usize) -> Option<usize> {
        let mut chunks = self.chunks.lock();
        let Chunks { all, bumped } = &mut *chunks;
        if let Some(chunk) = all.last() {
            let start = (chunk.base + *bumped).next_multiple_of(alignment);
            if start + size <= chunk.base + chunk.size {
                *bumped = start + size - chunk.base;
                return Some(start);
            }
        }
        let total: usize = all.iter().map(|chunk| chunk.size).sum();
        let least = size.max(alignment).next_multiple_of(HUGE_PAGE);
        let chunk = if all.is_empty() && least <= FIRST_CHUNK {
            map_chunk(FIRST_CHUNK, HUGE_PAGE, libc::MADV_NOHUGEPAGE)?
        } else {
            let size = total.clamp(SMALLEST_HUGE_CHUNK, LARGEST_CHUNK).next_multiple_of(HUGE_PAGE);
            map_chunk(size.max(least), alignment.max(HUGE_PAGE), libc::MADV_HUGEPAGE)?
        };
        all.push(chunk);
        *bumped = size;
        Some(chunk.base)
    }
}

impl Drop for Extents {
    fn drop(&mut self) {
        for chunk in &self.chunks.get_mut().all {
            // SAFETY: the chunk was mapped by us with this size, and the arena that used it has been destroyed.
            unsafe { libc::munmap(chunk.base as *mut c_void, chunk.size) };
        }
    }
}

/// Maps `size` bytes at a multiple of `alignment`.
fn map_chunk(size: usize, alignment: usize, advice: i32) -> Option<Chunk> {
    let reserved = size + alignment;
    // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(
            null_mut(),
            reserved,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start as usize;
    let base = start.next_multiple_of(alignment);
    let (head, tail) = (base - start, start + reserved - base - size);
    // SAFETY: head and tail lie inside the mapping just made and outside the chunk; the advice covers the chunk alone.
    unsafe {
        if head > 0 {
            libc::munmap(start as *mut c_void, head);
        }
        if tail > 0 {
            libc::munmap((base + size) as *mut c_void, tail);
        }
        libc::madvise(base as *mut c_void, size, advice);
    }
    Some(Chunk { base, size })
}

unsafe extern "C" fn alloc(
    hooks: *mut sys::extent_hooks_t,
    new_addr: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    if !new_addr.is_null() {
        return null_mut();
    }
    // SAFETY: the hooks are the first field of the `Extents` the arena was created with, which outlives the arena.
    let extents = unsafe { &*hooks.cast::<Extents>() };
    let Some(address) = extents.take(size, alignment) else { return null_mut() };
    // SAFETY: out parameters of the hook; a fresh mapping is zero and committed.
    unsafe {
        *zero = true;
        *commit = true;
    }
    ptr::with_exposed_provenance_mut(address)
}

/// Declines to unmap: the allocator purges the pages and keeps the address space for later.
unsafe extern "C" fn keep(
    _hooks: *mut sys::extent_hooks_t,
    _addr: *mut c_void,
    _size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    true
}

unsafe extern "C" fn purge(
    _hooks: *mut sys::extent_hooks_t,
    addr: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    let start = addr as usize + offset;
    let first = start & !(HUGE_PAGE - 1);
    let end = (start + length).next_multiple_of(HUGE_PAGE);
    // SAFETY: the range belongs to the arena and holds no live allocation, so its pages may go. The advice covers whole
    // huge-page blocks around it, which changes no content; chunks are multiples of the block and aligned to it.
    unsafe {
        if first != start || end != start + length {
            libc::madvise(first as *mut c_void, end - first, libc::MADV_NOHUGEPAGE);
        }
        libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED) != 0
    }
}

/// Any page boundary may split an extent.
unsafe extern "C" fn split(
    _hooks: *mut sys::extent_hooks_t,
    _addr: *mut c_void,
    _size: usize,
    _size_a: usize,
    _size_b: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

/// Neighbours may always merge: they are plain memory, and unmapped only with their chunk.
unsafe extern "C" fn merge(
    _hooks: *mut sys::extent_hooks_t,
    _addr_a: *mut c_void,
    _size_a: usize,
    _addr_b: *mut c_void,
    _size_b: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}
