//! The transport's own cost: a server that parses the 24-byte header of the binary protocol and answers with a canned
//! packet. It reads, checks and stores nothing else, so no server with these system calls can be faster.
//!
//! One thread, one epoll set, one read and one write per wake-up of a connection, both through one shared buffer.
//!
//! With a journal it also does the minimum that group commit requires: the requests of a wake-up are appended to one
//! file in one write, synced, and then answered. So it shows what group commit on this disk allows a server on one
//! core.

use crate::unsent::Unsent;
use anyhow::{Context, Result, bail};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Write as _};
use std::net::SocketAddr;
use std::path::Path;

const HEADER: usize = 24;
const LISTENER: Token = Token(usize::MAX);
const BUFFER_BYTES: usize = 256 * 1024;

struct Peer {
    stream: TcpStream,
    /// Bytes of an incomplete request.
    rest: Vec<u8>,
    /// Answers that wait for the journal.
    held: Vec<u8>,
    unsent: Unsent,
}

struct Canned {
    get: Vec<u8>,
    set: Vec<u8>,
}

impl Canned {
    fn new(value_bytes: usize) -> Self {
        let mut get = vec![0x81, 0, 0, 0, 4, 0, 0, 0];
        get.extend_from_slice(&(value_bytes as u32 + 4).to_be_bytes());
        get.resize(HEADER + 4 + value_bytes, 0);
        let mut set = vec![0x81, 1];
        set.resize(HEADER, 0);
        Self { get, set }
    }

    /// Answers every complete request in `input`; returns the number of bytes consumed.
    fn answer(&self, input: &[u8], out: &mut Vec<u8>) -> usize {
        let mut consumed = 0;
        while let Some(&[_, opcode, _, _, _, _, _, _, a, b, c, d, ..]) = input.get(consumed..)
            && let length = HEADER + u32::from_be_bytes([a, b, c, d]) as usize
            && input.len() - consumed >= length
        {
            out.extend_from_slice(if opcode == 0 { &self.get } else { &self.set });
            consumed += length;
        }
        consumed
    }
}

/// Serves until killed; prints nothing.
pub fn serve(address: SocketAddr, value_bytes: usize, journal: Option<&Path>) -> Result<()> {
    let canned = Canned::new(value_bytes);
    let open = |path| OpenOptions::new().create_new(true).append(true).open(path);
    let mut journal = journal.map(open).transpose().context("making the floor's journal")?;
    let (mut record, mut waiting) = (Vec::new(), Vec::new());
    let mut listener = TcpListener::bind(address).context("binding the floor's address")?;
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(1024);
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut out = Vec::with_capacity(BUFFER_BYTES);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(peers.len()), interest)?;
                    peers.push(Some(Peer {
                        stream,
                        rest: Vec::new(),
                        held: Vec::new(),
                        unsent: Unsent::default(),
                    }));
                }
                continue;
            }
            let Some(slot) = peers.get_mut(event.token().0) else { continue };
            let Some(peer) = slot else { continue };
            let mut keep = journal.as_ref().map(|_| &mut record);
            let is_well = peer.turn(event.is_readable(), &canned, &mut buffer, &mut out, &mut keep).is_ok();
            if !is_well {
                *slot = None;
            } else if journal.is_some() {
                waiting.push(event.token().0);
            }
        }
        if let Some(file) = &mut journal {
            if !record.is_empty() {
                file.write_all(&record)?;
                file.sync_data()?;
                record.clear();
            }
            for index in waiting.drain(..) {
                let Some(slot) = peers.get_mut(index) else { continue };
                let Some(peer) = slot else { continue };
                let answers = std::mem::take(&mut peer.held);
                if peer.send(&answers).is_err() {
                    *slot = None;
                }
            }
        }
    }
}

