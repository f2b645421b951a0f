//! Opening a bucket's journals: reads only the ends of the segments, and notes what is to be read.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

use journal::log::{
    Damage, Identity, OpenError, Options, ReadError, Segment, Shard as Journal, Spoils, WriteError,
};
use journal::{AnyDisk, Disk as _, Metered, SyncMeter};
use thiserror::Error;

use super::meta::{self, Meta};
use super::{Counters, Gate, Persistence, Shard};
use crate::collections::Manifest;
use crate::lock_order::Ranked;
use crate::settings::PersistenceSettings;
use crate::{KvError, VbId};

/// Most troubles that are kept until somebody asks.
const TROUBLES_MAX: usize = 100;

/// Why a persistent bucket could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenBucketError {
    /// Its directory or `bucket.json`.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A journal.
    #[error("{0}")]
    Journal(#[from] OpenError),
    /// `bucket.json` is of another version or another bucket.
    #[error("{0}")]
    Meta(String),
}

/// Something an operator should know.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// A part of the journal is damaged.
    Damage(Damage),
    /// A vBucket was not read to its end.
    Unread(VbId, KvError),
    /// `bucket.json` is older than what a vBucket knows of the scopes and collections.
    Outdated(VbId),
    /// `bucket.json` is older than what a shard knows of it.
    OldFile(usize),
    /// A flush failed; it is tried again.
    Write(String),
    /// A stream of changes could not be read from disk, and ended.
    Stream(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damage(damage) => write!(f, "{damage}"),
            Self::Unread(vb, error) => write!(f, "vBucket {} is not served: {error}", vb.0),
            Self::Outdated(vb) => write!(
                f,
                "bucket.json is older than the journal: vBucket {} has a later change of scopes and collections, and \
                 is not served. Put the right file back and restart",
                vb.0
            ),
            Self::OldFile(shard) => write!(
                f,
                "bucket.json is older than the journal: scopes and collections have changed since, as shard {shard} \
                 knows, and none of its vBuckets is served. Put the right file back and restart"
            ),
            Self::Write(error) => write!(f, "not written, will be tried again: {error}"),
            Self::Stream(error) => {
                write!(f, "a stream of changes has ended, since it could not be read: {error}")
            }
        }
    }
}

/// How far a journal has been read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Segments at the start.
    pub segments: u64,
    /// Segments that have been read.
    pub segments_done: u64,
    /// vBuckets that had anything to read.
    pub vbuckets: u64,
    /// Those that are served again.
    pub vbuckets_done: u64,
    /// Records read.
    pub records: u64,
}

impl WarmUp {
    /// Returns true if there is more to read.
    pub fn is_running(&self) -> bool {
        self.segments_done < self.segments
    }
}

#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) segments: AtomicU64,
    pub(crate) segments_done: AtomicU64,
    pub(crate) vbuckets: AtomicU64,
    pub(crate) vbuckets_done: AtomicU64,
    pub(crate) records: AtomicU64,
}

impl Progress {
    pub(crate) fn figures(&self) -> WarmUp {
        WarmUp {
            segments: self.segments.load(Relaxed),
            segments_done: self.segments_done.load(Relaxed),
            vbuckets: self.vbuckets.load(Relaxed),
            vbuckets_done: self.vbuckets_done.load(Relaxed),
            records: self.records.load(Relaxed),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.figures().is_running()
    }
}

/// What is still to be read.
#[derive(Default)]
pub(crate) struct Loading {
    segments: VecDeque<Part>,
    troubles: Vec<Trouble>,
    /// Of what was found damaged and has been taken.
    first_damage: Option<String>,
}

impl Loading {
    pub(crate) fn take_troubles(&mut self) -> Vec<Trouble> {
        self.first_damage = self.first_damage();
        std::mem::take(&mut self.troubles)
    }

