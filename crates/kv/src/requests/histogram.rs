//! A histogram of times: counters of fixed number, exact below 32 us and within a sixteenth above.
//!
//! ```text
//!   us       0 1 2 .. 31 | 32-33 34-35 .. 62-63 | 64-67 .. 124-127 | .. | 2^25 .. 2^26 - 1, and all above
//!   counter  0 1 2 .. 31 | 32    33    .. 47    | 48    .. 63       | .. | 367
//! ```
//! One thread writes and any may read, so an addition is a load and a store. (The crate `hdrhistogram`, which the lab
//! uses, would need a lock here, or a channel to whoever reads.)

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of an octave, from a power of two to the next.
const STEPS_BITS: u32 = 4;
const STEPS: usize = 1 << STEPS_BITS;
/// Below this power of two each value has a counter.
const EXACT_BITS: u32 = STEPS_BITS + 1;
const EXACT: usize = 1 << EXACT_BITS;
/// The first power of two that has no counter: 67 s.
const END_BITS: u32 = 26;
const COUNTERS: usize = EXACT + (END_BITS - EXACT_BITS) as usize * STEPS;

/// See the module.
pub struct Histogram([AtomicU64; COUNTERS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; COUNTERS])
    }
}

impl Histogram {
    /// Adds so many times of one length. ORDERING: only one thread adds, so nothing is lost between load and store.
    pub fn add(&self, us: u64, times: u64) {
        let counter = &self.0[counter_of(us)];
        counter.store(counter.load(Relaxed).wrapping_add(times), Relaxed);
    }
}

/// The counter of a time.
fn counter_of(us: u64) -> usize {
    let us = us.min((1 << END_BITS) - 1);
    if us < EXACT as u64 {
        return us as usize;
    }
    let octave = us.ilog2();
    let step = (us >> (octave - STEPS_BITS)) as usize - STEPS;
    EXACT + (octave - EXACT_BITS) as usize * STEPS + step
}

/// The longest time that a counter counts.
fn longest_us(counter: usize) -> u64 {
    if counter < EXACT {
        return counter as u64;
    }
    let (octave, step) = ((counter - EXACT) / STEPS, (counter - EXACT) % STEPS);
    let unit = 1 << (octave + 1);
    ((STEPS + step) as u64 + 1) * unit - 1
}

/// What histograms have counted, at one moment or between two.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Counts {
    /// Adds what a histogram has counted.
    pub fn add(&mut self, histogram: &Histogram) {
        self.0.resize(COUNTERS, 0);
        self.0.iter_mut().zip(&histogram.0).for_each(|(sum, counter)| *sum += counter.load(Relaxed));
    }

    /// Returns what was counted since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let before = before.0.iter().copied().chain(std::iter::repeat(0));
        Self(self.0.iter().zip(before).map(|(now, before)| now.saturating_sub(before)).collect())
    }

    /// Returns the number of times.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the time in microseconds that this share of all, in thousandths, do not exceed: the longest that their
    /// counter counts. `None` if there are none.
    pub fn within_us(&self, thousandths: u64) -> Option<u64> {
        let total = self.total();
        // At least one, so that a share of nothing is the shortest time.
        let wanted = u128::from(total) * u128::from(thousandths);
        let wanted = u64::try_from(wanted.div_ceil(1000)).unwrap_or(u64::MAX).max(1);
        let mut sum = 0;
        let counter = self.0.iter().position(|count| {
            sum += count;
            sum >= wanted
        })?;
        (total > 0).then(|| longest_us(counter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(times: impl IntoIterator<Item = (u64, u64)>) -> Counts {
        let histogram = Histogram::default();
        times.into_iter().for_each(|(us, times)| histogram.add(us, times));
        let mut counts = Counts::default();
        counts.add(&histogram);
        counts
    }

    #[test]
    fn counters_tile_the_times() {
        assert_eq!(COUNTERS, 368);
        let mut next_us = 0;
        for counter in 0..COUNTERS {
            let longest_us = longest_us(counter);
            assert_eq!((counter_of(next_us), counter_of(longest_us)), (counter, counter));
            let width_us = longest_us - next_us + 1;
            assert!(width_us == 1 || width_us * 16 <= next_us, "{next_us} to {longest_us}");
            next_us = longest_us + 1;
        }
        assert_eq!(next_us, 1 << END_BITS);
        assert_eq!(counter_of(u64::MAX), COUNTERS - 1);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times() {
        let some = counts((1..=1000).map(|us| (us, 1)));
        assert_eq!(some.total(), 1000);
        for (thousandths, exact_us) in
            [(0, 1), (1, 1), (10, 10), (500, 500), (950, 950), (999, 999), (1000, 1000)]
        {
            let us = some.within_us(thousandths).unwrap();
            assert!(us >= exact_us && us - exact_us <= exact_us / 16, "{thousandths}: {us}");
        }
        let one = counts([(20, 1)]);
        assert_eq!([0, 500, 1000].map(|share| one.within_us(share)), [Some(20); 3]);
        assert_eq!(counts([(3, 999), (2000, 1)]).within_us(999), Some(3));
        assert_eq!(counts([]).within_us(500), None);
        assert_eq!(Counts::default().within_us(500), None);
    }

    #[test]
    fn a_difference_is_what_was_added_in_between() {
        let before = counts([(5, 2), (700, 1)]);
        let after = counts([(5, 2), (700, 4), (9, 1)]);
        let between = after.since(&before);
        assert_eq!(
            (between.total(), between.within_us(250), between.within_us(251)),
            (4, Some(9), Some(703))
        );
        assert_eq!(after.since(&Counts::default()), after);
        assert_eq!(after.since(&after).total(), 0);
    }
}
