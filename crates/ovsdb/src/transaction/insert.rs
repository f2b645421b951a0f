//! `insert`

use super::Transaction;
use super::operation::{Member, Operation};
use crate::cell;
use crate::error::Error;
use crate::member_order;
use crate::row::Row;
use crate::schema::TableSchema;
use crate::uuid::Uuid;
use wire::json::Value;

/// Its name in errors.
const INSERTION: &str = "row insertion into";

impl Transaction<'_, '_> {
    pub(super) fn insert(&mut self, operation: &Operation<'_, '_>, reply: &mut Vec<u8>) -> Result<(), Error> {
        let (table, schema) = operation.table()?;
        let given = match operation.get(Member::Uuid) {
            Some(json) => Some(self.given_uuid(table, json)?),
            None => None,
        };
        let uuid = match operation.get(Member::UuidName) {
            Some(json) => {
                let name = json.as_string().unwrap_or_default();
                self.names.create(&name, given).ok_or_else(|| {
                    let details = "This \"uuid-name\" appeared on an earlier \"insert\" operation.";
                    Error::tagged_syntax_error(json, "duplicate uuid-name", details)
                })?
            }
            None => given.unwrap_or_else(|| self.names.random()),
        };
        let names = &mut self.names;
        let scratch = &mut self.changes.database.scratch;
        scratch.parsed.read(schema, operation.need(Member::Row)?, &mut |name| names.resolve(name))?;
        let is_given = |column| scratch.parsed.cell(column).is_some();
        let breaks = |column: &crate::schema::ColumnSchema| {
            cell::len(&column.kind, &column.default) == 1
                && cell::check(&column.kind, &column.default).is_err()
        };
        if schema.columns().any(|(id, column)| column.may_default_break() && !is_given(id) && breaks(column))
        {
            return Err(broken_default(schema, &is_given));
        }
        let permission = self.permission(INSERTION, schema)?;
        let scratch = &mut self.changes.database.scratch;
        scratch.parsed.insert_into(schema, uuid, self.changes.version, &mut scratch.row);
        if let Some(permission) = permission
            && !permission.allows_insert_or_delete(Row::new(schema, &scratch.row, 0))
        {
            return Err(self.prohibited(INSERTION, schema));
        }
        self.insert_row(table, schema)?;
        reply.extend_from_slice(b"{\"uuid\":");
        uuid.write_json(reply);
        reply.push(b'}');
        Ok(())
    }

    /// The UUID that was requested for the row.
    fn given_uuid(&mut self, table: crate::schema::TableId, json: Value<'_>) -> Result<Uuid, Error> {
        let Some(uuid) = json.as_string().and_then(|text| Uuid::parse(&text)) else {
            return Err(Error::syntax_error(json, "bad uuid"));
        };
        if self.changes.database.row_by_uuid(table, &uuid).is_some()
            || self.changes.find_deleted(table, uuid).is_some()
        {
            let details = "This UUID would duplicate a UUID already present within the table or deleted within the \
                           same transaction.";
            return Err(Error::tagged_syntax_error(json, "duplicate uuid", details));
        }
        Ok(uuid)
    }
}

/// The error about the default of a column that was not given; of several columns, that of the one which the stock
/// server finds first.
#[cold]
fn broken_default(schema: &TableSchema, is_given: &dyn Fn(crate::schema::ColumnId) -> bool) -> Error {
    let mut names = vec!["_uuid", "_version"];
    names.extend(schema.columns().map(|(_, column)| column.name.as_str()));
    for place in member_order::walk(names.iter().copied()) {
        let Some((id, column)) = place.checked_sub(2).and_then(|place| schema.columns().nth(place)) else {
            continue;
        };
        if !is_given(id)
            && cell::len(&column.kind, &column.default) == 1
            && let Err(error) = cell::check(&column.kind, &column.default)
        {
            return error;
        }
    }
    Error::internal("a default that was refused without a reason")
}

impl crate::schema::ColumnSchema {
    /// Returns true if its default may break its constraints.
    #[inline]
    fn may_default_break(&self) -> bool {
        use crate::base_type::Constraint;
        self.kind.n_min > 0 && self.kind.base_types().any(|base| base.constraint != Constraint::None)
    }
}
