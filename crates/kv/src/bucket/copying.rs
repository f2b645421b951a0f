//! Copying: what a node that replicates a vBucket does with what its active sends.
//!
//! ```text
//!   wanted ──> position ──> begun: the active's histories ──> copy, copy, ... ──> acknowledgement
//!                 └ the active says "roll back": stale ──> refill: begun, copy, copy, ... ──> refilled
//! ```
//! Everything comes in the order of the active's seqnos, and is refused in another, or after the role has changed.
//!
//! A copy that is no part of its active's history is replaced, not rolled back. While it is stale, nobody reads it, but
//! it is whole, and can be promoted: the caller collects all of the new copy first. From [`Bucket::begin_refill`] to
//! [`Bucket::end_refill`] the new one takes its place in memory. On disk it does so with one batch after that.

use std::sync::Arc;

use super::Bucket;
use super::follow::{Position, SEQNO_MOST, Version, VersionKind};
pub use crate::collected::Collected;
use crate::collections::ForeignChange;
use crate::election::Lacks;
use crate::index::{CAS_MOST, Header, Kind, Locked, PERSIST_TO_MAJORITY, REV_MOST, SHADOW_AGE_S, mark};
use crate::news::News;
use crate::role::Role;
use crate::storage::check_value;
use crate::sync_writes::{Copied, SyncWrites};
use crate::terms::{Rank, Terms};
use crate::{KvError, LARGE_VALUE, ThreadContext, VbId, VbState};

/// A change that the active has made.
pub enum Foreign<'a> {
    /// What follows up to `end` belongs together.
    Snapshot {
        /// What comes before it.
        start: u64,
        /// Its last seqno.
        end: u64,
    },
    /// A version of a document.
    Version(Version<'a>),
    /// The prepare of this seqno becomes the document.
    Commit {
        /// The prepare's seqno.
        prepared: u64,
        /// Its own.
        seqno: u64,
        /// The key with its collection's prefix.
        stored_key: &'a [u8],
    },
    /// The prepare of this seqno came to nothing.
    Abort {
        /// The prepare's seqno.
        prepared: u64,
        /// Its own.
        seqno: u64,
        /// The key with its collection's prefix.
        stored_key: &'a [u8],
    },
    /// A change of the scopes and collections, which leads to the manifest of this uid.
    System {
        /// Its seqno.
        seqno: u64,
        /// The manifest's uid.
        uid: u64,
        /// The change.
        change: ForeignChange<'a>,
    },
    /// Up to here there is nothing more.
    Advanced(u64),
}

/// Why a change was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCopied {
    /// The vBucket is not copied in this term, or not any more.
    Role,
    /// There is no room now, in memory or on disk: later.
    Later,
    /// The change contradicts what came before it.
    Broken(&'static str),
}

/// What a connection copies: what is of another term, or from elsewhere, is none of its business.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOf<'a> {
    /// The term.
    pub term: u64,
    /// The node that it copies from.
    pub peer: &'a str,
}

/// How a vBucket is to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyWanted {
    /// In this term.
    pub term: u64,
    /// The source's part ends with this.
    pub takes_over: bool,
    /// It may lack something until it has all that the source has.
    pub lacks_something: bool,
    /// The promise not to accept anything of a lower term is kept: on disk, if the bucket is.
    pub is_promised: bool,
}

