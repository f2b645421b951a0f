//! What is left of deleted documents, and what only vBuckets of persistent buckets have: the flusher's walk, ejected
//! values.
//!
//! ```text
//!   clean     no order, no mark; everything up to high_seqno is on disk
//!   dirty     order above the persisted seqno, marked in the bucket's DirtySet; armed by the first change
//!   flush     walk from the persisted seqno to the end of the order, under the lock in slices; the seqno that is the highest
//!             when the walk meets the end is S: for every key its newest version up to S has been handed out
//!   flushed   persisted = S, slots up to S trimmed, tombstones and aborts up to S freed
//! ```
//! A tombstone stays in the table until it is flushed: so it has its place in the order, and an older version on disk
//! cannot be mistaken for the current one. What is noted of it then is in [`super::deletions`]. An ejected item keeps
//! header and key; its record on disk is found by the seqno. A shadow is a deleted document that keeps extended
//! attributes: system attributes of one that was deleted, or what a transaction stages for one that does not exist yet.
//! Flusher and journal treat it as a document; it expires after [`SHADOW_AGE_S`].

use arrayvec::ArrayVec;
use memory::{Gauge, ItemHeap, LargeBlock, Location, Pin, prefetch};
use wire::binary::datatype::XATTR;
use wire::xattrs;

use super::deletions::Deletions;
use super::dirty::DirtySet;
use super::document::PinnedValue;
use super::item::{Header, ItemPtr, Kind, STORED_KEY_MAX, collection_of, inflated_len, mark};
use super::order::SeqnoOrder;
use super::replay::Replay;
use super::vbucket::{Dead, Locked, Present, Rare};
use crate::sync_writes::Setting;
use crate::terms::Terms;
use crate::{Key, KvError};

/// How many items ahead the walk prefetches, and how many lines of each.
const AHEAD_ITEMS: usize = 8;
const LINE_BYTES: usize = 64;
const AHEAD_LINES: usize = 2;
/// A value stays in memory if ejecting it gains less than this: fetching it costs a read.
const EJECT_GAIN_LEAST: usize = 8;
/// A shadow goes after this time: as long as tombstones stay on disk by default.
pub(crate) const SHADOW_AGE_S: u32 = 3 * 24 * 3600;

/// The persistent side of a vBucket.
#[derive(Default)]
pub(crate) struct Durable {
    /// Everything up to this seqno is on disk.
    pub(crate) persisted_seqno: u64,
    /// The flush_all that is on disk reaches up to this seqno.
    pub(crate) persisted_flushed: u64,
    /// Deletions up to this seqno may be forgotten, and those up to the other are: that is on disk.
    pub(crate) purged_seqno: u64,
    pub(crate) purged_persisted: u64,
    /// Highest revision of a deleted document: a new one starts above it.
    pub(crate) max_deleted_rev: u64,
    /// Tombstones in the table.
    pub(super) tombstones: u32,
    /// Those that are flushed.
    pub(super) deletions: Deletions,
    /// Aborts in the order.
    pub(super) aborts: u32,
    /// Counts changes of the vBucket's state, which is to be written if the count on disk differs.
    pub(crate) state_version: u64,
    pub(crate) state_persisted: u64,
    /// What seqnos on disk are above those in memory: raised when the vBucket begins anew with seqno 1. Records up to
    /// the base are void once that is on disk.
    pub(crate) base: u64,
    pub(crate) base_persisted: u64,
    /// History ids, oldest first, each with the seqno it began at; the last is the present one's.
    pub(crate) histories: Vec<(u64, u64)>,
    /// The terms of its changes.
    pub(crate) terms: Terms,
    /// The role as found on disk, until it takes effect.
    pub(crate) setting: Option<Setting>,
    /// The end of its last history may be lost.
    pub(crate) may_lack: bool,
    /// Set while the journal is read.
    pub(super) replay: Option<Box<Replay>>,
}

/// What of a vBucket's state is on disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OnDisk {
    pub(crate) version: u64,
    pub(crate) flushed_seqno: u64,
    pub(crate) purged_seqno: u64,
    pub(crate) base: u64,
}

