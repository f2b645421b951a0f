//! Since when each thread that serves clients has been at its present turn: an operator's first question when nothing
//! is answered.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The value while a thread sleeps.
const ASLEEP: u64 = 0;

/// One entry for each executing thread, and one for a thread that serves clients without executing anything of buckets,
/// as that of OVSDB databases does.
#[derive(Debug)]
pub struct Turns(Box<[AtomicU64]>);

impl Turns {
    pub(crate) fn new(threads: usize) -> Self {
        Self((0..=threads).map(|_| AtomicU64::new(ASLEEP)).collect())
    }

    /// The thread without a number of its own.
    pub fn other(&self) -> usize {
        self.0.len() - 1
    }

    /// Notes that a thread has woken up, or begins again to look for events.
    #[inline]
    pub fn begin(&self, thread: usize, mono_us: u64) {
        if let Some(since) = self.0.get(thread) {
            since.store(mono_us.max(ASLEEP + 1), Relaxed);
        }
    }

    /// Notes that a thread waits for events.
    #[inline]
    pub fn end(&self, thread: usize) {
        if let Some(since) = self.0.get(thread) {
            since.store(ASLEEP, Relaxed);
        }
    }

    /// For how long the thread with the longest turn has been at it.
    pub fn longest_us(&self, now_us: u64) -> u64 {
        let began = self.0.iter().map(|since| since.load(Relaxed)).filter(|since| *since != ASLEEP);
        began.map(|since| now_us.saturating_sub(since)).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_is_at_no_turn() {
        let turns = Turns::new(2);
        assert_eq!(turns.longest_us(5_000_000), 0);
        turns.begin(0, 0);
        turns.begin(1, 4_000_000);
        assert_eq!(turns.longest_us(5_000_000), 4_999_999);
        turns.end(0);
        assert_eq!(turns.longest_us(5_000_000), 1_000_000);
        turns.end(1);
        assert_eq!(turns.longest_us(5_000_000), 0);
    }
}
