//! The two traits: a disk with its names, a file with its bytes.
//!
//! Nothing is durable by being written. Bytes and length are durable after [`File::sync`]; creations, removals and
//! renames are durable after [`Disk::sync_directory`]. After a failed sync it is unknown what is on the disk, and a
//! later successful sync does not change that: a caller that sees one fail must stop using the file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A file that does not exist yet, for reading and writing.
    CreateNew,
}

/// A disk: names, and what they refer to. A handle, cloned freely.
pub trait Disk: Clone + fmt::Debug + Send + Sync + 'static {
    /// An open file.
    type File: File;
    /// A lock, held until it is dropped.
    type Lock: 'static;

    /// Opens a file.
    fn open(&self, path: &Path, how: Open) -> io::Result<Self::File>;

    /// Renames `from` to `to`, replacing what was there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives the file `from` a second name, `to`, which must be new and in the same file system.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Creates a directory in an existing one. Succeeds if it exists already.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory, which must be empty.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;

    /// Lists a directory, in no particular order.
    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in the directory of `path` durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Returns true if the name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// The name itself if it is not a symbolic link, otherwise the target of the link (which need not exist).
    fn resolve(&self, path: &Path) -> io::Result<PathBuf>;

    /// Locks the file of this name against all other processes, creating it if it does not exist.
    fn lock(&self, path: &Path) -> Result<Self::Lock, LockError>;

    /// Like [`File::sync`], on another thread.
    fn sync_in_background(&self, file: &Self::File) -> Pending;

    /// Like [`Self::sync_directory`], on another thread.
    fn sync_directory_in_background(&self, path: &Path) -> Pending;

    /// An unpredictable number.
    fn random(&self) -> io::Result<u64>;

    /// Closes a file that no longer has a name, on another thread: the system then frees its blocks, and a long file
    /// has many.
    fn discard_in_background(&self, file: Self::File);
}

/// An open file; clones refer to the same file.
pub trait File: Clone + fmt::Debug + Send + Sync + 'static {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads at `offset`, up to the buffer's length. Returns 0 at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes at `offset`, possibly less than all.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Truncates or extends it.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Makes the written bytes and the length durable.
    fn sync(&self) -> io::Result<()>;

    /// Locks it against other processes that lock it, by whatever name. Returns false if one has. Unlike
    /// [`Disk::lock`] this lock is of the open file: it ends with [`Self::unlock`] or the last clone.
    fn try_lock(&self) -> io::Result<bool>;

    /// Ends the lock, although clones may still be in use.
    fn unlock(&self);
}

/// Writes all of `bytes`, in one write unless the disk takes less.
pub fn write_all_at<F: File>(file: &F, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = bytes.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Replaces `path` durably by a file with these bytes: it is written as `new`, synced and renamed. After an error
/// either the old one or the new one is there.
pub fn replace_file<D: Disk>(disk: &D, path: &Path, new: &Path, bytes: &[u8]) -> io::Result<()> {
    if disk.exists(new)? {
        disk.remove(new)?;
    }
    let file = disk.open(new, Open::CreateNew)?;
    write_all_at(&file, bytes, 0)?;
    file.sync()?;
    disk.rename(new, path)?;
    disk.sync_directory(path)
}

/// An operation that continues on another thread.
#[derive(Debug)]
pub struct Pending(State);

#[derive(Debug)]
enum State {
    Done(Option<io::Result<()>>),
    Running(Receiver<io::Result<()>>),
}

impl Pending {
    /// An operation that is already done.
    pub fn done(result: io::Result<()>) -> Self {
        Self(State::Done(Some(result)))
    }

    pub(crate) fn running(receiver: Receiver<io::Result<()>>) -> Self {
        Self(State::Running(receiver))
    }

    /// Returns the result, once, when there is one.
    pub fn poll(&mut self) -> Option<io::Result<()>> {
        match &mut self.0 {
            State::Done(result) => result.take(),
            State::Running(receiver) => match receiver.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("the thread ended early"))),
            },
        }
    }
}

/// Why a lock was not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// Another process has it; its id if the system knows it.
    OtherProcess(Option<i32>),
    /// This process has it.
    ThisProcess,
    /// The lock file could not be opened or queried.
    Io(io::Error),
}

impl LockError {
    /// The system's error number, as the stock server would report it.
    pub fn errno(&self) -> i32 {
        match self {
            Self::OtherProcess(_) => rustix::io::Errno::AGAIN.raw_os_error(),
            Self::ThisProcess => rustix::io::Errno::DEADLK.raw_os_error(),
            Self::Io(error) => error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error()),
        }
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherProcess(Some(pid)) => {
                write!(formatter, "cannot lock file because it is already locked by pid {pid}")
            }
            Self::OtherProcess(None) => formatter.write_str("cannot lock file because it is already locked"),
            Self::ThisProcess => {
                formatter.write_str("cannot lock file because this process has already locked it")
            }
            Self::Io(error) => write!(formatter, "failed to lock file: {error}"),
        }
    }
}

impl std::error::Error for LockError {}
