//! What requests see of the scopes and collections: the present manifest, and by id, without a lock, what is there.

use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst,
};
use std::sync::{Arc, OnceLock};

use super::{Collection, DEFAULT_ID, Manifest, ManifestError, SYSTEM, TTL_NEVER};
use crate::lock_order::{Ranked, rank};

/// Ids of the first segment of [`Known`]; each next one has twice as many.
pub(super) const SEGMENT_IDS: usize = 64;
const SEGMENTS: usize = 16;
/// The highest id that [`Known`] has room for.
pub(super) const ID_MAX: u32 = (SEGMENT_IDS * ((1 << SEGMENTS) - 1) - 1) as u32;

/// What requests have to know of a collection.
#[derive(Default)]
pub(super) struct Entry {
    is_there: AtomicBool,
    max_ttl_s: AtomicI32,
    documents: AtomicI64,
}

impl Entry {
    pub(super) fn enter(&self, collection: &Collection) {
        self.max_ttl_s.store(collection.max_ttl_s, Relaxed);
        self.is_there.store(true, SeqCst);
    }
}

/// What requests have to know of all named collections, by id. A segment is allocated when its first id is.
#[derive(Default)]
pub(super) struct Known([OnceLock<Box<[Entry]>>; SEGMENTS]);

/// The segment of an id, and its place there.
const fn segment_of(id: u32) -> (usize, usize) {
    let id = id as usize;
    let segment = (id / SEGMENT_IDS + 1).ilog2() as usize;
    (segment, id - SEGMENT_IDS * ((1 << segment) - 1))
}

impl Known {
    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&Entry> {
        let (segment, at) = segment_of(id);
        self.0.get(segment)?.get()?.get(at)
    }

    pub(super) fn get_or_make(&self, id: u32) -> Option<&Entry> {
        let (segment, at) = segment_of(id);
        let make = || (0..SEGMENT_IDS << segment).map(|_| Entry::default()).collect();
        self.0.get(segment)?.get_or_init(make).get(at)
    }
}

/// The scopes and collections of one bucket.
pub struct Collections {
    pub(super) manifest: Ranked<Arc<Manifest>, { rank::MANIFEST }>,
    /// Held while the manifest changes.
    changing: Ranked<(), { rank::MANIFEST_CHANGE }>,
    uid: AtomicU64,
    /// There has been a change that streams report.
    has_changes: AtomicBool,
    pub(super) known: Known,
    /// Documents of all named collections, also of those that are gone.
    in_named: AtomicI64,
    /// The bucket's maximum expiry in seconds; 0: none.
    max_ttl_s: AtomicU32,
    /// Set if there is any maximum expiry.
    has_limits: AtomicBool,
}

impl Collections {
    pub(crate) fn new(mut manifest: Manifest) -> Self {
        manifest.note_changes(&manifest.clone());
        let this = Self {
            manifest: Ranked::new(Arc::default()),
            changing: Ranked::new(()),
            uid: 0.into(),
            has_changes: AtomicBool::new(false),
            known: Known::default(),
            in_named: AtomicI64::new(0),
            max_ttl_s: AtomicU32::new(0),
            has_limits: AtomicBool::new(false),
        };
        this.publish(manifest);
        this
    }

