//! The hash table of one vBucket: from a key's hash to the location of its item.
//!
//! ```text
//!   Root ──> directory │ groups n │ entry 0 │ entry 1 │ ... │        one entry per group
//!                                    │
//!   entry    items 10 │ pointer 48 (64-aligned) │ lines 6            10 + 48 + 6 bits, lines in the pointer's low bits
//!                                    v
//!   group    line 0 │ line 1 │ ... │ line L-1                        64 bytes each
//!   line     slot 0 ... slot 7
//!   slot     tag 10 │ frequency and age 8 │ location 46 (kind 1, number 45); 0 = empty
//! ```
//! * The low bits of the hash choose the group by linear hashing (group count n need not be a power of two), its top 10
//!   bits are the tag. Within a group the tag alone gives the home line, `tag * L / 1024`, so a group changes its
//!   number of lines without reading a key; only a split of a group reads the keys of its items, once per doubling.
//! * A full home line overflows into the next (cyclic). Invariant: all lines between an item's home and its own are
//!   full; so a search ends at the first line with an empty slot, and a removal pulls overflowed items back.
//! * Every group sizes itself to its items (load 0.62 to 0.875), the table splits at 36 to 43 items per group on
//!   average: the load of the whole stays near 0.8 for any number of items. An empty table has no memory.
//!
//! Everything but [`Root::prefetch_line`] and [`Root::prefetch_item`] is called under the vBucket's lock. Those two may
//! run ahead of it too, between [`memory::Quiescence::enter`] and `leave`; they read directory, entries and slots as
//! relaxed atomics, take what they see as a hint, and never dereference an item. Replaced blocks are retired, not
//! freed.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use arrayvec::ArrayVec;
use memory::{Gauge, Heap, ItemHeap, Location, Quiescence, Tenant, TenantCache, prefetch, quiescence::Stamp};
use rapidhash::v3::RapidSecrets;

use super::dirty::DirtySet;
use super::rank;
use crate::class_counters::ClassCounters;
use crate::client_memory::Share;
use crate::collections::Collections;
use crate::mailbox::Cookie;

const TAG_BITS: u32 = 10;
const RANK_BITS: u32 = 8;
const LOCATION_BITS: u32 = memory::heap::LOCATION_BITS;
const _: () = assert!(TAG_BITS + RANK_BITS + LOCATION_BITS == 64);
const RANK_SHIFT: u32 = LOCATION_BITS;
const TAG_SHIFT: u32 = RANK_SHIFT + RANK_BITS;

const LINE_SLOTS: usize = 8;
const LINE_BYTES: usize = LINE_SLOTS * 8;
const LINES_BITS: u32 = 6;
const POINTER_BITS: u32 = 48;
const ITEMS_SHIFT: u32 = POINTER_BITS;
/// Most lines of a group: beyond what an honest hash fills.
const LINES_MAX: usize = (1 << LINES_BITS) - 8;
/// Most items per line when a group is laid out: load 0.875.
const LINE_FILL: usize = 7;
/// Average items per group above which the table splits one, and below which it merges one. The threshold differs a
/// little from vBucket to vBucket: otherwise all of them, filled alike, would need the same sizes of groups at the same
/// time and leave the room of the former size empty.
const SPLIT_AT: usize = 36;
const SPLIT_SPREAD: usize = 8;
const MERGE_AT: usize = 24;

/// A block to be freed once no thread can be peeking at it any more.
pub(crate) struct Retired {
    pub(crate) stamp: Stamp,
    pub(crate) slot: usize,
    block: NonNull<u8>,
    size: usize,
}

// SAFETY: a retired block is plain memory that nobody owns any more; any thread may free it.
unsafe impl Send for Retired {}

impl Retired {
    /// Frees the block.
    ///
    /// # Safety
    /// `tenant` is the one it was allocated from, and its stamp has passed.
    pub(crate) unsafe fn free(self, tenant: &Tenant, cache: &mut TenantCache) {
        // SAFETY: by the contract; size and gauge are those of `Memory::retire`.
        unsafe { tenant.free_lines(cache, self.block, self.size, Gauge::Retired) }
    }
}

