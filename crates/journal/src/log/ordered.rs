//! Reads the records of a vBucket in the order of their seqnos, a piece at a time.
//!
//! ```text
//!   runs, by first seqno    ├────┤ ├──────┤
//!                            ├────────┤   ├───┤  ├──
//!   a piece                after ........ reached      where the first run begins that is not read for it
//! ```
//! Between two pieces nothing is kept but the last seqno: compaction may move everything meanwhile. A record that was
//! there when a piece began is in one segment or, after compaction, in a newer one.

use super::buffer::fill;
use super::damage::Part;
use super::reader::{ReadError, Reader, damaged};
use super::record::{Kind, Record, RecordHeader};
use super::run::{RUN_HEADER_BYTES, Run};
use super::segment::Segment;
use crate::Disk;
use std::io;
use std::sync::Arc;

/// Most records that are shown at once.
pub const SHOWN_MOST: usize = 32;

/// Which records of a vBucket are shown.
pub struct Wanted<'a> {
    /// The vBucket's number.
    pub vbucket: u16,
    /// Records have seqnos above this one,
    pub after: u64,
    /// and up to this one.
    pub end: u64,
    /// Returns true if a record of this kind, datatype and seqno is wanted. States never are. What is not wanted is not
    /// checked.
    pub which: &'a dyn Fn(Kind, u8, u64) -> bool,
}

/// Where a record lies in the bytes of a piece.
struct Position {
    seqno: u64,
    /// The run it is in.
    run: usize,
    /// Its offset in the piece.
    at: usize,
}

/// A run in the bytes of a piece.
struct Read<D: Disk> {
    segment: Arc<Segment<D>>,
    run: Run,
    /// Offset in the piece.
    at: usize,
}

/// Where a piece is read to.
pub trait Place {
    /// Returns memory for so many bytes; `None` if there is none for them now. What it had before is lost.
    fn take(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// Returns the bytes, once they have been read.
    fn bytes(&mut self) -> &[u8];
}

impl Place for Vec<u8> {
    fn take(&mut self, bytes: usize) -> Option<&mut [u8]> {
        // Not cleared first: zeros are written only where it was never used.
        if self.len() < bytes {
            self.resize(bytes, 0);
        }
        self.get_mut(..bytes)
    }

    fn bytes(&mut self) -> &[u8] {
        self
    }
}

impl<D: Disk> Reader<D> {
    /// Shows the wanted records of a vBucket in the order of their seqnos, up to [`SHOWN_MOST`] at once: about `room`
    /// bytes of runs, which are read to `piece`. Returns the seqno up to which all have been shown.
    pub fn read_in_order(
        &self,
        wanted: &Wanted<'_>,
        room: usize,
        piece: &mut dyn Place,
        show: &mut dyn FnMut(&[Record<'_>]),
    ) -> Result<u64, ReadError> {
        loop {
            let segments = self.catalogue().segments();
            match read_piece(&segments, wanted, room, piece) {
                // Compacted away since the list was taken: what was live in it is in a newer one.
                Err(ReadError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound
                        && !Arc::ptr_eq(&segments, &self.catalogue().segments()) => {}
                Err(error) => return Err(error),
                Ok((reads, places, reached)) => {
                    let piece = piece.bytes();
                    let mut records = Vec::with_capacity(places.len().min(SHOWN_MOST));
                    for places in places.chunks(SHOWN_MOST) {
                        records.clear();
                        for place in places {
                            records.push(decode(&reads, place, wanted.vbucket, piece)?);
                        }
                        show(&records);
                    }
                    return Ok(reached);
                }
            }
        }
    }
}

fn decode<'p, D: Disk>(
    reads: &[Read<D>],
    place: &Position,
    vbucket: u16,
    piece: &'p [u8],
) -> Result<Record<'p>, ReadError> {
    let Some(read) = reads.get(place.run) else { unreachable!("a place is in a run that was read") };
    let offset = read.run.offset() + (place.at - read.at) as u64;
    let bytes = piece.get(place.at..).unwrap_or_default();
    Record::decode(bytes, read.segment.origin, offset)
        .ok_or_else(|| damaged(&read.segment, vbucket, offset, Part::Record))
}

type Piece<D> = (Vec<Read<D>>, Vec<Position>, u64);

fn read_piece<D: Disk>(
    segments: &[Arc<Segment<D>>],
    of: &Wanted<'_>,
    room: usize,
    piece: &mut dyn Place,
) -> Result<Piece<D>, ReadError> {
    let Wanted { vbucket, after, end, which } = *of;
    let mut wanted = Vec::new();
    for segment in segments {
        let Some(runs) = segment.runs_between(vbucket, after, end)? else {
            return Err(damaged(segment, vbucket, segment.state().end, Part::Footer));
        };
        wanted.extend(runs.into_iter().map(|run| (segment, run)));
    }
    wanted.sort_unstable_by_key(|(_, run)| run.first);
    let (mut reads, mut bytes) = (Vec::new(), 0_usize);
    let mut reached = end;
    for (segment, run) in wanted {
        // What begins before the next seqno has to be read in any case.
        if bytes >= room && run.first > after + 1 {
            reached = run.first - 1;
            break;
        }
        let at = bytes;
        bytes += run.bytes as usize;
        reads.push(Read { segment: Arc::clone(segment), run, at });
    }
    let piece = piece.take(bytes).ok_or(ReadError::NoRoom)?;
    for Read { segment, run, at } in &reads {
        read_run(segment, run, piece.get_mut(*at..at + run.bytes as usize).unwrap_or_default())?;
    }
    let mut places = Vec::new();
    for (number, read) in reads.iter().enumerate() {
        let run_end = read.at + read.run.bytes as usize;
        let mut at = read.at + RUN_HEADER_BYTES;
        for _ in 0..read.run.records {
            let header = piece.get(at..run_end).and_then(RecordHeader::read);
            let length = header.and_then(|header| usize::try_from(header.record_bytes()).ok());
            let (Some(header), Some(length)) = (header, length.filter(|length| *length <= run_end - at))
            else {
                let offset = read.run.offset() + (at - read.at) as u64;
                return Err(damaged(&read.segment, vbucket, offset, Part::Record));
            };
            let seqno = header.seqno;
            let is_in_range = !header.is_state() && after < seqno && seqno <= reached;
            // What is no kind is damaged, and found so when it is decoded.
            if is_in_range && header.kind().is_none_or(|kind| which(kind, header.datatype, seqno)) {
                places.push(Position { seqno, run: number, at });
            }
            at += length;
        }
    }
    // Compaction may have been interrupted between the copy and the removal: then a record is there twice.
    places.sort_unstable_by_key(|place| place.seqno);
    places.dedup_by_key(|place| place.seqno);
    Ok((reads, places, reached))
}

/// Reads a run into its place.
fn read_run<D: Disk>(segment: &Segment<D>, run: &Run, place: &mut [u8]) -> Result<(), ReadError> {
    let bad = |offset| Err(damaged(segment, run.vbucket(), offset, Part::Run));
    if run.end() > segment.state().end {
        return bad(run.offset());
    }
    let filled = fill(segment.file()?, run.offset(), place)?;
    let header = Run::read_header(place, segment.origin, run.offset());
    if filled < run.bytes as usize || header.is_none_or(|(found, _)| found != *run) {
        return bad(run.offset());
    }
    Ok(())
}
