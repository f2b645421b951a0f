//! Rows as they are stored in memory.
//!
//! ```text
//!   uuid 16 | version LEB128 | cell | cell | ...        the cells in the order of the columns' names, concatenated
//! ```
//! The version is the number of the commit that wrote the row; the UUID that clients see as `_version` is made from it.

use std::borrow::Cow;
use std::fmt;

use crate::atom::{put_length, take_length};
use crate::cell;
use crate::column_type::ColumnType;
use crate::schema::{ColumnId, ColumnRef, TableSchema};
use crate::uuid::Uuid;

/// A row's place in its table, which never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RowId(pub u32);

impl RowId {
    /// As an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A row, borrowed.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    schema: &'a TableSchema,
    bytes: &'a [u8],
    seed: u64,
    /// The version that clients see; [`AS_WRITTEN`]: the one in the bytes.
    shown: u64,
}

/// No commit has this number.
const AS_WRITTEN: u64 = u64::MAX;

impl<'a> Row<'a> {
    /// The row in these bytes.
    #[inline]
    pub(crate) fn new(schema: &'a TableSchema, bytes: &'a [u8], seed: u64) -> Self {
        Self { schema, bytes, seed, shown: AS_WRITTEN }
    }

    /// The row with the `_version` that the commit with this number gave it.
    pub(crate) fn shown_as(self, version: u64) -> Self {
        Self { shown: version, ..self }
    }

    /// The schema of its table.
    #[inline]
    pub fn schema(&self) -> &'a TableSchema {
        self.schema
    }

    /// `_uuid`
    #[inline]
    pub fn uuid(&self) -> Uuid {
        uuid_of(self.bytes)
    }

    /// The number of the commit that wrote it.
    #[inline]
    pub fn version(&self) -> u64 {
        version_of(self.bytes)
    }

    /// `_version`: made from the row's UUID, the commit's number and the database's seed.
    pub fn version_uuid(&self) -> Uuid {
        let secrets = rapidhash::v3::RapidSecrets::seed(self.seed);
        let mut bytes = [0; 24];
        let (uuid, version) = bytes.split_at_mut(16);
        uuid.copy_from_slice(&self.uuid().0);
        let shown = if self.shown == AS_WRITTEN { self.version() } else { self.shown };
        version.copy_from_slice(&shown.to_le_bytes());
        let low = rapidhash::v3::rapidhash_v3_nano_inline::<true, false>(&bytes, &secrets);
        let secrets = rapidhash::v3::RapidSecrets::seed(!self.seed);
        let high = rapidhash::v3::rapidhash_v3_nano_inline::<true, false>(&bytes, &secrets);
        Uuid::from_random((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
    }

    /// All cells, concatenated.
    #[inline]
    pub fn packed_cells(&self) -> &'a [u8] {
        cells_of(self.bytes)
    }

    /// The cells in the order of the columns.
    #[inline]
    pub fn cells(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.packed_cells();
        self.schema.columns().map(move |(_, column)| cell::split(&column.kind, &mut rest))
    }

    /// A column's cell; empty bytes for a column that does not exist.
    #[inline]
    pub fn cell(&self, column: ColumnId) -> &'a [u8] {
        self.cells().nth(column.index()).unwrap_or_default()
    }

    /// A column's cell; `_uuid` and `_version` are columns of one UUID.
    #[inline]
    pub fn any_cell(&self, column: ColumnRef) -> Cow<'a, [u8]> {
        match column {
            ColumnRef::Column(column) => Cow::Borrowed(self.cell(column)),
            ColumnRef::Uuid => Cow::Borrowed(self.bytes.get(..16).unwrap_or_default()),
            ColumnRef::Version => Cow::Owned(self.version_uuid().0.to_vec()),
        }
    }

    /// Appends a column's value as JSON.
    pub fn write_column(&self, column: ColumnRef, out: &mut Vec<u8>) {
        match column {
            ColumnRef::Column(id) => {
                cell::write_json(&self.schema.column(id).kind, self.cell(id), out);
            }
            ColumnRef::Uuid => self.uuid().write_json(out),
            ColumnRef::Version => self.version_uuid().write_json(out),
        }
    }
}

impl fmt::Debug for Row<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        for (id, column) in self.schema.columns() {
            text.extend_from_slice(column.name.as_bytes());
            text.push(b'=');
            self.write_column(ColumnRef::Column(id), &mut text);
            text.push(b' ');
        }
        write!(formatter, "{} v{}: {}", self.uuid(), self.version(), String::from_utf8_lossy(&text))
    }
}

