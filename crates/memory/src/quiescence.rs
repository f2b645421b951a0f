//! When a block that peeking threads may still read can be freed.
//!
//! Prefetching reads index lines before it holds the vBucket's lock. A thread does so only between
//! [`Quiescence::enter`] and [`Quiescence::leave`] (once per batch). A thread that replaces a block publishes the new
//! pointer, asks for a [`Stamp`], and frees the old block once [`Quiescence::has_passed`] returns true. Then no thread
//! can still be reading it.
//!
//! ORDERING: a store-load race (Dekker). The peeking thread announces itself, fences, then loads the pointer; the
//! replacing thread stores the pointer, fences, then looks for announcements. At least one of the two sees the other.
//! The loom tests below and in `tests/slot_protocol.rs` run every interleaving.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Announcements of one thread, on a cache line of its own.
#[repr(align(64))]
struct Reader(AtomicU64);

const OUTSIDE: u64 = 0;

/// The point in time after which a block is unreachable for newcomers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

/// The peeking threads of a node.
pub struct Quiescence {
    epoch: AtomicU64,
    readers: Box<[Reader]>,
}

impl Quiescence {
    /// Creates one for `threads` threads.
    pub fn new(threads: usize) -> Self {
        let readers = (0..threads).map(|_| Reader(AtomicU64::new(OUTSIDE))).collect();
        Self { epoch: AtomicU64::new(OUTSIDE + 1), readers }
    }

    /// The thread is about to peek.
    #[inline]
    pub fn enter(&self, thread: usize) {
        if let Some(reader) = self.readers.get(thread) {
            reader.0.store(self.epoch.load(Ordering::Acquire), Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }

    /// The thread has forgotten everything it peeked at.
    #[inline]
    pub fn leave(&self, thread: usize) {
        if let Some(reader) = self.readers.get(thread) {
            reader.0.store(OUTSIDE, Ordering::Release);
        }
    }

    /// Stamps a replacement. Call it after storing the new pointer.
    pub fn stamp(&self) -> Stamp {
        Stamp(self.epoch.fetch_add(1, Ordering::AcqRel))
    }

    /// Returns true if every thread that may have seen what was replaced at `stamp` has left.
    pub fn has_passed(&self, stamp: Stamp) -> bool {
        fence(Ordering::SeqCst);
        self.readers.iter().all(|reader| {
            let entered = reader.0.load(Ordering::Acquire);
            entered == OUTSIDE || entered > stamp.0
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waits_for_those_inside_and_not_for_newcomers() {
        let quiescence = Quiescence::new(2);
        quiescence.enter(0);
        let stamp = quiescence.stamp();
        assert!(!quiescence.has_passed(stamp));
        quiescence.enter(1);
        assert!(!quiescence.has_passed(stamp));
        quiescence.leave(0);
        assert!(quiescence.has_passed(stamp), "the newcomer entered after the replacement");
        quiescence.leave(1);
        assert!(quiescence.has_passed(quiescence.stamp()));
    }
}
