//! What a persistent bucket has on disk: the journals of its shards, the gates of its vBuckets, and its `bucket.json`.
//!
//! [`crate::persistence`] does the work on it. A shard has no file before its first write. The flusher holds the lock
//! of a journal while it flushes; only a stop, a deletion and a change of collections wait for that lock besides. A
//! vBucket is *closed* until its own part of the journal is in, and for good if that is damaged.

pub mod figures;
mod meta;
mod opening;
mod state;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use journal::log::{Buffer, Reader, Shard as Journal, WriteError, verify_with_progress};
use journal::{AnyDisk, Disk, Metered, SyncMeter};
use wire::binary::datatype::{JSON, SNAPPY, XATTR};
use wire::couchbase::collection_id;
use wire::{snappy, xattrs};

pub use figures::PersistenceFigures;
pub use meta::BucketFile;
use opening::Loading;
pub use opening::{OpenBucketError, Trouble, WarmUp};
pub(crate) use opening::{Opened, Part, open, spoil};
pub(crate) use state::{decode as decode_state, encode as encode_state};

use crate::collections::Manifest;
use crate::election::Lacks;
use crate::index::VALUE_MAX;
use crate::lock_order::{Ranked, rank};
use crate::settings::PersistenceSettings;
use crate::{Key, KvError, Unavailable, VbId};
use meta::Meta;

/// Most flusher threads of a node: each shard belongs to one of them.
pub const FLUSHERS: usize = 2;
/// Threads that fetch values for clients.
pub const FETCHERS: usize = 2;

/// Returns which flusher a shard of the bucket in this slot belongs to.
pub(crate) fn flusher_of(slot: usize, shard: usize) -> usize {
    (slot + shard) % FLUSHERS
}

/// Whether a vBucket is served.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Gate {
    Open,
    WarmingUp,
    Damaged,
}

/// The disk that journals are on.
pub(crate) type JournalDisk = Metered<AnyDisk>;

/// The journal of a bucket.
pub struct Persistence {
    pub(crate) disk: AnyDisk,
    pub(crate) directory: PathBuf,
    pub(crate) settings: PersistenceSettings,
    meta: Ranked<Meta, { rank::META }>,
    pub(crate) shards: Box<[Shard]>,
    pub(crate) gates: Box<[AtomicU8]>,
    pub(crate) loading: Ranked<Loading, { rank::LOADING }>,
    pub(crate) warm_up: opening::Progress,
    pub(crate) warm_reported: AtomicBool,
    /// There are segments that compaction is to write anew once everything is read.
    pub(crate) has_worn: bool,
    pub(crate) counters: Counters,
    pub(crate) syncs: SyncMeter,
    /// Set while the metadata's lock is held: from then on nothing is written to the directory.
    is_deleted: AtomicBool,
    /// Whether the datatype bit JSON of its records was checked: not by versions before format 3.
    checked_json: bool,
}

/// A document as it was written.
pub(crate) struct Stored {
    pub(crate) flags: u32,
    pub(crate) value: Vec<u8>,
}

/// One of a bucket's journals.
pub(crate) struct Shard {
    /// None once the bucket is closed or deleted.
    pub(crate) journal: Ranked<Option<Journal<JournalDisk>>, { rank::JOURNAL }>,
    pub(crate) reader: Reader<JournalDisk>,
    /// Highest CAS of the journal when it was opened.
    pub(crate) max_cas: u64,
    /// No flush before this, ms of the monotonic clock.
    pub(crate) rest_until_ms: AtomicU64,
    /// Somebody waits for the next flush.
    pub(crate) hurry: AtomicBool,
    /// The last flush did not get to the end.
    pub(crate) is_long: AtomicBool,
    /// The vBucket at which the next flush starts: where the last one had to stop.
    pub(crate) resume: AtomicU16,
    /// Consecutive failures.
    pub(crate) failures: AtomicU64,
    /// Something was written since compaction found nothing to do.
    pub(crate) may_compact: AtomicBool,
    /// When the shard is at rest if nothing more is written, ms of the monotonic clock; 0 once what is done then has
    /// been done.
    pub(crate) at_rest_ms: AtomicU64,
    /// Compaction has checked the segments in vain: it does so again when this many bytes are superfluous.
    pub(crate) compact_from_bytes: AtomicU64,
    /// Compaction debt: bytes that compaction still has to read and write for what was flushed.
    pub(crate) debt_bytes: AtomicU64,
    /// Bytes that compaction has worked off since the last flush.
    pub(crate) worked_bytes: AtomicU64,
    /// Segments of the journal and their bytes, as last asked for.
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Shard {
    /// Returns true if the next flush is due at once.
    pub(crate) fn hurries(&self) -> bool {
        (self.hurry.load(Relaxed) || self.is_long.load(Relaxed)) && self.failures.load(Relaxed) == 0
    }
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) items: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) fetched: AtomicU64,
    pub(crate) fetch_failures: AtomicU64,
    pub(crate) compacted_segments: AtomicU64,
    pub(crate) compacted_bytes: AtomicU64,
}

