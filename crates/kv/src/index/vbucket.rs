//! One vBucket: its table, order, expiry windows and locks, and everything that is done to them under its lock.
//!
//! ```text
//!   VBucket, 64 B    root (peeked at without the lock) | lock | counters, rare state, order
//!   Locked           the lock held, with the memory of the bucket: find, write, remove
//! ```
//! Invariants, whenever the lock is free: every item has exactly one index slot and, where the seqno order is
//! kept, one live seqno slot, both with its location; an item with an expiry has an entry in the wheel at or before it; the accounts equal the sum of the items.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;

use memory::{Gauge, ItemHeap, LargeBlock, Location, Pin, TenantVec, large};
use rapidhash::v3::RapidSecrets;

use super::item::{Header, ItemPtr, mark, stored_key_len};
use super::lock::{Lock, LockGuard};
use super::order::SeqnoOrder;
use super::table::{Found, Hand, HashPart, Memory, Root, TableState, prefetch};
use super::wheel::ExpiryWheel;
use crate::{Key, KvError, Now};

/// Most items handled under one hold of the lock by background work.
pub(crate) const SLICE_ITEMS: usize = 64;

/// An explicit CAS further ahead of the clock than this does not advance the vBucket's own.
const CAS_DRIFT_NS: u64 = 5_000_000_000;

/// A vBucket: one cache line. Empty, it is all zero and holds no memory but itself.
#[repr(C, align(64))]
pub(crate) struct VBucket {
    root: Root,
    state: Lock<State>,
}

const _: () = assert!(size_of::<VBucket>() == 64);

#[repr(C)]
struct State {
    table: TableState,
    high_seqno: u64,
    max_cas: u64,
    /// Items up to this seqno were flushed.
    flushed_seqno: u64,
    rare: Option<Box<Rare>>,
    /// Kept while somebody reads the items in the order of their seqnos.
    order: Option<Box<SeqnoOrder>>,
}

/// What most vBuckets never need.
#[derive(Default)]
struct Rare {
    wheel: ExpiryWheel,
    locks: TenantVec<DocumentLock>,
}

#[derive(Clone, Copy)]
struct DocumentLock {
    /// The locked item: nothing changes its seqno while it is locked.
    seqno: u64,
    until_s: u32,
}

/// An item as found in the table.
#[derive(Clone, Copy)]
pub(crate) struct Present {
    found: Found,
    item: ItemPtr,
}

/// Why an item that is still there must not be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dead {
    Expired,
    Flushed,
}

/// The bytes of a new value.
pub(crate) enum NewValue<'a> {
    /// Two slices, one after the other: a whole value, or an old and a new part.
    Parts(&'a [u8], &'a [u8]),
    /// A large item whose value is in place.
    Large(LargeBlock),
}

impl NewValue<'_> {
    fn is_large(&self) -> bool {
        matches!(self, Self::Large(_))
    }
}

/// State of a vBucket, as a copy.
pub(crate) struct Snapshot {
    pub(crate) items: u32,
    pub(crate) high_seqno: u64,
    pub(crate) max_cas: u64,
}

impl VBucket {
    /// `count` empty vBuckets. Their pages stay untouched until they are used.
    pub(crate) fn table(count: u16) -> Box<[Self]> {
        let layout =
            Layout::array::<Self>(usize::from(count.max(1))).unwrap_or_else(|_| unreachable!("a few KiB"));
        // SAFETY: the layout is not empty, and all zero is an empty vBucket: atomics and counters at 0, a free lock
        // (its two bytes are 0), no directory, no box, empty arrays.
        unsafe {
            let table = NonNull::new(alloc_zeroed(layout).cast::<Self>())
                .unwrap_or_else(|| handle_alloc_error(layout));
            Box::from_raw(std::ptr::slice_from_raw_parts_mut(table.as_ptr(), usize::from(count.max(1))))
        }
    }

