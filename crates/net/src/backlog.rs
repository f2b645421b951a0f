//! Output that a peer has not taken yet.

use std::io::{self, Write};

use kv::PinnedValue;
use sessions::Output;
use wire::WriteQueue;

use crate::write::{Written, write_slices};

/// Bytes sent to one peer before others get their turn.
const TURN_BYTES: usize = 256 << 10;
/// Short answers are gathered into buffers of about this many bytes.
const SEGMENT_BYTES: usize = 16 << 10;

/// Unsent output in order; large values are sent from item memory without a copy.
#[derive(Default)]
pub(crate) struct Backlog {
    queue: WriteQueue<PinnedValue, SEGMENT_BYTES>,
    /// When the peer last took bytes, or the backlog began; ms of the monotonic clock.
    pub(crate) progress_ms: u64,
}

impl Backlog {
    /// Starts an empty backlog at this time.
    pub(crate) fn begun(now_ms: u64) -> Box<Self> {
        Box::new(Self { progress_ms: now_ms, ..Self::default() })
    }

    /// Unsent bytes.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes held in buffers of our own (pinned values are charged already).
    pub(crate) fn buffered(&self) -> usize {
        self.queue.owned_bytes()
    }

    /// Unsent bytes that are large values.
    pub(crate) fn pinned(&self) -> usize {
        self.queue.shared_bytes()
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        self.queue.append(bytes);
        self.queue.publish();
    }

    /// Takes over an output with large values, from position `from` on; no large value lies before it.
    pub(crate) fn push_output(&mut self, out: &mut Output, mut from: usize) {
        let (bytes, pinned) = out.take();
        for (at, value) in pinned {
            self.queue.append(&bytes[from..at]);
            from = at;
            self.queue.push_shared(value);
        }
        self.queue.append(&bytes[from..]);
        self.queue.publish();
    }

    /// Sends as much as the peer takes.
    pub(crate) fn send(&mut self, socket: &mut impl Write, now_ms: u64) -> io::Result<Sent> {
        let mut left = TURN_BYTES;
        loop {
            if self.queue.is_empty() {
                return Ok(Sent::All);
            }
            if left == 0 {
                return Ok(Sent::TurnOver);
            }
            let Written { taken, offered } = write_slices(socket, self.queue.slices(), left)?;
            self.queue.sent(taken);
            left -= taken;
            if taken > 0 {
                self.progress_ms = now_ms;
            }
            if taken < offered {
                return Ok(Sent::Blocked);
            }
        }
    }
}

/// The result of an attempt to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The peer takes no more for now.
    Blocked,
    /// The peer may take more, but it has had its turn.
    TurnOver,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, blocking after each.
    struct Trickle(Vec<u8>);
    impl Write for Trickle {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn partial_writes_resume_in_the_middle() {
        let mut backlog = Backlog::default();
        backlog.push_bytes(b"hello ");
        backlog.push_bytes(b"wide world");
        let mut socket = Trickle(Vec::new());
        let mut rounds = 0;
        while backlog.send(&mut socket, 7).unwrap() == Sent::Blocked {
            rounds += 1;
            assert_eq!(backlog.len() + socket.0.len(), 16);
        }
        assert_eq!(
            (socket.0.as_slice(), backlog.len(), backlog.progress_ms),
            (&b"hello wide world"[..], 0, 7)
        );
        assert_eq!(rounds, 5);
        assert_eq!(backlog.buffered(), 0);
    }

    #[test]
    fn short_answers_share_a_buffer() {
        let mut backlog = Backlog::default();
        for _ in 0..100_000 {
            backlog.push_bytes(b"STORED\r\n");
        }
        assert_eq!(backlog.len(), 800_000);
        assert!(backlog.queue.slices().count() < 100 && backlog.buffered() < 2 * backlog.len());
        let mut sent = Vec::new();
        while backlog.send(&mut sent, 7).unwrap() != Sent::All {}
        assert!(sent == b"STORED\r\n".repeat(100_000));
        assert_eq!(backlog.buffered(), 0);
    }
}
