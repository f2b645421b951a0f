//! Shows everything in a directory of segments, without changing anything.

use super::buffer::{Buffer, Window};
use super::damage::{Damage, Part, Spoils};
use super::inventory::{self, Listed, counts, header_after};
use super::record::Record;
use super::recovery::{Looked, look, scan_sealed};
use super::replay::read_run;
use super::run::Run;
use super::segment::path_of;
use super::table::Table;
use super::{Identity, OpenError};
use crate::{Disk, File, Open};
use std::io;
use std::path::Path;

/// Something in a directory of segments, in the order of the files.
#[derive(Debug)]
#[non_exhaustive]
pub enum Dumped<'a> {
    /// What the manifest says, if there is one.
    Manifest {
        /// Number of live segments.
        segments: usize,
        /// It records where the newest one ends: nothing was written since the shard was closed or copied.
        is_ended: bool,
    },
    /// A segment begins.
    Segment {
        /// Its file.
        path: &'a Path,
        /// Identity in its header, if that is readable.
        identity: Option<Identity>,
        /// Length of the file.
        bytes: u64,
        /// It has a footer.
        is_sealed: bool,
        /// Bytes after the last batch that counts, without its footer.
        torn_bytes: u64,
        /// The highest CAS of its batches, or in its footer.
        max_cas: u64,
    },
    /// A batch begins.
    Batch {
        /// Its number.
        number: u64,
        /// Offset of its first run.
        offset: u64,
        /// Offset after its commit record.
        end: u64,
        /// Highest CAS of the shard.
        max_cas: u64,
        /// It is the mark of a clean end.
        is_close: bool,
    },
    /// A run of the batch begins.
    Run {
        /// The vBucket of its records.
        vbucket: u16,
        /// Offset of its header.
        offset: u64,
        /// Length with the header.
        bytes: u32,
        /// Number of records.
        records: u32,
    },
    /// A record of the run.
    Record(u16, &'a Record<'a>),
    /// Something that is not as it was written.
    Damage(&'a Damage),
}

/// Shows all segments of a shard. `has_begun`: see [`super::Shard::open_known`].
pub fn dump<D: Disk>(
    disk: &D,
    directory: &Path,
    buffer: &mut Buffer,
    has_begun: bool,
    visit: &mut dyn FnMut(Dumped<'_>),
) -> Result<(), OpenError> {
    let found = inventory::take(disk, directory, Open::Read, None, has_begun)?.unwrap_or_default();
    if let Some(manifest) = &found.manifest {
        visit(Dumped::Manifest { segments: manifest.entries.len(), is_ended: manifest.end.is_some() });
    }
    found.damage.iter().for_each(|damage| visit(Dumped::Damage(damage)));
    let listed = found.segments;
    for index in 0..listed.len() {
        let (Some(segment), true) = (listed.get(index), counts(&listed, index)) else { continue };
        let next = header_after(&listed, index);
        let path = path_of(directory, segment.number());
        // Its own header says how many there are; without one, no run is refused for its vBucket.
        let vbuckets = segment.header.map_or(u16::MAX, |header| header.identity.vbuckets);
        let shown = look(&path, segment, next, vbuckets, buffer)
            .and_then(|looked| show_segment(&path, segment, looked, vbuckets, buffer, visit));
        shown.map_err(|error| OpenError::io(&path, error))?;
    }
    Ok(())
}

fn show_segment<F: File>(
    path: &Path,
    segment: &Listed<F>,
    mut looked: Looked,
    vbuckets: u16,
    buffer: &mut Buffer,
    visit: &mut dyn FnMut(Dumped<'_>),
) -> io::Result<()> {
    let is_sealed = matches!(looked.table, Table::Sealed(_));
    if let Table::Sealed(footer) = &looked.table {
        let scan = scan_sealed(segment, footer, vbuckets, buffer)?;
        let named = |part, offset, spoils| Damage { path: path.to_owned(), offset, spoils, part };
        looked
            .damage
            .extend(scan.flaws.iter().map(|flaw| named(flaw.part, flaw.offset, flaw.spoils.clone())));
        let mut runs = scan.runs.clone();
        runs.sort_unstable_by_key(Run::place_in_table);
        if footer.runs(&segment.file)?.is_none_or(|table| table != runs) && scan.flaws.is_empty() {
            looked.damage.push(named(Part::Footer, looked.end, Spoils::Nothing));
        }
        looked.scan = Some(scan);
    }
    let scan = looked.scan.unwrap_or_default();
    let torn_bytes = if is_sealed { 0 } else { torn_bytes(segment, looked.end, buffer)? };
    let identity = segment.header.map(|header| header.identity);
    let (bytes, max_cas) = (segment.length, looked.max_cas);
    visit(Dumped::Segment { path, identity, bytes, is_sealed, torn_bytes, max_cas });
    looked.damage.iter().for_each(|damage| visit(Dumped::Damage(damage)));
    let (mut runs, mut long) = (scan.runs.iter().peekable(), Vec::new());
    for batch in &scan.batches {
        let (number, offset, end) = (batch.number, batch.start, batch.end);
        visit(Dumped::Batch { number, offset, end, max_cas: batch.max_cas, is_close: batch.is_close });
        while let Some(run) = runs.next_if(|run| run.offset() < end) {
            let (vbucket, bytes, records) = (run.vbucket(), run.bytes, run.records);
            visit(Dumped::Run { vbucket, offset: run.offset(), bytes, records });
            let mut window = Window::new(&segment.file, buffer, looked.end);
            let show = &mut |record: &Record<'_>| visit(Dumped::Record(vbucket, record));
            // The scan has already reported what cannot be read.
            read_run(&mut window, &mut long, segment.origin, run, show)?;
        }
    }
    Ok(())
}

/// Number of bytes from `end` on, without the zeros that are written ahead.
fn torn_bytes<F: File>(segment: &Listed<F>, end: u64, buffer: &mut Buffer) -> io::Result<u64> {
    let mut window = Window::new(&segment.file, buffer, segment.length);
    let (mut offset, mut torn_end) = (end, end);
    while offset < segment.length {
        let piece = window.at(offset, usize::MAX)?;
        if piece.is_empty() {
            break;
        }
        if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
            torn_end = offset + last as u64 + 1;
        }
        offset += piece.len() as u64;
    }
    Ok(torn_end - end)
}
