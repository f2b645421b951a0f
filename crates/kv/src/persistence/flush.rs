//! One flush of a shard: from the dirty vBuckets to a commit, and back.
//!
//! ```text
//!   take marks ─> per vBucket: walk under the lock in slices, encode into the buffer; full: unlock, write out, go on
//!              ─> at the walk's end: state record if it changed, S noted
//!   commit     ─> per vBucket: persisted = S, order trimmed; marked again if there is more already
//! ```
//! The state per vBucket of a batch is [`Walk`]; nothing is kept per item. On failure the vBuckets are marked again:
//! what was walked is still in their orders.
//!
//! Writers may be faster than the disk, so that a walk never meets the end of the order: whenever the lock is released
//! for a write, a key that was walked is changed again. A walk that has written more than there was to write when it
//! began, and one of a long batch, takes what is left under one hold of the lock: large values are pinned, the rest is
//! copied. As a rule that is what the vBucket's writers changed during one write.

use std::sync::atomic::Ordering::Relaxed;

use journal::log::{Batch, Buffer, Kind as RecordKind, Record, WriteError};

use super::compaction;
use crate::index::{Dirty, Header, Kind, OnDisk, StateRecord, Walked, mark};
use crate::storage::{DELETED, EXPIRED, JournalDisk, Persistence, encode_state};
use crate::sync_writes::SyncWrites;
use crate::{Bucket, ThreadContext, VbId};

/// A batch longer than this takes no further vBucket: whoever waits for its sync must not wait for everybody's data.
const BATCH_BYTES: u64 = 32 << 20;
/// Waiting times after a failure, doubled each time, ms.
const REST_FIRST_MS: u64 = 100;
const REST_MAX_MS: u64 = 5000;

/// In the place of a base: nothing was walked that counts.
const REFILLING: u64 = u64::MAX;

/// How far a vBucket was walked.
struct Walk {
    vb: u16,
    seqno: u64,
    /// As of the end of the walk.
    base: u64,
    state: OnDisk,
}

/// What a batch contains.
#[derive(Default)]
struct Taken {
    walks: Vec<Walk>,
    items: u64,
    bytes: u64,
    max_cas: u64,
}

/// Flushes what is dirty in a shard, in one batch. Returns true if anything was.
pub(super) fn flush_shard(
    bucket: &Bucket,
    cx: &mut ThreadContext,
    at: usize,
    buffer: &mut Buffer,
) -> Result<bool, WriteError> {
    let (Some(persistence), Some(dirty)) = (bucket.persistence(), bucket.dirty()) else { return Ok(false) };
    let Some(shard) = persistence.shards.get(at) else { return Ok(false) };
    let mut journal = shard.journal.lock();
    let Some(journal) = &mut *journal else { return Ok(false) };
    let hurried = shard.hurry.swap(false, Relaxed);
    let mut marked = dirty.take(at);
    // A vBucket that is still being read has nothing to flush yet; a damaged one must stay as it is.
    marked.retain(|vb| persistence.closed(VbId(*vb)).is_none());
    if marked.is_empty() {
        return Ok(false);
    }
    // Writers may be faster than the disk: the vBuckets take turns.
    let resume = shard.resume.load(Relaxed);
    let first = marked.partition_point(|vb| *vb < resume);
    marked.rotate_left(first);
    let mut taken = Taken::default();
    let result = persistence
        .note_written(at, journal)
        .and_then(|()| journal.batch(buffer))
        .and_then(|batch| write_batch(bucket, cx, &marked, batch, &mut taken));
    match result {
        Ok(committed_bytes) => {
            let left = marked.get(taken.walks.len()..).unwrap_or_default();
            shard.resume.store(left.first().copied().unwrap_or(0), Relaxed);
            shard.is_long.store(!left.is_empty(), Relaxed);
            if hurried && !left.is_empty() {
                // Somebody may wait for one of the vBuckets that are left.
                shard.hurry.store(true, Relaxed);
            }
            left.iter().for_each(|vb| dirty.mark(*vb));
            complete(bucket, cx, &taken.walks);
            let counters = &persistence.counters;
            counters.items.fetch_add(taken.items, Relaxed);
            counters.commits.fetch_add(1, Relaxed);
            counters.bytes.fetch_add(committed_bytes, Relaxed);
            shard.failures.store(0, Relaxed);
            shard.may_compact.store(true, Relaxed);
            compaction::add_debt(bucket, persistence, shard, journal, committed_bytes);
            shard.at_rest_ms.store(cx.now.mono_ms() + compaction::REST_MS, Relaxed);
            dirty.set_full(at, false);
            Ok(true)
        }
        Err(error) => {
            marked.iter().for_each(|vb| dirty.mark(*vb));
            note_failure(persistence, at, cx.now.mono_ms());
            dirty.set_full(at, matches!(error, WriteError::NoSpace(_)));
            Err(error)
        }
    }
}

