//! The servers under test: found, started as child processes on one core, told apart from each other, and stopped.

use crate::certificate::Certificate;
use crate::child;
use crate::client::Target;
use crate::os::Placement;
use crate::programs::{self, Program};
use crate::protocol::Protocol;
use crate::storage::Scratch;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(30);
const START_LOOK: Duration = Duration::from_millis(10);
/// A persistent bucket is made with a few syncs.
const START_TIMEOUT_PER_BUCKET: Duration = Duration::from_millis(200);
/// Dormouse writes there where it listens.
const ENDPOINTS: &str = "endpoints.json";
const CONFIGURATION: &str = "node.toml";
const POLLING: &str = "[node]\ndurability_timeout_mode = \"polling\"\n";
/// Bucket every load goes to.
pub const BUCKET: &str = "default";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The program this lab belongs to.
    Dormouse,
    /// The same with items in slabs from the first one on.
    DormouseSlab,
    /// The same with each item a block.
    DormouseBlock,
    /// memcached.
    Memcached,
    /// Redis.
    Redis,
    /// Valkey.
    Valkey,
    /// The transport's own cost (see `floor`).
    Floor,
}

impl Kind {
    /// Its name in tables, options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dormouse => "dormouse",
            Self::DormouseSlab => "dormouse-slab",
            Self::DormouseBlock => "dormouse-block",
            Self::Memcached => "memcached",
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Floor => "floor",
        }
    }

    /// Whether it is a Dormouse, however its items lie.
    pub fn is_dormouse(self) -> bool {
        matches!(self, Self::Dormouse | Self::DormouseSlab | Self::DormouseBlock)
    }

    /// Where a Dormouse is told to keep its items.
    fn item_heap(self) -> Option<&'static str> {
        match self {
            Self::DormouseSlab => Some("slab"),
            Self::DormouseBlock => Some("block"),
            _ => None,
        }
    }
}

/// A server that can be started.
#[derive(Clone, Debug, Serialize)]
pub struct Subject {
    /// Its program.
    #[serde(flatten)]
    pub program: Program,
    /// Which server.
    pub kind: Kind,
    /// Language the load speaks to it.
    pub protocol: Protocol,
    /// Further arguments (Dormouse, Redis and Valkey).
    pub extra: Vec<String>,
}

/// How a server is to be started.
#[derive(Clone, Debug)]
pub struct Start {
    /// Core and priority.
    pub placement: Placement,
    /// Workers (Dormouse only).
    pub workers: usize,
    /// Memory its data may take.
    pub memory_bytes: u64,
    /// Connections it must accept.
    pub connections: usize,
    /// Length of the values (the floor answers with so many bytes).
    pub value_bytes: usize,
    /// Longest value it must take.
    pub value_bytes_max: usize,
    /// Buckets besides the default one (Dormouse only).
    pub further_buckets: usize,
    /// Memory budget of each bucket if there are several.
    pub bucket_bytes: u64,
    /// What is written must be kept: persistent buckets; Redis and Valkey append to a file and sync it before each
    /// answer.
    pub durable: bool,
    /// Directory of what is kept, which outlives the server; otherwise it has one of its own.
    pub data: Option<PathBuf>,
    /// Where the server's own directory is made, if not among the system's temporary ones.
    pub parent: Option<PathBuf>,
    /// Dormouse looks for overdue durable writes all the time, instead of when one is due.
    pub polls: bool,
    /// `memory_bytes` is a limit, and what does not fit goes (Redis and Valkey: by this policy; the others have one
    /// only).
    pub eviction: Option<&'static str>,
    /// What else a Dormouse is told in its configuration.
    pub configuration: String,
    /// It has a port that speaks TLS too (Dormouse and memcached).
    pub certificate: Option<Rc<Certificate>>,
}

impl Start {
    /// A start for a load of ordinary items.
    pub fn new(placement: Placement, memory_bytes: u64) -> Self {
        Self {
            placement,
            workers: 1,
            memory_bytes,
            connections: 1000,
            value_bytes: 256,
            value_bytes_max: 1024 * 1024,
            further_buckets: 0,
            bucket_bytes: memory_bytes,
            durable: false,
            data: None,
            parent: None,
            polls: false,
            eviction: None,
            configuration: String::new(),
            certificate: None,
        }
    }