impl Persistence {
    /// Returns its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns its settings.
    pub fn settings(&self) -> &PersistenceSettings {
        &self.settings
    }

    /// Copies the bucket into a new directory of the same disk, durably and while it is served: each shard as of one
    /// commit. Then reads all of the copy: what is not whole is no backup. After an error the directory holds no
    /// bucket.
    pub fn copy(&self, directory: &Path, buffer: &mut Buffer) -> std::io::Result<()> {
        if self.disk.exists(directory)? {
            return Err(std::io::ErrorKind::AlreadyExists.into());
        }
        self.check_whole()?;
        self.disk.create_directory(directory)?;
        let (mut written_shards, changes) = (Vec::new(), self.meta.lock().changes);
        for (at, shard) in self.shards.iter().enumerate() {
            let copy = meta::shard_directory(directory, at);
            if shard.reader.copy(&copy, changes, buffer)? {
                written_shards.push(at as u16);
                let verified = verify_with_progress(&self.disk, &copy, buffer, true, &mut |_| {});
                if let Some(damage) = verified.map_err(std::io::Error::other)?.damage.first() {
                    return Err(std::io::Error::other(format!("not backed up: {damage}")));
                }
            }
        }
        // It may have been found while the rest of the journal was read.
        self.check_whole()?;
        // Last of all: without this file the rest is not a bucket. A copy has no clean end.
        let meta = Meta { clean_seed: None, is_backup: true, written_shards, ..self.meta.lock().clone() };
        meta.write(&self.disk, directory)
    }

    /// Returns what is believed of a record's datatype. Versions before format 3 stored a client's word.
    pub(crate) fn datatype(&self, written: u8) -> u8 {
        if self.checked_json || written & SNAPPY != 0 { written } else { written & !JSON }
    }

    /// Returns how many journals it has.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Records durably, before a shard's first commit, that its manifest must exist from now on.
    pub(crate) fn note_written(
        &self,
        at: usize,
        journal: &mut Journal<JournalDisk>,
    ) -> Result<(), WriteError> {
        let mut meta = self.meta.lock();
        let Err(place) = meta.written_shards.binary_search(&(at as u16)) else { return Ok(()) };
        journal.begin()?;
        let mut written = meta.clone();
        written.written_shards.insert(place, at as u16);
        written.write(&self.disk, &self.directory).map_err(WriteError::of)?;
        *meta = written;
        Ok(())
    }

