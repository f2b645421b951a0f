//! What records of all kinds share: numbers, magic words, checksums.
//!
//! ```text
//! segment   header | batch | batch | ...                  a file, NNNNNNNNNN.segment
//! batch     run | run | ... | commit record
//! run       run header | record | record | ...            of one vBucket
//! sealed    ... | last batch | table of runs | summary per vBucket | trailer
//! ```
//!
//! All numbers are little-endian. Each checksum is a CRC32C that starts from [`Origin::seed`], so that bytes that were
//! valid elsewhere, in another segment or at another offset, are not valid here. Since version 2 the seed also depends
//! on the segment's random salt: bytes that a client chooses, knowing that they are written unchanged, cannot pass for
//! a run or a commit record.

/// The version of segments that is written. Version 1 can be read too; it has no salts and no manifest.
pub(super) const VERSION: u32 = 2;
/// The previous version.
pub(super) const UNSALTED_VERSION: u32 = 1;

/// First bytes of a segment.
pub(super) const SEGMENT_MAGIC: [u8; 8] = *b"DORMOUSE";
/// First bytes of a run.
pub(super) const RUN_MAGIC: [u8; 4] = *b"RUN\x01";
/// First bytes of a commit record.
pub(super) const COMMIT_MAGIC: [u8; 4] = *b"CMT\x01";
/// First bytes of a sealed segment's trailer.
pub(super) const TRAILER_MAGIC: [u8; 8] = *b"DORMSEAL";
/// First bytes of a manifest.
pub(super) const MANIFEST_MAGIC: [u8; 8] = *b"DORMLIST";
/// First bytes of a note of what is synced.
pub(super) const SYNCED_MAGIC: [u8; 8] = *b"DORMSYNC";

/// Sequence numbers, revisions and offsets have 48 bits; batch and segment numbers are not greater either.
pub(super) const MAX_48: u64 = (1 << 48) - 1;

/// What the checksums of a segment depend on besides the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    /// The segment's number.
    pub number: u64,
    /// Random; 0 in a segment of version 1.
    pub salt: u64,
}

impl Origin {
    /// Without a salt: for headers, which hold it, and for segments of version 1.
    pub fn unsalted(number: u64) -> Self {
        Self { number, salt: 0 }
    }

    /// The start value of a checksum that is stored at `offset` of the segment.
    pub fn seed(self, offset: u64) -> u32 {
        let mixed = (self.number << 40 ^ self.salt ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as u32
    }
}

/// The checksum of `bytes`, from `seed` or from the checksum of what comes before them.
#[inline]
pub(super) fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// Reads numbers one after another from bytes whose length was checked; zeros past the end.
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.0 = rest;
                *head
            }
            None => [0; N],
        }
    }

    pub fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn u48(&mut self) -> u64 {
        let [a, b, c, d, e, f] = self.take();
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        self.take()
    }
}

/// Writes numbers one after another into an array of fixed length.
pub(super) struct Put<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Put<N> {
    #[inline]
    pub fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    #[inline]
    pub fn bytes<const M: usize>(mut self, bytes: [u8; M]) -> Self {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + M) {
            place.copy_from_slice(&bytes);
        }
        self.at += M;
        self
    }

    #[inline]
    pub fn u8(self, value: u8) -> Self {
        self.bytes([value])
    }

    #[inline]
    pub fn u16(self, value: u16) -> Self {
        self.bytes(value.to_le_bytes())
    }

    #[inline]
    pub fn u32(self, value: u32) -> Self {
        self.bytes(value.to_le_bytes())
    }

    #[inline]
    pub fn u48(self, value: u64) -> Self {
        debug_assert!(value <= MAX_48);
        let [a, b, c, d, e, f, _, _] = value.to_le_bytes();
        self.bytes([a, b, c, d, e, f])
    }

    #[inline]
    pub fn u64(self, value: u64) -> Self {
        self.bytes(value.to_le_bytes())
    }

    /// The array, which must be full.
    #[inline]
    pub fn finish(self) -> [u8; N] {
        debug_assert_eq!(self.at, N);
        self.bytes
    }

    /// The array with the checksum of all of it in its last four bytes.
    pub fn finish_with_checksum(mut self, seed: u32) -> [u8; N] {
        debug_assert_eq!(self.at + CHECKSUM_BYTES, N);
        if let Some((body, place)) = self.bytes.split_last_chunk_mut::<CHECKSUM_BYTES>() {
            *place = checksum(seed, body).to_le_bytes();
        }
        self.bytes
    }
}

/// Length of a checksum.
pub(super) const CHECKSUM_BYTES: usize = 4;

/// Returns true if the last four bytes are the checksum of those before.
pub(super) fn is_intact(bytes: &[u8], seed: u32) -> bool {
    bytes
        .split_last_chunk::<CHECKSUM_BYTES>()
        .is_some_and(|(body, sum)| checksum(seed, body) == u32::from_le_bytes(*sum))
}
