//! The node: its buckets, users and endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};

use journal::AnyDisk;
use memory::Quiescence;
use parking_lot::RwLock;

use crate::Bucket;
use crate::bucket::{self, Foundation};
use crate::client_memory::{ClientMemory, Holder};
use crate::clients::Clients;
use crate::doorbell::Doorbell;
use crate::fetch_queue::FetchQueue;
use crate::hub::Hub;
use crate::mailbox::{Cookie, Mailbox, Outcome};
use crate::settings::{BUCKET_NAME, BucketKind, BucketSettings, Limits, NodeSettings, is_bucket_name};
use crate::storage::{self, FETCHERS, FLUSHERS};
use crate::sync_writes::TimeoutMode;
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
    /// The same, where TLS is spoken.
    pub memcached_tls: Vec<(std::net::SocketAddr, String)>,
    /// Couchbase KV with TLS.
    pub kv_tls: Vec<std::net::SocketAddr>,
    /// HTTPS.
    pub http_tls: Vec<std::net::SocketAddr>,
    /// Sockets in the file system.
    pub unix: Vec<UnixEndpoint>,
}

/// A socket in the file system that is listened on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixEndpoint {
    /// Which kind of port it is.
    pub service: Service,
    /// Its name.
    pub path: std::path::PathBuf,
    /// The bucket, of a memcached port.
    pub bucket: Option<String>,
}

/// The kinds of ports of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// For memcached clients.
    Memcached,
    /// For Couchbase SDKs.
    Kv,
    /// For HTTP.
    Http,
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
    /// Its journal could not be opened, or not be removed.
    #[error("{0}")]
    Journal(String),
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
    /// Times accepting had to stop for want of file descriptors.
    pub stops: u64,
    /// How long that was in all, in microseconds, a present stop not counted.
    pub stopped_us: u64,
    /// Whether connections are accepted now.
    pub is_accepting: bool,
    /// Closed for having been idle.
    pub idle_kicks: u64,
    /// Closed for a request that was not finished in time.
    pub unfinished: u64,
    /// Closed for having taken nothing of their answers in time.
    pub stuck: u64,
}

#[derive(Default)]
struct Connections {
    total: AtomicU64,
    closed: AtomicU64,
    rejected: AtomicU64,
    stops: AtomicU64,
    stopped_us: AtomicU64,
    /// When accepting stopped, by the monotonic clock; 0 = it goes on.
    stopped_at_us: AtomicU64,
    idle_kicks: AtomicU64,
    unfinished: AtomicU64,
    stuck: AtomicU64,
}

#[derive(Default)]
struct Buckets {
    by_name: BTreeMap<String, Arc<Bucket>>,
    /// Names of buckets whose files are being opened or removed.
    busy: BTreeSet<String>,
    next_slot: usize,
}