impl Locked<'_> {
    /// Returns what a copy knows of what it copies, if it is one of that.
    fn copied(&self, of: CopyOf<'_>) -> Result<Copied, NotCopied> {
        let is_it = |role: &Role| role.term == of.term && role.source.as_deref() == Some(of.peer);
        let sync = self.sync_writes().filter(|sync| sync.is_copy() && is_it(&sync.role));
        sync.map(|sync| sync.copied).ok_or(NotCopied::Role)
    }

    /// Returns an error unless a seqno comes next, in the snapshot that has begun.
    fn check_order(&self, copied: Copied, change: &Foreign<'_>) -> Result<(), NotCopied> {
        let (seqno, high_seqno) = (change.seqno(), self.high_seqno());
        let is_next = high_seqno < seqno && seqno <= copied.snapshot.1;
        let is_nothing = matches!(change, Foreign::Advanced(_)) && seqno == high_seqno;
        if is_next || is_nothing {
            return Ok(());
        }
        Err(NotCopied::Broken("a seqno does not follow the one before, or is not of the snapshot"))
    }

    /// Empties a copy: what it gets next begins with seqno 1.
    pub(super) fn empty_copy(&mut self) {
        let is_emptied = self.high_seqno() > 0 || self.is_emptied();
        self.begin_anew();
        let lacks = self.sync_writes().map_or(Lacks::Nothing, |sync| sync.copied.lacks);
        self.set_copied(Copied { is_any: true, is_emptied, lacks, ..Copied::default() });
    }

    /// Notes that nothing is missing, once all is here that its source, the active, has or had since the start.
    fn note_caught_up(&mut self, copied: Copied, is_told: bool) {
        if self.high_seqno() >= copied.snapshot.1 && (copied.knows_end || is_told) {
            self.set_copied(Copied { lacks: Lacks::Nothing, ..copied });
        }
    }

    fn set_copied(&mut self, copied: Copied) {
        self.sync_writes_mut().copied = copied;
        self.note_state();
    }
}

impl Bucket {
    /// Returns whether and how a vBucket is to be copied from this node. The connection that asks is called from now
    /// on.
    pub fn copy_wanted(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        peer: &str,
        news: &Arc<News>,
    ) -> Option<CopyWanted> {
        if self.is_gone() || self.closed(vb).is_some() {
            return None;
        }
        let mut locked = self.lock(cx, vb);
        let sync = locked.sync_writes()?;
        if !sync.is_copy() || sync.role.source.as_deref() != Some(peer) {
            return None;
        }
        let is_promised = !locked.is_persistent() || locked.state_persisted() >= sync.term_version;
        let (term, takes_over) = (sync.role.term, sync.role.takes_over);
        let lacks_something = sync.copied.lacks != Lacks::Nothing;
        locked.sync_writes_mut().link = Some(Arc::clone(news));
        drop(locked);
        if !is_promised {
            self.hurry(vb);
        }
        Some(CopyWanted { term, takes_over, lacks_something, is_promised })
    }

    /// Returns from where a copy goes on.
    pub fn copy_position(&self, cx: &mut ThreadContext, vb: VbId) -> Position {
        let histories = self.histories(vb);
        let locked = self.lock(cx, vb);
        let (start, copied) = (locked.high_seqno(), locked.sync_writes().map(|sync| sync.copied));
        let (snapshot_start, snapshot_end) = copied.unwrap_or_default().snapshot;
        let is_inside = snapshot_start <= start && start < snapshot_end;
        let snapshot = if is_inside { (snapshot_start, snapshot_end) } else { (start, start) };
        // What began here has nothing of its own yet: a node that was killed has such an id, which nobody else knows.
        let has_changes = |(_, began_at): &&(u64, u64)| *began_at < start;
        let history = histories.iter().find(has_changes).or(histories.first());
        let uuid = if start == 0 { 0 } else { history.map_or(0, |(uuid, _)| *uuid) };
        Position { start, end: u64::MAX, uuid, snapshot, ..Position::default() }
    }

    /// Notes that the active sends its changes from where the copy is: its histories, newest first, and its terms are
    /// the copy's.
    pub fn copy_begun(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        of: CopyOf<'_>,
        histories: &[(u64, u64)],
        terms: &Terms,
    ) -> Result<(), NotCopied> {
        let Some((uuid, _)) = histories.first() else { return Err(NotCopied::Broken("there is no history")) };
        if histories.iter().any(|(_, seqno)| *seqno > SEQNO_MOST) {
            return Err(NotCopied::Broken("a history begins at a seqno that is too high"));
        }
        let mut locked = self.lock(cx, vb);
        let copied = locked.copied(of)?;
        let is_new = locked.durable().terms != *terms;
        locked.set_histories(histories.iter().rev().copied().collect(), terms.clone());
        locked.set_copied(Copied { is_any: true, ..copied });
        let version = locked.state_version();
        let sync = locked.sync_writes_mut();
        sync.is_stale = false;
        if is_new {
            sync.adopted_version = version;
        }
        self.set_vb_uuid(vb, *uuid);
        drop(locked);
        if is_new {
            self.hurry(vb);
        }
        Ok(())
    }

