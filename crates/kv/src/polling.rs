//! Durable writes in polling mode: every vBucket is visited again and again for its deadlines.

use crate::{NodeContext, VbId};

/// In polling mode every vBucket is visited so often.
pub const POLL_MS: u64 = 25;

/// Visits every vBucket of every bucket, as the polling mode does every [`POLL_MS`]. Returns whether deadlines are left
/// that no thread is armed for: until then visits have to go on, whatever the mode is now.
pub fn poll(cx: &mut NodeContext) -> bool {
    let mut is_left = false;
    cx.tend();
    for bucket in cx.node.buckets() {
        for vb in 0..bucket.vbuckets() {
            let (mut is_due, now_us) = (false, cx.fresh_us());
            bucket.with_sync_writes(VbId(vb), |sync| {
                let next_us = sync.monitor.next_deadline_us();
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
