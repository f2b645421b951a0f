//! The compressor of buckets with `compression = "active"`: trades processor time for memory while memory is short.
//!
//! ```text
//!   disarmed ──a measurement: more than three quarters of the budget are used, and enough was stored──> a pass
//!      ^                                                                                                │
//!      └──── the end of the table, or memory is not short any more ─────────────────────────────────────┘
//! ```
//! A pass walks over all vBuckets. Each slice copies some values under the vBucket's lock, compresses them without it,
//! and replaces those that shrink by an eighth under it again (the index's `compressing.rs`). CAS and seqno stay: only
//! a reader that takes Snappy can tell that anything happened, and nothing is written to disk for it.
//!
//! Values that do not shrink need no mark per item: for each vBucket the compressor remembers the seqno up to which
//! everything has been tried. After a pass of little use, the next one waits until as many items have been stored as
//! there are.
//!
//! Like the defragmenter, it works for a fraction of a millisecond at a time on the caller's thread, and rests for a
//! multiple of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use wire::binary::datatype::{JSON, SNAPPY};
use wire::{snappy, subdocument};

use super::defragmenter::{Demand, rest_us};
use crate::LARGE_VALUE;
use crate::index::{Block, Candidates, Passage};
use crate::lock_order::{Ranked, rank};
use crate::memory_policy::POLICY;
use crate::settings::Compression;
use crate::{Bucket, LargeItem, Meter, ThreadContext, VbId};

/// Length of a turn's work.
const WORK_US: u64 = 250;
/// A compressed value is kept if it has at most this many eighths of its length.
const KEPT_EIGHTHS: usize = 7;
/// A pass that saves no more than what it tried divided by this was of little use.
const FRUITFUL_PART: u64 = 16;
/// After a useful pass the next one waits for as many stores as there are items, divided by this.
const TURNOVER_PART: u64 = 8;
/// Largest buffer for blocks that is kept between slices.
const ROOM_KEPT: usize = 1 << 20;

/// A bucket's compressor.
#[derive(Default)]
pub(crate) struct Compressor {
    /// Set by a measurement that the compressor has not seen yet.
    measured: AtomicBool,
    work: Ranked<Work, { rank::COMPRESSOR }>,
}

#[derive(Default)]
struct Work {
    pass: Option<Pass>,
    /// By vBucket: everything up to this seqno has been tried. Empty until the first pass.
    seen: Vec<u64>,
    /// Stores counted when the last pass ended, and how many more the next one waits for.
    stores: u64,
    turnover: u64,
    tools: Tools,
}

#[derive(Default)]
struct Tools {
    compressor: snappy::Compressor,
    candidates: Candidates,
}

/// A walk over the bucket.
#[derive(Default)]
struct Pass {
    vb: u16,
    passage: Passage,
    /// High seqno of the vBucket being walked, as its walk began.
    high_seqno: Option<u64>,
    seen_bytes: u64,
    saved_bytes: u64,
}

impl Compressor {
    /// Notes that there has been a measurement.
    pub(crate) fn note_measured(&self) {
        self.measured.store(true, Relaxed);
    }
}

/// Does some work, if there is any. Returns the microseconds until the next turn.
pub(crate) fn turn(buckets: &[Arc<Bucket>], cx: &mut ThreadContext, demand: &mut Demand) -> Option<u64> {
    let bucket = buckets.iter().find(|bucket| bucket.wants_compressing())?;
    let began_us = cx.fresh_us();
    let is_busy = demand.is_lively(buckets, began_us);
    bucket.compress(cx, began_us);
    cx.end_batch();
    let worked_us = cx.fresh_us().saturating_sub(began_us);
    bucket.count(cx, Meter::CompressorUs, worked_us);
    let goes_on = buckets.iter().any(|bucket| bucket.wants_compressing());
    goes_on.then(|| rest_us(worked_us, is_busy))
}

impl Bucket {
    /// Returns true if the compressor is at work.
    pub fn is_compressing(&self) -> bool {
        self.compressor.work.lock().pass.is_some()
    }

    /// Discards what a pass has learnt, because the mode has changed.
    pub(crate) fn restart_compressor(&self) {
        *self.compressor.work.lock() = Work::default();
        self.compressor.note_measured();
        self.ring_pager();
    }

    /// Returns true if there is work, after taking note of new measurements.
    fn wants_compressing(&self) -> bool {
        let measured = self.compressor.measured.swap(false, Relaxed);
        if self.compression() != Compression::Active {
            return false;
        }
        let (used, per_mille) = (self.tenant().used(), self.tenant().budget() / 1000);
        let mut work = self.compressor.work.lock();
        if work.pass.is_none() {
            let is_short = measured && used > per_mille * POLICY.compress_from;
            if is_short && self.stores_since(work.stores) >= work.turnover {
                work.seen.resize(usize::from(self.vbuckets()), 0);
                work.pass = Some(Pass::default());
            }
        } else if used < per_mille * POLICY.compress_to {
            work.end_pass(self);
        }
        work.pass.is_some()
    }

