//! A client's session: bytes in, requests, answers out. The first byte determines the protocol.
//!
//! ```text
//!   input ──parse──> Batch of requests (of many sessions) ──prefetch──> execute, one by one ──> Output
//!            │
//!            ├─ Ready      heads are parsed; bodies up to LARGE_VALUE are awaited in the input buffer
//!            ├─ Filling    a large value is read from the socket straight into item memory (`sink`)
//!            ├─ Skipping   a refused body is discarded as it arrives
//!            ├─ Keys       in the middle of a long retrieval line
//!            ├─ Dumping    a list of keys is written, slice by slice
//!            └─ Watching   lines about events are written as they occur
//! ```
//! [`input`] splits, [`batch`] places and prefetches, [`filling`] receives large values. Answers may have to wait
//! ([`waits`]); then the requests behind them take another path ([`deferral`]). What takes long is executed on another
//! thread ([`aside`]). All of these handle a [`request`] of any protocol; its meaning is up to the protocol's executor
//! ([`text`], [`meta`], [`binary`], [`couchbase`]).
//! [`description`] says what a request is while somebody looks.
//!
//! Invariants: requests of one session are executed in the order they were parsed, each before the input it borrows
//! from is reused; after a request that may change how the next is read (a login, HELLO, SELECT_BUCKET) parsing stops
//! until it has been executed.
#![forbid(unsafe_code)]

mod access;
mod aside;
mod availability;
mod batch;
mod counter;
mod deferral;
mod description;
mod dump;
mod filling;
mod following;
mod input;
mod opcodes;
mod output;
mod peer;
mod request;
mod stats;
mod waits;
mod watching;

pub mod binary;
pub mod couchbase;
pub mod meta;
pub mod text;

use std::collections::VecDeque;

use kv::{Key, KvError, LARGE_VALUE, LargeItem, NodeContext, Place};

use batch::Work;
pub use batch::{BATCH_REQUESTS, Batch, Queued, SLOW_REQUESTS};
use dump::Dump;
use filling::Filling;
pub use input::Progress;
pub use output::Output;
pub use peer::{Peer, Port, Rules, Spoken};
pub use waits::{LastSlot, Waits};
use watching::Watch;

/// Maximum retries of a request whose value left memory but was back by the time of the check.
const AGAIN_MAX: u32 = 8;

/// Longest line that a session waits for: together with a small value it fits a worker's buffer.
pub const LINE_MOST: usize = 64 << 10;

/// Longest request that is waited for before a required login. (memcached's bound.)
pub const BEFORE_LOGIN_MOST: usize = 2 << 10;

/// A request's value.
pub enum Body<'a> {
    /// In the input buffer.
    Inline(&'a [u8]),
    /// Already in the bucket's item memory.
    Large(LargeItem),
}

impl<'a> Body<'a> {
    /// The body as the value of a store.
    #[inline]
    pub fn into_value(self) -> kv::Value<'a> {
        match self {
            Self::Inline(bytes) => kv::Value::Bytes(bytes),
            Self::Large(item) => kv::Value::Large(Box::new(item)),
        }
    }
}

/// A key's place, computed when its request was parsed; `None` if the session has changed since.
pub type At = Option<Place>;

/// Why a body is refused. Its bytes are discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Larger than the port or the format allows.
    TooBig,
    /// The budget does not allow it now.
    NoMemory,
    /// Not logged in, or no bucket.
    NotAllowed,
    /// The bytes after a text value are not `\r\n`.
    BadTrailer,
}

/// What to do with a request that carries a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission<'a> {
    /// The body is a value to be stored under this key: a large one goes straight into item memory.
    Store(Key<'a>),
    /// The body is something else: a short one is awaited in the input buffer, a long one is refused as too big.
    Inline,
    /// The body is refused.
    Refuse(Refusal),
}

enum Receive {
    Ready,
    Filling(Box<Filling>),
    /// A list of keys is written before anything else is parsed.
    Dumping(Box<Dump>),
    /// Nothing more is parsed.
    Watching(Box<Watch>),
    Skipping(usize),
    /// The rest of a retrieval line, and the kind of retrieval.
    Keys {
        with_cas: bool,
        exptime: Option<i32>,
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
    /// The state of the client.
    pub peer: Peer,
    protocol: Protocol,
    receive: Receive,
    line_bytes: usize,
    frame_bytes: u32,
    /// Bytes of answers that may be held back before nothing more is read.
    held_bytes_max: usize,
    /// Tickets of parked requests that take long, and whether they are logins; see [`aside`].
    aside: VecDeque<(u64, bool)>,
}

impl Session {
    /// A session of a new connection.
    pub fn new(peer: Peer, limits: &kv::Limits) -> Self {
        let protocol = match (peer.port, peer.rules.spoken) {
            (Port::Couchbase, _) | (Port::Memcached, Spoken::Binary) => Protocol::Binary,
            (Port::Memcached, Spoken::Text) => Protocol::Text,
            (Port::Memcached, Spoken::Any) => Protocol::Unknown,
        };
        let frame_bytes = u32::try_from(limits.frame_bytes).unwrap_or(u32::MAX);
        let line_bytes = limits.line_bytes.min(LINE_MOST);
        let held_bytes_max = limits.output_backlog_bytes;
        let (receive, aside) = (Receive::Ready, VecDeque::new());
        Self { peer, protocol, receive, line_bytes, frame_bytes, held_bytes_max, aside }
    }

