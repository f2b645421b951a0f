//! One connection of a worker: its socket, its session, and the data left over between wake-ups.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kv::clients::State;
use kv::{Bucket, Limits, Meter, NodeContext};
use sessions::{BATCH_REQUESTS, Session};

use crate::backlog::Backlog;
use crate::worker::{Charged, Overdue};
use transport::Stream;

/// Bytes of a large value read per turn.
const SINK_TURN_BYTES: usize = 256 << 10;
/// Answers that a connection's requests have together, if they are as long as its last ones.
const TOGETHER_BYTES: usize = 128 << 10;
/// How many requests of a new connection are executed together.
const FIRST_TOGETHER: u8 = 4;
/// The time limit of an unfinished request restarts after this many more bytes of it.
const PROGRESS_BYTES: usize = 16 << 10;
/// Upper bound of that time limit before the login.
const BEFORE_LOGIN_MS: u64 = 10_000;
/// Upper bound of the time limit for the login itself, where one is required.
const LOGIN_MS: u64 = 30_000;

/// A connection. Idle, it holds no buffer: unparsed input and unsent output exist only while there are any.
pub(crate) struct Connection {
    pub(crate) socket: Stream,
    pub(crate) session: Session,
    /// Input read but not yet parsed: the start of a request.
    pub(crate) rest: Vec<u8>,
    pub(crate) backlog: Option<Box<Backlog>>,
    /// Present while the session is elsewhere: tells the thread that executes its request that the connection closed.
    pub(crate) away: Option<Arc<AtomicBool>>,
    /// What is charged for `rest`, `backlog` and the session's buffers, and to which bucket.
    charged: Charged,
    payer: Option<Arc<Bucket>>,
    /// When the peer last sent something; ms of the monotonic clock, like all times here.
    active_ms: u64,
    /// Since when the worker has waited for the rest of a request, or for enough of it to count as progress.
    unfinished_since_ms: Option<u64>,
    /// Bytes received since then.
    unfinished_bytes: usize,
    /// Since when the peer has been expected to log in.
    unknown_since_ms: Option<u64>,
    /// The time of its entry in the worker's deadlines.
    pub(crate) alarm_ms: Option<u64>,
    /// The socket may have input: an event said so, and there was no short read since.
    pub(crate) readable: bool,
    /// An event said that the peer has closed its side; the socket is read to the end.
    pub(crate) closed_by_peer: bool,
    /// The end of the input was read.
    pub(crate) ended: bool,
    /// The peer has sent something.
    pub(crate) has_begun: bool,
    /// It is in one of the worker's queues.
    pub(crate) queued: bool,
    /// Its last turn was much work, or it has had none.
    pub(crate) is_busy: bool,
    /// How many of its requests are executed together at most: few if its answers are long.
    together: u8,
    /// Its last answers were long, or it has had none.
    pub(crate) has_long_answers: bool,
    /// `rest` may hold a whole request, which is parsed without reading first.
    pub(crate) unparsed: bool,
}

impl Connection {
    pub(crate) fn new(socket: Stream, session: Session, now_ms: u64) -> Self {
        // The socket raises no event for data that arrived with the end of a handshake.
        let readable = socket.has_more();
        Self {
            socket,
            session,
            rest: Vec::new(),
            backlog: None,
            away: None,
            charged: Charged::default(),
            payer: None,
            active_ms: now_ms,
            unfinished_since_ms: None,
            unfinished_bytes: 0,
            unknown_since_ms: None,
            alarm_ms: None,
            readable,
            closed_by_peer: false,
            ended: false,
            has_begun: false,
            queued: false,
            is_busy: true,
            together: FIRST_TOGETHER,
            has_long_answers: true,
            unparsed: false,
        }
    }

    /// The peer's address, for the log.
    pub(crate) fn address(&self) -> IpAddr {
        self.session.peer.address.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }

    /// How many of its requests are executed together at most.
    #[inline]
    pub(crate) fn together(&self) -> usize {
        usize::from(self.together)
    }

    /// A turn has answered so many requests with so many bytes.
    #[inline]
    pub(crate) fn note_answered(&mut self, requests: usize, bytes: usize) {
        let fits = together_for(requests, bytes);
        self.has_long_answers = fits < BATCH_REQUESTS;
        self.together = together_after(self.together(), requests, fits) as u8;
    }

