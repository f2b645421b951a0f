//! One vBucket: its table, order, expiry windows and locks, and everything that is done to them under its lock.
//!
//! ```text
//!   VBucket, 64 B    root (peeked at without the lock) | lock | counters, rare state, order
//!   Locked           the lock held, with the memory of the bucket: find, write, remove
//! ```
//! Invariants, whenever the lock is free: every item has exactly one index slot and, where the seqno order is kept, one
//! live seqno slot (in a persistent bucket: if it is not flushed), both with its location; an item with an expiry has
//! an entry in the wheel at or before it; the accounts equal the sum of the items. Prepares and aborts are items
//! without an index slot ([`super::prepares`]); what only persistent buckets have is in [`super::durable`].

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;

use memory::{Gauge, ItemHeap, LargeBlock, Location, Pin, TenantCache, large, prefetch};
use wire::binary::datatype::{SNAPPY, XATTR};

use super::document_locks::DocumentLocks;
use super::durable::Durable;
use super::events::Events;
use super::followers::Followers;
use super::hashing::hash_stored;
use super::item::{Header, ItemPtr, Kind, inflated_len, mark, stored_key_len};
use super::lock::{Lock, LockGuard};
use super::order::SeqnoOrder;
use super::prepares::Prepares;
use super::rank;
use super::table::{Found, HashPart, Memory, Resources, Root, TableState};
use super::wheel::ExpiryWheel;
use crate::sync_writes::SyncWrites;
use crate::{Key, KvError, Now};

/// Most items handled under one hold of the lock by background work.
pub(crate) const SLICE_ITEMS: usize = 64;

/// A vBucket: one cache line. Empty, it is all zero and owns no other memory.
#[repr(C, align(64))]
pub(crate) struct VBucket {
    root: Root,
    pub(super) state: Lock<State>,
}

const _: () = assert!(size_of::<VBucket>() == 64);

#[repr(C)]
pub(super) struct State {
    pub(super) table: TableState,
    pub(super) high_seqno: u64,
    pub(super) max_cas: u64,
    /// Items up to this seqno were removed by flush_all.
    pub(super) flushed_seqno: u64,
    pub(super) rare: Option<Box<Rare>>,
    /// Kept while somebody reads the items in seqno order; in a persistent bucket, while there are unflushed items.
    pub(super) order: Option<Box<SeqnoOrder>>,
}

impl State {
    /// Returns when an expiry window is due, or tombstones are to go. None while the journal is read: what has expired
    /// may have been replaced by a record that is yet to be read, and a tombstone would count as later than that. Then
    /// the role comes, which says whether anything expires here.
    pub(super) fn expiry_due_s(&self) -> Option<u32> {
        let rare = self.rare.as_ref()?;
        let is_read =
            rare.durable.as_ref().is_none_or(|durable| durable.replay.is_none() && durable.setting.is_none());
        let ends_due_s = rare.followers.as_ref().and_then(|followers| followers.ends_due_s());
        let dues = [rare.wheel.due_s(), ends_due_s];
        dues.into_iter().flatten().min().filter(|_| is_read)
    }
}

/// What most vBuckets never need.
#[derive(Default)]
pub(super) struct Rare {
    pub(super) wheel: ExpiryWheel,
    pub(super) locks: DocumentLocks,
    /// `None` while nothing is prepared.
    pub(super) prepares: Option<Box<Prepares>>,
    /// In a persistent bucket, from the first item on.
    pub(super) durable: Option<Box<Durable>>,
    /// State, chains and who waits, if they differ from the default.
    pub(super) sync_writes: Option<Box<SyncWrites>>,
    /// Who follows, and what is forgotten.
    pub(super) followers: Option<Box<Followers>>,
    /// The changes of scopes and collections that have seqnos here.
    pub(super) events: Option<Box<Events>>,
    /// Shadows in the table.
    pub(super) shadows: u32,
}

/// An item as found in the table.
#[derive(Clone, Copy)]
pub(crate) struct Present {
    pub(super) found: Found,
    pub(super) item: ItemPtr,
}

