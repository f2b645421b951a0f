//! The segments of a shard, as shared by writer, readers and compaction.

use super::Identity;
use super::footer::{Footer, Line};
use super::format::{MAX_48, Origin};
use super::run::Run;
use super::table::{RunTable, Table};
use crate::{Disk, Open};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

const EXTENSION: &str = "segment";
/// Digits of a segment's number in its name.
const DIGITS: usize = 10;

/// The file of a segment.
pub(super) fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:0DIGITS$}.{EXTENSION}"))
}

/// The number of the segment that has this file.
pub(super) fn number_of(path: &Path) -> Option<u64> {
    let stem = path.file_stem()?.to_str()?;
    let is_number = stem.len() >= DIGITS && stem.bytes().all(|byte| byte.is_ascii_digit());
    let number = stem.parse().ok().filter(|number| (1..=MAX_48).contains(number))?;
    (is_number && path.extension()? == EXTENSION).then_some(number)
}

/// A segment: its file, and where in it the runs are.
#[derive(Debug)]
pub struct Segment<D: Disk> {
    pub(super) origin: Origin,
    pub(super) path: PathBuf,
    disk: D,
    /// Opened on first use.
    file: OnceLock<D::File>,
    state: RwLock<State>,
}

/// The mutable part of a segment.
#[derive(Debug)]
pub(super) struct State {
    pub table: Table,
    /// End of the last batch.
    pub end: u64,
    /// The last batch.
    pub last_batch: u64,
    /// Length of the file, the footer included.
    pub length: u64,
    /// Something in it cannot be read. It stays as it is, and what it may hold stays too.
    pub damaged: bool,
    /// Parts of it are damaged without which all of it can be read. It is to be written anew.
    pub worn: bool,
}

impl<D: Disk> Segment<D> {
    pub(super) fn new(disk: D, path: PathBuf, origin: Origin, file: Option<D::File>, state: State) -> Self {
        let slot = OnceLock::new();
        if let Some(file) = file {
            let _ = slot.set(file);
        }
        Self { origin, path, disk, file: slot, state: RwLock::new(state) }
    }

    pub(super) fn number(&self) -> u64 {
        self.origin.number
    }

    /// Returns true if compaction is to write it anew: parts of it are damaged, but no record is lost.
    pub fn is_worn(&self) -> bool {
        self.state().worn
    }

    pub(super) fn disk(&self) -> &D {
        &self.disk
    }

