//! A client's session: bytes in, requests, answers out. The protocol is told by the first byte.
//!
//! ```text
//!   input ──parse──> Batch of requests (of many sessions) ──prefetch──> execute, one by one ──> Output
//!            │
//!            ├─ Ready      heads are parsed; bodies up to LARGE_VALUE are awaited in the input buffer
//!            ├─ Filling    a large value is read from the socket straight into item memory (`sink`)
//!            ├─ Skipping   a refused body is swallowed as it arrives
//!            ├─ Keys       in the middle of a long retrieval line
//!            ├─ Dumping    a list of keys is written, slice by slice
//!            └─ Watching   lines about what happens are written as they come
//! ```
//! [`input`] splits, [`batch`] places and prefetches, [`filling`] receives large values. Answers may have to wait
//! ([`waits`]); then requests behind them go another way ([`behind`]). All of these know a [`request`] whatever its
//! protocol is; what it means is its protocol's executor's business ([`text`], [`meta`], [`binary`], [`couchbase`]).
//!
//! Invariants: requests of one session are executed in the order they were parsed, each before the input it borrows
//! from is reused; after a request that may change how the next is read (a login, HELLO, SELECT_BUCKET) parsing stops
//! until it has been executed.
#![forbid(unsafe_code)]

mod availability;
mod batch;
mod behind;
mod counter;
mod dump;
mod filling;
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

use kv::{Key, KvError, LARGE_VALUE, LargeItem, NodeContext, Place};

use batch::Work;
pub use batch::{BATCH_REQUESTS, Batch, Queued};
use dump::Dump;
use filling::Filling;
pub use input::Progress;
pub use output::Output;
pub use peer::{Peer, Port, Rules, Spoken};
pub use waits::Waits;
use watching::Watch;

/// A request is executed at most so many times again because its value left memory and was back when that was looked
/// at.
const AGAIN_MAX: u32 = 8;

/// Longest line a session waits for: with a small value behind it, it fits a worker's buffer.
pub const LINE_MOST: usize = 64 << 10;

/// Longest request before the login that is waited for, where one is demanded. (memcached's bound.)
pub const BEFORE_LOGIN_MOST: usize = 2 << 10;

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
    pub fn into_value(self) -> kv::Value<'a> {
        match self {
            Self::Inline(bytes) => kv::Value::Bytes(bytes),
            Self::Large(item) => kv::Value::Large(Box::new(item)),
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

enum Receive {
    Ready,
    Filling(Box<Filling>),
    /// A list of keys is written before anything else is parsed.
    Dumping(Box<Dump>),
    /// Nothing is parsed any more.
    Watching(Box<Watch>),
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
    /// Bytes of answers that may be held back before nothing more is read.
    held_bytes_max: usize,
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
        Self { peer, protocol, receive: Receive::Ready, line_bytes, frame_bytes, held_bytes_max }
    }

    /// Lets go of a bucket that was deleted; a memcached port takes the new one of its name, if there is one.
    #[cold]
    fn replace_gone(&mut self, cx: &NodeContext) {
        if let Some(gone) = self.peer.bucket.take()
            && self.peer.port == Port::Memcached
        {
            self.peer.bucket = cx.node.bucket(gone.name());
        }
    }

    /// Lets go of a bucket that was deleted.
    pub fn tend(&mut self, cx: &NodeContext) {
        if self.peer.bucket.as_ref().is_some_and(|bucket| bucket.is_gone()) {
            self.replace_gone(cx);
        }
    }

    /// Executes one request of this session, once.
    #[inline]
    pub fn execute(&mut self, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
        if self.peer.waits.is_some() {
            return self.execute_behind(queued, cx, out);
        }
        self.execute_or_park(queued, cx, out);
    }

    /// Executes a request, unless it is parked or answered because its document is unavailable.
    #[inline]
    fn execute_or_park(&mut self, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
        if self.may_be_unavailable() && self.park_or_fail(queued, cx, out) {
            return;
        }
        self.execute_up_to(AGAIN_MAX, queued, cx, out);
    }

    /// Executes a request, so many times again where what it met is gone when that is looked at.
    #[inline]
    fn execute_up_to(&mut self, again: u32, queued: &mut Queued<'_>, cx: &mut NodeContext, out: &mut Output) {
        let at = queued.placed.filter(|placed| self.peer.places_as(placed.bucket, placed.collections));
        let (at, peer, mark) = (at.map(|placed| placed.place), &mut self.peer, out.mark());
        let executed = match &mut queued.work {
            Work::Request(request, value, _) => request.execute(peer, at, Body::Inline(value), cx, out),
            other => {
                self.execute_other(other, cx, out);
                Ok(())
            }
        };
        if executed.is_err() || out.has_compressed() {
            self.complete_answer(queued, executed, mark, again, cx, out);
        }
    }

    /// Everything but a request that was parsed whole.
    #[inline(never)]
    fn execute_other(&mut self, work: &mut Work<'_>, cx: &mut NodeContext, out: &mut Output) {
        let peer = &mut self.peer;
        match work {
            Work::Request(..) => {}
            Work::Filled(filling) => {
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
    }

    /// Inflates what has to be inflated outside the lock; and takes back the answer of a request whose document has
    /// become unavailable between the check of that and its execution. It has changed nothing. Where its value has left
    /// memory in between, it waits for that as if it had been so before.
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
        if why != KvError::NotResident || again == 0 {
            return self.fail(queued, why, cx, out);
        }
        if !self.park_or_fail(queued, cx, out) {
            // It is back already, or another.
            self.execute_up_to(again - 1, queued, cx, out);
        }
    }
}
