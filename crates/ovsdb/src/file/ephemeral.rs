//! The values of ephemeral columns: a file beside the database, for clients that reconnect after a restart.
//!
//! ```text
//! .NAME.ephemeral, in the framing of the log, each record {"_id":ID,"gone":[...],"changed":[...]}
//!
//!   the values of all rows after some commit | the changes of the next commit that touched any | the next | ...
//! ```
//!
//! * The log must not have ephemeral columns, and opening it resets them; but a client that was connected before holds
//!   their old values, and monitors report sets and maps as differences. So the whole values are kept here, by the id
//!   of the transaction that made them; commits that do not touch them have no record. `changed` has the columns that
//!   differ (for a new row: from the default); `gone` has deleted rows that had any.
//! * The file states only what is permanently true: that a tag ([`super::transaction_id`]) stands for these values. It
//!   need not be synced and may be old, truncated or missing: tags that clients know are then not in it, and they are
//!   sent everything, as if there were no such file. Nothing else depends on it.
//! * What it says about a tag must be complete. So records are written in the order of commits, before the log's and
//!   before any client is notified; after a failed write, here or in the log, it is rewritten with a later commit.
//! * Opening rewrites it from history ([`Ephemeral::start`]), with each commit that is kept, and so does growing: it is
//!   at most [`GROWTH`] times the size of that.

mod record;
mod recovery;

pub(super) use recovery::{Recovery, Remembered, read, reset};

use super::note::{Level, Note};
use super::reader::errno;
use crate::database::Database;
use crate::error::system_text;
use crate::history::CommitId;
use crate::schema::{DatabaseSchema, TableSchema};
use crate::uuid::Uuid;
use journal::{Disk, Open, write_all_at};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Up to this size the file is not rewritten.
const SMALL_BYTES: u64 = 64 << 10;
/// Above that it is rewritten when it has grown by this factor.
const GROWTH: u64 = 4;
/// After a failure it is not rewritten before this many commits have touched it: that takes long, and may fail again.
const RETRY_COMMITS: u32 = 64;
/// Memory that the text of pending records keeps between groups.
const PENDING_KEPT_BYTES: usize = 64 << 10;

/// The file, open for writing.
pub(super) struct Ephemeral<D: Disk> {
    disk: D,
    path: PathBuf,
    /// `None` after a failure, until it is rewritten.
    file: Option<D::File>,
    /// Commits before it is rewritten.
    wait: u32,
    end: u64,
    /// It is rewritten before it exceeds this size.
    end_max: u64,
    /// The changes of the last observed commit: a record without its beginning and its end.
    body: Vec<u8>,
    pending: Vec<u8>,
    note: Option<Note>,
}

/// The path of the file of a database.
pub(super) fn path(database: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(database.file_name().unwrap_or_default());
    name.push(".ephemeral");
    database.with_file_name(name)
}

/// Returns true if a table has ephemeral columns.
fn is_ephemeral(table: &TableSchema) -> bool {
    table.columns().any(|(_, column)| column.ephemeral)
}

/// Returns true if a schema has ephemeral columns.
pub(super) fn has_ephemeral(schema: &DatabaseSchema) -> bool {
    schema.tables().any(|(_, table)| is_ephemeral(table))
}

impl<D: Disk> Ephemeral<D> {
    /// Rewrites the file for a database that was just opened or converted; `None` for one without ephemeral columns.
    pub(super) fn start(disk: &D, path: PathBuf, database: &Database) -> Option<Self> {
        if !has_ephemeral(database.schema()) {
            return None;
        }
        let mut this = Self {
            disk: disk.clone(),
            path,
            file: None,
            wait: 0,
            end: 0,
            end_max: 0,
            body: Vec::new(),
            pending: Vec::new(),
            note: None,
        };
        this.rewrite(database);
        Some(this)
    }

    /// Observes a commit that was just made. Returns the text of its changes to ephemeral columns; `None`: there are
    /// none.
    pub(super) fn observe(&mut self, database: &Database, commit: CommitId) -> Option<&[u8]> {
        self.body.clear();
        record::write_commit(database, commit, &mut self.body);
        Some(&*self.body).filter(|body| !body.is_empty())
    }

    /// Appends the record of the commit that was last observed, once it has its id.
    pub(super) fn append(&mut self, database: &Database, id: Uuid) {
        if self.file.is_none() {
            match self.wait.checked_sub(1) {
                Some(less) => self.wait = less,
                None => self.rewrite(database),
            }
            return;
        }
        record::write(id, &self.body, &mut self.pending);
        if self.end + self.pending.len() as u64 > self.end_max {
            self.rewrite(database);
        }
    }

    /// Records where the log begins from now on: at this state.
    pub(super) fn mark(&mut self, id: Uuid) {
        if self.file.is_some() {
            record::write(id, b"", &mut self.pending);
            self.write();
        }
    }

    /// Writes what was appended since the last call.
    pub(super) fn write(&mut self) {
        if let Some(file) = &self.file
            && !self.pending.is_empty()
        {
            match write_all_at(file, &self.pending, self.end) {
                Ok(()) => self.end += self.pending.len() as u64,
                Err(error) => self.fail(&error),
            }
        }
        self.forget_pending();
    }

    /// Stops writing: what follows does not continue what is in the file. It is rewritten with the next commit.
    pub(super) fn stop(&mut self) {
        self.file = None;
        self.wait = 0;
        self.forget_pending();
    }

    /// The note for the server's log, once.
    pub(super) fn take_note(&mut self) -> Option<Note> {
        self.note.take()
    }

    fn forget_pending(&mut self) {
        self.pending.clear();
        self.pending.shrink_to(PENDING_KEPT_BYTES);
        self.body.clear();
        self.body.shrink_to(PENDING_KEPT_BYTES);
    }

    fn fail(&mut self, error: &io::Error) {
        let why = system_text(errno(error));
        let text = format!(
            "{}: write failed ({why}); until it can be written again, after a restart clients that monitor ephemeral \
            columns are sent everything",
            self.path.display()
        );
        self.note = Some(Note::new(Level::Warn, "ovsdb_log", text));
        self.stop();
        self.wait = RETRY_COMMITS;
    }

    /// Rewrites the file from what history keeps.
    fn rewrite(&mut self, database: &Database) {
        self.stop();
        let mut text = Vec::new();
        record::write_history(database, &mut text);
        match self.replace(&text) {
            Ok(file) => {
                self.file = Some(file);
                self.end = text.len() as u64;
                self.end_max = SMALL_BYTES.max(self.end * GROWTH);
            }
            Err(error) => self.fail(&error),
        }
    }

    fn replace(&self, text: &[u8]) -> io::Result<D::File> {
        let mut temporary = OsString::from(self.path.file_name().unwrap_or_default());
        temporary.push(".tmp");
        let temporary = self.path.with_file_name(temporary);
        match self.disk.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.disk.open(&temporary, Open::CreateNew)?;
        let renamed = write_all_at(&file, text, 0).and_then(|()| self.disk.rename(&temporary, &self.path));
        if renamed.is_err() {
            // A leftover would only be in the way of the next attempt, which also removes it.
            let _ = self.disk.remove(&temporary);
        }
        renamed.map(|()| file)
    }
}
