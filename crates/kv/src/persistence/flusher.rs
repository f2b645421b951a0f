//! A flusher: flushes and compacts. The caller owns the thread.
//!
//! It sleeps until its bell rings or the deadline that it returned has come; while nothing is dirty there is neither.
//! It has its buffer while it has work, and a few seconds longer; that long after the last flush, the memory the flush
//! has freed is given back, too. Compaction may go on, with a small buffer.

use std::sync::atomic::Ordering::Relaxed;

use journal::log::Buffer;

use super::{compaction, flush};
use crate::storage::{Persistence, flusher_of};
use crate::{Bucket, NodeContext, Now, ThreadContext};

/// How long an unused buffer is kept, and the memory that a flush has freed.
const IDLE_MS: u64 = 3000;
/// A buffer of this many bytes suffices for compaction while nothing is flushed.
const SMALL_BYTES: usize = 128 << 10;
/// Failed compaction is tried again after this.
const COMPACT_AGAIN_MS: u64 = 1000;

/// One of a node's flushers.
pub struct Flusher {
    index: usize,
    buffer_bytes: usize,
    buffer: Option<Buffer>,
    used_ms: u64,
    /// When freed memory is given back, if there was a flush.
    rests_ms: Option<u64>,
}

impl Flusher {
    /// Creates the flusher of this number, below [`super::FLUSHERS`], with a buffer of so many bytes
    /// at most ([`Buffer::BYTES`]).
    pub fn new(index: usize, buffer_bytes: usize) -> Self {
        Self { index, buffer_bytes, buffer: None, used_ms: 0, rests_ms: None }
    }

    pub(super) fn buffer(&mut self) -> &mut Buffer {
        let bytes = self.buffer_bytes;
        self.buffer.take_if(|buffer| buffer.capacity() < bytes);
        self.buffer.get_or_insert_with(|| Buffer::new(bytes))
    }

    /// Does what there is to do. Returns when to call again even if the bell does not ring, ms of the monotonic clock.
    pub fn turn(&mut self, cx: &mut NodeContext, clock: &mut dyn FnMut() -> Now) -> Option<u64> {
        cx.now = clock();
        cx.node.flusher_bell(self.index).answer();
        cx.tend();
        let mut next: Option<u64> = None;
        let mut arm = |due_ms: u64| next = Some(next.map_or(due_ms, |next| next.min(due_ms)));
        for bucket in cx.node.buckets() {
            let Some(persistence) = bucket.persistence() else { continue };
            for at in 0..persistence.shards.len() {
                if flusher_of(bucket.slot(), at) != self.index {
                    continue;
                }
                cx.now = clock();
                if let Some(due_ms) = self.tend_shard(&bucket, persistence, cx, at) {
                    arm(due_ms);
                }
            }
        }
        match self.rests_ms {
            Some(rests_ms) if rests_ms <= cx.now.mono_ms() => {
                (self.rests_ms, self.buffer) = (None, None);
                cx.rest();
                cx.rest_for_long();
            }
            Some(rests_ms) => arm(rests_ms),
            None => {}
        }
        if self.buffer.is_some() {
            let idle_ms = self.used_ms + IDLE_MS;
            if idle_ms <= cx.now.mono_ms() {
                self.buffer = None;
            } else {
                arm(idle_ms);
            }
        }
        let buffer_bytes = self.buffer.as_ref().map_or(0, |buffer| buffer.held_bytes() as u64);
        cx.node.set_flush_buffer_bytes(self.index, buffer_bytes);
        cx.end_batch();
        next
    }

    /// Flushes and compacts a shard if it is time. Returns when to check again.
    fn tend_shard(
        &mut self,
        bucket: &Bucket,
        persistence: &Persistence,
        cx: &mut ThreadContext,
        at: usize,
    ) -> Option<u64> {
        if bucket.is_gone() {
            return None;
        }
        let flush_ms = self.flush(bucket, persistence, cx, at);
        // What is to be flushed later is flushed before any rest.
        self.rests_ms = self.rests_ms.max(flush_ms.map(|due_ms| due_ms + IDLE_MS));
        let most_bytes = if self.rests_ms.is_some() { self.buffer_bytes } else { SMALL_BYTES };
        let buffer_bytes = self.buffer_bytes.min(most_bytes);
        let compacted = compaction::compact(bucket, cx, at, &mut self.buffer, buffer_bytes);
        let more_ms = compacted.unwrap_or_else(|error| {
            persistence.note_trouble(&error);
            Some(COMPACT_AGAIN_MS)
        });
        let now_ms = cx.now.mono_ms();
        // Waiting for a shard to come to rest needs no buffer.
        if more_ms.is_some_and(|more_ms| more_ms < IDLE_MS) {
            self.used_ms = now_ms;
        }
        flush_ms.into_iter().chain(more_ms.map(|more_ms| now_ms + more_ms)).min()
    }

    fn flush(
        &mut self,
        bucket: &Bucket,
        persistence: &Persistence,
        cx: &mut ThreadContext,
        at: usize,
    ) -> Option<u64> {
        let dirty = bucket.dirty()?;
        let shard = persistence.shards.get(at)?;
        if !dirty.any(at) {
            return None;
        }
        let now_ms = cx.now.mono_ms();
        if shard.compacts_first() {
            return Some(now_ms);
        }
        let rest_until_ms = shard.rest_until_ms.load(Relaxed);
        let hurries = shard.hurries();
        if now_ms < rest_until_ms && !hurries {
            return Some(rest_until_ms);
        }
        self.used_ms = now_ms;
        self.rests_ms = Some(now_ms + IDLE_MS);
        match flush::flush_shard(bucket, cx, at, self.buffer()) {
            Ok(_) => {
                shard.rest_until_ms.store(now_ms + persistence.settings.flush_interval_ms, Relaxed);
            }
            Err(error) => persistence.note_trouble(&error),
        }
        let hurries = shard.hurries();
        dirty.any(at).then(|| if hurries { now_ms } else { shard.rest_until_ms.load(Relaxed) })
    }
}
