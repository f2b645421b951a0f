//! Memory that clients hold besides the buckets' items: unsent answers, unfinished requests, the connections
//! themselves.
//!
//! ```text
//!   node.memory | buckets .................................................. | what no bucket is charged for
//!                 items + buffers of clients, up to a sixteenth                connections, other buffers, OVSDB, HTTP
//! ```
//! What no bucket is charged for lowers the watermarks of all buckets by their share, at most by half. The data
//! ports' buffers have common bounds: above [`Pressure::Soft`] peers that take or send nothing are cut off, the largest
//! first, and above [`Pressure::Hard`] the largest in any case. This module only counts; the caller cuts peers off.
//!
//! Buffers come from the shared arenas, which keep free pages for some seconds. After much has been freed, those pages
//! are given back at once. What else the shared arenas have, beyond what counts as the program, counts as that which no
//! bucket is charged for: buffers of flushers and fetchers, the tables of journals, free pages.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize};

use crate::doorbell::Doorbell;
use crate::lock_order::{Ranked, rank};

/// Buffers may hold the node's memory divided by this, and at least [`SOFT_LEAST`], before peers that make no progress
/// are cut off.
const SOFT_FRACTION: u64 = 16;
const SOFT_LEAST: u64 = 2 << 20;
/// Buffers may hold the node's memory divided by this before the largest is cut off in any case.
const HARD_FRACTION: u64 = 8;
/// One peer is allowed what is left below the soft bound, divided by this.
const ALLOWANCE_FRACTION: u64 = 8;
/// Large values in transit may hold the node's memory divided by this before peers that make no progress are cut off.
const LARGE_FRACTION: u64 = 4;
/// Free pages are given back when what is held has fallen by the node's memory divided by this, and by at least
/// [`FALL_LEAST`].
const FALL_FRACTION: u64 = 64;
const FALL_LEAST: u64 = 1 << 20;
/// So much of the shared arenas counts as the program, which is not part of the node's memory: this,
const PROGRAM_BYTES: u64 = 3 << 20;
/// and the node's memory divided by this.
const PROGRAM_FRACTION: u64 = 50;
/// The part taken away from a budget is counted in 65536ths.
const SHARE_BITS: u32 = 16;
/// At most half is taken away.
const SHARE_MOST: u64 = 1 << (SHARE_BITS - 1);
/// The pager is notified of every 1024th.
const SHARE_STEP_BITS: u32 = SHARE_BITS - 10;

/// Holders of client memory besides the data ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Messages and replies of OVSDB clients.
    Ovsdb,
    /// A reply to an OVSDB client that is being built.
    OvsdbReply,
    /// Requests and streams over HTTP.
    Http,
}

/// How much the data ports' buffers hold, compared with their bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Within the bounds.
    None,
    /// Peers that make no progress have to be cut off.
    Soft,
    /// The largest have to be cut off.
    Hard,
}

/// The part taken away from every budget, in 65536ths. Shared by all buckets.
#[derive(Debug, Default, Clone)]
pub(crate) struct Share(Arc<AtomicU32>);

impl Share {
    /// Returns what is left of a budget.
    #[inline]
    pub(crate) fn left_of(&self, budget: u64) -> u64 {
        budget - (budget >> SHARE_BITS) * u64::from(self.0.load(Relaxed))
    }
}

/// See the module. One per node.
#[derive(Default)]
pub struct ClientMemory {
    /// The node's memory; 0 = unbounded.
    node_bytes: AtomicU64,
    buffers: AtomicI64,
    large: AtomicI64,
    /// Buffers of the data ports that no bucket is charged for.
    outside: AtomicI64,
    others: [AtomicU64; 3],
    /// What the shared arenas have beyond all of these, and beyond the program.
    unaccounted: AtomicU64,
    share: Share,
    /// The most that was held since free pages were last given back.
    peak: AtomicU64,
    cut_off: AtomicU64,
    /// How many streams each user has.
    streams: Ranked<HashMap<Arc<str>, Arc<AtomicUsize>>, { rank::STREAM_COUNTS }>,
}

impl ClientMemory {
    pub(crate) fn share(&self) -> Share {
        self.share.clone()
    }

    pub(crate) fn set_node_bytes(&self, bytes: u64) {
        self.node_bytes.store(bytes, Relaxed);
    }

    /// Notes that the buffers of a data port's connection have changed by `buffers` bytes, of which `outside` are
    /// charged to no bucket.
    pub fn change(&self, buffers: i64, outside: i64, doorbell: &Doorbell) {
        if buffers != 0 {
            self.buffers.fetch_add(buffers, Relaxed);
        }
        if outside != 0 {
            self.outside.fetch_add(outside, Relaxed);
            self.update_share(doorbell);
        }
        self.note_peak(doorbell);
    }

    /// Notes that large values in transit have changed by so many bytes: the received part of unfinished ones, and what
    /// a peer has not taken. Their bucket is charged for them.
    pub fn change_large(&self, bytes: i64) {
        self.large.fetch_add(bytes, Relaxed);
    }

