//! Fetching ejected values: a fetcher reads them by vBucket and seqno and puts them back into memory, while no worker
//! waits.
//!
//! A value is read once, however many requests want it: a request for a value that is already queued or being read
//! waits for the same read.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use journal::log::Found;

use crate::fetch_queue::{Fetch, FetchDone};
use crate::index::PutBack;
use crate::storage::{FETCHERS, JournalDisk, check_value};
use crate::{Bucket, Key, KvError, LARGE_VALUE, NodeContext, Now, Place};

/// While there is no memory for a value, the pager makes room: the fetcher tries again after this time, and for longer
/// than the pager puts off its search for what to eject. Then the requests that wait are told to try again.
const AGAIN_MS: u64 = 5;
const PATIENCE_MS: u64 = 250;
/// A read buffer that has grown larger is not kept.
const BUFFER_KEPT: usize = 1 << 20;

/// One of a node's fetchers. The caller owns the thread; it sleeps until its bell rings.
pub struct Fetcher {
    index: usize,
    buffer: Vec<u8>,
    /// Set while there is no memory for any value: since when.
    refused_since_ms: Option<u64>,
}

impl Fetcher {
    /// Creates the fetcher of this number, below [`FETCHERS`].
    pub fn new(index: usize) -> Self {
        Self { index, buffer: Vec::new(), refused_since_ms: None }
    }

    /// Fetches all values that were asked for. Returns when to call again even if the bell does not ring, ms of the
    /// monotonic clock.
    pub fn turn(&mut self, cx: &mut NodeContext, clock: &mut dyn FnMut() -> Now) -> Option<u64> {
        let node = Arc::clone(&cx.node);
        let queue = node.fetch_queue(self.index);
        queue.bell.answer();
        cx.tend();
        let mut again_ms = None;
        loop {
            let Some(fetch) = queue.asked.lock().not_begun.pop_front() else {
                self.refused_since_ms = None;
                break;
            };
            cx.now = clock();
            let result = match self.fetch(cx, &fetch) {
                Err(KvError::NoMemory) => {
                    let now_ms = cx.now.mono_ms();
                    let since_ms = *self.refused_since_ms.get_or_insert(now_ms);
                    if now_ms < since_ms + PATIENCE_MS {
                        queue.asked.lock().not_begun.push_front(fetch);
                        again_ms = Some(now_ms + AGAIN_MS);
                        break;
                    }
                    Err(KvError::NotResident)
                }
                result => {
                    self.refused_since_ms = None;
                    result
                }
            };
            let waiters = queue.asked.lock().waiters.remove(&fetch.wanted());
            waiters.into_iter().flatten().for_each(|done| done(result));
            if self.buffer.capacity() > BUFFER_KEPT {
                self.buffer = Vec::new();
            }
            cx.end_batch();
        }
        cx.end_batch();
        self.buffer = Vec::new();
        again_ms
    }

    fn fetch(&mut self, cx: &mut NodeContext, fetch: &Fetch) -> Result<(), KvError> {
        let bucket = &fetch.bucket;
        let persistence = bucket.persistence().ok_or(KvError::BucketGone)?;
        let shard = persistence.shard_of(fetch.vb).ok_or(KvError::BucketGone)?;
        let is_ejected = |cx: &mut NodeContext| {
            bucket.lock(cx, fetch.vb).is_ejected(&fetch.stored_key, fetch.hash, fetch.on_disk)
        };
        // Asked for just when a read of it was over, or overwritten since: that is fine as well.
        if !is_ejected(cx) {
            return Ok(());
        }
        let is_there = match shard.reader.find(fetch.vb.0, fetch.on_disk, &mut self.buffer) {
            Ok(Some(found)) => match self.put_back(cx, fetch, &found) {
                Ok(true) => {
                    persistence.counters.fetched.fetch_add(1, Relaxed);
                    return Ok(());
                }
                Ok(false) => false,
                Err(KvError::ReadFailed) => true,
                Err(error) => return Err(error),
            },
            Ok(None) => false,
            Err(_) => true,
        };
        // Overwritten, deleted or flushed meanwhile, and no longer on disk: the waiting request looks again.
        if !is_ejected(cx) {
            return Ok(());
        }
        persistence.counters.fetch_failures.fetch_add(1, Relaxed);
        // A read that failed may succeed later; a record that is not there will not come back.
        Err(if is_there { KvError::ReadFailed } else { KvError::Damaged })
    }
}

impl Fetcher {
    /// Puts a value that was found back into memory. A long one is read into its item: it is never in memory twice.
    /// Returns false if it is another key's.
    fn put_back(
        &mut self,
        cx: &mut NodeContext,
        fetch: &Fetch,
        found: &Found<JournalDisk>,
    ) -> Result<bool, KvError> {
        let (bucket, stored_key) = (&fetch.bucket, fetch.stored_key.as_slice());
        let persistence = bucket.persistence().ok_or(KvError::BucketGone)?;
        let failed = |_| KvError::ReadFailed;
        if found.value_bytes() <= LARGE_VALUE {
            bucket.admit(cx, found.value_bytes())?;
            let record = found.read(&mut self.buffer).map_err(failed)?;
            if record.key != stored_key {
                return Ok(false);
            }
            let datatype = persistence.datatype(record.datatype);
            check_value(datatype, record.value)?;
            let value = PutBack::Short(record.value);
            bucket.lock(cx, fetch.vb).put_back(stored_key, fetch.hash, fetch.on_disk, datatype, value)?;
            return Ok(true);
        }
        let mut item = bucket.prepare_stored(cx, stored_key.len(), found.value_bytes())?;
        let record = found.read_apart(&mut self.buffer, item.window(0, usize::MAX)).map_err(failed)?;
        if record.key != stored_key {
            return Ok(false);
        }
        let datatype = persistence.datatype(record.datatype);
        check_value(datatype, item.bytes())?;
        let value = PutBack::Long(item.block);
        bucket.lock(cx, fetch.vb).put_back(stored_key, fetch.hash, fetch.on_disk, datatype, value)?;
        Ok(true)
    }
}

/// Asks for an ejected value, and returns its length; `done` is called when it is there, on the fetcher's thread.
/// `None`: there is nothing to wait for, and `done` is not called.
pub fn fetch(
    bucket: &Arc<Bucket>,
    cx: &mut NodeContext,
    key: Key<'_>,
    at: Place,
    done: FetchDone,
) -> Option<usize> {
    let (on_disk, stored_key, value_len) = bucket.lock(cx, at.vb).ejected(key, at.hash)?;
    let (vb, hash) = (at.vb, at.hash);
    let fetch = Fetch { bucket: Arc::clone(bucket), vb, hash, on_disk, stored_key };
    let queue = cx.node.fetch_queue(usize::from(vb.0) % FETCHERS);
    let mut asked = queue.asked.lock();
    let waiters = asked.waiters.entry(fetch.wanted()).or_default();
    waiters.push(done);
    if waiters.len() == 1 {
        asked.not_begun.push_back(fetch);
        drop(asked);
        queue.bell.ring();
    }
    Some(value_len)
}
