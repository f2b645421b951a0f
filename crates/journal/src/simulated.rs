//! A disk in memory that forgets what was not synced, and fails when told to.
//!
//! ```text
//! file       current bytes   what reads see
//!            durable bytes   what a crash leaves
//!            pending         the writes and cuts between the two, in order; a sync applies them,
//!                            a failed sync drops them: they are never durable, as with a real disk
//! directory  current and durable names; a sync of the directory makes them equal. A directory created here
//!            is a name in its parent; any other is assumed to exist
//! ```
//!
//! Each operation that changes something has a number, counted from 0. A [`Fault`] strikes at one of them.

use crate::{Disk, File, LockError, Open, Pending};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What goes wrong at an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with EIO and does nothing. A failed sync loses what it was to make durable.
    Io,
    /// It fails with ENOSPC and does nothing.
    NoSpace,
    /// A write takes at most this many bytes and reports it. Other operations: as [`Fault::Io`].
    Short(usize),
    /// A write leaves at most this many bytes and fails with EIO. Other operations: as [`Fault::Io`].
    Torn(usize),
    /// The power fails: this and every later operation fails with EIO and does nothing, until [`SimulatedDisk::crash`].
    PowerOff,
}

/// How much of the unsynced data survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Nothing: only what was synced.
    Synced,
    /// All of it, which is then durable.
    Everything,
    /// All of it, as when only the process dies: it is in the system's cache, and the next crash may lose it.
    Cached,
    /// Of each file the first changes, this many, and half of the next one; nothing of the directory.
    Some(usize),
}

#[derive(Debug, Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

#[derive(Debug, Default)]
struct Inode {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// All directories ever created; those that still exist are among the names.
    directories: BTreeSet<PathBuf>,
    /// Limit on the total size of all files, in bytes.
    space: Option<u64>,
    locks: BTreeSet<PathBuf>,
    hook: Option<Hook>,
    reads: u64,
    randoms: u64,
    operations: u64,
    faults: BTreeMap<u64, Fault>,
    power_off: bool,
    /// Counts crashes: files opened before one are unusable after it.
    life: u64,
}

/// Called at every write.
#[derive(Clone)]
struct Hook(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Hook {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Hook")
    }
}

/// The disk. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

/// A file of a simulated disk.
#[derive(Debug, Clone)]
pub struct SimulatedFile {
    disk: SimulatedDisk,
    inode: usize,
    life: u64,
}

/// A lock of a simulated disk.
#[derive(Debug)]
pub struct SimulatedLock {
    disk: SimulatedDisk,
    path: PathBuf,
    life: u64,
}

/// In the place of a file's inode: the name is a directory.
const DIRECTORY: usize = usize::MAX;

fn eio() -> io::Error {
    Errno::IO.into()
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, written) => {
            let start = usize::try_from(*offset).unwrap_or(usize::MAX);
            let end = start + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            if let Some(place) = bytes.get_mut(start..end) {
                place.copy_from_slice(written);
            }
        }
        Change::Length(length) => bytes.resize(usize::try_from(*length).unwrap_or(usize::MAX), 0),
    }
}

impl State {
    /// Counts an operation and returns the fault that strikes it, if any. Lasting conditions are errors at once.
    fn begin(&mut self) -> io::Result<Option<Fault>> {
        let fault = self.faults.remove(&self.operations);
        self.operations += 1;
        if fault == Some(Fault::PowerOff) {
            self.power_off = true;
        }
        if self.power_off {
            return Err(eio());
        }
        Ok(fault)
    }

    /// Like [`Self::begin`], for operations that do either nothing or everything.
    fn begin_whole(&mut self) -> io::Result<()> {
        match self.begin()? {
            None => Ok(()),
            Some(Fault::NoSpace) => Err(Errno::NOSPC.into()),
            Some(_) => Err(eio()),
        }
    }

