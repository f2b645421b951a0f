//! Set operations on sets and maps: union, difference, inclusion. One pass over both sorted cells.

use super::{Element, packed};
use crate::atom::{self, AtomType};
use crate::column_type::ColumnType;
use std::cmp::Ordering;

/// The two cells of a merge, element by element.
pub(super) enum Side<'a> {
    /// Only the first has this key.
    First(Element<'a>),
    /// Only the second has it.
    Second(Element<'a>),
    /// Both have it.
    Both(Element<'a>, Element<'a>),
}

/// Walks two cells in parallel, ascending by key.
pub(super) fn merge<'a>(
    key: AtomType,
    first: impl Iterator<Item = Element<'a>>,
    second: impl Iterator<Item = Element<'a>>,
    mut each: impl FnMut(Side<'a>),
) {
    sides(key, first, second).for_each(&mut each);
}

/// What [`merge`] passes, one after the other.
fn sides<'a>(
    key: AtomType,
    first: impl Iterator<Item = Element<'a>>,
    second: impl Iterator<Item = Element<'a>>,
) -> impl Iterator<Item = Side<'a>> {
    let (mut first, mut second) = (first.peekable(), second.peekable());
    std::iter::from_fn(move || {
        let order = match (first.peek(), second.peek()) {
            (Some(one), Some(other)) => compare_keys(key, one.key, other.key),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        match order {
            Ordering::Less => first.next().map(Side::First),
            Ordering::Greater => second.next().map(Side::Second),
            Ordering::Equal => Some(Side::Both(first.next()?, second.next()?)),
        }
    })
}

#[inline]
fn compare_keys(kind: AtomType, one: &[u8], other: &[u8]) -> Ordering {
    if one == other { Ordering::Equal } else { atom::compare_packed(kind, one, other) }
}

/// Returns true if `cell` has all elements of `argument` (for maps: with the same values). Both are of type `kind`,
/// which may have other limits on the number of elements, but both or neither must be scalar.
pub fn includes(kind: &ColumnType, cell: &[u8], argument: &[u8]) -> bool {
    if super::len(kind, argument) > super::len(kind, cell) {
        return false;
    }
    sides(kind.key.kind, packed(kind, cell), packed(kind, argument)).all(|side| match side {
        Side::First(_) => true,
        Side::Second(_) => false,
        Side::Both(one, other) => one.value == other.value,
    })
}

/// Returns true if `cell` has none of the elements of `argument` (for maps: with the same values).
pub fn excludes(kind: &ColumnType, cell: &[u8], argument: &[u8]) -> bool {
    if super::len(kind, cell) == 0 {
        return true;
    }
    sides(kind.key.kind, packed(kind, cell), packed(kind, argument)).all(|side| match side {
        Side::First(_) | Side::Second(_) => true,
        Side::Both(one, other) => one.value != other.value,
    })
}

/// The stock server's order of two cells: first the number of elements, then the keys, then the values.
pub fn compare(kind: &ColumnType, one: &[u8], other: &[u8]) -> Ordering {
    if one == other {
        return Ordering::Equal;
    }
    let keys = |one: Element<'_>, other: Element<'_>| compare_keys(kind.key.kind, one.key, other.key);
    super::len(kind, one)
        .cmp(&super::len(kind, other))
        .then_with(|| first_difference(kind, one, other, keys))
        .then_with(|| {
            let Some(value) = &kind.value else { return Ordering::Equal };
            first_difference(kind, one, other, |one, other| compare_keys(value.kind, one.value, other.value))
        })
}

fn first_difference<'a>(
    kind: &ColumnType,
    one: &'a [u8],
    other: &'a [u8],
    compare: impl Fn(Element<'a>, Element<'a>) -> Ordering,
) -> Ordering {
    let pairs = packed(kind, one).zip(packed(kind, other));
    pairs.map(|(one, other)| compare(one, other)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}

/// Appends the cell with the elements of both; for equal keys of a map the value of `one` is kept.
pub fn union(kind: &ColumnType, one: &[u8], other: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let mut count = 0;
    merge(kind.key.kind, packed(kind, one), packed(kind, other), |side| {
        let (Side::First(element) | Side::Second(element) | Side::Both(element, _)) = side;
        out.extend_from_slice(element.both);
        count += 1;
    });
    super::seal(kind, count, start, out);
}

/// Appends the cell with the elements of `one` that are not in `other`, whose type is `other_kind`. If that has values,
/// a pair is removed only if its value is the same too; otherwise all pairs with such a key are.
pub fn subtract(kind: &ColumnType, one: &[u8], other_kind: &ColumnType, other: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let mut count = 0;
    let with_values = other_kind.is_map();
    merge(kind.key.kind, packed(kind, one), packed(other_kind, other), |side| {
        let element = match side {
            Side::First(element) => element,
            Side::Both(element, other) if with_values && element.value != other.value => element,
            Side::Second(_) | Side::Both(..) => return,
        };
        out.extend_from_slice(element.both);
        count += 1;
    });
    super::seal(kind, count, start, out);
}
