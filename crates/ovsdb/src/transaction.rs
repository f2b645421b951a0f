//! Transactions: the operations of one `transact`, executed in place and committed or undone.
//!
//! ```text
//!   operations ──> Operation (members found, errors reported) ──> insert, select, update, ... on the tables
//!                         │ replaced records                           │ results, appended to the reply
//!                         v                                            v
//!                     entries ──> commit: may they stay (crate::changes)? ──> history
//! ```
//! If anything fails, the entries' old records are restored.

mod insert;
mod modify;
mod names;
mod operation;
mod parsed_row;
mod permission;
mod select;
mod shown;
mod wait;

use memory::{Record, Records};
use std::sync::Arc;

use crate::changes::Changes;
use crate::condition::Condition;
use crate::database::Database;
use crate::error::Error;
use crate::history::{CommitId, Entry, Fate};
use crate::row::{self, RowId};
use crate::schema::{ColumnRef, DatabaseSchema, TableId, TableSchema};
use crate::uuid::Uuid;
use names::Names;
use operation::{Kind, Operation};
use parsed_row::ParsedRow;
use shown::Shown;
use wire::json::Value;

/// Who executes a transaction, and with which rights.
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
    /// Whether an unsatisfied `wait` may wait; otherwise it is an error.
    pub can_wait: bool,
    /// The session's role; empty: none.
    pub role: &'a str,
    /// The name in the session's certificate.
    pub client: Option<&'a str>,
    /// Longest array of results; a transaction with a longer one fails.
    pub reply_bytes_max: usize,
    /// Told how many bytes a long array is about to take while it is built.
    pub reply_grows: &'a dyn Fn(usize),
}

impl Context<'_> {
    /// The server itself, without a session: no locks, no waiting.
    pub fn own() -> Self {
        Self {
            owns_lock: &|_| false,
            elapsed_ms: 0,
            read_only: false,
            internal: false,
            can_wait: false,
            role: "",
            client: None,
            reply_bytes_max: usize::MAX,
            reply_grows: &|_| {},
        }
    }
}

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is finished and its results are appended.
    Finished {
        /// The commit, if it changed anything.
        committed: Option<CommitId>,
        /// Whether it must be on disk before it is answered.
        durable: bool,
    },
    /// A `wait` is not satisfied. Nothing has changed and nothing is appended.
    Waiting {
        /// When to give up, counted from the first attempt.
        timeout_ms: Option<u64>,
        /// The operations up to this `wait`.
        tried: usize,
    },
}

/// For transactions with this many operations room is made in advance.
const LARGE_OPERATIONS: usize = 1000;
/// The result of an insert: `{"uuid":["uuid","..."]},`
const INSERT_RESULT_BYTES: usize = 58;
/// An array of results is looked at each time that it has grown by this much,
const REPLY_STEP_BYTES: usize = 1 << 20;
/// and has room for so much more reserved when it needs any.
const REPLY_RESERVED_BYTES: usize = 64 << 20;
/// Buffers larger than this are freed after a transaction.
const SCRATCH_BYTES_MAX: usize = 256 << 10;

/// Buffers that outlive a transaction.
#[derive(Default)]
pub(crate) struct Scratch {
    pub entries: Vec<Entry>,
    pub row: Vec<u8>,
    /// Tables in the order in which the transaction first wrote to them.
    pub touched: Vec<TableId>,
    parsed: ParsedRow,
    condition: Condition,
}

impl Scratch {
    /// Keeps a record that was replaced or removed, unless the same transaction wrote it.
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

/// Executes operations and commits, or leaves everything unchanged. Appends the array of results to `reply`.
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
        database.tables.iter_mut().for_each(|table| table.may_grow(operations.len()));
    }
    let schema = Arc::clone(&database.schema);
    let mut transaction = Transaction {
        shown: Shown::new(database.history.last().0 + 1),
        changes: Changes::new(database, &schema),
        context,
        names: Names::new(random),
        comment: String::new(),
        durable: false,
        timeout_ms: None,
        bound: Bound {
            end: start.saturating_add(context.reply_bytes_max),
            next: start.saturating_add(context.reply_bytes_max.min(REPLY_STEP_BYTES)),
            grows: context.reply_grows,
        },
    };
    let outcome = transaction.run(operations, reply);
    transaction.changes.database.scratch.touched.clear();
    transaction.changes.database.scratch.give_back();
    if is_large {
        let Database { tables, records, .. } = &mut *transaction.changes.database;
        tables.iter_mut().for_each(|table| table.fit(records));
    }
    if matches!(outcome, Outcome::Waiting { .. }) {
        reply.truncate(start);
    }
    outcome
}

/// The tables that the first operations of a transaction name.
pub fn tables_of(schema: &DatabaseSchema, operations: &[Value<'_>], count: usize) -> Box<[TableId]> {
    let named = operations.iter().take(count).enumerate().filter_map(|(place, operation)| {
        let operation = Operation::parse(schema, *operation, place + 1, operations.len()).ok()?;
        operation.table().ok().map(|(table, _)| table)
    });
    let mut tables: Vec<TableId> = named.collect();
    tables.sort_unstable();
    tables.dedup();
    tables.into()
}

/// Bounds the results of a transaction while they are built.
struct Bound<'a> {
    /// The longest that their buffer may become.
    end: usize,
    /// The length at which to look again.
    next: usize,
    grows: &'a dyn Fn(usize),
}

