//! The address space of an arena: chunks of our own, so that huge pages are a choice per tenant.
//!
//! ```text
//!   chunk 0: 8 MiB, huge pages refused (a small tenant stays small, whatever the system's THP setting)
//!   chunk 1..: 64 MiB to 1 GiB, 2 MiB-aligned, huge pages asked for
//!   [extent|extent|extent|.... bump ....                ] next chunk when one does not fit
//! ```
//! That is the default. The setting `thp` requests huge pages from chunk 0 on, or refuses them everywhere. A change
//! also reaches existing chunks, but only as advice: pages that are already resident stay as they are until they are
//! freed.
//!
//! Address space is never returned before the arena ends; physical pages are, by `MADV_DONTNEED`. A 2 MiB block that
//! has been partly purged and still holds pages gives up its claim to a huge page, whatever the setting: otherwise the
//! kernel would fill the holes again. So does the block in which the used part of a finished chunk ends.

use std::ffi::{c_uint, c_void};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use parking_lot::Mutex;
use tikv_jemalloc_sys as sys;

use crate::backend::settings::Thp;
use crate::slab::class::PAGE;

pub(crate) const HUGE_PAGE: usize = 2 << 20;
const FIRST_CHUNK: usize = 8 << 20;
const SMALLEST_HUGE_CHUNK: usize = 64 << 20;
const LARGEST_CHUNK: usize = 1 << 30;

/// The extent hooks of one arena and the chunks they serve it from. Pinned: the allocator keeps its address.
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

struct Chunk {
    base: usize,
    size: usize,
    /// Its 2 MiB blocks that have been partly purged, a bit each.
    broken: Box<[u64]>,
}

/// The setting, as its index in [`CHOICES`].
static THP: AtomicU8 = AtomicU8::new(0);
const CHOICES: [Thp; 3] = [Thp::Default, Thp::Always, Thp::Never];

/// All `Extents`, to apply a change of the setting. Locked before the chunks of any.
static ALL: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

/// Address of an `Extents` that is not dropped yet.
#[derive(PartialEq)]
struct Registered(*const Extents);

// SAFETY: what it points to is shared between threads anyway.
unsafe impl Send for Registered {}

/// The setting in force.
pub(in crate::backend) fn thp() -> Option<Thp> {
    CHOICES.get(usize::from(THP.load(Relaxed))).copied().or(Some(Thp::Default))
}

/// Changes the setting, for future and existing chunks.
pub(in crate::backend) fn set_thp(thp: Thp) {
    let all = ALL.lock();
    let place = CHOICES.iter().position(|choice| *choice == thp).unwrap_or_default();
    // ORDERING: under the lock of each arena's chunks, new ones are advised by what is stored here before they are
    // listed.
    if usize::from(THP.swap(place as u8, Relaxed)) == place {
        return;
    }
    for extents in &*all {
        // SAFETY: it removes itself from the list, under the lock that is held here, before it is dropped.
        let extents = unsafe { &*extents.0 };
        let chunks = extents.chunks.lock();
        for (index, chunk) in chunks.all.iter().enumerate() {
            chunk.advise(advice(index == 0 && chunk.size <= FIRST_CHUNK));
        }
    }
}

/// The advice for a chunk.
fn advice(is_small: bool) -> i32 {
    match thp() {
        Some(Thp::Always) => libc::MADV_HUGEPAGE,
        Some(Thp::Never) => libc::MADV_NOHUGEPAGE,
        Some(Thp::Default) | None if is_small => libc::MADV_NOHUGEPAGE,
        Some(Thp::Default) | None => libc::MADV_HUGEPAGE,
    }
}

impl Extents {
    pub(crate) fn new() -> Box<Self> {
        let extents = Box::new(Self {
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
        });
        ALL.lock().push(Registered(&raw const *extents));
        extents
    }

    /// The pointer the allocator wants for `arenas.create`.
    pub(crate) fn hooks(&self) -> *mut sys::extent_hooks_t {
        (&raw const self.hooks).cast_mut()
    }

    /// Returns true if it has chunks for which huge pages are requested.
    pub(crate) fn asks_for_huge_pages(&self) -> bool {
        self.chunks.lock().all.iter().any(|chunk| advice(chunk.size <= FIRST_CHUNK) == libc::MADV_HUGEPAGE)
    }

