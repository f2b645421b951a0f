//! Filling a database from its log: rows as they come, nothing checked until the end.
//!
//! `begin_replay`, then for each record of the log `begin_replayed_commit`, `apply_replayed` for each row,
//! `end_replayed_commit`; last `finish_replay`, which counts the references. Nothing is refused.

use super::Database;
use super::settle::nth_cell;
use crate::error::Error;
use crate::history::{CommitId, Entry, Fate};
use crate::row::{self, RowId};
use crate::schema::TableId;
use crate::uuid::Uuid;

/// What a record of the log says of a row.
#[derive(Debug, Clone, Copy)]
pub enum ReplayedRow<'a> {
    /// It is gone.
    Delete,
    /// It is this: the cells of all columns, one behind the other.
    Cells(&'a [u8]),
}

/// Why a row cannot be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayError {
    /// There is no such table, or no such row to delete.
    NoSuchRow,
    /// No memory.
    Memory(Error),
}

impl Database {
    /// Starts to fill the database, which is empty.
    pub fn begin_replay(&mut self) {
        self.scratch.entries.clear();
        self.tables.iter_mut().for_each(crate::table::Table::grow);
    }

    /// Starts one commit.
    pub fn begin_replayed_commit(&mut self) {
        debug_assert!(self.scratch.entries.is_empty());
    }

    /// Inserts, replaces or deletes a row.
    pub fn apply_replayed(
        &mut self,
        table: TableId,
        uuid: &Uuid,
        row: ReplayedRow<'_>,
    ) -> Result<(), ReplayError> {
        let version = self.history.last().0 + 1;
        let Self { schema, tables, records, scratch, .. } = self;
        let (Some(this), Some(schema)) = (tables.get_mut(table.index()), schema.table(table)) else {
            return Err(ReplayError::NoSuchRow);
        };
        let known = this.find(uuid);
        let record = match row {
            ReplayedRow::Delete => {
                let row = known.ok_or(ReplayError::NoSuchRow)?;
                let old = this.take(schema, records, row).ok_or(ReplayError::NoSuchRow)?;
                scratch.note_replaced(records, table, row, version, old, Fate::Deleted);
                return Ok(());
            }
            ReplayedRow::Cells(cells) => {
                row::start(&mut scratch.row, *uuid, version);
                records.store_parts(&scratch.row, cells)
            }
        };
        let record = record.ok_or_else(|| ReplayError::Memory(crate::index::no_memory()))?;
        match known {
            Some(row) => {
                if let Some(old) = this.replace(schema, records, row, record) {
                    scratch.note_replaced(records, table, row, version, old, Fate::Changed);
                }
            }
            None => {
                let row = this.insert(schema, records, record).map_err(ReplayError::Memory)?;
                scratch.entries.push(Entry { old: None, row, table, fate: Fate::Inserted });
            }
        }
        Ok(())
    }

    /// Ends a commit. Without `history` it is the point from which history counts: what was before is not kept.
    pub fn end_replayed_commit(&mut self, transaction_id: Uuid, history: bool) -> CommitId {
        let mut entries = std::mem::take(&mut self.scratch.entries);
        entries.retain(|entry| {
            let table = self.tables.get_mut(entry.table.index());
            let is_gone = entry.old.is_none() && table.is_some_and(|table| table.record(entry.row).is_none());
            if is_gone && let Some(table) = self.tables.get_mut(entry.table.index()) {
                table.release(entry.row);
            }
            !is_gone
        });
        for entry in &mut entries {
            let exists =
                self.tables.get(entry.table.index()).is_some_and(|table| table.record(entry.row).is_some());
            entry.fate = Fate::of(entry.old.is_some(), exists);
        }
        let commit = self.history.add(&mut entries, None);
        self.history.set_transaction_id(commit, transaction_id);
        if history {
            self.trim_history();
        } else {
            let tables = &mut self.tables;
            self.history.clear(&mut self.records, |table, row| {
                if let Some(table) = tables.get_mut(table.index()) {
                    table.release(row);
                }
            });
            if entries.capacity() > 1024 {
                entries = Vec::new();
            }
        }
        self.scratch.entries = entries;
        commit
    }

    /// Counts references and fills the declared indexes; rows that nothing refers to go if they must. As the stock server
    /// does when it reads, this takes rows as they are, even if they contradict each other. An error when there is no memory.
    pub fn finish_replay(&mut self) -> Result<(), Error> {
        for table in &mut self.tables {
            table.fit(&mut self.records);
        }
        self.count_references();
        self.drop_unreferenced();
        self.list_weak_references()?;
        let schema = std::sync::Arc::clone(&self.schema);
        for (id, table_schema) in schema.tables() {
            let Self { tables, records, .. } = self;
            let Some(table) = tables.get_mut(id.index()) else { continue };
            if table_schema.indexes.is_empty() {
                continue;
            }
            for row in (0..table.capacity()).map(RowId) {
                if table.record(row).is_some() {
                    // A duplicate stays beside its index.
                    table.settle_unique(table_schema, records, row)?;
                }
            }
        }
        Ok(())
    }

