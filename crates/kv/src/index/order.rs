//! Items in the order of their sequence numbers, one per vBucket.
//!
//! ```text
//!   sealed  chunk, fences | ...    full chunks of 640 slots, oldest first; a fence is the seqno of every 80th slot
//!   tail    chunk                  the one being filled: grows from 8 slots, so that a small vBucket stays small
//!   chunk   base seqno 48 | live | slots ...
//!   slot    seqno - base 18 | location 46 (kind 1, number 45)    location 0: superseded
//! ```
//! An ephemeral bucket keeps a slot for every item, while somebody reads it in this order (`docs/decisions/0002`). A
//! persistent one keeps slots only for unflushed items, those above the *floor*, which makes this its dirty list: armed
//! by the first unflushed item, trimmed when a flush is complete, dropped when nothing is left. Slots are appended
//! (seqnos only rise), cleared when their item is overwritten or removed, and rewritten when it moves. Clearing is
//! deferred: superseded seqnos collect in `retired` and are cleared eight at a time, so that their cache misses
//! overlap. Every reader drains `retired` first or skips what it names; outside this file a stale slot does not exist.
//!
//! When a third of the slots are superseded, runs of sealed chunks are rewritten densely, a bounded number at a time.
//! The old seqnos that remain are anything but evenly spread; between two fences they nearly are, so a slot is found by
//! a guess that is off by few places, mostly within one cache line.

use arrayvec::ArrayVec;
use memory::{Location, Tenant, TenantCache, TenantVec, prefetch};

const LOCATION_BITS: u32 = memory::heap::LOCATION_BITS;
const DELTA_BITS: u32 = 64 - LOCATION_BITS;
const DELTA_MAX: u64 = (1 << DELTA_BITS) - 1;
const _: () = assert!(DELTA_BITS == 18);

/// Slots of a full chunk: 5 KiB, what the tail's growth by quarters comes to.
const CHUNK_SLOTS: usize = 640;
/// This few superseded slots are never worth rewriting.
const DEAD_LEAST: u32 = 8;
const RETIRED: usize = 8;
/// Fences of a sealed chunk.
const FENCES: usize = 8;
const FENCE_SLOTS: usize = CHUNK_SLOTS / FENCES;
/// Chunks rewritten at a time.
const COMPACT_CHUNKS: usize = 64;

#[derive(Default)]
#[repr(C)]
struct Chunk {
    base: u64,
    live: u32,
    /// Highest delta, so that a search need not touch the last slot.
    span: u32,
    slots: TenantVec<u64>,
}

/// A chunk that is not appended to any more.
#[derive(Default)]
#[repr(C)]
struct Sealed {
    chunk: Chunk,
    /// Delta of every [`FENCE_SLOTS`]th slot, from the first on; the highest possible value beyond the last slot.
    fences: [u32; FENCES],
}

const _: () = assert!(size_of::<Sealed>() == 64);

/// A run of slots.
pub(crate) type Slots = ArrayVec<(u64, Location), { super::vbucket::SLICE_ITEMS }>;

/// The order. It has no destructor: [`SeqnoOrder::clear`] it, or let the tenant's arena go.
///
/// All zero, it is empty.
#[derive(Default)]
#[repr(C)]
pub(crate) struct SeqnoOrder {
    retired_len: u32,
    /// The sealed chunk at which the next compaction starts.
    hand: u32,
    tail: Chunk,
    sealed: TenantVec<Sealed>,
    live: u32,
    dead: u32,
    /// Seqnos up to this have no slots: their items are flushed.
    floor: u64,
    retired: [u64; RETIRED],
    /// Somebody follows: items stay in it when they are flushed.
    is_followed: bool,
}

fn pack(delta: u64, location: u64) -> u64 {
    debug_assert!(delta <= DELTA_MAX && location >> LOCATION_BITS == 0);
    delta << LOCATION_BITS | location
}

fn delta_of(slot: u64) -> u64 {
    slot >> LOCATION_BITS
}

fn location_of(slot: u64) -> Option<Location> {
    Location::from_bits(slot & ((1 << LOCATION_BITS) - 1))
}

/// Estimates the position of the slot of `delta` among `count` slots whose deltas, `from` to `to`, are about evenly
/// spread.
#[inline]
fn interpolate(delta: u64, from: u64, to: u64, count: usize) -> usize {
    let at = delta.saturating_sub(from) * count as u64 / (to.saturating_sub(from) + 1);
    (at as usize).min(count.saturating_sub(1))
}

