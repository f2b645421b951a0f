//! A tenant's memory: its arena, its accounts, its budget.
//!
//! There are two kinds of figures. *Accounts* ([`Gauge`]) are exact and sharded per thread. `used` is what the
//! watermarks compare:
//!
//! ```text
//!   used = accounts   published by each thread at the end of its batch
//!        + waste      resident memory that the accounts cannot see (the allocator's sparse slabs, free pages),
//!                     measured now and then where the allocator reports it
//!        + slack      bytes of our own slabs beyond their slots in use, less a part of the budget
//! ```
//! A part of the slack does not count, because it is room for new items. Eviction makes slack, not free pages, and
//! would never end if all of it counted.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::backend::{self, Arena, ArenaFigures, ControlError, Occupancy, ThreadCache, footprint};
use crate::lines::{self, Lines, line_footprint};
use crate::shards::Shards;
use crate::slab::{Slabs, SlotCache, class};
use crate::survey::Survey;

/// What a tenant's bytes are counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Gauge {
    /// Items (size of their block or slot).
    Items,
    /// Index lines, directories, seqno slots, expiry entries (as rounded by the allocator).
    Index,
    /// Large values being received, those no longer in an index but still read or sent, and connection buffers charged
    /// to the tenant.
    InFlight,
    /// Key and value bytes of the items: a part of `Items`.
    Payload,
    /// Header bytes of the items: a part of `Items`.
    Metadata,
    /// Number of items.
    Count,
    /// Items in slots of slabs: a part of `Items`.
    Slots,
    /// Number of compressed values.
    CompressedCount,
    /// Bytes of these values: a part of `Payload`.
    Compressed,
    /// Their bytes when inflated.
    Inflated,
    /// Index blocks that nothing refers to any more but a thread may still be reading.
    Retired,
    /// Slabs being entered into or removed from the map: counted but not findable, or the reverse.
    Underway,
    /// How often something was allocated or freed. Sums that are equal again may still have changed if this differs.
    Changes,
}

impl Gauge {
    const COUNT: usize = Self::Changes as usize + 1;

    /// Returns true if it is memory of its own, rather than a part or a count.
    const fn is_allocation(self) -> bool {
        matches!(self, Self::Items | Self::Index | Self::InFlight | Self::Retired)
    }
}

/// A thread publishes its share of `used` when it has changed by this much, at the latest at the end of its batch.
const PUBLISH_BYTES: i64 = 64 << 10;
/// Free pages are returned when this fraction of what was used has been freed, and at least [`PURGE_LEAST`].
const PURGE_FRACTION: i64 = 16;
const PURGE_LEAST: i64 = 4 << 20;
/// Waste is measured again when this fraction of the budget has been allocated.
const MEASURE_FRACTION: u64 = 32;
/// The same for a tenant that has used most of its budget: freed memory stays resident until it is noticed.
const MEASURE_FULL_FRACTION: u64 = 128;
/// Or, if sooner, this fraction of what is used, and at least [`MEASURE_LEAST`]: the budget may be far away.
const MEASURE_USED_FRACTION: u64 = 8;
const MEASURE_LEAST: u64 = 16 << 20;
/// Allocating a slab while free slab bytes exceed this part of those in use, and [`OWING_LEAST`], incurs slab debt.
const OWING_FRACTION: i64 = 8;
const OWING_LEAST: i64 = 4 << 20;
/// Fraction of the budget that slabs may have free without it counting as used.
pub(crate) const SLACK_FRACTION: i64 = 48;

