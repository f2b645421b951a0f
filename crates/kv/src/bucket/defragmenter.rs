//! The defragmenter: moves items out of pages that hold few, and gives the pages back.
//!
//! ```text
//!   disarmed ── a measurement shows waste, and slabs to be gained ──> armed
//!      ^                                                              │ passes over all vBuckets: slices of work, and rests
//!      └──── clean, or the last pass has brought too little ──────────┘
//! ```
//! Nothing is examined while it is disarmed. It is armed by the measurements that allocating and freeing cause
//! ([`memory::Tenant::wants_measure`], [`memory::Tenant::wants_purge`]). A pass first empties slabs of the item heap,
//! one after the other ([`memory::Victim`]). Then it follows one survey of the allocator's slabs, and moves items and
//! index blocks out of the sparse ones (`index/relocate.rs`). It ends with a purge and the next survey; during a pass,
//! each measurement brings both.
//!
//! The caller owns the thread: it calls [`crate::pager::defragment`] and waits as long as the result says. A turn works
//! for a fraction of a millisecond and rests for a multiple of the time it took, so that nobody waits long for the
//! processor or for a lock. It rests less while nobody sends requests to the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use memory::{Location, SlabFigures, Survey, Victim};

use crate::index::{Census, Moved, WalkPosition};
use crate::lock_order::{Ranked, rank};
use crate::memory_policy::{Gain, POLICY};
use crate::{Bucket, Meter, ThreadContext, VbId};

/// A pass that leaves more than this many eighths of what it could have gained is the last one,
const FRUITLESS_EIGHTHS: u64 = 7;
/// unless more items than all of them divided by this were stored or removed meanwhile: what it leaves is new then.
const CHANGED_PART: u64 = 16;
/// After that, a pass begins only if more than this many eighths of what was left can be gained.
const AGAIN_EIGHTHS: u64 = 10;
/// Bounds of a turn's work: its time, and its holds of a lock.
const WORK_US: u64 = 100;
const HOLDS_MAX: usize = 256;
/// A pass gives up after this many slabs that could not be emptied.
const STUCK_SLABS_MAX: u32 = 8;
/// While there is slab debt, a thread that stores first takes this many items, or bytes, out of sparse slabs.
const PAID_ITEMS: usize = 32;
const PAID_BYTES: u64 = 64 << 10;
/// Rest after a turn, as a multiple of its work: while clients are served, and while none is.
const REST_BUSY: u64 = 22;
/// The rest is this many times longer while the allocator's blocks are moved, which costs their users as much again.
const REST_BLOCKS: u64 = 2;
const REST_IDLE: u64 = 1;
/// Clients are being served if there was at least one operation in this time, on average since the last turn.
const BUSY_OPERATION_US: u64 = 500;
/// How long to wait for blocks that a thread may be peeking at.
const RETIRED_WAIT_US: u64 = 1000;

/// A bucket's defragmenter.
pub(crate) struct Defragmenter {
    /// Set if it may not work at all.
    is_off: AtomicBool,
    /// Set by a measurement that it has not seen yet.
    measured: AtomicBool,
    /// Set if threads came to rest before that measurement.
    rested: AtomicBool,
    work: Ranked<Work, { rank::DEFRAGMENTER }>,
    /// Empties slabs for threads that take new ones, see [`Bucket::repay_slab_debt`].
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
    /// The part of them that a pass with these thresholds could not gain.
    stuck_bytes: u64,
    stuck_at: Option<&'static Gain>,
}

struct Pass {
    thresholds: &'static Gain,
    /// `None` once there are no more slabs to empty.
    emptier: Option<Emptier>,
    /// `None` if the allocator does not report how full its slabs are.
    mover: Option<Mover>,
    moved: Moved,
    /// Bytes of slabs, the allocator's and the heap's, at its beginning.
    slab_bytes: u64,
    recoverable_bytes: u64,
    /// Stores into the bucket, and its items, at the beginning of the pass.
    stores: u64,
    items: u64,
    /// Stores when the pass began, or was told to be thorough.
    quiet_stores: u64,
    work_us: u64,
}

/// What could be gained at one moment.
struct Prospect {
    survey: Option<Survey>,
    slabs: SlabFigures,
    stores: u64,
    items: u64,
}

/// Empties slabs of the item heap.
struct Emptier {
    free_per_mille: u32,
    /// Set if the least valuable items are evicted instead of moved: the census to judge them by.
    evicts: Option<Census>,
    evicted: u64,
    current: Option<(Victim, std::vec::IntoIter<(Location, u16)>)>,
    stuck: u32,
}

/// A walk over a bucket that moves what a survey selects. It works in slices, and anything may happen between two.
#[derive(Debug)]
pub struct Mover {
    survey: Survey,
    vb: u16,
    position: WalkPosition,
    moved: Moved,
}

