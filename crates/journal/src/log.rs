//! A log of KV items: segments with checksums, written in batches, each made durable by one sync.
//!
//! ```text
//! Shard   batch() -> Batch: push, push, ... commit     writes; one thread at a time
//!         compact_step()                               copies what is live, frees the rest
//! Reader  read(vBucket, seqno)                         any thread, while the shard is written to
//!         read_in_order(wanted)                        a piece at a time
//!         copy(directory)                              a consistent backup
//! Opened  segments to replay, newest first             after a start
//! verify, dump                                         a directory that is not being written to
//! ```
//!
//! * A directory of segments is a shard: some of a bucket's vBuckets. It has no file before its first commit.
//! * A batch counts entirely or not at all. Within it, each vBucket's records form runs with their own checksummed
//!   headers, so that damage is confined to one vBucket, and a record is found by vBucket and seqno alone.
//! * Replay applies records by seqno, never by position: compaction moves old records behind newer ones.
//! * The log does not know which version of a key is the newest. The caller of compaction says what is live: see
//!   [`Verdict`].
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
mod ordered;
mod reader;
mod record;
mod recovery;
mod replay;
mod run;
mod scan;
mod segment;
mod shard;
mod synced;
mod table;
mod verify;

pub use batch::{Batch, Committed};
pub use buffer::Buffer;
pub use compaction::{Aim, Step, Verdict};
pub use damage::{Damage, Part, Spoils};
pub use dump::{Dumped, dump};
pub use ordered::{Place, SHOWN_MOST, Wanted};
pub use reader::{Found, ReadError, Reader, WHOLE_RUN_BYTES};
pub use record::{Kind, Record};
pub use recovery::Opened;
pub use replay::Replayed;
pub use segment::Segment;
pub use shard::{Figures, Shard};
pub use verify::{Verified, verify, verify_with_progress};

use std::io;
use std::path::{Path, PathBuf};

/// Returns true if a shard has a file of this name, when nothing is being written.
pub fn is_file_name(name: &str) -> bool {
    [manifest::NAME, synced::NAME].contains(&name) || segment::number_of(name.as_ref()).is_some()
}

/// Identifies a shard. A directory with another shard's segments is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The bucket's UUID.
    pub bucket: [u8; 16],
    /// Number of the shard within the bucket.
    pub shard: u16,
    /// Number of vBuckets in the bucket.
    pub vbuckets: u16,
}

/// Options of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// A longer segment gets no further batch.
    pub segment_bytes: u64,
    /// Whether a commit syncs. If not, committed data survives the process but not the machine. Segments are still
    /// synced before another one relies on them.
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
    /// The disk is full. Everything is as after the last commit; try again later.
    #[error("no space: {0}")]
    NoSpace(io::Error),
    /// The segment failed and is never written to again; the next batch begins a new one.
    #[error("{0}")]
    Poisoned(io::Error),
}

impl WriteError {
    /// The error of an operation that left no segment half written.
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
        /// The system's error.
        error: io::Error,
    },
    /// A segment of another bucket or shard.
    #[error("{path}: the segment belongs to another bucket or shard")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A segment of an unknown version.
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
