//! The figures of a journal. [`crate::statistics`] has their names.

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
    /// Those of them that are not needed any more, estimated.
    pub superfluous_bytes: u64,
    /// What compaction still has to read and write before it is as far as flushing.
    pub debt_bytes: u64,
    /// Whether the disk is full.
    pub disk_full: bool,
}
