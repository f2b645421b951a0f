//! The pager's thread: sleeps until something is due or the doorbell rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use kv::defragmenter::{Demand, Passed};
use kv::{Node, NodeContext};

use crate::clock::Clock;

/// Runs the pager until `stop`. The doorbell unparks this thread.
pub(crate) fn run(node: Arc<Node>, thread: usize, clock: Clock, stop: &AtomicBool) {
    let mut cx = NodeContext::new(node, thread);
    cx.clock_us = Some(crate::clock::mono_us);
    let (mut demand, mut compressor_demand) = (Demand::default(), Demand::default());
    while !stop.load(Relaxed) {
        cx.now = clock.now();
        let due_s = kv::pager::turn(&mut cx);
        let keeps = cx.keeps_blocks();
        if keeps {
            cx.rest();
            cx.rest();
        }
        let turn = kv::pager::defragment(&mut cx, &mut demand);
        if let Some(passed) = &turn.passed {
            log_passed(passed);
        }
        let compressor_rest_us = kv::pager::compress(&mut cx, &mut compressor_demand);
        let due = due_s.map(|due_s| {
            let now_ns = clock.now().unix_ns;
            Duration::from_nanos((u64::from(due_s) * 1_000_000_000).saturating_sub(now_ns))
        });
        // A ring meanwhile has left its token, so park returns at once.
        let rests_us = [turn.rest_us, compressor_rest_us].into_iter().flatten();
        match due.into_iter().chain(rests_us.map(Duration::from_micros)).min() {
            None => std::thread::park(),
            Some(wait) => std::thread::park_timeout(wait),
        }
    }
}

fn log_passed(passed: &Passed) {
    tracing::debug!(
        bucket = &*passed.bucket,
        items = passed.items,
        bytes = passed.bytes,
        freed_bytes = passed.freed_bytes,
        work_us = passed.work_us,
        recoverable_bytes = passed.recoverable_bytes,
        goes_on = passed.goes_on,
        "defragmented"
    );
}
