//! The servers under test: found, started as child processes on one core, told apart from each other, and stopped.

use crate::client::Target;
use crate::os::{self, Placement};
use crate::protocol::Protocol;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Bucket every load goes to.
pub const BUCKET: &str = "default";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The program this lab belongs to.
    Dormouse,
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
            Self::Memcached => "memcached",
            Self::Redis => "redis",
            Self::Valkey => "valkey",
            Self::Floor => "floor",
        }
    }
}

/// A server that can be started.
#[derive(Clone, Debug, Serialize)]
pub struct Subject {
    /// Which server.
    pub kind: Kind,
    /// Its program.
    pub program: PathBuf,
    /// What the program says of itself.
    pub version: String,
    /// Language the load speaks to it.
    pub protocol: Protocol,
    /// Further arguments (Dormouse only).
    pub extra: Vec<String>,
}

/// How a server is to be started.
#[derive(Clone, Debug)]
pub struct Start {
    /// Core and priority.
    pub placement: Placement,
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
}

impl Start {
    /// A start for a load of ordinary items.
    pub fn new(placement: Placement, memory_bytes: u64) -> Self {
        Self {
            placement,
            memory_bytes,
            connections: 1000,
            value_bytes: 256,
            value_bytes_max: 1024 * 1024,
            further_buckets: 0,
            bucket_bytes: memory_bytes,
        }
    }
}

/// A running server; killed when dropped.
pub struct Server {
    child: Child,
    directory: PathBuf,
    /// Its process.
    pub pid: u32,
    /// Where the load connects.
    pub target: Target,
    /// Couchbase port, where it has one.
    pub couchbase: Option<Target>,
}

#[derive(Deserialize)]
struct Endpoints {
    memcached: Vec<MemcachedEndpoint>,
    kv: Vec<SocketAddr>,
}

#[derive(Deserialize)]
struct MemcachedEndpoint {
    address: SocketAddr,
}

/// Finds a program in the search path.
fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

fn version_of(program: &Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}

