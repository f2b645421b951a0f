//! Connections to the nodes that vBuckets are copied from.
//!
//! ```text
//!   bell ──> which are missing? ──> a thread per attempt: resolve, connect, shake hands ──> a worker's inbox
//!             └ those that failed lately: later
//! ```
//! The thread is started when the first is missing, and sleeps while none is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use kv::replication::PeerNode;
use kv::{Bucket, Node, clients};
use parking_lot::Mutex;
use sessions::{Port, Rules};
use transport::{Handshakes, OutgoingTls, Stream};

use crate::server::{Arrival, Greeting, Inbox};

/// An attempt is given up after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than a handshake may take.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(15);
/// The next attempt comes after this time, doubled each time up to a bound.
const WAIT: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Values of other nodes may be as long as they like: buckets have their own limits.
const VALUE_LIMIT: usize = 20 << 20;

/// A bucket by its place in the node, and a node to copy it from.
type Name = (usize, Arc<str>);

/// What a worker does with a connection to another node.
pub(crate) struct Errand {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) peer: Arc<str>,
}

/// How connections to other nodes are encrypted.
pub(crate) struct Encryption {
    /// Whom this node trusts.
    pub(crate) tls: Arc<OutgoingTls>,
    /// Until this node stops.
    pub(crate) handshakes: Mutex<Option<Arc<Handshakes>>>,
}

/// The connections to other nodes.
pub(crate) struct Links {
    node: Arc<Node>,
    inboxes: Vec<Arc<Inbox>>,
    next_inbox: AtomicUsize,
    greeting: Arc<Greeting>,
    encryption: Option<Encryption>,
    /// Attempts in progress.
    underway: Mutex<BTreeSet<Name>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stops: AtomicBool,
}

impl Links {
    pub(crate) fn new(
        node: &Arc<Node>,
        inboxes: Vec<Arc<Inbox>>,
        encryption: Option<Encryption>,
    ) -> Arc<Self> {
        let address = clients::Address::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
        let listener =
            clients::Listener { address, bucket: None, idle_limit_ms: 0, tls: encryption.is_some() };
        let greeting = Greeting {
            port: Port::Couchbase,
            bucket: None,
            login_required: false,
            value_limit: VALUE_LIMIT,
            rules: Rules::default(),
            listener: Arc::new(listener),
            tls: None,
        };
        let this = Arc::new(Self {
            node: Arc::clone(node),
            inboxes,
            next_inbox: AtomicUsize::new(0),
            greeting: Arc::new(greeting),
            encryption,
            underway: Mutex::default(),
            thread: Mutex::default(),
            stops: AtomicBool::new(false),
        });
        let woken = Arc::clone(&this);
        node.links_bell().connect(Box::new(move || woken.wake()));
        this
    }

    /// Wakes the thread, which is started if there is none.
    fn wake(self: &Arc<Self>) {
        let mut present = self.thread.lock();
        if let Some(thread) = &*present {
            return thread.thread().unpark();
        }
        if self.stops.load(SeqCst) {
            return;
        }
        let this = Arc::clone(self);
        match thread::Builder::new().name("dm:links".to_owned()).spawn(move || this.run()) {
            Ok(thread) => *present = Some(thread),
            Err(error) => tracing::error!(%error, "no thread can be started that connects to other nodes"),
        }
    }