/// Nobody else opens or removes a bucket of this name.
struct Reserved<'n> {
    node: &'n Node,
    name: &'n str,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.node.buckets.write().busy.remove(self.name);
    }
}

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
    client_memory: ClientMemory,
    clients: Clients,
    read_buffers: [AtomicU64; 2],
    hub: Arc<Hub>,
    flushers: [Arc<Doorbell>; FLUSHERS],
    fetches: [FetchQueue; FETCHERS],
    flush_buffer_bytes: [AtomicU64; FLUSHERS],
    warm_up: Doorbell,
    shutdown: Doorbell,
    changed: Doorbell,
    started_unix_s: AtomicU64,
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
            client_memory: ClientMemory::default(),
            clients: Clients::default(),
            read_buffers: Default::default(),
            hub: Arc::new(Hub::new(settings.threads)),
            flushers: Default::default(),
            fetches: Default::default(),
            flush_buffer_bytes: Default::default(),
            warm_up: Doorbell::default(),
            shutdown: Doorbell::default(),
            changed: Doorbell::default(),
            started_unix_s: AtomicU64::new(0),
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
        self.changed.ring();
    }

    /// Makes an ephemeral bucket: the name as [`is_bucket_name`] allows it.
    pub fn create_bucket(&self, name: &str, settings: BucketSettings) -> Result<Arc<Bucket>, BucketError> {
        if settings.kind != BucketKind::Ephemeral {
            return Err(BucketError::Invalid(format!("bucket {name:?} is persistent: it needs a directory")));
        }
        self.add_bucket(name, settings, None)
    }

    /// Opens the persistent bucket in this directory, or makes one there if there is none. It warms up while it is
    /// served: its journal waits for [`crate::persistence::load_next`]. What is fixed when a bucket is made is taken
    /// from there.
    pub fn open_bucket(
        &self,
        name: &str,
        settings: BucketSettings,
        disk: AnyDisk,
        directory: &Path,
    ) -> Result<Arc<Bucket>, BucketError> {
        let settings = BucketSettings { kind: BucketKind::Persistent, ..settings };
        self.add_bucket(name, settings, Some((disk, directory)))
    }

    fn add_bucket(
        &self,
        name: &str,
        settings: BucketSettings,
        place: Option<(AnyDisk, &Path)>,
    ) -> Result<Arc<Bucket>, BucketError> {
        if !is_bucket_name(name) {
            return Err(BucketError::Invalid(format!("bucket name {name:?}: allowed are {BUCKET_NAME}")));
        }
        if !settings.vbuckets.is_power_of_two() || settings.vbuckets > VBUCKETS_MAX {
            let message =
                format!("vbuckets {}: a power of two from 1 to {VBUCKETS_MAX} is allowed", settings.vbuckets);
            return Err(BucketError::Invalid(message));
        }
        // Opening reads and syncs files: others must not wait for that whenever they look for a bucket.
        let (slot, _reserved) = self.reserve_new(name)?;
        let secrets = bucket::secrets(self.random());
        let journal = match place {
            None => None,
            Some((disk, directory)) => {
                let fresh = bucket::identities(&secrets);
                let opened =
                    storage::open(disk, directory, name, settings.vbuckets, &settings.persistence, fresh)
                        .map_err(|error| BucketError::Journal(error.to_string()))?;
                let bells = (0..opened.persistence.shards())
                    .map(|shard| Arc::clone(&self.flushers[storage::flusher_of(slot, shard)]));
                let bells = bells.collect();
                Some((opened, bells))
            }
        };
        let foundation = Foundation {
            slot,
            threads: self.settings.threads,
            quiescence: Arc::clone(&self.hub.quiescence),
            doorbell: Arc::clone(&self.hub.pager),
            share: self.client_memory.share(),
            secrets,
        };
        let bucket = Bucket::new(name, settings, foundation, journal).map_err(BucketError::Invalid)?;
        let bucket = Arc::new(bucket);
        self.buckets.write().by_name.insert(name.to_owned(), Arc::clone(&bucket));
        if bucket.persistence().is_some() {
            self.warm_up.ring();
        }
        self.generation.fetch_add(1, Relaxed);
        self.changed.ring();
        Ok(bucket)
    }

    /// A slot for a new bucket of this name.
    fn reserve_new<'n>(&'n self, name: &'n str) -> Result<(usize, Reserved<'n>), BucketError> {
        let mut buckets = self.buckets.write();
        if buckets.by_name.contains_key(name) || !buckets.busy.insert(name.to_owned()) {
            return Err(BucketError::Exists(name.to_owned()));
        }
        let slot = buckets.next_slot;
        buckets.next_slot += 1;
        Ok((slot, Reserved { node: self, name }))
    }

    /// Removes a bucket, its journal included; its sessions learn of it with their next request, its memory goes back
    /// when the last lets go. An error before that is durable leaves it as it was: [`Node::bucket`] tells.
    pub fn delete_bucket(&self, name: &str) -> Result<(), BucketError> {
        let (bucket, _reserved) = {
            let mut buckets = self.buckets.write();
            let bucket = buckets.by_name.get(name).cloned();
            let bucket = bucket.filter(|_| buckets.busy.insert(name.to_owned()));
            (bucket.ok_or_else(|| BucketError::Missing(name.to_owned()))?, Reserved { node: self, name })
        };
        // Before anybody is told: otherwise it might be back at the next start.
        bucket.mark_deleted().map_err(|error| BucketError::Journal(format!("not deleted: {error}")))?;
        self.buckets.write().by_name.remove(name);
        bucket.set_gone();
        bucket.abandon_sync_writes(&mut |cookie, outcome| self.post(cookie, outcome));
        bucket.call_watchers(&mut |cookie, outcome| self.post(cookie, outcome));
        self.generation.fetch_add(1, Relaxed);
        self.changed.ring();
        self.hub.pager.ring();
        bucket.remove_journal().map_err(|error| {
            let message =
                format!("deleted, but not all its files are gone; the next start removes them: {error}");
            BucketError::Journal(message)
        })
    }

    /// Rings when there is work for the flusher of this number, below [`crate::persistence::FLUSHERS`].
    pub fn flusher_bell(&self, index: usize) -> &Doorbell {
        &self.flushers[index % FLUSHERS]
    }

    /// The thread of this flusher could not be started: the next vBucket that something changes in, or a write that
    /// waits for the disk, rings again.
    pub fn flusher_not_started(&self, index: usize) {
        self.flusher_bell(index).answer();
        for bucket in self.buckets() {
            let (Some(persistence), Some(dirty)) = (bucket.persistence(), bucket.dirty()) else { continue };
            (0..persistence.shards())
                .filter(|shard| storage::flusher_of(bucket.slot(), *shard) == index)
                .for_each(|shard| dirty.note_unheard(shard));
        }
    }

    /// Bytes of the flushers' buffers, of all buckets: what a flush needs beside the items themselves.
    pub fn flush_buffer_bytes(&self) -> u64 {
        self.flush_buffer_bytes.iter().map(|bytes| bytes.load(Relaxed)).sum()
    }

    pub(crate) fn set_flush_buffer_bytes(&self, index: usize, bytes: u64) {
        self.flush_buffer_bytes[index % FLUSHERS].store(bytes, Relaxed);
    }

    /// Rings when a persistent bucket was opened: its journal waits for [`crate::persistence::load_next`].
    pub fn warm_up_bell(&self) -> &Doorbell {
        &self.warm_up
    }

    /// Rings when there is work for the fetcher of this number, below [`crate::persistence::FETCHERS`].
    pub fn fetcher_bell(&self, index: usize) -> &Doorbell {
        &self.fetch_queue(index).bell
    }

    pub(crate) fn fetch_queue(&self, index: usize) -> &FetchQueue {
        &self.fetches[index % FETCHERS]
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
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
        self.bucket_in_slot(slot).is_some()
    }

    pub(crate) fn bucket_in_slot(&self, slot: usize) -> Option<Arc<Bucket>> {
        self.buckets.read().by_name.values().find(|bucket| bucket.slot() == slot).cloned()
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
        static NONE: LazyLock<Endpoints> = LazyLock::new(Endpoints::default);
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
        ConnectionCounts {
            current,
            total,
            rejected: self.connections.rejected.load(Relaxed),
            idle_kicks: self.connections.idle_kicks.load(Relaxed),
            unfinished: self.connections.unfinished.load(Relaxed),
            stuck: self.connections.stuck.load(Relaxed),
            stops: self.connections.stops.load(Relaxed),
            stopped_us: self.connections.stopped_us.load(Relaxed),
            is_accepting: self.connections.stopped_at_us.load(Relaxed) == 0,
        }
    }

    /// No connection can be accepted for now. By the acceptor alone, as [`Node::accepting_again`].
    pub fn accepting_stopped(&self, now_us: u64) {
        if self.connections.stopped_at_us.swap(now_us.max(1), Relaxed) == 0 {
            self.connections.stops.fetch_add(1, Relaxed);
        }
    }

    /// Connections can be accepted, if they could not be before.
    pub fn accepting_again(&self, now_us: u64) {
        let since_us = self.connections.stopped_at_us.swap(0, Relaxed);
        if since_us != 0 {
            self.connections.stopped_us.fetch_add(now_us.saturating_sub(since_us), Relaxed);
        }
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

    /// A connection is closed for having been idle.
    pub fn connection_kicked(&self) {
        self.connections.idle_kicks.fetch_add(1, Relaxed);
    }

    /// A connection is closed for a request that was not finished in time.
    pub fn connection_timed_out(&self) {
        self.connections.unfinished.fetch_add(1, Relaxed);
    }

    /// A connection is closed for having taken nothing of its answers in time.
    pub fn connection_stuck(&self) {
        self.connections.stuck.fetch_add(1, Relaxed);
    }

    /// Sets the memory of the node: what clients hold beside the buckets' items is bounded by it.
    pub fn set_memory(&self, bytes: u64) {
        self.client_memory.set_node_bytes(bytes);
    }

    /// What clients hold beside the buckets' items.
    pub fn client_memory(&self) -> &ClientMemory {
        &self.client_memory
    }

    /// Somebody beside the data ports holds so many bytes of clients' messages now.
    pub fn set_client_memory(&self, holder: Holder, bytes: u64) {
        self.client_memory.set(holder, bytes, &self.hub.pager);
    }

    /// Who is connected to the memcached ports.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// A worker has made the buffer it reads its connections into, of so many bytes.
    pub fn note_read_buffer(&self, bytes: usize) {
        let [count, sum] = &self.read_buffers;
        count.fetch_add(1, Relaxed);
        sum.fetch_add(bytes as u64, Relaxed);
    }

    /// The number of these buffers, and their bytes.
    pub fn read_buffers(&self) -> (u64, u64) {
        let [count, sum] = &self.read_buffers;
        (count.load(Relaxed), sum.load(Relaxed))
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
        &self.hub.pager
    }

    /// Rings when buckets were made or removed: every executing thread should soon call
    /// [`crate::NodeContext::tend`].
    pub fn changed_bell(&self) -> &Doorbell {
        &self.changed
    }

    /// When durable writes are looked at for their deadlines.
    pub fn timeout_mode(&self) -> TimeoutMode {
        self.hub.timeout_mode()
    }

    /// Changes that, at any time.
    pub fn set_timeout_mode(&self, mode: TimeoutMode) {
        self.hub.set_timeout_mode(mode);
    }

    /// Rings when the mode has changed: in polling mode, a thread has to call [`crate::polling::poll`] all the
    /// time.
    pub fn timeout_mode_bell(&self) -> &Doorbell {
        &self.hub.timeout_mode_bell
    }

    /// The letters for one of the executing threads.
    pub fn mailbox(&self, thread: usize) -> Option<&Mailbox> {
        self.hub.mailbox(thread)
    }

    /// Tells a session how what it waits for has ended, and wakes its thread. Who has a [`crate::ThreadContext`] uses
    /// [`crate::ThreadContext::post`].
    pub fn post(&self, cookie: Cookie, outcome: Outcome) {
        self.hub.post(cookie, outcome);
    }

    /// Who is peeking at index lines.
    pub fn quiescence(&self) -> &Arc<Quiescence> {
        &self.hub.quiescence
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
