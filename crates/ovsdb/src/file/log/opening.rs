//! Creating and opening a log.

use super::super::ephemeral::{self, Ephemeral};
use super::super::load::{Loaded, load};
use super::super::note::{Level, Note};
use super::super::reader::errno;
use super::{Log, schema_record};
use crate::database::Database;
use crate::error::{Error, system_text};
use crate::schema::DatabaseSchema;
use journal::{Disk, File, LockError, Open, write_all_at};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// An opened log, and its database.
pub struct Opened<D: Disk> {
    /// The contents of the log.
    pub database: Database,
    /// The log.
    pub log: Log<D>,
    /// Notes for the server's log.
    pub notes: Vec<Note>,
}

/// Why a log was not opened.
#[derive(Debug)]
pub struct OpenError {
    /// Displayed as the stock server prints it after its name.
    pub error: Error,
    /// Notes for the server's log.
    pub notes: Vec<Note>,
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        Self { error, notes: Vec::new() }
    }
}

/// Makes an empty database with a schema.
pub type Make<'a> = &'a mut dyn FnMut(DatabaseSchema) -> Result<Database, Error>;

fn lock_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".~lock~");
    path.with_file_name(name)
}

/// Takes the lock of a log.
fn lock<D: Disk>(disk: &D, path: &Path, name: &str) -> Result<D::Lock, OpenError> {
    let lock_path = lock_path(path);
    disk.lock(&lock_path).map_err(|error| {
        let what = match &error {
            LockError::Io(error) => format!("failed to open lock file: {}", system_text(errno(error))),
            other => other.to_string(),
        };
        let note = Note::new(Level::Warn, "lockfile", format!("{}: {what}", lock_path.display()));
        OpenError {
            error: Error::io(error.errno(), format!("{name}: failed to lock lockfile")),
            notes: vec![note],
        }
    })
}

/// Locks the log itself: a server that knows it by another name, or whose lock file was removed, would write to it too.
fn lock_file<F: File>(file: &F, path: &Path, name: &str) -> Result<(), OpenError> {
    const EAGAIN: i32 = 11;
    // A file system that has no such locks leaves it at the lock file.
    if file.try_lock().unwrap_or(true) {
        return Ok(());
    }
    let what = "another server has it open, by another name or without its lock file";
    let note = Note::new(Level::Warn, "lockfile", format!("{}: cannot lock the log: {what}", path.display()));
    Err(OpenError { error: Error::io(EAGAIN, format!("{name}: failed to lock the log")), notes: vec![note] })
}

impl<D: Disk> Log<D> {
    /// Creates the log of an empty database, durably. The name must not exist.
    pub fn create(disk: &D, path: &Path, schema: &DatabaseSchema) -> Result<(), OpenError> {
        let name = path.display().to_string();
        let resolved = disk.resolve(path).map_err(|error| open_failed(&name, &error))?;
        let _lock = lock(disk, &resolved, &name)?;
        let file = disk
            .open(&resolved, Open::CreateNew)
            .map_err(|error| Error::io(errno(&error), format!("{name}: create failed")))?;
        let (record, _) = schema_record(schema);
        let written = write_all_at(&file, &record, 0)
            .and_then(|()| file.sync())
            .and_then(|()| disk.sync_directory(&resolved));
        Ok(written.map_err(|error| Error::io(errno(&error), format!("{name}: write failed")))?)
    }

    /// Locks a log and reads its database. `now_ms` is the wall clock's.
    pub fn open(disk: D, path: &Path, now_ms: u64, make: Make<'_>) -> Result<Opened<D>, OpenError> {
        let name = path.display().to_string();
        let resolved = disk.resolve(path).map_err(|error| open_failed(&name, &error))?;
        if !disk.exists(&resolved).map_err(|error| open_failed(&name, &error))? {
            return Err(open_failed(&name, &std::io::ErrorKind::NotFound.into()).into());
        }
        let lock = lock(&disk, &resolved, &name)?;
        let open = |how| disk.open(&resolved, how).map_err(|error| open_failed(&name, &error));
        let file = open(Open::ReadWrite)?;
        lock_file(&file, &resolved, &name)?;
        let ephemeral_path = ephemeral::path(&resolved);
        let remembered = ephemeral::read(&disk, &ephemeral_path);
        let loaded = load(&|| open(Open::Read), &name, remembered, now_ms, make)?;
        let length =
            file.length().map_err(|error| Error::io(errno(&error), format!("{name}: read failed")))?;
        let Loaded { database, id, end, base, opened_at, mut notes } = loaded;
        let mut ephemeral = Ephemeral::start(&disk, ephemeral_path, &database);
        notes.extend(ephemeral.as_mut().and_then(Ephemeral::take_note));
        let display_name =
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string();
        let log = Self {
            disk,
            _lock: lock,
            name,
            display_name,
            path: resolved,
            file,
            end,
            must_cut: length > end,
            pending: Vec::new(),
            text: Vec::new(),
            scratch: Vec::new(),
            id,
            opened_at,
            poisoned: None,
            notes: Vec::new(),
            compaction: None,
            ephemeral,
            base,
            compacted_ms: None,
        };
        Ok(Opened { database, log, notes })
    }
}

fn open_failed(name: &str, error: &std::io::Error) -> Error {
    const ENOENT: i32 = 2;
    let number = if error.kind() == std::io::ErrorKind::NotFound { ENOENT } else { errno(error) };
    Error::io(number, format!("{name}: open failed"))
}
