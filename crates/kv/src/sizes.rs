//! Size classes of items, for the statistics that memcached's tools read. Nothing is allocated by them.
//!
//! Class 1 is up to 64 bytes; the next are up to 96, 128, 192, 256 and so on, two for each doubling.

/// Largest item of class 1.
const FIRST: usize = 64;
/// As many as memcached can have, so that ids are valid there too.
pub const CLASSES: usize = 64;

/// Returns the class of an item of this many bytes, from 1.
pub const fn class_of(bytes: usize) -> u32 {
    if bytes <= FIRST {
        return 1;
    }
    let (log, first) = ((bytes - 1).ilog2(), FIRST.ilog2());
    let half = ((bytes - 1) >> (log - 1) & 1) as u32;
    let class = 2 + 2 * (log - first) + half;
    if class < CLASSES as u32 { class } else { CLASSES as u32 - 1 }
}

/// Most bytes of an item of a class, from 1.
pub const fn limit_of(class: u32) -> usize {
    if class <= 1 {
        return FIRST;
    }
    let (doublings, half) = ((class - 2) / 2, (class - 2) % 2);
    (FIRST << doublings) + (((half as usize + 1) * FIRST) << doublings) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_tile_all_sizes() {
        for class in 1..40 {
            let limit = limit_of(class);
            assert_eq!((class_of(limit), class_of(limit + 1)), (class, class + 1));
        }
        assert_eq!([1, 2, 3, 4, 5].map(limit_of), [64, 96, 128, 192, 256]);
        assert_eq!((class_of(0), class_of(usize::MAX)), (1, 63));
    }
}