    /// Starts loading the vBucket itself.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(self);
    }

    /// Starts loading the head of the directory.
    #[inline]
    pub(crate) fn prefetch_directory(&self) {
        self.root.prefetch_directory();
    }

    #[inline]
    pub(crate) fn prefetch_line(&self, hash: u64) {
        self.root.prefetch_line(hash);
    }

    #[inline]
    pub(crate) fn prefetch_item(&self, heap: &memory::BlockHeap, hash: u64, bytes: usize) {
        self.root.prefetch_item(heap, hash, bytes);
    }

    /// Takes the lock.
    #[inline(always)]
    pub(crate) fn lock<'v>(&'v self, memory: Memory<'v>, now: &'v Now) -> Locked<'v> {
        Locked { root: &self.root, state: self.state.lock(), memory, now, armed_s: u32::MAX }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        Snapshot { items: state.table.items, high_seqno: state.high_seqno, max_cas: state.max_cas }
    }

    /// flush_all: what is there now is gone. Gives whether there was anything.
    pub(crate) fn flush(&self) -> bool {
        let mut state = self.state.lock();
        state.flushed_seqno = state.high_seqno;
        state.table.items > 0
    }

    pub(crate) fn expiry_due_s(&self) -> Option<u32> {
        self.state.lock().rare.as_ref()?.wheel.due_s()
    }
}

/// A locked vBucket.
pub(crate) struct Locked<'v> {
    root: &'v Root,
    state: LockGuard<'v, State>,
    memory: Memory<'v>,
    pub(crate) now: &'v Now,
    armed_s: u32,
}

impl<'v> Locked<'v> {
    #[inline]
    fn item(&self, location: Location) -> ItemPtr {
        ItemPtr(self.memory.ground.heap.address(location))
    }

    fn hash_of(&self, location: Location) -> u64 {
        // SAFETY: the location is in the table and the lock is held.
        let stored = unsafe { self.item(location).stored_key() };
        hash_stored(stored, &self.memory.ground.secrets)
    }

    /// Finds a key's item if it is alive; a dead one stays as it is.
    #[inline(always)]
    pub(crate) fn live(&self, key: Key<'_>, hash: u64) -> Option<Present> {
        let present = self.find(key, hash)?;
        self.death(present.item).is_none().then_some(present)
    }

    /// Finds a key's item; removes it if it is dead, and tells why it was.
    #[inline(always)]
    pub(crate) fn look_up(&mut self, key: Key<'_>, hash: u64) -> Result<Present, Option<Dead>> {
        let present = self.find(key, hash).ok_or(None)?;
        match self.death(present.item) {
            None => Ok(present),
            Some(dead) => {
                self.remove(present);
                Err(Some(dead))
            }
        }
    }

    #[inline(always)]
    fn find(&self, key: Key<'_>, hash: u64) -> Option<Present> {
        let heap = &self.memory.ground.heap;
        // SAFETY: the locations come from the table and the lock is held.
        let found = self.root.find(hash, |location| unsafe { ItemPtr(heap.address(location)).is(key) })?;
        Some(Present { found, item: self.item(found.location) })
    }

    #[inline]
    fn death(&self, item: ItemPtr) -> Option<Dead> {
        // SAFETY: the item is in the table and the lock is held.
        let (seqno, expiry) = unsafe { (item.seqno(), item.expiry()) };
        if seqno <= self.state.flushed_seqno {
            Some(Dead::Flushed)
        } else if expiry != 0 && expiry <= self.now.unix_s {
            Some(Dead::Expired)
        } else {
            None
        }
    }

    #[inline(always)]
    pub(crate) fn header(&self, present: Present) -> Header {
        // SAFETY: the item is in the table and the lock is held.
        unsafe { present.item.header() }
    }

    /// The value's bytes; they live as long as the lock and are not changed meanwhile but through `&mut self`.
    #[inline]
    pub(crate) fn value(&self, present: Present, header: &Header) -> &[u8] {
        // SAFETY: the item is in the table, the lock is held as long as `self` is borrowed.
        unsafe { present.item.value(header) }
    }

    /// Keeps a large value in place beyond the lock.
    pub(crate) fn pin(&self, present: Present, header: &Header) -> Option<Pin> {
        if header.marks & mark::LARGE == 0 {
            return None;
        }
        // SAFETY: the item is large, in the table, and the lock is held.
        Some(unsafe {
            Pin::new(
                &self.memory.ground.tenant,
                present.item.0,
                header.item_size(),
                ItemPtr::value_offset(header),
            )
        })
    }

