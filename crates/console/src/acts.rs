//! Administrative acts: what is changed over HTTP, by whom. Each is a line in the log, and counted in `/metrics`.
//!
//! ```text
//!   changed over HTTP user="ann" address=::1 request="POST /pools/default/buckets/orders" fields="ramQuota=64"
//! ```
//! The request is shown as it was sent, with what clients escape still escaped, without a query. Passwords are not
//! shown, nor documents and their keys. Changes of documents, which programs make too, have a line per second at most:
//! the log keeps the last lines only.
//!
//! A client may leave before its answer. What had begun by then is a line too, with `outcome="unknown"`.

use crate::login::Need;
use axum::http::{Method, Uri};
use axum::response::Response;
use kv::users::roles::Rights;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Changes of documents have lines this far apart.
const PACE: Duration = Duration::from_secs(1);
/// Longest request, and longest fields, that are shown, in bytes.
const SHOWN_BYTES_MAX: usize = 1000;
/// Fields of users and groups that are shown.
const FIELDS_OF_USERS: [&str; 5] = ["roles", "groups", "name", "description", "ldap_group_ref"];

/// What an act is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum About {
    Node,
    Users,
    Bucket,
    Collections,
    Documents,
}

/// How many acts there have been.
#[derive(Debug, Default)]
pub struct Acts {
    counts: [AtomicU64; About::ALL.len()],
    documents: Mutex<Paced>,
}

/// Changes of documents without a line.
#[derive(Debug, Default)]
struct Paced {
    last: Option<Instant>,
    unshown: u64,
}

impl Paced {
    /// Whether a change now has a line, and how many before it had none.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < PACE) {
            self.unshown += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unshown))
    }
}

/// An act that is about to be tried.
#[derive(Debug)]
pub struct Act {
    about: About,
    request: String,
    fields: String,
}

impl About {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Node, "node"),
        (Self::Users, "users"),
        (Self::Bucket, "bucket"),
        (Self::Collections, "collections"),
        (Self::Documents, "documents"),
    ];

    fn of(need: Need) -> Self {
        match need {
            Need::Documents(_) => Self::Documents,
            Need::Scope | Need::Bucket(Rights::COLLECTIONS) => Self::Collections,
            Need::Users | Need::Login | Need::Node(Rights::USERS) => Self::Users,
            Need::Bucket(_) | Need::SeeBucket | Need::ReadSome => Self::Bucket,
            Need::Node(_) => Self::Node,
        }
    }
}

impl Act {
    /// `None` for requests that change nothing.
    pub fn of(need: Need, method: &Method, uri: &Uri, body: &[u8]) -> Option<Self> {
        let (about, path) = (About::of(need), uri.path());
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) || is_question(path) {
            return None;
        }
        let (path, fields) = match about {
            About::Documents => (path.split_inclusive("/docs").next().unwrap_or(path), String::new()),
            _ if *method == Method::DELETE => (path, String::new()),
            about => (path, fields(about, body)),
        };
        Some(Self { about, request: shortened(format!("{method} {path}")), fields })
    }
}

impl Acts {
    fn note(&self, act: &Act, user: Option<&str>, address: IpAddr, outcome: &str) {
        if let Some(count) = self.counts.get(act.about as usize) {
            count.fetch_add(1, Relaxed);
        }
        let (Act { request, fields, .. }, user) = (act, user.unwrap_or_default());
        if act.about != About::Documents {
            tracing::info!(user, %address, request, fields, outcome, "changed over HTTP");
        } else if let Some(unshown) = self.documents.lock().next(Instant::now()) {
            tracing::info!(user, %address, request, outcome, unshown, "changed over HTTP");
        }
    }

    /// What they are about, and how many there have been.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        About::ALL.iter().zip(&self.counts).map(|((_, name), count)| (*name, count.load(Relaxed)))
    }
}

tokio::task_local! {
    /// Whether the work of the request has begun, if the request is an act.
    static BEGUN: Arc<AtomicBool>;
}

/// Notes that the work of this task's request begins, which goes on if the client leaves.
pub fn begin() {
    let _ = BEGUN.try_with(|begun| begun.store(true, Relaxed));
}

/// Executes an act, and notes it if it succeeds, or if nobody waits for what becomes of it.
pub async fn executed(
    acts: Arc<Acts>,
    act: Act,
    user: Option<Arc<str>>,
    address: IpAddr,
    execute: impl Future<Output = Response>,
) -> Response {
    let begun = Arc::new(AtomicBool::new(false));
    let mut noted = Noted { acts, act, user, address, begun: Arc::clone(&begun), outcome: "unknown" };
    let response = BEGUN.scope(begun, execute).await;
    noted.begun.store(response.status().is_success(), Relaxed);
    noted.outcome = "success";
    response
}

/// Notes an act when it is dropped.
struct Noted {
    acts: Arc<Acts>,
    act: Act,
    user: Option<Arc<str>>,
    address: IpAddr,
    begun: Arc<AtomicBool>,
    outcome: &'static str,
}

