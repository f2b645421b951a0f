//! A run: consecutive records of one vBucket, with a header of their own.
//!
//! ```text
//! header of a run                            entry of a run, in commit records and footers
//!  0  4  magic                                0  6  offset of the run in the segment
//!  4  2  vBucket                              6  2  vBucket
//!  6  2  0                                    8  6  first seqno
//!  8  8  batch                               14  6  last seqno
//! 16  6  first seqno                         20  4  length
//! 22  6  last seqno                          24  4  records
//! 28  4  length, this header included
//! 32  4  records
//! 36  4  CRC32C, seeded with segment and offset
//! 40     records
//! ```
//!
//! First and last are the least and the greatest seqno of its records, excluding those of kind `State`: a state is
//! never looked up by seqno. A run of states has 0 and 0.

use super::format::{Fields, MAX_48, Origin, Put, RUN_MAGIC, is_intact};

/// Bytes before the first record.
pub(super) const RUN_HEADER_BYTES: usize = 40;
/// Bytes of an entry.
pub(super) const ENTRY_BYTES: usize = 28;
/// A longer run holds a single record.
pub(super) const RUN_BYTES_MAX: usize = 64 * 1024;

/// Where a run is and what it holds. Kept in memory for each run of an unsealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub last: u64,
    /// vBucket 16 | offset 48
    place: u64,
    /// Header and records.
    pub bytes: u32,
    pub records: u32,
}

const _: () = assert!(size_of::<Run>() == 32);

impl Run {
    pub fn new(vbucket: u16, offset: u64, first: u64, last: u64, bytes: u32, records: u32) -> Self {
        debug_assert!(offset <= MAX_48);
        Self { first, last, place: u64::from(vbucket) << 48 | offset, bytes, records }
    }

    pub fn vbucket(&self) -> u16 {
        (self.place >> 48) as u16
    }

    pub fn offset(&self) -> u64 {
        self.place & MAX_48
    }

    pub fn end(&self) -> u64 {
        self.offset() + u64::from(self.bytes)
    }

    /// The sort key of tables of sealed segments.
    pub fn place_in_table(&self) -> (u16, u64, u64) {
        (self.vbucket(), self.first, self.offset())
    }

    /// Returns true if a record with this seqno may be in it.
    pub fn may_hold(&self, seqno: u64) -> bool {
        self.first <= seqno && seqno <= self.last
    }

    pub fn header(&self, origin: Origin, batch: u64) -> [u8; RUN_HEADER_BYTES] {
        Put::new()
            .bytes(RUN_MAGIC)
            .u16(self.vbucket())
            .u16(0)
            .u64(batch)
            .u48(self.first)
            .u48(self.last)
            .u32(self.bytes)
            .u32(self.records)
            .finish_with_checksum(origin.seed(self.offset()))
    }

    /// Reads the run header at the start of `bytes`. Returns the run and its batch.
    pub fn read_header(bytes: &[u8], origin: Origin, offset: u64) -> Option<(Self, u64)> {
        let bytes = bytes.get(..RUN_HEADER_BYTES)?;
        if !bytes.starts_with(&RUN_MAGIC) || !is_intact(bytes, origin.seed(offset)) {
            return None;
        }
        let mut fields = Fields(bytes.get(RUN_MAGIC.len()..)?);
        let (vbucket, _, batch) = (fields.u16(), fields.u16(), fields.u64());
        let (first, last) = (fields.u48(), fields.u48());
        let (length, records) = (fields.u32(), fields.u32());
        let run = Self::new(vbucket, offset, first, last, length, records);
        (length as usize >= RUN_HEADER_BYTES && batch <= MAX_48).then_some((run, batch))
    }

    pub fn entry(&self) -> [u8; ENTRY_BYTES] {
        Put::new()
            .u48(self.offset())
            .u16(self.vbucket())
            .u48(self.first)
            .u48(self.last)
            .u32(self.bytes)
            .u32(self.records)
            .finish()
    }

    /// Reads the run of an entry whose checksum was compared.
    pub fn read_entry(bytes: &[u8]) -> Self {
        let mut fields = Fields(bytes);
        let (offset, vbucket) = (fields.u48(), fields.u16());
        let (first, last) = (fields.u48(), fields.u48());
        Self::new(vbucket, offset, first, last, fields.u32(), fields.u32())
    }
}
