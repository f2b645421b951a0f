//! The text of records: of a commit, of a snapshot's rows.
//!
//! COMPAT: a stock server of version 3.1 misreads some differences of columns with several elements. It rejects a
//! difference of more elements than the column may have, and it takes one for the whole value if the column has the
//! default of its type (which for a column of at least one element is not empty). A commit with such a difference is
//! written without `_is_diff`, in whole values, which every version reads.

use crate::cell;
use crate::column_type::{ColumnType, UNLIMITED};
use crate::database::Database;
use crate::history::{Change, CommitId};
use crate::row::Row;
use crate::schema::TableSchema;
use wire::json::write;

/// The result of writing a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// The text was written.
    Record,
    /// There is nothing to log.
    Nothing,
    /// Some server would misread a difference in it.
    Misleading,
}

/// Appends the record's text, with its line end. Returns false if the commit changes nothing that a log keeps; then
/// nothing was appended.
pub(super) fn write_commit(
    database: &Database,
    commit: CommitId,
    now_ms: u64,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> bool {
    let start = out.len();
    for differences in [true, false] {
        out.truncate(start);
        write_head(now_ms, database.comment(commit), differences, out);
        match write_changes(database, commit, differences, scratch, out) {
            Written::Record => {
                out.extend_from_slice(b"}\n");
                return true;
            }
            Written::Nothing => break,
            Written::Misleading => {}
        }
    }
    out.truncate(start);
    false
}

/// Appends the beginning of a record, up to the tables.
pub(super) fn write_head(now_ms: u64, comment: Option<&str>, differences: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"_date\":");
    write::unsigned(out, now_ms);
    if differences {
        out.extend_from_slice(b",\"_is_diff\":true");
    }
    if let Some(comment) = comment.filter(|comment| !comment.is_empty()) {
        out.extend_from_slice(b",\"_comment\":");
        write::string(out, comment);
    }
}

fn write_changes(
    database: &Database,
    commit: CommitId,
    differences: bool,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Written {
    let mut open = None;
    for change in database.changes_of(commit) {
        let table = database.schema().table(change.table);
        let before = out.len();
        if open == Some(change.table) {
            out.push(b',');
        } else {
            if open.is_some() {
                out.push(b'}');
            }
            out.push(b',');
            write_member(&table.name, out);
            out.push(b'{');
        }
        match write_change(table, &change, differences, scratch, out) {
            Written::Record => open = Some(change.table),
            Written::Nothing => out.truncate(before),
            Written::Misleading => return Written::Misleading,
        }
    }
    match open {
        Some(_) => {
            out.push(b'}');
            Written::Record
        }
        None => Written::Nothing,
    }
}

/// Appends `"name":`.
pub(super) fn write_member(name: &str, out: &mut Vec<u8>) {
    write::string(out, name);
    out.push(b':');
}

fn write_change(
    table: &TableSchema,
    change: &Change<'_>,
    differences: bool,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Written {
    match (change.old, change.new) {
        (None, None) => Written::Nothing,
        (Some(old), None) => {
            write_row_name(old, out);
            out.extend_from_slice(b"null");
            Written::Record
        }
        (None, Some(new)) => {
            write_row(table, new, out);
            Written::Record
        }
        (Some(old), Some(new)) => write_update(table, old, new, differences, scratch, out),
    }
}

/// Appends `"uuid":`.
fn write_row_name(row: Row<'_>, out: &mut Vec<u8>) {
    out.push(b'"');
    row.uuid().write(out);
    out.extend_from_slice(b"\":");
}

/// Appends a row that the reader does not know yet: `"uuid":{...}`.
pub(super) fn write_row(table: &TableSchema, row: Row<'_>, out: &mut Vec<u8>) {
    write_row_name(row, out);
    out.push(b'{');
    let start = out.len();
    for ((_, column), cell) in table.columns().zip(row.cells()) {
        if !column.ephemeral && cell != column.default.as_slice() {
            if out.len() > start {
                out.push(b',');
            }
            write_member(&column.name, out);
            cell::write_json(&column.kind, cell, out);
        }
    }
    out.push(b'}');
}

fn write_update(
    table: &TableSchema,
    old: Row<'_>,
    new: Row<'_>,
    differences: bool,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Written {
    write_row_name(new, out);
    out.push(b'{');
    let start = out.len();
    for (((_, column), old), new) in table.columns().zip(old.cells()).zip(new.cells()) {
        if column.ephemeral || old == new {
            continue;
        }
        if out.len() > start {
            out.push(b',');
        }
        write_member(&column.name, out);
        if differences && column.kind.is_composite() {
            scratch.clear();
            cell::diff(&column.kind, old, new, scratch);
            if is_misleading(&column.kind, old == column.default.as_slice(), scratch) {
                return Written::Misleading;
            }
            cell::write_json(&column.kind, scratch, out);
        } else {
            cell::write_json(&column.kind, new, out);
        }
    }
    if out.len() == start {
        return Written::Nothing;
    }
    out.push(b'}');
    Written::Record
}

fn is_misleading(kind: &ColumnType, old_is_default: bool, difference: &[u8]) -> bool {
    kind.n_min > 0 && old_is_default
        || kind.n_max != UNLIMITED && cell::len(kind, difference) > kind.n_max as usize
}
