//! The end of a sealed segment: where the runs of each vBucket are.
//!
//! ```text
//! table      an entry per run (as in commit records), by vBucket, first seqno, offset
//! summary    per vBucket that has runs, ascending:
//!             0  2  vBucket
//!             2  2  0
//!             4  4  its first entry in the table
//!             8  4  its entries
//!            12  6  least seqno of its runs
//!            18  6  greatest seqno
//!            24  4  CRC32C of its entries, seeded with the segment and the offset of the first
//! trailer     0  8  magic
//!             8  8  offset of the table
//!            16  4  entries of the table
//!            20  4  lines of the summary
//!            24  8  last batch of the segment
//!            32  8  highest CAS of the shard
//!            40  8  segment that compaction copied from last, 0 if none
//!            48  4  how many of its runs were copied
//!            52  4  CRC32C of the summary, seeded with the segment and its offset
//!            56  4  0
//!            60  4  CRC32C of the above, seeded with the segment and the trailer's offset
//! ```
//!
//! The trailer is the end of the file.

use super::buffer::read_up_to;
use super::commit::CopyMark;
use super::format::{CHECKSUM_BYTES, Fields, MAX_48, Origin, Put, TRAILER_MAGIC, checksum, is_intact};
use super::run::{ENTRY_BYTES, Run};
use crate::File;
use std::io;

/// Length of a summary's line.
pub(super) const LINE_BYTES: usize = 28;
/// Length of the trailer.
pub(super) const TRAILER_BYTES: usize = 64;

/// The runs of one vBucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    pub first: u64,
    /// In a line kept in memory it may be too high, if it is far from the first.
    pub last: u64,
    pub vbucket: u16,
    pub entry: u32,
    pub entries: u32,
    pub checksum: u32,
}

impl Line {
    fn encode(&self) -> [u8; LINE_BYTES] {
        Put::new()
            .u16(self.vbucket)
            .u16(0)
            .u32(self.entry)
            .u32(self.entries)
            .u48(self.first)
            .u48(self.last)
            .u32(self.checksum)
            .finish()
    }

    fn read(bytes: &[u8]) -> Self {
        let mut fields = Fields(bytes);
        let (vbucket, _, entry, entries) = (fields.u16(), fields.u16(), fields.u32(), fields.u32());
        let (first, last) = (fields.u48(), fields.u48());
        Self { first, last, vbucket, entry, entries, checksum: fields.u32() }
    }
}

/// A line as kept in memory, for each vBucket of every sealed segment. Its entries end where those of the next begin.
#[derive(Debug)]
struct Short {
    first_low: u32,
    first_high: u16,
    vbucket: u16,
    /// From the first seqno to the last, at most [`FAR`].
    span: u32,
    entry: u32,
    checksum: u32,
}

const _: () = assert!(size_of::<Short>() == 20);
/// This far or farther.
const FAR: u32 = u32::MAX;

impl Short {
    fn of(line: &Line) -> Self {
        Self {
            first_low: line.first as u32,
            first_high: (line.first >> 32) as u16,
            vbucket: line.vbucket,
            span: u32::try_from(line.last.saturating_sub(line.first)).unwrap_or(FAR),
            entry: line.entry,
            checksum: line.checksum,
        }
    }

    /// The line whose entries end at this one.
    fn line(&self, end: u32) -> Line {
        let first = u64::from(self.first_high) << 32 | u64::from(self.first_low);
        let last = if self.span == FAR { MAX_48 } else { first + u64::from(self.span) };
        let Self { vbucket, entry, checksum, .. } = *self;
        Line { first, last, vbucket, entry, entries: end - entry, checksum }
    }
}

/// The checksum at the end of a trailer.
fn checksum_in(trailer: &[u8]) -> u32 {
    trailer.last_chunk::<CHECKSUM_BYTES>().map_or(0, |sum| u32::from_le_bytes(*sum))
}

/// The part of a footer that is kept in memory.
#[derive(Debug)]
pub(super) struct Footer {
    pub origin: Origin,
    /// Offset of the table, which is the end of the last batch.
    pub table: u64,
    pub entries: u32,
    lines: Box<[Short]>,
    pub last_batch: u64,
    pub max_cas: u64,
    pub copied: CopyMark,
    /// The trailer's, which stands for the whole table; 0 before it is encoded.
    pub trailer_checksum: u32,
}

impl Footer {
    /// Creates the footer of a segment with these runs, which it sorts, and its lines.
    pub fn of(runs: &mut [Run], origin: Origin, table: u64) -> (Self, Vec<Line>) {
        runs.sort_unstable_by_key(Run::place_in_table);
        let mut lines = Vec::new();
        let mut entry = 0;
        for of_vbucket in runs.chunk_by(|a, b| a.vbucket() == b.vbucket()) {
            let start = origin.seed(table + u64::from(entry) * ENTRY_BYTES as u64);
            // Runs of states have no seqnos.
            let with_seqnos = of_vbucket.iter().filter(|run| run.last > 0);
            let first = with_seqnos.clone().map(|run| run.first).min().unwrap_or(0);
            let last = with_seqnos.map(|run| run.last).max().unwrap_or(0);
            let checksum = of_vbucket.iter().fold(start, |sum, run| checksum(sum, &run.entry()));
            let entries = of_vbucket.len() as u32;
            let vbucket = of_vbucket.first().map_or(0, Run::vbucket);
            lines.push(Line { first, last, vbucket, entry, entries, checksum });
            entry += entries;
        }
        let short = lines.iter().map(Short::of).collect();
        let footer = Self {
            origin,
            table,
            entries: entry,
            lines: short,
            last_batch: 0,
            max_cas: 0,
            copied: CopyMark::default(),
            trailer_checksum: 0,
        };
        (footer, lines)
    }

