//! The order in which a thread takes locks, and a check of it.
//!
//! Every mutex of the engine has a [`rank`]: a thread that holds one may wait only for those of a higher rank. Builds
//! with debug assertions check that wherever a lock is taken, and name both in the panic; others have plain locks.
//! `docs/locks.md` says what each is for.

use parking_lot::lock_api::{GuardNoSend, Mutex, RawMutex};

/// The ranks, in the order in which locks are taken.
pub(crate) mod rank {
    /// The state of a defragmenter's pass.
    pub(crate) const DEFRAGMENTER: u8 = 10;
    /// The slab that writers empty to work off slab debt.
    pub(crate) const PAYING: u8 = 11;
    /// The state of a compressor's pass.
    pub(crate) const COMPRESSOR: u8 = 12;
    /// The evicting hand.
    pub(crate) const SWEEPER: u8 = 20;
    /// A change of a bucket's collections.
    pub(crate) const MANIFEST_CHANGE: u8 = 25;
    /// The cluster map that was last rendered, of a bucket or the node.
    pub(crate) const MAP: u8 = 28;
    /// A shard's journal, while it is written.
    pub(crate) const JOURNAL: u8 = 30;
    /// A bucket's `bucket.json`.
    pub(crate) const META: u8 = 31;
    /// A vBucket.
    pub(crate) const VBUCKET: u8 = 40;
    /// A bucket's present collections manifest.
    pub(crate) const MANIFEST: u8 = 45;
    /// What is still to be read of a journal, and what went wrong.
    pub(crate) const LOADING: u8 = 50;
    /// A bucket's watchers.
    pub(crate) const WATCHERS: u8 = 60;
    /// The connections that follow a bucket.
    pub(crate) const CONSUMERS: u8 = 62;
    /// The nodes that a bucket copies from.
    pub(crate) const PEERS: u8 = 63;
    /// The scans of a bucket.
    pub(crate) const SCANS: u8 = 65;
    /// The values that somebody waits for.
    pub(crate) const FETCHES: u8 = 70;
    /// Pieces of journals that streams wait for.
    pub(crate) const PIECES: u8 = 72;
    /// A piece of a journal that has been read.
    pub(crate) const SHELF: u8 = 74;
    /// The connections that are told of new cluster maps.
    pub(crate) const MAP_WATCHERS: u8 = 76;
    /// How many streams each user has.
    pub(crate) const STREAM_COUNTS: u8 = 78;
    /// Letters for a thread.
    pub(crate) const MAILBOX: u8 = 80;
    /// Counts by prefix.
    pub(crate) const PREFIXES: u8 = 90;
    /// Failed logins.
    pub(crate) const ATTEMPTS: u8 = 91;
    /// Settings of a bucket that have no effect.
    pub(crate) const LABELS: u8 = 92;
    /// Slow and large requests of a thread.
    pub(crate) const REQUESTS: u8 = 93;
}

/// A mutex with a rank.
pub(crate) type Ranked<T, const RANK: u8> = Mutex<RawRanked<RANK>, T>;

/// See [`Ranked`].
pub(crate) struct RawRanked<const RANK: u8>(parking_lot::RawMutex);

#[expect(unsafe_code, reason = "forwards to another lock")]
// SAFETY: exclusion is that of the inner lock.
unsafe impl<const RANK: u8> RawMutex for RawRanked<RANK> {
    const INIT: Self = Self(parking_lot::RawMutex::INIT);
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        will_wait(RANK);
        self.0.lock();
        taken(RANK);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let is_taken = self.0.try_lock();
        if is_taken {
            taken(RANK);
        }
        is_taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        released(RANK);
        // SAFETY: by the caller's contract.
        unsafe { self.0.unlock() }
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }

    pub(crate) fn will_wait(rank: u8) {
        let highest = HELD.with_borrow(|held| held.iter().copied().max());
        assert!(
            highest.is_none_or(|highest| highest < rank),
            "lock order: waiting for rank {rank} while holding rank {}",
            highest.unwrap_or_default()
        );
    }

    pub(crate) fn taken(rank: u8) {
        HELD.with_borrow_mut(|held| held.push(rank));
    }

    pub(crate) fn released(rank: u8) {
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|one| *one == rank) {
                held.swap_remove(at);
            }
        });
    }
}

#[cfg(not(debug_assertions))]
mod held {
    #[inline(always)]
    pub(crate) const fn will_wait(_: u8) {}

    #[inline(always)]
    pub(crate) const fn taken(_: u8) {}

    #[inline(always)]
    pub(crate) const fn released(_: u8) {}
}

pub(crate) use held::{released, taken, will_wait};

#[cfg(test)]
mod tests {
    use super::*;

    /// The page's table and the ranks are the same.
    #[test]
    fn the_page_has_the_ranks() {
        let page = include_str!("../../../docs/locks.md");
        let rows = page.lines().filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let rank = cells.next()?.parse::<u8>().ok()?;
            Some(format!("{} {rank}", cells.next()?.trim_matches('`')))
        });
        let code = include_str!("lock_order.rs");
        let ranks = code.lines().filter_map(|line| {
            let (name, rank) = line.trim().strip_prefix("pub(crate) const ")?.split_once(": u8 = ")?;
            Some(format!("{name} {}", rank.trim_end_matches(';')))
        });
        let (rows, ranks): (Vec<_>, Vec<_>) = (rows.collect(), ranks.collect());
        assert_eq!(rows, ranks);
        assert!(rows.len() > 10);
    }

    #[test]
    fn locks_are_taken_upwards() {
        let (low, high) = (Ranked::<_, 1>::new(0), Ranked::<_, 2>::new(0));
        {
            let (mut a, mut b) = (low.lock(), high.lock());
            (*a, *b) = (1, 2);
        }
        // One after the other in any order.
        drop(high.lock());
        drop(low.lock());
        assert_eq!((*low.lock(), *high.lock()), (1, 2));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic = "waiting for rank 1 while holding rank 2"]
    fn whoever_holds_one_waits_for_no_lower() {
        let (low, high) = (Ranked::<_, 1>::new(0), Ranked::<_, 2>::new(0));
        let _held = high.try_lock();
        drop(low.lock());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn whoever_does_not_wait_may_try_any() {
        let (low, high) = (Ranked::<_, 1>::new(0), Ranked::<_, 2>::new(0));
        let held = high.lock();
        assert!(low.try_lock().is_some());
        drop(held);
        drop(low.lock());
    }
}
