//! A client's session: bytes in, requests, answers out. The protocol is told by the first byte.
//!
//! ```text
//!   input ──parse──> Batch of requests (of many sessions) ──prefetch──> execute, one by one ──> Output
//!            │
//!            ├─ Ready      heads are parsed; bodies up to LARGE_VALUE are awaited in the input buffer
//!            ├─ Filling    a large value is read from the socket straight into item memory (`sink`)
//!            ├─ Skipping   a refused body is swallowed as it arrives
//!            └─ Keys       in the middle of a long retrieval line
//! ```
//! This file is the core: it splits input, places keys, receives large values. What a request means is its protocol's
//! executor's business ([`text`], [`meta`], [`binary`], [`couchbase`]).
//!
//! Invariants: requests of one session are executed in the order they were parsed, each before the input it borrows from
//! is reused; after a request that may change how the next is read (a login, HELLO, SELECT_BUCKET) parsing stops until
//! it has been executed.

mod counter;
mod output;
mod peer;

pub mod binary;
pub mod couchbase;
pub mod meta;
pub mod text;

use std::sync::Arc;

use wire::{Parsed, binary as wire_binary, text as wire_text};

use crate::{Bucket, Cx, Key, LargeItem, Place, VbId};

pub use output::Output;
pub use peer::{Peer, Port};

/// Values longer than this are received straight into item memory, are immutable there, and are sent from where they lie.
pub const LARGE_VALUE: usize = 32 << 10;

/// Most bytes of a large value that are received at once.
const SINK_BYTES: usize = 256 << 10;

/// Longest line a session waits for: with a small value behind it, it fits a worker's buffer.
pub const LINE_MOST: usize = 64 << 10;

/// Requests executed as one batch, over all connections that are ready.
pub const BATCH_REQUESTS: usize = 64;

/// Requests whose items are being loaded ahead of the one that is executed.
const LOOK_AHEAD: usize = 16;
/// Bytes of an item that a read prefetches when nothing tells its size.
const PREFETCH_READ: usize = 384;
/// Bytes of an item that are prefetched at most: beyond, the hardware keeps up.
const PREFETCH_MOST: usize = 1024;
/// Header bytes of an item beside key and value, for prefetching.
const PREFETCH_HEADER: usize = 28;

/// A request's value.
pub enum Body<'a> {
    /// In the input buffer.
    Inline(&'a [u8]),
    /// Already in the bucket's item memory.
    Large(LargeItem),
}

impl<'a> Body<'a> {
    /// As the value of a store.
    #[inline]
    pub fn into_value(self) -> crate::Value<'a> {
        match self {
            Self::Inline(bytes) => crate::Value::Bytes(bytes),
            Self::Large(item) => crate::Value::Large(Box::new(item)),
        }
    }
}

/// A key's place, computed when its request was parsed; `None` if the session has changed since.
pub type At = Option<Place>;

/// Why a body is not taken. Its bytes are swallowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Larger than the port or the format allows.
    TooBig,
    /// The budget does not allow it now.
    NoMemory,
    /// Not logged in, or no bucket.
    NotAllowed,
    /// The bytes behind a text value are not `\r\n`.
    BadTrailer,
}

/// What is to be done with a request that carries a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission<'a> {
    /// The body is a value to be stored under this key: a large one goes straight into item memory.
    Store(Key<'a>),
    /// The body is something else: it is awaited in the input buffer if it is short, else refused as too big.
    Inline,
    /// The body is not taken.
    Refuse(Refusal),
}

/// Requests on their way from parsing to execution, of several sessions.
pub struct Batch<'a> {
    requests: arrayvec::ArrayVec<Queued<'a>, BATCH_REQUESTS>,
}

/// One request of a batch.
pub struct Queued<'a> {
    /// Whose it is, as given to [`Session::parse`].
    pub connection: u32,
    prefetch_bytes: u32,
    placed: Option<Placed>,
    work: Work<'a>,
}

/// A place, and what it was computed for.
#[derive(Clone, Copy)]
struct Placed {
    place: Place,
    bucket: *const Bucket,
    collections: bool,
}

