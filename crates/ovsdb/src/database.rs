//! A database: its tables, and the changes of its last commits.
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
pub(crate) use settle::nth_cell;

use memory::tenant::Gauge;
use memory::{Records, Tenant};
use std::collections::HashMap;
use std::sync::Arc;

use crate::error::Error;
use crate::file::transaction_id;
use crate::hashing::Hashing;
use crate::history::{self, Change, CommitId, Entry, History};
use crate::reference::Plan;
use crate::row::{Row, RowId};
use crate::schema::{DatabaseSchema, TableId};
use crate::table::{Table, Tables};
use crate::transaction::Scratch;
use crate::uuid::Uuid;

/// Changes that do not enlarge a row may exceed the budget by this fraction of it until the records they replaced can
/// be freed: so a full database can be made smaller. This near to its budget it frees them after each transaction.
const OVERDRAFT_FRACTION: u64 = 16;
/// Waste up to this fraction of the budget is not worth returning pages.
const WASTE_FRACTION: u64 = 64;

/// Options of a new database.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most memory for rows, history and indexes in bytes; [`u64::MAX`] for no limit.
    pub budget_bytes: u64,
    /// A random number, from which `_version`s and hashes are derived.
    pub seed: u64,
}

/// The memory usage of a database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of rows.
    pub rows: u64,
    /// Bytes of the rows, as the allocator rounds them.
    pub record_bytes: u64,
    /// Bytes of row arrays and indexes.
    pub index_bytes: u64,
    /// Bytes of the records that the last commits replaced.
    pub history_bytes: u64,
    /// Number of commits kept.
    pub history_commits: u64,
}

/// A database.
pub struct Database {
    pub(crate) schema: Arc<DatabaseSchema>,
    pub(crate) tables: Tables,
    pub(crate) records: Records,
    pub(crate) history: History,
    pub(crate) scratch: Scratch,
    budget_bytes: u64,
    /// Memory in use when returning pages last had no effect.
    fruitless_bytes: u64,
    /// Why nothing may be written any more.
    damage: Option<Error>,
    damage_is_reported: bool,
}

impl Database {
    /// An empty database.
    pub fn new(schema: DatabaseSchema, options: Options) -> Result<Self, Error> {
        let tenant = Tenant::new(1, options.budget_bytes)
            .map_err(|error| Error::resources_exhausted(format!("no memory for a database: {error}")))?;
        let hashing = Hashing::new(options.seed);
        let plans = Plan::of(&schema);
        let tables = schema.tables().zip(plans).map(|((_, table), plan)| Table::new(table, plan, hashing));
        let tables = Tables::new(tables);
        Ok(Self {
            schema: Arc::new(schema),
            tables,
            records: Records::new(tenant),
            history: History::default(),
            scratch: Scratch::default(),
            budget_bytes: options.budget_bytes,
            fruitless_bytes: 0,
            damage: None,
            damage_is_reported: false,
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

    /// Why it is read-only: a change could not be undone, and memory differs from the log. A restart repairs it.
    pub fn damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// As [`Self::damage`], but only once: for the log.
    pub fn take_damage(&mut self) -> Option<&Error> {
        let is_reported = std::mem::replace(&mut self.damage_is_reported, self.damage.is_some());
        self.damage.as_ref().filter(|_| !is_reported)
    }

    #[cold]
    pub(crate) fn note_damage(&mut self, error: &Error) {
        let name = &self.schema.name;
        self.damage.get_or_insert_with(|| {
            Error::internal(format!(
                "database {name} is read-only until the server is started again: a change could not be undone ({error})"
            ))
        });
    }

    /// The newest commit.
    #[inline]
    pub fn commit_number(&self) -> CommitId {
        self.history.last()
    }

    /// The row with this UUID.
    #[inline]
    pub fn row_by_uuid(&self, table: TableId, uuid: &Uuid) -> Option<(RowId, Row<'_>)> {
        let row = self.tables[table].find(uuid)?;
        Some((row, self.row(table, row)?))
    }

    /// A row.
    #[inline]
    pub fn row(&self, table: TableId, row: RowId) -> Option<Row<'_>> {
        self.tables[table].row(self.schema.table(table), row)
    }

    /// The rows of a table, by row id.
    pub fn rows(&self, table: TableId) -> impl Iterator<Item = Row<'_>> {
        self.rows_from(table, RowId(0)).map(|(_, row)| row)
    }

    /// The rows of a table from this row id on.
    pub fn rows_from(&self, table: TableId, start: RowId) -> impl Iterator<Item = (RowId, Row<'_>)> {
        self.tables[table].rows_from(self.schema.table(table), start)
    }

    /// Row ids of a table are below this.
    pub fn row_capacity(&self, table: TableId) -> u32 {
        self.tables[table].capacity()
    }

    /// Number of rows of a table.
    pub fn row_count(&self, table: TableId) -> usize {
        self.tables[table].len()
    }

    /// Bytes of a table's rows, as the allocator rounds them.
    pub fn row_bytes(&self, table: TableId) -> usize {
        self.tables[table].record_bytes()
    }

    /// The changes of a commit, by table and row id. Empty if the commit is not kept.
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

    /// The tables that a commit changed, as often as it changed rows of them.
    pub fn tables_of(&self, commit: CommitId) -> impl Iterator<Item = TableId> {
        self.history.entries(commit).map(|entry| entry.table)
    }

    /// The combined changes of all commits after this one, by table and row id. The commit must not be older than
    /// [`Self::oldest_kept`].
    pub fn changes_since(&self, after: CommitId) -> impl Iterator<Item = Change<'_>> {
        let mut entries: Vec<&Entry> = self.history.entries_after(after).collect();
        let is_combined = after.0 + 1 < self.history.last().0;
        if is_combined {
            entries.sort_by_key(|entry| (entry.table, entry.row));
            entries.dedup_by_key(|entry| (entry.table, entry.row));
        }
        // A row that was deleted and inserted again is two rows with one UUID: it is reported as one change.
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
        let schema = self.schema.table(entry.table);
        Some(self.tables[entry.table].row_of(schema, entry.old.as_ref()?))
    }