impl Subject {
    /// Dormouse, from the given program or the one running now.
    pub fn dormouse(program: Option<&Path>, protocol: Protocol, extra: &[String]) -> Result<Self> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => std::env::current_exe().context("finding this program")?,
        };
        let version = version_of(&program, "--version");
        Ok(Self { kind: Kind::Dormouse, program, version, protocol, extra: extra.to_vec() })
    }

    /// A peer by `name` or `name=program`; `None` if it is not installed.
    pub fn peer(text: &str) -> Result<Option<Self>> {
        let (name, given) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
        let (kind, default, flag, protocol) = match name {
            "memcached" => (Kind::Memcached, "memcached", "-V", Protocol::MemcachedBinary),
            "memcached-text" => (Kind::Memcached, "memcached", "-V", Protocol::MemcachedText),
            "redis" | "redis-server" => (Kind::Redis, "redis-server", "--version", Protocol::Resp),
            "valkey" | "valkey-server" => (Kind::Valkey, "valkey-server", "--version", Protocol::Resp),
            "floor" => {
                let program = std::env::current_exe().context("finding this program")?;
                let version = "header parse and canned answer".to_owned();
                let protocol = Protocol::MemcachedBinary;
                return Ok(Some(Self { kind: Kind::Floor, program, version, protocol, extra: Vec::new() }));
            }
            _ => bail!("unknown peer `{name}`: memcached, memcached-text, redis, valkey, floor or none"),
        };
        let program = match given {
            Some(path) if Path::new(path).is_file() => PathBuf::from(path),
            Some(path) => bail!("peer {name}: there is no program {path}"),
            None => match find(default) {
                Some(program) => program,
                None => return Ok(None),
            },
        };
        let version = version_of(&program, flag);
        Ok(Some(Self { kind, program, version, protocol, extra: Vec::new() }))
    }

    /// Starts the server and waits until it answers connections.
    pub fn start(&self, start: &Start) -> Result<Server> {
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("dormouse-lab-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).context("creating a directory for the server")?;
        let result = self.start_in(start, &directory);
        if result.is_err() {
            let _the_first_error_counts = fs::remove_dir_all(&directory);
        }
        result.with_context(|| format!("starting {} ({})", self.kind.name(), self.program.display()))
    }

    fn start_in(&self, start: &Start, directory: &Path) -> Result<Server> {
        let address = free_address()?;
        let mut command = self.command(start, directory, address);
        os::place(&mut command, start.placement);
        let log = File::create(directory.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn()?;
        let target = Target { address, protocol: self.protocol, bucket: BUCKET.to_owned() };
        let mut server =
            Server { pid: child.id(), child, directory: directory.to_owned(), target, couchbase: None };
        let deadline = Instant::now() + START_TIMEOUT;
        while !server.is_ready(self, directory)? {
            if let Some(status) = server.child.try_wait()? {
                let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
                bail!("it ended with {status}: {}", log.trim());
            }
            if Instant::now() > deadline {
                bail!("it does not serve after {} s", START_TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn command(&self, start: &Start, directory: &Path, address: SocketAddr) -> Command {
        let mut command = Command::new(&self.program);
        let port = address.port().to_string();
        let connections = (start.connections + 64).to_string();
        match self.kind {
            Kind::Dormouse => {
                command.args(["serve", "--memcached", "127.0.0.1:0", "--kv", "127.0.0.1:0"]);
                command.args(["--http", "127.0.0.1:0", "--workers", "1", "--data"]).arg(directory);
                command.args(["--memory", &start.memory_bytes.to_string()]);
                let bucket = |name: &str| format!("{name},ephemeral,{}", start.bucket_bytes);
                command.args(["--bucket", &bucket(BUCKET)]);
                for number in 0..start.further_buckets {
                    command.args(["--bucket", &bucket(&format!("bucket-{number}"))]);
                }
                command.args(&self.extra);
            }
            Kind::Memcached => {
                command.args(["-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "1", "-c", &connections]);
                command.args(["-m", &(start.memory_bytes >> 20).max(64).to_string(), "-u", "root"]);
                if start.value_bytes_max > 1024 * 1024 {
                    command.args(["-I", &format!("{}m", (start.value_bytes_max >> 20) + 4)]);
                }
            }
            Kind::Redis | Kind::Valkey => {
                command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "no"]);
                command.args(["--daemonize", "no", "--maxclients", &connections, "--dir"]).arg(directory);
            }
            Kind::Floor => {
                command.args(["lab", "floor", "--listen", &address.to_string()]);
                command.args(["--value-bytes", &start.value_bytes.to_string()]);
            }
        }
        command
    }
}

impl Server {
    fn is_ready(&mut self, subject: &Subject, directory: &Path) -> Result<bool> {
        if subject.kind != Kind::Dormouse {
            return Ok(TcpStream::connect(self.target.address).is_ok());
        }
        let Ok(text) = fs::read_to_string(directory.join("endpoints.json")) else { return Ok(false) };
        // The file may be seen half written.
        let Ok(endpoints) = serde_json::from_str::<Endpoints>(&text) else { return Ok(false) };
        let memcached =
            endpoints.memcached.first().context("endpoints.json names no memcached port")?.address;
        let kv = *endpoints.kv.first().context("endpoints.json names no Couchbase port")?;
        let couchbase =
            Target { address: kv, protocol: Protocol::Couchbase, bucket: self.target.bucket.clone() };
        self.target.address = if subject.protocol == Protocol::Couchbase { kv } else { memcached };
        self.couchbase = Some(couchbase);
        Ok(TcpStream::connect(self.target.address).is_ok())
    }

    /// Whether it still runs.
    pub fn ensure_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            bail!("the server ended with {status}: {}", log.trim());
        }
        Ok(())
    }

    /// Asks it to end and waits for that.
    pub fn stop(mut self) -> Result<()> {
        self.ensure_alive()?;
        os::signal(self.pid, libc::SIGTERM)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("it does not end on SIGTERM after {} s", STOP_TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _it_may_have_ended = self.child.wait();
        let _nothing_is_lost_by_leaving_it = fs::remove_dir_all(&self.directory);
    }
}

/// An address nobody listens on at the moment.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_by_name() {
        assert!(Subject::peer("oracle").is_err());
        assert!(Subject::peer("redis=/nonexistent/redis-server").is_err());
        assert_eq!(Subject::peer("floor").unwrap().unwrap().kind, Kind::Floor);
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported_with_its_words() {
        let subject = Subject {
            kind: Kind::Redis,
            program: find("false").unwrap(),
            version: String::new(),
            protocol: Protocol::Resp,
            extra: Vec::new(),
        };
        let core = os::allowed_cores().unwrap()[0];
        let start = Start::new(Placement { core, nice: 0 }, 64 << 20);
        let error = format!("{:#}", subject.start(&start).err().unwrap());
        assert!(error.contains("it ended with"), "{error}");
    }
}
