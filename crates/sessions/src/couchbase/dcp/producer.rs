//! The streams of a connection, and their messages.
//!
//! ```text
//!   news ──> ready: streams that may have something ──in turns──> advance ──> messages ──> output
//!                                                     └ the consumer's buffer is full, or the output: later
//! ```
//! Between two wake-ups nothing is kept of what is to be sent.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kv::collections::{Change as What, Manifest, SystemEvent as Change};
use kv::consumers::Consumer;
use kv::follow::{Advanced, Event, Position, Refused, Stream, Version, VersionKind};
use kv::news::News;
use kv::persistence::read_on;
use kv::{Bucket, Cookie, NodeContext, VbId, VbState};
use wire::couchbase::collection_id;
use wire::dcp::message::{
    Deletion, End, EndReason, Event as Told, Marker, MarkerForm, Mutation, Prepare, Seqnos, SystemEvent,
    snapshot_kind,
};
use wire::dcp::{Filter, Message, Place, StreamRequest, open, stream_request};
use wire::snappy;

use super::super::super::Output;
use super::REPLICATION;
use super::shown::{Showing, Shown};

/// Most bytes of one stream before others get their turn, and most turns before other connections do.
const TURN_BYTES: usize = 32 << 10;
const TURNS: u32 = 16;
/// Without a size of its buffer the consumer is taken to have this much room for each wake-up.
const UNLIMITED: u64 = u64::MAX;
/// The answer to a NOOP is awaited for as long as an interval.
const NOOP_INTERVAL_S: u64 = 120;

/// What OPEN and HELLO have settled.
pub(super) struct Opened {
    /// Flags of OPEN.
    pub(super) flags: u32,
    pub(super) has_collections: bool,
    pub(super) has_snappy: bool,
    pub(super) has_json: bool,
}

/// What CONTROL has asked for.
pub(super) struct Wanted {
    pub(super) has_noops: bool,
    pub(super) noop_interval_s: u64,
    /// Size of the consumer's buffer; 0: it takes whatever comes.
    pub(super) buffer_bytes: u32,
    pub(super) ends_on_close: bool,
    pub(super) has_expirations: bool,
    pub(super) has_stream_ids: bool,
    pub(super) has_sync_writes: bool,
    pub(super) consumer: Box<str>,
    pub(super) compresses: bool,
    pub(super) keeps_user_xattrs: bool,
    pub(super) marker: MarkerForm,
    pub(super) out_of_order: OutOfOrder,
}

/// Whether a consumer takes snapshots in no order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OutOfOrder {
    Refused,
    Taken,
    /// It is told their last seqno, if nothing in them has it.
    TakenAndAdvanced,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            has_noops: false,
            noop_interval_s: NOOP_INTERVAL_S,
            buffer_bytes: 0,
            ends_on_close: false,
            has_expirations: false,
            has_stream_ids: false,
            has_sync_writes: false,
            consumer: Box::default(),
            compresses: false,
            keeps_user_xattrs: false,
            marker: MarkerForm::V1,
            out_of_order: OutOfOrder::Refused,
        }
    }
}

/// Names a stream of the connection: its vBucket, and its id if it has one.
type Name = (u16, Option<u16>);

/// Seqno and CAS of the prepares that were sent and have not ended, by key. A commit has its prepare's CAS.
type Prepared = HashMap<Vec<u8>, (u64, u64)>;

/// How far the take-over of a vBucket is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TakeOver {
    /// There is more to be sent before.
    Behind,
    /// The consumer has everything, and is asked whether it is there.
    Asked,
    /// It is: the vBucket is dead, and its end is being sent.
    Dead,
    /// The consumer is told to be the active.
    Told,
}

