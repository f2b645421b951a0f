//! What requests do on the node, recorded while somebody looks: how long they take by class, and which are slow or
//! large.
//!
//! ```text
//!   console   look ──> until ──> two loads per wake-up of a worker: does it record?
//!   worker    histograms of its own, which nobody else writes; its newest slow and large requests, under a lock
//!   console   sums of all workers' histograms; the newest of all workers' requests
//! ```
//! Nothing exists for a worker before it has recorded something, and what it has is bounded: some 20 KB of histograms,
//! and [`NOTED_MAX`] slow and large requests each.

mod histogram;
mod noted;

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::lock_order::{Ranked, rank};

pub use histogram::{Counts, Histogram};
pub use noted::{Noted, Why};

/// Requests of each kind that a worker keeps, and that a list has.
pub const NOTED_MAX: usize = 64;
/// Longest time that one look may make workers record, s.
pub const LOOK_MAX_S: u32 = 600;

/// What a request does, for its latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Class {
    /// Reads a document.
    Read,
    /// Stores or touches one.
    Write,
    /// Deletes one.
    Delete,
    /// Counts up or down.
    Counter,
    /// Works at paths in a document.
    Subdocument,
    /// A change of any kind that demands more than memory.
    Durable,
    /// Is about no document, or could not be understood.
    #[default]
    Other,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Read, Self::Write, Self::Delete, Self::Counter, Self::Subdocument, Self::Durable, Self::Other];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::Counter => "counter",
            Self::Subdocument => "subdocument",
            Self::Durable => "durable",
            Self::Other => "other",
        }
    }
}

/// One number for each class.
pub type PerClass<T> = [T; Class::ALL.len()];

/// What one thread has recorded.
#[derive(Default)]
struct Thread {
    histograms: OnceLock<Box<PerClass<Histogram>>>,
    noted: [Ranked<VecDeque<Noted>, { rank::REQUESTS }>; Why::ALL.len()],
}

/// See the module. One per node.
pub struct Requests {
    /// Workers record before this time, s since 1970, as long as somebody looks,
    until_s: AtomicU32,
    /// or always.
    always: AtomicBool,
    threads: Box<[Thread]>,
}

impl Requests {
    /// Creates the record of a node with this many executing threads.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = (0..threads).map(|_| Thread::default()).collect();
        Self { until_s: AtomicU32::new(0), always: AtomicBool::new(false), threads }
    }

    /// Returns true if requests are recorded now.
    #[inline]
    pub fn is_recording(&self, now_unix_s: u32) -> bool {
        // Not until a time that is further away than any look: the clock may have been set back.
        let left_s = self.until_s.load(Relaxed).wrapping_sub(now_unix_s);
        (1..=LOOK_MAX_S).contains(&left_s) || self.always.load(Relaxed)
    }

    /// Notes that somebody looks: requests are recorded for so many seconds, if not for longer already.
    pub fn look(&self, now_unix_s: u32, for_s: u32) {
        let until_s = now_unix_s.saturating_add(for_s.min(LOOK_MAX_S));
        let is_valid = |known_s: u32| known_s > until_s && known_s <= now_unix_s.saturating_add(LOOK_MAX_S);
        // A later time stays, unless the clock was set back since.
        let _ =
            self.until_s.fetch_update(Relaxed, Relaxed, |known_s| (!is_valid(known_s)).then_some(until_s));
    }

    /// Sets whether requests are recorded whether or not somebody looks.
    pub fn set_always(&self, always: bool) {
        self.always.store(always, Relaxed);
    }

    /// Adds requests of one class that took this long. Only the thread of this number may call it.
    pub fn add(&self, thread: usize, class: Class, took_us: u64, requests: u64) {
        if let Some(thread) = self.threads.get(thread) {
            thread.histograms.get_or_init(Box::default)[class as usize].add(took_us, requests);
        }
    }

    /// Keeps a request in place of its thread's oldest of the kind.
    pub fn note(&self, thread: usize, why: Why, noted: Noted) {
        let Some(thread) = self.threads.get(thread) else { return };
        let mut kept = thread.noted[why as usize].lock();
        if kept.capacity() == 0 {
            kept.reserve_exact(NOTED_MAX);
        }
        if kept.len() == NOTED_MAX {
            kept.pop_front();
        }
        kept.push_back(noted);
    }

    /// Returns what was counted since the start, by class.
    pub fn counts(&self) -> PerClass<Counts> {
        let mut sums = PerClass::<Counts>::default();
        for histograms in self.threads.iter().filter_map(|thread| thread.histograms.get()) {
            sums.iter_mut().zip(histograms.iter()).for_each(|(sum, histogram)| sum.add(histogram));
        }
        sums
    }

    /// Returns all that is kept of a kind, newest first.
    pub fn noted(&self, why: Why) -> Vec<Noted> {
        let mut all = Vec::new();
        for thread in &self.threads {
            all.extend(thread.noted[why as usize].lock().iter().cloned());
        }
        all.sort_by_key(|noted| std::cmp::Reverse(noted.at_unix_ns));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u32 = 1_800_000_000;

    #[test]
    fn requests_are_recorded_while_somebody_looks() {
        let requests = Requests::new(1);
        assert!(!requests.is_recording(NOW_S));
        requests.look(NOW_S, 10);
        assert!(requests.is_recording(NOW_S + 9) && !requests.is_recording(NOW_S + 10));
        requests.look(NOW_S, 5);
        assert!(requests.is_recording(NOW_S + 9), "the longer look counts");
        requests.look(NOW_S, u32::MAX);
        assert!(!requests.is_recording(NOW_S + LOOK_MAX_S), "a look is bounded");
        assert!(!requests.is_recording(NOW_S - 3600), "the clock was set back");
        requests.look(NOW_S - 3600, 5);
        assert!(requests.is_recording(NOW_S - 3600));
        assert!(!requests.is_recording(NOW_S - 3600 + 5), "the look of before counts no more");
    }

    #[test]
    fn they_are_always_recorded_if_so_configured() {
        let requests = Requests::new(1);
        requests.set_always(true);
        requests.look(NOW_S, 5);
        assert!(requests.is_recording(NOW_S + 1_000_000));
        requests.set_always(false);
        assert!(requests.is_recording(NOW_S) && !requests.is_recording(NOW_S + 5), "somebody looks");
    }

    #[test]
    fn nothing_is_allocated_before_a_request_is_recorded() {
        let requests = Requests::new(2);
        assert!(requests.threads.iter().all(|thread| thread.histograms.get().is_none()));
        requests.add(1, Class::Delete, 7, 3);
        assert!(requests.threads[0].histograms.get().is_none());
        assert_eq!(requests.counts()[Class::Delete as usize].total(), 3);
        assert_eq!(requests.counts()[Class::Read as usize].total(), 0);
        requests.add(2, Class::Read, 7, 1);
        requests.note(2, Why::Slow, Noted::default());
        assert_eq!(requests.noted(Why::Slow), vec![], "there is no such thread");
    }

    #[test]
    fn the_newest_requests_are_kept() {
        let requests = Requests::new(2);
        for at_unix_ns in 0..200 {
            let noted = Noted { at_unix_ns, ..Noted::default() };
            requests.note((at_unix_ns % 2) as usize, Why::Large, noted);
        }
        let noted = requests.noted(Why::Large);
        let times: Vec<u64> = noted.iter().map(|noted| noted.at_unix_ns).collect();
        assert_eq!(times, (200 - 2 * NOTED_MAX as u64..200).rev().collect::<Vec<_>>());
        assert!(requests.noted(Why::Slow).is_empty());
    }
}
