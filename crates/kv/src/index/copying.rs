//! A copy: a vBucket whose changes another node makes. They come in the order of its seqnos, and keep them.

use memory::ItemHeap;

use super::events::Told;
use super::item::{Header, ItemPtr, Kind};
use super::order::SeqnoOrder;
use super::prepares::Prepared;
use super::table::Hand;
use super::vbucket::{Locked, State, VBucket};
use crate::collections::SystemEvent;
use crate::terms::{Rank, Terms};
use crate::{KvError, VbState};

impl State {
    /// Returns true if another node makes the changes, or none does; also before the role that was on disk has taken
    /// effect.
    pub(super) fn is_inactive(&self) -> bool {
        let Some(rare) = &self.rare else { return false };
        let awaits_role = || rare.durable.as_ref().is_some_and(|durable| durable.setting.is_some());
        match &rare.sync_writes {
            Some(sync) => sync.role.state != VbState::Active,
            None => awaits_role(),
        }
    }
}

impl State {
    /// Returns up to which seqno everything is here: a part of a snapshot may lack what its rest supersedes.
    fn complete_seqno(&self) -> u64 {
        let sync = self.rare.as_ref().and_then(|rare| rare.sync_writes.as_ref());
        let (start, end) = sync.map_or((0, 0), |sync| sync.copied.snapshot);
        if self.high_seqno < end { start.min(self.high_seqno) } else { self.high_seqno }
    }

    fn rank(&self) -> Rank {
        let durable = self.rare.as_ref().and_then(|rare| rare.durable.as_ref());
        let seqno = self.complete_seqno();
        durable.map_or(Rank { term: 0, seqno }, |durable| durable.terms.rank(seqno))
    }
}

impl VBucket {
    /// Returns what the vBucket has, as it is compared with other copies.
    pub(crate) fn rank(&self) -> Rank {
        self.state.lock().rank()
    }
}

