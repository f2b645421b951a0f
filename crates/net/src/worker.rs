//! A worker: one epoll loop over its connections.
//!
//! ```text
//!   wake-up ─> ready queue ─> round: collect  read connections into one buffer, parse, place and prefetch index lines,
//!                             │               until 64 requests or 64 KiB are collected
//!                             │      execute  in order, prefetching the items 16 requests ahead
//!                             │      send     once per connection
//!                             └─ until none is ready; then sleep
//!           └> alarms, letters: waiting answers are completed, and the requests behind them continue
//! ```
//! * A short read ends a connection's turn, so no read just returns "would block". A connection with more requests than
//!   fit a batch continues in the next batch of the same round until its turn's bounds are reached. If it has more to
//!   do then, it waits in a queue from which one connection is served between two polls for events: a peer with few
//!   requests waits for one long turn at most.
//! * A batch has few slow requests (those about no document, or about what is in one): as many as took a third of a
//!   millisecond lately.
//! * A connection whose last turn was much work is busy, and so is a new one. Busy connections are served after all
//!   others, and events are polled for meanwhile.
//! * A peer that does not read its answers is not read from once its backlog exceeds the limit, or its share of what
//!   all connections may still hold. It is dropped when it has taken nothing for a minute.
//!
//! [`turn`] covers everything up to the execution of requests, [`answers`] what happens to the answers, [`away`] what
//! is executed on another thread; [`recorder`] measures while somebody looks.

mod answers;
mod away;
mod deadlines;
mod recorder;
mod relief;
mod turn;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use kv::copier::Copier;
use kv::{Bucket, Cookie, Limits, Node, NodeContext, Outcome};
use mio::{Events, Interest, Poll, Token};
use sessions::couchbase::Link;
use sessions::{Output, Peer, Port, SLOW_REQUESTS, Session};

use answers::Segment;
pub(crate) use deadlines::Overdue;
use recorder::Recorder;
pub(crate) use relief::Charged;
use relief::{Holders, own_bytes};

use crate::clock::Clock;
use crate::connection::Connection;
use crate::links::Errand;
use crate::server::{Arrival, Inbox, Shared};
use crate::socket::{client_of, number};

const WAKE: Token = Token(usize::MAX);
const EVENTS: usize = 1024;
/// The receive buffer: with the send buffer it fits the second-level cache.
const BUFFER_BYTES: usize = 256 << 10;
/// Output of one connection that is sent before more of it is produced.
const SEND_BYTES: usize = 128 << 10;
/// An idle thread returns its cached blocks after this time.
const REST_MS: u64 = 5_000;
/// While stopping: a peer that takes none of its answers for this long is not waited for, nor are answers that take
/// this long.
const STOPPING_STUCK_MS: u64 = 500;
/// While stopping: how often to look for those.
const STOPPING_LOOK_MS: u64 = 100;
/// How long others are served before events are polled for again.
const READY_US: u64 = 1000;
/// How long busy connections are served before events are polled for again.
const BUSY_US: u64 = 300;
/// Index blocks that wait for another worker's batch to end are checked again after this time.
const RETIRED_MS: u64 = 10;

/// A queue of connections that have events.
#[derive(Clone, Copy)]
enum Queue {
    Ready,
    Busy,
}

pub(crate) struct Worker {
    poll: Poll,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    /// Connections with pending events.
    ready: VecDeque<u32>,
    /// Those of them that are busy.
    busy: VecDeque<u32>,
    /// Connections whose turn is over but that have more to do.
    later: VecDeque<u32>,
    cx: NodeContext,
    /// Unsent answers of this wake-up, grouped by connection.
    out: Output,
    /// The connections they belong to, in order; output after `cut` belongs to the connection being served.
    segments: Vec<Segment>,
    cut: usize,
    limits: Limits,
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    clock: Clock,
    thread: usize,
    /// Deadlines of connections, see [`deadlines`].
    deadlines: BTreeSet<(u64, u32)>,
    holders: Holders,
    recorder: Recorder,
    /// How many slow requests a batch may have.
    slow_most: usize,
    /// How much memory one peer may make the node hold, as of this round.
    allowance: usize,
    /// When to look again for peers that hold much memory and make no progress.
    relief_at_ms: Option<u64>,
    relief_looked_ms: u64,
    rest_at_ms: Option<u64>,
    stop_at_ms: Option<u64>,
    retired: bool,
    /// The bell has rung, so there may be letters.
    rung: bool,
    /// As of when sessions of deleted buckets were looked for.
    map_revision: u64,
    /// Kept for its capacity.
    letters: Vec<(Cookie, Outcome)>,
    /// Letters to sessions that are elsewhere.
    kept_letters: Vec<(Cookie, Outcome)>,
}