fn note_failure(persistence: &Persistence, at: usize, now_ms: u64) {
    let Some(shard) = persistence.shards.get(at) else { return };
    persistence.counters.failures.fetch_add(1, Relaxed);
    let before = shard.failures.fetch_add(1, Relaxed);
    let rest_ms = REST_FIRST_MS.checked_shl(before.min(16) as u32).unwrap_or(REST_MAX_MS).min(REST_MAX_MS);
    shard.rest_until_ms.store(now_ms + rest_ms, Relaxed);
    // The failed flush may have left a segment behind.
    shard.compact_from_bytes.store(0, Relaxed);
}

/// Walks vBuckets until all are done or the batch is long, and commits. Returns the bytes of the batch.
fn write_batch(
    bucket: &Bucket,
    cx: &mut ThreadContext,
    marked: &[u16],
    mut batch: Batch<'_, JournalDisk>,
    taken: &mut Taken,
) -> Result<u64, WriteError> {
    for vb in marked {
        if taken.bytes > BATCH_BYTES {
            break;
        }
        walk(bucket, cx, *vb, &mut batch, taken)?;
    }
    batch.commit(taken.max_cas).map(|committed| committed.bytes)
}

/// Encodes what is unflushed in a vBucket, to the end of its order.
fn walk(
    bucket: &Bucket,
    cx: &mut ThreadContext,
    vb: u16,
    batch: &mut Batch<'_, JournalDisk>,
    taken: &mut Taken,
) -> Result<(), WriteError> {
    batch.begin(vb);
    let (history, now_s) = (bucket.vb_uuid(VbId(vb)), cx.now.unix_s);
    let (mut after, mut slices, mut walked_items) = (0, 1, 0u64);
    let (mut expected_items, mut base) = (None, None);
    loop {
        let mut locked = bucket.lock(cx, VbId(vb));
        if locked.is_refilling() {
            // What is on disk stays until all of the new copy is here, which marks the vBucket again. What was written
            // of the old one is as good as ever.
            taken.walks.push(Walk { vb, seqno: 0, base: REFILLING, state: OnDisk::default() });
            return Ok(());
        }
        if base.replace(locked.base()).is_some_and(|before| before != locked.base()) {
            // It has begun anew.
            after = 0;
        }
        let base = locked.base();
        after = after.max(locked.persisted_seqno());
        let expected = *expected_items.get_or_insert_with(|| u64::from(locked.unflushed()));
        if walked_items > expected && taken.bytes > BATCH_BYTES {
            let rest = locked.all_dirty(after);
            let end = locked.end_of_walk(vb, history);
            drop(locked);
            for item in rest {
                push(batch, taken, &record_of(&item.as_dirty(), base, now_s))?;
            }
            return end.write(batch, taken);
        }
        let (mut items, mut bytes, mut refused_bytes) = (0, 0, 0);
        let walked = locked.walk_dirty(&mut after, slices, |item| {
            let record = record_of(item, base, now_s);
            let record_bytes = record.encoded_bytes();
            if !batch.fits(record_bytes) {
                refused_bytes = record_bytes;
                return false;
            }
            batch.push(&record);
            (items, bytes) = (items + 1, bytes + record_bytes as u64);
            true
        });
        taken.items += items;
        taken.bytes += bytes;
        walked_items += items;
        match walked {
            Walked::ToTheEnd => {
                let end = locked.end_of_walk(vb, history);
                drop(locked);
                return end.write(batch, taken);
            }
            Walked::Slice => {
                drop(locked);
                // Writers may be faster than slices of this size.
                if walked_items > expected {
                    slices *= 2;
                }
            }
            Walked::Refused => {
                drop(locked);
                batch.write_out()?;
                if batch.fits_buffer(refused_bytes) {
                    continue;
                }
                // Written from where its value lies. The lock must not be held as long as the item.
                let mut locked = bucket.lock(cx, VbId(vb));
                let item = if locked.base() == base { locked.next_dirty(after) } else { None };
                drop(locked);
                if let Some(item) = item {
                    push(batch, taken, &record_of(&item.as_dirty(), base, now_s))?;
                    after = item.header.seqno;
                    walked_items += 1;
                }
            }
        }
    }
}

/// Writes a record of an item, however long it is. It does I/O: not under a lock.
fn push(
    batch: &mut Batch<'_, JournalDisk>,
    taken: &mut Taken,
    record: &Record<'_>,
) -> Result<(), WriteError> {
    let record_bytes = record.encoded_bytes();
    if !batch.fits_buffer(record_bytes) {
        batch.push_long(record)?;
    } else {
        if !batch.fits(record_bytes) {
            batch.write_out()?;
        }
        batch.push(record);
    }
    taken.items += u64::from(record.kind != RecordKind::State);
    taken.bytes += record_bytes as u64;
    Ok(())
}

