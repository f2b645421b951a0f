//! A database's log, open for writing.
//!
//! ```text
//! commit --append--> pending (memory)  --write--> file, and the file that compaction makes once it has caught up
//! ```
//!
//! Invariants: `end` is where the last valid record ends, and every write goes there. What the file has after it (an
//! earlier torn record, a failed write) is cut off before the next write. A failed write is an error of its group
//! alone: a full disk may have room again. After a failed sync the log is poisoned: nothing is ever written again,
//! because the contents of the disk are unknown. Values of ephemeral columns go to a file of their own
//! ([`super::ephemeral`]), before the log.

mod opening;
mod rewriting;

pub use opening::{Make, OpenError, Opened};

use super::compaction::{self, Compaction};
use super::ephemeral::Ephemeral;
use super::header::{Checksum, Header, WIDE_DIGITS};
use super::note::{Level, Note};
use super::reader::errno;
use super::{record, transaction_id};
use crate::database::Database;
use crate::error::{Error, system_text};
use crate::history::CommitId;
use crate::schema::DatabaseSchema;
use crate::uuid::Uuid;
use journal::{Disk, File, write_all_at};
use sha1::{Digest, Sha1};
use std::path::{Path, PathBuf};

/// Memory that the text of pending records keeps between groups.
const PENDING_KEPT_BYTES: usize = 256 << 10;

/// A log, open for writing.
pub struct Log<D: Disk> {
    pub(super) disk: D,
    _lock: D::Lock,
    /// As given: its name in errors.
    pub(super) name: String,
    /// As given, made absolute: its name in the server's log.
    display_name: String,
    /// Its path, with symbolic links resolved.
    pub(super) path: PathBuf,
    pub(super) file: D::File,
    pub(super) end: u64,
    /// The file may be longer than `end`.
    pub(super) must_cut: bool,
    pending: Vec<u8>,
    text: Vec<u8>,
    scratch: Vec<u8>,
    /// The id of the last transaction appended.
    pub(super) id: Uuid,
    opened_at: CommitId,
    poisoned: Option<Error>,
    notes: Vec<Note>,
    compaction: Option<Compaction<D>>,
    /// `None` if there are no ephemeral columns.
    ephemeral: Option<Ephemeral<D>>,
    /// Where the first transaction, perhaps a snapshot, ends.
    pub(super) base: u64,
    /// When it was last compacted, or first checked for that.
    pub(super) compacted_ms: Option<u64>,
}

/// From this many rows on, a commit's text is so long that a second copy of it would be noticeable.
const BULK_ROWS: usize = 4096;
/// Assumed bytes of a row in a record: room that is not used stays untouched.
const BULK_ROW_BYTES: usize = 192;

fn schema_record(schema: &DatabaseSchema) -> (Vec<u8>, [u8; 20]) {
    let mut text = Vec::new();
    schema.write_json(&mut text);
    text.push(b'\n');
    let checksum = Sha1::digest(&text).into();
    let mut out = Vec::with_capacity(text.len() + 64);
    Header { length: text.len() as u64, checksum }.write(0, &mut out);
    out.extend_from_slice(&text);
    (out, checksum)
}

/// The record of a schema, and the id of the empty database.
pub(super) fn schema_and_id(schema: &DatabaseSchema) -> (Vec<u8>, Uuid) {
    let (record, checksum) = schema_record(schema);
    (record, transaction_id::successor(Uuid::zero(), &checksum))
}

impl<D: Disk> Drop for Log<D> {
    fn drop(&mut self) {
        // A sync in the background may hold the file a little longer.
        self.file.unlock();
    }
}

impl<D: Disk> Log<D> {
    /// Appends the last commit of the database, before there is another one. This only makes the record's text, and
    /// assigns the commit its id.
    pub fn append(&mut self, database: &mut Database, commit: CommitId, now_ms: u64) {
        let rows = database.changes_of(commit).count();
        let checksum = if rows < BULK_ROWS {
            self.encode(database, commit, now_ms)
        } else {
            self.encode_bulk(database, commit, now_ms, rows)
        };
        // What the commit has from its predecessor. Not the id that was appended last: that may have been undone.
        self.id = database.transaction_id();
        if let Some(checksum) = &checksum {
            self.id = transaction_id::successor(self.id, checksum);
        }
        let mut touched = None;
        if let Some(ephemeral) = &mut self.ephemeral
            && let Some(change) = ephemeral.observe(database, commit)
        {
            self.id = transaction_id::tagged(self.id, change, now_ms);
            touched = Some(ephemeral);
        }
        database.set_transaction_id(commit, self.id);
        if let Some(ephemeral) = touched {
            ephemeral.append(database, self.id);
        }
        if let Some(compaction) = &mut self.compaction {
            compaction.observe(database, commit);
        }
    }

    /// Makes a commit's record. Returns its checksum, or `None` if there is nothing to log.
    fn encode(&mut self, database: &Database, commit: CommitId, now_ms: u64) -> Option<Checksum> {
        self.text.clear();
        record::write_commit(database, commit, now_ms, &mut self.scratch, &mut self.text).then(|| {
            let checksum = Sha1::digest(&self.text).into();
            Header { length: self.text.len() as u64, checksum }.write(0, &mut self.pending);
            self.pending.extend_from_slice(&self.text);
            checksum
        })
    }

