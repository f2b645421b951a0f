//! Which records of the journal are still needed: the engine's answers to [`journal::log::Shard::compact_step`].
//!
//! A record may be dropped once what makes it superfluous is on disk: a newer version that is only in memory is not
//! enough, nor is a flush_all whose state has not been written. After a crash the record would be missed.

use std::sync::atomic::Ordering::Relaxed;

use journal::log::{Aim, Buffer, Kind, Record, Shard, Step, Verdict, WriteError};

use crate::index::Locked;
use crate::storage::{self, JournalDisk, Persistence, decode_state};
use crate::{Bucket, ThreadContext, VbId};

/// Bytes read and written per step: a flush waits that long, unless the compaction debt is large.
const STEP_BYTES: usize = 1 << 20;
/// Above this compaction debt nothing is flushed: otherwise writers that never rest would fill the disk.
const OWED_MAX: u64 = 64 << 20;
/// Bounds of the debt: as a multiple of what was flushed, and in all.
const OWED_TIMES_MAX: u64 = 8;
const OWED_LIMIT: u64 = 320 << 20;
/// While somebody waits for a sync, compaction goes first for this many bytes at most.
const AHEAD_OF_WAITERS_BYTES: u64 = 16 << 20;
/// Checking the segments reads some of each: the next check waits until a segment's length divided by this more is
/// superfluous.
const LOOK_AGAIN_PART: u64 = 8;
/// A shard is at rest when nothing has been written for this long.
pub(super) const REST_MS: u64 = 10_000;
/// A copy is being made: the next check comes after this.
const HELD_MS: u64 = 1000;

/// Adds compaction debt for what was flushed, if much on disk is superfluous. The debt is a multiple of what was
/// flushed, which grows with how many times as much as enough is on disk.
pub(super) fn add_debt(
    bucket: &Bucket,
    persistence: &Persistence,
    shard: &storage::Shard,
    journal: &Shard<JournalDisk>,
    flushed_bytes: u64,
) {
    let times = match journal.times_enough(Aim::at_work(live_bytes(bucket, persistence))) {
        0 => 0,
        times => 1 + times,
    };
    let debt_bytes = shard.debt_bytes.load(Relaxed) + flushed_bytes * times.min(OWED_TIMES_MAX);
    shard.debt_bytes.store(debt_bytes.min(OWED_LIMIT), Relaxed);
    shard.worked_bytes.store(0, Relaxed);
}

/// Does a part of the compaction of a shard, if there is any. Returns the milliseconds until there is more.
pub(super) fn compact(
    bucket: &Bucket,
    cx: &mut ThreadContext,
    at: usize,
    buffer: &mut Option<Buffer>,
    buffer_bytes: usize,
) -> Result<Option<u64>, WriteError> {
    let Some(persistence) = bucket.persistence() else { return Ok(None) };
    let Some(shard) = persistence.shards.get(at) else { return Ok(None) };
    let more_ms = step(bucket, persistence, shard, cx, buffer, buffer_bytes);
    let debt_bytes = match more_ms {
        Ok(Some(0)) => {
            shard.worked_bytes.fetch_add(STEP_BYTES as u64, Relaxed);
            shard.debt_bytes.load(Relaxed).saturating_sub(STEP_BYTES as u64)
        }
        // It cannot, or has nothing to do: nobody has to wait for it.
        _ => 0,
    };
    shard.debt_bytes.store(debt_bytes, Relaxed);
    more_ms
}

fn step(
    bucket: &Bucket,
    persistence: &Persistence,
    shard: &storage::Shard,
    cx: &mut ThreadContext,
    buffer: &mut Option<Buffer>,
    buffer_bytes: usize,
) -> Result<Option<u64>, WriteError> {
    if persistence.warm_up.is_running() {
        return Ok(None);
    }
    let at_rest_ms = shard.at_rest_ms.load(Relaxed);
    let at_rest = at_rest_ms != 0 && at_rest_ms <= cx.now.mono_ms();
    if !shard.may_compact.load(Relaxed) {
        match at_rest_ms {
            0 => return Ok(None),
            _ if !at_rest => return Ok(Some(at_rest_ms - cx.now.mono_ms())),
            _ => {}
        }
    }
    let mut journal = shard.journal.lock();
    let Some(journal) = &mut *journal else { return Ok(None) };
    let live_bytes = live_bytes(bucket, persistence);
    let superfluous_bytes = journal.figures().bytes.saturating_sub(live_bytes);
    let in_vain = !at_rest && superfluous_bytes < shard.compact_from_bytes.load(Relaxed);
    let aim = Aim { live_bytes, at_rest };
    if in_vain || !journal.wants_compaction(aim) {
        return Ok(shard.end_compaction(at_rest, cx.now.mono_ms()));
    }
    let buffer = buffer.get_or_insert_with(|| Buffer::new(buffer_bytes));
    let purge_before_s = cx.now.unix_s.saturating_sub(persistence.settings.tombstone_age_s);
    let mut judge = |vb: u16, record: &Record<'_>| {
        if persistence.closed(VbId(vb)).is_some() {
            return Verdict::Live;
        }
        verdict(&mut bucket.lock(cx, VbId(vb)), record, purge_before_s)
    };
    let step = journal.compact_step(buffer, STEP_BYTES, &mut judge, aim, purge_before_s)?;
    // They may go the next time, once the state on disk says so.
    for (vb, on_disk) in journal.take_old_kept() {
        let mut locked = bucket.lock(cx, VbId(vb));
        if let Some(seqno) = on_disk.checked_sub(locked.base()) {
            locked.purge(seqno, purge_before_s);
        }
    }
    cx.end_batch();
    Ok(match step {
        Step::Idle => {
            let more_bytes = persistence.settings.segment_bytes / LOOK_AGAIN_PART;
            shard.compact_from_bytes.store(superfluous_bytes + more_bytes, Relaxed);
            shard.end_compaction(at_rest, cx.now.mono_ms())
        }
        Step::More => {
            shard.compact_from_bytes.store(0, Relaxed);
            Some(0)
        }
        Step::Finished { freed_bytes } => {
            persistence.counters.compacted_segments.fetch_add(1, Relaxed);
            persistence.counters.compacted_bytes.fetch_add(freed_bytes, Relaxed);
            Some(0)
        }
        Step::Held => Some(HELD_MS),
        Step::Damaged(damage) => {
            persistence.note_damage(damage);
            Some(0)
        }
    })
}

