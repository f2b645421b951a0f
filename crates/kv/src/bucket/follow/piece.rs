//! Pieces of the journal for a stream: what it asks for, where it is put, and what it consists of.

use std::sync::Arc;

use journal::log::{Kind as RecordKind, Record};

use super::{SEQNO_MOST, Version, VersionKind, VersionValue};
use crate::VbId;
use crate::bucket::Bucket;
use crate::index::SHADOW_AGE_S;
use crate::lock_order::{Ranked, rank};
use crate::news::News;
use crate::storage::{DELETED, EXPIRED};
use crate::{LARGE_VALUE, PinnedValue};

/// A piece of the journal that a stream waits for.
pub(crate) struct Wanted {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) vb: VbId,
    /// What seqnos on disk are above these.
    pub(crate) base: u64,
    pub(crate) after: u64,
    pub(crate) end: u64,
    /// If given, documents with other seqnos are not wanted.
    pub(crate) documents: Option<Vec<u64>>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) news: Arc<News>,
}

impl Wanted {
    /// Returns true if a record of this kind and datatype is wanted; `seqno` is the vBucket's.
    pub(crate) fn wants(&self, kind: RecordKind, datatype: u8, seqno: u64) -> bool {
        let is_document = kind == RecordKind::Document && datatype & DELETED == 0;
        let Some(documents) = self.documents.as_ref().filter(|_| is_document) else { return true };
        documents.binary_search(&seqno).is_ok()
    }
}

/// Where a piece of the journal is put for a stream.
#[derive(Default)]
pub(crate) struct Shelf(Ranked<Option<Result<Piece, ()>>, { rank::SHELF }>);

/// Records of the journal, in the order of their seqnos.
#[derive(Default)]
pub(crate) struct Piece {
    /// Keys, and values that are not long.
    bytes: Vec<u8>,
    records: Vec<Kept>,
    /// How many have been handed out.
    done: usize,
    /// Everything up to here has been read.
    reached: u64,
}

/// A record of a piece.
struct Kept {
    kind: VersionKind,
    seqno: u64,
    rev: u64,
    cas: u64,
    flags: u32,
    expiry: u32,
    datatype: u8,
    level: u8,
    committed: bool,
    /// Where key and value are.
    at: usize,
    key_len: usize,
    value_len: usize,
    /// A long value: a part of what was read, in the bucket's memory.
    long: Option<PinnedValue>,
}

impl Shelf {
    /// Puts a piece there; nothing, if the journal could not be read.
    pub(crate) fn put(&self, piece: Option<Piece>) {
        *self.0.lock() = Some(piece.ok_or(()));
    }

    /// Takes it, if it is there.
    pub(super) fn take(&self) -> Option<Result<Piece, ()>> {
        self.0.lock().take()
    }
}

impl Piece {
    /// Appends a record. `datatype`: what is believed of it. A long value that lies in `read` stays there, a part of
    /// it.
    pub(crate) fn push(&mut self, record: &Record<'_>, datatype: u8, read: Option<&PinnedValue>) {
        let is_shadow = record.datatype & DELETED != 0;
        let kind = match record.kind {
            RecordKind::Document if is_shadow => VersionKind::Deletion,
            RecordKind::Document => VersionKind::Document,
            RecordKind::Tombstone if record.level == EXPIRED => VersionKind::Expiration,
            RecordKind::Tombstone => VersionKind::Deletion,
            RecordKind::Prepare if is_shadow => VersionKind::PrepareDeletion,
            RecordKind::Prepare => VersionKind::Prepare,
            RecordKind::PrepareDelete => VersionKind::PrepareDeletion,
            RecordKind::Abort => VersionKind::Abort,
            RecordKind::State => return,
        };
        let Record { seqno, rev, cas, flags, level, committed, key, value, .. } = *record;
        let expiry = record.expiry.saturating_sub(if is_shadow { SHADOW_AGE_S } else { 0 });
        // Earlier versions wrote the prepare's CAS.
        let is_seqno = kind != VersionKind::Abort || cas <= SEQNO_MOST;
        let cas = if is_seqno { cas } else { 0 };
        let long = read.filter(|_| value.len() > LARGE_VALUE).and_then(|read| read.part(value));
        let in_place = if long.is_some() { &[] } else { value };
        let (at, key_len, value_len) = (self.bytes.len(), key.len(), in_place.len());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(in_place);
        let datatype = datatype & !DELETED;
        self.records.push(Kept {
            kind,
            seqno,
            rev,
            cas,
            flags,
            expiry,
            datatype,
            level,
            committed,
            at,
            key_len,
            value_len,
            long,
        });
    }

    /// Notes that everything up to a seqno has been read.
    pub(crate) fn set_reached(&mut self, reached: u64) {
        self.reached = reached;
    }

    /// Returns the seqno up to which everything has been read.
    pub(super) fn reached(&self) -> u64 {
        self.reached
    }

    /// Returns the bytes that it takes, without those that its bucket is charged for.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.records.capacity() * size_of::<Kept>()
    }

    /// Takes the next record.
    pub(super) fn next(&mut self) -> Option<Version<'_>> {
        let kept = self.records.get_mut(self.done)?;
        self.done += 1;
        let long = kept.long.take();
        let bytes = self.bytes.get(kept.at..kept.at + kept.key_len + kept.value_len).unwrap_or_default();
        let (stored_key, value) = bytes.split_at_checked(kept.key_len).unwrap_or_default();
        let Kept { kind, seqno, rev, cas, flags, expiry, datatype, level, committed, .. } = *kept;
        let value = long.map_or(VersionValue::Bytes(value), VersionValue::Pinned);
        Some(Version { kind, seqno, rev, cas, flags, expiry, datatype, level, committed, stored_key, value })
    }
}
