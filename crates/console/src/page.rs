//! `/`: the page for people, from files in the binary. Its parts are public: what it shows is asked for with a login.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Name, type and text of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("index.html", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("main.js", JAVASCRIPT, include_str!("page/main.js")),
    ("events.js", JAVASCRIPT, include_str!("page/events.js")),
    ("ask.js", JAVASCRIPT, include_str!("page/ask.js")),
    ("repeat.js", JAVASCRIPT, include_str!("page/repeat.js")),
    ("work.js", JAVASCRIPT, include_str!("page/work.js")),
    ("databases.js", JAVASCRIPT, include_str!("page/databases.js")),
    ("allocator.js", JAVASCRIPT, include_str!("page/allocator.js")),
    ("log.js", JAVASCRIPT, include_str!("page/log.js")),
    ("overview.js", JAVASCRIPT, include_str!("page/overview.js")),
    ("memory.js", JAVASCRIPT, include_str!("page/memory.js")),
    ("sizes.js", JAVASCRIPT, include_str!("page/sizes.js")),
    ("figures.js", JAVASCRIPT, include_str!("page/figures.js")),
    ("requests.js", JAVASCRIPT, include_str!("page/requests.js")),
    ("buckets.js", JAVASCRIPT, include_str!("page/buckets.js")),
    ("keys.js", JAVASCRIPT, include_str!("page/keys.js")),
    ("prefixes.js", JAVASCRIPT, include_str!("page/prefixes.js")),
    ("key.js", JAVASCRIPT, include_str!("page/key.js")),
    ("json.js", JAVASCRIPT, include_str!("page/json.js")),
    ("form.js", JAVASCRIPT, include_str!("page/form.js")),
    ("table.js", JAVASCRIPT, include_str!("page/table.js")),
    ("draw.js", JAVASCRIPT, include_str!("page/draw.js")),
];
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Only what comes from this node is run, shown or asked, and no other page may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::CACHE_CONTROL, "no-cache"),
    (header::VARY, "Accept"),
];

/// `GET /`: the page for browsers; a name for the pings of SDKs.
pub async fn root(headers: HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accepted.flat_map(|value| value.split(',')).any(|range| range.trim().starts_with("text/html")) {
        return found("index.html");
    }
    concat!("Dormouse ", env!("CARGO_PKG_VERSION"), "\n").into_response()
}

/// `GET /page/FILE`.
pub async fn file(Path(name): Path<String>) -> Response {
    found(&name)
}

fn found(wanted: &str) -> Response {
    match FILES.iter().find(|(name, ..)| *name == wanted) {
        Some((_, kind, text)) => (HEADERS, [(header::CONTENT_TYPE, *kind)], *text).into_response(),
        None => (StatusCode::NOT_FOUND, "There is no such file.\r\n").into_response(),
    }
}