    /// Sets how many bytes another holder holds now.
    pub fn set(&self, holder: Holder, bytes: u64, doorbell: &Doorbell) {
        if self.others[holder as usize].swap(bytes, Relaxed) != bytes {
            self.update_share(doorbell);
            self.note_peak(doorbell);
        }
    }

    /// Notes the physical memory of the shared arenas.
    pub(crate) fn note_shared(&self, bytes: u64, doorbell: &Doorbell) {
        let program = PROGRAM_BYTES + self.node_bytes.load(Relaxed) / PROGRAM_FRACTION;
        let accounted = self.buffer_bytes().saturating_add(self.other_bytes()).saturating_add(program);
        let unaccounted = bytes.saturating_sub(accounted);
        if self.unaccounted.swap(unaccounted, Relaxed) != unaccounted {
            self.update_share(doorbell);
        }
    }

    /// Counts a peer that was cut off for what it held.
    pub fn note_cut_off(&self) {
        self.cut_off.fetch_add(1, Relaxed);
    }

    /// Returns the number of peers cut off since the start.
    pub fn cut_off(&self) -> u64 {
        self.cut_off.load(Relaxed)
    }

    /// Returns the bytes of the data ports' buffers.
    pub fn buffer_bytes(&self) -> u64 {
        self.buffers.load(Relaxed).max(0).cast_unsigned()
    }

    /// Returns the bytes of other holders: HTTP clients and OVSDB clients.
    pub fn other_bytes(&self) -> u64 {
        self.others.iter().fold(0, |sum, other| sum.saturating_add(other.load(Relaxed)))
    }

    /// Returns the bytes that no bucket is charged for.
    pub fn outside_bytes(&self) -> u64 {
        let outside = self.outside.load(Relaxed).max(0).cast_unsigned();
        self.others.iter().fold(outside, |sum, other| sum.saturating_add(other.load(Relaxed)))
    }

    /// Returns how the data ports' buffers compare with their bounds.
    #[inline]
    pub fn pressure(&self) -> Pressure {
        let (held, soft) = (self.buffer_bytes(), self.soft_bytes());
        let node_bytes = self.node_bytes.load(Relaxed);
        if held <= soft {
            Pressure::None
        } else if held <= (2 * SOFT_LEAST).max(node_bytes / HARD_FRACTION) {
            Pressure::Soft
        } else {
            Pressure::Hard
        }
    }

