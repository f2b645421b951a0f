//! What a session has yet to send.
//!
//! ```text
//!    sent and gone | visible: may be sent | held: of transactions whose log write is not done yet
//! ```
//!
//! Small messages are copied behind each other, large ones are shared between the sessions that get them. Held bytes
//! become visible with [`Output::publish`], or are taken back with [`Output::take_held`] when the write fails.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// Messages from this size on are shared, not copied.
pub const SHARED_BYTES_MIN: usize = 4096;
/// A piece is not appended to beyond this size, so that what is sent is freed as it goes.
const PIECE_BYTES_MAX: usize = 128 * 1024;
/// An emptied buffer up to this size stays with its session.
const SPARE_BYTES_MAX: usize = 4096;

/// The queue of bytes of one session.
#[derive(Debug, Default)]
pub struct Output {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    start: usize,
    visible: usize,
    held: usize,
    spare: Vec<u8>,
}

#[derive(Debug)]
enum Piece {
    Owned(Vec<u8>),
    Shared(Arc<Vec<u8>>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl Output {
    /// Bytes that may be sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.visible
    }

    /// Whether there is nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.visible == 0
    }

    /// Bytes that may be sent or are held.
    #[inline]
    pub fn backlog_bytes(&self) -> usize {
        self.visible + self.held
    }

    /// Memory that it takes; of bytes that others send as well, this one's part.
    pub fn kept_bytes(&self) -> usize {
        let bytes_of = |piece: &Piece| match piece {
            Piece::Owned(bytes) => bytes.capacity(),
            Piece::Shared(bytes) => bytes.len() / Arc::strong_count(bytes),
        };
        self.pieces.iter().map(bytes_of).sum()
    }

    /// Bytes held.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// What may be sent, piece by piece.
    pub fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        let mut left = self.visible;
        let mut skip = self.start;
        self.pieces.iter().map_while(move |piece| {
            let bytes = piece.bytes().get(std::mem::take(&mut skip)..).unwrap_or_default();
            let bytes = bytes.get(..left).unwrap_or(bytes);
            left -= bytes.len();
            (!bytes.is_empty()).then(|| IoSlice::new(bytes))
        })
    }

    /// Forgets `bytes` that were sent, at most what was visible.
    pub fn sent(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.visible, "more was sent than was there");
        let mut left = bytes.min(self.visible);
        self.visible -= left;
        while let Some(first) = self.pieces.front() {
            let length = first.bytes().len() - self.start;
            if left < length {
                break;
            }
            left -= length;
            self.start = 0;
            if let Some(Piece::Owned(mut bytes)) = self.pieces.pop_front()
                && bytes.capacity() <= SPARE_BYTES_MAX
                && bytes.capacity() > self.spare.capacity()
            {
                bytes.clear();
                self.spare = bytes;
            }
        }
        self.start += left;
    }

    /// The buffer to append to; only for [`Self::write`].
    fn tail(&mut self) -> &mut Vec<u8> {
        let fits = matches!(self.pieces.back(), Some(Piece::Owned(bytes)) if bytes.len() < PIECE_BYTES_MAX);
        if !fits {
            self.pieces.push_back(Piece::Owned(std::mem::take(&mut self.spare)));
        }
        match self.pieces.back_mut() {
            Some(Piece::Owned(bytes)) => bytes,
            _ => &mut self.spare,
        }
    }

    /// Appends what `write` appends to the buffer it is given; held.
    #[inline]
    pub fn write<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let tail = self.tail();
        let before = tail.len();
        let result = write(tail);
        let added = tail.len() - before;
        self.held += added;
        result
    }

    /// Appends bytes; held.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) {
        self.write(|tail| tail.extend_from_slice(bytes));
    }

    /// Appends bytes that others send as well; held.
    pub fn append_shared(&mut self, bytes: Arc<Vec<u8>>) {
        if bytes.len() < SHARED_BYTES_MIN {
            return self.append(&bytes);
        }
        self.held += bytes.len();
        self.pieces.push_back(Piece::Shared(bytes));
    }

    /// What is held may be sent from now on. Tells whether there was anything.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let any = self.held > 0;
        self.visible += std::mem::take(&mut self.held);
        any
    }

    /// Takes what is held back.
    pub fn take_held(&mut self) -> Vec<u8> {
        let mut pieces = Vec::new();
        let mut left = std::mem::take(&mut self.held);
        while left > 0 {
            let Some(piece) = self.pieces.pop_back() else { break };
            let length = piece.bytes().len();
            if length <= left {
                left -= length;
                pieces.push(piece.bytes().to_vec());
                continue;
            }
            let keep = length - left;
            pieces.push(piece.bytes().get(keep..).unwrap_or_default().to_vec());
            let kept = match piece {
                Piece::Owned(mut bytes) => {
                    bytes.truncate(keep);
                    bytes
                }
                Piece::Shared(bytes) => bytes.get(..keep).unwrap_or_default().to_vec(),
            };
            self.pieces.push_back(Piece::Owned(kept));
            left = 0;
        }
        if self.pieces.is_empty() {
            self.start = 0;
        }
        pieces.reverse();
        pieces.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: &Output) -> String {
        let bytes: Vec<u8> = output.slices().flat_map(|slice| slice.to_vec()).collect();
        assert_eq!(bytes.len(), output.len());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn held_bytes_are_seen_after_publish() {
        let mut output = Output::default();
        output.append(b"one");
        assert_eq!(text(&output), "");
        assert!(output.publish());
        output.append(b"two");
        assert_eq!(text(&output), "one");
        output.sent(2);
        assert_eq!(text(&output), "e");
        output.publish();
        assert!(!output.publish());
        assert_eq!(text(&output), "etwo");
        output.sent(4);
        assert!(output.is_empty());
        output.append(b"three");
        output.publish();
        assert_eq!(text(&output), "three");
    }

    #[test]
    fn held_bytes_can_be_taken_back() {
        let mut output = Output::default();
        let big = Arc::new(vec![b'x'; SHARED_BYTES_MIN]);
        output.append(b"kept");
        output.publish();
        output.sent(1);
        output.append(b"one");
        output.append_shared(big.clone());
        output.append(b"two");
        assert_eq!(Arc::strong_count(&big), 2);
        assert!((SHARED_BYTES_MIN / 2..SHARED_BYTES_MIN).contains(&output.kept_bytes()));
        assert_eq!(output.take_held(), [b"one", big.as_slice(), b"two"].concat());
        assert_eq!(Arc::strong_count(&big), 1);
        assert_eq!(text(&output), "ept");
        output.append(b"!");
        output.publish();
        assert_eq!(text(&output), "ept!");
        output.sent(4);
        assert_eq!(output.kept_bytes(), 0);
        output.append(b"zz");
        assert_eq!(output.take_held(), b"zz");
        assert!(output.is_empty());
    }
}
