//! Updates the tables beside the rows after changes: counts of strong references, lists of weak ones, declared indexes.

use super::Database;
use crate::error::Error;
use crate::history::Entry;
use crate::reference::{Referring, Sources};
use crate::row::{self, RowId};
use crate::schema::{DatabaseSchema, TableId, TableSchema};
use crate::table::Table;
use crate::uuid::Uuid;

impl Database {
    /// Updates the lists of weak references with these changes.
    pub(crate) fn note_weak_references(&mut self, entries: &[Entry]) {
        let schema = std::sync::Arc::clone(&self.schema);
        let (mut gone, mut come) = (Vec::new(), Vec::new());
        for entry in entries {
            if !self.tables[entry.table].plan.weak.is_empty() {
                self.changed_weak_references(schema.table(entry.table), entry, &mut gone, &mut come);
                self.list_weak_references(&schema, entry, &mut gone, &mut come);
            }
        }
        for entry in entries {
            let table = &mut self.tables[entry.table];
            if table.plan.is_weak_target && table.record(entry.row).is_none() {
                table.sources.remove(&entry.row);
            }
        }
    }

    /// Appends the weak references of a row that were removed, and those that were added.
    fn changed_weak_references(
        &self,
        schema: &TableSchema,
        entry: &Entry,
        gone: &mut Vec<(TableId, Uuid)>,
        come: &mut Vec<(TableId, Uuid)>,
    ) {
        let table = &self.tables[entry.table];
        let old = entry.old.as_ref().map(|record| row::cells_of(record.bytes()));
        let new = table.bytes(entry.row).map(row::cells_of);
        for referring in &table.plan.weak {
            let cell = |cells| nth_cell(schema, cells, referring);
            match (old.map(cell), new.map(cell)) {
                (Some(old), Some(new)) => {
                    let (removed, added) = referring.difference(schema, old, new);
                    gone.extend(removed);
                    come.extend(added);
                }
                (Some(old), None) => referring.each(schema, old, |table, uuid| gone.push((table, uuid))),
                (None, Some(new)) => referring.each(schema, new, |table, uuid| come.push((table, uuid))),
                (None, None) => {}
            }
        }
    }

    /// Updates the lists with the references that one row has removed and added; drains both.
    fn list_weak_references(
        &mut self,
        schema: &DatabaseSchema,
        entry: &Entry,
        gone: &mut Vec<(TableId, Uuid)>,
        come: &mut Vec<(TableId, Uuid)>,
    ) {
        for (target, uuid) in gone.drain(..) {
            let table = &mut self.tables[target];
            if let Some(row) = table.find(&uuid)
                && let Some(sources) = table.sources.get_mut(&row)
            {
                sources.stale += 1;
                if sources.wants_sweep() {
                    self.sweep(schema, target, row);
                }
            }
        }
        for (target, uuid) in come.drain(..) {
            let table = &mut self.tables[target];
            if let Some(row) = table.find(&uuid) {
                table.sources.entry(row).or_default().rows.push((entry.table, entry.row));
            }
        }
    }

    /// Drops the rows that no longer refer to a row from its list.
    fn sweep(&mut self, schema: &DatabaseSchema, target: TableId, row: RowId) {
        let table = &mut self.tables[target];
        let (Some(mut sources), Some(bytes)) = (table.sources.remove(&row), table.bytes(row)) else { return };
        let uuid = row::uuid_of(bytes);
        sources.rows.sort_unstable();
        sources.rows.dedup();
        sources.rows.retain(|(source, row)| {
            let (table, schema) = (&self.tables[*source], schema.table(*source));
            let Some(bytes) = table.bytes(*row) else { return false };
            table.plan.weak.iter().any(|referring| {
                let mut refers = false;
                let cell = nth_cell(schema, row::cells_of(bytes), referring);
                referring.each(schema, cell, |table, other| refers |= table == target && other == uuid);
                refers
            })
        });
        sources.stale = 0;
        if !sources.rows.is_empty() {
            self.tables[target].sources.insert(row, Sources { rows: sources.rows, stale: 0 });
        }
    }

    /// Adds `by` to the counts of all rows that these rows now refer to.
    pub(super) fn count_strong_references(&mut self, entries: &[Entry], by: i32) {
        let schema = std::sync::Arc::clone(&self.schema);
        let mut references = Vec::new();
        for entry in entries {
            let (table, table_schema) = (&self.tables[entry.table], schema.table(entry.table));
            let Some(bytes) = table.bytes(entry.row) else { continue };
            let this = row::uuid_of(bytes);
            for referring in &table.plan.strong {
                let cell = nth_cell(table_schema, row::cells_of(bytes), referring);
                referring.each(table_schema, cell, |table, uuid| references.push((table, uuid)));
            }
            for (target, uuid) in references.drain(..) {
                let table = &mut self.tables[target];
                if uuid != this
                    && let Some(row) = table.find(&uuid)
                {
                    table.adjust_count(row, by);
                }
            }
        }
    }

    /// Adds changed rows to the declared indexes that they are missing from.
    pub(super) fn note_unique(&mut self, entries: &[Entry]) -> Result<(), Error> {
        let Self { schema, tables, records, .. } = self;
        for entry in entries {
            let (table, schema) = (&mut tables[entry.table], schema.table(entry.table));
            if !schema.indexes.is_empty() && table.record(entry.row).is_some() {
                table.settle_unique(schema, records, entry.row)?;
            }
        }
        Ok(())
    }
}

impl Table {
    /// Changes the number of strong references to a row; returns the new one.
    pub(crate) fn adjust_count(&mut self, row: RowId, by: i32) -> u32 {
        let count = self.counts.entry(row).or_insert(0);
        *count = count.saturating_add_signed(by);
        let count = *count;
        if count == 0 {
            self.counts.remove(&row);
        }
        count
    }
}

/// The cell of a referring column among a row's cells.
pub(crate) fn nth_cell<'a>(schema: &TableSchema, cells: &'a [u8], referring: &Referring) -> &'a [u8] {
    let mut rest = cells;
    for (id, column) in schema.columns() {
        let cell = crate::cell::split(&column.kind, &mut rest);
        if id == referring.column {
            return cell;
        }
    }
    &[]
}
