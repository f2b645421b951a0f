//! The node: its buckets, users and endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, LazyLock, OnceLock};

use journal::AnyDisk;
use memory::Quiescence;
use parking_lot::RwLock;

use crate::Bucket;
use crate::bucket::{self, Foundation};
use crate::client_memory::{ClientMemory, Holder};
use crate::clients::Clients;
use crate::collections::{Keep, Manifest};
use crate::doorbell::Doorbell;
use crate::fetch_queue::FetchQueue;
use crate::hub::Hub;
use crate::mailbox::{Cookie, Mailbox, Outcome};
use crate::map_watch::{MapWatch, MapWatchers};
use crate::piece_queue::PieceQueue;
use crate::profile::Profile;
use crate::rendered_map::RenderedMap;
use crate::replication::Replication;
use crate::requests::Requests;
use crate::settings::{BUCKET_NAME, BucketKind, BucketSettings, Limits, NodeSettings, is_bucket_name};
use crate::storage::{self, FETCHERS, FLUSHERS};
use crate::sync_writes::TimeoutMode;
use crate::turns::Turns;
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
    /// memcached addresses with TLS, with their bucket.
    pub memcached_tls: Vec<(std::net::SocketAddr, String)>,
    /// Couchbase KV with TLS.
    pub kv_tls: Vec<std::net::SocketAddr>,
    /// HTTPS.
    pub http_tls: Vec<std::net::SocketAddr>,
    /// Sockets in the file system.
    pub unix: Vec<UnixEndpoint>,
    /// Ports of further services.
    pub services: Vec<ServicePort>,
}

/// The port of a service besides KV and management.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// The service.
    pub service: &'static str,
    /// The port's name in cluster maps.
    pub name: &'static str,
    /// Where it listens.
    pub address: std::net::SocketAddr,
}

/// A listening socket in the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnixEndpoint {
    /// Which kind of port it is.
    pub service: Service,
    /// Its path.
    pub path: std::path::PathBuf,
    /// The bucket of a memcached port.
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

/// Why a bucket could not be created or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The name is taken.
    #[error("bucket {0:?} already exists")]
    Exists(String),
    /// There is no bucket of that name.
    #[error("there is no bucket {0:?}")]
    Missing(String),
    /// A setting is out of range.
    #[error("{0}")]
    Invalid(String),
    /// Its journal could not be opened or removed.
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
    /// Refused at the connection limit or for lack of file descriptors.
    pub rejected: u64,
    /// Times that accepting had to stop for lack of file descriptors.
    pub stops: u64,
    /// Total length of these stops, in microseconds, not counting a present one.
    pub stopped_us: u64,
    /// Whether connections are accepted now.
    pub is_accepting: bool,
    /// Closed for being idle.
    pub idle_kicks: u64,
    /// Closed because a request was not finished in time.
    pub unfinished: u64,
    /// Closed because none of the answers was taken in time.
    pub stuck: u64,
}

