//! The load: many sessions in one thread, one read and one write per wake-up of a session.
//!
//! What is sent and what an answer must look like is a `Script`'s business; it appends the next requests to the same
//! session while it reads the messages of a read, and they leave together.
//!
//! Invariants: a run ends when its script says so, or with an error when the server is silent for too long or closes a
//! session; nothing is allocated per message that arrives in one piece.

use super::splitter::{Message, Splitter};
use crate::os;
use anyhow::{Context, Result, anyhow, bail};
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest silence of the server before a run is given up: the stock server is busy for half a minute with a
/// transaction of half a million rows.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Read at once from one session; stays in the second-level cache.
const SCRATCH_BYTES: usize = 256 * 1024;

/// What sessions say, and what they must hear.
pub trait Script {
    /// The first requests of a session.
    fn begin(&mut self, peer: usize, out: &mut Vec<u8>) -> Result<()>;
    /// A message of the server; further requests of the same session may be appended.
    fn message(&mut self, peer: usize, message: &Message<'_>, out: &mut Vec<u8>) -> Result<()>;
    /// Bytes as they arrive, before they are cut into messages.
    fn bytes(&mut self, _peer: usize, _bytes: &[u8]) {}
    /// Whether everything that was waited for has come.
    fn is_done(&self) -> bool;
}

/// What a run took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// From the first byte sent to the last byte waited for.
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
    /// What the socket did not take, and how much of it has left since.
    unsent: Vec<u8>,
    unsent_at: usize,
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
    /// Opens so many sessions, each keeping so many bytes of a message in pieces.
    pub fn new(socket: &Path, peers: usize, keep_bytes: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let peers = (0..peers)
            .map(|index| {
                let mut stream = connect(socket)?;
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut stream, Token(index), interest)?;
                let splitter = Splitter::new(keep_bytes);
                Ok(Peer { stream, splitter, unsent: Vec::new(), unsent_at: 0 })
            })
            .collect::<Result<Vec<_>>>()
            .context("opening the sessions of the load")?;
        let events = Events::with_capacity(1024);
        Ok(Self { poll, events, peers, scratch: vec![0; SCRATCH_BYTES], out: Vec::new() })
    }

    /// Lets a script begin on every session and serves it until it is done.
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
                bail!("the server says nothing for {} s", SILENCE_MAX.as_secs());
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

/// A server's backlog of connections may be shorter than the number of sessions: connecting is tried again.
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
    /// Reads what is there, hands it to the script, and sends what the script says to it.
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
            // A buffer not filled means an empty socket: the next byte raises a new event.
            if count < scratch.len() {
                return Ok(received);
            }
        }
    }

    /// Writes bytes behind those kept from before, and keeps what the socket does not take.
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        if self.unsent.is_empty() {
            let sent = write_some(&mut self.stream, bytes)?;
            self.unsent.extend_from_slice(bytes.get(sent..).unwrap_or_default());
            self.unsent_at = 0;
            return Ok(());
        }
        self.unsent.extend_from_slice(bytes);
        let kept = self.unsent.get(self.unsent_at..).unwrap_or_default();
        self.unsent_at += write_some(&mut self.stream, kept)?;
        if self.unsent_at == self.unsent.len() {
            self.unsent = Vec::new();
            self.unsent_at = 0;
        }
        Ok(())
    }
}

/// Writes until the socket takes no more; says how much it took.
fn write_some(stream: &mut UnixStream, bytes: &[u8]) -> Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(bytes.get(sent..).unwrap_or_default()) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(anyhow!(error).context("sending requests")),
        }
    }
    Ok(sent)
}
