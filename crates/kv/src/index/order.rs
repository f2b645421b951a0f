//! Items in the order of their sequence numbers, one per vBucket.
//!
//! ```text
//!   chunk   base seqno 48 | live | slots ...                     grows with the vBucket, 8 to 512 slots
//!   slot    seqno - base 19 | location 45 (kind 1, number 44)    location 0: superseded
//! ```
//! An ephemeral bucket keeps a slot for every item; a persistent one only for unflushed items, which makes this its dirty
//! list. Slots are appended (seqnos only rise), cleared when their item is overwritten or removed, and rewritten when
//! it moves. Clearing is put off: superseded seqnos collect in `retired` and are cleared sixteen at a time, so that their
//! cache misses overlap. Every reader drains `retired` first; to everybody outside this file a stale slot does not exist.
//!
//! When a third of the slots is superseded, runs of chunks are rewritten densely, a bounded number at a time.

use memory::{Location, Tenant, TenantCache, TenantVec};

const LOCATION_BITS: u32 = memory::heap::LOCATION_BITS;
const DELTA_BITS: u32 = 64 - LOCATION_BITS;
const DELTA_MAX: u64 = (1 << DELTA_BITS) - 1;
const _: () = assert!(DELTA_BITS == 19);

const CHUNK_LEAST: usize = 8;
const CHUNK_MOST: usize = 512;
const RETIRE_AT: usize = 16;
/// Chunks rewritten at a time.
const COMPACT_CHUNKS: usize = 64;

#[derive(Default)]
struct Chunk {
    base: u64,
    live: u32,
    slots: TenantVec<u64>,
}

/// The order. It has no destructor: [`SeqnoOrder::clear`] it, or let the tenant's arena go.
#[derive(Default)]
pub(crate) struct SeqnoOrder {
    chunks: TenantVec<Chunk>,
    retired: TenantVec<u64>,
    live: u32,
    dead: u32,
    /// The chunk at which the next compaction starts.
    hand: u32,
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

impl Chunk {
    /// Index of the slot of this seqno.
    fn find(&self, seqno: u64) -> Option<usize> {
        let slots = self.slots.as_slice();
        let delta = seqno.checked_sub(self.base)?;
        let span = delta_of(*slots.last()?) + 1;
        // Seqnos lie about evenly in a chunk: guess, then walk the few slots to the right one.
        let mut at = (delta * slots.len() as u64 / span).min(slots.len() as u64 - 1) as usize;
        while let Some(slot) = slots.get(at) {
            match delta_of(*slot).cmp(&delta) {
                std::cmp::Ordering::Equal => return Some(at),
                std::cmp::Ordering::Less => {
                    at += 1;
                    if slots.get(at).is_none_or(|next| delta_of(*next) > delta) {
                        return None;
                    }
                }
                std::cmp::Ordering::Greater => {
                    at = at.checked_sub(1)?;
                    if slots.get(at).is_none_or(|next| delta_of(*next) < delta) {
                        return None;
                    }
                }
            }
        }
        None
    }
}

impl SeqnoOrder {
    /// Makes sure that [`SeqnoOrder::push`] finds room; `false` when there is no memory.
    pub(crate) fn reserve(&mut self, seqno: u64, tenant: &Tenant, cache: &mut TenantCache) -> bool {
        if let Some(last) = self.chunks.as_slice().last()
            && last.slots.as_slice().len() < last.slots.capacity()
            && seqno - last.base <= DELTA_MAX
        {
            return true;
        }
        let room = (self.live as usize / 8).clamp(CHUNK_LEAST, CHUNK_MOST);
        let room = if room.is_power_of_two() { room } else { room.next_power_of_two() / 2 };
        let mut slots = TenantVec::new();
        if !self.chunks.reserve(tenant, cache) || !slots.resize(tenant, cache, room) {
            return false;
        }
        self.chunks.push(tenant, cache, Chunk { base: seqno, live: 0, slots })
    }

    /// Appends an item; `reserve` was called for this seqno, which is higher than any before.
    pub(crate) fn push(&mut self, seqno: u64, location: Location, tenant: &Tenant, cache: &mut TenantCache) {
        let Some(last) = self.chunks.as_mut_slice().last_mut() else { unreachable!("push without reserve") };
        debug_assert!(last.slots.as_slice().last().is_none_or(|slot| last.base + delta_of(*slot) < seqno));
        let pushed = last.slots.push(tenant, cache, pack(seqno - last.base, location.bits()));
        debug_assert!(pushed, "reserve made room");
        last.live += 1;
        self.live += 1;
    }

    /// The item of this seqno is gone or has a newer one.
    pub(crate) fn retire(&mut self, seqno: u64, tenant: &Tenant, cache: &mut TenantCache) {
        if self.retired.as_slice().len() >= RETIRE_AT {
            self.drain(tenant, cache);
        }
        if !self.retired.push(tenant, cache, seqno) {
            self.clear_slot(seqno);
        }
    }

    /// The item of this seqno lies elsewhere now.
    pub(crate) fn relocate(&mut self, seqno: u64, location: Location) {
        if let Some((chunk, at)) = self.find(seqno)
            && let Some(slot) = self.chunks.as_mut_slice().get_mut(chunk).and_then(|c| c.slots.as_mut_slice().get_mut(at))
        {
            *slot = pack(delta_of(*slot), location.bits());
        }
    }

