//! `/metrics`: the table of meters and the memory figures of every bucket, as Prometheus text, or as OpenMetrics text
//! for those who ask for that.
//!
//! Names follow Prometheus's conventions: base units (seconds, bytes) at their end, `_total` behind those of counters.
//!
//! Nothing is kept here: each scrape reads the node.

use crate::buckets::refused;
use crate::{Console, DatabaseFigures, vbuckets};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kv::bucket::MemoryFigures;
use kv::persistence::{FIGURES, PersistenceFigures};
use kv::{Bucket, Meter, Persistence};
use memory::backend::{self, report, report::Figure};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A memory figure's name, help and value.
type MemoryGauge = (&'static str, &'static str, fn(&MemoryFigures) -> u64);

/// Memory figures per bucket.
const MEMORY: &[MemoryGauge] = &[
    ("payload_bytes", "Key and value bytes of all items", |m| m.payload),
    ("metadata_bytes", "Item headers and optional words", |m| m.metadata),
    ("index_bytes", "Index, seqno slots, expiry entries and side tables", |m| m.index),
    ("allocated_bytes", "Blocks, slots and index, rounded to their classes", |m| m.allocated),
    ("slab_bytes", "Slabs, whatever of them is in use", |m| m.slabs),
    ("slot_bytes", "Slots in use of slabs, a part of the allocated bytes", |m| m.slots),
    ("in_flight_bytes", "Values being received or sent, and connection buffers", |m| m.in_flight),
    ("resident_bytes", "Physical memory of the bucket's arena", |m| m.resident),
    ("budget_bytes", "Budget of resident memory", |m| m.budget),
    ("items", "Items stored", |m| m.items),
    ("compressed_values", "Values in memory that are compressed", |m| m.compressed),
    ("compressed_bytes", "Bytes of these, a part of the payload", |m| m.compressed_bytes),
    ("inflated_bytes", "Bytes these would be inflated", |m| m.inflated_bytes),
];

/// A figure about reading a journal: name, help and value.
type WarmUpGauge = (&'static str, &'static str, fn(&Persistence) -> u64);

/// How far journals are read, and what of them cannot be served.
const WARM_UP: &[WarmUpGauge] = &[
    ("warmup_segments", "Segments of the journal at the start", |p| p.warm_up().segments),
    ("warmup_segments_done", "Those of them that are read", |p| p.warm_up().segments_done),
    ("damaged_vbuckets", "vBuckets that are not served because of a damaged journal", |p| {
        p.damaged().count() as u64
    }),
];

/// An OVSDB database's figure: name, help and value.
type DatabaseGauge = (&'static str, &'static str, fn(&DatabaseFigures) -> u64);

/// Figures per OVSDB database.
const DATABASES: &[DatabaseGauge] = &[
    ("rows", "Rows of all tables", |d| d.rows),
    ("record_bytes", "Bytes of the rows, rounded to the allocator's classes", |d| d.record_bytes),
    ("index_bytes", "Bytes of row arrays and indexes", |d| d.index_bytes),
    ("history_bytes", "Bytes of what the last commits replaced", |d| d.history_bytes),
    ("resident_bytes", "Physical memory of the database's arena", |d| d.resident_bytes),
    ("budget_bytes", "Budget of resident memory", |d| d.budget_bytes),
    ("log_bytes", "Bytes of the log file", |d| d.log_bytes),
];

/// `GET /metrics`.
pub async fn scrape(State(console): State<Console>, headers: HeaderMap) -> Response {
    let format = Format::asked(&headers);
    let made = console.measure(move |console| {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(NodeCollector { console }));
        let mut text = String::new();
        encode(&mut text, &registry).map(|()| match format {
            Format::OpenMetrics => text,
            Format::Prometheus => prometheus_text(&text),
        })
    });
    match made.await {
        Ok(Ok(text)) => {
            ([(header::CONTENT_TYPE, format.content_type()), (header::VARY, "Accept")], text).into_response()
        }
        Ok(Err(fmt::Error)) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// A format that scrapers read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Prometheus text 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// OpenMetrics only where it is named, and liked no less than plain text.
    fn asked(headers: &HeaderMap) -> Self {
        let (mut open_metrics, mut plain) = (0.0, 0.0);
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in values.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let mut quality = 1.0;
            let mut is_known = true;
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = value.trim().parse::<f32>().unwrap_or(0.0),
                    "version" => is_known = matches!(value.trim_matches('"'), "1.0.0" | "0.0.1" | "0.0.4"),
                    _ => {}
                }
            }
            if kind.eq_ignore_ascii_case("application/openmetrics-text") && is_known {
                open_metrics = f32::max(open_metrics, quality);
            } else if kind.eq_ignore_ascii_case("text/plain") && is_known {
                plain = f32::max(plain, quality);
            }
        }
        if open_metrics > 0.0 && open_metrics >= plain { Self::OpenMetrics } else { Self::Prometheus }
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// OpenMetrics text as Prometheus text 0.0.4: there the `_total` of a counter is part of the name that HELP and TYPE
/// give, and the end is not marked.
fn prometheus_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + open_metrics.len() / 16);
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, words)) = help.take().filter(|(helped, _)| *helped == name) {
                text.extend(["# HELP ", name, suffix, " ", words, "\n"]);
            }
            text.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with('#') {
            text.extend([line, "\n"]);
        }
    }
    text
}