    /// How many bytes of a write at this place there is space for.
    fn space_for(&self, inode: usize, offset: u64, length: usize) -> usize {
        let Some(space) = self.space else { return length };
        let files: BTreeSet<usize> = self.names.values().copied().chain([inode]).collect();
        let bytes_of = |inode: &usize| self.inodes.get(*inode).map_or(0, |inode| inode.current.len() as u64);
        let free = space.saturating_sub(files.iter().map(bytes_of).sum());
        let end = bytes_of(&inode) + free;
        length.min(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX))
    }

    /// Returns true if the directory exists, as far as this disk knows.
    fn has_directory(&self, path: &Path) -> bool {
        !self.directories.contains(path) || self.names.contains_key(path)
    }

    fn change(&mut self, inode: usize, change: Change) -> io::Result<()> {
        let inode = self.inodes.get_mut(inode).ok_or_else(eio)?;
        apply(&mut inode.current, &change);
        inode.pending.push(change);
        Ok(())
    }

    /// Loses the cache.
    fn lose_power(&mut self, survival: Survival) {
        for inode in &mut self.inodes {
            let pending = std::mem::take(&mut inode.pending);
            match survival {
                Survival::Synced | Survival::Cached => {}
                Survival::Everything => inode.durable = inode.current.clone(),
                Survival::Some(count) => {
                    for change in pending.iter().take(count) {
                        apply(&mut inode.durable, change);
                    }
                    if let Some(Change::Write(offset, bytes)) = pending.get(count) {
                        let half = bytes.get(..bytes.len() / 2).unwrap_or_default().to_vec();
                        apply(&mut inode.durable, &Change::Write(*offset, half));
                    }
                }
            }
            inode.current = inode.durable.clone();
        }
        if survival != Survival::Everything {
            self.names = self.durable_names.clone();
        }
        let Self { names, directories, .. } = self;
        loop {
            // A directory that was not durable is lost together with its content.
            let gone = |path: &Path| directories.contains(path) && !names.contains_key(path);
            let lost: Vec<PathBuf> =
                names.keys().filter(|name| name.parent().is_some_and(gone)).cloned().collect();
            if lost.is_empty() {
                break;
            }
            names.retain(|name, _| !lost.contains(name));
        }
        self.durable_names = self.names.clone();
    }
}

impl SimulatedDisk {
    /// Creates an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `hook` before every write, to simulate a thread that is always as fast as the disk.
    pub fn at_each_write(&self, hook: Arc<dyn Fn() + Send + Sync>) {
        self.0.lock().hook = Some(Hook(hook));
    }

    /// Number of the next operation.
    pub fn operations(&self) -> u64 {
        self.0.lock().operations
    }

    /// Number of reads so far.
    pub fn reads(&self) -> u64 {
        self.0.lock().reads
    }

    /// Makes `fault` strike at the operation of this number, which must not have happened yet.
    pub fn inject(&self, operation: u64, fault: Fault) {
        self.0.lock().faults.insert(operation, fault);
    }

    /// Drops what was not durable, all open files and locks, and pending faults. The power is on again.
    pub fn crash(&self, survival: Survival) {
        let mut state = self.0.lock();
        if survival != Survival::Cached {
            state.lose_power(survival);
        }
        state.locks.clear();
        state.faults.clear();
        state.power_off = false;
        state.life += 1;
    }

