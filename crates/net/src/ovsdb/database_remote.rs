//! `db:DATABASE,TABLE,COLUMN`: remotes that a database names. The column contains them as strings, or refers to rows
//! with a column `target` and, optionally, columns with more settings.

use std::fmt;

use ovsdb::atom::{Atom, AtomType};
use ovsdb::cell;
use ovsdb::database::Database;
use ovsdb::row::Row;
use ovsdb::schema::{ColumnId, ColumnRef, TableId, TableSchema};

use super::remote::DatabaseRemote;
use super::remotes::Options;

/// Shortest interval between probes of a peer.
const PROBE_MIN_MS: u64 = 1_000;
/// The highest DSCP code point.
const DSCP_MAX: u8 = 63;

/// Why a database remote is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteError {
    /// Malformed.
    Syntax,
    /// There is no such database.
    Database(String),
    /// There is no such table.
    Table(String),
    /// There is no such column in this table.
    Column(String, String),
    /// The table's column does not contain strings.
    NotStrings(String, String),
    /// Sockets cannot be inherited while the process serves.
    Inherited,
}

impl fmt::Display for RemoteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => formatter.write_str("invalid syntax"),
            Self::Inherited => formatter.write_str("pfd: remotes can only be given on the command line"),
            Self::Database(name) => write!(formatter, "no database named {name}"),
            Self::Table(name) => write!(formatter, "no table named {name}"),
            Self::Column(table, column) => write!(formatter, "table \"{table}\" has no column \"{column}\""),
            Self::NotStrings(table, column) => {
                write!(formatter, "table \"{table}\" column \"{column}\" is not string or set of strings")
            }
        }
    }
}

impl std::error::Error for RemoteError {}

/// Where a database remote points in a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub table: TableId,
    pub column: ColumnId,
    /// The table whose rows contain the targets, if the column refers to one.
    pub targets: Option<TableId>,
}

/// Finds the table and column.
pub(super) fn place(database: &Database, remote: &DatabaseRemote) -> Result<Place, RemoteError> {
    let schema = database.schema();
    let (table, table_schema) =
        schema.find_table(&remote.table).ok_or_else(|| RemoteError::Table(remote.table.clone()))?;
    match table_schema.find_column(&remote.column) {
        Some(ColumnRef::Column(column)) => {
            let key = &table_schema.column(column).kind.key;
            let targets = key.reference.as_ref().map(|reference| reference.target);
            Ok(Place { table, column, targets })
        }
        _ => Err(RemoteError::Column(remote.table.clone(), remote.column.clone())),
    }
}

/// The first non-empty string in a column of strings.
pub(super) fn first_string(
    database: &Database,
    remote: &DatabaseRemote,
) -> Result<Option<String>, RemoteError> {
    let place = place(database, remote)?;
    let kind = &database.schema().table(place.table).column(place.column).kind;
    if kind.key.kind != AtomType::String || kind.value.is_some() {
        return Err(RemoteError::NotStrings(remote.table.clone(), remote.column.clone()));
    }
    let texts = atoms(database, place).filter_map(|atom| match atom {
        Atom::String(text) if !text.is_empty() => Some(text.to_owned()),
        _ => None,
    });
    Ok({ texts }.next())
}

/// The remotes named there, with the options that their rows state.
pub(super) fn targets(database: &Database, place: Place) -> Vec<(String, Option<Options>)> {
    if place.targets.is_some() {
        let named = rows(database, place).filter_map(target_of);
        return named.map(|(target, options)| (target, Some(options))).collect();
    }
    let named = atoms(database, place).filter_map(|atom| match atom {
        Atom::String(target) => Some((target.to_owned(), None)),
        _ => None,
    });
    named.collect()
}

/// The rows that the column refers to; a row may occur twice.
pub(super) fn rows(database: &Database, place: Place) -> impl Iterator<Item = Row<'_>> {
    atoms(database, place).filter_map(move |atom| match (atom, place.targets) {
        (Atom::Uuid(uuid), Some(targets)) => database.row_by_uuid(targets, &uuid).map(|(_, row)| row),
        _ => None,
    })
}

/// The column's values in all rows; none if it is a map.
fn atoms(database: &Database, place: Place) -> impl Iterator<Item = Atom<'_>> {
    let kind = &database.schema().table(place.table).column(place.column).kind;
    Some(kind).filter(|kind| kind.value.is_none()).into_iter().flat_map(move |kind| {
        let rows = database.rows(place.table);
        rows.flat_map(move |row| cell::atoms(kind, row.cell(place.column)).map(|(atom, _)| atom))
    })
}

/// The target in a row of a table such as `Manager` or `Connection`.
pub(super) fn target(row: Row<'_>) -> Option<&str> {
    match value(row, "target", AtomType::String) {
        Some(Atom::String(target)) => Some(target),
        _ => None,
    }
}

/// The target and the options in such a row.
fn target_of(row: Row<'_>) -> Option<(String, Options)> {
    let target = target(row)?;
    let milliseconds = |name| match value(row, name, AtomType::Integer) {
        // Negative values count as 1.
        Some(Atom::Integer(ms)) => Some(u64::try_from(ms).unwrap_or(1)),
        _ => None,
    };
    let options = Options {
        probe_ms: milliseconds("inactivity_probe").map(|ms| if ms == 0 { 0 } else { ms.max(PROBE_MIN_MS) }),
        backoff_max_ms: milliseconds("max_backoff"),
        dscp: dscp(row).unwrap_or(Options::default().dscp),
        read_only: matches!(value(row, "read_only", AtomType::Boolean), Some(Atom::Boolean(true))),
        role: match value(row, "role", AtomType::String) {
            Some(Atom::String(role)) => role.to_owned(),
            _ => String::new(),
        },
    };
    Some((target.to_owned(), options))
}

/// The DSCP code point in the column `other_config`, if there is one of six bits.
fn dscp(row: Row<'_>) -> Option<u8> {
    let schema = row.schema();
    let ColumnRef::Column(id) = schema.find_column("other_config")? else { return None };
    let kind = &schema.column(id).kind;
    if kind.key.kind != AtomType::String || kind.value.as_ref()?.kind != AtomType::String {
        return None;
    }
    match cell::value_of(kind, row.cell(id), &Atom::String("dscp"))? {
        Atom::String(text) => text.parse().ok().filter(|dscp| *dscp <= DSCP_MAX),
        _ => None,
    }
}

/// The first value of a column, if the table has one of that name and type.
fn value<'a>(row: Row<'a>, name: &str, kind: AtomType) -> Option<Atom<'a>> {
    let schema: &'a TableSchema = row.schema();
    let ColumnRef::Column(id) = schema.find_column(name)? else { return None };
    let column = &schema.column(id).kind;
    (column.key.kind == kind && column.value.is_none()).then(|| cell::first(column, row.cell(id)))?
}
