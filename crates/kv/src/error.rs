//! What an operation on a key can fail with, and why its document may be unavailable.

use thiserror::Error;

/// Why the engine refused an operation. Each protocol maps it to its own answer in one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KvError {
    /// There is no such document.
    #[error("not found")]
    NotFound,
    /// The document exists already, or has another CAS.
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
    /// The CAS that a client names for the new version is further ahead of the clock than clocks differ.
    #[error("the CAS is too far ahead of the clock")]
    CasAhead,
    /// Counter operation on a value that is not a decimal number.
    #[error("not a number")]
    DeltaBadValue,
    /// The bucket's memory budget does not allow it now.
    #[error("no memory within the bucket's budget")]
    NoMemory,
    /// The document's value is on disk only: fetch it, then try again.
    #[error("the value is not in memory")]
    NotResident,
    /// The value could not be read from disk.
    #[error("the value could not be read from disk")]
    ReadFailed,
    /// The vBucket is still being read from disk: try again later.
    #[error("warming up")]
    WarmingUp,
    /// The vBucket's journal is damaged: it is not served.
    #[error("the vBucket's journal is damaged")]
    Damaged,
    /// Another node serves the vBucket, or nobody does yet.
    #[error("the vBucket is not active on this node")]
    NotActive,
    /// The disk is full: nothing new can be kept.
    #[error("no space on the disk")]
    NoSpace,
    /// A SyncWrite of the key waits for its commit.
    #[error("a durable write of the key is in progress")]
    SyncWriteInProgress,
    /// A SyncWrite of the key was prepared before this node was the active, or started: clients may have been told that
    /// it is done, and it is committed as soon as the chains allow it.
    #[error("a durable write of the key is being committed again")]
    ReCommit,
    /// The vBucket's chains have too few nodes for a durable write.
    #[error("too few nodes for a durable write")]
    DurabilityImpossible,
    /// There is no such collection, or no longer.
    #[error("there is no such collection")]
    NoCollection,
    /// The request would hold up the others of its thread: execute it where it may take long
    /// ([`crate::ThreadContext::may_take_long`]). Nothing was changed.
    #[error("the request takes long")]
    TakesLong,
    /// The bucket is being deleted.
    #[error("bucket is gone")]
    BucketGone,
}

/// Why a document is unavailable now, whatever the request. Nothing was changed. Code that serves clients handles it in
/// one place: a value is fetched, everything else is an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// [`KvError::NotResident`]
    NotResident,
    /// [`KvError::WarmingUp`]
    WarmingUp,
    /// [`KvError::Damaged`]
    Damaged,
    /// [`KvError::NoCollection`]
    NoCollection,
    /// [`KvError::ReCommit`]
    ReCommit,
    /// [`KvError::TakesLong`]
    TakesLong,
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        KvError::from(*self).fmt(f)
    }
}

impl From<Unavailable> for KvError {
    fn from(why: Unavailable) -> Self {
        match why {
            Unavailable::NotResident => Self::NotResident,
            Unavailable::WarmingUp => Self::WarmingUp,
            Unavailable::Damaged => Self::Damaged,
            Unavailable::NoCollection => Self::NoCollection,
            Unavailable::ReCommit => Self::ReCommit,
            Unavailable::TakesLong => Self::TakesLong,
        }
    }
}

impl KvError {
    /// Separates unavailability of the document from results that are about the document itself.
    #[inline]
    pub fn set_apart<T>(result: Result<T, Self>) -> Result<Result<T, Self>, Unavailable> {
        match result {
            Err(Self::NotResident) => Err(Unavailable::NotResident),
            Err(Self::WarmingUp) => Err(Unavailable::WarmingUp),
            Err(Self::Damaged) => Err(Unavailable::Damaged),
            Err(Self::NoCollection) => Err(Unavailable::NoCollection),
            Err(Self::ReCommit) => Err(Unavailable::ReCommit),
            Err(Self::TakesLong) => Err(Unavailable::TakesLong),
            result => Ok(result),
        }
    }
}
