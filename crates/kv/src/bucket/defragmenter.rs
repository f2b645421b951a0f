//! The defragmenter: gives back pages that hold few items, by moving these elsewhere.
//!
//! ```text
//!   disarmed ── a measurement shows waste, and slabs to be gained ──> armed
//!      ^                                                              │ passes over all vBuckets: slices of work, and rests
//!      └──── clean, or the last pass has brought too little ──────────┘
//! ```
//! Nothing is looked at while it is disarmed: what arms it are the measurements that allocating and freeing cause
//! ([`memory::Tenant::wants_measure`], [`memory::Tenant::wants_purge`]). A pass first empties slabs of the item heap,
//! one after the other ([`memory::Victim`]); then it goes by one survey of the allocator's slabs, and moves items and
//! index blocks out of the thin ones (`index/relocate.rs`). It ends with a purge and the next survey; while it goes on,
//! each measurement brings both.
//!
//! The caller owns the thread: it calls [`crate::pager::defragment`] and waits as long as that says. A turn works for a
//! fraction of a millisecond and rests for a multiple of what it took, so that whoever waits for the processor or for a
//! lock does not wait long; where nobody asks anything of the node, it rests less.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use memory::{Location, SlabFigures, Survey, Victim};

use crate::index::{Census, Moved, WalkPosition};
use crate::lock_order::{Ranked, rank};
use crate::memory_policy::{Gain, POLICY};
use crate::{Bucket, Meter, ThreadContext, VbId};

/// A pass that leaves more than this part, in eighths, of what it could have gained, is the last.
const FRUITLESS_EIGHTHS: u64 = 7;
/// But not if meanwhile as many items were stored or removed as this part of all there are: what it leaves is new.
const CHANGED_PART: u64 = 16;
/// After that, so much more than was left, in eighths, must be there to be gained.
const AGAIN_EIGHTHS: u64 = 10;
/// Work of a turn: for so long, or so many holds of a lock.
const WORK_US: u64 = 100;
const HOLDS_MAX: usize = 256;
/// After so many slabs that could not be emptied a pass tries no more.
const STUCK_SLABS_MAX: u32 = 8;
/// While slabs are owed, who stores something takes so many items, or bytes, out of thin ones first.
const PAID_ITEMS: usize = 32;
const PAID_BYTES: u64 = 64 << 10;
/// Rest after a turn, as a multiple of its work: while clients are served, and while none is.
const REST_BUSY: u64 = 22;
/// So many times that where blocks of the allocator are moved, which costs who uses them as much again.
const REST_BLOCKS: u64 = 2;
const REST_IDLE: u64 = 1;
/// Clients are being served if there was an operation in every such time, on average since the last turn.
const BUSY_OPERATION_US: u64 = 500;
/// Blocks that somebody may be peeking at are waited for.
const RETIRED_WAIT_US: u64 = 1000;

/// A bucket's defragmenter.
pub(crate) struct Defragmenter {
    /// Whether it may work at all.
    is_off: AtomicBool,
    /// There has been a measurement that it has not seen.
    measured: AtomicBool,
    /// And threads have come to rest before it.
    rested: AtomicBool,
    work: Ranked<Work, { rank::DEFRAGMENTER }>,
    /// What empties slabs for those who take others, see [`Bucket::pay_for_slabs`].
    paying: Ranked<Option<Emptier>, { rank::PAYING }>,
}

impl Defragmenter {
    pub(crate) fn new(is_on: bool) -> Self {
        let is_off = AtomicBool::new(!is_on);
        let (measured, rested) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { is_off, measured, rested, work: Ranked::default(), paying: Ranked::default() }
    }
}

#[derive(Default)]
struct Work {
    pass: Option<Pass>,
    /// Bytes to be gained, as last surveyed.
    recoverable_bytes: u64,
    /// Of these it knows that it does not get them, by a pass with these thresholds.
    stuck_bytes: u64,
    stuck_at: Option<&'static Gain>,
}

struct Pass {
    thresholds: &'static Gain,
    /// Until there are no more slabs to be emptied.
    emptier: Option<Emptier>,
    /// If the allocator tells how full its slabs are.
    mover: Option<Mover>,
    moved: Moved,
    /// Slabs, the allocator's and the heap's, at its beginning.
    slab_bytes: u64,
    recoverable_bytes: u64,
    /// Stores into the bucket before it, and items in it.
    stores: u64,
    items: u64,
    /// Stores before it was told to be thorough.
    quiet_stores: u64,
    work_us: u64,
}

