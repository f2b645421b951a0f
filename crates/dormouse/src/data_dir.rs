//! The data directory and `endpoints.json` in it: where a running node says how to reach it.

use crate::bucket_store::{self, BucketStore};
use crate::config::Problem;
use crate::config::reader::cause;
use kv::node::{Endpoints, Service};
use rustix::fs::OFlags;
use serde_json::json;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

const ENDPOINTS: &str = "endpoints.json";

const LOCK: &str = "dormouse.lock";

/// A directory this process can write, and no other node uses meanwhile.
pub struct DataDir {
    path: PathBuf,
    _lock: Lock,
}

/// Held while a directory is in use. The kernel takes it back when the process ends, however it ends.
///
/// The directory itself is locked, so that nobody gets in by removing a file. The file in it is for nodes that know
/// only that one, and for file systems that lock no directories.
pub struct Lock {
    _directory: Option<File>,
    _file: Option<File>,
}

/// Why a directory is not locked.
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
            // A network's file system emulates the lock by one that wants a file that is open for writing.
            Err(Unlocked::Failed(_)) => None,
        };
        // Whatever has this name, nothing is waited for.
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
    /// Makes the directory if it is missing, proves that it can be written, and removes what a former run said.
    pub fn open(path: &Path) -> Result<Self, Problem> {
        let refused = |error: io::Error| {
            Problem::new(format!(
                "node.data = {path:?}: {}; allowed: a directory this process can write",
                cause(&error)
            ))
        };
        make_directories(path).map_err(refused)?;
        let probe = path.join(format!(".{ENDPOINTS}.{}", std::process::id()));
        create_anew(&probe).and_then(|_| fs::remove_file(&probe)).map_err(refused)?;
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

    /// The persistent buckets in it.
    pub fn buckets(&self) -> BucketStore {
        BucketStore::new(&self.path)
    }

    /// Writes `endpoints.json`: complete or not at all.
    pub fn write_endpoints(&self, endpoints: &Endpoints) -> io::Result<()> {
        write_whole(&self.path.join(ENDPOINTS), document(endpoints).as_bytes())
    }

    /// Removes `endpoints.json`: the node does not serve any more.
    pub fn forget_endpoints(&self) {
        let _ = fs::remove_file(self.path.join(ENDPOINTS));
    }
}

/// Makes a directory and those it is in, as far as they are missing, and syncs the one around each: a name is durable
/// only then.
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
            // Who made it may have been killed before it was synced; with something in it, that is over. A file system
            // that cannot sync directories is no reason not to start on one that was there.
            if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()) {
                let _ = sync_directory(parent);
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    match sync_directory(parent) {
        // One may be allowed to make names in a directory, and not to read it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        result => result,
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Locks the data directory around a bucket's directory, where it is in one, against nodes.
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

/// Makes a file that is new, whatever had its name.
fn create_anew(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(path)
}

/// Writes a file durably: complete or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let temporary = directory.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = create_anew(&temporary).and_then(|mut file| {
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
