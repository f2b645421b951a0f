//! Requests of several sessions between parsing and execution, and prefetching for them.

use std::sync::Arc;

use kv::{Bucket, Key, Place};

use super::request::{Malformed, Request};
use super::{Dump, Filling, Peer, Refusal};

/// Maximum number of requests in a batch, over all ready connections.
pub const BATCH_REQUESTS: usize = 64;

/// Maximum number of slow requests in a batch.
pub const SLOW_REQUESTS: usize = 8;

/// How many requests ahead of the executed one items are prefetched.
const LOOK_AHEAD: usize = 16;
/// Bytes of an item that a read prefetches if its size is unknown.
pub(super) const PREFETCH_READ: usize = 384;
/// Maximum bytes of an item to prefetch: beyond this the hardware prefetcher keeps up.
const PREFETCH_MOST: usize = 1024;
/// Bytes of an item besides key and value, for prefetching.
const PREFETCH_HEADER: usize = 28;

/// Requests on their way from parsing to execution, of several sessions.
pub struct Batch<'a> {
    requests: arrayvec::ArrayVec<Queued<'a>, BATCH_REQUESTS>,
    /// It is full with this many. Less than [`BATCH_REQUESTS`] once one of them may be slow.
    end: usize,
    slow_most: usize,
}

/// One request of a batch.
pub struct Queued<'a> {
    /// Its connection, as given to [`super::Session::parse`].
    pub connection: u32,
    pub(super) prefetch_bytes: u32,
    pub(super) placed: Option<Placed>,
    pub(super) work: Work<'a>,
}

/// A place, and the state it was computed for.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub(super) place: Place,
    pub(super) bucket: *const Bucket,
    pub(super) collections: bool,
}

/// The tag is wide so that moves copy whole words.
#[repr(u64)]
pub(super) enum Work<'a> {
    /// A completely parsed request, its value, and the bytes of both. (A key of a retrieval has none.)
    Request(Request<'a>, &'a [u8], &'a [u8]),
    /// A request whose body is refused, and the bytes of its head.
    Refused(Request<'a>, Refusal, &'a [u8]),
    Malformed(Malformed),
    /// A request with a large value.
    Filled(Option<Box<Filling>>),
    /// The next slice of a list of keys.
    Dump(Option<Box<Dump>>),
    /// A session is to start watching, or has lines to send.
    Watch,
}

impl<'a> Batch<'a> {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::with_slow(SLOW_REQUESTS)
    }
    /// Creates an empty batch that is full with this many requests, at least one, from the first slow one on.
    pub fn with_slow(slow_most: usize) -> Self {
        Self { requests: arrayvec::ArrayVec::new(), end: BATCH_REQUESTS, slow_most }
    }
    #[inline]
    pub(super) fn push(
        &mut self,
        connection: u32,
        placed: Option<Placed>,
        prefetch_bytes: u32,
        work: Work<'a>,
    ) {
        self.requests.push(Queued { connection, prefetch_bytes, placed, work });
    }
    /// The request pushed last may be slow.
    pub(super) fn note_slow(&mut self) {
        let end = self.len() + self.slow_most.saturating_sub(1);
        self.end = self.end.min(end).min(BATCH_REQUESTS - 1);
    }
    /// Returns true if one of the requests may be slow.
    pub fn is_slow(&self) -> bool {
        self.end < BATCH_REQUESTS
    }
    /// Returns true if there is no room for another request.
    pub fn is_full(&self) -> bool {
        self.len() >= self.end
    }
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }
    /// Returns true if there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
    /// The request at `index`.
    pub fn get(&mut self, index: usize) -> Option<&mut Queued<'a>> {
        self.requests.get_mut(index)
    }
    /// Removes all requests.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.end = BATCH_REQUESTS;
    }

    /// Prefetches what the batch's requests need first: the parts of the index that lead to their items. `bucket_of`
    /// returns a connection's bucket. Must run within a quiescence section, like all prefetching.
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

    /// Prefetches the item of the request [`LOOK_AHEAD`] after `index`, which is about to be executed.
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
    /// Calls `f` with the bucket of the request's key, if that is still the bucket the key was placed in.
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

#[inline]
pub(super) fn prefetch_bytes(key_len: usize, body_len: usize) -> u32 {
    let bytes = if body_len == 0 { PREFETCH_READ } else { PREFETCH_HEADER + key_len + body_len };
    bytes.min(PREFETCH_MOST) as u32
}

/// Places a request by its key and prefetches its vBucket.
#[inline(always)]
pub(super) fn place(peer: &Peer, request: &Request<'_>, key: Key<'_>) -> Option<Placed> {
    let bucket = peer.bucket.as_ref()?;
    let place = request.place(peer, bucket, key)?;
    bucket.prefetch_vbucket(place);
    Some(Placed { place, bucket: Arc::as_ptr(bucket), collections: peer.collections() })
}
