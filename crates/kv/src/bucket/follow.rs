//! Following: everything that happens in a vBucket, in the order of the seqnos, from any point on.
//!
//! ```text
//!   open ──> may the follower continue from where it is? else it rolls back
//!   advance  snapshot: a marker with its end, then the versions up to it; torn: another marker, with a later end
//!             ├─ what has a slot in the seqno order     from memory, under the lock
//!             └─ what is flushed and has none           from the journal, in pieces that a thread reads ([`Shelf`])
//!   news     a letter when there is something new, or a piece has been read
//! ```
//! If the order does not matter, a walk comes first, over the documents that are in memory, wherever they are in the
//! order; then the rest as above: deletions, and documents that are on disk only.
//!
//! Nothing is kept for a follower but its cursor, during a walk the seqnos of a few documents, and at most one piece:
//! what it has not read stays where it is.

mod piece;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use super::Bucket;
use crate::collections::SystemEvent;
pub use crate::index::StreamFigures;
use crate::index::{
    Dirty, Followed, Forgotten, Header, Kind, Locked, SHADOW_AGE_S, Taken, Told, Walk, hash_stored, mark,
};
use crate::news::News;
use crate::{PinnedValue, ThreadContext, Unavailable, VbId, VbState};
pub(crate) use piece::{Piece, Shelf, Wanted};

/// The highest seqno that another node may tell: half of what there is room for is left.
pub(super) const SEQNO_MOST: u64 = (1 << 47) - 1;
/// Bytes of a message without key and value.
const HEAD_BYTES: usize = 64;
/// Slices of 64 versions that are read under one hold of the lock.
const SLICES: usize = 4;
/// Parts of the table, of some 32 documents, that are walked over under one hold of the lock.
const PARTS: usize = 8;
/// With more documents that are on disk only, for each vBucket, a walk over those in memory is not worth while.
const EJECTED_MOST: u64 = 32;
/// After the last stream has ended, what makes it possible to go on is kept for this long: a consumer may come back.
const LINGER_S: u32 = 300;
/// An ephemeral bucket that is followed forgets deletions after this time if it has no `purge_age_s`, and looks for
/// them this often.
const TOMBSTONE_AGE_S: u32 = 24 * 3600;
const PURGE_INTERVAL_S: u32 = 3600;

/// The streams of a bucket.
#[derive(Default)]
pub(crate) struct Following {
    pub(super) consumers: super::consumers::Consumers,
    streams: AtomicU32,
    /// There are streams, or were some a short time ago.
    is_kept: AtomicBool,
    /// Until when; 0 while there are streams.
    linger_until_s: AtomicU32,
    /// When old deletions are looked for next.
    purge_at_s: AtomicU32,
    /// The manifest whose changes all followers have been told.
    told_uid: AtomicU64,
}

/// From where to where to follow a vBucket, and what the follower has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The last seqno it has; 0: nothing.
    pub start: u64,
    /// The last seqno it wants.
    pub end: u64,
    /// The history that `start` is part of; 0: any.
    pub uuid: u64,
    /// The snapshot that `start` is part of: where it starts and ends.
    pub snapshot: (u64, u64),
    /// It knows of all deletions up to this seqno.
    pub purged_seqno: u64,
    /// It does not mind having missed deletions.
    pub ignores_purged: bool,
    /// It follows the active of this term, and nobody else.
    pub term: Option<u64>,
    /// If it has nothing, it takes the first snapshot in any order.
    pub in_any_order: bool,
}

/// Why a vBucket cannot be followed from a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The follower has something that is not part of the vBucket's history after this seqno: it must go back to it.
    RollBack(u64),
    /// The seqnos contradict each other.
    Range,
    /// The vBucket is active in another term here: in this one.
    Term(u64),
    /// There is no memory to keep the order.
    NoMemory,
    /// See there.
    Unavailable(Unavailable),
}

/// What a version is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VersionKind {
    /// A document.
    #[default]
    Document,
    /// A deletion; its value, if there is one, is what is left: extended attributes.
    Deletion,
    /// The same, because the document had expired.
    Expiration,
    /// What a document is to become.
    Prepare,
    /// A deletion that is to be.
    PrepareDeletion,
    /// A prepare that came to nothing: the CAS is the prepare's seqno, or 0 if that is not known.
    Abort,
}

