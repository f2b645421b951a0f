//! Why an operation has to look closer, though almost none has to: one byte of the bucket, looked at by each.

use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

use super::Bucket;
use crate::index::Kind;
use crate::{Key, Place, ThreadContext, Unavailable, VbId};

/// A flush_all is to come.
pub(crate) const FLUSH: u8 = 1;
/// Not all vBuckets are served.
pub(crate) const GATES: u8 = 2;
/// Some values are not in memory.
pub const EJECTED: u8 = 4;
/// Somebody watches what is asked for.
pub(crate) const WATCHED: u8 = 8;

impl Bucket {
    /// What an operation has to look after before it begins: a flush_all that is due, and whether the vBucket is
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

    /// Whether any document may be unavailable: then ask [`Bucket::check_available`]. Or whether somebody watches.
    #[inline]
    pub fn may_be_unavailable(&self) -> bool {
        self.attention.load(Relaxed) & (GATES | EJECTED | WATCHED) != 0
    }

    /// Whether somebody watches what is asked for.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.attention.load(Relaxed) & WATCHED != 0
    }

    /// Whether a document can be looked at: its vBucket is served, and its value is in memory or not wanted. Asked
    /// before a request is executed; it costs nothing while there is nothing of the kind. Whoever does not ask is told
    /// by the operation itself.
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
        // The start leaves it raised.
        if is_all_resident()
            && self.persistence.as_ref().is_some_and(|persistence| !persistence.warm_up().is_running())
            && let Some(_nobody_sweeps) = self.sweeper.try_lock()
            && is_all_resident()
        {
            self.lower(EJECTED);
            // ORDERING: whoever ejects raises it again when it has: without the sweeper, where it empties slabs. One of
            // the two sees what the other has done.
            if !is_all_resident() {
                self.raise(EJECTED);
            }
        }
        let mut locked = self.lock(cx, at.vb);
        let Some(present) = locked.live(key, at.hash).filter(|_| wants_value) else { return Ok(()) };
        if locked.header(present).kind == Kind::Ejected {
            return Err(Unavailable::NotResident);
        }
        // Somebody will read it in a moment: it is not the next to be ejected.
        locked.record_access(present);
        Ok(())
    }

    /// An operation has met a value that is on disk only: from now on requests look before they are executed.
    #[cold]
    pub fn note_missed(&self) -> Unavailable {
        self.raise(EJECTED);
        Unavailable::NotResident
    }

    /// For tests: requests no longer look whether their values are in memory, as if the word of it were late.
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
