//! Cells: the packed value of one column. Rows, requests, conditions and history all use this form.
//!
//! ```text
//!   of exactly one atom, no map   the atom
//!   of any other type, empty      0
//!   of any other type             LEB128 bytes of what follows | LEB128 count | atoms, ascending by key
//!                                                                             (map: key value key value ...)
//! ```
//!
//! Equal values have equal bytes: two cells of a type are compared by comparing bytes. All functions take the column's
//! type; a cell of another type yields some result and never a panic.

mod algebra;
mod arithmetic;
mod difference;
mod parse;
mod search;
mod sort;

pub use algebra::{compare, excludes, includes, subtract, union};
pub use arithmetic::{Operator, arithmetic};
pub use difference::{apply_diff, diff};
pub(crate) use parse::put_checked;
pub use parse::{Checks, no_names, parse};
pub use sort::Builder;

use crate::atom::{self, Atom, AtomType, take_length};
use crate::column_type::ColumnType;
use crate::error::Error;
use wire::json::write;

/// Takes the next cell off a row.
#[inline]
pub fn split<'a>(kind: &ColumnType, rest: &mut &'a [u8]) -> &'a [u8] {
    if kind.is_scalar() {
        return atom::take_packed(rest, kind.key.kind);
    }
    let start = *rest;
    let length = usize::try_from(take_length(rest)).unwrap_or(usize::MAX);
    atom::take_bytes(rest, length);
    start.get(..start.len() - rest.len()).unwrap_or_default()
}

/// Number of elements, and their packed atoms.
#[inline]
pub(crate) fn body<'a>(kind: &ColumnType, cell: &'a [u8]) -> (usize, &'a [u8]) {
    if kind.is_scalar() {
        return (1, cell);
    }
    let mut rest = cell;
    if take_length(&mut rest) == 0 {
        return (0, &[]);
    }
    let count = take_length(&mut rest);
    // An atom takes at least one byte.
    (usize::try_from(count).unwrap_or(usize::MAX).min(rest.len()), rest)
}

/// Appends a cell of `count` elements whose packed atoms, ascending, are `atoms`.
pub(crate) fn put(kind: &ColumnType, count: usize, atoms: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(atoms);
    seal(kind, count, start, out);
}

/// Makes a cell of the `count` elements whose packed atoms, ascending, follow `start`.
pub(crate) fn seal(kind: &ColumnType, count: usize, start: usize, out: &mut Vec<u8>) {
    if kind.is_scalar() {
        return;
    }
    if count == 0 {
        out.push(0);
        return;
    }
    let atoms = out.len().saturating_sub(start);
    let end = out.len();
    atom::put_length(out, count as u64);
    let count_bytes = out.len() - end;
    out.truncate(end);
    atom::put_length(out, (atoms + count_bytes) as u64);
    atom::put_length(out, count as u64);
    let header = out.len() - end;
    if let Some(cell) = out.get_mut(start..) {
        cell.rotate_right(header);
    }
}

/// Number of elements.
#[inline]
pub fn len(kind: &ColumnType, cell: &[u8]) -> usize {
    body(kind, cell).0
}

/// Returns true if there are no elements.
#[inline]
pub fn is_empty(kind: &ColumnType, cell: &[u8]) -> bool {
    len(kind, cell) == 0
}

/// The elements in their order.
#[inline]
pub fn atoms<'a>(kind: &ColumnType, cell: &'a [u8]) -> Atoms<'a> {
    let (left, rest) = body(kind, cell);
    Atoms { left, rest, key: kind.key.kind, value: kind.value.as_ref().map(|value| value.kind) }
}

/// Iterator over the elements of a cell: keys, and values if it is a map.
#[derive(Debug, Clone)]
pub struct Atoms<'a> {
    left: usize,
    rest: &'a [u8],
    key: AtomType,
    value: Option<AtomType>,
}

impl<'a> Iterator for Atoms<'a> {
    type Item = (Atom<'a>, Option<Atom<'a>>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let key = atom::take(&mut self.rest, self.key);
        Some((key, self.value.map(|kind| atom::take(&mut self.rest, kind))))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (0, Some(self.left))
    }
}

/// The elements of a cell as packed bytes: the key's, and those of key and value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a> {
    left: usize,
    rest: &'a [u8],
    key: AtomType,
    value: Option<AtomType>,
}

/// One element as packed bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Element<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value; empty if it is not a map.
    pub value: &'a [u8],
    /// Both.
    pub both: &'a [u8],
}

#[inline]
pub(crate) fn packed<'a>(kind: &ColumnType, cell: &'a [u8]) -> Packed<'a> {
    let (left, rest) = body(kind, cell);
    Packed { left, rest, key: kind.key.kind, value: kind.value.as_ref().map(|value| value.kind) }
}

impl<'a> Element<'a> {
    /// Takes the next element off packed atoms.
    #[inline]
    fn take(rest: &mut &'a [u8], key: AtomType, value: Option<AtomType>) -> Self {
        let start = *rest;
        let key = atom::take_packed(rest, key);
        let value = match value {
            Some(kind) => atom::take_packed(rest, kind),
            None => &[],
        };
        Self { key, value, both: start.get(..key.len() + value.len()).unwrap_or_default() }
    }
}

