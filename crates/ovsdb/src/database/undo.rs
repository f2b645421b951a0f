//! Undoing commits whose write to the log failed.

use super::Database;
use crate::history::{CommitId, Entry};

impl Database {
    /// Brings the database back to where it was after `commit`. Later commits must all be kept: see [`Self::hold_from`].
    pub fn undo_since(&mut self, commit: CommitId) {
        while self.history.last() > commit {
            let Some(entries) = self.history.take_last() else { return };
            self.undo(entries);
        }
    }

    fn undo(&mut self, entries: Vec<Entry>) {
        // What the commit added to other rows' counts and lists goes first, while the rows that it refers to are there; what it
        // took from them comes back last.
        let schema = std::sync::Arc::clone(&self.schema);
        self.count_strong_references(&entries, -1);
        let mut undone = Vec::new();
        for Entry { old, row, table: table_id, fate } in entries {
            let (Some(table), Some(table_schema)) =
                (self.tables.get_mut(table_id.index()), schema.table(table_id))
            else {
                continue;
            };
            let new = match old {
                Some(old) if table.record(row).is_some() => {
                    table.replace(table_schema, &mut self.records, row, old)
                }
                Some(old) => {
                    // Without memory for the index the row would be lost: its place in it has just been freed.
                    let _ = table.restore(table_schema, &mut self.records, row, old);
                    None
                }
                None => table.take(table_schema, &mut self.records, row),
            };
            undone.push(Entry { old: new, row, table: table_id, fate });
        }
        self.count_strong_references(&undone, 1);
        self.note_weak_references(&undone);
        let _ = self.note_unique(&undone);
        for Entry { old, row, table, .. } in undone {
            if let Some(record) = old {
                self.records.free(record);
            }
            if let Some(table) = self.tables.get_mut(table.index())
                && table.record(row).is_none()
            {
                table.counts.remove(&row);
                table.release(row);
            }
        }
    }
}