/// A stream and what its messages need.
struct Sending {
    stream: Stream,
    /// It waits for its turn, because it may have something.
    is_ready: bool,
    /// The consumer is still to be told that it has everything.
    tells_end: bool,
    take_over: Option<TakeOver>,
    place: Place,
    filter: Filter,
    prepared: Prepared,
    /// Collections that it was told are gone.
    gone: BTreeSet<u32>,
    /// What the consumer had when it began.
    start: u64,
    /// The last seqno that a message had.
    told: u64,
}

/// Where the NOOPs are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Noop {
    /// Nothing was sent since.
    Quiet { since_ms: u64 },
    /// The answer is awaited.
    Sent { at_ms: u64 },
}

/// Memory of a stream at rest: itself, its places in the producer's tables, its entry among its vBucket's followers.
pub(super) const STREAM_BYTES: usize = 480;
const _: () = assert!(size_of::<Sending>() + 2 * size_of::<Name>() <= STREAM_BYTES);

/// A connection that is sent streams.
pub(crate) struct Producer {
    opened: Opened,
    pub(super) wanted: Wanted,
    bucket: Arc<Bucket>,
    news: Arc<News>,
    /// What others see of it.
    consumer: Arc<Consumer>,
    streams: BTreeMap<Name, Box<Sending>>,
    /// How many streams its user has, on all connections.
    of_user: Arc<AtomicUsize>,
    /// Streams that may have something, in the order of their turns.
    ready: VecDeque<Name>,
    /// Streams that have to be read from disk, in the order of their turns, and the one that is.
    on_disk: VecDeque<Name>,
    is_on_disk: BTreeSet<Name>,
    reading: Option<Name>,
    /// The users when the rights to these streams were checked.
    users: u64,
    /// For values that the consumer wants compressed.
    compressor: snappy::Compressor,
    /// Ends that were decided and not sent.
    ends: VecDeque<(Place, EndReason)>,
    numbers: u64,
    /// Bytes sent and not acknowledged.
    unacknowledged: u64,
    noop: Noop,
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.of_user.fetch_sub(self.streams.len(), Relaxed);
    }
}

impl Producer {
    pub(super) fn new(
        bucket: &Arc<Bucket>,
        (user, name): (Arc<str>, &[u8]),
        opened: Opened,
        cookie: Cookie,
        cx: &mut NodeContext,
    ) -> Self {
        let news = Arc::new(News::new(cookie, bucket.vbuckets()));
        Self {
            opened,
            wanted: Wanted::default(),
            of_user: cx.node.client_memory().streams_of(&user),
            consumer: bucket.add_consumer(cx, user, name, &news),
            news,
            bucket: Arc::clone(bucket),
            streams: BTreeMap::new(),
            ready: VecDeque::new(),
            on_disk: VecDeque::new(),
            is_on_disk: BTreeSet::new(),
            reading: None,
            users: cx.node.users().generation(),
            compressor: snappy::Compressor::default(),
            ends: VecDeque::new(),
            numbers: 0,
            unacknowledged: 0,
            noop: Noop::Quiet { since_ms: 0 },
        }
    }

    /// What the streams of its user hold with another one.
    pub(super) fn bytes_with_another(&self) -> usize {
        (self.of_user.load(Relaxed) + 1) * STREAM_BYTES
    }

    pub(super) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    pub(super) fn has_stream(&self, place: &Place) -> bool {
        self.streams.contains_key(&(place.vbucket, place.stream_id))
    }

    /// Returns the ticket of the letters that say that there is news.
    pub(crate) fn ticket(&self) -> u64 {
        self.news.cookie().ticket
    }

    /// Returns true if its consumer is another node, which copies.
    pub(crate) fn is_of_node(&self) -> bool {
        self.consumer.name.starts_with(REPLICATION.as_bytes())
    }

    /// Returns true if another connection has taken its name.
    pub(crate) fn is_replaced(&self) -> bool {
        self.consumer.is_replaced()
    }

