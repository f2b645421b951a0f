//! The HTTP port: the requests of connecting Couchbase SDKs, bucket administration, `/health` and `/metrics`.
//!
//! ```text
//!   GET  /                            the page for a browser, else a name, for pings; no login
//!   GET  /page/FILE                   the page's parts; no login
//!   GET  /health                      200 while serving, 503 while draining or warming up, with what is wrong; no login
//!   GET  /health/ready                200 if nothing is wrong, else 503, as above; no login
//!   GET  /health/live                 200; no login
//!   GET  /metrics                     Prometheus or OpenMetrics text, from the table of meters
//!   GET  /allocator                   the allocator, its settings in force, its memory usage
//!   GET  /memory                      where every byte of resident memory lies
//!   GET  /figures                     what the node is doing: counters and gauges, CPU time of threads
//!   GET  /events                      what the node is doing, each second, for the page
//!   GET  /log                         the last lines that the node has logged
//!   GET  /databases  /databases/DB  /databases/DB/schema   the OVSDB databases
//!   GET  /databases/DB/tables/T       rows of a table; always needs a login
//!   POST /databases/DB/compact        compacts the log of a database; always needs a login
//!   GET  /requests/slow  /requests/large   the newest of them; always need a login, for they have keys
//!   GET  /pools  /pools/default  /pools/default/nodeServices
//!   GET  /pools/default/buckets  /pools/default/buckets/B  /pools/default/b/B  /pools/default/bs/B
//!   GET  /pools/default/buckets/B/vbuckets  /pools/default/buckets/B/vbuckets/N   their roles
//!   GET  /pools/default/replication           the node's name in topologies, and its peers
//!   GET  /pools/default/buckets/B/scopes  /pools/default/buckets/B/stats
//!   GET  /pools/default/buckets/B/sizeClasses   the sizes of its items, and of the slots they lie in
//!   GET  /pools/default/buckets/B/hotKeys   always needs a login
//!   GET  /pools/default/buckets/B/prefixes   memory by prefixes of keys; always needs a login
//!   GET  /pools/default/buckets/B/scopes/S/collections/C/docs   keys; always needs a login
//!   GET, PUT, DELETE /pools/default/buckets/B/scopes/S/collections/C/docs/KEY   a document; always need a login
//!   GET  /nodes/self  /pools/default/{serverGroups,remoteClusters,certificates,terseClusterInfo}   the one node
//!   GET  /pools/default/buckets/B/nodes  .../nodes/N  .../nodes/N/stats   the same of a bucket
//!   GET  /prometheus_sd_config        where /metrics is
//!   GET, POST /settings/{autoFailover,stats,passwordPolicy,audit}   GET /settings/autoCompaction
//!   POST /controller/setAutoCompaction   changes always need a login
//!   POST /pools/default/checkPermissions   /nodeInit   /nodes/self/controller/settings   always need a login
//!   POST /pools/default/buckets/B/controller/compactBucket  .../compactDatabases   always need a login
//!   GET  /settings/rbac/users  /settings/rbac/groups  /settings/rbac/roles
//!   PUT, PATCH, DELETE /settings/rbac/users/local/U  /settings/rbac/groups/G   always need a login
//!   POST /controller/changePassword   of the user logged in; always needs a login
//!   GET  /whoami                      the user logged in; always needs a login
//!   GET, POST /settings/web  /settings/indexes   GET /pools/default/certificate
//!   POST /pools/default  /node/controller/rename  /node/controller/setupServices  /clusterInit
//!   PUT, DELETE /node/controller/setupAlternateAddresses/external   all of these always need a login
//!   POST /allocator                   settings that can change while the node runs; always needs a login
//!   POST /allocator/profile           a heap profile into the data directory; always needs a login
//!   POST /pools/default/buckets       create; always needs a login
//!   DELETE /pools/default/buckets/B   delete; always needs a login
//!   POST /pools/default/buckets/B     change; always needs a login
//!   POST /pools/default/buckets/B/controller/doFlush   empty it; always needs a login
//!   POST /pools/default/buckets/B/vbuckets  /pools/default/buckets/B/vbuckets/N   roles; always need a login
//!   POST /pools/default/buckets/B/audit    walks over all of its data; always needs a login
//!   POST /pools/default/buckets/B/backup   a copy of a persistent bucket; always needs a login
//! ```
//!
//! It runs on one thread with a tokio current-thread runtime, separate from the data ports. Work that takes longer, or
//! waits for a disk or for another thread, gets its own thread in its turn ([`work`]), so that `/health` is answered
//! meanwhile. Reads need a login if a password is configured; changes always do, and their bodies are awaited only of
//! users with the rights. [`guard`] refuses requests of web pages, [`admission`] bounds what connections take. What
//! only the binary knows (users, budgets, draining) comes through [`Control`].
#![deny(unsafe_code)]