    /// Returns the present manifest.
    pub fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.manifest.lock())
    }

    /// Returns the present manifest's uid.
    #[inline]
    pub fn uid(&self) -> u64 {
        self.uid.load(SeqCst)
    }

    /// Returns true if there has been a change that streams report.
    pub(crate) fn has_changes(&self) -> bool {
        self.has_changes.load(SeqCst)
    }

    /// Makes the manifest that of the active of a term, unless it is already. It is not written: the next change is,
    /// and until then a restart finds the roles that lead to the same.
    pub(crate) fn begin_term(&self, term: u64) {
        if self.manifest().version().term >= term {
            return;
        }
        let _changing = self.changing.lock();
        let mut new = Manifest::clone(&self.manifest());
        new.begin_term(term);
        self.publish(new);
    }

    /// Waits for a change that is being written.
    pub(crate) fn settle(&self) {
        drop(self.changing.lock());
    }

    /// Replaces the manifest by what `f` makes of it, once `keep` has written it. Returns its uid, and whether a
    /// collection is gone.
    pub(crate) fn change(
        &self,
        f: impl FnOnce(&mut Manifest) -> Result<(), ManifestError>,
        keep: impl FnOnce(&Manifest) -> std::io::Result<()>,
    ) -> Result<(u64, bool), ManifestError> {
        // One version more, however much has changed.
        self.replace(|old| old.uid + 1, f, keep)
    }

    /// The same with what distinguishes the new manifest from the present one noted in it, under its uid.
    pub(super) fn replace(
        &self,
        next_uid: impl FnOnce(&Manifest) -> u64,
        f: impl FnOnce(&mut Manifest) -> Result<(), ManifestError>,
        keep: impl FnOnce(&Manifest) -> std::io::Result<()>,
    ) -> Result<(u64, bool), ManifestError> {
        let noting = |new: &mut Manifest| {
            let old = new.clone();
            f(new)?;
            if *new != old {
                new.uid = next_uid(&old);
                new.note_changes(&old);
            }
            Ok(())
        };
        self.replace_as_is(noting, keep)
    }

    pub(super) fn replace_as_is(
        &self,
        f: impl FnOnce(&mut Manifest) -> Result<(), ManifestError>,
        keep: impl FnOnce(&Manifest) -> std::io::Result<()>,
    ) -> Result<(u64, bool), ManifestError> {
        let _changing = self.changing.lock();
        let old = self.manifest();
        let mut new = Manifest::clone(&old);
        f(&mut new)?;
        if new == *old {
            return Ok((old.uid, false));
        }
        keep(&new).map_err(|error| ManifestError::Unkept(error.to_string()))?;
        let drops = old.collections().any(|(_, collection)| new.of_id(collection.id).is_none());
        Ok((self.publish(new), drops))
    }

    fn publish(&self, new: Manifest) -> u64 {
        let mut manifest = self.manifest.lock();
        // ORDERING: before its collections are there: whoever sees one of them knows of this manifest, and waits for
        // it.
        self.has_changes.store(new.has_changes(), SeqCst);
        self.uid.store(new.uid, SeqCst);
        for (_, collection) in manifest.collections().filter(|(_, one)| new.of_id(one.id).is_none()) {
            if let Some(entry) = self.known.get(collection.id) {
                entry.is_there.store(false, SeqCst);
            }
        }
        let named = || new.collections().filter(|(_, one)| one.id != DEFAULT_ID);
        for (_, one) in named().filter(|(scope, _)| scope.name != SYSTEM) {
            self.known.get_or_make(one.id).into_iter().for_each(|entry| entry.enter(one));
        }
        // Those of the system have entries only beside others', and when they are used.
        for (_, one) in named().filter(|(scope, _)| scope.name == SYSTEM) {
            self.known.get(one.id).into_iter().for_each(|entry| entry.enter(one));
        }
        let uid = new.uid;
        *manifest = Arc::new(new);
        self.note_limits(&manifest);
        uid
    }

    fn note_limits(&self, manifest: &Manifest) {
        let any = manifest.collections().any(|(_, collection)| collection.max_ttl_s != 0);
        self.has_limits.store(any || self.max_ttl_s.load(Relaxed) != 0, SeqCst);
    }

    /// Sets the bucket's maximum expiry in seconds; 0: none.
    pub(crate) fn set_max_ttl(&self, max_ttl_s: u32) {
        let manifest = self.manifest.lock();
        self.max_ttl_s.store(max_ttl_s, Relaxed);
        self.note_limits(&manifest);
    }

    /// Returns the bucket's maximum expiry in seconds; 0: none.
    pub fn max_ttl_s(&self) -> u32 {
        self.max_ttl_s.load(Relaxed)
    }

    /// Returns true if there is a collection of this id. Under a vBucket's lock the answer holds until it is released,
    /// as far as that vBucket's items are concerned.
    #[inline]
    pub(crate) fn has(&self, id: u32) -> bool {
        id == DEFAULT_ID
            || self.known.get(id).is_some_and(|entry| entry.is_there.load(SeqCst))
            || self.has_unused(id)
    }

    /// Returns true if there is a maximum expiry anywhere.
    #[inline]
    pub(crate) fn has_limits(&self) -> bool {
        self.has_limits.load(Relaxed)
    }

    /// Returns the expiry that a document of this collection gets for the requested one.
    pub(crate) fn limited(&self, id: u32, expiry: u32, now_s: u32) -> u32 {
        let of_collection = if id == DEFAULT_ID {
            let manifest = self.manifest.lock();
            manifest.of_id(DEFAULT_ID).map_or(0, |(_, collection)| collection.max_ttl_s)
        } else {
            self.known.get(id).map_or(0, |entry| entry.max_ttl_s.load(Relaxed))
        };
        let most_s = match of_collection {
            TTL_NEVER => 0,
            0 => self.max_ttl_s(),
            own => own.unsigned_abs(),
        };
        if most_s == 0 {
            return expiry;
        }
        let latest = now_s.saturating_add(most_s);
        if expiry == 0 || expiry > latest { latest } else { expiry }
    }

    /// Counts documents of a collection.
    #[inline]
    pub(crate) fn count(&self, id: u32, documents: i64) {
        if id != DEFAULT_ID {
            self.count_named(id, documents);
        }
    }

    #[cold]
    fn count_named(&self, id: u32, documents: i64) {
        if self.known.get(id).is_none() {
            self.has_unused(id);
        }
        if let Some(entry) = self.known.get(id) {
            entry.documents.fetch_add(documents, Relaxed);
            self.in_named.fetch_add(documents, Relaxed);
        }
    }

    /// Returns how many documents all named collections have, with those of dropped ones that are not reclaimed yet.
    pub(crate) fn documents_in_named(&self) -> u64 {
        u64::try_from(self.in_named.load(Relaxed)).unwrap_or_default()
    }

    /// Returns how many documents a named collection has.
    pub(crate) fn documents(&self, id: u32) -> u64 {
        let count = self.known.get(id).map_or(0, |entry| entry.documents.load(Relaxed));
        u64::try_from(count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_find_their_segment() {
        let mut next = 0;
        for segment in 0..4 {
            for at in 0..SEGMENT_IDS << segment {
                assert_eq!(segment_of(next), (segment, at));
                next += 1;
            }
        }
        assert_eq!(segment_of(ID_MAX).0, SEGMENTS - 1);
        assert_eq!(segment_of(ID_MAX + 1).0, SEGMENTS);
        assert!(Known::default().get(u32::MAX).is_none());
    }
}
