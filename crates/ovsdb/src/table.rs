//! The rows of a table, and the indexes that find them.
//!
//! ```text
//!   RowId ──> rows: Option<Record>, 8 bytes each        one record is one row (crate::row)
//!   uuid  ──> uuids: RowIndex, 5 bytes each             always
//!   cells ──> unique: one RowIndex per index of the schema: without the rows that a transaction has changed in these
//!             columns so far; they are added when it commits, when no other row may have the same values
//!   cell  ──> automatic: RowIndex of a column that was searched often, always up to date
//! ```
//! A transaction writes in place and keeps the records it replaces: the table shows what the transaction has done so
//! far, and nobody else reads it meanwhile.

use memory::{Record, Records, TenantVec};
use std::collections::HashMap;
use std::ops::{Index, IndexMut};

use crate::error::Error;
use crate::hashing::Hashing;
use crate::index::{RowIndex, no_memory};
use crate::reference::{IdHasher, Plan, Sources};
use crate::row::{self, Row, RowId};
use crate::schema::{ColumnId, TableId, TableSchema};
use crate::uuid::Uuid;

/// Tables with fewer rows are searched without an automatic index.
const AUTOMATIC_ROWS_MIN: usize = 64;
/// A column gets an automatic index after this many searches for one of its values.
const AUTOMATIC_SEARCHES: u32 = 4;
/// A column with more rows of one value gets no index.
const AUTOMATIC_RUN_MAX: usize = 512;
/// Passing this many buckets indicates that many rows share a value.
const AUTOMATIC_PASSED_MAX: usize = 48;
/// Most automatic indexes of one table.
const AUTOMATIC_MAX: usize = 4;
/// An automatic index is dropped after this many changes per row without a search that used it.
const AUTOMATIC_CHANGES_MAX: usize = 16;

/// For fewer rows, room is not made in advance.
const EXPECTED_ROWS_MIN: usize = 4096;

/// The rows of a table.
pub struct Table {
    rows: TenantVec<Option<Record>>,
    free: Vec<u32>,
    live: usize,
    /// Bytes of its rows, as the allocator rounds them.
    record_bytes: usize,
    hashing: Hashing,
    uuids: RowIndex,
    /// Rows that the index of UUIDs was made for; 0: it grows by itself.
    expected: usize,
    /// Rows that may still come soon.
    coming: usize,
    unique: Vec<RowIndex>,
    automatic: Vec<Automatic>,
    searches: HashMap<ColumnId, Searches>,
    /// Its columns with references, and where those point.
    pub(crate) plan: Plan,
    /// The number of strong references to each row that has any.
    pub(crate) counts: HashMap<RowId, u32, IdHasher>,
    /// Rows with weak references to each row that has any.
    pub(crate) sources: HashMap<RowId, Sources, IdHasher>,
    /// Simulates that its rows cannot be restored.
    #[cfg(test)]
    pub cannot_restore: bool,
}

/// An index that the schema does not declare.
struct Automatic {
    column: ColumnId,
    index: RowIndex,
    changes: usize,
}

/// How often a column without an index was searched.
#[derive(Default)]
struct Searches {
    since: u32,
    /// Doubled when its index was of no use.
    wanted: u32,
}

/// The tables of a database, in the order of its schema's.
pub(crate) struct Tables(Vec<Table>);

impl Tables {
    pub fn new(tables: impl Iterator<Item = Table>) -> Self {
        Self(tables.collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Table> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        self.0.iter_mut()
    }
}

impl Index<TableId> for Tables {
    type Output = Table;

    #[inline]
    fn index(&self, id: TableId) -> &Table {
        &self.0[id.index()]
    }
}

impl IndexMut<TableId> for Tables {
    #[inline]
    fn index_mut(&mut self, id: TableId) -> &mut Table {
        &mut self.0[id.index()]
    }
}

impl Table {
    pub(crate) fn new(schema: &TableSchema, plan: Plan, hashing: Hashing) -> Self {
        Self {
            rows: TenantVec::new(),
            free: Vec::new(),
            live: 0,
            record_bytes: 0,
            hashing,
            uuids: RowIndex::default(),
            expected: 0,
            coming: 0,
            unique: schema.indexes.iter().map(|_| RowIndex::default()).collect(),
            automatic: Vec::new(),
            searches: HashMap::new(),
            plan,
            counts: HashMap::default(),
            sources: HashMap::default(),
            #[cfg(test)]
            cannot_restore: false,
        }
    }

