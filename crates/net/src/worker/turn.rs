//! Turns of connections: read, parse, and execute the requests of many connections as one batch.

use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use kv::{Bucket, Meter};
use sessions::{BATCH_REQUESTS, Batch, SLOW_REQUESTS};

use super::{Queue, SEND_BYTES, Worker};
use crate::backlog::Sent;
use crate::connection::Connection;
use crate::refusals::{NOT_TLS, begins_tls};

/// A round collects input from connections until it has this many bytes.
const COLLECT_BYTES: usize = 64 << 10;
/// No turn is continued once a wake-up has taken this long, or a fraction of it while others have something to do.
const TURN_US: u64 = 1000;
/// Output of a turn after which others get theirs.
const TURN_BYTES: usize = 128 << 10;
/// A connection is busy after a turn of so many requests, so many bytes of answers, or so much time for slow requests.
const BUSY_REQUESTS: usize = 16;
const BUSY_BYTES: usize = 32 << 10;
const BUSY_TURN_US: u64 = 30;
/// A batch with slow requests has fewer of them once one has taken longer, and more again after one that was this much
/// shorter.
const SLOW_BATCH_US: u64 = 300;
const SLOW_BATCH_FRACTION: u64 = 4;
/// While others have something to do, a turn is limited to this fraction of its normal length.
const CROWDED_FRACTION: usize = 4;
/// Minimum room to read a connection into, besides its leftover input.
const READ_LEAST: usize = 64 << 10;
/// If a connection's allowance is below this, only a few of its requests are parsed before checking that the peer takes
/// the answers.
const ALLOWANCE_SCARCE: usize = 64 << 10;
/// The number of these requests.
const SCARCE_REQUESTS: usize = 8;
/// Messages for a connection that follows in each of its turns.
const PRODUCE_BYTES: usize = 32 << 10;
/// Minimum size of one read, however small the allowance.
const READ_SCARCE: usize = 4 << 10;

/// A connection taking part in a batch, with the input that was read for it.
struct Turn<'a> {
    id: u32,
    input: &'a [u8],
    /// Bytes of the input that have been parsed.
    consumed: usize,
    /// There may be more requests in the input: the batch was full, or its last request had to be executed first.
    more: bool,
    /// Its requests in the batch.
    requests: Range<usize>,
    /// Requests of this turn in all its batches, and the bytes of their answers.
    done: usize,
    answered: usize,
    /// How long its batches with slow requests took.
    slow_us: u64,
    /// Its answers may be long: no other connection's requests are added to its batch.
    is_last: bool,
}

impl Worker {
    /// One round: collects at least one connection of a queue, executes the requests and sends the answers; repeats
    /// while the last connection has more.
    pub(super) fn round(&mut self, buffer: &mut [u8], queue: Queue) {
        let quiescence = Arc::clone(self.cx.node.quiescence());
        quiescence.enter(self.thread);
        self.allowance = self.cx.node.client_memory().allowance();
        let (mut space, mut collected) = (buffer, 0);
        let mut carried: Option<Turn<'_>> = None;
        loop {
            let mut batch = Batch::with_slow(self.slow_most);
            let mut turns = ArrayVec::<Turn<'_>, BATCH_REQUESTS>::new();
            if let Some(turn) = carried.take() {
                turns.push(self.parse(turn, &mut batch));
            }
            while turns.last().is_none_or(|turn| !turn.is_last)
                && !batch.is_full()
                && !turns.is_full()
                && collected < COLLECT_BYTES
                && let Some(id) = self.take_ready(queue)
            {
                let Some(used) = self.receive(id, space, collected == 0) else { continue };
                let (input, left) = std::mem::take(&mut space).split_at_mut(used);
                (space, collected) = (left, collected + used);
                let turn = Turn {
                    id,
                    input,
                    consumed: 0,
                    more: true,
                    requests: 0..0,
                    done: 0,
                    answered: 0,
                    slow_us: 0,
                    is_last: false,
                };
                turns.push(self.parse(turn, &mut batch));
            }
            carried = if self.recorder.is_on() {
                self.execute_recorded(&mut batch, &mut turns)
            } else {
                self.execute::<false>(&mut batch, &mut turns)
            };
            if carried.is_none() {
                break;
            }
        }
        quiescence.leave(self.thread);
        self.retired = self.cx.end_batch();
    }

