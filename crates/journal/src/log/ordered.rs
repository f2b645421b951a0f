//! Reads the records of a vBucket in the order of their seqnos, a piece at a time.
//!
//! ```text
//!   runs, by first seqno    ├────┤ ├──────┤
//!                            ├────────┤   ├───┤  ├──
//!   a piece                after ........ reached      where the first run begins that is not read for it
//! ```
//! Between two pieces nothing is kept but the last seqno: compaction may move everything meanwhile. A record that was
//! there when a piece began is in one segment or, after compaction, in a newer one.

use super::buffer::read_up_to;
use super::damage::Part;
use super::reader::{ReadError, Reader, damaged};
use super::record::{Record, RecordHeader};
use super::run::{RUN_HEADER_BYTES, Run};
use super::segment::Segment;
use crate::Disk;
use std::io;
use std::sync::Arc;

/// Where a record lies in the bytes of a piece.
struct Place {
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

impl<D: Disk> Reader<D> {
    /// Shows the records of a vBucket with seqnos above `after`, up to `end`, in their order: about `room` bytes of
    /// runs. Returns the seqno up to which all have been shown. `piece` is kept for its memory.
    pub fn read_in_order(
        &self,
        vbucket: u16,
        after: u64,
        end: u64,
        room: usize,
        piece: &mut Vec<u8>,
        show: &mut dyn FnMut(&Record<'_>),
    ) -> Result<u64, ReadError> {
        loop {
            let segments = self.catalogue().segments();
            match read_piece(&segments, vbucket, (after, end), room, piece) {
                // Compacted away since the list was taken: what was live in it is in a newer one.
                Err(ReadError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound
                        && !Arc::ptr_eq(&segments, &self.catalogue().segments()) => {}
                Err(error) => return Err(error),
                Ok((reads, places, reached)) => {
                    for place in places {
                        let Some(read) = reads.get(place.run) else { continue };
                        let offset = read.run.offset() + (place.at - read.at) as u64;
                        let bytes = piece.get(place.at..).unwrap_or_default();
                        match Record::decode(bytes, read.segment.origin, offset) {
                            Some(record) => show(&record),
                            None => return Err(damaged(&read.segment, vbucket, offset, Part::Record)),
                        }
                    }
                    return Ok(reached);
                }
            }
        }
    }
}

type Piece<D> = (Vec<Read<D>>, Vec<Place>, u64);

fn read_piece<D: Disk>(
    segments: &[Arc<Segment<D>>],
    vbucket: u16,
    (after, end): (u64, u64),
    room: usize,
    piece: &mut Vec<u8>,
) -> Result<Piece<D>, ReadError> {
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
    piece.clear();
    for (segment, run) in wanted {
        // What begins before the next seqno has to be read in any case.
        if bytes >= room && run.first > after + 1 {
            reached = run.first - 1;
            break;
        }
        bytes += run.bytes as usize;
        let at = piece.len();
        read_run(segment, &run, piece)?;
        reads.push(Read { segment: Arc::clone(segment), run, at });
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
            if !header.is_state() && after < header.seqno && header.seqno <= reached {
                places.push(Place { seqno: header.seqno, run: number, at });
            }
            at += length;
        }
    }
    // Compaction may have been interrupted between the copy and the removal: then a record is there twice.
    places.sort_unstable_by_key(|place| place.seqno);
    places.dedup_by_key(|place| place.seqno);
    Ok((reads, places, reached))
}

/// Appends a run.
fn read_run<D: Disk>(segment: &Segment<D>, run: &Run, piece: &mut Vec<u8>) -> Result<(), ReadError> {
    let bad = |offset| Err(damaged(segment, run.vbucket(), offset, Part::Run));
    if run.end() > segment.state().end {
        return bad(run.offset());
    }
    let mut bytes = Vec::new();
    read_up_to(segment.file()?, run.offset(), run.bytes as usize, &mut bytes)?;
    let header = Run::read_header(&bytes, segment.origin, run.offset());
    if bytes.len() < run.bytes as usize || header.is_none_or(|(found, _)| found != *run) {
        return bad(run.offset());
    }
    piece.extend_from_slice(&bytes);
    Ok(())
}
