//! The documents that describe the node as a whole.

use crate::buckets::refused;
use crate::login::Identity;
use crate::work::Party;
use crate::{Console, document, node_setup};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use kv::users::roles::Rights;
use serde_json::{Value, json};

/// `GET /pools`.
pub async fn pools(State(console): State<Console>, Extension(identity): Extension<Identity>) -> Json<Value> {
    let rights = identity.roles().on_node();
    let is_admin = rights.contain(Rights::NODE);
    let profile = console.node.profile();
    let pool = json!({
        "name": "default",
        "uri": format!("/pools/default?uuid={}", profile.uuid),
    });
    // COMPAT: before a cluster is set up it has no identity, which is an empty list then.
    let (pools, uuid) = match console.control.is_provisioned() {
        true => (json!([pool]), json!(profile.uuid)),
        false => (json!([]), json!([])),
    };
    Json(json!({
        "isAdminCreds": is_admin,
        "isROAdminCreds": !is_admin && rights.contain(Rights::SEE),
        "isEnterprise": true,
        "isDeveloperPreview": false,
        "configProfile": "default",
        "allowedServices": node_setup::names_of_services(&console),
        "implementationVersion": document::IMPLEMENTATION_VERSION,
        "componentsVersion": { "ns_server": document::IMPLEMENTATION_VERSION, "dormouse": env!("CARGO_PKG_VERSION") },
        "dormouse": env!("CARGO_PKG_VERSION"),
        "settings": {},
        "pools": pools,
        "uuid": uuid,
    }))
}

/// `GET /pools/default`.
pub async fn default_pool(
    State(console): State<Console>,
    party: Party,
    Extension(identity): Extension<Identity>,
    headers: HeaderMap,
) -> Response {
    let host = host(&console, &headers);
    described(&console, &party, move |console| Json(document::default_pool(&console, &identity, &host))).await
}

/// What `describe` makes in the party's turn.
pub async fn described<T: IntoResponse>(
    console: &Console,
    party: &Party,
    describe: impl FnOnce(Console) -> T + Send + 'static,
) -> Response {
    console.describe(party, |console| describe(console).into_response()).await.unwrap_or_else(refused)
}

/// `GET /pools/nodes`: the nodes of the cluster, each with the name it was configured under.
pub async fn nodes(State(console): State<Console>, party: Party, headers: HeaderMap) -> Response {
    let host = host(&console, &headers);
    let nodes = move |console: Console| {
        Json(json!({ "name": "default", "nodes": [document::this_node(&console, &host)] }))
    };
    described(&console, &party, nodes).await
}

/// `GET /pools/default/tasks`: nothing is rebalanced, indexed or replicated.
pub async fn tasks() -> Json<Value> {
    Json(json!([{
        "type": "rebalance", "status": "notRunning", "statusIsStale": false, "masterRequestTimedOut": false,
    }]))
}

/// Anything else. The body says what is missing: SDKs otherwise take a 404 for a missing bucket.
pub async fn no_endpoint(method: Method, uri: Uri) -> Response {
    let reason = format!("There is no endpoint {method} {}", uri.path());
    (StatusCode::NOT_FOUND, Json(json!({ "errors": { "_": reason } }))).into_response()
}

/// `GET /pools/default/nodeServices`.
pub async fn node_services(State(console): State<Console>, party: Party, headers: HeaderMap) -> Response {
    let host = host(&console, &headers);
    described(&console, &party, move |console| document::node_services(&console, &host)).await
}

/// The name by which the client reached this node: the `Host` header without the port if that is a plausible host, else
/// the address of the HTTP port.
pub fn host(console: &Console, headers: &HeaderMap) -> String {
    headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok())
        .and_then(host_of)
        .map(str::to_owned)
        .unwrap_or_else(|| {
            console.node.endpoints().http.first().map_or("127.0.0.1".into(), |a| host_text(*a))
        })
}

fn host_text(address: std::net::SocketAddr) -> String {
    if address.is_ipv6() { format!("[{}]", address.ip()) } else { address.ip().to_string() }
}

fn host_of(value: &str) -> Option<&str> {
    let host = match value.rfind(']') {
        Some(end) => value.get(..=end)?,
        None => value.split(':').next()?,
    };
    let plausible = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    (!host.is_empty() && host.chars().all(plausible)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::host_of;

    #[test]
    fn the_host_loses_its_port_and_nothing_else() {
        assert_eq!(host_of("127.0.0.1:8091"), Some("127.0.0.1"));
        assert_eq!(host_of("db.example"), Some("db.example"));
        assert_eq!(host_of("[::1]:8091"), Some("[::1]"));
        assert_eq!(host_of(""), None);
        assert_eq!(host_of("a\"b:1"), None);
    }
}
