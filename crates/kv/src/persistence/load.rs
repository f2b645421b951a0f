//! Warm-up: reading a bucket's journals into memory.
//!
//! Opening has read only the ends of the segments. Any thread takes the next segment, newest first, and replays it,
//! while others do the same; a vBucket opens when all its runs are in. Values that find no room in the budget stay on
//! disk.

use std::sync::atomic::Ordering::Relaxed;

use journal::log::{Buffer, Kind as RecordKind, Record, Replayed, Spoils};

use crate::bucket::attention;
use crate::index::{CAS_MOST, Header, Kind, Locked, Stored};
use crate::storage::{DELETED, FLUSHERS, Part, Persistence, Trouble, check_value, decode_state, spoil};
use crate::{Bucket, KvError, Node, NodeContext, Unavailable, VbId};

/// Reads the next segment that waits for it, of any bucket. Returns false if none waits. Any number of threads may do
/// so at a time.
pub fn load_next(cx: &mut NodeContext, buffer: &mut Buffer) -> bool {
    let next = cx.node.buckets().into_iter().find_map(|bucket| {
        let part = bucket.persistence()?.take_part().filter(|_| !bucket.is_gone())?;
        Some((bucket, part))
    });
    let Some((bucket, part)) = next else { return false };
    load(&bucket, cx, part, buffer);
    true
}

/// Returns true if there is a segment that nobody reads yet.
pub fn waits_for_load(node: &Node) -> bool {
    node.buckets().iter().filter_map(|bucket| bucket.persistence()).any(Persistence::waits_for_load)
}

/// Reads a segment into memory.
fn load(bucket: &Bucket, cx: &mut NodeContext, (at, segment): Part, buffer: &mut Buffer) {
    let Some(persistence) = bucket.persistence() else { return };
    let roles = bucket.role_changes();
    let mut loader = Loader { bucket, persistence, shard: at, cx, records: 0 };
    if let Err(error) = segment.replay(buffer, &mut |replayed| loader.take(&replayed)) {
        loader.spoil(&Spoils::Everything);
        persistence.note(Trouble::Write(error.to_string()));
    }
    let records = loader.records;
    persistence.warm_up.records.fetch_add(records, Relaxed);
    persistence.warm_up.segments_done.fetch_add(1, Relaxed);
    if persistence.has_worn && !persistence.warm_up.is_running() {
        for index in 0..FLUSHERS {
            cx.node.flusher_bell(index).ring();
        }
    }
    if bucket.role_changes() != roles {
        // Maps of before show none of these roles.
        cx.node.note_map_change();
    }
    cx.end_batch();
}

struct Loader<'a> {
    bucket: &'a Bucket,
    persistence: &'a Persistence,
    shard: usize,
    cx: &'a mut NodeContext,
    records: u64,
}

