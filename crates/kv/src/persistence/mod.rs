//! The persistent side of a bucket: its journal, and who reads and writes it.
//!
//! ```text
//!   directory/bucket.json        who it is, fixed when it was made (meta)
//!   directory/shard-N/           the journal of the vBuckets whose number is N modulo the shards
//!
//!   workers ──change──> vBucket: order of unflushed items ──first one──> DirtySet ──bell──> Flusher
//!   Flusher   flush: walk, encode, commit, complete      (flush)      load_next: replay segments after a start (load)
//!   Fetcher   read by vBucket and seqno, put back        (fetch)      sweeper ejects values (crate::eviction)
//! ```
//! A shard has no file before its first write. Its journal is locked by the flusher while it flushes; nobody else waits
//! for that lock but a stop and a deletion. A vBucket is *closed* until its own part of the journal is in, and for good
//! if that is damaged.

mod compaction;
mod fetch;
mod flush;
mod flusher;
mod load;
mod meta;
mod state;
pub mod stats;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use journal::log::{Buffer, Reader, Shard as Journal, WriteError};
use journal::{AnyDisk, Disk, Metered, SyncMeter};
use parking_lot::Mutex;

pub use fetch::{FetchDone, Fetcher};
pub use flusher::Flusher;
pub use load::{OpenBucketError, Trouble, WarmUp, load_next, waits_for_load};

pub use stats::{FIGURES, PersistenceFigure};

use crate::index::VALUE_MAX;
use crate::settings::PersistenceSettings;
use crate::{Bucket, Key, KvError, ThreadContext, VbId};
pub(crate) use fetch::FetchQueue;
use load::Loading;
pub(crate) use load::{Opened, open};
use meta::Meta;
use wire::binary::datatype::SNAPPY;
use wire::snappy;

/// Flusher threads of a node at most: each shard belongs to one of them.
pub const FLUSHERS: usize = 2;
/// Threads that fetch values for clients.
pub const FETCHERS: usize = 2;

/// A stop tries so often to write what is left.
const CLOSE_TRIES: usize = 2;

/// Which flusher a shard of the bucket in this slot belongs to.
pub(crate) fn flusher_of(slot: usize, shard: usize) -> usize {
    (slot + shard) % FLUSHERS
}

/// Whether a vBucket is served.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Gate {
    Open,
    WarmingUp,
    Damaged,
}

/// What the journals are on.
type JournalDisk = Metered<AnyDisk>;

/// The journal of a bucket.
pub struct Persistence {
    disk: AnyDisk,
    directory: PathBuf,
    settings: PersistenceSettings,
    meta: Mutex<Meta>,
    shards: Box<[Shard]>,
    gates: Box<[AtomicU8]>,
    loading: Mutex<Loading>,
    warm_up: load::Progress,
    warm_told: AtomicBool,
    counters: Counters,
    syncs: SyncMeter,
}

/// A document as it was written.
pub(crate) struct Stored {
    pub(crate) flags: u32,
    pub(crate) value: Vec<u8>,
}

/// One of a bucket's journals.
struct Shard {
    /// None once the bucket is closed or deleted.
    journal: Mutex<Option<Journal<JournalDisk>>>,
    reader: Reader<JournalDisk>,
    /// Highest CAS of the journal when it was opened.
    max_cas: u64,
    /// Not flushed again before this, ms of the monotonic clock.
    rest_until_ms: AtomicU64,
    /// Somebody waits for the next flush.
    hurry: AtomicBool,
    /// The last flush did not come to the end.
    is_long: AtomicBool,
    /// The vBucket at which the next flush starts: where the last one had to stop.
    resume: AtomicU16,
    /// Failures in a row.
    failures: AtomicU64,
    /// Something was written since compaction found nothing to do.
    may_compact: AtomicBool,
    /// From when on nothing has been written for a while, ms of the monotonic clock; 0 once all is done that is done
    /// then.
    at_rest_ms: AtomicU64,
    /// Compaction has looked at the segments in vain: it does so again when so many bytes are superfluous.
    compact_from_bytes: AtomicU64,
    /// So much is compaction to read and write for what was flushed.
    debt_bytes: AtomicU64,
    /// So much it has done since the last flush.
    worked_bytes: AtomicU64,
}

impl Shard {
    /// Whether the next flush is due at once.
    fn hurries(&self) -> bool {
        (self.hurry.load(Relaxed) || self.is_long.load(Relaxed)) && self.failures.load(Relaxed) == 0
    }
}

#[derive(Default)]
struct Counters {
    items: AtomicU64,
    commits: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    fetched: AtomicU64,
    fetch_failures: AtomicU64,
    compacted_segments: AtomicU64,
    compacted_bytes: AtomicU64,
}