/// A version of a document.
#[derive(Default)]
pub struct Version<'a> {
    /// What it is.
    pub kind: VersionKind,
    /// Its seqno.
    pub seqno: u64,
    /// Its revision.
    pub rev: u64,
    /// Its CAS.
    pub cas: u64,
    /// The client's flags.
    pub flags: u32,
    /// When it expires, or was deleted.
    pub expiry: u32,
    /// Datatype bits.
    pub datatype: u8,
    /// Level of a prepare.
    pub level: u8,
    /// It was prepared before.
    pub committed: bool,
    /// Its key with the collection's prefix.
    pub stored_key: &'a [u8],
    /// Its value.
    pub value: VersionValue<'a>,
}

/// The value of a version.
pub enum VersionValue<'a> {
    /// Its bytes.
    Bytes(&'a [u8]),
    /// A long one, where it lies.
    Pinned(PinnedValue),
}

impl Default for VersionValue<'_> {
    fn default() -> Self {
        Self::Bytes(&[])
    }
}

impl VersionValue<'_> {
    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pinned(pinned) => pinned,
        }
    }
}

/// What a stream consists of.
pub enum Event<'a> {
    /// What follows up to `end` belongs together. A snapshot that comes again goes on to a later end.
    Snapshot {
        /// What the follower had before it.
        start: u64,
        /// Its last seqno.
        end: u64,
    },
    /// A version.
    Version(Version<'a>),
    /// A change of the scopes and collections, and its seqno.
    System(u64, SystemEvent),
    /// Up to here there is nothing more: what had these seqnos is gone.
    Advanced(u64),
    /// What follows is in no order, and each document is in it once.
    OutOfOrder,
    /// That ends. It was everything up to this seqno; if a snapshot follows at once, together with it.
    OrderedFrom(u64),
}

/// How far a stream got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advanced {
    /// To the newest: a letter comes when there is more.
    Idle,
    /// There is more.
    More,
    /// To its end.
    Done,
    /// What comes next must be read from disk: [`crate::persistence::read_on`].
    OnDisk,
    /// It could not be read.
    Unreadable,
    /// It has missed something: the follower has to begin again.
    Lost,
    /// The vBucket is another node's now, or nobody's.
    StateChanged,
}

/// A stream of a vBucket's versions. It ends when it is dropped.
pub struct Stream {
    bucket: Arc<Bucket>,
    vb: VbId,
    number: u64,
    news: Arc<News>,
    /// The vBucket's state.
    state: VbState,
    /// The only term that it follows.
    term: Option<u64>,
    /// It goes on when the vBucket is dead.
    outlives: bool,
    end: u64,
    /// The last version handed out.
    cursor: u64,
    /// The snapshot that is being handed out.
    snapshot: Option<(u64, u64)>,
    /// The first one may come in any order.
    in_any_order: bool,
    /// If it does, until its end: what it has begun with.
    walk: Option<Walk>,
    /// The changes of scopes and collections in it that were not handed out yet.
    events: VecDeque<Told>,
    disk: Disk,
}

/// What a stream has of the journal.
enum Disk {
    Nothing,
    /// A piece is being read.
    Asked(Arc<Shelf>),
    /// One that is being handed out.
    Piece(Piece),
}

impl<'a> Version<'a> {
    fn of(item: &Dirty<'a>, value: VersionValue<'a>) -> Self {
        let Header { seqno, rev, cas, flags, datatype, committed, .. } = *item.header;
        let is_shadow = matches!(item.header.kind, Kind::Shadow | Kind::PrepareShadow);
        let expiry = item.header.expiry.saturating_sub(if is_shadow { SHADOW_AGE_S } else { 0 });
        let kind = match item.header.kind {
            Kind::Document | Kind::Ejected => VersionKind::Document,
            Kind::Tombstone if item.header.marks & mark::EXPIRED != 0 => VersionKind::Expiration,
            Kind::Tombstone | Kind::Shadow => VersionKind::Deletion,
            Kind::Prepare => VersionKind::Prepare,
            Kind::PrepareDelete | Kind::PrepareShadow => VersionKind::PrepareDeletion,
            Kind::Abort => VersionKind::Abort,
        };
        let (level, stored_key) = (item.level, item.stored_key);
        Self { kind, seqno, rev, cas, flags, expiry, datatype, level, committed, stored_key, value }
    }