/// What there was to be gained at one moment.
struct Prospect {
    survey: Option<Survey>,
    slabs: SlabFigures,
    stores: u64,
    items: u64,
}

/// Empties slabs of the item heap.
struct Emptier {
    free_per_mille: u32,
    /// Where what is worth least goes instead of being moved: how much that is.
    evicts: Option<Census>,
    evicted: u64,
    current: Option<(Victim, std::vec::IntoIter<(Location, u16)>)>,
    stuck: u32,
}

/// A walk over all of a bucket that moves what a survey says. It works in slices, and anything may happen between two.
#[derive(Debug)]
pub struct Mover {
    survey: Survey,
    vb: u16,
    position: WalkPosition,
    moved: Moved,
}

/// What the defragmenter says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefragmenterFigures {
    /// Whether the bucket has it switched on.
    pub is_on: bool,
    /// Whether it is at work.
    pub is_armed: bool,
    /// Bytes of the pages that could be given back if every item lay well, as last surveyed.
    pub recoverable_bytes: u64,
}

/// A pass that has ended.
#[derive(Debug, Clone)]
pub struct Passed {
    /// The bucket's name.
    pub bucket: Arc<str>,
    /// Items that were moved.
    pub items: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Bytes of slabs less than before.
    pub freed_bytes: u64,
    /// Microseconds of work.
    pub work_us: u64,
    /// What could still be gained.
    pub recoverable_bytes: u64,
    /// Whether there is another pass.
    pub goes_on: bool,
}

/// A turn of the defragmenter.
#[derive(Debug, Default)]
pub struct Turn {
    /// After so many microseconds it wants the next turn; `None` while it is disarmed.
    pub rest_us: Option<u64>,
    /// The pass that has ended in this turn.
    pub passed: Option<Passed>,
}

/// What clients asked for until a turn: the caller keeps it for the next.
#[derive(Debug, Default)]
pub struct Demand {
    operations: u64,
    at_us: u64,
    turns: usize,
}

/// Does some work, if there is any.
pub(crate) fn turn(buckets: &[Arc<Bucket>], cx: &mut ThreadContext, demand: &mut Demand) -> Turn {
    let began_us = cx.fresh_us();
    // Each in its turn: where clients never rest, the work does not end.
    let first = demand.next_bucket(buckets.len());
    let mut in_turn = buckets[first..].iter().chain(&buckets[..first]);
    let Some(bucket) = in_turn.find(|bucket| bucket.wants_defragmenting()) else {
        return Turn::default();
    };
    let is_busy = demand.is_lively(buckets, began_us);
    let rests = if is_busy && bucket.moves_blocks() { REST_BLOCKS } else { 1 };
    let passed = bucket.defragment(cx, began_us);
    let waits = cx.end_batch();
    let goes_on = buckets.iter().any(|bucket| bucket.wants_defragmenting());
    let worked_us = cx.fresh_us().saturating_sub(began_us);
    let rest_us = goes_on.then_some(rests * rest_us(worked_us, is_busy)).or(waits.then_some(RETIRED_WAIT_US));
    Turn { rest_us, passed }
}

impl Demand {
    /// Which of so many buckets is looked at first.
    fn next_bucket(&mut self, buckets: usize) -> usize {
        self.turns = self.turns.wrapping_add(1);
        self.turns % buckets.max(1)
    }

    /// Whether clients were being served since this was asked last.
    pub(crate) fn is_lively(&mut self, buckets: &[Arc<Bucket>], now_us: u64) -> bool {
        let operations = buckets.iter().map(|bucket| bucket.operations()).fold(0, u64::wrapping_add);
        let before = std::mem::replace(self, Self { operations, at_us: now_us, turns: self.turns });
        let (served, us) = (operations.wrapping_sub(before.operations), now_us.saturating_sub(before.at_us));
        served > 0 && served >= us / BUSY_OPERATION_US
    }
}

/// How long to rest after so much work.
pub(crate) fn rest_us(worked_us: u64, is_busy: bool) -> u64 {
    worked_us * if is_busy { REST_BUSY } else { REST_IDLE }
}