    fn count_references(&mut self) {
        let schema = std::sync::Arc::clone(&self.schema);
        for (id, table_schema) in schema.tables() {
            let Some(referrings) = self.tables.get(id.index()).map(|table| table.plan.strong.clone()) else {
                continue;
            };
            if referrings.is_empty() {
                continue;
            }
            for row in (0..self.row_capacity(id)).map(RowId) {
                let Some(bytes) = self.tables.get(id.index()).and_then(|table| table.bytes(row)) else {
                    continue;
                };
                let this = row::uuid_of(bytes);
                let mut references = Vec::new();
                for referring in &referrings {
                    let cell = nth_cell(table_schema, row::cells_of(bytes), referring);
                    referring.each(table_schema, cell, |table, uuid| references.push((table, uuid)));
                }
                for (target, uuid) in references {
                    if uuid == this {
                        continue;
                    }
                    let Some(table) = self.tables.get_mut(target.index()) else { continue };
                    // COMPAT: what is not in the log (an ephemeral column that must refer to something) leads nowhere, and
                    // is no reason not to open it.
                    if let Some(row) = table.find(&uuid) {
                        table.adjust_count(row, 1);
                    }
                }
            }
        }
    }

    /// Rows of tables that are not root, with all that only they refer to.
    fn drop_unreferenced(&mut self) {
        let schema = std::sync::Arc::clone(&self.schema);
        let mut gone = Vec::new();
        for (id, table_schema) in schema.tables().filter(|(_, table)| !table.is_root) {
            let _ = table_schema;
            let Some(table) = self.tables.get(id.index()) else { continue };
            let rows = (0..table.capacity()).map(RowId);
            let rows = rows.filter(|row| table.record(*row).is_some() && !table.counts.contains_key(row));
            gone.extend(rows.map(|row| (id, row)));
        }
        while let Some((id, row)) = gone.pop() {
            let Some(table_schema) = schema.table(id) else { continue };
            let Some(table) = self.tables.get_mut(id.index()) else { continue };
            // Its id is not given to another: history may tell of the row.
            let Some(record) = table.take(table_schema, &mut self.records, row) else { continue };
            let this = row::uuid_of(record.bytes());
            let mut references = Vec::new();
            for referring in &table.plan.strong {
                let cell = nth_cell(table_schema, row::cells_of(record.bytes()), referring);
                referring.each(table_schema, cell, |table, uuid| references.push((table, uuid)));
            }
            self.records.free(record);
            for (target, uuid) in references {
                if uuid != this
                    && let Some(table) = self.tables.get_mut(target.index())
                    && let Some(row) = table.find(&uuid)
                    && table.adjust_count(row, -1) == 0
                    && schema.table(target).is_some_and(|table| !table.is_root)
                {
                    gone.push((target, row));
                }
            }
        }
    }

    /// Lists the weak references; those to rows that do not exist are removed from their columns.
    fn list_weak_references(&mut self) -> Result<(), Error> {
        let schema = std::sync::Arc::clone(&self.schema);
        for (id, table_schema) in schema.tables() {
            let Some(referrings) = self.tables.get(id.index()).map(|table| table.plan.weak.clone()) else {
                continue;
            };
            if referrings.is_empty() {
                continue;
            }
            for row in (0..self.row_capacity(id)).map(RowId) {
                let mut is_dangling = false;
                let Some(bytes) = self.tables.get(id.index()).and_then(|table| table.bytes(row)) else {
                    continue;
                };
                let mut references = Vec::new();
                for referring in &referrings {
                    let cell = nth_cell(table_schema, row::cells_of(bytes), referring);
                    referring.each(table_schema, cell, |table, uuid| references.push((table, uuid)));
                }
                for (target, uuid) in references {
                    let Some(table) = self.tables.get_mut(target.index()) else { continue };
                    match table.find(&uuid) {
                        Some(target) => table.sources.entry(target).or_default().rows.push((id, row)),
                        None => is_dangling = true,
                    }
                }
                if is_dangling {
                    self.prune_replayed(id, row)?;
                }
            }
        }
        Ok(())
    }

    fn prune_replayed(&mut self, table: TableId, row: RowId) -> Result<(), Error> {
        let schema = std::sync::Arc::clone(&self.schema);
        let (Some(this), Some(table_schema)) = (self.tables.get(table.index()), schema.table(table)) else {
            return Ok(());
        };
        let Some(bytes) = this.bytes(row) else { return Ok(()) };
        let pruned =
            crate::transaction::without_dangling(&self.tables, &schema, table, bytes, |_| true, true)?;
        let mut whole = Vec::new();
        row::start(&mut whole, row::uuid_of(bytes), row::version_of(bytes));
        whole.extend_from_slice(&pruned.cells);
        let Some(record) = self.records.store(&whole) else { return Err(crate::index::no_memory()) };
        if let Some(this) = self.tables.get_mut(table.index())
            && let Some(old) = this.replace(table_schema, &mut self.records, row, record)
        {
            self.records.free(old);
        }
        Ok(())
    }
}
