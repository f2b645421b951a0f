//! The background duties of all buckets: delayed flushes, reclaiming of flushed and expired items and those of dropped
//! collections, the memory budget.
//!
//! The caller owns the thread: it calls [`turn`], then sleeps until the deadline that it returns (for ever if there
//! is none), or until the doorbell rings. Nothing is checked while nothing is armed.

use crate::defragmenter::{Demand, Turn};
use crate::{NodeContext, compressor, defragmenter};

/// Does everything that is due. Returns the wall-clock second at which something is due next.
pub fn turn(cx: &mut NodeContext) -> Option<u32> {
    cx.node.doorbell().answer();
    cx.tend();
    // As of the last measurement: a bucket that fills is measured often.
    cx.node.client_memory().note_shared(memory::backend::shared_bytes() as u64, cx.node.doorbell());
    if cx.node.client_memory().take_fall() {
        memory::backend::purge_shared();
    }
    let mut next: Option<u32> = None;
    let mut arm = |due_s: u32| next = Some(next.map_or(due_s, |next| next.min(due_s)));
    for bucket in cx.node.buckets() {
        bucket.flush_when_due(cx);
        if bucket.take_flushed() {
            bucket.reclaim_flushed(cx);
        }
        if bucket.take_dropped() {
            bucket.reclaim_dropped(cx);
        }
        if bucket.expiry_due_s().is_some_and(|due_s| due_s <= cx.now.unix_s) {
            bucket.reclaim_expired(cx);
        }
        bucket.end_old_scans(cx.now.unix_s);
        let streams_due_s = bucket.tend_streams(cx);
        bucket.keep_within_budget(cx);
        if bucket.tenant().take_rested() {
            bucket.purge_at_rest();
        }
        let due = [bucket.flush_due_s(), bucket.expiry_due_s(), bucket.scans_due_s(), streams_due_s];
        due.into_iter().flatten().for_each(&mut arm);
    }
    let buckets = cx.node.buckets();
    let purges = buckets.iter().filter_map(|bucket| bucket.purge_when_due(cx)).min();
    match purges {
        Some(due_s) => arm(due_s),
        None => {
            cx.hub.end_purge();
            // Requested since the check above: nobody has rung for that.
            if buckets.iter().any(|bucket| bucket.tenant().wants_purge()) {
                cx.hub.ask_for_purge();
            }
        }
    }
    cx.end_batch();
    next
}

/// Runs a turn of the defragmenter: some work, if there is any.
pub fn defragment(cx: &mut NodeContext, demand: &mut Demand) -> Turn {
    let buckets = cx.node.buckets();
    defragmenter::turn(&buckets, cx, demand)
}

/// Runs a turn of the compressor: some work, if there is any. Returns the microseconds until the next one.
pub fn compress(cx: &mut NodeContext, demand: &mut Demand) -> Option<u64> {
    let buckets = cx.node.buckets();
    compressor::turn(&buckets, cx, demand)
}