    /// As [`Self::encode`], without a second copy of the text: room for a header of known length is left before it.
    fn encode_bulk(
        &mut self,
        database: &Database,
        commit: CommitId,
        now_ms: u64,
        rows: usize,
    ) -> Option<Checksum> {
        let start = self.pending.len();
        self.pending.reserve(rows * BULK_ROW_BYTES);
        Header { length: 0, checksum: [0; 20] }.write(WIDE_DIGITS, &mut self.pending);
        let body = self.pending.len();
        if !record::write_commit(database, commit, now_ms, &mut self.scratch, &mut self.pending) {
            self.pending.truncate(start);
            return None;
        }
        let text = self.pending.get(body..).unwrap_or_default();
        let checksum = Sha1::digest(text).into();
        let mut header = Vec::with_capacity(body - start);
        Header { length: text.len() as u64, checksum }.write(WIDE_DIGITS, &mut header);
        self.pending.splice(start..body, header);
        Some(checksum)
    }

    /// Writes what was appended since the last call, and syncs it if asked to. After an error none of it is in the log,
    /// and the commits must be undone before there are others. The next write is tried again, unless the log is
    /// poisoned.
    pub fn write(&mut self, durable: bool) -> Result<(), Error> {
        if let Some(ephemeral) = &mut self.ephemeral {
            ephemeral.write();
        }
        if self.pending.is_empty() {
            return Ok(());
        }
        let result = match &self.poisoned {
            Some(error) => Err(error.clone()),
            None => self.write_pending(durable),
        };
        self.pending.clear();
        self.pending.shrink_to(PENDING_KEPT_BYTES);
        self.text.clear();
        self.text.shrink_to(PENDING_KEPT_BYTES);
        result
    }

    fn write_pending(&mut self, durable: bool) -> Result<(), Error> {
        if self.must_cut {
            if let Err(error) = self.file.set_length(self.end) {
                let what = format!("cannot truncate to length {}", self.end);
                return Err(self.fail(&what, errno(&error)));
            }
            self.must_cut = false;
        }
        if let Err(error) = write_all_at(&self.file, &self.pending, self.end) {
            return Err(self.fail("write failed", errno(&error)));
        }
        if let Some(compaction) = &mut self.compaction
            && let Err(error) = compaction.write(&self.pending)
        {
            if compaction.is_renamed() {
                // The file that may have this name after a crash does not have these records.
                return Err(self.fail("write failed", errno(&error)));
            }
            self.give_up_compaction(errno(&error));
        }
        if durable && let Err(error) = self.file.sync() {
            return Err(self.poison("fsync failed", errno(&error)));
        }
        if durable
            && let Some(compaction) = &mut self.compaction
            && let Err(error) = compaction.sync()
        {
            if compaction.is_renamed() {
                return Err(self.poison("fsync failed", errno(&error)));
            }
            self.give_up_compaction(errno(&error));
        }
        let written = self.pending.len() as u64;
        self.end += written;
        if let Some(compaction) = &mut self.compaction {
            compaction.accept(written);
        }
        Ok(())
    }

    fn give_up_compaction(&mut self, errno: i32) {
        self.compaction = None;
        let text = format!("{}: compaction failed ({})", self.display_name, system_text(errno));
        self.notes.push(Note::new(Level::Warn, "ovsdb_log", text));
    }

    /// Handles a failed write of the current group: cuts off what may be there of it. The next write is tried again.
    fn fail(&mut self, what: &str, errno: i32) -> Error {
        let error = self.cut(what, errno);
        self.notes.push(Note::new(Level::Error, "ovsdb_server", error.to_string()));
        error
    }

    fn cut(&mut self, what: &str, errno: i32) -> Error {
        let text = format!("{}: {what} ({})", self.display_name, system_text(errno));
        self.notes.push(Note::new(Level::Warn, "ovsdb_log", text));
        // Best effort: the error is reported in any case, and nothing is written after what may be left.
        let _ = self.file.set_length(self.end);
        self.must_cut = true;
        match &mut self.compaction {
            Some(compaction) if compaction.is_renamed() => compaction.cut(),
            // Its snapshot has what it observed of the commits that are now undone.
            compaction => *compaction = None,
        }
        // The same holds for this file, which is rewritten from what is left.
        if let Some(ephemeral) = &mut self.ephemeral {
            ephemeral.stop();
        }
        Error::io(errno, format!("{}: {what}", self.name))
    }

    /// Poisons the log, as the contents of the disk are unknown: cuts off what may be half written, and stops all
    /// writes.
    pub(super) fn poison(&mut self, what: &str, errno: i32) -> Error {
        let error = self.cut(what, errno);
        self.compaction = None;
        let later = format!("{}: no writes until the database is reopened, because of: {what}", self.name);
        self.notes.push(Note::new(Level::Error, "ovsdb_server", later.clone()));
        self.poisoned = Some(Error::io(errno, later));
        error
    }

    /// Why nothing is written any more, if the log is poisoned.
    pub fn poisoned(&self) -> Option<&Error> {
        self.poisoned.as_ref()
    }

    /// Returns true if something was appended but not written.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes the notes for the server's log.
    pub fn take_notes(&mut self) -> Vec<Note> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.ephemeral.as_mut().and_then(Ephemeral::take_note));
        notes
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name as given when it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    pub fn length_bytes(&self) -> u64 {
        self.end
    }

    /// The commit that represents its opening: a state from before it has lost its ephemeral columns.
    pub fn opened_at(&self) -> CommitId {
        self.opened_at
    }

    pub(super) fn read_error(&self, error: &std::io::Error) -> Error {
        Error::io(errno(error), format!("{}: read failed", self.name))
    }

    pub(super) fn temporary_path(&self) -> PathBuf {
        compaction::temporary_path(&self.path)
    }
}