    /// The rows as they were after a commit, which must not be older than [`Self::oldest_kept`]; in no particular
    /// order.
    pub(crate) fn rows_as_of(&self, commit: CommitId) -> impl Iterator<Item = (TableId, Row<'_>)> {
        let there = self.schema.tables().flat_map(move |(table, _)| {
            self.rows_from(table, RowId(0)).filter_map(move |(id, row)| {
                if row.version() <= commit.0 { Some(row) } else { self.row_as_of(commit, table, id) }
                    .map(|row| (table, row))
            })
        });
        let gone = self.history.entries_after(commit).filter_map(move |entry| {
            let is_gone = self.row(entry.table, entry.row).is_none();
            let old = self.old_row(entry).filter(|old| is_gone && old.version() <= commit.0)?;
            Some((entry.table, old))
        });
        there.chain(gone)
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

    /// Sets the transaction id of a commit.
    pub fn set_transaction_id(&mut self, commit: CommitId, id: Uuid) {
        self.history.set_transaction_id(commit, id);
    }

    /// The newest commit with this transaction id, if its successors are kept.
    pub fn find_transaction(&self, id: Uuid) -> Option<CommitId> {
        self.history.find_transaction(|other| other == id)
    }

    /// The newest commit whose state in the log is that of this transaction, ephemeral columns aside.
    pub fn find_logged(&self, id: Uuid) -> Option<CommitId> {
        let id = transaction_id::logged(id);
        self.history.find_transaction(|other| transaction_id::logged(other) == id)
    }

    /// The oldest commit that [`Self::changes_since`] accepts.
    pub fn oldest_kept(&self) -> CommitId {
        self.history.oldest()
    }

    /// Retains the changes after this commit, within [`crate::history::RETAINED_BYTES_MAX`].
    pub fn retain_from(&mut self, commit: Option<CommitId>) {
        self.history.retain_from(commit);
    }

    /// Retains the changes after this commit, whatever their size: they may have to be undone.
    pub fn hold_from(&mut self, commit: Option<CommitId>) {
        self.history.hold_from(commit);
    }

    /// Its memory usage.
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

    /// Most memory that it may use.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Physical memory of its arena, if it has pages of its own; otherwise the memory that counts against the budget.
    pub fn resident_bytes(&self) -> u64 {
        let tenant = self.records.tenant();
        tenant.measure();
        tenant.resident_bytes().unwrap_or(tenant.used())
    }

    /// Free pages of its arena, as of the last measurement; 0 if it has no pages of its own.
    pub fn free_page_bytes(&self) -> u64 {
        self.records.tenant().arena_figures().map_or(0, |arena| arena.dirty as u64)
    }

    /// Frees memory that is no longer needed, and returns it to the system if it is much. To be called at the end of
    /// each wake-up, when committed changes are on their way.
    pub fn rest(&mut self) {
        self.trim_history();
        let most_bytes = self.history_bytes_most();
        if self.history.bytes() > most_bytes {
            let (history, records, release) = self.history_parts();
            history.trim_all(records, most_bytes, release);
        }
        let is_limited = self.is_limited();
        let (tenant, cache) = self.records.parts();
        tenant.publish(cache);
        if tenant.wants_purge() && tenant.has_shrunk() {
            for table in self.tables.iter_mut() {
                table.shrink(&mut self.records);
            }
            self.give_back();
        } else if is_limited && tenant.wants_measure() {
            tenant.measure();
        }
    }

    /// Returns free pages to the system.
    fn give_back(&mut self) {
        self.records.rest();
        self.records.tenant().purge();
        if self.is_limited() {
            self.records.tenant().measure();
        }
    }

    fn is_limited(&self) -> bool {
        self.budget_bytes < u64::MAX
    }

    /// Returns true if little of the budget is left.
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.records.tenant().used() >= self.budget_bytes - self.budget_bytes / OVERDRAFT_FRACTION
    }

