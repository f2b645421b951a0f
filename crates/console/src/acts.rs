//! Administrative acts: what is changed over HTTP, by whom. Each is a line in the log, and counted in `/metrics`.
//!
//! ```text
//!   changed over HTTP user="ann" address=::1 request="POST /pools/default/buckets/orders" fields="ramQuota=64"
//! ```
//! The request is shown as it was sent, with what clients escape still escaped. Passwords are not shown, nor documents.
//! Changes of documents, which programs make too, have a line per second at most: the log keeps the last lines only.

use crate::login::Need;
use axum::http::{Method, Uri};
use kv::users::roles::Rights;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Changes of documents have lines this far apart.
const PACE: Duration = Duration::from_secs(1);
/// Longest fields that are shown, in bytes.
const FIELDS_BYTES_MAX: usize = 1000;
/// Requests with a body, or by `POST`, that change nothing.
const QUESTIONS: [&str; 2] = ["/pools/default/checkPermissions", "/scopes/@ensureManifest/"];

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
    counts: [AtomicU64; 5],
    documents: Mutex<Paced>,
}

/// Changes of documents without a line.
#[derive(Debug, Default)]
struct Paced {
    last: Option<Instant>,
    more: u64,
}

impl Paced {
    /// Whether a change now has a line, and how many before it had none.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < PACE) {
            self.more += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.more))
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
        let is_question = QUESTIONS.iter().any(|question| uri.path().contains(question));
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) || is_question {
            return None;
        }
        let about = About::of(need);
        let fields = if about == About::Documents { String::new() } else { fields(body) };
        let asked = uri.path_and_query().map_or(uri.path(), |all| all.as_str());
        Some(Self { about, request: format!("{method} {asked}"), fields })
    }
}

impl Acts {
    /// Notes an act that has succeeded.
    pub fn note(&self, act: &Act, user: Option<&str>, address: IpAddr) {
        if let Some(count) = self.counts.get(act.about as usize) {
            count.fetch_add(1, Relaxed);
        }
        let (Act { request, fields, .. }, user) = (act, user.unwrap_or_default());
        if act.about != About::Documents {
            tracing::info!(user, %address, request, fields, "changed over HTTP");
        } else if let Some(unshown) = self.documents.lock().next(Instant::now()) {
            tracing::info!(user, %address, request, unshown, "changed over HTTP");
        }
    }

    /// What they are about, and how many there have been.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        About::ALL.iter().zip(&self.counts).map(|((_, name), count)| (*name, count.load(Relaxed)))
    }
}

/// A form as it was sent, without passwords. Of JSON, only that it was.
fn fields(body: &[u8]) -> String {
    if matches!(body.trim_ascii_start(), [b'{' | b'[', ..]) {
        return "JSON".to_owned();
    }
    let shown = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=..."),
        _ => pair.to_owned(),
    };
    let text = String::from_utf8_lossy(body);
    let mut all = text.split('&').map(shown).collect::<Vec<_>>().join("&");
    if all.len() > FIELDS_BYTES_MAX {
        let end = (0..=FIELDS_BYTES_MAX).rev().find(|end| all.is_char_boundary(*end));
        all.truncate(end.unwrap_or_default());
        all.push_str("...");
    }
    all
}

/// Names may be escaped: what is not known for certain to be another name is taken for that of a password.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("password") || name.contains(['%', '+'])
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
        for name in ["password", "newPassword", "PASSWORD", "p%61ssword"] {
            let body = format!("roles=admin&{name}=secret%20words");
            let (about, _, fields) =
                of(Need::Users, "PUT /settings/rbac/users/local/ann", body.as_bytes()).unwrap();
            assert_eq!((about, fields), (About::Users, format!("roles=admin&{name}=...")));
        }
        let document = "PUT /pools/default/buckets/b/scopes/_default/collections/_default/docs/k";
        let (about, _, fields) = of(Need::Documents(Rights::WRITE), document, b"value=secret").unwrap();
        assert_eq!((about, fields.as_str()), (About::Documents, ""));
        let long = "a".repeat(2 * FIELDS_BYTES_MAX);
        let (.., fields) = of(Need::Node(Rights::NODE), "POST /settings/stats", long.as_bytes()).unwrap();
        assert_eq!(fields.len(), FIELDS_BYTES_MAX + 3);
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
    }
}
