//! A database: its tables, and what its last commits changed.
//!
//! ```text
//!   Database ── schema
//!            ├─ records   one tenant: rows, old rows, indexes; counted, with a budget
//!            ├─ tables    one per table of the schema: rows in place, as of now
//!            └─ history   old records of the last commits
//! ```
//! One thread owns it. Transactions ([`crate::transaction`]) write in place and are undone when they fail. Commits are
//! numbered from 1; a row's version is the number of the commit that wrote it.

mod replay;
mod settle;
mod undo;

pub use replay::{ReplayError, ReplayedRow};

use memory::tenant::Gauge;
use memory::{Records, Tenant};
use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Error;
use crate::hashing::Hashing;
use crate::history::{Change, CommitId, Entry, History};
use crate::reference::Plan;
use crate::row::{Row, RowId};
use crate::schema::{DatabaseSchema, TableId};
use crate::table::Table;
use crate::transaction::Scratch;
use crate::uuid::Uuid;

/// History that takes more than this, and more than the rows, goes even if it is a single commit.
const HISTORY_REST_BYTES: usize = 1 << 20;

/// How a database is made.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most memory for rows, history and indexes in bytes; [`u64::MAX`] without limit.
    pub budget_bytes: u64,
    /// A random number. `_version`s are made from it, and hashes.
    pub seed: u64,
}

/// What a database takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the rows, as the allocator rounds them.
    pub record_bytes: u64,
    /// Bytes of row arrays and indexes.
    pub index_bytes: u64,
    /// Bytes of what the last commits replaced.
    pub history_bytes: u64,
    /// Number of commits kept.
    pub history_commits: u64,
}

/// A database.
pub struct Database {
    pub(crate) schema: Arc<DatabaseSchema>,
    pub(crate) tables: Vec<Table>,
    pub(crate) records: Records,
    pub(crate) history: History,
    pub(crate) scratch: Scratch,
    budget_bytes: u64,
}

impl Database {
    /// An empty database.
    pub fn new(schema: DatabaseSchema, options: Options) -> Result<Self, Error> {
        let tenant = Tenant::new(1, options.budget_bytes)
            .map_err(|error| Error::resources_exhausted(format!("no memory for a database: {error}")))?;
        let hashing = Hashing::new(options.seed);
        let plans = Plan::of(&schema);
        let tables =
            schema.tables().zip(plans).map(|((_, table), plan)| Table::new(table, plan, hashing)).collect();
        Ok(Self {
            schema: Arc::new(schema),
            tables,
            records: Records::new(tenant),
            history: History::default(),
            scratch: Scratch::default(),
            budget_bytes: options.budget_bytes,
        })
    }

    /// Its schema.
    #[inline]
    pub fn schema(&self) -> &Arc<DatabaseSchema> {
        &self.schema
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.schema.name
    }

    /// The newest commit.
    #[inline]
    pub fn commit_number(&self) -> CommitId {
        self.history.last()
    }

    /// The row of that UUID.
    #[inline]
    pub fn row_by_uuid(&self, table: TableId, uuid: &Uuid) -> Option<(RowId, Row<'_>)> {
        let row = self.tables.get(table.index())?.find(uuid)?;
        Some((row, self.row(table, row)?))
    }

