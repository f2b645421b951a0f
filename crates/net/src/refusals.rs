//! Log lines about peers that speak TLS where it is not spoken, or do not where it is: a line at a time, with the
//! number of those in between.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(10);
/// How a client of TLS begins: a record of a handshake, and its version.
const HELLO: [u8; 2] = [22, 3];

#[derive(Default)]
pub(crate) struct Refusals(Mutex<Told>);

#[derive(Default)]
struct Told {
    last: Option<Instant>,
    /// Refusals since then.
    untold: u64,
}

impl Refusals {
    pub(crate) fn tell(&self, peer: IpAddr, why: &str) {
        let mut told = self.0.lock();
        if told.last.is_some_and(|last| last.elapsed() < PAUSE) {
            told.untold += 1;
            return;
        }
        let others = std::mem::take(&mut told.untold);
        told.last = Some(Instant::now());
        drop(told);
        tracing::warn!(%peer, others, "closed a connection: {why}");
    }
}

/// Whether the first bytes of a peer are those of TLS. No other protocol here begins like that.
pub(crate) fn begins_tls(bytes: &[u8]) -> bool {
    bytes.starts_with(&HELLO)
}
