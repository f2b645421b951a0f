//! Counters that many threads bump and few read: one shard per thread, so that no bump touches a shared cache line.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LINE_COUNTERS: usize = 8;

/// `counters` counters for each of `threads` threads, and one more shard for all other threads.
///
/// A thread's shard is written by that thread alone, so a bump is a plain load and store. Sums are exact once the
/// writers are idle. Values wrap, so a counter may also go down.
pub struct Shards {
    stride: usize,
    threads: usize,
    cells: Box<[AtomicU64]>,
}

impl Shards {
    /// Creates them all zero.
    pub fn new(threads: usize, counters: usize) -> Self {
        let stride = counters.next_multiple_of(LINE_COUNTERS);
        let cells = (0..stride * (threads + 1)).map(|_| AtomicU64::new(0)).collect();
        Self { stride, threads, cells }
    }

    /// Adds to a counter in the shard of `thread`. Only that thread may call it.
    #[inline]
    pub fn add(&self, thread: usize, counter: usize, amount: i64) {
        debug_assert!(thread < self.threads && counter < self.stride);
        if let Some(cell) = self.cells.get(thread * self.stride + counter) {
            cell.store(cell.load(Relaxed).wrapping_add(amount.cast_unsigned()), Relaxed);
        }
    }

    /// Adds 1 to a counter in the shard of `thread` and returns the shard's new value. Only that thread may call it.
    #[inline]
    pub fn next(&self, thread: usize, counter: usize) -> u64 {
        debug_assert!(thread < self.threads && counter < self.stride);
        let Some(cell) = self.cells.get(thread * self.stride + counter) else { return 0 };
        let next = cell.load(Relaxed).wrapping_add(1);
        cell.store(next, Relaxed);
        next
    }

    /// Adds to a counter from any thread.
    pub fn add_shared(&self, counter: usize, amount: i64) {
        if let Some(cell) = self.cells.get(self.threads * self.stride + counter) {
            cell.fetch_add(amount.cast_unsigned(), Relaxed);
        }
    }

    /// What was added from any thread, with [`Shards::add_shared`].
    pub fn shared(&self, counter: usize) -> u64 {
        let cell = self.cells.get(self.threads * self.stride + counter);
        cell.map_or(0, |cell| u64::try_from(cell.load(Relaxed).cast_signed()).unwrap_or(0))
    }

    /// The sum over all shards; never below zero for counters whose writers are idle.
    pub fn sum(&self, counter: usize) -> u64 {
        let total = self
            .cells
            .iter()
            .skip(counter)
            .step_by(self.stride.max(1))
            .fold(0u64, |sum, cell| sum.wrapping_add(cell.load(Relaxed)));
        u64::try_from(total.cast_signed()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_threads_and_goes_down() {
        let shards = Shards::new(2, 3);
        shards.add(0, 1, 5);
        shards.add(1, 1, -2);
        shards.add_shared(1, 10);
        shards.add(1, 2, 7);
        assert_eq!((shards.sum(0), shards.sum(1), shards.sum(2)), (0, 13, 7));
        assert_eq!((shards.next(0, 1), shards.next(0, 1), shards.sum(1)), (6, 7, 15));
    }
}
