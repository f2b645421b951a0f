//! A walk over a vBucket's documents in the order of its table, for those to whom the order of the seqnos does not
//! matter.
//!
//! ```text
//!   parts    the groups that the table had when the walk began
//!            ├ done ┤ part: up to `after` ├ to come ...
//! ```
//! Whatever is split and merged meanwhile, a document belongs to one part, by its hash: each is met once.

use memory::Location;

use super::durable::{Dirty, Taken};
use super::item::{Kind, collection_of};
use super::vbucket::Locked;

/// Ejected documents that are remembered; behind the part that exceeds it the walk ends.
const SKIPPED_MOST: usize = 512;

/// How far a walk is.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Groups of the table when it began, and the one it is at.
    parts: usize,
    part: usize,
    /// Documents of this part up to this seqno are done.
    after: u64,
    /// The last seqno of interest.
    end: u64,
    is_done: bool,
    /// The seqnos of documents that it met without their values, in their order once it is done.
    skipped: Vec<u64>,
}

/// How far a walk got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strolled {
    /// It is done.
    Done,
    /// There is more.
    Part,
    /// To a document that was not taken.
    Refused,
}

impl Walk {
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the seqnos of what it skipped, in their order, if it has met everything. It is done.
    pub(crate) fn skipped(&self) -> Option<&[u64]> {
        (self.part >= self.parts).then_some(&*self.skipped)
    }

    /// Returns true if it has handed out the document with this seqno and hash. It is done.
    pub(crate) fn has_told(&self, seqno: u64, hash: impl FnOnce() -> u64) -> bool {
        seqno <= self.end
            && self.skipped.binary_search(&seqno).is_err()
            && (self.part >= self.parts || super::table::group_of(hash(), self.parts) < self.part)
    }
}

impl Locked<'_> {
    /// Begins a walk over the documents with seqnos up to `end`.
    pub(crate) fn begin_walk(&self, end: u64) -> Walk {
        let parts = self.root.groups() as usize;
        Walk { parts, part: 0, after: 0, end, is_done: false, skipped: Vec::new() }
    }

    /// Hands out the documents of so many parts, until `take` refuses one. Those without a value in memory are skipped.
    pub(crate) fn walk_on(
        &self,
        walk: &mut Walk,
        parts: usize,
        mut take: impl FnMut(&Dirty<'_>) -> bool,
    ) -> Strolled {
        for _ in 0..parts {
            if walk.part >= walk.parts || walk.skipped.len() > SKIPPED_MOST {
                walk.skipped.sort_unstable();
                walk.is_done = true;
                return Strolled::Done;
            }
            for (seqno, location) in self.next_of(walk) {
                // SAFETY: the item is in the table and the lock is held.
                let is_ejected = unsafe { self.item(location).header() }.kind == Kind::Ejected;
                if is_ejected {
                    walk.skipped.push(seqno);
                } else if !self.hand_out(location, &mut |item| {
                    !self.memory.resources.collections.has(collection_of(item.stored_key)) || take(item)
                }) {
                    return Strolled::Refused;
                }
                walk.after = seqno;
            }
            (walk.part, walk.after) = (walk.part + 1, 0);
        }
        Strolled::Part
    }

    /// Takes the document that was refused, for use without the lock.
    pub(crate) fn take_refused(&self, walk: &mut Walk) -> Option<Taken> {
        let (seqno, location) = self.next_of(walk).into_iter().next()?;
        walk.after = seqno;
        Some(self.taken(location))
    }

    /// Returns what is left of the walk's part, in the order of the seqnos.
    fn next_of(&self, walk: &Walk) -> Vec<(u64, Location)> {
        let mut locations = Vec::new();
        self.root.walk_part((walk.part, walk.parts), |at| self.hash_of(at), |at| locations.push(at));
        locations.iter().for_each(|location| self.load_ahead(*location));
        let flushed_seqno = self.flushed_seqno();
        let wanted = locations.into_iter().filter_map(|location| {
            // SAFETY: the item is in the table and the lock is held.
            let header = unsafe { self.item(location).header() };
            let is_wanted = matches!(header.kind, Kind::Document | Kind::Ejected)
                && (flushed_seqno.max(walk.after) + 1..=walk.end).contains(&header.seqno);
            is_wanted.then_some((header.seqno, location))
        });
        let mut wanted: Vec<_> = wanted.collect();
        wanted.sort_unstable_by_key(|(seqno, _)| *seqno);
        wanted
    }
}
