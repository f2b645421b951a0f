//! What the index hashes, and how: one hash of the key as it is stored, seeded per bucket.

use rapidhash::v3::RapidSecrets;

use crate::Key;

/// Returns the bucket's hash of a stored key (with its collection id); must agree with [`hash`].
#[inline]
pub(crate) fn hash_stored(stored: &[u8], secrets: &RapidSecrets) -> u64 {
    match stored.split_first() {
        Some((0, key)) => hash_bytes(key, secrets),
        _ => hash_bytes(stored, secrets),
    }
}

/// Returns the bucket's hash of a key.
#[inline]
pub(crate) fn hash(key: Key<'_>, secrets: &RapidSecrets) -> u64 {
    if key.collection == 0 {
        return hash_bytes(key.bytes, secrets);
    }
    let (prefix, len) = super::item::collection_prefix(key.collection);
    let mut stored = arrayvec::ArrayVec::<u8, 256>::new();
    let _ = stored.try_extend_from_slice(&prefix[..len]);
    let _ = stored.try_extend_from_slice(key.bytes);
    hash_bytes(&stored, secrets)
}

#[inline]
fn hash_bytes(bytes: &[u8], secrets: &RapidSecrets) -> u64 {
    rapidhash::v3::rapidhash_v3_nano_inline::<true, false>(bytes, secrets)
}
