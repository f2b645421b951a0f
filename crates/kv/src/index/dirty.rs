//! State shared by all vBuckets of a persistent bucket: which of them have something to flush, and how much is not in
//! memory.
//!
//! A vBucket has a bit. The first change sets it under the vBucket's lock; the flusher clears it before it looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::doorbell::Doorbell;

/// The set of dirty vBuckets.
pub(crate) struct DirtySet {
    words: Box<[AtomicU64]>,
    shards: Box<[Mark]>,
    /// Number of shards that found the disk full.
    full: AtomicU32,
    ejected_items: AtomicI64,
    ejected_bytes: AtomicI64,
}

/// Whether any vBucket of a shard is marked, and the bell of the flusher that waits for it.
struct Mark {
    any: AtomicBool,
    /// The bell was not heard: the next mark rings it, though it is not the first.
    unheard: AtomicBool,
    /// Its last flush found the disk full.
    full: AtomicBool,
    bell: Arc<Doorbell>,
}

impl Mark {
    fn new(bell: Arc<Doorbell>) -> Self {
        let [any, unheard, full] = Default::default();
        Self { any, unheard, full, bell }
    }
}

impl DirtySet {
    /// Creates an empty set for this many vBuckets; each shard has a flusher, which waits for its bell.
    pub(crate) fn new(vbuckets: u16, bells: impl Iterator<Item = Arc<Doorbell>>) -> Self {
        Self {
            words: (0..vbuckets.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            shards: bells.map(Mark::new).collect(),
            full: AtomicU32::new(0),
            ejected_items: AtomicI64::new(0),
            ejected_bytes: AtomicI64::new(0),
        }
    }

    /// Notes that this vBucket has something to flush.
    pub(crate) fn mark(&self, vb: u16) {
        let shard = self.shards.get(usize::from(vb) % self.shards.len());
        let (Some(word), Some(shard)) = (self.words.get(usize::from(vb / 64)), shard) else { return };
        // ORDERING: first the bit, then `any`; the flusher clears `any`, then takes the bits. So it misses none.
        word.fetch_or(1 << (vb % 64), Ordering::SeqCst);
        let is_first = !shard.any.swap(true, Ordering::SeqCst);
        if is_first || shard.unheard.load(Ordering::Relaxed) && shard.unheard.swap(false, Ordering::SeqCst) {
            shard.bell.ring();
        }
    }

    /// Wakes the flusher of a vBucket.
    pub(crate) fn ring(&self, vb: u16) {
        if let Some(shard) = self.shards.get(usize::from(vb) % self.shards.len()) {
            shard.bell.ring();
        }
    }

    /// Returns true if any vBucket of the shard is marked.
    pub(crate) fn any(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(|shard| shard.any.load(Ordering::SeqCst))
    }

    /// Takes the marks of a shard's vBuckets.
    pub(crate) fn take(&self, shard: usize) -> Vec<u16> {
        let mut taken = Vec::new();
        let Some(mark) = self.shards.get(shard) else { return taken };
        mark.any.store(false, Ordering::SeqCst);
        for (word, first) in self.words.iter().zip((0u16..).step_by(64)) {
            let is_ours = |bit: &u16| usize::from(first + bit) % self.shards.len() == shard;
            let ours = (0..64u16).filter(is_ours).fold(0u64, |mask, bit| mask | 1 << bit);
            if word.load(Ordering::SeqCst) & ours == 0 {
                continue;
            }
            let mut bits = word.fetch_and(!ours, Ordering::SeqCst) & ours;
            while bits != 0 {
                taken.push(first + bits.trailing_zeros() as u16);
                bits &= bits - 1;
            }
        }
        taken
    }

    /// Notes that a shard's flusher was not there to hear its bell: the next mark rings it again.
    pub(crate) fn note_unheard(&self, shard: usize) {
        if let Some(shard) = self.shards.get(shard) {
            shard.unheard.store(true, Ordering::SeqCst);
        }
    }

    /// Returns true if the disk is full: one shard that cannot write is enough.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) > 0
    }

    /// Sets whether a shard finds the disk full.
    pub(crate) fn set_full(&self, shard: usize, full: bool) {
        let Some(shard) = self.shards.get(shard) else { return };
        match (shard.full.swap(full, Ordering::Relaxed), full) {
            (false, true) => drop(self.full.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.full.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Counts values that have left memory, and their bytes (negative: that are back).
    pub(super) fn count_ejected(&self, items: i64, bytes: i64) {
        self.ejected_items.fetch_add(items, Ordering::Relaxed);
        self.ejected_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns how many values are not in memory, and their bytes.
    pub(crate) fn ejected(&self) -> (u64, u64) {
        let get = |count: &AtomicI64| u64::try_from(count.load(Ordering::Relaxed)).unwrap_or(0);
        (get(&self.ejected_items), get(&self.ejected_bytes))
    }
}