    /// Notes that a client read the item.
    #[inline]
    pub(crate) fn record_access(&mut self, present: Present) {
        // SAFETY: the item is in the table and the lock is held.
        if unsafe { present.item.record_access(self.now.unix_s & 0xf_ffff) } {
            let rank = rank::accessed(self.root.rank(&present.found));
            self.root.set_rank(&present.found, rank);
        }
    }

    /// Writes the protocol marks `STALE`, `WIN_SENT`, `FETCHED` of an item.
    pub(crate) fn set_marks(&mut self, present: Present, clear: u8, set: u8) {
        debug_assert!((clear | set) & !(mark::STALE | mark::WIN_SENT | mark::FETCHED) == 0);
        // SAFETY: the item is in the table and the lock is held.
        unsafe { present.item.set_marks(present.item.marks() & !clear | set) }
    }

    /// The CAS of the next change.
    #[inline]
    pub(crate) fn next_cas(&mut self, explicit: u64) -> u64 {
        if explicit != 0 {
            if explicit <= self.now.unix_ns.saturating_add(CAS_DRIFT_NS) {
                self.state.max_cas = self.state.max_cas.max(explicit);
            }
            return explicit;
        }
        self.state.max_cas = (self.state.max_cas + 1).max(self.now.unix_ns);
        self.state.max_cas
    }

    pub(crate) fn max_cas(&self) -> u64 {
        self.state.max_cas
    }

    pub(crate) fn set_cas(&mut self, present: Present, cas: u64) {
        // SAFETY: the item is in the table and the lock is held.
        unsafe { present.item.set_cas(cas) }
    }

    /// The commonest write: another value of the same size class over a small item, neither with an expiry. Gives CAS and seqno,
    /// or `None` with nothing changed: then it takes [`Locked::write`].
    #[inline]
    pub(crate) fn overwrite(
        &mut self,
        present: Present,
        new_cas: u64,
        datatype: u8,
        flags: u32,
        value: &[u8],
    ) -> Option<(u64, u64)> {
        if self.has_document_locks() || self.state.order.is_some() {
            return None;
        }
        // SAFETY: the item is in the table and the lock is held.
        let room = unsafe { present.item.room_for(flags, value.len()) }?;
        let (cas, seqno) = (self.next_cas(new_cas), self.state.high_seqno + 1);
        let accessed = self.now.unix_s & 0xf_ffff;
        // SAFETY: as above, and there is room.
        unsafe { present.item.overwrite(&room, cas, seqno, datatype, accessed, flags, value) }
        self.state.high_seqno = seqno;
        let added = value.len().cast_signed() as i64 - room.old_len.cast_signed() as i64;
        if added != 0 {
            self.count(Gauge::Payload, added);
        }
        Some((cas, seqno))
    }

    /// Writes an item as `header` describes it, over `old` if there is one; gives it the next seqno, which is returned.
    /// `header`'s seqno, lengths and word marks are filled in here. On failure nothing has changed.
    #[inline]
    pub(crate) fn write(
        &mut self,
        key: Key<'_>,
        hash: u64,
        old: Option<Present>,
        mut header: Header,
        value: NewValue<'_>,
    ) -> Result<(Present, u64), KvError> {
        if let Some(order) = &mut self.state.order
            && old.is_some()
        {
            order.prefetch_slots();
        }
        let seqno = self.state.high_seqno + 1;
        header.seqno = seqno;
        header.key_len = stored_key_len(key);
        header.value_len = match &value {
            NewValue::Parts(first, second) => first.len() + second.len(),
            NewValue::Large(block) => block.size() - super::large_value_offset(header.key_len),
        };
        let old = old.map(|present| (present, self.header(present)));
        header.marks &= !(mark::LARGE | mark::EXPIRY_QUEUED);
        if value.is_large() {
            header.marks |= mark::LARGE;
        }
        let header = header.with_words();
        let size = header.item_size();
        self.reserve_seqno(seqno)?;
        let header = self.queue_expiry(hash, old.as_ref().map(|(_, header)| header), header)?;

        let present = match (&old, value) {
            (Some((present, old_header)), NewValue::Parts(first, second))
                if old_header.marks & mark::LARGE == 0
                    && memory::size_class(old_header.item_size()) == memory::size_class(size) =>
            {
                self.fill(present.item, key, &header, first, second);
                *present
            }
            (Some((present, old_header)), value) => {
                let mut moved = *present;
                let location = self.place(key, &header, value)?;
                self.root.relocate(&mut moved.found, location);
                moved.item = self.item(location);
                self.free(present.found.location, present.item, old_header);
                moved
            }
            (None, value) => {
                let (heap, seed) = (&self.memory.ground.heap, &self.memory.ground.secrets);
                let hash_of = |location| {
                    // SAFETY: the locations come from the table and the lock is held.
                    hash_stored(unsafe { ItemPtr(heap.address(location)).stored_key() }, seed)
                };
                if !self.root.reserve(&mut self.state.table, &mut self.memory, hash, hash_of) {
                    return Err(KvError::NoMemory);
                }
                let location = self.place(key, &header, value)?;
                self.root.insert(&mut self.state.table, hash, rank::NEW, location);
                self.count(Gauge::Count, 1);
                let heap = &self.memory.ground.heap;
                let found = self.root.find(hash, |at| at == location);
                let Some(found) = found else { unreachable!("just inserted") };
                Present { found, item: ItemPtr(heap.address(location)) }
            }
        };
        self.count(Gauge::Payload, (header.key_len + header.value_len).cast_signed() as i64);
        self.count(Gauge::Metadata, header.metadata().cast_signed() as i64);
        if let Some((_, old_header)) = &old {
            self.uncount(old_header);
            self.unlock_seqno(old_header.seqno);
        }
        self.renumber(old.map(|(_, header)| header.seqno), seqno, present.found.location);
        Ok((present, seqno))
    }

