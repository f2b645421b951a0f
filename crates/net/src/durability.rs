//! The polling mode of SyncWrite deadlines: while the mode is on, a thread keeps visiting every vBucket.
//!
//! The event-driven mode has no such thread. The thread ends once the mode has changed and a worker is armed for every
//! remaining deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use kv::polling::{POLL_MS, poll};
use kv::{Node, NodeContext, TimeoutMode};
use parking_lot::Mutex;

use crate::clock::{Clock, mono_us};

/// Starts the thread when it is needed.
pub(crate) struct Poller {
    node: Arc<Node>,
    thread: usize,
    clock: Clock,
    stop: AtomicBool,
    running: Mutex<Option<JoinHandle<()>>>,
}

impl Poller {
    /// Creates the poller for the executing thread with this number.
    pub(crate) fn new(node: Arc<Node>, thread: usize, clock: Clock) -> Arc<Self> {
        Arc::new(Self { node, thread, clock, stop: AtomicBool::new(false), running: Mutex::new(None) })
    }

    /// Starts the thread if the mode requires it; called when the mode may have changed.
    pub(crate) fn look(self: &Arc<Self>) {
        self.node.timeout_mode_bell().answer();
        let mut running = self.running.lock();
        if self.node.timeout_mode() == TimeoutMode::EventDriven
            || self.stop.load(Relaxed)
            || running.is_some()
        {
            return;
        }
        let poller = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("dm:durability".into()).spawn(move || poller.run());
        match spawned {
            Ok(thread) => *running = Some(thread),
            Err(error) => {
                tracing::error!(%error, "no thread for durability_timeout_mode = \"polling\": it stays event-driven");
                self.node.set_timeout_mode(TimeoutMode::EventDriven);
            }
        }
    }

    fn run(&self) {
        let mut cx = NodeContext::new(Arc::clone(&self.node), self.thread);
        cx.clock_us = Some(mono_us);
        loop {
            cx.now = self.clock.now();
            let is_left = poll(&mut cx);
            cx.rest();
            let mut running = self.running.lock();
            let is_over = self.node.timeout_mode() == TimeoutMode::EventDriven && !is_left;
            if is_over || self.stop.load(Relaxed) {
                *running = None;
                return;
            }
            drop(running);
            std::thread::park_timeout(Duration::from_millis(POLL_MS));
        }
    }

    /// Stops the thread, if there is one, and waits for it.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Relaxed);
        let thread = self.running.lock().take();
        if let Some(thread) = thread {
            Thread::unpark(thread.thread());
            let _ = thread.join();
        }
    }
}
