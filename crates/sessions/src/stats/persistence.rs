//! What `stats` shows of a bucket's persistence.

use std::fmt::Arguments;

use kv::statistics::{self, Group, WarmUpFigures};
use kv::{Bucket, NodeContext};

use super::show;

/// `stats persistence`. Returns whether the bucket is persistent.
pub(super) fn persistence(
    bucket: &Bucket,
    cx: &mut NodeContext,
    emit: &mut dyn FnMut(&str, Arguments<'_>),
) -> bool {
    let (Some(persistence), Some(figures)) = (bucket.persistence(), bucket.persistence_figures(cx)) else {
        return false;
    };
    show(Group::Persistence, statistics::PERSISTENCE, &figures, emit);
    show(Group::Persistence, statistics::FLUSHERS, &cx.node, emit);
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
    let figures = WarmUpFigures::of(persistence);
    let running = figures.is_running();
    emit("ep_warmup", format_args!("enabled"));
    emit("ep_warmup_state", format_args!("{}", if running { "loading data" } else { "done" }));
    emit("ep_warmup_thread", format_args!("{}", if running { "running" } else { "complete" }));
    show(Group::WarmUp, statistics::WARM_UP, &figures, emit);
}
