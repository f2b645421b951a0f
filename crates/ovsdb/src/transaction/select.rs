//! `select`

use std::cmp::Ordering;
use std::collections::HashSet;

use super::Transaction;
use super::operation::{Member, Operation};
use crate::cell;
use crate::error::Error;
use crate::row::{Row, uuid_type};
use crate::schema::{ColumnRef, TableSchema};
use wire::json::{Value, write};

impl Transaction<'_, '_> {
    pub(super) fn select(&mut self, operation: &Operation<'_, '_>, reply: &mut Vec<u8>) -> Result<(), Error> {
        let (table, schema) = operation.table()?;
        let condition = self.take_condition(schema, operation.need(Member::Where)?)?;
        let columns = columns(schema, operation.get(Member::Columns))?;
        let sort = operation.get(Member::Sort).map(|json| schema.parse_column_set(json)).transpose()?;
        let candidates = self.candidates(table, schema, &condition);
        self.note_shown(&condition, &columns);
        let (database, shown) = (&*self.changes.database, &self.shown);
        let mut seen = Distinct::new(&columns);
        let rows =
            candidates.filter_map(|row| database.row(table, row).map(|this| shown.row(table, row, this)));
        let mut rows = rows.filter(|row| condition.evaluate(*row) && seen.is_new(*row));
        let mut writer = Writer::new(schema, &columns, reply);
        let bound = &mut self.bound;
        let mut write = |row: Row<'_>| {
            writer.row(row);
            bound.check(writer.reply)
        };
        match sort.filter(|columns| !columns.is_empty()) {
            None => rows.try_for_each(&mut write)?,
            Some(sort) => {
                let mut rows: Vec<Row<'_>> = rows.collect();
                rows.sort_by(|one, other| compare(schema, &sort, *one, *other));
                rows.into_iter().try_for_each(write)?;
            }
        }
        reply.extend_from_slice(b"]}");
        self.put_condition(condition);
        Ok(())
    }
}

/// The requested columns: all if none are stated.
pub(super) fn columns(schema: &TableSchema, json: Option<Value<'_>>) -> Result<Vec<ColumnRef>, Error> {
    match json {
        Some(json) => schema.parse_column_set(json),
        None => {
            let columns = schema.columns().map(|(id, _)| ColumnRef::Column(id));
            Ok([ColumnRef::Uuid, ColumnRef::Version].into_iter().chain(columns).collect())
        }
    }
}

/// Distinguishes rows by some columns.
struct Distinct<'a> {
    columns: &'a [ColumnRef],
    /// `None` if all rows are distinct anyway.
    seen: Option<HashSet<Vec<u8>>>,
}

impl<'a> Distinct<'a> {
    fn new(columns: &'a [ColumnRef]) -> Self {
        Self { columns, seen: (!columns.contains(&ColumnRef::Uuid)).then(HashSet::new) }
    }

    fn is_new(&mut self, row: Row<'_>) -> bool {
        let Some(seen) = &mut self.seen else { return true };
        let mut key = Vec::new();
        self.columns.iter().for_each(|column| key.extend_from_slice(&row.any_cell(*column)));
        seen.insert(key)
    }
}

/// Writes rows as objects.
struct Writer<'a, 'o> {
    /// In the order of a row's cells, so that one pass finds them all.
    columns: Vec<(&'a str, ColumnRef)>,
    schema: &'a TableSchema,
    reply: &'o mut Vec<u8>,
    is_first: bool,
}

impl<'a, 'o> Writer<'a, 'o> {
    fn new(schema: &'a TableSchema, columns: &[ColumnRef], reply: &'o mut Vec<u8>) -> Self {
        let mut columns: Vec<_> =
            columns.iter().map(|column| (schema.column_name(*column), *column)).collect();
        columns.sort_unstable_by_key(|(_, column)| *column);
        reply.extend_from_slice(b"{\"rows\":[");
        Self { columns, schema, reply, is_first: true }
    }

    fn row(&mut self, row: Row<'_>) {
        if !std::mem::take(&mut self.is_first) {
            self.reply.push(b',');
        }
        self.reply.push(b'{');
        let mut cells = self.schema.columns().zip(row.cells());
        for (place, (name, column)) in self.columns.iter().enumerate() {
            if place > 0 {
                self.reply.push(b',');
            }
            write::string(self.reply, name);
            self.reply.push(b':');
            match column {
                // The requested columns are ascending.
                ColumnRef::Column(id) => {
                    if let Some(((_, column), cell)) = cells.find(|((other, _), _)| other == id) {
                        cell::write_json(&column.kind, cell, self.reply);
                    }
                }
                column => row.write_column(*column, self.reply),
            }
        }
        self.reply.push(b'}');
    }
}

fn compare(schema: &TableSchema, columns: &[ColumnRef], one: Row<'_>, other: Row<'_>) -> Ordering {
    columns.iter().fold(Ordering::Equal, |order, column| {
        order.then_with(|| {
            let (one, other) = (one.any_cell(*column), other.any_cell(*column));
            match column {
                ColumnRef::Column(id) => cell::compare(&schema.column(*id).kind, &one, &other),
                _ => cell::compare(&uuid_type(), &one, &other),
            }
        })
    })
}