    /// Room for a large item of the same vBucket's tenant.
    pub(crate) fn new_large(&mut self, key_len: usize, value_len: usize) -> Result<LargeBlock, KvError> {
        let size = super::large_value_offset(key_len) + value_len;
        LargeBlock::new(&self.memory.ground.tenant, self.memory.cache, size).ok_or(KvError::NoMemory)
    }

    /// Writes the header of a large item anew; its value stays as it is. Gives the new seqno.
    pub(crate) fn rewrite_large(
        &mut self,
        present: Present,
        hash: u64,
        header: Header,
    ) -> Result<u64, KvError> {
        let old = self.header(present);
        let seqno = self.state.high_seqno + 1;
        self.reserve_seqno(seqno)?;
        let words = old.marks & (mark::WORDS | mark::LARGE);
        let marks = header.marks & !(mark::WORDS | mark::LARGE) | words;
        let header = Header { seqno, marks, value_len: old.value_len, key_len: old.key_len, ..header };
        let header = self.queue_expiry(hash, Some(&old), header)?;
        // SAFETY: the item is in the table with the same words and lengths, and the lock is held.
        unsafe { present.item.set_header(&header) }
        self.unlock_seqno(old.seqno);
        self.renumber(Some(old.seqno), seqno, present.found.location);
        Ok(seqno)
    }

    /// Makes sure that the order has room for one more.
    #[inline]
    fn reserve_seqno(&mut self, seqno: u64) -> Result<(), KvError> {
        if let Some(order) = &mut self.state.order
            && !order.reserve(seqno, &self.memory.ground.tenant, self.memory.cache)
        {
            return Err(KvError::NoMemory);
        }
        Ok(())
    }

    /// Gives an item its seqno, and the order its slot, for which room is reserved, in place of the old one.
    #[inline]
    fn renumber(&mut self, old: Option<u64>, new: u64, location: Location) {
        self.state.high_seqno = new;
        if let Some(order) = &mut self.state.order {
            order.push(new, location, &self.memory.ground.tenant, self.memory.cache);
            if let Some(old) = old {
                order.retire(old, &self.memory.ground.tenant, self.memory.cache);
            }
        }
    }

