//! The content of a shard's directory, compared with what its manifest says is alive.
//!
//! | a file | that the manifest names | that it does not |
//! |---|---|---|
//! | with its own header | counts | counts if its number is unused and its header chain says so; else a leftover |
//! | with another segment's | damage: the segment of this name is missing | damage: a copy |
//! | with no readable header | counts as far as it can be read, or damage | a leftover |
//!
//! A segment that the manifest names but that has no file is damage too, and so is a manifest from before what
//! [`Synced`] knows. A journal of version 1 has no manifest: all its files count, as far as their headers say so.

use super::buffer::read_up_to;
use super::damage::{Damage, Part, Spoils};
use super::format::{Origin, UNSALTED_VERSION};
use super::header::{Found, HEADER_BYTES, Header};
use super::manifest::{self, End, Entry, Manifest};
use super::segment::{number_of, path_of};
use super::synced::Synced;
use super::{Identity, OpenError};
use crate::{Disk, File, Open};
use std::io;
use std::path::{Path, PathBuf};

/// The content of a shard's directory.
pub(super) struct Inventory<F> {
    /// What may count, oldest first.
    pub segments: Vec<Listed<F>>,
    /// Files that are not segments any more, or never were.
    pub leftovers: Vec<PathBuf>,
    /// What is missing, duplicated or misnamed.
    pub damage: Vec<Damage>,
    /// `None` in a journal of version 1, and if it cannot be read.
    pub manifest: Option<Manifest>,
    /// No file has this number, or a greater one.
    pub next_segment: u64,
}

impl<F> Default for Inventory<F> {
    fn default() -> Self {
        let (segments, leftovers, damage) = (Vec::new(), Vec::new(), Vec::new());
        Self { segments, leftovers, damage, manifest: None, next_segment: 1 }
    }
}

/// A segment file and its header.
pub(super) struct Listed<F> {
    pub origin: Origin,
    pub file: F,
    pub length: u64,
    pub header: Option<Header>,
    pub claim: Claim,
    /// A batch of it that is known to be synced.
    pub synced: Option<End>,
}

/// What the manifest says about a segment.
pub(super) enum Claim {
    /// It is alive; for the newest one, where it ended if nothing was written since.
    Named(Entry, Option<End>),
    /// Nothing: it has a number that no segment has had.
    New,
    /// There is no manifest to ask.
    Unknown,
}

impl<F> Listed<F> {
    pub fn number(&self) -> u64 {
        self.origin.number
    }

    pub fn is_named(&self) -> bool {
        self.entry().is_some()
    }

    /// What the manifest says about it.
    pub fn entry(&self) -> Option<&Entry> {
        if let Claim::Named(entry, _) = &self.claim { Some(entry) } else { None }
    }
}

/// Reads the directory. Returns `None` if it does not exist and need not.
///
/// `has_begun`: the shard is known to have been written to, so a manifest must be there.
pub(super) fn take<D: Disk>(
    disk: &D,
    directory: &Path,
    how: Open,
    identity: Option<Identity>,
    has_begun: bool,
) -> Result<Option<Inventory<D::File>>, OpenError> {
    let names = match disk.list(directory) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_begun => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(OpenError::io(directory, error)),
    };
    let mut numbers: Vec<u64> = names.iter().filter_map(|path| number_of(path)).collect();
    numbers.sort_unstable();
    let next_segment = numbers.last().map_or(1, |last| last + 1);
    let mut inventory = Inventory { next_segment, ..Inventory::default() };
    inventory.read_manifest(disk, directory, identity)?;
    let synced = Synced::find(disk, directory, identity).map_err(|error| OpenError::io(directory, error))?;
    inventory.check_age(directory, synced);
    let mut bytes = Vec::new();
    let mut has_salted = false;
    for number in numbers {
        let path = path_of(directory, number);
        let mut read = || -> io::Result<_> {
            let file = disk.open(&path, how)?;
            read_up_to(&file, 0, HEADER_BYTES, &mut bytes)?;
            let length = file.length()?;
            Ok((file, length))
        };
        let (file, length) = read().map_err(|error| OpenError::io(&path, error))?;
        let found = Header::read(&bytes, number);
        if let Found::Version(version) = found {
            return Err(OpenError::Version { path, version });
        }
        has_salted |= matches!(&found, Found::Header(header) if header.version != UNSALTED_VERSION);
        inventory.sort_in(path, number, (file, length), &found, synced);
    }
    inventory.note_missing(directory);
    let is_lost =
        inventory.manifest.is_none() && inventory.damage.iter().all(|damage| damage.part != Part::Manifest);
    if is_lost && (has_begun || has_salted) {
        inventory.note_manifest(directory, Part::Missing);
    }
    Ok(Some(inventory))
}

