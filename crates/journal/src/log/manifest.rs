//! `MANIFEST`: which segments are alive, so that one that is missing, duplicated or misnamed is noticed.
//!
//! ```text
//! file      copy | copy                                 the same bytes twice: one flipped bit loses nothing
//!
//! copy       0  8  magic
//!            8  4  version
//!           12  4  length of the copy
//!           16 16  bucket
//!           32  2  shard
//!           34  2  vBuckets of the bucket
//!           36  4  entries
//!           40  8  least number that no segment has had
//!           48  8  last batch, if nothing was written after this manifest; otherwise 0
//!           56  8  where that batch ends in the newest segment; otherwise 0
//!           64     entries, oldest segment first
//!            +  8  changes of the bucket's own file when this was written
//!            +  4  CRC32C of the above, seeded with segment 0 and offset 0
//!
//! entry      0  6  number of the segment
//!            6  1  bit 0: sealed; bit 1: the vBuckets are those of the entry before; bit 2: left
//!            7  1  0
//!            8  8  salt of the segment; 0 in one of version 1
//!           16  8  length of the file, if sealed; where its last batch ends, if left; otherwise 0
//!           24  4  checksum of the trailer, if sealed; otherwise 0
//!           28  8  its last batch, if left; otherwise these bytes do not exist
//!            +     if sealed or left, unless bit 1 is set: a bit per vBucket of the bucket that has runs in the segment
//! ```
//!
//! Version 2 has no entries that are left, and versions 2 and 3 count no changes.
//!
//! * The file is replaced as a whole: written under another name, synced and renamed, and the directory synced.
//! * A segment is entered once its first batch is synced, and before that batch is acknowledged. It is taken out before
//!   it is unlinked. So a file that is not entered is either a leftover with a number below the least unused one, or a
//!   new segment whose only batch was never acknowledged.
//! * That a segment was sealed is entered with the next one. Until then it may have any of the shard's vBuckets.
//! * A segment that is left is not sealed, and does not change any more: after a failed write or sync, or since the
//!   shard was closed or copied.

use super::footer::Footer;
use super::format::{CHECKSUM_BYTES, Fields, MANIFEST_MAGIC, MAX_48, Origin, Put, checksum, is_intact};
use super::{Identity, Spoils};
use crate::log::buffer::read_up_to;
use crate::{Disk, File, Open, replace_file};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const NAME: &str = "MANIFEST";
const NEW: &str = "MANIFEST.new";
const VERSION: u32 = 4;
/// Earlier versions: without the changes, and without entries that are left.
const VERSION_WITHOUT_CHANGES: u32 = 3;
const VERSION_WITHOUT_LEFT: u32 = 2;
const HEAD_BYTES: usize = 64;
const LENGTH_OFFSET: usize = 12;
const ENTRY_BYTES: usize = 28;
const SEALED: u8 = 1;
const SAME_VBUCKETS: u8 = 2;
const LEFT: u8 = 4;
/// A longer file is not a manifest. This is enough for some 100,000 segments with vBuckets of their own.
const BYTES_MAX: u64 = 64 << 20;

/// Which segments are alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// Sorted by number.
    pub entries: Vec<Entry>,
    /// No segment has had this number, or a greater one.
    pub next_segment: u64,
    /// Where the newest segment ended when the shard was closed or copied. Withdrawn before anything is written.
    pub end: Option<End>,
    /// Changes of the bucket's own file, as its owner counts them: an older one is noticed.
    pub changes: u64,
}

/// A live segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub origin: Origin,
    pub state: EntryState,
}

/// What is known of a live segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryState {
    /// Nothing: it is written to, or was a moment ago.
    Open,
    /// It has a footer.
    Sealed(Sealed),
    /// It has none, and does not change any more.
    Left(Left),
}

/// What is known of a sealed segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sealed {
    pub length: u64,
    pub trailer_checksum: u32,
    /// The vBuckets that have runs in it.
    pub vbuckets: Arc<[u16]>,
}

/// What is known of a segment that was left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Left {
    pub end: End,
    /// The vBuckets that have runs in it.
    pub vbuckets: Arc<[u16]>,
}

/// The last batch, and where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub batch: u64,
    pub offset: u64,
}

/// What was found in the place of a manifest.
pub(super) enum Found {
    /// A manifest; `is_whole` unless one of its copies is damaged.
    Manifest {
        manifest: Manifest,
        is_whole: bool,
    },
    Absent,
    /// Neither copy is intact.
    Unreadable,
    /// A manifest of another bucket or shard.
    Foreign,
    /// A manifest of an unknown version.
    Version(u32),
}

