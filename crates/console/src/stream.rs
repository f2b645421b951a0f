//! `/pools/default/bs/B`: the terse map of a bucket now, and again whenever it or the set of buckets changes. Each map
//! ends with four newlines. The stream ends when the bucket is gone, or the user may no longer see it. The next map is
//! built once the previous one is sent.

use crate::admission::Client;
use crate::login::Identity;
use crate::work::Party;
use crate::{Console, buckets, document, pools};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The streaming handler.
pub async fn terse(
    State(console): State<Console>,
    ConnectInfo(client): ConnectInfo<Client>,
    Extension(identity): Extension<Identity>,
    Path(name): Path<String>,
    headers: HeaderMap,
    method: Method,
) -> Response {
    let host = pools::host(&console, &headers);
    if console.node.bucket(&name).is_none() {
        return buckets::missing();
    }
    let kind = [(header::CONTENT_TYPE, "application/json; charset=utf-8")];
    if method == Method::HEAD {
        return kind.into_response();
    }
    if !client.connection.begin_stream() {
        return (StatusCode::SERVICE_UNAVAILABLE, "There are too many streams.\r\n").into_response();
    }
    let mut changes = console.map_changes.subscribe();
    changes.mark_changed();
    let is_sent = Arc::new(Semaphore::new(1));
    let maps = stream::unfold((console, changes, None), move |(console, mut changes, sent)| {
        let (name, host, identity) = (name.clone(), host.clone(), identity.clone());
        let (is_sent, connection) = (Arc::clone(&is_sent), client.connection.clone());
        async move {
            // The semaphore is never closed. The permit is released with the map.
            let permit = is_sent.acquire_owned().await.ok()?;
            let revision = loop {
                changes.changed().await.ok()?;
                if !identity.now(&console)?.sees(&name) {
                    return None;
                }
                let revision = console.node.map_revision();
                if sent != Some(revision) {
                    break revision;
                }
            };
            let bucket = console.node.bucket(&name)?;
            let map =
                move |console: Console| format!("{}\n\n\n\n", document::terse(&console, &bucket, &host).0);
            let map = console.describe(&Party::Node, map).await.ok()?;
            // It may have taken a while.
            if !identity.now(&console)?.sees(&name) {
                return None;
            }
            let map = connection.charge(Bytes::from(map), permit);
            Some((Ok::<_, Infallible>(map), (console, changes, Some(revision))))
        }
    });
    (kind, Body::from_stream(maps)).into_response()
}
