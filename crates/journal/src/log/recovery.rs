//! Opens a shard: what exists, what of it counts, where writing continues.
//!
//! * Files at the end that nothing was ever written to are removed, since they hide nothing; the newest segment is then
//!   the one before.
//! * If the newest segment has no footer, it is cut back to its last batch and written to further, unless it is
//!   damaged.
//! * Its batches that are not known to be synced are written once more and synced: the previous process may have died
//!   of a failed sync, after which the system's cache and the disk disagree.
//! * The mark of a clean end is removed, since from now on the end is not a clean one.

use super::buffer::{Buffer, read_up_to};
use super::commit::CopyMark;
use super::compaction::Compaction;
use super::damage::{Damage, Part, Spoils};
use super::footer::Footer;
use super::header::{HEADER_BYTES, Header};
use super::inventory::{self, Claim, Listed, counts, header_after};
use super::manifest::{End, Entry, Left};
use super::scan::{Scan, Subject};
use super::segment::{Catalogue, Segment, State, path_of};
use super::shard::{Active, Shard, is_no_space};
use super::table::{RunTable, Table};
use super::{Identity, OpenError, Options, WriteError};
use crate::{Disk, File, Open, write_all_at};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A shard and what is to be replayed.
#[derive(Debug)]
pub struct Opened<D: Disk> {
    /// For writing.
    pub shard: Shard<D>,
    /// To be replayed, newest first.
    pub segments: Vec<Arc<Segment<D>>>,
    /// The last operation was [`Shard::close`].
    pub clean: bool,
    /// Damage that is known before replay; replay finds damaged records and runs.
    pub damage: Vec<Damage>,
    /// Highest CAS of all batches.
    pub max_cas: u64,
    runs: Vec<u32>,
}

impl<D: Disk> Opened<D> {
    /// Number of runs of a vBucket in all segments.
    pub fn runs(&self, vbucket: u16) -> u32 {
        self.runs.get(usize::from(vbucket)).copied().unwrap_or(0)
    }
}

/// A segment that was examined.
pub(super) struct Looked {
    pub table: Table,
    pub end: u64,
    pub last_batch: u64,
    pub max_cas: u64,
    /// How far compaction had come.
    pub copied: Option<CopyMark>,
    /// The result of the scan, if there is no footer.
    pub scan: Option<Scan>,
    pub damage: Vec<Damage>,
}

impl Looked {
    /// Returns true if it was created, but never held anything that counts.
    fn is_nothing<F>(&self, listed: &Listed<F>) -> bool {
        listed.header.is_none()
            && !listed.is_named()
            && self.scan.as_ref().is_some_and(|scan| scan.batches.is_empty())
    }
}