    /// A row.
    #[inline]
    pub fn row(&self, table: TableId, row: RowId) -> Option<Row<'_>> {
        self.tables.get(table.index())?.row(self.schema.table(table)?, row)
    }

    /// The rows of a table, by row id.
    pub fn rows(&self, table: TableId) -> impl Iterator<Item = Row<'_>> {
        self.rows_from(table, RowId(0)).map(|(_, row)| row)
    }

    /// The rows of a table from that row id on.
    pub fn rows_from(&self, table: TableId, start: RowId) -> impl Iterator<Item = (RowId, Row<'_>)> {
        let table = self.tables.get(table.index()).zip(self.schema.table(table));
        table.into_iter().flat_map(move |(table, schema)| table.rows_from(schema, start))
    }

    /// Row ids of a table are below this.
    pub fn row_capacity(&self, table: TableId) -> u32 {
        self.tables.get(table.index()).map_or(0, Table::capacity)
    }

    /// Number of rows of a table.
    pub fn row_count(&self, table: TableId) -> usize {
        self.tables.get(table.index()).map_or(0, Table::len)
    }

    /// What a commit changed, by table and row id. Nothing when it is not kept.
    pub fn changes_of(&self, commit: CommitId) -> impl Iterator<Item = Change<'_>> {
        let is_last = commit == self.history.last();
        self.history.entries(commit).filter_map(move |entry| {
            let new = if is_last {
                self.row(entry.table, entry.row)
            } else {
                self.row_as_of(commit, entry.table, entry.row)
            };
            Change::new(entry.table, entry.row, self.old_row(entry), new)
        })
    }

    /// What changed after a commit, all commits since taken together, by table and row id. The commit must not be older than
    /// [`Self::oldest_kept`].
    pub fn changes_since(&self, after: CommitId) -> impl Iterator<Item = Change<'_>> {
        let mut entries: Vec<&Entry> = self.history.entries_after(after).collect();
        let is_combined = after.0 + 1 < self.history.last().0;
        if is_combined {
            entries.sort_by_key(|entry| (entry.table, entry.row));
            entries.dedup_by_key(|entry| (entry.table, entry.row));
        }
        // A row that was deleted and inserted again is two rows with one UUID: that is told as one change.
        let mut deleted = HashMap::new();
        if is_combined {
            let is_gone = |entry: &&&Entry| self.row(entry.table, entry.row).is_none();
            let rows = entries
                .iter()
                .filter(is_gone)
                .filter_map(|entry| self.old_row(entry).map(|old| (entry.table, old)));
            deleted = rows.map(|(table, old)| ((table, old.uuid()), (old, false))).collect();
            for entry in entries.iter().filter(|entry| entry.old.is_none()) {
                let new = self.row(entry.table, entry.row);
                if let Some((_, is_again)) = new.and_then(|new| deleted.get_mut(&(entry.table, new.uuid()))) {
                    *is_again = true;
                }
            }
        }
        entries.into_iter().filter_map(move |entry| {
            let (old, new) = (self.old_row(entry), self.row(entry.table, entry.row));
            let known = old.or(new).and_then(|row| deleted.get(&(entry.table, row.uuid())));
            match known {
                Some((old, true)) => Change::new(entry.table, entry.row, Some(*old), Some(new?)),
                _ => Change::new(entry.table, entry.row, old, new),
            }
        })
    }

    fn old_row<'a>(&'a self, entry: &'a Entry) -> Option<Row<'a>> {
        let schema = self.schema.table(entry.table)?;
        let table = self.tables.get(entry.table.index())?;
        Some(table.row_of(schema, entry.old.as_ref()?))
    }

    /// A row as it was after a commit.
    fn row_as_of(&self, commit: CommitId, table: TableId, row: RowId) -> Option<Row<'_>> {
        let Some(mut state) = self.row(table, row) else {
            let later = (commit.0 + 1..=self.history.last().0).map(CommitId);
            let next = later.into_iter().find_map(|commit| self.history.find(commit, table, row))?;
            return self.old_row(next);
        };
        while state.version() > commit.0 {
            let entry = self.history.find(CommitId(state.version()), table, row)?;
            state = self.old_row(entry)?;
        }
        Some(state)
    }

    /// The comments of a commit's transaction, joined by newlines.
    pub fn comment(&self, commit: CommitId) -> Option<&str> {
        self.history.comment(commit)
    }

    /// The transaction id of the newest commit.
    pub fn transaction_id(&self) -> Uuid {
        self.history.transaction_id()
    }

    /// The transaction id of a commit that is kept.
    pub fn transaction_id_of(&self, commit: CommitId) -> Option<Uuid> {
        self.history.transaction_id_of(commit)
    }

    /// Gives a commit its transaction id.
    pub fn set_transaction_id(&mut self, commit: CommitId, id: Uuid) {
        self.history.set_transaction_id(commit, id);
    }

    /// The newest commit with that transaction id, if its successors are kept.
    pub fn find_transaction(&self, id: Uuid) -> Option<CommitId> {
        self.history.find_transaction(id)
    }

    /// [`Self::changes_since`] can tell what happened after this commit.
    pub fn oldest_kept(&self) -> CommitId {
        self.history.oldest()
    }

    /// Keeps what happened after this commit, within [`crate::history::RETAINED_BYTES_MAX`].
    pub fn retain_from(&mut self, commit: Option<CommitId>) {
        self.history.retain_from(commit);
    }

    /// Keeps what happened after this commit, whatever it takes: it may have to be undone.
    pub fn hold_from(&mut self, commit: Option<CommitId>) {
        self.history.hold_from(commit);
    }

    /// What it takes.
    pub fn figures(&self) -> Figures {
        let tenant = self.records.tenant();
        let history_bytes = self.history.bytes() as u64;
        Figures {
            rows: self.tables.iter().map(|table| table.len() as u64).sum(),
            record_bytes: tenant.gauge(Gauge::Items).saturating_sub(self.history.record_bytes() as u64),
            index_bytes: tenant.gauge(Gauge::Index),
            history_bytes,
            history_commits: self.history.commit_count() as u64,
        }
    }

    /// Most memory it may take.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Changes the budget. What is there stays.
    pub fn set_budget_bytes(&mut self, bytes: u64) {
        self.budget_bytes = bytes;
        self.records.tenant().set_budget(bytes);
    }

    /// Gives memory back that is not needed any more, to the system where it is much. To be called when what was committed is
    /// on its way, at the end of each wake-up.
    pub fn rest(&mut self) {
        self.trim_history();
        if self.history.bytes() > HISTORY_REST_BYTES {
            let Self { records, tables, history, .. } = self;
            let items = records.tenant().gauge(Gauge::Items) as usize;
            let live_bytes = items.saturating_sub(history.record_bytes());
            history.trim_all(records, live_bytes.max(HISTORY_REST_BYTES), |table, row| {
                if let Some(table) = tables.get_mut(table.index()) {
                    table.release(row);
                }
            });
        }
        let (tenant, cache) = self.records.parts();
        tenant.publish(cache);
        if tenant.wants_purge() && tenant.has_shrunk() {
            for table in &mut self.tables {
                table.shrink(&mut self.records);
            }
            self.records.rest();
            self.records.tenant().purge();
        }
    }

    /// Whether one more row would pass the budget.
    #[inline]
    pub(crate) fn check_budget(&self) -> Result<(), Error> {
        if self.records.tenant().used() < self.budget_bytes { Ok(()) } else { Err(self.over_budget()) }
    }

    #[cold]
    fn over_budget(&self) -> Error {
        Error::resources_exhausted(format!(
            "database {} uses all of its {} bytes of memory",
            self.schema.name, self.budget_bytes
        ))
    }

    /// Drops history that nobody needs.
    pub(crate) fn trim_history(&mut self) {
        let items = self.records.tenant().gauge(Gauge::Items) as usize;
        let live_bytes = items.saturating_sub(self.history.record_bytes());
        let tables = &mut self.tables;
        self.history.trim(&mut self.records, live_bytes, |table, row| {
            if let Some(table) = tables.get_mut(table.index()) {
                table.release(row);
            }
        });
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.history.clear(&mut self.records, |_, _| {});
        for table in &mut self.tables {
            table.clear(&mut self.records);
        }
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Database")
            .field("name", &self.name())
            .field("figures", &self.figures())
            .finish_non_exhaustive()
    }
}
