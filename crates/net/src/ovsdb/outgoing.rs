//! Remotes that this process connects to.

use std::net::SocketAddr;

use mio::{Interest, Token};
use ovsdb::error::system_text;

use super::coverage::Event;
use super::event_loop::{EventLoop, Slot};
use super::logger::Level;
use super::logger::text_of;
use super::reconnect::{Announcement, BACKOFF_MAX_MS, Reconnect, State, seconds};
use super::remote::{Endpoint, NO_FAMILY, Remote, Security};
use super::remotes::Options;
use super::tls::NOT_SET_UP;
use transport::Stream;

/// The system's error number for "connection timed out".
const ETIMEDOUT: i32 = 110;

/// An outgoing remote.
#[derive(Debug)]
pub(super) struct Outgoing {
    remote: Remote,
    options: Options,
    pub reconnect: Reconnect,
    /// The slot of its socket.
    pub slot: Option<usize>,
    /// Distinguishes this connection attempt from others.
    attempt: u64,
}

impl Outgoing {
    pub fn deadline_ms(&self) -> Option<u64> {
        self.reconnect.deadline_ms()
    }

    /// Returns true if this connection attempt is in progress.
    pub fn awaits(&self, attempt: u64) -> bool {
        self.attempt == attempt && matches!(self.reconnect.state, State::Connecting(_))
    }
}

impl EventLoop {
    pub(super) fn add_outgoing(&mut self, name: &str, remote: Remote, options: &Options) {
        let max_ms = options.backoff_max_ms.unwrap_or(BACKOFF_MAX_MS);
        let reconnect = Reconnect::new(self.now.monotonic_ms, max_ms);
        let outgoing = Outgoing { remote, options: options.clone(), reconnect, slot: None, attempt: 0 };
        self.outgoing.insert(name.into(), outgoing);
    }

    /// Applies changed options to a remote, if it is an outgoing one.
    pub(super) fn change_outgoing(&mut self, name: &str, options: &Options) {
        let now_ms = self.now.monotonic_ms;
        if let Some(outgoing) = self.outgoing.get_mut(name) {
            outgoing.options = options.clone();
            outgoing.reconnect.set_max(now_ms, options.backoff_max_ms.unwrap_or(BACKOFF_MAX_MS));
        }
    }

    pub(super) fn remove_outgoing(&mut self, name: &str) {
        if let Some(slot) = self.outgoing.remove(name).and_then(|outgoing| outgoing.slot) {
            self.close_slot(slot);
        }
    }

