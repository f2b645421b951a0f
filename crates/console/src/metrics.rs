//! `/metrics`: the table of meters and the memory figures of every bucket, as OpenMetrics text.
//!
//! Nothing is kept here: each scrape reads the node.

use crate::{Console, Control, DatabaseFigures};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use kv::bucket::MemoryFigures;
use kv::{Meter, Node};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A memory figure's name, help and value.
type MemoryGauge = (&'static str, &'static str, fn(&MemoryFigures) -> u64);

/// Memory figures per bucket.
const MEMORY: &[MemoryGauge] = &[
    ("payload_bytes", "Key and value bytes of all items", |m| m.payload),
    ("metadata_bytes", "Item headers and optional words", |m| m.metadata),
    ("index_bytes", "Index, seqno slots, expiry entries and side tables", |m| m.index),
    ("allocated_bytes", "Bytes handed out by the allocator, rounded to its classes", |m| m.allocated),
    ("in_flight_bytes", "Values being received or sent, and connection buffers", |m| m.in_flight),
    ("resident_bytes", "Physical memory of the bucket's arena", |m| m.resident),
    ("budget_bytes", "Budget of resident memory", |m| m.budget),
    ("items", "Items stored", |m| m.items),
];

/// An OVSDB database's figure: name, help and value.
type DatabaseGauge = (&'static str, &'static str, fn(&DatabaseFigures) -> u64);

/// Figures per OVSDB database.
const DATABASES: &[DatabaseGauge] = &[
    ("rows", "Rows of all tables", |d| d.rows),
    ("record_bytes", "Bytes of the rows, rounded to the allocator's classes", |d| d.record_bytes),
    ("index_bytes", "Bytes of row arrays and indexes", |d| d.index_bytes),
    ("history_bytes", "Bytes of what the last commits replaced", |d| d.history_bytes),
    ("budget_bytes", "Budget of memory", |d| d.budget_bytes),
    ("log_bytes", "Bytes of the log file", |d| d.log_bytes),
];

/// `GET /metrics`.
pub async fn scrape(State(console): State<Console>) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(NodeCollector {
        node: console.node,
        control: console.control,
        started: console.started,
    }));
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

struct NodeCollector {
    node: Arc<Node>,
    control: Arc<dyn Control>,
    started: Instant,
}

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeCollector")
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let connections = self.node.connections();
        gauge(&mut encoder, "dormouse_connections", "Open client connections", connections.current)?;
        counter(
            &mut encoder,
            "dormouse_connections_accepted",
            "Client connections accepted since the start",
            connections.total,
        )?;
        counter(
            &mut encoder,
            "dormouse_connections_refused",
            "Client connections refused at the limit or for want of file descriptors",
            connections.rejected,
        )?;
        gauge(
            &mut encoder,
            "dormouse_memory_limit_bytes",
            "Resident memory all buckets may use together",
            self.control.memory_bytes(),
        )?;
        let uptime_s = self.started.elapsed().as_secs();
        gauge(&mut encoder, "dormouse_uptime_seconds", "Time since the start", uptime_s)?;
        if let Some(resident) = process_resident_bytes() {
            let help = "Physical memory of the process, connection buffers and code included";
            gauge(&mut encoder, "dormouse_process_resident_bytes", help, resident)?;
        }
        let buckets = self.node.buckets();
        for meter in Meter::ALL {
            let name = format!("dormouse_bucket_{}", meter.name());
            let mut metric = encoder.encode_descriptor(&name, meter.help(), None, MetricType::Counter)?;
            for bucket in &buckets {
                ConstCounter::new(bucket.meter(*meter))
                    .encode(metric.encode_family(&[("bucket", bucket.name())])?)?;
            }
        }
        let figures: Vec<_> = buckets.iter().map(|bucket| (bucket.name(), bucket.memory())).collect();
        for (suffix, help, value) in MEMORY {
            let name = format!("dormouse_bucket_{suffix}");
            let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for (bucket, figures) in &figures {
                constant(value(figures)).encode(metric.encode_family(&[("bucket", *bucket)])?)?;
            }
        }
        self.encode_databases(&mut encoder)
    }
}

impl NodeCollector {
    fn encode_databases(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let databases = self.control.databases();
        if databases.is_empty() {
            return Ok(());
        }
        for (suffix, help, value) in DATABASES {
            let name = format!("dormouse_database_{suffix}");
            let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for database in &databases {
                let label = [("database", database.name.as_str())];
                constant(value(database)).encode(metric.encode_family(&label)?)?;
            }
        }
        let name = "dormouse_database_commits";
        let help = "Commits, with those that were read from the log";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for database in &databases {
            let label = [("database", database.name.as_str())];
            ConstCounter::new(database.commits).encode(metric.encode_family(&label)?)?;
        }
        Ok(())
    }
}

/// `VmRSS` of this process; `None` where the kernel does not tell.
fn process_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

fn constant(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
    let metric: MetricEncoder<'_> = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    constant(value).encode(metric)
}

fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}
