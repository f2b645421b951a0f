//! Hash indexes: from a hash to the ids of the rows that have it.
//!
//! ```text
//!   hash, 64 bits   | segment 20 | bucket 32 | .. | tag 8 |
//!   directory[top bits of the hash] ──> Segment: up to 512 buckets of 16 slots, a bucket is a cache line
//!   slot, 4 B       | tag 8 | row id 24 |            once a row id needs more than 24 bits: | row id 32 |
//! ```
//! An index keeps row ids and bits of their hashes, nothing else: the caller compares rows. A row whose bucket is full
//! goes into the next one, and the full one is marked as overflowed. A search continues only past such buckets, and
//! removing a row empties its slot and touches nothing else. No operation touches more than one segment, so none takes
//! long. The slots are 0.55 to 0.87 full, whatever the number of rows: 5 to 7 bytes for a row.

use memory::{Records, TenantVec};

use crate::error::Error;
use crate::row::RowId;

const EMPTY: u32 = u32::MAX;
const BUCKET_SLOTS: usize = 16;
/// A full segment with this many buckets is split in two.
const SEGMENT_BUCKETS_MAX: usize = 512;
/// Row ids from here on leave no room for tags. (The last 24-bit one with a tag of ones would look like an empty slot.)
const TAGGED_IDS: u32 = (1 << 24) - 1;
const TAG_SHIFT: u32 = 24;
/// Directory bits: with full segments enough for the four billion rows that ids can name.
const DEPTH_MAX: u32 = 20;
/// A search that passes this many buckets, though a fifth of the slots are free, indicates outdated marks.
const PASSED_MAX: usize = 8;
/// Most rows of a segment in an index that is built at once.
const BUILT_ROWS_MAX: usize = 5500;

/// A segment's slots.
struct Segment {
    slots: TenantVec<u32>,
    used: u32,
    /// Leading bits that all hashes in it share.
    depth: u32,
    /// Buckets that rows have passed because they were full.
    overflowed: [u64; SEGMENT_BUCKETS_MAX / 64],
}

const _: () = assert!(size_of::<Segment>() <= 88);

/// An index.
pub struct RowIndex {
    segments: Vec<Segment>,
    /// The segment of a hash, by its leading `depth` bits.
    directory: Vec<u32>,
    depth: u32,
    tagged: bool,
    len: usize,
}

impl Default for RowIndex {
    fn default() -> Self {
        Self { segments: Vec::new(), directory: Vec::new(), depth: 0, tagged: true, len: 0 }
    }
}

impl RowIndex {
    /// An index of these rows, of which at most `longest_run` share a hash; `None` if there are more.
    pub fn build(
        records: &mut Records,
        mut rows: Vec<(u64, RowId)>,
        longest_run: usize,
    ) -> Result<Option<Self>, Error> {
        rows.sort_unstable();
        if rows.chunk_by(|one, other| one.0 == other.0).any(|run| run.len() > longest_run) {
            return Ok(None);
        }
        let tagged = rows.iter().all(|(_, row)| row.0 < TAGGED_IDS);
        let mut this = Self { tagged, depth: depth_for(rows.len()), ..Self::default() };
        let mut rest = rows.as_slice();
        for prefix in 0..1_u64 << this.depth {
            let end = rest.partition_point(|(hash, _)| top_bits(*hash, this.depth) <= prefix);
            let (here, after) = rest.split_at(end);
            rest = after;
            match Segment::new(records, here.len() * 4 / 3, this.depth) {
                Ok(segment) => this.segments.push(segment),
                Err(error) => {
                    this.clear(records);
                    return Err(error);
                }
            }
            this.directory.push(prefix as u32);
            if let Some(segment) = this.segments.last_mut() {
                for &(hash, row) in here {
                    segment.place(hash, slot_of(tagged, hash, row));
                }
            }
            this.len += here.len();
        }
        Ok(Some(this))
    }

    /// An index without rows, with room for this many, which will be as dense as in [`Self::build`].
    pub fn with_room(records: &mut Records, rows: usize) -> Result<Self, Error> {
        let mut this = Self { depth: depth_for(rows), ..Self::default() };
        for number in 0..1_u32 << this.depth {
            match Segment::new(records, (rows >> this.depth) * 4 / 3, this.depth) {
                Ok(segment) => this.segments.push(segment),
                Err(error) => {
                    this.clear(records);
                    return Err(error);
                }
            }
            this.directory.push(number);
        }
        Ok(this)
    }

