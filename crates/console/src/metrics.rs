//! `/metrics`: the table of [`statistics`] as Prometheus text, or as OpenMetrics text if the scraper accepts that.
//!
//! Names follow Prometheus's conventions: they end in base units (seconds, bytes), and those of counters in `_total`.
//! Nothing is kept here: each scrape reads the node. `docs/statistics.md` lists everything.

use crate::buckets::refused;
use crate::memory::status_bytes;
use crate::work::Party;
use crate::{Console, DatabaseFigures, vbuckets};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kv::Bucket;
use kv::statistics::{self, Kind, NodeFigures, Statistic, WarmUpFigures};
use memory::backend::{self, report, report::Figure};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Of the process. (A figure that is not known is left out.)
const PROCESS: &[Statistic<ProcessFigures>] = &[
    gauge("memory_limit_bytes", "Resident memory all buckets may use together", |p| p.memory_limit_bytes),
    gauge("uptime_seconds", "Time since the start", |p| p.uptime_s),
];
const RESIDENT: Statistic<u64> = gauge(
    "process_resident_bytes",
    "Physical memory of the process, connection buffers and code included",
    |bytes| *bytes,
);
const CERTIFICATE_EXPIRY: Statistic<u64> = gauge(
    "tls_certificate_expiry_timestamp_seconds",
    "When the certificate of the ports with TLS expires, or one of its chain; seconds since 1970",
    |unix_s| *unix_s,
);

const ACTS: Statistic<u64> = Statistic {
    kind: Kind::Counter,
    ..gauge("changes_over_http", "Changes over HTTP, by what they were about", |count| *count)
};

/// Of an OVSDB database.
const DATABASE: &[Statistic<DatabaseFigures>] = &[
    gauge("rows", "Rows of all tables", |d| d.rows),
    gauge("record_bytes", "Bytes of the rows, rounded to the allocator's classes", |d| d.record_bytes),
    gauge("index_bytes", "Bytes of row arrays and indexes", |d| d.index_bytes),
    gauge("history_bytes", "Bytes of what the last commits replaced", |d| d.history_bytes),
    gauge("history_commits", "Last commits whose changes are kept", |d| d.history_commits),
    gauge("resident_bytes", "Physical memory of the database's arena", |d| d.resident_bytes),
    gauge("budget_bytes", "Budget of resident memory", |d| d.budget_bytes),
    gauge("log_bytes", "Bytes of the log file", |d| d.log_bytes),
    Statistic {
        kind: Kind::Counter,
        ..gauge("commits", "Commits, including those read from the log", |d| d.commits)
    },
];

struct ProcessFigures {
    memory_limit_bytes: u64,
    uptime_s: u64,
}

/// A figure that `stats` does not show.
const fn gauge<S>(metric: &'static str, help: &'static str, value: fn(&S) -> u64) -> Statistic<S> {
    Statistic { metric: Some(metric), shown: &[], kind: Kind::Gauge, help, value }
}

