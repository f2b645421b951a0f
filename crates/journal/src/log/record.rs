//! A record: one version of one key, or a vBucket's state.
//!
//! ```text
//!  0  4  CRC32C of all that follows, seeded with segment and offset
//!  4  4  length of the value
//!  8  1  kind (bits 0 to 3), committed (bit 4), the rest 0
//!  9  1  length of the key
//! 10  1  datatype
//! 11  1  level of a prepare
//! 12  4  flags
//! 16  4  expiry; for a tombstone, when it was deleted; seconds since 1970
//! 20  8  CAS
//! 28  6  seqno
//! 34  6  revision
//! 40     key, value
//! ```

use super::format::{CHECKSUM_BYTES, Fields, MAX_48, Origin, Put, checksum};

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key has this value.
    Document = 1,
    /// The key was deleted.
    Tombstone = 2,
    /// The key is to have this value once enough nodes know of it.
    Prepare = 3,
    /// The key is to be deleted once enough nodes know of it.
    PrepareDelete = 4,
    /// The prepare of the key is aborted.
    Abort = 5,
    /// The state of the vBucket; only the engine interprets its value.
    State = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Document,
            2 => Self::Tombstone,
            3 => Self::Prepare,
            4 => Self::PrepareDelete,
            5 => Self::Abort,
            6 => Self::State,
            _ => return None,
        })
    }
}

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it says.
    pub kind: Kind,
    /// 48 bits.
    pub seqno: u64,
    /// Compare and swap.
    pub cas: u64,
    /// Revision, 48 bits.
    pub rev: u64,
    /// When the document expires, 0 for never; when the tombstone's key was deleted. Seconds since 1970.
    pub expiry: u32,
    /// Client flags.
    pub flags: u32,
    /// JSON, compressed, extended attributes.
    pub datatype: u8,
    /// Durability level of a prepare.
    pub level: u8,
    /// It ended a prepare.
    pub committed: bool,
    /// As stored, with the collection's prefix; at most 255 bytes.
    pub key: &'a [u8],
    /// The value of the key.
    pub value: &'a [u8],
}

/// Bytes before the key.
pub(super) const RECORD_HEADER_BYTES: usize = 40;
const COMMITTED_BIT: u8 = 1 << 4;

/// The header of a record, as read: nothing in it is trusted before the checksum is compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordHeader {
    pub checksum: u32,
    pub value_bytes: u32,
    pub kind_byte: u8,
    pub key_bytes: u8,
    pub datatype: u8,
    pub seqno: u64,
}

impl RecordHeader {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes.get(..RECORD_HEADER_BYTES)?);
        let (checksum, value_bytes) = (fields.u32(), fields.u32());
        let (kind_byte, key_bytes, datatype) = (fields.u8(), fields.u8(), fields.u8());
        let mut fields = Fields(bytes.get(28..)?);
        Some(Self { checksum, value_bytes, kind_byte, key_bytes, datatype, seqno: fields.u48() })
    }

    /// What it says, as far as that can be told from what is not checked yet.
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_byte(self.kind_byte & !COMMITTED_BIT)
    }

    /// The record's length in the file.
    pub fn record_bytes(&self) -> u64 {
        RECORD_HEADER_BYTES as u64 + u64::from(self.key_bytes) + u64::from(self.value_bytes)
    }

    /// Returns true for a vBucket's state, which is not found by seqno.
    pub fn is_state(&self) -> bool {
        self.kind_byte & !COMMITTED_BIT == Kind::State as u8
    }
}

