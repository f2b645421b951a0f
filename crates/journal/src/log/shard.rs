//! The write side of a shard: which segment is written to, and what failures do to it.
//!
//! ```text
//!            first batch            full: footer, synced
//!  no file ──────────────> active ────────────────────────> sealed
//!     ^                      │ no space: cut back to the last commit, still active
//!     │                      │ any other failed write, any failed sync
//!     └──────────────────────┴──────────────────────────────> left as it is
//! ```
//!
//! A segment that was left is never written or synced again: after a failed sync the system may have dropped the data,
//! and report success the next time. Its committed batches were synced before and count. What follows them does not
//! count, as the next segment's header says.

use super::batch::Batch;
use super::buffer::Buffer;
use super::commit::{Commit, CopyMark};
use super::compaction::Compaction;
use super::footer::Footer;
use super::format::{Origin, VERSION};
use super::header::{HEADER_BYTES, Header};
use super::manifest::{End, Left, Manifest};
use super::reader::Reader;
use super::run::Run;
use super::segment::{Catalogue, Segment, State, path_of};
use super::synced::{Notebook, Synced};
use super::table::Table;
use super::{Identity, Options, WriteError};
use crate::{Disk, File, Open, write_all_at};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Runs after which a segment is full, however few bytes they have: each takes 36 bytes of memory until it is sealed.
pub(super) const RUNS_MAX: usize = 32_768;
/// Zeros are written ahead for this many batches like the last one, limited in bytes, if that is enough for the minimum
/// number of batches.
const RUNWAY_BATCHES: u64 = 32;
const RUNWAY_BATCHES_MIN: u64 = 8;
const RUNWAY_BYTES_MAX: u64 = 512 << 10;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A part of a bucket's vBuckets, and the segments with their records.
#[derive(Debug)]
pub struct Shard<D: Disk> {
    pub(super) disk: D,
    pub(super) directory: PathBuf,
    pub(super) identity: Identity,
    pub(super) options: Options,
    pub(super) catalogue: Arc<Catalogue<D>>,
    pub(super) active: Option<Active<D>>,
    pub(super) next_segment: u64,
    /// Salt of the next segment, once that is to be begun.
    pub(super) salt: Option<u64>,
    /// Number of the next attempt to write a batch.
    pub(super) next_batch: u64,
    pub(super) last_batch: u64,
    /// Last batch known synced.
    pub(super) synced_batch: u64,
    pub(super) max_cas: u64,
    /// The last segment that counts before the active one, and whether it is sealed.
    pub(super) previous: (u64, bool),
    /// Files without a batch that counts. The header of a later segment says so, and must not be removed before them.
    pub(super) junk: Vec<PathBuf>,
    pub(super) directory_exists: bool,
    pub(super) manifest: Manifest,
    /// It is on disk. If not, an older one or none is, and it is unknown which.
    pub(super) manifest_is_written: bool,
    /// Where is noted what is synced; open since the first note.
    pub(super) notebook: Option<Notebook<D::File>>,
    /// Files are missing or mixed up: none is removed before that is repaired.
    pub(super) keeps_files: bool,
    /// It is unknown what of it is whole: nothing is written.
    pub(super) is_frozen: bool,
    /// The last thing in it is the mark of a clean end.
    pub(super) is_closed: bool,
    /// What compaction copied last.
    pub(super) copy_mark: CopyMark,
    pub(super) compaction: Compaction<D>,
    /// Runs of the batch that is being written.
    pub(super) batch_runs: Vec<Run>,
}

/// The segment that is being written to.
#[derive(Debug)]
pub(super) struct Active<D: Disk> {
    pub segment: Arc<Segment<D>>,
    pub file: D::File,
    /// End of the last batch; 0 before the first.
    pub end: u64,
    /// Length of the file. After the last batch, and what is being written, it holds zeros: see [`Shard::lengthen`].
    pub length: u64,
    /// The file may be longer than that.
    pub has_tail: bool,
    /// Its name is durable, and readers know it.
    pub is_named: bool,
}

