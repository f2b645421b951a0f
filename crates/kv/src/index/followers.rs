//! Who follows a vBucket's changes, and how far each has read.
//!
//! ```text
//!   order   ... read ... cursor │ snapshot, to be handed out │ end ... newer ...
//! ```
//! While anybody follows, every document has a slot in the seqno order, and deletions leave tombstones, in an ephemeral
//! bucket too. A *snapshot* is what there is up to its end: whoever has all of it has for each key the version that was
//! the newest then. It is handed out in pieces, and the lock is released in between; a version that is replaced before
//! it was handed out is missing. Then the snapshot is *torn*, and goes on to a later end.

use std::collections::VecDeque;
use std::sync::Arc;

use arrayvec::ArrayVec;
use journal::log::{Kind as RecordKind, Record, SHOWN_MOST};
use memory::Location;

use super::durable::{Dirty, OnDisk, Taken, Walked};
use super::hashing::hash_stored;
use super::item::{Kind, collection_of};
use super::order::SeqnoOrder;
use super::table::{Hand, HashPart};
use super::vbucket::{Locked, Present, SLICE_ITEMS, VBucket};
use crate::news::News;
use crate::{Cookie, KvError};

/// Flushed items stay in the order for followers that are at most this far behind.
const KEPT_SEQNOS: u64 = 256;
/// A vBucket of an ephemeral bucket keeps this many tombstones, or a part of the number of its items.
const ENDS_LEAST: usize = 256;
const ENDS_PART: usize = 8;
/// So many more are kept for a follower that has not been told of them yet.
const ENDS_UNTOLD: usize = 4096;
/// As many are freed under one hold of the lock.
const ENDS_SLICE: usize = 4 * SLICE_ITEMS;
/// So many records are looked up at a time, and so many bytes of each item: header and key.
const AHEAD: usize = 16;
const AHEAD_BYTES: usize = 64;

/// Where a stream is, as other threads see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamFigures {
    /// The last seqno that was handed out, or was being handed out.
    pub cursor: u64,
    /// The end of the last snapshot.
    pub snapshot_end: u64,
    /// The vBucket's last seqno.
    pub high_seqno: u64,
}

/// The followers of a vBucket.
#[derive(Default)]
pub(super) struct Followers {
    list: Vec<Follower>,
    /// Deletions up to this seqno may have been forgotten.
    purged_seqno: u64,
    /// In an ephemeral bucket: the vBucket's last seqno when it began to keep deletions.
    kept_from: u64,
    /// In an ephemeral bucket: its tombstones and aborts, oldest first.
    ends: VecDeque<End>,
    /// They go after this time, even if nobody follows; 0: then they are not left at all.
    kept_s: u32,
}

/// A tombstone or an abort: its seqno, when it was left, and a part of its key's hash.
#[derive(Debug, Clone, Copy)]
struct End {
    seqno: u64,
    left_s: u32,
    part: HashPart,
}

/// Tombstones go in groups: one may stay this part of its time longer, at most an hour.
const KEPT_PARTS: u32 = 64;
const GRAIN_MOST_S: u32 = 3600;

/// Returns when a tombstone left at a time is to go.
fn end_due_s(left_s: u32, kept_s: u32) -> u32 {
    let grain_s = (kept_s / KEPT_PARTS).clamp(1, GRAIN_MOST_S);
    left_s.saturating_add(kept_s).checked_next_multiple_of(grain_s).unwrap_or(u32::MAX)
}

impl Followers {
    /// Returns true if tombstones and aborts of an ephemeral bucket are to go. `most`: so many are kept in any case.
    fn has_too_many_ends(&self, most: usize) -> bool {
        let Some(oldest) = self.ends.front().filter(|_| self.ends.len() > most) else { return false };
        let is_untold = self.list.iter().any(|one| !one.is_lost && one.cursor < oldest.seqno);
        !is_untold || self.ends.len() > most + ENDS_UNTOLD
    }

    /// Returns when the oldest tombstone is to go.
    pub(super) fn ends_due_s(&self) -> Option<u32> {
        let oldest = self.ends.front().filter(|_| self.kept_s > 0)?;
        Some(end_due_s(oldest.left_s, self.kept_s))
    }
}

/// One of them.
struct Follower {
    /// Unique among those of this vBucket.
    number: u64,
    news: Arc<News>,
    /// What it had when it began, and when that was, in unix seconds.
    start: u64,
    begun_s: u32,
    /// Everything up to here has been handed out.
    cursor: u64,
    /// The end of the snapshot that is being handed out.
    end: u64,
    is_torn: bool,
    /// It has missed something.
    is_lost: bool,
}