/// What all vBuckets of a bucket share.
pub(crate) struct Resources {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) heap: Heap,
    pub(crate) quiescence: Arc<Quiescence>,
    /// The bucket's place among a thread's caches.
    pub(crate) slot: usize,
    /// Secrets of the key hash.
    pub(crate) secrets: RapidSecrets,
    /// Which vBuckets have something to flush; only in a persistent bucket.
    pub(crate) dirty: Option<DirtySet>,
    /// The part of the budget that client memory takes away.
    pub(crate) share: Share,
    pub(crate) collections: Collections,
    pub(crate) vbuckets: u16,
    /// How long deletions can be looked up, in seconds; 0 in an ephemeral bucket that keeps none.
    pub(crate) tombstone_age_s: u32,
    /// Events by size class.
    pub(crate) classes: ClassCounters,
}

/// What a vBucket needs to allocate, free and retire. Passed on by every operation: kept small.
pub(crate) struct Memory<'a> {
    pub(crate) resources: &'a Resources,
    pub(crate) cache: &'a mut TenantCache,
    pub(crate) retired: &'a mut Vec<Retired>,
    /// Followers that have news and are to be told.
    pub(crate) calls: &'a mut Vec<Cookie>,
    /// The vBucket's number.
    pub(crate) owner: u16,
}

impl Memory<'_> {
    /// `words` zeroed atomics.
    fn allocate(&mut self, words: usize) -> Option<NonNull<AtomicU64>> {
        let block =
            self.resources.tenant.allocate_lines(self.cache, words * 8, Gauge::Index)?.cast::<AtomicU64>();
        for index in 0..words {
            // SAFETY: the block holds `words` words and is aligned to 16.
            unsafe { block.add(index).write(AtomicU64::new(0)) };
        }
        Some(block)
    }

    /// Frees a block that was reachable until now, once nobody peeks at it any more.
    fn retire(&mut self, block: NonNull<AtomicU64>, words: usize) {
        let (stamp, size) = (self.resources.quiescence.stamp(), words * 8);
        self.resources.tenant.retire_lines(self.cache, size);
        self.retired.push(Retired { stamp, slot: self.resources.slot, block: block.cast(), size });
    }
}

/// A slot's word.
#[derive(Clone, Copy)]
struct Slot(u64);

impl Slot {
    fn new(tag: u64, rank: u8, location: Location) -> Self {
        Self(tag << TAG_SHIFT | u64::from(rank) << RANK_SHIFT | location.bits())
    }
    #[inline]
    fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }
    #[inline]
    fn location(self) -> Option<Location> {
        Location::from_bits(self.0 & ((1 << LOCATION_BITS) - 1))
    }
    fn rank(self) -> u8 {
        (self.0 >> RANK_SHIFT) as u8
    }
    fn with_rank(self, rank: u8) -> Self {
        Self(self.0 & !(0xff << RANK_SHIFT) | u64::from(rank) << RANK_SHIFT)
    }
}

/// The slots of the fullest group.
type GroupSlots = ArrayVec<Slot, { LINES_MAX * LINE_SLOTS }>;

/// A group as its directory entry describes it.
#[derive(Clone, Copy)]
struct Group {
    slots: NonNull<AtomicU64>,
    lines: usize,
    items: usize,
}

impl Group {
    #[inline]
    fn unpack(entry: u64) -> Option<Self> {
        let address = entry & ((1 << POINTER_BITS) - 1) & !(LINE_BYTES as u64 - 1);
        let slots = NonNull::new(std::ptr::with_exposed_provenance_mut::<AtomicU64>(address as usize))?;
        let lines = (entry & ((1 << LINES_BITS) - 1)) as usize;
        Some(Self { slots, lines, items: (entry >> ITEMS_SHIFT) as usize })
    }

