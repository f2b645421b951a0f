//! The figures of a journal by name: `stats persistence`, `stats warmup` and `/metrics` read them from here.

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

/// A figure of a persistent bucket.
pub struct PersistenceFigure {
    /// Its name in `stats persistence`; `/metrics` puts `dormouse_bucket_` before it.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
    /// It only rises.
    pub is_counter: bool,
    /// Its value.
    pub value: fn(&PersistenceFigures) -> u64,
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    value: fn(&PersistenceFigures) -> u64,
) -> PersistenceFigure {
    PersistenceFigure { name, help, is_counter: false, value }
}

const fn counter(
    name: &'static str,
    help: &'static str,
    value: fn(&PersistenceFigures) -> u64,
) -> PersistenceFigure {
    PersistenceFigure { name, help, is_counter: true, value }
}

/// All figures.
pub const FIGURES: &[PersistenceFigure] = &[
    gauge("unflushed_items", "Items that wait to be written", |f| f.unflushed_items),
    counter("persisted_items", "Items written to the journal", |f| f.persisted_items),
    counter("journal_commits", "Commits of the journal, each with one sync unless sync is off", |f| {
        f.commits
    }),
    counter("journal_syncs", "Syncs of the journal's files and directories", |f| f.syncs),
    counter("journal_sync_microseconds", "Time that those syncs took together", |f| f.sync_us),
    counter("journal_written_bytes", "Bytes written to the journal", |f| f.written_bytes),
    counter("journal_write_failures", "Flushes that failed and were tried again", |f| f.failures),
    gauge("journal_segments", "Segments of the journal", |f| f.segments),
    gauge("journal_bytes", "Bytes of the journal's segments", |f| f.journal_bytes),
    counter("compacted_segments", "Segments that compaction has removed", |f| f.compacted_segments),
    counter("compacted_bytes", "Bytes of the segments that compaction has removed", |f| f.compacted_bytes),
    gauge("ejected_items", "Items whose value is on disk only", |f| f.ejected_items),
    gauge("ejected_bytes", "Bytes of values that are on disk only", |f| f.ejected_bytes),
    counter("fetched_values", "Values read back from disk for clients", |f| f.fetched),
    counter("fetch_failures", "Values that could not be read from disk", |f| f.fetch_failures),
    gauge("disk_full", "1 while writes are refused for want of space on the disk", |f| {
        u64::from(f.disk_full)
    }),
];
