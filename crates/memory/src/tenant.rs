//! A tenant's memory: its arena, its accounts, its budget.
//!
//! Two kinds of figures. *Accounts* ([`Gauge`]) are exact and sharded per thread. `used` is one shared number, brought
//! up to date by each thread at the end of its batch, that the watermarks look at; to it is added `waste`, the part of
//! resident memory the accounts cannot see (thin slabs, free pages), measured now and then.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::arena::{Arena, ArenaFigures, ThreadCache};
use crate::jemalloc::{self, ControlError};
use crate::shards::Shards;
use crate::size_class::size_class;

/// What a tenant's bytes are counted as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Gauge {
    /// Items (allocator's size).
    Items,
    /// Index lines, directories, seqno slots, expiry entries (allocator's size).
    Index,
    /// Large values arriving or waiting to be sent, and connection buffers charged to the tenant.
    InFlight,
    /// Key and value bytes of the items: a part of `Items`.
    Payload,
    /// Header bytes of the items: a part of `Items`.
    Metadata,
    /// Number of items.
    Count,
}

impl Gauge {
    const COUNT: usize = Self::Count as usize + 1;

    /// Whether it is memory of its own, rather than a part or a number.
    const fn is_allocation(self) -> bool {
        matches!(self, Self::Items | Self::Index | Self::InFlight)
    }
}

/// A thread publishes its share of `used` when it has changed by so much, at the latest at the end of its batch.
const PUBLISH_BYTES: i64 = 64 << 10;
/// Free pages are given back when this fraction of what was used has been freed, and no less than [`PURGE_LEAST`].
const PURGE_FRACTION: i64 = 16;
const PURGE_LEAST: i64 = 4 << 20;
/// Waste is measured again when this fraction of the budget has been allocated.
const MEASURE_FRACTION: u64 = 32;

/// Memory of one tenant. Shared by all threads; memory goes back when the last reference is dropped.
pub struct Tenant {
    accounts: Shards,
    used: AtomicI64,
    waste: AtomicI64,
    /// Bytes allocated since the last measurement.
    churn: AtomicU64,
    /// Most bytes used since free pages were last given back.
    peak: AtomicI64,
    purge_wanted: AtomicBool,
    budget: AtomicU64,
    arena: Arena,
}

/// One thread's access to a tenant. Make it with [`Tenant::cache`], end it with [`Tenant::close`].
pub struct TenantCache {
    thread: usize,
    unpublished: i64,
    churned: u64,
    blocks: Option<ThreadCache>,
}

impl Tenant {
    /// A tenant that `threads` threads will use.
    pub fn new(threads: usize, budget_bytes: u64) -> Result<Arc<Self>, ControlError> {
        Ok(Arc::new(Self {
            accounts: Shards::new(threads, Gauge::COUNT),
            used: AtomicI64::new(0),
            waste: AtomicI64::new(0),
            churn: AtomicU64::new(0),
            peak: AtomicI64::new(0),
            purge_wanted: AtomicBool::new(false),
            budget: AtomicU64::new(budget_bytes),
            arena: Arena::new()?,
        }))
    }

    /// Access for the thread with this number, which no other thread uses.
    pub fn cache(&self, thread: usize) -> TenantCache {
        TenantCache { thread, unpublished: 0, churned: 0, blocks: self.arena.new_cache() }
    }

    /// Gives back what the thread kept for later; the access goes on without until the next allocation.
    pub fn rest(&self, cache: &mut TenantCache) {
        self.publish(cache);
        if let Some(blocks) = cache.blocks.take() {
            self.arena.destroy_cache(blocks);
        }
    }

    /// Whether the thread keeps blocks for later.
    pub fn is_resting(cache: &TenantCache) -> bool {
        cache.blocks.is_none()
    }

