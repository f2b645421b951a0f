//! The settings of a bucket, one row each. A row defines the setting's key in the configuration, its field over HTTP,
//! what is kept of it beside the bucket, its documentation, and how a change reaches a bucket that is served.
//!
//! Name, kind, budget and eviction are not among them: their allowed values depend on one another and on the node.

use crate::settings::{CONFLICT_RESOLUTIONS, STORAGE_BACKENDS};
use crate::{Bucket, BucketSettings, Compression, HeapChoice, LeastDurability};

/// A setting of a bucket.
#[derive(Debug)]
pub struct BucketSetting {
    /// Its key in the configuration.
    pub key: &'static str,
    /// Its field in forms and documents over HTTP, if it can be set there.
    pub field: Option<&'static str>,
    /// Its name in the file kept beside a persistent bucket. `None`: the journal itself has it.
    pub kept_as: Option<&'static str>,
    /// Its allowed values, and where it is in the settings.
    pub kind: SettingKind,
    /// How it is changed while the bucket is served. `None`: only with a restart, or never.
    pub live: Option<Live>,
    /// What it does, in one or two sentences.
    pub about: &'static str,
}

/// The allowed values of a setting, and where it is in [`BucketSettings`]. Bounds are inclusive.
#[derive(Debug)]
pub enum SettingKind {
    /// A whole number; the unit follows it in messages.
    Count {
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
        /// Such as "milliseconds".
        unit: &'static str,
        /// Reads it.
        get: fn(&BucketSettings) -> u64,
        /// Sets it.
        set: fn(&mut BucketSettings, u64),
    },
    /// A power of two, at least 1.
    PowerOfTwo {
        /// Maximum.
        max: u64,
        /// Reads it.
        get: fn(&BucketSettings) -> u64,
        /// Sets it.
        set: fn(&mut BucketSettings, u64),
    },
    /// A number of bytes.
    Bytes {
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
        /// Reads it.
        get: fn(&BucketSettings) -> u64,
        /// Sets it.
        set: fn(&mut BucketSettings, u64),
    },
    /// Yes or no.
    Flag {
        /// Reads it.
        get: fn(&BucketSettings) -> bool,
        /// Sets it.
        set: fn(&mut BucketSettings, bool),
    },
    /// On or off.
    Switch {
        /// Reads it.
        get: fn(&BucketSettings) -> bool,
        /// Sets it.
        set: fn(&mut BucketSettings, bool),
    },
    /// One word of a list.
    Word {
        /// The allowed words.
        words: &'static [&'static str],
        /// Reads it.
        get: fn(&BucketSettings) -> &'static str,
        /// Sets it to one of the words.
        set: fn(&mut BucketSettings, &str),
    },
}

/// How a setting is changed while its bucket is served.
#[derive(Debug)]
pub struct Live {
    /// Copies what is in force into settings.
    pub read: fn(&Bucket, &mut BucketSettings),
    /// Applies the settings.
    pub apply: fn(&Bucket, &BucketSettings),
}

/// The value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingValue<'a> {
    /// A number.
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// A word.
    Word(&'a str),
}

/// A setting's value is not allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAllowed;

impl BucketSetting {
    /// Returns its value.
    pub fn get(&self, settings: &BucketSettings) -> SettingValue<'static> {
        match self.kind {
            SettingKind::Count { get, .. }
            | SettingKind::PowerOfTwo { get, .. }
            | SettingKind::Bytes { get, .. } => SettingValue::Number(get(settings)),
            SettingKind::Flag { get, .. } | SettingKind::Switch { get, .. } => {
                SettingValue::Flag(get(settings))
            }
            SettingKind::Word { get, .. } => SettingValue::Word(get(settings)),
        }
    }

    /// Checks a value, and returns it as the setting would return it.
    pub fn check(&self, value: SettingValue<'_>) -> Result<SettingValue<'static>, NotAllowed> {
        let mut scratch = BucketSettings::default();
        self.set(&mut scratch, value).map(|()| self.get(&scratch))
    }

    /// Sets its value, if it is allowed.
    pub fn set(&self, settings: &mut BucketSettings, value: SettingValue<'_>) -> Result<(), NotAllowed> {
        match (&self.kind, value) {
            (
                SettingKind::Count { min, max, set, .. } | SettingKind::Bytes { min, max, set, .. },
                SettingValue::Number(number),
            ) if (*min..=*max).contains(&number) => set(settings, number),
            (SettingKind::PowerOfTwo { max, set, .. }, SettingValue::Number(number))
                if number.is_power_of_two() && number <= *max =>
            {
                set(settings, number);
            }
            (SettingKind::Flag { set, .. } | SettingKind::Switch { set, .. }, SettingValue::Flag(flag)) => {
                set(settings, flag);
            }
            (SettingKind::Word { words, set, .. }, SettingValue::Word(word)) if words.contains(&word) => {
                set(settings, word);
            }
            _ => return Err(NotAllowed),
        }
        Ok(())
    }
}

