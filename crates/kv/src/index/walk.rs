//! A walk over a vBucket's documents in the order of its table, for those to whom the order of the seqnos does not
//! matter.
//!
//! ```text
//!   parts    the groups that the table had when the walk began
//!            ├ done ┤ part: up to `after` ├ to come ...
//! ```
//! Whatever is split and merged meanwhile, a document belongs to one part, by its hash: each is met once. Within a part
//! they come in the order of their seqnos, so that a walk may end anywhere, and tells what it has handed out.

use std::cmp::Ordering;

use memory::Location;

use super::durable::{Dirty, Taken};
use super::item::{Kind, collection_of};
use super::table::group_of;
use super::vbucket::Locked;

/// Ejected documents that are remembered; with more the walk ends.
const SKIPPED_MOST: usize = 64;
/// It also ends when the table has grown to so many times as many groups: each look at a part is at all of it.
const GROWTH_MOST: u64 = 4;

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

impl Walk {
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns the seqnos of what it skipped, in their order, if it has met everything. Only once it is done.
    pub(crate) fn skipped(&self) -> Option<&[u64]> {
        (self.part >= self.parts).then_some(&*self.skipped)
    }

    /// Returns true if it has handed out the document with this seqno and hash. Only once it is done.
    pub(crate) fn has_told(&self, seqno: u64, hash: impl FnOnce() -> u64) -> bool {
        let is_met = || match group_of(hash(), self.parts).cmp(&self.part) {
            Ordering::Less => true,
            Ordering::Equal => seqno <= self.after,
            Ordering::Greater => false,
        };
        self.skipped.binary_search(&seqno).is_err() && (self.part >= self.parts || is_met())
    }
}

impl Locked<'_> {
    /// Begins a walk over the documents with seqnos up to `end`.
    pub(crate) fn begin_walk(&self, end: u64) -> Walk {
        let parts = self.root.groups() as usize;
        Walk { parts, part: 0, after: 0, end, is_done: false, skipped: Vec::new() }
    }

    /// Hands out the documents of so many parts, until `take` refuses one: then it returns true. Those without a value
    /// in memory are skipped.
    pub(crate) fn walk_on(
        &self,
        walk: &mut Walk,
        parts: usize,
        mut take: impl FnMut(&Dirty<'_>) -> bool,
    ) -> bool {
        for _ in 0..parts {
            let has_grown = self.root.groups() > walk.parts as u64 * GROWTH_MOST;
            if walk.part >= walk.parts || walk.skipped.len() > SKIPPED_MOST || has_grown {
                walk.skipped.sort_unstable();
                walk.skipped.shrink_to_fit();
                walk.is_done = true;
                return false;
            }
            for (seqno, location) in self.next_of(walk) {
                // SAFETY: the item is in the table and the lock is held.
                let is_ejected = unsafe { self.item(location).header() }.kind == Kind::Ejected;
                if is_ejected {
                    walk.skipped.push(seqno);
                } else if !self.hand_out(location, &mut |item| {
                    !self.memory.resources.collections.has(collection_of(item.stored_key)) || take(item)
                }) {
                    return true;
                }
                walk.after = seqno;
            }
            (walk.part, walk.after) = (walk.part + 1, 0);
        }
        false
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
