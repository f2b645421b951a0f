//! Collection ids in front of keys: unsigned LEB128, at most five bytes for 32 bits, and canonical (no redundant zero
//! byte).

/// Splits a wire key into its collection id and the key within the collection. `None` if the id is cut short, not
/// canonical or larger than 32 bits.
#[inline]
pub fn split(wire_key: &[u8]) -> Option<(u32, &[u8])> {
    match wire_key.split_first() {
        Some((&first, key)) if first < 0x80 => Some((u32::from(first), key)),
        _ => split_long(wire_key),
    }
}

fn split_long(wire_key: &[u8]) -> Option<(u32, &[u8])> {
    let mut id = 0u64;
    for (i, &byte) in wire_key.iter().enumerate().take(5) {
        id |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let canonical = i == 0 || byte != 0;
            return match (u32::try_from(id), wire_key.get(i + 1..)) {
                (Ok(id), Some(key)) if canonical => Some((id, key)),
                _ => None,
            };
        }
    }
    None
}

/// Appends the canonical encoding of `id` to `out`.
pub fn encode(mut id: u32, out: &mut Vec<u8>) {
    while id >= 0x80 {
        out.push(id.to_le_bytes()[0] | 0x80);
        id >>= 7;
    }
    out.push(id.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_collection_is_one_zero_byte() {
        assert_eq!(split(b"\0key"), Some((0, &b"key"[..])));
    }

    #[test]
    fn cut_overlong_and_too_large_ids_are_refused() {
        for bad in [&b""[..], b"\x80", b"\x80\x00k", b"\xff\xff\xff\xff\x10k", b"\x80\x80\x80\x80\x80\x01k"] {
            assert_eq!(split(bad), None, "{bad:?}");
        }
        assert_eq!(split(b"\xff\xff\xff\xff\x0fk"), Some((u32::MAX, &b"k"[..])));
    }

    proptest! {
        #[test]
        fn ids_survive_encoding(id: u32, key in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut wire = Vec::new();
            encode(id, &mut wire);
            prop_assert!(wire.len() <= 5);
            wire.extend(&key);
            prop_assert_eq!(split(&wire), Some((id, &key[..])));
        }

        #[test]
        fn what_is_accepted_is_canonical(wire in proptest::collection::vec(any::<u8>(), 0..12)) {
            if let Some((id, key)) = split(&wire) {
                let mut again = Vec::new();
                encode(id, &mut again);
                again.extend(key);
                prop_assert_eq!(again, wire);
            }
        }
    }
}
