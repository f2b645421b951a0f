//! Weak references: those to rows that do not exist are removed when a transaction commits.

use crate::atom::Atom;
use crate::cell::{self, Builder};
use crate::database::nth_cell;
use crate::error::Error;
use crate::reference::Referring;
use crate::row;
use crate::schema::{ColumnId, DatabaseSchema, TableId, TableSchema};
use crate::table::Tables;
use crate::uuid::Uuid;

/// The cells of a row without its dangling references.
pub(super) struct Pruned {
    /// All of them, concatenated.
    pub cells: Vec<u8>,
    /// Whether there were dangling ones.
    pub differs: bool,
}

/// Returns true if a row has dangling references, in any column.
pub(super) fn has_dangling(tables: &Tables, schema: &TableSchema, table: TableId, bytes: &[u8]) -> bool {
    let mut dangles = false;
    for referring in &tables[table].plan.weak {
        let cell = nth_cell(schema, row::cells_of(bytes), referring);
        referring.each(schema, cell, |target, uuid| {
            dangles |= tables[target].find(&uuid).is_none();
        });
    }
    dangles
}

/// Removes the dangling references from the columns for which `wanted` holds. `existed`: the row existed before the
/// transaction, for the error about a column that would be empty and must not be.
pub(super) fn without_dangling(
    tables: &Tables,
    schema: &DatabaseSchema,
    table: TableId,
    bytes: &[u8],
    wanted: impl Fn(ColumnId) -> bool,
    existed: bool,
) -> Result<Pruned, Error> {
    let mut pruned = Pruned { cells: Vec::new(), differs: false };
    let (this, table_schema) = (&tables[table], schema.table(table));
    let uuid = row::uuid_of(bytes);
    let exists = |table: TableId, uuid: &Uuid| tables[table].find(uuid).is_some();
    let mut rest = row::cells_of(bytes);
    for (id, column) in table_schema.columns() {
        let cell = cell::split(&column.kind, &mut rest);
        let referring = this.plan.weak.iter().find(|referring| referring.column == id && wanted(id));
        match referring {
            Some(referring) => prune(table_schema, referring, cell, uuid, existed, &exists, &mut pruned)?,
            None => pruned.cells.extend_from_slice(cell),
        }
    }
    Ok(pruned)
}

fn prune(
    schema: &TableSchema,
    referring: &Referring,
    cell: &[u8],
    row: Uuid,
    existed: bool,
    exists: &dyn Fn(TableId, &Uuid) -> bool,
    pruned: &mut Pruned,
) -> Result<(), Error> {
    let column = schema.column(referring.column);
    let mut removed = 0;
    let mut has_zero = false;
    let mut dangles = |target: Option<TableId>, atom: Option<&Atom<'_>>| match (target, atom) {
        (Some(table), Some(Atom::Uuid(uuid))) if !exists(table, uuid) => {
            has_zero |= uuid.is_zero();
            true
        }
        _ => false,
    };
    let mut is_kept = |key: &Atom<'_>, value: Option<&Atom<'_>>| {
        let key_dangles = dangles(referring.key, Some(key));
        !(dangles(referring.value, value) || key_dangles)
    };
    let count = cell::atoms(&column.kind, cell).filter(|(key, value)| is_kept(key, value.as_ref())).count();
    removed += cell::len(&column.kind, cell) - count;
    if removed == 0 {
        pruned.cells.extend_from_slice(cell);
        return Ok(());
    }
    pruned.differs = true;
    if count < column.kind.n_min as usize {
        return Err(too_few(schema, &column.name, row, removed, has_zero, existed));
    }
    // A scalar column has failed with too few elements, so this type packs the same way.
    let mut builder = Builder::new(&column.kind, &pruned.cells);
    for (key, value) in cell::atoms(&column.kind, cell) {
        if is_kept(&key, value.as_ref()) {
            builder.push(&mut pruned.cells, key, value);
        }
    }
    builder.finish(&mut pruned.cells).map_err(|_| Error::internal("a cell that was not in order"))
}

fn too_few(
    schema: &TableSchema,
    column: &str,
    row: Uuid,
    removed: usize,
    has_zero: bool,
    existed: bool,
) -> Error {
    let table = &schema.name;
    Error::constraint_violation(if has_zero && !existed {
        format!(
            "Weak reference column \"{column}\" in \"{table}\" row {row} (inserted within this transaction) contained \
             all-zeros UUID (probably as the default value for this column) but deleting this value caused a \
             constraint volation because this column is not allowed to be empty."
        )
    } else {
        let inserted = if existed { "" } else { "(inserted within this transaction) " };
        format!(
            "Deletion of {removed} weak reference(s) to deleted (or never-existing) rows from column \"{column}\" in \
             \"{table}\" row {row} {inserted}caused this column to become empty, but constraints on this column \
             disallow an empty column."
        )
    })
}
