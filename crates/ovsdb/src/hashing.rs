//! Hashes of UUIDs and cells for a database's indexes.

use rapidhash::v3::RapidSecrets;

use crate::uuid::Uuid;

/// The hash functions of a database, seeded so that nobody can choose rows that collide.
#[derive(Clone, Copy)]
pub struct Hashing {
    /// The seed.
    pub seed: u64,
    secrets: RapidSecrets,
}

impl Hashing {
    /// From a random seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, secrets: RapidSecrets::seed(seed) }
    }

    /// Hashes a UUID.
    #[inline]
    pub fn uuid(&self, uuid: &Uuid) -> u64 {
        let whole = u128::from_le_bytes(uuid.0);
        let low = whole as u64 ^ self.seed;
        let high = (whole >> 64) as u64 ^ self.seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(low) * u128::from(high);
        let mixed = (product >> 64) as u64 ^ product as u64;
        mixed ^ mixed >> 29
    }

    /// Hashes bytes.
    #[inline]
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        rapidhash::v3::rapidhash_v3_nano_inline::<true, false>(bytes, &self.secrets)
    }

    /// Hashes several cells.
    #[inline]
    pub fn cells<'a>(&self, cells: impl Iterator<Item = &'a [u8]>) -> u64 {
        cells.fold(0, |hash: u64, cell| {
            hash.rotate_left(21).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.bytes(cell)
        })
    }
}
