//! The allocator of the process and of the tenants, chosen by cargo feature. Everything about it is in this folder.
//!
//! ```text
//!   alloc-jemalloc   an arena per tenant over chunks of our own, thread caches, figures   (the default)
//!   alloc-mimalloc   a heap per tenant, which any thread may allocate from
//!   alloc-system     malloc: the C library's, or whatever is preloaded in its place
//! ```
//! A backend offers
//!
//! * `GlobalAllocator`, the process's own;
//! * `Arena` and `ThreadCache`: where a tenant's blocks come from, and a thread's cache of them. An arena also
//!   allocates whole pages, of which `PAGES_HEADER` bytes are left to the allocator;
//! * [`size_class`], the usable bytes of a block, and [`footprint`], the bytes it takes. Both are computed: the
//!   accounts need them for every allocation, and asking the allocator would cost more than the arithmetic. Tests
//!   compare them with the allocator's own answers;
//! * `ARENA_GOES_AS_A_WHOLE`: whether dropping an arena frees the blocks left in it. Where it does not, the owner of a
//!   tenant frees them one by one, or they leak;
//! * [`version`], `refresh`, which updates the figures, and `shared_bytes`, what no tenant has of them;
//! * `controls`, jemalloc's control interface where a jemalloc serves, and `thp`, the huge page setting where chunks
//!   are ours. [`settings`], [`boot`] and [`report`] build on them and are the same for all builds.
//!
//! Why these, and what each cannot do: `docs/decisions/0007-allocator-backends.md`.

#[cfg(feature = "alloc-jemalloc")]
mod jemalloc;
#[cfg(feature = "alloc-jemalloc")]
use jemalloc as chosen;

#[cfg(feature = "alloc-mimalloc")]
mod mimalloc;
#[cfg(feature = "alloc-mimalloc")]
use mimalloc as chosen;

#[cfg(feature = "alloc-system")]
mod system;
#[cfg(feature = "alloc-system")]
use system as chosen;

#[cfg(any(
    all(feature = "alloc-jemalloc", feature = "alloc-mimalloc"),
    all(feature = "alloc-jemalloc", feature = "alloc-system"),
    all(feature = "alloc-mimalloc", feature = "alloc-system"),
))]
compile_error!("one allocator only: beside alloc-mimalloc or alloc-system give --no-default-features");
#[cfg(not(any(feature = "alloc-jemalloc", feature = "alloc-mimalloc", feature = "alloc-system")))]
compile_error!("no allocator: enable alloc-jemalloc (the default), alloc-mimalloc or alloc-system");

pub mod boot;
#[cfg_attr(feature = "alloc-mimalloc", expect(dead_code, reason = "never constructed without a jemalloc"))]
mod controls;
pub mod report;
pub mod settings;
#[cfg(not(feature = "alloc-jemalloc"))]
mod unreported;

use std::sync::OnceLock;

pub use chosen::{ARENA_GOES_AS_A_WHOLE, GlobalAllocator, footprint, purge_shared, size_class};
pub(crate) use chosen::{Arena, PAGES_HEADER, ThreadCache};
#[cfg(feature = "alloc-jemalloc")]
pub use jemalloc::{refresh, shared_bytes};
#[cfg(not(feature = "alloc-jemalloc"))]
pub use unreported::{refresh, shared_bytes};

/// The process's allocator, for `#[global_allocator]`.
pub const GLOBAL_ALLOCATOR: GlobalAllocator = GlobalAllocator;

/// Name and version of the allocator in use, such as `jemalloc 5.3.1`. With alloc-system, those of the library that
/// actually serves `malloc`, such as `tcmalloc 2.10, preloaded`.
pub fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(chosen::version)
}

/// Size classes as jemalloc and mimalloc cut them: four per doubling, steps of `quantum` below eight of them, whole
/// pages above `largest`.
#[cfg(not(feature = "alloc-system"))]
const fn quartered_class(size: usize, quantum: usize, largest: usize) -> usize {
    if size > largest {
        return size.next_multiple_of(4096);
    }
    let top_bit = usize::BITS - 1 - (size - 1).leading_zeros();
    let step = if top_bit < 6 { quantum } else { 1 << (top_bit - 2) };
    (size + step - 1) & !(step - 1)
}

