//! The loop itself: slots, turns, sleep.
//!
//! ```text
//!   wake-up ─> serve  ready connections, each one turn; then some of the busy ones
//!                     │ what they ask is executed; transactions collect in a group
//!              end    write the group; retry transactions that wait; send
//! ```
//! A turn is one read and the messages in it, until it has taken too long; the rest waits for the connection's next
//! turn. A connection whose last turns were long is busy. Events are polled for after a while of each kind, so a peer
//! that asks for little waits for about one long request at most.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use journal::RealDisk;
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};
use ovsdb::server::{Now, SessionId};

use super::compaction::Compactions;
use super::connection::Connection;
use super::control::{Command, Ticket};
use super::coverage::{Coverage, Event as Counted};
use super::held::Held;
use super::logger::text_of;
use super::logger::{Level, Logger};
use super::outgoing::Outgoing;
use super::remote::{Endpoint, Security};
use super::remote_status::Reporting;
use super::remotes::{Options, Remotes};
use super::resolver::Resolver;
use super::tls::Tls;
use super::{Answer, Core};
use crate::clock::{Clock, mono_us};
use transport::{Listener, Stream};

const WAKE: Token = Token(usize::MAX);
const EVENTS: usize = 1024;
/// Most bytes read from one connection in one turn. Fits the second-level cache.
const BUFFER_BYTES: usize = 256 << 10;
/// Connections that are read before their changes are written to the logs.
const TURN_CONNECTIONS: usize = 256;
/// How long connections that are not busy are served before events are polled for again.
const READY_US: u64 = 1000;
/// How long each of the other kinds of work goes on then: busy connections, waiting transactions, output.
const SLICE_US: u64 = 300;
/// Output of this size is sent at once to a connection that was served; other output, after that.
const SENT_AT_ONCE_BYTES: usize = 64 << 10;
/// How long output is sent at the end.
const LAST_SEND_US: u64 = 200_000;
/// Delay until listeners that could not be opened are tried again.
const LISTEN_RETRY_MS: u64 = 5_000;

/// The loop's settings.
pub struct Settings {
    /// Where its log lines go.
    pub logger: Arc<dyn Logger>,
    /// Relative names of sockets are below this directory.
    pub run_directory: PathBuf,
    /// Limits of messages.
    pub messages: wire::jsonrpc::Limits,
    /// Unsent output of a session beyond which the loop does not read from it, in bytes.
    pub backlog_bytes: usize,
    /// Most bytes that the loop may hold for all clients together.
    pub client_bytes: usize,
}

/// The process around the loop.
pub trait Host {
    /// Executes a command of the control socket.
    fn command(&mut self, events: &mut EventLoop, command: &Command) -> Answer;

    /// A signal has arrived, or a [`Waker`] was called.
    fn woken(&mut self, events: &mut EventLoop);

    /// A turn begins, at this time of the monotonic clock.
    fn turn_began(&mut self, _mono_us: u64) {}

    /// A turn ends: all requests are answered.
    fn turn_ended(&mut self, _events: &mut EventLoop) {}
}

/// Wakes the loop, from any thread.
#[derive(Clone)]
pub struct Waker {
    waker: Arc<mio::Waker>,
    called: Arc<AtomicBool>,
}

impl Waker {
    /// Makes the loop call [`Host::woken`].
    pub fn wake(&self) {
        self.called.store(true, Relaxed);
        let _ = self.waker.wake();
    }
}

/// What a token stands for.
pub(super) enum Slot {
    Free,
    /// A remote's listener, or the control socket's if there is no remote.
    Listener(Listener, Option<Box<str>>),
    Connection(Box<Connection>),
    /// An outgoing remote's socket that is not connected yet.
    Connecting(Stream, Box<str>),
    /// Becomes readable when a signal has come.
    Signal(UnixStream),
}