    /// Physical memory of its chunks, by the kernel: some milliseconds for each GiB.
    pub(crate) fn resident_bytes(&self) -> usize {
        let ranges: Vec<(usize, usize)> = {
            let chunks = self.chunks.lock();
            let last = chunks.all.len().saturating_sub(1);
            // A huge page may reach beyond what has been handed out.
            let used = |(index, chunk): (usize, &Chunk)| {
                let used = if index == last { chunks.bumped } else { chunk.size };
                (chunk.base, used.next_multiple_of(HUGE_PAGE).min(chunk.size))
            };
            chunks.all.iter().enumerate().map(used).collect()
        };
        // Chunks stay mapped until the arena is dropped.
        let blocks = ranges.into_iter().flat_map(|(base, used)| (base..base + used).step_by(HUGE_PAGE));
        blocks.map(|block| resident_pages(block).unwrap_or(0) * PAGE).sum()
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
        if let Some(chunk) = all.last_mut() {
            chunk.end_at(*bumped);
        }
        let total: usize = all.iter().map(|chunk| chunk.size).sum();
        let least = size.max(alignment).next_multiple_of(HUGE_PAGE);
        let chunk = if all.is_empty() && least <= FIRST_CHUNK {
            map_chunk(FIRST_CHUNK, HUGE_PAGE, advice(true))?
        } else {
            let size = total.clamp(SMALLEST_HUGE_CHUNK, LARGEST_CHUNK).next_multiple_of(HUGE_PAGE);
            map_chunk(size.max(least), alignment.max(HUGE_PAGE), advice(false))?
        };
        let base = chunk.base;
        all.push(chunk);
        *bumped = size;
        Some(base)
    }

    /// A part of this block has been purged: if pages of it are left, it gives up its claim to a huge page.
    fn break_up(&self, block: usize) {
        let mut chunks = self.chunks.lock();
        let holds = |chunk: &&mut Chunk| (chunk.base..chunk.base + chunk.size).contains(&block);
        let Some(chunk) = chunks.all.iter_mut().find(holds) else { return };
        let index = (block - chunk.base) / HUGE_PAGE;
        if let Some(word) = chunk.broken.get_mut(index / 64)
            && *word >> (index % 64) & 1 == 0
            && has_pages(block)
        {
            *word |= 1 << (index % 64);
            // SAFETY: advice about a part of our chunk, which changes no content.
            unsafe { libc::madvise(block as *mut c_void, HUGE_PAGE, libc::MADV_NOHUGEPAGE) };
        }
    }
}

impl Chunk {
    /// Nothing beyond its first `used` bytes will be handed out: frees the unused part of a huge page that spans that
    /// end.
    fn end_at(&mut self, used: usize) {
        let end = used.next_multiple_of(HUGE_PAGE);
        if end == used {
            return;
        }
        let block = used / HUGE_PAGE;
        if let Some(word) = self.broken.get_mut(block / 64) {
            *word |= 1 << (block % 64);
        }
        // SAFETY: advice about a block of our chunk; the freed part has never been handed out.
        unsafe {
            libc::madvise((self.base + end - HUGE_PAGE) as *mut c_void, HUGE_PAGE, libc::MADV_NOHUGEPAGE);
            libc::madvise((self.base + used) as *mut c_void, end - used, libc::MADV_DONTNEED);
        }
    }

    /// Advises all of it except its broken blocks, which stay without huge pages.
    fn advise(&self, advice: i32) {
        let blocks = self.size / HUGE_PAGE;
        let is_broken =
            |block: usize| self.broken.get(block / 64).is_some_and(|word| word >> (block % 64) & 1 == 1);
        let mut start = 0;
        while start < blocks {
            let end = (start..blocks).find(|block| is_broken(*block)).unwrap_or(blocks);
            if end > start {
                let (at, length) = (self.base + start * HUGE_PAGE, (end - start) * HUGE_PAGE);
                // SAFETY: advice about a part of our chunk, which changes no content.
                unsafe { libc::madvise(at as *mut c_void, length, advice) };
            }
            start = end + 1;
        }
    }
}

impl Drop for Extents {
    fn drop(&mut self) {
        let this = Registered(&raw const *self);
        ALL.lock().retain(|other| *other != this);
        for chunk in &self.chunks.get_mut().all {
            // SAFETY: the chunk was mapped by us with this size, and the arena that used it has been destroyed.
            unsafe { libc::munmap(chunk.base as *mut c_void, chunk.size) };
        }
    }
}

/// Returns true if any page of a block is resident.
fn has_pages(block: usize) -> bool {
    resident_pages(block).is_none_or(|pages| pages > 0)
}

