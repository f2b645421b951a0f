//! The load: many sessions in one thread, one read and one write per wake-up of a session.
//!
//! A `Script` decides what is sent and what an answer must look like. While it handles the messages of one read, it
//! appends the next requests of the same session, which are sent together.
//!
//! Invariants: a run ends when its script is done, or with an error if the server is silent for too long or closes a
//! session; a message that arrives in one piece needs no allocation.

use super::splitter::{Message, Splitter};
use crate::os;
use crate::unsent::Unsent;
use anyhow::{Context, Result, anyhow, bail};
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest silence of the server before a run is aborted: the stock server is busy for half a minute with a transaction
/// of half a million rows.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Bytes read at once from one session; fits in the L2 cache.
const SCRATCH_BYTES: usize = 256 * 1024;

/// What sessions send, and what they must receive.
pub trait Script {
    /// The first requests of a session.
    fn begin(&mut self, peer: usize, out: &mut Vec<u8>) -> Result<()>;
    /// Handles a message from the server; may append further requests of the same session.
    fn message(&mut self, peer: usize, message: &Message<'_>, out: &mut Vec<u8>) -> Result<()>;
    /// Sees bytes as they arrive, before they are split into messages.
    fn bytes(&mut self, _peer: usize, _bytes: &[u8]) {}
    /// Returns true once everything expected has arrived.
    fn is_done(&self) -> bool;
}

/// Cost of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// From the first byte sent to the last byte expected.
    pub wall_ns: u64,
    /// CPU time of the load itself.
    pub driver_cpu_ns: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

impl std::ops::AddAssign for Outcome {
    fn add_assign(&mut self, other: Self) {
        self.wall_ns += other.wall_ns;
        self.driver_cpu_ns += other.driver_cpu_ns;
        self.received_bytes += other.received_bytes;
    }
}

struct Peer {
    stream: UnixStream,
    splitter: Splitter,
    unsent: Unsent,
}

/// The sessions of a load.
pub struct Driver {
    poll: Poll,
    events: Events,
    peers: Vec<Peer>,
    scratch: Vec<u8>,
    out: Vec<u8>,
}

impl Driver {
    /// Opens `peers` sessions, each of which keeps up to `keep_bytes` of a message that arrives in pieces.
    pub fn new(socket: &Path, peers: usize, keep_bytes: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let peers = (0..peers)
            .map(|index| {
                let mut stream = connect(socket)?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut stream, Token(index), interest)?;
                let splitter = Splitter::new(keep_bytes);
                Ok(Peer { stream, splitter, unsent: Unsent::default() })
            })
            .collect::<Result<Vec<_>>>()
            .context("opening the sessions of the load")?;
        let events = Events::with_capacity(1024);
        Ok(Self { poll, events, peers, scratch: vec![0; SCRATCH_BYTES], out: Vec::new() })
    }

    /// Starts a script on every session and runs it until it is done.
    pub fn run(&mut self, script: &mut impl Script) -> Result<Outcome> {
        let cpu_before = os::thread_cpu_ns()?;
        let start = Instant::now();
        let mut outcome = Outcome::default();
        for (index, peer) in self.peers.iter_mut().enumerate() {
            self.out.clear();
            script.begin(index, &mut self.out)?;
            peer.send(&self.out)?;
        }
        while !script.is_done() {
            match self.poll.poll(&mut self.events, Some(SILENCE_MAX)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
                _ => {}
            }
            if self.events.is_empty() {
                bail!("the server has been silent for {} s", SILENCE_MAX.as_secs());
            }
            for event in &self.events {
                let index = event.token().0;
                let peer = self.peers.get_mut(index).context("event for an unknown session")?;
                if event.is_writable() && !peer.unsent.is_empty() {
                    peer.send(&[])?;
                }
                if event.is_readable() {
                    let received = peer.receive(index, script, &mut self.scratch, &mut self.out)?;
                    outcome.received_bytes += received;
                }
            }
        }
        outcome.wall_ns = u64::try_from(start.elapsed().as_nanos())?;
        outcome.driver_cpu_ns = os::thread_cpu_ns()? - cpu_before;
        Ok(outcome)
    }
}

/// Connects, with retries: a server's listen backlog may be shorter than the number of sessions.
fn connect(socket: &Path) -> Result<UnixStream> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(anyhow!(error).context(format!("connecting to {}", socket.display()))),
        }
    }
}

impl Peer {
    /// Reads what has arrived, passes it to the script, and sends the script's requests.
    fn receive(
        &mut self,
        index: usize,
        script: &mut impl Script,
        scratch: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<u64> {
        let mut received = 0;
        loop {
            let count = match self.stream.read(scratch) {
                Ok(0) => bail!("the server closed session {index}"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(received),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(anyhow!(error).context(format!("reading session {index}"))),
            };
            received += count as u64;
            let input = scratch.get(..count).unwrap_or_default();
            script.bytes(index, input);
            out.clear();
            self.splitter.feed(input, |message| script.message(index, message, out))?;
            self.send(out)?;
            // A partly filled buffer means that the socket is drained: the next byte raises a new event.
            if count < scratch.len() {
                return Ok(received);
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.unsent.send(&mut self.stream, bytes).context("sending requests")
    }
}
