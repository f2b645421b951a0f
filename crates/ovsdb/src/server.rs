//! The server: databases, sessions, locks and monitors. It has no sockets and no clock: messages, times and random
//! numbers go in, bytes to send come out.
//!
//! ```text
//!   receive ─ transact ─> execute ─> Log::append ─> notifications and reply, held ─┐
//!           ─ transact ─> ...                                                      ├─ flush: one Log::write, then all
//!           ─ anything else: flush first, then answer                              ┘  held output becomes visible
//! ```
//!
//! Invariants: what a client can see is written to the log. A client is notified of a change before it gets the reply
//! to its own transaction that made it. Transactions collected between two writes are of one database, so that a failed
//! write undoes nothing else. There is no per-session work for sessions that have nothing to receive.

mod conversion;
mod databases;
mod disconnect;
mod laggards;
mod locks;
mod log;
mod monitoring;
mod output;
mod requests;
mod server_database;
mod session;
mod table_log;
mod transactions;
mod waits;

pub use databases::DatabaseId;
pub use disconnect::Disconnect;
pub use locks::Claims;
pub use log::Log;
pub use output::Output;
pub use session::{SessionId, SessionOptions};

use crate::error::Error;
use crate::monitor::{GroupId, Groups};
use crate::uuid::Uuid;
use databases::Databases;
use locks::Locks;
use session::{Session, Sessions};
use transactions::Group;
use waits::Waits;
use wire::jsonrpc::Message;

/// The times of a wake-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// Since 1970.
    pub wall_ms: u64,
    /// Never decreases.
    pub monotonic_ms: u64,
}

/// Limits on what clients may make a server hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent sessions.
    pub sessions: usize,
    /// Unsent output at which a session's monitors are left behind.
    pub backlog_bytes: usize,
    /// Monitors per session.
    pub monitors_per_session: usize,
    /// Monitors that are notified of a change at once; others follow in [`Server::notify_late`].
    pub notified_at_once: usize,
    /// Waiting transactions per session.
    pub waits_per_session: usize,
    /// Waiting transactions at which a session that has some gets no more.
    pub waits: usize,
    /// Locks that a session owns or waits for.
    pub locks_per_session: usize,
    /// Longest array of results of a transaction.
    pub reply_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 65_536,
            backlog_bytes: 1 << 20,
            monitors_per_session: 1024,
            notified_at_once: 4096,
            waits_per_session: 64,
            waits: 1024,
            locks_per_session: 1024,
            reply_bytes: usize::MAX,
        }
    }
}

/// The load of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Sessions.
    pub sessions: usize,
    /// Monitors of all sessions.
    pub monitors: usize,
    /// Waiting transactions.
    pub triggers: usize,
    /// Locks that have an owner.
    pub locks: usize,
    /// Bytes not sent yet.
    pub backlog_bytes: usize,
}

/// Who monitors a database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Audience {
    /// Monitors of the database.
    pub monitors: usize,
    /// Sessions that have any of these.
    pub sessions: usize,
}

/// A source of unpredictable UUIDs.
pub type Random = Box<dyn FnMut() -> Uuid + Send>;

/// A server of OVSDB databases, each with a log of its own or none.
pub struct Server<L> {
    limits: Limits,
    /// Told how many bytes a long array of results is about to take while it is built.
    reply_grows: Box<dyn Fn(usize) + Send>,
    random: Random,
    id: Uuid,
    databases: Databases<L>,
    sessions: Sessions,
    locks: Locks,
    groups: Groups,
    waits: Waits,
    /// Attempts at transactions that had to wait.
    retried: u64,
    group: Group,
    closed: Vec<(SessionId, String)>,
    /// The database that the current request has converted; what follows from that comes after its reply.
    converted: Option<DatabaseId>,
    /// Clients must fall back to `monitor`, as with servers older than `monitor_cond`.
    without_monitor_cond: bool,
    /// Lines about changes of tables that are logged.
    table_log: Vec<String>,
    scratch: Scratch,
}