    /// Returns about how many bytes a message with it has.
    pub fn bytes(&self) -> usize {
        self.stored_key.len() + self.value.bytes().len() + HEAD_BYTES
    }
}

impl Bucket {
    /// Begins to follow a vBucket. Changes are noted in `news`; `number` is unique among the streams of a vBucket.
    pub fn follow(
        self: &Arc<Self>,
        cx: &mut ThreadContext,
        vb: VbId,
        number: u64,
        position: &Position,
        news: &Arc<News>,
    ) -> Result<Stream, Refused> {
        if let Some(why) = self.closed(vb) {
            return Err(Refused::Unavailable(why));
        }
        let (histories, (state, term)) = (self.histories(vb), self.standing(vb));
        if position.term.is_some_and(|wanted| wanted != term) {
            return Err(Refused::Term(term));
        }
        // ORDERING: before anything is kept, so that the pager does not overlook it.
        self.following.streams.fetch_add(1, SeqCst);
        if !self.following.is_kept.swap(true, SeqCst) {
            self.doorbell.ring();
        }
        let result = self.follow_from(cx, (vb, state), number, position, (news, &histories));
        if result.is_err() {
            self.unfollowed();
        }
        result
    }

    fn follow_from(
        self: &Arc<Self>,
        cx: &mut ThreadContext,
        (vb, state): (VbId, VbState),
        number: u64,
        position: &Position,
        (news, histories): (&Arc<News>, &[(u64, u64)]),
    ) -> Result<Stream, Refused> {
        let mut locked = self.lock(cx, vb);
        if state == VbState::Active {
            locked.tell_changes();
        }
        // Keeping the order comes first: from then on nothing is forgotten unnoticed.
        locked.follow(number, Arc::clone(news), position.start).map_err(|_| Refused::NoMemory)?;
        // From now on, an expiration is due in its second.
        self.expiry_entered(locked.expiry_due_s().unwrap_or(u32::MAX));
        let refused = position.check(histories, locked.high_seqno(), locked.forgotten()).err();
        if refused.is_some() {
            drop(locked);
            self.vbucket(vb).unfollow(number);
        }
        match refused {
            Some(why) => Err(why),
            None => Ok(Stream {
                bucket: Arc::clone(self),
                vb,
                number,
                news: Arc::clone(news),
                state,
                term: position.term,
                outlives: false,
                end: position.end,
                cursor: position.start,
                snapshot: None,
                in_any_order: position.in_any_order && position.start == 0,
                walk: None,
                events: VecDeque::new(),
                disk: Disk::Nothing,
            }),
        }
    }
}

impl Bucket {
    /// Returns true if nearly all documents are in memory.
    fn is_mostly_resident(&self) -> bool {
        let (ejected_items, _) = self.dirty().map_or((0, 0), |dirty| dirty.ejected());
        ejected_items <= EJECTED_MOST * u64::from(self.vbuckets())
    }

    /// Notes that a stream has ended.
    fn unfollowed(&self) {
        if self.following.streams.fetch_sub(1, SeqCst) == 1 {
            self.following.linger_until_s.store(0, Relaxed);
            self.doorbell.ring();
        }
    }