/// An unflushed item, as the flusher encodes it.
pub(crate) struct Dirty<'a> {
    pub(crate) header: &'a Header,
    pub(crate) stored_key: &'a [u8],
    /// Empty for tombstones and aborts.
    pub(crate) value: &'a [u8],
    /// Level of a prepare.
    pub(crate) level: u8,
}

impl Dirty<'_> {
    /// Returns true if its value is so large that it is pinned in place for use without the lock, not copied.
    pub(crate) fn is_long(&self) -> bool {
        self.header.marks & mark::LARGE != 0 && !self.value.is_empty()
    }
}

/// An unflushed item, for use without the lock.
pub(crate) struct Taken {
    pub(crate) header: Header,
    stored_key: Vec<u8>,
    level: u8,
    value: TakenValue,
}

enum TakenValue {
    /// A large value, pinned in place.
    Pinned(Pin),
    Copied(Vec<u8>),
}

impl Taken {
    /// Returns the value where it lies, if it is a long one.
    pub(crate) fn into_pinned(self) -> Option<PinnedValue> {
        match self.value {
            TakenValue::Pinned(pin) => Some(PinnedValue::new(pin)),
            TakenValue::Copied(_) => None,
        }
    }

    pub(crate) fn as_dirty(&self) -> Dirty<'_> {
        let value = match &self.value {
            TakenValue::Pinned(pin) => pin,
            TakenValue::Copied(bytes) => bytes.as_slice(),
        };
        Dirty { header: &self.header, stored_key: &self.stored_key, value, level: self.level }
    }
}

/// How far a walk got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Walked {
    /// To the end: everything up to the highest seqno was handed out.
    ToTheEnd,
    /// A slice, and there is more.
    Slice,
    /// To an item that was not taken.
    Refused,
}

impl Durable {
    /// Returns true if a prepare was aborted and that is not on disk.
    pub(crate) fn has_unflushed_aborts(&self) -> bool {
        self.aborts > 0
    }
}

/// A value that comes back from disk.
pub(crate) enum PutBack<'a> {
    /// At most [`crate::LARGE_VALUE`]: it is copied.
    Short(&'a [u8]),
    /// In the item that it is to be in.
    Long(LargeBlock),
}