/// Memory of one tenant, shared by all threads. Dropping its last reference also frees what is still allocated, if the
/// allocator can do that ([`backend::ARENA_GOES_AS_A_WHOLE`]). With other allocators its owner frees it before.
pub struct Tenant {
    accounts: Shards,
    used: AtomicI64,
    waste: AtomicI64,
    /// Bytes allocated since the last measurement.
    churn: AtomicU64,
    /// Churn at which the next one is due.
    churn_most: AtomicU64,
    /// Most bytes used since free pages were last returned.
    peak: AtomicI64,
    purge_wanted: AtomicBool,
    /// Held while pages are being returned.
    purging: Mutex<()>,
    /// Bytes of pages that are being returned: the allocator counts them no longer, although they are still resident.
    leaving: AtomicI64,
    /// See [`Tenant::note_rested`].
    rested: AtomicBool,
    budget: AtomicU64,
    threads: usize,
    lines: Lines,
    notes: Lines,
    slabs: OnceLock<Box<Slabs>>,
    slab_bytes: AtomicI64,
    /// Highest `slab_bytes` since free pages were last returned.
    slab_peak: AtomicI64,
    /// Bytes of slots in use, as published.
    slot_bytes: AtomicI64,
    /// See [`Tenant::has_slab_debt`].
    slab_debt_bytes: AtomicI64,
    /// Last: dropped after everything that lies in it.
    arena: Arena,
}

/// One thread's access to a tenant, made by [`Tenant::cache`]. Before it is dropped, [`Tenant::rest`] releases what it
/// keeps.
pub struct TenantCache {
    thread: usize,
    unpublished: i64,
    unpublished_slots: i64,
    churned: u64,
    blocks: Option<ThreadCache>,
    slots: Option<SlotCache>,
    /// Whether block caching is off.
    direct: bool,
}

impl TenantCache {
    /// The thread it belongs to.
    #[inline]
    pub fn thread(&self) -> usize {
        self.thread
    }
}

impl Tenant {
    /// Creates a tenant that `threads` threads will use.
    pub fn new(threads: usize, budget_bytes: u64) -> Result<Arc<Self>, ControlError> {
        Ok(Arc::new(Self {
            accounts: Shards::new(threads, Gauge::COUNT),
            used: AtomicI64::new(0),
            waste: AtomicI64::new(0),
            churn: AtomicU64::new(0),
            churn_most: AtomicU64::new(MEASURE_LEAST.min(budget_bytes / MEASURE_FRACTION)),
            peak: AtomicI64::new(0),
            purge_wanted: AtomicBool::new(false),
            purging: Mutex::new(()),
            leaving: AtomicI64::new(0),
            rested: AtomicBool::new(false),
            budget: AtomicU64::new(budget_bytes),
            threads,
            lines: Lines::default(),
            notes: Lines::default(),
            slabs: OnceLock::new(),
            slab_bytes: AtomicI64::new(0),
            slab_peak: AtomicI64::new(0),
            slot_bytes: AtomicI64::new(0),
            slab_debt_bytes: AtomicI64::new(0),
            arena: Arena::new()?,
        }))
    }

    /// Access for the thread with this number. No other thread may use it.
    pub fn cache(&self, thread: usize) -> TenantCache {
        TenantCache {
            thread,
            unpublished: 0,
            unpublished_slots: 0,
            churned: 0,
            blocks: self.arena.new_cache(),
            slots: None,
            direct: false,
        }
    }

    /// Releases what the thread keeps for later. The access has no cache until the next allocation.
    pub fn rest(&self, cache: &mut TenantCache) {
        self.publish(cache);
        self.give_back_slots(cache);
        if let Some(blocks) = cache.blocks.take() {
            self.arena.destroy_cache(blocks);
        }
    }

    /// Turns direct mode on or off. In direct mode the thread's blocks come from the arena and go back to it: a new
    /// block lies in the slab that the allocator fills first, and a freed one is available to all. Releases what the
    /// thread keeps for later.
    pub fn go_direct(&self, cache: &mut TenantCache, direct: bool) {
        self.rest(cache);
        cache.direct = direct;
    }

    /// Returns true if the thread keeps nothing for later.
    pub fn is_resting(cache: &TenantCache) -> bool {
        cache.blocks.is_none() && cache.slots.is_none()
    }

