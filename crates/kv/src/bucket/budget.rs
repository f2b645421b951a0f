//! The bucket's memory budget: whether more may be taken, and when something has to be evicted for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use memory::{Gauge, Reservation};

use super::Bucket;
use crate::class_counters::ClassCounter;
use crate::index::{Resources, VALUE_MAX, least_item_size};
use crate::memory_policy::{self, Admission, Figures, POLICY, Watermarks};
use crate::settings::Eviction;
use crate::{Key, KvError, LARGE_VALUE, Meter, ThreadContext};

/// A thread that stores moves up to this many bytes to empty slabs before it evicts.
const MOVED_BY_WORKER_MAX: u64 = 256 << 10;
/// The budget divided by this may be reserved for values that were announced and have not arrived.
const AHEAD_FRACTION: u64 = 64;

/// A bucket is charged for connection buffers up to its budget divided by this.
const BUFFERS_FRACTION: u64 = 16;

/// Room reserved for a value before it arrives.
pub struct Ahead {
    bucket: Arc<Bucket>,
    bytes: u64,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.bucket.ahead_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Resources {
    #[inline]
    pub(crate) fn watermarks(&self) -> Watermarks {
        POLICY.watermarks(self.share.left_of(self.tenant.budget()), self.dirty.is_some())
    }
}

impl Bucket {
    #[inline]
    pub(crate) fn watermarks(&self) -> Watermarks {
        self.resources.watermarks()
    }

    /// Makes sure that `bytes` more may be taken: evicts, or refuses with [`KvError::NoMemory`]. Works off some of the
    /// slab debt first, if there is any.
    #[inline]
    pub fn admit(&self, cx: &mut ThreadContext, bytes: usize) -> Result<(), KvError> {
        if self.resources.tenant.has_slab_debt() && !self.is_gone() {
            self.repay_slab_debt(cx);
        }
        self.admit_in_place(cx, bytes)
    }

    /// Reserves `bytes` for a large value or for work on one: evicts, or refuses with [`KvError::NoMemory`]. They
    /// count at once, so that several threads do not take the same room. What could not fit in an empty bucket evicts
    /// nothing.
    pub fn reserve(&self, cx: &mut ThreadContext, bytes: usize) -> Result<Reservation, KvError> {
        if !self.could_hold(bytes) {
            return Err(KvError::NoMemory);
        }
        let reservation = Reservation::new(self.tenant(), bytes);
        self.admit(cx, 0)?;
        Ok(reservation)
    }

    /// Returns true if there would be room for so much in an empty bucket.
    pub(crate) fn could_hold(&self, bytes: usize) -> bool {
        bytes as u64 <= self.watermarks().refuse
    }

    /// Returns free pages to the system if a large block would otherwise exceed the budget: one that was just
    /// allocated, or whose `bytes` are about to be. It may be given fresh pages while those of freed values are still
    /// resident.
    pub(crate) fn make_pages_room(&self, bytes: usize) {
        let tenant = self.tenant();
        let refuse = self.watermarks().refuse;
        if tenant.peak() <= refuse / 2 {
            return;
        }
        let fits = |resident: usize| (resident + bytes) as u64 + self.buffer_bytes() <= refuse;
        if tenant.measure().is_some_and(|pages| pages.dirty > 0 && !fits(pages.resident)) {
            tenant.purge();
            tenant.measure();
        }
    }

    /// Makes room for a long frame from another node, as far as there can be any: it is taken in any case.
    pub fn make_room_for_frame(&self, cx: &mut ThreadContext, bytes: usize) {
        if bytes > LARGE_VALUE && self.could_hold(bytes) {
            let _ = self.admit(cx, bytes);
            self.make_pages_room(bytes);
        }
    }

    /// As [`Bucket::admit`], for what another node has already: beyond what clients are refused there is a little room.
    pub(super) fn admit_copy(&self, cx: &mut ThreadContext, bytes: usize) -> Result<(), KvError> {
        self.admit(cx, bytes).or_else(|error| {
            let tenant = &self.resources.tenant;
            let most = self.resources.share.left_of(tenant.budget()) / 1000 * POLICY.copies;
            let fits = error == KvError::NoMemory && tenant.used() + bytes as u64 <= most;
            if fits { Ok(()) } else { Err(error) }
        })
    }

    /// The same for a write that overwrites something in place: it takes no slab.
    #[inline]
    pub(super) fn admit_in_place(&self, cx: &mut ThreadContext, bytes: usize) -> Result<(), KvError> {
        if bytes > VALUE_MAX {
            return Err(KvError::TooBig);
        }
        if self.is_gone() {
            return Err(KvError::BucketGone);
        }
        let used = self.resources.tenant.used() + bytes as u64;
        if used <= self.watermarks().high && !self.resources.tenant.wants_measure() {
            return Ok(());
        }
        self.admit_under_pressure(cx, bytes as u64)
    }

