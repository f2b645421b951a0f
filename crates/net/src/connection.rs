//! One connection of a worker: its socket, its session, and what is left over between wake-ups.

use std::io::{self, Read};
use std::sync::Arc;

use kv::session::Session;
use kv::{Bucket, Cx, Meter};

use crate::backlog::Backlog;
use crate::socket::Socket;

/// Bytes of a large value read per turn.
const SINK_TURN_BYTES: usize = 256 << 10;

/// A connection. Idle, it holds no buffer: unparsed input and unsent output exist only while there are any.
pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) session: Session,
    /// Input read but not yet parsed: the start of a request.
    pub(crate) rest: Vec<u8>,
    pub(crate) backlog: Option<Box<Backlog>>,
    /// Bytes charged for `rest` and `backlog`, and to whom.
    charged: usize,
    payer: Option<Arc<Bucket>>,
    /// The socket may have input: an event said so, and no short read since.
    pub(crate) readable: bool,
    /// An event said that the peer has closed its side: it is read to the end.
    pub(crate) closed_by_peer: bool,
    /// The end of the input was read.
    pub(crate) ended: bool,
    /// It is in the worker's queue of ready connections.
    pub(crate) queued: bool,
    /// `rest` may hold a whole request: it is to be parsed without reading first.
    pub(crate) unparsed: bool,
}

impl Connection {
    pub(crate) fn new(socket: Socket, session: Session) -> Self {
        Self {
            socket,
            session,
            rest: Vec::new(),
            backlog: None,
            charged: 0,
            payer: None,
            readable: false,
            closed_by_peer: false,
            ended: false,
            queued: false,
            unparsed: false,
        }
    }

    /// Unsent output in bytes.
    pub(crate) fn unsent(&self) -> usize {
        self.backlog.as_ref().map_or(0, |backlog| backlog.len())
    }

    /// One read. A short one means that the socket is empty now; an event tells when it is not.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> Result<usize, ()> {
        loop {
            match self.socket.read(room) {
                Ok(0) => {
                    (self.ended, self.readable) = (true, false);
                    return Ok(0);
                }
                Ok(count) => {
                    if count < room.len() && !self.closed_by_peer {
                        self.readable = false;
                    }
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    return Ok(0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
    }

    /// Reads the rest of a large value straight to where it belongs, within the bounds of a turn. Gives how much of it.
    pub(crate) fn fill_sink(&mut self) -> Result<usize, ()> {
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
                    if count < room && !self.closed_by_peer {
                        self.readable = false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
        Ok(SINK_TURN_BYTES - budget)
    }

    /// Counts bytes read from or sent to the peer for the bucket in use.
    pub(crate) fn count(&self, meter: Meter, bytes: usize, cx: &Cx) {
        if let Some(bucket) = &self.session.peer.bucket
            && bytes > 0
        {
            bucket.count(cx, meter, bytes as u64);
        }
    }

    /// Charges the buffers held now to the bucket in use.
    pub(crate) fn charge(&mut self) {
        let held = self.rest.capacity()
            + self.backlog.as_ref().map_or(0, |backlog| backlog.buffered())
            + self.session.held_bytes();
        if held == self.charged {
            return;
        }
        let payer_has_changed = match (&self.payer, &self.session.peer.bucket) {
            (Some(payer), Some(bucket)) => !Arc::ptr_eq(payer, bucket),
            (None, None) => false,
            _ => true,
        };
        if payer_has_changed {
            self.discharge();
            self.payer.clone_from(&self.session.peer.bucket);
        }
        if let Some(payer) = &self.payer {
            payer.charge_buffers(difference(held, self.charged));
            self.charged = held;
        }
    }

    /// Gives the charge back.
    pub(crate) fn discharge(&mut self) {
        if let Some(payer) = self.payer.take() {
            payer.charge_buffers(difference(0, self.charged));
        }
        self.charged = 0;
    }
}

fn difference(new: usize, old: usize) -> i64 {
    new.cast_signed() as i64 - old.cast_signed() as i64
}