/// Figures about a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Number of files.
    pub segments: usize,
    /// Their total length.
    pub bytes: u64,
    /// Runs whose place is kept in memory: those of unsealed segments.
    pub runs_in_memory: usize,
    /// The last batch that was committed.
    pub last_batch: u64,
}

/// Returns true if the disk, or this user's part of it, is full.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    errno == Some(Errno::NOSPC.raw_os_error()) || errno == Some(Errno::DQUOT.raw_os_error())
}

impl<D: Disk> Shard<D> {
    /// Begins a batch. Does I/O if a segment is full or the last batch failed.
    pub fn batch<'a>(&'a mut self, buffer: &'a mut Buffer) -> Result<Batch<'a, D>, WriteError> {
        self.prepare(buffer)?;
        Ok(Batch::new(self, buffer))
    }

    /// Returns a reader, which looks up records from any thread.
    pub fn reader(&self) -> Reader<D> {
        Reader::new(self.catalogue.clone())
    }

    /// Marks the end as a clean one, so that the next start need not doubt what was acknowledged.
    pub fn close(&mut self) -> Result<(), WriteError> {
        let is_empty = self.catalogue.segments().is_empty();
        if self.is_closed || is_empty || self.is_frozen {
            return Ok(());
        }
        let mut buffer = Buffer::new(0);
        self.prepare(&mut buffer)?;
        if self.active.is_none() {
            // A segment with a salt must not exist without a manifest.
            self.begin()?;
        }
        let batch = self.last_batch;
        let (number, start, origin) = self.begin_attempt(&mut buffer);
        // Everything before this was committed; if commits are not synced, this sync covers them.
        let commit = Commit::new(number, start, self.max_cas, batch, self.copy_mark, true);
        let bytes = commit.encode(&[], origin, start);
        buffer.bytes.extend_from_slice(&bytes);
        self.write_at(&buffer.bytes, start - self.header_length())?;
        self.batch_runs.clear();
        self.shorten(start + commit.bytes())?;
        self.settle(start + commit.bytes(), true)?;
        // Without the mark, which the next start removes.
        let end = End { batch, offset: start };
        if self.manifest.end != Some(end) || !self.manifest_is_written {
            let mut manifest = Manifest { end: Some(end), ..self.manifest.clone() };
            if let Some(active) = &self.active {
                manifest.leave(active.segment.number(), Left { end, vbuckets: active.segment.vbuckets() });
            }
            self.write_manifest(manifest)?;
        }
        self.is_closed = true;
        Ok(())
    }

    /// The figures of the shard.
    pub fn figures(&self) -> Figures {
        let segments = self.catalogue.segments();
        let mut figures =
            Figures { segments: segments.len(), bytes: 0, runs_in_memory: 0, last_batch: self.last_batch };
        for segment in segments.iter() {
            let state = segment.state();
            let zeros = self.active.as_ref().filter(|active| active.segment.number() == segment.number());
            figures.bytes += zeros.map_or(state.length, |active| active.length.max(state.length));
            if let Table::Memory(table) = &state.table {
                figures.runs_in_memory += table.runs().len();
            }
        }
        figures
    }

    /// Makes durable that the shard is being written to. From now on its manifest must exist.
    pub fn begin(&mut self) -> Result<(), WriteError> {
        if self.manifest_is_written && self.manifest.end.is_none() {
            return Ok(());
        }
        self.create_directory().map_err(WriteError::of)?;
        // The directory is synced with the manifest.
        self.open_notebook().map_err(WriteError::of)?;
        let mut manifest = Manifest { end: None, ..self.manifest.clone() };
        if let Some(active) = &self.active {
            manifest.reopen(active.segment.number());
        }
        self.write_manifest(manifest)
    }

    /// Notes durably how often the bucket's own file has changed. A shard without a manifest notes it with its first.
    pub fn note_changes(&mut self, changes: u64) -> Result<(), WriteError> {
        if changes <= self.manifest.changes {
            return Ok(());
        }
        if self.manifest_is_written {
            return self.write_manifest(Manifest { changes, ..self.manifest.clone() });
        }
        self.manifest.changes = changes;
        Ok(())
    }

    /// As of when its manifest was written: how often the bucket's own file had changed.
    pub fn changes(&self) -> u64 {
        self.manifest.changes
    }

