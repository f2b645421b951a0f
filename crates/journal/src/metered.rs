//! A disk whose syncs are counted and timed.

use crate::{Disk, File, LockError, Open, Pending};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Counts and times a disk's syncs, of files and directories, including failed ones. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub struct SyncMeter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    syncs: AtomicU64,
    nanoseconds: AtomicU64,
}

impl SyncMeter {
    /// Number of syncs.
    pub fn syncs(&self) -> u64 {
        self.0.syncs.load(Relaxed)
    }

    /// Their total time in microseconds.
    pub fn microseconds(&self) -> u64 {
        self.0.nanoseconds.load(Relaxed) / 1000
    }

    fn measure(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let begun = Instant::now();
        let result = sync();
        let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.syncs.fetch_add(1, Relaxed);
        self.0.nanoseconds.fetch_add(nanoseconds, Relaxed);
        result
    }
}

/// The disk `D` with a meter for the syncs that its caller waits for.
#[derive(Debug, Clone)]
pub struct Metered<D> {
    disk: D,
    meter: SyncMeter,
}

/// A file of such a disk.
#[derive(Debug, Clone)]
pub struct MeteredFile<F> {
    file: F,
    meter: SyncMeter,
}

impl<D> Metered<D> {
    /// The same disk with a meter.
    pub fn new(disk: D, meter: SyncMeter) -> Self {
        Self { disk, meter }
    }
}

impl<D: Disk> Disk for Metered<D> {
    type File = MeteredFile<D::File>;
    type Lock = D::Lock;

    fn open(&self, path: &Path, how: Open) -> io::Result<Self::File> {
        let file = self.disk.open(path, how)?;
        Ok(MeteredFile { file, meter: self.meter.clone() })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.link(from, to)
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.disk.create_directory(path)
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_directory(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        self.disk.list(directory)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.meter.measure(|| self.disk.sync_directory(path))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        self.disk.resolve(path)
    }

    fn lock(&self, path: &Path) -> Result<D::Lock, LockError> {
        self.disk.lock(path)
    }

    fn sync_in_background(&self, file: &Self::File) -> Pending {
        self.disk.sync_in_background(&file.file)
    }

    fn sync_directory_in_background(&self, path: &Path) -> Pending {
        self.disk.sync_directory_in_background(path)
    }

    fn random(&self) -> io::Result<u64> {
        self.disk.random()
    }

    fn discard_in_background(&self, file: Self::File) {
        self.disk.discard_in_background(file.file);
    }
}

impl<F: File> File for MeteredFile<F> {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.file.set_length(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.meter.measure(|| self.file.sync())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }

    fn unlock(&self) {
        self.file.unlock();
    }
}