    /// Starts loading the memory that a search for that hash reads first.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let segment = self.segment_of(hash).and_then(|number| self.segments.get(number));
        if let Some(bucket) = segment.and_then(|segment| segment.buckets().get(segment.home(hash))) {
            memory::prefetch(bucket);
        }
    }

    #[inline]
    fn segment_of(&self, hash: u64) -> Option<usize> {
        self.directory.get(top_bits(hash, self.depth) as usize).map(|segment| *segment as usize)
    }

    /// The first row with this hash for which `is_it` holds. It is also called with rows of other hashes.
    #[inline]
    pub fn find(&self, hash: u64, mut is_it: impl FnMut(RowId) -> bool) -> Option<RowId> {
        let segment = self.segments.get(self.segment_of(hash)?)?;
        let buckets = segment.buckets();
        let mut number = segment.home(hash);
        let (mask, tag) = if self.tagged { (0xff << TAG_SHIFT, (hash as u32) << TAG_SHIFT) } else { (0, 0) };
        for _ in 0..buckets.len() {
            let bucket = buckets.get(number)?;
            let mut found = matches(bucket, mask, tag);
            while found != 0 {
                let slot = bucket.get(found.trailing_zeros() as usize).copied().unwrap_or(EMPTY);
                if slot != EMPTY && is_it(row_of(self.tagged, slot)) {
                    return Some(row_of(self.tagged, slot));
                }
                found &= found - 1;
            }
            if !segment.is_overflowed(number) {
                return None;
            }
            number = next(number, buckets.len());
        }
        None
    }

    /// Adds a row that is not in the index yet. `hash_of` returns the hash of any row that is. Returns how many buckets
    /// it passed.
    pub fn insert(
        &mut self,
        records: &mut Records,
        hash: u64,
        row: RowId,
        hash_of: &dyn Fn(RowId) -> u64,
    ) -> Result<usize, Error> {
        if self.tagged && row.0 >= TAGGED_IDS {
            self.drop_tags();
        }
        if self.directory.is_empty() {
            self.segments.push(Segment::new(records, 0, 0)?);
            self.directory.push(0);
        }
        loop {
            let number = self.segment_of(hash).unwrap_or_default();
            let Some(segment) = self.segments.get(number) else { return Err(no_memory()) };
            let capacity = segment.slots.as_slice().len();
            if (segment.used as usize + 1) * 8 <= capacity * 7 {
                break;
            }
            if segment.buckets().len() >= SEGMENT_BUCKETS_MAX && segment.depth < DEPTH_MAX {
                self.split(records, number, hash_of)?;
            } else {
                let more = match capacity {
                    ..2048 => capacity / 2,
                    _ => capacity / 4,
                };
                self.rebuild(records, number, capacity + more, hash_of)?;
            }
        }
        let tagged = self.tagged;
        let number = self.segment_of(hash).unwrap_or_default();
        let Some(segment) = self.segments.get_mut(number) else { return Err(no_memory()) };
        let passed = segment.place(hash, slot_of(tagged, hash, row));
        self.len += 1;
        let capacity = segment.slots.as_slice().len();
        if passed > PASSED_MAX && (segment.used as usize) * 5 < capacity * 4 {
            self.rebuild(records, number, capacity, &|other| {
                if other == row { hash } else { hash_of(other) }
            })?;
        }
        Ok(passed)
    }

    /// Removes a row. `hash_of` returns the hash of any other row in it.
    pub fn remove(&mut self, records: &mut Records, hash: u64, row: RowId, hash_of: &dyn Fn(RowId) -> u64) {
        let wanted = slot_of(self.tagged, hash, row);
        let Some(number) = self.segment_of(hash) else { return };
        let Some(segment) = self.segments.get_mut(number) else { return };
        if !segment.remove(hash, wanted) {
            return;
        }
        let (used, capacity) = (segment.used as usize, segment.slots.as_slice().len());
        self.len -= 1;
        if self.len == 0 {
            self.clear(records);
        } else if capacity > BUCKET_SLOTS * 4 && used * 4 < capacity {
            // Without memory for a smaller one, the large one stays.
            let _ = self.rebuild(records, number, used * 3 / 2, hash_of);
        }
    }

    /// Removes all rows and frees the memory.
    pub fn clear(&mut self, records: &mut Records) {
        let (tenant, cache) = records.parts();
        for segment in &mut self.segments {
            segment.slots.clear(tenant, cache);
        }
        *self = Self::default();
    }

    /// Rebuilds a segment with this many slots.
    fn rebuild(
        &mut self,
        records: &mut Records,
        number: usize,
        slots: usize,
        hash_of: &dyn Fn(RowId) -> u64,
    ) -> Result<(), Error> {
        let tagged = self.tagged;
        let Some(segment) = self.segments.get_mut(number) else { return Ok(()) };
        let mut new = Segment::new(records, slots, segment.depth)?;
        for &slot in segment.slots.as_slice().iter().filter(|slot| **slot != EMPTY) {
            new.place(hash_of(row_of(tagged, slot)), slot);
        }
        std::mem::replace(segment, new).drop_slots(records);
        Ok(())
    }

    /// Splits a segment by the next bit of the hashes in it.
    fn split(
        &mut self,
        records: &mut Records,
        number: usize,
        hash_of: &dyn Fn(RowId) -> u64,
    ) -> Result<(), Error> {
        let tagged = self.tagged;
        let Some(segment) = self.segments.get_mut(number) else { return Ok(()) };
        let depth = segment.depth;
        // Room for more than half of the rows in each half: the hashes may be uneven.
        let room = segment.used as usize * 2 / 3;
        let mut halves = Segment::new(records, room, depth + 1)?;
        let mut second = match Segment::new(records, room, depth + 1) {
            Ok(second) => second,
            Err(error) => {
                halves.drop_slots(records);
                return Err(error);
            }
        };
        let mut left_over = Vec::new();
        for &slot in segment.slots.as_slice().iter().filter(|slot| **slot != EMPTY) {
            let hash = hash_of(row_of(tagged, slot));
            let half = if hash >> (63 - depth) & 1 == 1 { &mut second } else { &mut halves };
            if (half.used as usize) < half.slots.as_slice().len() {
                half.place(hash, slot);
            } else {
                left_over.push((hash, slot));
            }
        }
        std::mem::replace(segment, halves).drop_slots(records);
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|segment| [*segment, *segment]).collect();
            self.depth += 1;
        }
        let new = self.segments.len() as u32;
        self.segments.push(second);
        for (entry, segment) in self.directory.iter_mut().enumerate() {
            if *segment as usize == number && entry as u64 >> (self.depth - depth - 1) & 1 == 1 {
                *segment = new;
            }
        }
        for (hash, slot) in left_over {
            self.len -= 1;
            self.insert(records, hash, row_of(tagged, slot), hash_of)?;
        }
        Ok(())
    }

    /// Drops the tags: from now on the whole slot is a row id.
    fn drop_tags(&mut self) {
        for slot in self.segments.iter_mut().flat_map(|segment| segment.slots.as_mut_slice()) {
            if *slot != EMPTY {
                *slot &= (1 << TAG_SHIFT) - 1;
            }
        }
        self.tagged = false;
    }
}

