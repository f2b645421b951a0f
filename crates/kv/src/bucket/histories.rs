//! The histories of vBuckets: which ids they have, and where each began.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Bucket, scramble};
use crate::VbId;
use crate::index::VBucket;

impl Bucket {
    /// Returns the seed of the vBuckets' history ids.
    pub(crate) fn history_seed(&self) -> u64 {
        self.uuid_seed
    }

    /// Returns true if nothing has happened before the start that is not in the journal.
    pub(crate) fn had_clean_end(&self) -> bool {
        self.had_clean_end
    }

    /// History ids of a vBucket, newest first, each with the seqno it began at.
    pub fn histories(&self, vb: VbId) -> Vec<(u64, u64)> {
        let mut histories = self.vbuckets.get(usize::from(vb.0)).map(VBucket::histories).unwrap_or_default();
        if histories.is_empty() {
            histories.push((self.vb_uuid(vb), 0));
        }
        // On the wire the newest comes first.
        histories.reverse();
        histories
    }

    /// Returns a vBucket's history id.
    #[inline]
    pub fn vb_uuid(&self, vb: VbId) -> u64 {
        let other = self.uuids.get().and_then(|uuids| uuids.get(usize::from(vb.0)));
        match other.map_or(0, |uuid| uuid.load(Relaxed)) {
            0 => scramble(self.uuid_seed, u64::from(vb.0)) >> 16,
            uuid => uuid,
        }
    }

    /// Sets a vBucket's history id, under its lock.
    pub(crate) fn set_vb_uuid(&self, vb: VbId, uuid: u64) {
        let uuids = self.uuids.get_or_init(|| (0..self.vbuckets()).map(|_| AtomicU64::new(0)).collect());
        if let Some(place) = uuids.get(usize::from(vb.0)) {
            place.store(uuid, Relaxed);
        }
    }

    /// Returns the id of a history that has not been.
    pub(crate) fn fresh_history(&self, now_ns: u64, vb: VbId) -> u64 {
        scramble(self.uuid_seed ^ now_ns, u64::from(vb.0)) >> 16
    }
}
