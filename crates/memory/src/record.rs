//! Byte records of one owner in a tenant's arena.
//!
//! ```text
//!   Record, 8 bytes ──> | length LEB128 | bytes |        one allocation, aligned to 16, counted as an item
//! ```
//! A [`Record`] is owned like a `Box<[u8]>` but has no destructor: free it with [`Records::free`]. One that is dropped
//! instead stays allocated. Where an arena is freed as a whole, everything else of its tenant then stays allocated too:
//! [`Records`] destroys the arena only if the allocator reports that nothing in it is in use. So no order of safe calls
//! leaves a record with a dangling pointer.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::tenant::{Gauge, Tenant, TenantCache};

/// An owned run of bytes. Read it with [`Record::bytes`], free it with [`Records::free`].
#[derive(Debug)]
#[must_use = "a record has no destructor: free it"]
pub struct Record(NonNull<u8>);

const _: () = assert!(size_of::<Option<Record>>() == 8);

// SAFETY: a record owns its bytes like a Box.
unsafe impl Send for Record {}
// SAFETY: shared access only reads.
unsafe impl Sync for Record {}

/// Longest record in bytes.
pub const RECORD_BYTES_MAX: usize = (1 << 32) - 16;
/// The header holds 7 bits of the length per byte; the top bit says that another byte follows.
const MORE: u8 = 0x80;

impl Record {
    /// The bytes that were stored.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        let (header, length) = self.header();
        // SAFETY: `Records::store` wrote a header and `length` bytes behind it; the record is owned, so nothing changes
        // them, and its arena outlives it.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().add(header), length) }
    }

    /// Size of the header in bytes, and length of what follows.
    #[inline]
    fn header(&self) -> (usize, usize) {
        let mut length = 0;
        let mut header = 0;
        loop {
            // SAFETY: the header ends within the block, at its first byte without the top bit.
            let byte = unsafe { self.0.add(header).read() };
            length |= ((byte & !MORE) as usize) << (7 * header);
            header += 1;
            if byte & MORE == 0 {
                return (header, length);
            }
        }
    }

    /// Bytes of memory it takes, as rounded by the allocator.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        let (header, length) = self.header();
        crate::footprint(header + length)
    }
}

/// The memory of one owner's records and arrays. Used by one thread at a time.
pub struct Records {
    tenant: Option<Arc<Tenant>>,
    cache: Option<TenantCache>,
}

impl Records {
    /// Creates records in this tenant, whose thread 0 is the owner: nothing else allocates from it.
    pub fn new(tenant: Arc<Tenant>) -> Self {
        let cache = tenant.cache(0);
        Self { tenant: Some(tenant), cache: Some(cache) }
    }

    /// Copies `bytes` into a record. Returns `None` if they are too long or the system is out of memory.
    #[inline]
    pub fn store(&mut self, bytes: &[u8]) -> Option<Record> {
        self.store_parts(bytes, &[])
    }

    /// Like [`Records::store`], for two pieces.
    #[inline]
    pub fn store_parts(&mut self, first: &[u8], second: &[u8]) -> Option<Record> {
        let length = first.len() + second.len();
        if length > RECORD_BYTES_MAX {
            return None;
        }
        let mut head = [0; 5];
        let mut header = 0;
        let mut rest = length;
        for byte in &mut head {
            header += 1;
            if rest < MORE as usize {
                *byte = rest as u8;
                break;
            }
            *byte = rest as u8 | MORE;
            rest >>= 7;
        }
        let (tenant, cache) = self.parts();
        let block = tenant.allocate(cache, header + length, Gauge::Items)?;
        // SAFETY: the block is new and has room for the header and both pieces, one behind the other.
        unsafe {
            block.copy_from_nonoverlapping(NonNull::from(&head).cast(), header);
            block.add(header).copy_from_nonoverlapping(NonNull::from(first).cast(), first.len());
            block
                .add(header + first.len())
                .copy_from_nonoverlapping(NonNull::from(second).cast(), second.len());
        }
        Some(Record(block))
    }

    /// Frees a record.
    #[inline]
    pub fn free(&mut self, record: Record) {
        let (header, length) = record.header();
        let (tenant, cache) = self.parts();
        // SAFETY: the record is owned and gone now; it was allocated in `store_parts` with this size.
        unsafe { tenant.free(cache, record.0, header + length, Gauge::Items) }
    }

    /// Tenant and cache, for arrays beside the records.
    #[inline]
    pub fn parts(&mut self) -> (&Tenant, &mut TenantCache) {
        match (&self.tenant, &mut self.cache) {
            (Some(tenant), Some(cache)) => (tenant, cache),
            _ => unreachable!("both are taken in drop alone"),
        }
    }

    /// The tenant.
    #[inline]
    pub fn tenant(&self) -> &Tenant {
        match &self.tenant {
            Some(tenant) => tenant,
            None => unreachable!("taken in drop alone"),
        }
    }

    /// Releases the memory kept for later allocations.
    pub fn rest(&mut self) {
        let (tenant, cache) = self.parts();
        tenant.rest(cache);
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let (Some(tenant), Some(mut cache)) = (self.tenant.take(), self.cache.take()) else { return };
        tenant.rest(&mut cache);
        if tenant.would_take_blocks_along() {
            std::mem::forget(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_stored_and_counts_it() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut records = Records::new(Arc::clone(&tenant));
        let longest = if cfg!(miri) { 80_000 } else { 3_000_000 };
        let lengths = [0, 1, 14, 15, 16, 127, 128, 129, 1000, 16_383, 16_384, 70_000, longest];
        let stored: Vec<Record> = lengths
            .iter()
            .map(|&length| {
                let bytes: Vec<u8> = (0..length).map(|place: usize| (place * 7 + length) as u8).collect();
                let (first, second) = bytes.split_at(length / 3);
                records.store_parts(first, second).unwrap()
            })
            .collect();
        let mut allocated = 0;
        for (record, &length) in stored.iter().zip(&lengths) {
            assert!(
                record.bytes().iter().enumerate().all(|(place, byte)| *byte == (place * 7 + length) as u8)
            );
            assert_eq!(record.bytes().len(), length);
            allocated += record.allocated_bytes() as u64;
        }
        assert_eq!(tenant.gauge(Gauge::Items), allocated);
        for record in stored {
            records.free(record);
        }
        assert_eq!(tenant.gauge(Gauge::Items), 0);
    }

    #[test]
    fn the_tenant_goes_when_all_records_are_back() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut records = Records::new(Arc::clone(&tenant));
        let record = records.store(b"one").unwrap();
        records.free(record);
        drop(records);
        assert_eq!(Arc::strong_count(&tenant), 1);
    }

    #[test]
    fn a_record_that_is_not_freed_stays_readable() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut records = Records::new(Arc::clone(&tenant));
        let record = records.store(b"left behind").unwrap();
        drop(records);
        assert_eq!(Arc::strong_count(&tenant), 1 + usize::from(crate::backend::ARENA_GOES_AS_A_WHOLE));
        drop(tenant);
        // In a static, where leak checkers do not look for its owner.
        static LEFT: std::sync::OnceLock<Record> = std::sync::OnceLock::new();
        assert_eq!(LEFT.get_or_init(|| record).bytes(), b"left behind");
    }
}
