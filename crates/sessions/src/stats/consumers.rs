//! `stats dcp` and `stats dcpagg`: the connections that follow the bucket.

use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv::Bucket;
use kv::consumers::Consumer;

/// Ends the part of a name that names its kind.
const SEPARATOR: &str = ":";

/// Totals of connections.
#[derive(Default)]
struct Totals {
    count: u64,
    items_sent: u64,
    items_remaining: u64,
    bytes: u64,
}

impl Totals {
    fn add(&mut self, consumer: &Consumer, remaining: u64) {
        self.count += 1;
        self.items_sent += get(&consumer.figures.items_sent);
        self.items_remaining += remaining;
        self.bytes += get(&consumer.figures.bytes_sent);
    }
}

fn get(figure: &AtomicU64) -> u64 {
    figure.load(Relaxed)
}

/// Seqnos that a connection's streams have still to be sent: at least as many as there are documents.
fn remaining(bucket: &Bucket, consumer: &Consumer) -> u64 {
    let streams = bucket.streams_of(consumer);
    streams.iter().map(|(_, figures)| figures.high_seqno.saturating_sub(figures.cursor)).sum()
}

/// `stats dcp`: every connection and its streams.
pub(super) fn each(bucket: &Bucket, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let mut totals = Totals::default();
    for consumer in bucket.consumers() {
        totals.add(&consumer, remaining(bucket, &consumer));
        one(bucket, &consumer, emit);
    }
    emit("ep_dcp_count", format_args!("{}", totals.count));
    emit("ep_dcp_producer_count", format_args!("{}", totals.count));
    emit("ep_dcp_consumer_count", format_args!("0"));
    emit("ep_dcp_items_sent", format_args!("{}", totals.items_sent));
    emit("ep_dcp_items_remaining", format_args!("{}", totals.items_remaining));
    emit("ep_dcp_total_bytes", format_args!("{}", totals.bytes));
}

fn one(bucket: &Bucket, consumer: &Consumer, emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let name = String::from_utf8_lossy(&consumer.name);
    let (figures, streams) = (&consumer.figures, bucket.streams_of(consumer));
    let mut show = |what: &str, value: Arguments<'_>| emit(&format!("eq_dcpq:{name}:{what}"), value);
    show("type", format_args!("producer"));
    show("user", format_args!("{}", consumer.user));
    show("created", format_args!("{}", consumer.created_s));
    show("pending_disconnect", format_args!("{}", consumer.is_replaced()));
    show("num_streams", format_args!("{}", streams.len()));
    show("items_sent", format_args!("{}", get(&figures.items_sent)));
    show("total_bytes_sent", format_args!("{}", get(&figures.bytes_sent)));
    show("total_acked_bytes", format_args!("{}", get(&figures.bytes_acknowledged)));
    show("unacked_bytes", format_args!("{}", get(&figures.bytes_unacknowledged)));
    let buffer_bytes = get(&figures.buffer_bytes);
    show("flow_control", format_args!("{}", if buffer_bytes > 0 { "enabled" } else { "disabled" }));
    show("max_buffer_bytes", format_args!("{buffer_bytes}"));
    let interval_s = get(&figures.noop_interval_s);
    show("noop_enabled", format_args!("{}", interval_s > 0));
    show("noop_tx_interval", format_args!("{interval_s}"));
    for (vb, stream) in streams {
        let vb = vb.0;
        show(&format!("stream_{vb}_last_sent_seqno"), format_args!("{}", stream.cursor));
        show(&format!("stream_{vb}_last_sent_snap_end_seqno"), format_args!("{}", stream.snapshot_end));
        let remaining = stream.high_seqno.saturating_sub(stream.cursor);
        show(&format!("stream_{vb}_items_remaining"), format_args!("{remaining}"));
    }
}

/// `stats dcpagg`: totals of the connections whose names begin alike, up to a separator.
pub(super) fn totals(bucket: &Bucket, arguments: &[u8], emit: &mut dyn FnMut(&str, Arguments<'_>)) {
    let given = arguments.split(|byte| *byte == b' ').nth(1).and_then(|word| std::str::from_utf8(word).ok());
    let separator = given.filter(|word| !word.is_empty()).unwrap_or(SEPARATOR);
    let mut kinds = BTreeMap::<String, Totals>::new();
    let mut all = Totals::default();
    for consumer in bucket.consumers() {
        let name = String::from_utf8_lossy(&consumer.name);
        let kind = name.split(separator).next().unwrap_or_default().to_owned();
        let remaining = remaining(bucket, &consumer);
        kinds.entry(kind).or_default().add(&consumer, remaining);
        all.add(&consumer, remaining);
    }
    for (kind, totals) in std::iter::once((":total".to_owned(), all)).chain(kinds) {
        emit(&format!("{kind}:count"), format_args!("{}", totals.count));
        emit(&format!("{kind}:producer_count"), format_args!("{}", totals.count));
        emit(&format!("{kind}:items_sent"), format_args!("{}", totals.items_sent));
        emit(&format!("{kind}:items_remaining"), format_args!("{}", totals.items_remaining));
        emit(&format!("{kind}:total_bytes"), format_args!("{}", totals.bytes));
    }
}
