//! The record that ends a batch and makes it valid, and the mark of a clean end.
//!
//! ```text
//!  0  4  magic
//!  4  4  runs of the batch
//!  8  8  batch
//! 16  8  offset where the batch begins
//! 24  8  highest CAS of the shard
//! 32  8  last batch known synced when this was written
//! 40  8  segment that compaction copied from last, 0 if none
//! 48  4  how many of its runs were copied, in the order of its table
//! 52  4  1: mark of a clean end, no batch
//! 56  4  CRC32C of the list, seeded with segment and offset
//! 60  4  CRC32C of the above, seeded with segment and offset
//! 64     list: an entry per run
//! ```
//!
//! Each attempt to write a batch has a number of its own, greater than all before. So what an earlier attempt left
//! behind is not taken for a part of the next.

use super::format::{COMMIT_MAGIC, Fields, MAX_48, Origin, Put, checksum, is_intact};
use super::run::{ENTRY_BYTES, Run};

/// Bytes before the list.
pub(super) const COMMIT_BYTES: usize = 64;

/// How far compaction had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CopyMark {
    pub segment: u64,
    pub runs: u32,
}

/// A commit record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Commit {
    pub batch: u64,
    pub start: u64,
    pub max_cas: u64,
    pub synced: u64,
    pub copied: CopyMark,
    pub is_close: bool,
    pub runs: u32,
    list_checksum: u32,
}

impl Commit {
    pub fn new(batch: u64, start: u64, max_cas: u64, synced: u64, copied: CopyMark, is_close: bool) -> Self {
        Self { batch, start, max_cas, synced, copied, is_close, runs: 0, list_checksum: 0 }
    }

    /// Encodes the bytes before the list of these runs, for this place in a segment.
    pub fn encode(&self, runs: &[Run], origin: Origin, offset: u64) -> [u8; COMMIT_BYTES] {
        let seed = origin.seed(offset);
        let list_checksum = runs.iter().fold(seed, |sum, run| checksum(sum, &run.entry()));
        Put::new()
            .bytes(COMMIT_MAGIC)
            .u32(runs.len() as u32)
            .u64(self.batch)
            .u64(self.start)
            .u64(self.max_cas)
            .u64(self.synced)
            .u64(self.copied.segment)
            .u32(self.copied.runs)
            .u32(u32::from(self.is_close))
            .u32(list_checksum)
            .finish_with_checksum(seed)
    }

    /// Reads the commit record at the start of `bytes`. Its list is not checked yet.
    pub fn read(bytes: &[u8], origin: Origin, offset: u64) -> Option<Self> {
        let bytes = bytes.get(..COMMIT_BYTES)?;
        if !bytes.starts_with(&COMMIT_MAGIC) || !is_intact(bytes, origin.seed(offset)) {
            return None;
        }
        let mut fields = Fields(bytes.get(COMMIT_MAGIC.len()..)?);
        let runs = fields.u32();
        let (batch, start, max_cas, synced) = (fields.u64(), fields.u64(), fields.u64(), fields.u64());
        let copied = CopyMark { segment: fields.u64(), runs: fields.u32() };
        let is_close = fields.u32() == 1;
        let list_checksum = fields.u32();
        let is_plausible = batch <= MAX_48 && start <= offset && offset <= MAX_48;
        let is_plausible = is_plausible && (!is_close || runs == 0 && start == offset);
        is_plausible.then_some(Self { batch, start, max_cas, synced, copied, is_close, runs, list_checksum })
    }

    /// Length of the list.
    pub fn list_bytes(&self) -> u64 {
        u64::from(self.runs) * ENTRY_BYTES as u64
    }

    /// Length with the list.
    pub fn bytes(&self) -> u64 {
        COMMIT_BYTES as u64 + self.list_bytes()
    }

    /// Returns true if the list has this checksum.
    pub fn has_list(&self, sum: u32) -> bool {
        self.list_checksum == sum
    }
}
