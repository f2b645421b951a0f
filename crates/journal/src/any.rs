//! A disk whose kind is known only at run time.

use crate::real::{RealDisk, RealFile};
use crate::simulated::{SimulatedDisk, SimulatedFile, SimulatedLock};
use crate::{Disk, File, FileLock, LockError, Open, Pending};
use std::io;
use std::path::{Path, PathBuf};

/// The file system, or a disk in memory.
#[derive(Debug, Clone)]
pub enum AnyDisk {
    /// The file system.
    Real(RealDisk),
    /// In memory, for tests.
    Simulated(SimulatedDisk),
}

/// A file of either kind.
#[derive(Debug, Clone)]
pub enum AnyFile {
    /// Of the file system.
    Real(RealFile),
    /// In memory.
    Simulated(SimulatedFile),
}

/// A lock of either kind, held until it is dropped.
#[derive(Debug)]
pub enum AnyLock {
    /// Of the file system.
    Real(FileLock),
    /// In memory.
    Simulated(SimulatedLock),
}

/// Calls the same method on either disk.
macro_rules! either {
    ($self:ident, $disk:ident => $call:expr) => {
        match $self {
            AnyDisk::Real($disk) => $call,
            AnyDisk::Simulated($disk) => $call,
        }
    };
}

/// Calls the same method on either file.
macro_rules! either_file {
    ($self:ident, $file:ident => $call:expr) => {
        match $self {
            AnyFile::Real($file) => $call,
            AnyFile::Simulated($file) => $call,
        }
    };
}

impl Disk for AnyDisk {
    type File = AnyFile;
    type Lock = AnyLock;

    fn open(&self, path: &Path, how: Open) -> io::Result<AnyFile> {
        match self {
            Self::Real(disk) => disk.open(path, how).map(AnyFile::Real),
            Self::Simulated(disk) => disk.open(path, how).map(AnyFile::Simulated),
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        either!(self, disk => disk.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        either!(self, disk => disk.link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        either!(self, disk => disk.remove(path))
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        either!(self, disk => disk.create_directory(path))
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        either!(self, disk => disk.remove_directory(path))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        either!(self, disk => disk.list(directory))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        either!(self, disk => disk.sync_directory(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        either!(self, disk => disk.exists(path))
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        either!(self, disk => disk.resolve(path))
    }

    fn lock(&self, path: &Path) -> Result<AnyLock, LockError> {
        match self {
            Self::Real(disk) => disk.lock(path).map(AnyLock::Real),
            Self::Simulated(disk) => disk.lock(path).map(AnyLock::Simulated),
        }
    }

    fn sync_in_background(&self, file: &AnyFile) -> Pending {
        match (self, file) {
            (Self::Real(disk), AnyFile::Real(file)) => disk.sync_in_background(file),
            (Self::Simulated(disk), AnyFile::Simulated(file)) => disk.sync_in_background(file),
            _ => Pending::done(Err(io::ErrorKind::InvalidInput.into())),
        }
    }

    fn sync_directory_in_background(&self, path: &Path) -> Pending {
        either!(self, disk => disk.sync_directory_in_background(path))
    }

    fn random(&self) -> io::Result<u64> {
        either!(self, disk => disk.random())
    }

    fn discard_in_background(&self, file: AnyFile) {
        match (self, file) {
            (Self::Real(disk), AnyFile::Real(file)) => disk.discard_in_background(file),
            (_, file) => drop(file),
        }
    }
}

impl File for AnyFile {
    fn length(&self) -> io::Result<u64> {
        either_file!(self, file => file.length())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        either_file!(self, file => file.read_at(buffer, offset))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        either_file!(self, file => file.write_at(bytes, offset))
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        either_file!(self, file => file.set_length(length))
    }

    fn sync(&self) -> io::Result<()> {
        either_file!(self, file => file.sync())
    }

    fn try_lock(&self) -> io::Result<bool> {
        either_file!(self, file => file.try_lock())
    }

    fn unlock(&self) {
        either_file!(self, file => file.unlock());
    }
}