    #[inline]
    fn take_ready(&mut self, queue: Queue) -> Option<u32> {
        match queue {
            Queue::Ready => self.ready.pop_front(),
            Queue::Busy => self.busy.pop_front(),
        }
    }

    /// Reads a ready connection into `space`, after its leftover input. Returns the length of the input; `None` if
    /// there is nothing to do for it now. `is_whole`: none of the space is in use. The queues may have the number of a
    /// connection that was closed meanwhile, and now is another one's.
    fn receive(&mut self, id: u32, space: &mut [u8], is_whole: bool) -> Option<usize> {
        let now_ms = self.cx.now.mono_ms();
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return None };
        if !std::mem::take(&mut connection.queued) {
            return None;
        }
        if let Some(backlog) = &mut connection.backlog {
            let unsent = backlog.len();
            let sent = backlog.send(&mut connection.socket, now_ms);
            let taken = unsent - backlog.len();
            connection.count(Meter::BytesWritten, taken, &self.cx);
            match sent {
                Ok(Sent::All) => {
                    connection.backlog = None;
                    self.charge(id);
                    self.arm(id);
                }
                Ok(Sent::TurnOver) => {
                    self.charge(id);
                    self.make_later(id);
                    return None;
                }
                Ok(Sent::Blocked) => {
                    let is_held_up =
                        connection.unsent() > self.limits.output_backlog_bytes.min(self.allowance);
                    self.charge(id);
                    if is_held_up {
                        return None;
                    }
                }
                Err(_) => {
                    self.close_because(id, "error");
                    return None;
                }
            }
        }
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return None };
        if connection.session.peer.close {
            if connection.backlog.is_none() && !connection.session.has_waits() {
                self.close(id);
            }
            return None;
        }
        if connection.session.is_stalled() {
            // A letter will queue it again.
            return None;
        }
        match connection.fill_sink(now_ms) {
            Ok(count) => connection.count(Meter::BytesRead, count, &self.cx),
            Err(()) => {
                self.close_because(id, "error");
                return None;
            }
        }
        if connection.session.sink().is_some() {
            if connection.readable {
                self.make_later(id);
            }
            self.charge(id);
            self.arm(id);
            return if self.has_ended(id) { self.close_when_sent(id) } else { None };
        }
        let rest = connection.rest.len();
        let may_read = connection.readable && !connection.unparsed && !connection.session.has_filled();
        let least = if may_read { READ_LEAST } else { 0 };
        let Some((head, room)) = space.split_at_mut_checked(rest).filter(|(_, room)| room.len() >= least)
        else {
            // Unparsed input came out of such a space, and an incomplete request is short, so there is always room.
            debug_assert!(!is_whole, "{rest} bytes left over");
            if is_whole {
                tracing::error!(
                    connection = id,
                    rest,
                    "closed a connection: its unparsed input fills the buffer"
                );
                return self.close_none(id);
            }
            self.make_later(id);
            return None;
        };
        head.copy_from_slice(&connection.rest);
        let mut used = rest;
        if may_read {
            let most = room.len().min(self.allowance.max(READ_SCARCE));
            match connection.read(&mut room[..most]) {
                Ok(count) => {
                    connection.count(Meter::BytesRead, count, &self.cx);
                    used += count;
                    if count > 0 {
                        connection.note_received(count, now_ms);
                        let is_first = !std::mem::replace(&mut connection.has_begun, true);
                        if is_first && begins_tls(&space[rest..used]) {
                            // Best effort: a fresh socket takes these few bytes, or the peer is already gone.
                            let _ = connection.socket.write(NOT_TLS);
                            let peer = connection.address();
                            self.shared.refusals.log(peer, "it speaks TLS to a port that does not");
                            self.close_because(id, "error");
                            return None;
                        }
                    }
                }
                Err(()) => {
                    self.close_because(id, "error");
                    return None;
                }
            }
        }
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return None };
        let session = &connection.session;
        let has_work = used > rest || connection.unparsed || session.has_filled() || session.has_to_send();
        connection.unparsed = false;
        if !has_work {
            connection.note_state();
            let is_over = connection.ended && !connection.session.has_waits();
            return if is_over { self.close_when_sent(id) } else { None };
        }
        Some(used)
    }

    fn has_ended(&self, id: u32) -> bool {
        matches!(self.connections.get(id as usize), Some(Some(connection)) if connection.ended)
    }

    /// Closes a connection whose client sends no more, once it has taken its answers: it may have closed its side only.
    fn close_when_sent<T>(&mut self, id: u32) -> Option<T> {
        // Those of this wake-up.
        self.send_all();
        let Some(Some(connection)) = self.connections.get_mut(id as usize) else { return None };
        if connection.backlog.is_none() {
            return self.close_none(id);
        }
        connection.session.peer.close = true;
        self.arm(id);
        None
    }

    fn close_none<T>(&mut self, id: u32) -> Option<T> {
        self.close(id);
        None
    }

    /// Parses what a turn's input holds into the batch.
    fn parse<'a>(&mut self, mut turn: Turn<'a>, batch: &mut Batch<'a>) -> Turn<'a> {
        let first = batch.len();
        if let Some(Some(connection)) = self.connections.get_mut(turn.id as usize) {
            // A peer that lags in reading is served one request at a time, so that its backlog stays bounded.
            let most = match connection.backlog.is_some() {
                true => 1,
                false if self.allowance < ALLOWANCE_SCARCE => SCARCE_REQUESTS,
                false => connection.together(),
            };
            turn.is_last = connection.is_busy && connection.has_long_answers;
            let most = most.min(self.limits.turn_requests.saturating_sub(turn.done));
            let input = turn.input.get(turn.consumed..).unwrap_or_default();
            let progress = connection.session.parse(input, turn.id, most, &mut self.cx, batch);
            turn.consumed += progress.consumed;
            turn.more = progress.need.is_none();
        }
        if batch.len() > first
            && let Some(Some(connection)) = self.connections.get(turn.id as usize)
        {
            connection.note_asked(self.cx.now.mono_ms());
        }
        turn.done += batch.len() - first;
        turn.requests = first..batch.len();
        turn
    }

    /// As [`Worker::execute`], for a wake-up that is recorded.
    #[cold]
    #[inline(never)]
    fn execute_recorded<'a>(
        &mut self,
        batch: &mut Batch<'a>,
        turns: &mut ArrayVec<Turn<'a>, BATCH_REQUESTS>,
    ) -> Option<Turn<'a>> {
        self.recorder.begin_batch(&self.cx);
        self.execute::<true>(batch, turns)
    }

    /// Executes the batch and sends each connection's answers. Returns the turn that continues in the next batch; its
    /// answers wait in the output. `RECORDS`: see [`super::recorder`].
    fn execute<'a, const RECORDS: bool>(
        &mut self,
        batch: &mut Batch<'a>,
        turns: &mut ArrayVec<Turn<'a>, BATCH_REQUESTS>,
    ) -> Option<Turn<'a>> {
        batch.prefetch_index(|id| bucket_of(&self.connections, id));
        let last = turns.len().saturating_sub(1);
        let began_us = batch.is_slow().then(|| self.cx.fresh_us());
        let mut turn_began_us = began_us;
        for (index, mut turn) in turns.drain(..).enumerate() {
            let mut unsent = self.out.len();
            for request in turn.requests.clone() {
                batch.prefetch_ahead(request, |id| bucket_of(&self.connections, id));
                let Some(Some(connection)) = self.connections.get_mut(turn.id as usize) else { break };
                if connection.session.peer.close {
                    break;
                }
                if let Some(queued) = batch.get(request) {
                    if RECORDS {
                        let large_bytes = self.limits.large_request_bytes;
                        let session = &mut connection.session;
                        self.recorder.execute(session, queued, large_bytes, &mut self.cx, &mut self.out);
                    } else {
                        connection.session.execute(queued, &mut self.cx, &mut self.out);
                    }
                }
                if self.out.len() >= SEND_BYTES {
                    turn.answered += self.out.len() - unsent;
                    self.settle(turn.id);
                    self.send_all();
                    unsent = self.out.len();
                }
            }
            turn.answered += self.out.len() - unsent;
            self.produce(turn.id);
            if let Some(began_us) = &mut turn_began_us {
                let now_us = self.cx.fresh_us();
                turn.slow_us += now_us - std::mem::replace(began_us, now_us);
            }
            if index == last
                && let (Some(began_us), Some(now_us)) = (began_us, turn_began_us)
            {
                self.note_slow_batch(now_us - began_us);
            }
            if index == last && self.may_go_on(&turn) {
                return Some(turn);
            }
            self.settle(turn.id);
            self.end_turn(&turn);
        }
        None
    }

    /// Adapts the number of slow requests in a batch to the time that this one took.
    fn note_slow_batch(&mut self, took_us: u64) {
        if took_us > SLOW_BATCH_US {
            self.slow_most = (self.slow_most / 2).max(1);
        } else if took_us < SLOW_BATCH_US / SLOW_BATCH_FRACTION {
            self.slow_most = (self.slow_most * 2).min(SLOW_REQUESTS);
        }
    }

    /// Appends the messages of a connection that follows, once its answers are out of the way.
    #[inline]
    fn produce(&mut self, id: u32) {
        if let Some(Some(connection)) = self.connections.get_mut(id as usize)
            && connection.session.has_to_send()
            && connection.backlog.is_none()
        {
            let most = PRODUCE_BYTES.min(self.allowance.max(READ_SCARCE));
            connection.session.produce(most, &mut self.cx, &mut self.out);
            let bucket = connection.session.peer.bucket.clone();
            if let Some((node, why)) = connection.session.take_complaint() {
                let bucket = bucket.as_deref().map(Bucket::name);
                tracing::warn!(node, why, bucket, "trouble with what is copied from a node");
            }
        }
    }

    /// Returns true if a turn continues in the next batch rather than after the other connections.
    fn may_go_on(&self, turn: &Turn<'_>) -> bool {
        let Some(Some(connection)) = self.connections.get(turn.id as usize) else { return false };
        let is_alone = !self.has_ready() && self.later.is_empty();
        let parts = if is_alone { 1 } else { CROWDED_FRACTION };
        turn.more
            && turn.done < (self.limits.turn_requests / parts).max(1)
            && turn.answered < TURN_BYTES.min(self.allowance) / parts
            && turn.consumed < turn.input.len()
            && self.cx.fresh_us() < self.cx.now.mono_us + TURN_US / parts as u64
            && !self.shared.stopping.load(Relaxed)
            && connection.backlog.is_none()
            // Asking for a stream takes far longer than an ordinary request, and who follows asks for a thousand.
            && !connection.session.is_producer()
            && !connection.session.wants_aside()
            && !connection.session.peer.close
    }

    /// Keeps the rest of a turn's input, and decides whether its connection is queued again or closed.
    fn end_turn(&mut self, turn: &Turn<'_>) {
        let Some(Some(connection)) = self.connections.get_mut(turn.id as usize) else { return };
        if turn.done > 0 {
            connection.note_finished();
            connection.note_answered(turn.done, turn.answered);
        }
        connection.is_busy =
            turn.done >= BUSY_REQUESTS || turn.answered >= BUSY_BYTES || turn.slow_us >= BUSY_TURN_US;
        let left = turn.input.get(turn.consumed..).unwrap_or_default();
        if left.is_empty() {
            connection.rest = Vec::new();
            if turn.answered == 0 && turn.done > 0 {
                connection.acknowledge_unanswered();
            }
            if connection.is_at_rest() {
                return;
            }
        } else {
            connection.rest.clear();
            connection.rest.reserve_exact(left.len());
            connection.rest.extend_from_slice(left);
        }
        let is_stalled = connection.session.is_stalled();
        if turn.more && !left.is_empty() {
            connection.count(Meter::ConnYields, 1, &self.cx);
        }
        connection.unparsed =
            (turn.more || is_stalled) && !left.is_empty() || connection.session.has_filled();
        if self.goes_on(turn.id) {
            self.make_later(turn.id);
        }
    }
}

#[inline]
fn bucket_of(connections: &[Option<Box<Connection>>], id: u32) -> Option<&Arc<Bucket>> {
    connections.get(id as usize)?.as_ref()?.session.peer.bucket.as_ref()
}
