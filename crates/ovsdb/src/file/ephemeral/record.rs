//! The text of the records.
//!
//! ```text
//! {"_id":"<id>","gone":[["<table>","<uuid>"],...],"changed":[["<table>","<uuid>",{"<column>":<value>,...}],...]}
//! ```

use super::super::header::Header;
use super::super::record::write_member;
use super::super::transaction_id;
use super::is_ephemeral;
use crate::cell;
use crate::database::Database;
use crate::history::{COMMITS_MAX, CommitId};
use crate::row::Row;
use crate::schema::{ColumnSchema, TableSchema};
use crate::uuid::Uuid;
use sha1::{Digest, Sha1};
use wire::json::write;

/// Appends a record.
pub(super) fn write(id: Uuid, body: &[u8], out: &mut Vec<u8>) {
    let mut text = b"{\"_id\":".to_vec();
    write_uuid(id, &mut text);
    text.extend_from_slice(body);
    text.extend_from_slice(b"}\n");
    let checksum = Sha1::digest(&text).into();
    Header { length: text.len() as u64, checksum }.write(0, out);
    out.extend_from_slice(&text);
}

/// Appends records: the values after the oldest commit from which all are known, and the changes of each later commit.
pub(super) fn write_history(database: &Database, out: &mut Vec<u8>) {
    let id_of = |commit| database.transaction_id_of(commit).unwrap_or_default();
    let last = database.commit_number().0;
    let commits = (database.oldest_kept().0..=last).rev().map(CommitId).take(COMMITS_MAX);
    let known = commits.take_while(|commit| transaction_id::is_tagged(id_of(*commit)));
    let Some(first) = known.last() else { return };
    let mut body = Vec::new();
    let mut list = List::new("changed");
    for (table, row) in database.rows_as_of(first) {
        write_row(database.schema().table(table), None, row, &mut list, &mut body);
    }
    list.end(&mut body);
    write(id_of(first), &body, out);
    for commit in (first.0 + 1..=last).map(CommitId) {
        body.clear();
        write_commit(database, commit, &mut body);
        write(id_of(commit), &body, out);
    }
}

/// Appends the changes of a commit to ephemeral columns: the body of its record.
pub(super) fn write_commit(database: &Database, commit: CommitId, out: &mut Vec<u8>) {
    let changes = || {
        let changes = database.changes_of(commit);
        let with_table = changes.map(|change| (database.schema().table(change.table), change));
        with_table.filter(|(table, _)| is_ephemeral(table))
    };
    // A row that is deleted and inserted again in one commit was deleted first.
    let mut list = List::new("gone");
    for (table, change) in changes() {
        if let (Some(old), None) = (change.old, change.new)
            && differing(table, None, old).next().is_some()
        {
            list.begin(table, old, out);
            out.push(b']');
        }
    }
    list.end(out);
    let mut list = List::new("changed");
    for (table, change) in changes() {
        if let Some(new) = change.new {
            write_row(table, change.old, new, &mut list, out);
        }
    }
    list.end(out);
}

/// Appends the ephemeral columns of a row that differ from before, if there are any.
fn write_row(table: &TableSchema, old: Option<Row<'_>>, new: Row<'_>, list: &mut List, out: &mut Vec<u8>) {
    let mut is_first = true;
    for (column, cell) in differing(table, old, new) {
        if is_first {
            list.begin(table, new, out);
        }
        out.extend_from_slice(if is_first { b",{" } else { b"," });
        is_first = false;
        write_member(&column.name, out);
        cell::write_json(&column.kind, cell, out);
    }
    if !is_first {
        out.extend_from_slice(b"}]");
    }
}

/// The ephemeral columns of a row that differ from those of another, or from their defaults.
fn differing<'a>(
    table: &'a TableSchema,
    old: Option<Row<'a>>,
    new: Row<'a>,
) -> impl Iterator<Item = (&'a ColumnSchema, &'a [u8])> {
    let mut old = old.map(|old| old.cells());
    table.columns().zip(new.cells()).filter_map(move |((_, column), cell)| {
        let old = old.as_mut().and_then(Iterator::next).unwrap_or(&column.default);
        (column.ephemeral && cell != old).then_some((column, cell))
    })
}

/// A member whose value is an array; omitted while it is empty.
struct List {
    name: &'static str,
    is_empty: bool,
}

impl List {
    fn new(name: &'static str) -> Self {
        Self { name, is_empty: true }
    }

    /// Appends `["table","uuid"` as the beginning of the next element.
    fn begin(&mut self, table: &TableSchema, row: Row<'_>, out: &mut Vec<u8>) {
        out.push(b',');
        if self.is_empty {
            write_member(self.name, out);
            out.push(b'[');
            self.is_empty = false;
        }
        out.push(b'[');
        write::string(out, &table.name);
        out.push(b',');
        write_uuid(row.uuid(), out);
    }

    fn end(self, out: &mut Vec<u8>) {
        if !self.is_empty {
            out.push(b']');
        }
    }
}

/// Appends `"uuid"`.
fn write_uuid(uuid: Uuid, out: &mut Vec<u8>) {
    out.push(b'"');
    uuid.write(out);
    out.push(b'"');
}
