//! Connections to the nodes that vBuckets are copied from.
//!
//! ```text
//!   bell ──> which are missing? ──> a thread per attempt: resolve, connect ──> a worker's inbox
//!             └ those that failed lately: later
//! ```
//! The thread is started when the first is missing, and sleeps while none is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use kv::replication::PeerNode;
use kv::{Bucket, Node, clients};
use parking_lot::Mutex;
use sessions::{Port, Rules};
use transport::Stream;

use crate::server::{Arrival, Greeting, Inbox};

/// An attempt is given up after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
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

/// The connections to other nodes.
pub(crate) struct Links {
    node: Arc<Node>,
    inboxes: Vec<Arc<Inbox>>,
    next_inbox: AtomicUsize,
    greeting: Arc<Greeting>,
    /// Attempts in progress.
    underway: Mutex<BTreeSet<Name>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stops: AtomicBool,
}

impl Links {
    pub(crate) fn new(node: &Arc<Node>, inboxes: Vec<Arc<Inbox>>) -> Arc<Self> {
        let address = clients::Address::Tcp(SocketAddr::from(([0, 0, 0, 0], 0)));
        let listener = clients::Listener { address, bucket: None, idle_limit_ms: 0, tls: false };
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
                    if !self.attempt(name, &bucket, attempts) {
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
    fn attempt(self: &Arc<Self>, name: Name, bucket: &Arc<Bucket>, attempts: u32) -> bool {
        bucket.note_attempt(&name.1);
        self.underway.lock().insert(name.clone());
        let (this, bucket, caller) = (Arc::clone(self), Arc::clone(bucket), thread::current());
        let body = {
            let name = name.clone();
            move || {
                if let Err(error) = this.connect(&name.1, &bucket) {
                    // Once is enough for the log.
                    if attempts == 0 {
                        tracing::warn!(node = &*name.1, bucket = bucket.name(), %error, "cannot connect to a node");
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
        let PeerNode { host, kv, .. } = self.node.replication().find(peer).ok_or_else(unknown)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (&*host, kv).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    let errand = Errand { bucket: Arc::clone(bucket), peer: Arc::clone(peer) };
                    self.hand_over(Stream::adopt(socket)?, address, errand);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
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