    /// Returns what one peer may make the node hold now: a part of what all of them may still take, so that many peers
    /// that send much or do not read cause no pressure.
    #[inline]
    pub fn allowance(&self) -> usize {
        let left = self.soft_bytes().saturating_sub(self.buffer_bytes()) / ALLOWANCE_FRACTION;
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Returns true if a user whose streams hold `bytes` leaves as much to all other clients.
    pub fn leaves_as_much(&self, bytes: usize) -> bool {
        bytes as u64 <= self.soft_bytes().saturating_sub(self.buffer_bytes())
    }

    /// Returns a user's stream count, which its connections update when a stream begins or ends.
    pub fn streams_of(&self, user: &Arc<str>) -> Arc<AtomicUsize> {
        let mut streams = self.streams.lock();
        // Of users without a connection there is no other reference.
        streams.retain(|_, count| Arc::strong_count(count) > 1);
        Arc::clone(streams.entry(Arc::clone(user)).or_default())
    }

    fn soft_bytes(&self) -> u64 {
        match self.node_bytes.load(Relaxed) {
            0 => u64::MAX,
            node_bytes => SOFT_LEAST.max(node_bytes / SOFT_FRACTION),
        }
    }

    /// Returns true if large values in transit hold too much. One that is sent to several peers counts for each.
    #[inline]
    pub fn has_too_much_large(&self) -> bool {
        let node_bytes = self.node_bytes.load(Relaxed);
        let held = self.large.load(Relaxed).max(0).cast_unsigned();
        node_bytes != 0 && held > node_bytes / LARGE_FRACTION
    }

    /// Returns true if so much has been freed that free pages should be given back now.
    pub fn take_fall(&self) -> bool {
        let has_fallen = self.has_fallen();
        if has_fallen {
            self.peak.store(self.held_bytes(), Relaxed);
        }
        has_fallen
    }

    fn held_bytes(&self) -> u64 {
        self.others.iter().fold(self.buffer_bytes(), |sum, other| sum.saturating_add(other.load(Relaxed)))
    }

    fn has_fallen(&self) -> bool {
        let node_bytes = self.node_bytes.load(Relaxed);
        let least = FALL_LEAST.max(node_bytes / FALL_FRACTION);
        node_bytes != 0 && self.held_bytes().saturating_add(least) < self.peak.load(Relaxed)
    }

    fn note_peak(&self, doorbell: &Doorbell) {
        let held = self.held_bytes();
        if held > self.peak.load(Relaxed) {
            self.peak.fetch_max(held, Relaxed);
        } else if self.has_fallen() {
            doorbell.ring();
        }
    }

    fn uncharged_bytes(&self) -> u64 {
        self.outside_bytes().saturating_add(self.unaccounted.load(Relaxed))
    }

    fn update_share(&self, doorbell: &Doorbell) {
        let node_bytes = self.node_bytes.load(Relaxed);
        if node_bytes == 0 {
            return;
        }
        loop {
            let outside = self.uncharged_bytes();
            let share = (u128::from(outside) << SHARE_BITS).div_ceil(u128::from(node_bytes));
            let share = u64::try_from(share).map_or(SHARE_MOST, |share| share.min(SHARE_MOST)) as u32;
            // ORDERING: of two concurrent changes, the one whose share remains in the end has seen both.
            let before = self.share.0.swap(share, SeqCst);
            if share >> SHARE_STEP_BITS > before >> SHARE_STEP_BITS {
                doorbell.ring();
            }
            if self.uncharged_bytes() == outside {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_bucket_is_charged_for_lowers_every_budget() {
        let (memory, doorbell) = (ClientMemory::default(), Doorbell::default());
        memory.change(0, 1 << 20, &doorbell);
        assert_eq!(memory.share().left_of(1 << 26), 1 << 26, "without a bound of the node");
        memory.set_node_bytes(1 << 26);
        memory.set(Holder::Ovsdb, 1 << 20, &doorbell);
        let left = (1 << 26) - (2 << 20);
        assert_eq!((memory.outside_bytes(), memory.share().left_of(1 << 26)), (2 << 20, left));
        memory.set(Holder::Http, 1 << 40, &doorbell);
        assert_eq!(memory.share().left_of(1 << 26), (1 << 26) / 2, "no more than half");
        memory.set(Holder::Http, 0, &doorbell);
        memory.set(Holder::Ovsdb, 0, &doorbell);
        memory.change(0, -(1 << 20), &doorbell);
        assert_eq!(memory.share().left_of(1 << 26), 1 << 26);
    }

    #[test]
    fn what_the_shared_arenas_have_beside_the_accounts_counts() {
        let (memory, doorbell) = (ClientMemory::default(), Doorbell::default());
        memory.set_node_bytes(1 << 26);
        memory.change(1 << 20, 1 << 20, &doorbell);
        let program = PROGRAM_BYTES + (1 << 26) / PROGRAM_FRACTION;
        memory.note_shared((1 << 20) + program, &doorbell);
        assert_eq!(memory.share().left_of(1 << 26), (1 << 26) - (1 << 20), "all of it is known");
        memory.note_shared((4 << 20) + program, &doorbell);
        assert_eq!(
            (memory.share().left_of(1 << 26), memory.outside_bytes()),
            ((1 << 26) - (4 << 20), 1 << 20)
        );
        memory.note_shared(0, &doorbell);
        assert_eq!(memory.share().left_of(1 << 26), (1 << 26) - (1 << 20));
    }

    #[test]
    fn free_pages_go_back_when_much_was_freed() {
        let (memory, doorbell) = (ClientMemory::default(), Doorbell::default());
        memory.set_node_bytes(64 << 20);
        memory.change(1 << 20, 0, &doorbell);
        memory.set(Holder::Ovsdb, 1 << 20, &doorbell);
        memory.change(-(1 << 20), 0, &doorbell);
        assert!(!memory.take_fall(), "no more than the least");
        memory.set(Holder::Ovsdb, (1 << 20) - 1, &doorbell);
        assert_eq!((memory.take_fall(), memory.take_fall()), (true, false));
        memory.set(Holder::Ovsdb, 4 << 20, &doorbell);
        memory.set(Holder::Ovsdb, 2 << 20, &doorbell);
        assert!(memory.take_fall(), "below the new peak");
    }

    #[test]
    fn pressure_rises_in_two_steps() {
        let (memory, doorbell) = (ClientMemory::default(), Doorbell::default());
        memory.set_node_bytes(64 << 20);
        let at = |bytes: i64| {
            memory.change(bytes, 0, &doorbell);
            memory.pressure()
        };
        assert_eq!((at(4 << 20), at(1), at(4 << 20)), (Pressure::None, Pressure::Soft, Pressure::Hard));
    }

    #[test]
    fn a_user_leaves_as_much_as_its_streams_hold() {
        let (memory, doorbell) = (ClientMemory::default(), Doorbell::default());
        memory.set_node_bytes(160 << 20);
        assert!(memory.leaves_as_much(10 << 20) && !memory.leaves_as_much((10 << 20) + 1));
        // Those of the first one fill half; of the rest another one has half.
        memory.change(5 << 20, 0, &doorbell);
        assert!(memory.leaves_as_much(5 << 20) && !memory.leaves_as_much((5 << 20) + 1));
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let of_ann = memory.streams_of(&ann);
        of_ann.fetch_add(3, Relaxed);
        assert_eq!([&ann, &bob].map(|user| memory.streams_of(user).load(Relaxed)), [3, 0]);
        of_ann.fetch_sub(3, Relaxed);
        drop(of_ann);
        memory.streams_of(&bob);
        assert_eq!(memory.streams.lock().len(), 1);
    }
}