    /// Names of the buckets (Dormouse only).
    fn buckets(&self) -> impl Iterator<Item = String> {
        let further = (0..self.further_buckets).map(|number| format!("bucket-{number}"));
        std::iter::once(BUCKET.to_owned()).chain(further)
    }

    /// The kind of its buckets.
    pub fn bucket_kind(&self) -> &'static str {
        if self.durable { "persistent" } else { "ephemeral" }
    }
}

/// A running server; killed when dropped.
pub struct Server {
    child: child::Server,
    /// Its process.
    pub pid: u32,
    /// Where the load connects.
    pub target: Target,
    /// The same over TLS, where that was asked for.
    pub tls: Option<Target>,
    /// Couchbase port, where it has one.
    pub couchbase: Option<Target>,
    /// memcached port, where it has one.
    pub memcached: Option<SocketAddr>,
    /// HTTP port, where it has one.
    pub console: Option<SocketAddr>,
}

/// Where a server is reached, as far as that is known yet.
struct Place {
    target: Target,
    tls: Option<Target>,
    couchbase: Option<Target>,
    memcached: Option<SocketAddr>,
    console: Option<SocketAddr>,
}

#[derive(Deserialize)]
struct Endpoints {
    memcached: Vec<MemcachedEndpoint>,
    kv: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    /// Older programs have none.
    #[serde(default)]
    tls: TlsEndpoints,
}

#[derive(Deserialize, Default)]
struct TlsEndpoints {
    #[serde(default)]
    memcached: Vec<MemcachedEndpoint>,
}

#[derive(Deserialize)]
struct MemcachedEndpoint {
    address: SocketAddr,
}

impl Subject {
    /// Dormouse, from the given program or the one that is found.
    pub fn dormouse(program: Option<&Path>, protocol: Protocol, extra: &[String]) -> Result<Self> {
        let program = Program::new(Kind::Dormouse.name(), programs::dormouse(program)?, "--version");
        Ok(Self { extra: extra.to_vec(), ..Self::new(program, Kind::Dormouse, protocol) })
    }

    fn new(program: Program, kind: Kind, protocol: Protocol) -> Self {
        Self { program, kind, protocol, extra: Vec::new() }
    }

    /// The same under another name.
    pub fn named(self, name: &str) -> Self {
        Self { program: Program { name: name.to_owned(), ..self.program }, ..self }
    }

    /// The same with the library of an allocator preloaded, if that can be.
    pub fn with_allocator(&self, name: &str) -> Result<Option<Self>> {
        Ok(self.program.with_allocator(name)?.map(|program| Self { program, ..self.clone() }))
    }

    /// A peer by `name` or `name=program`; `None` if it is not installed.
    pub fn peer(text: &str) -> Result<Option<Self>> {
        let (name, given) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        let (kind, default, flag, protocol) = match name {
            "memcached" => (Kind::Memcached, "memcached", "-V", Protocol::MemcachedBinary),
            "memcached-text" => (Kind::Memcached, "memcached", "-V", Protocol::MemcachedText),
            "redis" | "redis-server" => (Kind::Redis, "redis-server", "--version", Protocol::Resp),
            "valkey" | "valkey-server" => (Kind::Valkey, "valkey-server", "--version", Protocol::Resp),
            "dormouse-slab" | "dormouse-block" => {
                let kind = if name == "dormouse-slab" { Kind::DormouseSlab } else { Kind::DormouseBlock };
                let own = Self::dormouse(given.map(Path::new), Protocol::MemcachedBinary, &[])?;
                return Ok(Some(Self { kind, ..own }.named(name)));
            }
            "floor" => {
                let program = Program::floor("header parse and canned answer")?;
                return Ok(Some(Self::new(program, Kind::Floor, Protocol::MemcachedBinary)));
            }
            _ => bail!(
                "unknown peer `{name}`: memcached, memcached-text, redis, valkey, floor, dormouse-slab, \
                dormouse-block or none"
            ),
        };
        let program = Program::peer(kind.name(), given, default, flag)?;
        Ok(program.map(|program| Self::new(program, kind, protocol)))
    }

