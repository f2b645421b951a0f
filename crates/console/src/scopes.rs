//! Scopes and collections over HTTP: each bucket has the scope `_default` with the collection `_default`, and no
//! others.

use crate::Console;
use crate::buckets::missing;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// `GET /pools/default/buckets/B/scopes`: the manifest, as COLLECTIONS_GET_MANIFEST returns it.
pub async fn manifest(State(console): State<Console>, Path(name): Path<String>) -> Response {
    if console.node.bucket(&name).is_none() {
        return missing();
    }
    let collection = json!({ "name": "_default", "uid": "0" });
    let scope = json!({ "name": "_default", "uid": "0", "collections": [collection] });
    Json(json!({ "uid": "0", "scopes": [scope] })).into_response()
}

/// Refuses changes.
///
/// COMPAT: SDKs map this sentence to their "feature not available" error.
pub async fn refuse(State(console): State<Console>, Path(path): Path<Vec<(String, String)>>) -> Response {
    let bucket = path.iter().find(|(name, _)| name == "bucket").map(|(_, value)| value.as_str());
    if bucket.is_none_or(|name| console.node.bucket(name).is_none()) {
        return missing();
    }
    let reason = "Not allowed on this version of cluster: a bucket has the scope _default with the collection \
        _default, and no others.";
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": { "_": reason } }))).into_response()
}
