//! Flags that send an operation to its slow path, which almost none needs: one byte per bucket, read by every
//! operation.

use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

use super::Bucket;
use crate::index::Kind;
use crate::{Key, Place, ThreadContext, Unavailable, VbId};

/// A flush_all is pending.
pub(crate) const FLUSH: u8 = 1;
/// Not all vBuckets are served.
pub(crate) const GATES: u8 = 2;
/// Some values are not in memory.
pub const EJECTED: u8 = 4;
/// Watchers want to see requests.
pub(crate) const WATCHED: u8 = 8;
/// There is a maximum expiry.
pub(crate) const TTL: u8 = 16;
/// There were prepares that may have been committed before. It stays.
pub(crate) const ADOPTED: u8 = 32;

impl Bucket {
    /// Handles what has to come before an operation: runs a flush_all that is due, and checks that the vBucket is
    /// served.
    #[cold]
    pub(super) fn attend(&self, cx: &ThreadContext, vb: VbId) -> Result<(), Unavailable> {
        if self.flush_at_s.load(SeqCst) == 0 {
            self.lower(FLUSH);
            if self.flush_at_s.load(SeqCst) != 0 {
                self.raise(FLUSH);
            }
        }
        self.flush_when_due(cx);
        self.closed(vb).map_or(Ok(()), Err)
    }

    /// Returns true if any document may be unavailable: then call [`Bucket::check_available`]. Also true while requests
    /// are watched.
    #[inline]
    pub fn may_be_unavailable(&self) -> bool {
        self.attention.load(Relaxed) & (GATES | EJECTED | WATCHED) != 0
    }

    /// Returns true if watchers want to see requests.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.attention.load(Relaxed) & WATCHED != 0
    }

    /// Checks that a document is available: its vBucket is served, and its value is in memory or not wanted. Called
    /// before a request is executed; it costs nothing while everything is available. Callers that skip the check get
    /// the error from the operation itself.
    #[inline]
    pub fn check_available(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        wants_value: bool,
    ) -> Result<(), Unavailable> {
        if self.attention.load(Relaxed) & (GATES | EJECTED) == 0 {
            return Ok(());
        }
        self.look_closer(cx, key, at, wants_value)
    }

    #[cold]
    fn look_closer(
        &self,
        cx: &mut ThreadContext,
        key: Key<'_>,
        at: Place,
        wants_value: bool,
    ) -> Result<(), Unavailable> {
        self.attend(cx, at.vb)?;
        let is_all_resident = || self.dirty().is_none_or(|dirty| dirty.ejected().0 == 0);
        // The flag is set at the start.
        if is_all_resident()
            && self.persistence.as_ref().is_some_and(|persistence| !persistence.warm_up().is_running())
            && let Some(_nobody_sweeps) = self.sweeper.try_lock()
            && is_all_resident()
        {
            self.lower(EJECTED);
            // ORDERING: whoever ejects sets the flag again afterwards, without holding the sweeper when it empties
            // slabs. One of the two sees what the other has done.
            if !is_all_resident() {
                self.raise(EJECTED);
            }
        }
        let mut locked = self.lock(cx, at.vb);
        // Extended attributes are needed even to replace or delete the document.
        let Some(present) =
            locked.live(key, at.hash).filter(|present| wants_value || locked.header(*present).has_xattrs())
        else {
            return Ok(());
        };
        if locked.header(present).kind == Kind::Ejected {
            return Err(Unavailable::NotResident);
        }
        // It will be read in a moment, so it must not be the next to be ejected.
        locked.record_access(present);
        Ok(())
    }

    /// Notes that an operation met a value that is on disk only: from now on requests check before they are executed.
    #[cold]
    pub fn note_missed(&self) -> Unavailable {
        self.raise(EJECTED);
        Unavailable::NotResident
    }

    /// For tests: requests no longer check whether their values are in memory, as if they had not been told yet.
    #[doc(hidden)]
    pub fn overlook_ejected(&self) {
        self.lower(EJECTED);
    }

    pub(crate) fn raise(&self, bits: u8) {
        self.attention.fetch_or(bits, SeqCst);
    }

    pub(crate) fn lower(&self, bits: u8) {
        self.attention.fetch_and(!bits, SeqCst);
    }
}
