//! A load of items with keys and values of any length, which grow, shrink and are deleted; the driver's requests all
//! have one length.
//!
//! ```text
//!   item ── number % lanes ──> lane     requests put together ── push ──> in flight ── collect ──> each answer checked
//! ```
//! Invariants: requests for an item use its lane, so the server executes them in order; a lane has at most one batch in
//! flight, so a server that reads the whole batch before it answers cannot deadlock with the load; every answer is
//! checked, and a miss or an error ends the run.

use crate::client::Target;
use crate::protocol::{Protocol, binary_request, describe, resp_command};
use anyhow::{Context, Result, bail, ensure};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;

const LANES: usize = 8;
/// A batch is sent once it has this many requests, or bytes.
const BATCH_REQUESTS: usize = 64;
const BATCH_BYTES: usize = 128 << 10;
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

const OPCODE_GET: u8 = 0x00;
const OPCODE_SET: u8 = 0x01;
const OPCODE_DELETE: u8 = 0x04;
const HEADER: usize = 24;

/// The request that an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Get,
    Set,
    Delete,
}

/// The connections of a load.
pub struct Documents {
    lanes: Vec<Lane>,
    resp: bool,
}

struct Lane {
    stream: TcpStream,
    /// Requests not sent yet, as bytes and by kind.
    out: Vec<u8>,
    asked: Vec<Ask>,
    /// Kinds of the requests in flight, oldest first.
    waiting: VecDeque<Ask>,
}

impl Documents {
    /// Opens the connections.
    pub fn connect(target: &Target) -> Result<Self> {
        let resp = match target.protocol {
            Protocol::Resp => true,
            Protocol::MemcachedBinary => false,
            other => bail!("this load does not speak {other:?}"),
        };
        let lane = || {
            let stream = target.connect()?;
            Ok(Lane { stream, out: Vec::new(), asked: Vec::new(), waiting: VecDeque::new() })
        };
        Ok(Self { lanes: (0..LANES).map(|_| lane()).collect::<Result<_>>()?, resp })
    }

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The lane of an item.
    pub fn lane_of(&self, number: u32) -> usize {
        number as usize % self.lanes.len()
    }

    /// Queues a read of an item. It is not sent before [`Documents::push`].
    pub fn get(&mut self, lane: usize, key: &[u8]) -> Result<()> {
        let request = match self.resp {
            true => resp_command(&[b"GET", key]),
            false => binary_request(OPCODE_GET, &[], key, &[]),
        };
        self.ask(lane, Ask::Get, &request)
    }

    /// Queues a write of an item; sends the batch if it is full, and returns whether it did.
    pub fn set(&mut self, lane: usize, key: &[u8], value: &[u8]) -> Result<bool> {
        let request = match self.resp {
            true => resp_command(&[b"SET", key, value]),
            false => binary_request(OPCODE_SET, &[0; 8], key, value),
        };
        self.ask(lane, Ask::Set, &request)?;
        self.send_if_full(lane)
    }

    /// Queues a delete of an item, which must exist; sends the batch if it is full, and returns whether it did.
    pub fn delete(&mut self, lane: usize, key: &[u8]) -> Result<bool> {
        let request = match self.resp {
            true => resp_command(&[b"DEL", key]),
            false => binary_request(OPCODE_DELETE, &[], key, &[]),
        };
        self.ask(lane, Ask::Delete, &request)?;
        self.send_if_full(lane)
    }

    fn ask(&mut self, lane: usize, ask: Ask, request: &[u8]) -> Result<()> {
        let lane = self.lanes.get_mut(lane).context("no such lane")?;
        lane.out.extend_from_slice(request);
        lane.asked.push(ask);
        Ok(())
    }

    /// Returns true if the batch was sent.
    fn send_if_full(&mut self, at: usize) -> Result<bool> {
        let lane = self.lanes.get(at).context("no such lane")?;
        let is_full = lane.asked.len() >= BATCH_REQUESTS || lane.out.len() >= BATCH_BYTES;
        if is_full {
            self.push(at)?;
        }
        Ok(is_full)
    }

    /// Sends the queued batch once the one in flight, which must contain no reads, has been answered.
    pub fn push(&mut self, lane: usize) -> Result<()> {
        self.collect(lane, |_| bail!("a value that was not requested"))?;
        let lane = self.lanes.get_mut(lane).context("no such lane")?;
        lane.stream.write_all(&lane.out).context("sending a batch")?;
        lane.out.clear();
        lane.waiting.extend(lane.asked.drain(..));
        Ok(())
    }

