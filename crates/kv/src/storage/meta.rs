//! `bucket.json`: the identity of a persistent bucket. Replaced as a whole, by a new file that is synced and renamed.

use std::io;
use std::path::{Path, PathBuf};

use journal::{AnyDisk, Disk, File, Open, replace_file, sealed};
use serde::{Deserialize, Serialize};

use super::OpenBucketError;
use crate::collections::Manifest;

/// Format of the directory that is written. Format 2, without collections and extended attributes, is read too, and
/// format 1, without [`Meta::written_shards`]; others are not opened.
pub(super) const FORMAT: u32 = 3;
const FORMAT_WITHOUT_COLLECTIONS: u32 = 2;
const FORMAT_WITHOUT_MANIFESTS: u32 = 1;
const NAME: &str = "bucket.json";
const NEW: &str = "bucket.json.new";
const DELETED: &str = "bucket.json.deleted";
const BYTES_MAX: usize = 4 << 20;

/// What a bucket's `bucket.json` says of its journals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketFile {
    /// The bucket's name.
    pub name: String,
    /// Shards whose manifests must exist, ascending.
    pub written_shards: Vec<u16>,
    /// UUID, and the number of vBuckets, in each shard's files.
    pub bucket: [u8; 16],
    /// See `bucket`.
    pub vbuckets: u16,
}

impl BucketFile {
    /// Reads and checks the file in a bucket's directory, as opening the bucket does.
    pub fn read(disk: &AnyDisk, directory: &Path) -> Result<Self, OpenBucketError> {
        let Some(meta) = Meta::read(disk, directory)? else {
            return Err(OpenBucketError::Meta(format!("{}: it is missing", directory.join(NAME).display())));
        };
        meta.check(&meta.name)?;
        let bucket = meta.identity();
        let Meta { name, written_shards, vbuckets, .. } = meta;
        Ok(Self { name, written_shards, bucket, vbuckets })
    }
}

/// What is fixed when a bucket is created, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) format: u32,
    pub(super) name: String,
    /// 32 hex digits.
    pub(super) uuid: String,
    pub(super) vbuckets: u16,
    pub(super) shards: u16,
    /// Seed of the vBuckets' history ids, if the bucket had a clean end and nobody has opened it since. Otherwise
    /// histories may have lost their end, and get other ids.
    pub(super) clean_seed: Option<u64>,
    /// Shards that were written to since there are manifests, ascending: their manifests must exist.
    #[serde(default)]
    pub(super) written_shards: Vec<u16>,
    /// It is a backup, or came from one and has had no clean end since.
    #[serde(default)]
    pub(super) is_backup: bool,
    #[serde(default)]
    pub(super) collections: Manifest,
    /// How often the collections were written. The shards note it too, so that an older file is noticed.
    #[serde(default)]
    pub(super) changes: u64,
    /// Whether the datatype bit JSON of all its records was checked.
    #[serde(default)]
    pub(super) checked_json: bool,
}

impl Meta {
    /// Checks that it can be opened here as this bucket.
    pub(super) fn check(&self, name: &str) -> Result<(), OpenBucketError> {
        let fits = self.vbuckets.is_power_of_two() && (1..=self.vbuckets).contains(&self.shards);
        let known = [FORMAT, FORMAT_WITHOUT_COLLECTIONS, FORMAT_WITHOUT_MANIFESTS];
        let problem = if !known.contains(&self.format) {
            format!("bucket.json: format {} is not known to this version", self.format)
        } else if self.name != name {
            format!("bucket.json: this is bucket {:?}, not {name:?}", self.name)
        } else if !fits || self.uuid.len() != 32 {
            "bucket.json: its numbers are out of range".to_owned()
        } else {
            return Ok(());
        };
        Err(OpenBucketError::Meta(problem))
    }

    /// Returns true if the shard's manifest must exist.
    pub(super) fn has_written(&self, shard: u16) -> bool {
        self.written_shards.binary_search(&shard).is_ok()
    }

    /// Returns the bucket's identity in its segments.
    pub(super) fn identity(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(self.uuid.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(pair).unwrap_or_default();
            *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
        }
        bytes
    }

    /// Reads it; `None` if there is no bucket.
    pub(super) fn read(disk: &AnyDisk, directory: &Path) -> io::Result<Option<Self>> {
        let file = match disk.open(&directory.join(NAME), Open::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = usize::try_from(file.length()?).unwrap_or(usize::MAX).min(BYTES_MAX);
        let (mut bytes, mut filled) = (vec![0; length], 0);
        while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
            match file.read_at(room, filled as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        Self::parse(&bytes).map(Some).map_err(|error| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", directory.join(NAME).display()))
        })
    }

    /// Writes it durably. The directory's parent exists.
    pub(super) fn write(&self, disk: &AnyDisk, directory: &Path) -> io::Result<()> {
        disk.create_directory(directory)?;
        disk.sync_directory(directory)?;
        let current = Self { format: FORMAT, ..self.clone() };
        let text = serde_json::to_string_pretty(&current).map_err(io::Error::other)?;
        let text = sealed::seal(text);
        replace_file(disk, &directory.join(NAME), &directory.join(NEW), text.as_bytes())
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        sealed::check(text).map_err(|broken| broken.to_string())?;
        let meta: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        meta.collections.check().map(|()| meta)
    }
}

/// Marks the bucket as deleted: from here on there are only files to be removed in this directory. After an error there
/// still is a bucket.
pub(super) fn mark_deleted(disk: &AnyDisk, directory: &Path) -> io::Result<()> {
    let (name, deleted) = (directory.join(NAME), directory.join(DELETED));
    disk.rename(&name, &deleted)?;
    disk.sync_directory(&deleted).inspect_err(|_| {
        // The caller is told that the deletion failed, so the next start must not complete it. If this fails too, it
        // may.
        let _ = disk.rename(&deleted, &name).and_then(|()| disk.sync_directory(&name));
    })
}

pub(super) fn is_deleted(disk: &AnyDisk, directory: &Path) -> io::Result<bool> {
    disk.exists(&directory.join(DELETED))
}

/// Removes the mark of a deleted bucket, after everything else.
pub(super) fn forget_deleted(disk: &AnyDisk, directory: &Path) -> io::Result<()> {
    // If the deletion was interrupted, the file may have been written once more.
    for left in [directory.join(NEW), directory.join(NAME)] {
        if disk.exists(&left)? {
            disk.remove(&left)?;
        }
    }
    disk.remove(&directory.join(DELETED))?;
    disk.sync_directory(&directory.join(DELETED))
}

/// Returns the directory of a shard's segments.
pub(super) fn shard_directory(directory: &Path, shard: usize) -> PathBuf {
    directory.join(format!("shard-{shard}"))
}
