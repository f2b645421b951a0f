//! Eviction: what keeps a bucket within its budget when memory runs out.
//!
//! A clock hand walks over all vBuckets, one group of items per hold of a lock. Visited items record whether they were
//! accessed since the last visit (see `index/rank.rs`); of these, the items that belong to the least worthy quarter of
//! all visited lately are evicted. Dead items met on the way are freed. In a persistent bucket only values are ejected,
//! of documents that are on disk. Workers move the hand themselves only above the refusing watermark; below it the
//! pager does.
//!
//! Evicting an item from a slab leaves a free slot, not a free page. So where slabs have more free space than new items
//! need, slabs are emptied one after the other instead: their least used items are evicted, the others move
//! (`docs/decisions/0016`).

use super::attention;
use crate::index::{Census, Hand, Locked, Swept};
use crate::memory_policy::{self, Action, Done, POLICY};
use crate::{Bucket, Meter, ThreadContext, VbId};

/// Eviction ends after this many rounds of the hand over all items, whatever is left.
const ROUNDS_MAX: usize = 32;
/// Free pages are given back this long after they became many.
const PURGE_DELAY_S: u32 = 4;
/// After a search that found nothing to eject, the next one waits this long: all that is left waits for the flusher.
const FRUITLESS_MS: u64 = 100;
/// Rounds of evicting, purging and measuring per turn of the pager, and of emptying slabs and evicting to make room.
const TURNS_MAX: usize = 8;
/// In each round the pager moves at most the budget divided by this, in bytes.
const MOVED_FRACTION: u64 = 64;
/// If less than this is missing (or than the budget divided by [`MOVED_FRACTION`]), more may be evicted than is
/// missing, so that slabs can be emptied.
const EVICTED_MAX: u64 = 256 << 10;

/// The hand's position, and what the pager has planned.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    vb: u16,
    hand: Hand,
    census: Census,
    /// When free pages are to be given back, in unix seconds.
    purge_at_s: Option<u32>,
    /// Nothing could be freed in a persistent bucket: no new search before this, ms of the monotonic clock.
    fruitless_until_ms: u64,
    /// Eviction left sparse slabs: the pager does not continue before this.
    sparse_until_ms: u64,
}

impl Bucket {
    /// Evicts until `used` is down to `target`: by slabs, until about `moved_max` bytes have been moved; then by the
    /// hand, until everything has been visited often enough. The hand may leave free slots only: then slabs, which now
    /// have room to be emptied into each other, are emptied once more. While that was not enough, twice as much is
    /// evicted, up to [`EVICTED_MAX`].
    pub(crate) fn make_room(&self, cx: &mut ThreadContext, target: u64, moved_max: u64) {
        let persistent = self.persistence().is_some();
        if persistent {
            // Before the first value is ejected, so that a request that misses one has checked.
            self.raise(attention::EJECTED);
        }
        let evicted_max = EVICTED_MAX.min(self.tenant().budget() / MOVED_FRACTION);
        for turn in 0..TURNS_MAX {
            self.give_slack_back(cx, target, moved_max);
            self.note_ejected();
            let Some(excess) = self.tenant().used().checked_sub(target).filter(|&excess| excess > 0) else {
                break;
            };
            let makes_slots = self.has_defragmenter() && self.tenant().excess_slack() > 0;
            let most = if makes_slots { (excess << turn).min(evicted_max).max(excess) } else { excess };
            let could_go = self.evict(cx, excess, most);
            self.note_ejected();
            self.give_freed_slabs_back();
            if !could_go || self.tenant().used() <= target {
                break;
            }
        }
    }

    /// Sets the flag again, since values may have left memory since it was set: if no request missed one meanwhile,
    /// another thread may have cleared it.
    fn note_ejected(&self) {
        // ORDERING: after the last value was ejected; see `attention`.
        if self.dirty().is_some_and(|dirty| dirty.ejected().0 > 0) {
            self.raise(attention::EJECTED);
        }
    }

    /// Returns the pages of freed slabs to the system, if there are many.
    pub(crate) fn give_freed_slabs_back(&self) {
        if POLICY.has_many_freed_slabs(self.tenant().budget(), self.tenant().freed_slabs()) {
            self.tenant().purge();
            self.tenant().measure();
        }
    }

    /// Evicts about `most` bytes by the hand. Returns true if at least `least` were evicted.
    fn evict(&self, cx: &mut ThreadContext, least: u64, most: u64) -> bool {
        let mut sweeper = self.sweeper.lock();
        let persistent = self.persistence().is_some();
        let now_ms = cx.now.mono_ms();
        if persistent && now_ms < sweeper.fruitless_until_ms {
            return false;
        }
        let (mut evicted, mut unfetched, mut left) = (0, 0, most);
        for _ in 0..ROUNDS_MAX {
            let round = self.sweep_round(cx, &mut sweeper, &mut left);
            evicted += round.evicted;
            unfetched += round.unfetched;
            if left == 0 || round.candidates == 0 {
                break;
            }
            if round.evicted == 0 {
                sweeper.census.clear();
            }
        }
        let could_go = most - left >= least;
        if !could_go {
            sweeper.fruitless_until_ms = now_ms + FRUITLESS_MS;
        }
        drop(sweeper);
        self.count(cx, Meter::Evictions, evicted);
        self.count(cx, Meter::EvictedUnfetched, unfetched);
        cx.end_batch();
        could_go
    }

    /// Returns what is known of the worth of items, for eviction other than by the hand.
    pub(crate) fn census(&self) -> Census {
        self.sweeper.lock().census.clone()
    }

    /// Keeps a census that other evictions have added to.
    pub(crate) fn keep_census(&self, census: Census) {
        self.sweeper.lock().census = census;
    }