/// All settings, in the order they are documented.
pub static BUCKET_SETTINGS: &[BucketSetting] = &[
    BucketSetting {
        key: "vbuckets",
        field: Some("numVBuckets"),
        kept_as: None,
        kind: SettingKind::PowerOfTwo {
            max: 1024,
            get: |s| u64::from(s.vbuckets),
            set: |s, v| s.vbuckets = u16::try_from(v).unwrap_or(u16::MAX),
        },
        live: None,
        about: "Number of vBuckets. A persistent bucket keeps the number it was created with.",
    },
    BucketSetting {
        key: "item_heap",
        field: Some("itemHeap"),
        kept_as: Some("item_heap"),
        kind: SettingKind::Word {
            words: HeapChoice::NAMES,
            get: |s| s.item_heap.name(),
            set: |s, word| s.item_heap = HeapChoice::of_name(word).unwrap_or_default(),
        },
        live: None,
        about: "Where items are allocated. \"slab\": in slots of slabs, which cost the least memory and \
        stay dense when sizes change. \"block\": each is a block of the allocator. \"auto\": blocks while \
        the bucket is smaller than 4 MiB, slabs for later items.",
    },
    BucketSetting {
        key: "defragmenter",
        field: Some("defragmenter"),
        kept_as: Some("defragmenter"),
        kind: SettingKind::Switch { get: |s| s.defragmenter, set: |s, v| s.defragmenter = v },
        live: Some(Live {
            read: |bucket, s| s.defragmenter = bucket.has_defragmenter(),
            apply: |bucket, s| bucket.set_defragmenter(s.defragmenter),
        }),
        about: "Whether items are moved out of sparse pages, so that these can be given back. It runs when \
        more than 2 % of the used memory, and at least 4 MiB, is waste (while no client is served: 1 % and \
        2 MiB), and sleeps otherwise. If more than an eighth of the slabs' space is free, a thread that \
        allocates a slab evacuates sparse ones first. Slots of slabs move with any allocator, blocks only \
        with jemalloc.",
    },
    BucketSetting {
        key: "compression",
        field: Some("compressionMode"),
        kept_as: Some("compression"),
        kind: SettingKind::Word {
            words: Compression::NAMES,
            get: |s| s.compression.name(),
            set: |s, word| s.compression = Compression::of_name(word).unwrap_or_default(),
        },
        live: Some(Live {
            read: |bucket, s| s.compression = bucket.compression(),
            apply: |bucket, s| bucket.set_compression(s.compression),
        }),
        about: "Whether values are kept compressed, with Snappy. \"off\": values that SDKs send compressed \
        are inflated. \"passive\": they are kept as sent. \"active\": in addition, while more than three \
        quarters of the budget are used, other values are compressed if that saves an eighth. Clients that \
        have not negotiated Snappy always get inflated values.",
    },
    BucketSetting {
        key: "flush_enabled",
        field: Some("flushEnabled"),
        kept_as: Some("flush_enabled"),
        kind: SettingKind::Flag { get: |s| s.flush_enabled, set: |s, v| s.flush_enabled = v },
        live: Some(Live {
            read: |bucket, s| s.flush_enabled = bucket.flush_enabled(),
            apply: |bucket, s| bucket.set_flush_enabled(s.flush_enabled),
        }),
        about: "Whether POST /pools/default/buckets/NAME/controller/doFlush empties the bucket. It does \
        not affect memcached's flush_all.",
    },
    BucketSetting {
        key: "flush_interval_ms",
        field: Some("flushIntervalMs"),
        kept_as: Some("flush_interval_ms"),
        kind: SettingKind::Count {
            min: 0,
            max: 60_000,
            unit: "milliseconds",
            get: |s| s.persistence.flush_interval_ms,
            set: |s, v| s.persistence.flush_interval_ms = v,
        },
        live: None,
        about: "Persistent: time between two flushes of plain writes; younger writes may be lost if the \
        machine loses power. 0: as soon as a flusher is free. The default bounds the disk's load at 20 \
        commits per second and shard, whatever clients do. Writes with a durability level do not wait for \
        it.",
    },
    BucketSetting {
        key: "segment_size",
        field: None,
        kept_as: Some("segment_bytes"),
        kind: SettingKind::Bytes {
            min: 1 << 20,
            max: 4 << 30,
            get: |s| s.persistence.segment_bytes,
            set: |s, v| s.persistence.segment_bytes = v,
        },
        live: None,
        about: "Persistent: size of the journal's files. Compaction rewrites whole files.",
    },
    BucketSetting {
        key: "shards",
        field: None,
        kept_as: None,
        kind: SettingKind::Count {
            min: 1,
            max: 64,
            unit: "journals",
            get: |s| u64::from(s.persistence.shards),
            set: |s, v| s.persistence.shards = u16::try_from(v).unwrap_or(u16::MAX),
        },
        live: None,
        about: "Persistent: number of journals that the vBuckets are distributed over, at most one per \
        vBucket; fixed when the bucket is created. At most two are written at a time, so more than 2 help \
        only on a slow disk that can do many syncs in parallel.",
    },
    BucketSetting {
        key: "tombstone_age_s",
        field: None,
        kept_as: Some("tombstone_age_s"),
        kind: SettingKind::Count {
            min: 0,
            max: 60 * 86_400,
            unit: "seconds",
            get: |s| u64::from(s.persistence.tombstone_age_s),
            set: |s, v| s.persistence.tombstone_age_s = u32::try_from(v).unwrap_or(u32::MAX),
        },
        live: None,
        about: "Persistent: how long tombstones stay in the journal, for consumers of change streams that come \
        back and for tools that copy the bucket; compaction drops older ones. As long, deleted documents can be looked \
        up on Couchbase ports, for which at most 24 bytes of memory are used for each, and at most a 32nd of the \
        bucket's.",
    },
    BucketSetting {
        key: "purge_age_s",
        field: None,
        kept_as: None,
        kind: SettingKind::Count {
            min: 0,
            max: 60 * 86_400,
            unit: "seconds",
            get: |s| u64::from(s.purge_age_s),
            set: |s, v| s.purge_age_s = u32::try_from(v).unwrap_or(u32::MAX),
        },
        live: None,
        about: "Ephemeral: how long tombstones stay, so that deleted documents can be looked up on Couchbase ports, \
        and change streams that begin later are told of them. Each takes the memory of a document with its key and no \
        value; there are at most an eighth as many as documents, or as fit into a 32nd of the bucket's memory. 0: a \
        deletion leaves nothing while nobody follows the bucket. Buckets that are made over HTTP have 3 days.",
    },
    BucketSetting {
        key: "sync",
        field: None,
        kept_as: Some("sync"),
        kind: SettingKind::Flag { get: |s| s.persistence.sync, set: |s, v| s.persistence.sync = v },
        live: None,
        about: "Persistent: whether each commit is synced to the disk. false: writes reported as durable \
        survive a crash of the process, NOT of the machine; log, banner and statistics say so.",
    },
    BucketSetting {
        key: "max_ttl_s",
        field: Some("maxTTL"),
        kept_as: Some("max_ttl_s"),
        kind: SettingKind::Count {
            min: 0,
            max: 2_147_483_647,
            unit: "seconds",
            get: |s| u64::from(s.max_ttl_s),
            set: |s, v| s.max_ttl_s = u32::try_from(v).unwrap_or(u32::MAX),
        },
        live: Some(Live {
            read: |bucket, s| s.max_ttl_s = bucket.collections().max_ttl_s(),
            apply: |bucket, s| bucket.set_max_ttl(s.max_ttl_s),
        }),
        about: "Maximum expiry of documents: stores and touches with a later one, or with none, get this one. 0: no \
        maximum. A collection may have its own. Documents that are there keep theirs.",
    },
    BucketSetting {
        key: "durability_min_level",
        field: Some("durabilityMinLevel"),
        kept_as: Some("durability_min_level"),
        kind: SettingKind::Word {
            words: LeastDurability::NAMES,
            get: |s| s.least_durability.name(),
            set: |s, word| s.least_durability = LeastDurability::of_name(word).unwrap_or_default(),
        },
        live: Some(Live {
            read: |bucket, s| s.least_durability = bucket.least_durability(),
            apply: |bucket, s| bucket.set_least_durability(s.least_durability),
        }),
        about: "The durability level that each write on a Couchbase port has at least. The levels that persist need a \
        persistent bucket. Writes on memcached ports have none.",
    },
    BucketSetting {
        key: "replica_number",
        field: Some("replicaNumber"),
        kept_as: Some("replica_number"),
        kind: SettingKind::Count {
            min: 0,
            max: 3,
            unit: "copies",
            get: |s| u64::from(s.labels.replicas),
            set: |s, v| s.labels.replicas = u8::try_from(v).unwrap_or(u8::MAX),
        },
        live: Some(LABELS),
        about: "Stored and returned. A node alone keeps no copies, and is its own majority: durable writes succeed. \
        Roles of vBuckets give a bucket replicas, whatever this says.",
    },
    BucketSetting {
        key: "full_eviction",
        field: None,
        kept_as: Some("full_eviction"),
        kind: SettingKind::Flag { get: |s| s.labels.full_eviction, set: |s, v| s.labels.full_eviction = v },
        live: Some(LABELS),
        about: "Persistent: stored, and returned over HTTP as evictionPolicy \"fullEviction\". Keys stay in memory all \
        the same.",
    },
    BucketSetting {
        key: "replica_index",
        field: Some("replicaIndex"),
        kept_as: Some("replica_index"),
        kind: SettingKind::Flag { get: |s| s.labels.replica_index, set: |s, v| s.labels.replica_index = v },
        live: Some(LABELS),
        about: "Stored and returned: there are no views.",
    },
    BucketSetting {
        key: "storage_backend",
        field: Some("storageBackend"),
        kept_as: Some("storage_backend"),
        kind: SettingKind::Word {
            words: STORAGE_BACKENDS,
            get: |s| s.labels.storage_backend,
            set: |s, word| s.labels.storage_backend = one_of(STORAGE_BACKENDS, word),
        },
        live: Some(LABELS),
        about: "Stored and returned: there is one storage, the journal. Over HTTP a persistent bucket that names none \
        has \"couchstore\", and only \"magma\" has settings of history.",
    },
    BucketSetting {
        key: "conflict_resolution",
        field: Some("conflictResolutionType"),
        kept_as: Some("conflict_resolution"),
        kind: SettingKind::Word {
            words: CONFLICT_RESOLUTIONS,
            get: |s| s.labels.conflict_resolution,
            set: |s, word| s.labels.conflict_resolution = one_of(CONFLICT_RESOLUTIONS, word),
        },
        live: None,
        about: "Which version wins when another cluster's is written with metadata: that of more revisions, or the \
                later one.",
    },
    BucketSetting {
        key: "history_retention_default",
        field: Some("historyRetentionCollectionDefault"),
        kept_as: Some("history_retention_default"),
        kind: SettingKind::Flag {
            get: |s| s.labels.history_default,
            set: |s, v| s.labels.history_default = v,
        },
        live: Some(LABELS),
        about: "Stored and returned: no old versions are kept.",
    },
    BucketSetting {
        key: "history_retention_bytes",
        field: Some("historyRetentionBytes"),
        kept_as: Some("history_retention_bytes"),
        kind: SettingKind::Count {
            min: 0,
            max: i64::MAX as u64,
            unit: "bytes",
            get: |s| s.labels.history_bytes,
            set: |s, v| s.labels.history_bytes = v,
        },
        live: Some(LABELS),
        about: "Stored and returned: no old versions are kept.",
    },
    BucketSetting {
        key: "history_retention_s",
        field: Some("historyRetentionSeconds"),
        kept_as: Some("history_retention_s"),
        kind: SettingKind::Count {
            min: 0,
            max: i64::MAX as u64,
            unit: "seconds",
            get: |s| s.labels.history_s,
            set: |s, v| s.labels.history_s = v,
        },
        live: Some(LABELS),
        about: "Stored and returned: no old versions are kept.",
    },
    BucketSetting {
        key: "cross_cluster_versioning",
        field: Some("enableCrossClusterVersioning"),
        kept_as: Some("cross_cluster_versioning"),
        kind: SettingKind::Flag {
            get: |s| s.labels.cross_cluster_versioning,
            set: |s, v| s.labels.cross_cluster_versioning = v,
        },
        live: Some(LABELS),
        about: "Stored and returned, for tools that copy between clusters and keep a vector of versions in the \
        attribute _vv of each document. Over HTTP it cannot be taken back.",
    },
    BucketSetting {
        key: "version_pruning_h",
        field: Some("versionPruningWindowHrs"),
        kept_as: Some("version_pruning_h"),
        kind: SettingKind::Count {
            min: 1,
            max: u32::MAX as u64,
            unit: "hours",
            get: |s| u64::from(s.labels.version_pruning_h),
            set: |s, v| s.labels.version_pruning_h = u32::try_from(v).unwrap_or(u32::MAX),
        },
        live: Some(LABELS),
        about: "Stored and returned, for the same tools: how long they keep entries of that vector.",
    },
];