impl Bucket {
    /// The defragmenter's state.
    pub fn defragmenter(&self) -> DefragmenterFigures {
        let work = self.defragmenter.work.lock();
        DefragmenterFigures {
            is_on: self.has_defragmenter(),
            is_armed: work.pass.is_some(),
            recoverable_bytes: work.recoverable_bytes,
        }
    }

    /// Whether the defragmenter is switched on.
    pub fn has_defragmenter(&self) -> bool {
        !self.defragmenter.is_off.load(Relaxed)
    }

    /// Switches the defragmenter on or off.
    pub fn set_defragmenter(&self, is_on: bool) {
        self.defragmenter.is_off.store(!is_on, Relaxed);
        let mut work = self.defragmenter.work.lock();
        if is_on {
            work.stuck_bytes = 0;
            self.defragmenter.measured.store(true, Relaxed);
        } else {
            work.pass = None;
            self.end_paying();
        }
        drop(work);
        self.ring_pager();
    }

    /// There has been a measurement.
    pub(crate) fn note_measured(&self) {
        self.defragmenter.measured.store(true, Relaxed);
        self.compressor.note_measured();
    }

    /// Threads have come to rest, and there has been a measurement.
    pub(crate) fn note_measured_at_rest(&self) {
        self.defragmenter.rested.store(true, Relaxed);
        self.note_measured();
    }

    /// Bytes of pages that hold nothing, as measured last, and those free in slabs now.
    fn wasted_bytes(&self) -> u64 {
        let slabs = self.tenant().slab_figures();
        self.tenant().waste() + slabs.slab_bytes.saturating_sub(slabs.slot_bytes)
    }

    /// Whether what was measured last is reason enough to look for thin slabs.
    pub(crate) fn is_wasteful(&self) -> bool {
        self.wastes(&POLICY.serving)
    }

    fn wastes(&self, thresholds: &Gain) -> bool {
        thresholds.is_wasteful(self.tenant().used(), self.wasted_bytes())
    }

    /// Whether there is work; looks at what was measured meanwhile.
    fn wants_defragmenting(&self) -> bool {
        let measured = self.defragmenter.measured.swap(false, Relaxed);
        if !self.has_defragmenter() {
            return false;
        }
        let thresholds = match measured && self.defragmenter.rested.swap(false, Relaxed) {
            true => &POLICY.at_rest,
            false => &POLICY.serving,
        };
        let mut work = self.defragmenter.work.lock();
        if measured && self.wastes(thresholds) {
            match &mut work.pass {
                None => work.consider(self.prospect(), thresholds, self.worth_bytes(thresholds)),
                Some(pass) => {
                    if thresholds == &POLICY.at_rest {
                        pass.be_thorough(self.meter(Meter::TotalItems));
                    }
                    // What has come free in it so far does not always fit what is wanted now.
                    self.tenant().purge();
                    self.tenant().measure();
                    pass.look_again(self.tenant().survey());
                }
            }
        }
        work.pass.is_some()
    }

    fn prospect(&self) -> Prospect {
        Prospect {
            survey: self.tenant().survey(),
            slabs: self.tenant().slab_figures(),
            stores: self.meter(Meter::TotalItems),
            items: self.accounts().items,
        }
    }

    /// So much must be there to be gained.
    fn worth_bytes(&self, thresholds: &Gain) -> u64 {
        thresholds.worth_bytes(self.tenant().used())
    }

    /// Whether the pass it is at has no slabs of ours to empty any more.
    fn moves_blocks(&self) -> bool {
        self.defragmenter.work.lock().pass.as_ref().is_some_and(|pass| pass.emptier.is_none())
    }