/// The UUID at the start of a row's bytes.
#[inline]
pub(crate) fn uuid_of(bytes: &[u8]) -> Uuid {
    bytes.first_chunk().map_or(Uuid::zero(), |uuid| Uuid(*uuid))
}

/// The version after it.
#[inline]
pub(crate) fn version_of(bytes: &[u8]) -> u64 {
    take_length(&mut bytes.get(16..).unwrap_or_default())
}

/// The cells after that.
#[inline]
pub(crate) fn cells_of(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes.get(16..).unwrap_or_default();
    take_length(&mut rest);
    rest
}

/// Starts a row's bytes in an empty buffer.
#[inline]
pub(crate) fn start(out: &mut Vec<u8>, uuid: Uuid, version: u64) {
    out.clear();
    out.extend_from_slice(&uuid.0);
    put_length(out, version);
}

/// The type of `_uuid` and `_version`.
pub(crate) fn uuid_type() -> ColumnType {
    ColumnType::scalar(crate::base_type::BaseType::plain(crate::atom::AtomType::Uuid))
}

/// A set of columns of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnSet {
    low: u64,
    /// Columns from 64 on, without trailing zeros.
    high: Vec<u64>,
}

impl ColumnSet {
    /// An empty set.
    pub const fn new() -> Self {
        Self { low: 0, high: Vec::new() }
    }

    /// The first `count` columns.
    pub fn first(count: usize) -> Self {
        let mut set = Self::new();
        if count >= 64 {
            set.low = u64::MAX;
            (64..count).for_each(|column| set.insert(ColumnId(column as u16)));
        } else {
            set.low = (1 << count) - 1;
        }
        set
    }

    /// Returns true if the set contains the column.
    #[inline]
    pub fn contains(&self, column: ColumnId) -> bool {
        match column.index() / 64 {
            0 => self.low >> column.index() & 1 == 1,
            word => self.high.get(word - 1).is_some_and(|bits| bits >> (column.index() % 64) & 1 == 1),
        }
    }

    /// Adds a column.
    #[inline]
    pub fn insert(&mut self, column: ColumnId) {
        let bit = 1 << (column.index() % 64);
        match column.index() / 64 {
            0 => self.low |= bit,
            word => {
                if self.high.len() < word {
                    self.high.resize(word, 0);
                }
                if let Some(bits) = self.high.get_mut(word - 1) {
                    *bits |= bit;
                }
            }
        }
    }

    /// Returns true if the set is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.low == 0 && self.high.is_empty()
    }

    /// Returns true if both have a column in common.
    #[inline]
    pub fn intersects(&self, other: &Self) -> bool {
        self.low & other.low != 0 || self.high.iter().zip(&other.high).any(|(one, other)| one & other != 0)
    }

    /// The columns, ascending.
    pub fn iter(&self) -> impl Iterator<Item = ColumnId> + '_ {
        let words = std::iter::once(self.low).chain(self.high.iter().copied());
        words.enumerate().flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| ColumnId((word * 64 + bit) as u16))
        })
    }
}

impl FromIterator<ColumnId> for ColumnSet {
    fn from_iter<I: IntoIterator<Item = ColumnId>>(columns: I) -> Self {
        let mut set = Self::new();
        columns.into_iter().for_each(|column| set.insert(column));
        set
    }
}

/// The columns whose cells differ.
pub(crate) fn changed_columns(schema: &TableSchema, old: &[u8], new: &[u8]) -> ColumnSet {
    let (mut old, mut new) = (old, new);
    let mut set = ColumnSet::new();
    for (id, column) in schema.columns() {
        if cell::split(&column.kind, &mut old) != cell::split(&column.kind, &mut new) {
            set.insert(id);
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_sets_hold_columns_of_any_number() {
        let mut set = ColumnSet::new();
        assert!(set.is_empty());
        for column in [0, 5, 63, 64, 130] {
            set.insert(ColumnId(column));
        }
        assert_eq!(set.iter().map(|column| column.0).collect::<Vec<_>>(), [0, 5, 63, 64, 130]);
        assert!(set.contains(ColumnId(130)) && !set.contains(ColumnId(131)) && !set.contains(ColumnId(1000)));
        assert_eq!(ColumnSet::first(3), [0, 1, 2].map(ColumnId).into_iter().collect());
        assert_eq!(ColumnSet::first(65).iter().count(), 65);
        assert!(
            set.intersects(&ColumnSet::first(70))
                && !set.intersects(&[1, 131].map(ColumnId).into_iter().collect())
        );
    }
}
