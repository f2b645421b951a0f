//! `/events`: what the node is doing, as server-sent events, for the page at `/`.
//!
//! ```text
//!   history   once: where memory lay during the last hour, as far as anybody was looking
//!   figures   each second: counters and gauges of the node, its threads and its buckets, by their names in /metrics
//!   memory    every few seconds: as `/memory`
//! ```
//!
//! All streams share one sampler, which runs while there is a stream: a node that nobody looks at computes nothing.

use crate::Console;
use crate::admission::Client;
use crate::buckets::refused;
use crate::login::Identity;
use crate::memory::{Resident, resident};
use crate::work::Party;
use crate::{metrics, vbuckets};
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream;
use kv::statistics::{self, Kind, NodeFigures, Statistic, WarmUpFigures};
use kv::users::roles::Rights;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};

/// How often figures are read.
const TICK: Duration = Duration::from_secs(1);
/// Memory is read this often, or less often: this multiple of the time that a reading takes.
const MEMORY_LEAST: Duration = Duration::from_secs(2);
const MEMORY_MULTIPLE: u32 = 300;
/// The history: a point in so many seconds, for an hour.
const POINT_EVERY_MS: u64 = 5_000;
const POINTS_MAX: usize = 720;

/// The sampler's state.
#[derive(Debug)]
pub struct Live {
    latest: watch::Sender<Arc<Frame>>,
    is_running: Mutex<bool>,
    history: Mutex<VecDeque<[u64; 4]>>,
}

impl Default for Live {
    fn default() -> Self {
        let (latest, _) = watch::channel(Arc::default());
        Self { latest, is_running: Mutex::default(), history: Mutex::default() }
    }
}

/// What was read last, as JSON.
#[derive(Debug, Default)]
struct Frame {
    figures: String,
    memory: Arc<str>,
    /// Number of the reading of memory; 0 before the first.
    memory_number: u64,
}

impl Live {
    fn history(&self) -> String {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        json!({ "names": ["atMs", "residentBytes", "bucketBytes", "databaseBytes"], "points": *history })
            .to_string()
    }

    fn note(&self, point: [u64; 4]) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let [at_ms, ..] = point;
        // The clock may have been set back.
        history.retain(|[past_ms, ..]| *past_ms <= at_ms);
        if history.back().is_some_and(|[last_ms, ..]| at_ms < last_ms.saturating_add(POINT_EVERY_MS)) {
            return;
        }
        while history.len() >= POINTS_MAX
            || history
                .front()
                .is_some_and(|[first_ms, ..]| first_ms + POINT_EVERY_MS * (POINTS_MAX as u64) < at_ms)
        {
            history.pop_front();
        }
        history.push_back(point);
    }

    /// Starts the sampler, unless it runs.
    fn start(self: &Arc<Self>, console: &Console) {
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_running {
            *is_running = true;
            tokio::spawn(sample(Arc::clone(self), console.clone()));
        }
    }

    /// Notes that the sampler ends, unless somebody is looking.
    fn may_end(&self) -> bool {
        let mut is_running = self.is_running.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = self.latest.receiver_count() == 0;
        *is_running = !ends;
        ends
    }
}

async fn sample(live: Arc<Live>, console: Console) {
    let mut memory_due = Instant::now();
    let mut frame = Arc::new(Frame::default());
    while !live.may_end() {
        let reads_memory = Instant::now() >= memory_due;
        let read = console.measure(&Party::Node, move |console| {
            let begun = Instant::now();
            let memory = reads_memory.then(|| (resident(&console), begun.elapsed()));
            (figures(&console), memory)
        });
        if let Ok((figures, memory)) = read.await {
            let memory = memory.map(|(memory, took)| {
                memory_due = Instant::now() + MEMORY_LEAST.max(took * MEMORY_MULTIPLE);
                live.note(memory.point());
                Arc::from(serde_json::to_string(&memory).unwrap_or_default())
            });
            let memory_number = frame.memory_number + u64::from(memory.is_some());
            let memory = memory.unwrap_or_else(|| Arc::clone(&frame.memory));
            frame = Arc::new(Frame { figures: figures.to_string(), memory, memory_number });
            live.latest.send_replace(Arc::clone(&frame));
        }
        tokio::time::sleep(TICK).await;
    }
}

