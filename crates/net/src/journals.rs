//! The threads of persistent buckets. A node without such buckets has none of them.
//!
//! ```text
//!   dm:flusher0, dm:flusher1   write dirty documents; parked while there are none
//!   dm:fetcher0, dm:fetcher1   read requested ejected values; parked while there are none
//!   dm:reader                  reads journals for streams of changes; parked while none wants it
//!   dm:warmup0..N              read journals after a start, one per worker; end when everything is read
//! ```
//! Each is started by the first ring of its bell.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use journal::log::Buffer;
use kv::persistence::{
    FETCHERS, FLUSHERS, Fetcher, Flusher, PieceReader, Trouble, load_next, waits_for_load,
};
use kv::{Bucket, Node, NodeContext};
use parking_lot::Mutex;

use crate::clock::Clock;

/// Number of executing threads of persistent buckets in a node with this many workers.
pub(crate) const fn journal_threads(workers: usize) -> usize {
    FLUSHERS + FETCHERS + READERS + workers
}

const READERS: usize = 1;
/// Who reads for streams gives way to clients: a stream from the beginning keeps it busy for long.
const READER_NICE: i32 = 5;

/// Time between two log lines about a warm-up.
const PROGRESS_MS: u64 = 3000;

/// All threads of persistent buckets.
pub(crate) struct Journals {
    node: Arc<Node>,
    clock: Clock,
    /// Number of the first executing thread.
    first_thread: usize,
    flushers: Vec<Arc<Parked>>,
    fetchers: Vec<Arc<Parked>>,
    reader: Arc<Parked>,
    warm_up: Arc<WarmUp>,
}

impl Journals {
    /// Uses the [`journal_threads`] executing threads from `first_thread` on.
    pub(crate) fn new(node: &Arc<Node>, clock: Clock, first_thread: usize, workers: usize) -> Self {
        let flushers = (0..FLUSHERS).map(|index| {
            let (name, thread) = (format!("dm:flusher{index}"), first_thread + index);
            let parked = Parked::new(name, node, thread, clock, Duty::Flush(index));
            let rung = Arc::clone(&parked);
            node.flusher_bell(index).connect(Box::new(move || rung.wake()));
            parked
        });
        let flushers = flushers.collect();
        let first_fetcher = first_thread + FLUSHERS;
        let fetchers = (0..FETCHERS).map(|index| {
            let (name, thread) = (format!("dm:fetcher{index}"), first_fetcher + index);
            let parked = Parked::new(name, node, thread, clock, Duty::Fetch(index));
            let rung = Arc::clone(&parked);
            node.fetcher_bell(index).connect(Box::new(move || rung.wake()));
            parked
        });
        let fetchers = fetchers.collect();
        let first_reader = first_fetcher + FETCHERS;
        let reader = Parked::new("dm:reader".to_owned(), node, first_reader, clock, Duty::Read);
        let rung = Arc::clone(&reader);
        node.piece_bell().connect(Box::new(move || rung.wake()));
        let warm_up = Arc::new(WarmUp {
            node: Arc::clone(node),
            clock,
            first_thread: first_reader + READERS,
            stop: AtomicBool::new(false),
            running: Mutex::new((0..workers).map(|_| None).collect()),
            logged_ms: Mutex::new(clock.now().mono_ms()),
        });
        let rung = Arc::clone(&warm_up);
        node.warm_up_bell().connect(Box::new(move || rung.look()));
        Self { node: Arc::clone(node), clock, first_thread, flushers, fetchers, reader, warm_up }
    }

    /// Stops the threads and waits for them. Nothing is written after that.
    pub(crate) fn stop(&self) {
        self.warm_up.stop();
        for parked in self.fetchers.iter().chain(&self.flushers).chain([&self.reader]) {
            parked.stop();
        }
    }

    /// Call it after [`Self::stop`]. Writes what is left and marks the journals as cleanly closed. Returns false if
    /// something could not be written.
    pub(crate) fn close(&self) -> bool {
        let mut cx = NodeContext::new(Arc::clone(&self.node), self.first_thread);
        let mut flusher = Flusher::new(0, Buffer::BYTES);
        let mut all_written = true;
        for bucket in self.node.buckets().iter().filter(|bucket| bucket.persistence().is_some()) {
            cx.now = self.clock.now();
            let waiting = bucket.persistence_figures(&mut cx).map_or(0, |figures| figures.unflushed_items);
            match kv::persistence::close_journal(bucket, &mut cx, &mut flusher) {
                Ok(()) => tracing::info!(bucket = bucket.name(), items = waiting, "written and closed"),
                Err(error) => {
                    all_written = false;
                    tracing::error!(
                        bucket = bucket.name(),
                        items = waiting,
                        "NOT written at the end, and lost: {error}"
                    );
                }
            }
        }
        all_written
    }
}

