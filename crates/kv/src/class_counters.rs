//! Events by size class, which `stats slabs` and `stats items` show as memcached does.
//!
//! Most events are counted where they happen. Retrievals and stores are too frequent for that: [`weight`] says which of
//! them count, and for how many. So the sum over the classes is exact up to [`EXACT`] events of a thread, and from then
//! on less than [`STRIDE`] behind.
//!
//! A class has no counters before its first event: a line or two for each thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use memory::Shards;

use crate::sizes::{CLASSES, class_of};

/// So many retrievals, and so many stores, of each thread are all counted in their classes.
const EXACT: u64 = 1024;
/// Of those after them, each that is a multiple of this, for so many.
const STRIDE: u64 = 64;

/// An event that is counted by size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum ClassCounter {
    /// Retrievals that found a document.
    GetHits,
    /// Stores of every kind, by the size of what was sent.
    CmdSet,
    /// Deletes that found a document.
    DeleteHits,
    /// Increments that found a document.
    IncrHits,
    /// Decrements that found a document.
    DecrHits,
    /// Conditional stores that matched.
    CasHits,
    /// Conditional stores on another version.
    CasBadval,
    /// Touches that found a document.
    TouchHits,
    /// Stores refused by the memory budget.
    OutOfMemory,
    /// Items evicted, or their values ejected.
    Evicted,
    /// Those of them that had an expiry.
    EvictedNonzero,
    /// Those of them that nobody had read.
    EvictedUnfetched,
    /// Expired items whose memory was reclaimed.
    Reclaimed,
    /// Those of them that nobody had read.
    ExpiredUnfetched,
    /// Stores that had to free memory themselves.
    DirectReclaims,
}

impl ClassCounter {
    const COUNT: usize = Self::DirectReclaims as usize + 1;
}

/// The counters of a bucket.
pub struct ClassCounters {
    threads: usize,
    classes: Box<[OnceLock<Class>]>,
}

struct Class {
    events: Shards,
    /// Idle seconds of the item that was evicted last.
    evicted_idle_s: AtomicU32,
}

impl ClassCounters {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, classes: (0..CLASSES).map(|_| OnceLock::new()).collect() }
    }

    fn class(&self, size: usize) -> Option<&Class> {
        let class = self.classes.get(class_of(size) as usize)?;
        Some(class.get_or_init(|| Class {
            events: Shards::new(self.threads, ClassCounter::COUNT),
            evicted_idle_s: AtomicU32::new(0),
        }))
    }

    /// Counts `n` events of items of this size. `thread`: the calling one.
    pub(crate) fn count(&self, thread: usize, size: usize, counter: ClassCounter, n: u64) {
        if let Some(class) = self.class(size) {
            class.events.add(thread, counter as usize, n.cast_signed());
        }
    }

    /// Counts an evicted item.
    pub(crate) fn count_evicted(
        &self,
        thread: usize,
        size: usize,
        (has_expiry, is_unfetched): (bool, bool),
        idle_s: u32,
    ) {
        let Some(class) = self.class(size) else { return };
        class.events.add(thread, ClassCounter::Evicted as usize, 1);
        class.events.add(thread, ClassCounter::EvictedNonzero as usize, i64::from(has_expiry));
        class.events.add(thread, ClassCounter::EvictedUnfetched as usize, i64::from(is_unfetched));
        class.evicted_idle_s.store(idle_s, Relaxed);
    }

    /// Returns a counter of a class, over all threads.
    pub fn sum(&self, class: usize, counter: ClassCounter) -> u64 {
        let class = self.classes.get(class).and_then(OnceLock::get);
        class.map_or(0, |class| class.events.sum(counter as usize))
    }

    /// Returns true if anything of this class has ever been counted.
    pub fn is_known(&self, class: usize) -> bool {
        self.classes.get(class).is_some_and(|class| class.get().is_some())
    }

    /// Returns the idle seconds of the item of a class that was evicted last; 0 if none was.
    pub fn evicted_idle_s(&self, class: usize) -> u32 {
        let class = self.classes.get(class).and_then(OnceLock::get);
        class.map_or(0, |class| class.evicted_idle_s.load(Relaxed))
    }

    /// Sets all counters to 0.
    pub(crate) fn reset(&self) {
        for class in self.classes.iter().filter_map(OnceLock::get) {
            for counter in 0..ClassCounter::COUNT {
                class.events.add_shared(counter, -class.events.sum(counter).cast_signed());
            }
            class.evicted_idle_s.store(0, Relaxed);
        }
    }
}

/// Returns how many events the thread's `number`th one, from 1, stands for; 0 if it is not counted by class.
#[inline]
pub(crate) fn weight(number: u64) -> u64 {
    if number <= EXACT {
        1
    } else if number.is_multiple_of(STRIDE) {
        STRIDE
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up() {
        let mut sum = 0;
        for number in 1..=3 * EXACT {
            sum += weight(number);
            assert!(number - sum < STRIDE, "{number}");
            assert!(number > EXACT || sum == number, "{number}");
        }
        assert_eq!(sum, 3 * EXACT);
    }

    #[test]
    fn classes_are_apart_and_reset() {
        let counters = ClassCounters::new(2);
        counters.count(0, 60, ClassCounter::GetHits, 1);
        counters.count(1, 60, ClassCounter::GetHits, 2);
        counters.count(1, 70, ClassCounter::GetHits, 5);
        counters.count_evicted(0, 70, (true, false), 9);
        let sums = |counter| [1, 2, 3].map(|class| counters.sum(class, counter));
        assert_eq!(sums(ClassCounter::GetHits), [3, 5, 0]);
        assert_eq!(sums(ClassCounter::Evicted), [0, 1, 0]);
        assert_eq!(sums(ClassCounter::EvictedNonzero), [0, 1, 0]);
        assert_eq!(sums(ClassCounter::EvictedUnfetched), [0, 0, 0]);
        assert_eq!(counters.evicted_idle_s(2), 9);
        counters.reset();
        assert_eq!(sums(ClassCounter::GetHits), [0, 0, 0]);
        counters.count(0, 60, ClassCounter::GetHits, 1);
        assert_eq!(sums(ClassCounter::GetHits), [1, 0, 0]);
    }
}
