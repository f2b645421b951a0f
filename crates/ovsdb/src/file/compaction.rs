//! Compaction: a new file with the schema and one record of all rows, written in slices between commits.
//!
//! ```text
//! Rows      the rows as they were after commit S, in slices; commits go to the old file only
//! Tail      copies what commits have added to the old file since S, until little is left
//! Syncing   the new file is synced on another thread; commits still go to the old file only
//! Tail2     copies what they added meanwhile: all of it
//! Both      commits go to both files; the new one is synced once more on another thread
//! Renamed   it has the name; the directory is synced on another thread; commits still go to both files
//! ```
//!
//! The snapshot is of one commit, S. A row that a later commit wrote is skipped; that commit hands over the row's state
//! at S ([`Compaction::observe`]) if the cursor has not reached it yet. Rows of later tables wait as text in memory.
//!
//! The record's length and SHA-1 are known only at its end, so its header is written with a fixed-width length and
//! filled in then.
//!
//! Until the directory is synced a crash may leave either file, so from the renaming on whatever is acknowledged as
//! durable is synced in both.

use super::header::{Header, WIDE_DIGITS};
use super::log::{Log, schema_and_id};
use super::reader::errno;
use super::record::{write_head, write_member, write_row};
use crate::database::Database;
use crate::error::Error;
use crate::history::CommitId;
use crate::row::RowId;
use crate::schema::TableId;
use journal::{Disk, File, Open, Pending, write_all_at};
use sha1::{Digest, Sha1};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A slice ends after this much text has been produced or copied: well below a millisecond's work.
const SLICE_BYTES: usize = 128 << 10;
/// A slice ends after this many rows have been visited.
const SLICE_ROWS: usize = 4096;
/// This much of the tail may be copied at once.
const TAIL_REST_BYTES: u64 = SLICE_BYTES as u64;

/// The result of a slice of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is no compaction.
    Idle,
    /// There is more to do at once, between commits.
    Again,
    /// Another thread syncs; there is more to do afterwards.
    Waiting,
    /// The new file has replaced the old one.
    Finished(CompactionFigures),
}

/// Figures of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompactionFigures {
    /// Rows of the snapshot.
    pub rows: u64,
    /// Bytes of the new file's schema and snapshot.
    pub snapshot_bytes: u64,
    /// Bytes of the old file and of the new one at the end.
    pub old_bytes: u64,
    /// See above.
    pub new_bytes: u64,
    /// Slices it took.
    pub slices: u64,
}

enum Phase {
    Rows,
    Tail,
    Syncing(Pending),
    LastTail,
    Both(Pending),
    Renamed(Pending),
    Finished,
}

/// A compaction in progress.
pub(super) struct Compaction<D: Disk> {
    disk: D,
    temporary: PathBuf,
    /// Present until it is adopted.
    file: Option<D::File>,
    phase: Phase,
    /// The commit of the snapshot.
    commit: CommitId,
    /// The next row to visit.
    table: TableId,
    row: RowId,
    /// Whether the table's member is open in the text.
    open: bool,
    /// For each table not begun yet: rows that a later commit has changed, as text.
    earlier: Vec<Vec<u8>>,
    /// Text not written yet.
    out: Vec<u8>,
    /// Of the snapshot's record.
    header_at: u64,
    length: u64,
    hash: Sha1,
    /// How far the old file has been copied, and the new one's end.
    copied: u64,
    end: u64,
    /// The new file may be longer than `end`.
    must_cut: bool,
    figures: CompactionFigures,
}

pub(super) fn temporary_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.file_name().unwrap_or_default());
    name.push(".tmp");
    path.with_file_name(name)
}

impl<D: Disk> Compaction<D> {
    /// Starts a snapshot of the database's current state.
    pub(super) fn start(
        log: &Log<D>,
        database: &Database,
        now_ms: u64,
        comment: &str,
    ) -> Result<Self, Error> {
        let temporary = log.temporary_path();
        let failed = |error: io::Error| failed(&temporary, "create failed", &error);
        match log.disk.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let file = log.disk.open(&temporary, Open::CreateNew).map_err(failed)?;
        // Before it becomes the log. Nobody else knows it: it fails only where there are no such locks.
        let _ = file.try_lock();
        let (mut schema, _) = schema_and_id(database.schema());
        let header_at = schema.len() as u64;
        Header { length: 0, checksum: [0; 20] }.write(WIDE_DIGITS, &mut schema);
        let mut compaction = Self {
            disk: log.disk.clone(),
            temporary,
            file: Some(file),
            phase: Phase::Rows,
            commit: database.commit_number(),
            table: TableId(0),
            row: RowId(0),
            open: false,
            earlier: vec![Vec::new(); database.schema().table_count()],
            out: Vec::new(),
            header_at,
            length: 0,
            hash: Sha1::new(),
            copied: log.end,
            end: schema.len() as u64,
            must_cut: false,
            figures: CompactionFigures::default(),
        };
        compaction.put(&schema, 0)?;
        write_head(now_ms, Some(comment), true, &mut compaction.out);
        Ok(compaction)
    }