impl<F: File> Inventory<F> {
    fn read_manifest<D: Disk>(
        &mut self,
        disk: &D,
        directory: &Path,
        identity: Option<Identity>,
    ) -> Result<(), OpenError> {
        let path = manifest::path_of(directory);
        let found = Manifest::read(disk, directory, identity).map_err(|error| OpenError::io(&path, error))?;
        let mut note =
            |spoils| self.damage.push(Damage { path: path.clone(), offset: 0, spoils, part: Part::Manifest });
        match found {
            manifest::Found::Manifest { manifest, is_whole } => {
                if !is_whole {
                    note(Spoils::Nothing);
                }
                self.next_segment = self.next_segment.max(manifest.next_segment);
                self.manifest = Some(manifest);
            }
            manifest::Found::Unreadable => note(Spoils::Everything),
            manifest::Found::Absent => {}
            manifest::Found::Foreign => return Err(OpenError::Foreign { path }),
            manifest::Found::Version(version) => return Err(OpenError::Version { path, version }),
        }
        Ok(())
    }

    /// Compares the manifest with what was synced after it was written.
    fn check_age(&mut self, directory: &Path, synced: Option<Synced>) {
        let (Some(manifest), Some(synced)) = (&self.manifest, synced) else { return };
        // A segment is entered, and a recorded end withdrawn, before any batch is noted as synced.
        let is_newest = manifest.entries.last().is_some_and(|entry| entry.origin == synced.origin);
        let is_beyond = |end: End| is_newest && end.batch < synced.end.batch;
        if synced.origin.number >= manifest.next_segment || manifest.end.is_some_and(is_beyond) {
            self.note_manifest(directory, Part::OldManifest);
        }
    }

    /// Notes that the manifest does not say what counts.
    fn note_manifest(&mut self, directory: &Path, part: Part) {
        let path = manifest::path_of(directory);
        self.damage.push(Damage { path, offset: 0, spoils: Spoils::Everything, part });
    }

    /// Classifies a file.
    fn sort_in(
        &mut self,
        path: PathBuf,
        number: u64,
        (file, length): (F, u64),
        found: &Found,
        synced: Option<Synced>,
    ) {
        let entry = self.manifest.as_ref().and_then(|manifest| manifest.entry(number));
        let spoils = match (&self.manifest, entry) {
            (_, Some(entry)) => entry.spoils(),
            (Some(_), None) => Spoils::Nothing,
            // It is unknown what is missing under the name that it should have.
            (None, None) => Spoils::Everything,
        };
        let mut note =
            |part| self.damage.push(Damage { path: path.clone(), offset: 0, spoils: spoils.clone(), part });
        let header = match found {
            Found::Header(header) => Some(*header),
            Found::Misnamed(header) => return note(Part::Misnamed(header.origin.number)),
            _ => None,
        };
        let claim = match (&self.manifest, entry) {
            (Some(manifest), Some(entry)) => {
                if header.is_some_and(|header| header.origin != entry.origin) {
                    return note(Part::Replaced);
                }
                let is_newest = manifest.entries.last() == Some(entry);
                Claim::Named(entry.clone(), manifest.end.filter(|_| is_newest))
            }
            (Some(manifest), None) if number < manifest.next_segment => {
                self.leftovers.push(path);
                return;
            }
            (Some(_), None) => Claim::New,
            (None, _) => Claim::Unknown,
        };
        let origin = match (&claim, header) {
            (Claim::Named(entry, _), _) => entry.origin,
            (_, Some(header)) => header.origin,
            (_, None) => Origin::unsalted(number),
        };
        let synced = synced.filter(|synced| synced.origin == origin).map(|synced| synced.end);
        self.segments.push(Listed { origin, file, length, header, claim, synced });
    }

    fn note_missing(&mut self, directory: &Path) {
        let Some(manifest) = &self.manifest else { return };
        for entry in &manifest.entries {
            let path = path_of(directory, entry.origin.number);
            let is_there = self.segments.iter().any(|listed| listed.number() == entry.origin.number);
            if !is_there && self.damage.iter().all(|damage| damage.path != path) {
                let (spoils, part) = (entry.spoils(), Part::Missing);
                self.damage.push(Damage { path, offset: 0, spoils, part });
            }
        }
    }
}

/// Returns true if a segment of this list counts: its manifest says so, or no later header says that it does not.
pub(super) fn counts<F>(listed: &[Listed<F>], index: usize) -> bool {
    let Some(segment) = listed.get(index) else { return false };
    let mut later = listed.iter().skip(index + 1).filter_map(|later| later.header);
    segment.is_named() || !later.any(|header| header.previous < segment.number())
}

/// Returns the header that says what of this segment counts, if there is one: the first later one that can be read.
/// Files that were created and never written to may lie between the two.
pub(super) fn header_after<F>(listed: &[Listed<F>], index: usize) -> Option<&Header> {
    listed.iter().skip(index + 1).find_map(|later| later.header.as_ref())
}
