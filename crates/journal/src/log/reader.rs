//! Looks up single records.

use super::buffer::{fill, read_up_to};
use super::damage::{Damage, Part, Spoils};
use super::format::{CHECKSUM_BYTES, checksum};
use super::record::{RECORD_HEADER_BYTES, Record, RecordHeader};
use super::run::{RUN_HEADER_BYTES, Run};
use super::segment::{Catalogue, Segment};
use crate::Disk;
use std::io;
use std::sync::Arc;

/// Looks up records by vBucket and seqno. A handle, cloned freely; it sees batches as they are committed.
#[derive(Debug)]
pub struct Reader<D: Disk>(Arc<Catalogue<D>>);

/// Why a record was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// An I/O error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The record, or what leads to it, is not as it was written.
    #[error("{0}")]
    Damaged(Damage),
    /// There is no memory to read it to now.
    #[error("no memory to read it to")]
    NoRoom,
}

impl<D: Disk> Clone for Reader<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Disk> Reader<D> {
    pub(super) fn new(catalogue: Arc<Catalogue<D>>) -> Self {
        Self(catalogue)
    }

    pub(super) fn catalogue(&self) -> &Catalogue<D> {
        &self.0
    }

    /// Returns the record of this seqno, if it is in a committed batch. It lies in `buffer`, which grows to its
    /// length, or to that of a short run.
    pub fn read<'b>(
        &self,
        vbucket: u16,
        seqno: u64,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<Record<'b>>, ReadError> {
        self.find(vbucket, seqno, buffer)?.map(|found| found.read(buffer)).transpose()
    }

    /// Finds the record of this seqno, if it is in a committed batch. `buffer` is kept for its memory, and has at most
    /// [`WHOLE_RUN_BYTES`].
    pub fn find(
        &self,
        vbucket: u16,
        seqno: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<Found<D>>, ReadError> {
        loop {
            let segments = self.0.segments();
            match find(&segments, vbucket, seqno, buffer) {
                // Compacted away since the list was taken: its live records are in a newer one.
                Err(ReadError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound
                        && !Arc::ptr_eq(&segments, &self.0.segments()) => {}
                found => return found,
            }
        }
    }
}

/// A run of up to this many bytes is read at once. Of a longer one, which is one long record, only the header is read.
pub const WHOLE_RUN_BYTES: usize = 256 << 10;
/// Bytes read to find the next header in a long run: short records are passed over together.
const HEADERS_BYTES: usize = 16 << 10;
/// Bytes read at once to check a record's checksum.
const CHECKED_BYTES: usize = 64 << 10;

/// A record that was found by its header. Nothing of it is checked yet.
pub struct Found<D: Disk> {
    segment: Arc<Segment<D>>,
    vbucket: u16,
    /// Its offset in the segment.
    offset: u64,
    header: RecordHeader,
    /// Its offset in the buffer, if it lies there as a whole.
    within: Option<usize>,
}

impl<D: Disk> Found<D> {
    /// The length of its value, as its header has it.
    pub fn value_bytes(&self) -> usize {
        self.header.value_bytes as usize
    }

    /// Reads it. `buffer` is the one that it was found with, unchanged, and grows to the record's length.
    pub fn read<'b>(&self, buffer: &'b mut Vec<u8>) -> Result<Record<'b>, ReadError> {
        if self.within.is_none() {
            let bytes = usize::try_from(self.header.record_bytes()).unwrap_or(usize::MAX);
            read_up_to(self.segment.file()?, self.offset, bytes, buffer)?;
        }
        let bytes = buffer.get(self.within.unwrap_or(0)..).unwrap_or_default();
        Record::decode(bytes, self.segment.origin, self.offset).ok_or_else(|| self.damaged())
    }

    /// Reads its value into `value`, which has [`Self::value_bytes`], and what precedes it into `front`. The record
    /// that is returned has no value of its own.
    pub fn read_apart<'b>(&self, front: &'b mut Vec<u8>, value: &mut [u8]) -> Result<Record<'b>, ReadError> {
        debug_assert_eq!(value.len(), self.value_bytes());
        let file = self.segment.file()?;
        let front_bytes = RECORD_HEADER_BYTES + usize::from(self.header.key_bytes);
        read_up_to(file, self.offset, front_bytes, front)?;
        let filled = fill(file, self.offset + front_bytes as u64, value)?;
        let is_whole = front.len() == front_bytes && filled == value.len();
        let record = Record::decode_apart(front, value, self.segment.origin, self.offset);
        record.filter(|_| is_whole).ok_or_else(|| self.damaged())
    }

    fn damaged(&self) -> ReadError {
        damaged(&self.segment, self.vbucket, self.offset, Part::Record)
    }
}

