//! Differences of cells, as the log file and `update2` express changes.
//!
//! For a column of at most one element the difference is the new cell. For others it has the elements that only one of
//! the two cells has, and the new pairs whose value changed. When it is applied to the old cell, an equal element
//! (pair) is removed, a pair with another value replaces the old one, and a new element is added.

use super::algebra::{Side, merge};
use super::packed;
use crate::column_type::ColumnType;
use crate::error::Error;

/// Appends the difference from `old` to `new`.
pub fn diff(kind: &ColumnType, old: &[u8], new: &[u8], out: &mut Vec<u8>) {
    if !kind.is_composite() {
        out.extend_from_slice(new);
        return;
    }
    let start = out.len();
    let mut count = 0;
    merge(kind.key.kind, packed(kind, old), packed(kind, new), |side| {
        let element = match side {
            Side::First(element) | Side::Second(element) => element,
            Side::Both(old, new) if old.value != new.value => new,
            Side::Both(..) => return,
        };
        out.extend_from_slice(element.both);
        count += 1;
    });
    super::seal(kind, count, start, out);
}

/// Appends the result of applying `difference` to `old`. The type must allow its number of elements.
pub fn apply_diff(kind: &ColumnType, old: &[u8], difference: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    if !kind.is_composite() {
        out.extend_from_slice(difference);
        return Ok(());
    }
    let start = out.len();
    let mut count = 0_usize;
    merge(kind.key.kind, packed(kind, old), packed(kind, difference), |side| {
        let element = match side {
            Side::First(element) | Side::Second(element) => element,
            Side::Both(old, new) if old.value != new.value => new,
            Side::Both(..) => return,
        };
        out.extend_from_slice(element.both);
        count += 1;
    });
    if count < kind.n_min as usize || count > kind.n_max as usize {
        out.truncate(start);
        return Err(Error::new("ovsdb error", "Datum crated by diff has size error"));
    }
    super::seal(kind, count, start, out);
    Ok(())
}
