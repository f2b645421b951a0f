//! `update`, `mutate`, `delete`

use super::Transaction;
use super::operation::{Member, Operation};
use crate::error::Error;
use crate::mutation::Mutation;
use crate::row::{self, Row};
use crate::schema::{ColumnId, TableSchema};
use wire::json::write;

/// The names of the operations in errors.
const MODIFICATION: &str = "modification of";
const MUTATION: &str = "mutate operation on";
const DELETION: &str = "row deletion from";

impl Transaction<'_, '_> {
    pub(super) fn update(&mut self, operation: &Operation<'_, '_>, reply: &mut Vec<u8>) -> Result<(), Error> {
        let (table, schema) = operation.table()?;
        let row_json = operation.need(Member::Row)?;
        let names = &mut self.names;
        self.changes.database.scratch.parsed.read(schema, row_json, &mut |name| names.resolve(name))?;
        if let Some(name) = self.changes.database.scratch.parsed.first_immutable(schema, row_json) {
            let details = format!("Cannot update immutable column {name} in table {}.", schema.name);
            return Err(Error::tagged_syntax_error(operation.json, "constraint violation", details));
        }
        let condition = self.take_condition(schema, operation.need(Member::Where)?)?;
        let permission = self.permission(MODIFICATION, schema)?;
        self.note_shown(&condition, &[]);
        let mut count = 0;
        for row in self.candidates(table, schema, &condition) {
            let database = &mut *self.changes.database;
            let Some(this) = database.tables[table].row(schema, row) else { continue };
            if !condition.evaluate(self.shown.row(table, row, this)) {
                continue;
            }
            if let Some(permission) = &permission {
                let parsed = &database.scratch.parsed;
                let given = schema.columns().map(|(id, _)| id).filter(|id| parsed.cell(*id).is_some());
                if !permission.allows_update(this, given) {
                    return Err(self.prohibited(MODIFICATION, schema));
                }
            }
            count += 1;
            if database.scratch.parsed.update(this, self.changes.version, &mut database.scratch.row) {
                self.replace_row(table, schema, row)?;
            }
        }
        self.put_condition(condition);
        write_count(reply, count);
        Ok(())
    }

    pub(super) fn mutate(&mut self, operation: &Operation<'_, '_>, reply: &mut Vec<u8>) -> Result<(), Error> {
        let (table, schema) = operation.table()?;
        let names = &mut self.names;
        let mutations = operation.need(Member::Mutations)?.elements();
        let mutations: Vec<Mutation> = mutations
            .map(|json| Mutation::parse(schema, json, &mut |name| names.resolve(name)))
            .collect::<Result<_, _>>()?;
        let condition = self.take_condition(schema, operation.need(Member::Where)?)?;
        let permission = self.permission(MUTATION, schema)?;
        self.note_shown(&condition, &[]);
        let mut count = 0;
        let mut mutated = Mutated::default();
        for row in self.candidates(table, schema, &condition) {
            let database = &mut *self.changes.database;
            let Some(this) = database.tables[table].row(schema, row) else { continue };
            if !condition.evaluate(self.shown.row(table, row, this)) {
                continue;
            }
            if let Some(permission) = &permission
                && !permission.allows_update(this, mutations.iter().map(|mutation| mutation.column))
            {
                return Err(self.prohibited(MUTATION, schema));
            }
            count += 1;
            let differs =
                mutated.apply(schema, this, &mutations, self.changes.version, &mut database.scratch.row)?;
            self.changes.touch(table);
            if differs {
                self.replace_row(table, schema, row)?;
            }
        }
        self.put_condition(condition);
        write_count(reply, count);
        Ok(())
    }

    pub(super) fn delete(&mut self, operation: &Operation<'_, '_>, reply: &mut Vec<u8>) -> Result<(), Error> {
        let (table, schema) = operation.table()?;
        let condition = self.take_condition(schema, operation.need(Member::Where)?)?;
        let permission = self.permission(DELETION, schema)?;
        self.note_shown(&condition, &[]);
        let mut count = 0;
        for row in self.candidates(table, schema, &condition) {
            if self.matches(table, row, &condition) {
                if let Some(permission) = &permission
                    && let Some(this) = self.changes.database.row(table, row)
                    && !permission.allows_insert_or_delete(this)
                {
                    return Err(self.prohibited(DELETION, schema));
                }
                count += 1;
                self.changes.delete_row(table, schema, row);
            }
        }
        self.put_condition(condition);
        write_count(reply, count);
        Ok(())
    }
}

/// The cells of a row that mutations have changed.
#[derive(Default)]
struct Mutated {
    cells: Vec<(ColumnId, Vec<u8>)>,
    /// Buffers for further ones.
    spare: Vec<Vec<u8>>,
}

impl Mutated {
    /// Makes the row that `old` becomes. Returns `false` if it is the same.
    fn apply(
        &mut self,
        schema: &TableSchema,
        old: Row<'_>,
        mutations: &[Mutation],
        version: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        self.spare.extend(self.cells.drain(..).map(|(_, cell)| cell));
        for mutation in mutations {
            let column = schema.column(mutation.column);
            let known = self.cells.iter_mut().find(|(other, _)| *other == mutation.column);
            let mut next = self.spare.pop().unwrap_or_default();
            next.clear();
            let cell = known.as_deref().map_or_else(|| old.cell(mutation.column), |(_, cell)| cell);
            mutation.apply(&column.kind, cell, &mut next)?;
            match known {
                Some((_, cell)) => self.spare.push(std::mem::replace(cell, next)),
                None => self.cells.push((mutation.column, next)),
            }
        }
        row::start(out, old.uuid(), version);
        let mut differs = false;
        for ((id, _), cell) in schema.columns().zip(old.cells()) {
            let mutated = self.cells.iter().find(|(other, _)| *other == id);
            differs |= mutated.is_some_and(|(_, new)| new != cell);
            out.extend_from_slice(mutated.map_or(cell, |(_, new)| new));
        }
        Ok(differs)
    }
}

fn write_count(reply: &mut Vec<u8>, count: u64) {
    reply.extend_from_slice(b"{\"count\":");
    write::unsigned(reply, count);
    reply.push(b'}');
}
