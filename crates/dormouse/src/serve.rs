//! `dormouse serve`: from the command line to a serving node, until SIGTERM.
//!
//! ```text
//!   configuration ── allocator (may start the program again) ── password ── data directory ── listeners ── signals ── node ── buckets
//!         ── databases (ovsdb) ── workers (net) ── http (console) ── endpoints.json ── banner ── sleep ── drain
//! ```
//!
//! Every mistake is found before anything serves, and is reported in one line. After that the main thread sleeps in the
//! kernel until a signal arrives.

use crate::allocator::Allocator;
use crate::bucket_store::BucketStore;
use crate::cli::Serve;
use crate::config::{Address as Place, Config, Problem, keys, reader, size};
use crate::control::Control;
use crate::data_dir::{DataDir, Scratch};
use crate::databases::Databases;
use crate::listen::bind;
use crate::logging::Logging;
use crate::node_store::NodeStore;
use crate::password::{Login, Source};
use crate::reload::{Reload, limits};
use crate::signals::{SignalRequest, Signals};
use crate::{banner, budgets, machine, password};
use console::{HostNames, Refusal, Serves};
use kv::node::{Endpoints, Service, ServicePort, UnixEndpoint};
use kv::profile::Profile;
use kv::replication::Replication;
use kv::users::Users;
use kv::{Node, NodeSettings};
use sessions::Port;
use std::sync::Arc;
use std::time::Duration;
use transport::{
    Address, ClientCertificates, Handshakes, Listener, OutgoingTls, ServerTls, raise_open_files,
};

/// Executing threads besides those of the data plane: the console's.
const OTHER_THREADS: usize = 1;
/// How long received requests are still answered while draining.
const DRAIN_GRACE: Duration = Duration::from_secs(5);
/// Maximum number of worker threads if none is configured.
const WORKERS_MAX: usize = 8;
/// Share of the machine's memory that "auto" stands for, in per cent.
const MEMORY_PERCENT: u64 = 60;

