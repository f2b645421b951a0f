//! Rate-limited log lines about closed connections: of peers that speak TLS to a plain port, or plain text to a TLS
//! port, and of peers that held much memory. Each line has the number of those suppressed before it.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(10);
/// The first bytes of a TLS client: a handshake record and its version.
const HELLO: [u8; 2] = [22, 3];

/// What a TLS client is told at a port without TLS. It is no TLS either, which clients know as the sign of such a port
/// (OpenSSL: "wrong version number"); an alert would blame the version.
pub(crate) const NOT_TLS: &[u8] = b"CLIENT_ERROR this port does not speak TLS\r\n";

#[derive(Default)]
pub(crate) struct Refusals(Mutex<Logged>);

#[derive(Default)]
struct Logged {
    last: Option<Instant>,
    /// Refusals since the last line.
    unlogged: u64,
}

impl Refusals {
    pub(crate) fn log(&self, peer: IpAddr, why: &str) {
        let mut logged = self.0.lock();
        if logged.last.is_some_and(|last| last.elapsed() < PAUSE) {
            logged.unlogged += 1;
            return;
        }
        let others = std::mem::take(&mut logged.unlogged);
        logged.last = Some(Instant::now());
        drop(logged);
        tracing::warn!(%peer, others, "closed a connection: {why}");
    }
}

/// Returns true if a peer's first bytes are those of TLS. No other protocol here begins like that.
pub(crate) fn begins_tls(bytes: &[u8]) -> bool {
    bytes.starts_with(&HELLO)
}
