//! The single buffer of a thread that writes or replays.

use crate::File;
use std::io;

/// A buffer for any number of shards, one after another. It takes no memory before its first use, and little while
/// little is written.
#[derive(Debug)]
pub struct Buffer {
    /// When writing, what is not yet in the file; when reading, a piece of a file.
    pub(super) bytes: Vec<u8>,
    capacity: usize,
    /// What it may hold now.
    limit: usize,
}

/// Smaller ones could not hold a header of each kind.
const CAPACITY_MIN: usize = 4096;
/// Enough for a flush of some hundred small items.
const LIMIT_FIRST: usize = 64 << 10;

impl Buffer {
    /// The default size.
    pub const BYTES: usize = 1 << 20;

    /// Creates a buffer of `bytes` bytes at most.
    pub fn new(bytes: usize) -> Self {
        let capacity = bytes.max(CAPACITY_MIN);
        Self { bytes: Vec::new(), capacity, limit: capacity.min(LIMIT_FIRST) }
    }

    /// Bytes that still fit.
    pub(super) fn free(&self) -> usize {
        self.limit - self.bytes.len().min(self.limit)
    }

    /// Bytes that fit at most when it is empty.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of memory it takes now.
    pub fn held_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Takes the memory for what may be written before it is full.
    pub(super) fn hold(&mut self) {
        self.bytes.reserve_exact(self.free());
    }

    /// Was full, and is empty now: from here on it holds as much as it may.
    pub(super) fn grow(&mut self) {
        if self.limit < self.capacity {
            (self.bytes, self.limit) = (Vec::new(), self.capacity);
            self.hold();
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new(Self::BYTES)
    }
}

/// A file read from front to back through a buffer.
pub(super) struct Window<'a, F> {
    file: &'a F,
    bytes: &'a mut Vec<u8>,
    capacity: usize,
    /// Offset in the file of the buffer's first byte.
    start: u64,
    /// Nothing at or beyond it is read.
    pub end: u64,
}

impl<'a, F: File> Window<'a, F> {
    pub fn new(file: &'a F, buffer: &'a mut Buffer, end: u64) -> Self {
        buffer.bytes.clear();
        Self { file, capacity: buffer.capacity, bytes: &mut buffer.bytes, start: 0, end }
    }

    pub fn file(&self) -> &'a F {
        self.file
    }

    /// The `length` bytes from `offset` on; fewer if the end or the buffer's capacity comes first.
    pub fn at(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let there = self.end.saturating_sub(offset);
        let length = length.min(self.capacity).min(usize::try_from(there).unwrap_or(usize::MAX));
        let within = offset.checked_sub(self.start).and_then(|within| usize::try_from(within).ok());
        let within = match within {
            Some(within) if within.saturating_add(length) <= self.bytes.len() => within,
            _ => {
                self.start = offset;
                let wanted = self.capacity.min(usize::try_from(there).unwrap_or(usize::MAX));
                read_up_to(self.file, offset, wanted, self.bytes)?;
                0
            }
        };
        let there = self.bytes.get(within..).unwrap_or_default();
        Ok(there.get(..length).unwrap_or(there))
    }

    /// The checksum of `bytes` bytes from `offset` on; `None` if the file ends before.
    pub fn checksum(&mut self, mut sum: u32, mut offset: u64, bytes: u64) -> io::Result<Option<u32>> {
        let mut left = bytes;
        while left > 0 {
            let piece = self.at(offset, usize::try_from(left).unwrap_or(usize::MAX))?;
            if piece.is_empty() {
                return Ok(None);
            }
            sum = super::format::checksum(sum, piece);
            offset += piece.len() as u64;
            left -= piece.len() as u64;
        }
        Ok(Some(sum))
    }
}

/// Fills `bytes` with `length` bytes of the file from `offset` on, fewer if the file ends before.
pub(super) fn read_up_to<F: File>(
    file: &F,
    offset: u64,
    length: usize,
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    // Not cleared first: zeros are written only where the buffer was never used.
    bytes.resize(length, 0);
    let filled = fill(file, offset, bytes)?;
    bytes.truncate(filled);
    Ok(())
}

/// Fills a place with what is in the file from `offset` on. Returns how many bytes: fewer if the file ends before.
pub(super) fn fill<F: File>(file: &F, offset: u64, place: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = place.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