/// The defragmenter's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefragmenterFigures {
    /// Whether the bucket has it switched on.
    pub is_on: bool,
    /// Whether it is at work.
    pub is_armed: bool,
    /// Bytes of pages that could be given back if items were packed densely, as last surveyed.
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
    /// Bytes by which slabs have shrunk.
    pub freed_bytes: u64,
    /// Microseconds of work.
    pub work_us: u64,
    /// What could still be gained.
    pub recoverable_bytes: u64,
    /// Whether another pass follows.
    pub goes_on: bool,
}

/// The result of a turn.
#[derive(Debug, Default)]
pub struct Turn {
    /// Microseconds until the next turn; `None` while it is disarmed.
    pub rest_us: Option<u64>,
    /// The pass that ended in this turn.
    pub passed: Option<Passed>,
}

/// Client operations counted up to a turn; the caller keeps it for the next one.
#[derive(Debug, Default)]
pub struct Demand {
    operations: u64,
    at_us: u64,
    turns: usize,
}

/// Does some work, if there is any.
pub(crate) fn turn(buckets: &[Arc<Bucket>], cx: &mut ThreadContext, demand: &mut Demand) -> Turn {
    let began_us = cx.fresh_us();
    // The buckets take turns: where clients never rest, the work does not end.
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
    /// Returns which of this many buckets is checked first.
    fn next_bucket(&mut self, buckets: usize) -> usize {
        self.turns = self.turns.wrapping_add(1);
        self.turns % buckets.max(1)
    }

    /// Returns true if clients were served since the last call.
    pub(crate) fn is_lively(&mut self, buckets: &[Arc<Bucket>], now_us: u64) -> bool {
        let operations = buckets.iter().map(|bucket| bucket.operations()).fold(0, u64::wrapping_add);
        let before = std::mem::replace(self, Self { operations, at_us: now_us, turns: self.turns });
        let (served, us) = (operations.wrapping_sub(before.operations), now_us.saturating_sub(before.at_us));
        served > 0 && served >= us / BUSY_OPERATION_US
    }
}

/// Returns how long to rest after this much work.
pub(crate) fn rest_us(worked_us: u64, is_busy: bool) -> u64 {
    worked_us * if is_busy { REST_BUSY } else { REST_IDLE }
}

impl Bucket {
    /// Returns the defragmenter's state.
    pub fn defragmenter(&self) -> DefragmenterFigures {
        let work = self.defragmenter.work.lock();
        DefragmenterFigures {
            is_on: self.has_defragmenter(),
            is_armed: work.pass.is_some(),
            recoverable_bytes: work.recoverable_bytes,
        }
    }

    /// Returns true if the defragmenter is switched on.
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

    /// Notes that there has been a measurement.
    pub(crate) fn note_measured(&self) {
        self.defragmenter.measured.store(true, Relaxed);
        self.compressor.note_measured();
    }

    /// Notes that threads have come to rest, and that there has been a measurement.
    pub(crate) fn note_measured_at_rest(&self) {
        self.defragmenter.rested.store(true, Relaxed);
        self.note_measured();
    }

    /// Returns the bytes of pages that hold nothing, as last measured, plus those free in slabs now.
    fn wasted_bytes(&self) -> u64 {
        let slabs = self.tenant().slab_figures();
        self.tenant().waste() + slabs.slab_bytes.saturating_sub(slabs.slot_bytes)
    }

    fn wastes(&self, thresholds: &Gain) -> bool {
        thresholds.is_wasteful(self.tenant().used(), self.wasted_bytes())
    }

    /// Returns true if there is work, after taking note of new measurements.
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
                    // The memory freed so far does not always fit what is wanted now.
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

    /// Returns the least gain worth a pass.
    fn worth_bytes(&self, thresholds: &Gain) -> u64 {
        thresholds.worth_bytes(self.tenant().used())
    }

    /// Returns true if the current pass has no more slabs of the item heap to empty.
    fn moves_blocks(&self) -> bool {
        self.defragmenter.work.lock().pass.as_ref().is_some_and(|pass| pass.emptier.is_none())
    }

    /// Works on the current pass for a while. Returns the pass if it has ended.
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
        // Index blocks that were replaced keep their old slabs from being freed.
        cx.end_batch();
        let pass = work.pass.take()?;
        if pass.moved.bytes > 0 {
            self.tenant().purge();
            self.tenant().measure();
        }
        let prospect = self.prospect();
        let freed_bytes = pass.slab_bytes.saturating_sub(prospect.slab_bytes());
        self.count(cx, Meter::DefragmentationFreed, freed_bytes);
        self.count(cx, Meter::DefragmenterPasses, 1);
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

