//! Settings of a node and of its buckets, as the configuration gives them.

pub use memory::HeapChoice;
use wire::couchbase::frame_info::DurabilityLevel;

/// Whether a bucket's data outlives the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketKind {
    /// Memory only.
    Ephemeral,
    /// A journal on disk.
    Persistent,
}

impl BucketKind {
    /// Returns the name that Couchbase has for it: `bucketType` in maps and over HTTP.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Ephemeral => "ephemeral",
            Self::Persistent => "membase",
        }
    }
}

/// How a persistent bucket is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistenceSettings {
    /// Number of journals that the vBuckets are distributed over; fixed when the bucket is created.
    pub shards: u16,
    /// Time between two flushes of plain writes, ms; 0 = as soon as there is anything.
    pub flush_interval_ms: u64,
    /// Length of a segment, bytes.
    pub segment_bytes: u64,
    /// Whether a flush is synced. If not, what is reported as persisted survives the process, not the machine.
    pub sync: bool,
    /// How long tombstones stay in the journal, s.
    pub tombstone_age_s: u32,
}

impl Default for PersistenceSettings {
    fn default() -> Self {
        Self {
            shards: 1,
            flush_interval_ms: 50,
            segment_bytes: 64 << 20,
            sync: true,
            tombstone_age_s: 3 * 24 * 3600,
        }
    }
}

/// What an ephemeral bucket does when its budget is used up. (A persistent one keeps keys, and values on disk.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// Evict documents by frequency and age (`auto_delete`).
    AutoDelete,
    /// Refuse new data (`fail_new_data`).
    FailNewData,
}

/// Whether values are kept compressed, with Snappy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Compression {
    /// Values that arrive compressed are inflated.
    Off,
    /// Values that arrive compressed are stored as they are.
    #[default]
    Passive,
    /// The same, and while memory is short the others are compressed, too.
    Active,
}

impl Compression {
    const ALL: [Self; 3] = [Self::Off, Self::Passive, Self::Active];
    /// All names.
    pub const NAMES: &'static [&'static str] = &["off", "passive", "active"];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the mode of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.name() == name)
    }

    pub(crate) fn of_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

const BUCKET_NAME_MAX: usize = 100;

/// What [`is_bucket_name`] allows, in words.
pub const BUCKET_NAME: &str = "1 to 100 of the characters A-Z a-z 0-9 _ - . %, not beginning with a dot";

/// Returns true if a bucket may have this name.
pub fn is_bucket_name(name: &str) -> bool {
    (1..=BUCKET_NAME_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.%".contains(&byte))
}

/// Settings of one bucket. Those that are independent of others are rows of [`crate::BUCKET_SETTINGS`], which has their
/// allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSettings {
    /// Whether it has a journal.
    pub kind: BucketKind,
    /// Budget of resident memory in bytes when the bucket is created; the one in force later is
    /// [`crate::bucket::MemoryFigures::budget`].
    pub memory_bytes: u64,
    /// Number of vBuckets: a power of two, 1 to 1024.
    pub vbuckets: u16,
    /// What happens when the budget is used up.
    pub eviction: Eviction,
    /// Whether items are moved to give pages back; can be changed later ([`crate::Bucket::set_defragmenter`]).
    pub defragmenter: bool,
    /// Settings of a persistent bucket.
    pub persistence: PersistenceSettings,
    /// How long an ephemeral bucket keeps tombstones, s; 0: none, unless somebody follows.
    pub purge_age_s: u32,
    /// Where items are allocated.
    pub item_heap: HeapChoice,
    /// Whether values are compressed; can be changed later ([`crate::Bucket::set_compression`]).
    pub compression: Compression,
    /// Whether it may be emptied over HTTP; can be changed later ([`crate::Bucket::set_flush_enabled`]).
    pub flush_enabled: bool,
    /// Maximum expiry of documents in seconds; 0: none. Can be changed later ([`crate::Bucket::set_max_ttl`]).
    pub max_ttl_s: u32,
    /// The least durability of writes on Couchbase ports; can be changed later
    /// ([`crate::Bucket::set_least_durability`]).
    pub least_durability: LeastDurability,
    /// What is stored and returned without any effect; can be changed later ([`crate::Bucket::set_labels`]).
    pub labels: Labels,
}

impl BucketSettings {
    /// How long deletions can be looked up, in seconds; 0: not for their own sake.
    pub const fn tombstone_age_s(&self) -> u32 {
        match self.kind {
            BucketKind::Ephemeral => self.purge_age_s,
            BucketKind::Persistent => self.persistence.tombstone_age_s,
        }
    }
}

/// The durability that writes have at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum LeastDurability {
    /// What each write asks for.
    #[default]
    None,
    /// See [`DurabilityLevel::Majority`].
    Majority,
    /// See [`DurabilityLevel::MajorityAndPersistToActive`].
    MajorityAndPersistActive,
    /// See [`DurabilityLevel::PersistToMajority`].
    PersistToMajority,
}

