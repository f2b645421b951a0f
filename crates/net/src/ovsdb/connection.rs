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

/// Received bytes that wait to be split into messages.
#[derive(Debug, Default)]
pub(super) struct Unframed {
    bytes: Vec<u8>,
    /// How many of them have been split since they were kept.
    at: usize,
}

impl Unframed {
    pub fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), at: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn left(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// What is left after this many more have been split.
    pub fn after(self, taken: usize) -> Self {
        let at = self.at + taken;
        if at < self.bytes.len() { Self { at, ..self } } else { Self::default() }
    }
}

/// How much a connection's last turns were: one with long turns is served after the others.
#[derive(Debug)]
pub(super) struct Load(u8);

impl Load {
    /// Turns from this time on are long.
    const LONG_US: u64 = 250;
    /// What a long turn adds. One alone may be the scheduler's, so it takes more to be busy.
    const LONG: u8 = 5;
    const BUSY: u8 = 8;
    const MOST: u8 = 12;

    /// A new connection's: one that comes again and again gains nothing by that.
    pub const NEW: Self = Self(Self::BUSY);

    /// Adds a turn. `is_cut`: there is more to execute.
    pub fn add(&mut self, took_us: u64, is_cut: bool) {
        let more = if took_us >= Self::LONG_US { Self::LONG } else { 0 };
        let load = self.0.saturating_sub(1) + more;
        self.0 = if is_cut { Self::MOST } else { load.min(Self::MOST) };
    }

    pub fn is_busy(&self) -> bool {
        self.0 >= Self::BUSY
    }
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
    /// Bytes read that must wait for the connection's next turn, or until the peer has read its output.
    pub unframed: Unframed,
    /// There may be data to read.
    pub readable: bool,
    /// The peer has closed its end: a short read does not mean that nothing more comes.
    pub closed_by_peer: bool,
    /// Nothing can be sent to the peer any more.
    pub dead: bool,
    /// It is in a queue of connections to be read.
    pub queued: bool,
    /// It is in the queue of connections to be sent to.
    pub sending: bool,
    /// It has had a turn since it was last sent to.
    pub served: bool,
    pub load: Load,
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
            unframed: Unframed::default(),
            readable: true,
            closed_by_peer: false,
            dead: false,
            queued: false,
            sending: false,
            served: false,
            load: Load::NEW,
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
        self.rest.held_bytes() + self.unframed.bytes.len() + self.stream.held_bytes()
    }

    /// Returns true if there is, or may be, something to receive.
    pub fn has_input(&self) -> bool {
        !self.closing && (self.readable || !self.unframed.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(turns: &[u64]) -> Load {
        let mut load = Load::NEW;
        load.add(0, false);
        turns.iter().for_each(|took_us| load.add(*took_us, false));
        load
    }

    #[test]
    fn one_long_turn_among_short_ones_makes_no_connection_busy() {
        assert!(Load::NEW.is_busy());
        assert!(!after(&[]).is_busy());
        assert!(!after(&[10, 10, 10, 10, 10, 10, 4000]).is_busy());
        assert!(!after(&[4000, 10, 10, 10, 10, 10].repeat(100)).is_busy());
    }

    #[test]
    fn long_turns_and_requests_left_over_make_a_connection_busy_until_it_has_had_short_turns() {
        assert!(after(&[1000; 10]).is_busy());
        assert!(after(&[1000, 10, 10, 1000, 10, 10, 1000, 10, 10, 1000]).is_busy());
        let mut load = after(&[10; 10]);
        load.add(10, true);
        assert!(load.is_busy());
        let short = (1..).find(|_| {
            load.add(10, false);
            !load.is_busy()
        });
        assert_eq!(short, Some(5));
    }

    #[test]
    fn what_is_left_to_be_split_shrinks_to_nothing() {
        let unframed = Unframed::new(b"abcdef").after(2);
        assert_eq!((unframed.left(), unframed.is_empty()), (&b"cdef"[..], false));
        let unframed = unframed.after(1);
        assert_eq!(unframed.left(), b"def");
        assert!(unframed.after(3).is_empty());
    }
}