impl Worker {
    pub(crate) const fn wake_token() -> Token {
        WAKE
    }

    pub(crate) fn new(
        poll: Poll,
        node: Arc<Node>,
        thread: usize,
        clock: Clock,
        inbox: Arc<Inbox>,
        shared: Arc<Shared>,
    ) -> Self {
        let limits = node.limits();
        let mut cx = NodeContext::new(node, thread);
        crate::clock::give(&mut cx);
        cx.keeps_alarms = true;
        cx.may_take_long = false;
        Self {
            poll,
            connections: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            busy: VecDeque::new(),
            later: VecDeque::new(),
            cx,
            out: Output::with_capacity(BUFFER_BYTES),
            segments: Vec::new(),
            cut: 0,
            limits,
            inbox,
            shared,
            clock,
            thread,
            deadlines: BTreeSet::new(),
            holders: Holders::default(),
            recorder: Recorder::default(),
            slow_most: SLOW_REQUESTS,
            allowance: 0,
            relief_at_ms: None,
            relief_looked_ms: 0,
            rest_at_ms: None,
            stop_at_ms: None,
            retired: false,
            rung: false,
            map_revision: 0,
            letters: Vec::new(),
            kept_letters: Vec::new(),
        }
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0u8; BUFFER_BYTES].into_boxed_slice();
        self.cx.node.note_read_buffer(buffer.len());
        loop {
            let has_work = self.has_ready() || !self.later.is_empty() || self.cx.has_letters();
            let timeout = if has_work { Some(Duration::ZERO) } else { self.sleep() };
            self.cx.node.turns().end(self.thread);
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "a worker cannot wait for events and ends");
                    return;
                }
            }
            self.cx.now = self.clock.now();
            self.cx.node.turns().begin(self.thread, self.cx.now.mono_us);
            self.recorder.begin(&self.cx);
            for event in &events {
                self.note(event);
            }
            if self.cx.next_alarm_us().is_some_and(|at_us| at_us <= self.cx.now.mono_us) {
                self.cx.ring_alarms();
            }
            if self.rung || self.cx.has_letters() {
                self.deliver();
            }
            self.serve(&mut buffer);
            // One connection with much to do, then again those with events.
            if let Some(id) = self.take_later() {
                self.send_all();
                self.ready.push_back(id);
                self.round(&mut buffer, Queue::Ready);
            }
            if self.cx.has_letters() {
                self.deliver();
            }
            self.send_all();
            if self.duties() {
                return;
            }
        }
    }

    /// Serves the connections that have events, the busy ones last; not all of either kind if that takes long.
    fn serve(&mut self, buffer: &mut [u8]) {
        while !self.ready.is_empty() && !self.shared.stopping.load(Relaxed) {
            self.round(buffer, Queue::Ready);
            if !self.ready.is_empty() && self.cx.fresh_us() >= self.cx.now.mono_us + READY_US {
                break;
            }
        }
        if self.busy.is_empty() {
            return;
        }
        self.send_all();
        let until_us = self.cx.fresh_us() + BUSY_US;
        while !self.busy.is_empty() && !self.shared.stopping.load(Relaxed) {
            self.round(buffer, Queue::Busy);
            if self.cx.fresh_us() >= until_us {
                break;
            }
        }
    }

    fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.busy.is_empty()
    }

    /// How long to sleep: forever, unless something is armed.
    fn sleep(&self) -> Option<Duration> {
        let now_ms = self.cx.now.mono_ms();
        let retired_ms = self.retired.then_some(now_ms + RETIRED_MS);
        let stop_ms = self.stop_at_ms.map(|at_ms| at_ms.min(now_ms + STOPPING_LOOK_MS));
        let due = [self.next_deadline_ms(), self.relief_at_ms, self.rest_at_ms, stop_ms, retired_ms];
        let next_ms = due.into_iter().flatten().min();
        // One millisecond late is better than slightly early, which would wake twice.
        let next = next_ms.map(|next_ms| Duration::from_millis(next_ms.saturating_sub(now_ms) + 1));
        // Clients wait for these, so count from the current time, not from the wake-up's.
        let alarm_us = self.cx.next_alarm_us().map(|at_us| at_us.saturating_sub(self.cx.fresh_us()));
        let alarm = alarm_us.map(Duration::from_micros);
        [next, alarm].into_iter().flatten().min()
    }

    fn note(&mut self, event: &mio::event::Event) {
        if event.token() == WAKE {
            self.rung = true;
            self.cx.node.changed_bell().answer();
            self.limits = self.cx.node.limits();
            self.take_arrivals();
            self.take_back();
            self.leave_deleted_buckets();
            self.make_room();
            return;
        }
        let Ok(id) = u32::try_from(event.token().0) else { return };
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        connection.closed_by_peer |= event.is_read_closed() || event.is_error();
        if connection.readable || connection.unparsed || connection.backlog.is_some() {
            self.make_ready(id);
        }
    }

    /// Disconnects the sessions of deleted buckets: a client that reconnects finds a bucket that was created under the
    /// same name.
    fn leave_deleted_buckets(&mut self) {
        let map_revision = self.cx.node.map_revision();
        if map_revision == std::mem::replace(&mut self.map_revision, map_revision) {
            return;
        }
        for id in 0..u32::try_from(self.connections.len()).unwrap_or(u32::MAX) {
            let Some(Some(connection)) = self.connections.get_mut(id as usize) else { continue };
            let session = &mut connection.session;
            // One that watches gets its last lines in a letter, and ends with that.
            if session.has_lost_bucket() && !session.is_watching() {
                session.peer.close = true;
                self.make_ready(id);
            }
        }
    }

    fn take_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *self.inbox.arrivals.lock());
        for Arrival { mut socket, address, greeting, errand } in arrivals {
            let id = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                u32::try_from(self.connections.len() - 1).unwrap_or(u32::MAX)
            });
            let interest = Interest::READABLE | Interest::WRITABLE;
            if let Err(error) = self.poll.registry().register(&mut socket, Token(id as usize), interest) {
                tracing::warn!(%error, "a connection cannot be watched and is dropped");
                self.free.push(id);
                self.forget_connection();
                continue;
            }
            let now_ms = self.cx.now.mono_ms();
            let client = Arc::new(client_of(&socket, address, &greeting.listener, now_ms));
            if greeting.port == Port::Memcached {
                self.cx.node.clients().add_client(Arc::clone(&client));
            }
            let bucket = greeting.bucket.as_deref().and_then(|name| self.cx.node.bucket(name));
            let peer = Peer {
                login_required: greeting.login_required,
                loopback: address.ip().to_canonical().is_loopback(),
                address: Some(address.ip()),
                end_point: socket.end_point(),
                connection: id,
                rules: greeting.rules,
                client: Some(Arc::clone(&client)),
                ..Peer::local(greeting.port, bucket, greeting.value_limit)
            };
            if peer.port == Port::Memcached
                && let Some(bucket) = &peer.bucket
            {
                bucket.report_connection(&mut self.cx, &client, None);
            }
            let own_bytes = own_bytes(&socket);
            let session = match errand {
                None => Session::new(peer, &self.limits),
                Some(errand) => match self.begin_link(peer, errand) {
                    Some(session) => session,
                    // Another connection does it already, or it has become needless.
                    None => {
                        self.free.push(id);
                        self.forget_connection();
                        continue;
                    }
                },
            };
            let connection = Connection::new(socket, session, now_ms);
            self.connections[id as usize] = Some(Box::new(connection));
            self.cx.node.client_memory().change(0, own_bytes, self.cx.node.doorbell());
            self.arm(id);
            let has_work = |connection: &Connection| connection.readable || connection.session.has_to_send();
            if matches!(self.connections.get(id as usize), Some(Some(connection)) if has_work(connection)) {
                self.make_ready(id);
            }
        }
    }

    /// Begins to copy from another node.
    fn begin_link(&mut self, peer: Peer, errand: Errand) -> Option<Session> {
        let Errand { bucket, peer: node } = errand;
        let thread = u16::try_from(self.thread).unwrap_or(u16::MAX);
        let cookie = Cookie { thread, connection: peer.connection, ticket: self.cx.ticket() };
        let copier = Copier::begin(&bucket, &node, cookie, &self.cx)?;
        let link = Link::new(copier, peer.end_point.clone(), &self.cx);
        Some(Session::of_link(Peer { bucket: Some(bucket), ..peer }, &self.limits, link))
    }

    fn forget_connection(&self) {
        self.inbox.connections.fetch_sub(1, Relaxed);
        self.cx.node.connection_closed();
        self.shared.connection_closed();
    }

    /// Queues a connection that has events.
    fn make_ready(&mut self, id: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(id as usize)
            && !connection.queued
        {
            connection.queued = true;
            let queue = if connection.is_busy { &mut self.busy } else { &mut self.ready };
            queue.push_back(id);
        }
    }

    /// Queues a connection that has had its turn and has more to do.
    fn make_later(&mut self, id: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(id as usize)
            && !connection.queued
        {
            connection.queued = true;
            self.later.push_back(id);
        }
    }

    /// The next connection that has more to do. The number of one that was closed meanwhile may still be queued.
    fn take_later(&mut self) -> Option<u32> {
        loop {
            let id = self.later.pop_front()?;
            if matches!(self.connections.get(id as usize), Some(Some(connection)) if connection.queued) {
                return Some(id);
            }
        }
    }

    /// Returns true if a connection has more to do after its turn. Closes it if it is at its end.
    fn goes_on(&mut self, id: u32) -> bool {
        self.send_aside(id);
        self.charge(id);
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return false };
        let has_messages = connection.backlog.is_none() && connection.session.has_to_send();
        let has_more = connection.unparsed || connection.readable || has_messages;
        // A peer with more unsent output than this is not read from.
        let is_held_up = connection.unsent() > self.limits.output_backlog_bytes.min(self.allowance);
        let session = &mut connection.session;
        let is_over = session.peer.close || connection.ended && !has_more;
        let goes_on = has_more && !is_over && !session.is_stalled() && !is_held_up;
        if is_over && !session.has_waits() {
            session.peer.close = true;
            self.send_all();
            if matches!(self.connections.get(id as usize), Some(Some(c)) if c.backlog.is_none()) {
                self.close(id);
            }
        }
        self.arm(id);
        goes_on
    }

    /// Closes a connection that has come to its end: its peer's side is closed, the client or the session ended it, or
    /// the node stops.
    fn close(&mut self, id: u32) {
        let Some(Some(connection)) = self.connections.get(id as usize) else { return };
        let reason = if connection.ended || connection.closed_by_peer || connection.session.peer.has_quit {
            "normal"
        } else if self.shared.stopping.load(Relaxed) {
            "shutdown"
        } else {
            "error"
        };
        self.close_because(id, reason);
    }

    /// `reason` is reported to watchers, in memcached's words.
    fn close_because(&mut self, id: u32, reason: &str) {
        let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::take) else { return };
        let mut connection = *connection;
        connection.session.close_link(&mut self.cx);
        if let Some(is_closed) = &connection.away {
            is_closed.store(true, Relaxed);
            self.kept_letters.retain(|(cookie, _)| cookie.connection != id);
        }
        if connection.ended || connection.closed_by_peer {
            connection.session.note_end(|| "it closes the connection before anything is copied".to_owned());
        }
        let peer = &connection.session.peer;
        if let (Some((node, why)), Some(bucket)) = (connection.session.link_failure(), &peer.bucket)
            && bucket.note_trouble(node, why)
        {
            tracing::warn!(node, why, bucket = bucket.name(), "stopped copying from a node");
        }
        tracing::debug!(
            connection = id,
            address = ?peer.client.as_ref().and_then(|client| client.address()),
            user = peer.user.as_deref(),
            bucket = peer.bucket.as_deref().map(Bucket::name),
            by = if connection.ended || connection.closed_by_peer { "the peer" } else { "this node" },
            reason,
            lost_bucket = connection.session.has_lost_bucket(),
            "closed a connection"
        );
        let charged = connection.charged();
        connection.discharge();
        self.count_change(id, charged, Charged::default());
        if let Some(alarm_ms) = connection.alarm_ms {
            self.deadlines.remove(&(alarm_ms, id));
        }
        if self.recorder.has_waiting() {
            self.recorder.forget(id);
        }
        let own_bytes = own_bytes(&connection.socket);
        self.cx.node.client_memory().change(0, -own_bytes, self.cx.node.doorbell());
        if connection.session.peer.port == Port::Memcached {
            let peer = &connection.session.peer;
            if let (Some(bucket), Some(client)) = (&peer.bucket, &peer.client) {
                bucket.report_connection(&mut self.cx, client, Some(reason));
            }
            // Before the descriptor can be reused.
            self.cx.node.clients().remove(number(&connection.socket));
        }
        let _ = self.poll.registry().deregister(&mut connection.socket);
        drop(connection);
        self.free.push(id);
        self.forget_connection();
    }

    /// Does what is due after the ready connections were served. Returns true if the worker must end.
    fn duties(&mut self) -> bool {
        let now_ms = self.cx.now.mono_ms();
        self.cx.tend();
        if self.shared.stopping.load(Acquire) {
            return self.drain(now_ms);
        }
        if self.next_deadline_ms().is_some_and(|at_ms| at_ms <= now_ms) {
            self.close_overdue(now_ms);
        }
        self.relieve();
        if self.retired {
            self.retired = self.cx.end_batch();
        }
        match self.rest_at_ms {
            None if self.cx.keeps_blocks() => self.rest_at_ms = Some(now_ms + REST_MS),
            Some(at_ms) if at_ms <= now_ms => {
                self.rest_at_ms = self.cx.rest_for_long().then_some(now_ms + REST_MS)
            }
            _ => {}
        }
        false
    }

    /// While stopping: closes connections without unsent output now, the others once it is sent, their peer takes
    /// nothing of it, or the grace period is over.
    fn drain(&mut self, now_ms: u64) -> bool {
        let grace_ms = self.shared.grace_ms.load(Relaxed);
        let stop_at_ms = *self.stop_at_ms.get_or_insert(now_ms.saturating_add(grace_ms));
        let since_ms = stop_at_ms.saturating_sub(grace_ms);
        self.take_arrivals();
        let is_over = |connection: &Connection| match &connection.backlog {
            Some(backlog) => now_ms >= backlog.progress_ms.max(since_ms) + STOPPING_STUCK_MS,
            // The requests of a session that is elsewhere are dropped. What waits may wait for something that does not
            // come.
            None => {
                let is_late = now_ms >= since_ms + STOPPING_STUCK_MS;
                !connection.session.has_waits() || connection.away.is_some() || is_late
            }
        };
        for id in 0..u32::try_from(self.connections.len()).unwrap_or(u32::MAX) {
            let connection = self.connections.get(id as usize).and_then(Option::as_ref);
            if connection.is_some_and(|connection| now_ms >= stop_at_ms || is_over(connection)) {
                self.close(id);
            }
        }
        self.free.len() == self.connections.len()
    }
}