impl<'a> Record<'a> {
    /// Its length in a segment.
    #[inline]
    pub fn encoded_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.key.len() + self.value.len()
    }

    fn header(&self) -> [u8; RECORD_HEADER_BYTES] {
        assert!(self.value.len() <= u32::MAX as usize);
        self.header_of(self.value.len() as u32)
    }

    fn header_of(&self, value_bytes: u32) -> [u8; RECORD_HEADER_BYTES] {
        assert!(self.key.len() <= usize::from(u8::MAX));
        assert!(self.seqno <= MAX_48 && self.rev <= MAX_48);
        let committed = if self.committed { COMMITTED_BIT } else { 0 };
        Put::new()
            .u32(0)
            .u32(value_bytes)
            .u8(self.kind as u8 | committed)
            .u8(self.key.len() as u8)
            .u8(self.datatype)
            .u8(self.level)
            .u32(self.flags)
            .u32(self.expiry)
            .u64(self.cas)
            .u48(self.seqno)
            .u48(self.rev)
            .finish()
    }

    /// Appends it to `bytes`, encoded for this place in a segment.
    #[inline]
    pub(super) fn encode(&self, bytes: &mut Vec<u8>, origin: Origin, offset: u64) {
        let start = bytes.len();
        bytes.extend_from_slice(&self.header());
        bytes.extend_from_slice(self.key);
        bytes.extend_from_slice(self.value);
        if let Some((place, body)) =
            bytes.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut::<CHECKSUM_BYTES>)
        {
            *place = checksum(origin.seed(offset), body).to_le_bytes();
        }
    }

    /// Appends all of it except the value, which is to be written after it.
    pub(super) fn encode_without_value(&self, bytes: &mut Vec<u8>, origin: Origin, offset: u64) {
        let mut header = self.header();
        if let Some((place, body)) = header.split_first_chunk_mut::<CHECKSUM_BYTES>() {
            let sum = checksum(origin.seed(offset), body);
            *place = checksum(checksum(sum, self.key), self.value).to_le_bytes();
        }
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(self.key);
    }

    /// The same for a record whose value lies in a file: `sum` continues a checksum over it.
    pub(super) fn encode_front<E>(
        &self,
        value_bytes: u32,
        sum: impl FnOnce(u32) -> Result<u32, E>,
        bytes: &mut Vec<u8>,
        origin: Origin,
        offset: u64,
    ) -> Result<(), E> {
        let mut header = self.header_of(value_bytes);
        if let Some((place, body)) = header.split_first_chunk_mut::<CHECKSUM_BYTES>() {
            let front = checksum(checksum(origin.seed(offset), body), self.key);
            *place = sum(front)?.to_le_bytes();
        }
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(self.key);
        Ok(())
    }

    /// Decodes what precedes the value of a record whose checksum was compared. The result has no value.
    pub(super) fn decode_front(front: &'a [u8]) -> Option<Self> {
        Self::of(&RecordHeader::read(front)?, front)
    }

    /// Decodes the record at the start of `bytes`, if it is as it was written at this place in a segment.
    pub(super) fn decode(bytes: &'a [u8], origin: Origin, offset: u64) -> Option<Self> {
        let header = RecordHeader::read(bytes)?;
        let bytes = bytes.get(..usize::try_from(header.record_bytes()).ok()?)?;
        if checksum(origin.seed(offset), bytes.get(CHECKSUM_BYTES..)?) != header.checksum {
            return None;
        }
        Self::of(&header, bytes)
    }

    /// Decodes a record whose value lies apart from what precedes it. The result has no value of its own.
    pub(super) fn decode_apart(front: &'a [u8], value: &[u8], origin: Origin, offset: u64) -> Option<Self> {
        let header = RecordHeader::read(front)?;
        let is_whole = header.record_bytes() == (front.len() + value.len()) as u64;
        let sum = checksum(checksum(origin.seed(offset), front.get(CHECKSUM_BYTES..)?), value);
        if is_whole && sum == header.checksum { Self::of(&header, front) } else { None }
    }

    /// The record whose encoding was checked.
    fn of(header: &RecordHeader, bytes: &'a [u8]) -> Option<Self> {
        let kind = Kind::from_byte(header.kind_byte & !COMMITTED_BIT)?;
        let mut fields = Fields(bytes.get(10..)?);
        let (datatype, level, flags, expiry) = (fields.u8(), fields.u8(), fields.u32(), fields.u32());
        let (cas, seqno, rev) = (fields.u64(), fields.u48(), fields.u48());
        let (key, value) = fields.0.split_at_checked(usize::from(header.key_bytes))?;
        let committed = header.kind_byte & COMMITTED_BIT != 0;
        Some(Record { kind, seqno, cas, rev, expiry, flags, datatype, level, committed, key, value })
    }
}