impl Sealed {
    fn new(chunk: Chunk) -> Self {
        let fence = |at: usize| {
            chunk.slots.as_slice().get(at * FENCE_SLOTS).map_or(u32::MAX, |slot| delta_of(*slot) as u32)
        };
        let fences = std::array::from_fn(fence);
        Self { chunk, fences }
    }

    /// Estimates the position of this seqno's slot.
    #[inline]
    fn guess(&self, seqno: u64) -> usize {
        let delta = seqno.saturating_sub(self.chunk.base);
        let fence = self.fences.iter().filter(|fence| u64::from(**fence) <= delta).count().saturating_sub(1);
        let first = fence * FENCE_SLOTS;
        let from = u64::from(self.fences[fence]);
        let next = self.fences.get(fence + 1).copied().filter(|next| *next != u32::MAX);
        let len = self.chunk.slots.as_slice().len();
        match next {
            Some(next) => first + interpolate(delta, from, u64::from(next), FENCE_SLOTS),
            None => first + interpolate(delta, from, u64::from(self.chunk.span), len - first),
        }
    }
}

impl Chunk {
    /// Estimates the position of this seqno's slot in a chunk without fences: seqnos follow one another there.
    #[inline]
    fn guess(&self, seqno: u64) -> usize {
        interpolate(seqno.saturating_sub(self.base), 0, u64::from(self.span), self.slots.as_slice().len())
    }

    /// Returns the index of this seqno's slot, searching from `at` on.
    #[inline]
    fn find(&self, seqno: u64, mut at: usize) -> Option<usize> {
        let slots = self.slots.as_slice();
        let delta = seqno.checked_sub(self.base)?;
        while delta_of(*slots.get(at)?) < delta {
            at += 1;
        }
        while delta_of(*slots.get(at)?) > delta {
            at = at.checked_sub(1)?;
        }
        (delta_of(*slots.get(at)?) == delta).then_some(at)
    }

    /// Appends a slot. There is room, and the delta fits.
    #[inline]
    fn push(&mut self, seqno: u64, location: Location, tenant: &Tenant, cache: &mut TenantCache) {
        let delta = seqno - self.base;
        self.span = delta as u32;
        self.live += 1;
        let pushed = self.slots.push(tenant, cache, pack(delta, location.bits()));
        debug_assert!(pushed, "room was reserved");
    }

    fn clear(&mut self, at: usize) {
        if let Some(slot) = self.slots.as_mut_slice().get_mut(at) {
            debug_assert!(location_of(*slot).is_some(), "a slot cleared twice");
            *slot = pack(delta_of(*slot), 0);
            self.live -= 1;
        }
    }

    /// Returns the highest seqno that had a slot.
    fn last(&self) -> u64 {
        self.base + u64::from(self.span)
    }

    fn dead(&self) -> u32 {
        self.slots.as_slice().len() as u32 - self.live
    }
}

impl SeqnoOrder {
    /// Creates an order for items above `floor` only.
    pub(crate) fn above(floor: u64) -> Self {
        Self { floor, ..Self::default() }
    }

    /// Makes sure that [`SeqnoOrder::push`] finds room. Returns false if there is no memory.
    #[inline]
    pub(crate) fn reserve(&mut self, seqno: u64, tenant: &Tenant, cache: &mut TenantCache) -> bool {
        let len = self.tail.slots.as_slice().len();
        if len < self.tail.slots.capacity() && seqno - self.tail.base <= DELTA_MAX {
            return true;
        }
        self.reserve_slot(seqno, tenant, cache)
    }

    #[cold]
    fn reserve_slot(&mut self, seqno: u64, tenant: &Tenant, cache: &mut TenantCache) -> bool {
        let len = self.tail.slots.as_slice().len();
        if len >= CHUNK_SLOTS || len > 0 && seqno - self.tail.base > DELTA_MAX {
            if !self.sealed.reserve(tenant, cache) {
                return false;
            }
            let full = std::mem::take(&mut self.tail);
            let pushed = self.sealed.push(tenant, cache, Sealed::new(full));
            debug_assert!(pushed, "there is room");
        }
        if self.tail.slots.as_slice().is_empty() {
            self.tail.base = seqno;
        }
        self.tail.slots.reserve(tenant, cache)
    }