impl Drop for Noted {
    fn drop(&mut self) {
        if self.begun.load(Relaxed) {
            self.acts.note(&self.act, self.user.as_deref(), self.address, self.outcome);
        }
    }
}

/// Returns true for requests by `POST` that change nothing.
fn is_question(path: &str) -> bool {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    matches!(
        parts[..],
        ["pools", "default", "checkPermissions"]
            | ["pools", "default", "buckets", _, "audit"]
            | ["pools", "default", "buckets", _, "scopes", "@ensureManifest", _]
    )
}

/// A form as it was sent, without passwords; of users and groups, only what is known. Of JSON, only that it was.
fn fields(about: About, body: &[u8]) -> String {
    if matches!(body.trim_ascii_start(), [b'{' | b'[', ..]) {
        return "JSON".to_owned();
    }
    let mut shown = String::new();
    for pair in body.split(|byte| *byte == b'&') {
        if shown.len() > SHOWN_BYTES_MAX {
            break;
        }
        if !shown.is_empty() {
            shown.push('&');
        }
        let pair = String::from_utf8_lossy(pair);
        match pair.split_once('=') {
            Some((name, _)) if is_secret(about, name) => shown.extend([name, "=..."]),
            _ => shown.push_str(&pair),
        }
    }
    shortened(shown)
}

/// Names may be escaped: what is not known for certain to be another name is taken for that of a password.
fn is_secret(about: About, name: &str) -> bool {
    if about == About::Users {
        return !FIELDS_OF_USERS.contains(&name);
    }
    let name = name.to_ascii_lowercase();
    name.contains("pass") || name.contains(['%', '+'])
}

fn shortened(mut text: String) -> String {
    if text.len() > SHOWN_BYTES_MAX {
        let end = (0..=SHOWN_BYTES_MAX).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or_default());
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(need: Need, request: &str, body: &[u8]) -> Option<(About, String, String)> {
        let (method, uri) = request.split_once(' ').unwrap();
        let act = Act::of(need, &method.parse().unwrap(), &uri.parse().unwrap(), body)?;
        Some((act.about, act.request, act.fields))
    }

    #[test]
    fn an_act_shows_its_fields_but_no_passwords_and_no_documents() {
        let bucket = "POST /pools/default/buckets/orders";
        let act = of(Need::Bucket(Rights::BUCKET), bucket, b"ramQuota=64&flushEnabled=1");
        assert_eq!(act, Some((About::Bucket, bucket.to_owned(), "ramQuota=64&flushEnabled=1".to_owned())));
        for name in ["password", "newPassword", "PASSWORD", "p%61ssword", "word"] {
            let body = format!("roles=admin&{name}=secret%20words");
            let (about, _, fields) =
                of(Need::Users, "PUT /settings/rbac/users/local/ann", body.as_bytes()).unwrap();
            assert_eq!((about, fields), (About::Users, format!("roles=admin&{name}=...")));
        }
        let (_, request, fields) =
            of(Need::Node(Rights::ALL), "POST /settings/web?password=secret", b"username=a&Password=secret")
                .unwrap();
        assert_eq!((request.as_str(), fields.as_str()), ("POST /settings/web", "username=a&Password=..."));
        let collection = "/pools/default/buckets/b/scopes/_default/collections/_default/docs";
        for key in ["/secret", "?key=secret"] {
            let document = format!("PUT {collection}{key}");
            let act = of(Need::Documents(Rights::WRITE), &document, b"value=secret");
            assert_eq!(act, Some((About::Documents, format!("PUT {collection}"), String::new())));
        }
        let long = "a".repeat(2 * SHOWN_BYTES_MAX);
        let path = format!("POST /pools/default/buckets/{long}");
        let (_, request, fields) = of(Need::Node(Rights::NODE), &path, long.as_bytes()).unwrap();
        assert_eq!((request.len(), fields.len()), (SHOWN_BYTES_MAX + 3, SHOWN_BYTES_MAX + 3));
    }

    #[test]
    fn changes_of_documents_have_a_line_per_second() {
        let (mut paced, start) = (Paced::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let lines = [0, 1, 999, 1000, 1500, 5000].map(|ms| paced.next(at(ms)));
        assert_eq!(lines, [Some(0), None, None, Some(2), None, Some(1)]);
    }

    #[test]
    fn questions_are_no_acts() {
        let path = "/pools/default/buckets/b/scopes/@ensureManifest/2";
        assert_eq!(of(Need::SeeBucket, &format!("POST {path}"), b""), None);
        assert_eq!(of(Need::Login, "POST /pools/default/checkPermissions", b"cluster!read"), None);
        assert_eq!(of(Need::Login, "GET /whoami", b""), None);
        assert_eq!(of(Need::Bucket(Rights::BUCKET), "POST /pools/default/buckets/b/audit/", b""), None);
        for act in ["POST /settings/audit", "POST /pools/default/buckets/audit"] {
            assert!(of(Need::Node(Rights::SECURITY), act, b"").is_some());
        }
    }
}
