//! A large value in transit from the socket into item memory, and the request it belongs to.
//!
//! ```text
//!   head parsed ─ room ahead? ─ yes ─> the whole item at once; the socket is read into it
//!                      └ no ─> FIRST_PART bytes in the input buffer ─> item of twice what has arrived ─ full ─> twice that ─> ...
//! ```
//! A client may announce a value that it never sends. Room for bytes that have not arrived is reserved only within a
//! small part of the bucket's budget ([`Bucket::reserve_ahead`]), and nothing is evicted for it. Beyond that an item
//! grows as its bytes arrive: it is copied when it is full, and its capacity is never more than twice what was sent.

use std::sync::Arc;

use kv::clients::State;
use kv::{Ahead, Bucket, Key, KvError, LargeItem, NodeContext};
use wire::{binary as wire_binary, text as wire_text};

use super::{Body, LARGE_VALUE, Output, Protocol, Receive, Refusal, Session};

/// Most bytes of a large value that are received at once.
const SINK_BYTES: usize = 256 << 10;
/// A value without room reserved ahead waits in the input buffer until this many of its bytes have arrived.
pub(super) const FIRST_PART: usize = LARGE_VALUE;

/// Returns true if an incomplete frame has arrived up to its value.
fn has_binary_key(frame: &[u8]) -> bool {
    let Some((head, rest)) = frame.split_first_chunk::<{ wire_binary::HEADER_LEN }>() else { return false };
    // Requests with framing extras occur only on Couchbase ports, whose connections are not listed.
    let (key, extras) = (u16::from_be_bytes([head[2], head[3]]), head[4]);
    rest.len() >= usize::from(key) + usize::from(extras)
}

/// A large value on its way into item memory.
pub(super) struct Filling {
    /// The request's head, parsed again once the value is complete.
    pub(super) head: Box<[u8]>,
    /// The value as far as there is room, or why there is no more room.
    item: Result<LargeItem, Refusal>,
    bucket: Arc<Bucket>,
    /// Present while room is reserved for bytes that have not arrived.
    _ahead: Option<Ahead>,
    /// Length of the whole value.
    total: usize,
    filled: usize,
    trailer: usize,
    trailer_is_good: bool,
}

impl Session {
    /// The buffer for the next input bytes, if they are the rest of a large value: read from the socket directly into
    /// it, then call [`Session::filled`].
    pub fn sink(&mut self) -> Option<&mut [u8]> {
        match &mut self.receive {
            Receive::Filling(filling) if !filling.is_full() => {
                let filled = filling.filled;
                filling.item.as_mut().ok().map(|item| item.window(filled, SINK_BYTES))
            }
            _ => None,
        }
    }

    /// Notes that this many bytes were read into the sink.
    pub fn filled(&mut self, bytes: usize) {
        if let Receive::Filling(filling) = &mut self.receive {
            filling.filled += bytes;
            debug_assert!(filling.filled <= filling.room());
        }
    }

    /// Returns true if [`Session::parse`] can continue without new input: a large value is complete and waits to be
    /// executed, or needs more room, or a list continues.
    pub fn has_filled(&self) -> bool {
        matches!(&self.receive, Receive::Dumping(_))
            || matches!(&self.receive, Receive::Filling(f) if f.is_full() && (f.filled < f.total || f.trailer == 0))
    }

    /// Returns true if the peer is in the middle of a request that is not in the input buffer.
    pub fn is_receiving(&self) -> bool {
        !matches!(self.receive, Receive::Ready | Receive::Watching(_))
    }

