//! Transactions: the operations of one `transact`, executed in place and committed or undone.
//!
//! ```text
//!   operations ──> Operation (members found, complaints made) ──> insert, select, update, ... on the tables as they are now
//!                         │ replaced records                           │ results, appended to the reply
//!                         v                                            v
//!                     entries ──> commit: what really changed, counts and garbage, limits, weak references, indexes ──> history
//! ```
//! A record of the version that the commit will have was written by this transaction: so the first change of a row is told from
//! later ones without a table. When anything fails, the entries' old records go back to where they were.

mod commit;
mod complaint;
mod insert;
mod modify;
mod names;
mod operation;
mod parsed_row;
mod select;
mod wait;
mod weak;

pub(crate) use weak::without_dangling;

use memory::{Record, Records};
use std::collections::HashMap;
use std::sync::Arc;

use crate::condition::Condition;
use crate::database::Database;
use crate::error::Error;
use crate::history::{CommitId, Entry, Fate};
use crate::row::{self, RowId};
use crate::schema::{ColumnRef, DatabaseSchema, TableId, TableSchema};
use crate::table::Table;
use crate::uuid::Uuid;
use names::Names;
use operation::{Kind, Operation};
use parsed_row::ParsedRow;
use wire::json::Value;

/// Who asks, and what about.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// Whether the session owns the lock of that name.
    pub owns_lock: &'a dyn Fn(&str) -> bool,
    /// Time since the transaction was first tried, in milliseconds.
    pub elapsed_ms: u64,
    /// Whether the session may not write.
    pub read_only: bool,
    /// Whether a database whose name starts with `_` may be written.
    pub internal: bool,
    /// Whether a `wait` that is not satisfied may wait; else it is an error.
    pub can_wait: bool,
    /// The session's role.
    pub role: &'a str,
    /// The session's identity.
    pub id: &'a str,
}

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is over and its results are appended.
    Finished {
        /// The commit, where it changed anything.
        committed: Option<CommitId>,
        /// Whether it asked to be on disk before it is answered.
        durable: bool,
    },
    /// A `wait` is not satisfied. Nothing changed and nothing is appended.
    Waiting {
        /// When to give up, counted from when it was first tried.
        timeout_ms: Option<u64>,
    },
}

/// For a transaction of so many operations room is made beforehand.
const LARGE_OPERATIONS: usize = 1000;
/// The result of an insert: `{"uuid":["uuid","..."]},`
const INSERT_RESULT_BYTES: usize = 58;
/// Buffers above this are given back after a transaction.
const SCRATCH_BYTES_MAX: usize = 256 << 10;

/// Buffers that outlive a transaction.
#[derive(Default)]
pub(crate) struct Scratch {
    pub entries: Vec<Entry>,
    pub row: Vec<u8>,
    /// Tables in the order in which the transaction first wrote to them.
    touched: Vec<TableId>,
    parsed: ParsedRow,
    condition: Condition,
}

impl Scratch {
    /// Keeps a record that was replaced or taken out, unless it was of the same transaction.
    pub fn note_replaced(
        &mut self,
        records: &mut Records,
        table: TableId,
        row: RowId,
        version: u64,
        old: Record,
        fate: Fate,
    ) {
        if row::version_of(old.bytes()) == version {
            records.free(old);
        } else {
            self.entries.push(Entry { old: Some(old), row, table, fate });
        }
    }

    fn give_back(&mut self) {
        if self.entries.capacity() * size_of::<Entry>() > SCRATCH_BYTES_MAX {
            self.entries = Vec::new();
        }
        if self.row.capacity() > SCRATCH_BYTES_MAX {
            self.row = Vec::new();
        }
        self.parsed.give_back(SCRATCH_BYTES_MAX);
        if self.condition.len() > 100 {
            self.condition = Condition::default();
        }
    }
}

