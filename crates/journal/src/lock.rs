//! Locks on files that other programs respect too.
//!
//! COMPAT: the stock tools use POSIX record locks (`fcntl`), so these are used here; `flock` would not exclude them.
//! Such a lock belongs to the process, not to the open file: a second one from the same process would succeed, and
//! closing any file descriptor of the lock file would release it. So this process keeps a list of its locks, and does
//! not open a listed lock file a second time.

use crate::LockError;
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Flock, FlockOffsetType, FlockType};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Device and inode of a lock file.
type Id = (u64, u64);

static HELD: Mutex<Vec<Id>> = Mutex::new(Vec::new());

/// A held lock.
#[derive(Debug)]
pub struct FileLock {
    id: Id,
    /// `Some` until it is dropped.
    file: Option<File>,
}

impl FileLock {
    pub(crate) fn take(path: &Path) -> Result<Self, LockError> {
        let mut held = HELD.lock();
        match path.metadata() {
            Ok(metadata) if held.contains(&(metadata.dev(), metadata.ino())) => {
                return Err(LockError::ThisProcess);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(LockError::Io(error)),
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(LockError::Io)?;
        let metadata = file.metadata().map_err(LockError::Io)?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let id = (metadata.dev(), metadata.ino());
                held.push(id);
                Ok(Self { id, file: Some(file) })
            }
            Err(Errno::AGAIN | Errno::ACCESS) => Err(LockError::OtherProcess(holder(&file))),
            Err(error) => Err(LockError::Io(error.into())),
        }
    }
}

/// The process that holds the lock.
fn holder(file: &File) -> Option<i32> {
    let whole = Flock {
        start: 0,
        length: 0,
        pid: None,
        typ: FlockType::WriteLock,
        offset_type: FlockOffsetType::Set,
    };
    let found = rustix::process::fcntl_getlk(file, &whole).ok()??;
    found.pid.map(|pid| pid.as_raw_nonzero().get())
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        // ORDERING: closed before the list is unlocked. Closing it later would release a lock taken in between.
        self.file = None;
        if let Some(place) = held.iter().position(|id| *id == self.id) {
            held.swap_remove(place);
        }
    }
}