    fn pack(self) -> u64 {
        let address = self.slots.expose_provenance().get() as u64;
        debug_assert!(address.is_multiple_of(LINE_BYTES as u64) && address >> POINTER_BITS == 0);
        address | self.lines as u64 | (self.items as u64) << ITEMS_SHIFT
    }

    #[inline]
    fn home(self, tag: u64) -> usize {
        (tag as usize * self.lines) >> TAG_BITS
    }

    #[inline]
    fn slot(&self, index: usize) -> &AtomicU64 {
        debug_assert!(index < self.lines * LINE_SLOTS);
        // SAFETY: the group has that many slots; it is live under the lock, or peeked at within a quiescence section.
        unsafe { self.slots.add(index).as_ref() }
    }

    /// Returns a bit for each slot of a line that has the tag. Branch-free: the position of a match is unpredictable.
    #[inline]
    fn matches(&self, line: usize, tag: u64) -> u32 {
        let mut bits = 0;
        for index in 0..LINE_SLOTS {
            let slot = Slot(self.slot(line * LINE_SLOTS + index).load(Relaxed));
            bits |= u32::from(slot.tag() == tag) << index;
        }
        bits
    }

    fn next_line(self, line: usize) -> usize {
        if line + 1 == self.lines { 0 } else { line + 1 }
    }

    /// Puts a slot into the first empty place from its home line on. There is one, since the load is below 1.
    fn place(&self, slot: Slot) {
        let mut line = self.home(slot.tag());
        for _ in 0..self.lines {
            for index in line * LINE_SLOTS..(line + 1) * LINE_SLOTS {
                if self.slot(index).load(Relaxed) == 0 {
                    self.slot(index).store(slot.0, Relaxed);
                    return;
                }
            }
            line = self.next_line(line);
        }
        unreachable!("a group is laid out with room for its items");
    }

    fn line_is_full(&self, line: usize) -> bool {
        (line * LINE_SLOTS..(line + 1) * LINE_SLOTS).all(|index| self.slot(index).load(Relaxed) != 0)
    }

    /// Empties a slot and restores the invariant: whatever overflowed past its line comes back.
    fn empty(&self, index: usize) {
        let (mut hole, mut line) = (index, index / LINE_SLOTS);
        self.slot(hole).store(0, Relaxed);
        let first = line;
        let mut candidate = self.next_line(line);
        while candidate != first {
            let distance = |from: usize, to: usize| (to + self.lines - from) % self.lines;
            let moved = (candidate * LINE_SLOTS..(candidate + 1) * LINE_SLOTS).find(|&index| {
                let slot = Slot(self.slot(index).load(Relaxed));
                slot.0 != 0 && {
                    let home = self.home(slot.tag());
                    distance(home, line) < distance(home, candidate)
                }
            });
            let was_full = self.line_is_full(candidate);
            if let Some(index) = moved {
                self.slot(hole).store(self.slot(index).load(Relaxed), Relaxed);
                self.slot(index).store(0, Relaxed);
                (hole, line) = (index, candidate);
            }
            if !was_full {
                return;
            }
            candidate = self.next_line(candidate);
        }
    }
}

/// Lines for a group of `items`: the fewest at or below the fill.
fn lines_for(items: usize) -> usize {
    items.div_ceil(LINE_FILL).max(1)
}

/// The slot of a found item. Valid until the table changes.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    group: usize,
    index: usize,
    pub(crate) location: Location,
}

/// A position in a walk over the table; starts at [`Hand::default`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hand {
    group: usize,
}

impl Hand {
    /// The group of this number. Behind the last one a walk ends.
    pub fn at(group: u64) -> Self {
        Self { group: group as usize }
    }
}

/// The directory: word 0 is the number of groups, the rest are entries.
#[derive(Clone, Copy)]
struct Directory(NonNull<AtomicU64>);