    /// Moves the hand over all items, until the evicted bytes make up for the excess. If it starts within a vBucket, it
    /// visits that one twice.
    fn sweep_round(&self, cx: &mut ThreadContext, sweeper: &mut Sweeper, excess: &mut u64) -> Swept {
        let (mut round, mut ended) = (Swept::default(), 0);
        let mut gone = self.wants_evictions().then(Vec::new);
        while *excess > 0 && ended <= self.vbuckets() {
            let mut locked = self.lock(cx, VbId(sweeper.vb));
            let swept = locked.sweep(sweeper.hand, &mut sweeper.census, gone.as_mut());
            drop(locked);
            if let Some(gone) = &mut gone {
                self.report_evicted(cx, gone.drain(..));
            }
            *excess = excess.saturating_sub(swept.freed_bytes);
            round.evicted += swept.evicted;
            round.unfetched += swept.unfetched;
            round.candidates += swept.candidates;
            sweeper.hand = swept.next.unwrap_or_default();
            if swept.next.is_none() {
                sweeper.vb = (sweeper.vb + 1) % self.vbuckets();
                ended += 1;
            }
        }
        round
    }

    /// The pager's part: does what [`memory_policy::decide`] says, until resident memory is within the watermarks.
    pub(crate) fn keep_within_budget(&self, cx: &mut ThreadContext) {
        for _ in 0..TURNS_MAX {
            if !self.turn_pager(cx) {
                break;
            }
        }
    }

    /// Decides and acts, until something was evicted. Returns true if more of it may help.
    fn turn_pager(&self, cx: &mut ThreadContext) -> bool {
        let mut done = Done::default();
        loop {
            let figures = self.memory_figures();
            let moved_max = figures.budget / MOVED_FRACTION;
            match memory_policy::decide(&figures, done) {
                Action::Rest => return false,
                Action::Measure => {
                    self.measure();
                    done.measured = true;
                }
                Action::Purge => {
                    self.tenant().purge();
                    self.tenant().measure();
                    done.purged = true;
                }
                Action::EmptySlabs { target } => {
                    self.give_slack_back(cx, target, moved_max);
                    return false;
                }
                Action::Evict { target } => {
                    if cx.now.mono_ms() < self.sweeper.lock().sparse_until_ms {
                        return false;
                    }
                    self.make_room(cx, target, moved_max);
                    self.tenant().measure();
                    if memory_policy::left_sparse_slabs(figures.used, &self.memory_figures()) {
                        self.sweeper.lock().sparse_until_ms = cx.now.mono_ms() + FRUITLESS_MS;
                        return false;
                    }
                    return true;
                }
            }
        }
    }

    /// Gives free pages back some seconds after much was freed, since they may be needed again in a moment. Returns
    /// when.
    pub(crate) fn purge_when_due(&self, cx: &ThreadContext) -> Option<u32> {
        if !self.tenant().wants_purge() {
            return None;
        }
        let mut sweeper = self.sweeper.lock();
        let at_s = *sweeper.purge_at_s.get_or_insert(cx.now.unix_s + PURGE_DELAY_S);
        if at_s > cx.now.unix_s {
            return Some(at_s);
        }
        sweeper.purge_at_s = None;
        drop(sweeper);
        if self.tenant().has_shrunk() {
            self.purge();
        }
        None
    }

    /// Gives free pages back to the system now.
    pub(crate) fn purge(&self) {
        self.tenant().purge();
        self.measure();
    }

    /// As [`Self::purge`], after threads have come to rest on the bucket.
    pub(crate) fn purge_at_rest(&self) {
        self.end_paying();
        self.tenant().purge_at_rest();
        self.tenant().measure();
        self.note_measured_at_rest();
    }

    pub(super) fn measure(&self) {
        self.tenant().measure();
        self.note_measured();
    }

    /// Frees the memory of flushed items.
    pub(crate) fn reclaim_flushed(&self, cx: &mut ThreadContext) {
        self.reclaim(cx, |locked, hand| locked.reclaim_flushed(hand));
    }

    /// Frees the memory of the items of dropped collections.
    pub(crate) fn reclaim_dropped(&self, cx: &mut ThreadContext) {
        self.reclaim(cx, |locked, hand| locked.reclaim_dropped(hand));
    }

    /// Visits all groups of all vBuckets, until nothing more is found.
    fn reclaim(
        &self,
        cx: &mut ThreadContext,
        visit: impl Fn(&mut Locked<'_>, Hand) -> (usize, Option<Hand>),
    ) {
        for vb in 0..self.vbuckets() {
            let (mut hand, mut freed) = (Some(Hand::default()), 0);
            while let Some(at) = hand {
                let (count, next) = visit(&mut self.lock(cx, VbId(vb)), at);
                freed += count;
                hand = next.or_else(|| (std::mem::take(&mut freed) > 0).then(Hand::default));
            }
            self.lock(cx, VbId(vb)).tidy();
            cx.end_batch();
        }
    }

    /// Frees the memory of items whose expiry window has passed.
    pub(crate) fn reclaim_expired(&self, cx: &mut ThreadContext) {
        let mut parts = std::mem::take(&mut cx.parts);
        let (mut freed, mut unfetched) = (0, 0);
        for vb in 0..self.vbuckets() {
            loop {
                let mut locked = self.lock(cx, VbId(vb));
                let (count, unread, more) = locked.reclaim_expired(&mut parts);
                freed += count as u64;
                unfetched += unread as u64;
                if !more {
                    locked.tidy();
                    break;
                }
            }
            cx.end_batch();
        }
        cx.parts = parts;
        self.count(cx, Meter::ExpiredReclaimed, freed);
        self.count(cx, Meter::ExpiredUnfetched, unfetched);
        self.rearm_expiry();
    }
}