    /// Starts the server and waits until it answers connections.
    pub fn start(&self, start: &Start) -> Result<Server> {
        self.start_alone(start).with_context(|| self.program.starting())
    }

    fn start_alone(&self, start: &Start) -> Result<Server> {
        let scratch = Scratch::new(start.parent.as_deref())?;
        let directory = scratch.path.clone();
        let address = free_address()?;
        let data = start.data.as_deref().unwrap_or(&directory);
        // One of a former start would be believed.
        let _there_may_be_none = fs::remove_file(data.join(ENDPOINTS));
        if let Some(configuration) = self.configuration(start) {
            fs::write(directory.join(CONFIGURATION), configuration)?;
        }
        let plain = Target { address, protocol: self.protocol, bucket: BUCKET.to_owned(), tls: None };
        let tls = match &start.certificate {
            Some(certificate) if self.speaks_tls() => {
                let client = Some(certificate.client.clone());
                Some(Target { address: free_address()?, tls: client, ..plain.clone() })
            }
            _ => None,
        };
        let mut command = self.command(start, &directory, data, address);
        if let (Some(tls), Some(certificate)) = (&tls, &start.certificate) {
            self.with_tls(&mut command, address, tls.address, certificate);
        }
        let mut child = child::Server::start(command, scratch, start.placement)?;
        let mut place = Place { target: plain, tls, couchbase: None, memcached: None, console: None };
        let timeout = START_TIMEOUT + START_TIMEOUT_PER_BUCKET * start.further_buckets as u32;
        child.wait_until(timeout, START_LOOK, || place.is_ready(self, data))?;
        self.program.ensure_loaded(child.pid())?;
        let Place { target, tls, couchbase, memcached, console } = place;
        Ok(Server { pid: child.pid(), child, target, tls, couchbase, memcached, console })
    }

    /// Whether it can have a port that speaks TLS.
    pub fn speaks_tls(&self) -> bool {
        self.kind.is_dormouse() || self.kind == Kind::Memcached
    }

    /// Gives it a port that speaks TLS beside the plain one.
    fn with_tls(&self, command: &mut Command, plain: SocketAddr, tls: SocketAddr, certificate: &Certificate) {
        let (file, key_file) = (certificate.file.display(), certificate.key_file.display());
        if self.kind == Kind::Memcached {
            command.args(["-Z", "-l", &format!("notls:{plain},{tls}")]);
            command.args(["-o", &format!("ssl_chain_cert={file},ssl_key={key_file}")]);
        } else {
            command.args(["--memcached", &format!("tls:{tls}")]);
            command.args(["--tls-certificate", &file.to_string(), "--tls-key", &key_file.to_string()]);
            command.args(["--kv-tls-address", "none", "--http-tls-address", "none"]);
        }
    }

    /// What a Dormouse has to be told in a file.
    fn configuration(&self, start: &Start) -> Option<String> {
        let mut text =
            if self.kind.is_dormouse() && start.polls { POLLING.to_owned() } else { String::new() };
        if self.kind.is_dormouse() {
            text += &start.configuration;
        }
        if let Some(item_heap) = self.kind.item_heap() {
            for name in start.buckets() {
                text += &format!(
                    "[[bucket]]\nname = \"{name}\"\nkind = \"{}\"\nmemory = \"{}\"\nitem_heap = \"{item_heap}\"\n",
                    start.bucket_kind(),
                    start.bucket_bytes
                );
            }
        }
        (!text.is_empty()).then_some(text)
    }