    /// Returns the stores since `before` was read; the counter may have been reset.
    fn stores_since(&self, before: u64) -> u64 {
        let now = self.meter(Meter::TotalItems);
        now.checked_sub(before).unwrap_or(now)
    }

    fn compress(&self, cx: &mut ThreadContext, began_us: u64) {
        let mut work = self.compressor.work.lock();
        let Work { pass: Some(pass), seen, tools, .. } = &mut *work else { return };
        self.go_direct(cx, true);
        let mut goes_on = true;
        while goes_on {
            goes_on = pass.slice(self, cx, seen, tools);
            if cx.fresh_us() >= began_us + WORK_US {
                break;
            }
        }
        self.go_direct(cx, false);
        if !goes_on {
            work.end_pass(self);
            drop(work);
            self.count(cx, Meter::CompressorPasses, 1);
            // The memory freed may be scattered: let the defragmenter check.
            self.tenant().purge();
            self.tenant().measure();
            self.note_measured();
        }
    }

    /// Compresses everything it can: for tests and examples, which have little.
    pub fn compress_everything(&self, cx: &mut ThreadContext) {
        let (mut pass, mut tools) = (Pass::default(), Tools::default());
        let mut seen = vec![0; usize::from(self.vbuckets())];
        while pass.slice(self, cx, &mut seen, &mut tools) {}
        cx.end_batch();
    }
}

impl Work {
    fn end_pass(&mut self, bucket: &Bucket) {
        let Some(pass) = self.pass.take() else { return };
        let items = bucket.accounts().items;
        let was_of_use = pass.saved_bytes > pass.seen_bytes / FRUITFUL_PART;
        self.turnover = if was_of_use { items / TURNOVER_PART } else { items }.max(1);
        self.stores = bucket.meter(Meter::TotalItems);
        self.tools = Tools::default();
    }
}

impl Pass {
    /// Works on what one hold of a lock yields. Returns true if there is more.
    fn slice(
        &mut self,
        bucket: &Bucket,
        cx: &mut ThreadContext,
        seen: &mut [u64],
        tools: &mut Tools,
    ) -> bool {
        let Some(seen) = seen.get_mut(usize::from(self.vb)) else { return false };
        let vb = VbId(self.vb);
        tools.candidates.clear();
        let mut locked = bucket.lock(cx, vb);
        let high_seqno = *self.high_seqno.get_or_insert(locked.high_seqno());
        // A vBucket that was deleted meanwhile starts over.
        let above = if *seen <= high_seqno { *seen } else { 0 };
        let next = locked.take_compressible(self.passage, above, &mut tools.candidates);
        drop(locked);
        self.passage = next.unwrap_or_default();
        if next.is_none() {
            *seen = high_seqno;
            self.high_seqno = None;
            self.vb += 1;
        }
        self.compress(bucket, cx, vb, tools);
        usize::from(self.vb) < usize::from(bucket.vbuckets())
    }

    fn compress(&mut self, bucket: &Bucket, cx: &mut ThreadContext, vb: VbId, tools: &mut Tools) {
        let (mut values, mut saved_bytes) = (0, 0);
        for candidate in &tools.candidates.list {
            let value = tools.candidates.value(candidate);
            self.seen_bytes += value.len() as u64;
            let Some(block) = tools.compressor.compress(value) else { continue };
            if block.len() > value.len() / 8 * KEPT_EIGHTHS {
                continue;
            }
            let block = if block.len() <= LARGE_VALUE {
                Block::Small(block)
            } else {
                // It replaces a larger value: the budget need not be checked.
                let Ok(LargeItem { block: mut item, value_offset }) =
                    bucket.new_large_item(cx, candidate.key_len, block.len())
                else {
                    continue;
                };
                item.window(value_offset..value_offset + block.len()).copy_from_slice(block);
                Block::Large(item)
            };
            // A compressed value that is not known to be JSON is never looked at again.
            let is_json = candidate.datatype & JSON != 0 || subdocument::check(value).is_ok();
            let datatype = if is_json { SNAPPY | JSON } else { SNAPPY };
            let mut locked = bucket.lock(cx, vb);
            if let Some(saved) = locked.put_compressed(candidate.hash, candidate.seqno, datatype, block) {
                (values, saved_bytes) = (values + 1, saved_bytes + saved);
            }
        }
        self.saved_bytes += saved_bytes;
        bucket.count(cx, Meter::CompressorValues, values);
        bucket.count(cx, Meter::CompressorSaved, saved_bytes);
        if tools.compressor.room() > ROOM_KEPT {
            tools.compressor = snappy::Compressor::default();
        }
    }
}
