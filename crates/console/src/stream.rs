//! `/pools/default/bs/B`: the terse map of a bucket now, and again whenever the set of buckets changes.
//! Each map ends with four newlines. The stream ends when the bucket is gone.

use crate::{Console, buckets, document, pools};
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;

/// The streaming handler.
pub async fn terse(State(console): State<Console>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    let host = pools::host(&console, &headers);
    if console.node.bucket(&name).is_none() {
        return buckets::missing();
    }
    let mut changes = console.map_changes.subscribe();
    changes.mark_changed();
    let maps = stream::unfold((console, changes), move |(console, mut changes)| {
        let (name, host) = (name.clone(), host.clone());
        async move {
            changes.changed().await.ok()?;
            let bucket = console.node.bucket(&name)?;
            let map = format!("{}\n\n\n\n", document::terse(&console, &bucket, &host));
            Some((Ok::<_, Infallible>(Bytes::from(map)), (console, changes)))
        }
    });
    ([(header::CONTENT_TYPE, "application/json; charset=utf-8")], Body::from_stream(maps)).into_response()
}