    /// Releases a deleted bucket; a memcached port takes the new bucket of the same name, if there is one.
    #[cold]
    fn replace_gone(&mut self, cx: &NodeContext) {
        if let Some(gone) = self.peer.bucket.take()
            && self.peer.port == Port::Memcached
        {
            self.peer.bucket = cx.node.bucket(gone.name());
        }
        self.peer.lost_bucket = self.peer.bucket.is_none();
        self.peer.renew_access();
    }

    /// Returns true if a request may have ended without an answer that is still to come: in memcached's binary protocol
    /// clients send quiet requests and wait for the answers to others behind them.
    pub fn is_quiet(&self) -> bool {
        self.protocol == Protocol::Binary
            && self.peer.port == Port::Memcached
            && self.peer.waits.is_none()
            && !self.is_receiving()
    }

    /// Returns true if its bucket was deleted.
    pub fn has_lost_bucket(&self) -> bool {
        self.peer.lost_bucket || self.peer.bucket.as_ref().is_some_and(|bucket| bucket.is_gone())
    }

    /// Releases the bucket if it was deleted, and takes note of changed rights: once for all requests of a batch.
    pub fn tend(&mut self, cx: &NodeContext) {
        self.peer.update_access(cx);
        if self.peer.bucket.as_ref().is_some_and(|bucket| bucket.is_gone()) {
            self.replace_gone(cx);
        }
    }

    /// Executes one request of this session, once.
    #[inline]
    pub fn execute(&mut self, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
        if self.peer.waits.is_some() {
            return self.execute_or_defer(queued, cx, out);
        }
        self.execute_or_park(queued, cx, out);
    }

    /// Executes a request, or parks or answers it if its document is unavailable.
    #[inline]
    fn execute_or_park(&mut self, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
        if self.may_be_unavailable() && self.park_or_fail(queued, cx, out) {
            return;
        }
        self.execute_up_to(AGAIN_MAX, queued, cx, out);
    }

    /// Executes a request, with up to `again` retries if its document is available again by the time of the check.
    #[inline]
    fn execute_up_to(&mut self, again: u32, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
        let at = queued.placed.filter(|placed| self.peer.places_as(placed.bucket, placed.collections));
        let (at, peer, mark) = (at.map(|placed| placed.place), &mut self.peer, out.mark());
        let executed = match &mut queued.work {
            Work::Request(request, value, _) => request.execute(peer, at, Body::Inline(value), cx, out),
            other => self.execute_other(other, cx, out),
        };
        if executed.is_err() || out.has_compressed() {
            self.complete_answer(queued, executed, mark, again, cx, out);
        }
    }

    /// Executes everything except a completely parsed request.
    #[inline(never)]
    fn execute_other(
        &mut self,
        work: &mut Work<'_>,
        cx: &mut NodeContext,
        out: &mut Output,
    ) -> Result<(), KvError> {
        let peer = &mut self.peer;
        match work {
            Work::Request(..) => {}
            Work::Filled(filling) => {
                if !cx.may_take_long && filling.as_ref().is_some_and(|filling| self.is_long(filling)) {
                    return Err(KvError::TakesLong);
                }
                if let Some(filling) = filling.take() {
                    self.execute_filled(*filling, cx, out);
                }
            }
            Work::Dump(dump) => {
                if let Some(dump) = dump.take() {
                    self.execute_dump(dump, cx, out);
                }
            }
            Work::Watch => self.execute_watch(cx, out),
            Work::Refused(request, refusal, _) => request.refuse(peer, *refusal, cx, out),
            Work::Malformed(error) => error.answer(peer, cx, out),
        }
        Ok(())
    }

    /// Inflates values outside the lock. Also takes back the answer of a request whose document became unavailable
    /// between the check and the execution; such a request has changed nothing. If its value left memory in between,
    /// the request waits for it as if it had been on disk before.
    #[cold]
    fn complete_answer(
        &mut self,
        queued: &mut Queued<'_>,
        executed: Result<(), KvError>,
        mark: usize,
        again: u32,
        cx: &mut NodeContext,
        out: &mut Output,
    ) {
        let inflate = |()| self.peer.bucket.as_ref().map_or(Ok(()), |bucket| out.inflate(bucket, cx));
        let Err(why) = executed.and_then(inflate) else { return };
        out.truncate(mark);
        if why == KvError::TakesLong {
            return self.park_aside(queued, cx);
        }
        if why != KvError::NotResident || again == 0 {
            return self.fail(queued, why, cx, out);
        }
        if !self.park_or_fail(queued, cx, out) {
            // The value is back already, or was replaced.
            self.execute_up_to(again - 1, queued, cx, out);
        }
    }
}