    /// Takes note of what CONTROL has changed.
    pub(super) fn note_settings(&mut self) {
        let (wanted, figures) = (&self.wanted, &self.consumer.figures);
        figures.buffer_bytes.store(wanted.buffer_bytes.into(), Relaxed);
        let interval_s = if wanted.has_noops { wanted.noop_interval_s } else { 0 };
        figures.noop_interval_s.store(interval_s, Relaxed);
    }

    /// Notes that bytes were sent.
    fn note_sent(&mut self, bytes: usize) {
        if self.wanted.buffer_bytes > 0 {
            self.unacknowledged += bytes as u64;
        }
        let figures = &self.consumer.figures;
        figures.bytes_sent.fetch_add(bytes as u64, Relaxed);
        figures.bytes_unacknowledged.store(self.unacknowledged, Relaxed);
    }

    /// Begins a stream.
    pub(super) fn begin(
        &mut self,
        bucket: &Arc<Bucket>,
        place: Place,
        position: &Position,
        wanted: StreamRequest,
        cx: &mut NodeContext,
    ) -> Result<(), Refused> {
        self.numbers += 1;
        // Unique among all connections of the node.
        let number = self.ticket() << 32 ^ (cx.thread as u64) << 24 ^ self.numbers;
        let stream = bucket.follow(cx, VbId(place.vbucket), number, position, &self.news)?;
        if self.streams.is_empty() {
            self.noop = Noop::Quiet { since_ms: cx.now.mono_ms() };
        }
        let (name, start) = ((place.vbucket, place.stream_id), position.start);
        let (prepared, gone) = Default::default();
        let take_over = wanted.has(stream_request::flags::TAKEOVER).then_some(TakeOver::Behind);
        let filter = wanted.filter;
        let told = start;
        let (is_ready, tells_end) = (false, wanted.tells_end);
        let sending =
            Sending { stream, is_ready, tells_end, take_over, place, filter, prepared, gone, start, told };
        self.streams.insert(name, Box::new(sending));
        self.of_user.fetch_add(1, Relaxed);
        self.make_ready(name);
        Ok(())
    }

    /// Takes a stream out of all lists.
    fn remove(&mut self, name: &Name) -> Option<Box<Sending>> {
        if self.is_on_disk.remove(name) {
            self.on_disk.retain(|one| one != name);
        }
        self.reading = self.reading.filter(|reading| reading != name);
        let removed = self.streams.remove(name)?;
        self.of_user.fetch_sub(1, Relaxed);
        if removed.is_ready {
            self.ready.retain(|one| one != name);
        }
        Some(removed)
    }

    /// Ends the streams that the user may not follow any more.
    pub(crate) fn end_denied(&mut self, users: u64, may_follow: impl Fn(&Filter) -> bool) {
        if std::mem::replace(&mut self.users, users) == users {
            return;
        }
        let denied = self.streams.iter().filter(|(_, sending)| !may_follow(&sending.filter));
        let denied: Vec<Name> = denied.map(|(name, _)| *name).collect();
        for name in denied {
            let ended = self.remove(&name);
            self.ends.extend(ended.map(|sending| (sending.place, EndReason::LostPrivileges)));
        }
    }

    /// Returns how many streams of a vBucket there are.
    pub(super) fn streams_of(&self, vb: u16) -> usize {
        self.streams.range((vb, None)..=(vb, Some(u16::MAX))).count()
    }

    /// Returns true if there is a stream of a vBucket that follows this term, or whoever is the active.
    pub(super) fn has_stream_of_term(&self, vb: u16, term: u64) -> bool {
        let mut streams = self.streams.range((vb, None)..=(vb, Some(u16::MAX)));
        streams.any(|(_, sending)| sending.stream.term().is_none_or(|followed| followed == term))
    }

