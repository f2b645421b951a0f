//! A log of KV items: segments with checksums, written in batches, each made durable by one sync.
//!
//! ```text
//! Shard   batch() -> Batch: push, push, ... commit     writes; one thread at a time
//!         compact_step()                               copies what is live, gives the rest back
//! Reader  read(vBucket, seqno)                         any thread, while the shard is written to
//!         copy(directory)                              a backup of one moment
//! Opened  segments to replay, newest first             after a start
//! verify, dump                                         a directory that nobody writes to
//! ```
//!
//! * A directory of segments is a shard: some of a bucket's vBuckets. It has no file before its first commit.
//! * A batch counts entirely or not at all. Within it, each vBucket's records stand together in runs with their own
//!   checksummed headers, so that damage spoils one vBucket, and a record is found by vBucket and seqno alone.
//! * Replaying applies by seqno, never by position: compaction moves old records behind newer ones.
//! * The log knows no keys' newest versions. Whoever drives compaction says what is live: see [`Verdict`].
//!
//! The format, byte by byte, is in `docs/journal-format.md` and above the constants of each file here.

mod batch;
mod buffer;
mod commit;
mod compaction;
mod copy;
mod damage;
mod dump;
mod footer;
mod format;
mod header;
mod inventory;
mod manifest;
mod reader;
mod record;
mod recovery;
mod replay;
mod run;
mod scan;
mod segment;
mod shard;
mod table;
mod verify;

pub use batch::{Batch, Committed};
pub use buffer::Buffer;
pub use compaction::{Aim, Step, Verdict};
pub use damage::{Damage, Part, Spoils};
pub use dump::{Dumped, dump};
pub use reader::{ReadError, Reader};
pub use record::{Kind, Record};
pub use recovery::Opened;
pub use replay::Replayed;
pub use segment::Segment;
pub use shard::{Figures, Shard};
pub use verify::{Verified, verify, verify_with_progress};

use std::io;
use std::path::{Path, PathBuf};

/// Whose shard it is; a directory with another one's segments is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The bucket's UUID.
    pub bucket: [u8; 16],
    /// Which of the bucket's shards.
    pub shard: u16,
    /// How many vBuckets the bucket has.
    pub vbuckets: u16,
}

/// What may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A segment that is longer gets no further batch.
    pub segment_bytes: u64,
    /// A commit syncs. If not, what was committed survives the process but not the machine; segments are still synced
    /// before another one relies on them.
    pub sync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, sync: true }
    }
}

/// Why nothing was made durable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The disk is full; all is as after the last commit. To be tried again later.
    #[error("no space: {0}")]
    NoSpace(io::Error),
    /// The segment failed and is never written to again; the next batch begins a new one.
    #[error("{0}")]
    Poisoned(io::Error),
}

impl WriteError {
    /// Of an operation that left no segment half written.
    pub fn of(error: io::Error) -> Self {
        if shard::is_no_space(&error) { Self::NoSpace(error) } else { Self::Poisoned(error) }
    }

    fn too_long() -> Self {
        Self::Poisoned(io::Error::new(io::ErrorKind::InvalidInput, "a record of over 4 GiB"))
    }
}

/// Why a shard was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file could not be read, cut or synced.
    #[error("{path}: {error}")]
    Io {
        /// The file, or the directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A segment of another bucket or shard.
    #[error("{path}: the segment belongs to another bucket or shard")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A segment of a version that is not known here.
    #[error("{path}: journal format {version} is not known to this version")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
}

impl OpenError {
    fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}