/// The loop.
pub struct EventLoop {
    pub(super) server: Core,
    pub(super) logger: Arc<dyn Logger>,
    pub(super) poll: Poll,
    waker: Waker,
    pub(super) slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots that become free at the end of the turn: pending events may still refer to what was there.
    freed: Vec<usize>,
    /// Connections to be read.
    pub(super) ready: VecDeque<usize>,
    /// Those of them that are busy.
    pub(super) busy: VecDeque<usize>,
    /// Connections with output that is not sent at once.
    pub(super) senders: VecDeque<usize>,
    /// Listeners at which more connections may wait.
    pub(super) accepting: VecDeque<usize>,
    pub(super) sessions: BTreeMap<SessionId, usize>,
    pub(super) remotes: Remotes,
    pub(super) outgoing: BTreeMap<Box<str>, Outgoing>,
    pub(super) resolver: Resolver,
    pub(super) tls: Tls,
    pub(super) reporting: Reporting,
    /// When to check which connection (slot, serial), if it still exists.
    pub(super) probes: BTreeSet<(u64, usize, u64)>,
    pub(super) compactions: Compactions,
    coverage: Coverage,
    /// Commands that wait to be executed: slot, serial, text.
    pub(super) commands: VecDeque<(Ticket, Vec<u8>)>,
    pub(super) held: Held,
    pub(super) settings: Settings,
    pub(super) now: Now,
    clock: Clock,
    /// Unix connections so far: logs number them.
    pub(super) unix_connections: u64,
    serials: u64,
    pub(super) control_connections: usize,
    /// No connection can be accepted until one closes.
    pub(super) starved: bool,
    /// When to try again to open listeners that could not be opened.
    pub(super) listen_again_ms: Option<u64>,
    stopping: bool,
    longest_turn: Duration,
    /// When the last turn of a connection ended.
    pub(super) turn_us: u64,
    ready_sessions: Vec<SessionId>,
    closed_sessions: Vec<(SessionId, String)>,
}

