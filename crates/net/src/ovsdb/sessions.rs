//! Connections: how they are accepted, read, written, probed and closed.

use std::io::{self, Write as _};

use mio::{Interest, Token};
use ovsdb::error::system_text;
use ovsdb::server::SessionOptions;

use super::Core;
use super::EventLoop;
use super::connection::{Connection, ControlState, Probe, Role, Unframed};
use super::event_loop::Slot;
use super::logger::Level;
use super::logger::text_of;
use super::probes::probe_interval;
use super::remotes::Options;
use crate::backlog::Sent;
use crate::clock::mono_us;
use crate::refusals::{NOT_TLS, begins_tls};
use crate::write::{Written, write_bytes, write_slices};
use transport::{Certificate, Stream, TlsError};

/// Output of one connection that is sent before others get their turn.
const SEND_TURN_BYTES: usize = 256 << 10;
/// Connections that are accepted at a listener before others get their turn.
const ACCEPT_TURN: usize = 8;
/// A turn of a connection ends after this time.
const TURN_US: u64 = 1000;
/// The same while others have something to be read.
const CROWDED_TURN_US: u64 = 100;
/// Most bytes read from a busy connection at once, unless it has sent a part of a message: what is read and not
/// executed is kept.
const BUSY_READ_BYTES: usize = 16 << 10;
/// A connection whose peer does not read its last output is closed after this time.
const CLOSING_MS: u64 = 60_000;
/// Most concurrent control connections.
const CONTROL_CONNECTIONS_MAX: usize = 256;
/// The system's error numbers for "input/output error", "protocol error" and "cannot allocate memory".
const EIO: i32 = 5;
const EPROTO: i32 = 71;
const ENOMEM: i32 = 12;

impl EventLoop {
    /// Accepts connections that wait at a listener.
    pub(super) fn accept(&mut self, slot: usize) {
        for _ in 0..ACCEPT_TURN {
            let Some(Slot::Listener(listener, remote)) = self.slots.get(slot) else { return };
            let remote = remote.clone();
            match listener.accept() {
                Ok((stream, address)) => {
                    let is_tls = remote.as_deref().is_some_and(|remote| self.is_tls(remote));
                    let name = match address {
                        Some(address) if is_tls => format!("ssl:{address}"),
                        Some(address) => format!("tcp:{address}"),
                        None => {
                            self.unix_connections += 1;
                            format!("unix#{}", self.unix_connections - 1)
                        }
                    };
                    match remote {
                        Some(remote) if is_tls => {
                            let at = listener.tcp_address();
                            let listener = at.map(|at| format!("pssl:{}:{}", at.port(), at.ip()));
                            self.accept_tls(stream, name, remote, &listener.unwrap_or_default());
                        }
                        Some(remote) => {
                            let options = self.options_of(&remote);
                            self.add_session(stream, name, remote, &options);
                        }
                        None => self.add_control(stream, name),
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        if !std::mem::replace(&mut self.starved, true) {
                            let text = format!(
                                "accept: {}; no connection can be accepted until one closes",
                                text_of(&error)
                            );
                            self.log("socket_util", Level::Warning, &text);
                        }
                        return;
                    }
                },
            }
        }
        if !self.accepting.contains(&slot) {
            self.accepting.push_back(slot);
        }
    }

    /// Goes on accepting where there were many.
    pub(super) fn accept_more(&mut self) {
        for _ in 0..self.accepting.len() {
            if let Some(slot) = self.accepting.pop_front() {
                self.accept(slot);
                self.turn_us = mono_us();
            }
        }
    }

    /// Resumes accepting: a connection has closed, so there may be file descriptors again.
    fn accept_again(&mut self) {
        if std::mem::take(&mut self.starved) {
            for slot in 0..self.slots.len() {
                self.accept(slot);
            }
        }
    }

    /// Makes a session of a connected socket.
    pub(super) fn add_session(
        &mut self,
        stream: Stream,
        name: String,
        remote: Box<str>,
        options: &Options,
    ) -> Option<usize> {
        let certificate = stream.peer_certificates().next().and_then(Certificate::read);
        let session = SessionOptions {
            name: name.clone(),
            read_only: options.read_only,
            role: options.role.clone(),
            client: certificate.and_then(|certificate| certificate.common_name),
        };
        let Some(id) = self.server.connect(session) else {
            let text = format!("{name}: refused: there are as many sessions as are allowed");
            self.log("ovsdb_jsonrpc_server", Level::Warning, &text);
            return None;
        };
        let probe_ms = probe_interval(&stream, options.probe_ms);
        let slot = self.add_connection(stream, name, Role::Session { id, remote: remote.clone() }, probe_ms);
        match slot {
            Some(slot) => {
                self.sessions.insert(id, slot);
                self.count_session(&remote, 1);
            }
            None => self.server.disconnect(id),
        }
        slot
    }

