//! A database's log, open for writing.
//!
//! ```text
//! commit --append--> pending (memory)  --write--> file, and the file that compaction makes once it has caught up
//! ```
//!
//! Invariants: `end` is where the last good record ends, and everything written goes there. What the file has after it
//! (a torn record of before, a write that failed) is cut off before the next write. After a write or sync that
//! failed, the log is poisoned: nothing is ever written again, as nobody knows what the disk has.

use super::compaction::{self, Compaction, CompactionFigures, Step};
use super::header::{Checksum, Header, WIDE_DIGITS};
use super::note::{Level, Note};
use super::reader::{BUFFER_BYTES, Reader, Record, errno};
use super::replay::{Failure, Replay};
use super::{record, transaction_id};
use crate::database::Database;
use crate::error::{Error, system_text};
use crate::history::CommitId;
use crate::schema::DatabaseSchema;
use crate::uuid::Uuid;
use journal::{Disk, File, LockError, Open, write_all_at};
use sha1::{Digest, Sha1};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use wire::json::{Kind, validate};

/// Memory that the text of pending records keeps between groups.
const PENDING_KEPT_BYTES: usize = 256 << 10;
/// The stock server compacts by itself above this size and this growth, not sooner and not later after the last time.
const COMPACT_ABOVE_BYTES: u64 = 10 << 20;
const COMPACT_GROWTH: u64 = 2;
const COMPACT_MIN_MS: u64 = 10 * 60 * 1000;
const COMPACT_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// A log, open for writing.
pub struct Log<D: Disk> {
    pub(super) disk: D,
    _lock: D::Lock,
    /// As given: what errors call it.
    pub(super) name: String,
    /// As given, made absolute: what the server's log calls it.
    display_name: String,
    /// Where it is: symbolic links followed.
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
    /// Where the first transaction, perhaps a snapshot, ends.
    pub(super) base: u64,
    /// When it was compacted last, or somebody first asked.
    pub(super) compacted_ms: Option<u64>,
}

/// From so many rows on, a commit's text is long enough that two copies of it would be felt.
const BULK_ROWS: usize = 4096;
/// What a row is taken to need of a record: room that is not used stays untouched.
const BULK_ROW_BYTES: usize = 192;

/// A log that was opened, and its database.
pub struct Opened<D: Disk> {
    /// What the log says.
    pub database: Database,
    /// The log.
    pub log: Log<D>,
    /// What the server's log should say about it.
    pub notes: Vec<Note>,
}

/// Why a log was not opened.
#[derive(Debug)]
pub struct OpenError {
    /// Displayed as the stock server does after its name.
    pub error: Error,
    /// What the server's log should say besides.
    pub notes: Vec<Note>,
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        Self { error, notes: Vec::new() }
    }
}

/// Makes an empty database of a schema.
pub type Make<'a> = &'a mut dyn FnMut(DatabaseSchema) -> Result<Database, Error>;

/// What was read.
struct Loaded {
    database: Database,
    id: Uuid,
    end: u64,
    base: u64,
    opened_at: CommitId,
    notes: Vec<Note>,
}

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

