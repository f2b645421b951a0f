//! Applies the records of a log to a database.
//!
//! ```text
//!   small record ──> PlainRecord ──> staged rows ──────────────────> database
//!                └─> (not plain) ──> AnyRecord ──> staged rows ────────^
//!   large record ──> checksum, then rows as they come (LargeRecord) ───'
//! ```
//! Each record is a transaction. One that is invalid (a table or column that does not exist, a value of the wrong type,
//! a deleted row that did not exist), or leaves behind what no transaction may (a dangling reference, equal rows in a
//! declared index), is reported and skipped, as the stock server does. If it fits the reader's buffer it is parsed as a
//! whole before anything of it is applied, and undone if it may not stay. A larger one is applied row by row; on
//! failure the caller starts over with a new database and skips it then.

mod any_record;
mod large_record;
mod plain_record;
mod plain_row;
mod row_parts;

use super::note::{Level, Note};
use super::plain;
use super::reader::{Reader, Record};
use super::transaction_id;
use crate::column_type::ColumnType;
use crate::database::{Database, ReplayError, ReplayedRow};
use crate::error::Error;
use crate::schema::{DatabaseSchema, TableId, TableSchema};
use crate::uuid::Uuid;
use journal::File;
use large_record::Streamed;
use plain_row::ColumnOrder;
use row_parts::RowParts;
use std::ops::Range;
use std::sync::Arc;
use wire::json::{Kind, Scanner, validate};

/// Why a record was not applied.
pub(super) enum Failure {
    /// It is not part of the database; nothing of it was applied.
    Rejected(Note),
    /// It is not part of the database, but some of it was applied.
    Halfway(Note),
    /// The log is damaged here: this record and those that follow are not part of the database.
    Damaged(Error),
    /// As [`Failure::Damaged`], but some of the record was applied.
    DamagedHalfway(Error),
    /// The database cannot be loaded.
    Fatal(Error),
}

impl Failure {
    /// An invalid record, of which some was applied.
    fn senseless(error: &Error) -> Self {
        Self::Halfway(senseless(error))
    }
}

/// An invalid record.
fn senseless(error: &Error) -> Note {
    Note::new(Level::Error, "ovsdb_server", error.to_string())
}

/// A record that leaves behind what no transaction may.
fn violates(error: &Error) -> Note {
    Note::new(Level::Info, "ovsdb_server", error.to_string())
}

/// Tables of logs from this length on are presized according to the beginning of the log: after this fraction of it.
const FORESEEN_BYTES_MIN: u64 = 1 << 20;
const FORESEEN_PART: u64 = 16;
/// How often, evenly spread over the log, the size is checked again.
const LOOKS: u64 = 64;

/// What a record does to a row.
struct Staged {
    table: TableId,
    uuid: Uuid,
    /// Where its cells are in `Replay::cells`; `None` if it is deleted.
    cells: Option<Range<usize>>,
}

/// The work space of a replay.
pub(super) struct Replay {
    schema: Arc<DatabaseSchema>,
    /// For each column that may have several elements: its type with any number of elements.
    differences: Vec<Vec<Option<ColumnType>>>,
    /// Of each table.
    orders: Vec<ColumnOrder>,
    scanner: Scanner,
    parts: RowParts,
    cells: Vec<u8>,
    staged: Vec<Staged>,
    /// Of a large record.
    streamed: Vec<Streamed>,
    in_slice: usize,
    /// Rows of the record so far that the database must check at the end.
    noted: usize,
    /// Whether rows are assumed to be new until one is not.
    are_new: bool,
    /// The id of the last transaction.
    id: Uuid,
    /// Records so far, without the schema.
    records: u64,
    /// Where in the log the tables' size is checked next.
    look_at: u64,
}

impl Replay {
    /// `id` is that of the empty database.
    pub(super) fn new(schema: Arc<DatabaseSchema>, id: Uuid) -> Self {
        let transient = |table: &TableSchema| {
            table
                .columns()
                .map(|(_, column)| column.kind.is_composite().then(|| column.kind.transient()))
                .collect()
        };
        let differences = schema.tables().map(|(_, table)| transient(table)).collect();
        let orders = schema.tables().map(|_| ColumnOrder::default()).collect();
        Self {
            schema,
            differences,
            orders,
            scanner: plain::scanner(),
            parts: RowParts::default(),
            cells: Vec::new(),
            staged: Vec::new(),
            streamed: Vec::new(),
            in_slice: 0,
            noted: 0,
            are_new: true,
            id,
            records: 0,
            look_at: 0,
        }
    }

