//! What is shown of a node at one time: figures from its answers, and rates between two of them.

use crate::json_document::{list, name_of, number, strings, text_of};
use crate::quantity::{bytes, duration, rate, share};
use crate::status::state;
use crate::terminal::shown;
use crate::top::sheet::{Cell, Column, Row};
use serde_json::Value;
use std::collections::HashMap;
use std::time::Instant;

/// What clients ask for, as the node's page counts it.
const OPERATIONS: [&str; 11] = [
    "cmd_get",
    "cmd_subdoc_lookup",
    "cmd_set",
    "cmd_touch",
    "cmd_subdoc_mutation",
    "incr_hits",
    "incr_misses",
    "decr_hits",
    "decr_misses",
    "delete_hits",
    "delete_misses",
];

/// Columns of the table of buckets.
pub const BUCKETS: &[Column] = &[
    Column { title: "Name", columns: 12, is_name: true },
    Column { title: "Ops/s", columns: 9, is_name: false },
    Column { title: "Hits", columns: 9, is_name: false },
    Column { title: "Items", columns: 9, is_name: false },
    Column { title: "Used", columns: 9, is_name: false },
    Column { title: "Resident", columns: 10, is_name: false },
    Column { title: "Budget", columns: 9, is_name: false },
    Column { title: "Evicted/s", columns: 11, is_name: false },
    Column { title: "Queue", columns: 8, is_name: false },
    Column { title: "Kind", columns: 12, is_name: true },
];

/// Columns of the table of threads.
pub const THREADS: &[Column] = &[
    Column { title: "Name", columns: 17, is_name: true },
    Column { title: "CPU", columns: 9, is_name: false },
    Column { title: "Time", columns: 12, is_name: false },
    Column { title: "Id", columns: 9, is_name: false },
];

/// Columns of the table of OVSDB databases.
pub const DATABASES: &[Column] = &[
    Column { title: "Name", columns: 14, is_name: true },
    Column { title: "Rows", columns: 9, is_name: false },
    Column { title: "Memory", columns: 10, is_name: false },
    Column { title: "Used", columns: 9, is_name: false },
    Column { title: "Budget", columns: 10, is_name: false },
];

/// The answers of a node.
#[derive(Debug, Clone)]
pub struct Reading {
    /// Of `GET /health/ready`.
    pub health: Value,
    /// Of `GET /figures`.
    pub figures: Value,
    /// Of `GET /memory`, which is asked less often if it takes long.
    pub memory: Value,
    /// When the memory was read.
    pub memory_at: Instant,
}

