//! The persistent buckets of the data directory.
//!
//! ```text
//!   DATA/buckets/NAME/bucket.json      its identity, fixed at creation; owned by the engine
//!   DATA/buckets/NAME/shard-N/         its journals; owned by the engine
//!   DATA/buckets/NAME/settings.json    the settings last requested, by configuration or HTTP; owned by this module
//!   DATA/backups/NAME/LABEL/           a point-in-time copy of the same files
//!   DATA/collections/NAME.json         the scopes and collections of an ephemeral bucket; a persistent one has them in
//!                                      its bucket.json
//! ```
//! A bucket exists if its `bucket.json` does. It stays until it is deleted over HTTP: a bucket that the configuration
//! does not name (any more) is opened with its `settings.json`.

use crate::config::reader::cause;
use crate::config::{BucketSection, Problem, keys};
use crate::data_dir::write_whole;
use crate::text_file;
use journal::log::Buffer;
use journal::{AnyDisk, Disk as _, RealDisk, sealed};
use kv::collections::{Keep, Manifest};
use kv::{BUCKET_SETTINGS, BucketKind, BucketSettings, NotAllowed, Persistence, SettingValue};
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The directory of the buckets in a data directory.
pub const BUCKETS: &str = "buckets";
const BACKUPS: &str = "backups";
const COLLECTIONS: &str = "collections";
/// Maximum size of a file of collections.
const COLLECTIONS_BYTES_MAX: u64 = 4 << 20;
/// Backups of a bucket that there may be before a user who manages only the bucket makes another one.
pub const BACKUPS_MAX: usize = 16;
/// The share of the disk, one in so many bytes, that a backup leaves free for all buckets.
const DISK_RESERVE: u64 = 20;
/// The engine's file; a directory without it is not a bucket.
pub const IDENTITY: &str = "bucket.json";
/// This module's file beside it.
pub const SETTINGS: &str = "settings.json";
/// The member that names the bucket; files of earlier versions have none.
const BUCKET: &str = "bucket";
/// Its maximum size.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// The directory that contains the buckets' directories.
pub struct BucketStore {
    data: PathBuf,
    disk: AnyDisk,
}

/// Why there is no backup.
#[derive(Debug)]
pub enum NoBackup {
    /// There are [`BACKUPS_MAX`] of the bucket.
    TooMany,
    /// The disk would have too little left for all buckets.
    DiskFull {
        /// What it has left now.
        free_bytes: u64,
        /// What it must have left.
        needed_bytes: u64,
    },
    /// The disk has failed, or there is a backup of this label.
    Failed(io::Error),
}

