//! A persistent bucket's journals: their figures, and their removal.

use std::sync::atomic::Ordering::Relaxed;

use super::{Bucket, attention};
use crate::storage::{self, Gate, Persistence, PersistenceFigures, Shard};
use crate::{ThreadContext, VbId};

/// Approximate size of a record besides key and value.
const RECORD_BYTES: u64 = 48;

impl Bucket {
    /// Returns true if writes are refused because the disk is full.
    pub fn is_disk_full(&self) -> bool {
        self.dirty().is_some_and(|dirty| dirty.is_full())
    }

    /// Returns the figures of the journal; walks all vBuckets. `None` for an ephemeral bucket.
    pub fn persistence_figures(&self, cx: &mut ThreadContext) -> Option<PersistenceFigures> {
        let persistence = self.persistence()?;
        let counters = &persistence.counters;
        let (ejected_items, ejected_bytes) = self.dirty().map_or((0, 0), |dirty| dirty.ejected());
        let mut figures = PersistenceFigures {
            persisted_items: counters.items.load(Relaxed),
            commits: counters.commits.load(Relaxed),
            written_bytes: counters.bytes.load(Relaxed),
            syncs: persistence.syncs.syncs(),
            sync_us: persistence.syncs.microseconds(),
            failures: counters.failures.load(Relaxed),
            unflushed_items: 0,
            ejected_items,
            ejected_bytes,
            fetched: counters.fetched.load(Relaxed),
            fetch_failures: counters.fetch_failures.load(Relaxed),
            compacted_segments: counters.compacted_segments.load(Relaxed),
            compacted_bytes: counters.compacted_bytes.load(Relaxed),
            disk_full: self.is_disk_full(),
            ..PersistenceFigures::default()
        };
        for vb in 0..self.vbuckets() {
            figures.unflushed_items += u64::from(self.lock(cx, VbId(vb)).unflushed());
        }
        figures.journal_bytes = self.journal_bytes();
        for shard in &persistence.shards {
            figures.segments += shard.segments.load(Relaxed);
            figures.debt_bytes += shard.debt_bytes.load(Relaxed);
        }
        // Before all is read, what is live is not known.
        if !persistence.warm_up.is_running() {
            figures.superfluous_bytes = figures.journal_bytes.saturating_sub(self.live_journal_bytes());
        }
        Some(figures)
    }

    /// Returns the bytes of its journals' segments. A flusher may have one of them: then it counts as it was the last
    /// time.
    pub fn journal_bytes(&self) -> u64 {
        let Some(persistence) = self.persistence() else { return 0 };
        let of_shard = |shard: &Shard| {
            if let Some(journal) = shard.journal.try_lock().as_deref().and_then(Option::as_ref) {
                let figures = journal.figures();
                shard.segments.store(figures.segments as u64, Relaxed);
                shard.bytes.store(figures.bytes, Relaxed);
            }
            shard.bytes.load(Relaxed)
        };
        persistence.shards.iter().map(of_shard).sum()
    }

    /// Estimates what the bucket would have on disk if nothing in it were superfluous.
    pub(crate) fn live_journal_bytes(&self) -> u64 {
        let accounts = self.accounts();
        let (_, ejected_bytes) = self.dirty().map_or((0, 0), |dirty| dirty.ejected());
        accounts.payload + ejected_bytes + accounts.items * RECORD_BYTES
    }

    /// Marks the bucket as deleted in its directory, durably; after an error it is as it was.
    pub(crate) fn mark_deleted(&self) -> std::io::Result<()> {
        let Some(persistence) = self.persistence() else { return Ok(()) };
        persistence.mark_deleted()
    }

    /// Removes the files of a bucket that is marked as deleted and gone.
    pub(crate) fn remove_journal(&self) -> std::io::Result<()> {
        let Some(persistence) = self.persistence() else { return Ok(()) };
        for shard in &persistence.shards {
            *shard.journal.lock() = None;
        }
        storage::remove_deleted(&persistence.disk, &persistence.directory)
    }

    /// Opens a vBucket whose part of the journal is in.
    pub(crate) fn open_gate(&self, persistence: &Persistence, vb: u16) {
        if let Some(gate) = persistence.gates.get(usize::from(vb)) {
            gate.store(Gate::Open as u8, Relaxed);
        }
        if persistence.gates.iter().all(|gate| gate.load(Relaxed) == Gate::Open as u8) {
            self.lower(attention::GATES);
        }
    }
}