/// A part of resident memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What is shown.
#[derive(Debug)]
pub struct Sample {
    /// `ok`, or what is wrong.
    pub health: String,
    /// Whether nothing is wrong.
    pub is_well: bool,
    /// Seconds since the node's start.
    pub up_s: u64,
    /// Operations per second, of all buckets; NaN if unknown.
    pub operations: f64,
    /// The node's figures: names and values.
    pub figures: Vec<(&'static str, String)>,
    /// Bytes of the process.
    pub resident_bytes: u64,
    /// What buckets may take together.
    pub limit_bytes: u64,
    /// Its outermost parts.
    pub parts: Vec<Part>,
    /// The parts of all buckets together.
    pub bucket_parts: Vec<Part>,
    /// When the memory was read.
    pub memory_at: Instant,
    /// Rows of [`BUCKETS`].
    pub buckets: Vec<Row>,
    /// Rows of [`THREADS`].
    pub threads: Vec<Row>,
    /// Rows of [`DATABASES`].
    pub databases: Vec<Row>,
}

impl Sample {
    /// The figures of now; rates since `before`.
    pub fn new(now: &Reading, before: Option<&Reading>) -> Self {
        let period = Period::between(&now.figures, before.map(|before| &before.figures));
        let (memory, figures) = (&now.memory, &now.figures);
        let counters: Vec<Counters<'_>> = names_of(figures).map(|name| period.counters(name)).collect();
        let sum = |of: fn(&Counters<'_>) -> f64| match &period.before {
            Some(_) => counters.iter().map(of).filter(|rate| !rate.is_nan()).sum::<f64>(),
            None => f64::NAN,
        };
        let operations = sum(|counters| counters.operations());
        let hits = sum(|counters| counters.rate("get_hits")) / sum(|counters| counters.rate("cmd_get"));
        let bytes_of = |part: &Value| number(part, "/bytes");
        Self {
            health: state(&now.health),
            is_well: strings(now.health.get("reasons")).is_empty(),
            up_s: number(figures, "/uptimeMs") / 1000,
            operations,
            figures: vec![
                ("Operations/s", rate(operations)),
                ("Hit ratio", share(hits)),
                ("CPU of a core", share(period.cpu(figures, before.map(|before| &before.figures)))),
                ("Connections", number(figures, "/node/connections").to_string()),
                ("Received/s", bytes_per_s(sum(|counters| counters.rate("bytes_read")))),
                ("Sent/s", bytes_per_s(sum(|counters| counters.rate("bytes_written")))),
                ("Evicted/s", rate(sum(|counters| counters.rate("evictions")))),
                ("Client buffers", bytes(number(figures, "/node/client_buffer_bytes"))),
            ],
            resident_bytes: number(memory, "/residentBytes"),
            limit_bytes: number(memory, "/limitBytes"),
            parts: list(memory.get("parts"))
                .map(|part| Part { name: shown(&name_of(part)), bytes: bytes_of(part) })
                .collect(),
            bucket_parts: sums_of_parts(memory),
            memory_at: now.memory_at,
            buckets: counters.iter().map(|counters| bucket(counters, memory)).collect(),
            threads: threads(&period, figures, before.map(|before| &before.figures)),
            databases: holders(memory, "databases").map(database).collect(),
        }
    }
}

fn names_of(figures: &Value) -> impl Iterator<Item = &String> {
    figures.get("buckets").and_then(Value::as_object).into_iter().flat_map(|buckets| buckets.keys())
}

/// The time between two answers, by the node's clock.
struct Period<'a> {
    now: &'a Value,
    /// Not there at the beginning, and after a restart of the node.
    before: Option<&'a Value>,
    seconds: f64,
}

/// The counters of a bucket at both ends of a period.
struct Counters<'a> {
    name: &'a str,
    now: &'a Value,
    before: Option<&'a Value>,
    seconds: f64,
}

impl<'a> Period<'a> {
    fn between(now: &'a Value, before: Option<&'a Value>) -> Self {
        let ms = |figures| number(figures, "/uptimeMs");
        let before = before.filter(|before| ms(before) < ms(now));
        let seconds = before.map_or(f64::NAN, |before| (ms(now) - ms(before)) as f64 / 1e3);
        Self { now, before, seconds }
    }

    fn counters(&self, name: &'a str) -> Counters<'a> {
        let of = |figures: &'a Value| figures.get("buckets")?.get(name);
        let now = of(self.now).unwrap_or(&Value::Null);
        Counters { name, now, before: self.before.and_then(of), seconds: self.seconds }
    }

    /// Cores in use.
    fn cpu(&self, now: &Value, before: Option<&Value>) -> f64 {
        let Some(before) = before.filter(|_| self.before.is_some()) else { return f64::NAN };
        risen(number(now, "/cpuNs") as f64, number(before, "/cpuNs") as f64) / 1e9 / self.seconds
    }
}

/// By how much a counter has risen. One that has fallen was reset, or belongs to a new bucket of the same name: it
/// began at 0.
fn risen(now: f64, before: f64) -> f64 {
    if now < before { now } else { now - before }
}

impl Counters<'_> {
    fn rate(&self, meter: &str) -> f64 {
        let value = |figures: &Value| figures.get(meter).and_then(Value::as_f64).unwrap_or(0.0);
        self.before.map_or(f64::NAN, |before| risen(value(self.now), value(before)) / self.seconds)
    }

