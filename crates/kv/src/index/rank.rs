//! How often an item is accessed, in the 8 bits an index slot has for it: `frequency 4 | age 4`.
//!
//! ```text
//!   new        age = AGE_NEW
//!   accessed   age = 0
//!   visited    age 0: frequency + 1, age = 1      AGE_NEW: age = 1
//!              else age + 1; past AGE_MAX: frequency / 2, age = AGE_AGAIN
//! ```
//! Time is counted in visits of the evicting hand, so it runs as fast as memory is needed, and an access costs a store
//! only if it is the first one after a visit. The frequency is the number of visits before which the item was accessed,
//! however often, less what it has lost while idle. A new item has none: an item that is read once, as by a scan, is
//! worth less than one that was read again. But it is not evicted at its first visit, so that it is told apart from
//! what came before it.

const AGE_BITS: u32 = 4;
const AGE_MASK: u8 = (1 << AGE_BITS) - 1;
const FREQUENCY_MAX: u8 = 15;
/// Visits without an access after which the frequency is halved, and the age that follows.
const AGE_MAX: u8 = 8;
const AGE_AGAIN: u8 = 4;
/// The age of an item that was never visited.
const AGE_NEW: u8 = AGE_MASK;
const _: () = assert!(AGE_AGAIN < AGE_MAX && AGE_MAX < AGE_NEW);

/// A new item.
pub(super) const NEW: u8 = AGE_NEW;

/// One in this many of all visited lately may be evicted.
const SHARE: u32 = 4;
/// Items counted before older counts are halved.
const WINDOW: u32 = 1024;

fn rank(frequency: u8, age: u8) -> u8 {
    frequency << AGE_BITS | age
}

pub(super) fn accessed(rank: u8) -> u8 {
    rank & !AGE_MASK
}

/// Returns true if it was accessed since the last visit, or is newer than that.
pub(super) fn is_fresh(rank: u8) -> bool {
    matches!(rank & AGE_MASK, 0 | AGE_NEW)
}

/// What the index knows about the use of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Visits of the evicting hand before which it was accessed, at most 15, less what it has lost while idle.
    pub frequency: u8,
    /// Visits since its last access. `None`: it was neither visited nor accessed since it was stored.
    pub idle_visits: Option<u8>,
    /// The higher, the later it is evicted.
    pub worth: u8,
}

pub(super) fn use_of(rank: u8) -> Use {
    let age = rank & AGE_MASK;
    Use { frequency: rank >> AGE_BITS, idle_visits: (age != AGE_NEW).then_some(age), worth: worth(rank) }
}

pub(super) fn visited(old: u8) -> u8 {
    match (old >> AGE_BITS, old & AGE_MASK) {
        (frequency, 0) => rank((frequency + 1).min(FREQUENCY_MAX), 1),
        (frequency, AGE_NEW) => rank(frequency, 1),
        (0, age) => rank(0, (age + 1).min(AGE_MAX)),
        (frequency, AGE_MAX..) => rank(frequency / 2, AGE_AGAIN),
        (frequency, age) => rank(frequency, age + 1),
    }
}

/// The higher, the later it is evicted: by frequency, then by age.
pub(super) fn worth(rank: u8) -> u8 {
    rank ^ AGE_MASK
}

/// The worth of the items that the hand has visited lately: tells which are among the least, even where a single
/// vBucket has few items.
#[derive(Debug, Clone)]
pub(crate) struct Census {
    counts: [u16; 256],
    total: u32,
}

impl Default for Census {
    fn default() -> Self {
        Self { counts: [0; 256], total: 0 }
    }
}

impl Census {
    pub(super) fn count(&mut self, worth: u8) {
        if self.total >= WINDOW {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().map(|&count| u32::from(count)).sum();
        }
        self.counts[usize::from(worth)] += 1;
        self.total += 1;
    }

    /// Returns the highest worth with which an item may be evicted.
    pub(super) fn bar(&self) -> u8 {
        let mut below = 0;
        let bar = self.counts.iter().position(|&count| {
            below += u32::from(count);
            below * SHARE >= self.total
        });
        bar.and_then(|worth| u8::try_from(worth).ok()).unwrap_or(u8::MAX)
    }

    /// Forgets everything: the items it has counted are not the ones that are left.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visits(mut rank: u8, count: u32) -> u8 {
        (0..count).for_each(|_| rank = visited(rank));
        rank
    }

    #[test]
    fn an_item_asked_for_again_outlasts_one_that_never_was() {
        let once = visited(NEW);
        let again = visited(accessed(NEW));
        assert!(worth(again) > worth(once));
        assert!(worth(visits(again, 3)) > worth(once), "for some visits without an access too");
        assert!(worth(visits(NEW, 2)) < worth(once), "of two that never were the older goes first");
    }

    #[test]
    fn use_is_told_in_numbers() {
        let of = |rank| {
            let Use { frequency, idle_visits, worth: its } = use_of(rank);
            assert_eq!(its, worth(rank));
            (frequency, idle_visits)
        };
        assert_eq!(of(NEW), (0, None));
        assert_eq!(of(accessed(NEW)), (0, Some(0)), "the hand has not come by yet");
        assert_eq!(of(visited(accessed(NEW))), (1, Some(1)));
        assert_eq!(of(visits(accessed(NEW), 3)), (1, Some(3)));
    }

    #[test]
    fn many_accesses_between_two_visits_count_as_one() {
        let one = visited(accessed(NEW));
        assert_eq!(visited(accessed(accessed(NEW))), one);
        assert!(worth(visited(accessed(one))) > worth(one));
    }

    #[test]
    fn frequency_is_bounded_and_sinks_in_silence() {
        let mut rank = NEW;
        for _ in 0..100 {
            rank = visited(accessed(rank));
        }
        assert_eq!(rank, super::rank(FREQUENCY_MAX, 1));
        let mut silent = 0;
        while worth(rank) > worth(visited(accessed(NEW))) {
            rank = visited(rank);
            silent += 1;
        }
        assert_eq!(silent, 8 + 5 + 5, "15, 7, 3, 1");
        assert_eq!(visits(rank, 1000), super::rank(0, AGE_MAX));
    }

    #[test]
    fn all_ranks_are_visited_to_valid_ones() {
        for rank in 0..=u8::MAX {
            let next = visited(rank);
            assert!(!is_fresh(next) && next & AGE_MASK <= AGE_MAX, "{rank:#x} -> {next:#x}");
            assert!(is_fresh(accessed(rank)));
        }
    }

    #[test]
    fn a_quarter_of_those_met_lately_is_under_the_bar() {
        let mut census = Census::default();
        (0..=99).for_each(|worth| census.count(worth));
        assert_eq!(census.bar(), 24);
        // Older counts fade.
        (0..20 * WINDOW).for_each(|number| census.count(100 + (number % 100) as u8));
        assert!((123..=125).contains(&census.bar()), "{}", census.bar());
        census.clear();
        census.count(200);
        assert_eq!(census.bar(), 200, "a single one may go");
    }
}