/// The number of resident pages of a block, if the kernel tells.
fn resident_pages(block: usize) -> Option<usize> {
    let mut pages = [0u8; HUGE_PAGE / PAGE];
    // SAFETY: it asks about a block of ours, and there is a byte for each of its pages.
    let failed = unsafe { libc::mincore(block as *mut c_void, HUGE_PAGE, pages.as_mut_ptr()) } != 0;
    (!failed).then(|| pages.iter().filter(|page| **page & 1 == 1).count())
}

/// Maps `size` bytes, aligned to `alignment`.
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
    Some(Chunk { base, size, broken: vec![0; (size / HUGE_PAGE).div_ceil(64)].into() })
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
    hooks: *mut sys::extent_hooks_t,
    addr: *mut c_void,
    _size: usize,
    offset: usize,
    length: usize,
    _arena: c_uint,
) -> bool {
    let start = addr as usize + offset;
    let end = start + length;
    // SAFETY: the range belongs to the arena and holds no live allocation, so its pages may go.
    let failed = unsafe { libc::madvise(start as *mut c_void, length, libc::MADV_DONTNEED) } != 0;
    let (first, last) = (start & !(HUGE_PAGE - 1), (end - 1) & !(HUGE_PAGE - 1));
    // SAFETY: as in `alloc`. Chunks are multiples of the block and aligned to it.
    let extents = unsafe { &*hooks.cast::<Extents>() };
    if first < start || first + HUGE_PAGE > end {
        extents.break_up(first);
    }
    if last > first && last + HUGE_PAGE > end {
        extents.break_up(last);
    }
    failed
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_blocks_stay_broken_whatever_is_advised() {
        let extents = Extents::new();
        let at = extents.take(20 * HUGE_PAGE, HUGE_PAGE).unwrap();
        // Another test changes the setting, for all `Extents`.
        let _setting_stays = ALL.lock();
        let ours = {
            let chunks = extents.chunks.lock();
            let chunk = chunks.all.first().unwrap();
            chunk.advise(libc::MADV_HUGEPAGE);
            chunk.base..chunk.base + chunk.size
        };
        let huge_claims = || {
            // "VmFlags: ... hg ..." of each mapping that claims huge pages; mappings differ where the advice does, and
            // join their neighbours of other tests where it does not.
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let (mut inside, mut claimed) = (0, 0);
            for line in smaps.lines() {
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                if let Some((start, end)) = range {
                    let address = |text: &str| usize::from_str_radix(text, 16).unwrap();
                    let (start, end) = (address(start).max(ours.start), address(end).min(ours.end));
                    inside = end.saturating_sub(start);
                } else if line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "hg") {
                    claimed += inside / HUGE_PAGE;
                }
            }
            claimed
        };
        let size = ours.len() / HUGE_PAGE;
        assert_eq!(huge_claims(), size);
        for block in [at + 3 * HUGE_PAGE, at + 4 * HUGE_PAGE] {
            extents.break_up(block);
            assert_eq!(huge_claims(), size, "nothing is left there that could be filled up");
            // SAFETY: a page of ours.
            unsafe { *(block as *mut u8) = 1 };
        }
        for block in [at + 3 * HUGE_PAGE, at + 4 * HUGE_PAGE] {
            extents.break_up(block);
        }
        assert_eq!(huge_claims(), size - 2);
        for (advice, claimed) in [(libc::MADV_NOHUGEPAGE, 0), (libc::MADV_HUGEPAGE, size - 2)] {
            extents.chunks.lock().all.first().unwrap().advise(advice);
            assert_eq!(huge_claims(), claimed);
        }
    }

    #[test]
    fn what_is_left_of_a_full_chunk_is_not_resident() {
        let extents = Extents::new();
        let huge = SMALLEST_HUGE_CHUNK;
        let first = extents.take(FIRST_CHUNK, 4096).unwrap();
        let chunk = extents.take(huge - HUGE_PAGE - 64 * 1024, 4096).unwrap();
        let last = chunk + huge - HUGE_PAGE - 64 * 1024 - 4096;
        // SAFETY: pages of ours.
        unsafe {
            *(first as *mut u8) = 1;
            *(last as *mut u8) = 1;
        }
        extents.take(huge, 4096).unwrap();
        let block = chunk + huge - 2 * HUGE_PAGE;
        let mut resident = [0u8; HUGE_PAGE / 4096];
        // SAFETY: the block is mapped, and there is a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(block as *mut c_void, HUGE_PAGE, resident.as_mut_ptr()) }, 0);
        assert_eq!(resident[resident.len() - 17] & 1, 1, "what was written stays");
        assert!(resident[resident.len() - 16..].iter().all(|page| page & 1 == 0), "what is left goes");
    }
}