impl<D: Disk> Log<D> {
    /// Makes the log of an empty database, durably. There must be nothing of that name.
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
        let loaded = load(&|| open(Open::Read), &name, BUFFER_BYTES, now_ms, make)?;
        let length =
            file.length().map_err(|error| Error::io(errno(&error), format!("{name}: read failed")))?;
        let Loaded { database, id, end, base, opened_at, notes } = loaded;
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
            base,
            compacted_ms: None,
        };
        Ok(Opened { database, log, notes })
    }

    /// Takes the last commit of the database, before there is another one. This only makes the record's text, and gives
    /// the commit its id.
    pub fn append(&mut self, database: &mut Database, commit: CommitId, now_ms: u64) {
        let rows = database.changes_of(commit).count();
        let checksum = if rows < BULK_ROWS {
            self.encode(database, commit, now_ms)
        } else {
            self.encode_bulk(database, commit, now_ms, rows)
        };
        self.id = match &checksum {
            Some(checksum) => transaction_id::successor(self.id, checksum),
            None => transaction_id::unlogged(self.id, now_ms),
        };
        database.set_transaction_id(commit, self.id);
        if let Some(compaction) = &mut self.compaction {
            compaction.observe(database, commit);
        }
    }

    /// Makes a commit's record; gives its checksum, or `None` if there is nothing to log.
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

    /// Writes what was appended since the last time, and makes it durable if asked to. After an error none of it is in the
    /// log, and the log takes nothing any more.
    pub fn write(&mut self, durable: bool) -> Result<(), Error> {
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
                return Err(self.poison(&what, errno(&error)));
            }
            self.must_cut = false;
        }
        if let Err(error) = write_all_at(&self.file, &self.pending, self.end) {
            return Err(self.poison("write failed", errno(&error)));
        }
        if durable && let Err(error) = self.file.sync() {
            return Err(self.poison("fsync failed", errno(&error)));
        }
        if let Some(compaction) = &mut self.compaction
            && let Err(error) = compaction.write(&self.pending, durable)
        {
            if compaction.is_renamed() {
                // The file that may have this name after a crash does not have these records.
                return Err(self.poison("write failed", errno(&error)));
            }
            self.compaction = None;
            let text = format!("{}: compaction failed ({})", self.display_name, system_text(errno(&error)));
            self.notes.push(Note::new(Level::Warn, "ovsdb_log", text));
        }
        self.end += self.pending.len() as u64;
        Ok(())
    }

    /// Something failed: cuts off what may be half written, and writes nothing any more.
    pub(super) fn poison(&mut self, what: &str, errno: i32) -> Error {
        let text = format!("{}: {what} ({})", self.display_name, system_text(errno));
        self.notes.push(Note::new(Level::Warn, "ovsdb_log", text));
        // As good as it goes: the error is told in any case, and what is left does no harm if it stays.
        let _ = self.file.set_length(self.end);
        self.must_cut = true;
        self.compaction = None;
        let later = format!("{}: no writes until the database is reopened, because of: {what}", self.name);
        self.notes.push(Note::new(Level::Error, "ovsdb_server", later.clone()));
        self.poisoned = Some(Error::io(errno, later));
        Error::io(errno, format!("{}: {what}", self.name))
    }

    /// Why nothing is written any more, if so.
    pub fn poisoned(&self) -> Option<&Error> {
        self.poisoned.as_ref()
    }

    /// Whether something was appended and not written.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// What the server's log should say, since the last time.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As it was called when it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    pub fn length_bytes(&self) -> u64 {
        self.end
    }

    /// The commit that stands for opening it: a state known from before it has forgotten its ephemeral columns.
    pub fn opened_at(&self) -> CommitId {
        self.opened_at
    }

    /// Whether the stock server would compact it by itself now. `now_ms` is of a clock that only goes forward.
    pub fn should_compact(&mut self, now_ms: u64) -> bool {
        let last = *self.compacted_ms.get_or_insert(now_ms);
        let passed = now_ms.saturating_sub(last);
        let grew = self.end > COMPACT_ABOVE_BYTES && self.end / COMPACT_GROWTH > self.base;
        let idle = self.compaction.is_none() && self.poisoned.is_none();
        idle && passed >= COMPACT_MIN_MS && (grew || passed >= COMPACT_MAX_MS && self.end > self.base)
    }

    /// Whether a compaction is on its way.
    pub fn compacting(&self) -> bool {
        self.compaction.is_some()
    }

    /// Begins to compact; [`Self::step`] does it. Nothing may be pending.
    pub fn start_compaction(
        &mut self,
        database: &Database,
        now_ms: u64,
        now_monotonic_ms: u64,
    ) -> Result<(), Error> {
        if let Some(error) = &self.poisoned {
            return Err(error.clone());
        }
        if self.has_pending() || self.compacting() {
            return Err(Error::internal("compaction starts between groups, once at a time"));
        }
        let comment = transaction_id::comment("compacting database online", self.id);
        self.compaction = Some(Compaction::start(self, database, now_ms, &comment)?);
        self.compacted_ms = Some(now_monotonic_ms);
        Ok(())
    }

    /// Does the next slice of a compaction. After an error there is no compaction any more, and the log goes on (unless it
    /// is poisoned).
    pub fn step(&mut self, database: &Database) -> Result<Step, Error> {
        let Some(mut compaction) = self.compaction.take() else { return Ok(Step::Idle) };
        match compaction.step(self, database) {
            Ok(Step::Finished(figures)) => {
                self.adopt(compaction);
                Ok(Step::Finished(figures))
            }
            Ok(step) => {
                self.compaction = Some(compaction);
                Ok(step)
            }
            Err(error) if compaction.is_renamed() => {
                // Nobody knows which of the two files the name stands for after a crash.
                self.compaction = None;
                let number = error.io_error().unwrap_or_default();
                Err(self.poison("cannot make renaming durable", number))
            }
            Err(error) => Err(error),
        }
    }

    fn adopt(&mut self, compaction: Compaction<D>) {
        if let Some((file, end, base)) = compaction.into_parts() {
            let old = std::mem::replace(&mut self.file, file);
            self.disk.discard_in_background(old);
            (self.end, self.base) = (end, base);
            self.must_cut = false;
        }
    }

    /// Replaces schema and rows by those of a converted database, durably. Nothing may be pending.
    pub fn replace(&mut self, database: &mut Database, now_ms: u64) -> Result<CompactionFigures, Error> {
        if let Some(error) = &self.poisoned {
            return Err(error.clone());
        }
        if self.has_pending() {
            return Err(Error::internal("a conversion is a group of its own"));
        }
        self.compaction = None;
        let (_, checksum) = schema_record(database.schema());
        let id = transaction_id::successor(self.id, &checksum);
        let comment = transaction_id::comment("converted by ovsdb-server", id);
        let mut compaction = Compaction::start(self, database, now_ms, &comment)?;
        match compaction.run(self, database) {
            Ok(figures) => {
                self.adopt(compaction);
                self.id = id;
                let commit = database.commit_number();
                database.set_transaction_id(commit, id);
                Ok(figures)
            }
            Err(error) if compaction.is_renamed() => {
                let number = error.io_error().unwrap_or_default();
                Err(self.poison("cannot make renaming durable", number))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn read_error(&self, error: &std::io::Error) -> Error {
        Error::io(errno(error), format!("{}: read failed", self.name))
    }

    pub(super) fn temporary_path(&self) -> PathBuf {
        compaction::temporary_path(&self.path)
    }
}

fn open_failed(name: &str, error: &std::io::Error) -> Error {
    const ENOENT: i32 = 2;
    let number = if error.kind() == std::io::ErrorKind::NotFound { ENOENT } else { errno(error) };
    Error::io(number, format!("{name}: open failed"))
}

/// Reads a database. Begins again where a large record turns out to make no sense when some of it has been applied.
fn load<F: File>(
    open: &dyn Fn() -> Result<F, Error>,
    name: &str,
    buffer_bytes: usize,
    now_ms: u64,
    make: Make<'_>,
) -> Result<Loaded, OpenError> {
    let mut left_out = LeftOut::default();
    let mut notes = Vec::new();
    loop {
        let mut reader = Reader::new(open()?, name, buffer_bytes);
        match load_once(&mut reader, now_ms, &left_out, make) {
            Ok(mut loaded) => {
                notes.append(&mut loaded.notes);
                loaded.notes = notes;
                return Ok(loaded);
            }
            Err(Stop::Fatal(error)) => return Err(OpenError { error, notes }),
            Err(Stop::PassOver(offset, error)) => {
                notes.push(Note::new(Level::Error, "ovsdb_server", error.to_string()));
                left_out.records.insert(offset);
            }
            Err(Stop::EndAt(offset, error)) => {
                notes.push(Note::new(Level::Error, "ovsdb_server", error.to_string()));
                left_out.end = Some(offset);
            }
        }
    }
}

/// Offsets of records that an earlier attempt found to be no part of the database.
#[derive(Default)]
struct LeftOut {
    records: BTreeSet<u64>,
    /// This one and all that follow.
    end: Option<u64>,
}

enum Stop {
    Fatal(Error),
    /// The record at this offset is to be passed over.
    PassOver(u64, Error),
    /// The log is damaged in the record at this offset.
    EndAt(u64, Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

fn load_once<F: File>(
    reader: &mut Reader<F>,
    now_ms: u64,
    left_out: &LeftOut,
    make: Make<'_>,
) -> Result<Loaded, Stop> {
    reader.identify()?;
    let (mut database, id, mut end) = load_schema(reader, make)?;
    let mut base = end;
    let mut notes = Vec::new();
    let mut replay = Replay::new(database.schema().clone(), id);
    database.begin_replay();
    // A state is found by its id if the commit that made it is in history, and neither the empty
    // database nor a snapshot is a commit that history keeps. So each is followed by an empty one of the same id.
    database.begin_replayed_commit();
    database.end_replayed_commit(id, true);
    loop {
        let record = match reader.header() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(error) => {
                notes.push(Note::new(Level::Error, "ovsdb_server", error.to_string()));
                break;
            }
        };
        if left_out.end == Some(record.offset) {
            break;
        }
        if left_out.records.contains(&record.offset) {
            replay.skip(&record);
            reader.seek(record.end());
        } else {
            match replay.apply(reader, &record, &mut database) {
                Ok(()) => {}
                Err(Failure::Rejected(error)) => {
                    notes.push(Note::new(Level::Error, "ovsdb_server", error.to_string()));
                }
                Err(Failure::Halfway(error)) => return Err(Stop::PassOver(record.offset, error)),
                Err(Failure::Damaged(error)) => {
                    notes.push(Note::new(Level::Error, "ovsdb_server", error.to_string()));
                    break;
                }
                Err(Failure::DamagedHalfway(error)) => return Err(Stop::EndAt(record.offset, error)),
                Err(Failure::Fatal(error)) => return Err(Stop::Fatal(error)),
            }
        }
        if replay.records() == 1 {
            base = record.end();
        }
        end = record.end();
    }
    let id = transaction_id::unlogged(replay.id(), now_ms);
    database.begin_replayed_commit();
    let opened_at = database.end_replayed_commit(id, true);
    database.finish_replay()?;
    Ok(Loaded { database, id, end, base, opened_at, notes })
}

/// Reads the schema. Returns an empty database, its id, and where the record ends.
fn load_schema<F: File>(reader: &mut Reader<F>, make: Make<'_>) -> Result<(Database, Uuid, u64), Error> {
    let record: Record = match reader.header()? {
        Some(record) => record,
        None => return Err(Error::syntax_error_anywhere("unexpected end of file reading schema")),
    };
    if !reader.is_small(&record) {
        reader.verify(&record)?;
        return Err(Error::resources_exhausted(format!("a schema of {} bytes", record.length)));
    }
    let text = reader.body(&record)?;
    let schema = match validate(text) {
        Ok(value) if value.kind() == Kind::Object => DatabaseSchema::parse(value)?,
        Ok(_) => return Err(reader.not_an_object(&record)),
        Err(error) => {
            let error = error.to_string();
            return Err(reader.not_json(&record, &error));
        }
    };
    let id = transaction_id::successor(Uuid::zero(), &record.checksum);
    Ok((make(schema)?, id, record.end()))
}
