//! Bytes on their way to a peer, for every protocol.
//!
//! ```text
//!    sent and gone | visible: may be sent | held: may still be taken back
//! ```
//!
//! Small messages are copied behind one another; large ones are shared, with item memory or with other sessions, and
//! sent from where they are. Appended bytes are held until [`WriteQueue::publish`].

use std::collections::VecDeque;
use std::ops::Deref;

/// The last buffer, once it is emptied, is kept for the next bytes up to this size.
const SPARE_BYTES_MAX: usize = 4096;

/// A queue whose own buffers have about `PIECE_BYTES`, so that what is sent is freed as it goes. `S` is what large
/// messages are shared as.
#[derive(Debug)]
pub struct WriteQueue<S, const PIECE_BYTES: usize> {
    pieces: VecDeque<Piece<S>>,
    /// Bytes of the first piece that are sent.
    start: usize,
    visible: usize,
    held: usize,
    /// Memory of the own pieces, and bytes of the shared ones; sent bytes of the first piece included.
    owned_bytes: usize,
    shared_bytes: usize,
    spare: Vec<u8>,
}

#[derive(Debug)]
enum Piece<S> {
    Owned(Vec<u8>),
    Shared(S),
}

impl<S> Piece<S>
where
    S: Deref<Target: AsRef<[u8]>>,
{
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Shared(shared) => (**shared).as_ref(),
        }
    }
}

impl<S, const PIECE_BYTES: usize> Default for WriteQueue<S, PIECE_BYTES> {
    fn default() -> Self {
        Self {
            pieces: VecDeque::new(),
            start: 0,
            visible: 0,
            held: 0,
            owned_bytes: 0,
            shared_bytes: 0,
            spare: Vec::new(),
        }
    }
}