    /// Forgets old deletions of an ephemeral bucket; some time after the last stream has ended, everything that was
    /// kept for streams. Returns when there is more to do, in unix seconds.
    pub(crate) fn tend_streams(&self, cx: &mut ThreadContext) -> Option<u32> {
        let (following, now_s) = (&self.following, cx.now.unix_s);
        if !following.is_kept.load(SeqCst) {
            return None;
        }
        if following.streams.load(SeqCst) == 0 {
            let until_s = match following.linger_until_s.load(Relaxed) {
                0 => now_s.saturating_add(LINGER_S),
                until_s => until_s,
            };
            following.linger_until_s.store(until_s, Relaxed);
            if until_s > now_s {
                return Some(until_s);
            }
            // ORDERING: before the vBuckets are visited. A stream that begins meanwhile sets it again.
            following.is_kept.store(false, SeqCst);
            if following.streams.load(SeqCst) > 0 {
                following.is_kept.store(true, SeqCst);
                return Some(now_s);
            }
            following.linger_until_s.store(0, Relaxed);
            for vb in 0..self.vbuckets() {
                while self.lock(cx, VbId(vb)).stop_following() {
                    cx.end_batch();
                }
                cx.end_batch();
            }
            return None;
        }
        following.linger_until_s.store(0, Relaxed);
        self.tell_changes(cx);
        if self.persistence().is_some() {
            return None;
        }
        let at_s = following.purge_at_s.load(Relaxed);
        if at_s > now_s {
            return Some(at_s);
        }
        if at_s > 0 {
            let age_s = Some(self.settings().purge_age_s).filter(|age_s| *age_s > 0);
            self.forget_deletions(cx, now_s.saturating_sub(age_s.unwrap_or(TOMBSTONE_AGE_S)));
        }
        let next_s = now_s.saturating_add(PURGE_INTERVAL_S);
        following.purge_at_s.store(next_s, Relaxed);
        Some(next_s)
    }

    /// Tells the followers what has changed of scopes and collections.
    fn tell_changes(&self, cx: &mut ThreadContext) {
        let uid = self.collections().uid();
        if self.following.told_uid.swap(uid, Relaxed) == uid {
            return;
        }
        for vb in (0..self.vbuckets()).map(VbId) {
            if self.vbucket_state(vb) != VbState::Active || self.closed(vb).is_some() {
                continue;
            }
            let mut locked = self.lock(cx, vb);
            if locked.is_followed() {
                locked.tell_changes();
            }
            drop(locked);
            cx.end_batch();
        }
    }

    /// Forgets the deletions in an ephemeral bucket that are older than a time. Streams that have not got so far end.
    fn forget_deletions(&self, cx: &mut ThreadContext, before_s: u32) {
        for vb in 0..self.vbuckets() {
            while self.lock(cx, VbId(vb)).drop_ends(before_s) {
                cx.end_batch();
            }
            cx.end_batch();
        }
    }
}

impl Position {
    /// Decides whether a follower may continue, as the protocol's documents say.
    fn check(&self, histories: &[(u64, u64)], high_seqno: u64, forgotten: Forgotten) -> Result<(), Refused> {
        let (mut snapshot_start, mut snapshot_end) = self.snapshot;
        let start = self.start;
        if !(snapshot_start <= start && start <= snapshot_end && start <= self.end) {
            return Err(Refused::Range);
        }
        if start == 0 && self.uuid == 0 {
            return Ok(());
        }
        // It has all of the snapshot, or nothing of it.
        if start == snapshot_end {
            snapshot_start = start;
        }
        if start == snapshot_start {
            snapshot_end = start;
        }
        // Deletions that it has passed it has seen, or it never had what they deleted.
        let purged_seqno = forgotten.purged_seqno;
        let has_missed =
            snapshot_end < forgotten.kept_from || start < purged_seqno && self.purged_seqno < purged_seqno;
        if start != 0 && has_missed && !self.ignores_purged {
            return Err(Refused::RollBack(0));
        }
        let Some(at) = histories.iter().position(|(uuid, _)| *uuid == self.uuid) else {
            return Err(Refused::RollBack(0));
        };
        let ended = at.checked_sub(1).and_then(|newer| histories.get(newer)).map(|(_, began_at)| *began_at);
        let upper = ended.unwrap_or(high_seqno);
        if snapshot_end <= upper {
            Ok(())
        } else if snapshot_start > upper {
            Err(Refused::RollBack(upper))
        } else {
            Err(Refused::RollBack(snapshot_start))
        }
    }
}

impl Stream {
    /// Returns its vBucket.
    pub fn vb(&self) -> VbId {
        self.vb
    }