/// Finds the runs of a segment; `next` is the header after it, if there is one.
pub(super) fn look<F: File>(
    path: &Path,
    listed: &Listed<F>,
    next: Option<&Header>,
    vbuckets: u16,
    buffer: &mut Buffer,
) -> io::Result<Looked> {
    let mut damage = Vec::new();
    let mut note = |offset, spoils, part| damage.push(Damage { path: path.to_owned(), offset, spoils, part });
    let (named, recorded) = match &listed.claim {
        Claim::Named(entry, end) => (Some(entry), *end),
        Claim::New | Claim::Unknown => (None, None),
    };
    let sealed = named.and_then(Entry::sealed);
    let end = named.and_then(Entry::left).map(|left| left.end).or(recorded);
    let spoils = || named.map_or(Spoils::Everything, Entry::spoils);
    // A segment that the manifest does not name has one batch at most.
    let is_unnamed = |batches: usize| matches!(listed.claim, Claim::New) && batches > 1;
    if let Some(footer) = Footer::read(&listed.file, listed.origin, listed.length, vbuckets)? {
        if listed.header.is_none() {
            note(0, Spoils::Nothing, Part::Header);
        }
        let is_older = listed.synced.is_some_and(|synced| footer.last_batch < synced.batch);
        if is_older || sealed.is_some_and(|sealed| !sealed.matches(&footer)) {
            note(footer.table, spoils(), Part::Replaced);
        }
        if is_unnamed(usize::MAX) {
            note(0, Spoils::Everything, Part::Unnamed);
        }
        let (end, last_batch, max_cas) = (footer.table, footer.last_batch, footer.max_cas);
        let copied = Some(footer.copied);
        let table = Table::Sealed(footer);
        return Ok(Looked { table, end, last_batch, max_cas, copied, scan: None, damage });
    }
    let follower = next.filter(|next| next.previous == listed.number());
    let subject = Subject {
        file: &listed.file,
        origin: listed.origin,
        vbuckets,
        length: listed.length,
        first_batch: listed.header.map(|header| header.first_batch),
        bound: follower.map(|next| next.committed).or(end.map(|end| end.batch)),
        end: end.or(listed.synced),
        spoils: spoils(),
    };
    let scan = Scan::of(&subject, buffer)?;
    if listed.header.is_none() && !scan.batches.is_empty() {
        note(0, Spoils::Nothing, Part::Header);
    }
    if let Some(sealed) = sealed {
        // The trailer's checksum covers the place of every run: if it is the same, none of them is missing.
        let is_complete = scan.footer(listed.origin).is_some_and(|footer| sealed.matches(&footer));
        let (lost, part) =
            if is_complete { (Spoils::Nothing, Part::Footer) } else { (spoils(), Part::Tail(sealed.length)) };
        note(scan.end, lost, part);
    } else if follower.is_some_and(|next| next.previous_sealed) {
        note(scan.end, Spoils::Nothing, Part::Footer);
    }
    if named.is_some() && scan.batches.is_empty() && listed.header.is_none() {
        note(0, spoils(), Part::Batch);
    }
    if is_unnamed(scan.batches.len()) {
        note(0, Spoils::Everything, Part::Unnamed);
    }
    if recorded.is_some() && scan.goes_beyond {
        // The recorded end is withdrawn before anything more is written.
        note(scan.end, Spoils::Everything, Part::OldManifest);
    }
    for flaw in &scan.flaws {
        note(flaw.offset, flaw.spoils.clone(), flaw.part);
    }
    let mut table = RunTable::default();
    table.add(&scan.runs, vbuckets);
    // The mark of a clean end is not a batch that anything depends on: opening removes it.
    let last_batch = scan.batches.iter().rfind(|batch| !batch.is_close).map_or(0, |batch| batch.number);
    let max_cas = scan.batches.iter().map(|batch| batch.max_cas).max().unwrap_or(0);
    let copied = scan.batches.last().map(|batch| batch.copied);
    let (table, end) = (Table::Memory(table), scan.end);
    Ok(Looked { table, end, last_batch, max_cas, copied, scan: Some(scan), damage })
}

/// Finds the batches of a sealed segment, of which a start reads only the footer.
pub(super) fn scan_sealed<F: File>(
    listed: &Listed<F>,
    footer: &Footer,
    vbuckets: u16,
    buffer: &mut Buffer,
) -> io::Result<Scan> {
    let subject = Subject {
        file: &listed.file,
        origin: listed.origin,
        vbuckets,
        length: footer.table,
        first_batch: listed.header.map(|header| header.first_batch),
        bound: Some(footer.last_batch),
        end: Some(End { batch: footer.last_batch, offset: footer.table }),
        spoils: Spoils::VBuckets(footer.lines().map(|line| line.vbucket).collect()),
    };
    Scan::of(&subject, buffer)
}

impl<D: Disk> Shard<D> {
    /// Opens the shard in this directory. If there is none, returns an empty one that creates it with its first commit.
    pub fn open(
        disk: D,
        directory: &Path,
        identity: Identity,
        options: Options,
    ) -> Result<Opened<D>, OpenError> {
        Self::open_known(disk, directory, identity, options, false)
    }

