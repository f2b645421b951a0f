//! The server: databases, sessions, locks and monitors. It knows no sockets and no clock: messages, times and random
//! numbers go in, bytes to send come out.
//!
//! ```text
//!   receive ─ transact ─> execute ─> Log::append ─> notifications and reply, held ─┐
//!           ─ transact ─> ...                                                      ├─ flush: one Log::write, then all
//!           ─ anything else: flush first, then answer                              ┘  that was held becomes visible
//! ```
//!
//! Invariants: what a client can see is written to the log. A client is told of a change before it gets the reply to
//! its own transaction that made it. Transactions collected between two writes are of one database, so that a failed
//! write takes back nothing else. Nothing that costs per session is done for sessions that have nothing to hear.

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
    /// Never goes back.
    pub monotonic_ms: u64,
}

/// Bounds of what clients may make a server keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at once.
    pub sessions: usize,
    /// Unsent output at which a session's monitors are left behind.
    pub backlog_bytes: usize,
    /// Monitors of a session.
    pub monitors_per_session: usize,
    /// Transactions of a session that wait.
    pub waits_per_session: usize,
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
            waits_per_session: 1024,
            locks_per_session: 1024,
            reply_bytes: usize::MAX,
        }
    }
}

/// What a server is busy with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Sessions.
    pub sessions: usize,
    /// Monitors of all sessions.
    pub monitors: usize,
    /// Transactions that wait.
    pub triggers: usize,
    /// Locks that somebody owns.
    pub locks: usize,
    /// Bytes not sent yet.
    pub backlog_bytes: usize,
}

/// Where the server takes unpredictable UUIDs from.
pub type Random = Box<dyn FnMut() -> Uuid + Send>;

/// A server of OVSDB databases, each with a log of its own or none.
pub struct Server<L> {
    limits: Limits,
    random: Random,
    id: Uuid,
    databases: Databases<L>,
    sessions: Sessions,
    locks: Locks,
    groups: Groups,
    waits: Waits,
    group: Group,
    closed: Vec<(SessionId, String)>,
    /// The request at hand has converted this database; what follows from that comes after its reply.
    converted: Option<DatabaseId>,
    /// Clients are to fall back to `monitor`, as with servers before `monitor_cond`.
    without_monitor_cond: bool,
    /// Lines about changes of tables that are logged.
    table_log: Vec<String>,
    scratch: Scratch,
}

/// Buffers that are used again and again.
#[derive(Debug, Default)]
struct Scratch {
    reply: Vec<u8>,
    notification: Vec<u8>,
    groups: Vec<GroupId>,
}

/// A scratch buffer that has become larger than this is given back.
const SCRATCH_BYTES_MAX: usize = 64 * 1024;

impl<L> std::fmt::Debug for Server<L> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Server").field("id", &self.id).field("figures", &self.figures()).finish()
    }
}

impl<L> Server<L> {
    /// What it is busy with. Looks at every session.
    pub fn figures(&self) -> Figures {
        Figures {
            sessions: self.sessions.len(),
            monitors: self.groups.monitors(),
            triggers: self.waits.len(),
            locks: self.locks.owned(),
            backlog_bytes: self.sessions.iter().map(|(_, session)| session.output.backlog_bytes()).sum(),
        }
    }

    /// The locks that a session has asked for.
    pub fn claims(&self, session: SessionId) -> Claims {
        let names = self.sessions.get(session).into_iter().flat_map(|session| &session.locks);
        self.locks.claims(names.map(|name| &**name), session)
    }

    /// Grows whenever [`Self::claims`] of somebody may have changed.
    pub fn lock_changes(&self) -> u64 {
        self.locks.changes()
    }

    /// What `get_server_id` answers.
    pub fn server_id(&self) -> Uuid {
        self.id
    }

    /// The bytes to send to a session.
    pub fn output(&mut self, session: SessionId) -> Option<&mut Output> {
        self.sessions.get_mut(session).map(|session| &mut session.output)
    }