    fn put(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let Some(file) = &self.file else { return Err(Error::internal("compaction has ended")) };
        write_all_at(file, bytes, offset).map_err(|error| failed(&self.temporary, "write failed", &error))
    }

    /// Returns true if the new file has the log's name, at least in memory.
    pub(super) fn is_renamed(&self) -> bool {
        matches!(self.phase, Phase::Renamed(_) | Phase::Finished)
    }

    /// Observes a commit that was just made: takes the rows it replaced that the snapshot still lacks.
    pub(super) fn observe(&mut self, database: &Database, commit: CommitId) {
        if !matches!(self.phase, Phase::Rows) {
            return;
        }
        for change in database.changes_of(commit) {
            let Some(old) = change.old.filter(|old| old.version() <= self.commit.0) else { continue };
            if (change.table, change.row) < (self.table, self.row) {
                continue;
            }
            let table = database.schema().table(change.table);
            self.figures.rows += 1;
            if change.table == self.table {
                self.open_table(&table.name);
                write_row(table, old, &mut self.out);
            } else if let Some(earlier) = self.earlier.get_mut(change.table.index()) {
                if !earlier.is_empty() {
                    earlier.push(b',');
                }
                write_row(table, old, earlier);
            }
        }
    }

    /// Opens the table's member, or appends the separator after the row before.
    fn open_table(&mut self, name: &str) {
        self.out.push(b',');
        if !self.open {
            write_member(name, &mut self.out);
            self.out.push(b'{');
            self.open = true;
        }
    }

    /// The new file, once it has caught up and receives the same writes as the old one.
    fn following(&self) -> Option<&D::File> {
        self.file.as_ref().filter(|_| matches!(self.phase, Phase::Both(_) | Phase::Renamed(_)))
    }

    /// Writes what was written to the old file, once it has caught up; [`Self::accept`] or [`Self::cut`] follows.
    pub(super) fn write(&mut self, records: &[u8]) -> io::Result<()> {
        let Some(file) = self.following() else { return Ok(()) };
        if self.must_cut {
            file.set_length(self.end)?;
        }
        write_all_at(file, records, self.end)?;
        self.must_cut = false;
        Ok(())
    }