impl Locked<'_> {
    /// Returns up to which seqno everything is here.
    pub(crate) fn complete_seqno(&self) -> u64 {
        self.state.complete_seqno()
    }

    /// Returns true if it was emptied and not filled since.
    pub(crate) fn is_emptied(&self) -> bool {
        self.complete_seqno() == 0 && self.sync_writes().is_some_and(|sync| sync.copied.is_emptied)
    }

    /// Returns true if another node makes the changes, or none does: nothing may get a seqno here.
    #[inline]
    pub(crate) fn is_inactive(&self) -> bool {
        self.state.is_inactive()
    }

    /// Returns true if a new copy is replacing the old one: see [`crate::sync_writes::SyncWrites::is_refilling`].
    pub(crate) fn is_refilling(&self) -> bool {
        self.sync_writes().is_some_and(|sync| sync.is_refilling)
    }

    /// Takes a document, a shadow or a tombstone. A prepare that waits for its key has ended with it.
    pub(crate) fn copy_version(
        &mut self,
        stored_key: &[u8],
        hash: u64,
        header: Header,
        value: &[u8],
    ) -> Result<(), KvError> {
        self.take_version(stored_key, hash, header, value)?;
        self.forget_prepare(hash);
        Ok(())
    }

    /// Takes a prepare, in place of one that waits for its key.
    pub(crate) fn copy_prepare(
        &mut self,
        stored_key: &[u8],
        hash: u64,
        header: Header,
        value: &[u8],
        level: u8,
    ) -> Result<(), KvError> {
        debug_assert!(header.kind.is_prepare() && header.seqno > self.state.high_seqno);
        let seqno = header.seqno;
        self.check_space()?;
        self.reserve_seqno(seqno)?;
        let (location, header) = self.place_stored(stored_key, header, value)?;
        self.recount(&header);
        self.forget_prepare(hash);
        self.renumber(None, seqno, location);
        self.enter(Prepared { seqno, hash, location, level });
        self.follow_cas(header.cas);
        Ok(())
    }

    /// Removes the prepare that waits for a key: what has ended it has a seqno of its own.
    pub(crate) fn forget_prepare(&mut self, hash: u64) {
        let Some(prepared) = self.pending(hash).and_then(|seqno| self.prepared(seqno)) else { return };
        let item = self.item(prepared.location);
        // SAFETY: a prepared block is live, and the lock is held.
        let header = unsafe { item.header() };
        self.free_block(prepared.location, &header);
        self.retire(prepared.seqno);
        self.take_prepared(prepared.seqno);
    }

    /// Removes the prepares of collections that are gone: the active ends them without telling.
    fn forget_dropped_prepares(&mut self) {
        for prepared in self.all_prepared() {
            // SAFETY: a prepared block is live, and the lock is held.
            let is_dropped = self.is_dropped(unsafe { self.item(prepared.location).stored_key() });
            if is_dropped {
                self.forget_prepare(prepared.hash);
            }
        }
    }

    /// Takes a change of the scopes and collections.
    pub(crate) fn copy_event(&mut self, seqno: u64, event: SystemEvent) {
        self.forget_dropped_prepares();
        let mut events = self.events();
        let forgotten = events.push(Told { seqno, event });
        events.uid = events.uid.max(event.uid);
        self.set_events(events);
        self.advance(seqno);
        if let Some(seqno) = forgotten {
            self.purge(seqno, u32::MAX);
        }
    }

    /// Notes that there is nothing up to a seqno that is not here.
    pub(crate) fn advance(&mut self, seqno: u64) {
        if seqno > self.state.high_seqno {
            self.state.high_seqno = seqno;
            self.note_state();
            self.call_followers(None);
        }
    }

    /// Returns the id of the last history, if it is not that of the bucket's start.
    pub(crate) fn last_history(&self) -> Option<u64> {
        self.durable_if_any()?.histories.last().map(|(uuid, _)| *uuid)
    }

    /// Replaces the histories, oldest first, and the terms.
    pub(crate) fn set_histories(&mut self, histories: Vec<(u64, u64)>, terms: Terms) {
        let durable = self.durable();
        (durable.histories, durable.terms) = (histories, terms);
        self.note_state();
    }

    /// Notes that a term begins at a seqno: what comes after it is of that term.
    pub(crate) fn begin_term(&mut self, term: u64, seqno: u64) {
        self.durable().terms.begin(term, seqno);
        self.sync_writes_mut().monitor.begin_term(seqno);
        self.note_state();
    }

    /// Returns the newest term, and where it began.
    pub(crate) fn newest_term(&self) -> Option<(u64, u64)> {
        self.durable_if_any()?.terms.newest()
    }

    /// Begins a history at a seqno, which the one before has reached.
    pub(crate) fn begin_history(&mut self, id: u64, seqno: u64) {
        let histories = &mut self.durable().histories;
        histories.retain(|(_, began_at)| *began_at <= seqno);
        histories.push((id, seqno));
        self.note_state();
    }

    /// Notes that everything up to a seqno comes from a source that may have forgotten deletions: a follower that is
    /// below it may have missed them.
    pub(crate) fn note_filled(&mut self, end: u64) {
        let durable = self.durable();
        durable.purged_seqno = durable.purged_seqno.max(end);
        self.note_state();
    }

    /// Skips a seqno, so that whoever has everything notices that something may be gone without one.
    pub(crate) fn skip_seqno(&mut self) {
        if !self.leaves_ends() && self.state.high_seqno > 0 {
            self.state.high_seqno += 1;
        }
    }

    /// Empties the vBucket, which begins anew with seqno 1. Whoever follows it has lost it.
    pub(crate) fn begin_anew(&mut self) {
        for prepared in self.all_prepared() {
            // SAFETY: a prepared block is live, and the lock is held.
            let header = unsafe { self.item(prepared.location).header() };
            self.free_block(prepared.location, &header);
        }
        if let Some(rare) = &mut self.state.rare {
            rare.prepares = None;
        }
        self.free_aborts();
        if let Some(mut order) = self.state.order.take() {
            order.clear(&self.memory.resources.tenant, self.memory.cache);
        }
        let end = self.state.high_seqno;
        self.state.flushed_seqno = end;
        while self.state.table.items > 0 {
            let mut hand = Some(Hand::default());
            while let Some(at) = hand {
                (_, hand) = self.reclaim_flushed(at);
            }
        }
        (self.state.high_seqno, self.state.flushed_seqno) = (0, 0);
        self.forget_deletions(true);
        self.set_events(Default::default());
        let persistent = self.is_persistent();
        let durable = self.durable();
        if persistent {
            durable.base += end;
        }
        (durable.persisted_seqno, durable.persisted_flushed) = (0, 0);
        (durable.purged_seqno, durable.purged_persisted) = (0, 0);
        durable.histories.clear();
        durable.terms = Terms::default();
        if self.sync_writes().is_some() {
            let sync = self.sync_writes_mut();
            sync.monitor.begin_anew();
            sync.is_stale = false;
        }
        self.lose_followers();
        if !persistent && self.is_followed() {
            let mut order = Box::<SeqnoOrder>::default();
            order.set_followed(true);
            self.state.order = Some(order);
        }
        self.note_state();
        self.tidy();
    }

    /// Frees the aborts, which are in the order alone.
    pub(super) fn free_aborts(&mut self) {
        let mut aborts = Vec::new();
        let heap = &self.memory.resources.heap;
        if let Some(order) = &self.state.order {
            order.iterate(|_, location| {
                // SAFETY: a live slot names an item of this vBucket, and the lock is held.
                let header = unsafe { ItemPtr(heap.address(location)).header() };
                if header.kind == Kind::Abort {
                    aborts.push((location, header));
                }
            });
        }
        for (location, header) in aborts {
            self.free_abort(header.seqno, location, &header);
        }
    }
}
