//! Output a peer has not taken yet.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};

use kv::PinnedValue;
use sessions::Output;

/// Bytes sent to one peer before the others get their turn.
const TURN_BYTES: usize = 256 << 10;
/// Slices handed to one write.
const SLICES_MAX: usize = 64;
/// Short answers are put together in segments of about so many bytes.
const SEGMENT_BYTES: usize = 16 << 10;

enum Segment {
    Bytes(Vec<u8>),
    Pinned(PinnedValue),
}

impl Segment {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pinned(value) => value,
        }
    }
}

/// Unsent output in order; large values are sent from where they lie.
#[derive(Default)]
pub(crate) struct Backlog {
    segments: VecDeque<Segment>,
    /// Bytes of the first segment already sent.
    sent: usize,
    len: usize,
    /// Bytes of the buffers, sent ones included.
    buffered: usize,
    /// Bytes of pinned values, sent ones included.
    pinned: usize,
    /// When the peer last took something, or the backlog began; ms of the monotonic clock.
    pub(crate) progress_ms: u64,
}

/// What came of an attempt to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The peer takes no more for now.
    Blocked,
    /// The peer may take more, but it has had its turn.
    TurnOver,
}

impl Backlog {
    /// Begun now, and still empty.
    pub(crate) fn begun(now_ms: u64) -> Box<Self> {
        Box::new(Self { progress_ms: now_ms, ..Self::default() })
    }

    /// Unsent bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes held in buffers of our own (pinned values are charged already).
    pub(crate) fn buffered(&self) -> usize {
        self.buffered
    }

    /// Bytes of the large values among them.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        match self.segments.back_mut() {
            Some(Segment::Bytes(last)) if last.len() + bytes.len() <= SEGMENT_BYTES => {
                self.buffered -= last.capacity();
                last.extend_from_slice(bytes);
                self.buffered += last.capacity();
            }
            _ => {
                let bytes = bytes.to_vec();
                self.buffered += bytes.capacity();
                self.segments.push_back(Segment::Bytes(bytes));
            }
        }
    }

    /// Takes over an output with large values in it, from position `from` on; none of them lies before.
    pub(crate) fn push_output(&mut self, out: &mut Output, mut from: usize) {
        let (bytes, pinned) = out.take();
        for (at, value) in pinned {
            self.push_bytes(&bytes[from..at]);
            from = at;
            self.len += value.len();
            self.pinned += value.len();
            self.segments.push_back(Segment::Pinned(value));
        }
        self.push_bytes(&bytes[from..]);
    }

    /// Sends as much as the peer takes.
    pub(crate) fn send(&mut self, socket: &mut impl Write, now_ms: u64) -> io::Result<Sent> {
        let mut turn = TURN_BYTES;
        while self.len > 0 {
            if turn == 0 {
                return Ok(Sent::TurnOver);
            }
            let mut slices = arrayvec::ArrayVec::<IoSlice<'_>, SLICES_MAX>::new();
            let mut offered = 0;
            for (index, segment) in self.segments.iter().take(SLICES_MAX).enumerate() {
                let bytes = &segment.bytes()[if index == 0 { self.sent } else { 0 }..];
                let bytes = &bytes[..bytes.len().min(turn - offered)];
                offered += bytes.len();
                slices.push(IoSlice::new(bytes));
                if offered == turn {
                    break;
                }
            }
            let written = socket.write_vectored(&slices);
            drop(slices);
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.progress_ms = now_ms;
                    self.advance(written);
                    turn -= written;
                    if written < offered {
                        return Ok(Sent::Blocked);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Sent::All)
    }

    fn advance(&mut self, mut written: usize) {
        self.len -= written;
        while let Some(first) = self.segments.front() {
            let left = first.bytes().len() - self.sent;
            if written < left {
                self.sent += written;
                return;
            }
            written -= left;
            self.sent = 0;
            match self.segments.pop_front() {
                Some(Segment::Bytes(bytes)) => self.buffered -= bytes.capacity(),
                Some(Segment::Pinned(value)) => self.pinned -= value.len(),
                None => {}
            }
        }
    }
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
        assert!(backlog.segments.len() < 100 && backlog.buffered() < 2 * backlog.len());
        let mut sent = Vec::new();
        while backlog.send(&mut sent, 7).unwrap() != Sent::All {}
        assert!(sent == b"STORED\r\n".repeat(100_000));
        assert_eq!((backlog.buffered(), backlog.segments.len()), (0, 0));
    }
}
