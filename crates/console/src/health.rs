//! `/health`: what is wrong with the node, for monitoring.
//!
//! ```text
//!                 draining   warming up   stalled   damaged vBuckets   disk full   all is well
//!   /health/live    200         200         200           200             200          200       is it alive? else restart it
//!   /health         503         503         200           200             200          200       does it serve? else wait
//!   /health/ready   503         503         503           503             503          200       does it serve everything?
//! ```
//! Stalled: a thread that serves clients has been at one turn for more than two seconds.
//!
//! The last two have the same body: `status` is the most severe reason or `ok`, `reasons` lists all of them, and
//! `buckets` says what is wrong with which bucket.

use crate::Console;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use kv::Bucket;
use net::Clock;
use serde_json::{Map, Value, json};

/// A thread that serves clients, at one turn for longer than this, is stalled.
const STALLED_US: u64 = 2_000_000;

/// What is wrong with a node, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Draining,
    WarmUp,
    Stalled,
    Damaged,
    DiskFull,
}

impl Reason {
    const fn name(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::WarmUp => "warmup",
            Self::Stalled => "stalled",
            Self::Damaged => "damaged",
            Self::DiskFull => "disk_full",
        }
    }

    /// Returns true if it passes by itself and clients should use another node until then.
    const fn is_not_serving(self) -> bool {
        matches!(self, Self::Draining | Self::WarmUp)
    }
}

/// `GET /health/live`.
pub async fn live() -> Json<Value> {
    Json(json!({ "status": "alive" }))
}

/// `GET /health`.
pub async fn health(State(console): State<Console>) -> (StatusCode, Json<Value>) {
    let (reasons, document) = examine(&console);
    (code(!reasons.iter().any(|reason| reason.is_not_serving())), Json(document))
}

/// `GET /health/ready`.
pub async fn ready(State(console): State<Console>) -> (StatusCode, Json<Value>) {
    let (reasons, document) = examine(&console);
    (code(reasons.is_empty()), Json(document))
}

const fn code(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn examine(console: &Console) -> (Vec<Reason>, Value) {
    let mut reasons = Vec::new();
    let mut about = Map::new();
    if console.control.draining() {
        reasons.push(Reason::Draining);
    }
    if console.node.turns().longest_us(Clock::start().now().mono_us) > STALLED_US {
        reasons.push(Reason::Stalled);
    }
    for bucket in console.node.buckets() {
        let wrong = examine_bucket(&bucket);
        if let Some((found, figures)) = wrong {
            reasons.extend(found);
            about.insert(bucket.name().to_owned(), figures);
        }
    }
    reasons.sort_unstable();
    reasons.dedup();
    let status = reasons.first().map_or("ok", |reason| reason.name());
    let mut document = Map::from_iter([("status".to_owned(), json!(status))]);
    if !reasons.is_empty() {
        let names: Vec<&str> = reasons.iter().map(|reason| reason.name()).collect();
        document.insert("reasons".to_owned(), json!(names));
    }
    if !about.is_empty() {
        document.insert("buckets".to_owned(), Value::Object(about));
    }
    (reasons, Value::Object(document))
}

fn examine_bucket(bucket: &Bucket) -> Option<(Vec<Reason>, Value)> {
    let persistence = bucket.persistence()?;
    let (warm_up, damaged) = (persistence.warm_up(), persistence.damaged().count());
    let is_full = bucket.is_disk_full();
    let wrong =
        [(warm_up.is_running(), Reason::WarmUp), (damaged > 0, Reason::Damaged), (is_full, Reason::DiskFull)];
    let reasons: Vec<Reason> = wrong.iter().filter(|(holds, _)| *holds).map(|(_, reason)| *reason).collect();
    let figures = json!({
        "segments": warm_up.segments,
        "segmentsDone": warm_up.segments_done,
        "vBuckets": warm_up.vbuckets,
        "vBucketsDone": warm_up.vbuckets_done,
        "vBucketsDamaged": damaged,
        "diskFull": is_full,
    });
    (!reasons.is_empty()).then_some((reasons, figures))
}
