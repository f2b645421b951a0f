//! `stats detail`: counts of operations on the keys of each prefix, the part of a key before its first `:`. Off until
//! it is switched on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::lock_order::{Ranked, rank};

/// Ends a prefix.
pub const DELIMITER: u8 = b':';
/// Further prefixes are not counted: clients choose them, and no account is charged for them.
const PREFIXES_MAX: usize = 4096;

/// An operation on a key.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    /// A lookup.
    Get {
        /// The document was found.
        hit: bool,
    },
    /// A store.
    Set,
    /// A deletion.
    Delete,
}

/// Counts by prefix.
#[derive(Default)]
pub struct Prefixes {
    is_on: AtomicBool,
    counts: Ranked<BTreeMap<Box<[u8]>, Counts>, { rank::PREFIXES }>,
}

/// Operations on the keys of a prefix.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Lookups,
    pub gets: u64,
    /// lookups that found a document,
    pub hits: u64,
    /// stores,
    pub sets: u64,
    /// and deletions.
    pub deletes: u64,
}

impl Prefixes {
    /// Starts or stops counting. What was counted stays.
    pub fn switch(&self, on: bool) {
        self.is_on.store(on, Relaxed);
    }

    /// Returns true if operations are counted.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Counts an operation on a key.
    #[inline]
    pub fn note(&self, key: &[u8], access: Access) {
        if self.is_on() {
            self.count(key, access);
        }
    }

    #[cold]
    fn count(&self, key: &[u8], access: Access) {
        let Some(length) = key.iter().position(|byte| *byte == DELIMITER) else { return };
        let prefix = &key[..length];
        let mut counts = self.counts.lock();
        if !counts.contains_key(prefix) {
            if counts.len() >= PREFIXES_MAX {
                return;
            }
            counts.insert(prefix.into(), Counts::default());
        }
        let Some(counts) = counts.get_mut(prefix) else { return };
        match access {
            Access::Get { hit } => {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            }
            Access::Set => counts.sets += 1,
            Access::Delete => counts.deletes += 1,
        }
    }

    /// Calls `f` with each prefix, in order.
    pub fn each(&self, f: &mut dyn FnMut(&[u8], &Counts)) {
        self.counts.lock().iter().for_each(|(prefix, counts)| f(prefix, counts));
    }

    /// Forgets what was counted (`stats reset`).
    pub(crate) fn reset(&self) {
        self.counts.lock().clear();
    }
}