impl EventLoop {
    /// A loop that runs `server` once [`Self::run`] is called.
    pub fn new(server: Core, settings: Settings) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker {
            waker: Arc::new(mio::Waker::new(poll.registry(), WAKE)?),
            called: Arc::new(AtomicBool::new(false)),
        };
        let resolver = Resolver::new(Arc::clone(&waker.waker));
        let tls = Tls::new(Arc::clone(&waker.waker));
        let mut this = Self {
            server,
            logger: Arc::clone(&settings.logger),
            poll,
            waker,
            slots: Vec::new(),
            free: Vec::new(),
            freed: Vec::new(),
            ready: VecDeque::new(),
            busy: VecDeque::new(),
            senders: VecDeque::new(),
            accepting: VecDeque::new(),
            sessions: BTreeMap::new(),
            remotes: Remotes::default(),
            outgoing: BTreeMap::new(),
            resolver,
            tls,
            reporting: Reporting::default(),
            probes: BTreeSet::new(),
            compactions: Compactions::default(),
            coverage: Coverage::default(),
            commands: VecDeque::new(),
            held: Held::default(),
            settings,
            now: Now::default(),
            clock: Clock::start(),
            unix_connections: 0,
            serials: 0,
            control_connections: 0,
            starved: false,
            listen_again_ms: None,
            stopping: false,
            longest_turn: Duration::ZERO,
            turn_us: 0,
            ready_sessions: Vec::new(),
            closed_sessions: Vec::new(),
        };
        this.read_clock();
        Ok(this)
    }

    /// The server of databases.
    pub fn server(&mut self) -> &mut Core {
        &mut self.server
    }

    /// The server of databases, read-only.
    pub fn core(&self) -> &Core {
        &self.server
    }

    /// The times of this turn.
    pub fn now(&self) -> Now {
        self.now
    }

    /// The longest turn so far: from waking up to going to sleep.
    pub fn longest_turn(&self) -> Duration {
        self.longest_turn
    }

    /// The event counters in the stock server's format.
    pub fn coverage(&self) -> String {
        self.coverage.show(self.now.monotonic_ms)
    }

    /// One of the event counters.
    pub fn coverage_of(&self, name: &str) -> Option<u64> {
        self.coverage.total(name)
    }

    pub(super) fn count(&mut self, event: Counted) {
        self.coverage.count(event, self.now.monotonic_ms);
    }

    /// A handle with which other threads wake the loop.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The disk whose background work wakes this loop up.
    pub fn disk(&self) -> RealDisk {
        let waker = Arc::clone(&self.waker.waker);
        RealDisk::new(Some(Arc::new(move || {
            let _ = waker.wake();
        })))
    }

    /// Calls [`Host::woken`] whenever the other end of `pipe` is written to.
    pub fn watch(&mut self, pipe: std::os::unix::net::UnixStream) -> io::Result<()> {
        pipe.set_nonblocking(true)?;
        let mut pipe = UnixStream::from_std(pipe);
        let slot = self.new_slot();
        self.poll.registry().register(&mut pipe, Token(slot), Interest::READABLE)?;
        self.put(slot, Slot::Signal(pipe));
        Ok(())
    }

    /// Ends [`Self::run`] after this turn.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Opens the configured remotes now, not at the end of a turn.
    pub fn open_remotes(&mut self) {
        self.read_clock();
        self.configure();
    }

    /// Runs until [`Self::stop`] is called. Then closes everything and removes the names of the sockets.
    pub fn run(&mut self, host: &mut dyn Host) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0u8; BUFFER_BYTES].into_boxed_slice();
        self.read_clock();
        self.end_turn(host);
        while !self.stopping {
            let timeout = self.sleep();
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            let begun_us = self.read_clock();
            self.turn_us = begun_us;
            host.turn_began(begun_us);
            for event in &events {
                self.note(event, host);
            }
            self.accept_more();
            self.serve(&mut buffer);
            self.end_turn(host);
            let turn = Duration::from_micros(mono_us().saturating_sub(begun_us));
            self.longest_turn = self.longest_turn.max(turn);
        }
        self.close_everything();
        Ok(())
    }

    /// Serves the connections that have something to be read, the busy ones last.
    fn serve(&mut self, buffer: &mut [u8]) {
        if self.ready.len() + self.busy.len() > 1 {
            // Many events and connections to be accepted take time that is not the first connection's.
            self.turn_us = mono_us();
        }
        let until_us = self.turn_us + READY_US;
        for _ in 0..self.ready.len().min(TURN_CONNECTIONS) {
            let Some(slot) = self.ready.pop_front().filter(|_| !self.stopping) else { return };
            self.receive(slot, buffer);
            self.bound_held();
            if self.turn_us >= until_us {
                break;
            }
        }
        let until_us = self.turn_us + SLICE_US;
        for _ in 0..self.busy.len() {
            let Some(slot) = self.busy.pop_front().filter(|_| !self.stopping) else { return };
            self.receive(slot, buffer);
            self.bound_held();
            if self.turn_us >= until_us {
                break;
            }
        }
    }

    /// Retries transactions that wait for what has changed, writes the group, and notifies monitors of what they were
    /// not notified of at once.
    fn flush(&mut self) {
        let is_due = self.server.next_deadline_ms().is_some_and(|due_ms| due_ms <= self.now.monotonic_ms);
        if !is_due {
            return self.server.flush();
        }
        let until_us = mono_us() + SLICE_US;
        self.server.run_waits(self.now, &mut || mono_us() < until_us);
        self.server.flush();
        let until_us = mono_us() + SLICE_US;
        self.server.notify_late(&mut || mono_us() < until_us);
    }

    /// The end of a turn.
    fn end_turn(&mut self, host: &mut dyn Host) {
        self.take_shaken();
        self.flush();
        self.send_ready();
        self.send_more(SLICE_US);
        self.bound_held();
        while let Some((ticket, text)) = self.commands.pop_front() {
            self.execute(host, ticket, &text);
        }
        self.configure_if_changed();
        self.use_names();
        self.outgoing_due();
        self.probes_due();
        self.compact();
        self.listen_again();
        self.report();
        self.log_notes();
        // Commands, changed remotes and probes may have produced output for sessions.
        self.send_ready();
        self.free.append(&mut self.freed);
        host.turn_ended(self);
    }

    fn send_ready(&mut self) {
        let mut sessions = std::mem::take(&mut self.ready_sessions);
        self.server.take_ready(&mut sessions);
        for session in sessions.drain(..) {
            let Some(slot) = self.sessions.get(&session).copied() else { continue };
            let Some(Slot::Connection(connection)) = self.slots.get_mut(slot) else { continue };
            let is_short = self
                .server
                .output(session)
                .is_some_and(|output| output.backlog_bytes() <= SENT_AT_ONCE_BYTES);
            if std::mem::take(&mut connection.served) && is_short {
                self.send(slot);
            } else {
                self.send_later(slot);
            }
        }
        self.ready_sessions = sessions;
        let mut closed = std::mem::take(&mut self.closed_sessions);
        self.server.take_closed(&mut closed);
        for (session, reason) in closed.drain(..) {
            if let Some(slot) = self.sessions.get(&session).copied() {
                self.end_session(slot, &reason);
            }
        }
        self.closed_sessions = closed;
    }

    /// Queues a connection that has output.
    pub(super) fn send_later(&mut self, slot: usize) {
        if let Some(Slot::Connection(connection)) = self.slots.get_mut(slot)
            && !std::mem::replace(&mut connection.sending, true)
        {
            self.senders.push_back(slot);
        }
    }

    /// Sends to the connections that wait for it, each a part of its output, for this long.
    fn send_more(&mut self, slice_us: u64) {
        if self.senders.is_empty() {
            return;
        }
        let until_us = mono_us() + slice_us;
        for _ in 0..self.senders.len() {
            let Some(slot) = self.senders.pop_front() else { return };
            if let Some(Slot::Connection(connection)) = self.slots.get_mut(slot)
                && std::mem::take(&mut connection.sending)
            {
                self.send(slot);
                if mono_us() >= until_us {
                    return;
                }
            }
        }
    }

    /// Queues a connection that is to be read.
    pub(super) fn receive_later(&mut self, slot: usize) {
        if let Some(Slot::Connection(connection)) = self.slots.get_mut(slot)
            && !std::mem::replace(&mut connection.queued, true)
        {
            let queue = if connection.load.is_busy() { &mut self.busy } else { &mut self.ready };
            queue.push_back(slot);
        }
    }

    fn note(&mut self, event: &mio::event::Event, host: &mut dyn Host) {
        if event.token() == WAKE {
            if self.waker.called.swap(false, Relaxed) {
                host.woken(self);
            }
            return;
        }
        let slot = event.token().0;
        match self.slots.get_mut(slot) {
            Some(Slot::Connection(connection)) => {
                connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                connection.closed_by_peer |= event.is_read_closed() || event.is_error();
                connection.dead |= event.is_error() || event.is_write_closed();
                let writable = event.is_writable() && connection.blocked;
                if connection.readable {
                    self.receive_later(slot);
                }
                if writable {
                    self.send_later(slot);
                }
            }
            Some(Slot::Listener(..)) => self.accept(slot),
            Some(Slot::Connecting(..)) => self.connecting(slot),
            Some(Slot::Signal(pipe)) => {
                let mut drained = [0; 64];
                while pipe.read(&mut drained).is_ok_and(|count| count == drained.len()) {}
                host.woken(self);
            }
            _ => {}
        }
    }

    /// How long to sleep: indefinitely, unless something is armed.
    fn sleep(&self) -> Option<Duration> {
        let queues = [&self.ready, &self.busy, &self.senders, &self.accepting];
        if queues.iter().any(|queue| !queue.is_empty()) || self.compactions.has_more() {
            return Some(Duration::ZERO);
        }
        let next = [
            self.server.next_deadline_ms(),
            self.probes.first().map(|(due_ms, ..)| *due_ms),
            self.outgoing.values().filter_map(Outgoing::deadline_ms).min(),
            self.listen_again_ms,
            self.reporting.due_ms(),
        ];
        let next = next.into_iter().flatten().min()?;
        let now_ms = mono_us() / 1000;
        Some(Duration::from_millis(next.saturating_sub(now_ms)))
    }

    /// Reads the clocks for this turn. Returns its start in microseconds.
    fn read_clock(&mut self) -> u64 {
        let now = self.clock.now();
        self.now = Now { wall_ms: now.unix_ns / 1_000_000, monotonic_ms: now.mono_ms() };
        now.mono_us
    }

    pub(super) fn new_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() - 1
        })
    }

    pub(super) fn put(&mut self, slot: usize, what: Slot) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = what;
        }
    }

    /// Takes the contents of a slot, which must be put back or the slot freed.
    pub(super) fn take(&mut self, slot: usize) -> Slot {
        self.slots.get_mut(slot).map_or(Slot::Free, |place| std::mem::replace(place, Slot::Free))
    }

    pub(super) fn free_slot(&mut self, slot: usize) {
        self.put(slot, Slot::Free);
        self.freed.push(slot);
    }

    pub(super) fn new_serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    pub(super) fn log(&self, module: &'static str, level: Level, text: &str) {
        self.logger.log(module, level, text);
    }

    /// Opens a remote's listener. Failures are logged and retried later.
    pub(super) fn open_listener(
        &mut self,
        name: &str,
        remote: &super::Remote,
        dscp: u8,
        loud: bool,
    ) -> Result<usize, &'static str> {
        self.count(Counted::ListenerOpened);
        let opened = match remote {
            super::Remote::ListenUnix(path) => Listener::unix_in_place_of(path),
            super::Remote::ListenInherited(number) => Listener::inherited(*number),
            super::Remote::ListenTcp(Endpoint::Address(address), _) => {
                Listener::tcp(*address).inspect(|listener| listener.set_dscp(dscp))
            }
            _ => return Err("not a listener"),
        };
        let opened = opened.and_then(|mut listener| {
            let slot = self.new_slot();
            self.poll.registry().register(&mut listener, Token(slot), Interest::READABLE)?;
            Ok((listener, slot))
        });
        match opened {
            Ok((listener, slot)) => {
                if let (super::Remote::ListenTcp(Endpoint::Address(address), _), Some(port)) =
                    (remote, listener.tcp_address().map(|bound| bound.port()))
                    && address.port() == 0
                {
                    let target = name.split_once(':').map_or(name, |(_, target)| target);
                    self.log(
                        "socket_util",
                        Level::Information,
                        &format!("{target}: listening on port {port}"),
                    );
                }
                self.put(slot, Slot::Listener(listener, Some(name.into())));
                Ok(slot)
            }
            Err(error) => {
                let error = text_of(&error);
                if loud {
                    match remote {
                        super::Remote::ListenUnix(path) => {
                            self.log_not_bound(path, &error);
                        }
                        super::Remote::ListenInherited(_) => {}
                        _ => {
                            let target = name.split_once(':').map_or(name, |(_, target)| target);
                            self.log("socket_util", Level::Error, &format!("{target}: bind: {error}"));
                        }
                    }
                    let text = format!("{name}: listen failed: {error}");
                    self.log("ovsdb_jsonrpc_server", Level::Error, &text);
                }
                self.listen_again_later();
                Err("listen failed")
            }
        }
    }

    /// Logs that a Unix socket could not be bound, and tries to remove its name, as the stock server does.
    pub(super) fn log_not_bound(&self, path: &std::path::Path, error: &str) {
        if let Err(error) = std::fs::remove_file(path) {
            let text = format!("could not unlink \"{}\" ({})", path.display(), text_of(&error));
            self.log("fatal_signal", Level::Warning, &text);
        }
        // COMPAT: for names that do not fit an address the stock server logs nothing more.
        if path.as_os_str().len() <= transport::SOCKET_NAME_MAX {
            self.log("stream_unix", Level::Error, &format!("{}: binding failed: {error}", path.display()));
        }
    }

    /// Schedules a retry for listeners that are not open.
    pub(super) fn listen_again_later(&mut self) {
        self.listen_again_ms = Some(self.now.monotonic_ms + LISTEN_RETRY_MS);
    }

    fn listen_again(&mut self) {
        if self.listen_again_ms.is_some_and(|due_ms| due_ms <= self.now.monotonic_ms) {
            self.listen_again_ms = None;
            self.retry_listeners();
        }
    }

    /// The options of a remote that is in force.
    pub(super) fn options_of(&self, remote: &str) -> Options {
        self.remotes.in_force.get(remote).map(|state| state.options.clone()).unwrap_or_default()
    }

    /// Returns true if peers that connect through a remote speak TLS.
    pub(super) fn is_tls(&self, remote: &str) -> bool {
        self.remotes.in_force.get(remote).is_some_and(|state| state.security() == Security::Tls)
    }

    fn log_notes(&mut self) {
        for line in self.server.take_table_log() {
            self.log("transaction", Level::Information, &line);
        }
        for (module, level, text) in super::remotes::take_notes(&mut self.server, &self.remotes.hosted) {
            self.log(module, level, &text);
        }
    }

    fn close_everything(&mut self) {
        self.server.flush();
        self.send_ready();
        self.send_more(LAST_SEND_US);
        self.slots.clear();
        self.held.clear();
        self.free.clear();
        self.freed.clear();
        self.sessions.clear();
    }
}
