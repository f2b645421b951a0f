//! The transport's own cost: a server that finds the ends of requests and answers with canned replies. It keeps no
//! rows, so no server with these system calls can be faster.
//!
//! One thread, one epoll set; per wake-up one read and one write of the session that asked, and one write to each
//! session that asked for a replica.

use super::script::MARKER;
use super::splitter::Splitter;
use crate::unsent::Unsent;
use anyhow::{Context, Result, bail};
use memchr::memmem;
use mio::net::{UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read};
use std::path::Path;

const LISTENER: Token = Token(usize::MAX);
const BUFFER_BYTES: usize = 256 * 1024;
/// Longest request kept whole.
const REQUEST_BYTES_MAX: usize = 64 * 1024;
const UUID: &str = "831191a0-7526-4139-8017-6b48dd6d6822";

struct Peer {
    stream: UnixStream,
    splitter: Splitter,
    out: Vec<u8>,
    unsent: Unsent,
    has_replica: bool,
}

/// Serves until killed.
pub fn serve(socket: &Path) -> Result<()> {
    let mut listener = UnixListener::bind(socket).context("binding the floor's socket")?;
    let mut poll = Poll::new()?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut events = Events::with_capacity(1024);
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut noted = Vec::new();
    let mut listening = Vec::new();
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        noted.clear();
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    poll.registry().register(&mut stream, Token(peers.len()), interest)?;
                    let splitter = Splitter::new(REQUEST_BYTES_MAX);
                    peers.push(Some(Peer {
                        stream,
                        splitter,
                        out: Vec::new(),
                        unsent: Unsent::default(),
                        has_replica: false,
                    }));
                }
                continue;
            }
            let Some(slot) = peers.get_mut(event.token().0) else { continue };
            let Some(peer) = slot else { continue };
            let had_replica = peer.has_replica;
            if peer.turn(event.is_readable(), &mut buffer, &mut noted).is_err() {
                *slot = None;
            } else if peer.has_replica && !had_replica {
                listening.push(event.token().0);
            }
        }
        // As a server must, it sends the notifications before the reply, in one write.
        for &index in &listening {
            if let Some(peer) = peers.get_mut(index).and_then(Option::as_mut) {
                peer.out.splice(..0, noted.iter().copied());
            }
        }
        for slot in &mut peers {
            if let Some(peer) = slot
                && !(peer.out.is_empty() && peer.unsent.is_empty())
                && peer.send().is_err()
            {
                *slot = None;
            }
        }
    }
}

impl Peer {
    /// Reads once and queues replies; `noted` collects the notifications for all replicas.
    fn turn(&mut self, readable: bool, buffer: &mut [u8], noted: &mut Vec<u8>) -> Result<()> {
        if !readable {
            return Ok(());
        }
        loop {
            let count = match self.stream.read(buffer) {
                Ok(0) => bail!("closed"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error.into()),
            };
            let input = buffer.get(..count).unwrap_or_default();
            let (out, has_replica) = (&mut self.out, &mut self.has_replica);
            self.splitter.feed(input, |message| {
                answer(message.head, message.id().unwrap_or(0), out, has_replica, noted);
                Ok(())
            })?;
            // A partly filled buffer means that the socket is drained.
            if count < buffer.len() {
                return Ok(());
            }
        }
    }

    fn send(&mut self) -> Result<()> {
        self.unsent.send(&mut self.stream, &self.out)?;
        self.out.clear();
        Ok(())
    }
}

fn answer(request: &[u8], id: u64, out: &mut Vec<u8>, has_replica: &mut bool, noted: &mut Vec<u8>) {
    let front = request.get(..64).unwrap_or(request);
    let result = if memmem::find(front, b"\"transact\"").is_some() {
        let marker =
            if memmem::find(request, MARKER.as_bytes()).is_some() { MARKER } else { "value-0123456789" };
        noted.extend_from_slice(br#"{"id":null,"method":"update3","params":["replica",""#);
        noted.extend_from_slice(b"00000000-0000-0000-0000-000000000000\",{\"Test\":{\"");
        noted.extend_from_slice(UUID.as_bytes());
        noted.extend_from_slice(
            br#"":{"modify":{"boolField":true,"enumField":"alpha","numericField":100000000,"stringField":""#,
        );
        noted.extend_from_slice(marker.as_bytes());
        noted.extend_from_slice(br#""}}}}]}"#);
        r#"[{"count":1},{"uuid":["uuid","831191a0-7526-4139-8017-6b48dd6d6822"]}]"#
    } else if memmem::find(front, b"\"list_dbs\"").is_some() {
        r#"["lab"]"#
    } else {
        *has_replica = true;
        r#"[false,"00000000-0000-0000-0000-000000000000",{}]"#
    };
    let mut digits = [0; 10];
    super::template::digits(id, &mut digits);
    out.extend_from_slice(b"{\"id\":");
    out.extend_from_slice(&digits);
    out.extend_from_slice(b",\"result\":");
    out.extend_from_slice(result.as_bytes());
    out.extend_from_slice(b",\"error\":null}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovsdb::driver::Driver;
    use crate::ovsdb::script::{Drain, Subscribe, Transactions};
    use crate::ovsdb::template::Template;

    #[test]
    fn a_load_with_replicas_runs_on_the_floor() {
        let socket = std::env::temp_dir().join(format!("dormouse-lab-floor-{}", std::process::id()));
        let _there_may_be_none = std::fs::remove_file(&socket);
        let served = socket.clone();
        std::thread::spawn(move || serve(&served).unwrap());
        while UnixStream::connect(&socket).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let mut driver = Driver::new(&socket, 4, 1 << 16).unwrap();
        let mut subscribe = Subscribe::new(0..4);
        driver.run(&mut subscribe).unwrap();
        assert_eq!(subscribe.lengths.len(), 4);
        for (template, rows, window) in
            [(Template::update(), vec![[b'a'; 36]; 10], 1), (Template::insert(), vec![], 16)]
        {
            let mut transactions = Transactions::new(&template, &rows, 3, 100, window);
            let outcome = driver.run(&mut transactions).unwrap();
            assert!(outcome.received_bytes > 0);
        }
        driver.run(&mut Drain::new(0..4)).unwrap();
        std::fs::remove_file(&socket).unwrap();
    }
}
