//! The node: its buckets, users and endpoints.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use memory::Quiescence;
use parking_lot::RwLock;

use crate::Bucket;
use crate::settings::{BucketSettings, Limits, NodeSettings};
use crate::users::Users;

/// The addresses in use, known once the listeners are bound.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    /// memcached addresses with their bucket.
    pub memcached: Vec<(std::net::SocketAddr, String)>,
    /// Couchbase KV addresses.
    pub kv: Vec<std::net::SocketAddr>,
    /// HTTP addresses.
    pub http: Vec<std::net::SocketAddr>,
}

/// Why a bucket could not be made or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The name is taken.
    #[error("bucket {0:?} exists already")]
    Exists(String),
    /// There is none of that name.
    #[error("there is no bucket {0:?}")]
    Missing(String),
    /// A setting is out of range.
    #[error("{0}")]
    Invalid(String),
}

/// A bell that wakes a thread which waits for work. Ringing twice before it is answered wakes once.
#[derive(Default)]
pub struct Doorbell {
    rung: AtomicBool,
    bell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Doorbell {
    /// Says how the thread is woken (once).
    pub fn connect(&self, bell: Box<dyn Fn() + Send + Sync>) {
        let _ = self.bell.set(bell);
        if self.rung.load(Relaxed) {
            self.wake();
        }
    }

    /// Wakes the thread.
    #[inline]
    pub fn ring(&self) {
        if !self.rung.load(Relaxed) && !self.rung.swap(true, Relaxed) {
            self.wake();
        }
    }

    /// The thread is awake: the next ring wakes it again.
    pub fn answer(&self) {
        self.rung.store(false, Relaxed);
    }

    fn wake(&self) {
        if let Some(bell) = self.bell.get() {
            bell();
        }
    }
}

/// Connection counters of the node.
#[derive(Debug, Clone, Copy, Default)]
pub struct ConnectionCounts {
    /// Open now.
    pub current: u64,
    /// Accepted since the start.
    pub total: u64,
    /// Refused at the connection limit or for want of file descriptors.
    pub rejected: u64,
}

#[derive(Default)]
struct Connections {
    total: AtomicU64,
    closed: AtomicU64,
    rejected: AtomicU64,
}

#[derive(Default)]
struct Buckets {
    by_name: BTreeMap<String, Arc<Bucket>>,
    next_slot: usize,
}

const NAME_MAX: usize = 100;
const VBUCKETS_MAX: u16 = 1024;

/// A node. One per process; shared by all sessions, the console and the background threads.
pub struct Node {
    settings: NodeSettings,
    limits: RwLock<Limits>,
    buckets: RwLock<Buckets>,
    generation: AtomicU64,
    endpoints: OnceLock<Endpoints>,
    users: OnceLock<Users>,
    connections: Connections,
    quiescence: Arc<Quiescence>,
    doorbell: Arc<Doorbell>,
    shutdown: Doorbell,
    changed: Doorbell,
    started_unix_s: AtomicU64,
    /// The pager knows that some bucket wants its free pages given back.
    purge_asked: AtomicBool,
    random: AtomicU64,
}

impl Node {
    /// A node without buckets.
    pub fn new(settings: NodeSettings, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits: RwLock::new(limits),
            buckets: RwLock::default(),
            generation: AtomicU64::new(1),
            endpoints: OnceLock::new(),
            users: OnceLock::new(),
            connections: Connections::default(),
            quiescence: Arc::new(Quiescence::new(settings.threads)),
            doorbell: Arc::default(),
            shutdown: Doorbell::default(),
            changed: Doorbell::default(),
            started_unix_s: AtomicU64::new(0),
            purge_asked: AtomicBool::new(false),
            random: AtomicU64::new(settings.seed),
            settings,
        })
    }

    /// Settings it was made with.
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits.read().clone()
    }

    /// Replaces the limits (SIGHUP); new sessions see them.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write() = limits;
    }

    /// Makes a bucket: name 1 to 100 characters of `A-Za-z0-9_.%-`.
    pub fn create_bucket(&self, name: &str, settings: BucketSettings) -> Result<Arc<Bucket>, BucketError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_.%-".contains(c);
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(allowed) {
            let message = format!(
                "bucket name {name:?}: 1 to {NAME_MAX} characters of A-Z a-z 0-9 _ . % - are allowed"
            );
            return Err(BucketError::Invalid(message));
        }
        if !settings.vbuckets.is_power_of_two() || settings.vbuckets > VBUCKETS_MAX {
            let message =
                format!("vbuckets {}: a power of two from 1 to {VBUCKETS_MAX} is allowed", settings.vbuckets);
            return Err(BucketError::Invalid(message));
        }
        let mut buckets = self.buckets.write();
        if buckets.by_name.contains_key(name) {
            return Err(BucketError::Exists(name.to_owned()));
        }
        let slot = buckets.next_slot;
        let (quiescence, doorbell) = (Arc::clone(&self.quiescence), Arc::clone(&self.doorbell));
        let bucket =
            Bucket::new(name, settings, slot, self.settings.threads, quiescence, doorbell, self.random())
                .map_err(BucketError::Invalid)?;
        let bucket = Arc::new(bucket);
        buckets.next_slot += 1;
        buckets.by_name.insert(name.to_owned(), Arc::clone(&bucket));
        drop(buckets);
        self.generation.fetch_add(1, Relaxed);
        self.changed.ring();
        Ok(bucket)
    }

    /// Removes a bucket; its sessions learn of it with their next request, its memory goes back when the last lets go.
    pub fn delete_bucket(&self, name: &str) -> Result<(), BucketError> {
        let bucket = self.buckets.write().by_name.remove(name);
        let bucket = bucket.ok_or_else(|| BucketError::Missing(name.to_owned()))?;
        bucket.set_gone();
        self.generation.fetch_add(1, Relaxed);
        self.changed.ring();
        self.doorbell.ring();
        Ok(())
    }

    /// The bucket of that name.
    pub fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.buckets.read().by_name.get(name).cloned()
    }

    /// All buckets by name.
    pub fn buckets(&self) -> Vec<Arc<Bucket>> {
        self.buckets.read().by_name.values().cloned().collect()
    }

    pub(crate) fn has_slot(&self, slot: usize) -> bool {
        self.buckets.read().by_name.values().any(|bucket| bucket.slot() == slot)
    }

    /// Rises whenever a bucket is made or removed.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Tells the node where it listens (once).
    pub fn set_endpoints(&self, endpoints: Endpoints) {
        let _ = self.endpoints.set(endpoints);
    }

    /// Where it listens; empty before that.
    pub fn endpoints(&self) -> &Endpoints {
        static NONE: Endpoints = Endpoints { memcached: Vec::new(), kv: Vec::new(), http: Vec::new() };
        self.endpoints.get().unwrap_or(&NONE)
    }

    /// Gives the node its users (once, before it serves).
    pub fn set_users(&self, users: Users) {
        let _ = self.users.set(users);
    }

    /// Who may log in; nobody before [`Node::set_users`].
    pub fn users(&self) -> &Users {
        self.users.get_or_init(|| Users::new([0; 32]))
    }

    /// Revision of the cluster map: rises with each bucket made or removed. (Its epoch is 1.)
    pub fn map_revision(&self) -> u64 {
        self.generation()
    }

    /// Open client connections, and those accepted and refused since the start.
    pub fn connections(&self) -> ConnectionCounts {
        let total = self.connections.total.load(Relaxed);
        let current = total.saturating_sub(self.connections.closed.load(Relaxed));
        ConnectionCounts { current, total, rejected: self.connections.rejected.load(Relaxed) }
    }

    /// A connection was accepted.
    pub fn connection_opened(&self) {
        self.connections.total.fetch_add(1, Relaxed);
    }

    /// A connection was closed.
    pub fn connection_closed(&self) {
        self.connections.closed.fetch_add(1, Relaxed);
    }

    /// A connection was refused.
    pub fn connection_rejected(&self) {
        self.connections.rejected.fetch_add(1, Relaxed);
    }

    /// Asks for an orderly end, as a signal does.
    pub fn request_shutdown(&self) {
        self.shutdown.ring();
    }

    /// Rings when an orderly end is asked for.
    pub fn shutdown_bell(&self) -> &Doorbell {
        &self.shutdown
    }

    /// Rings when there is work for the pager.
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// Rings when buckets were made or removed: every executing thread should call [`crate::Cx::tend`] soon.
    pub fn changed_bell(&self) -> &Doorbell {
        &self.changed
    }

    /// Some bucket wants its free pages given back: the pager is told once.
    pub(crate) fn ask_for_purge(&self) {
        if !self.purge_asked.load(Relaxed) && !self.purge_asked.swap(true, Relaxed) {
            self.doorbell.ring();
        }
    }

    pub(crate) fn end_purge(&self) {
        self.purge_asked.store(false, Relaxed);
    }

    /// Who is peeking at index lines.
    pub fn quiescence(&self) -> &Arc<Quiescence> {
        &self.quiescence
    }

    /// When the node started to serve, in unix seconds.
    pub fn started_unix_s(&self) -> u64 {
        self.started_unix_s.load(Relaxed)
    }

    /// Tells the node that it serves from now on.
    pub fn set_started(&self, unix_s: u64) {
        self.started_unix_s.store(unix_s, Relaxed);
    }

    /// The next number of a sequence seeded by [`NodeSettings::seed`] (splitmix64's increment; mix before use).
    fn random(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}