    /// The id of the last transaction.
    pub(super) fn id(&self) -> Uuid {
        self.id
    }

    /// Applies the record whose header was just read.
    pub(super) fn apply<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        database: &mut Database,
    ) -> Result<(), Failure> {
        if reader.is_small(record) {
            self.apply_small(reader, record, database)?;
        } else {
            self.apply_large(reader, record, database)?;
        }
        self.foresee(reader, database);
        Ok(())
    }

    /// Makes room for the rows that the rest of the log will add if it is like the part read so far.
    fn foresee<F: File>(&mut self, reader: &Reader<F>, database: &mut Database) {
        let position = reader.position();
        if position < self.look_at {
            return;
        }
        let length = reader.length();
        if length < FORESEEN_BYTES_MIN {
            self.look_at = u64::MAX;
            return;
        }
        self.look_at = position + length / LOOKS;
        if position < length / FORESEEN_PART {
            return;
        }
        for (table, _) in self.schema.tables() {
            let rows = database.row_count(table) as u128 * u128::from(length) / u128::from(position.max(1));
            database.expect_rows(table, usize::try_from(rows).unwrap_or(usize::MAX));
        }
    }

    /// Records so far, without the schema.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Counts a record without applying it.
    pub(super) fn skip(&mut self, record: &Record) {
        self.id = transaction_id::successor(self.id, &record.checksum);
        self.records += 1;
    }

    /// Counts a record that is applied. Returns true if clients may be told of it as a change.
    fn count(&mut self, record: &Record, comment: Option<&str>) -> bool {
        let carried = comment.filter(|_| self.records == 0).and_then(transaction_id::of_comment);
        self.id = carried.unwrap_or_else(|| transaction_id::successor(self.id, &record.checksum));
        self.records += 1;
        carried.is_none()
    }

    fn end_commit(&self, database: &mut Database, history: bool) {
        database.end_replayed_commit(self.id, history);
        if !history {
            // The state is found by its id only if a commit that is kept has it.
            database.begin_replayed_commit();
            database.end_replayed_commit(self.id, true);
        }
    }

    fn apply_small<F: File>(
        &mut self,
        reader: &mut Reader<F>,
        record: &Record,
        database: &mut Database,
    ) -> Result<(), Failure> {
        let text = match reader.body(record) {
            Ok(text) => text,
            Err(error) => return Err(Failure::Damaged(error)),
        };
        if let Some(comment) = self.stage_plain(text, database) {
            return self.apply_staged(record, comment.as_deref(), database);
        }
        self.scanner = plain::scanner();
        let value = match validate(text) {
            Ok(value) if value.kind() == Kind::Object => value,
            Ok(_) => return Err(Failure::Damaged(reader.not_an_object(record))),
            Err(error) => {
                let error = error.to_string();
                return Err(Failure::Damaged(reader.not_json(record, &error)));
            }
        };
        let comment = match self.stage(value, database) {
            Ok(comment) => comment,
            Err(error) => {
                self.skip(record);
                return Err(Failure::Rejected(senseless(&error)));
            }
        };
        self.apply_staged(record, comment.as_deref(), database)
    }

    fn apply_staged(
        &mut self,
        record: &Record,
        comment: Option<&str>,
        database: &mut Database,
    ) -> Result<(), Failure> {
        database.begin_replayed_commit();
        for staged in &self.staged {
            let row = match &staged.cells {
                Some(range) => ReplayedRow::Cells(self.cells.get(range.clone()).unwrap_or_default()),
                None => ReplayedRow::Delete,
            };
            database
                .apply_replayed(staged.table, &staged.uuid, row)
                .map_err(|error| Failure::Fatal(replay_error(error, &staged.uuid)))?;
        }
        if let Err(error) = database.settle_replayed_commit() {
            self.skip(record);
            return Err(match error {
                ReplayError::Violation(error) => Failure::Rejected(violates(&error)),
                error => Failure::Fatal(error.into()),
            });
        }
        let history = self.count(record, comment);
        self.end_commit(database, history);
        Ok(())
    }
}

#[cold]
fn no_such_row(uuid: &Uuid) -> Error {
    Error::syntax_error_anywhere(format!("transaction deletes row {uuid} that does not exist"))
}

#[cold]
fn replay_error(error: ReplayError, uuid: &Uuid) -> Error {
    match error {
        ReplayError::NoSuchRow => no_such_row(uuid),
        error => error.into(),
    }
}
