//! Filling a database from its log.
//!
//! `begin_replay`, then for each record of the log `begin_replayed_commit`, `apply_replayed` (or `insert_replayed`) for
//! each row, `settle_replayed_commit`, which rejects what no transaction may leave behind, and `end_replayed_commit`.
//! The last commit has the changes made by opening the database: `finish_replay` belongs to it.
//!
//! The log does not contain ephemeral columns. So until `finish_replay` their references are not tracked: their values
//! may come from elsewhere between the records, and be removed again. (A strong reference that keeps a row alive is
//! never ephemeral: see `DatabaseSchema::parse`.)
//!
//! A row's place in a large table is in no cache: call `prefetch_row` some rows before it is needed.

use super::Database;
use super::settle::nth_cell;
use crate::changes::Changes;
use crate::error::Error;
use crate::history::{CommitId, Entry, Fate};
use crate::reference::Plan;
use crate::row::{self, RowId};
use crate::schema::TableId;
use crate::uuid::Uuid;
use std::sync::Arc;

/// What a record of the log says about a row.
#[derive(Debug, Clone, Copy)]
pub enum ReplayedRow<'a> {
    /// It is deleted.
    Delete,
    /// It has these cells, of all columns, concatenated.
    Cells(&'a [u8]),
}

/// Why a row or a record cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayError {
    /// The row to delete does not exist.
    NoSuchRow,
    /// No transaction may leave this behind.
    Violation(Error),
    /// No memory.
    Memory(Error),
}

impl From<ReplayError> for Error {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::NoSuchRow => Self::internal("a row is missing"),
            ReplayError::Violation(error) | ReplayError::Memory(error) => error,
        }
    }
}

impl Database {
    /// Starts filling the database, which is empty.
    pub fn begin_replay(&mut self) {
        self.scratch.entries.clear();
        self.set_plans(Plan::lasting(&self.schema));
    }

    fn set_plans(&mut self, plans: Vec<Plan>) {
        for (table, plan) in self.tables.iter_mut().zip(plans) {
            table.plan = plan;
        }
    }

    /// Announces how many rows a table may have in the end.
    pub fn expect_rows(&mut self, table: TableId, rows: usize) {
        self.tables[table].expect(&mut self.records, rows);
    }

    /// Starts loading the memory that [`Self::row_by_uuid`] and [`Self::apply_replayed`] read first.
    #[inline]
    pub fn prefetch_row(&self, table: TableId, uuid: &Uuid) {
        self.tables[table].prefetch(uuid);
    }

    /// Starts one commit.
    pub fn begin_replayed_commit(&mut self) {
        debug_assert!(self.scratch.entries.is_empty());
    }

    /// Inserts a row with these cells unless it exists; an existing row is left unchanged. Returns whether it was new.
    pub fn insert_replayed(
        &mut self,
        table: TableId,
        uuid: &Uuid,
        cells: &[u8],
    ) -> Result<bool, ReplayError> {
        let version = self.history.last().0 + 1;
        let Self { schema, tables, records, scratch, .. } = self;
        let (this, schema) = (&mut tables[table], schema.table(table));
        if this.find(uuid).is_some() {
            return Ok(false);
        }
        row::start(&mut scratch.row, *uuid, version);
        let record = records.store_parts(&scratch.row, cells);
        let record = record.ok_or_else(|| ReplayError::Memory(crate::index::no_memory()))?;
        let row = this.insert(schema, records, record).map_err(ReplayError::Memory)?;
        scratch.entries.push(Entry { old: None, row, table, fate: Fate::Inserted });
        Ok(true)
    }

    /// Inserts, replaces or deletes a row.
    pub fn apply_replayed(
        &mut self,
        table: TableId,
        uuid: &Uuid,
        row: ReplayedRow<'_>,
    ) -> Result<(), ReplayError> {
        if let ReplayedRow::Cells(cells) = row
            && self.insert_replayed(table, uuid, cells)?
        {
            return Ok(());
        }
        let version = self.history.last().0 + 1;
        let Self { schema, tables, records, scratch, .. } = self;
        let (this, schema) = (&mut tables[table], schema.table(table));
        let known = this.find(uuid).ok_or(ReplayError::NoSuchRow)?;
        match row {
            ReplayedRow::Delete => {
                let old = this.take(schema, records, known).ok_or(ReplayError::NoSuchRow)?;
                scratch.note_replaced(records, table, known, version, old, Fate::Deleted);
            }
            ReplayedRow::Cells(cells) => {
                row::start(&mut scratch.row, *uuid, version);
                let record = records.store_parts(&scratch.row, cells);
                let record = record.ok_or_else(|| ReplayError::Memory(crate::index::no_memory()))?;
                if let Some(old) = this.replace(schema, records, known, record) {
                    scratch.note_replaced(records, table, known, version, old, Fate::Changed);
                }
            }
        }
        Ok(())
    }