/// Alignment of every block. Locations count in these units.
pub const BLOCK_ALIGNMENT: usize = 16;
/// Alignment of blocks of whole cache lines.
pub(crate) const LINE_BYTES: usize = 64;

/// What the allocator knows about one arena, in bytes, as of the last `refresh`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArenaFigures {
    /// Small and large allocations handed out, including those in thread caches.
    pub allocated: usize,
    /// Pages that hold allocations.
    pub active: usize,
    /// Pages freed but not yet returned to the system.
    pub dirty: usize,
    /// Physical memory: active, dirty and the arena's own bookkeeping.
    pub resident: usize,
}

/// What the allocator knows about one size class of an arena, as of the last `refresh`. A slab is a run of pages with
/// `slots` slots of `size` bytes, freed as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ClassFigures {
    pub(crate) size: usize,
    pub(crate) slots: u32,
    pub(crate) slabs: usize,
    /// Slabs with a free slot, excluding the one that is served from next.
    pub(crate) with_room: usize,
    /// Slots taken, including those in thread caches.
    pub(crate) taken: usize,
}

/// How full the slab of a block is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Free slots; 0 also for a block in no slab.
    pub free: u32,
    /// Slot size in bytes.
    pub class: usize,
}

/// A failed control call: its name and errno.
#[derive(Debug, thiserror::Error)]
#[error("allocator control {name} failed with errno {errno}")]
pub struct ControlError {
    /// The control's name.
    pub name: String,
    /// The errno it returned.
    pub errno: i32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gauge, Tenant};

    #[test]
    fn blocks_have_room_for_their_class_and_lie_where_they_must() {
        let tenant = Tenant::new(1, u64::MAX).unwrap();
        let mut cache = tenant.cache(0);
        let sizes: Vec<usize> =
            (1..5000).chain((5000..300_000).step_by(997)).chain([1 << 20, 5_000_001]).collect();
        let mut blocks = Vec::new();
        for &size in &sizes {
            let class = size_class(size);
            assert!(
                class >= size && size_class(class) == class && footprint(size) >= class,
                "for {size} bytes"
            );
            let block = tenant.allocate(&mut cache, size, Gauge::Items).unwrap();
            assert!(block.as_ptr().addr().is_multiple_of(BLOCK_ALIGNMENT), "for {size} bytes");
            // SAFETY: the block is ours, and as long as its class says.
            unsafe { block.write_bytes(size as u8, class) };
            blocks.push((block, size));
        }
        let lines: Vec<_> = (1..100)
            .map(|lines| {
                let block = tenant.allocate_lines(&mut cache, lines * LINE_BYTES, Gauge::Index).unwrap();
                assert!(block.as_ptr().addr().is_multiple_of(LINE_BYTES), "for {lines} lines");
                // SAFETY: as above.
                unsafe { block.write_bytes(0xff, lines * LINE_BYTES) };
                (block, lines * LINE_BYTES)
            })
            .collect();
        let expected: usize = sizes.iter().map(|&size| footprint(size)).sum();
        assert_eq!(tenant.gauge(Gauge::Items), expected as u64);
        for (block, size) in blocks {
            // SAFETY: it is as long as its class, all of it written above.
            let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), size_class(size)) };
            assert!(bytes.iter().all(|byte| *byte == size as u8), "{size} bytes were overwritten");
            // SAFETY: allocated above with this size and gauge.
            unsafe { tenant.free(&mut cache, block, size, Gauge::Items) }
        }
        for (block, size) in lines {
            // SAFETY: allocated above with this size and gauge.
            unsafe { tenant.free_lines(&mut cache, block, size, Gauge::Index) }
        }
        assert_eq!((tenant.gauge(Gauge::Items), tenant.gauge(Gauge::Index)), (0, 0));
    }

    #[test]
    fn it_says_who_it_is() {
        let version = version();
        let name = version.split(' ').next().unwrap();
        #[cfg(feature = "alloc-jemalloc")]
        assert_eq!(name, "jemalloc");
        #[cfg(feature = "alloc-mimalloc")]
        assert_eq!(name, "mimalloc");
        #[cfg(feature = "alloc-system")]
        assert!(["glibc", "malloc"].contains(&name), "{version}");
        assert!(version.len() > name.len() || name == "malloc", "{version}");
    }
}