/// The path of a shard's manifest.
pub(super) fn path_of(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

impl Entry {
    /// What is lost without the segment.
    pub fn spoils(&self) -> Spoils {
        self.vbuckets().map_or(Spoils::Everything, |vbuckets| Spoils::VBuckets(vbuckets.clone()))
    }

    fn vbuckets(&self) -> Option<&Arc<[u16]>> {
        match &self.state {
            EntryState::Open => None,
            EntryState::Sealed(Sealed { vbuckets, .. }) | EntryState::Left(Left { vbuckets, .. }) => {
                Some(vbuckets)
            }
        }
    }

    pub fn sealed(&self) -> Option<&Sealed> {
        if let EntryState::Sealed(sealed) = &self.state { Some(sealed) } else { None }
    }

    pub fn left(&self) -> Option<&Left> {
        if let EntryState::Left(left) = &self.state { Some(left) } else { None }
    }
}

impl Sealed {
    pub fn of(footer: &Footer) -> Self {
        let vbuckets = footer.lines().map(|line| line.vbucket).collect();
        Self { length: footer.end(), trailer_checksum: footer.trailer_checksum, vbuckets }
    }

    pub fn matches(&self, footer: &Footer) -> bool {
        self.length == footer.end() && self.trailer_checksum == footer.trailer_checksum
    }
}

impl Default for Manifest {
    fn default() -> Self {
        Self { entries: Vec::new(), next_segment: 1, end: None, changes: 0 }
    }
}

impl Manifest {
    pub fn entry(&self, number: u64) -> Option<&Entry> {
        let index = self.entries.binary_search_by_key(&number, |entry| entry.origin.number).ok()?;
        self.entries.get(index)
    }

    /// Enters a segment, which is newer than all others.
    pub fn enter(&mut self, origin: Origin) {
        self.entries.push(Entry { origin, state: EntryState::Open });
        self.next_segment = self.next_segment.max(origin.number + 1);
        self.end = None;
    }

    /// Records that a segment is sealed, if it is entered.
    pub fn seal(&mut self, footer: &Footer) {
        self.set_state(footer.origin.number, EntryState::Sealed(Sealed::of(footer)));
    }

    /// Records that a segment was left, if it is entered.
    pub fn leave(&mut self, number: u64, left: Left) {
        self.set_state(number, EntryState::Left(left));
    }

    fn set_state(&mut self, number: u64, state: EntryState) {
        if let Ok(index) = self.entries.binary_search_by_key(&number, |entry| entry.origin.number)
            && let Some(entry) = self.entries.get_mut(index)
        {
            entry.state = state;
        }
    }

    /// Records that a segment is written to, and so that nothing is known of the end any more.
    pub fn reopen(&mut self, number: u64) {
        self.end = None;
        self.set_state(number, EntryState::Open);
    }

    pub fn remove(&mut self, number: u64) {
        self.entries.retain(|entry| entry.origin.number != number);
    }

    /// Replaces the shard's manifest durably. After an error it is unknown which of the two is on disk.
    pub fn write<D: Disk>(&self, disk: &D, directory: &Path, identity: Identity) -> io::Result<()> {
        let copy = self.encode(identity);
        replace_file(disk, &path_of(directory), &directory.join(NEW), &[copy.as_slice(), &copy].concat())
    }

    fn encode(&self, identity: Identity) -> Vec<u8> {
        let mut body = Vec::new();
        let mut before: Option<&Arc<[u16]>> = None;
        for entry in &self.entries {
            let vbuckets = entry.vbuckets();
            let is_same = vbuckets.is_some() && vbuckets == before;
            let (flag, length, sum) = match &entry.state {
                EntryState::Open => (0, 0, 0),
                EntryState::Sealed(sealed) => (SEALED, sealed.length, sealed.trailer_checksum),
                EntryState::Left(left) => (LEFT, left.end.offset, 0),
            };
            let flags = flag | if is_same { SAME_VBUCKETS } else { 0 };
            let fixed: [u8; ENTRY_BYTES] = Put::new()
                .u48(entry.origin.number)
                .u8(flags)
                .u8(0)
                .u64(entry.origin.salt)
                .u64(length)
                .u32(sum)
                .finish();
            body.extend_from_slice(&fixed);
            if let Some(left) = entry.left() {
                body.extend_from_slice(&left.end.batch.to_le_bytes());
            }
            if let Some(vbuckets) = vbuckets {
                if !is_same {
                    put_bitmap(&mut body, vbuckets, identity.vbuckets);
                }
                before = Some(vbuckets);
            }
        }
        body.extend_from_slice(&self.changes.to_le_bytes());
        let length = HEAD_BYTES + body.len() + CHECKSUM_BYTES;
        let (batch, offset) = self.end.map_or((0, 0), |end| (end.batch, end.offset));
        let head: [u8; HEAD_BYTES] = Put::new()
            .bytes(MANIFEST_MAGIC)
            .u32(VERSION)
            .u32(length as u32)
            .bytes(identity.bucket)
            .u16(identity.shard)
            .u16(identity.vbuckets)
            .u32(self.entries.len() as u32)
            .u64(self.next_segment)
            .u64(batch)
            .u64(offset)
            .finish();
        let mut copy = Vec::with_capacity(length);
        copy.extend_from_slice(&head);
        copy.extend_from_slice(&body);
        let sum = checksum(Origin::unsalted(0).seed(0), &copy);
        copy.extend_from_slice(&sum.to_le_bytes());
        copy
    }

    /// Reads the manifest in a shard's directory; given an identity, only that of this shard.
    pub fn read<D: Disk>(disk: &D, directory: &Path, identity: Option<Identity>) -> io::Result<Found> {
        let file = match disk.open(&path_of(directory), Open::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Absent),
            Err(error) => return Err(error),
        };
        let length = file.length()?;
        if length > BYTES_MAX {
            return Ok(Found::Unreadable);
        }
        let mut bytes = Vec::new();
        read_up_to(&file, 0, length as usize, &mut bytes)?;
        let copies = [bytes.get(..copy_bytes(&bytes)), bytes.get(bytes.len() / 2..)];
        let is_whole = copies[0].map_or(0, <[u8]>::len) * 2 == bytes.len() && copies[0] == copies[1];
        let Some(copy) = copies.into_iter().flatten().find(|copy| is_copy(copy)) else {
            return Ok(Found::Unreadable);
        };
        let mut fields = Fields(copy.get(MANIFEST_MAGIC.len()..).unwrap_or_default());
        let version = fields.u32();
        if ![VERSION, VERSION_WITHOUT_CHANGES, VERSION_WITHOUT_LEFT].contains(&version) {
            return Ok(Found::Version(version));
        }
        let _length = fields.u32();
        let bucket = fields.bytes();
        let found = Identity { bucket, shard: fields.u16(), vbuckets: fields.u16() };
        if identity.is_some_and(|identity| identity != found) {
            return Ok(Found::Foreign);
        }
        Ok(match Self::decode(fields, found.vbuckets, version) {
            Some(manifest) => Found::Manifest { manifest, is_whole },
            None => Found::Unreadable,
        })
    }

    /// Decodes the rest of a copy whose checksum was compared.
    fn decode(mut fields: Fields<'_>, vbuckets: u16, version: u32) -> Option<Self> {
        let entries = fields.u32();
        let (next_segment, batch, offset) = (fields.u64(), fields.u64(), fields.u64());
        let end = (offset > 0).then_some(End { batch, offset });
        let mut manifest = Self { entries: Vec::new(), next_segment, end, changes: 0 };
        let mut before: Arc<[u16]> = Arc::default();
        for _ in 0..entries {
            if fields.0.len() < ENTRY_BYTES {
                return None;
            }
            let number = fields.u48();
            let (flags, _) = (fields.u8(), fields.u8());
            let (salt, length, trailer_checksum) = (fields.u64(), fields.u64(), fields.u32());
            let batch = if flags & LEFT != 0 { fields.u64() } else { 0 };
            if flags & (SEALED | LEFT) != 0 && flags & SAME_VBUCKETS == 0 {
                before = take_bitmap(&mut fields, vbuckets)?;
            }
            let state = match flags & (SEALED | LEFT) {
                0 => EntryState::Open,
                SEALED => EntryState::Sealed(Sealed { length, trailer_checksum, vbuckets: before.clone() }),
                LEFT => {
                    EntryState::Left(Left { end: End { batch, offset: length }, vbuckets: before.clone() })
                }
                _ => return None,
            };
            manifest.entries.push(Entry { origin: Origin { number, salt }, state });
        }
        if version == VERSION {
            manifest.changes = fields.u64();
        }
        let numbers = || manifest.entries.iter().map(|entry| entry.origin.number);
        let is_plausible = numbers().is_sorted_by(|a, b| a < b)
            && numbers().all(|number| (1..next_segment).contains(&number))
            && next_segment <= MAX_48;
        is_plausible.then_some(manifest)
    }
}

