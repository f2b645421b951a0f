//! jemalloc's size classes, computed: four per doubling, steps of 16 bytes below 128, whole pages above 32 KiB.

const QUANTUM: usize = 16;
const PAGES_FROM: usize = 32 << 10;

/// The size the allocator hands out for a request of `size` bytes.
#[inline]
pub const fn size_class(size: usize) -> usize {
    if size <= 8 { 8 } else { crate::backend::quartered_class(size, QUANTUM, PAGES_FROM) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn agrees_with_the_allocator() {
        let sizes = (1..70_000usize).chain((70_000..40_000_000).step_by(9973));
        for size in sizes {
            // SAFETY: it only computes; the size is not zero.
            let usable = unsafe { tikv_jemalloc_sys::nallocx(size, 0) };
            assert_eq!(super::size_class(size), usable, "for {size} bytes");
        }
    }
}