/// Buffers that are reused.
#[derive(Debug, Default)]
struct Scratch {
    reply: Vec<u8>,
    notification: Vec<u8>,
    groups: Vec<GroupId>,
}

/// A scratch buffer that has grown beyond this is freed.
const SCRATCH_BYTES_MAX: usize = 64 * 1024;

impl<L> std::fmt::Debug for Server<L> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Server").field("id", &self.id).field("figures", &self.figures()).finish()
    }
}

impl<L> Server<L> {
    /// The current load. Visits every session.
    pub fn figures(&self) -> Figures {
        Figures {
            sessions: self.sessions.len(),
            monitors: self.groups.monitors(),
            triggers: self.waits.len(),
            locks: self.locks.owned(),
            backlog_bytes: self.sessions.iter().map(|(_, session)| session.output.backlog_bytes()).sum(),
        }
    }

    /// Who monitors a database. Visits every session.
    pub fn audience(&self, name: &str) -> Audience {
        let Some(id) = self.databases.find(name) else { return Audience::default() };
        let mut audience = Audience::default();
        for (_, session) in self.sessions.iter() {
            let monitors = session.monitors.iter().filter(|monitor| monitor.database == id).count();
            audience.monitors += monitors;
            audience.sessions += usize::from(monitors > 0);
        }
        audience
    }

    /// The locks that a session has requested.
    pub fn claims(&self, session: SessionId) -> Claims {
        let names = self.sessions.get(session).into_iter().flat_map(|session| &session.locks);
        self.locks.claims(names.map(|name| &**name), session)
    }

    /// Increases whenever the [`Self::claims`] of a session may have changed.
    pub fn lock_changes(&self) -> u64 {
        self.locks.changes()
    }

    /// The answer to `get_server_id`.
    pub fn server_id(&self) -> Uuid {
        self.id
    }

    /// The bytes to send to a session.
    pub fn output(&mut self, session: SessionId) -> Option<&mut Output> {
        self.sessions.get_mut(session).map(|session| &mut session.output)
    }

    /// What a session makes the server hold: its output, with its share of shared buffers; its waiting transactions;
    /// the names of its locks and monitors, and the monitors' conditions.
    pub fn session_bytes(&self, session: SessionId) -> usize {
        self.sessions
            .get(session)
            .map_or(0, |session| output::kept_bytes(&session.output) + session.kept_bytes)
    }

    /// Appends the sessions whose output became visible since the last call.
    pub fn take_ready(&mut self, into: &mut Vec<SessionId>) {
        let mut ready = std::mem::take(&mut self.sessions.ready);
        for id in ready.drain(..) {
            if let Some(session) = self.sessions.get_mut(id) {
                session.ready = false;
                into.push(id);
            }
        }
        self.sessions.ready = ready;
    }

    /// Appends the sessions that the server has ended, and the reasons in the words of the stock server's log. When
    /// their visible output has been sent, the caller must close their connections and call [`Self::disconnect`].
    pub fn take_closed(&mut self, into: &mut Vec<(SessionId, String)>) {
        into.append(&mut self.closed);
    }

    /// Makes `monitor_cond` and `monitor_cond_since` unknown methods from now on. Existing monitors continue until
    /// their sessions end.
    pub fn disable_monitor_cond(&mut self) {
        self.without_monitor_cond = true;
    }

    /// Attempts at transactions that had to wait, since the start.
    pub fn retried(&self) -> u64 {
        self.retried
    }

    /// When [`Self::run_waits`] and [`Self::notify_late`] are to be called, in monotonic time.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if self.sessions.late.is_empty() { self.waits.next_deadline_ms() } else { Some(0) }
    }
}

impl<L: Log> Server<L> {
    /// A server that hosts nothing but `_Server`.
    pub fn new(limits: Limits, mut random: Random) -> Result<Self, Error> {
        let id = random();
        let mut this = Self {
            limits,
            reply_grows: Box::new(|_| {}),
            random,
            id,
            databases: Databases::default(),
            sessions: Sessions::default(),
            locks: Locks::default(),
            groups: Groups::default(),
            waits: Waits::default(),
            retried: 0,
            group: Group::default(),
            closed: Vec::new(),
            converted: None,
            without_monitor_cond: false,
            table_log: Vec::new(),
            scratch: Scratch::default(),
        };
        this.start_server_database()?;
        Ok(this)
    }

