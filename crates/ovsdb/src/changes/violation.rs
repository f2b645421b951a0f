//! Errors of commit. If several apply, the stock server reports the first that it finds in its hash tables; so does
//! this, as far as that order is known here.

use std::collections::HashMap;

use super::Changes;
use crate::cell;
use crate::database::Database;
use crate::error::Error;
use crate::history::Entry;
use crate::member_order;
use crate::row::{self, Row, RowId};
use crate::schema::{ColumnId, ColumnRef, DatabaseSchema, TableId, TableSchema};
use crate::table::Table;
use crate::uuid::Uuid;

impl Changes<'_> {
    /// The UUID of the row of an entry.
    pub(super) fn uuid_of(&self, place: usize) -> Uuid {
        let Some(entry) = self.database.scratch.entries.get(place) else { return Uuid::zero() };
        let new = self.database.tables[entry.table].bytes(entry.row);
        let old = entry.old.as_ref().map(memory::Record::bytes);
        old.or(new).map_or(Uuid::zero(), row::uuid_of)
    }

    /// The entries in the order in which the stock server visits them: tables in the order of their first write, rows
    /// by the hashes of their UUIDs.
    pub(super) fn stock_entries(&self) -> Vec<usize> {
        let entries = &self.database.scratch.entries;
        let rows = entries.iter().enumerate().map(|(place, entry)| (entry.table, self.uuid_of(place), place));
        self.stock_order(rows.collect())
    }

    /// These rows in the order in which the stock server visits the rows of a transaction.
    pub(super) fn stock_order<T: Copy>(&self, rows: Vec<(TableId, Uuid, T)>) -> Vec<T> {
        let mut tables = self.database.scratch.touched.clone();
        for (table, ..) in &rows {
            if !tables.contains(table) {
                tables.push(*table);
            }
        }
        let mut order = Vec::with_capacity(rows.len());
        for table in tables {
            let here: Vec<_> = rows.iter().filter(|(other, ..)| *other == table).collect();
            let walk = member_order::walk_hashes(here.iter().map(|(_, uuid, _)| hash_of(*uuid)));
            order.extend(walk.into_iter().filter_map(|place| here.get(place).map(|(.., row)| *row)));
        }
        order
    }

    /// The error about a dangling reference: of several, the one that the stock server finds first.
    #[cold]
    pub(super) fn first_missing(&mut self) -> Option<Error> {
        for place in self.stock_entries() {
            let Some((table_id, referrings)) = self.referring(place) else { continue };
            for column in stock_columns(self.schema.table(table_id)) {
                let Some(referring) =
                    referrings.iter().find(|other| ColumnRef::Column(other.column) == column)
                else {
                    continue;
                };
                for (target, uuid) in self.changed_references(place, referring).1 {
                    let found = self.database.tables[target].find(&uuid);
                    if found.is_none() && self.find_deleted(target, uuid).is_none() {
                        let row = self.uuid_of(place);
                        return Some(no_such_target(
                            self.schema,
                            table_id,
                            referring.column,
                            row,
                            target,
                            uuid,
                        ));
                    }
                }
            }
        }
        None
    }

    pub(super) fn duplicate(&self, table: TableId, index: usize, row: RowId, other: RowId) -> Error {
        let Database { tables, scratch, .. } = &*self.database;
        let (this, schema) = (&tables[table], self.schema.table(table));
        let old = |row| {
            let entry = scratch.entries.iter().find(|entry| entry.table == table && entry.row == row)?;
            Some(entry.old.as_ref().map(memory::Record::bytes))
        };
        duplicate(this, schema, index, row, other, &old)
    }

    /// The error about two rows with the same values in a declared index: of several, those that the stock server finds
    /// first.
    #[cold]
    pub(super) fn first_duplicate(&self) -> Option<Error> {
        let mut seen: HashMap<(TableId, usize, Vec<u8>), RowId> = HashMap::new();
        for place in self.stock_entries() {
            let &Entry { table, row, .. } = self.database.scratch.entries.get(place)?;
            let (this, schema) = (&self.database.tables[table], self.schema.table(table));
            let Some(bytes) = this.row(schema, row) else { continue };
            for (index, columns) in schema.indexes.iter().enumerate() {
                let mut key = Vec::new();
                columns.iter().for_each(|column| key.extend_from_slice(bytes.cell(*column)));
                let is_untouched = |bytes: &[u8]| row::version_of(bytes) != self.version;
                let other = seen.insert((table, index, key), row);
                if let Some(other) = other.or_else(|| this.find_settled(schema, index, row, is_untouched)) {
                    return Some(self.duplicate(table, index, row, other));
                }
            }
        }
        None
    }
}