/// A wide tag: what is moved then consists of whole words.
#[repr(u64)]
enum Work<'a> {
    Text(wire_text::Command<'a>, &'a [u8]),
    TextRefused(wire_text::Command<'a>, Refusal),
    TextError(wire_text::Error),
    Binary(wire_binary::Request<'a>, &'a [u8]),
    BinaryRefused(wire_binary::Request<'a>, Refusal),
    BinaryError(wire_binary::Error),
    Filled(Option<Box<Filling>>),
}

impl<'a> Batch<'a> {
    /// Empty.
    pub fn new() -> Self {
        Self { requests: arrayvec::ArrayVec::new() }
    }
    /// Whether another request finds room.
    pub fn is_full(&self) -> bool {
        self.requests.is_full()
    }
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }
    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
    /// The request at `index`.
    pub fn get(&mut self, index: usize) -> Option<&mut Queued<'a>> {
        self.requests.get_mut(index)
    }
    /// Forgets all requests.
    pub fn clear(&mut self) {
        self.requests.clear();
    }

    /// Starts loading what the batch's requests need first: the parts of the index that lead to their items.
    /// `bucket_of` gives a connection's bucket. Within a quiescence section, as the rest of prefetching.
    pub fn prefetch_index<'b>(&self, mut bucket_of: impl FnMut(u32) -> Option<&'b Arc<Bucket>>) {
        let mut ahead = self.requests.iter();
        for queued in self.requests.iter().take(LOOK_AHEAD) {
            ahead.next();
            queued.with_bucket(&mut bucket_of, |bucket, placed| bucket.prefetch_directory(placed.place));
        }
        for queued in &self.requests {
            if let Some(ahead) = ahead.next() {
                ahead.with_bucket(&mut bucket_of, |bucket, placed| bucket.prefetch_directory(placed.place));
            }
            queued.with_bucket(&mut bucket_of, |bucket, placed| bucket.prefetch_line(placed.place));
        }
        for index in 0..LOOK_AHEAD {
            self.prefetch_item(index, &mut bucket_of);
        }
    }

    /// Starts loading the item of the request [`LOOK_AHEAD`] behind `index`, which is about to be executed.
    #[inline]
    pub fn prefetch_ahead<'b>(
        &self,
        index: usize,
        mut bucket_of: impl FnMut(u32) -> Option<&'b Arc<Bucket>>,
    ) {
        self.prefetch_item(index + LOOK_AHEAD, &mut bucket_of);
    }

    #[inline]
    fn prefetch_item<'b>(&self, index: usize, bucket_of: &mut impl FnMut(u32) -> Option<&'b Arc<Bucket>>) {
        if let Some(queued) = self.requests.get(index) {
            let bytes = queued.prefetch_bytes as usize;
            queued.with_bucket(bucket_of, |bucket, placed| bucket.prefetch_item(placed.place, bytes));
        }
    }
}

impl Queued<'_> {
    /// Calls `f` with the bucket of the request's key, if it is still the one the key was placed in.
    #[inline]
    fn with_bucket<'b>(
        &self,
        bucket_of: &mut impl FnMut(u32) -> Option<&'b Arc<Bucket>>,
        f: impl FnOnce(&Bucket, &Placed),
    ) {
        if let Some(placed) = &self.placed
            && let Some(bucket) = bucket_of(self.connection)
            && std::ptr::eq(placed.bucket, Arc::as_ptr(bucket))
        {
            f(bucket, placed);
        }
    }
}

impl Default for Batch<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// How far [`Session::parse`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Input bytes that are done with once the batch has been executed.
    pub consumed: usize,
    /// More input is needed: so many bytes in all from the first unconsumed one, 0 if unknown. `None`: the batch is full or
    /// must be executed first; parse again.
    pub need: Option<usize>,
}

/// A large value on its way into item memory.
struct Filling {
    /// The request's head, parsed again when the value is there.
    head: Box<[u8]>,
    item: LargeItem,
    filled: usize,
    trailer: usize,
    trailer_is_good: bool,
}