    /// Like [`Self::open`]. `has_begun`: [`Shard::begin`] is known to have succeeded, so that a shard without a
    /// manifest is damaged.
    pub fn open_known(
        disk: D,
        directory: &Path,
        identity: Identity,
        options: Options,
        has_begun: bool,
    ) -> Result<Opened<D>, OpenError> {
        let mut buffer = Buffer::default();
        let found = inventory::take(&disk, directory, Open::ReadWrite, Some(identity), has_begun)?;
        // A directory without a file may never have been synced.
        let directory_exists =
            found.as_ref().is_some_and(|found| found.manifest.is_some() || !found.segments.is_empty());
        let found = found.unwrap_or_default();
        let newest_named = found.manifest.as_ref().and_then(|manifest| manifest.entries.last());
        let newest_named = newest_named.map(|entry| entry.origin.number);
        let mut opened = Opened {
            shard: Shard {
                disk,
                directory: directory.to_owned(),
                identity,
                options,
                catalogue: Arc::new(Catalogue::new(identity)),
                active: None,
                next_segment: found.next_segment,
                salt: None,
                next_batch: 1,
                last_batch: 0,
                synced_batch: 0,
                max_cas: 0,
                previous: (0, false),
                junk: found.leftovers,
                directory_exists,
                manifest: found.manifest.clone().unwrap_or_default(),
                // The cache may show one that never reached the disk.
                manifest_is_written: false,
                notebook: None,
                keeps_files: false,
                is_frozen: false,
                is_closed: false,
                copy_mark: CopyMark::default(),
                compaction: Compaction::default(),
                batch_runs: Vec::new(),
            },
            segments: Vec::new(),
            clean: true,
            damage: found.damage,
            max_cas: 0,
            runs: vec![0; usize::from(identity.vbuckets)],
        };
        let mut listed = found.segments;
        let ends_unwritten = opened.drop_unwritten(&mut listed, &mut buffer)?;
        for (index, segment) in listed.iter().enumerate() {
            let path = path_of(directory, segment.number());
            if !counts(&listed, index) {
                opened.shard.junk.push(path);
                continue;
            }
            let (next, is_newest) = (header_after(&listed, index), index + 1 == listed.len());
            opened.take_in(&path, segment, next, is_newest, &mut buffer).map_err(|error| error.at(&path))?;
        }
        opened.clean &= !ends_unwritten;
        opened.heed_damage();
        if opened.shard.directory_exists {
            opened.sync_names()?;
        }
        let segments = opened.shard.catalogue.segments();
        for segment in segments.iter() {
            segment.count(&mut opened.runs);
        }
        opened.segments = segments.iter().rev().cloned().collect();
        opened.shard.synced_batch = opened.shard.last_batch;
        opened.shard.max_cas = opened.max_cas;
        opened.note_synced(newest_named)?;
        Ok(opened)
    }
}

/// Why a segment was not accepted.
enum Refusal {
    Io(io::Error),
    Foreign,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Refusal {
    fn at(self, path: &Path) -> OpenError {
        match self {
            Self::Io(error) => OpenError::io(path, error),
            Self::Foreign => OpenError::Foreign { path: path.to_owned() },
        }
    }
}

impl<D: Disk> Opened<D> {
    /// Removes from the end of the list files that were created and never written to. A process may have ended between
    /// the two, after it had left the segment before with unsynced batches. That one is then the newest. Returns true
    /// if there was such a file.
    fn drop_unwritten(
        &mut self,
        listed: &mut Vec<Listed<D::File>>,
        buffer: &mut Buffer,
    ) -> Result<bool, OpenError> {
        let (shard, files) = (&mut self.shard, listed.len());
        while let Some(last) = listed.last().filter(|last| last.header.is_none()) {
            let path = path_of(&shard.directory, last.number());
            let looked = look(&path, last, None, shard.identity.vbuckets, buffer)
                .map_err(|error| OpenError::io(&path, error))?;
            if !looked.is_nothing(last) {
                break;
            }
            shard.junk.push(path);
            listed.pop();
        }
        Ok(listed.len() < files)
    }

