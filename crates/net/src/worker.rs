//! A worker: one epoll loop over its connections.
//!
//! ```text
//!   wake-up ─> ready queue ─> round: collect  read connections into one buffer, parse, place and prefetch index lines,
//!                             │               until 64 requests or 64 KiB are together
//!                             │      execute  in order, prefetching the items 16 requests ahead
//!                             │      send     once per connection
//!                             └─ until nobody is ready; then sleep
//! ```
//! * A short read ends a connection's turn, so no read only returns "would block"; a filled buffer puts the connection back
//!   into the queue, behind the others. A connection with more requests than fit a batch goes on in the next batch of
//!   the same round until its turn's bounds are reached.
//! * A peer that does not read is not read from once its backlog passes the limit, and is dropped when it has taken nothing for
//!   a minute.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use arrayvec::ArrayVec;
use kv::session::{BATCH_REQUESTS, Batch, Output, Peer, Session};
use kv::{Bucket, Cx, Limits, Node};
use mio::{Events, Interest, Poll, Token};

use crate::backlog::{Backlog, Sent};
use crate::clock::Clock;
use crate::connection::Connection;
use crate::server::{Arrival, Inbox, Shared};

const WAKE: Token = Token(usize::MAX);
const EVENTS: usize = 1024;
/// The receive buffer: with the send buffer it fits the second-level cache.
const BUFFER_BYTES: usize = 256 << 10;
/// A round collects connections until so many bytes are together.
const COLLECT_BYTES: usize = 64 << 10;
/// Room a connection is read into at least, beside what is left of it.
const READ_LEAST: usize = 64 << 10;
/// Output of one connection that is sent before more of it is produced.
const SEND_BYTES: usize = 128 << 10;
/// Bytes of a large value read per turn.
const SINK_TURN_BYTES: usize = 256 << 10;
/// An idle thread gives the blocks it keeps back after so long.
const REST_MS: u64 = 5_000;
/// Index blocks that wait for another worker's batch to end are looked at again after so long.
const RETIRED_MS: u64 = 10;

pub(crate) struct Worker {
    poll: Poll,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    ready: VecDeque<u32>,
    cx: Cx,
    /// Answers of this wake-up that are not sent yet, one connection's behind another's.
    out: Output,
    /// Whose they are, in order; what lies behind `cut` belongs to the connection being served.
    segments: Vec<Segment>,
    cut: usize,
    limits: Limits,
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    clock: Clock,
    thread: usize,
    /// Connections with unsent output; some may have sent it since.
    blocked: Vec<u32>,
    rest_at_ms: Option<u64>,
    stop_at_ms: Option<u64>,
    retired: bool,
}

/// Answers of one connection within the output.
struct Segment {
    id: u32,
    bytes: Range<usize>,
}

