//! The threads that execute requests that take long ([`sessions`]'s module `aside`).
//!
//! ```text
//!   dm:worker*  ── Job: session ──>  one line per client (user and address)  ── in turn ──>  dm:aside*
//!               <── Done: session, answers ──────────────────────────────────────────────────┘
//! ```
//! A job is one request. The lines are served in turn, and one job of each at a time: a client with a thousand
//! connections, or with a request of seconds, leaves the other threads to others. Logins have lines and a thread of
//! their own: data must not hold them up. A job whose connection has closed is dropped, and so are all when the node
//! stops.
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

/// Niceness of the executing threads: workers, which have many clients each, go first.
const NICE: i32 = 5;
/// So many clients' long requests are executed at the same time, on the smallest machine too.
const LONG_THREADS_MIN: usize = 4;
/// Index blocks that wait for a worker's batch to end are checked again after this time.
const RETIRED: Duration = Duration::from_millis(10);

/// Number of executing threads that a node with this many workers has for this.
pub(crate) const fn aside_threads(workers: usize) -> usize {
    let quarter = workers.div_ceil(4);
    let long = if quarter < LONG_THREADS_MIN { LONG_THREADS_MIN } else { quarter };
    long + 1
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

/// The jobs of one client.
struct Line {
    client: Client,
    waiting: VecDeque<Job>,
    is_running: bool,
}

/// The first line of which nothing is being executed is served next.
#[derive(Default)]
struct Lines(VecDeque<Line>);

impl Lines {
    fn push(&mut self, job: Job) {
        let client = client_of(&job);
        match self.0.iter_mut().find(|line| line.client == client) {
            Some(line) => line.waiting.push_back(job),
            None => self.0.push_back(Line { client, waiting: VecDeque::from([job]), is_running: false }),
        }
    }

    /// The next job whose connection is still there; [`Self::end`] must follow.
    fn pop(&mut self) -> Option<Job> {
        let mut index = 0;
        while let Some(line) = self.0.get_mut(index) {
            while line.waiting.front().is_some_and(|job| job.is_closed.load(Relaxed)) {
                line.waiting.pop_front();
            }
            if line.waiting.is_empty() && !line.is_running {
                self.0.remove(index);
            } else if line.waiting.is_empty() || line.is_running {
                index += 1;
            } else {
                let mut line = self.0.remove(index)?;
                let job = line.waiting.pop_front();
                line.is_running = true;
                self.0.push_back(line);
                return job;
            }
        }
        None
    }

    /// A job of this client is over.
    fn end(&mut self, client: &Client) {
        if let Some(line) = self.0.iter_mut().find(|line| line.client == *client) {
            line.is_running = false;
        }
    }

    /// Removes all jobs that wait.
    fn take_waiting(&mut self) -> Vec<Job> {
        self.0.iter_mut().flat_map(|line| std::mem::take(&mut line.waiting)).collect()
    }
}

fn client_of(job: &Job) -> Client {
    (job.session.peer.address, job.session.peer.user.clone())
}

/// Jobs of one kind.
#[derive(Default)]
struct Kind {
    lines: Mutex<Lines>,
    changed: Condvar,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Aside {
    long: Kind,
    logins: Kind,
    is_stopping: AtomicBool,
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
            let name = if index == 0 { "dm:login".to_owned() } else { format!("dm:aside{}", index - 1) };
            let thread = spawn(&name, move || {
                // Without it, long requests compete with short ones for the processor, as before.
                let _ = rustix::process::setpriority_process(None, NICE);
                let mut cx = NodeContext::new(node, first_thread + index);
                crate::clock::give(&mut cx);
                cx.keeps_alarms = true;
                let kind = if index == 0 { &this.logins } else { &this.long };
                this.run(kind, &mut cx, clock, &inboxes);
            })?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Queues a job.
    pub(crate) fn push(&self, job: Job) {
        let kind = if job.session.logs_in_next() { &self.logins } else { &self.long };
        let mut lines = kind.lines.lock();
        // The worker closes the connection.
        if !self.is_stopping.load(Relaxed) {
            lines.push(job);
            kind.changed.notify_one();
        }
    }

    fn run(&self, kind: &Kind, cx: &mut NodeContext, clock: Clock, inboxes: &[Arc<Inbox>]) {
        while let Some(job) = self.next(kind, cx) {
            cx.now = clock.now();
            cx.tend();
            let (client, thread) = (client_of(&job), job.thread);
            let done = execute(job, cx);
            kind.lines.lock().end(&client);
            if let Some(inbox) = inboxes.get(thread) {
                inbox.come_back(done);
            }
        }
    }

    /// The next job; sleeps until there is one. `None`: the node stops.
    fn next(&self, kind: &Kind, cx: &mut NodeContext) -> Option<Job> {
        let mut lines = kind.lines.lock();
        let mut has_rested = false;
        loop {
            if self.is_stopping.load(Relaxed) {
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
                kind.changed.wait_for(&mut lines, RETIRED);
            } else {
                kind.changed.wait(&mut lines);
            }
        }
    }

    /// Drops all jobs and waits for those that are being executed.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Relaxed);
        for kind in [&self.long, &self.logins] {
            let dropped = kind.lines.lock().take_waiting();
            drop(dropped);
            kind.changed.notify_all();
        }
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