impl<S, const PIECE_BYTES: usize> WriteQueue<S, PIECE_BYTES>
where
    S: Deref<Target: AsRef<[u8]>>,
{
    /// Bytes that may be sent.
    #[inline]
    pub fn len(&self) -> usize {
        self.visible
    }

    /// Returns true if there is nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.visible == 0
    }

    /// Bytes that may be sent or are held.
    #[inline]
    pub fn backlog_bytes(&self) -> usize {
        self.visible + self.held
    }

    /// Bytes that are held.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Memory of the queue's own buffers that are not sent to their end.
    #[inline]
    pub fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Bytes of shared messages that are not sent to their end.
    #[inline]
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    /// These messages.
    pub fn shared(&self) -> impl Iterator<Item = &S> {
        self.pieces
            .iter()
            .filter_map(|piece| if let Piece::Shared(shared) = piece { Some(shared) } else { None })
    }

    /// What may be sent, piece by piece.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut left = self.visible;
        let mut skip = self.start;
        let visible = self.pieces.iter().map_while(move |piece| {
            let bytes = piece.bytes().get(std::mem::take(&mut skip)..).unwrap_or_default();
            let bytes = bytes.get(..left).unwrap_or(bytes);
            let any_left = left > 0;
            left -= bytes.len();
            any_left.then_some(bytes)
        });
        visible.filter(|bytes| !bytes.is_empty())
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
            match self.pieces.pop_front() {
                Some(Piece::Owned(mut bytes)) => {
                    self.owned_bytes -= bytes.capacity();
                    let is_last = self.pieces.is_empty();
                    if is_last && bytes.capacity() <= SPARE_BYTES_MAX {
                        bytes.clear();
                        self.spare = bytes;
                    }
                }
                Some(Piece::Shared(shared)) => self.shared_bytes -= (*shared).as_ref().len(),
                None => {}
            }
        }
        self.start += left;
    }

    /// Appends what `write` appends to the buffer it is given; held.
    #[inline]
    pub fn write<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.write_within(PIECE_BYTES - 1, write)
    }

    /// Appends bytes; held.
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) {
        self.write_within(PIECE_BYTES.saturating_sub(bytes.len()), |tail| tail.extend_from_slice(bytes));
    }

    /// Appends to the last piece if it has at most `most` bytes, else to a new one.
    #[inline]
    fn write_within<R>(&mut self, most: usize, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        if !matches!(self.pieces.back(), Some(Piece::Owned(bytes)) if bytes.len() <= most) {
            let spare = std::mem::take(&mut self.spare);
            self.owned_bytes += spare.capacity();
            self.pieces.push_back(Piece::Owned(spare));
        }
        let Some(Piece::Owned(tail)) = self.pieces.back_mut() else { unreachable!("pushed above") };
        let (length, capacity) = (tail.len(), tail.capacity());
        let result = write(tail);
        self.held += tail.len() - length;
        self.owned_bytes += tail.capacity() - capacity;
        result
    }

    /// Appends a message without copying it; held.
    pub fn push_shared(&mut self, shared: S) {
        let length = (*shared).as_ref().len();
        self.held += length;
        self.shared_bytes += length;
        self.pieces.push_back(Piece::Shared(shared));
    }

    /// What is held may be sent from now on. Returns true if there was anything.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let any = self.held > 0;
        self.visible += std::mem::take(&mut self.held);
        any
    }

    /// Takes back what is held.
    pub fn take_held(&mut self) -> Vec<u8> {
        let mut pieces = Vec::new();
        let mut left = std::mem::take(&mut self.held);
        while left > 0 {
            let Some(piece) = self.pieces.pop_back() else { break };
            match &piece {
                Piece::Owned(bytes) => self.owned_bytes -= bytes.capacity(),
                Piece::Shared(shared) => self.shared_bytes -= (**shared).as_ref().len(),
            }
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
                Piece::Shared(shared) => (*shared).as_ref().get(..keep).unwrap_or_default().to_vec(),
            };
            self.owned_bytes += kept.capacity();
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
    use proptest::prelude::*;
    use std::sync::Arc;

    type Queue = WriteQueue<Arc<Vec<u8>>, 64>;

    fn text(queue: &Queue) -> String {
        let bytes: Vec<u8> = queue.slices().flatten().copied().collect();
        assert_eq!(bytes.len(), queue.len());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn held_bytes_are_seen_after_publish() {
        let mut queue = Queue::default();
        queue.append(b"one");
        assert_eq!(text(&queue), "");
        assert!(queue.publish());
        queue.append(b"two");
        assert_eq!(text(&queue), "one");
        queue.sent(2);
        assert_eq!(text(&queue), "e");
        queue.publish();
        assert!(!queue.publish());
        assert_eq!(text(&queue), "etwo");
        queue.sent(4);
        assert!(queue.is_empty());
        queue.append(b"three");
        queue.publish();
        assert_eq!(text(&queue), "three");
    }

    #[test]
    fn held_bytes_can_be_taken_back() {
        let mut queue = Queue::default();
        let big = Arc::new(vec![b'x'; 100]);
        queue.append(b"kept");
        queue.publish();
        queue.sent(1);
        queue.append(b"one");
        queue.push_shared(big.clone());
        queue.append(b"two");
        assert_eq!(Arc::strong_count(&big), 2);
        assert_eq!(queue.take_held(), [b"one", big.as_slice(), b"two"].concat());
        assert_eq!((Arc::strong_count(&big), queue.shared_bytes()), (1, 0));
        assert_eq!(text(&queue), "ept");
        queue.append(b"!");
        queue.publish();
        assert_eq!(text(&queue), "ept!");
        queue.sent(4);
        assert_eq!(queue.owned_bytes(), 0);
        queue.append(b"zz");
        assert_eq!(queue.take_held(), b"zz");
        assert!(queue.is_empty());
    }

    #[test]
    fn short_messages_share_a_buffer() {
        let mut queue = Queue::default();
        for _ in 0..10_000 {
            queue.append(b"STORED\r\n");
            queue.publish();
        }
        assert_eq!(queue.pieces.len(), 10_000 / (64 / 8));
        assert!(queue.owned_bytes() < 2 * queue.len());
        queue.sent(80_000);
        assert_eq!((queue.owned_bytes(), queue.pieces.len()), (0, 0));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append(Vec<u8>),
        Share(Vec<u8>),
        Publish,
        TakeBack,
        Send(usize),
    }

    proptest! {
        /// Beside two plain vectors of what is visible and what is held.
        #[test]
        fn every_byte_is_sent_once_and_in_order(steps in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..80).prop_map(Step::Append),
                prop::collection::vec(any::<u8>(), 1..80).prop_map(Step::Share),
                Just(Step::Publish),
                Just(Step::TakeBack),
                (0usize..100).prop_map(Step::Send),
            ],
            0..60,
        )) {
            let (mut queue, mut visible, mut held) = (Queue::default(), Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Append(bytes) => {
                        queue.append(&bytes);
                        held.extend(bytes);
                    }
                    Step::Share(bytes) => {
                        held.extend(&bytes);
                        queue.push_shared(Arc::new(bytes));
                    }
                    Step::Publish => {
                        prop_assert_eq!(queue.publish(), !held.is_empty());
                        visible.append(&mut held);
                    }
                    Step::TakeBack => prop_assert_eq!(queue.take_held(), std::mem::take(&mut held)),
                    Step::Send(most) => {
                        let bytes = most.min(visible.len());
                        queue.sent(bytes);
                        visible.drain(..bytes);
                    }
                }
                let seen: Vec<u8> = queue.slices().flatten().copied().collect();
                prop_assert_eq!(&seen, &visible);
                prop_assert_eq!((queue.len(), queue.held_bytes()), (visible.len(), held.len()));
                let owned = queue.pieces.iter().map(|piece| match piece {
                    Piece::Owned(bytes) => bytes.capacity(),
                    Piece::Shared(_) => 0,
                });
                prop_assert_eq!(queue.owned_bytes(), owned.sum::<usize>());
                let shared = queue.shared().map(|shared| shared.len());
                prop_assert_eq!(queue.shared_bytes(), shared.sum::<usize>());
            }
        }
    }
}
