//! Splits a JSON-RPC stream into messages. It only examines quotes and brackets: a server that does not send JSON fails
//! the checks of what messages must contain.
//!
//! A message that arrives in one piece is passed on from the read buffer. Of any other, the first bytes up to a bound
//! and the last few are kept, so that a hundred replies of many megabytes cost the load no memory.

use anyhow::{Result, ensure};
use memchr::{memchr2, memmem};

/// Bytes kept from the end of a message.
const TAIL_BYTES: usize = 64;
/// The members before a message's payload are within this many bytes.
const FRONT_BYTES: usize = 64;

/// Finds the ends of JSON objects and arrays in bytes that arrive in arbitrary pieces.
#[derive(Debug, Default)]
struct Scanner {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Scanner {
    /// Consumes bytes up to the end of the current value; returns where it ends, if it does.
    fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        if self.escaped && !bytes.is_empty() {
            self.escaped = false;
            at = 1;
        }
        loop {
            if self.in_string {
                let rest = bytes.get(at..).unwrap_or_default();
                let found = memchr2(b'"', b'\\', rest)?;
                if rest.get(found) == Some(&b'"') {
                    self.in_string = false;
                    at += found + 1;
                } else {
                    at += found + 2;
                    self.escaped = at > bytes.len();
                    continue;
                }
            }
            let rest = bytes.get(at..).unwrap_or_default();
            for (offset, byte) in rest.iter().enumerate() {
                match byte {
                    b'"' => {
                        self.in_string = true;
                        at += offset + 1;
                        break;
                    }
                    b'{' | b'[' => self.depth += 1,
                    b'}' | b']' => {
                        self.depth = self.depth.saturating_sub(1);
                        if self.depth == 0 {
                            return Some(at + offset + 1);
                        }
                    }
                    _ => {}
                }
            }
            if !self.in_string {
                return None;
            }
        }
    }
}

/// One message, or what was kept of it.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its beginning; all of it if within the bound.
    pub head: &'a [u8],
    /// Its last bytes.
    tail: &'a [u8],
    /// Its full length.
    pub length: usize,
}

impl<'a> Message<'a> {
    fn whole(text: &'a [u8]) -> Self {
        Self { head: text, tail: last(text), length: text.len() }
    }

    fn front(&self) -> &'a [u8] {
        self.head.get(..FRONT_BYTES).unwrap_or(self.head)
    }

    /// Returns true if it is a notification (or a request by the server) rather than a reply.
    pub fn is_notification(&self) -> bool {
        memmem::find(self.front(), b"\"method\":").is_some()
    }

    /// The id of the request that it answers.
    pub fn id(&self) -> Option<u64> {
        number_after(self.front(), b"\"id\":").or_else(|| number_after(self.tail, b"\"id\":"))
    }

    /// Fails unless it is the successful reply to request `id`. An operation's error is inside the result; the caller
    /// has to check for it.
    pub fn check_reply(&self, id: u64) -> Result<()> {
        ensure!(self.id() == Some(id), "request {id} was answered by {}", self.describe());
        const NO_ERROR: &[u8] = b"\"error\":null";
        let succeeded =
            memmem::find(self.tail, NO_ERROR).is_some() || memmem::find(self.front(), NO_ERROR).is_some();
        ensure!(succeeded, "a request failed: {}", self.describe());
        Ok(())
    }

    /// Its beginning, for error messages.
    pub fn describe(&self) -> String {
        let shown = self.head.get(..300).unwrap_or(self.head);
        format!("{} ({} bytes)", String::from_utf8_lossy(shown), self.length)
    }
}

fn last(text: &[u8]) -> &[u8] {
    text.get(text.len().saturating_sub(TAIL_BYTES)..).unwrap_or_default()
}