    /// The locations of the oldest items with a seqno up to `seqno`, as many as `oldest` takes.
    pub(crate) fn oldest<const N: usize>(
        &mut self,
        seqno: u64,
        tenant: &Tenant,
        cache: &mut TenantCache,
        oldest: &mut arrayvec::ArrayVec<Location, N>,
    ) {
        self.drain(tenant, cache);
        for chunk in self.chunks.as_slice().iter().take_while(|chunk| chunk.base <= seqno) {
            for slot in chunk.slots.as_slice().iter().take_while(|slot| chunk.base + delta_of(**slot) <= seqno) {
                if let Some(location) = location_of(*slot)
                    && oldest.try_push(location).is_err()
                {
                    return;
                }
            }
        }
    }

    /// All items in seqno order.
    #[cfg(test)]
    pub(crate) fn iterate(&mut self, tenant: &Tenant, cache: &mut TenantCache, mut f: impl FnMut(u64, Location)) {
        self.drain(tenant, cache);
        for chunk in self.chunks.as_slice() {
            for slot in chunk.slots.as_slice() {
                if let Some(location) = location_of(*slot) {
                    f(chunk.base + delta_of(*slot), location);
                }
            }
        }
    }

    /// Gives all memory back.
    pub(crate) fn clear(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        for chunk in self.chunks.as_mut_slice() {
            chunk.slots.clear(tenant, cache);
        }
        self.chunks.clear(tenant, cache);
        self.retired.clear(tenant, cache);
        (self.live, self.dead, self.hand) = (0, 0, 0);
    }

    fn find(&self, seqno: u64) -> Option<(usize, usize)> {
        let chunks = self.chunks.as_slice();
        let at = chunks.partition_point(|chunk| chunk.base <= seqno).checked_sub(1)?;
        Some((at, chunks.get(at)?.find(seqno)?))
    }

    fn drain(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        for index in 0..self.retired.as_slice().len() {
            let seqno = self.retired.as_slice()[index];
            self.clear_slot(seqno);
        }
        self.retired.truncate(0);
        if self.live == 0 {
            self.clear(tenant, cache);
        } else if self.dead > self.live / 2 + CHUNK_LEAST as u32 {
            self.compact(tenant, cache);
        }
    }

    fn clear_slot(&mut self, seqno: u64) {
        let Some((at, index)) = self.find(seqno) else {
            debug_assert!(false, "seqno {seqno} has no slot");
            return;
        };
        let chunk = &mut self.chunks.as_mut_slice()[at];
        let slot = &mut chunk.slots.as_mut_slice()[index];
        debug_assert!(location_of(*slot).is_some(), "seqno {seqno} cleared twice");
        *slot = pack(delta_of(*slot), 0);
        chunk.live -= 1;
        self.live -= 1;
        self.dead += 1;
    }

    /// Rewrites up to [`COMPACT_CHUNKS`] chunks densely. The last chunk, which is being filled, stays as it is.
    fn compact(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        let sealed = self.chunks.as_slice().len().saturating_sub(1);
        let first = if (self.hand as usize) < sealed { self.hand as usize } else { 0 };
        let end = (first + COMPACT_CHUNKS).min(sealed);
        let room = (self.live as usize / 8).clamp(CHUNK_LEAST, CHUNK_MOST).next_power_of_two();
        let mut kept = first;
        let mut target: Option<Chunk> = None;
        for at in first..end {
            let mut source = std::mem::take(&mut self.chunks.as_mut_slice()[at]);
            let (len, capacity) = (source.slots.as_slice().len(), source.slots.capacity());
            let is_dense = source.live as usize == len && len >= room / 2;
            // A source opens at most one new target, and every target can hold a whole source: so there are never more
            // chunks written than read. Without memory for a target the source stays as it is.
            let mut spare = TenantVec::new();
            if is_dense || !spare.resize(tenant, cache, room.max(capacity)) {
                self.keep(&mut kept, target.replace(source));
                self.keep(&mut kept, target.take());
                continue;
            }
            self.dead -= len as u32 - source.live;
            for slot in source.slots.as_slice() {
                let Some(location) = location_of(*slot) else { continue };
                let seqno = source.base + delta_of(*slot);
                let fits = target.as_ref().is_some_and(|chunk| {
                    chunk.slots.as_slice().len() < chunk.slots.capacity() && seqno - chunk.base <= DELTA_MAX
                });
                if !fits {
                    let full = target.replace(Chunk { base: seqno, live: 0, slots: std::mem::take(&mut spare) });
                    self.keep(&mut kept, full);
                }
                if let Some(chunk) = &mut target {
                    let pushed = chunk.slots.push(tenant, cache, pack(seqno - chunk.base, location.bits()));
                    debug_assert!(pushed, "there is room");
                    chunk.live += 1;
                }
            }
            source.slots.clear(tenant, cache);
            spare.clear(tenant, cache);
        }
        self.keep(&mut kept, target);
        self.hand = u32::try_from(kept).unwrap_or(0);
        for at in (kept..end).rev() {
            self.chunks.remove(at);
        }
    }

    fn keep(&mut self, kept: &mut usize, chunk: Option<Chunk>) {
        if let Some(chunk) = chunk {
            self.chunks.as_mut_slice()[*kept] = chunk;
            *kept += 1;
        }
    }
}
