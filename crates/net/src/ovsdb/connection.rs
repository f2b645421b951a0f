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
    /// A client of the databases, with the remote through which it came.
    Session { id: SessionId, remote: Box<str> },
    /// Commands for the process.
    Control(ControlState),
}

/// A control connection's state.
#[derive(Debug, Default)]
pub(super) struct ControlState {
    /// Answers not sent yet.
    pub output: Vec<u8>,
    /// True while a command is unanswered; no other is executed meanwhile.
    pub busy: bool,
    /// Commands received meanwhile.
    pub waiting: Vec<Vec<u8>>,
}

impl ControlState {
    /// The bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.output.capacity() + self.waiting.iter().map(Vec::len).sum::<usize>()
    }
}

/// How a connection is probed for a dead peer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Probe {
    /// Silence after which the peer is probed, and again after which it is given up; 0: never.
    pub interval_ms: u64,
    /// Since when the answer to a probe is outstanding.
    pub asked_ms: Option<u64>,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub stream: Stream,
    /// Its name in logs.
    pub name: String,
    pub role: Role,
    pub framer: Framer,
    /// The beginning of an incomplete message.
    pub rest: GrowingBytes,
    /// Bytes read that must wait until the peer has read its output.
    pub unframed: Vec<u8>,
    /// There may be data to read.
    pub readable: bool,
    /// The peer has closed its end: a short read does not mean that nothing more comes.
    pub closed_by_peer: bool,
    /// It is in the queue of connections to be read.
    pub queued: bool,
    /// Waits until the socket is writable.
    pub blocked: bool,
    /// It is no longer read, and is closed once its output is sent.
    pub closing: bool,
    pub received_ms: u64,
    pub probe: Probe,
    /// The bytes that it held when last counted.
    pub held_bytes: usize,
    /// Distinguishes this connection from others that had its slot.
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

    /// Reads once. A short read means that the socket is empty; an event follows when it is not. `None`: nothing to
    /// read.
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

    /// Starts or stops watching for writability.
    pub fn set_blocked(&mut self, blocked: bool, poll: &Registry, token: Token) -> io::Result<()> {
        if self.blocked != blocked {
            // Writability is not watched otherwise: each read by the peer would wake this process.
            let interest = if blocked { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
            poll.reregister(&mut self.stream, token, interest)?;
            self.blocked = blocked;
        }
        Ok(())
    }

    /// The bytes of received data that it holds, with its partial TLS records.
    pub fn input_bytes(&self) -> usize {
        self.rest.held_bytes() + self.unframed.len() + self.stream.held_bytes()
    }

    /// Returns true if there is, or may be, something to receive.
    pub fn has_input(&self) -> bool {
        !self.closing && (self.readable || !self.unframed.is_empty())
    }
}
