//! What `stats` tells of a bucket's persistence, by our names and by those that Couchbase's tools know.

use std::fmt::Arguments;

use kv::persistence::FIGURES;
use kv::{Bucket, NodeContext};

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
pub(super) fn known(bucket: &Bucket, cx: &mut NodeContext, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let Some(figures) = bucket.persistence_figures(cx) else { return };
    for (known_as, name) in KNOWN_AS {
        if let Some(figure) = FIGURES.iter().find(|figure| figure.name == *name) {
            emit(known_as, format_args!("{}", (figure.value)(&figures)));
        }
    }
}

/// `stats persistence`. Returns whether the bucket is persistent.
pub(super) fn persistence(
    bucket: &Bucket,
    cx: &mut NodeContext,
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
pub(super) fn warm_up(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
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
