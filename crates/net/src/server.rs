//! The data plane as a whole: its threads, and how they start and stop.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use kv::Node;
use kv::clients;
use mio::{Poll, Waker};
use parking_lot::Mutex;
use sessions::{Port, Rules};
use transport::{Handshakes, OutgoingTls, ServerTls};

use crate::acceptor::{Acceptor, is_starved};
use crate::aside::{Aside, Done, aside_threads};
use crate::clock::Clock;
use crate::durability::Poller;
use crate::journals::{Journals, Unwritten, journal_threads};
use crate::links::{Encryption, Errand, Links};
use crate::pager;
use crate::refusals::Refusals;
use crate::socket::{listed_address, number};
use crate::worker::Worker;

/// A bound socket and the rules for its connections.
pub struct Listener {
    /// The socket.
    pub socket: transport::Listener,
    /// Present if its connections speak TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Which kind of port it is.
    pub port: Port,
    /// The bucket its connections start with.
    pub bucket: Option<String>,
    /// Whether they must log in before anything else.
    pub login_required: bool,
    /// Largest value they may store, in bytes.
    pub value_limit: usize,
    /// What they may do, on a memcached port.
    pub rules: Rules,
    /// Time after which an idle connection is closed, ms; 0: never.
    pub idle_limit_ms: u64,
}

/// The initial state of a new connection.
pub(crate) struct Greeting {
    pub(crate) port: Port,
    pub(crate) bucket: Option<String>,
    pub(crate) login_required: bool,
    pub(crate) value_limit: usize,
    pub(crate) rules: Rules,
    pub(crate) listener: Arc<clients::Listener>,
    pub(crate) tls: Option<Arc<ServerTls>>,
}

/// State shared by all threads of the server.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) stopping: AtomicBool,
    /// While stopping: how long peers may still take unsent output, in ms.
    pub(crate) grace_ms: AtomicU64,
    /// The acceptor waits for a connection to close.
    pub(crate) starved: AtomicBool,
    pub(crate) refusals: Refusals,
    pub(crate) cut_offs: Refusals,
    pub(crate) aside: Arc<Aside>,
    acceptor: Mutex<Option<Waker>>,
    inboxes: OnceLock<Vec<Arc<Inbox>>>,
}

impl Shared {
    /// Notes that a connection has closed, so that the acceptor can continue.
    pub(crate) fn connection_closed(&self) {
        if is_starved(&self.starved) {
            self.wake_acceptor();
        }
    }

    /// The inboxes of all workers.
    pub(crate) fn inboxes(&self) -> &[Arc<Inbox>] {
        self.inboxes.get().map_or(&[], Vec::as_slice)
    }

    fn wake_acceptor(&self) {
        if let Some(waker) = &*self.acceptor.lock() {
            let _ = waker.wake();
        }
    }
}

/// A connection on its way to its worker.
pub(crate) struct Arrival {
    pub(crate) socket: transport::Stream,
    pub(crate) address: SocketAddr,
    pub(crate) greeting: Arc<Greeting>,
    /// Present if this node has made the connection.
    pub(crate) errand: Option<Errand>,
}

/// The queue of a worker's new connections.
pub(crate) struct Inbox {
    pub(crate) arrivals: Mutex<VecDeque<Arrival>>,
    /// Sessions that come back to the worker.
    pub(crate) done: Mutex<Vec<Done>>,
    /// Connections that the worker has or is about to get.
    pub(crate) connections: AtomicUsize,
    /// The most bytes that one of its connections holds.
    pub(crate) largest: AtomicUsize,
    /// A client was refused for want of room.
    pub(crate) make_room: AtomicBool,
    waker: Waker,
}

impl Inbox {
    pub(crate) fn wake(&self) {
        let _ = self.waker.wake();
    }

    pub(crate) fn come_back(&self, done: Done) {
        self.done.lock().push(done);
        self.wake();
    }

    pub(crate) fn hand_over(&self, arrival: Arrival) {
        self.connections.fetch_add(1, Relaxed);
        let mut arrivals = self.arrivals.lock();
        arrivals.push_back(arrival);
        let is_first = arrivals.len() == 1;
        drop(arrivals);
        if is_first {
            let _ = self.waker.wake();
        }
    }
}

/// Number of executing threads of a server with this many workers.
pub const fn executing_threads(workers: usize) -> usize {
    // Plus the pager and the thread that polls deadlines.
    workers + 2 + journal_threads(workers) + aside_threads(workers)
}

/// The running data plane.
pub struct Server {
    shared: Arc<Shared>,
    inboxes: Vec<Arc<Inbox>>,
    pager_stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
    acceptor: JoinHandle<()>,
    pager: JoinHandle<()>,
    poller: Arc<Poller>,
    links: Arc<Links>,
    journals: Journals,
}

