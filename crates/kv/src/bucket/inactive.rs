//! Which vBuckets of a bucket are not active: a bit for each, read without their locks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::VbId;

const BITS: u16 = u64::BITS as u16;

#[derive(Debug)]
pub(super) struct Inactive {
    /// How many there are. Most buckets have none, and look no further.
    count: AtomicU32,
    bits: Box<[AtomicU64]>,
}

impl Inactive {
    pub(super) fn new(vbuckets: u16) -> Self {
        let words = usize::from(vbuckets.div_ceil(BITS));
        Self { count: AtomicU32::new(0), bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Returns true if a vBucket is not active. The caller knows that it exists.
    #[inline]
    pub(super) fn has(&self, VbId(vb): VbId) -> bool {
        // ORDERING: a hint, as all that is read without the lock: changes of documents look again under it.
        self.bits[usize::from(vb / BITS)].load(Relaxed) >> (vb % BITS) & 1 != 0
    }

    /// Enters a vBucket or takes it out. Called under its lock.
    pub(super) fn set(&self, VbId(vb): VbId, is_active: bool) {
        let (word, bit) = (&self.bits[usize::from(vb / BITS)], 1 << (vb % BITS));
        let before = if is_active { word.fetch_and(!bit, Relaxed) } else { word.fetch_or(bit, Relaxed) };
        match (before & bit == 0, is_active) {
            (true, false) => drop(self.count.fetch_add(1, Relaxed)),
            (false, true) => drop(self.count.fetch_sub(1, Relaxed)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_entered_is_in_it_once() {
        let inactive = Inactive::new(65);
        for vb in [0, 63, 64, 64] {
            inactive.set(VbId(vb), false);
        }
        let had: Vec<u16> = (0..65).filter(|vb| inactive.has(VbId(*vb))).collect();
        assert_eq!((had, inactive.count.load(Relaxed)), (vec![0, 63, 64], 3));
        for vb in [0, 63, 63, 64] {
            assert!(!inactive.is_empty());
            inactive.set(VbId(vb), true);
        }
        assert!(inactive.is_empty() && !(0..65).any(|vb| inactive.has(VbId(vb))));
    }
}