    /// Appends an item; `reserve` was called for this seqno, which is higher than any before.
    #[inline]
    pub(crate) fn push(&mut self, seqno: u64, location: Location, tenant: &Tenant, cache: &mut TenantCache) {
        let tail = &mut self.tail;
        debug_assert!(tail.slots.as_slice().last().is_none_or(|slot| tail.base + delta_of(*slot) < seqno));
        tail.push(seqno, location, tenant, cache);
        self.live += 1;
    }

    /// Notes that the item of this seqno is gone or has a newer one.
    #[inline]
    pub(crate) fn retire(&mut self, seqno: u64, tenant: &Tenant, cache: &mut TenantCache) {
        if seqno <= self.floor {
            return;
        }
        if self.retired_len as usize == RETIRED {
            self.drain(tenant, cache);
        }
        self.retired[self.retired_len as usize] = seqno;
        self.retired_len += 1;
    }

    /// Returns where the item of this seqno lies, if it has a slot.
    pub(crate) fn location(&mut self, seqno: u64) -> Option<Location> {
        if seqno <= self.floor {
            return None;
        }
        let (chunk, guess) = self.chunk_of(seqno);
        location_of(*chunk.slots.as_slice().get(chunk.find(seqno, guess)?)?)
    }

    /// As [`SeqnoOrder::location`], of an item that may have been superseded.
    pub(crate) fn live_location(
        &mut self,
        seqno: u64,
        tenant: &Tenant,
        cache: &mut TenantCache,
    ) -> Option<Location> {
        self.drain(tenant, cache);
        self.location(seqno)
    }

    /// Notes that the item of this seqno lies there now.
    pub(crate) fn relocate(&mut self, seqno: u64, location: Location) {
        if seqno <= self.floor {
            return;
        }
        let (chunk, guess) = self.chunk_of(seqno);
        let at = chunk.find(seqno, guess);
        debug_assert!(at.is_some(), "seqno {seqno} has no slot");
        if let Some(slot) = at.and_then(|at| chunk.slots.as_mut_slice().get_mut(at)) {
            *slot = pack(delta_of(*slot), location.bits());
        }
    }

    /// Starts loading the slots that the next [`SeqnoOrder::retire`] will clear, if it has to clear any.
    #[inline]
    pub(crate) fn prefetch_slots(&mut self) {
        if self.retired_len as usize == RETIRED {
            for seqno in self.retired {
                let (chunk, guess) = self.chunk_of(seqno);
                if let Some(slot) = chunk.slots.as_slice().get(guess) {
                    prefetch(slot);
                }
            }
        }
    }

    /// Calls `f` with all items in seqno order. Changes nothing: an audit of memory may read it.
    pub(crate) fn iterate(&self, mut f: impl FnMut(u64, Location)) {
        let retired = self.retired();
        for chunk in self.chunks() {
            for slot in chunk.slots.as_slice() {
                let seqno = chunk.base + delta_of(*slot);
                if let Some(location) = location_of(*slot)
                    && !retired.contains(&seqno)
                {
                    f(seqno, location);
                }
            }
        }
    }

    /// Returns how many items have a slot.
    pub(crate) fn live(&mut self, tenant: &Tenant, cache: &mut TenantCache) -> u32 {
        self.drain(tenant, cache);
        self.live
    }

    /// Returns how many items above `after` have a slot.
    pub(crate) fn live_above(&mut self, after: u64, tenant: &Tenant, cache: &mut TenantCache) -> u32 {
        self.drain(tenant, cache);
        let mut live = 0;
        self.iterate(|seqno, _| live += u32::from(seqno > after));
        live
    }

    /// Returns the first items above `after`, in seqno order; none if there are no more.
    pub(crate) fn next(&mut self, after: u64, tenant: &Tenant, cache: &mut TenantCache) -> Slots {
        self.drain(tenant, cache);
        let mut slots = Slots::new();
        let sealed = self.sealed.as_slice();
        let first = sealed.partition_point(|sealed| sealed.chunk.last() <= after);
        let chunks = sealed[first..].iter().map(|sealed| &sealed.chunk).chain(std::iter::once(&self.tail));
        for chunk in chunks {
            let all = chunk.slots.as_slice();
            let from = match after.checked_sub(chunk.base) {
                None => 0,
                Some(delta) => all.partition_point(|slot| delta_of(*slot) <= delta),
            };
            for slot in &all[from..] {
                if let Some(location) = location_of(*slot)
                    && slots.try_push((chunk.base + delta_of(*slot), location)).is_err()
                {
                    return slots;
                }
            }
        }
        slots
    }