#[derive(Default)]
struct Connections {
    total: AtomicU64,
    closed: AtomicU64,
    rejected: AtomicU64,
    stops: AtomicU64,
    stopped_us: AtomicU64,
    /// When accepting stopped, by the monotonic clock; 0 = not stopped.
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

/// A reserved name: nobody else opens or removes a bucket of this name.
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
/// Revisions of maps begin at the milliseconds since 1970, shifted by this: a node that has had fewer changes of its
/// maps in each millisecond of its life begins above them after a restart.
const REVISIONS_PER_MS_BITS: u32 = 12;

/// A node. One per process; shared by all sessions, the console and the background threads.
pub struct Node {
    settings: NodeSettings,
    limits: RwLock<Limits>,
    buckets: RwLock<Buckets>,
    generation: AtomicU64,
    map_watchers: Arc<MapWatchers>,
    /// The map without a bucket.
    pub(crate) map: RenderedMap,
    endpoints: OnceLock<Endpoints>,
    users: OnceLock<Users>,
    profile: RwLock<Arc<Profile>>,
    replication: RwLock<Arc<Replication>>,
    connections: Connections,
    client_memory: ClientMemory,
    clients: Clients,
    requests: Requests,
    read_buffers: [AtomicU64; 2],
    hub: Arc<Hub>,
    flushers: [Arc<Doorbell>; FLUSHERS],
    fetches: [FetchQueue; FETCHERS],
    pieces: PieceQueue,
    flush_buffer_bytes: [AtomicU64; FLUSHERS],
    warm_up: Doorbell,
    shutdown: Doorbell,
    changed: Doorbell,
    started_unix_ms: AtomicU64,
    random: AtomicU64,
}

impl Node {
    /// Creates a node without buckets.
    pub fn new(settings: NodeSettings, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits: RwLock::new(limits),
            buckets: RwLock::default(),
            generation: AtomicU64::new(1),
            map_watchers: Arc::default(),
            map: RenderedMap::default(),
            endpoints: OnceLock::new(),
            users: OnceLock::new(),
            profile: RwLock::default(),
            replication: RwLock::default(),
            connections: Connections::default(),
            client_memory: ClientMemory::default(),
            clients: Clients::default(),
            requests: Requests::new(settings.threads),
            read_buffers: Default::default(),
            hub: Arc::new(Hub::new(settings.threads)),
            flushers: Default::default(),
            fetches: Default::default(),
            pieces: PieceQueue::default(),
            flush_buffer_bytes: Default::default(),
            warm_up: Doorbell::default(),
            shutdown: Doorbell::default(),
            changed: Doorbell::default(),
            started_unix_ms: AtomicU64::new(0),
            random: AtomicU64::new(settings.seed),
            settings,
        })
    }

    /// Returns the settings it was created with.
    pub fn settings(&self) -> &NodeSettings {
        &self.settings
    }

    /// Returns the limits in force.
    pub fn limits(&self) -> Limits {
        self.limits.read().clone()
    }

    /// Replaces the limits (SIGHUP); new sessions see them.
    pub fn set_limits(&self, limits: Limits) {
        *self.limits.write() = limits;
        self.changed.ring();
    }

    /// Creates an ephemeral bucket, with a name that [`is_bucket_name`] allows.
    pub fn create_bucket(&self, name: &str, settings: BucketSettings) -> Result<Arc<Bucket>, BucketError> {
        if settings.kind != BucketKind::Ephemeral {
            return Err(BucketError::Invalid(format!("bucket {name:?} is persistent: it needs a directory")));
        }
        self.add_bucket(name, settings, None, None)
    }

    /// The same with these collections, whose changes are given to `keep`.
    pub fn create_bucket_with(
        &self,
        name: &str,
        settings: BucketSettings,
        collections: Manifest,
        keep: Keep,
    ) -> Result<Arc<Bucket>, BucketError> {
        debug_assert!(settings.kind == BucketKind::Ephemeral);
        self.add_bucket(name, settings, None, Some((collections, keep)))
    }

    /// Opens the persistent bucket in this directory, or creates one there if there is none. It warms up while it is
    /// served: its journal waits for [`crate::persistence::load_next`]. Settings that are fixed when a bucket is
    /// created are taken from the directory.
    pub fn open_bucket(
        &self,
        name: &str,
        settings: BucketSettings,
        disk: AnyDisk,
        directory: &Path,
    ) -> Result<Arc<Bucket>, BucketError> {
        let settings = BucketSettings { kind: BucketKind::Persistent, ..settings };
        self.add_bucket(name, settings, Some((disk, directory)), None)
    }

    fn add_bucket(
        &self,
        name: &str,
        settings: BucketSettings,
        place: Option<(AnyDisk, &Path)>,
        collections: Option<(Manifest, Keep)>,
    ) -> Result<Arc<Bucket>, BucketError> {
        if !is_bucket_name(name) {
            return Err(BucketError::Invalid(format!("bucket name {name:?}: allowed are {BUCKET_NAME}")));
        }
        if !settings.vbuckets.is_power_of_two() || settings.vbuckets > VBUCKETS_MAX {
            let message =
                format!("vbuckets {}: a power of two from 1 to {VBUCKETS_MAX} is allowed", settings.vbuckets);
            return Err(BucketError::Invalid(message));
        }
        // Opening reads and syncs files: lookups of other buckets must not wait for that.
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
            collections,
        };
        let bucket = Bucket::new(name, settings, foundation, journal).map_err(BucketError::Invalid)?;
        let bucket = Arc::new(bucket);
        self.buckets.write().by_name.insert(name.to_owned(), Arc::clone(&bucket));
        if bucket.persistence().is_some() {
            self.warm_up.ring();
        }
        self.note_map_change();
        Ok(bucket)
    }

    /// Reserves a slot for a new bucket of this name.
    fn reserve_new<'n>(&'n self, name: &'n str) -> Result<(usize, Reserved<'n>), BucketError> {
        let mut buckets = self.buckets.write();
        if buckets.by_name.contains_key(name) || !buckets.busy.insert(name.to_owned()) {
            return Err(BucketError::Exists(name.to_owned()));
        }
        let slot = buckets.next_slot;
        buckets.next_slot += 1;
        Ok((slot, Reserved { node: self, name }))
    }

    /// Removes a bucket, including its journal. Its sessions end; its memory is freed with the last reference. After an
    /// error before that is durable, the bucket is as it was: [`Node::bucket`] shows whether it is there.
    pub fn delete_bucket(&self, name: &str) -> Result<(), BucketError> {
        let (bucket, _reserved) = {
            let mut buckets = self.buckets.write();
            let bucket = buckets.by_name.get(name).cloned();
            let bucket = bucket.filter(|_| buckets.busy.insert(name.to_owned()));
            (bucket.ok_or_else(|| BucketError::Missing(name.to_owned()))?, Reserved { node: self, name })
        };
        // Before anybody is notified: otherwise it might be back at the next start.
        bucket.mark_deleted().map_err(|error| BucketError::Journal(format!("not deleted: {error}")))?;
        self.buckets.write().by_name.remove(name);
        bucket.set_gone();
        bucket.collections().settle();
        bucket.abandon_sync_writes(&mut |cookie, outcome| self.post(cookie, outcome));
        bucket.call_watchers(&mut |cookie, outcome| self.post(cookie, outcome));
        // ORDERING: whoever sees the new revision sees that the bucket is gone.
        self.note_map_change();
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

    /// Notes that the thread of this flusher could not be started: the next vBucket with a change, or a write that
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

    /// Returns the bytes of the flushers' buffers, of all buckets: what a flush needs besides the items themselves.
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

    /// Rings when there is work for [`crate::persistence::PieceReader`].
    pub fn piece_bell(&self) -> &Doorbell {
        &self.pieces.bell
    }

    pub(crate) fn pieces(&self) -> &PieceQueue {
        &self.pieces
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Returns the bucket of that name.
    pub fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.buckets.read().by_name.get(name).cloned()
    }

    /// Returns all buckets by name.
    pub fn buckets(&self) -> Vec<Arc<Bucket>> {
        self.buckets.read().by_name.values().cloned().collect()
    }

    pub(crate) fn has_slot(&self, slot: usize) -> bool {
        self.bucket_in_slot(slot).is_some()
    }

    pub(crate) fn bucket_in_slot(&self, slot: usize) -> Option<Arc<Bucket>> {
        self.buckets.read().by_name.values().find(|bucket| bucket.slot() == slot).cloned()
    }

    /// Rises whenever a bucket is created or removed.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Sets where the node listens (once).
    pub fn set_endpoints(&self, endpoints: Endpoints) {
        let _ = self.endpoints.set(endpoints);
    }

    /// Returns where it listens; empty before that is set.
    pub fn endpoints(&self) -> &Endpoints {
        static NONE: LazyLock<Endpoints> = LazyLock::new(Endpoints::default);
        self.endpoints.get().unwrap_or(&NONE)
    }

    /// Sets the node's users (once, before it serves).
    pub fn set_users(&self, users: Users) {
        let _ = self.users.set(users);
    }

    /// Returns the users who may log in; nobody before [`Node::set_users`].
    pub fn users(&self) -> &Users {
        self.users.get_or_init(|| Users::new([0; 32]))
    }

    /// Returns what an operator has said about the node.
    pub fn profile(&self) -> Arc<Profile> {
        Arc::clone(&self.profile.read())
    }

    /// Replaces what an operator has said about the node; maps show it.
    pub fn set_profile(&self, profile: Profile) {
        *self.profile.write() = Arc::new(profile);
        self.note_map_change();
    }

    /// Returns the revision of the cluster maps: rises with each bucket created or removed, each change of collections,
    /// of roles, or of what an operator has said, and with each start of the node. Below 2^53: clients may read it as a
    /// floating-point number.
    pub fn map_revision(&self) -> u64 {
        (self.started_unix_ms.load(Relaxed) << REVISIONS_PER_MS_BITS) + self.generation()
    }

    /// Returns the first part of the version of a bucket's map, or of that without a bucket: one more than the highest
    /// term of its roles. So a node that has been deposed takes no client away from its successor, whichever of them
    /// started last.
    pub fn map_epoch(&self, bucket: Option<&Bucket>) -> u64 {
        let highest = match bucket {
            Some(bucket) => bucket.highest_term(),
            None => self.buckets().iter().map(|bucket| bucket.highest_term()).max().unwrap_or_default(),
        };
        highest + 1
    }

    /// Returns how the node takes part in replication.
    pub fn replication(&self) -> Arc<Replication> {
        Arc::clone(&self.replication.read())
    }

    /// Sets how the node takes part in replication. Connections that are there stay.
    pub fn set_replication(&self, replication: Replication) {
        *self.replication.write() = Arc::new(replication);
        self.note_map_change();
    }

    /// Returns the node's name in topologies.
    pub fn name(&self) -> String {
        if let Some(name) = &self.replication().node {
            return name.to_string();
        }
        self.endpoints().kv.first().map(ToString::to_string).unwrap_or_default()
    }

    /// Rings when a connection to a node that is copied from is missing.
    pub fn links_bell(&self) -> &Doorbell {
        &self.hub.links
    }

    /// Returns a number that was not returned before, for a login at another node.
    pub fn nonce(&self) -> u64 {
        bucket::scramble(self.random(), 3)
    }

    /// Notes that the cluster map of a bucket says something else now.
    pub fn note_map_change(&self) {
        self.generation.fetch_add(1, Release);
        self.changed.ring();
        self.map_watchers.call(|cookie| self.post(cookie, Outcome::Stirred));
    }

    /// Has whoever is reached by this cookie called by letters when the cluster map changes.
    pub fn watch_map(&self, cookie: Cookie) -> MapWatch {
        self.map_watchers.begin(cookie)
    }

    /// Returns open client connections, and those accepted and refused since the start.
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

    /// Notes that no connection can be accepted for now. Called by the acceptor only, like [`Node::accepting_again`].
    pub fn accepting_stopped(&self, now_us: u64) {
        if self.connections.stopped_at_us.swap(now_us.max(1), Relaxed) == 0 {
            self.connections.stops.fetch_add(1, Relaxed);
        }
    }

    /// Notes that connections can be accepted, if they could not be before.
    pub fn accepting_again(&self, now_us: u64) {
        let since_us = self.connections.stopped_at_us.swap(0, Relaxed);
        if since_us != 0 {
            self.connections.stopped_us.fetch_add(now_us.saturating_sub(since_us), Relaxed);
        }
    }

    /// Counts an accepted connection.
    pub fn connection_opened(&self) {
        self.connections.total.fetch_add(1, Relaxed);
    }

    /// Counts a closed connection.
    pub fn connection_closed(&self) {
        self.connections.closed.fetch_add(1, Relaxed);
    }

    /// Counts a refused connection.
    pub fn connection_rejected(&self) {
        self.connections.rejected.fetch_add(1, Relaxed);
    }

    /// Counts a connection that is closed for being idle.
    pub fn connection_kicked(&self) {
        self.connections.idle_kicks.fetch_add(1, Relaxed);
    }

    /// Counts a connection that is closed because a request was not finished in time.
    pub fn connection_timed_out(&self) {
        self.connections.unfinished.fetch_add(1, Relaxed);
    }

    /// Counts a connection that is closed because none of its answers was taken in time.
    pub fn connection_stuck(&self) {
        self.connections.stuck.fetch_add(1, Relaxed);
    }

    /// Sets the node's memory, which bounds what clients hold besides the buckets' items.
    pub fn set_memory(&self, bytes: u64) {
        self.client_memory.set_node_bytes(bytes);
    }

    /// Returns the account of what clients hold besides the buckets' items.
    pub fn client_memory(&self) -> &ClientMemory {
        &self.client_memory
    }

    /// Sets how many bytes of clients' messages a holder besides the data ports holds now.
    pub fn set_client_memory(&self, holder: Holder, bytes: u64) {
        self.client_memory.set(holder, bytes, &self.hub.pager);
    }

    /// Returns the record of what requests do.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Returns the connections to the memcached ports.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Notes that a worker has allocated the buffer it reads its connections into, of this many bytes.
    pub fn note_read_buffer(&self, bytes: usize) {
        let [count, sum] = &self.read_buffers;
        count.fetch_add(1, Relaxed);
        sum.fetch_add(bytes as u64, Relaxed);
    }

    /// Returns the number of these buffers, and their bytes.
    pub fn read_buffers(&self) -> (u64, u64) {
        let [count, sum] = &self.read_buffers;
        (count.load(Relaxed), sum.load(Relaxed))
    }

    /// Requests an orderly shutdown, as a signal does.
    pub fn request_shutdown(&self) {
        self.shutdown.ring();
    }

    /// Rings when an orderly shutdown is requested.
    pub fn shutdown_bell(&self) -> &Doorbell {
        &self.shutdown
    }

    /// Rings when there is work for the pager.
    pub fn doorbell(&self) -> &Doorbell {
        &self.hub.pager
    }

    /// Rings when buckets were created or removed: every executing thread should soon call
    /// [`crate::NodeContext::tend`].
    pub fn changed_bell(&self) -> &Doorbell {
        &self.changed
    }

    /// Returns when durable writes are checked for overdue deadlines.
    pub fn timeout_mode(&self) -> TimeoutMode {
        self.hub.timeout_mode()
    }

    /// Sets the timeout mode, at any time.
    pub fn set_timeout_mode(&self, mode: TimeoutMode) {
        self.hub.set_timeout_mode(mode);
    }

    /// Rings when the mode has changed: in polling mode, a thread has to call [`crate::polling::poll`] continuously.
    pub fn timeout_mode_bell(&self) -> &Doorbell {
        &self.hub.timeout_mode_bell
    }

    /// Returns the mailbox of one of the executing threads.
    pub fn mailbox(&self, thread: usize) -> Option<&Mailbox> {
        self.hub.mailbox(thread)
    }

    /// Notifies a session of the outcome it waits for, and wakes its thread. Threads with a [`crate::ThreadContext`]
    /// use [`crate::ThreadContext::post`].
    pub fn post(&self, cookie: Cookie, outcome: Outcome) {
        self.hub.post(cookie, outcome);
    }

    /// Since when each thread has been at its turn.
    #[inline]
    pub fn turns(&self) -> &Turns {
        &self.hub.turns
    }

    /// Returns the record of who is peeking at index lines.
    pub fn quiescence(&self) -> &Arc<Quiescence> {
        &self.hub.quiescence
    }

    /// Returns when the node started to serve, in unix seconds.
    pub fn started_unix_s(&self) -> u64 {
        self.started_unix_ms.load(Relaxed) / 1000
    }

    /// Sets when the node started to serve.
    pub fn set_started(&self, unix_ms: u64) {
        self.started_unix_ms.store(unix_ms, Relaxed);
    }

    /// Returns the next number of a sequence seeded by [`NodeSettings::seed`] (splitmix64's increment; mix before use).
    fn random(&self) -> u64 {
        self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}
