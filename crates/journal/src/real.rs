//! The file system.

use crate::lock::FileLock;
use crate::{Disk, File, LockError, Open, Pending};
use rustix::fs::OFlags;
use std::fmt;
use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

/// Called by a background thread when it is done, to wake a sleeping event loop.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Longest chain of symbolic links that is followed.
const LINKS_MAX: u32 = 40;

/// The file system.
#[derive(Clone, Default)]
pub struct RealDisk {
    wake: Option<Wake>,
}

impl RealDisk {
    /// The file system. `wake` is called whenever a background operation has ended.
    pub fn new(wake: Option<Wake>) -> Self {
        Self { wake }
    }

    fn in_background(&self, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> Pending {
        let (sender, receiver) = mpsc::channel();
        let wake = self.wake.clone();
        let thread = thread::Builder::new().name("dm:sync".to_owned()).spawn(move || {
            // The receiver is gone if nothing waits for the result any more.
            let _ = sender.send(work());
            if let Some(wake) = wake {
                wake();
            }
        });
        match thread {
            Ok(_) => Pending::running(receiver),
            Err(error) => Pending::done(Err(error)),
        }
    }
}

impl fmt::Debug for RealDisk {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RealDisk")
    }
}

/// A file of the file system.
#[derive(Debug, Clone)]
pub struct RealFile(Arc<fs::File>);

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

impl Disk for RealDisk {
    type File = RealFile;
    type Lock = FileLock;

    fn open(&self, path: &Path, how: Open) -> io::Result<RealFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(how != Open::Read).create_new(how == Open::CreateNew).mode(0o660);
        // Without this flag, opening a pipe would wait for its other end; for a regular file it changes nothing.
        options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(RealFile(Arc::new(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o770).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            result => result,
        }
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        sync_directory(directory_of(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.file_type().is_symlink() => {
                    path = directory_of(&path).join(fs::read_link(&path)?);
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => return Ok(path),
            }
        }
        Err(rustix::io::Errno::LOOP.into())
    }

    fn lock(&self, path: &Path) -> Result<FileLock, LockError> {
        FileLock::take(path)
    }

    fn sync_in_background(&self, file: &RealFile) -> Pending {
        let file = file.clone();
        self.in_background(move || file.sync())
    }

    fn sync_directory_in_background(&self, path: &Path) -> Pending {
        let directory = directory_of(path).to_owned();
        self.in_background(move || sync_directory(&directory))
    }

    fn random(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let mut filled = 0;
        while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
            filled += rustix::rand::getrandom(room, rustix::rand::GetRandomFlags::empty())?;
        }
        Ok(u64::from_le_bytes(bytes))
    }

    fn discard_in_background(&self, file: RealFile) {
        // Without a thread it is closed right here: the closure that owns it is dropped.
        let _ = self.in_background(move || {
            drop(file);
            Ok(())
        });
    }
}

impl File for RealFile {
    fn length(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.0.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn unlock(&self) {
        // It ends with the file at the latest.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests;
