//! Remotes that this process connects to.

use mio::{Interest, Token};
use ovsdb::error::system_text;

use super::Remote;
use super::event_loop::{EventLoop, Slot};
use super::logger::Level;
use super::reconnect::{Announcement, BACKOFF_MAX_MS, Reconnect, State, seconds};
use super::remotes::Options;
use super::stream::{Stream, text_of};

/// The system's number of "connection timed out".
const ETIMEDOUT: i32 = 110;

/// An outgoing remote.
#[derive(Debug)]
pub(super) struct Outgoing {
    remote: Remote,
    options: Options,
    reconnect: Reconnect,
    /// Where its socket is.
    slot: Option<usize>,
}

impl Outgoing {
    pub fn deadline_ms(&self) -> Option<u64> {
        self.reconnect.deadline_ms()
    }
}

impl EventLoop {
    pub(super) fn add_outgoing(&mut self, name: &str, remote: Remote, options: &Options) {
        let max_ms = options.backoff_max_ms.unwrap_or(BACKOFF_MAX_MS);
        let reconnect = Reconnect::new(self.now.monotonic_ms, max_ms);
        let outgoing = Outgoing { remote, options: options.clone(), reconnect, slot: None };
        self.outgoing.insert(name.into(), outgoing);
    }

    pub(super) fn remove_outgoing(&mut self, name: &str) {
        if let Some(slot) = self.outgoing.remove(name).and_then(|outgoing| outgoing.slot) {
            self.close_slot(slot);
        }
    }

    /// Does what is due: connects, or gives an attempt up.
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
                State::Active(_) => {}
            }
        }
    }

    fn connect(&mut self, name: &str) {
        let now_ms = self.now.monotonic_ms;
        let Some(outgoing) = self.outgoing.get_mut(name) else { return };
        let loud = outgoing.reconnect.is_loud();
        outgoing.reconnect.state = State::Connecting(now_ms);
        let listens = outgoing.remote.listens();
        let opened = match &outgoing.remote {
            Remote::ConnectUnix(path) => Stream::connect_unix(path).map_err(|error| text_of(&error)),
            Remote::ConnectTcp(address) => Stream::connect_tcp(*address).map_err(|error| text_of(&error)),
            Remote::Unusable { module, text, error, .. } => {
                if loud && !text.is_empty() {
                    let level = if *module == "dns_resolve" { Level::Warning } else { Level::Error };
                    self.logger.log(module, level, text);
                }
                Err((*error).to_owned())
            }
            _ => return,
        };
        if loud {
            let doing = if listens { "listening" } else { "connecting" };
            self.log("reconnect", Level::Information, &format!("{name}: {doing}..."));
        }
        match opened {
            Err(error) => self.attempt_failed(name, &error),
            Ok(mut stream) => {
                let slot = self.new_slot();
                let interest = Interest::READABLE | Interest::WRITABLE;
                if let Err(error) = stream.register(self.poll.registry(), Token(slot), interest) {
                    self.free_slot(slot);
                    return self.attempt_failed(name, &text_of(&error));
                }
                self.put(slot, Slot::Connecting(stream, name.into()));
                if let Some(outgoing) = self.outgoing.get_mut(name) {
                    outgoing.slot = Some(slot);
                }
                self.connecting(slot);
            }
        }
    }

    /// Looks whether the connection in a slot is there.
    pub(super) fn connecting(&mut self, slot: usize) {
        let (stream, name) = match self.take(slot) {
            Slot::Connecting(stream, name) => (stream, name),
            other => return self.put(slot, other),
        };
        match stream.is_connected() {
            Ok(false) => self.put(slot, Slot::Connecting(stream, name)),
            Ok(true) => {
                self.free_slot(slot);
                let options = self.outgoing.get(&name).map(|outgoing| outgoing.options.clone());
                let Some(options) = options else { return };
                self.log("reconnect", Level::Information, &format!("{name}: connected"));
                let session = self.add_session(stream, name.to_string(), name.clone(), &options);
                let now_ms = self.now.monotonic_ms;
                match (session, self.outgoing.get_mut(&name)) {
                    (Some(slot), Some(outgoing)) => {
                        outgoing.slot = Some(slot);
                        outgoing.reconnect.state = State::Active(now_ms);
                    }
                    _ => self.attempt_failed(&name, "Too many sessions"),
                }
            }
            Err(error) => {
                drop(stream);
                self.free_slot(slot);
                self.attempt_failed(&name, &text_of(&error));
            }
        }
    }

    fn attempt_failed(&mut self, name: &str, error: &str) {
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
    }

    /// The connection of a remote, if it is an outgoing one, is lost.
    pub(super) fn outgoing_lost(&mut self, name: &str, slot: usize, received_ms: u64) {
        let now_ms = self.now.monotonic_ms;
        if let Some(outgoing) = self.outgoing.get_mut(name)
            && outgoing.slot == Some(slot)
        {
            outgoing.slot = None;
            let announcement = outgoing.reconnect.failed(now_ms, received_ms);
            self.announce(name, announcement);
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
