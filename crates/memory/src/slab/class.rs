//! Sizes of slots, and of the slabs they are cut from.
//!
//! ```text
//!   slots   multiples of 4 up to 256 bytes; above, 32 classes per doubling up to 32 KiB
//!   slabs   a class of few bytes: 16 KiB, or what one slot needs; later 64 KiB, or the next larger size that leaves at most
//!           a 512th of itself over (a 64th, for slots above 2 KiB), or the size that leaves the least (at most a 20th, above 20 KiB)
//! ```

use crate::backend;

/// Alignment of slots, and the step between the smallest ones. Locations count in these units.
pub(crate) const GRAIN: usize = 4;
const PER_DOUBLING_LOG2: u32 = 5;
/// Every multiple of the grain up to here is a class.
const EVEN_MAX: usize = 256;
/// The largest slot; larger items are blocks.
pub(crate) const SLOT_MAX: usize = 32 << 10;

const EVEN_CLASSES: usize = EVEN_MAX / GRAIN;
const DOUBLINGS: usize = (SLOT_MAX / EVEN_MAX).trailing_zeros() as usize;
/// Number of classes.
pub(super) const CLASSES: usize = EVEN_CLASSES + (DOUBLINGS << PER_DOUBLING_LOG2);
const _: () = assert!(CLASSES == 288);
const _: () = assert!(GRAIN >= align_of::<u32>(), "items hold words of 32 bits");

/// Slabs are whole pages, page-aligned.
pub(crate) const PAGE: usize = 4096;
const SLAB_FIRST: usize = 16 << 10;
pub(super) const SLAB_USUAL: usize = 64 << 10;
const SLAB_MAX: usize = 512 << 10;
/// A new slab takes at most the bytes of its class divided by this.
const GROWTH: usize = 8;
/// Fraction of a slab that may be left over after its last slot. A slab should hold only few of the larger slots: the
/// more there are, the less often is it empty enough to be worth emptying.
const TAIL_FRACTION: usize = 512;
const TAIL_FRACTION_LARGE: usize = 64;
const LARGE: usize = 2 << 10;
/// The sizes of slabs. The allocator has a class for each, so none of them wastes memory.
const SLABS: [usize; 21] = {
    let mut sizes = [0; 21];
    let (mut at, mut size) = (0, SLAB_FIRST);
    while at < sizes.len() {
        sizes[at] = size;
        size += (1 << (usize::BITS - 1 - size.leading_zeros())) / 4;
        at += 1;
    }
    assert!(sizes[0] == SLAB_FIRST && sizes[8] == SLAB_USUAL && sizes[20] == SLAB_MAX);
    sizes
};

/// The class of a size from 1 to [`SLOT_MAX`].
#[inline]
pub(super) const fn class_of(size: usize) -> usize {
    debug_assert!(size > 0 && size <= SLOT_MAX);
    if size <= EVEN_MAX {
        return (size - 1) / GRAIN;
    }
    let top_bit = usize::BITS - 1 - (size - 1).leading_zeros();
    let doubling = (top_bit - EVEN_MAX.trailing_zeros()) as usize;
    let within = ((size - 1) >> (top_bit - PER_DOUBLING_LOG2)) - (1 << PER_DOUBLING_LOG2);
    EVEN_CLASSES + (doubling << PER_DOUBLING_LOG2) + within
}

/// Bytes of a slot for `size` bytes, from 1 to [`SLOT_MAX`].
#[inline]
pub(crate) const fn slot_bytes(size: usize) -> usize {
    let step = if size <= EVEN_MAX {
        GRAIN
    } else {
        1 << (usize::BITS - 1 - (size - 1).leading_zeros() - PER_DOUBLING_LOG2)
    };
    (size + step - 1) & !(step - 1)
}

/// Bytes of the slots of a class.
pub(super) const fn bytes_of(class: usize) -> usize {
    if class < EVEN_CLASSES {
        return (class + 1) * GRAIN;
    }
    let class = class - EVEN_CLASSES;
    let (doubling, within) = (class >> PER_DOUBLING_LOG2, class & ((1 << PER_DOUBLING_LOG2) - 1));
    let from = EVEN_MAX << doubling;
    from + (within + 1) * (from >> PER_DOUBLING_LOG2)
}

/// Size of the next slab for slots of `slot` bytes, given that the existing slabs have `class_bytes` in all.
pub(super) fn next_slab(slot: usize, class_bytes: usize) -> usize {
    let limit = (class_bytes / GROWTH).clamp(SLAB_FIRST, SLAB_MAX);
    let least = if limit < SLAB_USUAL { SLAB_FIRST } else { SLAB_USUAL };
    let tail_fraction = if slot > LARGE { TAIL_FRACTION_LARGE } else { TAIL_FRACTION };
    let left_over = |size: usize| usable(size) % slot;
    let fitting = || SLABS.into_iter().filter(|size| usable(*size) >= slot);
    let allowed = || fitting().filter(|size| *size <= limit);
    allowed()
        .find(|size| *size >= least && left_over(*size) * tail_fraction <= *size)
        .or_else(|| allowed().min_by_key(|size| (left_over(*size) << 20) / size))
        .or_else(|| fitting().next())
        .unwrap_or(SLAB_MAX)
}

/// Bytes of a slab of this size that slots may use.
pub(crate) const fn usable(slab: usize) -> usize {
    slab - backend::PAGES_HEADER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_sizes_in_order() {
        let mut last = 0;
        for class in 0..CLASSES {
            let bytes = bytes_of(class);
            assert!(bytes > last && bytes.is_multiple_of(GRAIN), "class {class}");
            assert_eq!((class_of(last + 1), class_of(bytes)), (class, class));
            assert_eq!((slot_bytes(last + 1), slot_bytes(bytes)), (bytes, bytes));
            assert!(bytes <= EVEN_MAX || (bytes - last) * 32 < bytes, "{last} to {bytes}");
            last = bytes;
        }
        assert_eq!(last, SLOT_MAX);
    }

    #[test]
    fn little_is_left_over_in_slabs() {
        let mut left_over_in_all = 0.0;
        for class in 0..CLASSES {
            let slot = bytes_of(class);
            let (first, later) = (next_slab(slot, 0), next_slab(slot, 16 << 20));
            assert!(usable(first) >= slot && first <= (slot + backend::PAGES_HEADER).max(SLAB_FIRST) * 5 / 4);
            assert!(later <= SLAB_MAX && (slot > 64 || later == SLAB_USUAL), "{later} for {slot}");
            let left_over = usable(later) % slot;
            left_over_in_all += left_over as f64 / later as f64;
            // A header leaves no room for the last of the slots that would fill a slab.
            let headed = usable(later) != later && left_over * 15 <= later;
            let part = if slot > 20 << 10 {
                20
            } else if slot > 1024 {
                32
            } else {
                256
            };
            let is_small = left_over * part <= later;
            assert!(is_small || headed, "{left_over} of {later} for {slot}");
        }
        assert!(left_over_in_all * 160.0 <= CLASSES as f64, "{left_over_in_all} of {CLASSES} slabs");
    }
}