impl storage::Shard {
    /// Returns true if compaction is so far behind that it goes before the next flush.
    pub(super) fn compacts_first(&self) -> bool {
        let somebody_waits = self.hurry.load(Relaxed);
        let for_long = self.worked_bytes.load(Relaxed) >= AHEAD_OF_WAITERS_BYTES;
        self.debt_bytes.load(Relaxed) > OWED_MAX && !(somebody_waits && for_long)
    }

    /// Notes that there is nothing to do until something is written, or the shard comes to rest. Returns the
    /// milliseconds until then.
    fn end_compaction(&self, at_rest: bool, now_ms: u64) -> Option<u64> {
        self.may_compact.store(false, Relaxed);
        if at_rest {
            self.at_rest_ms.store(0, Relaxed);
        }
        let at_rest_ms = self.at_rest_ms.load(Relaxed);
        (at_rest_ms != 0).then(|| at_rest_ms.saturating_sub(now_ms))
    }
}

/// Estimates what a shard would have on disk if nothing in it were superfluous.
fn live_bytes(bucket: &Bucket, persistence: &Persistence) -> u64 {
    bucket.live_journal_bytes() / persistence.shards.len().max(1) as u64
}

fn verdict(locked: &mut Locked<'_>, record: &Record<'_>, purge_before_s: u32) -> Verdict {
    if record.kind != Kind::State && locked.is_dropped(record.key) {
        return Verdict::Dead;
    }
    let (base, is_base_on_disk) = (locked.base(), locked.durable().base == locked.durable().base_persisted);
    let Some(seqno) = record.seqno.checked_sub(base).filter(|seqno| *seqno > 0 || record.kind == Kind::State)
    else {
        return if is_base_on_disk { Verdict::Dead } else { Verdict::Live };
    };
    let record = &Record { seqno, ..*record };
    let flushed_seqno = locked.flushed_seqno();
    let current = locked.current_seqno(record.key);
    let pending = record.kind == Kind::Prepare || record.kind == Kind::PrepareDelete;
    let is_pending = pending && locked.prepared(record.seqno).is_some();
    let durable = locked.durable();
    let (persisted, purged_persisted) = (durable.persisted_seqno, durable.purged_persisted);
    let is_newer_in_memory = current.is_some_and(|seqno| seqno > record.seqno && seqno > persisted);
    let is_needed = match record.kind {
        Kind::State => {
            decode_state(record.value).is_none_or(|state| state.version >= durable.state_persisted)
        }
        Kind::Document => {
            let counts = record.seqno > durable.persisted_flushed;
            counts
                && match current {
                    // The current version, or one that will replace it is not on disk yet.
                    Some(seqno) => seqno <= record.seqno || seqno > persisted,
                    // Deleted, and the tombstone is on disk; or flushed, and that is not yet.
                    None => record.seqno <= flushed_seqno || record.seqno > persisted,
                }
        }
        Kind::Tombstone | Kind::Abort => {
            record.seqno > durable.persisted_flushed
                && current.is_none_or(|seqno| seqno <= record.seqno || seqno > persisted)
        }
        Kind::Prepare | Kind::PrepareDelete => {
            let is_end_on_disk = !durable.has_unflushed_aborts()
                && durable.persisted_flushed == flushed_seqno
                && current.is_none_or(|seqno| seqno <= persisted);
            is_pending || !is_end_on_disk
        }
    };
    match (is_needed, record.kind) {
        (false, _) => Verdict::Dead,
        // Too young to be dropped as an end.
        (true, Kind::Tombstone) if is_newer_in_memory && record.expiry >= purge_before_s => {
            Verdict::LiveIfNewest
        }
        // Whoever follows from before it must be told.
        (true, Kind::Tombstone | Kind::Abort)
            if record.expiry >= purge_before_s || record.seqno > purged_persisted =>
        {
            Verdict::Kept
        }
        (true, Kind::Document | Kind::Tombstone) if is_newer_in_memory => Verdict::LiveIfNewest,
        (true, _) => Verdict::Live,
    }
}
