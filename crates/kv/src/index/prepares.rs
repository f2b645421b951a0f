//! Prepared writes of one vBucket: blocks that are not in the table, until they are committed or aborted.
//!
//! ```text
//!   by_seqno   Prepared ...      in the order of their seqnos: commits and most aborts take the first
//!   by_key     hash -> seqno     one per key: a key with a pending prepare accepts no other write
//! ```
//! Meanwhile readers see the committed version, since only that is in the table. A prepare has a slot in the
//! seqno order like any other item. A commit gives its block a new seqno and puts it into the table; an
//! abort gives it a new seqno and leaves it to the flusher.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use arrayvec::ArrayVec;
use memory::{ItemHeap, Location};

use super::item::{Header, ItemPtr, Kind, collection_of};
use super::vbucket::{Locked, NewValue, Present};
use crate::{Key, KvError};

/// Level of a prepare that a majority must have on disk.
pub(crate) const PERSIST_TO_MAJORITY: u8 = 3;

/// A prepared write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prepared {
    pub(crate) seqno: u64,
    pub(super) hash: u64,
    pub(super) location: Location,
    /// The durability level that was requested.
    pub(crate) level: u8,
}

/// The keys of the map are hashes already, seeded per bucket.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(false, "{} bytes that are no hash", bytes.len());
    }
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The prepared writes of a vBucket.
#[derive(Default)]
pub(super) struct Prepares {
    by_seqno: VecDeque<Prepared>,
    by_key: HashMap<u64, u64, BuildHasherDefault<AsItIs>>,
    /// Those up to this seqno may have been committed before: who was told so must not see what was before them.
    adopted_seqno: u64,
}

impl Prepares {
    fn position(&self, seqno: u64) -> Option<usize> {
        self.by_seqno.binary_search_by_key(&seqno, |prepared| prepared.seqno).ok()
    }
}

/// The result of a commit or an abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Its seqno.
    pub(crate) seqno: u64,
    /// The CAS of what was prepared.
    pub(crate) cas: u64,
    /// It was to be committed in a collection that has been dropped, and was aborted.
    pub(crate) is_dropped: bool,
}