    pub(crate) fn stop(&self) {
        self.stops.store(true, SeqCst);
        if let Some(encryption) = &self.encryption {
            encryption.handshakes.lock().take();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }

    fn run(self: &Arc<Self>) {
        // When the next attempt is due, and after how many it is.
        let mut waits = BTreeMap::<Name, (Instant, u32)>::new();
        while !self.stops.load(SeqCst) {
            self.node.links_bell().answer();
            let (now, mut missing, mut next) = (Instant::now(), BTreeSet::new(), None::<Instant>);
            for bucket in self.node.buckets() {
                for (peer, attempts) in bucket.missing_peers() {
                    let name = (bucket.slot(), Arc::clone(&peer));
                    missing.insert(name.clone());
                    if self.underway.lock().contains(&name) {
                        continue;
                    }
                    let (due, of_attempts) =
                        waits.entry(name.clone()).or_insert((now + wait_after(attempts), attempts));
                    if *of_attempts != attempts {
                        (*due, *of_attempts) = (now + wait_after(attempts), attempts);
                    }
                    if *due > now {
                        next = Some(next.map_or(*due, |next| next.min(*due)));
                        continue;
                    }
                    if !self.attempt(name, &bucket) {
                        next = Some(now + WAIT_MAX);
                    }
                }
            }
            waits.retain(|name, _| missing.contains(name));
            match next {
                None => thread::park(),
                Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
            }
        }
    }

    /// Connects on a thread of its own: a name may take long to be resolved, and a node not to be there.
    /// Returns false if there is none.
    fn attempt(self: &Arc<Self>, name: Name, bucket: &Arc<Bucket>) -> bool {
        bucket.note_attempt(&name.1);
        self.underway.lock().insert(name.clone());
        let (this, bucket, caller) = (Arc::clone(self), Arc::clone(bucket), thread::current());
        let body = {
            let name = name.clone();
            move || {
                if let Err(error) = this.connect(&name.1, &bucket) {
                    let error = error.to_string();
                    if bucket.note_trouble(&name.1, &error) {
                        tracing::warn!(
                            node = &*name.1,
                            bucket = bucket.name(),
                            error,
                            "cannot connect to a node"
                        );
                    }
                }
                this.end(&name, &caller);
            }
        };
        let spawned = thread::Builder::new().name("dm:connect".to_owned()).spawn(body);
        if let Err(error) = &spawned {
            tracing::error!(%error, "no thread can be started to connect to a node");
            self.underway.lock().remove(&name);
        }
        spawned.is_ok()
    }

    fn end(&self, name: &Name, caller: &Thread) {
        self.underway.lock().remove(name);
        caller.unpark();
    }

    fn connect(&self, peer: &Arc<str>, bucket: &Arc<Bucket>) -> io::Result<()> {
        let unknown = || io::Error::other("it is not configured, and its name is no address");
        let PeerNode { host, kv, kv_tls, .. } = self.node.replication().find(peer).ok_or_else(unknown)?;
        let (port, lacks) = match &self.encryption {
            None => (kv, "replication.peers has no KV port without TLS for it"),
            // Never without: a name that is an address says nothing of TLS.
            Some(_) => (kv_tls, "replication.peers has no KV port with TLS for it"),
        };
        let port = port.ok_or_else(|| io::Error::other(lacks))?;
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in (&*host, port).to_socket_addrs()? {
            match self.reach(address, &host) {
                Ok(_) if self.stops.load(SeqCst) => return Err(stopping()),
                Ok(stream) => {
                    let errand = Errand { bucket: Arc::clone(bucket), peer: Arc::clone(peer) };
                    self.hand_over(stream, address, errand);
                    return Ok(());
                }
                // What is wrong with a certificate says more than that nobody is at another address.
                Err(_) if failed.kind() == io::ErrorKind::Other => {}
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Connects to an address, which `host` has been resolved to. Without TLS only this machine is reached: elsewhere
    /// others could read what is copied, and relay the login.
    fn reach(&self, address: SocketAddr, host: &str) -> io::Result<Stream> {
        if self.encryption.is_none() && !address.ip().to_canonical().is_loopback() {
            let why = format!("replication.ca is needed, for TLS: {} is not this machine", address.ip());
            return Err(io::Error::other(why));
        }
        let socket = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        socket.set_nodelay(true)?;
        let stream = Stream::adopt(socket)?;
        let Some(Encryption { tls, handshakes }) = &self.encryption else { return Ok(stream) };
        let handshakes = handshakes.lock().clone().ok_or_else(stopping)?;
        let stream = stream.into_tls_client(&tls.current(), host)?;
        let (done, over) = mpsc::channel();
        handshakes.begin(stream, move |result| drop(done.send(result)));
        let result = over.recv_timeout(HANDSHAKE_PATIENCE);
        let result = result.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        result.map_err(|error| io::Error::other(format!("TLS handshake: {}", transport::explain(&error))))
    }

    fn hand_over(&self, socket: Stream, address: SocketAddr, errand: Errand) {
        let next = self.next_inbox.fetch_add(1, Relaxed);
        if let Some(inbox) = self.inboxes.get(next % self.inboxes.len().max(1)) {
            self.node.connection_opened();
            let greeting = Arc::clone(&self.greeting);
            inbox.hand_over(Arrival { socket, address, greeting, errand: Some(errand) });
        }
    }
}

fn stopping() -> io::Error {
    io::Error::other("this node is stopping")
}

/// How long to wait after this many attempts.
fn wait_after(attempts: u32) -> Duration {
    match attempts {
        0 => Duration::ZERO,
        _ => WAIT.saturating_mul(1 << (attempts - 1).min(16)).min(WAIT_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_up_to_a_bound() {
        let waits: Vec<u128> = (0..10).map(|attempts| wait_after(attempts).as_millis()).collect();
        assert_eq!(waits, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(wait_after(u32::MAX), WAIT_MAX);
    }
}
