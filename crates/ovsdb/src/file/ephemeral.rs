//! What ephemeral columns became: a file beside the database, for clients that come back after a restart.
//!
//! ```text
//! .NAME.ephemeral, in the framing of the log, each record {"_id":ID,"gone":[...],"changed":[...]}
//!
//!   the values of all rows after some commit | what the next commit that touched any changed | the next | ...
//! ```
//!
//! * The log must not have ephemeral columns, and opening it resets them; but a client that was connected before holds
//!   what they had, and monitors tell sets and maps as differences. So the values are kept here, whole, by the id of
//!   the transaction that made them; commits that leave them alone have no record. `changed` has the columns that
//!   differ (of a new row: from the default); `gone` has deleted rows that had any.
//! * The file says what is true for ever: that a tag ([`super::transaction_id`]) stands for these values. It need not
//!   be synced and may be old, cut short or gone: then tags that clients know are not in it, and they are told
//!   everything, as if there were no such file. Nothing else depends on it.
//! * What it says of a tag must be complete. So records are written in the order of commits, before the log's and
//!   before anybody is told; and after a write that failed, here or in the log, it is made anew with a later commit.
//! * Opening makes it anew from history ([`Ephemeral::start`]), with each commit that is kept, and so does growing: it
//!   is at most [`GROWTH`] times what that takes.

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

/// Up to this size the file is not made anew.
const SMALL_BYTES: u64 = 64 << 10;
/// Above that it is when it has grown so many times.
const GROWTH: u64 = 4;
/// After a failure it is not made anew before so many commits have touched it: that takes long, and may fail again.
const RETRY_COMMITS: u32 = 64;
/// Memory that the text of pending records keeps between groups.
const PENDING_KEPT_BYTES: usize = 64 << 10;

/// The file, open for writing.
pub(super) struct Ephemeral<D: Disk> {
    disk: D,
    path: PathBuf,
    /// None after something failed, until it is made anew.
    file: Option<D::File>,
    /// Commits before it is made anew.
    wait: u32,
    end: u64,
    /// It is made anew before it passes this size.
    end_max: u64,
    /// What the last commit that was looked at changed: a record without its beginning and its end.
    body: Vec<u8>,
    pending: Vec<u8>,
    note: Option<Note>,
}

/// Where the file of a database is.
pub(super) fn path(database: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(database.file_name().unwrap_or_default());
    name.push(".ephemeral");
    database.with_file_name(name)
}

/// Whether a table has ephemeral columns.
fn is_ephemeral(table: &TableSchema) -> bool {
    table.columns().any(|(_, column)| column.ephemeral)
}

/// Whether a schema has any.
pub(super) fn has_ephemeral(schema: &DatabaseSchema) -> bool {
    schema.tables().any(|(_, table)| is_ephemeral(table))
}

impl<D: Disk> Ephemeral<D> {
    /// Makes the file anew for a database that was just opened or converted; none for one without ephemeral columns.
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

    /// Looks at a commit that was just made. Returns the text of what it changed of ephemeral columns; none: nothing.
    pub(super) fn observe(&mut self, database: &Database, commit: CommitId) -> Option<&[u8]> {
        self.body.clear();
        record::write_commit(database, commit, &mut self.body);
        Some(&*self.body).filter(|body| !body.is_empty())
    }

    /// Takes the commit that was observed last, once it has its id.
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

    /// Notes where the log begins from now on: at this state.
    pub(super) fn mark(&mut self, id: Uuid) {
        if self.file.is_some() {
            record::write(id, b"", &mut self.pending);
            self.write();
        }
    }

    /// Writes what was appended since the last time.
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

    /// What comes now does not follow from what is in the file: it is made anew with the next commit.
    pub(super) fn stop(&mut self) {
        self.file = None;
        self.wait = 0;
        self.forget_pending();
    }

    /// What the server's log should say, once.
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

    /// Makes the file anew from what history keeps.
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
            // It would only be in the way of the next one, which removes it, too.
            let _ = self.disk.remove(&temporary);
        }
        renamed.map(|()| file)
    }
}
