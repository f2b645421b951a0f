//! What a node prints once it serves: where to connect, and as which user.

use crate::config::size;
use crate::password::{Login, Source};
use kv::Node;
use kv::node::{Endpoints, Service, UnixEndpoint};
use std::io::Write as _;
use std::net::SocketAddr;

/// The default Couchbase KV port, which a connection string may omit.
const KV_PORT: u16 = 11210;

/// Prints the banner on standard output; write errors are ignored.
pub fn print(node: &Node, endpoints: &Endpoints, login: &Login, workers: usize, memory_bytes: u64) {
    let mut text = text(endpoints, login, workers, memory_bytes) + &persistent_buckets(node);
    if !endpoints.services.is_empty() {
        text += CONTAINER_STARTS;
    }
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// COMPAT: the line that the module of testcontainers for Node waits for; `<ip>` is meant as it stands.
const CONTAINER_STARTS: &str = "Starting Couchbase Server -- Web UI available at http://<ip>:8091\n";

fn text(endpoints: &Endpoints, login: &Login, workers: usize, memory_bytes: u64) -> String {
    let mut lines = vec![format!(
        "dormouse {} serves: pid {}, {workers} worker{}, {} for buckets, {}",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        if workers == 1 { "" } else { "s" },
        about(memory_bytes),
        memory::backend::version()
    )];
    for (address, bucket) in &endpoints.memcached {
        let asks = if login.is_development() { "no login" } else { "login" };
        lines
            .push(format!("  memcached  {address}  bucket {bucket}; text, meta and binary protocol; {asks}"));
    }
    for (address, bucket) in &endpoints.memcached_tls {
        lines.push(format!("  memcached  {address}  bucket {bucket}; TLS"));
    }
    for address in &endpoints.kv {
        lines.push(format!("  Couchbase  {}", connection_string(*address)));
    }
    for address in &endpoints.kv_tls {
        lines.push(format!("  Couchbase  couchbases://{address}"));
    }
    for address in &endpoints.http_tls {
        lines.push(format!("  HTTPS      https://{address}/health  /metrics  /pools/default"));
    }
    for address in &endpoints.http {
        lines.push(format!("  HTTP       http://{address}/health  /metrics  /pools/default"));
    }
    for (scheme, addresses) in [("https", &endpoints.http_tls), ("http", &endpoints.http)] {
        lines.extend(addresses.first().map(|address| format!("  page       {scheme}://{address}/")));
    }
    for UnixEndpoint { service, path, bucket } in &endpoints.unix {
        let (path, bucket) = (path.display(), bucket.as_deref().unwrap_or_default());
        let asks = if login.is_development() { "no login" } else { "login" };
        lines.push(match service {
            Service::Memcached => {
                format!("  memcached  unix:{path}  bucket {bucket}; text, meta and binary protocol; {asks}")
            }
            Service::Kv => format!("  Couchbase  unix:{path}"),
            Service::Http => format!("  HTTP       unix:{path}"),
        });
    }
    for port in &endpoints.services {
        lines.push(format!(
            "  {:<10} http://{}  answers pings for test containers",
            port.service, port.address
        ));
    }
    lines.push(match login.source {
        Source::Development => {
            format!(
                "  user       {} / {}: the development user, on loopback only",
                login.user, login.password
            )
        }
        Source::Files => format!(
            "  user       {} with the password of its file{}; every protocol demands it",
            login.user,
            match login.others.len() {
                0 => String::new(),
                others => format!(", and {others} more"),
            }
        ),
        Source::Kept => "  user       those created over HTTP; every protocol demands one".into(),
    });
    lines.join("\n") + "\n"
}

/// A line for each persistent bucket, and a warning for each that is not synced.
fn persistent_buckets(node: &Node) -> String {
    let mut text = String::new();
    for bucket in node.buckets() {
        let Some(persistence) = bucket.persistence() else { continue };
        let (name, directory) = (bucket.name(), persistence.directory().display());
        let warm_up = persistence.warm_up();
        let state = if warm_up.is_running() {
            format!("; warming up, {} of {} segments read", warm_up.segments_done, warm_up.segments)
        } else {
            String::new()
        };
        text += &format!("  persistent bucket {name} in {directory}{state}\n");
        if !persistence.settings().sync {
            text += &format!(
                "  WARNING    bucket {name}: sync = false; what is reported as durable is NOT safe from a crash of \
                the machine\n"
            );
        }
    }
    text
}

fn connection_string(address: SocketAddr) -> String {
    match address.port() {
        KV_PORT => format!("couchbase://{}  (port {KV_PORT})", host(address)),
        port => format!("couchbase://{}:{port}", host(address)),
    }
}

fn host(address: SocketAddr) -> String {
    if address.is_ipv6() { format!("[{}]", address.ip()) } else { address.ip().to_string() }
}

/// A human-readable size: exact if it is round, else rounded to the mebibyte.
fn about(bytes: u64) -> String {
    size::show(if bytes >= 1 << 30 { bytes >> 20 << 20 } else { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_where_and_as_whom() {
        let address = |text: &str| text.parse().expect("an address");
        let endpoints = Endpoints {
            memcached: vec![(address("127.0.0.1:11211"), "default".into())],
            kv: vec![address("127.0.0.1:11210"), address("[::1]:7")],
            http: vec![address("127.0.0.1:8091")],
            unix: vec![UnixEndpoint { service: Service::Http, path: "/run/node".into(), bucket: None }],
            kv_tls: vec![address("127.0.0.1:11207")],
            ..Endpoints::default()
        };
        let mut login = Login {
            user: "Administrator".into(),
            password: "password".into(),
            source: Source::Development,
            others: vec![],
        };
        let text = text(&endpoints, &login, 1, 1 << 30);
        assert_eq!(text.lines().count(), 9);
        assert!(text.contains("  page       http://127.0.0.1:8091/\n"));
        assert!(text.contains("couchbases://127.0.0.1:11207\n"));
        assert!(text.contains("  HTTP       unix:/run/node\n"));
        assert!(text.contains("1 worker, 1GiB for buckets"));
        assert!(text.contains("couchbase://127.0.0.1  (port 11210)") && text.contains("couchbase://[::1]:7"));
        assert!(text.contains("Administrator / password: the development user, on loopback only"));
        login.source = Source::Files;
        login.password = "secret".into();
        let text = super::text(&endpoints, &login, 2, 1 << 30);
        assert!(text.contains("login") && !text.contains("secret"));
    }
}
