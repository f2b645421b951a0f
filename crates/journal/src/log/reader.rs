//! Looks up single records.

use super::buffer::read_up_to;
use super::damage::{Damage, Part, Spoils};
use super::record::{Record, RecordHeader};
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

    /// Returns the record of this seqno, if it is in a committed batch. It lies in `buffer`, which grows to its run's
    /// length.
    pub fn read<'b>(
        &self,
        vbucket: u16,
        seqno: u64,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Option<Record<'b>>, ReadError> {
        let place = loop {
            let segments = self.0.segments();
            match find(&segments, vbucket, seqno, buffer) {
                // Compacted away since the list was taken: its live records are in a newer one.
                Err(ReadError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound
                        && !Arc::ptr_eq(&segments, &self.0.segments()) => {}
                found => break found?,
            }
        };
        let Some(Place { segment, base, within }) = place else { return Ok(None) };
        let bytes = buffer.get(within..).unwrap_or_default();
        match Record::decode(bytes, segment.origin, base + within as u64) {
            Some(record) => Ok(Some(record)),
            None => Err(damaged(&segment, vbucket, base + within as u64, Part::Record)),
        }
    }
}

/// Where a record is in the buffer.
struct Place<D: Disk> {
    segment: Arc<Segment<D>>,
    /// Offset in the segment of the buffer's first byte.
    base: u64,
    within: usize,
}

fn find<D: Disk>(
    segments: &[Arc<Segment<D>>],
    vbucket: u16,
    seqno: u64,
    buffer: &mut Vec<u8>,
) -> Result<Option<Place<D>>, ReadError> {
    for segment in segments.iter().rev() {
        let Some(runs) = segment.runs_with(vbucket, seqno)? else {
            return Err(damaged(segment, vbucket, segment.state().end, Part::Footer));
        };
        for run in &runs {
            if let Some(within) = find_in_run(segment, run, seqno, buffer)? {
                return Ok(Some(Place { segment: segment.clone(), base: run.offset(), within }));
            }
        }
    }
    Ok(None)
}

/// Reads a run. Returns where in the buffer the record with this seqno begins, if it is there.
fn find_in_run<D: Disk>(
    segment: &Segment<D>,
    run: &Run,
    seqno: u64,
    buffer: &mut Vec<u8>,
) -> Result<Option<usize>, ReadError> {
    let bad = |offset: u64, part| Err(damaged(segment, run.vbucket(), offset, part));
    if run.end() > segment.state().end {
        return bad(run.offset(), Part::Run);
    }
    read_up_to(segment.file()?, run.offset(), run.bytes as usize, buffer)?;
    let header = Run::read_header(buffer, segment.origin, run.offset());
    if header.is_none_or(|(found, _)| found != *run) {
        return bad(run.offset(), Part::Run);
    }
    let mut within = RUN_HEADER_BYTES;
    // Lengths are trusted here; the checksum of the record that is found is compared.
    while let Some(header) = RecordHeader::read(buffer.get(within..).unwrap_or_default()) {
        if header.seqno == seqno && !header.is_state() {
            return Ok(Some(within));
        }
        within = within.saturating_add(usize::try_from(header.record_bytes()).unwrap_or(usize::MAX));
    }
    // Either it is not there, or damage hides it.
    let mut within = RUN_HEADER_BYTES;
    for _ in 0..run.records {
        let offset = run.offset() + within as u64;
        match Record::decode(buffer.get(within..).unwrap_or_default(), segment.origin, offset) {
            Some(record) => within += record.encoded_bytes(),
            None => return bad(offset, Part::Record),
        }
    }
    Ok(None)
}

pub(super) fn damaged<D: Disk>(segment: &Segment<D>, vbucket: u16, offset: u64, part: Part) -> ReadError {
    let spoils = Spoils::VBucket(vbucket);
    ReadError::Damaged(Damage { path: segment.path.clone(), offset, spoils, part })
}
