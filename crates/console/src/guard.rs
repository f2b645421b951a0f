//! Prevents web pages from controlling the node through a visitor's browser.
//!
//! A page can make a browser send requests to any address, with the browser's stored credentials. It cannot set all
//! headers:
//!
//! ```text
//!   Host             the name by which the page calls the node. Allowed: IP addresses, localhost, configured names.
//!                    A page's own name that resolves to the node (DNS rebinding) is none of these: 421. Without one: 400
//!   Origin           set by browsers on requests of pages. Allowed: the node itself. Else: 403
//!   Sec-Fetch-Site   set by newer browsers on every request. Allowed: same-origin, none (typed by the user), and any
//!                    for a link to the page at `/`. Else: 403
//!   Referer          on changes, as Origin. Else: 403
//!   User-Agent       a browser's, on a change without Origin and Sec-Fetch-Site, requires X-Requested-With, which a
//!                    form cannot send, and a script only to its own origin. Else: 403
//! ```
//!
//! SDKs, curl and similar clients send only Host and a User-Agent of their own, and are unaffected.
//!
//! While everybody may do everything, a login does not keep a page out, and neither does Host, which may be any: no
//! browser is served then, except with the page and the health checks: 403.

use crate::Console;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{Ipv4Addr, Ipv6Addr};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const SEC_FETCH_USER: HeaderName = HeaderName::from_static("sec-fetch-user");
const X_REQUESTED_WITH: HeaderName = HeaderName::from_static("x-requested-with");

/// The host names under which clients may address the node, besides IP addresses and `localhost`.
#[derive(Debug, Clone, Default)]
pub struct HostNames {
    names: Vec<String>,
}

impl HostNames {
    /// `*` stands for every name.
    pub const ANY: &'static str = "*";

    /// Allows these names; case does not matter.
    pub fn new(names: &[String]) -> Self {
        Self { names: names.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    /// These names, and others that an operator has given the node.
    fn and<'a>(&self, others: impl IntoIterator<Item = &'a str>) -> Self {
        let others = others.into_iter().map(str::to_ascii_lowercase);
        Self { names: self.names.iter().cloned().chain(others).collect() }
    }

    /// Returns true if `authority`, a host with or without a port, is allowed.
    fn allow(&self, authority: &str) -> bool {
        let host = match authority.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((address, port)) if is_port(port) => return address.parse::<Ipv6Addr>().is_ok(),
                _ => return false,
            },
            None => match authority.split_once(':') {
                Some((host, port)) if is_digits(port) => host,
                Some(_) => return false,
                None => authority,
            },
        };
        host.parse::<Ipv4Addr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|name| name == Self::ANY || name.eq_ignore_ascii_case(host))
    }
}

fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(is_digits)
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Refuses requests that a web page of another origin may have sent.
pub async fn check(State(console): State<Console>, request: Request, next: Next) -> Response {
    let profile = console.node.profile();
    let own = [profile.hostname.as_deref(), profile.external.as_ref().map(|external| &*external.hostname)];
    let names = console.host_names.and(own.into_iter().flatten());
    match verdict(&names, !console.control.is_provisioned(), &request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

type Refusal = (StatusCode, String);

/// `is_open`: everybody may do everything.
fn verdict(names: &HostNames, is_open: bool, request: &Request) -> Result<(), Refusal> {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let foreign = |what: String| Err((StatusCode::FORBIDDEN, format!("{what}\r\n")));
    let host = match one(headers, header::HOST) {
        Ok(None) if request.version() >= Version::HTTP_11 => {
            return Err((StatusCode::BAD_REQUEST, "HTTP/1.1 needs the header Host.\r\n".into()));
        }
        Ok(host) => host,
        Err(()) => return Err((StatusCode::BAD_REQUEST, "More than one Host.\r\n".into())),
    };
    let asked = host.into_iter().chain(uri.authority().map(|authority| authority.as_str()));
    for authority in asked {
        if !names.allow(authority) {
            let what = format!(
                "This node does not answer to the name {authority:?}. Allowed: its IP address, localhost, and the \
                names in the \
                 configuration key http.host_names.\r\n"
            );
            return Err((StatusCode::MISDIRECTED_REQUEST, what));
        }
    }
    if is_open && !has_nothing_of_the_node(method, uri) && is_of_browser(headers) {
        return foreign(
            "Until this node has an administrator it serves no browser. Set one with POST /settings/web, or start the \
             node with a password file."
                .into(),
        );
    }
    let origin = one(headers, header::ORIGIN);
    if !matches!(origin, Ok(None)) && !is_same_origin(origin, host) {
        return foreign("A web page of another origin may not use this node (Origin).".into());
    }
    let site = one(headers, SEC_FETCH_SITE);
    // A link to the page itself may be anywhere: it holds nothing of the node.
    let follows_link = *method == Method::GET
        && uri.path() == "/"
        && matches!(one(headers, SEC_FETCH_DEST), Ok(Some("document")));
    if !follows_link && !matches!(site, Ok(None | Some("same-origin" | "none"))) {
        return foreign("A web page of another origin may not use this node (Sec-Fetch-Site).".into());
    }
    if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let referer = one(headers, header::REFERER);
    if !matches!(referer, Ok(None)) && !is_same_origin(referer, host) {
        return foreign("A web page of another origin may not use this node (Referer).".into());
    }
    let names_origin = matches!(origin, Ok(Some(_))) || matches!(site, Ok(Some(_)));
    if !names_origin && is_browser(headers) && !headers.contains_key(X_REQUESTED_WITH) {
        return foreign(
            "A browser that sends no Origin needs the header X-Requested-With for a change.".into(),
        );
    }
    Ok(())
}

/// The value of a header; an error if there are several, or not text.
fn one(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(drop),
        (Some(_), Some(_)) => Err(()),
    }
}

/// Returns true if the URL's authority is the addressed host.
fn is_same_origin(url: Result<Option<&str>, ()>, host: Option<&str>) -> bool {
    let (Ok(Some(url)), Some(host)) = (url, host) else { return false };
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next());
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

/// All browsers claim to be Mozilla, except for an old one; none omits the header.
fn is_browser(headers: &HeaderMap) -> bool {
    let is_one =
        |agent: &[u8]| agent.is_empty() || agent.starts_with(b"Mozilla/") || agent.starts_with(b"Opera/");
    headers.get_all(header::USER_AGENT).iter().any(|agent| is_one(agent.as_bytes()))
}

/// The page's files and the health checks.
fn has_nothing_of_the_node(method: &Method, uri: &Uri) -> bool {
    let path = uri.path();
    *method == Method::GET && (path == "/" || path.starts_with("/page/") || path.starts_with("/health"))
}

/// Returns true if a browser may have sent the request.
///
/// COMPAT: not `Sec-Fetch-Mode`, which the `fetch` of Node.js sends too, as in its module of testcontainers.
fn is_of_browser(headers: &HeaderMap) -> bool {
    let own = [header::ORIGIN, header::REFERER, SEC_FETCH_SITE, SEC_FETCH_DEST, SEC_FETCH_USER];
    own.iter().any(|name| headers.contains_key(name)) || is_browser(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn asked(names: &HostNames, is_open: bool, request: axum::http::request::Builder) -> u16 {
        let request = request.body(Body::empty()).unwrap();
        verdict(names, is_open, &request).map_or_else(|(code, _)| code.as_u16(), |()| 200)
    }

    fn with(method: Method, uri: &str, given: &[(&str, &str)]) -> axum::http::request::Builder {
        let request = Request::builder().method(method).uri(uri);
        given.iter().fold(request, |request, (name, value)| request.header(*name, *value))
    }

    fn status(method: Method, given: &[(&str, &str)]) -> u16 {
        asked(&HostNames::new(&["DB1.example".into()]), false, with(method, "/", given))
    }

    #[test]
    fn a_browser_is_not_served_while_everybody_may_do_everything() {
        let any = HostNames::new(&[HostNames::ANY.into()]);
        let host = ("host", "rebound.example:8091");
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)");
        for header in [
            ("origin", "http://rebound.example:8091"),
            ("referer", "http://rebound.example:8091/"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-dest", "empty"),
            ("sec-fetch-user", "?1"),
            browser,
        ] {
            for (method, path) in
                [(Method::POST, "/settings/web"), (Method::POST, "/"), (Method::GET, "/settings/rbac/users")]
            {
                let request = || with(method.clone(), path, &[host, header, ("x-requested-with", "script")]);
                assert_eq!(asked(&any, true, request()), 403, "{method} {path}, {header:?}");
                if header.0 != "referer" && header.0 != "origin" {
                    assert_eq!(asked(&any, false, request()), 200, "{method} {path}, {header:?}");
                }
            }
        }
        for path in ["/", "/page/main.js", "/health", "/health/live"] {
            assert_eq!(asked(&any, true, with(Method::GET, path, &[host, browser])), 200, "{path}");
        }
        for header in [("sec-fetch-mode", "cors"), ("user-agent", "node"), ("user-agent", "okhttp/3.14.9")] {
            assert_eq!(asked(&any, true, with(Method::POST, "/settings/web", &[host, header])), 200);
        }
    }

    #[test]
    fn a_request_names_its_host() {
        assert_eq!(status(Method::GET, &[]), 400);
        let old = with(Method::GET, "/", &[]).version(Version::HTTP_10);
        assert_eq!(asked(&HostNames::default(), false, old), 200);
    }

    #[test]
    fn only_addresses_localhost_and_configured_names_are_hosts() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8091",
            "10.0.0.7:1",
            "[::1]",
            "[fe80::1]:8091",
            "localhost:9",
            "LOCALHOST",
            "db1.EXAMPLE:80",
        ] {
            assert_eq!(status(Method::GET, &[("host", host)]), 200, "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "localhost:80:90",
            "127.0.0.1:x",
            "",
            "[::1]x",
            "[evil]",
            "::1",
            "user@127.0.0.1",
            "2130706433",
        ] {
            assert_eq!(status(Method::GET, &[("host", host)]), 421, "{host}");
        }
        assert_eq!(status(Method::GET, &[("host", "localhost"), ("host", "evil.example")]), 400);
        let any = HostNames::new(&["*".into()]);
        assert!(any.allow("whatever.example:8091") && !any.allow("a:b"));
        let absolute = with(Method::GET, "http://evil.example/", &[("host", "localhost")]);
        assert_eq!(asked(&HostNames::default(), false, absolute), 421);
    }

    #[test]
    fn a_link_leads_to_the_page_and_to_nothing_else() {
        let link = [
            ("host", "127.0.0.1:8091"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert_eq!(status(Method::GET, &link), 200);
        assert_eq!(status(Method::POST, &link), 403);
        assert_eq!(status(Method::GET, &[link[0], link[1], link[2], ("sec-fetch-dest", "iframe")]), 403);
        assert_eq!(asked(&HostNames::default(), false, with(Method::GET, "/metrics", &link)), 403);
    }

    #[test]
    fn pages_of_another_origin_are_refused() {
        let host = ("host", "127.0.0.1:8091");
        for (name, value) in [
            ("origin", "http://evil.example"),
            ("origin", "http://127.0.0.1:3000"),
            ("origin", "null"),
            ("origin", "file://"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "surprise"),
        ] {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                assert_eq!(status(method, &[host, (name, value)]), 403, "{name}: {value}");
            }
        }
        assert_eq!(status(Method::POST, &[host, ("referer", "http://evil.example/page")]), 403);
        assert_eq!(status(Method::GET, &[host, ("referer", "http://wiki.example/page")]), 200);
        for (name, value) in [
            ("origin", "http://127.0.0.1:8091"),
            ("sec-fetch-site", "same-origin"),
            ("sec-fetch-site", "none"),
        ] {
            assert_eq!(status(Method::POST, &[host, (name, value)]), 200, "{name}: {value}");
        }
    }

    #[test]
    fn a_change_needs_what_a_form_cannot_send() {
        let host = ("host", "127.0.0.1:8091");
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/605.1.15");
        assert_eq!(status(Method::POST, &[host, browser]), 403);
        assert_eq!(status(Method::POST, &[host, ("user-agent", "")]), 403);
        assert_eq!(status(Method::GET, &[host, browser]), 200);
        assert_eq!(status(Method::POST, &[host, browser, ("x-requested-with", "script")]), 200);
        for agent in ["curl/8.5.0", "gocbcore/v10", "okhttp/4.12.0", "couchbase-java/3", "cxx/1.0.0"] {
            assert_eq!(status(Method::POST, &[host, ("user-agent", agent)]), 200, "{agent}");
        }
        assert_eq!(status(Method::POST, &[host]), 200);
    }
}