    /// The bytes that a read of this name sees.
    pub fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.0.lock();
        state.names.get(path).and_then(|inode| state.inodes.get(*inode)).map(|inode| inode.current.clone())
    }

    /// Creates a file, synced.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.0.lock();
        let inode = state.inodes.len();
        state.inodes.push(Inode { current: bytes.to_vec(), durable: bytes.to_vec(), pending: Vec::new() });
        state.names.insert(path.to_owned(), inode);
        state.durable_names.insert(path.to_owned(), inode);
    }

    /// Limits the total size of all files to this many bytes; `None` removes the limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.0.lock().space = bytes;
    }

    /// Flips one bit of a file, on the disk and in the cache. Returns false if the file has no such bit.
    pub fn flip(&self, path: &Path, offset: usize, bit: u32) -> bool {
        let mut state = self.0.lock();
        let State { names, inodes, .. } = &mut *state;
        let Some(inode) = names.get(path).and_then(|inode| inodes.get_mut(*inode)) else { return false };
        let turn =
            |bytes: &mut Vec<u8>| bytes.get_mut(offset).map(|byte| *byte ^= 1_u8.wrapping_shl(bit)).is_some();
        turn(&mut inode.durable);
        turn(&mut inode.current)
    }

    /// All names.
    pub fn names(&self) -> Vec<PathBuf> {
        self.0.lock().names.keys().cloned().collect()
    }
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;
    type Lock = SimulatedLock;

    fn open(&self, path: &Path, how: Open) -> io::Result<SimulatedFile> {
        let mut state = self.0.lock();
        if state.power_off {
            return Err(eio());
        }
        if path.parent().is_some_and(|parent| !state.has_directory(parent)) {
            return Err(Errno::NOENT.into());
        }
        let inode = match (state.names.get(path).copied(), how) {
            (Some(DIRECTORY), _) => return Err(Errno::ISDIR.into()),
            (Some(_), Open::CreateNew) => return Err(Errno::EXIST.into()),
            (Some(inode), _) => inode,
            (None, Open::CreateNew) => {
                state.begin_whole()?;
                let inode = state.inodes.len();
                state.inodes.push(Inode::default());
                state.names.insert(path.to_owned(), inode);
                inode
            }
            (None, _) => return Err(Errno::NOENT.into()),
        };
        Ok(SimulatedFile { disk: self.clone(), inode, life: state.life })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.begin_whole()?;
        let inode = state.names.remove(from).ok_or(Errno::NOENT)?;
        state.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.names.contains_key(to) {
            return Err(Errno::EXIST.into());
        }
        let inode = *state.names.get(from).ok_or(Errno::NOENT)?;
        state.begin_whole()?;
        state.names.insert(to.to_owned(), inode);
        Ok(())
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        match state.names.get(path) {
            Some(&DIRECTORY) => return Ok(()),
            Some(_) => return Err(Errno::EXIST.into()),
            None if path.parent().is_some_and(|parent| !state.has_directory(parent)) => {
                return Err(Errno::NOENT.into());
            }
            None => {}
        }
        state.begin_whole()?;
        state.names.insert(path.to_owned(), DIRECTORY);
        state.directories.insert(path.to_owned());
        Ok(())
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.names.get(path) != Some(&DIRECTORY) {
            return Err(Errno::NOENT.into());
        }
        if state.names.keys().any(|name| name.parent() == Some(path)) {
            return Err(Errno::NOTEMPTY.into());
        }
        state.begin_whole()?;
        state.names.remove(path);
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.0.lock();
        let within: Vec<PathBuf> =
            state.names.keys().filter(|name| name.parent() == Some(directory)).cloned().collect();
        if within.is_empty() && state.names.get(directory) != Some(&DIRECTORY) {
            return Err(Errno::NOENT.into());
        }
        Ok(within)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        if !state.names.contains_key(path) {
            return Err(Errno::NOENT.into());
        }
        state.begin_whole()?;
        state.names.remove(path);
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.begin_whole()?;
        let State { names, durable_names, .. } = &mut *state;
        durable_names.retain(|name, _| name.parent() != path.parent() || names.contains_key(name));
        let here = names.iter().filter(|(name, _)| name.parent() == path.parent());
        durable_names.extend(here.map(|(name, inode)| (name.clone(), *inode)));
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.0.lock().names.contains_key(path))
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn lock(&self, path: &Path) -> Result<SimulatedLock, LockError> {
        let mut state = self.0.lock();
        if !state.locks.insert(path.to_owned()) {
            return Err(LockError::ThisProcess);
        }
        Ok(SimulatedLock { disk: self.clone(), path: path.to_owned(), life: state.life })
    }

    fn sync_in_background(&self, file: &SimulatedFile) -> Pending {
        Pending::done(file.sync())
    }

    fn sync_directory_in_background(&self, path: &Path) -> Pending {
        Pending::done(self.sync_directory(path))
    }

    fn random(&self) -> io::Result<u64> {
        let mut state = self.0.lock();
        state.randoms += 1;
        Ok(state.randoms.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn discard_in_background(&self, file: SimulatedFile) {
        drop(file);
    }
}

impl SimulatedFile {
    fn state(&self) -> io::Result<parking_lot::MutexGuard<'_, State>> {
        let state = self.disk.0.lock();
        if state.life == self.life { Ok(state) } else { Err(Errno::BADF.into()) }
    }
}

impl File for SimulatedFile {
    /// There is one process.
    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) {}

    fn length(&self) -> io::Result<u64> {
        Ok(self.state()?.inodes.get(self.inode).map_or(0, |inode| inode.current.len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        state.reads += 1;
        let Some(inode) = state.inodes.get(self.inode) else { return Ok(0) };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let there = inode.current.get(start..).unwrap_or_default();
        let length = there.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..length), there.get(..length)) {
            to.copy_from_slice(from);
        }
        Ok(length)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let hook = self.state()?.hook.clone();
        if let Some(Hook(hook)) = hook {
            hook();
        }
        let mut state = self.state()?;
        let part = |length: usize| bytes.get(..length.min(bytes.len())).unwrap_or_default().to_vec();
        let fault = state.begin()?;
        let space = state.space_for(self.inode, offset, bytes.len());
        if fault.is_none() && space == 0 && !bytes.is_empty() {
            return Err(Errno::NOSPC.into());
        }
        match fault {
            None => {
                state.change(self.inode, Change::Write(offset, part(space)))?;
                Ok(space)
            }
            Some(Fault::Short(length)) => {
                let part = part(length.min(space));
                let taken = part.len();
                state.change(self.inode, Change::Write(offset, part))?;
                Ok(taken)
            }
            Some(Fault::Torn(length)) => {
                state.change(self.inode, Change::Write(offset, part(length)))?;
                Err(eio())
            }
            Some(Fault::NoSpace) => Err(Errno::NOSPC.into()),
            Some(Fault::Io | Fault::PowerOff) => Err(eio()),
        }
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.begin_whole()?;
        state.change(self.inode, Change::Length(length))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state()?;
        let result = state.begin_whole();
        let power_off = state.power_off;
        if let Some(inode) = state.inodes.get_mut(self.inode).filter(|_| !power_off) {
            for change in std::mem::take(&mut inode.pending) {
                if result.is_ok() {
                    apply(&mut inode.durable, &change);
                }
            }
        }
        result
    }
}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        let mut state = self.disk.0.lock();
        if state.life == self.life {
            state.locks.remove(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