    /// What a session makes the server keep: its output, of what it shares with others its part; its transactions that
    /// wait; the names of its locks and monitors, and the monitors' conditions.
    pub fn session_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(0, |session| session.output.kept_bytes() + session.kept_bytes)
    }

    /// Appends the sessions that have output that became visible since the last call.
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

    /// Appends the sessions that the server has ended, and why in the words of the stock server's log. Their
    /// connections are to be closed, and [`Self::disconnect`] is to be called, when what is visible of their output has
    /// been sent.
    pub fn take_closed(&mut self, into: &mut Vec<(SessionId, String)>) {
        into.append(&mut self.closed);
    }

    /// `monitor_cond` and `monitor_cond_since` are unknown methods from now on. Their monitors go on until their
    /// sessions end.
    pub fn disable_monitor_cond(&mut self) {
        self.without_monitor_cond = true;
    }

    /// When [`Self::on_deadline`] is to be called, in monotonic time.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.waits.next_deadline_ms()
    }
}

impl<L: Log> Server<L> {
    /// A server that hosts nothing but `_Server`.
    pub fn new(limits: Limits, mut random: Random) -> Result<Self, Error> {
        let id = random();
        let mut this = Self {
            limits,
            random,
            id,
            databases: Databases::default(),
            sessions: Sessions::default(),
            locks: Locks::default(),
            groups: Groups::default(),
            waits: Waits::default(),
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

    /// A client has come. None: there are too many.
    pub fn connect(&mut self, options: SessionOptions) -> Option<SessionId> {
        (self.sessions.len() < self.limits.sessions)
            .then(|| self.sessions.insert(Session { options, ..Session::default() }))
    }

    /// A client has gone. What was its goes with it.
    pub fn disconnect(&mut self, session: SessionId) {
        if self.sessions.get(session).is_some() {
            self.flush_group();
            self.release(session);
            self.sessions.remove(session);
            self.sessions.publish();
        }
    }

    /// Takes from a session what it has of the server; what others hear of it is held.
    fn release(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.ended = true;
        session.kept_bytes = 0;
        let (monitors, locks) = (std::mem::take(&mut session.monitors), std::mem::take(&mut session.locks));
        if std::mem::take(&mut session.waits) > 0 {
            self.waits.remove_session(id);
        }
        for monitor in &monitors {
            self.leave_group(monitor.group, id, &monitor.id);
        }
        for name in &locks {
            if let Some(owner) = self.locks.unlock(name, id) {
                self.tell_lock("locked", name, owner);
            }
        }
    }

    /// Ends a session because the server wants it, for a reason that is logged. What it was told before can still be
    /// sent.
    fn close_session(&mut self, id: SessionId, reason: &str) {
        if self.sessions.get(id).is_some_and(|session| !session.ended) {
            self.release(id);
            self.closed.push((id, reason.to_owned()));
        }
    }

    /// Takes one message, which a [`wire::jsonrpc::Framer`] has accepted.
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
            // The answer to the `echo` by which we look whether anybody is there.
            Ok(Message::Reply { id, .. }) if id.as_string().is_some_and(|id| id == "echo") => Ok(()),
            Ok(Message::Reply { .. }) => Err(Disconnect::UnexpectedReply),
            Ok(Message::Error { .. }) => Err(Disconnect::UnexpectedError),
            Err(error) => Err(Disconnect::BadMessage(error)),
        }
    }

    /// The end of a wake-up: transactions that wait are tried again where something changed, what was committed is
    /// written, and what was held becomes visible.
    pub fn flush(&mut self, now: Now) {
        self.run_waits(now);
        self.flush_group();
        self.close_too_slow();
        for hosted in self.databases.iter_mut() {
            hosted.database.rest();
        }
    }

    /// The time of [`Self::next_deadline_ms`] has come.
    pub fn on_deadline(&mut self, now: Now) {
        self.flush(now);
    }

    /// Asks a session whether it is there; the answer is swallowed.
    pub fn probe(&mut self, session: SessionId) {
        if let Some(output) = self.sessions.output(session) {
            output.append(b"{\"id\":\"echo\",\"method\":\"echo\",\"params\":[]}");
            self.flush_group();
        }
    }

    /// The loop has sent bytes of a session's output. Where that lets monitors catch up, what was committed before is
    /// written first.
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
