//! Rows in plain notation.

use super::row_parts::RowParts;
use crate::atom::{Atom, AtomType};
use crate::cell::{self, Checks, no_names};
use crate::column_type::ColumnType;
use crate::file::plain::Plain;
use crate::schema::{ColumnId, ColumnRef, TableSchema};

/// Columns that are compared with a name before it is searched for.
const TRIES: usize = 4;

/// The order in which the rows of a table name its columns: each writer of logs has its own, and omits some.
pub(super) struct ColumnOrder {
    columns: Vec<ColumnId>,
    /// All rows so far named their columns in the order of the cells.
    is_ascending: bool,
}

impl Default for ColumnOrder {
    fn default() -> Self {
        Self { columns: Vec::new(), is_ascending: true }
    }
}

impl ColumnOrder {
    /// Takes the name of a column, which is likely the one at `place` or soon after.
    #[inline]
    fn take(&mut self, text: &mut Plain<'_, '_>, table: &TableSchema, place: &mut usize) -> Option<ColumnId> {
        for (passed, id) in self.columns.iter().skip(*place).take(TRIES).enumerate() {
            if text.take_name(&table.column(*id).name).is_some() {
                *place += passed + 1;
                return Some(*id);
            }
        }
        self.search(text, table, place)
    }

    /// As [`Self::take`]; moves the column to this place.
    #[cold]
    fn search(
        &mut self,
        text: &mut Plain<'_, '_>,
        table: &TableSchema,
        place: &mut usize,
    ) -> Option<ColumnId> {
        let ColumnRef::Column(id) = table.find_column(std::str::from_utf8(text.name()?).ok()?)? else {
            return None;
        };
        if let Some(known) = self.columns.iter().position(|column| *column == id) {
            self.columns.remove(known);
            *place -= usize::from(known < *place);
        }
        *place = (*place).min(self.columns.len());
        self.columns.insert(*place, id);
        *place += 1;
        Some(id)
    }

    /// Takes a row that did not exist before, and appends its cells.
    #[inline]
    pub(super) fn new_row(
        &mut self,
        text: &mut Plain<'_, '_>,
        table: &TableSchema,
        differences: &[Option<ColumnType>],
        parts: &mut RowParts,
        cells: &mut Vec<u8>,
    ) -> Option<()> {
        if self.is_ascending {
            let (here, start) = (text.place(), cells.len());
            match self.ascending_row(text, table, cells) {
                Some(()) => return Some(()),
                None if self.is_ascending => return None,
                None => {
                    text.go_back(here);
                    cells.truncate(start);
                }
            }
        }
        parts.start(table);
        self.row(text, table, differences, false, parts)?;
        parts.assemble(table, None, false, cells).ok()
    }

    /// As [`Self::new_row`], but directly: the cells are appended as they come, with defaults between them.
    #[inline]
    fn ascending_row(
        &mut self,
        text: &mut Plain<'_, '_>,
        table: &TableSchema,
        cells: &mut Vec<u8>,
    ) -> Option<()> {
        let mut columns = table.columns();
        text.take_byte(b'{')?;
        let mut goes_on = text.take_byte(b'}').is_none();
        let mut place = 0;
        while goes_on {
            let id = self.take(text, table, &mut place)?;
            let column = loop {
                match columns.next() {
                    Some((next, column)) if next == id => break column,
                    Some((_, column)) => cells.extend_from_slice(&column.default),
                    None => {
                        self.is_ascending = false;
                        return None;
                    }
                }
            };
            take_cell(text, &column.kind, cells)?;
            goes_on = text.goes_on(b'}')?;
        }
        columns.for_each(|(_, column)| cells.extend_from_slice(&column.default));
        Some(())
    }

    /// Takes the columns of a row.
    pub(super) fn row(
        &mut self,
        text: &mut Plain<'_, '_>,
        table: &TableSchema,
        differences: &[Option<ColumnType>],
        is_diff: bool,
        parts: &mut RowParts,
    ) -> Option<()> {
        text.take_byte(b'{')?;
        let mut goes_on = text.take_byte(b'}').is_none();
        let mut place = 0;
        while goes_on {
            let id = self.take(text, table, &mut place)?;
            let difference = differences.get(id.index()).and_then(Option::as_ref).filter(|_| is_diff);
            let kind = difference.unwrap_or_else(|| &table.column(id).kind);
            parts.take(id, |out| take_cell(text, kind, out).ok_or(())).ok()?;
            goes_on = text.goes_on(b'}')?;
        }
        Some(())
    }
}

/// Takes a value and appends its cell.
#[inline]
fn take_cell(text: &mut Plain<'_, '_>, kind: &ColumnType, out: &mut Vec<u8>) -> Option<()> {
    let atom = match kind.key.kind {
        AtomType::String if kind.is_scalar() => Atom::String(std::str::from_utf8(text.string()?).ok()?),
        AtomType::Integer if kind.is_scalar() => Atom::Integer(text.integer()?),
        _ => return cell::parse(kind, text.value()?, &mut no_names, Checks::All, out).ok(),
    };
    cell::put_checked(&kind.key, atom, Checks::All, out).ok()
}