/// Why an item that is still there must not be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dead {
    Expired,
    Flushed,
    /// A tombstone that waits for the flusher, or a shadow.
    Deleted,
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

    fn len(&self, key_len: usize) -> usize {
        match self {
            Self::Parts(first, second) => first.len() + second.len(),
            Self::Large(block) => block.size() - super::large_value_offset(key_len),
        }
    }

    /// Returns its length inflated, if it is compressed. (Only whole values are.)
    fn inflated_len(&self, key_len: usize) -> usize {
        inflated_len(match self {
            Self::Parts(first, _) => first,
            Self::Large(block) => block.bytes().get(super::large_value_offset(key_len)..).unwrap_or_default(),
        })
    }
}

/// A copy of a vBucket's state.
pub(crate) struct Snapshot {
    pub(crate) items: u32,
    pub(crate) high_seqno: u64,
    pub(crate) max_cas: u64,
    pub(crate) persisted_seqno: u64,
}

impl VBucket {
    /// Creates `count` empty vBuckets. Their pages stay untouched until they are used.
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
    pub(crate) fn prefetch_item(&self, heap: &memory::Heap, hash: u64, bytes: usize) {
        self.root.prefetch_item(heap, hash, bytes);
    }

    /// Takes the lock.
    #[inline(always)]
    pub(crate) fn lock<'v>(&'v self, memory: Memory<'v>, now: &'v Now) -> Locked<'v> {
        Locked {
            root: &self.root,
            state: self.state.lock(),
            memory,
            now,
            armed_s: u32::MAX,
            missed: Cell::new(false),
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let durable = state.rare.as_ref().and_then(|rare| rare.durable.as_ref());
        let (tombstones, persisted_seqno) =
            durable.map_or((0, 0), |durable| (durable.tombstones, durable.persisted_seqno));
        let shadows = state.rare.as_ref().map_or(0, |rare| rare.shadows);
        Snapshot {
            items: state.table.items - tombstones - shadows,
            high_seqno: state.high_seqno,
            max_cas: state.max_cas,
            persisted_seqno,
        }
    }

    /// Returns its history ids, oldest first; none if it never had any but the present one.
    pub(crate) fn histories(&self) -> Vec<(u64, u64)> {
        let state = self.state.lock();
        let durable = state.rare.as_ref().and_then(|rare| rare.durable.as_ref());
        durable.map(|durable| durable.histories.clone()).unwrap_or_default()
    }

    /// Calls `f` with the SyncWrites, if there are any.
    pub(crate) fn with_sync_writes(&self, f: impl FnOnce(&mut SyncWrites)) {
        let mut state = self.state.lock();
        if let Some(sync) = state.rare.as_mut().and_then(|rare| rare.sync_writes.as_mut()) {
            f(sync);
        }
    }

    /// Frees everything it has when its bucket ends, where the arena leaves that to us.
    pub(crate) fn end(&mut self, resources: &Resources, cache: &mut TenantCache) {
        let (mut retired, mut calls, now) = (Vec::new(), Vec::new(), Now::default());
        let memory = Memory { resources, cache, retired: &mut retired, calls: &mut calls, owner: 0 };
        self.lock(memory, &now).free_all();
        for block in retired {
            // SAFETY: of this tenant; access is exclusive, so nobody peeks.
            unsafe { block.free(&resources.tenant, cache) }
        }
    }

    pub(crate) fn expiry_due_s(&self) -> Option<u32> {
        self.state.lock().expiry_due_s()
    }
}

/// A locked vBucket.
pub(crate) struct Locked<'v> {
    pub(super) root: &'v Root,
    pub(super) state: LockGuard<'v, State>,
    pub(super) memory: Memory<'v>,
    pub(crate) now: &'v Now,
    pub(super) armed_s: u32,
    /// Set if a value was wanted that is not in memory.
    missed: Cell<bool>,
}

impl<'v> Locked<'v> {
    #[inline]
    pub(super) fn item(&self, location: Location) -> ItemPtr {
        ItemPtr(self.memory.resources.heap.address(location))
    }