    /// Of the rows applied since this many were noted, forgets those that cannot be invalid. Returns how many are noted
    /// now. The commit can no longer be undone, and must not appear in history.
    pub fn forget_replayed(&mut self, noted: usize) -> usize {
        let Self { schema, tables, records, scratch, .. } = self;
        let mut kept = noted;
        for place in noted..scratch.entries.len() {
            let Some(entry) = scratch.entries.get_mut(place) else { break };
            let (table, table_schema) = (&mut tables[entry.table], schema.table(entry.table));
            if !table.plan.is_plain || table.len() > table_schema.max_rows as usize {
                scratch.entries.swap(kept, place);
                kept += 1;
                continue;
            }
            if let Some(old) = entry.old.take() {
                records.free(old);
            }
            if table.record(entry.row).is_none() {
                table.release(entry.row);
            }
        }
        scratch.entries.truncate(kept);
        kept
    }

    /// Does for the rows of a commit what the end of a transaction does: counts references, deletes rows that nothing
    /// refers to, checks limits and indexes. Undoes the commit if it is invalid.
    pub fn settle_replayed_commit(&mut self) -> Result<(), ReplayError> {
        let schema = Arc::clone(&self.schema);
        let mut changes = Changes::new(self, &schema);
        let settled = changes.settle().map_err(|error| {
            changes.abort();
            if error.is_resources_exhausted() {
                ReplayError::Memory(error)
            } else {
                ReplayError::Violation(error)
            }
        });
        self.scratch.touched.clear();
        settled
    }

    /// As [`crate::history::History::excuse_last`].
    pub(crate) fn excuse_last_commit(&mut self) {
        self.history.excuse_last();
    }

    /// Ends a commit. Without `history` it is where history starts: what came before is not kept.
    pub fn end_replayed_commit(&mut self, transaction_id: Uuid, history: bool) -> CommitId {
        let mut entries = std::mem::take(&mut self.scratch.entries);
        let commit = self.history.add(&mut entries, None);
        self.history.set_transaction_id(commit, transaction_id);
        if history {
            self.trim_history();
        } else {
            let (history, records, release) = self.history_parts();
            history.clear(records, release);
            if entries.capacity() > 1024 {
                entries = Vec::new();
            }
        }
        self.scratch.entries = entries;
        commit
    }

    /// Ends the replay: ephemeral columns are tracked from now on, too. Must run within a commit of its own, because it
    /// removes their dangling weak references; returns whether there were any. Fails if there is no memory.
    pub fn finish_replay(&mut self) -> Result<bool, Error> {
        for table in self.tables.iter_mut() {
            table.fit(&mut self.records);
        }
        let schema = Arc::clone(&self.schema);
        self.set_plans(Plan::of(&schema));
        let dangling = self.note_ephemeral_references();
        let mut changes = Changes::new(self, &schema);
        for (table, row) in dangling {
            changes.remove_dangling_of_row(table, row)?;
        }
        changes.finish();
        self.scratch.touched.clear();
        Ok(!self.scratch.entries.is_empty())
    }

    /// Counts the strong references of ephemeral columns and lists the weak ones. Returns the rows with dangling weak
    /// references.
    fn note_ephemeral_references(&mut self) -> Vec<(TableId, RowId)> {
        let schema = Arc::clone(&self.schema);
        let mut dangling = Vec::new();
        let mut references = Vec::new();
        for ((id, table_schema), plan) in schema.tables().zip(Plan::ephemeral(&schema)) {
            if plan.strong.is_empty() && plan.weak.is_empty() {
                continue;
            }
            for row in (0..self.row_capacity(id)).map(RowId) {
                let Some(bytes) = self.tables[id].bytes(row) else { continue };
                let this = row::uuid_of(bytes);
                for (referrings, is_weak) in [(&plan.strong, false), (&plan.weak, true)] {
                    for referring in referrings {
                        let cell = nth_cell(table_schema, row::cells_of(bytes), referring);
                        referring.each(table_schema, cell, |table, uuid| {
                            references.push((table, uuid, is_weak));
                        });
                    }
                }
                for (target, uuid, is_weak) in references.drain(..) {
                    let table = &mut self.tables[target];
                    match table.find(&uuid) {
                        Some(target) if is_weak => {
                            table.sources.entry(target).or_default().rows.push((id, row));
                        }
                        None if is_weak => dangling.push((id, row)),
                        Some(target) if uuid != this => {
                            table.adjust_count(target, 1);
                        }
                        // COMPAT: what is not in the log (an ephemeral column that must refer to something) dangles,
                        // which is no reason not to open it.
                        _ => {}
                    }
                }
            }
        }
        dangling.dedup();
        dangling
    }
}