    fn operations(&self) -> f64 {
        OPERATIONS.iter().map(|meter| self.rate(meter)).sum()
    }

    fn figure(&self, name: &str) -> f64 {
        self.now.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN)
    }
}

fn bytes_per_s(rate: f64) -> String {
    // A float becomes the nearest integer, and NaN is caught before.
    if rate.is_nan() { share(rate) } else { bytes(rate as u64) }
}

fn cell(figure: f64, text: String) -> Cell {
    Cell { text, figure }
}

fn named(name: &str) -> Cell {
    cell(f64::NAN, shown(name))
}

fn size(value: f64) -> Cell {
    cell(value, bytes_per_s(value))
}

/// The buckets or the databases of `/memory`.
fn holders<'a>(memory: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    list(memory.get("parts"))
        .filter(move |part| text_of(part, "name") == kind)
        .flat_map(|part| list(part.get("parts")))
}

fn bucket(counters: &Counters<'_>, memory: &Value) -> Row {
    let part = holders(memory, "buckets").find(|part| text_of(part, "name") == counters.name);
    let (operations, evicted) = (counters.operations(), counters.rate("evictions"));
    let hits = counters.rate("get_hits") / counters.rate("cmd_get");
    let resident = part.map_or(f64::NAN, |part| number(part, "/bytes") as f64);
    let (items, budget) = (counters.figure("items"), counters.figure("budget_bytes"));
    let queue = counters.figure("unflushed_items");
    let kind = part.and_then(|part| part.pointer("/about/kind")).and_then(Value::as_str).unwrap_or("-");
    vec![
        named(counters.name),
        cell(operations, rate(operations)),
        cell(hits, share(hits)),
        cell(items, rate(items)),
        cell(resident / budget, share(resident / budget)),
        size(resident),
        size(budget),
        cell(evicted, rate(evicted)),
        cell(queue, rate(queue)),
        named(kind),
    ]
}

fn database(part: &Value) -> Row {
    let [rows, memory, budget] =
        ["/about/items", "/bytes", "/about/budgetBytes"].map(|path| number(part, path) as f64);
    vec![
        named(text_of(part, "name")),
        cell(rows, rate(rows)),
        size(memory),
        cell(memory / budget, share(memory / budget)),
        size(budget),
    ]
}

fn threads(period: &Period<'_>, now: &Value, before: Option<&Value>) -> Vec<Row> {
    let of = |thread: &Value| (number(thread, "/id"), number(thread, "/cpuNs"));
    let former: HashMap<u64, u64> =
        list(before.filter(|_| period.before.is_some()).and_then(|before| before.get("threads")))
            .map(of)
            .collect();
    let row = |thread: &Value| {
        let (id, cpu_ns) = of(thread);
        let cpu = former
            .get(&id)
            .map_or(f64::NAN, |then| risen(cpu_ns as f64, *then as f64) / 1e9 / period.seconds);
        vec![
            named(text_of(thread, "name")),
            cell(cpu, share(cpu)),
            cell(cpu_ns as f64, cpu_time(cpu_ns)),
            cell(id as f64, id.to_string()),
        ]
    };
    list(now.get("threads")).map(row).collect()
}

/// Short times of threads are told to the millisecond.
fn cpu_time(cpu_ns: u64) -> String {
    let seconds = cpu_ns / 1_000_000_000;
    if seconds < 60 { format!("{:.3} s", cpu_ns as f64 / 1e9) } else { duration(seconds) }
}

