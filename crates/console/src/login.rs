//! HTTP Basic login, as two middlewares: for reads (required if a password is configured) and for changes (always
//! required).

use crate::Console;
use crate::admission::Client;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use kv::users::Caller;

/// Admits reads: all of them with the development password, else those with a login. A wrong login is refused in either
/// case.
pub async fn to_read(
    console: State<Console>,
    client: ConnectInfo<Client>,
    request: Request,
    next: Next,
) -> Response {
    let given = request.headers().contains_key(header::AUTHORIZATION);
    if !given && !console.control.login_required() {
        return next.run(request).await;
    }
    to_change(console, client, request, next).await
}

/// Admits requests with a user's name and password.
pub async fn to_change(
    State(console): State<Console>,
    ConnectInfo(client): ConnectInfo<Client>,
    request: Request,
    next: Next,
) -> Response {
    let value = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let allowed = value
        .and_then(credentials)
        .is_some_and(|(user, password)| console.control.login(&user, &password, caller(&console, &client)));
    if !allowed {
        return refusal();
    }
    client.connection.set_logged_in();
    next.run(request).await
}

fn caller(console: &Console, client: &Client) -> Caller {
    Caller {
        address: Some(client.address),
        loopback: client.address.is_loopback(),
        mono_us: u64::try_from(console.started.elapsed().as_micros()).unwrap_or(u64::MAX),
    }
}

/// `GET /whoami`: the user of the request, after [`to_change`].
///
/// COMPAT: gocb's `WaitUntilReady` of the management service waits for this to answer 200.
pub async fn whoami(headers: axum::http::HeaderMap) -> axum::Json<serde_json::Value> {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let id = value.and_then(credentials).map(|(user, _)| user).unwrap_or_default();
    axum::Json(serde_json::json!({ "id": id, "domain": "local", "roles": [{ "role": "admin" }] }))
}

fn refusal() -> Response {
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic realm=\"Dormouse\", charset=\"UTF-8\"")])
        .into_response()
}

/// User and password of an `Authorization: Basic` value (RFC 7617).
fn credentials(value: &str) -> Option<(String, String)> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::credentials;

    #[test]
    fn reads_basic_credentials_only() {
        let some = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(credentials("Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA=="), some("Administrator", "password"));
        assert_eq!(credentials("basic YTpiOmM="), some("a", "b:c"));
        for wrong in ["", "Basic", "Basic ?", "Bearer YTpi", "Basic YQ==", "Basic /w=="] {
            assert_eq!(credentials(wrong), None, "{wrong}");
        }
    }
}
