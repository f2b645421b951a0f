//! Reading the file when the database is opened, in step with the log.
//!
//! ```text
//! log                   snapshot c7      c8           c9                   c10
//! file   c5.t1  c6.t2      c7.t2                      c9.t3  c9.t4
//! ids                      c7.t2        c8.t2     c9.t2 (nobody's)  c9.t3  c9.t4   c10.t4
//! ```
//! The first record whose chain the log contains shows where the two meet: the file's earlier records happened before
//! that. From there on, records are applied after the commit of the log that has their chain, as commits of their own.
//! If a row that has values does not exist, the two do not belong together, and no tags are assigned from there on.

use super::super::reader::{BUFFER_BYTES, Reader};
use super::super::transaction_id;
use super::is_ephemeral;
use crate::cell::{self, Checks, no_names};
use crate::database::{Database, ReplayedRow};
use crate::error::Error;
use crate::history::CommitId;
use crate::row::{Row, RowId};
use crate::schema::{ColumnId, ColumnRef, TableId, TableSchema};
use crate::uuid::Uuid;
use journal::{Disk, File, Open};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use wire::json::{Kind, Value, validate};

/// Longer files are not read: the whole file would be held in memory.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A record of the file.
pub(in crate::file) struct Remembered {
    id: Uuid,
    /// A JSON object.
    text: Vec<u8>,
}

/// Reads the file up to its end or the first invalid record.
pub(in crate::file) fn read<D: Disk>(disk: &D, path: &Path) -> Vec<Remembered> {
    let mut records = Vec::new();
    let Ok(file) = disk.open(path, Open::Read) else { return records };
    let Some(length) = file.length().ok().filter(|length| *length <= FILE_BYTES_MAX) else { return records };
    let capacity = BUFFER_BYTES.max(usize::try_from(length).unwrap_or(BUFFER_BYTES));
    let mut reader = Reader::new(file, &path.display().to_string(), capacity);
    while let Ok(Some(header)) = reader.header() {
        if !reader.is_small(&header) {
            break;
        }
        let Ok(text) = reader.body(&header) else { break };
        let value = validate(text).ok().filter(|value| value.kind() == Kind::Object);
        let id = value.and_then(|value| Uuid::parse(&value.member("_id")?.as_string()?));
        let Some(id) = id.filter(|id| transaction_id::is_tagged(*id)) else { break };
        records.push(Remembered { id, text: text.to_vec() });
    }
    records
}

/// How the log and the file relate.
#[derive(Clone, Copy)]
enum State {
    /// They have not met.
    Apart,
    /// They are in step; the tag of this id is valid.
    InStep(Uuid),
    /// They do not belong together.
    Lost,
}

/// Applies the records of the file to a database that is filled from its log.
pub(in crate::file) struct Recovery<'a> {
    records: &'a [Remembered],
    /// The first record of each chain.
    places: BTreeMap<Uuid, usize>,
    next: usize,
    state: State,
    /// Rows that have values in the file, in these columns, but do not exist.
    missing: BTreeMap<(TableId, Uuid), BTreeSet<ColumnId>>,
    cells: Vec<u8>,
}

impl<'a> Recovery<'a> {
    pub fn new(records: &'a [Remembered]) -> Self {
        let mut places = BTreeMap::new();
        for (place, record) in records.iter().enumerate() {
            places.entry(transaction_id::logged(record.id)).or_insert(place);
        }
        Self { records, places, next: 0, state: State::Apart, missing: BTreeMap::new(), cells: Vec::new() }
    }

    /// The log has just given the database the state of this chain. Fails if there is no memory.
    pub fn follow(&mut self, database: &mut Database, chain: Uuid) -> Result<(), Error> {
        let first = database.commit_number();
        let place = self.places.get(&chain).copied();
        match (self.state, place) {
            (State::Lost, _) | (State::Apart, None) => return Ok(()),
            (State::Apart, Some(place)) => self.apply(database, chain, place.max(1))?,
            // The log no longer has what happened between the empty database and the snapshot.
            (State::InStep(_), Some(place)) if place > self.next => self.apply(database, chain, place)?,
            (State::InStep(tag), _) => {
                database.set_transaction_id(first, transaction_id::with_tag_of(chain, tag));
            }
        }
        let is_here = |record: &Remembered| transaction_id::logged(record.id) == chain;
        while matches!(self.state, State::InStep(_)) && self.records.get(self.next).is_some_and(is_here) {
            self.apply(database, chain, self.next + 1)?;
        }
        if !self.missing.is_empty() {
            self.state = State::Lost;
        }
        if matches!(self.state, State::Lost) {
            for commit in first.0..=database.commit_number().0 {
                database.set_transaction_id(CommitId(commit), chain);
            }
        }
        Ok(())
    }

