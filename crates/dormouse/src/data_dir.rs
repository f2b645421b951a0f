//! The data directory and `endpoints.json` in it: where a running node says how to reach it.

use crate::bucket_store::BucketStore;
use crate::config::Problem;
use crate::config::reader::cause;
use kv::node::{Endpoints, Service};
use serde_json::json;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const ENDPOINTS: &str = "endpoints.json";

const LOCK: &str = "dormouse.lock";

/// A directory this process can write, and no other node uses meanwhile.
pub struct DataDir {
    path: PathBuf,
    /// The kernel takes the lock back when the process ends, however it ends.
    _lock: File,
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
        fs::create_dir_all(path).map_err(refused)?;
        let probe = path.join(format!(".{ENDPOINTS}.{}", std::process::id()));
        File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(refused)?;
        let lock = File::create(path.join(LOCK)).map_err(refused)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let taken = "another node uses it; allowed: a directory of its own for each node";
                return Err(Problem::new(format!("node.data = {path:?}: {taken}")));
            }
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
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

/// Locks the data directory around a bucket's directory, where it is in one, against nodes.
pub fn lock_around(bucket: &Path) -> anyhow::Result<Option<File>> {
    let bucket = fs::canonicalize(bucket)?;
    let Some(data) = bucket.parent().and_then(Path::parent) else { return Ok(None) };
    let path = data.join(LOCK);
    if !path.exists() {
        return Ok(None);
    }
    let lock = File::options().write(true).open(&path)?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => {
            anyhow::bail!("{}: a node uses it; stop the node first", data.display())
        }
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Writes a file durably: complete or not at all.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let temporary = directory.join(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    File::open(directory)?.sync_all()
}

fn document(endpoints: &Endpoints) -> String {
    let unix = |service: Service| {
        let of_service = endpoints.unix.iter().filter(move |endpoint| endpoint.service == service);
        of_service.map(|endpoint| (format!("unix:{}", endpoint.path.display()), endpoint.bucket.clone()))
    };
    let tcp = endpoints.memcached.iter().map(|(address, bucket)| (address.to_string(), Some(bucket.clone())));
    let memcached = tcp.chain(unix(Service::Memcached));
    let names = |tcp: &[SocketAddr], service| {
        let unix = unix(service).map(|(address, _)| address);
        tcp.iter().map(ToString::to_string).chain(unix).collect::<Vec<_>>()
    };
    let document = json!({
        "pid": std::process::id(),
        "memcached": memcached.map(|(address, bucket)| json!({ "address": address, "bucket": bucket })).collect::<Vec<_>>(),
        "kv": names(&endpoints.kv, Service::Kv),
        "http": names(&endpoints.http, Service::Http),
    });
    format!("{document}\n")
}