    fn open_notebook(&mut self) -> io::Result<&mut Notebook<D::File>> {
        match &mut self.notebook {
            Some(notebook) => Ok(notebook),
            none => Ok(none.insert(Notebook::open(&self.disk, &self.directory, self.identity)?)),
        }
    }

    /// Notes that a batch is committed, if it is synced.
    pub(super) fn note_commit(&mut self) {
        // It is durable all the same. Until a note succeeds, a tail that is lost would pass for a torn one.
        if self.synced_batch == self.last_batch && self.note_synced().is_err() {
            self.notebook = None;
        }
    }

    /// Notes how far the active segment is synced.
    pub(super) fn note_synced(&mut self) -> io::Result<()> {
        let Some(active) = &self.active else { return Ok(()) };
        let end = End { batch: self.synced_batch, offset: active.end };
        let (synced, identity) = (Synced { origin: active.segment.origin, end }, self.identity);
        let notebook = self.open_notebook()?;
        if notebook.newest == Some(synced) { Ok(()) } else { notebook.note(synced, identity) }
    }

    /// Replaces the manifest durably.
    pub(super) fn write_manifest(&mut self, manifest: Manifest) -> Result<(), WriteError> {
        if self.is_frozen {
            let what = "files of the journal are missing or mixed up; it is not written to";
            return Err(WriteError::Poisoned(io::Error::other(what)));
        }
        self.manifest_is_written = false;
        manifest.write(&self.disk, &self.directory, self.identity).map_err(WriteError::of)?;
        self.manifest = manifest;
        self.manifest_is_written = true;
        Ok(())
    }

    /// Prepares the disk for the next batch: seals the active segment if it is full.
    fn prepare(&mut self, buffer: &mut Buffer) -> Result<(), WriteError> {
        self.clear(buffer)?;
        let is_full = |active: &Active<D>| {
            let state = active.segment.state();
            let runs = if let Table::Memory(table) = &state.table { table.runs().len() } else { 0 };
            // A segment with unsalted checksums is not continued.
            let is_old = active.segment.origin.salt == 0;
            active.end >= self.options.segment_bytes || runs >= RUNS_MAX || is_old
        };
        if self.active.as_ref().is_some_and(is_full) {
            self.seal(buffer)?;
        }
        if self.active.is_none() && self.salt.is_none() {
            // A salt of 0 would mean none.
            self.salt = Some(self.disk.random().map_err(WriteError::Poisoned)?.max(1));
        }
        Ok(())
    }

    /// Removes what a batch without a commit has left behind.
    fn clear(&mut self, buffer: &mut Buffer) -> Result<(), WriteError> {
        buffer.bytes.clear();
        if self.active.as_ref().is_some_and(|active| active.has_tail) {
            self.cut()?;
        }
        Ok(())
    }

    /// Seals the active segment, full or not, so that what is superfluous in it can be compacted.
    pub(super) fn seal_early(&mut self, buffer: &mut Buffer) -> Result<(), WriteError> {
        self.clear(buffer)?;
        self.seal(buffer)
    }

    /// Number, offset and segment of the next batch. If it begins a segment, the header is put into the buffer.
    pub(super) fn begin_attempt(&mut self, buffer: &mut Buffer) -> (u64, u64, Origin) {
        let number = self.next_batch;
        self.next_batch += 1;
        match &self.active {
            Some(active) if active.end > 0 => (number, active.end, active.segment.origin),
            _ => {
                let origin = self.next_origin();
                let header = Header {
                    identity: self.identity,
                    origin,
                    previous: self.previous.0,
                    committed: self.last_batch,
                    first_batch: number,
                    previous_sealed: self.previous.1,
                    version: VERSION,
                };
                buffer.bytes.extend_from_slice(&header.encode());
                (number, HEADER_BYTES as u64, origin)
            }
        }
    }

    /// The origin of the segment that the next write is for.
    fn next_origin(&self) -> Origin {
        let new = Origin { number: self.next_segment, salt: self.salt.unwrap_or_default() };
        self.active.as_ref().map_or(new, |active| active.segment.origin)
    }