/// Runs a node until it is asked to stop.
pub fn run(arguments: &Serve) -> anyhow::Result<()> {
    let config = reader::load(arguments.config.as_deref(), &arguments.flags())?;
    let mut allocator = Allocator::start(&config);
    let login = password::login(&config.auth)?;
    let needs_scratch = config.testcontainers && config.node.data.is_none();
    let scratch = needs_scratch.then(Scratch::make).transpose()?;
    let data = config.node.data.as_deref().or(scratch.as_ref().map(Scratch::path));
    let data = data.map(DataDir::open).transpose()?;
    let kept = NodeStore::new(data.as_ref().map(DataDir::path));
    let profile = identified(kept.profile()?, &kept)?;
    let tls = load_tls(&config)?;
    let to_nodes = load_tls_to_nodes(&config)?;
    let listeners = Listeners::bind(&config, !login.is_development(), tls.as_ref())?;
    let endpoints = listeners.endpoints;
    let open_files = raise_open_files(config.limits.connections);
    let logging = Logging::start(&config.log)?;
    let memory_bytes = node_memory(&config, &profile)?;
    if let Some(warning) = budgets::excess(config.node.memory_bytes, machine::memory_bytes()) {
        tracing::warn!("{warning}");
    }
    password::warn_of_readers(&config.auth);
    warn_of_certificate(tls.as_ref(), &config);
    allocator.report();
    allocator.apply(&config);
    let mut signals = Signals::new()?;
    if u64::try_from(config.limits.connections).is_ok_and(|connections| connections > open_files) {
        let connections = config.limits.connections;
        tracing::warn!(open_files, connections, "the limit on open files allows fewer connections");
    }

    let workers = match config.node.workers {
        0 => machine::cores().min(WORKERS_MAX),
        workers => workers,
    };
    let settings = NodeSettings {
        threads: net::executing_threads(workers) + OTHER_THREADS,
        shutdown_command: config.node.shutdown_command,
        // COMPAT: libmemcached assumes that a server below 1.4 lacks half of the protocol (memccapable shows it).
        version: concat!("1.6.45-dormouse-", env!("CARGO_PKG_VERSION")).into(),
        seed: u64::from_le_bytes(machine::random()?),
    };
    let node = Node::new(settings, limits(&config));
    node.set_memory(memory_bytes);
    node.set_timeout_mode(config.node.durability_timeout_mode);
    node.requests().set_always(config.node.record_requests);
    let users = Users::new(machine::random()?);
    users.on_failed_logins(|notice| {
        let (failures, user, address) = (notice.failures, notice.user, notice.address);
        tracing::warn!(
            failures,
            user,
            ?address,
            "logins failed; the last one was this user's, from this address"
        );
    });
    users.set_kept(kept.users()?);
    node.set_users(users);
    node.set_profile(profile);
    let stopper = signals.stopper();
    node.shutdown_bell().connect(Box::new(move || stopper.stop()));
    let store = data.as_ref().map(DataDir::buckets);
    let found = store.as_ref().map_or(Ok(Vec::new()), BucketStore::found)?;
    let is_open = login.source == Source::Kept && !node.users().kept().has_administrator();
    let control =
        Arc::new(Control::new(Arc::clone(&node), memory_bytes, &login, is_open, store, kept, tls.clone()));
    control.set_log(logging.tail());
    control.claim_databases(&config.databases).map_err(problem_of)?;
    control.create_at_start(&config.buckets, &found).map_err(problem_of)?;
    let databases = Databases::start(&config, memory_bytes, &node)?;
    if let Some(databases) = &databases {
        control.set_databases(databases.watcher());
    }
    node.set_endpoints(endpoints.clone());
    node.set_replication(replication(&config, &login)?);

    node.set_started(machine::unix_ms());
    let has_handshakes = tls.is_some() || to_nodes.is_some();
    let handshakes = has_handshakes.then(Handshakes::start).transpose()?.map(Arc::new);
    let (data_handshakes, data_to_nodes) = (handshakes.clone(), to_nodes.clone());
    let server =
        net::Server::start(Arc::clone(&node), listeners.data, workers, data_handshakes, data_to_nodes)?;
    let http = match listeners.http {
        none if none.is_empty() => None,
        ports => {
            let host_names = HostNames::new(&config.http.host_names);
            Some(console::serve(Arc::clone(&node), ports, handshakes, control.clone(), host_names)?)
        }
    };
    if let Some(data) = &data
        && let Err(error) = data.write_endpoints(&endpoints)
    {
        // A full disk must not prevent serving existing data; the banner also prints the addresses.
        tracing::warn!(%error, "endpoints.json could not be written");
    }
    banner::print(&node, &endpoints, &login, workers, memory_bytes);

    let mut reload = Reload {
        arguments,
        config,
        login,
        tls,
        to_nodes,
        node,
        control: Arc::clone(&control),
        logging,
        allocator,
    };
    let who = loop {
        match signals.next() {
            SignalRequest::Reload => reload.apply(),
            SignalRequest::Stop(who) => break who,
        }
    };
    tracing::info!(who, "draining");
    control.drain();
    if let Some(data) = &data {
        data.forget_endpoints();
    }
    if let Some(databases) = &databases {
        databases.begin_stop();
    }
    let unwritten = server.shutdown(DRAIN_GRACE);
    let http = http.map_or(Ok(()), console::Handle::stop);
    // Nothing changes a bucket from here on.
    unwritten.close()?;
    if let Some(databases) = databases {
        databases.stop();
    }
    http?;
    tracing::info!("stopped");
    Ok(())
}

/// How the node takes part in replication.
pub fn replication(config: &Config, login: &Login) -> Result<Replication, Problem> {
    let section = &config.replication;
    let (user, password) = match &section.password_file {
        None => (login.user.clone(), login.password.clone()),
        Some(path) => {
            let refused = |what| Problem::new(format!("replication.password_file = {path:?}: {what}"));
            (section.user.clone(), password::first_line(path).map_err(refused)?)
        }
    };
    Ok(Replication {
        node: (!section.node.is_empty()).then(|| section.node.as_str().into()),
        user: user.into(),
        password: password.into(),
        uses_tls: section.ca.is_some(),
        peers: section.peers.clone(),
    })
}

/// The least memory that the configuration's buckets and databases need.
fn needed_memory(config: &Config) -> u64 {
    let buckets = config.buckets.iter().map(|bucket| bucket.memory_bytes.unwrap_or(keys::BUCKET_MEMORY_MIN));
    let databases = config.databases.iter().filter(|database| database.file.is_some());
    buckets.chain(databases.map(|database| database.memory_bytes)).fold(0, u64::saturating_add)
}

