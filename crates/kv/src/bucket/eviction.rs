//! Staying within the budget: who goes when memory runs out.
//!
//! A clock hand walks over all vBuckets, one group of items per hold of a lock. Items visited take note of whether they
//! were accessed since the last visit (see `index/rank.rs`), and those of them go that belong to the least worthy
//! quarter of all visited lately. Dead items met on the way go too. In a persistent bucket only values go, of documents
//! that are on disk. Workers turn the hand themselves only above the refusing watermark; below it the pager does.
//!
//! What goes out of a slab leaves a free slot, not a free page. So where slabs have more free than new items need, one
//! slab after the other is emptied instead: its least used items go, the others move (`docs/decisions/0016`).

use super::attention;
use crate::index::{Census, Hand, Swept};
use crate::memory_policy::{self, Action, Done, POLICY};
use crate::{Bucket, Meter, ThreadContext, VbId};

/// Rounds of the hand over all items after which evicting ends, whatever is left.
const ROUNDS_MAX: usize = 32;
/// Free pages are given back so long after they became many.
const PURGE_DELAY_S: u32 = 4;
/// Where a search has found nothing to eject, it is not repeated for so long: all that is left waits for the flusher.
const FRUITLESS_MS: u64 = 100;
/// Times of evicting, purging and measuring per turn of the pager, and of emptying slabs and evicting to make room.
const TURNS_MAX: usize = 8;
/// In each of them the pager moves at most so many bytes, as a part of the budget.
const MOVED_FRACTION: u64 = 64;
/// Where less than this is missing (or than that part of the budget), more may go than is missing, so that slabs can be
/// emptied.
const EVICTED_MAX: u64 = 256 << 10;

/// Where the hand stands, and what the pager has planned.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    vb: u16,
    hand: Hand,
    census: Census,
    /// When free pages are to be given back, in unix seconds.
    purge_at_s: Option<u32>,
    /// In a persistent bucket nothing could be freed: not looked for again before this, ms of the monotonic clock.
    fruitless_until_ms: u64,
    /// What was evicted left thin slabs: the pager does not go on before this.
    thin_until_ms: u64,
}

impl Bucket {
    /// Evicts until `used` is down to `target`: by slabs, until about `moved_max` bytes have been moved; then by the
    /// hand, until everything has been visited often enough. What goes by the hand may leave free slots only: then once
    /// more by slabs, which have room now to be emptied into each other. While it was not enough for that, twice as
    /// much goes, up to [`EVICTED_MAX`].
    pub(crate) fn make_room(&self, cx: &mut ThreadContext, target: u64, moved_max: u64) {
        let persistent = self.persistence().is_some();
        if persistent {
            // Before the first value goes, so that whoever misses one has looked.
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

    /// Values may have left memory since requests were told to look: if nobody missed one meanwhile, somebody may have
    /// taken that back.
    fn note_ejected(&self) {
        // ORDERING: after the last value went; see `attention`.
        if self.dirty().is_some_and(|dirty| dirty.ejected().0 > 0) {
            self.raise(attention::EJECTED);
        }
    }

    /// Gives back the pages of freed slabs, if they are many.
    pub(crate) fn give_freed_slabs_back(&self) {
        if POLICY.has_many_freed_slabs(self.tenant().budget(), self.tenant().freed_slabs()) {
            self.tenant().purge();
            self.tenant().measure();
        }
    }

    /// Evicts about `most` bytes by the hand. Returns whether `least` could go.
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

    /// What is known of the worth of items, for whoever evicts otherwise than by the hand.
    pub(crate) fn census(&self) -> Census {
        self.sweeper.lock().census.clone()
    }

    /// Keeps what the other has learnt.
    pub(crate) fn keep_census(&self, census: Census) {
        self.sweeper.lock().census = census;
    }

    /// Moves the hand over all items, until what has gone makes up for the excess. Starting within a vBucket, it comes
    /// there twice.
    fn sweep_round(&self, cx: &mut ThreadContext, sweeper: &mut Sweeper, excess: &mut u64) -> Swept {
        let (mut round, mut ended) = (Swept::default(), 0);
        let mut gone = self.wants_evictions().then(Vec::new);
        while *excess > 0 && ended <= self.vbuckets() {
            let mut locked = self.lock(cx, VbId(sweeper.vb));
            let swept = locked.sweep(sweeper.hand, &mut sweeper.census, gone.as_mut());
            drop(locked);
            if let Some(gone) = &mut gone {
                self.tell_evicted(cx, gone.drain(..));
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

    /// The pager's part: what [`memory_policy::decide`] says, until resident memory is within the watermarks.
    pub(crate) fn keep_within_budget(&self, cx: &mut ThreadContext) {
        for _ in 0..TURNS_MAX {
            if !self.turn_pager(cx) {
                break;
            }
        }
    }

    /// Decides and acts, until something was evicted. Returns whether more of it may help.
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
                    if cx.now.mono_ms() < self.sweeper.lock().thin_until_ms {
                        return false;
                    }
                    self.make_room(cx, target, moved_max);
                    self.tenant().measure();
                    if memory_policy::left_thin_slabs(figures.used, &self.memory_figures()) {
                        self.sweeper.lock().thin_until_ms = cx.now.mono_ms() + FRUITLESS_MS;
                        return false;
                    }
                    return true;
                }
            }
        }
    }

    /// Gives free pages back some seconds after much was freed: what is freed now may be needed in a moment. Returns
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

    /// As [`Self::purge`], for a bucket that threads have come to rest on.
    pub(crate) fn purge_at_rest(&self) {
        self.end_paying();
        self.tenant().purge_at_rest();
        self.tenant().measure();
        self.note_measured_at_rest();
    }

    fn measure(&self) {
        self.tenant().measure();
        self.note_measured();
    }

    /// Frees the memory of flushed items.
    pub(crate) fn reclaim_flushed(&self, cx: &mut ThreadContext) {
        for vb in 0..self.vbuckets() {
            let (mut hand, mut freed) = (Some(Hand::default()), 0);
            while let Some(at) = hand {
                let (count, next) = self.lock(cx, VbId(vb)).reclaim_flushed(at);
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
