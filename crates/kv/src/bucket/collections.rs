//! A bucket's scopes and collections: changes, and what there is in each.

use std::sync::atomic::Ordering::SeqCst;

use serde_json::Value;

use super::{Bucket, attention};
use crate::collections::{Collections, DEFAULT_ID, ForeignChange, Manifest, ManifestError};

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
    /// a collection that is gone are reclaimed in the background.
    pub fn change_collections(
        &self,
        f: impl FnOnce(&mut Manifest) -> Result<(), ManifestError>,
    ) -> Result<u64, ManifestError> {
        let (uid, drops) = self.collections().change(f, |manifest| self.keep_manifest(manifest))?;
        self.note_manifest(drops);
        Ok(uid)
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

    /// Takes the manifest of another node, from the JSON that clients read, unless it is older.
    pub fn adopt_collections(&self, json: &Value) -> Result<(), ManifestError> {
        let drops = self.collections().adopt(json, |manifest| self.keep_manifest(manifest))?;
        self.note_manifest(drops);
        Ok(())
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
