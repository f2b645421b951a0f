//! How a transaction sees rows that it has changed: with the new values, and the old `_version`, which commit replaces.

use std::collections::HashMap;

use super::Transaction;
use crate::condition::Condition;
use crate::history::Entry;
use crate::row::{self, Row, RowId};
use crate::schema::{ColumnRef, TableId};

/// The versions that changed rows had before.
#[derive(Default)]
pub(super) struct Shown {
    /// The version that the transaction writes.
    version: u64,
    before: HashMap<(TableId, RowId), u64>,
    /// Entries that have been processed.
    noted: usize,
}

impl Shown {
    pub fn new(version: u64) -> Self {
        Self { version, ..Self::default() }
    }

    fn note(&mut self, entries: &[Entry]) {
        for entry in entries.iter().skip(self.noted) {
            if let Some(old) = &entry.old {
                self.before.insert((entry.table, entry.row), row::version_of(old.bytes()));
            }
        }
        self.noted = entries.len();
    }

    /// The row as it is shown.
    pub fn row<'r>(&self, table: TableId, id: RowId, row: Row<'r>) -> Row<'r> {
        if self.noted == 0 || row.version() != self.version {
            return row;
        }
        self.before.get(&(table, id)).map_or(row, |version| row.shown_as(*version))
    }
}

impl Transaction<'_, '_> {
    /// To be called before [`Shown::row`] if a condition or columns read versions: it records what has changed since
    /// the last call.
    pub(super) fn note_shown(&mut self, condition: &Condition, columns: &[ColumnRef]) {
        if columns.contains(&ColumnRef::Version)
            || condition.columns().any(|column| column == ColumnRef::Version)
        {
            self.shown.note(&self.changes.database.scratch.entries);
        }
    }
}
