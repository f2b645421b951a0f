//! Requests prebuilt as bytes, and the answers expected to them.
//!
//! The load must cost far less than the server, so a request is a template in which only the last eight digits of the
//! key change, and the expected answer is known in advance: its first bytes (status included) and its length.
//!
//! ```text
//! template   header | 000000000000000012345678 | 12345678 random bytes ...
//!                             key, its last digits   value, stamped with the same digits so that reading it back
//!                                                    proves that this key holds this value
//! ```

use crate::random::Random;
use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;

/// Number of key digits that vary by item, and of digits in the stamp of its value.
const DIGITS: usize = 8;
/// Highest number of distinct items, given the digits.
pub const ITEMS_MAX: u32 = 100_000_000;
/// vBuckets of a Couchbase bucket. A single node serves all of them.
const VBUCKETS: u32 = 1024;

const OPCODE_GET: u8 = 0x00;
const OPCODE_SET: u8 = 0x01;
const OPCODE_DELETE: u8 = 0x04;
const HEADER: usize = 24;
/// Magic of a request whose key length field gives up a byte to the length of the framing extras.
pub const MAGIC_WITH_FRAMING: u8 = 0x08;
/// Framing extra of a durability level without a timeout: id 1, one byte.
const DURABILITY_FRAME: u8 = 0x11;

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// memcached's binary protocol.
    MemcachedBinary,
    /// memcached's text protocol.
    MemcachedText,
    /// Redis' protocol, version 2.
    Resp,
    /// Couchbase's key-value protocol with collections: keys carry a collection id, requests a vBucket.
    Couchbase,
}

impl Protocol {
    /// Its name in experiment files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemcachedBinary => "memcached-binary",
            Self::MemcachedText => "memcached-text",
            Self::Resp => "resp",
            Self::Couchbase => "couchbase",
        }
    }
}

/// How durable a write must be before it is answered, by its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "camelCase")]
#[value(rename_all = "camelCase")]
pub enum Level {
    /// In the memory of a majority of the vBucket's replication chain.
    Majority = 1,
    /// As `Majority`, and on the disk of the active node.
    MajorityAndPersistToActive = 2,
    /// On the disks of a majority.
    PersistToMajority = 3,
}

impl Level {
    /// Its name, as the SDKs spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Majority => "majority",
            Self::MajorityAndPersistToActive => "majorityAndPersistToActive",
            Self::PersistToMajority => "persistToMajority",
        }
    }
}

/// Sizes of the items of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Bytes of a key: zero-padded decimal digits.
    pub key_bytes: usize,
    /// Bytes of a value: the stamp followed by random bytes.
    pub value_bytes: usize,
}

impl Shape {
    /// Key and value together.
    pub fn payload_bytes(self) -> u64 {
        (self.key_bytes + self.value_bytes) as u64
    }
}

/// The answer expected to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// First bytes of the answer.
    pub prefix: Box<[u8]>,
    /// Whole length of the answer.
    pub length: usize,
    /// Offset of the value in the answer (reads only).
    pub value_at: usize,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It is the expected answer.
    Success,
    /// There is no such item.
    Missing,
    /// The request was refused.
    Refused,
}

/// Answers to a read of a missing item in the line-based protocols.
const MISSING: [&[u8]; 2] = [b"END\r\n", b"$-1\r\n"];
/// Prefixes of errors in these protocols.
const ERRORS: [&[u8]; 2] = [b"SERVER_ERROR ", b"-"];

/// One kind of request, complete except for its key.
#[derive(Clone, Debug)]
pub struct Template {
    bytes: Box<[u8]>,
    digits_at: usize,
    stamp_at: Option<usize>,
    /// CRC state over the constant digits of the key, if a vBucket has to be filled in.
    vbucket_state: Option<u32>,
    /// The answer expected to it.
    pub answer: Answer,
}

/// Reads and writes of one load.
#[derive(Clone, Debug)]
pub struct Dialect {
    /// Reads an item; it must be there.
    pub get: Template,
    /// Writes an item.
    pub set: Template,
    /// Sizes of the items.
    pub shape: Shape,
}

