//! Requests between parsing and execution, of several sessions, and what is loaded ahead for them.

use std::sync::Arc;

use kv::{Bucket, Key, Place};

use super::request::{Malformed, Request};
use super::{Dump, Filling, Peer, Refusal};

/// Requests executed as one batch, over all connections that are ready.
pub const BATCH_REQUESTS: usize = 64;

/// Requests whose items are being loaded ahead of the one that is executed.
const LOOK_AHEAD: usize = 16;
/// Bytes of an item that a read prefetches when nothing tells its size.
pub(super) const PREFETCH_READ: usize = 384;
/// Bytes of an item that are prefetched at most: beyond, the hardware keeps up.
const PREFETCH_MOST: usize = 1024;
/// Header bytes of an item beside key and value, for prefetching.
const PREFETCH_HEADER: usize = 28;

/// Requests on their way from parsing to execution, of several sessions.
pub struct Batch<'a> {
    requests: arrayvec::ArrayVec<Queued<'a>, BATCH_REQUESTS>,
}

/// One request of a batch.
pub struct Queued<'a> {
    /// Whose it is, as given to [`super::Session::parse`].
    pub connection: u32,
    pub(super) prefetch_bytes: u32,
    pub(super) placed: Option<Placed>,
    pub(super) work: Work<'a>,
}

/// A place, and what it was computed for.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub(super) place: Place,
    pub(super) bucket: *const Bucket,
    pub(super) collections: bool,
}

/// A wide tag: what is moved then consists of whole words.
#[repr(u64)]
pub(super) enum Work<'a> {
    /// A request that was parsed whole: with its value, and the bytes of both. (A key of a retrieval has none.)
    Request(Request<'a>, &'a [u8], &'a [u8]),
    /// A request whose body is not taken, and the bytes of its head.
    Refused(Request<'a>, Refusal, &'a [u8]),
    Malformed(Malformed),
    /// A request with a large value.
    Filled(Option<Box<Filling>>),
    /// The next slice of a list of keys.
    Dump(Option<Box<Dump>>),
    /// A session that watches is to begin, or has lines to send.
    Watch,
}

impl<'a> Batch<'a> {
    /// Empty.
    pub fn new() -> Self {
        Self { requests: arrayvec::ArrayVec::new() }
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

#[inline]
pub(super) fn prefetch_bytes(key_len: usize, body_len: usize) -> u32 {
    let bytes = if body_len == 0 { PREFETCH_READ } else { PREFETCH_HEADER + key_len + body_len };
    bytes.min(PREFETCH_MOST) as u32
}

/// Places a request by its key and starts loading its vBucket.
#[inline(always)]
pub(super) fn place(peer: &Peer, request: &Request<'_>, key: Key<'_>) -> Option<Placed> {
    let bucket = peer.bucket.as_ref()?;
    let place = request.place(peer, bucket, key)?;
    bucket.prefetch_vbucket(place);
    Some(Placed { place, bucket: Arc::as_ptr(bucket), collections: peer.collections() })
}
