//! A bucket's scopes and collections: changes, and what there is in each.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::{Bucket, attention};
use crate::collections::{Collections, DEFAULT_ID, ForeignChange, Manifest, ManifestError};
use crate::mailbox::Cookie;
use crate::role::TERM_MOST;
use crate::sync_writes::WaitedFor;
use crate::topology::VbState;
use crate::{KvError, ThreadContext, Unavailable, VbId};

/// The vBucket whose active makes the changes: one is elected at a time.
const DECIDING: VbId = VbId(0);

/// What became of another node's manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    /// It is in force here.
    Taken,
    /// The one that was here counts, or is the same.
    Kept,
    /// Copies have to begin anew before: ask again.
    Waits,
}

impl Bucket {
    /// Returns the scopes and collections.
    #[inline]
    pub fn collections(&self) -> &Collections {
        &self.resources.collections
    }

    /// Returns true if there is a collection of this id.
    pub fn has_collection(&self, id: u32) -> bool {
        self.collections().has(id)
    }

    /// Changes the scopes and collections, durably if they are kept. Returns the manifest's uid. The documents of
    /// a collection that is gone are reclaimed in the background. Refused on a node that is not the active of vBucket
    /// 0 or cannot know whether it is, or is that in an earlier term than the manifest's, and while a majority of some
    /// chain has yet to acknowledge the change before.
    pub fn change_collections(
        &self,
        f: impl FnOnce(&mut Manifest) -> Result<(), ManifestError>,
    ) -> Result<u64, ManifestError> {
        let change = |manifest: &mut Manifest| {
            // Its role is not known then.
            if let Some(why) = self.closed(DECIDING) {
                return Err(ManifestError::Closed(why));
            }
            // An ephemeral node that was started again takes itself for the active.
            let (role, manifest_term) = (self.standing(DECIDING).1, manifest.term());
            if role < manifest_term {
                return Err(ManifestError::Superseded { role, manifest: manifest_term });
            }
            if !self.has_default_roles() {
                let awaits = |vb| self.vbucket(VbId(vb)).awaits_acknowledgement(manifest);
                if self.inactive.has(DECIDING) {
                    return Err(ManifestError::NotActive);
                }
                if (0..self.vbuckets()).any(awaits) {
                    return Err(ManifestError::Unacknowledged);
                }
            }
            f(manifest)
        };
        let (uid, drops) = self.collections().change(change, |manifest| self.keep_manifest(manifest))?;
        self.note_manifest(drops);
        Ok(uid)
    }

    /// Returns true if a majority of each chain of a vBucket has acknowledged what has changed of the scopes and
    /// collections, or no other node has to. If not, a letter says so as soon as it has, or that it has not in time.
    pub fn await_collections(
        &self,
        cx: &mut ThreadContext,
        vb: VbId,
        cookie: Cookie,
        timeout: Duration,
    ) -> Result<bool, KvError> {
        if self.has_default_roles() || self.closed(vb).is_some() {
            return Ok(true);
        }
        self.await_disk(cx, vb, (cookie, timeout), |locked| {
            if !locked.sync_writes().is_some_and(|sync| sync.is_active_with_others()) {
                return Ok(None);
            }
            locked.tell_changes();
            let awaits = locked.awaits_acknowledgement(&self.collections().manifest());
            Ok(locked.last_event().filter(|_| awaits).map(WaitedFor::Acknowledged))
        })
    }

    /// Assigns the seqnos that changes of scopes and collections still lack in a vBucket. Without this call they get
    /// them before the next document of a named collection; a client that streams up to the last seqno would miss them.
    pub fn tell_collections(&self, cx: &mut ThreadContext, vb: VbId) {
        if !self.collections().has_changes() || self.inactive.has(vb) || self.closed(vb).is_some() {
            return;
        }
        self.lock(cx, vb).tell_changes();
        cx.end_batch();
    }

    /// The same in all vBuckets.
    pub fn tell_collections_everywhere(&self, cx: &mut ThreadContext) {
        (0..self.vbuckets()).for_each(|vb| self.tell_collections(cx, VbId(vb)));
    }

    /// The active of vBucket 0 has the manifest of its term.
    pub(super) fn begin_term_of(&self, vb: VbId) {
        if vb != DECIDING {
            return;
        }
        let (state, term) = self.standing(vb);
        if state == VbState::Active && term > 0 {
            self.collections().begin_term(term);
        }
    }