impl Followers {
    /// Forgets deletions up to a seqno, which were made before a time: whoever has read a part of what is up to there
    /// has missed something, unless it began with nothing at that time or later.
    pub(super) fn forget(&mut self, purged_seqno: u64, before_s: u32, owner: u16, calls: &mut Vec<Cookie>) {
        self.purged_seqno = self.purged_seqno.max(purged_seqno);
        for one in self.list.iter_mut().filter(|one| one.cursor < purged_seqno) {
            let has_nothing = one.end == 0 || one.start == 0 && one.begun_s >= before_s;
            if has_nothing {
                continue;
            }
            one.is_lost = true;
            calls.extend(one.news.note(owner));
        }
    }
}

/// What a vBucket has forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Forgotten {
    /// Deletions up to this seqno.
    pub(crate) purged_seqno: u64,
    /// Whoever has a part of a snapshot that ended before this seqno began at a time when deletions left nothing, or
    /// before everything was flushed.
    pub(crate) kept_from: u64,
}

/// How far a snapshot has been handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    /// All of it.
    Whole,
    /// All of it, but it is torn: it goes on up to this seqno.
    Extended(u64),
    /// A part; there is more.
    Part,
    /// A part, up to an item that was not taken.
    Refused,
    /// What comes next is on disk only.
    Flushed,
    /// Something that was to come has been forgotten.
    Lost,
}

impl VBucket {
    /// Ends following.
    pub(crate) fn unfollow(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(followers) = state.rare.as_mut().and_then(|rare| rare.followers.as_mut()) {
            followers.list.retain(|one| one.number != number);
            let is_followed = !followers.list.is_empty();
            if let Some(rare) = &mut state.rare {
                rare.wheel.set_exact(is_followed);
            }
        }
    }

    /// Visits the streams that have these news.
    pub(crate) fn each_stream_of(&self, news: &Arc<News>, f: &mut dyn FnMut(StreamFigures)) {
        let state = self.state.lock();
        let Some(followers) = state.rare.as_ref().and_then(|rare| rare.followers.as_ref()) else { return };
        for one in followers.list.iter().filter(|one| Arc::ptr_eq(&one.news, news)) {
            f(StreamFigures { cursor: one.cursor, snapshot_end: one.end, high_seqno: state.high_seqno });
        }
    }
}