    /// Returns the snapshot that is being handed out: what came before it, and its end.
    pub fn snapshot(&self) -> Option<(u64, u64)> {
        self.snapshot
    }

    /// Returns true if it has, or waits for, a piece of the journal.
    pub fn is_reading(&self) -> bool {
        !matches!(self.disk, Disk::Nothing)
    }

    /// Returns the bytes of the piece of the journal that it holds.
    pub fn held_bytes(&self) -> usize {
        match &self.disk {
            Disk::Piece(piece) => piece.held_bytes(),
            Disk::Nothing | Disk::Asked(_) => 0,
        }
    }

    /// Makes it go on now that the vBucket is dead: its follower takes over.
    pub fn outlive(&mut self) {
        self.outlives = true;
    }

    /// Returns the only term that it follows, if it follows one.
    pub fn term(&self) -> Option<u64> {
        self.term
    }

    /// Returns the last seqno that was handed out.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Hands out what comes next, about `room` bytes of it.
    pub fn advance(&mut self, cx: &mut ThreadContext, room: usize, f: &mut dyn FnMut(Event<'_>)) -> Advanced {
        let bucket = Arc::clone(&self.bucket);
        if bucket.is_gone() {
            return Advanced::Lost;
        }
        let (state, term) = bucket.standing(self.vb);
        let is_followed = match self.term {
            // It has resigned.
            Some(wanted) if self.outlives => (state, term) == (VbState::Dead, wanted + 1),
            Some(wanted) => (state, term) == (VbState::Active, wanted),
            None => state == self.state || state == VbState::Active,
        };
        if !is_followed {
            return Advanced::StateChanged;
        }
        self.state = state;
        if self.snapshot.is_none() {
            if self.cursor >= self.end {
                return Advanced::Done;
            }
            let mut locked = bucket.lock(cx, self.vb);
            if locked.has_lost(self.number) {
                return Advanced::Lost;
            }
            let Some(end) = locked.begin_snapshot(self.number) else { return Advanced::Idle };
            self.events = locked.events_between(self.cursor, end).iter().copied().collect();
            self.snapshot = Some((self.cursor, end));
            // What is in order in memory is as quickly read in it, and so is what is mostly on disk.
            if std::mem::take(&mut self.in_any_order)
                && locked.is_to_be_read(self.cursor)
                && bucket.is_mostly_resident()
            {
                self.walk = Some(locked.begin_walk(end));
                f(Event::OutOfOrder);
                // Collections come before their documents.
                tell(&mut self.events, u64::MAX, f);
            } else {
                f(Event::Snapshot { start: self.cursor, end });
                return self.advance_in_memory(&bucket, locked, room, f);
            }
        }
        if self.walk.as_ref().is_some_and(|walk| !walk.is_done()) {
            return self.walk_on(&bucket, cx, room, f);
        }
        match self.take_piece() {
            Err(advanced) => advanced,
            Ok(true) => self.advance_on_disk(&bucket, cx, room, f),
            Ok(false) => self.advance_in_memory(&bucket, bucket.lock(cx, self.vb), room, f),
        }
    }

    /// Takes the piece that was asked for. Returns true if there is one to be handed out.
    fn take_piece(&mut self) -> Result<bool, Advanced> {
        if let Disk::Asked(shelf) = &self.disk {
            match shelf.take() {
                None => return Err(Advanced::Idle),
                Some(Ok(piece)) => self.disk = Disk::Piece(piece),
                Some(Err(())) => return Err(Advanced::Unreadable),
            }
        }
        Ok(matches!(self.disk, Disk::Piece(_)))
    }

    /// Hands out documents that are in memory, in the order of the table.
    fn walk_on(
        &mut self,
        bucket: &Bucket,
        cx: &mut ThreadContext,
        room: usize,
        f: &mut dyn FnMut(Event<'_>),
    ) -> Advanced {
        let Some(walk) = &mut self.walk else { return Advanced::More };
        let mut left = room;
        let mut locked = bucket.lock(cx, self.vb);
        if locked.has_lost(self.number) {
            return Advanced::Lost;
        }
        let is_refused = locked.walk_on(walk, PARTS, |item| {
            if left == 0 || item.is_long() {
                return false;
            }
            let version = Version::of(item, VersionValue::Bytes(item.value));
            left = left.saturating_sub(version.bytes());
            f(Event::Version(version));
            true
        });
        if is_refused
            && left > 0
            && let Some(taken) = locked.take_refused(walk)
        {
            drop(locked);
            hand_out(taken, f);
        }
        Advanced::More
    }

    fn advance_on_disk(
        &mut self,
        bucket: &Bucket,
        cx: &mut ThreadContext,
        room: usize,
        f: &mut dyn FnMut(Event<'_>),
    ) -> Advanced {
        let Disk::Piece(piece) = &mut self.disk else { return Advanced::More };
        let mut left = room;
        while left > 0 {
            let Some(version) = piece.next() else {
                let reached = piece.reached();
                self.disk = Disk::Nothing;
                let mut locked = bucket.lock(cx, self.vb);
                if locked.has_lost(self.number) {
                    return Advanced::Lost;
                }
                locked.set_cursor(self.number, reached);
                let is_at_end = self.snapshot.is_some_and(|(_, end)| reached >= end);
                let followed = if is_at_end { locked.end_snapshot(self.number) } else { Followed::Part };
                if let (Followed::Extended(later), Some((_, end))) = (followed, self.snapshot) {
                    self.events.extend(locked.events_between(end, later));
                }
                let is_newest = self.snapshot.is_some_and(|(_, end)| locked.high_seqno() == end);
                drop(locked);
                // Whoever goes on from there must have been told.
                let told = tell(&mut self.events, reached.saturating_add(1), f);
                self.cursor = self.cursor.max(told);
                return self.settle(followed, reached, is_newest, f);
            };
            self.cursor = version.seqno;
            let is_told = version.kind == VersionKind::Document
                && has_told(self.walk.as_ref(), bucket, version.seqno, version.stored_key);
            if !is_told {
                tell(&mut self.events, version.seqno, f);
                left = left.saturating_sub(version.bytes());
                f(Event::Version(version));
            }
        }
        Advanced::More
    }

    fn advance_in_memory(
        &mut self,
        bucket: &Bucket,
        mut locked: Locked<'_>,
        room: usize,
        f: &mut dyn FnMut(Event<'_>),
    ) -> Advanced {
        let Some((_, mut end)) = self.snapshot else { return Advanced::More };
        let (mut left, mut cursor, mut is_on_disk) = (room, self.cursor, false);
        let mut followed;
        loop {
            followed = locked.read_snapshot(self.number, SLICES, &mut |item| {
                if matches!(item.header.kind, Kind::Document | Kind::Ejected)
                    && has_told(self.walk.as_ref(), bucket, item.header.seqno, item.stored_key)
                {
                    cursor = item.header.seqno;
                    return true;
                }
                is_on_disk = item.header.kind == Kind::Ejected;
                if left == 0 || is_on_disk || item.is_long() {
                    return false;
                }
                let version = Version::of(item, VersionValue::Bytes(item.value));
                tell(&mut self.events, version.seqno, f);
                left = left.saturating_sub(version.bytes());
                cursor = version.seqno;
                f(Event::Version(version));
                true
            });
            let Followed::Extended(later) = followed else { break };
            self.events.extend(locked.events_between(end, later));
            // To the end under the same hold of the lock: what is written all the time would tear it again and again.
            if left == 0 {
                break;
            }
            self.extend(later, f);
            end = later;
        }
        self.cursor = self.cursor.max(cursor);
        if followed != Followed::Refused || left == 0 {
            let is_newest = locked.high_seqno() == end;
            drop(locked);
            return self.settle(followed, self.cursor, is_newest, f);
        }
        if is_on_disk {
            return Advanced::OnDisk;
        }
        if let Some(taken) = locked.take_next(self.number) {
            drop(locked);
            self.cursor = taken.header.seqno;
            tell(&mut self.events, self.cursor, f);
            hand_out(taken, f);
        }
        Advanced::More
    }

    /// Notes how far a snapshot has been handed out: up to `reached`. `is_newest`: nothing comes after it yet.
    fn settle(
        &mut self,
        followed: Followed,
        reached: u64,
        is_newest: bool,
        f: &mut dyn FnMut(Event<'_>),
    ) -> Advanced {
        let Some((_, end)) = self.snapshot else { return Advanced::More };
        match followed {
            Followed::Whole => {
                let told = tell(&mut self.events, u64::MAX, f);
                self.cursor = self.cursor.max(told);
                if self.walk.take().is_some() {
                    f(Event::OrderedFrom(end));
                } else if self.cursor < end {
                    f(Event::Advanced(end));
                }
                self.cursor = end;
                self.snapshot = None;
                if end >= self.end {
                    Advanced::Done
                } else if is_newest {
                    Advanced::Idle
                } else {
                    Advanced::More
                }
            }
            Followed::Extended(later) => {
                self.cursor = self.cursor.max(reached);
                self.extend(later, f);
                Advanced::More
            }
            Followed::Refused | Followed::Part => {
                self.cursor = self.cursor.max(reached);
                Advanced::More
            }
            Followed::Flushed => Advanced::OnDisk,
            Followed::Lost => Advanced::Lost,
        }
    }

    /// Goes on with a snapshot that is torn, up to a later end; after one in no order with another, in order.
    fn extend(&mut self, later: u64, f: &mut dyn FnMut(Event<'_>)) {
        let Some((mut start, end)) = self.snapshot else { return };
        if self.walk.take().is_some() {
            (start, self.cursor) = (end, end);
            f(Event::OrderedFrom(end));
        }
        self.snapshot = Some((start, later));
        f(Event::Snapshot { start, end: later });
    }

    /// Returns what is to be read from disk, and where to: up to a seqno. News come when it is there.
    pub(crate) fn ask(&mut self, cx: &mut ThreadContext) -> Option<Wanted> {
        let (_, end) = self.snapshot.filter(|_| matches!(self.disk, Disk::Nothing))?;
        let locked = self.bucket.lock(cx, self.vb);
        let (persisted_seqno, base) = (locked.persisted_seqno(), locked.base());
        drop(locked);
        if end.min(persisted_seqno) <= self.cursor {
            return None;
        }
        let shelf = Arc::new(Shelf::default());
        self.disk = Disk::Asked(Arc::clone(&shelf));
        Some(Wanted {
            bucket: Arc::clone(&self.bucket),
            vb: self.vb,
            base,
            after: self.cursor,
            end: end.min(persisted_seqno),
            documents: self.walk.as_ref().and_then(Walk::skipped).map(<[u64]>::to_vec),
            shelf,
            news: Arc::clone(&self.news),
        })
    }
}

/// Returns true if the walk has handed out this document.
fn has_told(walk: Option<&Walk>, bucket: &Bucket, seqno: u64, stored_key: &[u8]) -> bool {
    let hash = || hash_stored(stored_key, &bucket.resources.secrets);
    walk.is_some_and(|walk| walk.has_told(seqno, hash))
}

/// Hands out a document with a large value.
fn hand_out(taken: Taken, f: &mut dyn FnMut(Event<'_>)) {
    let (header, level) = (taken.header, taken.as_dirty().level);
    let stored_key = taken.as_dirty().stored_key.to_vec();
    if let Some(pinned) = taken.into_pinned() {
        let item = Dirty { header: &header, stored_key: &stored_key, value: &[], level };
        f(Event::Version(Version::of(&item, VersionValue::Pinned(pinned))));
    }
}

/// Hands out the changes of scopes and collections that come before a seqno. Returns the last one's; 0: there was none.
fn tell(events: &mut VecDeque<Told>, before: u64, f: &mut dyn FnMut(Event<'_>)) -> u64 {
    let mut last = 0;
    while let Some(Told { seqno, event }) = events.front().copied().filter(|told| told.seqno < before) {
        events.pop_front();
        f(Event::System(seqno, event));
        last = seqno;
    }
    last
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.bucket.vbucket(self.vb).unfollow(self.number);
        self.bucket.unfollowed();
    }
}