    /// Has `grows` told how many bytes the results of a transaction are about to take, when they become long.
    pub fn when_a_reply_grows(&mut self, grows: impl Fn(usize) + Send + 'static) {
        self.reply_grows = Box::new(grows);
    }

    /// Adds a client. `None`: there are too many.
    pub fn connect(&mut self, options: SessionOptions) -> Option<SessionId> {
        (self.sessions.len() < self.limits.sessions)
            .then(|| self.sessions.insert(Session { options, ..Session::default() }))
    }

    /// Removes a client and everything that belongs to it.
    pub fn disconnect(&mut self, session: SessionId) {
        if self.sessions.get(session).is_some() {
            self.flush_group();
            self.release(session);
            self.sessions.remove(session);
            self.sessions.publish();
        }
    }

    /// Releases what a session has in the server. What others are sent because of that is held.
    fn release(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.ended = true;
        session.kept_bytes = 0;
        let (monitors, locks) = (std::mem::take(&mut session.monitors), std::mem::take(&mut session.locks));
        for wait in std::mem::take(&mut session.waits) {
            self.waits.remove(wait);
        }
        for monitor in &monitors {
            self.leave_group(monitor, id);
        }
        for name in &locks {
            if let Some(owner) = self.locks.unlock(name, id) {
                self.notify_lock("locked", name, owner);
            }
        }
    }

    /// Ends a session on the server's initiative, for a reason that is logged. What it was sent before can still be
    /// delivered.
    fn close_session(&mut self, id: SessionId, reason: &str) {
        if self.sessions.get(id).is_some_and(|session| !session.ended) {
            self.release(id);
            self.closed.push((id, reason.to_owned()));
        }
    }

    /// Receives one message, which a [`wire::jsonrpc::Framer`] has accepted.
    pub fn receive(&mut self, session: SessionId, message: &[u8], now: Now) -> Result<(), Disconnect> {
        if self.sessions.get(session).is_none_or(|session| session.ended) {
            return Err(Disconnect::Closed);
        }
        match Message::parse(message) {
            Ok(Message::Request { method, params, id }) => {
                self.request(session, &method, params, id, now);
                Ok(())
            }
            Ok(Message::Notification { method, params }) => {
                if method == "cancel" {
                    self.cancel(session, params);
                }
                Ok(())
            }
            // The answer to the `echo` by which we probe the peer.
            Ok(Message::Reply { id, .. }) if id.as_string().is_some_and(|id| id == "echo") => Ok(()),
            Ok(Message::Reply { .. }) => Err(Disconnect::UnexpectedReply),
            Ok(Message::Error { .. }) => Err(Disconnect::UnexpectedError),
            Err(error) => Err(Disconnect::BadMessage(error)),
        }
    }

    /// The end of a wake-up, after [`Self::run_waits`]: writes what was committed, and makes held output visible.
    pub fn flush(&mut self) {
        self.flush_group();
        self.close_too_slow();
        for hosted in self.databases.iter_mut() {
            hosted.database.rest();
        }
    }

    /// Probes a session; the answer is discarded.
    pub fn probe(&mut self, session: SessionId) {
        if let Some(output) = self.sessions.output(session) {
            output.append(b"{\"id\":\"echo\",\"method\":\"echo\",\"params\":[]}");
            self.flush_group();
        }
    }

    /// The loop has sent bytes of a session's output. If that lets monitors catch up, earlier commits are written
    /// first.
    pub fn sent(&mut self, session: SessionId, bytes: usize) {
        let Some(entry) = self.sessions.get_mut(session) else { return };
        entry.output.sent(bytes);
        if entry.behind > 0 && entry.output.backlog_bytes() <= self.limits.backlog_bytes / 2 {
            self.flush_group();
            self.catch_up(session);
            self.sessions.publish();
        }
    }
}
