//! The allocator's control interface: boot options, figures, purging.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use tikv_jemalloc_sys as sys;

/// Boot options of the allocator, read by jemalloc before `main`.
///
/// `cache_oblivious:false`: no padding page on large allocations. `thp` stays with the system's setting; tenants
/// choose huge pages for their own chunks. The rest are the starting values of the design.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static BOOT_OPTIONS: BootOptions = BootOptions(
    c"metadata_thp:disabled,background_thread:true,cache_oblivious:false,dirty_decay_ms:5000,muzzy_decay_ms:0,narenas:2"
        .as_ptr(),
);

/// A C string the allocator reads at boot.
#[repr(transparent)]
pub struct BootOptions(*const c_char);

// SAFETY: the pointer is to a static string that nothing writes.
unsafe impl Sync for BootOptions {}

/// A control call failed: its name and errno.
#[derive(Debug, thiserror::Error)]
#[error("allocator control {name} failed with errno {errno}")]
pub struct ControlError {
    /// The control's name.
    pub name: String,
    /// What it answered.
    pub errno: i32,
}

/// Reads a control of type `T`.
pub(crate) fn read<T: Copy + Default>(name: &CStr) -> Result<T, ControlError> {
    let mut value = T::default();
    let mut length = size_of::<T>();
    // SAFETY: the out pointer and its length describe `value`; a type of another size makes the call fail with EINVAL.
    let errno = unsafe {
        sys::mallctl(name.as_ptr(), (&raw mut value).cast::<c_void>(), &raw mut length, ptr::null_mut(), 0)
    };
    check(name, errno).map(|()| value)
}

/// Writes a control of type `T`.
pub(crate) fn write<T: Copy>(name: &CStr, mut value: T) -> Result<(), ControlError> {
    // SAFETY: the in pointer and its length describe `value`; a type of another size makes the call fail with EINVAL.
    let errno = unsafe {
        sys::mallctl(
            name.as_ptr(),
            ptr::null_mut(),
            ptr::null_mut(),
            (&raw mut value).cast::<c_void>(),
            size_of::<T>(),
        )
    };
    check(name, errno)
}

/// Runs a control that takes and gives nothing.
pub(crate) fn run(name: &CStr) -> Result<(), ControlError> {
    // SAFETY: null pointers with zero lengths mean that nothing is read or written.
    let errno = unsafe { sys::mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0) };
    check(name, errno)
}

fn check(name: &CStr, errno: i32) -> Result<(), ControlError> {
    if errno == 0 { Ok(()) } else { Err(ControlError { name: name.to_string_lossy().into_owned(), errno }) }
}

/// The size the allocator hands out for `size` bytes.
pub fn usable_size(size: usize) -> usize {
    // SAFETY: nallocx only computes; it needs a non-zero size.
    unsafe { sys::nallocx(size.max(1), 0) }
}

/// Brings the allocator's figures up to date. Walks all arenas: call it on events, not per request.
pub fn refresh() {
    let _ = write(c"epoch", 1u64);
}

/// Makes an arena with its own extent hooks.
pub(crate) fn create_arena(hooks: *mut sys::extent_hooks_t) -> Result<u32, ControlError> {
    let (mut index, mut length, mut hooks) = (0u32, size_of::<u32>(), hooks);
    // SAFETY: in and out pointers describe locals of the types this control documents; the hooks outlive the arena,
    // which owns them.
    let errno = unsafe {
        sys::mallctl(
            c"arenas.create".as_ptr(),
            (&raw mut index).cast(),
            &raw mut length,
            (&raw mut hooks).cast(),
            size_of_val(&hooks),
        )
    };
    check(c"arenas.create", errno).map(|()| index)
}
