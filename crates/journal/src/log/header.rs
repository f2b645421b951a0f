//! The first bytes of a segment.
//!
//! ```text
//!  0  8  magic
//!  8  4  version
//! 12  2  shard
//! 14  2  vBuckets of the bucket
//! 16 16  bucket
//! 32  8  number of this segment
//! 40  8  number of the last segment before it that counts, 0 if none; those between the two are nothing
//! 48  8  last batch committed before this segment; what follows it in the segment before is nothing
//! 56  8  first batch that may be in this segment
//! 64  4  whether the segment before was sealed (1)
//! 68  4  CRC32C, seeded with the segment and offset 0
//! ```

use super::Identity;
use super::format::{Fields, MAX_48, Put, SEGMENT_MAGIC, VERSION, is_intact, seed};

/// Length of the header: offset of the first batch.
pub(super) const HEADER_BYTES: usize = 72;

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub identity: Identity,
    pub number: u64,
    pub previous: u64,
    pub committed: u64,
    pub first_batch: u64,
    pub previous_sealed: bool,
}

/// What was found where a header should be.
#[derive(Debug)]
pub(super) enum Found {
    Header(Header),
    /// A header of a version that is not known here.
    Version(u32),
    /// None, or a damaged one.
    Unreadable,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        Put::new()
            .bytes(SEGMENT_MAGIC)
            .u32(VERSION)
            .u16(self.identity.shard)
            .u16(self.identity.vbuckets)
            .bytes(self.identity.bucket)
            .u64(self.number)
            .u64(self.previous)
            .u64(self.committed)
            .u64(self.first_batch)
            .u32(u32::from(self.previous_sealed))
            .finish_with_checksum(seed(self.number, 0))
    }

    /// The header of the segment whose name has this number.
    pub fn read(bytes: &[u8], number: u64) -> Found {
        let Some(bytes) = bytes.get(..HEADER_BYTES) else { return Found::Unreadable };
        if !bytes.starts_with(&SEGMENT_MAGIC) || !is_intact(bytes, seed(number, 0)) {
            return Found::Unreadable;
        }
        let mut fields = Fields(bytes.get(SEGMENT_MAGIC.len()..).unwrap_or_default());
        let version = fields.u32();
        if version != VERSION {
            return Found::Version(version);
        }
        let (shard, vbuckets, bucket) = (fields.u16(), fields.u16(), fields.bytes());
        let (number, previous, committed, first_batch) =
            (fields.u64(), fields.u64(), fields.u64(), fields.u64());
        let previous_sealed = fields.u32() == 1;
        if committed.max(first_batch) > MAX_48 {
            return Found::Unreadable;
        }
        let identity = Identity { bucket, shard, vbuckets };
        Found::Header(Self { identity, number, previous, committed, first_batch, previous_sealed })
    }
}