/// What was noted when a walk met the end, under the same hold of the lock.
struct End {
    walk: Walk,
    max_cas: u64,
    state: Option<Vec<u8>>,
}

impl End {
    /// Writes the state if it has changed; then the walk is part of the batch.
    fn write(self, batch: &mut Batch<'_, JournalDisk>, taken: &mut Taken) -> Result<(), WriteError> {
        if let Some(state) = &self.state {
            push(batch, taken, &state_record(self.walk.base + self.walk.seqno, state))?;
        }
        taken.max_cas = taken.max_cas.max(self.max_cas);
        taken.walks.push(self.walk);
        Ok(())
    }
}

fn complete(bucket: &Bucket, cx: &mut ThreadContext, walks: &[Walk]) {
    for walk in walks {
        let mut locked = bucket.lock(cx, VbId(walk.vb));
        if locked.base() != walk.base {
            // What was written is void: it has begun anew meanwhile, and is marked.
            continue;
        }
        if locked.complete(walk.seqno, walk.state) {
            locked.mark_dirty();
        }
        if locked.sync_writes().is_some() {
            locked.sync_writes_mut().monitor.persisted(walk.seqno);
            drop(locked);
            bucket.persisted(cx, VbId(walk.vb), walk.seqno, walk.state.version);
        }
    }
    cx.end_batch();
}

#[inline]
fn record_of<'a>(item: &Dirty<'a>, base: u64, now_s: u32) -> Record<'a> {
    let Header { kind, seqno, cas, rev, expiry, flags, datatype, committed, .. } = *item.header;
    Record {
        kind: match kind {
            Kind::Document | Kind::Ejected | Kind::Shadow => RecordKind::Document,
            Kind::Tombstone => RecordKind::Tombstone,
            Kind::Prepare | Kind::PrepareShadow => RecordKind::Prepare,
            Kind::PrepareDelete => RecordKind::PrepareDelete,
            Kind::Abort => RecordKind::Abort,
        },
        seqno: base + seqno,
        cas,
        rev,
        // An abort has no room for its time in memory.
        expiry: if kind == Kind::Abort { now_s } else { expiry },
        flags,
        datatype: match kind {
            Kind::Shadow | Kind::PrepareShadow => datatype | DELETED,
            _ => datatype,
        },
        level: match kind {
            Kind::Tombstone if item.header.marks & mark::EXPIRED != 0 => EXPIRED,
            _ => item.level,
        },
        committed,
        key: item.stored_key,
        value: item.value,
    }
}

fn state_record(seqno: u64, value: &[u8]) -> Record<'_> {
    Record {
        kind: RecordKind::State,
        seqno,
        cas: 0,
        rev: 0,
        expiry: 0,
        flags: 0,
        datatype: 0,
        level: 0,
        committed: false,
        key: &[],
        value,
    }
}

impl crate::index::Locked<'_> {
    /// Notes that the walk has met the end of the order: S is the highest seqno. `history` is the vBucket's present
    /// history id.
    fn end_of_walk(&mut self, vb: u16, history: u64) -> End {
        let seqno = self.high_seqno();
        let state = self.state_record(seqno, history);
        let on_disk = state.as_ref().map(|state| OnDisk {
            version: state.version,
            flushed_seqno: state.flushed_seqno - state.base,
            purged_seqno: state.purged_seqno,
            base: state.base,
        });
        let walk = Walk { vb, seqno, base: self.base(), state: on_disk.unwrap_or_default() };
        End { walk, max_cas: self.max_cas(), state: state.as_ref().map(encode_state) }
    }

    /// Returns the vBucket's state up to `seqno`, if it differs from what is on disk; `history` is its present history
    /// id.
    fn state_record(&mut self, seqno: u64, history: u64) -> Option<StateRecord> {
        let flushed_seqno = self.flushed_seqno();
        if self.durable().state_version == self.durable().state_persisted {
            return None;
        }
        let mut prepares: Vec<u64> = self.all_prepared().iter().map(|prepared| prepared.seqno).collect();
        prepares.retain(|prepare_seqno| *prepare_seqno <= flushed_seqno);
        let setting = self.sync_writes().map(SyncWrites::setting);
        let events = self.events();
        let durable = self.durable();
        if durable.histories.is_empty() {
            durable.histories.push((history, 0));
        }
        Some(StateRecord {
            version: durable.state_version,
            high_seqno: durable.base + seqno,
            flushed_seqno: durable.base + flushed_seqno,
            max_deleted_rev: durable.max_deleted_rev,
            histories: durable.histories.clone(),
            terms: durable.terms.clone(),
            prepares,
            purged_seqno: durable.purged_seqno,
            events,
            base: durable.base,
            setting,
        })
    }
}