impl Loader<'_> {
    fn take(&mut self, replayed: &Replayed<'_>) {
        match replayed {
            Replayed::Record(vb, record) => {
                self.records += 1;
                let resident = self.bucket.tenant().used() <= self.bucket.watermarks().high;
                if !resident {
                    self.bucket.raise(attention::EJECTED);
                }
                let mut locked = self.bucket.lock(self.cx, VbId(*vb));
                let applied =
                    apply(&mut locked, record, self.persistence.datatype(record.datatype), resident);
                let armed_s = locked.armed_s();
                drop(locked);
                self.bucket.expiry_entered(armed_s);
                if let Err(error) = applied {
                    self.spoil(&Spoils::VBucket(*vb));
                    self.persistence.note(Trouble::Unread(VbId(*vb), error));
                }
            }
            Replayed::RunDone(vb) => self.run_done(*vb),
            Replayed::Damage(damage) => {
                self.spoil(&damage.spoils);
                self.persistence.note(Trouble::Damage((*damage).clone()));
            }
        }
    }

    fn spoil(&self, spoils: &Spoils) {
        spoil(&self.persistence.gates, self.shard, self.persistence.shards.len(), spoils);
    }

    fn run_done(&mut self, vb: u16) {
        let (history, is_clean) = (self.bucket.vb_uuid(VbId(vb)), self.bucket.had_clean_end());
        let kept_uid = self.persistence.kept_uid();
        let max_cas = self.persistence.shards.get(self.shard).map_or(0, |shard| shard.max_cas);
        let mut locked = self.bucket.lock(self.cx, VbId(vb));
        if !locked.run_replayed() {
            return;
        }
        if self.persistence.closed(VbId(vb)) == Some(Unavailable::Damaged) {
            return;
        }
        // `bucket.json` is written before any vBucket learns of a change.
        if locked.told().is_some_and(|told| told.last_uid() > kept_uid) {
            drop(locked);
            self.spoil(&Spoils::VBucket(vb));
            return self.persistence.note(Trouble::Outdated(VbId(vb)));
        }
        match locked.end_replay(history, is_clean, max_cas) {
            Ok(has_flushed) => {
                if let Some(uuid) = locked.last_history() {
                    self.bucket.set_vb_uuid(VbId(vb), uuid);
                }
                drop(locked);
                if has_flushed {
                    self.bucket.note_flushed();
                }
                self.bucket.restore_setting(self.cx, VbId(vb));
                // ORDERING: not earlier: the pager would expire what is a copy.
                let expiry_due_s = self.bucket.lock(self.cx, VbId(vb)).expiry_due_s();
                self.bucket.expiry_entered(expiry_due_s.unwrap_or(u32::MAX));
                self.persistence.warm_up.vbuckets_done.fetch_add(1, Relaxed);
                self.bucket.open_gate(self.persistence, vb);
                // ORDERING: not earlier: whoever is called looks at what is open.
                self.bucket.begin_to_copy(self.cx, VbId(vb));
                // ORDERING: not earlier: the flusher skips what is not open.
                self.bucket.lock(self.cx, VbId(vb)).mark_if_dirty();
            }
            Err(error) => {
                drop(locked);
                self.spoil(&Spoils::VBucket(vb));
                self.persistence.note(Trouble::Unread(VbId(vb), error));
            }
        }
    }
}

fn apply(locked: &mut Locked<'_>, record: &Record<'_>, datatype: u8, resident: bool) -> Result<(), KvError> {
    let is_deleted = record.datatype & DELETED != 0;
    let kind = match record.kind {
        RecordKind::Document if is_deleted => Kind::Shadow,
        RecordKind::Document => Kind::Document,
        RecordKind::Tombstone => Kind::Tombstone,
        RecordKind::Prepare if is_deleted => Kind::PrepareShadow,
        RecordKind::Prepare => Kind::Prepare,
        RecordKind::PrepareDelete => Kind::PrepareDelete,
        RecordKind::Abort => {
            locked.replay_abort(record.key, record.seqno, record.cas);
            return Ok(());
        }
        RecordKind::State => {
            let state = decode_state(record.value).ok_or(KvError::Damaged)?;
            locked.replay_state(state);
            return Ok(());
        }
    };
    check_value(record.datatype, record.value)?;
    let header = Header {
        // Versions that let clients name any CAS may have stored the one that readers see of a locked document.
        cas: record.cas.min(CAS_MOST),
        seqno: record.seqno,
        kind,
        committed: record.committed,
        rev: record.rev,
        value_len: record.value.len(),
        inflated_len: record.value.len(),
        key_len: record.key.len(),
        datatype: datatype & !DELETED,
        marks: 0,
        accessed: locked.now.unix_s & 0xf_ffff,
        flags: record.flags,
        expiry: record.expiry,
    };
    if kind.is_prepare() {
        let stored = Stored { header, level: record.level, value: record.value.to_vec() };
        locked.replay_prepare(record.key, stored);
        return Ok(());
    }
    locked.replay_item(record.key, header, record.value, resident)
}