    pub(super) fn hash_of(&self, location: Location) -> u64 {
        // SAFETY: the location is in the table and the lock is held.
        let stored = unsafe { self.item(location).stored_key() };
        hash_stored(stored, &self.memory.resources.secrets)
    }

    /// Finds a key's item if it is alive; leaves a dead one as it is.
    #[inline(always)]
    pub(crate) fn live(&self, key: Key<'_>, hash: u64) -> Option<Present> {
        let present = self.find(key, hash)?;
        self.death(present.item).is_none().then_some(present)
    }

    /// Finds a key's item. A dead one is freed as far as it may be, and the error says why it was dead.
    #[inline(always)]
    pub(crate) fn look_up(&mut self, key: Key<'_>, hash: u64) -> Result<Present, Option<Dead>> {
        let present = self.find(key, hash).ok_or(None)?;
        match self.death(present.item) {
            None => Ok(present),
            Some(Dead::Deleted) => Err(None),
            Some(dead) => {
                self.let_go(present, dead);
                Err(Some(dead))
            }
        }
    }

    /// Frees a dead item, or as much of it as may go: an expired one may leave a tombstone or a shadow. Returns true if
    /// it looks any different now.
    pub(super) fn let_go(&mut self, present: Present, dead: Dead) -> bool {
        match dead {
            Dead::Deleted => false,
            Dead::Expired if self.is_inactive() => false,
            Dead::Expired if self.leaves_trace(present) => self.delete_expired(present),
            Dead::Expired | Dead::Flushed => {
                self.remove(present);
                true
            }
        }
    }

    #[inline(always)]
    pub(super) fn find(&self, key: Key<'_>, hash: u64) -> Option<Present> {
        let heap = &self.memory.resources.heap;
        // SAFETY: the locations come from the table and the lock is held.
        let found = self.root.find(hash, |location| unsafe { ItemPtr(heap.address(location)).is(key) })?;
        Some(Present { found, item: self.item(found.location) })
    }

