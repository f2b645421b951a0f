//! A vBucket that is being read from its journal. Until its end all seqnos are those on disk
//! ([`super::durable::Durable::base`]).
//!
//! Records come in any order, from several threads, each under the lock; for every key the highest seqno wins.
//! Tombstones stay in the table until the last run is in, lest an older record bring the key back. A prepare counts if
//! its key has nothing newer, be it a document, a tombstone or an abort, and no flush_all came after its end.

use std::collections::HashMap;

use memory::Location;

use super::events::Events;
use super::item::{Header, Kind, collection_of};
use super::prepares::Prepared;
use super::table::Hand;
use super::vbucket::{Locked, VBucket};
use crate::KvError;
use crate::sync_writes::Setting;
use crate::terms::Terms;

/// What is kept while a vBucket is read.
#[derive(Default)]
pub(super) struct Replay {
    runs_left: u32,
    /// The newest prepare or abort of a key.
    ends: HashMap<Box<[u8]>, End>,
    /// The prepares that the newest state names.
    prepares: Vec<u64>,
    /// A flush_all came meanwhile.
    flush: bool,
    /// State or chains were set meanwhile.
    changed: bool,
}

struct End {
    seqno: u64,
    /// `None` for an abort.
    prepared: Option<Box<Stored>>,
}

/// A record of the journal, as the engine takes it.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) header: Header,
    pub(crate) level: u8,
    pub(crate) value: Vec<u8>,
}

/// A vBucket's state as it was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StateRecord {
    /// The highest is the newest.
    pub(crate) version: u64,
    /// The highest seqno, and the one up to which all is flushed, as on disk.
    pub(crate) high_seqno: u64,
    pub(crate) flushed_seqno: u64,
    pub(crate) max_deleted_rev: u64,
    pub(crate) histories: Vec<(u64, u64)>,
    /// The terms of its changes.
    pub(crate) terms: Terms,
    /// Prepares up to `flushed_seqno` that have not ended: flush_all leaves them alone, but the records that ended
    /// others may be gone.
    pub(crate) prepares: Vec<u64>,
    /// Deletions up to this seqno may be forgotten.
    pub(crate) purged_seqno: u64,
    /// Changes of scopes and collections that have seqnos here.
    pub(crate) events: Events,
    /// See [`super::durable::Durable::base`].
    pub(crate) base: u64,
    /// The role, if it differs from the default.
    pub(crate) setting: Option<Setting>,
}

impl Replay {
    pub(super) fn flush(&mut self) {
        self.flush = true;
    }

    pub(super) fn change(&mut self) {
        self.changed = true;
    }
}

impl VBucket {
    /// Notes that the vBucket is going to be read from this many runs.
    pub(crate) fn begin_replay(&self, runs: u32) {
        let mut state = self.state.lock();
        let durable = state.rare.get_or_insert_default().durable.get_or_insert_default();
        durable.replay = Some(Box::new(Replay { runs_left: runs, ..Replay::default() }));
    }
}