    /// Bytes before the first batch that are not yet in the file.
    fn header_length(&self) -> u64 {
        let is_new = self.active.as_ref().is_none_or(|active| active.end == 0);
        if is_new { HEADER_BYTES as u64 } else { 0 }
    }

    /// Writes at this offset of the active segment, which is created if there is none.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), WriteError> {
        self.begin()?;
        self.write_at(bytes, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), WriteError> {
        let active = match &mut self.active {
            Some(active) => active,
            None => self.create()?,
        };
        active.has_tail = true;
        match write_all_at(&active.file, bytes, offset) {
            Ok(()) => {
                active.length = active.length.max(offset + bytes.len() as u64);
                Ok(())
            }
            Err(error) if is_no_space(&error) => {
                self.cut()?;
                Err(WriteError::NoSpace(error))
            }
            Err(error) => Err(self.leave(error)),
        }
    }

    fn create(&mut self) -> Result<&mut Active<D>, WriteError> {
        // As far as the disk permits: a disk that fails for long must not fill up with failed segments. But a manifest
        // that may or may not be on disk may name them.
        if self.manifest_is_written {
            for path in &self.junk {
                let _ = self.disk.remove(path);
            }
        }
        let origin = self.next_origin();
        let path = path_of(&self.directory, origin.number);
        let file = match self.disk.open(&path, Open::CreateNew) {
            Ok(file) => file,
            Err(error) if is_no_space(&error) => return Err(WriteError::NoSpace(error)),
            Err(error) => {
                // Perhaps the name is taken by a file that is not ours to write to.
                self.next_segment += 1;
                return Err(WriteError::Poisoned(error));
            }
        };
        self.next_segment += 1;
        self.salt = None;
        let segment = Segment::new(self.disk.clone(), path, origin, Some(file.clone()), State::empty());
        let segment = Arc::new(segment);
        Ok(self.active.insert(Active { segment, file, end: 0, length: 0, has_tail: false, is_named: false }))
    }

    fn create_directory(&mut self) -> io::Result<()> {
        if !self.directory_exists {
            self.disk.create_directory(&self.directory)?;
            self.disk.sync_directory(&self.directory)?;
            self.directory_exists = true;
        }
        Ok(())
    }

