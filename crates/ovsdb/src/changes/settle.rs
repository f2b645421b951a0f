//! What must hold at the end of a transaction, in the order of the stock server.
//!
//! 1. unchanged rows are dropped; 2. strong references are counted, none may dangle or refer to a deleted row; 3. in
//!    tables that are not root, rows that nothing refers to are deleted, and what only they referred to; 4. limits of
//!    tables;
//! 5. weak references to rows that do not exist are removed; 6. declared indexes have no duplicates.
//!
//! COMPAT: stock 3.1.0 leaves a weak reference to a row that the transaction deletes if it visited the referring row
//! before. This removes it.

use std::collections::BTreeSet;

use super::Changes;
use super::violation::{no_such_target, too_many_rows};
use super::weak::{has_dangling, without_dangling};
use crate::database::{Database, nth_cell};
use crate::error::Error;
use crate::history::{Entry, Fate};
use crate::reference::{Difference, Referring};
use crate::row::{self, Row, RowId};
use crate::schema::{ColumnId, TableId};
use crate::uuid::Uuid;

impl Changes<'_> {
    /// Completes the changes, if they may stay. Entries remain for what has changed. After an error the caller aborts.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.drop_unchanged()?;
        if self.are_plain() {
            return Ok(());
        }
        self.count_references()?;
        self.check_deleted()?;
        self.collect_garbage();
        self.check_limits()?;
        self.remove_dangling()?;
        self.check_indexes()?;
        self.finish();
        Ok(())
    }

    /// Returns true if only the number of rows can be wrong in the tables concerned, and is right.
    fn are_plain(&self) -> bool {
        let entries = &self.database.scratch.entries;
        entries.iter().all(|entry| {
            let (table, schema) = (&self.database.tables[entry.table], self.schema.table(entry.table));
            table.plan.is_plain && table.len() <= schema.max_rows as usize
        })
    }

    /// Completes changes that may stay.
    pub fn finish(&mut self) {
        self.drop_garbage();
        self.adjustments.clear();
        let entries = std::mem::take(&mut self.database.scratch.entries);
        self.database.note_weak_references(&entries);
        self.database.scratch.entries = entries;
    }

    /// Drops entries of rows that are the same as before the transaction.
    fn drop_unchanged(&mut self) -> Result<(), Error> {
        let mut failed = None;
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let schema = self.schema;
        scratch.entries.retain_mut(|entry| {
            let (table, schema) = (&mut tables[entry.table], schema.table(entry.table));
            // The record of a new row need not be read; with many rows it is in no cache.
            if entry.old.is_none() {
                let exists = table.record(entry.row).is_some();
                if !exists {
                    table.release(entry.row);
                }
                return exists;
            }
            match (&entry.old, table.bytes(entry.row)) {
                (Some(old), Some(new)) if row::cells_of(old.bytes()) == row::cells_of(new) => {
                    if let Some(old) = entry.old.take()
                        && let Some(new) = table.replace(schema, records, entry.row, old)
                    {
                        records.free(new);
                    }
                    // It may be missing from a declared index: it had other values meanwhile.
                    if !schema.indexes.is_empty() {
                        failed = table.settle_unique(schema, records, entry.row).err().or(failed.take());
                    }
                    false
                }
                (old, new) => {
                    entry.fate = Fate::of(old.is_some(), new.is_some());
                    true
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Drops entries of rows that were inserted and are gone. COMPAT: entries of rows from which just what was added
    /// has been removed stay: such a row has a new version, which is reported.
    fn drop_garbage(&mut self) {
        let Database { tables, scratch, .. } = &mut *self.database;
        scratch.entries.retain_mut(|entry| {
            let table = &mut tables[entry.table];
            let exists = table.record(entry.row).is_some();
            entry.fate = Fate::of(entry.old.is_some(), exists);
            let is_garbage = entry.old.is_none() && !exists;
            if is_garbage {
                table.release(entry.row);
            }
            !is_garbage
        });
    }

    /// Updates the counts of strong references.
    fn count_references(&mut self) -> Result<(), Error> {
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for place in 0..self.database.scratch.entries.len() {
            let Some(table_id) = self.changed_strong_references(place, &mut gone, &mut come) else {
                continue;
            };
            for (target, uuid) in gone.drain(..) {
                self.count(target, uuid, -1);
            }
            for (column, target, uuid) in come.drain(..) {
                if !self.count(target, uuid, 1) {
                    let known =
                        no_such_target(self.schema, table_id, column, self.uuid_of(place), target, uuid);
                    return Err(self.first_missing().unwrap_or(known));
                }
            }
        }
        Ok(())
    }

    /// Appends the strong references that an entry has removed, and those that it has added. Returns its table if it
    /// has any such columns.
    fn changed_strong_references(
        &self,
        place: usize,
        gone: &mut Vec<(TableId, Uuid)>,
        come: &mut Vec<(ColumnId, TableId, Uuid)>,
    ) -> Option<TableId> {
        let entry = self.database.scratch.entries.get(place)?;
        let table = &self.database.tables[entry.table];
        if table.plan.strong.is_empty() {
            return None;
        }
        if entry.old.is_none() {
            let (schema, new) = (self.schema.table(entry.table), table.bytes(entry.row)?);
            let this = row::uuid_of(new);
            for referring in &table.plan.strong {
                let cell = nth_cell(schema, row::cells_of(new), referring);
                referring.each(schema, cell, |target, uuid| {
                    if uuid != this {
                        come.push((referring.column, target, uuid));
                    }
                });
            }
            return Some(entry.table);
        }
        for referring in &table.plan.strong {
            let (removed, added) = self.changed_references(place, referring);
            gone.extend(removed);
            come.extend(added.into_iter().map(|(table, uuid)| (referring.column, table, uuid)));
        }
        Some(entry.table)
    }

    /// The columns with strong references of the table of an entry, if there are any.
    pub(super) fn referring(&self, place: usize) -> Option<(TableId, Vec<Referring>)> {
        let entry = self.database.scratch.entries.get(place)?;
        let table = &self.database.tables[entry.table];
        (!table.plan.strong.is_empty()).then(|| (entry.table, table.plan.strong.clone()))
    }

    /// The references in a column of an entry that were removed, and those that were added; not those to the row
    /// itself.
    pub(super) fn changed_references(&self, place: usize, referring: &Referring) -> Difference {
        let nothing = (Vec::new(), Vec::new());
        let Some(entry) = self.database.scratch.entries.get(place) else { return nothing };
        let (table, schema) = (&self.database.tables[entry.table], self.schema.table(entry.table));
        let old = entry.old.as_ref().map(|record| table.row_of(schema, record));
        let new = table.row(schema, entry.row);
        let Some(this) = old.or(new).map(|row| row.uuid()) else { return nothing };
        let (mut removed, mut added) = match (old, new) {
            (Some(old), Some(new)) => {
                referring.difference(schema, old.cell(referring.column), new.cell(referring.column))
            }
            (Some(old), None) => (referring.list(schema, old.cell(referring.column)), Vec::new()),
            (None, Some(new)) => (Vec::new(), referring.list(schema, new.cell(referring.column))),
            (None, None) => nothing,
        };
        removed.retain(|(_, uuid)| *uuid != this);
        added.retain(|(_, uuid)| *uuid != this);
        (removed, added)
    }

    /// Counts a reference. Returns `false` if the row does not exist, nor did before the transaction.
    fn count(&mut self, target: TableId, uuid: Uuid, by: i32) -> bool {
        let found = self.database.tables[target].find(&uuid);
        let Some(row) = found.or_else(|| self.find_deleted(target, uuid)) else { return false };
        self.database.tables[target].adjust_count(row, by);
        self.adjustments.push((target, row, by));
        true
    }

    /// Fails if a deleted row is still referred to.
    fn check_deleted(&self) -> Result<(), Error> {
        let entries = &self.database.scratch.entries;
        let count = |entry: &Entry| self.database.tables[entry.table].counts.get(&entry.row).copied();
        let is_missed = |entry: &Entry| entry.fate == Fate::Deleted && count(entry).is_some();
        if !entries.iter().any(is_missed) {
            return Ok(());
        }
        let mut order = self.stock_entries().into_iter();
        let Some(place) = order.find(|place| entries.get(*place).is_some_and(is_missed)) else {
            return Ok(());
        };
        let Some(entry) = entries.get(place) else { return Ok(()) };
        let name = &self.schema.table(entry.table).name;
        let (uuid, count) = (self.uuid_of(place), count(entry).unwrap_or_default());
        Err(Error::referential_integrity(format!(
            "cannot delete {name} row {uuid} because of {count} remaining reference(s)"
        )))
    }

    /// Deletes rows that must be referred to and are not.
    fn collect_garbage(&mut self) {
        let tables = &self.database.tables;
        let entries = self.database.scratch.entries.iter().map(|entry| (entry.table, entry.row));
        let lost = self.adjustments.iter().filter(|(.., by)| *by < 0).map(|(table, row, _)| (*table, *row));
        let is_candidate = |(table, row): &(TableId, RowId)| {
            let table = &tables[*table];
            table.plan.is_collected && !table.counts.contains_key(row)
        };
        let candidates = entries.chain(lost).filter(is_candidate).collect();
        self.collect(candidates);
        let tables = &self.database.tables;
        for entry in &mut self.database.scratch.entries {
            let exists = tables[entry.table].record(entry.row).is_some();
            entry.fate = Fate::of(entry.old.is_some(), exists);
        }
    }

    /// Deletes those of these rows that nothing refers to, and what only they referred to.
    fn collect(&mut self, mut candidates: Vec<(TableId, RowId)>) {
        while let Some((table_id, row)) = candidates.pop() {
            let (table, schema) = (&self.database.tables[table_id], self.schema.table(table_id));
            let Some(this) = table.row(schema, row) else { continue };
            if table.counts.contains_key(&row) {
                continue;
            }
            let references: Vec<(TableId, Uuid)> = table
                .plan
                .strong
                .iter()
                .flat_map(|referring| referring.list(schema, this.cell(referring.column)))
                .filter(|(_, uuid)| *uuid != this.uuid())
                .collect();
            self.delete_row(table_id, schema, row);
            for (target, uuid) in references {
                let table = &mut self.database.tables[target];
                if let Some(row) = table.find(&uuid) {
                    table.adjust_count(row, -1);
                    self.adjustments.push((target, row, -1));
                    if table.plan.is_collected {
                        candidates.push((target, row));
                    }
                }
            }
        }
    }

    fn check_limits(&self) -> Result<(), Error> {
        let mut last = None;
        for entry in &self.database.scratch.entries {
            if last == Some(entry.table) {
                continue;
            }
            last = Some(entry.table);
            let (table, schema) = (&self.database.tables[entry.table], self.schema.table(entry.table));
            if table.len() > schema.max_rows as usize {
                return Err(too_many_rows(schema, table.len()));
            }
        }
        Ok(())
    }

    /// Removes dangling weak references: from what the transaction wrote, and from rows that refer to what it deleted.
    fn remove_dangling(&mut self) -> Result<(), Error> {
        let mut affected: BTreeSet<(TableId, RowId)> = BTreeSet::new();
        for entry in &self.database.scratch.entries {
            let table = &self.database.tables[entry.table];
            if entry.fate == Fate::Deleted
                && table.plan.is_weak_target
                && let Some(sources) = table.sources.get(&entry.row)
            {
                affected.extend(&sources.rows);
            }
        }
        for place in 0..self.database.scratch.entries.len() {
            if let Err(error) = self.remove_dangling_of(place, &affected) {
                return Err(self.first_dangling(&affected).unwrap_or(error));
            }
        }
        for &(table, row) in &affected {
            if let Err(error) = self.prune(table, row, |_| true, true) {
                return Err(self.first_dangling(&affected).unwrap_or(error));
            }
        }
        Ok(())
    }

    /// The error about a column that is empty without its dangling references: of several, the one that the stock
    /// server finds first.
    #[cold]
    fn first_dangling(&mut self, affected: &BTreeSet<(TableId, RowId)>) -> Option<Error> {
        let entries = self.database.scratch.entries.iter().enumerate();
        let mut rows: Vec<(TableId, Uuid, (Option<usize>, RowId))> = entries
            .map(|(place, entry)| (entry.table, self.uuid_of(place), (Some(place), entry.row)))
            .collect();
        for &(table, row) in affected {
            let is_known = rows.iter().any(|(other, _, (_, other_row))| (*other, *other_row) == (table, row));
            if let Some(this) = self.database.row(table, row).filter(|_| !is_known) {
                rows.push((table, this.uuid(), (None, row)));
            }
        }
        let rows =
            rows.into_iter().map(|(table, uuid, (place, row))| (table, uuid, (table, place, row))).collect();
        self.stock_order(rows).into_iter().find_map(|(table, place, row)| match place {
            Some(place) => self.remove_dangling_of(place, affected).err(),
            None => self.prune(table, row, |_| true, true).err(),
        })
    }

    fn remove_dangling_of(
        &mut self,
        place: usize,
        affected: &BTreeSet<(TableId, RowId)>,
    ) -> Result<(), Error> {
        let Some(entry) = self.database.scratch.entries.get(place) else { return Ok(()) };
        let table = &self.database.tables[entry.table];
        if table.plan.weak.is_empty() {
            return Ok(());
        }
        let (table_id, row) = (entry.table, entry.row);
        let schema = self.schema.table(table_id);
        let Some(new) = table.bytes(row) else { return Ok(()) };
        let is_affected = affected.contains(&(table_id, row));
        let old = entry.old.as_ref().map(|old| row::cells_of(old.bytes()));
        let changed = old.map(|old| row::changed_columns(schema, old, row::cells_of(new)));
        let wanted = |column| is_affected || changed.as_ref().is_none_or(|changed| changed.contains(column));
        if table.plan.weak.iter().any(|referring| wanted(referring.column)) {
            return self.prune(table_id, row, wanted, changed.is_some());
        }
        Ok(())
    }

    /// Removes a row's dangling weak references, if its columns may do without them.
    pub fn remove_dangling_of_row(&mut self, table: TableId, row: RowId) -> Result<(), Error> {
        match self.prune(table, row, |_| true, true) {
            Err(error) if error.is_resources_exhausted() => Err(error),
            _ => Ok(()),
        }
    }

    fn prune(
        &mut self,
        table: TableId,
        row: RowId,
        wanted: impl Fn(ColumnId) -> bool,
        existed: bool,
    ) -> Result<(), Error> {
        let Database { tables, scratch, .. } = &mut *self.database;
        let schema = self.schema.table(table);
        let Some(bytes) = tables[table].bytes(row) else { return Ok(()) };
        if !has_dangling(tables, schema, table, bytes) {
            return Ok(());
        }
        let pruned = without_dangling(tables, self.schema, table, bytes, wanted, existed)?;
        if !pruned.differs {
            return Ok(());
        }
        let this = row::uuid_of(bytes);
        let before = Row::new(schema, bytes, 0);
        row::start(&mut scratch.row, this, self.version);
        scratch.row.extend_from_slice(&pruned.cells);
        let after = Row::new(schema, &scratch.row, 0);
        // Strong references in pairs whose other half was a weak one.
        let strong = &tables[table].plan.strong;
        let gone: Vec<(TableId, Uuid)> = strong
            .iter()
            .flat_map(|referring| {
                let (before, after) = (before.cell(referring.column), after.cell(referring.column));
                referring.difference(schema, before, after).0
            })
            .filter(|(_, uuid)| *uuid != this)
            .collect();
        self.replace_row(table, schema, row)?;
        for (target, uuid) in gone {
            self.count(target, uuid, -1);
        }
        Ok(())
    }

    fn check_indexes(&mut self) -> Result<(), Error> {
        for place in 0..self.database.scratch.entries.len() {
            let Database { tables, records, scratch, .. } = &mut *self.database;
            let Some(&Entry { table, row, .. }) = scratch.entries.get(place) else { continue };
            let (this, schema) = (&mut tables[table], self.schema.table(table));
            if schema.indexes.is_empty() || this.record(row).is_none() {
                continue;
            }
            if let Some((other, index)) = this.settle_unique(schema, records, row)? {
                let known = self.duplicate(table, index, row, other);
                return Err(self.first_duplicate().unwrap_or(known));
            }
        }
        Ok(())
    }
}