    /// Adjusts the number of sessions of a remote.
    fn count_session(&mut self, remote: &str, by: isize) {
        if let Some(state) = self.remotes.in_force.get_mut(remote) {
            state.sessions = state.sessions.saturating_add_signed(by);
        }
        self.report_soon();
    }

    fn add_control(&mut self, stream: Stream, name: String) {
        if self.control_connections >= CONTROL_CONNECTIONS_MAX {
            self.log("unixctl", Level::Warning, &format!("{name}: refused: too many connections"));
            return;
        }
        if self.add_connection(stream, name, Role::Control(ControlState::default()), 0).is_some() {
            self.control_connections += 1;
        }
    }

    fn add_connection(
        &mut self,
        mut stream: Stream,
        name: String,
        role: Role,
        probe_ms: u64,
    ) -> Option<usize> {
        let slot = self.new_slot();
        let token = Token(slot);
        // An outgoing connection is registered already, for another interest.
        let registered = match self.poll.registry().register(&mut stream, token, Interest::READABLE) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.poll.registry().reregister(&mut stream, token, Interest::READABLE)
            }
            other => other,
        };
        if let Err(error) = registered {
            let text = format!("{name}: cannot be watched: {}", text_of(&error));
            self.log("ovsdb_jsonrpc_server", Level::Warning, &text);
            self.free_slot(slot);
            return None;
        }
        let serial = self.new_serial();
        let now_ms = self.now.monotonic_ms;
        let mut connection = Connection::new(stream, name, role, self.settings.messages, serial, now_ms);
        connection.probe = Probe { interval_ms: probe_ms, asked_ms: None };
        if probe_ms > 0 {
            self.probes.insert((now_ms + probe_ms, slot, serial));
        }
        if connection.stream.has_more() {
            // It arrived with the end of the handshake, so no socket event announces it.
            self.put(slot, Slot::Connection(Box::new(connection)));
            self.receive_later(slot);
        } else {
            self.put(slot, Slot::Connection(Box::new(connection)));
        }
        Some(slot)
    }

    fn take_connection(&mut self, slot: usize) -> Option<Box<Connection>> {
        match self.take(slot) {
            Slot::Connection(connection) => Some(connection),
            other => {
                self.put(slot, other);
                None
            }
        }
    }

    /// One turn of a connection, and what it costs.
    pub(super) fn receive(&mut self, slot: usize, buffer: &mut [u8]) {
        let begun_us = self.turn_us;
        self.turn(slot, buffer);
        if !self.is_alone() {
            self.turn_us = mono_us();
        }
        let Some(Slot::Connection(connection)) = self.slots.get_mut(slot) else { return };
        connection.load.add(self.turn_us.saturating_sub(begun_us), !connection.unframed.is_empty());
        // If output must be sent first, sending it puts the connection into the queue.
        if connection.has_input() && !must_wait(&mut self.server, connection, self.settings.backlog_bytes) {
            self.receive_later(slot);
        }
    }

    /// Returns true if no other connection waits for its turn.
    fn is_alone(&self) -> bool {
        self.ready.is_empty() && self.busy.is_empty()
    }

    /// One read, and the messages it completes.
    fn turn(&mut self, slot: usize, buffer: &mut [u8]) {
        let Some(mut connection) = self.take_connection(slot) else { return };
        connection.queued = false;
        if !connection.has_input() || must_wait(&mut self.server, &connection, self.settings.backlog_bytes) {
            self.put(slot, Slot::Connection(connection));
            return;
        }
        let is_busy = connection.load.is_busy();
        if connection.dead && !connection.unframed.is_empty() {
            // It has had a turn; nobody is there for the answers to the rest.
            self.lost(&connection);
            self.close(slot, connection);
            return;
        }
        if !connection.unframed.is_empty() {
            let unframed = std::mem::take(&mut connection.unframed);
            let taken = self.take_messages(slot, &mut connection, unframed.left());
            connection.unframed = unframed.after(taken.unwrap_or_default());
            return self.received(slot, connection, taken.is_some());
        }
        let most = if is_busy && connection.rest.is_empty() { BUSY_READ_BYTES } else { buffer.len() };
        let (buffer, _) = buffer.split_at_mut(most);
        match connection.read(buffer) {
            Ok(None) => {
                self.put(slot, Slot::Connection(connection));
                // It may hold the beginning of a record now.
                self.count_held(slot);
            }
            Ok(Some(0)) => {
                self.lost(&connection);
                self.close(slot, connection);
            }
            Ok(Some(count)) => {
                connection.received_ms = self.now.monotonic_ms;
                connection.probe.asked_ms = None;
                let bytes = buffer.get(..count).unwrap_or_default();
                let taken = self.take_messages(slot, &mut connection, bytes);
                if let Some(left) = taken.and_then(|taken| bytes.get(taken..)).filter(|left| !left.is_empty())
                {
                    connection.unframed = Unframed::new(left);
                }
                self.received(slot, connection, taken.is_some());
            }
            Err(error) if TlsError::of(&error).is_some() => {
                self.log_tls_failure("SSL_read", &connection.name, &error);
                self.dropped(&connection, "receive error", &system_text(EIO));
                self.close(slot, connection);
            }
            Err(error) => {
                self.dropped(&connection, "receive error", &text_of(&error));
                self.close(slot, connection);
            }
        }
    }

    /// Puts a connection back of which messages were executed.
    fn received(&mut self, slot: usize, mut connection: Box<Connection>, goes_on: bool) {
        connection.served = true;
        self.put(slot, Slot::Connection(connection));
        self.count_held(slot);
        if !goes_on {
            self.server.flush();
            self.finish(slot);
        }
    }

    /// Splits bytes into messages and executes them, until the turn is over. Returns the number of bytes taken; `None`
    /// if the connection must be closed.
    fn take_messages(&mut self, slot: usize, connection: &mut Connection, received: &[u8]) -> Option<usize> {
        let until_us = self.turn_us + if self.is_alone() { TURN_US } else { CROWDED_TURN_US };
        let mut bytes = received;
        while !bytes.is_empty() {
            match connection.framer.advance(bytes) {
                Ok(None) => {
                    if connection.rest.extend(bytes) {
                        break;
                    }
                    self.dropped(connection, "receive error", &system_text(ENOMEM));
                    return None;
                }
                Ok(Some(end)) => {
                    let (mine, others) = bytes.split_at(end.min(bytes.len()));
                    bytes = others;
                    if connection.rest.is_empty() {
                        if !self.message(slot, connection, mine) {
                            return None;
                        }
                    } else {
                        if !connection.rest.extend(mine) {
                            self.dropped(connection, "receive error", &system_text(ENOMEM));
                            return None;
                        }
                        let whole = std::mem::take(&mut connection.rest);
                        let goes_on = self.message(slot, connection, &whole);
                        connection.rest = whole;
                        connection.rest.clear();
                        if !goes_on {
                            return None;
                        }
                    }
                    if !bytes.is_empty()
                        && (mono_us() >= until_us
                            || must_wait(&mut self.server, connection, self.settings.backlog_bytes))
                    {
                        return Some(received.len() - bytes.len());
                    }
                }
                Err(error) => {
                    let text = format!("{}: error parsing stream: {error}", connection.name);
                    self.log("jsonrpc", Level::Warning, &text);
                    if begins_tls(bytes) {
                        // Best effort: a fresh socket takes these few bytes, or the peer is already gone.
                        let _ = connection.stream.write(NOT_TLS);
                    }
                    self.dropped(connection, "", &system_text(EPROTO));
                    return None;
                }
            }
        }
        Some(received.len())
    }

    fn message(&mut self, slot: usize, connection: &mut Connection, text: &[u8]) -> bool {
        match &mut connection.role {
            Role::Session { id, .. } => match self.server.receive(*id, text, self.now) {
                Ok(()) => true,
                Err(why) => {
                    for (module, text) in why.log_lines(&connection.name) {
                        self.log(module, Level::Warning, &text);
                    }
                    false
                }
            },
            Role::Control(control) => {
                let ticket = super::Ticket { slot, serial: connection.serial };
                if control.busy {
                    control.waiting.push(text.to_vec());
                } else {
                    control.busy = true;
                    self.commands.push_back((ticket, text.to_vec()));
                }
                true
            }
        }
    }

    /// Sends a connection's output, as far as the socket accepts it.
    pub(super) fn send(&mut self, slot: usize) {
        let Some(mut connection) = self.take_connection(slot) else { return };
        match self.write(&mut connection) {
            Ok(sent) => {
                let is_blocked = sent == Sent::Blocked;
                let watched = connection.set_blocked(is_blocked, self.poll.registry(), Token(slot));
                if watched.is_err() || sent == Sent::All && connection.closing {
                    return self.close(slot, connection);
                }
                // It may have waited for its output to be sent.
                let has_input = connection.has_input();
                self.put(slot, Slot::Connection(connection));
                self.count_held(slot);
                if has_input {
                    self.receive_later(slot);
                }
                if sent == Sent::TurnOver {
                    self.send_later(slot);
                }
            }
            Err(error) => {
                self.dropped(&connection, "send error", &text_of(&error));
                self.close(slot, connection);
            }
        }
    }

    /// Writes until nothing is left, the socket accepts no more, or the turn is over.
    fn write(&mut self, connection: &mut Connection) -> io::Result<Sent> {
        let mut budget = SEND_TURN_BYTES;
        loop {
            let Written { taken, offered } = match &mut connection.role {
                Role::Session { id, .. } => {
                    let Some(output) = self.server.output(*id).filter(|output| !output.is_empty()) else {
                        return Ok(Sent::All);
                    };
                    if budget == 0 {
                        return Ok(Sent::TurnOver);
                    }
                    let written = write_slices(&mut connection.stream, output.slices(), budget)?;
                    self.server.sent(*id, written.taken);
                    written
                }
                Role::Control(control) => {
                    let offered = control.output.len();
                    if offered == 0 {
                        return Ok(Sent::All);
                    }
                    let taken = write_bytes(&mut connection.stream, &control.output)?;
                    control.output.drain(..taken);
                    Written { taken, offered }
                }
            };
            if taken > 0 && connection.blocked {
                // The peer is alive: it reads its output, and a probe waits behind that.
                connection.received_ms = self.now.monotonic_ms;
                connection.probe.asked_ms = connection.probe.asked_ms.map(|_| self.now.monotonic_ms);
            }
            if taken < offered {
                return Ok(Sent::Blocked);
            }
            budget = budget.saturating_sub(taken);
        }
    }

    /// Closes a connection once its output has been sent.
    pub(super) fn finish(&mut self, slot: usize) {
        if let Some(Slot::Connection(connection)) = self.slots.get_mut(slot) {
            connection.closing = true;
            let due_ms = self.now.monotonic_ms + CLOSING_MS;
            let probe = (due_ms, slot, connection.serial);
            self.send(slot);
            if matches!(self.slots.get(slot), Some(Slot::Connection(_))) {
                self.probes.insert(probe);
            }
        }
    }

    /// Ends a session because the server asks for it.
    pub(super) fn end_session(&mut self, slot: usize, reason: &str) {
        if let Some(Slot::Connection(connection)) = self.slots.get(slot) {
            let text = format!("{}: disconnecting ({reason})", connection.name);
            self.log("ovsdb_jsonrpc_server", Level::Information, &text);
            self.finish(slot);
        }
    }

    /// Closes a connection that was taken out of its slot.
    pub(super) fn close(&mut self, slot: usize, mut connection: Box<Connection>) {
        self.forget_held(&mut connection);
        match &connection.role {
            Role::Session { id, remote } => {
                self.sessions.remove(id);
                self.server.disconnect(*id);
                self.count_session(remote, -1);
                self.outgoing_lost(remote, slot, connection.received_ms);
            }
            Role::Control(_) => self.control_connections -= 1,
        }
        // Its entry among the probes is dropped when it is due.
        drop(connection);
        self.free_slot(slot);
        self.accept_again();
    }

    /// Closes the contents of a slot at once.
    pub(super) fn close_slot(&mut self, slot: usize) {
        match self.take(slot) {
            Slot::Connection(connection) => self.close(slot, connection),
            Slot::Free => {}
            other => {
                drop(other);
                self.free_slot(slot);
            }
        }
    }

    /// Logs that the peer of an outgoing connection has closed it.
    fn lost(&self, connection: &Connection) {
        if let Role::Session { remote, .. } = &connection.role
            && self.outgoing.contains_key(remote)
        {
            let text = format!("{}: connection closed by peer", connection.name);
            self.log("reconnect", Level::Information, &text);
        }
    }

    fn dropped(&self, connection: &Connection, doing: &str, error: &str) {
        let name = &connection.name;
        if !doing.is_empty() {
            self.log("jsonrpc", Level::Warning, &format!("{name}: {doing}: {error}"));
        }
        if let Role::Session { .. } = connection.role {
            let text = format!("{name}: connection dropped ({error})");
            self.log("reconnect", Level::Warning, &text);
        }
    }

    /// Ends all sessions of a remote.
    pub(super) fn close_sessions_of(&mut self, name: &str) {
        for slot in 0..self.slots.len() {
            if let Some(Slot::Connection(connection)) = self.slots.get(slot)
                && matches!(&connection.role, Role::Session { remote, .. } if **remote == *name)
            {
                self.close_slot(slot);
            }
        }
    }

    /// Ends all sessions, so that clients reconnect.
    pub fn reconnect(&mut self, reason: &str) {
        for slot in self.sessions.values().copied().collect::<Vec<_>>() {
            self.end_session(slot, reason);
        }
    }
}

/// Returns true if the peer must read output before more of its requests are executed.
fn must_wait(server: &mut Core, connection: &Connection, backlog_bytes: usize) -> bool {
    let unsent = match &connection.role {
        Role::Session { id, .. } => server.output(*id).map_or(0, |output| output.backlog_bytes()),
        Role::Control(control) => control.output.len(),
    };
    unsent > backlog_bytes
}