/// A connection taking part in a batch, with the input that was read for it.
struct Turn<'a> {
    id: u32,
    input: &'a [u8],
    /// Bytes of the input that are parsed.
    consumed: usize,
    /// There may be more requests in the input: the batch was full, or its last request had to be executed first.
    more: bool,
    /// Its requests in the batch.
    requests: Range<usize>,
    /// Requests of this turn in former batches.
    done: usize,
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
        let mut cx = Cx::new(node, thread);
        cx.clock_ns = Some(crate::clock::unix_ns);
        Self {
            poll,
            connections: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            cx,
            out: Output::with_capacity(BUFFER_BYTES),
            segments: Vec::new(),
            cut: 0,
            limits,
            inbox,
            shared,
            clock,
            thread,
            blocked: Vec::new(),
            rest_at_ms: None,
            stop_at_ms: None,
            retired: false,
        }
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0u8; BUFFER_BYTES].into_boxed_slice();
        loop {
            let timeout = if self.ready.is_empty() { self.sleep() } else { Some(Duration::ZERO) };
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "a worker cannot wait for events and ends");
                    return;
                }
            }
            self.cx.now = self.clock.now();
            for event in &events {
                self.note(event);
            }
            // Those that become ready meanwhile wait for the next look at the events.
            let mut waiting = self.ready.len();
            while waiting > 0 {
                waiting -= self.round(&mut buffer, waiting);
            }
            self.send_all();
            if self.duties() {
                return;
            }
        }
    }

    /// How long to sleep: for ever, unless something is armed.
    fn sleep(&self) -> Option<Duration> {
        let now_ms = self.cx.now.mono_ms;
        let stuck = self.blocked.iter().filter_map(|id| self.backlog_of(*id)).map(|b| b.progress_ms).min();
        let stuck_ms = stuck.map(|ms| ms + self.limits.stuck_peer_ms);
        let retired_ms = self.retired.then_some(now_ms + RETIRED_MS);
        let next = [stuck_ms, self.rest_at_ms, self.stop_at_ms, retired_ms].into_iter().flatten().min()?;
        // One millisecond late rather than a moment early and awake twice.
        Some(Duration::from_millis(next.saturating_sub(now_ms) + 1))
    }

    fn backlog_of(&self, id: u32) -> Option<&Backlog> {
        self.connections.get(id as usize)?.as_ref()?.backlog.as_deref()
    }

    fn note(&mut self, event: &mio::event::Event) {
        if event.token() == WAKE {
            self.cx.node.changed_bell().answer();
            self.take_arrivals();
            return;
        }
        let Ok(id) = u32::try_from(event.token().0) else { return };
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        connection.closed_by_peer |= event.is_read_closed() || event.is_error();
        if !connection.queued && (connection.readable || connection.backlog.is_some()) {
            connection.queued = true;
            self.ready.push_back(id);
        }
    }

    fn take_arrivals(&mut self) {
        let arrivals = std::mem::take(&mut *self.inbox.arrivals.lock());
        for Arrival { mut socket, address, greeting } in arrivals {
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
            let peer = Peer {
                port: greeting.port,
                login_required: greeting.login_required,
                user: None,
                loopback: address.ip().is_loopback(),
                bucket: greeting.bucket.as_deref().and_then(|name| self.cx.node.bucket(name)),
                value_limit: greeting.value_limit,
                close: false,
                couchbase: Default::default(),
            };
            let session = Session::new(peer, &self.limits);
            self.connections[id as usize] = Some(Box::new(Connection::new(socket, session)));
        }
    }

    fn forget_connection(&self) {
        self.inbox.connections.fetch_sub(1, Relaxed);
        self.cx.node.connection_closed();
        self.shared.connection_closed();
    }

    /// One round: collect connections, execute their requests, send; again while the last of them has more.
    /// Gives how many of the `first` connections in the queue it took out, at least one. Whoever comes back into the queue
    /// meanwhile waits: one peer with much to send must not be served over and over.
    fn round(&mut self, buffer: &mut [u8], first: usize) -> usize {
        let quiescence = Arc::clone(self.cx.node.quiescence());
        quiescence.enter(self.thread);
        let (mut space, mut collected) = (buffer, 0);
        let mut waiting = first;
        let mut carried: Option<Turn<'_>> = None;
        loop {
            let mut batch = Batch::new();
            let mut turns = ArrayVec::<Turn<'_>, BATCH_REQUESTS>::new();
            if let Some(turn) = carried.take() {
                turns.push(self.parse(turn, &mut batch));
            }
            while !batch.is_full()
                && !turns.is_full()
                && collected < COLLECT_BYTES
                && waiting > 0
                && let Some(id) = self.ready.pop_front()
            {
                waiting -= 1;
                let Some(used) = self.receive(id, space) else { continue };
                let (input, left) = std::mem::take(&mut space).split_at_mut(used);
                (space, collected) = (left, collected + used);
                let turn = Turn { id, input, consumed: 0, more: true, requests: 0..0, done: 0 };
                turns.push(self.parse(turn, &mut batch));
            }
            carried = self.execute(&mut batch, turns);
            if carried.is_none() {
                break;
            }
        }
        quiescence.leave(self.thread);
        self.retired = self.cx.end_batch();
        first - waiting
    }

    /// Reads a ready connection into `space`, behind what was left of it. Gives how much input there is; `None`: nothing
    /// to do with it now.
    fn receive(&mut self, id: u32, space: &mut [u8]) -> Option<usize> {
        let now_ms = self.cx.now.mono_ms;
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return None };
        connection.queued = false;
        if let Some(backlog) = &mut connection.backlog {
            match backlog.send(&mut connection.socket, now_ms) {
                Ok(Sent::All) => {
                    connection.backlog = None;
                    connection.charge();
                }
                Ok(Sent::TurnOver) => {
                    self.requeue(id);
                    return None;
                }
                Ok(Sent::Blocked) if backlog.len() > self.limits.output_backlog_bytes => return None,
                Ok(Sent::Blocked) => {}
                Err(_) => {
                    self.close(id);
                    return None;
                }
            }
        }
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return None };
        if connection.session.peer.close {
            if connection.backlog.is_none() {
                self.close(id);
            }
            return None;
        }
        if let Err(()) = fill_sink(connection) {
            self.close(id);
            return None;
        }
        if connection.session.sink().is_some() {
            if connection.readable {
                self.requeue(id);
            }
            return if self.has_ended(id) { self.close_none(id) } else { None };
        }
        let rest = connection.rest.len();
        let Some((head, room)) =
            space.split_at_mut_checked(rest).filter(|(_, room)| room.len() >= READ_LEAST)
        else {
            // What is left of a connection is less than a line and a small value: there is always room.
            debug_assert!(false, "{rest} bytes left over");
            return self.close_none(id);
        };
        head.copy_from_slice(&connection.rest);
        let mut used = rest;
        if connection.readable && !connection.unparsed {
            match read(connection, room) {
                Ok(count) => used += count,
                Err(()) => {
                    self.close(id);
                    return None;
                }
            }
        }
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return None };
        let has_work = used > rest || connection.unparsed || connection.session.has_filled();
        connection.unparsed = false;
        if !has_work {
            return if connection.ended { self.close_none(id) } else { None };
        }
        Some(used)
    }

    fn has_ended(&self, id: u32) -> bool {
        matches!(self.connections.get(id as usize), Some(Some(connection)) if connection.ended)
    }

    fn close_none<T>(&mut self, id: u32) -> Option<T> {
        self.close(id);
        None
    }

    fn requeue(&mut self, id: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(id as usize)
            && !connection.queued
        {
            connection.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Parses what a turn's input holds into the batch.
    fn parse<'a>(&mut self, mut turn: Turn<'a>, batch: &mut Batch<'a>) -> Turn<'a> {
        let first = batch.len();
        if let Some(Some(connection)) = self.connections.get_mut(turn.id as usize) {
            // A peer that is behind with reading is served request by request, so that its backlog stays bounded.
            let most = if connection.backlog.is_some() { 1 } else { BATCH_REQUESTS };
            let input = turn.input.get(turn.consumed..).unwrap_or_default();
            let progress = connection.session.parse(input, turn.id, most, &mut self.cx, batch);
            turn.consumed += progress.consumed;
            turn.more = progress.need.is_none();
        }
        turn.done += batch.len() - first;
        turn.requests = first..batch.len();
        turn
    }

    /// Executes the batch and sends each connection's answers; gives the turn that goes on in the next batch, whose
    /// answers wait in the output.
    fn execute<'a>(
        &mut self,
        batch: &mut Batch<'a>,
        turns: ArrayVec<Turn<'a>, BATCH_REQUESTS>,
    ) -> Option<Turn<'a>> {
        batch.prefetch_index(|id| bucket_of(&self.connections, id));
        let last = turns.len().saturating_sub(1);
        for (index, turn) in turns.into_iter().enumerate() {
            for request in turn.requests.clone() {
                batch.prefetch_ahead(request, |id| bucket_of(&self.connections, id));
                let Some(Some(connection)) = self.connections.get_mut(turn.id as usize) else { break };
                if connection.session.peer.close {
                    break;
                }
                if let Some(queued) = batch.get(request) {
                    connection.session.execute(queued, &mut self.cx, &mut self.out);
                }
                if self.out.len() >= SEND_BYTES {
                    self.settle(turn.id);
                    self.send_all();
                }
            }
            if index == last && self.may_go_on(&turn) {
                return Some(turn);
            }
            self.settle(turn.id);
            self.end_turn(&turn);
        }
        None
    }

    /// Whether a turn goes on in the next batch rather than at the end of the queue.
    fn may_go_on(&self, turn: &Turn<'_>) -> bool {
        let Some(Some(connection)) = self.connections.get(turn.id as usize) else { return false };
        turn.more
            && turn.done < self.limits.turn_requests
            && turn.consumed < turn.input.len()
            && connection.backlog.is_none()
            && !connection.session.peer.close
    }

    /// Notes that the output since the last cut is this connection's. It is sent with that of the others: a peer that is
    /// woken by its answer then finds more to do than one, and the processor is not switched back and forth.
    fn settle(&mut self, id: u32) {
        if self.out.has_pinned() {
            self.send_all();
            let now_ms = self.cx.now.mono_ms;
            if let Some(Some(connection)) = self.connections.get_mut(id as usize) {
                let backlog = connection.backlog.get_or_insert_with(|| Backlog::begun(now_ms));
                backlog.push_output(&mut self.out, self.cut);
                self.send_backlog(id);
            }
            self.out.clear();
            self.cut = 0;
        } else if self.out.mark() > self.cut {
            self.segments.push(Segment { id, bytes: self.cut..self.out.mark() });
            self.cut = self.out.mark();
        }
    }

    /// Sends all settled answers, one write for each connection; what a peer does not take now becomes its backlog.
    fn send_all(&mut self) {
        let mut segments = std::mem::take(&mut self.segments);
        for Segment { id, bytes } in segments.drain(..) {
            let Some(Some(connection)) = self.connections.get_mut(id as usize) else { continue };
            let bytes = self.out.plain().get(bytes).unwrap_or_default();
            if let Some(backlog) = &mut connection.backlog {
                backlog.push_bytes(bytes);
                self.send_backlog(id);
                continue;
            }
            match write(&mut connection.socket, bytes) {
                Ok(sent) if sent == bytes.len() => {}
                Ok(sent) => {
                    let mut backlog = Backlog::begun(self.cx.now.mono_ms);
                    backlog.push_bytes(bytes.get(sent..).unwrap_or_default());
                    connection.backlog = Some(backlog);
                    connection.charge();
                    self.blocked.push(id);
                }
                Err(_) => self.close(id),
            }
        }
        self.segments = segments;
        if self.cut == self.out.mark() && !self.out.has_pinned() {
            self.out.clear();
            self.cut = 0;
        }
    }

    /// Sends what the peer takes of its backlog.
    fn send_backlog(&mut self, id: u32) {
        let now_ms = self.cx.now.mono_ms;
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return };
        let Connection { backlog: Some(backlog), socket, .. } = &mut **connection else { return };
        match backlog.send(socket, now_ms) {
            Ok(Sent::All) => {
                connection.backlog = None;
                connection.charge();
            }
            Ok(sent) => {
                connection.charge();
                if !self.blocked.contains(&id) {
                    self.blocked.push(id);
                }
                if sent == Sent::TurnOver {
                    self.requeue(id);
                }
            }
            Err(_) => self.close(id),
        }
    }

    /// Keeps what is left of a turn's input, and decides whether its connection comes again or closes.
    fn end_turn(&mut self, turn: &Turn<'_>) {
        let Some(Some(connection)) = self.connections.get_mut(turn.id as usize) else { return };
        let left = turn.input.get(turn.consumed..).unwrap_or_default();
        if left.is_empty() {
            connection.rest = Vec::new();
        } else {
            connection.rest.clear();
            connection.rest.extend_from_slice(left);
        }
        connection.charge();
        connection.unparsed = turn.more && !left.is_empty() || connection.session.has_filled();
        let closes =
            connection.session.peer.close || connection.ended && !connection.unparsed && !connection.readable;
        if closes {
            connection.session.peer.close = true;
            self.send_all();
            if matches!(self.connections.get(turn.id as usize), Some(Some(c)) if c.backlog.is_none()) {
                self.close(turn.id);
            }
        } else if connection.readable || connection.unparsed {
            let is_held_up = connection.unsent() > self.limits.output_backlog_bytes;
            if !is_held_up {
                self.requeue(turn.id);
            }
        }
    }

    fn close(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::take) else { return };
        let mut connection = *connection;
        connection.discharge();
        let _ = self.poll.registry().deregister(&mut connection.socket);
        drop(connection);
        self.free.push(id);
        self.forget_connection();
    }

    /// What is due after the ready connections were served. Gives whether the worker ends.
    fn duties(&mut self) -> bool {
        let now_ms = self.cx.now.mono_ms;
        self.cx.tend();
        if self.shared.stopping.load(Acquire) {
            return self.drain(now_ms);
        }
        if !self.blocked.is_empty() {
            self.drop_stuck(now_ms);
        }
        if self.retired {
            self.retired = self.cx.end_batch();
        }
        match self.rest_at_ms {
            None if self.cx.keeps_blocks() => self.rest_at_ms = Some(now_ms + REST_MS),
            Some(at_ms) if at_ms <= now_ms => self.rest_at_ms = self.cx.rest().then_some(now_ms + REST_MS),
            _ => {}
        }
        false
    }

    /// Drops peers that have taken nothing of their output for too long.
    fn drop_stuck(&mut self, now_ms: u64) {
        let limit_ms = self.limits.stuck_peer_ms;
        let blocked = std::mem::take(&mut self.blocked);
        for id in blocked {
            match self.backlog_of(id).map(|backlog| now_ms.saturating_sub(backlog.progress_ms) >= limit_ms) {
                Some(true) => {
                    tracing::info!(connection = id, limit_ms, "dropped a peer that does not read");
                    self.close(id);
                }
                Some(false) if !self.blocked.contains(&id) => self.blocked.push(id),
                _ => {}
            }
        }
    }

    /// Stopping: everything without unsent output closes now, the rest when it is sent or the grace is over.
    fn drain(&mut self, now_ms: u64) -> bool {
        let stop_at_ms =
            *self.stop_at_ms.get_or_insert(now_ms.saturating_add(self.shared.grace_ms.load(Relaxed)));
        self.take_arrivals();
        for id in 0..u32::try_from(self.connections.len()).unwrap_or(u32::MAX) {
            if self.backlog_of(id).is_none() || now_ms >= stop_at_ms {
                self.close(id);
            }
        }
        self.free.len() == self.connections.len()
    }
}