/// The profile with the identity of the cluster, which is drawn at the first start. If it cannot be written now, it
/// will be with the next change.
fn identified(mut profile: Profile, kept: &NodeStore) -> anyhow::Result<Profile> {
    if profile.uuid.is_empty() {
        profile.uuid = format!("{:032x}", u128::from_le_bytes(machine::random()?));
        let _ = kept.keep_profile(&profile);
    }
    Ok(profile)
}

/// Memory that all buckets may use together.
fn node_memory(config: &Config, profile: &Profile) -> Result<u64, Problem> {
    if let Some(bytes) = config.node.memory_bytes {
        return Ok(bytes);
    }
    let needed = needed_memory(config);
    if let Some(mebibytes) = profile.memory_mib {
        let said = mebibytes.saturating_mul(1 << 20).min(machine::memory_bytes().unwrap_or(u64::MAX));
        if said < needed {
            let (needed, said) = (size::show(needed), size::show(said));
            tracing::warn!(
                "the buckets of the configuration need {needed}, more than the {said} set over HTTP"
            );
        }
        return Ok(said.max(needed));
    }
    let machine = machine::memory_bytes().ok_or_else(|| {
        Problem::new(
            "node.memory = \"auto\": the machine's memory cannot be read from /proc/meminfo; allowed: a size",
        )
    })?;
    let bytes = machine / 100 * MEMORY_PERCENT;
    if needed > bytes {
        return Err(Problem::new(format!(
            "the buckets need {} in all, and node.memory = \"auto\" is {} here ({MEMORY_PERCENT} % of the machine's); \
            allowed: \
             budgets that fit, or node.memory as a size",
            size::show(needed),
            size::show(bytes)
        )));
    }
    Ok(bytes)
}

pub fn problem_of(refusal: Refusal) -> Problem {
    match refusal {
        Refusal::Missing => Problem::new("bucket: not found"),
        Refusal::NoSuch { answer: what } | Refusal::Forbidden { permission: what } => Problem::new(what),
        Refusal::Invalid { reason, .. }
        | Refusal::TooMany { reason }
        | Refusal::NotNow { reason }
        | Refusal::Failed { reason } => Problem::new(reason),
    }
}

/// Services that test containers are asked for: their names, those of their ports in cluster maps, and the distance of
/// the ports from the HTTP port.
const SERVICES: [(&str, &str, u16); 5] = [
    ("n1ql", "n1ql", 2),
    ("fts", "fts", 3),
    ("cbas", "cbas", 4),
    ("eventing", "eventingAdminPort", 5),
    ("index", "indexHttp", 1011),
];

/// The bound listeners.
#[derive(Default)]
struct Listeners {
    data: Vec<net::Listener>,
    http: Vec<console::Port>,
    endpoints: Endpoints,
}

impl Listeners {
    fn bind(config: &Config, login_required: bool, tls: Option<&Arc<ServerTls>>) -> Result<Self, Problem> {
        let mut listeners = Self::default();
        for section in &config.memcached {
            let Some(address) = &section.address else { continue };
            let tls = tls_of_port(tls.filter(|_| section.tls), section.client_certificates, config)?;
            for socket in bind("memcached.address", address, login_required)? {
                listeners.note(Service::Memcached, &socket, tls.is_some(), Some(&section.bucket));
                listeners.data.push(net::Listener {
                    socket,
                    tls: tls.clone(),
                    port: Port::Memcached,
                    bucket: Some(section.bucket.clone()),
                    login_required,
                    value_limit: section.item_size_max,
                    rules: section.rules,
                    idle_limit_ms: section.idle_timeout_ms,
                });
            }
        }
        let kv_tls = tls_of_port(tls, config.kv.client_certificates, config)?;
        for (key, address, tls) in [
            ("kv.address", Some(&config.kv.address), None),
            ("kv.tls_address", tls.map(|_| &config.kv.tls_address), kv_tls.as_ref()),
        ] {
            let Some(Some(address)) = address else { continue };
            for socket in bind(key, address, login_required)? {
                listeners.note(Service::Kv, &socket, tls.is_some(), None);
                listeners.data.push(net::Listener {
                    socket,
                    tls: tls.cloned(),
                    port: Port::Couchbase,
                    bucket: None,
                    login_required: true,
                    value_limit: config.kv.item_size_max,
                    rules: Default::default(),
                    idle_limit_ms: config.kv.idle_timeout_ms,
                });
            }
        }
        let http_tls = tls_of_port(tls, config.http.client_certificates, config)?;
        for (key, address, tls) in [
            ("http.address", Some(&config.http.address), None),
            ("http.tls_address", tls.map(|_| &config.http.tls_address), http_tls.as_ref()),
        ] {
            let Some(Some(address)) = address else { continue };
            for listener in bind(key, address, login_required)? {
                listeners.note(Service::Http, &listener, tls.is_some(), None);
                listeners.http.push(console::Port {
                    listener,
                    tls: tls.cloned(),
                    serves: Serves::Management,
                });
            }
        }
        if config.testcontainers {
            listeners.bind_services(config)?;
        }
        Ok(listeners)
    }