impl Server {
    /// Starts `workers` workers, the acceptor and the pager. Workers are executing threads 0 to `workers - 1` and the
    /// pager is thread `workers`. Then come the thread that polls deadlines, those of persistent buckets, and those for
    /// requests that take long: [`executing_threads`] in all. `handshakes` is required if a listener speaks TLS, or if
    /// connections to other nodes do, as `to_nodes` says.
    pub fn start(
        node: Arc<Node>,
        listeners: Vec<Listener>,
        workers: usize,
        handshakes: Option<Arc<Handshakes>>,
        to_nodes: Option<Arc<OutgoingTls>>,
    ) -> io::Result<Self> {
        let encryption = match (to_nodes, &handshakes) {
            (None, _) => None,
            (Some(tls), Some(handshakes)) => {
                Some(Encryption { tls, handshakes: Mutex::new(Some(Arc::clone(handshakes))) })
            }
            (Some(_), None) => return Err(io::Error::other("TLS to other nodes needs handshakes")),
        };
        let clock = Clock::start();
        let shared = Arc::new(Shared::default());
        let (mut inboxes, mut threads) = (Vec::new(), Vec::new());
        for index in 0..workers {
            let poll = Poll::new()?;
            let waker = Waker::new(poll.registry(), Worker::wake_token())?;
            let inbox = Arc::new(Inbox {
                arrivals: Mutex::default(),
                done: Mutex::default(),
                connections: AtomicUsize::new(0),
                largest: AtomicUsize::new(0),
                make_room: AtomicBool::new(false),
                waker,
            });
            inboxes.push(Arc::clone(&inbox));
            if let Some(mailbox) = node.mailbox(index) {
                let inbox = Arc::clone(&inbox);
                mailbox.connect(Box::new(move || drop(inbox.waker.wake())));
            }
            let worker = Worker::new(poll, Arc::clone(&node), index, clock, inbox, Arc::clone(&shared));
            threads.push(spawn(&format!("dm:worker{index}"), move || worker.run())?);
        }

        let _ = shared.inboxes.set(inboxes.clone());
        shared.aside.start(&node, clock, workers + 2 + journal_threads(workers), &inboxes)?;
        let poll = Poll::new()?;
        *shared.acceptor.lock() = Some(Waker::new(poll.registry(), Acceptor::wake_token())?);
        let now_ms = clock.now().mono_ms();
        let listeners = listeners.into_iter().map(|listener| {
            let Listener { socket, tls, port, bucket, login_required, value_limit, rules, idle_limit_ms } =
                listener;
            let address = listed_address(socket.address());
            let bucket_name = bucket.clone();
            let listener =
                clients::Listener { address, bucket: bucket_name, idle_limit_ms, tls: tls.is_some() };
            let listener = Arc::new(listener);
            if port == Port::Memcached {
                node.clients().add_listener(number(&socket), Arc::clone(&listener), now_ms);
            }
            let greeting = Greeting { port, bucket, login_required, value_limit, rules, listener, tls };
            (socket, Arc::new(greeting))
        });
        let acceptor = Acceptor::new(
            poll,
            listeners.collect(),
            Arc::clone(&node),
            inboxes.clone(),
            Arc::clone(&shared),
            handshakes,
        )?;
        let acceptor = spawn("dm:acceptor", move || acceptor.run())?;

        let pager_stop = Arc::new(AtomicBool::new(false));
        let pager = {
            let (node, stop) = (Arc::clone(&node), Arc::clone(&pager_stop));
            spawn("dm:pager", move || pager::run(node, workers, clock, &stop))?
        };
        let pager_thread = pager.thread().clone();
        node.doorbell().connect(Box::new(move || pager_thread.unpark()));
        let wake = inboxes.clone();
        node.changed_bell().connect(Box::new(move || wake.iter().for_each(|inbox| drop(inbox.waker.wake()))));
        let poller = Poller::new(Arc::clone(&node), workers + 1, clock);
        let look = Arc::clone(&poller);
        node.timeout_mode_bell().connect(Box::new(move || look.look()));
        let links = Links::new(&node, inboxes.clone(), encryption);
        let journals = Journals::new(&node, clock, workers + 2, workers);
        Ok(Self { shared, inboxes, pager_stop, workers: threads, acceptor, pager, poller, links, journals })
    }

    /// Stops accepting, answers received requests for at most `grace`, closes everything and waits for the threads,
    /// except those that write unwritten changes.
    pub fn shutdown(self, grace: Duration) -> Unwritten {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.shared.grace_ms.store(grace_ms, Relaxed);
        self.shared.stopping.store(true, Release);
        self.shared.wake_acceptor();
        let _ = self.acceptor.join();
        self.links.stop();
        for inbox in &self.inboxes {
            let _ = inbox.waker.wake();
        }
        for worker in self.workers {
            let _ = worker.join();
        }
        self.shared.aside.stop();
        self.poller.stop();
        self.pager_stop.store(true, Relaxed);
        self.pager.thread().unpark();
        let _ = self.pager.join();
        Unwritten(self.journals)
    }
}

pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}
