//! The linked jemalloc's control interface, and the options it starts with.

use std::ffi::c_char;

use tikv_jemalloc_sys as sys;

use crate::backend::ControlError;
use crate::backend::controls::Controls;

/// Boot options of the allocator, read by jemalloc before `main`. The table of configuration keys has the same
/// defaults; a test compares them.
///
/// `cache_oblivious:false`: no padding page on large allocations. `thp` keeps the system's setting; tenants choose huge
/// pages for their own chunks. Why these values: decision 0011.
#[unsafe(export_name = "_rjem_malloc_conf")]
static BOOT_OPTIONS: BootOptions = BootOptions(
    c"metadata_thp:disabled,background_thread:true,cache_oblivious:false,dirty_decay_ms:5000,muzzy_decay_ms:0,narenas:2"
        .as_ptr(),
);

/// A C string the allocator reads at boot.
#[repr(transparent)]
struct BootOptions(*const c_char);

// SAFETY: the pointer is to a static string that nothing writes.
unsafe impl Sync for BootOptions {}

/// The linked jemalloc.
// SAFETY: it is its `mallctl`.
pub(super) const CONTROLS: Controls = unsafe { Controls::new(sys::mallctl, "_RJEM_MALLOC_CONF") };

/// Makes an arena with its own extent hooks.
pub(super) fn create_arena(hooks: *mut sys::extent_hooks_t) -> Result<u32, ControlError> {
    let (mut index, mut length, mut hooks) = (0u32, size_of::<u32>(), hooks);
    let name = c"arenas.create";
    // SAFETY: in and out pointers describe locals of the types this control documents; the hooks outlive the arena,
    // which owns them.
    let errno = unsafe {
        sys::mallctl(
            name.as_ptr(),
            (&raw mut index).cast(),
            &raw mut length,
            (&raw mut hooks).cast(),
            size_of_val(&hooks),
        )
    };
    if errno == 0 {
        Ok(index)
    } else {
        Err(ControlError { name: name.to_string_lossy().into_owned(), errno })
    }
}