    /// Works for a while on the pass it is at. Returns the pass if it has ended.
    fn defragment(&self, cx: &mut ThreadContext, began_us: u64) -> Option<Passed> {
        let mut work = self.defragmenter.work.lock();
        let pass = work.pass.as_mut()?;
        let before = pass.moved;
        self.go_direct(cx, true);
        let mut goes_on = true;
        for _ in 0..HOLDS_MAX {
            goes_on = pass.slice(self, cx);
            if !goes_on || cx.fresh_us() >= began_us + WORK_US {
                break;
            }
        }
        self.go_direct(cx, false);
        let worked_us = cx.fresh_us().saturating_sub(began_us);
        pass.work_us += worked_us;
        self.count(cx, Meter::DefragmentedItems, pass.moved.items - before.items);
        self.count(cx, Meter::DefragmentedBytes, pass.moved.bytes - before.bytes);
        self.count(cx, Meter::DefragmentingUs, worked_us);
        if goes_on {
            return None;
        }
        // What was replaced of the index is in the way of its old slabs.
        cx.end_batch();
        let pass = work.pass.take()?;
        if pass.moved.bytes > 0 {
            self.tenant().purge();
            self.tenant().measure();
        }
        let prospect = self.prospect();
        let freed_bytes = pass.slab_bytes.saturating_sub(prospect.slab_bytes());
        self.count(cx, Meter::DefragmentationFreed, freed_bytes);
        let thresholds = pass.thresholds_after(&prospect);
        work.go_on(&pass, prospect, thresholds, self.worth_bytes(thresholds));
        Some(Passed {
            bucket: self.name().into(),
            items: pass.moved.items,
            bytes: pass.moved.bytes,
            freed_bytes,
            work_us: pass.work_us,
            recoverable_bytes: work.recoverable_bytes,
            goes_on: work.pass.is_some(),
        })
    }

    /// Takes some items out of thin slabs, for the slabs that were taken while there were such: what slabs have free is
    /// bounded by that, however fast clients make them thin.
    #[cold]
    pub(crate) fn pay_for_slabs(&self, cx: &mut ThreadContext) {
        if !self.has_defragmenter() {
            self.tenant().forgive_slabs();
            return;
        }
        // Who has the lock is paying; that is enough as long as it suffices.
        let paying = self.defragmenter.paying.try_lock();
        let paying =
            paying.or_else(|| self.tenant().has_large_slab_debt().then(|| self.defragmenter.paying.lock()));
        let Some(mut paying) = paying else { return };
        let emptier = paying.get_or_insert_with(|| Emptier::new(POLICY.serving.slab_free_per_mille));
        let mut moved = Moved::default();
        for _ in 0..PAID_ITEMS {
            if !emptier.slice(self, cx, &mut moved) {
                self.tenant().forgive_slabs();
                break;
            }
            if moved.bytes >= PAID_BYTES {
                break;
            }
        }
        if !self.tenant().has_slab_debt() {
            *paying = None;
        }
        self.count(cx, Meter::DefragmentedItems, moved.items);
        self.count(cx, Meter::DefragmentedBytes, moved.bytes);
    }

    /// Leaves the slab that is being emptied as it is: it may be that nobody stores anything any more.
    pub(crate) fn end_paying(&self) {
        *self.defragmenter.paying.lock() = None;
    }

    /// Empties slabs while slabs have more free than they may, until `used` is down to `target` or about `moved_max`
    /// bytes have been moved. Where items may be evicted, the least used ones of a slab go and the others move:
    /// evicting by itself would only make more free slots.
    pub(crate) fn give_slack_back(&self, cx: &mut ThreadContext, target: u64, moved_max: u64) {
        if !self.has_defragmenter() {
            return;
        }
        let mut moved = Moved::default();
        let mut emptier = Emptier { evicts: self.may_evict().then(|| self.census()), ..Emptier::new(0) };
        let presses = || self.tenant().excess_slack() > 0 && self.tenant().used() > target;
        while presses() && moved.bytes < moved_max && emptier.slice(self, cx, &mut moved) {
            self.give_freed_slabs_back();
        }
        self.count(cx, Meter::DefragmentedItems, moved.items);
        self.count(cx, Meter::DefragmentedBytes, moved.bytes);
        self.count(cx, Meter::Evictions, emptier.evicted);
        self.count(cx, Meter::EvictedUnfetched, moved.unfetched_gone);
        if let Some(census) = emptier.evicts {
            self.keep_census(census);
        }
    }

    /// Operations served so far, more or less.
    fn operations(&self) -> u64 {
        self.meter(Meter::CmdGet).wrapping_add(self.meter(Meter::CmdSet))
    }
}

impl Work {
    /// Begins a pass if there is enough to be gained, and not only what the last one has left behind.
    fn consider(&mut self, prospect: Prospect, thresholds: &'static Gain, worth_bytes: u64) {
        self.recoverable_bytes = prospect.recoverable_bytes();
        // One that was less thorough has not tried all.
        let has_tried = self.stuck_at.is_none_or(|tried| tried == &POLICY.at_rest || tried == thresholds);
        let again = if has_tried { self.stuck_bytes / 8 * AGAIN_EIGHTHS } else { 0 };
        if self.recoverable_bytes > worth_bytes.max(again) {
            self.pass = Some(Pass::new(prospect, thresholds));
        }
    }