impl Locked<'_> {
    /// Takes a document or tombstone of the journal. Without `resident`, the value stays on disk.
    pub(crate) fn replay_item(
        &mut self,
        stored_key: &[u8],
        header: Header,
        value: &[u8],
        resident: bool,
    ) -> Result<(), KvError> {
        self.note_seqno(header.seqno, header.cas);
        if self.is_dropped(stored_key) {
            return Ok(());
        }
        if let Some(replay) = &mut self.durable().replay
            && !replay.ends.is_empty()
            && replay.ends.get(stored_key).is_some_and(|end| end.seqno < header.seqno)
        {
            replay.ends.remove(stored_key);
        }
        let hash = super::hashing::hash_stored(stored_key, &self.memory.resources.secrets);
        let old = self.find_stored(stored_key, hash);
        if old.is_some_and(|old| self.header(old).seqno >= header.seqno) {
            return Ok(());
        }
        if old.is_none() {
            self.reserve_slot(hash)?;
        }
        let mut header = header;
        let may_stay = header.kind == Kind::Document && !value.is_empty() && !resident;
        if matches!(header.kind, Kind::Document | Kind::Shadow) {
            header = self.queue_expiry(hash, None, header)?;
        }
        let (location, header) = if may_stay {
            header.kind = Kind::Ejected;
            header.value_len = value.len();
            self.place_ejected(stored_key, header)?
        } else {
            self.place_stored(stored_key, header, value)?
        };
        self.recount(&header);
        if header.kind == Kind::Ejected {
            self.count_ejected(1, &header);
        }
        self.link(old, hash, collection_of(stored_key), location, &header);
        Ok(())
    }

    /// Takes a prepare of the journal.
    pub(crate) fn replay_prepare(&mut self, stored_key: &[u8], stored: Stored) {
        let seqno = stored.header.seqno;
        self.note_seqno(seqno, stored.header.cas);
        if self.is_dropped(stored_key) {
            return;
        }
        self.replay_end(stored_key, End { seqno, prepared: Some(Box::new(stored)) });
    }

    /// Takes an abort of the journal.
    pub(crate) fn replay_abort(&mut self, stored_key: &[u8], seqno: u64, cas: u64) {
        self.note_seqno(seqno, cas);
        self.replay_end(stored_key, End { seqno, prepared: None });
    }

    fn replay_end(&mut self, stored_key: &[u8], end: End) {
        let Some(replay) = &mut self.durable().replay else { return };
        match replay.ends.get_mut(stored_key) {
            Some(old) if old.seqno >= end.seqno => {}
            Some(old) => *old = end,
            None => drop(replay.ends.insert(stored_key.into(), end)),
        }
    }

    /// Takes a state of the journal.
    pub(crate) fn replay_state(&mut self, state: StateRecord) {
        self.note_seqno(state.high_seqno, 0);
        self.state.flushed_seqno = self.state.flushed_seqno.max(state.flushed_seqno);
        let durable = self.durable();
        durable.max_deleted_rev = durable.max_deleted_rev.max(state.max_deleted_rev);
        if state.version >= durable.state_persisted {
            durable.state_persisted = state.version;
            durable.histories = state.histories;
            durable.terms = state.terms;
            durable.setting = state.setting;
            (durable.base, durable.base_persisted) = (state.base, state.base);
            (durable.purged_seqno, durable.purged_persisted) = (state.purged_seqno, state.purged_seqno);
            if let Some(replay) = &mut durable.replay {
                replay.prepares = state.prepares;
            }
            self.set_events(state.events);
        }
    }

    /// Notes that one run is in. Returns true if it was the last.
    pub(crate) fn run_replayed(&mut self) -> bool {
        let Some(replay) = &mut self.durable().replay else { return false };
        replay.runs_left = replay.runs_left.saturating_sub(1);
        replay.runs_left == 0
    }

    /// Ends the replay: no item is dirty. Unless the end was clean, the present history is `history`, begun at the
    /// highest seqno if there is any other. Returns true if there are flushed items to be reclaimed.
    pub(crate) fn end_replay(&mut self, history: u64, is_clean: bool, max_cas: u64) -> Result<bool, KvError> {
        self.resume_cas(max_cas);
        let Some(replay) = self.durable().replay.take() else { return Ok(false) };
        let base = self.durable().base;
        self.rebase(base);
        let (high_seqno, flushed_seqno) = (self.state.high_seqno, self.state.flushed_seqno);
        let durable = self.durable();
        durable.persisted_seqno = high_seqno;
        durable.state_version = durable.state_persisted + u64::from(replay.changed);
        // What a copy has is a part of its source's history, however much of it is lost.
        let is_copy = durable.setting.as_ref().is_some_and(|setting| setting.copied.is_any);
        if !is_copy && (!is_clean || durable.histories.is_empty()) {
            durable.may_lack = !durable.histories.is_empty();
            durable.histories.push((history, high_seqno));
            durable.state_version += 1;
        }
        durable.persisted_flushed = flushed_seqno;
        if replay.flush {
            // As in [`VBucket::flush`].
            self.state.high_seqno += u64::from(self.state.table.items > 0);
            self.state.flushed_seqno = self.state.high_seqno;
            self.durable().state_version += 1;
        }
        let mut ends: Vec<_> = replay.ends.into_iter().collect();
        ends.sort_unstable_by_key(|(_, end)| end.seqno);
        for (stored_key, mut end) in ends {
            let Some(seqno) = end.seqno.checked_sub(base).filter(|seqno| *seqno > 0) else { continue };
            end.seqno = seqno;
            let hash = super::hashing::hash_stored(&stored_key, &self.memory.resources.secrets);
            let newer = self.find_stored(&stored_key, hash);
            let is_newer = newer.is_some_and(|newer| self.header(newer).seqno > end.seqno);
            let is_over = end.seqno <= flushed_seqno && !replay.prepares.contains(&end.seqno);
            if let Some(stored) = end.prepared.filter(|_| !is_newer && !is_over) {
                let header = Header { seqno, ..stored.header };
                let (location, header) = self.place_stored(&stored_key, header, &stored.value)?;
                self.recount(&header);
                self.enter(Prepared { seqno: header.seqno, hash, location, level: stored.level });
            }
        }
        // Not earlier: a tombstone may be the end of a prepare.
        self.drop_tombstones();
        Ok(self.state.flushed_seqno > 0 && self.state.table.items > 0)
    }

    /// Makes the seqnos those that clients see, and removes what is from before the vBucket began anew.
    fn rebase(&mut self, base: u64) {
        if base == 0 {
            return;
        }
        self.state.high_seqno = self.state.high_seqno.saturating_sub(base);
        self.state.flushed_seqno = self.state.flushed_seqno.saturating_sub(base);
        let (mut hand, mut void) = (Some(Hand::default()), Vec::<Location>::new());
        while let Some(at) = hand {
            let this = &*self;
            hand = this.root.walk(at, |found, _| {
                let item = this.item(found.location);
                // SAFETY: the item is in the table and the lock is held; words and lengths stay as they are.
                unsafe {
                    let header = item.header();
                    match header.seqno.checked_sub(base).filter(|seqno| *seqno > 0) {
                        Some(seqno) => item.set_header(&Header { seqno, ..header }),
                        None => void.push(found.location),
                    }
                }
            });
        }
        for location in void {
            let present = self.present_at(location);
            self.remove(present);
        }
    }

    fn note_seqno(&mut self, seqno: u64, cas: u64) {
        self.state.high_seqno = self.state.high_seqno.max(seqno);
        self.follow_cas(cas);
    }

    fn drop_tombstones(&mut self) {
        if self.durable().tombstones == 0 {
            return;
        }
        let mut hand = Some(Hand::default());
        let mut buried = Vec::new();
        while let Some(at) = hand {
            let this = &*self;
            hand = this.root.walk(at, |found, _| {
                let item = this.item(found.location);
                // SAFETY: the item is in the table and the lock is held.
                let (kind, seqno) = unsafe { (item.kind(), item.seqno()) };
                if kind == Kind::Tombstone {
                    buried.push((seqno, found.location));
                }
            });
        }
        // They are noted in the order of their seqnos.
        buried.sort_unstable_by_key(|(seqno, _)| *seqno);
        for (_, location) in buried {
            let present = self.present_at(location);
            self.note_deletion(self.hash_of(location), &self.header(present));
            self.remove(present);
        }
    }
}
