//! Replays a segment from front to back.

use super::buffer::{Buffer, Window, read_up_to};
use super::damage::{Damage, Part, Spoils};
use super::format::{CHECKSUM_BYTES, Origin, checksum};
use super::record::{RECORD_HEADER_BYTES, Record, RecordHeader};
use super::run::{RUN_HEADER_BYTES, Run};
use super::segment::Segment;
use crate::{Disk, File};
use std::io;

/// An event of a segment's replay.
#[derive(Debug)]
pub enum Replayed<'a> {
    /// A record of a vBucket.
    Record(u16, &'a Record<'a>),
    /// A run of a vBucket is over. Once as many have come as [`super::Opened::runs`] says, the vBucket is complete.
    RunDone(u16),
    /// Something is not readable. For an unreadable run, `RunDone` still follows.
    Damage(&'a Damage),
}

impl<D: Disk> Segment<D> {
    /// Passes all records to `visit`. Returns an error if the file, or its table of runs, cannot be read at all.
    pub fn replay(&self, buffer: &mut Buffer, visit: &mut dyn FnMut(Replayed<'_>)) -> io::Result<()> {
        let Some(runs) = self.runs()? else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the table of runs is damaged"));
        };
        let end = self.state().end;
        let mut window = Window::new(self.file()?, buffer, end);
        let mut long = Vec::new();
        for run in &runs {
            let mut show = |record: &Record<'_>| visit(Replayed::Record(run.vbucket(), record));
            let flaw = match read_run(&mut window, &mut long, self.origin, run, &mut show) {
                Ok(flaw) => flaw,
                // A bad sector spoils only what is in it, not the rest of the file.
                Err(_) => Some((run.offset(), Part::Run)),
            };
            if let Some((offset, part)) = flaw {
                self.state_mut().damaged = true;
                let spoils = Spoils::VBucket(run.vbucket());
                visit(Replayed::Damage(&Damage { path: self.path.clone(), offset, spoils, part }));
            }
            visit(Replayed::RunDone(run.vbucket()));
        }
        Ok(())
    }
}

/// Passes on the records of a run, up to the first damaged one, whose offset is returned.
pub(super) fn read_run<F: File>(
    window: &mut Window<'_, F>,
    long: &mut Vec<u8>,
    origin: Origin,
    run: &Run,
    show: &mut dyn FnMut(&Record<'_>),
) -> io::Result<Option<(u64, Part)>> {
    walk_run(window, origin, run, |window, offset, header| {
        let length = usize::try_from(header.record_bytes()).unwrap_or(usize::MAX);
        let mut bytes = window.at(offset, length)?;
        if bytes.len() < length {
            read_up_to(window.file(), offset, length, long)?;
            bytes = long;
        }
        let record = Record::decode(bytes, origin, offset);
        Ok(record.inspect(|record| show(record)).is_some())
    })
}

/// Calls `take` with offset and header of each record of a run, until it returns false: then the record is damaged.
fn walk_run<F: File>(
    window: &mut Window<'_, F>,
    origin: Origin,
    run: &Run,
    mut take: impl FnMut(&mut Window<'_, F>, u64, &RecordHeader) -> io::Result<bool>,
) -> io::Result<Option<(u64, Part)>> {
    let head = window.at(run.offset(), RUN_HEADER_BYTES)?;
    let is_there = Run::read_header(head, origin, run.offset()).is_some_and(|(found, _)| found == *run);
    if !is_there {
        return Ok(Some((run.offset(), Part::Run)));
    }
    let mut offset = run.offset() + RUN_HEADER_BYTES as u64;
    for _ in 0..run.records {
        let header = RecordHeader::read(window.at(offset, RECORD_HEADER_BYTES)?);
        let fits = |header: &RecordHeader| header.record_bytes() <= run.end().saturating_sub(offset);
        match header.filter(fits) {
            Some(header) if take(window, offset, &header)? => offset += header.record_bytes(),
            _ => return Ok(Some((offset, Part::Record))),
        }
    }
    Ok((offset != run.end()).then_some((offset, Part::Record)))
}

/// A value that was not read into memory: where it lies, and what its checksum was compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Apart {
    /// Offset in the segment.
    pub at: u64,
    pub bytes: u32,
    /// The checksum over what precedes it, and over all of the record.
    front_sum: u32,
    sum: u32,
}

impl Apart {
    /// Passes the value to `show`, piece by piece. Returns false if it is no longer as it was.
    pub fn read<F: File>(
        &self,
        file: &F,
        piece: &mut Vec<u8>,
        show: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<bool> {
        let (mut at, end, mut sum) = (self.at, self.at + u64::from(self.bytes), self.front_sum);
        while at < end {
            read_up_to(file, at, (end - at).min(PIECE_BYTES) as usize, piece)?;
            if piece.is_empty() {
                return Ok(false);
            }
            sum = checksum(sum, piece);
            show(piece)?;
            at += piece.len() as u64;
        }
        Ok(sum == self.sum)
    }
}

/// A value in a file is read in pieces of so many bytes.
const PIECE_BYTES: u64 = 64 << 10;

/// As [`read_run`], without ever having a record in memory that is longer than the window: such a record is shown
/// without its value.
pub(super) fn scan_run<F: File>(
    window: &mut Window<'_, F>,
    origin: Origin,
    run: &Run,
    show: &mut dyn FnMut(&Record<'_>, Option<Apart>),
) -> io::Result<Option<(u64, Part)>> {
    walk_run(window, origin, run, |window, offset, header| {
        let length = usize::try_from(header.record_bytes()).unwrap_or(usize::MAX);
        let bytes = window.at(offset, length)?;
        if bytes.len() == length {
            let record = Record::decode(bytes, origin, offset);
            return Ok(record.inspect(|record| show(record, None)).is_some());
        }
        let front_bytes = RECORD_HEADER_BYTES + usize::from(header.key_bytes);
        let at = offset + front_bytes as u64;
        let Some(front) = bytes.get(CHECKSUM_BYTES..front_bytes) else { return Ok(false) };
        let front_sum = checksum(origin.seed(offset), front);
        if window.checksum(front_sum, at, u64::from(header.value_bytes))? != Some(header.checksum) {
            return Ok(false);
        }
        let record = Record::decode_front(window.at(offset, front_bytes)?);
        let apart = Apart { at, bytes: header.value_bytes, front_sum, sum: header.checksum };
        Ok(record.inspect(|record| show(record, Some(apart))).is_some())
    })
}