    /// Removes the slots of items up to `floor`, which are flushed. Returns true if none is left.
    pub(crate) fn trim(&mut self, floor: u64, tenant: &Tenant, cache: &mut TenantCache) -> bool {
        self.drain(tenant, cache);
        self.floor = self.floor.max(floor);
        let gone = self.sealed.as_slice().partition_point(|sealed| sealed.chunk.last() <= floor);
        for sealed in &mut self.sealed.as_mut_slice()[..gone] {
            self.live -= sealed.chunk.live;
            self.dead -= sealed.chunk.dead();
            sealed.chunk.slots.clear(tenant, cache);
        }
        let kept = self.sealed.as_slice().len() - gone;
        self.sealed.as_mut_slice().rotate_left(gone);
        self.sealed.truncate(kept);
        self.hand = self.hand.saturating_sub(gone as u32);
        let first = match self.sealed.as_mut_slice().first_mut() {
            Some(sealed) => &mut sealed.chunk,
            None => &mut self.tail,
        };
        if let Some(delta) = floor.checked_sub(first.base) {
            let flushed = first.slots.as_slice().partition_point(|slot| delta_of(*slot) <= delta);
            for at in 0..flushed {
                if location_of(first.slots.as_slice()[at]).is_some() {
                    first.clear(at);
                    self.live -= 1;
                    self.dead += 1;
                }
            }
        }
        self.live == 0
    }

    /// Returns true if somebody follows.
    #[inline]
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// Notes whether somebody follows.
    pub(crate) fn set_followed(&mut self, is_followed: bool) {
        self.is_followed = is_followed;
    }