    /// Allocates `size` bytes, counted as `gauge`. Returns `None` if the system is out of memory.
    #[inline]
    pub fn allocate(&self, cache: &mut TenantCache, size: usize, gauge: Gauge) -> Option<NonNull<u8>> {
        if cache.blocks.is_none() && !cache.direct {
            cache.blocks = self.arena.new_cache();
        }
        let block = self.arena.allocate(cache.blocks.as_ref(), size)?;
        self.count(cache, gauge, footprint(size).cast_signed() as i64);
        Some(block)
    }

    /// Like [`Tenant::allocate`], for whole cache lines (64 bytes), aligned to one: the index's blocks. Those of up to
    /// 64 lines lie in slabs of their own, see [`crate::lines`]. Free them with [`Tenant::free_lines`].
    #[inline]
    pub fn allocate_lines(&self, cache: &mut TenantCache, size: usize, gauge: Gauge) -> Option<NonNull<u8>> {
        if !lines::has(size) && cache.blocks.is_none() && !cache.direct {
            cache.blocks = self.arena.new_cache();
        }
        let block = self.take_lines(&self.lines, cache.blocks.as_ref(), size)?;
        self.count(cache, gauge, line_footprint(size).cast_signed() as i64);
        Some(block)
    }

    /// Allocates a block of whole lines that never moves, for notes on a slab of items. Free it with
    /// [`Tenant::free_notes`].
    pub(crate) fn allocate_notes(&self, size: usize) -> Option<NonNull<u8>> {
        let block = self.take_lines(&self.notes, None, size)?;
        self.count_shared(Gauge::Index, line_footprint(size).cast_signed() as i64);
        Some(block)
    }

    /// The size determines where the block lies.
    #[inline]
    fn take_lines(&self, from: &Lines, blocks: Option<&ThreadCache>, size: usize) -> Option<NonNull<u8>> {
        if lines::has(size) {
            from.allocate(&self.arena, size)
        } else {
            self.arena.allocate_lines(blocks, size)
        }
    }

    /// Frees a block of lines.
    ///
    /// # Safety
    /// As [`Tenant::free`], for a block from [`Tenant::allocate_lines`].
    #[expect(unsafe_code, reason = "passes the contract on")]
    #[inline]
    pub unsafe fn free_lines(&self, cache: &mut TenantCache, block: NonNull<u8>, size: usize, gauge: Gauge) {
        // SAFETY: by the contract of this function.
        unsafe { self.put_lines(&self.lines, cache.blocks.as_ref(), block, size) }
        self.count(cache, gauge, -(line_footprint(size).cast_signed() as i64));
    }

    /// Frees the notes on a slab.
    ///
    /// # Safety
    /// As [`Tenant::free`], for a block from [`Tenant::allocate_notes`].
    #[expect(unsafe_code, reason = "passes the contract on")]
    pub(crate) unsafe fn free_notes(&self, block: NonNull<u8>, size: usize) {
        // SAFETY: by the contract of this function.
        unsafe { self.put_lines(&self.notes, None, block, size) }
        self.count_shared(Gauge::Index, -(line_footprint(size).cast_signed() as i64));
    }

    #[expect(unsafe_code, reason = "passes the contract on")]
    #[inline]
    unsafe fn put_lines(&self, into: &Lines, blocks: Option<&ThreadCache>, block: NonNull<u8>, size: usize) {
        // SAFETY: by the contract of the callers; the size determines where the block lies.
        unsafe {
            if lines::has(size) {
                into.free(&self.arena, block, size);
            } else {
                self.arena.free(blocks, block, size);
            }
        }
    }

    /// Frees a block.
    ///
    /// # Safety
    /// `block` came from [`Tenant::allocate`] of this tenant with this `size` and `gauge`, and nothing uses it any
    /// more.
    #[expect(unsafe_code, reason = "passes the contract on to the arena")]
    #[inline]
    pub unsafe fn free(&self, cache: &mut TenantCache, block: NonNull<u8>, size: usize, gauge: Gauge) {
        // SAFETY: by the contract of this function.
        unsafe { self.arena.free(cache.blocks.as_ref(), block, size) }
        self.count(cache, gauge, -(footprint(size).cast_signed() as i64));
    }

