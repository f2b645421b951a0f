//! The first bytes of a segment.
//!
//! ```text
//!  0  8  magic
//!  8  4  version
//! 12  2  shard
//! 14  2  vBuckets of the bucket
//! 16 16  bucket
//! 32  6  number of this segment
//! 38  6  number of the last segment before it that counts, 0 if none; those between the two do not count
//! 44  6  last batch committed before this segment; what follows it in the segment before does not count
//! 50  6  first batch that may be in this segment
//! 56  8  salt of this segment's checksums
//! 64  4  whether the segment before was sealed (1)
//! 68  4  CRC32C, seeded with the segment, no salt, and offset 0
//! ```
//!
//! Version 1 has 64 bits for each of the four numbers from 32 on, and no salt.

use super::Identity;
use super::format::{Fields, MAX_48, Origin, Put, SEGMENT_MAGIC, UNSALTED_VERSION, VERSION, is_intact};

/// Length of the header: offset of the first batch.
pub(super) const HEADER_BYTES: usize = 72;

/// The header of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub identity: Identity,
    pub origin: Origin,
    pub previous: u64,
    pub committed: u64,
    pub first_batch: u64,
    pub previous_sealed: bool,
    pub version: u32,
}

/// What was found where a header should be.
#[derive(Debug)]
pub(super) enum Found {
    Header(Header),
    /// The intact header of another segment.
    Misnamed(Header),
    /// A header of an unknown version.
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
            .u48(self.origin.number)
            .u48(self.previous)
            .u48(self.committed)
            .u48(self.first_batch)
            .u64(self.origin.salt)
            .u32(u32::from(self.previous_sealed))
            .finish_with_checksum(Origin::unsalted(self.origin.number).seed(0))
    }

    /// Reads the header of the segment whose name has this number.
    pub fn read(bytes: &[u8], number: u64) -> Found {
        let Some(bytes) = bytes.get(..HEADER_BYTES) else { return Found::Unreadable };
        if !bytes.starts_with(&SEGMENT_MAGIC) {
            return Found::Unreadable;
        }
        let is_of = |number| is_intact(bytes, Origin::unsalted(number).seed(0));
        let mut fields = Fields(bytes.get(SEGMENT_MAGIC.len()..).unwrap_or_default());
        let version = fields.u32();
        if version != VERSION && version != UNSALTED_VERSION {
            return if is_of(number) { Found::Version(version) } else { Found::Unreadable };
        }
        let (shard, vbuckets, bucket) = (fields.u16(), fields.u16(), fields.bytes());
        let is_salted = version == VERSION;
        let mut of_48_bits = || if is_salted { fields.u48() } else { fields.u64() };
        let (own_number, previous) = (of_48_bits(), of_48_bits());
        let (committed, first_batch) = (of_48_bits(), of_48_bits());
        let salt = if is_salted { fields.u64() } else { 0 };
        let previous_sealed = fields.u32() == 1;
        let is_plausible = own_number.max(previous).max(committed).max(first_batch) <= MAX_48;
        if !is_plausible || !is_of(own_number) {
            return Found::Unreadable;
        }
        let identity = Identity { bucket, shard, vbuckets };
        let origin = Origin { number: own_number, salt };
        let header = Self { identity, origin, previous, committed, first_batch, previous_sealed, version };
        if own_number == number { Found::Header(header) } else { Found::Misnamed(header) }
    }
}
