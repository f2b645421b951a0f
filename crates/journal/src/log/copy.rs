//! A consistent copy of a shard, while it is written to.
//!
//! Sealed segments never change: they are linked, or copied if the destination is another file system. Of the others
//! the part up to the last batch is copied. Compaction unlinks nothing meanwhile, so the copy is a prefix of the
//! shard's history: opened, it is the shard as of one commit, after an unclean end.

use super::buffer::{Buffer, read_up_to};
use super::manifest::{End, Entry, EntryState, Left, Manifest, Sealed};
use super::reader::Reader;
use super::segment::{Catalogue, Segment, path_of};
use super::synced::{Notebook, Synced};
use super::table::Table;
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
    /// Copies the shard durably into a new directory of the same disk. Returns false, and makes no copy, if there is no
    /// segment. `changes`: see [`super::Shard::note_changes`].
    ///
    /// After an error the destination does not hold a copy.
    pub fn copy(&self, destination: &Path, changes: u64, buffer: &mut Buffer) -> io::Result<bool> {
        let catalogue = self.catalogue();
        let _hold = Hold::new(catalogue);
        let segments = catalogue.segments();
        let Some(first) = segments.first() else { return Ok(false) };
        let disk = first.disk();
        disk.create_directory(destination)?;
        let mut manifest = Manifest { changes, ..Manifest::default() };
        for segment in segments.iter() {
            let (number, to) = (segment.number(), path_of(destination, segment.number()));
            let part = Part::of(segment);
            let is_sealed = matches!(part.state, EntryState::Sealed(_));
            manifest.entries.push(Entry { origin: segment.origin, state: part.state });
            manifest.next_segment = number + 1;
            manifest.end = Some(part.end);
            if is_sealed {
                match disk.link(&segment.path, &to) {
                    Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => {}
                    result => {
                        result?;
                        continue;
                    }
                }
            }
            copy_bytes(disk, segment, part.length, &to, buffer)?;
        }
        if let (Some(newest), Some(end)) = (segments.last(), manifest.end) {
            let mut notebook = Notebook::open(disk, destination, catalogue.identity)?;
            notebook.note(Synced { origin: newest.origin, end }, catalogue.identity)?;
            notebook.sync()?;
        }
        manifest.write(disk, destination, catalogue.identity)?;
        disk.sync_directory(destination)?;
        Ok(true)
    }
}

/// The part of a segment that is copied.
struct Part {
    state: EntryState,
    length: u64,
    end: End,
}

impl Part {
    fn of<D: Disk>(segment: &Segment<D>) -> Self {
        let state = segment.state();
        let end = End { batch: state.last_batch, offset: state.end };
        let entry = match &state.table {
            Table::Sealed(footer) => EntryState::Sealed(Sealed::of(footer)),
            Table::Memory(table) => EntryState::Left(Left { end, vbuckets: table.vbuckets().collect() }),
        };
        Self { state: entry, length: state.length, end }
    }
}

fn copy_bytes<D: Disk>(
    disk: &D,
    segment: &Segment<D>,
    end: u64,
    to: &Path,
    buffer: &mut Buffer,
) -> io::Result<()> {
    let from = segment.file()?;
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