/// What a parked thread is for.
#[derive(Clone, Copy)]
enum Duty {
    Flush(usize),
    Fetch(usize),
    Read,
}

impl Duty {
    fn worker(self) -> Worker {
        match self {
            Self::Flush(index) => Worker::Flusher(Flusher::new(index, Buffer::BYTES)),
            Self::Fetch(index) => Worker::Fetcher(Fetcher::new(index)),
            Self::Read => Worker::Reader(PieceReader::default()),
        }
    }
}

/// The engine's object that does it.
enum Worker {
    Flusher(Flusher),
    Fetcher(Fetcher),
    Reader(PieceReader),
}

impl Worker {
    /// Does the pending work. Returns when there will be more even if no bell rings, in ms of the monotonic clock.
    fn turn(&mut self, cx: &mut NodeContext, clock: Clock) -> Option<u64> {
        match self {
            Self::Flusher(flusher) => {
                let due_ms = flusher.turn(cx, &mut || clock.now());
                log_troubles(&cx.node);
                due_ms
            }
            Self::Fetcher(fetcher) => fetcher.turn(cx, &mut || clock.now()),
            Self::Reader(reader) => {
                let due_ms = reader.turn(cx, &mut || clock.now());
                log_troubles(&cx.node);
                due_ms
            }
        }
    }
}

/// A thread that sleeps until its bell rings; the first ring starts it.
struct Parked {
    name: String,
    node: Arc<Node>,
    number: usize,
    clock: Clock,
    duty: Duty,
    stop: AtomicBool,
    thread: OnceLock<Thread>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Parked {
    fn new(name: String, node: &Arc<Node>, number: usize, clock: Clock, duty: Duty) -> Arc<Self> {
        let (node, stop) = (Arc::clone(node), AtomicBool::new(false));
        let (thread, handle) = (OnceLock::new(), Mutex::new(None));
        Arc::new(Self { name, node, number, clock, duty, stop, thread, handle })
    }

    fn wake(self: &Arc<Self>) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
            return;
        }
        let mut handle = self.handle.lock();
        if let Some(spawned) = &*handle {
            // Another thread has started it meanwhile, and it may already have looked for work.
            spawned.thread().unpark();
            return;
        }
        if self.stop.load(Relaxed) {
            return;
        }
        let parked = Arc::clone(self);
        match std::thread::Builder::new().name(self.name.clone()).spawn(move || parked.run()) {
            Ok(spawned) => {
                let _ = self.thread.set(spawned.thread().clone());
                *handle = Some(spawned);
            }
            Err(error) => {
                tracing::error!(%error, "no thread {}: persistent buckets are stalled", self.name);
                match self.duty {
                    Duty::Flush(index) => self.node.flusher_not_started(index),
                    Duty::Fetch(index) => self.node.fetcher_bell(index).answer(),
                    Duty::Read => self.node.piece_bell().answer(),
                }
            }
        }
    }

    fn run(&self) {
        let mut cx = NodeContext::new(Arc::clone(&self.node), self.number);
        let mut worker = self.duty.worker();
        if matches!(self.duty, Duty::Read) {
            // Best effort. Of this thread alone, as Linux does it.
            let _ = rustix::process::setpriority_process(None, READER_NICE);
        }
        while !self.stop.load(Relaxed) {
            let due_ms = worker.turn(&mut cx, self.clock);
            if due_ms.is_none() && cx.keeps_blocks() {
                cx.rest();
                match self.duty {
                    // It has been idle for seconds.
                    Duty::Flush(_) => cx.rest_for_long(),
                    Duty::Fetch(_) | Duty::Read => cx.rest(),
                };
            }
            match due_ms {
                // A ring meanwhile has left its token, so park returns at once.
                None => std::thread::park(),
                Some(due_ms) => {
                    let wait_ms = due_ms.saturating_sub(self.clock.now().mono_ms());
                    std::thread::park_timeout(Duration::from_millis(wait_ms));
                }
            }
        }
    }

    fn stop(&self) {
        let handle = {
            let mut handle = self.handle.lock();
            self.stop.store(true, Relaxed);
            handle.take()
        };
        if let Some(handle) = handle {
            handle.thread().unpark();
            let _ = handle.join();
        }
    }
}