    /// Unsent output in bytes.
    pub(crate) fn unsent(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.len())
    }

    /// Reads once. A short read means that the socket is empty; an event announces new input.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> Result<usize, ()> {
        loop {
            match self.socket.read(room) {
                Ok(0) => {
                    (self.ended, self.readable) = (true, false);
                    return Ok(0);
                }
                Ok(count) => {
                    self.note_read(count < room.len());
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.session.note_end(|| transport::explain(&error));
                    return Err(());
                }
            }
        }
    }

    /// After a short read the socket is empty, unless the end of the stream must still be read.
    fn note_read(&mut self, is_short: bool) {
        if is_short && !self.closed_by_peer && !self.socket.has_more() {
            self.readable = false;
        }
    }

    /// Reads the rest of a large value directly into item memory, within the bounds of a turn. Returns the number of
    /// bytes read.
    pub(crate) fn fill_sink(&mut self, now_ms: u64) -> Result<usize, ()> {
        let mut budget = SINK_TURN_BYTES;
        while self.readable && budget > 0 {
            let Self { socket, session, .. } = self;
            let Some(sink) = session.sink() else { break };
            let room = sink.len().min(budget);
            match socket.read(&mut sink[..room]) {
                Ok(0) => {
                    (self.ended, self.readable) = (true, false);
                    break;
                }
                Ok(count) => {
                    session.filled(count);
                    budget -= count;
                    self.note_read(count < room);
                    self.note_received(count, now_ms);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
        Ok(SINK_TURN_BYTES - budget)
    }

    /// Adds bytes read from or sent to the peer to a meter of the bucket in use.
    pub(crate) fn count(&self, meter: Meter, bytes: usize, cx: &NodeContext) {
        if let Some(bucket) = &self.session.peer.bucket
            && bytes > 0
        {
            bucket.count(cx, meter, bytes as u64);
        }
    }

    /// Notes that requests of the peer are about to be executed.
    #[inline]
    pub(crate) fn note_asked(&self, now_ms: u64) {
        if let Some(client) = &self.session.peer.client {
            client.note_asked(now_ms);
        }
    }

    /// Returns true if it waits for a new request and there is nothing held, charged or to be added to the deadlines,
    /// as after most turns. Its state is then set to reading.
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_at_rest = !self.readable
            && !self.ended
            && self.backlog.is_none()
            && self.charged == Charged::default()
            && self.unfinished_since_ms.is_none()
            && self.session.is_at_rest()
            && self.socket.held_bytes() == 0
            && (self.alarm_ms.is_some() || self.idle_limit_ms() == 0);
        if is_at_rest && let Some(client) = &self.session.peer.client {
            client.set_state(State::Read);
        }
        is_at_rest
    }

    /// Acknowledges what the peer has sent if that ended in a quiet request which got no answer: the peer's kernel may
    /// hold back the next one until the acknowledgement, which otherwise waits for an answer to go with.
    #[cold]
    pub(crate) fn acknowledge_unanswered(&self) {
        if !self.readable && self.session.is_quiet() {
            self.socket.acknowledge();
        }
    }

    fn idle_limit_ms(&self) -> u64 {
        self.session.peer.listener().map_or(0, |listener| listener.idle_limit_ms)
    }

    /// Records its state in the list of connections after its turn.
    pub(crate) fn note_state(&self) {
        let Some(client) = &self.session.peer.client else { return };
        client.set_state(if self.backlog.is_some() {
            State::Write
        } else if self.session.has_waits() {
            State::Waits
        } else if self.readable || self.unparsed {
            State::Parse
        } else {
            self.session.state(&self.rest)
        });
    }

    /// Notes that the peer has sent this many bytes.
    #[inline]
    pub(crate) fn note_received(&mut self, bytes: usize, now_ms: u64) {
        self.active_ms = now_ms;
        self.unfinished_bytes += bytes;
    }

    /// Notes that requests were finished, which restarts the time limit of the current one.
    #[inline]
    pub(crate) fn note_finished(&mut self) {
        self.unfinished_since_ms = None;
    }

    /// Returns true if the peer could have logged in for this long, and has not.
    pub(crate) fn is_unknown_for(&self, ms: u64, now_ms: u64) -> bool {
        self.unknown_since_ms.is_some_and(|since_ms| now_ms >= since_ms + ms)
            && self.session.peer.must_log_in()
    }

    /// Notes whether the worker now waits for the peer: for a login, or in the middle of a request.
    pub(crate) fn look_for_unfinished(&mut self, now_ms: u64) {
        if !self.session.peer.must_log_in() {
            self.unknown_since_ms = None;
        } else if self.unknown_since_ms.is_none() {
            self.unknown_since_ms = Some(now_ms);
        }
        let is_ours = self.readable || self.unparsed || self.backlog.is_some() || self.session.has_waits();
        if is_ours || self.rest.is_empty() && !self.session.is_receiving() {
            self.unfinished_since_ms = None;
        } else if self.unfinished_since_ms.is_none() || self.unfinished_bytes >= PROGRESS_BYTES {
            (self.unfinished_since_ms, self.unfinished_bytes) = (Some(now_ms), 0);
        }
    }

    /// When it must be closed if nothing happens, and why.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<(u64, Overdue)> {
        let limit_ms = match self.session.peer.must_log_in() {
            true => limits.unfinished_request_ms.min(BEFORE_LOGIN_MS),
            false => limits.unfinished_request_ms,
        };
        let unfinished = self.unfinished_since_ms.map(|since_ms| (since_ms + limit_ms, Overdue::Unfinished));
        let login_ms = limits.unfinished_request_ms.min(LOGIN_MS);
        let unknown = self
            .unknown_since_ms
            .filter(|_| !self.session.has_waits())
            .map(|since_ms| (since_ms + login_ms, Overdue::Unknown));
        let stuck =
            self.backlog.as_ref().map(|backlog| (backlog.progress_ms + limits.stuck_peer_ms, Overdue::Stuck));
        let idle_limit_ms = self.idle_limit_ms();
        let waits = self.backlog.is_some()
            || self.session.has_waits()
            || self.session.is_watching()
            || self.session.follows();
        let may_be_idle = idle_limit_ms > 0 && !waits;
        let idle = may_be_idle.then_some((self.active_ms + idle_limit_ms, Overdue::Idle));
        let noop = self.session.noop_due_ms().filter(|_| self.backlog.is_none());
        let noop = noop.map(|at_ms| (at_ms, Overdue::Noop));
        [unfinished, unknown, stuck, idle, noop].into_iter().flatten().min_by_key(|(at_ms, _)| *at_ms)
    }

    /// When the peer last took or sent something.
    pub(crate) fn progress_ms(&self) -> u64 {
        self.backlog.as_ref().map_or(self.active_ms, |backlog| backlog.progress_ms)
    }

    /// What is charged.
    pub(crate) fn charged(&self) -> Charged {
        self.charged
    }

    /// Charges what is held now. Buffers are charged to the bucket in use; before a login, or if that bucket already
    /// pays for its part, to none.
    pub(crate) fn charge(&mut self) {
        let backlog = self.backlog.as_ref();
        let buffers = self.rest.capacity()
            + backlog.map_or(0, |backlog| backlog.buffered())
            + self.session.held_bytes()
            + self.socket.held_bytes();
        let large = self.session.filling_bytes() + backlog.map_or(0, |backlog| backlog.pinned());
        if buffers == self.charged.buffers {
            self.charged.large = large;
            return;
        }
        let peer = &self.session.peer;
        let pays = peer.bucket.as_ref().filter(|bucket| !peer.must_log_in() && bucket.pays_for_buffers());
        let payer_has_changed = match (&self.payer, pays) {
            (Some(payer), Some(bucket)) => !Arc::ptr_eq(payer, bucket),
            (None, None) => false,
            _ => true,
        };
        if payer_has_changed {
            let payer = pays.cloned();
            self.discharge();
            self.payer = payer;
        }
        if let Some(payer) = &self.payer {
            payer.charge_buffers(difference(buffers, self.charged.buffers));
        }
        let outside = if self.payer.is_some() { 0 } else { buffers };
        self.charged = Charged { buffers, outside, large };
    }

    /// Releases the charge.
    pub(crate) fn discharge(&mut self) {
        if let Some(payer) = self.payer.take() {
            payer.charge_buffers(difference(0, self.charged.buffers));
        }
        self.charged = Charged::default();
    }
}

