//! The CAS of the changes of a vBucket: the time in nanoseconds, or one more than the last, whichever is higher.
//!
//! A CAS also comes in from outside, by four doors, and the vBucket's clock goes on above it. None may push it far
//! ahead of the time:
//!
//! ```text
//!   a client names it (meta E), or sends a version with metadata   5 s    else refused
//!   a copy of another node's document                              7 d    else the document is taken, not followed
//!   a backup                                                       7 d    else `journal restore` refuses
//!   this node's own journal                                        10 y   else not followed
//! ```

use super::document::LOCKED_CAS;
use super::vbucket::{Locked, Present};
use crate::KvError;

/// A CAS that a client names may be at most this far ahead of the clock, since the vBucket's own follows it.
const CAS_DRIFT_NS: u64 = 5_000_000_000;
/// So far another node's clock may be ahead of this one's: it may show a wrong day, and the CAS of a key still only
/// grows.
const CLOCK_SKEW_NS: u64 = 7 * 86_400 * 1_000_000_000;
/// A CAS of this node's, found on disk, may be at most this far ahead. It may have been written before the clock was
/// set back, and by no more than that; versions before this bound let clients name any.
const STORED_CAS_DRIFT_NS: u64 = 10 * 365 * 86_400 * 1_000_000_000;
/// The start of 2026. An earlier clock has not been set yet, and says nothing about what is on disk.
const CLOCK_LEAST_NS: u64 = 1_767_225_600 * 1_000_000_000;
/// The highest CAS of a document: the next one is what readers see while it is locked.
pub(crate) const CAS_MOST: u64 = LOCKED_CAS - 1;

impl Locked<'_> {
    /// Returns the CAS of the next change.
    #[inline]
    pub(crate) fn next_cas(&mut self) -> u64 {
        self.state.max_cas = self.state.max_cas.saturating_add(1).max(self.now.unix_ns).min(CAS_MOST);
        self.state.max_cas
    }

    /// Returns the CAS of a change: the one that the client names, or the next one if it names none (0).
    /// [`KvError::CasAhead`] if the clock would have to jump to follow it.
    #[inline]
    pub(crate) fn cas_for(&mut self, named: u64) -> Result<u64, KvError> {
        if named == 0 {
            return Ok(self.next_cas());
        }
        self.check_named_cas(named)?;
        self.state.max_cas = self.state.max_cas.max(named);
        Ok(named)
    }

    /// Fails with [`KvError::CasAhead`] if the clock would have to jump to follow a CAS that a client names.
    #[inline]
    pub(crate) fn check_named_cas(&self, named: u64) -> Result<(), KvError> {
        let most = self.now.unix_ns.saturating_add(CAS_DRIFT_NS).max(self.state.max_cas);
        if named <= most.min(CAS_MOST) { Ok(()) } else { Err(KvError::CasAhead) }
    }

    /// Moves the clock above the CAS of a document, unless it is further ahead than another node's clock may be.
    pub(super) fn follow_cas(&mut self, cas: u64) {
        if !is_ahead(cas, self.now.unix_ns) {
            self.state.max_cas = self.state.max_cas.max(cas);
        }
    }

    /// Lets the clock go on above where it was at the last stop, unless it cannot have been there.
    pub(super) fn resume_cas(&mut self, cas: u64) {
        if cas <= self.now.unix_ns.max(CLOCK_LEAST_NS).saturating_add(STORED_CAS_DRIFT_NS) {
            self.state.max_cas = self.state.max_cas.max(cas);
        }
    }

    pub(crate) fn max_cas(&self) -> u64 {
        self.state.max_cas
    }

    pub(crate) fn set_cas(&mut self, present: Present, cas: u64) {
        // SAFETY: the item is in the table and the lock is held.
        unsafe { present.item.set_cas(cas) }
    }
}

/// Returns true if a CAS is further ahead of the time than another node's clock may be.
pub fn is_ahead(cas: u64, unix_ns: u64) -> bool {
    cas > unix_ns.max(CLOCK_LEAST_NS).saturating_add(CLOCK_SKEW_NS)
}
