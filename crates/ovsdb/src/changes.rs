//! The changes of a transaction or a log record so far, and whether they may stay.
//!
//! ```text
//!   insert_row, replace_row, delete_row ──> current tables             replaced records ──> entries (Scratch)
//!   settle ──> counts and garbage, limits, weak references, indexes ──> Ok: the entries are a commit
//!                                                                  └──> Err: abort undoes everything
//! ```
//! Records written by these changes have the version of the future commit, so the first change of a row is
//! distinguished from later ones without a table. Entries are the rows that differ; the tables beside the rows
//! (`crate::reference`, declared indexes) learn of them once they are settled.

mod settle;
mod violation;
mod weak;

use std::collections::HashMap;

use crate::database::Database;
use crate::error::Error;
use crate::history::{Entry, Fate};
use crate::row::{self, RowId};
use crate::schema::{DatabaseSchema, TableId, TableSchema};
use crate::uuid::Uuid;

/// Changes of a database that are not committed yet.
pub(crate) struct Changes<'a> {
    pub database: &'a mut Database,
    pub schema: &'a DatabaseSchema,
    /// The number of the commit that they will become.
    pub version: u64,
    /// Rows that existed before and were deleted, computed on demand.
    deleted: Option<HashMap<(TableId, Uuid), RowId>>,
    /// Changes of reference counts that [`Self::settle`] has made so far.
    adjustments: Vec<(TableId, RowId, i32)>,
}

impl<'a> Changes<'a> {
    /// The changes in the database's entries, if any.
    pub fn new(database: &'a mut Database, schema: &'a DatabaseSchema) -> Self {
        let version = database.history.last().0 + 1;
        Self { database, schema, version, deleted: None, adjustments: Vec::new() }
    }

    /// Records that a table is written to, even if nothing changes.
    #[inline]
    pub fn touch(&mut self, table: TableId) {
        let touched = &mut self.database.scratch.touched;
        if touched.last() != Some(&table) && !touched.contains(&table) {
            touched.push(table);
        }
    }

    /// Inserts the row whose bytes are in the scratch buffer.
    pub fn insert_row(&mut self, table: TableId, schema: &TableSchema) -> Result<RowId, Error> {
        self.touch(table);
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let record = records.store(&scratch.row).ok_or_else(crate::index::no_memory)?;
        let row = tables[table].insert(schema, records, record)?;
        scratch.entries.push(Entry { old: None, row, table, fate: Fate::Inserted });
        Ok(row)
    }

    /// Replaces a row with the one whose bytes are in the scratch buffer.
    pub fn replace_row(&mut self, table: TableId, schema: &TableSchema, row: RowId) -> Result<(), Error> {
        self.touch(table);
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let record = records.store(&scratch.row).ok_or_else(crate::index::no_memory)?;
        if let Some(old) = tables[table].replace(schema, records, row, record) {
            scratch.note_replaced(records, table, row, self.version, old, Fate::Changed);
        }
        Ok(())
    }

    /// Removes a row.
    pub fn delete_row(&mut self, table: TableId, schema: &TableSchema, row: RowId) {
        self.touch(table);
        let Database { tables, records, scratch, .. } = &mut *self.database;
        if let Some(old) = tables[table].take(schema, records, row) {
            if let Some(deleted) = &mut self.deleted
                && row::version_of(old.bytes()) != self.version
            {
                deleted.insert((table, row::uuid_of(old.bytes())), row);
            } else {
                // A row that was changed before it was deleted existed before, too: only the entries tell.
                self.deleted = None;
            }
            scratch.note_replaced(records, table, row, self.version, old, Fate::Deleted);
        }
    }

    /// The row with this UUID that existed before and was deleted.
    pub fn find_deleted(&mut self, table: TableId, uuid: Uuid) -> Option<RowId> {
        let Database { tables, scratch, .. } = &*self.database;
        let deleted = self.deleted.get_or_insert_with(|| {
            let entries = scratch.entries.iter();
            entries
                .filter(|entry| tables[entry.table].record(entry.row).is_none())
                .filter_map(|entry| {
                    Some(((entry.table, row::uuid_of(entry.old.as_ref()?.bytes())), entry.row))
                })
                .collect()
        });
        deleted.get(&(table, uuid)).copied()
    }

    /// Undoes all changes.
    pub fn abort(&mut self) {
        for (table, row, by) in self.adjustments.drain(..).rev() {
            self.database.tables[table].adjust_count(row, -by);
        }
        let Database { tables, records, scratch, .. } = &mut *self.database;
        let (mut settle, mut failed) = (Vec::new(), None);
        for Entry { old, row, table: id, .. } in scratch.entries.drain(..).rev() {
            let (table, schema) = (&mut tables[id], self.schema.table(id));
            let existed = old.is_some();
            let new = match old {
                Some(old) if table.record(row).is_some() => table.replace(schema, records, row, old),
                Some(old) => {
                    // Its place in the index was freed when it was removed, so there is memory for it.
                    failed = table.restore(schema, records, row, old).err().or(failed);
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
            failed = tables[id].settle_unique(self.schema.table(id), records, row).err().or(failed);
        }
        if let Some(error) = failed {
            self.database.note_damage(&error);
        }
    }
}