    /// Waits for the answers to the batch in flight, and calls `on_value` with the value of each item read.
    pub fn collect(&mut self, lane: usize, mut on_value: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let resp = self.resp;
        let lane = self.lanes.get_mut(lane).context("no such lane")?;
        let mut input = Vec::new();
        let mut chunk = vec![0; if lane.waiting.is_empty() { 0 } else { READ_BYTES }];
        while let Some(&ask) = lane.waiting.front() {
            let mut taken = 0;
            let mut next = Some(ask);
            while let (Some(ask), Some(rest)) = (next, input.get(taken..)) {
                let answer = if resp { resp_answer(ask, rest)? } else { binary_answer(ask, rest)? };
                let Some((value, length)) = answer else { break };
                if ask == Ask::Get {
                    on_value(value)?;
                }
                taken += length;
                lane.waiting.pop_front();
                next = lane.waiting.front().copied();
            }
            input.drain(..taken);
            if next.is_none() {
                ensure!(input.is_empty(), "more than was requested: {}", describe(&input));
                break;
            }
            let count = lane.stream.read(&mut chunk).context("waiting for answers")?;
            ensure!(count > 0, "the server closed a connection");
            input.extend_from_slice(chunk.get(..count).unwrap_or_default());
        }
        Ok(())
    }

    /// Sends all queued requests and waits for every answer.
    pub fn finish(&mut self) -> Result<()> {
        // The first round sends what is left, the second waits for its answers.
        (0..self.lanes.len()).try_for_each(|lane| self.push(lane))?;
        (0..self.lanes.len()).try_for_each(|lane| self.push(lane))
    }
}

/// The value of an answer, and the answer's length; `None` while it is incomplete.
fn binary_answer(ask: Ask, input: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let Some(&[magic, opcode, _, _, extras, _, high, low, a, b, c, d, ..]) = input.get(..HEADER) else {
        return Ok(None);
    };
    let due = match ask {
        Ask::Get => OPCODE_GET,
        Ask::Set => OPCODE_SET,
        Ask::Delete => OPCODE_DELETE,
    };
    ensure!((magic, opcode, high, low) == (0x81, due, 0, 0), "a {ask:?} was answered by {}", describe(input));
    let length = HEADER + u32::from_be_bytes([a, b, c, d]) as usize;
    Ok(input.get(HEADER + usize::from(extras)..length).map(|value| (value, length)))
}

/// As [`binary_answer`], for Redis' protocol.
fn resp_answer(ask: Ask, input: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let Some(end) = memchr::memchr(b'\n', input) else { return Ok(None) };
    let line = input.get(..end + 1).unwrap_or_default();
    match (ask, line) {
        (Ask::Set, b"+OK\r\n") | (Ask::Delete, b":1\r\n") => Ok(Some((&[], line.len()))),
        (Ask::Get, [b'$', digits @ .., b'\r', b'\n']) if digits != b"-1" => {
            let length: usize = std::str::from_utf8(digits)?.parse()?;
            let whole = line.len() + length + 2;
            let value = input.get(..whole).and_then(|answer| answer.get(line.len()..line.len() + length));
            Ok(value.map(|value| (value, whole)))
        }
        _ => bail!("a {ask:?} was answered by {}", describe(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_when_they_are_complete() {
        let frame =
            [&[0x81, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 7][..], &[0; 12], &[0; 4], b"abc", b"next"].concat();
        assert_eq!(binary_answer(Ask::Get, &frame[..HEADER + 6]).unwrap(), None);
        assert_eq!(binary_answer(Ask::Get, &frame).unwrap(), Some((&b"abc"[..], HEADER + 7)));
        assert!(binary_answer(Ask::Set, &frame).is_err(), "the answer of another request");
        assert_eq!(resp_answer(Ask::Get, b"$3\r\nab").unwrap(), None);
        assert_eq!(resp_answer(Ask::Get, b"$3\r\nabc\r\n+OK").unwrap(), Some((&b"abc"[..], 9)));
        assert_eq!(resp_answer(Ask::Set, b"+OK\r\n").unwrap(), Some((&b""[..], 5)));
    }

    #[test]
    fn a_miss_is_an_error() {
        let miss = [&[0x81, 0, 0, 0, 0, 0, 0, 1][..], &[0; 16]].concat();
        assert!(binary_answer(Ask::Get, &miss).is_err());
        assert!(resp_answer(Ask::Get, b"$-1\r\n").is_err());
        assert!(resp_answer(Ask::Delete, b":0\r\n").is_err());
    }
}
