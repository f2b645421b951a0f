//! A DCP consumer that counts what it is sent.

use crate::client::{Target, exchange};
use crate::protocol::{binary_request, describe};
use anyhow::{Context, Result, bail, ensure};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};

/// vBuckets of a bucket.
pub const VBUCKETS: u16 = 1024;

const OPEN: u8 = 0x50;
const STREAM_REQ: u8 = 0x53;
const STREAM_END: u8 = 0x55;
const MUTATION: u8 = 0x57;
const BUFFER_ACKNOWLEDGEMENT: u8 = 0x5d;
const CONTROL: u8 = 0x5e;
const ALL_VB_SEQNOS: u8 = 0x48;
/// Flag of OPEN: the server sends.
const PRODUCER: u32 = 1;
/// Flag of STREAM_REQ: the stream ends at what is the last seqno now.
const TO_LATEST: u32 = 4;
const HEADER: usize = 24;
/// Bytes read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A connection with streams.
pub struct Follower {
    stream: TcpStream,
    input: Vec<u8>,
    filled: usize,
    /// The server waits for acknowledgements of bytes.
    acknowledges: bool,
    open_streams: usize,
    /// Its streams end by themselves.
    is_bounded: bool,
    /// Mutations that came.
    pub items: u64,
}

impl Follower {
    /// Connects; the server sends no more than `buffer_bytes` that are not acknowledged, if given.
    pub fn connect(target: &Target, buffer_bytes: Option<u32>) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut stream = target.connect()?;
        let name = format!("lab-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let extras = [[0; 4], PRODUCER.to_be_bytes()].concat();
        exchange(&mut stream, &binary_request(OPEN, &extras, name.as_bytes(), &[])).context("DCP OPEN")?;
        if let Some(bytes) = buffer_bytes {
            let value = bytes.to_string();
            let frame = binary_request(CONTROL, &[], b"connection_buffer_size", value.as_bytes());
            exchange(&mut stream, &frame).context("DCP CONTROL")?;
        }
        Ok(Self {
            stream,
            input: vec![0; PIECE_BYTES],
            filled: 0,
            acknowledges: buffer_bytes.is_some(),
            open_streams: 0,
            is_bounded: true,
            items: 0,
        })
    }

    /// Reads so many bytes at once, so that others get the core in between.
    pub fn in_pieces(mut self, bytes: usize) -> Self {
        self.input = vec![0; bytes];
        self
    }

    /// Asks for streams of all vBuckets from their beginning, up to what is there now or without an end.
    pub fn follow_all(&mut self, to_latest: bool) -> Result<()> {
        let flags = if to_latest { TO_LATEST } else { 0 };
        // Flags, nothing, start; end; history, and the snapshot's start and end.
        let extras = [&flags.to_be_bytes()[..], &[0; 12], &u64::MAX.to_be_bytes(), &[0; 24]].concat();
        let mut requests = Vec::new();
        for vb in 0..VBUCKETS {
            let mut frame = binary_request(STREAM_REQ, &extras, &[], &[]);
            frame.get_mut(6..8).context("vBucket")?.copy_from_slice(&vb.to_be_bytes());
            requests.extend_from_slice(&frame);
        }
        self.stream.write_all(&requests)?;
        (self.open_streams, self.is_bounded) = (usize::from(VBUCKETS), to_latest);
        Ok(())
    }

    /// Reads until every stream has ended, or `stops` says so.
    pub fn read_to_end(&mut self, stops: impl Fn() -> bool) -> Result<()> {
        while self.open_streams > 0 && !stops() {
            ensure!(self.read_some()?, "the server closed the connection");
        }
        Ok(())
    }

    /// Reads until it has so many items.
    pub fn read_items(&mut self, items: u64) -> Result<()> {
        while self.items < items {
            ensure!(self.read_some()?, "the server closed the connection");
        }
        Ok(())
    }

    /// Reads what comes until its connection is shut down by the handle that [`Follower::hang_up`] returns.
    pub fn read_on(&mut self) -> Result<()> {
        while self.read_some()? {}
        Ok(())
    }

    /// Another handle of its connection.
    pub fn hang_up(&self) -> Result<TcpStream> {
        Ok(self.stream.try_clone()?)
    }

    /// Reads once; returns false at the end of the connection.
    fn read_some(&mut self) -> Result<bool> {
        let room = self.input.get_mut(self.filled..).unwrap_or_default();
        let count = match self.stream.read(room) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            // Nothing has happened for a while.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                ensure!(!self.is_bounded, "nothing came for a long time");
                return Ok(true);
            }
            Err(error) => return Err(error).context("reading streams"),
        };
        self.filled += count;
        let taken = self.take_frames()?;
        self.input.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        if self.filled == self.input.len() {
            self.input.resize(self.input.len() * 2, 0);
        }
        Ok(true)
    }

    /// Takes whole frames; returns their bytes.
    fn take_frames(&mut self) -> Result<usize> {
        let (mut at, mut acknowledged) = (0, 0u32);
        while let Some(rest) = self.input.get(at..self.filled)
            && let [magic, opcode, _, _, _, _, high, low, a, b, c, d, ..] = *rest
            && let length = HEADER + u32::from_be_bytes([a, b, c, d]) as usize
            && rest.len() >= length
        {
            match (magic, opcode) {
                (0x81, STREAM_REQ) if (high, low) == (0, 0) => {}
                (0x81, _) => bail!("streams: {}", describe(rest)),
                (_, MUTATION) => self.items += 1,
                (_, STREAM_END) => self.open_streams = self.open_streams.saturating_sub(1),
                _ => {}
            }
            if magic == 0x80 {
                acknowledged += u32::try_from(length)?;
            }
            at += length;
        }
        if self.acknowledges && acknowledged > 0 {
            let frame = binary_request(BUFFER_ACKNOWLEDGEMENT, &acknowledged.to_be_bytes(), &[], &[]);
            self.stream.write_all(&frame)?;
        }
        Ok(at)
    }
}

/// The highest seqnos of a node's vBuckets: numbers of vBuckets and seqnos as they are on the wire.
pub fn seqnos(connection: &mut TcpStream) -> Result<Vec<u8>> {
    exchange(connection, &binary_request(ALL_VB_SEQNOS, &[], &[], &[])).context("seqnos of all vBuckets")
}