    /// Keeps the items in the order of their seqnos from now on, or no longer. Nothing changes if that is so already.
    pub(crate) fn keep_order(&mut self, keep: bool) -> Result<(), KvError> {
        if !keep {
            if let Some(mut order) = self.state.order.take() {
                order.clear(&self.memory.ground.tenant, self.memory.cache);
            }
            return Ok(());
        }
        if self.state.order.is_some() {
            return Ok(());
        }
        let mut items = Vec::with_capacity(self.state.table.items as usize);
        let mut hand = Some(Hand::default());
        while let Some(at) = hand {
            hand = self.root.walk(at, |found, _| {
                // SAFETY: the item is in the table and the lock is held.
                items.push((unsafe { self.item(found.location).seqno() }, found.location));
            });
        }
        items.sort_unstable_by_key(|(seqno, _)| *seqno);
        let mut order = Box::<SeqnoOrder>::default();
        for (seqno, location) in items {
            if !order.reserve(seqno, &self.memory.ground.tenant, self.memory.cache) {
                order.clear(&self.memory.ground.tenant, self.memory.cache);
                return Err(KvError::NoMemory);
            }
            order.push(seqno, location, &self.memory.ground.tenant, self.memory.cache);
        }
        self.state.order = Some(order);
        Ok(())
    }

    /// Calls `f` with seqno and header of every item, in the order of the seqnos; `false` if the order is not kept.
    pub(crate) fn in_order(&mut self, f: &mut dyn FnMut(u64, &Header)) -> bool {
        let heap = &self.memory.ground.heap;
        let Some(order) = &mut self.state.order else { return false };
        order.iterate(&self.memory.ground.tenant, self.memory.cache, |seqno, location| {
            // SAFETY: a live slot names an item in the table, and the lock is held.
            f(seqno, &unsafe { ItemPtr(heap.address(location)).header() });
        });
        true
    }

    /// Appends to a small item in its place, if it fits its allocation.
    pub(crate) fn append_in_place(&mut self, present: Present, tail: &[u8], cas: u64) -> Option<u64> {
        let old = self.header(present);
        let seqno = self.state.high_seqno + 1;
        let header = Header {
            cas,
            seqno,
            rev: old.rev + 1,
            value_len: old.value_len + tail.len(),
            datatype: 0,
            accessed: self.now.unix_s & 0xf_ffff,
            marks: old.marks & !(mark::FETCHED | mark::STALE | mark::WIN_SENT),
            ..old
        };
        let fits = old.marks & mark::LARGE == 0
            && header.marks & mark::WORDS == header.with_words().marks & mark::WORDS
            && memory::size_class(header.item_size()) == memory::size_class(old.item_size());
        if !fits || self.reserve_seqno(seqno).is_err() {
            return None;
        }
        // SAFETY: the item is in the table, the lock is held, and its allocation has room for the new length.
        unsafe {
            present.item.set_header(&header);
            present.item.value_mut(&header)[old.value_len..].copy_from_slice(tail);
        }
        self.unlock_seqno(old.seqno);
        self.renumber(Some(old.seqno), seqno, present.found.location);
        self.count(Gauge::Payload, tail.len().cast_signed() as i64);
        Some(seqno)
    }

    /// Changes the expiry of an item that has the word already, or gives `false`.
    pub(crate) fn set_expiry_in_place(
        &mut self,
        present: Present,
        hash: u64,
        expiry: u32,
    ) -> Result<bool, KvError> {
        let old = self.header(present);
        if old.marks & mark::HAS_EXPIRY == 0 || (expiry == 0 && old.marks & mark::LARGE == 0) {
            return Ok(false);
        }
        let header = self.queue_expiry(hash, Some(&old), Header { expiry, ..old })?;
        // SAFETY: the item is in the table, has the word, and the lock is held.
        unsafe {
            present.item.set_expiry(expiry);
            present.item.set_marks(header.marks);
        }
        Ok(true)
    }

    /// Removes an item.
    pub(crate) fn remove(&mut self, present: Present) {
        let header = self.header(present);
        self.root.remove(&mut self.state.table, &mut self.memory, &present.found);
        let is_empty = self.state.table.items == 0;
        if let Some(order) = &mut self.state.order {
            order.retire(header.seqno, &self.memory.ground.tenant, self.memory.cache);
            if is_empty {
                order.clear(&self.memory.ground.tenant, self.memory.cache);
            }
        }
        self.unlock_seqno(header.seqno);
        self.free(present.found.location, present.item, &header);
        self.uncount(&header);
        self.count(Gauge::Count, -1);
    }

    /// Gives a removal its seqno.
    pub(crate) fn next_seqno(&mut self) -> u64 {
        self.state.high_seqno += 1;
        self.state.high_seqno
    }

    // ---- document locks -------------------------------------------------------------------------------------------

