//! Reads a log from start to end through one buffer, whatever the size of its records.
//!
//! A record that fits the buffer is returned whole. A larger one (the snapshot that compaction writes) is checked
//! against its SHA-1 first and then read again piece by piece: the caller takes tokens and values off the front
//! ([`Reader::token`], [`Reader::value`]), and no more than one value is ever in memory.

use super::header::{CLUSTER_MAGIC, Checksum, Header, LENGTH_MAX, MAGIC, write_checksum};
use crate::error::Error;
use journal::File;
use sha1::{Digest, Sha1};
use std::io;
use wire::json::{DEPTH_MAX, Kind, Scanner, validate};

/// Size of the buffer: records up to this are read at once.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// Bytes read at a time: what was read is still in the processor's cache when it is parsed.
const READ_BYTES: usize = 128 << 10;

/// Where a record is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    /// The offset of its header.
    pub(super) offset: u64,
    /// The offset of its text.
    pub(super) body: u64,
    /// The length of its text.
    pub(super) length: u64,
    /// From the header; verified once the body was read.
    pub(super) checksum: Checksum,
}

impl Record {
    /// Where the next record begins.
    pub(super) fn end(&self) -> u64 {
        self.body.saturating_add(self.length)
    }
}

/// A log being read.
#[derive(Debug)]
pub(super) struct Reader<F> {
    file: F,
    /// The file's name in messages.
    name: String,
    buffer: Vec<u8>,
    /// Offset in the file of the buffer's first byte.
    start: u64,
    /// Bytes of the buffer that are filled and that are consumed.
    filled: usize,
    taken: usize,
    /// Bytes that fit at once.
    capacity: usize,
}

/// The number by which the stock server distinguishes the end of a file from system errors.
const END_OF_FILE: i32 = -1;

pub(super) fn errno(error: &io::Error) -> i32 {
    const EIO: i32 = 5;
    error.raw_os_error().unwrap_or(EIO)
}

impl<F: File> Reader<F> {
    pub(super) fn new(file: F, name: &str, capacity: usize) -> Self {
        Self {
            file,
            name: name.to_owned(),
            buffer: Vec::new(),
            start: 0,
            filled: 0,
            taken: 0,
            capacity: capacity.max(LENGTH_MAX + 1),
        }
    }

    /// Moves to that offset.
    pub(super) fn seek(&mut self, offset: u64) {
        match offset.checked_sub(self.start).and_then(|taken| usize::try_from(taken).ok()) {
            Some(taken) if taken <= self.filled => self.taken = taken,
            _ => (self.start, self.filled, self.taken) = (offset, 0, 0),
        }
    }

    /// The reader's offset in the file.
    pub(super) fn position(&self) -> u64 {
        self.start + self.taken as u64
    }

    /// Bytes of the file, as far as known.
    pub(super) fn length(&self) -> u64 {
        self.file.length().unwrap_or_default()
    }