impl Segment {
    /// An empty segment of at least this many slots, up to the maximum.
    fn new(records: &mut Records, slots: usize, depth: u32) -> Result<Self, Error> {
        let bucket_bytes = BUCKET_SLOTS * size_of::<u32>();
        let buckets = slots.div_ceil(BUCKET_SLOTS).clamp(1, SEGMENT_BUCKETS_MAX);
        // Uses all of what the allocator returns for that.
        let buckets = (memory::size_class(buckets * bucket_bytes) / bucket_bytes).min(SEGMENT_BUCKETS_MAX);
        let (tenant, cache) = records.parts();
        let mut slots = TenantVec::new();
        if !slots.resize(tenant, cache, buckets * BUCKET_SLOTS) {
            return Err(no_memory());
        }
        for _ in 0..buckets * BUCKET_SLOTS {
            if !slots.push(tenant, cache, EMPTY) {
                return Err(no_memory());
            }
        }
        Ok(Self { slots, used: 0, depth, overflowed: [0; SEGMENT_BUCKETS_MAX / 64] })
    }

    fn drop_slots(mut self, records: &mut Records) {
        let (tenant, cache) = records.parts();
        self.slots.clear(tenant, cache);
    }

    #[inline]
    fn buckets(&self) -> &[[u32; BUCKET_SLOTS]] {
        self.slots.as_slice().as_chunks().0
    }

