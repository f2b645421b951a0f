//! What tools ask a cluster, answered by the one node there is: itself, its group, those of a bucket; and what scripts
//! tell a node before it serves, which here is in its configuration.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Form, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::buckets::{invalid, missing, refused};
use crate::work::Party;
use crate::{Console, document, pools, samples, users};

/// `GET /nodes/self`.
pub async fn node(State(console): State<Console>, party: Party, headers: HeaderMap) -> Response {
    let host = pools::host(&console, &headers);
    pools::described(&console, &party, move |console| Json(document::self_document(&console, &host))).await
}

/// `GET /pools/default/serverGroups`.
pub async fn groups(State(console): State<Console>, party: Party, headers: HeaderMap) -> Response {
    let host = pools::host(&console, &headers);
    pools::described(&console, &party, move |console| Json(document::server_groups(&console, &host))).await
}

/// `GET /pools/default/terseClusterInfo`.
pub async fn terse(State(console): State<Console>, headers: HeaderMap) -> Json<Value> {
    let host = pools::host(&console, &headers);
    Json(document::terse_cluster(&console, &host))
}

/// `GET /pools/default/remoteClusters`: nothing is sent to others.
pub async fn remote_clusters() -> Json<Value> {
    Json(json!([]))
}

/// `GET /pools/default/certificates`: that of the TLS ports, as of this node.
pub async fn certificates(State(console): State<Console>, headers: HeaderMap) -> Json<Value> {
    let host = pools::host(&console, &headers);
    let node = document::address(&console, &host);
    let certificate = console.control.certificates().map(|pem| {
        let mut certificate = json!({ "node": node, "type": "uploaded", "warnings": [], "pem": pem });
        if let Some(expires_s) = console.control.certificate_expiry_s() {
            certificate["expires"] = json!(users::date(expires_s));
        }
        certificate
    });
    Json(certificate.into_iter().collect())
}

/// `GET /pools/default/buckets/B/nodes`: those that have the bucket.
pub async fn of_bucket(
    State(console): State<Console>,
    Path(bucket): Path<String>,
    headers: HeaderMap,
) -> Response {
    if console.node.bucket(&bucket).is_none() {
        return missing();
    }
    let node = document::address(&console, &pools::host(&console, &headers));
    let uri = format!("/pools/default/buckets/{bucket}/nodes/{}", encoded(&node));
    let stats = json!({ "uri": format!("{uri}/stats") });
    Json(json!({ "servers": [{ "hostname": node, "uri": uri, "stats": stats }] })).into_response()
}

/// A colon and brackets of an address, as they stand in a path.
fn encoded(address: &str) -> String {
    address.replace(':', "%3A").replace('[', "%5B").replace(']', "%5D")
}

/// A path names this node by the address in the documents that the client has read.
fn is_this(console: &Console, headers: &HeaderMap, node: &str) -> bool {
    node == document::address(console, &pools::host(console, headers))
}

/// `GET /pools/default/buckets/B/nodes/N`.
pub async fn of_bucket_on(
    State(console): State<Console>,
    Path((bucket, node)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if console.node.bucket(&bucket).is_none() || !is_this(&console, &headers, &node) {
        return missing();
    }
    let path = format!("/pools/default/buckets/{bucket}");
    let stats = format!("{path}/nodes/{}/stats", encoded(&node));
    Json(json!({
        "hostname": node,
        "bucket": { "uri": path },
        "stats": { "uri": stats },
    }))
    .into_response()
}

/// `GET /pools/default/buckets/B/nodes/N/stats`: the figures of the bucket, which are all on this node.
pub async fn samples(
    state: State<Console>,
    party: Party,
    Path((bucket, node)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    if !is_this(&state.0, &headers, &node) {
        return missing();
    }
    samples::of_bucket(state, party, Path(bucket)).await
}

/// `GET /prometheus_sd_config`: where Prometheus finds `/metrics`.
pub async fn prometheus(
    State(console): State<Console>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let given = |name: &str| query.get(name).map(String::as_str);
    let not_allowed = |name: &'static str, allowed: &str| {
        let reason = format!("The value must be one of the following: [{allowed}]");
        refused(invalid(name, reason))
    };
    let endpoints = console.node.endpoints();
    // COMPAT: secure unless told otherwise; without TLS there is one kind of port.
    let is_secure = match given("port") {
        None | Some("secure") => !endpoints.http_tls.is_empty(),
        Some("insecure") => false,
        Some(_) => return not_allowed("port", "insecure,secure"),
    };
    let profile = console.node.profile();
    let host = profile.hostname.clone().unwrap_or_else(|| pools::host(&console, &headers));
    let own = if is_secure { endpoints.http_tls.first() } else { endpoints.http.first() };
    let own = own.map_or(0, std::net::SocketAddr::port);
    let (host, port) = match given("network") {
        None | Some("default") => (host, own),
        Some("external") => {
            let external = kv::cluster_config::external(&console.node);
            let name = if is_secure { "mgmtSSL" } else { "mgmt" };
            match external.and_then(|external| Some((external.hostname, *external.ports.get(name)?))) {
                Some(place) => place,
                None => return Json(json!([])).into_response(),
            }
        }
        Some(_) => return not_allowed("network", "default,external"),
    };
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    let target = format!("{host}:{port}");
    let (kind, text, file) = match given("type") {
        None | Some("json") => {
            let text = json!([{ "targets": [target] }]).to_string();
            ("application/json", text, "prometheus_sd_config.json")
        }
        Some("yaml") => {
            ("application/yaml", format!("- targets:\n    - '{target}'\n"), "prometheus_sd_config.yaml")
        }
        Some(_) => return not_allowed("type", "json,yaml"),
    };
    let mut response = ([(header::CONTENT_TYPE, kind)], text).into_response();
    match given("disposition") {
        None | Some("inline") => {}
        Some("attachment") => {
            if let Ok(value) = format!("attachment; filename=\"{file}\"").parse() {
                response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
            }
        }
        Some(_) => return not_allowed("disposition", "attachment,inline"),
    }
    response
}

/// `POST /pools/default/buckets/B/controller/compactBucket`, `compactDatabases`. Journals are compacted when that is
/// worth it, so there is nothing to begin.
pub async fn compact(State(console): State<Console>, Path(bucket): Path<String>) -> Response {
    if console.node.bucket(&bucket).is_none() {
        return missing();
    }
    StatusCode::OK.into_response()
}

/// `POST /nodes/self/controller/settings`: where data lies, which the configuration says (`node.data`).
///
/// COMPAT: scripts that set up a node send the paths that a fresh server has.
pub async fn set_paths(Form(_): Form<Vec<(String, String)>>) -> StatusCode {
    StatusCode::OK
}
