//! Large items: filled before they are linked, immutable afterwards, kept in place while any thread sends them.
//!
//! ```text
//!   block = | references u32, padding to 16 | item: header, optional words, key, value |
//!                                           ^ location
//! ```
//! The index holds one reference, each [`Pin`] one more. Dropping the last one frees the block. Until then its bytes
//! stay charged to the tenant: as an item while the index refers to it, then as in flight. The bytes from a pin's
//! offset on (the value) are never written again; the item's header may be, under the vBucket's lock.

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::backend::BLOCK_ALIGNMENT;
use crate::heap::Location;
use crate::tenant::{Gauge, Tenant, TenantCache};

const PREFIX: usize = BLOCK_ALIGNMENT;
const _: () = assert!(size_of::<AtomicU32>() <= PREFIX);

/// Bytes charged for a large item of `size` bytes.
pub fn item_footprint(size: usize) -> usize {
    crate::footprint(PREFIX + size)
}

/// Bytes counted as in flight before they are allocated, so that of several threads that ask for much each sees what
/// the others will take. Dropping it takes them off the account.
///
/// It also accounts for memory outside the tenant's arena that is used on the tenant's behalf.
pub struct Reservation {
    tenant: Arc<Tenant>,
    bytes: usize,
}

impl Reservation {
    /// Counts the bytes. The caller compares the tenant's `used`, which includes them now, with its budget.
    pub fn new(tenant: &Arc<Tenant>, bytes: usize) -> Self {
        tenant.count_shared(Gauge::InFlight, bytes.cast_signed() as i64);
        Self { tenant: Arc::clone(tenant), bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.tenant.count_shared(Gauge::InFlight, -(self.bytes.cast_signed() as i64));
    }
}

/// A large item that is not linked yet: owned and writable. Dropping it frees its memory.
pub struct LargeBlock {
    tenant: Arc<Tenant>,
    item: NonNull<u8>,
    size: usize,
    /// Number of initialised bytes from the start.
    ready: usize,
}

// SAFETY: the block is owned by this handle alone; the tenant is shared safely.
unsafe impl Send for LargeBlock {}

impl LargeBlock {
    /// Allocates room for an item of `size` bytes, charged as in flight. Returns `None` if the system is out of memory.
    pub fn new(tenant: &Arc<Tenant>, cache: &mut TenantCache, size: usize) -> Option<Self> {
        let block = tenant.allocate(cache, PREFIX + size, Gauge::InFlight)?;
        // SAFETY: the block is ours, aligned to 16 and at least PREFIX + size bytes long.
        let item = unsafe {
            block.cast::<AtomicU32>().write(AtomicU32::new(1));
            block.add(PREFIX)
        };
        Some(Self { tenant: Arc::clone(tenant), item, size, ready: 0 })
    }

    /// Allocates room for an item of `size` bytes whose [`item_footprint`] was reserved. Returns `None` if the system
    /// is out of memory.
    pub fn within(reservation: Reservation, size: usize) -> Option<Self> {
        assert_eq!(reservation.bytes, item_footprint(size));
        let block = reservation.tenant.allocate_reserved(PREFIX + size)?;
        // SAFETY: the block is ours, aligned to 16 and at least PREFIX + size bytes long.
        let item = unsafe {
            block.cast::<AtomicU32>().write(AtomicU32::new(1));
            block.add(PREFIX)
        };
        let tenant = Arc::clone(&reservation.tenant);
        // The block's bytes are the reserved ones from now on.
        let mut reservation = reservation;
        reservation.bytes = 0;
        Some(Self { tenant, item, size, ready: 0 })
    }

    /// Size of the item in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The item's bytes, as far as they have been filled.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `ready` initialised bytes, owned by this handle.
        unsafe { std::slice::from_raw_parts(self.item.as_ptr(), self.ready) }
    }

    /// Returns a part of the item's bytes to fill. Bytes not touched before are zeroed first, and only up to the part's
    /// end: filling twenty mebibytes piece by piece does not pay for all of them at once.
    pub fn window(&mut self, part: Range<usize>) -> &mut [u8] {
        assert!(part.start <= part.end && part.end <= self.size, "{part:?} of {} bytes", self.size);
        // SAFETY: the block is `size` bytes long and owned by this handle; the part is initialised when it is handed
        // out.
        unsafe {
            if self.ready < part.end {
                self.item.add(self.ready).write_bytes(0, part.end - self.ready);
                self.ready = part.end;
            }
            std::slice::from_raw_parts_mut(self.item.add(part.start).as_ptr(), part.len())
        }
    }