    /// Allocates a block that is to replace another one of the same class. It is not counted: the other one already is.
    #[inline]
    pub(crate) fn allocate_for_move(&self, size: usize) -> Option<NonNull<u8>> {
        self.arena.allocate(None, size)
    }

    /// Frees a block that one from [`Tenant::allocate_for_move`] has replaced.
    ///
    /// # Safety
    /// As [`Tenant::free`].
    #[expect(unsafe_code, reason = "passes the contract on to the arena")]
    #[inline]
    pub(crate) unsafe fn free_moved(&self, block: NonNull<u8>, size: usize) {
        // SAFETY: by the contract of this function.
        unsafe { self.arena.free(None, block, size) }
    }

    /// Like [`Tenant::free`], for a thread without a cache.
    ///
    /// # Safety
    /// As [`Tenant::free`].
    #[expect(unsafe_code, reason = "passes the contract on to the arena")]
    pub(crate) unsafe fn free_shared(&self, block: NonNull<u8>, size: usize, gauge: Gauge) {
        // SAFETY: by the contract of this function.
        unsafe { self.arena.free(None, block, size) }
        self.count_shared(gauge, -(footprint(size).cast_signed() as i64));
    }

    /// Allocates a block that was counted when it was reserved.
    pub(crate) fn allocate_reserved(&self, size: usize) -> Option<NonNull<u8>> {
        let block = self.arena.allocate(None, size)?;
        self.churn.fetch_add(footprint(size) as u64, Relaxed);
        Some(block)
    }

    /// Like [`Tenant::allocate`], without a cache. Whole pages are page-aligned.
    pub(crate) fn allocate_shared(&self, size: usize, gauge: Gauge) -> Option<NonNull<u8>> {
        let block = if size.is_multiple_of(class::PAGE) {
            self.arena.allocate_pages(size)?
        } else {
            self.arena.allocate(None, size)?
        };
        self.count_shared(gauge, footprint(size).cast_signed() as i64);
        Some(block)
    }

    /// Allocates the pages of a slab of `size` bytes, of which [`class::usable`] may be used.
    pub(crate) fn allocate_slab(&self, size: usize) -> Option<NonNull<u8>> {
        let slab = self.arena.allocate_pages(class::usable(size))?;
        let size = size.cast_signed() as i64;
        self.slab_peak.fetch_max(self.slab_bytes.fetch_add(size, Relaxed) + size, Relaxed);
        if self.slack() > self.slack_free_of_debt() {
            self.slab_debt_bytes.fetch_add(size, Relaxed);
        }
        Some(slab)
    }

    /// Returns true if slabs were allocated while others were sparse, and as many have not been emptied since.
    #[inline]
    pub fn has_slab_debt(&self) -> bool {
        self.slab_debt_bytes.load(Relaxed) > 0
    }

    /// Returns true if the slab debt is too large for one thread to work off.
    pub fn has_large_slab_debt(&self) -> bool {
        self.slab_debt_bytes.load(Relaxed) > self.slack_free_of_debt()
    }

    fn slack_free_of_debt(&self) -> i64 {
        (self.slot_bytes.load(Relaxed) / OWING_FRACTION).max(OWING_LEAST)
    }

    /// Cancels the slab debt: no others can be emptied.
    pub fn cancel_slab_debt(&self) {
        self.slab_debt_bytes.store(0, Relaxed);
    }