    /// Whether any document of the vBucket may be locked.
    #[inline]
    pub(crate) fn has_document_locks(&self) -> bool {
        self.state.rare.as_ref().is_some_and(|rare| !rare.locks.as_slice().is_empty())
    }

    /// Until when a document is locked, if it is.
    #[inline]
    pub(crate) fn locked_until(&self, seqno: u64) -> Option<u32> {
        let rare = self.state.rare.as_ref()?;
        let lock = rare.locks.as_slice().iter().find(|lock| lock.seqno == seqno)?;
        (lock.until_s > self.now.unix_s).then_some(lock.until_s)
    }

    pub(crate) fn lock_seqno(&mut self, seqno: u64, until_s: u32) -> Result<(), KvError> {
        let now_s = self.now.unix_s;
        let locks = &mut self.state.rare.get_or_insert_default().locks;
        for at in (0..locks.as_slice().len()).rev() {
            if locks.as_slice()[at].until_s <= now_s || locks.as_slice()[at].seqno == seqno {
                locks.remove(at);
            }
        }
        let pushed =
            locks.push(&self.memory.ground.tenant, self.memory.cache, DocumentLock { seqno, until_s });
        if pushed { Ok(()) } else { Err(KvError::NoMemory) }
    }

    pub(crate) fn unlock_seqno(&mut self, seqno: u64) {
        if let Some(rare) = &mut self.state.rare
            && let Some(at) = rare.locks.as_slice().iter().position(|lock| lock.seqno == seqno)
        {
            rare.locks.remove(at);
            if rare.locks.as_slice().is_empty() {
                rare.locks.clear(&self.memory.ground.tenant, self.memory.cache);
            }
        }
    }

    // ---- background work ------------------------------------------------------------------------------------------

    /// Frees what has expired, up to a slice; gives how many items went and whether more is due.
    pub(crate) fn reclaim_expired(&mut self, taken: &mut Vec<HashPart>) -> (usize, bool) {
        taken.clear();
        let now_s = self.now.unix_s;
        let Some(rare) = &mut self.state.rare else { return (0, false) };
        rare.wheel.take_due(now_s, SLICE_ITEMS, &self.memory.ground.tenant, self.memory.cache, taken);
        let mut freed = 0;
        for part in taken.iter() {
            let mut candidates = arrayvec::ArrayVec::<Found, 16>::new();
            self.root.matching(*part, |found| {
                let _ = candidates.try_push(found);
            });
            for found in candidates {
                let item = self.item(found.location);
                let hash = self.hash_of(found.location);
                // SAFETY: the item is in the table and the lock is held.
                let expiry = unsafe { item.expiry() };
                if HashPart::of(hash) != *part || expiry == 0 {
                    continue;
                }
                if self.death(item).is_some() {
                    self.remove(Present { found, item });
                    freed += 1;
                    // A removal may move its neighbours' slots; an entry of the same hash part comes again.
                    break;
                }
                let Some(rare) = &mut self.state.rare else { break };
                let _ = rare.wheel.enter(*part, expiry, now_s, &self.memory.ground.tenant, self.memory.cache);
            }
        }
        let more =
            self.state.rare.as_ref().and_then(|rare| rare.wheel.due_s()).is_some_and(|due_s| due_s <= now_s);
        (freed, more)
    }

    /// When the earliest window entered under this hold of the lock is due; `u32::MAX` if none was.
    #[inline]
    pub(crate) fn armed_s(&self) -> u32 {
        self.armed_s
    }

    /// Frees the flushed items of one group of the table; gives how many went, and the next hand.
    ///
    /// Groups split and merge meanwhile, so that a walk may miss some: walk again until one finds none.
    pub(crate) fn reclaim_flushed(&mut self, hand: Hand) -> (usize, Option<Hand>) {
        let mut dead = arrayvec::ArrayVec::<Location, { 8 * 64 }>::new();
        let this = &*self;
        let next = this.root.walk(hand, |found, _| {
            if this.death(this.item(found.location)).is_some() {
                dead.push(found.location);
            }
        });
        for location in &dead {
            self.remove_at(*location);
        }
        (dead.len(), if self.state.table.items == 0 { None } else { next })
    }