mod acts;
mod admission;
mod allocator;
mod answers;
mod audit;
mod buckets;
mod cluster;
mod databases;
mod document;
mod forward;
mod guard;
mod health;
mod hot_keys;
mod keys;
mod line;
mod live;
mod log;
mod login;
mod memory;
mod metrics;
mod node_setup;
mod page;
mod permissions;
mod pools;
mod replication;
mod requests;
mod samples;
mod scopes;
mod services;
#[allow(unsafe_code)]
mod socket;
mod stored;
mod stream;
mod turns;
mod users;
mod vbuckets;
mod work;

use acts::Acts;
use answers::Answers;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post, put};
use kv::profile::Profile;
use kv::users::kept::Kept;
use kv::users::roles::Rights;
use kv::{BucketSetting, BucketSettings, Node, NodeContext, SettingValue};
use live::Live;
use login::{Need, by};
use parking_lot::Mutex;
use services::Indexes;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use transport::Handshakes;
use turns::Turns;
use work::Lanes;

pub use admission::{Port, Serves};
pub use databases::{
    CompactionReport, DatabaseAnswer, DatabaseFigures, DatabaseQuestion, DatabaseReport, NO_SUCH_DATABASE,
    NO_SUCH_TABLE, TableReport,
};
pub use guard::HostNames;
pub use log::{LOG_LINES_MAX, LogLevel, LogLine, LogQuestion, LogTail};

/// Maximum number of buckets: each has its own arena, and the allocator has about 4,000.
pub const BUCKETS_MAX: usize = 1000;

/// A request to create a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketRequest {
    /// Its name.
    pub name: String,
    /// Its settings; the budget is the requested one.
    pub settings: BucketSettings,
}

/// Settings of a bucket to change while it is in use.
#[derive(Debug, Default)]
pub struct BucketChange {
    /// Its budget.
    pub memory_bytes: Option<u64>,
    /// The budget may come out of the shares of other buckets.
    pub may_take_shares: bool,
    /// Settings that can change at run time, each with its new, validated value.
    pub settings: Vec<(&'static BucketSetting, SettingValue<'static>)>,
}

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The bucket does not exist.
    Missing,
    /// Something else does not exist.
    NoSuch {
        /// What is answered, as clients recognise it.
        answer: &'static str,
    },
    /// The user may not do this.
    Forbidden {
        /// The permission that it takes.
        permission: &'static str,
    },
    /// The request has a value that is not allowed; `field` is the form field.
    Invalid {
        /// The form field.
        field: &'static str,
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// Too much of the same client is under way; it may succeed later.
    TooMany {
        /// What there is too much of.
        reason: String,
    },
    /// It may succeed later.
    NotNow {
        /// What it has to wait for.
        reason: String,
    },
    /// It was tried, and the disk failed.
    Failed {
        /// The disk's error.
        reason: String,
    },
}

/// A change of a `T`.
pub type Change<'f, T, R> = Box<dyn FnOnce(&mut T) -> R + 'f>;