impl Bound<'_> {
    /// Checks the length, and makes room for more.
    #[inline]
    fn check(&mut self, reply: &mut Vec<u8>) -> Result<(), Error> {
        if reply.len() < self.next { Ok(()) } else { self.take_more(reply) }
    }

    #[cold]
    fn take_more(&mut self, reply: &mut Vec<u8>) -> Result<(), Error> {
        if reply.len() > self.end {
            return Err(Error::resources_exhausted("the results of this transaction are too long"));
        }
        self.next = self.end.min(reply.len() + REPLY_STEP_BYTES) + 1;
        (self.grows)(reply.len() + REPLY_STEP_BYTES);
        let most = (self.end - reply.len()).saturating_add(REPLY_STEP_BYTES);
        // Of what is reserved, only what is written takes memory: that is less than old and new buffers of doublings.
        if reply.capacity() - reply.len() < most.min(REPLY_STEP_BYTES) {
            let _ = reply.try_reserve_exact(most.min(REPLY_RESERVED_BYTES));
        }
        Ok(())
    }
}

/// A transaction being executed.
struct Transaction<'a, 'r> {
    changes: Changes<'a>,
    context: &'a Context<'a>,
    shown: Shown,
    names: Names<'r>,
    comment: String,
    durable: bool,
    timeout_ms: Option<u64>,
    bound: Bound<'a>,
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
                Ok(()) => match self.bound.check(reply) {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Err(Stop::Error(error)) => error,
                Err(Stop::Wait) if self.context.can_wait => {
                    self.changes.abort();
                    return Outcome::Waiting { timeout_ms: self.timeout_ms, tried: place + 1 };
                }
                Err(Stop::Wait) => Error::new("not supported", "triggers not supported"),
            };
            self.changes.abort();
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
                self.changes.abort();
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
        let operation = Operation::parse(self.changes.schema, value, number, of)?;
        if let Some(damage) = self.changes.database.damage().filter(|_| !operation.kind.is_read_only()) {
            return Err(damage.clone().into());
        }
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
        if !self.context.internal && self.changes.schema.name.starts_with('_') {
            let details = format!(
                "{} operation not allowed on table in reserved database {}",
                kind.name(),
                self.changes.schema.name
            );
            return Err(Error::new("not allowed", details));
        }
        Ok(())
    }

    /// Parses `where`. Give the condition back with [`Self::put_condition`].
    fn take_condition(&mut self, schema: &TableSchema, json: Value<'_>) -> Result<Condition, Error> {
        let mut condition = std::mem::take(&mut self.changes.database.scratch.condition);
        condition.read(schema, json, &mut |name| self.names.resolve(name))?;
        Ok(condition)
    }

    fn put_condition(&mut self, condition: Condition) {
        self.changes.database.scratch.condition = condition;
    }

    /// Rows that include all that the condition selects, or the whole table.
    fn candidates(&mut self, table: TableId, schema: &TableSchema, condition: &Condition) -> Candidates {
        let Database { tables, records, .. } = &mut *self.changes.database;
        let table = &mut tables[table];
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

    /// Returns true if the row exists and the condition holds for it.
    #[inline]
    fn matches(&self, table: TableId, row: RowId, condition: &Condition) -> bool {
        let this = self.changes.database.row(table, row);
        this.is_some_and(|this| condition.evaluate(self.shown.row(table, row, this)))
    }

    /// Inserts the row whose bytes are in the scratch buffer.
    fn insert_row(&mut self, table: TableId, schema: &TableSchema) -> Result<RowId, Error> {
        let database = &mut *self.changes.database;
        database.admit(database.scratch.row.len(), 0)?;
        self.changes.insert_row(table, schema)
    }

    /// Replaces a row with the one whose bytes are in the scratch buffer.
    fn replace_row(&mut self, table: TableId, schema: &TableSchema, row: RowId) -> Result<(), Error> {
        let database = &mut *self.changes.database;
        let replaced = database.tables[table].bytes(row).map_or(0, <[u8]>::len);
        database.admit(database.scratch.row.len(), replaced)?;
        self.changes.replace_row(table, schema, row)
    }

    /// Commits; `None` if nothing has changed. After an error the caller aborts.
    fn commit(&mut self) -> Result<Option<CommitId>, Error> {
        self.changes.settle()?;
        let database = &mut *self.changes.database;
        if database.scratch.entries.is_empty() {
            return Ok(None);
        }
        let comment = (!self.comment.is_empty()).then(|| std::mem::take(&mut self.comment).into());
        let committed = database.history.add(&mut database.scratch.entries, comment);
        database.trim_history();
        Ok(Some(committed))
    }
}

/// Rows to examine.
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