    fn summary(&self) -> u64 {
        self.table + u64::from(self.entries) * ENTRY_BYTES as u64
    }

    fn trailer(&self) -> u64 {
        self.summary() + (self.lines.len() * LINE_BYTES) as u64
    }

    /// Offset of its end, which is the length of the segment.
    pub fn end(&self) -> u64 {
        self.trailer() + TRAILER_BYTES as u64
    }

    /// Appends what comes after the table, given the lines it was created with.
    pub fn encode_end(&mut self, lines: &[Line], bytes: &mut Vec<u8>) {
        let start = bytes.len();
        for line in lines {
            bytes.extend_from_slice(&line.encode());
        }
        let summary = bytes.get(start..).unwrap_or_default();
        let summary_checksum = checksum(self.origin.seed(self.summary()), summary);
        let trailer: [u8; TRAILER_BYTES] = Put::new()
            .bytes(TRAILER_MAGIC)
            .u64(self.table)
            .u32(self.entries)
            .u32(lines.len() as u32)
            .u64(self.last_batch)
            .u64(self.max_cas)
            .u64(self.copied.segment)
            .u32(self.copied.runs)
            .u32(summary_checksum)
            .u32(0)
            .finish_with_checksum(self.origin.seed(self.trailer()));
        self.trailer_checksum = checksum_in(&trailer);
        bytes.extend_from_slice(&trailer);
    }

    /// Reads the footer at the end of a file of this length, if there is one and all of it is intact.
    pub fn read<F: File>(file: &F, origin: Origin, length: u64, vbuckets: u16) -> io::Result<Option<Self>> {
        let Some(trailer_offset) = length.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
        let mut bytes = Vec::new();
        read_up_to(file, trailer_offset, TRAILER_BYTES, &mut bytes)?;
        if bytes.len() != TRAILER_BYTES
            || !bytes.starts_with(&TRAILER_MAGIC)
            || !is_intact(&bytes, origin.seed(trailer_offset))
        {
            return Ok(None);
        }
        let mut fields = Fields(bytes.get(TRAILER_MAGIC.len()..).unwrap_or_default());
        let (table, entries, lines) = (fields.u64(), fields.u32(), fields.u32());
        let (last_batch, max_cas) = (fields.u64(), fields.u64());
        let copied = CopyMark { segment: fields.u64(), runs: fields.u32() };
        let summary_checksum = fields.u32();
        let trailer_checksum = checksum_in(&bytes);
        let mut footer = Self {
            origin,
            table,
            entries,
            lines: Box::default(),
            last_batch,
            max_cas,
            copied,
            trailer_checksum,
        };
        if table > length || last_batch > MAX_48 {
            return Ok(None);
        }
        let lines_bytes = u64::from(lines) * LINE_BYTES as u64;
        let summary = footer.summary();
        if lines > u32::from(vbuckets) || summary.checked_add(lines_bytes) != Some(trailer_offset) {
            return Ok(None);
        }
        read_up_to(file, summary, lines_bytes as usize, &mut bytes)?;
        if checksum(origin.seed(summary), &bytes) != summary_checksum {
            return Ok(None);
        }
        let mut end = 0u32;
        let mut short = Vec::with_capacity(lines as usize);
        for line in bytes.chunks_exact(LINE_BYTES).map(Line::read) {
            let follows = line.entry == end && line.last >= line.first;
            match end.checked_add(line.entries).filter(|_| follows) {
                Some(next) => end = next,
                None => return Ok(None),
            }
            short.push(Short::of(&line));
        }
        if end != entries {
            return Ok(None);
        }
        footer.lines = short.into();
        for line in footer.lines() {
            if footer.read_entries(file, &line, &mut bytes)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(footer))
    }

    /// Returns all entries, in the order of the table; `None` if some are damaged.
    pub fn runs<F: File>(&self, file: &F) -> io::Result<Option<Vec<Run>>> {
        let (mut runs, mut bytes) = (Vec::with_capacity(self.entries as usize), Vec::new());
        for line in self.lines() {
            match self.read_entries(file, &line, &mut bytes)? {
                Some(entries) => runs.extend(entries),
                None => return Ok(None),
            }
        }
        Ok(Some(runs))
    }

    /// All lines, by vBucket.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        (0..self.lines.len()).filter_map(|index| self.line_at(index))
    }

    fn line_at(&self, index: usize) -> Option<Line> {
        let end = self.lines.get(index + 1).map_or(self.entries, |next| next.entry);
        self.lines.get(index).map(|short| short.line(end))
    }

    /// The line of a vBucket.
    pub fn line(&self, vbucket: u16) -> Option<Line> {
        self.line_at(self.lines.binary_search_by_key(&vbucket, |line| line.vbucket).ok()?)
    }

    /// Reads the entries of a line; `None` if they are damaged.
    pub fn read_entries<'b, F: File>(
        &self,
        file: &F,
        line: &Line,
        bytes: &'b mut Vec<u8>,
    ) -> io::Result<Option<impl DoubleEndedIterator<Item = Run> + use<'b, F>>> {
        let offset = self.table + u64::from(line.entry) * ENTRY_BYTES as u64;
        let length = line.entries as usize * ENTRY_BYTES;
        if offset + length as u64 > self.summary() {
            return Ok(None);
        }
        read_up_to(file, offset, length, bytes)?;
        if checksum(self.origin.seed(offset), bytes) != line.checksum {
            return Ok(None);
        }
        Ok(Some(bytes.chunks_exact(ENTRY_BYTES).map(Run::read_entry)))
    }
}