/// The name of a figure in base units, and whether its value is a number of microseconds that becomes seconds.
fn in_base_units(name: &str) -> (String, bool) {
    if let Some(stem) = name.strip_suffix("_us").or_else(|| name.strip_suffix("_microseconds")) {
        return (format!("{stem}_seconds"), true);
    }
    match name {
        "defragmentation_freed" => (format!("{name}_bytes"), false),
        _ => (name.to_owned(), false),
    }
}

fn seconds(microseconds: u64) -> f64 {
    Duration::from_micros(microseconds).as_secs_f64()
}

struct NodeCollector {
    console: Console,
}

impl fmt::Debug for NodeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeCollector")
    }
}

impl Collector for NodeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let connections = self.console.node.connections();
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
        let memory = self.console.node.client_memory();
        for (name, help, value) in [
            (
                "idle_closed",
                "Client connections closed for having asked for nothing in time",
                connections.idle_kicks,
            ),
            (
                "unfinished_closed",
                "Client connections closed for a request that was not finished in time",
                connections.unfinished,
            ),
            (
                "stuck_closed",
                "Client connections closed for having taken nothing of their answers in time",
                connections.stuck,
            ),
            (
                "cut_off",
                "Client connections closed for what they held while memory was short",
                memory.cut_off(),
            ),
        ] {
            counter(&mut encoder, &format!("dormouse_connections_{name}"), help, value)?;
        }
        gauge(
            &mut encoder,
            "dormouse_client_buffer_bytes",
            "Unfinished requests and unsent answers of clients of the data ports",
            memory.buffer_bytes(),
        )?;
        gauge(
            &mut encoder,
            "dormouse_client_uncharged_bytes",
            "What clients hold and no bucket is charged for: connections, buffers before a login, OVSDB, HTTP",
            memory.outside_bytes(),
        )?;
        let logins = self.console.node.users().login_figures();
        counter(
            &mut encoder,
            "dormouse_logins_failed",
            "Logins that failed, on all ports, refused ones included",
            logins.failed,
        )?;
        counter(
            &mut encoder,
            "dormouse_logins_refused",
            "Logins refused without a look at the password, because of failures before",
            logins.refused,
        )?;
        gauge(
            &mut encoder,
            "dormouse_memory_limit_bytes",
            "Resident memory all buckets may use together",
            self.console.control.memory_bytes(),
        )?;
        if let Some(expiry_s) = self.console.control.certificate_expiry_s() {
            gauge(
                &mut encoder,
                "dormouse_tls_certificate_expiry_timestamp_seconds",
                "When the certificate of the ports with TLS expires, or one of its chain; seconds since 1970",
                expiry_s,
            )?;
        }
        let uptime_s = self.console.started.elapsed().as_secs();
        gauge(&mut encoder, "dormouse_uptime_seconds", "Time since the start", uptime_s)?;
        if let Some(resident) = process_resident_bytes() {
            let help = "Physical memory of the process, connection buffers and code included";
            gauge(&mut encoder, "dormouse_process_resident_bytes", help, resident)?;
        }
        let mut metric = encoder.encode_descriptor(
            "dormouse_allocator",
            "The allocator that serves, as a label",
            None,
            MetricType::Gauge,
        )?;
        constant(1).encode(metric.encode_family(&[("version", backend::version())])?)?;
        for Figure { name, help, value } in report::figures() {
            match name {
                // Told above.
                "process_resident_bytes" => {}
                "process_huge_bytes" => gauge(&mut encoder, "dormouse_process_huge_bytes", help, value)?,
                _ => gauge(&mut encoder, &format!("dormouse_allocator_{name}"), help, value)?,
            }
        }
        let buckets = self.console.node.buckets();
        for meter in Meter::ALL {
            let (name, is_time) = in_base_units(meter.name());
            let name = format!("dormouse_bucket_{name}");
            let mut metric = encoder.encode_descriptor(&name, meter.help(), None, MetricType::Counter)?;
            for bucket in &buckets {
                let label = [("bucket", bucket.name())];
                count(bucket.meter(*meter), is_time, metric.encode_family(&label)?)?;
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
        self.encode_persistence(&mut encoder, &buckets)?;
        self.encode_databases(&mut encoder)
    }
}