/// What a bucket's journal has done and holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PersistenceFigures {
    /// Items written since the start.
    pub persisted_items: u64,
    /// Commits since the start.
    pub commits: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Syncs of its files and directories since the start.
    pub syncs: u64,
    /// Their time together.
    pub sync_us: u64,
    /// Flushes that failed.
    pub failures: u64,
    /// Items that wait to be written.
    pub unflushed_items: u64,
    /// Values on disk only.
    pub ejected_items: u64,
    /// Their bytes.
    pub ejected_bytes: u64,
    /// Values fetched since the start.
    pub fetched: u64,
    /// Fetches that failed.
    pub fetch_failures: u64,
    /// Segments that compaction has removed since the start.
    pub compacted_segments: u64,
    /// Their bytes.
    pub compacted_bytes: u64,
    /// Segments of the journal.
    pub segments: u64,
    /// Their bytes.
    pub journal_bytes: u64,
    /// Whether the disk is full.
    pub disk_full: bool,
}

impl Persistence {
    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its settings.
    pub fn settings(&self) -> &PersistenceSettings {
        &self.settings
    }

    /// Copies the bucket into a new directory of the same disk, durably and while it is served: each shard as it is at
    /// one commit. After an error what is there is no bucket.
    pub fn copy(&self, directory: &Path, buffer: &mut Buffer) -> std::io::Result<()> {
        if self.disk.exists(directory)? {
            return Err(std::io::ErrorKind::AlreadyExists.into());
        }
        self.disk.create_directory(directory)?;
        let mut written_shards = Vec::new();
        for (at, shard) in self.shards.iter().enumerate() {
            if shard.reader.copy(&meta::shard_directory(directory, at), buffer)? {
                written_shards.push(at as u16);
            }
        }
        // Last of all: without this file the rest is nothing. Nobody stopped the bucket for the copy.
        let meta = Meta { clean_seed: None, written_shards, ..self.meta.lock().clone() };
        meta.write(&self.disk, directory)
    }

    /// How many journals it has.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Makes durable, before a shard's first commit, that its manifest must be there from now on.
    fn note_written(&self, at: usize, journal: &mut Journal<JournalDisk>) -> Result<(), WriteError> {
        let mut meta = self.meta.lock();
        let Err(place) = meta.written_shards.binary_search(&(at as u16)) else { return Ok(()) };
        journal.begin()?;
        let mut written = meta.clone();
        written.written_shards.insert(place, at as u16);
        written.write(&self.disk, &self.directory).map_err(WriteError::of)?;
        *meta = written;
        Ok(())
    }

    fn shard_of(&self, vb: VbId) -> Option<&Shard> {
        self.shards.get(usize::from(vb.0) % self.shards.len())
    }

    /// Why a vBucket is not served, if it is not.
    pub(crate) fn closed(&self, vb: VbId) -> Option<KvError> {
        match self.gates.get(usize::from(vb.0))?.load(Relaxed) {
            gate if gate == Gate::WarmingUp as u8 => Some(KvError::WarmingUp),
            gate if gate == Gate::Damaged as u8 => Some(KvError::Damaged),
            _ => None,
        }
    }

    /// The document of this key as it was written with this seqno, if it is on disk still; its value inflated.
    pub(crate) fn stored(&self, vb: VbId, seqno: u64, key: Key<'_>) -> Result<Option<Stored>, KvError> {
        let shard = self.shard_of(vb).ok_or(KvError::BucketGone)?;
        let mut buffer = Vec::new();
        let record = shard.reader.read(vb.0, seqno, &mut buffer).map_err(|_| KvError::ReadFailed)?;
        // In the journal a key of the default collection begins with its id.
        let is_it = |stored: &[u8]| stored.split_first() == Some((&0, key.bytes));
        let Some(record) = record.filter(|record| is_it(record.key)) else { return Ok(None) };
        load::check_value(record.datatype, record.value)?;
        let value = match record.datatype & SNAPPY {
            0 => record.value.to_vec(),
            _ => {
                let length = snappy::check(record.value, VALUE_MAX).map_err(|_| KvError::Damaged)?;
                let mut value = vec![0; length];
                snappy::inflate(record.value, &mut value);
                value
            }
        };
        Ok(Some(Stored { flags: record.flags, value }))
    }

    /// Whether any vBucket waits for its part of the journal to be read.
    pub(crate) fn is_warming_up(&self) -> bool {
        self.gates.iter().any(|gate| gate.load(Relaxed) == Gate::WarmingUp as u8)
    }

    /// vBuckets that are not served, for good, because their part of the journal is damaged.
    pub fn damaged(&self) -> impl Iterator<Item = VbId> {
        let is_damaged = |gate: &AtomicU8| gate.load(Relaxed) == Gate::Damaged as u8;
        (0..).zip(&self.gates).filter(move |(_, gate)| is_damaged(gate)).map(|(vb, _)| VbId(vb))
    }