    fn command(&self, start: &Start, directory: &Path, data: &Path, address: SocketAddr) -> Command {
        let mut command = self.program.command();
        let port = address.port().to_string();
        let connections = (start.connections + 64).to_string();
        match self.kind {
            Kind::Dormouse | Kind::DormouseSlab | Kind::DormouseBlock => {
                command.args(["serve", "--memcached", "127.0.0.1:0", "--kv", "127.0.0.1:0"]);
                command.args(["--http", "127.0.0.1:0", "--workers", &start.workers.to_string()]);
                command.arg("--data").arg(data);
                command.args(["--memory", &start.memory_bytes.to_string()]);
                if self.configuration(start).is_some() {
                    command.arg("--config").arg(directory.join(CONFIGURATION));
                }
                if self.kind.item_heap().is_none() {
                    let bucket = |name| format!("{name},{},{}", start.bucket_kind(), start.bucket_bytes);
                    for name in start.buckets() {
                        command.args(["--bucket", &bucket(name)]);
                    }
                }
                command.args(&self.extra);
            }
            Kind::Memcached => {
                command.args(["-p", &port, "-U", "0", "-t", "1", "-c", &connections]);
                if start.certificate.is_none() {
                    command.args(["-l", "127.0.0.1"]);
                }
                command.args(["-m", &(start.memory_bytes >> 20).to_string(), "-u", "root"]);
                if start.value_bytes_max > 1024 * 1024 {
                    command.args(["-I", &format!("{}m", (start.value_bytes_max >> 20) + 4)]);
                }
            }
            Kind::Redis | Kind::Valkey => {
                command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
                command.args(["--appendonly", if start.durable { "yes" } else { "no" }]);
                command.args(["--appendfsync", "always"]);
                command.args(["--daemonize", "no", "--maxclients", &connections, "--dir"]).arg(data);
                if let Some(policy) = start.eviction {
                    command.args(["--maxmemory", &start.memory_bytes.to_string()]);
                    command.args(["--maxmemory-policy", policy]);
                }
                command.args(&self.extra);
            }
            Kind::Floor => {
                command.args(["floor", "--listen", &address.to_string()]);
                command.args(["--value-bytes", &start.value_bytes.to_string()]);
                if start.durable {
                    command.arg("--journal").arg(data.join("floor-journal"));
                }
            }
        }
        command
    }
}

impl Place {
    fn is_ready(&mut self, subject: &Subject, data: &Path) -> Result<bool> {
        if !subject.kind.is_dormouse() {
            return Ok(TcpStream::connect(self.target.address).is_ok());
        }
        let Ok(text) = fs::read_to_string(data.join(ENDPOINTS)) else { return Ok(false) };
        // The file may be seen half written.
        let Ok(endpoints) = serde_json::from_str::<Endpoints>(&text) else { return Ok(false) };
        let memcached =
            endpoints.memcached.first().context("endpoints.json names no memcached port")?.address;
        let kv = *endpoints.kv.first().context("endpoints.json names no Couchbase port")?;
        let couchbase = Target { address: kv, protocol: Protocol::Couchbase, ..self.target.clone() };
        if let (Some(target), Some(listener)) = (&mut self.tls, endpoints.tls.memcached.first()) {
            target.address = listener.address;
        }
        self.target.address = if subject.protocol == Protocol::Couchbase { kv } else { memcached };
        self.couchbase = Some(couchbase);
        self.memcached = Some(memcached);
        self.console = endpoints.http.first().copied();
        Ok(TcpStream::connect(self.target.address).is_ok())
    }
}

impl Server {
    /// Whether it still runs.
    pub fn ensure_alive(&mut self) -> Result<()> {
        self.child.ensure_alive()
    }

    /// Asks it to end and waits for that.
    pub fn stop(mut self) -> Result<()> {
        self.child.end()
    }
}

/// An address nobody listens on at the moment.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::find_program;

    #[test]
    fn peers_by_name() {
        assert!(Subject::peer("oracle").is_err());
        assert!(Subject::peer("redis=/nonexistent/redis-server").is_err());
        assert_eq!(Subject::peer("floor").unwrap().unwrap().kind, Kind::Floor);
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported_with_its_words() {
        let program = find_program("false").unwrap();
        let subject = Subject::new(Program::new("redis", program, "--version"), Kind::Redis, Protocol::Resp);
        let core = crate::os::allowed_cores().unwrap()[0];
        let start =
            Start::new(Placement { core, further_core: None, without_huge_pages: false, nice: 0 }, 64 << 20);
        let error = format!("{:#}", subject.start(&start).err().unwrap());
        assert!(error.contains("the server ended with"), "{error}");
    }
}