impl NodeCollector {
    /// The figures of persistent buckets; none without such a bucket.
    fn encode_persistence(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        buckets: &[Arc<Bucket>],
    ) -> Result<(), fmt::Error> {
        let figures: Vec<(&str, PersistenceFigures)> = vbuckets::execute(&self.console, |cx| {
            buckets
                .iter()
                .filter_map(|bucket| Some((bucket.name(), bucket.persistence_figures(cx)?)))
                .collect()
        });
        if !figures.is_empty() {
            let help = "Buffers of the flushers: what writing needs beside the items themselves";
            gauge(encoder, "dormouse_flush_buffer_bytes", help, self.console.node.flush_buffer_bytes())?;
        }
        for figure in FIGURES.iter().filter(|_| !figures.is_empty()) {
            let (name, is_time) = in_base_units(figure.name);
            let name = format!("dormouse_bucket_{name}");
            let kind = if figure.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(&name, figure.help, None, kind)?;
            for (bucket, figures) in &figures {
                let (value, label) = ((figure.value)(figures), [("bucket", *bucket)]);
                let family = metric.encode_family(&label)?;
                if figure.is_counter {
                    count(value, is_time, family)?;
                } else {
                    constant(value).encode(family)?;
                }
            }
        }
        let persistent = || buckets.iter().filter_map(|bucket| Some((bucket.name(), bucket.persistence()?)));
        for (suffix, help, value) in WARM_UP.iter().filter(|_| !figures.is_empty()) {
            let name = format!("dormouse_bucket_{suffix}");
            let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for (bucket, persistence) in persistent() {
                constant(value(persistence)).encode(metric.encode_family(&[("bucket", bucket)])?)?;
            }
        }
        Ok(())
    }

    fn encode_databases(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let databases = self.console.control.databases();
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

/// Encodes a counter's value.
fn count(value: u64, is_time: bool, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    if is_time {
        ConstCounter::new(seconds(value)).encode(encoder)
    } else {
        ConstCounter::new(value).encode(encoder)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn asked(accept: &str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_str(accept).expect("a value"));
        Format::asked(&headers)
    }

    #[test]
    fn open_metrics_is_for_those_who_ask_for_it() {
        assert_eq!(Format::asked(&HeaderMap::new()), Format::Prometheus);
        for accept in [
            "*/*",
            "text/plain",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "",
            "application/openmetrics-text;q=0",
        ] {
            assert_eq!(asked(accept), Format::Prometheus, "{accept}");
        }
        // Prometheus 2 and 3, and one that prefers plain text.
        for accept in [
            "application/openmetrics-text",
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
             text/plain;version=0.0.4;q=0.4,*/*;q=0.3",
        ] {
            assert_eq!(asked(accept), Format::OpenMetrics, "{accept}");
        }
        assert_eq!(
            asked("text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.5"),
            Format::Prometheus
        );
    }

    #[test]
    fn prometheus_text_names_counters_as_their_samples() {
        let open_metrics = "# HELP a Some.\n# TYPE a counter\na_total{b=\"c\"} 1\n# HELP d Other.\n# TYPE d gauge\nd \
            2\n# EOF\n";
        let text = "# HELP a_total Some.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n# HELP d Other.\n# TYPE d \
            gauge\nd 2\n";
        assert_eq!(prometheus_text(open_metrics), text);
    }

    #[test]
    fn every_figure_is_in_base_units() {
        let meters = Meter::ALL.iter().map(|meter| meter.name());
        for name in meters.chain(FIGURES.iter().map(|figure| figure.name)) {
            let (name, _) = in_base_units(name);
            for part in name.split('_') {
                let unit = [
                    "us",
                    "ms",
                    "ns",
                    "s",
                    "microseconds",
                    "milliseconds",
                    "kb",
                    "mb",
                    "kib",
                    "mib",
                    "minutes",
                    "percent",
                ];
                assert!(!unit.contains(&part), "{name}");
            }
        }
        assert_eq!(in_base_units("compressor_us"), ("compressor_seconds".to_owned(), true));
        assert!((seconds(1_500_000) - 1.5).abs() < f64::EPSILON);
    }
}