impl Peer {
    /// Reads and answers requests. With a journal, the requests are appended to `keep`, and the answers are held back.
    fn turn(
        &mut self,
        readable: bool,
        canned: &Canned,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
        keep: &mut Option<&mut Vec<u8>>,
    ) -> Result<()> {
        out.clear();
        // A partly filled buffer means that the socket is drained.
        while readable && self.take(canned, buffer, out, keep)? {}
        if keep.is_some() {
            self.held.append(out);
            return Ok(());
        }
        self.send(out)
    }

    fn send(&mut self, out: &[u8]) -> Result<()> {
        Ok(self.unsent.send(&mut self.stream, out)?)
    }

    /// Reads once and answers the complete requests; returns true if the buffer was filled.
    fn take(
        &mut self,
        canned: &Canned,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
        keep: &mut Option<&mut Vec<u8>>,
    ) -> Result<bool> {
        let kept = self.rest.len();
        buffer.get_mut(..kept).context("request beyond the buffer")?.copy_from_slice(&self.rest);
        let room = buffer.get_mut(kept..).unwrap_or_default();
        let space = room.len();
        let count = match self.stream.read(room) {
            Ok(0) => bail!("closed"),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error.into()),
        };
        let input = buffer.get(..kept + count).unwrap_or_default();
        let consumed = canned.answer(input, out);
        if let Some(record) = keep {
            record.extend_from_slice(input.get(..consumed).unwrap_or_default());
        }
        self.rest.clear();
        self.rest.extend_from_slice(input.get(consumed..).unwrap_or_default());
        Ok(count == space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Target;
    use crate::driver::{Driver, Items, Plan, Until};
    use crate::protocol::{Dialect, Protocol, Shape};
    use crate::storage::Scratch;
    use std::net::TcpListener as StdListener;

    #[test]
    fn canned_answers_are_what_the_load_expects() {
        let dialect =
            Dialect::new(Protocol::MemcachedBinary, Shape { key_bytes: 24, value_bytes: 256 }, 1).unwrap();
        let canned = Canned::new(256);
        let mut input = Vec::new();
        dialect.get.write(1, &mut input);
        dialect.set.write(2, &mut input);
        let whole = input.len();
        input.extend_from_slice(&[0x80, 0, 0]);
        let mut out = Vec::new();
        assert_eq!(canned.answer(&input, &mut out), whole);
        assert_eq!(out.len(), dialect.get.answer.length + dialect.set.answer.length);
        assert!(out.starts_with(&dialect.get.answer.prefix));
        assert!(out[dialect.get.answer.length..].starts_with(&dialect.set.answer.prefix));
    }
    #[test]
    fn batches_larger_than_any_socket_buffer_are_answered_in_full() {
        let scratch = Scratch::new(None).unwrap();
        for journal in [None, Some(scratch.path.join("journal"))] {
            answers_batches(journal.clone());
            if let Some(path) = journal {
                // Every batch's requests are there in full: together they have more than 1.5 million bytes.
                assert!(std::fs::metadata(path).unwrap().len() > 1_500_000);
            }
        }
    }

    fn answers_batches(journal: Option<std::path::PathBuf>) {
        let address = StdListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        std::thread::spawn(move || serve(address, 256, journal.as_deref()).unwrap());
        let target =
            Target { address, protocol: Protocol::MemcachedBinary, bucket: String::new(), tls: None };
        let shape = Shape { key_bytes: 24, value_bytes: 256 };
        let dialect = Dialect::new(Protocol::MemcachedBinary, shape, 1).unwrap();
        let driver = (0..100).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            Driver::new(&target, dialect.clone(), 3, 1).ok()
        });
        let mut driver = driver.expect("the floor serves");
        for depth in [1, 64, 20_000] {
            let plan = Plan { items: Items::Uniform(1000), reads: 0.5, depth };
            let outcome = driver.run(plan, Until::Requests(depth as u64 * 6), |_| {}).unwrap();
            assert_eq!(outcome.requests, depth as u64 * 6);
        }
    }
}
