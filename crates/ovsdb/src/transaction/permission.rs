//! What a session's role permits (ovsdb-server(7), "RBAC"), according to the tables `RBAC_Role` and `RBAC_Permission`
//! of the database.
//!
//! ```text
//!   RBAC_Role        name | permissions: a table's name -> RBAC_Permission
//!   RBAC_Permission  authorization: columns, or COLUMN:KEY of maps, one of which is to be the name in the client's certificate
//!                    insert_delete | update: columns
//! ```

use super::Transaction;
use crate::atom::{Atom, AtomType};
use crate::cell;
use crate::column_type::ColumnType;
use crate::database::Database;
use crate::error::Error;
use crate::row::Row;
use crate::schema::{ColumnId, ColumnRef, TableSchema};

/// What may be done to the rows of a table.
pub(super) struct Permission<'a> {
    client: &'a str,
    /// Any of them makes a row the client's.
    marks: Vec<Mark>,
    insert_delete: bool,
    update: Vec<ColumnId>,
}

/// What makes a row a client's.
enum Mark {
    /// No mark is needed.
    None,
    /// Its name in a column.
    Column(ColumnId),
    /// Its name under a key of a map.
    Key(ColumnId, String),
}

impl Permission<'_> {
    /// Returns true if the row is the client's.
    fn owns(&self, row: Row<'_>) -> bool {
        let schema = row.schema();
        let is_client =
            |atom: Option<Atom<'_>>| matches!(atom, Some(Atom::String(name)) if name == self.client);
        self.marks.iter().any(|mark| match mark {
            Mark::None => true,
            Mark::Column(id) => is_client(cell::first(&schema.column(*id).kind, row.cell(*id))),
            Mark::Key(id, key) => {
                is_client(cell::value_of(&schema.column(*id).kind, row.cell(*id), &Atom::String(key)))
            }
        })
    }

    /// Returns true if the row may be inserted, or deleted.
    pub fn allows_insert_or_delete(&self, row: Row<'_>) -> bool {
        self.insert_delete && self.owns(row)
    }

    /// Returns true if these columns of the row may be changed.
    pub fn allows_update(&self, row: Row<'_>, mut columns: impl Iterator<Item = ColumnId>) -> bool {
        self.owns(row) && columns.all(|column| self.update.contains(&column))
    }
}

impl<'a> Transaction<'a, '_> {
    /// What the session's role permits for a table; `None`: nothing restricts it. Fails if nothing at all is permitted.
    pub(super) fn permission(
        &self,
        doing: &str,
        table: &TableSchema,
    ) -> Result<Option<Permission<'a>>, Error> {
        let role = self.context.role;
        if role.is_empty() || self.changes.schema.find_table("RBAC_Role").is_none() {
            return Ok(None);
        }
        let client = self.context.client;
        let found = client.and_then(|client| find(self.changes.database, role, client, table));
        found.map(Some).ok_or_else(|| self.prohibited(doing, table))
    }

    /// The error of an operation that the session's role does not allow.
    #[cold]
    pub(super) fn prohibited(&self, doing: &str, table: &TableSchema) -> Error {
        let (role, table) = (self.context.role, &table.name);
        // COMPAT: this is how the stock server shows a client without a name.
        let client = self.context.client.unwrap_or("(null)");
        Error::permission(format!(
            "RBAC rules for client \"{client}\" role \"{role}\" prohibit {doing} table \"{table}\"."
        ))
    }
}

fn find<'c>(database: &Database, role: &str, client: &'c str, table: &TableSchema) -> Option<Permission<'c>> {
    let (roles, _) = database.schema().find_table("RBAC_Role")?;
    let (permissions, _) = database.schema().find_table("RBAC_Permission")?;
    let has_name = |row: &Row<'_>| strings(*row, "name").next() == Some(role);
    let role = database.rows(roles).find(has_name)?;
    let (kind, cell) = column(role, "permissions")?;
    let Some(Atom::Uuid(uuid)) = cell::value_of(kind, cell, &Atom::String(&table.name)) else { return None };
    let (_, row) = database.row_by_uuid(permissions, &uuid)?;
    let column_named = |name: &str| match table.find_column(name) {
        Some(ColumnRef::Column(id)) => Some(id),
        _ => None,
    };
    let mark = |text: &str| match text.split_once(':') {
        None if text.is_empty() => Some(Mark::None),
        None => {
            let id = column_named(text)?;
            is_scalar_string(&table.column(id).kind).then_some(Mark::Column(id))
        }
        Some((name, key)) => Some(Mark::Key(column_named(name)?, key.to_owned())),
    };
    Some(Permission {
        client,
        marks: strings(row, "authorization").filter_map(mark).collect(),
        insert_delete: matches!(column(row, "insert_delete").map(first), Some(Some(Atom::Boolean(true)))),
        update: strings(row, "update").filter_map(column_named).collect(),
    })
}

fn is_scalar_string(kind: &ColumnType) -> bool {
    kind.key.kind == AtomType::String && kind.value.is_none() && kind.n_max == 1
}

type Column<'a> = (&'a ColumnType, &'a [u8]);

fn column<'a>(row: Row<'a>, name: &str) -> Option<Column<'a>> {
    let schema = row.schema();
    let ColumnRef::Column(id) = schema.find_column(name)? else { return None };
    Some((&schema.column(id).kind, row.cell(id)))
}

fn first((kind, cell): Column<'_>) -> Option<Atom<'_>> {
    cell::first(kind, cell)
}

/// The strings in a column.
fn strings<'a>(row: Row<'a>, name: &str) -> impl Iterator<Item = &'a str> {
    column(row, name).into_iter().flat_map(|(kind, cell)| cell::atoms(kind, cell)).filter_map(|(atom, _)| {
        match atom {
            Atom::String(text) => Some(text),
            _ => None,
        }
    })
}