    /// Frees the pages of a slab.
    ///
    /// # Safety
    /// They came from [`Tenant::allocate_slab`] of this tenant with this `size`, and nothing uses them any more.
    #[expect(unsafe_code, reason = "passes the contract on to the arena")]
    pub(crate) unsafe fn free_slab(&self, slab: NonNull<u8>, size: usize) {
        // SAFETY: by the contract of this function.
        unsafe { self.arena.free(None, slab, class::usable(size)) }
        let size = size.cast_signed() as i64;
        self.slab_bytes.fetch_sub(size, Relaxed);
        let _ = self
            .slab_debt_bytes
            .fetch_update(Relaxed, Relaxed, |owed| (owed > 0).then(|| (owed - size).max(0)));
        self.note_used(self.used.load(Relaxed));
    }

    /// Allocates a slot for an item of `size` bytes, at most [`class::SLOT_MAX`], counted as item. Returns `None` if
    /// the system is out of memory.
    #[inline]
    pub(crate) fn allocate_slot(
        &self,
        cache: &mut TenantCache,
        size: usize,
        owner: u16,
    ) -> Option<NonNull<u8>> {
        self.note_change(cache);
        let slots = cache.slots.get_or_insert_with(SlotCache::new);
        let slot = match slots.hand_out(size, owner) {
            Some(slot) => slot,
            None => {
                let slabs = self.slabs.get_or_init(Box::default);
                if !slabs.reserve(self, slots, size) {
                    return None;
                }
                slots.hand_out(size, owner)?
            }
        };
        self.count_slot(cache, class::slot_bytes(size).cast_signed() as i64);
        Some(slot)
    }

    /// Frees a slot.
    ///
    /// # Safety
    /// It came from [`Tenant::allocate_slot`] of this tenant with this `size`, and nothing refers to it any more.
    #[expect(unsafe_code, reason = "passes the contract on to the slabs")]
    #[inline]
    pub(crate) unsafe fn free_slot(&self, cache: &mut TenantCache, slot: NonNull<u8>, size: usize) {
        let Some(slabs) = self.slabs.get() else { unreachable!("a slot without slabs") };
        self.note_change(cache);
        // SAFETY: by the contract of this function.
        unsafe { slabs.free(self, slot) }
        self.count_slot(cache, -(class::slot_bytes(size).cast_signed() as i64));
    }

    #[inline]
    fn count_slot(&self, cache: &mut TenantCache, amount: i64) {
        cache.unpublished_slots += amount;
        self.accounts.add(cache.thread, Gauge::Slots as usize, amount);
        self.accounts.add(cache.thread, Gauge::Items as usize, amount);
        self.count_allocated(cache, amount);
    }