/// Executes operations and commits, or leaves everything as it was. Appends the array of results to `reply`.
pub fn execute(
    database: &mut Database,
    operations: &[Value<'_>],
    context: &Context<'_>,
    random: &mut dyn FnMut() -> Uuid,
    reply: &mut Vec<u8>,
) -> Outcome {
    let start = reply.len();
    let is_large = operations.len() >= LARGE_OPERATIONS;
    if is_large {
        reply.reserve(operations.len() * INSERT_RESULT_BYTES);
        database.tables.iter_mut().for_each(Table::grow);
    }
    let schema = Arc::clone(&database.schema);
    let mut transaction = Transaction {
        version: database.history.last().0 + 1,
        database,
        schema: &schema,
        context,
        names: Names::new(random),
        deleted: None,
        adjustments: Vec::new(),
        comment: String::new(),
        durable: false,
        timeout_ms: None,
    };
    let outcome = transaction.run(operations, reply);
    transaction.database.scratch.touched.clear();
    transaction.database.scratch.give_back();
    if is_large {
        let Database { tables, records, .. } = &mut *transaction.database;
        tables.iter_mut().for_each(|table| table.fit(records));
    }
    if matches!(outcome, Outcome::Waiting { .. }) {
        reply.truncate(start);
    }
    outcome
}

/// A transaction being executed.
struct Transaction<'a, 'r> {
    database: &'a mut Database,
    schema: &'a DatabaseSchema,
    context: &'a Context<'a>,
    /// The number of the commit that it will be.
    version: u64,
    names: Names<'r>,
    /// Rows that existed before and were deleted, once somebody has asked.
    deleted: Option<HashMap<(TableId, Uuid), RowId>>,
    /// What commit changed in the counts of references so far.
    adjustments: Vec<(TableId, RowId, i32)>,
    comment: String,
    durable: bool,
    timeout_ms: Option<u64>,
}

/// Why an operation did not succeed.
enum Stop {
    Error(Error),
    /// A `wait` is not satisfied.
    Wait,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Transaction<'_, '_> {
    fn run(&mut self, operations: &[Value<'_>], reply: &mut Vec<u8>) -> Outcome {
        reply.push(b'[');
        for (place, operation) in operations.iter().enumerate() {
            if place > 0 {
                reply.push(b',');
            }
            let start = reply.len();
            let error = match self.execute(*operation, place + 1, operations.len(), reply) {
                Ok(()) => continue,
                Err(Stop::Error(error)) => error,
                Err(Stop::Wait) if self.context.can_wait => {
                    self.abort();
                    return Outcome::Waiting { timeout_ms: self.timeout_ms };
                }
                Err(Stop::Wait) => Error::new("not supported", "triggers not supported"),
            };
            self.abort();
            reply.truncate(start);
            error.write_json(reply);
            for _ in place + 1..operations.len() {
                reply.extend_from_slice(b",null");
            }
            reply.push(b']');
            return Outcome::Finished { committed: None, durable: false };
        }
        let committed = match self.commit() {
            Ok(committed) => committed,
            Err(error) => {
                self.abort();
                if !operations.is_empty() {
                    reply.push(b',');
                }
                error.write_json(reply);
                None
            }
        };
        reply.push(b']');
        Outcome::Finished { committed, durable: self.durable }
    }

    fn execute(
        &mut self,
        value: Value<'_>,
        number: usize,
        of: usize,
        reply: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let operation = Operation::parse(self.schema, value, number, of)?;
        match operation.kind {
            Kind::Insert => self.insert(&operation, reply)?,
            Kind::Select => self.select(&operation, reply)?,
            Kind::Update => self.update(&operation, reply)?,
            Kind::Mutate => self.mutate(&operation, reply)?,
            Kind::Delete => self.delete(&operation, reply)?,
            Kind::Wait => self.wait(&operation)?,
            Kind::Commit => self.durable |= operation.durable(),
            Kind::Abort => return Err(Error::new("aborted", "aborted by request").into()),
            Kind::Comment => {
                if !self.comment.is_empty() {
                    self.comment.push('\n');
                }
                self.comment.push_str(&operation.comment());
            }
            Kind::Assert => {
                let lock = operation.lock();
                if !(self.context.owns_lock)(&lock) {
                    let details = format!("Asserted lock {lock} not held.");
                    return Err(Error::new("not owner", details).into());
                }
            }
        }
        if !operation.kind.is_read_only() {
            self.check_may_write(operation.kind)?;
        }
        if matches!(operation.kind, Kind::Wait | Kind::Commit | Kind::Comment | Kind::Assert) {
            reply.extend_from_slice(b"{}");
        }
        Ok(())
    }

    #[inline]
    fn check_may_write(&self, kind: Kind) -> Result<(), Error> {
        if self.context.read_only {
            let details =
                format!("{} operation not allowed when database server is in read only mode", kind.name());
            return Err(Error::new("not allowed", details));
        }
        if !self.context.internal && self.schema.name.starts_with('_') {
            let details = format!(
                "{} operation not allowed on table in reserved database {}",
                kind.name(),
                self.schema.name
            );
            return Err(Error::new("not allowed", details));
        }
        Ok(())
    }

    /// Reads `where`. Give the condition back with [`Self::put_condition`].
    fn take_condition(&mut self, schema: &TableSchema, json: Value<'_>) -> Result<Condition, Error> {
        let mut condition = std::mem::take(&mut self.database.scratch.condition);
        condition.read(schema, json, &mut |name| self.names.resolve(name))?;
        Ok(condition)
    }

    fn put_condition(&mut self, condition: Condition) {
        self.database.scratch.condition = condition;
    }

    /// The rows among which are all that the condition wants: those, or `None` for the whole table.
    fn candidates(&mut self, table: TableId, schema: &TableSchema, condition: &Condition) -> Candidates {
        let Database { tables, records, .. } = &mut *self.database;
        let Some(table) = tables.get_mut(table.index()) else { return Candidates::One(None) };
        for (column, value) in condition.equalities() {
            match column {
                ColumnRef::Uuid => {
                    let uuid = value.try_into().map_or(Uuid::zero(), Uuid);
                    return Candidates::One(table.find(&uuid));
                }
                ColumnRef::Version => {}
                ColumnRef::Column(column) => {
                    if let Some(rows) = table.search(schema, records, column, value) {
                        return Candidates::Some(rows.into_iter());
                    }
                    break;
                }
            }
        }
        Candidates::All(0..table.capacity())
    }

    /// Whether there is such a row and the condition holds for it.
    #[inline]
    fn matches(&self, table: TableId, row: RowId, condition: &Condition) -> bool {
        self.database.row(table, row).is_some_and(|row| condition.evaluate(row))
    }

    /// Notes that a table is written to, even if nothing changes.
    #[inline]
    fn touch(&mut self, table: TableId) {
        let touched = &mut self.database.scratch.touched;
        if touched.last() != Some(&table) && !touched.contains(&table) {
            touched.push(table);
        }
    }

    /// Inserts the row whose bytes are in the scratch buffer.
    fn insert_row(&mut self, table: TableId, schema: &TableSchema) -> Result<RowId, Error> {
        self.touch(table);
        self.database.check_budget()?;
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let (Some(this), Some(record)) = (tables.get_mut(table.index()), records.store(&scratch.row)) else {
            return Err(crate::index::no_memory());
        };
        let row = this.insert(schema, records, record)?;
        scratch.entries.push(Entry { old: None, row, table, fate: Fate::Inserted });
        Ok(row)
    }

    /// Replaces a row by the one whose bytes are in the scratch buffer.
    fn replace_row(&mut self, table: TableId, schema: &TableSchema, row: RowId) -> Result<(), Error> {
        self.touch(table);
        self.database.check_budget()?;
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let (Some(this), Some(record)) = (tables.get_mut(table.index()), records.store(&scratch.row)) else {
            return Err(crate::index::no_memory());
        };
        if let Some(old) = this.replace(schema, records, row, record) {
            scratch.note_replaced(records, table, row, self.version, old, Fate::Changed);
        }
        Ok(())
    }

    /// Takes a row out.
    fn delete_row(&mut self, table: TableId, schema: &TableSchema, row: RowId) {
        self.touch(table);
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let Some(this) = tables.get_mut(table.index()) else { return };
        if let Some(old) = this.take(schema, records, row) {
            if let Some(deleted) = &mut self.deleted
                && row::version_of(old.bytes()) != self.version
            {
                deleted.insert((table, row::uuid_of(old.bytes())), row);
            } else {
                // A row that was changed before it was deleted existed before, too: only the entries know.
                self.deleted = None;
            }
            scratch.note_replaced(records, table, row, self.version, old, Fate::Deleted);
        }
    }

    /// The row of that UUID that existed before the transaction and was deleted by it.
    fn find_deleted(&mut self, table: TableId, uuid: Uuid) -> Option<RowId> {
        let Database { tables, scratch, .. } = &*self.database;
        let deleted = self.deleted.get_or_insert_with(|| {
            let entries = scratch.entries.iter();
            entries
                .filter(|entry| {
                    tables.get(entry.table.index()).is_some_and(|table| table.record(entry.row).is_none())
                })
                .filter_map(|entry| {
                    Some(((entry.table, row::uuid_of(entry.old.as_ref()?.bytes())), entry.row))
                })
                .collect()
        });
        deleted.get(&(table, uuid)).copied()
    }

    /// Puts everything back as it was.
    fn abort(&mut self) {
        for (table, row, by) in self.adjustments.drain(..).rev() {
            if let Some(table) = self.database.tables.get_mut(table.index()) {
                table.adjust_count(row, -by);
            }
        }
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let mut settle = Vec::new();
        for Entry { old, row, table: id, .. } in scratch.entries.drain(..).rev() {
            let (Some(table), Some(schema)) = (tables.get_mut(id.index()), self.schema.table(id)) else {
                continue;
            };
            let existed = old.is_some();
            let new = match old {
                Some(old) if table.record(row).is_some() => table.replace(schema, records, row, old),
                Some(old) => {
                    // Its place in the index was freed when it was taken out, so there is memory for it.
                    let _ = table.restore(schema, records, row, old);
                    None
                }
                None => {
                    let new = table.take(schema, records, row);
                    table.release(row);
                    new
                }
            };
            if let Some(new) = new {
                records.free(new);
            }
            if existed && !schema.indexes.is_empty() {
                settle.push((id, row));
            }
        }
        for (id, row) in settle {
            if let (Some(table), Some(schema)) = (tables.get_mut(id.index()), self.schema.table(id)) {
                let _ = table.settle_unique(schema, records, row);
            }
        }
    }
}

/// Rows to look at.
enum Candidates {
    One(Option<RowId>),
    Some(std::vec::IntoIter<RowId>),
    All(std::ops::Range<u32>),
}

impl Iterator for Candidates {
    type Item = RowId;

    #[inline]
    fn next(&mut self) -> Option<RowId> {
        match self {
            Self::One(row) => row.take(),
            Self::Some(rows) => rows.next(),
            Self::All(rows) => rows.next().map(RowId),
        }
    }
}