impl Dialect {
    /// Builds the requests of a load; the random part of the values is derived from `seed`.
    pub fn new(protocol: Protocol, shape: Shape, seed: u64) -> Result<Self> {
        if !(DIGITS..=250).contains(&shape.key_bytes) {
            bail!("keys of {} bytes: {DIGITS} to 250 are possible", shape.key_bytes);
        }
        let key = vec![b'0'; shape.key_bytes];
        let mut value = vec![0; shape.value_bytes];
        Random::new(seed).fill(&mut value);
        let (get, set) = match protocol {
            Protocol::MemcachedBinary => (binary_get(&key, None, &value), binary_set(&key, None, &value)),
            Protocol::Couchbase => {
                let mut prefixed = vec![0];
                prefixed.extend_from_slice(&key);
                let state = crc_bytes(!0, key.get(..key.len() - DIGITS).unwrap_or_default());
                (binary_get(&prefixed, Some(state), &value), binary_set(&prefixed, Some(state), &value))
            }
            Protocol::MemcachedText => (text_get(&key, &value), text_set(&key, &value)),
            Protocol::Resp => (resp_get(&key, &value), resp_set(&key, &value)),
        };
        Ok(Self { get, set, shape })
    }

    /// As [`Self::new`] over the Couchbase protocol, with writes that are answered once they have this durability
    /// level, or as ambiguous after the server's default timeout.
    pub fn durable(shape: Shape, seed: u64, level: Level) -> Result<Self> {
        let mut dialect = Self::new(Protocol::Couchbase, shape, seed)?;
        dialect.set.demand(level);
        Ok(dialect)
    }

    /// As [`Self::new`] over Redis' protocol, with writes that are answered once a replica has them.
    pub fn waiting_for_a_replica(shape: Shape, seed: u64) -> Result<Self> {
        let mut dialect = Self::new(Protocol::Resp, shape, seed)?;
        let set = &mut dialect.set;
        set.bytes = [&*set.bytes, &*resp_command(&[b"WAIT", b"1", b"0"])].concat().into();
        set.answer.prefix = b"+OK\r\n:1\r\n".as_slice().into();
        set.answer.length = set.answer.prefix.len();
        Ok(dialect)
    }

    /// Returns true if the answer to a read carries the stamp of item `index`.
    pub fn is_of(&self, index: u32, answer: &[u8]) -> bool {
        let value = answer.get(self.get.answer.value_at..).unwrap_or_default();
        self.shape.value_bytes < DIGITS || value.starts_with(&digits(index))
    }

    /// As [`Self::new`] over memcached's binary protocol, with deletes in place of writes: the item must exist.
    pub fn deleting(shape: Shape, seed: u64) -> Result<Self> {
        let mut dialect = Self::new(Protocol::MemcachedBinary, shape, seed)?;
        let bytes = binary_request(OPCODE_DELETE, &[], &vec![b'0'; shape.key_bytes], &[]);
        dialect.set = Template {
            digits_at: bytes.len() - DIGITS,
            bytes: bytes.into(),
            stamp_at: None,
            vbucket_state: None,
            answer: binary_answer(OPCODE_DELETE, 0, 0),
        };
        Ok(dialect)
    }

    /// The value item `index` must have.
    pub fn value_of(&self, index: u32) -> Vec<u8> {
        let mut request = Vec::new();
        self.set.write(index, &mut request);
        let end = request.len() - self.set.value_tail();
        request.get(end - self.shape.value_bytes..end).unwrap_or_default().to_vec()
    }
}