    /// Notes that the consumer has answered a change of state.
    pub(crate) fn state_answered(&mut self, opaque: u32, cx: &mut NodeContext) {
        let of_opaque = |(_, sending): &(&Name, &mut Box<Sending>)| sending.place.opaque == opaque;
        let Some((name, sending)) = self.streams.iter_mut().find(of_opaque) else { return };
        let name = *name;
        match sending.take_over {
            Some(TakeOver::Asked) => {
                // If it is the active no more, or of another term, the stream ends.
                let term = sending.stream.term();
                if term.is_some_and(|term| self.bucket.resign(cx, VbId(name.0), term)) {
                    sending.stream.outlive();
                    sending.take_over = Some(TakeOver::Dead);
                    cx.node.note_map_change();
                }
                self.make_ready(name);
            }
            Some(TakeOver::Told) => {
                let ended = self.remove(&name);
                self.ends.extend(ended.map(|sending| (sending.place, EndReason::Done)));
            }
            Some(TakeOver::Behind | TakeOver::Dead) | None => {}
        }
    }

    /// Returns the bytes that are kept of what has been read from disk.
    pub(crate) fn held_bytes(&self) -> usize {
        let reading = self.reading.and_then(|name| self.streams.get(&name));
        self.streams.len() * STREAM_BYTES + reading.map_or(0, |sending| sending.stream.held_bytes())
    }

    /// Ends a stream. Returns false if there is none.
    pub(super) fn close(&mut self, vb: u16, stream_id: Option<u16>) -> bool {
        let name = (vb, stream_id);
        let Some(sending) = self.remove(&name) else { return false };
        if self.wanted.ends_on_close {
            self.ends.push_back((sending.place, EndReason::Closed));
        }
        true
    }

