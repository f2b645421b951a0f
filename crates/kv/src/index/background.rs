//! Background work on a vBucket under its lock, in slices: frees expired and flushed items, evicts rarely used ones or
//! ejects their values, and frees everything when its bucket ends.

use memory::{ItemHeap, Location, prefetch};

use super::Evicted;
use super::item::{ItemPtr, Kind, collection_of, collection_prefix, key_of, mark};
use super::lock;
use super::rank::{self, Census};
use super::relocate::Moved;
use super::table::{Found, Hand, HashPart};
use super::vbucket::{Dead, Locked, Present, SLICE_ITEMS};
use crate::class_counters::ClassCounter;
use crate::{Document, Key};

/// Bits of the time of the last access.
const ACCESSED_MASK: u32 = 0xf_ffff;
/// Most items of a group.
const GROUP_ITEMS: usize = 8 * 64;

/// The result of a visit by the evicting hand.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) freed_bytes: u64,
    /// Living items that were evicted, or their values ejected.
    pub(crate) evicted: u64,
    /// Those of them that nobody had read.
    pub(crate) unfetched: u64,
    /// Items that may be evicted, now or later.
    pub(crate) candidates: usize,
    /// Where the hand continues; `None` at the end of the vBucket.
    pub(crate) next: Option<Hand>,
}

/// What has expired and cannot go yet is tried again after this time.
const AGAIN_S: u32 = 8;
/// What has expired of a copy is looked at again after this time, if its active has not told of it.
const LATER_S: u32 = 600;

