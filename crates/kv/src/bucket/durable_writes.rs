//! Durable writes (SyncWrites) of a bucket, from the prepare to the answer.
//!
//! ```text
//!   durably ──prepare, track──> pending ──verdict──> commit or abort, letter to the session
//!                                 ^ acknowledge, persisted, set_vbucket, expire
//! ```
//! A write whose level is met as soon as it is in memory is not prepared at all. All others are prepared under the
//! vBucket's lock and tracked by its [`DurabilityMonitor`]. Every event that may end one goes through `tend`, which
//! ends what can be ended and posts the outcomes after the lock is released.
//!
//! Deadlines: a vBucket's earliest deadline is armed with the thread that tracked it ([`ThreadContext::arm`]). A thread
//! that finds nothing due goes back to sleep. In polling mode nothing is armed, and a thread visits every vBucket.

use std::time::Duration;

use wire::couchbase::frame_info::DurabilityLevel;

use super::{Arithmetic, Bucket, LONGEST_NUMBER, count_entry, mutate_entry, watch::Attempt};
use crate::durability_monitor::Verdict;
use crate::index::Locked;
use crate::mailbox::{Cookie, Outcome};
use crate::sync_writes::{DiskWait, Durability, Notices, TimeoutMode, WaitedFor, Written};
use crate::topology::VbState;
use crate::{Entry, Key, KvError, Meter, Mutated, Mutation, Place, ThreadContext, VbId};

/// Timeout of a durable write for which the client names none.
const TIMEOUT_DEFAULT_MS: u16 = 30_000;
/// How long requests wait for the disk.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);
/// Most requests that wait for the disk, or for replicas, of one vBucket.
const DISK_WAITS_MAX: usize = 4096;

impl Locked<'_> {
    /// Ends the prepares that can be ended, in seqno order.
    pub(crate) fn end_sync_writes(&mut self, vb_uuid: u64, notices: &mut Notices) {
        while let Some(sync) = self.sync_writes().filter(|sync| sync.role.state == VbState::Active)
            && let Some((verdict, seqno)) = sync.monitor.verdict()
        {
            let ended = match verdict {
                Verdict::Commit => self.commit(seqno),
                Verdict::Abort => self.abort(seqno),
            };
            // Without memory it stays prepared until the next event of the vBucket.
            if matches!(ended, Err(KvError::NoMemory)) {
                return;
            }
            let waiter = self.sync_writes_mut().monitor.end_first().and_then(|(waiter, _)| waiter);
            match (verdict, ended) {
                (Verdict::Commit, Ok(ended)) if ended.is_dropped => {
                    notices.aborted += 1;
                    notices.letters.extend(waiter.map(|cookie| (cookie, Outcome::Ambiguous)));
                }
                (Verdict::Commit, Ok(ended)) => {
                    notices.committed += 1;
                    let mutated = Mutated { cas: ended.cas, seqno: ended.seqno, vb_uuid };
                    notices.letters.extend(waiter.map(|cookie| (cookie, Outcome::Durable(mutated))));
                }
                (Verdict::Abort, Ok(_)) => notices.aborted += 1,
                (_, Err(error)) => {
                    debug_assert!(false, "a tracked prepare is not there: {error}");
                    notices.letters.extend(waiter.map(|cookie| (cookie, Outcome::Ambiguous)));
                }
            }
        }
    }

    /// Returns true if a write of this level has to be prepared. Only the topology decides that.
    fn must_prepare(&self, level: DurabilityLevel) -> Result<bool, KvError> {
        match self.sync_writes() {
            None => Ok(level != DurabilityLevel::Majority),
            Some(sync) if !sync.monitor.is_possible() => Err(KvError::DurabilityImpossible),
            Some(sync) => Ok(!sync.monitor.is_trivial(level)),
        }
    }
}

const fn number_of(level: DurabilityLevel) -> u8 {
    match level {
        DurabilityLevel::Majority => 1,
        DurabilityLevel::MajorityAndPersistToActive => 2,
        DurabilityLevel::PersistToMajority => 3,
    }
}

impl Bucket {
    /// As [`Bucket::mutate`], durably.
    pub fn mutate_durably(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        durability: &Durability,
        mutation: Mutation<'_>,
    ) -> Result<Written, KvError> {
        let (added, with_cas) = (key.bytes.len() + mutation.store.value.len(), mutation.cas != 0);
        let value_len = mutation.store.value.len();
        let attempt = Attempt::of(self, key, &mutation);
        let result = self.admit(cx, added).and_then(|()| {
            self.durably(cx, key, at, durability, |entry| {
                let mutated = mutate_entry(entry, &mutation.kind, mutation.cas, mutation.store)?;
                Ok((mutated, ()))
            })
        });
        self.count_store_of(
            cx,
            (key, value_len),
            with_cas,
            result.as_ref().map(drop).map_err(|error| *error),
        );
        if let Some(attempt) = attempt {
            attempt.report(self, cx, key, result.as_ref().map(drop).map_err(|error| *error));
        }
        result.map(|(written, ())| written)
    }