impl Template {
    /// Inserts the framing extra of a durability level before the other extras.
    fn demand(&mut self, level: Level) {
        let extra = [DURABILITY_FRAME, level as u8];
        let mut bytes = self.bytes.to_vec();
        // The upper byte of the key length becomes the length of the framing extras.
        if let [magic, _, extras_length, _, _, _, _, _, a, b, c, d, ..] = &mut *bytes {
            *magic = MAGIC_WITH_FRAMING;
            *extras_length = extra.len() as u8;
            let body = u32::from_be_bytes([*a, *b, *c, *d]) + extra.len() as u32;
            [*a, *b, *c, *d] = body.to_be_bytes();
        }
        bytes.splice(HEADER..HEADER, extra);
        self.bytes = bytes.into();
        self.digits_at += extra.len();
        self.stamp_at = self.stamp_at.map(|at| at + extra.len());
    }

    /// Appends the request for item `index`.
    #[inline]
    pub fn write(&self, index: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let digits = digits(index);
        if let Some(frame) = out.get_mut(start..) {
            put(frame, self.digits_at, &digits);
            if let Some(at) = self.stamp_at {
                put(frame, at, &digits);
            }
            if let Some(state) = self.vbucket_state {
                let vbucket = ((!crc_digits(state, digits) >> 16) & 0x7fff) % VBUCKETS;
                put(frame, 6, &(vbucket as u16).to_be_bytes());
            }
        }
    }

    /// The outcome that the answer at the start of `bytes` reports, and the answer's full length, of which `bytes` may
    /// hold less; `None` while that cannot be determined.
    pub fn answered(&self, bytes: &[u8]) -> Result<Option<(Answered, usize)>> {
        let prefix = bytes.get(..self.answer.prefix.len().min(bytes.len())).unwrap_or_default();
        if self.answer.prefix.starts_with(prefix) {
            let is_distinct = prefix.len() == self.answer.prefix.len();
            return Ok(is_distinct.then_some((Answered::Success, self.answer.length)));
        }
        if let [0x81, ..] = *self.answer.prefix {
            return match *bytes {
                [0x81, _, _, _, _, _, high, low, a, b, c, d, ..] if (high, low) != (0, 0) => {
                    let answered = if (high, low) == (0, 1) { Answered::Missing } else { Answered::Refused };
                    Ok(Some((answered, HEADER + u32::from_be_bytes([a, b, c, d]) as usize)))
                }
                [0x81, ..] if bytes.len() < HEADER => Ok(None),
                _ => bail!("unexpected {}", describe(bytes)),
            };
        }
        let Some(line) = bytes.windows(2).position(|pair| pair == b"\r\n").map(|at| at + 2) else {
            return Ok(None);
        };
        if MISSING.iter().any(|missing| bytes.starts_with(missing)) {
            return Ok(Some((Answered::Missing, line)));
        }
        ensure!(ERRORS.iter().any(|error| bytes.starts_with(error)), "unexpected {}", describe(bytes));
        Ok(Some((Answered::Refused, line)))
    }

    /// Bytes after the value.
    fn value_tail(&self) -> usize {
        if matches!(self.bytes.first(), Some(&(0x80 | MAGIC_WITH_FRAMING))) { 0 } else { 2 }
    }
}

#[inline]
fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Eight decimal digits.
#[inline]
fn digits(index: u32) -> [u8; DIGITS] {
    const PAIRS: [[u8; 2]; 100] = {
        let mut pairs = [[0; 2]; 100];
        let mut n = 0;
        while n < 100 {
            pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
            n += 1;
        }
        pairs
    };
    let (high, low) = ((index / 10_000) % 10_000, index % 10_000);
    let [a, b] = PAIRS[(high / 100) as usize];
    let [c, d] = PAIRS[(high % 100) as usize];
    let [e, f] = PAIRS[(low / 100) as usize];
    let [g, h] = PAIRS[(low % 100) as usize];
    [a, b, c, d, e, f, g, h]
}

