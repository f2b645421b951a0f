//! Bytes that arrive piece by piece: a message whose end has not arrived yet.
//!
//! A short message lies in the heap. A long one has pages of its own, and memory only for what has arrived. It grows
//! without being copied. Its pages come fresh from the system and are unmapped with it.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};

/// Largest size kept in the heap.
const SHORT_BYTES: usize = 64 << 10;
/// Capacity kept for the next message.
const KEPT_BYTES: usize = 4 << 10;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct GrowingBytes {
    /// Empty once there are pages.
    short: Vec<u8>,
    long: Option<Pages>,
}

impl GrowingBytes {
    /// Appends `bytes`. Returns false and changes nothing if out of memory.
    #[must_use]
    pub fn extend(&mut self, bytes: &[u8]) -> bool {
        let needed = self.len() + bytes.len();
        if let Some(pages) = &mut self.long {
            return pages.extend(bytes);
        }
        if needed <= SHORT_BYTES {
            let fits = self.short.try_reserve(bytes.len()).is_ok();
            if fits {
                self.short.extend_from_slice(bytes);
            }
            return fits;
        }
        let Some(mut pages) = Pages::new(needed) else { return false };
        let fits = pages.extend(&self.short) && pages.extend(bytes);
        if fits {
            (self.short, self.long) = (Vec::new(), Some(pages));
        }
        fits
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.long = None;
        if self.short.capacity() > KEPT_BYTES {
            self.short = Vec::new();
        }
        self.short.clear();
    }

    /// Bytes of memory held.
    pub fn held_bytes(&self) -> usize {
        self.long.as_ref().map_or(self.short.capacity(), |pages| pages.len)
    }
}

impl Deref for GrowingBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.long.as_ref().map_or(&self.short, Pages::bytes)
    }
}

/// An anonymous mapping.
#[derive(Debug)]
struct Pages {
    start: NonNull<u8>,
    mapped: usize,
    len: usize,
}

// SAFETY: the mapping is owned by this handle alone.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps room for at least `bytes` bytes.
    fn new(bytes: usize) -> Option<Self> {
        let mapped = bytes.checked_next_power_of_two()?.max(SHORT_BYTES);
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let start = if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast::<u8>()) };
        Some(Self { start: start?, mapped, len: 0 })
    }

    fn extend(&mut self, bytes: &[u8]) -> bool {
        let needed = self.len + bytes.len();
        if needed > self.mapped && !self.grow(needed) {
            return false;
        }
        // SAFETY: the mapping is ours and has room for `needed` bytes; what is appended lies elsewhere.
        unsafe {
            self.start.add(self.len).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        };
        self.len = needed;
        true
    }

    fn grow(&mut self, needed: usize) -> bool {
        let Some(wanted) = needed.checked_next_power_of_two() else { return false };
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: the mapping is ours, of this size, and nothing borrows from it; it may move.
        let moved = unsafe { libc::mremap(start, self.mapped, wanted, libc::MREMAP_MAYMOVE) };
        match NonNull::new(moved.cast::<u8>()) {
            Some(start) if moved != libc::MAP_FAILED => {
                (self.start, self.mapped) = (start, wanted);
                true
            }
            _ => false,
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes have been written; nothing writes while they are borrowed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this size, and nothing uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.mapped) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    const PAGE_BYTES: usize = 4096;

    /// Appends pieces of these sizes. Returns the result and the expected bytes.
    fn grown(pieces: &[usize]) -> (GrowingBytes, Vec<u8>) {
        let (mut bytes, mut expected) = (GrowingBytes::default(), Vec::new());
        for (number, size) in pieces.iter().enumerate() {
            let piece: Vec<u8> = (0..*size).map(|at| (at * 7 + number) as u8).collect();
            assert!(bytes.extend(&piece));
            expected.extend_from_slice(&piece);
            assert_eq!(bytes.len(), expected.len());
        }
        (bytes, expected)
    }

    #[test]
    fn bytes_stay_what_they_were_while_they_grow() {
        for pieces in [
            &[][..],
            &[0],
            &[1, 65_535],
            &[1, 65_535, 1],
            &[100_000],
            &[65_536, 65_536, 500_000, 1, 1_000_000],
        ] {
            let (mut bytes, expected) = grown(pieces);
            assert!(*bytes == expected[..], "{pieces:?}");
            assert!(bytes.held_bytes() >= expected.len());
            bytes.clear();
            assert!(bytes.is_empty() && bytes.held_bytes() <= KEPT_BYTES);
            assert!(bytes.extend(b"next") && *bytes == b"next"[..]);
        }
    }

    #[test]
    fn a_long_one_has_pages_for_what_has_come_of_it() {
        let (bytes, expected) = grown(&[70_000, 2_100_000]);
        let pages = bytes.long.as_ref().unwrap();
        let mut in_memory = vec![0u8; pages.mapped / PAGE_BYTES];
        // SAFETY: the mapping lives, and there is a byte for each of its pages.
        let failed =
            unsafe { libc::mincore(pages.start.as_ptr().cast(), pages.mapped, in_memory.as_mut_ptr()) };
        assert_eq!(failed, 0);
        let held: usize = in_memory.iter().map(|page| usize::from(page & 1)).sum();
        assert_eq!((held, pages.mapped), (expected.len().div_ceil(PAGE_BYTES), 4 << 20));
    }
}