impl Locked<'_> {
    fn followers(&self) -> Option<&Followers> {
        self.state.rare.as_ref()?.followers.as_deref()
    }

    fn followers_mut(&mut self) -> &mut Followers {
        self.state.rare.get_or_insert_default().followers.get_or_insert_default()
    }

    fn follower(&mut self, number: u64) -> Option<&mut Follower> {
        let followers = self.state.rare.as_mut()?.followers.as_mut()?;
        followers.list.iter_mut().find(|one| one.number == number)
    }

    /// Returns true if deletions and aborts have to leave something: for the flusher, or for those who follow.
    #[inline]
    pub(super) fn leaves_ends(&self) -> bool {
        self.is_persistent() || self.state.order.as_ref().is_some_and(|order| order.is_followed())
    }

    /// Returns true if a followed vBucket of a persistent bucket has nothing to flush: its order does not tell.
    pub(super) fn is_clean_and_followed(&self) -> bool {
        self.is_persistent()
            && self.state.order.as_ref().is_some_and(|order| order.is_followed())
            && self.state.high_seqno <= self.persisted_seqno()
    }

    /// Returns true if anybody follows.
    pub(crate) fn is_followed(&self) -> bool {
        self.followers().is_some_and(|followers| !followers.list.is_empty())
    }

    /// Returns up to which seqno the order is trimmed when everything up to `seqno` is flushed: a follower that lags a
    /// little need not read from disk.
    pub(super) fn trimmed_to(&self, seqno: u64) -> u64 {
        let slowest =
            self.followers().and_then(|followers| followers.list.iter().map(|one| one.cursor).min());
        slowest.map_or(seqno, |cursor| cursor.clamp(seqno.saturating_sub(KEPT_SEQNOS), seqno))
    }

    /// Begins to follow, from behind `cursor` on. The number is unique among the followers of this vBucket.
    pub(crate) fn follow(&mut self, number: u64, news: Arc<News>, cursor: u64) -> Result<(), KvError> {
        if !self.is_persistent() && !self.leaves_ends() {
            self.build_order()?;
            self.followers_mut().kept_from = self.state.high_seqno;
        }
        if let Some(order) = &mut self.state.order {
            order.set_followed(true);
        }
        let begun_s = self.now.unix_s;
        self.state.rare.get_or_insert_default().wheel.set_exact(true);
        self.followers_mut().list.push(Follower {
            number,
            news,
            start: cursor,
            begun_s,
            cursor,
            end: cursor,
            is_torn: false,
            is_lost: false,
        });
        Ok(())
    }

    /// Keeps the items of an ephemeral bucket in seqno order from now on.
    pub(super) fn build_order(&mut self) -> Result<(), KvError> {
        if self.state.order.is_some() {
            return Ok(());
        }
        let mut items = Vec::with_capacity(self.state.table.items as usize);
        items.extend(self.all_prepared().iter().map(|prepared| (prepared.seqno, prepared.location)));
        let mut hand = Some(Hand::default());
        while let Some(at) = hand {
            hand = self.root.walk(at, |found, _| {
                // SAFETY: the item is in the table and the lock is held.
                items.push((unsafe { self.item(found.location).seqno() }, found.location));
            });
        }
        items.sort_unstable_by_key(|(seqno, _)| *seqno);
        let mut order = Box::<SeqnoOrder>::default();
        let (tenant, cache) = (&self.memory.resources.tenant, &mut *self.memory.cache);
        for (seqno, location) in items {
            if !order.reserve(seqno, tenant, cache) {
                order.clear(tenant, cache);
                return Err(KvError::NoMemory);
            }
            order.push(seqno, location, tenant, cache);
        }
        self.state.order = Some(order);
        Ok(())
    }

    /// Notes that everything has changed: whoever follows has to begin again.
    pub(super) fn lose_followers(&mut self) {
        let Some(followers) = self.state.rare.as_mut().and_then(|rare| rare.followers.as_mut()) else {
            return;
        };
        (followers.purged_seqno, followers.kept_from) = (0, 0);
        followers.ends.clear();
        for one in &mut followers.list {
            one.is_lost = true;
            self.memory.calls.extend(one.news.note(self.memory.owner));
        }
    }

    /// Tells the followers that there is something new, in place of the version with the seqno `old`.
    #[cold]
    pub(crate) fn call_followers(&mut self, old: Option<u64>) {
        let Some(followers) = self.state.rare.as_mut().and_then(|rare| rare.followers.as_mut()) else {
            return;
        };
        for one in &mut followers.list {
            one.is_torn |= old.is_some_and(|old| one.cursor < old && old <= one.end);
            self.memory.calls.extend(one.news.note(self.memory.owner));
        }
    }

    fn forget(&mut self, purged_seqno: u64, before_s: u32) {
        if let Some(followers) = self.state.rare.as_mut().and_then(|rare| rare.followers.as_mut()) {
            followers.forget(purged_seqno, before_s, self.memory.owner, self.memory.calls);
        }
    }

    /// Notes that deletions up to a seqno, made before a time, are forgotten or may be as soon as that is on disk.
    pub(crate) fn purge(&mut self, seqno: u64, before_s: u32) {
        if self.is_persistent() {
            let durable = self.durable();
            if seqno <= durable.purged_seqno {
                return;
            }
            durable.purged_seqno = seqno;
            self.note_state();
        }
        self.forget(seqno, before_s);
    }

    /// Removes an item for whose tombstone there is no memory.
    pub(super) fn remove_unseen(&mut self, present: Present) {
        self.remove(present);
        if self.followers().is_some() {
            self.state.high_seqno += 1;
            let seqno = self.state.high_seqno;
            self.forget(seqno, u32::MAX);
        }
    }

    /// Notes that a tombstone or an abort was left in an ephemeral bucket. The oldest go when there are too many.
    pub(super) fn note_end(&mut self, seqno: u64, location: Location) {
        if self.is_persistent() {
            return;
        }
        let part = HashPart::of(self.hash_of(location));
        let (mut most, left_s) = (ENDS_LEAST, self.now.unix_s);
        let kept_s = match self.kept_tombstones() {
            Some((part_of_budget, kept_s)) => {
                if !self.is_followed() {
                    most = most.min(part_of_budget.max(1));
                }
                self.armed_s = self.armed_s.min(end_due_s(left_s, kept_s));
                kept_s
            }
            None => 0,
        };
        let most = most.max(self.state.table.items as usize / ENDS_PART);
        let followers = self.followers_mut();
        followers.kept_s = kept_s;
        followers.ends.push_back(End { seqno, left_s, part });
        while self.followers().is_some_and(|followers| followers.has_too_many_ends(most)) {
            self.drop_end(u32::MAX);
        }
    }

    /// Frees tombstones and aborts of an ephemeral bucket that are older than a time. Returns true if there may be
    /// more.
    pub(crate) fn drop_ends(&mut self, before_s: u32) -> bool {
        (0..ENDS_SLICE).all(|_| self.drop_end(before_s))
    }

    /// Frees the oldest tombstone or abort, if it is older than a time. Returns false if there is none.
    fn drop_end(&mut self, before_s: u32) -> bool {
        let Some(followers) = self.state.rare.as_mut().and_then(|rare| rare.followers.as_mut()) else {
            return false;
        };
        let Some(End { seqno, left_s, part }) =
            followers.ends.front().copied().filter(|end| end.left_s < before_s)
        else {
            return false;
        };
        followers.ends.pop_front();
        let (tenant, cache) = (&self.memory.resources.tenant, &mut *self.memory.cache);
        let location = match &mut self.state.order {
            Some(order) => order.live_location(seqno, tenant, cache),
            None => self.location_of(part, seqno),
        };
        // SAFETY: a live slot names a live item, and the lock is held.
        let found = location.map(|location| (location, unsafe { self.item(location).header() }));
        match found {
            Some((location, header)) if header.kind == Kind::Tombstone => {
                let present = self.present_at(location);
                self.remove(present);
            }
            Some((location, header)) if header.kind == Kind::Abort => {
                self.free_abort(seqno, location, &header);
            }
            // Its key is in use again.
            _ => return true,
        }
        self.forget(seqno, left_s.saturating_add(1));
        true
    }

    /// Frees the tombstones that an ephemeral bucket has kept for its time, up to a slice.
    pub(super) fn drop_old_ends(&mut self) {
        let Some(followers) = self.followers() else { return };
        let (kept_s, now_s) = (followers.kept_s, self.now.unix_s);
        if followers.ends_due_s().is_some_and(|due_s| due_s <= now_s) {
            self.drop_ends(now_s.saturating_sub(kept_s).saturating_add(1));
        }
    }

    /// Finds the item of a seqno in the table, by a part of its key's hash.
    fn location_of(&self, part: HashPart, seqno: u64) -> Option<Location> {
        let mut location = None;
        self.root.matching(part, |found| {
            // SAFETY: the item is in the table and the lock is held.
            if unsafe { self.item(found.location).seqno() } == seqno {
                location = Some(found.location);
            }
        });
        location
    }

    /// Stops keeping what only followers need, unless there are any. Returns true if there is more of it.
    pub(crate) fn stop_following(&mut self) -> bool {
        if self.followers().is_none_or(|followers| !followers.list.is_empty()) {
            return false;
        }
        if self.kept_tombstones().is_some() {
            self.free_aborts();
        } else {
            if self.drop_ends(u32::MAX) {
                return true;
            }
            if let Some(rare) = &mut self.state.rare {
                rare.followers = None;
            }
        }
        let Some(order) = &mut self.state.order else { return false };
        order.set_followed(false);
        if self.is_persistent() {
            let persisted_seqno = self.persisted_seqno();
            self.complete(persisted_seqno, OnDisk::default());
            return false;
        }
        if let Some(mut order) = self.state.order.take() {
            order.clear(&self.memory.resources.tenant, self.memory.cache);
            // From now on what expires or is evicted has no seqno: whoever comes back with this one has missed that. In
            // a copy nothing does.
            if !self.is_inactive() {
                self.state.high_seqno += u64::from(self.state.high_seqno > 0);
            }
        }
        false
    }

    /// Returns true if a follower has missed something.
    pub(crate) fn has_lost(&mut self, number: u64) -> bool {
        self.follower(number).is_none_or(|one| one.is_lost)
    }

    /// Notes that everything up to a seqno has been handed out to a follower.
    pub(crate) fn set_cursor(&mut self, number: u64, cursor: u64) {
        if let Some(follower) = self.follower(number) {
            follower.cursor = follower.cursor.max(cursor);
        }
    }

    /// Ends a follower's snapshot, all of which has been handed out; one that is torn goes on.
    pub(crate) fn end_snapshot(&mut self, number: u64) -> Followed {
        if !self.follower(number).is_some_and(|one| one.is_torn) {
            return Followed::Whole;
        }
        self.begin_snapshot(number).map_or(Followed::Whole, Followed::Extended)
    }

    /// Returns for each record of the journal whether it is what there is, as far as a follower is concerned. Their
    /// places in memory are loaded ahead.
    pub(crate) fn are_current(&self, records: &[Record<'_>]) -> ArrayVec<bool, SHOWN_MOST> {
        let resources = self.memory.resources;
        let mut are_current = ArrayVec::new();
        for records in records.chunks(AHEAD) {
            let hashes: ArrayVec<u64, AHEAD> =
                records.iter().map(|record| hash_stored(record.key, &resources.secrets)).collect();
            hashes.iter().for_each(|hash| self.root.prefetch_line(*hash));
            hashes.iter().for_each(|hash| self.root.prefetch_item(&resources.heap, *hash, AHEAD_BYTES));
            are_current
                .extend(records.iter().zip(hashes).map(|(record, hash)| self.is_current(record, hash)));
        }
        are_current
    }

    fn is_current(&self, record: &Record<'_>, hash: u64) -> bool {
        if self.is_dropped(record.key) {
            return false;
        }
        let seqno = record.seqno;
        let current = || self.find_stored(record.key, hash).map(|present| self.header(present).seqno);
        match record.kind {
            RecordKind::Prepare | RecordKind::PrepareDelete => self.prepared(seqno).is_some(),
            RecordKind::State => false,
            _ if seqno <= self.state.flushed_seqno => false,
            RecordKind::Abort => true,
            RecordKind::Document => current() == Some(seqno),
            RecordKind::Tombstone => current().is_none_or(|current| current == seqno),
        }
    }

    /// Takes the next item of a follower's snapshot, for use without the lock.
    pub(crate) fn take_next(&mut self, number: u64) -> Option<Taken> {
        let cursor = self.follower(number)?.cursor;
        let taken = self.next_dirty(cursor)?;
        self.follower(number)?.cursor = taken.header.seqno;
        Some(taken)
    }

    /// Begins a snapshot of everything that a follower has not read. Returns its end; `None` if there is nothing.
    pub(crate) fn begin_snapshot(&mut self, number: u64) -> Option<u64> {
        let last = self.state.high_seqno;
        let follower = self.follower(number).filter(|one| one.cursor < last)?;
        (follower.end, follower.is_torn) = (last, false);
        Some(last)
    }

    /// Returns true if what comes after a seqno has to be read from disk: it has no place in the order.
    pub(crate) fn is_to_be_read(&self, cursor: u64) -> bool {
        let is_in_order = self.state.order.as_ref().is_some_and(|order| order.floor() <= cursor);
        !is_in_order && cursor < self.persisted_seqno()
    }

    /// Hands out the next items of a follower's snapshot in seqno order, until `take` refuses one or `slices` times
    /// [`super::vbucket::SLICE_ITEMS`] are done.
    pub(crate) fn read_snapshot(
        &mut self,
        number: u64,
        slices: usize,
        take: &mut dyn FnMut(&Dirty<'_>) -> bool,
    ) -> Followed {
        let Some((mut cursor, end)) =
            self.follower(number).filter(|one| !one.is_lost).map(|one| (one.cursor, one.end))
        else {
            return Followed::Lost;
        };
        if cursor >= end {
            // Its last item was taken by itself, and may be flushed since.
            return self.end_snapshot(number);
        }
        if self.is_to_be_read(cursor) {
            return Followed::Flushed;
        }
        let flushed_seqno = self.state.flushed_seqno;
        let resources = self.memory.resources;
        let walked = self.walk_order(&mut cursor, end, slices, &mut |item: &Dirty<'_>| {
            let is_flushed = item.header.seqno <= flushed_seqno && !item.header.kind.is_prepare();
            let is_gone = is_flushed || !resources.collections.has(collection_of(item.stored_key));
            is_gone || take(item)
        });
        let last = match walked {
            Walked::ToTheEnd => end,
            Walked::Slice | Walked::Refused => cursor,
        };
        self.set_cursor(number, last);
        match walked {
            Walked::Slice => Followed::Part,
            Walked::Refused => Followed::Refused,
            Walked::ToTheEnd => self.end_snapshot(number),
        }
    }

    /// Returns what a follower may have missed.
    pub(crate) fn forgotten(&self) -> Forgotten {
        let (purged, kept_from) =
            self.followers().map_or((0, 0), |followers| (followers.purged_seqno, followers.kept_from));
        let durable = self.state.rare.as_ref().and_then(|rare| rare.durable.as_ref());
        // What was flushed has the seqnos up to this one; a snapshot that ends there may be one of before.
        let flushed = self.state.flushed_seqno;
        Forgotten {
            purged_seqno: purged.max(durable.map_or(0, |durable| durable.purged_seqno)),
            kept_from: kept_from.max(if flushed > 0 { flushed + 1 } else { 0 }),
        }
    }
}