    /// Returns true if its memory belongs to this tenant. It may be linked only there.
    pub fn is_of(&self, tenant: &Arc<Tenant>) -> bool {
        Arc::ptr_eq(&self.tenant, tenant)
    }

    /// Hands the item over to an index. It is counted as an item from now on.
    pub fn into_location(mut self, cache: &mut TenantCache) -> Location {
        let location = Location::of_block(self.item);
        self.fill();
        let bytes = item_footprint(self.size).cast_signed() as i64;
        self.tenant.count(cache, Gauge::InFlight, -bytes);
        self.tenant.count(cache, Gauge::Items, bytes);
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the handle is never used or dropped again, so its reference to the tenant is dropped exactly once
        // here.
        unsafe { std::ptr::drop_in_place(&raw mut this.tenant) };
        location
    }

    /// Turns it into a pin on the bytes from `offset` on, which are sent once and never linked.
    pub fn into_pin(mut self, offset: usize) -> Pin {
        assert!(offset <= self.size, "{offset} of {} bytes", self.size);
        self.fill();
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the handle is never used or dropped again: its reference to the tenant, and the only reference to the
        // block, pass to the pin.
        let tenant = unsafe { std::ptr::read(&raw const this.tenant) };
        Pin { tenant, item: this.item, size: this.size, offset, end: this.size }
    }

    /// Makes sure that it is initialised to its end.
    fn fill(&mut self) {
        self.window(self.size..self.size);
    }
}

impl Drop for LargeBlock {
    fn drop(&mut self) {
        // SAFETY: the block was never linked, so this handle holds its only reference.
        unsafe { self.tenant.free_shared(block_of(self.item), PREFIX + self.size, Gauge::InFlight) }
    }
}

fn block_of(item: NonNull<u8>) -> NonNull<u8> {
    // SAFETY: every large item lies PREFIX bytes into its block.
    unsafe { item.sub(PREFIX) }
}

/// A reference to bytes of a large item, which stay in place and unchanged until it is dropped.
pub struct Pin {
    tenant: Arc<Tenant>,
    item: NonNull<u8>,
    /// Size of the item.
    size: usize,
    /// The bytes it is on, from here
    offset: usize,
    /// to here.
    end: usize,
}

// SAFETY: a pin only reads bytes that no thread writes, and its count is atomic.
unsafe impl Send for Pin {}

impl Pin {
    /// Pins the large item at `item`, `size` bytes long, to read its bytes from `offset` on.
    ///
    /// # Safety
    /// The item is a large one of this tenant, linked, and its vBucket's lock is held.
    pub unsafe fn new(tenant: &Arc<Tenant>, item: NonNull<u8>, size: usize, offset: usize) -> Self {
        // SAFETY: a large item has its count PREFIX bytes before it; the index's own reference keeps it alive
        // meanwhile.
        unsafe { block_of(item).cast::<AtomicU32>().as_ref() }.fetch_add(1, Ordering::Relaxed);
        Self { tenant: Arc::clone(tenant), item, size, end: size, offset }
    }

    /// Returns another pin, on a part of the bytes of this one.
    pub fn part(&self, part: Range<usize>) -> Self {
        assert!(part.start <= part.end && part.end <= self.len(), "{part:?} of {} bytes", self.len());
        // SAFETY: the reference of this pin keeps the block alive meanwhile.
        unsafe { block_of(self.item).cast::<AtomicU32>().as_ref() }.fetch_add(1, Ordering::Relaxed);
        let (offset, end) = (self.offset + part.start, self.offset + part.end);
        Self { tenant: Arc::clone(&self.tenant), item: self.item, size: self.size, offset, end }
    }
}

impl Deref for Pin {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block lives while this reference counts, and its tail is never written once linked.
        unsafe { std::slice::from_raw_parts(self.item.as_ptr().add(self.offset), self.end - self.offset) }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: releases the reference this pin took.
        if unsafe { is_last_reference(self.item) } {
            // No index refers to it, since its last reference is a pin's.
            // SAFETY: nothing refers to it any more.
            unsafe { self.tenant.free_shared(block_of(self.item), PREFIX + self.size, Gauge::InFlight) }
        }
    }
}

/// Drops the index's reference to the large item. The item is freed unless pins keep it.
///
/// # Safety
/// The caller owns the index's reference and gives it up.
pub unsafe fn release(tenant: &Tenant, item: NonNull<u8>, size: usize) {
    // SAFETY: by the contract.
    if unsafe { is_last_reference(item) } {
        // SAFETY: nothing refers to it any more.
        unsafe { tenant.free_shared(block_of(item), PREFIX + size, Gauge::Items) }
    } else {
        tenant.unlink_large(item_footprint(size));
    }
}