    /// Works off slab debt by taking some items out of sparse slabs. This bounds the free space in slabs, however fast
    /// clients make them sparse.
    #[cold]
    pub(crate) fn repay_slab_debt(&self, cx: &mut ThreadContext) {
        if !self.has_defragmenter() {
            self.tenant().cancel_slab_debt();
            return;
        }
        // Whoever has the lock is paying; that suffices unless the debt is large.
        let paying = self.defragmenter.paying.try_lock();
        let paying =
            paying.or_else(|| self.tenant().has_large_slab_debt().then(|| self.defragmenter.paying.lock()));
        let Some(mut paying) = paying else { return };
        let emptier = paying.get_or_insert_with(|| Emptier::new(POLICY.serving.slab_free_per_mille));
        let mut moved = Moved::default();
        for _ in 0..PAID_ITEMS {
            if !emptier.slice(self, cx, &mut moved) {
                self.tenant().cancel_slab_debt();
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

    /// Abandons the slab that is being emptied: there may be no more stores to finish it.
    pub(crate) fn end_paying(&self) {
        *self.defragmenter.paying.lock() = None;
    }

    /// Empties slabs while they have more free space than they may, until `used` is down to `target` or about
    /// `moved_max` bytes have been moved. Where items may be evicted, the least used ones of a slab are evicted and the
    /// others moved: evicting alone would only make more free slots.
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

    /// Returns the approximate number of operations served so far.
    fn operations(&self) -> u64 {
        self.meter(Meter::CmdGet).wrapping_add(self.meter(Meter::CmdSet))
    }
}

impl Work {
    /// Begins a pass if there is enough to be gained beyond what the last one left behind.
    fn consider(&mut self, prospect: Prospect, thresholds: &'static Gain, worth_bytes: u64) {
        self.recoverable_bytes = prospect.recoverable_bytes();
        // A less thorough pass has not tried everything.
        let has_tried = self.stuck_at.is_none_or(|tried| tried == &POLICY.at_rest || tried == thresholds);
        let again = if has_tried { self.stuck_bytes / 8 * AGAIN_EIGHTHS } else { 0 };
        if self.recoverable_bytes > worth_bytes.max(again) {
            self.pass = Some(Pass::new(prospect, thresholds));
        }
    }

    /// Begins the pass after this one, if there is to be another.
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

    /// From here on the pass is as thorough as one that begins at rest.
    fn be_thorough(&mut self, stores: u64) {
        (self.thresholds, self.quiet_stores) = (&POLICY.at_rest, stores);
        if let Some(emptier) = &mut self.emptier {
            emptier.free_per_mille = POLICY.at_rest.slab_free_per_mille;
        }
    }

    /// Returns the thresholds of the next pass. If much has been stored since, it was no rest.
    fn thresholds_after(&self, prospect: &Prospect) -> &'static Gain {
        let stored = prospect.stores.saturating_sub(self.quiet_stores);
        if stored > prospect.items / CHANGED_PART { &POLICY.serving } else { self.thresholds }
    }

    /// Takes a new survey: what is sparse now may not have been when the walk began.
    fn look_again(&mut self, survey: Option<Survey>) {
        if let (Some(mover), Some(survey)) = (&mut self.mover, survey) {
            mover.survey = survey;
        }
    }

    /// Works under one hold of a lock. Returns true if there is more to do.
    fn slice(&mut self, bucket: &Bucket, cx: &mut ThreadContext) -> bool {
        if let Some(emptier) = &mut self.emptier {
            // Once as much as everything has been moved, what is left is new.
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

    /// Takes one item out of the slab that is being emptied, or starts on the next slab. Returns false if there is
    /// none.
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
                // The item may have gone meanwhile; under this lock it stays.
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
                    bucket.report_evicted(cx, gone.into_iter());
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

/// Empties slabs of the item heap while any slots of their class are free, up to `slabs` of them: for tests, whose
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
    /// Creates a mover of what lies in slabs that the survey calls sparse.
    fn new(survey: Survey) -> Self {
        Self { survey, vb: 0, position: WalkPosition::default(), moved: Moved::default() }
    }

    /// Creates a mover of everything that may move, wherever it lies: for tests, which have few items.
    pub fn of_everything() -> Self {
        Self::new(Survey::everything_is_sparse())
    }

    /// Moves a slice under one hold of a lock. Returns true if there is more.
    pub fn slice(&mut self, bucket: &Bucket, cx: &mut ThreadContext) -> bool {
        let (moved, position) =
            bucket.lock(cx, VbId(self.vb)).move_out_of_sparse_slabs(self.position, &self.survey);
        self.moved.items += moved.items;
        self.moved.bytes += moved.bytes;
        self.position = position.unwrap_or_default();
        self.vb += u16::from(position.is_none());
        self.vb < bucket.vbuckets()
    }

    /// Returns how many items it has moved.
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