impl Locked<'_> {
    /// Returns the seqno of the prepare that this key waits for. (Two keys of one hash wait for one another.)
    #[inline]
    pub(crate) fn pending(&self, hash: u64) -> Option<u64> {
        let prepares = self.state.rare.as_ref()?.prepares.as_ref()?;
        prepares.by_key.get(&hash).copied()
    }

    /// Returns the prepared write of this seqno.
    pub(crate) fn prepared(&self, seqno: u64) -> Option<Prepared> {
        let prepares = self.state.rare.as_ref()?.prepares.as_ref()?;
        prepares.by_seqno.get(prepares.position(seqno)?).copied()
    }

    /// Returns the CAS of the prepared write of this seqno.
    pub(crate) fn prepared_cas(&self, seqno: u64) -> Option<u64> {
        let item = self.item(self.prepared(seqno)?.location);
        // SAFETY: a prepared block is live, and the lock is held.
        Some(unsafe { item.header() }.cas)
    }

    /// Returns all prepared writes in seqno order.
    pub(crate) fn all_prepared(&self) -> Vec<Prepared> {
        let prepares = self.state.rare.as_ref().and_then(|rare| rare.prepares.as_ref());
        prepares.map(|prepares| prepares.by_seqno.iter().copied().collect()).unwrap_or_default()
    }

    /// Notes that all that is prepared may have been committed before. Returns true if there is any.
    pub(crate) fn note_adopted(&mut self) -> bool {
        let high_seqno = self.state.high_seqno;
        let prepares = self.state.rare.as_mut().and_then(|rare| rare.prepares.as_mut());
        if let Some(prepares) = prepares {
            prepares.adopted_seqno = high_seqno;
            return true;
        }
        false
    }

    /// Returns true if a key waits for a prepare that may have been committed before. A copy shows what it has.
    #[cold]
    pub(crate) fn is_adopted(&self, hash: u64) -> bool {
        let prepares = self.state.rare.as_ref().and_then(|rare| rare.prepares.as_ref());
        !self.is_inactive()
            && prepares.is_some_and(|prepares| {
                prepares.by_key.get(&hash).is_some_and(|seqno| *seqno <= prepares.adopted_seqno)
            })
    }

    /// Returns true if the prepared write of this seqno is of this key.
    pub(crate) fn is_prepared(&self, seqno: u64, stored_key: &[u8]) -> bool {
        self.prepared(seqno).is_some_and(|prepared| {
            // SAFETY: a prepared block is live, and the lock is held.
            unsafe { self.item(prepared.location).stored_key() == stored_key }
        })
    }

    /// Returns true if anything is prepared.
    pub(crate) fn has_prepares(&self) -> bool {
        self.state.rare.as_ref().is_some_and(|rare| rare.prepares.is_some())
    }

    /// Returns up to which seqno, at most `most`, all prepares are as durable here as their levels demand, if any of
    /// those above `told` is.
    pub(crate) fn acknowledgeable(&self, told: u64, most: u64) -> Option<u64> {
        let prepares = self.state.rare.as_ref().and_then(|rare| rare.prepares.as_ref());
        let above = |seqno: u64| {
            let by_seqno = prepares.map(|prepares| &prepares.by_seqno);
            let first = by_seqno.map_or(0, |by_seqno| by_seqno.partition_point(|one| one.seqno <= seqno));
            by_seqno.into_iter().flat_map(move |by_seqno| by_seqno.iter().skip(first))
        };
        let persisted_seqno = if self.is_persistent() { self.persisted_seqno() } else { u64::MAX };
        let first_lacking = above(persisted_seqno).find(|one| one.level == PERSIST_TO_MAJORITY);
        let upto = most.min(first_lacking.map_or(u64::MAX, |one| one.seqno - 1));
        let is_prepared = above(told).next().is_some_and(|one| one.seqno <= upto);
        (is_prepared || !self.events_between(told, upto).is_empty()).then_some(upto)
    }

    /// Returns the first prepared writes above `after` in seqno order.
    pub(super) fn prepared_above<const N: usize>(&self, after: u64) -> ArrayVec<Prepared, N> {
        let Some(prepares) = self.state.rare.as_ref().and_then(|rare| rare.prepares.as_ref()) else {
            return ArrayVec::new();
        };
        let first = prepares.by_seqno.partition_point(|prepared| prepared.seqno <= after);
        prepares.by_seqno.iter().skip(first).take(N).copied().collect()
    }

    /// Notes that the prepared write of this seqno lies there now.
    pub(super) fn relocate_prepare(&mut self, seqno: u64, location: Location) {
        if let Some(prepares) = self.state.rare.as_mut().and_then(|rare| rare.prepares.as_mut())
            && let Some(at) = prepares.position(seqno)
            && let Some(prepared) = prepares.by_seqno.get_mut(at)
        {
            prepared.location = location;
        }
    }

    /// Prepares a value (`None`: the deletion of the key) as `header` describes it. Returns its seqno. As in
    /// [`Locked::write`], the header's seqno, kind, lengths and word marks are filled in here.
    pub(crate) fn prepare(
        &mut self,
        key: Key<'_>,
        hash: u64,
        mut header: Header,
        value: Option<NewValue<'_>>,
        level: u8,
    ) -> Result<u64, KvError> {
        if self.pending(hash).is_some() {
            return Err(KvError::SyncWriteInProgress);
        }
        self.tell_changes_before(key.collection);
        let seqno = self.state.high_seqno + 1;
        header.seqno = seqno;
        let is_shadow = header.kind == Kind::Shadow;
        (header.kind, header.committed) =
            (if is_shadow { Kind::PrepareShadow } else { Kind::Prepare }, false);
        if value.is_none() {
            header.kind = Kind::PrepareDelete;
            header.datatype = 0;
            header.flags = 0;
            // Makes room for the time of the deletion.
            header.expiry = self.now.unix_s.max(1);
        }
        let value = value.unwrap_or(NewValue::Parts(&[], &[]));
        let header = Self::shaped(key, header, &value);
        self.check_space()?;
        self.reserve_seqno(seqno)?;
        let location = self.place(key, &header, value)?;
        self.recount(&header);
        self.renumber(None, seqno, location);
        self.enter(Prepared { seqno, hash, location, level });
        Ok(seqno)
    }

    pub(super) fn enter(&mut self, prepared: Prepared) {
        let prepares = self.state.rare.get_or_insert_default().prepares.get_or_insert_default();
        debug_assert!(prepares.by_seqno.back().is_none_or(|last| last.seqno < prepared.seqno));
        prepares.by_key.insert(prepared.hash, prepared.seqno);
        prepares.by_seqno.push_back(prepared);
    }

    pub(super) fn take_prepared(&mut self, seqno: u64) {
        let Some(rare) = &mut self.state.rare else { return };
        let Some(prepares) = &mut rare.prepares else { return };
        if let Some(at) = prepares.position(seqno)
            && let Some(prepared) = prepares.by_seqno.remove(at)
        {
            prepares.by_key.remove(&prepared.hash);
        }
        if prepares.by_seqno.is_empty() {
            rare.prepares = None;
            self.clear_empty_order();
        }
    }

    /// Makes a prepared write the key's current version, under a new seqno; in a collection that has been dropped it is
    /// aborted. [`KvError::NotFound`] if there is no such prepare; after [`KvError::NoMemory`] it stays prepared.
    pub(crate) fn commit(&mut self, prepare_seqno: u64) -> Result<Ended, KvError> {
        self.commit_as(prepare_seqno, self.state.high_seqno + 1)
    }

    /// The same under this seqno, which is above all others.
    pub(crate) fn commit_as(&mut self, prepare_seqno: u64, seqno: u64) -> Result<Ended, KvError> {
        debug_assert!(seqno > self.state.high_seqno);
        let prepared = self.prepared(prepare_seqno).ok_or(KvError::NotFound)?;
        let item = self.item(prepared.location);
        // SAFETY: a prepared block is live, and the lock is held.
        let (header, stored) = unsafe { (item.header(), item.stored_key()) };
        if self.is_dropped(stored) {
            return self.abort_as(prepare_seqno, seqno).map(|ended| Ended { is_dropped: true, ..ended });
        }
        let collection = collection_of(stored);
        let old = self.find_stored(stored, prepared.hash);
        self.reserve_seqno(seqno)?;
        let is_deletion = header.kind == Kind::PrepareDelete;
        let ended = Ended { seqno, cas: header.cas, is_dropped: false };
        if is_deletion && !self.leaves_tombstones() {
            self.state.high_seqno = seqno;
            if let Some(old) = old {
                self.remove(old);
            }
            self.free_block(prepared.location, &header);
            self.retire(prepare_seqno);
            self.take_prepared(prepare_seqno);
            return Ok(ended);
        }
        if old.is_none() {
            self.reserve_slot(prepared.hash)?;
        }
        let kind = match header.kind {
            Kind::PrepareDelete => Kind::Tombstone,
            Kind::PrepareShadow => Kind::Shadow,
            _ => Kind::Document,
        };
        let mut new = Header { seqno, kind, committed: true, ..header };
        if is_deletion {
            new.expiry = self.now.unix_s.max(1);
        } else {
            new = self.queue_expiry(prepared.hash, None, new)?;
        }
        // SAFETY: the block has the header's words, and the lock is held.
        unsafe { item.set_header(&new) }
        let old_header = old.map(|old| self.header(old));
        match (old, old_header) {
            (Some(mut old), Some(old_header)) => {
                let location = old.found.location;
                self.root.relocate(&mut old.found, prepared.location);
                self.free(location, old.item, &old_header);
                self.exchange(collection, &old_header, &new);
            }
            _ => {
                self.insert(prepared.hash, prepared.location);
                self.added(collection, &new);
            }
        }
        self.renumber(old_header.map(|old| old.seqno), seqno, prepared.location);
        self.retire(prepare_seqno);
        self.take_prepared(prepare_seqno);
        if is_deletion {
            self.note_end(seqno, prepared.location);
        }
        Ok(ended)
    }

    /// Aborts a prepared write, under a new seqno. [`KvError::NotFound`] if there is no such prepare.
    pub(crate) fn abort(&mut self, prepare_seqno: u64) -> Result<Ended, KvError> {
        self.abort_as(prepare_seqno, self.state.high_seqno + 1)
    }

    /// The same under this seqno, which is above all others.
    pub(crate) fn abort_as(&mut self, prepare_seqno: u64, seqno: u64) -> Result<Ended, KvError> {
        debug_assert!(seqno > self.state.high_seqno);
        let prepared = self.prepared(prepare_seqno).ok_or(KvError::NotFound)?;
        let item = self.item(prepared.location);
        // SAFETY: a prepared block is live, and the lock is held.
        let header = unsafe { item.header() };
        if self.leaves_ends() {
            self.reserve_seqno(seqno)?;
            // Nobody asks for the CAS of an abort, but for what it ends.
            let abort = Header { seqno, kind: Kind::Abort, cas: prepare_seqno, ..header };
            // SAFETY: as above; words and lengths stay as they are.
            unsafe { item.set_header(&abort) }
            self.renumber(Some(prepare_seqno), seqno, prepared.location);
            self.note_abort();
            self.note_end(seqno, prepared.location);
        } else {
            self.state.high_seqno = seqno;
            self.free_block(prepared.location, &header);
            self.retire(prepare_seqno);
        }
        self.take_prepared(prepare_seqno);
        Ok(Ended { seqno, cas: header.cas, is_dropped: false })
    }

    /// Takes the slot of a prepare that has ended out of the order.
    pub(super) fn retire(&mut self, prepare_seqno: u64) {
        let Some(order) = &mut self.state.order else { return };
        order.retire(prepare_seqno, &self.memory.resources.tenant, self.memory.cache);
        if order.is_followed() {
            self.call_followers(Some(prepare_seqno));
        }
    }

    /// Frees a block that is not in the table.
    pub(super) fn free_block(&mut self, location: Location, header: &Header) {
        self.uncount(header);
        self.free(location, self.item(location), header);
    }

    pub(super) fn find_stored(&self, stored: &[u8], hash: u64) -> Option<Present> {
        let heap = &self.memory.resources.heap;
        let is = |location| {
            // SAFETY: the locations come from the table and the lock is held.
            unsafe { ItemPtr(heap.address(location)).stored_key() == stored }
        };
        let found = self.root.find(hash, is)?;
        Some(Present { found, item: self.item(found.location) })
    }
}
