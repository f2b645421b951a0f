//! What an operation on a key can fail with.

use thiserror::Error;

/// Why the engine refused an operation. Each protocol maps it to its own answer in one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KvError {
    /// There is no such document.
    #[error("not found")]
    NotFound,
    /// The document exists already, or its CAS is another.
    #[error("exists or CAS mismatch")]
    Exists,
    /// Append or prepend to a missing document.
    #[error("not stored")]
    NotStored,
    /// The document is locked and the CAS is not the lock's.
    #[error("locked")]
    Locked,
    /// Unlock of a document that is not locked.
    #[error("not locked")]
    NotLocked,
    /// Key and value are larger than the bucket or the item format allows.
    #[error("too big")]
    TooBig,
    /// Counter operation on a value that is not a decimal number.
    #[error("not a number")]
    DeltaBadValue,
    /// The bucket's memory budget does not allow it now.
    #[error("no memory within the bucket's budget")]
    NoMemory,
    /// The bucket is being deleted.
    #[error("bucket is gone")]
    BucketGone,
}