    /// The next flush of a vBucket is not to wait for its time. Returns whether it would have.
    pub(crate) fn hurry(&self, vb: VbId) -> bool {
        if let Some(shard) = self.shard_of(vb) {
            // ORDERING: before the bell is looked at.
            shard.hurry.swap(true, SeqCst);
        }
        self.settings.flush_interval_ms > 0
    }

    /// Whether nobody was told yet that the journal is read to its end.
    pub fn tell_warm(&self) -> bool {
        !self.warm_told.swap(true, Relaxed)
    }

    /// How far the journal has been read after the start.
    pub fn warm_up(&self) -> WarmUp {
        self.warm_up.figures()
    }
}

impl Bucket {
    /// Whether writes are refused for want of space on the disk.
    pub fn is_disk_full(&self) -> bool {
        self.dirty().is_some_and(|dirty| dirty.is_full())
    }

    /// Figures of the journal; walks all vBuckets. `None` for an ephemeral bucket.
    pub fn persistence_figures(&self, cx: &mut ThreadContext) -> Option<PersistenceFigures> {
        let persistence = self.persistence()?;
        let counters = &persistence.counters;
        let (ejected_items, ejected_bytes) = self.dirty().map_or((0, 0), |dirty| dirty.ejected());
        let mut figures = PersistenceFigures {
            persisted_items: counters.items.load(Relaxed),
            commits: counters.commits.load(Relaxed),
            written_bytes: counters.bytes.load(Relaxed),
            syncs: persistence.syncs.syncs(),
            sync_us: persistence.syncs.microseconds(),
            failures: counters.failures.load(Relaxed),
            unflushed_items: 0,
            ejected_items,
            ejected_bytes,
            fetched: counters.fetched.load(Relaxed),
            fetch_failures: counters.fetch_failures.load(Relaxed),
            compacted_segments: counters.compacted_segments.load(Relaxed),
            compacted_bytes: counters.compacted_bytes.load(Relaxed),
            disk_full: self.is_disk_full(),
            ..PersistenceFigures::default()
        };
        for vb in 0..self.vbuckets() {
            figures.unflushed_items += u64::from(self.lock(cx, VbId(vb)).unflushed());
        }
        for shard in &persistence.shards {
            if let Some(journal) = shard.journal.try_lock().as_deref().and_then(Option::as_ref) {
                let of_shard = journal.figures();
                figures.segments += of_shard.segments as u64;
                figures.journal_bytes += of_shard.bytes;
            }
        }
        Some(figures)
    }

    /// Flushes everything and ends the journal with the mark of a clean end. The bucket must not be changed any more.
    pub fn close_journal(&self, cx: &mut ThreadContext, flusher: &mut Flusher) -> Result<(), WriteError> {
        let Some(persistence) = self.persistence() else { return Ok(()) };
        // vBuckets that were not read were not changed either; the next start reads them.
        let is_whole = !persistence.warm_up.is_running();
        let mut failed = None;
        for (at, shard) in persistence.shards.iter().enumerate() {
            // After a failure there is another segment to be tried.
            let flushed = (0..CLOSE_TRIES).find_map(|_| flush_all(self, cx, at, flusher).ok());
            if flushed.is_none() {
                failed = failed.or(flush_all(self, cx, at, flusher).err());
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
        // The histories go on where they end now.
        let meta = Meta { clean_seed: Some(self.history_seed()), ..persistence.meta.lock().clone() };
        meta.write(&persistence.disk, &persistence.directory).map_err(WriteError::Poisoned)
    }

    /// From now on there is no bucket in its directory; durably, or it is as it was.
    pub(crate) fn mark_deleted(&self) -> std::io::Result<()> {
        let Some(persistence) = self.persistence() else { return Ok(()) };
        meta::mark_deleted(&persistence.disk, &persistence.directory)
    }

    /// Removes the files of a bucket that is marked as deleted and gone.
    pub(crate) fn remove_journal(&self) -> std::io::Result<()> {
        let Some(persistence) = self.persistence() else { return Ok(()) };
        for shard in &persistence.shards {
            *shard.journal.lock() = None;
        }
        remove_deleted(&persistence.disk, &persistence.directory)
    }
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

/// Removes what is left of a bucket that was deleted. Does nothing where none was.
pub fn remove_deleted(disk: &AnyDisk, directory: &Path) -> std::io::Result<()> {
    if !meta::is_deleted(disk, directory)? {
        return Ok(());
    }
    for shard in disk.list(directory)? {
        if shard.file_name().is_some_and(|name| name.to_string_lossy().starts_with("shard-")) {
            for file in disk.list(&shard)? {
                disk.remove(&file)?;
            }
            disk.remove_directory(&shard)?;
        }
    }
    meta::forget_deleted(disk, directory)
}
