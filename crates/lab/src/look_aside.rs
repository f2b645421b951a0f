//! A client that uses a server as a look-aside cache: it reads an item, and writes it on a miss.
//!
//! ```text
//!   connection   [writes of what was missing | reads of the next batch] -> ... -> [their answers] -> ...
//! ```
//! Connections take turns, so that the server works on one batch while the next is built. Every answer is checked: a
//! read must return its item or "not found"; a write must succeed, or is counted as refused.

use crate::client::Target;
use crate::protocol::{Answered, Dialect, Shape, describe};
use anyhow::{Result, bail, ensure};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::AddAssign;

const CONNECTIONS: usize = 2;
/// Reads in a batch: few enough that no buffer between client and server fills up.
const DEPTH: usize = 64;
const INPUT_BYTES: usize = 256 * 1024;

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Reads.
    pub reads: u64,
    /// Reads answered with an item.
    pub hits: u64,
    /// Writes that the server refused.
    pub refused: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.refused += other.refused;
    }
}

#[derive(Default)]
struct Waiting {
    writes: Vec<u32>,
    reads: Vec<u32>,
}

struct Connection {
    stream: TcpStream,
    waiting: Waiting,
}

/// A client with values of one or several sizes; an item's size is derived from its number.
pub struct LookAside {
    connections: Vec<Connection>,
    dialects: Vec<Dialect>,
    output: Vec<u8>,
    input: Vec<u8>,
    tally: Tally,
}

impl LookAside {
    /// Connects.
    pub fn new(target: &Target, key_bytes: usize, value_sizes: &[usize], seed: u64) -> Result<Self> {
        let dialects = value_sizes
            .iter()
            .map(|&value_bytes| Dialect::new(target.protocol, Shape { key_bytes, value_bytes }, seed))
            .collect::<Result<Vec<_>>>()?;
        let connections = (0..CONNECTIONS)
            .map(|_| Ok(Connection { stream: target.connect()?, waiting: Waiting::default() }))
            .collect::<Result<Vec<_>>>()?;
        let input = vec![0; INPUT_BYTES];
        Ok(Self { connections, dialects, output: Vec::new(), input, tally: Tally::default() })
    }

    /// Reads `requests` items, writes those that are missing, and waits for all answers.
    pub fn run(&mut self, requests: u64, mut next: impl FnMut() -> u32) -> Result<Tally> {
        self.tally = Tally::default();
        let mut left = requests;
        let mut turn = 0;
        while left > 0 || self.connections.iter().any(|connection| !connection.waiting.is_empty()) {
            let missing = self.receive(turn)?;
            let batch = left.min(DEPTH as u64);
            left -= batch;
            let reads = (0..batch).map(|_| next()).collect();
            self.send(turn, Waiting { writes: missing, reads })?;
            turn = (turn + 1) % CONNECTIONS;
        }
        Ok(self.tally)
    }

    fn send(&mut self, turn: usize, waiting: Waiting) -> Result<()> {
        self.output.clear();
        for &item in &waiting.writes {
            dialect_of(&self.dialects, item)?.set.write(item, &mut self.output);
        }
        for &item in &waiting.reads {
            dialect_of(&self.dialects, item)?.get.write(item, &mut self.output);
        }
        let Some(connection) = self.connections.get_mut(turn) else { bail!("no connection {turn}") };
        connection.stream.write_all(&self.output)?;
        connection.waiting = waiting;
        Ok(())
    }

    /// Receives the answers to the batch in flight; returns the missing items, each once.
    fn receive(&mut self, turn: usize) -> Result<Vec<u32>> {
        let Some(connection) = self.connections.get_mut(turn) else { bail!("no connection {turn}") };
        let Waiting { writes, reads } = std::mem::take(&mut connection.waiting);
        let mut answers = Answers { stream: &mut connection.stream, input: &mut self.input, from: 0, to: 0 };
        for &item in &writes {
            let template = &dialect_of(&self.dialects, item)?.set;
            match answers.next(|bytes| template.answered(bytes))? {
                (Answered::Success, _) => {}
                _ => self.tally.refused += 1,
            }
        }
        let (mut missing, mut seen) = (Vec::new(), HashSet::new());
        for &item in &reads {
            let dialect = dialect_of(&self.dialects, item)?;
            self.tally.reads += 1;
            match answers.next(|bytes| dialect.get.answered(bytes))? {
                (Answered::Success, bytes) => {
                    ensure!(dialect.is_of(item, bytes), "item {item} holds the value of another item");
                    self.tally.hits += 1;
                }
                (Answered::Missing, _) if seen.insert(item) => missing.push(item),
                (Answered::Missing, _) => {}
                (Answered::Refused, bytes) => bail!("a read was answered by {}", describe(bytes)),
            }
        }
        ensure!(answers.from == answers.to, "more answers than requests");
        Ok(missing)
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }
}

fn dialect_of(dialects: &[Dialect], item: u32) -> Result<&Dialect> {
    // Items of similar popularity get different sizes.
    let mixed = (u64::from(item).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    match dialects.get(mixed % dialects.len().max(1)) {
        Some(dialect) => Ok(dialect),
        None => bail!("no size of values"),
    }
}

/// Answers as they arrive.
struct Answers<'a> {
    stream: &'a mut TcpStream,
    input: &'a mut [u8],
    from: usize,
    to: usize,
}

impl Answers<'_> {
    /// The next answer: its outcome and its bytes.
    fn next(
        &mut self,
        parse: impl Fn(&[u8]) -> Result<Option<(Answered, usize)>>,
    ) -> Result<(Answered, &[u8])> {
        loop {
            let seen = self.input.get(self.from..self.to).unwrap_or_default();
            if let Some((answered, length)) = parse(seen)?
                && length <= seen.len()
            {
                let at = self.from;
                self.from += length;
                return Ok((answered, self.input.get(at..at + length).unwrap_or_default()));
            }
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            let read = self.stream.read(self.input.get_mut(self.to..).unwrap_or_default())?;
            ensure!(read > 0, "the server closed the connection");
            self.to += read;
        }
    }
}