    /// Returns true if the peer's next bytes begin a request.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        matches!(self.receive, Receive::Ready)
            && self.peer.waits.is_none()
            && !self.peer.close
            && !self.follows()
    }

    /// The connection's state if there is nothing to execute and `rest` is the unparsed input.
    pub fn state(&self, rest: &[u8]) -> State {
        match (&self.receive, self.protocol) {
            (Receive::Filling(_), _) => State::Value,
            (Receive::Skipping(_), _) => State::Swallow,
            (Receive::Dumping(_), _) => State::Parse,
            (Receive::Watching(_), _) => State::Watch,
            (Receive::Ready, Protocol::Text) if rest.contains(&b'\n') => State::Value,
            (Receive::Ready, Protocol::Binary) if has_binary_key(rest) => State::Value,
            (Receive::Ready | Receive::Keys { .. }, _) => State::Read,
        }
    }

    /// Bytes of a large value that have arrived for an incomplete request.
    pub fn filling_bytes(&self) -> usize {
        if let Receive::Filling(filling) = &self.receive { filling.filled } else { 0 }
    }

    /// Starts to receive a large value, `available` bytes of which are in the input. Returns `Ok(false)` if more of it
    /// must arrive first.
    pub(super) fn start_filling(
        &mut self,
        head: &[u8],
        key: Key<'_>,
        body: usize,
        trailer: usize,
        available: usize,
        cx: &mut NodeContext,
    ) -> Result<bool, Refusal> {
        let bucket = self.peer.bucket.clone().ok_or(Refusal::NotAllowed)?;
        bucket.may_hold(key, body).map_err(refusal_of)?;
        let ahead = if available < body { bucket.reserve_ahead(body) } else { None };
        let room = match &ahead {
            Some(_) => body,
            None if available < FIRST_PART => return Ok(false),
            None => body.min(available.saturating_mul(2)),
        };
        let item = Ok(bucket.prepare_large(cx, key, room).map_err(refusal_of)?);
        let head = head.into();
        let filling = Filling {
            head,
            item,
            bucket,
            _ahead: ahead,
            total: body,
            filled: 0,
            trailer,
            trailer_is_good: true,
        };
        self.receive = Receive::Filling(Box::new(filling));
        Ok(true)
    }

    #[cold]
    pub(super) fn execute_filled(&mut self, filling: Filling, cx: &mut NodeContext, out: &mut Output) {
        let Filling { head, item, trailer_is_good, .. } = filling;
        let Some((request, _)) = self.parse_again(&head) else { return };
        let refusal = match item {
            Ok(item) if trailer_is_good => {
                if let Err(why) = request.execute(&mut self.peer, None, Body::Large(item), cx, out) {
                    request.fail(&mut self.peer, why, cx, out);
                }
                return;
            }
            Ok(_) => Refusal::BadTrailer,
            Err(refusal) => refusal,
        };
        request.refuse(&mut self.peer, refusal, cx, out);
    }
}

fn refusal_of(error: KvError) -> Refusal {
    match error {
        KvError::TooBig => Refusal::TooBig,
        KvError::BucketGone => Refusal::NotAllowed,
        _ => Refusal::NoMemory,
    }
}

impl Filling {
    /// Bytes of the request.
    pub(super) fn bytes(&self) -> usize {
        self.head.len() + self.total + self.trailer
    }

    pub(super) fn is_complete(&self) -> bool {
        self.filled == self.total && self.trailer == 0
    }

    /// Returns true if the request is refused in the middle of its value.
    pub(super) fn is_refused(&self) -> bool {
        self.item.is_err()
    }

    /// Bytes of the value there is room for.
    fn room(&self) -> usize {
        self.item.as_ref().map_or(0, LargeItem::len)
    }

    /// Returns true if there is no room for the next byte.
    fn is_full(&self) -> bool {
        self.filled >= self.room()
    }

    /// Returns true if the value continues but there is no room.
    pub(super) fn needs_room(&self) -> bool {
        self.is_full() && self.filled < self.total
    }

    /// Makes room for `available` more bytes, or for as many as have arrived if that is more. `Err`: the request is now
    /// refused, and this many of its bytes must be skipped.
    pub(super) fn grow(&mut self, available: usize, cx: &mut NodeContext) -> Result<(), usize> {
        let room = self.total.min(self.filled.max(available).saturating_add(self.filled));
        let grown = match &self.item {
            Ok(item) => self.bucket.grow_large(cx, item, room).map_err(refusal_of),
            Err(refusal) => Err(*refusal),
        };
        let is_refused = grown.is_err();
        self.item = grown;
        if is_refused { Err(self.total - self.filled + self.trailer) } else { Ok(()) }
    }

    /// Takes value and trailer bytes that arrived with other input, as far as there is room.
    pub(super) fn take(&mut self, input: &[u8]) -> usize {
        let filled = self.filled;
        let Ok(item) = &mut self.item else { return 0 };
        let missing = item.window(filled, input.len());
        let (value, rest) = input.split_at(missing.len().min(input.len()));
        missing[..value.len()].copy_from_slice(value);
        self.filled += value.len();
        if self.filled < self.total {
            return value.len();
        }
        let trailer = rest.len().min(self.trailer);
        let expected = &wire_text::TRAILER[wire_text::TRAILER.len() - self.trailer..];
        self.trailer_is_good &= rest[..trailer] == expected[..trailer];
        self.trailer -= trailer;
        value.len() + trailer
    }
}