    /// As [`Bucket::remove`], durably.
    pub fn remove_durably(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        durability: &Durability,
        cas: u64,
    ) -> Result<Written, KvError> {
        let result = self.durably(cx, key, at, durability, |entry| {
            entry.check_version(cas)?;
            Ok((entry.remove()?, ()))
        });
        self.count_removal(cx, result.as_ref().map(drop).map_err(|error| *error));
        result.map(|(written, ())| written)
    }

    /// As [`Bucket::arithmetic`], durably.
    pub fn arithmetic_durably(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        durability: &Durability,
        how: Arithmetic,
    ) -> Result<(u64, Written), KvError> {
        self.admit(cx, key.bytes.len() + LONGEST_NUMBER)?;
        let mut existed = false;
        let attempt = Attempt::to_count(self, key, how.initial.unwrap_or(0), how.expiry);
        let result = self.durably(cx, key, at, durability, |entry| {
            existed = entry.document().is_some();
            count_entry(entry, &how).map(|(number, mutated)| (mutated, number))
        });
        if !existed || result.is_ok() {
            self.count_arithmetic(cx, how.decrement, existed);
        }
        if let Some(attempt) = attempt.filter(|_| result.is_ok() && !existed) {
            attempt.report(self, cx, key, Ok(()));
        }
        result.map(|(written, number)| (number, written))
    }