    /// After a pass: the next one, or none.
    fn go_on(&mut self, pass: &Pass, prospect: Prospect, thresholds: &'static Gain, worth_bytes: u64) {
        self.recoverable_bytes = prospect.recoverable_bytes();
        self.stuck_bytes = 0;
        if self.recoverable_bytes <= worth_bytes {
            return;
        }
        let was_fruitful = self.recoverable_bytes < pass.recoverable_bytes / 8 * FRUITLESS_EIGHTHS;
        let stored = prospect.stores.saturating_sub(pass.stores);
        let removed = pass.items.saturating_sub(prospect.items);
        if was_fruitful || stored.max(removed) > prospect.items / CHANGED_PART {
            self.pass = Some(Pass::new(prospect, thresholds));
        } else {
            (self.stuck_bytes, self.stuck_at) = (self.recoverable_bytes, Some(pass.thresholds));
        }
    }
}

impl Pass {
    fn new(prospect: Prospect, thresholds: &'static Gain) -> Self {
        Self {
            thresholds,
            moved: Moved::default(),
            slab_bytes: prospect.slab_bytes(),
            recoverable_bytes: prospect.recoverable_bytes(),
            stores: prospect.stores,
            items: prospect.items,
            quiet_stores: prospect.stores,
            work_us: 0,
            emptier: Some(Emptier::new(thresholds.slab_free_per_mille)),
            mover: prospect.survey.map(Mover::new),
        }
    }

    /// From here on, as one that begins at rest.
    fn be_thorough(&mut self, stores: u64) {
        (self.thresholds, self.quiet_stores) = (&POLICY.at_rest, stores);
        if let Some(emptier) = &mut self.emptier {
            emptier.free_per_mille = POLICY.at_rest.slab_free_per_mille;
        }
    }

    /// For the pass after this one: it was no rest if much has been stored since.
    fn thresholds_after(&self, prospect: &Prospect) -> &'static Gain {
        let stored = prospect.stores.saturating_sub(self.quiet_stores);
        if stored > prospect.items / CHANGED_PART { &POLICY.serving } else { self.thresholds }
    }

    /// What is thin now may not have been when the walk began.
    fn look_again(&mut self, survey: Option<Survey>) {
        if let (Some(mover), Some(survey)) = (&mut self.mover, survey) {
            mover.survey = survey;
        }
    }

    /// Works under one hold of a lock. Returns whether there is more to do.
    fn slice(&mut self, bucket: &Bucket, cx: &mut ThreadContext) -> bool {
        if let Some(emptier) = &mut self.emptier {
            // Once everything could have been moved, what is left is new.
            if self.moved.bytes > self.slab_bytes || !emptier.slice(bucket, cx, &mut self.moved) {
                self.emptier = None;
            }
            return self.emptier.is_some() || self.mover.is_some();
        }
        let Some(mover) = &mut self.mover else { return false };
        let before = mover.moved;
        let goes_on = mover.slice(bucket, cx);
        self.moved.items += mover.moved.items - before.items;
        self.moved.bytes += mover.moved.bytes - before.bytes;
        goes_on
    }
}

impl Prospect {
    fn recoverable_bytes(&self) -> u64 {
        let blocks = self.survey.as_ref().map_or(0, Survey::recoverable_bytes);
        blocks + self.slabs.recoverable_bytes(POLICY.at_rest.slab_free_per_mille)
    }

    fn slab_bytes(&self) -> u64 {
        self.survey.as_ref().map_or(0, Survey::slab_bytes) + self.slabs.slab_bytes
    }
}

impl Emptier {
    fn new(free_per_mille: u32) -> Self {
        Self { free_per_mille, evicts: None, evicted: 0, current: None, stuck: 0 }
    }

