//! Reads everything in a directory of segments and reports what is wrong with it.

use super::buffer::Buffer;
use super::damage::Damage;
use super::dump::{Dumped, dump};
use super::{Identity, OpenError};
use crate::Disk;
use std::path::Path;

/// The content of a directory of segments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Identity of the shard, if a header states it.
    pub identity: Option<Identity>,
    /// Number of files.
    pub segments: u64,
    /// Those of them with a footer.
    pub sealed_segments: u64,
    /// Their length.
    pub bytes: u64,
    /// Bytes of a batch that was never completed.
    pub torn_bytes: u64,
    /// Batches that count.
    pub batches: u64,
    /// Their runs.
    pub runs: u64,
    /// Their records, the readable ones.
    pub records: u64,
    /// The highest CAS that opening it would find.
    pub max_cas: u64,
    /// The last operation was to close it.
    pub is_clean: bool,
    /// Its manifest records where it ends: nothing was written since it was closed or copied.
    pub is_ended: bool,
    /// What is not as it was written.
    pub damage: Vec<Damage>,
}

/// Reads all segments of a shard, every byte that counts. Changes nothing.
pub fn verify<D: Disk>(disk: &D, directory: &Path, buffer: &mut Buffer) -> Result<Verified, OpenError> {
    verify_with_progress(disk, directory, buffer, false, &mut |_| {})
}

/// Like [`verify`]; reports what it has whenever a segment begins. `has_begun`: see [`super::Shard::open_known`].
pub fn verify_with_progress<D: Disk>(
    disk: &D,
    directory: &Path,
    buffer: &mut Buffer,
    has_begun: bool,
    show: &mut dyn FnMut(&Verified),
) -> Result<Verified, OpenError> {
    let mut verified = Verified { is_clean: true, ..Verified::default() };
    dump(disk, directory, buffer, has_begun, &mut |dumped| match dumped {
        Dumped::Manifest { is_ended, .. } => verified.is_ended = is_ended,
        Dumped::Segment { identity, bytes, is_sealed, torn_bytes, max_cas, .. } => {
            show(&verified);
            verified.identity = verified.identity.or(identity);
            verified.segments += 1;
            verified.sealed_segments += u64::from(is_sealed);
            verified.bytes += bytes;
            verified.torn_bytes += torn_bytes;
            verified.max_cas = verified.max_cas.max(max_cas);
            verified.is_clean = false;
        }
        Dumped::Batch { is_close, .. } => {
            verified.batches += u64::from(!is_close);
            verified.is_clean = is_close;
        }
        Dumped::Run { .. } => verified.runs += 1,
        Dumped::Record(..) => verified.records += 1,
        Dumped::Damage(damage) => verified.damage.push(damage.clone()),
    })?;
    verified.is_clean &= verified.torn_bytes == 0;
    Ok(verified)
}