    /// Runs `f`, which changes a key, after `added_bytes` were admitted; durably if a durability is required.
    pub fn edit(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        durability: Option<&Durability>,
        added_bytes: usize,
        f: impl FnOnce(&mut Entry<'_>) -> Result<Mutated, KvError>,
    ) -> Result<Written, KvError> {
        self.admit(cx, key.bytes.len() + added_bytes)?;
        match durability {
            None => self.change(cx, key, at, f).map(Written::Done),
            Some(durability) => {
                let edit = |entry: &mut Entry<'_>| f(entry).map(|mutated| (mutated, ()));
                self.durably(cx, key, at, durability, edit).map(|(written, ())| written)
            }
        }
    }

    /// Prepares and tracks what `f` changes of a key, unless the change is durable as soon as it is made.
    fn durably<R>(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        durability: &Durability,
        f: impl FnOnce(&mut Entry<'_>) -> Result<(Mutated, R), KvError>,
    ) -> Result<(Written, R), KvError> {
        let Durability { level, timeout_ms, cookie } = *durability;
        let timeout_us = u64::from(timeout_ms.unwrap_or(TIMEOUT_DEFAULT_MS)) * 1000;
        let deadline_us = cx.fresh_us() + timeout_us;
        let is_event_driven = cx.hub.timeout_mode() == TimeoutMode::EventDriven;
        let mut notices = Notices::default();
        let result = self.change(cx, key, at, |entry| {
            // Under the lock: deleting the bucket, or taking the vBucket away, notifies the sessions whose writes were
            // tracked before.
            if self.is_gone() {
                return Err(KvError::BucketGone);
            }
            if !entry.locked().must_prepare(level)? {
                return f(entry).map(|(mutated, result)| (Written::Done(mutated), result));
            }
            entry.prepare_at(number_of(level));
            let (mutated, result) = f(entry)?;
            let locked = entry.locked();
            let sync = locked.sync_writes_mut();
            sync.monitor.track(mutated.seqno, level, Some(deadline_us), Some(cookie));
            if is_event_driven {
                notices.arm_us = sync.arm();
            }
            locked.end_sync_writes(mutated.vb_uuid, &mut notices);
            Ok((Written::Pending, result))
        });
        if matches!(result, Ok((Written::Pending, _))) {
            if level != DurabilityLevel::Majority {
                self.hurry(at.vb);
            }
            self.count(cx, Meter::SyncWritesPrepared, 1);
            self.notify(cx, at.vb, notices);
        }
        result
    }

    /// Applies `f` to the SyncWrites of a vBucket, ends what can be ended by it, and notifies the sessions that wait.
    pub(super) fn tend(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        f: impl FnOnce(&mut Locked<'_>, &mut Notices),
    ) {
        let mut notices = Notices::default();
        let mut locked = self.lock(cx, vb);
        f(&mut locked, &mut notices);
        locked.end_sync_writes(self.vb_uuid(vb), &mut notices);
        if locked.sync_writes().is_some_and(|sync| !sync.disk_waits.is_empty()) {
            locked.sync_writes_mut().acknowledged(&mut notices);
        }
        let armed_s = locked.armed_s();
        drop(locked);
        self.expiry_entered(armed_s);
        self.notify(cx, vb, notices);
    }

    fn notify(&self, cx: &mut ThreadContext, vb: VbId, notices: Notices) {
        let Notices { letters, lateness_us, committed, aborted, arm_us } = notices;
        if let Some(arm_us) = arm_us {
            cx.arm(arm_us, self.slot(), vb);
        }
        for late_us in &lateness_us {
            self.lateness.note(*late_us);
        }
        for (meter, count) in [
            (Meter::SyncWritesCommitted, committed),
            (Meter::SyncWritesAborted, aborted),
            (Meter::SyncWritesAmbiguous, lateness_us.len() as u64),
        ] {
            if count > 0 {
                self.count(cx, meter, count);
            }
        }
        for (cookie, outcome) in letters {
            cx.post(cookie, outcome);
        }
    }

    /// Forgets what a node has acknowledged: it begins to follow, and may have lost what it had.
    pub fn forget_acknowledgements(&self, vb: VbId, node: &str) {
        self.with_sync_writes(vb, |sync| sync.monitor.forget_acknowledgements(|name| name == node));
    }

    /// Notes that a node has everything of a vBucket up to these seqnos, in memory and on its disk. This is where
    /// replication reports what replicas have acknowledged.
    pub fn acknowledge(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        node: &str,
        in_memory_seqno: u64,
        persisted_seqno: u64,
    ) {
        self.tend(cx, vb, |locked, _| {
            locked.sync_writes_mut().monitor.acknowledge(node, in_memory_seqno, persisted_seqno);
        });
    }

    /// The same for what was acknowledged in a term, in memory.
    pub fn acknowledge_in(&self, cx: &mut ThreadContext, vb: VbId, term: u64, node: &str, seqno: u64) {
        self.tend(cx, vb, |locked, _| {
            let sync = locked.sync_writes_mut();
            if sync.role.term == term {
                sync.monitor.acknowledge(node, seqno, seqno);
            }
        });
    }

    /// Returns true if everything of a vBucket up to `seqno` is on disk. If not, a letter says so as soon as it is, or
    /// that it is not within 30 seconds. [`KvError::NoMemory`] if too many wait already.
    pub fn await_persistence(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        seqno: u64,
        cookie: Cookie,
    ) -> Result<bool, KvError> {
        self.await_disk(cx, vb, (cookie, DISK_TIMEOUT), |locked| {
            if locked.persisted_seqno() >= seqno {
                Ok(None)
            } else if locked.is_inactive() {
                Err(KvError::NotActive)
            } else {
                Ok(Some(WaitedFor::Seqno(seqno)))
            }
        })
    }

    /// Returns true if the promise is kept on disk not to accept anything of a lower term than a vBucket's. If not, a
    /// letter says so, as for [`Bucket::await_persistence`].
    pub fn await_promise(&self, cx: &mut ThreadContext, vb: VbId, cookie: Cookie) -> Result<bool, KvError> {
        self.await_disk(cx, vb, (cookie, DISK_TIMEOUT), |locked| {
            let version = locked.sync_writes().map_or(0, |sync| sync.term_version);
            let is_kept = !locked.is_persistent() || locked.state_persisted() >= version;
            Ok((!is_kept).then_some(WaitedFor::State(version)))
        })
    }

    /// Waits for what `f` returns; there may be nothing to wait for.
    pub(super) fn await_disk(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        (cookie, timeout): (Cookie, Duration),
        f: impl FnOnce(&mut Locked<'_>) -> Result<Option<WaitedFor>, KvError>,
    ) -> Result<bool, KvError> {
        let timeout_us = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
        let deadline_us = cx.fresh_us().saturating_add(timeout_us);
        let is_event_driven = cx.hub.timeout_mode() == TimeoutMode::EventDriven;
        let mut notices = Notices::default();
        let mut locked = self.lock(cx, vb);
        // Under the lock, as for durable writes.
        if self.is_gone() {
            return Err(KvError::BucketGone);
        }
        let Some(until) = f(&mut locked)? else { return Ok(true) };
        let sync = locked.sync_writes_mut();
        if sync.disk_waits.len() >= DISK_WAITS_MAX {
            return Err(KvError::NoMemory);
        }
        sync.await_disk(DiskWait { until, deadline_us, cookie });
        if is_event_driven {
            notices.arm_us = sync.arm();
        }
        drop(locked);
        if !matches!(until, WaitedFor::Acknowledged(_)) {
            self.hurry(vb);
        }
        self.notify(cx, vb, notices);
        Ok(false)
    }

    /// Tells that this node has everything of a vBucket up to this seqno on its disk, and this version of its state.
    pub(crate) fn persisted(&self, cx: &mut ThreadContext, vb: VbId, seqno: u64, state_version: u64) {
        let (mut may_end, mut is_dead, mut notices) = (false, false, Notices::default());
        self.with_sync_writes(vb, |sync| {
            is_dead = sync.role.state == VbState::Dead;
            // What a copy has on disk, it may acknowledge.
            let called = sync.link.as_ref().filter(|_| sync.is_copy()).and_then(|link| link.note(vb.0));
            notices.letters.extend(called.map(|cookie| (cookie, Outcome::Stirred)));
            sync.persisted(seqno, state_version, &mut notices);
            may_end = sync.monitor.verdict().is_some();
        });
        self.notify(cx, vb, notices);
        if may_end || is_dead {
            // Whoever takes over waits for that.
            self.tend(cx, vb, |locked, _| {
                if is_dead {
                    locked.call_followers(None)
                }
            });
        }
    }

    /// Notifies the sessions whose durable writes are overdue.
    pub(crate) fn expire_sync_writes(&self, cx: &mut ThreadContext, vb: VbId) {
        let now_us = cx.fresh_us();
        let is_event_driven = cx.hub.timeout_mode() == TimeoutMode::EventDriven && cx.keeps_alarms;
        self.tend(cx, vb, |locked, notices| {
            if locked.sync_writes().is_none() {
                return;
            }
            let sync = locked.sync_writes_mut();
            sync.expire(now_us, notices);
            if is_event_driven {
                notices.arm_us = sync.arm();
            }
        });
    }

    /// Notifies all waiting sessions that the bucket is being deleted.
    pub(crate) fn abandon_sync_writes(&self, post: &mut dyn FnMut(Cookie, Outcome)) {
        for vb in 0..self.vbuckets() {
            let mut notices = Notices::default();
            self.with_sync_writes(VbId(vb), |sync| sync.abandon(&mut notices));
            notices.letters.into_iter().for_each(|(cookie, outcome)| post(cookie, outcome));
        }
    }

    /// `stats durability-monitor`: sums, the lateness of "ambiguous" answers, and every vBucket that differs from the
    /// default.
    pub fn sync_write_statistics(&self, emit: &mut dyn FnMut(&str, std::fmt::Arguments<'_>)) {
        for meter in [
            Meter::SyncWritesPrepared,
            Meter::SyncWritesCommitted,
            Meter::SyncWritesAborted,
            Meter::SyncWritesAmbiguous,
        ] {
            emit(meter.name(), format_args!("{}", self.meter(meter)));
        }
        self.lateness.emit(emit);
        let (mut pending, mut lines) = (0, Vec::new());
        for vb in 0..self.vbuckets() {
            let rank = self.rank(VbId(vb));
            self.with_sync_writes(VbId(vb), |sync| {
                pending += sync.monitor.len();
                lines.push((format!("vb_{vb}:state"), sync.role.state.name().to_owned()));
                lines.push((format!("vb_{vb}:topology"), sync.role.topology.to_string()));
                lines.push((format!("vb_{vb}:term"), sync.role.term.to_string()));
                lines.push((format!("vb_{vb}:history_term"), rank.term.to_string()));
                lines.push((format!("vb_{vb}:complete_seqno"), rank.seqno.to_string()));
                if let Some(source) = &sync.role.source {
                    lines.push((format!("vb_{vb}:source"), source.to_string()));
                }
                lines.push((format!("vb_{vb}:num_tracked"), sync.monitor.len().to_string()));
                lines.push((format!("vb_{vb}:num_overdue"), sync.monitor.overdue().to_string()));
                for (node, in_memory, persisted) in sync.monitor.nodes().skip(1) {
                    lines.push((format!("vb_{vb}:{node}:in_memory_seqno"), in_memory.to_string()));
                    lines.push((format!("vb_{vb}:{node}:persisted_seqno"), persisted.to_string()));
                }
            });
        }
        emit("num_tracked", format_args!("{pending}"));
        for (name, value) in lines {
            emit(&name, format_args!("{value}"));
        }
    }
}