impl Locked<'_> {
    /// Frees what has expired, up to a slice. Returns how many items were freed, how many of them nobody had read, and
    /// whether more is due.
    pub(crate) fn reclaim_expired(&mut self, taken: &mut Vec<HashPart>) -> (usize, usize, bool) {
        taken.clear();
        let now_s = self.now.unix_s;
        if self.state.expiry_due_s().is_none_or(|due_s| due_s > now_s) {
            return (0, 0, false);
        }
        self.drop_old_ends();
        let Some(rare) = &mut self.state.rare else { return (0, 0, false) };
        rare.wheel.take_due(now_s, SLICE_ITEMS, &self.memory.resources.tenant, self.memory.cache, taken);
        let (mut freed, mut unfetched) = (0, 0);
        // Of a copy another node decides; and the wheel must not grow.
        let decides = !self.is_inactive();
        for part in taken.iter() {
            let mut candidates = arrayvec::ArrayVec::<Found, 16>::new();
            self.root.matching(*part, |found| {
                let _ = candidates.try_push(found);
            });
            for found in candidates {
                let item = self.item(found.location);
                let hash = self.hash_of(found.location);
                // SAFETY: the item is in the table and the lock is held.
                let (expiry, kind) = unsafe { (item.expiry(), item.kind()) };
                if HashPart::of(hash) != *part || expiry == 0 || kind == Kind::Tombstone {
                    continue;
                }
                // A shadow is deleted, and goes when it expires.
                let dead = self.death(item).filter(|dead| *dead != Dead::Deleted);
                let is_unfetched = self.is_unfetched(item);
                // SAFETY: the item is in the table and the lock is held.
                let size = unsafe { item.header() }.item_size();
                if let Some(dead) = dead.filter(|_| decides)
                    && self.let_go(Present { found, item }, dead)
                {
                    freed += 1;
                    unfetched += usize::from(is_unfetched);
                    self.count_in_class(size, ClassCounter::Reclaimed, 1);
                    self.count_in_class(size, ClassCounter::ExpiredUnfetched, u64::from(is_unfetched));
                    // A removal may move neighbouring slots; an entry of the same hash part comes again.
                    break;
                }
                // If it could not be freed (a prepare waits for the key), it is tried again.
                let expiry = match dead {
                    Some(_) if decides => now_s.saturating_add(AGAIN_S),
                    Some(_) => now_s.saturating_add(LATER_S),
                    None => expiry,
                };
                let Some(rare) = &mut self.state.rare else { break };
                let _ =
                    rare.wheel.enter(*part, expiry, now_s, &self.memory.resources.tenant, self.memory.cache);
            }
        }
        let more = self.state.expiry_due_s().is_some_and(|due_s| due_s <= now_s);
        (freed, unfetched, more)
    }

    /// Frees the flushed items of one group of the table. Returns how many, and the next hand.
    ///
    /// Groups split and merge meanwhile, so a walk may miss some: walk again until one finds none.
    pub(crate) fn reclaim_flushed(&mut self, hand: Hand) -> (usize, Option<Hand>) {
        self.forget_deletions(false);
        let mut dead = arrayvec::ArrayVec::<Location, GROUP_ITEMS>::new();
        let this = &*self;
        let next = this.root.walk(hand, |found, _| {
            if this.death(this.item(found.location)) == Some(Dead::Flushed) {
                dead.push(found.location);
            }
        });
        for location in &dead {
            self.remove_at(*location);
        }
        (dead.len(), if self.state.table.items == 0 { None } else { next })
    }

    /// Frees the items of dropped collections in one group of the table; see [`Locked::reclaim_flushed`].
    pub(crate) fn reclaim_dropped(&mut self, hand: Hand) -> (usize, Option<Hand>) {
        let mut dead = arrayvec::ArrayVec::<Location, GROUP_ITEMS>::new();
        let this = &*self;
        let next = this.root.walk(hand, |found, _| {
            // SAFETY: the item is in the table and the lock is held.
            if this.is_dropped(unsafe { this.item(found.location).stored_key() }) {
                dead.push(found.location);
            }
        });
        for location in &dead {
            self.remove_at(*location);
        }
        (dead.len(), if self.state.table.items == 0 { None } else { next })
    }

    /// Visits one group of the table with the evicting hand. Frees the dead, and evicts the living items that are worth
    /// least (in a persistent bucket: ejects their values, once they are on disk), except those that are new or were
    /// accessed since the last visit. Records evicted items in `gone`.
    pub(crate) fn sweep(
        &mut self,
        hand: Hand,
        census: &mut Census,
        mut gone: Option<&mut Vec<Evicted>>,
    ) -> Swept {
        if !self.is_persistent() && self.is_inactive() {
            // What is evicted is deleted, which is not for a copy to decide.
            return Swept::default();
        }
        let mut met = arrayvec::ArrayVec::<(Found, u8), GROUP_ITEMS>::new();
        let next = self.root.walk(hand, |found, rank| met.push((found, rank)));
        for (found, _) in &met {
            prefetch(self.item(found.location).0.as_ptr());
        }
        let persistent = self.is_persistent();
        let (mut dead, mut living) = (
            arrayvec::ArrayVec::<(Location, Dead), GROUP_ITEMS>::new(),
            arrayvec::ArrayVec::<(Location, u8), GROUP_ITEMS>::new(),
        );
        for (found, rank) in met {
            let item = self.item(found.location);
            let death = self.death(item);
            // A shadow is deleted and stays. Where documents may be evicted, it may be, too.
            // SAFETY: the item is in the table and the lock is held.
            let is_shadow =
                !persistent && unsafe { item.kind() } == Kind::Shadow && death == Some(Dead::Deleted);
            if let Some(why) =
                death.filter(|why| *why == Dead::Flushed || *why == Dead::Expired && !persistent)
            {
                dead.push((found.location, why));
                continue;
            }
            let visited = rank::visited(rank);
            self.root.set_rank(&found, visited);
            // SAFETY: the item is in the table and the lock is held.
            let is_locked = self.locked_until(unsafe { item.seqno() }).is_some();
            if (death.is_none() || is_shadow) && !is_locked && (!persistent || self.may_eject(found.location))
            {
                let worth = rank::worth(visited);
                census.count(worth);
                living.push((found.location, if rank::is_fresh(rank) { u8::MAX } else { worth }));
            }
        }
        let mut swept = Swept { candidates: dead.len() + living.len(), ..Swept::default() };
        // Those that flush_all has removed first: they leave nothing, and what others leave may push them out.
        dead.sort_unstable_by_key(|(_, why)| *why != Dead::Flushed);
        for (location, why) in dead {
            swept.freed_bytes += self.let_go_at(location, why);
        }
        let bar = census.bar();
        for (location, _) in living.into_iter().filter(|&(_, worth)| worth <= bar) {
            swept.unfetched += u64::from(self.count_evicted(self.item(location)));
            swept.freed_bytes += if persistent {
                self.eject(self.present_at(location))
            } else {
                self.note_evicted(location, gone.as_deref_mut());
                self.evict_at(location)
            };
            swept.evicted += 1;
        }
        swept.next = if self.state.table.items == 0 { None } else { next };
        swept
    }

    /// Visits an item of a slab that is to be emptied: evicts it if a visit of the hand would, and moves it otherwise.
    /// Returns true if a living item, or its value, has gone.
    pub(crate) fn evict_or_move(
        &mut self,
        location: Location,
        census: &mut Census,
        moved: &mut Moved,
        gone: Option<&mut Vec<Evicted>>,
    ) -> bool {
        let item = self.item(location);
        // SAFETY: the location is one of this vBucket's, in use, and the lock is held.
        let (kind, seqno) = unsafe { (item.header().kind, item.seqno()) };
        let may_go = kind == Kind::Document
            && self.death(item).is_none()
            && self.locked_until(seqno).is_none()
            && (!self.is_persistent() || self.may_eject(location))
            && (self.is_persistent() || !self.is_inactive());
        if may_go {
            let present = self.present_at(location);
            let rank = self.root.rank(&present.found);
            let visited = rank::visited(rank);
            let worth = rank::worth(visited);
            census.count(worth);
            if !rank::is_fresh(rank) && worth <= census.bar() {
                moved.unfetched_gone += u64::from(self.count_evicted(item));
                if self.is_persistent() {
                    self.eject(present);
                } else {
                    self.note_evicted(location, gone);
                    self.evict_at(location);
                }
                return true;
            }
            self.root.set_rank(&present.found, visited);
        }
        self.move_item(location, moved);
        false
    }

    /// Records an item that is about to be evicted, in case its bucket's watchers want to know.
    #[inline]
    fn note_evicted(&self, location: Location, gone: Option<&mut Vec<Evicted>>) {
        if let Some(gone) = gone {
            let present = self.present_at(location);
            // SAFETY: the item is in the table and the lock is held.
            let key = unsafe { present.item.stored_key() };
            gone.push(Evicted::new(key_of(key), &Document::new(self, &present)));
        }
    }

    /// Counts an item that is about to be evicted, or its value ejected, in its class. Returns true if nobody has read
    /// it since it was stored.
    fn count_evicted(&self, item: ItemPtr) -> bool {
        // SAFETY: the item is in the table and the lock is held.
        let header = unsafe { item.header() };
        let is_unfetched = header.marks & mark::FETCHED == 0;
        let idle_s = self.now.unix_s.wrapping_sub(header.accessed) & ACCESSED_MASK;
        let (thread, traits) = (self.memory.cache.thread(), (header.expiry != 0, is_unfetched));
        self.memory.resources.classes.count_evicted(thread, header.item_size(), traits, idle_s);
        is_unfetched
    }

    fn count_in_class(&self, size: usize, counter: ClassCounter, n: u64) {
        self.memory.resources.classes.count(self.memory.cache.thread(), size, counter, n);
    }

    /// Returns true if nobody has read the item since it was stored.
    fn is_unfetched(&self, item: ItemPtr) -> bool {
        // SAFETY: the item is in the table and the lock is held.
        unsafe { item.header() }.marks & mark::FETCHED == 0
    }

    /// Frees a dead item at a location of the table, or as much of it as may go. Returns the bytes gained.
    fn let_go_at(&mut self, location: Location, why: Dead) -> u64 {
        if !self.leaves_ends() {
            return self.remove_at(location);
        }
        let present = self.present_at(location);
        let bytes = location.footprint(self.header(present).item_size()) as u64;
        if self.let_go(present, why) { bytes } else { 0 }
    }

    /// Evicts the item at a location of the table: to those who follow, that is a deletion. Returns the bytes gained.
    fn evict_at(&mut self, location: Location) -> u64 {
        if !self.leaves_ends() {
            return self.remove_at(location);
        }
        let present = self.present_at(location);
        let bytes = location.footprint(self.header(present).item_size()) as u64;
        let cas = self.next_cas();
        match self.leave_tombstone(present, cas, mark::DELETED) {
            Ok(_) => bytes,
            Err(_) => {
                self.remove_unseen(present);
                bytes
            }
        }
    }

    /// Removes the item at a location of the table. Returns the bytes it took.
    fn remove_at(&mut self, location: Location) -> u64 {
        let present = self.present_at(location);
        let bytes = location.footprint(self.header(present).item_size()) as u64;
        self.remove(present);
        bytes
    }

    /// The item at a location of the table.
    pub(super) fn present_at(&self, location: Location) -> Present {
        let hash = self.hash_of(location);
        let Some(found) = self.root.find(hash, |at| at == location) else {
            unreachable!("an item without a slot")
        };
        Present { found, item: self.item(location) }
    }

    /// Calls `f` with key and document of each living document in one group of the table. Returns the next hand.
    pub(crate) fn list(&self, hand: Hand, f: &mut dyn FnMut(Key<'_>, &Document<'_>)) -> Option<Hand> {
        self.root.walk(hand, |found, _| {
            let item = self.item(found.location);
            // SAFETY: the item is in the table and the lock is held.
            let stored = unsafe { item.stored_key() };
            if self.death(item).is_none() && !self.is_dropped(stored) {
                let key = Key { collection: collection_of(stored), bytes: key_of(stored) };
                f(key, &Document::new(self, &Present { found, item }));
            }
        })
    }

    /// Returns the number of groups of the table.
    pub(crate) fn groups(&self) -> u64 {
        self.root.groups()
    }

    /// Returns a position that this number selects.
    pub(crate) fn hand_at(&self, number: u64) -> Hand {
        self.root.hand_at(number)
    }

    /// Calls `f` with the key of each living document of a collection in one group of the table. Returns the next hand.
    pub(crate) fn keys(&self, hand: Hand, collection: u32, f: &mut dyn FnMut(&[u8])) -> Option<Hand> {
        let (prefix, prefix_len) = collection_prefix(collection);
        self.root.walk(hand, |found, _| {
            let item = self.item(found.location);
            // SAFETY: the item is in the table and the lock is held.
            let stored = unsafe { item.stored_key() };
            if let Some(key) = stored.strip_prefix(&prefix[..prefix_len])
                && self.death(item).is_none()
            {
                f(key);
            }
        })
    }

    /// Calls `f` with size and idle seconds of each item in one group of the table; returns the next hand.
    pub(crate) fn measure(&self, hand: Hand, f: &mut dyn FnMut(usize, u32)) -> Option<Hand> {
        self.root.walk(hand, |found, _| {
            let present = Present { found, item: self.item(found.location) };
            let document = Document::new(self, &present);
            f(document.item_size(), document.idle_s());
        })
    }

    /// Calls `f` with the size of each item in one group of the table; returns the next hand.
    pub(crate) fn sizes(&self, hand: Hand, f: &mut dyn FnMut(usize)) -> Option<Hand> {
        self.root.walk(hand, |found, _| {
            // SAFETY: the item is in the table and the lock is held.
            f(unsafe { self.item(found.location).header() }.item_size());
        })
    }

    /// Unlocks the vBucket, which will be locked again at once, and lets those in that wait for it.
    pub(crate) fn release(self) {
        lock::release(self.state);
    }

    /// Frees the memory of the wheel and the locks if nothing is left in them.
    pub(crate) fn tidy(&mut self) {
        if self.state.table.items == 0
            && let Some(rare) = &mut self.state.rare
        {
            rare.wheel.clear(&self.memory.resources.tenant, self.memory.cache);
            rare.locks.clear(&self.memory.resources.tenant, self.memory.cache);
            if rare.prepares.is_none()
                && rare.durable.is_none()
                && rare.sync_writes.is_none()
                && rare.followers.is_none()
                && rare.events.is_none()
            {
                self.state.rare = None;
            }
        }
    }

    /// The items that are not in the table: prepares, and aborts that are not flushed.
    fn unlisted(&mut self) -> Vec<Location> {
        let mut unlisted: Vec<Location> =
            self.all_prepared().iter().map(|prepared| prepared.location).collect();
        let heap = &self.memory.resources.heap;
        if let Some(order) = &self.state.order {
            order.iterate(|_, location| {
                // SAFETY: a live slot names an item of this vBucket, and the lock is held.
                if unsafe { ItemPtr(heap.address(location)).header() }.kind == Kind::Abort {
                    unlisted.push(location);
                }
            });
        }
        unlisted
    }

    /// Frees items, table, order and rare state, without keeping any of them consistent.
    pub(super) fn free_all(mut self) {
        for location in self.unlisted() {
            let item = self.item(location);
            // SAFETY: a prepare or an abort of this vBucket, and the lock is held; nobody refers to it any more.
            let header = unsafe { item.header() };
            self.free(location, item, &header);
        }
        let mut hand = Some(Hand::default());
        while let Some(at) = hand {
            let mut locations = arrayvec::ArrayVec::<Location, GROUP_ITEMS>::new();
            hand = self.root.walk(at, |found, _| locations.push(found.location));
            for location in locations {
                let item = self.item(location);
                // SAFETY: the item is in the table and the lock is held; nobody looks it up any more.
                let header = unsafe { item.header() };
                self.free(location, item, &header);
            }
        }
        self.root.clear(&mut self.state.table, &mut self.memory);
        self.state.table.items = 0;
        self.forget_deletions(true);
        if let Some(mut rare) = self.state.rare.take() {
            rare.wheel.clear(&self.memory.resources.tenant, self.memory.cache);
            rare.locks.clear(&self.memory.resources.tenant, self.memory.cache);
        }
        if let Some(mut order) = self.state.order.take() {
            order.clear(&self.memory.resources.tenant, self.memory.cache);
        }
    }
}
