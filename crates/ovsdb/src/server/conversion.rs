//! `convert`: a database continues with another schema. Tables and columns with the same name keep their contents;
//! others are removed or new.

use super::laggards::Laggards;
use super::{DatabaseId, Log, Now, Server, SessionId};
use crate::cell;
use crate::database::{Database, Options, ReplayedRow};
use crate::error::Error;
use crate::row::Row;
use crate::schema::{ColumnRef, DatabaseSchema, TableSchema};
use crate::server::databases::SERVER_DATABASE;
use crate::uuid::Uuid;
use wire::json::Value;

impl<L: Log> Server<L> {
    /// `convert`
    pub(super) fn convert(
        &mut self,
        session: SessionId,
        params: Value<'_>,
        now: Now,
    ) -> Result<Vec<u8>, Error> {
        let id = self.find_database(params, "convert")?;
        let mut elements = params.elements().skip(1);
        let (Some(json), None) = (elements.next(), elements.next()) else {
            return Err(Error::syntax_error(params, "array expected"));
        };
        if self.sessions.get(session).is_none_or(|session| session.options.read_only) {
            let details = "convert operation not allowed when database server is in read only mode";
            return Err(Error::new("not allowed", details));
        }
        let schema = DatabaseSchema::parse(json)?;
        let seed = self.random_seed();
        let Some(hosted) = self.databases.get_mut(id) else { return Ok(Vec::new()) };
        let name = hosted.database.name().to_owned();
        if schema.name != name {
            let details = format!("new schema name ({}) does not match database name ({name})", schema.name);
            return Err(Error::new("invalid parameters", details));
        }
        if name == SERVER_DATABASE {
            let details = format!("convert operation not allowed on reserved database {name}");
            return Err(Error::new("not allowed", details));
        }
        if let Some(damage) = hosted.database.damage() {
            return Err(damage.clone());
        }
        let budget_bytes = hosted.database.budget_bytes();
        let mut converted = convert(&hosted.database, schema, Options { budget_bytes, seed })?;
        if let Some(log) = &mut hosted.log {
            log.replace(&mut converted, now.wall_ms)?;
        }
        hosted.database = converted;
        hosted.written = hosted.database.commit_number();
        hosted.opened = hosted.written;
        hosted.laggards = Laggards::default();
        hosted.logged_tables.clear();
        hosted.schema_text = None;
        self.cancel_monitors(id);
        self.converted = Some(id);
        Ok(b"{}".to_vec())
    }
}

impl<L: Log> Server<L> {
    /// What follows the reply to a `convert` that succeeded, in the stock server's order: waiting transactions are
    /// cancelled (they were parsed for the old schema), sessions that are not aware of database changes are closed, and
    /// the others are notified of the schema.
    pub(super) fn after_conversion(&mut self, id: DatabaseId, now: Now) {
        self.cancel_waits(id);
        let Some(hosted) = self.databases.get(id) else { return };
        let reason = format!("committed {} database schema conversion", hosted.database.name());
        self.close_unaware(&reason);
        let announced = self.announce_schema(id, now);
        debug_assert!(announced.is_ok(), "{announced:?}");
    }
}

/// The same rows under another schema.
fn convert(old: &Database, schema: DatabaseSchema, options: Options) -> Result<Database, Error> {
    let mut new = Database::new(schema, options)?;
    let schema = new.schema().clone();
    new.begin_replay();
    new.begin_replayed_commit();
    let mut cells = Vec::new();
    for (id, table) in schema.tables() {
        let Some((old_id, old_table)) = old.schema().find_table(&table.name) else { continue };
        for row in old.rows(old_id) {
            cells.clear();
            convert_row(row, old_table, table, &mut cells)?;
            new.apply_replayed(id, &row.uuid(), ReplayedRow::Cells(&cells))?;
        }
    }
    new.settle_replayed_commit()?;
    new.end_replayed_commit(Uuid::zero(), false);
    new.begin_replayed_commit();
    if new.finish_replay()? {
        new.end_replayed_commit(Uuid::zero(), false);
    }
    Ok(new)
}

fn convert_row(row: Row<'_>, old: &TableSchema, new: &TableSchema, out: &mut Vec<u8>) -> Result<(), Error> {
    let mut text = Vec::new();
    for (_, column) in new.columns() {
        let Some(ColumnRef::Column(old_id)) = old.find_column(&column.name) else {
            out.extend_from_slice(&column.default);
            continue;
        };
        let old_column = old.column(old_id);
        let cell = row.cell(old_id);
        if old_column.kind == column.kind {
            out.extend_from_slice(cell);
            continue;
        }
        text.clear();
        cell::write_json(&old_column.kind, cell, &mut text);
        let json = Value::of_checked(&text);
        cell::parse(&column.kind, json, &mut cell::no_names, cell::Checks::All, out)?;
    }
    Ok(())
}
