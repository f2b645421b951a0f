//! A growable array in a tenant's arena.

use std::ptr::NonNull;

use crate::tenant::{Gauge, Tenant, TenantCache};

/// A growable array of values that need no drop. Its memory belongs to the tenant and is counted as index. The struct
/// is 16 bytes, allocates nothing while empty, and is empty if all zero.
///
/// It has no destructor: call [`TenantVec::clear`], or drop the tenant's arena if it is freed as a whole.
#[repr(C)]
pub struct TenantVec<T> {
    items: Option<NonNull<T>>,
    len: u32,
    capacity: u32,
}

// SAFETY: the array owns its values like a Vec.
unsafe impl<T: Send> Send for TenantVec<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Sync> Sync for TenantVec<T> {}

impl<T> Default for TenantVec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> TenantVec<T> {
    const PLAIN: () = assert!(!std::mem::needs_drop::<T>(), "values are moved as bytes and never dropped");

    /// Creates an empty array.
    pub const fn new() -> Self {
        () = Self::PLAIN;
        Self { items: None, len: 0, capacity: 0 }
    }

    #[inline]
    fn start(&self) -> NonNull<T> {
        self.items.unwrap_or(NonNull::dangling())
    }

    /// The values.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` values are initialised; dangling and zero-length when nothing is allocated.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len as usize) }
    }

    /// The values, mutable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and access is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len as usize) }
    }

    /// Number of values it can hold without growing.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Size of its block in bytes, as the accounts count it.
    pub fn allocated_bytes(&self) -> u64 {
        let bytes = self.capacity as usize * size_of::<T>();
        if bytes == 0 { 0 } else { crate::footprint(bytes) as u64 }
    }

    /// Appends a value. Returns false if out of memory.
    #[must_use]
    pub fn push(&mut self, tenant: &Tenant, cache: &mut TenantCache, value: T) -> bool {
        if !self.reserve(tenant, cache) {
            return false;
        }
        // SAFETY: there is room for one more.
        unsafe { self.start().add(self.len as usize).write(value) };
        self.len += 1;
        true
    }

    /// Makes room for one more value. Returns false if out of memory.
    #[must_use]
    pub fn reserve(&mut self, tenant: &Tenant, cache: &mut TenantCache) -> bool {
        self.len < self.capacity || self.resize(tenant, cache, grown(self.capacity as usize, size_of::<T>()))
    }

    /// Changes the capacity to `capacity` values, at least the current length. Returns false if out of memory.
    #[must_use]
    pub fn resize(&mut self, tenant: &Tenant, cache: &mut TenantCache, capacity: usize) -> bool {
        let capacity = capacity.max(self.len as usize);
        let Ok(new) = u32::try_from(capacity) else { return false };
        if new == self.capacity {
            return true;
        }
        let mut resized = Self { items: None, len: self.len, capacity: new };
        if new > 0 {
            let Some(block) = tenant.allocate(cache, capacity * size_of::<T>(), Gauge::Index) else {
                return false;
            };
            resized.items = Some(block.cast());
            // SAFETY: two allocations, both with room for `len` values; blocks are aligned to 16.
            unsafe { resized.start().copy_from_nonoverlapping(self.start(), self.len as usize) };
        }
        std::mem::replace(self, resized).release(tenant, cache);
        true
    }

    /// Keeps the first `len` values.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Removes all values and frees the memory.
    pub fn clear(&mut self, tenant: &Tenant, cache: &mut TenantCache) {
        std::mem::take(self).release(tenant, cache);
    }

    /// Removes the value at `index` and shifts those after it down.
    pub fn remove(&mut self, index: usize) {
        let behind = self.as_slice().len().saturating_sub(index + 1);
        assert!(index < self.len as usize, "index {index} out of {} values", self.len);
        // SAFETY: `index` is in range; the values after it move down by one, over the removed one.
        unsafe {
            let hole = self.start().add(index);
            hole.copy_from(hole.add(1), behind);
        }
        self.len -= 1;
    }

    fn release(self, tenant: &Tenant, cache: &mut TenantCache) {
        if let Some(items) = self.items {
            // SAFETY: allocated in `resize` with this size and gauge; the array is gone.
            unsafe {
                tenant.free(cache, items.cast(), self.capacity as usize * size_of::<T>(), Gauge::Index);
            }
        }
    }
}

/// The next capacity: the first one fills 64 bytes, later ones grow by a quarter and fill their size class.
fn grown(capacity: usize, value_size: usize) -> usize {
    let bytes = (capacity * value_size * 5 / 4).max(capacity * value_size + value_size).max(64);
    crate::size_class(bytes) / value_size
}