    #[cold]
    fn admit_under_pressure(&self, cx: &mut ThreadContext, bytes: u64) -> Result<(), KvError> {
        if self.may_evict() || self.resources.tenant.wants_measure() {
            self.doorbell.ring();
        }
        // The pager measures, but may be late.
        if self.resources.tenant.may_exceed_unseen(self.watermarks().refuse) {
            self.measure();
        }
        let mut has_purged = false;
        loop {
            let figures = self.memory_figures();
            match memory_policy::admit(&figures, bytes, has_purged) {
                Admission::Granted => return Ok(()),
                Admission::Refused => return Err(KvError::NoMemory),
                Admission::Purge => {
                    self.tenant().purge_if_worth(figures.worth_purging());
                    has_purged = true;
                }
                Admission::MakeRoom { target } => {
                    self.count(cx, Meter::DirectReclaims, 1);
                    let size =
                        least_item_size(Key::plain(&[]), usize::try_from(bytes).unwrap_or(usize::MAX >> 1));
                    self.count_in_class(cx, size, ClassCounter::DirectReclaims);
                    self.make_room(cx, target, MOVED_BY_WORKER_MAX);
                    break;
                }
            }
        }
        match memory_policy::admit(&self.memory_figures(), bytes, true) {
            Admission::Granted => Ok(()),
            _ => Err(KvError::NoMemory),
        }
    }

    /// Returns the figures that decisions about memory are based on.
    pub(super) fn memory_figures(&self) -> Figures {
        let tenant = &self.resources.tenant;
        Figures {
            budget: tenant.budget(),
            watermarks: self.watermarks(),
            used: tenant.used(),
            waste: tenant.waste(),
            freed_slabs: tenant.freed_slabs(),
            wants_measure: tenant.wants_measure(),
            may_evict: self.may_evict(),
        }
    }

    /// Checks whether there could be room for a value of `value_len` bytes once it has arrived.
    pub fn may_hold(&self, key: Key<'_>, value_len: usize) -> Result<(), KvError> {
        if self.is_gone() {
            return Err(KvError::BucketGone);
        }
        if value_len > VALUE_MAX {
            return Err(KvError::TooBig);
        }
        let stays = if self.may_evict() { 0 } else { self.resources.tenant.used() };
        let bytes = (key.bytes.len() + value_len) as u64;
        if stays + bytes > self.watermarks().refuse { Err(KvError::NoMemory) } else { Ok(()) }
    }

    /// Reserves room for a value before it arrives: only a small part of the budget, and only if nothing has to be
    /// evicted for it.
    pub fn reserve_ahead(self: &Arc<Self>, value_len: usize) -> Option<Ahead> {
        let bytes = value_len as u64;
        if self.resources.tenant.used() + bytes > self.watermarks().high {
            return None;
        }
        let most = self.resources.tenant.budget() / AHEAD_FRACTION;
        let more = |ahead: u64| ahead.checked_add(bytes).filter(|sum| *sum <= most);
        self.ahead_bytes.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Ahead { bucket: Arc::clone(self), bytes })
    }

    /// Returns true if anything may be evicted: documents of an ephemeral bucket, values of a persistent one.
    pub(crate) fn may_evict(&self) -> bool {
        self.persistence.is_some() || self.settings.eviction == Eviction::AutoDelete
    }

    /// Charges (or with a negative number, releases) a connection's buffers to the bucket.
    pub fn charge_buffers(&self, bytes: i64) {
        self.buffer_bytes.fetch_add(bytes, Relaxed);
        self.resources.tenant.count_shared(Gauge::InFlight, bytes);
    }

    /// Returns true if the bucket is charged for the buffers of its connections. Beyond a part of its budget the node
    /// is charged: then all buckets lose a little, and none of them its items.
    pub fn pays_for_buffers(&self) -> bool {
        self.buffer_bytes() < self.resources.tenant.budget() / BUFFERS_FRACTION
    }

    /// Returns the budget.
    pub fn budget_bytes(&self) -> u64 {
        self.resources.tenant.budget()
    }

    /// Sets the configured budget.
    pub fn set_budget(&self, bytes: u64) {
        self.configured_budget.store(bytes, SeqCst);
        self.resources.tenant.set_budget(bytes);
        self.doorbell.ring();
    }

    /// Changes the budget within the configured one, until that is set again (`cache_memlimit`). The error is the
    /// configured budget.
    pub fn lower_budget(&self, bytes: u64) -> Result<(), u64> {
        let configured = self.configured_budget.load(SeqCst);
        if bytes > configured {
            return Err(configured);
        }
        self.resources.tenant.set_budget(bytes);
        // ORDERING: a configured budget that was set meanwhile takes precedence.
        let configured = self.configured_budget.load(SeqCst);
        if bytes > configured {
            self.resources.tenant.set_budget(configured);
        }
        self.doorbell.ring();
        Ok(())
    }
}