/// `GET /metrics`.
pub async fn scrape(State(console): State<Console>, party: Party, headers: HeaderMap) -> Response {
    let format = Format::asked(&headers);
    let made = console.measure(&party, move |console| {
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

pub fn seconds(microseconds: u64) -> f64 {
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
        let (node, control) = (&self.console.node, &self.console.control);
        encode_table(&mut encoder, "", statistics::NODE, &[([], NodeFigures::of(node))])?;
        if let Some(expiry_s) = control.certificate_expiry_s() {
            encode_table(&mut encoder, "", &[CERTIFICATE_EXPIRY], &[([], expiry_s)])?;
        }
        let acts: Vec<_> =
            self.console.acts.counts().map(|(about, count)| ([("about", about)], count)).collect();
        encode_table(&mut encoder, "", &[ACTS], &acts)?;
        let process = ProcessFigures {
            memory_limit_bytes: control.memory_bytes(),
            uptime_s: self.console.started.elapsed().as_secs(),
        };
        encode_table(&mut encoder, "", PROCESS, &[([], process)])?;
        if let Some(resident) = status_bytes("VmRSS:") {
            encode_table(&mut encoder, "", &[RESIDENT], &[([], resident)])?;
        }
        encode_allocator(&mut encoder)?;
        let buckets = node.buckets();
        for (meter, statistic) in statistics::meters() {
            let values: Vec<_> = buckets.iter().map(|b| ([("bucket", b.name())], b.meter(meter))).collect();
            encode_table(&mut encoder, "bucket_", &[statistic], &values)?;
        }
        backend::refresh();
        let memory: Vec<_> = buckets.iter().map(|b| ([("bucket", b.name())], b.memory_refreshed())).collect();
        encode_table(&mut encoder, "bucket_", statistics::MEMORY, &memory)?;
        let work: Vec<_> = vbuckets::execute(&self.console, |cx| {
            buckets.iter().map(|b| ([("bucket", b.name())], b.work_figures(cx))).collect()
        });
        encode_table(&mut encoder, "bucket_", statistics::WORK, &work)?;
        self.encode_persistence(&mut encoder, &buckets)?;
        let databases = control.databases();
        let databases: Vec<_> =
            databases.iter().map(|database| ([("database", database.name.as_str())], database)).collect();
        if databases.is_empty() {
            Ok(())
        } else {
            encode_table(&mut encoder, "database_", DATABASE, &databases)
        }
    }
}

impl NodeCollector {
    /// The figures of persistent buckets; none without such a bucket.
    fn encode_persistence(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        buckets: &[Arc<Bucket>],
    ) -> Result<(), fmt::Error> {
        let figures: Vec<_> = vbuckets::execute(&self.console, |cx| {
            buckets
                .iter()
                .filter_map(|b| Some(([("bucket", b.name())], b.persistence_figures(cx)?)))
                .collect()
        });
        if figures.is_empty() {
            return Ok(());
        }
        encode_table(encoder, "", statistics::FLUSHERS, &[([], Arc::clone(&self.console.node))])?;
        encode_table(encoder, "bucket_", statistics::PERSISTENCE, &figures)?;
        let warm_up = |b: &'_ Arc<Bucket>| b.persistence().map(WarmUpFigures::of);
        let persistent = buckets.iter().filter_map(|b| Some(([("bucket", b.name())], warm_up(b)?)));
        encode_table(encoder, "bucket_", statistics::WARM_UP, &persistent.collect::<Vec<_>>())
    }
}

/// The allocator's figures. `/metrics` names them as `stats allocator` does.
fn encode_allocator(encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "The allocator in use, as a label";
    let mut metric = encoder.encode_descriptor("dormouse_allocator", help, None, MetricType::Gauge)?;
    constant(1).encode(metric.encode_family(&[("version", backend::version())])?)?;
    for Figure { name, help, value } in report::figures() {
        let scope = match name {
            // Shown with the process.
            "process_resident_bytes" => continue,
            "process_huge_bytes" => "",
            _ => "allocator_",
        };
        let name = format!("dormouse_{scope}{name}");
        constant(value).encode(encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?)?;
    }
    Ok(())
}

fn encode_value<S>(
    statistic: &Statistic<S>,
    source: &S,
    encoder: MetricEncoder<'_>,
) -> Result<(), fmt::Error> {
    let value = (statistic.value)(source);
    match statistic.kind {
        Kind::Gauge => constant(value).encode(encoder),
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        Kind::Microseconds => ConstCounter::new(seconds(value)).encode(encoder),
        Kind::GaugeMicroseconds => ConstGauge::new(seconds(value)).encode(encoder),
    }
}

/// Encodes those rows of a table that have a name in `/metrics`, each with one sample per source.
fn encode_table<S, T: Borrow<S>, const LABELS: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    scope: &str,
    table: &[Statistic<S>],
    sources: &[([(&str, &str); LABELS], T)],
) -> Result<(), fmt::Error> {
    for statistic in table {
        let Some(metric) = statistic.metric else { continue };
        let kind = match statistic.kind {
            Kind::Gauge | Kind::GaugeMicroseconds => MetricType::Gauge,
            Kind::Counter | Kind::Microseconds => MetricType::Counter,
        };
        let name = format!("dormouse_{scope}{metric}");
        let mut metric = encoder.encode_descriptor(&name, statistic.help, None, kind)?;
        match sources {
            // A family without labels would be written with empty braces.
            [(_, source)] if LABELS == 0 => encode_value(statistic, source.borrow(), metric)?,
            _ => {
                for (labels, source) in sources {
                    encode_value(statistic, source.borrow(), metric.encode_family(labels)?)?;
                }
            }
        }
    }
    Ok(())
}

fn constant(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use std::collections::HashSet;

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

    /// Every row of every table: the prefix of its metric, the row without its source.
    fn rows() -> Vec<(&'static str, Statistic<()>)> {
        fn all<S>(
            scope: &'static str,
            table: &[Statistic<S>],
            into: &mut Vec<(&'static str, Statistic<()>)>,
        ) {
            into.extend(table.iter().map(|row| {
                let Statistic { metric, shown, kind, help, .. } = *row;
                (scope, Statistic { metric, shown, kind, help, value: |()| 0 })
            }));
        }
        let mut rows = Vec::new();
        all("", statistics::NODE, &mut rows);
        all("", PROCESS, &mut rows);
        all("", &[RESIDENT, CERTIFICATE_EXPIRY], &mut rows);
        all("", &[ACTS], &mut rows);
        all("", statistics::FLUSHERS, &mut rows);
        let meters: Vec<_> = statistics::meters().map(|(_, row)| row).collect();
        all("bucket_", &meters, &mut rows);
        all("bucket_", statistics::MEMORY, &mut rows);
        all("bucket_", statistics::WORK, &mut rows);
        all("bucket_", statistics::PERSISTENCE, &mut rows);
        all("bucket_", statistics::WARM_UP, &mut rows);
        all("database_", DATABASE, &mut rows);
        rows
    }

    #[test]
    fn every_metric_is_in_base_units_and_has_one_row() {
        const OTHER_UNITS: &[&str] = &[
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
        let mut metrics = HashSet::new();
        for (scope, row) in rows() {
            let Some(metric) = row.metric else { continue };
            assert!(metrics.insert(format!("{scope}{metric}")), "{scope}{metric} has two rows");
            assert!(metric.split('_').all(|part| !OTHER_UNITS.contains(&part)), "{metric}");
            assert_eq!(
                matches!(row.kind, Kind::Microseconds | Kind::GaugeMicroseconds),
                metric.ends_with("_seconds") && row.kind != Kind::Gauge
            );
        }
        assert!((seconds(1_500_000) - 1.5).abs() < f64::EPSILON);
    }

    #[test]
    fn no_list_of_stats_has_a_name_twice() {
        let mut names = HashSet::new();
        for (_, row) in rows() {
            for (group, name) in row.shown {
                assert!(names.insert((group.command(), *name)), "{} has {name} twice", group.command());
            }
        }
    }

    /// `REWRITE=1` writes the page's tables.
    #[test]
    fn the_page_lists_every_statistic() {
        const SCOPES: [(&str, &str); 3] =
            [("", "Node"), ("bucket_", "Buckets"), ("database_", "OVSDB databases")];
        let mut tables = String::new();
        for (scope, title) in SCOPES {
            tables += &format!("\n## {title}\n\n| `/metrics` | kind | `stats` | |\n|---|---|---|---|\n");
            for (_, row) in rows().iter().filter(|(of, _)| *of == scope) {
                let (kind, suffix) = match row.kind {
                    Kind::Gauge | Kind::GaugeMicroseconds => ("gauge", ""),
                    Kind::Counter | Kind::Microseconds => ("counter", "_total"),
                };
                let metric =
                    row.metric.map_or(String::new(), |name| format!("`dormouse_{scope}{name}{suffix}`"));
                let shown: Vec<_> = row
                    .shown
                    .iter()
                    .map(|(group, name)| format!("`{}`: `{name}`", group.command()))
                    .collect();
                tables += &format!("| {metric} | {kind} | {} | {} |\n", shown.join(", "), row.help);
            }
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/statistics.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (intro, _) = page.split_once("\n## ").expect("an introduction");
        let expected = format!("{intro}{tables}");
        if std::env::var_os("REWRITE").is_some() {
            std::fs::write(path, expected).expect("a page");
        } else {
            assert_eq!(page, expected, "docs/statistics.md is not what REWRITE=1 writes");
        }
    }
}