fn difference(new: usize, old: usize) -> i64 {
    new.cast_signed() as i64 - old.cast_signed() as i64
}

/// How many requests fit together, if so many had answers of so many bytes.
#[inline]
fn together_for(requests: usize, bytes: usize) -> usize {
    if bytes < TOGETHER_BYTES { BATCH_REQUESTS } else { TOGETHER_BYTES * requests / bytes }
}

/// How many requests are executed together after a turn with so many: as many as fit; more than before only if this
/// turn had as many, and then twice as many at most.
#[inline]
fn together_after(together: usize, requests: usize, fits: usize) -> usize {
    let most = if requests < together { together } else { BATCH_REQUESTS.min(2 * together) };
    fits.clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_are_given_few_at_a_time() {
        let after =
            |together, requests, bytes| together_after(together, requests, together_for(requests, bytes));
        assert_eq!(after(BATCH_REQUESTS, 64, 64 * 50), BATCH_REQUESTS);
        assert_eq!(after(BATCH_REQUESTS, 64, 64 * 8000), 16);
        assert_eq!(after(16, 16, 16 * 1_000_000), 1);
        assert_eq!(after(4, 3, 50), 4);
        let grown = std::iter::successors(Some(1), |together| Some(after(*together, *together, 50)));
        assert_eq!(grown.take(8).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 64]);
    }
}
