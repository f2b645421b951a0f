//! Ports of services that are not there. They exist only while a node plays the part of a server in a test container,
//! where clients and the container's own start expect them: they answer pings and three statements, and refuse all
//! else.
//!
//! ```text
//!   SELECT COUNT(*) > 0 as present FROM system:keyspaces WHERE name = "B"
//!   CREATE PRIMARY INDEX on `B`
//!   SELECT count(*) > 0 AS online FROM system:indexes where keyspace_id = "B" and is_primary = true and state = "online"
//! ```
//! That a bucket has an index is remembered until the bucket is gone, and nothing else.

use crate::admission::{Client, Serves};
use crate::{Console, login};
use axum::Json;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The query service's name.
const QUERY: &str = "n1ql";
/// Error codes of the query service: not implemented; an index exists; no such bucket; credentials.
const NOT_IMPLEMENTED: u32 = 1020;
const INDEX_EXISTS: u32 = 4300;
const NO_KEYSPACE: u32 = 12003;
const NO_ACCESS: u32 = 13014;

/// The UUIDs of buckets for which a primary index was created.
#[derive(Default)]
pub struct Indexes(Mutex<BTreeSet<String>>);

/// Answers what comes in at the port of a service, and lets management requests through.
pub async fn divert(
    State(console): State<Console>,
    ConnectInfo(client): ConnectInfo<Client>,
    request: Request,
    next: Next,
) -> Response {
    let Serves::Absent(service) = client.serves else { return next.run(request).await };
    let (parts, body) = request.into_parts();
    match (&parts.method, parts.uri.path().trim_end_matches('/')) {
        (&Method::GET | &Method::HEAD, "/admin/ping" | "/api/ping") => {
            Json(json!({ "status": "OK" })).into_response()
        }
        (_, "/query/service" | "/query") if service == QUERY => {
            if console.control.is_provisioned() {
                let Some(user) = login::log_in(&console, &client, &parts.headers) else {
                    return failed(
                        StatusCode::UNAUTHORIZED,
                        NO_ACCESS,
                        "Log in with a user's name and password.",
                    );
                };
                client.connection.set_user(user.name);
            }
            let body = match client.connection.receive(body).await {
                Ok(body) => body,
                Err(refusal) => return *refusal,
            };
            query(&console, &statement(&parts.headers, &parts.uri, &body))
        }
        (method, _) => {
            let path = parts.uri.path();
            let reason = format!(
                "There is no service {service:?}: this node stands in for a server in a test container \
                 (--testcontainers) and answers pings here, not {method} {path}"
            );
            (StatusCode::NOT_IMPLEMENTED, Json(json!({ "status": "fail", "error": reason }))).into_response()
        }
    }
}

