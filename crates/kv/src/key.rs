//! A document's key and where it lives.

/// Longest key of the default collection, in bytes.
pub const KEY_MAX: usize = 250;
/// Longest key of a named collection, in bytes.
pub const NAMED_KEY_MAX: usize = 246;

/// A key as the engine sees it: a collection and the bytes within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    /// Collection id; 0 is the default collection, the only one the memcached protocols know.
    pub collection: u32,
    /// The key's bytes, without any collection prefix; 1 to [`KEY_MAX`].
    pub bytes: &'a [u8],
}

impl<'a> Key<'a> {
    /// A key of the default collection.
    #[inline]
    pub const fn plain(bytes: &'a [u8]) -> Self {
        Self { collection: 0, bytes }
    }
}

/// A vBucket's number, 0 to `vbuckets - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VbId(pub u16);

/// Where a key belongs: its vBucket and the seeded hash the index uses. Computed by [`crate::Bucket::locate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The vBucket by CRC32, as every Couchbase client computes it.
    pub vb: VbId,
    /// The bucket's seeded 64-bit hash of collection and key.
    pub hash: u64,
}