    /// Notes that the consumer has processed this many bytes.
    pub(super) fn acknowledged(&mut self, bytes: u32) {
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes.into());
        let figures = &self.consumer.figures;
        figures.bytes_acknowledged.fetch_add(bytes.into(), Relaxed);
        figures.bytes_unacknowledged.store(self.unacknowledged, Relaxed);
    }

    /// Notes that the consumer has answered a NOOP.
    pub(crate) fn noop_answered(&mut self, now_ms: u64) {
        self.noop = Noop::Quiet { since_ms: now_ms };
    }

    /// When a NOOP is due, or its answer overdue.
    pub(crate) fn noop_due_ms(&self) -> Option<u64> {
        if !self.wanted.has_noops || self.streams.is_empty() {
            return None;
        }
        let interval_ms = self.wanted.noop_interval_s * 1000;
        Some(match self.noop {
            Noop::Quiet { since_ms } | Noop::Sent { at_ms: since_ms } => since_ms + interval_ms,
        })
    }

    /// Sends the NOOP that is due. Returns false if the consumer has not answered the last one.
    pub(crate) fn send_noop(&mut self, now_ms: u64, out: &mut Output) -> bool {
        if matches!(self.noop, Noop::Sent { .. }) {
            return false;
        }
        out.bytes(&Message::Noop.head(&Place::default()));
        self.noop = Noop::Sent { at_ms: now_ms };
        true
    }

    fn make_ready(&mut self, name: Name) {
        if let Some(sending) = self.streams.get_mut(&name)
            && !std::mem::replace(&mut sending.is_ready, true)
        {
            self.ready.push_back(name);
        }
    }

    /// Takes note of the vBuckets that have something new.
    pub(crate) fn look_for_news(&mut self) {
        let Self { news, streams, ready, is_on_disk, .. } = self;
        news.take(|vb| {
            for (name, sending) in streams.range_mut((vb.0, None)..=(vb.0, Some(u16::MAX))) {
                // What waits for its turn on disk goes on afterwards.
                if !is_on_disk.contains(name) && !std::mem::replace(&mut sending.is_ready, true) {
                    ready.push_back(*name);
                }
            }
        });
    }

    /// Bytes that the consumer has room for.
    fn room(&self) -> u64 {
        match self.wanted.buffer_bytes {
            0 => UNLIMITED,
            bytes => u64::from(bytes).saturating_sub(self.unacknowledged),
        }
    }

    /// Returns true if it has something to send, and the consumer room.
    pub(crate) fn has_to_send(&self) -> bool {
        let may_read = self.reading.is_none() && !self.is_on_disk.is_empty();
        !self.ends.is_empty() || may_read || !self.ready.is_empty() && self.room() > 0
    }

    /// Appends messages, up to about `most` bytes.
    pub(crate) fn produce(&mut self, most: usize, cx: &mut NodeContext, out: &mut Output) {
        let begun = out.len();
        while let Some((place, reason)) = self.ends.pop_front() {
            self.send(&place, &Message::StreamEnd(reason), out);
        }
        self.read_on(cx);
        // A filter may leave nothing to be sent of much that is read.
        let mut turns = TURNS;
        while turns > 0 && self.room() > 0 && out.len() - begun < most {
            turns -= 1;
            let Some(name) = self.ready.pop_front() else { break };
            let room = usize::try_from(self.room()).unwrap_or(usize::MAX).min(TURN_BYTES);
            let Some((advanced, is_over)) = self.advance(&name, room, cx, out) else { continue };
            let sending = self.streams.get(&name);
            let is_reading = sending.is_some_and(|sending| sending.stream.is_reading());
            let takes_over = sending.is_some_and(|sending| sending.take_over.is_some());
            if takes_over && advanced == Advanced::Idle && !is_reading {
                self.go_on_taking_over(&name, cx, out);
            }
            let end = match advanced {
                _ if is_over => Some(EndReason::FilterEmpty),
                Advanced::Idle | Advanced::More | Advanced::OnDisk => None,
                Advanced::Done => Some(EndReason::Done),
                Advanced::Lost => Some(EndReason::TooSlow),
                Advanced::StateChanged => Some(EndReason::StateChanged),
                Advanced::Unreadable => Some(EndReason::BackfillFailed),
            };
            if self.reading == Some(name) && !is_reading {
                self.reading = None;
            }
            match (end, advanced) {
                (Some(reason), _) => {
                    if let Some(ended) = self.remove(&name) {
                        self.send(&ended.place, &Message::StreamEnd(reason), out);
                    }
                }
                (None, Advanced::More) => self.make_ready(name),
                (None, Advanced::OnDisk) if self.is_on_disk.insert(name) => self.on_disk.push_back(name),
                (None, _) => {}
            }
            self.read_on(cx);
        }
        if out.len() > begun && matches!(self.noop, Noop::Quiet { .. }) {
            self.noop = Noop::Quiet { since_ms: cx.now.mono_ms() };
        }
    }

    /// Goes on with a take-over when the consumer has been sent everything.
    fn go_on_taking_over(&mut self, name: &Name, cx: &mut NodeContext, out: &mut Output) {
        let Some(sending) = self.streams.get_mut(name) else { return };
        let (state, next) = match sending.take_over {
            Some(TakeOver::Behind) => (VbState::Pending, TakeOver::Asked),
            // A start must not bring back what another node is now.
            Some(TakeOver::Dead) if !self.bucket.role_is_kept(cx, VbId(sending.place.vbucket)) => return,
            Some(TakeOver::Dead) => (VbState::Active, TakeOver::Told),
            Some(TakeOver::Asked | TakeOver::Told) | None => return,
        };
        sending.take_over = Some(next);
        let place = sending.place;
        self.send(&place, &Message::SetVBucketState(state.number() as u8), out);
    }

    /// Has a piece of the next stream read from disk, unless one is being read: they take turns.
    fn read_on(&mut self, cx: &mut NodeContext) {
        while self.reading.is_none() {
            let Some(name) = self.on_disk.pop_front() else { return };
            self.is_on_disk.remove(&name);
            let Some(sending) = self.streams.get_mut(&name) else { continue };
            read_on(&mut sending.stream, cx);
            if sending.stream.is_reading() {
                self.reading = Some(name);
            } else {
                self.make_ready(name);
            }
        }
    }

    /// Appends a message without a document.
    fn send(&mut self, place: &Place, message: &Message<'_>, out: &mut Output) {
        let before = out.len();
        out.bytes(&message.head(place));
        out.bytes(message.key());
        out.bytes(message.tail().as_ref());
        self.note_sent(out.len() - before);
    }

    /// Appends what comes next in a stream, if there is one. Returns also whether nothing more can come that it is to
    /// show.
    fn advance(
        &mut self,
        name: &Name,
        room: usize,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Option<(Advanced, bool)> {
        let sending = self.streams.get_mut(name)?;
        let Sending { stream, is_ready, tells_end, take_over: _, place, filter, prepared, gone, start, told } =
            &mut **sending;
        *is_ready = false;
        let before = out.len();
        let showing = Showing {
            flags: self.opened.flags,
            has_snappy: self.opened.has_snappy,
            has_json: self.opened.has_json,
            compresses: self.wanted.compresses,
            keeps_user_xattrs: self.wanted.keeps_user_xattrs
                || self.opened.flags & open::flags::INCLUDE_DELETED_USER_XATTRS != 0,
            compressor: &mut self.compressor,
        };
        let mut messages = Messages {
            showing,
            opened: &self.opened,
            wanted: &self.wanted,
            bucket: &self.bucket,
            place,
            filter,
            prepared,
            gone,
            start: *start,
            told,
            manifest: None,
            items: 0,
            is_over: false,
            out,
        };
        let advanced = stream.advance(cx, room, &mut |event| messages.put(event));
        if stream.snapshot().is_none() {
            messages.tell_end(stream.cursor());
            // A copy that may have forgotten something learns that it has everything.
            if advanced == Advanced::Idle && std::mem::take(tells_end) {
                messages.tell_again(stream.cursor());
            }
        }
        let (items, is_over) = (messages.items, messages.is_over);
        self.consumer.figures.items_sent.fetch_add(items, Relaxed);
        self.note_sent(out.len() - before);
        Some((advanced, is_over))
    }
}