fn number_after(text: &[u8], name: &[u8]) -> Option<u64> {
    let from = memmem::find(text, name)? + name.len();
    let digits = text.get(from..)?.iter().take_while(|byte| byte.is_ascii_digit());
    let (number, count) = digits.fold((0u64, 0), |(number, count), &digit| {
        (number.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')), count + 1)
    });
    (count > 0).then_some(number)
}

/// Splits a stream into messages.
#[derive(Debug)]
pub struct Splitter {
    scanner: Scanner,
    head: Vec<u8>,
    tail: Vec<u8>,
    length: usize,
    keep_bytes: usize,
}

impl Splitter {
    /// A splitter that keeps up to `keep_bytes` of a message that arrives in pieces.
    pub fn new(keep_bytes: usize) -> Self {
        Self { scanner: Scanner::default(), head: Vec::new(), tail: Vec::new(), length: 0, keep_bytes }
    }

    /// Consumes bytes and passes each message they complete to `each`.
    pub fn feed(&mut self, mut input: &[u8], mut each: impl FnMut(&Message<'_>) -> Result<()>) -> Result<()> {
        while let Some(end) = self.scanner.advance(input) {
            let (piece, rest) = input.split_at(end);
            input = rest;
            if self.length == 0 {
                each(&Message::whole(piece))?;
                continue;
            }
            self.keep(piece);
            each(&Message { head: &self.head, tail: &self.tail, length: self.length })?;
            self.head.clear();
            self.tail.clear();
            self.length = 0;
        }
        if !input.is_empty() {
            self.keep(input);
        }
        Ok(())
    }

    fn keep(&mut self, piece: &[u8]) {
        self.length += piece.len();
        let room = self.keep_bytes.saturating_sub(self.head.len());
        self.head.extend_from_slice(piece.get(..room).unwrap_or(piece));
        let end = last(piece);
        let spare = (self.tail.len() + end.len()).saturating_sub(TAIL_BYTES);
        self.tail.drain(..spare);
        self.tail.extend_from_slice(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = br#"{"id":1,"result":["a}\"]\\",[{}]],"error":null}
        {"id":null,"method":"update3","params":[{"x":"\\\"{"}]}[]{"id":1000000002,"result":[],"error":null}"#;

    fn split(keep: usize, piece: usize) -> Vec<(usize, bool, Option<u64>)> {
        let mut splitter = Splitter::new(keep);
        let mut found = Vec::new();
        for bytes in STREAM.chunks(piece) {
            splitter
                .feed(bytes, |message| {
                    found.push((message.length, message.is_notification(), message.id()));
                    Ok(())
                })
                .unwrap();
        }
        found
    }

    #[test]
    fn messages_are_the_same_in_any_pieces() {
        let whole = split(4096, STREAM.len());
        assert_eq!(whole.len(), 4);
        assert_eq!(whole.iter().map(|message| message.0).sum::<usize>(), STREAM.len());
        assert_eq!((whole[0].1, whole[0].2), (false, Some(1)));
        assert_eq!((whole[1].1, whole[1].2), (true, None));
        assert_eq!(whole[3].2, Some(1_000_000_002));
        for piece in 1..STREAM.len() {
            assert_eq!(split(4096, piece), whole, "pieces of {piece}");
        }
    }

    #[test]
    fn of_a_long_message_both_ends_are_known() {
        let mut text = br#"{"id":7,"result":[""#.to_vec();
        text.resize(10_000, b'x');
        text.extend_from_slice(br#""],"error":null}"#);
        let mut splitter = Splitter::new(100);
        let mut seen = 0;
        for piece in text.chunks(999) {
            splitter
                .feed(piece, |message| {
                    seen += 1;
                    assert_eq!((message.head.len(), message.length), (100, text.len()));
                    message.check_reply(7)
                })
                .unwrap();
        }
        assert_eq!(seen, 1);
    }

    #[test]
    fn a_failed_or_foreign_reply_is_an_error() {
        let check = |text: &[u8]| Message::whole(text).check_reply(7);
        assert!(check(br#"{"id":7,"result":[],"error":null}"#).is_ok());
        assert!(check(br#"{"id":8,"result":[],"error":null}"#).is_err());
        assert!(check(br#"{"id":7,"error":"unknown method"}"#).is_err());
    }
}