    /// Number of rows.
    #[inline]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Bytes of its rows, as the allocator rounds them.
    #[inline]
    pub fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// Row ids are below this.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.rows.as_slice().len() as u32
    }

    /// The bytes of a row.
    #[inline]
    pub(crate) fn bytes(&self, row: RowId) -> Option<&[u8]> {
        self.rows.as_slice().get(row.index())?.as_ref().map(Record::bytes)
    }

    /// The record of a row.
    #[inline]
    pub(crate) fn record(&self, row: RowId) -> Option<&Record> {
        self.rows.as_slice().get(row.index())?.as_ref()
    }

    /// A row.
    #[inline]
    pub fn row<'a>(&'a self, schema: &'a TableSchema, row: RowId) -> Option<Row<'a>> {
        self.bytes(row).map(|bytes| Row::new(schema, bytes, self.hashing.seed))
    }

    /// A record of this table as a row.
    #[inline]
    pub(crate) fn row_of<'a>(&self, schema: &'a TableSchema, record: &'a Record) -> Row<'a> {
        Row::new(schema, record.bytes(), self.hashing.seed)
    }

    /// The rows from this id on, ascending.
    pub fn rows_from<'a>(
        &'a self,
        schema: &'a TableSchema,
        start: RowId,
    ) -> impl Iterator<Item = (RowId, Row<'a>)> + use<'a> {
        let seed = self.hashing.seed;
        let rows = self.rows.as_slice().get(start.index()..).unwrap_or_default();
        rows.iter().enumerate().filter_map(move |(place, record)| {
            let record = record.as_ref()?;
            Some((RowId(start.0 + place as u32), Row::new(schema, record.bytes(), seed)))
        })
    }

    /// The row with this UUID.
    #[inline]
    pub fn find(&self, uuid: &Uuid) -> Option<RowId> {
        self.uuids.find(self.hashing.uuid(uuid), |row| {
            self.bytes(row).is_some_and(|bytes| row::uuid_of(bytes) == *uuid)
        })
    }

    /// Starts loading the memory that [`Self::find`] and [`Self::insert`] read first.
    #[inline]
    pub(crate) fn prefetch(&self, uuid: &Uuid) {
        self.uuids.prefetch(self.hashing.uuid(uuid));
    }

    /// Announces up to this many rows: room is made for all of them when many have come.
    pub(crate) fn may_grow(&mut self, rows: usize) {
        self.coming = rows;
    }

    /// Makes room for this many rows at once. Without memory for that, nothing changes.
    pub(crate) fn expect(&mut self, records: &mut Records, rows: usize) {
        if rows < EXPECTED_ROWS_MIN || rows <= self.expected {
            return;
        }
        // A guess is slightly off, and a second one shows that it may be off again.
        let room = (rows + rows / 16).max(self.expected + self.expected / 2).min(u32::MAX as usize);
        self.reindex(records, room);
        self.resize(records, room);
    }

    /// Frees the room that was made for more rows than have come.
    pub(crate) fn fit(&mut self, records: &mut Records) {
        if self.expected > self.live + self.live / 8 {
            self.reindex(records, self.live);
        }
        (self.expected, self.coming) = (0, 0);
        let rows = self.rows.as_slice().len();
        if self.rows.capacity() > rows + (rows / 8).max(16) {
            self.resize(records, rows);
        }
    }

    /// Rebuilds the index of UUIDs, with room for this many rows.
    fn reindex(&mut self, records: &mut Records, room: usize) {
        let Ok(mut index) = RowIndex::with_room(records, room) else { return };
        let (rows, hashing) = (&self.rows, self.hashing);
        let hash_of = |row: RowId| hash_of_uuid(rows, hashing, row);
        for row in (0..rows.as_slice().len() as u32).map(RowId) {
            if bytes_of(rows, row).is_some() && index.insert(records, hash_of(row), row, &hash_of).is_err() {
                index.clear(records);
                return;
            }
        }
        std::mem::replace(&mut self.uuids, index).clear(records);
        self.expected = room;
    }

    /// Makes room for this many row ids.
    fn resize(&mut self, records: &mut Records, room: usize) {
        let (tenant, cache) = records.parts();
        // Without memory for that, the array grows by as little as it can.
        let _ = self.rows.resize(tenant, cache, room);
    }

    /// Adds a row under a new id.
    pub(crate) fn insert(
        &mut self,
        schema: &TableSchema,
        records: &mut Records,
        record: Record,
    ) -> Result<RowId, Error> {
        let row = match self.free.pop() {
            Some(row) => RowId(row),
            None => {
                let row = RowId(self.capacity());
                // An eighth more at a time, rather than the array's own quarter: there is a place for each row.
                if row.index() >= self.rows.capacity() {
                    self.resize(records, row.index() + (row.index() / 8).max(16));
                }
                let (tenant, cache) = records.parts();
                if row.0 == u32::MAX - 1 || !self.rows.push(tenant, cache, None) {
                    records.free(record);
                    return Err(no_memory());
                }
                row
            }
        };
        if let Err(error) = self.restore(schema, records, row, record) {
            self.release(row);
            return Err(error);
        }
        if self.coming > 0 {
            self.coming -= 1;
            if self.live >= EXPECTED_ROWS_MIN && self.live.is_power_of_two() && self.coming > self.live {
                self.expect(records, self.live + self.coming);
            }
        }
        Ok(row)
    }

    /// Restores a row under its id, which has been vacant since.
    pub(crate) fn restore(
        &mut self,
        schema: &TableSchema,
        records: &mut Records,
        row: RowId,
        record: Record,
    ) -> Result<(), Error> {
        let hash = self.hashing.uuid(&row::uuid_of(record.bytes()));
        let (rows, hashing) = (&self.rows, self.hashing);
        let hash_of = |row: RowId| hash_of_uuid(rows, hashing, row);
        let inserted = self.uuids.insert(records, hash, row, &hash_of);
        #[cfg(test)]
        let inserted = if self.cannot_restore { Err(no_memory()) } else { inserted };
        if let Err(error) = inserted {
            records.free(record);
            return Err(error);
        }
        self.record_bytes += record.allocated_bytes();
        if let Some(slot) = self.rows.as_mut_slice().get_mut(row.index()) {
            *slot = Some(record);
        }
        self.live += 1;
        self.add_automatic(schema, records, row);
        Ok(())
    }

    /// Removes a row. Its id stays reserved until [`Self::release`].
    pub(crate) fn take(&mut self, schema: &TableSchema, records: &mut Records, row: RowId) -> Option<Record> {
        let hash = self.hashing.uuid(&row::uuid_of(self.bytes(row)?));
        self.unsettle_unique(schema, records, row, None);
        self.remove_automatic(schema, records, row);
        let (rows, hashing) = (&self.rows, self.hashing);
        self.uuids.remove(records, hash, row, &|row| hash_of_uuid(rows, hashing, row));
        self.live -= 1;
        let record = self.rows.as_mut_slice().get_mut(row.index())?.take()?;
        self.record_bytes -= record.allocated_bytes();
        Some(record)
    }

    /// Replaces a row with another of the same UUID. Returns the old one.
    pub(crate) fn replace(
        &mut self,
        schema: &TableSchema,
        records: &mut Records,
        row: RowId,
        record: Record,
    ) -> Option<Record> {
        if !self.unique.is_empty() {
            self.unsettle_unique(schema, records, row, Some(record.bytes()));
        }
        self.remove_automatic(schema, records, row);
        let bytes = record.allocated_bytes();
        let old = self.rows.as_mut_slice().get_mut(row.index())?.replace(record);
        self.record_bytes += bytes;
        self.record_bytes -= old.as_ref().map_or(0, Record::allocated_bytes);
        self.add_automatic(schema, records, row);
        old
    }

    /// Frees the id of a row that was removed.
    pub(crate) fn release(&mut self, row: RowId) {
        debug_assert!(self.bytes(row).is_none());
        self.free.push(row.0);
        if self.live == 0 && self.free.len() == self.rows.as_slice().len() {
            self.free.clear();
            self.free.shrink_to_fit();
            self.rows.truncate(0);
        }
    }

    /// Frees memory that was needed for more rows.
    pub(crate) fn shrink(&mut self, records: &mut Records) {
        if self.rows.as_slice().is_empty() {
            let (tenant, cache) = records.parts();
            self.rows.clear(tenant, cache);
        }
    }

    /// Rows whose `column` has this value, by an automatic index if there is one. Otherwise `None`, and the search is
    /// counted: after some searches there will be an index.
    pub(crate) fn search(
        &mut self,
        schema: &TableSchema,
        records: &mut Records,
        column: ColumnId,
        value: &[u8],
    ) -> Option<Vec<RowId>> {
        if self.live < AUTOMATIC_ROWS_MIN {
            return None;
        }
        if !self.automatic.iter().any(|automatic| automatic.column == column) {
            let searches = self.searches.entry(column).or_default();
            searches.since += 1;
            if searches.since <= searches.wanted.max(AUTOMATIC_SEARCHES) {
                return None;
            }
            searches.since = 0;
            searches.wanted = searches.wanted.max(AUTOMATIC_SEARCHES).saturating_mul(8);
            if self.automatic.len() == AUTOMATIC_MAX {
                let mut least = self.automatic.remove(0);
                least.index.clear(records);
            }
            let rows = self.rows_from(schema, RowId(0));
            let rows = rows.map(|(id, row)| (self.hashing.bytes(row.cell(column)), id)).collect();
            let index = RowIndex::build(records, rows, AUTOMATIC_RUN_MAX).ok()??;
            self.automatic.push(Automatic { column, index, changes: 0 });
        }
        let place = self.automatic.iter().position(|automatic| automatic.column == column)?;
        let mut found = Vec::new();
        if let Some(automatic) = self.automatic.get(place) {
            automatic.index.find(self.hashing.bytes(value), |row| {
                if self.row(schema, row).is_some_and(|row| row.cell(column) == value) {
                    found.push(row);
                }
                false
            });
        }
        if let Some(automatic) = self.automatic.get_mut(place) {
            automatic.changes = 0;
        }
        found.sort_unstable();
        Some(found)
    }

    fn add_automatic(&mut self, schema: &TableSchema, records: &mut Records, row: RowId) {
        for place in (0..self.automatic.len()).rev() {
            self.add_to(schema, records, place, row);
        }
    }

    /// Adds a row to an automatic index. Returns `false` if the index was dropped instead.
    fn add_to(&mut self, schema: &TableSchema, records: &mut Records, place: usize, row: RowId) -> bool {
        let Some(automatic) = self.automatic.get_mut(place) else { return false };
        let (rows, hashing, column) = (&self.rows, self.hashing, automatic.column);
        let hash_of = |row: RowId| hash_of_cell(rows, hashing, schema, column, row);
        let passed = automatic.index.insert(records, hash_of(row), row, &hash_of);
        automatic.changes += 1;
        let is_used = automatic.changes <= AUTOMATIC_CHANGES_MAX * self.live.max(AUTOMATIC_ROWS_MIN);
        if is_used && passed.is_ok_and(|passed| passed < AUTOMATIC_PASSED_MAX) {
            return true;
        }
        automatic.index.clear(records);
        self.automatic.remove(place);
        false
    }

    fn remove_automatic(&mut self, schema: &TableSchema, records: &mut Records, row: RowId) {
        for automatic in &mut self.automatic {
            let (rows, hashing, column) = (&self.rows, self.hashing, automatic.column);
            let hash_of = |row: RowId| hash_of_cell(rows, hashing, schema, column, row);
            automatic.index.remove(records, hash_of(row), row, &hash_of);
        }
    }

    /// Adds a row to the declared indexes that it is not in, or returns another row with the same values, and the
    /// index.
    pub(crate) fn settle_unique(
        &mut self,
        schema: &TableSchema,
        records: &mut Records,
        row: RowId,
    ) -> Result<Option<(RowId, usize)>, Error> {
        for (number, columns) in schema.indexes.iter().enumerate() {
            let (rows, hashing) = (&self.rows, self.hashing);
            let hash_of = |row: RowId| hash_of_cells(rows, hashing, schema, columns, row);
            let (Some(index), Some(this)) = (self.unique.get_mut(number), bytes_of(rows, row)) else {
                continue;
            };
            let this = Row::new(schema, this, 0);
            let hash = hash_of(row);
            let found = index.find(hash, |other| {
                let is_equal = |other| {
                    let other = Row::new(schema, other, 0);
                    columns.iter().all(|column| other.cell(*column) == this.cell(*column))
                };
                other == row || bytes_of(rows, other).is_some_and(is_equal)
            });
            match found {
                Some(other) if other != row => return Ok(Some((other, number))),
                Some(_) => {}
                None => {
                    index.insert(records, hash, row, &hash_of)?;
                }
            }
        }
        Ok(None)
    }

    /// A row in a declared index that has the values of this row and for which `accepts` holds.
    pub(crate) fn find_settled(
        &self,
        schema: &TableSchema,
        index: usize,
        row: RowId,
        accepts: impl Fn(&[u8]) -> bool,
    ) -> Option<RowId> {
        let columns = schema.indexes.get(index)?;
        let this = self.row(schema, row)?;
        let hash = hash_of_cells(&self.rows, self.hashing, schema, columns, row);
        self.unique.get(index)?.find(hash, |other| {
            let Some(other) = self.bytes(other).filter(|bytes| accepts(bytes)) else { return false };
            let other = Row::new(schema, other, 0);
            columns.iter().all(|column| other.cell(*column) == this.cell(*column))
        })
    }

    /// Removes a row from the declared indexes in which it would differ as `new` (`None`: from all).
    fn unsettle_unique(
        &mut self,
        schema: &TableSchema,
        records: &mut Records,
        row: RowId,
        new: Option<&[u8]>,
    ) {
        for (index, columns) in self.unique.iter_mut().zip(&schema.indexes) {
            let (rows, hashing) = (&self.rows, self.hashing);
            let hash_of = |row: RowId| hash_of_cells(rows, hashing, schema, columns, row);
            if let (Some(old), Some(new)) = (bytes_of(rows, row), new) {
                let (old, new) = (Row::new(schema, old, 0), Row::new(schema, new, 0));
                if columns.iter().all(|column| old.cell(*column) == new.cell(*column)) {
                    continue;
                }
            }
            index.remove(records, hash_of(row), row, &hash_of);
        }
    }

    /// Frees all memory.
    pub(crate) fn clear(&mut self, records: &mut Records) {
        for slot in self.rows.as_mut_slice() {
            if let Some(record) = slot.take() {
                records.free(record);
            }
        }
        self.record_bytes = 0;
        let (tenant, cache) = records.parts();
        self.rows.clear(tenant, cache);
        self.uuids.clear(records);
        self.unique.iter_mut().for_each(|index| index.clear(records));
        self.automatic.iter_mut().for_each(|automatic| automatic.index.clear(records));
    }
}

fn bytes_of(rows: &TenantVec<Option<Record>>, row: RowId) -> Option<&[u8]> {
    rows.as_slice().get(row.index())?.as_ref().map(Record::bytes)
}

fn hash_of_uuid(rows: &TenantVec<Option<Record>>, hashing: Hashing, row: RowId) -> u64 {
    bytes_of(rows, row).map_or(0, |bytes| hashing.uuid(&row::uuid_of(bytes)))
}

fn hash_of_cell(
    rows: &TenantVec<Option<Record>>,
    hashing: Hashing,
    schema: &TableSchema,
    column: ColumnId,
    row: RowId,
) -> u64 {
    bytes_of(rows, row).map_or(0, |bytes| hashing.bytes(Row::new(schema, bytes, 0).cell(column)))
}

fn hash_of_cells(
    rows: &TenantVec<Option<Record>>,
    hashing: Hashing,
    schema: &TableSchema,
    columns: &[ColumnId],
    row: RowId,
) -> u64 {
    bytes_of(rows, row).map_or(0, |bytes| {
        let row = Row::new(schema, bytes, 0);
        hashing.cells(columns.iter().map(|column| row.cell(*column)))
    })
}