    pub(crate) fn slabs(&self) -> Option<&Slabs> {
        self.slabs.get().map(|slabs| &**slabs)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Bytes of all slabs.
    pub(crate) fn slab_bytes(&self) -> u64 {
        u64::try_from(self.slab_bytes.load(Relaxed)).unwrap_or(0)
    }

    /// Bytes of slabs beyond their slots in use, as published.
    #[inline]
    fn slack(&self) -> i64 {
        self.slab_bytes.load(Relaxed) - self.slot_bytes.load(Relaxed)
    }

    /// Adds to an account from the cache's thread.
    #[inline]
    pub fn count(&self, cache: &mut TenantCache, gauge: Gauge, amount: i64) {
        if gauge.is_allocation() {
            self.note_change(cache);
            self.count_allocated(cache, amount);
        }
        self.accounts.add(cache.thread, gauge as usize, amount);
    }

    /// Counts a change to a slot before the slot changes hands and is counted itself. A walk over the slabs that sees
    /// the slot change must see this too. Freeing one may wait for that walk in between.
    #[inline]
    fn note_change(&self, cache: &TenantCache) {
        self.accounts.add(cache.thread, Gauge::Changes as usize, 1);
    }

    #[inline]
    fn count_allocated(&self, cache: &mut TenantCache, amount: i64) {
        cache.unpublished += amount;
        cache.churned += u64::try_from(amount).unwrap_or(0);
        if cache.unpublished.abs() >= PUBLISH_BYTES || cache.churned >= PUBLISH_BYTES.cast_unsigned() {
            self.publish(cache);
        }
    }

    /// Adds to an account from any thread.
    pub fn count_shared(&self, gauge: Gauge, amount: i64) {
        if gauge.is_allocation() {
            self.accounts.add_shared(Gauge::Changes as usize, 1);
        }
        self.accounts.add_shared(gauge as usize, amount);
        if gauge.is_allocation() {
            let used = self.used.fetch_add(amount, Relaxed) + amount;
            self.note_used(used);
        }
    }

    /// From now on counts a block of lines, which nothing refers to any more, as [`Gauge::Retired`].
    pub fn retire_lines(&self, cache: &TenantCache, size: usize) {
        let bytes = line_footprint(size).cast_signed() as i64;
        self.note_change(cache);
        self.accounts.add(cache.thread, Gauge::Index as usize, -bytes);
        self.accounts.add(cache.thread, Gauge::Retired as usize, bytes);
    }

    /// From now on counts a large item, which no index refers to any more, as [`Gauge::InFlight`].
    pub(crate) fn unlink_large(&self, footprint: usize) {
        let bytes = footprint.cast_signed() as i64;
        self.accounts.add_shared(Gauge::Changes as usize, 1);
        self.accounts.add_shared(Gauge::Items as usize, -bytes);
        self.accounts.add_shared(Gauge::InFlight as usize, bytes);
    }

    /// Requests that free pages be returned soon, once much less is used than before. Where that left free slots, this
    /// is done by emptying slabs.
    fn note_used(&self, used: i64) {
        let peak = self.peak.load(Relaxed);
        if used > peak {
            self.peak.store(used, Relaxed);
        } else if peak - used > (peak / PURGE_FRACTION).max(PURGE_LEAST) && !self.purge_wanted.load(Relaxed) {
            self.purge_wanted.store(true, Relaxed);
        }
    }

    /// Returns true if enough was freed for the pager to return free pages.
    #[inline]
    pub fn wants_purge(&self) -> bool {
        self.purge_wanted.load(Relaxed)
    }

    /// Makes the thread's share of `used` visible to all; called at the end of each batch.
    #[inline]
    pub fn publish(&self, cache: &mut TenantCache) {
        if cache.unpublished_slots != 0 {
            self.slot_bytes.fetch_add(std::mem::take(&mut cache.unpublished_slots), Relaxed);
        }
        if cache.unpublished != 0 {
            let change = std::mem::take(&mut cache.unpublished);
            let used = self.used.fetch_add(change, Relaxed) + change;
            self.note_used(used);
        }
        if cache.churned != 0 {
            self.churn.fetch_add(std::mem::take(&mut cache.churned), Relaxed);
        }
    }

    /// An account, in bytes (or items).
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.accounts.sum(gauge as usize)
    }

    /// The part of [`Gauge::Index`] that is the bookkeeping of slabs.
    pub fn bookkeeping_bytes(&self) -> u64 {
        self.accounts.shared(Gauge::Index as usize)
    }

    /// Bytes compared with the budget: what is allocated, what was last measured as waste, and what slabs have free
    /// beyond a part of the budget.
    #[inline]
    pub fn used(&self) -> u64 {
        let slack = self.excess_slack().cast_signed();
        u64::try_from(self.used.load(Relaxed) + self.waste.load(Relaxed) + slack).unwrap_or(0)
    }

    /// The most that was used since free pages were last returned: so much may be resident.
    pub fn peak(&self) -> u64 {
        u64::try_from(self.peak.load(Relaxed)).unwrap_or(0).max(self.used())
    }

    /// What slabs have free beyond the part of the budget that does not count as used. Emptying slabs reduces it,
    /// eviction does not.
    #[inline]
    pub fn excess_slack(&self) -> u64 {
        let allowed = self.budget.load(Relaxed).cast_signed() / SLACK_FRACTION;
        u64::try_from(self.slack() - allowed).unwrap_or(0)
    }

    /// Bytes allocated, as published, without waste and slack.
    #[inline]
    pub(crate) fn allocated(&self) -> u64 {
        u64::try_from(self.used.load(Relaxed)).unwrap_or(0)
    }