    /// Returns true if the database has received any values.
    pub fn has_applied(&self) -> bool {
        self.next > 0
    }

    /// Applies the records before that place as one commit.
    fn apply(&mut self, database: &mut Database, chain: Uuid, end: usize) -> Result<(), Error> {
        let records = self.records.get(self.next..end).unwrap_or_default();
        self.next = end;
        let Some(tag) = records.last().map(|record| record.id) else { return Ok(()) };
        database.begin_replayed_commit();
        self.state = State::InStep(tag);
        for record in records {
            if !self.apply_record(database, record)? {
                self.state = State::Lost;
                break;
            }
        }
        database.end_replayed_commit(transaction_id::with_tag_of(chain, tag), true);
        Ok(())
    }

    /// Returns true if the record is valid.
    fn apply_record(&mut self, database: &mut Database, record: &Remembered) -> Result<bool, Error> {
        let schema = database.schema().clone();
        let record = Value::of_checked(&record.text);
        for list in ["gone", "changed"] {
            for element in record.member(list).into_iter().flat_map(Value::elements) {
                let mut parts = element.elements();
                let table = parts.next().and_then(Value::as_string);
                let table = table.and_then(|name| schema.find_table(&name));
                let uuid = parts.next().and_then(Value::as_string).and_then(|uuid| Uuid::parse(&uuid));
                let (Some((id, table)), Some(uuid)) = (table, uuid) else { return Ok(false) };
                let columns = parts.next();
                self.cells.clear();
                let Some((_, row)) = database.row_by_uuid(id, &uuid) else {
                    if self.miss(id, table, uuid, columns).is_none() {
                        return Ok(false);
                    }
                    continue;
                };
                if assemble(table, row, columns, &mut self.cells).is_none() {
                    return Ok(false);
                }
                replace(database, id, &uuid, &self.cells)?;
            }
        }
        Ok(true)
    }

    /// Records the values of a row that does not exist; `None` if they are invalid.
    fn miss(
        &mut self,
        id: TableId,
        table: &TableSchema,
        uuid: Uuid,
        values: Option<Value<'_>>,
    ) -> Option<()> {
        let columns = self.missing.entry((id, uuid)).or_default();
        match values {
            None => columns.clear(),
            Some(values) => {
                for (name, value) in values.members() {
                    let Some(ColumnRef::Column(id)) = table.find_column(&name) else { return None };
                    let column = table.column(id);
                    self.cells.clear();
                    cell::parse(&column.kind, value, &mut no_names, Checks::Nothing, &mut self.cells).ok()?;
                    if self.cells == column.default {
                        columns.remove(&id);
                    } else {
                        columns.insert(id);
                    }
                }
            }
        }
        if columns.is_empty() {
            self.missing.remove(&(id, uuid));
        }
        Some(())
    }
}

/// Appends the cells of a row with other values in some ephemeral columns, or with defaults in all of them if there are
/// no values.
fn assemble(table: &TableSchema, row: Row<'_>, values: Option<Value<'_>>, out: &mut Vec<u8>) -> Option<()> {
    let mut given = BTreeMap::new();
    for (name, value) in values.into_iter().flat_map(Value::members) {
        let Some(ColumnRef::Column(column)) = table.find_column(&name) else { return None };
        given.insert(column, value);
    }
    for ((id, column), cell) in table.columns().zip(row.cells()) {
        match given.remove(&id).filter(|_| column.ephemeral) {
            Some(value) => cell::parse(&column.kind, value, &mut no_names, Checks::Nothing, out).ok()?,
            None if column.ephemeral && values.is_none() => out.extend_from_slice(&column.default),
            None => out.extend_from_slice(cell),
        }
    }
    Some(())
}

/// Resets all ephemeral columns to their defaults, in a commit that has begun.
pub(in crate::file) fn reset(database: &mut Database) -> Result<(), Error> {
    let schema = database.schema().clone();
    let mut cells = Vec::new();
    for (id, table) in schema.tables().filter(|(_, table)| is_ephemeral(table)) {
        for place in (0..database.row_capacity(id)).map(RowId) {
            let Some(row) = database.row(id, place) else { continue };
            let uuid = row.uuid();
            cells.clear();
            if assemble(table, row, None, &mut cells).is_some() && cells != row.packed_cells() {
                replace(database, id, &uuid, &cells)?;
            }
        }
    }
    Ok(())
}

fn replace(database: &mut Database, table: TableId, uuid: &Uuid, cells: &[u8]) -> Result<(), Error> {
    Ok(database.apply_replayed(table, uuid, ReplayedRow::Cells(cells))?)
}
