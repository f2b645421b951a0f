//! Records in plain notation.

use super::{Replay, Staged};
use crate::database::Database;
use crate::file::plain::Plain;

/// Length of records from which looking ahead pays off.
const BULK_BYTES: usize = 4096;
/// Rows between starting to load a row's place and looking it up.
const AHEAD_ROWS: usize = 16;

impl Replay {
    /// Parses a record in plain notation. Returns its comment; `None` if it is not plain, or has an error.
    ///
    /// What a row of a record means depends on whether it existed before. The rows of a long record are assumed to be
    /// new as long as that is true: they are then looked up some rows later, when the processor has loaded their
    /// places.
    pub(super) fn stage_plain(&mut self, text: &[u8], database: &Database) -> Option<Option<String>> {
        if text.len() < BULK_BYTES {
            return self.stage_plain_rows(text, database, false);
        }
        if self.are_new {
            let comment = self.stage_plain_rows(text, database, true);
            if self.are_new {
                return comment;
            }
        }
        self.are_new = true;
        self.stage_plain_rows(text, database, false)
    }

    /// As [`Self::stage_plain`]. Clears `are_new` if a row is not new, and then gives up if they had to be.
    fn stage_plain_rows(
        &mut self,
        text: &[u8],
        database: &Database,
        must_be_new: bool,
    ) -> Option<Option<String>> {
        self.staged.clear();
        self.cells.clear();
        let Self { schema, differences, orders, scanner, parts, cells, staged, are_new, .. } = self;
        let mut checked = 0;
        let mut text = Plain::new(text, scanner);
        let mut comment = None;
        let mut is_diff = None;
        let mut seen = 0_u64;
        text.take_byte(b'{')?;
        if text.take(b"}\n").is_some() {
            return text.is_at_end().then_some(None);
        }
        loop {
            match text.name()? {
                b"_date" => {
                    text.value()?.as_integer()?;
                }
                b"_is_diff" => {
                    let value = text.value()?.as_boolean()?;
                    if is_diff.is_some_and(|known| known != value) {
                        return None;
                    }
                    is_diff = Some(value);
                }
                b"_comment" => comment = Some(text.value()?.as_string()?.into_owned()),
                name => {
                    let (id, table) = schema.find_table(std::str::from_utf8(name).ok()?)?;
                    // Members with the same name are not plain.
                    let bit = 1_u64.checked_shl(u32::from(id.0))?;
                    if seen & bit != 0 {
                        return None;
                    }
                    seen |= bit;
                    let (order, differences) = (orders.get_mut(id.index())?, differences.get(id.index())?);
                    text.take_byte(b'{')?;
                    if text.take_byte(b'}').is_none() {
                        loop {
                            let uuid = text.uuid_name()?;
                            if must_be_new {
                                database.prefetch_row(id, &uuid);
                                let start = cells.len();
                                if text.is_null() || !all_new(database, staged, &mut checked, AHEAD_ROWS) {
                                    *are_new = false;
                                    return None;
                                }
                                order.new_row(&mut text, table, differences, parts, cells)?;
                                staged.push(Staged { table: id, uuid, cells: Some(start..cells.len()) });
                                if !text.goes_on(b'}')? {
                                    break;
                                }
                                continue;
                            }
                            let old = database.row_by_uuid(id, &uuid).map(|(_, row)| row);
                            *are_new &= old.is_none();
                            if text.take(b"null").is_some() {
                                old?;
                                staged.push(Staged { table: id, uuid, cells: None });
                            } else {
                                // It may come after the first row that it concerns.
                                let ahead = || text.contains(b"\"_is_diff\":true");
                                let is_diff = old.is_some() && *is_diff.get_or_insert_with(ahead);
                                let start = cells.len();
                                parts.start(table);
                                order.row(&mut text, table, differences, is_diff, parts)?;
                                parts.assemble(table, old, is_diff, cells).ok()?;
                                staged.push(Staged { table: id, uuid, cells: Some(start..cells.len()) });
                            }
                            if !text.goes_on(b'}')? {
                                break;
                            }
                        }
                    }
                }
            }
            if !text.goes_on(b'}')? {
                break;
            }
        }
        text.take(b"\n")?;
        if must_be_new && !all_new(database, staged, &mut checked, 0) {
            *are_new = false;
            return None;
        }
        text.is_at_end().then_some(comment)
    }
}

/// Returns true if the rows from `checked` on, except for the last `ahead`, are new.
#[inline]
fn all_new(database: &Database, staged: &[Staged], checked: &mut usize, ahead: usize) -> bool {
    let rows = staged.get(*checked..staged.len().saturating_sub(ahead)).unwrap_or_default();
    *checked += rows.len();
    rows.iter().all(|row| database.row_by_uuid(row.table, &row.uuid).is_none())
}