    /// Notes that a copy is no part of its active's history, and waits for a new one.
    pub fn note_stale(&self, cx: &mut ThreadContext, vb: VbId, of: CopyOf<'_>) -> Result<(), NotCopied> {
        let mut locked = self.lock(cx, vb);
        locked.copied(of)?;
        locked.sync_writes_mut().is_stale = true;
        Ok(())
    }

    /// Keeps what was collected of a new copy for the next connection, which takes it with
    /// [`Self::take_collected`]. It goes when the role changes.
    pub fn keep_collected(&self, cx: &mut ThreadContext, vb: VbId, of: CopyOf<'_>, collected: Collected) {
        let mut locked = self.lock(cx, vb);
        if locked.copied(of).is_ok() {
            self.charge_buffers(collected.bytes as i64);
            locked.sync_writes_mut().collected = Some(Box::new(collected));
        }
    }

    /// Takes what an earlier connection has collected of a new copy.
    pub fn take_collected(&self, cx: &mut ThreadContext, vb: VbId) -> Collected {
        let mut locked = self.lock(cx, vb);
        let collected = if locked.sync_writes().is_some() { self.drop_collected(&mut locked) } else { None };
        collected.map(|collected| *collected).unwrap_or_default()
    }

    /// Gives up what was collected of a new copy.
    pub(super) fn drop_collected(&self, locked: &mut Locked<'_>) -> Option<Box<Collected>> {
        let collected = locked.sync_writes_mut().collected.take()?;
        self.charge_buffers(-(collected.bytes as i64));
        Some(collected)
    }

    /// Empties a stale copy, and keeps what follows from disk until [`Self::end_refill`]. All of the new copy, of this
    /// many bytes, is at hand.
    pub fn begin_refill(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        of: CopyOf<'_>,
        bytes: usize,
    ) -> Result<(), NotCopied> {
        self.admit_copy(cx, bytes).map_err(|_| NotCopied::Later)?;
        let mut locked = self.lock(cx, vb);
        locked.copied(of)?;
        locked.sync_writes_mut().is_refilling = true;
        drop(locked);
        self.copy_anew(cx, vb, of)
    }

    /// Notes that a new copy is here, or given up; nothing if there was none.
    pub fn end_refill(&self, cx: &mut ThreadContext, vb: VbId) {
        let mut locked = self.lock(cx, vb);
        if locked.is_refilling() {
            locked.sync_writes_mut().is_refilling = false;
            locked.mark_dirty();
            drop(locked);
            self.hurry(vb);
        }
    }

    /// Empties a copy at once.
    pub fn copy_anew(&self, cx: &mut ThreadContext, vb: VbId, of: CopyOf<'_>) -> Result<(), NotCopied> {
        let mut locked = self.lock(cx, vb);
        locked.copied(of)?;
        locked.empty_copy();
        drop(locked);
        cx.end_batch();
        Ok(())
    }