enum Receive {
    Ready,
    Filling(Box<Filling>),
    Skipping(usize),
    /// The rest of a retrieval line; how the retrieval was asked for.
    Keys {
        with_cas: bool,
        exptime: Option<i64>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Unknown,
    Text,
    Binary,
}

/// A client's session.
pub struct Session {
    /// What is known of the client.
    pub peer: Peer,
    protocol: Protocol,
    receive: Receive,
    line_bytes: usize,
    frame_bytes: u32,
}

impl Session {
    /// A session of a new connection.
    pub fn new(peer: Peer, limits: &crate::Limits) -> Self {
        let protocol = if peer.port == Port::Couchbase { Protocol::Binary } else { Protocol::Unknown };
        let frame_bytes = u32::try_from(limits.frame_bytes).unwrap_or(u32::MAX);
        let line_bytes = limits.line_bytes.min(LINE_MOST);
        Self { peer, protocol, receive: Receive::Ready, line_bytes, frame_bytes }
    }

    /// Where the next input bytes belong, if they are the rest of a large value: read from the socket straight into it, then
    /// call [`Session::filled`].
    pub fn sink(&mut self) -> Option<&mut [u8]> {
        match &mut self.receive {
            Receive::Filling(filling) if filling.filled < filling.item.len() => {
                let filled = filling.filled;
                Some(filling.item.window(filled, SINK_BYTES))
            }
            _ => None,
        }
    }

    /// So many bytes were read into the sink.
    pub fn filled(&mut self, bytes: usize) {
        if let Receive::Filling(filling) = &mut self.receive {
            filling.filled += bytes;
            debug_assert!(filling.filled <= filling.item.len());
        }
    }

    /// Whether a complete large value waits to be executed: [`Session::parse`] goes on without new input.
    pub fn has_filled(&self) -> bool {
        matches!(&self.receive, Receive::Filling(f) if f.filled == f.item.len() && f.trailer == 0)
    }

    /// Lets go of a bucket that was deleted; a memcached port takes the new one of its name, if there is one.
    #[cold]
    fn replace_gone(&mut self, cx: &Cx) {
        if let Some(gone) = self.peer.bucket.take()
            && self.peer.port == Port::Memcached
        {
            self.peer.bucket = cx.node.bucket(gone.name());
        }
    }

    /// Lets go of a bucket that was deleted.
    pub fn tend(&mut self, cx: &Cx) {
        if self.peer.bucket.as_ref().is_some_and(|bucket| bucket.is_gone()) {
            self.replace_gone(cx);
        }
    }

    /// Splits input into at most `most` requests, until the input or the batch ends, or a request must be executed first.
    pub fn parse<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        most: usize,
        cx: &mut Cx,
        batch: &mut Batch<'a>,
    ) -> Progress {
        let mut consumed = 0;
        let end = batch.len().saturating_add(most);
        self.tend(cx);
        loop {
            if batch.is_full() || batch.len() >= end || self.peer.close {
                return Progress { consumed, need: None };
            }
            let rest = &input[consumed..];
            match &mut self.receive {
                Receive::Skipping(left) => {
                    let skipped = (*left).min(rest.len());
                    consumed += skipped;
                    *left -= skipped;
                    if *left > 0 {
                        return Progress { consumed, need: Some(0) };
                    }
                    self.receive = Receive::Ready;
                }
                Receive::Filling(filling) => {
                    consumed += filling.take(rest);
                    if !filling.is_complete() {
                        return Progress { consumed, need: Some(0) };
                    }
                    let Receive::Filling(filling) = std::mem::replace(&mut self.receive, Receive::Ready)
                    else {
                        unreachable!("matched above")
                    };
                    batch.requests.push(Queued {
                        connection,
                        prefetch_bytes: 0,
                        placed: None,
                        work: Work::Filled(Some(filling)),
                    });
                }
                Receive::Ready | Receive::Keys { .. } => {
                    if rest.is_empty() {
                        return Progress { consumed, need: Some(0) };
                    }
                    match self.parse_head(rest, connection, cx, batch) {
                        Step::Done(bytes) => consumed += bytes,
                        Step::Barrier(bytes) => return Progress { consumed: consumed + bytes, need: None },
                        Step::Need(need) => return Progress { consumed, need: Some(need) },
                    }
                }
            }
        }
    }

