//! The bytes that the allocator has handed out, counted at each call.
//!
//! jemalloc's own statistics lag: a thread updates them only every 64 KiB. So a peak of a few kilobytes is measured
//! with jemalloc's hooks, which are called at each allocation and each release, in all arenas. They slow the allocator
//! down: speed is measured without them.
//!
//! Invariant: sizes are those of the allocator's size classes, as it records them itself, so allocation and release
//! count the same.

use anyhow::{Result, ensure};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use tikv_jemalloc_sys as sys;

/// Bytes handed out and not yet returned since counting began. Negative if blocks from before were returned.
static ALLOCATED: AtomicI64 = AtomicI64::new(0);
/// The maximum of [`ALLOCATED`] since the peak was reset.
static PEAK: AtomicI64 = AtomicI64::new(0);

/// `hooks_t` of jemalloc's `hook.h`. The arrays of raw arguments are not used.
#[repr(C)]
struct Hooks {
    alloc: extern "C" fn(*mut c_void, c_int, *mut c_void, usize, *mut usize),
    dalloc: extern "C" fn(*mut c_void, c_int, *mut c_void, *mut usize),
    expand: extern "C" fn(*mut c_void, c_int, *mut c_void, usize, usize, usize, *mut usize),
    extra: *mut c_void,
}

fn count(bytes: i64) {
    let allocated = ALLOCATED.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(allocated, Relaxed);
}

fn size_of_block(block: *mut c_void) -> i64 {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the allocator passes only its own live blocks to the hooks.
    i64::try_from(unsafe { sys::sallocx(block, 0) }).unwrap_or(i64::MAX)
}

extern "C" fn on_alloc(_: *mut c_void, _: c_int, block: *mut c_void, _: usize, _: *mut usize) {
    count(size_of_block(block));
}

extern "C" fn on_dalloc(_: *mut c_void, _: c_int, block: *mut c_void, _: *mut usize) {
    count(-size_of_block(block));
}

extern "C" fn on_expand(
    _: *mut c_void,
    _: c_int,
    _: *mut c_void,
    old: usize,
    new: usize,
    _: usize,
    _: *mut usize,
) {
    count(new as i64 - old as i64);
}

/// Starts counting, for the rest of the process. Fails if the program's memory does not come from jemalloc.
pub fn start() -> Result<()> {
    let mut handle: *mut c_void = ptr::null_mut();
    let mut handle_bytes = size_of::<*mut c_void>();
    let mut hooks = Hooks { alloc: on_alloc, dalloc: on_dalloc, expand: on_expand, extra: ptr::null_mut() };
    // SAFETY: the in and out pointers point to locals of the types that this control expects; the hooks are copied, and
    // their functions live as long as the program.
    let error = unsafe {
        sys::mallctl(
            c"experimental.hooks.install".as_ptr(),
            (&raw mut handle).cast(),
            &raw mut handle_bytes,
            (&raw mut hooks).cast(),
            size_of::<Hooks>(),
        )
    };
    ensure!(error == 0 && !handle.is_null(), "the allocator does not accept hooks (error {error})");
    let before = allocated_bytes();
    let probe = std::hint::black_box(vec![0u8; 100_000]);
    let counted = allocated_bytes() - before;
    drop(probe);
    ensure!(counted >= 100_000 && allocated_bytes() == before, "this program's memory is not jemalloc's");
    Ok(())
}

/// Bytes handed out and not returned since [`start`].
pub fn allocated_bytes() -> i64 {
    ALLOCATED.load(Relaxed)
}

/// Resets the peak to what is allocated now.
pub fn forget_peak() {
    PEAK.store(allocated_bytes(), Relaxed);
}

/// The most that was allocated at any time since [`forget_peak`].
pub fn peak_bytes() -> i64 {
    PEAK.load(Relaxed)
}