    /// Checks that there is room for a row of this many bytes, in the place of one of `replaced` bytes: fails if that
    /// would exceed the budget.
    #[inline]
    pub(crate) fn admit(&mut self, bytes: usize, replaced: usize) -> Result<(), Error> {
        let used = self.records.tenant().used().saturating_add(bytes as u64);
        if used <= self.budget_bytes { Ok(()) } else { self.admit_under_pressure(bytes, replaced) }
    }

    #[cold]
    fn admit_under_pressure(&mut self, bytes: usize, replaced: usize) -> Result<(), Error> {
        let (history, records, release) = self.history_parts();
        history.drop_unheld(records, release);
        let (tenant, cache) = self.records.parts();
        tenant.publish(cache);
        // Sizes are rounded up to the allocator's classes.
        let grows = memory::footprint(bytes) > memory::footprint(replaced);
        let overdraft = if grows { 0 } else { self.budget_bytes / OVERDRAFT_FRACTION };
        let most = self.budget_bytes + overdraft;
        let fits = |tenant: &Tenant| tenant.used().saturating_add(bytes as u64) <= most;
        let is_wasteful = tenant.waste() > self.budget_bytes / WASTE_FRACTION;
        if !fits(tenant) && is_wasteful && tenant.used() != self.fruitless_bytes {
            self.give_back();
            self.fruitless_bytes = self.records.tenant().used();
        }
        if fits(self.records.tenant()) { Ok(()) } else { Err(self.over_budget(bytes)) }
    }

    fn over_budget(&self, bytes: usize) -> Error {
        Error::resources_exhausted(format!(
            "database {} uses {} of its {} bytes of memory; {bytes} more would exceed the budget",
            self.schema.name,
            self.records.tenant().used(),
            self.budget_bytes
        ))
    }

    /// Drops history that is not needed.
    pub(crate) fn trim_history(&mut self) {
        let most_bytes = self.history_bytes_most();
        let (history, records, release) = self.history_parts();
        history.trim(records, most_bytes, release);
    }

    fn history_bytes_most(&self) -> usize {
        let items = self.records.tenant().gauge(Gauge::Items) as usize;
        history::recent_bytes_most(items.saturating_sub(self.history.record_bytes()))
    }

    /// The history, and what dropping from it needs: the owner of the records, and a callback for rows whose ids become
    /// free.
    fn history_parts(&mut self) -> (&mut History, &mut Records, impl FnMut(TableId, RowId)) {
        let Self { history, records, tables, .. } = self;
        let release = |table: TableId, row| {
            tables[table].release(row);
        };
        (history, records, release)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.history.clear(&mut self.records, |_, _| {});
        for table in self.tables.iter_mut() {
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