/// `GET /figures`.
pub async fn show_figures(State(console): State<Console>, party: Party) -> Response {
    match console.measure(&party, |console| figures(&console)).await {
        Ok(figures) => Json(figures).into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `GET /events`.
pub async fn events(
    State(console): State<Console>,
    ConnectInfo(client): ConnectInfo<Client>,
    Extension(identity): Extension<Identity>,
    method: Method,
) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/event-stream")];
    if method == Method::HEAD {
        return headers.into_response();
    }
    if !client.connection.begin_stream() {
        return (StatusCode::SERVICE_UNAVAILABLE, "There are too many streams.\r\n").into_response();
    }
    let live = Arc::clone(&console.live);
    let frames = live.latest.subscribe();
    live.start(&console);
    let history = Some(event("history", &live.history()));
    let is_sent = Arc::new(Semaphore::new(1));
    let state = (console, frames, history, 0);
    let events = stream::unfold(state, move |(console, mut frames, history, mut memory_sent)| {
        let (identity, is_sent, connection) =
            (identity.clone(), Arc::clone(&is_sent), client.connection.clone());
        async move {
            // The semaphore is never closed. The permit is released with the event.
            let permit = is_sent.acquire_owned().await.ok()?;
            let text = match history {
                Some(history) => history,
                None => {
                    frames.changed().await.ok()?;
                    if !identity.now(&console)?.roles().on_node().contain(Rights::SEE) {
                        return None;
                    }
                    let frame = Arc::clone(&frames.borrow_and_update());
                    let mut text = event("figures", &frame.figures);
                    if frame.memory_number != memory_sent {
                        memory_sent = frame.memory_number;
                        text += &event("memory", &frame.memory);
                    }
                    text
                }
            };
            let bytes = connection.charge(Bytes::from(text), permit);
            Some((Ok::<_, Infallible>(bytes), (console, frames, None, memory_sent)))
        }
    });
    (headers, Body::from_stream(events)).into_response()
}

/// A server-sent event. JSON on one line has no line ends.
fn event(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

fn figures(console: &Console) -> Value {
    let buckets = console.node.buckets();
    let (mut work, mut persistence) = (BTreeMap::new(), BTreeMap::new());
    vbuckets::execute(console, |cx| {
        work.extend(buckets.iter().map(|b| (b.name(), b.work_figures(cx))));
        let figures = buckets.iter().filter_map(|b| Some((b.name(), b.persistence_figures(cx)?)));
        persistence.extend(figures);
    });
    let buckets = buckets.iter().map(|bucket| {
        let mut figures = table(statistics::MEMORY, &bucket.accounts());
        // Only a measurement tells: `/memory` has it.
        figures.remove("resident_bytes");
        for (meter, statistic) in statistics::meters() {
            let figure = shown(statistic.kind, bucket.meter(meter));
            figures.extend(statistic.metric.map(|name| (name.to_owned(), figure)));
        }
        if let Some(work) = work.get(bucket.name()) {
            figures.extend(table(statistics::WORK, work));
        }
        if let Some(persistence) = persistence.get(bucket.name()) {
            figures.extend(table(statistics::PERSISTENCE, persistence));
        }
        if let Some(persistence) = bucket.persistence() {
            figures.extend(table(statistics::WARM_UP, &WarmUpFigures::of(persistence)));
        }
        (bucket.name().to_owned(), Value::Object(figures))
    });
    json!({
        "uptimeMs": u64::try_from(console.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "cpuNs": process_cpu_ns(),
        "node": table(statistics::NODE, &NodeFigures::of(&console.node)),
        "threads": threads(),
        "latency": console.latency.read(console.node.requests()),
        "buckets": buckets.collect::<Map<_, _>>(),
    })
}

fn table<S>(table: &[Statistic<S>], source: &S) -> Map<String, Value> {
    let figure = |row: &Statistic<S>| Some((row.metric?.to_owned(), shown(row.kind, (row.value)(source))));
    table.iter().filter_map(figure).collect()
}

/// In the units of `/metrics`.
fn shown(kind: Kind, value: u64) -> Value {
    match kind {
        Kind::Microseconds | Kind::GaugeMicroseconds => metrics::seconds(value).into(),
        Kind::Counter | Kind::Gauge => value.into(),
    }
}

/// CPU time of the process, of threads that have ended too.
fn process_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}

/// CPU time of each thread since its start, nanoseconds, by the kernel; in the order of their ids.
fn threads() -> Vec<Value> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let times = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        let cpu_ns = times.split(' ').next()?.parse::<u64>().ok()?;
        Some((id, json!({ "id": id, "name": name.trim_end(), "cpuNs": cpu_ns })))
    };
    let mut threads: Vec<_> = entries.filter_map(of).collect();
    threads.sort_by_key(|(id, _)| *id);
    threads.into_iter().map(|(_, thread)| thread).collect()
}

impl Resident {
    /// Its point in the history.
    fn point(&self) -> [u64; 4] {
        let [at_ms, resident] = [self.at_ms, self.resident_bytes];
        [at_ms, resident, self.bytes_of("buckets"), self.bytes_of("databases")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_has_a_point_in_five_seconds_for_an_hour() {
        let live = Live::default();
        for second in 0..7200 {
            live.note([second * 1000, second, 0, 0]);
        }
        let history: Value = serde_json::from_str(&live.history()).unwrap();
        let points = history["points"].as_array().unwrap();
        assert_eq!(
            (points.len(), &points[0][0], &points[719][0]),
            (720, &json!(3_600_000), &json!(7_195_000))
        );
        // Nobody looked for a while: what is older than an hour is gone.
        live.note([9_000_000, 1, 0, 0]);
        let history: Value = serde_json::from_str(&live.history()).unwrap();
        assert_eq!(history["points"][0][0], json!(5_400_000));
        live.note([6_000_000, 1, 0, 0]);
        let history: Value = serde_json::from_str(&live.history()).unwrap();
        let points = history["points"].as_array().unwrap();
        assert_eq!(points.last().unwrap()[0], json!(6_000_000), "the clock was set back");
    }

    #[test]
    fn every_thread_has_a_time() {
        let threads = threads();
        assert!(threads.iter().any(|thread| thread["cpuNs"].as_u64().unwrap() > 0), "{threads:?}");
    }
}
