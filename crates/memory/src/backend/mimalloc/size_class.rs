//! mimalloc's size classes, computed: four per doubling, steps of 16 bytes below 128, whole pages above the largest
//! class.

use crate::backend::{BLOCK_ALIGNMENT, quartered_class};

/// Largest block that shares its pages with others.
const LARGEST_CLASS: usize = 512 << 10;

/// The size the allocator hands out for a request of `size` bytes.
#[inline]
pub const fn size_class(size: usize) -> usize {
    if size <= BLOCK_ALIGNMENT {
        BLOCK_ALIGNMENT
    } else {
        quartered_class(size, BLOCK_ALIGNMENT, LARGEST_CLASS)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn agrees_with_the_allocator() {
        let sizes = (1..70_000usize).chain((70_000..40_000_000).step_by(9973));
        for size in sizes {
            // SAFETY: it only computes.
            let good = unsafe { libmimalloc_sys::mi_good_size(size.max(super::BLOCK_ALIGNMENT)) };
            assert_eq!(super::size_class(size), good, "for {size} bytes");
        }
    }
}