/// The parts of all buckets, by their names, in the order of `/memory`.
fn sums_of_parts(memory: &Value) -> Vec<Part> {
    let mut sums: Vec<Part> = Vec::new();
    for part in holders(memory, "buckets").flat_map(|bucket| list(bucket.get("parts"))) {
        let (name, bytes) = (shown(&name_of(part)), number(part, "/bytes"));
        match sums.iter_mut().find(|sum| sum.name == name) {
            Some(sum) => sum.bytes = sum.bytes.saturating_add(bytes),
            None => sums.push(Part { name, bytes }),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reading(uptime_ms: u64, buckets: Value, cpu_ns: u64) -> Reading {
        let part = json!({"name": "b", "bytes": 50, "about": {"kind": "ephemeral"}, "parts": [
            {"name": "index", "bytes": 20}, {"name": "other", "bytes": 30}]});
        Reading {
            health: json!({ "status": "ok" }),
            figures: json!({"uptimeMs": uptime_ms, "cpuNs": cpu_ns, "node": {"connections": 3}, "buckets": buckets,
                "threads": [{"id": 7, "name": "dm:\u{1b}x", "cpuNs": cpu_ns}]}),
            memory: json!({"residentBytes": 150, "limitBytes": 1000, "parts": [
                {"name": "program", "bytes": 100}, {"name": "buckets", "bytes": 50, "parts": [part]}]}),
            memory_at: Instant::now(),
        }
    }

    fn figure<'a>(sample: &'a Sample, name: &str) -> &'a str {
        sample.figures.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    #[test]
    fn rates_are_by_the_nodes_clock() {
        let then =
            reading(10_000, json!({"b": {"cmd_get": 100, "get_hits": 50, "cmd_set": 5}}), 1_000_000_000);
        let now = reading(
            12_000,
            json!({"b": {"cmd_get": 300, "get_hits": 150, "cmd_set": 25, "budget_bytes": 200},
            "new": {"cmd_get": 9}}),
            2_000_000_000,
        );
        let sample = Sample::new(&now, Some(&then));
        assert_eq!((figure(&sample, "Operations/s"), figure(&sample, "Hit ratio")), ("110", "50.0 %"));
        assert_eq!(figure(&sample, "CPU of a core"), "50.0 %");
        let texts = |row: &Row| row.iter().map(|cell| cell.text.clone()).collect::<Vec<_>>().join("|");
        assert_eq!(texts(&sample.buckets[0]), "b|110|50.0 %|-|25.0 %|50 B|200 B|0|-|ephemeral");
        assert_eq!(texts(&sample.buckets[1]), "new|-|-|-|-|-|-|-|-|-");
        assert_eq!(texts(&sample.threads[0]), "dm:\u{fffd}x|50.0 %|2.000 s|7");
        assert_eq!(sample.bucket_parts.iter().map(|part| part.bytes).sum::<u64>(), 50);
        assert_eq!(sample.parts.iter().map(|part| part.bytes).sum::<u64>(), sample.resident_bytes);
    }

    #[test]
    fn a_counter_that_has_fallen_began_at_0() {
        let then = reading(10_000, json!({"b": {"cmd_get": 1000, "get_hits": 1000}}), 5);
        let now = reading(11_000, json!({"b": {"cmd_get": 10, "get_hits": 5}}), 5);
        let sample = Sample::new(&now, Some(&then));
        assert_eq!((figure(&sample, "Operations/s"), figure(&sample, "Hit ratio")), ("10", "50.0 %"));
    }

    #[test]
    fn there_are_no_rates_at_first_and_after_a_restart() {
        let now = reading(500, json!({"b": {"cmd_get": 10}}), 5);
        let earlier = reading(600, json!({"b": {"cmd_get": 5}}), 5);
        for before in [None, Some(&earlier), Some(&now)] {
            let sample = Sample::new(&now, before);
            for name in ["Operations/s", "Hit ratio", "CPU of a core", "Sent/s"] {
                assert_eq!(figure(&sample, name), "-", "{name}");
            }
        }
    }

    #[test]
    fn anything_may_be_missing() {
        let nothing = || Reading {
            health: json!(1),
            figures: json!([]),
            memory: json!("x"),
            memory_at: Instant::now(),
        };
        let sample = Sample::new(&nothing(), Some(&nothing()));
        assert!(sample.buckets.is_empty() && sample.parts.is_empty() && sample.threads.is_empty());
    }
}
