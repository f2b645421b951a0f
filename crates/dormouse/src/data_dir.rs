//! The data directory and its `endpoints.json`, in which a running node publishes its addresses.

use crate::bucket_store::{self, BucketStore};
use crate::config::Problem;
use crate::config::reader::cause;
use kv::node::{Endpoints, Service};
use rustix::fs::OFlags;
use serde_json::json;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const ENDPOINTS: &str = "endpoints.json";

const LOCK: &str = "dormouse.lock";
/// Modes of files, before the process's umask.
const EVERYBODY: u32 = 0o666;
const OWNER: u32 = 0o600;
const OWNER_DIRECTORY: u32 = 0o700;

/// A directory that this process can write and that no other node uses meanwhile.
pub struct DataDir {
    path: PathBuf,
    _lock: Lock,
}

/// Held while a directory is in use. The kernel releases it when the process ends, however it ends.
///
/// The directory itself is locked, so that removing a file cannot defeat the lock. The file in it is for nodes that
/// know only the file, and for file systems that cannot lock directories.
pub struct Lock {
    _directory: Option<File>,
    _file: Option<File>,
}

/// Why a directory could not be locked.
enum Unlocked {
    Taken,
    Failed(io::Error),
}

impl Lock {
    fn take(directory: &Path, makes_file: bool) -> Result<Self, Unlocked> {
        let locked = |file: File| match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(Unlocked::Taken),
            Err(TryLockError::Error(error)) => Err(Unlocked::Failed(error)),
        };
        let itself = match File::open(directory).map_err(Unlocked::Failed).and_then(locked) {
            Ok(itself) => Some(itself),
            Err(Unlocked::Taken) => return Err(Unlocked::Taken),
            // A network file system emulates the lock with one that requires a file opened for writing.
            Err(Unlocked::Failed(_)) => None,
        };
        // Whatever has this name, opening it must not block.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut options = File::options();
        options.write(true).create(makes_file).truncate(false).custom_flags(flags);
        let file = match options.open(directory.join(LOCK)) {
            Ok(file) => Some(locked(file)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !makes_file => None,
            Err(error) => return Err(Unlocked::Failed(error)),
        };
        Ok(Self { _directory: itself, _file: file })
    }
}

impl DataDir {
    /// Creates the directory if it is missing, verifies that it is writable, and removes the `endpoints.json` of a
    /// former run.
    pub fn open(path: &Path) -> Result<Self, Problem> {
        let refused = |error: io::Error| {
            Problem::new(format!(
                "node.data = {path:?}: {}; allowed: a directory this process can write",
                cause(&error)
            ))
        };
        make_directories(path).map_err(refused)?;
        let probe = path.join(format!(".{ENDPOINTS}.{}", std::process::id()));
        recreate(&probe, EVERYBODY).and_then(|_| fs::remove_file(&probe)).map_err(refused)?;
        let lock = Lock::take(path, true).map_err(|unlocked| match unlocked {
            Unlocked::Taken => {
                let taken = "another node uses it; allowed: a directory of its own for each node";
                Problem::new(format!("node.data = {path:?}: {taken}"))
            }
            Unlocked::Failed(error) => refused(error),
        })?;
        let dir = Self { path: path.to_owned(), _lock: lock };
        dir.forget_endpoints();
        Ok(dir)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The persistent buckets in it.
    pub fn buckets(&self) -> BucketStore {
        BucketStore::new(&self.path)
    }

    /// Writes `endpoints.json` atomically.
    pub fn write_endpoints(&self, endpoints: &Endpoints) -> io::Result<()> {
        write_whole(&self.path.join(ENDPOINTS), document(endpoints).as_bytes())
    }

    /// Removes `endpoints.json`: the node no longer serves.
    pub fn forget_endpoints(&self) {
        let _ = fs::remove_file(self.path.join(ENDPOINTS));
    }
}

/// A data directory that is removed with the process.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one in the system's directory for temporary files.
    pub fn make() -> Result<Self, Problem> {
        let number = u64::from_le_bytes(crate::machine::random().unwrap_or_default());
        let path = std::env::temp_dir().join(format!("dormouse-{number:016x}"));
        match fs::DirBuilder::new().mode(OWNER_DIRECTORY).create(&path) {
            Ok(()) => Ok(Self(path)),
            Err(error) => Err(Problem::new(format!("{}: {}", path.display(), cause(&error)))),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Creates a directory and its missing parents, and syncs the parent of each: only then is the name durable.
pub fn make_directories(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && parent != path => {
            make_directories(parent)?;
            match fs::create_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Err(_) if path.is_dir() => {
            // Whoever created it may have been killed before syncing the parent. If it is not empty, that was synced. A
            // file system that cannot sync directories must not prevent a start in an existing one.
            if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()) {
                let _ = sync_directory(parent);
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    match sync_directory(parent) {
        // A process may have permission to create names in a directory but not to read it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// If a bucket's directory is in a data directory, locks that data directory against nodes.
pub fn lock_around(bucket: &Path) -> anyhow::Result<Option<Lock>> {
    let bucket = fs::canonicalize(bucket)?;
    let Some(parent) = bucket.parent() else { return Ok(None) };
    let Some(data) = parent.parent() else { return Ok(None) };
    if !data.join(LOCK).exists() && !parent.ends_with(bucket_store::BUCKETS) {
        return Ok(None);
    }
    match Lock::take(data, false) {
        Ok(lock) => Ok(Some(lock)),
        Err(Unlocked::Taken) => anyhow::bail!("{}: a node uses it; stop the node first", data.display()),
        Err(Unlocked::Failed(error)) => Err(error.into()),
    }
}

/// Creates a new file, replacing whatever had its name.
fn recreate(path: &Path, mode: u32) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).mode(mode).open(path)
}

/// Writes a file atomically and durably.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(path, bytes, EVERYBODY)
}

/// The same, for a file that only its owner may read.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_as(path, bytes, OWNER)
}

fn write_as(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let temporary = directory.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = recreate(&temporary, mode).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_directory(directory)
}

fn named(address: &impl ToString, bucket: Option<String>) -> serde_json::Value {
    json!({ "address": address.to_string(), "bucket": bucket })
}

fn document(endpoints: &Endpoints) -> String {
    let unix = |service: Service| {
        let of_service = endpoints.unix.iter().filter(move |endpoint| endpoint.service == service);
        of_service.map(|endpoint| (format!("unix:{}", endpoint.path.display()), endpoint.bucket.clone()))
    };
    let tcp = endpoints.memcached.iter().map(|(address, bucket)| (address.to_string(), Some(bucket.clone())));
    let memcached = tcp.chain(unix(Service::Memcached));
    let encrypted = endpoints.memcached_tls.iter();
    let names = |tcp: &[SocketAddr], service| {
        let unix = unix(service).map(|(address, _)| address);
        tcp.iter().map(ToString::to_string).chain(unix).collect::<Vec<_>>()
    };
    let document = json!({
        "pid": std::process::id(),
        "memcached": memcached.map(|(address, bucket)| named(&address, bucket)).collect::<Vec<_>>(),
        "kv": names(&endpoints.kv, Service::Kv),
        "http": names(&endpoints.http, Service::Http),
        "tls": {
            "memcached": encrypted.map(|(address, bucket)| named(address, Some(bucket.clone()))).collect::<Vec<_>>(),
            "kv": endpoints.kv_tls,
            "http": endpoints.http_tls,
        },
    });
    format!("{document}\n")
}