impl From<io::Error> for NoBackup {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// The bytes of a bucket that a backup copies: those of each shard's newest segment, into which it writes.
fn newest_bytes(bucket: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for shard in fs::read_dir(bucket)? {
        let shard = shard?.path();
        if !shard.is_dir() {
            continue;
        }
        let segments = fs::read_dir(&shard)?.flatten().map(|entry| entry.path());
        let newest = segments.filter(|path| path.extension().is_some_and(|end| end == "segment")).max();
        bytes += newest.and_then(|path| fs::metadata(path).ok()).map_or(0, |metadata| metadata.len());
    }
    Ok(bytes)
}

impl BucketStore {
    /// The store of an existing data directory.
    pub fn new(data: &Path) -> Self {
        Self { data: data.to_owned(), disk: AnyDisk::Real(RealDisk::default()) }
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The disk that its files are on.
    pub fn disk(&self) -> AnyDisk {
        self.disk.clone()
    }

    /// The directory of a bucket, whether or not it exists yet.
    pub fn directory(&self, name: &str) -> PathBuf {
        self.data.join(BUCKETS).join(name)
    }

    /// Copies a bucket while it is served and returns the copy's directory. Sealed segments are shared with the bucket
    /// by hard links. If it `is_bounded`, there may be [`BACKUPS_MAX`] of them.
    pub fn backup(
        &self,
        name: &str,
        label: &str,
        persistence: &Persistence,
        is_bounded: bool,
    ) -> Result<PathBuf, NoBackup> {
        // Of two concurrent backups with one label, the second would take the first one's directory for its own and
        // remove it.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let parent = self.data.join(BACKUPS);
        self.make_directory(&parent)?;
        self.make_directory(&parent.join(name))?;
        let directory = parent.join(name).join(label);
        let is_new = !directory.exists();
        if is_bounded && is_new && fs::read_dir(parent.join(name))?.count() >= BACKUPS_MAX {
            return Err(NoBackup::TooMany);
        }
        let disk = rustix::fs::statvfs(&parent).map_err(io::Error::from)?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        let reserve_bytes = disk.f_blocks.saturating_mul(disk.f_frsize) / DISK_RESERVE;
        let needed_bytes = newest_bytes(&self.directory(name))?.saturating_add(reserve_bytes);
        if free_bytes < needed_bytes {
            return Err(NoBackup::DiskFull { free_bytes, needed_bytes });
        }
        let settings = self.directory(name).join(SETTINGS);
        let copied = persistence.copy(&directory, &mut Buffer::default()).and_then(|()| {
            write_whole(
                &directory.join(SETTINGS),
                text_file::read_regular(&settings, SETTINGS_BYTES_MAX)?.as_bytes(),
            )
        });
        if let (Err(_), true) = (&copied, is_new) {
            // The directory is not a complete backup and must not be mistaken for one.
            let _ = fs::remove_dir_all(&directory);
        }
        copied?;
        Ok(directory)
    }

    /// The existing buckets with their settings. Completes interrupted deletions.
    pub fn found(&self) -> Result<Vec<BucketSection>, Problem> {
        let root = self.data.join(BUCKETS);
        let refused = |path: &Path, error: io::Error| {
            Problem::new(format!(
                "{}: {}; allowed: a directory of buckets this process can read and write",
                path.display(),
                cause(&error)
            ))
        };
        let entries = match fs::read_dir(&root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(refused(&root, error)),
        };
        let mut sections = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| refused(&root, error))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if !path.is_dir() || !kv::is_bucket_name(&name) {
                continue;
            }
            kv::persistence::remove_deleted(&self.disk, &path).map_err(|error| refused(&path, error))?;
            if path.join(IDENTITY).exists() {
                sections.push(read_settings(&path, &name)?);
            } else if kv::persistence::has_journals(&self.disk, &path)
                .map_err(|error| refused(&path, error))?
            {
                let (path, advice) = (path.display(), "put it back, or move the directory away");
                return Err(Problem::new(format!(
                    "{path}: {IDENTITY} is missing beside its journals; {advice}"
                )));
            } else if let Err(error) = self.forget(&name) {
                tracing::warn!(directory = %path.display(), "leftover files without a bucket: {error}");
            }
        }
        sections.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(sections)
    }

    /// Stores a bucket's settings durably, before the bucket is created or changed.
    pub fn keep(&self, name: &str, memory_bytes: Option<u64>, settings: &BucketSettings) -> io::Result<()> {
        let directory = self.directory(name);
        if !directory.join(IDENTITY).exists() {
            // Synced even if they exist already: whoever created them may have crashed before syncing.
            for made in [&self.data.join(BUCKETS), &directory] {
                self.disk.create_directory(made)?;
                self.disk.sync_directory(made)?;
            }
        }
        write_settings(&directory, name, memory_bytes, settings)
    }

    /// Removes the remains of a bucket that the engine has deleted.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        let directory = self.directory(name);
        match fs::remove_file(directory.join(SETTINGS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.disk.remove_directory(&directory)?;
        self.disk.sync_directory(&directory)
    }

    fn collections_path(&self, name: &str) -> PathBuf {
        self.data.join(COLLECTIONS).join(format!("{name}.json"))
    }

    /// The scopes and collections of an ephemeral bucket as they were kept.
    pub fn collections(&self, name: &str) -> Result<Manifest, String> {
        let path = self.collections_path(name);
        let text = match text_file::read_regular(&path, COLLECTIONS_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Manifest::of_new_bucket()),
            Err(error) => return Err(format!("{}: {}", path.display(), cause(&error))),
        };
        let parse = |text: &str| -> Result<Manifest, String> {
            sealed::check(text).map_err(|broken| broken.to_string())?;
            let manifest: Manifest = serde_json::from_str(text).map_err(|error| error.to_string())?;
            manifest.check().map(|()| manifest)
        };
        parse(&text).map_err(|error| {
            let advice = "remove the file to begin with the default scope and collection";
            format!("{}: not what was written there: {error}; {advice}", path.display())
        })
    }