    /// The bucket of a hash: the bits after the directory's, scaled to the number of buckets.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        let bits = hash << DEPTH_MAX >> 32;
        ((bits * self.buckets().len() as u64) >> 32) as usize
    }

    #[inline]
    fn is_overflowed(&self, bucket: usize) -> bool {
        self.overflowed.get(bucket / 64).is_some_and(|bits| bits >> (bucket % 64) & 1 == 1)
    }

    /// Puts a slot where its hash says, or after that. There is room. Returns how many buckets it passed.
    #[inline]
    fn place(&mut self, hash: u64, slot: u32) -> usize {
        let mut number = self.home(hash);
        let (buckets, _) = self.slots.as_mut_slice().as_chunks_mut::<BUCKET_SLOTS>();
        let count = buckets.len();
        for passed in 0..count {
            let free = buckets.get_mut(number).and_then(|bucket| {
                let free = matches(bucket, u32::MAX, EMPTY);
                bucket.get_mut(free.trailing_zeros() as usize)
            });
            if let Some(free) = free {
                *free = slot;
                self.used += 1;
                return passed;
            }
            if let Some(bits) = self.overflowed.get_mut(number / 64) {
                *bits |= 1 << (number % 64);
            }
            number = next(number, count);
        }
        debug_assert!(false, "a segment without room");
        count
    }

    /// Empties the slot with this content.
    fn remove(&mut self, hash: u64, wanted: u32) -> bool {
        let mut number = self.home(hash);
        let count = self.buckets().len();
        for _ in 0..count {
            let is_overflowed = self.is_overflowed(number);
            let (buckets, _) = self.slots.as_mut_slice().as_chunks_mut::<BUCKET_SLOTS>();
            let found =
                buckets.get_mut(number).and_then(|bucket| bucket.iter_mut().find(|slot| **slot == wanted));
            if let Some(slot) = found {
                *slot = EMPTY;
                self.used -= 1;
                return true;
            }
            if !is_overflowed {
                return false;
            }
            number = next(number, count);
        }
        false
    }
}

/// Directory bits of an index made for this many rows.
fn depth_for(rows: usize) -> u32 {
    (0..DEPTH_MAX).find(|depth| rows >> depth <= BUILT_ROWS_MAX).unwrap_or(DEPTH_MAX)
}

#[inline]
fn top_bits(hash: u64, depth: u32) -> u64 {
    if depth == 0 { 0 } else { hash >> (64 - depth) }
}

#[inline]
fn slot_of(tagged: bool, hash: u64, row: RowId) -> u32 {
    if tagged { row.0 | ((hash as u32 & 0xff) << TAG_SHIFT) } else { row.0 }
}

#[inline]
fn row_of(tagged: bool, slot: u32) -> RowId {
    RowId(if tagged { slot & ((1 << TAG_SHIFT) - 1) } else { slot })
}

/// Which slots of a bucket match `wanted` in the bits of `mask`. Without an early exit, so that it takes few
/// instructions.
#[inline]
fn matches(bucket: &[u32; BUCKET_SLOTS], mask: u32, wanted: u32) -> u32 {
    let mut found = 0;
    for (place, slot) in bucket.iter().enumerate() {
        found |= u32::from(slot & mask == wanted) << place;
    }
    found
}

#[inline]
fn next(bucket: usize, count: usize) -> usize {
    if bucket + 1 == count { 0 } else { bucket + 1 }
}