    /// If something is not as it was written, nothing is removed; if it is unknown what is whole, nothing is written
    /// either.
    fn heed_damage(&mut self) {
        let is_everything = |damage: &Damage| damage.spoils == Spoils::Everything;
        self.shard.is_frozen = self.damage.iter().any(is_everything);
        self.shard.keeps_files =
            self.shard.is_frozen || self.damage.iter().any(|damage| damage.part.is_of_files());
        self.clean &= !self.shard.keeps_files;
        if !self.damage.is_empty() {
            self.shard.junk.clear();
        }
    }

    /// Makes durable which segments exist: the previous process may have died in between.
    fn sync_names(&mut self) -> Result<(), OpenError> {
        let shard = &mut self.shard;
        let sync =
            |disk: &D, path: &Path| disk.sync_directory(path).map_err(|error| OpenError::io(path, error));
        let a_segment = path_of(&shard.directory, shard.next_segment);
        sync(&shard.disk, &shard.directory)?;
        sync(&shard.disk, &a_segment)?;
        if shard.junk.is_empty() {
            return Ok(());
        }
        // ORDERING: before anything is removed, make sure that no manifest a power failure may bring back names it.
        match shard.write_manifest(shard.manifest.clone()) {
            Ok(()) => {}
            // Then nothing is removed.
            Err(WriteError::NoSpace(_)) => return Ok(()),
            Err(WriteError::Poisoned(error)) => return Err(OpenError::io(&shard.directory, error)),
        }
        for path in shard.junk.drain(..) {
            shard.disk.remove(&path).map_err(|error| OpenError::io(&path, error))?;
        }
        sync(&shard.disk, &a_segment)
    }

    fn take_in(
        &mut self,
        path: &Path,
        listed: &Listed<D::File>,
        next: Option<&Header>,
        is_newest: bool,
        buffer: &mut Buffer,
    ) -> Result<(), Refusal> {
        let shard = &mut self.shard;
        if listed.header.is_some_and(|header| header.identity != shard.identity) {
            return Err(Refusal::Foreign);
        }
        let mut looked = look(path, listed, next, shard.identity.vbuckets, buffer)?;
        let header_batches =
            listed.header.map_or(0, |header| header.committed.max(header.first_batch.saturating_sub(1)));
        let scanned = looked.scan.as_ref().map_or(0, |scan| scan.last_number);
        shard.next_batch = shard.next_batch.max(looked.last_batch.max(scanned).max(header_batches) + 1);
        shard.last_batch = shard.last_batch.max(looked.last_batch);
        // Copies lie behind what they are copies of.
        let copied = looked.copied.filter(|mark| mark.segment < listed.number());
        shard.copy_mark = copied.unwrap_or(shard.copy_mark);
        self.max_cas = self.max_cas.max(looked.max_cas);
        if looked.is_nothing(listed) {
            shard.junk.push(path.to_owned());
            return Ok(());
        }
        let damaged = !looked.damage.is_empty();
        let worn = damaged && looked.damage.iter().all(|damage| damage.spoils == Spoils::Nothing);
        let goes_on = is_newest && !damaged;
        if is_newest {
            self.clean = false;
        }
        let mut length = listed.length;
        if let Some(scan) = looked.scan.take() {
            if goes_on {
                self.clean = scan.end == length && scan.batches.last().is_some_and(|batch| batch.is_close);
                looked.end = cut(&listed.file, &scan)?;
                length = looked.end;
            }
            if is_newest {
                // What the next header will call synced, even in a damaged segment.
                let end = looked.end.min(listed.length);
                write_again(&listed.file, first_unsynced(&scan, end), end, buffer)?;
            }
        }
        let is_sealed = matches!(looked.table, Table::Sealed(_));
        if goes_on && is_sealed {
            set_length_again(&listed.file, length)?;
            write_again(&listed.file, looked.end, length, buffer)?;
        }
        // Damaged records and runs are left out: replay finds them once more.
        let by_replay = |damage: &Damage| matches!(damage.part, Part::Record | Part::Run);
        self.damage
            .extend(std::mem::take(&mut looked.damage).into_iter().filter(|damage| !by_replay(damage)));
        if !listed.is_named() {
            shard.manifest.enter(listed.origin);
        }
        // For any other, the sync may have failed and the footer may be in the cache alone.
        let is_known_sealed =
            goes_on || next.is_some_and(|next| next.previous_sealed && next.previous == listed.number());
        if let Table::Sealed(footer) = &looked.table
            && is_known_sealed
            && !damaged
        {
            shard.manifest.seal(footer);
        }
        if is_newest
            && damaged
            && let Some(left) = left(&looked, listed.entry())
        {
            shard.manifest.leave(listed.number(), left);
        }
        let (end, last_batch) = (looked.end, looked.last_batch);
        let state = State { table: looked.table, end, last_batch, length, damaged: damaged && !worn, worn };
        let file = (!is_sealed).then(|| listed.file.clone());
        let segment = Arc::new(Segment::new(shard.disk.clone(), path.to_owned(), listed.origin, file, state));
        shard.catalogue.add(segment.clone());
        if goes_on && !is_sealed {
            let file = listed.file.clone();
            shard.active = Some(Active { segment, file, end, length: end, has_tail: false, is_named: true });
            shard.manifest.reopen(listed.number());
            if let Some(header) = listed.header {
                shard.previous = (header.previous, header.previous_sealed);
            }
        } else {
            shard.previous = (listed.number(), is_sealed);
        }
        Ok(())
    }

