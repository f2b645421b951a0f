//! The work on what persistent buckets have on disk ([`crate::Persistence`]): reading and writing it.
//!
//! ```text
//!   directory/bucket.json        its identity, fixed when it was created (meta)
//!   directory/shard-N/           the journal of the vBuckets whose number is N modulo the shards
//!
//!   workers ──change──> vBucket: order of unflushed items ──first one──> DirtySet ──bell──> Flusher
//!   Flusher   flush: walk, encode, commit, complete      (flush)      load_next: replay segments after a start (load)
//!   Fetcher   read by vBucket and seqno, put back        (fetch)      sweeper ejects values (bucket/eviction)
//!   Reader    pieces of journals for streams             (read_on)
//! ```

mod compaction;
mod fetch;
mod flush;
mod flusher;
mod load;
mod read_on;

use journal::log::WriteError;

pub use fetch::{Fetcher, fetch};
pub use flusher::Flusher;
pub use load::{load_next, waits_for_load};
pub use read_on::{PieceReader, read_on};

pub use crate::storage::{
    BucketFile, FETCHERS, FLUSHERS, OpenBucketError, PersistenceFigures, Trouble, WarmUp, has_journals,
    remove_deleted,
};
use crate::{Bucket, ThreadContext};

/// How many times a stop tries to write what is left.
const CLOSE_TRIES: usize = 2;

/// Flushes everything and ends the journal with the mark of a clean end. The bucket must not be changed any more.
pub fn close_journal(
    bucket: &Bucket,
    cx: &mut ThreadContext,
    flusher: &mut Flusher,
) -> Result<(), WriteError> {
    let Some(persistence) = bucket.persistence() else { return Ok(()) };
    // vBuckets that were not read were not changed either; the next start reads them.
    let is_whole = !persistence.warm_up.is_running();
    let mut failed = None;
    for (at, shard) in persistence.shards.iter().enumerate() {
        // After a failure there is another segment to try.
        let flushed = (0..CLOSE_TRIES).find_map(|_| flush_all(bucket, cx, at, flusher).ok());
        if flushed.is_none() {
            failed = failed.or(flush_all(bucket, cx, at, flusher).err());
        }
        if let Some(mut journal) = shard.journal.lock().take()
            && is_whole
            && let Err(error) = journal.close()
        {
            failed = failed.or(Some(error));
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if !is_whole {
        return Ok(());
    }
    persistence.note_clean_end(bucket.history_seed())
}

/// Flushes a shard until it is clean.
fn flush_all(
    bucket: &Bucket,
    cx: &mut ThreadContext,
    at: usize,
    flusher: &mut Flusher,
) -> Result<(), WriteError> {
    while flush::flush_shard(bucket, cx, at, flusher.buffer())? {}
    Ok(())
}