    /// Returns the name of the node that makes the changes, if that is another one and it is known.
    pub fn collections_are_changed_by(&self) -> Option<Arc<str>> {
        let mut active = None;
        self.with_sync_writes(DECIDING, |sync| {
            let first = || sync.role.topology.chains().first()?.first()?.as_deref().map(Arc::from);
            if sync.role.state != VbState::Active {
                active = sync.role.source.clone().or_else(first);
            }
        });
        active
    }

    /// Makes a change that has led another node to the manifest of this uid.
    pub(super) fn follow_collections(
        &self,
        uid: u64,
        change: &ForeignChange<'_>,
    ) -> Result<(), ManifestError> {
        let drops = self.collections().follow(uid, change, |manifest| self.keep_manifest(manifest))?;
        self.note_manifest(drops);
        Ok(())
    }

    /// Adopts another node's manifest as a whole if it is higher than the present one. Collections that it drops are
    /// gone, with their documents.
    ///
    /// One that comes back was dropped here by a change that is lost, with documents that its active still has: the
    /// copies that had them begin anew. That they are empty is on disk before the manifest is: otherwise a restart
    /// would find copies that lack these documents, and look as if they were whole.
    pub fn adopt_collections(
        &self,
        cx: &mut ThreadContext,
        there: &Manifest,
    ) -> Result<Adopted, ManifestError> {
        if there.version().term > TERM_MOST {
            return Err(ManifestError::Name("There is no such term"));
        }
        let Some(returned) = self.collections().returned_by(there) else { return Ok(Adopted::Kept) };
        if !returned.is_empty() && !self.has_begun_anew(cx, &returned) {
            return Ok(Adopted::Waits);
        }
        let drops = self.collections().adopt(there, |manifest| self.keep_manifest(manifest))?;
        self.note_manifest(drops);
        Ok(Adopted::Taken)
    }

    /// Empties the copies that have been told of one of these collections. Returns true if that is on disk.
    fn has_begun_anew(&self, cx: &mut ThreadContext, returned: &[u32]) -> bool {
        let mut is_kept = true;
        for vb in (0..self.vbuckets()).map(VbId) {
            if let Some(why) = self.closed(vb) {
                // What it has been told of is known once it is read.
                is_kept &= why != Unavailable::WarmingUp;
                continue;
            }
            let mut locked = self.lock(cx, vb);
            if !locked.sync_writes().is_some_and(|sync| sync.is_copy()) {
                continue;
            }
            if returned.iter().any(|id| locked.knows_collection(*id)) {
                locked.empty_copy();
            }
            let is_empty = locked.high_seqno() == 0;
            let is_on_disk = !locked.is_persistent() || locked.state_persisted() >= locked.state_version();
            drop(locked);
            cx.end_batch();
            if is_empty && !is_on_disk {
                self.hurry(vb);
                is_kept = false;
            }
        }
        is_kept
    }

    /// Writes a manifest, durably if it is kept.
    fn keep_manifest(&self, manifest: &Manifest) -> std::io::Result<()> {
        match self.persistence() {
            _ if self.is_gone() => Err(std::io::ErrorKind::NotFound.into()),
            Some(persistence) => persistence.keep_collections(manifest),
            None => self.keep_collections.as_ref().map_or(Ok(()), |keep| keep(manifest)),
        }
    }

    /// Notes that the manifest has changed.
    fn note_manifest(&self, drops: bool) {
        self.note_limits();
        if drops {
            self.dropped.store(true, SeqCst);
        }
        // It reclaims what is dropped, and tells followers.
        self.doorbell.ring();
    }

    /// Sets the maximum expiry of documents in seconds; 0: none. Documents that are there keep theirs.
    pub fn set_max_ttl(&self, max_ttl_s: u32) {
        self.collections().set_max_ttl(max_ttl_s);
        self.note_limits();
    }

    /// Sends stores to their slow path if there is a maximum expiry. It stays that way.
    fn note_limits(&self) {
        if self.collections().has_limits() {
            self.raise(attention::TTL);
        }
    }

    pub(crate) fn take_dropped(&self) -> bool {
        self.dropped.swap(false, SeqCst)
    }

    /// Returns how many documents a collection has.
    pub fn collection_items(&self, id: u32) -> u64 {
        let collections = self.collections();
        if id != DEFAULT_ID {
            return collections.documents(id);
        }
        self.accounts().items.saturating_sub(collections.documents_in_named())
    }
}