    /// Allocates `size` bytes, counted as `gauge`. `None` when the system has no memory.
    #[inline]
    pub fn allocate(&self, cache: &mut TenantCache, size: usize, gauge: Gauge) -> Option<NonNull<u8>> {
        if cache.blocks.is_none() {
            cache.blocks = self.arena.new_cache();
        }
        let block = self.arena.allocate(cache.blocks.as_ref(), size)?;
        self.count(cache, gauge, size_class(size).cast_signed() as i64);
        Some(block)
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `block` came from [`Tenant::allocate`] of this tenant with this `size` and `gauge`, and nothing uses it any more.
    #[expect(unsafe_code, reason = "passes the contract on to the arena")]
    #[inline]
    pub unsafe fn free(&self, cache: &mut TenantCache, block: NonNull<u8>, size: usize, gauge: Gauge) {
        // SAFETY: by the contract of this function.
        unsafe { self.arena.free(cache.blocks.as_ref(), block, size) }
        self.count(cache, gauge, -(size_class(size).cast_signed() as i64));
    }

    /// As [`Tenant::free`], from a thread without a cache.
    ///
    /// # Safety
    /// As [`Tenant::free`].
    #[expect(unsafe_code, reason = "passes the contract on to the arena")]
    pub(crate) unsafe fn free_shared(&self, block: NonNull<u8>, size: usize, gauge: Gauge) {
        // SAFETY: by the contract of this function.
        unsafe { self.arena.free(None, block, size) }
        self.count_shared(gauge, -(size_class(size).cast_signed() as i64));
    }

    /// Adds to an account from the cache's thread.
    #[inline]
    pub fn count(&self, cache: &mut TenantCache, gauge: Gauge, amount: i64) {
        self.accounts.add(cache.thread, gauge as usize, amount);
        if gauge.is_allocation() {
            cache.unpublished += amount;
            cache.churned += u64::try_from(amount).unwrap_or(0);
            if cache.unpublished.abs() >= PUBLISH_BYTES || cache.churned >= PUBLISH_BYTES.cast_unsigned() {
                self.publish(cache);
            }
        }
    }

    /// Adds to an account from any thread.
    pub fn count_shared(&self, gauge: Gauge, amount: i64) {
        self.accounts.add_shared(gauge as usize, amount);
        if gauge.is_allocation() {
            let used = self.used.fetch_add(amount, Relaxed) + amount;
            self.note_used(used);
        }
    }

    /// Notes that free pages are to be given back soon, once much less is used than before.
    fn note_used(&self, used: i64) {
        let peak = self.peak.load(Relaxed);
        if used > peak {
            self.peak.store(used, Relaxed);
        } else if peak - used > (peak / PURGE_FRACTION).max(PURGE_LEAST) && !self.purge_wanted.load(Relaxed) {
            self.purge_wanted.store(true, Relaxed);
        }
    }

    /// Whether so much was freed that the pager should give free pages back.
    #[inline]
    pub fn wants_purge(&self) -> bool {
        self.purge_wanted.load(Relaxed)
    }

    /// Makes the thread's share of `used` visible to all; called at the end of each batch.
    #[inline]
    pub fn publish(&self, cache: &mut TenantCache) {
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

    /// Bytes the budget is held against: what is allocated, and what was last measured as waste.
    #[inline]
    pub fn used(&self) -> u64 {
        u64::try_from(self.used.load(Relaxed) + self.waste.load(Relaxed)).unwrap_or(0)
    }

    /// Resident memory the accounts cannot see, as last measured.
    pub fn waste(&self) -> u64 {
        u64::try_from(self.waste.load(Relaxed)).unwrap_or(0)
    }

    /// Whether so much has been allocated since the last measurement that the waste may be another.
    #[inline]
    pub fn wants_measure(&self) -> bool {
        self.churn.load(Relaxed) > self.budget() / MEASURE_FRACTION
    }

    /// The budget in bytes.
    #[inline]
    pub fn budget(&self) -> u64 {
        self.budget.load(Relaxed)
    }

    /// Changes the budget.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Relaxed);
    }

    /// Measures resident memory and with it the waste. Walks all arenas of the process.
    pub fn measure(&self) -> ArenaFigures {
        self.churn.store(0, Relaxed);
        jemalloc::refresh();
        let figures = self.arena.figures();
        let in_arena = self.gauge(Gauge::Items) + self.gauge(Gauge::Index);
        let waste = figures.resident.cast_signed() as i64 - in_arena.cast_signed();
        self.waste.store(waste.max(0), Relaxed);
        figures
    }

    /// Bytes allocated from its arena, blocks that threads keep for later included, as of the last [`jemalloc::refresh`].
    pub fn allocated_bytes(&self) -> usize {
        self.arena.figures().allocated
    }

    /// Whether much less is used than before still: what was freed may have been needed again.
    pub fn has_shrunk(&self) -> bool {
        let peak = self.peak.load(Relaxed);
        let shrunk = peak - self.used.load(Relaxed) > (peak / PURGE_FRACTION).max(PURGE_LEAST);
        self.purge_wanted.store(shrunk, Relaxed);
        shrunk
    }

    /// Gives all free pages back to the system now.
    pub fn purge(&self) {
        self.purge_wanted.store(false, Relaxed);
        self.peak.store(self.used.load(Relaxed), Relaxed);
        self.arena.purge();
    }
}
