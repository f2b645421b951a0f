//! The figures of a journal by name: `stats persistence`, `stats warmup` and `/metrics` read them from here.

use std::fmt::Arguments;

use super::PersistenceFigures;
use crate::{Bucket, ThreadContext};

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

/// Names by which Couchbase's tools know some of them.
const KNOWN_AS: &[(&str, &str)] = &[
    ("ep_queue_size", "unflushed_items"),
    ("ep_diskqueue_items", "unflushed_items"),
    ("vb_active_queue_size", "unflushed_items"),
    ("ep_total_persisted", "persisted_items"),
    ("ep_commit_num", "journal_commits"),
    ("ep_item_commit_failed", "journal_write_failures"),
    ("ep_db_file_size", "journal_bytes"),
    ("ep_num_non_resident", "ejected_items"),
    ("vb_active_num_non_resident", "ejected_items"),
    ("ep_bg_fetched", "fetched_values"),
    ("ep_bg_fetch_failures", "fetch_failures"),
];

/// By those names, for the general statistics; nothing for an ephemeral bucket.
pub fn known(bucket: &Bucket, cx: &mut ThreadContext, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let Some(figures) = bucket.persistence_figures(cx) else { return };
    for (known_as, name) in KNOWN_AS {
        if let Some(figure) = FIGURES.iter().find(|figure| figure.name == *name) {
            emit(known_as, format_args!("{}", (figure.value)(&figures)));
        }
    }
}

/// `stats persistence`. Returns whether the bucket is persistent.
pub fn persistence(
    bucket: &Bucket,
    cx: &mut ThreadContext,
    emit: &mut dyn FnMut(&str, Arguments<'_>),
) -> bool {
    let (Some(persistence), Some(figures)) = (bucket.persistence(), bucket.persistence_figures(cx)) else {
        return false;
    };
    for figure in FIGURES {
        emit(figure.name, format_args!("{}", (figure.value)(&figures)));
    }
    known(bucket, cx, emit);
    emit("flush_buffer_bytes", format_args!("{}", cx.node.flush_buffer_bytes()));
    let settings = persistence.settings();
    emit("directory", format_args!("{}", persistence.directory().display()));
    emit("sync", format_args!("{}", if settings.sync { "on" } else { "OFF" }));
    emit("flush_interval_ms", format_args!("{}", settings.flush_interval_ms));
    emit("segment_bytes", format_args!("{}", settings.segment_bytes));
    emit("shards", format_args!("{}", persistence.shards()));
    true
}

/// `stats warmup`, by the names Couchbase's tools read.
pub fn warm_up(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let Some(persistence) = bucket.persistence() else {
        return emit("ep_warmup", format_args!("disabled"));
    };
    let figures = persistence.warm_up();
    let running = figures.is_running();
    emit("ep_warmup", format_args!("enabled"));
    emit("ep_warmup_state", format_args!("{}", if running { "loading data" } else { "done" }));
    emit("ep_warmup_thread", format_args!("{}", if running { "running" } else { "complete" }));
    emit("ep_warmup_key_count", format_args!("{}", figures.records));
    emit("ep_warmup_value_count", format_args!("{}", figures.records));
    emit("warmup_segments", format_args!("{}", figures.segments));
    emit("warmup_segments_done", format_args!("{}", figures.segments_done));
    emit("warmup_vbuckets", format_args!("{}", figures.vbuckets));
    emit("warmup_vbuckets_done", format_args!("{}", figures.vbuckets_done));
    emit("warmup_vbuckets_damaged", format_args!("{}", persistence.damaged().count()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_tools_know_names_a_figure() {
        for (known_as, name) in KNOWN_AS {
            assert!(FIGURES.iter().any(|figure| figure.name == *name), "{known_as}");
        }
    }
}
