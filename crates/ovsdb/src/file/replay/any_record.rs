//! Records in any notation, and all errors in them.

use super::{Replay, Staged, no_such_row};
use crate::cell::{self, Checks, no_names};
use crate::database::Database;
use crate::error::Error;
use crate::schema::{ColumnRef, TableId};
use crate::uuid::Uuid;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use wire::json::{Kind, Value};

impl Replay {
    /// Parses a record. Returns its comment.
    pub(super) fn stage(&mut self, value: Value<'_>, database: &Database) -> Result<Option<String>, Error> {
        self.staged.clear();
        self.cells.clear();
        let mut comment = None;
        let mut is_diff = false;
        // Of members with the same name the last counts; a table's members may precede `_is_diff`.
        let mut tables: Vec<(TableId, Value<'_>)> = Vec::new();
        for (name, member) in value.members() {
            if let Some((id, _)) = self.schema.find_table(&name) {
                tables.retain(|(other, _)| *other != id);
                tables.push((id, member));
                continue;
            }
            match (&*name, member.kind()) {
                ("_date", Kind::Integer) => {}
                ("_comment", Kind::String) => comment = member.as_string().map(Cow::into_owned),
                ("_is_diff", Kind::Boolean) => is_diff = member.as_boolean() == Some(true),
                _ => return Err(no_such_table(value, &name)),
            }
        }
        for (table, rows) in tables {
            if rows.kind() != Kind::Object {
                return Err(Error::syntax_error(rows, "object expected"));
            }
            for (name, row) in last_of_equal(rows) {
                let uuid = Uuid::parse(&name).ok_or_else(|| not_a_uuid(rows, &name))?;
                let cells = self.stage_row(table, &uuid, row, is_diff, database)?;
                self.staged.push(Staged { table, uuid, cells });
            }
        }
        Ok(comment)
    }

    fn stage_row(
        &mut self,
        table: TableId,
        uuid: &Uuid,
        row: Value<'_>,
        is_diff: bool,
        database: &Database,
    ) -> Result<Option<Range<usize>>, Error> {
        if row.is_null() {
            return match database.row_by_uuid(table, uuid) {
                Some(_) => Ok(None),
                None => Err(no_such_row(uuid)),
            };
        }
        let start = self.cells.len();
        self.build(table, uuid, row, is_diff, database)?;
        Ok(Some(start..self.cells.len()))
    }

    /// Appends to `cells` the row as it is after the record.
    pub(super) fn build(
        &mut self,
        id: TableId,
        uuid: &Uuid,
        row: Value<'_>,
        is_diff: bool,
        database: &Database,
    ) -> Result<(), Error> {
        let Self { schema, differences, parts, cells, .. } = self;
        let (table, differences) = (schema.table(id), &differences[id.index()]);
        if row.kind() != Kind::Object {
            return Err(Error::syntax_error(row, "row must be JSON object"));
        }
        let old = database.row_by_uuid(id, uuid).map(|(_, row)| row);
        let is_diff = is_diff && old.is_some();
        parts.start(table);
        for (name, value) in row.members() {
            let column = match table.find_column(&name) {
                Some(ColumnRef::Column(column)) => column,
                Some(ColumnRef::Uuid | ColumnRef::Version) => continue,
                None => {
                    let details = format!("No column {name} in table {}.", table.name);
                    return Err(Error::tagged_syntax_error(row, "unknown column", details));
                }
            };
            let difference = differences.get(column.index()).and_then(Option::as_ref).filter(|_| is_diff);
            let kind = difference.unwrap_or_else(|| &table.column(column).kind);
            parts.take(column, |out| cell::parse(kind, value, &mut no_names, Checks::All, out))?;
        }
        parts.assemble(table, old, is_diff, cells)
    }
}

/// The members of an object; of those with the same name the last.
fn last_of_equal(object: Value<'_>) -> Vec<(Cow<'_, str>, Value<'_>)> {
    let mut members: Vec<(Cow<'_, str>, Value<'_>)> = object.members().collect();
    let mut seen = HashSet::new();
    members.reverse();
    members.retain(|(name, _)| seen.insert(name.clone()));
    members.reverse();
    members
}

#[cold]
fn not_a_uuid(rows: Value<'_>, name: &str) -> Error {
    Error::syntax_error(rows, format!("\"{name}\" is not a valid UUID"))
}

#[cold]
fn no_such_table(record: Value<'_>, name: &str) -> Error {
    Error::tagged_syntax_error(record, "unknown table", format!("No table named {name}."))
}
