//! A consistent copy of a shard, while it is written to.
//!
//! Sealed segments never change: they are linked, or copied where the destination is another file system. Of the others the
//! part up to the last batch is copied. Compaction unlinks nothing meanwhile, so the copy is a prefix of the
//! shard's history: opened, it is the shard as it was at one commit, after an unclean end.

use super::buffer::{Buffer, read_up_to};
use super::reader::Reader;
use super::segment::{Catalogue, Segment, path_of};
use crate::{Disk, Open, write_all_at};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// Keeps compaction from unlinking files.
struct Hold<'a, D: Disk>(&'a Catalogue<D>);

impl<'a, D: Disk> Hold<'a, D> {
    fn new(catalogue: &'a Catalogue<D>) -> Self {
        *catalogue.holds.lock() += 1;
        Self(catalogue)
    }
}

impl<D: Disk> Drop for Hold<'_, D> {
    fn drop(&mut self) {
        *self.0.holds.lock() -= 1;
    }
}

impl<D: Disk> Reader<D> {
    /// Copies the shard into a new directory of the same disk, durably. A shard without a segment leaves no directory.
    ///
    /// After an error what is there is not a copy.
    pub fn copy(&self, destination: &Path, buffer: &mut Buffer) -> io::Result<()> {
        let catalogue = self.catalogue();
        let _hold = Hold::new(catalogue);
        let segments = catalogue.segments();
        let Some(first) = segments.first() else { return Ok(()) };
        let disk = first.disk();
        disk.create_directory(destination)?;
        for segment in segments.iter() {
            let to = path_of(destination, segment.number);
            if segment.is_sealed() {
                match disk.link(&segment.path, &to) {
                    Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {}
                    result => {
                        result?;
                        continue;
                    }
                }
            }
            copy_bytes(disk, segment, &to, buffer)?;
        }
        disk.sync_directory(&path_of(destination, first.number))?;
        disk.sync_directory(destination)
    }
}

fn copy_bytes<D: Disk>(disk: &D, segment: &Segment<D>, to: &Path, buffer: &mut Buffer) -> io::Result<()> {
    let from = segment.file()?;
    let end = segment.state().length;
    let to = disk.open(to, Open::CreateNew)?;
    let mut offset = 0;
    while offset < end {
        let piece = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.capacity());
        read_up_to(from, offset, piece, &mut buffer.bytes)?;
        if buffer.bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all_at(&to, &buffer.bytes, offset)?;
        offset += buffer.bytes.len() as u64;
    }
    crate::File::sync(&to)
}