    /// Resident memory that the accounts cannot see, as last measured.
    pub fn waste(&self) -> u64 {
        u64::try_from(self.waste.load(Relaxed)).unwrap_or(0)
    }

    /// Returns true if enough has been allocated since the last measurement for the waste to have changed.
    #[inline]
    pub fn wants_measure(&self) -> bool {
        self.churn.load(Relaxed) > self.churn_most.load(Relaxed)
    }

    /// Returns true if a measurement is due, and `used` could exceed `most` by it: whatever has been allocated since
    /// the last one may lie in pages that nobody knows of.
    #[inline]
    pub fn may_exceed_unseen(&self, most: u64) -> bool {
        self.wants_measure() && self.used() + self.churn.load(Relaxed) > most
    }

    /// The budget in bytes.
    #[inline]
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Changes the budget.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
        self.churn_most.store(self.churn_most(), Relaxed);
    }

    fn churn_most(&self) -> u64 {
        let (used, budget) = (self.used(), self.budget());
        if used > budget / 8 * 7 {
            return budget / MEASURE_FULL_FRACTION;
        }
        (used / MEASURE_USED_FRACTION).max(MEASURE_LEAST).min(budget / MEASURE_FRACTION)
    }

    /// Measures resident memory and from it the waste. Walks all arenas of the process. Returns `None` where the
    /// allocator does not know a tenant's pages: the waste then stays 0, and only the accounts count against the
    /// budget.
    pub fn measure(&self) -> Option<ArenaFigures> {
        backend::refresh();
        self.measure_refreshed()
    }

    /// The same with the allocator's figures as of the last `refresh`.
    pub fn measure_refreshed(&self) -> Option<ArenaFigures> {
        self.churn.store(0, Relaxed);
        self.churn_most.store(self.churn_most(), Relaxed);
        let figures = self.arena.figures()?;
        let slack = self.slab_bytes().saturating_sub(self.gauge(Gauge::Slots));
        let in_arena = self.gauge(Gauge::Items) + self.gauge(Gauge::Index) + slack;
        let waste = (figures.resident.cast_signed() as i64 - in_arena.cast_signed()).max(0);
        // What is leaving counts until it has left, beside what has come free since.
        self.waste.store(waste + self.leaving.load(Relaxed), Relaxed);
        Some(figures)
    }

    /// Physical memory of its arena, by the kernel: some milliseconds for each GiB. `None` where a tenant has no pages
    /// of its own.
    pub fn resident_bytes(&self) -> Option<u64> {
        self.arena.resident_bytes().map(|bytes| bytes as u64)
    }

    /// What the allocator knows of its pages, as of the last `refresh`.
    pub fn arena_figures(&self) -> Option<ArenaFigures> {
        self.arena.figures()
    }

    /// Surveys how full the slabs are now. Walks all arenas of the process. Returns `None` where the allocator does not
    /// report it: moving blocks then gains nothing.
    pub fn survey(&self) -> Option<Survey> {
        backend::refresh();
        self.arena.classes().map(|classes| Survey::new(&classes, self.lines.dense_end()))
    }

    /// How full the slabs of these blocks are.
    pub fn occupancy(&self, blocks: &[NonNull<u8>], found: &mut [Occupancy]) {
        debug_assert_eq!(blocks.len(), found.len());
        self.arena.occupancy(blocks, found);
    }

    /// Returns true if a block moved from here would go to the same slab.
    pub fn is_in_current_slab(&self, block: NonNull<u8>) -> bool {
        self.arena.is_in_current_slab(block)
    }

    /// Returns true if dropping it would free memory that is in use. The allocator knows that for arenas freed as a
    /// whole.
    pub(crate) fn would_take_blocks_along(&self) -> bool {
        backend::refresh();
        backend::ARENA_GOES_AS_A_WHOLE && self.arena.figures().is_none_or(|figures| figures.allocated > 0)
    }

    /// Returns true if still much less is used than before: freed memory may have been needed again.
    pub fn has_shrunk(&self) -> bool {
        let peak = self.peak.load(Relaxed);
        let shrunk = peak - self.used.load(Relaxed) > (peak / PURGE_FRACTION).max(PURGE_LEAST);
        self.purge_wanted.store(shrunk, Relaxed);
        shrunk
    }

    /// Notes that a thread has released what it kept, so that pages may have come free.
    pub fn note_rested(&self) {
        self.rested.store(true, Relaxed);
    }

    /// Returns true if any thread has since the last call.
    pub fn take_rested(&self) -> bool {
        self.rested.swap(false, Relaxed)
    }

    /// Upper bound on the bytes of freed slabs that may still be resident.
    pub fn freed_slabs(&self) -> u64 {
        u64::try_from(self.slab_peak.load(Relaxed) - self.slab_bytes.load(Relaxed)).unwrap_or(0)
    }

    /// Returns all free pages to the system now. One thread does so at a time, and the others wait for it: then what
    /// they are about to allocate does not add to pages that are still leaving.
    pub fn purge(&self) {
        let _one_at_a_time = self.purging.lock().unwrap_or_else(PoisonError::into_inner);
        // The waste includes the pages that are leaving until they have left, and the caller measures again.
        let dirty = self.measure().map_or(0, |figures| figures.dirty);
        self.leaving.store(dirty.cast_signed() as i64, Relaxed);
        self.return_free_pages();
        self.leaving.store(0, Relaxed);
    }

    /// Returns free pages to the system if they are at least `least` bytes, or waits for the thread that is doing so.
    /// Returns true if there was anything to return.
    pub fn purge_if_worth(&self, least: u64) -> bool {
        if self.leaving.load(Relaxed) > 0 {
            drop(self.purging.lock().unwrap_or_else(PoisonError::into_inner));
        } else if self.measure().is_some_and(|figures| figures.dirty as u64 >= least) {
            self.purge();
        } else {
            return false;
        }
        self.measure();
        true
    }

    fn return_free_pages(&self) {
        self.slab_peak.store(self.slab_bytes.load(Relaxed), Relaxed);
        self.purge_wanted.store(false, Relaxed);
        self.peak.store(self.used.load(Relaxed), Relaxed);
        self.arena.purge();
    }

    /// Like [`Self::purge`], and also returns resident memory that was never used; for a tenant that has come to rest.
    pub fn purge_at_rest(&self) {
        self.purge();
        if self.arena.free_what_was_never_used() {
            self.arena.purge();
        }
    }
}