    /// Does what is due: starts an attempt to connect, or gives one up.
    pub(super) fn outgoing_due(&mut self) {
        if self.outgoing.is_empty() {
            return;
        }
        let now_ms = self.now.monotonic_ms;
        let due = |outgoing: &Outgoing| outgoing.deadline_ms().is_some_and(|due_ms| due_ms <= now_ms);
        let names: Vec<Box<str>> = self
            .outgoing
            .iter()
            .filter(|(_, outgoing)| due(outgoing))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let Some(outgoing) = self.outgoing.get(&name) else { continue };
            match outgoing.reconnect.state {
                State::Backoff(_) => self.connect(&name),
                State::Connecting(_) => {
                    if let Some(slot) = outgoing.slot {
                        self.close_slot(slot);
                    }
                    self.attempt_failed(&name, &system_text(ETIMEDOUT));
                }
                State::Resolving | State::Active(_) => {}
            }
        }
    }

    /// Continues with the remotes that waited for the name of a host.
    pub(super) fn connect_named(&mut self, host: &str, address: Option<SocketAddr>) {
        let waits = |outgoing: &Outgoing| {
            outgoing.reconnect.state == State::Resolving
                && matches!(&outgoing.remote, Remote::ConnectTcp(Endpoint::Host(other, _), _) if other == host)
        };
        let waiting = self.outgoing.iter().filter(|(_, outgoing)| waits(outgoing));
        for name in waiting.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.open(&name, address);
        }
    }

    fn connect(&mut self, name: &str) {
        let Some(outgoing) = self.outgoing.get_mut(name) else { return };
        if let Remote::ConnectTcp(Endpoint::Host(host, _), _) = &outgoing.remote {
            outgoing.reconnect.state = State::Resolving;
            self.resolver.start(host);
            return;
        }
        self.open(name, None);
    }

    /// Starts to connect. `address` is the address of the host, if it was given by name and has been resolved.
    fn open(&mut self, name: &str, address: Option<SocketAddr>) {
        self.count(Event::StreamOpened);
        let now_ms = self.now.monotonic_ms;
        let Some(outgoing) = self.outgoing.get(name) else { return };
        let is_tls = matches!(&outgoing.remote, Remote::ConnectTcp(_, Security::Tls));
        // Before the attempt is logged, as with the stock server.
        let is_possible = !is_tls || self.can_use_tls(outgoing.reconnect.is_loud());
        let Some(outgoing) = self.outgoing.get_mut(name) else { return };
        outgoing.attempt += 1;
        let loud = outgoing.reconnect.is_loud();
        outgoing.reconnect.state = State::Connecting(now_ms);
        let listens = outgoing.remote.listens();
        let dscp = outgoing.options.dscp;
        let connect = |address| {
            let stream = Stream::connect_tcp(address).map_err(|error| text_of(&error))?;
            stream.set_dscp(dscp);
            Ok(stream)
        };
        let opened = match (&outgoing.remote, address) {
            _ if !is_possible => Err(NOT_SET_UP.to_owned()),
            (Remote::ConnectUnix(path), _) => Stream::connect_unix(path).map_err(|error| text_of(&error)),
            (Remote::ConnectTcp(Endpoint::Address(address), _), _) => connect(*address),
            (Remote::ConnectTcp(Endpoint::Host(_, port), _), Some(mut address)) => {
                address.set_port(*port);
                connect(address)
            }
            (Remote::ConnectTcp(Endpoint::Host(..), _), None) => Err(NO_FAMILY.to_owned()),
            (Remote::Unusable { module, text, error, .. }, _) => {
                if loud && !text.is_empty() {
                    self.logger.log(module, Level::Error, text);
                }
                Err((*error).to_owned())
            }
            _ => return,
        };
        if let (true, Err(error)) = (loud && name.starts_with("tcp:"), &opened)
            && error == NO_FAMILY
        {
            self.log("stream_tcp", Level::Error, &format!("{name}: connect: {error}"));
        }
        if loud {
            let doing = if listens { "listening" } else { "connecting" };
            self.log("reconnect", Level::Information, &format!("{name}: {doing}..."));
        }
        match opened {
            Err(error) => self.attempt_failed(name, &error),
            Ok(mut stream) => {
                let slot = self.new_slot();
                let interest = Interest::READABLE | Interest::WRITABLE;
                if let Err(error) = self.poll.registry().register(&mut stream, Token(slot), interest) {
                    self.free_slot(slot);
                    return self.attempt_failed(name, &text_of(&error));
                }
                self.put(slot, Slot::Connecting(stream, name.into()));
                if let Some(outgoing) = self.outgoing.get_mut(name) {
                    outgoing.slot = Some(slot);
                }
                // Most attempts that fail are refused at once; their start is not worth a report.
                self.report_later();
                self.connecting(slot);
            }
        }
    }

    /// Checks whether the connection in a slot is established.
    pub(super) fn connecting(&mut self, slot: usize) {
        let (mut stream, name) = match self.take(slot) {
            Slot::Connecting(stream, name) => (stream, name),
            other => return self.put(slot, other),
        };
        match stream.is_connected() {
            Ok(false) => self.put(slot, Slot::Connecting(stream, name)),
            Ok(true) => {
                self.free_slot(slot);
                let Some(outgoing) = self.outgoing.get_mut(&name) else { return };
                outgoing.slot = None;
                let (remote, attempt) = (outgoing.remote.clone(), outgoing.attempt);
                match remote {
                    Remote::ConnectTcp(endpoint, Security::Tls) => {
                        let left = self.poll.registry().deregister(&mut stream);
                        let begun = left.and_then(|()| self.connect_tls(stream, &name, &endpoint, attempt));
                        if let Err(error) = begun {
                            self.attempt_failed(&name, &text_of(&error));
                        }
                    }
                    _ => self.connected(&name, stream),
                }
            }
            Err(error) => {
                drop(stream);
                self.free_slot(slot);
                self.attempt_failed(&name, &text_of(&error));
            }
        }
    }

    /// Makes a session of a remote's connection, which is ready for JSON-RPC.
    pub(super) fn connected(&mut self, name: &str, stream: Stream) {
        let options = self.outgoing.get(name).map(|outgoing| outgoing.options.clone());
        let Some(options) = options else { return };
        self.log("reconnect", Level::Information, &format!("{name}: connected"));
        let session = self.add_session(stream, name.to_owned(), name.into(), &options);
        let now_ms = self.now.monotonic_ms;
        match (session, self.outgoing.get_mut(name)) {
            (Some(slot), Some(outgoing)) => {
                outgoing.slot = Some(slot);
                outgoing.reconnect.connected(now_ms);
                self.report_soon();
            }
            _ => self.attempt_failed(name, "Too many sessions"),
        }
    }

    pub(super) fn attempt_failed(&mut self, name: &str, error: &str) {
        let now_ms = self.now.monotonic_ms;
        let Some(outgoing) = self.outgoing.get_mut(name) else { return };
        outgoing.slot = None;
        let loud = outgoing.reconnect.is_loud();
        let listens = outgoing.remote.listens();
        let announcement = outgoing.reconnect.failed(now_ms, 0);
        if loud {
            let what = if listens { "listen" } else { "connection" };
            let text = format!("{name}: {what} attempt failed ({error})");
            self.log("reconnect", Level::Information, &text);
        }
        self.announce(name, announcement);
        self.report_soon();
    }

    /// Handles a lost connection, if it belongs to an outgoing remote.
    pub(super) fn outgoing_lost(&mut self, name: &str, slot: usize, received_ms: u64) {
        let now_ms = self.now.monotonic_ms;
        if let Some(outgoing) = self.outgoing.get_mut(name)
            && outgoing.slot == Some(slot)
        {
            outgoing.slot = None;
            let announcement = outgoing.reconnect.failed(now_ms, received_ms);
            self.announce(name, announcement);
            self.report_soon();
        }
    }

    fn announce(&self, name: &str, announcement: Announcement) {
        let text = match announcement {
            Announcement::Nothing => return,
            Announcement::Waiting(ms) => {
                format!("{name}: waiting {} seconds before reconnect", seconds(ms))
            }
            Announcement::Suppressing => {
                format!("{name}: continuing to reconnect in the background but suppressing further logging")
            }
        };
        self.log("reconnect", Level::Information, &text);
    }
}
