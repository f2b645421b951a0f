//! Builds a row from the columns that a record names.

use crate::cell;
use crate::error::Error;
use crate::row::Row;
use crate::schema::{ColumnId, TableSchema};
use std::ops::Range;

/// The columns that a record names for one row: their cells, in the order in which they came.
#[derive(Default)]
pub(super) struct RowParts {
    /// For each column that was named: where in `parsed` its cell is.
    given: Vec<Option<Range<usize>>>,
    parsed: Vec<u8>,
    scratch: Vec<u8>,
}

impl RowParts {
    /// Starts a row.
    pub(super) fn start(&mut self, table: &TableSchema) {
        self.given.clear();
        self.given.resize(table.column_count(), None);
        self.parsed.clear();
    }

    /// Takes a column, whose cell `parse` appends. Of those with the same name the last counts.
    #[inline]
    pub(super) fn take<E>(
        &mut self,
        column: ColumnId,
        parse: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.parsed.len();
        parse(&mut self.parsed)?;
        if let Some(given) = self.given.get_mut(column.index()) {
            *given = Some(start..self.parsed.len());
        }
        Ok(())
    }

    /// Appends to `cells` the row, which was `old`, with these columns.
    pub(super) fn assemble(
        &mut self,
        table: &TableSchema,
        old: Option<Row<'_>>,
        is_diff: bool,
        cells: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Self { given, parsed, scratch } = self;
        let mut old_cells = old.map(|row| row.cells());
        for ((_, column), given) in table.columns().zip(given) {
            let old = old_cells.as_mut().and_then(Iterator::next);
            let given = given.take().and_then(|range| parsed.get(range));
            match (given, old) {
                (None, old) => cells.extend_from_slice(old.unwrap_or(&column.default)),
                (Some(given), Some(old)) if is_diff && column.kind.is_composite() => {
                    scratch.clear();
                    cell::apply_diff(&column.kind, old, given, scratch)?;
                    cells.extend_from_slice(scratch);
                }
                (Some(given), _) => cells.extend_from_slice(given),
            }
        }
        Ok(())
    }
}