    /// Makes a change that the active has made. Returns true if there are prepares, or changes of the scopes and
    /// collections, that may now need acknowledging.
    pub fn copy(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        of: CopyOf<'_>,
        foreign: &Foreign<'_>,
    ) -> Result<bool, NotCopied> {
        if foreign.seqno() > SEQNO_MOST {
            return Err(NotCopied::Broken("a seqno is too high"));
        }
        match foreign {
            Foreign::Version(version) => {
                check(version)?;
                // What makes room is never short of it.
                if !matches!(version.kind, VersionKind::Deletion | VersionKind::Expiration) {
                    let added = version.stored_key.len() + version.value.bytes().len();
                    self.admit_copy(cx, added).map_err(|_| NotCopied::Later)?;
                    if added > LARGE_VALUE {
                        self.make_pages_room(added);
                    }
                }
            }
            Foreign::System { uid, change, .. } => {
                let locked = self.lock(cx, vb);
                let copied = locked.copied(of)?;
                locked.check_order(copied, foreign)?;
                drop(locked);
                // Not under the vBucket's lock: it may be written to disk.
                self.follow_collections(*uid, change).map_err(|_| NotCopied::Later)?;
            }
            _ => {}
        }
        let mut locked = self.lock(cx, vb);
        let copied = locked.copied(of)?;
        if let Foreign::Snapshot { start, end } = *foreign {
            if end < locked.high_seqno() || start > locked.high_seqno() {
                return Err(NotCopied::Broken("a snapshot does not follow what there is"));
            }
            if locked.high_seqno() == 0 {
                locked.note_filled(end);
            }
            // What is missing of the one before is missing still.
            let (first, last) = copied.snapshot;
            let start = if locked.high_seqno() < last { start.min(first) } else { start };
            locked.set_copied(Copied { is_any: true, snapshot: (start, end), knows_end: true, ..copied });
            return Ok(false);
        }
        let seqno = foreign.seqno();
        locked.check_order(copied, foreign)?;
        let secrets = self.resources.secrets;
        let hash = |stored_key: &[u8]| crate::index::hash_stored(stored_key, &secrets);
        let mut persists = false;
        match foreign {
            Foreign::Snapshot { .. } => {}
            // Its collection has been dropped: another vBucket was told before.
            Foreign::Version(version) if locked.is_dropped(version.stored_key) => {
                locked.forget_prepare(hash(version.stored_key));
                locked.advance(seqno);
            }
            Foreign::Version(version) => {
                let key = version.stored_key;
                let header = header_of(&locked, version);
                let value = version.value.bytes();
                if header.kind.is_prepare() {
                    persists = version.level == PERSIST_TO_MAJORITY;
                    locked.copy_prepare(key, hash(key), header, value, version.level).map_err(later)?;
                } else if version.kind == VersionKind::Abort {
                    locked.advance(seqno);
                } else {
                    locked.copy_version(key, hash(key), header, value).map_err(later)?;
                }
            }
            Foreign::Commit { prepared, stored_key, .. }
                if locked.is_dropped(stored_key) && !locked.is_prepared(*prepared, stored_key) =>
            {
                locked.advance(seqno);
            }
            Foreign::Commit { prepared, stored_key, .. } => {
                if !locked.is_prepared(*prepared, stored_key) {
                    return Err(NotCopied::Broken("a commit has no prepare"));
                }
                locked.commit_as(*prepared, seqno).map_err(later)?;
            }
            Foreign::Abort { prepared, stored_key, .. } if locked.is_prepared(*prepared, stored_key) => {
                locked.abort_as(*prepared, seqno).map_err(later)?;
            }
            Foreign::Abort { .. } | Foreign::Advanced(_) => locked.advance(seqno),
            Foreign::System { uid, change, .. } => locked.copy_event(seqno, change.event(*uid)),
        }
        if copied.lacks != Lacks::Nothing {
            locked.note_caught_up(copied, matches!(foreign, Foreign::Advanced(_)));
        }
        // Of the snapshot's part that is here: acknowledged when all of it is.
        let (start, _) = copied.snapshot;
        let has_any = locked.has_prepares() || !locked.events_between(start, seqno).is_empty();
        drop(locked);
        if persists {
            self.hurry(vb);
        }
        Ok(has_any)
    }

    /// Returns up to which seqno the active may count on this copy, if a prepare, or a change of the scopes and
    /// collections, above `told` waits for that.
    pub fn copy_acknowledgement(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        of: CopyOf<'_>,
        told: u64,
    ) -> Option<u64> {
        let locked = self.lock(cx, vb);
        locked.copied(of).ok()?;
        let sync = locked.sync_writes()?;
        let is_adopted = !locked.is_persistent() || locked.state_persisted() >= sync.adopted_version;
        if sync.is_stale || sync.is_refilling || !is_adopted {
            return None;
        }
        // Below where its term begins, what it has may still be outranked by a copy of a term in between.
        let complete_seqno = locked.complete_seqno();
        let is_of_term = locked.newest_term().is_none_or(|(_, began_at)| began_at <= complete_seqno);
        if is_of_term { locked.acknowledgeable(told, complete_seqno) } else { None }
    }

    /// Returns up to which seqno a vBucket has everything.
    pub fn complete_seqno(&self, cx: &mut ThreadContext, vb: VbId) -> u64 {
        self.lock(cx, vb).complete_seqno()
    }

    /// Returns what a vBucket has, as it is compared with other copies.
    pub fn rank(&self, vb: VbId) -> Rank {
        self.vbucket(vb).rank()
    }

