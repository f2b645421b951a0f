//! What is known of a document besides its value: whether it is on disk, and whether the copy there is the same.

use super::Bucket;
use crate::storage::Stored;
use crate::{Key, KvError, Place, ThreadContext, Unavailable};

/// How far the last change of a key has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// The document is in memory only, as all documents of an ephemeral bucket are.
    Unpersisted,
    /// It is on disk.
    Persisted,
    /// There is no document, and nothing of it is still to be written.
    Missing,
    /// The document is deleted, and the deletion is not on disk.
    DeletionUnpersisted,
}

impl Bucket {
    /// Returns how far the last change of a key has come, and the document's CAS as readers see it; 0 without a
    /// document.
    pub fn observe(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
    ) -> Result<(Observed, u64), Unavailable> {
        let mut observed = (Observed::Missing, 0);
        self.with_entry(cx, key, at, |entry| {
            let persisted_seqno = entry.persisted_seqno();
            if let Some(document) = entry.document() {
                let is_persisted = document.seqno() <= persisted_seqno;
                let state = if is_persisted { Observed::Persisted } else { Observed::Unpersisted };
                observed = (state, document.visible_cas());
            } else if entry.locked().has_tombstone(key, at.hash) {
                observed.0 = Observed::DeletionUnpersisted;
            }
        })?;
        Ok(observed)
    }

    /// Returns the statistics of a document under the names that Couchbase's tools read; `None` without a document.
    /// With `validates`, reads the copy on disk and compares it.
    pub fn document_statistics(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        validates: bool,
    ) -> Result<Option<Vec<(&'static str, String)>>, KvError> {
        let vb_state = self.vbucket_state(at.vb).name();
        let found = self.with_entry(cx, key, at, |entry| {
            let is_dirty = entry.document().is_some_and(|it| it.seqno() > entry.persisted_seqno());
            entry.document().map(|document| {
                let statistics = vec![
                    ("key_is_dirty", is_dirty.to_string()),
                    ("key_exptime", document.expiry().to_string()),
                    ("key_flags", document.flags().to_string()),
                    ("key_cas", document.visible_cas().to_string()),
                    ("key_vb_state", vb_state.to_owned()),
                ];
                let value = (validates && document.is_resident()).then(|| document.value().into_owned());
                (statistics, entry.on_disk(document.seqno()), is_dirty, document.flags(), value)
            })
        })?;
        let Some((mut statistics, on_disk, is_dirty, flags, value)) = found else { return Ok(None) };
        if validates {
            let valid = match self.persistence() {
                None => "ram_but_not_disk",
                Some(_) if is_dirty => "dirty",
                Some(persistence) => match persistence.stored(at.vb, on_disk, key)? {
                    None => "ram_but_not_disk",
                    Some(Stored { flags: stored, .. }) if stored != flags => "flags_mismatch",
                    Some(stored) if value.as_ref().is_some_and(|value| *value != stored.value) => {
                        "data_mismatch"
                    }
                    Some(_) => "valid",
                },
            };
            statistics.push(("key_valid", valid.to_owned()));
        }
        Ok(Some(statistics))
    }
}
