//! The acceptor: accepts connections and hands each to the least loaded worker.
//!
//! When file descriptors run out, it stops accepting until a connection closes. It does not spin; peers wait in the
//! kernel's queue meanwhile.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kv::{Limits, Node};
use mio::{Events, Interest, Poll, Token};
use sessions::Port;

use crate::clock;
use crate::server::{Arrival, Greeting, Inbox, Shared};
use crate::socket::peer_address;
use transport::{Handshakes, Listener, Stream};

const WAKE: Token = Token(usize::MAX);
/// While there is no room for more connections, the workers look for some this often.
const ROOM_MS: u64 = 100;
const TOO_MANY: &[u8] = b"ERROR Too many open connections\r\n";

pub(crate) struct Acceptor {
    poll: Poll,
    listeners: Vec<(Listener, Arc<Greeting>)>,
    node: Arc<Node>,
    arrivals: Arc<Arrivals>,
    shared: Arc<Shared>,
    /// Present if a port speaks TLS.
    handshakes: Option<Arc<Handshakes>>,
    asked_ms: Cell<u64>,
}

/// Takes connections that are ready to be served to the workers.
struct Arrivals {
    node: Arc<Node>,
    inboxes: Vec<Arc<Inbox>>,
    shared: Arc<Shared>,
}

impl Arrivals {
    fn hand_over(&self, stream: Stream, address: SocketAddr, greeting: Arc<Greeting>) {
        let least = self.inboxes.iter().min_by_key(|inbox| inbox.connections.load(Relaxed));
        if let Some(inbox) = least {
            inbox.hand_over(Arrival { socket: stream, address, greeting, errand: None });
        }
    }

    /// Logs a failed handshake and releases its place in the connection count.
    fn refuse(&self, address: SocketAddr, error: &io::Error) {
        let why = format!("the TLS handshake failed: {}", transport::explain(error));
        self.shared.refusals.log(address.ip(), &why);
        self.node.connection_closed();
        self.shared.connection_closed();
    }
}

impl Acceptor {
    pub(crate) fn new(
        poll: Poll,
        mut listeners: Vec<(Listener, Arc<Greeting>)>,
        node: Arc<Node>,
        inboxes: Vec<Arc<Inbox>>,
        shared: Arc<Shared>,
        handshakes: Option<Arc<Handshakes>>,
    ) -> io::Result<Self> {
        for (index, (listener, _)) in listeners.iter_mut().enumerate() {
            poll.registry().register(listener, Token(index), Interest::READABLE)?;
        }
        let arrivals = Arc::new(Arrivals { node: Arc::clone(&node), inboxes, shared: Arc::clone(&shared) });
        Ok(Self { poll, listeners, node, arrivals, shared, handshakes, asked_ms: Cell::new(0) })
    }

    pub(crate) const fn wake_token() -> Token {
        WAKE
    }

    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        while !self.shared.stopping.load(Relaxed) {
            self.node.accepting_again(clock::mono_us());
            for index in 0..self.listeners.len() {
                self.accept_all(index);
            }
            match self.poll.poll(&mut events, None) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "the acceptor cannot wait for connections and ends");
                    return;
                }
            }
        }
    }

    fn accept_all(&self, index: usize) {
        let Some((listener, greeting)) = self.listeners.get(index) else { return };
        loop {
            match listener.accept() {
                Ok((mut socket, address)) => {
                    let address = peer_address(address);
                    let counts = self.node.connections();
                    if !has_room(counts.current, &self.node.limits(), address.ip().is_loopback()) {
                        self.node.connection_rejected();
                        self.ask_for_room();
                        if greeting.port == Port::Memcached && greeting.tls.is_none() {
                            // Best effort: a fresh socket takes these few bytes, or the peer is already gone.
                            let _ = io::Write::write(&mut socket, TOO_MANY);
                        }
                        continue;
                    }
                    self.node.connection_opened();
                    self.welcome(socket, address, greeting);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        self.shared.starved.store(true, Relaxed);
                        self.node.accepting_stopped(clock::mono_us());
                        self.node.connection_rejected();
                        tracing::warn!(%error, "no connection can be accepted until another closes");
                        return;
                    }
                },
            }
        }
    }
}

impl Acceptor {
    /// Asks the workers for room, once in [`ROOM_MS`].
    fn ask_for_room(&self) {
        let now_ms = clock::mono_us() / 1000;
        if now_ms < self.asked_ms.get() + ROOM_MS {
            return;
        }
        self.asked_ms.set(now_ms);
        for inbox in self.shared.inboxes() {
            inbox.make_room.store(true, Relaxed);
            inbox.wake();
        }
    }

    /// Hands a connection to a worker, after its TLS handshake if it has one.
    fn welcome(&self, stream: Stream, address: SocketAddr, greeting: &Arc<Greeting>) {
        let (arrivals, greeting) = (Arc::clone(&self.arrivals), Arc::clone(greeting));
        let (Some(tls), Some(handshakes)) = (&greeting.tls, &self.handshakes) else {
            return arrivals.hand_over(stream, address, greeting);
        };
        match stream.into_tls(tls) {
            Ok(stream) => handshakes.begin(stream, move |result| match result {
                Ok(stream) => arrivals.hand_over(stream, address, greeting),
                Err(error) => arrivals.refuse(address, &error),
            }),
            Err(error) => arrivals.refuse(address, &error),
        }
    }
}

/// Returns true if one more connection is within the limits. Part of the limit, at most half, is reserved for loopback
/// addresses.
fn has_room(current: u64, limits: &Limits, is_loopback: bool) -> bool {
    let reserve = if is_loopback { 0 } else { limits.loopback_connections.min(limits.connections / 2) };
    current < (limits.connections - reserve) as u64
}

/// Returns true if the acceptor waits for a connection to close, and clears the flag.
pub(crate) fn is_starved(starved: &AtomicBool) -> bool {
    starved.load(Relaxed) && starved.swap(false, Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_connections_are_for_loopback_addresses_only() {
        let limits = |connections, loopback_connections| Limits {
            connections,
            loopback_connections,
            ..Limits::default()
        };
        let most = |limits: &Limits, is_loopback| (0..).find(|n| !has_room(*n, limits, is_loopback)).unwrap();
        let wide = limits(100, 16);
        assert_eq!((most(&wide, false), most(&wide, true)), (84, 100));
        let narrow = limits(4, 16);
        assert_eq!((most(&narrow, false), most(&narrow, true)), (2, 4));
        let single = limits(1, 16);
        assert_eq!((most(&single, false), most(&single, true)), (1, 1));
    }
}
