//! The order in which the stock server visits the members of an object, or the columns of a table.
//!
//! It keeps them in a chained hash table, and of several errors it reports the first that it finds. To report the same
//! one, visit them in its order: buckets ascending, within a bucket the last inserted first, with each growth reversing
//! the chains. The hash is 32-bit Murmur3 of the name with seed 0.

/// Indices of `names`, which are distinct and in insertion order, in the order in which the stock server visits them.
pub fn walk<'n>(names: impl IntoIterator<Item = &'n str>) -> Vec<usize> {
    walk_hashes(names.into_iter().map(|name| hash(name.as_bytes())))
}

/// As [`walk`], for things with these hashes.
pub fn walk_hashes(things: impl IntoIterator<Item = u32>) -> Vec<usize> {
    let mut hashes: Vec<usize> = Vec::new();
    let mut buckets: Vec<Vec<usize>> = vec![Vec::new()];
    for hash in things {
        let index = hashes.len();
        hashes.push(hash as usize);
        insert(&mut buckets, &hashes, index);
        let count = hashes.len();
        if count / 2 >= buckets.len() {
            grow(&mut buckets, &hashes);
        }
    }
    // The head of a chain is its last element here.
    buckets.into_iter().flat_map(|chain| chain.into_iter().rev()).collect()
}

fn insert(buckets: &mut [Vec<usize>], hashes: &[usize], index: usize) {
    let mask = buckets.len() - 1;
    let hash = hashes.get(index).copied().unwrap_or_default();
    if let Some(chain) = buckets.get_mut(hash & mask) {
        chain.push(index);
    }
}

fn grow(buckets: &mut Vec<Vec<usize>>, hashes: &[usize]) {
    let size = (hashes.len() / 2 + 1).next_power_of_two().max(4);
    let mut grown = vec![Vec::new(); size];
    for index in buckets.iter().flat_map(|chain| chain.iter().rev()) {
        insert(&mut grown, hashes, *index);
    }
    *buckets = grown;
}

fn hash(name: &[u8]) -> u32 {
    let mut hash = 0_u32;
    for word in name.chunks(4) {
        let mut bytes = [0; 4];
        for (to, from) in bytes.iter_mut().zip(word) {
            *to = *from;
        }
        let word = u32::from_le_bytes(bytes).wrapping_mul(0xcc9e_2d51).rotate_left(15);
        hash = (hash ^ word.wrapping_mul(0x1b87_3593)).rotate_left(13);
        hash = hash.wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    hash ^= name.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

#[cfg(test)]
mod tests {
    use super::walk;

    #[test]
    fn the_walk_is_the_stock_servers() {
        // From the stock server's answer to an echo of an object with these members.
        let given = [
            "_1c0010ccf0Y",
            "bZ",
            "f01",
            "_XZe0cYYe9c",
            "bb1c9ZZ_1Xfb",
            "eXaca",
            "Zed19Zff",
            "YZ99bfY",
            "ce",
            "b0b_91bc1d",
            "X01X1c__cX",
            "dZZc_cdef9ea9",
            "XXfZ_e0Y",
            "01e0Ya_d1",
            "ab990dYcZ0Y",
            "d9Zd",
            "Z",
            "Yb_e0ccY9b_",
            "a",
            "_dZbYZ",
            "f",
            "ff11cb",
        ];
        let expected = [
            "_XZe0cYYe9c",
            "a",
            "Z",
            "f",
            "_1c0010ccf0Y",
            "XXfZ_e0Y",
            "f01",
            "bZ",
            "b0b_91bc1d",
            "ff11cb",
            "eXaca",
            "d9Zd",
            "bb1c9ZZ_1Xfb",
            "ce",
            "X01X1c__cX",
            "Yb_e0ccY9b_",
            "ab990dYcZ0Y",
            "dZZc_cdef9ea9",
            "01e0Ya_d1",
            "Zed19Zff",
            "_dZbYZ",
            "YZ99bfY",
        ];
        assert_eq!(walk(given).into_iter().map(|index| given[index]).collect::<Vec<_>>(), expected);
        let given = ["b", "a1bZZYfc", "bfX0X_", "fedfX", "cZ"];
        assert_eq!(walk(given), [4, 1, 2, 0, 3]);
        assert_eq!(walk([]), [0; 0]);
    }
}