    /// Makes what was written durable.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.following().map_or(Ok(()), D::File::sync)
    }

    /// Accepts the last write, of this many bytes: it is in the log.
    pub(super) fn accept(&mut self, bytes: u64) {
        if self.following().is_some() {
            self.end += bytes;
        }
    }

    /// Discards the last write: it is not in the log.
    pub(super) fn cut(&mut self) {
        if let Some(file) = self.following() {
            // If it fails, it is retried before the next write.
            let _ = file.set_length(self.end);
            self.must_cut = true;
        }
    }

    /// Runs the next slice.
    pub(super) fn step(&mut self, log: &Log<D>, database: &Database) -> Result<Step, Error> {
        self.figures.slices += 1;
        match &mut self.phase {
            Phase::Rows => self.rows(database)?,
            Phase::Tail => {
                if self.tail(log)? {
                    self.phase = Phase::Syncing(self.sync_in_background()?);
                }
            }
            Phase::Syncing(pending) => match pending.poll() {
                None => return Ok(Step::Waiting),
                Some(result) => {
                    result.map_err(|error| failed(&self.temporary, "fsync failed", &error))?;
                    self.phase = Phase::LastTail;
                }
            },
            Phase::LastTail => {
                if self.tail(log)? {
                    self.phase = Phase::Both(self.sync_in_background()?);
                }
            }
            Phase::Both(pending) => match pending.poll() {
                None => return Ok(Step::Waiting),
                Some(result) => {
                    result.map_err(|error| failed(&self.temporary, "fsync failed", &error))?;
                    self.rename(log)?;
                    self.phase = Phase::Renamed(self.disk.sync_directory_in_background(&log.path));
                }
            },
            Phase::Renamed(pending) => match pending.poll() {
                None => return Ok(Step::Waiting),
                Some(result) => {
                    result.map_err(|error| failed(&log.path, "fsync failed", &error))?;
                    return Ok(self.finish(log));
                }
            },
            Phase::Finished => return Ok(Step::Idle),
        }
        Ok(Step::Again)
    }

    /// Runs all of it, waiting for the disk. There are no commits meanwhile, and earlier ones do not matter.
    pub(super) fn run(&mut self, log: &Log<D>, database: &Database) -> Result<CompactionFigures, Error> {
        while matches!(self.phase, Phase::Rows) {
            self.rows(database)?;
        }
        if let Some(file) = &self.file {
            file.sync().map_err(|error| failed(&self.temporary, "fsync failed", &error))?;
        }
        self.rename(log)?;
        self.phase = Phase::Finished;
        self.disk.sync_directory(&log.path).map_err(|error| failed(&log.path, "fsync failed", &error))?;
        self.finish(log);
        Ok(self.figures)
    }

    fn rename(&self, log: &Log<D>) -> Result<(), Error> {
        self.disk
            .rename(&self.temporary, &log.path)
            .map_err(|error| failed(&self.temporary, "failed to rename", &error))
    }

    fn finish(&mut self, log: &Log<D>) -> Step {
        self.phase = Phase::Finished;
        self.figures.old_bytes = log.end;
        self.figures.new_bytes = self.end;
        Step::Finished(self.figures)
    }

    fn sync_in_background(&self) -> Result<Pending, Error> {
        match &self.file {
            Some(file) => Ok(self.disk.sync_in_background(file)),
            None => Err(Error::internal("compaction has ended")),
        }
    }

    /// Writes the next slice of rows; after the last one, the record's end and its header.
    fn rows(&mut self, database: &Database) -> Result<(), Error> {
        let mut looked_at = 0;
        while self.out.len() < SLICE_BYTES && looked_at < SLICE_ROWS {
            let Some(table) = database.schema().get_table(self.table) else {
                return self.end_of_rows();
            };
            let mut ended = true;
            for (id, row) in database.rows_from(self.table, self.row) {
                self.row = RowId(id.0 + 1);
                looked_at += 1;
                if row.version() <= self.commit.0 {
                    self.open_table(&table.name);
                    write_row(table, row, &mut self.out);
                    self.figures.rows += 1;
                }
                if self.out.len() >= SLICE_BYTES || looked_at >= SLICE_ROWS {
                    ended = false;
                    break;
                }
            }
            if ended {
                self.next_table(database);
            }
        }
        self.flush()
    }

    fn next_table(&mut self, database: &Database) {
        if self.open {
            self.out.push(b'}');
        }
        self.open = false;
        self.table = TableId(self.table.0 + 1);
        self.row = RowId(0);
        let earlier = self.earlier.get_mut(self.table.index()).map(std::mem::take).unwrap_or_default();
        if let Some(table) = database.schema().get_table(self.table).filter(|_| !earlier.is_empty()) {
            self.open_table(&table.name);
            self.out.extend_from_slice(&earlier);
        }
    }

    fn end_of_rows(&mut self) -> Result<(), Error> {
        self.out.extend_from_slice(b"}\n");
        self.flush()?;
        let checksum = std::mem::take(&mut self.hash).finalize().into();
        let mut header = Vec::new();
        Header { length: self.length, checksum }.write(WIDE_DIGITS, &mut header);
        self.put(&header, self.header_at)?;
        self.out = Vec::new();
        self.figures.snapshot_bytes = self.end;
        self.phase = Phase::Tail;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.put(&self.out, self.end)?;
        self.hash.update(&self.out);
        self.end += self.out.len() as u64;
        self.length += self.out.len() as u64;
        self.out.clear();
        Ok(())
    }

    /// Copies the next slice of what the old file has in addition. Returns true if that was all.
    fn tail(&mut self, log: &Log<D>) -> Result<bool, Error> {
        let left = log.end.saturating_sub(self.copied);
        let length = usize::try_from(left.min(TAIL_REST_BYTES)).unwrap_or(SLICE_BYTES);
        let mut buffer = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let free = buffer.get_mut(filled..).unwrap_or_default();
            match log.file.read_at(free, self.copied + filled as u64) {
                Ok(0) => return Err(log.read_error(&io::ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(log.read_error(&error)),
            }
        }
        self.put(&buffer, self.end)?;
        self.copied += length as u64;
        self.end += length as u64;
        Ok(self.copied == log.end)
    }

    /// The new file, its end, where its snapshot ends, and whether it may be longer than its end.
    pub(super) fn into_parts(mut self) -> Option<(D::File, u64, u64, bool)> {
        let file = self.file.take()?;
        Some((file, self.end, self.figures.snapshot_bytes, self.must_cut))
    }
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Error {
    Error::io(errno(error), format!("{}: {what}", path.display()))
}

impl<D: Disk> Drop for Compaction<D> {
    fn drop(&mut self) {
        if !self.is_renamed() {
            // A leftover would only be in the way of the next compaction, which also removes it.
            let _ = self.disk.remove(&self.temporary);
        }
    }
}