    fn first_damage(&self) -> Option<String> {
        let first = || {
            let is_damage = |trouble: &&Trouble| {
                matches!(trouble, Trouble::Damage(_) | Trouble::Outdated(_) | Trouble::OldFile(_))
            };
            self.troubles.iter().find(is_damage)
        };
        self.first_damage.clone().or_else(|| first().map(Trouble::to_string))
    }
}

/// An open journal, and what its bucket has to know of it.
pub(crate) struct Opened {
    pub(crate) persistence: Persistence,
    pub(crate) uuid: String,
    pub(crate) vbuckets: u16,
    /// Seed of the vBuckets' history ids.
    pub(crate) history_seed: u64,
    /// The seed is that of the last start: nothing has happened that is not in the journal.
    pub(crate) had_clean_end: bool,
    /// Number of runs to be read for each vBucket.
    pub(crate) runs: Vec<u32>,
    pub(crate) collections: Manifest,
}

impl Opened {
    /// Returns true if all vBuckets are served at once.
    pub(crate) fn is_all_open(&self) -> bool {
        self.persistence.gates.iter().all(|gate| gate.load(Relaxed) == Gate::Open as u8)
    }
}

/// Opens what is in the directory, or creates a new bucket there. `fresh` returns the identity of a new one, and a seed
/// for history ids that were never used.
pub(crate) fn open(
    disk: AnyDisk,
    directory: &Path,
    name: &str,
    vbuckets: u16,
    settings: &PersistenceSettings,
    fresh: (String, u64),
) -> Result<Opened, OpenBucketError> {
    super::remove_deleted(&disk, directory)?;
    let (fresh_uuid, fresh_seed) = fresh;
    let mut meta = match Meta::read(&disk, directory)? {
        Some(meta) => {
            meta.check(name)?;
            if meta.format != meta::FORMAT {
                // Records that earlier versions do not know may follow.
                match meta.write(&disk, directory) {
                    Err(error) if error.kind() != io::ErrorKind::StorageFull => return Err(error.into()),
                    _ => {}
                }
            }
            meta
        }
        None => {
            if disk.exists(directory)? && super::has_journals(&disk, directory)? {
                let text = format!("{}: bucket.json is missing beside its journals", directory.display());
                return Err(OpenBucketError::Meta(text));
            }
            let meta = Meta {
                format: meta::FORMAT,
                name: name.to_owned(),
                uuid: fresh_uuid,
                vbuckets,
                shards: settings.shards.clamp(1, vbuckets),
                clean_seed: None,
                is_backup: false,
                written_shards: Vec::new(),
                collections: Manifest::of_new_bucket(),
                changes: 0,
                checked_json: true,
            };
            meta.write(&disk, directory)?;
            meta
        }
    };
    let syncs = SyncMeter::default();
    let mut opened = Vec::new();
    for shard in 0..meta.shards {
        let identity = Identity { bucket: meta.identity(), shard, vbuckets: meta.vbuckets };
        let options = Options { segment_bytes: settings.segment_bytes, sync: settings.sync };
        let directory = meta::shard_directory(directory, usize::from(shard));
        let disk = Metered::new(disk.clone(), syncs.clone());
        opened.push(Journal::open_known(disk, &directory, identity, options, meta.has_written(shard))?);
    }
    let is_clean = opened.iter().all(|opened| opened.clean || opened.segments.is_empty());
    let history_seed = match meta.clean_seed.take() {
        Some(seed) => {
            // From now on there is no clean end, whatever happens.
            match meta.write(&disk, directory) {
                Ok(()) if is_clean => seed,
                Ok(()) => fresh_seed,
                // A full disk is no reason not to serve what is there. Opening has already removed the marks of a clean
                // end from the journals; an empty one had none.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    let is_marked = opened.iter().any(|opened| opened.clean);
                    if is_clean && is_marked { seed } else { fresh_seed }
                }
                Err(error) => return Err(error.into()),
            }
        }
        None => fresh_seed,
    };
    let mut loading = Loading::default();
    let progress = Progress::default();
    let gates: Box<[AtomicU8]> = (0..meta.vbuckets).map(|_| AtomicU8::new(Gate::Open as u8)).collect();
    let mut runs = vec![0; usize::from(meta.vbuckets)];
    let mut shards = Vec::new();
    for (at, opened) in opened.into_iter().enumerate() {
        let ours = (at..runs.len()).step_by(usize::from(meta.shards));
        for vb in ours {
            let count = opened.runs(vb as u16);
            runs[vb] = count;
            if count > 0 {
                gates[vb].store(Gate::WarmingUp as u8, Relaxed);
                progress.vbuckets.fetch_add(1, Relaxed);
            }
        }
        loading.segments.extend(opened.segments.iter().map(|segment| (at, Arc::clone(segment))));
        loading.troubles.extend(opened.damage.iter().cloned().map(Trouble::Damage));
        for damage in &opened.damage {
            spoil(&gates, at, usize::from(meta.shards), &damage.spoils);
        }
        if opened.shard.changes() > meta.changes {
            loading.troubles.push(Trouble::OldFile(at));
            spoil(&gates, at, usize::from(meta.shards), &Spoils::Everything);
        }
        shards.push(Shard {
            reader: opened.shard.reader(),
            journal: Ranked::new(Some(opened.shard)),
            max_cas: opened.max_cas,
            rest_until_ms: AtomicU64::new(0),
            hurry: AtomicBool::new(false),
            is_long: AtomicBool::new(false),
            resume: AtomicU16::new(0),
            failures: AtomicU64::new(0),
            may_compact: AtomicBool::new(true),
            at_rest_ms: AtomicU64::new(0),
            compact_from_bytes: AtomicU64::new(0),
            debt_bytes: AtomicU64::new(0),
            worked_bytes: AtomicU64::new(0),
            segments: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
    }
    progress.segments.store(loading.segments.len() as u64, Relaxed);
    let has_worn = loading.segments.iter().any(|(_, segment)| segment.is_worn());
    let checked_json = meta.checked_json;
    let (uuid, vbuckets, collections) = (meta.uuid.clone(), meta.vbuckets, meta.collections.clone());
    let persistence = Persistence {
        disk,
        directory: directory.to_owned(),
        settings: settings.clone(),
        meta: Ranked::new(meta),
        shards: shards.into(),
        gates,
        loading: Ranked::new(loading),
        warm_up: progress,
        warm_reported: AtomicBool::new(false),
        has_worn,
        counters: Counters::default(),
        syncs,
        is_deleted: AtomicBool::new(false),
        checked_json,
    };
    let had_clean_end = history_seed != fresh_seed;
    Ok(Opened { persistence, uuid, vbuckets, history_seed, had_clean_end, runs, collections })
}

fn spoil_vbucket(gates: &[AtomicU8], vb: u16) {
    if let Some(gate) = gates.get(usize::from(vb)) {
        gate.store(Gate::Damaged as u8, Relaxed);
    }
}

/// Closes the vBuckets that cannot be served because of damage.
pub(crate) fn spoil(gates: &[AtomicU8], shard: usize, shards: usize, spoils: &Spoils) {
    match spoils {
        Spoils::Nothing => {}
        Spoils::VBucket(vb) => spoil_vbucket(gates, *vb),
        Spoils::VBuckets(vbuckets) => vbuckets.iter().for_each(|vb| spoil_vbucket(gates, *vb)),
        Spoils::Everything => {
            gates.iter().skip(shard).step_by(shards).for_each(|gate| gate.store(Gate::Damaged as u8, Relaxed))
        }
    }
}

impl Persistence {
    pub(crate) fn take_part(&self) -> Option<Part> {
        if self.warm_up.is_running() { self.loading.lock().segments.pop_front() } else { None }
    }

    pub(crate) fn waits_for_load(&self) -> bool {
        self.warm_up.is_running() && !self.loading.lock().segments.is_empty()
    }

    pub(crate) fn note(&self, trouble: Trouble) {
        let mut loading = self.loading.lock();
        if loading.troubles.len() < TROUBLES_MAX {
            loading.troubles.push(trouble);
        }
    }

    pub(crate) fn note_damage(&self, damage: Damage) {
        self.note(Trouble::Damage(damage));
    }

    pub(crate) fn note_unreadable(&self, error: &ReadError) {
        self.note(Trouble::Stream(error.to_string()));
    }

    pub(crate) fn note_trouble(&self, error: &WriteError) {
        self.note(Trouble::Write(error.to_string()));
    }

    /// Returns an error that says what is damaged, unless everything is whole.
    pub(super) fn check_whole(&self) -> std::io::Result<()> {
        let Some(vb) = self.damaged().next() else { return Ok(()) };
        let why = self.loading.lock().first_damage().unwrap_or_else(|| "its journal is damaged".to_owned());
        Err(std::io::Error::other(format!(
            "not backed up: {} vBuckets are not served, vBucket {} first: {why}",
            self.damaged().count(),
            vb.0
        )))
    }

    /// Returns what was found damaged and what failed since the last call, for the log.
    pub fn take_troubles(&self) -> Vec<Trouble> {
        self.loading.lock().take_troubles()
    }
}

/// A segment of a shard.
pub(crate) type Part = (usize, Arc<Segment<super::JournalDisk>>);