    /// Cuts the active segment back to its last commit.
    fn cut(&mut self) -> Result<(), WriteError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        match active.file.set_length(active.end) {
            Ok(()) => {
                active.length = active.end;
                active.has_tail = false;
                Ok(())
            }
            Err(error) => Err(self.leave(error)),
        }
    }

    /// Writes zeros after a short batch that ends at `end`, if there are none left. If the syncs that follow find the
    /// file long enough, they need not write its length, which is half the cost of a short one.
    fn lengthen(&mut self, end: u64) -> Result<(), WriteError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        let batch = end - active.end;
        let room = self.options.segment_bytes.saturating_sub(end).min(RUNWAY_BYTES_MAX);
        if active.length > end || batch * RUNWAY_BATCHES_MIN > room {
            return Ok(());
        }
        let runway = (batch * RUNWAY_BATCHES).min(room);
        let mut written = Ok(());
        let mut offset = end;
        while written.is_ok() && offset < end + runway {
            let piece = ZEROS.len().min((end + runway - offset) as usize);
            written = write_all_at(&active.file, ZEROS.get(..piece).unwrap_or_default(), offset);
            offset += piece as u64;
        }
        match written {
            Ok(()) => active.length = offset,
            // The batch is written, which is all that is needed.
            Err(error) if is_no_space(&error) => return self.shorten(end),
            Err(error) => return Err(self.leave(error)),
        }
        Ok(())
    }

    /// Removes the zeros after `end`.
    fn shorten(&mut self, end: u64) -> Result<(), WriteError> {
        let Some(active) = &mut self.active else { return Ok(()) };
        if let Err(error) = active.file.set_length(end) {
            return Err(self.leave(error));
        }
        active.length = end;
        Ok(())
    }

    fn leave(&mut self, error: io::Error) -> WriteError {
        self.abandon();
        WriteError::Poisoned(error)
    }

    /// Stops using the active segment for good.
    fn abandon(&mut self) {
        if let Some(active) = self.active.take() {
            if active.is_named {
                let end = End { batch: active.segment.state().last_batch, offset: active.end };
                let left = Left { end, vbuckets: active.segment.vbuckets() };
                self.manifest.leave(active.segment.number(), left);
                self.previous = (active.segment.number(), false);
            } else {
                self.junk.push(active.segment.path.clone());
            }
        }
    }

    /// Makes what was written up to `end` durable, so that it counts.
    pub(super) fn settle(&mut self, end: u64, must_sync: bool) -> Result<(), WriteError> {
        if self.options.sync && !must_sync {
            self.lengthen(end)?;
        }
        let Some(active) = &mut self.active else { return Ok(()) };
        // What the manifest names must exist.
        let must_sync = must_sync || self.options.sync || !active.is_named;
        let mut synced = if must_sync { active.file.sync() } else { Ok(()) };
        if synced.is_ok() && !active.is_named {
            synced = self.disk.sync_directory(&active.segment.path);
        }
        if let Err(error) = synced {
            return Err(self.leave(error));
        }
        if !active.is_named {
            let origin = active.segment.origin;
            self.enter(origin)?;
        }
        let Some(active) = &mut self.active else { return Ok(()) };
        let batch = self.next_batch - 1;
        active.segment.add(&self.batch_runs, self.identity.vbuckets, batch, end);
        if !active.is_named {
            self.catalogue.add(active.segment.clone());
            active.is_named = true;
            // Syncing the directory also made the removals from it durable.
            self.junk.retain(|path| self.disk.exists(path).unwrap_or(true));
        }
        active.end = end;
        active.has_tail = false;
        self.is_closed = false;
        self.last_batch = batch;
        if must_sync {
            self.synced_batch = self.last_batch;
        }
        Ok(())
    }

    /// Enters a segment, whose first batch is synced, into the manifest.
    fn enter(&mut self, origin: Origin) -> Result<(), WriteError> {
        let mut manifest = self.manifest.clone();
        manifest.enter(origin);
        self.write_manifest(manifest).inspect_err(|_| self.abandon())
    }

    /// Makes everything that was committed durable, if commits alone do not do that.
    pub(super) fn sync_active(&mut self) -> Result<(), WriteError> {
        let Some(active) = self.active.as_ref().filter(|_| !self.options.sync) else { return Ok(()) };
        match active.file.sync() {
            Ok(()) => {
                self.synced_batch = self.last_batch;
                Ok(())
            }
            Err(error) => Err(self.leave(error)),
        }
    }

    /// Ends the active segment with its footer.
    fn seal(&mut self, buffer: &mut Buffer) -> Result<(), WriteError> {
        let Some(active) = &self.active else { return Ok(()) };
        let (origin, end) = (active.segment.origin, active.end);
        let mut runs = match &active.segment.state().table {
            Table::Memory(table) => table.runs().to_vec(),
            Table::Sealed(_) => return Ok(()),
        };
        let (mut footer, lines) = Footer::of(&mut runs, origin, end);
        footer.last_batch = self.last_batch;
        footer.max_cas = self.max_cas;
        footer.copied = self.copy_mark;
        let mut offset = end;
        for run in &runs {
            let entry = run.entry();
            if buffer.free() < entry.len() {
                self.write(&buffer.bytes, offset)?;
                offset += buffer.bytes.len() as u64;
                buffer.bytes.clear();
            }
            buffer.bytes.extend_from_slice(&entry);
        }
        let mut rest = Vec::new();
        footer.encode_end(&lines, &mut rest);
        self.write(&buffer.bytes, offset)?;
        offset += buffer.bytes.len() as u64;
        buffer.bytes.clear();
        self.write(&rest, offset)?;
        self.shorten(offset + rest.len() as u64)?;
        let Some(active) = &self.active else { return Ok(()) };
        if let Err(error) = active.file.sync() {
            return Err(self.leave(error));
        }
        // Entering the next one makes that durable.
        self.manifest.seal(&footer);
        active.segment.seal(footer);
        self.synced_batch = self.last_batch;
        self.previous = (origin.number, true);
        self.active = None;
        Ok(())
    }
}