/// The threads that read journals.
struct WarmUp {
    node: Arc<Node>,
    clock: Clock,
    first_thread: usize,
    stop: AtomicBool,
    /// One entry per thread; empty while there is nothing to read.
    running: Mutex<Vec<Option<JoinHandle<()>>>>,
    /// When progress was last logged.
    logged_ms: Mutex<u64>,
}

impl WarmUp {
    /// Starts the threads if there may be something to read.
    fn look(self: &Arc<Self>) {
        self.node.warm_up_bell().answer();
        log_troubles(&self.node);
        let mut running = self.running.lock();
        if self.stop.load(Relaxed) || !waits_for_load(&self.node) {
            return;
        }
        for (index, place) in running.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
            let warm_up = Arc::clone(self);
            let name = format!("dm:warmup{index}");
            match std::thread::Builder::new().name(name).spawn(move || warm_up.run(index)) {
                Ok(thread) => *place = Some(thread),
                Err(error) => tracing::error!(%error, "no thread to read journals"),
            }
        }
    }

    fn run(&self, index: usize) {
        let started_ms = self.clock.now().mono_ms();
        let mut cx = NodeContext::new(Arc::clone(&self.node), self.first_thread + index);
        let mut buffer = Buffer::default();
        loop {
            cx.now = self.clock.now();
            cx.tend();
            let has_read = !self.stop.load(Relaxed) && load_next(&mut cx, &mut buffer);
            log_troubles(&self.node);
            if has_read {
                self.log_progress(started_ms);
                continue;
            }
            // Must precede the reuse of this thread's number.
            cx.end_batch();
            cx.rest();
            cx.rest();
            let mut running = self.running.lock();
            if !self.stop.load(Relaxed) && waits_for_load(&self.node) {
                continue;
            }
            if let Some(place) = running.get_mut(index) {
                *place = None;
            }
            break;
        }
    }

    fn log_progress(&self, started_ms: u64) {
        let now_ms = self.clock.now().mono_ms();
        let is_due = {
            let mut logged_ms = self.logged_ms.lock();
            let is_due = *logged_ms + PROGRESS_MS <= now_ms;
            if is_due {
                *logged_ms = now_ms;
            }
            is_due
        };
        for bucket in self.node.buckets() {
            let Some(persistence) = bucket.persistence() else { continue };
            let figures = persistence.warm_up();
            let (name, seconds) = (bucket.name(), (now_ms - started_ms) / 1000);
            if !figures.is_running() && persistence.report_warm_once() {
                let damaged = figures.vbuckets - figures.vbuckets_done;
                tracing::info!(bucket = name, records = figures.records, damaged, seconds, "warmed up");
                if bucket.undecided() > 0 {
                    tracing::warn!(
                        bucket = name,
                        vbuckets = bucket.undecided(),
                        "were active with replicas, and may have lost their last changes: they are pending, until \
                        it is said who is active"
                    );
                }
            } else if is_due && figures.is_running() {
                tracing::info!(
                    bucket = name,
                    "warming up: {} of {} segments, {} of {} vBuckets, {} records, {seconds} s",
                    figures.segments_done,
                    figures.segments,
                    figures.vbuckets_done,
                    figures.vbuckets,
                    figures.records
                );
            }
        }
    }

    fn stop(&self) {
        let handles: Vec<_> = {
            let mut running = self.running.lock();
            self.stop.store(true, Relaxed);
            running.iter_mut().filter_map(Option::take).collect()
        };
        for handle in handles {
            let _ = handle.join();
        }
    }
}

fn log_troubles(node: &Node) {
    for bucket in node.buckets().iter().filter(|bucket| !bucket.is_gone()) {
        log_troubles_of(bucket);
    }
}

/// Logs the problems of a bucket's journal since the last call.
fn log_troubles_of(bucket: &Bucket) {
    let Some(persistence) = bucket.persistence() else { return };
    for trouble in persistence.take_troubles() {
        let name = bucket.name();
        match trouble {
            Trouble::Damage(damage) => {
                tracing::error!(bucket = name, file = %damage.path.display(), offset = damage.offset, "{damage}");
            }
            other => tracing::error!(bucket = name, "{other}"),
        }
    }
}

/// A node that has stopped serving; its buckets' unwritten changes are still in memory.
#[must_use = "otherwise unwritten changes are lost"]
pub struct Unwritten(pub(crate) Journals);

impl Unwritten {
    /// Writes what is left and marks the journals as cleanly closed. An error means that something was lost; the log
    /// says what.
    pub fn close(self) -> io::Result<()> {
        self.0.stop();
        if self.0.close() { Ok(()) } else { Err(io::Error::other("not everything was written; see the log")) }
    }
}