    /// Writes the bucket's collections durably.
    pub(crate) fn keep_collections(&self, collections: &Manifest) -> std::io::Result<()> {
        let mut meta = self.meta.lock();
        if self.is_deleted.load(Relaxed) {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        let changes = meta.changes + 1;
        let changed = Meta { collections: collections.clone(), changes, ..meta.clone() };
        changed.write(&self.disk, &self.directory)?;
        *meta = changed;
        drop(meta);
        for shard in &self.shards {
            // The change is kept in any case; without the note an older file would pass for this one.
            if let Some(Err(error)) =
                shard.journal.lock().as_mut().map(|journal| journal.note_changes(changes))
            {
                self.note_trouble(&error);
            }
        }
        Ok(())
    }

    pub(crate) fn shard_of(&self, vb: VbId) -> Option<&Shard> {
        self.shards.get(usize::from(vb.0) % self.shards.len())
    }

    /// Returns why a vBucket is not served, or `None` if it is.
    pub(crate) fn closed(&self, vb: VbId) -> Option<Unavailable> {
        match self.gates.get(usize::from(vb.0))?.load(Relaxed) {
            gate if gate == Gate::WarmingUp as u8 => Some(Unavailable::WarmingUp),
            gate if gate == Gate::Damaged as u8 => Some(Unavailable::Damaged),
            _ => None,
        }
    }

    /// Returns the document of this key that has this seqno on disk, with its value inflated, if it is still on disk.
    pub(crate) fn stored(&self, vb: VbId, on_disk: u64, key: Key<'_>) -> Result<Option<Stored>, KvError> {
        let shard = self.shard_of(vb).ok_or(KvError::BucketGone)?;
        let mut buffer = Vec::new();
        let record = shard.reader.read(vb.0, on_disk, &mut buffer).map_err(|_| KvError::ReadFailed)?;
        // In the journal a key begins with its collection's id.
        let is_it = |stored: &[u8]| collection_id::split(stored) == Some((key.collection, key.bytes));
        let Some(record) = record.filter(|record| is_it(record.key)) else { return Ok(None) };
        check_value(record.datatype, record.value)?;
        let value = match record.datatype & SNAPPY {
            0 if record.datatype & XATTR != 0 => xattrs::split(record.value).1.to_vec(),
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

    /// Returns true if any vBucket waits for its part of the journal to be read.
    pub(crate) fn is_warming_up(&self) -> bool {
        self.gates.iter().any(|gate| gate.load(Relaxed) == Gate::WarmingUp as u8)
    }

    /// Returns the vBuckets that are not served, for good, because their part of the journal is damaged.
    pub fn damaged(&self) -> impl Iterator<Item = VbId> {
        let is_damaged = |gate: &AtomicU8| gate.load(Relaxed) == Gate::Damaged as u8;
        (0..).zip(&self.gates).filter(move |(_, gate)| is_damaged(gate)).map(|(vb, _)| VbId(vb))
    }

    /// Makes the next flush of a vBucket due at once. Returns true if it might have had to wait.
    pub(crate) fn hurry(&self, vb: VbId) -> bool {
        if let Some(shard) = self.shard_of(vb) {
            // ORDERING: before the bell is checked.
            shard.hurry.swap(true, SeqCst);
        }
        self.settings.flush_interval_ms > 0
    }

    /// Returns true the first time: the caller then reports that the journal is read to its end.
    pub fn report_warm_once(&self) -> bool {
        !self.warm_reported.swap(true, Relaxed)
    }

    /// Marks the bucket as deleted in its directory, durably; after an error it is as it was.
    pub(crate) fn mark_deleted(&self) -> std::io::Result<()> {
        let _meta = self.meta.lock();
        meta::mark_deleted(&self.disk, &self.directory)?;
        self.is_deleted.store(true, Relaxed);
        Ok(())
    }

    /// Records that everything is on disk; the histories continue where they end now.
    pub(crate) fn note_clean_end(&self, history_seed: u64) -> Result<(), WriteError> {
        // Locked while it is written: a change of collections must not be overwritten.
        let meta = self.meta.lock();
        if self.is_deleted.load(Relaxed) {
            return Ok(());
        }
        let ended = Meta { clean_seed: Some(history_seed), is_backup: false, ..meta.clone() };
        ended.write(&self.disk, &self.directory).map_err(WriteError::Poisoned)
    }

    /// Returns the uid of the manifest that is kept.
    pub(crate) fn kept_uid(&self) -> u64 {
        self.meta.lock().collections.uid
    }

    /// Returns what copies may lack of what they have acknowledged, however they were before.
    pub(crate) fn lacks_at_start(&self, had_clean_end: bool) -> Lacks {
        match had_clean_end {
            true => Lacks::Nothing,
            false if self.meta.lock().is_backup => Lacks::Anything,
            false => Lacks::Unwritten,
        }
    }

    /// Returns how far the journal has been read since the start.
    pub fn warm_up(&self) -> WarmUp {
        self.warm_up.figures()
    }
}

/// Removes what is left of a deleted bucket. Does nothing if there was none.
pub fn remove_deleted(disk: &AnyDisk, directory: &Path) -> std::io::Result<()> {
    if !meta::is_deleted(disk, directory)? {
        return Ok(());
    }
    for shard in shards_in(disk, directory)? {
        for file in disk.list(&shard)? {
            disk.remove(&file)?;
        }
        disk.remove_directory(&shard)?;
    }
    meta::forget_deleted(disk, directory)
}

/// Returns true if there are journals in a bucket's directory.
pub fn has_journals(disk: &AnyDisk, directory: &Path) -> std::io::Result<bool> {
    Ok(!shards_in(disk, directory)?.is_empty())
}

/// Returns the directories of journals in a bucket's directory.
fn shards_in(disk: &AnyDisk, directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_shard =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("shard-"));
    Ok(disk.list(directory)?.into_iter().filter(is_shard).collect())
}

/// Datatype bit of a record of a shadow, which otherwise is one of a document.
pub(crate) const DELETED: u8 = 0x80;
/// Level of a tombstone's record, if the document had expired. Earlier versions wrote 0 for all.
pub(crate) const EXPIRED: u8 = 1;

/// [`KvError::Damaged`] for a compressed value of the journal that does not inflate: everything later relies on that.
pub(crate) fn check_value(datatype: u8, value: &[u8]) -> Result<(), KvError> {
    if datatype & SNAPPY != 0 {
        snappy::check(value, VALUE_MAX).map_err(|_| KvError::Damaged)?;
    }
    Ok(())
}
