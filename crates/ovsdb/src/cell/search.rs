//! Finding an element of a sorted cell by its key: by halves where elements can be told apart from the middle, which is
//! not so with strings; those are skipped one after the other.

use std::cmp::Ordering;

use super::{Element, body};
use crate::atom::{self, AtomType};
use crate::column_type::ColumnType;

/// How far the first step of a search goes, in bytes. Each step is twice as long as the one before.
const STEP: usize = 64;

/// What is left of a cell's elements in an ascending search.
pub(super) struct Search<'a> {
    rest: &'a [u8],
    key: AtomType,
    value: Option<AtomType>,
    starts: Starts,
}

/// How the start of an element is found.
#[derive(Clone, Copy)]
enum Starts {
    /// All elements are of this length.
    Every(usize),
    /// Behind a byte that ends a LEB128 number.
    BehindEnds,
    Unknown,
}

impl<'a> Search<'a> {
    /// Returns the number of elements too.
    pub fn new(kind: &ColumnType, cell: &'a [u8]) -> (usize, Self) {
        let (count, rest) = body(kind, cell);
        let (key, value) = (kind.key.kind, kind.value.as_ref().map(|value| value.kind));
        let starts = match (fixed_length(key), value.map(fixed_length)) {
            (Some(key), None) => Starts::Every(key),
            (Some(key), Some(Some(value))) => Starts::Every(key + value),
            (None, None) if key == AtomType::Integer => Starts::BehindEnds,
            _ => Starts::Unknown,
        };
        (count, Self { rest, key, value, starts })
    }

    /// What has not been passed.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Passes all elements with lesser keys, which it returns, and the one with this key, if there is one.
    pub fn pass(&mut self, key: &[u8]) -> (&'a [u8], Option<Element<'a>>) {
        let at = match self.starts {
            Starts::Unknown if self.key == AtomType::String => self.skip_strings(key),
            Starts::Unknown => self.skip(0, self.rest.len(), key),
            _ => self.halve(key),
        };
        let (lesser, from) = self.rest.split_at_checked(at).unwrap_or((self.rest, &[]));
        self.rest = from;
        if from.is_empty() {
            return (lesser, None);
        }
        let element = self.element(0);
        if atom::compare_packed(self.key, element.key, key).is_ne() {
            return (lesser, None);
        }
        self.rest = from.get(element.both.len()..).unwrap_or_default();
        (lesser, Some(element))
    }

    /// The first element in this range whose key is not less; the end of the range if there is none.
    fn skip(&self, mut low: usize, high: usize, key: &[u8]) -> usize {
        while low < high {
            let element = self.element(low);
            if atom::compare_packed(self.key, element.key, key) != Ordering::Less {
                break;
            }
            low += element.both.len();
        }
        low
    }

    /// As [`Self::skip`] of everything, by keys that are strings: most are short, so that their length is one byte.
    fn skip_strings(&self, key: &[u8]) -> usize {
        let mut wanted = key;
        atom::take_length(&mut wanted);
        let mut rest = self.rest;
        while let Some((first, behind)) = rest.split_first() {
            let (length, mut next) = if *first < 0x80 {
                (u64::from(*first), behind)
            } else {
                let mut next = rest;
                (atom::take_length(&mut next), next)
            };
            let text = atom::take_bytes(&mut next, usize::try_from(length).unwrap_or(usize::MAX));
            if text >= wanted {
                break;
            }
            if let Some(kind) = self.value {
                atom::take_packed(&mut next, kind);
            }
            rest = next;
        }
        self.rest.len() - rest.len()
    }

    /// As [`Self::skip`] from the start on: first in steps, each twice as long, then by halves.
    fn halve(&self, key: &[u8]) -> usize {
        let (mut low, mut high, mut step) = (0, self.rest.len(), STEP);
        while high - low > STEP {
            let middle = self.start_before(low + step.min((high - low) / 2));
            if middle <= low {
                break;
            }
            let element = self.element(middle);
            if atom::compare_packed(self.key, element.key, key) == Ordering::Less {
                (low, step) = (middle + element.both.len(), step.saturating_mul(2));
            } else {
                (high, step) = (middle, usize::MAX);
            }
        }
        self.skip(low, high, key)
    }

    /// The start of the element with this byte.
    fn start_before(&self, at: usize) -> usize {
        match self.starts {
            Starts::Every(length) => at - at % length,
            _ => {
                let before = self.rest.get(..at).unwrap_or_default();
                before.iter().rposition(|byte| *byte < 0x80).map_or(0, |end| end + 1)
            }
        }
    }

    fn element(&self, at: usize) -> Element<'a> {
        Element::take(&mut self.rest.get(at..).unwrap_or_default(), self.key, self.value)
    }
}

fn fixed_length(kind: AtomType) -> Option<usize> {
    match kind {
        AtomType::Real => Some(8),
        AtomType::Boolean => Some(1),
        AtomType::Uuid => Some(16),
        AtomType::Integer | AtomType::String => None,
    }
}