    /// Returns true if a copy was emptied and not filled since: it may lack what it has acknowledged.
    pub fn is_emptied(&self, cx: &mut ThreadContext, vb: VbId) -> bool {
        self.lock(cx, vb).is_emptied()
    }

    /// Returns what a copy may lack of what it has acknowledged.
    pub fn lacks(&self, cx: &mut ThreadContext, vb: VbId) -> Lacks {
        self.lock(cx, vb).sync_writes().map_or(Lacks::Nothing, |sync| sync.copied.lacks)
    }

    /// Returns the terms of a vBucket's changes.
    pub fn terms(&self, cx: &mut ThreadContext, vb: VbId) -> Terms {
        self.lock(cx, vb).durable().terms.clone()
    }

    /// Returns true if reads of copies are served: the vBucket is a replica, or about to be the active.
    pub fn serves_copy(&self, vb: u16) -> bool {
        let mut serves = false;
        if vb < self.vbuckets() {
            let is_whole = |sync: &SyncWrites| !sync.is_stale && !sync.is_refilling;
            self.with_sync_writes(VbId(vb), |sync| {
                serves = sync.role.state == VbState::Replica && is_whole(sync);
            });
        }
        serves
    }
}

fn later(error: KvError) -> NotCopied {
    match error {
        KvError::NotFound => NotCopied::Broken("a prepare is missing"),
        _ => NotCopied::Later,
    }
}

/// Checks what everything later relies on.
fn check(version: &Version<'_>) -> Result<(), NotCopied> {
    let value = version.value.bytes();
    check_value(version.datatype, value).map_err(|_| NotCopied::Broken("a value does not inflate"))?;
    let is_named =
        wire::couchbase::collection_id::split(version.stored_key).is_some_and(|(_, key)| !key.is_empty());
    if !is_named || version.stored_key.len() > crate::index::STORED_KEY_MAX {
        return Err(NotCopied::Broken("a key is not one"));
    }
    if version.rev > REV_MOST {
        return Err(NotCopied::Broken("a revision is too high"));
    }
    let has_section = version.datatype & wire::binary::datatype::XATTR != 0;
    if has_section && version.datatype & wire::binary::datatype::SNAPPY == 0 && !wire::xattrs::is_valid(value)
    {
        return Err(NotCopied::Broken("extended attributes are malformed"));
    }
    Ok(())
}

fn header_of(locked: &Locked<'_>, version: &Version<'_>) -> Header {
    let Version { seqno, rev, cas, flags, expiry, datatype, committed, .. } = *version;
    let has_value = !version.value.bytes().is_empty();
    let shadow_expiry = expiry.saturating_add(SHADOW_AGE_S);
    let (kind, marks, expiry) = match version.kind {
        VersionKind::Document => (Kind::Document, 0, expiry),
        VersionKind::Deletion | VersionKind::Expiration if has_value => (Kind::Shadow, 0, shadow_expiry),
        VersionKind::Deletion | VersionKind::Abort => (Kind::Tombstone, mark::DELETED, expiry.max(1)),
        VersionKind::Expiration => (Kind::Tombstone, mark::EXPIRED, expiry.max(1)),
        VersionKind::Prepare => (Kind::Prepare, 0, expiry),
        VersionKind::PrepareDeletion if has_value => (Kind::PrepareShadow, 0, shadow_expiry),
        VersionKind::PrepareDeletion => (Kind::PrepareDelete, 0, expiry.max(1)),
    };
    let datatype = if kind == Kind::Tombstone || kind == Kind::PrepareDelete { 0 } else { datatype };
    let like = Header { kind, marks, datatype, flags, expiry, ..locked.shadow_header() };
    Header { cas: cas.min(CAS_MOST), seqno, rev: rev.max(1), committed, ..like }
}

impl Foreign<'_> {
    /// Returns its seqno.
    fn seqno(&self) -> u64 {
        match self {
            Self::Snapshot { end, .. } => *end,
            Self::Version(version) => version.seqno,
            Self::Commit { seqno, .. } | Self::Abort { seqno, .. } | Self::System { seqno, .. } => *seqno,
            Self::Advanced(seqno) => *seqno,
        }
    }
}