    /// Returns the seqno up to which there are no slots.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns the bytes of its blocks, as the accounts count them.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.chunks().map(|chunk| chunk.slots.allocated_bytes()).sum::<u64>() + self.sealed.allocated_bytes()
    }

    /// Frees all memory.
    pub(crate) fn clear(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        for sealed in self.sealed.as_mut_slice() {
            sealed.chunk.slots.clear(tenant, cache);
        }
        self.sealed.clear(tenant, cache);
        self.tail.slots.clear(tenant, cache);
        (self.tail.live, self.live, self.dead, self.hand, self.retired_len) = (0, 0, 0, 0, 0);
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.sealed.as_slice().iter().map(|sealed| &sealed.chunk).chain(std::iter::once(&self.tail))
    }

    /// Returns the chunk of a seqno, and about where in it its slot is.
    #[inline]
    fn chunk_of(&mut self, seqno: u64) -> (&mut Chunk, usize) {
        if seqno >= self.tail.base {
            let guess = self.tail.guess(seqno);
            return (&mut self.tail, guess);
        }
        let after = self.sealed.as_slice().partition_point(|sealed| sealed.chunk.base <= seqno);
        match self.sealed.as_mut_slice().get_mut(after.saturating_sub(1)) {
            Some(sealed) => {
                let guess = sealed.guess(seqno);
                (&mut sealed.chunk, guess)
            }
            None => (&mut self.tail, 0),
        }
    }

    /// Returns the seqnos whose slots are yet to be cleared.
    fn retired(&self) -> &[u64] {
        &self.retired[..self.retired_len as usize]
    }

    fn drain(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        for at in 0..self.retired_len as usize {
            self.clear_slot(self.retired[at]);
        }
        self.retired_len = 0;
        // Superseded slots in the tail wait until the tail is sealed.
        if self.dead - self.tail.dead() > self.live / 2 + DEAD_LEAST {
            self.compact(tenant, cache);
        }
    }

    fn clear_slot(&mut self, seqno: u64) {
        let (chunk, guess) = self.chunk_of(seqno);
        let Some(at) = chunk.find(seqno, guess) else {
            debug_assert!(false, "seqno {seqno} has no slot");
            return;
        };
        chunk.clear(at);
        self.live -= 1;
        self.dead += 1;
    }

    /// Rewrites up to [`COMPACT_CHUNKS`] sealed chunks densely.
    fn compact(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        let sealed = self.sealed.as_slice().len();
        let first = if (self.hand as usize) < sealed { self.hand as usize } else { 0 };
        let end = (first + COMPACT_CHUNKS).min(sealed);
        let mut kept = first;
        let mut target: Option<Chunk> = None;
        for at in first..end {
            let mut source = std::mem::take(&mut self.sealed.as_mut_slice()[at]).chunk;
            // A source opens at most one new target, and every target can hold a whole source: so never more chunks are
            // written than read. Without memory for a target the source stays as it is.
            let mut spare = TenantVec::new();
            if source.dead() == 0 || !spare.resize(tenant, cache, CHUNK_SLOTS) {
                self.keep(&mut kept, target.replace(source));
                self.keep(&mut kept, target.take());
                continue;
            }
            self.dead -= source.dead();
            for slot in source.slots.as_slice() {
                let Some(location) = location_of(*slot) else { continue };
                let seqno = source.base + delta_of(*slot);
                let fits = target.as_ref().is_some_and(|chunk| {
                    chunk.slots.as_slice().len() < chunk.slots.capacity() && seqno - chunk.base <= DELTA_MAX
                });
                if !fits {
                    let full = target.replace(Chunk {
                        base: seqno,
                        live: 0,
                        span: 0,
                        slots: std::mem::take(&mut spare),
                    });
                    self.keep(&mut kept, full);
                }
                if let Some(chunk) = &mut target {
                    chunk.push(seqno, location, tenant, cache);
                }
            }
            source.slots.clear(tenant, cache);
            spare.clear(tenant, cache);
        }
        self.keep(&mut kept, target);
        self.hand = u32::try_from(kept).unwrap_or(0);
        for at in (kept..end).rev() {
            self.sealed.remove(at);
        }
    }

    fn keep(&mut self, kept: &mut usize, chunk: Option<Chunk>) {
        if let Some(chunk) = chunk {
            self.sealed.as_mut_slice()[*kept] = Sealed::new(chunk);
            *kept += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::{BlockHeap, Gauge, ItemHeap};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Overwrites of few and many items, uniform and skewed, jumps in the seqnos: what is left agrees with a map.
        #[test]
        fn agrees_with_a_map(
            items in 1usize..3000,
            steps in proptest::collection::vec(
                (any::<u32>(), prop_oneof![20 => Just(1u64), 1 => 1u64..600_000]),
                1..6000,
            ),
        ) {
            let tenant = Tenant::new(1, 1 << 30).unwrap();
            let mut cache = tenant.cache(0);
            let heap = BlockHeap::new(Arc::clone(&tenant));
            let location = heap.allocate(&mut cache, 64, 0).unwrap();
            let (mut order, mut model) = (SeqnoOrder::default(), BTreeMap::new());
            let (mut holders, mut seqno) = (vec![None; items], 0);
            for (choice, step) in steps {
                // The square prefers the first items, so that the others grow old.
                let skew = (u64::from(choice) * u64::from(choice)) >> 32;
                let holder = &mut holders[((skew * items as u64) >> 32) as usize];
                seqno += step;
                prop_assert!(order.reserve(seqno, &tenant, &mut cache));
                order.push(seqno, location, &tenant, &mut cache);
                model.insert(seqno, location);
                if let Some(old) = holder.replace(seqno) {
                    order.retire(old, &tenant, &mut cache);
                    model.remove(&old);
                }
            }
            let mut seen = Vec::new();
            order.iterate(|seqno, at| seen.push((seqno, at)));
            prop_assert_eq!(&seen, &model.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(order.live(&tenant, &mut cache) as usize, seen.len());
            let (mut after, mut walked) = (seqno / 3, Vec::new());
            loop {
                let slots = order.next(after, &tenant, &mut cache);
                let Some((last, _)) = slots.last() else { break };
                after = *last;
                walked.extend(slots);
            }
            seen.retain(|(at, _)| *at > seqno / 3);
            prop_assert_eq!(&walked, &seen);
            for third in 1..3 {
                let floor = seqno / 3 * third;
                let left = seen.iter().filter(|(at, _)| *at > floor).count();
                prop_assert_eq!(order.trim(floor, &tenant, &mut cache), left == 0);
                prop_assert_eq!(order.live as usize, left);
            }
            let mut left = Vec::new();
            order.iterate(|seqno, at| left.push((seqno, at)));
            seen.retain(|(at, _)| *at > order.floor);
            prop_assert_eq!(left, seen);
            for old in holders.into_iter().flatten() {
                order.retire(old, &tenant, &mut cache);
            }
            order.drain(&tenant, &mut cache);
            prop_assert_eq!((order.live, order.dead), (0, order.chunks().map(Chunk::dead).sum::<u32>()));
            order.clear(&tenant, &mut cache);
            prop_assert_eq!(tenant.gauge(Gauge::Index), 0);
        }
    }
}
