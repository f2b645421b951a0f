//! How full a tenant's slabs are, and so which of its blocks are worth moving.
//!
//! ```text
//!   class of 320 bytes, 64 slots a slab:   ########  ####....  ###.....  #.......  ........
//!                                          full      has room, some fuller than the mean, some emptier
//! ```
//! A slab's pages are freed when its last slot is free. Blocks are moved out of slabs that have more free slots than
//! the mean of those with room, and the allocator puts them into the others. So sparse slabs empty, and the
//! rest fill up. Each pass takes a new mean. Classes in which too few slabs could be freed are left alone.

use std::ptr::NonNull;

use crate::backend::{ClassFigures, Occupancy};
use crate::lines::{self, DenseEnd};
use crate::tenant::Tenant;

/// A class is worth a pass if this fraction of its slabs, and at least one, could be freed.
const WORTH_FRACTION: usize = 32;
/// A slab is sparse from this part of the mean of free slots on, so that equally empty slabs are moved as well.
const SPARSE_EIGHTHS: usize = 7;

/// How full the slabs of a tenant were at one moment.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Slot size of a class, and from how many free slots on a slab of it is sparse; smallest first.
    sparse_from: Vec<(usize, u32)>,
    /// Bytes of the slabs that could be freed if every block were packed well.
    recoverable_bytes: u64,
    /// Bytes of all slabs.
    slab_bytes: u64,
    /// Blocks of lines from this address on are worth moving.
    lines_from: Option<usize>,
    everything: bool,
}

impl Survey {
    pub(crate) fn new(classes: &[ClassFigures], lines: DenseEnd) -> Self {
        let mut survey = Self {
            recoverable_bytes: lines.bytes_beyond,
            slab_bytes: lines.slab_bytes,
            lines_from: lines.address,
            ..Self::default()
        };
        for class in classes {
            let slots = class.slots as usize;
            let slab_bytes = slots * class.size;
            survey.slab_bytes += (class.slabs * slab_bytes) as u64;
            let surplus = class.slabs.saturating_sub(class.taken.div_ceil(slots.max(1)));
            if class.with_room == 0 || surplus < (class.slabs / WORTH_FRACTION).max(1) {
                continue;
            }
            survey.recoverable_bytes += (surplus * slab_bytes) as u64;
            let free = class.slabs * slots - class.taken;
            let sparse_from = (free * SPARSE_EIGHTHS).div_ceil(class.with_room * 8).max(1);
            survey.sparse_from.push((class.size, u32::try_from(sparse_from).unwrap_or(u32::MAX)));
        }
        survey
    }

    /// A survey that has every block moved, wherever it lies; for tests.
    pub fn everything_is_sparse() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Returns true if every block is to be moved.
    pub fn moves_everything(&self) -> bool {
        self.everything
    }

    /// Returns true if a block in such a slab is worth moving.
    #[inline]
    pub fn is_sparse(&self, slab: Occupancy) -> bool {
        if slab.free == 0 {
            return self.everything;
        }
        let class = self.sparse_from.binary_search_by_key(&slab.class, |(size, _)| *size);
        self.everything || class.is_ok_and(|at| slab.free >= self.sparse_from[at].1)
    }

    /// Returns true if a block of `size` bytes from [`Tenant::allocate_lines`] is worth moving.
    pub fn moves_lines(&self, tenant: &Tenant, block: NonNull<u8>, size: usize) -> bool {
        if lines::has(size) {
            return self.everything || self.lines_from.is_some_and(|from| block.as_ptr().addr() >= from);
        }
        let mut slab = [Occupancy::default()];
        tenant.occupancy(&[block], &mut slab);
        self.is_sparse(slab[0]) && self.may_leave(tenant, block)
    }

    /// Returns true if a block of a sparse slab would move to another one.
    #[inline]
    pub fn may_leave(&self, tenant: &Tenant, block: NonNull<u8>) -> bool {
        self.everything || !tenant.is_in_current_slab(block)
    }

    /// Bytes of the slabs that could be freed if every block were packed well.
    pub fn recoverable_bytes(&self) -> u64 {
        self.recoverable_bytes
    }

    /// Bytes of all slabs.
    pub fn slab_bytes(&self) -> u64 {
        self.slab_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(size: usize, slots: u32, slabs: usize, with_room: usize, taken: usize) -> ClassFigures {
        ClassFigures { size, slots, slabs, with_room, taken }
    }

    #[test]
    fn slabs_emptier_than_the_mean_are_sparse() {
        // Half of all slots are free; the slabs with room have 32 of 64 free on average.
        let survey =
            Survey::new(&[class(320, 64, 100, 100, 3200), class(1024, 4, 100, 2, 398)], DenseEnd::default());
        assert!(survey.is_sparse(Occupancy { free: 40, class: 320 }));
        assert!(survey.is_sparse(Occupancy { free: 28, class: 320 }), "as empty as the mean, or nearly");
        assert!(!survey.is_sparse(Occupancy { free: 27, class: 320 }));
        assert!(!survey.is_sparse(Occupancy { free: 0, class: 320 }), "full");
        assert!(!survey.is_sparse(Occupancy { free: 3, class: 1024 }), "nothing to gain in this class");
        assert!(!survey.is_sparse(Occupancy { free: 3, class: 999 }), "no such class");
        assert_eq!(survey.recoverable_bytes(), 50 * 64 * 320);
        assert_eq!(survey.slab_bytes(), 100 * 64 * 320 + 100 * 4 * 1024);
    }

    #[test]
    fn lines_behind_the_dense_end_move() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let end = DenseEnd { address: Some(0x20000), bytes_beyond: 3 << 16, slab_bytes: 5 << 16 };
        let survey = Survey::new(&[], end);
        let block = |address| NonNull::new(std::ptr::without_provenance_mut(address)).unwrap();
        assert!(!survey.moves_lines(&tenant, block(0x1ffc0), 320));
        assert!(survey.moves_lines(&tenant, block(0x20000), 320));
        assert_eq!((survey.recoverable_bytes(), survey.slab_bytes()), (3 << 16, 5 << 16));
    }

    #[test]
    fn an_empty_tenant_has_nothing_to_gain() {
        let survey = Survey::new(&[class(320, 64, 0, 0, 0)], DenseEnd::default());
        assert_eq!(survey.recoverable_bytes(), 0);
        assert!(!survey.is_sparse(Occupancy { free: 1, class: 320 }));
    }
}