/// The statement of a request: in a JSON document, a form, or the address.
fn statement(headers: &HeaderMap, uri: &Uri, body: &[u8]) -> String {
    let kind =
        headers.get(axum::http::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/json") {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        return body.get("statement").and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    let form = if body.is_empty() { uri.query().unwrap_or_default().as_bytes() } else { body };
    let fields = form_fields(form);
    fields.into_iter().find(|(name, _)| name == "statement").map(|(_, value)| value).unwrap_or_default()
}

fn form_fields(form: &[u8]) -> Vec<(String, String)> {
    let uri = format!("/?{}", String::from_utf8_lossy(form)).parse::<Uri>().ok();
    let query = uri.and_then(|uri| Query::<Vec<(String, String)>>::try_from_uri(&uri).ok());
    query.map(|query| query.0).unwrap_or_default()
}

/// The shape of a statement and the first name in quotes in it.
fn shape(statement: &str) -> (String, String) {
    let words: Vec<&str> = statement.trim().trim_end_matches(';').split_whitespace().collect();
    let text = words.join(" ");
    let quoted = text.find(['"', '`', '\'']).and_then(|from| {
        let quote = text[from..].chars().next()?;
        let length = text[from + 1..].find(quote)?;
        Some((from, from + 1 + length))
    });
    let Some((from, to)) = quoted else { return (text.to_lowercase(), String::new()) };
    let shape = format!("{}?{}", text[..from].to_lowercase(), text[to + 1..].to_lowercase());
    (shape, text[from + 1..to].to_owned())
}

fn query(console: &Console, statement: &str) -> Response {
    let (shape, name) = shape(statement);
    let bucket = console.node.bucket(&name);
    let mut indexes = console.indexes.0.lock().unwrap_or_else(PoisonError::into_inner);
    let known: BTreeSet<String> =
        console.node.buckets().iter().map(|bucket| bucket.uuid().to_owned()).collect();
    indexes.retain(|uuid| known.contains(uuid));
    match shape.as_str() {
        "select count(*) > 0 as present from system:keyspaces where name = ?" => {
            succeeded(json!([{ "present": bucket.is_some() }]))
        }
        "create primary index on ?" => match bucket {
            None => failed(
                StatusCode::NOT_FOUND,
                NO_KEYSPACE,
                &format!("Keyspace not found in CB datastore: default:{name}"),
            ),
            Some(bucket) => match indexes.insert(bucket.uuid().to_owned()) {
                true => succeeded(json!([])),
                false => failed(StatusCode::CONFLICT, INDEX_EXISTS, "The index #primary already exists."),
            },
        },
        "select count(*) > 0 as online from system:indexes where keyspace_id = ? and is_primary = true and state = \
         \"online\"" => {
            let is_online = bucket.is_some_and(|bucket| indexes.contains(bucket.uuid()));
            succeeded(json!([{ "online": is_online }]))
        }
        _ => failed(
            StatusCode::NOT_IMPLEMENTED,
            NOT_IMPLEMENTED,
            "There is no query service: this node stands in for a server in a test container (--testcontainers) and \
             answers three statements of its start.",
        ),
    }
}

fn succeeded(results: Value) -> Response {
    let metrics = metrics(results.as_array().map_or(0, Vec::len), 0);
    Json(json!({ "requestID": "", "results": results, "status": "success", "metrics": metrics }))
        .into_response()
}

fn failed(status: StatusCode, code: u32, message: &str) -> Response {
    let errors = json!([{ "code": code, "msg": message }]);
    let body = json!({ "requestID": "", "errors": errors, "status": "fatal", "metrics": metrics(0, 1) });
    (status, Json(body)).into_response()
}

fn metrics(results: usize, errors: usize) -> Value {
    json!({
        "elapsedTime": "0s", "executionTime": "0s", "resultCount": results, "resultSize": 0, "errorCount": errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_known_by_their_shape() {
        for (statement, expected, name) in [
            ("CREATE PRIMARY INDEX on `b`", "create primary index on ?", "b"),
            ("  create primary   index ON `My-B.x%` ; ", "create primary index on ?", "My-B.x%"),
            (
                "SELECT COUNT(*) > 0 as present FROM system:keyspaces WHERE name = \"b\"",
                "select count(*) > 0 as present from system:keyspaces where name = ?",
                "b",
            ),
            ("SELECT 1", "select 1", ""),
            ("SELECT \"unended", "select \"unended", ""),
            ("", "", ""),
        ] {
            assert_eq!(shape(statement), (expected.to_owned(), name.to_owned()), "{statement}");
        }
    }

    #[test]
    fn statements_are_found_in_every_kind_of_request() {
        let uri = |text: &'static str| Uri::from_static(text);
        let mut json = HeaderMap::new();
        json.insert("content-type", "application/json; charset=utf-8".parse().unwrap());
        let none = HeaderMap::new();
        assert_eq!(statement(&json, &uri("/query"), br#"{"statement":"SELECT 1"}"#), "SELECT 1");
        assert_eq!(statement(&none, &uri("/query"), b"a=b&statement=SELECT+1%2B1"), "SELECT 1+1");
        assert_eq!(statement(&none, &uri("/query?statement=SELECT%201"), b""), "SELECT 1");
        assert_eq!(statement(&json, &uri("/query"), b"no JSON"), "");
    }
}