/// Gives up a reference. Returns true if it was the last.
///
/// # Safety
/// The caller owns a reference to the large item at `item` and does not use it any more.
unsafe fn is_last_reference(item: NonNull<u8>) -> bool {
    // SAFETY: the reference given up keeps the block alive until here.
    let before = unsafe { block_of(item).cast::<AtomicU32>().as_ref() }.fetch_sub(1, Ordering::Release);
    debug_assert!(before > 0);
    if before == 1 {
        std::sync::atomic::fence(Ordering::Acquire);
    }
    before == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_outlives_the_item_and_its_bytes_stay_charged() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let size = 100_000;
        let mut block = LargeBlock::new(&tenant, &mut cache, size).unwrap();
        block.window(10..20).fill(7);
        assert_eq!((block.bytes().len(), &block.bytes()[8..12]), (20, &[0, 0, 7, 7][..]));
        assert!(tenant.gauge(Gauge::InFlight) >= size as u64);
        let location = block.into_location(&mut cache);
        let item = location.pointer();
        assert_eq!(
            (tenant.gauge(Gauge::InFlight), tenant.gauge(Gauge::Items)),
            (0, crate::footprint(PREFIX + size) as u64)
        );
        // SAFETY: the item is a large one of this tenant; nothing else uses it.
        let pin = unsafe { Pin::new(&tenant, item, size, 10) };
        // SAFETY: gives up the index's reference.
        unsafe { release(&tenant, item, size) }
        assert_eq!(
            (tenant.gauge(Gauge::InFlight), tenant.gauge(Gauge::Items)),
            (item_footprint(size) as u64, 0),
            "charged while pinned, and no item any more"
        );
        tenant.publish(&mut cache);
        assert_eq!(tenant.used(), item_footprint(size) as u64);
        assert_eq!((pin.len(), pin[0], pin[10], pin[size - 11]), (size - 10, 7, 0, 0));
        drop(pin);
        assert_eq!((tenant.gauge(Gauge::InFlight), tenant.used()), (0, 0));
    }

    #[test]
    fn a_block_that_is_only_sent_goes_back_with_its_pin() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let mut block = LargeBlock::new(&tenant, &mut cache, 100_000).unwrap();
        block.window(0..100_000).fill(7);
        let pin = block.into_pin(10);
        assert_eq!((tenant.gauge(Gauge::Items), pin.len(), pin[0]), (0, 99_990, 7));
        assert_eq!(tenant.gauge(Gauge::InFlight), item_footprint(100_000) as u64);
        drop(pin);
        assert_eq!(tenant.gauge(Gauge::InFlight), 0);
        assert_eq!(Arc::strong_count(&tenant), 1);
    }

    #[test]
    fn a_part_of_a_pin_keeps_the_whole_item() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        let mut block = LargeBlock::new(&tenant, &mut cache, 100_000).unwrap();
        block.window(0..100_000).fill(7);
        block.window(50_000..50_001).fill(8);
        let pin = block.into_pin(10_000);
        let part = pin.part(40_000..40_002);
        drop(pin);
        assert_eq!(&part[..], [8, 7]);
        let inner = part.part(1..2);
        assert_eq!(
            tenant.gauge(Gauge::InFlight),
            item_footprint(100_000) as u64,
            "once, however many parts there are"
        );
        drop(part);
        assert_eq!((&inner[..], tenant.gauge(Gauge::InFlight)), (&[7][..], item_footprint(100_000) as u64));
        drop(inner);
        assert_eq!(tenant.gauge(Gauge::InFlight), 0);
    }

    #[test]
    fn reserved_bytes_are_counted_before_and_only_once_after_they_are_allocated() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let bytes = item_footprint(1 << 20);
        let reservation = Reservation::new(&tenant, bytes);
        assert_eq!((tenant.used(), tenant.gauge(Gauge::InFlight)), (bytes as u64, bytes as u64));
        let block = LargeBlock::within(reservation, 1 << 20).unwrap();
        assert_eq!((tenant.used(), tenant.gauge(Gauge::InFlight)), (bytes as u64, bytes as u64));
        drop(block);
        assert_eq!((tenant.used(), tenant.gauge(Gauge::InFlight)), (0, 0));
        drop(Reservation::new(&tenant, bytes));
        assert_eq!((tenant.used(), tenant.gauge(Gauge::InFlight)), (0, 0));
    }

    #[test]
    fn a_block_that_is_never_linked_goes_back() {
        let tenant = Tenant::new(1, 1 << 30).unwrap();
        let mut cache = tenant.cache(0);
        drop(LargeBlock::new(&tenant, &mut cache, 1 << 20).unwrap());
        assert_eq!(tenant.gauge(Gauge::InFlight), 0);
    }
}