impl Locked<'_> {
    #[inline]
    pub(crate) fn is_persistent(&self) -> bool {
        self.memory.resources.dirty.is_some()
    }

    /// Returns true if the disk is full.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.memory.resources.dirty.as_ref().is_some_and(DirtySet::is_full)
    }

    /// [`KvError::NoSpace`] while the disk is full: nothing new is accepted. What ends a prepare is accepted all the
    /// same.
    #[inline]
    pub(super) fn check_space(&self) -> Result<(), KvError> {
        if self.is_full() { Err(KvError::NoSpace) } else { Ok(()) }
    }

    pub(crate) fn durable(&mut self) -> &mut Durable {
        self.state.rare.get_or_insert_default().durable.get_or_insert_default()
    }

    pub(super) fn durable_if_any(&self) -> Option<&Durable> {
        self.state.rare.as_ref()?.durable.as_deref()
    }

    /// Starts the list of unflushed items before the first one, and tells the flusher.
    #[cold]
    pub(super) fn arm(&mut self) {
        let durable = self.durable();
        if durable.histories.is_empty() {
            // The very first change: the state is written with it.
            durable.state_version += 1;
        }
        let mut order = SeqnoOrder::above(self.state.high_seqno);
        order.set_followed(self.is_followed());
        self.state.order = Some(Box::new(order));
        self.mark_dirty();
    }

    /// Notes that state or chains are about to change, and have to be written.
    pub(crate) fn note_state(&mut self) {
        if !self.is_persistent() {
            return;
        }
        let durable = self.durable();
        match &mut durable.replay {
            Some(replay) => replay.change(),
            None => {
                durable.state_version += 1;
                self.mark_dirty();
            }
        }
    }

    /// Returns the version of the state, and the one that is on disk.
    pub(crate) fn state_version(&self) -> u64 {
        self.durable_if_any().map_or(0, |durable| durable.state_version)
    }

    /// See [`Locked::state_version`].
    pub(crate) fn state_persisted(&self) -> u64 {
        self.durable_if_any().map_or(0, |durable| durable.state_persisted)
    }

    /// Marks the vBucket if there is anything to flush.
    pub(crate) fn mark_if_dirty(&mut self) {
        let durable = self.durable();
        if durable.state_version > durable.state_persisted || self.state.order.is_some() {
            self.mark_dirty();
        }
    }

    /// Marks the vBucket, since there is something to flush.
    pub(crate) fn mark_dirty(&self) {
        if let Some(dirty) = &self.memory.resources.dirty {
            dirty.mark(self.memory.owner);
        }
    }

    /// Returns the revision of a new document.
    pub(crate) fn first_rev(&self) -> u64 {
        self.durable_if_any().map_or(1, |durable| durable.max_deleted_rev + 1)
    }

    /// See [`Durable::base`].
    pub(crate) fn base(&self) -> u64 {
        self.durable_if_any().map_or(0, |durable| durable.base)
    }

    /// Returns the last seqno assigned.
    pub(crate) fn high_seqno(&self) -> u64 {
        self.state.high_seqno
    }

    /// Everything up to this seqno is on disk; in an ephemeral bucket nothing is.
    pub(crate) fn persisted_seqno(&self) -> u64 {
        self.durable_if_any().map_or(0, |durable| durable.persisted_seqno)
    }

    /// Returns how many items are not on disk.
    pub(crate) fn unflushed(&mut self) -> u32 {
        let persisted_seqno = self.persisted_seqno();
        match &mut self.state.order {
            Some(order) if self.memory.resources.dirty.is_some() => {
                let (tenant, cache) = (&self.memory.resources.tenant, &mut *self.memory.cache);
                if order.is_followed() {
                    order.live_above(persisted_seqno, tenant, cache)
                } else {
                    order.live(tenant, cache)
                }
            }
            _ => 0,
        }
    }

    // ---- tombstones -----------------------------------------------------------------------------------------------

    /// Returns true if the table may have items of deleted keys.
    #[inline]
    pub(super) fn keeps_deleted(&self) -> bool {
        let has_any = |rare: &Rare| {
            rare.shadows > 0 || rare.durable.as_ref().is_some_and(|durable| durable.tombstones > 0)
        };
        self.leaves_ends() || self.state.rare.as_deref().is_some_and(has_any)
    }

    /// Replaces an item by a tombstone, which says why: [`mark::DELETED`] or [`mark::EXPIRED`]. Returns its seqno.
    pub(super) fn leave_tombstone(&mut self, present: Present, cas: u64, why: u8) -> Result<u64, KvError> {
        let old = self.header(present);
        let seqno = self.state.high_seqno + 1;
        self.reserve_seqno(seqno)?;
        let header = Header {
            cas,
            seqno,
            kind: Kind::Tombstone,
            committed: false,
            rev: old.rev + 1,
            value_len: 0,
            datatype: 0,
            marks: why,
            flags: 0,
            expiry: self.now.unix_s.max(1),
            ..old
        }
        .with_words();
        let location = self.copy_without_value(present.item, &header)?;
        self.supersede(present, &old, location, &header);
        self.note_end(seqno, location);
        Ok(seqno)
    }

    /// Replaces an item by a shadow with these attributes, which are not empty. Returns its seqno.
    pub(super) fn leave_shadow(&mut self, present: Present, cas: u64, xattrs: &[u8]) -> Result<u64, KvError> {
        let old = self.header(present);
        let seqno = self.state.high_seqno + 1;
        self.reserve_seqno(seqno)?;
        let header = Header { cas, seqno, rev: old.rev + 1, ..self.shadow_header() };
        let hash = self.hash_of(present.found.location);
        // The document's own entry in the wheel may just have been taken from it.
        let header = self.queue_expiry(hash, None, header)?;
        let mut stored_key = ArrayVec::<u8, STORED_KEY_MAX>::new();
        // SAFETY: the item is in the table and the lock is held.
        let is_copied = stored_key.try_extend_from_slice(unsafe { present.item.stored_key() });
        debug_assert!(is_copied.is_ok(), "a stored key has its longest length");
        let (location, header) = self.place_stored(&stored_key, header, xattrs)?;
        self.supersede(present, &old, location, &header);
        Ok(seqno)
    }

    /// Returns the revision of a key's shadow.
    #[inline]
    pub(crate) fn shadow_rev(&self, key: Key<'_>, hash: u64) -> Option<u64> {
        self.state.rare.as_ref().filter(|rare| rare.shadows > 0)?;
        self.shadow(key, hash).map(|present| self.header(present).rev)
    }

    /// Returns the header of a shadow that is left now, without CAS, seqno and revision.
    pub(crate) fn shadow_header(&self) -> Header {
        Header {
            cas: 0,
            seqno: 0,
            kind: Kind::Shadow,
            committed: false,
            rev: 0,
            value_len: 0,
            inflated_len: 0,
            key_len: 0,
            datatype: XATTR,
            marks: 0,
            accessed: self.now.unix_s & 0xf_ffff,
            flags: 0,
            expiry: self.now.unix_s.saturating_add(SHADOW_AGE_S),
        }
    }

    /// Puts the item at `location`, which has a new seqno, in the place of another.
    fn supersede(&mut self, old: Present, old_header: &Header, location: Location, header: &Header) {
        let collection = self.collection_of(old.item);
        let mut moved = old;
        self.root.relocate(&mut moved.found, location);
        self.free(old.found.location, old.item, old_header);
        self.recount(header);
        self.exchange(collection, old_header, header);
        self.renumber(Some(old_header.seqno), header.seqno, location);
    }

    /// Returns true if an expired item leaves something when it goes.
    pub(super) fn leaves_trace(&self, present: Present) -> bool {
        self.leaves_tombstones() || !self.system_xattrs(present).is_empty()
    }

    /// Returns the attributes of a document that outlive it. A value that is on disk only has none.
    pub(crate) fn system_xattrs(&self, present: Present) -> Vec<u8> {
        let header = self.header(present);
        if !header.has_xattrs() || header.kind != Kind::Document {
            return Vec::new();
        }
        // SAFETY: the item is in the table and the lock is held.
        let value = unsafe { present.item.value(&header) };
        xattrs::retained(xattrs::split(value).0, xattrs::is_system)
    }

    /// Replaces an expired item by a tombstone or a shadow, unless a prepare waits for its key: the prepare must end
    /// first.
    pub(super) fn delete_expired(&mut self, present: Present) -> bool {
        let hash = self.hash_of(present.found.location);
        if self.pending(hash).is_some() {
            return false;
        }
        let cas = self.next_cas();
        let xattrs = self.system_xattrs(present);
        let left = if xattrs.is_empty() {
            self.leave_tombstone(present, cas, mark::EXPIRED)
        } else {
            self.leave_shadow(present, cas, &xattrs)
        };
        if left.is_err() && !self.is_persistent() {
            // It must not stay: writers of an ephemeral bucket do not look for what is expired.
            self.remove_unseen(present);
            return true;
        }
        left.is_ok()
    }

    /// Finds a key's shadow.
    pub(crate) fn shadow(&self, key: Key<'_>, hash: u64) -> Option<Present> {
        let present = self.find(key, hash)?;
        let is_shadow = self.header(present).kind == Kind::Shadow;
        (is_shadow && self.death(present.item) == Some(Dead::Deleted)).then_some(present)
    }

    /// Returns true if a key is deleted, and that is not on disk.
    pub(crate) fn has_tombstone(&self, key: Key<'_>, hash: u64) -> bool {
        let found = self.find(key, hash).map(|present| self.header(present));
        // Others are kept for followers.
        let least = self.state.flushed_seqno.max(self.persisted_seqno());
        self.is_persistent()
            && found.is_some_and(|header| header.kind == Kind::Tombstone && header.seqno > least)
    }

    /// Allocates a block with this header, which has no value, and the key of `from`.
    fn copy_without_value(&mut self, from: ItemPtr, header: &Header) -> Result<Location, KvError> {
        debug_assert_eq!(header.resident_len(), 0);
        let (heap, owner) = (&self.memory.resources.heap, self.memory.owner);
        let location =
            heap.allocate(self.memory.cache, header.item_size(), owner).ok_or(KvError::NoMemory)?;
        let item = ItemPtr(heap.address(location));
        // SAFETY: the block is ours and has room for header and key; `from` is another live item under this lock.
        unsafe {
            item.set_header(header);
            item.set_stored_key(from.stored_key());
        }
        Ok(location)
    }

    /// Returns the collection of an item of this vBucket.
    #[inline]
    pub(super) fn collection_of(&self, item: ItemPtr) -> u32 {
        // SAFETY: the item is live, and the lock is held.
        collection_of(unsafe { item.stored_key() })
    }

    /// Returns true if the collection of a stored key has been dropped.
    #[inline]
    pub(crate) fn is_dropped(&self, stored_key: &[u8]) -> bool {
        !self.memory.resources.collections.has(collection_of(stored_key))
    }

    /// Notes that an item with the header `new`, whose key was not there, is in the table now.
    pub(super) fn added(&mut self, collection: u32, new: &Header) {
        match new.kind {
            Kind::Tombstone => self.note_tombstone(new.rev),
            Kind::Shadow => {
                self.state.rare.get_or_insert_default().shadows += 1;
                if self.is_persistent() {
                    let durable = self.durable();
                    durable.max_deleted_rev = durable.max_deleted_rev.max(new.rev);
                }
            }
            _ => {
                self.count(Gauge::Count, 1);
                self.memory.resources.collections.count(collection, 1);
            }
        }
    }

    /// Notes that an item with the header `new` has replaced one with the header `old`.
    #[inline]
    pub(super) fn exchange(&mut self, collection: u32, old: &Header, new: &Header) {
        if (old.kind, new.kind) == (Kind::Document, Kind::Document) {
            self.uncount(old);
            return self.unlock_seqno(old.seqno);
        }
        self.added(collection, new);
        self.removed(collection, old);
    }

    /// Notes that an item with this header is not in the table any more.
    pub(super) fn removed(&mut self, collection: u32, old: &Header) {
        self.uncount(old);
        self.unlock_seqno(old.seqno);
        match old.kind {
            Kind::Tombstone => {
                let durable = self.durable();
                durable.tombstones -= 1;
                return;
            }
            Kind::Shadow => {
                let rare = self.state.rare.get_or_insert_default();
                rare.shadows -= 1;
                return;
            }
            Kind::Ejected => self.count_ejected(-1, old),
            _ => {}
        }
        self.count(Gauge::Count, -1);
        self.memory.resources.collections.count(collection, -1);
    }

    fn note_tombstone(&mut self, rev: u64) {
        let durable = self.durable();
        durable.tombstones += 1;
        durable.max_deleted_rev = durable.max_deleted_rev.max(rev);
        // The state keeps what is lost with the tombstone: the revision, and the seqno.
        durable.state_version += 1;
    }

    pub(super) fn note_abort(&mut self) {
        let durable = self.durable();
        durable.aborts += 1;
        durable.state_version += 1;
    }

    pub(super) fn count_ejected(&self, items: i64, header: &Header) {
        if let Some(dirty) = &self.memory.resources.dirty {
            dirty.count_ejected(items, items * header.value_len.cast_signed() as i64);
        }
    }

    // ---- the flusher's walk ---------------------------------------------------------------------------------------

    /// Hands out the unflushed items above `after` in seqno order, until `take` refuses one or `slices` times
    /// [`super::vbucket::SLICE_ITEMS`] are done. `after` becomes the seqno of the last one taken.
    pub(crate) fn walk_dirty(
        &mut self,
        after: &mut u64,
        slices: usize,
        take: impl FnMut(&Dirty<'_>) -> bool,
    ) -> Walked {
        self.walk_order(after, u64::MAX, slices, take)
    }

    /// As [`Locked::walk_dirty`], of all items in the order up to the seqno `end`.
    pub(super) fn walk_order(
        &mut self,
        after: &mut u64,
        end: u64,
        slices: usize,
        mut take: impl FnMut(&Dirty<'_>) -> bool,
    ) -> Walked {
        for _ in 0..slices {
            let Some(order) = &mut self.state.order else { return Walked::ToTheEnd };
            let slots = order.next(*after, &self.memory.resources.tenant, self.memory.cache);
            if slots.is_empty() {
                return Walked::ToTheEnd;
            }
            let ahead = |at: usize| {
                if let Some((_, location)) = slots.get(at) {
                    self.load_ahead(*location);
                }
            };
            (0..AHEAD_ITEMS).for_each(ahead);
            for (at, (seqno, location)) in slots.iter().enumerate() {
                if *seqno > end {
                    return Walked::ToTheEnd;
                }
                ahead(at + AHEAD_ITEMS);
                if !self.hand_out(*location, &mut take) {
                    return Walked::Refused;
                }
                *after = *seqno;
            }
        }
        Walked::Slice
    }

    /// Starts loading an item.
    #[inline]
    pub(super) fn load_ahead(&self, location: Location) {
        let item = self.memory.resources.heap.address(location).as_ptr();
        for line in 0..AHEAD_LINES {
            prefetch(item.wrapping_add(line * LINE_BYTES));
        }
    }

    #[inline]
    pub(super) fn hand_out(&self, location: Location, take: &mut impl FnMut(&Dirty<'_>) -> bool) -> bool {
        let item = self.item(location);
        // SAFETY: a live slot names a live item, and the lock is held as long as the parts are used.
        let (header, stored_key) = unsafe { (item.header(), item.stored_key()) };
        let value: &[u8] = match header.kind {
            Kind::Tombstone | Kind::Abort | Kind::PrepareDelete | Kind::Ejected => &[],
            // SAFETY: as above.
            Kind::Document | Kind::Prepare | Kind::Shadow | Kind::PrepareShadow => unsafe {
                item.value(&header)
            },
        };
        let level =
            if header.kind.is_prepare() { self.prepared(header.seqno).map_or(0, |p| p.level) } else { 0 };
        take(&Dirty { header: &header, stored_key, value, level })
    }

    /// Returns the next unflushed item above `after`, for use without the lock.
    pub(crate) fn next_dirty(&mut self, after: u64) -> Option<Taken> {
        let order = self.state.order.as_mut()?;
        let slots = order.next(after, &self.memory.resources.tenant, self.memory.cache);
        let (_, location) = slots.first()?;
        Some(self.taken(*location))
    }

    /// Returns all unflushed items above `after`, for use without the lock.
    pub(crate) fn all_dirty(&mut self, mut after: u64) -> Vec<Taken> {
        let mut taken = Vec::new();
        while let Some(order) = &mut self.state.order {
            let slots = order.next(after, &self.memory.resources.tenant, self.memory.cache);
            let Some((last, _)) = slots.last() else { break };
            after = *last;
            taken.extend(slots.iter().map(|(_, location)| self.taken(*location)));
        }
        taken
    }

    pub(super) fn taken(&self, location: Location) -> Taken {
        let item = self.item(location);
        let mut taken = None;
        self.hand_out(location, &mut |dirty| {
            let value = if dirty.is_long() {
                let (tenant, size) = (&self.memory.resources.tenant, dirty.header.item_size());
                // SAFETY: the item is large, linked, and the lock is held.
                let pin = unsafe { Pin::new(tenant, item.0, size, ItemPtr::value_offset(dirty.header)) };
                TakenValue::Pinned(pin)
            } else {
                TakenValue::Copied(dirty.value.to_vec())
            };
            let (header, stored_key) = (*dirty.header, dirty.stored_key.to_vec());
            taken = Some(Taken { header, stored_key, level: dirty.level, value });
            true
        });
        taken.unwrap_or_else(|| unreachable!("an item is handed out"))
    }

    /// Notes that everything up to `seqno` is on disk, and this state. Returns true if there is more to flush already.
    pub(crate) fn complete(&mut self, seqno: u64, state: OnDisk) -> bool {
        let durable = self.durable();
        durable.persisted_seqno = durable.persisted_seqno.max(seqno);
        durable.state_persisted = durable.state_persisted.max(state.version);
        durable.persisted_flushed = durable.persisted_flushed.max(state.flushed_seqno);
        durable.purged_persisted = durable.purged_persisted.max(state.purged_seqno);
        durable.base_persisted = durable.base_persisted.max(state.base);
        let has_ends = durable.tombstones > 0 || durable.aborts > 0;
        let floor = self.trimmed_to(seqno);
        if has_ends {
            self.free_flushed_ends(floor);
        }
        let (tenant, cache) = (&self.memory.resources.tenant, &mut *self.memory.cache);
        if let Some(order) = &mut self.state.order
            && order.trim(floor, tenant, cache)
        {
            order.clear(tenant, cache);
            self.state.order = None;
        }
        let is_state_dirty =
            self.durable_if_any().is_some_and(|durable| durable.state_version > durable.state_persisted);
        // What had a later seqno may be gone without a trace.
        is_state_dirty || self.state.high_seqno > seqno
    }

    /// Frees the tombstones and aborts up to `seqno`.
    fn free_flushed_ends(&mut self, seqno: u64) {
        let mut after = 0;
        while let Some(order) = &mut self.state.order {
            let slots = order.next(after, &self.memory.resources.tenant, self.memory.cache);
            let Some((last, _)) = slots.last() else { return };
            after = *last;
            for (at, location) in slots {
                if at > seqno {
                    return;
                }
                let item = self.item(location);
                // SAFETY: a live slot names a live item, and the lock is held.
                let header = unsafe { item.header() };
                match header.kind {
                    Kind::Tombstone => {
                        let present = self.present_at(location);
                        self.note_deletion(self.hash_of(location), &header);
                        self.remove(present);
                    }
                    Kind::Abort => self.free_abort(at, location, &header),
                    _ => {}
                }
            }
        }
    }

    /// Frees an abort, which is in the order alone.
    pub(super) fn free_abort(&mut self, seqno: u64, location: Location, header: &Header) {
        self.durable().aborts -= 1;
        self.free_block(location, header);
        if let Some(order) = &mut self.state.order {
            order.retire(seqno, &self.memory.resources.tenant, self.memory.cache);
        }
    }

    // ---- ejection -------------------------------------------------------------------------------------------------

    /// Returns true if the value may be ejected: the document is alive and on disk, and there is something to gain.
    pub(super) fn may_eject(&self, at: Location) -> bool {
        // SAFETY: the item is in the table and the lock is held.
        let header = unsafe { self.item(at).header() };
        header.kind == Kind::Document
            && header.seqno <= self.persisted_seqno()
            && at.footprint(header.item_size())
                >= at.footprint(header.item_size() - header.value_len) + EJECT_GAIN_LEAST
    }

    /// Frees a document's value. Returns the bytes gained.
    pub(super) fn eject(&mut self, present: Present) -> u64 {
        let old = self.header(present);
        let marks = old.marks & !mark::LARGE;
        // The value may be compressed in memory only, and not on the disk it comes back from.
        let header = Header { kind: Kind::Ejected, marks, value_len: old.inflated_len, ..old }.with_words();
        let Ok(location) = self.copy_without_value(present.item, &header) else { return 0 };
        let mut moved = present;
        self.root.relocate(&mut moved.found, location);
        if let Some(order) = &mut self.state.order {
            // One that is flushed has a slot for as long as a follower may need it.
            order.relocate(old.seqno, location);
        }
        self.free(present.found.location, present.item, &old);
        self.recount(&header);
        self.uncount(&old);
        self.count_ejected(1, &header);
        let size = |at: Location, header: &Header| at.footprint(header.item_size()) as u64;
        size(present.found.location, &old).saturating_sub(size(location, &header))
    }

    /// Returns seqno on disk, stored key and value length of a live document whose value is not in memory.
    pub(crate) fn ejected(&self, key: Key<'_>, hash: u64) -> Option<(u64, Vec<u8>, usize)> {
        let present = self.live(key, hash)?;
        let header = self.header(present);
        // SAFETY: the item is in the table and the lock is held.
        let stored_key = || unsafe { present.item.stored_key().to_vec() };
        (header.kind == Kind::Ejected).then(|| (self.base() + header.seqno, stored_key(), header.value_len))
    }

    /// Returns true if the document that has this seqno on disk is still there, without its value. One that flush_all
    /// has removed does not count: it need not be on disk.
    pub(crate) fn is_ejected(&self, stored_key: &[u8], hash: u64, on_disk: u64) -> bool {
        self.find_stored(stored_key, hash).is_some_and(|present| {
            let Header { kind, seqno, .. } = self.header(present);
            kind == Kind::Ejected && seqno > self.state.flushed_seqno && self.base() + seqno == on_disk
        })
    }

    /// Returns the seqno of what the table has of a key: a document, dead or alive, or a tombstone.
    pub(crate) fn current_seqno(&self, stored_key: &[u8]) -> Option<u64> {
        let hash = super::hashing::hash_stored(stored_key, &self.memory.resources.secrets);
        self.find_stored(stored_key, hash).map(|present| self.header(present).seqno)
    }

    /// Returns the seqno up to which flush_all has removed everything.
    pub(crate) fn flushed_seqno(&self) -> u64 {
        self.state.flushed_seqno
    }

    /// Restores the value of an ejected item if the item is still the one with this seqno on disk.
    pub(crate) fn put_back(
        &mut self,
        stored_key: &[u8],
        hash: u64,
        on_disk: u64,
        datatype: u8,
        value: PutBack<'_>,
    ) -> Result<(), KvError> {
        let Some(present) = self.find_stored(stored_key, hash) else { return Ok(()) };
        let old = self.header(present);
        if old.kind != Kind::Ejected || self.base() + old.seqno != on_disk {
            return Ok(());
        }
        // It may have been compressed in memory since it was written.
        let header = Header { kind: Kind::Document, datatype, ..old };
        let (location, header) = match value {
            PutBack::Short(value) => self.place_stored(stored_key, header, value)?,
            PutBack::Long(block) => self.place_large(stored_key, header, block),
        };
        let mut moved = present;
        self.root.relocate(&mut moved.found, location);
        if let Some(order) = &mut self.state.order {
            // One that is flushed has a slot for as long as a follower may need it.
            order.relocate(old.seqno, location);
        }
        self.free(present.found.location, present.item, &old);
        self.recount(&header);
        self.uncount(&old);
        self.count_ejected(-1, &old);
        moved.item = self.item(location);
        self.record_access(moved);
        Ok(())
    }

    /// Writes an item without its value. Returns the header with its words.
    pub(super) fn place_ejected(
        &mut self,
        stored_key: &[u8],
        mut header: Header,
    ) -> Result<(Location, Header), KvError> {
        debug_assert_eq!(header.kind, Kind::Ejected);
        header.key_len = stored_key.len();
        header.marks &= !mark::LARGE;
        let header = header.with_words();
        let (heap, owner) = (&self.memory.resources.heap, self.memory.owner);
        let location =
            heap.allocate(self.memory.cache, header.item_size(), owner).ok_or(KvError::NoMemory)?;
        let item = ItemPtr(heap.address(location));
        // SAFETY: the block is ours and has room for header and key.
        unsafe {
            item.set_header(&header);
            item.set_stored_key(stored_key);
        }
        Ok((location, header))
    }

    /// Writes an item whose value is in place, under a key that has its collection id already. Returns the header with
    /// its words.
    pub(super) fn place_large(
        &mut self,
        stored_key: &[u8],
        mut header: Header,
        block: LargeBlock,
    ) -> (Location, Header) {
        header.key_len = stored_key.len();
        header.value_len = block.size() - super::large_value_offset(header.key_len);
        header.marks |= mark::LARGE;
        let mut header = header.with_words();
        let location = block.into_location(self.memory.cache);
        let item = self.item(location);
        // SAFETY: the block is ours, with room for header, key and the value that is in place already.
        unsafe {
            item.set_header(&header);
            item.set_stored_key(stored_key);
            header.inflated_len = item.header().inflated_len;
        }
        (location, header)
    }

    /// Writes an item under a key that has its collection id already. Returns the header with its words.
    pub(super) fn place_stored(
        &mut self,
        stored_key: &[u8],
        mut header: Header,
        value: &[u8],
    ) -> Result<(Location, Header), KvError> {
        header.key_len = stored_key.len();
        header.value_len = value.len();
        header.inflated_len = if header.is_compressed() { inflated_len(value) } else { value.len() };
        header.marks &= !mark::LARGE;
        if value.len() > crate::LARGE_VALUE {
            header.marks |= mark::LARGE;
            let header = header.with_words();
            let mut block = self.new_large(header.key_len, value.len())?;
            let from = ItemPtr::value_offset(&header);
            block.window(from..from + value.len()).copy_from_slice(value);
            return Ok(self.place_large(stored_key, header, block));
        }
        let header = header.with_words();
        let heap = &self.memory.resources.heap;
        let location = heap
            .allocate(self.memory.cache, header.item_size(), self.memory.owner)
            .ok_or(KvError::NoMemory)?;
        let item = self.item(location);
        // SAFETY: the block is ours, with room for header, key and value, none of which lies in it.
        unsafe {
            item.set_header(&header);
            item.set_stored_key(stored_key);
            item.value_mut(&header).copy_from_slice(value);
        }
        Ok((location, header))
    }
}