#[inline]
fn bucket_of(connections: &[Option<Box<Connection>>], id: u32) -> Option<&Arc<Bucket>> {
    connections.get(id as usize)?.as_ref()?.session.peer.bucket.as_ref()
}

/// One read. A short one means that the socket is empty now; an event tells when it is not.
fn read(connection: &mut Connection, room: &mut [u8]) -> Result<usize, ()> {
    loop {
        match connection.socket.read(room) {
            Ok(0) => {
                (connection.ended, connection.readable) = (true, false);
                return Ok(0);
            }
            Ok(count) => {
                if count < room.len() && !connection.closed_by_peer {
                    connection.readable = false;
                }
                return Ok(count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.readable = false;
                return Ok(0);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(()),
        }
    }
}

/// Reads the rest of a large value straight to where it belongs, within the bounds of a turn.
fn fill_sink(connection: &mut Connection) -> Result<(), ()> {
    let mut budget = SINK_TURN_BYTES;
    while connection.readable && budget > 0 {
        let Connection { socket, session, .. } = connection;
        let Some(sink) = session.sink() else { return Ok(()) };
        let room = sink.len().min(budget);
        match socket.read(&mut sink[..room]) {
            Ok(0) => {
                (connection.ended, connection.readable) = (true, false);
                return Ok(());
            }
            Ok(count) => {
                session.filled(count);
                budget -= count;
                if count < room && !connection.closed_by_peer {
                    connection.readable = false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => connection.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(()),
        }
    }
    Ok(())
}

/// Writes what the socket takes at once.
fn write(socket: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                sent += count;
                if sent < bytes.len() {
                    return Ok(sent);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
