//! Log lines about changes by transactions in tables that an operator has selected (`ovsdb-server/tlog-set`).
//!
//! A line is made once the commit is in the database's log: a commit that could not be written does not count. The
//! stock server shows a row's columns in the order of its hash table; here `_uuid` and `_version` come first, then the
//! others by name.

use super::databases::Hosted;
use super::{Log, Server};
use crate::cell;
use crate::history::CommitId;
use crate::row::Row;
use crate::schema::TableId;
use std::fmt::Write as _;

impl<L: Log> Server<L> {
    /// Starts or stops logging the changes of a table. Returns false if there is none with this name.
    pub fn log_table(&mut self, database: &str, table: &str, logged: bool) -> bool {
        // Earlier commits are not logged.
        self.flush_group();
        let hosted = self.databases.find(database).and_then(|id| self.databases.get_mut(id));
        let Some(hosted) = hosted else { return false };
        let Some((id, _)) = hosted.database.schema().find_table(table) else { return false };
        if logged {
            hosted.logged_tables.insert(id);
        } else {
            hosted.logged_tables.remove(&id);
        }
        true
    }

    /// Returns true if the changes of a table are logged.
    pub fn is_table_logged(&self, database: &str, table: TableId) -> bool {
        let hosted = self.databases.find(database).and_then(|id| self.databases.get(id));
        hosted.is_some_and(|hosted| hosted.logged_tables.contains(&table))
    }

    /// Takes the lines about changes since the last call.
    pub fn take_table_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.table_log)
    }
}

/// Appends a line for each change of a logged table after the commit `known`.
#[inline]
pub(super) fn write<L>(hosted: &Hosted<L>, known: CommitId, lines: &mut Vec<String>) {
    if !hosted.logged_tables.is_empty() {
        write_changes(hosted, known, lines);
    }
}

#[cold]
fn write_changes<L>(hosted: &Hosted<L>, known: CommitId, lines: &mut Vec<String>) {
    let newest = hosted.database.commit_number();
    for commit in (known.0 + 1..=newest.0).map(CommitId) {
        for change in hosted.database.changes_of(commit) {
            if !hosted.logged_tables.contains(&change.table) {
                continue;
            }
            let (operation, row) = match (change.old, change.new) {
                (None, Some(row)) => ("inserted", row),
                (Some(_), Some(row)) => ("updated", row),
                (Some(row), None) => ("deleted", row),
                (None, None) => continue,
            };
            lines.push(line(operation, row));
        }
    }
}

fn line(operation: &str, row: Row<'_>) -> String {
    let mut line = format!("table:{},op:{operation}", row.schema().name);
    let _ = write!(line, ",_uuid:{},_version:{}", row.uuid(), row.version_uuid());
    for (id, column) in row.schema().columns() {
        let _ = write!(line, ",{}:{}", column.name, cell::to_text(&column.kind, row.cell(id)));
    }
    line
}