    /// Its file. `NotFound` means that it was compacted away.
    pub(super) fn file(&self) -> io::Result<&D::File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.disk.open(&self.path, Open::Read)?;
        Ok(self.file.get_or_init(|| file))
    }

    pub(super) fn state(&self) -> parking_lot::RwLockReadGuard<'_, State> {
        self.state.read()
    }

    pub(super) fn state_mut(&self) -> parking_lot::RwLockWriteGuard<'_, State> {
        self.state.write()
    }

    /// Publishes a batch.
    pub(super) fn add(&self, runs: &[Run], vbuckets: u16, batch: u64, end: u64) {
        let mut state = self.state.write();
        if let Table::Memory(table) = &mut state.table {
            table.add(runs, vbuckets);
        }
        state.end = end;
        state.last_batch = batch;
        state.length = end;
    }

    pub(super) fn is_sealed(&self) -> bool {
        matches!(self.state.read().table, Table::Sealed(_))
    }

    /// All its runs, in file order. `None` if its footer has become unreadable.
    pub(super) fn runs(&self) -> io::Result<Option<Vec<Run>>> {
        let mut runs = self.runs_in_any_order()?;
        if let Some(runs) = &mut runs {
            runs.sort_unstable_by_key(Run::offset);
        }
        Ok(runs)
    }

    /// Like [`Self::runs`], in any order.
    pub(super) fn runs_in_any_order(&self) -> io::Result<Option<Vec<Run>>> {
        match &self.state.read().table {
            Table::Memory(table) => Ok(Some(table.runs().to_vec())),
            Table::Sealed(footer) => footer.runs(self.file()?),
        }
    }

    /// The runs of a vBucket that may hold this seqno. `None` if its footer has become unreadable.
    pub(super) fn runs_with(&self, vbucket: u16, seqno: u64) -> io::Result<Option<Vec<Run>>> {
        self.runs_of(vbucket, |line| line.first <= seqno && seqno <= line.last, |run| run.may_hold(seqno))
    }

    fn runs_of(
        &self,
        vbucket: u16,
        wants_line: impl Fn(&Line) -> bool,
        wants: impl Fn(&Run) -> bool,
    ) -> io::Result<Option<Vec<Run>>> {
        let state = self.state.read();
        match &state.table {
            Table::Memory(table) => Ok(Some(table.of(vbucket).filter(|run| wants(run)).copied().collect())),
            Table::Sealed(footer) => match footer.line(vbucket).filter(&wants_line) {
                Some(line) => {
                    let mut bytes = Vec::new();
                    let entries = footer.read_entries(self.file()?, &line, &mut bytes)?;
                    Ok(entries.map(|entries| entries.filter(|run| wants(run)).collect()))
                }
                None => Ok(Some(Vec::new())),
            },
        }
    }

    /// The runs of a vBucket that may hold a seqno above `after`, up to `end`. `None` if its footer has become
    /// unreadable.
    pub(super) fn runs_between(&self, vbucket: u16, after: u64, end: u64) -> io::Result<Option<Vec<Run>>> {
        let is_between = |first: u64, last: u64| last > after && first <= end;
        self.runs_of(vbucket, |line| is_between(line.first, line.last), |run| is_between(run.first, run.last))
    }

    /// The runs of a vBucket that may hold a smaller seqno. `None` if its footer has become unreadable.
    pub(super) fn runs_before(&self, vbucket: u16, seqno: u64) -> io::Result<Option<Vec<Run>>> {
        let is_before = |run: &Run| run.last > 0 && run.first < seqno;
        self.runs_of(vbucket, |line| line.last > 0 && line.first < seqno, is_before)
    }

    /// The vBuckets that have runs in it.
    pub(super) fn vbuckets(&self) -> Arc<[u16]> {
        match &self.state.read().table {
            Table::Memory(table) => table.vbuckets().collect(),
            Table::Sealed(footer) => footer.lines().map(|line| line.vbucket).collect(),
        }
    }

    /// Adds to the number of runs of each vBucket.
    pub(super) fn count(&self, counts: &mut [u32]) {
        match &self.state.read().table {
            Table::Memory(table) => table.count(counts),
            Table::Sealed(footer) => {
                for line in footer.lines() {
                    if let Some(count) = counts.get_mut(usize::from(line.vbucket)) {
                        *count += line.entries;
                    }
                }
            }
        }
    }

    /// Marks it as sealed.
    pub(super) fn seal(&self, footer: Footer) {
        let mut state = self.state.write();
        state.length = footer.end();
        state.table = Table::Sealed(footer);
    }
}

impl State {
    /// The state of a new segment.
    pub fn empty() -> Self {
        Self {
            table: Table::Memory(RunTable::default()),
            end: 0,
            last_batch: 0,
            length: 0,
            damaged: false,
            worn: false,
        }
    }
}

/// The segments of a shard, by number.
#[derive(Debug)]
pub(super) struct Catalogue<D: Disk> {
    /// The shard they belong to.
    pub identity: Identity,
    segments: RwLock<Arc<Vec<Arc<Segment<D>>>>>,
    /// Number of copies in progress: no file may be unlinked meanwhile.
    pub holds: Mutex<usize>,
}

impl<D: Disk> Catalogue<D> {
    pub fn new(identity: Identity) -> Self {
        Self { identity, segments: RwLock::default(), holds: Mutex::new(0) }
    }

    /// All segments, oldest first, as of now.
    pub fn segments(&self) -> Arc<Vec<Arc<Segment<D>>>> {
        self.segments.read().clone()
    }

    /// Adds the newest segment.
    pub fn add(&self, segment: Arc<Segment<D>>) {
        let mut segments = self.segments.write();
        *segments = Arc::new(segments.iter().cloned().chain([segment]).collect());
    }

    pub fn remove(&self, number: u64) {
        let mut segments = self.segments.write();
        *segments = Arc::new(segments.iter().filter(|segment| segment.number() != number).cloned().collect());
    }
}