    /// The next `wanted` bytes or more; fewer only at the end of the file.
    fn ahead(&mut self, wanted: usize) -> io::Result<&[u8]> {
        if self.filled - self.taken < wanted {
            self.buffer.copy_within(self.taken..self.filled, 0);
            self.start += self.taken as u64;
            self.filled -= self.taken;
            self.taken = 0;
            if self.buffer.len() < wanted.max(self.capacity) {
                self.buffer.resize(wanted.max(self.capacity), 0);
            }
            while self.filled < wanted {
                let offset = self.start + self.filled as u64;
                let end = wanted.max(self.filled + READ_BYTES).min(self.buffer.len());
                let free = self.buffer.get_mut(self.filled..end).unwrap_or_default();
                match self.file.read_at(free, offset) {
                    Ok(0) => break,
                    Ok(bytes) => self.filled += bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(self.buffer.get(self.taken..self.filled).unwrap_or_default())
    }

    /// Checks that this is a log of a standalone database.
    pub(super) fn identify(&mut self) -> Result<(), Error> {
        let name = self.name.clone();
        let ahead = self
            .ahead(LENGTH_MAX)
            .map_err(|error| Error::io(errno(&error), format!("{name}: read failed")))?;
        let problem = match ahead {
            [] => "cannot identify file type",
            start if start.starts_with(MAGIC) => return Ok(()),
            start if start.starts_with(CLUSTER_MAGIC) => "clustered databases are not supported",
            _ => "unexpected file format",
        };
        Err(Error::new("ovsdb error", format!("{name}: {problem}")))
    }

    /// The header of the next record, if there is one.
    pub(super) fn header(&mut self) -> Result<Option<Record>, Error> {
        let offset = self.position();
        let ahead = match self.ahead(LENGTH_MAX) {
            Ok([]) => return Ok(None),
            Ok(ahead) => ahead.get(..LENGTH_MAX).unwrap_or(ahead),
            Err(error) => return Err(Error::io(errno(&error), format!("{}: read failed", self.name))),
        };
        let end = ahead.iter().position(|byte| *byte == b'\n').map_or(ahead.len(), |place| place + 1);
        let line = ahead.get(..end).unwrap_or_default();
        match Header::parse(line) {
            Some(header) => {
                self.taken += end;
                let Header { length, checksum } = header;
                Ok(Some(Record { offset, body: offset + end as u64, length, checksum }))
            }
            None => {
                let shown = line.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or_default();
                let shown = String::from_utf8_lossy(shown).into_owned();
                let details =
                    format!("{}: parse error at offset {offset} in header line \"{shown}\"", self.name);
                Err(Error::syntax_error_anywhere(details))
            }
        }
    }

    /// Returns true if the record's text fits the buffer.
    pub(super) fn is_small(&self, record: &Record) -> bool {
        record.length <= self.capacity as u64
    }

    /// The text of a small record, checked against its SHA-1. The reader is then after it.
    pub(super) fn body(&mut self, record: &Record) -> Result<&[u8], Error> {
        let length = usize::try_from(record.length).unwrap_or(usize::MAX).min(self.capacity);
        let there = match self.ahead(length) {
            Ok(there) => there.get(..length),
            Err(error) => return Err(self.unreadable(record, errno(&error))),
        };
        let Some(text) = there else { return Err(self.unreadable(record, END_OF_FILE)) };
        let checksum: Checksum = Sha1::digest(text).into();
        if checksum != record.checksum {
            return Err(self.wrong_checksum(record, &checksum));
        }
        let start = self.taken;
        self.taken += length;
        Ok(self.buffer.get(start..self.taken).unwrap_or_default())
    }

    /// Checks the text of a record of any size against its SHA-1. The reader is then before the text.
    pub(super) fn verify(&mut self, record: &Record) -> Result<(), Error> {
        let mut hash = Sha1::new();
        self.seek(record.body);
        self.pieces(record, |piece| {
            hash.update(piece);
            Ok(())
        })?;
        let checksum: Checksum = hash.finalize().into();
        self.seek(record.body);
        if checksum == record.checksum { Ok(()) } else { Err(self.wrong_checksum(record, &checksum)) }
    }

    /// Fails if the text of a record of any size is not a JSON object. Reads all of it into memory.
    pub(super) fn check_syntax(&mut self, record: &Record) -> Result<(), Error> {
        let mut text = Vec::new();
        self.seek(record.body);
        self.pieces(record, |piece| {
            text.extend_from_slice(piece);
            Ok(())
        })?;
        match validate(&text) {
            Err(error) => Err(self.not_json(record, &error)),
            Ok(value) if value.kind() != Kind::Object => Err(self.not_an_object(record)),
            Ok(_) => Ok(()),
        }
    }

    /// Passes the text of a record to `take`, piece by piece.
    fn pieces(
        &mut self,
        record: &Record,
        mut take: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut left = record.length;
        while left > 0 {
            let ahead = match self.ahead(1) {
                Ok([]) => return Err(self.unreadable(record, END_OF_FILE)),
                Ok(ahead) => ahead,
                Err(error) => return Err(self.unreadable(record, errno(&error))),
            };
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(ahead.len());
            take(ahead.get(..length).unwrap_or_default())?;
            self.taken += length;
            left -= length as u64;
        }
        Ok(())
    }

    fn unreadable(&self, record: &Record, errno: i32) -> Error {
        let Record { length, body, .. } = record;
        Error::io(errno, format!("{}: error reading {length} bytes starting at offset {body}", self.name))
    }

    fn wrong_checksum(&self, record: &Record, found: &Checksum) -> Error {
        let text = |checksum: &Checksum| {
            let mut digits = Vec::with_capacity(40);
            write_checksum(checksum, &mut digits);
            String::from_utf8_lossy(&digits).into_owned()
        };
        let Record { length, body, checksum, .. } = record;
        let (found, expected) = (text(found), text(checksum));
        Error::syntax_error_anywhere(format!(
            "{}: {length} bytes starting at offset {body} have SHA-1 hash {found} but should have hash {expected}",
            self.name
        ))
    }

    /// The error about a record that is not JSON.
    pub(super) fn not_json(&self, record: &Record, why: &dyn std::fmt::Display) -> Error {
        let Record { length, body, .. } = record;
        let name = &self.name;
        Error::syntax_error_anywhere(format!(
            "{name}: {length} bytes starting at offset {body} are not valid JSON ({why})"
        ))
    }

    /// The error about a record that is some other JSON.
    pub(super) fn not_an_object(&self, record: &Record) -> Error {
        let Record { length, body, .. } = record;
        let name = &self.name;
        Error::syntax_error_anywhere(format!(
            "{name}: {length} bytes starting at offset {body} are not a JSON object"
        ))
    }

    /// The next bytes: this many or more, fewer at the end of the file.
    pub(super) fn window(&mut self, wanted: usize) -> Result<&[u8], Error> {
        if let Err(error) = self.ahead(wanted) {
            return Err(Error::io(errno(&error), format!("{}: read failed", self.name)));
        }
        Ok(self.buffer.get(self.taken..self.filled).unwrap_or_default())
    }

    /// Skips this many bytes of the window.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.taken = (self.taken + bytes).min(self.filled);
    }

    /// The next byte that is not white space; 0 at the end.
    pub(super) fn token(&mut self) -> Result<u8, Error> {
        loop {
            let ahead = match self.ahead(1) {
                Ok(ahead) => ahead,
                Err(error) => return Err(Error::io(errno(&error), format!("{}: read failed", self.name))),
            };
            let Some(byte) = ahead.first().copied() else { return Ok(0) };
            if !byte.is_ascii_whitespace() {
                return Ok(byte);
            }
            self.taken += 1;
        }
    }

    /// Skips the byte that [`Self::token`] returned.
    pub(super) fn pass(&mut self) {
        self.taken = (self.taken + 1).min(self.filled);
    }

    /// Takes the next value, which begins with the byte that [`Self::token`] returned, as a whole. `None`: there is
    /// none.
    pub(super) fn value(&mut self) -> Result<Option<&[u8]>, Error> {
        let mut wanted = 1;
        loop {
            let ahead = match self.ahead(wanted) {
                Ok(ahead) => ahead,
                Err(error) => return Err(Error::io(errno(&error), format!("{}: read failed", self.name))),
            };
            let ended = ahead.len() < wanted;
            match value_length(ahead) {
                Found::Length(length) => {
                    let start = self.taken;
                    self.taken += length;
                    return Ok(self.buffer.get(start..self.taken));
                }
                Found::Wrong => return Ok(None),
                Found::More if ended => return Ok(None),
                // Geometric, so that a value of any size is scanned only a few times.
                Found::More => wanted = (ahead.len() * 2).max(4096),
            }
        }
    }
}

/// The length of the value at the start of some text.
enum Found {
    Length(usize),
    More,
    Wrong,
}

fn value_length(text: &[u8]) -> Found {
    match text.first() {
        Some(b'{' | b'[') => match Scanner::new(DEPTH_MAX).advance(text) {
            Ok(Some(length)) => Found::Length(length),
            Ok(None) => Found::More,
            Err(_) => Found::Wrong,
        },
        Some(b'"') => {
            let mut escaped = false;
            for (place, byte) in text.iter().enumerate().skip(1) {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' => escaped = true,
                    b'"' => return Found::Length(place + 1),
                    0..0x20 => return Found::Wrong,
                    _ => {}
                }
            }
            Found::More
        }
        _ => match text.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b':' | b'\n' | b' ')) {
            Some(0) => Found::Wrong,
            Some(length) => Found::Length(length),
            None => Found::More,
        },
    }
}