impl Drop for Tenant {
    /// Frees the bookkeeping of slabs, unless it is freed with the arena.
    #[expect(unsafe_code, reason = "the tenant is not used any more")]
    fn drop(&mut self) {
        if !backend::ARENA_GOES_AS_A_WHOLE
            && let Some(mut slabs) = self.slabs.take()
        {
            // SAFETY: access is exclusive.
            unsafe { slabs.end(self) }
        }
    }
}

impl TenantCache {
    pub(crate) fn take_slots(&mut self) -> Option<SlotCache> {
        self.slots.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "frees what it allocated")]
    fn notes_keep_no_slab_of_an_index_that_has_gone() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let size = 640;
        let blocks: Vec<_> = (0..2000)
            .map(|_| {
                let block = tenant.allocate_lines(&mut cache, size, Gauge::Index).unwrap();
                (block, tenant.allocate_notes(size).unwrap())
            })
            .collect();
        for (block, _) in &blocks {
            // SAFETY: allocated above with this size.
            unsafe { tenant.free_lines(&mut cache, *block, size, Gauge::Index) }
        }
        assert_eq!(tenant.lines.dense_end().slab_bytes, 0);
        for (_, notes) in blocks {
            // SAFETY: as above.
            unsafe { tenant.free_notes(notes, size) }
        }
        tenant.rest(&mut cache);
    }
}