fn find<D: Disk>(
    segments: &[Arc<Segment<D>>],
    vbucket: u16,
    seqno: u64,
    buffer: &mut Vec<u8>,
) -> Result<Option<Found<D>>, ReadError> {
    for segment in segments.iter().rev() {
        let Some(runs) = segment.runs_with(vbucket, seqno)? else {
            return Err(damaged(segment, vbucket, segment.state().end, Part::Footer));
        };
        for run in &runs {
            if let Some(found) = find_in_run(segment, run, seqno, buffer)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// The bytes of a run as they are needed: all of a short run, else a window.
struct Bytes<'a, D: Disk> {
    segment: &'a Segment<D>,
    run: &'a Run,
    buffer: &'a mut Vec<u8>,
    /// Offset in the run of the buffer's first byte.
    from: u64,
}

impl<D: Disk> Bytes<'_, D> {
    /// Returns at least `least` bytes from this offset in the run on, fewer at its end.
    fn at(&mut self, within: u64, least: usize) -> io::Result<&[u8]> {
        let end = u64::from(self.run.bytes);
        let is_there = within >= self.from && within + least as u64 <= self.from + self.buffer.len() as u64;
        if !is_there && u64::from(self.run.bytes) > WHOLE_RUN_BYTES as u64 {
            let bytes = end.saturating_sub(within).min(HEADERS_BYTES.max(least) as u64);
            read_up_to(self.segment.file()?, self.run.offset() + within, bytes as usize, self.buffer)?;
            self.from = within;
        }
        let at = usize::try_from(within - self.from).unwrap_or(usize::MAX);
        Ok(self.buffer.get(at..).unwrap_or_default())
    }

    fn header_at(&mut self, within: u64) -> io::Result<Option<RecordHeader>> {
        Ok(RecordHeader::read(self.at(within, RECORD_HEADER_BYTES)?))
    }

    /// Returns true if the checksum of the record at this offset is right.
    fn is_sound(&mut self, within: u64, header: &RecordHeader) -> io::Result<bool> {
        let record_end = within.saturating_add(header.record_bytes());
        if record_end > u64::from(self.run.bytes) {
            return Ok(false);
        }
        let mut sum = self.segment.origin.seed(self.run.offset() + within);
        let mut at = within + CHECKSUM_BYTES as u64;
        while at < record_end {
            let most = (record_end - at).min(CHECKED_BYTES as u64) as usize;
            let piece = self.at(at, most)?;
            let piece = piece.get(..most).unwrap_or(piece);
            if piece.is_empty() {
                return Ok(false);
            }
            sum = checksum(sum, piece);
            at += piece.len() as u64;
        }
        Ok(sum == header.checksum && header.kind().is_some())
    }
}

/// Finds the record with this seqno in a run, if it is there.
fn find_in_run<D: Disk>(
    segment: &Arc<Segment<D>>,
    run: &Run,
    seqno: u64,
    buffer: &mut Vec<u8>,
) -> Result<Option<Found<D>>, ReadError> {
    let bad = |offset: u64, part| Err(damaged(segment, run.vbucket(), offset, part));
    if run.end() > segment.state().end {
        return bad(run.offset(), Part::Run);
    }
    let is_short = run.bytes as usize <= WHOLE_RUN_BYTES;
    let first_bytes = if is_short { run.bytes as usize } else { HEADERS_BYTES };
    read_up_to(segment.file()?, run.offset(), first_bytes, buffer)?;
    let header = Run::read_header(buffer, segment.origin, run.offset());
    if header.is_none_or(|(found, _)| found != *run) {
        return bad(run.offset(), Part::Run);
    }
    let mut bytes = Bytes { segment, run, buffer, from: 0 };
    let mut within = RUN_HEADER_BYTES as u64;
    // Lengths are trusted here; the checksum of the record that is found is compared.
    while let Some(header) = bytes.header_at(within)? {
        if header.seqno == seqno && !header.is_state() {
            if within.saturating_add(header.record_bytes()) > u64::from(run.bytes) {
                return bad(run.offset() + within, Part::Record);
            }
            return Ok(Some(Found {
                segment: Arc::clone(segment),
                vbucket: run.vbucket(),
                offset: run.offset() + within,
                header,
                within: is_short.then_some(within as usize),
            }));
        }
        within = within.saturating_add(header.record_bytes());
        if within >= u64::from(run.bytes) {
            break;
        }
    }
    // Either it is not there, or damage hides it.
    let mut within = RUN_HEADER_BYTES as u64;
    for _ in 0..run.records {
        match bytes.header_at(within)? {
            Some(header) if bytes.is_sound(within, &header)? => within += header.record_bytes(),
            _ => return bad(run.offset() + within, Part::Record),
        }
    }
    Ok(None)
}

pub(super) fn damaged<D: Disk>(segment: &Segment<D>, vbucket: u16, offset: u64, part: Part) -> ReadError {
    let spoils = Spoils::VBucket(vbucket);
    ReadError::Damaged(Damage { path: segment.path.clone(), offset, spoils, part })
}