    #[inline]
    pub(super) fn death(&self, item: ItemPtr) -> Option<Dead> {
        // SAFETY: the item is in the table and the lock is held.
        let (seqno, kind, expiry) = unsafe { (item.seqno(), item.kind(), item.expiry()) };
        if seqno <= self.state.flushed_seqno {
            Some(Dead::Flushed)
        } else if kind.is_deleted() {
            let has_expired = kind == Kind::Shadow && expiry <= self.now.unix_s;
            Some(if has_expired { Dead::Expired } else { Dead::Deleted })
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

    /// Returns the value's bytes; they live as long as the lock and change only through `&mut self`. An ejected item
    /// has none, and it is noted that they were wanted.
    #[inline]
    pub(crate) fn value(&self, present: Present, header: &Header) -> &[u8] {
        if header.kind == Kind::Ejected {
            self.missed.set(true);
        }
        // SAFETY: the item is in the table, the lock is held as long as `self` is borrowed.
        unsafe { present.item.value(header) }
    }

    /// Returns true if a value was wanted that is not in memory.
    #[inline]
    pub(crate) fn has_missed(&self) -> bool {
        self.missed.get()
    }

    /// Notes that a value is wanted that is not in memory.
    pub(crate) fn miss(&self) {
        self.missed.set(true);
    }

    /// Keeps a large value in place beyond the lock, without its first `skipped` bytes.
    pub(crate) fn pin(&self, present: Present, header: &Header, skipped: usize) -> Option<Pin> {
        if header.marks & mark::LARGE == 0 {
            return None;
        }
        // SAFETY: the item is large, in the table, and the lock is held.
        Some(unsafe {
            Pin::new(
                &self.memory.resources.tenant,
                present.item.0,
                header.item_size(),
                ItemPtr::value_offset(header) + skipped,
            )
        })
    }

    /// Notes that a client read the item.
    #[inline]
    pub(crate) fn record_access(&mut self, present: Present) {
        // SAFETY: the item is in the table and the lock is held.
        unsafe { present.item.record_access(self.now.unix_s & 0xf_ffff) };
        self.root.record_access(&present.found);
    }

    /// Writes the protocol marks `STALE`, `WIN_SENT`, `FETCHED` of an item.
    pub(crate) fn set_marks(&mut self, present: Present, clear: u8, set: u8) {
        debug_assert!((clear | set) & !(mark::STALE | mark::WIN_SENT | mark::FETCHED) == 0);
        // SAFETY: the item is in the table and the lock is held.
        unsafe { present.item.set_marks(present.item.marks() & !clear | set) }
    }

    /// Returns the expiry that a document of a collection gets for the requested one. One that has passed stays.
    #[inline]
    pub(crate) fn limited(&self, collection: u32, expiry: u32) -> u32 {
        let collections = &self.memory.resources.collections;
        if collections.has_limits() {
            collections.limited(collection, expiry, self.now.unix_s)
        } else {
            expiry
        }
    }

    /// The most common write: another value of the same size class over a small item, neither with an expiry. Returns
    /// CAS and seqno, or `None` with nothing changed: then use [`Locked::write`].
    #[inline]
    pub(crate) fn overwrite(
        &mut self,
        present: Present,
        datatype: u8,
        flags: u32,
        value: &[u8],
    ) -> Option<(u64, u64)> {
        if self.has_holds() {
            return None;
        }
        let (seqno, persistent) = (self.state.high_seqno + 1, self.is_persistent());
        // The first unflushed item tells the flusher.
        if self.is_clean_and_followed() {
            return None;
        }
        match &mut self.state.order {
            Some(order) => {
                order.prefetch_slots();
                if !order.reserve(seqno, &self.memory.resources.tenant, self.memory.cache) {
                    return None;
                }
            }
            // The first unflushed item arms the flusher.
            None if persistent => return None,
            None => {}
        }
        if persistent && self.is_full() {
            return None;
        }
        // SAFETY: the item is in the table and the lock is held.
        let room = unsafe { present.item.room_for(present.found.location, flags, value.len()) }?;
        let cas = self.next_cas();
        let accessed = self.now.unix_s & 0xf_ffff;
        let is_compressed = (room.old_datatype | datatype) & SNAPPY != 0;
        if is_compressed {
            self.count_compressed(&self.header(present), -1);
        }
        // SAFETY: as above, and there is room.
        unsafe { present.item.overwrite(&room, cas, seqno, datatype, accessed, flags, value) }
        if is_compressed {
            self.count_compressed(&self.header(present), 1);
        }
        self.renumber(Some(room.old_seqno), seqno, present.found.location);
        let added = value.len().cast_signed() as i64 - room.old_len.cast_signed() as i64;
        if added != 0 {
            self.count(Gauge::Payload, added);
        }
        Some((cas, seqno))
    }

    /// Writes an item as `header` describes it, over `old` if there is one. Returns its new seqno. `header`'s seqno,
    /// lengths and word marks are filled in here. On failure nothing has changed.
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
        self.tell_changes_before(key.collection);
        let seqno = self.state.high_seqno + 1;
        (header.seqno, header.committed) = (seqno, false);
        let header = Self::shaped(key, header, &value);
        // What looks missing may still exist, as a tombstone or a shadow.
        let old = if self.keeps_deleted() { old.or_else(|| self.find(key, hash)) } else { old };
        let old = old.map(|present| (present, self.header(present)));
        let size = header.item_size();
        self.check_space()?;
        self.reserve_seqno(seqno)?;
        let header = self.queue_expiry(hash, old.as_ref().map(|(_, header)| header), header)?;

        let present = match (&old, value) {
            (Some((present, old_header)), NewValue::Parts(first, second))
                if old_header.marks & mark::LARGE == 0
                    && present.found.location.capacity(old_header.item_size())
                        == present.found.location.capacity(size) =>
            {
                self.fill(present.item, key, &header, first, second);
                *present
            }
            (Some((present, old_header)), value) => {
                let mut moved = *present;
                self.memory.resources.heap.prefetch_free(present.found.location);
                let location = self.place(key, &header, value)?;
                self.root.relocate(&mut moved.found, location);
                moved.item = self.item(location);
                self.free(present.found.location, present.item, old_header);
                moved
            }
            (None, value) => {
                self.reserve_slot(hash)?;
                let location = self.place(key, &header, value)?;
                self.insert(hash, location)
            }
        };
        self.recount(&header);
        match &old {
            Some((_, old_header)) => self.exchange(key.collection, old_header, &header),
            None => self.added(key.collection, &header),
        }
        self.renumber(old.map(|(_, header)| header.seqno), seqno, present.found.location);
        Ok((present, seqno))
    }

    /// Returns the header with the lengths and words that key and value require.
    pub(super) fn shaped(key: Key<'_>, mut header: Header, value: &NewValue<'_>) -> Header {
        header.key_len = stored_key_len(key);
        header.value_len = value.len(header.key_len);
        header.inflated_len =
            if header.is_compressed() { value.inflated_len(header.key_len) } else { header.value_len };
        header.marks &= !(mark::LARGE | mark::EXPIRY_QUEUED);
        if value.is_large() {
            header.marks |= mark::LARGE;
        }
        header.with_words()
    }

    /// Makes sure that [`Locked::insert`] finds room in the table.
    pub(super) fn reserve_slot(&mut self, hash: u64) -> Result<(), KvError> {
        let (heap, seed) = (&self.memory.resources.heap, &self.memory.resources.secrets);
        let hash_of = |location| {
            // SAFETY: the locations come from the table and the lock is held.
            hash_stored(unsafe { ItemPtr(heap.address(location)).stored_key() }, seed)
        };
        let reserved = self.root.reserve(&mut self.state.table, &mut self.memory, hash, hash_of);
        if reserved { Ok(()) } else { Err(KvError::NoMemory) }
    }

    /// Puts an item with a new key into the table, which has room.
    pub(super) fn insert(&mut self, hash: u64, location: Location) -> Present {
        self.root.insert(&mut self.state.table, hash, rank::NEW, location);
        let found = self.root.find(hash, |at| at == location);
        let Some(found) = found else { unreachable!("just inserted") };
        Present { found, item: self.item(location) }
    }

    /// Returns true if the budget allows this many bytes more. Nothing is evicted for them.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let tenant = &self.memory.resources.tenant;
        tenant.used() + bytes as u64 <= self.memory.resources.watermarks().refuse
    }