    /// Notes how far the newest segment is synced, which it is now, unless the manifest on disk does not name it yet.
    fn note_synced(&mut self, newest_named: Option<u64>) -> Result<(), OpenError> {
        let active = self.shard.active.as_ref().map(|active| active.segment.number());
        if active != newest_named {
            return Ok(());
        }
        match self.shard.note_synced() {
            // It is noted with the next batch.
            Err(error) if !is_no_space(&error) => Err(OpenError::io(&self.shard.directory, error)),
            _ => Ok(()),
        }
    }
}

/// What is known of the end of the newest segment, which is damaged and not written to any more.
fn left(looked: &Looked, entry: Option<&Entry>) -> Option<Left> {
    let Table::Memory(table) = &looked.table else { return None };
    if entry.is_some_and(|entry| entry.sealed().is_some()) {
        return None;
    }
    let known = entry.and_then(Entry::left).map(|left| left.vbuckets.iter().copied());
    let vbuckets: BTreeSet<u16> = table.vbuckets().chain(known.into_iter().flatten()).collect();
    let end = End { batch: looked.last_batch, offset: looked.end };
    Some(Left { end, vbuckets: vbuckets.into_iter().collect() })
}

/// Cuts the segment back to its last batch, without the mark of a clean end. Returns its end.
fn cut<F: File>(file: &F, scan: &Scan) -> io::Result<u64> {
    let closed = scan.batches.last().filter(|batch| batch.is_close);
    let end = closed.map_or(scan.end, |mark| mark.start);
    set_length_again(file, end)?;
    Ok(end)
}

/// Offset in the file of the first byte that is not known to be synced.
fn first_unsynced(scan: &Scan, end: u64) -> u64 {
    let unsynced = scan.batches.iter().find(|batch| !batch.is_synced).map_or(end, |batch| batch.start);
    // The header is written with the first batch.
    if unsynced == HEADER_BYTES as u64 { 0 } else { unsynced }
}

/// Makes the next sync write this length, even if a failed sync has dropped it: setting the current length would be no
/// change.
fn set_length_again<F: File>(file: &F, length: u64) -> io::Result<()> {
    file.set_length(length + 1)?;
    file.set_length(length)
}

/// Reads this range, writes it again and syncs.
fn write_again<F: File>(file: &F, start: u64, end: u64, buffer: &mut Buffer) -> io::Result<()> {
    let mut offset = start;
    while offset < end {
        let piece = usize::try_from(end - offset).unwrap_or(usize::MAX).min(buffer.capacity());
        read_up_to(file, offset, piece, &mut buffer.bytes)?;
        if buffer.bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all_at(file, &buffer.bytes, offset)?;
        offset += buffer.bytes.len() as u64;
    }
    file.sync()
}