    #[inline]
    fn parse_head<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        cx: &mut Cx,
        batch: &mut Batch<'a>,
    ) -> Step {
        match self.protocol {
            Protocol::Binary => self.parse_binary(input, connection, cx, batch),
            Protocol::Text => self.parse_text(input, connection, cx, batch),
            Protocol::Unknown => {
                let is_binary = matches!(input.first(), Some(0x80 | 0x08));
                self.protocol = if is_binary { Protocol::Binary } else { Protocol::Text };
                self.parse_head(input, connection, cx, batch)
            }
        }
    }

    #[inline]
    fn parse_binary<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        cx: &mut Cx,
        batch: &mut Batch<'a>,
    ) -> Step {
        let limits = wire_binary::Limits { frame_bytes: self.frame_bytes };
        let push = |batch: &mut Batch<'a>, placed, prefetch_bytes, work| {
            batch.requests.push(Queued { connection, prefetch_bytes, placed, work });
        };
        match wire_binary::parse(input, &limits) {
            Parsed::Incomplete { need } => Step::Need(need),
            Parsed::Malformed { skip, error } => {
                push(batch, None, 0, Work::BinaryError(error));
                self.skip(skip, input.len())
            }
            Parsed::Fatal { error } => {
                push(batch, None, 0, Work::BinaryError(error));
                self.skip(usize::MAX, input.len())
            }
            Parsed::Request { head, body, trailer: _, command } => {
                let large = if body == 0 {
                    None
                } else {
                    match binary::admit(&self.peer, &command, body) {
                        Admission::Refuse(refusal) => {
                            push(batch, None, 0, Work::BinaryRefused(command, refusal));
                            return self.skip(head + body, input.len());
                        }
                        Admission::Inline if body > LARGE_VALUE => {
                            push(batch, None, 0, Work::BinaryRefused(command, Refusal::TooBig));
                            return self.skip(head + body, input.len());
                        }
                        Admission::Store(key) if body > LARGE_VALUE => Some(key),
                        Admission::Store(_) | Admission::Inline => None,
                    }
                };
                if let Some(key) = large {
                    return match self.start_filling(&input[..head], key, body, 0, cx) {
                        Ok(()) => Step::Done(head),
                        Err(refusal) => {
                            push(batch, None, 0, Work::BinaryRefused(command, refusal));
                            self.skip(head + body, input.len())
                        }
                    };
                }
                let Some(value) = input.get(head..head + body) else { return Step::Need(head + body) };
                let key = binary::key(&self.peer, &command);
                let placed = key.and_then(|key| place(&self.peer, key, Some(VbId(command.header.vbucket))));
                let prefetch_bytes = prefetch_bytes(command.key.len(), body);
                push(batch, placed, prefetch_bytes, Work::Binary(command, value));
                if binary::changes_session(&command) {
                    Step::Barrier(head + body)
                } else {
                    Step::Done(head + body)
                }
            }
        }
    }

    fn parse_text<'a>(
        &mut self,
        input: &'a [u8],
        connection: u32,
        cx: &mut Cx,
        batch: &mut Batch<'a>,
    ) -> Step {
        let limits = wire_text::Limits { line_bytes: self.line_bytes };
        let push = |batch: &mut Batch<'a>, placed, prefetch_bytes, work| {
            batch.requests.push(Queued { connection, prefetch_bytes, placed, work });
        };
        let parsed = match &self.receive {
            Receive::Keys { with_cas, exptime } => {
                let get = wire_text::Get::continued(*with_cas, *exptime);
                wire_text::parse_get_rest(input, &get, &limits)
            }
            _ if self.peer.must_log_in() => wire_text::parse_login(input, &limits),
            _ => wire_text::parse(input, &limits),
        };
        let was_in_keys = matches!(self.receive, Receive::Keys { .. });
        match parsed {
            Parsed::Incomplete { need } => Step::Need(need),
            Parsed::Malformed { skip, error } => {
                push(batch, None, 0, Work::TextError(error));
                self.skip(skip, input.len())
            }
            Parsed::Fatal { error } => {
                push(batch, None, 0, Work::TextError(error));
                self.skip(usize::MAX, input.len())
            }
            Parsed::Request { head, command: wire_text::Command::Get(get), .. } => {
                if was_in_keys {
                    self.receive = Receive::Ready;
                }
                self.queue_keys(input, head, get, connection, batch)
            }
            Parsed::Request { head, body, trailer, command } => {
                let key = text::key(&command);
                if trailer > 0 {
                    match text::admit(&self.peer, &command, body) {
                        Admission::Refuse(refusal) => {
                            push(batch, None, 0, Work::TextRefused(command, refusal));
                            return self.skip(head + body + trailer, input.len());
                        }
                        Admission::Store(key) if body > LARGE_VALUE => {
                            return match self.start_filling(&input[..head], key, body, trailer, cx) {
                                Ok(()) => Step::Done(head),
                                Err(refusal) => {
                                    push(batch, None, 0, Work::TextRefused(command, refusal));
                                    self.skip(head + body + trailer, input.len())
                                }
                            };
                        }
                        Admission::Store(_) | Admission::Inline => {}
                    }
                }
                let end = head + body + trailer;
                let (Some(value), Some(tail)) = (input.get(head..head + body), input.get(head + body..end))
                else {
                    return Step::Need(end);
                };
                let placed = key.and_then(|key| place(&self.peer, key, None));
                let prefetch_bytes = prefetch_bytes(key.map_or(0, |key| key.bytes.len()), body);
                let is_login = matches!(command, wire_text::Command::Login);
                if trailer > 0 && tail != wire_text::TRAILER {
                    push(batch, None, 0, Work::TextRefused(command, Refusal::BadTrailer));
                } else {
                    push(batch, placed, prefetch_bytes, Work::Text(command, value));
                }
                if is_login { Step::Barrier(end) } else { Step::Done(end) }
            }
        }
    }

    /// Queues the keys of a retrieval one by one, so that each is placed and prefetched and the output stays bounded.
    fn queue_keys<'a>(
        &mut self,
        input: &'a [u8],
        head: usize,
        mut get: wire_text::Get<'a>,
        connection: u32,
        batch: &mut Batch<'a>,
    ) -> Step {
        let (with_cas, exptime, ends) = (get.with_cas, get.exptime, get.last);
        while !batch.is_full() {
            let Some(one) = get.take_first() else { break };
            let is_last = one.last;
            let command = wire_text::Command::Get(one);
            let placed = text::key(&command).and_then(|key| place(&self.peer, key, None));
            let prefetch_bytes = PREFETCH_READ as u32;
            let work = Work::Text(command, &[]);
            batch.requests.push(Queued { connection, prefetch_bytes, placed, work });
            if is_last {
                return Step::Done(head);
            }
        }
        self.receive = Receive::Keys { with_cas, exptime };
        if get.keys.is_empty() && !ends {
            return Step::Done(head);
        }
        // The keys left over are the end of the line: they are parsed again as the rest of the retrieval.
        let rest = get.keys.rest();
        Step::Done(rest.as_ptr() as usize - input.as_ptr() as usize)
    }

    /// The request's bytes are done with: those here now, and those to come.
    fn skip(&mut self, bytes: usize, available: usize) -> Step {
        let here = bytes.min(available);
        self.receive = if bytes > here { Receive::Skipping(bytes - here) } else { Receive::Ready };
        Step::Done(here)
    }

    fn start_filling(
        &mut self,
        head: &[u8],
        key: Key<'_>,
        body: usize,
        trailer: usize,
        cx: &mut Cx,
    ) -> Result<(), Refusal> {
        let bucket = self.peer.bucket.clone().ok_or(Refusal::NotAllowed)?;
        let item = bucket.prepare_large(cx, key, body).map_err(|error| match error {
            crate::KvError::TooBig => Refusal::TooBig,
            crate::KvError::BucketGone => Refusal::NotAllowed,
            _ => Refusal::NoMemory,
        })?;
        let filling = Filling { head: head.into(), item, filled: 0, trailer, trailer_is_good: true };
        self.receive = Receive::Filling(Box::new(filling));
        Ok(())
    }

    /// Executes one request of this session, once.
    #[inline]
    pub fn execute(&mut self, queued: &mut Queued<'_>, cx: &mut Cx, out: &mut Output) {
        let at = queued.placed.filter(|placed| self.peer.places_as(placed.bucket, placed.collections));
        let (at, peer) = (at.map(|placed| placed.place), &mut self.peer);
        match &mut queued.work {
            Work::Binary(request, value) => binary::execute(peer, request, at, Body::Inline(value), cx, out),
            Work::Text(command, value) => text::execute(peer, command, at, Body::Inline(value), cx, out),
            Work::Filled(filling) => {
                if let Some(filling) = filling.take() {
                    self.execute_filled(*filling, cx, out);
                }
            }
            Work::TextRefused(command, refusal) => text::refuse(peer, command, *refusal, cx, out),
            Work::TextError(error) => text::error(peer, error, cx, out),
            Work::BinaryRefused(request, refusal) => binary::refuse(peer, request, *refusal, cx, out),
            Work::BinaryError(error) => binary::error(peer, error, cx, out),
        }
    }

    #[cold]
    fn execute_filled(&mut self, filling: Filling, cx: &mut Cx, out: &mut Output) {
        let Filling { head, item, trailer_is_good, .. } = filling;
        if self.protocol == Protocol::Binary {
            let limits = wire_binary::Limits { frame_bytes: self.frame_bytes };
            if let Parsed::Request { command, .. } = wire_binary::parse(&head, &limits) {
                binary::execute(&mut self.peer, &command, None, Body::Large(item), cx, out);
            }
            return;
        }
        let limits = wire_text::Limits { line_bytes: self.line_bytes };
        if let Parsed::Request { command, .. } = wire_text::parse(&head, &limits) {
            if trailer_is_good {
                text::execute(&mut self.peer, &command, None, Body::Large(item), cx, out);
            } else {
                text::refuse(&mut self.peer, &command, Refusal::BadTrailer, cx, out);
            }
        }
    }
}