    /// Allocates room for a large item of the vBucket's tenant.
    pub(crate) fn new_large(&mut self, key_len: usize, value_len: usize) -> Result<LargeBlock, KvError> {
        let size = super::large_value_offset(key_len) + value_len;
        LargeBlock::new(&self.memory.resources.tenant, self.memory.cache, size).ok_or(KvError::NoMemory)
    }

    /// Rewrites the header of a large item; its value stays as it is. Returns the new seqno.
    pub(crate) fn rewrite_large(
        &mut self,
        present: Present,
        hash: u64,
        header: Header,
    ) -> Result<u64, KvError> {
        let old = self.header(present);
        let seqno = self.state.high_seqno + 1;
        self.check_space()?;
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
    pub(super) fn reserve_seqno(&mut self, seqno: u64) -> Result<(), KvError> {
        match &self.state.order {
            None if self.is_persistent() => self.arm(),
            Some(order) if order.is_followed() && self.is_clean_and_followed() => self.mark_dirty(),
            _ => {}
        }
        if let Some(order) = &mut self.state.order
            && !order.reserve(seqno, &self.memory.resources.tenant, self.memory.cache)
        {
            return Err(KvError::NoMemory);
        }
        Ok(())
    }

    /// Assigns an item its seqno, and puts its slot into the order in place of the old one. Room is reserved for it.
    #[inline]
    pub(super) fn renumber(&mut self, old: Option<u64>, new: u64, location: Location) {
        self.state.high_seqno = new;
        if let Some(order) = &mut self.state.order {
            order.push(new, location, &self.memory.resources.tenant, self.memory.cache);
            if let Some(old) = old {
                order.retire(old, &self.memory.resources.tenant, self.memory.cache);
            }
            if order.is_followed() {
                self.call_followers(old);
            }
        }
    }

    /// Starts or stops keeping the items in seqno order. Changes nothing if that is so already, or in a persistent
    /// bucket, where the order is the flusher's.
    pub(crate) fn keep_order(&mut self, keep: bool) -> Result<(), KvError> {
        if self.is_persistent() || self.leaves_ends() {
            return Ok(());
        }
        if !keep {
            if let Some(mut order) = self.state.order.take() {
                order.clear(&self.memory.resources.tenant, self.memory.cache);
            }
            return Ok(());
        }
        self.build_order()
    }

    /// Calls `f` with seqno and header of every item in seqno order. Returns false if the order is not kept.
    pub(crate) fn in_order(&mut self, f: &mut dyn FnMut(u64, &Header)) -> bool {
        let heap = &self.memory.resources.heap;
        let Some(order) = &self.state.order else { return false };
        order.iterate(|seqno, location| {
            // SAFETY: a live slot names an item in the table, and the lock is held.
            f(seqno, &unsafe { ItemPtr(heap.address(location)).header() });
        });
        true
    }

    /// Appends to a small item in place, if it fits its allocation.
    pub(crate) fn append_in_place(&mut self, present: Present, tail: &[u8], cas: u64) -> Option<u64> {
        let (old, at) = (self.header(present), present.found.location);
        if old.is_compressed() {
            return None;
        }
        let (seqno, value_len) = (self.state.high_seqno + 1, old.value_len + tail.len());
        let header = Header {
            cas,
            seqno,
            committed: false,
            rev: old.rev + 1,
            value_len,
            inflated_len: value_len,
            datatype: old.datatype & XATTR,
            accessed: self.now.unix_s & 0xf_ffff,
            marks: old.marks & !(mark::FETCHED | mark::STALE | mark::WIN_SENT),
            ..old
        };
        let fits = old.marks & mark::LARGE == 0
            && header.marks & mark::WORDS == header.with_words().marks & mark::WORDS
            && at.capacity(header.item_size()) == at.capacity(old.item_size());
        if !fits || self.is_full() || self.reserve_seqno(seqno).is_err() {
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

    /// Changes the expiry of an item that already has the word, without a new seqno. Returns false if it cannot.
    pub(crate) fn set_expiry_in_place(
        &mut self,
        present: Present,
        hash: u64,
        expiry: u32,
    ) -> Result<bool, KvError> {
        let old = self.header(present);
        if self.leaves_ends()
            || old.marks & mark::HAS_EXPIRY == 0
            || (expiry == 0 && old.marks & mark::LARGE == 0)
        {
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

    /// Deletes a document: gives the deletion its seqno, and leaves a tombstone if somebody has to know of it.
    pub(crate) fn delete(&mut self, present: Present, cas: u64) -> Result<u64, KvError> {
        if self.leaves_tombstones() {
            self.check_space()?;
            match self.leave_tombstone(present, cas, mark::DELETED) {
                // Nobody has to be told.
                Err(KvError::NoMemory) if !self.leaves_ends() => {}
                left => return left,
            }
        }
        self.state.high_seqno += 1;
        self.remove(present);
        Ok(self.state.high_seqno)
    }

    /// Removes an item without a trace.
    pub(super) fn remove(&mut self, present: Present) {
        let (header, collection) = (self.header(present), self.collection_of(present.item));
        self.root.remove(&mut self.state.table, &mut self.memory, &present.found);
        if let Some(order) = &mut self.state.order {
            order.retire(header.seqno, &self.memory.resources.tenant, self.memory.cache);
            self.clear_empty_order();
        }
        self.free(present.found.location, present.item, &header);
        self.removed(collection, &header);
    }

    /// Frees the order if there is nothing that it could name.
    pub(super) fn clear_empty_order(&mut self) {
        let is_empty = self.state.table.items == 0 && !self.has_prepares() && !self.leaves_ends();
        if let Some(order) = self.state.order.as_mut().filter(|_| is_empty) {
            order.clear(&self.memory.resources.tenant, self.memory.cache);
        }
    }

    /// Returns state, chains and pending durable writes, if they differ from the default.
    pub(crate) fn sync_writes(&self) -> Option<&SyncWrites> {
        self.state.rare.as_ref()?.sync_writes.as_deref()
    }

    /// The same, created if they are missing.
    pub(crate) fn sync_writes_mut(&mut self) -> &mut SyncWrites {
        let persisted_seqno = self.persisted_seqno();
        let rare = self.state.rare.get_or_insert_default();
        rare.sync_writes.get_or_insert_with(|| Box::new(SyncWrites::new(persisted_seqno)))
    }

    /// Returns when an expiry window of this vBucket is due.
    pub(crate) fn expiry_due_s(&self) -> Option<u32> {
        self.state.expiry_due_s()
    }

    /// Returns when the earliest window entered under this hold of the lock is due; `u32::MAX` if none was.
    #[inline]
    pub(crate) fn armed_s(&self) -> u32 {
        self.armed_s
    }

    /// Makes sure that an item with an expiry is in the wheel. Returns the header with the mark for it.
    #[inline]
    pub(super) fn queue_expiry(
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
            let (tenant, cache) = (&self.memory.resources.tenant, &mut *self.memory.cache);
            let due_s = wheel.enter(HashPart::of(hash), header.expiry, self.now.unix_s, tenant, cache);
            self.armed_s = self.armed_s.min(due_s.ok_or(KvError::NoMemory)?);
        }
        header.marks |= mark::EXPIRY_QUEUED;
        Ok(header)
    }

    /// Writes an item into newly allocated memory.
    #[inline]
    pub(super) fn place(
        &mut self,
        key: Key<'_>,
        header: &Header,
        value: NewValue<'_>,
    ) -> Result<Location, KvError> {
        match value {
            NewValue::Parts(first, second) => {
                let location = self.memory.resources.heap.allocate(
                    self.memory.cache,
                    header.item_size(),
                    self.memory.owner,
                );
                let location = location.ok_or(KvError::NoMemory)?;
                self.fill(self.item(location), key, header, first, second);
                Ok(location)
            }
            NewValue::Large(block) => {
                // The bucket it was meant for may have been deleted, and created again, while it arrived.
                if !block.is_of(&self.memory.resources.tenant) {
                    return Err(KvError::BucketGone);
                }
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
        // SAFETY: the item's memory is ours under the lock and has room for what the header says; neither slice lies in
        // it (values in place are changed by `append_in_place` alone).
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

    pub(super) fn free(&mut self, location: Location, item: ItemPtr, header: &Header) {
        let size = header.item_size();
        // SAFETY: no slot names the item any more; its size and kind are what its header says.
        unsafe {
            if header.marks & mark::LARGE != 0 {
                large::release(&self.memory.resources.tenant, item.0, size);
            } else {
                self.memory.resources.heap.free(self.memory.cache, location, size);
            }
        }
    }

    pub(super) fn count(&mut self, gauge: Gauge, amount: i64) {
        self.memory.resources.tenant.count(self.memory.cache, gauge, amount);
    }

    pub(super) fn recount(&mut self, header: &Header) {
        self.count(Gauge::Payload, (header.key_len + header.resident_len()).cast_signed() as i64);
        self.count(Gauge::Metadata, header.metadata().cast_signed() as i64);
        self.count_compressed(header, 1);
    }

    pub(super) fn uncount(&mut self, header: &Header) {
        self.count(Gauge::Payload, -((header.key_len + header.resident_len()).cast_signed() as i64));
        self.count(Gauge::Metadata, -(header.metadata().cast_signed() as i64));
        self.count_compressed(header, -1);
    }

    /// Counts the value if it is compressed; `values` is 1 or -1.
    #[inline]
    fn count_compressed(&mut self, header: &Header, values: i64) {
        if header.is_compressed() {
            self.count(Gauge::CompressedCount, values);
            self.count(Gauge::Compressed, values * header.value_len.cast_signed() as i64);
            self.count(Gauge::Inflated, values * header.inflated_len.cast_signed() as i64);
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