    /// Visits one group of the table with the evicting hand: living items age, those whose rank has sunk to nothing go, and
    /// so do the dead. Gives (bytes freed, living items evicted, next hand).
    pub(crate) fn sweep(&mut self, hand: Hand) -> (u64, u64, Option<Hand>) {
        let mut victims = arrayvec::ArrayVec::<(Location, bool), { 8 * 64 }>::new();
        let (root, this) = (self.root, &*self);
        let next = root.walk(hand, |found, rank| {
            let item = this.item(found.location);
            // SAFETY: the item is in the table and the lock is held.
            let is_locked = this.locked_until(unsafe { item.seqno() }).is_some();
            if this.death(item).is_some() {
                victims.push((found.location, false));
            } else if rank::is_worthless(rank) && !is_locked {
                victims.push((found.location, true));
            } else {
                root.set_rank(&found, rank::aged(rank));
            }
        });
        let (mut bytes, mut evicted) = (0, 0);
        for (location, living) in victims {
            bytes += self.remove_at(location);
            evicted += u64::from(living);
        }
        (bytes, evicted, if self.state.table.items == 0 { None } else { next })
    }

    /// Removes the item at a location of the table; gives the bytes it took.
    fn remove_at(&mut self, location: Location) -> u64 {
        let hash = self.hash_of(location);
        let Some(found) = self.root.find(hash, |at| at == location) else {
            unreachable!("an item without a slot")
        };
        let present = Present { found, item: self.item(location) };
        let bytes = memory::size_class(self.header(present).item_size()) as u64;
        self.remove(present);
        bytes
    }

    /// Calls `f` with the size of each live item.
    pub(crate) fn sizes(&self, f: &mut dyn FnMut(usize)) {
        let mut hand = Some(Hand::default());
        while let Some(at) = hand {
            hand = self.root.walk(at, |found, _| {
                // SAFETY: the item is in the table and the lock is held.
                f(unsafe { self.item(found.location).header() }.item_size());
            });
        }
    }

    /// Gives the wheel's and locks' memory back if nothing is left in them.
    pub(crate) fn tidy(&mut self) {
        if self.state.table.items == 0
            && let Some(mut rare) = self.state.rare.take()
        {
            rare.wheel.clear(&self.memory.ground.tenant, self.memory.cache);
            rare.locks.clear(&self.memory.ground.tenant, self.memory.cache);
        }
    }

    // ---- private --------------------------------------------------------------------------------------------------

    /// Makes sure that an item with an expiry is in the wheel; gives the header with the mark for it.
    #[inline]
    fn queue_expiry(
        &mut self,
        hash: u64,
        old: Option<&Header>,
        mut header: Header,
    ) -> Result<Header, KvError> {
        header.marks &= !mark::EXPIRY_QUEUED;
        if header.expiry == 0 {
            return Ok(header);
        }
        let queued_already = old.is_some_and(|old| {
            old.marks & mark::EXPIRY_QUEUED != 0 && old.expiry != 0 && old.expiry <= header.expiry
        });
        if !queued_already {
            let wheel = &mut self.state.rare.get_or_insert_default().wheel;
            let (tenant, cache) = (&self.memory.ground.tenant, &mut *self.memory.cache);
            let due_s = wheel.enter(HashPart::of(hash), header.expiry, self.now.unix_s, tenant, cache);
            self.armed_s = self.armed_s.min(due_s.ok_or(KvError::NoMemory)?);
        }
        header.marks |= mark::EXPIRY_QUEUED;
        Ok(header)
    }

    /// Writes a new item somewhere new.
    #[inline]
    fn place(&mut self, key: Key<'_>, header: &Header, value: NewValue<'_>) -> Result<Location, KvError> {
        match value {
            NewValue::Parts(first, second) => {
                let location = self.memory.ground.heap.allocate(
                    self.memory.cache,
                    header.item_size(),
                    self.memory.owner,
                );
                let location = location.ok_or(KvError::NoMemory)?;
                self.fill(self.item(location), key, header, first, second);
                Ok(location)
            }
            NewValue::Large(block) => {
                let location = block.into_location(self.memory.cache);
                let item = self.item(location);
                // SAFETY: the block is ours, with room for header, key and the value that is in place already.
                unsafe {
                    item.set_header(header);
                    item.set_key(key);
                }
                Ok(location)
            }
        }
    }