impl<'a> Iterator for Packed<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        self.left = self.left.checked_sub(1)?;
        Some(Element::take(&mut self.rest, self.key, self.value))
    }
}

/// Returns true if a set of atoms of this kind, which is not a scalar, contains this one.
#[inline]
pub(crate) fn contains_packed(kind: AtomType, cell: &[u8], packed: &[u8]) -> bool {
    let mut rest = cell;
    if take_length(&mut rest) == 0 {
        return false;
    }
    take_length(&mut rest);
    while !rest.is_empty() {
        if atom::take_packed(&mut rest, kind) == packed {
            return true;
        }
    }
    false
}

/// Returns true if an element has this key.
pub fn contains_key(kind: &ColumnType, cell: &[u8], key: &Atom<'_>) -> bool {
    atoms(kind, cell).any(|(other, _)| atom::compare(&other, key).is_eq())
}

/// The value of the element with this key; `None` if it is missing or the cell is not a map.
pub fn value_of<'a>(kind: &ColumnType, cell: &'a [u8], key: &Atom<'_>) -> Option<Atom<'a>> {
    atoms(kind, cell).find(|(other, _)| atom::compare(other, key).is_eq())?.1
}

/// The first key: the atom of a scalar cell, or of an optional cell if it has one.
#[inline]
pub fn first<'a>(kind: &ColumnType, cell: &'a [u8]) -> Option<Atom<'a>> {
    atoms(kind, cell).next().map(|(key, _)| key)
}

/// Returns true if the cell has the default value of its type.
pub fn is_default(kind: &ColumnType, cell: &[u8]) -> bool {
    let zeros = |kind: AtomType| match kind {
        AtomType::Integer | AtomType::Boolean | AtomType::String => 1,
        AtomType::Real => 8,
        AtomType::Uuid => 16,
    };
    if kind.n_min == 0 {
        return cell == [0];
    }
    let atoms = kind.base_types().map(|base| zeros(base.kind)).sum::<usize>();
    let all_zero = |bytes: &[u8]| bytes.len() == atoms && bytes.iter().all(|byte| *byte == 0);
    match body(kind, cell) {
        (1, bytes) => all_zero(bytes),
        _ => false,
    }
}

/// Checks the elements against the constraints of the type; for their number see [`has_allowed_length`].
pub fn check(kind: &ColumnType, cell: &[u8]) -> Result<(), Error> {
    for (key, value) in atoms(kind, cell) {
        kind.key.check(&key)?;
        if let (Some(base), Some(value)) = (&kind.value, &value) {
            base.check(value)?;
        }
    }
    Ok(())
}

/// Returns true if the type allows this number of elements.
#[inline]
pub fn has_allowed_length(kind: &ColumnType, cell: &[u8]) -> bool {
    let count = len(kind, cell);
    count >= kind.n_min as usize && u32::try_from(count).is_ok_and(|count| count <= kind.n_max)
}

/// Appends the cell as JSON, as the stock server prints it.
pub fn write_json(kind: &ColumnType, cell: &[u8], out: &mut Vec<u8>) {
    let (count, mut rest) = body(kind, cell);
    match &kind.value {
        Some(value) => {
            out.extend_from_slice(b"[\"map\",[");
            for place in 0..count {
                out.extend_from_slice(if place == 0 { b"[" } else { b",[" });
                write_atom(kind.key.kind, &mut rest, out);
                out.push(b',');
                write_atom(value.kind, &mut rest, out);
                out.push(b']');
            }
            out.extend_from_slice(b"]]");
        }
        None if count == 1 => write_atom(kind.key.kind, &mut rest, out),
        None => {
            out.extend_from_slice(b"[\"set\",[");
            for place in 0..count {
                if place > 0 {
                    out.push(b',');
                }
                write_atom(kind.key.kind, &mut rest, out);
            }
            out.extend_from_slice(b"]]");
        }
    }
}

#[inline]
fn write_atom(kind: AtomType, rest: &mut &[u8], out: &mut Vec<u8>) {
    if kind == AtomType::String {
        let length = usize::try_from(take_length(rest)).unwrap_or(usize::MAX);
        return write::string_bytes(out, atom::take_bytes(rest, length));
    }
    atom::take(rest, kind).write_json(out);
}

/// The cell as the stock server's messages show it, e.g. `[a, b]` or `{a=1}`.
pub fn to_text(kind: &ColumnType, cell: &[u8]) -> String {
    let count = len(kind, cell);
    let brackets = kind.n_max > 1 || count == 0;
    let mut text = String::new();
    if brackets {
        text.push(if kind.is_map() { '{' } else { '[' });
    }
    for (place, (key, value)) in atoms(kind, cell).enumerate() {
        if place > 0 {
            text.push_str(", ");
        }
        text.push_str(&key.to_string());
        if let Some(value) = value {
            text.push('=');
            text.push_str(&value.to_string());
        }
    }
    if brackets {
        text.push(if kind.is_map() { '}' } else { ']' });
    }
    text
}

#[cfg(test)]
mod tests;
