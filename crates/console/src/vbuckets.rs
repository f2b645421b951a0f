//! State and chains of a vBucket over HTTP, as in SET_VBUCKET and GET_VBUCKET.

use crate::buckets::{invalid, missing, refused};
use crate::{Console, Refusal};
use axum::Json;
use axum::extract::{Form, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kv::{Bucket, NodeContext, Now, Topology, VbId, VbState};
use parking_lot::MutexGuard;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// `GET /pools/default/buckets/B/vbuckets/N`.
pub async fn show(State(console): State<Console>, Path((name, vb)): Path<(String, u16)>) -> Response {
    let Some((bucket, vb)) = find(&console, &name, vb) else { return missing() };
    let (state, topology) = execute(&console, |cx| bucket.vbucket_setting(cx, vb));
    let topology: Value = serde_json::from_str(&topology.to_string()).unwrap_or_default();
    Json(json!({ "state": state.name(), "topology": topology })).into_response()
}

/// `POST /pools/default/buckets/B/vbuckets/N`: a form with `state`, by its name, and `topology`, as JSON. A field that
/// is not given stays unchanged.
pub async fn set(
    State(console): State<Console>,
    Path((name, vb)): Path<(String, u16)>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let Some((bucket, vb)) = find(&console, &name, vb) else { return missing() };
    let (state, topology) = match request(&fields) {
        Ok(request) => request,
        Err(refusal) => return refused(refusal),
    };
    if let Some(why) = bucket.closed(vb) {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("vBucket {}: {why}\r\n", vb.0)).into_response();
    }
    execute(&console, |cx| {
        let state = state.unwrap_or_else(|| bucket.vbucket_setting(cx, vb).0);
        bucket.set_vbucket(cx, vb, state, topology);
    });
    StatusCode::OK.into_response()
}

fn find(console: &Console, name: &str, vb: u16) -> Option<(Arc<Bucket>, VbId)> {
    let bucket = console.node.bucket(name)?;
    (vb < bucket.vbuckets()).then_some((bucket, VbId(vb)))
}

fn request(fields: &[(String, String)]) -> Result<(Option<VbState>, Option<Topology>), Refusal> {
    let (mut state, mut topology) = (None, None);
    for (field, value) in fields {
        match field.as_str() {
            "state" => {
                let known = VbState::from_name(value);
                state =
                    Some(known.ok_or_else(|| invalid("state", "Allowed: active, replica, pending, dead."))?);
            }
            "topology" => {
                let json =
                    serde_json::from_str(value).map_err(|error| invalid("topology", error.to_string()))?;
                topology =
                    Some(Topology::from_json(&json).map_err(|error| invalid("topology", error.to_string()))?);
            }
            other => return Err(invalid("_", format!("Unknown field {other:?}. Allowed: state, topology."))),
        }
    }
    Ok((state, topology))
}

/// Executes `f` on this thread of the node, which caches nothing between calls.
pub fn execute<R>(console: &Console, f: impl FnOnce(&mut NodeContext) -> R) -> R {
    let mut cx = console.cx.lock();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    cx.now = Now {
        unix_s: u32::try_from(wall.as_secs()).unwrap_or(u32::MAX),
        unix_ns: u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX),
        mono_us: u64::try_from(console.started.elapsed().as_micros()).unwrap_or(u64::MAX),
    };
    cx.tend();
    let result = f(&mut cx);
    if cx.has_letters() {
        console.answers.wake();
    }
    cx.end_batch();
    cx.rest();
    cx.rest();
    // Whoever waits is next: a walk takes it again at once.
    MutexGuard::unlock_fair(cx);
    result
}