/// Length of the copy that begins here, as stated in it.
fn copy_bytes(bytes: &[u8]) -> usize {
    Fields(bytes.get(LENGTH_OFFSET..).unwrap_or_default()).u32() as usize
}

/// Returns true if these bytes are an intact copy.
fn is_copy(bytes: &[u8]) -> bool {
    bytes.starts_with(&MANIFEST_MAGIC)
        && copy_bytes(bytes) == bytes.len()
        && is_intact(bytes, Origin::unsalted(0).seed(0))
}

fn put_bitmap(bytes: &mut Vec<u8>, set: &[u16], vbuckets: u16) {
    let start = bytes.len();
    bytes.resize(start + bitmap_bytes(vbuckets), 0);
    for vbucket in set {
        if let Some(byte) = bytes.get_mut(start + usize::from(vbucket / 8)) {
            *byte |= 1 << (vbucket % 8);
        }
    }
}

fn take_bitmap(fields: &mut Fields<'_>, vbuckets: u16) -> Option<Arc<[u16]>> {
    let (bitmap, rest) = fields.0.split_at_checked(bitmap_bytes(vbuckets))?;
    fields.0 = rest;
    let is_set = |vbucket: &u16| {
        bitmap.get(usize::from(vbucket / 8)).is_some_and(|byte| byte >> (vbucket % 8) & 1 == 1)
    };
    Some((0..vbuckets).filter(is_set).collect())
}

fn bitmap_bytes(vbuckets: u16) -> usize {
    usize::from(vbuckets).div_ceil(8)
}
