//! Settings of a node and of its buckets, as the configuration gives them.

/// Whether a bucket's data outlives the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketKind {
    /// Memory only.
    Ephemeral,
}

/// What an ephemeral bucket does when its budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// Evict documents by frequency and age (`auto_delete`).
    AutoDelete,
    /// Refuse new data (`fail_new_data`).
    FailNewData,
}

/// Settings of one bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSettings {
    /// Ephemeral (persistent buckets come with the journal).
    pub kind: BucketKind,
    /// Budget of resident memory in bytes.
    pub memory_bytes: u64,
    /// Number of vBuckets: a power of two, 1 to 1024.
    pub vbuckets: u16,
    /// What happens at the budget.
    pub eviction: Eviction,
}

impl Default for BucketSettings {
    fn default() -> Self {
        Self {
            kind: BucketKind::Ephemeral,
            memory_bytes: 1 << 30,
            vbuckets: 1024,
            eviction: Eviction::AutoDelete,
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
    /// A peer that takes none of its output for so long is dropped, ms.
    pub stuck_peer_ms: u64,
    /// Open connections of the node.
    pub connections: usize,
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
            connections: 20_000,
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
