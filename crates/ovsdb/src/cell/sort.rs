//! Sorts the elements of a cell while they are appended.
//!
//! ```text
//!   key, end_of_key, value, end_of_element,   key, ...   finish
//! ```

use crate::atom::{self, Atom, AtomType};
use crate::column_type::ColumnType;
use crate::uuid::Uuid;
use std::cmp::Ordering;

/// Builds a cell at the end of a buffer from elements in any order. For each, append a packed key and call
/// [`Self::end_of_key`]; for a map, append a packed value; then call [`Self::end_of_element`]. Or use
/// [`Self::push`]. Elements that arrive in ascending order are not touched again.
#[derive(Debug)]
pub struct Builder<'k> {
    kind: &'k ColumnType,
    start: usize,
    /// The key of the last element.
    last: usize,
    last_end: usize,
    /// Where the next element begins.
    element: usize,
    count: usize,
    ascending: bool,
}

/// Two elements have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicate;

impl<'k> Builder<'k> {
    /// Starts a cell at the end of `out`.
    pub fn new(kind: &'k ColumnType, out: &[u8]) -> Self {
        let start = out.len();
        Self { kind, start, last: start, last_end: start, element: start, count: 0, ascending: true }
    }

    /// Number of elements so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if there are no elements so far.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends an element.
    pub fn push(&mut self, out: &mut Vec<u8>, key: Atom<'_>, value: Option<Atom<'_>>) {
        atom::put(out, key);
        self.end_of_key(out);
        if let Some(value) = value {
            atom::put(out, value);
        }
        self.end_of_element(out);
    }

    /// Makes what was appended to `out` since the last element the next one's key.
    #[inline]
    pub fn end_of_key(&mut self, out: &[u8]) {
        if self.count > 0 && self.ascending {
            let last = out.get(self.last..self.last_end).unwrap_or_default();
            let key = out.get(self.element..).unwrap_or_default();
            self.ascending = atom::compare_packed(self.kind.key.kind, last, key) == Ordering::Less;
        }
        self.last = self.element;
        self.last_end = out.len();
    }

    /// Makes what was appended to `out` since the key its value (nothing, unless it is a map).
    #[inline]
    pub fn end_of_element(&mut self, out: &[u8]) {
        self.element = out.len();
        self.count += 1;
    }

    /// Abandons the cell and restores `out`.
    pub fn abandon(self, out: &mut Vec<u8>) {
        out.truncate(self.start);
    }

    /// Completes the cell. If there is a duplicate, restores `out`.
    pub fn finish(self, out: &mut Vec<u8>) -> Result<(), Duplicate> {
        if !self.ascending
            && let Err(duplicate) = self.sort(out)
        {
            out.truncate(self.start);
            return Err(duplicate);
        }
        super::seal(self.kind, self.count, self.start, out);
        Ok(())
    }

    /// As [`Self::finish`]; of elements with the same key the first is kept.
    pub fn finish_without_duplicates(self, out: &mut Vec<u8>) {
        let mut count = self.count;
        if !self.ascending {
            let unsorted = out.get(self.start..).unwrap_or_default().to_vec();
            let mut elements = self.elements(&unsorted);
            elements.sort_by(|one, other| atom::compare_packed(self.kind.key.kind, one.0, other.0));
            elements.dedup_by(|one, other| one.0 == other.0);
            count = elements.len();
            out.truncate(self.start);
            for (_, both) in elements {
                out.extend_from_slice(both);
            }
        }
        super::seal(self.kind, count, self.start, out);
    }

    fn elements<'a>(&self, mut rest: &'a [u8]) -> Vec<(&'a [u8], &'a [u8])> {
        let mut elements = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            let start = rest;
            let key = atom::take_packed(&mut rest, self.kind.key.kind);
            if let Some(value) = &self.kind.value {
                atom::take_packed(&mut rest, value.kind);
            }
            elements.push((key, start.get(..start.len() - rest.len()).unwrap_or_default()));
        }
        elements
    }

    #[cold]
    fn sort(&self, out: &mut Vec<u8>) -> Result<(), Duplicate> {
        let unsorted = out.get(self.start..).unwrap_or_default().to_vec();
        let elements = self.elements(&unsorted);
        out.truncate(self.start);
        match self.kind.key.kind {
            AtomType::Integer => {
                sort_by_key(elements, out, |mut key| match atom::take(&mut key, AtomType::Integer) {
                    Atom::Integer(value) => value,
                    _ => 0,
                })
            }
            AtomType::Real => sort_by_key(elements, out, |mut key| {
                match atom::take(&mut key, AtomType::Real) {
                    // Monotonic for all finite numbers, as there is one zero.
                    Atom::Real(value) if value >= 0.0 => value.to_bits().cast_signed(),
                    Atom::Real(value) => -(-value).to_bits().cast_signed(),
                    _ => 0,
                }
            }),
            AtomType::Uuid => {
                sort_by_key(elements, out, |mut key| match atom::take(&mut key, AtomType::Uuid) {
                    Atom::Uuid(Uuid(bytes)) => u128::from_be_bytes(bytes),
                    _ => 0,
                })
            }
            AtomType::Boolean => sort_by_key(elements, out, |key| key),
            AtomType::String => sort_by_key(elements, out, |mut key| {
                atom::take_length(&mut key);
                key
            }),
        }
    }
}

fn sort_by_key<'a, K: Ord>(
    elements: Vec<(&'a [u8], &'a [u8])>,
    out: &mut Vec<u8>,
    key: impl Fn(&'a [u8]) -> K,
) -> Result<(), Duplicate> {
    let mut keyed: Vec<(K, &[u8])> = elements.into_iter().map(|(packed, both)| (key(packed), both)).collect();
    keyed.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let mut before: Option<&K> = None;
    for (key, both) in &keyed {
        if before == Some(key) {
            return Err(Duplicate);
        }
        before = Some(key);
        out.extend_from_slice(both);
    }
    Ok(())
}
