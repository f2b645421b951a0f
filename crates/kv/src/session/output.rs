//! Answers on their way out: plain bytes, with large values in between that are sent from where they lie.

use crate::{Document, PinnedValue};

/// The output of one wake-up, of one connection after another.
#[derive(Default)]
pub struct Output {
    bytes: Vec<u8>,
    /// Large values and the position in `bytes` they come before.
    pinned: Vec<(usize, PinnedValue)>,
    pinned_bytes: usize,
}

impl Output {
    /// With room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity), pinned: Vec::new(), pinned_bytes: 0 }
    }

    /// Appends bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a number in decimal.
    pub fn decimal(&mut self, number: u64) {
        let (mut digits, mut at, mut rest) = ([0u8; 20], 20, number);
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.bytes(&digits[at..]);
    }

    /// Appends a large value without copying it.
    pub fn pinned(&mut self, value: PinnedValue) {
        self.pinned_bytes += value.len();
        self.pinned.push((self.bytes.len(), value));
    }

    /// Appends the value of a document: pinned if it is large, else copied.
    #[inline]
    pub fn value(&mut self, document: &Document<'_>) {
        match document.pin() {
            Some(pinned) => self.pinned(pinned),
            None => self.bytes(document.value()),
        }
    }

    /// The position now, to take back with [`Output::truncate`] what is written from here on.
    pub fn mark(&self) -> usize {
        self.bytes.len()
    }

    /// Takes back plain bytes written since `mark`.
    pub fn truncate(&mut self, mark: usize) {
        debug_assert!(self.pinned.last().is_none_or(|(at, _)| *at <= mark), "a pinned value would move");
        self.bytes.truncate(mark);
    }

    /// Changes bytes written before: an answer's length, say, known only at its end.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// All bytes to be sent, pinned ones included.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.pinned_bytes
    }

    /// Whether there is nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether large values are among it.
    #[inline]
    pub fn has_pinned(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// The plain bytes.
    #[inline]
    pub fn plain(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes everything out: the plain bytes and the large values with their positions. The buffer is left empty.
    pub fn take(&mut self) -> (Vec<u8>, Vec<(usize, PinnedValue)>) {
        self.pinned_bytes = 0;
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.pinned))
    }

    /// Forgets everything, keeping the room.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pinned.clear();
        self.pinned_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal() {
        let mut out = Output::default();
        for number in [0, 7, 10, u64::MAX] {
            out.decimal(number);
            out.bytes(b" ");
        }
        assert_eq!(out.plain(), b"0 7 10 18446744073709551615 ");
    }
}