const CRC: [[u32; 256]; 8] = {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let last = tables[table - 1][byte];
            tables[table][byte] = (last >> 8) ^ tables[0][(last & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
};

fn crc_bytes(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |crc, &byte| (crc >> 8) ^ CRC[0][((crc ^ u32::from(byte)) & 0xff) as usize])
}

/// CRC over eight bytes at once.
#[inline]
fn crc_digits(state: u32, digits: [u8; DIGITS]) -> u32 {
    let [a, b, c, d, e, f, g, h] = digits;
    let first = state ^ u32::from_le_bytes([a, b, c, d]);
    CRC[7][(first & 0xff) as usize]
        ^ CRC[6][((first >> 8) & 0xff) as usize]
        ^ CRC[5][((first >> 16) & 0xff) as usize]
        ^ CRC[4][(first >> 24) as usize]
        ^ CRC[3][e as usize]
        ^ CRC[2][f as usize]
        ^ CRC[1][g as usize]
        ^ CRC[0][h as usize]
}

/// Encodes a binary-protocol request (memcached and Couchbase share the frame).
pub fn binary_request(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body = extras.len() + key.len() + value.len();
    let mut frame = Vec::with_capacity(HEADER + body);
    frame.extend_from_slice(&[0x80, opcode]);
    frame.extend_from_slice(&(key.len() as u16).to_be_bytes());
    frame.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    frame.extend_from_slice(&(body as u32).to_be_bytes());
    frame.extend_from_slice(&[0; 12]);
    for part in [extras, key, value] {
        frame.extend_from_slice(part);
    }
    frame
}

fn binary_answer(opcode: u8, extras: usize, value: usize) -> Answer {
    let mut prefix = vec![0x81, opcode, 0, 0, extras as u8, 0, 0, 0];
    prefix.extend_from_slice(&((extras + value) as u32).to_be_bytes());
    Answer { prefix: prefix.into(), length: HEADER + extras + value, value_at: HEADER + extras }
}

fn binary_get(key: &[u8], vbucket_state: Option<u32>, value: &[u8]) -> Template {
    let bytes = binary_request(OPCODE_GET, &[], key, &[]);
    Template {
        digits_at: bytes.len() - DIGITS,
        bytes: bytes.into(),
        stamp_at: None,
        vbucket_state,
        answer: binary_answer(OPCODE_GET, 4, value.len()),
    }
}

fn binary_set(key: &[u8], vbucket_state: Option<u32>, value: &[u8]) -> Template {
    let bytes = binary_request(OPCODE_SET, &[0; 8], key, value);
    let value_at = bytes.len() - value.len();
    Template {
        digits_at: value_at - DIGITS,
        bytes: bytes.into(),
        stamp_at: stamp(value, value_at),
        vbucket_state,
        answer: binary_answer(OPCODE_SET, 0, 0),
    }
}

fn stamp(value: &[u8], value_at: usize) -> Option<usize> {
    (value.len() >= DIGITS).then_some(value_at)
}

fn text_get(key: &[u8], value: &[u8]) -> Template {
    let bytes = [b"get ", key, b"\r\n"].concat();
    let head = [b"VALUE ", key, format!(" 0 {}\r\n", value.len()).as_bytes()].concat();
    let constant = 6 + key.len() - DIGITS;
    Template {
        digits_at: bytes.len() - 2 - DIGITS,
        bytes: bytes.into(),
        stamp_at: None,
        vbucket_state: None,
        answer: Answer {
            prefix: head.get(..constant).unwrap_or_default().into(),
            length: head.len() + value.len() + b"\r\nEND\r\n".len(),
            value_at: head.len(),
        },
    }
}

fn text_set(key: &[u8], value: &[u8]) -> Template {
    let head = [b"set ", key].concat();
    let digits_at = head.len() - DIGITS;
    let head = [&head, format!(" 0 0 {}\r\n", value.len()).as_bytes()].concat();
    Template {
        digits_at,
        stamp_at: stamp(value, head.len()),
        bytes: [&head, value, b"\r\n"].concat().into(),
        vbucket_state: None,
        answer: whole_answer(b"STORED\r\n"),
    }
}

fn resp_get(key: &[u8], value: &[u8]) -> Template {
    let bytes = resp_command(&[b"GET", key]);
    let head = format!("${}\r\n", value.len());
    Template {
        digits_at: bytes.len() - 2 - DIGITS,
        bytes: bytes.into(),
        stamp_at: None,
        vbucket_state: None,
        answer: Answer {
            prefix: head.as_bytes().into(),
            length: head.len() + value.len() + 2,
            value_at: head.len(),
        },
    }
}

fn resp_set(key: &[u8], value: &[u8]) -> Template {
    let bytes = resp_command(&[b"SET", key, value]);
    let value_at = bytes.len() - 2 - value.len();
    let value_head = format!("\r\n${}\r\n", value.len()).len();
    Template {
        digits_at: value_at - value_head - DIGITS,
        bytes: bytes.into(),
        stamp_at: stamp(value, value_at),
        vbucket_state: None,
        answer: whole_answer(b"+OK\r\n"),
    }
}

/// Encodes a request of Redis' protocol.
pub fn resp_command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn whole_answer(answer: &[u8]) -> Answer {
    Answer { prefix: answer.into(), length: answer.len(), value_at: answer.len() }
}

/// Shows the first bytes of an answer that is not the expected one.
pub fn describe(bytes: &[u8]) -> String {
    match bytes {
        [0x81, opcode, _, _, _, _, high, low, ..] => {
            format!("binary answer to opcode 0x{opcode:02x} with status 0x{high:02x}{low:02x}")
        }
        _ => format!("\"{}\"", bytes.get(..bytes.len().min(80)).unwrap_or_default().escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { key_bytes: 24, value_bytes: 16 };

    fn request(template: &Template, index: u32) -> Vec<u8> {
        let mut out = b"before".to_vec();
        template.write(index, &mut out);
        assert_eq!(out.len(), 6 + template.bytes.len());
        out.split_off(6)
    }

    #[test]
    fn text_requests_read_like_text() {
        let dialect = Dialect::new(Protocol::MemcachedText, SHAPE, 1).unwrap();
        assert_eq!(request(&dialect.get, 1_234_567), b"get 000000000000000001234567\r\n");
        let set = request(&dialect.set, 99_999_999);
        assert!(set.starts_with(b"set 000000000000000099999999 0 0 16\r\n99999999"));
        assert!(set.ends_with(b"\r\n"));
        assert_eq!(dialect.get.answer.length, b"VALUE 000000000000000001234567 0 16\r\n".len() + 16 + 7);
        assert_eq!(&*dialect.get.answer.prefix, b"VALUE 0000000000000000");
    }

    #[test]
    fn resp_requests_name_their_lengths() {
        let dialect = Dialect::new(Protocol::Resp, SHAPE, 1).unwrap();
        assert_eq!(request(&dialect.get, 7), b"*2\r\n$3\r\nGET\r\n$24\r\n000000000000000000000007\r\n");
        let set = request(&dialect.set, 7);
        assert!(set.starts_with(b"*3\r\n$3\r\nSET\r\n$24\r\n000000000000000000000007\r\n$16\r\n00000007"));
        assert_eq!(dialect.get.answer.length, 5 + 16 + 2);
    }

    #[test]
    fn binary_frames_hold_key_and_value_in_place() {
        let dialect = Dialect::new(Protocol::MemcachedBinary, SHAPE, 1).unwrap();
        let set = request(&dialect.set, 42);
        assert_eq!(set.len(), 24 + 8 + 24 + 16);
        assert_eq!(&set[8..12], &48u32.to_be_bytes());
        assert_eq!(&set[32..56], b"000000000000000000000042");
        assert_eq!(&set[56..64], b"00000042");
        assert_eq!(&dialect.get.answer.prefix[..], [0x81, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 20]);
    }

    #[test]
    fn a_delete_is_a_key() {
        let delete = request(&Dialect::deleting(SHAPE, 1).unwrap().set, 42);
        assert_eq!(delete.len(), 24 + 24);
        assert_eq!((delete[1], &delete[2..4], &delete[8..12]), (4, &[0, 24][..], &24u32.to_be_bytes()[..]));
        assert_eq!(&delete[24..], b"000000000000000000000042");
    }

    #[test]
    fn couchbase_keys_carry_collection_and_vbucket() {
        let dialect = Dialect::new(Protocol::Couchbase, SHAPE, 1).unwrap();
        for index in [0, 1, 12_345_678] {
            let get = request(&dialect.get, index);
            assert_eq!(get[24], 0);
            let key = &get[25..];
            let mut crc = !0u32;
            for &byte in key {
                crc ^= u32::from(byte);
                for _ in 0..8 {
                    crc = (crc >> 1) ^ (0xedb8_8320 & (0u32.wrapping_sub(crc & 1)));
                }
            }
            let vbucket = ((!crc >> 16) & 0x7fff) % 1024;
            assert_eq!(u32::from(u16::from_be_bytes([get[6], get[7]])), vbucket);
        }
    }

    #[test]
    fn a_durable_write_is_the_plain_one_with_a_framing_extra() {
        let plain = request(&Dialect::new(Protocol::Couchbase, SHAPE, 1).unwrap().set, 42);
        let dialect = Dialect::durable(SHAPE, 1, Level::PersistToMajority).unwrap();
        let durable = request(&dialect.set, 42);
        assert_eq!(durable[..4], [0x08, 1, 2, 25]);
        assert_eq!(durable[4..8], plain[4..8]);
        assert_eq!(durable[8..12], (8u32 + 25 + 16 + 2).to_be_bytes());
        assert_eq!(durable[24..26], [0x11, 3]);
        assert_eq!(durable[26..], plain[24..]);
        assert_eq!(dialect.value_of(42).len(), 16);
    }

    #[test]
    fn answers_are_told_apart_as_soon_as_they_can_be() {
        for (protocol, found, missing, refused) in [
            (
                Protocol::MemcachedText,
                &b"VALUE 000000000000000000000007 0 16\r\n00000007abcdefgh\r\nEND\r\n"[..],
                &b"END\r\n"[..],
                &b"SERVER_ERROR out of memory storing object\r\n"[..],
            ),
            (Protocol::Resp, b"$16\r\n00000007abcdefgh\r\n", b"$-1\r\n", b"-OOM no room\r\n"),
            (
                Protocol::MemcachedBinary,
                b"\x81\0\0\0\x04\0\0\0\0\0\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0000000007abcdefgh",
                b"\x81\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0no",
                b"\x81\0\0\0\0\0\0\x82\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0no",
            ),
        ] {
            let dialect = Dialect::new(protocol, SHAPE, 1).unwrap();
            let cases =
                [(Answered::Success, found), (Answered::Missing, missing), (Answered::Refused, refused)];
            for (answered, bytes) in cases {
                for length in 0..=bytes.len() {
                    let read = dialect.get.answered(&bytes[..length]).unwrap();
                    assert!(read.is_none_or(|read| read == (answered, bytes.len())), "{read:?}");
                }
                let read = dialect.get.answered(&[bytes, bytes].concat()).unwrap();
                assert_eq!(read, Some((answered, bytes.len())), "{protocol:?}");
            }
            assert!(dialect.is_of(7, found) && !dialect.is_of(8, found));
            assert!(dialect.get.answered(b"nonsense\r\n").is_err());
        }
    }

    #[test]
    fn values_are_stamped_and_otherwise_equal() {
        for protocol in
            [Protocol::MemcachedBinary, Protocol::MemcachedText, Protocol::Resp, Protocol::Couchbase]
        {
            let dialect = Dialect::new(protocol, SHAPE, 9).unwrap();
            let (one, two) = (dialect.value_of(1), dialect.value_of(2));
            assert_eq!(one.len(), 16);
            assert_eq!((&one[..8], &two[..8]), (&b"00000001"[..], &b"00000002"[..]));
            assert_eq!(one[8..], two[8..]);
            let tiny =
                Dialect::new(protocol, Shape { key_bytes: 10, value_bytes: 1 }, 9).unwrap().value_of(5);
            assert_eq!(tiny.len(), 1);
        }
    }
}