/// [`crate::Labels`] are one setting of a bucket.
const LABELS: Live = Live {
    read: |bucket, s| s.labels = bucket.labels(),
    apply: |bucket, s| bucket.set_labels(s.labels.clone()),
};

/// The one of the words that is equal to this one.
fn one_of(words: &'static [&'static str], word: &str) -> &'static str {
    words.iter().find(|known| **known == word).copied().unwrap_or(words[0])
}

impl Bucket {
    /// Returns its settings, with the changes since it was created. (The budget in force is
    /// [`crate::bucket::MemoryFigures::budget`].)
    pub fn settings_in_force(&self) -> BucketSettings {
        let mut settings = self.settings().clone();
        for live in BUCKET_SETTINGS.iter().filter_map(|setting| setting.live.as_ref()) {
            (live.read)(self, &mut settings);
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_reads_what_it_sets_and_takes_its_default() {
        for setting in BUCKET_SETTINGS {
            let mut settings = BucketSettings::default();
            let default = setting.get(&settings);
            assert_eq!(setting.set(&mut settings, default), Ok(()), "{}", setting.key);
            assert_eq!(settings, BucketSettings::default(), "{}", setting.key);
            let another = match setting.kind {
                SettingKind::Count { max, .. } | SettingKind::Bytes { max, .. } => SettingValue::Number(max),
                SettingKind::PowerOfTwo { .. } => SettingValue::Number(2),
                SettingKind::Flag { get, .. } | SettingKind::Switch { get, .. } => {
                    SettingValue::Flag(!get(&settings))
                }
                SettingKind::Word { words, get, .. } => {
                    let other = words.iter().find(|word| **word != get(&settings));
                    SettingValue::Word(other.expect("a choice"))
                }
            };
            assert_eq!(setting.set(&mut settings, another), Ok(()), "{}", setting.key);
            assert_eq!(setting.get(&settings), another, "{}", setting.key);
            // Nothing else has changed.
            assert_eq!(setting.set(&mut settings, default), Ok(()));
            assert_eq!(settings, BucketSettings::default(), "{}", setting.key);
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_not_allowed() {
        let mut settings = BucketSettings::default();
        for setting in BUCKET_SETTINGS {
            let wrong = match setting.kind {
                SettingKind::Count { max, .. } | SettingKind::Bytes { max, .. } => {
                    SettingValue::Number(max + 1)
                }
                SettingKind::PowerOfTwo { .. } => SettingValue::Number(3),
                SettingKind::Flag { .. } | SettingKind::Switch { .. } => SettingValue::Word("maybe"),
                SettingKind::Word { .. } => SettingValue::Word("neither"),
            };
            assert_eq!(setting.set(&mut settings, wrong), Err(NotAllowed), "{}", setting.key);
            assert_eq!(settings, BucketSettings::default());
        }
    }
}