impl Directory {
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: callers stay within the words the directory was allocated with; it is live under the lock, or peeked
        // at within a quiescence section.
        unsafe { self.0.add(index).as_ref() }
    }
    #[inline]
    fn groups(&self) -> usize {
        self.word(0).load(Acquire) as usize
    }
    /// Returns an entry that was within the directory when its number of groups was read: a peeking thread may find it
    /// merged away.
    #[inline]
    fn group(&self, index: usize) -> Option<Group> {
        Group::unpack(self.word(1 + index).load(Acquire))
    }
    fn set_group(&self, index: usize, group: Option<Group>) {
        self.word(1 + index).store(group.map_or(0, Group::pack), Release);
    }
}

/// Returns the group of a hash in a table of so many groups.
#[inline]
pub(super) fn group_of(hash: u64, groups: usize) -> usize {
    let mask = groups.next_power_of_two() - 1;
    let index = hash as usize & mask;
    if index < groups { index } else { index & (mask >> 1) }
}

#[inline]
fn tag_of(hash: u64) -> u64 {
    hash >> (64 - TAG_BITS)
}

/// Words of a directory with room for at least `groups` entries: fills an allocator size.
fn directory_words(groups: usize) -> usize {
    memory::size_class(((groups + 1) * 8).max(64)) / 8
}

/// The table's root: the pointer to the directory, from which everything else is reached.
#[derive(Default)]
pub(crate) struct Root(AtomicU64);

/// The part of the table that only the lock's holder sees.
#[derive(Default)]
pub(crate) struct TableState {
    pub(crate) items: u32,
    directory_words: u32,
}

