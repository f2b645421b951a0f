//! One connection: a client's session, or a control connection.

use std::io::{self, Read as _};

use memory::GrowingBytes;
use mio::{Interest, Registry, Token};
use ovsdb::server::SessionId;
use wire::jsonrpc::{Framer, Limits};

use transport::Stream;

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Role {
    /// A client of the databases, with the remote it came by.
    Session { id: SessionId, remote: Box<str> },
    /// Commands for the process.
    Control(ControlState),
}

/// A control connection's state.
#[derive(Debug, Default)]
pub(super) struct ControlState {
    /// Answers not sent yet.
    pub output: Vec<u8>,
    /// A command that is not answered yet; no other is taken meanwhile.
    pub busy: bool,
    /// Commands that came meanwhile.
    pub waiting: Vec<Vec<u8>>,
}

impl ControlState {
    /// What it keeps.
    pub fn bytes(&self) -> usize {
        self.output.capacity() + self.waiting.iter().map(Vec::len).sum::<usize>()
    }
}

/// How a connection is watched for dead peers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probe {
    /// Silence after which the peer is asked, and again after which it is given up; 0: never.
    pub interval_ms: u64,
    /// Since when an answer is waited for.
    pub asked_ms: Option<u64>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub stream: Stream,
    /// How logs call it.
    pub name: String,
    pub role: Role,
    pub framer: Framer,
    /// The beginning of a message whose end has not come.
    pub rest: GrowingBytes,
    /// What was read and must wait, because the peer has too much to take first.
    pub unframed: Vec<u8>,
    /// There may be something to read.
    pub readable: bool,
    /// The peer has closed its end: a short read does not mean that nothing more comes.
    pub closed_by_peer: bool,
    /// In the queue of those to be read.
    pub queued: bool,
    /// Waits until the socket takes more.
    pub blocked: bool,
    /// Is read no longer, and closed when its output is sent.
    pub closing: bool,
    pub received_ms: u64,
    pub probe: Probe,
    /// What it was last counted to hold.
    pub held_bytes: usize,
    /// Tells this connection from others that had its slot.
    pub serial: u64,
}

impl Connection {
    pub fn new(stream: Stream, name: String, role: Role, limits: Limits, serial: u64, now_ms: u64) -> Self {
        Self {
            stream,
            name,
            role,
            framer: Framer::new(limits),
            rest: GrowingBytes::default(),
            unframed: Vec::new(),
            readable: true,
            closed_by_peer: false,
            queued: false,
            blocked: false,
            closing: false,
            received_ms: now_ms,
            probe: Probe::default(),
            held_bytes: 0,
            serial,
        }
    }

    /// One read. A short one means that the socket is empty now; an event tells when it is not. `None`: nothing there.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.stream.read(room) {
                Ok(count) => {
                    if count < room.len() && !self.closed_by_peer && !self.stream.has_more() {
                        self.readable = false;
                    }
                    return Ok(Some(count));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks to be told when the socket takes more, or no longer.
    pub fn set_blocked(&mut self, blocked: bool, poll: &Registry, token: Token) -> io::Result<()> {
        if self.blocked != blocked {
            // Writability is not watched otherwise: each read of the peer would wake this process up.
            let interest = if blocked { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            poll.reregister(&mut self.stream, token, interest)?;
            self.blocked = blocked;
        }
        Ok(())
    }

    /// What it keeps of what came, and the half records of its TLS.
    pub fn input_bytes(&self) -> usize {
        self.rest.held_bytes() + self.unframed.len() + self.stream.held_bytes()
    }

    /// Whether there is, or may be, something to receive.
    pub fn has_input(&self) -> bool {
        !self.closing && (self.readable || !self.unframed.is_empty())
    }
}
