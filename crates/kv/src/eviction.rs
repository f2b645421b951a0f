//! Staying within the budget: who goes when memory runs out.
//!
//! A clock hand walks over all vBuckets, one group of items per hold of a lock. Each visit ages an item; an item whose
//! frequency has been halved away since its last access goes (see the rank bits in the index slot). Dead items met on the
//! way go too. Workers turn the hand themselves only above the refusing watermark; below it the pager does.

use crate::bucket::{HIGH_WATERMARK, LOW_WATERMARK};
use crate::index::Hand;
use crate::settings::Eviction;
use crate::{Bucket, Cx, Meter, VbId};

/// An item is evicted within so many visits of the hand, whatever its frequency.
const VISITS_MAX: u64 = 6;
/// Per-mille of the budget wasted above which free pages are given back before anything is evicted.
const PURGE_WASTE: u64 = 10;
/// Free pages are given back so long after they became many.
const PURGE_DELAY_S: u32 = 4;
/// Rounds of evicting, purging and measuring per turn of the pager.
const ROUNDS_MAX: usize = 8;

/// Where the hand stands, and what the pager has planned.
#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    vb: u16,
    hand: Hand,
    /// When free pages are to be given back, in unix seconds.
    purge_at_s: Option<u32>,
}

impl Bucket {
    /// Evicts until `used` is down to `target`, or until everything has been visited often enough.
    pub(crate) fn make_room(&self, cx: &mut Cx, target: u64) {
        let mut sweeper = self.sweeper.lock();
        let Some(mut excess) = self.tenant().used().checked_sub(target) else { return };
        let mut evicted = 0;
        let mut wraps_left = VISITS_MAX * u64::from(self.vbuckets());
        while excess > 0 && wraps_left > 0 {
            let (bytes, living, next) = self.lock(cx, VbId(sweeper.vb)).sweep(sweeper.hand);
            excess = excess.saturating_sub(bytes);
            evicted += living;
            sweeper.hand = next.unwrap_or_default();
            if next.is_none() {
                sweeper.vb = (sweeper.vb + 1) % self.vbuckets();
                wraps_left -= 1;
            }
        }
        drop(sweeper);
        self.count(cx, Meter::Evictions, evicted);
        cx.end_batch();
    }

    /// The pager's part: measures, gives free pages back, then evicts, until resident memory is within the watermarks.
    pub(crate) fn keep_within_budget(&self, cx: &mut Cx) {
        let mark = |per_mille: u64| self.tenant().budget() / 1000 * per_mille;
        for _ in 0..ROUNDS_MAX {
            if self.tenant().used() <= mark(HIGH_WATERMARK) && !self.tenant().wants_measure() {
                break;
            }
            self.tenant().measure();
            if self.tenant().used() <= mark(HIGH_WATERMARK) {
                break;
            }
            if self.tenant().waste() > mark(PURGE_WASTE) {
                self.tenant().purge();
                self.tenant().measure();
            }
            if self.tenant().used() <= mark(HIGH_WATERMARK)
                || self.settings().eviction == Eviction::FailNewData
            {
                break;
            }
            self.make_room(cx, mark(LOW_WATERMARK));
        }
    }

    /// Gives free pages back some seconds after much was freed: what is freed now may be needed in a moment. Gives when.
    pub(crate) fn purge_when_due(&self, cx: &Cx) -> Option<u32> {
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
        if !self.tenant().has_shrunk() {
            return None;
        }
        self.tenant().purge();
        self.tenant().measure();
        None
    }

    /// Frees the memory of flushed items.
    pub(crate) fn reclaim_flushed(&self, cx: &mut Cx) {
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
    pub(crate) fn reclaim_expired(&self, cx: &mut Cx) {
        let mut parts = std::mem::take(&mut cx.parts);
        let mut freed = 0;
        for vb in 0..self.vbuckets() {
            loop {
                let mut locked = self.lock(cx, VbId(vb));
                let (count, more) = locked.reclaim_expired(&mut parts);
                freed += count as u64;
                if !more {
                    locked.tidy();
                    break;
                }
            }
            cx.end_batch();
        }
        cx.parts = parts;
        self.count(cx, Meter::ExpiredReclaimed, freed);
        self.rearm_expiry();
    }
}
