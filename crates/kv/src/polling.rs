//! Durable writes in polling mode: every vBucket is visited periodically for its deadlines.

use crate::{NodeContext, VbId};

/// Interval of the visits to every vBucket in polling mode.
pub const POLL_MS: u64 = 25;

/// Visits every vBucket of every bucket, as the polling mode does every [`POLL_MS`]. Returns true if deadlines are left
/// that no thread is armed for: while there are, visits have to continue, whatever the mode is now.
pub fn poll(cx: &mut NodeContext) -> bool {
    let mut is_left = false;
    cx.tend();
    for bucket in cx.node.buckets() {
        for vb in 0..bucket.vbuckets() {
            let (mut is_due, now_us) = (false, cx.fresh_us());
            bucket.with_sync_writes(VbId(vb), |sync| {
                let next_us = sync.next_deadline_us();
                is_due = next_us.is_some_and(|next_us| next_us <= now_us);
                is_left |= next_us.is_some_and(|next_us| next_us < sync.armed_us);
            });
            if is_due {
                bucket.expire_sync_writes(cx, VbId(vb));
            }
        }
    }
    cx.end_batch();
    is_left
}