impl Root {
    #[inline]
    fn directory(&self) -> Option<Directory> {
        let address = self.0.load(Acquire) as usize;
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).map(Directory)
    }

    fn set_directory(&self, directory: Option<Directory>) {
        self.0.store(directory.map_or(0, |d| d.0.expose_provenance().get() as u64), Release);
    }

    #[inline]
    fn peek(&self, hash: u64) -> Option<Group> {
        let directory = self.directory()?;
        directory.group(group_of(hash, directory.groups()))
    }

    /// Starts loading the directory's first line.
    #[inline]
    pub(crate) fn prefetch_directory(&self) {
        if let Some(directory) = self.directory() {
            prefetch(directory.0.as_ptr());
        }
    }

    /// Starts loading the index line of this hash. Allowed within a quiescence section.
    #[inline]
    pub(crate) fn prefetch_line(&self, hash: u64) {
        if let Some(group) = self.peek(hash) {
            prefetch(group.slot(group.home(tag_of(hash)) * LINE_SLOTS));
        }
    }

    /// Starts loading the items the index line names for this hash, `bytes` of each. Allowed within a quiescence
    /// section.
    #[inline]
    pub(crate) fn prefetch_item(&self, heap: &Heap, hash: u64, bytes: usize) {
        let Some(group) = self.peek(hash) else { return };
        let tag = tag_of(hash);
        let home = group.home(tag);
        let mut matches = group.matches(home, tag);
        while matches != 0 {
            let index = home * LINE_SLOTS + matches.trailing_zeros() as usize;
            matches &= matches - 1;
            if let Some(location) = Slot(group.slot(index).load(Relaxed)).location() {
                let item = heap.address(location).as_ptr();
                // The same number of steps for every item of a size, wherever it begins in its first line.
                for line in 0..bytes.div_ceil(LINE_BYTES) {
                    prefetch(item.wrapping_add(line * LINE_BYTES));
                }
                prefetch(item.wrapping_add(bytes.saturating_sub(1)));
            }
        }
    }

    /// Finds the item of this hash for which `is` holds.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, mut is: impl FnMut(Location) -> bool) -> Option<Found> {
        let directory = self.directory()?;
        let at = group_of(hash, directory.groups());
        let group = directory.group(at)?;
        let tag = tag_of(hash);
        let mut line = group.home(tag);
        for _ in 0..group.lines {
            let mut matches = group.matches(line, tag);
            while matches != 0 {
                let index = line * LINE_SLOTS + matches.trailing_zeros() as usize;
                matches &= matches - 1;
                if let Some(location) = Slot(group.slot(index).load(Relaxed)).location()
                    && is(location)
                {
                    return Some(Found { group: at, index, location });
                }
            }
            if !group.line_is_full(line) {
                return None;
            }
            line = group.next_line(line);
        }
        None
    }

    fn found_group(&self, found: &Found) -> (Directory, Group) {
        let directory = self.directory().filter(|d| found.group < d.groups());
        let directory = directory.unwrap_or_else(|| unreachable!("found in a table that is gone"));
        let group =
            directory.group(found.group).unwrap_or_else(|| unreachable!("found in a group that is gone"));
        (directory, group)
    }

    /// Notes that a found item was accessed; writes only if that changes something.
    #[inline]
    pub(crate) fn record_access(&self, found: &Found) {
        let (_, group) = self.found_group(found);
        let slot = group.slot(found.index);
        let old = Slot(slot.load(Relaxed));
        let new = old.with_rank(rank::accessed(old.rank()));
        if new.0 != old.0 {
            slot.store(new.0, Relaxed);
        }
    }

    /// Returns frequency and age of a found item.
    pub(crate) fn rank(&self, found: &Found) -> u8 {
        let (_, group) = self.found_group(found);
        Slot(group.slot(found.index).load(Relaxed)).rank()
    }

    /// Sets frequency and age of a found item.
    pub(crate) fn set_rank(&self, found: &Found, rank: u8) {
        let (_, group) = self.found_group(found);
        let slot = group.slot(found.index);
        slot.store(Slot(slot.load(Relaxed)).with_rank(rank).0, Relaxed);
    }

    /// Points a found item's slot to its new location.
    pub(crate) fn relocate(&self, found: &mut Found, location: Location) {
        let (_, group) = self.found_group(found);
        let slot = group.slot(found.index);
        let old = Slot(slot.load(Relaxed));
        slot.store(Slot::new(old.tag(), old.rank(), location).0, Relaxed);
        found.location = location;
    }

    /// Makes sure that one more item of this hash finds room. Returns false if there is no memory. `hash_of` returns
    /// the hash of an item in the table.
    pub(crate) fn reserve(
        &self,
        state: &mut TableState,
        memory: &mut Memory<'_>,
        hash: u64,
        mut hash_of: impl FnMut(Location) -> u64,
    ) -> bool {
        let directory = match self.directory() {
            Some(directory) => directory,
            None => match self.make_directory(state, memory) {
                Some(directory) => directory,
                None => return false,
            },
        };
        if state.items as usize >= (SPLIT_AT + usize::from(memory.owner) % SPLIT_SPREAD) * directory.groups()
        {
            // A table that finds no memory to split continues with fuller groups.
            self.split(state, memory, &mut hash_of);
        }
        let Some(directory) = self.directory() else { return false };
        let at = group_of(hash, directory.groups());
        let group = directory.group(at);
        let (items, lines) = group.map_or((0, 0), |group| (group.items, group.lines));
        if items < lines * LINE_FILL {
            return true;
        }
        let wanted = lines_for(items + 1);
        if wanted > LINES_MAX || !relayout(directory, at, group, wanted, memory) {
            return items < lines * LINE_SLOTS - 1;
        }
        true
    }

    /// Adds an item for which [`Root::reserve`] made room.
    pub(crate) fn insert(&self, state: &mut TableState, hash: u64, rank: u8, location: Location) {
        let Some(directory) = self.directory() else { unreachable!("insert without reserve") };
        let at = group_of(hash, directory.groups());
        let Some(mut group) = directory.group(at) else { unreachable!("insert without reserve") };
        group.place(Slot::new(tag_of(hash), rank, location));
        group.items += 1;
        directory.set_group(at, Some(group));
        state.items += 1;
    }

    /// Removes a found item's slot and frees what the table no longer needs.
    pub(crate) fn remove(&self, state: &mut TableState, memory: &mut Memory<'_>, found: &Found) {
        let (directory, mut group) = self.found_group(found);
        group.empty(found.index);
        group.items -= 1;
        state.items -= 1;
        directory.set_group(found.group, Some(group));
        if state.items == 0 {
            self.clear(state, memory);
            return;
        }
        let wanted = lines_for(group.items + group.items / 4 + 2);
        if group.items == 0 {
            directory.set_group(found.group, None);
            memory.retire(group.slots, group.lines * LINE_SLOTS);
        } else if wanted < group.lines {
            relayout(directory, found.group, Some(group), wanted, memory);
        }
        if directory.groups() > 1 && (state.items as usize) < MERGE_AT * directory.groups() {
            self.merge(state, memory);
        }
    }

    fn make_directory(&self, state: &mut TableState, memory: &mut Memory<'_>) -> Option<Directory> {
        let words = directory_words(1);
        let directory = Directory(memory.allocate(words)?);
        directory.word(0).store(1, Release);
        state.directory_words = u32::try_from(words).ok()?;
        self.set_directory(Some(directory));
        Some(directory)
    }

    /// Frees all memory and forgets all items.
    pub(crate) fn clear(&self, state: &mut TableState, memory: &mut Memory<'_>) {
        let Some(directory) = self.directory() else { return };
        self.set_directory(None);
        for at in 0..directory.groups() {
            if let Some(group) = directory.group(at) {
                memory.retire(group.slots, group.lines * LINE_SLOTS);
            }
        }
        memory.retire(directory.0, state.directory_words as usize);
        state.directory_words = 0;
    }

    /// Moves the directory to one of `words` words. Returns false if there is no memory.
    fn resize_directory(&self, state: &mut TableState, memory: &mut Memory<'_>, words: usize) -> bool {
        let Some(old) = self.directory() else { return false };
        let (Some(block), Ok(new_words)) = (memory.allocate(words), u32::try_from(words)) else {
            return false;
        };
        let new = Directory(block);
        for index in 0..=old.groups() {
            new.word(index).store(old.word(index).load(Relaxed), Relaxed);
        }
        self.set_directory(Some(new));
        memory.retire(old.0, state.directory_words as usize);
        state.directory_words = new_words;
        true
    }

    /// Splits the next group in linear order into itself and a new last one.
    fn split(
        &self,
        state: &mut TableState,
        memory: &mut Memory<'_>,
        hash_of: &mut impl FnMut(Location) -> u64,
    ) -> Option<()> {
        let groups = self.directory()?.groups();
        if groups + 2 > state.directory_words as usize
            && !self.resize_directory(state, memory, directory_words(groups + 1 + groups / 4))
        {
            return None;
        }
        let directory = self.directory()?;
        let bit = (groups + 1).next_power_of_two() >> 1;
        let source = groups - bit;
        let Some(group) = directory.group(source) else {
            directory.set_group(groups, None);
            directory.word(0).store(groups as u64 + 1, Release);
            return Some(());
        };
        for index in 0..group.lines * LINE_SLOTS {
            if let Some(location) = Slot(group.slot(index).load(Relaxed)).location() {
                prefetch(memory.resources.heap.address(location).as_ptr());
            }
        }
        let (mut staying, mut leaving) = (GroupSlots::new(), GroupSlots::new());
        for index in 0..group.lines * LINE_SLOTS {
            let slot = Slot(group.slot(index).load(Relaxed));
            if let Some(location) = slot.location() {
                let side = if hash_of(location) as usize & bit == 0 { &mut staying } else { &mut leaving };
                side.push(slot);
            }
        }
        let (stay, leave) = (new_group(memory, &staying)?, new_group(memory, &leaving)?);
        directory.set_group(groups, leave);
        directory.word(0).store(groups as u64 + 1, Release);
        directory.set_group(source, stay);
        memory.retire(group.slots, group.lines * LINE_SLOTS);
        Some(())
    }

    /// Merges the last group into the one it was split from.
    fn merge(&self, state: &mut TableState, memory: &mut Memory<'_>) -> Option<()> {
        let directory = self.directory()?;
        let last = directory.groups() - 1;
        let target = last - (directory.groups().next_power_of_two() >> 1);
        let (from, into) = (directory.group(last), directory.group(target));
        let merged: ArrayVec<Slot, { 2 * LINES_MAX * LINE_SLOTS }> = [from, into]
            .iter()
            .flatten()
            .flat_map(|group| {
                (0..group.lines * LINE_SLOTS).map(|index| Slot(group.slot(index).load(Relaxed)))
            })
            .filter(|slot| slot.0 != 0)
            .collect();
        if lines_for(merged.len()) > LINES_MAX {
            return None;
        }
        let group = new_group(memory, &merged)?;
        directory.set_group(target, group);
        directory.word(0).store(last as u64, Release);
        for old in [from, into].into_iter().flatten() {
            memory.retire(old.slots, old.lines * LINE_SLOTS);
        }
        let words = directory_words(last + last / 4);
        if words * 2 < state.directory_words as usize {
            self.resize_directory(state, memory, words);
        }
        Some(())
    }

    /// Number of groups, at least one.
    pub(crate) fn groups(&self) -> u64 {
        self.directory().map_or(1, |directory| directory.groups()).max(1) as u64
    }

    /// Returns the position of the group that this number selects.
    pub(crate) fn hand_at(&self, number: u64) -> Hand {
        Hand { group: (number % self.groups()) as usize }
    }

    /// Walks the table: calls `visit` for each item of the next group and returns the hand's next position, `None` at
    /// the end. Items that are inserted or moved between calls may be visited twice or not at all.
    pub(crate) fn walk(&self, hand: Hand, mut visit: impl FnMut(Found, u8)) -> Option<Hand> {
        let directory = self.directory()?;
        if let Some(group) = (hand.group < directory.groups()).then(|| directory.group(hand.group)).flatten()
        {
            for index in 0..group.lines * LINE_SLOTS {
                let slot = Slot(group.slot(index).load(Relaxed));
                if let Some(location) = slot.location() {
                    visit(Found { group: hand.group, index, location }, slot.rank());
                }
            }
        }
        let next = hand.group + 1;
        (next < directory.groups()).then_some(Hand { group: next })
    }

    /// Visits the items of what was group `part` when there were `parts` groups: each item belongs to one part,
    /// whatever is split and merged meanwhile.
    pub(crate) fn walk_part(
        &self,
        (part, parts): (usize, usize),
        hash_of: impl Fn(Location) -> u64,
        mut visit: impl FnMut(Location),
    ) {
        let Some(directory) = self.directory() else { return };
        let groups = directory.groups();
        let mut visit_group = |number: usize| {
            let Some(group) = directory.group(number) else { return };
            for index in 0..group.lines * LINE_SLOTS {
                if let Some(location) = Slot(group.slot(index).load(Relaxed)).location()
                    && (groups >= parts || group_of(hash_of(location), parts) == part)
                {
                    visit(location);
                }
            }
        };
        if groups < parts {
            return visit_group(group_of(part as u64, groups));
        }
        // What was split from it since differs in higher bits of its number.
        let step = (parts.next_power_of_two() / 2).max(1);
        let of_part = |group: &usize| group_of(*group as u64, parts) == part;
        (part..groups).step_by(step).filter(of_part).for_each(&mut visit_group);
    }

    /// Moves the block of a group, and with the first group also the directory's, if `is_sparse` returns true for the
    /// block and its size in bytes. Returns how many bytes were moved.
    pub(crate) fn move_blocks(
        &self,
        state: &mut TableState,
        memory: &mut Memory<'_>,
        hand: Hand,
        is_sparse: impl Fn(NonNull<u8>, usize) -> bool,
    ) -> usize {
        let mut moved = 0;
        let Some(directory) = self.directory() else { return moved };
        if hand.group < directory.groups()
            && let Some(group) = directory.group(hand.group)
            && is_sparse(group.slots.cast(), group.lines * LINE_BYTES)
            && relayout(directory, hand.group, Some(group), group.lines, memory)
        {
            moved += group.lines * LINE_BYTES;
        }
        let directory_bytes = state.directory_words as usize * 8;
        if hand.group == 0
            && is_sparse(directory.0.cast(), directory_bytes)
            && self.resize_directory(state, memory, state.directory_words as usize)
        {
            moved += directory_bytes;
        }
        moved
    }

    /// Returns the bytes of its blocks, as the accounts count them.
    pub(crate) fn allocated_bytes(&self, state: &TableState) -> u64 {
        let Some(directory) = self.directory() else { return 0 };
        let groups = (0..directory.groups()).filter_map(|at| directory.group(at));
        let groups: usize = groups.map(|group| memory::line_footprint(group.lines * LINE_BYTES)).sum();
        (groups + memory::line_footprint(state.directory_words as usize * 8)) as u64
    }

    /// Calls `visit` for each item that may have the hash of which `part` keeps the tag and the low bits.
    pub(crate) fn matching(&self, part: HashPart, mut visit: impl FnMut(Found)) {
        let Some(directory) = self.directory() else { return };
        let groups = directory.groups();
        let (tag, low) =
            (u64::from(part.0 >> HashPart::LOW_BITS), u64::from(part.0 & ((1 << HashPart::LOW_BITS) - 1)));
        let step = 1 << HashPart::LOW_BITS;
        for whole in (low..(groups.next_power_of_two() as u64).max(low + 1)).step_by(step) {
            let at = group_of(whole, groups);
            let Some(group) = directory.group(at) else { continue };
            for index in 0..group.lines * LINE_SLOTS {
                let slot = Slot(group.slot(index).load(Relaxed));
                if slot.tag() == tag
                    && let Some(location) = slot.location()
                {
                    visit(Found { group: at, index, location });
                }
            }
        }
    }
}

