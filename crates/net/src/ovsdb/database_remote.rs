//! `db:DATABASE,TABLE,COLUMN`: remotes that a database names. The column has them as strings, or refers to rows with a
//! column `target` and, perhaps, more about each.

use std::fmt;

use ovsdb::atom::{Atom, AtomType};
use ovsdb::cell;
use ovsdb::database::Database;
use ovsdb::row::Row;
use ovsdb::schema::{ColumnId, ColumnRef, TableId, TableSchema};

use super::remote::DatabaseRemote;
use super::remotes::Options;

/// Why a database remote cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteError {
    /// Not of the form.
    Syntax,
    /// There is no such database.
    Database(String),
    /// There is no such table.
    Table(String),
    /// There is no such column in this table.
    Column(String, String),
}

impl fmt::Display for RemoteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => formatter.write_str("invalid syntax"),
            Self::Database(name) => write!(formatter, "no database named {name}"),
            Self::Table(name) => write!(formatter, "no table named {name}"),
            Self::Column(table, column) => write!(formatter, "table \"{table}\" has no column \"{column}\""),
        }
    }
}

impl std::error::Error for RemoteError {}

/// Where a database remote leads in a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub table: TableId,
    pub column: ColumnId,
    /// The table whose rows have the targets, where the column refers to one.
    pub targets: Option<TableId>,
}

/// Finds the table and column.
pub(super) fn place(database: &Database, remote: &DatabaseRemote) -> Result<Place, RemoteError> {
    let schema = database.schema();
    let (table, table_schema) =
        schema.find_table(&remote.table).ok_or_else(|| RemoteError::Table(remote.table.clone()))?;
    match table_schema.find_column(&remote.column) {
        Some(ColumnRef::Column(column)) => {
            let key = table_schema.column(column).map(|column| &column.kind.key);
            let targets = key.and_then(|key| key.reference.as_ref()).map(|reference| reference.target);
            Ok(Place { table, column, targets })
        }
        _ => Err(RemoteError::Column(remote.table.clone(), remote.column.clone())),
    }
}

/// The remotes that are named there, in no order that matters.
pub(super) fn targets(database: &Database, place: Place) -> Vec<(String, Options)> {
    let mut found = Vec::new();
    let schema = database.schema();
    let Some(kind) = schema
        .table(place.table)
        .and_then(|table| table.column(place.column))
        .map(|column| &column.kind)
        .filter(|kind| kind.value.is_none())
    else {
        return found;
    };
    for row in database.rows(place.table) {
        for (atom, _) in cell::atoms(kind, row.cell(place.column)) {
            match (atom, place.targets) {
                (Atom::String(target), _) => found.push((target.to_owned(), Options::default())),
                (Atom::Uuid(uuid), Some(targets)) => {
                    if let Some((_, row)) = database.row_by_uuid(targets, &uuid) {
                        found.extend(target_of(row));
                    }
                }
                _ => {}
            }
        }
    }
    found
}

/// What a row of a table such as `Manager` or `Connection` says.
fn target_of(row: Row<'_>) -> Option<(String, Options)> {
    let Some(Atom::String(target)) = value(row, "target", AtomType::String) else { return None };
    let milliseconds = |name| match value(row, name, AtomType::Integer) {
        Some(Atom::Integer(ms)) => u64::try_from(ms).ok(),
        _ => None,
    };
    let options = Options {
        probe_ms: milliseconds("inactivity_probe"),
        backoff_max_ms: milliseconds("max_backoff"),
        read_only: matches!(value(row, "read_only", AtomType::Boolean), Some(Atom::Boolean(true))),
        role: match value(row, "role", AtomType::String) {
            Some(Atom::String(role)) => role.to_owned(),
            _ => String::new(),
        },
    };
    Some((target.to_owned(), options))
}

/// The first value of a column, if the table has one of that name and type.
fn value<'a>(row: Row<'a>, name: &str, kind: AtomType) -> Option<Atom<'a>> {
    let schema: &'a TableSchema = row.schema();
    let ColumnRef::Column(id) = schema.find_column(name)? else { return None };
    let column =
        schema.column(id).filter(|column| column.kind.key.kind == kind && column.kind.value.is_none())?;
    cell::first(&column.kind, row.cell(id))
}