/// What the console needs from the binary that wires the node.
pub trait Control: Send + Sync + 'static {
    /// Returns true if a configured password is in force, so that reads need a login too.
    fn login_required(&self) -> bool;
    /// Creates a bucket within the node's memory.
    fn create_bucket(&self, request: BucketRequest) -> Result<(), Refusal>;
    /// Copies a persistent bucket while it is served and returns the new directory. If it `is_bounded`, only so many
    /// backups of a bucket are made. May take long; called on its own thread.
    fn backup_bucket(&self, name: &str, label: &str, is_bounded: bool) -> Result<PathBuf, Refusal>;
    /// Changes settings of the allocator, by their names.
    fn set_allocator(&self, fields: &[(String, String)]) -> Result<(), Refusal>;
    /// Writes a heap profile and returns its file. May take long; called on its own thread.
    fn heap_profile(&self) -> Result<PathBuf, Refusal>;
    /// Removes a bucket.
    fn delete_bucket(&self, name: &str) -> Result<(), Refusal>;
    /// Changes a bucket's settings, and stores them if the bucket's settings are stored. May take long.
    fn change_bucket(&self, name: &str, change: BucketChange) -> Result<(), Refusal>;
    /// Changes users and groups that are kept, on disk if there is a data directory. After an error nothing is changed.
    /// May wait for the disk.
    fn change_users(&self, f: Change<'_, Kept, Result<(), Refusal>>) -> Result<(), Refusal>;
    /// Changes what an operator has said about the node, as above.
    fn change_profile(&self, f: Change<'_, Profile, ()>) -> Result<(), Refusal>;
    /// Returns true if there is a user; until then everybody may do everything over HTTP.
    fn is_provisioned(&self) -> bool;
    /// Returns the administrator's name, if there is one.
    fn administrator(&self) -> Option<String>;
    /// Refuses if the configuration names the administrator.
    fn may_set_administrator(&self) -> Result<(), Refusal>;
    /// Replaces the administrator: a user who may do everything. By `anybody` only while there is none.
    fn set_administrator(&self, user: &str, password: &str, by_anybody: bool) -> Result<(), Refusal>;
    /// Sets the resident memory that all buckets may use together, bytes.
    fn set_memory(&self, bytes: u64) -> Result<(), Refusal>;
    /// Returns the certificate of the TLS ports, and its chain, in PEM.
    fn certificates(&self) -> Option<String>;
    /// Resident memory that all buckets may use together, bytes.
    fn memory_bytes(&self) -> u64;
    /// The figures of the OVSDB databases; may wait briefly for their thread.
    fn databases(&self) -> Vec<DatabaseFigures> {
        Vec::new()
    }
    /// Asks the OVSDB databases. Waits for their thread, so it is called on a thread of its own.
    fn ask_databases(&self, question: DatabaseQuestion) -> Result<DatabaseAnswer, Refusal>;
    /// The last lines that the node has logged.
    fn log_tail(&self, question: &LogQuestion) -> LogTail;
    /// When the certificate of the TLS ports, or one of its chain, expires; seconds since 1970. `None`: no TLS.
    fn certificate_expiry_s(&self) -> Option<u64> {
        None
    }
    /// Returns true if the node is draining.
    fn draining(&self) -> bool;
}

/// State shared by all request handlers.
#[derive(Clone)]
pub(crate) struct Console {
    pub(crate) node: Arc<Node>,
    pub(crate) control: Arc<dyn Control>,
    pub(crate) started: Instant,
    /// Signalled when a map, or who may see it, may have changed: streams of the cluster map wait on it.
    pub(crate) map_changes: watch::Sender<()>,
    /// The context of this thread, the last of the node's threads.
    pub(crate) cx: Arc<Mutex<NodeContext>>,
    pub(crate) host_names: Arc<HostNames>,
    pub(crate) indexes: Arc<Indexes>,
    /// What pages show.
    pub(crate) live: Arc<Live>,
    /// What requests took.
    pub(crate) latency: Arc<requests::Latency>,
    /// What has been changed over HTTP.
    pub(crate) acts: Arc<Acts>,
    /// Outcomes of durable writes.
    pub(crate) answers: Arc<Answers>,
    /// Whose turn it is with work that takes longer.
    pub(crate) lanes: Arc<Lanes>,
    /// Whose request begins next.
    pub(crate) turns: Arc<Turns>,
}

/// Serves until the returned handle's [`Handle::stop`], on a thread named `http`. It is the last of the threads that
/// the node was created for. `host_names` are the names under which clients may address the node; `handshakes` is
/// required for HTTPS ports.
pub fn serve(
    node: Arc<Node>,
    ports: Vec<Port>,
    handshakes: Option<Arc<Handshakes>>,
    control: Arc<dyn Control>,
    host_names: HostNames,
) -> io::Result<Handle> {
    let (stop, mut stopped) = watch::channel(false);
    let (map_changes, _) = watch::channel(());
    let thread = node.settings().threads.saturating_sub(1);
    let mut cx = NodeContext::new(Arc::clone(&node), thread);
    let answers = Arc::<Answers>::default();
    answers.connect(&mut cx);
    let cx = Arc::new(Mutex::new(cx));
    let console = Console {
        node,
        control,
        started: Instant::now(),
        map_changes,
        cx,
        host_names: Arc::new(host_names),
        indexes: Arc::default(),
        live: Arc::default(),
        latency: Arc::default(),
        acts: Arc::default(),
        answers,
        lanes: Arc::default(),
        turns: Arc::default(),
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let turns = Arc::clone(&console.turns);
    let runtime = runtime.enable_io().enable_time().on_thread_park(move || turns.note_idle()).build()?;
    let thread = std::thread::Builder::new().name("dm:http".into()).spawn(move || {
        runtime.block_on(async move {
            let listener = admission::Admission::new(
                ports,
                handshakes,
                Arc::clone(&console.node),
                Arc::clone(&console.turns),
            )?;
            let service = router(console).into_make_service_with_connect_info::<admission::Client>();
            tokio::select! {
                served = axum::serve(listener, service) => served,
                _ = stopped.wait_for(|stop| *stop) => Ok(()),
            }
        })
    })?;
    Ok(Handle { stop, thread })
}

/// A running console.
pub struct Handle {
    stop: watch::Sender<bool>,
    thread: std::thread::JoinHandle<io::Result<()>>,
}

impl Handle {
    /// Closes the listener and all connections, and waits for the thread.
    pub fn stop(self) -> io::Result<()> {
        self.stop.send_replace(true);
        self.thread.join().map_err(|_| io::Error::other("the http thread panicked"))?
    }
}

/// Routes with and without a slash at the end: some SDKs send one.
fn with_routes(list: Vec<(&str, MethodRouter<Console>)>) -> Router<Console> {
    list.into_iter().fold(Router::new(), |router, (path, handlers)| {
        router.route(&format!("{path}/"), handlers.clone()).route(path, handlers)
    })
}

/// Handlers that read and write documents.
fn of_documents(
    console: &Console,
    reads: MethodRouter<Console>,
    writes: MethodRouter<Console>,
) -> MethodRouter<Console> {
    let by = |rights, handlers| login::by_then_body(console, Need::Documents(rights), handlers);
    by(Rights::READ, reads).merge(by(Rights::WRITE, writes))
}

/// Answers are about this moment, and some have documents: nobody on the way keeps them, unless they say otherwise.
async fn unstored(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn router(console: Console) -> Router {
    let reads = with_routes(vec![
        ("/metrics", by(Need::Node(Rights::METRICS), get(metrics::scrape))),
        ("/allocator", by(Need::Node(Rights::SEE), get(allocator::show))),
        ("/memory", by(Need::Node(Rights::SEE), get(memory::show))),
        ("/figures", by(Need::Node(Rights::SEE), get(live::show_figures))),
        ("/events", by(Need::Node(Rights::SEE), get(live::events))),
        ("/log", by(Need::Node(Rights::SEE_USERS), get(log::show))),
        ("/databases", by(Need::Node(Rights::SEE), get(databases::list))),
        ("/databases/{database}", by(Need::Node(Rights::SEE), get(databases::show))),
        ("/databases/{database}/schema", by(Need::Node(Rights::SEE), get(databases::schema))),
        ("/pools", by(Need::Login, get(pools::pools))),
        ("/pools/default", by(Need::Login, get(pools::default_pool))),
        ("/pools/nodes", by(Need::Login, get(pools::nodes))),
        ("/pools/default/tasks", by(Need::Login, get(pools::tasks))),
        ("/pools/default/nodeServices", by(Need::Login, get(pools::node_services))),
        ("/pools/default/replication", by(Need::Node(Rights::SEE), get(replication::show))),
        ("/pools/default/buckets", by(Need::Login, get(buckets::list))),
        ("/pools/default/buckets/{bucket}", by(Need::SeeBucket, get(buckets::show))),
        (
            "/pools/default/buckets/{bucket}/vbuckets",
            by(Need::Bucket(Rights::STATISTICS), get(vbuckets::list)),
        ),
        (
            "/pools/default/buckets/{bucket}/vbuckets/{vb}",
            by(Need::Bucket(Rights::STATISTICS), get(vbuckets::show)),
        ),
        (
            "/pools/default/buckets/{bucket}/stats",
            by(Need::Bucket(Rights::STATISTICS), get(samples::of_bucket)),
        ),
        (
            "/pools/default/buckets/{bucket}/sizeClasses",
            by(Need::Bucket(Rights::STATISTICS), get(memory::size_classes)),
        ),
        ("/pools/default/buckets/{bucket}/scopes", by(Need::SeeBucket, get(scopes::manifest))),
        ("/settings/rbac/users", by(Need::Node(Rights::SEE_USERS), get(users::list))),
        ("/settings/rbac/users/{domain}", by(Need::Node(Rights::SEE_USERS), get(users::list_domain))),
        ("/settings/rbac/users/{domain}/{user}", by(Need::Node(Rights::SEE_USERS), get(users::show))),
        ("/settings/rbac/groups", by(Need::Node(Rights::SEE_USERS), get(users::groups))),
        ("/settings/rbac/groups/{group}", by(Need::Node(Rights::SEE_USERS), get(users::group))),
        ("/settings/rbac/roles", by(Need::Node(Rights::SEE_USERS), get(users::roles))),
        ("/settings/indexes", by(Need::Node(Rights::SEE), get(node_setup::index_settings))),
        ("/settings/web", by(Need::Node(Rights::SEE), get(node_setup::web_settings))),
        ("/pools/default/certificate", by(Need::Login, get(node_setup::certificate))),
        ("/nodes/self", by(Need::Node(Rights::SEE), get(cluster::node))),
        ("/pools/default/serverGroups", by(Need::Node(Rights::SEE), get(cluster::groups))),
        ("/pools/default/remoteClusters", by(Need::Node(Rights::SEE), get(cluster::remote_clusters))),
        ("/pools/default/certificates", by(Need::Login, get(cluster::certificates))),
        ("/pools/default/terseClusterInfo", by(Need::Login, get(cluster::terse))),
        ("/prometheus_sd_config", by(Need::Node(Rights::METRICS), get(cluster::prometheus))),
        ("/pools/default/buckets/{bucket}/nodes", by(Need::SeeBucket, get(cluster::of_bucket))),
        ("/pools/default/buckets/{bucket}/nodes/{node}", by(Need::SeeBucket, get(cluster::of_bucket_on))),
        (
            "/pools/default/buckets/{bucket}/nodes/{node}/stats",
            by(Need::Bucket(Rights::STATISTICS), get(cluster::samples)),
        ),
        ("/settings/autoFailover", by(Need::Node(Rights::SEE), stored::AUTO_FAILOVER.reads())),
        ("/settings/stats", by(Need::Node(Rights::SEE), stored::STATS.reads())),
        ("/settings/autoCompaction", by(Need::Node(Rights::SEE), stored::AUTO_COMPACTION.reads())),
        ("/settings/passwordPolicy", by(Need::Node(Rights::SEE_USERS), stored::PASSWORD_POLICY.reads())),
        ("/settings/audit", by(Need::Node(Rights::SEE_USERS), stored::AUDIT.reads())),
        ("/pools/default/b/{bucket}", by(Need::SeeBucket, get(buckets::terse))),
        ("/pools/default/bs/{bucket}", by(Need::SeeBucket, get(stream::terse))),
    ])
    .route_layer(axum::middleware::from_fn_with_state(console.clone(), login::to_read));
    let to_active = axum::middleware::from_fn_with_state(console.clone(), forward::to_active);
    let sent_on = |handlers: MethodRouter<Console>| handlers.route_layer(to_active.clone());
    let change = |need, handlers| login::by_then_body(&console, need, handlers);
    let changes = with_routes(vec![
        ("/whoami", change(Need::Login, get(login::whoami))),
        ("/requests/slow", change(Need::Node(Rights::SEE), get(requests::slow))),
        ("/requests/large", change(Need::Node(Rights::SEE), get(requests::large))),
        ("/pools/default/buckets/{bucket}/hotKeys", change(Need::ReadSome, get(hot_keys::of_bucket))),
        ("/controller/changePassword", change(Need::Login, post(users::change_password))),
        ("/node/controller/rename", change(Need::Node(Rights::ALL), post(node_setup::rename))),
        ("/node/controller/setupServices", change(Need::Node(Rights::NODE), post(node_setup::set_services))),
        (
            "/node/controller/setupAlternateAddresses/external",
            change(
                Need::Node(Rights::ALL),
                put(node_setup::set_external).delete(node_setup::remove_external),
            ),
        ),
        ("/nodeInit", change(Need::Node(Rights::ALL), post(node_setup::init_node))),
        ("/nodes/self/controller/settings", change(Need::Node(Rights::NODE), post(cluster::set_paths))),
        ("/pools/default/checkPermissions", change(Need::Login, post(permissions::check))),
        ("/settings/autoFailover", change(Need::Node(Rights::NODE), stored::AUTO_FAILOVER.changes())),
        ("/settings/stats", change(Need::Node(Rights::NODE), stored::STATS.changes())),
        (
            "/controller/setAutoCompaction",
            change(Need::Node(Rights::NODE), stored::AUTO_COMPACTION.changes()),
        ),
        ("/settings/passwordPolicy", change(Need::Node(Rights::SECURITY), stored::PASSWORD_POLICY.changes())),
        ("/settings/audit", change(Need::Node(Rights::SECURITY), stored::AUDIT.changes())),
        (
            "/pools/default/buckets/{bucket}/controller/compactBucket",
            change(Need::Bucket(Rights::BUCKET), post(cluster::compact)),
        ),
        (
            "/pools/default/buckets/{bucket}/controller/compactDatabases",
            change(Need::Bucket(Rights::BUCKET), post(cluster::compact)),
        ),
        ("/pools/default", change(Need::Node(Rights::NODE), post(node_setup::set_pool))),
        ("/settings/indexes", change(Need::Node(Rights::NODE), post(node_setup::set_index_settings))),
        ("/settings/web", change(Need::Node(Rights::ALL), post(node_setup::set_web_settings))),
        ("/clusterInit", change(Need::Node(Rights::ALL), post(node_setup::init))),
        ("/allocator", change(Need::Node(Rights::NODE), post(allocator::set))),
        ("/allocator/profile", change(Need::Node(Rights::NODE), post(allocator::profile))),
        ("/databases/{database}/compact", change(Need::Node(Rights::NODE), post(databases::compact))),
        ("/databases/{database}/tables/{table}", change(Need::Node(Rights::ALL), get(databases::rows))),
        ("/pools/default/buckets", change(Need::Node(Rights::NODE), post(buckets::create))),
        (
            "/pools/default/buckets/{bucket}",
            change(Need::Bucket(Rights::BUCKET), delete(buckets::delete).post(buckets::change)),
        ),
        (
            "/pools/default/buckets/{bucket}/controller/doFlush",
            change(Need::Bucket(Rights::FLUSH), post(buckets::flush)),
        ),
        (
            "/pools/default/buckets/{bucket}/scopes",
            change(Need::Bucket(Rights::COLLECTIONS), sent_on(post(scopes::add_scope).put(scopes::replace))),
        ),
        (
            "/pools/default/buckets/{bucket}/scopes/{scope}",
            change(Need::Bucket(Rights::COLLECTIONS), sent_on(delete(scopes::remove_scope))),
        ),
        (
            "/pools/default/buckets/{bucket}/scopes/{scope}/collections",
            change(Need::Scope, sent_on(post(scopes::add_collection))),
        ),
        (
            "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}",
            change(Need::Scope, sent_on(delete(scopes::remove_collection).patch(scopes::set_collection))),
        ),
        (
            "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs",
            of_documents(&console, get(keys::list), put(keys::put).delete(keys::delete)),
        ),
        (
            "/pools/default/buckets/{bucket}/scopes/{scope}/collections/{collection}/docs/{key}",
            of_documents(&console, get(keys::show), put(keys::put).delete(keys::delete)),
        ),
        (
            "/pools/default/buckets/{bucket}/prefixes",
            change(Need::Documents(Rights::READ), get(keys::prefixes)),
        ),
        (
            "/pools/default/buckets/{bucket}/scopes/@ensureManifest/{uid}",
            change(Need::SeeBucket, post(scopes::ensure)),
        ),
        (
            "/settings/rbac/users/{domain}/{user}",
            change(Need::Users, put(users::put).delete(users::delete).patch(users::patch)),
        ),
        (
            "/settings/rbac/groups/{group}",
            change(
                Need::Node(Rights::USERS),
                put(users::put_group).patch(users::patch_group).delete(users::delete_group),
            ),
        ),
        (
            "/pools/default/buckets/{bucket}/vbuckets",
            change(Need::Bucket(Rights::BUCKET), post(vbuckets::set_range)),
        ),
        (
            "/pools/default/buckets/{bucket}/vbuckets/{vb}",
            change(Need::Bucket(Rights::BUCKET), post(vbuckets::set)),
        ),
        ("/pools/default/buckets/{bucket}/audit", change(Need::Bucket(Rights::BUCKET), post(audit::walk))),
        (
            "/pools/default/buckets/{bucket}/backup",
            change(Need::Bucket(Rights::BUCKET), post(buckets::backup)),
        ),
    ])
    .route_layer(axum::middleware::from_fn_with_state(console.clone(), login::to_change));
    Router::new()
        .route("/", get(page::root))
        .route("/page/{file}", get(page::file))
        .route("/health", get(health::health))
        .route("/health/ready", get(health::ready))
        .route("/health/live", get(health::live))
        .merge(reads)
        .merge(changes)
        .fallback(pools::no_endpoint)
        .layer(DefaultBodyLimit::max(admission::BODY_BYTES_MAX))
        .layer(axum::middleware::from_fn_with_state(console.clone(), services::divert))
        .layer(axum::middleware::from_fn_with_state(console.clone(), guard::check))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&console.turns), admission::track))
        .layer(axum::middleware::map_response(unstored))
        .with_state(console)
}
