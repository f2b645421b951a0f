//! The threads that execute requests that take long ([`sessions`]'s module `aside`).
//!
//! ```text
//!   dm:worker*  ── Job: session ──>  one line per client (user and address)  ── in turn ──>  dm:aside*
//!               <── Done: session, answers ──────────────────────────────────────────────────┘
//! ```
//! A job is one request. The lines are served in turn, so a client with a thousand connections delays the long requests
//! of others by one of its own. A job whose connection has closed is dropped, and so are all when the node stops.
//!
//! Letters and alarms are the worker's: [`kv::ThreadContext::home`].

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use kv::{Alarms, Node, NodeContext};
use parking_lot::{Condvar, Mutex};
use sessions::{Output, Session};

use crate::clock::Clock;
use crate::server::{Inbox, spawn};

/// Index blocks that wait for a worker's batch to end are checked again after this time.
const RETIRED: Duration = Duration::from_millis(10);

/// Number of executing threads that a node with this many workers has for this.
pub(crate) const fn aside_threads(workers: usize) -> usize {
    workers.div_ceil(4)
}

/// A session whose next request takes long.
pub(crate) struct Job {
    pub(crate) session: Session,
    /// Its worker, and its connection there.
    pub(crate) thread: usize,
    pub(crate) connection: u32,
    /// Set once the connection has closed.
    pub(crate) is_closed: Arc<AtomicBool>,
    pub(crate) last_ticket: u64,
}

/// A session that comes back.
pub(crate) struct Done {
    pub(crate) session: Session,
    pub(crate) connection: u32,
    pub(crate) is_closed: Arc<AtomicBool>,
    pub(crate) answers: Output,
    pub(crate) alarms: Alarms,
    pub(crate) last_ticket: u64,
}

/// Whose requests wait in one line.
type Client = (Option<IpAddr>, Option<Arc<str>>);

#[derive(Default)]
struct Lines {
    /// Those with jobs; the first is served next.
    lines: VecDeque<(Client, VecDeque<Job>)>,
    is_stopping: bool,
}

impl Lines {
    fn push(&mut self, job: Job) {
        let client = (job.session.peer.address, job.session.peer.user.clone());
        match self.lines.iter_mut().find(|(known, _)| *known == client) {
            Some((_, line)) => line.push_back(job),
            None => self.lines.push_back((client, VecDeque::from([job]))),
        }
    }

    /// The next job whose connection is still there.
    fn pop(&mut self) -> Option<Job> {
        while let Some((client, mut line)) = self.lines.pop_front() {
            let job = line.pop_front();
            if !line.is_empty() {
                self.lines.push_back((client, line));
            }
            if let Some(job) = job.filter(|job| !job.is_closed.load(Relaxed)) {
                return Some(job);
            }
        }
        None
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Aside {
    lines: Mutex<Lines>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Aside {
    /// Starts the [`aside_threads`] executing threads from `first_thread` on.
    pub(crate) fn start(
        self: &Arc<Self>,
        node: &Arc<Node>,
        clock: Clock,
        first_thread: usize,
        inboxes: &[Arc<Inbox>],
    ) -> io::Result<()> {
        for index in 0..aside_threads(inboxes.len()) {
            let (this, node, inboxes) = (Arc::clone(self), Arc::clone(node), inboxes.to_vec());
            let thread = spawn(&format!("dm:aside{index}"), move || {
                let mut cx = NodeContext::new(node, first_thread + index);
                crate::clock::give(&mut cx);
                cx.keeps_alarms = true;
                this.run(&mut cx, clock, &inboxes);
            })?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Queues a job.
    pub(crate) fn push(&self, job: Job) {
        let mut lines = self.lines.lock();
        // The worker closes the connection.
        if !lines.is_stopping {
            lines.push(job);
            self.changed.notify_one();
        }
    }

    fn run(&self, cx: &mut NodeContext, clock: Clock, inboxes: &[Arc<Inbox>]) {
        while let Some(job) = self.next(cx) {
            cx.now = clock.now();
            cx.tend();
            let Some(inbox) = inboxes.get(job.thread) else { continue };
            inbox.come_back(execute(job, cx));
        }
    }

    /// The next job; sleeps until there is one. `None`: the node stops.
    fn next(&self, cx: &mut NodeContext) -> Option<Job> {
        let mut lines = self.lines.lock();
        let mut has_rested = false;
        loop {
            if lines.is_stopping {
                return None;
            }
            if let Some(job) = lines.pop() {
                return Some(job);
            }
            if !has_rested {
                // The first call only notes what has been used until then.
                parking_lot::MutexGuard::unlocked(&mut lines, || {
                    cx.rest();
                    cx.rest();
                });
                has_rested = true;
            } else if cx.end_batch() {
                self.changed.wait_for(&mut lines, RETIRED);
            } else {
                self.changed.wait(&mut lines);
            }
        }
    }

    /// Drops all jobs and waits for those that are being executed.
    pub(crate) fn stop(&self) {
        let dropped = {
            let mut lines = self.lines.lock();
            lines.is_stopping = true;
            std::mem::take(&mut lines.lines)
        };
        drop(dropped);
        self.changed.notify_all();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

fn execute(job: Job, cx: &mut NodeContext) -> Done {
    let Job { mut session, thread, connection, is_closed, last_ticket } = job;
    cx.home = thread;
    cx.skip_tickets(last_ticket);
    let mut answers = Output::default();
    session.execute_aside(cx, &mut answers);
    cx.end_batch();
    let (alarms, last_ticket) = (cx.take_alarms(), cx.last_ticket());
    Done { session, connection, is_closed, answers, alarms, last_ticket }
}
