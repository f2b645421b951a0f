//! The pager's thread: sleeps until something is due or the doorbell rings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use kv::{Cx, Node};

use crate::clock::Clock;

/// Runs the pager until `stop`. The doorbell unparks this thread.
pub(crate) fn run(node: Arc<Node>, thread: usize, clock: Clock, stop: &AtomicBool) {
    let mut cx = Cx::new(node, thread);
    while !stop.load(Relaxed) {
        cx.now = clock.now();
        let due_s = kv::pager::turn(&mut cx);
        let keeps = cx.keeps_blocks();
        if keeps {
            cx.rest();
            cx.rest();
        }
        match due_s {
            // A doorbell rung meanwhile has left its token: park returns at once.
            None => std::thread::park(),
            Some(due_s) => {
                let now_ns = clock.now().unix_ns;
                let wait_ns = (u64::from(due_s) * 1_000_000_000).saturating_sub(now_ns);
                std::thread::park_timeout(Duration::from_nanos(wait_ns));
            }
        }
    }
}
