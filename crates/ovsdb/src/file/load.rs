//! Reads a database from its log, and the values of ephemeral columns from the file beside it.

use super::ephemeral::{self, Recovery, Remembered, has_ephemeral};
use super::log::{Make, OpenError};
use super::note::{Level, Note};
use super::reader::{BUFFER_BYTES, Reader, Record};
use super::replay::{Failure, Replay};
use super::transaction_id;
use crate::database::Database;
use crate::error::Error;
use crate::history::CommitId;
use crate::schema::DatabaseSchema;
use crate::uuid::Uuid;
use journal::File;
use std::collections::BTreeSet;
use wire::json::{Kind, validate};

/// What was read.
pub(super) struct Loaded {
    pub database: Database,
    pub id: Uuid,
    /// Where the last valid record ends, and where the first transaction does.
    pub end: u64,
    pub base: u64,
    /// The commit that represents its opening.
    pub opened_at: CommitId,
    pub notes: Vec<Note>,
}

/// Reads a database. Starts over if a large record proves to be invalid after some of it has been applied.
pub(super) fn load<F: File>(
    open: &dyn Fn() -> Result<F, Error>,
    name: &str,
    mut remembered: Vec<Remembered>,
    now_ms: u64,
    make: Make<'_>,
) -> Result<Loaded, OpenError> {
    let mut left_out = LeftOut::default();
    let mut notes = Vec::new();
    loop {
        let mut reader = Reader::new(open()?, name, BUFFER_BYTES);
        match load_once(&mut reader, Recovery::new(&remembered), now_ms, &left_out, make) {
            Ok(mut loaded) => {
                notes.append(&mut loaded.notes);
                loaded.notes = notes;
                return Ok(loaded);
            }
            Err(Stop::Fatal(error)) => return Err(OpenError { error, notes }),
            Err(Stop::PassOver(offset, note)) => {
                notes.push(note);
                left_out.records.insert(offset);
            }
            Err(Stop::EndAt(offset, error)) => {
                notes.push(Note::new(Level::Error, "ovsdb_server", error.to_string()));
                left_out.end = Some(offset);
            }
            Err(Stop::Forget) => remembered = Vec::new(),
        }
    }
}

/// Offsets of records that an earlier attempt found not to be part of the database.
#[derive(Default)]
struct LeftOut {
    records: BTreeSet<u64>,
    /// This record and all that follow.
    end: Option<u64>,
}

enum Stop {
    Fatal(Error),
    /// Skip the record at this offset.
    PassOver(u64, Note),
    /// The log is damaged in the record at this offset.
    EndAt(u64, Error),
    /// There is no memory for the values of ephemeral columns.
    Forget,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

fn load_once<F: File>(
    reader: &mut Reader<F>,
    mut recovery: Recovery<'_>,
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
    // A state is found by its id if the commit that made it is in history, and neither the empty database nor a
    // snapshot is a commit that history keeps. So each is followed by an empty one with the same id.
    database.begin_replayed_commit();
    database.end_replayed_commit(id, true);
    recovery.follow(&mut database, id).map_err(|_| Stop::Forget)?;
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
                Ok(()) => recovery.follow(&mut database, replay.id()).map_err(|_| Stop::Forget)?,
                Err(Failure::Rejected(note)) => notes.push(note),
                Err(Failure::Halfway(note)) => return Err(Stop::PassOver(record.offset, note)),
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
    let id = transaction_id::with_tag_of(replay.id(), database.transaction_id());
    let (id, opened_at) = open_replayed(&mut database, id, recovery.has_applied(), now_ms)?;
    Ok(Loaded { database, id, end, base, opened_at, notes })
}

/// Ends the replay of the log and the file beside it: a last commit has the changes made by opening. Returns its id.
fn open_replayed(
    database: &mut Database,
    id: Uuid,
    has_values: bool,
    now_ms: u64,
) -> Result<(Uuid, CommitId), Stop> {
    let id =
        if has_ephemeral(database.schema()) { transaction_id::tagged(id, b"opened", now_ms) } else { id };
    database.begin_replayed_commit();
    if has_values {
        ephemeral::reset(database).map_err(|_| Stop::Forget)?;
    }
    let oldest = database.oldest_kept();
    database.hold_from(Some(oldest));
    let mut opened_at = database.end_replayed_commit(id, true);
    database.excuse_last_commit();
    database.hold_from(None);
    database.begin_replayed_commit();
    if database.finish_replay()? {
        opened_at = database.end_replayed_commit(id, true);
    }
    Ok((id, opened_at))
}

/// Reads the schema. Returns an empty database, its id, and the end of the record.
fn load_schema<F: File>(reader: &mut Reader<F>, make: Make<'_>) -> Result<(Database, Uuid, u64), Error> {
    let record: Record = match reader.header()? {
        Some(record) => record,
        None => return Err(Error::syntax_error_anywhere("unexpected end of file reading schema")),
    };
    if !reader.is_small(&record) {
        reader.verify(&record)?;
        return Err(Error::resources_exhausted(format!("a schema of {} bytes is too large", record.length)));
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