    /// Takes one item out of the slab that is being emptied, or takes the next slab on. Returns whether there is one.
    fn slice(&mut self, bucket: &Bucket, cx: &mut ThreadContext, moved: &mut Moved) -> bool {
        let Some((victim, occupied)) = &mut self.current else {
            let victim = Victim::choose(bucket.tenant(), self.free_per_mille);
            self.current = victim.filter(|_| self.stuck < STUCK_SLABS_MAX).map(|victim| {
                let occupied: Vec<_> = victim.occupied().collect();
                (victim, occupied.into_iter())
            });
            return self.current.is_some();
        };
        match occupied.next() {
            Some((location, owner)) => {
                let mut gone = bucket.wants_evictions().then(Vec::new);
                let mut locked = bucket.lock(cx, VbId(owner));
                // What was there may have gone meanwhile; under this lock it does not.
                if victim.holds(location, owner) {
                    match &mut self.evicts {
                        Some(census) => {
                            self.evicted +=
                                u64::from(locked.evict_or_move(location, census, moved, gone.as_mut()));
                        }
                        None => locked.move_item(location, moved),
                    }
                }
                drop(locked);
                if let Some(gone) = gone {
                    bucket.tell_evicted(cx, gone.into_iter());
                }
            }
            None => {
                self.stuck += u32::from(victim.used() > 0);
                self.current = None;
            }
        }
        true
    }
}

/// Empties slabs of the item heap while any of their class's slots are free, up to `slabs` of them: for tests, whose
/// slabs are few. Returns how many items were moved.
pub fn empty_slabs(bucket: &Bucket, cx: &mut ThreadContext, slabs: usize) -> u64 {
    let mut moved = Moved::default();
    for _ in 0..slabs {
        let mut emptier = Emptier::new(0);
        while emptier.slice(bucket, cx, &mut moved) && emptier.current.is_some() {}
    }
    moved.items
}

impl Mover {
    /// Moves what lies in slabs that the survey calls thin.
    fn new(survey: Survey) -> Self {
        Self { survey, vb: 0, position: WalkPosition::default(), moved: Moved::default() }
    }

    /// Moves everything that may move, wherever it lies: for tests, which have few items.
    pub fn of_everything() -> Self {
        Self::new(Survey::everything_is_thin())
    }

    /// Moves a slice under one hold of a lock. Returns whether there is more.
    pub fn slice(&mut self, bucket: &Bucket, cx: &mut ThreadContext) -> bool {
        let (moved, position) =
            bucket.lock(cx, VbId(self.vb)).move_out_of_thin_slabs(self.position, &self.survey);
        self.moved.items += moved.items;
        self.moved.bytes += moved.bytes;
        self.position = position.unwrap_or_default();
        self.vb += u16::from(position.is_none());
        self.vb < bucket.vbuckets()
    }

    /// How many items it has moved.
    pub fn moved_items(&self) -> u64 {
        self.moved.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORTH: u64 = 2 << 20;

    #[test]
    fn a_pass_without_gain_is_the_last_unless_much_has_changed_meanwhile() {
        let wasteful_with = |stores, items| {
            let slabs = SlabFigures { slab_bytes: 100 << 20, slot_bytes: 50 << 20 };
            Prospect { survey: None, slabs, stores, items }
        };
        let wasteful = |stores| wasteful_with(stores, 1600);
        let mut work = Work::default();
        work.consider(wasteful(7), &POLICY.serving, WORTH);
        let pass = work.pass.take().unwrap();
        work.go_on(&pass, wasteful(7 + 100), &POLICY.serving, WORTH);
        assert!(work.pass.is_none(), "it would go on for ever");
        work.consider(wasteful(7 + 100), &POLICY.serving, WORTH);
        assert!(work.pass.is_none(), "that is what it has left behind");
        work.consider(wasteful(7 + 100), &POLICY.at_rest, WORTH);
        let mut thorough = work.pass.take().expect("at rest it tries harder");
        assert_eq!(thorough.thresholds_after(&wasteful(107 + 100)), &POLICY.at_rest);
        assert_eq!(thorough.thresholds_after(&wasteful(107 + 101)), &POLICY.serving, "that was no rest");
        thorough.be_thorough(107 + 101);
        assert_eq!(thorough.thresholds_after(&wasteful(107 + 101)), &POLICY.at_rest);
        work.go_on(&pass, wasteful(7 + 101), &POLICY.serving, WORTH);
        assert!(work.pass.take().is_some(), "what is left now is not what there was");
        work.go_on(&pass, wasteful_with(7, 1500), &POLICY.serving, WORTH);
        assert!(work.pass.is_some(), "nor what came free by deletes");
    }
}
