//! The configuration of a node: typed sections, filled from defaults, then a TOML file, then flags.
//!
//! [`keys`] is the one table of keys; [`reader`] applies a file and flags to it and reports the first mistake as a
//! one-line [`Problem`]; [`check`] holds the rules between keys; [`page`] prints the table for readers.

pub mod address;
pub mod check;
pub mod key;
pub mod keys;
pub mod page;
pub mod problem;
pub mod reader;
pub mod size;

pub use address::Address;
pub use problem::Problem;

use kv::replication::PeerNode;
use kv::{BucketSettings, Eviction, TimeoutMode};
use memory::backend::settings::Setting;
use sessions::Rules;
use std::collections::BTreeMap;
use std::path::PathBuf;
use transport::{ClientCertificates, ClientFiles, OldestVersion, ServerFiles};

/// The syntax of `--bucket`.
pub const BUCKET_FLAG: &str = "NAME[,ephemeral|persistent][,SIZE][,auto_delete|fail_new_data]";

/// A complete configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[node]`.
    pub node: NodeSection,
    /// `[[memcached]]`.
    pub memcached: Vec<MemcachedSection>,
    /// `[kv]`.
    pub kv: KvSection,
    /// `[http]`.
    pub http: HttpSection,
    /// `[[bucket]]`. Without any: an ephemeral bucket `default`, unless the data directory holds one of that name.
    pub buckets: Vec<BucketSection>,
    /// `[[ovsdb]]`.
    pub databases: Vec<OvsdbSection>,
    /// `[limits]`.
    pub limits: LimitsSection,
    /// `[allocator]`.
    pub allocator: AllocatorSection,
    /// `[auth]`.
    pub auth: AuthSection,
    /// `[replication]`.
    pub replication: ReplicationSection,
    /// `[tls]`.
    pub tls: TlsSection,
    /// `[log]`.
    pub log: LogSection,
    /// Whether the node plays the part of a server in a test container. No key: a flag.
    pub testcontainers: bool,
    /// The values that were given, as TOML, by `section.key` or `section[n].key`. Comparing two of these shows what a
    /// reload changed.
    pub given: BTreeMap<String, String>,
}

impl Config {
    /// The files for connections to other nodes; `None`: they are not encrypted.
    pub fn files_to_nodes(&self) -> Option<ClientFiles> {
        Some(ClientFiles {
            ca: self.replication.ca.clone()?,
            identity: self.tls.certificate.clone().zip(self.tls.key.clone()),
            oldest_version: self.tls.oldest_version,
        })
    }
}

/// `[node]`.
#[derive(Debug, Clone, Default)]
pub struct NodeSection {
    /// Worker threads, 0 for automatic.
    pub workers: usize,
    /// Budget of all buckets, `None` for automatic.
    pub memory_bytes: Option<u64>,
    /// Data directory.
    pub data: Option<PathBuf>,
    /// Whether `shutdown` is honoured.
    pub shutdown_command: bool,
    /// When the deadlines of durable writes are checked.
    pub durability_timeout_mode: TimeoutMode,
    /// Whether requests are recorded while nobody looks, too.
    pub record_requests: bool,
    /// Time after which a request is a slow one.
    pub slow_request_us: u64,
    /// Size from which on a request is a large one.
    pub large_request_bytes: usize,
}

/// One `[[memcached]]`.
#[derive(Debug, Clone, Default)]
pub struct MemcachedSection {
    /// The address to listen on.
    pub address: Option<Address>,
    /// The bucket it serves.
    pub bucket: String,
    /// Largest item in bytes.
    pub item_size_max: usize,
    /// Which protocols are spoken, and whether flush_all is allowed.
    pub rules: Rules,
    /// Time after which an idle connection is closed; 0: never.
    pub idle_timeout_ms: u64,
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Whether its clients present certificates, if not as `[tls]` says.
    pub client_certificates: Option<ClientCertificates>,
}

/// `[kv]`.
#[derive(Debug, Clone, Default)]
pub struct KvSection {
    /// The address to listen on.
    pub address: Option<Address>,
    /// Largest value in bytes.
    pub item_size_max: usize,
    /// Time after which an idle connection is closed; 0: never.
    pub idle_timeout_ms: u64,
    /// The address to listen on for TLS, if there is a certificate.
    pub tls_address: Option<Address>,
    /// Whether clients present certificates there, if not as `[tls]` says.
    pub client_certificates: Option<ClientCertificates>,
}

/// `[http]`.
#[derive(Debug, Clone, Default)]
pub struct HttpSection {
    /// The address to listen on.
    pub address: Option<Address>,
    /// Host names under which clients may address the node.
    pub host_names: Vec<String>,
    /// The address to listen on for TLS, if there is a certificate.
    pub tls_address: Option<Address>,
    /// Whether clients present certificates there, if not as `[tls]` says.
    pub client_certificates: Option<ClientCertificates>,
}

/// One `[[bucket]]`.
#[derive(Debug, Clone, Default)]
pub struct BucketSection {
    /// Its name.
    pub name: String,
    /// Its budget, `None` for an equal share.
    pub memory_bytes: Option<u64>,
    /// What happens when the budget is reached.
    pub eviction: EvictionChoice,
    /// All other settings. Its budget and eviction fields are not used.
    pub settings: BucketSettings,
}