/// The stock server's hash of a UUID.
fn hash_of(uuid: Uuid) -> u32 {
    uuid.0.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// All columns of a table in the order in which the stock server visits them.
fn stock_columns(schema: &TableSchema) -> Vec<ColumnRef> {
    let mut columns = vec![ColumnRef::Uuid, ColumnRef::Version];
    columns.extend(schema.columns().map(|(id, _)| ColumnRef::Column(id)));
    let names: Vec<&str> = columns.iter().map(|column| schema.column_name(*column)).collect();
    member_order::walk(names.iter().copied())
        .into_iter()
        .filter_map(|place| columns.get(place).copied())
        .collect()
}

#[cold]
pub(super) fn too_many_rows(schema: &TableSchema, rows: usize) -> Error {
    Error::constraint_violation(format!(
        "transaction causes \"{}\" table to contain {rows} rows, greater than the schema-defined limit of {} row(s)",
        schema.name, schema.max_rows
    ))
}

#[cold]
pub(super) fn no_such_target(
    schema: &DatabaseSchema,
    table: TableId,
    column: ColumnId,
    row: Uuid,
    target: TableId,
    uuid: Uuid,
) -> Error {
    let name = |table| schema.table(table).name.as_str();
    let column = schema.table(table).column_name(ColumnRef::Column(column));
    Error::referential_integrity(format!(
        "Table {} column {column} row {row} references nonexistent row {uuid} in table {}.",
        name(table),
        name(target)
    ))
}

/// A row before the transaction: `None` if unknown, `Some(None)` if it did not exist.
type Before<'a> = &'a dyn Fn(RowId) -> Option<Option<&'a [u8]>>;

/// The error about two rows with the same values in a declared index.
#[cold]
pub(super) fn duplicate<'a>(
    table: &Table,
    schema: &TableSchema,
    index: usize,
    row: RowId,
    other: RowId,
    before: Before<'a>,
) -> Error {
    let columns = schema.indexes.get(index).map_or(&[][..], Vec::as_slice);
    let (Some(mut first), Some(mut second)) = (table.row(schema, other), table.row(schema, row)) else {
        return Error::internal("duplicate rows that do not exist");
    };
    let mut ids = (other, row);
    let order = stock_columns(schema).into_iter().map(|column| {
        let (one, two) = (first.any_cell(column), second.any_cell(column));
        match column {
            ColumnRef::Column(id) => cell::compare(&schema.column(id).kind, &one, &two),
            _ => one.cmp(&two),
        }
    });
    if { order }.find(|order| order.is_ne()).is_some_and(std::cmp::Ordering::is_lt) {
        std::mem::swap(&mut first, &mut second);
        ids = (row, other);
    }
    let names: Vec<String> = columns
        .iter()
        .map(|column| format!("\"{}\"", schema.column_name(ColumnRef::Column(*column))))
        .collect();
    Error::constraint_violation(format!(
        "Transaction causes multiple rows in \"{}\" table to have identical values ({}) for index on {} {}.  First \
        row, \
         with UUID {}, {}  Second row, with UUID {}, {}",
        schema.name,
        values(columns, first),
        if columns.len() == 1 { "column" } else { "columns" },
        english_list(&names),
        first.uuid(),
        past(columns, first, before(ids.0)),
        second.uuid(),
        past(columns, second, before(ids.1)),
    ))
}

fn past(columns: &[ColumnId], row: Row<'_>, before: Option<Option<&[u8]>>) -> String {
    match before {
        None => "existed in the database before this transaction and was not modified by the transaction."
            .to_owned(),
        Some(None) => "was inserted by this transaction.".to_owned(),
        Some(Some(old)) => {
            let old = Row::new(row.schema(), old, 0);
            if columns.iter().all(|column| old.cell(*column) == row.cell(*column)) {
                return "existed in the database before this transaction, which modified some of the row's columns but \
                        not any columns in this index."
                    .to_owned();
            }
            format!("had the following index values before the transaction: {}.", values(columns, old))
        }
    }
}

fn values(columns: &[ColumnId], row: Row<'_>) -> String {
    let texts: Vec<String> =
        columns.iter().map(|id| cell::to_text(&row.schema().column(*id).kind, row.cell(*id))).collect();
    english_list(&texts)
}

fn english_list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [one, two] => format!("{one} and {two}"),
        [first @ .., last] => format!("{}, and {last}", first.join(", ")),
    }
}