    /// Binds the ports of other services, which have their usual distance from the HTTP port.
    fn bind_services(&mut self, config: &Config) -> Result<(), Problem> {
        for (service, name, distance) in SERVICES {
            let near = |port: u16| if port == 0 { 0 } else { port.saturating_add(distance) };
            let address = match &config.http.address {
                Some(Place::All(port)) => Place::All(near(*port)),
                Some(Place::Localhost(port)) => Place::Localhost(near(*port)),
                Some(Place::Tcp(address)) => Place::Tcp((address.ip(), near(address.port())).into()),
                Some(Place::Unix { .. }) | None => continue,
            };
            for listener in bind("http.address", &address, true)? {
                let bound = listener.tcp_address();
                self.endpoints.services.extend(bound.map(|address| ServicePort { service, name, address }));
                self.http.push(console::Port { listener, tls: None, serves: Serves::Absent(service) });
            }
        }
        Ok(())
    }

    /// Records the address of a port.
    fn note(&mut self, service: Service, socket: &Listener, has_tls: bool, bucket: Option<&str>) {
        let endpoints = &mut self.endpoints;
        let bucket = bucket.map(str::to_owned);
        match (socket.address(), service) {
            (Address::Tcp(address), Service::Memcached) => {
                let list = if has_tls { &mut endpoints.memcached_tls } else { &mut endpoints.memcached };
                list.push((*address, bucket.unwrap_or_default()));
            }
            (Address::Tcp(address), Service::Kv) => {
                let list = if has_tls { &mut endpoints.kv_tls } else { &mut endpoints.kv };
                list.push(*address);
            }
            (Address::Tcp(address), Service::Http) => {
                let list = if has_tls { &mut endpoints.http_tls } else { &mut endpoints.http };
                list.push(*address);
            }
            (Address::Unix(path), _) => {
                endpoints.unix.push(UnixEndpoint { service, path: path.clone(), bucket });
            }
        }
    }
}

/// Loads the TLS configuration of connections to other nodes, if they are encrypted.
pub fn load_tls_to_nodes(config: &Config) -> Result<Option<Arc<OutgoingTls>>, Problem> {
    let Some(files) = config.files_to_nodes() else { return Ok(None) };
    let tls = OutgoingTls::load(&files).map_err(|error| Problem::new(format!("replication.ca: {error}")))?;
    Ok(Some(Arc::new(tls)))
}

/// The TLS of a port that may ask for client certificates in its own way.
fn tls_of_port(
    tls: Option<&Arc<ServerTls>>,
    asks: Option<ClientCertificates>,
    config: &Config,
) -> Result<Option<Arc<ServerTls>>, Problem> {
    let (Some(shared), Some(asks), Some(files)) = (tls, asks, config.tls.files()) else {
        return Ok(tls.cloned());
    };
    let own = shared.asking(asks, &files).map_err(|error| Problem::new(format!("tls: {error}")))?;
    Ok(Some(Arc::new(own)))
}

/// Warns of a certificate that most clients refuse.
pub fn warn_of_certificate(tls: Option<&Arc<ServerTls>>, config: &Config) {
    if let (Some(tls), Some(file)) = (tls, &config.tls.certificate)
        && tls.lacks_hosts()
    {
        tracing::warn!(
            ?file,
            "the certificate names no host (it has no subjectAltName, as all of X.509 version 1): most clients refuse \
             it; docs/tls.md says how to sign one that does"
        );
    }
}

/// Loads the TLS configuration of the ports, if there is a certificate.
fn load_tls(config: &Config) -> Result<Option<Arc<ServerTls>>, Problem> {
    let Some(files) = config.tls.files() else { return Ok(None) };
    let tls = ServerTls::load(&files).map_err(|error| Problem::new(format!("tls: {error}")))?;
    Ok(Some(Arc::new(tls)))
}