/// 32 bits of a hash, enough to find its group and tag again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HashPart(pub(crate) u32);

impl HashPart {
    const LOW_BITS: u32 = 32 - TAG_BITS;

    /// The part of a hash.
    pub(crate) fn of(hash: u64) -> Self {
        Self((tag_of(hash) as u32) << Self::LOW_BITS | (hash as u32) & ((1 << Self::LOW_BITS) - 1))
    }
}

/// Lays a group out again with `lines` lines. Returns false if there is no memory.
fn relayout(
    directory: Directory,
    at: usize,
    old: Option<Group>,
    lines: usize,
    memory: &mut Memory<'_>,
) -> bool {
    let Some(slots) = memory.allocate(lines * LINE_SLOTS) else { return false };
    let group = Group { slots, lines, items: old.map_or(0, |old| old.items) };
    if let Some(old) = old {
        for index in 0..old.lines * LINE_SLOTS {
            let slot = Slot(old.slot(index).load(Relaxed));
            if slot.0 != 0 {
                group.place(slot);
            }
        }
    }
    directory.set_group(at, Some(group));
    if let Some(old) = old {
        memory.retire(old.slots, old.lines * LINE_SLOTS);
    }
    true
}

/// Lays out a group of these slots, or none if there are none. The outer `None`: no memory.
fn new_group(memory: &mut Memory<'_>, slots: &[Slot]) -> Option<Option<Group>> {
    if slots.is_empty() {
        return Some(None);
    }
    let lines = lines_for(slots.len()).min(LINES_MAX);
    let group = Group { slots: memory.allocate(lines * LINE_SLOTS)?, lines, items: slots.len() };
    for slot in slots {
        group.place(*slot);
    }
    Some(Some(group))
}
