//! Users over HTTP: they are listed here, and defined in the configuration.

use crate::Console;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The only domain of users.
const LOCAL: &str = "local";

/// `GET /settings/rbac/users`.
pub async fn list(State(console): State<Console>) -> Json<Value> {
    Json(console.node.users().names().iter().map(|name| document(name)).collect())
}

/// `GET /settings/rbac/users/DOMAIN`.
pub async fn list_domain(State(console): State<Console>, Path(domain): Path<String>) -> Json<Value> {
    if domain == LOCAL { list(State(console)).await } else { Json(json!([])) }
}

/// `GET /settings/rbac/users/DOMAIN/USER`.
pub async fn show(State(console): State<Console>, Path((domain, user)): Path<(String, String)>) -> Response {
    if domain == LOCAL && console.node.users().names().iter().any(|name| **name == *user) {
        return Json(document(&user)).into_response();
    }
    (StatusCode::NOT_FOUND, Json(json!("Unknown user."))).into_response()
}

/// `GET /settings/rbac/groups`: there are none.
pub async fn groups() -> Json<Value> {
    Json(json!([]))
}

/// `GET /settings/rbac/groups/GROUP`.
pub async fn group() -> Response {
    (StatusCode::NOT_FOUND, Json(json!("Unknown group."))).into_response()
}

/// `GET /settings/rbac/roles`: every user may do everything.
pub async fn roles() -> Json<Value> {
    Json(
        json!([{ "role": "admin", "name": "Full Admin", "desc": "May do everything; every user has this role." }]),
    )
}

/// Refuses changes.
pub async fn refuse() -> Response {
    let reason = "Users are defined in the configuration (auth.user, auth.password_file), not over HTTP.";
    (StatusCode::BAD_REQUEST, Json(json!({ "errors": { "_": reason } }))).into_response()
}

fn document(name: &str) -> Value {
    json!({
        "id": name, "domain": LOCAL, "name": "", "roles": [{ "role": "admin" }], "groups": [], "external_groups": []
    })
}
