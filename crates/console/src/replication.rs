//! How the node takes part in replication, over HTTP.

use crate::Console;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// `GET /pools/default/replication`: the node's name in topologies, and where the others are.
pub async fn show(State(console): State<Console>) -> Json<Value> {
    let peers = console
        .node
        .replication()
        .peers
        .iter()
        .map(|peer| {
            json!({
                "name": peer.name,
                "host": peer.host,
                "kv": peer.kv,
                "http": peer.http,
                "kvTls": peer.kv_tls,
                "httpTls": peer.http_tls,
            })
        })
        .collect::<Vec<_>>();
    Json(json!({ "node": console.node.name(), "peers": peers }))
}
