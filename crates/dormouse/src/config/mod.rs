//! The configuration of a node: typed sections, filled from defaults, then a TOML file, then flags.
//!
//! [`keys`] is the one table of keys; [`reader`] applies a file and flags to it and reports the first mistake as a
//! one-line [`Problem`]; [`check`] holds the rules between keys; [`page`] prints the table for people.

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

use kv::{BucketSettings, Eviction, TimeoutMode};
use memory::backend::settings::Setting;
use sessions::Rules;
use std::collections::BTreeMap;
use std::path::PathBuf;
use transport::{ClientCertificates, OldestVersion, ServerFiles};

/// What `--bucket` takes.
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
    /// `[tls]`.
    pub tls: TlsSection,
    /// `[log]`.
    pub log: LogSection,
    /// What was given, by `section.key` or `section[n].key`, as TOML: two of these tell what a reload changed.
    pub given: BTreeMap<String, String>,
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
    /// When durable writes are looked at for their deadlines.
    pub durability_timeout_mode: TimeoutMode,
}

/// One `[[memcached]]`.
#[derive(Debug, Clone, Default)]
pub struct MemcachedSection {
    /// Where to listen.
    pub address: Option<Address>,
    /// Which bucket.
    pub bucket: String,
    /// Largest item in bytes.
    pub item_size_max: usize,
    /// Which protocols, and whether flush_all.
    pub rules: Rules,
    /// Time after which an idle connection is closed; 0: never.
    pub idle_timeout_ms: u64,
    /// Whether it speaks TLS.
    pub tls: bool,
}

/// `[kv]`.
#[derive(Debug, Clone, Default)]
pub struct KvSection {
    /// Where to listen.
    pub address: Option<Address>,
    /// Largest value in bytes.
    pub item_size_max: usize,
    /// Time after which an idle connection is closed; 0: never.
    pub idle_timeout_ms: u64,
    /// Where TLS is spoken, if there is a certificate.
    pub tls_address: Option<Address>,
}

/// `[http]`.
#[derive(Debug, Clone, Default)]
pub struct HttpSection {
    /// Where to listen.
    pub address: Option<Address>,
    /// Names under which the node may be asked.
    pub host_names: Vec<String>,
    /// Where TLS is spoken, if there is a certificate.
    pub tls_address: Option<Address>,
}

/// One `[[bucket]]`.
#[derive(Debug, Clone, Default)]
pub struct BucketSection {
    /// Its name.
    pub name: String,
    /// Its budget, `None` for an equal share.
    pub memory_bytes: Option<u64>,
    /// What happens at the budget.
    pub eviction: EvictionChoice,
    /// Everything else. Budget and eviction in it say nothing.
    pub settings: BucketSettings,
}

/// What shall happen at a bucket's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EvictionChoice {
    /// What fits the bucket's kind.
    #[default]
    Auto,
    /// Ephemeral: documents go.
    AutoDelete,
    /// Ephemeral: new data is refused.
    FailNewData,
    /// Persistent: values go.
    ValueEjection,
}

impl EvictionChoice {
    /// What an ephemeral bucket does. A persistent one has no choice.
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
    /// Where it can be reached.
    pub remotes: Vec<String>,
    /// Its budget.
    pub memory_bytes: u64,
}

/// `[limits]`.
#[derive(Debug, Clone, Default)]
pub struct LimitsSection {
    /// Open client connections.
    pub connections: usize,
    /// So many of them for loopback addresses only.
    pub loopback_connections: usize,
    /// Time that an unfinished request is given.
    pub unfinished_request_ms: u64,
    /// Longest text line.
    pub line_bytes: usize,
    /// Largest binary frame.
    pub frame_bytes: usize,
    /// Requests per connection and turn.
    pub turn_requests: usize,
    /// Unsent output at which reading stops.
    pub output_backlog_bytes: usize,
    /// Time after which a peer that takes nothing is dropped.
    pub stuck_peer_ms: u64,
    /// Longest OVSDB message.
    pub ovsdb_message_bytes: usize,
    /// Deepest nesting in an OVSDB message.
    pub ovsdb_depth: usize,
    /// OVSDB sessions at a time.
    pub ovsdb_sessions: usize,
    /// What all OVSDB sessions may make the node keep; none: it follows from the node's memory.
    pub ovsdb_clients_bytes: Option<u64>,
}

/// `[allocator]`: values in jemalloc's words, defaults among them.
#[derive(Debug, Clone, Default)]
pub struct AllocatorSection {
    values: BTreeMap<Setting, String>,
}

impl AllocatorSection {
    /// Puts a value in place of another.
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
}

/// `[tls]`.
#[derive(Debug, Clone, Default)]
pub struct TlsSection {
    /// The certificate and its chain; `None`: no TLS.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// Who signs certificates of clients.
    pub client_ca: Option<PathBuf>,
    /// Whether clients show some.
    pub client_certificates: ClientCertificates,
    /// The oldest version that is spoken.
    pub oldest_version: OldestVersion,
}

impl TlsSection {
    /// What the ports are given; `None`: no TLS.
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
    /// How a line looks.
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

    /// The level of a name.
    pub fn named(name: &str) -> Option<Self> {
        let levels = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];
        Self::NAMES.iter().zip(levels).find(|(known, _)| **known == name).map(|(_, level)| level)
    }
}

/// Form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
