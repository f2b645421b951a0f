//! Set operations on sets and maps: union, difference, inclusion. The elements of one sorted cell are searched for in
//! the other, and what is between them is passed in one piece: an argument is often much shorter than the cell.

use super::search::Search;
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
    let (mut first, mut second) = (first.peekable(), second.peekable());
    loop {
        let order = match (first.peek(), second.peek()) {
            (Some(one), Some(other)) => compare_keys(key, one.key, other.key),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return,
        };
        let side = match order {
            Ordering::Less => first.next().map(Side::First),
            Ordering::Greater => second.next().map(Side::Second),
            Ordering::Equal => first.next().zip(second.next()).map(|(one, other)| Side::Both(one, other)),
        };
        side.into_iter().for_each(&mut each);
    }
}

#[inline]
fn compare_keys(kind: AtomType, one: &[u8], other: &[u8]) -> Ordering {
    if one == other { Ordering::Equal } else { atom::compare_packed(kind, one, other) }
}

/// Returns true if `cell` has all elements of `argument` (for maps: with the same values). Both are of type `kind`,
/// which may have other limits on the number of elements, but both or neither must be scalar.
pub fn includes(kind: &ColumnType, cell: &[u8], argument: &[u8]) -> bool {
    let (count, mut search) = Search::new(kind, cell);
    super::len(kind, argument) <= count
        && packed(kind, argument).all(|wanted| {
            let (_, found) = search.pass(wanted.key);
            found.is_some_and(|found| found.value == wanted.value)
        })
}

/// Returns true if `cell` has none of the elements of `argument` (for maps: with the same values).
pub fn excludes(kind: &ColumnType, cell: &[u8], argument: &[u8]) -> bool {
    let (few, many) = if argument.len() < cell.len() { (argument, cell) } else { (cell, argument) };
    let (_, mut search) = Search::new(kind, many);
    packed(kind, few).all(|one| {
        let (_, found) = search.pass(one.key);
        found.is_none_or(|found| found.value != one.value)
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
    let (mut count, mut search) = Search::new(kind, one);
    for element in packed(kind, other) {
        let (lesser, known) = search.pass(element.key);
        out.extend_from_slice(lesser);
        count += usize::from(known.is_none());
        out.extend_from_slice(known.unwrap_or(element).both);
    }
    out.extend_from_slice(search.rest());
    super::seal(kind, count, start, out);
}

/// Appends the cell with the elements of `one` that are not in `other`, whose type is `other_kind`. If that has values,
/// a pair is removed only if its value is the same too; otherwise all pairs with such a key are.
pub fn subtract(kind: &ColumnType, one: &[u8], other_kind: &ColumnType, other: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let with_values = other_kind.is_map();
    let (mut count, mut search) = Search::new(kind, one);
    for unwanted in packed(other_kind, other) {
        let (lesser, known) = search.pass(unwanted.key);
        out.extend_from_slice(lesser);
        match known {
            Some(known) if with_values && known.value != unwanted.value => out.extend_from_slice(known.both),
            Some(_) => count = count.saturating_sub(1),
            None => {}
        }
    }
    out.extend_from_slice(search.rest());
    super::seal(kind, count, start, out);
}