    /// What keeps the scopes and collections of an ephemeral bucket.
    pub fn keeper(&self, name: &str) -> Keep {
        let (path, disk) = (self.collections_path(name), self.disk.clone());
        Box::new(move |manifest| {
            if let Some(directory) = path.parent() {
                disk.create_directory(directory)?;
                disk.sync_directory(directory)?;
            }
            let text = serde_json::to_string_pretty(manifest).map_err(io::Error::other)?;
            write_whole(&path, sealed::seal(text).as_bytes())
        })
    }

    /// Forgets the scopes and collections of an ephemeral bucket.
    pub fn forget_collections(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.collections_path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn make_directory(&self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        self.disk.create_directory(path)?;
        self.disk.sync_directory(path)
    }
}

/// The names of the buckets in a data directory, read without a lock, to check a configuration.
pub fn names(data: &Path) -> Vec<String> {
    let entries = fs::read_dir(data.join(BUCKETS)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join(IDENTITY).is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| kv::is_bucket_name(name))
        .collect();
    names.sort();
    names
}

/// Reads a bucket's settings from its directory. Those that are not there have their defaults. What cannot be read is
/// refused: a default may be less durable than what clients were promised.
pub fn read_settings(directory: &Path, name: &str) -> Result<BucketSection, Problem> {
    let path = directory.join(SETTINGS);
    let refused = |what: &dyn Display| {
        let advice = "put back the file as the node wrote it, or one with {} for the defaults";
        Problem::new(format!("{}: {what}; {advice}", path.display()))
    };
    let text = text_file::read_regular(&path, SETTINGS_BYTES_MAX).map_err(|error| refused(&cause(&error)))?;
    sealed::check(&text).map_err(|broken| refused(&broken))?;
    let value: Map<String, Value> = serde_json::from_str(&text).map_err(|error| refused(&error))?;
    if let Some(other) = value.get(BUCKET).filter(|of| *of != name) {
        return Err(refused(&format_args!("the settings of bucket {other}, not of {name:?}")));
    }
    let mut section = BucketSection { name: name.to_owned(), ..keys::BUCKET.defaults() };
    section.settings.kind = BucketKind::Persistent;
    section.memory_bytes = value.get("memory_bytes").and_then(Value::as_u64);
    for setting in BUCKET_SETTINGS {
        let Some(kept) = setting.kept_as.and_then(|name| value.get(name)) else { continue };
        let set = setting_value(kept).ok_or(NotAllowed);
        if set.and_then(|kept| setting.set(&mut section.settings, kept)).is_err() {
            return Err(refused(&format_args!("{} = {kept} is not allowed", setting.key)));
        }
    }
    Ok(section)
}

/// Writes a bucket's settings into its directory unless they are already there.
fn write_settings(
    directory: &Path,
    name: &str,
    memory_bytes: Option<u64>,
    settings: &BucketSettings,
) -> io::Result<()> {
    let mut document =
        Map::from_iter([(BUCKET.to_owned(), json!(name)), ("memory_bytes".to_owned(), json!(memory_bytes))]);
    for setting in BUCKET_SETTINGS {
        if let Some(name) = setting.kept_as {
            let value = match setting.get(settings) {
                SettingValue::Number(number) => json!(number),
                SettingValue::Flag(flag) => json!(flag),
                SettingValue::Word(word) => json!(word),
            };
            document.insert(name.to_owned(), value);
        }
    }
    let document = Value::Object(document);
    let (path, text) = (directory.join(SETTINGS), sealed::seal(format!("{document:#}")));
    if text_file::read_regular(&path, SETTINGS_BYTES_MAX).is_ok_and(|kept| kept == text) {
        return Ok(());
    }
    write_whole(&path, text.as_bytes())
}

fn setting_value(value: &Value) -> Option<SettingValue<'_>> {
    match value {
        Value::Number(number) => number.as_u64().map(SettingValue::Number),
        Value::Bool(flag) => Some(SettingValue::Flag(*flag)),
        Value::String(word) => Some(SettingValue::Word(word)),
        _ => None,
    }
}
