//! `SYNCED`: how far the shard is known to be synced. It tells a lost tail from a torn one.
//!
//! ```text
//! file      slot | zeros up to 512 | slot               each note replaces the older of the two
//!
//! slot       0  8  magic
//!            8 16  bucket
//!           24  2  shard
//!           26  6  segment
//!           32  8  its salt
//!           40  8  the last batch whose sync succeeded
//!           48  8  where it ends in the segment
//!           56  4  version
//!           60  4  CRC32C of the above, seeded with segment 0 and the slot's offset
//! ```
//!
//! A commit record names the batch that was known to be synced before it. Nothing after the last commit record can do
//! that for the last batch: what cuts the segment off takes it along. So it is noted here, in another file, after each
//! sync and before the batch is acknowledged, with one short write.
//!
//! * The note itself is not synced. It survives the process: after a kill it is exact. After a power failure it may be
//!   an older one, or missing. Either way it is a lower bound, and never claims more than was synced.
//! * A file that is missing or unreadable says nothing, and is no damage.

use super::Identity;
use super::format::{Fields, MAX_48, Origin, Put, SYNCED_MAGIC, is_intact};
use super::manifest::End;
use crate::log::buffer::read_up_to;
use crate::{Disk, File, Open, write_all_at};
use std::io;
use std::path::{Path, PathBuf};

pub(super) const NAME: &str = "SYNCED";
const SLOT_BYTES: usize = 64;
/// A sector that is torn while one slot is written does not hold the other.
const SLOT_OFFSETS: [u64; 2] = [0, 512];
const VERSION: u32 = 1;

/// A batch known to be synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Synced {
    pub origin: Origin,
    pub end: End,
}

/// The file, open for notes.
#[derive(Debug)]
pub(super) struct Notebook<F> {
    file: F,
    /// The slot to be replaced next.
    next: usize,
    /// The newer slot.
    pub newest: Option<Synced>,
}

fn path_of(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

impl Synced {
    fn encode(&self, identity: Identity, offset: u64) -> [u8; SLOT_BYTES] {
        Put::new()
            .bytes(SYNCED_MAGIC)
            .bytes(identity.bucket)
            .u16(identity.shard)
            .u48(self.origin.number)
            .u64(self.origin.salt)
            .u64(self.end.batch)
            .u64(self.end.offset)
            .u32(VERSION)
            .finish_with_checksum(Origin::unsalted(0).seed(offset))
    }

    /// Reads a slot; given an identity, only that of this shard.
    fn read(bytes: &[u8], identity: Option<Identity>, offset: u64) -> Option<Self> {
        let bytes = bytes.get(..SLOT_BYTES)?;
        if !bytes.starts_with(&SYNCED_MAGIC) || !is_intact(bytes, Origin::unsalted(0).seed(offset)) {
            return None;
        }
        let mut fields = Fields(bytes.get(SYNCED_MAGIC.len()..)?);
        let (bucket, shard) = (fields.bytes(), fields.u16());
        let origin = Origin { number: fields.u48(), salt: fields.u64() };
        let end = End { batch: fields.u64(), offset: fields.u64() };
        let is_ours = identity.is_none_or(|ours| (ours.bucket, ours.shard) == (bucket, shard));
        let is_known = fields.u32() == VERSION && end.batch.max(end.offset) <= MAX_48;
        (is_ours && is_known).then_some(Self { origin, end })
    }

    /// Reads the newer slot in a shard's directory.
    pub fn find<D: Disk>(disk: &D, directory: &Path, identity: Option<Identity>) -> io::Result<Option<Self>> {
        match disk.open(&path_of(directory), Open::Read) {
            Ok(file) => Ok(read_slots(&file, identity)?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the newer slot, and the index of the other one.
fn read_slots<F: File>(file: &F, identity: Option<Identity>) -> io::Result<(Option<Synced>, usize)> {
    let (mut newest, mut other, mut bytes) = (None, 0, Vec::new());
    for (index, offset) in SLOT_OFFSETS.into_iter().enumerate() {
        read_up_to(file, offset, SLOT_BYTES, &mut bytes)?;
        let found = Synced::read(&bytes, identity, offset);
        let is_newer =
            |found: &Synced| newest.is_none_or(|newest: Synced| newest.end.batch < found.end.batch);
        if let Some(found) = found.filter(is_newer) {
            (newest, other) = (Some(found), 1 - index);
        }
    }
    Ok((newest, other))
}

impl<F: File> Notebook<F> {
    /// Opens the file, or creates it. Its name is durable once the directory is synced.
    pub fn open<D: Disk<File = F>>(disk: &D, directory: &Path, identity: Identity) -> io::Result<Self> {
        let path = path_of(directory);
        let file = match disk.open(&path, Open::ReadWrite) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.open(&path, Open::CreateNew)?,
            result => result?,
        };
        let (newest, next) = read_slots(&file, Some(identity))?;
        Ok(Self { file, next, newest })
    }

    /// Notes that a batch is synced.
    pub fn note(&mut self, synced: Synced, identity: Identity) -> io::Result<()> {
        let offset = SLOT_OFFSETS[self.next];
        write_all_at(&self.file, &synced.encode(identity, offset), offset)?;
        (self.next, self.newest) = (1 - self.next, Some(synced));
        Ok(())
    }

    /// Makes the notes durable, which a note of something that does not change any more may be.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimulatedDisk;

    const IDENTITY: Identity = Identity { bucket: [7; 16], shard: 3, vbuckets: 64 };

    fn synced(batch: u64) -> Synced {
        Synced {
            origin: Origin { number: batch / 4 + 1, salt: batch * 99 },
            end: End { batch, offset: batch * 100 },
        }
    }

    #[test]
    fn the_newer_note_is_found_and_a_torn_one_leaves_the_one_before() {
        let disk = SimulatedDisk::new();
        let directory = Path::new("/shard");
        let find = || Synced::find(&disk, directory, Some(IDENTITY)).unwrap();
        assert_eq!(find(), None);
        for batch in 1..9 {
            // Opened again for every other note, as after a start.
            let mut notebook = Notebook::open(&disk, directory, IDENTITY).unwrap();
            notebook.note(synced(batch * 2), IDENTITY).unwrap();
            notebook.note(synced(batch * 2 + 1), IDENTITY).unwrap();
            assert_eq!(find(), Some(synced(batch * 2 + 1)));
        }
        let whole = disk.read(&path_of(directory)).unwrap();
        for slot in SLOT_OFFSETS {
            for byte in 0..SLOT_BYTES {
                disk.put(&path_of(directory), &whole);
                assert!(disk.flip(&path_of(directory), slot as usize + byte, 0));
                let found = find().unwrap().end.batch;
                assert!(found == 17 || found == 16, "{found}");
            }
        }
    }

    #[test]
    fn notes_of_another_shard_say_nothing() {
        let disk = SimulatedDisk::new();
        let directory = Path::new("/shard");
        Notebook::open(&disk, directory, IDENTITY).unwrap().note(synced(1), IDENTITY).unwrap();
        for other in [Identity { shard: 4, ..IDENTITY }, Identity { bucket: [8; 16], ..IDENTITY }] {
            assert_eq!(Synced::find(&disk, directory, Some(other)).unwrap(), None);
        }
        assert_eq!(Synced::find(&disk, directory, None).unwrap(), Some(synced(1)));
    }
}