impl LeastDurability {
    const ALL: [Self; 4] =
        [Self::None, Self::Majority, Self::MajorityAndPersistActive, Self::PersistToMajority];
    /// All names.
    pub const NAMES: &'static [&'static str] =
        &["none", "majority", "majorityAndPersistActive", "persistToMajority"];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|least| least.name() == name)
    }

    pub(crate) fn of_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Returns the level; `None` if there is no least one.
    #[inline]
    pub const fn level(self) -> Option<DurabilityLevel> {
        match self {
            Self::None => None,
            Self::Majority => Some(DurabilityLevel::Majority),
            Self::MajorityAndPersistActive => Some(DurabilityLevel::MajorityAndPersistToActive),
            Self::PersistToMajority => Some(DurabilityLevel::PersistToMajority),
        }
    }

    /// Returns true if only a persistent bucket can give it.
    pub const fn needs_disk(self) -> bool {
        matches!(self, Self::MajorityAndPersistActive | Self::PersistToMajority)
    }
}

/// Settings of a cluster, or of other storage: clients set them and read them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// Copies besides the active one. A single node keeps none, and needs none for durable writes.
    pub replicas: u8,
    /// Whether replicas are indexed.
    pub replica_index: bool,
    /// One of [`STORAGE_BACKENDS`].
    pub storage_backend: &'static str,
    /// One of [`CONFLICT_RESOLUTIONS`].
    pub conflict_resolution: &'static str,
    /// Whether a persistent bucket was asked to eject keys, too. They stay in memory.
    pub full_eviction: bool,
    /// Whether new collections keep every version for change streams.
    pub history_default: bool,
    /// Bytes of old versions to keep for change streams; 0: no limit.
    pub history_bytes: u64,
    /// Seconds to keep old versions; 0: no limit.
    pub history_s: u64,
    /// Whether tools that copy between clusters keep a vector of versions with each document. They do so themselves.
    pub cross_cluster_versioning: bool,
    /// Hours after which they drop entries of it.
    pub version_pruning_h: u32,
}

/// The names of storage backends.
pub const STORAGE_BACKENDS: &[&str] = &["undefined", "couchstore", "magma"];
/// The names of conflict resolutions.
pub const CONFLICT_RESOLUTIONS: &[&str] = &["seqno", "lww", "custom"];

impl Default for Labels {
    fn default() -> Self {
        Self {
            replicas: 1,
            replica_index: false,
            storage_backend: STORAGE_BACKENDS[0],
            conflict_resolution: CONFLICT_RESOLUTIONS[0],
            full_eviction: false,
            history_default: false,
            history_bytes: 0,
            history_s: 0,
            cross_cluster_versioning: false,
            version_pruning_h: 30 * 24,
        }
    }
}

impl Default for BucketSettings {
    fn default() -> Self {
        Self {
            kind: BucketKind::Ephemeral,
            memory_bytes: 1 << 30,
            vbuckets: 1024,
            eviction: Eviction::AutoDelete,
            defragmenter: true,
            persistence: PersistenceSettings::default(),
            purge_age_s: 0,
            item_heap: HeapChoice::Auto,
            compression: Compression::default(),
            flush_enabled: false,
            max_ttl_s: 0,
            least_durability: LeastDurability::None,
            labels: Labels::default(),
        }
    }
}

/// Bounds on what clients may send, enforced before memory is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest value on a memcached port, bytes (memcached -I; counts key and header as memcached does).
    pub memcached_item_bytes: usize,
    /// Largest value on a Couchbase port, bytes.
    pub kv_value_bytes: usize,
    /// Longest text line without its data block, bytes (multi-key gets are taken key by key and may be longer).
    pub line_bytes: usize,
    /// Largest binary frame, bytes.
    pub frame_bytes: usize,
    /// Requests executed per connection and turn.
    pub turn_requests: usize,
    /// Unsent output after which a connection is not read any more, bytes.
    pub output_backlog_bytes: usize,
    /// A peer that takes none of its output for this long is dropped, ms.
    pub stuck_peer_ms: u64,
    /// How long to wait for the rest of a request since its last 16 KiB, ms.
    pub unfinished_request_ms: u64,
    /// Most open connections of the node.
    pub connections: usize,
    /// This many of them are reserved for loopback addresses.
    pub loopback_connections: usize,
    /// Time after which a request is kept as a slow one, us.
    pub slow_request_us: u64,
    /// Size from which on a request, or its answer, is kept as a large one, bytes.
    pub large_request_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memcached_item_bytes: 1 << 20,
            kv_value_bytes: 20 << 20,
            line_bytes: 64 << 10,
            frame_bytes: 30 << 20,
            turn_requests: 1024,
            output_backlog_bytes: 1 << 20,
            stuck_peer_ms: 60_000,
            unfinished_request_ms: 60_000,
            connections: 20_000,
            loopback_connections: 16,
            slow_request_us: 10_000,
            large_request_bytes: 1 << 20,
        }
    }
}

/// Settings of the node.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Executing threads that will exist (workers and background threads): shards of the meters.
    pub threads: usize,
    /// Whether the `shutdown` command is honoured.
    pub shutdown_command: bool,
    /// Version string that `version` answers.
    pub version: String,
    /// A random number, fresh for every start: seeds the hashes.
    pub seed: u64,
}
