//! `/pools/default/buckets/B/stats`: a bucket's figures by the names that Couchbase's tools and exporters read.
//!
//! Nothing is recorded: there is one sample, of now. Event counters are totals, not rates.

use crate::buckets::{refused, unix_s};
use crate::vbuckets::execute;
use crate::work::Party;
use crate::{Console, Refusal};
use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use kv::statistics::{self, Group, Statistic};
use kv::{Bucket, BucketKind};
use serde_json::{Map, Value, json};

/// The lists with these names.
const GROUPS: [Group; 2] = [Group::General, Group::Couchbase];

/// The handler.
pub async fn of_bucket(State(console): State<Console>, party: Party, Path(name): Path<String>) -> Response {
    let sample = move |console: Console| {
        let bucket = console.node.bucket(&name)?;
        let at_ms = unix_s() * 1000;
        let mut samples = samples(&console, &bucket);
        samples.insert("timestamp".into(), json!([at_ms]));
        Some(json!({
            "op": {
                "samples": samples,
                "samplesCount": 1,
                "isPersistent": bucket.settings().kind == BucketKind::Persistent,
                "lastTStamp": at_ms,
                "interval": 1000,
            },
            "hot_keys": [],
        }))
    };
    match console.measure(&party, sample).await {
        Ok(Some(document)) => Json(document).into_response(),
        Ok(None) => refused(Refusal::Missing),
        Err(refusal) => refused(refusal),
    }
}

fn samples(console: &Console, bucket: &Bucket) -> Map<String, Value> {
    let mut samples = Map::new();
    add(statistics::MEMORY, &bucket.memory(), &mut samples);
    for (meter, statistic) in statistics::meters() {
        for name in GROUPS.iter().flat_map(|group| statistic.names(*group)) {
            samples.insert(name.into(), json!([bucket.meter(meter)]));
        }
    }
    if let Some(figures) = execute(console, |cx| bucket.persistence_figures(cx)) {
        add(statistics::PERSISTENCE, &figures, &mut samples);
    }
    samples
}

fn add<S>(table: &[Statistic<S>], source: &S, samples: &mut Map<String, Value>) {
    for statistic in table {
        for name in GROUPS.iter().flat_map(|group| statistic.names(*group)) {
            samples.insert(name.into(), json!([(statistic.value)(source)]));
        }
    }
}
