//! Outgoing answers: plain bytes, with large values in between that are sent from item memory without a copy.

use kv::{Bucket, Document, Entry, Key, KvError, LargeItem, NodeContext, PinnedValue, Place, Unavailable};
use wire::snappy;

use super::LARGE_VALUE;
use super::aside::INFLATED_IN_PLACE_BYTES;
use super::counter::NUMBER_MAX;

/// The output of one wake-up, one connection after another.
#[derive(Default)]
pub struct Output {
    bytes: Vec<u8>,
    /// Large values, each with the position in `bytes` that it precedes.
    pinned: Vec<(usize, PinnedValue)>,
    pinned_bytes: usize,
    /// Values of the request being executed, to be inflated after the lock is released.
    compressed: Vec<Compressed>,
    /// Memory to inflate the next one into, if already reserved.
    room: Option<LargeItem>,
}

/// A long value that must still be inflated.
struct Compressed {
    at: usize,
    block: Block,
    inflated_len: usize,
}

enum Block {
    Pinned(PinnedValue),
    Copied(Vec<u8>),
}

impl Output {
    /// Creates an output with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity), ..Self::default() }
    }

    /// Appends bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a number in decimal.
    pub fn decimal(&mut self, number: u64) {
        // Flags are almost always 0.
        if number < 10 {
            return self.bytes.push(b'0' + number as u8);
        }
        let (digits, at) = decimal_digits(number);
        self.bytes(&digits[at..]);
    }

    /// Appends a large value without copying it.
    pub fn pinned(&mut self, value: PinnedValue) {
        self.pinned_bytes += value.len();
        self.pinned.push((self.bytes.len(), value));
    }

    /// Appends the value of a document as it is stored: pinned if it is large, else copied.
    #[inline]
    pub fn stored(&mut self, document: &Document<'_>) {
        match document.pin() {
            Some(pinned) => self.pinned(pinned),
            None => self.bytes(document.stored()),
        }
    }

    /// Appends the value of a document for a client that accepts no compressed values. A value that inflates to more
    /// than [`LARGE_VALUE`] is complete only after [`Output::inflate`].
    #[inline]
    pub fn value(&mut self, document: &Document<'_>) {
        if document.is_compressed() { self.compressed(document) } else { self.stored(document) }
    }

    fn compressed(&mut self, document: &Document<'_>) {
        let (at, inflated_len) = (self.bytes.len(), document.value_len());
        if inflated_len <= LARGE_VALUE {
            self.bytes.resize(at + inflated_len, 0);
            return snappy::inflate(document.stored(), &mut self.bytes[at..]);
        }
        let block = match document.pin() {
            Some(pinned) => Block::Pinned(pinned),
            None => Block::Copied(document.stored().to_vec()),
        };
        self.compressed.push(Compressed { at, block, inflated_len });
    }

    /// As [`Bucket::with_entry`], for callers that modify a document and then answer with its value. Before anything is
    /// changed, it ensures that the value is in memory and, if the client does not accept compressed values
    /// (`takes_compressed`), that there is room to inflate it.
    pub(super) fn with_entry<R>(
        &mut self,
        takes_compressed: bool,
        (bucket, key, at): (&Bucket, Key<'_>, Place),
        cx: &mut NodeContext,
        mut f: impl FnMut(&mut Entry<'_>, &mut Self) -> Result<R, KvError>,
    ) -> Result<Result<R, KvError>, Unavailable> {
        let may_take_long = cx.may_take_long;
        let takes_too_long = |wanted| !may_take_long && wanted > INFLATED_IN_PLACE_BYTES;
        let result = loop {
            let looked = bucket.with_entry(cx, key, at, |entry| {
                let wanted = match entry.document() {
                    Some(document) if !document.is_resident() => {
                        entry.glance();
                        return Ok(Err(KvError::NotResident));
                    }
                    Some(document) if !takes_compressed && document.is_compressed() => document.value_len(),
                    _ => 0,
                };
                if takes_too_long(wanted) {
                    entry.glance();
                    return Ok(Err(KvError::TakesLong));
                }
                if wanted <= LARGE_VALUE || self.room.as_ref().is_some_and(|room| room.len() == wanted) {
                    Ok(f(entry, self))
                } else {
                    entry.glance();
                    Err(wanted)
                }
            });
            match looked {
                Ok(Ok(result)) => break Ok(result),
                Err(why) => break Err(why),
                Ok(Err(wanted)) => {
                    // First release memory that was reserved for another length.
                    self.room = None;
                    match bucket.reserve_inflated(cx, wanted) {
                        Ok(room) => self.room = Some(room),
                        Err(error) => break Ok(Err(error)),
                    }
                }
            }
        };
        // Reserved memory that is not needed must not be used for another value.
        if !self.has_compressed() {
            self.room = None;
        }
        if matches!(result, Ok(Err(KvError::NotResident))) {
            return Err(bucket.note_missed());
        }
        if matches!(result, Ok(Err(KvError::TakesLong))) {
            return Err(Unavailable::TakesLong);
        }
        result
    }

    /// Returns true if [`Output::inflate`] has something to do.
    #[inline]
    pub(super) fn has_compressed(&self) -> bool {
        !self.compressed.is_empty()
    }

    /// Inflates the long values that the request just executed has appended, within the bucket's budget.
    #[cold]
    pub(super) fn inflate(&mut self, bucket: &Bucket, cx: &mut NodeContext) -> Result<(), KvError> {
        let inflated_bytes: usize = self.compressed.iter().map(|value| value.inflated_len).sum();
        // Nothing was changed: `with_entry` checks the length before a change.
        if !cx.may_take_long && inflated_bytes > INFLATED_IN_PLACE_BYTES {
            return Err(KvError::TakesLong);
        }
        for Compressed { at, block, inflated_len } in std::mem::take(&mut self.compressed) {
            let block = match &block {
                Block::Pinned(pinned) => pinned,
                Block::Copied(bytes) => bytes.as_slice(),
            };
            let room = match self.room.take() {
                Some(room) => room,
                None => bucket.reserve_inflated(cx, inflated_len)?,
            };
            let value = Bucket::inflate_large(block, room);
            self.pinned_bytes += value.len();
            self.pinned.push((at, value));
        }
        Ok(())
    }

    /// The current position, to undo later output with [`Output::truncate`].
    pub fn mark(&self) -> usize {
        self.bytes.len()
    }

    /// Removes what was written since `mark`; other bytes of the answer always precede a value.
    pub fn truncate(&mut self, mark: usize) {
        while let Some((_, value)) = self.pinned.pop_if(|(at, _)| *at > mark) {
            self.pinned_bytes -= value.len();
        }
        self.compressed.clear();
        self.bytes.truncate(mark);
    }

    /// Overwrites earlier bytes, such as an answer's length, which is known only at its end.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Number of bytes to send, pinned ones included.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() + self.pinned_bytes
    }

    /// Returns true if there is nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if it contains large values.
    #[inline]
    pub fn has_pinned(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// The plain bytes.
    #[inline]
    pub fn plain(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends another output.
    pub fn append(&mut self, mut other: Self) {
        let from = self.bytes.len();
        let (bytes, pinned) = other.take();
        self.bytes.extend_from_slice(&bytes);
        for (at, value) in pinned {
            self.pinned_bytes += value.len();
            self.pinned.push((from + at, value));
        }
    }

    /// Takes the plain bytes, and the large values with their positions. The buffer is left empty.
    pub fn take(&mut self) -> (Vec<u8>, Vec<(usize, PinnedValue)>) {
        self.pinned_bytes = 0;
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.pinned))
    }

    /// Clears the output but keeps its capacity.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.pinned.clear();
        self.pinned_bytes = 0;
    }
}

/// The decimal digits of a number, at the end of the array, and where they begin.
#[inline]
pub(super) fn decimal_digits(number: u64) -> ([u8; NUMBER_MAX], usize) {
    let (mut digits, mut at, mut rest) = ([0; NUMBER_MAX], NUMBER_MAX, number);
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return (digits, at);
        }
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