    #[inline]
    fn fill(&self, item: ItemPtr, key: Key<'_>, header: &Header, first: &[u8], second: &[u8]) {
        // SAFETY: the item's memory is ours under the lock and has room for what the header says; neither slice lies in it
        // (values in place are changed by `append_in_place` alone).
        unsafe {
            item.set_header(header);
            item.set_key(key);
            let value = item.value_mut(header);
            value[..first.len()].copy_from_slice(first);
            if !second.is_empty() {
                value[first.len()..].copy_from_slice(second);
            }
        }
    }

    fn free(&mut self, location: Location, item: ItemPtr, header: &Header) {
        let size = header.item_size();
        // SAFETY: no slot names the item any more; its size and kind are what its header says.
        unsafe {
            if header.marks & mark::LARGE != 0 {
                large::release(&self.memory.ground.tenant, item.0, size);
            } else {
                self.memory.ground.heap.free(self.memory.cache, location, size);
            }
        }
    }

    fn count(&mut self, gauge: Gauge, amount: i64) {
        self.memory.ground.tenant.count(self.memory.cache, gauge, amount);
    }

    fn uncount(&mut self, header: &Header) {
        self.count(Gauge::Payload, -((header.key_len + header.value_len).cast_signed() as i64));
        self.count(Gauge::Metadata, -(header.metadata().cast_signed() as i64));
    }
}

/// The bucket's hash of a stored key (with its collection id); must agree with [`hash`].
#[inline]
fn hash_stored(stored: &[u8], secrets: &RapidSecrets) -> u64 {
    match stored.split_first() {
        Some((0, key)) => hash_bytes(key, secrets),
        _ => hash_bytes(stored, secrets),
    }
}

/// The bucket's hash of a key.
#[inline]
pub(crate) fn hash(key: Key<'_>, secrets: &RapidSecrets) -> u64 {
    if key.collection == 0 {
        return hash_bytes(key.bytes, secrets);
    }
    let (prefix, len) = super::item::collection_prefix(key.collection);
    let mut stored = arrayvec::ArrayVec::<u8, 256>::new();
    let _ = stored.try_extend_from_slice(&prefix[..len]);
    let _ = stored.try_extend_from_slice(key.bytes);
    hash_bytes(&stored, secrets)
}

#[inline]
fn hash_bytes(bytes: &[u8], secrets: &RapidSecrets) -> u64 {
    rapidhash::v3::rapidhash_v3_nano_inline::<true, false>(bytes, secrets)
}

/// Frequency and age in the 8 bits an index slot has for them: `frequency 4 | age 4`.
///
/// The frequency counts seconds with an access, the age visits of the evicting hand since the last one; what the
/// item is worth is the frequency halved once per visit.
mod rank {
    const AGE_MAX: u8 = 15;
    const FREQUENCY_MAX: u8 = 15;

    /// A new item: survives one visit.
    pub(super) const NEW: u8 = 1 << 4;

    fn worth(rank: u8) -> u8 {
        (rank >> 4).checked_shr(u32::from(rank & AGE_MAX)).unwrap_or(0)
    }

    pub(super) fn accessed(rank: u8) -> u8 {
        (worth(rank) + 1).min(FREQUENCY_MAX) << 4
    }

    pub(super) fn aged(rank: u8) -> u8 {
        if rank & AGE_MAX == AGE_MAX { rank } else { rank + 1 }
    }

    pub(super) fn is_worthless(rank: u8) -> bool {
        worth(rank) == 0
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn worth_sinks_with_visits_and_rises_with_accesses() {
            let mut rank = NEW;
            assert!(!is_worthless(rank));
            rank = aged(rank);
            assert!(is_worthless(rank));
            for _ in 0..20 {
                rank = accessed(rank);
            }
            let mut visits = 0;
            while !is_worthless(rank) {
                rank = aged(rank);
                visits += 1;
            }
            assert_eq!(visits, 4, "fifteen halves away in four visits");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zeroed_table_is_empty() {
        let table = VBucket::table(4);
        assert_eq!(table.len(), 4);
        for vbucket in &table {
            let snapshot = vbucket.snapshot();
            assert_eq!((snapshot.items, snapshot.high_seqno, snapshot.max_cas), (0, 0, 0));
        }
    }
}