/// Makes messages of a stream's events.
struct Messages<'a> {
    showing: Showing<'a>,
    opened: &'a Opened,
    wanted: &'a Wanted,
    bucket: &'a Bucket,
    place: &'a Place,
    filter: &'a Filter,
    prepared: &'a mut Prepared,
    gone: &'a mut BTreeSet<u32>,
    start: u64,
    told: &'a mut u64,
    /// The last manifest that a filter was compared with.
    manifest: Option<Arc<Manifest>>,
    items: u64,
    /// Everything that the filter names has been dropped.
    is_over: bool,
    out: &'a mut Output,
}

impl Messages<'_> {
    fn put(&mut self, event: Event<'_>) {
        match event {
            Event::Snapshot { start, end } => {
                let marker = Marker {
                    start,
                    end,
                    kind: snapshot_kind::MEMORY | snapshot_kind::CHECKPOINT,
                    form: self.wanted.marker,
                    seqnos: match self.wanted.marker {
                        MarkerForm::V1 => Seqnos::default(),
                        _ => Seqnos { visible: end, ..Seqnos::default() },
                    },
                };
                self.put_bare(&Message::Marker(marker));
            }
            Event::Version(version) => self.put_version(version),
            Event::System(seqno, event) => self.put_change(seqno, event),
            Event::Advanced(_) => {}
            Event::OutOfOrder => self.put_bare(&Message::OutOfOrder(true)),
            Event::OrderedFrom(end) => {
                if self.wanted.out_of_order == OutOfOrder::TakenAndAdvanced {
                    self.tell_end(end);
                }
                *self.told = end;
                self.put_bare(&Message::OutOfOrder(false));
            }
        }
    }

    /// Tells that there is nothing more up to the end of a snapshot, if no message had that seqno. Who knows no
    /// collections does not know that message either.
    fn tell_end(&mut self, end: u64) {
        if *self.told < end && self.opened.has_collections {
            self.put_bare(&Message::SeqnoAdvanced(end));
            *self.told = end;
        }
    }

    /// Tells a replica that there is nothing after what it has.
    fn tell_again(&mut self, end: u64) {
        if self.start == end && self.opened.has_collections {
            self.put_bare(&Message::SeqnoAdvanced(end));
        }
    }

    fn put_bare(&mut self, message: &Message<'_>) {
        self.out.bytes(&message.head(self.place));
        self.out.bytes(message.tail().as_ref());
    }

    fn wants(&mut self, stored_key: &[u8]) -> bool {
        let collection = collection_id::split(stored_key).map_or(0, |(id, _)| id);
        match self.filter {
            _ if !self.opened.has_collections => collection == 0,
            Filter::Everything => true,
            Filter::Collections(ids) => ids.contains(&collection),
            Filter::Scope(scope) => {
                let collections = self.bucket.collections();
                let is_present = |manifest: &Arc<Manifest>| manifest.uid == collections.uid();
                let manifest = self.manifest.take().filter(is_present);
                let manifest = self.manifest.insert(manifest.unwrap_or_else(|| collections.manifest()));
                manifest.of_id(collection).is_some_and(|(of, _)| of.id == *scope)
            }
        }
    }

    /// Tells of a change of the scopes and collections, if its consumer knows them and the filter wants it.
    fn put_change(&mut self, seqno: u64, change: Change) {
        let Change { uid: manifest, what, scope, collection: id } = change;
        let is_wanted = match self.filter {
            Filter::Everything => true,
            Filter::Scope(wanted) => *wanted == scope,
            Filter::Collections(ids) => {
                matches!(what, What::CreateCollection | What::DropCollection) && ids.contains(&id)
            }
        };
        if !is_wanted || !self.opened.has_collections {
            return;
        }
        let present = self.bucket.collections().manifest();
        let name_of_scope =
            || present.scopes.iter().find(|one| one.id == scope).map(|one| one.name.as_bytes());
        let event = match what {
            What::CreateScope => name_of_scope().map(|name| Told::CreateScope { id: scope, name }),
            What::CreateCollection => present.of_id(id).map(|(_, one)| Told::CreateCollection {
                scope,
                id,
                // 0: the bucket's; below: none, whatever the bucket's is.
                max_ttl: (one.max_ttl_s != 0).then(|| u32::try_from(one.max_ttl_s).unwrap_or_default()),
                name: one.name.as_bytes(),
            }),
            What::DropCollection => Some(Told::DropCollection { scope, id }),
            What::DropScope => Some(Told::DropScope { id: scope }),
        };
        // Otherwise it is gone, and that comes next.
        let Some(event) = event else { return };
        let message = Message::SystemEvent(SystemEvent { seqno, manifest, event });
        self.out.bytes(&message.head(self.place));
        self.out.bytes(message.key());
        self.out.bytes(message.tail().as_ref());
        *self.told = seqno.max(*self.told);
        if what == What::DropCollection {
            self.gone.insert(id);
            self.prepared.retain(|key, _| collection_id::split(key).is_none_or(|(of, _)| of != id));
        }
        self.is_over |= match self.filter {
            Filter::Everything => false,
            Filter::Scope(_) => what == What::DropScope,
            Filter::Collections(ids) => ids.iter().all(|id| self.gone.contains(id)),
        };
    }

    fn put_version(&mut self, version: Version<'_>) {
        if !self.wants(version.stored_key) {
            return;
        }
        let key = match self.opened.has_collections {
            true => version.stored_key,
            false => collection_id::split(version.stored_key).map_or(&[][..], |(_, key)| key),
        };
        let seqno = version.seqno;
        match version.kind {
            VersionKind::Document => self.put_document(version, key),
            VersionKind::Deletion | VersionKind::Expiration => self.put_deletion(version, key),
            VersionKind::Prepare | VersionKind::PrepareDeletion | VersionKind::Abort
                if !self.wanted.has_sync_writes =>
            {
                return;
            }
            VersionKind::Prepare | VersionKind::PrepareDeletion => self.put_prepare(version, key),
            VersionKind::Abort => {
                // The end of a prepare that was sent neither here nor on an earlier connection means nothing.
                let is_sent = self.prepared.remove(key).is_some();
                if !is_sent && version.cas > self.start {
                    return;
                }
                self.put_bare_with_key(&Message::Abort(End { prepared: version.cas, seqno, key }));
            }
        }
        self.items += 1;
        *self.told = seqno.max(*self.told);
    }

    fn put_bare_with_key(&mut self, message: &Message<'_>) {
        self.out.bytes(&message.head(self.place));
        self.out.bytes(message.key());
    }

    /// Returns the seqno of the prepare that this version commits, if the consumer has got it.
    fn committed(&mut self, version: &Version<'_>, key: &[u8]) -> Option<u64> {
        if self.prepared.is_empty() {
            return None;
        }
        let (seqno, cas) = self.prepared.remove(key)?;
        (version.committed && version.cas == cas).then_some(seqno)
    }

    fn put_document(&mut self, version: Version<'_>, key: &[u8]) {
        if let Some(prepared) = self.committed(&version, key) {
            return self.put_bare_with_key(&Message::Commit(End { prepared, seqno: version.seqno, key }));
        }
        let Version { seqno, rev, cas, flags, expiry, .. } = version;
        let (datatype, shown) = self.showing.document(version.datatype, version.value);
        let value = shown.bytes();
        let mutation = Mutation { seqno, rev, cas, flags, expiry, lock_time: 0, datatype, key, value };
        let head = Message::Mutation(mutation).head(self.place);
        self.put_with_value(&head, key, shown);
    }

    fn put_deletion(&mut self, version: Version<'_>, key: &[u8]) {
        if let Some(prepared) = self.committed(&version, key) {
            return self.put_bare_with_key(&Message::Commit(End { prepared, seqno: version.seqno, key }));
        }
        let is_expiration = version.kind == VersionKind::Expiration && self.wanted.has_expirations;
        let tells_when = is_expiration || self.tells_delete_times();
        let Version { seqno, rev, cas, expiry, .. } = version;
        let (datatype, shown) = self.showing.deletion(version.datatype, version.value);
        let deletion = Deletion {
            seqno,
            rev,
            cas,
            deleted_s: tells_when.then_some(expiry),
            datatype,
            key,
            value: shown.bytes(),
        };
        let message = if is_expiration { Message::Expiration(deletion) } else { Message::Deletion(deletion) };
        let head = message.head(self.place);
        self.put_with_value(&head, key, shown);
    }

    fn tells_delete_times(&self) -> bool {
        self.opened.flags & open::flags::INCLUDE_DELETE_TIMES != 0
    }

    fn put_prepare(&mut self, version: Version<'_>, key: &[u8]) {
        let Version { seqno, rev, cas, flags, expiry, level, .. } = version;
        let is_deletion = version.kind == VersionKind::PrepareDeletion;
        self.prepared.insert(key.to_vec(), (seqno, cas));
        let (datatype, shown) = self.showing.document(version.datatype, version.value);
        let expiry = if is_deletion && !self.tells_delete_times() { 0 } else { expiry };
        let value = shown.bytes();
        let mutation = Mutation { seqno, rev, cas, flags, expiry, lock_time: 0, datatype, key, value };
        let head = Message::Prepare(Prepare { mutation, is_deletion, level }).head(self.place);
        self.put_with_value(&head, key, shown);
    }

    fn put_with_value(&mut self, head: &[u8], key: &[u8], shown: Shown<'_>) {
        self.out.bytes(head);
        self.out.bytes(key);
        match shown {
            Shown::Bytes(bytes) => self.out.bytes(bytes),
            Shown::Made(bytes) => self.out.bytes(&bytes),
            Shown::Pinned(pinned) => self.out.pinned(pinned),
        }
    }
}
