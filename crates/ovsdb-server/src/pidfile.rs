//! The pidfile, locked as long as the process lives, so that others can tell whether it is alive.
//!
//! It is created under another name and renamed, so that nobody sees it unlocked or empty.

use super::vlog::system_text;
use rustix::fs::FlockOperation;
use rustix::process::{Flock, FlockOffsetType, FlockType};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The pidfile of this process, removed when this is dropped.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    file: File,
}

/// A failure, in the stock server's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What is logged first, as a warning.
    pub warning: Option<String>,
    /// Why the process ends.
    pub text: String,
}

impl Failure {
    fn new(path: &Path, doing: &str, error: &io::Error) -> Self {
        Self { warning: None, text: format!("{}: {doing} failed ({})", path.display(), system_text(error)) }
    }
}

/// Fails if the file belongs to a live process.
pub fn check(path: &Path) -> Result<(), Failure> {
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            let (shown, error) = (path.display(), system_text(&error));
            return Err(Failure {
                warning: Some(format!("{shown}: open: {error}")),
                text: format!("{shown}: pidfile check failed ({error}), aborting"),
            });
        }
    };
    let holder = rustix::process::fcntl_getlk(&file, &whole()).ok().flatten().and_then(|lock| lock.pid);
    match holder {
        None => Ok(()),
        Some(pid) => {
            let text =
                format!("{}: already running as pid {}, aborting", path.display(), pid.as_raw_nonzero());
            Err(Failure { warning: None, text })
        }
    }
}

fn whole() -> Flock {
    Flock { start: 0, length: 0, pid: None, typ: FlockType::WriteLock, offset_type: FlockOffsetType::Set }
}

impl Pidfile {
    /// Creates the file; an existing one is replaced.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .open(&temporary)
            .map_err(|error| Failure::new(&temporary, "create", &error))?;
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| Failure::new(&temporary, "fcntl(F_SETLK)", &error.into()))?;
        file.set_len(0).map_err(|error| Failure::new(&temporary, "truncate", &error))?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes())
            .map_err(|error| Failure::new(&temporary, "write", &error))?;
        fs::rename(&temporary, path).map_err(|error| {
            let (from, to) = (temporary.display(), path.display());
            let text = format!("failed to rename \"{from}\" to \"{to}\" ({})", system_text(&error));
            Failure { warning: None, text }
        })?;
        Ok(Self { path: path.to_owned(), file })
    }
}

impl Drop for Pidfile {
    fn drop(&mut self) {
        // Another process may have replaced it.
        let mine = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let same = fs::metadata(&self.path).map(mine).ok() == self.file.metadata().map(mine).ok();
        if same {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_id_and_goes() {
        let path = std::env::temp_dir().join(format!("dormouse-pidfile-{}", std::process::id()));
        let pidfile = Pidfile::create(&path).expect("created");
        let text = fs::read_to_string(&path).expect("there");
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(pidfile);
        assert!(!path.exists());
        assert_eq!(check(&path), Ok(()));
    }
}
