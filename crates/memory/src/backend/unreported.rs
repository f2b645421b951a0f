//! What allocators other than jemalloc do not report: they count the process's memory, not an arena's.

use std::ptr::NonNull;

use super::chosen::Arena;
use super::{ArenaFigures, ClassFigures, Occupancy};

impl Arena {
    /// Nothing.
    pub(crate) fn figures(&self) -> Option<ArenaFigures> {
        None
    }

    /// Nothing.
    pub(crate) fn resident_bytes(&self) -> Option<usize> {
        None
    }

    /// Nothing: a malloc has no such classes, and mimalloc does not report how full the page of a block is. So blocks
    /// are not moved.
    pub(crate) fn classes(&self) -> Option<Vec<ClassFigures>> {
        None
    }

    /// No huge pages are requested.
    pub(crate) fn free_what_was_never_used(&self) -> bool {
        false
    }

    /// Nothing is known: every block appears to have its pages to itself.
    pub(crate) fn occupancy(&self, _blocks: &[NonNull<u8>], found: &mut [Occupancy]) {
        found.fill(Occupancy::default());
    }

    /// Like [`Arena::occupancy`].
    pub(crate) fn is_in_current_slab(&self, _block: NonNull<u8>) -> bool {
        false
    }
}

/// There are no figures to update.
pub fn refresh() {}

/// Nothing is known.
pub fn shared_bytes() -> usize {
    0
}