/// What to do when a bucket reaches its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictionChoice {
    /// The default of the bucket's kind.
    #[default]
    Auto,
    /// Ephemeral: documents are evicted.
    AutoDelete,
    /// Ephemeral: new data is refused.
    FailNewData,
    /// Persistent: values are ejected.
    ValueEjection,
}

impl EvictionChoice {
    /// The eviction policy of an ephemeral bucket. A persistent bucket has no choice.
    pub const fn of_ephemeral(self) -> Eviction {
        match self {
            Self::FailNewData => Eviction::FailNewData,
            _ => Eviction::AutoDelete,
        }
    }
}

/// One `[[ovsdb]]`.
#[derive(Debug, Clone, Default)]
pub struct OvsdbSection {
    /// The database's file; `None` for no database.
    pub file: Option<PathBuf>,
    /// Its remotes.
    pub remotes: Vec<String>,
    /// Its budget.
    pub memory_bytes: u64,
}

/// `[limits]`.
#[derive(Debug, Clone, Default)]
pub struct LimitsSection {
    /// Open client connections.
    pub connections: usize,
    /// How many of these are reserved for loopback addresses.
    pub loopback_connections: usize,
    /// Time allowed for an unfinished request.
    pub unfinished_request_ms: u64,
    /// Longest text line.
    pub line_bytes: usize,
    /// Largest binary frame.
    pub frame_bytes: usize,
    /// Requests per connection and turn.
    pub turn_requests: usize,
    /// Unsent output at which reading stops.
    pub output_backlog_bytes: usize,
    /// Time after which a peer that reads nothing is dropped.
    pub stuck_peer_ms: u64,
    /// Longest OVSDB message.
    pub ovsdb_message_bytes: usize,
    /// Deepest nesting in an OVSDB message.
    pub ovsdb_depth: usize,
    /// Concurrent OVSDB sessions.
    pub ovsdb_sessions: usize,
    /// Memory that all OVSDB sessions together may take; `None`: derived from the node's memory.
    pub ovsdb_clients_bytes: Option<u64>,
}

/// `[allocator]`: values in jemalloc's notation, defaults included.
#[derive(Debug, Clone, Default)]
pub struct AllocatorSection {
    values: BTreeMap<Setting, String>,
}

impl AllocatorSection {
    /// Replaces the value of a setting.
    pub fn set(&mut self, setting: Setting, value: impl ToString) {
        self.values.insert(setting, value.to_string());
    }

    /// The value of a setting.
    pub fn value(&self, setting: Setting) -> &str {
        self.values.get(&setting).map_or("", String::as_str)
    }
}

/// `[auth]`.
#[derive(Debug, Clone, Default)]
pub struct AuthSection {
    /// The user's name.
    pub user: String,
    /// The file with the password; `None` for the development password.
    pub password_file: Option<PathBuf>,
    /// The file with further users; `None` for no others.
    pub users_file: Option<PathBuf>,
    /// Whether, without either file, an administrator is among the users in the data directory, or is going to be: then
    /// there is no development user. No key.
    pub has_kept: bool,
}

/// `[replication]`.
#[derive(Debug, Clone, Default)]
pub struct ReplicationSection {
    /// This node's name; empty: the address of its KV port.
    pub node: String,
    /// The other nodes.
    pub peers: Vec<PeerNode>,
    /// As whom this node logs in there; empty: the user of `[auth]`.
    pub user: String,
    /// The file with that user's password.
    pub password_file: Option<PathBuf>,
    /// Who signs the certificates of the other nodes; `None`: connections to them are not encrypted.
    pub ca: Option<PathBuf>,
}

/// `[tls]`.
#[derive(Debug, Clone, Default)]
pub struct TlsSection {
    /// The certificate and its chain; `None`: no TLS.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The authority that signs client certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether clients present certificates, at ports that do not say otherwise.
    pub client_certificates: ClientCertificates,
    /// The oldest TLS version accepted.
    pub oldest_version: OldestVersion,
}

impl TlsSection {
    /// The files for the TLS ports; `None`: no TLS.
    pub fn files(&self) -> Option<ServerFiles> {
        Some(ServerFiles {
            certificate: self.certificate.clone()?,
            key: self.key.clone()?,
            client_ca: self.client_ca.clone(),
            client_certificates: self.client_certificates,
            oldest_version: self.oldest_version,
        })
    }
}

/// `[log]`.
#[derive(Debug, Clone, Default)]
pub struct LogSection {
    /// The least severe level.
    pub level: Level,
    /// The format of a line.
    pub format: Format,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something will fail, or was refused.
    Warn,
    /// What an operator wants to know.
    #[default]
    Info,
    /// What a developer wants to know.
    Debug,
    /// Everything.
    Trace,
}

impl Level {
    /// All names, most severe first.
    pub const NAMES: &'static [&'static str] = &["error", "warn", "info", "debug", "trace"];

    /// The level with this name.
    pub fn named(name: &str) -> Option<Self> {
        let levels = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];
        Self::NAMES.iter().zip(levels).find(|(known, _)| **known == name).map(|(_, level)| level)
    }
}

/// Form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Human-readable.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