#[cold]
pub(crate) fn no_memory() -> Error {
    Error::resources_exhausted("the system has no memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl RowIndex {
        fn rows(&self) -> impl Iterator<Item = RowId> + '_ {
            let slots = self.segments.iter().flat_map(|segment| segment.slots.as_slice());
            slots.filter(|slot| **slot != EMPTY).map(|slot| row_of(self.tagged, *slot))
        }
    }

    fn records() -> Records {
        Records::new(memory::Tenant::new(1, u64::MAX).unwrap())
    }

    /// Spread like a hash; `coarse` makes many rows share one.
    fn hash(row: RowId, coarse: u64) -> u64 {
        (u64::from(row.0) / coarse)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    #[test]
    fn holds_many_rows_in_few_bytes_each() {
        let mut records = records();
        let mut index = RowIndex::default();
        let hash_of = |row: RowId| hash(row, 1);
        for row in (0..300_000).map(RowId) {
            index.insert(&mut records, hash_of(row), row, &hash_of).unwrap();
        }
        let bytes = records.tenant().gauge(memory::tenant::Gauge::Index);
        assert!(bytes < 300_000 * 7, "{bytes} bytes");
        for row in (0..300_000).map(RowId) {
            assert_eq!(index.find(hash_of(row), |other| other == row), Some(row));
        }
        assert_eq!(
            index.find(hash_of(RowId(300_000)), |other| hash_of(other) == hash_of(RowId(300_000))),
            None
        );
        for row in (0..300_000).map(RowId) {
            index.remove(&mut records, hash_of(row), row, &hash_of);
        }
        assert_eq!(index.len, 0);
        index.clear(&mut records);
        assert_eq!(records.tenant().gauge(memory::tenant::Gauge::Index), 0);
    }

    #[test]
    fn an_index_with_room_for_its_rows_stays_as_it_is() {
        let mut records = records();
        let hash_of = |row: RowId| hash(row, 1);
        for rows in [0, 1, 100, 5501, 300_000] {
            let mut index = RowIndex::with_room(&mut records, rows as usize).unwrap();
            let bytes = records.tenant().gauge(memory::tenant::Gauge::Index);
            for row in (0..rows).map(RowId) {
                index.prefetch(hash_of(row));
                index.insert(&mut records, hash_of(row), row, &|_| unreachable!("made anew")).unwrap();
            }
            assert_eq!(records.tenant().gauge(memory::tenant::Gauge::Index), bytes, "{rows} rows");
            assert!((0..rows).map(RowId).all(|row| index.find(hash_of(row), |other| other == row).is_some()));
            index.clear(&mut records);
        }
    }

    #[test]
    fn row_ids_of_32_bits_find_their_way() {
        let mut records = records();
        let mut index = RowIndex::default();
        let hash_of = |row: RowId| hash(row, 1);
        let rows: Vec<RowId> = (0..1000).chain(TAGGED_IDS - 1..TAGGED_IDS + 1000).map(RowId).collect();
        for &row in &rows {
            index.insert(&mut records, hash_of(row), row, &hash_of).unwrap();
        }
        assert!(rows.iter().all(|row| index.find(hash_of(*row), |other| other == *row) == Some(*row)));
        index.clear(&mut records);
    }

    #[test]
    fn an_index_built_at_once_is_the_same() {
        let mut records = records();
        let hash_of = |row: RowId| hash(row, 3);
        let rows: Vec<(u64, RowId)> = (0..50_000).map(RowId).map(|row| (hash_of(row), row)).collect();
        assert!(RowIndex::build(&mut records, rows.clone(), 2).unwrap().is_none());
        let mut index = RowIndex::build(&mut records, rows.clone(), 3).unwrap().unwrap();
        assert!(rows.iter().all(|(hash, row)| index.find(*hash, |other| other == *row).is_some()));
        for (hash, row) in rows {
            index.remove(&mut records, hash, row, &hash_of);
            assert!(index.find(hash, |other| other == row).is_none());
        }
        assert!(index.len == 0);
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((any::<bool>(), 0_u32..400), 0..2000), coarse in 1_u64..9) {
            let mut records = records();
            let mut index = RowIndex::default();
            let mut model = BTreeSet::new();
            let hash_of = |row: RowId| hash(row, coarse);
            for (insert, row) in steps {
                let row = RowId(row);
                if insert {
                    if model.insert(row) {
                        index.insert(&mut records, hash_of(row), row, &hash_of).unwrap();
                    }
                } else {
                    index.remove(&mut records, hash_of(row), row, &hash_of);
                    model.remove(&row);
                }
                prop_assert_eq!(index.len, model.len());
            }
            for row in (0..400).map(RowId) {
                let found = index.find(hash_of(row), |other| other == row).is_some();
                prop_assert_eq!(found, model.contains(&row));
            }
            prop_assert_eq!(index.rows().collect::<BTreeSet<_>>(), model);
            index.clear(&mut records);
        }
    }
}