enum Step {
    /// So many bytes are dealt with.
    Done(usize),
    /// So many bytes are dealt with, and what was queued must be executed before anything else is parsed.
    Barrier(usize),
    /// So many bytes are needed in all; 0 if unknown.
    Need(usize),
}

impl Filling {
    fn is_complete(&self) -> bool {
        self.filled == self.item.len() && self.trailer == 0
    }

    /// Takes value and trailer bytes that came with other input.
    fn take(&mut self, input: &[u8]) -> usize {
        let filled = self.filled;
        let missing = self.item.window(filled, input.len());
        let (value, rest) = input.split_at(missing.len().min(input.len()));
        missing[..value.len()].copy_from_slice(value);
        self.filled += value.len();
        if self.filled < self.item.len() {
            return value.len();
        }
        let trailer = rest.len().min(self.trailer);
        let expected = &wire_text::TRAILER[wire_text::TRAILER.len() - self.trailer..];
        self.trailer_is_good &= rest[..trailer] == expected[..trailer];
        self.trailer -= trailer;
        value.len() + trailer
    }
}

#[inline]
fn prefetch_bytes(key_len: usize, body_len: usize) -> u32 {
    let bytes = if body_len == 0 { PREFETCH_READ } else { PREFETCH_HEADER + key_len + body_len };
    bytes.min(PREFETCH_MOST) as u32
}

/// Places a key and starts loading its vBucket.
#[inline]
fn place(peer: &Peer, key: Key<'_>, vb: Option<VbId>) -> Option<Placed> {
    let bucket = peer.bucket.as_ref()?;
    let place = match vb {
        Some(vb) if peer.port == Port::Couchbase => {
            if vb.0 >= bucket.vbuckets() {
                return None;
            }
            bucket.locate_in(key, vb)
        }
        _ => bucket.locate(key),
    };
    bucket.prefetch_vbucket(place);
    Some(Placed { place, bucket: Arc::as_ptr(bucket), collections: peer.collections() })
}
