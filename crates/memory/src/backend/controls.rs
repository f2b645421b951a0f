//! jemalloc's control interface (`mallctl`), whether jemalloc is linked or preloaded.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, null_mut};

use super::ControlError;

/// The only function of the interface.
pub(super) type Call =
    unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;

/// A jemalloc and its control interface.
#[derive(Clone, Copy)]
pub(super) struct Controls {
    call: Call,
    /// The environment variable from which it reads options when the process starts.
    pub(super) variable: &'static str,
}

impl Controls {
    /// # Safety
    /// `call` is jemalloc's `mallctl`.
    pub(super) const unsafe fn new(call: Call, variable: &'static str) -> Self {
        Self { call, variable }
    }

    /// Reads a control of type `T`.
    pub(super) fn read<T: Copy + Default>(self, name: &CStr) -> Result<T, ControlError> {
        let mut value = T::default();
        let mut length = size_of::<T>();
        // SAFETY: the out pointer and its length describe `value`; a type of another size makes the call fail with
        // EINVAL.
        let errno = unsafe {
            (self.call)(name.as_ptr(), (&raw mut value).cast::<c_void>(), &raw mut length, null_mut(), 0)
        };
        check(name, errno).map(|()| value)
    }

    /// Reads a control whose value is a static string.
    pub(super) fn read_text(self, name: &CStr) -> Result<String, ControlError> {
        let mut text: *const c_char = ptr::null();
        let mut length = size_of_val(&text);
        // SAFETY: out pointer and length describe the local, which becomes a pointer to a static string.
        let errno = unsafe {
            (self.call)(name.as_ptr(), (&raw mut text).cast::<c_void>(), &raw mut length, null_mut(), 0)
        };
        check(name, errno)?;
        if text.is_null() {
            return Ok(String::new());
        }
        // SAFETY: a static string, see above.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Writes a control of type `T`.
    pub(super) fn write<T: Copy>(self, name: &CStr, mut value: T) -> Result<(), ControlError> {
        // SAFETY: the in pointer and its length describe `value`; a type of another size makes the call fail with
        // EINVAL.
        let errno = unsafe {
            (self.call)(
                name.as_ptr(),
                null_mut(),
                null_mut(),
                (&raw mut value).cast::<c_void>(),
                size_of::<T>(),
            )
        };
        check(name, errno)
    }

    /// Runs a control that takes a string, such as a file name.
    pub(super) fn write_text(self, name: &CStr, text: &CStr) -> Result<(), ControlError> {
        self.write(name, text.as_ptr())
    }

    /// Runs a control without input and output.
    pub(super) fn run(self, name: &CStr) -> Result<(), ControlError> {
        // SAFETY: null pointers with zero lengths mean that nothing is read or written.
        let errno = unsafe { (self.call)(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
        check(name, errno)
    }

    /// Updates the figures. Walks all arenas.
    pub(super) fn refresh(self) {
        let _ = self.write(c"epoch", 1u64);
    }

    /// Its version: "5.3.1-0-g81034ce1" names the commit of the release behind it.
    pub(super) fn version(self) -> String {
        let version = self.read_text(c"version").unwrap_or_default();
        match version.split('-').next() {
            Some(number) if !number.is_empty() => number.to_owned(),
            _ => "of unknown version".to_owned(),
        }
    }
}

/// The control `group.index.name`.
pub(super) fn numbered(group: &str, index: u32, name: &str) -> CString {
    CString::new(format!("{group}.{index}.{name}")).unwrap_or_default()
}

fn check(name: &CStr, errno: i32) -> Result<(), ControlError> {
    if errno == 0 { Ok(()) } else { Err(ControlError { name: name.to_string_lossy().into_owned(), errno }) }
}
